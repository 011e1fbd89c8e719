//! Square roots in the field.
//!
//! First, the root of a value that depends on inputs is an unknown function of each element. If the
//! graphs agree, they agree for every function, also for the root.
//!
//! If a fold moves a scale through a root, the graphs agree only if the root is multiplicative:
//! `√(ab) = √a·√b`. Then `√(−1)·√(−1) = √1 = 1`, so the root of −1 is 1 or −1. Over the reals, −1
//! has no root. So `√(−x)` and `√x` agree only if the root of −1 is 1, and `√(−x)` and `−√x` agree
//! only if the root of −1 is −1. And `√(x²)` is x or −x, depending on x. So the graphs must agree at
//! many points, with both roots of −1.

use std::cell::Cell;

use super::field;
use super::random::{Digest, Unknown};
use crate::prove::field_value::Elements;

/// The definition of the root at a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RootRule {
    /// The roots of values that depend on inputs are unknown. Constants have the roots of
    /// [`RootRule::Odd`].
    Unknown,
    /// Multiplicative, with `√(−z) = √z`.
    Even,
    /// Multiplicative, with `√(−z) = −√z`.
    Odd,
}

impl RootRule {
    /// One of the two multiplicative rules, which alternate.
    pub(super) fn multiplicative(round: u64) -> Self {
        if round.is_multiple_of(2) {
            Self::Odd
        } else {
            Self::Even
        }
    }

    /// `√z` of each element of a constant.
    pub(super) fn of_constant(self, elements: &Elements) -> Elements {
        let root = match self {
            Self::Even => field::root,
            Self::Odd | Self::Unknown => field::odd_root,
        };
        elements.mapv(root).into_shared()
    }
}

/// The roots of one evaluation.
pub(super) struct RootContext {
    rule: RootRule,
    /// The function that stands for the root of values that depend on inputs.
    unknown: Unknown,
    /// Whether the current node reads only constants.
    of_constants: Cell<bool>,
    is_used: Cell<bool>,
}

impl RootContext {
    /// The roots of an evaluation with the seed `key`.
    pub(super) fn new(rule: RootRule, key: u64) -> Self {
        Self {
            rule,
            unknown: Unknown::new(Digest::from(key)),
            of_constants: Cell::new(false),
            is_used: Cell::new(false),
        }
    }

    /// Sets whether the current node reads only constants, and returns the previous setting.
    pub(super) fn set_of_constants(&self, of_constants: bool) -> bool {
        self.of_constants.replace(of_constants)
    }

    /// `√z` of each element.
    pub(super) fn of(&self, elements: &Elements) -> Elements {
        if self.of_constants.get() {
            return self.rule.of_constant(elements);
        }
        self.is_used.set(true);
        match self.rule {
            RootRule::Unknown => {
                let unknown = self.unknown;
                elements
                    .mapv(|element| unknown.value(element.into()))
                    .into_shared()
            }
            rule => rule.of_constant(elements),
        }
    }

    /// `√z` of each parameter, because folding may compute this root into a weight.
    pub(super) fn of_parameter(&self, elements: &Elements) -> Elements {
        self.rule.of_constant(elements)
    }

    /// Whether the graph takes the root of a value that depends on inputs.
    pub(super) fn is_used(&self) -> bool {
        self.is_used.get()
    }
}
