//! Corrects the extents of axes after pooling and resizing.
//!
//! Engines and their shape inferences disagree about some of these extents, which then stay
//! unknown.

use tract_onnx::prelude::{InferenceFact, TVec};
use tract_onnx::tract_hir::infer::ShapeFactoid;
use tract_onnx::tract_hir::internal::DimFact;

use crate::onnx::proto::NodeProto;
use crate::shape::encode::number;

/// The number of axes before the first spatial axis.
const SPACE: usize = 2;

/// Corrects the fact about the result of pooling. Engines disagree about windows that begin after
/// the end of the axis, and about windows wider than the axis.
pub(crate) fn pooled(node: &NodeProto, from: &InferenceFact, made: InferenceFact) -> InferenceFact {
    let pooling = PoolingAttributes::from_node(node);
    if pooling.auto_pad.starts_with("SAME") {
        return made;
    }
    without(made, from, |axis, whole| !pooling.is_agreed(axis, whole))
}

/// The attributes of a pooling operator.
struct PoolingAttributes<'n> {
    kernel: &'n [i64],
    strides: &'n [i64],
    pads: &'n [i64],
    dilations: &'n [i64],
    is_rounded_up: bool,
    auto_pad: &'n str,
}

impl<'n> PoolingAttributes<'n> {
    fn from_node(node: &'n NodeProto) -> Self {
        let ceil_mode = node.attr_i("ceil_mode").ok().flatten();
        Self {
            kernel: ints(node, "kernel_shape"),
            strides: ints(node, "strides"),
            pads: ints(node, "pads"),
            dilations: ints(node, "dilations"),
            is_rounded_up: ceil_mode.is_some_and(|mode| mode != 0),
            auto_pad: node.attr_s("auto_pad").ok().flatten().unwrap_or_default(),
        }
    }

    /// Whether engines agree about the extent of an axis after pooling. `whole` is the extent
    /// before pooling, if it is known.
    fn is_agreed(&self, axis: usize, whole: Option<i64>) -> bool {
        let Some(place) = axis
            .checked_sub(SPACE)
            .filter(|&place| place < self.kernel.len())
        else {
            return true;
        };
        let span = at(self.dilations, place, 1) * (at(self.kernel, place, 1) - 1) + 1;
        let stride = at(self.strides, place, 1).max(1);
        let (before, behind) = match self.auto_pad {
            "VALID" => (0, 0),
            _ => (
                at(self.pads, place, 0),
                at(self.pads, place + self.kernel.len(), 0),
            ),
        };
        let Some(whole) = whole.map(i128::from) else {
            // Whether the last window begins before the end of the axis, for any extent of the
            // axis.
            let begins_inside = self.auto_pad != "VALID" && behind + stride <= span;
            return !self.is_rounded_up || stride == 1 || begins_inside;
        };
        let room = whole + before + behind - span;
        let last = (room + stride - 1).div_euclid(stride) * stride;
        room >= 0
            && match (self.is_rounded_up, self.auto_pad) {
                (true, "VALID") => room % stride == 0,
                (true, _) => last < whole + before,
                (false, _) => true,
            }
    }
}

fn ints<'n>(node: &'n NodeProto, name: &str) -> &'n [i64] {
    node.attr_ints(name).ok().flatten().unwrap_or_default()
}

fn at(list: &[i64], place: usize, default: i64) -> i128 {
    list.get(place).copied().unwrap_or(default).into()
}

/// Corrects the fact about a resized value. Engines multiply a known extent by a factor in float32
/// or float64, so the resulting extents are dropped. The rule for Resize adds the extents on which
/// float32 and float64 agree.
pub(crate) fn resized(
    node: &NodeProto,
    from: &InferenceFact,
    made: InferenceFact,
) -> InferenceFact {
    let is_by_axes = node
        .attribute
        .iter()
        .any(|attribute| ["axes", "keep_aspect_ratio_policy"].contains(&attribute.name()));
    if is_by_axes {
        return made;
    }
    without(made, from, |_, whole| whole.is_some())
}

/// Drops the extents of the axes for which `is_dropped` holds. The arguments of `is_dropped` are
/// the axis, and the extent before the operator if it is known.
fn without(
    fact: InferenceFact,
    from: &InferenceFact,
    is_dropped: impl Fn(usize, Option<i64>) -> bool,
) -> InferenceFact {
    if fact.shape.is_open() || from.shape.is_open() {
        return fact;
    }
    let axes = from.shape.dims().map(number).enumerate();
    let dims = axes.zip(fact.shape.dims());
    let dims = dims.map(|((axis, whole), dim)| {
        if is_dropped(axis, whole) {
            DimFact::default()
        } else {
            dim.clone()
        }
    });
    let dims: TVec<DimFact> = dims.collect();
    if dims.len() != fact.shape.dims().count() || dims.iter().eq(fact.shape.dims()) {
        return fact;
    }
    // The value is dropped too, because its shape would contradict the unknown extents.
    fact.without_value().with_shape(ShapeFactoid::closed(dims))
}

#[cfg(test)]
mod tests {
    use tract_onnx::prelude::{DatumType, InferenceFact};
    use tract_onnx::tract_hir::infer::Factoid;

    use super::*;
    use crate::onnx::proto::{AttributeProto, AttributeType};

    fn fact(dims: &[i64]) -> InferenceFact {
        let dims: TVec<DimFact> = dims.iter().map(|&dim| DimFact::from(tdim(dim))).collect();
        InferenceFact::dt(DatumType::F32).with_shape(ShapeFactoid::closed(dims))
    }

    fn tdim(dim: i64) -> tract_onnx::tract_hir::internal::TDim {
        dim.into()
    }

    fn ints_attribute(name: &str, ints: &[i64]) -> AttributeProto {
        AttributeProto {
            name: Some(name.into()),
            ints: ints.to_vec(),
            r#type: Some(AttributeType::Ints as i32),
            ..Default::default()
        }
    }

    fn pool(kernel: i64, stride: i64, pads: [i64; 2], ceil: i64, auto: &str) -> NodeProto {
        let ceil = AttributeProto {
            name: Some("ceil_mode".into()),
            i: Some(ceil),
            r#type: Some(AttributeType::Int as i32),
            ..Default::default()
        };
        let auto = AttributeProto {
            name: Some("auto_pad".into()),
            s: Some(auto.as_bytes().to_vec().into()),
            r#type: Some(AttributeType::String as i32),
            ..Default::default()
        };
        let attribute = vec![
            ints_attribute("kernel_shape", &[kernel]),
            ints_attribute("strides", &[stride]),
            ints_attribute("pads", &pads),
            ceil,
            auto,
        ];
        NodeProto {
            op_type: Some("MaxPool".into()),
            attribute,
            ..Default::default()
        }
    }

    /// Each case has a pool with its kernel, stride, padding and ceil_mode, an extent, and whether
    /// all engines agree on the result.
    #[test]
    fn pool_extents_on_which_engines_disagree_are_unknown() {
        let cases = [
            (pool(3, 2, [1, 1], 0, "NOTSET"), 8, true),
            (pool(3, 2, [0, 0], 1, "NOTSET"), 8, true),
            // The last window begins at place 4, which is only padding.
            (pool(2, 2, [0, 1], 1, "NOTSET"), 4, false),
            (pool(2, 2, [1, 1], 1, "NOTSET"), 4, true),
            (pool(2, 2, [1, 1], 1, "NOTSET"), 5, false),
            (pool(5, 3, [0, 0], 0, "NOTSET"), 4, false),
            (pool(5, 3, [0, 1], 0, "NOTSET"), 4, true),
            (pool(5, 3, [0, 1], 0, "VALID"), 4, false),
            (pool(3, 2, [0, 0], 1, "VALID"), 7, true),
            (pool(3, 2, [0, 0], 1, "VALID"), 8, false),
            (pool(3, 2, [0, 0], 1, "SAME_UPPER"), 8, true),
        ];
        for (node, whole, is_known) in cases {
            let made = pooled(&node, &fact(&[2, 3, whole]), fact(&[2, 3, 4]));
            let dims: Vec<bool> = made
                .shape
                .dims()
                .map(|dim| dim.concretize().is_some())
                .collect();
            assert_eq!(dims, [true, true, is_known], "{node:?} of {whole}");
        }
    }

    #[test]
    fn pool_extent_is_known_only_if_valid_for_every_size() {
        let cases = [
            (pool(3, 2, [1, 1], 0, "NOTSET"), true),
            (pool(3, 2, [1, 1], 1, "NOTSET"), true),
            (pool(2, 2, [0, 0], 1, "NOTSET"), true),
            (pool(2, 1, [1, 1], 1, "NOTSET"), true),
            // For some extents, the last window has only padding, and engines disagree about it.
            // For other extents there is no such window.
            (pool(2, 2, [1, 1], 1, "NOTSET"), false),
            (pool(3, 2, [0, 0], 1, "VALID"), false),
        ];
        for (node, is_known) in cases {
            let open = InferenceFact::dt(DatumType::F32).with_shape(ShapeFactoid::closed(
                [2, 3]
                    .map(|dim| tdim(dim).into())
                    .into_iter()
                    .chain([DimFact::default()])
                    .collect(),
            ));
            let made = pooled(&node, &open, fact(&[2, 3, 4]));
            assert_eq!(
                made.shape
                    .dims()
                    .nth(2)
                    .and_then(|dim| dim.concretize())
                    .is_some(),
                is_known,
                "{node:?}"
            );
        }
    }

    #[test]
    fn resize_of_known_extents_by_scales_is_unknown() {
        let made = resized(&NodeProto::default(), &fact(&[1, 10]), fact(&[1, 23]));
        assert!(made.shape.dims().all(|dim| dim.concretize().is_none()));
    }
}
