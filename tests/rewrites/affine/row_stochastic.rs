//! A shift moves through a product with row-stochastic weights, as in attention, and stops at other
//! weights.

use unfold::onnx::Model;
use unfold::plan::{Outcome, SitePlan};
use unfold::prove::{Proof, prove};
use unfold::refusal::Reason;

use crate::affine::rules::in_microsoft_domain;
use crate::common::text::model;
use crate::common::{fuse, operators};
use crate::{proved, same};

/// A product of values with the weights `p` of scores `z`, a normalizer after it, and a Relu.
fn behind(scores: &str, product: &str) -> Model {
    model(&format!(
        "input x batch 5 4
         input z batch 5 5
         weight wv 4 6
         scale g 6
         shift t 6
         v = MatMul(x, wv)
         {scores}
         {product}
         n = Mul(o, g)
         m = Add(n, t)
         y = Relu(m)
         output y"
    ))
}

/// Asserts that only a bias remains of the normalizer and that this is proved.
fn assert_shift_folds(model: &Model) {
    let after = proved(model);
    let left = operators(&after);
    let count = |op: &str| left.iter().filter(|left| **left == op).count();
    assert_eq!([count("Mul"), count("Add")], [0, 1], "{left:?}");
}

/// Whether the shift of the normalizer is refused.
fn keeps_shift(model: &Model) -> bool {
    // A MatMul needs a constant, and an Einsum needs another axis.
    let is_held = |site: &SitePlan| match &site.post {
        Some(Outcome::Scaled { shift, .. }) => {
            [Reason::NotConstant, Reason::WrongAxis].contains(&shift.reason)
        }
        _ => false,
    };
    fuse(model).plan.sites.iter().any(is_held)
}

#[test]
fn shift_passes_matmul_with_softmax_rows_backward() {
    let plain = behind("p = Softmax(z) axis=-1", "o = MatMul(p, v)");
    assert_shift_folds(&plain);
    // The results are equal up to the rounding of the weights, whose sum is 1.
    same(&plain, &fuse(&plain).model, 1e-6);
    assert_shift_folds(&behind(
        "p = Softmax(z) axis=2",
        "o = Einsum(p, v) equation=bqk,bkd->bqd",
    ));
    // The weights may also come from an operator that forwards them.
    assert_shift_folds(&behind(
        "s = Softmax(z) axis=-1\n p = Dropout(s)",
        "o = MatMul(p, v)",
    ));
    assert_shift_folds(&behind(
        "s = Softmax(z) axis=1\n p = Transpose(s) perm=[0,2,1]",
        "o = MatMul(p, v)",
    ));
    let heads = "ints split 4 = -1 1 5 5\n ints back 3 = -1 5 5
        s = Reshape(z, split)\n q = Softmax(s) axis=-1\n p = Reshape(q, back)";
    assert_shift_folds(&behind(heads, "o = MatMul(p, v)"));
    // The weights may also be the right operand.
    let turned = "vt = Transpose(v) perm=[0,2,1]\n p = Softmax(z) axis=1\n ot = MatMul(vt, p)
        o = Transpose(ot) perm=[0,2,1]";
    assert_shift_folds(&behind("", turned));
    let fused = behind("p = Softmax(z) axis=1", "o = FusedMatMul(p, v) transA=1");
    assert_shift_folds(&in_microsoft_domain(fused, "FusedMatMul"));
}

#[test]
fn shift_passes_matmul_with_softmax_rows_forward() {
    let text = "input x batch 5 6
         input z batch 5 5
         scale g 6
         shift t 6
         weight w 6 3
         n = Mul(x, g)
         m = Add(n, t)
         p = Softmax(z) axis=-1
         o = MatMul(p, m)
         y = MatMul(o, w)
         output y";
    assert_shift_folds(&model(text));
}

#[test]
fn shift_stops_where_rows_do_not_sum_to_one() {
    assert!(keeps_shift(&behind(
        "p = Softmax(z) axis=1",
        "o = MatMul(p, v)"
    )));
    assert!(keeps_shift(&behind(
        "p = Softmax(z) axis=-1",
        "o = Einsum(p, v) equation=bkq,bkd->bqd"
    )));
    assert!(keeps_shift(&behind("p = Sigmoid(z)", "o = MatMul(p, v)")));
    assert!(keeps_shift(&behind(
        "p = LogSoftmax(z) axis=-1",
        "o = MatMul(p, v)"
    )));
    assert!(keeps_shift(&behind(
        "s = Softmax(z) axis=-1\n input mask 5 5\n p = Mul(s, mask)",
        "o = MatMul(p, v)"
    )));
    assert!(keeps_shift(&behind(
        "s = Softmax(z) axis=-1\n condition c\n zero = Sub(s, s)\n p = Where(c, s, zero)",
        "o = MatMul(p, v)"
    )));
    let swapped = "ints back 3 = -1 25 1\n ints there 3 = -1 5 5
        s = Softmax(z) axis=-1\n f = Reshape(s, back)\n p = Reshape(f, there)";
    assert!(keeps_shift(&behind(swapped, "o = MatMul(p, v)")));
    // A sink takes a part of the attention.
    let sink = "input extra batch 5 1\n ints begin 1 = 0\n ints end 1 = 5\n ints last 1 = 2
        c = Concat(z, extra) axis=2\n s = Softmax(c) axis=-1\n p = Slice(s, begin, end, last)";
    assert!(keeps_shift(&behind(sink, "o = MatMul(p, v)")));
    let fused = behind("p = Softmax(z) axis=-1", "o = FusedMatMul(p, v) alpha=0.5");
    assert!(keeps_shift(&in_microsoft_domain(fused, "FusedMatMul")));
}

#[test]
fn prover_uses_the_axis_along_which_softmax_sums_to_one() {
    let mixed = |axis: usize, lines: &str| {
        model(&format!(
            "input x 5 4\n input z 5 5\n shift t 4\n p = Softmax(z) axis={axis}\n{lines}\n output y"
        ))
    };
    let proof = |axis| {
        let before = mixed(axis, "v = Add(x, t)\n y = MatMul(p, v)");
        let after = mixed(axis, "o = MatMul(p, x)\n y = Add(o, t)");
        prove(&before, &after, &[], &Default::default())
    };
    assert!(matches!(proof(1), Proof::Proved { .. }), "{:?}", proof(1));
    assert!(
        matches!(proof(0), Proof::Disproved { .. }),
        "{:?}",
        proof(0)
    );
}
