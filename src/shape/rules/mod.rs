//! Shape inference for operators whose inputs are only partly known.
//!
//! For example, the result of a Conv has the channels of the weight for any input, and the result
//! of a Reshape has the known extents of the target shape. The other extents stay unknown, but they
//! do not make the known extents unknown.

mod einsum;
mod microsoft;
mod missing_in_tract;
mod movement;
mod products;
mod windows;

use tract_onnx::prelude::{DatumType, InferenceFact};
use tract_onnx::tract_hir::infer::{Factoid, ShapeFactoid};
use tract_onnx::tract_hir::internal::{DimFact, TDim};

use crate::ir::axes::axis;
use crate::onnx::node::canonical_domain;
use crate::onnx::operator::{Category, input_at};
use crate::onnx::proto::NodeProto;
use crate::onnx::tensor::DataType;
use crate::shape::extents::{Shape, extent};
pub(crate) use crate::shape::rules::einsum::Contracted;
pub(crate) use crate::shape::rules::movement::{read_by_shape, takes_all_of_one};

/// The maximum length of a vector of integers that may be a shape.
const LONGEST: usize = 64;

/// A node whose output shapes are inferred, and the facts from which they are inferred.
pub(crate) struct NodeQuery<'n> {
    /// The node.
    pub node: &'n NodeProto,
    /// The version of ONNX's operator set that the model imports.
    pub opset: i64,
    /// The facts about its inputs; `None` for an absent input.
    pub inputs: &'n [Option<InferenceFact>],
    /// Returns the element type of an input that is an initializer.
    pub stored: &'n dyn Fn(usize) -> Option<DataType>,
    /// Returns the elements of an integer value, if they are known.
    pub elements: &'n dyn Fn(&InferenceFact) -> Option<Shape>,
}

/// The extents of a value; `None` if its rank is unknown.
pub(crate) fn shape(fact: &InferenceFact) -> Option<Shape> {
    (!fact.shape.is_open()).then(|| fact.shape.dims().map(|dim| dim.concretize()).collect())
}

/// Completes the fact about an output by the rule of the operator.
pub(crate) fn complete(query: &NodeQuery, slot: usize, mut fact: InferenceFact) -> InferenceFact {
    if let Some(datum_type) = query.output_type(slot) {
        fact.datum_type = datum_type.into();
    }
    let known = shape(&fact);
    if known.as_ref().is_some_and(is_whole) || fact.value.concretize().is_some() {
        return fact;
    }
    let Some(inferred) = query.output_shape(slot) else {
        return fact;
    };
    let inferred: Shape = inferred
        .into_iter()
        .map(|dim| dim.filter(is_extent))
        .collect();
    let Some(known) = known else {
        return fact.with_shape(closed(inferred));
    };
    if known.len() != inferred.len() {
        return fact;
    }
    let is_reshape = query.node.op_type() == "Reshape";
    let pairs = known.into_iter().zip(inferred);
    let dims = pairs.map(|(known, inferred)| more_precise(known, inferred, is_reshape));
    fact.with_shape(closed(dims.collect()))
}

fn is_whole(shape: &Shape) -> bool {
    shape.iter().all(|dim| extent(dim).is_some())
}

fn is_extent(dim: &TDim) -> bool {
    dim.to_i64().map_or(true, |number| number >= 0)
}

/// Returns the more precise of two extents: the one that tract infers, and the one from the rule.
/// An integer is more precise than a symbol. For a Reshape, an extent that the rule takes from the
/// input is more precise than a formula of tract.
fn more_precise(known: Option<TDim>, inferred: Option<TDim>, is_reshape: bool) -> Option<TDim> {
    match (extent(&known), extent(&inferred)) {
        (None, Some(_)) => inferred,
        (None, None) if is_reshape => inferred.or(known),
        _ => known.or(inferred),
    }
}

/// Converts a shape to the type of tract. Unknown extents stay unknown.
pub(crate) fn closed(shape: Shape) -> ShapeFactoid {
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

    /// The elements of an integer input, each of which may be unknown. `None` if even their number
    /// is unknown.
    fn elements(&self, slot: usize) -> Option<Shape> {
        let fact = self.inputs.get(slot)?.as_ref()?;
        (self.elements)(fact).or_else(|| Some(vec![None; self.length(slot)?]))
    }

    /// The number of elements of an input; `None` unless it is a vector that is short enough for a
    /// shape.
    fn length(&self, slot: usize) -> Option<usize> {
        match &self.shape(slot)?[..] {
            [length] => extent(length).filter(|&length| length <= LONGEST),
            _ => None,
        }
    }

    /// The integers of the attribute `name`, or of the input that replaces it, if all are known.
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

    /// An integer attribute, or its default; `None` if it has another type.
    fn int(&self, name: &str, default: i64) -> Option<i64> {
        Some(self.node.attr_i(name).ok()?.unwrap_or(default))
    }

    /// Whether an attribute is not 0; `None` if it has another type.
    fn is_set(&self, name: &str) -> Option<bool> {
        Some(self.int(name, 0)? != 0)
    }

    /// The number of heads in an attribute, if it is positive.
    fn heads(&self, name: &str) -> Option<i64> {
        self.node.attr_i(name).ok()?.filter(|&heads| heads > 0)
    }

    fn axis(&self, absent: i64, rank: usize) -> Option<usize> {
        axis(self.int("axis", absent)?, rank).ok()
    }

    /// The element type of an input.
    fn data_type(&self, slot: usize) -> Option<DatumType> {
        self.inputs.get(slot)?.as_ref()?.datum_type.concretize()
    }

    /// The element type of an output, if tract does not infer it.
    fn output_type(&self, slot: usize) -> Option<DatumType> {
        let like = missing_in_tract::typed_like(self.node).filter(|_| slot == 0)?;
        self.data_type(like)
    }

    fn output_shape(&self, slot: usize) -> Option<Shape> {
        let domain = canonical_domain(self.node.domain());
        match (domain, self.node.op_type(), slot) {
            ("", "Split", _) => self.split(slot),
            ("", _, 0) => self.first_output(),
            ("ai.onnx.ml", "Normalizer" | "Scaler", 0) => self.shape(0),
            ("com.microsoft", _, 0) => microsoft::first_output(self),
            _ => None,
        }
    }

    /// The rule of an ONNX operator for its first output.
    fn first_output(&self) -> Option<Shape> {
        match self.node.op_type() {
            "Reshape" => self.reshape(),
            "Shape" => Some(vec![Some(TDim::from(read_by_shape(self)?.len()))]),
            "Conv" | "ConvInteger" | "QLinearConv" | "ConvTranspose" => self.convolution(),
            "Flatten" => self.flatten(),
            "Gemm" => self.gemm(),
            "Einsum" => Contracted::from_node(self.node, self.inputs)?.shape(),
            "MatMul" | "MatMulInteger" | "QLinearMatMul" => self.matmul(),
            "Transpose" => self.transpose(),
            "Attention" => self.attention(),
            // The scale may belong to the tensor, to an axis or to a block. The shape of the result
            // is that of the input.
            "DequantizeLinear" | "DynamicQuantizeLinear" | "QuantizeLinear" => self.shape(0),
            "Concat" => self.concat(0..self.inputs.len()),
            "Resize" | "Upsample" => self.resize(),
            "Pad" => self.pad(),
            "Squeeze" => self.squeeze(),
            "Unsqueeze" => self.unsqueeze(),
            "Slice" => self.slice(),
            "Gather" => self.gather(),
            "Expand" => {
                let target = self.elements(1)?;
                broadcast(&self.shape(0)?, &target)
            }
            "ConstantOfShape" => self.elements(0),
            "AveragePool" | "LpPool" | "MaxPool" => self.pool(None),
            "GlobalAveragePool" | "GlobalLpPool" | "GlobalMaxPool" => self.pool(Some(1)),
            "BatchNormalization" => self.batch_normalization(),
            "Cast" | "CastLike" | "Clip" | "CumSum" | "Dropout" | "LogSoftmax" | "PRelu"
            | "Softmax" | "ScatterElements" | "ScatterND" | "Trilu" => self.shape(0),
            "GatherElements" => self.shape(1),
            _ => match self.node.category() {
                Some(Category::Normalizer) => self.shape(0),
                Some(Category::Arithmetic | Category::Elementwise) => self.elementwise(),
                _ => missing_in_tract::first_output(self),
            },
        }
    }

    /// The extents of the result of a BatchNormalization, which are those of the input. The number
    /// of channels may be known only from the parameters.
    fn batch_normalization(&self) -> Option<Shape> {
        let mut shape = self.shape(0)?;
        let channels = self.shape(1).and_then(|gamma| gamma.first()?.clone());
        let known = shape.get_mut(1)?;
        *known = channels.or(known.take());
        Some(shape)
    }

    /// The shape to which all inputs broadcast.
    fn elementwise(&self) -> Option<Shape> {
        let shapes: Option<Vec<Shape>> = (0..self.inputs.len())
            .map(|slot| self.shape(slot))
            .collect();
        let mut shapes = shapes?.into_iter();
        let first = shapes.next()?;
        shapes.try_fold(first, |one, other| broadcast(&one, &other))
    }
}

/// The shape to which two values broadcast; `None` if they do not. Where two extents are different
/// symbols, the extent is unknown, because either may be 1.
fn broadcast(left: &[Option<TDim>], right: &[Option<TDim>]) -> Option<Shape> {
    let rank = left.len().max(right.len());
    (0..rank)
        .map(|place| broadcast_extent(padded(left, rank, place), padded(right, rank, place)))
        .collect()
}

/// The extent of axis `place` after a shape is padded in front with extents of 1 up to `rank`.
fn padded(shape: &[Option<TDim>], rank: usize, place: usize) -> Option<TDim> {
    match (place + shape.len()).checked_sub(rank) {
        Some(place) => shape[place].clone(),
        None => Some(TDim::from(1)),
    }
}

/// The extent to which two extents broadcast. The inner `None` means that it is unknown, and the
/// outer `None` that the extents do not broadcast.
fn broadcast_extent(one: Option<TDim>, other: Option<TDim>) -> Option<Option<TDim>> {
    match (extent(&one), extent(&other)) {
        (Some(1), _) => Some(other),
        (_, Some(1)) => Some(one),
        (Some(number), Some(another)) => (number == another).then_some(one),
        (Some(_), None) => Some(one),
        (None, Some(_)) => Some(other),
        (None, None) if one == other => Some(one),
        (None, None) => Some(None),
    }
}
