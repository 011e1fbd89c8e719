//! Forward propagation that changes the basis of a residual stream.
//!
//! If the other operand of a sum carries no affine, an affine may propagate past the sum, provided
//! that the producers of the other operand compensate for the scale: `(s·x + t) + y = s·(x + y/s) +
//! t`. In this way a normalizer with fixed statistics is removed from its stream: all later writers
//! of the stream are divided by its scale, and all readers absorb it. Positions that are added to
//! the stream are divided too, unless they can become part of a shift that differs from place to
//! place.

use crate::affine::Affine;
use crate::affine::item::Items;
use crate::affine::propagate::overlay::GraphOverlay;
use crate::affine::propagate::propagation::Propagation;
use crate::affine::propagate::{backward, forward};
use crate::refusal::{Reason, Refusal};

/// Propagates the affine of a part forward from the part's output. Then propagates backward the
/// affines that the forward propagation needs from producers.
///
/// # Errors
/// A refusal at the first reader, in execution order, that cannot absorb or pass the affine, or at
/// the obstacle of an affine that is needed from a producer.
pub(crate) fn forward(
    overlay: &GraphOverlay,
    items: &Items,
    item: usize,
    affine: &Affine,
) -> Result<Propagation, Refusal> {
    let (found, met_positions) = forward::forward(overlay, items, item, affine, false);
    let found = found.and_then(|propagation| with_wants(overlay, items, item, propagation));
    match found {
        Err(refusal) if met_positions => {
            let (found, _) = forward::forward(overlay, items, item, affine, true);
            found
                .and_then(|propagation| with_wants(overlay, items, item, propagation))
                .map_err(|_| refusal)
        }
        found => found,
    }
}

/// Propagates an affine of a part, or only its scale or shift, forward. Sums that the affine meets
/// keep their basis: no producer of another summand compensates for the affine.
///
/// # Errors
/// The errors of [`forward`].
pub(crate) fn beside(
    overlay: &GraphOverlay,
    items: &Items,
    item: usize,
    affine: &Affine,
) -> Result<Propagation, Refusal> {
    let (found, _) = forward::forward(overlay, items, item, affine, false);
    found.and_then(|propagation| with_factors(overlay, items, item, propagation))
}

/// Propagates backward the affines that a propagation needs from producers, and adds the changes to
/// the propagation.
fn with_wants(
    overlay: &GraphOverlay,
    items: &Items,
    item: usize,
    propagation: Propagation,
) -> Result<Propagation, Refusal> {
    let mut propagation = with_factors(overlay, items, item, propagation)?;
    for want in propagation.wants.clone() {
        backward::wanted(overlay, items, item, &mut propagation, want)?;
    }
    propagation.in_one_basis(overlay)
}

/// Propagates backward the scales that other factors of products must absorb, and adds the changes
/// to the propagation. The scale of a parameter is refused: removing it saves no operator, and the
/// other operand of the product may carry an affine whose fold saves one.
fn with_factors(
    overlay: &GraphOverlay,
    items: &Items,
    item: usize,
    mut propagation: Propagation,
) -> Result<Propagation, Refusal> {
    let is_parameter = items.all[item].part.nodes.is_empty();
    for factor in propagation.factors.clone() {
        let node = factor.0;
        if is_parameter || backward::wanted(overlay, items, item, &mut propagation, factor).is_err()
        {
            return Err(Refusal::new(Reason::NotConstant, overlay.graph.name(node)));
        }
    }
    propagation.in_one_basis(overlay)
}
