//! Finds layers: products with a constant, each with the Add of its bias.

use crate::analysis::Analysis;
use crate::ir::regions::region_path;
use crate::ir::{NodeId, ValueId};
use crate::shape::facts::extent;

/// `y = x·W + b` as MatMul and Add, in the main graph.
pub(super) struct Layer {
    /// The Add.
    pub add: NodeId,
    /// x, whose last axis has extent `rows`.
    pub value: ValueId,
    /// W, a constant `[rows, columns]`.
    pub weight: ValueId,
    /// b, a constant `[columns]`.
    pub bias: ValueId,
    /// y.
    pub output: ValueId,
    /// The number of channels of x.
    pub rows: usize,
    /// The number of channels of y.
    pub columns: usize,
}

impl Layer {
    /// The layer whose product is this node. `None` if the node is not the product of a layer, or
    /// if another node reads the product.
    pub(super) fn find(analysis: &Analysis, matmul: NodeId) -> Option<Self> {
        let Analysis {
            graph,
            facts,
            constants,
            ..
        } = analysis;
        let (&[Some(value), Some(weight)], product) =
            (graph.inputs(matmul), graph.only_output(matmul)?)
        else {
            return None;
        };
        let (add, _) = graph.only_reader(product)?;
        if !graph.is(matmul, "MatMul")
            || !graph.is(add, "Add")
            || !region_path(graph.node(matmul)).is_empty()
        {
            return None;
        }
        let bias = *graph
            .inputs(add)
            .iter()
            .flatten()
            .find(|&&operand| operand != product)?;
        let output = graph.only_output(add)?;
        let mut stored = [weight, bias].into_iter();
        if constants.is_constant(value)
            || !stored.all(|it| constants.is_constant(it) && !constants.is_quantized(it))
        {
            return None;
        }
        let (weight_shape, bias_shape) = (facts.shape(weight)?, facts.shape(bias)?);
        let ([rows, columns], [width]) = (&weight_shape[..], &bias_shape[..]) else {
            return None;
        };
        let (rows, columns, width) = (extent(rows)?, extent(columns)?, extent(width)?);
        let has_elements = rows > 0 && columns > 0;
        (has_elements && width == columns).then_some(Layer {
            add,
            value,
            weight,
            bias,
            output,
            rows,
            columns,
        })
    }
}
