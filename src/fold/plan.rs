//! Deciding which affine goes where. Nothing is changed; the plan can be printed.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use super::absorb::linear;
use super::apply::Stored;
use super::draft::Draft;
use super::rounding::Rounding;
use super::wave::{self, Parts, Wave};
use super::{Fold, Side};
use crate::affine::Affine;
use crate::graph::analysis::Analysis;
use crate::graph::{NodeId, ValueId};
use crate::normalizer::{Kind, Lowering, Part, Reset, Site};
use crate::onnx::tensor::DataType;
use crate::refusal::Refusal;

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
    /// The site that it belongs to.
    pub site: usize,
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
    /// Inputs of nodes that get their neutral values, and the site of each.
    pub resets: Vec<(Reset, usize)>,
    /// Parts that took in another.
    pub rewrites: Vec<Rewrite>,
    /// The tensors that the result has and the model has not, as formulas over those of the model.
    pub tensors: Vec<Stored>,
    /// Nodes that others take the place of, and the site of each.
    pub lowerings: Vec<(Lowering, usize)>,
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

/// How often all that is left is looked at again. Each time something before it changed, so that the
/// last one hardly ever comes.
const SWEEPS: usize = 64;

/// Plans the folds of a model's sites. `refused` has those of which nothing is to be touched, and why.
pub fn plan(
    known: &Analysis,
    sites: &[Site],
    refused: &HashMap<usize, Refusal>,
) -> Plan {
    let mut planner = Planner::new(known, sites, refused);
    planner.fold_all();
    planner.finish(sites)
}

struct Planner<'a> {
    draft: Draft<'a>,
    parts: Vec<Part>,
    /// The site of a part, and whether it is the part before the core.
    owners: Vec<(usize, bool)>,
    /// The parts that are still there, by the value that they make.
    by_output: HashMap<ValueId, usize>,
    outcomes: Vec<Option<Outcome>>,
    /// The two refusals of the last attempt.
    refusals: Vec<Option<(Refusal, Option<Refusal>)>>,
    fixed: Vec<bool>,
    rewritten: HashSet<usize>,
    removals: Vec<Removal>,
    resets: Vec<(Reset, usize)>,
    fold_sites: Vec<usize>,
    lowerings: Vec<(Lowering, usize)>,
}

impl<'a> Planner<'a> {
    fn new(
        known: &'a Analysis<'a>,
        sites: &[Site],
        refused: &HashMap<usize, Refusal>,
    ) -> Self {
        let mut planner = Planner {
            draft: Draft::new(known),
            parts: vec![],
            owners: vec![],
            by_output: HashMap::new(),
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
            let refusal = site.refusal.clone().or_else(|| refused.get(&index).cloned());
            let lowering = site.lowering.as_ref().filter(|_| refusal.is_none());
            planner.lowerings.extend(lowering.map(|lowering| (lowering.clone(), index)));
            for (part, is_pre) in
                site.pre.iter().map(|p| (p, true)).chain(site.post.iter().map(|p| (p, false)))
            {
                for &node in &part.nodes {
                    planner.draft.owned.insert(node, planner.parts.len());
                }
                // Behind other operators it may be another affine than its nodes compute.
                let input = known.graph.value_name(part.input);
                if lowering.is_some_and(|lowering| lowering.makes(input)) {
                    planner.rewritten.insert(planner.parts.len());
                }
                planner.by_output.insert(part.output, planner.parts.len());
                planner.parts.push(part.clone());
                planner.owners.push((index, is_pre));
                planner.outcomes.push(None);
                planner.fixed.push(refusal.is_some());
                planner.refusals.push(refusal.clone().map(|refusal| (refusal, None)));
            }
        }
        planner
    }

    /// The parts of which something may still go.
    fn open(&self) -> Vec<usize> {
        let is_open =
            |&part: &usize| !self.fixed[part] && !matches!(self.outcomes[part], Some(Outcome::Folded { .. }));
        (0..self.parts.len()).filter(is_open).collect()
    }

    /// Folds until nothing more goes: what goes may take away what stopped another part.
    ///
    /// A part goes by itself, into linear operators, where it can; where it cannot, it may join another
    /// that stays, for two affines in a row are one; and where neither, its shift may go on alone.
    fn fold_all(&mut self) {
        for _ in 0..SWEEPS {
            let apart_or_together = self.sweep(Self::fold_apart) | self.sweep(Self::fold_together);
            if !apart_or_together && !self.sweep(Self::fold_shift) {
                return;
            }
        }
    }

    /// Whether any part went that way.
    fn sweep(&mut self, fold: fn(&mut Self, usize) -> bool) -> bool {
        self.open().into_iter().filter(|&part| fold(self, part)).count() > 0
    }

    fn fold_apart(&mut self, part: usize) -> bool {
        self.fold(part, false)
    }

    fn fold_together(&mut self, part: usize) -> bool {
        self.fold(part, true)
    }

    /// Where a scale stays, as it must before a residual stream, its shift may still go on alone.
    fn fold_shift(&mut self, part: usize) -> bool {
        let there = &self.parts[part];
        let drops = self.size(part) > 1 || there.resets.iter().any(|reset| reset.neutral == 0.0);
        let holds = self.holds(there, &there.affine);
        if !drops || !holds || there.affine.has_no_shift() || there.affine.has_no_scale() {
            return false;
        }
        let shift = Affine::shift(there.affine.shift.clone());
        let wave = wave::forward(&self.draft, &self.parts(false), part, &shift);
        let Some(wave) = wave.ok().filter(|wave| wave.makes.is_empty()) else { return false };
        let Some((scale, _)) = self.refusals[part].clone() else { return false };
        let into = self.carry(part, wave);
        self.parts[part].affine = Affine::scale(self.parts[part].affine.scale.clone());
        self.rewritten.insert(part);
        self.outcomes[part] = Some(Outcome::Partly { into, scale });
        true
    }

    fn parts(&self, merge: bool) -> Parts<'_> {
        Parts { all: &self.parts, by_output: &self.by_output, merge }
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
            let smaller = size(there, &after) < self.size(part) + self.size(*other);
            if self.fixed[*other]
                || !smaller
                || !self.holds(there, &after)
                || !self.is_writable(there, &after)
            {
                return Err(wave::stays(&self.draft, there));
            }
        }
        Ok(wave)
    }

    /// Whether the numbers of an affine fit the type of a part's constants.
    fn is_writable(&self, part: &Part, affine: &Affine) -> bool {
        let data_type = self.data_type(part);
        Rounding::Factor.fits(data_type, &affine.scale) && Rounding::Sum.fits(data_type, &affine.shift)
    }

    /// Whether it is known how to write a part with an affine: parameters inside a node have the places and the
    /// sizes for it, operators of its own an element type.
    fn holds(&self, part: &Part, affine: &Affine) -> bool {
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
            true => fits(1.0, &affine.scale) && fits(0.0, &affine.shift),
            false => self.data_type(part).is_some(),
        }
    }

    /// How many nodes a part is as it is by now.
    fn size(&self, part: usize) -> usize {
        match self.rewritten.contains(&part) {
            true => size(&self.parts[part], &self.parts[part].affine),
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
        (wave.makes.len(), wave.merges.len(), bytes)
    }

    fn commit(&mut self, part: usize, direction: Direction, wave: Wave) {
        let mut into = self.carry(part, wave);
        let gone = self.parts[part].clone();
        self.remove(&gone.nodes, gone.output, gone.input);
        let site = self.owners[part].0;
        self.resets.extend(gone.resets.into_iter().map(|reset| (reset, site)));
        self.rewritten.remove(&part);
        self.by_output.remove(&gone.output);
        for node in &gone.nodes {
            self.draft.owned.remove(node);
        }
        // The shift may have gone before.
        if let Some(Outcome::Partly { into: before, .. }) = self.outcomes[part].take() {
            into.extend(before);
            into.sort();
            into.dedup();
        }
        self.outcomes[part] = Some(Outcome::Folded { direction, into });
    }

    /// Takes in all that a wave found. Returns the names of what absorbs it.
    fn carry(&mut self, part: usize, wave: Wave) -> Vec<String> {
        let graph = self.draft.graph;
        let mut into: Vec<String> = wave.folds.iter().map(|fold| graph.name(fold.node).to_owned()).collect();
        for (other, affine, before) in wave.merges {
            self.parts[other].affine = merged(&self.parts[other], &affine, before);
            self.rewritten.insert(other);
            into.push(graph.value_name(self.parts[other].output).to_owned());
        }
        into.sort();
        into.dedup();
        self.fold_sites.extend(wave.folds.iter().map(|_| self.owners[part].0));
        self.draft.fold(wave.folds);
        self.draft.makes.extend(wave.makes);
        for (node, slot) in wave.bypass {
            if let (Some(output), Some(input)) = (graph.output(node, 0), graph.input(node, slot)) {
                self.remove(&[node], output, input);
            }
        }
        into
    }

    fn remove(&mut self, nodes: &[NodeId], output: ValueId, input: ValueId) {
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
                site: self.owners[part].0,
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
            tensors: vec![],
            lowerings: self.lowerings,
        }
    }

    /// The element type of the value that a part acts on, whatever its constants are.
    fn data_type(&self, part: &Part) -> Option<DataType> {
        let facts = self.draft.facts;
        facts.data_type(part.input).or_else(|| facts.data_type(part.output))
    }
}

/// How many nodes a part is when it is written anew with an affine.
fn size(part: &Part, affine: &Affine) -> usize {
    match part.nodes.is_empty() {
        true => 0,
        false => !affine.has_no_scale() as usize + !affine.has_no_shift() as usize,
    }
}

/// The affine of a part that takes another one in, before its own or behind it.
fn merged(part: &Part, affine: &Affine, before: bool) -> Affine {
    if before { affine.then(&part.affine) } else { part.affine.then(affine) }
}
