//! The effect of slices on the memory of activations.

use serde::Serialize;

/// The peak of the memory that activations take, before and after slices.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MemoryChange {
    /// Bytes at the peak before.
    pub before: u64,
    /// Bytes at the peak after.
    pub after: u64,
    /// Bytes that were to be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goal: Option<u64>,
    /// The node that runs at the peak after.
    pub at: String,
    /// The values that are held at the peak after, the largest first.
    pub held: Vec<HeldValue>,
    /// The regions that are cut.
    pub cuts: Vec<CutRegion>,
    /// Why nothing is cut, where that is so for the whole model, or why the peak is only a lower bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl MemoryChange {
    /// Nothing is cut after all, for this reason.
    pub fn undo(&mut self, reason: Option<String>) {
        self.after = self.before;
        self.cuts.clear();
        self.reason = reason;
    }

    /// Whether a goal was set that is not reached.
    pub fn is_missed(&self) -> bool {
        self.goal.is_some_and(|goal| self.after > goal)
    }
}

/// A value that is held at a peak.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeldValue {
    /// Its name.
    pub value: String,
    /// Its bytes.
    pub bytes: u64,
}

/// A region that runs part by part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CutRegion {
    /// Its first node.
    pub first: String,
    /// Its last node.
    pub last: String,
    /// The operators of its nodes, in execution order.
    pub operators: Vec<String>,
    /// Places along the axis that is cut.
    pub extent: usize,
    /// The number of parts.
    pub parts: usize,
}
