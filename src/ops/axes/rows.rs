//! Follows the places of an axis through Reshapes that merge it with the axis before it.
//!
//! Some exporters write tokens as the rows of one matrix, `[B·T, C]`. Row `b·T + t` is token `t` of sample `b`. A
//! selection of tokens then takes the same places of each run of T rows.

use super::{AxisRead, reads};
use crate::analysis::node_view::At;
use crate::shape::facts::{Shape, extent, same};

/// The axis of a value that holds the places of a selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum PlaceAxis {
    /// The axis has one index for each place.
    Own(usize),
    /// The axis has a run of `places` indices for each index of an outer axis: `[B·T]`.
    Rows {
        /// The axis.
        axis: usize,
        /// T.
        places: usize,
    },
}

impl PlaceAxis {
    /// The axis, regardless of its form.
    pub(crate) fn axis(self) -> usize {
        match self {
            PlaceAxis::Own(axis) | PlaceAxis::Rows { axis, .. } => axis,
        }
    }

    /// Another axis of the same form.
    pub(crate) fn moved(self, axis: usize) -> Self {
        match self {
            PlaceAxis::Own(_) => PlaceAxis::Own(axis),
            PlaceAxis::Rows { places, .. } => PlaceAxis::Rows { axis, places },
        }
    }

    /// The axis of an input that a node reads at the same places as this axis of its output. `None` for any other read.
    pub(crate) fn in_input(self, at: &At, output: usize, slot: usize) -> Option<Self> {
        if slot == 0
            && let Some(regrouped) = self.before_reshape(at)
        {
            return Some(regrouped);
        }
        match reads(at, output, self.axis()).get(slot)? {
            &AxisRead::Same(axis) => Some(self.moved(axis)),
            _ => None,
        }
    }

    /// The axis before a Reshape that merges the places with the axis before them, or splits them from it.
    pub(crate) fn before_reshape(self, at: &At) -> Option<Self> {
        if at.graph.domain_op(at.node) != ("", "Reshape") {
            return None;
        }
        let (before, behind) = (at.shape(0).ok()?, at.output_shape(0).ok()?);
        match self {
            PlaceAxis::Own(inner) => {
                let axis = inner.checked_sub(1)?;
                let places = extent(behind.get(inner)?)?;
                is_merged(&behind, &before, axis).then_some(PlaceAxis::Rows { axis, places })
            }
            PlaceAxis::Rows { axis, places } => {
                let inner = axis + 1;
                let is_inner = extent(before.get(inner)?) == Some(places);
                let is_merged = is_inner && is_merged(&before, &behind, axis);
                is_merged.then_some(PlaceAxis::Own(inner))
            }
        }
    }
}

/// Whether `axis` of the merged shape holds this axis and the next one of the other shape, and all axes before it are
/// equal.
fn is_merged(apart: &Shape, merged: &Shape, axis: usize) -> bool {
    let pair = apart.get(axis).zip(apart.get(axis + 1));
    let Some((Some(outer), Some(inner))) = pair else {
        return false;
    };
    let product = Some(outer.clone() * inner.clone());
    let is_product = merged.get(axis).is_some_and(|rows| same(rows, &product));
    let mut before = apart.iter().zip(merged.iter()).take(axis);
    is_product && before.all(|(one, other)| same(one, other))
}
