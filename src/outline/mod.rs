//! The [`Outline`] of a model: its graph before and after, and what became of each site, for a page to show.
//!
//! ```
//! use unfold::onnx::Model;
//! use unfold::report::outline_html;
//!
//! let model = Model::open("models/digits/un-dynamo.onnx")?;
//! let fused = unfold::fuse(&model, &Default::default())?;
//! let outline = unfold::outline::outline("un-dynamo.onnx", &model, &fused)?;
//! assert_eq!(outline.sites.len(), 13);
//! assert!(outline_html(&outline)?.contains("blocks.0.norm1.un"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod blocks;
mod rows;
mod side;

use std::collections::BTreeMap;

use crate::certificate::Fate;
use crate::error::Result;
use crate::fold::plan::{Outcome, Plan, SitePlan};
use crate::fuse::Fused;
use crate::graph::flat::Flat;
use crate::onnx::Model;
use crate::refusal::{Reason, Refusal};
use crate::report::{Outline, OutlinePart, OutlineSite, ReportedRefusal, ReportedTensor, SiteState};
use rows::rows;
use side::Side;

/// The outline of a model under a name, and of what was made of it.
///
/// # Errors
/// Where one of them is no graph that ONNX allows.
pub fn outline(name: &str, model: &Model, fused: &Fused) -> Result<Outline> {
    let plan = &fused.plan;
    // A plan calls the nodes of bodies by the way to them.
    let models = [fused.lowered.as_ref().unwrap_or(model), &fused.model];
    let flat = models.map(Flat::new);
    let [before, after] =
        [0, 1].map(|side| Side::new(flat[side].as_ref().map_or(models[side], |f| &f.model)));
    let sides = [before?, after?];
    let (rows, blocks) = rows(&sides, plan);
    let refusals = plan.sites.iter().flat_map(SitePlan::outcomes).flat_map(Outcome::refusals);
    Ok(Outline {
        model: name.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        file_bytes: [model.file_bytes(), fused.model.file_bytes()],
        sites: plan.sites.iter().map(site).collect(),
        tensors: tensors(plan),
        reasons: refusals.map(|(_, Refusal { reason, .. })| (reason.name(), reason.explained())).collect(),
        values: values(&sides),
        rows,
        blocks,
    })
}

/// The new tensors of a plan, each with its formula.
pub fn tensors(plan: &Plan) -> Vec<ReportedTensor> {
    let site = |&site: &usize| Some(plan.sites.get(site)?.name.clone());
    let tensors = plan.tensors.iter().map(|tensor| ReportedTensor {
        name: tensor.name.clone(),
        data_type: tensor.data_type.name(),
        shape: tensor.recipe.shape().to_vec(),
        formula: tensor.recipe.to_string(),
        inputs: tensor.recipe.constants().into_iter().map(str::to_owned).collect(),
        sites: tensor.sites.iter().filter_map(site).collect(),
    });
    tensors.collect()
}

fn site(site: &SitePlan) -> OutlineSite {
    let SitePlan { name, kind, channels, axis, nodes, pre, core, post } = site;
    let whole = pre.is_none() && core.is_none();
    let last = if whole { "its affine" } else { "the affine behind its core" };
    let parts = [(pre, "the affine before its core"), (core, "its core"), (post, last)];
    let parts = parts.into_iter().filter_map(|(outcome, name)| Some(part(outcome.as_ref()?, name)));
    OutlineSite {
        name: name.clone(),
        kind: kind.name.to_owned(),
        form: kind.family.form().to_owned(),
        channels: *channels,
        axis: *axis,
        state: state(site),
        nodes: nodes.clone(),
        parts: parts.collect(),
    }
}

fn state(site: &SitePlan) -> SiteState {
    let is_idle = |(_, refusal): (_, &Refusal)| matches!(refusal.reason, Reason::Identity | Reason::Skipped);
    match Fate::of(site) {
        Fate::Folded => SiteState::Folded,
        Fate::Partly => SiteState::Partly,
        Fate::Kept if site.outcomes().flat_map(Outcome::refusals).all(is_idle) => SiteState::Left,
        Fate::Kept => SiteState::Refused,
    }
}

fn part(outcome: &Outcome, part: &'static str) -> OutlinePart {
    let (goes, into) = match outcome {
        Outcome::Folded { direction, into } => (Some(direction.name()), into.clone()),
        Outcome::Partly { into, .. } => (Some("shift"), into.clone()),
        Outcome::Scaled { into, .. } => (Some("scale"), into.clone()),
        Outcome::Kept { .. } => (None, vec![]),
    };
    let refusal = |(what, refusal): (&'static str, &Refusal)| ReportedRefusal {
        what,
        reason: refusal.reason.name(),
        words: refusal.reason.to_string(),
        at: refusal.at.clone(),
    };
    OutlinePart { part, goes, into, refusals: outcome.refusals().map(refusal).collect() }
}

/// What there is to know of the values before, and after where that is something else.
fn values(sides: &[Side; 2]) -> [BTreeMap<String, crate::report::OutlineValue>; 2] {
    let before = sides[0].values();
    let mut after = sides[1].values();
    after.retain(|name, value| before.get(name) != Some(value));
    [before, after]
}
