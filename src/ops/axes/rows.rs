//! Follows the places of an axis through Reshapes that merge this axis with the preceding one.
//!
//! Some exporters write tokens as the rows of one matrix, `[B·T, C]`. Row `b·T + t` is token `t` of
//! sample `b`. A selection of tokens then selects the same places in each run of T rows.

use super::{AxisRead, reads};
use crate::analysis::node_view::At;
use crate::shape::facts::{Shape, extent, same};

/// The axis of a value along which a selection selects places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum PlaceAxis {
    /// The axis has one index for each place.
    Own(usize),
    /// The axis merges an outer axis with the axis of the places, as in `[B·T]`. Each index of the
    /// outer axis has a run of `places` indices.
    Rows {
        /// The axis.
        axis: usize,
        /// The number T of places in a run.
        places: usize,
    },
}

impl PlaceAxis {
    /// The index of the axis, for either variant.
    pub(crate) fn axis(self) -> usize {
        match self {
            PlaceAxis::Own(axis) | PlaceAxis::Rows { axis, .. } => axis,
        }
    }

    /// Replaces the index of the axis by `axis`.
    pub(crate) fn moved(self, axis: usize) -> Self {
        match self {
            PlaceAxis::Own(_) => PlaceAxis::Own(axis),
            PlaceAxis::Rows { places, .. } => PlaceAxis::Rows { axis, places },
        }
    }

    /// The axis of input `slot` along which the node reads only place `i` to compute place `i`
    /// along this axis of its output. `None` if the node reads other places.
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

    /// The axis of the places in the input of a Reshape that merges the axis of the places with the
    /// preceding axis, or splits the two. `None` for other nodes.
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

/// Whether `merged` has one axis in place of the axes `axis` and `axis + 1` of `apart`, and the
/// same extents along the axes before it.
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
