//! Bounded functions between affines, and patterns that resemble them.

use unfold::Fused;
use unfold::onnx::Model;
use unfold::plan::Outcome;
use unfold::refusal::Reason;

use crate::common::numbers::Kind;
use crate::common::{judge, text};
use crate::{TOLERANCE, fuse, is_folded};

/// A model in which the lines `function` compute `f` from `z`. Before it are a linear layer, a
/// scale and a shift, and after it γ, β and another linear layer.
fn between(function: &str) -> Model {
    text::model(&format!(
        "input x 2 4 4
         input v 4
         weight w 4 4
         const alpha 1 = 0.5
         const shift 1 = 0.25
         const zero = 0
         const one = 1
         const minus = -1
         const two = 2
         const six = 6
         const arc = 0.6366197723675814
         const right = 1.5707963267948966
         const left = -1.5707963267948966
         const inverse = -0.5
         const gamma 4 = 1 -2 3 4
         const beta 4 = -1 0 2 1
         l = MatMul(x, w)
         s = Mul(l, alpha)
         z = Add(s, shift)
         {function}
         g = Mul(f, gamma)
         n = Add(g, beta)
         y = MatMul(n, w)
         output y"
    ))
}

/// The result for a model. Asserts that it computes the same.
fn folded(model: &Model) -> Fused {
    let fused = fuse(model);
    let inputs = judge::inputs(model, 2, true, Kind::Real);
    assert_eq!(
        judge::agree(model, &fused.model, &inputs, TOLERANCE),
        Ok(true),
        "{}",
        text::print(model)
    );
    fused
}

fn kinds(fused: &Fused) -> Vec<&'static str> {
    fused.plan.sites.iter().map(|site| site.kind.name).collect()
}

#[test]
fn bounded_functions_are_recognized_and_fold() {
    let functions = [
        ("Derf", "f = Erf(z)"),
        ("DyT", "f = Tanh(z)"),
        ("DySS", "a = Abs(z)\n b = Add(one, a)\n f = Div(z, b)"),
        (
            "pointwise",
            "a = Mul(z, z)\n b = Add(a, one)\n r = Sqrt(b)\n f = Div(z, r)",
        ),
        (
            "pointwise",
            "a = Pow(z, two)\n b = Add(one, a)\n r = Pow(b, inverse)\n f = Mul(r, z)",
        ),
        (
            "pointwise",
            "a = Pow(z, two)\n b = Add(one, a)\n r = Sqrt(b)\n i = Reciprocal(r)\n f = Mul(z, i)",
        ),
        ("pointwise", "a = Atan(z)\n f = Mul(a, arc)"),
        (
            "pointwise",
            "a = Abs(z)\n b = Neg(a)\n e = Exp(b)\n d = Sub(e, one)\n s1 = Sign(z)\n m = Mul(s1, d)\n f = Neg(m)",
        ),
        ("pointwise", "f = Clip(z, minus, one)"),
        ("pointwise", "c = Clip(z, left, right)\n f = Sin(c)"),
        (
            "pointwise",
            "a = Abs(z)\n b = Add(a, one)\n e = Log(b)\n s1 = Sign(z)\n m = Mul(s1, e)\n f = Clip(m, minus, one)",
        ),
    ];
    for (kind, function) in functions {
        let fused = folded(&between(function));
        assert_eq!(kinds(&fused), [kind], "{function}");
        let site = &fused.plan.sites[0];
        // γ and β fold into the second layer, and α and the shift into the first.
        assert!(
            is_folded(site) && matches!(site.pre, Some(Outcome::Folded { .. })),
            "{function}: {site:?}"
        );
    }
}

#[test]
fn unbounded_or_per_channel_functions_are_not_pointwise() {
    let others = [
        // Two functions that grow without bound, and a Clip.
        "a = Abs(z)\n b = Add(a, one)\n r = Sqrt(b)\n f = Div(z, r)",
        "a = Sigmoid(z)\n f = Mul(z, a)",
        "f = Clip(z, zero, six)",
        // The root is of another value.
        "o = Neg(x)\n a = Mul(o, o)\n b = Add(a, one)\n r = Sqrt(b)\n f = Div(z, r)",
        // The function differs between channels.
        "p = Abs(gamma)\n a = Mul(z, z)\n b = Add(a, p)\n r = Sqrt(b)\n f = Div(z, r)",
        "a = Mul(z, z)\n b = Add(a, v)\n c = Abs(b)\n d = Add(c, one)\n r = Sqrt(d)\n f = Div(z, r)",
        // The divisor is a statistic of the token.
        "a = Mul(z, z)\n m = ReduceMean(a) axes=[-1]\n b = Add(m, one)\n r = Sqrt(b)\n f = Div(z, r)",
    ];
    for function in others {
        let fused = folded(&between(function));
        assert!(
            !kinds(&fused).contains(&"pointwise"),
            "{function}: {:?}",
            fused.plan.sites
        );
    }
}

#[test]
fn pointwise_sites_need_constant_affines() {
    for (from, to) in [
        ("Mul(l, alpha)", "Mul(l, v)"),
        ("Mul(f, gamma)", "Mul(f, v)"),
    ] {
        for function in ["f = Erf(z)", "f = Atan(z)"] {
            let mut model = between(function);
            let [from, to] = [from, to].map(|call| {
                let inner = call.trim_start_matches("Mul(").trim_end_matches(')');
                inner.split(", ").map(str::to_owned).collect::<Vec<_>>()
            });
            let node = model
                .graph_mut()
                .node
                .iter_mut()
                .find(|node| node.input == from)
                .unwrap();
            node.input = to;
            let fused = folded(&model);
            let pre = |site: &unfold::plan::SitePlan| site.pre.is_some();
            assert!(
                !fused.plan.sites.iter().any(pre),
                "{from:?} {function}: {:?}",
                fused.plan.sites
            );
        }
    }
}

/// With `unit_offset`, γ and α are stored less 1, and the graph adds 1.
#[test]
fn dynamic_tanh_with_unit_offset_parameters_folds() {
    let model = text::model(
        "input x 2 4 4
         weight w 4 4
         const alpha 1 = -0.5
         const gamma 4 = 0 -2 3 4
         const one = 1
         a = Add(alpha, one)
         g = Add(gamma, one)
         l = MatMul(x, w)
         z = Mul(a, l)
         t = Tanh(z)
         n = Mul(t, g)
         y = MatMul(n, w)
         output y",
    );
    let fused = folded(&model);
    assert_eq!(kinds(&fused), ["DyT"]);
    let left: Vec<&str> = fused
        .model
        .graph()
        .node
        .iter()
        .map(|node| node.op_type())
        .collect();
    assert_eq!(left, ["MatMul", "Tanh", "MatMul"]);
}

/// The divisor folds into the queries with the scale of attention, and the factor stays before the
/// Softmax.
#[test]
fn soft_capping_divisor_folds_into_the_queries() {
    let model = text::model(
        "input x 2 4 4
         weight q 4 4
         weight k 4 4
         const scale = 0.5
         const cap = 50
         a = MatMul(x, q)
         b = MatMul(x, k)
         turned = Transpose(b) perm=[0,2,1]
         scores = MatMul(a, turned)
         scaled = Mul(scores, scale)
         small = Div(scaled, cap)
         t = Tanh(small)
         capped = Mul(t, cap)
         p = Softmax(capped) axis=-1
         y = MatMul(p, x)
         output y",
    );
    let fused = folded(&model);
    assert_eq!(kinds(&fused), ["soft capping"]);
    let site = &fused.plan.sites[0];
    assert!(
        matches!(&site.pre, Some(Outcome::Folded { into, .. }) if into.len() == 1),
        "{site:?}"
    );
    assert!(matches!(&site.post, Some(Outcome::Kept { forward, .. })
        if forward.reason == Reason::NotLinear("Softmax".into())));
    assert_eq!(fused.model.graph().node.len(), model.graph().node.len() - 2);
}
