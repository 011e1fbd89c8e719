//! Resize by nearest neighbours: what is repeated or left out carries the same affine.

use crate::affine::Affine;
use crate::fold::{At, Rule, Step};
use crate::graph::facts::same;
use crate::refusal::Reason;

/// Resize.
pub struct Resize;

impl Rule for Resize {
    fn ops(&self) -> &'static [&'static str] {
        &["Resize"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let affine = at.only(inputs, 0)?;
        check(at, affine)?;
        Ok(Step::go_on(0, affine.clone()))
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        check(at, affine)?;
        Ok(Step::go_on(0, affine.clone()))
    }
}

/// It must pick elements, and the affine may vary only along axes that keep their extents.
fn check(at: &At, affine: &Affine) -> Result<(), Reason> {
    if at.attr_text("mode", "nearest")? != "nearest" {
        return Err(Reason::Attribute("mode".into()));
    }
    // Cropping puts a number of its own where there is no input.
    let place = at.attr_text("coordinate_transformation_mode", "half_pixel")?;
    if place == "tf_crop_and_resize" {
        return Err(Reason::Attribute("coordinate_transformation_mode".into()));
    }
    let (from, to) = (at.shape(0)?, at.output_shape(0)?);
    match affine.axes().into_iter().all(|axis| same(&from[axis], &to[axis])) {
        true => Ok(()),
        false => Err(Reason::ReducedAxis),
    }
}
