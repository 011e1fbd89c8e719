//! Scalars, single scales and single shifts: operators that they move through, and operators that
//! stop them.

use crate::common::portable;
use unfold::Fused;
use unfold::onnx::Model;
use unfold::plan::{Outcome, SitePlan};
use unfold::refusal::Reason;

use crate::common::reference::constant;
use crate::common::text::model;
use crate::common::{fuse, initializer, is_proved_or_listed, undeclared};
use crate::{folded, kept, operators, reasons_of, same};

/// A scalar on `[2, 4, 6]`, the operators that it moves through, and a MatMul.
fn forward(number: &str, steps: &str) -> Model {
    model(&format!(
        "input x 2 4 6
         const k = {number}
         r = Floor(x)
         m = Mul(k, r)
         {steps}
         output y"
    ))
}

/// A MatMul, operators that a scalar after them moves through backward, and no operator that could
/// absorb it forward.
fn backward(number: &str, steps: &str) -> Model {
    model(&format!(
        "input x 2 4 6
         weight w 6 6
         l = MatMul(x, w)
         {steps}
         const k = {number}
         m = Mul(v, k)
         y = Floor(m)
         output y"
    ))
}

const MATMUL: &str = "weight w 6 3\n y = MatMul(v, w)\n";

fn has_no_mul(model: &Model) {
    assert!(
        !operators(model)
            .iter()
            .any(|op| ["Mul", "Div"].contains(op)),
        "{:?}",
        operators(model)
    );
}

#[test]
fn learnable_affine_block_folds_into_neighbouring_convs() {
    let block = model(
        "input x 2 3 4 4
         weight v 4 3 1 1
         shift b 4
         c = Conv(x, v, b)
         const s 1 = 2
         const t 1 = 3
         m = Mul(s, c)
         n = Add(m, t)
         r = Floor(n)
         const six = 4
         d = Div(r, six)
         const u 1 = 8
         const z 1 = -1
         e = Mul(u, d)
         f = Add(e, z)
         weight w 2 4 1 1
         y = Conv(f, w)
         output y",
    );
    assert_eq!(operators(&folded(&block)), ["Conv", "Floor", "Conv"]);
}

#[test]
fn mul_by_one_and_add_of_zero_are_removed() {
    let text = |number: &str, op: &str| {
        model(&format!(
            "input x 2 3\n const c = {number}\n r = Floor(x)\n m = {op}(r, c)\n y = Relu(m)\n output y"
        ))
    };
    for (number, op) in [("1", "Mul"), ("1", "Div"), ("0", "Add"), ("0", "Sub")] {
        assert_eq!(
            operators(&folded(&text(number, op))),
            ["Floor", "Relu"],
            "{op}"
        );
    }
    // The result is a graph output and keeps its name.
    let output = model("input x 2 3\n const c = 1\n r = Floor(x)\n y = Mul(r, c)\n output y");
    assert_eq!(operators(&folded(&output)), ["Floor"]);
    // A constant of a higher rank changes the shape of the value.
    let wider = model(
        "input x 2 3\n const c 1 1 1 = 1\n r = Floor(x)\n m = Mul(r, c)\n y = Floor(m)\n output y",
    );
    assert!(fuse(&wider).plan.sites.is_empty());
    // A product of integers is not a scale.
    let counted = model(
        "input x 2 3\n s = Shape(x)\n ints two 1 = 2\n m = Mul(s, two)\n y = Tile(x, m)\n output y",
    );
    assert!(fuse(&counted).plan.sites.is_empty());
}

#[test]
fn residual_branch_and_embedding_multipliers_fold_backward() {
    let residual = model(
        "input x 2 6
         weight w 6 6
         shift b 6
         const half = 0.5
         l = MatMul(x, w)
         a = Add(l, b)
         h = Mul(a, half)
         y = Add(x, h)
         output y",
    );
    // The branches merge to x·(½w + 1) + ½b.
    assert_eq!(operators(&folded(&residual)), ["MatMul", "Add"]);
    let embedding = model(
        "indices i 3
         input p 3 4
         weight t 5 4
         const root = 2
         g = Gather(t, i)
         n = Mul(g, root)
         s = Add(n, p)
         y = Floor(s)
         output y",
    );
    assert_eq!(operators(&folded(&embedding)), ["Gather", "Add", "Floor"]);
}

#[test]
fn relu_abs_and_max_pass_positive_scalars_only() {
    let image = |number: &str, op: &str| {
        model(&format!(
            "input x 2 4 4 4
             const k = {number}
             r = Floor(x)
             m = Mul(r, k)
             v = {op}
             weight w 2 4 1 1
             y = Conv(v, w)
             output y"
        ))
    };
    for op in [
        "Relu(m)",
        "Abs(m)",
        "LeakyRelu(m) alpha=0.25",
        "MaxPool(m) kernel_shape=[2,2] pads=[1,1,1,1]",
        "GlobalMaxPool(m)",
        "ReduceMax(m) axes=[3]",
        "ReduceMin(m) axes=[3]",
        "ReduceL1(m) axes=[3]",
    ] {
        has_no_mul(&folded(&image("2", op)));
        let name = op.split('(').next().unwrap();
        for number in ["-2", "0"] {
            assert_eq!(
                kept(&image(number, op)).0,
                Reason::NotLinear(name.into()),
                "{op} {number}"
            );
        }
    }
    has_no_mul(&folded(&backward("2", "v = Relu(l)")));
    assert_eq!(
        kept(&backward("-2", "v = Relu(l)")).1,
        Some(Reason::NotLinear("Relu".into()))
    );
    // A scale for each channel changes the numbers before the Relu unequally, and a shift moves the
    // place of its kink.
    let channels = model(
        "input x 2 4 6\n const g 6 = 1 2 4 8 1 2\n r = Floor(x)\n m = Mul(r, g)\n v = Relu(m)\n weight w 6 3\n y = MatMul(v, w)\n output y",
    );
    assert_eq!(kept(&channels).0, Reason::NotLinear("Relu".into()));
    let shifted = forward(
        "2",
        &format!("const t = 1\n n = Add(m, t)\n v = Relu(n)\n {MATMUL}"),
    );
    assert_eq!(kept(&shifted).0, Reason::NotLinear("Relu".into()));
    // The places of the maxima do not change, so their reader does not matter.
    let places = "v, i = MaxPool(m) kernel_shape=[2,2]";
    let both = model(&format!(
        "input x 2 4 4 4\n const k = 2\n r = Floor(x)\n m = Mul(r, k)\n {places}\n weight w 2 4 1 1\n y = Conv(v, w)\n output y"
    ));
    has_no_mul(&folded(&both));
}

#[test]
fn scalars_pass_operators_that_rearrange_elements() {
    for step in [
        "ints a = 1\n v = CumSum(m, a)",
        "ints i 2 4 6 = 0 1 2 3 0 1 2 3 0 1 2 3 0 1 2 3 0 1 2 3 0 1 2 3 0 1 2 3 0 1 2 3 0 1 2 3 0 1 2 3 0 1 2 3 0 1 2 3\n v = GatherElements(m, i) axis=1",
        "v = Trilu(m)",
        "input c 2 4 6\n const z = 0\n p = Greater(c, z)\n v = Where(p, m, z)",
        "input c 2 4 6\n const z = 0\n p = Greater(c, z)\n v = Where(p, m, m)",
    ] {
        has_no_mul(&folded(&forward("-2", &format!("{step}\n {MATMUL}"))));
        has_no_mul(&folded(&backward(
            "-2",
            &step
                .replace("m,", "l,")
                .replace("(m)", "(l)")
                .replace(", m", ", l"),
        )));
    }
    let space = |op: &str, channels: usize| {
        model(&format!(
            "input x 2 4 4 4
             const k = -2
             const t = 3
             r = Floor(x)
             m = Mul(r, k)
             n = Add(m, t)
             v = {op}(n) blocksize=2
             weight w 2 {channels} 1 1
             y = Conv(v, w)
             output y"
        ))
    };
    has_no_mul(&folded(&space("DepthToSpace", 1)));
    has_no_mul(&folded(&space("SpaceToDepth", 16)));
    let einsum = "weight w 6 3\n y = Einsum(m, w) equation=bnc,cd->bnd";
    has_no_mul(&folded(&forward("-2", einsum)));
}

#[test]
fn cum_sum_trilu_and_where_refuse_a_shift() {
    let shifted = |step: &str| {
        forward(
            "2",
            &format!("const t = 1\n n = Add(m, t)\n {step}\n {MATMUL}"),
        )
    };
    for (step, reason) in [
        (
            "ints a = 1\n v = CumSum(n, a)",
            Reason::NotLinear("CumSum".into()),
        ),
        ("v = Trilu(n)", Reason::NotLinear("Trilu".into())),
    ] {
        let model = shifted(step);
        // The scale folds nevertheless.
        assert_eq!(kept(&model).0, reason);
        has_no_mul(&fuse(&model).model);
    }
    let other = "input c 2 4 6\n input z 2 4 6\n p = Greater(c, z)\n v = Where(p, m, z)";
    assert_eq!(
        kept(&forward("2", &format!("{other}\n {MATMUL}"))).0,
        Reason::ResidualStream
    );
    let shifted = shifted(&other.replace("(p, m, z)", "(p, n, z)"));
    assert_eq!(kept(&shifted).0, Reason::ResidualStream);
    let along = model(
        "input x 2 4 6\n const g 6 = 1 2 4 8 1 2\n r = Floor(x)\n m = Mul(r, g)\n ints a = 2\n v = CumSum(m, a)\n weight w 6 3\n y = MatMul(v, w)\n output y",
    );
    assert_eq!(kept(&along).0, Reason::WrongAxis);
}

/// A scale and a shift before a padded convolution whose extents are open.
fn padded(scale: &str, shift: &str) -> Model {
    model(&format!(
        "input x 2 2 height width
         const s 2 1 1 = {scale}
         const t 2 1 1 = {shift}
         r = Floor(x)
         m = Mul(r, s)
         n = Add(m, t)
         weight w 3 2 3 3
         y = Conv(n, w) pads=[1,1,1,1]
         output y"
    ))
}

#[test]
fn scale_folds_and_shift_stays_before_a_padded_conv() {
    let model = padded("2 -4", "3 8");
    let fused = fuse(&model);
    same(&model, &fused.model, 0.0);
    assert_eq!(operators(&fused.model), ["Floor", "Add", "Conv"]);
    let Some(Outcome::Scaled { into, shift }) = &fused.plan.sites[0].post else {
        panic!("{:?}", fused.plan.sites)
    };
    assert_eq!((into.len(), &shift.reason), (1, &Reason::Padding));
    // The new shifts are 3/2 and 8/−4.
    let node = &fused.model.graph().node[1];
    let added = crate::initializer(&fused.model, &node.input[1]);
    let numbers = unfold::onnx::tensor::read_f64(added, &unfold::onnx::Externals::none()).unwrap();
    assert_eq!(numbers.iter().copied().collect::<Vec<_>>(), [1.5, -2.0]);
    // A shift is not divided by 0, or by a number that makes it too large.
    for (scale, shift) in [("2 0", "3 8"), ("2 1e-30", "3 1e20")] {
        let fused = fuse(&padded(scale, shift));
        assert!(
            matches!(fused.plan.sites[0].post, Some(Outcome::Kept { .. })),
            "{:?}",
            fused.plan.sites
        );
    }
}

#[test]
fn constants_inside_gelu_stay() {
    let behind = |activation: &str| {
        model(&format!(
            "input x 2 6
             weight v 6 6
             const half = 0.5
             const root = 1.4142135
             const one = 1
             const two = 2
             const three = 3
             const six = 6
             const zero = 0
             u = MatMul(x, v)
             {activation}
             weight w 6 3
             y = MatMul(g, w)
             output y"
        ))
    };
    let erf = "d = Div(u, root)\n e = Erf(d)\n f = Add(e, one)\n";
    let tanh = "p = Pow(u, three)\n q = Mul(p, half)\n r = Add(u, q)\n s = Mul(r, root)\n t = Tanh(s)\n f = Add(t, one)\n";
    for gelu in [
        format!("{erf} o = Mul(u, f)\n g = Mul(o, half)"),
        format!("{erf} h = Mul(u, half)\n g = Mul(h, f)"),
        format!("{tanh} o = Mul(f, u)\n g = Div(o, two)"),
        format!("{tanh} h = Mul(half, u)\n g = Mul(f, h)"),
        "z = Mul(u, two)\n f = Sigmoid(z)\n g = Mul(u, f)".to_owned(),
    ] {
        let model = behind(&gelu);
        let after = fuse(&model);
        assert_eq!(after.model.proto, model.proto, "{:?}", after.plan.sites);
        // The scale after the GELU folds into the next layer.
        let scaled = behind(&format!(
            "{}\n g = Mul(i, three)",
            gelu.replace("g = ", "i = ")
        ));
        let after = fuse(&scaled);
        same(&scaled, &after.model, 1e-6);
        assert_eq!(operators(&after.model), operators(&model));
    }
    // With a factor other than ½, this is not a GELU.
    let other = behind(&format!("{erf} o = Mul(u, f)\n g = Mul(o, three)"));
    let after = fuse(&other);
    assert_eq!(
        operators(&after.model)
            .iter()
            .filter(|&&op| op == "Mul")
            .count(),
        1
    );
}

/// A scale after a rotary embedding of sliced halves.
fn rotary(number: &str, more: &str) -> Model {
    model(&format!(
        "input x 2 4 6
         input cos 4 6
         input sin 4 6
         input keys 2 6 4
         weight w 6 6
         q = MatMul(x, w)
         ints zero 1 = 0
         ints three 1 = 3
         ints six 1 = 6
         ints last 1 = 2
         a = Slice(q, zero, three, last)
         b = Slice(q, three, six, last)
         n = Neg(b)
         r = Concat(n, a) axis=2
         c = Mul(q, cos)
         s = Mul(r, sin)
         e = Add(c, s)
         const k = {number}
         m = Mul(e, k)
         {more}
         z = MatMul(m, keys)
         y = Softmax(z)
         output y"
    ))
}

#[test]
fn scalar_passes_both_branches_of_rotary_embedding_backward() {
    for number in ["0.5", "-2"] {
        let model = rotary(number, "");
        let fused = fuse(&model);
        assert!(
            fused.plan.sites.iter().all(|site| site.is_folded()),
            "{:#?}",
            fused.plan.sites
        );
        same(&model, &fused.model, 1e-6);
        assert_eq!(
            operators(&fused.model)
                .iter()
                .filter(|&&op| op == "Mul")
                .count(),
            2
        );
    }
    // Another node reads the queries, or the transposed value.
    for reader in ["q", "n", "c"] {
        let mut read = rotary("0.5", "");
        read.graph_mut().output.push(undeclared(reader));
        let fused = fuse(&read);
        assert_eq!(fused.model.proto, read.proto, "{reader}");
        let why = reasons_of(&fused.plan.sites[0]).1;
        assert!(why.is_some(), "{reader}");
    }
    // The factor of a square would have to become its root in the weight, so it stays.
    let squared = model(
        "input x 2 6
         weight w 6 6
         q = MatMul(x, w)
         e = Mul(q, q)
         const k = 4
         m = Mul(e, k)
         y = Floor(m)
         output y",
    );
    assert_eq!(kept(&squared).1, Some(Reason::OtherReader));
}

/// Queries and keys of one product, both multiplied by the same tables. The scale is on the scores.
fn with_tables(apart: &str) -> Model {
    model(&format!(
        "input x 2 4 6
         weight w 6 12
         weight cos 4 6
         weight sin 4 6
         p = MatMul(x, w)
         ints sizes 2 = 6 6
         ints zero 1 = 0
         ints three 1 = 3
         ints six 1 = 6
         ints twelve 1 = 12
         ints last 1 = 2
         {apart}
         qa = Slice(q, zero, three, last)
         qb = Slice(q, three, six, last)
         qn = Neg(qb)
         qr = Concat(qn, qa) axis=2
         qc = Mul(q, cos)
         qs = Mul(qr, sin)
         qe = Add(qc, qs)
         ka = Slice(k, zero, three, last)
         kb = Slice(k, three, six, last)
         kn = Neg(kb)
         kr = Concat(kn, ka) axis=2
         kc = Mul(k, cos)
         ks = Mul(kr, sin)
         ke = Add(kc, ks)
         t = Transpose(ke) perm=[0,2,1]
         z = MatMul(qe, t)
         const h = 0.4
         m = Mul(z, h)
         y = Softmax(m)
         output y"
    ))
}

#[test]
fn scalar_passes_rotary_tables_shared_by_queries_and_keys() {
    let ways = [
        "q, k = Split(p, sizes) axis=2",
        "q = Slice(p, zero, six, last)\nk = Slice(p, six, twelve, last)",
    ];
    for apart in ways {
        let before = with_tables(apart);
        let fused = fuse(&before);
        assert!(
            fused.plan.sites.iter().all(|site| site.is_folded()),
            "{apart}: {:#?}",
            fused.plan.sites
        );
        let tensors: Vec<&str> = fused
            .plan
            .tensors
            .iter()
            .map(|tensor| tensor.name.as_str())
            .collect();
        assert_eq!(
            (tensors, fused.plan.growth),
            (vec!["w_folded"], 0),
            "{apart}"
        );
        same(&before, &fused.model, 1e-5);
        assert!(is_proved_or_listed(&before, &fused).is_ok());
    }
    // If the queries have another reader, only copies of the tables can absorb the scale.
    let mut read = with_tables(ways[0]);
    read.graph_mut().output.push(undeclared("q"));
    let fused = fuse(&read);
    assert!(
        fused.plan.sites[0].is_folded() && fused.plan.growth > 0,
        "{:#?}",
        fused.plan.sites
    );
    same(&read, &fused.model, 1e-5);
}

/// A normalization of several operators, in which γ multiplies the reciprocal, and its readers.
fn beside(centred: &str, reads: &str) -> Model {
    model(&format!(
        "input x batch 4 6
         scale g 6
         shift b 6
         const eps = 0.5
         mu = ReduceMean(x) axes=[-1]
         d = Sub(x, mu)
         q = Mul(d, d)
         v = ReduceMean(q) axes=[-1]
         e = Add(v, eps)
         s = Sqrt(e)
         r = Reciprocal(s)
         f = Mul(r, g)
         {centred}
         {reads}
         output y"
    ))
}

#[test]
fn gamma_beside_the_reciprocal_deviation_folds() {
    let matmul = "weight w 6 3\n y = MatMul(o, w)";
    let plain = beside("n = Mul(d, f)\n o = Add(n, b)", matmul);
    let fused = fuse(&plain);
    assert_eq!(fused.plan.sites[0].kind.name, "LN");
    assert!(
        fused.plan.sites.iter().all(|site| site.is_folded()),
        "{:#?}",
        fused.plan.sites
    );
    same(&plain, &fused.model, 1e-6);
    assert_eq!(
        operators(&fused.model)
            .iter()
            .filter(|&&op| op == "Mul")
            .count(),
        2
    );
    // x·f + (β − μ·f), as batch normalizations of moments are written.
    let moments = beside(
        "n = Mul(x, f)\n h = Mul(mu, f)\n i = Sub(b, h)\n o = Add(n, i)",
        matmul,
    );
    let fused = fuse(&moments);
    assert_eq!(fused.plan.sites[0].kind.name, "LN");
    assert!(
        fused.plan.sites.iter().all(|site| site.is_folded()),
        "{:#?}",
        fused.plan.sites
    );
    same(&moments, &fused.model, 1e-6);
    assert_eq!(
        operators(&fused.model)
            .iter()
            .filter(|&&op| op == "Mul")
            .count(),
        2
    );
    // If the factor broadcasts a value, it stays.
    for narrow in [
        "o = Mul(mu, f)",
        "i = Mul(mu, f)\n o = Add(i, b)",
        "o = Mul(f, f)",
    ] {
        let model = beside(narrow, matmul);
        let fused = fuse(&model);
        let goes = |site: &&SitePlan| site.is_folded() && site.kind.name != "shift";
        assert!(
            !fused.plan.sites.iter().any(|site| goes(&site)),
            "{narrow}: {:#?}",
            fused.plan.sites
        );
        same(&model, &fused.model, 1e-6);
    }
}

#[test]
fn shift_before_a_linear_operator_folds_into_its_bias() {
    let layers = [
        "weight w 4 3\n y = MatMul(m, w)",
        "weight w 4 3\n shift b 3\n y = Gemm(m, w, b)",
        "weight w 3 4\n const c 3 = 1 2 3\n k = Transpose(m) perm=[1,0]\n u = MatMul(w, k)\n y = Transpose(u) perm=[1,0]",
    ];
    for layer in layers {
        for shift in [
            "m = Add(x, t)",
            "m = Sub(x, t)",
            "m = Sub(t, x)",
            "n = Add(x, t)\n m = Sub(n, t)",
        ] {
            let before = model(&format!(
                "input x batch 4\n shift t 4\n {shift}\n {layer}\n output y"
            ));
            let after = folded(&before);
            same(&before, &after, 0.0);
            assert!(!operators(&after).contains(&"Sub"), "{layer} {shift}");
        }
    }
}

#[test]
fn shift_folds_backward_into_a_bias() {
    for (made, left) in [
        // The shift joins a bias that was added already.
        (
            "k = MatMul(x, w)\n o = Add(k, b)\n m = Add(o, t)",
            &["MatMul", "Add", "Relu"][..],
        ),
        (
            "k = MatMul(x, w)\n o = Add(k, b)\n q = Transpose(o) perm=[1,0]\n u = Sub(q, each)\n m = Transpose(u) perm=[1,0]",
            &["MatMul", "Add", "Relu"],
        ),
        // The shift moves through movements into a new bias.
        (
            "v = Reshape(x, image)\n c = Conv(v, kernel)\n q = Transpose(c) perm=[0,2,1]\n m = Add(q, t)",
            &["Reshape", "Conv", "Transpose", "Relu"],
        ),
    ] {
        let before = model(&format!(
            "input x 5 4\n weight w 4 3\n weight kernel 3 4 1\n shift b 3\n shift t 3\n shift each 3 1
             ints image 3 = 5 4 1\n {made}\n y = Relu(m)\n output y"
        ));
        let after = folded(&before);
        same(&before, &after, 0.0);
        assert_eq!(operators(&after), left, "{made}");
    }
}

#[test]
fn shift_stays_where_folding_it_adds_work() {
    // The bias would need an element for each place, or each of two products would need an Add.
    for layer in [
        "weight w 3 5\n y = MatMul(w, m)",
        "weight v 4 3\n weight w 4 3\n k = MatMul(m, v)\n q = MatMul(m, w)\n r = Relu(k)\n u = Relu(q)\n y = Add(r, u)",
    ] {
        let shifted =
            format!("input x 5 4\n shift t 4\n i = Relu(x)\n m = Add(i, t)\n {layer}\n output y");
        let (forward, backward) = kept(&model(&shifted));
        assert!(matches!(forward, Reason::NoGain(_)), "{layer}: {forward:?}");
        assert!(
            matches!(backward, Some(Reason::NotLinear(_))),
            "{layer}: {backward:?}"
        );
    }
    // Engines fuse a shift before an activation, so it is not a site.
    let before = model("input x batch 4\n shift t 4\n m = Add(x, t)\n y = Relu(m)\n output y");
    assert!(fuse(&before).plan.sites.is_empty());
}

#[test]
fn scale_of_ones_is_removed_and_the_shift_stays() {
    let before = model(
        "input x batch 4
         const g 4 = 1 1 1 1
         shift t 4
         r = Relu(x)
         m = Mul(r, g)
         n = Add(m, t)
         y = Relu(n)
         output y",
    );
    let after = fuse(&before);
    same(&before, &after.model, 0.0);
    assert_eq!(operators(&after.model), ["Relu", "Add", "Relu"]);
}

#[test]
fn batch_norm_that_stays_absorbs_a_scale() {
    let before = model(
        "input x 1 4 6 6
         scale s 4 1 1
         const g 8 = 1 -2 3 4 1 2 -1 2
         shift b 8
         shift mean 8
         const var 8 = 3 8 15 0 3 8 15 0
         r = Relu(x)
         k = Mul(r, s)
         p = MaxPool(r) kernel_shape=[3,3] pads=[1,1,1,1]
         c = Concat(k, p) axis=1
         n = BatchNormalization(c, g, b, mean, var) epsilon=1.0
         y = Relu(n)
         output y",
    );
    let after = fuse(&before);
    same(&before, &after.model, 1e-6);
    assert_eq!(
        operators(&after.model),
        ["Relu", "MaxPool", "Concat", "BatchNormalization", "Relu"]
    );
}

/// A HardSwish that computes `g` from `u`, between two products, at this operator set.
fn hard_swish(opset: i64, steps: &str) -> Model {
    behind_product(opset, steps, "weight w 6 3\n y = MatMul(g, w)")
}

/// A model in which `u` is the result of a product, `steps` compute `g` from `u`, and `behind`
/// computes `y` from `g`.
pub fn behind_product(opset: i64, steps: &str, behind: &str) -> Model {
    model(&format!(
        "opset {opset}
         input x 2 4 6
         weight v 6 6
         u = MatMul(x, v)
         const three 1 = 3
         const zero = 0
         const six = 6
         {steps}
         {behind}
         output y"
    ))
}

pub const RAMP: &str = "a = Add(u, three)\n c = Clip(a, zero, six)\n";

pub const WRITTEN: [&str; 2] = [
    "o = Mul(u, c)\n g = Div(o, six)",
    "d = Div(c, six)\n g = Mul(d, u)",
];

#[test]
fn written_out_hard_swish_becomes_hard_swish() {
    for steps in WRITTEN {
        let before = hard_swish(17, &format!("{RAMP}{steps}"));
        let after = fuse(&before);
        assert!(
            after.plan.sites.iter().all(|site| site.is_folded()),
            "{:?}",
            after.plan.sites
        );
        // The float type does not represent 1/6 exactly.
        same(&before, &after.model, 1e-7);
        assert_eq!(operators(&after.model), ["MatMul", "HardSwish", "MatMul"]);
        assert_eq!(fuse(&after.model).model.proto, after.model.proto);
    }
}

#[test]
fn near_hard_swish_patterns_stay() {
    for steps in [
        // The ramp is multiplied by another value.
        "o = Mul(x, c)\n g = Div(o, six)",
        // The numbers are not those of HardSwish.
        "o = Mul(u, c)\n g = Div(o, three)",
        "b = Clip(a, three, six)\n o = Mul(u, b)\n g = Div(o, six)",
        // An inner value has another reader.
        "o = Mul(u, c)\n d = Div(o, six)\n g = Add(d, c)",
        "o = Mul(u, c)\n d = Div(o, six)\n g = Add(d, o)",
    ] {
        let before = hard_swish(17, &format!("{RAMP}{steps}"));
        let after = fuse(&before);
        same(&before, &after.model, 1e-6);
        assert!(!operators(&after.model).contains(&"HardSwish"), "{steps}");
    }
}

#[test]
fn shift_before_a_padded_conv_stays_where_relu_follows() {
    let padded = |steps: &str, activation: &str| {
        model(&format!(
            "input x N 2 4 4
             weight v 3 2 1 1
             weight w 2 3 3 3
             c = Conv(x, v)
             r = Relu(c)
             const s 1 = -2
             const t 1 = 3
             {steps}
             d = Conv(e, w) pads=[1,1,1,1]
             {activation}
             output y"
        ))
    };
    let block = "m = Mul(s, r)\n e = Add(m, t)";
    let relu = ["Conv", "Relu", "Add", "Conv", "Relu"];
    for steps in [block, "e = Add(r, t)"] {
        let before = padded(steps, "y = Relu(d)");
        let after = fuse(&before);
        same(&before, &after.model, 1e-6);
        assert_eq!(operators(&after.model), relu);
    }
    // Without a Relu after it, the convolution has a bias for each place.
    let after = fuse(&padded(block, "y = Softmax(d)"));
    assert_eq!(
        operators(&after.model),
        ["Conv", "Relu", "Conv", "Add", "Softmax"]
    );
}

/// Queries, keys and values come from one product. The first token, like a class token, is not
/// rotated by the embedding.
#[test]
fn scalar_passes_split_and_concat_of_tokens_backward() {
    let slices = "ones = Slice(q, zero, one, one)\n rest = Slice(q, one, four, one)";
    let split = "ones, rest = Split(q, apart) axis=1";
    for tokens in [slices, split] {
        let before = model(&format!(
            "input x 2 4 6
             weight w 6 18
             weight cos 3 6
             ints sizes 3 = 6 6 6
             ints apart 2 = 1 3
             ints zero 1 = 0
             ints one 1 = 1
             ints four 1 = 4
             p = MatMul(x, w)
             q, k, v = Split(p, sizes) axis=2
             {tokens}
             flip = Neg(rest)
             turned = Tanh(x)
             turn = ReduceMean(turned) axes=[1,2]
             a = Mul(rest, turn)
             b = Mul(flip, turn)
             both = Add(a, b)
             put = Concat(ones, both) axis=1
             const h = 0.5
             m = Mul(put, h)
             t = Transpose(k) perm=[0,2,1]
             z = MatMul(m, t)
             s = Softmax(z)
             y = MatMul(s, v)
             output y"
        ));
        let fused = fuse(&before);
        let tensors: Vec<&str> = fused
            .plan
            .tensors
            .iter()
            .map(|tensor| tensor.name.as_str())
            .collect();
        assert_eq!(tensors, ["w_folded"], "{tokens}: {:#?}", fused.plan.sites);
        same(&before, &fused.model, 1e-6);
        assert!(is_proved_or_listed(&before, &fused).is_ok());
    }
}

#[test]
fn query_or_cache_scalar_folds_into_the_other_projection() {
    let scores = |lines: &str| {
        let attention =
            "t = Transpose(k) perm=[0,2,1]\n z = MatMul(q, t)\n y = Softmax(z)\n output y";
        model(&format!(
            "input x 2 4 6\n input given 2 4 6\n weight w 6 6\n const h = 0.5\n {lines}\n {attention}"
        ))
    };
    let of_queries = scores("q = Mul(given, h)\n k = MatMul(x, w)");
    let of_keys = scores(
        "q = MatMul(x, w)\n new = Tanh(x)\n all = Concat(given, new) axis=1\n output all\n k = Mul(all, h)",
    );
    for before in [of_queries, of_keys] {
        let fused = fuse(&before);
        let tensors: Vec<&str> = fused
            .plan
            .tensors
            .iter()
            .map(|tensor| tensor.name.as_str())
            .collect();
        assert_eq!(
            (tensors, fused.plan.growth),
            (vec!["w_folded"], 0),
            "{:#?}",
            fused.plan.sites
        );
        assert!(!operators(&fused.model).contains(&"Mul"));
        same(&before, &fused.model, 1e-6);
        assert!(is_proved_or_listed(&before, &fused).is_ok());
    }
    // Keys that are not the result of a layer cannot absorb the scalar.
    let bare = scores("q = Mul(given, h)\n k = Tanh(x)");
    assert!(matches!(kept(&bare).0, Reason::NotLinear(_)));
    assert!(operators(&fuse(&bare).model).contains(&"Mul"));
}

/// The scale of the logits after a head that shares its weight with the table of tokens.
#[test]
fn logit_scale_passes_a_tied_head_into_the_norm() {
    let before = model(
        "indices ids 2 4
         weight table 2048 6
         x = Gather(table, ids)
         r = Relu(x)
         scale g 6
         n = LayerNormalization(r, g)
         e = Transpose(table) perm=[1,0]
         l = MatMul(n, e)
         const c = 0.0625
         y = Mul(l, c)
         output y",
    );
    let fused = unfold::fuse(&before, &portable()).unwrap();
    let tensors: Vec<&str> = fused
        .plan
        .tensors
        .iter()
        .map(|tensor| tensor.name.as_str())
        .collect();
    assert_eq!(
        (tensors, fused.plan.growth),
        (vec!["g_folded"], 0),
        "{:#?}",
        fused.plan.sites
    );
    assert!(!operators(&fused.model).contains(&"Mul"));
    same(&before, &fused.model, 1e-6);
    assert!(is_proved_or_listed(&before, &fused).is_ok());
}

/// The floats of an initializer.
fn numbers_of(model: &Model, name: &str) -> Vec<f64> {
    let value = constant(initializer(model, name)).unwrap();
    value.floats().unwrap().iter().copied().collect()
}

/// β costs nothing in the norm, but would need an Add after a product without a bias. Only γ folds.
#[test]
fn shift_alone_does_not_move_to_a_result_with_more_elements() {
    let before = |columns: usize| {
        model(&format!(
            "input x 3 4\n shift t 4\n weight w 4 {columns}\n s = Add(x, t)\n y = MatMul(s, w)\n output y"
        ))
    };
    let Fused {
        model: after, plan, ..
    } = fuse(&before(5));
    assert_eq!(operators(&after), ["Add", "MatMul"]);
    let reasons = format!("{:?}", plan.sites);
    assert!(reasons.contains("an Add of more elements"), "{reasons}");
    // The twin has as many elements after the product.
    let Fused { model: after, .. } = fuse(&before(4));
    assert_eq!(operators(&after), ["MatMul", "Add"]);
    same(&before(4), &after, 1e-12);
}

/// An Add after the product would have many more elements, so only the scale folds.
#[test]
fn shift_stays_before_a_product_that_makes_far_more_elements() {
    let chain = "a = Mul(x, s)\n c = Add(a, t)";
    let normalizer = "c = BatchNormalization(x, s, t, m, v)";
    for (affine, columns, expected) in [
        (chain, 16, ["Add", "MatMul"]),
        (chain, 15, ["MatMul", "Add"]),
        (normalizer, 64, ["Add", "MatMul"]),
        (normalizer, 63, ["MatMul", "Add"]),
    ] {
        let before = model(&format!(
            "input x 3 4\n scale s 4\n shift t 4\n shift m 4\n const v 4 = 1 2 0.5 4\n weight w 4 {columns}
             {affine}\n y = MatMul(c, w)\n output y"
        ));
        let Fused { model: after, .. } = fuse(&before);
        assert_eq!(operators(&after), expected, "{columns}");
        same(&before, &after, 1e-5);
    }
    // Two products together.
    let before = model(&format!(
        "input x 3 4\n scale s 4\n shift t 4\n weight w 4 8\n weight u 4 8
         {chain}\n y = MatMul(c, w)\n z = MatMul(c, u)\n o = Relu(z)\n output y\n output o"
    ));
    let Fused { model: after, .. } = fuse(&before);
    assert!(
        !operators(&after).contains(&"Mul"),
        "{:?}",
        operators(&after)
    );
    let adds = operators(&after).into_iter().filter(|op| *op == "Add");
    assert_eq!(adds.count(), 1);
    same(&before, &after, 1e-5);
}

#[test]
fn layer_norm_keeps_beta_where_no_bias_can_absorb_it() {
    let before = |layers: &str| {
        model(&format!(
            "input x 2 4\n const g 4 = 2 -1 0.5 4\n shift t 4\n weight w 4 4\n weight v 4 4\n shift u 4
             shift r 4\n n = LayerNormalization(x, g, t)\n {layers}\n y = Relu(k)\n output y"
        ))
    };
    for bare in [
        "k = MatMul(n, w)",
        "a = MatMul(n, w)\n b = MatMul(n, v)\n k = Mul(a, b)",
        "a = MatMul(n, w)\n d = Add(a, u)\n b = MatMul(n, v)\n k = Mul(d, b)",
    ] {
        let before = before(bare);
        let Fused {
            model: after, plan, ..
        } = fuse(&before);
        same(&before, &after, 1e-12);
        assert!(!fuse(&after).changed(), "{bare}");
        let site = plan
            .sites
            .iter()
            .find(|site| site.kind.name == "LN")
            .unwrap();
        let Some(Outcome::Scaled { shift, .. }) = &site.post else {
            panic!("{bare}: {site:#?}")
        };
        assert!(matches!(shift.reason, Reason::NoGain(_)), "{bare}: {shift}");
        assert_eq!(operators(&after), operators(&before), "{bare}");
        // γ(n + β/γ) = γn + β
        let parameter = |slot: usize| numbers_of(&after, &after.graph().node[0].input[slot]);
        let (g, t) = (numbers_of(&before, "g"), numbers_of(&before, "t"));
        assert_eq!(parameter(1), [1.0; 4]);
        let expected: Vec<f64> = t.iter().zip(&g).map(|(t, g)| t / g).collect();
        assert_eq!(parameter(2), expected);
    }
    for biased in [
        "a = MatMul(n, w)\n k = Add(a, u)",
        "a = MatMul(n, w)\n d = Add(a, u)\n b = MatMul(n, v)\n c = Add(b, r)\n k = Mul(d, c)",
        "k = Gemm(n, w)",
    ] {
        let before = before(biased);
        let fused = fuse(&before);
        same(&before, &fused.model, 1e-6);
        assert!(fused.plan.sites.iter().all(SitePlan::is_folded), "{biased}");
        assert_eq!(operators(&fused.model), operators(&before), "{biased}");
    }
}

/// The queries of a rotary embedding absorb the scale of cached keys like their own scale.
#[test]
fn cached_key_scalar_folds_into_rotated_queries() {
    let turned = |name: &str| {
        format!(
            "{name}m = MatMul(x, {name}w)
             {name}l, {name}r = Split({name}m, halves) axis=-1
             {name}n = Neg({name}r)
             {name}t = Concat({name}n, {name}l) axis=-1
             {name}c = Mul({name}m, cos)
             {name}s = Mul({name}t, sin)
             {name} = Add({name}c, {name}s)\n"
        )
    };
    let before = model(&format!(
        "input x 2 4 6
         input past 2 3 6
         input cos 4 6
         input sin 4 6
         ints halves 2 = 3 3
         weight qw 6 6
         weight kw 6 6
         {}{}
         all = Concat(past, k) axis=1
         output all
         e = Transpose(all) perm=[0,2,1]
         const h = 0.5
         f = Mul(e, h)
         z = MatMul(q, f)
         y = Softmax(z)
         output y",
        turned("q"),
        turned("k")
    ));
    let fused = fuse(&before);
    let tensors: Vec<&str> = fused
        .plan
        .tensors
        .iter()
        .map(|tensor| tensor.name.as_str())
        .collect();
    assert_eq!(tensors, ["qw_folded"], "{:#?}", fused.plan.sites);
    assert_eq!(
        operators(&fused.model)
            .iter()
            .filter(|&&op| op == "Mul")
            .count(),
        4
    );
    same(&before, &fused.model, 1e-6);
    assert!(is_proved_or_listed(&before, &fused).is_ok());
}

/// `1 + scale`, where the scale is a part of the result of a layer.
#[test]
fn constant_added_to_a_split_output_folds_into_the_gemm_bias() {
    let before = |layer: &str| {
        model(&format!(
            "input x 2 5 4
             input c 2 3
             weight w 3 12
             shift b 12
             ints three 3 = 4 4 4
             ints axis 1 = 1
             const one = 1
             m = {layer}
             s, f, g = Split(m, three) axis=1
             fu = Unsqueeze(f, axis)
             su = Unsqueeze(s, axis)
             gu = Unsqueeze(g, axis)
             k = Add(fu, one)
             r = Softmax(x)
             n = Mul(r, k)
             o = Add(n, su)
             p = Tanh(o)
             y = Mul(p, gu)
             output y"
        ))
    };
    let with = before("Gemm(c, w, b)");
    let after = folded(&with);
    let count = |model: &Model| operators(model).iter().filter(|&&op| op == "Add").count();
    assert_eq!(
        (count(&with), count(&after)),
        (2, 1),
        "{:?}",
        operators(&after)
    );
    // A MatMul has no bias, and a new one would be as wide as all parts.
    assert_eq!(count(&fuse(&before("MatMul(c, w)")).model), 2);
}
