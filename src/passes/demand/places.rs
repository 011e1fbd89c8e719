//! The places that a node selects along one axis of a value.

use crate::ir::{NodeId, ValueId};

/// The selected places, in the form of the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PlaceSet {
    /// Places of a known extent.
    Listed(Vec<usize>),
    /// One place of an unknown extent. A negative index counts from the end.
    Gathered(i64),
    /// One place of an unknown extent, from the start to the end of a Slice.
    Sliced(i64, i64),
    /// One place, whose index the model computes.
    Computed(ValueId),
    /// One place of each sample, whose index the model computes.
    OfSample(ValueId),
}

/// A node that only selects places along an axis.
#[derive(Debug, Clone)]
pub(super) struct Selection {
    /// The node, and the nodes between the value and the node.
    pub nodes: Vec<NodeId>,
    /// The output of the node.
    pub output: ValueId,
    pub places: PlaceSet,
    /// Whether the result lacks the axis.
    pub drops_axis: bool,
}
