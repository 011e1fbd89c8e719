//! Bugs of public tools that computed wrong numbers without a message.

use half::{bf16, f16};
use unfold::onnx::proto::{StringStringEntryProto, TensorProto};
use unfold::onnx::{DataType, Externals, Model, tensor};
use unfold::refusal::Reason;
use unfold::verify::{Verdict, compare};

use crate::common::text::{self, model};
use crate::common::{declared, fuse, node, undeclared};
use crate::{folded, fused, in_type, initializer, kept, operators, retype};

/// An affine of four channels on the last axis of `[batch, 3, 4]`, and its readers.
fn behind(readers: &str) -> Model {
    model(&format!(
        "input x batch 3 4
         scale g 4
         shift t 4
         n = Mul(x, g)
         m = Add(n, t)
         {readers}"
    ))
}

#[test]
fn channel_axis_is_found_by_rank_and_not_by_extent() {
    // The batch, the tokens and the channels all have the extent 4, so only their positions
    // distinguish them.
    for batch in ["4", "batch"] {
        let cube = |norm: &str, readers: &str| {
            model(&format!(
                "input x {batch} 4 4
                 scale g {norm}
                 shift t {norm}
                 n = Mul(x, g)
                 m = Add(n, t)
                 weight w 4 4
                 {readers}
                 output y"
            ))
        };
        folded(&cube("4", "y = MatMul(m, w)"));
        folded(&cube("4 1", "y = MatMul(w, m)"));
        folded(&cube(
            "4 1",
            "v = Transpose(m) perm=[0,2,1]\n y = MatMul(v, w)",
        ));
        assert_eq!(kept(&cube("4 1", "y = MatMul(m, w)")).0, Reason::WrongAxis);
        assert_eq!(kept(&cube("4", "y = MatMul(w, m)")).0, Reason::WrongAxis);
        assert_eq!(
            kept(&cube(
                "4",
                "v = Transpose(m) perm=[0,2,1]\n y = MatMul(v, w)"
            ))
            .0,
            Reason::WrongAxis
        );
    }
    // A BatchNormalization has its channels on axis 1, and a MatMul on the last axis.
    let norm = |reader: &str| {
        model(&format!(
            "input x 4 4 4
             scale g 4
             shift t 4
             const v 4 = 1 4 1 4
             n = BatchNormalization(x, g, t, t, v) epsilon=0.0
             weight w 4 4
             y = {reader}
             output y"
        ))
    };
    folded(&norm("MatMul(w, n)"));
    assert_eq!(kept(&norm("MatMul(n, w)")).0, Reason::WrongAxis);
}

#[test]
fn every_form_of_gemm_absorbs_an_affine() {
    let mut forms = 0;
    for (is_left, own, other) in [
        (true, 0, 0),
        (true, 0, 1),
        (true, 1, 0),
        (true, 1, 1),
        (false, 0, 0),
        (false, 1, 1),
    ] {
        for scales in [
            "",
            "alpha=0.5",
            "beta=2.0",
            "alpha=-2.0 beta=0.5",
            "beta=0.0",
        ] {
            for c in ["none", "", "1", "5", "1 5", "5 1", "5 5"] {
                // The affine is along the axis of the value that is contracted.
                let inner = if is_left == (own == 0) { 1 } else { 0 };
                let (shape, along) = if inner == 1 {
                    ("5 4", "4")
                } else {
                    ("4 5", "4 1")
                };
                let weight = if is_left == (other == 0) {
                    "4 5"
                } else {
                    "5 4"
                };
                let bias = if c == "none" {
                    String::new()
                } else {
                    format!("shift c {c}")
                };
                let (operands, flags) = match is_left {
                    true => ("m, w", format!("transA={own} transB={other}")),
                    false => ("w, m", format!("transA={other} transB={own}")),
                };
                let third = if c == "none" { "" } else { ", c" };
                let text = format!(
                    "input x {shape}
                     scale g {along}
                     shift t {along}
                     n = Mul(x, g)
                     m = Add(n, t)
                     weight w {weight}
                     {bias}
                     y = Gemm({operands}{third}) {flags} {scales}
                     output y"
                );
                assert_eq!(operators(&folded(&model(&text))), ["Gemm"], "{text}");
                forms += 1;
            }
        }
    }
    assert_eq!(forms, 210);
}

#[test]
fn shared_weight_is_copied_for_the_readers_that_fold() {
    let before = behind(
        "scale h 4
         shift u 4
         o = Mul(x, h)
         p = Add(o, u)
         weight w 4 4
         a = MatMul(m, w)
         b = MatMul(p, w)
         c = MatMul(x, w)
         output a b c",
    );
    let after = folded(&before);
    assert_eq!(initializer(&after, "w"), initializer(&before, "w"));
    let matrices = after
        .graph()
        .initializer
        .iter()
        .filter(|tensor| tensor.dims == [4, 4]);
    assert_eq!(matrices.count(), 3);
    // Two readers with equal changes share the new tensor.
    let shared = folded(&behind(
        "weight w 4 4\n a = MatMul(m, w)\n b = MatMul(m, w)\n output a b",
    ));
    assert_eq!(
        shared
            .graph()
            .initializer
            .iter()
            .filter(|tensor| tensor.dims == [4, 4])
            .count(),
        1
    );
    // An embedding that shares its table with the head, which reads a Transpose of the table.
    let tied = model(
        "indices ids batch 3
         weight table 5 4
         scale g 4
         shift t 4
         e = Gather(table, ids)
         n = Mul(e, g)
         m = Add(n, t)
         head = Transpose(table)
         y = MatMul(m, head)
         r = Relu(e)
         output y r",
    );
    let after = folded(&tied);
    assert_eq!(initializer(&after, "table"), initializer(&tied, "table"));
    let alone = text::model(&text::print(&tied).replace("r = Relu(e)", "r = Relu(y)"));
    folded(&alone);
}

#[test]
fn normalizers_with_shared_parameters_fold() {
    let after = folded(&behind(
        "i = Identity(x)
         weight w 4 4
         o = Mul(i, g)
         p = Add(o, t)
         a = MatMul(m, w)
         b = MatMul(p, w)
         q = Relu(b)
         r = Mul(q, g)
         s = Add(r, g)
         weight v 4 4
         c = MatMul(s, v)
         output a c",
    ));
    assert!(!operators(&after).contains(&"Mul"));
    // Each of two affines uses the scale of the other one as its shift.
    folded(&behind(
        "weight w 4 4\n k = Mul(x, t)\n l = Add(k, g)\n a = MatMul(m, w)\n b = MatMul(l, w)\n output a b",
    ));
}

#[test]
fn outputs_bodies_and_other_readers_block_a_fold() {
    assert_eq!(
        kept(&behind("weight w 4 4\n y = MatMul(m, w)\n output y m")).0,
        Reason::GraphOutput
    );
    let middle =
        "ints s 2 = -1 4\n f = Reshape(m, s)\n weight w 4 4\n y = MatMul(f, w)\n output y f";
    assert_eq!(kept(&behind(middle)).0, Reason::GraphOutput);
    // A body reads the value itself, or a body inside that body does.
    for depth in [1, 2] {
        let body = |op: &str| {
            let mut inner = node(op, &["m"], &["inner"], vec![]);
            for _ in 1..depth {
                inner = node("If", &["c"], &["inner"], branches(inner.clone(), inner));
            }
            inner
        };
        let branches = branches(body("Identity"), body("Neg"));
        let mut captured = behind("condition c\n weight w 4 4\n y = MatMul(m, w)\n output y z");
        captured
            .graph_mut()
            .node
            .push(node("If", &["c"], &["z"], branches));
        assert_eq!(kept(&captured).0, Reason::NotLinear("If".into()));
    }
    // If the producer's result has another reader, that reader would see the change of a backward
    // fold.
    for reader in ["o = Relu(l)\n output o", "output l"] {
        let tapped = model(&format!(
            "input x batch 4
             weight w 4 4
             scale g 4
             l = MatMul(x, w)
             n = Mul(l, g)
             y = Relu(n)
             output y
             {reader}"
        ));
        let expected = if reader == "output l" {
            Reason::GraphOutput
        } else {
            Reason::OtherReader
        };
        assert_eq!(kept(&tapped).1, Some(expected));
    }
}

fn branches(
    yes: unfold::onnx::proto::NodeProto,
    no: unfold::onnx::proto::NodeProto,
) -> crate::common::Attrs {
    let body = |node: unfold::onnx::proto::NodeProto| unfold::onnx::proto::GraphProto {
        output: vec![undeclared("inner")],
        node: vec![node],
        ..Default::default()
    };
    vec![
        ("then_branch", body(yes).into()),
        ("else_branch", body(no).into()),
    ]
}

#[test]
fn shift_before_zero_padding_becomes_a_bias_per_position() {
    for (op, group, weight) in [
        ("Conv", 1, "2 4"),
        ("Conv", 2, "6 2"),
        ("Conv", 4, "8 1"),
        ("ConvTranspose", 1, "4 2"),
        ("ConvTranspose", 2, "4 3"),
        ("ConvTranspose", 4, "4 2"),
    ] {
        for (axes, kernel) in [("5", "3"), ("5 4", "3 2"), ("3 4 3", "2 3 1")] {
            let spatial = axes.split(' ').count();
            let pads = |pad: &str| format!("pads=[{}]", vec![pad; 2 * spatial].join(","));
            for border in [String::new(), pads("1")] {
                let text = format!(
                    "input x 2 4 {axes}
                     scale g 4{ones}
                     shift t 4{ones}
                     n = Mul(x, g)
                     m = Add(n, t)
                     weight w {weight} {kernel}
                     y = {op}(m, w) group={group} {border}
                     output y",
                    ones = " 1".repeat(spatial)
                );
                let after = folded(&model(&text));
                let is_plain = op == "Conv" && border.is_empty();
                let expected: &[&str] = if is_plain { &[op] } else { &[op, "Add"] };
                assert_eq!(operators(&after), expected, "{text}");
            }
        }
    }
}

#[test]
fn scale_folds_before_zero_padding_of_unknown_extents() {
    let open = |affine: &str, pads: &str| {
        model(&format!(
            "input x 2 4 height width
             scale g 4 1 1
             shift t 4 1 1
             {affine}
             weight w 2 4 3 3
             y = Conv(m, w) {pads}
             output y"
        ))
    };
    let both = "n = Mul(x, g)\n m = Add(n, t)";
    assert_eq!(kept(&open(both, "pads=[1,1,1,1]")).0, Reason::Padding);
    assert_eq!(fuse(&open(both, "")).model.graph().node.len(), 1);
    let scaled = fuse(&open("m = Mul(x, g)", "pads=[1,1,1,1]"));
    assert_eq!(operators(&scaled.model), ["Conv"]);
}

#[test]
fn zeros_padded_after_a_normalizer_get_no_shift() {
    let windows = |extent: &str, pads: &str| {
        model(&format!(
            "input x 2 {extent} {extent} 4
             scale g 4
             shift t 4
             n = Mul(x, g)
             m = Add(n, t)
             ints p 8 = {pads}
             v = Pad(m, p)
             weight w 4 3
             y = MatMul(v, w)
             output y"
        ))
    };
    let framed = folded(&windows("3", "0 0 0 0 0 1 2 0"));
    assert_eq!(operators(&framed), ["Pad", "MatMul", "Add"]);
    let bias = initializer(&framed, "MatMul_y_bias");
    assert_eq!(bias.dims, [1, 4, 5, 3]);
    let bias = tensor::read_f64(bias, &Externals::none()).unwrap();
    assert!(
        bias.slice_axis(ndarray::Axis(1), (3..).into())
            .iter()
            .all(|&v| v == 0.0),
        "{bias}"
    );
    folded(&windows("3", "0 0 0 0 0 0 0 0"));
    assert_eq!(kept(&windows("size", "0 0 0 0 0 1 2 0")).0, Reason::Padding);
}

/// A BatchNormalization that computes n, before a Conv.
fn norm(opset: i64, outputs: &str, attributes: &str) -> Model {
    model(&format!(
        "opset {opset}
         input x 2 4 3
         scale g 4
         shift b 4
         shift mu 4
         const v 4 = 4 1 16 0.25
         {outputs} = BatchNormalization(x, g, b, mu, v) {attributes}
         weight w 2 4 1
         y = Conv(n, w)
         output y"
    ))
}

#[test]
fn batch_norm_epsilon_defaults_to_1e_5() {
    for opset in [7, 9, 14, 15, 21] {
        folded(&norm(opset, "n", "epsilon=0.0"));
        // The default of ε is 1e-5, also in the reference.
        let model = norm(opset, "n", "");
        let after = fuse(&model).model;
        assert_eq!(operators(&after), ["Conv"]);
        crate::same(&model, &after, 1e-7);
        let exact = norm(opset, "n", "epsilon=0.0");
        assert_ne!(
            initializer(&after, "w_folded"),
            initializer(&fuse(&exact).model, "w_folded")
        );
    }
}

#[test]
fn batch_norm_keeps_precision_beside_a_scale_folded_backward() {
    for scale in ["0.5", "1e-3", "1e-6"] {
        let before = model(&format!(
            "input x 2 3 5
             weight w 4 3 2
             const k 5 = 1 -1 0.5 2 3
             const s 1 = {scale}
             scale g 4
             shift b 4
             const mu 4 = 5 -7 3 9
             const v 4 = 4 1 16 0.25
             c = Conv(x, w) pads=[1,0]
             a = Add(c, k)
             y = Mul(a, s)
             n = BatchNormalization(c, g, b, mu, v)
             output y n"
        ));
        let after = fuse(&before).model;
        let Verdict::Compared(seen) = compare(&before, &after, &Default::default()) else {
            panic!()
        };
        assert!(
            seen.outputs.iter().all(|output| output.relative < 2e-6),
            "{scale}: {seen:?}"
        );
    }
}

#[test]
fn batch_norm_with_an_unknown_attribute_stays() {
    assert_eq!(
        kept(&norm(9, "n", "fancy=1")).0,
        Reason::Attribute("fancy".into())
    );
}

#[test]
fn batch_norm_in_training_mode_stays() {
    assert_eq!(
        kept(&norm(15, "n", "training_mode=1")).0,
        Reason::TrainingMode
    );
    let mut extra = norm(15, "n, m", "");
    extra.graph_mut().output.push(undeclared("m"));
    assert_eq!(kept(&extra).0, Reason::TrainingMode);
    folded(&norm(15, "n, m, s", "epsilon=0.0"));
    // Before operator set 14, a BatchNormalization with more than one listed output is in training
    // mode, even if the outputs are not read or have no names.
    for opset in [7, 9, 13] {
        for outputs in ["n, m, w1, s, z", "n, m", "n, , , ,"] {
            assert_eq!(kept(&norm(opset, outputs, "")).0, Reason::TrainingMode);
        }
    }
}

#[test]
fn batch_norm_of_mixed_types_folds_to_the_type_of_the_weight() {
    let mut mixed = norm(15, "n", "epsilon=0.0");
    mixed.graph_mut().input = vec![declared("x", DataType::Float16, &["2", "4", "3"])];
    retype(&mut mixed, &["w"], DataType::Float16);
    let after = folded(&mixed);
    assert_eq!(
        tensor::data_type(initializer(&after, "w_folded")).unwrap(),
        DataType::Float16
    );
}

/// An affine of three channels with this scale, and a reader.
fn scaled(scale: &str, reader: &str) -> Model {
    model(&format!(
        "input x 2 3 4
         const g 3 1 = {scale}
         shift t 3 1
         n = Mul(x, g)
         m = Add(n, t)
         weight w 2 3
         {reader}
         output y"
    ))
}

#[test]
fn nonpositive_scale_folds_but_does_not_pass_relu_or_max_pool() {
    for scale in ["0 0 1", "0 -1 2", "-1 -2 -3"] {
        folded(&scaled(scale, "y = MatMul(w, m)"));
        for (op, reader) in [
            ("Relu", "y = Relu(m)"),
            ("MaxPool", "y = MaxPool(m) kernel_shape=[2]"),
        ] {
            assert_eq!(kept(&scaled(scale, reader)).0, Reason::NotLinear(op.into()));
        }
        // A backward fold does not divide by the scale either.
        let producer = model(&format!(
            "input x 2 3
             weight w 3 3
             const g 3 = {scale}
             shift t 3
             l = MatMul(x, w)
             n = Mul(l, g)
             m = Add(n, t)
             y = Relu(m)
             output y"
        ));
        folded(&producer);
    }
}

#[test]
fn scale_that_is_not_finite_stays() {
    for number in ["NaN", "inf", "-inf"] {
        assert_eq!(
            kept(&scaled(&format!("1 {number} 2"), "y = MatMul(w, m)")).0,
            Reason::NotFinite
        );
    }
}

#[test]
fn batch_norm_with_nonpositive_variance_stays() {
    for (variance, epsilon) in [("1 -0.5", 0.5), ("1 -1", 0.5), ("1 NaN", 0.5), ("0 1", 0.0)] {
        let norm = model(&format!(
            "input x 2 2 3
             const g 2 = 1 2
             const v 2 = {variance}
             n = BatchNormalization(x, g, g, g, v) epsilon={epsilon:?}
             weight w 2 2 1
             y = Conv(n, w)
             output y"
        ));
        assert_eq!(kept(&norm).0, Reason::BadStatistics, "{variance}");
    }
}

#[test]
fn initializer_that_is_an_input_is_constant_only_before_ir_4() {
    let listed = |ir: i64| {
        let mut model = behind("weight w 4 4\n y = MatMul(m, w)\n output y");
        model.proto.ir_version = Some(ir);
        let inputs = ["g", "t", "w"].map(|name| {
            let dims: Vec<String> = initializer(&model, name)
                .dims
                .iter()
                .map(i64::to_string)
                .collect();
            let dims: Vec<&str> = dims.iter().map(String::as_str).collect();
            declared(name, DataType::Float, &dims)
        });
        model.graph_mut().input.extend(inputs);
        model
    };
    // Before IR version 4, each initializer must also be an input, but it is still a constant.
    let old = listed(3);
    let after = folded(&old);
    assert_eq!(after.graph().input, old.graph().input);
    let is_input = |name: &str| after.graph().input.iter().any(|input| input.name() == name);
    assert!(
        after
            .graph()
            .initializer
            .iter()
            .all(|tensor| is_input(tensor.name()))
    );
    // Since IR version 4, such an initializer is a default that the caller may replace.
    let new = listed(4);
    let outcome = fused(&new);
    assert!(outcome.plan.sites.is_empty());
    assert_eq!(outcome.model.proto, new.proto);
    // If only the weight is an input, the weight is not a constant.
    let mut weight = behind("weight w 4 4\n y = MatMul(m, w)\n output y");
    weight
        .graph_mut()
        .input
        .push(declared("w", DataType::Float, &["4", "4"]));
    assert_eq!(kept(&weight).0, Reason::NotConstant);
}

#[test]
fn scale_computed_from_constants_folds() {
    for scale in [
        "scale s 4\n k = Identity(s)",
        "scale s 4\n k = Cast(s) to=1",
        "scale s 1 4\n ints p 1 = 4\n k = Reshape(s, p)",
        "scale s 2 4\n ints b 1 = 1\n ints e 1 = 2\n ints a 1 = 0\n o = Slice(s, b, e, a)\n k = Squeeze(o, a)",
        "scale s 4 1\n o = Transpose(s)\n ints a 1 = 0\n k = Squeeze(o, a)",
        "ints s 4 = 1 -2 3 4\n const step = 0.5\n k = DequantizeLinear(s, step)",
        "scale s 4\n shift r 4\n d = Identity(s)\n o = Sub(d, r)\n k = Neg(o)",
    ] {
        let text = format!(
            "input x batch 3 4
             {scale}
             n = Mul(x, k)
             weight w 4 4
             v = Transpose(w)
             y = MatMul(n, v)
             output y"
        );
        let mut model = model(&text);
        for tensor in &mut model.graph_mut().initializer {
            if tensor.name() == "s" && tensor.data_type() == DataType::Int64.code() {
                tensor.raw_data = Some([1_u8, 254, 3, 4].to_vec().into());
                tensor.data_type = Some(DataType::Int8.code());
                tensor.int64_data.clear();
            }
        }
        assert_eq!(operators(&folded(&model)), ["MatMul"], "{text}");
    }
}

#[test]
fn scale_from_a_constant_node_folds() {
    let mut stored = behind("weight w 4 4\n y = MatMul(m, w)\n output y");
    let tensor = initializer(&stored, "g").clone();
    stored
        .graph_mut()
        .initializer
        .retain(|tensor| tensor.name() != "g");
    let made = node(
        "Constant",
        &[""; 0],
        &["g"],
        vec![("value", crate::common::Attr::Tensor(Box::new(tensor)))],
    );
    stored.graph_mut().node.insert(0, made);
    assert_eq!(operators(&folded(&stored)), ["MatMul", "Add"]);
}

#[test]
fn float16_weight_is_rounded_once_and_overflow_is_refused() {
    let half = |weight: &str| {
        let mut model = model(&format!(
            "half x batch 2
             const g 2 = 3.140625 0.3330078125
             n = Mul(x, g)
             const w 2 1 = {weight}
             y = MatMul(n, w)
             output y"
        ));
        retype(&mut model, &["g", "w"], DataType::Float16);
        model
    };
    let after = fuse(&half("0.77734375 1.3671875")).model;
    let expected = [3.140625 * 0.77734375, 0.3330078125 * 1.3671875].map(f16::from_f64);
    let bytes: Vec<u8> = expected.iter().flat_map(|v| v.to_le_bytes()).collect();
    assert_eq!(
        initializer(&after, "w_folded").raw_data.as_deref(),
        Some(&bytes[..])
    );
    assert_eq!(in_type(&kept(&half("40000 1")).0), ("overflow", "float16"));
}

#[test]
fn intermediate_scale_may_exceed_the_range_of_float16() {
    // σ² is 300² · 4.
    let wide = |data_type| {
        let mut model = model(
            "input x batch 2
             const large 2 = 300 300
             const two = 2
             weight w 2 3
             n = Div(x, large)
             m = Mul(n, large)
             o = Mul(m, large)
             p = Div(o, large)
             q = Mul(p, two)
             y = MatMul(q, w)
             output y",
        );
        model.graph_mut().input = vec![declared("x", data_type, &["batch", "2"])];
        retype(&mut model, &["large", "two", "w"], data_type);
        model
    };
    for data_type in [DataType::Float16, DataType::BFloat16] {
        let model = wide(data_type);
        let after = fuse(&model).model;
        assert_eq!(operators(&after), ["MatMul"]);
        let read = |model: &Model, name: &str| {
            tensor::read_f64(initializer(model, name), &Externals::none())
        };
        let doubled = read(&model, "w").unwrap() * 2.0;
        assert_eq!(
            read(&after, "w_folded").unwrap(),
            doubled.mapv(|v| bf16::from_f64(v).to_f64())
        );
    }
}

#[test]
fn matmul_of_any_rank_gets_its_bias_as_an_add() {
    for dims in ["3 4", "batch 3 4", "2 batch 3 4"] {
        let text = format!(
            "input x {dims}
             scale g 4
             shift t 4
             n = Mul(x, g)
             m = Add(n, t)
             weight w 4 5
             y = MatMul(m, w)
             output y"
        );
        assert_eq!(operators(&folded(&model(&text))), ["MatMul", "Add"]);
        let biased = text.replace("output y", "shift c 5\n z = Add(y, c)\n output z");
        assert_eq!(operators(&folded(&model(&biased))), ["MatMul", "Add"]);
    }
}

#[test]
fn quantized_weight_refuses_a_fold() {
    let mut model = behind(
        "const step 4 = 0.5 1 2 0.25
         d = DequantizeLinear(q, step) axis=1
         y = MatMul(m, d)
         output y",
    );
    model.graph_mut().initializer.push(TensorProto {
        name: Some("q".into()),
        dims: vec![4, 4],
        data_type: Some(DataType::Int8.code()),
        raw_data: Some((0..16).collect()),
        ..Default::default()
    });
    assert_eq!(kept(&model).0, Reason::Granularity);
}

#[test]
fn external_data_outside_the_folder_or_too_short_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("weights"), [0; 64]).unwrap();
    let refused = |dims: &[i64], entries: &[(&str, &str)], says: &str| {
        let mut model = behind("y = MatMul(m, w)\n output y");
        let entry = |&(key, value): &(&str, &str)| StringStringEntryProto {
            key: Some(key.into()),
            value: Some(value.into()),
        };
        model.graph_mut().initializer.push(TensorProto {
            name: Some("w".into()),
            dims: dims.to_vec(),
            data_type: Some(DataType::Float.code()),
            external_data: entries.iter().map(entry).collect(),
            data_location: Some(1),
            ..Default::default()
        });
        let path = folder.path().join("model.onnx");
        std::fs::write(&path, prost::Message::encode_to_vec(&model.proto)).unwrap();
        let message = match Model::open(&path) {
            Err(error) => error.to_string(),
            Ok(model) => kept(&model).0.to_string(),
        };
        assert!(message.contains(says), "{message}");
    };
    refused(&[4, 4], &[("location", "../weights")], "folder");
    refused(&[4, 4], &[("location", "/etc/passwd")], "folder");
    refused(
        &[4, 4],
        &[("location", "weights"), ("offset", "32")],
        "holds 32",
    );
    refused(
        &[4, 4],
        &[("location", "weights"), ("offset", "-1")],
        "offset",
    );
    refused(&[i64::MAX, 4], &[("location", "weights")], "shape");
    refused(&[-4, -4], &[("location", "weights")], "shape");
}
