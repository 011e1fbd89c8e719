//! Tests the sizes at which a proof evaluates unknown extents.

use unfold::onnx::{DataType, Model};
use unfold::prove::{Proof, ProveOptions, prove};
use unfold::recipe::Recipe;

use super::common::{declared, node, text, undeclared};
use super::planted::Broken;
use super::{is_not_proved, is_proved, proof, proof_with};

/// The length of the Slice follows from the value of an input, and so does the result of the
/// MaxPool.
#[test]
fn extents_from_input_values_are_known_at_each_point() {
    let before = text::model(
        "input x batch 4 9
         indices end 1
         ints zero 1 = 0
         ints two 1 = 2
         p = Slice(x, zero, end, two)
         m = MaxPool(p) kernel_shape=[1]
         scale g 4 1
         shift t 4 1
         weight w 5 4
         n = Mul(m, g)
         h = Add(n, t)
         y = MatMul(w, h)
         output y",
    );
    let fused = unfold::fuse(&before, &Default::default()).unwrap();
    assert!(fused.changed());
    let proof = proof(&before, &fused.model, &fused.plan.tensors);
    assert!(is_proved(&proof), "{proof:?}");
}

fn with_border(nodes: &str) -> Model {
    text::model(&format!(
        "input x batch 4
         const g 4 = 2 3 -1 5
         ints pads 4 = 2 0 1 0
         {nodes}
         output y"
    ))
}

#[test]
fn reflect_pad_is_evaluated_at_a_sufficient_size() {
    let before = with_border("n = Mul(x, g)\n y = Pad(n, pads) mode=reflect");
    let behind = with_border("n = Pad(x, pads) mode=reflect\n y = Mul(n, g)");
    let twice = with_border("n = Pad(x, pads) mode=reflect\n m = Mul(n, g)\n y = Mul(m, g)");
    assert!(is_proved(&proof(&before, &behind, &[])));
    assert!(matches!(
        proof(&before, &twice, &[]),
        Proof::Disproved { .. }
    ));
}

#[test]
fn other_length_is_tried_where_the_default_does_not_fit() {
    let strided = text::model(
        "input x N 3 T
         weight w 3 3 16
         c = Conv(x, w) strides=[16]
         e = ConvTranspose(c, w) strides=[16]
         y = Add(e, x)
         output y",
    );
    let proof = proof(&strided, &strided, &[]);
    assert!(is_proved(&proof), "{proof:?}");
}

/// An encoder of speech has no result for fewer samples.
#[test]
fn length_of_several_hundred_samples_is_tried() {
    let speech = text::model(
        "input x N 1 T
         weight v 4 1 10
         weight w 4 4 300
         c = Conv(x, v) strides=[5]
         y = Conv(c, w) strides=[2]
         output y",
    );
    let proof = proof(&speech, &speech, &[]);
    assert!(is_proved(&proof), "{proof:?}");
}

/// At a length at which the convolution has no results, the factor of its channels is unknown too.
#[test]
fn size_is_tried_at_which_recipe_inputs_are_constant() {
    let before = text::model(
        "input x N 1 T
         weight v 4 1 300
         weight w 4 3
         ints one 1 = 1
         c = Conv(x, v)
         s = Shape(c)
         e = Gather(s, one)
         f = Cast(e) to=1
         t = Transpose(c) perm=[0,2,1]
         m = Mul(t, f)
         y = MatMul(m, w)
         output y",
    );
    let fused = unfold::fuse(&before, &Default::default()).unwrap();
    assert!(!fused.plan.tensors.is_empty());
    let proof = proof(&before, &fused.model, &fused.plan.tensors);
    assert!(is_proved(&proof), "{proof:?}");
}

/// The proof of a Reshape that fits only this batch.
fn proof_of_reshape(batch: usize, width: usize) -> Proof {
    let model = text::model(&format!(
        "input x batch {width}
         ints s 2 = {batch} {width}
         r = Reshape(x, s)
         y = Relu(r)
         output y"
    ));
    proof(&model, &model, &[])
}

#[test]
fn larger_size_is_tried_only_if_it_is_cheap() {
    assert!(is_proved(&proof_of_reshape(3, 1 << 18)) && is_proved(&proof_of_reshape(1, 1 << 21)));
    let found = proof_of_reshape(3, 1 << 19);
    assert!(matches!(found, Proof::Undecided { .. }), "{found:?}");
}

#[test]
fn given_size_that_does_not_fit_is_undecided() {
    let model = text::model("input x batch 4\nweight w 3 4\ny = Add(x, w)\noutput y");
    assert!(matches!(
        proof_at(&model, "batch=2"),
        Proof::Undecided { .. }
    ));
    assert!(is_proved(&proof_at(&model, "batch=3")));
    // If no size is given, other sizes are tried.
    assert!(is_proved(&proof(&model, &model, &[])));
}

/// The proof that a model equals itself at this batch size.
fn proof_at(model: &Model, batch: &str) -> Proof {
    let options = ProveOptions {
        dims: batch.parse().unwrap(),
        ..Default::default()
    };
    proof_with(model, model, &[], &options)
}

#[test]
fn division_by_constant_zero_is_undecided() {
    let model = text::model("input x batch 4\nconst zero 1 = 0\ny = Div(x, zero)\noutput y");
    match proof(&model, &model, &[]) {
        Proof::Undecided { reason } => assert!(reason.contains("divides by 0"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

fn name_in_chain(place: usize) -> String {
    if place == 0 {
        "x".to_owned()
    } else {
        format!("v{place}")
    }
}

/// A long chain takes no more stack than a short one. A value that does not fit into memory is not
/// computed.
#[test]
fn chain_of_20000_is_proved_and_huge_values_are_undecided() {
    let mut lines = vec!["input x batch 2".to_owned(), "const c 1 = 3".to_owned()];
    lines.extend((0..20_000).map(|place| {
        format!(
            "{} = Mul({}, c)",
            name_in_chain(place + 1),
            name_in_chain(place)
        )
    }));
    lines.push(format!("output {}", name_in_chain(20_000)));
    let long = text::model(&lines.join("\n"));
    assert!(is_proved(&proof(&long, &long, &[])));
    let large = text::model(
        "input x batch 2\nints s 3 = 100000 100000 100000\nc = ConstantOfShape(s)\ny = Add(x, c)\noutput y",
    );
    match proof(&large, &large, &[]) {
        Proof::Undecided { reason } => assert!(reason.contains("takes more"), "{reason}"),
        other => panic!("{other:?}"),
    }
    let mut broken = Broken::new("un-dynamo");
    broken.tensors[0].recipe = Recipe::filled(1.0, &[1 << 20, 1 << 20]);
    match proof(&broken.original, &broken.fused, &broken.tensors) {
        Proof::Undecided { reason } => assert!(reason.contains("takes more"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn invalid_or_too_large_models_are_undecided() {
    assert!(is_proved(&proof_of_gather("indices")));
    assert!(matches!(proof_of_gather("half"), Proof::Undecided { .. }));
    for lines in [
        "input x 1\nints e 3 = 64 1024 1024\na = Expand(x, e)\ny = Relu(a)\noutput y",
        "input x 123456789 987654\ny = Relu(x)\noutput y",
    ] {
        match proof(&text::model(lines), &text::model(lines), &[]) {
            Proof::Undecided { reason } => assert!(reason.contains("takes more"), "{reason}"),
            other => panic!("{other:?}"),
        }
    }
    for lines in [
        "input x 1 2 4 4\nweight w 3 2 3 3\ny = Conv(x, w) kernel_shape=[1,3]\noutput y",
        "input x 2 3\nconst s 2 = 3 2\ny = Reshape(x, s)\noutput y",
    ] {
        let proof = proof(&text::model(lines), &text::model(lines), &[]);
        assert!(
            matches!(proof, Proof::Undecided { .. }),
            "{lines}: {proof:?}"
        );
    }
}

/// The proof of folding through a Gather whose indices are an input of this kind.
fn proof_of_gather(kind: &str) -> Proof {
    let model = text::model(&format!(
        "input x 2 4 3\n{kind} i 2\nconst s 3 = 2 3 5\nweight w 3 2\nn = Mul(x, s)\nr = Gather(n, i) axis=1\ny = MatMul(r, w)\noutput y"
    ));
    let fused = unfold::fuse(&model, &Default::default()).unwrap();
    proof(&model, &fused.model, &fused.plan.tensors)
}

fn reshaped_to(target: &str) -> Model {
    text::model(&format!(
        "input x b 4
         ints to 3 = {target} 2 2
         y = Reshape(x, to)
         output y"
    ))
}

#[test]
fn size_that_only_the_result_needs_is_undecided() {
    let original = reshaped_to("-1");
    assert!(is_proved(&proof(&original, &reshaped_to("-1"), &[])));
    // At a batch size of 16, both compute the same.
    let found = proof(&original, &reshaped_to("16"), &[]);
    assert!(
        matches!(&found, Proof::Undecided { reason } if reason.contains("where the original fits")),
        "{found:?}"
    );
}

fn assert_has_no_element(one: &Model, other: &Model) {
    let proof = prove(one, other, &[], &Default::default());
    assert!(
        matches!(&proof, Proof::Undecided { reason } if reason.contains("no element")),
        "{proof:?}"
    );
}

fn beside_empty(function: &str) -> Model {
    let mut model = empty("Tanh");
    model
        .graph_mut()
        .node
        .push(node(function, &["x"], &["z"], vec![]));
    model.graph_mut().output.push(undeclared("z"));
    model
}

fn empty_of_symbol(function: &str) -> Model {
    let mut model = empty(function);
    model.graph_mut().output = vec![declared("y", DataType::Float, &["batch", "left"])];
    model
}

fn empty(function: &str) -> Model {
    text::model(&format!(
        "input x batch 6
         indices i 2
         ints one 1 = 1
         ints zero 1 = 0
         ints most 1 = 1000
         m = Min(i, zero)
         p = Max(m, most)
         e = Gather(p, zero)
         s = Slice(x, e, most, one)
         y = {function}(s)
         output y"
    ))
}

fn windowed(function: &str) -> Model {
    text::model(&format!(
        "input x batch 6
         indices start 1
         ints six 1 = 6
         ints one 1 = 1
         s = Slice(x, start, six, one)
         y = {function}(s)
         output y"
    ))
}

/// Input values determine the start of a Slice, which must not be empty at each point.
#[test]
fn empty_slice_at_a_point_is_compared_at_another() {
    let (one, other) = (windowed("Tanh"), windowed("Sigmoid"));
    for seed in 0..20 {
        let options = ProveOptions {
            seed,
            ..Default::default()
        };
        assert!(is_proved(&prove(&one, &one, &[], &options)));
        assert!(
            matches!(prove(&one, &other, &[], &options), Proof::Disproved { .. }),
            "{seed}"
        );
    }
    // This Slice is always empty.
    assert_has_no_element(&empty("Tanh"), &empty("Sigmoid"));
    // The declared symbol of the extent does not show that the Slice is empty.
    assert_has_no_element(&empty_of_symbol("Tanh"), &empty_of_symbol("Sigmoid"));
    // A difference in another output is found.
    let proof = prove(
        &beside_empty("Tanh"),
        &beside_empty("Sigmoid"),
        &[],
        &Default::default(),
    );
    assert!(matches!(proof, Proof::Disproved { .. }), "{proof:?}");
}

fn with_two_inputs(steps: &str) -> Model {
    text::model(&format!(
        "input x batch columns
         input y batch other
         const g 5 = 1 2 3 4 5
         {steps}
         o = Add(a, c)
         p = Relu(y)
         output o p"
    ))
}

#[test]
fn unknown_extent_takes_the_extent_of_a_constant() {
    let (one, other) = (
        with_two_inputs("a = Mul(x, g)\n c = Relu(x)"),
        with_two_inputs("c = Relu(x)\n a = Mul(g, x)"),
    );
    let proof = prove(&one, &other, &[], &Default::default());
    assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
}

fn last_places(of: &str) -> Model {
    text::model(&format!(
        "input x batch length\nints from 1 = 100\nints to 1 = 1000000\nints axis 1 = 1\nr = {of}(x)\ny = Slice(r, from, to, axis)\noutput y"
    ))
}

/// A Slice that begins at place 100 is empty for a short length.
#[test]
fn output_empty_at_one_size_is_compared_at_another() {
    assert!(is_not_proved(&last_places("Relu"), &last_places("Neg")));
}

/// The tokens of one of two experts. A layer reads them, and the result is reshaped to the extents
/// of `extents`.
fn of_experts(extents: &str) -> Model {
    text::model(&format!(
        "input x batch 6
         input router batch
         const half = 0.5
         const s 6 = 2 -1 0.5 1 4 -2
         weight w 6 8
         ints zero 1 = 0
         ints heads 2 = 2 4
         n = Mul(x, s)
         is = Greater(router, half)
         places = NonZero(is)
         mine = Squeeze(places, zero)
         not = Not(is)
         others = NonZero(not)
         rest = Squeeze(others, zero)
         picked = Gather(n, mine)
         m = MatMul(picked, w)
         count = Shape({extents})
         target = Concat(count, heads) axis=0
         y = Reshape(m, target)
         output y"
    ))
}

#[test]
fn count_of_nonzero_is_a_symbolic_size() {
    let model = of_experts("mine");
    let fused = unfold::fuse(&model, &Default::default()).unwrap();
    // The scale is folded into the layer, and the Reshape gets the extents that the result already
    // has.
    let nodes = &fused.model.graph().node;
    let gone = ["Mul", "Shape", "Concat"];
    assert!(nodes.iter().all(|node| !gone.contains(&node.op_type())));
    let tensors = &fused.plan.tensors;
    assert!(is_proved(&proof(&model, &fused.model, tensors)));
    // The two experts have different numbers of tokens.
    assert!(!is_proved(&proof(
        &of_experts("rest"),
        &fused.model,
        tensors
    )));
    assert!(!is_proved(&proof(&model, &of_experts("rest"), tensors)));
}
