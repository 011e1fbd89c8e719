//! Expanded channels, concatenated with others before a linear operator: their product is computed
//! before the Expand.

use unfold::Fused;
use unfold::onnx::Model;
use unfold::plan::Family;

use crate::becomes;
use crate::common::text::model;
use crate::common::{fuse, operators};
use crate::same;

/// Points of four channels, a feature vector that all points share, and operators on both.
fn points(lines: &str) -> Model {
    model(&format!(
        "input x batch 4 points
         input b batch 6 1
         all = Shape(x)
         ints last 1 = 2
         ints ones 2 = 1 1
         n = Gather(all, last)
         shape = Concat(ones, n) axis=0
         weight w 5 10 1
         shift t 5
         {lines}
         output y"
    ))
}

/// Folds a model, and asserts that the result is equal. Returns its operators.
fn remaining_operators(before: &Model) -> Vec<String> {
    let after = fuse(before);
    same(before, &after.model, 1e-9);
    assert!(!fuse(&after.model).changed());
    operators(&after.model)
        .into_iter()
        .map(str::to_owned)
        .collect()
}

#[test]
fn conv_of_repeated_channels_is_computed_before_the_expand() {
    for lines in [
        "e = Expand(b, shape)\n c = Concat(x, e) axis=1\n y = Conv(c, w, t)",
        "e = Tile(b, shape)\n c = Concat(e, x) axis=1\n y = Conv(c, w)",
        "e = Expand(b, shape)\n c = Concat(x, e) axis=-2\n y = Conv(c, w) kernel_shape=[1] pads=[0,0]",
    ] {
        assert_eq!(
            remaining_operators(&points(lines)),
            ["Conv", "Conv", "Add"],
            "{lines}"
        );
    }
    // Another operator, which folds first, is between the Concat and the Conv.
    let norm = "e = Expand(b, shape)\n c = Concat(x, e) axis=1\n scale g 10 1\n m = Mul(c, g)\n y = Conv(m, w, t)";
    assert_eq!(remaining_operators(&points(norm)), ["Conv", "Conv", "Add"]);
}

#[test]
fn bias_is_added_to_the_smaller_product() {
    let text = "input x batch 3 4
         input b batch 1 6
         ints shape 3 = 1 3 6
         e = Expand(b, shape)
         c = Concat(x, e) axis=-1
         weight w 10 5
         shift t 5
         p = MatMul(c, w)
         y = Add(p, t)
         output y";
    let after = becomes(&model(text), &["MatMul", "Add", "MatMul", "Add"]);
    let add = &after.graph().node[1];
    assert!(add.input.iter().any(|input| {
        after
            .graph()
            .initializer
            .iter()
            .any(|it| it.name() == input)
    }));
}

#[test]
fn matmul_of_all_pairs_becomes_two_matmuls_and_an_add() {
    let text = "input a batch 3 1 4
         input b batch 1 3 4
         ints one 4 = 1 1 3 1
         ints two 4 = 1 3 1 1
         d = Expand(a, one)
         e = Expand(b, two)
         c = Concat(d, e) axis=-1
         weight w 8 5
         p = MatMul(c, w)
         y = Relu(p)
         output y";
    becomes(&model(text), &["MatMul", "MatMul", "Add", "Relu"]);
}

#[test]
fn other_operands_of_the_concat_stay_in_it() {
    let lines = "u = Relu(x)\n weight v 5 14 1\n e = Expand(b, shape)\n c = Concat(u, e, x) axis=1\n y = Conv(c, v, t)";
    assert_eq!(
        remaining_operators(&points(lines)),
        ["Relu", "Conv", "Concat", "Conv", "Add"]
    );
    // There are so few repeated channels that the additional sum would cost more.
    let few = "input b batch 2 1
         input x batch 4 3
         ints shape 3 = 1 1 3
         e = Expand(b, shape)
         u = Relu(x)
         c = Concat(u, e, x) axis=1
         weight w 5 10 1
         y = Conv(c, w)
         output y";
    assert_eq!(
        remaining_operators(&model(few)),
        ["Expand", "Relu", "Concat", "Conv"]
    );
}

#[test]
fn conv_with_padding_groups_or_shared_concat_keeps_the_expand() {
    for (lines, is_wide) in [
        // A kernel of several places, a border, or groups.
        (
            "e = Expand(b, shape)\n c = Concat(x, e) axis=1\n weight k 5 10 3\n y = Conv(c, k) pads=[1,1]",
            false,
        ),
        (
            "e = Expand(b, shape)\n c = Concat(x, e) axis=1\n y = Conv(c, w) pads=[1,1]",
            false,
        ),
        (
            "e = Expand(b, shape)\n c = Concat(x, e) axis=1\n weight k 6 5 1\n y = Conv(c, k) group=2",
            false,
        ),
        // The Concat has another reader.
        (
            "e = Expand(b, shape)\n d = Concat(x, e) axis=1\n y = Conv(d, w)\n output d",
            false,
        ),
        // No operand of the Concat varies from point to point.
        (
            "e = Expand(b, shape)\n f = Relu(b)\n g = Expand(f, shape)\n c = Concat(g, e) axis=1\n weight k 5 12 1\n y = Conv(c, k)",
            true,
        ),
    ] {
        let left = remaining_operators(&points(lines));
        assert_eq!(
            left.iter().filter(|op| *op == "Expand").count(),
            1 + usize::from(is_wide),
            "{left:?}"
        );
    }
}

#[test]
fn site_split_by_repeated_channels_is_reported_once() {
    // The mean of all tokens is concatenated to each token. The repeated part moves first. The
    // normalizer is then written without Reshapes.
    let before = model(
        "input x batch 6 8
         s = Sin(x)
         ints flat 2 = -1 8
         f = Reshape(s, flat)
         scale g 8
         shift t 8
         shift c 8
         const v 8 = 1 2 3 4 5 6 7 8
         n = BatchNormalization(f, g, t, c, v)
         ints back 3 = -1 6 8
         r = Reshape(n, back)
         m = ReduceMean(r) axes=[1]
         ints whole 3 = 1 6 8
         e = Expand(m, whole)
         both = Concat(r, e) axis=2
         weight w 16 3
         y = MatMul(both, w)
         output y",
    );
    let Fused {
        model: after, plan, ..
    } = fuse(&before);
    let offline: Vec<_> = plan
        .sites
        .iter()
        .filter(|site| site.kind.family == Family::Offline)
        .collect();
    assert!(
        matches!(offline[..], [site] if site.is_folded()),
        "{offline:#?}"
    );
    same(&before, &after, 1e-6);
}
