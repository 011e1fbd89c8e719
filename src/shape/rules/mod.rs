//! Shape inference for operators whose inputs are only partly known.
//!
//! A Conv has the channels of its weight whatever its input is, and a Reshape the extents that are
//! numbers in its target. The other extents stay open: one unknown axis does not hide the others.

mod einsum;
mod microsoft;
mod missing_in_tract;

use tract_onnx::prelude::{DatumType, InferenceFact};
use tract_onnx::tract_hir::infer::{Factoid, ShapeFactoid};
use tract_onnx::tract_hir::internal::{DimFact, TDim};

use crate::ir::axes::{axes, axis, permutation};
use crate::onnx::node::canonical_domain;
use crate::onnx::operator::{Category, RESIZE_TO_SIZES, factors_at, input_at};
use crate::onnx::proto::NodeProto;
use crate::onnx::tensor::DataType;
use crate::shape::extents::{Shape, extent};
pub use crate::shape::rules::einsum::Contracted;

/// A node whose output shapes are inferred.
pub struct NodeQuery<'n> {
    /// The node.
    pub node: &'n NodeProto,
    /// The version of ONNX's operator set.
    pub opset: i64,
    /// The facts about its inputs; `None` is an input left out.
    pub inputs: &'n [Option<InferenceFact>],
    /// The element type of an input that the model stores.
    pub stored: &'n dyn Fn(usize) -> Option<DataType>,
    /// The elements of an integer value, as far as they are known.
    pub elements: &'n dyn Fn(&InferenceFact) -> Option<Shape>,
}

/// The extents that a fact knows; `None` where it does not know the rank.
pub fn shape(fact: &InferenceFact) -> Option<Shape> {
    (!fact.shape.is_open()).then(|| fact.shape.dims().map(|dim| dim.concretize()).collect())
}

/// The fact about one output, completed by the operator's rule.
pub fn complete(asked: &NodeQuery, slot: usize, mut fact: InferenceFact) -> InferenceFact {
    let like = crate::shape::rules::missing_in_tract::typed_like(asked.node)
        .filter(|_| slot == 0)
        .and_then(|like| asked.data_type(like));
    if let Some(like) = like {
        fact.datum_type = like.into();
    }
    let is_whole = |shape: &Shape| shape.iter().all(|dim| extent(dim).is_some());
    let known = shape(&fact);
    if known.as_ref().is_some_and(is_whole) || fact.value.concretize().is_some() {
        return fact;
    }
    let is_extent = |dim: &TDim| dim.to_i64().map_or(true, |number| number >= 0);
    let Some(told) = asked.told(slot) else {
        return fact;
    };
    let told: Shape = told.into_iter().map(|dim| dim.filter(is_extent)).collect();
    let both = match known {
        None => told,
        Some(known) if known.len() == told.len() => {
            // A number is more than a symbol, and the remaining extents of the input more than a
            // formula for a length.
            let is_left = asked.node.op_type() == "Reshape";
            let more =
                |(known, told): (Option<TDim>, Option<TDim>)| match (extent(&known), extent(&told))
                {
                    (None, Some(_)) => told,
                    (None, None) if is_left => told.or(known),
                    _ => known.or(told),
                };
            known.into_iter().zip(told).map(more).collect()
        }
        Some(_) => return fact,
    };
    fact.with_shape(closed(both))
}

/// The one extent of a new shape that the input lacks, and its value, since the number of elements
/// is unchanged.
fn left_over(from: Shape, shape: &Shape) -> Option<(usize, TDim)> {
    let from: Vec<TDim> = from.into_iter().collect::<Option<_>>()?;
    // A product of extents was put together, and may be taken apart.
    let is_kept = |dim: &TDim| shape.iter().flatten().any(|told| told == dim);
    let parts = |dim: TDim| match dim {
        TDim::Mul(factors) if !is_kept(&TDim::Mul(factors.clone())) => factors,
        dim => vec![dim],
    };
    let mut left: Vec<TDim> = from.into_iter().flat_map(parts).collect();
    if left
        .iter()
        .any(|dim| dim.to_i64().is_ok_and(|extent| extent == 0))
    {
        return None;
    }
    let mut open = vec![];
    let mut told = 1_i64;
    for (place, dim) in shape.iter().enumerate() {
        match (
            left.iter().position(|other| Some(other) == dim.as_ref()),
            extent(dim),
        ) {
            (Some(found), _) => _ = left.swap_remove(found),
            (None, Some(number)) => told = told.checked_mul(number.try_into().ok()?)?,
            (None, None) => open.push(place),
        }
    }
    let [place] = open[..] else { return None };
    let mut there = 1_i64;
    let mut symbols = TDim::from(1);
    for dim in left {
        match dim.to_i64() {
            Ok(number) => there = there.checked_mul(number)?,
            Err(_) => symbols *= dim,
        }
    }
    let is_whole = told > 0 && there % told == 0;
    is_whole.then(|| (place, (symbols * (there / told)).simplify()))
}

/// The extents that a Shape reads, where it has a value's; it may read some axes alone.
pub fn read_by_shape(asked: &NodeQuery) -> Option<Shape> {
    let shape = asked.shape(0).filter(|_| asked.node.op_type() == "Shape")?;
    let rank = shape.len() as i64;
    let place = |name: &str, absent: i64| {
        let place = asked.node.attr_i(name).ok()?.unwrap_or(absent);
        usize::try_from(
            if place < 0 {
                place.saturating_add(rank)
            } else {
                place
            }
            .clamp(0, rank),
        )
        .ok()
    };
    let (start, end) = (place("start", 0)?, place("end", rank)?);
    shape.get(start..end).map(<[_]>::to_vec)
}

/// Whether a node is a Squeeze that names no axes, and takes all of one place: one of an open extent may be among them.
pub fn takes_all_of_one(node: &NodeProto, opset: i64) -> bool {
    let is_told = || match input_at("Squeeze", "axes", opset) {
        None => node.attr_ints("axes").map_or(true, |list| list.is_some()),
        Some(slot) => node.input.get(slot).is_some_and(|name| !name.is_empty()),
    };
    node.op() == ("", "Squeeze") && !is_told()
}

/// A shape of so many axes, some of them open.
pub fn closed(shape: Shape) -> ShapeFactoid {
    ShapeFactoid::closed(
        shape
            .into_iter()
            .map(|dim| dim.map_or_else(DimFact::default, DimFact::from))
            .collect(),
    )
}

impl NodeQuery<'_> {
    fn shape(&self, slot: usize) -> Option<Shape> {
        shape(self.inputs.get(slot)?.as_ref()?)
    }

    /// The elements of an input of integers: all of them open where only their number is known.
    fn elements(&self, slot: usize) -> Option<Shape> {
        let fact = self.inputs.get(slot)?.as_ref()?;
        let count = || match &self.shape(slot)?[..] {
            [count] => extent(count).filter(|&count| count <= LONGEST),
            _ => None,
        };
        (self.elements)(fact).or_else(|| Some(vec![None; count()?]))
    }

    /// Integers that are all known, from an attribute or an input.
    fn list(&self, name: &str) -> Option<Vec<i64>> {
        match input_at(self.node.op_type(), name, self.opset) {
            None => self.node.attr_ints(name).ok()?.map(<[i64]>::to_vec),
            Some(slot) => self
                .elements(slot)?
                .iter()
                .map(|dim| dim.as_ref()?.to_i64().ok())
                .collect(),
        }
    }

    fn has(&self, slot: usize) -> bool {
        self.inputs.get(slot).is_some_and(Option::is_some)
    }

    fn axis(&self, absent: i64, rank: usize) -> Option<usize> {
        axis(self.node.attr_i("axis").ok()?.unwrap_or(absent), rank).ok()
    }

    /// The element type of an input.
    fn data_type(&self, slot: usize) -> Option<DatumType> {
        self.inputs.get(slot)?.as_ref()?.datum_type.concretize()
    }

    fn told(&self, slot: usize) -> Option<Shape> {
        match (
            canonical_domain(self.node.domain()),
            self.node.op_type(),
            slot,
        ) {
            ("", "Split", _) => self.parted(slot),
            ("", _, 0) => self.first(),
            ("ai.onnx.ml", "Normalizer" | "Scaler", 0) => self.shape(0),
            ("com.microsoft", _, 0) => microsoft::told(self),
            _ => None,
        }
    }

    /// The rule of an ONNX operator for its first output.
    fn first(&self) -> Option<Shape> {
        match self.node.op_type() {
            "Reshape" => self.reshaped(),
            "Shape" => Some(vec![Some(TDim::from(read_by_shape(self)?.len()))]),
            "Conv" => self.convolved(|weight, _| weight[0].clone(), |_| None),
            // The engine does not say more of these.
            "ConvInteger" | "QLinearConv" => {
                self.convolved(|weight, _| weight[0].clone(), |axis| self.swept(axis))
            }
            "ConvTranspose" => self.convolved(
                |weight, group| Some(weight[1].clone()? * group),
                |axis| self.spread(axis),
            ),
            "Flatten" => self.flattened(),
            "Gemm" => self.turned(),
            "Einsum" => Contracted::from_node(self.node, self.inputs)?.shape(),
            "MatMul" | "MatMulInteger" | "QLinearMatMul" => self.multiplied(),
            "Transpose" => self.transposed(),
            "Attention" => self.attended(),
            // For any granularity of the scale.
            "DequantizeLinear" | "DynamicQuantizeLinear" | "QuantizeLinear" => self.shape(0),
            "Concat" => self.joined(0..self.inputs.len()),
            "Resize" | "Upsample" => self.resized(),
            "Pad" => self.padded(),
            "Squeeze" => self.squeezed(),
            "Unsqueeze" => self.unsqueezed(),
            "Slice" => self.cut(),
            "Gather" => self.gathered(),
            "Expand" => {
                let target = self.elements(1)?;
                broadcast(&self.shape(0)?, &target)
            }
            "ConstantOfShape" => self.elements(0),
            "AveragePool" | "LpPool" | "MaxPool" => self.pooled(None),
            "GlobalAveragePool" | "GlobalLpPool" | "GlobalMaxPool" => self.pooled(Some(1)),
            "BatchNormalization" => self.normalized(),
            "Cast" | "CastLike" | "Clip" | "CumSum" | "Dropout" | "LogSoftmax" | "PRelu"
            | "Softmax" | "ScatterElements" | "ScatterND" | "Trilu" => self.shape(0),
            "GatherElements" => self.shape(1),
            _ => match self.node.category() {
                Some(Category::Normalizer) => self.shape(0),
                Some(Category::Arithmetic | Category::Elementwise) => self.together(),
                _ => crate::shape::rules::missing_in_tract::told(self),
            },
        }
    }

    /// The result of a Reshape: extents that are numbers, and extents that are copied.
    fn reshaped(&self) -> Option<Shape> {
        let target = self.elements(1)?;
        let from = self.shape(0);
        let keeps_zero = self.node.attr_i("allowzero").ok()?.unwrap_or(0) != 0;
        let number = |dim: &Option<TDim>| dim.as_ref()?.to_i64().ok();
        let taken_over = |place: usize| !keeps_zero && number(&target[place]) == Some(0);
        let mut shape: Shape = (0..target.len())
            .map(|place| match number(&target[place]) {
                Some(-1) => None,
                Some(0) if !keeps_zero => from.as_ref()?.get(place)?.clone(),
                _ => target[place].clone(),
            })
            .collect();
        // The extent for `-1`, where all others are numbers or copied.
        let rest = || {
            let from = from.as_ref()?;
            let left = |place: &usize| *place >= target.len() || !taken_over(*place);
            let mut there = (0..from.len()).filter(left);
            let there = there.try_fold(1_usize, |count, place| {
                count.checked_mul(extent(&from[place])?)
            })?;
            let mut told = (0..target.len())
                .filter(|&place| !taken_over(place) && number(&target[place]) != Some(-1));
            let told = told.try_fold(1_usize, |count, place| {
                count.checked_mul(extent(&shape[place])?)
            })?;
            (told > 0 && there % told == 0).then(|| TDim::from(there / told))
        };
        let rest = rest();
        if let Some(place) = target.iter().position(|dim| number(dim) == Some(-1)) {
            shape[place] = rest;
        }
        if let Some((place, left)) = from.and_then(|from| left_over(from, &shape)) {
            shape[place] = Some(left);
        }
        Some(shape)
    }

    /// Where the other operand of a product is, or the weight: an operand of QLinear operators has a scale and a zero
    /// point behind it.
    fn second(&self) -> usize {
        if self.node.op_type().starts_with("QLinear") {
            3
        } else {
            1
        }
    }

    /// A convolution has as many axes as its weight.
    fn convolved(
        &self,
        channels: impl Fn(&Shape, i64) -> Option<TDim>,
        place: impl Fn(usize) -> Option<TDim>,
    ) -> Option<Shape> {
        let weight = self
            .shape(self.second())
            .filter(|weight| weight.len() > 2)?;
        let group = self.node.attr_i("group").ok()?.unwrap_or(1);
        let items = self.shape(0).and_then(|from| from.first()?.clone());
        let places = (2..weight.len()).map(place).collect();
        Some([vec![items, channels(&weight, group)], places].concat())
    }

    /// The size of a window along a spatial axis, the padding there, and the stride; `None` where
    /// the padding follows from the extent.
    fn window(&self, axis: usize) -> Option<(i64, i64, i64)> {
        let space = axis.checked_sub(2)?;
        if !matches!(self.node.attr_s("auto_pad").ok()?, None | Some("NOTSET")) {
            return None;
        }
        let weight = self.shape(self.second())?;
        let (kernel, rank) = (extent(weight.get(axis)?)? as i64, weight.len() - 2);
        let at = |name: &str, place: usize, absent: i64| self.number_at(name, place, absent);
        let reach = (kernel - 1)
            .checked_mul(at("dilations", space, 1)?)?
            .checked_add(1)?;
        let pads = at("pads", space, 0)?.checked_add(at("pads", space + rank, 0)?)?;
        Some((reach, pads, at("strides", space, 1)?))
    }

    /// A number of a list.
    fn number_at(&self, name: &str, place: usize, absent: i64) -> Option<i64> {
        self.node
            .attr_ints(name)
            .ok()?
            .map_or(Some(&absent), |list| list.get(place))
            .copied()
    }

    /// The extent that a convolution makes of an axis of space: a number of a number, and of any where its stride is 1.
    fn swept(&self, axis: usize) -> Option<TDim> {
        let (reach, pads, stride) = self.window(axis)?;
        let rest = (self.shape(0)?.get(axis)?.clone()? + pads.checked_sub(reach)?).simplify();
        let steps = match stride {
            1 => rest,
            _ => TDim::from(
                rest.to_i64()
                    .ok()
                    .filter(|&rest| rest >= 0)?
                    .checked_div(stride)?,
            ),
        };
        Some((steps + 1).simplify())
    }

    /// The extent that a transposed convolution makes of an axis of space.
    fn spread(&self, axis: usize) -> Option<TDim> {
        if self
            .node
            .attribute
            .iter()
            .any(|attribute| attribute.name() == "output_shape")
        {
            return None;
        }
        let (reach, pads, stride) = self.window(axis)?;
        let from = self.shape(0)?.get(axis)?.clone()?;
        let rest = reach
            .checked_add(self.number_at("output_padding", axis - 2, 0)?)?
            .checked_sub(pads)?;
        Some(((from - 1) * stride + rest).simplify())
    }

    /// A matrix: the axes before one, and those behind it.
    fn flattened(&self) -> Option<Shape> {
        let from = self.shape(0)?;
        let axis = self.node.attr_i("axis").ok()?.unwrap_or(1);
        let axis = if axis < 0 {
            axis + from.len() as i64
        } else {
            axis
        };
        let (before, behind) = from.split_at_checked(usize::try_from(axis).ok()?)?;
        Some(vec![joint(before), joint(behind)])
    }

    /// The rows of one matrix and the columns of the other, after transposition; either may be
    /// unknown.
    fn turned(&self) -> Option<Shape> {
        let is_turned = |name| self.node.attr_i(name).ok().flatten().unwrap_or(0) != 0;
        let side = |slot: usize, place: usize| self.shape(slot)?.get(place)?.clone();
        Some(vec![
            side(0, usize::from(is_turned("transA"))),
            side(1, usize::from(!is_turned("transB"))),
        ])
    }

    /// The rows of the left matrices and the columns of the right ones. Of a list there is neither.
    fn multiplied(&self) -> Option<Shape> {
        let (left, right) = (self.shape(0)?, self.shape(self.second())?);
        let (stack, matrix) = left.split_at(left.len().saturating_sub(2));
        let (other, columns) = right.split_at(right.len().saturating_sub(2));
        let (_, rows) = matrix.split_last()?;
        let columns = if columns.is_empty() {
            return None;
        } else {
            &columns[1..]
        };
        Some([broadcast(stack, other)?, rows.to_vec(), columns.to_vec()].concat())
    }

    /// The axes in another order. Where nothing is known of them the order tells how many there are.
    fn transposed(&self) -> Option<Shape> {
        let perm = self.node.attr_ints("perm").ok()?;
        let from = self.shape(0).or_else(|| Some(vec![None; perm?.len()]))?;
        let perm = permutation(perm, from.len()).ok()?;
        Some(perm.into_iter().map(|axis| from[axis].clone()).collect())
    }

    /// As many tokens as there are queries, each as wide as the values of all heads.
    fn attended(&self) -> Option<Shape> {
        let (mut shape, values) = (self.shape(0)?, self.shape(2)?);
        let width = values.last()?.clone();
        *shape.last_mut()? = match shape.len() {
            4 => width,
            _ => {
                let heads = |name: &str| self.node.attr_i(name).ok()?.filter(|&heads| heads > 0);
                let (each, rest) = (
                    width.as_ref()?.to_i64().ok()?,
                    (heads("q_num_heads")?, heads("kv_num_heads")?),
                );
                Some(TDim::from(each.checked_div(rest.1)?.checked_mul(rest.0)?))
            }
        };
        Some(shape)
    }

    /// The extents of axes that a Slice does not cut; any axis may be cut where the axes are
    /// unknown.
    fn cut(&self) -> Option<Shape> {
        let mut shape = self.shape(0)?;
        let cut = self
            .list("axes")
            .and_then(|list| axes(&list, shape.len()).ok());
        shape.iter_mut().enumerate().for_each(|(place, dim)| {
            if cut.as_ref().is_none_or(|cut| cut.contains(&place)) {
                *dim = None;
            }
        });
        Some(shape)
    }

    /// The axes of the indices replace the indexed axis.
    fn gathered(&self) -> Option<Shape> {
        let (from, indices) = (self.shape(0)?, self.shape(1)?);
        let along = self.axis(0, from.len())?;
        Some([&from[..along], &indices, &from[along + 1..]].concat())
    }

    /// The batch and channels of the input, and this extent for each spatial axis.
    fn pooled(&self, places: Option<usize>) -> Option<Shape> {
        let mut shape = self.shape(0)?;
        shape
            .iter_mut()
            .skip(2)
            .for_each(|dim| *dim = places.map(TDim::from));
        Some(shape)
    }

    /// The extents of the input, with as many channels as there are parameters.
    fn normalized(&self) -> Option<Shape> {
        let mut shape = self.shape(0)?;
        let channels = self.shape(1).and_then(|gamma| gamma.first()?.clone());
        let known = shape.get_mut(1)?;
        *known = channels.or(known.take());
        Some(shape)
    }

    /// The broadcast shape of all inputs.
    fn together(&self) -> Option<Shape> {
        let shapes: Option<Vec<Shape>> = (0..self.inputs.len())
            .map(|slot| self.shape(slot))
            .collect();
        let mut shapes = shapes?.into_iter();
        let first = shapes.next()?;
        shapes.try_fold(first, |one, other| broadcast(&one, &other))
    }

    /// A part of the value, whose extent is given, or follows from the number of parts.
    fn parted(&self, slot: usize) -> Option<Shape> {
        let mut shape = self.shape(0)?;
        let along = self.axis(0, shape.len())?;
        let count = self.node.output.len();
        let sizes = input_at("Split", "split", self.opset).is_some_and(|slot| self.has(slot))
            || self.node.attr_ints("split").ok()?.is_some();
        shape[along] = match (sizes, extent(&shape[along])) {
            (true, _) => self.length_of_part(slot).map(TDim::from),
            (false, Some(whole)) => (whole % count == 0).then(|| TDim::from(whole / count)),
            _ => None,
        };
        Some(shape)
    }

    /// The length of one part of a Split. A Split has up to thousands, so all lengths are read only where they are not stored
    /// as plain integers.
    fn length_of_part(&self, part: usize) -> Option<i64> {
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

    /// The value without given axes of extent 1, or without all of them.
    fn squeezed(&self) -> Option<Shape> {
        let shape = self.shape(0)?;
        let gone = if takes_all_of_one(self.node, self.opset) {
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
            .filter(|(place, _)| !gone.contains(place));
        Some(left.map(|(_, dim)| dim).collect())
    }

    /// The value with additional axes of extent 1.
    fn unsqueezed(&self) -> Option<Shape> {
        let (from, told) = (self.shape(0)?, self.list("axes")?);
        let rank = from.len() + told.len();
        let new = axes(&told, rank).ok()?;
        let mut from = from.into_iter();
        let place = |place| {
            if new.contains(&place) {
                Some(Some(TDim::from(1)))
            } else {
                from.next()
            }
        };
        (0..rank).map(place).collect()
    }

    /// All that is put together has the same extents along the other axes.
    fn joined(&self, slots: impl ExactSizeIterator<Item = usize>) -> Option<Shape> {
        let count = slots.len();
        let parts: Vec<Shape> = slots.filter_map(|slot| self.shape(slot)).collect();
        let rank = parts.first()?.len();
        let along = self.axis(0, rank)?;
        if parts.iter().any(|part| part.len() != rank) {
            return None;
        }
        let whole = || {
            let all = (parts.len() == count).then_some(&parts)?;
            all.iter().try_fold(TDim::from(0), |sum, part| {
                Some((sum + part[along].clone()?).simplify())
            })
        };
        let known = |place: usize| match place == along {
            true => whole(),
            false => parts.iter().find_map(|part| part[place].clone()),
        };
        Some((0..rank).map(known).collect())
    }

    /// Sizes that are numbers are extents, and factors multiply those that are there.
    fn resized(&self) -> Option<Shape> {
        let from = self.shape(0)?;
        // Sizes that are only a frame, or those of some axes.
        let has = |name: &str| {
            self.node
                .attribute
                .iter()
                .any(|attribute| attribute.name() == name)
        };
        if has("axes") || has("keep_aspect_ratio_policy") {
            return Some(vec![None; from.len()]);
        }
        let op = self.node.op_type();
        let is_sized = op == "Resize" && self.opset >= RESIZE_TO_SIZES && self.has(3);
        let sizes = is_sized
            .then(|| self.elements(3))
            .flatten()
            .filter(|sizes| sizes.len() == from.len());
        let given = || {
            let factors = self
                .inputs
                .get(factors_at(op, self.opset))?
                .as_ref()?
                .value
                .concretize()?;
            let factors = factors.cast_to::<f64>().ok()?;
            Some(
                factors
                    .to_plain_array_view::<f64>()
                    .ok()?
                    .iter()
                    .copied()
                    .collect(),
            )
        };
        let written = || {
            Some(
                self.node
                    .attr_floats("scales")
                    .ok()??
                    .iter()
                    .copied()
                    .map(f64::from)
                    .collect(),
            )
        };
        let factors: Option<Vec<f64>> = if is_sized {
            None
        } else {
            written().or_else(given)
        };
        let factors = factors.filter(|factors| factors.len() == from.len());
        let made = |(place, dim): (usize, Option<TDim>)| match (&sizes, &factors) {
            (Some(sizes), _) => sizes[place].clone(),
            (_, Some(factors)) => scaled(dim?, factors[place]),
            _ => None,
        };
        Some(from.into_iter().enumerate().map(made).collect())
    }

    /// An axis of which nothing is added keeps its extent.
    fn padded(&self) -> Option<Shape> {
        let from = self.shape(0)?;
        let pads = match input_at("Pad", "pads", self.opset) {
            Some(slot) if !self.has(3) => self.elements(slot),
            _ => None,
        };
        let pads = pads.filter(|pads| pads.len() == 2 * from.len());
        let rank = from.len();
        let padded = |(place, dim): (usize, Option<TDim>)| {
            let pads = pads.as_ref()?;
            Some((dim? + pads[place].clone()? + pads[place + rank].clone()?).simplify())
        };
        Some(from.into_iter().enumerate().map(padded).collect())
    }
}

/// An extent times a factor, rounded down.
fn scaled(dim: TDim, factor: f64) -> Option<TDim> {
    if factor.fract() == 0.0 && (1.0..=f64::from(u16::MAX)).contains(&factor) {
        return Some((dim * factor as i64).simplify());
    }
    // Engines multiply in either type.
    let whole = extent(&Some(dim))?;
    let (single, double) = (
        (whole as f32 * factor as f32).floor(),
        (whole as f64 * factor).floor(),
    );
    (f64::from(single) == double && (0.0..f64::from(i32::MAX)).contains(&double))
        .then(|| TDim::from(double as i64))
}

/// The extent of axes that become one.
fn joint(dims: &[Option<TDim>]) -> Option<TDim> {
    let mut others = dims.iter().filter(|dim| extent(dim) != Some(1));
    match (others.next(), others.next()) {
        (None, _) => Some(TDim::from(1)),
        (Some(only), None) => only.clone(),
        _ => {
            Some(TDim::from(dims.iter().try_fold(1_usize, |all, dim| {
                all.checked_mul(extent(dim)?)
            })?))
        }
    }
}

/// Vectors of integers that are longer are no shapes.
const LONGEST: usize = 64;

/// The broadcast shape of two values. An extent that is no number may be 1.
fn broadcast(left: &[Option<TDim>], right: &[Option<TDim>]) -> Option<Shape> {
    let rank = left.len().max(right.len());
    let dim = |shape: &[Option<TDim>], place: usize| match (place + shape.len()).checked_sub(rank) {
        Some(place) => shape[place].clone(),
        None => Some(TDim::from(1)),
    };
    let meet = |place: usize| {
        let (one, other) = (dim(left, place), dim(right, place));
        match (extent(&one), extent(&other)) {
            (Some(1), _) => Some(other),
            (_, Some(1)) => Some(one),
            (Some(number), Some(another)) => (number == another).then_some(one),
            (Some(_), None) => Some(one),
            (None, Some(_)) => Some(other),
            (None, None) => Some(one.filter(|_| dim(left, place) == other)),
        }
    };
    (0..rank).map(meet).collect()
}
