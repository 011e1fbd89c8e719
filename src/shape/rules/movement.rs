//! The rules for operators that move or select elements.

use tract_onnx::tract_hir::infer::Factoid;
use tract_onnx::tract_hir::internal::TDim;

use crate::ir::axes::{axes, permutation};
use crate::onnx::operator::input_at;
use crate::onnx::proto::NodeProto;
use crate::shape::extents::{Shape, extent};
use crate::shape::rules::NodeQuery;

/// The extents that a Shape returns, if the rank of its input is known. A Shape may return the
/// extents of only some axes.
pub(crate) fn read_by_shape(query: &NodeQuery) -> Option<Shape> {
    let shape = query.shape(0).filter(|_| query.node.op_type() == "Shape")?;
    let rank = shape.len() as i64;
    let start = clamped(query.int("start", 0)?, rank)?;
    let end = clamped(query.int("end", rank)?, rank)?;
    shape.get(start..end).map(<[_]>::to_vec)
}

/// Clamps a bound of axes to `0..=rank`.
fn clamped(bound: i64, rank: i64) -> Option<usize> {
    let place = if bound < 0 {
        bound.saturating_add(rank)
    } else {
        bound
    };
    usize::try_from(place.clamp(0, rank)).ok()
}

/// Whether a node is a Squeeze without axes, which removes all axes of extent 1. An axis of unknown
/// extent may be removed too.
pub(crate) fn takes_all_of_one(node: &NodeProto, opset: i64) -> bool {
    let names_axes = match input_at("Squeeze", "axes", opset) {
        None => node.attr_ints("axes").map_or(true, |list| list.is_some()),
        Some(slot) => node.input.get(slot).is_some_and(|name| !name.is_empty()),
    };
    node.op() == ("", "Squeeze") && !names_axes
}

/// The target shape of a Reshape.
struct ReshapeTarget {
    elements: Shape,
    keeps_zero: bool,
}

impl ReshapeTarget {
    fn number(&self, place: usize) -> Option<i64> {
        self.elements.get(place)?.as_ref()?.to_i64().ok()
    }

    /// Whether an extent is copied from the input's extent at the same place.
    fn is_copied(&self, place: usize) -> bool {
        !self.keeps_zero && self.number(place) == Some(0)
    }

    /// Whether an extent is given as `-1`, so that it follows from the other extents.
    fn is_rest(&self, place: usize) -> bool {
        self.number(place) == Some(-1)
    }

    /// The extents that the target shape gives or copies; `None` for an extent that is unknown or
    /// `-1`.
    fn extents(&self, from: Option<&Shape>) -> Shape {
        let places = self.elements.iter().enumerate();
        let extents = places.map(|(place, element)| {
            if self.is_rest(place) {
                None
            } else if self.is_copied(place) {
                from?.get(place)?.clone()
            } else {
                element.clone()
            }
        });
        extents.collect()
    }

    /// The extent for `-1`, if all other extents are known or copied.
    fn rest(&self, from: &Shape, shape: &Shape) -> Option<TDim> {
        let read = (0..from.len()).filter(|&place| !self.is_copied(place));
        let given =
            (0..shape.len()).filter(|&place| !self.is_copied(place) && !self.is_rest(place));
        let (read, given) = (element_count(from, read)?, element_count(shape, given)?);
        (given > 0 && read % given == 0).then(|| TDim::from(read / given))
    }
}

/// The product of the extents at these places, if all are known.
fn element_count(shape: &Shape, mut places: impl Iterator<Item = usize>) -> Option<usize> {
    places.try_fold(1_usize, |count, place| {
        count.checked_mul(extent(&shape[place])?)
    })
}

/// The only unknown extent of a new shape, with its place. It follows from the number of elements,
/// which a Reshape does not change. `None` if several extents are unknown, or if the extent does
/// not follow.
fn left_over(from: Shape, shape: &Shape) -> Option<(usize, TDim)> {
    let from: Vec<TDim> = from.into_iter().collect::<Option<_>>()?;
    let mut left: Vec<TDim> = from
        .into_iter()
        .flat_map(|dim| factors(dim, shape))
        .collect();
    if left.iter().any(|dim| matches!(dim.to_i64(), Ok(0))) {
        return None;
    }
    let mut open = vec![];
    let mut divisor = 1_i64;
    for (place, dim) in shape.iter().enumerate() {
        let kept = left.iter().position(|other| Some(other) == dim.as_ref());
        match (kept, extent(dim)) {
            (Some(kept), _) => _ = left.swap_remove(kept),
            (None, Some(number)) => divisor = divisor.checked_mul(number.try_into().ok()?)?,
            (None, None) => open.push(place),
        }
    }
    let [place] = open[..] else { return None };
    let mut numbers = 1_i64;
    let mut symbols = TDim::from(1);
    for dim in left {
        match dim.to_i64() {
            Ok(number) => numbers = numbers.checked_mul(number)?,
            Err(_) => symbols *= dim,
        }
    }
    let is_divisible = divisor > 0 && numbers % divisor == 0;
    is_divisible.then(|| (place, (symbols * (numbers / divisor)).simplify()))
}

/// The factors of an extent. An extent that the new shape contains too is not split. A product of
/// extents comes from an earlier merge of axes, which the Reshape may undo.
fn factors(dim: TDim, shape: &Shape) -> Vec<TDim> {
    let is_kept = shape.iter().flatten().any(|kept| *kept == dim);
    match dim {
        TDim::Mul(factors) if !is_kept => factors,
        dim => vec![dim],
    }
}

/// The extent of the axis into which axes of the extents `dims` are merged, if it is known.
fn joint(dims: &[Option<TDim>]) -> Option<TDim> {
    let mut others = dims.iter().filter(|dim| extent(dim) != Some(1));
    match (others.next(), others.next()) {
        (None, _) => Some(TDim::from(1)),
        (Some(only), None) => only.clone(),
        _ => {
            let count = dims
                .iter()
                .try_fold(1_usize, |all, dim| all.checked_mul(extent(dim)?))?;
            Some(TDim::from(count))
        }
    }
}

/// The sum of the extents of parts along an axis, if all are known.
fn joined(parts: &[Shape], along: usize) -> Option<TDim> {
    parts.iter().try_fold(TDim::from(0), |sum, part| {
        Some((sum + part[along].clone()?).simplify())
    })
}

impl NodeQuery<'_> {
    /// The extents of the result of a Reshape that are known, copied or implied.
    pub(super) fn reshape(&self) -> Option<Shape> {
        let target = ReshapeTarget {
            elements: self.elements(1)?,
            keeps_zero: self.is_set("allowzero")?,
        };
        let from = self.shape(0);
        let mut shape = target.extents(from.as_ref());
        if let Some(place) = (0..shape.len()).find(|&place| target.is_rest(place)) {
            shape[place] = from.as_ref().and_then(|from| target.rest(from, &shape));
        }
        if let Some((place, left)) = from.and_then(|from| left_over(from, &shape)) {
            shape[place] = Some(left);
        }
        Some(shape)
    }

    /// The extents of the result of a Flatten. The axes before `axis` are merged into one, and so
    /// are the other axes.
    pub(super) fn flatten(&self) -> Option<Shape> {
        let from = self.shape(0)?;
        let axis = self.int("axis", 1)?;
        let axis = if axis < 0 {
            axis + from.len() as i64
        } else {
            axis
        };
        let (before, behind) = from.split_at_checked(usize::try_from(axis).ok()?)?;
        Some(vec![joint(before), joint(behind)])
    }

    /// The extents of the result of a Transpose. If the rank of the input is unknown, it follows
    /// from `perm`.
    pub(super) fn transpose(&self) -> Option<Shape> {
        let perm = self.node.attr_ints("perm").ok()?;
        let from = self.shape(0).or_else(|| Some(vec![None; perm?.len()]))?;
        let perm = permutation(perm, from.len()).ok()?;
        Some(perm.into_iter().map(|axis| from[axis].clone()).collect())
    }

    /// The extents of the result of a Slice. Axes that it does not cut keep their extents. If the
    /// cut axes are unknown, all extents are unknown.
    pub(super) fn slice(&self) -> Option<Shape> {
        let mut shape = self.shape(0)?;
        let cut = self
            .list("axes")
            .and_then(|list| axes(&list, shape.len()).ok());
        match cut {
            None => shape.fill(None),
            Some(cut) => cut.into_iter().for_each(|axis| shape[axis] = None),
        }
        Some(shape)
    }

    /// The extents of the result of a Gather. The axes of the indices replace the indexed axis.
    pub(super) fn gather(&self) -> Option<Shape> {
        let (from, indices) = (self.shape(0)?, self.shape(1)?);
        let along = self.axis(0, from.len())?;
        Some([&from[..along], &indices, &from[along + 1..]].concat())
    }

    /// The extents of a part of a Split. Its length is given, or follows from the number of parts.
    pub(super) fn split(&self, slot: usize) -> Option<Shape> {
        let mut shape = self.shape(0)?;
        let along = self.axis(0, shape.len())?;
        let count = self.node.output.len();
        let sizes = input_at("Split", "split", self.opset).is_some_and(|slot| self.has(slot))
            || self.node.attr_ints("split").ok()?.is_some();
        shape[along] = match (sizes, extent(&shape[along])) {
            (true, _) => self.part_length(slot).map(TDim::from),
            (false, Some(whole)) => (whole % count == 0).then(|| TDim::from(whole / count)),
            _ => None,
        };
        Some(shape)
    }

    /// The length of one part of a Split. A Split may have thousands of parts. So if the lengths
    /// are stored as plain integers, only one of them is read.
    fn part_length(&self, part: usize) -> Option<i64> {
        let Some(slot) = input_at("Split", "split", self.opset) else {
            return self.node.attr_ints("split").ok()??.get(part).copied();
        };
        let lengths = self.inputs.get(slot)?.as_ref()?.value.concretize()?;
        let integers = lengths
            .try_as_plain_ram()
            .and_then(|plain| plain.as_slice::<i64>());
        match integers {
            Ok(integers) => integers.get(part).copied(),
            Err(_) => self.list("split")?.get(part).copied(),
        }
    }

    /// The extents of the result of a Squeeze of the given axes, or of all axes of extent 1.
    pub(super) fn squeeze(&self) -> Option<Shape> {
        let shape = self.shape(0)?;
        let removed = if takes_all_of_one(self.node, self.opset) {
            let extents: Vec<usize> = shape.iter().map(extent).collect::<Option<_>>()?;
            (0..extents.len())
                .filter(|&place| extents[place] == 1)
                .collect()
        } else {
            axes(&self.list("axes")?, shape.len()).ok()?
        };
        let left = shape
            .into_iter()
            .enumerate()
            .filter(|(place, _)| !removed.contains(place));
        Some(left.map(|(_, dim)| dim).collect())
    }

    /// The extents of the result of an Unsqueeze, with additional axes of extent 1.
    pub(super) fn unsqueeze(&self) -> Option<Shape> {
        let (from, added) = (self.shape(0)?, self.list("axes")?);
        let rank = from.len() + added.len();
        let added = axes(&added, rank).ok()?;
        let mut from = from.into_iter();
        (0..rank)
            .map(|place| match added.contains(&place) {
                true => Some(Some(TDim::from(1))),
                false => from.next(),
            })
            .collect()
    }

    /// The extents of the result of a Concat. Along the other axes, the inputs have equal extents,
    /// so the first known extent is used.
    pub(super) fn concat(&self, slots: impl ExactSizeIterator<Item = usize>) -> Option<Shape> {
        let count = slots.len();
        let parts: Vec<Shape> = slots.filter_map(|slot| self.shape(slot)).collect();
        let rank = parts.first()?.len();
        let along = self.axis(0, rank)?;
        if parts.iter().any(|part| part.len() != rank) {
            return None;
        }
        let mut shape: Shape = (0..rank)
            .map(|place| parts.iter().find_map(|part| part[place].clone()))
            .collect();
        shape[along] = if parts.len() == count {
            joined(&parts, along)
        } else {
            None
        };
        Some(shape)
    }

    /// The extents of the result of a Pad. An axis without padding keeps its extent.
    pub(super) fn pad(&self) -> Option<Shape> {
        let from = self.shape(0)?;
        let rank = from.len();
        let pads = match input_at("Pad", "pads", self.opset) {
            Some(slot) if !self.has(3) => self.elements(slot),
            _ => None,
        };
        let Some(pads) = pads.filter(|pads| pads.len() == 2 * rank) else {
            return Some(vec![None; rank]);
        };
        let (before, behind) = pads.split_at(rank);
        let sides = before.iter().zip(behind);
        let extents = from.into_iter().zip(sides).map(|(dim, (before, behind))| {
            Some((dim? + before.clone()? + behind.clone()?).simplify())
        });
        Some(extents.collect())
    }
}
