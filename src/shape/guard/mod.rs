//! Checks limits before tract infers or evaluates a node.
//!
//! tract's operators trust the model. Their loops and allocations depend on attributes and shapes,
//! and they expand sums of symbols into all equivalent forms. A panic can be caught, but not an
//! endless loop, nor an abort when memory runs out. So this module checks limits before tract is
//! asked.

mod budget;
mod cost;
mod question;

use tract_onnx::prelude::InferenceFact;
use tract_onnx::tract_hir::infer::Factoid;
use tract_onnx::tract_hir::internal::DimFact;

use crate::shape::encode::ints_of;
pub(crate) use crate::shape::guard::budget::{Budget, symbolic_elements};
pub(crate) use crate::shape::guard::cost::{Cost, evaluation, is_worth, work};
pub(crate) use crate::shape::guard::question::{beyond_symbols, can_be_asked};

/// The maximum rank, as in numpy.
const RANK: usize = 64;

/// The maximum number of elements of a value in a run. If the weights of the model have more bytes,
/// their number of bytes is the limit.
const LARGEST_RUN: u64 = 1 << 28;

/// Whether a value fits into memory on a machine that can hold `weight_bytes` bytes of weights.
/// Unknown extents are ignored.
pub(crate) fn fits(fact: &InferenceFact, weight_bytes: u64) -> bool {
    let numbers = fact
        .shape
        .dims()
        .filter_map(|dim| dim.concretize()?.as_i64());
    let mut extents = numbers
        .map(|extent| u64::try_from(extent).ok())
        .filter(|&extent| extent != Some(0));
    let count = extents.try_fold(1_u64, |count, extent| count.checked_mul(extent?));
    count.is_some_and(|count| count <= LARGEST_RUN.max(weight_bytes))
}

fn extents(fact: &InferenceFact) -> Option<Vec<u64>> {
    if fact.shape.is_open() {
        return None;
    }
    fact.shape.dims().map(number_of_places).collect()
}

fn number_of_places(dim: &DimFact) -> Option<u64> {
    u64::try_from(dim.concretize()?.as_i64()?).ok()
}

/// The number of elements of a value. Extents of 0 count as 1, because an operator on an empty
/// value may take time too.
fn element_count(fact: &InferenceFact) -> Option<u64> {
    extents(fact)?
        .into_iter()
        .map(|extent| extent.max(1))
        .try_fold(1, u64::checked_mul)
}

/// The elements of an integer value, if they are known.
fn ints(fact: &InferenceFact) -> Option<Vec<i64>> {
    ints_of(&*fact.value.concretize()?)
}

#[cfg(test)]
mod testing {
    use tract_onnx::prelude::{DatumType, InferenceFact};
    use tract_onnx::tract_hir::infer::ShapeFactoid;
    use tract_onnx::tract_hir::internal::{DimFact, TDim};

    use crate::onnx::proto::{AttributeProto, AttributeType, NodeProto};

    pub(super) fn node(op: &str, attributes: &[(&str, &[i64])]) -> NodeProto {
        let attribute = attributes.iter().map(|&(name, ints)| AttributeProto {
            name: Some(name.into()),
            ints: ints.to_vec(),
            r#type: Some(AttributeType::Ints.into()),
            ..Default::default()
        });
        NodeProto {
            op_type: Some(op.into()),
            attribute: attribute.collect(),
            ..Default::default()
        }
    }

    pub(super) fn shaped(dims: &[i64]) -> InferenceFact {
        let dims = dims.iter().map(|&dim| DimFact::from(TDim::from(dim)));
        InferenceFact::dt(DatumType::F32).with_shape(ShapeFactoid::closed(dims.collect()))
    }
}
