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
pub(crate) struct RecordedValues(RefCell<ValueDigests>);

impl RecordedValues {
    /// Replaces the record.
    pub(crate) fn keep(&self, values: ValueDigests) {
        self.0.replace(values);
    }

    /// Whether no comparison is recorded.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.borrow().0.iter().all(HashMap::is_empty)
    }

    /// Removes and returns the record. It is empty if no comparison was possible.
    pub(crate) fn take(&self) -> ValueDigests {
        self.0.take()
    }
}
