//! Scatter operators. An affine moves through if updates and data have the same affine. Zeros have
//! every scale.

use unfold::onnx::Model;
use unfold::refusal::Reason;

use crate::becomes;
use crate::common::text::model;
use crate::kept;

/// Rows that are written into a table, and a product after it.
fn scattered(lines: &str) -> Model {
    model(&format!(
        "input x 4 6
         input u 2 6
         indices i 2 1
         scale g 6
         const zeros 4 6 = {}
         {lines}
         weight w 6 3
         y = MatMul(v, w)
         output y",
        "0 ".repeat(24)
    ))
}

#[test]
fn scale_passes_scatter_of_rows_into_zeros() {
    let rows = scattered("n = Mul(u, g)\n v = ScatterND(zeros, i, n)");
    becomes(&rows, &["ScatterND", "MatMul"]);
    let elements = "indices j 2 6\n n = Mul(u, g)\n v = ScatterElements(zeros, j, n)";
    becomes(&scattered(elements), &["ScatterElements", "MatMul"]);
}

#[test]
fn affine_after_scatter_folds_into_data_and_updates() {
    let text = "input x 4 6
         input u 2 6
         indices i 2 1
         weight a 6 5
         weight b 6 5
         scale g 5
         shift t 5
         p = MatMul(x, a)
         q = MatMul(u, b)
         v = ScatterND(p, i, q)
         n = Mul(v, g)
         m = Add(n, t)
         y = Relu(m)
         output y";
    becomes(
        &model(text),
        &["MatMul", "Add", "MatMul", "Add", "ScatterND", "Relu"],
    );
}

/// Graph networks add messages in this way.
#[test]
fn scale_passes_scatter_with_reduction_add() {
    let rows = scattered("n = Mul(u, g)\n v = ScatterND(zeros, i, n) reduction=add");
    becomes(&rows, &["ScatterND", "MatMul"]);
    let elements = "indices j 2 6\n n = Mul(u, g)\n v = ScatterElements(zeros, j, n) reduction=add";
    becomes(&scattered(elements), &["ScatterElements", "MatMul"]);
    let both = "ints zero 1 = 0
         ints two 1 = 2
         n = Mul(x, g)
         r = Slice(n, zero, two, zero)
         v = ScatterND(n, i, r) reduction=add";
    becomes(&scattered(both), &["Slice", "ScatterND", "MatMul"]);
    let back = "input x 4 6
         input u 2 6
         indices i 2 1
         weight a 6 5
         weight b 6 5
         scale g 5
         shift t 5
         p = MatMul(x, a)
         q = MatMul(u, b)
         v = ScatterND(p, i, q) reduction=add
         n = Mul(v, g)
         m = Add(n, t)
         y = Relu(m)
         output y";
    becomes(
        &model(back),
        &["MatMul", "Add", "MatMul", "ScatterND", "Relu"],
    );
}

#[test]
fn scatter_refuses_one_sided_affines_shifts_and_row_scales() {
    let one = scattered("n = Mul(u, g)\n v = ScatterND(x, i, n)");
    assert_eq!(kept(&one).0, Reason::ResidualStream);
    let shifted =
        scattered("shift t 6\n n = Add(u, t)\n m = Mul(n, g)\n v = ScatterND(zeros, i, m)");
    assert_eq!(kept(&shifted).0, Reason::ResidualStream);
    let added = scattered(
        "shift t 6\n n = Add(u, t)\n m = Mul(n, g)\n v = ScatterND(zeros, i, m) reduction=add",
    );
    assert_eq!(kept(&added).0, Reason::ResidualStream);
    let largest = scattered("n = Mul(u, g)\n v = ScatterND(zeros, i, n) reduction=max");
    assert_eq!(kept(&largest).0, Reason::Attribute("reduction".into()));
    let along = scattered("const h 2 1 = 2 -1\n n = Mul(u, h)\n v = ScatterND(zeros, i, n)");
    assert_eq!(kept(&along).0, Reason::WrongAxis);
}
