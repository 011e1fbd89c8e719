//! Affines on a residual stream change its basis, with twins in which the basis stays.

use crate::common::portable;
use ndarray::arr1;
use unfold::onnx::proto::GraphProto;
use unfold::onnx::{DataType, Model};
use unfold::plan::{Basis, Outcome};
use unfold::refusal::Reason;
use unfold::{FuseOptions, Fused};

use crate::common::reference::constant;
use crate::common::text::model;
use crate::common::{Attr, fuse, initializer, node, operators, retype, undeclared};
use crate::{folded, is_as_planned, same};

/// Layers `x = g·(x + f(x)) + t`, with two linear operators in each `f`, behind a stem and before a
/// head.
fn post_norm(layers: usize, scale: &str, more: &str) -> Model {
    behind("x0 = MatMul(i, stem)", layers, scale, more)
}

/// The same layers behind a Relu, which absorbs no scale as the first writer of the stream.
fn behind_relu(layers: usize, scale: &str, more: &str) -> Model {
    behind("z = MatMul(i, stem)\n x0 = Relu(z)", layers, scale, more)
}

fn behind(stem: &str, layers: usize, scale: &str, more: &str) -> Model {
    let stem = format!("input i batch 3 4\n weight stem 4 4\n {stem}");
    let layers: Vec<String> = (0..layers).map(|place| layer(place, scale)).collect();
    let (layers, last) = (layers.join("\n"), layers.len());
    model(&format!(
        "{stem}
         {layers}
         weight head 4 2
         shift bias 2
         {more}
         o = MatMul(x{last}, head)
         y = Add(o, bias)
         output y"
    ))
}

fn layer(place: usize, scale: &str) -> String {
    let next = place + 1;
    format!(
        "weight a{place} 4 6
         shift b{place} 6
         weight c{place} 6 4
         shift d{place} 4
         const g{place} 4 = {scale}
         shift t{place} 4
         h{place} = MatMul(x{place}, a{place})
         i{place} = Add(h{place}, b{place})
         r{place} = Relu(i{place})
         k{place} = MatMul(r{place}, c{place})
         f{place} = Add(k{place}, d{place})
         s{place} = Add(x{place}, f{place})
         m{place} = Mul(s{place}, g{place})
         x{next} = Add(m{place}, t{place})"
    )
}

/// Powers of two, by which divisions are exact.
const SCALE: &str = "2 0.5 -1 4";

/// Asserts that a model does not change. Returns the reason why its first site does not fold
/// forward.
fn assert_unchanged(model: &Model) -> Reason {
    let fused = fuse(model);
    is_as_planned(model, &fused);
    assert!(
        fused.plan.is_empty() && fused.model.proto == model.proto,
        "{:#?}",
        fused.plan.sites
    );
    forward_refusal(&fused, 0)
}

fn forward_refusal(fused: &Fused, site: usize) -> Reason {
    match &fused.plan.sites[site].post {
        Some(Outcome::Kept { forward: why, .. } | Outcome::Partly { scale: why, .. }) => {
            why.reason.clone()
        }
        outcome => panic!("{outcome:?}"),
    }
}

/// The number of folded sites.
fn folded_sites(fused: &Fused) -> usize {
    fused
        .plan
        .sites
        .iter()
        .filter(|site| site.is_folded())
        .count()
}

#[test]
fn post_norm_affines_on_a_residual_stream_fold() {
    for layers in [1, 2, 5] {
        let before = post_norm(layers, SCALE, "");
        let after = folded(&before);
        assert_eq!(
            operators(&after).len(),
            operators(&before).len() - 2 * layers
        );
        assert!(!operators(&after).contains(&"Mul"));
    }
}

#[test]
fn plan_reports_the_basis_of_the_stream_after_each_site() {
    let told = |layers| -> Vec<Option<Basis>> {
        crate::fused(&post_norm(layers, SCALE, ""))
            .plan
            .sites
            .iter()
            .map(|site| site.basis)
            .collect()
    };
    let [once, twice] = [(0.5, 4.0), (0.25, 16.0)].map(|(least, most)| Some(Basis { least, most }));
    // Behind the last site there is no stream.
    assert_eq!(told(1), [None]);
    assert_eq!(told(3), [once, twice, None]);
}

#[test]
fn stream_output_keeps_one_scale_of_all_normalizers() {
    for layers in [2, 3] {
        let before = behind_relu(layers, SCALE, &format!("output x{layers}"));
        let fused = crate::fused(&before);
        assert_eq!(
            (folded_sites(&fused), forward_refusal(&fused, layers - 1)),
            (layers - 1, Reason::GraphOutput)
        );
        let after = operators(&fused.model);
        assert_eq!(after.iter().filter(|&&op| op == "Mul").count(), 1);
        // The last shift folds into the summand before it.
        assert_eq!(after.len(), operators(&before).len() - 2 * (layers - 1) - 1);
    }
    // A scale that stays remains one operator.
    let before = model(&format!(
        "input i batch 4
         weight w 4 4
         const one 4 = 1 1 1 1
         const g 4 = {SCALE}
         shift t 4
         shift mean 4
         r = Relu(i)
         m = BatchNormalization(r, g, t, mean, one) epsilon=0.0
         h = MatMul(m, w)
         q = Relu(h)
         f = MatMul(q, w)
         s = Add(m, f)
         y = BatchNormalization(s, g, t, mean, one) epsilon=0.0
         output y"
    ));
    let after = [
        "Relu",
        "MatMul",
        "Add",
        "Relu",
        "MatMul",
        "Add",
        "BatchNormalization",
    ];
    assert_eq!(operators(&crate::fused(&before).model), after);
}

#[test]
fn scale_at_a_stream_output_folds_into_every_writer() {
    for layers in [1, 2, 3] {
        let before = post_norm(layers, SCALE, &format!("output x{layers}"));
        let after = folded(&before);
        assert_eq!(
            operators(&after).len(),
            operators(&before).len() - 2 * layers
        );
        // The first weight is multiplied by the scales of all layers.
        let stem = |model: &Model| {
            let weight = constant(initializer(model, &model.graph().node[0].input[1])).unwrap();
            weight.floats().unwrap().clone()
        };
        let scale = arr1(&[2.0, 0.5, -1.0, 4.0].map(|s: f64| s.powi(layers as i32)));
        assert_eq!(stem(&after), stem(&before) * scale);
    }
    // Weights that read the stream absorb the inverse of the scale, but an activation cannot.
    let pre_norm = |reads: &str, scale: &str| {
        model(&format!(
            "input i batch 3 4
             weight stem 4 4
             x = MatMul(i, stem)
             weight a 4 4
             weight b 4 4
             shift u 4
             const g 4 = {scale}
             shift t 4
             h = {reads}
             r = Relu(h)
             e = MatMul(r, b)
             f = Add(e, u)
             s = Add(x, f)
             m = Mul(s, g)
             y = Add(m, t)
             output y"
        ))
    };
    let after = folded(&pre_norm("MatMul(x, a)", SCALE));
    assert_eq!(
        operators(&after),
        ["MatMul", "MatMul", "Relu", "MatMul", "Add", "Add"]
    );
    for (reads, scale) in [
        ("Sigmoid(x)", SCALE),
        ("Mul(x, x)", SCALE),
        ("Transpose(x)", SCALE),
        ("MatMul(x, a)", "2 0 1 1"),
    ] {
        let before = pre_norm(reads, scale);
        let fused = fuse(&before);
        is_as_planned(&before, &fused);
        assert_eq!(
            (folded_sites(&fused), forward_refusal(&fused, 0)),
            (0, Reason::GraphOutput),
            "{reads}"
        );
        same(&before, &fused.model, 1e-12);
    }
}

#[test]
fn scale_of_one_token_folds_into_its_whole_stream() {
    // A class token is joined with the tokens twice, and at the end only it is read.
    let before = model(&format!(
        "input i 1 3 4
         weight stem 4 4
         weight first 1 1 4
         weight a 4 4\n weight b 4 4\n weight c 4 4
         shift u 4
         x = MatMul(i, stem)
         beside = Concat(first, x) axis=1
         p = MatMul(beside, a)
         q = ReduceMean(p) axes=[1] keepdims=1
         r = Relu(q)
         e = MatMul(r, b)
         f = Add(e, u)
         one = Add(first, f)
         all = Concat(one, x) axis=1
         ints zero 1 = 0\n ints till 1 = 1\n ints along 1 = 1
         n = Slice(all, zero, till, along)
         const g 4 = {SCALE}
         shift t 4
         m = Mul(n, g)
         y = Add(m, t)
         output y"
    ));
    let after = fuse(&before);
    is_as_planned(&before, &after);
    same(&before, &after.model, 0.0);
    assert!(
        !operators(&after.model).contains(&"Mul"),
        "{:#?}",
        after.plan.sites
    );
}

#[test]
fn post_norm_affines_fold_around_attention_heads() {
    // Attention without the Softmax, whose results are not exact.
    let attention = |sum: &str| {
        model(&format!(
            "input i batch 3 4
             weight stem 4 4
             x0 = MatMul(i, stem)
             {}
             weight q 4 4\n weight k 4 4\n weight v 4 4\n weight o 4 4
             shift p 4
             ints heads 4 = 0 0 2 2
             ints whole 3 = 0 0 4
             xq = MatMul(x1, q)\n aq = Reshape(xq, heads)\n bq = Transpose(aq) perm=[0,2,1,3]
             xk = MatMul(x1, k)\n ak = Reshape(xk, heads)\n bk = Transpose(ak) perm=[0,2,3,1]
             xv = MatMul(x1, v)\n av = Reshape(xv, heads)\n bv = Transpose(av) perm=[0,2,1,3]
             e = MatMul(bq, bk)
             z = MatMul(e, bv)
             zt = Transpose(z) perm=[0,2,1,3]
             zr = Reshape(zt, whole)
             zo = MatMul(zr, o)
             zb = Add(zo, p)
             s = {sum}
             const g 4 = {SCALE}
             shift t 4
             n = Mul(s, g)
             m = Add(n, t)
             weight head 4 2
             y = MatMul(m, head)
             output y",
            layer(0, SCALE),
        ))
    };
    for sum in ["Add(x1, zb)", "Add(zb, x1)", "Sub(x1, zb)", "Sub(zb, x1)"] {
        let after = folded(&attention(sum));
        assert!(!operators(&after).contains(&"Mul"), "{sum}");
    }
}

#[test]
fn stream_with_an_output_or_nonlinear_reader_keeps_its_basis() {
    let with = |more: &str| behind_relu(1, SCALE, more);
    let seen = fuse(&with("output x1"));
    assert!(!seen.plan.sites[0].is_folded());
    assert_eq!(forward_refusal(&seen, 0), Reason::GraphOutput);
    // With two layers, a stream follows the first normalizer and is read in the middle.
    let middle = |more: &str| fuse(&behind_relu(2, SCALE, more));
    for (more, reason) in [
        ("output x1", Reason::GraphOutput),
        ("q = Relu(x1)\n output q", Reason::ResidualStream),
        (
            "q = LayerNormalization(x1, g1)\n output q",
            Reason::ResidualStream,
        ),
        // A summand of the stream would change.
        ("output f1", Reason::ResidualStream),
        ("q = Relu(f1)\n output q", Reason::ResidualStream),
        ("q = Relu(s1)\n output q", Reason::ResidualStream),
    ] {
        let before = behind_relu(2, SCALE, more);
        let fused = middle(more);
        same(&before, &fused.model, 0.0);
        assert_eq!(
            (folded_sites(&fused), forward_refusal(&fused, 0)),
            (1, reason),
            "{more}"
        );
    }
}

#[test]
fn stream_read_by_an_if_body_keeps_its_basis() {
    let mut before = behind_relu(2, SCALE, "condition c");
    let body = |op: &str| {
        let mut body = GraphProto::default();
        body.node.push(node(op, &["x1"], &["inner"], vec![]));
        body.output.push(undeclared("inner"));
        Attr::from(body)
    };
    let branches = vec![
        ("then_branch", body("Identity")),
        ("else_branch", body("Neg")),
    ];
    before
        .graph_mut()
        .node
        .push(node("If", &["c"], &["q"], branches));
    before.graph_mut().output.push(undeclared("q"));
    let fused = fuse(&before);
    same(&before, &fused.model, 0.0);
    assert_eq!(folded_sites(&fused), 1);
}

#[test]
fn stream_summands_must_have_a_linear_producer() {
    let sum = |more: &str, added: &str| {
        model(&format!(
            "input i batch 3 4
             input j batch 3 4
             weight w 4 4
             weight v 4 4
             const g 4 = {SCALE}
             r = Relu(i)
             n = Mul(r, g)
             {more}
             s = Add(n, {added})
             y = MatMul(s, v)
             output y"
        ))
    };
    folded(&sum(
        "h = MatMul(n, w)\n q = Relu(h)\n f = MatMul(q, w)",
        "f",
    ));
    folded(&sum("f = MatMul(j, w)", "f"));
    assert_eq!(assert_unchanged(&sum("", "j")), Reason::ResidualStream);
    assert_eq!(
        assert_unchanged(&sum("f = Relu(j)", "f")),
        Reason::ResidualStream
    );
    assert_eq!(
        assert_unchanged(&sum("h = MatMul(j, w)\n f = Sigmoid(h)", "f")),
        Reason::ResidualStream
    );
    // The value is read on both sides of the normalizer, in two bases.
    assert_eq!(
        assert_unchanged(&sum(
            "h = MatMul(n, w)\n q = Relu(h)\n f = Add(n, q)\n z = Mul(f, f)",
            "z"
        )),
        Reason::ResidualStream
    );
}

#[test]
fn basis_of_zero_or_out_of_range_is_refused() {
    folded(&post_norm(2, "0.0009765625 1024 1 1", ""));
    let wide = 2_f64.powi(-41);
    for scale in [
        "2 0 1 1".to_owned(),
        format!("1 1 1 {wide}"),
        format!("1 1 1 {}", 1.0 / wide),
    ] {
        let before = post_norm(2, &scale, "");
        let fused = fuse(&before);
        same(&before, &fused.model, 1e-12);
        assert_eq!(
            (folded_sites(&fused), forward_refusal(&fused, 0)),
            (1, Reason::ResidualStream),
            "{scale}"
        );
    }
}

#[test]
fn float16_stream_is_not_enlarged() {
    let half = |scale: f32| {
        let mut half = model(&format!(
            "half i batch 3 4
             const w 4 4 = 1 2 0 0 0 1 2 0 0 0 1 2 1 0 0 1
             const v 4 4 = 1 2 0 0 0 1 2 0 0 0 1 3 1 0 0 1
             const g 4 = {scale} {scale} {scale} 1
             r = Relu(i)
             n = Mul(r, g)
             h = MatMul(n, w)
             q = Relu(h)
             f = MatMul(q, w)
             s = Add(n, f)
             y = MatMul(s, v)
             output y"
        ));
        retype(&mut half, &["w", "v", "g"], DataType::Float16);
        half
    };
    assert_eq!(folded_sites(&fuse(&half(2.0))), 1);
    assert_eq!(assert_unchanged(&half(0.5)), Reason::ResidualStream);
    assert_eq!(assert_unchanged(&half(32.0)), Reason::ResidualStream);
}

/// A stream that a table writes and the same table reads. A second copy of the table exceeds the
/// limit on growth.
fn tied() -> Model {
    model(&format!(
        "indices ids batch 3
         weight table 2048 4
         x0 = Gather(table, ids)
         {}
         u = Transpose(table) perm=[1,0]
         y = MatMul(x4, u)
         output y",
        [0, 1, 2, 3].map(|place| layer(place, SCALE)).join("\n"),
    ))
}

#[test]
fn tied_embedding_is_copied_for_a_new_basis_or_refused() {
    let fused = fuse(&tied());
    same(&tied(), &fused.model, 0.0);
    assert_eq!((folded_sites(&fused), fused.plan.growth), (4, 2048 * 4 * 4));
    // If no copy of the table is allowed, the last site stays, and the others fold toward it.
    let options = FuseOptions {
        max_growth: 0.0,
        ..portable()
    };
    let fused = unfold::fuse(&tied(), &options).unwrap();
    same(&tied(), &fused.model, 0.0);
    assert_eq!((folded_sites(&fused), fused.plan.growth), (3, 0));
    assert!(matches!(forward_refusal(&fused, 3), Reason::Growth(_)));
}

#[test]
fn product_of_a_value_with_itself_absorbs_no_scale() {
    let plain = "v = MatMul(x, w)";
    let norm = "i = MatMul(x, w)\n v = LayerNormalization(i, l)";
    for v in [plain, norm] {
        for product in [
            "p = Mul(v, v)",
            "p = MatMul(v, v)",
            "u = Transpose(v)\n p = Mul(v, u)",
            "u = Identity(v)\n p = MatMul(v, u)",
            "p = Einsum(v, v) equation=ab,bc->ac",
            "p = Einsum(v, v) equation=...b,...b->...",
        ] {
            for scale in ["const g = -1", "const g 1 = -1", "const g 4 = 1 -1 1 -1"] {
                let before = model(&format!(
                    "input x 4 4
                     weight w 4 4
                     const l 4 = 2 1 0.5 1
                     {v}
                     {product}
                     {scale}
                     y = Mul(p, g)
                     output y"
                ));
                let after = fuse(&before);
                let there = operators(&before).iter().filter(|op| **op == "Mul").count();
                assert_eq!(
                    operators(&after.model)
                        .iter()
                        .filter(|op| **op == "Mul")
                        .count(),
                    there,
                    "{product}"
                );
            }
            // It absorbs none either if the product has other readers, which would have to
            // compensate.
            let reads = ["z = Mul(p, t)", "z = MatMul(p, w)", "z = Relu(p)"];
            for (scale, read) in ["-1", "2", "0.5", "-4"]
                .iter()
                .flat_map(|scale| reads.map(|read| (scale, read)))
            {
                let before = model(&format!(
                    "input x 4 4
                     weight w 4 4
                     const l 4 = 2 1 0.5 1
                     shift t 4
                     {v}
                     {product}
                     const g = {scale}
                     y = Mul(p, g)
                     {read}
                     output y z"
                ));
                let after = fuse(&before);
                match product.contains("...") {
                    true => crate::common::is_proved_or_listed(&before, &after).unwrap(),
                    false => same(&before, &after.model, 1e-9),
                }
            }
        }
    }
}

#[test]
fn shift_stays_where_several_writers_would_need_a_copy_or_an_add() {
    // The scale folds alone, and the shift stays.
    let several = model(
        "input x batch 4 6
         weight a 6 4
         weight b 6 4
         weight c 6 4
         u = MatMul(x, a)
         v = MatMul(x, b)
         w = MatMul(x, c)
         mean = ReduceMean(u) axes=[1]
         all = Concat(mean, u, v, w) axis=1
         const g 4 = 2 0.5 -1 4
         shift t 4
         n = Mul(all, g)
         m = Add(n, t)
         y = Tanh(m)
         output y",
    );
    let adds = |model: &Model| {
        operators(model)
            .iter()
            .filter(|op| matches!(**op, "Add" | "Mul"))
            .count()
    };
    assert_eq!(adds(&fuse(&several).model), 1);
    // To absorb the shift, one of the two Gathers would need another table. The shift stays, as
    // does an Add of the sum.
    let picked = model(
        "indices i batch 3
         indices j batch 3
         weight table 9 4
         a = Gather(table, i)
         b = Gather(table, j)
         s = Add(a, b)
         c = Concat(s, a) axis=1
         const g 4 = 2 0.5 -1 4
         const h 4 = 1 2 0.5 -1
         shift t 4
         n = Mul(c, g)
         m = Mul(n, h)
         k = Add(m, t)
         y = Tanh(k)
         output y",
    );
    let after = fuse(&picked);
    assert_eq!(
        (after.plan.growth, adds(&after.model)),
        (0, 2),
        "{:#?}",
        after.plan.sites
    );
}

#[test]
fn table_read_by_several_gathers_is_scaled_once() {
    // As in LayoutLM, the embeddings of words and of the ends of their boxes are added.
    let of = |more: &str| {
        model(&format!(
            "indices ids batch 3
             indices left batch 3
             indices right batch 3
             weight words 9 4
             weight places 9 4
             a = Gather(words, ids)
             b = Gather(places, left)
             c = Gather(places, right)
             d = Add(b, c)
             x0 = Add(a, d)
             {}
             output x1
             {more}",
            layer(0, SCALE)
        ))
    };
    let before = of("");
    let after = folded(&before);
    assert_eq!(
        after.graph().initializer.len(),
        before.graph().initializer.len() - 2
    );
    let table = |model: &Model| {
        let gather = model
            .graph()
            .node
            .iter()
            .find(|node| node.output == ["b"])
            .unwrap();
        constant(initializer(model, &gather.input[0]))
            .unwrap()
            .floats()
            .unwrap()
            .clone()
    };
    assert_eq!(table(&after), table(&before) * arr1(&[2.0, 0.5, -1.0, 4.0]));
    // Another reader needs the original table.
    let fused = fuse(&of("e = Gather(places, ids)\n output e"));
    assert_eq!(
        (folded_sites(&fused), forward_refusal(&fused, 0)),
        (0, Reason::GraphOutput)
    );
}

#[test]
fn weights_shared_by_all_layers_are_refused_as_growth() {
    let mut shared = post_norm(4, SCALE, "");
    for node in &mut shared.graph_mut().node {
        for input in &mut node.input {
            if input.starts_with(['a', 'c']) {
                input.replace_range(1.., "0");
            }
        }
    }
    let fused = unfold::fuse(&shared, &portable()).unwrap();
    same(&shared, &fused.model, 0.0);
    assert_eq!(fused.plan.growth, 0);
    assert!(matches!(forward_refusal(&fused, 0), Reason::Growth(_)));
}

/// A sum of which one operand has another reader, followed by an affine. The result is a graph
/// output.
fn last_of_a_stream(data_type: &str, scale: &str, bias: &str) -> Model {
    model(&format!(
        "{data_type} z batch 3 4
         weight a 4 4
         weight c 4 4
         shift d 4
         const g 4 = {scale}
         shift t 4
         r = Relu(z)
         k = MatMul(r, c)
         f = {bias}
         u = Add(z, f)
         m = Mul(u, g)
         y = Add(m, t)
         output y"
    ))
}

#[test]
fn shift_at_a_stream_end_folds_into_the_added_bias() {
    let before = last_of_a_stream("input", SCALE, "Add(k, d)");
    let after = fuse(&before);
    is_as_planned(&before, &after);
    assert_eq!(
        operators(&after.model),
        ["Relu", "MatMul", "Add", "Add", "Mul"]
    );
    assert!(matches!(
        after.plan.sites[0].post,
        Some(Outcome::Partly { .. })
    ));
    same(&before, &after.model, 1e-6);
    // Without a bias nothing absorbs the shift. Division by 0 is impossible, and by 0.001 it
    // exceeds the range of half precision.
    for other in [
        last_of_a_stream("input", SCALE, "Identity(k)"),
        last_of_a_stream("input", "2 0 -1 4", "Add(k, d)"),
        last_of_a_stream("half", "2 0.001 -1 4", "Add(k, d)"),
    ] {
        let after = fuse(&other);
        assert!(
            matches!(after.plan.sites[0].post, Some(Outcome::Kept { .. })),
            "{:#?}",
            after.plan.sites
        );
    }
}

/// A class token joined with the scaled and shifted value.
fn with_token(token: &str, scale: &str, more: &str) -> Model {
    model(&format!(
        "input x batch 3 4
         weight class 1 1 4
         const g 4 = {scale}
         shift t 4
         weight head 4 2
         {more}
         ints zero 1 = 0
         ints one 2 = 1 1
         s = Shape(x)
         b = Gather(s, zero) axis=0
         e = Concat(b, one) axis=0
         c = {token}
         m = Mul(x, g)
         n = Add(m, t)
         j = Concat(c, n) axis=1
         y = MatMul(j, head)
         output y"
    ))
}

#[test]
fn class_token_absorbs_the_inverse_affine() {
    let before = with_token("Expand(class, e)", SCALE, "");
    let after = fuse(&before);
    is_as_planned(&before, &after);
    assert!(after.plan.sites[0].is_folded(), "{:#?}", after.plan.sites);
    assert!(!operators(&after.model).contains(&"Mul"));
    let class = after
        .plan
        .tensors
        .iter()
        .find(|tensor| tensor.name.starts_with("class"))
        .unwrap();
    assert_eq!(class.recipe.shape(), [1, 1, 4]);
    same(&before, &after.model, 1e-6);

    for more in ["", "p = MatMul(class, head)\noutput p"] {
        // Division by 0 is impossible, and a token with other readers is copied.
        let before = with_token(
            "Expand(class, e)",
            if more.is_empty() { "2 0 -1 4" } else { SCALE },
            more,
        );
        let after = fuse(&before);
        is_as_planned(&before, &after);
        assert_eq!(
            after.plan.sites[0].is_folded(),
            !more.is_empty() && after.plan.growth > 0,
            "{more}"
        );
        same(&before, &after.model, 1e-6);
    }
    let given = fuse(&with_token("Identity(given)", SCALE, "input given 4 1 4"));
    assert!(!given.plan.sites[0].is_folded());
}

#[test]
fn positions_absorb_the_inverse_scale_of_the_stream() {
    let before = model(&format!(
        "input x batch 3 4
         const g 4 = {SCALE}
         shift t 4
         weight places 1 3 4
         weight a 4 4
         weight c 4 4
         weight head 4 2
         m = Mul(x, g)
         n = Add(m, t)
         p = Add(n, places)
         h = MatMul(p, a)
         r = Relu(h)
         k = MatMul(r, c)
         z = Add(p, k)
         y = MatMul(z, head)
         output y"
    ));
    let after = fuse(&before);
    is_as_planned(&before, &after);
    assert!(after.plan.sites[0].is_folded(), "{:#?}", after.plan.sites);
    let places = after
        .plan
        .tensors
        .iter()
        .find(|tensor| tensor.name.starts_with("places"))
        .unwrap();
    assert_eq!(places.recipe.shape(), [1, 3, 4]);
    assert!(!operators(&after.model).contains(&"Mul"));
    same(&before, &after.model, 1e-6);
}

/// Heads of an open number of tokens, with a scale and a shift for the channels of one head.
#[test]
fn affine_per_head_folds_with_unknown_token_count() {
    let before = model(
        "input x batch tokens 5
             weight w 5 12
             scale g 4
             shift t 4
             weight v 12 2
             ints flat 2 = -1 4
             ints wide 3 = -1 3 4
             ints whole 3 = 1 -1 12
             k = MatMul(x, w)
             f = Reshape(k, flat)
             m = Mul(f, g)
             n = Add(m, t)
             r = Relu(n)
             h = Reshape(r, wide)
             j = Reshape(h, whole)
             y = MatMul(j, v)
             output y",
    );
    let after = fuse(&before);
    is_as_planned(&before, &after);
    assert!(after.plan.sites[0].is_folded(), "{:#?}", after.plan.sites);
    assert!(!operators(&after.model).contains(&"Mul"));
    same(&before, &after.model, 1e-6);
}

/// A BatchNormalization is one operator, but two once it is rewritten, which is more than the one
/// Mul that would be removed.
#[test]
fn scale_is_not_spread_over_more_batch_norms_than_it_saves() {
    let before = model(&format!(
        "input x batch 3 6 6
         weight stem 4 3 3 3
         const a 4 = {SCALE}
         shift b 4
         shift mean 4
         const variance 4 = {SCALE}
         const s 4 1 1 = {SCALE}
         weight v 4 4 3 3
         weight w 4 4 3 3
         x0 = Conv(x, stem) pads=[1,1,1,1]
         n1 = BatchNormalization(x0, a, b, mean, variance)
         h1 = Tanh(n1)
         c1 = Conv(h1, v) pads=[1,1,1,1]
         x1 = Add(x0, c1)
         n2 = BatchNormalization(x1, a, b, mean, variance)
         h2 = Tanh(n2)
         c2 = Conv(h2, w) pads=[1,1,1,1]
         x2 = Add(x1, c2)
         y = Mul(x2, s)
         output y"
    ));
    let after = fuse(&before);
    is_as_planned(&before, &after);
    assert_eq!(operators(&after.model), operators(&before));
}

#[test]
fn scale_at_an_output_folds_backward_past_a_token_gather() {
    for taken in [
        "k = Gather(e, i) axis=1",
        "a = Gather(e, j) axis=1\n k = Squeeze(a, one)",
    ] {
        let before = model(&format!(
            "input x 2 5 6
             weight w 6 8
             shift b 8
             scale s 8
             shift t 8
             ints i = 2
             ints j 1 = 2
             ints one 1 = 1
             p = MatMul(x, w)
             e = Add(p, b)
             {taken}
             m = Mul(k, s)
             y = Add(m, t)
             output y"
        ));
        let after = folded(&before);
        // The token is selected before the product.
        assert_eq!(operators(&after), ["Slice", "MatMul", "Add", "Squeeze"]);
    }
}

#[test]
fn where_fill_value_absorbs_the_inverse_affine() {
    let masked = |constant: &str, chosen: &str| {
        model(&format!(
            "input x 2 5 4
             input m 2 5 1
             {constant}
             const s 4 = 2 4 0.5 -2
             shift t 4
             weight w 4 3
             const half = 0.5
             is = Greater(m, half)
             a = Mul(x, s)
             b = Add(a, t)
             y = Where({chosen})
             z = MatMul(y, w)
             output z"
        ))
    };
    for chosen in ["is, c, b", "is, b, c"] {
        for constant in [
            "shift c 4",
            "const c = 0",
            "const c 1 = 1.5",
            "shift c 2 5 4",
        ] {
            let after = folded(&masked(constant, chosen));
            assert_eq!(
                operators(&after),
                ["Greater", "Where", "MatMul", "Add"],
                "{constant}"
            );
        }
        // A large negative number may be a mask. Divided by the scales, it would differ between the
        // channels of a fully hidden row.
        for hides in ["-3.4e38", "-1e4"] {
            let hidden = fuse(&masked(&format!("const c = {hides}"), chosen));
            assert!(
                !hidden.plan.sites[0].is_folded(),
                "{:#?}",
                hidden.plan.sites
            );
        }
    }
}

/// A stem, blocks `x + conv(pad(s·x + t))` on an image with open extents, and a last affine before
/// a head.
fn padded_blocks(blocks: usize, first: &str, scale: &str) -> Model {
    let ones = " 1 1";
    let block = |n: usize| {
        format!(
            "const s{n} 2{ones} = 2 {scale}\n shift t{n} 2{ones}\n weight w{n} 4 2 3 3\n shift b{n} 4\n weight v{n} 2 4 1 1\n shift c{n} 2
             m{n} = Mul(x{n}, s{n})\n a{n} = Add(m{n}, t{n})\n h{n} = Conv(a{n}, w{n}, b{n}) pads=[1,1,1,1]
             r{n} = Relu(h{n})\n f{n} = Conv(r{n}, v{n}, c{n})\n x{} = Add(x{n}, f{n})",
            n + 1
        )
    };
    let all: Vec<String> = (0..blocks).map(block).collect();
    model(&format!(
        "input i 1 3 height width\n weight stem 2 3 1 1\n shift sb 2\n {first}\n {}
         const s 2{ones} = 4 2\n shift t 2{ones}\n weight w 3 2 1 1\n shift b 3
         m = Mul(x{blocks}, s)\n a = Add(m, t)\n y = Conv(a, w, b)\n output y",
        all.join("\n ")
    ))
}

#[test]
fn shift_before_padded_convs_folds_into_the_stream_writers() {
    for blocks in [1, 3] {
        let after = folded(&padded_blocks(blocks, "x0 = Conv(i, stem, sb)", "0.5"));
        let left = operators(&after);
        assert_eq!(left.len(), 2 + 4 * blocks, "{left:?}");
        assert!(!left.contains(&"Mul"), "{left:?}");
    }
    // The first block has no writer before it that absorbs its shift.
    let kept = fuse(&padded_blocks(
        2,
        "e = Conv(i, stem, sb)\n x0 = Relu(e)",
        "0.5",
    ));
    let outcomes: Vec<bool> = kept
        .plan
        .sites
        .iter()
        .map(|site| site.is_folded())
        .collect();
    assert_eq!(outcomes, [false, true, true]);
    same(
        &padded_blocks(2, "e = Conv(i, stem, sb)\n x0 = Relu(e)", "0.5"),
        &kept.model,
        1e-6,
    );
}

#[test]
fn where_with_zeros_is_exact_after_its_operands_change() {
    let before = model(
        "input m 2 5 1
         const half = 0.5
         const zero 4 = 0 0 0 0
         shift c 4
         scale g 4
         shift t 4
         const mu 4 = 1 2 3 4
         const v 4 = 4 1 16 0.25
         const s 4 = 2 4 0.5 -2
         is = Greater(m, half)
         y = Where(is, c, zero)
         a = Transpose(y) perm=[0,2,1]
         b = BatchNormalization(a, g, t, mu, v)
         d = Transpose(b) perm=[0,2,1]
         z = Mul(d, s)
         output z",
    );
    same(&before, &fuse(&before).model, 1e-6);
}

#[test]
fn shift_too_large_beside_its_stream_stays() {
    let kept = |scale: &str| {
        let plan = fuse(&padded_blocks(1, "x0 = Conv(i, stem, sb)", scale)).plan;
        plan.sites.iter().filter(|site| !site.is_folded()).count()
    };
    assert_eq!((kept("0.5"), kept("1e-6")), (0, 1));
}
