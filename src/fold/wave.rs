//! One affine on its way: forward to every reader, or backward to the producer.
//!
//! A wave only looks. It returns what would have to be done, or the first reason why it cannot be.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::absorb::linear;
use super::draft::Draft;
use super::{Fold, Side, Step, rule, softmax};
use crate::affine::Affine;
use crate::graph::{NodeId, Reader, ValueId};
use crate::normalizer::Part;
use crate::refusal::{Reason, Refusal};

/// How many nodes one wave may visit backward, where several ways are open at each.
const BUDGET: usize = 4096;

/// How far one wave may go backward.
const DEPTH: usize = 512;

/// What a wave found: all that has to be done so that its part can go.
#[derive(Debug, Clone, Default)]
pub struct Wave {
    /// What nodes take into their constants, in order.
    pub folds: Vec<Fold>,
    /// Nodes that have nothing left to do, and the input that they hand on.
    pub bypass: Vec<(NodeId, usize)>,
    /// Other parts that take the affine into theirs; `true` where it comes before them.
    pub merges: Vec<(usize, Affine, bool)>,
    /// How many nodes are made.
    pub leaves: usize,
}

/// The parts of all sites, and which of them may take another one in.
pub struct Parts<'p> {
    /// All parts.
    pub all: &'p [Part],
    /// The parts that are still there, by the value that they make.
    pub by_output: HashMap<ValueId, usize>,
    /// Whether a part that stays may take the affine in.
    pub merge: bool,
}

/// Sends an affine, that of a part or its shift alone, forward from the part's output.
///
/// # Errors
/// A refusal at the first reader, in execution order, that cannot take it.
pub fn forward(draft: &Draft, parts: &Parts, part: usize, affine: &Affine) -> Result<Wave, Refusal> {
    let mut front = Front { draft, affines: HashMap::new(), queue: BTreeMap::new(), part };
    let start = &parts.all[part];
    front.arrive(start.output, affine.clone())?;
    let mut wave = Wave::default();
    let mut met = HashSet::new();
    while let Some((_, next)) = front.queue.pop_first() {
        match next {
            // A diamond reads its value at several places, and is one part all the same.
            Next::Part(other) if !met.insert(other) => {}
            Next::Part(other) => {
                let there = &parts.all[other];
                let affine = front.affines[&draft.source(there.input)].clone();
                if parts.merge {
                    wave.merges.push((other, affine, true));
                } else {
                    front.arrive(there.output, commute(&affine, &there.affine))?;
                }
            }
            Next::Node(node) => {
                let step = front.step(node)?;
                wave.note(draft, node, &step);
                if let Some(slot) = step.bypass {
                    wave.bypass.push((node, slot));
                }
                for (slot, affine) in step.ways.into_iter().next().unwrap_or_default() {
                    if let Some(value) = draft.graph.output(node, slot) {
                        front.arrive(value, affine)?;
                    }
                }
            }
        }
    }
    Ok(wave)
}

/// `q(a(x))` as `a'(q(x))`: with `a = (s, t)` and `q = (σ, τ)`, `a' = (s, σ·t + τ − s·τ)`.
fn commute(affine: &Affine, through: &Affine) -> Affine {
    let shift = &through.scale * &affine.shift + &through.shift - &(&affine.scale * &through.shift);
    Affine::new(affine.scale.clone(), shift)
}

enum Next {
    Node(NodeId),
    Part(usize),
}

struct Front<'d, 'a> {
    draft: &'d Draft<'a>,
    affines: HashMap<ValueId, Affine>,
    queue: BTreeMap<usize, Next>,
    part: usize,
}

impl Front<'_, '_> {
    /// The affine is on this value: all its readers are next.
    fn arrive(&mut self, value: ValueId, affine: Affine) -> Result<(), Refusal> {
        if affine.is_identity() {
            return Ok(());
        }
        let graph = self.draft.graph;
        if !affine.is_finite() {
            return Err(Refusal::new(Reason::NotFinite, graph.value_name(value)));
        }
        for (name, reader) in self.draft.readers(value) {
            match reader {
                Reader::Output => return Err(Refusal::new(Reason::GraphOutput, graph.value_name(name))),
                Reader::Capture { node } => {
                    return Err(Refusal::new(Reason::CapturedBySubgraph, graph.name(node)));
                }
                Reader::Node { node, input } if !graph.reads_elements(node, input) => {}
                Reader::Node { node, .. } => {
                    let next = match self.draft.owned.get(&node) {
                        Some(&other) if other != self.part => Next::Part(other),
                        _ => Next::Node(node),
                    };
                    self.queue.insert(graph.place(node), next);
                }
            }
        }
        self.affines.insert(self.draft.source(value), affine);
        Ok(())
    }

    fn step(&self, node: NodeId) -> Result<Step, Refusal> {
        let graph = self.draft.graph;
        let inputs: Vec<Option<Affine>> = graph
            .inputs(node)
            .iter()
            .enumerate()
            .map(|(slot, input)| {
                let value = input.filter(|_| graph.reads_elements(node, slot))?;
                self.affines.get(&self.draft.source(value)).cloned()
            })
            .collect();
        step_forward(self.draft, node, &inputs)
    }
}

/// The operator of a node, if its domain is known.
fn known<'m>(draft: &Draft<'m>, node: NodeId) -> Result<&'m str, Reason> {
    match draft.graph.op(node) {
        "" => {
            let (domain, op) = draft.graph.domain_op(node);
            Err(Reason::UnknownOperator(format!("{domain}.{op}")))
        }
        op => Ok(op),
    }
}

fn step_forward(draft: &Draft, node: NodeId, inputs: &[Option<Affine>]) -> Result<Step, Refusal> {
    let refuse = |reason| Refusal::new(reason, draft.graph.name(node));
    let op = known(draft, node).map_err(refuse)?;
    if draft.is_touched(node) && linear(op).is_some_and(|linear| linear.is_elementwise()) {
        // Its constant is no longer the one that a rule would read.
        return Err(refuse(Reason::OtherReader));
    }
    let rule = rule(op).ok_or_else(|| refuse(Reason::NotLinear(op.into())))?;
    let step = rule.forward(&draft.at(node), inputs).map_err(refuse)?;
    passes(draft, node, step)
}

/// A rule sees the node as it is in the model: what passes there does not pass what the node adds
/// by now.
fn passes(draft: &Draft, node: NodeId, step: Step) -> Result<Step, Refusal> {
    match step.fold.is_none() && draft.is_shifted(node) {
        true => Err(Refusal::new(Reason::OtherReader, draft.graph.name(node))),
        false => Ok(step),
    }
}

impl Wave {
    /// Notes what a step leaves in a node, and what has to be made for it.
    fn note(&mut self, draft: &Draft, node: NodeId, step: &Step) {
        let Some((side, mut affine)) = step.fold.clone() else { return };
        self.leaves += step.leaves;
        if !affine.has_no_shift() {
            let slots = linear(draft.graph.op(node)).and_then(|linear| linear.slots(&draft.at(node)).ok());
            let has_place = slots.is_some_and(|slots| slots.bias.is_some());
            if !has_place && draft.bias_add(node).is_none() {
                if softmax::ignores(draft, node, side, &affine.shift) {
                    affine = Affine::scale(affine.scale);
                } else {
                    self.leaves += 1;
                }
            }
        }
        self.folds.push(Fold { node, side, affine });
    }
}

/// Sends the affine of a part backward from its input.
///
/// # Errors
/// A refusal at the node or value that something else depends on, or that cannot take it.
pub fn backward(draft: &Draft, parts: &Parts, part: usize) -> Result<Wave, Refusal> {
    let start = &parts.all[part];
    if start.nodes.is_empty() {
        // Its parameters are behind what the node itself computes.
        let maker = draft.graph.producer(start.output).map(|(node, _)| node);
        let op = maker.map_or("", |node| draft.graph.domain_op(node).1);
        let at = maker.map_or(draft.graph.value_name(start.output), |node| draft.graph.name(node));
        return Err(Refusal::new(Reason::NotLinear(op.into()), at));
    }
    let allowed: HashSet<NodeId> = start.nodes.iter().copied().collect();
    let mut pull = Pull { draft, parts, part, budget: BUDGET };
    let mut wave = Wave::default();
    pull.value(&mut wave, start.input, None, &allowed, &start.affine, 0)?;
    // Found from the consumer up; a producer's constants change first.
    Ok(wave)
}

struct Pull<'d, 'a> {
    draft: &'d Draft<'a>,
    parts: &'d Parts<'d>,
    part: usize,
    budget: usize,
}

impl Pull<'_, '_> {
    /// The affine is wanted on this value, which only `allowed` may read.
    fn value(
        &mut self,
        wave: &mut Wave,
        value: ValueId,
        consumer: Option<(NodeId, usize)>,
        allowed: &HashSet<NodeId>,
        affine: &Affine,
        depth: usize,
    ) -> Result<(), Refusal> {
        if affine.is_identity() {
            return Ok(());
        }
        let graph = self.draft.graph;
        let refuse = |reason| Refusal::new(reason, graph.value_name(value));
        if !affine.is_finite() {
            return Err(refuse(Reason::NotFinite));
        }
        self.budget = self.budget.checked_sub(1).ok_or_else(|| refuse(Reason::OtherReader))?;
        if depth > DEPTH {
            return Err(refuse(Reason::OtherReader));
        }
        let value = self.draft.source(value);
        if self.draft.constants.is_constant(value) {
            let (node, slot) = consumer.ok_or_else(|| refuse(Reason::GraphInput))?;
            if self.draft.constants.is_quantized(value) {
                return Err(refuse(Reason::Quantized));
            }
            wave.folds.push(Fold { node, side: Side::Constant(slot), affine: affine.clone() });
            return Ok(());
        }
        self.nobody_else(value, consumer, allowed, affine)?;
        if let Some(&other) = self.parts.by_output.get(&value)
            && other != self.part
        {
            if !self.parts.merge {
                return Err(refuse(Reason::NotLinear("a normalizer that stays".into())));
            }
            wave.merges.push((other, affine.clone(), false));
            return Ok(());
        }
        let Some((node, slot)) = graph.producer(value) else { return Err(refuse(Reason::GraphInput)) };
        let refuse = |reason| Refusal::new(reason, graph.name(node));
        let op = known(self.draft, node).map_err(refuse)?;
        let rule = rule(op).ok_or_else(|| refuse(Reason::NotLinear(op.into())))?;
        let step = rule.backward(&self.draft.at(node), slot, affine).map_err(refuse)?;
        let step = passes(self.draft, node, step)?;
        wave.note(self.draft, node, &step);
        let mut last = refuse(Reason::NotLinear(op.into()));
        for way in &step.ways {
            let mut attempt = wave.clone();
            match self.inputs(&mut attempt, node, way, depth) {
                Ok(()) => {
                    *wave = attempt;
                    return Ok(());
                }
                Err(refusal) => last = refusal,
            }
        }
        Err(last)
    }

    fn inputs(
        &mut self,
        wave: &mut Wave,
        node: NodeId,
        way: &[(usize, Affine)],
        depth: usize,
    ) -> Result<(), Refusal> {
        let only = HashSet::from([node]);
        for (slot, affine) in way {
            let Some(input) = self.draft.graph.input(node, *slot) else {
                return Err(Refusal::new(Reason::NotConstant, self.draft.graph.name(node)));
            };
            self.value(wave, input, Some((node, *slot)), &only, affine, depth + 1)?;
        }
        Ok(())
    }

    /// Everything besides the consumer must read only what the affine leaves as it is.
    fn nobody_else(
        &self,
        value: ValueId,
        consumer: Option<(NodeId, usize)>,
        allowed: &HashSet<NodeId>,
        affine: &Affine,
    ) -> Result<(), Refusal> {
        let graph = self.draft.graph;
        for (name, reader) in self.draft.readers(value) {
            let (node, input) = match reader {
                Reader::Output => return Err(Refusal::new(Reason::GraphOutput, graph.value_name(name))),
                Reader::Capture { node } => {
                    return Err(Refusal::new(Reason::CapturedBySubgraph, graph.name(node)));
                }
                Reader::Node { node, input } => (node, input),
            };
            let expected = allowed.contains(&node) && consumer.is_none_or(|(_, slot)| slot == input);
            if expected || !graph.reads_elements(node, input) || self.sees_nothing(node, input, affine) {
                continue;
            }
            return Err(Refusal::new(Reason::OtherReader, graph.name(node)));
        }
        Ok(())
    }

    /// Whether a reader takes only parts of the value on which the affine is the identity.
    fn sees_nothing(&self, node: NodeId, input: usize, affine: &Affine) -> bool {
        let mut inputs = vec![None; self.draft.graph.inputs(node).len()];
        inputs[input] = Some(affine.clone());
        let step = step_forward(self.draft, node, &inputs);
        step.is_ok_and(|step| {
            step.fold.is_none()
                && step.bypass.is_none()
                && step.ways.iter().flatten().all(|(_, a)| a.is_identity())
        })
    }
}
