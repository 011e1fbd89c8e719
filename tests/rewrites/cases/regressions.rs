//! Graphs that were once folded wrongly, found by random tests.

use crate::common::{options, portable};
use std::time::{Duration, Instant};

use unfold::FuseOptions;
use unfold::onnx::proto::TensorAnnotation;
use unfold::onnx::tensor::read_f64;
use unfold::onnx::{DataType, Externals, Model};
use unfold::plan::{Direction, Outcome};
use unfold::prove::{Proof, prove};
use unfold::refusal::{Reason, Refusal};
use unfold::run::{Dims, Engine};

use crate::becomes;
use crate::common::text::model;
use crate::common::{declared, is_proved_or_listed, retype};
use crate::{folded, fuse, fused, initializer, kept, operators, reasons_of, same};

#[test]
fn bias_after_matmul_is_scaled_once() {
    folded(&model(
        "input x b 6
         weight w 6 4
         shift c 4
         scale g 4
         shift t 4
         y = MatMul(x, w)
         z = Add(y, c)
         n = Mul(z, g)
         m = Add(n, t)
         r = Relu(m)
         output r",
    ));
}

#[test]
fn affine_folds_into_conv_with_a_bias_and_an_add() {
    folded(&model(
        "input x b 4 8
         weight w 6 4 3
         shift c 6
         shift a 6 1
         scale g 6 1
         shift t 6 1
         y = Conv(x, w, c)
         z = Add(y, a)
         n = Mul(z, g)
         m = Add(n, t)
         r = Relu(m)
         output r",
    ));
}

#[test]
fn two_affines_around_an_add_fold_backward() {
    // Two sites fold backward, with an Add between them that belongs to neither.
    folded(&model(
        "input x 2 3 4
         weight w 4 4
         scale g 4
         shift t 4
         shift place 3 4
         scale h 4
         shift u 4
         y = MatMul(x, w)
         n = Mul(y, g)
         m = Add(n, t)
         z = Add(m, place)
         o = Mul(z, h)
         p = Add(o, u)
         r = Relu(p)
         output r",
    ));
}

#[test]
fn affine_of_a_diamond_is_folded_once() {
    fused(&model(
        "input x 2 2 2
         const two 2 1 1 = 2 4
         scale g 4
         shift t 4
         const v 4 = 4 1 4 1
         a = Mul(x, two)
         b = Concat(a, x) axis=1
         n = BatchNormalization(b, g, t, t, v) epsilon=0.0
         m = Add(n, b)
         output m",
    ));
}

#[test]
fn matmul_by_a_vector_on_the_left_is_exact() {
    fused(&model(
        "input x 2 2 2 2
         const g 2 = 3 -1
         shift t 2
         const v 2 = 4 4
         const w 2 = 2 -1
         n = BatchNormalization(x, g, t, t, v) epsilon=0.0
         ints s 5 = 2 1 2 2 2
         m = Reshape(n, s)
         y = MatMul(w, m)
         output y",
    ));
}

#[test]
fn batched_weight_times_a_vector_is_scaled_along_rows() {
    // The result has the axes of the batch and of the rows, which have the same extent here.
    fused(&model(
        "input x 3
         weight w 4 4 3
         scale g 4 1
         y = MatMul(w, x)
         n = Mul(y, g)
         r = Relu(n)
         output r",
    ));
}

#[test]
fn scale_does_not_pass_an_operator_with_a_new_bias() {
    fused(&model(
        "input x 2 4
         scale g 4
         shift t 4
         scale rows 2 1
         weight v 4
         weight w 4 3
         weight u 2
         n = Mul(x, g)
         m = Add(n, t)
         a = MatMul(m, v)
         b = Mul(m, rows)
         c = MatMul(b, w)
         d = MatMul(u, c)
         output a d",
    ));
}

#[test]
fn slice_beyond_an_unknown_extent_has_an_unknown_extent() {
    fused(&model(
        "input x batch 8 4
         const g 1 4 1 = 3 -1 3 1
         weight w 4 1 1
         ints start 1 = 0
         ints end 1 = 3
         ints axis 1 = 0
         ints step 1 = 2
         a = Transpose(x) perm=[0,2,1]
         n = Mul(a, g)
         m = Sub(n, g)
         b = Slice(m, start, end, axis, step)
         c = Transpose(b) perm=[2,1,0]
         y = ConvTranspose(c, w) strides=[2]
         output y",
    ));
}

#[test]
fn slice_of_an_unknown_extent_has_extent_one_only_at_the_ends() {
    let sliced = |start: i64, step: i64| {
        model(&format!(
            "input x batch 8 4
             const g 8 = 4 4 4 4 4 4 4 4
             shift t 8
             const v 8 = 4 4 4 4 4 4 4 4
             weight w 3 1
             ints start 1 = {start}
             ints end 1 = {}
             ints axis 1 = 0
             ints step 1 = {step}
             a = Slice(x, start, end, axis, step)
             m = BatchNormalization(a, g, t, g, v) epsilon=0.0
             f = Flatten(m) axis=0
             y = MatMul(w, f)
             output y",
            start + step
        ))
    };
    for (start, step) in [(0, 1), (-1, -1)] {
        folded(&sliced(start, step));
    }
    // The sliced value lacks the place, or the parameters would have to differ for two readers.
    for (start, step) in [(3, 1), (-4, 1), (-4, -1)] {
        assert_eq!(kept(&sliced(start, step)).0, Reason::MixedAxes, "{start}");
    }
}

#[test]
fn scales_of_a_row_and_its_broadcast_are_kept_apart() {
    let fused = fused(&model(
        "input x batch 4 1 1
         const one = 3
         ints last 1 = 2
         const w 1 3 = 1 -2 3
         const shift 3 = -1 -2 -1
         const other 1 3 = -1 -3 -2
         const scale 3 = 2 2 -2
         const rows 4 1 = 2 2 -2 -2
         const g 1 = 3
         const t 1 = -1
         const v 1 = 4
         s = Mul(x, one)
         q = Squeeze(s, last)
         m = ReduceMean(q) keepdims=0 axes=[1]
         p = MatMul(m, w)
         a = Sub(p, shift)
         d = Add(a, other)
         y = Div(d, scale)
         b = Div(p, rows)
         z = Div(b, rows)
         n = BatchNormalization(m, g, t, t, v) epsilon=0.0
         r = Relu(n)
         output y z r",
    ));
    assert!(operators(&fused.model).contains(&"Div"));
}

#[test]
fn scale_that_is_constant_only_by_rounding_is_refused() {
    // The sum of both branches is one scale. If the other branch is large, the differences of the
    // first one are rounded away.
    let both = |other: &str| {
        model(&format!(
            "input x batch 3 4
             const g 4 = 1 1.25 0.75 0.5
             const large 4 = {other}
             weight w 3 3
             n = Mul(x, g)
             m = Mul(x, large)
             s = Add(n, m)
             turned = Transpose(s) perm=[0,2,1]
             y = MatMul(turned, w)
             output y"
        ))
    };
    let stays = |model: &Model| fuse(model).plan.sites.iter().any(|site| !site.is_folded());
    assert!(stays(&both(
        "36028797018963968 36028797018963968 36028797018963968 36028797018963968"
    )));
    // Here all sums are exactly equal.
    assert!(!stays(&both("1 0.75 1.25 1.5")));
}

#[test]
fn two_sites_fold_into_one_concatenated_constant() {
    // A class token is concatenated to the patches. Two sites after the Concat fold backward into
    // both.
    folded(&model(
        "input x 2 3 4
         weight w 4 4
         shift token 2 1 4
         scale g 4
         shift t 4
         scale h 4 1
         shift u 4 1
         y = MatMul(x, w)
         z = Concat(token, y) axis=1
         n = Mul(z, g)
         m = Add(n, t)
         turned = Transpose(m) perm=[0,2,1]
         o = Mul(turned, h)
         p = Add(o, u)
         r = Relu(p)
         output r",
    ));
}

/// The shape of the constant that the last Add of a model adds.
fn added(model: &Model) -> Vec<i64> {
    let add = model
        .graph()
        .node
        .iter()
        .rfind(|node| node.op_type() == "Add")
        .expect("there is no Add");
    initializer(model, &add.input[1]).dims.clone()
}

#[test]
fn new_bias_has_no_superfluous_axes() {
    let made = |shape: &str, weight: &str, along: &str, product: &str| {
        added(&folded(&model(&format!(
            "input x {shape}
             scale g {along}
             shift t {along}
             weight w {weight}
             n = Mul(x, g)
             m = Add(n, t)
             y = MatMul({product})
             output y"
        ))))
    };
    assert_eq!(made("batch 4 6", "6 3", "6", "m, w"), [3]);
    assert_eq!(made("batch 2 4 6", "6 3", "6", "m, w"), [3]);
    // A constant that varies along other axes keeps them.
    assert_eq!(made("batch 4 6", "3 4", "4 1", "w, m"), [1, 3, 1]);
    assert_eq!(made("batch 4 6", "6 3", "1", "m, w"), [3]);
}

#[test]
fn bias_that_absorbs_a_shift_keeps_its_axes() {
    let merged = |bias: &str, along: &str| {
        added(&folded(&model(&format!(
            "input x batch 4 6
             scale g {along}
             shift t {along}
             weight w 6 3
             shift b {bias}
             n = Mul(x, g)
             m = Add(n, t)
             l = MatMul(m, w)
             y = Add(l, b)
             output y"
        ))))
    };
    assert_eq!(merged("3", "6"), [3]);
    assert_eq!(merged("1", "6"), [3]);
    assert_eq!(merged("1 1 3", "6"), [1, 1, 3]);
    assert_eq!(merged("4 3", "6"), [1, 4, 3]);
    assert_eq!(merged("4 1", "6"), [1, 4, 3]);
}

#[test]
fn merged_affines_have_no_superfluous_axes() {
    let after = fused(&model(
        "input x batch 4 6
         scale g 6
         shift t 6
         scale h 6
         shift u 6
         n = Mul(x, g)
         m = Add(n, t)
         ints s 4 = 0 4 2 3
         ints r 3 = 0 4 6
         a = Reshape(m, s)
         b = Reshape(a, r)
         o = Mul(b, h)
         p = Add(o, u)
         y = Relu(p)
         output y",
    ));
    assert_eq!(added(&after.model), [6]);
}

#[test]
fn group_norm_parameters_are_per_group_before_opset_21() {
    let norm = |opset: i64, count: usize| {
        model(&format!(
            "opset {opset}
             input x 2 4 3
             scale g {count}
             shift b {count}
             n = GroupNormalization(x, g, b) num_groups=2
             weight w 5 4 1
             y = Conv(n, w)
             output y"
        ))
    };
    for (opset, right, wrong) in [(18, 2, 4), (20, 2, 4), (21, 4, 2)] {
        let model = norm(opset, right);
        let after = unfold::fuse(&model, &portable()).unwrap();
        assert!(after.plan.sites[0].is_folded());
        crate::same(&model, &after.model, 1e-12);
        assert_eq!(kept(&norm(opset, wrong)).0, Reason::UnknownShape);
    }
}

#[test]
fn pad_that_tract_misreads_is_no_known_constant() {
    let weight = |made: &str| {
        model(&format!(
            "input x batch 4
             scale g 4
             n = Mul(x, g)
             weight v 2 4
             {made}
             y = MatMul(n, w)
             output y"
        ))
    };
    let padded =
        "ints p 4 = 1 0 1 0\n const c = 9\n t = Pad(v, p, c) mode=reflect\n w = Transpose(t)";
    let fused = unfold::fuse(&weight(padded), &portable()).unwrap();
    assert!(!fused.changed());
    let site = fused
        .plan
        .sites
        .iter()
        .find(|site| site.name == "Mul_n")
        .unwrap();
    assert_eq!(
        crate::reasons_of(site).0,
        Reason::Constant("Pad failed".into())
    );
    assert_eq!(
        fused.plan.tidy.kept,
        [Refusal::new(Reason::Constant("Pad failed".into()), "Pad_t")]
    );
}

#[test]
fn scalar_scaled_along_rows_and_columns_becomes_two_constants() {
    folded(&model(
        "input x batch 3 3
         const w 3 3 = 1 2 3 -1 0 4 2 -2 1
         const one 1 = 2
         const rows 3 1 = 4 0.5 -2
         const columns 3 = 4 0.5 -2
         a = MatMul(x, w)
         b = Add(a, one)
         c = Mul(b, columns)
         d = Relu(c)
         e = MatMul(w, x)
         f = Add(e, one)
         g = Mul(f, rows)
         h = Relu(g)
         output d h",
    ));
}

#[test]
fn scalar_multiplier_absorbs_a_channel_scale() {
    folded(&model(
        "input x 2 3
         const two 1 1 1 = 2
         scale g 2
         a = Relu(x)
         b = Mul(a, two)
         c = Transpose(b) perm=[0,2,1]
         n = Mul(c, g)
         r = Relu(n)
         output r",
    ));
}

#[test]
fn affine_rest_of_a_diamond_folds_in_one_run() {
    let after = folded(&model(
        "input x 2 4
         weight w 4 4
         scale g 4
         shift t 4
         n = Mul(x, g)
         a = Add(n, t)
         b = Neg(a)
         c = Sub(a, b)
         y = MatMul(c, w)
         output y",
    ));
    assert_eq!(operators(&after), ["MatMul", "Add"]);
}

#[test]
fn bias_of_the_second_site_absorbs_the_shift_of_the_first() {
    fused(&model(
        "input x 4 4 4
         weight w 4 4
         const g 4 = 1 3 1 1
         const t 4 = 0 1 1 1
         const h 4 = -3 3 1 1
         const u 4 = -1 2 2 2
         n = Mul(x, g)
         a = Add(n, t)
         v = Transpose(a) perm=[0,2,1]
         m = MatMul(v, w)
         p = Mul(m, h)
         o = Add(p, u)
         r = Relu(o)
         output r",
    ));
}

/// The elements of an initializer, row by row.
fn read(model: &Model, name: &str) -> Vec<f64> {
    let array = read_f64(initializer(model, name), &Externals::none()).unwrap();
    array.iter().copied().collect()
}

/// `scale[c] * x + shift[c]` for each row of channels.
fn normalized(rows: &[f64], scale: &[f64], shift: &[f64]) -> Vec<f64> {
    let of =
        |(place, x): (usize, &f64)| scale[place % scale.len()] * x + shift[place % shift.len()];
    rows.iter().enumerate().map(of).collect()
}

#[test]
fn affine_folds_backward_into_embedding_tables() {
    // As in BERT, the stream and the first layer both read the normalized sum.
    let before = model(
        "indices ids batch 3
         weight words 5 4
         weight kinds 3 4
         shift places 3 4
         divisor d 4
         scale g 4
         shift t 4
         weight w 4 4
         a = Gather(words, ids)
         b = Gather(kinds, ids)
         c = Add(a, b)
         e = Add(c, places)
         f = Div(e, d)
         n = Mul(f, g)
         m = Add(n, t)
         y = MatMul(m, w)
         z = Relu(y)
         s = Add(m, z)
         output s",
    );
    let fused = fused(&before);
    let [site] = &fused.plan.sites[..] else {
        panic!("{:#?}", fused.plan.sites)
    };
    let Some(Outcome::Folded { direction, into }) = &site.post else {
        panic!("{site:#?}")
    };
    assert_eq!(
        (direction, &into[..]),
        (
            &Direction::Backward,
            &["Add_e", "Gather_a", "Gather_b"].map(str::to_owned)[..]
        )
    );
    assert_eq!(
        operators(&fused.model),
        ["Gather", "Gather", "Add", "Add", "MatMul", "Relu", "Add"]
    );
    let divisor = read(&before, "d");
    let scale: Vec<f64> = read(&before, "g")
        .iter()
        .zip(&divisor)
        .map(|(g, d)| g / d)
        .collect();
    for table in ["words", "kinds"] {
        let table_after = read(&fused.model, &format!("{table}_folded"));
        assert_eq!(
            table_after,
            normalized(&read(&before, table), &scale, &[0.0])
        );
    }
    let places = normalized(&read(&before, "places"), &scale, &read(&before, "t"));
    assert_eq!(read(&fused.model, "places_folded"), places);
}

#[test]
fn shift_after_summed_tables_folds_into_one_table() {
    let before = model(
        "indices ids batch 3
         weight words 5 4
         weight kinds 3 4
         scale g 4
         shift t 4
         a = Gather(words, ids)
         b = Gather(kinds, ids)
         c = Add(a, b)
         n = Mul(c, g)
         m = Add(n, t)
         r = Relu(m)
         output r",
    );
    let after = folded(&before);
    let (scale, shift) = (read(&before, "g"), read(&before, "t"));
    let [words, kinds] = ["words", "kinds"].map(|table| read(&before, table));
    assert_eq!(
        read(&after, "words_folded"),
        normalized(&words, &scale, &shift)
    );
    assert_eq!(
        read(&after, "kinds_folded"),
        normalized(&kinds, &scale, &[0.0])
    );
}

#[test]
fn shift_per_batch_item_is_refused_before_conv() {
    // The shift differs between the items of the batch.
    let reasons = kept(&model(
        "input x 2 3 4 4
         scale g 2 1 1 1
         shift t 2 1 1 1
         weight w 5 3 2 2
         n = Mul(x, g)
         m = Add(n, t)
         y = Conv(m, w)
         output y",
    ));
    assert_eq!(reasons, (Reason::WrongAxis, Some(Reason::GraphInput)));
}

#[test]
fn bias_gelu_keeps_its_bias_beside_a_bias_per_position() {
    let mut before = model(
        "input x b 3 4
         weight w 4 6
         shift c 6
         scale g 3 1
         shift t 3 1
         v = Identity(x)
         n = Mul(v, g)
         m = Add(n, t)
         y = MatMul(m, w)
         z = BiasGelu(y, c)
         output z",
    );
    before
        .graph_mut()
        .node
        .iter_mut()
        .filter(|node| node.op_type() == "BiasGelu")
        .for_each(|node| {
            node.domain = Some("com.microsoft".into());
        });
    let fused = unfold::fuse(&before, &options()).unwrap();
    crate::is_as_planned(&before, &fused);
    crate::same(&before, &fused.model, 1e-6);
}

#[test]
fn skipped_site_absorbs_nothing() {
    let before = model(
        "input x b 4 4
         weight w 4 4
         scale g 4
         shift t 4
         scale h 4
         y = MatMul(x, w)
         n = Mul(y, g)
         m = Add(n, t)
         v = Identity(m)
         o = Mul(v, h)
         r = Relu(o)
         output r",
    );
    let options = FuseOptions {
        skip: vec!["Mul_n".into()],
        ..portable()
    };
    let after = unfold::fuse(&before, &options).unwrap().model;
    assert_eq!(operators(&after), ["MatMul", "Mul", "Add", "Mul", "Relu"]);
    assert_eq!(after.graph().initializer, before.graph().initializer);
}

#[test]
fn affine_before_too_many_sites_is_refused_as_too_far() {
    let row = |length: usize| {
        let turned = |i: usize| {
            format!(
                "n{i} = Mul(v{i}, g)\n v{} = Transpose(n{i}) perm=[1,0]\n",
                i + 1
            )
        };
        let parts: String = (0..length).map(turned).collect();
        model(&format!(
            "input v0 4 4\n const g 4 = 2 4 8 16\n weight w 4 3\n {parts} y = MatMul(v{length}, w)\n output y"
        ))
    };
    let first = |length: usize| {
        let skip = (1..length).map(|i| format!("Mul_n{i}")).collect();
        let fused = unfold::fuse(&row(length), &FuseOptions { skip, ..portable() }).unwrap();
        fused.plan.sites[0].clone()
    };
    assert!(first(16).is_folded());
    assert_eq!(reasons_of(&first(18)).0, Reason::TooFar);
}

/// A model of `sites` sites, from the text of each.
fn repeated_sites(sites: usize, of: &dyn Fn(usize) -> String, end: &str) -> Model {
    let constants = "const g 4 = 1 -1 -1 1\n const w 4 4 = 1 0 0 0 0 1 0 0 0 0 1 0 0 0 0 1";
    let sites: String = (0..sites).map(of).collect();
    model(&format!(
        "input x 2 4\n {constants}\n v0 = Identity(x)\n {sites} y = {end}\n output y"
    ))
}

/// The number of sites of a model, and the number of those that fold. Asserts that folding takes
/// time linear in the number of sites.
fn fold_in_time(model: &Model) -> (usize, usize) {
    let started = Instant::now();
    let fused = unfold::fuse(model, &portable()).unwrap();
    assert!(
        started.elapsed() < Duration::from_secs(60),
        "{:?}",
        started.elapsed()
    );
    (
        fused.plan.sites.len(),
        fused
            .plan
            .sites
            .iter()
            .filter(|site| site.is_folded())
            .count(),
    )
}

/// A site, and the operators after it.
fn site_before(place: usize, behind: &str) -> String {
    let next = place + 1;
    format!(
        "n{place} = Mul(v{place}, g)\n v{next} = {}\n",
        behind.replace('_', &format!("n{place}"))
    )
}

#[test]
fn time_is_linear_in_consecutive_sites() {
    const SITES: usize = 10_000;
    let (relu, residual) = (format!("Relu(v{SITES})"), format!("Add(v{SITES}, x)"));
    // All sites stay.
    assert_eq!(
        fold_in_time(&repeated_sites(
            SITES,
            &|place| site_before(place, "Relu(_)"),
            &relu
        )),
        (SITES, 0)
    );
    // Each site folds into the operator after it.
    let layer = |place| {
        format!(
            "n{place} = Mul(v{place}, g)\n p{place} = MatMul(n{place}, w)\n v{} = Relu(p{place})\n",
            place + 1
        )
    };
    assert_eq!(
        fold_in_time(&repeated_sites(SITES, &layer, &relu)),
        (SITES, SITES)
    );
    // Each site moves through the following ones, but no operator absorbs it. Then all sites are
    // joined.
    for end in [relu, residual] {
        assert_eq!(
            fold_in_time(&repeated_sites(
                SITES,
                &|place| site_before(place, "Flatten(_)"),
                &end
            )),
            (SITES, SITES)
        );
    }
}

#[test]
fn time_is_linear_in_parallel_sites() {
    const SITES: usize = 10_000;
    let joined: Vec<String> = (0..SITES).map(|place| format!("n{place}")).collect();
    let side = |place| format!("n{place} = Mul(x, g)\n");
    assert_eq!(
        fold_in_time(&repeated_sites(
            SITES,
            &side,
            &format!("Concat({}) axis=1", joined.join(", "))
        )),
        (SITES, 0)
    );
}

#[test]
fn time_is_linear_in_sites_on_a_residual_stream() {
    const SITES: usize = 2_000;
    let layer = |place| {
        format!(
            "weight a{place} 4 4\n weight b{place} 4 4\n n{place} = Mul(v{place}, g)\n h{place} = MatMul(n{place}, a{place})
             r{place} = Relu(h{place})\n f{place} = MatMul(r{place}, b{place})\n v{} = Add(n{place}, f{place})\n",
            place + 1
        )
    };
    assert_eq!(
        fold_in_time(&repeated_sites(
            SITES,
            &layer,
            &format!("MatMul(v{SITES}, w)")
        )),
        (SITES, SITES)
    );
}

#[test]
fn chain_of_201_scales_folds_as_one() {
    let after = folded(&repeated_sites(
        201,
        &|place| site_before(place, "Identity(_)"),
        "MatMul(v201, w)",
    ));
    assert!(!operators(&after).contains(&"Mul"));
}

#[test]
fn shared_new_tensor_lists_all_of_its_sites() {
    let fused = fused(&model(
        "input x batch 4
         input y batch 4
         const g 4 = 2 3 5 7
         const h 4 = 2 3 5 7
         weight w 4 3
         n = Mul(x, g)
         a = MatMul(n, w)
         m = Mul(y, h)
         b = MatMul(m, w)
         output a
         output b",
    ));
    let [tensor] = &fused.plan.tensors[..] else {
        panic!("{:?}", fused.plan.tensors)
    };
    assert_eq!(
        (tensor.name.as_str(), tensor.sites.as_slice()),
        ("w_folded", &[0, 1][..])
    );
}

#[test]
fn transpose_with_an_unknown_attribute_stays() {
    let after = |attribute: &str| {
        let before = model(&format!(
            "input x 2 3 4
             scale g 4 1 1
             weight w 4 5
             a = Transpose(x) {attribute}
             n = Mul(a, g)
             m = Transpose(n) perm=[2,1,0]
             y = MatMul(m, w)
             output y"
        ));
        crate::folded(&before)
    };
    assert_eq!(operators(&after("perm=[2,1,0]")), ["MatMul"]);
    assert_eq!(
        operators(&after("turn=[2,1,0]")),
        ["Transpose", "Transpose", "MatMul"]
    );
}

/// The affine follows a masked mean. The model computes the count of the mean.
#[test]
fn three_operators_after_a_masked_mean_become_mul_and_add() {
    let before = model(
        "input x batch 5 4
         input mask batch 5 1
         ints places 1 = 1
         const one = 1
         const most = 1000
         v = Mul(x, mask)
         s = ReduceSum(v, places) keepdims=0
         n = ReduceSum(mask, places) keepdims=0
         c = Clip(n, one, most)
         q = Div(s, c)
         divisor sigma 4
         scale g 4
         shift t 4
         e = Div(q, sigma)
         m = Mul(e, g)
         a = Add(m, t)
         y = Relu(a)
         output y",
    );
    let after = fuse(&before);
    same(&before, &after.model, 1e-9);
    let left = operators(&after.model);
    assert_eq!(
        left[left.len() - 4..],
        ["Div", "Mul", "Add", "Relu"],
        "{left:?}"
    );
}

#[test]
fn affine_after_a_normalizer_folds_into_gamma_and_beta() {
    let becomes = |normalizer: &str, behind: &str, expected: &[&str]| {
        let before = model(&format!(
            "input x batch 4 4
             const ones 4 = 1 1 1 1
             scale g 4
             shift t 4
             {normalizer}
             divisor sigma 4
             scale g2 4
             shift t2 4
             {behind}
             output y"
        ));
        let after = fuse(&before);
        same(&before, &after.model, 1e-6);
        assert_eq!(operators(&after.model), expected, "{normalizer} {behind}");
        assert!(!fuse(&after.model).changed());
    };
    // A UN of three operators folds into the parameters of the normalizer, like an affine of fewer
    // operators.
    let un = "e = Div(n, sigma)\n m = Mul(e, g2)\n a = Add(m, t2)\n y = Relu(a)";
    let affine = "m = Mul(n, g2)\n a = Add(m, t2)\n y = Relu(a)";
    for behind in [
        un,
        affine,
        "a = Add(n, t2)\n y = Relu(a)",
        "a = Sub(t2, n)\n y = Relu(a)",
    ] {
        becomes(
            "n = LayerNormalization(x, g, t) axis=-1",
            behind,
            &["LayerNormalization", "Relu"],
        );
    }
    // Neutral parameters absorb an affine, and a missing shift is added.
    for normalizer in [
        "n = LayerNormalization(x, ones) axis=-1",
        "n = LayerNormalization(x, g) axis=-1",
    ] {
        for behind in [un, affine] {
            becomes(normalizer, behind, &["LayerNormalization", "Relu"]);
        }
    }
    let root = "n = SimplifiedLayerNormalization(x, ones) axis=-1 epsilon=0.001";
    becomes(
        root,
        "m = Mul(n, g2)\n y = Relu(m)",
        &["SimplifiedLayerNormalization", "Relu"],
    );
    // This normalizer has no shift.
    becomes(
        root,
        affine,
        &["SimplifiedLayerNormalization", "Mul", "Add", "Relu"],
    );
    let batch_norm = "const mean 4 = 1 2 3 4\n const var 4 = 1 4 9 16\n
        m = BatchNormalization(n, g2, t2, mean, var)\n y = Relu(m)";
    let groups = "const zeros 4 = 0 0 0 0\n n = GroupNormalization(x, ones, zeros) num_groups=2";
    becomes(
        &format!("opset 21\n {groups}"),
        batch_norm,
        &["GroupNormalization", "Relu"],
    );
}

/// A parameter of a normalizer is along the channels. A constant with as many elements may be along
/// another axis.
#[test]
fn shift_along_another_axis_does_not_fold_into_beta() {
    for normalizer in [
        "n = InstanceNormalization(x, g, b)",
        "n = LayerNormalization(x, g, b) axis=-1",
        "n = LayerNormalization(x, g) axis=-1",
        "n = com.microsoft.SkipLayerNormalization(f, x, g, b)",
    ] {
        for behind in [
            "y = Sub(c, n)",
            "m = Neg(n)\n y = Add(m, c)",
            "m = Sub(c, n)\n k = Sub(w, m)\n y = Abs(k)",
        ] {
            for along in ["1 4 1", "4 1", "1 1 4", "4 1 1"] {
                let model = model(&format!(
                    "input x 4 4 4
                     scale g 4
                     shift b 4
                     weight c {along}
                     weight w 4 4
                     f = Abs(x)
                     {normalizer}
                     {behind}
                     output y"
                ));
                same(&model, &fuse(&model).model, 1e-5);
            }
        }
    }
}

/// An operand of a higher rank changes the shape of the result.
#[test]
fn add_that_raises_the_rank_is_no_bias() {
    for (input, operator, channels) in [
        ("1 3 1", "c = Conv(x, w, b)\n weight w 4 3 1", "1 1 4 1"),
        (
            "1 3 1",
            "c = ConvTranspose(x, w, b)\n weight w 3 4 1",
            "1 1 4 1",
        ),
        ("1 3", "c = Gemm(x, w, b)\n weight w 3 4", "1 1 4"),
    ] {
        for constant in ["1 1 1 1", channels] {
            let model = model(&format!(
                "input x {input}
                 {operator}
                 shift b 4
                 shift s {constant}
                 a = Add(c, s)
                 m = ReduceMean(a) axes=[-1] keepdims=1
                 y = Sub(a, m)
                 output y"
            ));
            let after = fuse(&model).model;
            same(&model, &after, 1e-5);
            assert_eq!(after.graph().node.len(), 4);
        }
    }
}

/// The engine computes constants in float32, in which 1 + 1e-10 and 1 + 2e-10 are equal. In the
/// model they differ.
#[test]
fn scale_that_float32_rounds_to_one_folds() {
    let after = fuse(&model(
        "input x b 2
         weight w 2 3
         const near 2 = 1e-10 2e-10
         const one = 1
         c = Add(near, one)
         n = Mul(x, c)
         y = MatMul(n, w)
         output y",
    ));
    assert_eq!(operators(&after.model), ["MatMul"]);
}

/// A LayerNorm adds its shift at no cost. After a padded convolution, the shift would need an Add.
#[test]
fn layer_norm_beta_does_not_become_an_add() {
    let before = |pads: &str| {
        model(&format!(
            "input x b 5 5 4
             scale g 4
             shift t 4
             weight w 4 4 3 3
             n = LayerNormalization(x, g, t) axis=-1
             m = Transpose(n) perm=[0,3,1,2]
             y = Conv(m, w) pads={pads}
             output y"
        ))
    };
    assert_eq!(
        operators(&fuse(&before("[0,0,0,0]")).model),
        ["LayerNormalization", "Transpose", "Conv"]
    );
    assert!(matches!(kept(&before("[1,1,1,1]")).0, Reason::NoGain(_)));
}

/// The engine reads an ellipsis as one axis. A Reshape after it therefore seemed to change nothing.
#[test]
fn reshape_after_einsum_with_ellipsis_stays() {
    let after = fuse(&model(
        "input x 2 3 4
         weight c 4
         weight w 4 5
         ints s 2 = -1 4
         e = Einsum(x, c) equation=...i,i->...i
         r = Reshape(e, s)
         y = MatMul(r, w)
         output y",
    ));
    assert!(operators(&after.model).contains(&"Reshape"));
}

#[test]
fn constants_that_tract_misreads_are_not_folded() {
    let left = |made: &str| {
        let before = model(&format!(
            "input x 1\n const c 1 1 2 2 = 1 2 3 4\n p = {made}\n y = Mul(x, p)\n output y"
        ));
        operators(&fuse(&before).model).len()
    };
    assert_eq!(left("GlobalAveragePool(c)"), 1);
    assert_eq!(left("Celu(c)"), 1);
    assert_eq!(left("Softplus(c)"), 1);
    for wrong in [
        "GlobalLpPool(c) p=2",
        "Celu(c) alpha=2.0",
        "Einsum(c) equation=...ij->...ji",
        "Einsum(c) equation=abcc->abc",
        "SpaceToDepth(c) blocksize=2 mode=CRD",
    ] {
        assert_eq!(left(wrong), 2, "{wrong}");
    }
}

/// Before IR version 4, constants are nodes. Those of operator set 8 cannot hold integers.
#[test]
fn integer_constants_are_not_folded_at_ir_3_and_opset_8() {
    let left = |opset: i64| {
        let before = model(&format!(
            "opset {opset}
             ir 3
             input x 2
             ints i 2 = 1 2
             ints r 1 = 2
             t = Tile(i, r)
             y = Gather(x, t)
             output y"
        ));
        operators(&fuse(&before).model)
            .into_iter()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(left(8), ["Tile", "Gather"]);
    assert_eq!(left(9), ["Constant", "Gather"]);
}

/// The caller may replace one of two equal defaults, so both stay.
#[test]
fn equal_default_inputs_are_not_merged() {
    let mut before = model(
        "input a 2 3
         ints r 2 = 2 1
         ints s 2 = 2 1
         y = Tile(a, r)
         z = Tile(a, s)
         output y
         output z",
    );
    for name in ["r", "s"] {
        before
            .graph_mut()
            .input
            .push(crate::common::declared(name, DataType::Int64, &["2"]));
    }
    let after = fuse(&before);
    assert!(!after.changed(), "{:?}", after.plan.tidy);
}

/// A remainder has the sign of the divisor. The engine's formulas of extents ignore this.
#[test]
fn mod_of_a_negative_extent_has_the_sign_of_the_divisor() {
    for (extent, fmod, left) in [(10, 0, 2), (13, 0, 3), (7, 0, 1), (10, 1, -2)] {
        let before = model(&format!(
            "input x 2 {extent}
             ints one 1 = 1
             ints four 1 = 4
             s = Shape(x)
             h = Gather(s, one) axis=0
             n = Neg(h)
             p = Mod(n, four) fmod={fmod}
             f = Cast(p) to=1
             y = Add(x, f)
             output y"
        ));
        let after = fuse(&before);
        assert_eq!(operators(&after.model), ["Add"]);
        assert_eq!(
            read(&after.model, "f"),
            [f64::from(left)],
            "{extent} fmod={fmod}"
        );
        assert!(is_proved_or_listed(&before, &after).is_ok());
    }
    // For an open extent, only nonnegative formulas are known.
    let open = |made: &str| {
        let before = model(&format!(
            "input x batch 7
             ints one 1 = 0
             ints seven 1 = 7
             ints eight 1 = 8
             ints zero 1 = 0
             s = Shape(x)
             h = Gather(s, one) axis=0
             n = Neg(h)
             {made}
             d = Mul(p, zero)
             e = Add(d, seven)
             f = Cast(e) to=1
             y = Add(x, f)
             output y"
        ));
        operators(&fuse(&before).model).contains(&"Mod")
    };
    assert!(open("p = Mod(n, seven)"));
}

/// The Mul and the Add of a normalizer stay as ones and zeros. An affine after them must not fold
/// into the old numbers.
#[test]
fn neutral_gamma_and_beta_absorb_nothing_in_the_same_pass() {
    let normalized = "input x 2 4 6
         const two = 2
         const e = 1
         scale g 6
         shift b 6
         weight w 6 3
         c = ReduceMean(x) axes=[-1]
         d = Sub(x, c)
         q = Pow(d, two)
         m = ReduceMean(q) axes=[-1]
         r = Add(m, e)
         s = Sqrt(r)
         n = Div(d, s)
         k = Mul(n, g)
         a = Add(k, b)";
    for behind in [
        "scale h 4 1
         shift t 4 1
         i = Mul(a, h)
         j = Add(i, t)
         z = MatMul(j, w)
         shift u 3
         y = Add(z, u)
         output y",
        "const third = 3
         i = Neg(a)
         j = Div(a, third)
         l = Add(i, j)
         y = Relu(l)
         output y",
        "scale h 6
         const half = 0.5
         i = Mul(a, half)
         j = Mul(a, h)
         l = Add(i, j)
         z = MatMul(l, w)
         shift t 3
         y = Add(z, t)
         output y",
    ] {
        let before = model(&format!("{normalized}\n{behind}"));
        let after = fuse(&before);
        assert!(after.changed(), "{:#?}", after.plan.sites);
        same(&before, &after.model, 1e-5);
        assert!(is_proved_or_listed(&before, &after).is_ok());
    }
}

/// If two affines begin at one value, the choice of the one that belongs to the normalizer before
/// them is deterministic.
#[test]
fn affine_of_a_normalizer_is_chosen_deterministically() {
    let before = model(
        "input x 2 4
         const e = 1
         scale g 4
         shift b 4
         weight w 4 3
         m = ReduceMean(x) axes=[-1]
         d = Sub(x, m)
         q = Mul(d, d)
         v = ReduceMean(q) axes=[-1]
         r = Add(v, e)
         s = Sqrt(r)
         n = Div(d, s)
         k = Mul(n, g)
         y = MatMul(k, w)
         a = Add(n, b)
         z = Relu(a)
         output y z",
    );
    let first = fuse(&before).model.to_bytes().unwrap();
    assert!((0..40).all(|_| fuse(&before).model.to_bytes().unwrap() == first));
}

/// An extent of −1 is undefined for a value without elements, and an empty batch must still run.
#[test]
fn reshape_gets_no_minus_one_beside_an_extent_that_may_be_0() {
    let target = |dims: &str, extents: &str| {
        let before = model(&format!(
            "input x {dims}
             ints zero 1 = 0
             ints two 1 = 2
             s = Shape(x)
             b = Gather(s, zero) axis=0
             c = Gather(s, two) axis=0
             t = Concat({extents}) axis=0
             y = Reshape(x, t)
             output y"
        ));
        operators(&fuse(&before).model).len()
    };
    assert_eq!(target("batch 4 3", "b, two, two, c"), 1);
    assert!(target("batch 4 seq", "b, two, two, c") > 1);
}

/// Exporters give a shared weight a new name for each use, by an Identity.
#[test]
fn weight_behind_an_identity_is_shared() {
    let before = model(
        "input p batch 4
         input q batch 4
         scale g 4
         shift t 4
         weight w 4 3
         h = Identity(g)
         u = Identity(t)
         v = Identity(w)
         a = Mul(p, g)
         b = Add(a, t)
         y = MatMul(b, w)
         c = Mul(q, h)
         d = Add(c, u)
         z = MatMul(d, v)
         output y z",
    );
    let after = folded(&before);
    let weights = after
        .graph()
        .initializer
        .iter()
        .filter(|tensor| tensor.dims == [4, 3]);
    assert_eq!(weights.count(), 1);
}

/// A value that is constant only at the sizes of a proof is not computed as numbers, for example a
/// Softmax of repeated rows.
#[test]
fn softmax_of_expanded_rows_is_proved() {
    let before = model(
        "input x batch 3 4
         weight q 1 3 4
         weight u 4 4
         shift v 4
         weight k 4 4
         const c = 0.7
         ints one 2 = 3 4
         ints zero 1 = 0
         s = Shape(x)
         b = Gather(s, zero) axis=0
         t = Concat(b, one) axis=0
         e = Expand(q, t)
         f = MatMul(e, u)
         g = Add(f, v)
         h = Mul(g, c)
         l = MatMul(e, k)
         m = Transpose(l) perm=[0,2,1]
         n = MatMul(h, m)
         p = Softmax(n) axis=-1
         y = MatMul(p, x)
         output y",
    );
    let after = fuse(&before);
    assert!(after.changed());
    assert_eq!(is_proved_or_listed(&before, &after), Ok(()));
}

/// Three successive scalars move through an activation together.
#[test]
fn prover_moves_a_product_of_scalars_past_relu() {
    let before = model(
        "input x batch 4
         weight w 4 4
         const a = 0.25
         const b = 0.5
         const c = 1.5
         v = MatMul(x, w)
         r = Relu(v)
         d = Mul(r, a)
         e = Mul(d, b)
         f = Add(e, d)
         g = Mul(c, f)
         y = Add(g, f)
         output y",
    );
    let after = fuse(&before);
    assert_eq!(operators(&after.model), ["MatMul", "Relu"]);
    assert_eq!(is_proved_or_listed(&before, &after), Ok(()));
}

/// Both parts of a roll need the same affine of the value before it.
#[test]
fn affine_passes_a_roll_backward() {
    let after = folded(&model(
        "input x batch 6 4
         weight w 4 4
         scale g 4
         shift t 4
         weight v 4 3
         ints two 1 = 2
         ints zero 1 = 0
         ints many 1 = 100
         ints along 1 = 1
         y = MatMul(x, w)
         a = Slice(y, two, many, along)
         b = Slice(y, zero, two, along)
         r = Concat(a, b) axis=1
         n = Mul(r, g)
         m = Add(n, t)
         z = Relu(m)
         output z",
    ));
    assert!(!operators(&after).contains(&"Mul"));
}

/// A value and its mean need the same affine of their producer: the class token of a convolutional
/// network.
#[test]
fn affine_passes_concat_of_a_value_and_its_mean_backward() {
    let of = |more: &str, stream: &str| {
        model(&format!(
            "input x batch 8 4
             input r batch 8 4
             weight w 4 4
             shift b 4
             {more}
             f = MatMul(x, w)
             h = Add(f, b)
             y = {stream}
             mean = ReduceMean(y) axes=[1]
             c = Concat(mean, y) axis=1
             const g 4 = 2 0.5 -1 4
             shift t 4
             n = Mul(c, g)
             m = Add(n, t)
             z = Relu(m)
             output z"
        ))
    };
    let alone = folded(&of("", "Identity(h)"));
    assert_eq!(
        operators(&alone),
        ["MatMul", "Add", "ReduceMean", "Concat", "Relu"]
    );
    // On a stream, the shift folds into the last sum, and the other writers need none.
    let written =
        "weight v 4 4\n weight u 4 4\n e = MatMul(r, v)\n last = MatMul(e, u)\n output last";
    let stream = folded(&of(written, "Add(e, h)"));
    assert_eq!(
        operators(&stream).iter().filter(|op| **op == "Mul").count(),
        0
    );
    let (reason, backward) = kept(&of("output y", "Identity(h)"));
    assert_eq!(
        (reason.name(), backward.unwrap().name()),
        ("not-linear", "other-reader")
    );
}

/// A value that is concatenated with itself many times is examined only once.
#[test]
fn concat_of_3000_equal_operands_stays_within_20_seconds() {
    let many = vec!["y"; 3000].join(", ");
    let begun = Instant::now();
    let before = model(&format!(
        "input x 2 2
         weight w 2 2
         scale g 1 6000
         y = MatMul(x, w)
         c = Concat({many}) axis=1
         n = Mul(c, g)
         z = Relu(n)
         output z"
    ));
    assert!(!unfold::fuse(&before, &portable()).unwrap().changed());
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn merging_a_chain_computes_each_product_once() {
    let layer = |place| {
        format!(
            "weight w{place} 300 300\n v{} = MatMul(v{place}, w{place})\n",
            place + 1
        )
    };
    let layers: String = (0..6).map(layer).collect();
    let before = model(&format!("input v0 b 300\n {layers} output v6"));
    let started = Instant::now();
    let after = unfold::fuse(&before, &portable()).unwrap().model;
    assert!(
        started.elapsed() < Duration::from_secs(60),
        "{:?}",
        started.elapsed()
    );
    let [product] = &after.graph().initializer[..] else {
        panic!("{}", crate::common::text::print(&after))
    };
    let matrix = |tensor, model: &Model| {
        read_f64(tensor, model.externals())
            .unwrap()
            .into_dimensionality::<ndarray::Ix2>()
            .unwrap()
    };
    let weights = (0..6).map(|place| matrix(initializer(&before, &format!("w{place}")), &before));
    let expected = weights
        .reduce(|product, weight| product.dot(&weight))
        .unwrap();
    let largest = expected.fold(0.0, |most: f64, number| most.max(number.abs()));
    let off =
        (matrix(product, &after) - &expected).fold(0.0, |most: f64, number| most.max(number.abs()));
    assert!(largest > 1.0 && off < 1e-6 * largest, "{off} of {largest}");
}

/// The engine has one type for all possible extents, and ignores a Cast from it to another integer
/// type.
#[test]
fn casts_between_integer_types_stay() {
    use DataType::{Bool, Float, Int8, Int16, Int32, Int64, Uint8};
    let casts = |types: &[DataType]| -> String {
        let cast = |(place, to): (usize, &DataType)| {
            format!("i{} = Cast(i{place}) to={}\n", place + 1, to.code())
        };
        let last = format!("y = Cast(i{}) to={}\n output y", types.len(), Float.code());
        types.iter().enumerate().map(cast).collect::<String>() + &last
    };
    let count = |before: &Model| {
        let after = unfold::fuse(before, &portable()).unwrap().model;
        operators(&after).iter().filter(|op| **op == "Cast").count()
    };
    // Integers from an input, in a shape that the extents of a tensor may have.
    for shape in ["", "3", "n"] {
        let given = |types: &[DataType]| model(&format!("indices i0 {shape}\n {}", casts(types)));
        for types in [
            &[Int32][..],
            &[Uint8],
            &[Int16, Int64],
            &[Bool, Int64],
            &[Int32, Int64],
            &[Int8, Int32],
        ] {
            assert_eq!(count(&given(types)), types.len() + 1, "{shape:?} {types:?}");
        }
        // This Cast does not change the type.
        assert_eq!(count(&given(&[Int64])), 1, "{shape:?}");
    }
    // Truth values are not integers.
    for holds in ["Equal(i0, i0)", "Greater(i0, i0)", "Not(t)"] {
        let before = model(&format!(
            "indices i0 3\n condition t\n c = {holds}\n n = Cast(c) to=7\n m = Add(n, i0)\n y = Cast(m) to=1\n output y"
        ));
        assert_eq!(count(&before), 2, "{holds}");
    }
    // A known extent is a number. The test covers types that represent it, and types that do not.
    let wide = |types: &[DataType]| {
        let casts = casts(types).replace("output y", "z = Mul(x, y)\n output z");
        model(&format!("input x 300 1\n i0 = Shape(x)\n {casts}"))
    };
    for (types, number) in [
        (&[Int32][..], 300.0),
        (&[Int16, Int64], 300.0),
        (&[Uint8], 44.0),
        (&[Int64, Int8, Int64], 44.0),
    ] {
        let after = unfold::fuse(&wide(types), &portable()).unwrap().model;
        let stored = read_f64(initializer(&after, "y"), &Externals::none()).unwrap();
        assert_eq!(
            stored.into_raw_vec_and_offset().0,
            [number, 1.0],
            "{types:?}"
        );
    }
}

#[test]
fn folded_shape_arithmetic_keeps_its_integer_type() {
    // One exporter writes the targets of its Reshapes in this way.
    let before = model(
        "input x b 6 4
         ints at 1 = 1
         ints end 1 = 2
         ints axes 1 = 0
         ints two 1 = 2
         s = Shape(x)
         i = Cast(s) to=6
         p = Slice(i, at, end, axes)
         t = Cast(two) to=6
         h = Div(p, t)
         m = Mul(p, h)
         c = Concat(h, m) axis=0
         l = Cast(c) to=7
         f = Cast(m) to=1
         r = Reshape(x, l2)
         y = Mul(r, f)
         z = Cast(c) to=1
         output y
         output z
         ints l2 2 = -1 6",
    );
    let after = unfold::fuse(&before, &portable()).unwrap().model;
    let stored = |name: &str| {
        after
            .graph()
            .initializer
            .iter()
            .find(|tensor| tensor.name() == name)
            .cloned()
    };
    let types = ["m", "c"].map(|name| stored(name).map(|tensor| tensor.data_type()));
    assert!(
        types.contains(&Some(DataType::Int32.code())),
        "{types:?} {}",
        crate::common::text::print(&after)
    );
    assert!(
        types
            .iter()
            .flatten()
            .all(|&code| code == DataType::Int32.code()),
        "{types:?}"
    );
}

/// In float16, the sum of the squares is infinite, and the engine's own sum of many numbers loses
/// most of them.
#[test]
fn float16_constants_are_reduced_in_float32() {
    let mut before = model(
        "half x 3
         const w 1 3 = 200 200 100
         n = ReduceL2(w) axes=[1] keepdims=0
         y = Mul(x, n)
         output y",
    );
    crate::common::retype(&mut before, &["w"], DataType::Float16);
    let after = unfold::fuse(&before, &portable()).unwrap().model;
    let [norm] = &after.graph().initializer[..] else {
        panic!("{}", crate::common::text::print(&after))
    };
    assert_eq!(
        read_f64(norm, &Externals::none())
            .unwrap()
            .into_raw_vec_and_offset()
            .0,
        [300.0]
    );
}

#[test]
fn constants_that_are_not_finite_are_not_folded() {
    let left = |made: &str| {
        let mut before = model(&format!(
            "input x 2\n const c 2 2 = 1 2 3 4\n p = {made}\n y = Mul(x, p)\n output y"
        ));
        let infinite = ndarray::arr2(&[[f64::NEG_INFINITY; 2]; 2]).into_dyn();
        before.graph_mut().initializer[0] = crate::common::floats("c", &infinite);
        operators(&unfold::fuse(&before, &portable()).unwrap().model).len()
    };
    for looks in [
        "ReduceMax(c) axes=[1] keepdims=0",
        "Clip(c)",
        "MaxPool(c) kernel_shape=[2]",
    ] {
        assert_eq!(left(looks), 2, "{looks}");
    }
}

#[test]
fn constant_sigmoid_is_accurate_near_zero() {
    let before = model(
        "input x 2\n const c 2 = -30 30\n s = Sigmoid(c)\n l = Log(s)\n y = Mul(x, l)\n output y",
    );
    let after = unfold::fuse(&before, &portable()).unwrap().model;
    let [stored] = &after.graph().initializer[..] else {
        panic!("{}", crate::common::text::print(&after))
    };
    let [low, high] = read_f64(stored, &Externals::none())
        .unwrap()
        .into_raw_vec_and_offset()
        .0[..]
    else {
        panic!()
    };
    assert!(
        (low + 30.0).abs() < 1e-5 && (-1e-6..=0.0).contains(&high),
        "{low} {high}"
    );
}

/// erf(1) is 0.8427007929497149. The engine computes six digits of it.
#[test]
fn constant_erf_is_accurate_to_float32() {
    let before = model("input x 2\n const c 2 = 1 -0.5\n s = Erf(c)\n y = Mul(x, s)\n output y");
    let after = fuse(&before).model;
    let numbers = read_f64(&after.graph().initializer[0], &Externals::none()).unwrap();
    let expected = [0.842_700_792_949_714_9, -0.520_499_877_813_046_5].map(|erf: f64| erf as f32);
    assert_eq!(numbers.into_raw_vec_and_offset().0, expected.map(f64::from));
}

/// onnxruntime generates these names when it adds a bias. It cannot load a file in which they are
/// taken, with or without a number after them.
#[test]
fn initializer_names_that_onnxruntime_generates_are_renamed() {
    for number in ["", "_token_0"] {
        let after = folded(&model(&format!(
            "input x 2 3 4
             scale g 4
             shift b 4
             weight w 4 5
             ints gemm_input_shape{number} 2 = 6 4
             ints gemm_output_shape{number} 3 = 2 3 5
             r = Reshape(x, gemm_input_shape{number})
             a = Mul(r, g)
             c = Add(a, b)
             m = MatMul(c, w)
             y = Reshape(m, gemm_output_shape{number})
             output y",
        )));
        let names: Vec<&str> = after
            .graph()
            .initializer
            .iter()
            .map(|tensor| tensor.name())
            .collect();
        assert!(
            ["gemm_input_shape_0", "gemm_output_shape_0"]
                .iter()
                .all(|name| names.contains(name)),
            "{names:?}"
        );
        assert!(
            !names
                .iter()
                .any(|name| name.ends_with("shape") || name.contains("_token_")),
            "{names:?}"
        );
    }
}

/// Engines run a dynamically quantized product and the Mul by its scale as one operator, so the
/// scale must stay.
#[test]
fn dynamic_quantization_scale_stays() {
    let before = model(
        "opset 18
         input x 2 5 4
         q, s, z = DynamicQuantizeLinear(x)
         f = Cast(q) to=1
         const scale = 0.01
         t = Mul(s, scale)
         v = Mul(f, t)
         weight w 4 3
         y = MatMul(v, w)
         output y",
    );
    assert_eq!(fuse(&before).model.proto, before.proto);
}

/// A ConstantOfShape without a value is float32, but tract computes float64.
#[test]
fn constant_of_shape_without_value_is_float32() {
    let before = model(
        "opset 18
         input x 2 4
         ints s 2 = 2 1
         z = ConstantOfShape(s)
         scale g 4
         m = Mul(x, g)
         weight w 4 3
         p = MatMul(m, w)
         y = Concat(z, p) axis=1
         output y",
    );
    let after = fuse(&before);
    is_proved_or_listed(&before, &after).unwrap();
    let zeros = after
        .model
        .graph()
        .initializer
        .iter()
        .find(|tensor| tensor.name() == "z")
        .unwrap();
    assert_eq!(
        (zeros.data_type(), zeros.dims.as_slice()),
        (DataType::Float.code(), &[2, 1][..])
    );
}

/// A table that is expanded to an open batch is a constant only at the sizes of a proof. The
/// activation of it is therefore not computed from rounded numbers.
#[test]
fn gelu_of_an_expanded_table_is_proved() {
    let before = model(
        "opset 20
         input x batch 4
         weight table 3 4
         h = Shape(x) end=1
         ints rest 2 = 3 4
         t = Concat(h, rest) axis=0
         e = Expand(table, t)
         const g 4 = 0.3 1.7 -0.6 1.1
         shift b 4
         n = Mul(e, g)
         m = Add(n, b)
         weight w 4 5
         z = MatMul(m, w)
         y = Gelu(z)
         output y",
    );
    let after = fuse(&before);
    assert_eq!(
        operators(&after.model)
            .iter()
            .filter(|&&op| op == "Mul")
            .count(),
        0
    );
    is_proved_or_listed(&before, &after).unwrap();
}

/// tract reads the first element of an empty value, and crashes.
#[test]
fn one_hot_depth_and_dft_axis_without_element_do_not_crash() {
    for text in [
        "input x batch 4\n ints depth 0 =\n const values 2 = 0 1\n indices i 2\n o = OneHot(i, depth, values)\n scale g 4\n m = Mul(x, g)\n weight w 4 3\n y = MatMul(m, w)\n output y o",
        "input x batch 4\n ints axis 0 =\n s = DFT(x, , axis)\n scale g 4\n m = Mul(x, g)\n weight w 4 3\n y = MatMul(m, w)\n output y s",
    ] {
        let before = model(&format!("opset 20\n {text}"));
        let after = fuse(&before);
        assert!(!operators(&after.model).contains(&"Mul"));
        let failure = Engine::load(&before, &Dims::default())
            .unwrap_err()
            .to_string();
        assert!(failure.contains("has no element"), "{failure}");
    }
}

#[test]
fn batch_norm_before_token_matmul_folds_scale_and_shift_apart() {
    // The spatial gate of gMLP. The shift folds into the bias of the product, and the scale into
    // the layer after the gate.
    let before = model(
        "input x batch 6 4
         input u batch 6 4
         const g 4 = 2 1 -4 1
         shift t 4
         shift mean 4
         const var 4 = 1 4 0.25 16
         weight w 6 6
         shift b 6
         weight v 4 3
         i = Relu(x)
         r = Transpose(i) perm=[0,2,1]
         n = BatchNormalization(r, g, t, mean, var) epsilon=0.0
         p = MatMul(n, w)
         o = Add(p, b)
         q = Transpose(o) perm=[0,2,1]
         k = Mul(u, q)
         y = MatMul(k, v)
         output y",
    );
    let after = folded(&before);
    same(&before, &after, 0.0);
    assert_eq!(
        operators(&after),
        [
            "Relu",
            "Transpose",
            "MatMul",
            "Add",
            "Transpose",
            "Mul",
            "MatMul"
        ]
    );
}

/// Queries and keys are normalized for each head: the mean of squares is over one head, and so is
/// the scale.
#[test]
fn norm_per_head_is_rms_norm_and_not_power_norm() {
    let with = |behind: &str| {
        model(&format!(
            "opset 18
             input x 2 5 8
             weight w 8 8
             ints apart 4 = 0 0 2 4
             ints together 3 = 0 0 8
             ints last 1 = -1
             const e = 1e-6
             const two = 2
             m = MatMul(x, w)
             h = Reshape(m, apart)
             s = Pow(h, two)
             a = ReduceMean(s, last)
             d = Add(a, e)
             q = Sqrt(d)
             n = Div(h, q)
             {behind}
             y = Relu(o)
             output y"
        ))
    };
    let kinds = |model: &Model| -> Vec<&str> {
        fuse(model)
            .plan
            .sites
            .iter()
            .map(|site| site.kind.name)
            .collect()
    };
    assert_eq!(kinds(&with("scale g 4\n o = Mul(n, g)")), ["RMSNorm"]);
    assert_eq!(
        kinds(&with(
            "scale g 8\n c = Reshape(n, together)\n o = Mul(c, g)"
        )),
        ["PN"]
    );
}

/// An Einsum has no bias, so the Add after it is already in the best form.
#[test]
fn bias_after_einsum_stays() {
    let before = model(
        "input x batch 4 6 5
         weight w 4 6 2
         const t = 0.5
         weight v 3 2 2
         a = Einsum(x, w) equation=bcde,cdf->bfe
         b = Add(a, t)
         y = Conv(b, v) pads=[1,0]
         output y",
    );
    let fused = fuse(&before);
    assert_eq!(operators(&fused.model), ["Einsum", "Add", "Conv"]);
    assert!(!fused.changed());
}

/// With a kernel of one place, `SAME` adds no padding.
#[test]
fn pointwise_conv_with_auto_pad_absorbs_a_shift() {
    for (extent, strides) in [("7", "[1,1]"), ("high", "[2,2]")] {
        becomes(
            &model(&format!(
                "input x batch 4 {extent} {extent}
                 scale g 4 1 1
                 shift t 4 1 1
                 weight w 3 4 1 1
                 e = Relu(x)
                 n = Mul(e, g)
                 m = Add(n, t)
                 c = Conv(m, w) auto_pad=SAME_UPPER strides={strides}
                 y = Relu(c)
                 output y"
            )),
            &["Relu", "Conv", "Relu"],
        );
    }
}

/// `100·0.01` is rounded to 1 in float64, but the exact product is another number.
#[test]
fn scalar_that_is_1_only_by_rounding_stays() {
    let mut before = model(
        "input x batch 4
         const a = 100
         const b = 0.01
         t = Tanh(x)
         m = Mul(t, a)
         n = Mul(m, b)
         y = Sin(n)
         output y",
    );
    crate::retype(&mut before, &["a", "b"], DataType::Double);
    before.graph_mut().input = vec![crate::common::declared(
        "x",
        DataType::Double,
        &["batch", "4"],
    )];
    let fused = fuse(&before);
    assert_eq!(operators(&fused.model), ["Tanh", "Mul", "Sin"]);
    let proof = unfold::prove::prove(
        &before,
        &fused.model,
        &fused.plan.tensors,
        &Default::default(),
    );
    assert!(
        matches!(proof, unfold::prove::Proof::Proved { .. }),
        "{proof:?}"
    );
}

/// A scale of ones is removed if neither unfold nor an engine needs it.
#[test]
fn gamma_of_ones_is_removed_unless_an_engine_needs_it() {
    let normalized = |square: &str, root: &str| {
        model(&format!(
            "input x batch 6 4
             const two = 2
             const eps = 0.001
             const ones 4 = 1 1 1 1
             weight w 4 3
             {square}
             m = ReduceMean(p) axes=[-1]
             e = Add(m, eps)
             s = Sqrt(e)
             {root}
             g = Mul(n, ones)
             y = MatMul(g, w)
             output y"
        ))
    };
    let written = folded_operators(&normalized(
        "p = Mul(x, x)",
        "r = Reciprocal(s)\n n = Mul(x, r)",
    ));
    assert_eq!(
        written.last_chunk(),
        Some(&["Reciprocal", "Mul", "MatMul"].map(String::from))
    );
    for known in ["n = Div(x, s)", "r = Reciprocal(s)\n n = Mul(x, r)"] {
        let known = folded_operators(&normalized("p = Pow(x, two)", known));
        assert_eq!(
            known.last_chunk(),
            Some(&["Div", "Mul", "MatMul"].map(String::from))
        );
    }
}

/// onnxruntime writes a product with `1/s` as a quotient, and then knows the LayerNormalization,
/// but only with a Mul and an Add of vectors behind it.
#[test]
fn layer_norm_with_a_reciprocal_keeps_neutral_parameters() {
    let before = model(
        "input x batch 6 4
         const two = 2
         const eps = 0.001
         const one = 1
         scale h 4
         shift b 4
         weight w 4 3
         shift t 3
         c = ReduceMean(x) axes=[-1]
         d = Sub(x, c)
         p = Pow(d, two)
         m = ReduceMean(p) axes=[-1]
         e = Add(m, eps)
         s = Sqrt(e)
         r = Div(one, s)
         n = Mul(d, r)
         g = Mul(n, h)
         a = Add(g, b)
         z = MatMul(a, w)
         y = Add(z, t)
         output y",
    );
    let after = fuse(&before).model;
    let parameters = ["Mul", "Add", "MatMul", "Add"];
    assert_eq!(operators(&after).last_chunk(), Some(&parameters));
    let stored = after.graph().initializer.iter();
    let parameter = |numbers: f64| {
        let mut vectors = stored.clone().filter(|tensor| tensor.dims == [4]);
        vectors.any(|tensor| {
            let read = unfold::onnx::tensor::read_f64(tensor, after.externals()).unwrap();
            read.iter().all(|&number| number == numbers)
        })
    };
    assert!(parameter(1.0) && parameter(0.0));
    same(&before, &after, 1e-6);
}

fn folded_operators(before: &unfold::onnx::Model) -> Vec<String> {
    operators(&fuse(before).model)
        .into_iter()
        .map(str::to_owned)
        .collect()
}

/// The shift is added to a half of a layer's result, which a Slice selects.
#[test]
fn shift_of_a_sliced_output_folds_into_the_bias() {
    becomes(
        &model(
            "input x batch 5 6
             weight w 6 8
             shift b 8
             shift t 4
             ints zero 1 = 0
             ints four 1 = 4
             ints eight 1 = 8
             ints last 1 = -1
             p = MatMul(x, w)
             h = Add(p, b)
             l = Slice(h, zero, four, last)
             r = Slice(h, four, eight, last)
             s = Add(l, t)
             a = Sigmoid(r)
             y = Mul(s, a)
             output y",
        ),
        &["MatMul", "Add", "Slice", "Slice", "Sigmoid", "Mul"],
    );
}

/// `a = x[:, :len(y)]` is as long as the shorter of the two, and so is `y[:, :len(a)]`.
#[test]
fn slices_of_mutually_limited_lengths_stay() {
    let before = model(
        "input x n t 4
         input v n u 4
         weight w 4 3
         ints zero 1 = 0
         ints one 1 = 1
         ints two 1 = 2
         s = Shape(v)
         l = Slice(s, one, two, zero)
         a = Slice(x, zero, l, one)
         r = Shape(a)
         k = Slice(r, one, two, zero)
         b = Slice(v, zero, k, one)
         z = Add(a, b)
         y = MatMul(z, w)
         output y",
    );
    let after = fuse(&before);
    for cut in ["a", "b"] {
        assert!(
            after
                .model
                .graph()
                .node
                .iter()
                .any(|node| node.op_type() == "Slice" && node.output[0] == cut)
        );
    }
}

/// With a negative step, onnxruntime reads the largest integer as an end at the start of the axis.
#[test]
fn backward_slice_to_the_largest_integer_stays_unknown() {
    for end in [i64::MAX, i64::from(i32::MAX)] {
        let before = model(&format!(
            "input x n t
             ints one 1 = 1
             ints end 1 = {end}
             ints back 1 = -1
             ints zero 1 = 0
             s = Shape(x)
             c = Slice(s, one, end, zero, back)
             y = Shape(c)
             output y"
        ));
        let after = fuse(&before);
        assert_eq!(operators(&after.model), ["Shape", "Slice", "Shape"]);
    }
}

/// onnxruntime accepts a computed limit of shape [1] for a Range, but loads no model in which it is
/// a constant.
#[test]
fn range_limit_is_not_stored_as_a_1d_constant() {
    let before = model(
        "input x n 3
         ints none = 0
         ints step = 1
         ints first 1 = 1
         ints behind 1 = 2
         s = Shape(x)
         l = Slice(s, first, behind)
         r = Range(none, l, step)
         f = Cast(r) to=1
         y = Mul(x, f)
         output y",
    );
    let after = fuse(&before);
    let range = after
        .model
        .graph()
        .node
        .iter()
        .find(|node| node.op_type() == "Range")
        .unwrap();
    assert!(
        after
            .model
            .graph()
            .initializer
            .iter()
            .all(|tensor| tensor.name() != range.input[1])
    );
}

#[test]
fn value_with_a_quantization_annotation_is_not_rescaled() {
    let lines = "input x 2 3
         weight w 3 4
         shift b 4
         scale k 4
         a = MatMul(x, w)
         c = Add(a, b)
         d = Mul(c, k)
         y = Relu(d)
         output y";
    let before = model(lines);
    folded(&before);
    for told in ["a", "c"] {
        let mut before = before.clone();
        before.graph_mut().quantization_annotation = vec![TensorAnnotation {
            tensor_name: Some(told.into()),
            ..Default::default()
        }];
        let after = fuse(&before);
        assert_eq!(after.model.graph().node, before.graph().node, "{told}");
    }
}

#[test]
fn unequal_split_of_a_transpose_keeps_its_results() {
    let before = model(
        "input x 2 3 3 4 5
         ints s 3 = 2 1 0
         ints m 1 = -1
         t = Transpose(x) perm=[2,0,1,4,3]
         p, q, r = Split(t, s) axis=0
         a = Reshape(p, m)
         b = Reshape(q, m)
         c = Reshape(r, m)
         output a b c",
    );
    same(&before, &fuse(&before).model, 0.0);
}

#[test]
fn softsign_is_legalized_in_float32_only() {
    let mut before = model(
        "input x 2 6
         weight w 6 4
         const k = 0.5
         const one = 1
         scale g 4
         weight v 4 3
         m = MatMul(x, w)
         z = Mul(m, k)
         a = Abs(z)
         d = Add(a, one)
         s = Div(z, d)
         n = Mul(s, g)
         y = MatMul(n, v)
         output y",
    );
    assert_eq!(
        operators(&fuse(&before).model),
        ["MatMul", "Softsign", "MatMul"]
    );
    retype(&mut before, &["w", "k", "one", "g", "v"], DataType::Double);
    before.graph_mut().input[0] = declared("x", DataType::Double, &["2", "6"]);
    assert_eq!(
        operators(&fuse(&before).model),
        ["MatMul", "Abs", "Add", "Div", "MatMul"]
    );
}

/// The factor of the reciprocal and the factor after it are two different scales.
#[test]
fn scaled_reciprocal_keeps_its_scale_beside_gamma() {
    let before = model(
        "opset 14
         input x 2 3 6
         const two = 2
         const one = 1
         const e = 0.00001
         scale g 6
         scale h 6
         weight w 6 4
         q = Pow(x, two)
         m = ReduceMean(q) axes=[-1] keepdims=1
         v = Add(m, e)
         r = Sqrt(v)
         i = Div(one, r)
         j = Mul(i, g)
         z = Mul(x, j)
         n = Mul(z, h)
         y = MatMul(n, w)
         output y",
    );
    same(&before, &fuse(&before).model, 1e-5);
}

/// If the statistics of groups have another order or another ε, dividing by them is not a PN.
#[test]
fn power_norm_needs_group_statistics_repeated_in_order() {
    let with = |statistics: &str| {
        model(&format!(
            "opset 14
             input x 2 3 8
             scale g 8
             shift t 8
             weight w 8 4
             const e = 0.1
             ints apart 4 = 0 0 2 4
             ints together 3 = 0 0 8
             ints tiled 4 = 1 1 4 2
             ints repeated 4 = 1 1 2 4
             ints turned 4 = 0 0 1 2
             h = Reshape(x, apart)
             q = Mul(h, h)
             m = ReduceMean(q) axes=[3] keepdims=1
             {statistics}
             d = Reshape(k, together)
             n = Div(x, d)
             u = Mul(n, g)
             v = Add(u, t)
             y = MatMul(v, w)
             output y"
        ))
    };
    let repeated = with("a = Add(m, e)\n s = Sqrt(a)\n k = Expand(s, repeated)");
    let after = fuse(&repeated);
    same(&repeated, &after.model, 1e-5);
    assert!(!operators(&after.model).contains(&"Expand"));
    for statistics in [
        "a = Add(m, e)\n s = Sqrt(a)\n r = Reshape(s, turned)\n k = Expand(r, tiled)",
        "a = Add(m, e)\n s = Sqrt(a)\n r = Expand(s, repeated)\n k = Transpose(r) perm=[0,1,3,2]",
        "a = Add(m, e)\n s = Sqrt(a)\n b = Add(s, e)\n k = Expand(b, repeated)",
        "s = Sqrt(m)\n b = Add(s, e)\n k = Expand(b, repeated)",
    ] {
        let before = with(statistics);
        same(&before, &fuse(&before).model, 1e-5);
    }
}

/// A constant of a Gemm is folded twice, and a shape reuses the name of the first result. The plan
/// has only the tensor that remains.
#[test]
fn reused_tensor_name_is_planned_once() {
    let before = model(
        "input x batch 1 4 1
         const c1 1 1 = 0
         const c3 1 = 3
         const c4 1 = -1
         const c6 1 = 4
         ints i12 2 = -1 1
         ints i19 4 = -1 1 4 1
         weight c22 4 3
         v2 = MatMul(x, c1)
         v7 = BatchNormalization(x, c3, c4, c4, c6) epsilon=0.0
         v8 = Add(v2, v7)
         v13 = Reshape(v8, i12)
         v18 = BatchNormalization(v13, c3, c4, c4, c6) epsilon=0.0
         v20 = Reshape(v18, i19)
         v21 = Flatten(v20) axis=2
         v23 = Gemm(v21, c22)
         output v23",
    );
    let fused = unfold::fuse(&before, &Default::default()).unwrap();
    same(&before, &fused.model, 0.0);
    let proof = prove(
        &before,
        &fused.model,
        &fused.plan.tensors,
        &Default::default(),
    );
    assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
}
