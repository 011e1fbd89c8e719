//! Operators without effect and equal operators: neutral constants, redundant activations and
//! consecutive Slices.

use unfold::onnx::{DataType, Model};
use unfold::refusal::Reason;

use crate::common::text::model;
use crate::common::{declared, fuse, operators, retype};
use crate::{proved, same};

/// The operators of the result. Asserts that the result computes the same and that a second run
/// changes nothing.
fn remaining_operators(text: &str) -> Vec<String> {
    let (before, after) = fused(text);
    same(&before, &after, 1e-6);
    let again = fuse(&after);
    assert!(!again.changed());
    operators(&after).into_iter().map(str::to_owned).collect()
}

fn fused(text: &str) -> (Model, Model) {
    let before = model(text);
    let after = fuse(&before).model;
    (before, after)
}

const CONSTANTS: &str = "
    input x batch 4
    weight w 4 4
    const zeros 4 = 0 0 0 0
    const ones 4 = 1 1 1 1
    const most 4 = 1 1 1 2
    const wide 1 1 4 = 0 0 0 0
    const one = 1";

#[test]
fn arithmetic_with_a_neutral_constant_is_removed() {
    for line in [
        "y = Add(m, zeros)",
        "y = Add(zeros, m)",
        "y = Sub(m, zeros)",
        "y = Mul(m, ones)",
        "y = Mul(one, m)",
        "y = Div(m, ones)",
        "y = Pow(m, one)",
    ] {
        let behind = format!("{CONSTANTS}\n m = MatMul(x, w)\n {line}\n z = Tanh(y)\n output z");
        assert_eq!(remaining_operators(&behind), ["MatMul", "Tanh"], "{line}");
        let as_output = format!("{CONSTANTS}\n m = MatMul(x, w)\n {line}\n output y");
        assert_eq!(remaining_operators(&as_output), ["MatMul"], "{line}");
    }
}

#[test]
fn cast_back_from_a_wider_type_is_removed() {
    // 11 is float64, and 10 is float16.
    for (there, back) in [(11, 1), (1, 1)] {
        let text = format!(
            "input x 4\n e = Exp(x)\n c = Cast(e) to={there}\n d = Cast(c) to={back}
             y = Tanh(d)\n output y"
        );
        assert_eq!(remaining_operators(&text), ["Exp", "Tanh"], "{there}");
    }
    // The wider value has another reader.
    let read = "input x 4\n e = Exp(x)\n c = Cast(e) to=11\n d = Cast(c) to=1
         y = Tanh(d)\n z = Sqrt(c)\n output y\n output z";
    assert_eq!(remaining_operators(read), ["Exp", "Cast", "Tanh", "Sqrt"]);
    // A Cast to a narrower type rounds.
    let narrow = "input x 4\n e = Exp(x)\n c = Cast(e) to=10\n d = Cast(c) to=1
         y = Tanh(d)\n output y";
    let (_, after) = fused(narrow);
    assert_eq!(operators(&after), ["Exp", "Cast", "Cast", "Tanh"]);
}

#[test]
fn constant_that_changes_a_value_or_the_shape_stays() {
    for (line, op) in [
        ("y = Add(m, wide)", "Add"),
        ("y = Sub(zeros, m)", "Sub"),
        ("y = Div(ones, m)", "Div"),
        ("y = Pow(m, most)", "Pow"),
    ] {
        let text = format!("{CONSTANTS}\n m = Exp(x)\n {line}\n z = Tanh(y)\n output z");
        assert!(
            remaining_operators(&text).contains(&op.to_owned()),
            "{line}"
        );
    }
    // The open axis of the value may have extent 1, which the constant would broadcast.
    let open = "
        input x batch channels
        const zeros 4 = 0 0 0 0
        m = Tanh(x)
        y = Add(m, zeros)
        z = Tanh(y)
        output z";
    assert_eq!(remaining_operators(open), ["Tanh", "Add", "Tanh"]);
}

#[test]
fn add_of_zero_stays_where_the_sign_of_zero_is_observed() {
    let text = |behind: &str| {
        format!(
            "input x batch 4
             weight w 4 4
             const zeros 4 = 0 0 0 0
             const half = 0.5
             const two = 2
             m = MatMul(x, w)
             y = Add(m, zeros)
             {behind}
             output z"
        )
    };
    for observing in ["z = Reciprocal(y)", "a = Tanh(y)\n z = Div(half, a)"] {
        assert!(
            remaining_operators(&text(observing)).contains(&"Add".to_owned()),
            "{observing}"
        );
    }
    for other in [
        "z = Div(y, two)",
        "a = Exp(y)\n z = Div(half, a)",
        "a = Pow(y, two)\n z = Reciprocal(a)",
    ] {
        assert!(
            !remaining_operators(&text(other)).contains(&"Add".to_owned()),
            "{other}"
        );
    }
}

#[test]
fn a_fold_keeps_a_sum_with_zeros_where_the_sign_of_a_zero_is_observed() {
    // 1 / (2 · floor(x + 0)) is ∞ at x = −0, and 1 / (2 · floor(x)) is −∞.
    let text = |behind: &str| {
        format!(
            "input x batch 4
             const zeros 4 = 0 0 0 0
             const rows 4 = 2 2 2 2
             y = Add(x, zeros)
             f = Floor(y)
             g = Mul(f, rows)
             {behind}
             output z"
        )
    };
    let (_, after) = fused(&text("z = Reciprocal(g)"));
    assert!(operators(&after).contains(&"Add"));
    let plan = plan_of(&text("z = Reciprocal(g)"));
    assert!(plan.contains(&Reason::ZeroSign), "{plan:?}");
    let (_, after) = fused(&text("z = Tanh(g)"));
    assert!(!operators(&after).contains(&"Add"));
    assert!(!plan_of(&text("z = Tanh(g)")).contains(&Reason::ZeroSign));
}

/// The reasons of all refusals of a plan.
fn plan_of(text: &str) -> Vec<Reason> {
    let plan = unfold::plan(&model(text), &Default::default()).unwrap();
    let outcomes = plan.sites.iter().flat_map(|site| site.outcomes());
    let refusals = outcomes.flat_map(|outcome| outcome.refusals());
    refusals
        .map(|(_, refusal)| refusal.reason.clone())
        .collect()
}

/// The operators left of activations on `x`, whose bounds are constants given by name.
fn activations(lines: &str) -> Vec<String> {
    activations_of_type(DataType::Float, lines)
}

/// The operators left of activations in one element type. Asserts that the result is proved.
fn activations_of_type(data_type: DataType, lines: &str) -> Vec<String> {
    let text = format!(
        "input x batch 4
         input bound
         const less = -1
         const none = 0
         const one = 1
         const two = 2
         const six = 6
         {lines}
         output y"
    );
    let mut before = model(&text);
    let constants = ["less", "none", "one", "two", "six"];
    retype(&mut before, &constants, data_type);
    before.graph_mut().input = vec![
        declared("x", data_type, &["batch", "4"]),
        declared("bound", data_type, &[]),
    ];
    let after = proved(&before);
    same(&before, &after, 0.0);
    operators(&after).into_iter().map(str::to_owned).collect()
}

#[test]
fn redundant_relu_clip_or_rounding_is_removed() {
    for (lines, operator) in [
        ("a = Relu(x)\n y = Relu(a)", "Relu"),
        ("a = Floor(x)\n y = Floor(a)", "Floor"),
        ("a = Round(x)\n y = Ceil(a)", "Round"),
        ("a = Relu(x)\n y = Clip(a, none, six)", "Clip"),
        ("a = Relu(x)\n y = Clip(a, one, six)", "Clip"),
        ("a = Clip(x, none, six)\n y = Relu(a)", "Clip"),
        ("a = Clip(x, one, six)\n y = Relu(a)", "Clip"),
        ("a = Clip(x, less, six)\n y = Clip(a, none, two)", "Clip"),
        ("a = Clip(x, none, two)\n y = Clip(a, less, six)", "Clip"),
    ] {
        for data_type in [DataType::Float, DataType::Float16, DataType::Double] {
            assert_eq!(activations_of_type(data_type, lines), [operator], "{lines}");
        }
    }
    let three = "a = Relu(x)\n b = Relu(a)\n c = Relu(b)\n y = Tanh(c)";
    assert_eq!(activations(three), ["Relu", "Tanh"]);
}

#[test]
fn activations_that_each_have_an_effect_stay() {
    for (lines, operators) in [
        ("a = Relu(x)\n y = Clip(a, less, six)", ["Relu", "Clip"]),
        ("a = Clip(x, less, six)\n y = Relu(a)", ["Clip", "Relu"]),
        (
            "a = Clip(x, less, two)\n y = Clip(a, one, six)",
            ["Clip", "Clip"],
        ),
        ("a = Relu(x)\n y = Clip(a, none, bound)", ["Relu", "Clip"]),
        ("a = Clip(x, bound, six)\n y = Relu(a)", ["Clip", "Relu"]),
        ("a = Relu(x)\n y = Floor(a)", ["Relu", "Floor"]),
        ("a = Floor(x)\n y = Relu(a)", ["Floor", "Relu"]),
        // If the lower bound exceeds the upper one, a Clip returns the upper bound.
        ("a = Relu(x)\n y = Clip(a, two, one)", ["Relu", "Clip"]),
    ] {
        assert_eq!(activations(lines), operators, "{lines}");
    }
}

#[test]
fn redundant_activation_with_another_reader_stays() {
    for (lines, operators) in [
        // Both readers clip to a narrower range.
        (
            "a = Relu(x)\n b = Clip(a, none, six)\n c = Clip(a, one, two)\n y = Add(b, c)",
            &["Clip", "Clip", "Add"][..],
        ),
        (
            "a = Relu(x)\n b = Clip(a, none, six)\n c = Tanh(a)\n y = Add(b, c)",
            &["Relu", "Clip", "Tanh", "Add"],
        ),
        (
            "a = Relu(x)\n b = Clip(a, none, six)\n y = Tanh(b)\n output a",
            &["Relu", "Clip", "Tanh"],
        ),
        (
            "a = Clip(x, none, six)\n b = Relu(a)\n y = Tanh(b)\n output a b",
            &["Clip", "Relu", "Tanh"],
        ),
    ] {
        assert_eq!(activations(lines), operators, "{lines}");
    }
}

#[test]
fn clip_stays_where_the_sign_of_zero_is_observed() {
    let lines = "a = Relu(x)\n b = Clip(a, none, six)\n y = Reciprocal(b)";
    assert_eq!(activations(lines), ["Relu", "Clip", "Reciprocal"]);
}

#[test]
fn slices_along_one_axis_merge() {
    let text = |lines: &str| {
        format!(
            "input x batch 9
             ints one 1 = 1
             ints two 1 = 2
             ints four 1 = 4
             ints eight 1 = 8
             ints last 1 = -1
             {lines}
             y = Tanh(s)
             output y"
        )
    };
    // `x[:, 2:8][:, 1:4]`, and a first Slice with fewer places than the second asks for.
    for lines in [
        "r = Slice(x, two, eight, one)\n s = Slice(r, one, four, one)",
        "r = Slice(x, two, four, one)\n s = Slice(r, one, eight, one)",
    ] {
        assert_eq!(
            remaining_operators(&text(lines)),
            ["Slice", "Tanh"],
            "{lines}"
        );
    }
    for lines in [
        "r = Slice(x, two, last, one)\n s = Slice(r, one, four, one)",
        "r = Slice(x, one, eight, one, two)\n s = Slice(r, one, four, one)",
    ] {
        assert_eq!(
            remaining_operators(&text(lines)),
            ["Slice", "Slice", "Tanh"],
            "{lines}"
        );
    }
}

#[test]
fn operator_equal_to_one_of_an_output_is_merged_in_any_order() {
    let text = |first: &str, second: &str| {
        format!(
            "input x batch 4
             scale k 4
             {first} = Relu(x)
             {second} = Relu(x)
             b = Mul(a, k)
             z = Tanh(b)
             output y z"
        )
    };
    for (first, second) in [("a", "y"), ("y", "a")] {
        assert_eq!(
            remaining_operators(&text(first, second)),
            ["Relu", "Mul", "Tanh"]
        );
    }
    // Graph outputs keep their names, so each needs its own operator.
    let both =
        "input x batch 4\n a = Relu(x)\n y = Relu(x)\n z = Relu(x)\n b = Exp(a)\n output y z b";
    assert_eq!(remaining_operators(both), ["Relu", "Relu", "Exp"]);
}

#[test]
fn equal_ml_domain_operators_merge() {
    let mut scaled = model(
        "input x batch 4
         a = ai.onnx.ml.Binarizer(x) threshold=0.5
         b = ai.onnx.ml.Binarizer(x) threshold=0.5
         c = ai.onnx.ml.Binarizer(x) threshold=0.25
         y = Concat(a, b, c) axis=1
         output y",
    );
    let version = scaled.proto.opset_import[0].clone();
    if !scaled
        .proto
        .opset_import
        .iter()
        .any(|set| set.domain() == "ai.onnx.ml")
    {
        let set = unfold::onnx::proto::OperatorSetIdProto {
            domain: Some("ai.onnx.ml".into()),
            version: Some(3),
        };
        scaled.proto.opset_import.push(set);
    }
    assert_eq!(scaled.proto.opset_import[0], version);
    let after = fuse(&scaled).model;
    assert_eq!(operators(&after), ["Binarizer", "Binarizer", "Concat"]);
    assert_eq!(after.graph().node[2].input, ["a", "a", "c"]);
}

#[test]
fn optional_get_element_of_an_optional_is_removed() {
    let text = |element: &str| {
        format!(
            "opset 18\n input x batch 4\n t = Tanh(x)\n o = Optional(t)\n e = {element}(o)\n y = Exp(e)\n output y"
        )
    };
    let after = fuse(&model(&text("OptionalGetElement"))).model;
    assert_eq!(operators(&after), ["Tanh", "Exp"]);
    assert_eq!(after.graph().node[1].input, ["t"]);
    let other = fuse(&model(&text("Identity"))).model;
    assert!(operators(&other).contains(&"Optional"));
}
