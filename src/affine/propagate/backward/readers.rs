//! Decides whether the other readers of a value allow an affine that backward propagation needs on
//! the value.

use std::collections::BTreeSet;

use crate::affine::Affine;
use crate::affine::propagate::backward::PartialReaders;
use crate::affine::propagate::backward::state::{
    BackwardPropagation, Demand, DemandSource, Waiting,
};
use crate::affine::propagate::node_step::step_forward;
use crate::affine::propagate::overlay::GraphOverlay;
use crate::affine::propagate::precision;
use crate::affine::propagate::propagation::Compensation;
use crate::affine::rule::Step;
use crate::hash::HashSet;
use crate::ir::{Graph, NodeId, Reader, ValueId};
use crate::onnx::operator::Category;
use crate::refusal::{Reason, Refusal};

/// An affine waits for the other readers of a value only if the value has at most this many
/// readers.
const READERS: usize = 64;

/// The largest number of producers that are collected upstream of a part's input.
const PRODUCERS: usize = 256;

/// The kind of the other readers of a value on which an affine is needed, if the affine affects
/// none of these readers.
#[derive(Debug, PartialEq)]
pub(super) enum Others {
    None,
    /// The other readers take only parts of the value on which the affine is the identity.
    Unaffected,
}

impl BackwardPropagation<'_, '_> {
    /// Whether the affine waits at a value until all other readers need the same affine. If not,
    /// the other readers are unaffected or compensate for the affine.
    ///
    /// # Errors
    /// A refusal, if another reader is affected, and the affine can neither wait nor be
    /// compensated.
    pub(super) fn waits_for_others(
        &mut self,
        value: ValueId,
        demand: &Demand,
    ) -> Result<bool, Refusal> {
        let others = self.other_readers(value, &demand.source, demand.affine);
        match &others {
            Ok(others) => {
                self.met.reader_of_other_parts |= *others == Others::Unaffected;
                if !self.mode.waits_for_readers || !self.has_read_results(&demand.source) {
                    return Ok(false);
                }
            }
            Err(refusal) => self.met.affected_reader |= refusal.reason == Reason::OtherReader,
        }
        if let DemandSource::Input(node, slot) = demand.source
            && self.mode.waits_for_readers
            && self.overlay.readers(value).count() <= READERS
        {
            self.waiting.push(Waiting {
                value,
                by: (node, slot),
                affine: demand.affine.clone(),
                depth: demand.depth,
            });
            return Ok(true);
        }
        if let Err(refusal) = others {
            self.let_others_compensate(value, demand, refusal)?;
        }
        Ok(false)
    }

    /// Lets the other readers of a value compensate for the affine.
    ///
    /// # Errors
    /// `refusal`, if readers may not compensate in this mode, or if the affine has no inverse. The
    /// error of [`precision::returned`], if the type of the value cannot hold the result.
    fn let_others_compensate(
        &mut self,
        value: ValueId,
        demand: &Demand,
        refusal: Refusal,
    ) -> Result<(), Refusal> {
        let graph = self.overlay.graph;
        let inverse = demand
            .affine
            .inverse()
            .filter(|_| self.mode.compensates)
            .ok_or(refusal)?;
        precision::returned(self.overlay, value, &inverse)
            .map_err(|reason| Refusal::new(reason, graph.value_name(demand.value)))?;
        self.compensations.push(Compensation {
            value,
            wanted: demand.source.inputs(graph),
            inverse,
        });
        Ok(())
    }

    /// Whether the affine comes from a node with several results that are read, such as a Split of
    /// tokens.
    fn has_read_results(&self, source: &DemandSource) -> bool {
        let &DemandSource::Input(node, _) = source else {
            return false;
        };
        let results = self.overlay.graph.outputs(node).iter().flatten();
        let read = results.filter(|&&value| self.overlay.readers(value).next().is_some());
        read.count() > 1
    }

    /// Whether the value at an input in `way` has other readers, which the affine that is needed
    /// there would affect.
    pub(super) fn has_shared_input(&self, node: NodeId, way: &[(usize, Affine)]) -> bool {
        way.iter().any(|(slot, affine)| {
            let source = DemandSource::Input(node, *slot);
            !affine.is_identity()
                && self
                    .input(node, *slot)
                    .is_some_and(|input| self.other_readers(input, &source, affine).is_err())
        })
    }

    /// Whether the node absorbs the affine, or each of its inputs needs only a scalar or an affine
    /// that affects no other reader of this input.
    pub(super) fn has_own_inputs(&self, node: NodeId, step: &Step) -> bool {
        let mut wanted = step.ways.iter().flatten();
        !step.folds.is_empty()
            || wanted.all(|(slot, affine)| {
                affine.scale.len() == 1 || self.is_own_input(node, *slot, affine)
            })
    }

    fn is_own_input(&self, node: NodeId, slot: usize, affine: &Affine) -> bool {
        let Some(input) = self.input(node, slot) else {
            return false;
        };
        match self.other_readers(input, &DemandSource::Input(node, slot), affine) {
            Ok(Others::None) => true,
            Ok(Others::Unaffected) => self.is_apart(input, node),
            Err(_) => false,
        }
    }

    /// The value at an input of a node, after the planned removals.
    fn input(&self, node: NodeId, slot: usize) -> Option<ValueId> {
        let value = self.overlay.graph.input(node, slot)?;
        Some(self.overlay.source(value))
    }

    /// Whether a node may need an affine of its part of a value while other readers take other
    /// parts. With `Alone`, no other reader may be upstream of the start. This condition fails, for
    /// example, if a rotary embedding reads class tokens apart from the other tokens.
    fn is_apart(&self, value: ValueId, node: NodeId) -> bool {
        match self.mode.partial_readers {
            PartialReaders::Together => false,
            PartialReaders::Apart => true,
            PartialReaders::Alone => {
                let producers = self.producers.get_or_init(|| self.search_producers());
                !self.overlay.readers(value).any(|(_, reader)| match reader {
                    Reader::Node { node: other, input } => {
                        other != node
                            && producers.contains(&other)
                            && self.overlay.graph.reads_elements(other, input)
                    }
                    Reader::Output | Reader::Capture { .. } => false,
                })
            }
        }
    }

    /// Collects the nodes upstream of the part's input, but only the last [`PRODUCERS`] in
    /// execution order.
    fn search_producers(&self) -> HashSet<NodeId> {
        let input = self.items.all[self.item].part.input;
        let mut open: BTreeSet<(usize, NodeId)> = BTreeSet::new();
        open.extend(self.placed_producer(input));
        let mut producers = HashSet::default();
        while let Some((_, node)) = open.pop_last().filter(|_| producers.len() < PRODUCERS) {
            producers.insert(node);
            let inputs = self.overlay.graph.inputs(node).iter().flatten();
            open.extend(inputs.filter_map(|&input| self.placed_producer(input)));
        }
        producers
    }

    /// The producer of a value, with its position in the execution order first, so that the pairs
    /// sort by position.
    fn placed_producer(&self, value: ValueId) -> Option<(usize, NodeId)> {
        let graph = self.overlay.graph;
        let (node, _) = graph.producer(self.overlay.source(value))?;
        Some((graph.place(node), node))
    }

    /// Finds the other readers of a value on which an affine is needed.
    ///
    /// # Errors
    /// A refusal at the first reader that the affine would affect.
    pub(super) fn other_readers(
        &self,
        value: ValueId,
        source: &DemandSource,
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
            if source.has(node, input) || !graph.reads_elements(node, input) {
                continue;
            }
            if !self.is_unaffected(node, input, affine) {
                return Err(Refusal::new(Reason::OtherReader, graph.name(node)));
            }
            others = Others::Unaffected;
        }
        Ok(others)
    }

    /// Whether a reader takes only parts of the value on which the affine is the identity.
    fn is_unaffected(&self, node: NodeId, input: usize, affine: &Affine) -> bool {
        let graph = self.overlay.graph;
        let has_identity_parts =
            affine.scale.iter().any(|&s| s == 1.0) && affine.shift.iter().any(|&t| t == 0.0);
        // An arithmetic operator takes every part of its operands, so an affine that is the
        // identity on no part affects it.
        if !has_identity_parts && graph.category(node) == Some(Category::Arithmetic) {
            return false;
        }
        let mut inputs = vec![None; graph.inputs(node).len()];
        inputs[input] = Some(affine.clone());
        step_forward(self.overlay, node, &inputs).is_ok_and(|step| {
            let mut results = step.ways.iter().flatten();
            step.only_passes_on() && results.all(|(_, affine)| affine.is_identity())
        })
    }
}

/// The affine on which all requests at a value agree. `None` if they differ.
///
/// The requests must be sorted by the input from which they come.
pub(super) fn agreed(graph: &Graph, requests: &[Waiting]) -> Option<Affine> {
    let mut affines = requests
        .chunk_by(|one, other| one.by == other.by)
        .map(|of_one_input| united(graph, of_one_input));
    let affine = affines.next()??;
    affines
        .all(|other| other.as_ref() == Some(&affine))
        .then_some(affine)
}

/// Composes the affines of all requests at one input of a node. If the node is a Split, for
/// example, each of its results may request an affine of one part of the input.
fn united(graph: &Graph, requests: &[Waiting]) -> Option<Affine> {
    let (first, others) = requests.split_first()?;
    // If there are more requests than results, two requests are for one result, and not for
    // different parts, so they do not combine.
    if requests.len() > graph.outputs(first.by.0).len() {
        return None;
    }
    let mut all = first.affine.clone();
    for next in others {
        if !all.broadcasts_with(&next.affine) {
            return None;
        }
        all = all.then(&next.affine);
    }
    Some(all)
}

/// Whether a node multiplies by a constant array that other nodes also read. Examples are a table
/// of angles, and a table of tokens that is also the head.
pub(super) fn is_shared(overlay: &GraphOverlay, node: NodeId) -> bool {
    let graph = overlay.graph;
    let multiplies = graph.is(node, "Mul") || graph.category(node) == Some(Category::MatrixProduct);
    let mut inputs = graph.inputs(node).iter().flatten();
    multiplies && inputs.any(|&input| is_shared_array(overlay, overlay.source(input)))
}

fn is_shared_array(overlay: &GraphOverlay, value: ValueId) -> bool {
    let constants = overlay.constants;
    constants.is_constant(value)
        && constants.len(value) != Some(1)
        && overlay.readers(moved_from(overlay, value)).count() > 1
}

/// The constant that a movement rearranges, or the constant itself if no movement produces it.
fn moved_from(overlay: &GraphOverlay, constant: ValueId) -> ValueId {
    let graph = overlay.graph;
    let moved = match graph.producer(constant) {
        Some((node, _)) if graph.is_movement(node) => graph.input(node, 0),
        _ => None,
    };
    moved.map_or(constant, |input| overlay.source(input))
}
