//! What becomes of sites over several passes, told as one plan.
//!
//! What a pass leaves, the next one finds again: by the values that its nodes make.

use std::collections::{HashMap, HashSet};

use crate::fold::plan::{Outcome, Plan, SitePlan};
use crate::graph::Graph;
use crate::normalizer::Site;
use crate::refusal::Refusal;

/// The sites of all passes so far.
#[derive(Default)]
pub struct History {
    /// The plan of the first pass, with what the others did to its sites, and the sites that they brought.
    pub plan: Plan,
    passes: usize,
    /// Which site makes a value, by the names of the next pass.
    makers: HashMap<String, usize>,
    refused: HashMap<usize, Refusal>,
}

/// A site as one pass sees it.
pub struct Seen {
    /// What it was before, if it is not new.
    known: Option<usize>,
    /// The names of the values that it makes.
    values: Vec<String>,
}

impl History {
    /// Which of the sites were there before.
    pub fn recognise(&self, graph: &Graph, sites: &[Site]) -> Vec<Seen> {
        let see = |site: &Site| {
            let values = site.nodes.iter().flat_map(|&node| graph.outputs(node).iter().flatten());
            let values: Vec<String> = values.map(|&value| graph.value_name(value).to_owned()).collect();
            Seen { known: values.iter().find_map(|value| self.makers.get(value).copied()), values }
        };
        sites.iter().map(see).collect()
    }

    /// Why nothing is to be done with a site, as it was decided before.
    pub fn refusal(&self, seen: &Seen) -> Option<Refusal> {
        self.refused.get(&seen.known?).cloned()
    }

    /// Notes what a pass plans for the sites that it saw, which of them it was not to touch, and what values are
    /// called from now on.
    pub fn note(
        &mut self,
        mut plan: Plan,
        seen: Vec<Seen>,
        refused: HashMap<usize, Refusal>,
        now: &mut dyn FnMut(&str) -> String,
    ) {
        let gone: HashSet<String> = plan.removals.iter().map(|removal| removal.output.clone()).collect();
        let sites = std::mem::take(&mut plan.sites);
        if self.passes == 0 {
            self.plan = plan;
        }
        self.makers.clear();
        for (index, (site, Seen { known, values })) in sites.into_iter().zip(seen).enumerate() {
            let Some(place) = self.place(site, known) else { continue };
            self.refused.extend(refused.get(&index).map(|refusal| (place, refusal.clone())));
            let stays = values.iter().filter(|value| !gone.contains(*value));
            self.makers.extend(stays.map(|value| (now(value), place)));
        }
        self.passes += 1;
    }

    /// Puts a site where it was, or behind the others; one that comes up later counts only if it goes.
    fn place(&mut self, mut site: SitePlan, known: Option<usize>) -> Option<usize> {
        if let Some(place) = known {
            let before = &mut self.plan.sites[place];
            goes_on(&mut before.pre, site.pre);
            goes_on(&mut before.post, site.post);
            return Some(place);
        }
        let goes = |outcome: &Outcome| !matches!(outcome, Outcome::Kept { .. });
        if self.passes > 0 && !site.outcomes().any(goes) {
            return None;
        }
        let is_taken = |name: &str| self.plan.sites.iter().any(|site| site.name == name);
        if self.passes > 0 && is_taken(&site.name) {
            let names = (2..).map(|count| format!("{}#{count}", site.name));
            site.name = names.into_iter().find(|name| !is_taken(name))?;
        }
        self.plan.sites.push(site);
        Some(self.plan.sites.len() - 1)
    }
}

/// What has become of an affine, once a later pass has got hold of what was left.
fn goes_on(before: &mut Option<Outcome>, mut now: Option<Outcome>) {
    let (Some(Outcome::Folded { into, .. } | Outcome::Partly { into, .. }), false) =
        (&mut now, matches!(before, Some(Outcome::Folded { .. })))
    else {
        return;
    };
    if let Some(Outcome::Partly { into: earlier, .. }) = before {
        into.append(earlier);
        into.sort();
        into.dedup();
    }
    *before = now;
}
