//! Forward propagation of one affine to every reader.
//!
//! The overlay does not change. The result is the list of all changes that are needed, or the first
//! refusal.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::affine::Affine;
use crate::affine::item::{Item, Items, Merge};
use crate::affine::linear::elementwise::beside_positions;
use crate::affine::propagate::movements::across;
use crate::affine::propagate::node_step::{
    concatenates, passable, passes, step_forward, transparent_input,
};
use crate::affine::propagate::overlay::{GraphOverlay, Route};
use crate::affine::propagate::precision;
use crate::affine::propagate::precision::Crossing;
use crate::affine::propagate::propagation::{Compensation, Propagation};
use crate::affine::recognize::Part;
use crate::affine::rule::Step;
use crate::hash::{HashMap, HashSet};
use crate::ir::{NodeId, Reader, ValueId};
use crate::refusal::{Reason, Refusal};

/// The largest number of parts in a row that one propagation may pass. In a longer row, parts must
/// be merged first.
const PASSED: usize = 16;

/// Propagates an affine forward from the output of an item's part. The affine is that of the part,
/// or only its scale or shift.
///
/// Positions are constants that are added on the path and differ from place to place. By default
/// they become part of the shift. With `keeps_positions` they stay unchanged. The second result
/// says whether the propagation met positions, so that the caller can try the other treatment.
///
/// # Errors
/// A refusal at the first reader, in execution order, that cannot absorb or pass the affine.
pub(crate) fn forward(
    overlay: &GraphOverlay,
    items: &Items,
    item: usize,
    affine: &Affine,
    keeps_positions: bool,
) -> (Result<Propagation, Refusal>, bool) {
    let whole = &items.all[item].part.affine;
    let leaves_no_scale = !affine.has_no_scale() || whole.has_no_scale();
    let leaves_no_shift = !affine.has_no_shift() || whole.has_no_shift();
    let mut search = ForwardPropagation {
        removes_part: leaves_no_scale && leaves_no_shift,
        keeps_positions,
        ..ForwardPropagation::new(overlay, items, item)
    };
    let found = search.start_at_part(affine);
    (found, search.met_positions)
}

/// Propagates inverse affines forward to the readers that compensate for a backward propagation.
///
/// # Errors
/// A refusal at the first reader, in execution order, that cannot absorb or pass the inverse, or at
/// a value that the propagation reaches twice.
pub(crate) fn compensate(
    overlay: &GraphOverlay,
    items: &Items,
    item: usize,
    propagation: &mut Propagation,
    compensations: &[Compensation],
) -> Result<(), Refusal> {
    let kept = compensations
        .iter()
        .flat_map(|compensation| compensation.wanted.iter().copied());
    let mut search = ForwardPropagation {
        may_demand: true,
        kept: kept.collect(),
        ..ForwardPropagation::new(overlay, items, item)
    };
    for Compensation { value, inverse, .. } in compensations {
        search.arrive(*value, inverse.clone(), None, 0)?;
    }
    search.run(propagation)?;
    let mut carried = search.carried_values();
    for compensation in compensations {
        carried.remove(&overlay.source(compensation.value));
    }
    propagation.carried = carried;
    Ok(())
}

/// The refusal at a part that stays on the path.
pub(crate) fn stays(overlay: &GraphOverlay, part: &Part) -> Refusal {
    let reason = Reason::NotLinear("a normalizer that stays".into());
    Refusal::new(reason, overlay.graph.value_name(part.output))
}

/// Moves an affine `a` past another affine `q`: returns `a'` with `q(a(x)) = a'(q(x))`. If `a(x) =
/// s·x + t` and `q(x) = σ·x + τ`, then `a'(x) = s·x + σ·t + τ − s·τ`.
fn commute(affine: &Affine, through: &Affine) -> Affine {
    let shift =
        &(&(&through.scale * &affine.shift) + &through.shift) - &(&affine.scale * &through.shift);
    Affine::new(affine.scale.clone(), shift)
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
    /// The number of parts that the affine has passed.
    passed: usize,
}

struct ForwardPropagation<'d, 'a> {
    overlay: &'d GraphOverlay<'a>,
    items: &'d Items<'d>,
    item: usize,
    /// Whether neither the scale nor the shift of the item stays.
    removes_part: bool,
    /// Whether operands without an affine may need one from their producers.
    may_demand: bool,
    /// Whether added constants that differ from place to place stay unchanged.
    keeps_positions: bool,
    /// Whether the propagation met added constants that differ from place to place.
    met_positions: bool,
    carried: HashMap<ValueId, Carried>,
    /// Maps a value to an earlier value on its path, if every scale of the earlier value must also
    /// cross this value. If this value is a dead end, the earlier value is one, too.
    from: HashMap<ValueId, ValueId>,
    queue: BTreeMap<usize, Next>,
    /// Inputs that need the affine for which the other readers compensate. The propagation does not
    /// follow these inputs.
    kept: HashSet<(NodeId, usize)>,
}

impl<'d, 'a> ForwardPropagation<'d, 'a> {
    fn new(overlay: &'d GraphOverlay<'a>, items: &'d Items<'d>, item: usize) -> Self {
        ForwardPropagation {
            overlay,
            items,
            item,
            removes_part: false,
            may_demand: items.merge,
            keeps_positions: false,
            met_positions: false,
            carried: HashMap::default(),
            from: HashMap::default(),
            queue: BTreeMap::new(),
            kept: HashSet::default(),
        }
    }

    /// Propagates from the part of the item to every reader that absorbs the affine.
    fn start_at_part(&mut self, affine: &Affine) -> Result<Propagation, Refusal> {
        let Item { part, site, .. } = &self.items.all[self.item];
        self.arrive(part.output, affine.clone(), None, 0)?;
        let mut propagation = Propagation::for_site(*site);
        self.run(&mut propagation)?;
        if !propagation.wants.is_empty() || !propagation.factors.is_empty() {
            propagation.carried = self.carried_values();
        }
        Ok(propagation)
    }

    fn carried_values(&self) -> HashSet<ValueId> {
        self.carried.keys().copied().collect()
    }

    /// Propagates from all values that an affine has reached, in execution order.
    fn run(&mut self, propagation: &mut Propagation) -> Result<(), Refusal> {
        let mut met = HashSet::default();
        while let Some((_, next)) = self.queue.pop_first() {
            match next {
                Next::Node(node, value) => self.cross_node(propagation, node, value)?,
                // A part that reads its value at several nodes is crossed once.
                Next::Part(other) if met.insert(other) => self.cross_part(propagation, other)?,
                Next::Part(_) => {}
            }
        }
        Ok(())
    }

    /// Merges the affine into another part, or moves it past the part.
    fn cross_part(&mut self, propagation: &mut Propagation, other: usize) -> Result<(), Refusal> {
        let overlay = self.overlay;
        let part = &self.items.all[other].part;
        let input = overlay.source(part.input);
        // In an invalid graph, the affine may reach a part at a value that is not its input.
        let Some(Carried { affine, passed }) = self.carried.get(&input).cloned() else {
            return Err(stays(overlay, part));
        };
        let refuse = |reason| Err(Refusal::new(reason, overlay.graph.value_name(part.output)));
        if !affine.broadcasts_with(&part.affine) {
            return refuse(Reason::UnknownShape);
        }
        if self.items.merge {
            propagation.merges.push(Merge {
                into: other,
                affine,
                before: true,
            });
            return Ok(());
        }
        if propagation.shifts(overlay, input) {
            return refuse(Reason::Changed);
        }
        if passed == PASSED {
            return refuse(Reason::TooFar);
        }
        let behind = commute(&affine, &part.affine);
        self.arrive(part.output, behind, Some(input), passed + 1)
    }

    /// Applies the step of a node, and propagates the affines that the node does not absorb.
    fn cross_node(
        &mut self,
        propagation: &mut Propagation,
        node: NodeId,
        value: ValueId,
    ) -> Result<(), Refusal> {
        let overlay = self.overlay;
        let passed = self.carried[&value].passed;
        let step = match self.step(node, value, &propagation.bypass) {
            // Later movements may separate the axes that this movement merges, so the affine moves
            // past all these movements at once.
            Err(refusal) if refusal.reason == Reason::MixedAxes => {
                let (behind, affine) =
                    across(overlay, value, &self.carried[&value].affine).ok_or(refusal)?;
                return self.arrive(behind, affine, Some(value), passed);
            }
            step => step?,
        };
        for fold in step.folds {
            propagation.note(overlay, node, fold, step.by_place)?;
        }
        if let Some(slot) = step.bypass {
            let read = overlay.graph.input(node, slot);
            if read.is_some_and(|read| propagation.shifts(overlay, read)) {
                return Err(Refusal::new(Reason::Changed, overlay.graph.name(node)));
            }
            propagation.bypass.push((node, slot));
        }
        let from = if concatenates(overlay, node) {
            Some(value)
        } else {
            transparent_input(overlay, node)
        };
        let wants = step.wants.into_iter();
        propagation
            .wants
            .extend(wants.map(|(slot, affine)| (node, slot, affine)));
        let factors = step.factors.into_iter();
        propagation
            .factors
            .extend(factors.map(|(slot, affine)| (node, slot, affine)));
        for (slot, affine) in step.ways.into_iter().next().unwrap_or_default() {
            if let Some(value) = overlay.graph.output(node, slot) {
                self.arrive(value, affine, from, passed)?;
            }
        }
        Ok(())
    }

    /// Records the affine on a value, and queues all readers of the value.
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
        // A second affine would put the value in two bases at once. A product of a value with
        // itself, for example, reads one basis and produces another.
        let carried = Carried { affine, passed };
        if self.carried.insert(value, carried).is_some() {
            let name = graph.value_name(value);
            return Err(Refusal::new(Reason::ResidualStream, name));
        }
        // The recorded refusal may come from a reader in `kept`, which this propagation skips. So
        // the refusal does not apply to a value with a reader in `kept`.
        if has_scale
            && let Some(refusal) = self.overlay.dead_end(value, self.route())
            && !self.has_kept_reader(value)
        {
            return Err(self.end(value, refusal));
        }
        self.queue_readers(value)
    }

    fn has_kept_reader(&self, value: ValueId) -> bool {
        self.overlay.readers(value).any(|(_, reader)| match reader {
            Reader::Node { node, input } => self.kept.contains(&(node, input)),
            Reader::Output | Reader::Capture { .. } => false,
        })
    }

    fn queue_readers(&mut self, value: ValueId) -> Result<(), Refusal> {
        let graph = self.overlay.graph;
        for (name, reader) in self.overlay.readers(value) {
            let (node, input) = match reader {
                Reader::Output => {
                    let refusal = Refusal::new(Reason::GraphOutput, graph.value_name(name));
                    return Err(self.end(value, refusal));
                }
                Reader::Capture { node } => {
                    let refusal = Refusal::new(Reason::CapturedBySubgraph, graph.name(node));
                    return Err(self.end(value, refusal));
                }
                Reader::Node { node, input } => (node, input),
            };
            if !graph.reads_elements(node, input) || self.kept.contains(&(node, input)) {
                continue;
            }
            let next = match self.overlay.owned.get(&node) {
                Some(&other) if other != self.item => Next::Part(other),
                _ => Next::Node(node, value),
            };
            self.queue.insert(graph.place(node), next);
        }
        Ok(())
    }

    fn route(&self) -> Route {
        if self.items.merge {
            Route::IntoParts
        } else {
            Route::PastParts
        }
    }

    /// Records that no scale propagates from this value, nor from earlier values whose scales must
    /// all cross this value. So later propagations stop at these values.
    fn end(&self, value: ValueId, refusal: Refusal) -> Refusal {
        // If a propagation ends at its first value, nothing is recorded. A record would save
        // little, because the next propagation from this value meets the same reader in its first
        // steps.
        let mut next = Some(value).filter(|value| self.from.contains_key(value));
        if next.is_none() {
            return refusal;
        }
        let why = Rc::new(refusal);
        while let Some(value) = next {
            self.overlay.set_dead_end(value, self.route(), &why);
            next = self.from.get(&value).copied();
        }
        Refusal::clone(&why)
    }

    /// Finds the step of a node, which the propagation reaches through `value`.
    fn step(
        &mut self,
        node: NodeId,
        value: ValueId,
        bypass: &[(NodeId, usize)],
    ) -> Result<Step, Refusal> {
        let overlay = self.overlay;
        let name = overlay.graph.name(node);
        if let Err(reason) = passable(overlay, node) {
            return Err(self.end(value, Refusal::new(reason, name)));
        }
        // Without this check, the step of a Concat, which covers all its inputs, would be computed
        // again for each of the inputs.
        if concatenates(overlay, node)
            && !self.carried[&value].affine.has_no_scale()
            && let Some(made) = overlay.graph.output(node, 0)
            && let Some(refusal) = overlay.dead_end(overlay.source(made), self.route())
        {
            return Err(self.end(value, refusal));
        }
        let inputs = self.affines_of_inputs(node);
        let beside = beside_positions(&overlay.at(node), &inputs);
        self.met_positions |= beside.is_some();
        let step = match beside.filter(|_| self.keeps_positions) {
            Some(step) => passes(overlay, node, step)?,
            None => step_forward(overlay, node, &inputs)?,
        };
        // A propagation that passes other parts may not need affines from producers, because each
        // of these parts would repeat the search when it folds.
        if !self.may_demand && !step.wants.is_empty() {
            return Err(Refusal::new(Reason::ResidualStream, name));
        }
        let item = &self.items.all[self.item];
        let removes_nodes = self.removes_part && !item.part.nodes.is_empty();
        let crossing = Crossing {
            part: removes_nodes.then_some(&item.part),
            bypass,
            is_bounded: item.is_bounded,
        };
        precision::forward(overlay, &crossing, node, &inputs, &step)
            .map_err(|reason| Refusal::new(reason, name))?;
        Ok(step)
    }

    /// The affines that the inputs of a node carry.
    fn affines_of_inputs(&self, node: NodeId) -> Vec<Option<Affine>> {
        let slots = 0..self.overlay.graph.inputs(node).len();
        slots.map(|slot| self.affine_at(node, slot)).collect()
    }

    fn affine_at(&self, node: NodeId, slot: usize) -> Option<Affine> {
        let graph = self.overlay.graph;
        if !graph.reads_elements(node, slot) || self.kept.contains(&(node, slot)) {
            return None;
        }
        let value = self.overlay.source(graph.input(node, slot)?);
        Some(self.carried.get(&value)?.affine.clone())
    }
}
