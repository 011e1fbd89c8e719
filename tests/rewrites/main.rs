//! Tests the rewrites of small graphs, with a file for each rule. Results must compute the same and
//! have the expected operators. Each file also has similar graphs that must stay.
//! operators; a twin that must stay does so.

mod affine;
mod cases;
#[path = "../common/mod.rs"]
mod common;
mod graph;
mod passes;
mod residual;
mod snapshot;

use common::numbers::Kind;
use common::{fuse, initializer, judge, operators, options, portable, retype};
use unfold::onnx::Model;
use unfold::plan::{Outcome, SitePlan};
use unfold::prove::{Proof, prove};
use unfold::refusal::Reason;
use unfold::{FuseOptions, Fused, plan};

/// Fuses a model. Asserts that the result computes exactly the same for several sizes of open axes,
/// that it equals the plan, and that nothing more folds in it.
fn fused(model: &Model) -> Fused {
    let fused = fuse(model);
    same(model, &fused.model, 0.0);
    is_as_planned(model, &fused);
    let again = unfold::fuse(&fused.model, &options()).unwrap();
    assert!(
        again.plan.is_empty(),
        "{}",
        common::text::print(&fused.model)
    );
    fused
}

/// Asserts that a model was changed as planned.
fn is_as_planned(model: &Model, fused: &Fused) {
    let plan = plan(model, &options()).unwrap();
    assert_eq!(
        format!("{:#?}", plan.sites),
        format!("{:#?}", fused.plan.sites)
    );
}

/// Asserts that two models compute equal results, up to a fraction of the largest intermediate
/// number, and that the change equals the test's snapshot.
fn same(model: &Model, other: &Model, tolerance: f64) {
    snapshot::check(model, other);
    let runs = [(1, true), (2, false), (4, true), (4, false)].map(|(open, truth)| {
        let inputs = judge::inputs(model, open, truth, Kind::Exact);
        let outcome = judge::agree(model, other, &inputs, tolerance);
        outcome.unwrap_or_else(|why| panic!("{why}\n{}", common::text::print(other)))
    });
    assert!(
        runs.contains(&true),
        "it cannot be run:\n{}",
        common::text::print(model)
    );
}

/// The result of a model. Asserts that every site folds.
fn folded(model: &Model) -> Model {
    let Fused {
        model: after, plan, ..
    } = fused(model);
    assert!(!plan.sites.is_empty(), "there is no site");
    let kept = plan.sites.iter().find(|site| !site.is_folded());
    assert!(kept.is_none(), "{kept:#?}");
    after
}

/// Asserts that a model folds exactly to these operators and that this is proved.
fn becomes(model: &Model, expected: &[&str]) -> Model {
    let after = folded(model);
    assert_eq!(
        operators(&after),
        expected,
        "{}",
        common::text::print(&after)
    );
    let fused = unfold::fuse(model, &portable()).unwrap();
    let proof = prove(
        model,
        &fused.model,
        &fused.plan.tensors,
        &Default::default(),
    );
    assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
    after
}

/// The result of a model. Asserts that it is proved, because the reference does not support its
/// operators.
fn proved(model: &Model) -> Model {
    let Fused {
        model: after, plan, ..
    } = fuse(model);
    let proof = prove(model, &after, &plan.tensors, &Default::default());
    assert!(
        matches!(proof, Proof::Proved { .. }),
        "{proof:?}\n{}",
        common::text::print(&after)
    );
    let again = unfold::fuse(&after, &options()).unwrap();
    assert!(!again.changed());
    after
}

/// The reasons why the only site of a model stays: forward, and backward if that was tried. Only a
/// shift may have folded.
fn kept(model: &Model) -> (Reason, Option<Reason>) {
    let fused = fuse(model);
    is_as_planned(model, &fused);
    let Fused {
        model: after, plan, ..
    } = fused;
    let [site] = &plan.sites[..] else {
        panic!("{:#?}", plan.sites)
    };
    match &site.post {
        Some(Outcome::Partly { .. } | Outcome::Scaled { .. }) => same(model, &after, 0.0),
        _ => assert_eq!(
            untidied(model, &options()).model.proto,
            model.proto,
            "something has changed"
        ),
    }
    reasons_of(site)
}

/// The result of a model without clean-up.
fn untidied(model: &Model, options: &FuseOptions) -> Fused {
    let skip = ["constant", "duplicate", "placement"].map(str::to_owned);
    unfold::fuse(
        model,
        &FuseOptions {
            skip: skip.to_vec(),
            max_growth: options.max_growth,
            ..portable()
        },
    )
    .unwrap()
}

fn reasons_of(site: &SitePlan) -> (Reason, Option<Reason>) {
    match &site.post {
        Some(Outcome::Kept { forward, backward }) => (
            forward.reason.clone(),
            backward.as_ref().map(|refusal| refusal.reason.clone()),
        ),
        Some(Outcome::Partly { scale, .. }) => (scale.reason.clone(), None),
        // The shift is refused in the direction in which the scale folded.
        Some(Outcome::Scaled { shift, .. }) => (shift.reason.clone(), Some(shift.reason.clone())),
        outcome => panic!("{outcome:?}"),
    }
}

/// The name of a reason, and the type that it names.
fn in_type(reason: &Reason) -> (&'static str, &str) {
    let (Reason::Overflow(figure) | Reason::Underflow(figure)) = reason else {
        panic!("{reason:?}")
    };
    let of_type = figure.split_once(" in ").expect(figure).1;
    (reason.name(), of_type.split(',').next().unwrap_or_default())
}
