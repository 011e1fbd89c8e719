//! Tests shape inference for inputs whose shapes are only partly known.

use ndarray::{ArrayD, IxDyn};
use unfold::infer_shapes;
use unfold::onnx::DataType;
use unfold::onnx::proto::{Dim, TensorProto};
use unfold::onnx::{Model, tensor};
use unfold::prove::{Proof, prove};

use crate::common::numbers::Kind;
use crate::common::reference::{self, Value};
use crate::common::text::model;
use crate::common::{extents, fuse, is_proved_or_listed, judge};
use crate::{folded, fused, operators, proved, same};

/// The extents of a value. Unknown ones are `?`. Empty if the rank is unknown.
fn shape(model: &Model, name: &str) -> String {
    let extents = extents(model, name).unwrap_or_default().into_iter();
    let words = extents.map(|extent| extent.map_or("?".to_owned(), |extent| extent.to_string()));
    words.collect::<Vec<_>>().join(" ")
}

/// Computes half of an extent in floats, and uses the number in a shape.
const HALF: &str = "ints one 1 = 1
    ints first 1 = 0
    const two = 2
    all = Shape(x)
    height = Gather(all, one) axis=0
    wide = Cast(height) to=1
    part = Div(wide, two)
    whole = Floor(part)
    halved = Cast(whole) to=7
    items = Gather(all, first) axis=0";

/// A formula for the extent of such a Range would be negative.
#[test]
fn range_that_ends_before_it_starts_is_empty() {
    for (first, second, by, count) in [
        (1, 2, 2, 0),
        (1, 2, 1, 0),
        (2, 1, 2, 1),
        (2, 1, -1, 0),
        (1, 2, -1, 1),
    ] {
        let before = model(&format!(
            "input x batch 3 2
             ints first = {first}
             ints second = {second}
             ints by = {by}
             scale g 2
             s = Shape(x)
             a = Gather(s, first)
             b = Gather(s, second)
             r = Range(a, b, by)
             c = Shape(r)
             f = Cast(c) to=1
             n = Mul(x, g)
             y = Add(n, f)
             output y"
        ));
        assert_eq!(
            extents(&before, "r"),
            Some(vec![Some(count)]),
            "{first} {second} {by}"
        );
    }
}

#[test]
fn cast_of_infinity_to_integers_keeps_its_extents() {
    // The indices of a table of relative positions, as T5 computes them. The logarithm of 0 is not
    // used.
    let found = model(
        "input x 2 3
         const logs 2 = -inf 1.5
         ints most = 31
         weight table 32 3
         cast = Cast(logs) to=7
         places = Min(cast, most)
         rows = Gather(table, places)
         y = Add(x, rows)
         output y",
    );
    assert_eq!(
        ["cast", "places", "rows"].map(|name| shape(&found, name)),
        ["2", "2", "2 3"]
    );
}

/// tf2onnx counts the rows of a Dense in this way.
#[test]
fn reduce_prod_of_extents_folds_like_mul() {
    let dense = |opset: i64, rows: &str| {
        model(&format!(
            "opset {opset}
             input x batch 12 6
             scale g 6
             shift t 6
             weight w 6 3
             ints first = 0
             ints second = 1
             ints zero 1 = 0
             ints both 2 = 0 1
             ints six 1 = 6
             ints out 3 = -1 12 3
             r = Relu(x)
             n = Mul(r, g)
             m = Add(n, t)
             s = Shape(m)
             {rows}
             c = Concat(rows, six) axis=0
             f = Reshape(m, c)
             z = MatMul(f, w)
             y = Reshape(z, out)
             output y"
        ))
    };
    let multiplied =
        "a = Gather(s, first)\nb = Gather(s, second)\np = Mul(a, b)\nrows = Unsqueeze(p, zero)";
    for (opset, product) in [
        (
            13,
            "l = Gather(s, both)\np = ReduceProd(l) axes=[0] keepdims=0\nrows = Unsqueeze(p, zero)",
        ),
        (17, "l = Gather(s, both)\nrows = ReduceProd(l)"),
        (18, "l = Gather(s, both)\nrows = ReduceProd(l, zero)"),
    ] {
        let after = proved(&dense(opset, product));
        let expected = proved(&dense(opset, multiplied));
        assert_eq!(operators(&after), operators(&expected), "{product}");
        same(&expected, &after, 0.0);
    }
}

#[test]
fn squeeze_without_axes_drops_every_axis_of_extent_one() {
    for opset in [9, 13] {
        let squeezed = |dims: &str, around: &str| {
            model(&format!(
                "opset {opset}
                 input x {dims}
                 weight w 4 6 1 1
                 scale g 4 1
                 shift t 4 1
                 c = Conv(x, w)
                 s = Squeeze(c)
                 n = Mul(s, g)
                 m = Add(n, t)
                 {around}
                 output y"
            ))
        };
        let after = folded(&squeezed("3 6 5 1", "y = Relu(m)"));
        assert_eq!(operators(&after), ["Conv", "Squeeze", "Relu"]);
        // The batch may be 1.
        assert_eq!(shape(&squeezed("batch 6 5 1", "y = Relu(m)"), "s"), "");
    }
}

#[test]
fn dft_shape_follows_length_axis_and_onesided() {
    for (opset, text, expected) in [
        (17, "y = DFT(x, n) axis=2 onesided=1", "2 4 5 2"),
        (17, "y = DFT(x, n) axis=2", "2 4 8 2"),
        (18, "y = DFT(x, n) axis=0 inverse=1", "8 4 16 2"),
        (19, "y = DFT(x, n) axis=-2 onesided=1", "2 4 5 2"),
        (19, "y = DFT(x)", "2 4 16 2"),
        (17, "y = DFT(x) axis=2 onesided=1", "2 4 9 2"),
        (17, "y = DFT(x) axis=2 onesided=1 inverse=1", "2 4 ? 1"),
        (20, "y = DFT(x)", "2 4 16 2"),
        (20, "y = DFT(x, n, two) onesided=1", "2 4 5 2"),
        (20, "y = DFT(x, , last) onesided=1", "2 4 9 2"),
    ] {
        let text = format!(
            "opset {opset}\ninput x 2 4 16 1\nints n = 8\nints two = 2\nints last = -2\n{text}\noutput y"
        );
        assert_eq!(shape(&model(&text), "y"), expected, "{text}");
    }
}

#[test]
fn known_extents_beside_unknown_ones_are_inferred() {
    let cases = [
        (
            "ints c 2 = 2 4\n s = Concat(items, halved, c) axis=0\n y = Reshape(x, s)",
            "? ? 2 4",
        ),
        (
            "ints c 2 = -1 4\n s = Concat(halved, c) axis=0\n y = Reshape(x, s)",
            "? ? 4",
        ),
        (
            "ints c 1 = 4\n ints m 1 = -1\n s = Concat(halved, m, c) axis=0\n t = Slice(s, one, two_, first)\n ints two_ 1 = 3\n y = Reshape(x, t)",
            "? 4",
        ),
        (
            "ints c 1 = 4\n s = Concat(items, halved, c) axis=0\n y = Expand(x, s)",
            "? ? 4",
        ),
        (
            "ints z 3 = 0 0 0\n ints n 2 = 0 0\n s = Concat(z, first, halved, first) axis=0\n p = Pad(x, s)\n y = Neg(p)",
            "? ? 4",
        ),
        (
            "ints c 3 = 0 -1 2\n s = Reshape(x, c)\n y = Transpose(s) perm=[2,0,1]",
            "2 ? ?",
        ),
        ("ints d 4 = 0 0 2 -1\n y = Reshape(x, d)", "? ? 2 2"),
        ("weight w 3 4 1 1\n y = Conv(u, w)", "? 3 ? ?"),
        (
            "weight w 4 6 1 1\n y = ConvTranspose(u, w) group=2",
            "? 12 ? ?",
        ),
        ("weight w 5 4 \n y = Gemm(u, w) transB=1", "? 5"),
        ("y = Transpose(u) perm=[0,2,1]", "? ? ?"),
        (
            "weight w 1 4\n v = Reshape(x, halved)\n y = Add(v, w)",
            "1 4",
        ),
        ("y = Concat(u, x) axis=-1", "? ? ?"),
        (
            "ints c 3 = 0 0 4\n v = Reshape(u, c)\n y = Concat(u, v) axis=1",
            "? ? 4",
        ),
    ];
    for (lines, wanted) in cases {
        let mut text = vec![
            "input x batch n 4",
            "indices s_ r",
            HALF,
            "u = Reshape(x, s_)",
            lines,
            "output y",
        ];
        text.retain(|line| !line.is_empty());
        let model = model(&text.join("\n"));
        assert_eq!(shape(&model, "y"), wanted, "{lines}");
    }
}

/// An element of a shape that is computed from an input may be −1 or 0.
#[test]
fn unknown_element_of_a_reshape_target_is_no_extent() {
    let model = model(
        "input x batch 6 4
         input z batch 2 4
         indices n 1
         ints c 1 = 4
         m = Neg(n)
         s = Concat(m, m, c) axis=0
         a = Reshape(x, s)
         b = Reshape(z, s)
         y = Add(a, b)
         r = Concat(m, c) axis=0
         left = Reshape(x, r)
         output y left",
    );
    let values = infer_shapes(&model).unwrap();
    for name in ["a", "b"] {
        let shape = values[name].shape.clone();
        assert_eq!(
            shape,
            Some(vec![None, None, Some(Dim::DimValue(4))]),
            "{name}"
        );
    }
    // A Reshape keeps the number of elements, whatever the input is.
    let left = values["left"].shape.as_ref().unwrap();
    assert_eq!(left[0], Some(Dim::DimParam("6*batch".into())));
    let ints = ["m", "s", "c"].map(|name| values[name].ints.clone());
    assert_eq!(ints, [None, None, Some(vec![4])]);
}

#[test]
fn affine_passes_window_partition_of_unknown_extents() {
    let model = model(&format!(
        "input x batch n 4
         {HALF}
         scale g 4
         shift t 4
         weight w 4 3
         ints c 2 = 2 4
         ints m 1 = -1
         s = Concat(items, halved, c) axis=0
         r = Concat(m, c) axis=0
         a = Mul(x, g)
         b = Add(a, t)
         cut = Reshape(b, s)
         turned = Transpose(cut) perm=[1,0,2,3]
         windows = Reshape(turned, r)
         y = MatMul(windows, w)
         output y"
    ));
    let fused = fuse(&model);
    assert!(
        fused.plan.sites.iter().all(|site| site.is_folded()),
        "{:?}",
        fused.plan.sites
    );
    assert!(
        !fused
            .model
            .graph()
            .node
            .iter()
            .any(|node| node.op_type() == "Mul")
    );
    assert_eq!(
        judge::agree(
            &model,
            &fused.model,
            &judge::inputs(&model, 4, true, Kind::Exact),
            0.0
        ),
        Ok(true)
    );
}

#[test]
fn conv_output_channels_are_known_from_its_weight() {
    let model = model(
        "input x batch 36
         indices s n
         weight v 3 2 1 1
         scale g 3 1 1
         weight w 2 3 1 1
         image = Reshape(x, s)
         c = Conv(image, v)
         m = Mul(c, g)
         y = Conv(m, w)
         output y",
    );
    let fused = fuse(&model);
    assert!(
        fused.plan.sites.iter().all(|site| site.is_folded()),
        "{:?}",
        fused.plan.sites
    );
    let mut inputs = judge::inputs(&model, 4, true, Kind::Exact);
    let image = ArrayD::from_shape_vec(IxDyn(&[4]), vec![4, 2, 3, 6]).unwrap();
    inputs.insert("s".into(), Value::Ints(image));
    let run = |model: &Model| {
        reference::run(model, &inputs).unwrap()[0]
            .floats()
            .unwrap()
            .clone()
    };
    assert_eq!(run(&model), run(&fused.model));
}

#[test]
fn equal_of_a_batch_extent_is_decided_only_for_negatives() {
    for (number, decided) in [(1, false), (2, false), (-1, true)] {
        let model = model(&format!(
            "input x batch 4
             ints first 1 = 0
             ints c 1 = {number}
             s = Shape(x)
             b = Gather(s, first) axis=0
             e = Equal(b, c)
             f = Cast(e) to=1
             m = Mul(x, f)
             y = Relu(m)
             output y"
        ));
        assert_eq!(!fuse(&model).changed(), !decided, "{number}");
    }
}

#[test]
fn flatten_of_tokens_keeps_the_channel_extent() {
    folded(&model(
        "input x b n 6
         scale g 6
         shift t 6
         const v 6 = 4 4 4 4 4 4
         shift c 6
         weight w 6 4
         f = Flatten(x) axis=2
         h = BatchNormalization(f, g, t, c, v) epsilon=0.0
         y = MatMul(h, w)
         output y",
    ));
}

#[test]
fn conv_transpose_of_unknown_batch_has_known_spatial_extents() {
    for attributes in [
        "",
        "strides=[2,2]",
        "pads=[1,0,1,0] output_padding=[1,0] strides=[2,1]",
        "dilations=[2,1]",
    ] {
        // A shift moves through if the padded zeros have no effect. The extents determine this.
        let fused = fused(&model(&format!(
            "input x b 3 5 4
             scale g 3
             shift t 3
             const v 3 = 4 4 4
             shift c 3
             weight w 3 2 3 2
             h = BatchNormalization(x, g, t, c, v) epsilon=0.0
             y = ConvTranspose(h, w) {attributes}
             output y"
        )));
        assert!(
            fused.plan.sites[0].is_folded(),
            "{attributes}: {:#?}",
            fused.plan.sites[0]
        );
    }
}

#[test]
fn attention_output_shape_follows_queries_and_values() {
    let cases = [
        (
            "input q b 4 n 8\n input k b 2 m 8\n input v b 2 m 6\n y = Attention(q, k, v)",
            "? 4 ? 6",
        ),
        (
            "input q b n 32\n input k b m 16\n input v b m 12\n y = Attention(q, k, v) q_num_heads=4 kv_num_heads=2 softcap=3.0",
            "? ? 24",
        ),
        // The number of heads is unknown.
        (
            "input q b n 32\n input k b m 16\n input v b m 12\n y = Attention(q, k, v) softcap=3.0",
            "",
        ),
        (
            "input q b n 5\n weight k 5 24\n weight v 24\n y = com.microsoft.Attention(q, k, v) num_heads=2",
            "? ? 8",
        ),
        (
            "input q b n 5\n weight k 5 24\n weight v 24\n y = com.microsoft.Attention(q, k, v) num_heads=2 qkv_hidden_sizes=[10,10,4]",
            "? ? 4",
        ),
    ];
    for (text, wanted) in cases {
        assert_eq!(
            shape(&model(&format!("{text}\n output y")), "y"),
            wanted,
            "{text}"
        );
    }
}

#[test]
fn fused_onnxruntime_operators_have_inferred_shapes() {
    let cases = [
        (
            "weight w 5 3 3 3\n y = com.microsoft.FusedConv(x, w) activation=Relu strides=[2,2]",
            "? 5 3 2",
        ),
        (
            "weight w 4 4\n y = com.microsoft.FusedGemm(g, w) transB=1 activation=Relu\n weight g 2 4",
            "2 4",
        ),
        (
            "y = com.microsoft.RotaryEmbedding(x, p, c, c)\n ints p 1 = 0\n weight c 4 2",
            "? 3 8 6",
        ),
    ];
    for (text, wanted) in cases {
        assert_eq!(
            shape(&model(&format!("input x b 3 8 6\n {text}\n output y")), "y"),
            wanted,
            "{text}"
        );
    }
    let words = model(
        "input x 1
         ints ids 2 3 = 0 1 2 3 4 0
         weight table 7 16
         y = com.microsoft.EmbedLayerNormalization(ids, , table)
         output y",
    );
    assert_eq!(shape(&words, "y"), "2 3 16");
}

/// The expected extents are those of onnxruntime for a batch, which is open here.
#[test]
fn operators_unknown_to_tract_have_inferred_shapes() {
    let cases = [
        ("b 6 5", "y = CumProd(x, zero)", "? 6 5"),
        (
            "b 2 3",
            "ints s 4 = 2 6 10 4\n y = AffineGrid(x, s)",
            "2 10 4 2",
        ),
        (
            "b 6 10 10",
            "ints s 2 = 8 12\n y = CenterCropPad(x, s) axes=[2,-1]",
            "? 6 8 12",
        ),
        (
            "b 54 16",
            "ints s 2 = 6 7\n ints k 2 = 3 3\n y = Col2Im(x, s, k)",
            "? 6 6 7",
        ),
        (
            "b 53 16",
            "ints s 2 = 6 7\n ints k 2 = 3 3\n y = Col2Im(x, s, k)",
            "? ? 6 7",
        ),
        (
            "b 6 10 10",
            "weight w 4 6 3 3\n input o b 18 8 7\n y = DeformConv(x, w, o)",
            "? 4 8 7",
        ),
        ("b 5 8 3 3", "y = Det(x)", "? 5 8"),
        (
            "b 6 10 10",
            "y = LpPool(x) kernel_shape=[3,3] strides=[2,2] pads=[1,1,1,1]",
            "? 6 5 5",
        ),
        ("b 6 10 10", "y = GlobalLpPool(x)", "? 6 1 1"),
        (
            "b 6 10 10",
            "input r n 5\n y = MaxRoiPool(x, r) pooled_shape=[3,5]",
            "? 6 3 5",
        ),
        (
            "b 6 10 10",
            "input r 7 4\n indices i 7\n y = RoiAlign(x, r, i) output_width=5",
            "7 6 1 5",
        ),
        (
            "b 7 6",
            "indices n b\n y = ReverseSequence(x, n) time_axis=1 batch_axis=0",
            "? 7 6",
        ),
        (
            "b 9 8",
            "input u b 2 8\n indices i b\n y = TensorScatter(x, u, i) axis=1",
            "? 9 8",
        ),
        // ScatterND does not count indices from the end here.
        (
            "b",
            "const c 2 3 = 1 2 3 4 5 6\n ints i 1 1 = -1\n const u 1 3 = 7 8 9\n y = ScatterND(c, i, u)",
            "2 3",
        ),
    ];
    for (dims, text, wanted) in cases {
        let made = model(&format!(
            "opset 20\n input x {dims}\n ints zero 1 = 0\n {text}\n output y"
        ));
        assert_eq!(shape(&made, "y"), wanted, "{text}");
    }
}

#[test]
fn resize_and_upsample_extents_follow_their_scales() {
    let cases = [
        (9, "const f 4 = 1 1 2 2.5\n y = Upsample(x, f)", "? 6 20 25"),
        (
            9,
            "const f 4 = 1 1 0.77 0.05\n y = Upsample(x, f) mode=linear",
            "? 6 7 0",
        ),
        // 10·0.7 is 7 in float32, but less than 7 if the float32 value of 0.7 is multiplied in
        // float64.
        (
            9,
            "const f 4 = 1 1 0.7 1.1\n y = Upsample(x, f)",
            "? 6 ? 11",
        ),
        (10, "const f 4 = 1 1 2 1\n y = Resize(x, f)", "? 6 20 10"),
        (13, "const f 4 = 1 1 2 1\n y = Resize(x, , f)", "? 6 20 10"),
    ];
    for (opset, text, wanted) in cases {
        let made = model(&format!(
            "opset {opset}\n input x b 6 10 10\n {text}\n output y"
        ));
        assert_eq!(shape(&made, "y"), wanted, "{text}");
    }
}

#[test]
fn matmul_with_a_vector_drops_the_axis() {
    let cases = [
        (
            "5 8",
            "const c 8 = 1 2 3 4 5 6 7 8\n y = MatMul(x, c)",
            "? 5",
        ),
        ("5 8", "const c 5 = 1 2 3 4 5\n y = MatMul(c, x)", "? 8"),
        (
            "5 8",
            "input m n 5 2\n const c 2 = 1 2\n z = MatMul(m, c)\n y = MatMul(z, x)",
            "? ? 8",
        ),
    ];
    for (dims, text, wanted) in cases {
        let made = model(&format!("input x b {dims}\n {text}\n output y"));
        assert_eq!(shape(&made, "y"), wanted, "{text}");
    }
}

/// The divisor of a layer's spectral normalization: `uᵀ·(W·v)`.
#[test]
fn spectral_norm_of_a_weight_is_folded() {
    let before = model(
        "input x batch 3
         scale g 3
         shift t 3
         weight w 3 4
         const u 3 = 0.5 -1 2
         const v 4 = 1 2 -0.25 3
         wv = MatMul(w, v)
         sigma = MatMul(u, wv)
         q = Div(w, sigma)
         m = Mul(x, g)
         n = Add(m, t)
         y = MatMul(n, q)
         output y",
    );
    let after = fuse(&before).model;
    assert_eq!(operators(&after), ["MatMul", "Add"]);
    same(&before, &after, 1e-6);
}

/// The form that onnxruntime's optimizer writes, with masks, caches and packed weights. tract does
/// not accept it.
#[test]
fn onnxruntime_attention_and_quantized_shapes_are_inferred() {
    let attend = "y = com.microsoft.MultiHeadAttention";
    let group = "y = com.microsoft.GroupQueryAttention";
    let cases = [
        ("5 8", format!("input k b 7 8\n input v b 7 12\n {attend}(x, k, v) num_heads=2"), "? 5 12"),
        ("5 8", format!("input k b 2 7 4\n input v b 2 7 6\n {attend}(x, k, v) num_heads=2"), "? 5 12"),
        ("5 8", format!("input k b 7 2 2 4\n {attend}(x, k) num_heads=2"), "? 5 8"),
        ("5 2 3 4", format!("{attend}(x) num_heads=2"), "? 5 8"),
        ("5 8", format!("input m b 1 5 7\n {attend}(x, x, x, , , m) num_heads=2"), "? 5 8"),
        ("5 32", format!("{group}(x, k, k) num_heads=4 kv_num_heads=2\n input k b 5 16"), "? 5 32"),
        ("5 64", format!("{group}(x) num_heads=4 kv_num_heads=2"), "? 5 32"),
        ("5 8", "y = com.microsoft.MatMulNBits(x) N=6 K=8".to_owned(), "? 5 6"),
        ("5 8", "weight w 8 6\n y = com.microsoft.DynamicQuantizeMatMul(x, w)".to_owned(), "? 5 6"),
        ("5 8", "y = com.microsoft.Gelu(x)".to_owned(), "? 5 8"),
        ("5 8", "y = com.microsoft.DynamicQuantizeLSTM(x) hidden_size=6".to_owned(), "? 1 5 6"),
        (
            "5 8",
            "y = com.microsoft.DynamicQuantizeLSTM(x) hidden_size=6 direction=bidirectional".to_owned(),
            "? 2 5 6",
        ),
        ("5 8", "input w 8 36\n y = com.microsoft.QAttention(x, w) num_heads=2".to_owned(), "? 5 12"),
        ("5 8", "input s\n input z 3 1 1\n y = com.microsoft.QLinearAdd(x, s, s, z)".to_owned(), "3 5 8"),
        ("5 8", "y = com.microsoft.QLinearSigmoid(x)".to_owned(), "? 5 8"),
        (
            "5 8",
            "input s\n input z 3 1 1\n y = com.microsoft.QLinearWhere(z, x, s, s, x)".to_owned(),
            "3 5 8",
        ),
        (
            "5 8",
            "input s\n input z b 5 3\n y = com.microsoft.QLinearConcat(s, s, x, s, s, z, s, s) axis=2"
                .to_owned(),
            "? 5 11",
        ),
        (
            "5 8 7",
            "input s\n y = com.microsoft.QLinearGlobalAveragePool(x, s, s, s, s)".to_owned(),
            "? 5 1 1",
        ),
        (
            "5 8 7",
            "input s\n y = com.microsoft.QLinearGlobalAveragePool(x, s, s, s, s) channels_last=1".to_owned(),
            "? 1 1 7",
        ),
        ("8", "input s\n input w 6 8\n y = com.microsoft.QGemm(x, s, s, w, s) transB=1".to_owned(), "? 6"),
    ];
    for (dims, text, wanted) in cases {
        assert_eq!(
            shape(
                &model(&format!("input x b {dims}\n {text}\n output y")),
                "y"
            ),
            wanted,
            "{text}"
        );
    }
}

/// A byte holds two numbers of four bits. If each element of the table is one number, the result is
/// as wide as the table.
#[test]
fn gather_block_quantized_width_counts_packed_numbers() {
    for (table, how, wanted) in [
        (DataType::Uint8, "", "? 5 64"),
        (DataType::Uint8, "bits=8", "? 5 32"),
        (DataType::Uint4, "", "? 5 32"),
        (DataType::Int4, "", "? 5 32"),
    ] {
        let mut picked = model(&format!(
            "indices ids b 5
             weight table 7 32
             weight s 7 2
             y = com.microsoft.GatherBlockQuantized(table, ids, s) quantize_axis=1 {how}
             output y"
        ));
        let bytes = if table == DataType::Uint8 {
            7 * 32
        } else {
            7 * 16
        };
        let stored = picked
            .graph_mut()
            .initializer
            .iter_mut()
            .find(|tensor| tensor.name() == "table")
            .unwrap();
        stored.data_type = Some(table.code());
        stored.raw_data = Some(vec![0x21; bytes].into());
        assert_eq!(shape(&picked, "y"), wanted, "{table:?} {how}");
        let y = &infer_shapes(&picked).unwrap()["y"];
        assert_eq!(y.data_type, Some(DataType::Float));
    }
}

#[test]
fn pad_with_minus_infinity_merges_into_max_pool() {
    let before = model(
        "input x batch 3 8 8
         weight k 4 3 1 1
         const low = -inf
         ints pads 8 = 0 0 0 0 0 0 1 1
         p = Pad(x, pads, low)
         m = MaxPool(p) kernel_shape=[3,3] strides=[2,2]
         scale g 3
         shift t 3
         const v 3 = 4 4 4
         shift c 3
         n = BatchNormalization(m, g, t, c, v) epsilon=0.0
         y = Conv(n, k)
         output y",
    );
    assert_eq!(shape(&before, "m"), "? 3 4 4");
    let after = fuse(&before);
    assert_eq!(operators(&after.model), ["MaxPool", "Conv"]);
    assert!(is_proved_or_listed(&before, &after).is_ok());
}

#[test]
fn product_of_unknown_extents_divides_by_a_factor() {
    // The tokens of all items are merged into one axis and split again, as `(b n) c -> b n c` is
    // exported.
    let before = model(
        "input x b n 4
         ints zero 1 = 0
         ints one 1 = 1
         ints four 1 = 4
         scale g 4
         shift t 4
         const v 4 = 4 4 4 4
         shift c 4
         weight w 4 3
         s = Shape(x)
         items = Gather(s, zero) axis=0
         tokens = Gather(s, one) axis=0
         all = Mul(items, tokens)
         together = Concat(all, four) axis=0
         r = Reshape(x, together)
         h = BatchNormalization(r, g, t, c, v) epsilon=0.0
         q = Shape(h)
         rows = Gather(q, zero) axis=0
         back = Div(rows, tokens)
         apart = Concat(back, tokens, four) axis=0
         z = Reshape(h, apart)
         y = MatMul(z, w)
         output y",
    );
    let after = fuse(&before);
    assert_eq!(operators(&after.model), ["MatMul", "Add"]);
    assert!(is_proved_or_listed(&before, &after).is_ok());
}

#[test]
fn quantized_matmul_and_conv_shapes_are_inferred() {
    let made = model(
        "input x batch tokens 3
         input image batch 4 side 7
         indices sh 3
         open = Reshape(x, sh)
         weight w 3 5
         weight k 6 4 3 3
         q, s, z = DynamicQuantizeLinear(open)
         i, si, zi = DynamicQuantizeLinear(image)
         u, su, zu = DynamicQuantizeLinear(w)
         c, sc, zc = DynamicQuantizeLinear(k)
         product = MatMulInteger(q, u, z, zu)
         same = QLinearMatMul(q, s, z, u, su, zu, s, z)
         conv = ConvInteger(i, c, zi, zc) pads=[1,0,1,1] strides=[1,2]
         also = QLinearConv(i, si, zi, c, sc, zc, si, zi)
         output product same conv also",
    );
    let of = |name: &str| shape(&made, name);
    assert_eq!(
        ["product", "same", "conv", "also"].map(of),
        ["? ? 5", "? ? 5", "? 6 ? 3", "? 6 ? 5"]
    );
}

/// A fact about a value must reach every reader. One of them is a Pad of nothing, which has the
/// type of its fill value.
#[test]
fn quantized_operators_keep_the_integer_type() {
    for made in [
        "com.microsoft.QLinearConcat(s, z, q, s, z) axis=1",
        "com.microsoft.QLinearLeakyRelu(q, s, z, s, z)",
        "com.microsoft.QLinearAdd(q, s, z, q, s, z, s, z)",
        "com.microsoft.QLinearWhere(c, q, s, z, q, s, z, s, z)",
    ] {
        let mut model = model(&format!(
            "input x 1 4 8
             condition c
             ints none 6 = 0 0 0 0 0 0
             const s = 0.5
             q = QuantizeLinear(x, s, z)
             p = {made}
             d = Pad(p, none, z)
             y = DequantizeLinear(d, s, z)
             output y"
        ));
        model.graph_mut().initializer.push(TensorProto {
            name: Some("z".into()),
            data_type: Some(DataType::Uint8.code()),
            raw_data: Some(vec![117].into()),
            ..Default::default()
        });
        assert_eq!(operators(&proved(&model)).len(), 3, "{made}");
    }
}

#[test]
fn einsum_shape_has_an_axis_per_output_letter() {
    let made = model(
        "input x batch tokens 3
         input a batch 4 tokens
         indices sh 3
         open = Reshape(x, sh)
         weight w 3 5
         weight v 3 1
         told = Einsum(open, w) equation=btc,cd->btd
         dots = Einsum(a, x) equation=...st,...tc->...sc
         more = Einsum(x, v) equation=...c,cd->d...
         wide = Einsum(v, w) equation=cd,cd->d
         sum = Einsum(x) equation=btc->
         turned = Einsum(a) equation=bst->tsb
         input one 1 3
         input four 4 2
         apart = Einsum(one, four) equation=ca,cf->acf
         output told dots more wide sum turned apart",
    );
    let of = |name: &str| shape(&made, name);
    assert_eq!(
        ["told", "dots", "more"].map(of),
        ["? ? 5", "? 4 3", "1 ? ?"]
    );
    // Engines differ on the axis of extent 1 here.
    assert_eq!(of("apart"), "3 ? 2");
    assert_eq!(["wide", "sum", "turned"].map(of), ["?", "", "? 4 ?"]);
}

#[test]
fn batch_norm_channels_are_known_from_its_parameters() {
    let before = model(
        "input x batch 4 6
         input a batch 2 4
         indices sh 3
         open = Reshape(x, sh)
         mixed = Einsum(a, open) equation=...st,...tc->...sc
         first = Transpose(mixed) perm=[0,2,1]
         scale g 6
         shift t 6
         const v 6 = 1 2 1 4 1 0.25
         n = BatchNormalization(first, g, t, t, v)
         last = Transpose(n) perm=[0,2,1]
         weight w 6 3
         y = MatMul(last, w)
         output y",
    );
    let after = fuse(&before);
    let [site] = &after.plan.sites[..] else {
        panic!("{:#?}", after.plan.sites)
    };
    assert_eq!((site.is_folded(), site.channels), (true, 6), "{site:#?}");
    assert_eq!(
        operators(&after.model),
        ["Reshape", "Einsum", "MatMul", "Add"]
    );
    // The same model with a constant target, which the prover can evaluate.
    let mut told = before.clone();
    told.graph_mut().input.retain(|input| input.name() != "sh");
    told.graph_mut()
        .initializer
        .push(tensor::make_i64("sh", &[2, 4, 6]));
    let after = fuse(&told);
    is_proved_or_listed(&told, &after).unwrap();
    assert_eq!(
        operators(&after.model)
            .iter()
            .filter(|op| **op == "BatchNormalization")
            .count(),
        0
    );
}

#[test]
fn known_extent_of_another_operand_replaces_a_symbol() {
    let before = model(
        "input x batch wide
         input z batch width tokens
         scale g 4
         shift t 4
         const v 4 = 1 2 1 4
         m = Mul(x, g)
         n = Relu(m)
         b = BatchNormalization(z, g, t, t, v)
         output n b",
    );
    assert_eq!(
        ["m", "n", "b"].map(|name| shape(&before, name)),
        ["? 4", "? 4", "? 4 ?"]
    );
    // The first constant stays, because it may broadcast an axis of extent 1. After it, the extent
    // is known.
    let rows = |steps: &str| {
        model(&format!(
            "input x batch wide\n scale g 4\n scale h 4\n weight w 4 3\n {steps}"
        ))
    };
    let first = rows("m = Mul(x, g)\n y = MatMul(m, w)\n output y");
    assert_eq!(fuse(&first).model.proto, first.proto);
    let second = folded(&rows(
        "m = Mul(x, g)\n r = Relu(m)\n n = Mul(r, h)\n y = MatMul(n, w)\n output y",
    ));
    assert_eq!(operators(&second), ["Mul", "Relu", "MatMul"]);
}

#[test]
fn fused_matmul_with_trans_batch_has_no_known_shape() {
    let made = model(
        "input a 3 1 5
         input b 1 5 4
         turned = com.microsoft.FusedMatMul(a, b) transBatchA=1
         plain = com.microsoft.FusedMatMul(a, b) alpha=2.0
         output turned plain",
    );
    assert_eq!(
        ["turned", "plain"].map(|name| shape(&made, name)),
        ["", "3 1 4"]
    );
}

/// The expected results are those of onnxruntime and of the reference implementation. tract
/// computes 2 and 1 places for these Slices.
#[test]
fn slice_that_ends_before_it_starts_is_empty() {
    for (steps, left) in [
        ("ints b 1 = 3\n ints e 1 = 1\n ints s 1 = 1", "0"),
        ("ints b 1 = -1\n ints e 1 = -3\n ints s 1 = 2", "0"),
        ("ints b 1 = 0\n ints e 1 = 3\n ints s 1 = -1", "0"),
        ("ints b 1 = -1\n ints e 1 = -4\n ints s 1 = -2", "2"),
        ("ints b 1 = 1\n ints e 1 = 9\n ints s 1 = 2", "2"),
        (
            "ints b 1 = -1\n ints e 1 = 9223372036854775807\n ints s 1 = 1",
            "1",
        ),
        (
            "ints b 1 = -1\n ints e 1 = -9223372036854775808\n ints s 1 = -1",
            "4",
        ),
    ] {
        let text = format!(
            "opset 18\n input x 2 4 3\n {steps}\n ints a 1 = 1\n y = Slice(x, b, e, a, s)\n output y"
        );
        assert_eq!(shape(&model(&text), "y"), format!("2 {left} 3"), "{steps}");
    }
}

#[test]
fn concat_with_an_empty_slice_has_exact_extents() {
    let before = model(
        "opset 18
         input x 2 4 3
         ints three 1 = 3
         ints one 1 = 1
         none = Slice(x, three, one, one)
         all = Concat(none, x) axis=1
         scale g 3
         shift t 3
         m = Mul(all, g)
         n = Add(m, t)
         weight w 3 5
         p = MatMul(n, w)
         s = Shape(all)
         rows = Gather(s, one) axis=0
         ints rest 1 = -1
         target = Concat(rest, rows) axis=0
         y = Reshape(p, target)
         output y",
    );
    let after = fuse(&before);
    let elements = |model: &Model, tensor| {
        tensor::read_i64(tensor, model.externals())
            .unwrap()
            .into_iter()
            .collect()
    };
    // The shape has four elements in a row, not six.
    let numbers = after
        .model
        .graph()
        .initializer
        .iter()
        .filter(|tensor| tensor.data_type() == 7);
    let numbers: Vec<Vec<i64>> = numbers
        .map(|tensor| elements(&after.model, tensor))
        .collect();
    assert!(numbers.contains(&vec![-1, 4]), "{numbers:?}");
    is_proved_or_listed(&before, &after).unwrap();
}

/// TensorFlow's end masks are exported as an end of a billion.
#[test]
fn slice_to_a_billion_is_removed_where_no_extent_is_larger() {
    for (channels, begin, stays) in [(4096, 0, false), (4, 0, true), (4096, 1, true)] {
        let text = format!(
            "input x batch {channels}
             ints b 1 = {begin}
             ints e 1 = 1000000000
             ints a 1 = 0
             k = Exp(x)
             c = Slice(k, b, e, a)
             y = Neg(c)
             output y"
        );
        let after = fuse(&model(&text)).model;
        assert_eq!(
            operators(&after).contains(&"Slice"),
            stays,
            "{channels} from {begin}"
        );
    }
}

#[test]
fn extents_on_which_engines_disagree_are_unknown() {
    for (text, there) in [
        (
            "input x 1 2 6\n y = MaxPool(x) auto_pad=VALID ceil_mode=1 kernel_shape=[1] strides=[2]",
            "1 2 ?",
        ),
        (
            "input x 1 2 6\n y = MaxPool(x) auto_pad=VALID kernel_shape=[1] strides=[2]",
            "1 2 3",
        ),
        // Before operator set 22, the specified shape inference counts a window after the last
        // place, but onnxruntime's kernel does not.
        (
            "input x 1 2 6\n y = MaxPool(x) ceil_mode=1 kernel_shape=[1] strides=[2]",
            "1 2 ?",
        ),
        (
            "input x 1 2 6\n y = MaxPool(x) ceil_mode=1 kernel_shape=[3] strides=[2]",
            "1 2 3",
        ),
        (
            "input x 1 2 6\n y = MaxPool(x) kernel_shape=[1] strides=[2]",
            "1 2 3",
        ),
        (
            "input x 1 10\n const s 2 = 1 2.3\n y = Resize(x, , s)",
            "1 ?",
        ),
        (
            "input x 1 10\n const s 2 = 1 2.25\n y = Resize(x, , s)",
            "1 22",
        ),
        (
            "input x 1 2 6\n weight w 2 3 3\n y = ConvTranspose(x, w) auto_pad=SAME_UPPER output_padding=[1] strides=[2]",
            "1 3 ?",
        ),
        (
            "input x 1 2 6\n weight w 2 3 3\n y = ConvTranspose(x, w) auto_pad=SAME_UPPER strides=[2]",
            "1 3 12",
        ),
    ] {
        assert_eq!(
            shape(&model(&format!("opset 18\n {text}\n output y")), "y"),
            there,
            "{text}"
        );
    }
}

/// Axes of extent 1 are added and removed next to unknown extents.
#[test]
fn squeeze_after_unsqueeze_of_unknown_extent_restores_the_shape() {
    let model = model(
        "opset 18
         input x batch t c
         ints to 3 = 0 -1 8
         o = Reshape(x, to)
         a = Transpose(o) perm=[0,2,1]
         ints last 1 = -1
         u = Unsqueeze(a, last)
         scale g 8 1 1
         shift b 8 1 1
         m = Mul(u, g)
         n = Add(m, b)
         s = Squeeze(n, last)
         z = Transpose(s) perm=[0,2,1]
         weight w 8 3
         y = MatMul(z, w)
         output y",
    );
    let fused = fuse(&model);
    assert_eq!(operators(&fused.model), ["Reshape", "MatMul", "Add"]);
    is_proved_or_listed(&model, &fused).unwrap();
}

/// A Reshape keeps the number of elements, however the remaining extent is computed.
#[test]
fn reshape_extent_is_inferred_from_the_element_count() {
    let model = model(
        "opset 18
         input x batch t 4
         items = Shape(x) start=0 end=1
         tokens = Shape(x) start=1 end=2
         ints two 1 = 2
         pairs = Pow(tokens, two)
         ints one 1 = 1
         p = Unsqueeze(x, one)
         q = Unsqueeze(x, two)
         d = Sub(p, q)
         e = Relu(d)
         ints rest 1 = -1
         ints four 1 = 4
         r = Concat(items, rest, four) axis=0
         f = Reshape(e, r)
         scale g 4
         shift b 4
         m = Mul(f, g)
         n = Add(m, b)
         s = Concat(items, pairs, four) axis=0
         k = Reshape(n, s)
         weight w 4 3
         z = MatMul(k, w)
         y = Relu(z)
         output y",
    );
    let fused = fuse(&model);
    let reshapes = operators(&fused.model)
        .iter()
        .filter(|&&op| op == "Reshape")
        .count();
    assert_eq!(
        (
            reshapes,
            fused
                .plan
                .sites
                .iter()
                .filter(|site| site.is_folded())
                .count()
        ),
        (1, 1)
    );
    is_proved_or_listed(&model, &fused).unwrap();
}

#[test]
fn attention_over_unknown_image_is_proved_at_a_small_size() {
    // At the default size of an image, the scores alone take 20 GB.
    let before = model(
        "input x batch 4 height width
         scale g 4 1 1
         weight w 4 4 1 1
         weight v 4 4
         ints s 3 = 0 4 -1
         m = Mul(x, g)
         c = Conv(m, w)
         f = Reshape(c, s)
         t = Transpose(f) perm=[0,2,1]
         q = MatMul(t, v)
         a = MatMul(q, f)
         p = Softmax(a) axis=-1
         y = MatMul(p, t)
         output y",
    );
    let after = fuse(&before);
    assert!(after.plan.sites.iter().all(|site| site.is_folded()));
    let proof = prove(
        &before,
        &after.model,
        &after.plan.tensors,
        &Default::default(),
    );
    assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
}

#[test]
fn strided_extent_equals_the_same_extent_computed_by_shape_ops() {
    let before = model(
        "input x batch time 6
         ints first 1 = 0
         ints second 1 = 1
         ints less 1 = -1
         ints two 1 = 2
         ints eight 1 = 8
         ints flat 2 = -1 8
         all = Shape(x)
         b = Gather(all, first)
         t = Gather(all, second)
         u = Add(t, less)
         q = Div(u, two)
         steps = Add(q, second)
         back = Concat(b, steps, eight) axis=0
         weight k 8 6 3
         a = Transpose(x) perm=[0,2,1]
         c = Conv(a, k) pads=[1,1] strides=[2]
         d = Transpose(c) perm=[0,2,1]
         e = Relu(d)
         f = Reshape(e, flat)
         scale g 8
         shift s 8
         shift m 8
         const v 8 = 1 2 3 4 5 6 7 8
         n = BatchNormalization(f, g, s, m, v)
         r = Reshape(n, back)
         weight w 8 3
         y = MatMul(r, w)
         output y",
    );
    assert_eq!(shape(&before, "r"), "? ? 8");
    let after = proved(&before);
    assert_eq!(
        operators(&after),
        ["Transpose", "Conv", "Transpose", "Relu", "MatMul", "Add"]
    );
}
