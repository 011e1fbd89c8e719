//! Forward propagation of one affine to every reader, and the parts that it shares with [backward
//! propagation](super::backward).
//!
//! A propagation only looks. It returns what would have to be done, or the first reason why it cannot be.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::affine::Affine;
use crate::affine::fold::{Fold, Rule, Side, Step};
use crate::affine::item::{Item, Items, Merge};
use crate::affine::linear::elementwise::beside_positions;
use crate::affine::linear::{check, linear};
use crate::affine::propagate::movements::across;
use crate::affine::propagate::overlay::{GraphOverlay, Way};
use crate::affine::propagate::precision::Crossing;
use crate::affine::propagate::{precision, rule_table, softmax};
use crate::affine::recognize::Part;
use crate::hash::{HashMap, HashSet};
use crate::ir::{NodeId, Reader, ValueId};
use crate::refusal::{Reason, Refusal};
use crate::shape::facts::{Shape, extent};

/// The largest number of parts in a row that one propagation may pass. Parts of a longer row are
/// merged first.
const PASSED: usize = 16;

/// The result of a propagation: all changes that let its part fold.
#[derive(Debug, Clone, Default)]
pub struct Propagation {
    /// The site that it is for.
    pub site: usize,
    /// The affines that nodes absorb into their constants, in order.
    pub folds: Vec<Fold>,
    /// Redundant nodes, and the input that replaces their result.
    pub bypass: Vec<(NodeId, usize)>,
    /// Other items that take the affine into theirs.
    pub merges: Vec<Merge>,
    /// Nodes behind which an Add is made.
    pub makes: Vec<NodeId>,
    /// Affines still needed on inputs of nodes, from their producers.
    pub wants: Vec<(NodeId, usize, Affine)>,
    /// The scales that factors of products are to absorb.
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
    overlay: &GraphOverlay,
    items: &Items,
    item: usize,
    affine: &Affine,
    kept: bool,
) -> (Result<Propagation, Refusal>, bool) {
    let whole = &items.all[item].part.affine;
    let goes = (!affine.has_no_scale() || whole.has_no_scale())
        && (!affine.has_no_shift() || whole.has_no_shift());
    let mut search = ForwardPropagation::new(overlay, items, item);
    search.goes = goes;
    search.positions.kept = kept;
    let found = search.all(affine);
    (found, search.positions.met.get())
}

/// A value on which backward propagation needs an affine that its other readers compensate for.
pub struct Compensation {
    pub value: ValueId,
    /// The inputs that need the affine.
    pub wanted: Vec<(NodeId, usize)>,
    /// The affine that all other readers absorb.
    pub inverse: Affine,
}

/// Sends what a propagation backward leaves on values that others read as well forward, to these others.
///
/// # Errors
/// A refusal at the first reader, in execution order, that cannot take it, or where the propagation
/// meets its own demand.
pub fn back(
    overlay: &GraphOverlay,
    items: &Items,
    item: usize,
    propagation: &mut Propagation,
    returned: &[Compensation],
) -> Result<(), Refusal> {
    let mut search = ForwardPropagation {
        joins: true,
        ..ForwardPropagation::new(overlay, items, item)
    };
    search.kept = returned
        .iter()
        .flat_map(|returned| returned.wanted.iter().copied())
        .collect();
    for Compensation { value, inverse, .. } in returned {
        search.arrive(*value, inverse.clone(), None, 0)?;
    }
    search.run(propagation)?;
    let begins = |value: &ValueId| {
        returned
            .iter()
            .any(|returned| overlay.source(returned.value) == *value)
    };
    propagation.carried = search
        .carried
        .keys()
        .copied()
        .filter(|value| !begins(value))
        .collect();
    Ok(())
}

/// The treatment of constants for each position that are added on the path.
struct Positions {
    kept: bool,
    met: Cell<bool>,
}

/// `q(a(x))` as `a'(q(x))`: with `a = (s, t)` and `q = (σ, τ)`, `a' = (s, σ·t + τ − s·τ)`.
fn commute(affine: &Affine, through: &Affine) -> Affine {
    let shift =
        &(&(&through.scale * &affine.shift) + &through.shift) - &(&affine.scale * &through.shift);
    Affine::new(affine.scale.clone(), shift)
}

/// The refusal by a part on the path that stays.
pub fn stays(overlay: &GraphOverlay, part: &Part) -> Refusal {
    let reason = Reason::NotLinear("a normalizer that stays".into());
    Refusal::new(reason, overlay.graph.value_name(part.output))
}

enum Next {
    /// A node, and the value through which the propagation reaches it.
    Node(NodeId, ValueId),
    Part(usize),
}

/// The affine that a value carries.
#[derive(Clone)]
struct Carried {
    affine: Affine,
    /// How many parts it has passed on its way.
    passed: usize,
}

struct ForwardPropagation<'d, 'a> {
    overlay: &'d GraphOverlay<'a>,
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
    /// Inputs that have the affine of their value already, and do not compensate for it.
    kept: HashSet<(NodeId, usize)>,
    positions: Positions,
}

impl<'d, 'a> ForwardPropagation<'d, 'a> {
    fn new(overlay: &'d GraphOverlay<'a>, items: &'d Items<'d>, item: usize) -> Self {
        let (carried, from, queue) = (HashMap::default(), HashMap::default(), BTreeMap::new());
        let kept = HashSet::default();
        let positions = Positions {
            kept: false,
            met: Cell::new(false),
        };
        ForwardPropagation {
            overlay,
            items,
            item,
            goes: false,
            joins: items.merge,
            carried,
            from,
            queue,
            kept,
            positions,
        }
    }

    /// From the part of the item to everything that takes the affine in.
    fn all(&mut self, affine: &Affine) -> Result<Propagation, Refusal> {
        let Item { part, site, .. } = &self.items.all[self.item];
        self.arrive(part.output, affine.clone(), None, 0)?;
        let mut propagation = Propagation {
            site: *site,
            ..Propagation::default()
        };
        self.run(&mut propagation)?;
        if !propagation.wants.is_empty() || !propagation.factors.is_empty() {
            propagation.carried = self.carried.keys().copied().collect();
        }
        Ok(propagation)
    }

    /// From where it has arrived.
    fn run(&mut self, propagation: &mut Propagation) -> Result<(), Refusal> {
        let (overlay, items) = (self.overlay, self.items);
        let mut met = HashSet::default();
        while let Some((_, next)) = self.queue.pop_first() {
            match next {
                // A diamond reads its value at several places, and is one part all the same.
                Next::Part(other) if !met.insert(other) => {}
                Next::Part(other) => {
                    let there = &items.all[other].part;
                    let input = overlay.source(there.input);
                    // In an invalid graph it may reach a part at an input that the part does not
                    // have.
                    let Some(Carried { affine, passed }) = self.carried.get(&input).cloned() else {
                        return Err(stays(overlay, there));
                    };
                    if !affine.broadcasts_with(&there.affine) {
                        return Err(Refusal::new(
                            Reason::UnknownShape,
                            overlay.graph.value_name(there.output),
                        ));
                    }
                    if !items.merge && propagation.shifts(overlay, input) {
                        return Err(Refusal::new(
                            Reason::Changed,
                            overlay.graph.value_name(there.output),
                        ));
                    }
                    if items.merge {
                        propagation.merges.push(Merge {
                            into: other,
                            affine,
                            before: true,
                        });
                    } else if passed == PASSED {
                        let at = overlay.graph.value_name(there.output);
                        return Err(Refusal::new(Reason::TooFar, at));
                    } else {
                        self.arrive(
                            there.output,
                            commute(&affine, &there.affine),
                            Some(input),
                            passed + 1,
                        )?;
                    }
                }
                Next::Node(node, value) => {
                    let step = self.step(node, value, &propagation.bypass);
                    // The next movements may separate axes that one movement merged.
                    let is_mixed =
                        matches!(&step, Err(refusal) if refusal.reason == Reason::MixedAxes);
                    let Carried { affine, passed } = &self.carried[&value];
                    if let Some((behind, affine)) =
                        is_mixed.then(|| across(overlay, value, affine)).flatten()
                    {
                        self.arrive(behind, affine, Some(value), *passed)?;
                        continue;
                    }
                    let step = step?;
                    for fold in step.folds {
                        propagation.note(overlay, node, fold, step.by_place)?;
                    }
                    if let Some(slot) = step.bypass {
                        if overlay
                            .graph
                            .input(node, slot)
                            .is_some_and(|read| propagation.shifts(overlay, read))
                        {
                            return Err(Refusal::new(Reason::Changed, overlay.graph.name(node)));
                        }
                        propagation.bypass.push((node, slot));
                    }
                    let from = if joins(overlay, node) {
                        Some(value)
                    } else {
                        is_scale_transparent(overlay, node)
                    };
                    let passed = self.carried[&value].passed;
                    propagation.wants.extend(
                        step.wants
                            .into_iter()
                            .map(|(slot, affine)| (node, slot, affine)),
                    );
                    propagation.factors.extend(
                        step.factors
                            .into_iter()
                            .map(|(slot, affine)| (node, slot, affine)),
                    );
                    for (slot, affine) in step.ways.into_iter().next().unwrap_or_default() {
                        if let Some(value) = overlay.graph.output(node, slot) {
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
        let graph = self.overlay.graph;
        if !affine.is_finite() {
            return Err(Refusal::new(Reason::NotFinite, graph.value_name(value)));
        }
        let has_scale = !affine.has_no_scale();
        let value = self.overlay.source(value);
        if let Some(from) = from.filter(|_| has_scale) {
            self.from.insert(value, from);
        }
        // It would be in two bases at once: of a value with itself a product is wanted in one, and made in another.
        if self
            .carried
            .insert(value, Carried { affine, passed })
            .is_some()
        {
            return Err(Refusal::new(
                Reason::ResidualStream,
                graph.value_name(value),
            ));
        }
        // Where one reader keeps it, the end may be that one.
        let is_kept = |(_, reader)| matches!(reader, Reader::Node { node, input } if self.kept.contains(&(node, input)));
        let ends = |_: &Refusal| has_scale && !self.overlay.readers(value).any(is_kept);
        if let Some(refusal) = self.overlay.dead_end(value, self.way()).filter(ends) {
            return Err(self.end(value, refusal));
        }
        for (name, reader) in self.overlay.readers(value) {
            match reader {
                Reader::Output => {
                    return Err(self.end(
                        value,
                        Refusal::new(Reason::GraphOutput, graph.value_name(name)),
                    ));
                }
                Reader::Capture { node } => {
                    return Err(self.end(
                        value,
                        Refusal::new(Reason::CapturedBySubgraph, graph.name(node)),
                    ));
                }
                Reader::Node { node, input } if !graph.reads_elements(node, input) => {}
                Reader::Node { node, input } if self.kept.contains(&(node, input)) => {}
                Reader::Node { node, .. } => {
                    let next = match self.overlay.owned.get(&node) {
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
        if self.items.merge {
            Way::Into
        } else {
            Way::Past
        }
    }

    /// Records that no scale propagates from this value, nor from values whose every path leads
    /// here: the next propagation need not come so far.
    fn end(&self, value: ValueId, refusal: Refusal) -> Refusal {
        // Where the propagation begins, the next one would see it as soon as read it here.
        let mut next = Some(value).filter(|value| self.from.contains_key(value));
        if next.is_none() {
            return refusal;
        }
        let why = Rc::new(refusal);
        while let Some(value) = next {
            self.overlay.set_dead_end(value, self.way(), &why);
            next = self.from.get(&value).copied();
        }
        Refusal::clone(&why)
    }

    fn step(
        &self,
        node: NodeId,
        value: ValueId,
        bypass: &[(NodeId, usize)],
    ) -> Result<Step, Refusal> {
        let overlay = self.overlay;
        if let Err(reason) = passable(overlay, node) {
            return Err(self.end(value, Refusal::new(reason, overlay.graph.name(node))));
        }
        // A node with many inputs should not look at all of them for each.
        if joins(overlay, node)
            && !self.carried[&value].affine.has_no_scale()
            && let Some(made) = overlay.graph.output(node, 0)
            && let Some(refusal) = overlay.dead_end(overlay.source(made), self.way())
        {
            return Err(self.end(value, refusal));
        }
        let inputs: Vec<Option<Affine>> = overlay
            .graph
            .inputs(node)
            .iter()
            .enumerate()
            .map(|(slot, input)| {
                let takes =
                    overlay.graph.reads_elements(node, slot) && !self.kept.contains(&(node, slot));
                let value = input.filter(|_| takes)?;
                self.carried
                    .get(&overlay.source(value))
                    .map(|carried| carried.affine.clone())
            })
            .collect();
        let beside = beside_positions(&overlay.at(node), &inputs);
        self.positions
            .met
            .set(self.positions.met.get() || beside.is_some());
        let step = match beside.filter(|_| self.positions.kept) {
            Some(step) => passable(overlay, node)
                .map_err(|reason| Refusal::new(reason, overlay.graph.name(node)))
                .and_then(|_| passes(overlay, node, step)),
            None => step_forward(overlay, node, &inputs),
        }?;
        // Not past other parts, each of which would repeat the walk: one after the other absorbs
        // its own.
        if !self.joins && !step.wants.is_empty() {
            return Err(Refusal::new(
                Reason::ResidualStream,
                overlay.graph.name(node),
            ));
        }
        let item = &self.items.all[self.item];
        let part = Some(&item.part).filter(|part| self.goes && !part.nodes.is_empty());
        let going = Crossing {
            part,
            bypass,
            is_bounded: item.is_bounded,
        };
        precision::forward(overlay, &going, node, &inputs, &step)
            .map(|()| step)
            .map_err(|reason| Refusal::new(reason, overlay.graph.name(node)))
    }
}

/// The rule for a node.
///
/// # Errors
/// The reason why there is no rule.
pub fn rule_of(overlay: &GraphOverlay, node: NodeId) -> Result<&'static dyn Rule, Reason> {
    if overlay.replaced.contains(&node) {
        // Its replacement may let the affine pass in the next repetition.
        return Err(Reason::Changed);
    }
    let rule = rule_table::rule_of(&overlay.at(node))?;
    // Such as zeros, which carry every scale, and may be none any more.
    if rule.reads_numbers() && overlay.is_touched(node) {
        Err(Reason::Changed)
    } else {
        Ok(rule)
    }
}

/// The input of a node with which it shares every scale, forward and backward, unless it refuses it or takes
/// it in.
pub fn is_scale_transparent(overlay: &GraphOverlay, node: NodeId) -> Option<ValueId> {
    let graph = overlay.graph;
    let read = (0..graph.inputs(node).len()).filter(|&slot| graph.reads_elements(node, slot));
    let inputs = read
        .filter_map(|slot| graph.input(node, slot))
        .map(|input| overlay.source(input));
    let mut varying = inputs.filter(|&input| !overlay.constants.is_constant(input));
    let (only, other) = (varying.next()?, varying.next());
    let is_scale_transparent =
        rule_table::rule(graph.domain_op(node)).is_some_and(|rule| rule.is_scale_transparent());
    (is_scale_transparent && other.is_none()).then_some(only)
}

/// Whether a node only puts values side by side, so that a scale of one of them is one of all.
fn joins(overlay: &GraphOverlay, node: NodeId) -> bool {
    overlay.graph.is(node, "Concat")
}

/// The rule through which an affine may propagate.
fn passable(overlay: &GraphOverlay, node: NodeId) -> Result<&'static dyn Rule, Reason> {
    let linear = linear(overlay.graph.domain_op(node));
    if overlay.is_touched(node) && linear.is_some_and(|linear| !linear.is_layer()) {
        // Its constant is no longer the one that a rule would read.
        return Err(Reason::Changed);
    }
    rule_of(overlay, node)
}

/// The step of a node for the affines of its inputs.
///
/// # Errors
/// A refusal at the node, where they cannot pass and cannot stay.
pub fn step_forward(
    overlay: &GraphOverlay,
    node: NodeId,
    inputs: &[Option<Affine>],
) -> Result<Step, Refusal> {
    let refuse = |reason| Refusal::new(reason, overlay.graph.name(node));
    let at = overlay.at(node);
    if inputs
        .iter()
        .enumerate()
        .any(|(slot, carried)| contradicts(carried.as_ref(), at.shape(slot)))
    {
        return Err(refuse(Reason::UnknownShape));
    }
    let step = passable(overlay, node)
        .map_err(refuse)?
        .forward(&at, inputs)
        .map_err(refuse)?;
    passes(overlay, node, step)
}

/// Whether a value is known to have other extents than an affine of it: models that contradict themselves are read
/// all the same, and rules count on it.
pub fn contradicts(affine: Option<&Affine>, shape: Result<Shape, Reason>) -> bool {
    let differs = |affine: &Affine, shape: &Shape| {
        shape.len() != affine.rank()
            || shape.iter().enumerate().any(|(axis, dim)| {
                let along = [&affine.scale, &affine.shift].map(|numbers| numbers.shape()[axis]);
                along
                    .iter()
                    .any(|&count| count != 1 && extent(dim).is_some_and(|extent| extent != count))
            })
    };
    affine.is_some_and(|affine| shape.is_ok_and(|shape| differs(affine, &shape)))
}

/// A rule sees the node alone, as the model has it: its new summand stops an affine that passes the
/// node itself, and an activation stays.
///
/// # Errors
/// A refusal at the node, where its new summand or activation stops the affine.
pub fn passes(overlay: &GraphOverlay, node: NodeId, step: Step) -> Result<Step, Refusal> {
    let refuse = |reason| Err(Refusal::new(reason, overlay.graph.name(node)));
    let changes = !step.folds.is_empty() || step.bypass.is_some();
    if !changes && overlay.is_shifted(node) {
        return refuse(Reason::Changed);
    }
    if changes && overlay.is_of_activation(node) {
        refuse(Reason::Activation)
    } else {
        Ok(step)
    }
}

impl Propagation {
    /// Whether nothing is wanted on what carries something: it would have to be in two bases at once.
    ///
    /// # Errors
    /// A refusal at a value that would have to be.
    pub fn in_one_basis(self, overlay: &GraphOverlay) -> Result<Self, Refusal> {
        match self
            .wanted
            .iter()
            .find(|value| self.carried.contains(value))
        {
            Some(&value) => Err(Refusal::new(
                Reason::ResidualStream,
                overlay.graph.value_name(value),
            )),
            None => Ok(self),
        }
    }

    /// Whether an operator absorbs a shift into its result while the scale propagates: a constant
    /// summand right behind it belongs to its bias, and must not be carried further.
    fn shifts(&self, overlay: &GraphOverlay, value: ValueId) -> bool {
        let takes =
            |fold: &&Fold| matches!(fold.side, Side::Operand(_)) && !fold.affine.has_no_shift();
        let made = |fold: &Fold| {
            overlay
                .graph
                .only_output(fold.node)
                .map(|made| overlay.source(made))
        };
        self.folds
            .iter()
            .filter(takes)
            .any(|fold| made(fold) == Some(overlay.source(value)))
    }

    /// How much a propagation found so far.
    pub fn mark(&self) -> [usize; 5] {
        let Propagation {
            folds,
            bypass,
            merges,
            makes,
            wanted,
            ..
        } = self;
        [
            folds.len(),
            bypass.len(),
            merges.len(),
            makes.len(),
            wanted.len(),
        ]
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
    /// As [`Propagation::take`], and where it would go into an Add that another fold replaces.
    pub fn note(
        &mut self,
        overlay: &GraphOverlay,
        node: NodeId,
        (side, mut affine): (Side, Affine),
        by_place: bool,
    ) -> Result<(), Refusal> {
        // Where it is for each place, what the node adds already becomes an Add as well.
        if (by_place || !affine.has_no_shift())
            && !overlay.makes.contains(&node)
            && !self.makes.contains(&node)
        {
            let slots = linear(overlay.graph.domain_op(node))
                .and_then(|linear| linear.slots(&overlay.at(node)).ok());
            let has_place = slots.is_some_and(|slots| slots.bias.is_some()) && !by_place;
            if !has_place && overlay.loses_bias(node) {
                return Err(Refusal::new(Reason::Changed, overlay.graph.name(node)));
            }
            if !has_place && overlay.bias_add(node).is_none() {
                if !affine.has_no_shift() && softmax::ignores(overlay, node, side, &affine.shift) {
                    affine = Affine::scale(affine.scale);
                } else {
                    self.makes.push(node);
                }
            }
        }
        let site = self.site;
        self.take(
            overlay,
            Fold {
                node,
                side,
                affine,
                site,
            },
        )
    }

    /// Notes what a node takes into its constants, if it can.
    ///
    /// # Errors
    /// A refusal at the node, where it cannot.
    pub fn take(&mut self, overlay: &GraphOverlay, fold: Fold) -> Result<(), Refusal> {
        let Fold {
            node, side, affine, ..
        } = &fold;
        check(&overlay.at(*node), *side, affine)
            .map_err(|reason| Refusal::new(reason, overlay.graph.name(*node)))?;
        self.folds.push(fold);
        Ok(())
    }
}
