//! Checks in tract that `fuse` loses no fusion, and that tract still cannot prepare the forms that
//! docs/engines.md lists.

use std::collections::BTreeMap;
use std::path::PathBuf;

use prost::Message;
use tract_onnx::pb::ModelProto;
use tract_onnx::prelude::{Framework, InferenceModelExt};
use unfold::onnx::Model;
use unfold::run::{Dims, Engine, random};

fn operators(model: &Model) -> BTreeMap<String, usize> {
    Engine::load(model, &Dims::default()).unwrap().operators()
}

fn models(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut found: Vec<_> = entries
        .filter(|path| path.extension().is_some_and(|end| end == "onnx"))
        .collect();
    found.sort();
    found
}

/// Whether an operator replaces several operators, or absorbs others.
fn is_fused(operator: &str) -> bool {
    [
        "OptMatMul",
        "RmsNorm",
        "Softmax",
        "Gelu",
        "Silu",
        "LayerNorm",
    ]
    .iter()
    .any(|form| operator.contains(form))
}

#[test]
fn folding_keeps_every_fusion_of_tract() {
    let mut forms = 0;
    for path in models("models/digits") {
        let model = Model::open(&path).unwrap();
        let fused = unfold::fuse(&model, &Default::default()).unwrap();
        let [before, after] =
            [fused.lowered.as_ref().unwrap_or(&model), &fused.model].map(operators);
        let total = |counts: &BTreeMap<String, usize>| counts.values().sum::<usize>();
        assert!(
            total(&after) <= total(&before),
            "{}: {before:?} {after:?}",
            path.display()
        );
        for (form, count) in before.iter().filter(|(name, _)| is_fused(name)) {
            let left = after.get(form).copied().unwrap_or_default();
            assert!(left >= *count, "{}: {form} {count} {left}", path.display());
            forms += left;
        }
    }
    assert!(forms > 0);
}

/// Minimal models that tract cannot prepare, each with a part of its error.
const REFUSED: [(&str, &str); 6] = [
    ("strided_slice_after_reshape", "Invalid axis"),
    ("gather_nd_negative_index", "start <= end"),
    ("cum_sum_of_positions", "TDim is not a number"),
    ("loop", "Loop"),
    ("sequence", "Sequence"),
    ("quantized_add", "QLinearAdd"),
];

/// The forms that unfold writes out before it runs a model.
const WRITTEN_OUT: [&str; 3] = [
    "strided_slice_after_reshape",
    "gather_nd_negative_index",
    "cum_sum_of_positions",
];

fn minimal(name: &str) -> Model {
    let text = std::fs::read_to_string(format!("tests/tract/{name}.onnxtxt")).unwrap();
    Model::from_text(&text).unwrap()
}

/// Prepares a model in tract without changes, and returns the error.
fn error_of_tract(model: &Model) -> String {
    let proto = ModelProto::decode(model.proto.encode_to_vec().as_slice()).unwrap();
    let onnx = tract_onnx::onnx()
        .with_ignore_value_info(true)
        .with_ignore_output_shapes(true);
    let prepared = onnx
        .model_for_proto_model(&proto)
        .and_then(|model| model.into_optimized());
    prepared.map_or_else(|error| format!("{error:?}"), |_| "none".to_owned())
}

/// If this test fails, tract supports a form now. Then docs/engines.md need not list the form, and
/// unfold need not write it out.
#[test]
fn tract_still_refuses_the_minimal_models() {
    for (name, part) in REFUSED {
        let error = error_of_tract(&minimal(name));
        assert!(error.contains(part), "{name}: {error}");
    }
}

#[test]
fn forms_written_out_for_the_run_are_prepared() {
    for (name, _) in REFUSED {
        let prepared = Engine::load(&minimal(name), &Dims::default());
        assert_eq!(prepared.is_ok(), WRITTEN_OUT.contains(&name), "{name}");
    }
}

/// tract casts the end of this Slice to −1, so that the last row is missing.
#[test]
fn largest_index_survives_a_cast() {
    let text = r#"<ir_version: 9, opset_import: ["" : 18]>
        rest (float[2, 3] x) => (float[1, 3] y) <int64[1] start = {1}, int64[1] axis = {0}> {
            end = Constant<value_ints = [9223372036854775807]>()
            cast = Cast<to = 7>(end)
            y = Slice(x, start, cast, axis)
        }"#;
    let engine = Engine::load(&Model::from_text(text).unwrap(), &Dims::default()).unwrap();
    let inputs = random(engine.inputs(), 0);
    let outputs = engine.run(&inputs).unwrap();
    let [rows, row] = [&inputs[0], &outputs[0]].map(|tensor| {
        let plain = tensor.try_as_plain_ram().unwrap();
        plain.as_slice::<f32>().unwrap().to_vec()
    });
    assert_eq!(row, rows[3..]);
}
