//! A tokenizer of numbers, as in FT-Transformer, multiplies each number by a row of a table. The
//! table absorbs the affine of the numbers.

use unfold::onnx::Model;
use unfold::refusal::Reason;

use crate::becomes;
use crate::common::text::model;
use crate::{fused, kept};

/// Five normalized numbers of each item of a batch, and lines on `u`, which has an axis for the
/// channels.
fn numbers(batch: &str, lines: &str) -> Model {
    model(&format!(
        "input x {batch} 5
         scale g 5
         shift t 5
         n = Mul(x, g)
         m = Add(n, t)
         ints a 1 = 2
         u = Unsqueeze(m, a)
         {lines}
         output y"
    ))
}

/// Like [`numbers`], with a product over the channels after them.
fn tokens(lines: &str) -> Model {
    numbers(
        "batch",
        &format!("{lines}\nweight v 8 3\nz = MatMul(q, v)\ny = Relu(z)"),
    )
}

#[test]
fn affine_of_numbers_folds_into_the_tokenizer_table() {
    let expected = ["Unsqueeze", "Mul", "Add", "MatMul", "Relu"];
    for table in [
        "weight w 5 8\np = Mul(u, w)",
        "weight w 1 5 8\np = Mul(w, u)",
    ] {
        becomes(
            &tokens(&format!("{table}\nweight c 5 8\nq = Add(p, c)")),
            &expected,
        );
        becomes(
            &tokens(&format!("{table}\nweight c 1 5 8\nq = Add(c, p)")),
            &expected,
        );
        // Without a bias of the tokens, the shift is added after the product.
        fused(&tokens(&format!("{table}\nq = Identity(p)")));
    }
}

#[test]
fn affine_folds_into_the_table_before_relu_or_a_class_token() {
    let text = numbers(
        "batch",
        "weight w 5 8\np = Mul(u, w)\nweight c 5 8\nq = Add(p, c)\ny = Relu(q)",
    );
    becomes(&text, &["Unsqueeze", "Mul", "Add", "Relu"]);
    let class = numbers(
        "2",
        "weight w 5 8\np = Mul(u, w)\nweight k 2 1 8\nj = Concat(k, p) axis=1\nweight c 6 8\nq = Add(j, c)\ny = Relu(q)",
    );
    becomes(&class, &["Unsqueeze", "Mul", "Concat", "Add", "Relu"]);
}

#[test]
fn tokenizer_table_without_a_row_per_number_refuses() {
    let narrow = tokens("weight w 8\np = Mul(u, w)\nweight c 5 8\nq = Add(p, c)");
    assert_eq!(kept(&narrow).0, Reason::WrongAxis);
    let made = tokens("input w 5 8\np = Mul(u, w)\nweight c 5 8\nq = Add(p, c)");
    assert!(matches!(kept(&made).0, Reason::NotLinear(_)));
    // An activation reads the product with the table directly, so the shift cannot be added after
    // it.
    let text = numbers("batch", "weight w 5 8\np = Mul(u, w)\ny = Relu(p)");
    assert_eq!(kept(&text).0, Reason::NotLinear("Relu".into()));
}
