//! The effect of slices on the memory of activations.

use serde::Serialize;

/// The peak memory of activations before and after slicing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MemoryChange {
    /// The peak before slicing, in bytes.
    pub before: u64,
    /// The peak after slicing, in bytes.
    pub after: u64,
    /// The requested peak, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goal: Option<u64>,
    /// The node that runs at the peak after slicing.
    pub at: String,
    /// The values that are in memory at the peak after slicing, the largest first.
    pub held: Vec<HeldValue>,
    /// The regions that are sliced.
    pub cuts: Vec<CutRegion>,
    /// The reason why nothing in the model is sliced, or why the peak is only a lower bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether the peak is only a lower bound, because sizes are unknown.
    #[serde(skip)]
    pub(crate) is_lower_bound: bool,
}

impl MemoryChange {
    /// Drops all cuts, and records the reason if it is given.
    pub(crate) fn undo(&mut self, reason: Option<String>) {
        self.after = self.before;
        self.cuts.clear();
        self.reason = reason;
    }

    /// Records why nothing is cut, for the model and for each value that is in memory at the peak.
    pub(crate) fn keep_whole(&mut self, reason: &str) {
        self.reason = Some(reason.to_owned());
        for held in &mut self.held {
            reason.clone_into(&mut held.reason);
        }
    }

    /// Whether a requested peak is not reached, or not known to be reached.
    pub fn is_missed(&self) -> bool {
        self.goal
            .is_some_and(|goal| self.is_lower_bound || self.after > goal)
    }
}

/// A value that is in memory at a peak.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HeldValue {
    /// The name of the value.
    pub value: String,
    /// The size of the value in bytes.
    pub bytes: u64,
    /// The reason why the value is not cut, or not cut into more parts.
    pub reason: String,
}

/// A region of nodes that run part by part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CutRegion {
    /// The first node.
    pub first: String,
    /// The last node.
    pub last: String,
    /// The operators of the nodes, in execution order.
    pub operators: Vec<String>,
    /// The extent of the axis that is sliced.
    pub extent: usize,
    /// The number of parts.
    pub parts: usize,
    /// If the region is an attention whose mask hides some scores, the number of scores of each
    /// head; else 0.
    pub scores: usize,
    /// The number of these scores that no part computes.
    pub left_out: usize,
    /// The reason why scores are computed although a mask may hide them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask: Option<String>,
}
