//! Deciding which affine goes where. Nothing is changed; the plan can be printed.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use super::absorb::linear;
use super::draft::Draft;
use super::wave::{self, Parts, Wave};
use super::{Fold, Side};
use crate::affine::Affine;
use crate::graph::constants::Constants;
use crate::graph::facts::Facts;
use crate::graph::{Graph, NodeId};
use crate::normalizer::{Kind, Lowering, Part, Reset, Site, View};
use crate::onnx::tensor::DataType;
use crate::refusal::{Reason, Refusal};

/// Where an affine goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Into what reads the site: Algorithm 1 of the UN paper.
    Forward,
    /// Into what produces the site's input.
    Backward,
}

/// What happens to one affine of a site.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum Outcome {
    /// It goes; its operators disappear.
    Folded {
        /// Where to.
        direction: Direction,
        /// The nodes that take it in.
        into: Vec<String>,
    },
    /// Its shift goes, its scale stays.
    Partly {
        /// The nodes that take the shift in.
        into: Vec<String>,
        /// Why the scale cannot go.
        scale: Refusal,
    },
    /// It stays.
    Kept {
        /// Why it cannot go forward; or why not at all.
        forward: Refusal,
        /// Why it cannot go backward, where that was tried.
        backward: Option<Refusal>,
    },
}

/// A site and what happens to it.
#[derive(Debug, Clone, Serialize)]
pub struct SitePlan {
    /// Module path or node name; no two sites share one.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// Number of channels.
    pub channels: usize,
    /// The channels' axis in the value that the site's operators see.
    pub axis: usize,
    /// Names of its nodes.
    pub nodes: Vec<String>,
    /// The affine before the core, where there is one.
    pub pre: Option<Outcome>,
    /// The core, where other operators would do with less and cannot take its place.
    pub core: Option<Outcome>,
    /// The affine behind the core, or all of an offline normalizer.
    pub post: Option<Outcome>,
}

impl SitePlan {
    /// Whether its affine goes: the one behind the core, or all of an offline normalizer. What is
    /// before a core may stay, as the α of a Dynamic Tanh on a residual stream does.
    pub fn is_folded(&self) -> bool {
        matches!(self.post, Some(Outcome::Folded { .. })) && self.core.is_none()
    }

    /// What happens to its parts, in the order in which they act.
    ///
    /// ```
    /// let model = unfold::onnx::Model::open("models/digits/dyt-dynamo.onnx")?;
    /// let plan = unfold::plan(&model, &Default::default())?;
    /// let tanh = plan.sites.iter().find(|site| site.kind.name == "DyT").unwrap();
    /// assert_eq!(tanh.outcomes().count(), 2); // α before the tanh, γ and β behind it
    /// # Ok::<(), unfold::error::Error>(())
    /// ```
    pub fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.pre.iter().chain(&self.core).chain(&self.post)
    }
}

/// Nodes that go, and the value that takes the place of what they made.
#[derive(Debug, Clone)]
pub struct Removal {
    /// The nodes.
    pub nodes: Vec<NodeId>,
    /// Name of the value that they made.
    pub output: String,
    /// Name of the value that is read instead.
    pub source: String,
}

/// A part that stays with another affine than it had.
#[derive(Debug, Clone)]
pub struct Rewrite {
    /// The part, with its new affine.
    pub part: Part,
    /// Element type of its value, which its constants have; `None` where nothing tells.
    pub data_type: Option<DataType>,
}

/// Everything that folding will do to a model, as data.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// The sites, in execution order.
    pub sites: Vec<SitePlan>,
    /// What nodes take into their constants, in the order in which it applies.
    pub folds: Vec<Fold>,
    /// Which site a fold is for.
    pub fold_sites: Vec<usize>,
    /// The Adds that hold the biases of nodes that have no place for one.
    pub bias_adds: HashMap<NodeId, (NodeId, usize)>,
    /// What goes.
    pub removals: Vec<Removal>,
    /// Inputs of nodes that get their neutral values.
    pub resets: Vec<Reset>,
    /// Parts that took in another.
    pub rewrites: Vec<Rewrite>,
    /// Nodes that others take the place of.
    pub lowerings: Vec<Lowering>,
}

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.removals.is_empty()
            && self.resets.is_empty()
            && self.folds.is_empty()
            && self.rewrites.is_empty()
            && self.lowerings.is_empty()
    }
}

/// Plans the folds of a model's sites. `refused` says of which sites nothing is to be touched, and why.
pub fn plan(view: &View, sites: &[Site], refused: &dyn Fn(&Site) -> Option<Refusal>) -> Plan {
    let mut planner = Planner::new(view.graph, view.facts, view.constants, sites, refused);
    planner.fold_apart();
    planner.fold_together();
    planner.fold_shifts();
    planner.finish(sites)
}

struct Planner<'a> {
    draft: Draft<'a>,
    parts: Vec<Part>,
    /// The site of a part, and whether it is the part before the core.
    owners: Vec<(usize, bool)>,
    outcomes: Vec<Option<Outcome>>,
    /// The two refusals of the last attempt.
    refusals: Vec<Option<(Refusal, Option<Refusal>)>>,
    fixed: Vec<bool>,
    rewritten: HashSet<usize>,
    removals: Vec<Removal>,
    resets: Vec<Reset>,
    fold_sites: Vec<usize>,
    lowerings: Vec<Lowering>,
}

impl<'a> Planner<'a> {
    fn new(
        graph: &'a Graph<'a>,
        facts: &'a Facts,
        constants: &'a Constants<'a, 'a>,
        sites: &[Site],
        refused: &dyn Fn(&Site) -> Option<Refusal>,
    ) -> Self {
        let mut planner = Planner {
            draft: Draft::new(graph, facts, constants),
            parts: vec![],
            owners: vec![],
            outcomes: vec![],
            refusals: vec![],
            fixed: vec![],
            rewritten: HashSet::new(),
            removals: vec![],
            resets: vec![],
            fold_sites: vec![],
            lowerings: vec![],
        };
        for (index, site) in sites.iter().enumerate() {
            let refusal = site.refusal.clone().or_else(|| refused(site));
            let lowering = site.lowering.as_ref().filter(|_| refusal.is_none());
            planner.lowerings.extend(lowering.cloned());
            for (part, is_pre) in
                site.pre.iter().map(|p| (p, true)).chain(site.post.iter().map(|p| (p, false)))
            {
                for &node in &part.nodes {
                    planner.draft.owned.insert(node, planner.parts.len());
                }
                // Behind other operators it may be another affine than its nodes compute.
                let input = graph.value_name(part.input);
                if lowering.is_some_and(|lowering| lowering.makes(input)) {
                    planner.rewritten.insert(planner.parts.len());
                }
                planner.parts.push(part.clone());
                planner.owners.push((index, is_pre));
                planner.outcomes.push(None);
                planner.fixed.push(refusal.is_some());
                planner.refusals.push(refusal.clone().map(|refusal| (refusal, None)));
            }
        }
        planner
    }

    fn open(&self) -> Vec<usize> {
        (0..self.parts.len()).filter(|&part| self.outcomes[part].is_none() && !self.fixed[part]).collect()
    }

    /// Each part by itself: all of it into linear operators, forward or backward.
    fn fold_apart(&mut self) {
        for part in self.open() {
            self.fold(part, false);
        }
    }

    /// Where a scale stays, as it must before a residual stream, its shift may still go on alone.
    fn fold_shifts(&mut self) {
        for part in self.open() {
            let there = &self.parts[part];
            let drops = there.nodes.len() > 1 || there.resets.iter().any(|reset| reset.neutral == 0.0);
            if !drops || there.affine.has_no_shift() || there.affine.has_no_scale() || !self.holds(there) {
                continue;
            }
            let parts = self.parts(false);
            let shift = Affine::shift(there.affine.shift.clone());
            if let Ok(wave) = wave::forward(&self.draft, &parts, part, &shift)
                && wave.leaves == 0
                && let Some((scale, _)) = self.refusals[part].clone()
            {
                let into = self.carry(part, wave);
                self.parts[part].affine = Affine::scale(self.parts[part].affine.scale.clone());
                self.rewritten.insert(part);
                self.outcomes[part] = Some(Outcome::Partly { into, scale });
            }
        }
    }

    fn parts(&self, merge: bool) -> Parts<'_> {
        let live = |&p: &usize| {
            let folded = matches!(self.outcomes[p], Some(Outcome::Folded { .. }));
            !folded && (!merge || !self.fixed[p])
        };
        let by_output = (0..self.parts.len()).filter(live).map(|p| (self.parts[p].output, p)).collect();
        Parts { all: &self.parts, by_output, merge }
    }

    /// What is left may still join another part that is left: two affines in a row are one.
    fn fold_together(&mut self) {
        loop {
            let folded: Vec<usize> =
                self.open().into_iter().filter(|&part| self.fold(part, true)).take(1).collect();
            if folded.is_empty() {
                return;
            }
        }
    }

    fn fold(&mut self, part: usize, merge: bool) -> bool {
        let parts = self.parts(merge);
        let affine = &self.parts[part].affine;
        let forward =
            wave::forward(&self.draft, &parts, part, affine).and_then(|wave| self.worthwhile(part, wave));
        let backward = wave::backward(&self.draft, &parts, part).and_then(|wave| self.worthwhile(part, wave));
        let (direction, wave) = match (forward, backward) {
            (Ok(forward), Ok(backward)) if self.cost(&backward) < self.cost(&forward) => {
                (Direction::Backward, backward)
            }
            (Ok(forward), _) => (Direction::Forward, forward),
            (_, Ok(backward)) => (Direction::Backward, backward),
            (Err(forward), Err(backward)) => {
                if !merge {
                    self.refusals[part] = Some((forward, Some(backward)));
                }
                return false;
            }
        };
        self.commit(part, direction, wave);
        true
    }

    /// A merge must leave fewer nodes than there were.
    fn worthwhile(&self, part: usize, wave: Wave) -> Result<Wave, Refusal> {
        for (other, affine, before) in &wave.merges {
            let there = &self.parts[*other];
            let after = merged(there, affine, *before);
            let smaller = size(&after) < self.size(part) + self.size(*other);
            if self.fixed[*other] || !smaller || !self.holds(&after) {
                let at = self.draft.graph.value_name(there.output);
                return Err(Refusal::new(Reason::NotLinear("a normalizer that stays".into()), at));
            }
        }
        Ok(wave)
    }

    /// Whether it is known how to write a part: parameters inside a node have the places and the sizes for
    /// their affine, operators of its own an element type.
    fn holds(&self, part: &Part) -> bool {
        let place = |neutral: f64| part.resets.iter().find(|reset| reset.neutral == neutral);
        let fits = |neutral: f64, array: &ndarray::ArrayD<f64>| match place(neutral) {
            None => array.iter().all(|&v| v == neutral),
            Some(reset) => {
                let value = self.draft.graph.input(reset.node, reset.slot);
                let count = value.and_then(|value| self.draft.constants.len(value));
                array.len() == 1 || Some(array.len()) == count
            }
        };
        match part.nodes.is_empty() {
            true => fits(1.0, &part.affine.scale) && fits(0.0, &part.affine.shift),
            false => self.data_type(part).is_some(),
        }
    }

    /// How many nodes a part is as it is by now.
    fn size(&self, part: usize) -> usize {
        match self.rewritten.contains(&part) {
            true => size(&self.parts[part]),
            false => self.parts[part].nodes.len(),
        }
    }

    /// Nodes that are made, merges, and bytes of weights that are copied.
    fn cost(&self, wave: &Wave) -> (usize, usize, usize) {
        let graph = self.draft.graph;
        let mut bytes = 0;
        for fold in &wave.folds {
            let at = self.draft.at(fold.node);
            let slot = match fold.side {
                Side::Constant(slot) => Some(slot),
                _ => {
                    linear(graph.op(fold.node)).and_then(|l| l.slots(&at).ok()).and_then(|slots| slots.weight)
                }
            };
            let Some(weight) = slot.and_then(|slot| graph.input(fold.node, slot)) else { continue };
            if graph.readers(weight).len() > 1 {
                bytes += self.draft.constants.len(weight).unwrap_or(0);
            }
        }
        (wave.leaves, wave.merges.len(), bytes)
    }

    fn commit(&mut self, part: usize, direction: Direction, wave: Wave) {
        let into = self.carry(part, wave);
        let gone = self.parts[part].clone();
        self.remove(&gone.nodes, gone.output, gone.input);
        self.resets.extend(gone.resets);
        self.rewritten.remove(&part);
        for node in &gone.nodes {
            self.draft.owned.remove(node);
        }
        self.outcomes[part] = Some(Outcome::Folded { direction, into });
    }

    /// Takes in all that a wave found. Returns the names of what absorbs it.
    fn carry(&mut self, part: usize, wave: Wave) -> Vec<String> {
        let graph = self.draft.graph;
        let mut into: Vec<String> = wave.folds.iter().map(|fold| graph.name(fold.node).to_owned()).collect();
        for (other, affine, before) in wave.merges {
            self.parts[other] = merged(&self.parts[other], &affine, before);
            self.rewritten.insert(other);
            into.push(graph.value_name(self.parts[other].output).to_owned());
        }
        into.sort();
        into.dedup();
        self.fold_sites.extend(wave.folds.iter().map(|_| self.owners[part].0));
        self.draft.fold(wave.folds);
        for (node, slot) in wave.bypass {
            if let (Some(output), Some(input)) = (graph.output(node, 0), graph.input(node, slot)) {
                self.remove(&[node], output, input);
            }
        }
        into
    }

    fn remove(&mut self, nodes: &[NodeId], output: crate::graph::ValueId, input: crate::graph::ValueId) {
        let source = self.draft.source(input);
        self.draft.remove(nodes, output, source);
        if !nodes.is_empty() {
            let name = |value| self.draft.graph.value_name(value).to_owned();
            self.removals.push(Removal { nodes: nodes.to_vec(), output: name(output), source: name(source) });
        }
    }

    fn finish(mut self, sites: &[Site]) -> Plan {
        let graph = self.draft.graph;
        let mut plans: Vec<SitePlan> = sites
            .iter()
            .map(|site| SitePlan {
                name: site.name.clone(),
                kind: site.kind,
                channels: site.channels,
                axis: site.axis,
                nodes: site.nodes.iter().map(|&node| graph.name(node).to_owned()).collect(),
                pre: None,
                core: site.core.clone().map(|forward| Outcome::Kept { forward, backward: None }),
                post: site.refusal.clone().map(|forward| Outcome::Kept { forward, backward: None }),
            })
            .collect();
        for part in 0..self.parts.len() {
            let (site, is_pre) = self.owners[part];
            let outcome = self.outcomes[part].take().or_else(|| {
                let (forward, backward) = self.refusals[part].take()?;
                Some(Outcome::Kept { forward, backward })
            });
            if is_pre {
                plans[site].pre = outcome;
            } else {
                plans[site].post = outcome;
            }
        }
        let mut rewrites: Vec<_> = self.rewritten.iter().copied().collect();
        rewrites.sort_unstable();
        let rewrites = rewrites
            .into_iter()
            .map(|part| Rewrite {
                part: self.parts[part].clone(),
                data_type: self.data_type(&self.parts[part]),
            })
            .collect();
        Plan {
            sites: plans,
            folds: self.draft.folds,
            fold_sites: self.fold_sites,
            bias_adds: self.draft.bias_adds,
            removals: self.removals,
            resets: self.resets,
            rewrites,
            lowerings: self.lowerings,
        }
    }

    /// The element type of the value that a part acts on, whatever its constants are.
    fn data_type(&self, part: &Part) -> Option<DataType> {
        let facts = self.draft.facts;
        facts.data_type(part.input).or_else(|| facts.data_type(part.output))
    }
}

/// How many nodes a part is when it is written anew.
fn size(part: &Part) -> usize {
    match part.nodes.is_empty() {
        true => 0,
        false => !part.affine.has_no_scale() as usize + !part.affine.has_no_shift() as usize,
    }
}

/// A part that takes an affine in, before its own or behind it.
fn merged(part: &Part, affine: &Affine, before: bool) -> Part {
    let affine = if before { affine.then(&part.affine) } else { part.affine.then(affine) };
    Part { affine, ..part.clone() }
}
