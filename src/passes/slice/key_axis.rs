//! The keys that the parts of a region of attention read, if a mask hides some of them.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use crate::ir::{NodeId, ValueId};

/// The keys that the parts of a region read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeyAxis {
    /// For each place along the axis of the region, the keys that the place sees.
    pub visible: Rc<Vec<Range<usize>>>,
    /// The number of keys.
    pub keys: usize,
    /// The axis of keys of each operand that has one, by its reader and slot.
    pub operands: HashMap<(NodeId, usize), usize>,
    /// The axis of keys of each value that is computed in the region.
    pub within: HashMap<ValueId, usize>,
}

impl KeyAxis {
    /// The smallest range of keys with every key that a place of a part sees.
    pub(super) fn of_part(&self, places: Range<usize>) -> Range<usize> {
        let visible = &self.visible[places];
        let first = visible.iter().map(|keys| keys.start).min();
        let last = visible.iter().map(|keys| keys.end).max();
        first.unwrap_or(0)..last.unwrap_or(self.keys)
    }

    /// The axis of keys of an operand. `None` if it has none.
    pub(super) fn of_operand(&self, node: NodeId, slot: usize) -> Option<usize> {
        self.operands.get(&(node, slot)).copied()
    }

    /// The axis of keys of a value that is computed in the region. `None` if it has none.
    pub(super) fn of_value(&self, value: ValueId) -> Option<usize> {
        self.within.get(&value).copied()
    }
}
