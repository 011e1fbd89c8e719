//! Tests proofs on functions of the model, and on calls of them.

use unfold::onnx::Model;
use unfold::onnx::proto::{AttributeProto, FunctionProto, NodeProto};
use unfold::prove::Proof;

use super::bodies::{body_of, branch, choice};
use super::common;
use super::common::{node, text};
use super::{is_proved, proof};

#[test]
fn call_equals_the_inlined_function() {
    let start = "opset 17\ninput x batch 4\nweight w 4 3\nscale s 3\n";
    let mut called = text::model(&format!(
        "{start}v = MatMul(x, w)\ny = Twice(v, s)\noutput y"
    ));
    called.graph_mut().node[1].domain = Some("own".into());
    let resolved = AttributeProto {
        ref_attr_name: Some("alpha".into()),
        ..common::attribute("alpha", common::Attr::Float(0.0))
    };
    let mut leaky = node("LeakyRelu", &["b"], &["c"], vec![]);
    leaky.attribute.push(resolved);
    called.proto.functions.push(FunctionProto {
        name: Some("Twice".into()),
        domain: Some("own".into()),
        input: vec!["a".into(), "k".into()],
        output: vec!["c".into()],
        attribute: vec!["alpha".into()],
        node: vec![node("Mul", &["a", "k"], &["b"], vec![]), leaky],
        ..Default::default()
    });
    called.graph_mut().node[1]
        .attribute
        .push(common::attribute("alpha", common::Attr::Float(0.25)));
    let [same, other] = ["0.25", "0.5"].map(|alpha| {
        text::model(&format!(
            "{start}u = Mul(s, w)\nt = MatMul(x, u)\ny = LeakyRelu(t) alpha={alpha}\noutput y"
        ))
    });
    assert!(is_proved(&proof(&called, &same, &[])));
    assert!(matches!(
        proof(&called, &other, &[]),
        Proof::Disproved { .. }
    ));
}

fn calling(by: i64) -> Model {
    let mut model = text::model("input x batch 3\nscale g 3\ny = Mul(x, g)\noutput y");
    let unknown = node("TopK", &["a"], &["b"], vec![("axis", by.into())]);
    // A node with bodies is not evaluated.
    let condition = node("IsNaN", &["a"], &["c"], vec![]);
    let then = body_of(vec![own_call("Inner", "a", "t")], "t");
    let choice = choice("c", "b", then, branch("Relu", "a"));
    model.proto.functions = vec![
        own_function(&model, "Outer", vec![condition, choice]),
        own_function(&model, "Inner", vec![unknown]),
    ];
    let set = unfold::onnx::proto::OperatorSetIdProto {
        domain: Some("own".into()),
        version: Some(1),
    };
    model.proto.opset_import.push(set);
    model
        .graph_mut()
        .node
        .insert(0, own_call("Outer", "x", "h"));
    model.graph_mut().node[1].input[0] = "h".into();
    model
}

/// Two calls differ if the bodies of their functions differ.
#[test]
fn functions_are_compared_by_the_functions_they_call() {
    assert!(!is_proved(&proof(&calling(0), &calling(1), &[])));
}

fn own_function(model: &Model, name: &str, nodes: Vec<NodeProto>) -> FunctionProto {
    FunctionProto {
        name: Some(name.into()),
        domain: Some("own".into()),
        input: vec!["a".into()],
        output: vec!["b".into()],
        opset_import: model.proto.opset_import.clone(),
        node: nodes,
        ..Default::default()
    }
}

fn own_call(name: &str, from: &str, to: &str) -> NodeProto {
    let mut call = node(name, &[from], &[to], vec![]);
    call.domain = Some("own".into());
    call
}

#[test]
fn function_that_redefines_an_operator_is_undecided() {
    let mut model = text::model("input x batch 3\ny = Relu(x)\noutput y");
    let own = FunctionProto {
        name: Some("Relu".into()),
        input: vec!["a".into()],
        output: vec!["b".into()],
        opset_import: model.proto.opset_import.clone(),
        node: vec![node("Neg", &["a"], &["b"], vec![])],
        ..Default::default()
    };
    model.proto.functions.push(own);
    match proof(&model, &model, &[]) {
        Proof::Undecided { reason } => assert!(reason.contains("`Relu` is redefined"), "{reason}"),
        other => panic!("{other:?}"),
    }
}
