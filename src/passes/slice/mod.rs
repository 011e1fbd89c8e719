//! Slicing along independent axes: computes the same function in less memory.
//!
//! If each place along an axis of a large value is computed independently, the nodes around it run
//! once for each part of the places, one part after another. Only one part is live at a time. A
//! Split cuts the inputs of a region, and a Concat joins its outputs.
//!
//! ```text
//! scores = q · kᵀ, p = Softmax(scores), o = p · v       of n queries, each row of the scores for itself
//! scoresᵢ = qᵢ · kᵀ, pᵢ = Softmax(scoresᵢ), oᵢ = pᵢ · v   for n/k of them at a time, and o = (o₁, …, o_k)
//! ```
//!
//! If a mask hides keys from all queries of a part, the part leaves their scores out.
//!
//! With a goal for the peak of activations, the region at the peak is cut into the fewest parts
//! that bring it under the goal. Then the region at the next peak is cut. If no region at a peak
//! can be cut, the plan names the node and the values there. With a given number of parts, each
//! region around a large value is cut into that many parts.

mod axes;
mod choose_cuts;
mod hidden_keys;
mod key_axis;
mod masks;
mod memory_goal;
mod open_parts;
mod part_shape;
mod region;
mod schedule;
mod sizes;
mod write;

use std::collections::{BTreeMap, HashSet};

use choose_cuts::{CutSearch, has_masked_scores};
pub use memory_goal::{MemoryGoal, Slicing};
use schedule::{PlannedCut, with_cuts};
use sizes::ExpectedSizes;

use crate::affine::materialize::Edit;
use crate::affine::plan::{CutRegion, HeldValue, MemoryChange};
use crate::analysis::Analysis;
use crate::analysis::broadcast::LARGEST;
use crate::analysis::memory_plan::{MemoryPlan, Peak};
use crate::onnx::node::bodies;

/// The name for `--skip`.
pub(crate) const SLICING: &str = "slicing";

/// The factor by which `min` may exceed the lowest peak that slices reach, in exchange for fewer
/// parts.
const SLACK: f64 = 1.02;

/// Plans slices. Returns their effect on memory and the edits.
///
/// The peak is computed for the expected sizes of symbolic dimensions. The slices are correct for
/// every size. With an `obstacle`, nothing is sliced.
pub(crate) fn sliced(
    analysis: &Analysis,
    wanted: &Slicing,
    obstacle: Option<&'static str>,
) -> (MemoryChange, Vec<Edit>) {
    let sized = sizes::sized(analysis.graph.model(), &wanted.expect);
    let Ok(at_sizes) = Analysis::new(&sized) else {
        return Default::default();
    };
    let sizes = ExpectedSizes::new(&at_sizes);
    let search = CutSearch::new(analysis, &sizes);
    let mut change = unchanged_peak(&search, &sizes.plan);
    change.before = change.after;
    change.goal = wanted.memory.map(|goal| goal.bytes(change.before));
    if let Some(obstacle) = obstacle.or_else(|| has_body(analysis)) {
        change.keep_whole(obstacle);
        return (change, vec![]);
    }
    change.reason = unknown_size(analysis, &sizes.plan);
    change.is_lower_bound = change.reason.is_some();
    if let Some(reason) = change.reason.clone().filter(|_| wanted.memory.is_some()) {
        change.keep_whole(&reason);
        return (change, vec![]);
    }
    applied(&search, &chosen_cuts(&search, wanted), change)
}

/// Plans the slices that make every engine on a CPU faster. These slices cut attention with many
/// scores, some of which a mask hides. `None` if there is no such attention.
pub(crate) fn sliced_by_default(analysis: &Analysis) -> Option<(MemoryChange, Vec<Edit>)> {
    let has_masks = has_body(analysis).is_none() && has_masked_scores(analysis);
    let sized = has_masks.then(|| sizes::sized(analysis.graph.model(), &BTreeMap::new()))?;
    let at_sizes = Analysis::new(&sized).ok()?;
    let sizes = ExpectedSizes::new(&at_sizes);
    let search = CutSearch::new(analysis, &sizes);
    let mut change = unchanged_peak(&search, &sizes.plan);
    change.before = change.after;
    change.reason = unknown_size(analysis, &sizes.plan);
    change.is_lower_bound = change.reason.is_some();
    let cuts = search.masked();
    (!cuts.is_empty()).then(|| applied(&search, &cuts, change))
}

/// The effect of cuts on memory, and the edits that make the cuts. `change` has the peak before the
/// cuts.
fn applied(
    search: &CutSearch,
    cuts: &[PlannedCut],
    change: MemoryChange,
) -> (MemoryChange, Vec<Edit>) {
    let analysis = search.analysis;
    let Some(after) = with_cuts(analysis, &search.sizes.plan, cuts) else {
        return (change, vec![]);
    };
    let change = MemoryChange {
        before: change.before,
        goal: change.goal,
        reason: change.reason,
        is_lower_bound: change.is_lower_bound,
        cuts: cuts.iter().map(|cut| reported_cut(analysis, cut)).collect(),
        ..unchanged_peak(search, &after)
    };
    let edits = cuts.iter().filter_map(|cut| edit(analysis, cut));
    (change, edits.collect())
}

/// The reason why a graph with bodies is not sliced. `None` if it has no bodies.
fn has_body(analysis: &Analysis) -> Option<&'static str> {
    let mut nodes = analysis.graph.proto().node.iter();
    let has_body = nodes.any(|node| bodies(node).next().is_some());
    has_body.then_some("a node has a body, which slices do not see")
}

/// The reason why the peak of a plan is not known. `None` if all sizes are known.
fn unknown_size(analysis: &Analysis, plan: &MemoryPlan) -> Option<String> {
    let name = analysis.graph.value_name(*plan.unknown.first()?);
    Some(format!(
        "the size of `{name}` is not known; `--expect NAME=SIZE` gives that of a dimension"
    ))
}

/// The cuts with a given number of parts, and the additional cuts that the goal needs.
fn chosen_cuts(search: &CutSearch, wanted: &Slicing) -> Vec<PlannedCut> {
    let before = search.sizes.plan.peak().bytes;
    let cuts = match wanted.parts {
        Some(parts) if parts > 1 => search.all(parts.min(LARGEST)),
        _ => vec![],
    };
    match wanted.memory {
        Some(MemoryGoal::Min) => {
            let lowest = search.reach(0, cuts.clone());
            let lowest = with_cuts(search.analysis, &search.sizes.plan, &lowest)
                .map_or(before, |plan| plan.peak().bytes);
            search.reach((lowest as f64 * SLACK) as u64, cuts)
        }
        Some(goal) => search.reach(goal.bytes(before), cuts),
        None => cuts,
    }
}

/// The edit that replaces the region of a cut by its parts. `None` if the region is empty.
fn edit(analysis: &Analysis, cut: &PlannedCut) -> Option<Edit> {
    let first = cut.region.nodes().next()?;
    let replacement = write::written(analysis, cut);
    Some(Edit::replacing(&analysis.graph, first, replacement))
}

/// The peak of a memory plan, as a [`MemoryChange`] without cuts.
fn unchanged_peak(search: &CutSearch, plan: &MemoryPlan) -> MemoryChange {
    let peak = plan.peak();
    MemoryChange {
        after: peak.bytes,
        at: node_at(search.analysis, plan, &peak),
        held: held(search, plan, &peak),
        ..MemoryChange::default()
    }
}

/// Describes a cut for the reported plan.
fn reported_cut(analysis: &Analysis, cut: &PlannedCut) -> CutRegion {
    let graph = &analysis.graph;
    let [first, last] = [cut.region.nodes().next(), cut.region.nodes().last()]
        .map(|node| node.map_or("", |node| graph.name(node)).to_owned());
    let operators = cut.region.nodes().map(|node| graph.domain_op(node).1);
    let (scores, left_out) = cut.scores();
    CutRegion {
        first,
        last,
        operators: operators.map(str::to_owned).collect(),
        extent: cut.region.extent,
        parts: cut.parts,
        scores,
        left_out,
        mask: cut.region.key_reason.clone(),
    }
}

/// The name of the node that runs at a peak, or of the value that an added Split or Concat writes
/// at the peak.
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

/// The values that are held at a peak, the largest first. Parts of one value count as one.
fn held(search: &CutSearch, plan: &MemoryPlan, peak: &Peak) -> Vec<HeldValue> {
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
        let is_part = buffer >= search.analysis.graph.value_count();
        held.push(HeldValue {
            value: search.analysis.graph.value_name(value).to_owned(),
            bytes,
            reason: match is_part {
                true => "more parts do not lower the peak",
                false => search.why_whole(value),
            }
            .to_owned(),
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
