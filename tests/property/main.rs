//! Checks on random graphs that the results of folding compute equal numbers.

mod centring;
mod check;
#[path = "../common/mod.rs"]
mod common;
mod enclose;
mod generate;
mod mutate;
mod placements;
mod powers;
mod slices;
mod streams;
mod tape;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use proptest::collection::vec;
use proptest::prelude::any;
use proptest::test_runner::{
    Config, FileFailurePersistence, RngSeed, TestCaseError, TestError, TestRunner,
};

use check::check;
use common::numbers::Kind;
use common::{Builder, judge, reference};
use generate::Case;
use tape::Tape;

/// The number of times that each outcome occurred.
type Counts = BTreeMap<String, usize>;

/// Checks `cases` random graphs. Prints and returns the counts of outcomes.
fn run(kind: Kind, cases: u32) -> Counts {
    each(cases, |bytes, counts| {
        check(&Case::new(bytes, kind), kind, counts)
    })
}

/// Checks `cases` random lists of bytes. Prints and returns the counts of outcomes.
///
/// `PROPTEST_CASES` sets another number of cases, and `PROPTEST_RNG_SEED` another seed.
fn each(cases: u32, check: impl Fn(&[u8], &mut Counts) -> Result<(), String>) -> Counts {
    let asked = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let config = Config {
        cases: asked("PROPTEST_CASES").map_or(cases, |cases| cases as u32),
        rng_seed: RngSeed::Fixed(asked("PROPTEST_RNG_SEED").unwrap_or(7)),
        max_shrink_iters: 20_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(
            "tests/property/regressions.txt",
        ))),
        ..Config::default()
    };
    let counts = RefCell::new(Counts::new());
    let bytes = vec(any::<u8>(), 0..400);
    let outcome = TestRunner::new(config).run(&bytes, |bytes| {
        check(&bytes, &mut counts.borrow_mut()).map_err(TestCaseError::fail)
    });
    let counts = counts.into_inner();
    counts
        .iter()
        .for_each(|(what, count)| println!("{count:7} {what}"));
    match outcome {
        Err(TestError::Fail(why, bytes)) => panic!("{why}\n{bytes:?}"),
        Err(TestError::Abort(why)) => panic!("{why}"),
        Ok(()) => counts,
    }
}

/// Asserts that enough sites folded. Otherwise the test would prove nothing.
fn folds_enough(counts: &Counts) {
    let count = |what: &str| counts.get(what).copied().unwrap_or(0);
    let (folded, sites) = (count("site folded"), count("site"));
    assert!(
        3 * folded >= sites,
        "only {folded} of {sites} sites were folded"
    );
}

#[test]
fn random_graphs_fold_exactly() {
    folds_enough(&run(Kind::Exact, 2500));
}

#[test]
fn random_streams_fold_exactly() {
    let counts = each(1000, |bytes, counts| {
        check(&streams::stream(bytes), Kind::Exact, counts)
    });
    let [folded, sites] = ["site folded", "site"].map(|what| counts[what]);
    assert!(
        2 * folded >= sites,
        "only {folded} of {sites} sites were folded"
    );
}

#[test]
fn random_streams_are_centred_and_proved() {
    let counts = each(2000, centring::check);
    let count = |what: &str| counts.get(what).copied().unwrap_or(0);
    let models = count("proved");
    assert!(2 * count("centred") > models, "{counts:?}");
    assert!(
        ["sees-mean", "no-gain"]
            .iter()
            .all(|why| 20 * count(why) > models),
        "{counts:?}"
    );
}

#[test]
fn random_streams_are_scaled_exactly() {
    let counts = each(600, powers::check);
    let [scaled, all] = ["stream scaled", "stream"].map(|what| counts[what]);
    assert!(
        scaled == all && all > 600,
        "{scaled} of {all} streams were scaled"
    );
    assert!(
        5 * counts["Mul"] < 2 * all,
        "{} Muls for {all} streams",
        counts["Mul"]
    );
}

#[test]
fn random_sliced_graphs_compute_equal_results() {
    let counts = each(300, slices::check);
    assert!(3 * counts["cut"] > counts["model"], "{counts:?}");
}

#[test]
fn random_placements_compute_equal_results() {
    let counts = each(4000, placements::check);
    for rule in [
        "pooling", "phases", "concat", "resize", "nearest", "heads", "demand",
    ] {
        let moved = counts.get(&format!("moved by {rule}"));
        assert!(moved.is_some(), "no work moves by {rule}: {counts:?}");
    }
    assert!(10 * counts["run"] > counts["model"], "{counts:?}");
}

#[test]
fn random_real_graphs_fold_up_to_rounding() {
    folds_enough(&run(Kind::Real, 500));
}

#[test]
fn random_graphs_with_bodies_fold_exactly() {
    let counts = each(1000, |bytes, counts| {
        let (shape, base) = bytes.split_at(bytes.len() / 5);
        let mut case = Case::new(base, Kind::Exact);
        let inputs = judge::inputs(&case.model, case.batch, true, Kind::Exact);
        let mut tape = Tape::new(shape);
        for number in 0..1 + tape.below(3) {
            let values = reference::values(&case.model, &inputs).unwrap_or_default();
            let is_float =
                |name: &str| values.get(name).is_some_and(|value| value.floats().is_ok());
            enclose::enclose(case.model.graph_mut(), &mut tape, number, &is_float);
        }
        check(&case, Kind::Exact, counts)
    });
    // The results of a loop stay.
    let count = |what: &str| counts.get(what).copied().unwrap_or(0);
    assert!(8 * count("site folded") > count("site"), "{counts:?}");
}

#[test]
fn mutated_messages_end_with_a_result_or_an_error() {
    let counts = each(1000, |bytes, counts| {
        let (changes, base) = bytes.split_at(bytes.len() / 4);
        let mut proto = Case::new(base, Kind::Real).model.proto;
        mutate::message(&mut proto, &mut Tape::new(changes));
        check::ends(mutate::file(&proto), counts)
    });
    let count = |what: &str| counts.get(what).copied().unwrap_or(0);
    // Many of the files are still models, and fold.
    assert!(
        8 * count("folded") > count("file") && count("no model") > 0,
        "{counts:?}"
    );
}

/// The files that are mutated. There are few, because generating a graph takes many times as long
/// as reading one.
static FILES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let bytes = |seed| {
        let mut numbers = common::numbers::Numbers::new(seed);
        (0..400).map(|_| numbers.any() as u8).collect::<Vec<u8>>()
    };
    (0..200)
        .map(|seed| mutate::file(&Case::new(&bytes(seed), Kind::Real).model.proto))
        .collect()
});

#[test]
fn mutated_files_end_with_a_result_or_an_error() {
    let counts = each(2000, |bytes, counts| {
        let mut tape = Tape::new(bytes);
        let mut file = tape.pick(&FILES);
        mutate::bytes(&mut file, &mut tape);
        check::ends(file, counts)
    });
    let count = |what: &str| counts.get(what).copied().unwrap_or(0);
    assert!(
        count("folded") > 0 && 10 * count("no file") > count("file"),
        "{counts:?}"
    );
}

/// The tests prove nothing unless the judge rejects wrong results.
#[test]
fn judge_rejects_differing_integers_and_missing_outputs() {
    let gives = |values: &[i64]| {
        let mut graph = Builder::new(17);
        let values = graph.ints(values);
        let output = graph.op("Identity", &[&values], vec![]);
        graph.model(&[&output])
    };
    let agree = |other: &[i64]| judge::agree(&gives(&[1, 2]), &gives(other), &HashMap::new(), 1.0);
    assert_eq!(agree(&[1, 2]), Ok(true));
    assert!(agree(&[1, 3]).is_err() && agree(&[1]).is_err());
    let mut nothing = gives(&[1, 2]);
    nothing.graph_mut().output.clear();
    assert!(judge::agree(&gives(&[1, 2]), &nothing, &HashMap::new(), 1.0).is_err());
}
