//! Compares the prover's operators with the reference interpreter of the tests, and with results by
//! hand.

use unfold::onnx::Model;
use unfold::onnx::proto::TensorProto;
use unfold::onnx::{DataType, tensor};
use unfold::prove::Proof;

use super::common::{
    declared, floats, node,
    reference::{self, Env, Value},
    text, undeclared,
};
use super::{is_not_proved, is_proved, proof};

/// The operators below that belong to onnxruntime.
const OF_RUNTIME: &[&str] = &[
    "FusedMatMul",
    "GroupNorm",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
];

/// Proves that a model computes expected values. The original computes a value from stored numbers,
/// and the other model stores the result. They are equal if the prover computes the expected value.
fn computes(model: &Model, expected: &[Value]) -> Proof {
    let mut original = model.clone();
    // Only the prover knows that `any − any` is 0. The operands are therefore constants only in the
    // prover.
    original.graph_mut().input.extend([
        declared("any", DataType::Float, &[]),
        declared("whole", DataType::Int64, &[]),
    ]);
    let mut stored = Model::from_proto(original.proto.clone());
    hide_constants(&mut original);
    for node in &mut original.graph_mut().node {
        if OF_RUNTIME.contains(&node.op_type()) {
            node.domain = Some("com.microsoft".into());
        }
    }
    stored.graph_mut().node.clear();
    for (place, value) in expected.iter().enumerate() {
        let mut output = model.graph().output[place].name().to_owned();
        if let Value::Ints(_) = value {
            // The test stores all integers and truth values as int64.
            let wide = format!("{output} wide");
            let cast = node("Cast", &[&output], &[&wide], vec![("to", 7_i64.into())]);
            original.graph_mut().node.push(cast);
            for model in [&mut original, &mut stored] {
                model.graph_mut().output[place] = undeclared(&wide);
            }
            output = wide;
        }
        let name = format!("expected {place}");
        let tensor = stored_value(&name, value);
        original.graph_mut().initializer.push(tensor.clone());
        let graph = stored.graph_mut();
        graph.initializer.push(tensor);
        graph
            .node
            .push(node("Identity", &[&name], &[&output], vec![]));
    }
    proof(&original, &stored, &[])
}

/// Adds a 0 that is computed from an input to each stored tensor, and lets the nodes read the sum.
fn hide_constants(model: &mut Model) {
    let graph = model.graph_mut();
    let mut nodes = vec![
        node("Sub", &["any", "any"], &["zero?"], vec![]),
        node("Sub", &["whole", "whole"], &["no?"], vec![]),
    ];
    for tensor in &graph.initializer {
        let name = tensor.name();
        let is_float = tensor.data_type() == DataType::Float.code();
        let zero = if is_float { "zero?" } else { "no?" };
        let hidden = format!("{name}?");
        nodes.push(node("Add", &[name, zero], &[&hidden], vec![]));
        for input in graph.node.iter_mut().flat_map(|node| &mut node.input) {
            if *input == name {
                input.clone_from(&hidden);
            }
        }
    }
    nodes.append(&mut graph.node);
    graph.node = nodes;
}

/// A tensor of these numbers, which float32 represents exactly.
fn stored_value(name: &str, value: &Value) -> TensorProto {
    match value {
        Value::Floats(numbers) => {
            let mut all = numbers.iter();
            let are_exact = all.all(|n| (n * 64.0).fract() == 0.0 && n.abs() < 1e5);
            assert!(are_exact, "{numbers}");
            floats(name, numbers)
        }
        Value::Ints(numbers) => {
            let list: Vec<i64> = numbers.iter().copied().collect();
            let extents = numbers.shape().iter();
            TensorProto {
                dims: extents.map(|&extent| extent as i64).collect(),
                ..tensor::make_i64(name, &list)
            }
        }
    }
}

/// The value with another last number.
fn differs(value: &Value) -> Value {
    match value.clone() {
        Value::Floats(mut numbers) => {
            *numbers.iter_mut().last().unwrap() += 1.0;
            Value::Floats(numbers)
        }
        Value::Ints(mut numbers) => {
            *numbers.iter_mut().last().unwrap() += 1;
            Value::Ints(numbers)
        }
    }
}

fn checked(lines: &str, expected: impl FnOnce(&Model) -> Vec<Value>) {
    let mut model = text::model(lines);
    if model.graph().output.is_empty() {
        let last = model.graph().node.last().unwrap().output.clone();
        model
            .graph_mut()
            .output
            .extend(last.iter().map(|name| undeclared(name)));
    }
    let expected = expected(&model);
    let proof = computes(&model, &expected);
    assert!(is_proved(&proof), "{lines}\n{expected:?}\n{proof:?}");
    let wrong: Vec<Value> = expected.iter().map(differs).collect();
    assert!(
        matches!(computes(&model, &wrong), Proof::Disproved { .. }),
        "{lines}"
    );
}

const NUMBERS: &str = "const a 2 3 = 1 -2 3 4 0 -6\nconst b 3 = 2 4 -8\nconst c 3 2 = 1 2 3 -4 5 6\n\
                       const image 1 4 3 3 = 1 2 3 4 5 6 7 8 9 -1 -2 -3 0 1 0 2 2 2 3 1 4 1 5 9 2 6 5 3 5 8 9 7 9 3 2 3\n\
                       const kernel 2 2 2 2 = 1 -1 2 3 0 1 1 0 2 2 -3 1 1 1 0 -1\nconst bias 2 = 10 -20\n\
                       const squares 2 2 = 4 9 0.25 1\nconst spread 2 4 = 1 -1 1 -1 3 -3 -3 3\n\
                       const two 2 = 2 -4\nconst one 2 = 1 3\nconst four 4 = 1 2 4 -1\nconst shift 4 = 5 0 -1 2\n";

/// Operators that the reference interpreter of the tests supports.
const SPECIFIED: &[&str] = &[
    "y = Add(a, b)",
    "y = Sub(b, a)",
    "y = Mul(a, b)",
    "y = Div(a, b)",
    "y = Neg(a)",
    "y = Reciprocal(b)",
    "y = Sqrt(squares)",
    "const e 1 = 2\ny = Pow(a, e)",
    "const e 1 = -2\ny = Pow(b, e)",
    "const e 1 = 0.5\ny = Pow(squares, e)",
    "y = MatMul(a, c)",
    "y = MatMul(b, c)",
    "y = MatMul(a, b)",
    "const l 2 1 2 3 = 1 2 3 4 5 6 7 8 9 1 2 3\nconst r 3 3 2 = 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9\ny = MatMul(l, r)",
    "y = Gemm(a, c, two) alpha=0.5 beta=2.0",
    "y = Gemm(c, a) transA=1 transB=1",
    "y = Conv(image, kernel, bias) group=2 pads=[1,0,0,2] strides=[1,2]",
    "y = Conv(image, kernel) group=2 dilations=[2,1] pads=[1,1,1,1]",
    "y = Conv(image, kernel) group=2 auto_pad=SAME_LOWER",
    "y = Conv(image, kernel) group=2 auto_pad=SAME_UPPER strides=[2,2]",
    "const k 4 1 3 3 = 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9\ny = Conv(image, k) group=4",
    "const k 4 1 2 2 = 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7\ny = ConvTranspose(image, k, bias) group=2 strides=[2,1] pads=[1,0,0,1]",
    "const k 4 3 2 2 = 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7\ny = ConvTranspose(image, k)",
    "y = AveragePool(image) kernel_shape=[2,2]",
    "y = AveragePool(image) kernel_shape=[2,1] pads=[1,0,0,0]",
    "y = AveragePool(image) kernel_shape=[2,2] pads=[1,1,0,0] count_include_pad=1 strides=[2,2]",
    "const x 1 1 2 2 = 1 2 3 4\ny = GlobalAveragePool(x)",
    "ints axes 1 = 1\nopset 18\ny = ReduceSum(a, axes) keepdims=0",
    "y = ReduceMean(spread) axes=[1]",
    "y = ReduceMean(spread) axes=[-1,0] keepdims=0",
    "const x 1 2 = 3 4\ny = ReduceL2(x) axes=[1]",
    "const x 1 2 2 = 1 2 3 4\nconst m 2 = 1 0\nconst v 2 = 4 0.25\ny = BatchNormalization(x, one, two, m, v) epsilon=0.0",
    "y = LayerNormalization(spread, four, shift) epsilon=0.0",
    "y = LayerNormalization(spread, four) epsilon=0.0 axis=-1",
    "const x 1 2 4 = 1 -1 1 -1 3 -3 -3 3\ny = InstanceNormalization(x, one, two) epsilon=0.0",
    "opset 18\nconst x 1 4 2 = 1 -1 1 -1 3 -3 -3 3\ny = GroupNormalization(x, one, two) epsilon=0.0 num_groups=2",
    "opset 21\nconst x 1 4 2 = 1 -1 1 -1 3 -3 -3 3\ny = GroupNormalization(x, four, shift) epsilon=0.0 num_groups=2",
    "const x 1 2 1 4 = 1 -1 3 -3 1 -1 -3 3\ny = GroupNorm(x, four, shift) epsilon=0.0 groups=2 channels_last=1 activation=0",
    "y = SkipLayerNormalization(spread, spread, four, shift) epsilon=0.0",
    "y = SkipSimplifiedLayerNormalization(spread, spread, four) epsilon=0.0",
    "y = SimplifiedLayerNormalization(spread, four) epsilon=0.0",
    "y = Transpose(image) perm=[2,0,3,1]",
    "y = Transpose(a)",
    "ints s 3 = 2 0 -1\nconst x 4 3 2 = 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6\ny = Reshape(x, s)",
    "y = Flatten(image) axis=2",
    "const x 1 3 1 = 1 2 3\nints s 1 = 2\ny = Squeeze(x, s)",
    "ints s 2 = 0 -1\ny = Unsqueeze(a, s)",
    "ints s 2 = 2 0\nints e 2 = -9 3\nints x 2 = 1 0\nints d 2 = -2 1\ny = Slice(a, s, e, x, d)",
    "ints s 1 = -2\nints e 1 = 100\nints x 1 = -1\ny = Slice(a, s, e, x)",
    "ints s 2 = 1 2\nu, v = Split(a, s) axis=1",
    "u, v = Split(c) axis=1",
    "y = Concat(a, a) axis=1",
    "y = Concat(a, a) axis=-2",
    "ints i 2 2 = 0 -1 1 0\ny = Gather(a, i) axis=1",
    "ints i 2 2 = 1 2 0 0\ny = GatherND(a, i)",
    "ints i 2 1 = 1 2\ny = GatherND(a, i) batch_dims=1",
    "ints s 3 = 2 1 3\ny = Expand(a, s)",
    "ints s 2 = 2 3\ny = Tile(a, s)",
    "ints s 4 = 1 0 2 -1\nconst v = 7\ny = Pad(a, s, v)",
    "ints s 4 = 1 2 0 1\ny = Pad(a, s) mode=reflect",
    "ints s 4 = 3 2 0 4\ny = Pad(a, s) mode=edge",
    "opset 19\nints s 4 = 3 2 0 4\ny = Pad(a, s) mode=wrap",
    "y = Shape(image) start=1 end=-1",
    "y = Size(image)",
    "ints i 2 = 3 -4\ny = Cast(i) to=1",
];

/// The reference interpreter of the tests shares no code with the prover.
#[test]
fn operators_match_the_reference_interpreter() {
    for case in SPECIFIED {
        // The line with the operator set must be first.
        let (versions, rest): (Vec<&str>, Vec<&str>) =
            case.lines().partition(|line| line.starts_with("opset"));
        let lines = [&versions.join("\n"), NUMBERS, &rest.join("\n")]
            .map(str::to_owned)
            .join("\n");
        checked(&lines, |model| reference::run(model, &Env::new()).unwrap());
    }
}

/// Operators with their results.
const BY_HAND: &[(&str, &str)] = &[
    ("y = Sum(a, b, b)", "const y 2 3 = 5 6 -13 8 8 -22"),
    ("y = Mean(a, b)", "const y 2 3 = 1.5 1 -2.5 3 2 -7"),
    (
        "const e 1 = 3\ny = Pow(a, e)",
        "const y 2 3 = 1 -8 27 64 0 -216",
    ),
    (
        "y = FusedMatMul(a, a) transB=1 alpha=0.5",
        "const y 2 2 = 7 -7 -7 26",
    ),
    ("y = Einsum(a, b) equation=ij,j->i", "const y 2 = -30 56"),
    (
        "y = Einsum(a, c) equation=ij,jk->ki",
        "const y 2 2 = 10 -26 28 -28",
    ),
    (
        "const x 2 1 2 = 1 2 3 4\ny = Einsum(x, x) equation=bhd,bhd->bh",
        "const y 2 1 = 5 25",
    ),
    (
        "y = Einsum(a, c) equation=...j,jk->...k",
        "const y 2 2 = 10 28 -26 -28",
    ),
    (
        "y = Einsum(a, b, two) equation=ij,j,i->ij",
        "const y 2 3 = 4 -16 -48 -32 0 -192",
    ),
    (
        "y = Einsum(two, a, c) equation=i,ij,jk->k",
        "const y 2 = 124 168",
    ),
    (
        "const x 1 1 2 = 1 2\nconst k 1 1 2 = 1 3\ny = ConvTranspose(x, k) output_shape=[2]",
        "const y 1 1 2 = 5 6",
    ),
    (
        "const x 1 1 2 = 1 2\nconst k 1 1 2 = 1 3\ny = ConvTranspose(x, k) auto_pad=SAME_UPPER",
        "const y 1 1 2 = 1 5",
    ),
    (
        "y = Einsum(a) equation=ij->ji",
        "const y 3 2 = 1 4 -2 0 3 -6",
    ),
    ("y = Einsum(a, b) equation=ij,k->", "const y = 0"),
    (
        "const x 2 2 2 = 1 2 3 4 5 6 7 8\ny = Einsum(x) equation=bnn->bn",
        "const y 2 2 = 1 4 5 8",
    ),
    (
        "const x 2 2 = 1 2 3 4\ny = Einsum(x, two) equation=ii,i->",
        "const y = -14",
    ),
    (
        "const x 1 2 = 5 7\ny = Einsum(two, x) equation=i,ij->j",
        "const y 2 = -10 -14",
    ),
    ("y = ReduceSumSquare(a) axes=[1]", "const y 2 1 = 14 52"),
    (
        "const x 1 4 1 1 = 1 2 3 4\ny = DepthToSpace(x) blocksize=2",
        "const y 1 1 2 2 = 1 2 3 4",
    ),
    (
        "const x 1 4 1 2 = 1 2 3 4 5 6 7 8\ny = DepthToSpace(x) blocksize=2 mode=CRD",
        "const y 1 1 2 4 = 1 3 2 4 5 7 6 8",
    ),
    (
        "const x 1 1 2 2 = 1 2 3 4\ny = SpaceToDepth(x) blocksize=2",
        "const y 1 4 1 1 = 1 2 3 4",
    ),
    (
        "ints x 1 = 1\ny = CumSum(a, x)",
        "const y 2 3 = 1 -1 2 4 4 -2",
    ),
    (
        "ints x 1 = 0\ny = CumSum(a, x) exclusive=1 reverse=1",
        "const y 2 3 = 4 0 -6 0 0 0",
    ),
    ("y = Trilu(a)", "const y 2 3 = 1 -2 3 0 0 -6"),
    (
        "ints k = -1\ny = Trilu(a, k) upper=0",
        "const y 2 3 = 0 0 0 4 0 0",
    ),
    (
        "ints i 2 1 = 2 -2\ny = GatherElements(a, i) axis=1",
        "const y 2 1 = 3 0",
    ),
    (
        "ints i 2 = 0 -1\nints d = 3\nconst v 2 = 5 7\ny = OneHot(i, d, v)",
        "const y 2 3 = 7 5 5 5 5 7",
    ),
    ("ints i 2 = 1 0\ny = Where(i, one, two)", "const y 2 = 1 -4"),
    (
        "ints s 2 = 4 3\ny = Resize(a, , , s) coordinate_transformation_mode=asymmetric nearest_mode=floor",
        "const y 4 3 = 1 -2 3 1 -2 3 4 0 -6 4 0 -6",
    ),
    (
        "const s 2 = 1 2\ny = Resize(a, , s) coordinate_transformation_mode=asymmetric nearest_mode=floor",
        "const y 2 6 = 1 1 -2 -2 3 3 4 4 0 0 -6 -6",
    ),
    (
        "ints i 2 2 = 0 3 2 0\ny = NonZero(i)",
        "ints y 2 2 = 0 1 1 0",
    ),
    (
        "ints s = 5\nints e = -2\nints d = -3\ny = Range(s, e, d)",
        "ints y 3 = 5 2 -1",
    ),
    (
        "ints s 2 = 2 1\ny = ConstantOfShape(s)",
        "const y 2 1 = 0 0",
    ),
    (
        "ints i 3 = 1 2 3\nints j = 2\ny = Less(i, j)",
        "ints y 3 = 1 0 0",
    ),
    (
        "ints i 3 = 7 2 9\nints j = 4\ny = Mod(i, j)",
        "ints y 3 = 3 2 1",
    ),
    (
        "ints i 3 = 7 2 9\nints j = 4\ny = Div(i, j)",
        "ints y 3 = 1 0 2",
    ),
    (
        "ints i 3 = 7 2 9\nints j = 4\ny = Min(i, j)",
        "ints y 3 = 4 2 4",
    ),
    (
        "ints i 2 1 1 1 = 2 5\nints j 1 1 3 1 = 1 3 9\nints k 1 = 4\nm = Max(i, j)\ny = Max(m, k)",
        "ints y 2 1 3 1 = 4 4 9 5 5 9",
    ),
    (
        "ints i 2 2 = 7 2 9 1\nints x 1 = 0\ny = ReduceSum(i, x) keepdims=0",
        "ints y 2 = 16 3",
    ),
    ("ints i 3 = 7 0 -9\ny = Sign(i)", "ints y 3 = 1 0 -1"),
    (
        "const x 1 1 3 = 1 3 9\ny = AveragePool(x) kernel_shape=[2] strides=[2] ceil_mode=1",
        "const y 1 1 2 = 2 9",
    ),
];

/// Operators that the reference interpreter lacks, with results by hand.
#[test]
fn operators_match_results_computed_by_hand() {
    for &(case, result) in BY_HAND {
        checked(&[NUMBERS, case].join(""), |_| {
            let expected = text::model(result);
            vec![reference::constant(&expected.graph().initializer[0]).unwrap()]
        });
    }
}

fn einsum(equation: &str) -> Model {
    text::model(&format!(
        "input x 2 3 4\nweight w 4 5\ny = Einsum(x, w) equation={equation}\noutput y"
    ))
}

#[test]
fn einsum_without_output_letters_uses_the_implicit_output() {
    assert!(is_proved(&proof(
        &einsum("abc,cd"),
        &einsum("abc,cd->abd"),
        &[]
    )));
    assert!(is_proved(&proof(
        &einsum("...z,za"),
        &einsum("...z,za->...a"),
        &[]
    )));
    assert!(!is_proved(&proof(
        &einsum("zbc,ca"),
        &einsum("zbc,ca->zba"),
        &[]
    )));
}

fn sliced(bounds: &str) -> Model {
    text::model(&format!(
        "input x 2 4\nscale g 4\nweight w 4 3\nints axis 1 = 0\n{bounds}\na = Slice(x, s, e, axis, p)\nn = Mul(a, g)\ny = MatMul(n, w)\noutput y"
    ))
}

#[test]
fn backward_slice_before_the_start_equals_only_itself() {
    // By the specification, the Slice takes the first place here. The reference implementation
    // takes none.
    let unclear = sliced("ints s 1 = -3\nints e 1 = -9\nints p 1 = -1");
    assert!(is_proved(&proof(&unclear, &unclear, &[])));
    for end in [0, 1] {
        let one_way = sliced(&format!("ints s 1 = 0\nints e 1 = {end}\nints p 1 = 1"));
        assert!(!is_proved(&proof(&unclear, &one_way, &[])), "{end}");
    }
}

#[test]
fn batch_norm_in_training_is_not_inference_batch_norm() {
    let mut before = text::model(
        "input x batch 3\nscale g 3\nshift b 3\nshift m 3\ndivisor v 3\ny = BatchNormalization(x, g, b, m, v)\noutput y",
    );
    before.proto.opset_import[0].version = Some(13);
    let mut trains = before.clone();
    trains.graph_mut().node[0]
        .output
        .extend(["mean", "var"].map(String::from));
    assert!(is_not_proved(&before, &trains));
}
