//! The state of one backward propagation.

use std::cell::OnceCell;

use crate::affine::Affine;
use crate::affine::item::Items;
use crate::affine::propagate::backward::Mode;
use crate::affine::propagate::overlay::GraphOverlay;
use crate::affine::propagate::propagation::Compensation;
use crate::affine::recognize::Part;
use crate::hash::HashSet;
use crate::ir::{Graph, NodeId, ValueId};

/// The largest number of nodes that one propagation visits, over all alternatives.
const BUDGET: usize = 4096;

/// An affine that is needed on a value.
pub(super) struct Demand<'p> {
    pub(super) value: ValueId,
    pub(super) source: DemandSource<'p>,
    pub(super) affine: &'p Affine,
    /// The number of nodes between the value and the part.
    pub(super) depth: usize,
}

/// The origin of an affine that is needed on a value.
pub(super) enum DemandSource<'p> {
    /// The part whose affine propagates.
    Part(&'p Part),
    /// An input of a node.
    Input(NodeId, usize),
    /// Inputs of several nodes: all inputs that need the affine.
    Inputs(Vec<(NodeId, usize)>),
}

impl DemandSource<'_> {
    /// The inputs that read the value with the affine.
    pub(super) fn inputs(&self, graph: &Graph) -> Vec<(NodeId, usize)> {
        match self {
            DemandSource::Part(part) => {
                let mut inputs = vec![];
                for &node in &part.nodes {
                    inputs.extend((0..graph.inputs(node).len()).map(|slot| (node, slot)));
                }
                inputs
            }
            &DemandSource::Input(node, slot) => vec![(node, slot)],
            DemandSource::Inputs(inputs) => inputs.clone(),
        }
    }

    pub(super) fn has(&self, node: NodeId, slot: usize) -> bool {
        match self {
            DemandSource::Part(part) => part.nodes.contains(&node),
            DemandSource::Input(one, input) => (*one, *input) == (node, slot),
            DemandSource::Inputs(inputs) => inputs.contains(&(node, slot)),
        }
    }
}

/// The kinds of other readers that a propagation met.
#[derive(Clone, Copy, Default)]
pub(super) struct Met {
    /// Whether another reader reads elements of a value that the affine changes.
    pub(super) affected_reader: bool,
    /// Whether another reader takes only parts of a value that the affine does not change.
    pub(super) reader_of_other_parts: bool,
    /// Whether the search looked up which nodes are upstream of its start.
    pub(super) searched_origin: bool,
}

pub(super) struct BackwardPropagation<'d, 'a> {
    pub(super) overlay: &'d GraphOverlay<'a>,
    pub(super) items: &'d Items<'d>,
    pub(super) item: usize,
    pub(super) mode: Mode,
    pub(super) waiting: Vec<Waiting>,
    pub(super) met: Met,
    pub(super) compensations: Vec<Compensation>,
    /// The producers upstream of the part's input, computed on demand.
    pub(super) producers: OnceCell<HashSet<NodeId>>,
    /// The number of nodes that may still be visited.
    pub(super) budget: usize,
}

/// A value with several readers, and the affine that one of them needs.
pub(super) struct Waiting {
    pub(super) value: ValueId,
    pub(super) by: (NodeId, usize),
    pub(super) affine: Affine,
    pub(super) depth: usize,
}

impl<'d, 'a> BackwardPropagation<'d, 'a> {
    pub(super) fn new(
        overlay: &'d GraphOverlay<'a>,
        items: &'d Items<'d>,
        item: usize,
        mode: Mode,
    ) -> Self {
        BackwardPropagation {
            overlay,
            items,
            item,
            mode,
            waiting: vec![],
            met: Met::default(),
            compensations: vec![],
            producers: OnceCell::new(),
            budget: BUDGET,
        }
    }

    /// The kinds of other readers that the propagation met so far.
    pub(super) fn met(&self) -> Met {
        Met {
            searched_origin: self.producers.get().is_some(),
            ..self.met
        }
    }

    pub(super) fn into_compensations(self) -> Vec<Compensation> {
        self.compensations
    }
}
