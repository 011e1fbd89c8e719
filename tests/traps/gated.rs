//! A residual around a gate, `x + x·g`.

use super::*;
use crate::common::text::model;

/// A gate of channels on a convolution, around which `steps` are.
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
fn a_residual_around_a_smaller_gate_is_one_product_over_all_elements() {
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
        let site = after.plan.sites.iter().find(|site| site.kind.name == "gated residual").unwrap();
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
fn a_residual_stays_where_another_form_saves_nothing() {
    for steps in [
        // A gate of as many elements.
        "t = Tanh(u)\n m = Mul(u, t)\n o = Add(u, m)",
        // The product is read elsewhere.
        "m = Mul(u, g)\n o = Add(u, m)\n output m",
        // Of another value.
        "t = Tanh(u)\n m = Mul(t, g)\n o = Add(u, m)",
        // The gate is what is added.
        "m = Mul(u, g)\n o = Add(g, m)",
    ] {
        let before = gated(steps);
        let after = fuse(&before);
        assert!(after.plan.sites.iter().all(|site| site.kind.name != "gated residual"), "{steps}");
        assert_eq!(operators(&after.model), operators(&before), "{steps}");
    }
}
