//! Tests the verdicts on two models from other tools: `prove A B` without a certificate.

use unfold::judge::{Judgement, judge};
use unfold::onnx::Model;
use unfold::prove::ProveOptions;

use super::common::text;
use super::false_claims::cut_to;

const CONV: &str = "input x b 3 6 6
     weight w 4 3 3 3
     scale g 4
     shift bt 4
     shift mu 4
     divisor va 4";

/// A Conv followed by a BatchNormalization.
fn normalized() -> Model {
    text::model(&format!(
        "{CONV}
         c = Conv(x, w) pads=[1,1,1,1]
         y = BatchNormalization(c, g, bt, mu, va)
         output y"
    ))
}

/// The Conv with the normalization folded into its weights, in float32 as tools do. The mean is
/// multiplied by `sign`.
fn folded(sign: f32) -> Model {
    folded_by(|gamma, variance| gamma / (variance + 1e-5).sqrt(), sign)
}

/// Like [`folded`], with a formula for the factor of a channel.
fn folded_by(factor: fn(f32, f32) -> f32, sign: f32) -> Model {
    let original = normalized();
    let read = |name: &str| -> Vec<f32> {
        let tensors = &original.graph().initializer;
        let tensor = tensors.iter().find(|tensor| tensor.name() == name).unwrap();
        let numbers = unfold::onnx::tensor::read_f64(tensor, original.externals()).unwrap();
        numbers.iter().map(|&number| number as f32).collect()
    };
    let [w, g, bt, mu, va] = ["w", "g", "bt", "mu", "va"].map(read);
    let factors: Vec<f32> = g.iter().zip(&va).map(|(&g, &va)| factor(g, va)).collect();
    let weight: Vec<String> = w
        .iter()
        .enumerate()
        .map(|(at, w)| (w * factors[at / 27]).to_string())
        .collect();
    let bias = (0..4).map(|at| (bt[at] - sign * mu[at] * factors[at]).to_string());
    text::model(&format!(
        "input x b 3 6 6
         const w2 4 3 3 3 = {}
         const b2 4 = {}
         y = Conv(x, w2, b2) pads=[1,1,1,1]
         output y",
        weight.join(" "),
        bias.collect::<Vec<_>>().join(" ")
    ))
}

fn judged(first: &Model, second: &Model) -> Judgement {
    judge(first, second, &ProveOptions::default())
}

fn verdict(first: &str, second: &str) -> Judgement {
    judged(&text::model(first), &text::model(second))
}

#[track_caller]
fn assert_same(first: &str, second: &str) {
    let found = verdict(first, second);
    assert!(matches!(found, Judgement::Same { .. }), "{found:?}");
}

/// `bn-conv-right`.
#[test]
fn batch_normalization_in_a_weight_is_a_rounding_of_two_tensors() {
    let found = judged(&normalized(), &folded(1.0));
    let Judgement::Rounded { tensors, .. } = &found else {
        panic!("{found:?}");
    };
    let names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["w2", "b2"]);
    assert!(
        tensors.iter().all(|tensor| tensor.units <= tensor.allowed),
        "{tensors:?}"
    );
}

/// `bn-conv-wrong`.
#[test]
fn batch_normalization_with_a_wrong_sign_has_a_witness() {
    let found = judged(&normalized(), &folded(-1.0));
    let Judgement::Different(witness) = found else {
        panic!("{found:?}");
    };
    assert_eq!(witness.output, "y");
    assert_eq!(witness.first_value.as_deref(), Some("y"));
    assert!(
        witness.relative > 1e-2 && witness.rounding < 1e-5,
        "{witness:?}"
    );
}

/// onnxruntime 12498: the bias of a Conv goes into the constant of the Add behind it, which differs
/// from place to place.
#[test]
fn bias_in_the_constant_of_an_add_is_a_rounding() {
    let original = text::model(&format!(
        "{CONV}
         weight d 1 4 6 6
         c = Conv(x, w, bt) pads=[1,1,1,1]
         y = Add(c, d)
         output y"
    ));
    let original = with_changed(&original, "bt", |bias| {
        bias.iter_mut().for_each(|number| *number /= 3.0);
    });
    let moved = text::model(&format!(
        "{CONV}
         weight d 1 4 6 6
         c = Conv(x, w) pads=[1,1,1,1]
         y = Add(c, d)
         output y"
    ));
    let bias = &original.graph().initializer;
    let bias = bias.iter().find(|tensor| tensor.name() == "bt").unwrap();
    let bias = unfold::onnx::tensor::read_f64(bias, original.externals()).unwrap();
    let with_bias = |sign: f64| {
        with_changed(&moved, "d", |numbers| {
            for (at, number) in numbers.iter_mut().enumerate() {
                *number += sign * bias[at / 36];
            }
        })
    };
    let found = judged(&original, &with_bias(1.0));
    let Judgement::Rounded { tensors, .. } = &found else {
        panic!("{found:?}");
    };
    assert_eq!((tensors.len(), tensors[0].name.as_str()), (1, "d"));
    assert!(tensors[0].units <= 1.0, "{tensors:?}");
    let found = judged(&original, &with_bias(-1.0));
    assert!(matches!(found, Judgement::Different(_)), "{found:?}");
}

/// These operators mix the channels and keep the tokens independent. With `axis=1` they mix the
/// tokens.
#[test]
fn selection_of_tokens_passes_operators_that_mix_channels() {
    let declared = "input x 2 5 4\n weight w 4 6\n ints few 2 = 3 1";
    let verdict_on = |line: &str| {
        let whole = format!(
            "{declared}\n m = MatMul(x, w)\n {}\n y = Gather(h, few) axis=1\n output y",
            line.replace("OUT", "h")
        );
        let narrow = format!(
            "{declared}\n s = Gather(x, few) axis=1\n m = MatMul(s, w)\n {}\n output y",
            line.replace("OUT", "y")
        );
        verdict(&whole, &narrow)
    };
    for (operator, of_tokens) in [
        ("Hardmax(m) axis=2", "Hardmax(m) axis=1"),
        ("LpNormalization(m) axis=2", "LpNormalization(m) axis=1"),
        ("ReduceL1(m) axes=[2]", "ReduceL1(m) axes=[1]"),
        ("ReduceProd(m) axes=[2]", "ReduceProd(m) axes=[1,2]"),
        ("ReduceLogSum(m) axes=[2]", "ReduceLogSum(m) axes=[1]"),
        (
            "ReduceLogSumExp(m) axes=[-1]",
            "ReduceLogSumExp(m) axes=[1]",
        ),
        (
            "MeanVarianceNormalization(m) axes=[0,2]",
            "MeanVarianceNormalization(m) axes=[1]",
        ),
    ] {
        let found = verdict_on(&format!("OUT = {operator}"));
        assert!(
            matches!(found, Judgement::Same { .. }),
            "{operator} {found:?}"
        );
        let found = verdict_on(&format!("OUT = {of_tokens}"));
        assert!(!matches!(found, Judgement::Same { .. }), "{of_tokens}");
    }
}

/// The zero bias of a Conv depends on the type of its input alone.
#[test]
fn bias_cast_like_the_input_is_a_constant() {
    let mut original = normalized();
    let conv = &mut original.graph_mut().node[0];
    conv.input.push("zero".to_owned());
    let zeros =
        text::model("ints zeros 4 = 0 0 0 0\n input x 4\n zero = CastLike(zeros, x)\n output zero");
    let graph = original.graph_mut();
    graph.initializer.extend(zeros.graph().initializer.clone());
    graph.node.insert(0, zeros.graph().node[0].clone());
    let found = judged(&original, &folded(1.0));
    assert!(matches!(found, Judgement::Rounded { .. }), "{found:?}");
}

/// A layer in float16 between Casts. Its weight is that of the other model, rounded.
#[test]
fn weight_rounded_to_float16_is_a_rounding_beside_casts() {
    let layer = text::model("input x b 4\n weight w 4 3\n y = MatMul(x, w)\n output y");
    let mut thirds = with_changed(&layer, "w", |numbers| {
        numbers.iter_mut().for_each(|number| *number /= 3.0);
    });
    let mut half = text::model(
        "input x b 4\n weight w 4 3\n h = Cast(x) to=10\n m = MatMul(h, w)\n y = Cast(m) to=1\n output y",
    );
    let numbers = |model: &Model| {
        let tensor = &model.graph().initializer[0];
        unfold::onnx::tensor::read_f64(tensor, model.externals()).unwrap()
    };
    let float16 = unfold::onnx::DataType::Float16;
    let weight = unfold::onnx::tensor::make("w", float16, &numbers(&thirds).view());
    half.graph_mut().initializer[0] = weight.unwrap();
    let found = judged(&thirds, &half);
    let Judgement::Casts { casts, tensors, .. } = &found else {
        panic!("{found:?}");
    };
    assert_eq!((casts.len(), casts[0].name.as_str()), (1, "h"));
    assert_eq!(tensors[0].formula, "float16(w)");
    // The layer without Casts, whose input and output are in float16.
    let mut all_half = text::model("input x b 4\n weight w 4 3\n y = MatMul(x, w)\n output y");
    let weight = half.graph().initializer[0].clone();
    all_half.graph_mut().initializer[0] = weight;
    declare_ends(&mut all_half, float16);
    declare_ends(&mut thirds, unfold::onnx::DataType::Float);
    let found = judged(&thirds, &all_half);
    let Judgement::Casts { casts, .. } = &found else {
        panic!("{found:?}");
    };
    assert_eq!((casts.len(), casts[0].name.as_str()), (1, "x/cast"));
    // Another weight is not explained by the rounding.
    thirds = with_changed(&thirds, "w", |numbers| numbers[5] *= 1.002);
    let found = judged(&thirds, &half);
    assert!(!matches!(found, Judgement::Casts { .. }), "{found:?}");
}

/// Rounds a number to float16.
fn half(number: f64) -> f64 {
    half::f16::from_f64(number).to_f64()
}

/// A scale is folded into a layer in float32, and in float16 from rounded operands.
#[test]
fn fold_in_float16_is_a_rounding_of_the_fold_in_float32() {
    let layer = text::model("input x b 32\n weight w 32 16\n y = MatMul(x, w)\n output y");
    let scale = |at: usize| (0.7 + 0.13 * (at % 16) as f64).sqrt();
    let numbers = unfold::onnx::tensor::read_f64(&layer.graph().initializer[0], layer.externals());
    let numbers: Vec<f64> = numbers.unwrap().iter().copied().collect();
    let mut single = with_changed(&layer, "w", |weight| {
        for (at, (folded, w)) in weight.iter_mut().zip(&numbers).enumerate() {
            *folded = w * scale(at);
        }
    });
    declare_ends(&mut single, unfold::onnx::DataType::Float);
    let folded_in_half = |edited: f64| {
        let folded = numbers.iter().enumerate().map(|(at, &w)| {
            let factor = if at == 5 { edited } else { 1.0 };
            half(half(w) * half(scale(at))) * factor
        });
        let folded = ndarray::Array2::from_shape_vec((32, 16), folded.collect()).unwrap();
        let mut model = layer.clone();
        let float16 = unfold::onnx::DataType::Float16;
        let weight = unfold::onnx::tensor::make("w", float16, &folded.into_dyn().view());
        model.graph_mut().initializer[0] = weight.unwrap();
        declare_ends(&mut model, float16);
        model
    };
    let found = judged(&single, &folded_in_half(1.0));
    let Judgement::Casts { tensors, .. } = &found else {
        panic!("{found:?}");
    };
    assert_eq!(tensors[0].formula, "float16(w)");
    // The largest deviation exceeds one rounding. The operations round 9.5 times, and the formula
    // once more.
    assert!(
        tensors[0].units > 0.5 && tensors[0].units < 3.0,
        "{found:?}"
    );
    assert!(tensors[0].allowed < 11.0, "{found:?}");
    // One element that deviates by 12 units is not explained.
    let found = judged(&single, &folded_in_half(1.0 + 12.0 / 2048.0));
    assert!(!matches!(found, Judgement::Casts { .. }), "{found:?}");
}

/// Declares the element type of all inputs and outputs.
fn declare_ends(model: &mut Model, data_type: unfold::onnx::DataType) {
    let graph = model.graph_mut();
    for end in graph.input.iter_mut().chain(&mut graph.output) {
        let declared = end.r#type.get_or_insert_default();
        let tensor = declared.tensor_type.get_or_insert_default();
        tensor.elem_type = Some(data_type.code());
    }
}

/// The model with other numbers in a stored tensor.
fn with_changed(model: &Model, tensor: &str, change: impl Fn(&mut [f64])) -> Model {
    let mut changed = model.clone();
    let externals = changed.externals().clone();
    let tensors = &mut changed.graph_mut().initializer;
    let stored = tensors.iter_mut().find(|stored| stored.name() == tensor);
    let stored = stored.unwrap();
    let mut numbers = unfold::onnx::tensor::read_f64(stored, &externals).unwrap();
    change(numbers.as_slice_mut().unwrap());
    let float = unfold::onnx::DataType::Float;
    *stored = unfold::onnx::tensor::make(tensor, float, &numbers.view()).unwrap();
    changed
}

/// A change of any single element of a folded tensor is detected, down to one part in 10,000.
#[test]
fn changed_number_of_a_folded_tensor_is_never_accepted() {
    for (tensor, at) in [("w2", 0), ("w2", 53), ("w2", 107), ("b2", 0), ("b2", 3)] {
        for part in [1e-2, 1e-4] {
            let changed = with_changed(&folded(1.0), tensor, |numbers| numbers[at] *= 1.0 + part);
            let found = judged(&normalized(), &changed);
            let is_accepted = matches!(found, Judgement::Same { .. } | Judgement::Rounded { .. });
            assert!(!is_accepted, "{tensor} {at} {part}: {found:?}");
        }
    }
}

/// The model with other names for the folded tensors.
fn renamed(mut model: Model) -> Model {
    let graph = model.graph_mut();
    for (name, other) in [("w2", "v2"), ("b2", "c2")] {
        let tensors = graph.initializer.iter_mut();
        for tensor in tensors.filter(|tensor| tensor.name() == name) {
            tensor.name = Some(other.into());
        }
        let read = graph.node.iter_mut().flat_map(|node| &mut node.input);
        read.filter(|input| *input == name)
            .for_each(|input| *input = other.into());
    }
    model
}

/// Two tools that fold with operations in different orders round differently, and neither file has
/// the operands.
#[test]
fn two_folds_of_one_normalization_are_roundings_of_each_other() {
    let other = folded_by(
        |gamma, variance| gamma * (1.0 / (variance + 1e-5)).sqrt(),
        1.0,
    );
    // A tensor with the same name in both files is a copy, in which no element may differ.
    let found = judged(&folded(1.0), &other);
    assert!(matches!(found, Judgement::Undecided { .. }), "{found:?}");
    let found = judged(&folded(1.0), &renamed(other));
    let Judgement::Rounded { tensors, .. } = &found else {
        panic!("{found:?}");
    };
    assert_eq!(tensors[0].formula, "w2");
    assert!(
        tensors[0].units > 0.0 && tensors[0].allowed <= 7.0,
        "{tensors:?}"
    );
    let wrong = folded_by(|gamma, variance| gamma / (variance + 2e-5).sqrt(), 1.0);
    let found = judged(&folded(1.0), &renamed(wrong));
    let is_accepted = matches!(found, Judgement::Same { .. } | Judgement::Rounded { .. });
    assert!(!is_accepted, "{found:?}");
}

/// A bias with one other element is no tensor of the first model, even if that model stores the
/// element in another tensor.
#[test]
fn rounded_element_that_is_stored_elsewhere_needs_a_formula() {
    let other = folded_by(
        |gamma, variance| gamma * (1.0 / (variance + 1e-5)).sqrt(),
        1.0,
    );
    let mut first = folded(1.0);
    let bias = unfold::onnx::tensor::read_f64(&first.graph().initializer[1], first.externals());
    let bias = bias.unwrap();
    let next = f64::from(f32::from_bits((bias[0] as f32).to_bits() + 1));
    let mut second = with_changed(&renamed(other), "c2", |numbers| {
        numbers.copy_from_slice(bias.as_slice().unwrap());
        numbers[0] = next;
    });
    let single = ndarray::arr1(&[next]).into_dyn();
    let float = unfold::onnx::DataType::Float;
    let elsewhere = unfold::onnx::tensor::make("n", float, &single.view()).unwrap();
    for model in [&mut first, &mut second] {
        model.graph_mut().initializer.push(elsewhere.clone());
    }
    let found = judged(&first, &second);
    let Judgement::Rounded { tensors, .. } = &found else {
        panic!("{found:?}");
    };
    assert!(
        tensors.iter().any(|tensor| tensor.formula == "b2"),
        "{tensors:?}"
    );
}

#[test]
fn changed_bias_beside_an_equal_weight_is_never_accepted() {
    // The change is 10 roundings of the largest element, and more than 7 of the changed one.
    let changed = with_changed(&folded(1.0), "b2", |numbers| {
        let largest = numbers
            .iter()
            .fold(0.0_f64, |most, number| most.max(number.abs()));
        let mut elements = numbers.iter_mut();
        let small = elements.find(|number| number.abs() < largest / 2.0);
        *small.unwrap() += 10.0 * largest / f64::from(1 << 24);
    });
    for changed in [changed.clone(), renamed(changed)] {
        let found = judged(&folded(1.0), &changed);
        assert!(matches!(found, Judgement::Undecided { .. }), "{found:?}");
    }
}

#[test]
fn number_that_only_the_second_model_computes_is_a_rounding() {
    let computed = "input x b 4\n const n = 3\n r = Sqrt(n)\n y = Div(x, r)\n output y";
    let found = verdict(
        "input x b 4\n const c = 1.7320508\n y = Div(x, c)\n output y",
        computed,
    );
    let Judgement::Rounded { tensors, .. } = &found else {
        panic!("{found:?}");
    };
    assert_eq!(
        (tensors[0].name.as_str(), tensors[0].formula.as_str()),
        ("r", "c")
    );
    let found = verdict(
        "input x b 4\n const c = 1.7321\n y = Div(x, c)\n output y",
        computed,
    );
    let is_accepted = matches!(found, Judgement::Same { .. } | Judgement::Rounded { .. });
    assert!(!is_accepted, "{found:?}");
}

#[test]
fn normalization_that_only_the_second_model_has_is_a_rounding_of_the_first_one() {
    let found = judged(&folded(1.0), &normalized());
    let Judgement::Rounded { tensors, .. } = &found else {
        panic!("{found:?}");
    };
    assert!(
        tensors.iter().all(|tensor| tensor.is_of_first),
        "{tensors:?}"
    );
}

/// `zero-bias`.
/// A table with 40 rows, of which the six drawn indices select at most six. `changed` is an element of
/// one row, and `nodes` select rows by `ids`.
fn lookup(changed: f64, nodes: &str) -> Model {
    let mut rows: Vec<f64> = (0..80).map(|i| f64::from(i) * 0.25 - 7.0).collect();
    rows[2 * 23] = changed;
    let rows: Vec<String> = rows.iter().map(f64::to_string).collect();
    text::model(&format!(
        "indices ids 2 3\n const t 40 2 = {}\n {nodes}\n output y",
        rows.join(" ")
    ))
}

#[test]
fn changed_row_of_a_table_is_never_accepted() {
    let plain = "e = Gather(t, ids)\n y = Relu(e)";
    let first = lookup(4.5, plain);
    let judgement = judged(&first, &lookup(4.5, plain));
    assert!(matches!(judgement, Judgement::Same { .. }), "{judgement:?}");
    let judgement = judged(&first, &lookup(4.6, plain));
    match judgement {
        Judgement::Different(witness) => assert_eq!(witness.first_value.as_deref(), Some("t")),
        Judgement::Undecided { reason } => assert!(reason.contains("`t`"), "{reason}"),
        other => panic!("{other:?}"),
    }
    // A transposed table with the same numbers is the same.
    let turned = "u = Transpose(t)\n e = Gather(u, ids) axis=1\n p = Transpose(e) perm=[1,2,0]\n y = Relu(p)";
    let judgement = judged(&first, &lookup(4.5, turned));
    assert!(matches!(judgement, Judgement::Same { .. }), "{judgement:?}");
}

/// A mask whose elements are taken from the given places. Most drawn elements of a mask are not 0, so
/// that two places often have the same truth value.
fn masked(places: &str) -> Model {
    text::model(&format!(
        "opset 18
         input x 12
         indices mask 12
         const most = -30
         ints order 12 = {places}
         c = Cast(mask) to=9
         g = Gather(c, order)
         y = Where(g, x, most)
         output y"
    ))
}

#[test]
fn changed_index_into_a_mask_is_never_accepted() {
    let first = masked("0 1 2 3 4 5 6 7 8 9 10 11");
    for places in [
        "0 1 2 3 4 4 6 7 8 9 10 11",
        "0 1 2 3 4 5 6 7 8 10 10 11",
        "0 1 3 2 4 5 6 7 8 9 10 11",
    ] {
        let judgement = judged(&first, &masked(places));
        let is_accepted = matches!(
            judgement,
            Judgement::Same { .. } | Judgement::Rounded { .. } | Judgement::Casts { .. }
        );
        assert!(!is_accepted, "{places}: {judgement:?}");
    }
    let again = masked("0 1 2 3 4 5 6 7 8 9 10 11");
    assert!(matches!(judged(&first, &again), Judgement::Same { .. }));
}

#[test]
fn value_taken_from_an_optional_is_the_same() {
    let plain = "opset 18\n input x b 4\n y = Relu(x)\n output y";
    let wrapped = "opset 18\n input x b 4\n o = Optional(x)\n e = OptionalGetElement(o)\n y = Relu(e)\n output y";
    assert_same(plain, wrapped);
    assert_same(wrapped, plain);
}

#[test]
fn added_bias_of_zeros_is_the_same() {
    assert_same(
        "input x 4 4\n weight w 4 4\n y = Gemm(x, w)\n output y",
        "input x 4 4\n weight w 4 4\n const z 4 = 0 0 0 0\n y = Gemm(x, w, z)\n output y",
    );
}

/// `weight-transposed`.
#[test]
fn stored_transpose_is_the_same() {
    assert_same(
        "input x 4 2\n const w 3 2 = 1 2 3 4 5 6\n y = Gemm(x, w) transB=1\n output y",
        "input x 4 2\n const t 2 3 = 1 3 5 2 4 6\n y = MatMul(x, t)\n output y",
    );
}

/// `resize-default-attrs`.
#[test]
fn attributes_with_their_defaults_or_unread_are_the_same() {
    let of = |attributes: &str| {
        format!(
            "opset 18\n input x 1 2 4 4\n const s 4 = 1 1 2 2
             y = Resize(x, , s) mode=linear coordinate_transformation_mode=half_pixel {attributes}\n output y"
        )
    };
    let written = of(
        "antialias=0 cubic_coeff_a=-0.75 exclude_outside=0 nearest_mode=floor keep_aspect_ratio_policy=stretch",
    );
    assert_same(&of(""), &written);
    let found = verdict(&of(""), &of("antialias=1"));
    assert!(!matches!(found, Judgement::Same { .. }), "{found:?}");
}

/// A model of a Clip with these inputs.
fn clip(inputs: &str) -> String {
    format!("input x b 4\n const m = 0.001\n y = Clip({inputs})\n output y")
}

#[test]
fn inputs_that_are_left_out_at_the_end_are_the_same() {
    assert_same(&clip("x, m, "), &clip("x, m"));
    let found = verdict(&clip("x, , m"), &clip("x, m"));
    assert!(!matches!(found, Judgement::Same { .. }), "{found:?}");
}

/// `relu-clip`.
#[test]
fn two_clamps_are_one_to_the_shared_interval() {
    let bounds = "input x b 4\n const m 0 = -1\n const z 0 = 0\n const o 0 = 1";
    let bounds = bounds.replace(" 0 =", " =");
    assert_same(
        &format!("{bounds}\n r = Relu(x)\n y = Clip(r, m, o)\n output y"),
        &format!("{bounds}\n y = Clip(x, z, o)\n output y"),
    );
}

/// `biasgelu` and `gelu-domain`.
#[test]
fn forms_of_gelu_are_the_same() {
    let bias = "opset 20\n input x b 6\n shift k 6";
    let exact = format!("{bias}\n a = Add(x, k)\n y = Gelu(a)\n output y");
    assert_same(
        &exact,
        &format!("{bias}\n y = com.microsoft.BiasGelu(x, k)\n output y"),
    );
    assert_same(
        &exact,
        &format!("{bias}\n a = Add(x, k)\n y = com.microsoft.Gelu(a)\n output y"),
    );
    let chain = format!(
        "{bias}\n const r = 1.4142135\n const o = 1\n const h = 0.5\n a = Add(x, k)\n q = Div(a, r)\n e = Erf(q)
         s = Add(e, o)\n p = Mul(a, s)\n y = Mul(p, h)\n output y"
    );
    assert_same(&exact, &chain);
    let near = format!("{bias}\n a = Add(x, k)\n y = Gelu(a) approximate=tanh\n output y");
    assert_same(
        &near,
        &format!("{bias}\n y = com.microsoft.FastGelu(x, k)\n output y"),
    );
    let found = verdict(&exact, &near);
    assert!(!matches!(found, Judgement::Same { .. }), "{found:?}");
}

/// `cast-f16`.
#[test]
fn removed_narrowing_cast_is_named() {
    let found = verdict(
        "input x b 4\n a = Cast(x) to=10\n y = Cast(a) to=1\n output y",
        "input x b 4\n y = Identity(x)\n output y",
    );
    let Judgement::Casts { casts, .. } = &found else {
        panic!("{found:?}");
    };
    assert_eq!(
        (casts.len(), casts[0].name.as_str(), casts[0].is_of_first),
        (1, "a", true)
    );
}

/// In float16, 1e5·x is infinite.
#[test]
fn moved_narrowing_cast_is_named_in_both_models() {
    let found = verdict(
        "input x b 4\n const c = 1e5\n h = Cast(x) to=10\n f = Cast(h) to=1\n y = Mul(f, c)\n output y",
        "input x b 4\n const c = 1e5\n m = Mul(x, c)\n k = Cast(m) to=10\n y = Cast(k) to=1\n output y",
    );
    let Judgement::Casts { casts, .. } = &found else {
        panic!("{found:?}");
    };
    let named: Vec<_> = casts
        .iter()
        .map(|cast| (cast.name.as_str(), cast.is_of_first))
        .collect();
    assert_eq!(named, [("h", true), ("k", false)]);
}

#[test]
fn casts_of_a_rearranged_value_are_the_same() {
    assert_same(
        "input x b 4\n h = Cast(x) to=10\n f = Cast(h) to=1\n y = Transpose(f) perm=[1,0]\n output y",
        "input x b 4\n t = Transpose(x) perm=[1,0]\n h = Cast(t) to=10\n y = Cast(h) to=1\n output y",
    );
}

/// The second model rounds `x` before the Neg, too.
#[test]
fn added_cast_of_a_value_that_is_cast_elsewhere_is_named() {
    let found = verdict(
        "input x b 4\n h = Cast(x) to=10\n f = Cast(h) to=1\n e = Exp(f)\n n = Neg(x)
         y = Add(e, n)\n output y",
        "input x b 4\n h = Cast(x) to=10\n f = Cast(h) to=1\n e = Exp(f)
         i = Cast(x) to=10\n g = Cast(i) to=1\n n = Neg(g)\n y = Add(e, n)\n output y",
    );
    let Judgement::Casts { casts, .. } = &found else {
        panic!("{found:?}");
    };
    assert_eq!((casts.len(), casts[0].is_of_first), (1, false));
}

#[test]
fn cast_back_from_a_wider_type_rounds_nothing() {
    assert_same(
        "input x b 4\n d = Cast(x) to=11\n f = Cast(d) to=1\n y = Relu(f)\n output y",
        "input x b 4\n y = Relu(x)\n output y",
    );
}

/// float16 represents 0.5 exactly, but not 0.1.
#[test]
fn added_cast_of_a_constant_is_named_where_it_rounds() {
    let added = |number: &str, rest: &str| {
        text::model(&format!(
            "input x b 4\n const c = {number}\n {rest}\n output y"
        ))
    };
    let cast = "h = Cast(c) to=10\n d = Cast(h) to=1\n y = Add(x, d)";
    let found = judged(&added("0.1", "y = Add(x, c)"), &added("0.1", cast));
    let Judgement::Casts { casts, .. } = &found else {
        panic!("{found:?}");
    };
    assert_eq!((casts[0].name.as_str(), casts[0].is_of_first), ("h", false));
    let found = judged(&added("0.5", "y = Add(x, c)"), &added("0.5", cast));
    assert!(matches!(found, Judgement::Same { .. }), "{found:?}");
    // The formula of the stored number contains the cast.
    let found = judged(&added("0.1", cast), &added("0.099975586", "y = Add(x, c)"));
    assert!(matches!(found, Judgement::Rounded { .. }), "{found:?}");
}

/// `sqrt-sign`.
#[test]
fn sign_under_a_root_has_a_witness() {
    let found = verdict(
        "input x b 4\n s = Neg(x)\n y = Sqrt(s)\n output y",
        "input x b 4\n y = Sqrt(x)\n output y",
    );
    assert!(matches!(found, Judgement::Different(_)), "{found:?}");
}

#[test]
fn renamed_and_reordered_inputs_and_symbols_are_the_same() {
    assert_same(
        "input x b 4\n input k b 4\n d = Sub(x, k)\n y = Relu(d)\n output y",
        "input first n 4\n input second n 4\n d = Sub(first, second)\n z = Relu(d)\n output z",
    );
    assert_same(
        "input x b 4\n input k b 4\n y = Sub(x, k)\n output y",
        "input k b 4\n input x b 4\n y = Sub(x, k)\n output y",
    );
}

#[test]
fn number_that_the_first_model_computes_is_a_rounding() {
    let computed = "input x b 4\n const n = 3\n r = Sqrt(n)\n y = Div(x, r)\n output y";
    let found = verdict(
        computed,
        "input x b 4\n const c = 1.7320508\n y = Div(x, c)\n output y",
    );
    assert!(matches!(found, Judgement::Rounded { .. }), "{found:?}");
    let found = verdict(
        computed,
        "input x b 4\n const c = 1.7321\n y = Div(x, c)\n output y",
    );
    assert!(
        matches!(found, Judgement::Undecided { .. } | Judgement::Different(_)),
        "{found:?}"
    );
}

/// The quotient of the scalars is infinite, so it is not a formula for another number.
#[test]
fn scalar_of_zero_is_in_no_formula() {
    let found = verdict(
        "input x b 4\n const z = 0\n const n = 6.9282\n c = Add(x, z)\n y = Div(c, n)\n output y",
        "input x b 4\n const s = 0.14433764\n y = Mul(x, s)\n output y",
    );
    assert!(matches!(found, Judgement::Rounded { .. }), "{found:?}");
}

#[test]
fn softmax_and_maximum_along_another_axis_of_a_transpose_are_the_same() {
    let swapped = "t = Transpose(x) perm=[0,2,1]\n s = Softmax(t) axis=-1\n y = Transpose(s) perm=[0,2,1]\n output y";
    assert_same(
        "input x b 4 3\n y = Softmax(x) axis=1\n output y",
        &format!("input x b 4 3\n {swapped}"),
    );
    assert_same(
        "opset 17\n input x b 4 3\n y = ReduceMax(x) axes=[1] keepdims=0\n output y",
        "opset 18\n input x b 4 3\n ints a 1 = 2\n t = Transpose(x) perm=[0,2,1]\n y = ReduceMax(t, a) keepdims=0\n output y",
    );
    let found = verdict(
        "input x b 4 4\n y = Softmax(x) axis=1\n output y",
        "input x b 4 4\n y = Softmax(x) axis=2\n output y",
    );
    assert!(matches!(found, Judgement::Different(_)), "{found:?}");
}

#[test]
fn scale_of_a_fused_product_is_a_product_of_two_scales() {
    let product = "opset 20\n input q b 4 8\n input k b 4 8\n const s = 0.59460354";
    let found = verdict(
        &format!(
            "{product}\n a = Mul(q, s)\n t = Transpose(k) perm=[0,2,1]\n c = Mul(t, s)\n y = MatMul(a, c)\n output y"
        ),
        &format!(
            "{product}\n y = com.microsoft.FusedMatMul(q, k) alpha=0.35355338 transB=1\n output y"
        ),
    );
    assert!(matches!(found, Judgement::Rounded { .. }), "{found:?}");
}

/// Judges a graph whose nodes compute a constant against the graph in which these numbers are
/// stored.
fn judged_with_stored(nodes: &str, shape: &str, numbers: &[f32]) -> Judgement {
    let product = "y = MatMul(x, w2)\n output y";
    let first = text::model(&format!("input x b 2\n {nodes}\n {product}"));
    let numbers: Vec<String> = numbers.iter().map(f32::to_string).collect();
    let stored = format!("const w2 {shape} = {}", numbers.join(" "));
    let second = text::model(&format!("input x b 2\n {stored}\n {product}"));
    judged(&first, &second)
}

/// Asserts that a constant may be stored as these numbers, and not as numbers that differ by one
/// part in 10,000.
#[track_caller]
fn assert_only_rounding_is_accepted(nodes: &str, shape: &str, numbers: &[f32]) {
    let judgement = judged_with_stored(nodes, shape, numbers);
    assert!(
        matches!(
            judgement,
            Judgement::Rounded { .. } | Judgement::Same { .. }
        ),
        "{judgement:?}"
    );
    let wrong: Vec<f32> = numbers.iter().map(|number| number * 1.0001).collect();
    let judgement = judged_with_stored(nodes, shape, &wrong);
    assert!(
        matches!(
            judgement,
            Judgement::Different(_) | Judgement::Undecided { .. }
        ),
        "{judgement:?}"
    );
}

#[test]
fn weight_divided_by_its_norm_is_a_rounded_tensor() {
    let nodes = "const v 2 2 = 0.3 -0.4 1.2 0.5
         const g 2 1 = 0.7 1.9
         n = ReduceL2(v) axes=[1]
         u = Div(v, n)
         w2 = Mul(u, g)";
    let (first, second) = (
        (0.3f32 * 0.3 + 0.4 * 0.4).sqrt(),
        (1.2f32 * 1.2 + 0.5 * 0.5).sqrt(),
    );
    let folded = [
        0.3 / first * 0.7,
        -0.4 / first * 0.7,
        1.2 / second * 1.9,
        0.5 / second * 1.9,
    ];
    assert_only_rounding_is_accepted(nodes, "2 2", &folded);
}

/// A row of `w2` in the next test, computed from a row of `t`.
fn relu_layer(row: [f32; 2]) -> [f32; 2] {
    let hidden = [row[0] * 0.6 + row[1] * 0.9, row[0] * -1.1 + row[1] * 0.2].map(|h| h.max(0.0));
    [
        hidden[0] * 1.3 + hidden[1] * -0.8,
        hidden[0] * 0.4 + hidden[1] * 0.7,
    ]
}

#[test]
fn table_that_a_layer_with_relu_computes_is_a_rounded_tensor() {
    let nodes = "const t 2 2 = 0.3 -0.4 1.2 0.5
         const a 2 2 = 0.6 -1.1 0.9 0.2
         const c 2 2 = 1.3 0.4 -0.8 0.7
         h = MatMul(t, a)
         r = Relu(h)
         w2 = MatMul(r, c)";
    let table = [relu_layer([0.3, -0.4]), relu_layer([1.2, 0.5])].concat();
    assert_only_rounding_is_accepted(nodes, "2 2", &table);
}

/// `prove-size`: the outputs are equal if the length is the number of channels, which is the
/// default size. At a length of 1 the sum broadcasts, and at other lengths the second model fails.
#[test]
fn witness_has_sizes_at_which_two_extents_differ() {
    let Judgement::Different(witness) = judged(&cut_to(1), &cut_to(2)) else {
        panic!("no witness");
    };
    let (name, input) = &witness.inputs[0];
    assert_eq!(name, "x");
    assert_eq!(input.shape()[1..], [1, 8]);
    assert!(witness.relative.is_infinite());
    assert!(matches!(
        judged(&cut_to(1), &cut_to(1)),
        Judgement::Same { .. }
    ));
}

/// `const-1ulp`.
#[test]
fn resized_table_is_a_rounded_tensor() {
    let nodes = "const i 1 1 2 2 = 0.3 0.7 1.2 -0.5
         ints z 4 = 1 1 2 3
         ints s 2 = 2 3
         r = Resize(i, , , z) mode=linear coordinate_transformation_mode=half_pixel
         w2 = Reshape(r, s)";
    // The middle element of a row is the mean of both neighbours.
    let table = [0.3, 0.5, 0.7, 1.2, 0.35, -0.5];
    assert_only_rounding_is_accepted(nodes, "2 3", &table);
}

#[test]
fn table_that_a_pointwise_convolution_computes_is_a_rounded_tensor() {
    let nodes = "const t 1 2 1 2 = 0.3 -0.4 1.2 0.5
         const k 2 2 1 1 = 0.6 -1.1 0.9 0.2
         const d 2 = 0.7 -0.1
         ints s 2 = 2 2
         c = Conv(t, k, d)
         w2 = Reshape(c, s)";
    let row = |[a, b]: [f32; 2], bias: f32| [a * 0.3 + b * 1.2 + bias, a * -0.4 + b * 0.5 + bias];
    let table = [row([0.6, -1.1], 0.7), row([0.9, 0.2], -0.1)].concat();
    assert_only_rounding_is_accepted(nodes, "2 2", &table);
}

/// An element of `w2` in the next test, computed from a column of `t`, a row of `k` and the bias.
fn gemm_element(t: [f32; 2], k: [f32; 2], d: f32) -> f32 {
    0.3 * (t[0] * k[0] + t[1] * k[1]) + 1.7 * d
}

#[test]
fn table_that_a_gemm_computes_is_a_rounded_tensor() {
    let nodes = "const t 2 2 = 0.3 -0.4 1.2 0.5
         const k 2 2 = 0.6 -1.1 0.9 0.2
         const d 2 = 0.7 -0.1
         w2 = Gemm(t, k, d) transA=1 transB=1 alpha=0.3 beta=1.7";
    let (first, second) = ([0.6, -1.1], [0.9, 0.2]);
    let table = [
        gemm_element([0.3, 1.2], first, 0.7),
        gemm_element([0.3, 1.2], second, -0.1),
        gemm_element([-0.4, 0.5], first, 0.7),
        gemm_element([-0.4, 0.5], second, -0.1),
    ];
    assert_only_rounding_is_accepted(nodes, "2 2", &table);
}

#[test]
fn outer_product_of_constants_is_a_rounded_tensor() {
    let nodes = "const p 2 = 1 3
         const f 3 = 0.3 0.7 1.1
         e = Einsum(p, f) equation=i,j->ij
         w2 = Sin(e)";
    let table = [0.3, 0.7, 1.1, 0.3 * 3.0, 0.7 * 3.0, 1.1 * 3.0].map(f32::sin);
    assert_only_rounding_is_accepted(nodes, "2 3", &table);
}

/// The Softmax of a row.
fn shares(scores: [f32; 4]) -> [f32; 4] {
    let sum: f32 = scores.map(f32::exp).iter().sum();
    scores.map(|score| score.exp() / sum)
}

#[test]
fn softmax_of_a_constant_is_a_rounded_tensor() {
    let [one, other] = [[0.3, -0.4, 1.2, 0.5], [2.0, -1.0, 0.1, 0.7]].map(shares);
    let rows = "const t 2 4 = 0.3 -0.4 1.2 0.5 2 -1 0.1 0.7\n w2 = Softmax(t) axis=-1";
    assert_only_rounding_is_accepted(rows, "2 4", &[one, other].concat());
    let columns = "const t 4 2 = 0.3 2 -0.4 -1 1.2 0.1 0.5 0.7
         s = Softmax(t) axis=0
         w2 = Transpose(s)";
    assert_only_rounding_is_accepted(columns, "2 4", &[one, other].concat());
}

/// `(x − mean) / √(variance + ε)` of four numbers, with ε = 0.01.
fn standardized(row: [f32; 4]) -> [f32; 4] {
    let mean = row.iter().sum::<f32>() / 4.0;
    let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / 4.0;
    row.map(|x| (x - mean) / (variance + 0.01).sqrt())
}

#[test]
fn normalized_constants_are_rounded_tensors() {
    let [one, other] = [[0.3, -0.4, 1.2, 0.5], [2.0, -1.0, 0.1, 0.7]].map(standardized);
    let (scale, shift) = ([0.7, -1.9, 1.3, 0.4], [0.2, 0.0, -0.6, 1.0]);
    let by_place: Vec<f32> = [one, other]
        .iter()
        .flat_map(|row| (0..4).map(|i| row[i] * scale[i] + shift[i]))
        .collect();
    let layer = "const t 2 4 = 0.3 -0.4 1.2 0.5 2 -1 0.1 0.7
         const g 4 = 0.7 -1.9 1.3 0.4
         const d 4 = 0.2 0 -0.6 1
         w2 = LayerNormalization(t, g, d) epsilon=0.01";
    assert_only_rounding_is_accepted(layer, "2 4", &by_place);
    let by_channel = [one.map(|x| x * 0.7 + 0.2), other.map(|x| x * -1.9 - 0.6)].concat();
    let instance = "const t 1 2 4 = 0.3 -0.4 1.2 0.5 2 -1 0.1 0.7
         const g 2 = 0.7 -1.9
         const d 2 = 0.2 -0.6
         ints s 2 = 2 4
         i = InstanceNormalization(t, g, d) epsilon=0.01
         w2 = Reshape(i, s)";
    assert_only_rounding_is_accepted(instance, "2 4", &by_channel);
}

/// Nodes that compute `w2` from the running sums of the rows of `t`.
fn sines_of_counted(t: &str) -> String {
    format!(
        "const t 2 3 = {t}
         ints a = 1
         c = CumSum(t, a)
         const f = 0.7
         m = Mul(c, f)
         w2 = Sin(m)"
    )
}

#[test]
fn sine_of_counted_places_is_a_rounded_tensor() {
    let table = [0.7, 0.7 * 2.0, 0.7 * 3.0, 0.7, 0.7 * 2.0, 0.7 * 2.0].map(f32::sin);
    assert_only_rounding_is_accepted(&sines_of_counted("1 1 1 1 1 0"), "2 3", &table);
    // No bound is known for sums of fractions. The stored sines are moved by one rounding.
    let sums = [0.7, 0.7 * 2.0, 0.7 * 3.0, 0.7, 0.7 * 2.0, 0.7 * 2.25];
    let rounded: Vec<f32> = sums.iter().map(|sum| f32::sin(*sum).next_up()).collect();
    let judgement = judged_with_stored(&sines_of_counted("1 1 1 1 1 0.25"), "2 3", &rounded);
    assert!(
        matches!(judgement, Judgement::Undecided { .. }),
        "{judgement:?}"
    );
}

#[test]
fn exponential_of_whole_numbers_is_a_rounded_tensor() {
    let nodes = "const t 2 2 = 0.3 -0.4 1.2 0.5
         f = Floor(t)
         c = Ceil(t)
         s = Add(f, c)
         w2 = Exp(s)";
    let table = [1.0, -1.0, 3.0, 1.0].map(f32::exp);
    assert_only_rounding_is_accepted(nodes, "2 2", &table);
}

#[test]
fn exponential_of_a_clipped_constant_is_a_rounded_tensor() {
    let nodes = "const t 2 2 = 0.3 -0.4 1.2 0.5
         const most = 0.7
         const least 2 1 = -0.2 0.6
         m = Min(t, most)
         c = Max(m, least)
         w2 = Exp(c)";
    let table = [0.3, -0.2, 0.7, 0.6].map(f32::exp);
    assert_only_rounding_is_accepted(nodes, "2 2", &table);
}

#[test]
fn merged_scales_before_a_layer_are_a_rounding() {
    let text = |scales: &str| {
        format!(
            "input x b 2
             weight w 2 3
             {scales}
             y = MatMul(m, w)
             output y"
        )
    };
    let apart = text(
        "const g 2 = 0.3 -0.7
         const s = 0.6
         n = Mul(x, g)
         m = Mul(n, s)",
    );
    let merged = |part: f32| {
        let [one, other] = [0.3_f32 * 0.6 * part, -0.7 * 0.6];
        text(&format!("const g 2 = {one} {other}\n m = Mul(x, g)"))
    };
    assert_fold_is_a_rounding(&apart, merged);
}

/// A layer with a scale on a residual stream. The normalization after it folds into all layers of
/// the stream.
fn scaled_layer(layer: &str) -> String {
    format!(
        "input x b 2 4 4
         weight v 2 2 1 1
         scale g 2
         shift t 2
         shift mu 2
         divisor va 2
         h = Conv(x, v)
         {layer}
         a = Add(h, m)
         y = BatchNormalization(a, g, t, mu, va)
         output y"
    )
}

/// Asserts that a fold is a rounding, and not with one weight that differs by one part in 10,000.
/// `folded` gets the factor of this weight.
#[track_caller]
fn assert_fold_is_a_rounding(apart: &str, folded: impl Fn(f32) -> String) {
    let found = verdict(apart, &folded(1.0));
    assert!(matches!(found, Judgement::Rounded { .. }), "{found:?}");
    let found = verdict(apart, &folded(1.0001));
    assert!(!matches!(found, Judgement::Rounded { .. }), "{found:?}");
}

#[test]
fn scale_that_another_tool_folds_into_its_own_layer_is_a_rounding() {
    let apart = scaled_layer(
        "const w 2 2 1 1 = 0.3 -0.4 1.2 0.5
         const d 2 = 0.9 -0.2
         const s 2 1 1 = 0.7 1.9
         c = Conv(h, w, d)
         m = Mul(c, s)",
    );
    let folded = |part: f32| {
        let weight =
            [0.3 * 0.7 * part, -0.4 * 0.7, 1.2 * 1.9, 0.5 * 1.9].map(|w: f32| w.to_string());
        scaled_layer(&format!(
            "const w 2 2 1 1 = {}\n const d 2 = {} {}\n m = Conv(h, w, d)",
            weight.join(" "),
            0.9_f32 * 0.7,
            -0.2_f32 * 1.9,
        ))
    };
    assert_fold_is_a_rounding(&apart, folded);
}

/// onnxsim folds the ½ of a Gelu before a layer and the scale after it into one weight.
#[test]
fn scales_folded_into_a_layer_from_both_sides_are_a_rounding() {
    let gelu = "const root = 1.4142135
         const one = 1
         q = Div(h, root)
         e = Erf(q)
         f = Add(e, one)
         p = Mul(h, f)";
    let apart = scaled_layer(&format!(
        "{gelu}
         const half = 0.5
         const w 2 2 1 1 = 0.3 -0.4 1.2 0.5
         const d 2 = 0.9 -0.2
         const s 2 1 1 = 0.7 1.9
         r = Mul(p, half)
         c = Conv(r, w, d)
         m = Mul(c, s)"
    ));
    let folded = |part: f32| {
        let weight = [
            0.3 * 0.5 * 0.7 * part,
            -0.4 * 0.5 * 0.7,
            1.2 * 0.5 * 1.9,
            0.5 * 0.5 * 1.9,
        ];
        scaled_layer(&format!(
            "{gelu}\n const w 2 2 1 1 = {}\n const d 2 = {} {}\n m = Conv(p, w, d)",
            weight.map(|number: f32| number.to_string()).join(" "),
            0.9_f32 * 0.7,
            -0.2_f32 * 1.9,
        ))
    };
    assert_fold_is_a_rounding(&apart, folded);
}

#[test]
fn outputs_of_other_shapes_are_a_difference_with_both_shapes() {
    let found = verdict(
        "input x 2 3\n y = ReduceMean(x) axes=[1] keepdims=1\n output y",
        "input x 2 3\n y = ReduceMean(x) axes=[1] keepdims=0\n output y",
    );
    let Judgement::Different(witness) = &found else {
        panic!("{found:?}");
    };
    assert_eq!(witness.shapes, Some([vec![2, 1], vec![2]]));
}

/// A bias of which one part in 10,000 changes moves the output by 1e-5, which is more than rounding does.
#[test]
fn changed_bias_has_a_witness_and_a_rounded_one_has_none() {
    let layer = text::model(
        "input x b 4\n weight w 4 4\n const c 4 = 0.5 -0.5 0.75 -0.25\n y = Gemm(x, w, c)\n output y",
    );
    let changed = with_changed(&layer, "c", |numbers| numbers[2] *= 1.0 + 1e-4);
    let Judgement::Different(witness) = judged(&layer, &changed) else {
        panic!("no witness");
    };
    assert!(
        witness.relative > 1e-6 && witness.relative < 1.1e-4,
        "{witness:?}"
    );
    assert!(witness.rounding < witness.relative / 10.0, "{witness:?}");
    let rounded = with_changed(&layer, "c", |numbers| numbers[2] += f64::from(f32::EPSILON));
    let Judgement::Undecided { reason } = judged(&layer, &rounded) else {
        panic!("a rounding is a difference");
    };
    assert!(reason.contains("which rounding can make"), "{reason}");
}

/// tract's optimization replaces both chains by its operator for the exact GELU.
#[test]
fn changed_constant_of_a_gelu_has_a_witness() {
    let gelu = |half: &str| {
        format!(
            "input x b 4\n weight w 4 4\n const r = 1.4142135\n const one = 1\n const h = {half}\n p = MatMul(x, w)\n \
             d = Div(p, r)\n e = Erf(d)\n a = Add(e, one)\n m = Mul(p, a)\n y = Mul(m, h)\n output y"
        )
    };
    let Judgement::Different(witness) = verdict(&gelu("0.5"), &gelu("0.50005")) else {
        panic!("no witness");
    };
    // Each output is 1.0001 times as large.
    assert!(
        (witness.relative - 1e-4).abs() < 1e-5,
        "{}",
        witness.relative
    );
}

/// The channel is positive where the mean of an input channel exceeds 2, which 64 draws of noise do not reach.
#[test]
fn weight_behind_a_rarely_active_channel_has_a_witness() {
    let network = |sign: &str| {
        format!(
            "input x b 2 64\n const two = 2\n m = ReduceMean(x) axes=[2] keepdims=0\n s = Sub(m, two)\n r = Relu(s)\n \
             const w 2 2 = 1 0.5 {sign}0.25 1\n o = MatMul(r, w)\n const c 2 = 1 1\n y = Add(o, c)\n output y"
        )
    };
    let found = verdict(&network(""), &network("-"));
    assert!(matches!(found, Judgement::Different(_)), "{found:?}");
}

/// The softmax of a row of −∞ is NaN, and that of a row of lowest numbers is not.
#[test]
fn lowest_number_and_infinity_differ_where_a_row_is_hidden_whole() {
    let masked = |hidden: &str, visible: &str| {
        format!(
            "input x 2 3\n {visible}\n const none = 0\n const low = {hidden}\n m = Where(keep, none, low)\n \
             s = Add(x, m)\n y = Softmax(s) axis=-1\n output y"
        )
    };
    let padding = "indices k 2 3\n keep = Cast(k) to=9";
    let [lowest, infinite] =
        ["-3.4028234663852886e38", "-inf"].map(|hidden| masked(hidden, padding));
    let found = verdict(&lowest, &infinite);
    assert!(matches!(found, Judgement::Different(_)), "{found:?}");
    assert_same(&lowest, &lowest);
    // Each row has a visible place.
    let causal = "ints k 2 3 = 1 0 0 1 1 0\n keep = Cast(k) to=9";
    let [lowest, infinite] =
        ["-3.4028234663852886e38", "-inf"].map(|hidden| masked(hidden, causal));
    let found = verdict(&lowest, &infinite);
    assert!(!matches!(found, Judgement::Different(_)), "{found:?}");
}

#[test]
fn flags_of_a_gemm_are_0_or_not_0() {
    let gemm =
        |flag: i64| format!("input x b 4\n weight w 4 4\n y = Gemm(x, w) transB={flag}\n output y");
    assert_same(&gemm(1), &gemm(2));
    let found = verdict(&gemm(0), &gemm(-1));
    assert!(matches!(found, Judgement::Different(_)), "{found:?}");
}
