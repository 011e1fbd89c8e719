//! Scales before a product with a computed factor: weights of experts, which a Gather selects, and
//! keys.

use ndarray::{ArrayD, IxDyn};
use unfold::onnx::tensor::{make, read_f64};
use unfold::onnx::{DataType, Externals, Model};
use unfold::plan::Outcome;
use unfold::refusal::Reason;

use crate::common::text::model;
use crate::common::{fuse, initializer, is_proved_or_listed, operators, retype};
use crate::{folded, fused, in_type, kept};

/// A normalizer after an activation, the layer of a token's expert, and a layer that all tokens
/// share.
fn picked(table: &str, how: &str) -> Model {
    model(&format!(
        "input x batch 3 6
         indices ids batch
         h = Relu(x)
         const g 6 = 2 -1 0.5 1 4 -2
         n = Mul(h, g)
         weight w 6 2
         other = MatMul(n, w)
         {table}
         {how}
         output y other"
    ))
}

fn muls(model: &Model) -> usize {
    operators(model).iter().filter(|op| **op == "Mul").count()
}

#[test]
fn gathered_expert_weights_absorb_a_scale() {
    let turned = "e = Gather(table, ids)\n t = Transpose(e) perm=[0,2,1]\n y = MatMul(n, t)";
    for (table, how) in [
        (
            "weight table 3 6 4",
            "e = Gather(table, ids)\n y = MatMul(n, e)",
        ),
        ("weight table 3 4 6", turned),
        (
            "weight table 6 3 4",
            "e = Gather(table, ids) axis=1\n t = Transpose(e) perm=[1,0,2]\n y = MatMul(n, t)",
        ),
        (
            "weight table 3 4 6",
            "e = Gather(table, ids)\n t = Transpose(n) perm=[0,2,1]\n y = MatMul(e, t)",
        ),
        (
            "weight table 3 6 4",
            "e = Gather(table, ids)\n y = Einsum(n, e) equation=btc,bcd->btd",
        ),
        (
            "weight table 3 4 6",
            "e = Gather(table, ids)\n y = Einsum(e, n) equation=bdc,btc->btd",
        ),
        (
            "weight table 3 6 4",
            "a = Gather(table, ids)\n b = Gather(table, ids)\n p = MatMul(n, a)\n q = MatMul(n, b)\n y = Add(p, q)",
        ),
    ] {
        let after = folded(&picked(table, how));
        assert_eq!(muls(&after), 0, "{how}");
        // The folded table is stored once, even if several Gathers read it.
        assert_eq!(after.graph().initializer.len(), 2, "{how}");
    }
}

/// The model of one sequence, with one expert for all tokens.
fn of_one(table: &str, how: &str) -> Model {
    model(&format!(
        "input x 5 6
         indices one
         h = Relu(x)
         const g 6 = 2 -1 0.5 1 4 -2
         n = Mul(h, g)
         weight c 4
         {table}
         {how}
         output y"
    ))
}

#[test]
fn gathered_matrix_of_one_expert_absorbs_a_scale() {
    for (table, how) in [
        (
            "weight table 3 6 4",
            "e = Gather(table, one)\n y = Gemm(n, e)",
        ),
        (
            "weight table 3 4 6",
            "e = Gather(table, one)\n y = Gemm(n, e, c) transB=1 beta=2.0",
        ),
        (
            "weight table 3 4 6",
            "e = Gather(table, one)\n t = Transpose(n)\n y = Gemm(e, t) alpha=0.5",
        ),
        (
            "weight table 3 6",
            "e = Gather(table, one)\n y = MatMul(n, e)",
        ),
    ] {
        assert_eq!(muls(&folded(&of_one(table, how))), 0, "{how}");
    }
    let before = of_one(
        "weight table 3 4 6",
        "e = Gather(table, one)\n y = com.microsoft.FusedMatMul(n, e) transB=1",
    );
    let after = fuse(&before);
    assert_eq!(muls(&after.model), 0);
    is_proved_or_listed(&before, &after).unwrap();
}

#[test]
fn shift_stays_before_a_gathered_expert_weight() {
    let how = "m = Add(n, t)\n e = Gather(table, one)\n y = MatMul(m, e)";
    let before = of_one("shift t 6\n weight table 3 6 4", how);
    let after = fused(&before);
    let [site] = &after.plan.sites[..] else {
        panic!("{:#?}", after.plan.sites)
    };
    assert!(
        matches!(site.post, Some(Outcome::Scaled { .. })),
        "{site:#?}"
    );
    assert_eq!(operators(&after.model), ["Relu", "Add", "Gather", "MatMul"]);
    let read = |model: &Model, name: &str| {
        let tensor = model
            .graph()
            .initializer
            .iter()
            .find(|tensor| tensor.name().starts_with(name));
        read_f64(tensor.unwrap(), &Externals::none()).unwrap()
    };
    let scale = read(&before, "g")
        .into_shape_with_order(IxDyn(&[1, 6, 1]))
        .unwrap();
    assert_eq!(read(&after.model, "table"), read(&before, "table") * scale);
}

#[test]
fn query_scale_folds_into_the_key_projection() {
    let attention = |key: &str, more: &str| {
        model(&format!(
            "input x batch 3 6
             weight q 6 4
             a = MatMul(x, q)
             b = Relu(a)
             const g 4 = 2 0.5 -1 1
             c = Mul(b, g)
             weight k 6 4
             d = MatMul(x, k)
             {key}
             t = Transpose(e) perm=[0,2,1]
             s = MatMul(c, t)
             y = Softmax(s)
             output y {more}"
        ))
    };
    // The scale folds into the weight of the keys, or joins the scale that the keys have already.
    assert_eq!(muls(&folded(&attention("e = Identity(d)", ""))), 0);
    let both = fused(&attention("f = Relu(d)\n scale l 4\n e = Mul(f, l)", ""));
    assert_eq!(muls(&both.model), 1);
    // Other readers of the keys would read the scaled value.
    let (reason, _) = kept(&attention("e = Identity(d)", "d"));
    assert_eq!(reason, Reason::NotConstant);
    let (reason, _) = kept(&attention("e = Relu(d)", ""));
    assert_eq!(reason, Reason::NotConstant);
}

/// A decode step: queries and keys with a rotary embedding, and a scale of the cached keys. `made`
/// computes the queries `q` and the keys `k` before the rotary embedding.
fn decode_step(made: &str) -> Model {
    model(&format!(
        "input x batch tokens 6
         input past batch tokens 8
         input cos tokens 8
         input sin tokens 8
         ints zero 1 = 0
         ints four 1 = 4
         ints eight 1 = 8
         ints sixteen 1 = 16
         ints two 1 = 2
         const s 1 = 0.5
         {made}
         {}
         {}
         present = Concat(past, rk) axis=1
         t = Transpose(present) perm=[0,2,1]
         e = Mul(t, s)
         y = MatMul(rq, e)
         output y present",
        rotary("q"),
        rotary("k")
    ))
}

fn rotary(value: &str) -> String {
    format!(
        "{value}0 = Slice({value}, zero, four, two)
         {value}1 = Slice({value}, four, eight, two)
         n{value} = Neg({value}1)
         h{value} = Concat(n{value}, {value}0) axis=2
         c{value} = Mul({value}, cos)
         s{value} = Mul(h{value}, sin)
         r{value} = Add(c{value}, s{value})"
    )
}

#[test]
fn scale_of_cached_keys_folds_into_the_queries() {
    let whole = "weight w 6 16\n qk = MatMul(x, w)\n q = Slice(qk, zero, eight, two)\n k = Slice(qk, eight, sixteen, two)";
    let before = decode_step(whole);
    let after = folded(&before);
    assert_eq!(muls(&after), 4);
    let read =
        |model: &Model, name: &str| read_f64(initializer(model, name), &Externals::none()).unwrap();
    // The queries are the first eight columns.
    let scale = ArrayD::from_shape_fn(IxDyn(&[16]), |i| if i[0] < 8 { 0.5 } else { 1.0 });
    assert_eq!(read(&after, "w_folded"), read(&before, "w") * scale);

    // The γ of a normalizer of the queries absorbs the scale too.
    let normalized = "opset 23\n weight v 6 8\n weight w 6 8\n scale g 8\n p = MatMul(x, v)\n k = MatMul(x, w)\n q = RMSNormalization(p, g)";
    let before = decode_step(normalized);
    let after = fused(&before).model;
    assert_eq!(muls(&after), 4);
    assert_eq!(read(&after, "g_folded"), read(&before, "g") * 0.5);
}

#[test]
fn scale_does_not_fold_into_a_factor_that_reads_the_scaled_value() {
    for product in [
        "t = Transpose(n) perm=[0,2,1]\n y = MatMul(n, t)",
        "y = Einsum(n, n) equation=btc,bsc->bts",
    ] {
        let before = model(&format!(
            "input x batch 3 6
             h = Relu(x)
             const g 6 = 2 -1 0.5 1 4 -2
             n = Mul(h, g)
             {product}
             output y"
        ));
        kept(&before);
    }
    // The scale does not fold into the operands of such a factor either.
    let made =
        "v = MatMul(n, w)\n k = Identity(v)\n t = Transpose(k) perm=[0,2,1]\n y = MatMul(n, t)";
    let before = model(&format!(
        "input x batch 3 6
         h = Relu(x)
         const g 6 = 2 -1 0.5 1 4 -2
         n = Mul(h, g)
         weight w 6 6
         {made}
         output y"
    ));
    let after = folded(&before);
    let (w, g) = (initializer(&before, "w"), initializer(&before, "g"));
    let read = |tensor| read_f64(tensor, &Externals::none()).unwrap();
    let scale = read(g);
    let both = read(w) * &scale.clone().into_shape_with_order(IxDyn(&[6, 1])).unwrap() * &scale;
    assert_eq!(read(initializer(&after, "w_folded")), both);
}

#[test]
fn matmul_by_a_graph_input_refuses_the_scale() {
    let before = of_one("input e 6 4", "y = MatMul(n, e)");
    assert_eq!(kept(&before).0, Reason::NotConstant);
}

#[test]
fn einsum_factor_absorbs_a_scale_only_along_summed_letters() {
    // The result has the channels of the tokens, so the scale moves forward along them.
    let before = of_one(
        "weight table 3 5 6",
        "e = Gather(table, one)\n y = Einsum(n, e) equation=tc,tc->tc",
    );
    assert_eq!(kept(&before).0, Reason::GraphOutput);
    let summed = of_one(
        "weight table 3 5 6",
        "e = Gather(table, one)\n y = Einsum(n, e) equation=tc,tc->t",
    );
    assert_eq!(muls(&folded(&summed)), 0);
}

#[test]
fn float16_expert_weights_refuse_a_scale_that_underflows() {
    let with = |least: f64| {
        let mut model = model(&format!(
            "half x 5 6
             indices one
             h = Relu(x)
             const g 6 = {least} 1 0.5 1 2 1
             n = Mul(h, g)
             weight table 3 6 4
             e = Gather(table, one)
             y = MatMul(n, e)
             output y"
        ));
        let table = read_f64(initializer(&model, "table"), &Externals::none()).unwrap();
        let table = make("table", DataType::Float16, &(table * 0.3).view()).unwrap();
        *model
            .graph_mut()
            .initializer
            .iter_mut()
            .find(|tensor| tensor.name() == "table")
            .unwrap() = table;
        retype(&mut model, &["g"], DataType::Float16);
        model
    };
    assert_eq!(in_type(&kept(&with(1e-6)).0), ("underflow", "float16"));
    assert!(fuse(&with(0.25)).plan.sites[0].is_folded());
}

#[test]
fn scale_moves_to_the_other_factor_only_if_an_operator_is_saved() {
    // The scalar moves to the other factor, and γ stays.
    let before = model(
        "input x batch 3 4
         weight q 4 4
         weight k 4 4
         a = MatMul(x, q)
         const g 4 = 2 0.5 1 4
         b = LayerNormalization(a, g) axis=-1
         const number = 0.5
         c = Mul(b, number)
         d = MatMul(x, k)
         t = Transpose(d) perm=[0,2,1]
         s = MatMul(c, t)
         y = Softmax(s)
         output y",
    );
    let after = fuse(&before);
    assert_eq!(muls(&after.model), 0);
    // A scale does not move if the table would need a copy. Both scales are joined instead.
    let before = model(
        "input x 3 5 4
         indices ids 1
         indices jds 3
         weight table 2 4 4
         const g 4 = 2 0.5 1 4
         const h 4 = 1 -1 0.5 2
         r = Mul(x, g)
         s = Mul(r, h)
         e = Gather(table, ids)
         k = Gather(table, jds)
         a = MatMul(x, e)
         b = MatMul(s, k)
         y = Sub(a, b)
         output y",
    );
    let after = fused(&before);
    assert_eq!((muls(&after.model), after.plan.growth), (1, 0));
}
