//! Pooling. A positive scale moves through a maximum. A shift moves through a pool if each window
//! overlaps the image.

use unfold::onnx::Model;
use unfold::prove::{Proof, prove};
use unfold::refusal::Reason;

use crate::becomes;
use crate::common::text::{model, print};
use crate::common::{fuse, operators};
use crate::kept;

/// An affine of two channels, with this scale, before an operator and a layer.
fn before(scale: &str, op: &str) -> Model {
    model(&format!(
        "opset 17
         input x batch 2 5 5
         const g {scale}
         const t 2 1 1 = 3 -1
         n = Mul(x, g)
         m = Add(n, t)
         {op}
         weight w 3 2 1 1
         y = Conv(v, w)
         output y"
    ))
}

/// Like [`before`], with the affine after both operators.
fn behind(scale: &str, op: &str) -> Model {
    model(&format!(
        "opset 17
         input x batch 3 5 5
         weight w 2 3 1 1
         m = Conv(x, w)
         {op}
         const g {scale}
         const t 2 1 1 = 3 -1
         n = Mul(v, g)
         a = Add(n, t)
         y = Relu(a)
         output y"
    ))
}

const POSITIVE: &str = "2 1 1 = 2 0.5";

fn not_linear(op: &str) -> Reason {
    Reason::NotLinear(op.into())
}

/// Asserts that the affine is refused for this reason, forward or backward.
fn stops(model: &Model, reason: &Reason) {
    let (forward, backward) = kept(model);
    assert!(
        forward == *reason || backward.as_ref() == Some(reason),
        "{forward:?} {backward:?}\n{}",
        print(model)
    );
}

#[test]
fn positive_channel_affine_passes_max_pool_and_reduce_max() {
    for (op, call) in [
        ("MaxPool", "MaxPool(m) kernel_shape=[2,2] strides=[2,2]"),
        (
            "MaxPool",
            "MaxPool(m) kernel_shape=[3,3] strides=[2,2] pads=[1,1,1,1]",
        ),
        (
            "MaxPool",
            "MaxPool(m) kernel_shape=[3,3] strides=[2,2] ceil_mode=1",
        ),
        (
            "MaxPool",
            "MaxPool(m) kernel_shape=[2,2] auto_pad=SAME_UPPER",
        ),
        ("MaxPool", "MaxPool(m) kernel_shape=[2,2] dilations=[2,2]"),
        ("GlobalMaxPool", "GlobalMaxPool(m)"),
        ("ReduceMin", "ReduceMin(m) axes=[-1,2]"),
        ("ReduceMax", "ReduceMax(m) axes=[2,3]"),
    ] {
        let call = format!("v = {call}");
        becomes(&before(POSITIVE, &call), &[op, "Conv"]);
        becomes(&behind(POSITIVE, &call), &["Conv", op, "Relu"]);
        for scale in ["2 1 1 = 2 -0.5", "2 1 1 = 2 0"] {
            stops(&before(scale, &call), &not_linear(op));
            let layer = "input x batch 3 5 5\n weight w 2 3 1 1\n m = Conv(x, w)";
            let text = format!(
                "{layer}\n {call}\n const g {scale}\n n = Mul(v, g)\n y = Relu(n)\n output y"
            );
            stops(&model(&text), &not_linear(op));
        }
    }
}

/// The scale that moved through the maximum is one of several factors of the weight, but not the
/// last one.
#[test]
fn positive_scale_through_max_pool_is_proved_with_later_scales() {
    let text = |behind: &str, reads: &str| {
        format!(
            "input x batch 4 6 6
             const p 4 1 1 = 0.5 2 1 3
             m = Mul(x, p)
             v = MaxPool(m) kernel_shape=[3,3] pads=[1,1,1,1]
             {behind}
             weight w 3 4 1 1
             y = Conv({reads}, w)
             output y"
        )
    };
    let negative = "const n 4 1 1 = -4 -0.5 -3 -2\n k = Mul(v, n)";
    becomes(&model(&text(negative, "k")), &["MaxPool", "Conv"]);
    let padded = "const q 4 1 1 = 3 2 3 4
        const s 4 1 1 = 1 2 -1 3
        k = Mul(v, q)
        a = Add(k, s)
        b = AveragePool(a) kernel_shape=[3,3] pads=[1,1,1,1] count_include_pad=1";
    let padded = model(&text(padded, "b"));
    let fused = fuse(&padded);
    let proof = prove(
        &padded,
        &fused.model,
        &fused.plan.tensors,
        &Default::default(),
    );
    assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
    // Replaces an AveragePool, through which every scale moves, by a maximum in both models.
    let average = |p: &str| {
        model(
            &text(negative, "k")
                .replace("0.5 2 1 3", p)
                .replace("MaxPool", "AveragePool"),
        )
    };
    assert!(matches!(
        proved_as_maximum(&average("0.5 2 1 3")),
        Proof::Proved { .. }
    ));
    assert!(matches!(
        proved_as_maximum(&average("0.5 2 1 -3")),
        Proof::Disproved { .. }
    ));
}

#[test]
fn channel_affine_passes_reduce_max_without_keepdims() {
    let tokens = |op: &str| {
        model(&format!(
            "input x 2 4 6
             const g 6 = 1 2 0.5 4 1 2
             shift t 6
             n = Mul(x, g)
             m = Add(n, t)
             {op}
             output y"
        ))
    };
    let layer = "weight w 6 3\n y = MatMul(v, w)";
    becomes(
        &tokens(&format!("v = ReduceMax(m) axes=[1] keepdims=0\n {layer}")),
        &["ReduceMax", "MatMul", "Add"],
    );
    let back = model(
        "input x 2 4 6
         weight w 6 6
         l = MatMul(x, w)
         v = ReduceMax(l) axes=[-2] keepdims=0
         const g 6 = 1 2 0.5 4 1 2
         shift t 6
         n = Mul(v, g)
         m = Add(n, t)
         y = Relu(m)
         output y",
    );
    becomes(&back, &["MatMul", "Add", "ReduceMax", "Relu"]);
    assert_eq!(
        kept(&tokens("y = ReduceMax(m) axes=[2]")).0,
        Reason::ReducedAxis
    );
}

#[test]
fn affine_passes_pool_along_an_axis_with_window_one() {
    // Tokens as an image of one channel. Pairs of tokens are pooled.
    let pooled = |window: &str| {
        model(&format!(
            "input x batch 1 6 4
             const g 4 = 1 2 0.5 4
             shift t 4
             weight w 4 4
             n = Mul(x, g)
             m = Add(n, t)
             v = {window}
             y = MatMul(v, w)
             output y"
        ))
    };
    for more in ["strides=[2,1]", "pads=[1,0,1,0]", "auto_pad=SAME_UPPER", ""] {
        let window = format!("AveragePool(m) kernel_shape=[2,1] {more}");
        becomes(&pooled(&window), &["AveragePool", "MatMul", "Add"]);
    }
    for more in ["[2,2]", "[1,1] strides=[1,2]", "[2,1] pads=[0,0,0,1]"] {
        let window = format!("AveragePool(m) kernel_shape={more}");
        assert_eq!(kept(&pooled(&window)).0, Reason::ReducedAxis, "{more}");
    }
    assert_eq!(kept(&pooled("GlobalAveragePool(m)")).0, Reason::ReducedAxis);
}

#[test]
fn shift_stops_at_pool_windows_outside_the_image() {
    for window in [
        "kernel_shape=[1,1] strides=[2,2] ceil_mode=1",
        "kernel_shape=[2,2] strides=[3,3] pads=[0,0,1,1] ceil_mode=1",
        "kernel_shape=[2,2] dilations=[2,2] pads=[1,1,1,1]",
        "kernel_shape=[2,2] auto_pad=SAME_UPPER ceil_mode=1",
    ] {
        for op in ["MaxPool", "AveragePool"] {
            let call = format!("v = {op}(m) {window}");
            stops(&before(POSITIVE, &call), &Reason::Padding);
            // The convolution moves after a mean that leaves fewer places, and absorbs the affine
            // there.
            if op == "MaxPool" || !window.contains("strides") {
                stops(&behind(POSITIVE, &call), &Reason::Padding);
            }
        }
    }
    let border = "v = MaxPool(m) kernel_shape=[2,2] pads=[2,0,0,0]";
    stops(&before(POSITIVE, border), &Reason::Padding);
}

#[test]
fn spatial_affine_and_index_output_stop_at_max_pool() {
    let along = before("5 = 1 2 1 2 4", "v = MaxPool(m) kernel_shape=[2,2]");
    assert_eq!(kept(&along).0, Reason::ReducedAxis);
    let places = "v, i = MaxPool(m) kernel_shape=[2,2]";
    becomes(&before(POSITIVE, places), &["MaxPool", "Conv"]);
    assert_eq!(
        kept(&before(POSITIVE, &format!("{places}\n output i"))).0,
        not_linear("MaxPool")
    );
}

#[test]
fn affine_passes_average_pool_that_ignores_padding() {
    for (window, first, then) in [
        (
            "kernel_shape=[2,2] strides=[2,2] ceil_mode=1 count_include_pad=0",
            "Conv",
            "AveragePool",
        ),
        (
            "kernel_shape=[2,2] pads=[1,1,1,1] ceil_mode=1",
            "Conv",
            "AveragePool",
        ),
        ("kernel_shape=[2,2] pads=[1,1,1,1]", "Conv", "AveragePool"),
        // The convolution comes behind a mean that leaves fewer places.
        (
            "kernel_shape=[2,2] auto_pad=SAME_LOWER strides=[2,2]",
            "AveragePool",
            "Conv",
        ),
    ] {
        let call = format!("v = AveragePool(m) {window}");
        becomes(&before("2 1 1 = 2 -0.5", &call), &["AveragePool", "Conv"]);
        becomes(&behind("2 1 1 = 2 -0.5", &call), &[first, then, "Relu"]);
    }
    let counted = "v = AveragePool(m) kernel_shape=[2,2] pads=[1,1,1,1] count_include_pad=1";
    stops(&behind("2 1 1 = 2 -0.5", counted), &Reason::Padding);
    let over =
        "v = AveragePool(m) kernel_shape=[2,2] strides=[2,2] ceil_mode=1 count_include_pad=1";
    let fused = fuse(&before("2 1 1 = 2 -0.5", over));
    assert_eq!(operators(&fused.model), ["Add", "AveragePool", "Conv"]);
}

/// The proof after a mean, through which a scale of channels moved, is replaced by a maximum in
/// both models.
fn proved_of_maximum(scale: &str) -> Proof {
    proved_as_maximum(&before(scale, "v = AveragePool(m) kernel_shape=[2,2]"))
}

/// Like [`proved_of_maximum`], for any model with one AveragePool.
fn proved_as_maximum(model: &Model) -> Proof {
    let as_maximum = |model: &Model| {
        let mut model = model.clone();
        let nodes = &mut model.proto.graph.as_mut().unwrap().node;
        let pool = nodes
            .iter_mut()
            .find(|node| node.op_type() == "AveragePool")
            .unwrap();
        pool.op_type = Some("MaxPool".into());
        model
    };
    let fused = fuse(model);
    prove(
        &as_maximum(model),
        &as_maximum(&fused.model),
        &fused.plan.tensors,
        &Default::default(),
    )
}

#[test]
fn prover_accepts_only_positive_scales_through_max_pool() {
    assert!(matches!(proved_of_maximum(POSITIVE), Proof::Proved { .. }));
    for scale in ["2 1 1 = 2 -0.5", "2 1 1 = -2 -2", "= -3"] {
        let proof = proved_of_maximum(scale);
        assert!(
            matches!(proof, Proof::Disproved { .. }),
            "{scale}: {proof:?}"
        );
    }
}
