//! Records digests of the values that two models compute at one point, for comparisons of values
//! that are not outputs.

use std::cell::RefCell;
use std::collections::HashMap;

use super::random::Digest;

/// The digests of the values of both models at one point, by the names of the values. Equal values
/// have equal digests.
#[derive(Debug, Default)]
pub(crate) struct ValueDigests(pub [HashMap<String, Digest>; 2]);

/// The digests that the last comparison of two models recorded.
#[derive(Debug, Default)]
pub(crate) struct RecordedValues {
    values: RefCell<ValueDigests>,
    /// Whether stored tensors are recorded, and not only inputs and results of nodes.
    pub(super) has_tensors: bool,
}

impl RecordedValues {
    /// An empty record that includes stored tensors.
    pub(crate) fn with_tensors() -> Self {
        Self {
            has_tensors: true,
            ..Self::default()
        }
    }

    /// An empty record of the same values.
    pub(crate) fn emptied(&self) -> Self {
        Self {
            has_tensors: self.has_tensors,
            ..Self::default()
        }
    }

    /// Replaces the record.
    pub(crate) fn keep(&self, values: ValueDigests) {
        self.values.replace(values);
    }

    /// Whether no comparison is recorded.
    pub(crate) fn is_empty(&self) -> bool {
        self.values.borrow().0.iter().all(HashMap::is_empty)
    }

    /// Calls a function with the record.
    pub(crate) fn read<R>(&self, function: impl FnOnce(&ValueDigests) -> R) -> R {
        function(&self.values.borrow())
    }

    /// Removes and returns the record. It is empty if no comparison was possible.
    pub(crate) fn take(&self) -> ValueDigests {
        self.values.take()
    }
}
