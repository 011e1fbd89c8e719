//! Represents the unknown elements of shape tensors by symbols.
//!
//! Each such element gets a new symbol, so that the other elements stay known after Concat, Slice
//! and Gather. An extent never contains such a symbol, because the element may be 0 or −1, which
//! have special meanings in a target shape.

use std::cell::RefCell;

use tract_onnx::prelude::{InferenceFact, Tensor};
use tract_onnx::tract_hir::infer::Factoid;
use tract_onnx::tract_hir::internal::{IntoArcTensor, Symbol, SymbolScope, TDim};

use crate::hash::HashSet;
use crate::onnx::proto::NodeProto;
use crate::shape::encode::dims_of;
use crate::shape::extents::{Shape, extent};
use crate::shape::rules::closed;

/// The maximum length of a vector of integers that may be a shape or a part of a shape.
const SHORT: usize = 16;

/// Operators that pass the elements of their first input to their result. A Concat passes those of
/// all inputs.
const PASSING: &[&str] = &[
    "Cast",
    "Concat",
    "Gather",
    "Identity",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
];

/// The symbols that stand for unknown elements.
#[derive(Default)]
pub(crate) struct UnknownDims(RefCell<HashSet<Symbol>>);

impl UnknownDims {
    /// The facts about the inputs of a node, as tract gets them. Values with unknown elements are
    /// kept only if the node passes them on.
    pub(crate) fn without_unread(
        &self,
        node: &NodeProto,
        inputs: &[Option<InferenceFact>],
    ) -> Vec<Option<InferenceFact>> {
        let slots = inputs.iter().enumerate();
        let passed = slots.map(|(slot, fact)| match fact {
            Some(fact) if !passes(node.op_type(), slot) && self.is_in_value(fact) => {
                Some(fact.clone().without_value())
            }
            fact => fact.clone(),
        });
        passed.collect()
    }

    fn is_in_value(&self, fact: &InferenceFact) -> bool {
        let value = fact.value.concretize();
        value.is_some_and(|value| self.is_in(&value))
    }

    /// Whether any element of a value is unknown.
    pub(crate) fn is_in(&self, value: &Tensor) -> bool {
        if self.0.borrow().is_empty() || !value.datum_type().is_tdim() {
            return false;
        }
        let dims = value.to_plain_array_view::<TDim>();
        dims.is_ok_and(|dims| dims.iter().any(|dim| self.is_in_dim(dim)))
    }

    fn is_in_dim(&self, dim: &TDim) -> bool {
        let symbols = self.0.borrow();
        !symbols.is_empty() && dim.symbols().iter().any(|symbol| symbols.contains(symbol))
    }

    /// Returns an extent or element, unless it depends on an unknown element.
    fn closed(&self, dim: Option<TDim>) -> Option<TDim> {
        dim.filter(|dim| !self.is_in_dim(dim))
    }

    /// The elements of an integer value, with `None` in place of each unknown element. `None` as a
    /// whole if the value is unknown.
    pub(crate) fn elements(&self, fact: &InferenceFact) -> Option<Shape> {
        let dims = dims_of(&*fact.value.concretize()?)?;
        Some(dims.into_iter().map(|dim| self.closed(Some(dim))).collect())
    }

    /// Drops the extents of a fact that depend on unknown elements.
    pub(crate) fn without(&self, fact: InferenceFact) -> InferenceFact {
        if fact.shape.is_open() || self.0.borrow().is_empty() {
            return fact;
        }
        let dims: Shape = fact
            .shape
            .dims()
            .map(|dim| self.closed(dim.concretize()))
            .collect();
        fact.with_shape(closed(dims))
    }

    /// Adds elements to the fact about a short vector of integers. Known elements are taken from
    /// `known`, and each unknown one gets a new symbol. Other facts are returned unchanged.
    pub(crate) fn named(
        &self,
        symbols: &SymbolScope,
        known: Option<Shape>,
        fact: InferenceFact,
    ) -> InferenceFact {
        let is_integer = known.is_some() || is_of_integers(&fact);
        let has_value = fact.value.concretize().is_some();
        let Some(shape) = short_shape(&fact).filter(|_| is_integer && !has_value) else {
            return fact;
        };
        let mut dims: Vec<TDim> = vec![];
        for place in 0..shape.iter().product() {
            let known = known.as_ref().and_then(|known| known.get(place)?.clone());
            dims.push(known.unwrap_or_else(|| self.new_symbol(symbols)));
        }
        let Ok(dims) = ndarray::ArrayD::from_shape_vec(shape, dims) else {
            return fact;
        };
        InferenceFact::try_from(Tensor::from(dims).into_arc_tensor()).unwrap_or(fact)
    }

    fn new_symbol(&self, symbols: &SymbolScope) -> TDim {
        let mut unknown = self.0.borrow_mut();
        let symbol = symbols.sym(&format!("?{}", unknown.len()));
        unknown.insert(symbol.clone());
        TDim::from(symbol)
    }
}

/// Whether an operator passes the elements of an input to its result.
fn passes(op: &str, slot: usize) -> bool {
    PASSING.contains(&op) && (slot == 0 || op == "Concat")
}

fn is_of_integers(fact: &InferenceFact) -> bool {
    let datum_type = fact.datum_type.concretize();
    datum_type.is_some_and(|t| t.is_integer() || t.is_tdim())
}

/// The extents of a scalar or a short vector, if they are known; `None` for other values.
fn short_shape(fact: &InferenceFact) -> Option<Vec<usize>> {
    if fact.shape.is_open() {
        return None;
    }
    let dims = fact.shape.dims().map(|dim| extent(&dim.concretize()));
    let shape = dims.collect::<Option<Vec<_>>>()?;
    let is_short = shape.len() <= 1 && shape.iter().all(|&count| count <= SHORT);
    is_short.then_some(shape)
}
