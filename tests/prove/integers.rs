//! Tests known and unknown integers and booleans in the prover.

use unfold::onnx::proto::TensorProto;
use unfold::onnx::{DataType, Model};
use unfold::prove::{Proof, prove};

use super::common::text;
use super::{is_not_proved, is_proved, proof};

fn masked_by_numbers(mask: &str) -> Model {
    text::model(&format!(
        "input x batch 4 9
         indices end 1
         ints zero 1 = 0
         ints two 1 = 2
         const m 4 1 = 1 0 2 0
         const none 1 = 0
         p = Slice(x, zero, end, two)
         s = Shape(p)
         {mask}
         y = Where(c, p, none)
         output y"
    ))
}

#[test]
fn mask_known_in_one_graph_only_is_undecided() {
    let behind = masked_by_numbers("e = Expand(m, s)\n c = Cast(e) to=9");
    let before = masked_by_numbers("e = Cast(m) to=9\n c = Expand(e, s)");
    assert!(matches!(
        proof(&behind, &before, &[]),
        Proof::Undecided { .. }
    ));
    assert!(is_proved(&proof(&behind, &behind, &[])));
}

#[test]
fn gather_by_argmax_is_proved_for_unknown_indices() {
    let model = text::model(
        "input x 2 4 3
         indices ids 5
         const s 3 = 2 3 5
         weight w 3 2
         n = Mul(x, s)
         i = ArgMax(ids) axis=0 keepdims=1
         r = Gather(n, i) axis=1
         y = MatMul(r, w)
         output y",
    );
    let fused = unfold::fuse(&model, &Default::default()).unwrap();
    assert!(fused.plan.sites[0].is_folded());
    assert!(is_proved(&proof(&model, &fused.model, &fused.plan.tensors)));
    let mut lost = fused.model.clone();
    lost.graph_mut()
        .node
        .iter_mut()
        .for_each(|node| node.attribute.retain(|a| a.name() != "axis"));
    assert!(!is_proved(&proof(&model, &lost, &fused.plan.tensors)));
}

fn quantized(data_type: DataType) -> Model {
    let mut model = text::model(
        "input x 2 4\nconst s = 0.5\nints z = 0\nq = QuantizeLinear(x, s, z)\ny = DequantizeLinear(q, s, z)\noutput y",
    );
    let zero = model
        .graph_mut()
        .initializer
        .iter_mut()
        .find(|tensor| tensor.name() == "z")
        .unwrap();
    *zero = TensorProto {
        name: Some("z".into()),
        data_type: Some(data_type.code()),
        raw_data: Some(vec![0].into()),
        ..Default::default()
    };
    model
}

/// A model with the nodes `text`, in which `q` holds four codes with the scale `s`.
fn with_codes(text: &str) -> Model {
    let mut model = text::model(&format!(
        "input x 3 2\nconst w 2 4 = 1 2 3 4 5 6 7 8\nconst s = 0.0107\nconst f = 0.3
        ints q 4 = 64 9 -47 55\nd = DequantizeLinear(q, s)\n{text}"
    ));
    let codes = model.graph_mut().initializer.iter_mut();
    let codes = codes.into_iter().find(|tensor| tensor.name() == "q");
    *codes.unwrap() = TensorProto {
        name: Some("q".into()),
        dims: vec![4],
        data_type: Some(DataType::Int8.code()),
        raw_data: Some([64_i8, 9, -47, 55].map(|code| code as u8).to_vec().into()),
        ..Default::default()
    };
    model
}

#[test]
fn scale_of_a_vector_of_codes_is_folded_and_proved() {
    let model = with_codes("a = MatMul(x, w)\nc = Add(a, d)\ny = Mul(c, f)\noutput y");
    let fused = unfold::fuse(&model, &Default::default()).unwrap();
    assert_eq!(fused.model.graph().node.len(), 3);
    let tensors = &fused.plan.tensors;
    assert!(is_proved(&proof(&model, &fused.model, tensors)));
    // Without the formulas, the stored scale is a number of its own.
    assert!(!is_proved(&proof(&model, &fused.model, &tensors[..1])));
}

#[test]
fn bias_is_not_merged_with_codes_whose_scale_was_folded() {
    let model = with_codes(
        "const g 2 = 0.5 -2\nconst b 2 = 0.25 1.5\nconst m 2 = 1 -1\nconst v 2 = 1.5 0.75
        n = BatchNormalization(x, g, b, m, v)
        a = MatMul(n, w)\nc = Add(a, d)\ny = Mul(c, f)\noutput y",
    );
    let fused = unfold::fuse(&model, &Default::default()).unwrap();
    assert!(fused.plan.sites[0].is_folded());
    let tensors = &fused.plan.tensors;
    assert!(is_proved(&proof(&model, &fused.model, tensors)));
}

#[test]
fn quantization_to_another_integer_type_is_not_proved() {
    assert!(is_not_proved(
        &quantized(DataType::Int8),
        &quantized(DataType::Uint8)
    ));
}

fn softmax_of_masked(by: &str) -> Model {
    text::model(&format!(
        "opset 18
         input x b 8
         indices mask b 8
         const zero = 0
         const least = -1000
         f = Cast(mask) to=1
         none = Equal(f, zero)
         w = Where(none, least, x)
         y = Softmax({by}) axis=-1
         output y"
    ))
}

#[test]
fn dropped_integer_mask_is_not_proved() {
    assert!(is_proved(&proof(
        &softmax_of_masked("w"),
        &softmax_of_masked("w"),
        &[]
    )));
    assert!(is_not_proved(
        &softmax_of_masked("w"),
        &softmax_of_masked("x")
    ));
}

fn with_tokens(lines: &str) -> Model {
    text::model(&format!(
        "opset 18
         input x b 32
         indices i b 32
         ints none = 0
         ints most = 511
         {lines}
         output y"
    ))
}

/// An input may hold negative tokens, such as those that a loss ignores, and tokens of a large
/// vocabulary.
#[test]
fn clamp_of_integer_inputs_is_not_proved_neutral() {
    let plain = with_tokens("f = Cast(i) to=1\ny = Add(x, f)");
    assert!(is_proved(&proof(&plain, &plain, &[])));
    for other in ["Max(i, none)", "Min(i, most)"] {
        assert!(is_not_proved(
            &plain,
            &with_tokens(&format!("j = {other}\nf = Cast(j) to=1\ny = Add(x, f)"))
        ));
    }
}

fn clipped(top: &str) -> Model {
    text::model(&format!(
        "input x batch 1
         ints zero = 0
         ints one = 1
         ints low = 1
         ints top = {top}
         sh = Shape(x) start=0 end=1
         n = Squeeze(sh)
         i = Range(zero, n, one)
         c = Clip(i, low, top)
         f = Cast(c) to=1
         y = Mul(x, f)
         output y"
    ))
}

#[test]
fn integer_clip_equals_max_and_min() {
    let by_hand = text::model(
        "input x batch 1
         ints zero = 0
         ints one = 1
         ints top = 3
         sh = Shape(x) start=0 end=1
         n = Squeeze(sh)
         i = Range(zero, n, one)
         a = Max(i, one)
         c = Min(a, top)
         f = Cast(c) to=1
         y = Mul(x, f)
         output y",
    );
    assert!(is_proved(&prove(
        &clipped("3"),
        &by_hand,
        &[],
        &Default::default()
    )));
    assert!(matches!(
        prove(&clipped("0"), &by_hand, &[], &Default::default()),
        Proof::Disproved { .. }
    ));
}

/// The end of a Slice as the dynamo exporter writes it. The prover must know its value in both
/// graphs.
#[test]
fn cast_of_the_largest_integer_to_its_own_type_is_exact() {
    let mask = "ints none 1 = 0\n ints one 1 = 1\n ints end 1 = 9223372036854775807\n const zero = 0\n const low = -100
                const table 3 3 = 0 1 0 1 0 0 0 1 1
                f = Cast(end) to=7\n t = Slice(table, none, f, one)\n e = Equal(t, zero)\n m = Where(e, zero, low)";
    let original = text::model(&format!("input x 3 3\n {mask}\n y = Add(x, m)\n output y"));
    let fused = unfold::fuse(&original, &Default::default()).unwrap();
    assert_eq!(fused.model.graph().node.len(), 1);
    assert!(is_proved(&proof(
        &original,
        &fused.model,
        &fused.plan.tensors
    )));
}

fn stored(numbers: &str) -> Model {
    text::model(&format!(
        "input x 3 2\n{numbers}\ny = Identity(n)\noutput y"
    ))
}

#[test]
fn integers_are_known_through_float_casts_and_empty_values() {
    let signs = text::model(
        "input x 3 2\ns = Shape(x)\nt = Sign(s)\nf = Cast(t) to=1\ny = Cast(f) to=7\noutput y",
    );
    assert!(is_proved(&proof(&stored("ints n 2 = 1 1"), &signs, &[])));
    assert!(!is_proved(&proof(&stored("ints n 2 = 1 2"), &signs, &[])));
    let cut = text::model(
        "input x 1 4\nindices n 2\nints one 1 = 1\nints two 1 = 2\nm = ReduceMin(n) keepdims=1\nc = Slice(m, one, two)\ny = Expand(x, c)\noutput y",
    );
    let whole = text::model("input x 1 4\nindices n 2\ny = Identity(x)\noutput y");
    assert!(is_proved(&proof(&cut, &whole, &[])));
}

fn added_to_floats(op: &str, initializers: Vec<TensorProto>) -> Model {
    let mut model = text::model(&format!(
        "input x 3\nw = {op}\nf = Cast(w) to=1\ny = Add(x, f)\noutput y"
    ));
    model.graph_mut().initializer = initializers;
    model
}

fn bytes(name: &str, values: &[u8]) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        dims: vec![values.len() as i64],
        data_type: Some(DataType::Uint8.code()),
        raw_data: Some(values.to_vec().into()),
        ..Default::default()
    }
}

#[test]
fn integer_arithmetic_wraps_at_the_ends_of_its_type() {
    let sum = added_to_floats(
        "Add(a, b)",
        vec![bytes("a", &[200, 1, 255]), bytes("b", &[100, 2, 1])],
    );
    assert!(is_proved(&proof(
        &sum,
        &added_to_floats("Identity(s)", vec![bytes("s", &[44, 3, 0])]),
        &[]
    )));
    assert!(is_not_proved(
        &sum,
        &added_to_floats("Identity(s)", vec![bytes("s", &[255, 3, 255])])
    ));
    let difference = added_to_floats(
        "Sub(a, b)",
        vec![bytes("a", &[1, 5, 0]), bytes("b", &[2, 2, 1])],
    );
    assert!(is_proved(&proof(
        &difference,
        &added_to_floats("Identity(s)", vec![bytes("s", &[255, 3, 255])]),
        &[]
    )));
}

fn picked_beside_others(first: i64) -> Model {
    text::model(&format!(
        "input x 5 3\nints first 1 = {first}\nu = NonZero(x)\nints row 1 = 0\nr = Gather(u, row) axis=0\nints flat 1 = -1\ni = Reshape(r, flat)\nk = Concat(first, i) axis=0\ny = Gather(x, k) axis=0\noutput y"
    ))
}

#[test]
fn negative_index_beside_unknown_ones_is_not_mistaken() {
    for other in 0..4 {
        assert!(
            !is_proved(&proof(
                &picked_beside_others(-1),
                &picked_beside_others(other),
                &[]
            )),
            "{other}"
        );
    }
    assert!(is_not_proved(
        &picked_beside_others(1),
        &picked_beside_others(2)
    ));
}
