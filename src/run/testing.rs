//! Builds small models for tests.

use ndarray::ArrayViewD;

use crate::onnx::Model;
use crate::onnx::proto::{
    AttributeProto, AttributeType, Dim, Dimension, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, TensorProto, TensorShapeProto, TensorType, TypeProto, ValueInfoProto,
};
use crate::onnx::tensor::{self, DataType};

/// Builds a node from a text like `op in, in -> out, out`. The node is named after its operator.
pub(crate) fn node(text: &str) -> NodeProto {
    let (left, right) = text.split_once("->").unwrap();
    let (op, inputs) = left.trim().split_once(' ').unwrap_or((left.trim(), ""));
    NodeProto {
        op_type: Some(op.into()),
        name: Some(format!("the {op}")),
        input: names(inputs),
        output: names(right),
        ..Default::default()
    }
}

fn names(list: &str) -> Vec<String> {
    list.split(',').map(|name| name.trim().to_owned()).collect()
}

#[cfg_attr(
    not(feature = "tract"),
    expect(dead_code, reason = "the tests of the engine alone use it")
)]
pub(crate) fn with_int(mut node: NodeProto, name: &str, value: i64) -> NodeProto {
    node.attribute.push(AttributeProto {
        name: Some(name.into()),
        r#type: Some(AttributeType::Int.into()),
        i: Some(value),
        ..Default::default()
    });
    node
}

/// A value with a shape of numbers and symbols.
pub(crate) fn value(name: &str, element: DataType, shape: &[&str]) -> ValueInfoProto {
    let dims = shape.iter().map(|text| Dimension {
        value: Some(
            text.parse()
                .map_or_else(|_| Dim::DimParam((*text).into()), Dim::DimValue),
        ),
        denotation: None,
    });
    let shape = TensorShapeProto {
        dim: dims.collect(),
    };
    ValueInfoProto {
        name: Some(name.into()),
        r#type: Some(TypeProto {
            tensor_type: Some(TensorType {
                elem_type: Some(element.code()),
                shape: Some(shape),
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

pub(crate) fn floats(name: &str, values: &ArrayViewD<'_, f64>) -> TensorProto {
    tensor::make(name, DataType::Float, values).unwrap()
}

/// Builds a model of operator set 17.
pub(crate) fn model(
    inputs: Vec<ValueInfoProto>,
    initializers: Vec<TensorProto>,
    nodes: Vec<NodeProto>,
    outputs: &[&str],
) -> Model {
    Model::from_proto(ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto {
            domain: None,
            version: Some(17),
        }],
        graph: Some(GraphProto {
            input: inputs,
            initializer: initializers,
            node: nodes,
            output: outputs
                .iter()
                .map(|name| ValueInfoProto {
                    name: Some((*name).into()),
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        }),
        ..Default::default()
    })
}

/// The model `y = scale * x + shift`. `x` has the shape `[n, 3]`, and scale and shift vary along
/// its last axis.
pub(crate) fn affine(scale: [f64; 3], shift: [f64; 3]) -> Model {
    model(
        vec![value("x", DataType::Float, &["n", "3"])],
        vec![
            floats("scale", &ndarray::arr1(&scale).into_dyn().view()),
            floats("shift", &ndarray::arr1(&shift).into_dyn().view()),
        ],
        vec![
            node("Mul x, scale -> scaled"),
            node("Add scaled, shift -> y"),
        ],
        &["y"],
    )
}

/// A model with two inputs: indices that select rows of a table of 50 rows, and a mask.
pub(crate) fn embedding() -> Model {
    let table = floats("table", &ndarray::Array2::zeros((50, 4)).into_dyn().view());
    let ids = value("ids", DataType::Int64, &["batch", "length"]);
    let mask = value("mask", DataType::Int64, &["batch", "length"]);
    let nodes = vec![
        node("Identity ids -> same"),
        node("Gather table, same -> y"),
        node("Identity mask -> z"),
    ];
    model(vec![ids, mask], vec![table], nodes, &["y", "z"])
}
