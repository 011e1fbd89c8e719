//! Writes the operator of an attention, and the movements between it and its neighbours.

use tract_onnx::tract_hir::internal::TDim;

use super::DOMAIN;
use super::core::AttentionCore;
use super::operand_rows::{OperandRows, RowOrder, joined, rows};
use super::refusal::{AttentionRefusal, FEWEST_KEYS, FEWEST_KEYS_TO_TRANSPOSE};
use crate::affine::recognize::Replacement;
use crate::analysis::Analysis;
use crate::ir::builder::{Maker, float, int};
use crate::ir::{NodeId, ValueId};
use crate::shape::facts::{Shape, extent, same, same_shape};

/// The nodes that replace an attention, or the reason why it stays.
pub(super) fn fused(
    analysis: &Analysis,
    core: &AttentionCore,
) -> Result<Replacement, AttentionRefusal> {
    let writer = AttentionWriter::new(analysis, core)?;
    writer.check_keys()?;
    writer.write().ok_or(AttentionRefusal::UnknownShape)
}

/// An operand of an attention, and the way to read it in rows.
struct AttentionOperand {
    value: ValueId,
    order: RowOrder,
    rows: OperandRows,
    /// The shape `[batch, token, head·channel]` of its rows.
    shape: Shape,
}

/// Writes one attention.
struct AttentionWriter<'a> {
    analysis: &'a Analysis<'a>,
    core: &'a AttentionCore,
    heads: usize,
    operands: [AttentionOperand; 3],
    /// A value after the attention that has the elements of its result in rows, and the movements
    /// to that value.
    joined: Option<(ValueId, Vec<NodeId>)>,
    /// The shape `[batch, token, head·channel]` of the rows of the result.
    shape: Shape,
}

impl<'a> AttentionWriter<'a> {
    fn new(analysis: &'a Analysis<'a>, core: &'a AttentionCore) -> Result<Self, AttentionRefusal> {
        let heads = core.heads().ok_or(AttentionRefusal::UnknownShape)?;
        let rank = core.shape.len();
        let queries = operand(
            analysis,
            core.queries,
            RowOrder::new(rank, rank - 2, rank - 1),
        );
        let keys = operand(analysis, core.keys, RowOrder::new(rank, rank - 1, rank - 2));
        let values = operand(
            analysis,
            core.values,
            RowOrder::new(rank, rank - 2, rank - 1),
        );
        let operands =
            [queries, keys, values].map(|operand| operand.ok_or(AttentionRefusal::UnknownShape));
        let [queries, keys, values] = operands;
        let (queries, keys, values) = (queries?, keys?, values?);
        let mut shape = queries.shape.clone();
        shape[2] = values.shape[2].clone();
        let order = RowOrder::new(rank, rank - 2, rank - 1);
        Ok(AttentionWriter {
            analysis,
            core,
            heads,
            operands: [queries, keys, values],
            joined: joined(analysis, core.output, &order),
            shape,
        })
    }

    /// Refuses an attention with so few keys that the operator is not faster.
    fn check_keys(&self) -> Result<(), AttentionRefusal> {
        let keys = extent(&self.operands[1].shape[1]);
        if keys.is_some_and(|keys| keys < FEWEST_KEYS) {
            return Err(AttentionRefusal::FewKeys);
        }
        let mut operands = self.operands.iter();
        let is_in_rows = operands.all(|operand| operand.rows != OperandRows::Transposed)
            && self.joined.is_some();
        let is_long = keys.is_some_and(|keys| keys >= FEWEST_KEYS_TO_TRANSPOSE);
        (is_in_rows || is_long)
            .then_some(())
            .ok_or(AttentionRefusal::Order)
    }

    fn write(&self) -> Option<Replacement> {
        let graph = &self.analysis.graph;
        let mut maker = Maker::new(graph, *self.core.nodes.last()?);
        let mut splits = vec![];
        let mut inputs = vec![];
        for operand in &self.operands {
            inputs.push(self.written_rows(&mut maker, operand, &mut splits)?);
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let attributes = vec![
            int("num_heads", i64::try_from(self.heads).ok()?),
            float("scale", self.core.scale),
        ];
        let result = maker.op("MultiHeadAttention", &inputs, attributes);
        maker.in_domain(DOMAIN);
        let (output, movements) = self.written_result(&mut maker, &result)?;
        let (made, constants) = maker.finish(graph.value_name(output));
        Some(Replacement {
            nodes: [&self.core.nodes[..], movements].concat(),
            made,
            constants,
        })
    }

    /// Writes the rows of an operand. Operands that are parts of one value share a Split. Returns
    /// the name of the rows. `None` if a shape is unknown, or if a Reshape would have several
    /// unknown extents.
    fn written_rows(
        &self,
        maker: &mut Maker,
        operand: &AttentionOperand,
        splits: &mut Vec<(ValueId, Vec<String>)>,
    ) -> Option<String> {
        let name = self.analysis.graph.value_name(operand.value);
        match operand.rows {
            OperandRows::Whole(value) => self.in_shape(maker, value, &operand.shape),
            OperandRows::Transposed => {
                let axes: Vec<i64> = operand.order.axes.iter().map(|&axis| axis as i64).collect();
                let turned = maker.transpose(name, &axes);
                let shape = self.analysis.facts.shape(operand.value)?;
                let order = operand.order.axes.iter();
                let shape: Shape = order.map(|&axis| shape[axis].clone()).collect();
                Some(maker.reshape(&turned, &target(&shape, &operand.shape)?))
            }
            OperandRows::Part { whole, part, parts } => {
                if let Some((_, names)) = splits.iter().find(|(value, _)| *value == whole) {
                    return names.get(part).cloned();
                }
                let width = extent(&operand.shape[2])?;
                let mut shape = operand.shape.clone();
                shape[2] = Some(TDim::from(width * parts));
                let rows = self.in_shape(maker, whole, &shape)?;
                let names = maker.split(&rows, 2, &vec![i64::try_from(width).ok()?; parts]);
                splits.push((whole, names.clone()));
                names.get(part).cloned()
            }
        }
    }

    /// Returns the name of a value in the shape `wanted`. Adds a Reshape if the value has another
    /// shape.
    fn in_shape(&self, maker: &mut Maker, value: ValueId, wanted: &Shape) -> Option<String> {
        let name = self.analysis.graph.value_name(value);
        let shape = self.analysis.facts.shape(value)?;
        if same_shape(&shape, wanted) {
            return Some(name.to_owned());
        }
        Some(maker.reshape(name, &target(&shape, wanted)?))
    }

    /// Writes the movements after the operator. Returns the value that the last node computes, and
    /// the old movements, which are replaced. `None` if a Reshape would have several unknown
    /// extents.
    fn written_result(&self, maker: &mut Maker, result: &str) -> Option<(ValueId, &[NodeId])> {
        let facts = &self.analysis.facts;
        if let Some((value, movements)) = &self.joined {
            let shape = facts.shape(*value)?;
            if !same_shape(&shape, &self.shape) {
                maker.reshape(result, &target(&self.shape, &shape)?);
            }
            return Some((*value, movements));
        }
        let output = facts.shape(self.core.output)?;
        let rank = output.len();
        let mut split = output.clone();
        split.swap(rank - 3, rank - 2);
        let mut order: Vec<i64> = (0..i64::try_from(rank).ok()?).collect();
        order.swap(rank - 3, rank - 2);
        let split = maker.reshape(result, &target(&self.shape, &split)?);
        maker.transpose(&split, &order);
        Some((self.core.output, &[]))
    }
}

/// Finds how to read an operand in rows. `order` is the order of its axes in rows. `None` if its
/// shape is unknown.
fn operand(analysis: &Analysis, value: ValueId, order: RowOrder) -> Option<AttentionOperand> {
    let shape = analysis.facts.shape(value)?;
    let (outer, inner) = order.axes.split_at(order.outer);
    let (token, batch) = outer.split_last()?;
    let width = inner.iter().try_fold(1_usize, |width, &axis| {
        width.checked_mul(extent(&shape[axis])?)
    })?;
    let batch = batch.iter().try_fold(TDim::from(1), |all, &axis| {
        Some((all * shape[axis].as_ref()?).simplify())
    });
    Some(AttentionOperand {
        value,
        rows: rows(analysis, value, &order, width),
        shape: vec![batch, shape[*token].clone(), Some(TDim::from(width))],
        order,
    })
}

/// The target of a Reshape from one shape to another. A single unknown extent is written as -1. If
/// several extents are unknown, those that equal the extents of `from` at the same axes are written
/// as 0, which copies them. `None` if more than one other extent is unknown.
fn target(from: &Shape, to: &Shape) -> Option<Vec<i64>> {
    let unknown = to.iter().filter(|dim| extent(dim).is_none()).count();
    let mut target = vec![];
    for (place, dim) in to.iter().enumerate() {
        let is_copied = from.get(place).is_some_and(|from| same(from, dim));
        target.push(match extent(dim) {
            Some(extent) => i64::try_from(extent).ok()?,
            None if unknown > 1 && is_copied => 0,
            None => -1,
        });
    }
    let inferred = target.iter().filter(|&&extent| extent == -1).count();
    (inferred <= 1).then_some(target)
}
