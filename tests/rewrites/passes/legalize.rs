//! Legalization for the target engines.

use unfold::onnx::proto::StringStringEntryProto;
use unfold::onnx::{DataType, Model};
use unfold::prove::{Proof, prove};
use unfold::provenance::Provenance;
use unfold::{FuseOptions, Target};

use crate::common::declared;
use crate::common::text::model;
use crate::{operators, options, same};

/// A scale and two products with biases, for an input of the given shape.
fn products(shape: &str, bias: &str) -> Model {
    model(&format!(
        "input x {shape}
         const s 6 = 1 2 3 1 2 3
         weight v 6 6
         shift c 6
         weight w 6 3
         shift b {bias}
         m = Mul(x, s)
         q = MatMul(m, v)
         k = Add(c, q)
         r = Relu(k)
         p = MatMul(r, w)
         y = Add(p, b)
         output y"
    ))
}

/// The result for a target. Asserts that it is equal, proved and stable.
pub(super) fn for_engine(target: Target, model: &Model) -> Model {
    let options = FuseOptions {
        target,
        ..options()
    };
    let fused = unfold::fuse(model, &options).unwrap();
    same(model, &fused.model, 0.0);
    let proof = prove(
        model,
        &fused.model,
        &fused.plan.tensors,
        &Default::default(),
    );
    assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
    let again = unfold::fuse(&fused.model, &options).unwrap();
    assert_eq!(again.model.proto, fused.model.proto);
    fused.model
}

#[test]
fn matmul_and_bias_of_an_unknown_batch_become_gemm_unless_portable() {
    let gemm = ["Reshape", "Gemm", "Relu", "Gemm", "Reshape"];
    for shape in ["N 4 6", "2 N 4 6", "N 2 4 6"] {
        let before = products(shape, "3");
        for target in [Target::Cpu, Target::Onnxruntime, Target::Tract] {
            assert_eq!(operators(&for_engine(target, &before)), gemm);
        }
        assert_eq!(
            operators(&unfold::fuse(&before, &options()).unwrap().model).len(),
            5
        );
    }
}

#[test]
fn matmul_that_engines_fuse_or_cannot_flatten_stays() {
    let plain = ["MatMul", "Add", "Relu", "MatMul", "Add"];
    // onnxruntime fuses the first two itself. For the third, a Reshape could not infer two open
    // extents. Below, the bias differs for each row.
    for (shape, bias) in [("2 4 6", "3"), ("N 6", "3"), ("N M 6", "3")] {
        assert_eq!(
            operators(&for_engine(Target::Onnxruntime, &products(shape, bias))),
            plain
        );
    }
    let rows = operators(&for_engine(Target::Onnxruntime, &products("N 4 6", "4 1"))).join(" ");
    assert!(rows.ends_with("Relu MatMul Add"), "{rows}");
}

/// A layer that reads the windows `r` of an image, which the lines `cut` cut out.
fn windows(cut: &str, weight: &str) -> Model {
    model(&format!(
        "input x N 4 4 6
         {cut}
         weight w {weight}
         shift b 5
         q = MatMul(r, w)
         y = Add(b, q)
         output y"
    ))
}

const CUT: &str = "ints s 6 = -1 2 2 2 2 6
    ints t 3 = -1 4 6
    c = Reshape(x, s)
    p = Transpose(c) perm=[0,1,3,2,4,5]
    r = Reshape(p, t)";

#[test]
fn linear_layer_moves_before_window_partition_for_tract() {
    let kept = "ints s 6 = 0 2 2 2 2 6
        ints t 4 = 0 0 8 -1
        c = Reshape(x, s) allowzero=0
        p = Transpose(c) perm=[0,1,3,2,4,5]
        r = Reshape(p, t)";
    // A `0` in a shape copies the extent of the axis at its position, and rows have only two axes.
    let of_rows = ["Reshape", "Gemm", "Reshape", "Transpose", "Reshape"];
    let of_places = [
        "Reshape",
        "Gemm",
        "Reshape",
        "Reshape",
        "Transpose",
        "Reshape",
    ];
    for (cut, expected) in [(CUT, &of_rows[..]), (kept, &of_places)] {
        let before = windows(cut, "6 5");
        let after = for_engine(Target::Tract, &before);
        assert_eq!(operators(&after), expected);
        assert!(!unfold::fuse(&before, &options()).unwrap().changed());
    }
}

#[test]
fn linear_layer_stays_after_other_reshapes() {
    let no_tokens = "ints s 4 = -1 4 2 12
        ints t 3 = -1 16 6
        c = Reshape(x, s)
        p = Transpose(c) perm=[0,2,1,3]
        r = Reshape(p, t)";
    let channels = "ints s 3 = -1 16 6
        ints t 3 = -1 16 6
        c = Reshape(x, s)
        p = Transpose(c) perm=[0,2,1]
        r = Reshape(p, t)";
    let no_order = "ints s 6 = -1 2 2 2 2 6
        ints t 3 = -1 4 6
        c = Reshape(x, s)
        m = Relu(c)
        r = Reshape(m, t)";
    let read_twice = format!("{CUT}\noutput p");
    for cut in [no_tokens, channels, no_order, &read_twice] {
        let before = windows(cut, "6 5");
        let after = for_engine(Target::Tract, &before);
        assert_eq!(operators(&after)[3..], ["Gemm", "Reshape"], "{cut}");
    }
}

/// The rows that a Gemm computes pass through operators that a positive scale has moved past.
#[test]
fn scale_folded_backward_through_gemm_rows_is_proved() {
    let before = model(
        "input x N 3 4
         weight w 4 4
         shift b 4
         weight v 4 4
         shift c 4
         const k 1 = 1.5
         m = MatMul(x, w)
         a = Add(m, b)
         r = Relu(a)
         t = Mul(r, k)
         q = Sigmoid(t)
         p = MatMul(q, v)
         y = Add(p, c)
         output y",
    );
    let options = FuseOptions {
        target: Target::Onnxruntime,
        ..options()
    };
    let fused = unfold::fuse(&before, &options).unwrap();
    assert_eq!(
        operators(&fused.model),
        ["Reshape", "Gemm", "Relu", "Sigmoid", "Gemm", "Reshape"]
    );
    let proof = prove(
        &before,
        &fused.model,
        &fused.plan.tensors,
        &Default::default(),
    );
    assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
}

/// By the names of declared extents, onnxruntime recognizes equal shapes and plans buffers for
/// them. Without the names, it takes the memory that was freed last, which is still in the caches.
#[test]
fn value_info_of_unknown_extents_is_stripped_for_onnxruntime() {
    let mut before =
        model("input x N 6\nt = Tanh(x)\nr = Relu(t)\nu = Abs(r)\ny = Neg(u)\noutput y");
    let names = [("t", ["N", "6"]), ("r", ["3", "6"]), ("u", ["N", "6"])];
    let told = names.map(|(name, dims)| declared(name, DataType::Float, &dims));
    before.graph_mut().value_info = told.to_vec();
    let shapes = |model: &Model| -> Vec<bool> {
        let told = model.graph().value_info.iter();
        told.map(|info| {
            info.r#type
                .as_ref()
                .unwrap()
                .tensor_type
                .as_ref()
                .unwrap()
                .shape
                .is_some()
        })
        .collect()
    };
    assert_eq!(
        shapes(&for_engine(Target::Onnxruntime, &before)),
        [false, true, false]
    );
    assert_eq!(
        for_engine(Target::Portable, &before).graph().value_info,
        before.graph().value_info
    );
    let options = FuseOptions {
        target: Target::Onnxruntime,
        ..options()
    };
    let fused = unfold::fuse(&before, &options).unwrap();
    assert!(fused.changed() && fused.plan.tidy.untold == 2);
    assert_eq!(fused.model.graph().output, before.graph().output);
}

/// Two Gemms on rows from `x` to `y`, as other tools write them, with the lines `between` the
/// Gemms.
fn on_rows(entry: &str, between: &str, exit: &str) -> Model {
    model(&format!(
        "input x N 4 6
         weight v 6 6
         shift c 6
         weight w 6 3
         shift b 3
         ints s 2 = {entry}
         ints t 3 = {exit}
         r = Reshape(x, s)
         q = Gemm(r, v, c)
         {between}
         p = Gemm(k, w, b)
         y = Reshape(p, t)
         output y"
    ))
}

#[test]
fn flattened_gemms_of_other_tools_stay() {
    let gemm = ["Reshape", "Gemm", "Relu", "Gemm", "Reshape"];
    for target in [
        Target::Cpu,
        Target::Onnxruntime,
        Target::Tract,
        Target::Portable,
    ] {
        let before = on_rows("-1 6", "k = Relu(q)", "-1 4 3");
        let fused = unfold::fuse(
            &before,
            &FuseOptions {
                target,
                ..options()
            },
        )
        .unwrap();
        assert!(!fused.changed(), "{target}");
        assert_eq!(operators(&fused.model), gemm);
    }
}

#[test]
fn flattened_layers_fold_and_keep_their_gemms() {
    let rows = |between: &str| on_rows("-1 6", between, "-1 4 3");
    let again = "ints a 3 = -1 4 6
        m = Reshape(q, a)
        n = Relu(m)
        k = Reshape(n, s)";
    let gemm = ["Reshape", "Gemm", "Relu", "Gemm", "Reshape"];
    assert_eq!(operators(&for_engine(Target::Cpu, &rows(again))), gemm);
    // A scale folds into the Gemm before it.
    let scaled = "const e 6 = 1 2 3 1 2 3
        f = Mul(q, e)
        k = Relu(f)";
    assert_eq!(operators(&for_engine(Target::Cpu, &rows(scaled))), gemm);
    let squared = "k = Mul(q, q)";
    let twice = ["Reshape", "Gemm", "Mul", "Gemm", "Reshape"];
    assert_eq!(operators(&for_engine(Target::Cpu, &rows(squared))), twice);
}

#[test]
fn flattened_gemms_with_read_or_mixed_rows_stay() {
    // In the first model the rows are a graph output, and in the second an operator mixes them.
    let kept = on_rows("-1 6", "k = Relu(q)\n output q", "-1 4 3");
    assert!(
        !unfold::fuse(
            &kept,
            &FuseOptions {
                target: Target::Cpu,
                ..options()
            }
        )
        .unwrap()
        .changed()
    );
    let mixed = on_rows("-1 6", "k = Softmax(q) axis=0", "-1 4 3");
    assert!(
        !unfold::fuse(
            &mixed,
            &FuseOptions {
                target: Target::Cpu,
                ..options()
            }
        )
        .unwrap()
        .changed()
    );
}

#[test]
fn matmul_with_a_transpose_on_one_side_does_not_become_gemm() {
    let beside = |before: &str, behind: &str| {
        model(&format!(
            "input x N 4 6
             weight w 6 6
             shift b 6
             {before}
             q = MatMul(a, w)
             p = Add(q, b)
             {behind}
             output y"
        ))
    };
    let rows = |model: &Model| operators(&for_engine(Target::Cpu, model)).join(" ");
    assert_eq!(
        rows(&beside("a = Relu(x)", "y = Relu(p)")),
        "Relu Reshape Gemm Reshape Relu"
    );
    let turned = "input z N 6 4\n a = Transpose(z) perm=[0,2,1]";
    assert!(rows(&beside(turned, "m = Relu(p)\n y = Add(m, x)")).contains("MatMul"));
    assert!(rows(&beside("a = Relu(x)", "y = Transpose(p) perm=[0,2,1]")).contains("MatMul"));
    let both = beside(turned, "m = Relu(x)\n y = Transpose(p) perm=[0,2,1]");
    assert!(rows(&both).contains("Gemm"));
    same(&both, &for_engine(Target::Cpu, &both), 1e-6);
}

#[test]
fn streams_are_centred_for_cpu_targets_and_not_portable() {
    let before = model(
        "input x N 4 6
         weight v 6 8
         shift c 8
         weight w 8 3
         shift b 3
         const g 8 = 1 2 3 4 5 6 7 8
         const z 8 = 1 1 1 1 1 1 1 1
         q = MatMul(x, v)
         k = Add(q, c)
         n = LayerNormalization(k, g, z) axis=-1
         p = MatMul(n, w)
         y = Add(p, b)
         output y",
    );
    let kept = unfold::fuse(&before, &options()).unwrap().model;
    same(&before, &kept, 1e-12);
    assert_eq!(
        operators(&kept),
        ["MatMul", "Add", "LayerNormalization", "MatMul", "Add"]
    );
    for target in [Target::Cpu, Target::Tract, Target::Onnxruntime] {
        let fused = unfold::fuse(
            &before,
            &FuseOptions {
                target,
                ..options()
            },
        )
        .unwrap();
        same(&before, &fused.model, 2e-6);
        let after = operators(&fused.model).join(" ");
        assert!(
            !after.contains("LayerNormalization") && after.contains("Gemm"),
            "{after}"
        );
        assert!(
            !unfold::fuse(
                &fused.model,
                &FuseOptions {
                    target,
                    ..options()
                }
            )
            .unwrap()
            .changed()
        );
    }
    let skip = vec!["centring".to_owned()];
    let fused = unfold::fuse(
        &before,
        &FuseOptions {
            skip,
            target: Target::Cpu,
            ..options()
        },
    )
    .unwrap();
    assert!(operators(&fused.model).contains(&"LayerNormalization"));
}

/// A written-out RMS normalization in a version of the operator set.
fn rms(opset: usize, epsilon: &str, scale: &str) -> Model {
    model(&format!(
        "opset {opset}
         input x N 4 6
         const e = {epsilon}
         const two = 2
         {scale}
         ints a 1 = -1
         s = Pow(x, two)
         m = ReduceMean(s, a) keepdims=1
         v = Add(m, e)
         r = Sqrt(v)
         d = Div(x, r)
         y = Mul(d, g)
         output y"
    ))
}

#[test]
fn written_out_rms_norm_becomes_rms_normalization_from_opset_23() {
    let vector = "const g 6 = 1 2 3 4 5 6";
    let fused = |target, model: &Model| {
        unfold::fuse(
            model,
            &FuseOptions {
                target,
                ..options()
            },
        )
        .unwrap()
    };
    let before = rms(23, "0.5", vector);
    for target in [Target::Cpu, Target::Tract, Target::Onnxruntime] {
        let after = fused(target, &before);
        assert_eq!(operators(&after.model), ["RMSNormalization"]);
        same(&before, &after.model, 2e-6);
        assert!(!fused(target, &after.model).changed());
    }
    let skip = vec!["biased".to_owned()];
    let skipped = unfold::fuse(
        &before,
        &FuseOptions {
            skip,
            target: Target::Cpu,
            ..options()
        },
    )
    .unwrap();
    assert!(!skipped.changed());
    // The operator set has no RMSNormalization, the target keeps the operators, or the scale has
    // one number for each token.
    for (target, kept) in [
        (Target::Cpu, rms(22, "0.5", vector)),
        (Target::Portable, rms(23, "0.5", vector)),
        (Target::Cpu, rms(23, "0.5", "const g 4 1 = 1 2 3 4")),
    ] {
        assert!(!fused(target, &kept).changed());
    }
}

#[test]
fn provenance_without_a_target_is_read_as_portable() {
    let named = |options: Option<&str>| {
        let mut folded = rms(22, "0.5", "const g 6 = 1 2 3 4 5 6");
        let entries = [
            ("unfold.version", Some("0.1.0")),
            ("unfold.options", options),
        ];
        let entries = entries
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?)));
        folded.proto.metadata_props = entries
            .map(|(key, value)| StringStringEntryProto {
                key: Some(key.into()),
                value: Some(value.into()),
            })
            .collect();
        let [time] = &Provenance::from_model(&folded)[..] else {
            panic!("it was folded once")
        };
        (time.options.target, time.options.centre)
    };
    assert_eq!(named(None), (Target::Portable, false));
    assert_eq!(
        named(Some(r#"{"skip":[],"centre":true}"#)),
        (Target::Portable, true)
    );
    assert_eq!(
        named(Some(r#"{"skip":[],"target":"cpu"}"#)),
        (Target::Cpu, false)
    );
}
