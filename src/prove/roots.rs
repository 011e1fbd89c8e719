//! Square roots in the field, and the values of which a graph takes roots.
//!
//! The root is defined to be multiplicative, so that a scale moves through it. Then `√(−1)·√(−1) =
//! √1 = 1`, so the root of −1 is 1 or −1, and a convention chooses which. Over the reals, −1 has no
//! root. So `√(−x)` and `√x` agree only if the root of −1 is 1, and `√(−x)` and `−√x` agree only if
//! the root of −1 is −1. If the two graphs take roots of different values, they must agree under
//! both conventions.

use std::cell::RefCell;
use std::collections::HashSet;

use super::field;
use super::random::Digest;
use crate::prove::field_value::{Elements, FieldValue};

/// The convention for the square root of −1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RootOfMinusOne {
    /// `√(−z) = √z`
    One,
    /// `√(−z) = −√z`
    MinusOne,
}

impl RootOfMinusOne {
    /// The convention at the point with this index. The two conventions alternate from point to
    /// point.
    pub(super) fn at(point: u64) -> Self {
        if point.is_multiple_of(2) {
            Self::One
        } else {
            Self::MinusOne
        }
    }

    /// `√z` of each element.
    pub(super) fn roots(self, elements: &Elements) -> Elements {
        let root = if self == Self::One {
            field::root
        } else {
            field::odd_root
        };
        elements.mapv(root).into_shared()
    }
}

/// The convention of one evaluation, and the values of which its graph takes roots.
pub(super) struct RootContext {
    convention: RootOfMinusOne,
    radicands: RefCell<Vec<Digest>>,
}

impl RootContext {
    /// A context without roots so far.
    pub(super) fn new(convention: RootOfMinusOne) -> Self {
        Self {
            convention,
            radicands: RefCell::default(),
        }
    }

    /// `√z` of each element. Records the digest of the elements.
    pub(super) fn of(&self, elements: &Elements) -> Elements {
        self.radicands.borrow_mut().push(in_a_row(elements));
        self.convention.roots(elements)
    }

    /// `√z` of each parameter. Does not record the parameters, because folding may compute this
    /// root into a weight.
    pub(super) fn of_parameter(&self, elements: &Elements) -> Elements {
        self.convention.roots(elements)
    }

    /// The number of recorded values.
    pub(super) fn len(&self) -> usize {
        self.radicands.borrow().len()
    }

    /// Keeps only the first `count` records. The later records belong to constants.
    pub(super) fn truncate(&self, count: usize) {
        self.radicands.borrow_mut().truncate(count);
    }

    /// The digests of all recorded values.
    pub(super) fn radicands(&self) -> HashSet<Digest> {
        self.radicands.borrow().iter().copied().collect()
    }
}

/// A digest of elements that does not depend on their axes.
fn in_a_row(elements: &Elements) -> Digest {
    let count = elements.len();
    let row = elements.clone().into_shape_with_order(vec![count]);
    FieldValue::Field(row.unwrap_or_else(|_| elements.clone())).digest(0)
}
