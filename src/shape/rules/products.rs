//! The rules for matrix products and attention.

use tract_onnx::tract_hir::internal::TDim;

use crate::shape::extents::Shape;
use crate::shape::rules::{NodeQuery, broadcast};

impl NodeQuery<'_> {
    /// The slot of the second operand or of the weight. In QLinear operators, each operand is
    /// followed by its scale and its zero point.
    pub(super) fn second_operand(&self) -> usize {
        if self.node.op_type().starts_with("QLinear") {
            3
        } else {
            1
        }
    }

    /// The extents of the result of a Gemm: the rows of one operand and the columns of the other
    /// operand, after transposition. Either extent may be unknown.
    pub(super) fn gemm(&self) -> Option<Shape> {
        let rows = usize::from(self.is_set("transA").unwrap_or(false));
        let columns = usize::from(!self.is_set("transB").unwrap_or(false));
        Some(vec![self.extent_at(0, rows), self.extent_at(1, columns)])
    }

    /// An extent of an input.
    fn extent_at(&self, slot: usize, axis: usize) -> Option<TDim> {
        self.shape(slot)?.get(axis)?.clone()
    }

    /// The extents of the result of a MatMul: the rows of the left matrices and the columns of the
    /// right matrices. A vector adds no axis to the result.
    pub(super) fn matmul(&self) -> Option<Shape> {
        let (left, right) = (self.shape(0)?, self.shape(self.second_operand())?);
        let (stack, matrix) = left.split_at(left.len().saturating_sub(2));
        let (other, columns) = right.split_at(right.len().saturating_sub(2));
        let (_, rows) = matrix.split_last()?;
        let (_, columns) = columns.split_first()?;
        Some([broadcast(stack, other)?, rows.to_vec(), columns.to_vec()].concat())
    }

    /// The extents of the result of an Attention: those of the queries, except for the last one. In
    /// rank 4 it is the width of the values of one head, and in rank 3 the width of the values of
    /// all heads of queries.
    pub(super) fn attention(&self) -> Option<Shape> {
        let (mut shape, values) = (self.shape(0)?, self.shape(2)?);
        let width = values.last()?.clone();
        *shape.last_mut()? = match shape.len() {
            4 => width,
            _ => Some(self.width_of_heads(width)?),
        };
        Some(shape)
    }

    /// The width of the result of all heads of queries, computed from the width of the values.
    pub(super) fn width_of_heads(&self, values: Option<TDim>) -> Option<TDim> {
        let values = values?.to_i64().ok()?;
        let each = values.checked_div(self.heads("kv_num_heads")?)?;
        Some(TDim::from(each.checked_mul(self.heads("q_num_heads")?)?))
    }

    /// The extents of a result with the batch and the tokens of the first input, and with another
    /// width.
    pub(super) fn tokens_of_width(&self, width: Option<TDim>) -> Option<Shape> {
        let tokens = self.shape(0)?;
        Some(vec![tokens.first()?.clone(), tokens.get(1)?.clone(), width])
    }
}
