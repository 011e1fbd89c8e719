//! One affine on its way forward, to every reader, and what it shares with the [way back](super::backward).
//!
//! A wave only looks. It returns what would have to be done, or the first reason why it cannot be.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::absorb::elementwise::beside_positions;
use super::absorb::{check, linear};
use super::across::across;
use super::draft::{Draft, Way};
use super::item::{Item, Items, Merge};
use super::range::Going;
use super::{Fold, Rule, Side, Step, range, rules, softmax};
use crate::affine::Affine;
use crate::graph::facts::{Shape, extent};
use crate::graph::{NodeId, Reader, ValueId};
use crate::hash::{HashMap, HashSet};
use crate::normalizer::Part;
use crate::refusal::{Reason, Refusal};

/// How many parts one wave may pass in a row. Those of a longer row join first.
const PASSED: usize = 16;

/// What a wave found: all that has to be done so that its part can go.
#[derive(Debug, Clone, Default)]
pub struct Wave {
    /// The site that it is for.
    pub site: usize,
    /// What nodes take into their constants, in order.
    pub folds: Vec<Fold>,
    /// Nodes that have nothing left to do, and the input that they hand on.
    pub bypass: Vec<(NodeId, usize)>,
    /// Other items that take the affine into theirs.
    pub merges: Vec<Merge>,
    /// Nodes behind which an Add is made.
    pub makes: Vec<NodeId>,
    /// What is still wanted on inputs of nodes, from what makes them.
    pub wants: Vec<(NodeId, usize, Affine)>,
    /// What factors of products are to take in.
    pub factors: Vec<(NodeId, usize, Affine)>,
    /// Values on which something is wanted.
    pub wanted: Vec<ValueId>,
    /// Values that carry something, where anything is wanted.
    pub carried: HashSet<ValueId>,
}

/// Sends an affine, that of a part or a half of it alone, forward from the part's output; and says whether there were
/// positions on the way, which are constants that are added. They come into the shift, or they are `kept`, which is another
/// way.
///
/// # Errors
/// A refusal at the first reader, in execution order, that cannot take it.
pub fn forward(
    draft: &Draft,
    items: &Items,
    item: usize,
    affine: &Affine,
    kept: bool,
) -> (Result<Wave, Refusal>, bool) {
    let whole = &items.all[item].part.affine;
    let goes =
        (!affine.has_no_scale() || whole.has_no_scale()) && (!affine.has_no_shift() || whole.has_no_shift());
    let mut front = Front::new(draft, items, item);
    front.goes = goes;
    front.positions.kept = kept;
    let found = front.all(affine);
    (found, front.positions.met.get())
}

/// A value on which a wave backward wants something that others who read it take back.
pub struct Returned {
    pub value: ValueId,
    /// The inputs that are to have what is wanted.
    pub wanted: Vec<(NodeId, usize)>,
    /// What all others take in.
    pub inverse: Affine,
}

/// Sends what a wave backward leaves on values that others read as well forward, to these others.
///
/// # Errors
/// A refusal at the first reader, in execution order, that cannot take it, and where it comes to what is wanted.
pub fn back(
    draft: &Draft,
    items: &Items,
    item: usize,
    wave: &mut Wave,
    returned: &[Returned],
) -> Result<(), Refusal> {
    let mut front = Front { joins: true, ..Front::new(draft, items, item) };
    front.kept = returned.iter().flat_map(|returned| returned.wanted.iter().copied()).collect();
    for Returned { value, inverse, .. } in returned {
        front.arrive(*value, inverse.clone(), None, 0)?;
    }
    front.run(wave)?;
    let begins = |value: &ValueId| returned.iter().any(|returned| draft.source(returned.value) == *value);
    wave.carried = front.carried.keys().copied().filter(|value| !begins(value)).collect();
    Ok(())
}

/// What is done with constants for each position that are added on the way.
struct Positions {
    kept: bool,
    met: Cell<bool>,
}

/// `q(a(x))` as `a'(q(x))`: with `a = (s, t)` and `q = (σ, τ)`, `a' = (s, σ·t + τ − s·τ)`.
fn commute(affine: &Affine, through: &Affine) -> Affine {
    let shift = &(&(&through.scale * &affine.shift) + &through.shift) - &(&affine.scale * &through.shift);
    Affine::new(affine.scale.clone(), shift)
}

/// A part that is in the way and does not go.
pub fn stays(draft: &Draft, part: &Part) -> Refusal {
    let reason = Reason::NotLinear("a normalizer that stays".into());
    Refusal::new(reason, draft.graph.value_name(part.output))
}

enum Next {
    /// A node, and a value by which the wave comes to it.
    Node(NodeId, ValueId),
    Part(usize),
}

/// What a wave brings to a value.
#[derive(Clone)]
struct Carried {
    affine: Affine,
    /// How many parts it has passed on its way.
    passed: usize,
}

struct Front<'d, 'a> {
    draft: &'d Draft<'a>,
    items: &'d Items<'d>,
    item: usize,
    /// Whether nothing of the item stays.
    goes: bool,
    /// Whether it may want something on what carries nothing.
    joins: bool,
    carried: HashMap<ValueId, Carried>,
    /// The value from which every scale comes to this one, whatever it is.
    from: HashMap<ValueId, ValueId>,
    queue: BTreeMap<usize, Next>,
    /// Inputs that have what a value carries already, and take nothing back.
    kept: HashSet<(NodeId, usize)>,
    positions: Positions,
}

impl<'d, 'a> Front<'d, 'a> {
    fn new(draft: &'d Draft<'a>, items: &'d Items<'d>, item: usize) -> Self {
        let (carried, from, queue) = (HashMap::default(), HashMap::default(), BTreeMap::new());
        let kept = HashSet::default();
        let positions = Positions { kept: false, met: Cell::new(false) };
        Front { draft, items, item, goes: false, joins: items.merge, carried, from, queue, kept, positions }
    }

    /// From the part of the item to everything that takes the affine in.
    fn all(&mut self, affine: &Affine) -> Result<Wave, Refusal> {
        let Item { part, site, .. } = &self.items.all[self.item];
        self.arrive(part.output, affine.clone(), None, 0)?;
        let mut wave = Wave { site: *site, ..Wave::default() };
        self.run(&mut wave)?;
        if !wave.wants.is_empty() || !wave.factors.is_empty() {
            wave.carried = self.carried.keys().copied().collect();
        }
        Ok(wave)
    }

    /// From where it has arrived.
    fn run(&mut self, wave: &mut Wave) -> Result<(), Refusal> {
        let (draft, items) = (self.draft, self.items);
        let mut met = HashSet::default();
        while let Some((_, next)) = self.queue.pop_first() {
            match next {
                // A diamond reads its value at several places, and is one part all the same.
                Next::Part(other) if !met.insert(other) => {}
                Next::Part(other) => {
                    let there = &items.all[other].part;
                    let input = draft.source(there.input);
                    // In a graph that is none it may come to a part at an input that the part does not have.
                    let Some(Carried { affine, passed }) = self.carried.get(&input).cloned() else {
                        return Err(stays(draft, there));
                    };
                    if !affine.broadcasts_with(&there.affine) {
                        return Err(Refusal::new(Reason::UnknownShape, draft.graph.value_name(there.output)));
                    }
                    if !items.merge && wave.shifts(draft, input) {
                        return Err(Refusal::new(Reason::Changed, draft.graph.value_name(there.output)));
                    }
                    if items.merge {
                        wave.merges.push(Merge { into: other, affine, before: true });
                    } else if passed == PASSED {
                        let at = draft.graph.value_name(there.output);
                        return Err(Refusal::new(Reason::TooFar, at));
                    } else {
                        self.arrive(there.output, commute(&affine, &there.affine), Some(input), passed + 1)?;
                    }
                }
                Next::Node(node, value) => {
                    let step = self.step(node, value, &wave.bypass);
                    // What one movement mixes the next ones may put apart again.
                    let is_mixed = matches!(&step, Err(refusal) if refusal.reason == Reason::MixedAxes);
                    let Carried { affine, passed } = &self.carried[&value];
                    if let Some((behind, affine)) = is_mixed.then(|| across(draft, value, affine)).flatten() {
                        self.arrive(behind, affine, Some(value), *passed)?;
                        continue;
                    }
                    let step = step?;
                    for fold in step.folds {
                        wave.note(draft, node, fold, step.by_place)?;
                    }
                    if let Some(slot) = step.bypass {
                        if draft.graph.input(node, slot).is_some_and(|read| wave.shifts(draft, read)) {
                            return Err(Refusal::new(Reason::Changed, draft.graph.name(node)));
                        }
                        wave.bypass.push((node, slot));
                    }
                    let from = if joins(draft, node) { Some(value) } else { hands_on(draft, node) };
                    let passed = self.carried[&value].passed;
                    wave.wants.extend(step.wants.into_iter().map(|(slot, affine)| (node, slot, affine)));
                    wave.factors.extend(step.factors.into_iter().map(|(slot, affine)| (node, slot, affine)));
                    for (slot, affine) in step.ways.into_iter().next().unwrap_or_default() {
                        if let Some(value) = draft.graph.output(node, slot) {
                            self.arrive(value, affine, from, passed)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// The affine is on this value: all its readers are next.
    fn arrive(
        &mut self,
        value: ValueId,
        affine: Affine,
        from: Option<ValueId>,
        passed: usize,
    ) -> Result<(), Refusal> {
        if affine.is_identity() {
            return Ok(());
        }
        let graph = self.draft.graph;
        if !affine.is_finite() {
            return Err(Refusal::new(Reason::NotFinite, graph.value_name(value)));
        }
        let has_scale = !affine.has_no_scale();
        let value = self.draft.source(value);
        if let Some(from) = from.filter(|_| has_scale) {
            self.from.insert(value, from);
        }
        // It would be in two bases at once: of a value with itself a product is wanted in one, and made in another.
        if self.carried.insert(value, Carried { affine, passed }).is_some() {
            return Err(Refusal::new(Reason::ResidualStream, graph.value_name(value)));
        }
        // Where one reader keeps it, the end may be that one.
        let is_kept = |(_, reader)| matches!(reader, Reader::Node { node, input } if self.kept.contains(&(node, input)));
        let ends = |_: &Refusal| has_scale && !self.draft.readers(value).any(is_kept);
        if let Some(refusal) = self.draft.dead_end(value, self.way()).filter(ends) {
            return Err(self.end(value, refusal));
        }
        for (name, reader) in self.draft.readers(value) {
            match reader {
                Reader::Output => {
                    return Err(self.end(value, Refusal::new(Reason::GraphOutput, graph.value_name(name))));
                }
                Reader::Capture { node } => {
                    return Err(self.end(value, Refusal::new(Reason::CapturedBySubgraph, graph.name(node))));
                }
                Reader::Node { node, input } if !graph.reads_elements(node, input) => {}
                Reader::Node { node, input } if self.kept.contains(&(node, input)) => {}
                Reader::Node { node, .. } => {
                    let next = match self.draft.owned.get(&node) {
                        Some(&other) if other != self.item => Next::Part(other),
                        _ => Next::Node(node, value),
                    };
                    self.queue.insert(graph.place(node), next);
                }
            }
        }
        Ok(())
    }

    fn way(&self) -> Way {
        if self.items.merge { Way::Into } else { Way::Past }
    }

    /// No scale goes on from this value, nor from those from which every one comes to it: the next wave need
    /// not come so far to know.
    fn end(&self, value: ValueId, refusal: Refusal) -> Refusal {
        // Where the wave begins, the next one would see it as soon as read it here.
        let mut next = Some(value).filter(|value| self.from.contains_key(value));
        if next.is_none() {
            return refusal;
        }
        let why = Rc::new(refusal);
        while let Some(value) = next {
            self.draft.set_dead_end(value, self.way(), &why);
            next = self.from.get(&value).copied();
        }
        Refusal::clone(&why)
    }

    fn step(&self, node: NodeId, value: ValueId, bypass: &[(NodeId, usize)]) -> Result<Step, Refusal> {
        let draft = self.draft;
        if let Err(reason) = passable(draft, node) {
            return Err(self.end(value, Refusal::new(reason, draft.graph.name(node))));
        }
        // What joins many values is not to look at all of them for each.
        if joins(draft, node)
            && !self.carried[&value].affine.has_no_scale()
            && let Some(made) = draft.graph.output(node, 0)
            && let Some(refusal) = draft.dead_end(draft.source(made), self.way())
        {
            return Err(self.end(value, refusal));
        }
        let inputs: Vec<Option<Affine>> = draft
            .graph
            .inputs(node)
            .iter()
            .enumerate()
            .map(|(slot, input)| {
                let takes = draft.graph.reads_elements(node, slot) && !self.kept.contains(&(node, slot));
                let value = input.filter(|_| takes)?;
                self.carried.get(&draft.source(value)).map(|carried| carried.affine.clone())
            })
            .collect();
        let beside = beside_positions(&draft.at(node), &inputs);
        self.positions.met.set(self.positions.met.get() || beside.is_some());
        let step = match beside.filter(|_| self.positions.kept) {
            Some(step) => passable(draft, node)
                .map_err(|reason| Refusal::new(reason, draft.graph.name(node)))
                .and_then(|_| passes(draft, node, step)),
            None => step_forward(draft, node, &inputs),
        }?;
        // Not past other parts, which would each come this way again: one after the other takes in what comes to it.
        if !self.joins && !step.wants.is_empty() {
            return Err(Refusal::new(Reason::ResidualStream, draft.graph.name(node)));
        }
        let item = &self.items.all[self.item];
        let part = Some(&item.part).filter(|part| self.goes && !part.nodes.is_empty());
        let going = Going { part, bypass, is_bounded: item.is_bounded };
        range::forward(draft, &going, node, &inputs, &step)
            .map(|()| step)
            .map_err(|reason| Refusal::new(reason, draft.graph.name(node)))
    }
}

/// The rule for a node.
///
/// # Errors
/// Why there is none.
pub fn rule_of(draft: &Draft, node: NodeId) -> Result<&'static dyn Rule, Reason> {
    if draft.replaced.contains(&node) {
        // What comes in its place may pass, once it is there.
        return Err(Reason::Changed);
    }
    let rule = rules::rule_of(&draft.at(node))?;
    // Such as zeros, which carry every scale, and may be none any more.
    if rule.reads_numbers() && draft.is_touched(node) { Err(Reason::Changed) } else { Ok(rule) }
}

/// The input of a node with which it shares every scale, forward and backward, unless it refuses it or takes
/// it in.
pub fn hands_on(draft: &Draft, node: NodeId) -> Option<ValueId> {
    let graph = draft.graph;
    let read = (0..graph.inputs(node).len()).filter(|&slot| graph.reads_elements(node, slot));
    let inputs = read.filter_map(|slot| graph.input(node, slot)).map(|input| draft.source(input));
    let mut varying = inputs.filter(|&input| !draft.constants.is_constant(input));
    let (only, other) = (varying.next()?, varying.next());
    let hands_on = rules::rule(graph.domain_op(node)).is_some_and(|rule| rule.hands_on());
    (hands_on && other.is_none()).then_some(only)
}

/// Whether a node only puts values side by side, so that a scale of one of them is one of all.
fn joins(draft: &Draft, node: NodeId) -> bool {
    draft.graph.is(node, "Concat")
}

/// The rule by which an affine may go on.
fn passable(draft: &Draft, node: NodeId) -> Result<&'static dyn Rule, Reason> {
    let linear = linear(draft.graph.domain_op(node));
    if draft.is_touched(node) && linear.is_some_and(|linear| !linear.is_layer()) {
        // Its constant is no longer the one that a rule would read.
        return Err(Reason::Changed);
    }
    rule_of(draft, node)
}

/// What a node does with the affines that come to it.
///
/// # Errors
/// A refusal at the node, where they cannot pass and cannot stay.
pub fn step_forward(draft: &Draft, node: NodeId, inputs: &[Option<Affine>]) -> Result<Step, Refusal> {
    let refuse = |reason| Refusal::new(reason, draft.graph.name(node));
    let at = draft.at(node);
    if inputs.iter().enumerate().any(|(slot, carried)| contradicts(carried.as_ref(), at.shape(slot))) {
        return Err(refuse(Reason::UnknownShape));
    }
    let step = passable(draft, node).map_err(refuse)?.forward(&at, inputs).map_err(refuse)?;
    passes(draft, node, step)
}

/// Whether a value is known to have other extents than an affine of it: models that contradict themselves are read
/// all the same, and rules count on it.
pub fn contradicts(affine: Option<&Affine>, shape: Result<Shape, Reason>) -> bool {
    let differs = |affine: &Affine, shape: &Shape| {
        shape.len() != affine.rank()
            || shape.iter().enumerate().any(|(axis, dim)| {
                let along = [&affine.scale, &affine.shift].map(|numbers| numbers.shape()[axis]);
                along.iter().any(|&count| count != 1 && extent(dim).is_some_and(|extent| extent != count))
            })
    };
    affine.is_some_and(|affine| shape.is_ok_and(|shape| differs(affine, &shape)))
}

/// A rule sees the node as it is in the model, and alone: what passes there does not pass what the node adds
/// by now, and an activation stays as it is.
///
/// # Errors
/// A refusal at the node, where that stands in the way.
pub fn passes(draft: &Draft, node: NodeId, step: Step) -> Result<Step, Refusal> {
    let refuse = |reason| Err(Refusal::new(reason, draft.graph.name(node)));
    let changes = !step.folds.is_empty() || step.bypass.is_some();
    if !changes && draft.is_shifted(node) {
        return refuse(Reason::Changed);
    }
    if changes && draft.is_of_activation(node) { refuse(Reason::Activation) } else { Ok(step) }
}

impl Wave {
    /// Whether nothing is wanted on what carries something: it would have to be in two bases at once.
    ///
    /// # Errors
    /// A refusal at a value that would have to be.
    pub fn in_one_basis(self, draft: &Draft) -> Result<Self, Refusal> {
        match self.wanted.iter().find(|value| self.carried.contains(value)) {
            Some(&value) => Err(Refusal::new(Reason::ResidualStream, draft.graph.value_name(value))),
            None => Ok(self),
        }
    }

    /// Whether an operator makes a value that takes a shift in, while the scale goes on: a constant that is added right
    /// behind it belongs to what it adds, and must not be carried further.
    fn shifts(&self, draft: &Draft, value: ValueId) -> bool {
        let takes = |fold: &&Fold| matches!(fold.side, Side::Operand(_)) && !fold.affine.has_no_shift();
        let made = |fold: &Fold| draft.graph.only_output(fold.node).map(|made| draft.source(made));
        self.folds.iter().filter(takes).any(|fold| made(fold) == Some(draft.source(value)))
    }

    /// How much a wave found so far.
    pub fn mark(&self) -> [usize; 5] {
        let Wave { folds, bypass, merges, makes, wanted, .. } = self;
        [folds.len(), bypass.len(), merges.len(), makes.len(), wanted.len()]
    }

    /// Forgets what a way found that led nowhere.
    pub fn back_to(&mut self, [folds, bypass, merges, makes, wanted]: [usize; 5]) {
        self.folds.truncate(folds);
        self.bypass.truncate(bypass);
        self.merges.truncate(merges);
        self.makes.truncate(makes);
        self.wanted.truncate(wanted);
    }

    /// Notes what a node takes, and whether an Add has to be made for it.
    ///
    /// # Errors
    /// As [`Wave::take`], and where it would go into an Add that another fold replaces.
    pub fn note(
        &mut self,
        draft: &Draft,
        node: NodeId,
        (side, mut affine): (Side, Affine),
        by_place: bool,
    ) -> Result<(), Refusal> {
        // Where it is for each place, what the node adds already becomes an Add as well.
        if (by_place || !affine.has_no_shift()) && !draft.makes.contains(&node) && !self.makes.contains(&node)
        {
            let slots =
                linear(draft.graph.domain_op(node)).and_then(|linear| linear.slots(&draft.at(node)).ok());
            let has_place = slots.is_some_and(|slots| slots.bias.is_some()) && !by_place;
            if !has_place && draft.loses_bias(node) {
                return Err(Refusal::new(Reason::Changed, draft.graph.name(node)));
            }
            if !has_place && draft.bias_add(node).is_none() {
                if !affine.has_no_shift() && softmax::ignores(draft, node, side, &affine.shift) {
                    affine = Affine::scale(affine.scale);
                } else {
                    self.makes.push(node);
                }
            }
        }
        let site = self.site;
        self.take(draft, Fold { node, side, affine, site })
    }

    /// Notes what a node takes into its constants, if it can.
    ///
    /// # Errors
    /// A refusal at the node, where it cannot.
    pub fn take(&mut self, draft: &Draft, fold: Fold) -> Result<(), Refusal> {
        let Fold { node, side, affine, .. } = &fold;
        check(&draft.at(*node), *side, affine)
            .map_err(|reason| Refusal::new(reason, draft.graph.name(*node)))?;
        self.folds.push(fold);
        Ok(())
    }
}
