//! Elements of shapes of which nothing is known but that they are numbers.
//!
//! Each has a name of its own, so that those beside it stay known where they are put together, cut and picked. None is in
//! an extent, for a number below 1 has a meaning of its own where it is to be one.

use std::cell::RefCell;

use tract_onnx::prelude::{DatumType, InferenceFact, Tensor};
use tract_onnx::tract_hir::infer::Factoid;
use tract_onnx::tract_hir::internal::{IntoArcTensor, Symbol, SymbolScope, TDim};

use crate::hash::HashSet;
use crate::onnx::proto::NodeProto;
use crate::shape::encode::dims_of;
use crate::shape::extents::{Shape, extent};
use crate::shape::rules::closed;

/// Vectors of integers up to this length are shapes, or parts of them.
const SHORT: usize = 16;

/// Operators that pass the elements of their first input, or of all.
const HAND_ON: &[&str] = &[
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

/// The names of all such elements.
#[derive(Default)]
pub struct Open(RefCell<HashSet<Symbol>>);

impl Open {
    /// The inputs of a node as passed to tract: with open elements only where the node passes them
    /// on.
    pub fn hidden(
        &self,
        node: &NodeProto,
        inputs: &[Option<InferenceFact>],
    ) -> Vec<Option<InferenceFact>> {
        let op = node.op_type();
        let is_scale_transparent =
            |slot: usize| HAND_ON.contains(&op) && (slot == 0 || op == "Concat");
        let is_open = |fact: &InferenceFact| {
            fact.value
                .concretize()
                .is_some_and(|value| self.is_in(&value))
        };
        let known = |(slot, fact): (usize, &Option<InferenceFact>)| match fact {
            Some(fact) if !is_scale_transparent(slot) && is_open(fact) => {
                Some(fact.clone().without_value())
            }
            fact => fact.clone(),
        };
        inputs.iter().enumerate().map(known).collect()
    }

    /// Whether some element of a value is open.
    pub fn is_in(&self, value: &Tensor) -> bool {
        let open = self.0.borrow();
        !open.is_empty()
            && value.datum_type().is_tdim()
            && value.to_plain_array_view::<TDim>().is_ok_and(|dims| {
                dims.iter()
                    .any(|dim| dim.symbols().iter().any(|symbol| open.contains(symbol)))
            })
    }

    /// A number, if no element that is open is part of it.
    fn closed(&self, dim: Option<TDim>) -> Option<TDim> {
        let open = self.0.borrow();
        dim.filter(|dim| {
            open.is_empty() || !dim.symbols().iter().any(|symbol| open.contains(symbol))
        })
    }

    /// The elements of a value of integers.
    pub fn elements(&self, fact: &InferenceFact) -> Option<Shape> {
        let dims = dims_of(&*fact.value.concretize()?)?;
        Some(dims.into_iter().map(|dim| self.closed(Some(dim))).collect())
    }

    /// Without extents that have elements in them which are open.
    pub fn without(&self, fact: InferenceFact) -> InferenceFact {
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

    /// The elements of a short vector of integers, each by a name of its own where it is not known: so that those
    /// that are known stay so where they are put together with others.
    pub fn named(
        &self,
        symbols: &SymbolScope,
        known: Option<Shape>,
        fact: InferenceFact,
    ) -> InferenceFact {
        let count = || {
            let shape = fact
                .shape
                .dims()
                .map(|dim| extent(&dim.concretize()))
                .collect::<Option<Vec<_>>>()?;
            let of_integers = |t: DatumType| t.is_integer() || t.is_tdim();
            let is_integer =
                known.is_some() || fact.datum_type.concretize().is_some_and(of_integers);
            let is_short = shape.len() <= 1 && shape.iter().all(|&count| count <= SHORT);
            (!fact.shape.is_open() && is_integer && is_short).then_some(shape)
        };
        let Some(shape) = count().filter(|_| fact.value.concretize().is_none()) else {
            return fact;
        };
        let dims = (0..shape.iter().product()).map(|place| {
            let known = known.as_ref().and_then(|known| known.get(place)?.clone());
            known.unwrap_or_else(|| {
                let mut open = self.0.borrow_mut();
                let symbol = symbols.sym(&format!("?{}", open.len()));
                open.insert(symbol.clone());
                TDim::from(symbol)
            })
        });
        let Ok(dims) = ndarray::ArrayD::from_shape_vec(shape, dims.collect::<Vec<TDim>>()) else {
            return fact;
        };
        InferenceFact::try_from(Tensor::from(dims).into_arc_tensor()).unwrap_or(fact)
    }
}
