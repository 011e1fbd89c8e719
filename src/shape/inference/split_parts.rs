//! Infers the extents of the parts of a Split whose lengths are known only in a run.
//!
//! The extent of each part except the last one is a symbol, and the extent of the last part is the
//! remainder. So the parts add up to the whole, and if several values are split by the same
//! lengths, their parts have equal extents. Lengths that are minima or maxima of extents are not
//! used, because such formulas would grow with each sum of parts.

use tract_onnx::prelude::{InferenceFact, Tensor};
use tract_onnx::tract_hir::infer::Factoid;
use tract_onnx::tract_hir::internal::TDim;

use super::Inference;
use crate::ir::axes::axis;
use crate::ir::regions::region_path;
use crate::onnx::operator::input_at;
use crate::onnx::proto::NodeProto;
use crate::shape::rules::{closed, shape};

impl Inference {
    /// Drops the elements of the input that lists the lengths of a Split, if one of them contains a
    /// minimum or a maximum of extents.
    pub(super) fn drop_computed_lengths(
        &self,
        node: &NodeProto,
        inputs: &mut [Option<InferenceFact>],
    ) {
        let slot = input_at("Split", "split", self.opset).filter(|_| node.op() == ("", "Split"));
        let Some(Some(lengths)) = slot.and_then(|slot| inputs.get_mut(slot)) else {
            return;
        };
        let value = lengths.value.concretize();
        if value.is_some_and(|value| has_extremum(&value)) {
            lengths.value = Default::default();
        }
    }

    /// Completes the fact about a part of a Split by its length, which is a symbol or the
    /// remainder. In a body, a length may differ between iterations, so the extent stays unknown.
    pub(super) fn part_of_split(
        &self,
        node: &NodeProto,
        part: usize,
        whole: &InferenceFact,
        fact: InferenceFact,
    ) -> InferenceFact {
        let slot = input_at("Split", "split", self.opset).filter(|_| region_path(node).is_empty());
        let lengths = slot.and_then(|slot| node.input.get(slot));
        let shapes = shape(&fact).zip(shape(whole));
        let (Some(lengths), Some((mut extents, whole))) = (lengths, shapes) else {
            return fact;
        };
        let along = node.attr_i("axis").ok().map(|along| along.unwrap_or(0));
        let along = along.and_then(|along| axis(along, whole.len()).ok());
        let Some(along) = along.filter(|&along| extents.get(along) == Some(&None)) else {
            return fact;
        };
        extents[along] = if part + 1 < node.output.len() {
            Some(self.length_of_part(part, lengths))
        } else {
            let others: TDim = (0..part)
                .map(|part| self.length_of_part(part, lengths))
                .sum();
            whole[along].clone().map(|whole| whole - others)
        };
        fact.with_shape(closed(extents))
    }

    /// The symbol for the length of a part. Its name contains the name of the lengths that the
    /// Split reads.
    fn length_of_part(&self, part: usize, lengths: &str) -> TDim {
        let name = format!("part {part} of {lengths}");
        TDim::from(self.answers.symbols.sym(&name))
    }
}

/// Whether an element of a value contains a minimum or a maximum of extents.
fn has_extremum(value: &Tensor) -> bool {
    let dims = value.to_plain_array_view::<TDim>();
    dims.is_ok_and(|dims| dims.iter().any(is_extremum))
}

fn is_extremum(dim: &TDim) -> bool {
    match dim {
        TDim::Min(_) | TDim::Max(_) => true,
        TDim::Add(terms) | TDim::Mul(terms) => terms.iter().any(is_extremum),
        TDim::MulInt(_, dim) | TDim::Div(dim, _) => is_extremum(dim),
        _ => false,
    }
}
