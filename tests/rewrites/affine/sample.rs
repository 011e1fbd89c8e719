//! Operators that are linear in their first input only: RotaryEmbedding, GridSample, DeformConv.

use unfold::onnx::Model;
use unfold::refusal::Reason;

use crate::becomes;
use crate::common::text::model;
use crate::kept;

fn not_linear(op: &str) -> Reason {
    Reason::NotLinear(op.into())
}

const CACHES: &str = "const cos 3 2 = 0.5 1 -1 2 0.25 4\n const sin 3 2 = 1 -2 0.5 3 1 0.125";

/// The heads of queries after a rotary embedding, with a scale before or after it.
fn turned(rotary: &str, before: &str, behind: &str) -> Model {
    model(&format!(
        "opset 23
         input x batch 5 6
         indices p batch 5
         weight w 6 8
         q = MatMul(x, w)
         ints s 4 = 0 0 2 4
         r = Reshape(q, s)
         h = Transpose(r) perm=[0,2,1,3]
         {CACHES}
         {before}
         {rotary}
         {behind}
         output y"
    ))
}

#[test]
fn rotary_embedding_passes_scales_that_are_equal_within_each_pair() {
    let own = "t = RotaryEmbedding(a, cos, sin, p)";
    let of_runtime = "t = com.microsoft.RotaryEmbedding(a, p, cos, sin)";
    let row = ["MatMul", "Reshape", "Transpose", "RotaryEmbedding", "Relu"];
    for rotary in [
        own,
        of_runtime,
        "t = RotaryEmbedding(a, cos, sin, p) interleaved=1",
    ] {
        let behind = |scale: &str| {
            turned(
                rotary,
                "a = Identity(h)",
                &format!("const k {scale}\n v = Mul(t, k)\n y = Relu(v)"),
            )
        };
        // A scale for each head moves through too, because each head is rotated separately.
        for scale in ["= 0.5", "= -2", "2 1 1 = 4 -1"] {
            becomes(&behind(scale), &row);
        }
        assert_eq!(
            kept(&behind("4 = 1 2 1 2")).1,
            Some(Reason::DifferentScales)
        );
        let layer = "weight z 4 3\n y = MatMul(t, z)";
        becomes(
            &turned(rotary, "const k = 0.5\n f = Relu(h)\n a = Mul(f, k)", layer),
            &[
                "MatMul",
                "Reshape",
                "Transpose",
                "Relu",
                "RotaryEmbedding",
                "MatMul",
            ],
        );
        let shifted = turned(
            rotary,
            "const k = 2\n f = Relu(h)\n n = Mul(f, k)\n a = Add(n, k)",
            layer,
        );
        assert_eq!(kept(&shifted).0, not_linear("RotaryEmbedding"));
    }
    // A scale of the tables of sines and cosines stops.
    let of_caches = own.replace("cos,", "c,");
    let caches = turned(
        &of_caches,
        "input e 3 2\n const k = 2\n c = Mul(e, k)\n a = Relu(h)",
        "y = Relu(t)",
    );
    assert_eq!(kept(&caches).0, not_linear("RotaryEmbedding"));
}

const CHANNELS: &str = "2 1 1 = 2 -0.5";

/// An affine before an image that GridSample reads, and a layer.
fn sampled(scale: &str, shift: &str, padding: &str) -> Model {
    model(&format!(
        "opset 20
         input x batch 2 5 5
         input g batch 3 3 2
         const s {scale}
         n = Mul(x, s)
         {shift}
         v = GridSample(m, g) align_corners=1 padding_mode={padding}
         weight w 3 2 1 1
         y = Conv(v, w)
         output y"
    ))
}

#[test]
fn grid_sample_passes_channel_scales_and_shifts_without_zero_padding() {
    let (shift, none) = ("shift t 2 1 1\n m = Add(n, t)", "m = Identity(n)");
    becomes(&sampled(CHANNELS, shift, "border"), &["GridSample", "Conv"]);
    becomes(&sampled(CHANNELS, none, "zeros"), &["GridSample", "Conv"]);
    assert_eq!(kept(&sampled(CHANNELS, shift, "zeros")).0, Reason::Padding);
    assert_eq!(
        kept(&sampled(CHANNELS, shift, "wrap")).0,
        Reason::Attribute("padding_mode".into())
    );
    assert_eq!(
        kept(&sampled("5 = 1 2 4 1 2", none, "border")).0,
        Reason::ReducedAxis
    );
    let back = "opset 20
         input x batch 3 5 5
         input g batch 3 3 2
         weight w 2 3 1 1
         c = Conv(x, w)
         v = GridSample(c, g) align_corners=1 padding_mode=PADDING
         const s 2 1 1 = 2 -0.5
         shift t 2 1 1
         n = Mul(v, s)
         m = Add(n, t)
         y = Relu(m)
         output y";
    becomes(
        &model(&back.replace("PADDING", "border")),
        &["Conv", "GridSample", "Relu"],
    );
    assert_eq!(
        kept(&model(&back.replace("PADDING", "zeros"))).1,
        Some(Reason::Padding)
    );
    // The grid holds positions, so its scale stops.
    let grid = "opset 20\n input x 1 2 5 5\n input g 1 3 3 2\n const k = 2\n m = Mul(g, k)\n y = GridSample(x, m) align_corners=1\n output y";
    assert_eq!(kept(&model(grid)).0, not_linear("GridSample"));
}

/// A deformable convolution in two groups.
fn deformed(before: &str, inputs: &str, behind: &str) -> Model {
    model(&format!(
        "opset 19
         input x batch 4 4 4
         input o batch 16 4 4
         input k batch 8 4 4
         {before}
         weight w 6 2 2 2
         weight b 6
         c = DeformConv({inputs}) group=2 offset_group=2 pads=[1,1,0,0]
         {behind}
         output y"
    ))
}

#[test]
fn deform_conv_absorbs_an_affine_after_it_and_a_scale_before_it() {
    let behind = "scale g 6 1 1\n shift t 6 1 1\n n = Mul(c, g)\n m = Add(n, t)\n y = Relu(m)";
    for inputs in ["x, w, o", "x, w, o, b", "x, w, o, b, k", "x, w, o, , k"] {
        becomes(&deformed("", inputs, behind), &["DeformConv", "Relu"]);
        let scaled = "scale g 4 1 1\n m = Mul(x, g)";
        becomes(
            &deformed(scaled, &inputs.replace('x', "m"), "y = Relu(c)"),
            &["DeformConv", "Relu"],
        );
        let shifted = "shift g 4 1 1\n scale d 4 1 1\n n = Mul(x, d)\n m = Add(n, g)";
        assert_eq!(
            kept(&deformed(shifted, &inputs.replace('x', "m"), "y = Relu(c)")).0,
            Reason::Padding
        );
    }
    // Scales of offsets and masks stop.
    for (from, inputs) in [("o", "x, w, m"), ("k", "x, w, o, b, m")] {
        let scaled = format!("const d = 2\n m = Mul({from}, d)");
        assert_eq!(
            kept(&deformed(&scaled, inputs, "y = Relu(c)")).0,
            not_linear("DeformConv")
        );
    }
    let along = "scale g 4\n m = Mul(x, g)";
    assert_eq!(
        kept(&deformed(along, "m, w, o", "y = Relu(c)")).0,
        Reason::WrongAxis
    );
}
