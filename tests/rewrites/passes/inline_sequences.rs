//! SplitToSequence and its SequenceAts become Splits.

use crate::common::bodies;

use crate::common::text::{model, print};
use crate::common::{fuse, node, options, undeclared};
use crate::{operators, proved, same, untidied};

/// A scaled value and the weights for products with parts of it.
const SCALED: &str = "input x batch 2 8
    scale g 8
    weight u 3 4
    weight v 3 4
    weight w 2 4
    n = Mul(x, g)\n";
const PRODUCTS: &str = "d = MatMul(a, u)
    e = MatMul(b, v)
    f = MatMul(c, w)
    h = Add(d, e)
    y = Add(h, f)
    output y";
/// Parts taken by positions, some of which count from the end.
const TAKEN: &str = "ints zero = 0
    ints one = -2
    ints two = -1
    c = SequenceAt(p, two)
    a = SequenceAt(p, zero)
    b = SequenceAt(p, one)\n";

#[test]
fn split_to_sequence_read_by_sequence_at_becomes_split() {
    let lists = ["k = 3", "k 3 = 3 3 2"];
    for (opset, list, axis) in [
        (11, lists[0], 2),
        (12, lists[1], -1),
        (13, lists[0], -1),
        (18, lists[1], 2),
    ] {
        let start = format!("opset {opset}\n{SCALED}");
        let split = format!("ints {list}\np = SplitToSequence(n, k) axis={axis} keepdims=0\n");
        let after = proved(&model(&format!("{start}{split}{TAKEN}{PRODUCTS}")));
        assert_eq!(
            operators(&after),
            ["Split", "MatMul", "MatMul", "MatMul", "Add", "Add"],
            "{opset} {list}"
        );
        let written = match opset {
            ..13 => "a, b, c = Split(n) axis=2 split=[3,3,2]\n",
            _ => "ints k 3 = 3 3 2\na, b, c = Split(n, k) axis=2\n",
        };
        same(&model(&format!("{start}{written}{PRODUCTS}")), &after, 0.0);
    }
}

/// A part that only a body reads is split off outside the body.
#[test]
fn sequence_parts_read_in_branches_become_outer_splits() {
    let mut split = model(&format!(
        "{SCALED}condition flag\nints k 3 = 3 3 2\np = SplitToSequence(n, k) axis=2\nints zero = 0\n ints two = 2"
    ));
    let branch = |lines: &str| model(lines).proto.graph.unwrap().into();
    let branches = vec![
        (
            "then_branch",
            branch("a = SequenceAt(p, zero)\nd = MatMul(a, u)\noutput d"),
        ),
        (
            "else_branch",
            branch("c = SequenceAt(p, two)\ne = MatMul(c, w)\noutput e"),
        ),
    ];
    split
        .graph_mut()
        .node
        .push(node("If", &["flag"], &["y"], branches));
    split.graph_mut().output.push(undeclared("y"));
    let after = proved(&split);
    assert_eq!(operators(&after), ["Split", "If"]);
    let inside: Vec<Vec<&str>> = bodies(after.graph().node.last().unwrap())
        .map(|body| body.node.iter().map(|node| node.op_type()).collect())
        .collect();
    assert_eq!(inside, [["MatMul"], ["MatMul"]]);
}

/// Without the input `split`, each part has one place, and `keepdims` says whether it keeps the
/// axis.
#[test]
fn split_to_sequence_without_keepdims_squeezes_its_parts() {
    let products = "weight o 8 3
        weight q 8 3
        d = MatMul(a, o)
        e = MatMul(b, q)
        f = MatMul(c, q)
        h = Mul(d, e)
        y = Add(h, f)
        output y";
    let taken = "ints zero = 0
        ints one = -1
        a = SequenceAt(p, one)
        b = SequenceAt(p, zero)
        c = SequenceAt(p, one)\n";
    for (opset, keep) in [(11, 0), (11, 1), (17, 0), (17, 1)] {
        let start = format!("opset {opset}\n{SCALED}");
        let split = format!("p = SplitToSequence(n) axis=1 keepdims={keep}\n");
        let after = proved(&model(&format!("{start}{split}{taken}{products}")));
        let is_left = |op: &&str| ["Mul", "SequenceAt", "SplitToSequence"].contains(op);
        // The product of two computed values stays.
        assert_eq!(
            operators(&after).iter().filter(|&op| is_left(op)).count(),
            1,
            "{}",
            print(&after)
        );
        let dims = if keep == 1 { " 1" } else { "" };
        let written = format!(
            "ints first{dims} = 0
             ints last{dims} = 1
             a = Gather(n, last) axis=1
             b = Gather(n, first) axis=1
             c = Identity(a)\n"
        );
        same(&model(&format!("{start}{written}{products}")), &after, 0.0);
    }
}

#[test]
fn sequence_with_unknown_parts_or_other_readers_stays() {
    let split = "ints k = 3\np = SplitToSequence(n, k) axis=2\n";
    let beside = |lines: &str| format!("{SCALED}{split}{TAKEN}{PRODUCTS}\n{lines}");
    let instead = |split: &str| format!("{SCALED}{split}{TAKEN}{PRODUCTS}");
    for text in [
        beside("l = SequenceLength(p)\noutput l"),
        beside("indices i\nz = SequenceAt(p, i)\noutput z"),
        // No part has this position, or the sizes do not fit the axis.
        beside("ints far = 4\nz = SequenceAt(p, far)\noutput z"),
        beside("ints far = -4\nz = SequenceAt(p, far)\noutput z"),
        instead("ints k 3 = 3 3 3\np = SplitToSequence(n, k) axis=2\n"),
        instead("ints k = 0\np = SplitToSequence(n, k) axis=2\n"),
        instead("indices k\np = SplitToSequence(n, k) axis=2\n"),
        instead("ints k = 3\np = SplitToSequence(n, k) axis=2 mode=1\n"),
        // The number of parts is unknown.
        instead("ints k = 1\np = SplitToSequence(n, k)\n"),
    ] {
        let fused = untidied(&model(&text), &options());
        assert!(!fused.changed(), "{}", print(&fused.model));
    }
}

#[test]
fn split_to_sequence_becomes_split_where_nothing_folds() {
    let split = "ints k = 3\np = SplitToSequence(n, k) axis=2\n";
    let before = model(&format!("{SCALED}{split}{TAKEN}r = Relu(a)\noutput r b c"));
    let after = proved(&before);
    assert_eq!(operators(&after), ["Mul", "Split", "Relu"]);
    let split = "ints k 3 = 3 3 2\na, b, c = Split(n, k) axis=2\n";
    same(
        &model(&format!("{SCALED}{split}r = Relu(a)\noutput r b c")),
        &after,
        0.0,
    );
}

#[test]
fn sequences_of_too_many_parts_stay() {
    let of = |count: usize| {
        let one = |i: usize| {
            format!(
                "p{i} = SplitToSequence(n, one) axis=1\na{i} = SequenceAt(p{i}, zero)\ny{i} = MatMul(a{i}, w)\noutput y{i}\n"
            )
        };
        let start = "input x batch 1024\nconst g = 2\nweight w 1 3\nints one = 1\nints zero = 0\nn = Mul(x, g)\n";
        model(&[start.to_owned(), (0..count).map(one).collect()].concat())
    };
    assert!(!operators(&fuse(&of(2)).model).contains(&"SplitToSequence"));
    assert!(!untidied(&of(33), &options()).changed());
}
