//! The element type of every value, bfloat16 and float apart.
//!
//! tract reads bfloat16 as float. Where it answers float, the node decides which of the two it is:
//! most operators keep the type of their input.

use std::rc::Rc;

use tract_onnx::prelude::{DatumType, InferenceFact};
use tract_onnx::tract_hir::infer::Factoid;

use crate::hash::HashMap;
use crate::ir::regions::{BEGIN, END};
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::node::{bodies, constant_tensor};
use crate::onnx::operator::{Category, TYPES};
use crate::onnx::proto::{NodeProto, ValueInfoProto};
use crate::onnx::tensor::DataType;

/// The element types by value; `None` where nothing tells.
pub(crate) fn infer(graph: &Graph, facts: &[Rc<InferenceFact>]) -> Vec<Option<DataType>> {
    let proto = graph.proto();
    let mut types = vec![None; graph.value_count()];
    for input in &proto.input {
        if let Some(value) = graph.value(input.name()) {
            types[value.index()] = declared(input);
        }
    }
    for value in (0..graph.value_count()).map(|index| ValueId(index as u32)) {
        if let Some(tensor) = graph.initializer(value) {
            types[value.index()] = DataType::from_code(tensor.data_type());
        }
    }
    let told: HashMap<&str, DataType> = proto
        .value_info
        .iter()
        .chain(&proto.output)
        .filter_map(|info| Some((info.name(), declared(info)?)))
        .collect();
    for &node in graph.order() {
        for (slot, value) in graph.outputs(node).iter().enumerate() {
            let Some(value) = value else { continue };
            let told = told.get(graph.value_name(*value)).copied();
            let datum_type = facts[value.index()].datum_type.concretize();
            types[value.index()] = match datum_type.and_then(of_tract) {
                Some(DataType::Float) => float_or_bfloat16(graph, node, slot, &types, told),
                Some(inferred) if inferred != DataType::Bool && inferred.is_integer() => {
                    integers(graph, node, slot, &types)
                        .or(told)
                        .or(Some(inferred))
                }
                None if datum_type == Some(DatumType::TDim) => {
                    integers(graph, node, slot, &types).or(told)
                }
                inferred => inferred.or(told).or_else(|| shared(graph, node, &types)),
            };
        }
    }
    types
}

/// The type of the floats that an operator makes, where it makes one type alone, or has to make that of those it reads: a
/// constant beside a value of which nothing is known tells.
fn shared(graph: &Graph, node: NodeId, types: &[Option<DataType>]) -> Option<DataType> {
    use Category::{Arithmetic, Layer, MatrixProduct, Movement};
    // For any type of input.
    if let ("ai.onnx.ml", "Normalizer" | "Scaler") = graph.node(node).op() {
        return Some(DataType::Float);
    }
    let category = graph.node(node).category()?;
    let mut read = graph
        .inputs(node)
        .iter()
        .flatten()
        .filter_map(|input| types[input.index()]);
    let is_shared = matches!(category, Arithmetic | Layer | MatrixProduct | Movement);
    read.find(|data_type| is_shared && data_type.is_float())
}

fn declared(info: &ValueInfoProto) -> Option<DataType> {
    DataType::from_code(info.r#type.as_ref()?.tensor_type.as_ref()?.elem_type())
}

fn of_tract(datum_type: DatumType) -> Option<DataType> {
    Some(match datum_type {
        DatumType::F16 => DataType::Float16,
        DatumType::F32 => DataType::Float,
        DatumType::F64 => DataType::Double,
        DatumType::Bool => DataType::Bool,
        DatumType::I8 => DataType::Int8,
        DatumType::I16 => DataType::Int16,
        DatumType::I32 => DataType::Int32,
        DatumType::I64 => DataType::Int64,
        DatumType::U8 => DataType::Uint8,
        DatumType::U16 => DataType::Uint16,
        DatumType::U32 => DataType::Uint32,
        DatumType::U64 => DataType::Uint64,
        _ => return None,
    })
}

/// The type of an output of integers, as ONNX has it: to tract, whatever may be an extent is of one type.
fn integers(
    graph: &Graph,
    node: NodeId,
    slot: usize,
    types: &[Option<DataType>],
) -> Option<DataType> {
    use Category::{Arithmetic, Elementwise, Layer, MatrixProduct, Movement, Reduction, Selection};
    let proto = graph.node(node);
    let of = |slot: usize| {
        graph
            .input(node, slot)
            .and_then(|input| types[input.index()])
    };
    let any = || (0..graph.inputs(node).len()).find_map(of);
    if let Some(code) = named_type(proto) {
        return DataType::from_code(code);
    }
    let found = match graph.op(node) {
        _ if proto.domain() == BEGIN => of(slot),
        _ if proto.domain() == END => (proto.op_type() == "If").then(|| of(1 + slot)).flatten(),
        _ if bodies(proto).next().is_some() => None,
        Some("ArgMax" | "ArgMin" | "NonMaxSuppression" | "NonZero" | "Shape" | "Size") => {
            Some(DataType::Int64)
        }
        Some("MaxPool" | "TopK" | "Unique") if slot > 0 => Some(DataType::Int64),
        Some("CastLike") => of(1),
        Some("OneHot") => of(2),
        Some("Where") => of(1).or_else(|| of(2)),
        Some("Pow") => of(0),
        Some("Concat" | "Range") => any(),
        Some(
            "Compress" | "CumSum" | "DepthToSpace" | "Dropout" | "GatherElements" | "MaxPool"
            | "Pad" | "ReverseSequence" | "ScatterElements" | "ScatterND" | "SpaceToDepth" | "TopK"
            | "Trilu" | "Unique",
        ) => of(0),
        _ => match proto.category()? {
            Movement | Selection | Reduction => of(0),
            Arithmetic | Elementwise | Layer | MatrixProduct => any(),
            _ => None,
        },
    };
    found.filter(|&found| found != DataType::Bool && found.is_integer())
}

/// The type that an attribute of a node names, or that of the tensor it holds.
fn named_type(node: &NodeProto) -> Option<i32> {
    let code = |name: &str| {
        node.attr_i(name)
            .ok()
            .flatten()
            .and_then(|code| code.try_into().ok())
    };
    let named = TYPES.into_iter().find_map(code).filter(|&code| code != 0);
    named.or_else(|| match node.op() {
        ("", "Constant") => constant_tensor(node)?.data_type,
        ("", "ConstantOfShape") => match node.attr_t("value").ok()? {
            Some(value) => value.data_type,
            None => Some(DataType::Float.code()),
        },
        _ => None,
    })
}

/// The type of an output that tract takes for float.
fn float_or_bfloat16(
    graph: &Graph,
    node: NodeId,
    slot: usize,
    types: &[Option<DataType>],
    told: Option<DataType>,
) -> Option<DataType> {
    let proto = graph.node(node);
    let code = |name: &str| {
        proto
            .attr_i(name)
            .ok()
            .flatten()
            .and_then(|code| code.try_into().ok())
    };
    let of = |slot: usize| {
        graph
            .input(node, slot)
            .and_then(|input| types[input.index()])
    };
    let is_float = |data_type: &DataType| data_type.is_float();
    if let Some(code) = named_type(proto) {
        return DataType::from_code(code);
    }
    match graph.op(node) {
        _ if proto.domain() == BEGIN => of(slot),
        _ if proto.domain() == END && proto.op_type() == "If" => of(1 + slot),
        _ if proto.domain() == END => told,
        // Their statistics have a type of their own.
        Some("LayerNormalization") if slot > 0 => {
            code("stash_type").map_or(Some(DataType::Float), DataType::from_code)
        }
        Some("CastLike" | "RMSNormalization" | "DequantizeLinear") => of(1),
        // Only the body decides the type of its result.
        _ if bodies(proto).next().is_some() => told,
        _ => {
            let first = (0..graph.inputs(node).len()).filter_map(of).find(is_float);
            first.or(told).or(Some(DataType::Float))
        }
    }
}
