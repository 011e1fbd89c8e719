//! Maxima and minima over places: `max(s·x + t) = s·max(x) + t` if `s > 0` and neither `s` nor `t`
//! varies along the reduced axes.
//!
//! A padded place counts as −∞, so it is never the maximum of a window that covers a place of the
//! image. A negative scale would turn a maximum into a minimum.

use crate::affine::Affine;
use crate::affine::propagate::rules::positive::passed;
use crate::affine::propagate::rules::reduce::{restored, without};
use crate::affine::propagate::rules::window::meet_the_image;
use crate::affine::rule::{At, Rule, Step};
use crate::refusal::Reason;

/// Maxima of windows and of images, and maxima and minima along axes.
pub(super) struct Maximum;

impl Rule for Maximum {
    fn ops(&self) -> &'static [&'static str] {
        &["GlobalMaxPool", "MaxPool", "ReduceMax", "ReduceMin"]
    }

    fn is_scale_transparent(&self) -> bool {
        true
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let affine = at.only(inputs, 0)?;
        if affine.is_number() && !is_pool(at) {
            // A positive scalar passes whatever the axes are.
            return passed(at, affine, at.output_rank(0)?);
        }
        check(at, affine)?;
        if is_pool(at) {
            return Ok(Step::pass_on(0, affine.clone()));
        }
        let (reduced, keep) = at.reduction(affine.rank())?;
        if reduced.iter().any(|&axis| !affine.is_uniform_along(axis)) {
            return Err(Reason::ReducedAxis);
        }
        Ok(Step::pass_on(
            0,
            if keep {
                affine.clone()
            } else {
                without(affine, &reduced)?
            },
        ))
    }

    fn backward(&self, at: &At, output: usize, affine: &Affine) -> Result<Step, Reason> {
        // The second output holds the places of the maxima, not their values.
        if output != 0 {
            return Err(at.not_linear());
        }
        if affine.is_number() && !is_pool(at) {
            return passed(at, affine, at.rank(0)?);
        }
        check(at, affine)?;
        if is_pool(at) {
            return Ok(Step::pass_on(0, affine.clone()));
        }
        let restored = restored(at, affine)?;
        let (reduced, _) = at.reduction(restored.rank())?;
        match reduced.iter().all(|&axis| restored.is_uniform_along(axis)) {
            true => Ok(Step::pass_on(0, restored)),
            false => Err(Reason::ReducedAxis),
        }
    }
}

fn is_pool(at: &At) -> bool {
    at.proto().op_type().ends_with("MaxPool")
}

/// Refuses an affine that does not commute with the maxima: a scale that is not positive or, for a
/// pooling, an affine of places, or a window that may contain no place of the image.
fn check(at: &At, affine: &Affine) -> Result<(), Reason> {
    if !affine.scale.iter().all(|&scale| scale > 0.0) {
        return Err(at.not_linear());
    }
    if !is_pool(at) {
        return Ok(());
    }
    if affine.axes().iter().any(|&axis| axis >= 2) {
        return Err(Reason::ReducedAxis);
    }
    // A positive affine of channels does not change the places of the maxima. But if these places
    // are read, it is refused, because they are indices over all channels.
    if !affine.is_number() && has_read_places(at) {
        return Err(at.not_linear());
    }
    match at.proto().op_type() == "GlobalMaxPool" || meet_the_image(at)? {
        true => Ok(()),
        false => Err(Reason::Padding),
    }
}

/// Whether the output with the places of the maxima is read.
fn has_read_places(at: &At) -> bool {
    let places = at.graph.output(at.node, 1);
    places.is_some_and(|value| at.graph.is_output(value) || !at.graph.readers(value).is_empty())
}
