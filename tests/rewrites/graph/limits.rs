//! Models that would run forever or need more memory than exists.

use crate::common::{options, portable};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ndarray::ArrayD;
use unfold::error::Error;
use unfold::infer_shapes;
use unfold::onnx::Model;
use unfold::onnx::proto::{Dim, FunctionProto, GraphProto, NodeProto, OperatorSetIdProto};
use unfold::onnx::{DataType, tensor};
use unfold::plan::{Outcome, SitePlan};
use unfold::refusal::Reason;
use unfold::verify::{Verdict, VerifyOptions, compare};
use unfold::{Fused, fuse};

use crate::common::text::model;
use crate::common::{Attr, Builder, declared, floats, node, undeclared};

/// The result of `work`. Fails if it takes too long.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(work()));
    receiver
        .recv_timeout(Duration::from_secs(10))
        .expect("it fails, or does not end")
}

fn fused(model: &Model) -> Fused {
    let model = model.clone();
    in_time(move || fuse(&model, &portable()).unwrap())
}

/// Asserts that nothing is folded. Returns the reasons.
fn assert_unchanged(model: &Model) -> Vec<Reason> {
    let Fused {
        model: after, plan, ..
    } = fused(model);
    assert_eq!(after.proto, model.proto, "something has changed");
    let outcomes = plan.sites.iter().flat_map(|site| site.outcomes());
    outcomes
        .flat_map(|outcome| match outcome {
            Outcome::Kept { forward, backward } => [Some(forward), backward.as_ref()],
            outcome => panic!("{outcome:?}"),
        })
        .flatten()
        .map(|refusal| refusal.reason.clone())
        .collect()
}

/// A site whose weight `lines` compute.
fn weight_from(lines: &str) -> Model {
    model(&format!(
        "opset 18
         input x 2 4
         scale s 4
         {lines}
         a = Mul(x, s)
         y = MatMul(a, w)
         output y"
    ))
}

#[test]
fn layer_norm_with_an_axis_out_of_range_stays() {
    for axis in [i64::MIN, -(1 << 40), -9, -3, 2, 9, 1 << 40, i64::MAX] {
        for operator in ["LayerNormalization", "RMSNormalization"] {
            assert_unchanged(&model(&format!(
                "input x 2 4
                 scale g 4
                 weight w 4 4
                 n = {operator}(x, g) axis={axis}
                 y = MatMul(n, w)
                 output y"
            )));
        }
    }
}

#[test]
fn product_with_a_scalar_stays() {
    assert_unchanged(&weight_from("const w = 2"));
}

#[test]
fn add_with_three_operands_stays() {
    // The affine would move from `r` to the third input, which an Add does not have.
    let model = model(
        "input x 1 12
         weight a 12 3
         scale s 3
         ints e 2 = 3 1
         const c 3 = 1 2 3
         weight w 3 2
         shift b 1 2
         m = Gemm(x, a)
         n = Mul(s, m)
         r = Reshape(n, e)
         k = Gemm(c, w)
         y = Add(b, k, r)
         output y",
    );
    let after = unfold::fuse(&model, &portable()).unwrap().model;
    assert_eq!(crate::operators(&after), ["Gemm", "Reshape", "Gemm", "Add"]);
}

#[test]
fn gemm_with_infinite_alpha_or_beta_stays() {
    for factor in ["alpha=inf", "alpha=-inf", "beta=-inf"] {
        let reasons = assert_unchanged(&model(&format!(
            "input x 2 4
             scale s 4
             weight w 4 3
             shift b 3
             n = Mul(x, s)
             y = Gemm(n, w, b) {factor}
             output y"
        )));
        assert!(matches!(reasons[0], Reason::Attribute(_)), "{reasons:?}");
    }
}

#[test]
fn batch_norm_of_zero_channels_does_not_fail() {
    for before in ["AveragePool(x) kernel_shape=[2]", "Add(x, x)"] {
        let model = model(&format!(
            "input x 2 0 4
             scale g 0
             shift b 0
             weight w 24 3
             p = {before}
             n = BatchNormalization(p, g, b, b, g)
             f = Flatten(n) axis=0
             y = Gemm(f, w)
             output y"
        ));
        unfold::fuse(&model, &portable()).unwrap();
    }
}

#[test]
fn batch_norm_without_its_first_input_stays() {
    // tract would read `g` as the normalized value, and use extents that it does not have.
    assert_unchanged(&model(
        "input x 4 4
         scale g 4
         shift b 4
         shift m 4
         scale v 4
         weight w 4 4
         n = BatchNormalization(, g, b, m, v, g)
         z = Add(x, n)
         y = MatMul(z, w)
         output y",
    ));
}

#[test]
fn axes_out_of_range_are_left_alone() {
    for axis in [i64::MIN, -9, 9, 1 << 40] {
        for line in [
            format!("z = OneHot(i, depth, two) axis={axis}"),
            format!("z = Concat(x, x) axis={axis}"),
            format!("z = Unsqueeze(x, axes)\nints axes 1 = {axis}"),
            format!("z = ReduceSum(x, axes)\nints axes 1 = {axis}"),
            format!("z = Slice(x, axes, axes, axes)\nints axes 1 = {axis}"),
            format!("z = Split(x) axis={axis}"),
            format!("z = Transpose(x) perm=[{axis},0]"),
            format!("z = Gather(x, i) axis={axis}"),
            format!("z = Flatten(x) axis={axis}"),
            "z = GatherND(x, depth)".to_owned(),
        ] {
            assert_unchanged(&model(&format!(
                "input x n 4
                 ints i 1 = 0
                 ints depth = 3
                 const two 2 = 0 1
                 {line}
                 y = Relu(z)
                 output y"
            )));
        }
    }
}

#[test]
fn huge_constants_are_not_evaluated() {
    // Above 2^32, an extent looks small if only its lower half is read.
    for huge in [1_i64 << 30, (1 << 32) + 1, 1 << 34] {
        assert_huge_constants_stay(huge);
    }
}

fn assert_huge_constants_stay(huge: i64) {
    for lines in [
        format!("const one 1 1 = 1\nints p 4 = 0 0 3 {huge}\nw = Pad(one, p)"),
        format!(
            "const one 4 8 = {}\nints p 4 = 0 0 0 -4\nw = Pad(one, p)",
            "1 ".repeat(32)
        ),
        format!("const one 1 1 = 1\nints p 2 = 4 {huge}\nw = Expand(one, p)"),
        format!("const one 1 1 = 1\nints p 2 = 4 {huge}\nw = Tile(one, p)"),
        format!("ints p 2 = 4 {huge}\nw = ConstantOfShape(p)"),
        "ints p 2 = -4 -4\nw = ConstantOfShape(p)".to_owned(),
        format!(
            "ints from = {huge}\nints to = 0\nints by = -1\nr = Range(from, to, by)\nw = Cast(r) to=1"
        ),
        format!("ints i 4 = 0 1 2 3\nints d = {huge}\nconst v 2 = 0 1\nw = OneHot(i, d, v)"),
        format!(
            "const one 1 1 = 1\nints p 2 = 4 {huge}\nconst none 0 =\nw = Resize(one, none, none, p)"
        ),
    ] {
        let reasons = assert_unchanged(&weight_from(&lines));
        assert!(!reasons.is_empty(), "{lines}");
    }
}

#[test]
fn refusal_of_a_huge_constant_names_its_operator() {
    let lines = "const one 1 1 = 1\nints p 2 = 4 100000000\nwide = Expand(one, p)
                 ints axis 1 = 1\nw = ReduceMean(wide, axis)";
    let reasons = assert_unchanged(&weight_from(lines));
    let why = "what Expand makes, or its work, is too large";
    assert!(
        reasons.contains(&Reason::Constant(why.into())),
        "{reasons:?}"
    );
}

#[test]
fn constant_within_the_limit_is_evaluated() {
    crate::folded(&weight_from(
        "const one 1 3 = 1 2 4\nints p 2 = 4 1\nw = Tile(one, p)",
    ));
}

#[test]
fn constants_are_evaluated_up_to_a_total_size() {
    // Each constant takes 16 MB, and 64 of them exceed the limit.
    let mut lines = "ints p 2 = 4 1000000\nw0 = ConstantOfShape(p)\n".to_owned();
    for i in 0..64 {
        lines += &format!("w{} = Neg(w{i})\n", i + 1);
    }
    let reasons = assert_unchanged(&weight_from(&(lines + "w = Neg(w64)")));
    let why = "the constants of the model are too large to be evaluated";
    assert!(
        reasons.contains(&Reason::Constant(why.into())),
        "{reasons:?}"
    );
}

#[test]
fn products_of_huge_extents_terminate() {
    // Attention over 2^31 tokens.
    assert_unchanged(&model(
        "input x batch 1 2147483648 8
         r = Reshape(x, s)
         ints s 3 = 0 -1 8
         t = Transpose(r) perm=[0,2,1]
         scores = MatMul(r, t)
         wide = Reshape(scores, flat)
         ints flat 2 = 0 -1
         shape = Shape(wide)
         size = ReduceProd(shape)
         more = Mul(size, size)
         long = Concat(more, more) axis=0
         z = Expand(wide, long)
         y = Relu(z)
         output y",
    ));
}

#[test]
fn nested_quotients_of_extents_terminate() {
    // Each sum doubles the number of terms in tract's formula.
    let mut lines = "opset 17
         input x a b c d e 4
         s = Shape(x)
         ints two 1 = 2
         h = Div(s, two)
         v0 = ReduceSum(h)
         "
    .to_owned();
    for i in 0..60 {
        lines += &format!(
            "q{i} = Div(v{i}, two)\np{i} = Mul(q{i}, h)\nr{i} = ReduceSum(p{i})\nv{} = Add(r{i}, q{i})\n",
            i + 1
        );
    }
    lines += "z = Reshape(x, t)\nt = Concat(v60, two) axis=0\ny = Relu(z)\noutput y";
    assert_unchanged(&model(&lines));
}

#[test]
fn symbol_name_of_100000_parentheses_terminates() {
    let name = format!("{}a{}", "(".repeat(100_000), ")".repeat(100_000));
    assert_unchanged(&model(&format!("input x {name} 4\ny = Relu(x)\noutput y")));
}

#[test]
fn hostile_bodies_terminate() {
    // One body never ends, one requests too much memory, and one has 2^40 paths through its
    // branches.
    let constant = tensor::make_i64("p", &[4, 1 << 34]);
    let body = |nodes: Vec<NodeProto>, output: &str| GraphProto {
        node: nodes,
        output: vec![undeclared(output)],
        initializer: vec![constant.clone(), floats("g", &ArrayD::ones(vec![4]))],
        ..Default::default()
    };
    for inner in [
        node(
            "LayerNormalization",
            &["x", "g"],
            &["inner"],
            vec![("axis", Attr::Int(-9))],
        ),
        node("ConstantOfShape", &["p"], &["inner"], vec![]),
    ] {
        let mut nodes = vec![inner];
        let mut output = "inner".to_owned();
        for depth in 0..40 {
            let branches = vec![
                ("then_branch", body(nodes.clone(), &output).into()),
                (
                    "else_branch",
                    body(vec![node("Identity", &["x"], &["other"], vec![])], "other").into(),
                ),
            ];
            output = format!("if{depth}");
            nodes = vec![node("If", &["c"], &[&output], branches)];
        }
        let mut builder = Builder::new(17);
        builder.input("x", &["n", "4"]);
        builder
            .graph()
            .input
            .push(crate::common::declared("c", DataType::Bool, &[]));
        builder.graph().node = nodes;
        assert_unchanged(&builder.model(&[&output]));
    }
}

#[test]
fn if_output_shape_is_known_where_branches_agree() {
    // A site after the If folds if both branches have the same channels.
    let branch = |operator: &str| GraphProto {
        node: vec![node(operator, &["x"], &[operator], vec![])],
        output: vec![undeclared(operator)],
        ..Default::default()
    };
    let mut built = model(
        "input x n 4
         condition c
         scale s 4
         weight w 4 3
         a = Mul(either, s)
         y = MatMul(a, w)
         output y",
    );
    let branches = vec![
        ("then_branch", branch("Relu").into()),
        ("else_branch", branch("Neg").into()),
    ];
    built
        .graph_mut()
        .node
        .insert(0, node("If", &["c"], &["either"], branches));
    let Fused { plan, .. } = fused(&built);
    let behind = plan.sites.iter().find(|site| site.name == "Mul_a");
    assert!(behind.is_some_and(SitePlan::is_folded), "{plan:#?}");
}

/// Adds functions by name. Each applies its operators one after another.
fn with_functions(functions: &[(&str, Vec<&str>)]) -> Model {
    let names: Vec<&str> = functions.iter().map(|(name, _)| *name).collect();
    let call = |operator: &str, from: &str, to: &str| {
        let domain = names.contains(&operator).then(|| "f".to_owned());
        NodeProto {
            domain,
            ..node(operator, &[from], &[to], vec![])
        }
    };
    let sets = ["", "f"].map(|domain| OperatorSetIdProto {
        domain: Some(domain.into()),
        version: Some(if domain.is_empty() { 17 } else { 1 }),
    });
    let mut builder = Builder::new(17);
    builder.input("x", &["n", "4"]);
    builder.proto.opset_import = sets.to_vec();
    builder.proto.functions = functions
        .iter()
        .map(|(name, steps)| {
            let value = |step: usize| format!("v{step}");
            let nodes = steps
                .iter()
                .enumerate()
                .map(|(i, step)| call(step, &value(i), &value(i + 1)));
            FunctionProto {
                name: Some((*name).into()),
                domain: Some("f".into()),
                input: vec![value(0)],
                output: vec![value(steps.len())],
                node: nodes.collect(),
                opset_import: sets.to_vec(),
                ..Default::default()
            }
        })
        .collect();
    builder.graph().node = vec![call(functions[0].0, "x", "y")];
    builder.model(&["y"])
}

#[test]
fn functions_that_expand_to_too_many_nodes_are_not_inlined() {
    let names: Vec<String> = (0..=15).map(|level| format!("Norm{level}")).collect();
    let level = |i: usize| {
        (
            names[i].as_str(),
            vec![names.get(i + 1).map_or("Relu", String::as_str); 10],
        )
    };
    let laughs = with_functions(&(0..=15).map(level).collect::<Vec<_>>());
    let Fused {
        model: after,
        lowered,
        ..
    } = fused(&laughs);
    assert!(lowered.is_none());
    assert_eq!(after.proto, laughs.proto);
}

#[test]
fn nested_functions_are_inlined_completely() {
    let names: Vec<String> = (0..40).map(|level| format!("Norm{level}")).collect();
    let level = |i: usize| {
        (
            names[i].as_str(),
            vec![names.get(i + 1).map_or("Neg", String::as_str), "Relu"],
        )
    };
    let Fused { lowered, .. } = fused(&with_functions(&(0..40).map(level).collect::<Vec<_>>()));
    let lowered = lowered.expect("it has a function");
    let operators = crate::operators(&lowered);
    assert_eq!(operators.len(), 41);
    assert_eq!((operators[0], &operators[1..]), ("Neg", &["Relu"; 40][..]));
    assert_eq!(lowered.proto.functions.len(), 0);
}

#[test]
fn five_thousand_calls_are_inlined() {
    let mut model = with_functions(&[("Norm", vec!["Relu"; 7])]);
    let call = model.graph().node[0].clone();
    let name = |place: usize| {
        if place == 0 {
            "x".to_owned()
        } else {
            format!("y{place}")
        }
    };
    let calls = (0..5_000).map(|place| NodeProto {
        name: Some(format!("call{place}")),
        input: vec![name(place)],
        output: vec![name(place + 1)],
        ..call.clone()
    });
    model.graph_mut().node = calls.collect();
    model.graph_mut().output[0].name = Some(name(5_000));
    let lowered = fused(&model).lowered.expect("it has a function");
    assert_eq!(crate::operators(&lowered), ["Relu"; 7 * 5_000]);
}

#[test]
fn recursive_function_is_an_error() {
    for functions in [
        vec![("Norm", vec!["Relu", "Norm"])],
        vec![
            ("Norm", vec!["Other"]),
            ("Other", vec!["Third"]),
            ("Third", vec!["Relu", "Norm"]),
        ],
    ] {
        let model = with_functions(&functions);
        let error = in_time(move || fuse(&model, &portable()).err()).expect("it has no end");
        assert!(
            matches!(&error, Error::Graph { reason, .. } if reason.contains("calls itself")),
            "{error}"
        );
        assert!(!error.to_string().contains('\n'));
    }
}

#[test]
fn models_that_do_not_fit_memory_are_not_verified() {
    for lines in [
        "input x 2 4\nscale g 4\nn = LayerNormalization(x, g) axis=-9\noutput n",
        "input x 2 4\nconst one 1 1 = 1\nints p 4 = 0 0 3 17179869184\nw = Pad(one, p)\ny = MatMul(x, w)\noutput y",
        "input x batch 1 2147483648 8\ny = Relu(x)\noutput y",
    ] {
        let model = model(lines);
        let verdict = in_time(move || compare(&model, &model, &VerifyOptions::default()));
        assert!(
            matches!(&verdict, Verdict::CouldNotVerify { .. }),
            "{verdict:?}"
        );
    }
}

#[test]
fn large_constant_computed_from_a_small_one_is_not_stored() {
    let wide = |times| {
        weight_from(&format!(
            "const one 1 3 = 1 2 4\nints p 2 = 4 {times}\nw = Tile(one, p)"
        ))
    };
    crate::folded(&wide(1000));
    let reasons = assert_unchanged(&wide(100_000));
    assert!(
        reasons.contains(&Reason::TooLarge(1_200_000)),
        "{reasons:?}"
    );
}

#[test]
fn gather_of_a_huge_axis_is_refused_as_too_large() {
    // To move backward through an operator that selects a few of very many places, each place would
    // be examined.
    for takes in ["Gather(x, both) axis=0", "Slice(x, first, second, first)"] {
        let model = model(&format!(
            "input x 34359738368 3
             ints first 1 = 0
             ints second 1 = 2
             ints both 2 = 0 1
             const g 2 1 = 2 3
             y = {takes}
             n = Mul(y, g)
             output n"
        ));
        let plan = unfold::plan(&model, &portable()).unwrap();
        let refusals = format!("{:?}", plan.sites);
        assert!(refusals.contains("TooLarge(34359738368)"), "{refusals}");
    }
}

#[test]
fn add_with_one_operand_stays() {
    let mut model = model(
        "input x batch 4
         const g 4 = 2 3 5 7
         weight w 4 3
         n = Mul(x, g)
         s = Add(n)
         m = MatMul(s, w)
         output m",
    );
    model
        .graph_mut()
        .value_info
        .push(declared("s", DataType::Float, &["batch", "4"]));
    assert!(unfold::plan(&model, &portable()).unwrap().is_empty());
}

#[test]
fn conv_transpose_with_stride_zero_is_refused() {
    let strides = |strides: &str| {
        model(&format!(
            "input x 1 3 8
             const g 3 1 = 2 3 5
             const t 3 1 = 1 2 3
             weight w 3 3 2
             n = Mul(x, g)
             s = Add(n, t)
             y = ConvTranspose(s, w) strides=[{strides}]
             output y"
        ))
    };
    assert!(unfold::plan(&strides("2"), &options()).unwrap().sites[0].is_folded());
    let sites = unfold::plan(&strides("0"), &options()).unwrap().sites;
    assert!(!sites.iter().any(|site| site.is_folded()), "{sites:?}");
}

#[test]
fn concat_of_contradicting_ranks_does_not_fail() {
    let mut model = model(
        "input x 2 3 4
         input y 2 3 5
         const g 3 1 = 2 3 5
         n = Mul(x, g)
         z = Identity(y)
         j = Concat(n, z) axis=2
         weight w 9 2
         o = MatMul(j, w)
         output o",
    );
    model.graph_mut().input[1] = declared("y", DataType::Float, &["2"]);
    model
        .graph_mut()
        .value_info
        .push(declared("j", DataType::Float, &["2", "3", "9"]));
    assert!(unfold::plan(&model, &portable()).is_ok());
}

#[test]
fn batch_norm_of_a_rank_1_constant_is_not_evaluated() {
    // The engine reads beyond the end of the extents.
    let model = model(
        "input x batch 4
         const c 4 = 1 2 3 4
         const s 1 = 2
         const t 1 = 1
         const m 1 = 0
         const v 1 = 1
         n = BatchNormalization(c, s, t, m, v)
         y = Mul(x, n)
         weight w 4 3
         o = MatMul(y, w)
         output o",
    );
    assert!(unfold::plan(&model, &portable()).is_ok());
}

#[test]
fn backward_fold_past_500_transposes_fits_a_small_stack() {
    let turns: String = (0..500)
        .map(|i| format!("v{} = Transpose(v{i}) perm=[1,0]\n", i + 1))
        .collect();
    let model = model(&format!(
        "input x batch 4
         weight w 4 4
         v0 = MatMul(x, w)
         {turns}
         scale g 4
         n = Mul(v500, g)
         output n"
    ));
    // Threads of some systems have a stack of this size, which is half of Rust's default.
    let work = move || fuse(&model, &portable()).unwrap().plan.sites[0].is_folded();
    assert!(
        thread::Builder::new()
            .stack_size(1 << 20)
            .spawn(work)
            .unwrap()
            .join()
            .unwrap()
    );
}

/// Constants that are read twice are computed once. A long chain of constants does not recurse
/// deeply.
#[test]
fn chains_of_constants_beside_statistics_terminate() {
    let doubled = |op: &str, count: usize| {
        let step = |i: usize| match op {
            "Add" => format!("c{} = Add(c{i}, c{i})\n", i + 1),
            _ => format!("c{} = Neg(c{i})\n", i + 1),
        };
        let steps: String = (0..count).map(step).collect();
        model(&format!(
            "opset 18
             input x 2 4
             const c0 4 = 0.5 1 1.5 2
             {steps}
             s = Add(x, c{count})
             q = Mul(x, x)
             m = ReduceMean(q) axes=[-1]
             r = Sqrt(m)
             y = Div(s, r)
             output y"
        ))
    };
    for (op, count) in [("Add", 60), ("Neg", 20_000)] {
        let model = doubled(op, count);
        in_time(move || fuse(&model, &portable()).unwrap());
    }
}

#[test]
fn conv_transpose_with_overflowing_extents_stays() {
    let before = model(
        "opset 18
         input x 1 2 5 5
         scale s 2 1 1
         shift t 2 1 1
         m = Mul(x, s)
         a = Add(m, t)
         weight w 2 3 1 1
         y = ConvTranspose(a, w) strides=[1073741824,1073741824] pads=[1,1,0,0]
         output y",
    );
    assert_unchanged(&before);
}

#[test]
fn conv_with_invalid_groups_stays() {
    for group in [0, -1, i64::MAX] {
        let before = model(&format!(
            "opset 18
             input x 1 2 5 5
             scale s 2 1 1
             a = Mul(x, s)
             weight w 2 2 1 1
             y = Conv(a, w) group={group}
             output y"
        ));
        assert_unchanged(&before);
    }
}

/// The engine reads a negative step as a huge positive one, and a negative divisor too. Its
/// formulas then grow without end.
#[test]
fn descending_range_over_unknown_extents_terminates() {
    let positions = model(
        "input x batch 4 length
         weight v 4 4 3
         c = Conv(x, v) pads=[1,1] strides=[2]
         t = Transpose(c) perm=[0,2,1]
         z = Shape(t)
         ints one = 1
         n = Gather(z, one)
         m = Sub(n, one)
         u = Neg(n)
         ints down = -1
         r = Range(m, u, down)
         f = Cast(r) to=1
         ints last 1 = 1
         p = Unsqueeze(f, last)
         scale g 4
         q = Mul(p, g)
         k = Transpose(q) perm=[1,0]
         s = MatMul(t, k)
         ints pads 6 = 0 0 1 0 0 0
         d = Pad(s, pads)
         ints zero 1 = 0
         b = Gather(z, zero)
         l = Gather(z, last)
         ints rest 1 = -1
         a = Concat(b, rest, l) axis=0
         y = Reshape(d, a)
         output y",
    );
    let facts = in_time(move || {
        let mut values = infer_shapes(&positions).unwrap();
        ["d", "y"].map(|name| values.remove(name).unwrap().shape.unwrap())
    });
    // The Range has the 2n − 1 numbers from n − 1 to 1 − n, and the Pad adds one, so there are 2n
    // places.
    let twice = Some(Dim::DimParam("2*(length+1)/2".into()));
    assert!(
        facts.iter().all(|shape| shape.contains(&twice)),
        "{facts:?}"
    );
    for op in ["Div", "Mod"] {
        let backwards = model(&format!(
            "input x batch length 4
             scale g 4
             weight w 4 3
             z = Shape(x)
             ints one = 1
             n = Gather(z, one)
             m = Add(n, one)
             ints by = -2
             q = {op}(m, by)
             a = Abs(q)
             ints none = 0
             r = Range(none, a, one)
             f = Cast(r) to=1
             s = ReduceSum(f) keepdims=0
             v = Mul(x, g)
             o = MatMul(v, w)
             y = Add(o, s)
             output y"
        ));
        assert!(
            fused(&backwards).plan.sites.iter().any(SitePlan::is_folded),
            "{op}"
        );
    }
}
