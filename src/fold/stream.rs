//! Another basis for a residual stream.
//!
//! An affine that comes to a sum whose other side carries nothing goes on all the same, where what makes the other side
//! takes the scale back: `(s·x + t) + y = s·(x + y/s) + t`. So a normalizer of fixed statistics leaves the stream that it
//! is on: all that is written to the stream behind it is divided by its scale, and all that reads the stream takes it in.
//! Positions that are added to it are divided as well, where they cannot come into a shift for each place.

use super::draft::Draft;
use super::item::Items;
use super::wave::Wave;
use super::{backward, wave};
use crate::affine::Affine;
use crate::refusal::{Reason, Refusal};

/// Sends the affine of a part forward from the part's output, and what it wants on its way back to what makes that.
///
/// # Errors
/// A refusal at the first reader, in execution order, that cannot take it, or where something stands in the way back.
pub fn forward(draft: &Draft, items: &Items, item: usize, affine: &Affine) -> Result<Wave, Refusal> {
    let attempt = |kept: bool| {
        let (found, met) = wave::forward(draft, items, item, affine, kept);
        (found.and_then(|wave| with_wants(draft, items, item, wave)), met)
    };
    match attempt(false) {
        (Err(why), true) => attempt(true).0.map_err(|_| why),
        (found, _) => found,
    }
}

/// Sends an affine, that of a part or a half of it alone, forward past whatever stays in its basis.
///
/// # Errors
/// As [`forward`].
pub fn beside(draft: &Draft, items: &Items, item: usize, affine: &Affine) -> Result<Wave, Refusal> {
    let (found, _) = wave::forward(draft, items, item, affine, false);
    found.and_then(|wave| with_factors(draft, items, item, wave))
}

/// A wave with what it wants on the way back.
fn with_wants(draft: &Draft, items: &Items, item: usize, wave: Wave) -> Result<Wave, Refusal> {
    let mut wave = with_factors(draft, items, item, wave)?;
    for want in wave.wants.clone() {
        backward::wanted(draft, items, item, &mut wave, want)?;
    }
    wave.in_one_basis(draft)
}

/// A wave with what factors of products take in, on its way back to what makes them. A parameter stays: that it goes saves
/// no operator, and what is beside the product may have something that does.
fn with_factors(draft: &Draft, items: &Items, item: usize, mut wave: Wave) -> Result<Wave, Refusal> {
    let is_parameter = items.all[item].part.nodes.is_empty();
    for factor in wave.factors.clone() {
        let node = factor.0;
        let not_constant = || Refusal::new(Reason::NotConstant, draft.graph.name(node));
        if is_parameter {
            return Err(not_constant());
        }
        backward::wanted(draft, items, item, &mut wave, factor).map_err(|_| not_constant())?;
    }
    wave.in_one_basis(draft)
}
