//! A residual around a gate, `x + x·g`.

use crate::common::text::model;
use crate::*;

/// A convolution with a gate of channels. `steps` are operators on both.
fn gated(steps: &str) -> Model {
    model(&format!(
        "opset 17
         input x 2 3 h w
         weight k 4 3 1 1
         u = Conv(x, k)
         p = GlobalAveragePool(u)
         g = Tanh(p)
         {steps}
         y = Relu(o)
         output y"
    ))
}

#[test]
fn gated_residual_becomes_one_mul_of_full_size() {
    for (steps, op) in [
        ("m = Mul(u, g)\n o = Add(u, m)", "Add"),
        ("m = Mul(g, u)\n o = Add(m, u)", "Add"),
        ("m = Mul(u, g)\n o = Sub(u, m)", "Sub"),
        ("m = Mul(g, u)\n o = Sub(m, u)", "Sub"),
    ] {
        let before = gated(steps);
        let after = fuse(&before);
        same(&before, &after.model, 1e-6);
        is_as_planned(&before, &after);
        let site = after
            .plan
            .sites
            .iter()
            .find(|site| site.kind.name == "gated residual")
            .unwrap();
        assert!(site.is_folded());
        assert_eq!(
            operators(&after.model),
            ["Conv", "GlobalAveragePool", "Tanh", op, "Mul", "Relu"],
            "{steps}"
        );
        assert_eq!(fuse(&after.model).model.proto, after.model.proto);
    }
}

#[test]
fn gated_residual_stays_without_a_smaller_gate() {
    for steps in [
        // The gate has as many elements as the value.
        "t = Tanh(u)\n m = Mul(u, t)\n o = Add(u, m)",
        // The product has another reader.
        "m = Mul(u, g)\n o = Add(u, m)\n output m",
        // The gate is on another value.
        "t = Tanh(u)\n m = Mul(t, g)\n o = Add(u, m)",
        // The gate is the summand.
        "m = Mul(u, g)\n o = Add(g, m)",
    ] {
        let before = gated(steps);
        let after = fuse(&before);
        assert!(
            after
                .plan
                .sites
                .iter()
                .all(|site| site.kind.name != "gated residual"),
            "{steps}"
        );
        assert_eq!(operators(&after.model), operators(&before), "{steps}");
    }
}

/// A gate of channels, which a HardSigmoid computes from a layer's result `v`. `steps` compute `o`
/// from it.
fn ramped(opset: usize, steps: &str) -> Model {
    model(&format!(
        "opset {opset}
         input x 2 3 h w
         const one = 1
         const two = 2
         const half = 0.5
         const low = -0.75
         weight k 4 3 1 1
         weight l 4 4 1 1
         shift b 4
         u = Conv(x, k)
         p = GlobalAveragePool(u)
         v = Conv(p, l, b)
         {steps}
         y = Mul(u, o)
         output y"
    ))
}

#[test]
fn affine_after_hard_sigmoid_folds_into_the_layer_before_a_clip() {
    for (opset, steps) in [
        (17, "g = HardSigmoid(v)\n o = Add(g, one)"),
        (9, "g = HardSigmoid(v) alpha=0.16666667\n o = Add(one, g)"),
        (
            11,
            "g = HardSigmoid(v) alpha=0.3 beta=0.25\n d = Mul(g, two)\n o = Add(d, low)",
        ),
        (
            17,
            "g = HardSigmoid(v)\n m = Mul(u, g)\n q = Add(u, m)\n o = Tanh(q)",
        ),
    ] {
        let before = ramped(opset, steps);
        let after = fuse(&before);
        same(&before, &after.model, 1e-6);
        is_as_planned(&before, &after);
        let proof = unfold::prove::prove(
            &before,
            &after.model,
            &after.plan.tensors,
            &Default::default(),
        );
        assert!(
            matches!(proof, unfold::prove::Proof::Proved { .. }),
            "{proof:?}"
        );
        let made = operators(&after.model);
        assert_eq!(
            made[..4],
            ["Conv", "GlobalAveragePool", "Conv", "Clip"],
            "{steps}"
        );
        assert_eq!(made[4], "Mul");
        assert_eq!(fuse(&after.model).model.proto, after.model.proto);
    }
}

#[test]
fn hard_sigmoid_stays_where_the_affine_after_it_cannot_fold() {
    for steps in [
        // Another node reads the ramp, or its input.
        "g = HardSigmoid(v)\n o = Add(g, one)\n output g",
        "g = HardSigmoid(v)\n o = Add(g, one)\n output v",
        // The input of the ramp is not the result of a layer.
        "t = Tanh(v)\n g = HardSigmoid(t)\n o = Add(g, one)",
        // A halved ramp is not recognized.
        "g = HardSigmoid(v)\n h = Mul(g, half)\n s = Add(h, one)\n o = Tanh(s)",
        // The ramp is subtracted.
        "g = HardSigmoid(v)\n o = Sub(one, g)",
    ] {
        let before = ramped(17, steps);
        let after = fuse(&before);
        same(&before, &after.model, 1e-6);
        assert!(operators(&after.model).contains(&"HardSigmoid"), "{steps}");
    }
}
