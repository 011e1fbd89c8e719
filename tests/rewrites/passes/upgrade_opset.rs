//! The version of the operator set is raised for operators that a model writes out.

use crate::common::portable;
use unfold::FuseOptions;
use unfold::onnx::Model;
use unfold::onnx::proto::{FunctionProto, OperatorSetIdProto};
use unfold::plan::OpsetUpgrade;
use unfold::prove::{Proof, prove};

use crate::affine::scalars::{RAMP, WRITTEN, behind_product};
use crate::common::text::model;
use crate::common::{node, undeclared};
use crate::{fuse, operators, same};

/// A model in a version of the operator set that writes out a HardSwish, followed by the lines
/// `behind`.
fn written_out_hard_swish(opset: i64, behind: &str) -> Model {
    behind_product(opset, &format!("{RAMP}{}", WRITTEN[0]), behind)
}

/// The result for a model. Asserts that it has a HardSwish, is equal, proved and stable, and that
/// its format version allows the operator set.
fn upgraded(before: &Model) -> Model {
    let after = fuse(before);
    assert!(
        operators(&after.model).contains(&"HardSwish"),
        "{:?}",
        operators(&after.model)
    );
    let from = before.own_opset();
    assert_eq!(after.plan.tidy.raised, Some(OpsetUpgrade { from, to: 14 }));
    assert_eq!(after.model.own_opset(), 14);
    assert_eq!(
        after.model.proto.ir_version(),
        before.proto.ir_version().max(7)
    );
    same(before, &after.model, 1e-6);
    let proof = prove(
        before,
        &after.model,
        &after.plan.tensors,
        &Default::default(),
    );
    assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
    assert_eq!(fuse(&after.model).model.proto, after.model.proto);
    after.model
}

fn assert_not_upgraded(before: &Model) {
    let after = fuse(before);
    assert_eq!(after.plan.tidy.raised, None);
    assert_eq!(after.model.own_opset(), before.own_opset());
    assert!(!operators(&after.model).contains(&"HardSwish"));
    same(before, &after.model, 1e-6);
}

#[test]
fn opset_is_upgraded_for_a_written_out_hard_swish() {
    for opset in 11..14 {
        for ir in [4, 7, 8] {
            let mut before = written_out_hard_swish(opset, "weight w 6 3\n y = MatMul(g, w)");
            before.proto.ir_version = Some(ir);
            assert_eq!(
                operators(&upgraded(&before)),
                ["MatMul", "HardSwish", "MatMul"]
            );
        }
    }
}

#[test]
fn upgrade_turns_axes_and_split_attributes_into_inputs() {
    let behind = "k = Transpose(g) perm=[0,2,1]
         q = Unsqueeze(k) axes=[0,-1]
         p, r = Split(q) axis=3 split=[1,3]
         t = ReduceSum(r) axes=[3] keepdims=1
         s = Mul(t, p)
         y = Squeeze(s) axes=[0,4]";
    for opset in 11..14 {
        let before = match opset {
            // In version 13, axes and split are already inputs.
            13 => written_out_hard_swish(
                13,
                "ints first 1 = 0\n q = Unsqueeze(g, first)\n y = Squeeze(q, first)\n z = Relu(y)\n output z",
            ),
            _ => written_out_hard_swish(opset, behind),
        };
        let after = upgraded(&before);
        let attributes = after.graph().node.iter().flat_map(|node| &node.attribute);
        assert!(
            attributes
                .into_iter()
                .all(|attribute| !["axes", "split"].contains(&attribute.name()))
        );
    }
    let after = upgraded(&written_out_hard_swish(12, behind));
    let inputs = |op: &str| {
        after
            .graph()
            .node
            .iter()
            .find(|node| node.op_type() == op)
            .unwrap()
            .input
            .len()
    };
    assert_eq!(
        ["Unsqueeze", "Split", "ReduceSum", "Squeeze"].map(inputs),
        [2; 4]
    );
}

#[test]
fn upgrade_does_not_reuse_existing_names() {
    let behind = "Squeeze_y_axes = Unsqueeze(g) axes=[0]
         r = Relu(Squeeze_y_axes)
         y = Squeeze(r) axes=[0]
         output Squeeze_y_axes";
    upgraded(&written_out_hard_swish(12, behind));
}

#[test]
fn upgrade_accepts_softmax_of_the_last_axis() {
    for last in ["axis=-1", "axis=2"] {
        upgraded(&written_out_hard_swish(
            12,
            &format!("y = Softmax(g) {last}"),
        ));
        upgraded(&written_out_hard_swish(
            11,
            &format!("y = LogSoftmax(g) {last}"),
        ));
    }
    // With two axes, the default axis 1 is the last.
    upgraded(&written_out_hard_swish(
        12,
        "m = ReduceMean(g) axes=[1] keepdims=0\n y = Softmax(m)",
    ));
    upgraded(&written_out_hard_swish(13, "y = Softmax(g) axis=1"));
}

#[test]
fn operators_that_change_meaning_prevent_the_upgrade() {
    for behind in [
        "y = Softmax(g)",
        "y = Softmax(g) axis=1",
        "y = LogSoftmax(g) axis=0",
    ] {
        assert_not_upgraded(&written_out_hard_swish(12, behind));
    }
    for (opset, behind) in [
        (11, "y, m = Dropout(g) ratio=0.5\n output m"),
        (12, "y = Hardmax(g) axis=-1"),
    ] {
        assert_eq!(
            fuse(&written_out_hard_swish(opset, behind))
                .plan
                .tidy
                .raised,
            None
        );
    }
    let resized = "y = Resize(g, , s) coordinate_transformation_mode=tf_half_pixel_for_nn";
    let before = written_out_hard_swish(12, &format!("const s 3 = 1 2 2\n {resized}"));
    assert_eq!(fuse(&before).plan.tidy.raised, None);
    assert!(
        fuse(&written_out_hard_swish(
            12,
            "const s 3 = 1 2 2\n y = Resize(g, , s)"
        ))
        .plan
        .tidy
        .raised
        .is_some()
    );
    // A Dropout in inference is an identity and is removed.
    upgraded(&written_out_hard_swish(
        11,
        "d = Dropout(g) ratio=0.5\n y = Relu(d)",
    ));
    let before = written_out_hard_swish(9, "weight w 6 3\n y = MatMul(g, w)");
    assert_eq!(fuse(&before).plan.tidy.raised, None);
}

#[test]
fn ir_version_3_prevents_the_upgrade() {
    let mut before = written_out_hard_swish(12, "weight w 6 3\n y = MatMul(g, w)");
    before.proto.ir_version = Some(3);
    assert_eq!(fuse(&before).plan.tidy.raised, None);
}

#[test]
fn functions_prevent_the_upgrade() {
    let mut before = written_out_hard_swish(12, "weight w 6 3\n y = MatMul(g, w)");
    before.proto.functions.push(FunctionProto {
        name: Some("unused".into()),
        domain: Some("own".into()),
        opset_import: vec![OperatorSetIdProto {
            domain: None,
            version: Some(12),
        }],
        ..Default::default()
    });
    assert_not_upgraded(&before);
}

#[test]
fn skipped_hard_swish_prevents_the_upgrade() {
    let before = written_out_hard_swish(12, "weight w 6 3\n y = MatMul(g, w)");
    for skip in ["hard swish", "Add_a"] {
        let options = FuseOptions {
            skip: vec![skip.to_owned()],
            ..portable()
        };
        let after = unfold::fuse(&before, &options).unwrap();
        assert_eq!(
            (after.plan.tidy.raised, after.model.own_opset()),
            (None, 12),
            "{skip}"
        );
    }
    let options = FuseOptions {
        skip: vec!["hard swish".to_owned()],
        ..portable()
    };
    let after = unfold::fuse(&before, &options).unwrap();
    assert!(options.idle_skips(&before, &after.plan).is_empty());
}

#[test]
fn upgrade_includes_bodies() {
    let part = |lines: &str| model(lines).proto.graph.unwrap();
    let mut before = written_out_hard_swish(12, "condition c1\n y = Relu(g)");
    let branches = vec![
        (
            "then_branch",
            part("t = Unsqueeze(g) axes=[0]\n s = Squeeze(t) axes=[0]\n then = Tanh(s)\n output then").into(),
        ),
        ("else_branch", part("other = Softmax(g) axis=-1\n output other").into()),
    ];
    before
        .graph_mut()
        .node
        .push(node("If", &["c1"], &["z"], branches));
    before.graph_mut().output.push(undeclared("z"));
    upgraded(&before);
}

/// The prover does not prove two models equal if an operator means something else in the other
/// version of the operator set.
#[test]
fn prover_rejects_other_opsets_where_operators_changed_meaning() {
    let of = |opset: i64, op: &str| {
        model(&format!(
            "opset {opset}\n input x 2 4 6\n y = {op}\n output y"
        ))
    };
    let proof = |one: &str, other: &str, sets: [i64; 2]| {
        prove(
            &of(sets[0], one),
            &of(sets[1], other),
            &[],
            &Default::default(),
        )
    };
    for sets in [[12, 14], [12, 17], [14, 12]] {
        let same = proof("Softmax(x) axis=-1", "Softmax(x) axis=-1", sets);
        assert!(matches!(same, Proof::Proved { .. }), "{same:?}");
    }
    for (op, sets) in [
        ("Softmax(x) axis=1", [12, 14]),
        ("Softmax(x)", [12, 13]),
        ("Hardmax(x)", [12, 14]),
        ("Dropout(x)", [11, 14]),
        // The prover supports operator sets from version 11 on.
        ("Softmax(x) axis=-1", [10, 14]),
    ] {
        let proof = proof(op, op, sets);
        assert!(!matches!(proof, Proof::Proved { .. }), "{op} {sets:?}");
    }
}
