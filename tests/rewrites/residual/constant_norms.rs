//! Tests which normalizers are constant because their ε exceeds every variance, and which must
//! stay.

use unfold::onnx::{DataType, Model};
use unfold::plan::Constancy;
use unfold::prove::{Proof, prove};
use unfold::refusal::Reason;
use unfold::{FuseOptions, Fused, VarianceMargin, with_constant_norms};

use crate::common::numbers::Kind;
use crate::common::text::model;
use crate::common::{judge, operators, options, reference, retype};

fn with_constants() -> FuseOptions<'static> {
    FuseOptions {
        constant_norms: true,
        ..options()
    }
}

fn constant(model: &Model) -> Fused {
    unfold::fuse(model, &with_constants()).unwrap()
}

/// A LayerNormalization in parts, of the value `x`.
const PARTS: &str = "const e = 1000000000000
     const two = 2
     m = ReduceMean(x) axes=[-1] keepdims=1
     c = Sub(x, m)
     s = Pow(c, two)
     v = ReduceMean(s) axes=[-1] keepdims=1
     ve = Add(v, e)
     r = Sqrt(ve)
     q = Div(c, r)
     a = Mul(q, g)
     n = Add(a, t)";

/// The LayerNormalization as a single operator.
const OPERATOR: &str = "n = LayerNormalization(x, g, t) epsilon=1000000000000.0";

/// A model with a normalizer of the value `x`, which has four channels, before a layer.
fn before_a_layer(normalizer: &str) -> Model {
    model(&format!(
        "input x batch 3 4
         const g 4 = 1000000 -2000000 500000 3000000
         shift t 4
         {normalizer}
         weight w 4 5
         y = MatMul(n, w)
         output y"
    ))
}

/// The largest difference of the first outputs in float64, relative to the largest magnitude of the
/// output.
fn difference(before: &Model, after: &Model) -> f64 {
    let inputs = judge::inputs(before, 2, true, Kind::Exact);
    let run = |model| reference::run(model, &inputs).unwrap().remove(0);
    let (one, other) = (run(before), run(after));
    let (one, other) = (one.floats().unwrap(), other.floats().unwrap());
    let largest = one.iter().fold(0.0, |largest: f64, y| largest.max(y.abs()));
    let apart = one.iter().zip(other).map(|(a, b)| (a - b).abs());
    apart.fold(0.0, f64::max) / largest
}

#[test]
fn layer_norm_of_a_large_epsilon_folds_whole() {
    for normalizer in [OPERATOR, PARTS] {
        let before = before_a_layer(normalizer);
        let fused = constant(&before);
        assert_eq!(operators(&fused.model), ["MatMul", "Add"], "{normalizer}");
        // The reference computes in float64, in which both models differ by var/(2ε).
        assert!(difference(&before, &fused.model) < 1e-6);
        let [norm] = &fused.plan.constant[..] else {
            panic!("{:?}", fused.plan.constant)
        };
        assert_eq!(
            (&*norm.value, &norm.axes[..], norm.centred, norm.sum),
            ("x", &[2][..], true, false)
        );
        assert_eq!((norm.limit, norm.is_constant()), (32768.0, true));
        // 1e12 is rounded to float32 with a relative error below 2^-24.
        assert!((norm.epsilon / 1e12 - 1.0).abs() < 1e-7);
        // By default, the normalizer stays.
        assert!(crate::common::fuse(&before).plan.constant.is_empty());
    }
}

#[test]
fn result_is_proved_against_the_model_with_constant_norms_only() {
    for normalizer in [OPERATOR, PARTS] {
        let before = before_a_layer(normalizer);
        let fused = constant(&before);
        let proof = |model| {
            prove(
                model,
                &fused.model,
                &fused.plan.tensors,
                &Default::default(),
            )
        };
        let assumed = with_constant_norms(&before, &options()).unwrap();
        let proved = proof(&assumed.model);
        assert!(matches!(proved, Proof::Proved { .. }), "{proved:?}");
        assert_eq!(assumed.plan.constant, fused.plan.constant);
        let alone = proof(&before);
        assert!(!matches!(alone, Proof::Proved { .. }), "{alone:?}");
    }
}

#[test]
fn rms_group_and_instance_norms_are_constant() {
    let rms = "const e = 1000000000000
         const two = 2
         s = Pow(x, two)
         v = ReduceMean(s) axes=[-1] keepdims=1
         ve = Add(v, e)
         r = Sqrt(ve)
         q = Div(x, r)
         n = Mul(q, g)";
    let before = before_a_layer(rms);
    let fused = constant(&before);
    assert_eq!(operators(&fused.model), ["MatMul"]);
    assert!(difference(&before, &fused.model) < 1e-6);
    assert!(!fused.plan.constant[0].centred);
    // For groups and instances, the mean over places stays.
    for (opset, parameters, normalizer) in [
        (18, 2, "GroupNormalization(x, g, t) num_groups=2"),
        (21, 4, "GroupNormalization(x, g, t) num_groups=2"),
        (17, 4, "InstanceNormalization(x, g, t)"),
    ] {
        let text = format!(
            "opset {opset}
             input x batch 4 2 3
             const g {parameters} = {}
             shift t {parameters}
             n = {normalizer} epsilon=1000000000000.0
             weight w 3 4 1 1
             y = Conv(n, w)
             output y",
            ["1000000", "2000000", "-3000000", "500000"][..parameters].join(" ")
        );
        let before = model(&text);
        let fused = constant(&before);
        let ops = operators(&fused.model);
        assert!(
            ops.contains(&"ReduceMean") && ops.contains(&"Sub"),
            "{ops:?}"
        );
        assert!(
            !ops.contains(&"Mul") && !ops.iter().any(|op| op.ends_with("Normalization")),
            "{ops:?}"
        );
        assert!(difference(&before, &fused.model) < 1e-6, "{normalizer}");
    }
}

#[test]
fn normalizer_that_is_not_constant_stays_with_a_reason() {
    let reason = |before: &Model, options: &FuseOptions| {
        let fused = unfold::fuse(before, options).unwrap();
        assert_eq!(fused.plan.constants(), 0);
        match &fused.plan.constant[..] {
            [norm] => match &norm.outcome {
                Constancy::Kept { why } => Some(why.reason.clone()),
                Constancy::Constant => panic!("{norm:?}"),
            },
            _ => None,
        }
    };
    let usual = OPERATOR.replace("1000000000000.0", "0.00001");
    assert_eq!(reason(&before_a_layer(&usual), &with_constants()), None);
    let small = OPERATOR.replace("1000000000000.0", "1000.0");
    assert_eq!(
        reason(&before_a_layer(&small), &with_constants()),
        Some(Reason::SmallEpsilon("3.1e-5".into()))
    );
    // If ε is below 2^24, a variance of 1 changes the sum.
    let least = OPERATOR.replace("1000000000000.0", "16777216.0");
    assert_eq!(constant(&before_a_layer(&least)).plan.constants(), 1);
    let below = OPERATOR.replace("1000000000000.0", "16777215.0");
    assert_eq!(
        reason(&before_a_layer(&below), &with_constants()),
        Some(Reason::SmallEpsilon("5.0e-1".into()))
    );
    let skipping = FuseOptions {
        skip: vec!["LN".into()],
        ..with_constants()
    };
    assert_eq!(
        reason(&before_a_layer(OPERATOR), &skipping),
        Some(Reason::Skipped)
    );
    // The operator computes the mean in float32, but its parts would compute it in float16.
    let text = "half x batch 3 4
         const g 4 = 1000 -2000 500 3000
         shift t 4
         n = LayerNormalization(x, g, t) epsilon=1000000000000.0
         y = Relu(n)
         output y";
    let mut half = model(text);
    retype(&mut half, &["g", "t"], DataType::Float16);
    assert_eq!(
        reason(&half, &with_constants()),
        Some(Reason::ElementType("float16".into()))
    );
}

#[test]
fn variance_margin_is_that_of_the_run() {
    let before = model(&format!(
        "input i 6 4
         const g 4 = 1000000 -2000000 500000 3000000
         shift t 4
         x = Neg(i)
         {OPERATOR}
         weight w 4 5
         y = MatMul(n, w)
         output y"
    ));
    let fused = constant(&before);
    let norms: Vec<_> = fused.plan.constant.iter().collect();
    let margin = VarianceMargin::measure(&before, &norms, &Default::default()).unwrap();
    // Inputs of a run are drawn from a normal distribution.
    assert!((0.5..10.0).contains(&margin.largest), "{margin:?}");
    assert_eq!(margin.of_limit, margin.largest / 32768.0);
    assert_eq!(margin.error, margin.largest / (2.0 * norms[0].epsilon));
}
