//! Checks the numbers in folded constants: the de-normalization of an output, the scale of
//! attention, and a Dynamic Tanh in float32 within a float16 model.
//! Dynamic Tanh that is computed in float32 within a float16 model.

mod common;

use common::numbers::Kind;
use common::text::{self, model};
use common::{fuse, initializer, judge, operators, retype};
use ndarray::{ArrayD, IxDyn};
use unfold::Fused;
use unfold::onnx::{DataType, Externals, Model, tensor};
use unfold::plan::{Direction, Family, Outcome};
use unfold::refusal::Reason;

/// Fuses a model, and asserts that the result computes the same numbers bit for bit.
fn fused(model: &Model) -> Fused {
    let fused = fuse(model);
    let inputs = judge::inputs(model, 3, true, Kind::Exact);
    let agree = judge::agree(model, &fused.model, &inputs, 0.0);
    assert_eq!(agree, Ok(true), "{}", text::print(&fused.model));
    fused
}

/// The numbers of an initializer of a fused model.
fn numbers(model: &Model, node: usize, slot: usize) -> ArrayD<f64> {
    let name = &model.graph().node[node].input[slot];
    tensor::read_f64(initializer(model, name), &Externals::none()).unwrap()
}

fn array(shape: &[usize], numbers: &[f64]) -> ArrayD<f64> {
    ArrayD::from_shape_vec(IxDyn(shape), numbers.to_vec()).unwrap()
}

/// Asserts that the only site of a model folds backward.
fn assert_de_normalised(fused: &Fused) {
    let [site] = &fused.plan.sites[..] else {
        panic!("{:#?}", fused.plan.sites)
    };
    assert_eq!(
        (site.kind.name, site.kind.family),
        ("de-normalisation", Family::Scale)
    );
    let folded = matches!(
        site.post,
        Some(Outcome::Folded {
            direction: Direction::Backward,
            ..
        })
    );
    assert!(folded, "{site:#?}");
}

#[test]
fn output_de_normalisation_folds_into_the_last_matmul() {
    // y·std + mean = x·(W·diag(std)) + (b·std + mean)
    let fused = fused(&model(
        "input x batch 2
         const w 2 3 = 1 2 3 -1 0 4
         const b 3 = 1 -2 3
         const std 3 = 4 0.5 -2
         const mean 3 = 10 20 30
         l = MatMul(x, w)
         z = Add(l, b)
         s = Mul(z, std)
         y = Add(s, mean)
         output y",
    ));
    assert_de_normalised(&fused);
    assert_eq!(operators(&fused.model), ["MatMul", "Add"]);
    assert_eq!(
        numbers(&fused.model, 0, 1),
        array(&[2, 3], &[4.0, 1.0, -6.0, -4.0, 0.0, -8.0])
    );
    assert_eq!(
        numbers(&fused.model, 1, 1),
        array(&[3], &[14.0, 19.0, 24.0])
    );
}

#[test]
fn scalar_de_normalisation_folds_into_gemm() {
    let fused = fused(&model(
        "input x batch 2
         const w 3 2 = 1 2 3 -1 0 4
         const b 3 = 1 -2 3
         const std 1 = 0.5
         const mean 1 = -7
         z = Gemm(x, w, b) transB=1
         s = Mul(z, std)
         y = Add(s, mean)
         output y",
    ));
    assert_de_normalised(&fused);
    assert_eq!(operators(&fused.model), ["Gemm"]);
    assert_eq!(
        numbers(&fused.model, 0, 1),
        array(&[3, 2], &[0.5, 1.0, 1.5, -0.5, 0.0, 2.0])
    );
    assert_eq!(
        numbers(&fused.model, 0, 2),
        array(&[3], &[-6.5, -8.0, -5.5])
    );
}

#[test]
fn image_de_normalisation_folds_into_a_padded_conv() {
    // The affine is after the convolution and its padding, so it folds.
    let fused = fused(&model(
        "input x batch 1 4 4
         const w 2 1 1 2 = 1 -2 3 4
         const std 1 2 1 1 = 2 0.5
         const mean 1 2 1 1 = 5 -3
         z = Conv(x, w) pads=[0,1,0,0]
         s = Mul(z, std)
         y = Add(s, mean)
         output y",
    ));
    assert_de_normalised(&fused);
    assert_eq!(operators(&fused.model), ["Conv"]);
    assert_eq!(
        numbers(&fused.model, 0, 1),
        array(&[2, 1, 1, 2], &[2.0, -4.0, 1.5, 2.0])
    );
    assert_eq!(numbers(&fused.model, 0, 2), array(&[2], &[5.0, -3.0]));
}

#[test]
fn de_normalisation_of_a_read_value_stays() {
    for (reader, reason) in [
        ("output z", Reason::GraphOutput),
        ("r = Relu(z)\n output r", Reason::OtherReader),
    ] {
        let fused = fused(&model(&format!(
            "input x batch 2
             const w 2 3 = 1 2 3 -1 0 4
             const std 3 = 4 0.5 -2
             const mean 3 = 10 20 30
             z = MatMul(x, w)
             s = Mul(z, std)
             y = Add(s, mean)
             output y
             {reader}"
        )));
        let Some(Outcome::Kept {
            forward,
            backward: Some(backward),
        }) = &fused.plan.sites[0].post
        else {
            panic!("{:#?}", fused.plan.sites)
        };
        assert_eq!(
            (&forward.reason, &backward.reason),
            (&Reason::GraphOutput, &reason)
        );
        assert!(!fused.changed());
    }
}

/// A Dynamic Tanh in a float16 model, whose tanh is computed in float32. α is multiplied before or
/// after the cast.
fn mixed(scaled_in_half: bool, shift: &str) -> Model {
    let (before, alpha) = match scaled_in_half {
        true => ("z = Mul(l, alpha)\n c = Cast(z) to=1", DataType::Float16),
        false => ("z = Cast(l) to=1\n c = Mul(z, alpha)", DataType::Float),
    };
    let mut model = model(&format!(
        "half x batch 2
         const v 2 2 = 1 0.5 -1 2
         const alpha 1 = 0.5
         const gamma 2 = 2 -0.5
         const beta 2 = 1 {shift}
         const w 2 2 = 1 3 -1 2
         l = MatMul(x, v)
         {before}
         t = Tanh(c)
         d = Cast(t) to=10
         n = Mul(d, gamma)
         m = Add(n, beta)
         y = MatMul(m, w)
         output y"
    ));
    retype(&mut model, &["v", "gamma", "beta", "w"], DataType::Float16);
    retype(&mut model, &["alpha"], alpha);
    model
}

#[test]
fn dynamic_tanh_folds_around_mixed_precision_casts() {
    for scaled_in_half in [true, false] {
        let original = mixed(scaled_in_half, "-4");
        let fused = fuse(&original);
        let [site] = &fused.plan.sites[..] else {
            panic!("{:#?}", fused.plan.sites)
        };
        assert_eq!(
            (site.kind.name, site.kind.family),
            ("DyT", Family::Pointwise)
        );
        assert!(matches!(
            site.pre,
            Some(Outcome::Folded {
                direction: Direction::Backward,
                ..
            })
        ));
        assert!(matches!(
            site.post,
            Some(Outcome::Folded {
                direction: Direction::Forward,
                ..
            })
        ));
        assert_eq!(
            operators(&fused.model),
            ["MatMul", "Cast", "Tanh", "Cast", "MatMul", "Add"]
        );
        // αV, diag(γ)W and βW are representable in float16, so nothing is rounded.
        assert_eq!(
            numbers(&fused.model, 0, 1),
            array(&[2, 2], &[0.5, 0.25, -0.5, 1.0])
        );
        assert_eq!(
            numbers(&fused.model, 4, 1),
            array(&[2, 2], &[2.0, 6.0, 0.5, -1.0])
        );
        assert_eq!(numbers(&fused.model, 5, 1), array(&[2], &[5.0, -5.0]));
        for node in [0, 4, 5] {
            let name = &fused.model.graph().node[node].input[1];
            assert_eq!(
                tensor::data_type(initializer(&fused.model, name)).unwrap(),
                DataType::Float16
            );
        }
        let inputs = judge::inputs(&original, 3, true, Kind::Exact);
        // The reference rounds at every cast to half precision, before or after γ.
        let agree = judge::agree(&original, &fused.model, &inputs, 1.0 / 1024.0);
        assert_eq!(agree, Ok(true), "{}", text::print(&fused.model));
    }
}

#[test]
fn dynamic_tanh_that_overflows_float16_stays() {
    // With 3e4, both 1 + 3e4·1 and 3 + 3e4·2 fit into float16. With 4e4, the second sum does not
    // fit.
    let fits = fuse(&mixed(true, "-30000"));
    assert!(fits.plan.sites[0].is_folded(), "{:#?}", fits.plan.sites);
    let over = fuse(&mixed(true, "40000"));
    let Some(Outcome::Kept { forward, .. }) = &over.plan.sites[0].post else {
        panic!("{:#?}", over.plan.sites)
    };
    assert_eq!(forward.reason, Reason::Overflow("8.0e4 in float16".into()));
}

#[test]
fn tanh_cast_to_integers_is_no_dynamic_tanh() {
    let fused = fused(&model(
        "input x batch 2
         const alpha 1 = 0.5
         scale g 2
         weight w 2 3
         z = Mul(x, alpha)
         t = Tanh(z)
         c = Cast(t) to=7
         d = Cast(c) to=1
         n = Mul(d, g)
         y = MatMul(n, w)
         output y",
    ));
    assert!(
        fused.plan.sites.iter().all(|site| site.kind.name != "DyT"),
        "{:#?}",
        fused.plan.sites
    );
}

/// The scores of two heads, which are mixed afterwards. `queries` holds operators on the queries.
fn talking_heads(queries: &str) -> Model {
    model(&format!(
        "input x 2 4 6
         input k 2 2 3 4
         weight wq 6 6
         weight mix 2 2
         shift b 2
         ints heads 4 = 2 4 2 3
         q = MatMul(x, wq)
         qr = Reshape(q, heads)
         qt = Transpose(qr) perm=[0,2,1,3]
         {queries}
         z = MatMul(qs, k)
         zt = Transpose(z) perm=[0,2,3,1]
         zm = MatMul(zt, mix)
         zb = Add(zm, b)
         s = Transpose(zb) perm=[0,3,1,2]
         a = Softmax(s) axis=-1
         output a"
    ))
}

#[test]
fn attention_scale_folds_past_talking_heads() {
    let model = talking_heads("const half = 0.5\n qs = Mul(qt, half)");
    let fused = fuse(&model);
    let [site] = &fused.plan.sites[..] else {
        panic!("{:#?}", fused.plan.sites)
    };
    assert_eq!(
        (site.kind.name, site.is_folded()),
        ("attention scale", true)
    );
    assert!(!operators(&fused.model).contains(&"Mul"));
    // The smallest weight on the path absorbs the scale.
    let talk = operators(&fused.model)
        .iter()
        .rposition(|op| *op == "MatMul")
        .unwrap();
    let before = tensor::read_f64(initializer(&model, "mix"), &Externals::none()).unwrap();
    assert_eq!(numbers(&fused.model, talk, 1), before * 0.5);
}

#[test]
fn neg_is_no_attention_scale() {
    let fused = fuse(&talking_heads("qs = Neg(qt)"));
    assert!(fused.plan.sites.is_empty(), "{:#?}", fused.plan.sites);
}
