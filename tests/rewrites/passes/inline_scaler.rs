//! The Scaler of `ai.onnx.ml` is inlined if a layer absorbs it.

use unfold::fuse;
use unfold::onnx::proto::{AttributeProto, AttributeType};
use unfold::onnx::{DataType, Model};

use crate::common::{Attr, attribute, declared, options, text};
use crate::{operators, proved, same};

const START: &str = "input x batch 3\nweight w 3 2\n";

/// A model with a Scaler from `x` to `n` before the given lines.
fn scaler(offset: &[f32], scale: &[f32], lines: &str) -> Model {
    let mut model = text::model(&format!("{START}n = ai.onnx.ml.Scaler(x)\n{lines}"));
    let list = |(name, list): (&str, &[f32])| AttributeProto {
        name: Some(name.to_owned()),
        floats: list.to_vec(),
        r#type: Some(AttributeType::Floats.into()),
        ..Default::default()
    };
    model.graph_mut().node[0].attribute = [("offset", offset), ("scale", scale)].map(list).to_vec();
    model
}

#[test]
fn scaler_is_inlined_and_folds_into_a_layer() {
    let layer = "y = MatMul(n, w)\noutput y";
    let after = proved(&scaler(&[1.0, -2.0, 0.5], &[0.5, 2.0, 4.0], layer));
    assert_eq!(operators(&after), ["MatMul", "Add"]);
    let written = format!(
        "{START}const o 3 = 1 -2 0.5\nconst s 3 = 0.5 2 4\nc = Sub(x, o)\nn = Mul(c, s)\n{layer}"
    );
    same(&text::model(&written), &after, 0.0);
    let one = proved(&scaler(&[1.0], &[0.5], layer));
    assert_eq!(operators(&one), ["MatMul", "Add"]);
}

/// A Scaler computes float32 from an input of any type.
#[test]
fn float64_scaler_becomes_a_cast_and_folds() {
    let mut model = scaler(
        &[1.0, -2.0, 0.5],
        &[0.5, 2.0, 4.0],
        "y = MatMul(n, w)\noutput y",
    );
    model.graph_mut().input[0] = declared("x", DataType::Double, &["batch", "3"]);
    assert_eq!(operators(&proved(&model)), ["Cast", "MatMul", "Add"]);
}

/// The type of a value is known once its producer is expanded.
#[test]
fn scaler_after_an_opaque_normalizer_is_inlined() {
    let mut model = scaler(
        &[1.0, -2.0, 0.5],
        &[0.5, 2.0, 4.0],
        "y = MatMul(n, w)\noutput y",
    );
    let opaque = text::model(
        "input x batch 3\nscale g 3\nshift b 3\nconst s 3 = 1 4 0.25\nh = my.MABN(x, g, b, s)\nr = Relu(h)\noutput r",
    );
    let graph = model.graph_mut();
    graph.node[0].input = vec!["r".to_owned()];
    graph.node.splice(0..0, opaque.graph().node.clone());
    graph.initializer.extend(opaque.graph().initializer.clone());
    graph.value_info.clear();
    let after = proved(&model);
    assert_eq!(operators(&after), ["Mul", "Add", "Relu", "MatMul", "Add"]);
}

#[test]
fn scaler_that_cannot_fold_stays() {
    let (offset, scale) = ([1.0, -2.0, 0.5], [0.5, 2.0, 4.0]);
    let layer = "y = MatMul(n, w)\noutput y";
    let mut integers = scaler(&offset, &scale, layer);
    integers.graph_mut().input[0] = declared("x", DataType::Int64, &["batch", "3"]);
    // The encoder's output may have an integer type.
    let mut unknown = scaler(&offset, &scale, layer);
    let encoder = text::model("input x batch 3\ne = ai.onnx.ml.OrdinalEncoder(x)\noutput e")
        .graph()
        .node[0]
        .clone();
    unknown.graph_mut().node[0].input = vec!["e".to_owned()];
    unknown.graph_mut().node.insert(0, encoder);
    let mut other = scaler(&offset, &scale, layer);
    other.graph_mut().node[0]
        .attribute
        .push(attribute("axis", Attr::Int(1)));
    for model in [
        scaler(&offset, &scale, "y = MatMul(n, w)\noutput y n"),
        // Engines reject a Scaler with a list of another length.
        scaler(&offset, &scale[..1], layer),
        scaler(&offset, &[], layer),
        integers,
        unknown,
        other,
    ] {
        let fused = fuse(&model, &options()).unwrap();
        assert!(!fused.changed(), "{}", text::print(&fused.model));
    }
}
