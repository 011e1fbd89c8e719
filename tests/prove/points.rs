//! Tests the number of points that a proof evaluates, and its error bound.

use unfold::Fused;
use unfold::onnx::proto::TensorProto;
use unfold::onnx::{DataType, Model};
use unfold::prove::{Proof, ProveOptions, prove};
use unfold::run::Dims;

use super::common::text;
use super::{digits, is_not_proved, is_proved, proof, proof_with};

#[test]
fn error_bound_shrinks_with_each_point_for_any_seed() {
    let (_, model) = digits()
        .into_iter()
        .find(|(name, _)| name == "bn-legacy")
        .unwrap();
    let fused = unfold::fuse(&model, &Default::default()).unwrap();
    let one = bound(&model, &fused, 1, 1);
    assert_eq!(bound(&model, &fused, 1, 2), one);
    assert!((bound(&model, &fused, 3, 3) / one.powi(3) - 1.0).abs() < 1e-9);
}

/// The bound of a proof at a batch of 3.
fn bound(model: &Model, fused: &Fused, points: usize, seed: u64) -> f64 {
    let mut dims = Dims::default();
    dims.set("batch", 3);
    let options = ProveOptions { dims, points, seed };
    match prove(model, &fused.model, &fused.plan.tensors, &options) {
        Proof::Proved {
            points: found,
            bound,
            ..
        } if found == points => bound,
        other => panic!("{other:?}"),
    }
}

/// In-place writes to places that follow from extents. The result is linear in the updates, however
/// many writes there are.
#[test]
fn scatter_at_computed_extents_has_degree_one() {
    let mut text = "input x 2 8 4\nz = Shape(x)\nints one = 1\nints first 1 = 1\nints start = 0\nn = Gather(z, one)\np = Range(start, n, one)\nm0 = Neg(x)\n".to_owned();
    for step in 0..12 {
        text += &format!(
            "ints i{step} 1 = {}\nc{step} = Mod(p, n)\nj{step} = Gather(c{step}, i{step})\nu{step} = Gather(x, j{step}) axis=1\nt{step} = Transpose(m{step}) perm=[1,0,2]\nv{step} = Transpose(u{step}) perm=[1,0,2]\nk{step} = Unsqueeze(j{step}, first)\ns{step} = ScatterND(t{step}, k{step}, v{step})\nm{} = Transpose(s{step}) perm=[1,0,2]\n",
            step % 8,
            step + 1
        );
    }
    let writes = text::model(&format!("{text}output m12"));
    let Proof::Proved { points, bound, .. } = proof(&writes, &writes, &[]) else {
        panic!("no proof")
    };
    assert!(points == 1 && bound < 1e-7, "{points} {bound}");
}

fn points_of_square(times: usize) -> Option<(usize, bool)> {
    match proof(&squared(times), &squared(times), &[]) {
        Proof::Proved { points, bound, .. } => Some((points, bound < 1e-4)),
        _ => None,
    }
}

fn squared(times: usize) -> Model {
    let squares: String = (0..times)
        .map(|i| format!("m{} = Mul(m{i}, m{i})\n", i + 1))
        .collect();
    text::model(&format!("input m0 2 3\n{squares}output m{times}"))
}

/// Equal values at one point prove less for polynomials of a higher degree, so more points are
/// evaluated. Beyond the size of the field, no number of points suffices.
#[test]
fn polynomials_of_high_degree_take_more_points() {
    assert_eq!(
        [4, 20, 26, 33].map(points_of_square),
        [Some((1, true)), Some((2, true)), Some((3, true)), None]
    );
}

fn chosen_by_inputs(declared: &str, truth: &str, a: &str, b: &str) -> Model {
    text::model(&format!(
        "input x 2 3\n weight v 3\n{declared}\n {truth}\n p = {a}(x, v)\n q = {b}(x, v)\n y = Where(c, p, q)\n output y"
    ))
}

#[test]
fn both_sides_of_boolean_inputs_are_evaluated() {
    let asked = ("condition c", "n = Not(c)");
    // Two inputs decide together, and all four combinations are evaluated.
    let both = ("condition d\n condition e", "c = And(d, e)");
    for (declared, truth) in [asked, both] {
        let original = chosen_by_inputs(declared, truth, "Add", "Mul");
        for (a, b) in [("Sub", "Mul"), ("Add", "Sub")] {
            for seed in 0..4 {
                let options = ProveOptions {
                    seed,
                    ..Default::default()
                };
                let proof = prove(
                    &original,
                    &chosen_by_inputs(declared, truth, a, b),
                    &[],
                    &options,
                );
                assert!(
                    matches!(proof, Proof::Disproved { .. }),
                    "{truth} {a} {b}: {proof:?}"
                );
                let proof = proof_with(&original, &original, &[], &options);
                assert!(
                    matches!(proof, Proof::Proved { points: 2 | 4, .. }),
                    "{proof:?}"
                );
            }
        }
    }
}

fn chosen_by_default(then: &str, otherwise: &str) -> Model {
    let mut model = text::model(&format!(
        "input x batch 3\ncondition c\na = Relu(x)\nb = Neg(x)\ny = Where(c, {then}, {otherwise})\noutput y"
    ));
    let holds = TensorProto {
        name: Some("c".into()),
        data_type: Some(DataType::Bool.code()),
        raw_data: Some(vec![1].into()),
        ..Default::default()
    };
    model.graph_mut().initializer.push(holds);
    model
}

#[test]
fn boolean_input_with_a_default_takes_both_values() {
    assert!(is_not_proved(
        &chosen_by_default("a", "b"),
        &chosen_by_default("a", "x")
    ));
    assert!(is_not_proved(
        &chosen_by_default("a", "b"),
        &chosen_by_default("x", "b")
    ));
}

fn chosen_by_sum(one: &str, other: &str) -> Model {
    text::model(&format!(
        "input x 2 4\nscale g 4\nscale h 4\nconst z = 0\ns = ReduceSum(x) keepdims=0\nc = Greater(s, z)\na = Mul(x, g)\nb = Mul(x, h)\ny = Where(c, {one}, {other})\noutput y"
    ))
}

#[test]
fn unknown_condition_compares_both_sides() {
    assert!(is_not_proved(
        &chosen_by_sum("a", "b"),
        &chosen_by_sum("x", "b")
    ));
    assert!(is_not_proved(
        &chosen_by_sum("a", "b"),
        &chosen_by_sum("a", "x")
    ));
    let doubled = text::model(
        "input x 2 4\nscale g 4\nscale h 4\nconst z = 0\nconst k = 2\ns = ReduceSum(x) keepdims=0\nc = Greater(s, z)\na = Mul(x, g)\nb = Mul(x, h)\nw = Where(c, a, b)\nn = Mul(w, k)\nweight v 4 3\ny = MatMul(n, v)\noutput y",
    );
    let fused = unfold::fuse(&doubled, &Default::default()).unwrap();
    assert!(fused.changed() && is_proved(&proof(&doubled, &fused.model, &fused.plan.tensors)));
}

#[test]
fn random_nodes_draw_different_numbers() {
    let one = "a = RandomNormal() shape=[4]\n";
    let two = text::model(&format!(
        "input x 2 4\n{one}{}d = Sub(a, b)\ny = Add(x, d)\noutput y",
        one.replace('a', "b")
            .replace("Rbndom", "Random")
            .replace("Normbl", "Normal")
            .replace("shbpe", "shape")
    ));
    let mut unnamed = two.clone();
    unnamed
        .graph_mut()
        .node
        .iter_mut()
        .for_each(|node| node.name = None);
    let none = text::model("input x 2 4\ny = Identity(x)\noutput y");
    for two in [two, unnamed] {
        assert!(!is_proved(&proof(&two, &none, &[])));
    }
}
