//! Scales of quantized weights absorb factors if their granularity permits it. The codes do not
//! change.

use ndarray::{Array2, Axis, array};
use unfold::onnx::proto::TensorProto;
use unfold::onnx::tensor::read_f64;
use unfold::onnx::{DataType, Externals, Model};
use unfold::refusal::Reason;

use crate::common::text::model;
use crate::common::{fuse, initializer, is_proved_or_listed, operators, retype};
use crate::kept;

/// A model with a tensor `q` of bytes.
fn with_codes(text: &str, dims: &[i64], data_type: DataType, bytes: Vec<u8>) -> Model {
    let mut model = model(text);
    model.graph_mut().initializer.push(TensorProto {
        name: Some("q".into()),
        dims: dims.to_vec(),
        data_type: Some(data_type.code()),
        raw_data: Some(bytes.into()),
        ..Default::default()
    });
    model
}

fn with_bytes(text: &str, dims: &[i64]) -> Model {
    let count: i64 = dims.iter().product();
    with_codes(text, dims, DataType::Int8, (0..count as u8).collect())
}

/// Marks the operator with this name as one of com.microsoft.
fn of_microsoft(mut model: Model, op: &str) -> Model {
    let nodes = &mut model.graph_mut().node;
    for node in nodes.iter_mut().filter(|node| node.op_type() == op) {
        node.domain = Some("com.microsoft".into());
    }
    model
}

/// The elements of an initializer.
fn numbers(model: &Model, name: &str) -> Vec<f64> {
    let numbers = read_f64(initializer(model, name), &Externals::none()).unwrap();
    numbers.into_iter().collect()
}

/// Folds a model, and asserts that it has these operators, that its codes are unchanged, and that
/// it is proved.
fn folded(before: &Model, expected: &[&str]) -> Model {
    let after = fuse(before);
    assert_eq!(operators(&after.model), expected, "{:#?}", after.plan.sites);
    assert_eq!(initializer(before, "q"), initializer(&after.model, "q"));
    is_proved_or_listed(before, &after).unwrap();
    after.model
}

#[test]
fn scale_per_output_channel_folds_into_the_scales_of_a_weight() {
    let before = with_bytes(
        "input x batch 5 4
         const step 3 = 0.5 1 2
         d = DequantizeLinear(q, step) axis=1
         h = MatMul(x, d)
         const g 3 = 2 3 5
         y = Mul(h, g)
         output y",
        &[4, 3],
    );
    let after = folded(&before, &["DequantizeLinear", "MatMul"]);
    assert_eq!(numbers(&after, "step_folded"), [1.0, 3.0, 10.0]);
}

#[test]
fn scale_folds_into_a_transposed_weight_and_its_bias() {
    let before = with_bytes(
        "input x 2 4
         const step 3 = 0.5 1 2
         d = DequantizeLinear(q, step) axis=0
         const b 3 = 1 2 3
         h = Gemm(x, d, b) transB=1
         const g 3 = 2 3 5
         n = Mul(h, g)
         const t 3 = 1 1 1
         y = Add(n, t)
         output y",
        &[3, 4],
    );
    let after = folded(&before, &["DequantizeLinear", "Gemm"]);
    assert_eq!(numbers(&after, "step_folded"), [1.0, 3.0, 10.0]);
    assert_eq!(numbers(&after, "b_folded"), [3.0, 7.0, 16.0]);
}

#[test]
fn one_scale_of_a_weight_absorbs_only_one_factor() {
    let text = "input x batch 5 4
         const step = 0.5
         d = DequantizeLinear(q, step)
         h = MatMul(x, d)
         const g FACTORS
         y = Mul(h, g)
         output y";
    let scalar = with_bytes(&text.replace("FACTORS", "= 0.125"), &[4, 3]);
    let after = folded(&scalar, &["DequantizeLinear", "MatMul"]);
    assert_eq!(numbers(&after, "step_folded"), [0.0625]);
    let several = with_bytes(&text.replace("FACTORS", "3 = 2 3 5"), &[4, 3]);
    assert_eq!(kept(&several).1, Some(Reason::Granularity));
}

#[test]
fn factors_that_are_equal_within_a_block_fold_along_input_channels() {
    let text = "opset 21
         input x batch 5 4
         const g 4 = FACTORS
         n = Mul(x, g)
         const step 2 3 = 1 2 3 4 5 6
         d = DequantizeLinear(q, step) axis=0 block_size=2
         y = MatMul(n, d)
         output y";
    let by_block = with_bytes(&text.replace("FACTORS", "2 2 10 10"), &[4, 3]);
    let after = folded(&by_block, &["DequantizeLinear", "MatMul"]);
    let expected = [2.0, 4.0, 6.0, 40.0, 50.0, 60.0];
    assert_eq!(numbers(&after, "step_folded"), expected);
    let within_block = with_bytes(&text.replace("FACTORS", "2 3 10 10"), &[4, 3]);
    assert_eq!(kept(&within_block).0, Reason::Granularity);
}

#[test]
fn scale_of_input_channels_folds_before_the_transpose_of_a_weight() {
    let before = with_bytes(
        "input x batch 5 4
         const g 4 = 2 3 5 -1
         n = Mul(x, g)
         const step 4 = 0.5 1 2 4
         d = DequantizeLinear(q, step) axis=1
         w = Transpose(d)
         y = MatMul(n, w)
         output y",
        &[3, 4],
    );
    let after = folded(&before, &["DequantizeLinear", "Transpose", "MatMul"]);
    assert_eq!(numbers(&after, "step_folded"), [1.0, 3.0, 10.0, -4.0]);
}

#[test]
fn depthwise_conv_and_its_quantized_bias_absorb_a_scale() {
    let before = with_bytes(
        "input x batch 3 5 5
         const step 3 = 0.5 1 2
         d = DequantizeLinear(q, step) axis=0
         ints c 3 = 1 2 3
         const bias_step 3 = 0.25 0.5 1
         b = DequantizeLinear(c, bias_step) axis=0
         h = Conv(x, d, b) group=3
         const g 3 1 1 = 2 3 5
         y = Mul(h, g)
         output y",
        &[3, 1, 2, 2],
    );
    let after = folded(&before, &["DequantizeLinear", "DequantizeLinear", "Conv"]);
    assert_eq!(numbers(&after, "step_folded"), [1.0, 3.0, 10.0]);
    assert_eq!(numbers(&after, "bias_step_folded"), [0.5, 1.5, 5.0]);
}

/// A product with a weight of 4 bits, between two factors. It has 3 results, and 32 numbers for
/// each in two blocks of 16.
fn n_bits(before: &str, behind: &str) -> Model {
    let text = format!(
        "input x batch 5 32
         {before}
         const steps 3 2 = 1 2 3 4 5 6
         h = MatMulNBits(n, q, steps) K=32 N=3 bits=4 block_size=16
         {behind}
         output y"
    );
    let bytes = (0..48_u8).map(|byte| byte.wrapping_mul(37)).collect();
    let model = with_codes(&text, &[3, 2, 8], DataType::Uint8, bytes);
    of_microsoft(model, "MatMulNBits")
}

#[test]
fn mat_mul_n_bits_absorbs_a_scale_per_output_channel() {
    let before = n_bits("n = Relu(x)", "const g 3 = 2 3 5\n y = Mul(h, g)");
    let after = folded(&before, &["Relu", "MatMulNBits"]);
    let steps = Array2::from_shape_vec((3, 2), (1..7).map(f64::from).collect()).unwrap();
    let expected = steps * array![2.0, 3.0, 5.0].insert_axis(Axis(1));
    let expected: Vec<f64> = expected.into_iter().collect();
    assert_eq!(numbers(&after, "steps_folded"), expected);
}

#[test]
fn mat_mul_n_bits_refuses_factors_that_differ_within_a_block() {
    let scaled = |numbers: &[f64]| {
        let numbers: Vec<String> = numbers.iter().map(f64::to_string).collect();
        let factors = format!("const g 32 = {}\n n = Mul(x, g)", numbers.join(" "));
        n_bits(&factors, "y = Relu(h)")
    };
    let by_block = [vec![2.0; 16], vec![10.0; 16]].concat();
    let after = folded(&scaled(&by_block), &["MatMulNBits", "Relu"]);
    let expected = [2.0, 20.0, 6.0, 40.0, 10.0, 60.0];
    assert_eq!(numbers(&after, "steps_folded"), expected);
    let each: Vec<f64> = (1..33).map(f64::from).collect();
    assert_eq!(kept(&scaled(&each)).0, Reason::Granularity);
}

#[test]
fn quantized_table_absorbs_a_scale_that_is_equal_within_a_block() {
    let text = "indices i 3
         const steps 3 2 = 1 2 3 4 5 6
         h = GatherBlockQuantized(q, i, steps) gather_axis=0 quantize_axis=1 block_size=16 bits=8
         const g 32 = FACTORS
         n = Mul(h, g)
         y = Softmax(n)
         output y";
    let table = |factors: &[f64]| {
        let factors: Vec<String> = factors.iter().map(f64::to_string).collect();
        let text = text.replace("FACTORS", &factors.join(" "));
        let model = with_codes(&text, &[3, 32], DataType::Uint8, (0..96).collect());
        of_microsoft(model, "GatherBlockQuantized")
    };
    let by_block = table(&[vec![2.0; 16], vec![10.0; 16]].concat());
    let after = folded(&by_block, &["GatherBlockQuantized", "Softmax"]);
    let expected = [2.0, 20.0, 6.0, 40.0, 10.0, 60.0];
    assert_eq!(numbers(&after, "steps_folded"), expected);
    let each: Vec<f64> = (1..33).map(f64::from).collect();
    assert_eq!(kept(&table(&each)).1, Some(Reason::Granularity));
}

#[test]
fn scales_that_their_type_cannot_hold_are_refused() {
    let text = "half x batch 5 4
         const step 3 = 0.5 1 STEP
         d = DequantizeLinear(q, step) axis=1
         h = MatMul(x, d)
         const g 3 = FACTORS
         n = Mul(h, g)
         y = Softmax(n)
         output y";
    let scaled = |step: &str, factors: &str| {
        let text = text.replace("STEP", step).replace("FACTORS", factors);
        let mut model = with_bytes(&text, &[4, 3]);
        retype(&mut model, &["step", "g"], DataType::Float16);
        model
    };
    let under = scaled("0.0001", "0.5 1 0.001");
    let (reason, _) = kept(&under);
    assert!(matches!(reason, Reason::Underflow(_)), "{reason:?}");
    let fits = scaled("0.5", "0.5 1 0.25");
    let after = folded(&fits, &["DequantizeLinear", "MatMul", "Softmax"]);
    assert_eq!(numbers(&after, "step_folded"), [0.25, 1.0, 0.125]);
}
