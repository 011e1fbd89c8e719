//! Checks that models that differ, and invalid models, are not proved equal.

use unfold::onnx::Model;
use unfold::onnx::proto::{AttributeProto, NodeProto};
use unfold::prove::Proof;

use super::common::{Attr, attribute, text};
use super::{is_not_proved, is_proved, proof};

fn is_disproved(proof: &Proof) -> bool {
    matches!(proof, Proof::Disproved { .. })
}

pub(super) fn cut_to(axis: i64) -> Model {
    text::model(&format!(
        "input x B S 8
         weight P 64 8
         weight w 8 8
         ints zero 1 = 0
         ints axis 1 = {axis}
         s = Shape(x)
         n = Gather(s, axis)
         p = Slice(P, zero, n)
         m = MatMul(x, w)
         y = Add(m, p)
         output y"
    ))
}

/// `prove-size`: a position table is cut to the length of the sequence or to the number of
/// channels. The default length used to equal the 8 channels.
#[test]
fn slice_to_another_extent_is_not_proved() {
    let (before, after) = (cut_to(1), cut_to(2));
    assert!(is_proved(&proof(&before, &cut_to(1), &[])));
    let found = proof(&before, &after, &[]);
    assert!(!is_proved(&found), "{found:?}");
}

fn multiplied_by_extent(axis: i64) -> Model {
    text::model(&format!(
        "input x H W
         input z H W
         ints i = {axis}
         s = Shape(x)
         n = Gather(s, i)
         f = Cast(n) to=1
         y = Mul(z, f)
         output y"
    ))
}

/// Two symbols have different sizes, even if both are a batch or a length.
#[test]
fn extents_of_two_symbols_differ() {
    assert!(is_disproved(&proof(
        &multiplied_by_extent(0),
        &multiplied_by_extent(1),
        &[]
    )));
    assert!(is_proved(&proof(
        &multiplied_by_extent(1),
        &multiplied_by_extent(1),
        &[]
    )));
}

fn of_batch(nodes: &str) -> Model {
    text::model(&format!("input x batch 4\n{nodes}\noutput y"))
}

/// A Squeeze without axes removes a batch of one.
#[test]
fn squeeze_of_a_batch_of_one_is_disproved() {
    let kept = of_batch("y = Relu(x)");
    let squeezed = of_batch("r = Relu(x)\ny = Squeeze(r)");
    let found = proof(&kept, &squeezed, &[]);
    assert!(is_disproved(&found), "{found:?}");
}

fn gathered(index: i64) -> Model {
    text::model(&format!(
        "input x 2 3\nints i = {index}\ny = Gather(x, i) axis=1\noutput y"
    ))
}

/// `gather-mod`: an axis of three places has a place 1 and no place 4.
#[test]
fn gather_with_an_index_out_of_range_is_undecided() {
    for index in [4, 7, -5, 100] {
        let found = proof(&gathered(1), &gathered(index), &[]);
        assert!(
            matches!(found, Proof::Undecided { .. }),
            "{index}: {found:?}"
        );
    }
    assert!(is_proved(&proof(&gathered(1), &gathered(-2), &[])));
    assert!(is_disproved(&proof(&gathered(1), &gathered(0), &[])));
}

fn with_extent_from(start: i64) -> Model {
    text::model(&format!(
        "input x B 3
         weight v 3 3
         const w 1 = 2
         ints i 1 = 1
         s = Shape(x) start={start}
         n = Gather(s, i) axis=0
         e = Expand(w, n)
         z = MatMul(x, v)
         y = Mul(z, e)
         output y"
    ))
}

/// `gather-shape`: a Shape from axis 1 has one element, so it has no second one.
#[test]
fn gather_of_a_missing_extent_is_undecided() {
    let found = proof(&with_extent_from(0), &with_extent_from(1), &[]);
    assert!(matches!(found, Proof::Undecided { .. }), "{found:?}");
    assert!(is_proved(&proof(
        &with_extent_from(0),
        &with_extent_from(0),
        &[]
    )));
}

/// Operators like Gather, with an index in range, and with an index out of range that has the same
/// remainder.
#[test]
fn indices_out_of_range_are_undecided_in_gather_and_scatter_nd() {
    let cases = [
        ("ints i 1 2 = 1 2", "ints i 1 2 = 3 2", "y = GatherND(x, i)"),
        (
            "ints i 1 3 = 1 0 1",
            "ints i 1 3 = 1 2 1",
            "y = GatherElements(x, i) axis=0",
        ),
        (
            "ints i 1 1 = 1",
            "ints i 1 1 = 3",
            "const u 1 3 = 1 2 3\ny = ScatterND(x, i, u)",
        ),
        (
            "ints i 1 2 = 1 0",
            "ints i 1 2 = 1 2",
            "const u 1 2 = 1 2\ny = ScatterElements(x, i, u) axis=0",
        ),
    ];
    for (inside, outside, node) in cases {
        let [inside, outside] = [inside, outside]
            .map(|index| text::model(&format!("input x 2 3\n{index}\n{node}\noutput y")));
        assert!(is_proved(&proof(&inside, &inside, &[])), "{node}");
        let found = proof(&inside, &outside, &[]);
        assert!(
            matches!(found, Proof::Undecided { .. }),
            "{node}: {found:?}"
        );
    }
}

/// An input of tokens may hold any index of the vocabulary.
#[test]
fn index_input_takes_any_value() {
    let model =
        text::model("indices ids batch 4\nweight table 11 3\ny = Gather(table, ids)\noutput y");
    assert!(is_proved(&proof(&model, &model, &[])));
}

fn rooted(nodes: &str) -> Model {
    text::model(&format!(
        "input x b 4\nconst half 1 = 0.5\nconst minus 1 = -0.5\n{nodes}\noutput y"
    ))
}

/// `sqrt-sign`: also checks other functions in which the prover could ignore a sign.
#[test]
fn sign_inside_sqrt_pow_or_log_is_disproved() {
    let forms = [
        (
            "y = Sqrt(x)",
            "s = Neg(x)\ny = Sqrt(s)",
            "r = Sqrt(x)\ny = Neg(r)",
        ),
        (
            "y = Pow(x, half)",
            "s = Neg(x)\ny = Pow(s, half)",
            "r = Pow(x, half)\ny = Neg(r)",
        ),
        (
            "y = Pow(x, minus)",
            "s = Neg(x)\ny = Pow(s, minus)",
            "r = Pow(x, minus)\ny = Neg(r)",
        ),
        (
            "r = Sqrt(x)\ny = Reciprocal(r)",
            "s = Neg(x)\nr = Sqrt(s)\ny = Reciprocal(r)",
            "s = Sqrt(x)\nr = Neg(s)\ny = Reciprocal(r)",
        ),
        (
            "y = Log(x)",
            "s = Neg(x)\ny = Log(s)",
            "r = Log(x)\ny = Neg(r)",
        ),
    ];
    for (plain, inside, outside) in forms {
        let [plain, inside, outside] = [plain, inside, outside].map(rooted);
        assert!(is_proved(&proof(&plain, &plain, &[])));
        for (one, other) in [(&plain, &inside), (&inside, &outside), (&plain, &outside)] {
            let found = proof(one, other, &[]);
            assert!(is_disproved(&found), "{}: {found:?}", text::print(one));
        }
    }
}

fn scaled_under_root(nodes: &str) -> Model {
    text::model(&format!(
        "input x 3 4\nconst nine 1 = 9\nconst three 1 = 3\nconst n 1 = -9\n{nodes}\noutput y"
    ))
}

/// The root of a positive scale moves out of a square root. A negative scale does not move, even if
/// all extents are known.
#[test]
fn prover_moves_a_positive_square_past_sqrt() {
    let before = scaled_under_root("m = Mul(x, nine)\ny = Sqrt(m)");
    let behind = scaled_under_root("r = Sqrt(x)\ny = Mul(r, three)");
    let negative = scaled_under_root("m = Mul(x, n)\ny = Sqrt(m)");
    assert!(is_proved(&proof(&before, &behind, &[])));
    assert!(is_disproved(&proof(&negative, &behind, &[])));
}

fn is_invalid(proof: &Proof) -> bool {
    matches!(proof, Proof::Invalid { .. })
}

fn with_node(model: &Model, change: impl Fn(&mut NodeProto)) -> Model {
    let mut changed = model.clone();
    let node = changed.graph_mut().node.first_mut().unwrap();
    change(node);
    changed
}

fn with_attribute(model: &Model, attribute: &AttributeProto) -> Model {
    with_node(model, |node| {
        node.attribute.retain(|own| own.name != attribute.name);
        node.attribute.push(attribute.clone());
    })
}

fn split_in_two(opset: i64) -> Model {
    text::model(&format!(
        "opset {opset}\ninput x b 3 8\nu, v = Split(x) axis=2\ny = Add(u, v)\noutput y"
    ))
}

/// `invalid-split`: an attribute that exists only in a later operator set.
#[test]
fn split_attribute_of_a_later_opset_is_invalid() {
    let parts = attribute("num_outputs", Attr::Int(2));
    let found = proof(
        &split_in_two(17),
        &with_attribute(&split_in_two(17), &parts),
        &[],
    );
    assert!(
        matches!(&found, Proof::Invalid { reason, .. } if reason.contains("num_outputs")),
        "{found:?}"
    );
    assert!(is_proved(&proof(
        &split_in_two(18),
        &with_attribute(&split_in_two(18), &parts),
        &[]
    )));
}

#[test]
fn invalid_attributes_are_reported() {
    let conv =
        text::model("input x 1 2 5 5\nweight w 3 2 3 3\ny = Conv(x, w) pads=[1,1,1,1]\noutput y");
    let softmax = text::model("input x b 4\ny = Softmax(x) axis=1\noutput y");
    let sum = text::model("input x b 4\ny = ReduceMean(x) axes=[1]\noutput y");
    let transpose = text::model("input x 2 3 4\ny = Transpose(x) perm=[0,2,1]\noutput y");
    let cases = [
        (
            "auto_pad beside pads",
            &conv,
            with_attribute(&conv, &attribute("auto_pad", Attr::Text("VALID".into()))),
        ),
        (
            "an axis out of range",
            &softmax,
            with_attribute(&softmax, &attribute("axis", Attr::Int(2))),
        ),
        (
            "axes out of range",
            &sum,
            with_attribute(&sum, &attribute("axes", Attr::Ints(vec![-3]))),
        ),
        (
            "an axis named twice",
            &sum,
            with_attribute(&sum, &attribute("axes", Attr::Ints(vec![1, -1]))),
        ),
        (
            "an axis ordered twice",
            &transpose,
            with_attribute(&transpose, &attribute("perm", Attr::Ints(vec![0, 1, 1]))),
        ),
        (
            "an attribute of another type",
            &softmax,
            with_attribute(&softmax, &attribute("axis", Attr::Float(1.0))),
        ),
        (
            "an unknown attribute",
            &softmax,
            with_attribute(&softmax, &attribute("axes", Attr::Ints(vec![1]))),
        ),
    ];
    for (what, original, fused) in &cases {
        assert_invalid(what, original, fused);
    }
}

#[test]
fn invalid_nodes_are_reported() {
    let softmax = text::model("input x b 4\ny = Softmax(x) axis=1\noutput y");
    let gather =
        text::model("input x 2 3\nconst f 1 = 1\nints i 1 = 1\ny = Gather(x, i)\noutput y");
    let cases = [
        (
            "floats as indices",
            &gather,
            with_node(&gather, |node| node.input[1] = "f".into()),
        ),
        (
            "an input too few",
            &gather,
            with_node(&gather, |node| node.input.truncate(1)),
        ),
        (
            "an input too many",
            &softmax,
            with_node(&softmax, |node| node.input.push("x".into())),
        ),
        (
            "a later operator",
            &softmax,
            with_node(&softmax, |node| {
                node.op_type = Some("Swish".into());
                node.attribute.clear();
            }),
        ),
    ];
    for (what, original, fused) in &cases {
        assert_invalid(what, original, fused);
    }
}

fn assert_invalid(what: &str, original: &Model, fused: &Model) {
    assert!(is_proved(&proof(original, original, &[])), "{what}");
    let found = proof(original, fused, &[]);
    assert!(is_invalid(&found), "{what}: {found:?}");
    // An original that violates the specification, but that engines accept, is not an error.
    assert!(!is_invalid(&proof(fused, fused, &[])), "{what}");
}

fn summed_with(other: &str) -> Model {
    text::model(&format!(
        "input x b 4\nindices k b 4\nf = Cast(k) to=1\ny = Add(x, {other})\noutput y"
    ))
}

#[test]
fn add_of_float_and_integer_is_invalid() {
    assert!(is_invalid(&proof(
        &summed_with("f"),
        &summed_with("k"),
        &[]
    )));
}

fn clamped(nodes: &str) -> Model {
    text::model(&format!(
        "input x batch 4
         const zero = 0
         const six = 6
         const low = -1
         {nodes}
         output y"
    ))
}

/// Two activations are not equal to one of them if the other one has an effect.
#[test]
fn activations_with_an_effect_are_not_dropped_by_the_prover() {
    for (both, one) in [
        (
            "r = Relu(x)\ny = Clip(r, low, six)",
            "y = Clip(x, low, six)",
        ),
        ("r = Clip(x, low, six)\ny = Relu(r)", "y = Relu(x)"),
        (
            "r = Clip(x, low, six)\ny = Relu(r)",
            "y = Clip(x, low, six)",
        ),
        ("r = Floor(x)\ny = Relu(r)", "y = Relu(x)"),
        ("r = Floor(x)\ny = Ceil(r)", "y = Ceil(x)"),
        ("r = Relu(x)\ny = Neg(r)", "y = Relu(x)"),
        ("r = Clip(x, zero, zero)\ny = Relu(r)", "y = Relu(x)"),
        // The lower bound exceeds the upper bound, so each element becomes the upper bound.
        (
            "r = Clip(x, six, zero)\ny = Relu(r)",
            "y = Clip(x, zero, six)",
        ),
    ] {
        let (both, one) = (clamped(both), clamped(one));
        assert!(!is_proved(&proof(&both, &one, &[])), "{both:?}");
        assert!(!is_proved(&proof(&one, &both, &[])), "{both:?}");
    }
}

/// A default of an input is not a constant bound. An invalid activation is still checked.
#[test]
fn redundant_clip_needs_constant_bounds_and_valid_attributes() {
    let both = clamped("input top\nconst top = 6\nr = Clip(x, zero, six)\ny = Clip(r, zero, top)");
    let alone = clamped("input top\nconst top = 6\ny = Clip(x, zero, top)");
    assert!(is_proved(&proof(&both, &both, &[])));
    assert!(!is_proved(&proof(&both, &alone, &[])));
    let one = clamped("y = Relu(x)");
    let mut wrong = clamped("r = Relu(x)\ny = Relu(r)");
    let alpha = attribute("alpha", Attr::Float(0.5));
    wrong.graph_mut().node[1].attribute.push(alpha);
    let found = proof(&one, &wrong, &[]);
    assert!(matches!(found, Proof::Invalid { .. }), "{found:?}");
}

/// A root may not have the sign of the number whose square is under it, also if few elements are
/// compared, and a root of a negative number may not be discarded. The twins are the same function.
#[test]
fn signs_of_roots_are_disproved_for_few_elements() {
    let mean = "input x b 8\n m = ReduceMean(x) keepdims=1\n";
    let both = "input x 8\n ints a 1 = 0\n ints e 1 = 8\n n = Neg(x)\n";
    let half = "c = Concat(x, n) axis=0\n r = Sqrt(c)\n y = Slice(r, a, e)\n output y";
    for (original, other) in [
        (
            "s = Mul(m, m)\n y = Sqrt(s)\n output y",
            "y = Identity(m)\n output y",
        ),
        (
            "s = Mul(m, m)\n r = Sqrt(s)\n y = Mul(x, r)\n output y",
            "y = Mul(x, m)\n output y",
        ),
    ] {
        let [one, other] = [original, other].map(|lines| text::model(&format!("{mean}{lines}")));
        assert!(is_not_proved(&one, &other), "{original}");
    }
    let [one, same, other] = [half, "y = Sqrt(x)\n output y", "y = Sqrt(n)\n output y"]
        .map(|lines| text::model(&format!("{both}{lines}")));
    assert!(is_proved(&proof(&one, &same, &[])));
    assert!(is_not_proved(&one, &other));
}

/// A positive factor moves through a root, so that the root must be multiplicative.
#[test]
fn factor_of_a_root_is_proved_at_several_points() {
    let model = |lines: &str| {
        text::model(&format!(
            "input x b 8\n const four = 4\n const two = 2\n{lines}\n output y"
        ))
    };
    let inside = model("s = Mul(x, four)\n y = Sqrt(s)");
    let outside = model("r = Sqrt(x)\n y = Mul(r, two)");
    let Proof::Proved { points, bound, .. } = proof(&inside, &outside, &[]) else {
        panic!("the factor does not move");
    };
    assert_eq!((points, bound), (16, 0.5_f64.powi(16)));
    let wrong = model("r = Sqrt(x)\n y = Mul(r, four)");
    assert!(is_not_proved(&inside, &wrong));
}
