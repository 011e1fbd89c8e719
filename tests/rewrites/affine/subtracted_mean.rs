//! A subtracted mean, as in a LayerNorm with a constant σ, is linear and folds together with the
//! affine.

use unfold::onnx::Model;
use unfold::refusal::Reason;

use crate::becomes;
use crate::common::text::model;
use crate::kept;

/// LayerNorm with a constant σ, over the last axis of four channels, with lines before and after
/// it.
fn around(before: &str, behind: &str) -> Model {
    model(&format!(
        "{before}
         const sigma = 2
         scale g 4
         shift t 4
         mu = ReduceMean(v) axes=[-1]
         d = Sub(v, mu)
         e = Div(d, sigma)
         n = Mul(e, g)
         m = Add(n, t)
         {behind}
         output y"
    ))
}

#[test]
fn subtracted_mean_and_affine_fold_into_the_matmul_after_it() {
    let behind = "weight w 4 3\n y = MatMul(m, w)";
    becomes(&around("input v batch 5 4", behind), &["MatMul", "Add"]);
    becomes(
        &around(
            "input v batch 4",
            "weight w 3 4\n shift b 3\n y = Gemm(m, w, b) transB=1",
        ),
        &["Gemm"],
    );
}

#[test]
fn subtracted_mean_and_affine_fold_into_the_matmul_before_it() {
    let before = "input x batch 5 3\n weight w 3 4\n shift b 4\n p = MatMul(x, w)\n v = Add(p, b)";
    becomes(&around(before, "y = Relu(m)"), &["MatMul", "Add", "Relu"]);
}

#[test]
fn subtracted_mean_folds_into_each_of_three_projections() {
    let behind =
        "weight a 4 3\n weight b 4 3\n weight c 4 3\n q = MatMul(m, a)\n k = MatMul(m, b)\n p = MatMul(m, c)
         r = Relu(q)\n s = Relu(k)\n u = Relu(p)\n o = Mul(r, s)\n y = Mul(o, u)";
    let after = becomes(
        &around("input v batch 5 4", behind),
        &[
            "MatMul", "Add", "MatMul", "Add", "MatMul", "Add", "Relu", "Relu", "Relu", "Mul", "Mul",
        ],
    );
    assert_eq!(after.graph().input.len(), 1);
}

#[test]
fn subtracted_mean_folds_into_a_padded_conv() {
    let text = "input x batch 4 5 5
         weight w 3 4 3 3
         shift b 3
         mu = ReduceMean(x) axes=[1]
         d = Sub(x, mu)
         y = Conv(d, w, b) pads=[1,1,1,1]
         output y";
    becomes(&model(text), &["Conv"]);
}

#[test]
fn subtracted_mean_stays_with_other_readers_or_another_axis() {
    let lines = |axis: i64, rest: &str| {
        model(&format!(
            "input x batch 4 4
             weight w 4 3
             mu = ReduceMean(x) axes=[{axis}]
             d = Sub(x, mu)
             z = MatMul(d, w)
             {rest}
             output y"
        ))
    };
    assert_eq!(
        kept(&lines(
            2,
            "r = Relu(d)\n s = ReduceMean(r) axes=[-1]\n y = Add(z, s)"
        ))
        .0,
        Reason::NotLinear("Relu".into())
    );
    assert_eq!(
        kept(&lines(2, "y = Relu(z)\n output d")).0,
        Reason::GraphOutput
    );
    assert_eq!(kept(&lines(1, "y = Relu(z)")).0, Reason::WrongAxis);
}
