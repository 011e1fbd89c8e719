//! Canonicalization: each operator in another form gets the form that later passes read. Similar
//! models stay.

use crate::common::portable;
use unfold::onnx::Model;

use crate::becomes;
use crate::common::is_proved_or_listed;
use crate::common::text::model;
use crate::{folded, fuse, operators, proved, same};

#[test]
fn gather_from_an_axis_of_extent_one_becomes_squeeze() {
    let with = |opset: i64, pick: &str, unsqueeze: &str| {
        model(&format!(
            "opset {opset}
             input x batch 5 4
             ints last 1 = 3
             ints zero = 0
             ints end = -1
             scale g 4
             shift b 4
             shift m 4
             const v 4 = 1 4 0.25 16
             weight w 4 3
             t = Transpose(x) perm=[0,2,1]
             u = {unsqueeze}
             n = BatchNormalization(u, g, b, m, v) epsilon=1e-5
             s = {pick}
             r = Transpose(s) perm=[0,2,1]
             y = MatMul(r, w)
             output y"
        ))
    };
    for (opset, unsqueeze) in [(11, "Unsqueeze(t) axes=[3]"), (17, "Unsqueeze(t, last)")] {
        for pick in ["Gather(n, zero) axis=3", "Gather(n, end) axis=-1"] {
            let before = with(opset, pick, unsqueeze);
            let after = fuse(&before);
            assert!(
                after.plan.sites.iter().all(|site| site.is_folded()),
                "{:#?}",
                after.plan.sites
            );
            assert_eq!(operators(&after.model), ["MatMul", "Add"], "{opset} {pick}");
            assert!(is_proved_or_listed(&before, &after).is_ok());
        }
    }
    // An index of rank 1 keeps the axis.
    let kept = fuse(&with(17, "Gather(n, last) axis=1", "Unsqueeze(t, last)"));
    assert!(operators(&kept.model).contains(&"Slice"));
}

#[test]
fn expanded_statistics_are_read_as_channel_constants() {
    let before = model(
        "input x batch 5 4
         shift m 4
         const v 4 = 3 0 8 15
         const e = 1
         const p = -0.5
         scale g 4
         weight w 4 3
         s = Shape(x)
         a = Expand(m, s)
         c = Sub(x, a)
         b = Expand(v, s)
         d = Add(b, e)
         q = Pow(d, p)
         n = Mul(c, q)
         h = Expand(g, s)
         k = Mul(n, h)
         y = MatMul(k, w)
         output y",
    );
    let after = fuse(&before);
    assert_eq!(operators(&after.model), ["MatMul", "Add"]);
    assert!(is_proved_or_listed(&before, &after).is_ok());
    crate::same(&before, &after.model, 1e-5);
}

#[test]
fn einsum_of_one_value_becomes_transpose() {
    let with = |equation: &str| {
        model(&format!(
            "input x batch 4 5
             scale g 1 4 1
             shift t 1 4 1
             weight w 4 3
             s = Relu(x)
             n = Mul(s, g)
             m = Add(n, t)
             e = Einsum(m) equation={equation}
             y = MatMul(e, w)
             output y"
        ))
    };
    for equation in ["bct->btc", "acb->abc"] {
        let before = with(equation);
        let after = becomes(&before, &["Relu", "Transpose", "MatMul", "Add"]);
        same(&before, &after, 0.0);
    }
    // This Einsum sums over an axis.
    let sums = fuse(&with("bct->bc"));
    assert!(operators(&sums.model).contains(&"Einsum"));
}

#[test]
fn einsum_without_contraction_becomes_mul() {
    let with = |extents: &str, operands: &str, equation: &str, constant: &str, behind: &str| {
        model(&format!(
            "input x batch {extents}
             scale g {constant}
             weight w 4 3
             weight v 3 4 1 1
             n = Floor(x)
             e = Einsum({operands}) equation={equation}
             y = {behind}
             output y"
        ))
    };
    for (operands, equation) in [
        ("n, g", "bnc,c->bnc"),
        ("g, n", "c,bnc->bnc"),
        ("n, g", "...c,c->...c"),
        ("n, g", "bn...,...->bn..."),
    ] {
        let after = proved(&with("5 4", operands, equation, "4", "MatMul(e, w)"));
        assert_eq!(crate::operators(&after), ["Floor", "MatMul"], "{equation}");
    }
    becomes(
        &with("5 4", "n, g", "bnc,c->bnc", "4", "MatMul(e, w)"),
        &["Floor", "MatMul"],
    );
    becomes(
        &with("4 6 6", "n, g", "bchw,c->bchw", "4", "Conv(e, v)"),
        &["Floor", "Conv"],
    );
    for (equation, constant, rest) in [
        // A factor of each place, a factor with exchanged axes, and a sum.
        ("bnc,nc->bnc", "5 4", "Mul"),
        ("bnc,cn->bnc", "4 5", "Einsum"),
        ("bnc,c->bn", "4", "Einsum"),
    ] {
        let before = with("5 4", "n, g", equation, constant, "Tanh(e)");
        let fused = fuse(&before);
        assert!(operators(&fused.model).contains(&rest), "{equation}");
        assert!(is_proved_or_listed(&before, &fused).is_ok());
        crate::same(&before, &fused.model, 1e-6);
    }
}

/// Tokens and their types, which are not an input.
fn typed(row: &str, axis: usize) -> Model {
    model(&format!(
        "indices i batch 6
         weight w 9 4
         weight v 4 4
         ints row 1 6 = {row}
         s = Shape(i)
         r = Expand(row, s)
         t = Gather(w, i)
         p = Gather(v, r) axis={axis}
         h = Add(p, t)
         y = Tanh(h)
         output y"
    ))
}

#[test]
fn gather_of_one_constant_row_becomes_a_bias() {
    for row in ["0 0 0 0 0 0", "2 2 2 2 2 2", "-1 -1 -1 -1 -1 -1"] {
        let before = typed(row, 0);
        let after = proved(&before);
        assert_eq!(operators(&after), ["Gather", "Tanh"], "{row}");
        crate::same(&before, &after, 1e-6);
    }
    // A row with two types, and columns of the table.
    for other in [typed("0 0 1 0 0 0", 0), typed("0 0 0 0 0 0", 1)] {
        let fused = fuse(&other);
        assert_eq!(
            operators(&fused.model)
                .iter()
                .filter(|&&op| op == "Gather")
                .count(),
            2
        );
        assert!(is_proved_or_listed(&other, &fused).is_ok());
    }
}

/// A mask that an exporter computes from the places of a sequence.
fn masked(by: &str, holds: &str) -> Model {
    model(&format!(
        "input x batch 2 length length
         ints zero = 0
         ints one = 1
         ints two = 2
         ints half = -1
         ints axis 1 = 1
         ints front 3 = 0 1 2
         const none = 0
         const low = -1000
         s = Shape(x)
         n = Gather(s, two)
         p = Range(zero, n, {by})
         q = Add(p, zero)
         c = Unsqueeze(q, front)
         h = {holds}
         e = Expand(h, s)
         m = Where(e, none, low)
         z = Add(x, m)
         y = Softmax(z)
         output y"
    ))
}

#[test]
fn mask_that_hides_no_position_is_removed() {
    for holds in ["GreaterOrEqual(c, zero)", "GreaterOrEqual(c, half)"] {
        let before = masked("one", holds);
        assert_eq!(operators(&proved(&before)), ["Softmax"], "{holds}");
    }
    for (by, holds) in [
        // The mask hides the first place, which is 0, or places of a decreasing Range, or places
        // from 2.
        ("one", "GreaterOrEqual(c, one)"),
        ("half", "GreaterOrEqual(c, zero)"),
        ("one", "Less(c, two)"),
    ] {
        let before = masked(by, holds);
        let fused = fuse(&before);
        assert!(operators(&fused.model).contains(&"Where"), "{by} {holds}");
        assert!(is_proved_or_listed(&before, &fused).is_ok());
    }
}

#[test]
fn expand_of_constant_queries_to_the_batch_is_removed() {
    let after = folded(&model(
        "input x batch 5 4
         weight q 1 5 4
         scale g 4
         shift t 4
         weight w 4 3
         ints zero 1 = 0
         ints one 2 = 1 1
         n = Mul(x, g)
         m = Add(n, t)
         s = Shape(x)
         b = Gather(s, zero) axis=0
         c = Concat(b, one) axis=0
         e = Expand(q, c)
         h = Add(m, e)
         y = MatMul(h, w)
         output y",
    ));
    assert!(!operators(&after).contains(&"Expand"));
}

/// A Sum of more values stays. So does a Sum of two values that may have to broadcast, if the
/// operator set does not permit this.
#[test]
fn sum_of_two_becomes_add() {
    let sum = |opset: i64, start: &str, sum: &str| {
        model(&format!(
            "opset {opset}
             {start}
             divisor g 6
             divisor h 6
             shift t 6
             weight w 6 4
             weight b 4
             n = Mul(x, g)
             o = Tanh(x)
             p = Mul(o, h)
             {sum}
             y = Gemm(s, w, b)
             output y"
        ))
    };
    let open = "input x batch 6";
    for (opset, start, text) in [
        (8, open, "s = Sum(n, p)"),
        (7, open, "s = Sum(n, p)"),
        (13, open, "s = Sum(n, t)"),
        (13, open, "s = Sum(n)"),
    ] {
        let after = fuse(&sum(opset, start, text));
        assert!(
            after.plan.sites.iter().any(|site| site.is_folded()),
            "{:#?}",
            after.plan.sites
        );
        assert!(!operators(&after.model).contains(&"Sum"));
        assert!(is_proved_or_listed(&sum(opset, start, text), &after).is_ok());
    }
    let biased = model(
        "input x batch 6\nweight w 6 4\nshift t 4\nl = MatMul(x, w)\ns = Sum(l, t)\ny = Relu(s)\noutput y",
    );
    assert!(operators(&fuse(&biased).model).contains(&"Add"));
    for (opset, text) in [(13, "s = Sum(n, p, t)"), (7, "s = Sum(n, t)")] {
        assert!(
            operators(&fuse(&sum(opset, open, text)).model).contains(&"Sum"),
            "{text}"
        );
    }
}

/// If a value is expanded beyond the shape of its partner, the result is larger.
#[test]
fn expand_that_broadcasts_its_partner_stays() {
    let after = fuse(&model(
        "input x 1 5 4
         input z batch 5 4
         shift q 4
         s = Shape(z)
         e = Expand(q, s)
         y = Add(x, e)
         output y",
    ));
    assert!(operators(&after.model).contains(&"Expand"));
}

/// The LayerNormalization of Keras, `x·s + (β − μ·s)` with `s = γ/σ`. `rest` begins after `a =
/// x·s`.
fn scaled_first(rest: &str) -> unfold::onnx::Model {
    model(&format!(
        "input x batch 5 8
         scale g 8
         shift b 8
         const e = 0.001
         weight w 8 3
         m = ReduceMean(x) axes=[-1]
         d = Sub(x, m)
         dd = Mul(d, d)
         v = ReduceMean(dd) axes=[-1]
         ve = Add(v, e)
         sd = Sqrt(ve)
         rs = Reciprocal(sd)
         s = Mul(rs, g)
         a = Mul(x, s)
         {rest}
         y = MatMul(h, w)
         output y"
    ))
}

#[test]
fn keras_layer_norm_scaled_before_centring_is_recognized() {
    for rest in [
        "p = Mul(m, s)\n r = Sub(b, p)\n h = Add(a, r)",
        "n = Neg(m)\n p = Mul(n, s)\n r = Add(p, b)\n h = Add(r, a)",
        "p = Mul(s, m)\n n = Neg(p)\n r = Add(b, n)\n h = Add(a, r)",
        "n = Neg(m)\n p = Mul(s, n)\n h = Add(p, a)",
        "p = Mul(m, s)\n h = Sub(a, p)",
    ] {
        let before = scaled_first(rest);
        let after = fuse(&before);
        let site = &after.plan.sites[0];
        assert!(
            site.is_folded() && site.kind.name == "LN",
            "{rest}: {site:#?}"
        );
        crate::same(&before, &after.model, 1e-5);
        let shifts = usize::from(rest.contains("r ="));
        let wanted = 9 + shifts;
        assert_eq!(
            operators(&after.model).len(),
            wanted,
            "{rest}: {:?}",
            operators(&after.model)
        );
    }
}

/// A GELU between two layers. Each line has one operator.
fn gelu(lines: &str) -> Model {
    model(&format!(
        "input x batch 5 8
         weight w 8 8
         weight v 8 3
         const root = 1.4142135
         const one = 1
         const half = 0.5
         a = MatMul(x, w)
         {lines}
         y = MatMul(g, v)
         output y"
    ))
}

#[test]
fn gelu_with_a_halved_gate_halves_its_value_instead() {
    let before = "d = Div(a, root)\n e = Erf(d)\n s = Add(e, one)";
    let by_tanh =
        "p = Pow(a, three)\n const three = 3\n q = Mul(p, c)\n const c = 0.044715\n r = Add(a, q)
        const k = 0.7978846\n d = Mul(r, k)\n e = Tanh(d)\n s = Add(one, e)";
    for (sum, last) in [
        (before, "h = Mul(half, s)\n g = Mul(a, h)"),
        (before, "h = Mul(s, half)\n g = Mul(h, a)"),
        (by_tanh, "h = Mul(half, s)\n g = Mul(a, h)"),
    ] {
        let after = proved(&gelu(&format!("{sum}\n {last}")));
        let products: Vec<&[String]> = after
            .graph()
            .node
            .iter()
            .filter(|node| node.op_type() == "Mul")
            .map(|node| &node.input[..])
            .collect();
        let [.., halved, product] = products[..] else {
            panic!("{products:?}")
        };
        assert_eq!(halved, ["a", "half"]);
        assert_eq!(product[1], "s");
    }
}

#[test]
fn halving_after_other_gates_keeps_its_order() {
    let before = "d = Div(a, root)\n e = Erf(d)\n s = Add(e, one)";
    for lines in [
        // The usual order, another number, and another reader.
        format!("{before}\n h = Mul(a, half)\n g = Mul(h, s)"),
        format!("{before}\n p = Mul(a, s)\n g = Mul(p, half)"),
        format!("{before}\n const third = 0.3\n h = Mul(s, third)\n g = Mul(a, h)"),
        format!("{before}\n h = Mul(s, half)\n g = Mul(a, h)\n output h"),
        "e = Sigmoid(a)\n s = Add(e, one)\n h = Mul(s, half)\n g = Mul(a, h)".to_owned(),
    ] {
        let model = gelu(&lines);
        assert_eq!(fuse(&model).model.proto, model.proto, "{lines}");
    }
}

/// An RMSNorm with these last lines, before a layer.
fn rms(lines: &str) -> Model {
    model(&format!(
        "input x batch 5 8
         scale g 8
         weight w 8 3
         const two = 2
         const eps = 0.001
         p = Pow(x, two)
         m = ReduceMean(p) axes=[-1]
         e = Add(m, eps)
         s = Sqrt(e)
         {lines}
         y = MatMul(n, w)
         output y"
    ))
}

#[test]
fn rms_norm_by_reciprocal_becomes_div() {
    for lines in [
        "r = Reciprocal(s)\n q = Mul(x, r)\n n = Mul(q, g)",
        "r = Reciprocal(s)\n q = Mul(r, x)\n n = Mul(g, q)",
    ] {
        let before = rms(lines);
        let after = proved(&before);
        assert_eq!(
            operators(&after),
            ["Pow", "ReduceMean", "Add", "Sqrt", "Div", "Mul", "MatMul"]
        );
        let quotient = after
            .graph()
            .node
            .iter()
            .find(|node| node.op_type() == "Div")
            .unwrap();
        assert_eq!(quotient.input, ["x", "s"]);
        same(&before, &after, 1e-6);
    }
}

#[test]
fn reciprocal_without_rms_norm_or_with_other_readers_stays() {
    for lines in [
        // No γ after it, another value, or another reader of the root, the reciprocal or the
        // result.
        "r = Reciprocal(s)\n n = Mul(x, r)",
        "z = Relu(x)\n r = Reciprocal(s)\n q = Mul(z, r)\n n = Mul(q, g)",
        "r = Reciprocal(s)\n q = Mul(x, r)\n n = Mul(q, g)\n output s",
        "r = Reciprocal(s)\n q = Mul(x, r)\n n = Mul(q, g)\n output r",
        "r = Reciprocal(s)\n q = Mul(x, r)\n n = Mul(q, g)\n output q",
    ] {
        let after = fuse(&rms(lines)).model;
        assert!(
            operators(&after).contains(&"Reciprocal"),
            "{lines}: {:?}",
            operators(&after)
        );
    }
}

#[test]
fn skipped_rms_norm_stays() {
    let before = rms("r = Reciprocal(s)\n q = Mul(x, r)\n n = Mul(q, g)");
    let options = unfold::FuseOptions {
        skip: vec!["RMSNorm".into()],
        ..portable()
    };
    assert_eq!(
        unfold::fuse(&before, &options).unwrap().model.proto,
        before.proto
    );
}

/// The β of the outer pattern is the value from which the inner one subtracts the mean.
#[test]
fn nested_scaled_mean_patterns_keep_their_results() {
    for outer in [
        "a = Mul(x, s)\nrest = Sub(twin, ms)",
        "a = Mul(x, s)\nn = Neg(ms)\nrest = Add(twin, n)",
    ] {
        let before = model(&format!(
            "input x 2 4 5 5
             scale s 4 1 1
             weight w 3 4 1 1
             m = ReduceMean(x) axes=[2,3]
             twin = Mul(x, s)
             ms = Mul(m, s)
             {outer}
             last = Add(a, rest)
             y = Conv(last, w)
             output y"
        ));
        same(&before, &proved(&before), 1e-12);
    }
}

#[test]
fn near_keras_layer_norm_patterns_stay() {
    for rest in [
        // Another scale, another mean, another reader, and a difference in the other order.
        "p = Mul(m, g)\n r = Sub(b, p)\n h = Add(a, r)",
        "p = Mul(v, s)\n r = Sub(b, p)\n h = Add(a, r)",
        "p = Mul(m, s)\n r = Sub(b, p)\n h = Add(a, r)\n output p",
        "p = Mul(m, s)\n r = Sub(p, b)\n h = Add(a, r)",
    ] {
        let before = scaled_first(rest);
        let after = fuse(&before);
        assert!(
            after.plan.sites.iter().all(|site| site.kind.name != "LN"),
            "{rest}"
        );
        crate::same(&before, &after.model, 1e-5);
    }
}

#[test]
fn parameters_repeated_per_position_are_read_as_per_channel() {
    let rows = |row: &str, count: usize| vec![row; count].join(" ");
    for (dims, count) in [("3 4", 3), ("1 3 4", 3), ("2 3 4", 6)] {
        let text = |last: &str| {
            format!(
                "input x 2 3 4\nconst s {dims} = {} {last}\nconst t {dims} = {}\nweight w 4 5\na = Mul(x, s)\nb = Add(a, t)\ny = MatMul(b, w)\noutput y",
                rows("2 3 0.5 -1", count - 1),
                rows("1 -1 2 0.25", count)
            )
        };
        let after = folded(&model(&text("2 3 0.5 -1")));
        assert_eq!(operators(&after), ["MatMul", "Add"], "{dims}");
        // A scale that differs at one place stays.
        let after = fuse(&model(&text("2 3 0.5 -1.5")));
        assert!(operators(&after.model).contains(&"Mul"), "{dims}");
    }
    // An operand that broadcasts the value is not a parameter.
    let wide = fuse(&model(
        "input x 1 1 4\nconst s 3 4 = 2 3 4 5 2 3 4 5 2 3 4 5\nweight w 4 5\na = Mul(x, s)\ny = MatMul(a, w)\noutput y",
    ));
    assert!(operators(&wide.model).contains(&"Mul"));
}

#[test]
fn affine_chain_that_stays_becomes_mul_and_add() {
    let chain = |behind: &str| {
        model(&format!(
            "input x batch 5 4
             scale g 4
             scale k 4
             shift b 4
             shift m 4
             divisor s 4
             c = Sub(x, m)
             d = Div(c, s)
             e = Mul(d, g)
             f = Mul(e, k)
             h = Add(f, b)
             {behind}
             output y"
        ))
    };
    let before = chain("y = Relu(h)");
    let after = fuse(&before);
    assert!(!after.plan.sites[0].is_folded(), "{:#?}", after.plan.sites);
    assert_eq!(operators(&after.model), ["Mul", "Add", "Relu"]);
    crate::same(&before, &after.model, 1e-6);
    assert!(is_proved_or_listed(&before, &after).is_ok());
    assert!(fuse(&after.model).plan.is_empty());
    // An intermediate value with another reader stays.
    let read = fuse(&chain("y = Relu(h)\n output d"));
    assert!(
        operators(&read.model).contains(&"Div")
            || read.model.graph().node.iter().any(|n| n.output[0] == "d")
    );
    crate::same(&chain("y = Relu(h)\n output d"), &read.model, 1e-6);
    // A skipped site stays.
    let options = unfold::FuseOptions {
        skip: vec!["standardisation".into()],
        ..portable()
    };
    assert!(!unfold::fuse(&before, &options).unwrap().changed());
}

/// Queries, keys and values as `permute(2, 0, 3, 4, 1).unbind(0)` gives them, or with other axes.
fn three(opset: i64, perm: &str, apart: &str) -> unfold::onnx::Model {
    model(&format!(
        "opset {opset}
         input x 2 5 8
         weight w 8 24
         ints shape 5 = 2 5 3 4 2
         ints zeros 1 = 0
         ints ones 3 = 1 1 1
         ints i = 0
         ints j = 1
         ints k = -1
         p = MatMul(x, w)
         r = Reshape(p, shape)
         t = Transpose(r) perm={perm}
         {apart}
         a = Add(q, h)
         y = Mul(a, v)
         output y"
    ))
}

#[test]
fn split_of_qkv_moves_before_the_transpose() {
    let old = "a0, b0, c0 = Split(t) axis=0 split=[1,1,1]
               q = Squeeze(a0) axes=[0]
               h = Squeeze(b0) axes=[0]
               v = Squeeze(c0) axes=[0]";
    let split = "a0, b0, c0 = Split(t, ones) axis=0
                 q = Squeeze(a0, zeros)
                 h = Squeeze(b0, zeros)
                 v = Squeeze(c0, zeros)";
    let gather = "q = Gather(t, i)
                  h = Gather(t, j) axis=0
                  v = Gather(t, k) axis=-5";
    let kept = [(11, old), (17, split), (17, gather)];
    for (opset, apart) in kept {
        let before = three(opset, "[2,0,3,4,1]", apart);
        let after = fuse(&before);
        let graph = after.model.graph();
        let orders: Vec<&[i64]> = graph
            .node
            .iter()
            .filter_map(|node| node.attr_ints("perm").ok()?)
            .collect();
        assert_eq!(orders, [[0, 2, 3, 1]; 3], "{opset} {apart}");
        assert_eq!(
            operators(&after.model).contains(&"Squeeze"),
            apart != gather
        );
        crate::same(&before, &after.model, 0.0);
        assert!(is_proved_or_listed(&before, &after).is_ok());
        assert_eq!(
            operators(&fuse(&after.model).model),
            operators(&after.model)
        );

        // Three parts with axes in order need no Transpose.
        let before = three(opset, "[2,0,1,3,4]", apart);
        let after = fuse(&before);
        assert!(
            !operators(&after.model).contains(&"Transpose"),
            "{opset} {apart}"
        );
        crate::same(&before, &after.model, 0.0);

        // If the last axis stays the last one, engines recognize the form.
        let before = three(opset, "[2,0,3,1,4]", apart);
        assert_eq!(operators(&fuse(&before).model), operators(&before));
    }
    // A Reshape does not depend on the axis of extent 1.
    let reshaped = split.replace(
        "v = Squeeze(c0, zeros)",
        "ints flat 4 = 2 4 2 5\n v = Reshape(c0, flat)",
    );
    let before = three(17, "[2,0,3,4,1]", &reshaped);
    let after = fuse(&before);
    let orders = after
        .model
        .graph()
        .node
        .iter()
        .filter_map(|node| node.attr_ints("perm").ok()?);
    assert_eq!(orders.collect::<Vec<_>>(), [[0, 2, 3, 1]; 3]);
    crate::same(&before, &after.model, 0.0);
    // A reader of all three parts needs the Transpose. A part of two places keeps its axis.
    for apart in [
        "q = Gather(t, i)\nh = Gather(t, j)\nv = Identity(t)",
        "q = Gather(t, i)\nh = Gather(t, j) axis=1\nv = Gather(t, k)",
        "q = Gather(t, i)\nh = Gather(t, j)\nv = Gather(t, zeros)",
    ] {
        let after = fuse(&three(17, "[2,0,3,4,1]", apart));
        let orders = after
            .model
            .graph()
            .node
            .iter()
            .filter_map(|node| node.attr_ints("perm").ok()?.map(<[i64]>::len));
        assert_eq!(orders.collect::<Vec<_>>(), [5], "{apart}");
    }
}

/// A BatchNormalization along the second of three axes, and the readers of its result.
fn by_channels(before: &str, behind: &str, reads: &str) -> unfold::onnx::Model {
    model(&format!(
        "input x batch 5 4
         scale g 4
         shift b 4
         shift m 4
         const v 4 = 1 4 0.25 16
         weight w 4 3
         ints flat 2 = -1 4
         ints whole 3 = -1 5 4
         {before}
         n = BatchNormalization(a, g, b, m, v) epsilon=0.0
         {behind}
         {reads}
         output y"
    ))
}

#[test]
fn transposes_and_reshapes_around_a_batch_norm_are_removed() {
    let turned = (
        "a = Transpose(x) perm=[0,2,1]",
        "z = Transpose(n) perm=[0,2,1]",
    );
    let flat = ("a = Reshape(x, flat)", "z = Reshape(n, whole)");
    let both = (
        "ints last 1 = 2\n f = Reshape(x, flat)\n a = Unsqueeze(f, last)",
        "s = Squeeze(n, last)\n z = Reshape(s, whole)",
    );
    // On one side, a Reshape changes nothing, as for computed extents.
    let one_side = (
        "t = Transpose(x) perm=[0,2,1]\n ints same 3 = 0 4 -1\n a = Reshape(t, same)",
        "z = Transpose(n) perm=[0,2,1]",
    );
    for (before, behind) in [turned, flat, both, one_side] {
        // No operator absorbs the affine, so it becomes two operators.
        let stays = by_channels(before, behind, "y = Relu(z)");
        let after = fuse(&stays);
        assert_eq!(operators(&after.model), ["Mul", "Add", "Relu"], "{before}");
        crate::same(&stays, &after.model, 1e-5);
        // The product over tokens absorbs the shift.
        let half = by_channels(
            before,
            behind,
            "input p batch 5 4\n weight c 5 5\n q = MatMul(c, z)\n y = Mul(q, p)",
        );
        let after = fuse(&half);
        crate::same(&half, &after.model, 1e-5);
        assert!(is_proved_or_listed(&half, &after).is_ok());
        // The affine still folds into a layer.
        let goes = by_channels(before, behind, "y = MatMul(z, w)");
        assert_eq!(operators(&folded(&goes)), ["MatMul", "Add"]);
    }
    // Another node reads the value in the other order, or the second Transpose has another order.
    let read = by_channels(turned.0, turned.1, "h = Relu(a)\n y = Relu(z)\n output h");
    assert!(operators(&fuse(&read).model).contains(&"BatchNormalization"));
    let other = by_channels(
        "a = Transpose(x) perm=[0,2,1]",
        "z = Transpose(n) perm=[1,2,0]",
        "y = Relu(z)",
    );
    assert!(operators(&fuse(&other).model).contains(&"BatchNormalization"));
    // A movement between two normalizers belongs to one of them.
    let row = model(
        "input x batch 4 4
         scale g 4
         shift b 4
         shift m 4
         const v 4 = 1 4 0.25 16
         a = Transpose(x) perm=[0,2,1]
         n = BatchNormalization(a, g, b, m, v) epsilon=0.0
         c = Transpose(n) perm=[0,2,1]
         k = BatchNormalization(c, g, b, m, v) epsilon=0.0
         d = Transpose(k) perm=[0,2,1]
         y = Relu(d)
         output y",
    );
    let after = fuse(&row);
    crate::same(&row, &after.model, 1e-5);
}

/// The keys as exporters transpose them, with the scale of attention after the product. Engines
/// fuse one Transpose with the product.
#[test]
fn key_transposes_of_attention_merge_into_one() {
    let attention = |turned: &str| {
        format!(
            "opset 18
             input x batch 4 6
             weight wq 6 6
             weight wk 6 6
             a = MatMul(x, wq)
             b = MatMul(x, wk)
             ints heads 4 = 0 4 2 3
             c = Reshape(a, heads)
             d = Reshape(b, heads)
             q = Transpose(c) perm=[0,2,1,3]
             k = Transpose(d) perm=[0,2,1,3]
             {turned}
             const s = 0.5
             m = Mul(t, s)
             p = MatMul(q, m)
             y = Softmax(p) axis=-1
             output y"
        )
    };
    let by_three = attention(
        "ints flat 3 = -1 4 3
         u = Reshape(k, flat)
         v = Transpose(u) perm=[0,2,1]
         ints back 4 = -1 2 3 4
         t = Reshape(v, back)",
    );
    let expected = [
        "MatMul",
        "MatMul",
        "Reshape",
        "Reshape",
        "Transpose",
        "Transpose",
        "MatMul",
        "Softmax",
    ];
    let after = becomes(&model(&by_three), &expected);
    let perms: Vec<&[i64]> = after
        .graph()
        .node
        .iter()
        .filter_map(|node| node.attr_ints("perm").ok()?)
        .collect();
    assert_eq!(perms, [[0, 2, 1, 3], [0, 2, 3, 1]]);
}

/// The form in which torch exports `as_strided` of a mean over a transposed image.
fn strided(count: &str, step: usize, first: usize) -> unfold::onnx::Model {
    let places: String = (first..first + 6)
        .map(|place| format!("{place} "))
        .collect();
    model(&format!(
        "input x {count} 4 6
         scale g 6
         shift t 6
         weight w 6 3
         ints zero = 0
         ints one = 1
         ints step = {step}
         ints axes 3 = 1 2 3
         ints places 1 6 1 1 = {places}
         ints row 1 = -1
         ints flat 2 = -1 6
         n = Mul(x, g)
         b = Add(n, t)
         m = ReduceMean(b) axes=[1]
         r = Reshape(m, row)
         s = Shape(x) start=0 end=1
         c = Squeeze(s)
         i = Range(zero, c, one)
         j = Mul(i, step)
         k = Unsqueeze(j, axes)
         p = Add(k, places)
         v = Gather(r, p)
         f = Reshape(v, flat)
         y = MatMul(f, w)
         output y"
    ))
}

/// tract does not support a Range of open extents.
#[test]
fn gather_of_all_rows_in_order_is_removed() {
    let after = proved(&strided("batch", 6, 0));
    assert_eq!(
        operators(&after),
        ["ReduceMean", "Reshape", "MatMul", "Add"]
    );
}

#[test]
fn gather_of_other_rows_stays() {
    // A factor of a higher rank adds axes to the result.
    let mut wider = strided("batch", 6, 0);
    wider
        .graph_mut()
        .initializer
        .iter_mut()
        .find(|tensor| tensor.name() == "step")
        .unwrap()
        .dims = vec![1; 6];
    assert!(operators(&fuse(&wider).model).contains(&"Gather"));
    for other in [
        strided("batch", 1, 0),
        strided("3", 5, 2),
        strided("batch", 0, 0),
    ] {
        let fused = fuse(&other);
        assert!(operators(&fused.model).contains(&"Gather"));
        assert!(is_proved_or_listed(&other, &fused).is_ok());
    }
}

/// A convolution after a Pad, and a scale that folds into it.
fn behind_padding(pads: &str, pad: &str, conv: &str) -> unfold::onnx::Model {
    model(&format!(
        "input x batch 4 6 6
         const zero = 0
         const one = 1
         weight w 5 4 3 3
         scale g 5 1 1
         ints pads 8 = {pads}
         p = Pad({pad}
         c = Conv(p, w) {conv}
         n = Mul(c, g)
         y = Relu(n)
         output y"
    ))
}

#[test]
fn zero_pad_before_conv_becomes_its_padding() {
    for (pads, pad, conv) in [
        ("0 0 1 0 0 0 2 1", "x, pads)", ""),
        (
            "0 0 0 0 0 0 1 1",
            "x, pads, zero) mode=constant",
            "pads=[0,1,2,0] strides=[2,2]",
        ),
        (
            "0 0 3 0 0 0 0 3",
            "x, pads)",
            "dilations=[2,1] kernel_shape=[3,3]",
        ),
        ("0 0 1 0 0 0 2 1", "x, pads)", "auto_pad=VALID"),
    ] {
        becomes(&behind_padding(pads, pad, conv), &["Conv", "Relu"]);
    }
    // The Pad also merges if nothing else folds.
    let alone =
        "input x batch 4 6 6\n weight w 5 4 3 3\n ints pads 8 = 0 0 1 0 0 0 2 1\n p = Pad(x, pads)
                 c = Conv(p, w)\n y = Relu(c)\n output y";
    let fused = fuse(&model(alone));
    assert_eq!(operators(&fused.model), ["Conv", "Relu"]);
    assert!(is_proved_or_listed(&model(alone), &fused).is_ok());
}

#[test]
fn other_pads_before_conv_stay() {
    for (pads, pad, conv) in [
        ("0 0 1 0 0 0 2 1", "x, pads, one)", ""),
        ("0 0 1 0 0 0 2 1", "x, pads) mode=edge", ""),
        ("0 0 1 0 0 0 -1 1", "x, pads)", ""),
        ("0 0 0 0 1 0 0 0", "x, pads)", ""),
        ("0 0 1 0 0 0 1 1", "x, pads)", "auto_pad=SAME_UPPER"),
    ] {
        let before = behind_padding(pads, pad, conv);
        let fused = fuse(&before);
        assert!(operators(&fused.model).contains(&"Pad"), "{pads}, {pad}");
        assert!(is_proved_or_listed(&before, &fused).is_ok());
    }
    let read = behind_padding("0 0 1 0 0 0 2 1", "x, pads)\n output p", "");
    assert!(operators(&fuse(&read).model).contains(&"Pad"));
}

/// Computed pads are stored even if nothing else folds.
#[test]
fn computed_pads_before_conv_merge_where_nothing_folds() {
    let before = model(
        "input x batch 4 6 6
         weight w 5 4 3 3
         ints some 4 = 0 0 1 1
         ints more 4 = 0 0 2 0
         pads = Concat(some, more) axis=0
         r = Relu(x)
         p = Pad(r, pads)
         c = Conv(p, w)
         y = Relu(c)
         output y",
    );
    let fused = fuse(&before);
    assert_eq!(operators(&fused.model), ["Relu", "Conv", "Relu"]);
    assert!(is_proved_or_listed(&before, &fused).is_ok());
}

/// A Pad before a pooling, and a BatchNormalization before the Pad, which folds into the layer
/// after the pooling.
fn pooled(filling: &str, pads: &str, pool: &str) -> unfold::onnx::Model {
    model(&format!(
        "opset 19
         input x batch 4 6 6
         const filling = {filling}
         const g 4 = 1 0.5 2 3
         shift b 4
         shift m 4
         const v 4 = 4 1 4 16
         weight w 5 4 1 1
         ints pads 8 = {pads}
         f = Floor(x)
         n = BatchNormalization(f, g, b, m, v) epsilon=0.0
         p = Pad(n, pads, filling)
         q = {pool}
         y = Conv(q, w)
         output y"
    ))
}

#[test]
fn minus_infinity_pad_before_max_pool_becomes_its_padding() {
    for (pads, pool) in [
        (
            "0 0 0 0 0 0 1 1",
            "MaxPool(p) kernel_shape=[3,3] strides=[2,2]",
        ),
        (
            "0 0 1 1 0 0 0 1",
            "MaxPool(p) kernel_shape=[3,3] pads=[1,0,2,0]",
        ),
    ] {
        becomes(&pooled("-inf", pads, pool), &["Floor", "MaxPool", "Conv"]);
    }
    let around = "0 0 1 1 0 0 1 1";
    for (filling, pads, pool) in [
        // A padded zero exceeds negative numbers.
        ("0", around, "MaxPool(p) kernel_shape=[3,3]"),
        // With padding of the pooling itself, the last window may reach out by another number of
        // places.
        (
            "-inf",
            around,
            "MaxPool(p) kernel_shape=[3,3] strides=[2,2] ceil_mode=1",
        ),
        // A dilated window may skip an image of one place.
        (
            "-inf",
            around,
            "MaxPool(p) kernel_shape=[2,2] dilations=[2,2]",
        ),
        // A window covers only padding.
        ("-inf", "0 0 3 3 0 0 3 3", "MaxPool(p) kernel_shape=[3,3]"),
    ] {
        let before = pooled(filling, pads, pool);
        let fused = fuse(&before);
        assert!(
            operators(&fused.model).contains(&"Pad"),
            "{filling} {pads} {pool}"
        );
        assert!(is_proved_or_listed(&before, &fused).is_ok());
    }
}

#[test]
fn zero_pad_before_average_pool_becomes_counted_padding() {
    let mean = |behind: &str| {
        model(&format!(
            "input x batch 4 6 6
             ints pads 8 = 0 0 0 0 0 0 1 1
             const two = 2
             weight w 5 4 1 1
             f = Floor(x)
             p = Pad(f, pads)
             q = AveragePool(p) kernel_shape=[3,3] strides=[2,2] {behind}
             n = Mul(q, two)
             y = Conv(n, w)
             output y"
        ))
    };
    becomes(&mean(""), &["Floor", "AveragePool", "Conv"]);
    becomes(
        &mean("count_include_pad=1 pads=[1,0,0,1]"),
        &["Floor", "AveragePool", "Conv"],
    );
    // Some padded zeros are counted and others are not.
    assert!(operators(&fuse(&mean("pads=[1,0,0,1]")).model).contains(&"Pad"));
}

/// A shift before padding is not constant at the edges after it. Written to the stream, it is
/// constant along each channel.
#[test]
fn shift_before_a_padded_conv_folds_backward_along_the_stream() {
    let before = |image: &str| {
        model(&format!(
            "input x batch 3 {image}
             weight a 4 3 1 1
             shift ab 4
             scale s 4 1 1
             shift t 4 1 1
             weight b 6 4 1 1
             shift bb 6
             weight c 4 6 1 1
             shift cb 4
             scale u 4 1 1
             shift v 4 1 1
             weight d 5 4 3 3
             shift db 5
             r = Conv(x, a, ab)
             m = Mul(r, s)
             n = Add(m, t)
             h = Conv(n, b, bb)
             i = Relu(h)
             j = Conv(i, c, cb)
             k = Add(r, j)
             l = Mul(k, u)
             o = Add(l, v)
             y = Conv(o, d, db) pads=[1,1,1,1] strides=[2,2]
             output y"
        ))
    };
    for image in ["8 8", "height width"] {
        becomes(
            &before(image),
            &["Conv", "Conv", "Relu", "Conv", "Add", "Conv"],
        );
    }
}

#[test]
fn consecutive_transposes_or_reduce_means_merge() {
    let cases = [
        (
            "a = Transpose(x) perm=[0,2,1,3]\n y = Transpose(a) perm=[0,1,3,2]",
            vec!["Transpose"],
        ),
        (
            "a = Transpose(x)\n y = Transpose(a) perm=[1,0,2,3]",
            vec!["Transpose"],
        ),
        (
            "a = ReduceMean(x) axes=[2]\n y = ReduceMean(a) axes=[-1]",
            vec!["ReduceMean"],
        ),
        (
            "a = ReduceMean(x) axes=[2,3]\n y = ReduceMean(a) axes=[3]",
            vec!["ReduceMean"],
        ),
        // The inner value has another reader, or the first operator changes the axes.
        (
            "a = Transpose(x) perm=[0,2,1,3]\n y = Transpose(a) perm=[0,1,3,2]\n output a",
            vec!["Transpose"; 2],
        ),
        (
            "a = ReduceMean(x) axes=[2] keepdims=0\n y = ReduceMean(a) axes=[2] keepdims=0",
            vec!["ReduceMean"; 2],
        ),
    ];
    for (steps, wanted) in cases {
        let before = model(&format!("opset 13\n input x 2 3 4 5\n {steps}\n output y"));
        let after = fuse(&before);
        same(&before, &after.model, 1e-6);
        assert_eq!(operators(&after.model), wanted, "{steps}");
        assert!(is_proved_or_listed(&before, &after).is_ok(), "{steps}");
    }
}

#[test]
fn cast_like_to_the_same_type_is_removed() {
    let before = model(
        "opset 17
         input x 2 4
         input z 3
         weight w 4 4
         a = MatMul(x, w)
         c = CastLike(a, z)
         y = Relu(c)
         output y",
    );
    let after = fuse(&before);
    same(&before, &after.model, 1e-6);
    assert_eq!(operators(&after.model), ["MatMul", "Relu"]);
    assert!(is_proved_or_listed(&before, &after).is_ok());
}

#[test]
fn einsum_with_an_infinite_constant_stays() {
    let before = model(
        "opset 17
         input x 2 3
         const c 2 = 1 inf
         y = Einsum(x, c) equation=\"ab,a->ab\"
         output y",
    );
    assert_eq!(operators(&fuse(&before).model), ["Einsum"]);
}

#[test]
fn gather_nd_with_constant_channel_indices_becomes_gather() {
    let before = model(
        "input x batch 6 8
         scale g 8
         n = Mul(x, g)
         t = Transpose(n) perm=[2,0,1]
         ints i 5 1 = 0 3 -1 3 7
         p = GatherND(t, i)
         b = Transpose(p) perm=[1,2,0]
         weight w 5 3
         y = MatMul(b, w)
         output y",
    );
    becomes(&before, &["Transpose", "Gather", "Transpose", "MatMul"]);
    // Indices of two axes do not select along one axis.
    let of_two =
        model("input x 6 8\nints i 3 2 = 0 3 5 3 1 7\np = GatherND(x, i)\ny = Relu(p)\noutput y");
    assert_eq!(
        operators(&unfold::fuse(&of_two, &portable()).unwrap().model),
        ["GatherND", "Relu"]
    );
}

/// Swaps the first and the last axis of a value in a shape whose elements the lines `makes` compute
/// as `batch` and `width`.
fn swapped_extents(makes: &str) -> unfold::onnx::Model {
    model(&format!(
        "input x batch 3 width
         indices p 3
         ints zero 1 = 0
         ints one 1 = 1
         ints two 1 = 2
         ints three 1 = 3
         {makes}
         shape = Concat(width, three, batch) axis=0
         y = Reshape(x, shape)
         output y"
    ))
}

/// The number of Casts in a model.
fn casts(model: &unfold::onnx::Model) -> usize {
    let is_cast = |op: &&str| *op == "Cast";
    operators(model).iter().copied().filter(is_cast).count()
}

#[test]
fn extents_cast_to_int32_and_back_stay_in_int64() {
    // Paddle casts a shape to int32, selects extents, and casts each of them back.
    let paddle = swapped_extents(
        "s = Shape(x)
         c = Cast(s) to=6
         b = Slice(c, zero, one, zero)
         w = Gather(c, two)
         batch = Cast(b) to=7
         width = Cast(w) to=7",
    );
    let expected = ["Shape", "Slice", "Gather", "Concat", "Reshape"];
    let after = fuse(&paddle).model;
    assert_eq!(operators(&after), expected);
    same(&paddle, &after, 0.0);
    // The first selection may come before the first Cast, and the Casts may be adjacent.
    let adjacent = swapped_extents(
        "s = Shape(x)
         b = Slice(s, zero, one, zero)
         c = Cast(b) to=6
         batch = Cast(c) to=7
         width = Gather(s, two)",
    );
    let after = fuse(&adjacent).model;
    assert_eq!(operators(&after), expected);
    same(&adjacent, &after, 0.0);
}

#[test]
fn casts_of_other_integers_to_int32_and_back_stay() {
    // The elements of an input, and products of extents, may exceed the range of int32.
    for cast in ["c = Cast(p) to=6", "m = Mul(s, two)\n c = Cast(m) to=6"] {
        let before = swapped_extents(&format!(
            "s = Shape(x)
             {cast}
             b = Slice(c, zero, one, zero)
             batch = Cast(b) to=7
             width = Gather(s, two)"
        ));
        assert_eq!(casts(&fuse(&before).model), 2, "{cast}");
    }
}
