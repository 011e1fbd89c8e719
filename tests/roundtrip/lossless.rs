//! Models are read and written back byte for byte.

use std::fs;
use std::path::{Path, PathBuf};

use prost::Message;
use unfold::onnx::Model;
use unfold::onnx::proto::ModelProto;

use crate::cases;

fn models(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            models(&path, found);
        } else if path
            .extension()
            .is_some_and(|extension| extension == "onnx")
        {
            found.push(path);
        }
    }
}

#[test]
fn project_models_survive_byte_for_byte() {
    let mut found = Vec::new();
    models(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("models"),
        &mut found,
    );
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.onnx");
    for path in found {
        let model = Model::open(&path).unwrap();
        let bytes = fs::read(&path).unwrap();
        assert!(
            model.to_bytes().unwrap() == bytes,
            "{} changed",
            path.display()
        );
        model.save(&copy).unwrap();
        assert!(
            model.external || fs::read(&copy).unwrap() == bytes,
            "{} changed",
            path.display()
        );
    }
}

#[test]
fn every_part_of_the_specification_survives() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let cases = cases::all();
    assert!(cases.len() >= 50);
    for (name, proto) in cases {
        let bytes = proto.encode_to_vec();
        fs::write(&path, &bytes).unwrap();
        let model = Model::open(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(model.proto, proto, "{name}");
        assert_eq!(model.to_bytes().unwrap(), bytes, "{name}");
        if !model.external {
            model.save(&path).unwrap();
            assert_eq!(fs::read(&path).unwrap(), bytes, "{name}");
        }
    }
}

#[test]
fn loaded_bytes_are_not_copied() {
    let weights = vec![7; 1 << 16];
    let tensor = crate::raw("w", unfold::onnx::DataType::Int8, &[1 << 16], &weights);
    let bytes = bytes::Bytes::from(crate::with_initializers(vec![tensor]).encode_to_vec());
    let model = Model::from_bytes(bytes.clone()).unwrap();
    let held = model.graph().initializer[0].raw_data.as_ref().unwrap();
    assert!(bytes.as_ptr_range().contains(&held.as_ptr()));
}

/// Encodings that the specification allows and other programs write.
mod foreign {
    use super::*;
    use unfold::onnx::tensor;

    /// A field that holds bytes.
    fn field(number: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).unwrap();
        assert!(number < 16 && length < 128);
        [&[number << 3 | 2, length], payload].concat()
    }

    /// A model with its fields in another order: operator set, graph, format version.
    fn model(graph: &[u8]) -> Model {
        let opset = field(8, &[0x10, 21]);
        let bytes = [opset, field(7, graph), vec![0x08, 10]].concat();
        Model::from_bytes(bytes).unwrap()
    }

    fn attribute(payload: &[u8]) -> Model {
        let name = field(1, b"a");
        model(&field(1, &field(5, &[name, payload.to_vec()].concat())))
    }

    fn reread(model: &Model) -> ModelProto {
        Model::from_bytes(model.to_bytes().unwrap()).unwrap().proto
    }

    #[test]
    fn fields_are_read_in_any_order() {
        let model = model(&[field(2, b"name"), field(1, &field(4, b"Relu"))].concat());
        assert_eq!(model.opset(""), Some(21));
        assert_eq!(
            (model.graph().name(), model.graph().node[0].op_type()),
            ("name", "Relu")
        );
        assert_eq!(reread(&model), model.proto);
    }

    #[test]
    fn packed_and_unpacked_integers_are_equal() {
        let packed = attribute(&[field(8, &[1, 2, 0x80, 0x01]), vec![0xa0, 0x01, 7]].concat());
        let unpacked = [0x40, 1, 0x40, 2, 0x40, 0x80, 0x01, 0xa0, 0x01, 7];
        let unpacked = attribute(&unpacked);
        assert_eq!(
            packed.graph().node[0].attr_ints("a").unwrap(),
            Some(&[1, 2, 128][..])
        );
        assert_eq!(packed.proto, unpacked.proto);
        assert_eq!(reread(&packed), unpacked.proto);
    }

    #[test]
    fn packed_and_unpacked_floats_are_equal() {
        let (one, two) = (1.0_f32.to_le_bytes(), (-2.0_f32).to_le_bytes());
        let kind = vec![0xa0, 0x01, 6];
        let packed = attribute(&[field(7, &[one, two].concat()), kind.clone()].concat());
        let unpacked = attribute(&[&[0x3d], &one[..], &[0x3d], &two[..], &kind].concat());
        assert_eq!(packed.graph().node[0].attribute[0].floats, [1.0, -2.0]);
        assert_eq!(packed.proto, unpacked.proto);
    }

    #[test]
    fn packed_and_unpacked_tensor_elements_are_equal() {
        let head = [0x08, 2, 0x10, 1];
        let (one, two) = (1.5_f32.to_le_bytes(), (-2.5_f32).to_le_bytes());
        let packed = [&head[..], &field(4, &[one, two].concat())].concat();
        let unpacked = [&head[..], &[0x25], &one, &[0x25], &two].concat();
        for tensor in [packed, unpacked] {
            let model = model(&field(5, &tensor));
            let read = tensor::read_f64(&model.graph().initializer[0], model.externals()).unwrap();
            assert_eq!(read, ndarray::arr1(&[1.5, -2.5]).into_dyn());
        }
    }

    #[test]
    fn overlong_varints_are_read() {
        let model = attribute(&[0x18, 0x85, 0x80, 0x80, 0x00, 0xa0, 0x81, 0x00, 2]);
        assert_eq!(model.graph().node[0].attr_i("a").unwrap(), Some(5));
        assert_eq!(reread(&model), model.proto);
    }

    #[test]
    fn split_message_is_merged() {
        let graph = field(7, &field(2, b"name"));
        let rest = field(7, &field(1, &field(4, b"Relu")));
        let bytes = [vec![0x08, 10], graph, rest, field(8, &[0x10, 21])].concat();
        let model = Model::from_bytes(bytes).unwrap();
        assert_eq!(
            (model.graph().name(), model.graph().node.len()),
            ("name", 1)
        );
        assert_eq!(reread(&model), model.proto);
    }

    #[test]
    fn last_value_of_a_repeated_field_wins() {
        let model = model(&[field(2, b"first"), field(2, b"last")].concat());
        assert_eq!(model.graph().name(), "last");
    }

    #[test]
    fn omitted_proto3_numbers_are_zero() {
        let model = attribute(&[0xa0, 0x01, 2]);
        assert_eq!(model.graph().node[0].attr_i("a").unwrap(), Some(0));
        assert_eq!(model.graph().node[0].attribute[0].i, None);
    }

    /// Models written by the protobuf library of Python keep the order of their fields.
    #[test]
    fn field_order_of_other_writers_is_kept() {
        for (name, hex) in crate::cases::written_elsewhere() {
            let bytes: Vec<u8> = (0..hex.len())
                .step_by(2)
                .map(|index| u8::from_str_radix(&hex[index..index + 2], 16).unwrap())
                .collect();
            let model = Model::from_bytes(bytes.clone()).unwrap();
            assert_eq!(model.to_bytes().unwrap(), bytes, "{name}");
        }
    }
}
