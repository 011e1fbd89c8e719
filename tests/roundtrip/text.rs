//! Models stay the same if they are printed in the textual syntax and parsed.

use std::fs;
use std::path::Path;

use unfold::onnx::proto::{TypeProto, ValueInfoProto};
use unfold::onnx::tensor::raw;
use unfold::onnx::{Model, PrintedElements};

/// Compares nodes, types and the bits of all weights of trained models.
#[test]
fn digits_models_survive_as_text() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["bn-legacy", "un-dynamo", "dyt-dynamo", "rmsnorm-legacy"] {
        let path = Path::new("models/digits").join(name).with_extension("onnx");
        let model = Model::open(&path).unwrap();
        let text = folder.path().join(name).with_extension("onnxtxt");
        fs::write(&text, model.to_text(PrintedElements::All).unwrap()).unwrap();
        let again = Model::open(&text).unwrap();
        let (before, after) = (model.graph(), again.graph());
        assert_eq!(types(&before.input), types(&after.input), "{name}");
        assert_eq!(types(&before.output), types(&after.output), "{name}");
        assert_eq!(before.node.len(), after.node.len(), "{name}");
        for (one, other) in before.node.iter().zip(&after.node) {
            assert_eq!(one.op_type, other.op_type);
            assert_eq!(one.input, other.input);
            assert_eq!(one.output, other.output);
        }
        for (one, other) in before.initializer.iter().zip(&after.initializer) {
            assert_eq!(one.name, other.name);
            assert_eq!(one.dims, other.dims);
            let stored = raw(one, model.externals()).unwrap();
            assert_eq!(stored, raw(other, again.externals()).unwrap());
        }
    }
}

/// The names and types of values. The text omits their metadata.
fn types(values: &[ValueInfoProto]) -> Vec<(&str, Option<&TypeProto>)> {
    let pairs = values.iter();
    pairs
        .map(|value| (value.name(), value.r#type.as_ref()))
        .collect()
}

#[test]
fn text_errors_name_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.onnxtxt");
    fs::write(&path, "main (float x) => (float y) { y = Relu x }").unwrap();
    let error = Model::open(&path).unwrap_err().to_string();
    let expected = "bad.onnxtxt is not an ONNX model: line 1, column 40: expected `(`, found `x`";
    assert!(error.ends_with(expected), "{error}");
}
