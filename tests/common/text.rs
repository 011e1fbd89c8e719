//! Reads and prints small models as text.
//!
//! ```text
//! input x batch 4 6                  floats; the others are half, indices and condition
//! weight w 6 3                       numbers that are drawn: weight, scale, shift, divisor
//! const c 2 = 1 -0.5                 numbers that are given
//! ints i 2 = 0 1
//! bytes b 2 = 0 1                    signed ones
//! n = Mul(x, c) axis=-1 perm=[0,1] alpha=0.5 mode=edge
//! g = com.microsoft.QuickGelu(n)
//! output n
//! ```
//! `opset` and `ir` may come first. The default operator set is 17.

use ndarray::ArrayD;
use unfold::onnx::Model;
use unfold::onnx::proto::{AttributeProto, Dim, NodeProto, TensorProto};
use unfold::onnx::{DataType, tensor};

use super::numbers::{Kind, Numbers, Role};
use super::reference::{self, Value};
use super::{Attr, Builder, attribute, declared, floats, node, reads};

/// A model from its text.
pub fn model(text: &str) -> Model {
    let mut builder = Builder::new(17);
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["opset", version] => builder.proto.opset_import[0].version = version.parse().ok(),
            ["ir", version] => builder.proto.ir_version = version.parse().ok(),
            ["input", name, ref dims @ ..] => {
                builder.input(name, dims);
            }
            ["half", name, ref dims @ ..] => {
                builder
                    .graph()
                    .input
                    .push(declared(name, DataType::Float16, dims));
            }
            ["condition", name] => builder
                .graph()
                .input
                .push(declared(name, DataType::Bool, &[])),
            ["indices", name, ref dims @ ..] => {
                builder
                    .graph()
                    .input
                    .push(declared(name, DataType::Int64, dims));
            }
            ["output", ref names @ ..] => names.iter().for_each(|name| builder.output(name)),
            ["const" | "ints" | "bytes", name, ..] => {
                let (dims, values) = line.split_once('=').unwrap_or((line, ""));
                let dims = numbers(dims.split_whitespace().skip(2));
                let mut tensor = match words[0] {
                    "ints" => tensor::make_i64(name, &numbers(values.split_whitespace())),
                    "bytes" => bytes(name, &numbers(values.split_whitespace())),
                    _ => {
                        let shape: Vec<usize> = dims.iter().map(|&n: &i64| n as usize).collect();
                        let values = numbers(values.split_whitespace());
                        floats(name, &ArrayD::from_shape_vec(shape, values).expect(line))
                    }
                };
                tensor.dims = dims;
                builder.graph().initializer.push(tensor);
            }
            [
                role @ ("weight" | "scale" | "shift" | "divisor"),
                name,
                ref dims @ ..,
            ] => {
                let role = match role {
                    "weight" => Role::Weight,
                    "scale" => Role::Scale,
                    "shift" => Role::Shift,
                    _ => Role::Divisor,
                };
                let shape: Vec<usize> = numbers(dims.iter().copied());
                let array = Numbers::from_recipe(name).array(&shape, role, Kind::Exact);
                builder.graph().initializer.push(floats(name, &array));
            }
            _ => builder.graph().node.push(node_of(line)),
        }
    }
    builder.model(&[])
}

fn bytes(name: &str, values: &[i8]) -> TensorProto {
    TensorProto {
        name: Some(name.to_owned()),
        data_type: Some(DataType::Int8.code()),
        raw_data: Some(
            values
                .iter()
                .map(|value| value.cast_unsigned())
                .collect::<Vec<u8>>()
                .into(),
        ),
        ..TensorProto::default()
    }
}

fn node_of(line: &str) -> NodeProto {
    let (outputs, call) = line.split_once(" = ").expect(line);
    let (op, rest) = call.split_once('(').expect(line);
    let (domain, op) = op.rsplit_once('.').unwrap_or(("", op));
    let (inputs, attributes) = rest.split_once(')').expect(line);
    let names = |list: &'_ str| {
        list.split(',')
            .map(|name| name.trim().to_owned())
            .collect::<Vec<_>>()
    };
    let mut made = node(op, &names(inputs), &names(outputs), vec![]);
    made.domain = Some(domain.to_owned()).filter(|domain| !domain.is_empty());
    for word in attributes.split_whitespace() {
        let (name, value) = word.split_once('=').expect(line);
        let list = value
            .strip_prefix('[')
            .and_then(|value| value.strip_suffix(']'));
        let value = match (list, value.parse(), value.parse()) {
            (Some(list), ..) => {
                Attr::Ints(numbers(list.split(',').filter(|word| !word.is_empty())))
            }
            (_, Ok(int), _) => Attr::Int(int),
            (_, _, Ok(float)) => Attr::Float(float),
            _ => Attr::Text(value.to_owned()),
        };
        made.attribute.push(attribute(name, value));
    }
    made
}

/// The text of a model; bodies are left out.
pub fn print(model: &Model) -> String {
    let graph = model.graph();
    let mut lines = vec![format!("opset {}", model.opset("").unwrap_or_default())];
    for input in &graph.input {
        let tensor = input.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
        let dims = tensor
            .and_then(|tensor| tensor.shape.as_ref())
            .map(|shape| &shape.dim[..]);
        let dims = dims.unwrap_or_default().iter().map(|dim| match &dim.value {
            Some(Dim::DimValue(n)) => n.to_string(),
            Some(Dim::DimParam(name)) => name.clone(),
            None => "?".into(),
        });
        let word = match tensor.and_then(|tensor| DataType::from_code(tensor.elem_type())) {
            Some(DataType::Bool) => "condition",
            Some(DataType::Int64) => "indices",
            Some(DataType::Float16) => "half",
            _ => "input",
        };
        lines.push(
            [vec![word.into(), input.name().to_owned()], dims.collect()]
                .concat()
                .join(" "),
        );
    }
    let read = reads(graph);
    lines.extend(
        graph
            .initializer
            .iter()
            .filter(|tensor| read.contains(tensor.name()))
            .map(constant),
    );
    for node in &graph.node {
        match node
            .attribute
            .iter()
            .find_map(|attribute| attribute.t.as_deref())
        {
            Some(tensor) => lines.push(constant(&TensorProto {
                name: node.output.first().cloned(),
                ..tensor.clone()
            })),
            None => {
                let attributes: Vec<String> = node.attribute.iter().map(written).collect();
                let (inputs, outputs) = (node.input.join(", "), node.output.join(", "));
                lines.push(format!(
                    "{outputs} = {}({inputs}) {}",
                    node.op_type(),
                    attributes.join(" ")
                ));
            }
        }
    }
    lines.extend(
        graph
            .output
            .iter()
            .map(|output| format!("output {}", output.name())),
    );
    lines.join("\n")
}

fn constant(tensor: &TensorProto) -> String {
    let joined = |words: Vec<String>| words.join(" ");
    let dims = joined(tensor.dims.iter().map(i64::to_string).collect());
    let (word, values) = match reference::constant(tensor) {
        Ok(Value::Floats(array)) => ("const", array.iter().map(f64::to_string).collect()),
        Ok(Value::Ints(array)) => ("ints", array.iter().map(i64::to_string).collect()),
        Err(error) => ("#", vec![error.to_string()]),
    };
    format!("{word} {} {dims} = {}", tensor.name(), joined(values))
}

fn written(attribute: &AttributeProto) -> String {
    let value = match (&attribute.i, &attribute.f, &attribute.s) {
        (Some(i), ..) => i.to_string(),
        (_, Some(f), _) => format!("{f:?}"),
        (_, _, Some(s)) => String::from_utf8_lossy(s).into_owned(),
        _ => format!("{:?}", attribute.ints).replace(' ', ""),
    };
    format!("{}={value}", attribute.name())
}

fn numbers<'w, T: std::str::FromStr<Err: std::fmt::Debug>>(
    words: impl Iterator<Item = &'w str>,
) -> Vec<T> {
    words.map(|word| word.parse().expect(word)).collect()
}
