//! Shifts before a modulation by a condition fold into the layer of the condition. Each test also
//! has a case that stays.

use unfold::Fused;
use unfold::onnx::Model;
use unfold::prove::{Proof, prove};

use crate::common::text::model;
use crate::common::{fuse, operators};
use crate::{is_as_planned, same};

/// A normalizer, `n·(1 + γ) + β`, and a layer after it. The texts give the layer `h` of the
/// condition, its parts `p` and `q`, the factor with γ, and additional lines.
fn modulated(layer: &str, parts: &str, factor: &str, more: &str) -> Model {
    modulated_by(
        "input x batch 3 4\n input c batch 5",
        layer,
        parts,
        "beta = Unsqueeze(q, middle)",
        factor,
        more,
    )
}

/// Like [`modulated`], with other inputs, and with other lines for β.
fn modulated_by(
    inputs: &str,
    layer: &str,
    parts: &str,
    beta: &str,
    factor: &str,
    more: &str,
) -> Model {
    model(&format!(
        "{inputs}
         const g 4 = 2 0.5 -1 4
         shift t 4
         weight w 5 12
         weight b 12
         weight v 4 6
         const one = 1
         ints middle 1 = 1
         ints sizes 3 = 4 4 4
         ints zero 1 = 0
         ints four 1 = 4
         ints eight 1 = 8
         ints twelve 1 = 12
         {layer}
         {parts}
         gamma = Unsqueeze(p, middle)
         {beta}
         {factor}
         m = Mul(x, g)
         n = Add(m, t)
         k = Mul(n, f)
         s = Add(k, beta)
         y = MatMul(s, v)
         output y
         {more}"
    ))
}

const LAYER: &str = "h = Gemm(c, w, b)";
const PARTS: &str = "q, p, rest = Split(h, sizes) axis=1
                     output rest";
const FACTOR: &str = "f = Add(gamma, one)";

fn folded(before: &Model) -> Fused {
    let after = fuse(before);
    is_as_planned(before, &after);
    same(before, &after.model, 1e-6);
    let proof = prove(
        before,
        &after.model,
        &after.plan.tensors,
        &Default::default(),
    );
    assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
    let again = fuse(&after.model);
    assert!(
        again.plan.is_empty(),
        "{}",
        crate::common::text::print(&after.model)
    );
    after
}

/// Whether the normalizer was removed.
fn is_removed(fused: &Fused) -> bool {
    fused
        .plan
        .sites
        .iter()
        .find(|site| site.name == "Mul_m")
        .unwrap()
        .is_folded()
}

fn counts(model: &Model) -> [usize; 2] {
    ["Add", "Mul"].map(|op| {
        operators(model)
            .iter()
            .filter(|&&other| other == op)
            .count()
    })
}

#[test]
fn shift_before_modulation_folds_into_the_condition_layer() {
    for (layer, adds) in [
        (LAYER, 0),
        ("h = Gemm(c, w, b) alpha=0.5 beta=3.0", 0),
        ("weight turned 12 5\n h = Gemm(c, turned, b) transB=1", 0),
        ("h = Gemm(c, w)", 0),
        ("const single = 2\n h = Gemm(c, w, single)", 0),
        ("h = MatMul(c, w)", 1),
        ("o = MatMul(c, w)\n h = Add(o, b)", 1),
    ] {
        let before = modulated(layer, PARTS, FACTOR, "");
        let after = folded(&before);
        assert!(is_removed(&after), "{layer}: {:#?}", after.plan.sites);
        // The remaining Adds are the sum with β and that of the layer. The constant 1 in 1 + γ is
        // in the bias of the layer.
        assert_eq!(counts(&after.model), [1 + adds, 1], "{layer}");
    }
}

#[test]
fn modulation_accepts_slices_and_gamma_plus_any_constant() {
    let slices = "q = Slice(h, zero, four, middle)
                  p = Slice(h, eight, twelve, middle)";
    let overlapping = "q = Slice(h, zero, four, middle)
                       p = Slice(h, middle, five, middle)
                       ints five 1 = 5";
    // The constant may also have an element for each channel.
    let each = "weight each 4\n f = Add(gamma, each)";
    for factor in [
        "f = Identity(gamma)",
        FACTOR,
        "const less = -3\n f = Add(less, gamma)",
        each,
    ] {
        let after = folded(&modulated(LAYER, slices, factor, ""));
        assert!(is_removed(&after), "{factor}: {:#?}", after.plan.sites);
    }
    let after = folded(&modulated(LAYER, overlapping, FACTOR, ""));
    assert!(!is_removed(&after), "{:#?}", after.plan.sites);
}

/// γ and β may come from two layers if these are alike.
#[test]
fn modulation_by_two_layers_folds_if_they_are_alike() {
    let given = "weight wg 5 4\n weight bg 4\n weight wb 5 4\n weight bb 4";
    for (parts, folds) in [
        ("p = Gemm(c, wg, bg)\n q = Gemm(c, wb, bb)", true),
        ("p = Gemm(c, wg)\n q = Gemm(c, wb, bb)", true),
        (
            "p = Gemm(c, wg, bg) alpha=0.5 beta=2.0\n q = Gemm(c, wb, bb) beta=2.0 alpha=0.5",
            true,
        ),
        (
            "o = MatMul(c, wg)\n p = Add(o, bg)\n r = MatMul(c, wb)\n q = Add(r, bb)",
            true,
        ),
        // Both layers must have equal scales, the same form, and the same input.
        ("p = Gemm(c, wg, bg)\n q = Gemm(c, wb, bb) alpha=0.5", false),
        (
            "p = Gemm(c, wg, bg)\n r = MatMul(c, wb)\n q = Add(r, bb)",
            false,
        ),
        (
            "d = Relu(c)\n p = Gemm(d, wg, bg)\n q = Gemm(c, wb, bb)",
            false,
        ),
    ] {
        for factor in ["f = Identity(gamma)", FACTOR] {
            let before = modulated("", &format!("{given}\n{parts}"), factor, "");
            let after = fuse(&before);
            is_as_planned(&before, &after);
            assert_eq!(
                is_removed(&after),
                folds,
                "{parts} {factor}: {:#?}",
                after.plan.sites
            );
            if folds {
                folded(&before);
            }
        }
    }
}

#[test]
fn modulation_with_another_reader_or_producer_stays() {
    let other = "weight w2 5 4\n q = MatMul(c, w2)\n p, rest = Split(h, two)  axis=1\n ints two 2 = 4 8\n output rest";
    for (layer, parts, factor, more) in [
        (LAYER, PARTS, FACTOR, "output beta"),
        (LAYER, PARTS, FACTOR, "z = Relu(beta)\n output z"),
        (LAYER, PARTS, FACTOR, "output h"),
        (LAYER, PARTS, FACTOR, "output k"),
        (LAYER, PARTS, FACTOR, "z = Relu(n)\n output z"),
        (LAYER, PARTS, "o = Relu(gamma)\n f = Add(o, one)", ""),
        (LAYER, other, FACTOR, ""),
    ] {
        let before = modulated(layer, parts, factor, more);
        let after = folded(&before);
        assert!(
            !is_removed(&after),
            "{parts} {factor} {more}: {:#?}",
            after.plan.sites
        );
    }
}

/// As in DiT, the same layer also gives the parts for the second normalizer of a block.
#[test]
fn two_normalizers_fold_into_one_condition_layer() {
    for (layer, adds) in [("Gemm", 0), ("MatMul", 1)] {
        let parts = format!(
            "ints fours 4 = 4 4 4 4
             weight w2 5 16
             h2 = {layer}(c, w2)
             q, p, q2, p2 = Split(h2, fours) axis=1
             output h"
        );
        let second = "const g2 4 = 2 0.5 -1 4
             shift t2 4
             m2 = Mul(x, g2)
             n2 = Add(m2, t2)
             gamma2 = Unsqueeze(p2, middle)
             beta2 = Unsqueeze(q2, middle)
             f2 = Add(gamma2, one)
             k2 = Mul(n2, f2)
             s2 = Add(k2, beta2)
             weight v2 4 6
             y2 = MatMul(s2, v2)
             output y2";
        let after = folded(&modulated(LAYER, &parts, FACTOR, second));
        let sites: Vec<bool> = after
            .plan
            .sites
            .iter()
            .map(|site| site.is_folded())
            .collect();
        // The constants in 1 + γ fold too. A MatMul then needs an Add for the shift, and both sums
        // with β remain.
        assert_eq!(sites, [true; 4], "{layer}");
        assert_eq!(counts(&after.model), [2 + adds, 2], "{layer}");
    }
}

/// As in a U-Net, the activation stops the scale, and the factor absorbs it.
#[test]
fn scale_before_an_activation_folds_into_the_other_factor() {
    let behind = |more: &str| {
        modulated(
            LAYER,
            PARTS,
            FACTOR,
            &format!("e = Sigmoid(s)\n z = MatMul(e, v)\n output z\n {more}"),
        )
    };
    let after = folded(&behind(""));
    assert!(is_removed(&after), "{:#?}", after.plan.sites);
    assert_eq!(counts(&after.model), [1, 1]);
    for more in ["output gamma", "z2 = Relu(f)\n output z2"] {
        let after = folded(&behind(more));
        assert!(!is_removed(&after), "{more}: {:#?}", after.plan.sites);
    }
    // Without a sum after it, and with a factor that a layer computes: s·x times v·c.
    let gated = model(
        "input x batch 4
         input c batch 5
         scale g 4
         weight w 5 4
         weight b 4
         m = Mul(x, g)
         h = Gemm(c, w, b)
         k = Mul(m, h)
         y = Tanh(k)
         output y",
    );
    let after = folded(&gated);
    assert_eq!(operators(&after.model), ["Gemm", "Mul", "Tanh"]);
}

/// The summand must have the same axes as the factor, and come from the same rows of the weight.
#[test]
fn summand_with_other_axes_than_the_factor_is_no_modulation() {
    let (pairs, layer, like_it) = (
        "input x 3 3 4\n input c 3 5",
        "h = Gemm(c, w, b)",
        "beta = Unsqueeze(q, middle)",
    );
    let turned = "q2 = Unsqueeze(q, middle)\n beta = Transpose(q2) perm=[1,0,2]";
    for (inputs, layer, beta, folds) in [
        (pairs, layer, like_it, true),
        // The factor varies along one axis of the pairs, and the summand along the other one.
        (pairs, layer, "beta = Unsqueeze(q, zero)", false),
        (pairs, layer, turned, false),
        // The weight is the left operand, so its rows are not the channels.
        (
            "input x 12 3 4\n input c 5 12",
            "weight left 12 5\n o = MatMul(left, c)\n h = Add(o, b)",
            like_it,
            false,
        ),
        // The layer has another summand, which is an input.
        (
            "input x 3 3 4\n input c 3 5\n input d 3 12",
            "o = Gemm(c, w, d)\n h = Add(o, b)",
            like_it,
            false,
        ),
    ] {
        let after = folded(&modulated_by(inputs, layer, PARTS, beta, FACTOR, ""));
        assert_eq!(
            is_removed(&after),
            folds,
            "{layer} {beta}: {:#?}",
            after.plan.sites
        );
    }
}
