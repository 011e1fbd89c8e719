//! One affine on its way backward, to what produces the value that it is on.
//!
//! A value with other readers stops it, unless all readers need the same affine, as both branches
//! of a rotary embedding need one scalar, and both ends of a roll one affine of channels. Such a
//! value waits until all its readers are known. Readers that need no affine may compensate for it:
//! then a residual stream changes its basis.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use crate::affine::Affine;
use crate::affine::fold::{Fold, Rule, Side, Step};
use crate::affine::item::{Item, Items, Merge};
use crate::affine::linear::elementwise::shrunk;
use crate::affine::propagate::forward::{
    Compensation, Propagation, contradicts, is_scale_transparent, passes, rule_of, step_forward,
};
use crate::affine::propagate::overlay::{GraphOverlay, Way};
use crate::affine::propagate::zeros::is_zeros;
use crate::affine::propagate::{forward, precision};
use crate::affine::recognize::Part;
use crate::hash::HashSet;
use crate::ir::{Graph, NodeId, Reader, ValueId};
use crate::onnx::operator::Category;
use crate::recipe::Numbers;
use crate::refusal::{Reason, Refusal};

/// How many nodes one propagation may visit backward, where several ways are open at each.
const BUDGET: usize = 4096;

/// How many readers may have to want the same on a value.
const READERS: usize = 64;

/// How many of the nodes that make a part's input are known by a propagation.
const MAKERS: usize = 256;

/// How far one propagation may go backward.
const DEPTH: usize = 512;

/// Sends an affine, that of a part or its scale alone, backward from the part's input.
///
/// # Errors
/// A refusal at the node or value that something else depends on, or that cannot take it.
pub fn backward(
    overlay: &GraphOverlay,
    items: &Items,
    item: usize,
    affine: &Affine,
) -> Result<Propagation, Refusal> {
    let start = &items.all[item].part;
    if start.nodes.is_empty() {
        // Its parameters are behind what the node itself computes.
        let maker = overlay.graph.producer(start.output).map(|(node, _)| node);
        let op = maker.map_or("", |node| overlay.graph.domain_op(node).1);
        let at = maker.map_or(overlay.graph.value_name(start.output), |node| {
            overlay.graph.name(node)
        });
        return Err(Refusal::new(Reason::NotLinear(op.into()), at));
    }
    let (alone, met) = attempt(overlay, items, item, affine, Mode::default());
    // All readers may need one affine: a scalar for all, an affine of channels for readers of the
    // other parts.
    let is_number = affine.is_number();
    let copies = |propagation: &Propagation| {
        propagation
            .folds
            .iter()
            .any(|fold| is_shared(overlay, fold.node))
    };
    match &alone {
        Err(_) if met.parts || (met.others && is_number) => {
            // A rotary embedding of some tokens spares its tables where the other tokens are scaled
            // beside it.
            let ways = [false, true]
                .into_iter()
                .filter(|spares| is_number || !spares);
            let mut all = ways.flat_map(|spares| together(overlay, items, item, affine, spares));
            all.find(Result::is_ok).unwrap_or(alone)
        }
        // Such as the tables of a rotary embedding, which queries and keys are multiplied by.
        Ok(propagation) if is_number && copies(propagation) => {
            let beyond = |propagation: &Result<Propagation, Refusal>| {
                propagation
                    .as_ref()
                    .is_ok_and(|propagation| !copies(propagation))
            };
            together(overlay, items, item, affine, true)
                .find(beyond)
                .unwrap_or(alone)
        }
        _ => alone,
    }
}

/// As above, where every reader of any value may need it: such as a mean beside its operand.
pub fn by_all(
    overlay: &GraphOverlay,
    items: &Items,
    item: usize,
    affine: &Affine,
) -> Option<Propagation> {
    let computes = !items.all[item].part.nodes.is_empty();
    computes.then(|| together(overlay, items, item, affine, false).find_map(Result::ok))?
}

/// By ways on which a value waits until each of its readers wants the same.
fn together(
    overlay: &GraphOverlay,
    items: &Items,
    item: usize,
    affine: &Affine,
    spares: bool,
) -> impl Iterator<Item = Result<Propagation, Refusal>> {
    let parts = [Takers::Together, Takers::Led, Takers::Apart].into_iter();
    // The last is as the one before where nobody led to the same.
    let mut leads = false;
    parts
        .filter(|&parts| affine.is_number() || parts == Takers::Together)
        .filter_map(move |parts| {
            let mode = Mode {
                joins: true,
                parts,
                spares,
                returns: false,
            };
            let (propagation, met) = (parts != Takers::Apart || leads)
                .then(|| attempt(overlay, items, item, affine, mode))?;
            leads = met.leads;
            Some(propagation)
        })
}

fn attempt(
    overlay: &GraphOverlay,
    items: &Items,
    item: usize,
    affine: &Affine,
    mode: Mode,
) -> (Result<Propagation, Refusal>, Met) {
    let Item { part, site, .. } = &items.all[item];
    let mut search = BackwardPropagation {
        mode,
        ..BackwardPropagation::new(overlay, items, item)
    };
    let mut propagation = Propagation {
        site: *site,
        ..Propagation::default()
    };
    let begun = search.value(&mut propagation, part.input, &Wanted::By(part), affine, 0);
    let done = begun.and_then(|()| search.all_waiting(&mut propagation));
    // Found from the consumer up; a producer's constants change first.
    (
        done.map(|()| propagation),
        Met {
            leads: search.makers.get().is_some(),
            ..search.met
        },
    )
}

/// Propagates a scale backward from the part's input, past values with other readers, which
/// compensate for it.
///
/// So the last normalizer of a residual stream goes that ends at an output: all that is written to the stream is multiplied
/// by its scale, and all that reads the stream divides by it.
///
/// # Errors
/// As [`backward`], and as [`forward::back`].
pub fn returning(
    overlay: &GraphOverlay,
    items: &Items,
    item: usize,
    affine: &Affine,
) -> Result<Propagation, Refusal> {
    let Item { part, site, .. } = &items.all[item];
    let mode = Mode {
        joins: true,
        returns: true,
        ..Mode::default()
    };
    let mut search = BackwardPropagation {
        mode,
        ..BackwardPropagation::new(overlay, items, item)
    };
    let mut propagation = Propagation {
        site: *site,
        ..Propagation::default()
    };
    search.value(&mut propagation, part.input, &Wanted::By(part), affine, 0)?;
    search.all_waiting(&mut propagation)?;
    let returned = search.returned;
    forward::back(overlay, items, item, &mut propagation, &returned)?;
    // Such as class tokens beside a reader that compensates.
    let first = propagation.wanted.len();
    let factors = std::mem::take(&mut propagation.factors);
    for want in std::mem::take(&mut propagation.wants)
        .into_iter()
        .chain(factors)
    {
        wanted(overlay, items, item, &mut propagation, want)?;
    }
    let again = |value: &&ValueId| {
        propagation.wanted[..first].contains(value) && !overlay.constants.is_constant(**value)
    };
    if let Some(&value) = propagation.wanted[first..].iter().find(again) {
        return Err(Refusal::new(
            Reason::ResidualStream,
            overlay.graph.value_name(value),
        ));
    }
    for Compensation {
        wanted, inverse, ..
    } in &returned
    {
        let wants = wanted.first().zip(inverse.inverse());
        propagation
            .wants
            .extend(wants.map(|(&(node, slot), affine)| (node, slot, affine)));
    }
    propagation.in_one_basis(overlay)
}

/// Sends what a propagation forward wants on an input of a node backward from there.
///
/// # Errors
/// As [`backward`].
pub fn wanted(
    overlay: &GraphOverlay,
    items: &Items,
    item: usize,
    propagation: &mut Propagation,
    (node, slot, affine): (NodeId, usize, Affine),
) -> Result<(), Refusal> {
    BackwardPropagation::new(overlay, items, item).inputs(propagation, node, &[(slot, affine)], 0)
}

/// For a scalar, past values whose other readers need it too, such as both halves of a rotary
/// embedding.
///
/// # Errors
/// As [`backward`], where all of them do not want the same either.
pub fn wanted_by_all(
    overlay: &GraphOverlay,
    items: &Items,
    item: usize,
    propagation: &mut Propagation,
    (node, slot, affine): (NodeId, usize, Affine),
) -> Result<(), Refusal> {
    let by = |mode| {
        let (mut search, mut propagation) = (
            BackwardPropagation {
                mode,
                ..BackwardPropagation::new(overlay, items, item)
            },
            propagation.clone(),
        );
        search.inputs(&mut propagation, node, &[(slot, affine.clone())], 0)?;
        search.all_waiting(&mut propagation)?;
        Ok(propagation)
    };
    let joined = |spares| {
        by(Mode {
            joins: true,
            spares,
            ..Mode::default()
        })
        .ok()
        .filter(|_| affine.is_number())
    };
    *propagation =
        by(Mode::default()).or_else(|why| joined(false).or_else(|| joined(true)).ok_or(why))?;
    Ok(())
}

/// A node, and the ways on from it, each enough by itself.
type Onward = (NodeId, Vec<Vec<(usize, Affine)>>);

/// The origin of an affine needed on a value.
enum Wanted<'p> {
    /// The part that it is of.
    By(&'p Part),
    /// A node, at an input.
    At(NodeId, usize),
    /// All nodes that are ever going to, each at an input.
    Together(Vec<(NodeId, usize)>),
}

impl Wanted<'_> {
    /// The inputs through which it reaches a value.
    fn inputs(&self, graph: &Graph) -> Vec<(NodeId, usize)> {
        match self {
            Wanted::By(part) => {
                let slots =
                    |&node: &NodeId| (0..graph.inputs(node).len()).map(move |slot| (node, slot));
                part.nodes.iter().flat_map(slots).collect()
            }
            &Wanted::At(node, slot) => vec![(node, slot)],
            Wanted::Together(nodes) => nodes.clone(),
        }
    }

    fn has(&self, node: NodeId, slot: usize) -> bool {
        match self {
            Wanted::By(part) => part.nodes.contains(&node),
            Wanted::At(one, input) => (*one, *input) == (node, slot),
            Wanted::Together(nodes) => nodes.contains(&(node, slot)),
        }
    }
}

/// The other readers of a value on which an affine is needed.
#[derive(Debug, PartialEq)]
enum Others {
    None,
    /// Nodes that take parts of it on which the affine is the identity.
    SeeNothing,
}

/// A value that others read too, which may want the same on it.
struct Waiting {
    value: ValueId,
    by: (NodeId, usize),
    affine: Affine,
    depth: usize,
}

/// The treatment of values with other readers, and of constants.
#[derive(Clone, Copy, Default)]
struct Mode {
    /// Whether a value that several nodes read waits until all of them want the same.
    joins: bool,
    /// Nodes that may need an affine of one part of a value whose other parts have other readers.
    parts: Takers,
    /// Whether a scalar propagates further instead of folding into a constant with other readers.
    spares: bool,
    /// Whether readers that need no affine compensate for it.
    returns: bool,
}

/// Which node that takes a part of a value wants something of that part alone, where all others take other ones; else they
/// have to want the same of all of it.
#[derive(Clone, Copy, Default, PartialEq)]
enum Takers {
    /// None does.
    #[default]
    Together,
    /// One beside which no other leads to where the affine comes from.
    Led,
    /// Each does.
    Apart,
}

struct BackwardPropagation<'d, 'a> {
    overlay: &'d GraphOverlay<'a>,
    items: &'d Items<'d>,
    item: usize,
    budget: usize,
    mode: Mode,
    waiting: Vec<Waiting>,
    met: Met,
    returned: Vec<Compensation>,
    /// The producers upstream of the part's input, computed on demand.
    makers: OnceCell<HashSet<NodeId>>,
}

/// The other readers met on the path.
#[derive(Clone, Copy, Default)]
struct Met {
    /// A reader that sees the affine.
    others: bool,
    /// Something that takes other parts of it.
    parts: bool,
    /// Whether it was looked for where others lead.
    leads: bool,
}

impl<'d, 'a> BackwardPropagation<'d, 'a> {
    fn new(overlay: &'d GraphOverlay<'a>, items: &'d Items<'d>, item: usize) -> Self {
        let (waiting, met, returned, makers) = (vec![], Met::default(), vec![], OnceCell::new());
        BackwardPropagation {
            overlay,
            items,
            item,
            budget: BUDGET,
            mode: Mode::default(),
            waiting,
            met,
            returned,
            makers,
        }
    }

    /// Whether a node may need an affine of its part of a value while other readers take other
    /// parts. Those may lead to the same place, as class tokens do beside a rotary embedding.
    fn are_apart(&self, value: ValueId, node: NodeId) -> bool {
        if self.mode.parts != Takers::Led {
            return self.mode.parts == Takers::Apart;
        }
        let mut others = self
            .overlay
            .readers(value)
            .filter_map(|(_, reader)| match reader {
                Reader::Node { node: other, input } if other != node => self
                    .overlay
                    .graph
                    .reads_elements(other, input)
                    .then_some(other),
                _ => None,
            });
        let makers = self.makers.get_or_init(|| self.makers());
        !others.any(|other| makers.contains(&other))
    }

    /// The last nodes that the part's input is made by.
    fn makers(&self) -> HashSet<NodeId> {
        let graph = self.overlay.graph;
        let maker = |value| {
            graph
                .producer(self.overlay.source(value))
                .map(|(node, _)| (graph.place(node), node))
        };
        let mut next: BTreeSet<(usize, NodeId)> = maker(self.items.all[self.item].part.input)
            .into_iter()
            .collect();
        let mut makers = HashSet::default();
        while let Some((_, node)) = next.pop_last().filter(|_| makers.len() < MAKERS) {
            makers.insert(node);
            next.extend(
                graph
                    .inputs(node)
                    .iter()
                    .flatten()
                    .filter_map(|&input| maker(input)),
            );
        }
        makers
    }

    /// Goes on from the values that wait, the last one first: all that can want something of it did so.
    fn all_waiting(&mut self, propagation: &mut Propagation) -> Result<(), Refusal> {
        let graph = self.overlay.graph;
        let place = |value| graph.producer(value).map(|(node, _)| graph.place(node));
        while let Some(last) = self
            .waiting
            .iter()
            .map(|waiting| waiting.value)
            .max_by_key(|&value| place(value))
        {
            let waits = std::mem::take(&mut self.waiting).into_iter();
            let (mut here, others): (Vec<Waiting>, _) =
                waits.partition(|waiting| waiting.value == last);
            self.waiting = others;
            here.sort_by_key(|waiting| waiting.by);
            let depth = here[0].depth;
            let mut by: Vec<(NodeId, usize)> = here.iter().map(|waiting| waiting.by).collect();
            by.dedup();
            let agreed = agreed(graph, &here);
            let affine =
                agreed.ok_or_else(|| Refusal::new(Reason::OtherReader, graph.value_name(last)))?;
            self.value(propagation, last, &Wanted::Together(by), &affine, depth)?;
        }
        Ok(())
    }

    /// The affine is wanted on this value, which nobody else may read.
    fn value(
        &mut self,
        propagation: &mut Propagation,
        value: ValueId,
        wanted: &Wanted,
        affine: &Affine,
        depth: usize,
    ) -> Result<(), Refusal> {
        let Some((node, ways)) = self.ways(propagation, value, wanted, affine, depth)? else {
            return Ok(());
        };
        let before = propagation.mark();
        let (waiting, returned) = (self.waiting.len(), self.returned.len());
        let mut last = None;
        for way in &ways {
            match self.inputs(propagation, node, way, depth) {
                Ok(()) => return Ok(()),
                Err(refusal) => last = Some(refusal),
            }
            propagation.back_to(before);
            self.waiting.truncate(waiting);
            self.returned.truncate(returned);
        }
        let ahead = is_scale_transparent(self.overlay, node)
            .and_then(|input| self.overlay.dead_end(input, Way::Back));
        if let Some(refusal) = &ahead {
            self.end(value, wanted, affine, refusal);
        }
        let not_linear = || {
            Refusal::new(
                self.overlay.at(node).not_linear(),
                self.overlay.graph.name(node),
            )
        };
        Err(ahead.or(last).unwrap_or_else(not_linear))
    }

    /// Notes that no scale is taken in beyond a value, whoever wants it.
    fn end(&self, value: ValueId, wanted: &Wanted, affine: &Affine, refusal: &Refusal) {
        if !affine.has_no_scale() && !matches!(wanted, Wanted::By(_)) {
            self.overlay.set_dead_end(
                self.overlay.source(value),
                Way::Back,
                &Rc::new(refusal.clone()),
            );
        }
    }

    /// The producer of the value on which an affine is needed, and the alternatives behind it;
    /// `None` where it is absorbed.
    ///
    /// Kept apart from the recursion, whose frames lie on the stack for every node of a path.
    #[inline(never)]
    fn ways(
        &mut self,
        propagation: &mut Propagation,
        value: ValueId,
        wanted: &Wanted,
        affine: &Affine,
        depth: usize,
    ) -> Result<Option<Onward>, Refusal> {
        if affine.is_identity() {
            return Ok(None);
        }
        let graph = self.overlay.graph;
        let refuse = |reason| Refusal::new(reason, graph.value_name(value));
        if !affine.is_finite() {
            return Err(refuse(Reason::NotFinite));
        }
        self.visit(depth).map_err(refuse)?;
        let value = self.overlay.source(value);
        if affine.has_no_shift() && is_zeros(self.overlay, value) {
            return Ok(None);
        }
        propagation.wanted.push(value);
        if self.overlay.constants.is_constant(value) {
            let &Wanted::At(node, slot) = wanted else {
                return Err(refuse(Reason::GraphInput));
            };
            let (side, affine, site) = (Side::Constant(slot), affine.clone(), propagation.site);
            return propagation
                .take(
                    self.overlay,
                    Fold {
                        node,
                        side,
                        affine,
                        site,
                    },
                )
                .map(|()| None);
        }
        if self.waits_for_others(value, wanted, affine, depth, &refuse)? {
            return Ok(None);
        }
        if let Some(&other) = self.items.by_output.get(&value) {
            propagation
                .merges
                .push(self.merge(other, affine).map_err(refuse)?);
            return Ok(None);
        }
        if let Some(refusal) = self
            .overlay
            .dead_end(value, Way::Back)
            .filter(|_| !affine.has_no_scale())
        {
            return Err(refusal);
        }
        let end = |refusal: Refusal| {
            self.end(value, wanted, affine, &refusal);
            refusal
        };
        let Some((node, slot)) = graph.producer(value) else {
            return Err(end(refuse(Reason::GraphInput)));
        };
        let refuse = |reason| Refusal::new(reason, graph.name(node));
        let rule = rule_of(self.overlay, node).map_err(refuse).map_err(end)?;
        if contradicts(Some(affine), self.overlay.at(node).output_shape(slot)) {
            return Err(refuse(Reason::UnknownShape));
        }
        let step = passes(
            self.overlay,
            node,
            self.step(node, rule, slot, affine).map_err(refuse)?,
        )?;
        precision::backward(
            self.overlay,
            &self.items.all[self.item],
            node,
            affine,
            &step,
        )
        .map_err(refuse)?;
        for fold in step.folds {
            propagation.note(self.overlay, node, fold, step.by_place)?;
        }
        let mut ways = step.ways;
        if self.mode.joins {
            ways.sort_by_key(|way| self.waits(node, way));
        }
        Ok(Some((node, ways)))
    }

    /// Counts one more node that is visited, so far from where it began.
    fn visit(&mut self, depth: usize) -> Result<(), Reason> {
        self.budget = self.budget.checked_sub(1).ok_or(Reason::TooFar)?;
        if depth > DEPTH {
            Err(Reason::TooFar)
        } else {
            Ok(())
        }
    }

    /// Whether a value waits until all its other readers need the same affine. Otherwise they do
    /// not see it, or compensate for it.
    fn waits_for_others(
        &mut self,
        value: ValueId,
        wanted: &Wanted,
        affine: &Affine,
        depth: usize,
        refuse: &dyn Fn(Reason) -> Refusal,
    ) -> Result<bool, Refusal> {
        let alone = self.nobody_else(value, wanted, affine);
        if let Ok(others) = &alone {
            self.met.parts |= *others == Others::SeeNothing;
            if !self.mode.joins || !self.has_results(wanted) {
                return Ok(false);
            }
        }
        self.met.others |= alone
            .as_ref()
            .is_err_and(|refusal| refusal.reason == Reason::OtherReader);
        if let &Wanted::At(node, slot) = wanted
            && self.mode.joins
            && self.overlay.readers(value).count() <= READERS
        {
            self.waiting.push(Waiting {
                value,
                by: (node, slot),
                affine: affine.clone(),
                depth,
            });
            return Ok(true);
        }
        let Err(refusal) = alone else {
            return Ok(false);
        };
        let inverse = affine
            .inverse()
            .filter(|_| self.mode.returns)
            .ok_or(refusal)?;
        precision::returned(self.overlay, value, &inverse).map_err(refuse)?;
        self.returned.push(Compensation {
            value,
            wanted: wanted.inputs(self.overlay.graph),
            inverse,
        });
        Ok(false)
    }

    /// Whether the affines come from one node with several results, each with its own: as a Split
    /// of tokens.
    fn has_results(&self, wanted: &Wanted) -> bool {
        let graph = self.overlay.graph;
        let read = |&value: &ValueId| self.overlay.readers(value).next().is_some();
        matches!(wanted, &Wanted::At(node, _) if graph.outputs(node).iter().flatten().filter(|value| read(value)).count() > 1)
    }

    /// The affine that another part absorbs, if it makes the value. A part that is being folded
    /// absorbs nothing.
    fn merge(&self, into: usize, affine: &Affine) -> Result<Merge, Reason> {
        if into == self.item {
            return Err(Reason::ResidualStream);
        }
        if !self.items.merge {
            return Err(Reason::NotLinear("a normalizer that stays".into()));
        }
        if !affine.broadcasts_with(&self.items.all[into].part.affine) {
            return Err(Reason::UnknownShape);
        }
        Ok(Merge {
            into,
            affine: affine.clone(),
            before: false,
        })
    }

    /// The step of a rule for an affine needed behind its node, or for one needed on the whole
    /// operand instead.
    fn step(
        &self,
        node: NodeId,
        rule: &dyn Rule,
        slot: usize,
        affine: &Affine,
    ) -> Result<Step, Reason> {
        let step = rule.backward(&self.overlay.at(node), slot, affine);
        let takes = step.as_ref().is_ok_and(|step| !step.folds.is_empty());
        let is_spared = self.mode.spares && takes && is_shared(self.overlay, node);
        // An affine on a part of a stream applies to all of it: one basis serves all tokens.
        let axes = affine.axes().len();
        let parts = |step: &Step| {
            step.ways
                .iter()
                .flatten()
                .any(|(_, wanted)| wanted.axes().len() > axes)
        };
        let is_whole = self.mode.returns && step.as_ref().is_ok_and(parts);
        if !self.mode.joins {
            return self.or_whole(node, affine, step, &parts);
        }
        match is_whole || is_spared || !self.has_own(node, &step) {
            true => self.whole(node, affine).map_or(step, Ok),
            false => step,
        }
    }

    /// Behind a node that reads a part of a value: where the other parts must stay, no operator may
    /// be able to absorb that, as for the scores that a relative shift reads. Where the other parts
    /// have no reader, the whole value may take the affine.
    fn or_whole(
        &self,
        node: NodeId,
        affine: &Affine,
        step: Result<Step, Reason>,
        parts: &dyn Fn(&Step) -> bool,
    ) -> Result<Step, Reason> {
        let whole = || self.whole(node, affine);
        match step {
            Ok(mut step) if step.folds.is_empty() && parts(&step) => {
                step.ways
                    .extend(whole().into_iter().flat_map(|whole| whole.ways));
                Ok(step)
            }
            // How much there is of it may not be known.
            Err(reason) => whole().ok_or(reason),
            Ok(step) => Ok(step),
        }
    }

    /// Whether something would be wanted on a value that others read too.
    fn waits(&self, node: NodeId, way: &[(usize, Affine)]) -> bool {
        way.iter()
            .filter(|(_, affine)| !affine.is_identity())
            .any(|(slot, affine)| {
                let input = self
                    .overlay
                    .graph
                    .input(node, *slot)
                    .map(|input| self.overlay.source(input));
                input.is_some_and(|input| {
                    self.nobody_else(input, &Wanted::At(node, *slot), affine)
                        .is_err()
                })
            })
    }

    fn inputs(
        &mut self,
        propagation: &mut Propagation,
        node: NodeId,
        way: &[(usize, Affine)],
        depth: usize,
    ) -> Result<(), Refusal> {
        for (slot, affine) in way {
            let Some(input) = self.overlay.graph.input(node, *slot) else {
                return Err(Refusal::new(
                    Reason::NotConstant,
                    self.overlay.graph.name(node),
                ));
            };
            self.value(
                propagation,
                input,
                &Wanted::At(node, *slot),
                affine,
                depth + 1,
            )?;
        }
        Ok(())
    }

    /// Whether nobody else reads what a node wants something of, or it does not matter.
    fn has_own(&self, node: NodeId, step: &Result<Step, Reason>) -> bool {
        let has_own = |(slot, affine): &(usize, Affine)| {
            let input = self
                .overlay
                .graph
                .input(node, *slot)
                .map(|input| self.overlay.source(input));
            let own = |input| match self.nobody_else(input, &Wanted::At(node, *slot), affine) {
                Ok(others) => others == Others::None || self.are_apart(input, node),
                Err(_) => false,
            };
            affine.scale.len() == 1 || input.is_some_and(own)
        };
        step.as_ref()
            .is_ok_and(|step| !step.folds.is_empty() || step.ways.iter().flatten().all(has_own))
    }

    /// The affine of a whole operand of which a node reads a part: a scalar, or one that is
    /// constant along the axes of selection. Other nodes read the other parts.
    fn whole(&self, node: NodeId, affine: &Affine) -> Option<Step> {
        let graph = self.overlay.graph;
        let read = (0..graph.inputs(node).len()).filter(|&slot| graph.reads_elements(node, slot));
        let varies = |slot: &usize| {
            graph.input(node, *slot).is_some_and(|input| {
                !self
                    .overlay
                    .constants
                    .is_constant(self.overlay.source(input))
            })
        };
        let slot = read.filter(varies).min()?;
        let at = self.overlay.at(node);
        let rank = at.rank(slot).ok()?;
        graph.only_output(node)?;
        let reshaped = |shape: &dyn Fn(&[usize]) -> Vec<usize>| {
            let numbers = |numbers: &Numbers| {
                numbers
                    .reshape(&shape(numbers.shape()))
                    .ok_or(Reason::UnknownShape)
            };
            affine.try_map(numbers).ok()
        };
        let wider =
            |axis: usize| move |shape: &[usize]| [&shape[..axis], &[1], &shape[axis..]].concat();
        let wanted: Vec<Affine> = match rank.checked_sub(affine.rank()) {
            _ if affine.is_number() => reshaped(&|_| vec![1; rank]).into_iter().collect(),
            Some(0) => vec![affine.clone()],
            // One place of an axis, which the result lacks.
            Some(1) => (0..rank)
                .filter_map(|axis| reshaped(&wider(axis)))
                .collect(),
            _ => vec![],
        };
        // A product has one factor of each side, whatever the other one could take in.
        if affine.is_number() && graph.category(node) == Some(Category::MatrixProduct) {
            return wanted
                .into_iter()
                .next()
                .map(|wanted| Step::pass_on(slot, wanted));
        }
        // Where it broadcasts, it may have one number for many of the result, and nothing would be right for all of those.
        let has_all = |wanted: &Affine| shrunk(&at, slot, wanted).is_ok();
        wanted.into_iter().filter(has_all).find_map(|wanted| {
            let mut inputs = vec![None; graph.inputs(node).len()];
            inputs[slot] = Some(wanted.clone());
            let step = step_forward(self.overlay, node, &inputs).ok()?;
            let same = |(_, made): &(usize, Affine)| match affine.is_number() {
                true => made.has_no_shift() && *made.scale == *affine.scale,
                false => made == affine,
            };
            let goes_on = step.only_passes_on() && step.ways.iter().flatten().all(same);
            goes_on.then(|| Step::pass_on(slot, wanted))
        })
    }

    /// All other readers must see only values that the affine leaves unchanged.
    fn nobody_else(
        &self,
        value: ValueId,
        wanted: &Wanted,
        affine: &Affine,
    ) -> Result<Others, Refusal> {
        let graph = self.overlay.graph;
        let mut others = Others::None;
        for (name, reader) in self.overlay.readers(value) {
            let (node, input) = match reader {
                Reader::Output => {
                    return Err(Refusal::new(Reason::GraphOutput, graph.value_name(name)));
                }
                Reader::Capture { node } => {
                    return Err(Refusal::new(Reason::CapturedBySubgraph, graph.name(node)));
                }
                Reader::Node { node, input } => (node, input),
            };
            if wanted.has(node, input) || !graph.reads_elements(node, input) {
                continue;
            }
            if !self.sees_nothing(node, input, affine) {
                return Err(Refusal::new(Reason::OtherReader, graph.name(node)));
            }
            others = Others::SeeNothing;
        }
        Ok(others)
    }

    /// Whether a reader takes only parts of the value on which the affine is the identity.
    fn sees_nothing(&self, node: NodeId, input: usize, affine: &Affine) -> bool {
        let is_nowhere =
            !affine.scale.iter().any(|&s| s == 1.0) || !affine.shift.iter().any(|&t| t == 0.0);
        // Of what a sum or a product takes whole there would be something left.
        if is_nowhere && self.overlay.graph.category(node) == Some(Category::Arithmetic) {
            return false;
        }
        let mut inputs = vec![None; self.overlay.graph.inputs(node).len()];
        inputs[input] = Some(affine.clone());
        let step = step_forward(self.overlay, node, &inputs);
        step.is_ok_and(|step| {
            step.only_passes_on() && step.ways.iter().flatten().all(|(_, a)| a.is_identity())
        })
    }
}

/// The affine that all requests at a value share; `None` where they differ.
fn agreed(graph: &Graph, here: &[Waiting]) -> Option<Affine> {
    let mut wanted = here
        .chunk_by(|one, other| one.by == other.by)
        .map(|of_one| {
            let (first, others) = of_one.split_first()?;
            // Each result of a node, as of a Split, is a part. Two requests of one result do not count
            // as one.
            let has_each = of_one.len() <= graph.outputs(first.by.0).len();
            let all = others.iter().try_fold(first.affine.clone(), |all, next| {
                all.broadcasts_with(&next.affine)
                    .then(|| all.then(&next.affine))
            });
            all.filter(|_| has_each)
        });
    let affine = wanted.next()??;
    wanted
        .all(|other| other.as_ref() == Some(&affine))
        .then_some(affine)
}

/// Whether a node multiplies by many constants that others read as well: a table of angles, or one of tokens that is the head,
/// too.
fn is_shared(overlay: &GraphOverlay, node: NodeId) -> bool {
    let graph = overlay.graph;
    let mut constants = graph
        .inputs(node)
        .iter()
        .flatten()
        .map(|&input| overlay.source(input));
    let multiplies = graph.is(node, "Mul") || graph.category(node) == Some(Category::MatrixProduct);
    multiplies
        && constants.any(|input| {
            let is_table =
                overlay.constants.is_constant(input) && overlay.constants.len(input) != Some(1);
            is_table && overlay.readers(moved_from(overlay, input)).count() > 1
        })
}

/// The constant behind movements.
fn moved_from(overlay: &GraphOverlay, constant: ValueId) -> ValueId {
    let maker = overlay
        .graph
        .producer(constant)
        .filter(|&(node, _)| overlay.graph.is_movement(node));
    maker
        .and_then(|(node, _)| overlay.graph.input(node, 0))
        .map_or(constant, |input| overlay.source(input))
}
