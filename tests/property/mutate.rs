//! Faulty models: mutated messages and mutated bytes.

use prost::Message;
use unfold::onnx::proto::{
    AttributeProto, Dim, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    ValueInfoProto,
};

use crate::tape::Tape;

/// Boundary values: indices of axes, extents, and limits of types.
const NUMBERS: &[i64] = &[
    0,
    1,
    -1,
    2,
    -2,
    3,
    4,
    5,
    7,
    8,
    16,
    -9,
    64,
    127,
    1000,
    1 << 15,
    1 << 31,
    -(1 << 31),
    1 << 40,
    i64::MAX,
    i64::MIN,
];

/// Operators that replace others. Their inputs often do not fit.
const OPERATORS: &[&str] = &[
    "Add",
    "Sub",
    "Mul",
    "Div",
    "MatMul",
    "Gemm",
    "Conv",
    "Transpose",
    "Reshape",
    "Squeeze",
    "Unsqueeze",
    "Flatten",
    "Slice",
    "Concat",
    "Split",
    "Gather",
    "Pad",
    "Expand",
    "ReduceMean",
    "ReduceSum",
    "Softmax",
    "Relu",
    "Tanh",
    "Identity",
    "Cast",
    "BatchNormalization",
    "LayerNormalization",
    "InstanceNormalization",
    "GroupNormalization",
    "RMSNormalization",
    "Einsum",
    "Sqrt",
    "Pow",
    "Where",
    "Tile",
    "Dropout",
    "Constant",
    "ConstantOfShape",
    "Shape",
    "Range",
    "AveragePool",
    "GlobalAveragePool",
    "DequantizeLinear",
    "FusedMatMul",
];

/// Changes a message in one to four places.
pub fn message(model: &mut ModelProto, tape: &mut Tape) {
    for _ in 0..=tape.below(4) {
        let opset =
            |set: &mut OperatorSetIdProto, tape: &mut Tape| set.version = Some(number(tape));
        match tape.below(16) {
            0 => one(&mut model.opset_import, tape, opset),
            1 => model.ir_version = Some(number(tape)),
            _ => graph(model.graph.get_or_insert_default(), tape),
        }
    }
}

/// Changes bytes in one to eight places.
pub fn bytes(bytes: &mut Vec<u8>, tape: &mut Tape) {
    for _ in 0..=tape.below(8) {
        let place = place(bytes.len(), tape);
        match tape.below(6) {
            _ if bytes.is_empty() => return,
            0 => bytes[place] ^= 1 << tape.below(8),
            1 => bytes[place] = tape.below(256) as u8,
            2 => bytes.insert(place, tape.below(256) as u8),
            3 => {
                let end = (place + 1 + tape.below(16)).min(bytes.len());
                bytes.drain(place..end);
            }
            4 => {
                let end = (place + 1 + tape.below(64)).min(bytes.len());
                let run = bytes[place..end].to_vec();
                bytes.splice(place..place, run);
            }
            _ => bytes.truncate(place),
        }
    }
}

/// A random index below `end`, which may exceed one byte of the tape.
fn place(end: usize, tape: &mut Tape) -> usize {
    (tape.below(256) << 16 | tape.below(256) << 8 | tape.below(256)) % end.max(1)
}

fn number(tape: &mut Tape) -> i64 {
    tape.pick(NUMBERS)
}

fn one<T>(list: &mut [T], tape: &mut Tape, change: impl FnOnce(&mut T, &mut Tape)) {
    let chosen = place(list.len(), tape);
    if let Some(item) = list.get_mut(chosen) {
        change(item, tape);
    }
}

fn graph(graph: &mut GraphProto, tape: &mut Tape) {
    let values = graph
        .node
        .iter()
        .flat_map(|node| node.output.iter().cloned());
    let stored = graph
        .initializer
        .iter()
        .map(|tensor| tensor.name().to_owned());
    let given = graph.input.iter().map(|input| input.name().to_owned());
    let names: Vec<String> = values.chain(stored).chain(given).collect();
    match tape.below(12) {
        0 => one(&mut graph.initializer, tape, tensor),
        1 => one(&mut graph.input, tape, declared),
        2 => one(&mut graph.value_info, tape, declared),
        3 => one(&mut graph.output, tape, |output, tape| {
            output.name = Some(name(&names, tape))
        }),
        4 => {
            let (one, other) = (place(graph.node.len(), tape), place(graph.node.len(), tape));
            if !graph.node.is_empty() {
                graph.node.swap(one, other);
            }
        }
        5 if !graph.node.is_empty() => {
            let gone = place(graph.node.len(), tape);
            graph.node.remove(gone);
        }
        6 => {
            // A constant may become an input with a default.
            let tensor = graph.initializer.get(place(graph.initializer.len(), tape));
            let given = tensor.map(|tensor| ValueInfoProto {
                name: tensor.name.clone(),
                ..Default::default()
            });
            graph.input.extend(given);
        }
        _ => one(&mut graph.node, tape, |made, tape| node(made, &names, tape)),
    }
}

fn name(names: &[String], tape: &mut Tape) -> String {
    names
        .get(place(names.len(), tape))
        .cloned()
        .unwrap_or_default()
}

fn node(node: &mut NodeProto, names: &[String], tape: &mut Tape) {
    match tape.below(8) {
        0 => node.op_type = Some(tape.pick(OPERATORS).to_owned()),
        1 => one(&mut node.input, tape, |input, tape| {
            *input = name(names, tape)
        }),
        2 => one(&mut node.input, tape, |input, _| input.clear()),
        3 => node.input.push(name(names, tape)),
        4 => one(&mut node.output, tape, |output, tape| {
            *output = name(names, tape)
        }),
        5 => {
            node.domain = Some(
                tape.pick(&["", "ai.onnx", "com.microsoft", "custom"])
                    .to_owned(),
            )
        }
        _ => one(&mut node.attribute, tape, attribute),
    }
}

fn attribute(attribute: &mut AttributeProto, tape: &mut Tape) {
    match tape.below(8) {
        0 => {
            attribute.name = Some(
                tape.pick(&["axis", "axes", "perm", "alpha", "to", "mode"])
                    .to_owned(),
            )
        }
        1 => attribute.r#type = Some(number(tape) as i32),
        2 => attribute.f = Some(tape.pick(&[0.0, -1.0, 1e-38, 3e38, f32::NAN, f32::INFINITY])),
        3 => attribute.ints.push(number(tape)),
        4 => attribute.ints.truncate(tape.below(3)),
        5 if attribute.g.is_some() => {
            if let Some(body) = &mut attribute.g {
                graph(body, tape);
            }
        }
        _ if attribute.ints.is_empty() => attribute.i = Some(number(tape)),
        _ => one(&mut attribute.ints, tape, |int, tape| *int = number(tape)),
    }
}

fn tensor(tensor: &mut TensorProto, tape: &mut Tape) {
    match tape.below(5) {
        0 => one(&mut tensor.dims, tape, |dim, tape| *dim = number(tape)),
        1 => tensor.data_type = Some(tape.below(24) as i32),
        2 => tensor.dims.push(tape.pick(&[1, 2, 3])),
        3 => {
            tensor.raw_data = tensor
                .raw_data
                .as_ref()
                .map(|raw| raw.slice(..raw.len() / 2))
        }
        _ => {
            let mut raw = tensor.raw_data.clone().unwrap_or_default().to_vec();
            one(&mut raw, tape, |byte, tape| *byte = tape.below(256) as u8);
            tensor.raw_data = Some(raw.into());
        }
    }
}

fn declared(info: &mut ValueInfoProto, tape: &mut Tape) {
    let Some(tensor) = info
        .r#type
        .as_mut()
        .and_then(|kind| kind.tensor_type.as_mut())
    else {
        return;
    };
    match tape.below(3) {
        0 => tensor.elem_type = Some(tape.below(24) as i32),
        1 => tensor.shape = None,
        _ => {
            let dims = tensor.shape.get_or_insert_default();
            one(&mut dims.dim, tape, |dim, tape| {
                dim.value = tape.chance(80).then(|| Dim::DimValue(number(tape)));
            });
        }
    }
}

/// The message as the bytes of a file.
pub fn file(model: &ModelProto) -> Vec<u8> {
    model.encode_to_vec()
}
