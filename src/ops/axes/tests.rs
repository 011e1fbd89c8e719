//! Tests how the axes of outputs depend on the axes of inputs. Answers are compared with
//! hand-written ones, and tested by perturbing inputs.

use ndarray::{ArrayD, Axis};

use super::{AxisRead, reads};
use crate::analysis::Analysis;
use crate::common::numbers::Kind;
use crate::common::reference::{self, Env, Value};
use crate::common::{judge, text};
use crate::onnx::Model;

/// Writes an answer as a word: `2` for the same place of axis 2, `*` for all, `-` for absent,
/// `1+3/2` for every second place of axis 1 starting at 3, `1@1` for the places of axis 1 that
/// input 1 lists, `?` for unknown.
fn word(read: AxisRead) -> String {
    match read {
        AxisRead::Same(axis) => axis.to_string(),
        AxisRead::All => "*".into(),
        AxisRead::Absent => "-".into(),
        AxisRead::Strided { axis, start, step } => format!("{axis}+{start}/{step}"),
        AxisRead::Picked { axis, indices } => format!("{axis}@{indices}"),
        AxisRead::Unknown => "?".into(),
    }
}

/// The answers for each axis of the output of the last node. Spaces separate the words of one axis.
fn answers(model: &Model) -> Vec<String> {
    let analysis = Analysis::new(model).unwrap();
    let at = analysis.at(model.graph().node.len() - 1);
    let words = |axis: usize| {
        reads(&at, 0, axis)
            .into_iter()
            .map(word)
            .collect::<Vec<_>>()
            .join(" ")
    };
    (0..at.output_rank(0).unwrap_or(1)).map(words).collect()
}

fn floats(env: &Env, name: &str) -> Option<ArrayD<f64>> {
    env.get(name)?.floats().ok().cloned()
}

/// Runs the last node after changing the elements of one input at one place of an axis.
fn perturbed(model: &Model, env: &Env, name: &str, axis: usize, place: usize) -> ArrayD<f64> {
    let mut changed = floats(env, name).unwrap();
    for (number, element) in changed
        .index_axis_mut(Axis(axis), place)
        .iter_mut()
        .enumerate()
    {
        *element = *element * -1.5 + 3.25 + number as f64;
    }
    let mut env = env.clone();
    env.insert(name.to_owned(), Value::Floats(changed));
    let node = model.graph().node.last().unwrap();
    let made = reference::node(node, &env, model.opset("").unwrap()).unwrap();
    made[0].floats().unwrap().clone()
}

/// The places of an axis at which two arrays differ.
fn differing(one: &ArrayD<f64>, other: &ArrayD<f64>, axis: usize) -> Vec<usize> {
    let pairs = one.axis_iter(Axis(axis)).zip(other.axis_iter(Axis(axis)));
    pairs
        .enumerate()
        .filter(|(_, (one, other))| one != other)
        .map(|(place, _)| place)
        .collect()
}

/// Tests an answer against the reference. After a change at one place of an input, the output may
/// change only at the places that the answer allows.
fn check_against_reference(model: &Model, open: usize) {
    let analysis = Analysis::new(model).unwrap();
    let node = model.graph().node.len() - 1;
    let at = analysis.at(node);
    let env = reference::values(model, &judge::inputs(model, open, true, Kind::Exact)).unwrap();
    let last = model.graph().node.last().unwrap();
    let Some(before) = floats(&env, &last.output[0]) else {
        return;
    };
    for axis in 0..before.ndim() {
        for (name, read) in last.input.iter().zip(reads(&at, 0, axis)) {
            let Some(value) = floats(&env, name) else {
                continue;
            };
            let (along, start, step) = match read {
                AxisRead::Same(along) => (along, 0, 1),
                AxisRead::Strided { axis, start, step } => (axis, start, step),
                _ => continue,
            };
            assert!(
                step > 1 || start > 0 || value.len_of(Axis(along)) >= before.len_of(Axis(axis))
            );
            for place in 0..value.len_of(Axis(along)) {
                let after = perturbed(model, &env, name, along, place);
                let is_read = |shown: &usize| start + shown * step == place;
                let shown = differing(&before, &after, axis);
                assert!(
                    shown.iter().all(is_read),
                    "{name} {read:?}: {shown:?}\n{}",
                    text::print(model)
                );
            }
        }
    }
}

/// The cases: declarations, a node, and the answer for each axis of its output.
const CASES: &[(&str, &str, &[&str])] = &[
    // Element-wise operators broadcast.
    (
        "input x batch 3 4 / input z 3 1",
        "Add(x, z)",
        &["0 -", "1 0", "2 -"],
    ),
    (
        "input x batch 4 / input z batch 4",
        "Mul(x, z)",
        &["0 0", "1 1"],
    ),
    (
        "input x batch 4 / input z other 4",
        "Mul(x, z)",
        &["? ?", "1 1"],
    ),
    (
        "input x batch 4 / const z 1 1 = 2",
        "Sub(x, z)",
        &["0 -", "1 -"],
    ),
    (
        "input x batch 4 / const z 4 = 2 3 4 5",
        "PRelu(x, z)",
        &["0 -", "1 0"],
    ),
    ("input x batch 4", "Relu(x) junk=1", &["?", "?"]),
    ("input x batch 4", "Relu(x)", &["0", "1"]),
    // Rows, columns, stacks.
    (
        "input x batch 5 4 / weight w 4 6",
        "MatMul(x, w)",
        &["0 -", "1 *", "* 1"],
    ),
    (
        "input x 2 5 4 / input z 1 4 6",
        "MatMul(x, z)",
        &["0 -", "1 *", "* 2"],
    ),
    (
        "input x batch 2 5 4 / input z batch 2 4 6",
        "MatMul(x, z)",
        &["0 0", "1 1", "2 *", "* 3"],
    ),
    (
        "input x batch 5 4 / input z other 4 6",
        "MatMul(x, z)",
        &["? ?", "1 *", "* 2"],
    ),
    (
        "input x batch 5 4 / weight w 4",
        "MatMul(x, w)",
        &["0 -", "1 *"],
    ),
    (
        "input x batch 4 / weight w 6 4 / shift b 6",
        "Gemm(x, w, b) transB=1",
        &["0 * -", "* 0 0"],
    ),
    (
        "input x 4 5 / weight w 4 6 / shift b 5 1",
        "Gemm(x, w, b) transA=1",
        &["1 * 0", "* 1 -"],
    ),
    (
        "input x batch 4 / weight w 4 6 / input b other 6",
        "Gemm(x, w, b)",
        &["? ? ?", "* 1 1"],
    ),
    // Operators that mix one axis and keep all others.
    ("input x batch 5 4", "Softmax(x) axis=1", &["0", "*", "2"]),
    (
        "opset 11 / input x batch 5 4",
        "Softmax(x) axis=1",
        &["0", "*", "*"],
    ),
    (
        "opset 11 / input x batch 5 4",
        "LogSoftmax(x) axis=2",
        &["0", "1", "*"],
    ),
    (
        "input x batch 5 4 / scale g 4 / shift b 4",
        "LayerNormalization(x, g, b)",
        &["0 - -", "1 - -", "* * *"],
    ),
    (
        "input x 3 5 4 / scale g 5 4",
        "LayerNormalization(x, g) axis=1",
        &["0 -", "* *", "* *"],
    ),
    (
        "input x 2 4 3 / scale g 4 / shift b 4",
        "InstanceNormalization(x, g, b)",
        &["0 - -", "1 0 0", "* - -"],
    ),
    (
        "input x 2 4 3 / scale g 4 / shift b 4 / shift m 4 / const v 4 = 1 4 2 9",
        "BatchNormalization(x, g, b, m, v)",
        &["0 - - - -", "1 0 0 0 0", "2 - - - -"],
    ),
    (
        "input x batch 5 4",
        "ReduceMean(x) axes=[1] keepdims=0",
        &["0", "2"],
    ),
    (
        "input x batch 5 4",
        "ReduceMean(x) axes=[1]",
        &["0", "*", "2"],
    ),
    (
        "input x batch 5 4 / ints a 1 = 2",
        "ReduceSum(x, a)",
        &["0 *", "1 *", "* *"],
    ),
    // Movements keep an axis that is not merged or split.
    (
        "input x batch 5 4",
        "Transpose(x) perm=[2,0,1]",
        &["2", "0", "1"],
    ),
    (
        "input x batch 5 4 / ints s 4 = 0 5 2 2",
        "Reshape(x, s)",
        &["0 *", "1 *", "? ?", "? ?"],
    ),
    (
        "input x batch 5 4 / ints s 2 = -1 4",
        "Reshape(x, s)",
        &["? ?", "2 *"],
    ),
    (
        "input x batch 5 4 / ints s 3 = 0 4 5",
        "Reshape(x, s)",
        &["? ?", "? ?", "? ?"],
    ),
    (
        "input x batch 1 4 / ints a 1 = 1",
        "Squeeze(x, a)",
        &["0 *", "2 *"],
    ),
    ("input x batch 4", "Flatten(x)", &["0", "1"]),
    (
        "input x batch 5 4 / input z batch 1 4",
        "Concat(x, z) axis=1",
        &["0 0", "? ?", "2 2"],
    ),
    (
        "input x batch 5 4 / ints p 2 = 2 3",
        "Split(x, p) axis=1",
        &["0 *", "1+0/1 *", "2 *"],
    ),
    (
        "input x batch 7 4 / ints b 1 = 1 / ints e 1 = 9 / ints a 1 = 1 / ints k 1 = 2",
        "Slice(x, b, e, a, k)",
        &["0 * * * *", "1+1/2 * * * *", "2 * * * *"],
    ),
    (
        "input x batch 7 4 / ints b 1 = -3 / ints e 1 = 9 / ints a 1 = 1",
        "Slice(x, b, e, a)",
        &["0 * * *", "1+4/1 * * *", "2 * * *"],
    ),
    (
        "input x batch 7 4 / ints b 1 = -1 / ints e 1 = -9 / ints a 1 = 1 / ints k 1 = -1",
        "Slice(x, b, e, a, k)",
        &["0 * * * *", "? ? ? ? ?", "2 * * * *"],
    ),
    (
        "input x batch 5 4 / ints i = 3",
        "Gather(x, i) axis=1",
        &["0 *", "2 *"],
    ),
    (
        "input x batch 5 4 / ints i 2 = 3 -1",
        "Gather(x, i) axis=1",
        &["0 *", "1@1 0", "2 *"],
    ),
    (
        "input x 1 5 4 / ints s 3 = 3 5 4",
        "Expand(x, s)",
        &["- *", "1 *", "2 *"],
    ),
    (
        "input x batch 5 4 / ints s 3 = 3 1 1",
        "Expand(x, s)",
        &["? ?", "1 *", "2 *"],
    ),
    (
        "input x batch 5 4 / ints r 3 = 1 2 1",
        "Tile(x, r)",
        &["0 *", "? ?", "2 *"],
    ),
    (
        "input x batch 5 4 / ints p 6 = 0 1 0 0 0 0",
        "Pad(x, p)",
        &["0 *", "? ?", "2 *"],
    ),
    // Layers for images.
    (
        "input x batch 4 6 6 / weight w 5 4 3 3 / shift b 5",
        "Conv(x, w, b)",
        &["0 * *", "* 0 0", "? ? ?", "? ? ?"],
    ),
    (
        "input x batch 4 6 6 / weight w 4 1 3 1",
        "Conv(x, w) group=4",
        &["0 *", "1 0", "? ?", "3 *"],
    ),
    (
        "input x batch 4 6 6 / weight w 4 1 1 1",
        "Conv(x, w) group=4 pads=[0,1,0,1]",
        &["0 *", "1 0", "2 *", "? ?"],
    ),
    (
        "input x batch 4 6 6 / weight w 6 2 1 1",
        "Conv(x, w) group=2 strides=[2,1]",
        &["0 *", "? ?", "? ?", "3 *"],
    ),
    (
        "input x batch 4 6 6",
        "MaxPool(x) kernel_shape=[2,2]",
        &["0", "1", "?", "?"],
    ),
    (
        "input x batch 4 6 6",
        "GlobalAveragePool(x)",
        &["0", "1", "*", "*"],
    ),
    // Fused operators, and unknown operators.
    (
        "input x batch 5 4 / shift b 4",
        "com.microsoft.BiasGelu(x, b)",
        &["0 -", "1 -", "2 0"],
    ),
    (
        "input x batch 5 4",
        "com.microsoft.QuickGelu(x) alpha=1.5",
        &["0", "1", "2"],
    ),
    (
        "input x batch 5 4 / input z batch 5 4 / scale g 4 / shift b 4",
        "com.microsoft.SkipLayerNormalization(x, z, g, b)",
        &["0 0 - -", "1 1 - -", "* * * *"],
    ),
    (
        "input x batch 5 4 / input z batch 6 4",
        "com.microsoft.FusedMatMul(x, z) transB=1",
        &["0 0", "1 *", "* 1"],
    ),
    ("input x batch 5 4", "com.example.Relu(x)", &["?"]),
    // Resize on axes that it does not scale. Some transformations add half a place to each
    // coordinate, which is then rounded down or up.
    (
        "input x batch 2 4 4 / const f 4 = 1 1 2 2",
        "Resize(x, , f) mode=linear",
        &["0 * *", "1 * *", "? ? ?", "? ? ?"],
    ),
    (
        "input x batch 2 4 4 / const f 4 = 1 1 2 2",
        "Resize(x, , f) coordinate_transformation_mode=tf_half_pixel_for_nn nearest_mode=floor",
        &["0 * *", "1 * *", "? ? ?", "? ? ?"],
    ),
    (
        "input x batch 2 4 4 / const f 4 = 1 1 2 2",
        "Resize(x, , f) coordinate_transformation_mode=tf_half_pixel_for_nn nearest_mode=ceil",
        &["? ? ?", "? ? ?", "? ? ?", "? ? ?"],
    ),
];

/// A model with a single node, whose first output is `y`.
fn one_node(declared: &str, call: &str) -> Model {
    let lines = declared.replace(" / ", "\n");
    let made = if call.starts_with("Split") {
        "y, rest"
    } else {
        "y"
    };
    text::model(&format!("{lines}\n{made} = {call}\noutput y"))
}

#[test]
fn axis_reads_match_hand_written_answers() {
    for &(declared, call, expected) in CASES {
        let model = one_node(declared, call);
        assert_eq!(answers(&model), expected, "{declared}: {call}");
    }
}

#[test]
fn axis_reads_match_perturbed_reference_runs() {
    for &(declared, call, _) in CASES.iter().filter(|(declared, call, _)| {
        // Operators that the reference does not support are left out, and so are extents that may
        // or may not broadcast.
        let unknown = ["junk", "com.example", "QuickGelu", "FusedMatMul", "Flatten"];
        !declared.contains("other") && !unknown.iter().any(|word| call.contains(word))
    }) {
        let model = one_node(declared, call);
        for open in [2, 3] {
            let is_run =
                reference::values(&model, &judge::inputs(&model, open, true, Kind::Exact)).is_ok();
            // An Expand to a constant shape fails for some sizes of the open extent.
            if is_run || !call.contains("Expand") {
                check_against_reference(&model, open);
            }
        }
    }
}

/// The queries of an Attention are independent, unless the number of keys that a query reads
/// depends on its place.
#[test]
fn attention_queries_are_independent_unless_causal_or_windowed() {
    let with = |attributes: &str| {
        text::model(&format!(
            "opset 23
             input q batch 2 5 4
             input k batch 2 7 4
             input v batch 2 7 4
             input m 5 7
             y = Attention(q, k, v, m) {attributes}
             output y"
        ))
    };
    let expected = ["0 0 0 -", "1 1 1 -", "2 * * 0", "* * * *"];
    assert_eq!(answers(&with("scale=0.5")), expected);
    assert_eq!(answers(&with("is_causal=1"))[2], "? ? ? ?");
    assert_eq!(answers(&with("is_causal=1"))[0], "0 0 0 -");
    assert_eq!(answers(&with("window=3"))[2], "? ? ? ?");
}

#[test]
fn a_product_reads_its_tokens_and_all_of_its_weight() {
    let model = Model::open("models/digits/un-dynamo.onnx").unwrap();
    let analysis = Analysis::new(&model).unwrap();
    let graph = &analysis.graph;
    let mut nodes = graph.order().iter().copied();
    let at = analysis.at(nodes.find(|&node| graph.is(node, "MatMul")).unwrap());
    assert_eq!(reads(&at, 0, 1), [AxisRead::Same(1), AxisRead::All]);
    assert_eq!(reads(&at, 0, 2), [AxisRead::All, AxisRead::Same(1)]);
}
