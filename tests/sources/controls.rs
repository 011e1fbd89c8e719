//! Patterns that resemble sources stay or fold exactly, and single graphs have known results.

use unfold::onnx::Model;
use unfold::onnx::proto::{FunctionProto, NodeProto, OperatorSetIdProto};
use unfold::plan::{Family, Outcome};

use crate::common::numbers::Kind;
use crate::common::{floats, judge, node, text};
use crate::make::{Case, Groups, Twin};
use crate::{SHAPE, TOLERANCE, compute, fuse, is_folded};
/// The number of operators of a type in a fused model.
fn count(model: &Model, op: &str) -> usize {
    model
        .graph()
        .node
        .iter()
        .filter(|node| node.op_type() == op)
        .count()
}

/// tf2onnx writes the LayerNormalization of Keras as a BatchNormalization with computed statistics.
#[test]
fn batch_norm_of_computed_statistics_stays() {
    let mut case = Case::new(7);
    let turned = case
        .builder
        .op("Transpose", &["x"], vec![("perm", vec![1, 0, 2].into())]);
    let mean = case.builder.ints(&[0, 2]);
    let mean = case.builder.op(
        "ReduceMean",
        &[&turned, &mean],
        vec![("keepdims", 0.into())],
    );
    let (ones, zeros) = (case.constant(&[4], 1.0, 2.0), case.constant(&[4], 0.0, 1.0));
    let normed = case.op(
        "BatchNormalization",
        &[&turned, &ones, &zeros, &mean, &ones],
    );
    let output = case.reader(&normed);
    let model = case.finish(&output);
    let fused = fuse(&model);
    assert_eq!(fused.plan.sites[0].kind.name, "BN");
    assert!(
        matches!(&fused.plan.sites[0].post, Some(Outcome::Kept { forward, .. })
        if forward.reason == unfold::refusal::Reason::NotConstant)
    );
    assert_eq!(count(&fused.model, "BatchNormalization"), 1);
}

/// A γ of tokens instead of channels, which are as many, is along another axis.
#[test]
fn token_scale_after_rms_norm_is_not_a_channel_scale() {
    let mut case = Case::new(8);
    let normed = case.rms("x", "x", &[-1]);
    let gamma = case.constant(&[4, 1], -2.0, 2.0);
    let scaled = case.op("Mul", &[&normed, &gamma]);
    let output = case.reader(&scaled);
    let model = case.finish(&output);
    let fused = fuse(&model);
    let x = Case::new(9).array(&SHAPE, -2.0, 2.0);
    let difference = compute(&model, &x) - compute(&fused.model, &x);
    assert!(difference.iter().all(|v| v.abs() < 1e-6), "{difference}");
    // MatMul sums over channels, so its weight cannot absorb a scale for each token.
    assert!(fused.plan.sites.iter().all(|site| !is_folded(site)));
}

/// The tanh form of GELU is not a Dynamic Tanh.
#[test]
fn tanh_gelu_is_no_dynamic_tanh() {
    let mut case = Case::new(10);
    let (half, one) = (case.number(0.5), case.number(1.0));
    let (cubic, slope) = (case.number(0.044715), case.number(0.79788));
    let square = case.op("Mul", &["x", "x"]);
    let cube = case.op("Mul", &[&square, "x"]);
    let cube = case.op("Mul", &[&cube, &cubic]);
    let inner = case.op("Add", &["x", &cube]);
    let inner = case.op("Mul", &[&inner, &slope]);
    let tanh = case.op("Tanh", &[&inner]);
    let outer = case.op("Add", &[&tanh, &one]);
    let gelu = case.op("Mul", &["x", &outer]);
    let gelu = case.op("Mul", &[&gelu, &half]);
    let output = case.reader(&gelu);
    let model = case.finish(&output);
    let fused = fuse(&model);
    assert!(
        fused.plan.sites.iter().all(|site| site.kind.name != "DyT"),
        "{:?}",
        fused.plan.sites
    );
    assert_eq!(fused.model.proto, model.proto);
}

/// A GN has statistics of consecutive channels of one item, and γ and β after the Reshape back.
#[test]
fn near_group_norms_are_not_listed_as_gn() {
    let twins = [
        Groups::None,
        Groups::OtherChannels,
        Groups::Interleaved,
        Groups::Batch,
        Groups::Scaled,
    ];
    for seed in 0..24 {
        for twin in twins {
            let mut case = Case::new(seed);
            let normed = case.grouped("x", twin);
            let turned = case.turned(&normed);
            let output = case.reader(&turned);
            let model = case.finish(&output);
            let fused = fuse(&model);
            let listed = fused.plan.sites.iter().find(|site| site.kind.name == "GN");
            assert_eq!(
                listed.is_some(),
                twin == Groups::None,
                "{twin:?}: {:?}",
                fused.plan.sites
            );
            assert!(
                listed.is_none_or(is_folded),
                "{twin:?}: {:?}",
                fused.plan.sites
            );
            let x = Case::new(seed + 1).array(&SHAPE, -2.0, 2.0);
            let difference = compute(&model, &x) - compute(&fused.model, &x);
            assert!(
                difference.iter().all(|v| v.abs() < 1e-5),
                "{twin:?} {seed}: {difference}"
            );
        }
    }
}

/// An SN needs several means and several variances, all of the normalized value.
#[test]
fn near_switchable_norms_are_not_listed_as_sn() {
    for seed in 0..24 {
        for twin in [
            Twin::None,
            Twin::OneOfEach,
            Twin::SumOfSquares,
            Twin::OwnWeight,
        ] {
            for other in [false, true] {
                let mut case = Case::new(seed);
                let of = if other {
                    case.op("Tanh", &["x"])
                } else {
                    "x".to_owned()
                };
                let normed = case.switchable("x", &of, twin);
                let output = case.reader(&normed);
                let model = case.finish(&output);
                let fused = fuse(&model);
                let listed = fused.plan.sites.iter().any(|site| site.kind.name == "SN");
                assert_eq!(
                    listed,
                    twin == Twin::None && !other,
                    "{twin:?} {other}: {:?}",
                    fused.plan.sites
                );
                let x = Case::new(seed + 1).array(&SHAPE, -2.0, 2.0);
                let (before, after) = (compute(&model, &x), compute(&fused.model, &x));
                for (before, after) in before
                    .iter()
                    .zip(&after)
                    .filter(|(before, _)| before.is_finite())
                {
                    assert!(
                        (before - after).abs() < 1e-5 * before.abs().max(1.0),
                        "{twin:?} {other}"
                    );
                }
            }
        }
    }
}

/// An opaque node, given by its line of text, between a function and a linear layer.
fn opaque(call: &str) -> Model {
    let mut model = text::model(&format!(
        "input x 2 4 4
         weight w 4 4
         const alpha 1 = 0.5
         const gamma 4 = 1 2 3 4
         const wide 1 1 4 = 1 2 3 4
         const tall 4 1 1 = 1 2 3 4
         const short 3 = 1 2 3
         const beta 4 = -1 0 2 1
         const var 4 = 3 1 2 5
         copy = Identity(gamma)
         l = Exp(x)
         n = {call}
         y = MatMul(n, w)
         output y"
    ));
    let call = model
        .graph_mut()
        .node
        .iter_mut()
        .find(|node| node.output[0] == "n")
        .unwrap();
    call.domain = Some("some.norms".into());
    let domain = OperatorSetIdProto {
        domain: Some("some.norms".into()),
        version: Some(1),
    };
    model.proto.opset_import.push(domain);
    model
}

#[test]
fn opaque_node_is_recognized_completely_or_left() {
    let understood = [
        "DyT(l, alpha, gamma, beta)",
        "DyT(l, alpha, copy, beta)",
        "DyT(l, alpha, wide, beta)",
        "Derf(l, alpha, alpha, gamma, beta)",
        "Derf(l, alpha) s=0.25 weight=2.0",
        "UN(l, gamma, beta, var) axis=2",
        "BN(l, gamma, beta, beta, var) axis=-1",
        "PN(l, gamma, beta, var) groups=2",
    ];
    for call in understood {
        let fused = fuse(&opaque(call));
        let folded = fused
            .plan
            .sites
            .iter()
            .filter(|site| is_folded(site))
            .count();
        assert_eq!(
            (fused.plan.sites.len(), folded),
            (1, 1),
            "{call}: {:#?}",
            fused.plan.sites
        );
    }
    let unknown = [
        "DyT(l, alpha, gamma, beta) mode=fancy",
        "DyT(l, alpha, gamma, beta) alpha=0.5",
        "DyT(l, alpha, gamma, short)",
        "DyT(l, alpha, tall, beta)",
        "DyT(l, gamma, gamma, beta)",
        "DyT(l, alpha, x, beta)",
        "Derf(l, alpha, gamma, gamma, beta)",
        "UN(l, gamma, beta, short)",
        "UN(l, gamma, beta, var) epsilon=0.1 eps=0.1",
        "UN(l, gamma, beta, var) axis=3",
        "UN(l, gamma, beta, var) axis=-9",
        "UN(l, gamma, beta, var) axis=-9223372036854775808",
        "UN(l, gamma, beta)",
        "PN(l, gamma, beta, var) groups=3",
        "PN(l, gamma, beta, var) groups=4611686018427387904",
    ];
    for call in unknown {
        let model = opaque(call);
        assert_eq!(fuse(&model).model.proto, model.proto, "{call}");
    }
}

/// Before training, all elements of γ are equal.
#[test]
fn uniform_gamma_is_recognized_per_channel() {
    let model = text::model(
        "input x 2 4 4
         weight w 4 4
         const alpha 1 = 0.5
         const gamma 4 = 1 1 1 1
         const beta 4 = 0 0 0 0
         const small 4 = 0.25 0.25 0.25 0.25
         a = Mul(x, alpha)
         t = Tanh(a)
         g = Mul(t, gamma)
         n = Add(g, beta)
         l = MatMul(n, w)
         s = Mul(l, small)
         y = Add(x, s)
         output y",
    );
    let fused = fuse(&model);
    let found: Vec<_> = fused
        .plan
        .sites
        .iter()
        .map(|site| (site.kind.name, site.channels, is_folded(site)))
        .collect();
    assert_eq!(found, [("DyT", 4, true), ("LayerScale", 4, true)]);
    let left: Vec<&str> = fused
        .model
        .graph()
        .node
        .iter()
        .map(|node| node.op_type())
        .collect();
    assert_eq!(left, ["Mul", "Tanh", "MatMul", "Add"]);
    let inputs = judge::inputs(&model, 2, true, Kind::Real);
    assert_eq!(
        judge::agree(&model, &fused.model, &inputs, TOLERANCE),
        Ok(true)
    );
}

#[test]
fn skip_layer_norm_stream_folds() {
    for op in ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"] {
        let mut case = Case::new(13);
        let (mut stream, mut branch) = ("x".to_owned(), case.op("Tanh", &["x"]));
        for _ in 0..3 {
            let gamma = case.constant(&[4], -2.0, 2.0);
            let outputs = case.of_a_runtime(op, &[&stream, &branch, &gamma], vec![], 4);
            let weight = case.constant(&[4, 4], -1.0, 1.0);
            let linear = case.op("MatMul", &[&outputs[0], &weight]);
            (stream, branch) = (outputs[3].clone(), case.op("Tanh", &[&linear]));
        }
        let model = case.finish(&branch);
        let fused = fuse(&model);
        assert_eq!(fused.plan.sites.len(), 3);
        assert!(
            fused.plan.sites.iter().all(is_folded),
            "{:?}",
            fused.plan.sites
        );
        let x = Case::new(14).array(&SHAPE, -2.0, 2.0);
        let difference = compute(&model, &x) - compute(&fused.model, &x);
        assert!(difference.iter().all(|v| v.abs() < 1e-5), "{difference}");
    }
}

/// The second normalizer of DPN. Its scale stays before the residual stream, and its shift folds
/// into the position embedding.
#[test]
fn layer_norm_shift_joins_the_position_embedding() {
    let mut case = Case::new(12);
    let (gamma, beta) = (case.array(&[4], 0.5, 2.0), case.array(&[4], -1.0, 1.0));
    let position = case.array(&[1, 4, 4], -1.0, 1.0);
    let names = [&gamma, &beta, &position].map(|array| case.builder.constant(array));
    let normed = case.op("LayerNormalization", &["x", &names[0], &names[1]]);
    let embedded = case.op("Add", &[&normed, &names[2]]);
    let inner = case.op("Tanh", &[&embedded]);
    let sum = case.op("Add", &[&embedded, &inner]);
    let fused = fuse(&case.finish(&sum));
    assert!(matches!(
        fused.plan.sites[0].post,
        Some(Outcome::Partly { .. })
    ));
    let norm = &fused.model.graph().node[0];
    assert_eq!(norm.input.len(), 2, "β is left out");
    let joined = fused
        .model
        .graph()
        .initializer
        .iter()
        .find(|t| t.name() == fused.model.graph().node[1].input[1]);
    let expected = floats(joined.unwrap().name(), &(&position + &beta));
    assert_eq!(joined.unwrap().raw_data, expected.raw_data);
}

/// The affine of an unknown online normalizer folds like any other and is not counted as offline.
#[test]
fn affine_of_an_unknown_online_norm_folds_as_online() {
    for steps in [
        "g = Mul(c, gamma)\n q = Div(g, d)",
        "g = Div(c, d)\n q = Mul(g, gamma)",
    ] {
        let model = text::model(&format!(
            "input x 2 4 4
             weight w 4 4
             scale gamma 4
             shift beta 4
             const e 1 = 1
             m = ReduceMean(x) axes=[-1] keepdims=1
             c = Sub(x, m)
             a = Abs(c)
             s = ReduceMean(a) axes=[-1] keepdims=1
             d = Add(s, e)
             {steps}
             n = Add(q, beta)
             y = MatMul(n, w)
             output y"
        ));
        let fused = fuse(&model);
        let others = ["subtracted mean", "shift"];
        let affines = fused
            .plan
            .sites
            .iter()
            .filter(|site| !others.contains(&site.kind.name));
        let found: Vec<_> = affines
            .map(|site| (site.kind.family, is_folded(site)))
            .collect();
        assert!(
            !found.is_empty() && found.iter().all(|&found| found == (Family::Online, true)),
            "{found:?}"
        );
        let inputs = judge::inputs(&model, 2, true, Kind::Real);
        assert_eq!(
            judge::agree(&model, &fused.model, &inputs, TOLERANCE),
            Ok(true)
        );
    }
}

/// Exporters write every module as a function, including blocks that call normalizers.
#[test]
fn normalizer_in_a_block_function_is_found() {
    let names = |list: &[&str]| {
        list.iter()
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>()
    };
    let call = |op: &str, inputs: &[&str], output: &str| {
        let mut call = node(op, inputs, &[output], vec![]);
        call.domain = Some("my.modules".into());
        call
    };
    let function = |name: &str, input: &[&str], nodes: Vec<NodeProto>| FunctionProto {
        name: Some(name.into()),
        domain: Some("my.modules".into()),
        input: names(input),
        output: names(&["out"]),
        node: nodes,
        opset_import: [("", 18), ("my.modules", 1)]
            .map(|(domain, version)| OperatorSetIdProto {
                domain: Some(domain.into()),
                version: Some(version),
            })
            .to_vec(),
        ..Default::default()
    };
    let mut case = Case::new(15);
    let [alpha, gamma, weight] =
        [&[1][..], &[4], &[4, 4]].map(|shape| case.constant(shape, 0.5, 1.5));
    case.builder.proto.functions = vec![
        function(
            "Block",
            &["v", "a", "g", "w"],
            vec![
                call("DyT", &["v", "a", "g"], "n"),
                node("MatMul", &["n", "w"], &["l"], vec![]),
                node("Add", &["v", "l"], &["out"], vec![]),
            ],
        ),
        function(
            "DyT",
            &["v", "a", "g"],
            vec![
                node("Mul", &["v", "a"], &["z"], vec![]),
                node("Tanh", &["z"], &["t"], vec![]),
                node("Mul", &["t", "g"], &["out"], vec![]),
            ],
        ),
    ];
    let domain = OperatorSetIdProto {
        domain: Some("my.modules".into()),
        version: Some(1),
    };
    case.builder.proto.opset_import.push(domain);
    for (input, output) in [("x", "first"), ("first", "second")] {
        let block = call("Block", &[input, &alpha, &gamma, &weight], output);
        case.builder.graph().node.push(block);
    }
    let model = case.finish("second");
    let fused = fuse(&model);
    let found: Vec<_> = fused
        .plan
        .sites
        .iter()
        .map(|site| (site.kind.name, is_folded(site)))
        .collect();
    assert_eq!(found, [("DyT", true), ("DyT", true)]);
    assert!(fused.model.proto.functions.is_empty());

    let mut twin = Case::new(15);
    let [alpha, gamma, weight] =
        [&[1][..], &[4], &[4, 4]].map(|shape| twin.constant(shape, 0.5, 1.5));
    let mut value = "x".to_owned();
    for _ in 0..2 {
        let scaled = twin.op("Mul", &[&value, &alpha]);
        let bounded = twin.op("Tanh", &[&scaled]);
        let normed = twin.op("Mul", &[&bounded, &gamma]);
        let linear = twin.op("MatMul", &[&normed, &weight]);
        value = twin.op("Add", &[&value, &linear]);
    }
    let x = Case::new(16).array(&SHAPE, -2.0, 2.0);
    let difference = compute(&twin.finish(&value), &x) - compute(&fused.model, &x);
    assert!(difference.iter().all(|d| d.abs() < 1e-5), "{difference}");
}
