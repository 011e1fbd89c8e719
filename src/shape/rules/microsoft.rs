//! The rules for operators of `com.microsoft`.

use tract_onnx::tract_hir::internal::TDim;

use crate::ir::axes::axis;
use crate::onnx::tensor::DataType;
use crate::shape::extents::{Shape, extent};
use crate::shape::rules::{NodeQuery, broadcast};

/// The extents of the first output of a node.
pub(super) fn first_output(query: &NodeQuery) -> Option<Shape> {
    match query.node.op_type() {
        "Attention" => packed_attention(query),
        "DynamicQuantizeLSTM" => lstm(query),
        "DynamicQuantizeMatMul" | "GemmFastGelu" | "MatMulIntegerToFloat" => query.matmul(),
        "EmbedLayerNormalization" => query.tokens_of_width(query.shape(2)?.get(1)?.clone()),
        "GatherBlockQuantized" => gather_quantized(query),
        "GroupQueryAttention" => group_query_attention(query),
        "MatMulBnb4" | "MatMulFpQ4" | "MatMulNBits" => {
            let mut shape = query.shape(0)?;
            *shape.last_mut()? = Some(TDim::from(query.node.attr_i("N").ok()??));
            Some(shape)
        }
        "MultiHeadAttention" => multi_head_attention(query),
        "QAttention" => query.tokens_of_width(third_of_columns(query)?),
        "QGemm" => quantized_gemm(query),
        "QLinearAdd" | "QLinearMul" => broadcast(&query.shape(0)?, &query.shape(3)?),
        // The inputs begin with the scale and the zero point of the result. Each part is followed
        // by its scale and its zero point.
        "QLinearConcat" => query.concat((2..query.inputs.len()).step_by(3)),
        "QLinearGlobalAveragePool" => global_pool(query),
        "QLinearLeakyRelu" | "QLinearSigmoid" | "QLinearSoftmax" => query.shape(0),
        "QLinearWhere" => {
            let either = broadcast(&query.shape(1)?, &query.shape(4)?)?;
            broadcast(&query.shape(0)?, &either)
        }
        _ => None,
    }
}

/// The extents of the result of an Attention, whose weight concatenates the columns for queries,
/// keys and values.
fn packed_attention(query: &NodeQuery) -> Option<Shape> {
    match query.node.attr_ints("qkv_hidden_sizes").ok()? {
        Some(sizes) => query.tokens_of_width(sizes.get(2).map(TDim::from)),
        None => query.tokens_of_width(third_of_columns(query)?),
    }
}

/// A third of the number of columns of the weight. The outer `None` means that the rank of the
/// weight is unknown or too low, the inner `None` that its number of columns is unknown.
fn third_of_columns(query: &NodeQuery) -> Option<Option<TDim>> {
    let columns = extent(query.shape(1)?.get(1)?);
    Some(columns.map(|columns| TDim::from(columns / 3)))
}

/// The extents of the result of a DynamicQuantizeLSTM: steps, directions, batch and `hidden_size`.
fn lstm(query: &NodeQuery) -> Option<Shape> {
    let steps = query.shape(0).filter(|steps| steps.len() == 3)?;
    let is_bidirectional = query.node.attr_s("direction").ok()? == Some("bidirectional");
    let directions = if is_bidirectional { 2 } else { 1 };
    let size = query.node.attr_i("hidden_size").ok()??;
    Some(vec![
        steps[0].clone(),
        Some(TDim::from(directions)),
        steps[1].clone(),
        Some(TDim::from(size)),
    ])
}

fn gather_quantized(query: &NodeQuery) -> Option<Shape> {
    let (mut table, indices) = (query.shape(0)?, query.shape(1)?);
    let along = axis(query.int("gather_axis", 0)?, table.len()).ok()?;
    // In a table of bytes, each byte packs several elements. In a table of int4 or uint4, each
    // element has a place of its own.
    let numbers_per_place = match (query.stored)(0) {
        Some(DataType::Int4 | DataType::Uint4) => Some(1),
        Some(DataType::Uint8) => 8_i64.checked_div(query.int("bits", 4)?),
        _ => None,
    };
    let last = table.last_mut()?;
    *last = last.take().and_then(|last| Some(last * numbers_per_place?));
    table.splice(along..=along, indices);
    Some(table)
}

/// The extents of the result of a GroupQueryAttention. If the keys are absent, the first input
/// packs queries, keys and values.
fn group_query_attention(query: &NodeQuery) -> Option<Shape> {
    if query.has(1) {
        return query.shape(0);
    }
    let queries = query.heads("num_heads")?;
    let keys = query.heads("kv_num_heads")?;
    let all = keys.checked_mul(2)?.checked_add(queries)?;
    let each = extent(query.shape(0)?.get(2)?)? as i64 / all;
    query.tokens_of_width(Some(TDim::from(each.checked_mul(queries)?)))
}

/// The extents of the result of a MultiHeadAttention, which has the width of the values. The heads
/// of the values may have a separate axis, and the values may be packed with queries and keys.
fn multi_head_attention(query: &NodeQuery) -> Option<Shape> {
    let values = query.shape(if query.has(2) { 2 } else { 0 })?;
    let axes_of_width: &[usize] = match values.len() {
        4 => &[1, 3],
        5 => &[2, 4],
        _ => &[2],
    };
    let extents = axes_of_width
        .iter()
        .filter_map(|&axis| values.get(axis))
        .map(extent);
    let width = extents
        .into_iter()
        .try_fold(1_usize, |all, n| all.checked_mul(n?));
    query.tokens_of_width(width.map(TDim::from))
}

fn quantized_gemm(query: &NodeQuery) -> Option<Shape> {
    let rows = usize::from(query.is_set("transA")?);
    let columns = usize::from(!query.is_set("transB")?);
    Some(vec![
        query.shape(0)?.get(rows)?.clone(),
        query.shape(3)?.get(columns)?.clone(),
    ])
}

fn global_pool(query: &NodeQuery) -> Option<Shape> {
    let mut shape = query.shape(0)?;
    let places = if query.is_set("channels_last")? {
        1..shape.len().saturating_sub(1)
    } else {
        2..shape.len()
    };
    shape.get_mut(places)?.fill(Some(TDim::from(1)));
    Some(shape)
}
