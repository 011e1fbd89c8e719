//! Tests that LayerNormalizations in parts become one operator, for engines on CPUs and before a
//! conversion to half precision.

use unfold::onnx::Model;
use unfold::plan::{OpsetUpgrade, WideReason};
use unfold::prove::{Proof, prove};
use unfold::run::{Dims, Engine, Tensor, random};
use unfold::{FuseOptions, Fused, HalfType, Target};

use crate::common::text::model;
use crate::common::{operators, options};

const EPSILON: f64 = 0.5;
const SCALE: [f64; 4] = [1.0, -2.0, 0.5, 3.0];
const SHIFT: [f64; 4] = [0.5, 0.25, -1.0, 2.0];

/// The normalized value `n` of an `x` with magnitudes near 1,000, without γ and β.
const CENTRED: &str = "input z 3 4
     const k = 1000
     x = Mul(z, k)
     const two = 2
     const e = 0.5
     m = ReduceMean(x) axes=[-1] keepdims=1
     d = Sub(x, m)
     s = Pow(d, two)
     v = ReduceMean(s) axes=[-1] keepdims=1
     a = Add(v, e)
     r = Sqrt(a)
     n = Div(d, r)
    ";

const AFFINE: &str = "const g 4 = 1 -2 0.5 3
     const b 4 = 0.5 0.25 -1 2
     h = Mul(n, g)
     y = Add(h, b)
     output y";

fn in_parts(opset: i64, behind: &str) -> Model {
    model(&format!("opset {opset}\n {CENTRED} {behind}"))
}

fn converted(before: &Model, skip: &str) -> Fused {
    let options = FuseOptions {
        to: Some(HalfType::Float16),
        skip: vec![skip.to_owned()],
        ..options()
    };
    unfold::fuse(before, &options).unwrap()
}

/// The operators that stay in float32, and the number of Casts.
fn wide_and_casts(fused: &Fused) -> (Vec<&str>, usize) {
    let half = fused.plan.half.as_ref().unwrap();
    let wide = half.wide.iter().map(|operator| {
        assert_eq!(operator.why, WideReason::Statistics);
        operator.operator.as_str()
    });
    (wide.collect(), half.casts)
}

fn elements(tensor: &Tensor) -> Vec<f64> {
    let tensor = tensor.cast_to::<f32>().unwrap();
    let elements = tensor
        .try_as_plain_ram()
        .unwrap()
        .as_slice::<f32>()
        .unwrap();
    elements.iter().map(|&element| element.into()).collect()
}

/// A row of [`CENTRED`] from the input, in float64.
fn normalized(row: &[f64]) -> Vec<f64> {
    let count = row.len() as f64;
    let mean = row.iter().sum::<f64>() * 1000.0 / count;
    let differences: Vec<f64> = row.iter().map(|z| z * 1000.0 - mean).collect();
    let variance = differences.iter().map(|d| d * d).sum::<f64>() / count;
    let root = (variance + EPSILON).sqrt();
    differences
        .iter()
        .map(|difference| difference / root)
        .collect()
}

/// Asserts that the result has one LayerNormalization with two Casts around the model, that its
/// float32 form is proved equal, and that its values are those of `expected` for each row.
fn assert_whole(before: &Model, expected: fn(&[f64]) -> Vec<f64>) -> Fused {
    let fused = converted(before, "nothing");
    assert_eq!(wide_and_casts(&fused), (vec![], 2));
    let operators = operators(&fused.model);
    assert_eq!(operators, ["Cast", "Mul", "LayerNormalization", "Cast"]);
    let stopped = FuseOptions {
        to: Some(HalfType::Float16),
        stop_after: Some("legalize-layer-norm".to_owned()),
        ..options()
    };
    let wide = unfold::fuse(before, &stopped).unwrap();
    let proof = prove(before, &wide.model, &wide.plan.tensors, &Default::default());
    assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
    let engine = Engine::load(&fused.model, &Dims::default()).unwrap();
    let inputs = random(engine.inputs(), 0);
    let found = elements(&engine.run(&inputs).unwrap()[0]);
    let rows = elements(&inputs[0]);
    let exact: Vec<f64> = rows.chunks(SCALE.len()).flat_map(expected).collect();
    assert_eq!(found.len(), exact.len());
    for (found, exact) in found.iter().zip(&exact) {
        // The input, the product and the result are rounded to 11 bits.
        assert!((found - exact).abs() < 8e-3, "{found} {exact}");
    }
    fused
}

#[test]
fn layer_norm_in_parts_becomes_one_operator() {
    for opset in [11, 12, 13, 16, 17] {
        let fused = assert_whole(&in_parts(opset, AFFINE), |row| {
            let parameters = SCALE.iter().zip(SHIFT);
            let scaled = normalized(row).into_iter().zip(parameters);
            scaled
                .map(|(n, (scale, shift))| n * scale + shift)
                .collect()
        });
        let upgrade = OpsetUpgrade {
            from: opset,
            to: 17,
        };
        assert_eq!(fused.plan.tidy.raised, Some(upgrade).filter(|_| opset < 17));
        assert_eq!(fused.model.own_opset(), 17);
        assert!(fused.model.proto.ir_version() >= 8);
    }
}

#[test]
fn layer_norm_without_parameters_gets_a_scale_of_ones() {
    assert_whole(&in_parts(17, "output n"), normalized);
}

#[test]
fn variance_as_a_difference_of_means_becomes_one_operator() {
    let squares = "s = Pow(x, two)
     q = ReduceMean(s) axes=[-1] keepdims=1
     p = Mul(m, m)
     v = Sub(q, p)";
    let text = CENTRED.replace(
        "s = Pow(d, two)
     v = ReduceMean(s) axes=[-1] keepdims=1",
        squares,
    );
    assert_whole(&model(&format!("{text} output n")), normalized);
}

#[test]
fn skipped_layer_norm_stays_in_parts() {
    let statistics = [
        "ReduceMean",
        "Sub",
        "Pow",
        "ReduceMean",
        "Add",
        "Sqrt",
        "Div",
    ];
    for skip in ["LN", "legalize-layer-norm", "Div_n"] {
        let fused = converted(&in_parts(17, AFFINE), skip);
        assert_eq!(wide_and_casts(&fused).0, statistics, "{skip}");
    }
}

#[test]
fn normalization_along_another_axis_stays_in_parts() {
    let in_columns = CENTRED.replace("axes=[-1]", "axes=[0]");
    let fused = converted(&model(&format!("{in_columns} {AFFINE}")), "nothing");
    assert!(!operators(&fused.model).contains(&"LayerNormalization"));
}

#[test]
fn operator_set_stays_if_it_is_skipped_or_an_operator_changes_its_meaning() {
    for skip in ["LN", "upgrade-opset", "Div_n"] {
        let fused = converted(&in_parts(12, AFFINE), skip);
        assert_eq!(fused.plan.tidy.raised, None, "{skip}");
        assert_eq!(wide_and_casts(&fused).0.len(), 7, "{skip}");
    }
    // Set 16 changed the default mode of RoiAlign.
    let roi = "input f 1 2 4 4
         const rois 1 4 = 0 0 3 3
         ints which 1 = 0
         p = RoiAlign(f, rois, which)
         output p";
    for opset in [12, 16] {
        let fused = converted(&in_parts(opset, &format!("{AFFINE}\n {roi}")), "nothing");
        assert_eq!(fused.plan.tidy.raised.is_some(), opset == 16);
        assert_eq!(fused.model.own_opset(), if opset == 16 { 17 } else { 12 });
    }
}

fn for_cpus(before: &Model, skip: &str) -> Fused {
    let options = FuseOptions {
        target: Target::Cpu,
        skip: vec![skip.to_owned()],
        ..options()
    };
    unfold::fuse(before, &options).unwrap()
}

#[test]
fn layer_norm_in_parts_becomes_one_operator_for_cpus() {
    for opset in [11, 13, 16, 17] {
        let behind = format!("{AFFINE}\n const c = 1000\n u = Mul(x, c)\n output u");
        let before = in_parts(opset, &behind);
        let fused = for_cpus(&before, "nothing");
        let expected = ["Mul", "LayerNormalization", "Mul"];
        assert_eq!(operators(&fused.model), expected);
        assert_eq!(fused.plan.tidy.raised.is_some(), opset < 17);
        assert_eq!(fused.model.own_opset(), 17);
        let tensors = &fused.plan.tensors;
        let proof = prove(&before, &fused.model, tensors, &Default::default());
        assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
    }
    for skip in ["LN", "biased", "legalize-layer-norm", "upgrade-opset"] {
        let fused = for_cpus(&in_parts(13, AFFINE), skip);
        assert!(
            !operators(&fused.model).contains(&"LayerNormalization"),
            "{skip}"
        );
    }
}

/// The TensorFlow exporter writes γ and β with the rank of the value.
#[test]
fn parameters_of_higher_rank_become_vectors() {
    let behind = AFFINE
        .replace("const g 4 =", "const g 1 4 =")
        .replace("const b 4 =", "const b 1 4 =");
    let before = in_parts(17, &behind);
    let fused = for_cpus(&before, "nothing");
    assert_eq!(operators(&fused.model), ["Mul", "LayerNormalization"]);
    let tensors = &fused.plan.tensors;
    let proof = prove(&before, &fused.model, tensors, &Default::default());
    assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
    // A constant that varies along another axis is no parameter.
    let by_row = AFFINE.replace("const b 4 = 0.5 0.25 -1 2", "const b 3 1 = 0.5 0.25 -1");
    let fused = for_cpus(&in_parts(17, &by_row), "nothing");
    assert_eq!(
        operators(&fused.model),
        ["Mul", "LayerNormalization", "Add"]
    );
}

#[test]
fn operator_set_stays_for_the_portable_target() {
    let fused = unfold::fuse(&in_parts(12, AFFINE), &options()).unwrap();
    assert_eq!(fused.plan.tidy.raised, None);
    assert!(!operators(&fused.model).contains(&"LayerNormalization"));
}

#[test]
fn operator_set_stays_if_a_stream_is_centred() {
    // A layer writes the value, so its mean can be 0. Then an RMSNorm is left.
    let centred = CENTRED
        .replace("input z 3 4", "input z batch 3 6\n weight w 6 4")
        .replace("x = Mul(z, k)", "x = MatMul(z, w)");
    let behind = AFFINE.replace(
        "output y",
        "weight o 4 5\n shift c 5\n l = MatMul(y, o)\n q = Add(l, c)\n output q",
    );
    let before = model(&format!("opset 13\n {centred} {behind}"));
    let centring = FuseOptions {
        target: Target::Cpu,
        centre: true,
        ..options()
    };
    let fused = unfold::fuse(&before, &centring).unwrap();
    let operators = operators(&fused.model);
    assert!(
        operators.contains(&"Sqrt") && !operators.contains(&"Sub"),
        "{operators:?}"
    );
    assert_eq!(fused.plan.tidy.raised, None);
}
