//! Models are written back as they were read, and unreadable models are refused with a reason.

mod arbitrary;
mod cases;
mod elements;
mod external;
mod invalid;
mod lossless;
mod saving;
mod text;

use std::path::Path;

use unfold::onnx::proto::{
    GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto, TensorProto,
};
use unfold::onnx::{DataType, Model};

/// A model with only the parts that every model has.
fn model(graph: GraphProto) -> ModelProto {
    ModelProto {
        ir_version: Some(10),
        opset_import: vec![opset("", 21)],
        graph: Some(graph),
        ..Default::default()
    }
}

/// A model with the given initializers, each of which a node reads.
fn with_initializers(initializers: Vec<TensorProto>) -> ModelProto {
    let identity = |tensor: &TensorProto| NodeProto {
        input: vec![tensor.name().to_owned()],
        output: vec![format!("{}_out", tensor.name())],
        op_type: Some("Identity".into()),
        ..Default::default()
    };
    model(GraphProto {
        node: initializers.iter().map(identity).collect(),
        initializer: initializers,
        ..Default::default()
    })
}

fn opset(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto {
        domain: Some(domain.into()),
        version: Some(version),
    }
}

fn entry(key: &str, value: &str) -> StringStringEntryProto {
    StringStringEntryProto {
        key: Some(key.into()),
        value: Some(value.into()),
    }
}

/// A tensor whose elements are given as bytes.
fn raw(name: &str, data_type: DataType, dims: &[i64], bytes: &[u8]) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        data_type: Some(data_type.code()),
        dims: dims.to_vec(),
        raw_data: Some(bytes.to_vec().into()),
        ..Default::default()
    }
}

/// A tensor whose elements are in another file.
fn external(name: &str, dims: &[i64], entries: &[(&str, &str)]) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        data_type: Some(DataType::Float.code()),
        dims: dims.to_vec(),
        external_data: entries
            .iter()
            .map(|(key, value)| entry(key, value))
            .collect(),
        data_location: Some(1),
        ..Default::default()
    }
}

fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// The names of the files in a folder.
fn listing(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<_> = entries
        .map(|entry| name(entry).to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// The error message of opening bytes as a model. Asserts that it is one line and names the file.
fn refusal(bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, bytes).unwrap();
    let message = Model::open(&path).unwrap_err().to_string();
    assert!(
        message.contains("model.onnx") && !message.contains('\n'),
        "{message}"
    );
    message
}
