//! Operators of com.microsoft.

use tract_onnx::tract_hir::internal::TDim;

use crate::ir::axes::axis;
use crate::onnx::tensor::DataType;
use crate::shape::extents::{Shape, extent};
use crate::shape::rules::{NodeQuery, broadcast};

/// The extents of the first result of a node.
pub fn told(asked: &NodeQuery) -> Option<Shape> {
    let node = asked.node;
    let as_wide = |width: Option<TDim>| {
        let tokens = asked.shape(0)?;
        Some(vec![tokens.first()?.clone(), tokens.get(1)?.clone(), width])
    };
    match node.op_type() {
        // The weights of queries, keys and values are side by side.
        "Attention" => match node.attr_ints("qkv_hidden_sizes").ok()? {
            Some(sizes) => as_wide(sizes.get(2).map(TDim::from)),
            None => as_wide(extent(asked.shape(1)?.get(1)?).map(|all| TDim::from(all / 3))),
        },
        // As an LSTM, with its weights turned.
        "DynamicQuantizeLSTM" => {
            let steps = asked.shape(0).filter(|steps| steps.len() == 3)?;
            let ways = if node.attr_s("direction").ok()? == Some("bidirectional") {
                2
            } else {
                1
            };
            let size = node.attr_i("hidden_size").ok()??;
            Some(vec![
                steps[0].clone(),
                Some(TDim::from(ways)),
                steps[1].clone(),
                Some(TDim::from(size)),
            ])
        }
        "DynamicQuantizeMatMul" | "GemmFastGelu" | "MatMulIntegerToFloat" => asked.multiplied(),
        "EmbedLayerNormalization" => as_wide(asked.shape(2)?.get(1)?.clone()),
        "GatherBlockQuantized" => {
            let (mut table, places) = (asked.shape(0)?, asked.shape(1)?);
            let along = axis(node.attr_i("gather_axis").ok()?.unwrap_or(0), table.len()).ok()?;
            // A byte holds several numbers; of smaller types each place is one.
            let in_each = match (asked.stored)(0) {
                Some(DataType::Int4 | DataType::Uint4) => Some(1),
                Some(DataType::Uint8) => 8_i64.checked_div(node.attr_i("bits").ok()?.unwrap_or(4)),
                _ => None,
            };
            let last = table.last_mut()?;
            *last = last.take().and_then(|last| Some(last * in_each?));
            table.splice(along..=along, places);
            Some(table)
        }
        // Without keys, the queries have them and the values behind each.
        "GroupQueryAttention" if asked.has(1) => asked.shape(0),
        "GroupQueryAttention" => {
            let heads = |name: &str| node.attr_i(name).ok()?.filter(|&heads| heads > 0);
            let (queries, others) = (heads("num_heads")?, heads("kv_num_heads")?);
            let all = others.checked_mul(2)?.checked_add(queries)?;
            let each = extent(asked.shape(0)?.get(2)?)? as i64 / all;
            as_wide(Some(TDim::from(each.checked_mul(queries)?)))
        }
        "MatMulBnb4" | "MatMulFpQ4" | "MatMulNBits" => {
            let mut shape = asked.shape(0)?;
            *shape.last_mut()? = Some(TDim::from(node.attr_i("N").ok()??));
            Some(shape)
        }
        // As wide as the values, of which the heads may be apart, or which may be beside queries and keys.
        "MultiHeadAttention" => {
            let values = if asked.has(2) {
                asked.shape(2)?
            } else {
                asked.shape(0)?
            };
            let is_width = |axis: &usize| match values.len() {
                4 => *axis == 1 || *axis == 3,
                5 => *axis == 2 || *axis == 4,
                _ => *axis == 2,
            };
            let width = (0..values.len()).filter(is_width);
            let width = width
                .map(|axis| extent(&values[axis]))
                .try_fold(1, |all: usize, n| all.checked_mul(n?));
            as_wide(width.map(TDim::from))
        }
        "QAttention" => as_wide(extent(asked.shape(1)?.get(1)?).map(|all| TDim::from(all / 3))),
        "QGemm" => {
            let is_turned = |name: &str| Some(node.attr_i(name).ok()?.unwrap_or(0) != 0);
            let (rows, columns) = (
                usize::from(is_turned("transA")?),
                usize::from(!is_turned("transB")?),
            );
            Some(vec![
                asked.shape(0)?.get(rows)?.clone(),
                asked.shape(3)?.get(columns)?.clone(),
            ])
        }
        "QLinearAdd" | "QLinearMul" => broadcast(&asked.shape(0)?, &asked.shape(3)?),
        // A scale and a zero point of the result, and then each part with its own.
        "QLinearConcat" => asked.joined((2..asked.inputs.len()).step_by(3)),
        "QLinearGlobalAveragePool" => {
            let mut shape = asked.shape(0)?;
            let is_last = node.attr_i("channels_last").ok()?.unwrap_or(0) != 0;
            let places = if is_last {
                1..shape.len().saturating_sub(1)
            } else {
                2..shape.len()
            };
            shape.get_mut(places)?.fill(Some(TDim::from(1)));
            Some(shape)
        }
        "QLinearLeakyRelu" | "QLinearSigmoid" | "QLinearSoftmax" => asked.shape(0),
        "QLinearWhere" => {
            let either = broadcast(&asked.shape(1)?, &asked.shape(4)?)?;
            broadcast(&asked.shape(0)?, &either)
        }
        _ => None,
    }
}
