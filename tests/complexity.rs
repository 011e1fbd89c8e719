//! Checks that the cost of folding and verifying is linear in the size of the graph.

mod common;

use std::time::{Duration, Instant};

use common::blocks::{
    branches, factors, fan, fans, names, norms, split, stuck, transformer, unread,
};
use unfold::onnx::Model;
use unfold::plan::Plan;
use unfold::prove::{Proof, prove};
use unfold::verify::{Verdict, VerifyOptions, compare};
use unfold::{FuseOptions, Fused};

const SMALL: usize = 1000;
const TIMES: usize = 16;

/// Linear work takes about 16 times as long on a graph 16 times as large, and quadratic work 256
/// times. The machine may have other work meanwhile.
const LONGEST: u32 = 120;

fn fuse(model: &Model) -> (Fused, Duration) {
    let start = Instant::now();
    let fused = unfold::fuse(model, &FuseOptions::default()).unwrap();
    (fused, start.elapsed())
}

/// Folds a small and a large graph of a form, and asserts that the time is linear. Returns the plan
/// of the large graph.
fn plan_in_linear_time(make: fn(usize) -> Model) -> Plan {
    let small = make(SMALL);
    let least = (0..5).map(|_| fuse(&small).1).min().unwrap();
    let large = make(SMALL * TIMES);
    let ((fused, first), (_, second)) = (fuse(&large), fuse(&large));
    let time = first.min(second);
    assert!(
        time < least * LONGEST,
        "{least:?} for {SMALL} nodes, {time:?} for {TIMES} times as many"
    );
    fused.plan
}

/// The way in which `unfold fuse` compares a result with the original.
#[derive(Debug, PartialEq)]
enum Held {
    ByRunning,
    ByProof,
}

fn verified(model: &Model) -> (Held, Duration) {
    let start = Instant::now();
    let fused = unfold::fuse(model, &FuseOptions::default()).unwrap();
    let verdict = compare(model, &fused.model, &VerifyOptions::default());
    let held = match &verdict {
        Verdict::Compared(comparison) if comparison.agrees() => Held::ByRunning,
        Verdict::CouldNotVerify { reason }
            if reason.contains("tract would compare all operators") =>
        {
            let proof = prove(
                model,
                &fused.model,
                &fused.plan.tensors,
                &Default::default(),
            );
            assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
            Held::ByProof
        }
        other => panic!("{other:?}"),
    };
    (held, start.elapsed())
}

/// Asserts that verification takes linear time. Returns how the large and the small graph of a form
/// are verified.
fn verify_in_linear_time(make: fn(usize) -> Model) -> [Held; 2] {
    let small = make(SMALL);
    let least = (0..5).map(|_| verified(&small).1).min().unwrap();
    let large = make(SMALL * TIMES);
    let ((held, first), (_, second)) = (verified(&large), verified(&large));
    let time = first.min(second);
    assert!(
        time < least * LONGEST,
        "{least:?} for {SMALL} nodes, {time:?} for {TIMES} times as many"
    );
    [verified(&small).0, held]
}

fn assert_all_folded(plan: &Plan) -> usize {
    assert!(plan.sites.iter().all(|site| site.is_folded()));
    plan.sites.len()
}

#[test]
fn consecutive_transformer_blocks_fold_in_linear_time() {
    assert_eq!(
        assert_all_folded(&plan_in_linear_time(|nodes| transformer(nodes, 8))),
        SMALL * TIMES / 14 + 1
    );
}

#[test]
fn site_with_many_readers_folds_in_linear_time() {
    assert_eq!(assert_all_folded(&plan_in_linear_time(fan)), 1);
}

#[test]
fn many_sites_of_one_value_fold_in_linear_time() {
    assert_eq!(
        assert_all_folded(&plan_in_linear_time(fans)),
        SMALL * TIMES / 3
    );
}

#[test]
fn diverging_and_joining_branches_fold_in_linear_time() {
    assert_all_folded(&plan_in_linear_time(branches));
}

#[test]
fn sites_that_stay_are_planned_in_linear_time() {
    let plan = plan_in_linear_time(stuck);
    assert!(plan.sites.iter().all(|site| !site.is_folded()));
}

#[test]
fn factors_of_one_product_fold_in_linear_time() {
    assert_eq!(assert_all_folded(&plan_in_linear_time(factors)), 1);
}

#[test]
fn split_parts_of_one_product_fold_in_linear_time() {
    assert_eq!(assert_all_folded(&plan_in_linear_time(split)), 1);
}

#[test]
fn many_outputs_of_one_value_are_proved_in_linear_time() {
    assert_eq!(assert_all_folded(&plan_in_linear_time(names)), 1);
    assert_eq!(verify_in_linear_time(names), [Held::ByProof, Held::ByProof]);
}

#[test]
fn unread_constants_are_verified_in_linear_time() {
    assert_eq!(assert_all_folded(&plan_in_linear_time(unread)), 1);
    assert_eq!(
        verify_in_linear_time(unread),
        [Held::ByRunning, Held::ByRunning]
    );
}

#[test]
fn many_norms_of_one_value_are_proved_in_linear_time() {
    assert_eq!(verify_in_linear_time(norms), [Held::ByProof, Held::ByProof]);
}
