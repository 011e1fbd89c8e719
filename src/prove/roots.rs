//! Square roots in the field, and the values that a graph takes roots of.
//!
//! A root is multiplicative, so that a scale moves through it. A multiplicative root of −1 is 1 or −1, and the real numbers
//! have neither: `√(−x)` and `√x` agree under the first convention alone, `√(−x)` and `−√x` under the second alone. Where
//! the two graphs take roots of different values, they have to agree under both.

use std::cell::RefCell;
use std::collections::HashSet;

use super::field;
use super::random::Digest;
use crate::prove::field_value::{Elements, FieldValue};

/// The root of −1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootOfMinusOne {
    /// `√(−z) = √z`
    One,
    /// `√(−z) = −√z`
    MinusOne,
}

impl RootOfMinusOne {
    /// The convention of a point: they take turns.
    pub fn at(point: u64) -> Self {
        if point.is_multiple_of(2) {
            Self::One
        } else {
            Self::MinusOne
        }
    }

    /// `√z` of each element.
    pub fn roots(self, elements: &Elements) -> Elements {
        let root = if self == Self::One {
            field::root
        } else {
            field::odd_root
        };
        elements.mapv(root).into_shared()
    }
}

/// The convention of one evaluation, and the values that its graph takes roots of.
pub struct RootContext {
    convention: RootOfMinusOne,
    radicands: RefCell<Vec<Digest>>,
}

impl RootContext {
    /// No roots yet.
    pub fn new(convention: RootOfMinusOne) -> Self {
        Self {
            convention,
            radicands: RefCell::default(),
        }
    }

    /// `√z` of each element, which is noted.
    pub fn of(&self, elements: &Elements) -> Elements {
        self.radicands.borrow_mut().push(in_a_row(elements));
        self.convention.roots(elements)
    }

    /// `√z` of each parameter, which is not noted: a weight takes it in.
    pub fn of_parameter(&self, elements: &Elements) -> Elements {
        self.convention.roots(elements)
    }

    /// How many roots were noted.
    pub fn len(&self) -> usize {
        self.radicands.borrow().len()
    }

    /// Forgets all but the first roots: those behind them are of constants.
    pub fn truncate(&self, count: usize) {
        self.radicands.borrow_mut().truncate(count);
    }

    /// The digests of all that were noted.
    pub fn radicands(&self) -> HashSet<Digest> {
        self.radicands.borrow().iter().copied().collect()
    }
}

/// A digest of elements that does not depend on their axes.
fn in_a_row(elements: &Elements) -> Digest {
    let count = elements.len();
    let row = elements.clone().into_shape_with_order(vec![count]);
    FieldValue::Field(row.unwrap_or_else(|_| elements.clone())).digest(0)
}
