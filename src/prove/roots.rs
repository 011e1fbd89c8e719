//! Square roots in the field, and the values of which a graph takes roots.
//!
//! The root is defined to be multiplicative, so that a scale moves through it. Then `√(−1)·√(−1) =
//! √1 = 1`, so the root of −1 is 1 or −1, and a convention chooses which. Over the reals, −1 has no
//! root. So `√(−x)` and `√x` agree only if the root of −1 is 1, and `√(−x)` and `−√x` agree only if
//! the root of −1 is −1. If the two graphs take roots of different values, they must agree under
//! both conventions. A value of which only some elements are computed counts as the same value.

use std::cell::RefCell;
use std::collections::HashSet;

use super::field;
use super::random::Digest;
use crate::prove::field_value::{Elements, FieldValue, slice};

/// The largest number of elements of a value whose elements are recorded, besides its digest.
const RECORDED: usize = 1 << 16;

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

/// A value of which a graph takes the root.
#[derive(Clone)]
struct Radicand {
    /// A digest that does not depend on the axes.
    digest: Digest,
    /// The elements, unless there are more than [`RECORDED`].
    elements: Option<Elements>,
}

impl Radicand {
    fn new(elements: &Elements) -> Self {
        let is_recorded = elements.len() <= RECORDED;
        Self {
            digest: in_a_row(elements),
            elements: is_recorded.then(|| elements.clone()),
        }
    }

    /// Whether all elements are also elements of the other value.
    fn is_part_of(&self, other: &Self) -> bool {
        let [Some(own), Some(all)] = [&self.elements, &other.elements] else {
            return false;
        };
        let all: HashSet<u32> = slice(all).iter().copied().collect();
        !own.is_empty() && slice(own).iter().all(|element| all.contains(element))
    }
}

/// The values of which a graph takes roots, except constants.
#[derive(Clone, Default)]
pub(super) struct Radicands(Vec<Radicand>);

impl Radicands {
    /// Whether the folded graph takes roots of the same values as the original, or of parts of
    /// them. Each value of which only one graph takes the root must have such a counterpart in the
    /// other graph.
    ///
    /// Otherwise, a root may have moved through an operator. A value and its negative cannot both
    /// occur in the original, because one of them has no root over the reals. So parts of the
    /// original's values cannot agree with it under only one convention.
    pub(super) fn are_of(&self, original: &Self) -> bool {
        let [own, others] = [self, original].map(Self::digests);
        let own_only = self.0.iter().filter(|own| !others.contains(&own.digest));
        let own_only: Vec<&Radicand> = own_only.collect();
        let others_only = original.0.iter();
        let others_only = others_only.filter(|other| !own.contains(&other.digest));
        let others_only: Vec<&Radicand> = others_only.collect();
        let are_parts = own_only
            .iter()
            .all(|own| others_only.iter().any(|other| own.is_part_of(other)));
        let have_parts = others_only
            .iter()
            .all(|other| own_only.iter().any(|own| own.is_part_of(other)));
        are_parts && have_parts
    }

    fn digests(&self) -> HashSet<Digest> {
        self.0.iter().map(|radicand| radicand.digest).collect()
    }
}

/// The convention of one evaluation, and the values of which its graph takes roots.
pub(super) struct RootContext {
    convention: RootOfMinusOne,
    radicands: RefCell<Radicands>,
}

impl RootContext {
    /// A context without roots so far.
    pub(super) fn new(convention: RootOfMinusOne) -> Self {
        Self {
            convention,
            radicands: RefCell::default(),
        }
    }

    /// `√z` of each element. Records the elements.
    pub(super) fn of(&self, elements: &Elements) -> Elements {
        self.radicands.borrow_mut().0.push(Radicand::new(elements));
        self.convention.roots(elements)
    }

    /// `√z` of each parameter. Does not record the parameters, because folding may compute this
    /// root into a weight.
    pub(super) fn of_parameter(&self, elements: &Elements) -> Elements {
        self.convention.roots(elements)
    }

    /// The number of recorded values.
    pub(super) fn len(&self) -> usize {
        self.radicands.borrow().0.len()
    }

    /// Keeps only the first `count` records. The later records belong to constants.
    pub(super) fn truncate(&self, count: usize) {
        self.radicands.borrow_mut().0.truncate(count);
    }

    /// All recorded values.
    pub(super) fn radicands(&self) -> Radicands {
        self.radicands.borrow().clone()
    }
}

/// A digest of elements that does not depend on their axes.
fn in_a_row(elements: &Elements) -> Digest {
    let count = elements.len();
    let row = elements.clone().into_shape_with_order(vec![count]);
    FieldValue::Field(row.unwrap_or_else(|_| elements.clone())).digest(0)
}

#[cfg(test)]
mod tests {
    use ndarray::Array1;

    use super::*;

    fn radicands(values: &[&[u32]]) -> Radicands {
        let values = values.iter().map(|elements| {
            let elements = Array1::from(elements.to_vec()).into_dyn().into_shared();
            Radicand::new(&elements)
        });
        Radicands(values.collect())
    }

    #[test]
    fn only_roots_of_the_same_values_or_their_parts_are_the_same() {
        let original = radicands(&[&[4, 9, 5], &[7]]);
        let minus_nine = field::neg(9);
        for (folded, is_same) in [
            (&[&[7][..], &[4, 9, 5]][..], true),
            (&[&[9], &[7]], true),
            (&[&[4, 9, 5]], false),
            (&[&[9], &[7], &[8]], false),
            (&[&[9, minus_nine], &[7]], false),
            (&[&[minus_nine], &[7]], false),
            (&[&[], &[7]], false),
        ] {
            assert_eq!(radicands(folded).are_of(&original), is_same, "{folded:?}");
        }
        // The folded graph takes roots of elements that the original does not compute.
        let part = radicands(&[&[9], &[7]]);
        assert!(!original.are_of(&part));
    }
}
