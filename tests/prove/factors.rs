//! The prover moves positive factors past activations.

use unfold::onnx::Model;
use unfold::prove::Proof;
use unfold::recipe::Recipe;

use super::common::text;
use super::{is_proved, proof, with_new};

fn scaled_between_weights(scale: &str, rest: &str) -> Model {
    text::model(&format!(
        "input x 2 4\nweight w 4 3\nconst v 3 2 = 1 2 3 -1 2 5\nconst s {scale}\na = MatMul(x, w)\n{rest}\noutput y"
    ))
}

#[test]
fn prover_moves_positive_scalars_past_relu_abs_and_max() {
    let operators = [
        "r = Relu(b)",
        "r = LeakyRelu(b) alpha=0.3",
        "r = Abs(b)",
        "const zero = 0\nr = Max(b, zero)",
        "m = ReduceMax(b) axes=[1]\nr = Sub(b, m)",
        "q = Relu(b)\nr = Abs(q)",
    ];
    for (operator, forward) in operators
        .iter()
        .flat_map(|operator| [(operator, true), (operator, false)])
    {
        let proof = proof_of_moved("1 = 0.3", &[1], operator, forward);
        assert!(is_proved(&proof), "{operator} {forward}: {proof:?}");
        for (scale, extents) in [("1 = -0.3", &[1]), ("3 = 0.3 -0.7 1.9", &[3])] {
            let proof = proof_of_moved(scale, extents, operator, forward);
            assert!(
                matches!(proof, Proof::Disproved { .. }),
                "{operator} {scale} {forward}: {proof:?}"
            );
        }
    }
}

/// The proof that a scalar moves through an operator: forward into the weight after it, or backward
/// into the weight before it.
fn proof_of_moved(scale: &str, extents: &[usize], operator: &str, forward: bool) -> Proof {
    let own = operator.replace("(b", "(a");
    let (before, after) = match forward {
        true => (
            format!("b = Mul(a, s)\n{operator}\ny = MatMul(r, v)"),
            format!("{own}\ny = MatMul(r, n)"),
        ),
        false => (
            format!("{own}\nc = Mul(r, s)\ny = MatMul(c, v)"),
            format!("{own}\ny = MatMul(r, v)"),
        ),
    };
    let original = scaled_between_weights(scale, &before);
    let number = Recipe::constant("s", extents);
    let recipe = match forward {
        true => Recipe::constant("v", &[3, 2]).mul(&number.reshape(&[extents[0], 1]).unwrap()),
        false => Recipe::constant("w", &[4, 3]).mul(&number.reshape(&[1, extents[0]]).unwrap()),
    };
    let mut fused = scaled_between_weights(scale, &after);
    if !forward {
        fused.graph_mut().node[0].input[1] = "n".into();
    }
    let (fused, tensors) = with_new(fused, &original, "n", recipe.unwrap());
    proof(&original, &fused, &tensors)
}

#[test]
fn relu_of_a_positive_multiple_is_a_multiple_of_relu() {
    for (scale, holds) in [("1 = 0.3", true), ("1 = -0.3", false)] {
        let original = with_relu_of_product(scale, "b = Mul(a, s)\nq = Relu(b)\ny = MatMul(q, v)");
        let number = Recipe::constant("s", &[1]).reshape(&[1, 1]).unwrap();
        let recipe = Recipe::constant("v", &[3, 2]).mul(&number).unwrap();
        let (fused, tensors) = with_new(
            with_relu_of_product(scale, "y = MatMul(p, n)"),
            &original,
            "n",
            recipe,
        );
        let proof = proof(&original, &fused, &tensors);
        assert_eq!(is_proved(&proof), holds, "{scale}: {proof:?}");
    }
}

fn with_relu_of_product(scale: &str, rest: &str) -> Model {
    text::model(&format!(
        "input x 2 4\nweight w 4 3\nconst v 3 2 = 1 2 3 -1 2 5\nconst s {scale}\na = MatMul(x, w)\np = Relu(a)\n{rest}\noutput p\noutput y"
    ))
}

#[test]
fn prover_moves_70_positive_scales_past_relus() {
    let rows: String = (0..70)
        .map(|i| {
            format!(
                "const k{i} = 1.{i:02}7\nh{i} = Mul(r{i}, k{i})\nr{} = Relu(h{i})\n",
                i + 1
            )
        })
        .collect();
    for count in [5, 70] {
        let taken: Vec<&str> = rows.lines().take(3 * count).collect();
        let model = text::model(&format!(
            "input x 2 4\nweight v 4 4\nr0 = MatMul(x, v)\n{}\nweight w 4 3\ny = MatMul(r{count}, w)\noutput y",
            taken.join("\n")
        ));
        let fused = unfold::fuse(&model, &Default::default()).unwrap();
        assert!(fused.changed());
        let proof = proof(&model, &fused.model, &fused.plan.tensors);
        assert!(is_proved(&proof), "{count}: {proof:?}");
    }
}
