//! Files that are not models, and models that cannot be written back unchanged.

use proptest::prelude::*;
use prost::Message;
use unfold::error::Error;
use unfold::onnx::proto::{
    AttributeProto, AttributeType, GraphProto, ModelProto, NodeProto, SparseTensorProto,
    TensorProto, TensorType, TypeProto, ValueInfoProto,
};
use unfold::onnx::{DataType, Model};
use unfold::run::Engine;

use crate::{cases, model, opset, raw, refusal, with_initializers};

#[test]
fn other_file_formats_are_named() {
    for (bytes, reason) in [
        (&b""[..], "it is empty"),
        (b"PK\x03\x04\x14\0\0\0", "a zip archive"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
            "git lfs pull",
        ),
        (b"{\"model\": 1}", "a JSON file"),
        (b"<html>not found</html>", "an HTML or XML page"),
        (b"import torch\n", "a text file"),
        (b"\x1c\0\0\0TFL3\0\0\0\0", "a TensorFlow Lite model"),
        (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
        (b"GGUF\x03\0\0\0", "a GGUF model"),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j", "a Python pickle"),
    ] {
        let message = refusal(bytes);
        assert!(
            message.contains("is not an ONNX model") && message.contains(reason),
            "{message}"
        );
    }
}

#[test]
fn models_without_a_required_part_are_refused() {
    let whole = model(GraphProto::default());
    let twice = vec![
        opset("", 21),
        opset("com.microsoft", 1),
        opset("ai.onnx", 17),
    ];
    for (model, reason) in [
        (
            ModelProto {
                graph: None,
                ..whole.clone()
            },
            "it has no graph",
        ),
        (
            ModelProto {
                ir_version: None,
                ..whole.clone()
            },
            "it has no ir_version",
        ),
        (
            ModelProto {
                opset_import: twice,
                ..whole.clone()
            },
            "it imports two versions of `ai.onnx`, 21 and 17",
        ),
        (
            ModelProto {
                opset_import: vec![],
                ..whole
            },
            "it has no opset_import",
        ),
    ] {
        let message = refusal(&model.encode_to_vec());
        assert!(message.contains(reason), "{message}");
    }
}

#[test]
fn missing_file_and_folder_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.onnx");
    let error = Model::open(&missing).unwrap_err();
    assert!(matches!(error, Error::Io { .. }) && error.to_string().contains("missing.onnx"));
    let error = Model::open(folder.path()).unwrap_err();
    assert!(error.to_string().contains("it is a folder"), "{error}");
}

#[test]
fn truncated_model_is_refused() {
    let tensor = raw("weight", DataType::Float, &[4], &[0; 16]);
    let bytes = with_initializers(vec![tensor]).encode_to_vec();
    let middle = bytes.len() - 10;
    let message = refusal(&bytes[..middle]);
    assert!(
        message.contains("truncated") && message.contains("inside the model"),
        "{message}"
    );
}

/// A prefix of a file is a model if it ends between two fields, and else it is truncated.
#[test]
fn every_prefix_of_a_model_is_a_model_or_truncated() {
    for (name, proto) in cases::all() {
        let bytes = proto.encode_to_vec();
        for end in 0..bytes.len().min(2000) {
            match Model::from_bytes(bytes[..end].to_vec()) {
                Ok(model) => assert_eq!(model.to_bytes().unwrap(), bytes[..end], "{name}"),
                Err(Error::Truncated { length, .. }) => assert_eq!(length, end, "{name}"),
                Err(Error::NotOnnx { .. }) => {}
                Err(error) => panic!("{name}, {end} bytes: {error}"),
            }
        }
    }
}

#[test]
fn unknown_field_is_refused() {
    let mut bytes = model(GraphProto::default()).encode_to_vec();
    bytes.extend([0xf8, 0x07, 1]);
    let message = refusal(&bytes);
    assert!(
        message.contains("field 127 of the model") && message.contains("lost"),
        "{message}"
    );
}

#[test]
fn nested_unknown_field_is_refused() {
    let inner = GraphProto {
        name: Some("?".repeat(7)),
        ..Default::default()
    };
    let mut bytes = model(inner).encode_to_vec();
    // Changes the field number of the name to one that graphs do not have.
    let name = bytes
        .windows(2)
        .position(|field| field == [0x12, 7])
        .unwrap();
    bytes[name] = 3 << 3 | 2;
    match Model::from_bytes(bytes).unwrap_err() {
        Error::UnknownField { message, field, .. } => {
            assert_eq!((&message[..], field), ("graph", 3))
        }
        error => panic!("{error}"),
    }
}

#[test]
fn text_that_is_not_utf8_is_refused() {
    let mut bytes = model(GraphProto {
        name: Some("name".into()),
        ..Default::default()
    })
    .encode_to_vec();
    let name = bytes.windows(4).position(|text| text == b"name").unwrap();
    bytes[name] = 0xff;
    let message = refusal(&bytes);
    assert!(
        message.contains("UTF-8") && message.contains("GraphProto"),
        "{message}"
    );
}

#[test]
fn duplicate_initializers_are_refused() {
    let tensor = |name| raw(name, DataType::Int8, &[1], &[0]);
    let message = refusal(&with_initializers(vec![tensor("a"), tensor("a")]).encode_to_vec());
    assert!(message.contains("at `a`: two initializers"), "{message}");
    let sparse = SparseTensorProto {
        values: Some(tensor("a")),
        ..Default::default()
    };
    let graph = GraphProto {
        initializer: vec![tensor("a")],
        sparse_initializer: vec![sparse],
        ..Default::default()
    };
    let message = refusal(&model(graph).encode_to_vec());
    assert!(message.contains("at `a`: two initializers"), "{message}");
}

#[test]
fn duplicate_inputs_are_refused() {
    let input = || ValueInfoProto {
        name: Some("x".into()),
        ..Default::default()
    };
    let graph = GraphProto {
        input: vec![input(), input()],
        ..Default::default()
    };
    let error = unfold::plan(&Model::from_proto(model(graph)), &Default::default()).unwrap_err();
    assert!(error.to_string().contains("at `x`: two inputs"), "{error}");
}

/// A graph inside `depth` nested bodies of If, each of which returns the result of the body inside.
fn nested(graph: GraphProto, depth: usize) -> GraphProto {
    let named = |name: &str| ValueInfoProto {
        name: Some(name.into()),
        ..Default::default()
    };
    let body = |name: &str, graph: GraphProto| AttributeProto {
        name: Some(name.into()),
        r#type: Some(AttributeType::Graph.into()),
        g: Some(Box::new(graph)),
        ..Default::default()
    };
    (0..depth).fold(graph, |inner, level| {
        let node = NodeProto {
            op_type: Some("If".into()),
            input: vec!["condition".into()],
            output: vec![format!("y{level}")],
            attribute: vec![
                body("then_branch", inner),
                body("else_branch", identity(&format!("e{level}"))),
            ],
            ..Default::default()
        };
        GraphProto {
            node: vec![node],
            output: vec![named(&format!("y{level}"))],
            ..Default::default()
        }
    })
}

/// A graph that returns `x` of an outer graph under another name.
fn identity(output: &str) -> GraphProto {
    let node = NodeProto {
        op_type: Some("Identity".into()),
        input: vec!["x".into()],
        output: vec![output.into()],
        ..Default::default()
    };
    let output = ValueInfoProto {
        name: Some(output.into()),
        ..Default::default()
    };
    GraphProto {
        node: vec![node],
        output: vec![output],
        ..Default::default()
    }
}

#[test]
fn bodies_nested_60_deep_are_read() {
    let mut graph = nested(identity("innermost"), 60);
    for (name, data_type) in [("condition", DataType::Bool), ("x", DataType::Float)] {
        let tensor_type = TensorType {
            elem_type: Some(data_type.code()),
            shape: Some(Default::default()),
        };
        let r#type = TypeProto {
            tensor_type: Some(tensor_type),
            ..Default::default()
        };
        graph.input.push(ValueInfoProto {
            name: Some(name.into()),
            r#type: Some(r#type),
            ..Default::default()
        });
    }
    let bytes = model(graph).encode_to_vec();
    let read = std::thread::Builder::new().stack_size(2 << 20).spawn({
        let bytes = bytes.clone();
        move || {
            let model = Model::from_bytes(bytes).unwrap();
            let fused = unfold::fuse(&model, &Default::default()).unwrap();
            (
                fused.model.clone().to_bytes().unwrap(),
                Engine::load(&model, &Default::default()).is_ok(),
            )
        }
    });
    assert_eq!(read.unwrap().join().unwrap(), (bytes.into(), true));
}

#[test]
fn bodies_nested_100000_deep_are_refused() {
    // The bytes are made backward, because a message begins with the length of its contents.
    let mut backward = Vec::new();
    for field in std::iter::repeat_n([6, 5, 1], 100_000).flatten().chain([7]) {
        let mut head = Vec::new();
        prost::encoding::encode_key(field, prost::encoding::WireType::LengthDelimited, &mut head);
        prost::encoding::encode_varint(backward.len() as u64, &mut head);
        backward.extend(head.iter().rev());
    }
    let bytes: Vec<u8> = backward.into_iter().rev().collect();
    let message = refusal(&bytes);
    assert!(
        message.contains("nested too deeply") && message.len() < 200,
        "{message}"
    );
}

#[test]
fn tensors_are_read_lazily() {
    let nonsense = TensorProto {
        dims: vec![-1, i64::MAX],
        ..raw("w", DataType::Float, &[], &[1])
    };
    assert!(Model::from_bytes(with_initializers(vec![nonsense]).encode_to_vec()).is_ok());
}

proptest! {
    #[test]
    fn random_bytes_are_refused_or_survive(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(model) = Model::from_bytes(bytes) {
            let again = Model::from_bytes(model.to_bytes().unwrap()).unwrap();
            prop_assert_eq!(again.to_bytes().unwrap(), model.to_bytes().unwrap());
        }
    }

    #[test]
    fn damaged_models_are_refused_or_survive(
        case in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        byte: u8,
    ) {
        let (_, proto) = case.get(&cases::all()).clone();
        let mut bytes = proto.encode_to_vec();
        *at.get_mut(&mut bytes) = byte;
        if let Ok(model) = Model::from_bytes(bytes) {
            let again = Model::from_bytes(model.to_bytes().unwrap()).unwrap();
            prop_assert_eq!(again.to_bytes().unwrap(), model.to_bytes().unwrap());
        }
    }
}
