//! Growth by copies of shared weights and by biases for each place, and its limit.

use crate::common::portable;
use unfold::onnx::{Model, tensor};
use unfold::plan::Outcome;
use unfold::refusal::Reason;
use unfold::{FuseOptions, Fused, fuse};

use crate::common::text::model;
use crate::common::{check_new_tensors, is_proved_or_listed};
use crate::{folded, operators, same, untidied};

fn fuse_with_growth(model: &Model, max_growth: f64) -> Fused {
    let fused = untidied(
        model,
        &FuseOptions {
            max_growth,
            ..portable()
        },
    );
    same(model, &fused.model, 0.0);
    check_new_tensors(model, &fused).unwrap();
    fused
}

/// The bytes of all initializers with at least two axes.
fn matrix_bytes(model: &Model) -> u64 {
    let all = model
        .graph()
        .initializer
        .iter()
        .filter(|tensor| tensor.dims.len() > 1);
    let sizes = all.map(|tensor| {
        let count: i64 = tensor.dims.iter().product();
        tensor::data_type(tensor).unwrap().byte_size(count as usize)
    });
    sizes.map(|size| size.unwrap() as u64).sum()
}

/// The names of the sites that stay because of growth.
fn sites_refused_for_growth(fused: &Fused) -> Vec<&str> {
    let is_beyond = |outcome: &Outcome| {
        outcome
            .refusals()
            .any(|(_, refusal)| matches!(refusal.reason, Reason::Growth(_)))
    };
    let sites = fused
        .plan
        .sites
        .iter()
        .filter(|site| site.outcomes().any(is_beyond));
    sites.map(|site| site.name.as_str()).collect()
}

/// Asserts that copies add this many bytes, and that a slightly smaller limit refuses them.
fn assert_growth(model: &Model, bytes: u64) {
    let before = model.weight_bytes();
    let percent = 100.0 * bytes as f64 / before as f64;
    let fused = fuse_with_growth(model, percent * 1.001);
    assert_eq!(fused.plan.growth, bytes);
    assert_eq!(matrix_bytes(&fused.model), matrix_bytes(model) + bytes);
    assert_eq!(sites_refused_for_growth(&fused), [""; 0]);
    let less = fuse_with_growth(model, percent * 0.999);
    assert!(
        !sites_refused_for_growth(&less).is_empty() && less.plan.growth < bytes,
        "{:#?}",
        less.plan.sites
    );
    assert_eq!(
        matrix_bytes(&less.model),
        matrix_bytes(model) + less.plan.growth
    );
}

#[test]
fn tied_embedding_is_copied_for_the_head_within_the_limit() {
    let tied = |head: &str| {
        model(&format!(
            "indices ids batch 3
             weight table 12 4
             scale g 4
             shift t 4
             e = Gather(table, ids)
             r = Relu(e)
             n = Mul(r, g)
             m = Add(n, t)
             {head}
             output y"
        ))
    };
    let transposed = tied("head = Transpose(table)\n y = MatMul(m, head)");
    assert_growth(&transposed, 12 * 4 * 4);
    let within = tied("ints s 2 = -1 4\n f = Reshape(m, s)\n y = Gemm(f, table) transB=1");
    assert_growth(&within, 12 * 4 * 4);
    // The default limit refuses this growth.
    assert_eq!(
        sites_refused_for_growth(&fuse(&within, &portable()).unwrap()),
        ["Mul_n"]
    );
    assert_eq!(fuse_with_growth(&within, 5.0).model.proto, within.proto);
    // A head that does not share its weight causes no growth, and neither do its operands.
    let alone = tied("weight own 12 4\n head = Transpose(own)\n y = MatMul(m, head)");
    assert_eq!(fuse_with_growth(&alone, 0.0).plan.growth, 0);
    folded(&alone);
}

#[test]
fn one_of_two_layers_with_a_shared_weight_gets_a_copy() {
    let shared = |first: &str, second: &str| {
        model(&format!(
            "input x batch 4
             scale g 4
             scale h 4
             weight w 4 8
             weight v 8 4
             n = Mul(x, g)
             a = MatMul(n, {first})
             b = Relu(a)
             c = MatMul(b, v)
             m = Mul(c, h)
             o = Relu(m)
             q = Mul(o, h)
             y = MatMul(q, {second})
             output y"
        ))
    };
    assert_growth(&shared("w", "w"), 4 * 8 * 4);
    // Two transposes of the same tensor need one additional copy.
    let text = "input x batch 4
                scale g 4
                scale h 4
                weight w 8 4
                s = Transpose(w)
                t = Transpose(w)
                n = Mul(x, g)
                m = Mul(x, h)
                a = MatMul(n, s)
                b = MatMul(m, t)
                output a b";
    assert_growth(&model(text), 4 * 8 * 4);
    // After equal normalizers, both layers share the folded weight.
    assert_eq!(
        fuse_with_growth(
            &model(
                &text
                    .replace("scale h 4", "")
                    .replace("Mul(x, h)", "Mul(x, g)")
                    .replace("n, s", "n, t")
            ),
            0.0
        )
        .plan
        .growth,
        0
    );
}

#[test]
fn splits_of_a_weight_add_nothing_if_all_are_folded() {
    let packed = |last: &str| {
        model(&format!(
            "input x batch 4
             scale g 4
             weight w 4 8
             ints half 2 = 4 4
             k, v = Split(w, half) axis=1
             n = Mul(x, g)
             a = MatMul(n, k)
             b = MatMul({last}, v)
             output a b"
        ))
    };
    let fused = fuse_with_growth(&packed("n"), 0.0);
    assert_eq!(
        (fused.plan.growth, sites_refused_for_growth(&fused).len()),
        (0, 0)
    );
    assert_eq!(operators(&fused.model), ["MatMul", "MatMul"]);
    // If one part of the Split is still read, the whole weight stays in the model.
    assert_growth(&packed("x"), 4 * 4 * 4);
}

#[test]
fn vectors_do_not_count_as_growth() {
    // One of two layers keeps the shared bias, and the other one gets a new bias.
    let model = model(
        "input x batch 4
         scale g 4
         shift t 4
         shift u 4
         weight v 4 4
         weight w 4 4
         n = Mul(x, g)
         m = Add(n, t)
         a = MatMul(m, v)
         b = Add(a, u)
         c = MatMul(x, w)
         d = Add(c, u)
         output b d",
    );
    let fused = fuse_with_growth(&model, 0.0);
    assert!(fused.plan.sites[0].is_folded() && fused.plan.growth == 0);
    assert!(
        fused
            .model
            .graph()
            .initializer
            .iter()
            .any(|tensor| tensor.name() == "u")
    );
}

/// Folds a model with slightly more and with slightly less growth than its folds need. Asserts that
/// the first result grows by `bytes`, and that one site of the second one stays because of growth.
fn fuse_around_growth(before: &Model, bytes: u64) -> [Fused; 2] {
    let percent = 100.0 * bytes as f64 / before.weight_bytes() as f64;
    let enough = fuse_with_growth(before, percent * 1.001);
    assert_eq!(enough.plan.growth, bytes);
    assert_eq!(sites_refused_for_growth(&enough), [""; 0]);
    let less = fuse_with_growth(before, percent * 0.999);
    assert_eq!(less.plan.growth, 0);
    assert_eq!(sites_refused_for_growth(&less).len(), 1);
    [enough, less]
}

#[test]
fn bias_for_each_place_of_a_padded_convolution_counts_as_growth() {
    let before = model(
        "input x 1 2 8 6
         scale g 2 1 1
         shift t 2 1 1
         n = Mul(x, g)
         m = Add(n, t)
         weight w 3 2 3 3
         y = Conv(m, w) pads=[1,1,1,1]
         output y",
    );
    let [enough, less] = fuse_around_growth(&before, 3 * 8 * 6 * 4);
    assert_eq!(operators(&enough.model), ["Conv", "Add"]);
    // The scale folds without the shift.
    assert_eq!(operators(&less.model), ["Add", "Conv"]);
    assert!(less.model.weight_bytes() < before.weight_bytes());
}

/// The bytes of the removed vector do not count.
#[test]
fn table_that_replaces_a_vector_in_a_sum_counts_as_growth() {
    let before = model(
        "input x batch 3 4
         shift t 3 1
         m = Add(x, t)
         weight w 4 6
         y = MatMul(m, w)
         shift c 6
         z = Add(y, c)
         output z",
    );
    let [enough, less] = fuse_around_growth(&before, (3 * 6 - 6) * 4);
    assert_eq!(operators(&enough.model), ["MatMul", "Add"]);
    assert_eq!(less.model.proto, before.proto);
}

#[test]
fn growth_limit_refuses_the_largest_copies_first() {
    let text = "input x batch 4
                scale g 4
                scale h 4
                scale k 4
                weight v 4 40
                weight w 4 20
                n = Mul(x, g)
                m = Mul(x, h)
                o = Mul(x, k)
                a = MatMul(n, v)
                b = MatMul(m, w)
                c = MatMul(o, v)
                d = MatMul(x, v)
                e = MatMul(x, w)
                output a b c d e";
    let model = model(text);
    // Two copies take 640 bytes each and one takes 320 bytes. The weights take 1,008 bytes.
    for (max_growth, stay, growth) in [
        (160.0, &[][..], 1600),
        (158.0, &["Mul_n"], 960),
        (94.0, &["Mul_n", "Mul_o"], 320),
        (31.0, &["Mul_n", "Mul_m", "Mul_o"], 0),
    ] {
        let fused = fuse_with_growth(&model, max_growth);
        assert_eq!(
            (
                sites_refused_for_growth(&fused).as_slice(),
                fused.plan.growth
            ),
            (stay, growth)
        );
        let again = fuse_with_growth(&model, max_growth);
        assert_eq!(
            again.model.to_bytes().unwrap(),
            fused.model.to_bytes().unwrap()
        );
    }
}

/// With `optimize=False`, exports of shared modules have a Transpose of the weight for each use.
#[test]
fn weight_transposed_for_each_use_is_folded_once() {
    let after = folded(&model(
        "input x batch 8
         weight w 8 8
         scale g 8
         shift b 8
         a = Mul(x, g)
         c = Add(a, b)
         t = Transpose(w) perm=[1,0]
         m = MatMul(c, t)
         h = Relu(m)
         d = Mul(h, g)
         e = Add(d, b)
         u = Transpose(w) perm=[1,0]
         y = MatMul(e, u)
         output y",
    ));
    assert_eq!(
        after
            .graph()
            .initializer
            .iter()
            .filter(|tensor| tensor.dims == [8, 8])
            .count(),
        1
    );
}

/// A copy of a shared weight from the first run counts in the second run, which therefore changes
/// nothing.
#[test]
fn second_run_counts_the_growth_of_the_first() {
    let before = model(
        "input x batch 8
         weight w 8 8
         weight v 8 64
         scale g 8
         scale k 8
         a = Mul(x, g)
         m = MatMul(a, w)
         h = Relu(m)
         d = Mul(h, k)
         e = MatMul(d, w)
         f = Relu(e)
         y = MatMul(f, v)
         output y",
    );
    // The weights take 2,304 bytes, and the copy takes 256.
    let options = |max_growth| FuseOptions {
        max_growth,
        ..portable()
    };
    let once = fuse(&before, &options(12.0)).unwrap();
    assert_eq!(once.plan.growth, 256);
    assert_eq!(
        unfold::provenance::Provenance::from_model(&once.model)[0].grown,
        Some(256)
    );
    let refused = fuse(&before, &options(10.0)).unwrap();
    assert_eq!(refused.plan.growth, 0);
    assert_eq!(
        unfold::provenance::Provenance::from_model(&refused.model)
            .first()
            .and_then(|time| time.grown),
        None
    );
    let again = fuse(&once.model, &options(12.0)).unwrap();
    assert!(!again.changed());
}

/// A scale that would fold backward into a table with two readers moves forward along the stream,
/// where nothing is copied.
#[test]
fn scale_folds_forward_where_backward_would_copy_a_table() {
    let part = |name: &str| {
        format!(
            "e{name} = Gather(table, ids{name})
             const g{name} 4 = 2 0.5 -1 4
             shift t{name} 4
             m{name} = Mul(e{name}, g{name})
             n{name} = Add(m{name}, t{name})
             weight up{name} 4 6
             h{name} = MatMul(n{name}, up{name})
             r{name} = Relu(h{name})
             weight down{name} 6 4
             d{name} = MatMul(r{name}, down{name})
             s{name} = Add(n{name}, d{name})
             weight head{name} 4 3
             y{name} = MatMul(s{name}, head{name})"
        )
    };
    let before = model(&format!(
        "indices ids1 2 5
         indices ids2 2 5
         weight table 200 4
         {}
         {}
         output y1 y2",
        part("1"),
        part("2")
    ));
    let after = fuse(&before, &portable()).unwrap();
    is_proved_or_listed(&before, &after).unwrap();
    assert!(
        after.plan.sites.iter().all(|site| site.is_folded()),
        "{:#?}",
        after.plan.sites
    );
    assert_eq!(after.plan.growth, 0);
    assert_eq!(
        operators(&after.model)
            .iter()
            .filter(|&&op| op == "Mul")
            .count(),
        0
    );
}

/// Two calls of one layer after different normalizers. The results of both are multiplied by the
/// same scalar.
#[test]
fn equal_scales_fold_into_a_shared_weight_where_affines_cannot() {
    let call = |place: usize| {
        format!(
            "scale g{place} 4
             shift t{place} 4
             n{place} = LayerNormalization(x{place}, g{place}, t{place}) axis=-1
             p{place} = MatMul(n{place}, w)
             m{place} = Mul(p{place}, half)
             y{place} = Relu(m{place})"
        )
    };
    let before = model(&format!(
        "input x0 batch 4\n input x1 batch 4\n weight w 4 4\n const half = 0.5\n {}\n {}\n output y0 y1",
        call(0),
        call(1)
    ));
    let after = unfold::fuse(&before, &portable()).unwrap();
    same(&before, &after.model, 1e-9);
    let call = ["LayerNormalization", "MatMul", "Relu"];
    assert_eq!(operators(&after.model), [call, call].concat());
    assert_eq!(after.plan.growth, 0);
}
