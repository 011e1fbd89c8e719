//! Tests the conversion to half precision: types of values, Casts, masks, and the error of a run
//! that rounds each value.

use unfold::plan::{HalfPlan, WideReason};

use unfold::onnx::proto::{
    GraphProto, NodeProto, SequenceType, TensorProto, TypeProto, ValueInfoProto,
};
use unfold::onnx::{DataType, Model, tensor};

use unfold::run::{Engine, random};
use unfold::{EndType, FuseOptions, Fused, HalfError, HalfType};

use crate::common::text::model;
use crate::common::{Attr, attribute, declared, floats, node, operators, options, undeclared};

fn in_half(text: &str, io: EndType) -> Fused {
    convert(&model(text), io)
}

fn convert(model: &Model, io: EndType) -> Fused {
    let converted = FuseOptions {
        to: Some(HalfType::Float16),
        io,
        ..options()
    };
    unfold::fuse(model, &converted).unwrap()
}

fn plan(fused: &Fused) -> &HalfPlan {
    fused.plan.half.as_ref().unwrap()
}

/// The operators that stay in float32, with their reasons.
fn wide(fused: &Fused) -> Vec<(&str, WideReason)> {
    let wide = plan(fused).wide.iter();
    wide.map(|operator| (&*operator.operator, operator.why))
        .collect()
}

fn constants(fused: &Fused) -> &[TensorProto] {
    &fused.model.graph().initializer
}

fn numbers(fused: &Fused, tensor: &TensorProto) -> Vec<f64> {
    let numbers = tensor::read_f64(tensor, fused.model.externals()).unwrap();
    numbers.into_raw_vec_and_offset().0
}

fn the<'m>(fused: &'m Fused, op: &str) -> &'m NodeProto {
    let mut nodes = fused.model.graph().node.iter();
    nodes.find(|node| node.op_type() == op).unwrap()
}

/// The element types of the graph inputs and outputs.
fn ends(model: &Model) -> Vec<i32> {
    let graph = model.graph();
    let values = graph.input.iter().chain(&graph.output);
    values
        .map(|value| {
            value
                .r#type
                .as_ref()
                .unwrap()
                .tensor_type
                .as_ref()
                .unwrap()
                .elem_type()
        })
        .collect()
}

const LAYER: &str = "input x batch 4
     const s 4 = 0.1 0.3 0.7 1.1
     n = Mul(x, s)
     const w 4 2 = 0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8
     y = MatMul(n, w)
     output y";

#[test]
fn folded_weight_in_float32_is_rounded_once() {
    let fused = in_half(LAYER, EndType::Float32);
    let [weight] = constants(&fused) else {
        panic!("{:?}", constants(&fused).len())
    };
    assert_eq!(tensor::data_type(weight).unwrap(), DataType::Float16);
    let scales = [0.1_f32, 0.3, 0.7, 1.1];
    let exact = (0..8).map(|place| {
        let weight = 0.1 * (place + 1) as f32;
        let written: f32 = format!("{weight:.1}").parse().unwrap();
        let folded = f64::from(scales[place / 2]) * f64::from(written);
        f64::from(folded as f32)
    });
    let expected: Vec<f64> = exact
        .map(|number| half::f16::from_f64(number).to_f64())
        .collect();
    assert_eq!(numbers(&fused, weight), expected);
    // The formula in the plan refers to tensors of the original.
    let stored = fused
        .plan
        .tensors
        .iter()
        .find(|stored| stored.name == weight.name());
    let stored = stored.unwrap();
    assert_eq!(stored.data_type, DataType::Float16);
    assert_eq!(
        stored.recipe.to_string(),
        "float(mul(w, reshape(s, [4, 1])))"
    );
}

#[test]
fn inputs_and_outputs_keep_their_types_or_become_half() {
    let mut layer = model(LAYER);
    layer.graph_mut().output = vec![declared("y", DataType::Float, &["batch", "2"])];
    let kept = convert(&layer, EndType::Float32);
    assert_eq!(operators(&kept.model), ["Cast", "MatMul", "Cast"]);
    assert_eq!(ends(&kept.model), [1, 1]);
    assert_eq!((plan(&kept).casts, plan(&kept).operators), (2, 1));
    let half = convert(&layer, EndType::Half);
    assert_eq!(operators(&half.model), ["MatMul"]);
    assert_eq!(ends(&half.model), [10, 10]);
    assert_eq!(plan(&half).casts, 0);
}

#[test]
fn value_is_cast_once_for_all_its_readers() {
    let text = "input x batch 4
         a = Relu(x)
         b = Sigmoid(x)
         y = Add(a, b)
         z = Mul(y, a)
         output y
         output z";
    let fused = in_half(text, EndType::Float32);
    // One Cast is needed for the input and one for each output. The reader of `y` reads it in half
    // precision, without a Cast.
    assert_eq!(plan(&fused).casts, 3);
    assert_eq!(
        operators(&fused.model),
        ["Cast", "Relu", "Sigmoid", "Add", "Mul", "Cast", "Cast"]
    );
    assert_eq!(the(&fused, "Mul").input[0], the(&fused, "Add").output[0]);
}

/// An RMS normalization in parts, from x to n.
const RMS: &str = "input x batch 3 4
     const two = 2
     const e = 0.00001
     s = Pow(x, two)
     m = ReduceMean(s) axes=[-1] keepdims=1
     v = Add(m, e)
     r = Sqrt(v)
     n = Div(x, r)
    ";

#[test]
fn statistics_of_a_normalizer_stay() {
    let text = format!("{RMS} t = Tanh(n)\n output t");
    let fused = in_half(&text, EndType::Half);
    let stays = ["Pow", "ReduceMean", "Add", "Sqrt", "Div"];
    assert_eq!(wide(&fused), stays.map(|op| (op, WideReason::Statistics)));
    let ops = operators(&fused.model);
    assert_eq!((ops[0], ops[6], ops[7]), ("Cast", "Cast", "Tanh"));
    assert_eq!(ops.len(), 8);
}

#[test]
fn arithmetic_on_integers_stays_and_is_rounded_once() {
    let text = "indices p 6
         input x 6
         f = Cast(p) to=1
         const q = 0.37
         a = Mul(f, q)
         c = Cos(a)
         y = Mul(x, c)
         output y";
    let fused = in_half(text, EndType::Half);
    let stays = ["Cast", "Mul", "Cos"];
    assert_eq!(wide(&fused), stays.map(|op| (op, WideReason::Integers)));
    assert_eq!(
        operators(&fused.model),
        ["Cast", "Mul", "Cos", "Cast", "Mul"]
    );
    // If all readers of a Cast are in half precision, the Cast converts to half precision.
    let text = "indices p 6\n input x 6\n f = Cast(p) to=1\n y = Mul(x, f)\n output y";
    let fused = in_half(text, EndType::Half);
    assert_eq!(operators(&fused.model), ["Cast", "Mul"]);
    assert_eq!(the(&fused, "Cast").attribute[0].i, Some(10));
}

#[test]
fn mask_is_brought_into_range_and_infinity_stays() {
    let text = |number: &str, end: &str| {
        format!(
            "input x batch 4
             condition c
             const m = {number}
             const z = 0
             b = Where(c, z, m)
             s = Add(x, b)
             y = {end}
             output y"
        )
    };
    let softmax = in_half(&text("-3.4e38", "Softmax(s) axis=-1"), EndType::Half);
    let [mask] = &plan(&softmax).masks[..] else {
        panic!("{:?}", plan(&softmax))
    };
    assert_eq!((&*mask.name, mask.to), ("m", -16384.0));
    assert!((mask.from / -3.4e38 - 1.0).abs() < 1e-7);
    assert!(
        constants(&softmax)
            .iter()
            .any(|tensor| numbers(&softmax, tensor) == [-16384.0])
    );
    assert!(wide(&softmax).is_empty());
    // The sum of two masks and a large negative score is finite in float16.
    assert!(2.0 * mask.to - 30_000.0 > -65504.0);
    let infinite = in_half(&text("-inf", "Softmax(s) axis=-1"), EndType::Half);
    assert!(plan(&infinite).masks.is_empty());
    let kept = constants(&infinite)
        .iter()
        .map(|tensor| numbers(&infinite, tensor));
    assert!(
        kept.into_iter()
            .any(|numbers| numbers == [f64::NEG_INFINITY])
    );
    // The constant does not reach a Softmax, so it is not a mask, and float16 cannot represent it.
    let other = in_half(&text("-100000", "Relu(s)"), EndType::Half);
    assert!(plan(&other).masks.is_empty());
    assert_eq!(wide(&other), [("Where", WideReason::Range)]);
}

#[test]
fn mask_of_scores_less_their_maximum_is_brought_into_range() {
    let fused = in_half(
        "input x 3 4
         condition c
         const m = -3.4e38
         const z = 0
         b = Where(c, z, m)
         s = Add(x, b)
         most = ReduceMax(s) axes=[-1] keepdims=1
         d = Sub(s, most)
         y = Softmax(d) axis=-1
         output y",
        EndType::Half,
    );
    let masks = plan(&fused).masks.iter();
    let masks: Vec<(&str, f64)> = masks.map(|mask| (&*mask.name, mask.to)).collect();
    assert_eq!(masks, [("m", -16384.0)]);
    assert!(wide(&fused).is_empty());
}

#[test]
fn attributes_of_types_become_half() {
    let text = |number: &str, end: &str| {
        let mut made = model(&format!(
            "indices p 2
             condition c
             input x 3 4
             a = ConstantOfShape(p)
             s = Where(c, x, a)
             y = {end}
             output y"
        ));
        let value = floats("", &ndarray::arr1(&[number.parse().unwrap()]).into_dyn());
        let attribute = attribute("value", Attr::Tensor(Box::new(value)));
        made.graph_mut().node[0].attribute.push(attribute);
        convert(&made, EndType::Half)
    };
    let number = |fused: &Fused| {
        let tensor = the(fused, "ConstantOfShape").attribute[0]
            .t
            .clone()
            .unwrap();
        (tensor::data_type(&tensor).unwrap(), numbers(fused, &tensor))
    };
    let half = DataType::Float16;
    assert_eq!(number(&text("0.25", "Relu(s)")), (half, vec![0.25]));
    assert_eq!(number(&text("20000", "Relu(s)")), (half, vec![20000.0]));
    assert_eq!(
        number(&text("-1000000000", "Softmax(s) axis=-1")),
        (half, vec![-16384.0])
    );
    let beyond = text("1000000", "Relu(s)");
    assert_eq!(number(&beyond), (DataType::Float, vec![1e6]));
    assert_eq!(wide(&beyond), [("ConstantOfShape", WideReason::Range)]);
}

/// The model with Constants in place of initializers.
fn with_constants(text: &str) -> Model {
    let mut model = model(text);
    let graph = model.graph_mut();
    for tensor in std::mem::take(&mut graph.initializer) {
        let name = tensor.name().to_owned();
        let value = vec![("value", Attr::Tensor(Box::new(tensor)))];
        let constant = node("Constant", &[""; 0], &[&name], value);
        graph.node.insert(0, constant);
    }
    model
}

/// A Constant whose readers all read a constant in half is removed.
#[test]
fn constant_without_readers_is_removed() {
    let before = with_constants(
        "input x batch 4
         const w 4 2 = 0.5 1 1.5 2 2.5 3 3.5 4
         y = MatMul(x, w)
         output y",
    );
    let fused = convert(&before, EndType::Half);
    assert_eq!(operators(&fused.model), ["MatMul"]);
    assert_eq!(plan(&fused).operators, 1);
    let [weight] = constants(&fused) else {
        panic!("{:?}", constants(&fused).len())
    };
    assert_eq!(tensor::data_type(weight).unwrap(), DataType::Float16);
    assert_eq!(
        numbers(&fused, weight),
        [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]
    );
}

/// An ε that is a Constant is not rounded to half if its reader stays in float32.
#[test]
fn constant_of_statistics_stays_in_float32() {
    let projection = "weight w 4 2\n y = MatMul(n, w)\n output y";
    let before = with_constants(&format!("{RMS} {projection}"));
    let fused = convert(&before, EndType::Half);
    // The input becomes float32, and the quotient half.
    assert_eq!(plan(&fused).casts, 2);
    let sum = the(&fused, "Add");
    let made = fused.model.graph().node.iter();
    let mut held = made.filter(|node| node.op_type() == "Constant");
    let epsilon = held.find(|node| node.output[0] == sum.input[1]).unwrap();
    let tensor = epsilon.attribute[0].t.as_ref().unwrap();
    assert_eq!(tensor::data_type(tensor).unwrap(), DataType::Float);
    assert_eq!(numbers(&fused, tensor), [f64::from(0.000_01_f32)]);
}

/// Shape inference does not know the Concat of two open extents. Its type follows from its inputs.
#[test]
fn operator_of_unknown_shape_becomes_half() {
    let text = "input x batch u 4
         input z batch v 4
         a = Relu(x)
         b = Relu(z)
         c = Concat(a, b) axis=1
         const w 4 2 = 1 2 3 4 5 6 7 8
         y = MatMul(c, w)
         output y";
    let fused = in_half(text, EndType::Float32);
    assert_eq!(wide(&fused), []);
    assert_eq!((plan(&fused).operators, plan(&fused).casts), (4, 3));
}

/// A ConstantOfShape and a window operator compute float32 if no attribute gives their type.
#[test]
fn default_types_become_half() {
    let zeros = in_half(
        "indices p 2
         condition c
         input x 3 4
         a = ConstantOfShape(p)
         s = Where(c, x, a)
         y = Relu(s)
         output y",
        EndType::Half,
    );
    let value = the(&zeros, "ConstantOfShape").attribute[0].t.clone();
    let value = value.unwrap();
    assert_eq!(tensor::data_type(&value).unwrap(), DataType::Float16);
    assert_eq!(numbers(&zeros, &value), [0.0]);
    let window = in_half(
        "indices n
         input x 3 4
         w = HannWindow(n)
         y = Mul(x, w)
         output y",
        EndType::Half,
    );
    let attribute = &the(&window, "HannWindow").attribute[0];
    assert_eq!(attribute.name(), "output_datatype");
    assert_eq!(attribute.i(), i64::from(DataType::Float16.code()));
}

#[test]
fn operator_without_a_form_in_half_stays() {
    let text = "opset 13
         input x 3
         const l = 1
         const d = 2
         h = Neg(x)
         k = ReduceMax(h) axes=[0] keepdims=0
         r = Range(l, k, d)
         y = Relu(r)
         output y";
    let fused = in_half(text, EndType::Half);
    assert_eq!(wide(&fused), [("Range", WideReason::Operator)]);
    assert_eq!(
        operators(&fused.model),
        ["Neg", "ReduceMax", "Cast", "Range", "Cast", "Relu"]
    );
}

#[test]
fn bfloat16_has_the_range_of_float32() {
    let text = LAYER.replace("0.1 0.2", "1000000 0.2");
    let converted = FuseOptions {
        to: Some(HalfType::BFloat16),
        ..options()
    };
    let fused = unfold::fuse(&model(&text), &converted).unwrap();
    let [weight] = constants(&fused) else {
        panic!("{}", constants(&fused).len())
    };
    assert_eq!(tensor::data_type(weight).unwrap(), DataType::BFloat16);
    let first = half::bf16::from_f64(f64::from((f64::from(0.1_f32) * 1e6) as f32)).to_f64();
    assert_eq!(numbers(&fused, weight)[0], first);
    // The constant is outside the range of float16, so its reader stays in float32.
    let fused = in_half(&text, EndType::Float32);
    assert!(fused.plan.half.is_none(), "{:?}", fused.plan.half);
}

#[test]
fn strict_run_finds_the_overflow_of_a_naive_conversion() {
    // The square of 300 exceeds 65,504, and every element of the quotient is 1.
    let text = "input x 2 4
         const k = 300
         a = Sigmoid(x)
         b = Add(a, k)
         const e = 0.000001
         const two = 2
         s = Pow(b, two)
         m = ReduceMean(s) axes=[-1] keepdims=1
         v = Add(m, e)
         r = Sqrt(v)
         n = Div(b, r)
         y = Tanh(n)
         output y";
    let before = model(text);
    let wide = unfold::fuse(&before, &options()).unwrap().model;
    let half = in_half(text, EndType::Float32).model;
    let dims = Default::default();
    let inputs = random(Engine::load(&before, &dims).unwrap().inputs(), 0);
    let error =
        HalfError::measure([&before, &wide, &half], HalfType::Float16, (&inputs, &dims)).unwrap();
    assert_eq!(error.overflow, None);
    // The bound is two units in the last place of a float16 near 1.
    assert!(error.error.unwrap() < 2.0 * 2_f64.powi(-11), "{error:?}");
    assert_eq!(error.naive_overflow.as_deref(), Some("s"));
}

#[test]
fn strict_run_computes_positions_from_open_extents() {
    // For this CumSum, tract needs known extents of `x`.
    let text = "input x batch tokens
         const nought = 0
         zero = Cast(nought) to=7
         const unit = 1
         one = Cast(unit) to=7
         extents = Shape(x)
         count = Gather(extents, one) axis=0
         range = Range(zero, count, one)
         is_one = Equal(range, one)
         ones = Cast(is_one) to=7
         sums = CumSum(ones, zero)
         summed = Cast(sums) to=1
         c = Cos(summed)
         s = Add(x, c)
         y = Tanh(s)
         output y";
    let before = model(text);
    let wide = unfold::fuse(&before, &options()).unwrap().model;
    let half = in_half(text, EndType::Float32).model;
    let dims = "batch=3,tokens=5".parse().unwrap();
    let inputs = random(Engine::load(&before, &dims).unwrap().inputs(), 0);
    let error =
        HalfError::measure([&before, &wide, &half], HalfType::Float16, (&inputs, &dims)).unwrap();
    assert_eq!(error.overflow, None);
    assert!(error.error.unwrap() < 4.0 * 2_f64.powi(-11), "{error:?}");
}

#[test]
fn body_reads_float32_from_around_it() {
    let mut before = model(
        "input x 3
         condition c
         h = Relu(x)
         t = Tanh(h)
         y = If(c)
         z = Add(y, t)
         output z",
    );
    for (name, op) in [("then_branch", "Neg"), ("else_branch", "Exp")] {
        let body = GraphProto {
            name: Some(name.into()),
            node: vec![node(op, &["h"], &["o"], vec![])],
            output: vec![undeclared("o")],
            ..Default::default()
        };
        let branch = attribute(name, Attr::Graph(Box::new(body)));
        before.graph_mut().node[2].attribute.push(branch);
    }
    let fused = convert(&before, EndType::Half);
    let stays = ["If", "Add"];
    assert_eq!(wide(&fused), stays.map(|op| (op, WideReason::Unknown)));
    let nodes = fused.model.graph().node.iter();
    let casts = nodes.filter(|node| node.op_type() == "Cast" && node.attribute[0].i == Some(1));
    let widened: Vec<&str> = casts.map(|node| node.output[0].as_str()).collect();
    let branches = the(&fused, "If").attribute.iter();
    let bodies: Vec<&GraphProto> = branches.filter_map(|branch| branch.g.as_deref()).collect();
    assert_eq!(bodies.len(), 2);
    for body in bodies {
        let read = body.node.iter().flat_map(|node| &node.input);
        let read: Vec<&str> = read.map(String::as_str).collect();
        assert!(
            !read.is_empty() && read.iter().all(|name| widened.contains(name)),
            "{read:?}"
        );
    }
    // The output type of the If is not declared, so the Add that reads it stays in float32 too.
    let sum = &the(&fused, "Add").input;
    let result = &the(&fused, "If").output[0];
    assert_eq!(sum[0], *result);
    assert!(widened.contains(&sum[1].as_str()), "{sum:?}");
}

#[test]
fn cast_to_an_output_has_a_name_that_no_node_has() {
    let text = r#"<ir_version: 8, opset_import: ["" : 17]>
        named (float[2] x) => (float[2] y) {
            [r] r = Relu(x)
            [y] y = Tanh(r)
        }"#;
    let fused = convert(&Model::from_text(text).unwrap(), EndType::Float32);
    let nodes = &fused.model.graph().node;
    let mut names: Vec<&str> = nodes.iter().map(NodeProto::name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), nodes.len(), "{names:?}");
}

#[test]
fn output_that_is_half_already_is_not_cast() {
    let text = r#"<ir_version: 8, opset_import: ["" : 17]>
        halves (float[2] x) => (float[2] y, float16[2] z) {
            y = Relu(x)
            c = Cast<to = 10>(y)
            z = Tanh(c)
        }"#;
    let model = Model::from_text(text).unwrap();
    let kept = convert(&model, EndType::Float32);
    assert_eq!(ends(&kept.model), [1, 1, 10]);
    let expected = ["Cast", "Relu", "Identity", "Tanh", "Cast"];
    assert_eq!(operators(&kept.model), expected);
    assert_eq!(the(&kept, "Tanh").output, ["z"]);
    let half = convert(&model, EndType::Half);
    assert_eq!(ends(&half.model), [10, 10, 10]);
    assert_eq!(operators(&half.model), ["Relu", "Identity", "Tanh"]);
}

#[test]
fn initializer_of_a_half_input_is_half_and_that_of_an_output_stays() {
    let text = r#"<ir_version: 8, opset_import: ["" : 17]>
        stored (float[2] x, float[2] w) => (float[2] y, float[2] v)
        <float[2] w = {0.1, 2}, float[2] v = {0.3, 4}> {
            s = Mul(x, w)
            y = Add(s, v)
        }"#;
    let fused = convert(&Model::from_text(text).unwrap(), EndType::Half);
    assert_eq!(ends(&fused.model), [10, 10, 10, 1]);
    let stored = |name| {
        let mut tensors = constants(&fused).iter();
        let tensor = tensors.find(|tensor| tensor.name() == name).unwrap();
        (tensor::data_type(tensor).unwrap(), numbers(&fused, tensor))
    };
    let tenth = half::f16::from_f32(0.1).to_f64();
    assert_eq!(stored("w"), (DataType::Float16, vec![tenth, 2.0]));
    let v = vec![f64::from(0.3_f32), 4.0];
    assert_eq!(stored("v"), (DataType::Float, v));
}

#[test]
fn constant_that_half_rounds_to_0_keeps_a_logarithm_and_a_divisor_away_from_0() {
    let text = |epsilon: &str| {
        format!(
            "input x batch 4
             input z batch 4
             const e = {epsilon}
             r = Relu(x)
             s = ReduceSum(r) keepdims=1
             a = Add(s, e)
             l = Log(a)
             d = Div(z, a)
             p = Sigmoid(l)
             q = Mul(p, d)
             output q"
        )
    };
    let fused = in_half(&text("0.000000001"), EndType::Half);
    let stays = ["Add", "Log", "Div"];
    assert_eq!(wide(&fused), stays.map(|op| (op, WideReason::Range)));
    // 1e-7 is a number of float16, and no guard.
    let fused = in_half(&text("0.0000001"), EndType::Half);
    assert_eq!(wide(&fused), []);
}

#[test]
fn small_constant_without_a_logarithm_or_divisor_becomes_0() {
    let text = "input x batch 4
         const e = 0.000000001
         a = Add(x, e)
         y = Tanh(a)
         output y";
    let fused = in_half(text, EndType::Half);
    assert_eq!(wide(&fused), []);
    assert_eq!(numbers(&fused, &constants(&fused)[0]), [0.0]);
}

#[test]
fn bits_of_floats_and_scattered_sums_stay() {
    let text = r#"<ir_version: 10, opset_import: ["" : 18]>
        scattered (float[3, 2] x, int64[1, 1] at, float[1, 2] u) => (float[3, 2] y, float[3, 2] z) {
            a = Relu(x)
            y = ScatterND<reduction = "add">(a, at, u)
            z = ScatterND(a, at, u)
        }"#;
    let fused = convert(&Model::from_text(text).unwrap(), EndType::Half);
    assert_eq!(wide(&fused), [("ScatterND", WideReason::Operator)]);
    let text = r#"<ir_version: 11, opset_import: ["" : 26]>
        bits (float[3] x) => (int32[3] y) {
            a = Relu(x)
            y = BitCast<to = 6>(a)
        }"#;
    let fused = convert(&Model::from_text(text).unwrap(), EndType::Half);
    assert_eq!(wide(&fused), [("BitCast", WideReason::Operator)]);
}

/// onnxruntime 1.32 fuses such a Transpose and MatMul, and crashes in float16.
#[test]
fn products_move_before_transposes_of_the_batch() {
    let text = |perm: &str, weight: &str| {
        format!(
            "input x 5 2 4\n weight w {weight}\n t = Transpose(x) perm={perm}\n y = MatMul(t, w)\n output y"
        )
    };
    let moved = in_half(&text("[1,0,2]", "4 3"), EndType::Half);
    assert_eq!(operators(&moved.model), ["MatMul", "Transpose"]);
    assert!(plan(&moved).wide.is_empty());
    let before = model(&text("[1,0,2]", "4 3"));
    let half = convert(&before, EndType::Float32).model;
    let dims = Default::default();
    let inputs = random(Engine::load(&before, &dims).unwrap().inputs(), 0);
    let models = [&before, &before, &half];
    let error = HalfError::measure(models, HalfType::Float16, (&inputs, &dims)).unwrap();
    assert!(error.error.unwrap() < 2.0 * 2_f64.powi(-11), "{error:?}");
    // The channels come from the batch, so the product stays in float32.
    let stays = in_half(&text("[1,2,0]", "5 3"), EndType::Half);
    assert_eq!(wide(&stays), [("MatMul", WideReason::Operator)]);
    // onnxruntime does not fuse a Transpose of the last two axes in this way.
    let other = in_half(&text("[0,2,1]", "2 3"), EndType::Half);
    assert_eq!(operators(&other.model), ["Transpose", "MatMul"]);
    assert!(plan(&other).wide.is_empty());
}

#[test]
fn operators_whose_functions_fail_in_half_stay() {
    let text = r#"<ir_version: 10, opset_import: ["" : 20]>
        grids (float[1, 2, 3, 4] x, float[1, 2, 3] t) => (float[1, 2, 3, 4] y, float[1, 4, 5, 2] g) {
            a = Relu(x)
            y = MeanVarianceNormalization(a)
            u = Relu(t)
            size = Constant<value_ints = [1, 1, 4, 5]>()
            g = AffineGrid(u, size)
        }"#;
    let fused = convert(&Model::from_text(text).unwrap(), EndType::Half);
    let mut wide = wide(&fused);
    wide.sort_unstable_by_key(|(operator, _)| *operator);
    assert_eq!(
        wide,
        [
            ("AffineGrid", WideReason::Operator),
            ("MeanVarianceNormalization", WideReason::Operator)
        ]
    );
}

/// No operator casts a sequence, so its elements keep their type.
#[test]
fn sequence_that_is_an_output_stays() {
    let text = r#"<ir_version: 10, opset_import: ["" : 18]>
        parts (float[2, 4] x) => (seq(float[2, 1]) s, float[2, 4] y) {
            a = Relu(x)
            b = Exp(a)
            s = SplitToSequence<axis = 1>(b)
            y = ConcatFromSequence<axis = 1>(s)
        }"#;
    let fused = convert(&Model::from_text(text).unwrap(), EndType::Half);
    let wide = wide(&fused);
    let operators: Vec<&str> = wide.iter().map(|(operator, _)| *operator).collect();
    assert_eq!(operators, ["SplitToSequence", "ConcatFromSequence"]);
    let casts = fused
        .model
        .graph()
        .node
        .iter()
        .filter(|node| node.op_type() == "Cast");
    let cast: Vec<&str> = casts.map(|node| node.input[0].as_str()).collect();
    assert_eq!(cast, ["b", "y_wide"]);
}

#[test]
fn declared_type_of_a_sequence_is_dropped() {
    let mut before = model(
        "input x 2 4
         const k 4 = 2 4 1 0.5
         h = Mul(x, k)
         s = SplitToSequence(h) axis=1
         y = ConcatFromSequence(s) axis=1
         output y",
    );
    let element = declared("s", DataType::Float, &["2", "1"]).r#type.unwrap();
    let elem_type = Some(element);
    before.proto.graph.as_mut().unwrap().value_info = vec![ValueInfoProto {
        name: Some("s".to_owned()),
        r#type: Some(TypeProto {
            sequence_type: Some(Box::new(SequenceType { elem_type })),
            ..TypeProto::default()
        }),
        ..ValueInfoProto::default()
    }];
    let fused = convert(&before, EndType::Float32);
    let values = &fused.model.graph().value_info;
    assert!(values.iter().all(|value| value.name() != "s"));
    assert_eq!(constants(&fused)[0].data_type(), DataType::Float16.code());
}
