//! What folding costs grows with the graph, and not with its square.

mod common;

use std::time::{Duration, Instant};

use common::blocks::{branches, fan, fans, stuck, transformer};
use unfold::onnx::Model;
use unfold::{FuseOptions, Fused, Plan};

const SMALL: usize = 1000;
const TIMES: usize = 16;

/// What is linear takes about as many times as long as the graph is large, and what is quadratic 256 times. The
/// machine may have other work meanwhile.
const LONGEST: u32 = 120;

fn fuse(model: &Model) -> (Fused, Duration) {
    let start = Instant::now();
    let fused = unfold::fuse(model, &FuseOptions::default()).unwrap();
    (fused, start.elapsed())
}

/// The plan for the large graph of a form.
fn grows_with_the_graph(make: fn(usize) -> Model) -> Plan {
    let small = make(SMALL);
    let least = (0..5).map(|_| fuse(&small).1).min().unwrap();
    let large = make(SMALL * TIMES);
    let ((fused, first), (_, second)) = (fuse(&large), fuse(&large));
    let time = first.min(second);
    assert!(time < least * LONGEST, "{least:?} for {SMALL} nodes, {time:?} for {TIMES} times as many");
    fused.plan
}

fn all_fold(plan: &Plan) -> usize {
    assert!(plan.sites.iter().all(|site| site.is_folded()));
    plan.sites.len()
}

#[test]
fn blocks_one_behind_the_other() {
    assert_eq!(all_fold(&grows_with_the_graph(|nodes| transformer(nodes, 8))), SMALL * TIMES / 14 + 1);
}

#[test]
fn a_site_that_very_many_read() {
    assert_eq!(all_fold(&grows_with_the_graph(fan)), 1);
}

#[test]
fn a_value_that_very_many_sites_read() {
    assert_eq!(all_fold(&grows_with_the_graph(fans)), SMALL * TIMES / 3);
}

#[test]
fn branches_that_part_and_join() {
    all_fold(&grows_with_the_graph(branches));
}

#[test]
fn sites_that_stay() {
    let plan = grows_with_the_graph(stuck);
    assert!(plan.sites.iter().all(|site| !site.is_folded()));
}
