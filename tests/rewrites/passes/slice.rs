//! Independent regions are sliced into parts with results equal to the last bit, and dependent
//! regions stay whole.

use unfold::onnx::Model;
use unfold::onnx::tensor::read_i64;
use unfold::plan::MemoryChange;
use unfold::prove::{Proof, prove};
use unfold::{FuseOptions, Fused, MemoryGoal, Slicing};

use crate::common::text::{model, print};
use crate::common::{initializer, operators};
use crate::same;

/// Attention with two heads of 12 queries.
const ATTENTION: &str = "input q 1 2 12 4
    input k 1 2 4 12
    input v 1 2 12 4
    s = MatMul(q, k)
    p = Softmax(s) axis=-1
    y = MatMul(p, v)
    output y";

/// An MLP on 7 tokens.
const MLP: &str = "opset 20
    input x 1 7 4
    weight w 4 32
    shift b 32
    weight v 32 4
    h = MatMul(x, w)
    a = Add(h, b)
    g = Gelu(a)
    y = MatMul(g, v)
    output y";

pub fn with_parts(parts: usize) -> Slicing {
    Slicing {
        parts: Some(parts),
        ..Slicing::default()
    }
}

pub fn with_goal(goal: MemoryGoal) -> Slicing {
    Slicing {
        memory: Some(goal),
        ..Slicing::default()
    }
}

pub fn fused(model: &Model, slicing: &Slicing) -> Fused {
    unfold::fuse(
        model,
        &FuseOptions {
            slicing: slicing.clone(),
            ..FuseOptions::default()
        },
    )
    .unwrap()
}

/// Slices a model. Asserts that the result is equal to the last bit and proved, and that a second
/// run changes nothing, with or without slicing.
pub fn sliced(model: &Model, slicing: &Slicing) -> (Model, MemoryChange) {
    let Fused {
        model: after, plan, ..
    } = fused(model, slicing);
    same(model, &after, 0.0);
    let proof = prove(model, &after, &plan.tensors, &Default::default());
    assert!(
        matches!(proof, Proof::Proved { .. }),
        "{proof:?}\n{}",
        print(&after)
    );
    for again in [slicing, &Slicing::default()] {
        assert_eq!(print(&fused(&after, again).model), print(&after));
    }
    assert_eq!(print(&fused(model, slicing).model), print(&after));
    (after, plan.memory.unwrap())
}

/// The number of parts of each region, and the operators of the result.
fn parts_and_operators(text: &str, slicing: &Slicing) -> (Vec<usize>, Vec<String>) {
    let (after, change) = sliced(&model(text), slicing);
    let names = operators(&after).into_iter().map(str::to_owned).collect();
    (change.cuts.iter().map(|cut| cut.parts).collect(), names)
}

pub fn assert_whole(text: &str) {
    let model = model(text);
    let Fused {
        model: after, plan, ..
    } = fused(&model, &with_parts(2));
    assert_eq!(plan.memory.unwrap().cuts, []);
    same(&model, &after, 0.0);
    assert_eq!(
        operators(&after),
        operators(&fused(&model, &Slicing::default()).model)
    );
}

#[test]
fn attention_queries_are_sliced_into_parts() {
    let (parts, operators) = parts_and_operators(ATTENTION, &with_parts(3));
    assert_eq!(parts, [3]);
    let part = ["MatMul", "Softmax", "MatMul"];
    assert_eq!(
        operators,
        [&["Split"][..], &part, &part, &part, &["Concat"]].concat()
    );
}

#[test]
fn mlp_tokens_are_sliced_into_unequal_parts() {
    let (after, change) = sliced(&model(MLP), &with_parts(3));
    assert_eq!((change.cuts[0].extent, change.cuts[0].parts), (7, 3));
    let split = after
        .graph()
        .node
        .iter()
        .find(|node| node.op_type() == "Split")
        .unwrap();
    let extents = read_i64(initializer(&after, &split.input[1]), after.externals()).unwrap();
    assert_eq!(extents.into_raw_vec_and_offset().0, [3, 2, 2]);
}

#[test]
fn bias_of_a_sliced_product_is_added_in_each_part() {
    let text = MLP.replace(
        "y = MatMul(g, v)",
        "shift c 4\nm = MatMul(g, v)\ny = Add(m, c)",
    );
    let (_, operators) = parts_and_operators(&text, &with_parts(2));
    let part = ["MatMul", "Add", "Gelu", "MatMul", "Add"];
    assert_eq!(
        operators,
        [&["Split"][..], &part, &part, &["Concat"]].concat()
    );
}

#[test]
fn parts_are_capped_at_the_extent() {
    assert_eq!(parts_and_operators(MLP, &with_parts(100)).0, [7]);
}

#[test]
fn constant_bias_along_the_axis_is_sliced() {
    let text = "input q 1 1 12 4
        input k 1 1 4 12
        input v 1 1 12 4
        shift bias 1 12 12
        s = MatMul(q, k)
        t = Add(s, bias)
        p = Softmax(t) axis=-1
        y = MatMul(p, v)
        output y";
    let (parts, operators) = parts_and_operators(text, &with_parts(2));
    let part = ["MatMul", "Add", "Softmax", "MatMul"];
    assert_eq!(parts, [2]);
    assert_eq!(
        operators,
        [&["Split"][..], &part, &part, &["Concat"]].concat()
    );
}

#[test]
fn broadcast_operand_is_read_by_each_part() {
    let text = "input q 1 2 12 4
        input k 1 2 4 12
        input v 1 2 12 4
        input mask 1 1 1 12
        s = MatMul(q, k)
        t = Add(s, mask)
        p = Softmax(t) axis=-1
        y = MatMul(p, v)
        output y";
    let (after, _) = sliced(&model(text), &with_parts(2));
    let reads = after
        .graph()
        .node
        .iter()
        .filter(|node| node.input.iter().any(|name| name == "mask"));
    assert_eq!(
        reads.map(|node| node.op_type()).collect::<Vec<_>>(),
        ["Add", "Add"]
    );
}

#[test]
fn reshape_in_a_sliced_region_is_sliced() {
    let text = "input x 1 6 4
        weight w 4 32
        weight v 8 2
        ints split 4 = 1 6 4 8
        h = MatMul(x, w)
        r = Reshape(h, split)
        t = Transpose(r) perm=[0,2,1,3]
        y = MatMul(t, v)
        output y";
    let (after, change) = sliced(&model(text), &with_parts(2));
    assert_eq!(change.cuts.len(), 1, "{}", print(&after));
}

#[test]
fn softmax_along_every_axis_prevents_slicing() {
    assert_whole(
        "input x 6 4
        weight w 4 32
        h = MatMul(x, w)
        s = Softmax(h) axis=0
        t = Softmax(s) axis=1
        weight v 32 2
        y = MatMul(t, v)
        output y",
    );
}

#[test]
fn softmax_axis_is_not_sliced_behind_a_gather() {
    // The index picks one token, so that after the Gather the axis at this position is the channels
    // of the Softmax.
    assert_whole(
        "input x 1 6 8
        ints i = 0
        s = Softmax(x) axis=2
        y = Gather(s, i) axis=1
        output y",
    );
}

#[test]
fn dynamic_quantize_linear_is_not_sliced() {
    let model = model(
        "input x 6 4
        weight w 4 32
        h = MatMul(x, w)
        q, scale, zero = DynamicQuantizeLinear(h)
        d = DequantizeLinear(q, scale, zero)
        weight v 32 4
        y = MatMul(d, v)
        output y",
    );
    let change = fused(&model, &with_parts(2)).plan.memory.unwrap();
    assert!(
        change
            .cuts
            .iter()
            .all(|cut| !cut.operators.contains(&"DynamicQuantizeLinear".to_owned()))
    );
}

#[test]
fn random_operators_are_not_sliced() {
    let model = model(
        "opset 20
        input x 1 7 4
        weight w 4 32
        weight v 32 4
        h = MatMul(x, w)
        n = RandomNormalLike(h)
        a = Add(h, n)
        g = Gelu(a)
        y = MatMul(g, v)
        output y",
    );
    let change = fused(&model, &with_parts(2)).plan.memory.unwrap();
    assert!(
        change
            .cuts
            .iter()
            .all(|cut| !cut.operators.contains(&"RandomNormalLike".to_owned()))
    );
}

#[test]
fn graph_output_in_a_sliced_region_stays_whole() {
    let text = MLP.replace("output y", "output y\noutput g");
    let (after, _) = sliced(&model(&text), &with_parts(2));
    assert!(
        after
            .graph()
            .output
            .iter()
            .any(|output| output.name() == "g")
    );
    let concat = after
        .graph()
        .node
        .iter()
        .find(|node| node.output.iter().any(|name| name == "g"))
        .unwrap();
    assert!(["Concat", "Gelu"].contains(&concat.op_type()));
}

#[test]
fn axis_that_a_squeeze_would_drop_is_not_sliced() {
    // In two parts, the first axis would have one place, which a Squeeze without axes would remove.
    let (after, _) = sliced(
        &model(
            "input x 2 1 5 4
            weight w 4 32
            h = MatMul(x, w)
            s = Squeeze(h)
            weight v 32 2
            y = MatMul(s, v)
            output y",
        ),
        &with_parts(2),
    );
    let squeezes = after
        .graph()
        .node
        .iter()
        .filter(|node| node.op_type() == "Squeeze");
    for squeeze in squeezes {
        assert!(
            squeeze.input.len() > 1 || squeeze.input[0] == "h",
            "{}",
            print(&after)
        );
    }
}

#[test]
fn skip_slicing_keeps_the_graph_whole() {
    let options = FuseOptions {
        slicing: with_parts(2),
        skip: vec!["slicing".into()],
        ..FuseOptions::default()
    };
    let fused = unfold::fuse(&model(ATTENTION), &options).unwrap();
    assert!(fused.plan.memory.is_none() && fused.model.graph().node.len() == 3);
}

#[test]
fn portable_target_keeps_the_graph_whole_with_a_reason() {
    let options = FuseOptions {
        slicing: with_goal(MemoryGoal::Min),
        target: unfold::Target::Portable,
        ..FuseOptions::default()
    };
    let fused = unfold::fuse(&model(ATTENTION), &options).unwrap();
    let change = fused.plan.memory.unwrap();
    let reason = "`--target portable` keeps each attention whole";
    assert_eq!(
        (change.cuts.len(), change.reason.as_deref()),
        (0, Some(reason))
    );
    assert!(change.held.iter().all(|held| held.reason == reason));
    assert_eq!(fused.model.graph().node.len(), 3);
}

#[test]
fn values_left_at_the_peak_have_reasons() {
    let text = "input x 6 4
        weight w 4 32
        weight v 32 2
        h = MatMul(x, w)
        s = Softmax(h) axis=0
        t = Softmax(s) axis=1
        y = MatMul(t, v)
        output y";
    let change = fused(&model(text), &with_goal(MemoryGoal::Min))
        .plan
        .memory
        .unwrap();
    let reasons: Vec<_> = change
        .held
        .iter()
        .map(|held| (held.value.as_str(), held.reason.as_str()))
        .collect();
    let expected = [
        ("h", "no cut around it lowers the peak"),
        ("s", "no region around it can be cut"),
    ];
    assert_eq!(reasons, expected, "{change:?}");
}

#[test]
fn memory_goal_is_reached_with_the_fewest_parts() {
    let (after, change) = sliced(&model(MLP), &with_goal(MemoryGoal::Bytes(1300)));
    assert_eq!(
        (change.before, change.cuts[0].parts, change.is_missed()),
        (1792, 2, false)
    );
    // The peak is in the first part: four tokens with 32 channels, twice, and the other three input
    // tokens.
    assert_eq!(change.after, 2 * 4 * 4 * 32 + 4 * 3 * 4);
    let before = fused(&model(MLP), &Slicing::default())
        .model
        .graph()
        .node
        .len();
    assert_eq!(after.graph().node.len(), 2 * before + 2);
    // Half of the peak needs three parts: three tokens in the first part, and the other four input
    // tokens.
    let (_, change) = sliced(&model(MLP), &with_goal(MemoryGoal::Percent(50.0)));
    assert_eq!(
        (change.goal, change.cuts[0].parts, change.is_missed()),
        (Some(896), 3, false)
    );
}

#[test]
fn missed_memory_goal_reports_the_remaining_peak() {
    let (_, change) = sliced(&model(MLP), &with_goal(MemoryGoal::Bytes(100)));
    assert!(change.is_missed() && change.after < change.before);
    assert!(!change.at.is_empty() && !change.held.is_empty());
    let held: u64 = change.held.iter().map(|held| held.bytes).sum();
    assert!(held >= change.after);
}

#[test]
fn met_memory_goal_changes_nothing() {
    let (after, change) = sliced(&model(MLP), &with_goal(MemoryGoal::Percent(100.0)));
    assert_eq!(
        (change.cuts.len(), operators(&after).contains(&"Split")),
        (0, false)
    );
}

#[test]
fn expected_sizes_determine_the_peak() {
    let text = "opset 20
        input x batch 7 4
        weight w 4 32
        weight v 32 4
        h = MatMul(x, w)
        g = Gelu(h)
        y = MatMul(g, v)
        output y";
    let expect = |batch: usize| Slicing {
        expect: [("batch".to_owned(), batch)].into(),
        ..with_goal(MemoryGoal::Bytes(3000))
    };
    let (_, change) = sliced(&model(text), &expect(1));
    assert_eq!((change.before, change.cuts.len()), (1792, 0));
    let (_, change) = sliced(&model(text), &expect(4));
    assert_eq!(
        (change.before, change.cuts.len(), change.is_missed()),
        (4 * 1792, 1, false)
    );
}

#[test]
fn peak_of_unknown_extents_is_reported_with_a_reason() {
    let text = "opset 20
        input x 1 tokens 4
        weight w 4 32
        weight v 32 4
        h = MatMul(x, w)
        g = Gelu(h)
        y = MatMul(g, v)
        output y";
    let (_, change) = sliced(&model(text), &with_goal(MemoryGoal::Min));
    assert_eq!(
        change.reason.as_deref(),
        Some("the size of `x` is not known; `--expect NAME=SIZE` gives that of a dimension")
    );
}
