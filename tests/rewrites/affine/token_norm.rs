//! LayerNormalization of tokens as Keras writes it: a BatchNormalization in which each token is a
//! channel.

use unfold::onnx::Model;

use crate::common::text::model;
use crate::{fuse, is_as_planned, operators, same};

/// The variance as tf2onnx writes it.
const VARIANCE: &str = "
        sum = ReduceSumSquare(d) axes=[0,2,3] keepdims=0
        elements = Gather(size, all)
        product = ReduceProd(elements) keepdims=0
        n = Cast(product) to=1
        variance = Div(sum, n)";

/// A LayerNormalization of four channels before a layer. In its text, `before` is replaced by
/// `after`.
fn keras(variance: &str, before: &str, after: &str) -> Model {
    let text = format!(
        "
        opset 13
        input x batch tokens 4
        ints apart 4 = 1 -1 4 1
        ints places 1 = 1
        ints all 3 = 0 2 3
        const one = 1
        const zero = 0
        r = Reshape(x, apart)
        size = Shape(r)
        count = Gather(size, places)
        ones = Expand(one, count)
        zeros = Expand(zero, count)
        mean = ReduceMean(r) axes=[0,2,3]
        d = Sub(r, mean)
        {variance}
        flat = Squeeze(mean, all)
        b = BatchNormalization(r, ones, zeros, flat, variance) epsilon=0.125
        shape = Shape(x)
        y = Reshape(b, shape)
        scale g 4
        shift t 4
        scaled = Mul(y, g)
        shifted = Add(scaled, t)
        weight w 4 3
        shift u 3
        k = MatMul(shifted, w)
        o = Add(k, u)
        output o"
    );
    assert!(text.contains(before));
    model(&text.replace(before, after))
}

#[test]
fn keras_token_batch_norm_becomes_layer_norm_and_folds() {
    for variance in [
        VARIANCE,
        "q = Mul(d, d)\n ints a 3 = 0 2 3\n sum = ReduceSum(q, a) keepdims=0\n const four = 4\n variance = Div(sum, four)",
        "const two = 2\n q = Pow(d, two)\n variance = ReduceMean(q) axes=[0,2,3] keepdims=0",
    ] {
        let before = keras(variance, "", "");
        assert!(operators(&before).contains(&"BatchNormalization"));
        let after = fuse(&before);
        same(&before, &after.model, 1e-9);
        is_as_planned(&before, &after);
        assert_eq!(
            after
                .plan
                .sites
                .iter()
                .map(|site| site.kind.name)
                .collect::<Vec<_>>(),
            ["LN"]
        );
        // Engines recognize a normalizer by the scale and the shift after it, even if these are
        // ones and zeros.
        let normal = [
            "ReduceMean",
            "Sub",
            "Pow",
            "ReduceMean",
            "Add",
            "Sqrt",
            "Div",
            "Mul",
            "Add",
        ];
        assert_eq!(
            operators(&after.model),
            [&normal[..], &["MatMul", "Add"]].concat(),
            "{variance}"
        );
        assert!(!fuse(&after.model).changed());
    }
}

#[test]
fn near_keras_layer_norms_stay() {
    for (line, other) in [
        // The statistics are over two elements of each token.
        ("ints apart 4 = 1 -1 4 1", "ints apart 4 = 1 -1 2 1"),
        // The variance is divided by another count, as in an unbiased variance.
        (
            "variance = Div(sum, n)",
            "const three = 3\n variance = Div(sum, three)",
        ),
        // γ or β of tokens.
        ("const one = 1", "const one = 2"),
        ("const zero = 0", "const zero = 1"),
        // The statistics are those of another value.
        (
            "mean = ReduceMean(r) axes=[0,2,3]",
            "e = Neg(r)\n mean = ReduceMean(e) axes=[0,2,3]",
        ),
        (
            "d = Sub(r, mean)",
            "d = Sub(mean, r)\n e = Neg(r)\n f = Sub(e, mean)",
        ),
        ("sum = ReduceSumSquare(d)", "sum = ReduceSumSquare(r)"),
        // The result has another shape.
        ("shape = Shape(x)", "ints shape 2 = -1 4"),
    ] {
        let before = keras(VARIANCE, line, other);
        let after = fuse(&before);
        same(&before, &after.model, 1e-9);
        assert!(
            operators(&after.model).contains(&"BatchNormalization"),
            "{other}"
        );
    }
}
