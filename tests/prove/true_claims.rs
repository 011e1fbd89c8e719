//! Checks that models that compute equal functions are proved.

use unfold::onnx::Model;
use unfold::prove::{Proof, ProveOptions, prove};

use super::common::text;
use super::{is_proved, proof};

/// `prove-itself-div0`: a constant is divided by 0.
#[test]
fn model_with_constant_division_by_zero_equals_itself() {
    let model =
        text::model("input x b 4\nconst z 4 = 0 0 0 0\ni = Reciprocal(z)\ny = Add(x, i)\noutput y");
    let found = prove(&model, &model, &[], &ProveOptions::default());
    assert_eq!(
        found,
        Proof::Proved {
            points: 0,
            bound: 0.0,
            tensors: 0
        }
    );
    // Another file of these nodes has the same numbers.
    assert!(is_proved(&proof(&model, &model, &[])));
    let other =
        text::model("input x b 4\nconst z 4 = 0 0 0 1\ni = Reciprocal(z)\ny = Add(x, i)\noutput y");
    assert!(!is_proved(&proof(&model, &other, &[])));
}

/// `prove-itself-empty`: the extents match only at a batch of 0.
#[test]
fn model_that_fits_an_empty_batch_only_equals_itself() {
    let model = text::model(
        "input x n 6 2
         ints s1 3 = 3 2 -1
         ints s2 3 = 0 0 3
         m = Reshape(x, s1)
         y = Reshape(m, s2) allowzero=1
         output y",
    );
    assert!(is_proved(&prove(
        &model,
        &model,
        &[],
        &ProveOptions::default()
    )));
}

/// `signed-zero-refused`: the reciprocals of 0 and −0 are stored as infinities.
#[test]
fn reciprocals_of_signed_zeros_are_proved_as_infinities() {
    let model = text::model(
        "input x b 4
         const p 4 = 0 0 0 0
         const m 4 = -0 -0 -0 -0
         i = Reciprocal(p)
         j = Reciprocal(m)
         y = Add(x, i)
         w = Add(x, j)
         output y w",
    );
    let fused = unfold::fuse(&model, &Default::default()).unwrap();
    assert_eq!(fused.model.graph().node.len(), 2);
    assert!(is_proved(&proof(&model, &fused.model, &fused.plan.tensors)));
    let mut turned = fused.model.clone();
    let names: Vec<String> = turned
        .graph()
        .node
        .iter()
        .map(|node| node.input[1].clone())
        .collect();
    turned.graph_mut().node[0].input[1] = names[1].clone();
    turned.graph_mut().node[1].input[1] = names[0].clone();
    assert!(!is_proved(&proof(&model, &turned, &fused.plan.tensors)));
}

/// `base3`: two attentions share a projection. In one, the scale ½ follows it. In the other,
/// 0.7071068 follows both the queries and the keys of its cache. The products round to equal
/// numbers, but have two recipes.
#[test]
fn scales_equal_only_by_rounding_get_separate_tensors() {
    let model = text::model(
        "input x b 4
         input z b 4
         weight w 4 4
         const half = 0.5
         const q = 0.70710677
         const k = 0.70710677
         u = MatMul(x, w)
         s = Mul(u, half)
         a = Relu(s)
         v = MatMul(z, w)
         r = Mul(v, q)
         t = Mul(r, k)
         c = Relu(t)
         y = Add(a, c)
         output y",
    );
    let options = unfold::FuseOptions {
        max_growth: 200.0,
        ..Default::default()
    };
    let fused = unfold::fuse(&model, &options).unwrap();
    let tensors = fused.plan.tensors.iter();
    let made = tensors.filter(|tensor| tensor.replaces.as_deref() == Some("w"));
    assert_eq!(made.count(), 2);
    let found = proof(&model, &fused.model, &fused.plan.tensors);
    assert!(is_proved(&found), "{found:?}");
}

/// A model of successive activations, with bounds for Clip.
fn activated(nodes: &str) -> Model {
    text::model(&format!(
        "input x batch 4
         const zero = 0
         const one = 1
         const six = 6
         const low = -1
         {nodes}
         output y"
    ))
}

/// Relu(Relu(x)) is Relu(x), and two clamps equal the narrower one.
#[test]
fn redundant_activations_are_proved_neutral() {
    for (both, one) in [
        ("r = Relu(x)\ny = Relu(r)", "y = Relu(x)"),
        ("r = Floor(x)\ny = Floor(r)", "y = Floor(x)"),
        ("r = Floor(x)\ny = Round(r)", "y = Floor(x)"),
        ("r = Round(x)\ny = Ceil(r)", "y = Round(x)"),
        (
            "r = Relu(x)\ny = Clip(r, zero, six)",
            "y = Clip(x, zero, six)",
        ),
        (
            "r = Relu(x)\ny = Clip(r, one, six)",
            "y = Clip(x, one, six)",
        ),
        (
            "r = Clip(x, zero, six)\ny = Relu(r)",
            "y = Clip(x, zero, six)",
        ),
        ("r = Clip(x, low)\ny = Relu(r)", "y = Relu(x)"),
        (
            "r = Clip(x, low, six)\ny = Clip(r, zero, one)",
            "y = Clip(x, zero, one)",
        ),
        (
            "r = Relu(x)\ns = Relu(r)\nt = Clip(s, low)\ny = Relu(t)",
            "y = Relu(x)",
        ),
    ] {
        let (both, one) = (activated(both), activated(one));
        assert!(is_proved(&proof(&both, &one, &[])), "{both:?}");
        assert!(is_proved(&proof(&one, &both, &[])), "{both:?}");
    }
    let [both, one, lower] = [
        "r = Relu(x)\ny = Clip(r) min=-1.0 max=6.0",
        "y = Clip(x) min=0.0 max=6.0",
        "y = Clip(x) min=-1.0 max=6.0",
    ]
    .map(|nodes| text::model(&format!("opset 10\ninput x batch 4\n{nodes}\noutput y")));
    assert!(is_proved(&proof(&both, &one, &[])));
    assert!(!is_proved(&proof(&both, &lower, &[])));
    let both = text::model(
        "opset 10\ninput x batch 4\nr = Relu(x)\ny = Clip(r) min=0.0 max=6.0\noutput y",
    );
    assert!(is_proved(&proof(&both, &one, &[])));
}
