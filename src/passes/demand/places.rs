//! The places that a node selects along one axis of a value.

use crate::ir::{NodeId, ValueId};

/// The selected places, as the selecting operator specifies them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PlaceSet {
    /// The indices of places along an axis of known extent.
    Listed(Vec<usize>),
    /// The index of one place along an axis of unknown extent. A negative index counts from the
    /// end.
    Gathered(i64),
    /// One place along an axis of unknown extent, as the start and the end of a Slice.
    Sliced(i64, i64),
    /// One place, whose index the model computes.
    Computed(ValueId),
    /// One place of each sample, whose index the model computes.
    OfSample(ValueId),
}

/// An operator that only selects places along an axis. It may be written as several nodes.
#[derive(Debug, Clone)]
pub(super) struct Selection {
    /// The selecting node, then the nodes between the selected value and that node.
    pub nodes: Vec<NodeId>,
    /// The output of the selecting node.
    pub output: ValueId,
    pub places: PlaceSet,
    /// Whether the result lacks the axis.
    pub drops_axis: bool,
}
