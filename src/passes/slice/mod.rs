//! Slicing of independent axes: the same function in less memory.
//!
//! Where each place along an axis of a large value is computed independently, the nodes around it
//! run once for each part of the places, one part after the other: only one part is live at a time.
//! A Split cuts the inputs of a region, and a Concat joins its outputs.
//!
//! ```text
//! scores = q · kᵀ, p = Softmax(scores), o = p · v       of n queries, each row of the scores for itself
//! scoresᵢ = qᵢ · kᵀ, pᵢ = Softmax(scoresᵢ), oᵢ = pᵢ · v   for n/k of them at a time, and o = (o₁, …, o_k)
//! ```
//!
//! By a goal for the peak of activations, the region at the peak is cut into as few parts as bring it under the goal, then
//! the next peak is looked at; where nothing at a peak can be cut, the plan says where and what holds it. By hand, each
//! region around a large value is cut into a number of parts.

mod axes;
mod goal;
mod region;
mod schedule;
mod search;
mod sizes;
mod write;

use std::collections::HashSet;

pub use goal::{MemoryGoal, Slicing};
use schedule::{PlannedCut, with_cuts};
use search::CutSearch;

use crate::affine::materialize::Edit;
use crate::affine::plan::{CutRegion, HeldValue, MemoryChange};
use crate::analysis::Analysis;
use crate::analysis::broadcast::LARGEST;
use crate::analysis::memory_plan::{MemoryPlan, Peak};
use crate::ir::NodeId;
use crate::onnx::node::bodies;

/// Its name for `--skip`.
pub const SLICING: &str = "slicing";

/// How much above the lowest peak that slices reach `min` stays, for fewer parts.
const SLACK: f64 = 1.02;

/// Plans slices, and the edits that make them.
///
/// The peak is that of the graph at the expected sizes of its symbolic dimensions; the slices are
/// right at every size. A model that `was_sliced` stays.
pub fn sliced(
    analysis: &Analysis,
    wanted: &Slicing,
    was_sliced: bool,
) -> (MemoryChange, Vec<Edit>) {
    let graph = &analysis.graph;
    let sized = sizes::sized(graph.model(), &wanted.expect);
    let Ok(at_sizes) = Analysis::new(&sized) else {
        return Default::default();
    };
    let plan = MemoryPlan::new(&at_sizes);
    let before = plan.peak();
    let mut change = peak_told(analysis, &plan);
    change.before = before.bytes;
    change.goal = wanted.memory.map(|goal| goal.bytes(before.bytes));
    if was_sliced {
        change.reason = Some("it was sliced before".into());
        return (change, vec![]);
    }
    if graph
        .proto()
        .node
        .iter()
        .any(|node| bodies(node).next().is_some())
    {
        change.reason = Some("a node has a body, which slices do not see".into());
        return (change, vec![]);
    }
    if let Some(&unknown) = plan.unknown.first() {
        change.reason = Some(format!(
            "the size of `{}` is not known",
            graph.value_name(unknown)
        ));
    }
    if change.reason.is_some() && wanted.memory.is_some() {
        return (change, vec![]);
    }
    let search = CutSearch::new(analysis, &plan);
    let mut cuts = wanted
        .parts
        .filter(|&parts| parts > 1)
        .map_or_else(Vec::new, |parts| search.all(parts.min(LARGEST)));
    match wanted.memory {
        Some(MemoryGoal::Min) => {
            let lowest = search.reach(0, cuts.clone());
            let lowest =
                with_cuts(analysis, &plan, &lowest).map_or(before.bytes, |plan| plan.peak().bytes);
            cuts = search.reach((lowest as f64 * SLACK) as u64, cuts);
        }
        Some(goal) => cuts = search.reach(goal.bytes(before.bytes), cuts),
        None => {}
    }
    let Some(after) = with_cuts(analysis, &plan, &cuts) else {
        return (change, vec![]);
    };
    let cut = cuts.iter().map(|cut| told(analysis, cut)).collect();
    let MemoryChange {
        before,
        goal,
        reason,
        ..
    } = change;
    let change = MemoryChange {
        before,
        goal,
        reason,
        cuts: cut,
        ..peak_told(analysis, &after)
    };
    let edit = |cut: &PlannedCut| {
        let replacement = write::written(analysis, cut);
        Some(Edit::replacing(
            graph,
            cut.region.nodes().next()?,
            replacement,
        ))
    };
    (change, cuts.iter().filter_map(edit).collect())
}

/// The peak of a plan, as one that nothing brought down.
fn peak_told(analysis: &Analysis, plan: &MemoryPlan) -> MemoryChange {
    let peak = plan.peak();
    MemoryChange {
        after: peak.bytes,
        at: node_at(analysis, plan, &peak),
        held: held(analysis, plan, &peak),
        ..MemoryChange::default()
    }
}

/// A cut as a report tells it.
fn told(analysis: &Analysis, cut: &PlannedCut) -> CutRegion {
    let graph = &analysis.graph;
    let name =
        |node: Option<NodeId>| node.map_or_else(String::new, |node| graph.name(node).to_owned());
    let operator = |node| graph.domain_op(node).1.to_owned();
    CutRegion {
        first: name(cut.region.nodes().next()),
        last: name(cut.region.nodes().last()),
        operators: cut.region.nodes().map(operator).collect(),
        extent: cut.region.extent,
        parts: cut.parts,
    }
}

/// The node that runs at a peak.
fn node_at(analysis: &Analysis, plan: &MemoryPlan, peak: &Peak) -> String {
    let Some(step) = plan.steps.get(peak.step) else {
        return String::new();
    };
    let written = step
        .writes
        .first()
        .map(|&buffer| plan.buffers[buffer].value);
    let node = step.node.map(|node| analysis.graph.name(node));
    node.or_else(|| written.map(|value| analysis.graph.value_name(value)))
        .unwrap_or_default()
        .to_owned()
}

/// The values that are held at a peak, the largest first; parts of one value are one.
fn held(analysis: &Analysis, plan: &MemoryPlan, peak: &Peak) -> Vec<HeldValue> {
    let mut held: Vec<HeldValue> = vec![];
    let mut seen = HashSet::new();
    for &buffer in &peak.held {
        let value = plan.buffers[buffer].value;
        if !seen.insert(value) {
            continue;
        }
        let same = peak
            .held
            .iter()
            .map(|&other| plan.buffers[other])
            .filter(|other| other.value == value);
        let bytes = same.map(|buffer| buffer.bytes).sum();
        held.push(HeldValue {
            value: analysis.graph.value_name(value).to_owned(),
            bytes,
        });
    }
    held.sort_by(|one, other| {
        other
            .bytes
            .cmp(&one.bytes)
            .then_with(|| one.value.cmp(&other.value))
    });
    held
}
