//! Tests each transfer rule and linear operator with a graph that folds and a similar graph that is
//! refused.

use crate::common::portable;
use unfold::onnx::proto::{NodeProto, OperatorSetIdProto};
use unfold::onnx::{DataType, Externals, Model, tensor};
use unfold::plan::Outcome;
use unfold::refusal::Reason;
use unfold::verify::compare;

use crate::common::text::model;
use crate::common::{declared, fuse, undeclared};
use crate::{becomes, folded, initializer, kept, operators, same};

/// A normalizer of six channels on the last axis of `[2, 4, 6]`, these steps, and a MatMul.
fn forward(steps: &str) -> Model {
    model(&format!(
        "input x 2 4 6
         scale g 6
         shift t 6
         n = Mul(x, g)
         m = Add(n, t)
         {steps}
         output y"
    ))
}

/// Like [`forward`], for an image `[2, 4, 4, 4]` that is normalized along an axis.
fn image(axis: usize, steps: &str) -> Model {
    let along = ["2 1 1 1", "4 1 1", "4 1", "4"][axis];
    model(&format!(
        "input x 2 4 4 4
         scale g {along}
         shift t {along}
         n = Mul(x, g)
         m = Add(n, t)
         {steps}
         output y"
    ))
}

/// A linear operator, these steps, and a normalizer that can only fold backward.
fn backward(steps: &str, along: &str) -> Model {
    model(&format!(
        "input x 2 4 6
         weight w 6 6
         l = MatMul(x, w)
         {steps}
         scale g {along}
         shift t {along}
         n = Mul(v, g)
         m = Add(n, t)
         y = Relu(m)
         output y"
    ))
}

/// The reason why the affine does not fold forward.
fn stops(model: &Model) -> Reason {
    kept(model).0
}

/// The reason why the affine does not fold backward.
fn stops_backward(model: &Model) -> Reason {
    kept(model).1.expect("backward was not tried")
}

fn not_linear(op: &str) -> Reason {
    Reason::NotLinear(op.into())
}

const MATMUL: &str = "weight w 6 3\n y = MatMul(v, w)\n";

#[test]
fn identity_dropout_and_float_casts_pass_any_affine() {
    for op in [
        "Identity(m)",
        "Dropout(m)",
        "Cast(m) to=1",
        "CastLike(m, x)",
        "CastLike(m, m)",
    ] {
        folded(&forward(&format!("v = {op}\n {MATMUL}")));
    }
    let whole = forward("v = Cast(m) to=7\n y = Cast(v) to=1\n");
    assert_eq!(stops(&whole), not_linear("Cast to a type that is no float"));
    let whole = forward("ints i 1 = 0\n v = CastLike(m, i)\n y = CastLike(v, x)");
    assert_eq!(
        stops(&whole),
        not_linear("CastLike to a type that is no float")
    );
    let training = "const ratio = 0.5\n ints yes = 1\n v = Dropout(m, ratio, yes)\n";
    assert_eq!(
        stops(&forward(&format!("{training}{MATMUL}"))),
        Reason::TrainingMode
    );
    for text in ["v = Identity(l)", "v = CastLike(l, x)"] {
        folded(&backward(text, "6"));
    }
    assert_eq!(
        stops_backward(&backward("k = Cast(l) to=7\n v = Cast(k) to=1", "6")),
        not_linear("Cast to a type that is no float")
    );
}

#[test]
fn transpose_moves_the_channel_axis() {
    folded(&forward(
        "v = Transpose(m) perm=[1,2,0]\n weight w 3 6\n y = MatMul(w, v)\n",
    ));
    folded(&backward("v = Transpose(l) perm=[2,1,0]", "6 1 1"));
    let wrong = stops(&forward("v = Transpose(m) perm=[0,1,1]\n y = Relu(v)"));
    assert_eq!(wrong, Reason::Attribute("perm".into()));
    // The extents are equal, but the axis is another one.
    assert_eq!(
        stops(&forward(
            "v = Transpose(m) perm=[0,2,1]\n weight w 4 3\n y = MatMul(v, w)"
        )),
        Reason::WrongAxis
    );
}

#[test]
fn reshape_regroups_channels_of_known_extents() {
    folded(&forward(
        "ints s 4 = 2 4 2 3\n h = Reshape(m, s)\n ints r 3 = 0 0 -1\n v = Reshape(h, r)\n weight w 6 3\n y = MatMul(v, w)",
    ));
    folded(&forward(
        "v = Flatten(m) axis=2\n weight w 3 6\n y = Gemm(v, w) transB=1",
    ));
    folded(&forward(
        "ints a 1 = 0\n u = Unsqueeze(m, a)\n v = Squeeze(u, a)\n weight w 6 3\n y = MatMul(v, w)",
    ));
    folded(&backward("ints s 4 = 2 4 2 3\n v = Reshape(l, s)", "2 1"));
    let open = model(
        "input x batch 6
         scale g 6
         n = Mul(x, g)
         ints s 1 = -1
         y = Reshape(n, s)
         output y",
    );
    assert_eq!(stops(&open), Reason::MixedAxes);
}

#[test]
fn window_partition_passes_a_shift_unless_the_image_is_padded() {
    let windows = |height: usize, shift: &str| {
        model(&format!(
            "input x batch {height} 4 6
             scale g 6
             shift t 6
             n = Mul(x, g)
             {shift}
             ints p 8 = 0 0 0 0 0 {} 0 0
             a = Pad(m, p)
             ints s 6 = 0 2 2 2 2 6
             b = Reshape(a, s)
             c = Transpose(b) perm=[0,1,3,2,4,5]
             ints r 4 = -1 2 2 6
             v = Reshape(c, r)
             weight w 6 3
             y = MatMul(v, w)
             output y",
            4 - height
        ))
    };
    let (shifted, plain) = ("m = Add(n, t)", "m = Identity(n)");
    folded(&windows(4, shifted));
    folded(&windows(3, plain));
    // Padded zeros are not shifted, so the windows of one image have different shifts.
    assert_eq!(stops(&windows(3, shifted)), Reason::MixedAxes);
}

#[test]
fn equal_transposes_and_reshapes_merge_after_a_fold() {
    // Two sites whose channels come first. The value between them and the last one are read as
    // tokens.
    let behind = |first: &str, second: &str| {
        let model = model(&format!(
            "input x batch 6 4
             scale g 6 1
             shift t 6 1
             n = Mul(x, g)
             m = Add(n, t)
             {first}
             weight w 6 3
             y = MatMul(v, w)
             i = Identity(m)
             scale h 6 1
             shift u 6 1
             o = Mul(i, h)
             p = Add(o, u)
             {second}
             weight k 6 3
             z = MatMul(q, k)
             output y z"
        ));
        let after = folded(&model);
        operators(&after)
            .iter()
            .filter(|&&op| op == "Transpose" || op == "Reshape")
            .count()
    };
    assert_eq!(
        behind(
            "v = Transpose(m) perm=[0,2,1]",
            "q = Transpose(p) perm=[0,2,1]"
        ),
        1
    );
    assert_eq!(
        behind(
            "v = Transpose(m) perm=[0,2,1]",
            "q = Transpose(p) perm=[2,0,1]"
        ),
        2
    );
    let heads = |name: &str, from: &str, to: &str, extents: &str| {
        format!(
            "ints {name}s 4 = {extents}\n {name}h = Reshape({from}, {name}s)\n {name}f = Transpose({name}h) perm=[0,2,3,1]\n ints {name}r 4 = 0 4 1 6\n {to} = Reshape({name}f, {name}r)"
        )
    };
    let (first, second) = (
        heads("a", "m", "v", "0 6 2 2"),
        heads("b", "p", "q", "-1 6 2 2"),
    );
    assert_eq!(behind(&first, &second), 3);
    // In addition, a Reshape to the same shape is an identity.
    assert_eq!(behind(&first, &heads("b", "p", "q", "-1 6 4 1")), 5);
    // A Reshape that is equal to a Transpose merges with it.
    let turned = |text: &str| text.replace("4 = 0 4 1 6", "3 = 0 4 6");
    assert_eq!(behind(&turned(&first), &turned(&second)), 1);
}

#[test]
fn slice_cuts_an_affine() {
    let bounds = |axis: i64| {
        format!(
            "ints s 1 = 4\n ints e 1 = -7\n ints a 1 = {axis}\n ints p 1 = -2\n v = Slice(m, s, e, a, p)\n"
        )
    };
    folded(&forward(&format!(
        "{} weight w 3 3\n y = MatMul(v, w)",
        bounds(-1)
    )));
    folded(&forward(&format!("{} {MATMUL}", bounds(1))));
    folded(&backward(
        "ints s 1 = 1\n ints e 1 = 3\n ints a 1 = 2\n v = Slice(l, s, e, a)",
        "2",
    ));
    let open = "indices s 1\n ints e 1 = 6\n ints a 1 = 2\n v = Slice(m, s, e, a)\n weight w 6 3\n y = MatMul(v, w)";
    assert_eq!(stops(&forward(open)), Reason::NotConstant);
    // A part that another Slice also reads cannot be changed.
    let shared = "ints s 1 = 1\n ints e 1 = 3\n ints f 1 = 2\n ints a 1 = 2\n v = Slice(l, s, e, a)\n o = Slice(l, s, f, a)\n output o";
    assert_eq!(stops_backward(&backward(shared, "2")), Reason::OtherReader);
}

#[test]
fn split_cuts_an_affine_for_each_output() {
    let heads = "ints s 2 = 2 4\n v, o = Split(m, s) axis=2\n weight w 2 3\n weight k 4 3\n y = MatMul(v, w)\n z = MatMul(o, k)\n output z\n";
    folded(&forward(heads));
    folded(&backward(
        "ints s 2 = 2 4\n v, o = Split(l, s) axis=2\n output o",
        "2",
    ));
    let open = heads.replace("ints s 2 = 2 4", "indices s 2");
    assert_eq!(stops(&forward(&open)), Reason::UnknownShape);
}

#[test]
fn gather_selects_the_channels_of_an_affine() {
    folded(&forward(
        "ints i 1 3 = 0 -1 2\n v = Gather(m, i) axis=2\n weight w 3 3\n y = MatMul(v, w)",
    ));
    folded(&forward(
        "ints i = 1\n v = Gather(m, i) axis=1\n weight w 6 3\n y = MatMul(v, w)",
    ));
    folded(&backward("ints i 2 = 5 0\n v = Gather(l, i) axis=2", "2"));
    let open = "indices i 6\n v = Gather(m, i) axis=AXIS\n weight w 6 3\n y = MatMul(v, w)";
    assert_eq!(
        stops(&forward(&open.replace("AXIS", "2"))),
        Reason::NotConstant
    );
    folded(&forward(&open.replace("AXIS", "1")));
    // One channel that is selected twice cannot have two scales.
    assert_eq!(
        stops_backward(&backward(
            "ints i 6 = 5 5 0 1 2 3\n v = Gather(l, i) axis=2",
            "6"
        )),
        Reason::OtherReader
    );
}

#[test]
fn gather_nd_passes_channel_affines() {
    let read = "weight w 6 3\n y = MatMul(v, w)";
    // One token of each item, for example the end of a text.
    folded(&forward(&format!(
        "ints i 2 2 = 0 3 1 -2\n v = GatherND(m, i)\n {read}"
    )));
    folded(&forward(&format!(
        "ints i 2 3 1 = 3 -1 1 0 0 2\n v = GatherND(m, i) batch_dims=1\n {read}"
    )));
    folded(&forward(&format!(
        "indices i 3 5 1\n v = GatherND(m, i)\n {read}"
    )));
    folded(&backward(
        "ints i 2 1 = 3 0\n v = GatherND(l, i) batch_dims=1",
        "6",
    ));
    folded(&backward("indices i 3 5 1\n v = GatherND(l, i)", "6"));
    // The batch axes of the GatherND are axes of the value.
    let by_item = model(
        "input x 4 2 4
         scale g 4 1 1
         n = Mul(x, g)
         ints i 4 1 1 = 1 0 0 1
         v = GatherND(n, i) batch_dims=1
         t = Transpose(v) perm=[1,2,0]
         weight w 4 3
         y = MatMul(t, w)
         output y",
    );
    folded(&by_item);
    // Indices of channels select different channels from place to place.
    let channels = "ints i 2 3 = 0 3 5 1 2 0\n y = GatherND(m, i)";
    assert_eq!(stops(&forward(channels)), Reason::WrongAxis);
    assert_eq!(
        stops_backward(&backward("indices i 5 1\n v = GatherND(l, i)", "5 1 1")),
        Reason::WrongAxis
    );
    let open = "indices i 2 count\n v = GatherND(m, i)\n y = Relu(v)";
    assert_eq!(stops(&forward(open)), Reason::UnknownShape);
}

#[test]
fn shape_and_cast_like_readers_do_not_block_an_affine() {
    let beside = |read: &str| format!("const c = 0.5\n z = {read}\n output z\n {MATMUL}");
    for read in ["Shape(m)", "Size(m)", "CastLike(c, m)"] {
        folded(&forward(&format!("v = Identity(m)\n {}", beside(read))));
        let read = read.replace('m', "l");
        folded(&backward(
            &format!("const c = 0.5\n v = Identity(l)\n z = {read}\n output z"),
            "6",
        ));
    }
    let plane = model(
        "input x 4 6
         scale g 6
         n = Mul(x, g)
         z = EyeLike(n)
         weight w 6 3
         y = MatMul(n, w)
         output y z",
    );
    folded(&plane);
    // A bias of zeros, as the dynamo exporter writes it, is a constant, whatever value determines
    // its type.
    let bias = "const c = 0\n k = CastLike(c, m)\n ints s 1 = 2\n b = Expand(k, s)";
    folded(&image(
        1,
        &format!("{bias}\n weight w 2 4 1 1\n y = Conv(m, w, b)"),
    ));
    // The first operand of CastLike is read.
    let cast = forward(&format!("v = Identity(m)\n {}", beside("CastLike(m, c)")));
    assert_eq!(stops(&cast), Reason::GraphOutput);
    let cast = backward(
        "const c = 0.5\n v = Identity(l)\n z = CastLike(l, c)\n output z",
        "6",
    );
    assert_eq!(stops_backward(&cast), Reason::GraphOutput);
}

#[test]
fn concat_along_channels_joins_affine_and_identity() {
    folded(&forward(
        "v = Concat(x, m) axis=2\n weight w 12 3\n y = MatMul(v, w)",
    ));
    folded(&forward(
        "v = Concat(m, m) axis=1\n weight w 6 3\n y = MatMul(v, w)",
    ));
    folded(&backward("shift c 2 1 6\n v = Concat(c, l) axis=1", "6"));
    // Some tokens have the affine and others do not. One weight cannot treat them differently.
    assert_eq!(
        stops(&forward(&format!("v = Concat(x, m) axis=1\n {MATMUL}"))),
        Reason::WrongAxis
    );
    let open = model(
        "input x batch 6
         scale g 6
         n = Mul(x, g)
         v = Concat(x, n) axis=0
         weight w 6 3
         y = MatMul(v, w)
         output y",
    );
    assert_eq!(stops(&open), Reason::UnknownShape);
}

#[test]
fn expand_and_tile_repeat_the_affine() {
    folded(&forward(
        "ints s 4 = 3 1 1 1\n v = Expand(m, s)\n weight w 6 3\n y = MatMul(v, w)",
    ));
    folded(&forward(
        "ints r 3 = 1 2 1\n v = Tile(m, r)\n weight w 6 3\n y = MatMul(v, w)",
    ));
    folded(&backward("ints r 3 = 1 2 1\n v = Tile(l, r)", "6"));
    // Repeated channels have repeated affines, whatever their weights are.
    folded(&forward(
        "ints r 3 = 1 1 2\n v = Tile(m, r)\n weight w 12 3\n y = MatMul(v, w)",
    ));
    folded(&image(
        1,
        "ints r 4 = 1 3 2 1\n v = Tile(m, r)\n weight w 2 12 1 1\n y = Conv(v, w)",
    ));
    let open = "all = Shape(other)\n r = Slice(all, zero, three)\n ints zero 1 = 0\n ints three 1 = 3\n input other a b c\n v = Tile(m, r)\n weight w 12 3\n y = MatMul(v, w)";
    assert_eq!(stops(&forward(open)), Reason::UnknownShape);
    assert_eq!(
        stops_backward(&backward("ints r 3 = 1 1 2\n v = Tile(l, r)", "12")),
        Reason::MixedAxes
    );
}

#[test]
fn pad_of_channels_stops_an_affine() {
    let padded =
        |pads: &str, mode: &str| format!("ints p 6 = {pads}\n v = Pad(m, p) mode={mode}\n");
    for mode in ["constant", "reflect", "edge"] {
        folded(&forward(&format!(
            "{} {MATMUL}",
            padded("0 1 0 0 2 0", mode)
        )));
    }
    folded(&forward(&format!(
        "{} {MATMUL}",
        padded("0 0 0 0 0 0", "constant")
    )));
    for mode in ["constant", "reflect"] {
        let channels = format!(
            "{} weight w 7 3\n y = MatMul(v, w)",
            padded("0 0 1 0 0 0", mode)
        );
        assert_eq!(stops(&forward(&channels)), Reason::Padding);
    }
    folded(&backward(
        "ints p 6 = 0 1 0 0 0 0\n v = Pad(l, p) mode=edge",
        "6",
    ));
    assert_eq!(
        stops_backward(&backward("ints p 6 = 0 1 0 0 0 0\n v = Pad(l, p)", "6")),
        Reason::Padding
    );
}

#[test]
fn reduce_mean_over_tokens_passes_and_over_channels_refuses() {
    folded(&forward(
        "v = ReduceMean(m) axes=[1] keepdims=0\n weight w 6 3\n y = MatMul(v, w)",
    ));
    folded(&forward(
        "ints a 1 = -2\n v = ReduceSum(m, a)\n weight w 6 3\n y = MatMul(v, w)",
    ));
    folded(&backward("v = ReduceMean(l) axes=[1] keepdims=0", "6"));
    for op in ["ReduceMean(m) axes=[2]", "ReduceMean(m)"] {
        assert_eq!(stops(&forward(&format!("y = {op}"))), Reason::ReducedAxis);
    }
    assert_eq!(
        stops(&forward("y = ReduceMax(m) axes=[1]")),
        not_linear("ReduceMax")
    );
    // The attribute is neither 0 nor 1.
    let both = forward("y = ReduceMean(m) axes=[1] keepdims=-4");
    assert_eq!(stops(&both), Reason::Attribute("keepdims".into()));
    assert_eq!(
        stops_backward(&backward("ints a 1 = 1\n v = ReduceSum(l, a)", "6")),
        Reason::ReducedAxis
    );
}

#[test]
fn average_pool_passes_unless_it_counts_padding() {
    let conv = "weight w 2 4 1 1\n y = Conv(v, w)";
    folded(&image(1, &format!("v = GlobalAveragePool(m)\n {conv}")));
    folded(&image(
        1,
        &format!("v = AveragePool(m) kernel_shape=[2,2]\n {conv}"),
    ));
    folded(&image(
        1,
        &format!("v = AveragePool(m) kernel_shape=[2,2] pads=[1,0,0,1]\n {conv}"),
    ));
    assert_eq!(
        stops(&image(3, "y = AveragePool(m) kernel_shape=[2,2]")),
        Reason::ReducedAxis
    );
    let counted = "y = AveragePool(m) kernel_shape=[2,2] pads=[1,0,0,1] count_include_pad=1";
    assert_eq!(stops(&image(1, counted)), Reason::Padding);
    assert_eq!(
        stops(&image(1, "y = AveragePool(m) kernel_shape=[2,2] fancy=1")),
        Reason::Attribute("fancy".into())
    );
    assert_eq!(
        stops(&image(1, "y = MaxPool(m) kernel_shape=[2,2]")),
        not_linear("MaxPool")
    );
}

#[test]
fn constant_add_absorbs_a_shift_and_passes_a_scale() {
    // The affine before the constant belongs to the constant, not to the normalizer.
    let between = "v = Identity(m)\n shift c 4 6\n a = Add(c, v)\n scale d 4 6\n b = Mul(a, d)\n f = Neg(b)\n weight w 6 3\n y = MatMul(f, w)\n";
    folded(&forward(between));
    folded(&backward("shift c 4 6\n v = Add(l, c)", "6"));
    assert_eq!(
        stops(&forward("o = Relu(x)\n y = Add(m, o)")),
        Reason::ResidualStream
    );
    assert_eq!(stops(&forward("y = Mul(m, m)")), not_linear("Mul"));
    assert_eq!(
        stops(&forward("const c = 2\n i = Identity(m)\n y = Div(c, i)")),
        not_linear("Div by the value")
    );
    let bare = backward("scale c 4 6\n v = Mul(l, c)", "6");
    assert_eq!(
        stops_backward(&bare),
        not_linear("a bare Mul, which has no place for a shift,")
    );
}

#[test]
fn matmul_absorbs_an_affine_along_its_contracted_axis() {
    folded(&forward("weight w 6 3\n y = MatMul(m, w)"));
    folded(&forward("weight w 6\n y = MatMul(m, w)"));
    folded(&forward("weight w 2 6 3\n y = MatMul(m, w)"));
    folded(&forward(
        "v = Transpose(m) perm=[0,2,1]\n weight w 3 6\n y = MatMul(w, v)",
    ));
    folded(&backward("v = Identity(l)", "6"));
    assert_eq!(
        stops(&forward("weight w 3 4\n y = MatMul(w, m)")),
        Reason::WrongAxis
    );
    assert_eq!(
        stops(&forward("v = Transpose(x) perm=[0,2,1]\n y = MatMul(m, v)")),
        Reason::NotConstant
    );
    assert_eq!(
        stops_backward(&backward("v = Identity(l)", "4 1")),
        Reason::WrongAxis
    );
}

#[test]
fn gemm_absorbs_an_affine_with_alpha_beta_and_transposes() {
    let flat = "ints s 2 = -1 6\n v = Reshape(m, s)\n";
    folded(&forward(&format!(
        "{flat} weight w 3 6\n shift c 3\n y = Gemm(v, w, c) transB=1 alpha=2.0 beta=0.5"
    )));
    folded(&forward(&format!(
        "{flat} weight w 3 6\n u = Transpose(v)\n y = Gemm(w, u)"
    )));
    let rows = format!("{flat} weight w 8 3\n y = Gemm(v, w) transA=1");
    assert_eq!(stops(&forward(&rows)), Reason::WrongAxis);
    let unknown = format!("{flat} weight w 6 3\n y = Gemm(v, w) fancy=1");
    assert_eq!(stops(&forward(&unknown)), Reason::Attribute("fancy".into()));
    let third = format!("{flat} weight a 8 2\n weight b 2 6\n y = Gemm(a, b, v)");
    assert_eq!(stops(&forward(&third)), not_linear("Gemm"));
    let linear = |along: &str| {
        model(&format!(
            "input x 8 6
             weight w 6 3
             shift c 3
             l = Gemm(x, w, c) beta=2.0
             scale g {along}
             shift t {along}
             n = Mul(l, g)
             m = Add(n, t)
             y = Relu(m)
             output y"
        ))
    };
    folded(&linear("3"));
    assert_eq!(stops_backward(&linear("8 1")), Reason::WrongAxis);
}

#[test]
fn conv_and_conv_transpose_absorb_channel_affines() {
    for (op, weight) in [("Conv", "4 4 2 2"), ("ConvTranspose", "4 3 2 2")] {
        folded(&image(
            1,
            &format!("weight w {weight}\n y = {op}(m, w) strides=[2,1] pads=[1,0,0,1]"),
        ));
        let wrong = format!("weight w {weight}\n y = {op}(m, w)");
        assert_eq!(stops(&image(2, &wrong)), Reason::WrongAxis);
        let unknown = format!("weight w {weight}\n y = {op}(m, w) fancy=1");
        assert_eq!(
            stops(&image(1, &unknown)),
            Reason::Attribute("fancy".into())
        );
        let linear = |along: &str| {
            model(&format!(
                "input x 2 4 4 4
                 weight w {weight}
                 l = {op}(x, w)
                 scale g {along}
                 shift t {along}
                 n = Mul(l, g)
                 m = Add(n, t)
                 y = Relu(m)
                 output y"
            ))
        };
        let channels = if op == "Conv" { 4 } else { 3 };
        folded(&linear(&format!("{channels} 1 1")));
        let columns = if op == "Conv" { 3 } else { 5 };
        assert_eq!(
            stops_backward(&linear(&columns.to_string())),
            Reason::WrongAxis
        );
    }
}

/// Attention with two heads of three channels after a normalizer. No projection has a bias. `keys`
/// are lines between the keys and the product, and `scores` are lines between the product and the
/// values.
fn attention(keys: &str, scores: &str) -> Model {
    forward(&format!(
        "weight wq 6 6
         weight wk 6 6
         weight wv 6 6
         ints heads 4 = 0 4 2 3
         q = MatMul(m, wq)
         k = MatMul(m, wk)
         v = MatMul(m, wv)
         qr = Reshape(q, heads)
         kr = Reshape(k, heads)
         vr = Reshape(v, heads)
         qt = Transpose(qr) perm=[0,2,1,3]
         vt = Transpose(vr) perm=[0,2,1,3]
         {keys}
         z = MatMul(qt, kt)
         {scores}
         o = MatMul(a, vt)
         ot = Transpose(o) perm=[0,2,1,3]
         y = Identity(ot)"
    ))
}

/// The number of Adds of biases in the result. The comparison has a tolerance, because Softmax is
/// not exact.
fn bias_adds(model: &Model) -> usize {
    let fused = fuse(model);
    assert!(
        fused.plan.sites.iter().all(|site| site.is_folded()),
        "{:#?}",
        fused.plan.sites
    );
    same(model, &fused.model, 1e-6);
    let is_bias = |node: &&NodeProto| node.name().ends_with("_bias_add");
    fused.model.graph().node.iter().filter(is_bias).count()
}

#[test]
fn key_bias_that_softmax_ignores_is_omitted() {
    let keys = "kt = Transpose(kr) perm=[0,2,3,1]";
    let softmax = "a = Softmax(z) axis=-1";
    assert_eq!(bias_adds(&attention(keys, softmax)), 2);
    let masked = "input mask 4 4\n const s 1 = 0.5\n zs = Mul(z, s)\n zm = Add(zs, mask)\n a = Softmax(zm) axis=3";
    assert_eq!(bias_adds(&attention(keys, masked)), 2);
    let scaled = "const s = 0.5\n ks = Mul(kr, s)\n kt = Transpose(ks) perm=[0,2,3,1]";
    assert_eq!(bias_adds(&attention(scaled, softmax)), 2);

    // Along the queries, the shift of the keys is not constant.
    assert_eq!(bias_adds(&attention(keys, "a = Softmax(z) axis=2")), 3);
    let varying = "input s 4\n zs = Mul(z, s)\n a = Softmax(zs) axis=-1";
    assert_eq!(bias_adds(&attention(keys, varying)), 3);
    assert_eq!(bias_adds(&attention(keys, "a = Sigmoid(z)")), 3);
    let typed = format!("{keys}\n const c = 2\n like = CastLike(c, kr)\n output like");
    assert_eq!(bias_adds(&attention(&typed, softmax)), 2);
    // An attribute that ONNX does not define is unknown.
    assert_eq!(
        bias_adds(&attention(&format!("{keys} fancy=1"), softmax)),
        3
    );
    // Constant keys do not have the shift of the other keys.
    let prefixed = "weight prefix 2 1 2 3\n kp = Concat(prefix, kr) axis=1\n kt = Transpose(kp) perm=[0,2,3,1]";
    let cut = "ints begin 1 = 0\n ints end 1 = 4\n ints last 1 = 3
               p = Softmax(z) axis=-1\n a = Slice(p, begin, end, last)";
    assert_eq!(bias_adds(&attention(prefixed, cut)), 3);
    // The keys have another reader.
    let mut cached = attention(keys, softmax);
    cached.graph_mut().output.push(undeclared("kt"));
    assert_eq!(bias_adds(&cached), 3);
}

/// As torch's exporter transposes the keys: the heads are merged with an open batch and split
/// again.
#[test]
fn key_bias_is_omitted_past_transposes_beside_the_batch() {
    let turned = |perm: &str| {
        let keys = format!(
            "kh = Transpose(kr) perm=[0,2,1,3]
             ints flat 3 = -1 4 3
             ints back 4 = -1 2 3 4
             ku = Reshape(kh, flat)
             kv = Transpose(ku) perm=[{perm}]
             kt = Reshape(kv, back)"
        );
        let mut model = attention(&keys, "a = Softmax(z) axis=-1");
        model.graph_mut().input[0] = declared("x", DataType::Float, &["batch", "4", "6"]);
        model
    };
    assert_eq!(bias_adds(&turned("0,2,1")), 2);
    // Channels and tokens are mixed.
    assert_eq!(bias_adds(&turned("0,1,2")), 3);
    // The value between the two has another reader.
    let mut shared = turned("0,2,1");
    shared.graph_mut().output.push(undeclared("kv"));
    assert_eq!(bias_adds(&shared), 3);
}

/// The model after its operators with this name are moved to the domain of onnxruntime.
pub fn in_microsoft_domain(mut model: Model, op: &str) -> Model {
    for node in model
        .graph_mut()
        .node
        .iter_mut()
        .filter(|node| node.op_type() == op)
    {
        node.domain = Some("com.microsoft".into());
    }
    let set = OperatorSetIdProto {
        domain: Some("com.microsoft".into()),
        version: Some(1),
    };
    model.proto.opset_import.push(set);
    model
}

#[test]
fn bias_gelu_and_fast_gelu_absorb_a_shift_and_no_scale() {
    for op in ["BiasGelu", "FastGelu"] {
        let behind = |steps: &str| {
            let text = format!(
                "const w 6 3 = 1 0 0 0 1 0 0 0 1 1 0 0 0 1 0 0 0 1
                 weight v 3 2
                 const b 3 = 10 20 30
                 l = MatMul(m, w)
                 {steps}
                 y = MatMul(a, v)"
            );
            in_microsoft_domain(forward(&text), op)
        };
        // The new bias is b + t·W. There is no Add between the product and the activation.
        let model = behind(&format!("a = {op}(l, b)"));
        let after = folded(&model);
        assert_eq!(operators(&after), ["MatMul", op, "MatMul"]);
        let numbers = |model: &Model, name: &str| {
            tensor::read_f64(initializer(model, name), &Externals::none()).unwrap()
        };
        let (shift, bias) = (
            numbers(&model, "t"),
            numbers(&after, &after.graph().node[1].input[1]),
        );
        let expected = [
            10.0 + shift[[0]] + shift[[3]],
            20.0 + shift[[1]] + shift[[4]],
            30.0 + shift[[2]] + shift[[5]],
        ];
        assert_eq!(bias.iter().copied().collect::<Vec<_>>(), expected);
        assert_eq!(bias.ndim(), 1);
        // The product has another reader, so the bias must be added before it.
        let both = folded(&behind(&format!("c = Tanh(l)\n a = {op}(l, b)\n output c")));
        assert_eq!(operators(&both)[..2], ["MatMul", "Add"]);
        // Only the shift folds. A scale stops before the activation.
        let scaled = in_microsoft_domain(
            forward(&format!("const b 6 = 1 2 3 4 5 6\n y = {op}(m, b)")),
            op,
        );
        assert_eq!(stops(&scaled), not_linear(op));
        let after = fuse(&scaled).model;
        assert_eq!(operators(&after), ["Mul", op]);
    }
    let bare = in_microsoft_domain(forward("y = FastGelu(m)"), "FastGelu");
    assert_eq!(stops(&bare), not_linear("FastGelu"));
}

#[test]
fn skip_layer_norm_refuses_an_affine_of_one_operand() {
    for op in ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"] {
        // The sum is inside the operator. If a value is added to itself, both operands are scaled.
        let one = forward(&format!("scale h 6\n y = {op}(m, x, h)"));
        let both = forward(&format!("scale h 6\n y = {op}(m, m, h)"));
        let first = |model| {
            let plan = fuse(&in_microsoft_domain(model, op)).plan;
            plan.sites[0].clone()
        };
        let (reason, at) = match first(one).post {
            Some(Outcome::Kept { forward, .. }) => (forward.reason, forward.at),
            outcome => panic!("{outcome:?}"),
        };
        assert_eq!((reason, at), (Reason::ResidualStream, format!("{op}_y")));
        assert!(
            matches!(first(both).post, Some(Outcome::Kept { forward, .. }) if forward.reason == not_linear(op))
        );
    }
}

#[test]
fn affine_does_not_pass_unknown_attributes() {
    let through = |line: &str| {
        model(&format!(
            "input x batch 4 6
             const g 6 = 2 3 5 7 1 4
             ints s 3 = 0 0 6
             weight w 6 3
             n = Mul(x, g)
             {line}
             o = MatMul(y, w)
             output o"
        ))
    };
    for (plain, strange) in [
        (
            "y = ReduceMean(n) axes=[1]",
            "y = ReduceMean(n) axes=[1] keepdim=0",
        ),
        (
            "y = Transpose(n) perm=[1,0,2]",
            "y = Transpose(n) perm=[1,0,2] inplace=1",
        ),
        ("y = Reshape(n, s)", "y = Reshape(n, s) order=1"),
        (
            "y = Concat(n, n) axis=1",
            "y = Concat(n, n) axis=1 new_axis=0",
        ),
        ("y = Identity(n)", "y = Identity(n) scale=2"),
    ] {
        assert!(fuse(&through(plain)).plan.sites[0].is_folded(), "{plain}");
        let plan = fuse(&through(strange)).plan;
        assert!(!plan.sites[0].is_folded(), "{strange}");
    }
}

/// An attribute of one operator is unknown for another one, such as those of FusedMatMul for
/// MatMul.
#[test]
fn linear_operators_with_unknown_attributes_absorb_nothing() {
    for (plain, strange) in [
        ("y = MatMul(n, w)", "y = MatMul(n, w) transA=0"),
        ("y = MatMul(n, w)", "y = MatMul(n, w) alpha=1.0"),
        ("y = Gemm(n, w)", "y = Gemm(n, w) gamma=1.0"),
        // onnxruntime ignores transA if the other operand is a vector.
        (
            "y = com.microsoft.FusedMatMul(n, v)",
            "y = com.microsoft.FusedMatMul(n, v) transA=1",
        ),
        (
            "y = Einsum(n, w) equation=ab,bc->ac",
            "y = Einsum(n, w) equation=ab,bc->ac scale=2",
        ),
    ] {
        let before = |line: &str| {
            model(&format!(
                "input x 6 6\n scale g 6\n weight w 6 3\n weight v 6\n n = Mul(x, g)\n {line}\n output y"
            ))
        };
        assert!(fuse(&before(plain)).plan.sites[0].is_folded(), "{plain}");
        assert!(
            !fuse(&before(strange)).plan.sites[0].is_folded(),
            "{strange}"
        );
    }
}

#[test]
fn einsum_absorbs_affines_along_letters_of_its_weight() {
    // The equation, the shapes of the weight and of the scale and shift, and whether the weight is
    // first.
    let cases = [
        ("abc,cd->abd", "6 3", "6", false),
        ("cd,abc->bad", "6 3", "6", true),
        ("dc,abc->dab", "3 6", "6", true),
        ("abc,bcd->abd", "5 6 3", "5 1", false),
        ("abc,cde->adeb", "6 2 3", "6", false),
        ("abc,bc->a", "5 6", "5 1", false),
    ];
    for (equation, weight, parameters, is_first) in cases {
        let operands = if is_first { "w, n" } else { "n, w" };
        let text = format!(
            "input x batch 5 6\n scale g {parameters}\n shift b {parameters}\n weight w {weight}
             f = Floor(x)\n m = Mul(f, g)\n n = Add(m, b)
             y = Einsum({operands}) equation={equation}\n output y"
        );
        let after = folded(&model(&text));
        assert_eq!(operators(&after), ["Floor", "Einsum", "Add"], "{equation}");
    }
}

#[test]
fn einsum_absorbs_a_shift_along_any_letter() {
    // The equation, the shapes of the weight, of the scale and of the shift, and whether the weight
    // is first.
    let cases = [
        ("abc,cd->abd", "6 3", "6", "5 1", false),
        ("cd,abc->dab", "6 3", "6", "5 6", true),
        ("abc,mb->amc", "4 5", "5 1", "5 6", false),
        ("mb,abc->cam", "4 5", "5 1", "6", true),
        ("abc,bdc->abd", "5 3 6", "6", "5 6", false),
        // The sum is also over letters that only the value has.
        ("abc,cd->ad", "6 3", "6", "6", false),
        ("cd,abc->da", "6 3", "6", "5 6", true),
        ("abc,bd->ad", "5 3", "5 1", "5 6", false),
    ];
    for (equation, weight, scale, shift, is_first) in cases {
        let operands = if is_first { "w, n" } else { "n, w" };
        let text = format!(
            "input x batch 5 6\n scale g {scale}\n shift b {shift}\n weight w {weight}
             f = Floor(x)\n m = Mul(f, g)\n i = Identity(m)\n n = Add(i, b)
             y = Einsum({operands}) equation={equation}\n output y"
        );
        assert_eq!(
            operators(&folded(&model(&text))),
            ["Floor", "Einsum", "Add"],
            "{equation}"
        );
    }
    let image = |height: &str, shift: &str| {
        model(&format!(
            "input x batch 4 {height} 3\n scale g 4 1 1\n {shift}\n weight w 2 4
             f = Floor(x)\n m = Mul(f, g)\n n = Add(m, b)
             y = Einsum(n, w) equation=bchw,oc->bo\n output y"
        ))
    };
    let pooled = folded(&image("5", "shift b 4 1 1"));
    assert_eq!(operators(&pooled), ["Floor", "Einsum", "Add"]);
    folded(&image("5", "shift b 4 5 1"));
    // The number of times that the shift is added is unknown. A scale does not depend on this
    // number.
    assert_eq!(stops(&image("high", "shift b 4 1 1")), Reason::UnknownShape);
    folded(&image("high", "const b = 0"));
}

#[test]
fn einsum_over_tokens_absorbs_a_shift_and_passes_a_scale() {
    // The spatial gate of gMLP, and the operators after it.
    let before = |mix: &str| {
        model(&format!(
            "input x batch 5 6\n input u batch 4 6\n divisor g 6\n shift t 6\n weight k 4 5\n shift b 4 1\n weight w 6 3
             f = Floor(x)\n m = Mul(f, g)\n n = Add(m, t)
             {mix}\n o = Mul(u, e)\n y = MatMul(o, w)\n output y"
        ))
    };
    let added = "d = Einsum(n, k) equation=bnc,mn->bmc\n e = Add(d, b)";
    assert_eq!(
        operators(&folded(&before(added))),
        ["Floor", "Einsum", "Add", "Mul", "MatMul"]
    );
    // Without a bias, the Add would be an additional operator, as after a MatMul.
    for mix in ["e = Einsum(n, k) equation=bnc,mn->bmc", "e = MatMul(k, n)"] {
        assert_eq!(stops(&before(mix)), Reason::WrongAxis, "{mix}");
    }
    // After the Einsum, the scale folds into the producer of its operand, and the shift into the
    // summand.
    let behind = model(
        "input x batch 5 6\n weight a 6 6\n weight k 4 5\n shift b 4 1\n scale g 6\n shift t 6
         h = MatMul(x, a)\n e = Einsum(h, k) equation=bnc,mn->bmc\n d = Add(e, b)
         i = Mul(d, g)\n n = Add(i, t)\n y = Floor(n)\n output y",
    );
    assert_eq!(
        operators(&folded(&behind)),
        ["MatMul", "Einsum", "Add", "Floor"]
    );
}

#[test]
fn einsum_absorbs_affines_of_its_result() {
    for (equation, weight, scale) in [
        ("abc,cd->abd", "6 3", "3"),
        ("cd,abc->adb", "6 3", "3 1"),
        ("abc,bcd->abd", "5 6 3", "5 1"),
    ] {
        let operands = if equation.starts_with('c') {
            "w, x"
        } else {
            "x, w"
        };
        let text = format!(
            "input x batch 5 6\n scale g {scale}\n shift b {scale}\n weight w {weight}
             e = Einsum({operands}) equation={equation}
             m = Mul(e, g)\n n = Add(m, b)\n y = Floor(n)\n output y"
        );
        assert_eq!(
            operators(&folded(&model(&text))),
            ["Einsum", "Add", "Floor"],
            "{equation}"
        );
    }
}

#[test]
fn einsum_passes_scales_along_letters_that_stay() {
    // Tokens that a weight or other tokens mix. A scale of channels is before or after the mixing.
    let mixed = [
        "weight k 4 5\n e = Einsum(k, n) equation=kn,bnc->bkc",
        "e = Einsum(n, z) equation=btc,bts->bsc",
    ];
    for mix in mixed {
        let forward = format!(
            "input x batch 5 6\n input z batch 5 4\n scale g 6\n weight w 6 3
             f = Floor(x)\n n = Mul(f, g)\n {mix}\n y = MatMul(e, w)\n output y"
        );
        assert_eq!(
            operators(&folded(&model(&forward))),
            ["Floor", "Einsum", "MatMul"],
            "{mix}"
        );
        let backward = format!(
            "input x batch 5 6\n input z batch 5 4\n scale g 6\n weight w 6 6
             n = MatMul(x, w)\n {mix}\n m = Mul(e, g)\n y = Floor(m)\n output y"
        );
        assert_eq!(
            operators(&folded(&model(&backward))),
            ["MatMul", "Einsum", "Floor"],
            "{mix}"
        );
    }
    // The Einsum would multiply and add the shift.
    let shifted =
        "input x batch 5 6\n input z batch 5 4\n shift t 6\n weight w 6 3\n f = Floor(x)\n n = Add(f, t)
         e = Einsum(n, z) equation=btc,bts->bsc\n y = MatMul(e, w)\n output y";
    assert!(
        !unfold::fuse(&model(shifted), &portable())
            .unwrap()
            .changed()
    );
}

#[test]
fn einsum_refuses_scales_along_letters_its_weight_lacks() {
    // The weight lacks the axes of tokens. A repeated letter is a diagonal. A letter that is summed
    // only over the value is not a product with the weight. An axis of extent 1 may broadcast.
    let cases = [
        ("abc,cd->abd", "6 3", "5 1"),
        ("abb,bd->ad", "6 3", "6"),
        ("abc,cd->ad", "6 3", "5 1"),
        ("abc,cd->abd", "1 3", "6"),
        ("abc,cd->abcd", "6 3", "5 1"),
    ];
    for (equation, weight, parameters) in cases {
        let middle = if equation.contains("bb") { "6" } else { "5" };
        let text = format!(
            "input x batch {middle} 6\n scale g {parameters}\n weight w {weight}
             f = Floor(x)\n n = Mul(f, g)\n y = Einsum(n, w) equation={equation}\n output y"
        );
        let fused = unfold::fuse(&model(&text), &portable()).unwrap();
        assert!(
            !fused.changed(),
            "{equation}: {}",
            crate::common::text::print(&fused.model)
        );
    }
}

/// An affine of a vector folds into a matrix on either side, into a stack of matrices, and into
/// another vector.
#[test]
fn affine_of_a_vector_folds_into_a_product() {
    let products = [
        ("6 3", "MatMul(m, w)"),
        ("3 6", "MatMul(w, m)"),
        ("2 6 3", "MatMul(m, w)"),
        ("2 3 6", "MatMul(w, m)"),
        ("6", "MatMul(m, w)"),
    ];
    for (weight, product) in products {
        let before = model(&format!(
            "input x 6
             scale g 6
             shift t 6
             weight w {weight}
             s = Relu(x)
             n = Mul(s, g)
             m = Add(n, t)
             y = {product}
             output y"
        ));
        let after = becomes(&before, &["Relu", "MatMul", "Add"]);
        same(&before, &after, 0.0);
    }
}

/// The bias takes only its type from a product with a constant that folding stores.
#[test]
fn bias_cast_like_a_changed_value_is_a_constant() {
    let text = r#"<ir_version: 9, opset_import: ["" : 18]>
        filled (float[B, 2, 5] x) => (float[B, 3, 5] z)
            <float[3, 2, 1] w = {1, -2, 3, 0.5, 4, -1}, float[3] c = {0.5, 0.25, 1},
             float[3] g = {2, 3, -1}, float[3] d = {1, -1, 0.5}, float[3] m = {1, 2, 3}, float[3] v = {1, 4, 9}>
        {
            shape = Shape(x)
            two = ConstantOfShape<value = float[1] {2}>(shape)
            y = Mul(x, two)
            s = Sigmoid(x)
            t = Mul(s, y)
            bias = CastLike(c, t)
            n = Conv(t, w, bias)
            z = BatchNormalization(n, g, d, m, v)
        }"#;
    let before = Model::from_text(text).unwrap();
    let fused = crate::fuse(&before);
    assert!(!operators(&fused.model).contains(&"BatchNormalization"));
    assert!(compare(&before, &fused.model, &Default::default()).passed());
}
