//! The plan that results from the decisions: the outcomes of sites, and the parts that are written
//! again.

use std::collections::HashMap as Map;

use crate::affine::Affine;
use crate::affine::item::{Item, Role, State};
use crate::affine::plan::{Basis, Direction, Outcome, Plan, Rewrite, SitePlan, StopReason, Tidy};
use crate::affine::planner::Planner;
use crate::affine::recognize::{Family, Part, Site};
use crate::ir::Graph;
use crate::recipe::Numbers;
use crate::refusal::Refusal;

/// The least difference between the largest and the smallest number, relative to the largest
/// magnitude, at which the two surely differ in half precision.
const LEAST_SPREAD: f64 = 1e-2;

impl Planner<'_> {
    /// Marks parts that stay but can be written with fewer nodes. Several multiplications by
    /// scalars become one, and an affine of channels becomes a Mul and an Add.
    pub(super) fn join_rows(&mut self, sites: &[Site]) {
        for item in 0..self.items.len() {
            if self.is_longer_than_needed(item, &sites[self.items[item].site]) {
                self.items[item].is_rewritten = true;
            }
        }
    }

    fn is_longer_than_needed(&self, item: usize, site: &Site) -> bool {
        let item = &self.items[item];
        let part = &item.part;
        matches!(item.state, State::Open)
            && !item.is_rewritten
            && part.nodes.len() > item.size_with(&part.affine)
            && is_row(self.overlay.graph, part, site.kind.family)
            && self.holds(part, &part.affine)
            && self.is_writable(part, &part.affine)
    }

    pub(super) fn finish(mut self, sites: &[Site], refused: &Map<usize, Refusal>) -> Plan {
        let graph = self.overlay.graph;
        let sites = sites.iter().enumerate();
        let mut plans: Vec<SitePlan> = sites
            .map(|(index, site)| site_plan(graph, site, refused.get(&index)))
            .collect();
        let mut rewrites = vec![];
        for item in std::mem::take(&mut self.items) {
            if item.is_rewritten {
                rewrites.push(Rewrite {
                    part: item.part.clone(),
                    site: item.site,
                    data_type: self.data_type(&item.part),
                });
            }
            let plan = &mut plans[item.site];
            plan.basis = Basis::around(plan.basis.take().into_iter().chain(item.basis));
            let role = item.role;
            let outcome = self.outcome(item);
            match role {
                Role::Before => plan.pre = outcome,
                Role::Behind => plan.post = outcome,
            }
        }
        Plan {
            sites: plans,
            folds: self.overlay.folds,
            bias_adds: self.overlay.bias_adds,
            removals: self.removals,
            resets: self.resets,
            rewrites,
            tensors: vec![],
            streams: vec![],
            merged: vec![],
            constant: vec![],
            half: None,
            placed: vec![],
            replacements: self.replacements,
            growth: 0,
            memory: None,
            tidy: Tidy::default(),
            is_tidied: false,
            stopped: StopReason::default(),
            passes: vec![],
        }
    }

    /// The outcome of an item. If the item stays and its site must not copy weights, the outcome
    /// gives the reason against the copies.
    fn outcome(&self, item: Item) -> Option<Outcome> {
        let too_large = self.uncopied.get(&item.site);
        let outcome = item.outcome()?;
        Some(match too_large {
            Some(refusal) if !outcome.goes() => Outcome::Kept {
                forward: refusal.clone(),
                backward: None,
            },
            _ => outcome,
        })
    }
}

/// Whether the nodes of a part may be replaced by a Mul and an Add.
fn is_row(graph: &Graph, part: &Part, family: Family) -> bool {
    let affine = &part.affine;
    let is_scalar = affine.scale.len() == 1 && !affine.has_no_scale();
    match family {
        // Engines may recognize forms that do more than multiply by scalars, so these stay.
        Family::Scale if is_scalar => {
            let mut ops = part.nodes.iter().map(|&node| graph.op(node));
            affine.has_no_shift() && ops.all(|op| matches!(op, Some("Mul" | "Div" | "Neg")))
        }
        // Engines recognize a normalization by the Mul and Add after it, even with constants 1 and
        // 0, so these stay.
        Family::Online if part.nodes.len() <= 2 => false,
        Family::Offline | Family::Online | Family::Scale => {
            let Affine { scale, shift } = affine;
            !affine.is_identity()
                && (affine.has_no_scale() || stay_distinct(scale))
                && (affine.has_no_shift() || stay_distinct(shift))
        }
        _ => false,
    }
}

/// Whether numbers that vary still vary when they are rounded to half precision.
fn stay_distinct(numbers: &Numbers) -> bool {
    let (mut low, mut high, mut largest) = (f64::INFINITY, f64::NEG_INFINITY, 0.0_f64);
    for &number in numbers.iter() {
        low = low.min(number);
        high = high.max(number);
        largest = largest.max(number.abs());
    }
    numbers.len() == 1 || high - low > LEAST_SPREAD * largest || largest == 0.0
}

/// Builds the plan of a site, in which the outcomes of its parts are still missing.
fn site_plan(graph: &Graph, site: &Site, refused: Option<&Refusal>) -> SitePlan {
    let names = site.nodes.iter().map(|&node| graph.name(node).to_owned());
    SitePlan {
        name: site.name.clone(),
        kind: site.kind,
        channels: site.channels,
        axis: site.axis,
        nodes: names.collect(),
        pre: None,
        core: site.core.clone().map(kept),
        post: outcome_without_parts(site, refused),
        basis: None,
    }
}

fn kept(forward: Refusal) -> Outcome {
    Outcome::Kept {
        forward,
        backward: None,
    }
}

/// The outcome of a site itself: kept if the site is refused, or merged if it has no parts and new
/// nodes replace its operators. `None` in all other cases. If the site has a part after the core,
/// the outcome of that part replaces this outcome.
fn outcome_without_parts(site: &Site, refused: Option<&Refusal>) -> Option<Outcome> {
    let has_parts = site.pre.is_some() || site.post.is_some();
    let is_merged = !has_parts && matches!(site.kind.family, Family::Linear | Family::Pointwise);
    let replacement = site.replacement.as_ref().filter(|_| is_merged);
    let refused = refused.filter(|_| replacement.is_some());
    if let Some(refusal) = site.refusal.as_ref().or(refused) {
        return Some(kept(refusal.clone()));
    }
    let made = replacement?.made.first();
    Some(Outcome::Folded {
        direction: Direction::Merged,
        into: made.iter().map(|node| node.name().to_owned()).collect(),
    })
}
