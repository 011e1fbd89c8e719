//! Expand and Tile: every copy carries the affine of the original.

use crate::affine::Affine;
use crate::affine::rule::{At, Rule, Step};
use crate::recipe::Numbers;
use crate::refusal::Reason;
use crate::shape::facts::{extent, same};

/// Expand and Tile.
pub(super) struct Expand;

impl Rule for Expand {
    fn ops(&self) -> &'static [&'static str] {
        &["Expand", "Tile"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let affine = at.only(inputs, 0)?;
        let (from, to) = (at.shape(0)?, at.output_shape(0)?);
        let leading = to
            .len()
            .checked_sub(from.len())
            .ok_or(Reason::UnknownShape)?;
        let mut repeated = affine.clone();
        let grown = (0..from.len()).filter(|&axis| !same(&from[axis], &to[leading + axis]));
        // Expand extends only axes of extent 1, along which no affine varies. So the affine needs
        // repeating only for a Tile, which repeats any axis.
        for axis in grown.filter(|&axis| !affine.is_uniform_along(axis)) {
            let (Some(before), Some(behind)) = (extent(&from[axis]), extent(&to[leading + axis]))
            else {
                return Err(Reason::UnknownShape);
            };
            let times = behind.checked_div(before).ok_or(Reason::UnknownShape)?;
            repeated = repeated.try_map(|numbers| match numbers.shape()[axis] {
                1 => Ok(numbers.clone()),
                _ => {
                    Numbers::concat(axis, &vec![numbers.clone(); times]).ok_or(Reason::UnknownShape)
                }
            })?;
        }
        let aligned =
            repeated.try_map(|numbers| numbers.align(to.len()).ok_or(Reason::UnknownShape))?;
        Ok(Step::pass_on(0, aligned))
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        let (from, to) = (at.shape(0)?, at.output_shape(0)?);
        let leading = to
            .len()
            .checked_sub(from.len())
            .ok_or(Reason::UnknownShape)?;
        for axis in affine.axes() {
            let before = axis.checked_sub(leading).and_then(|axis| from.get(axis));
            if !before
                .zip(to.get(axis))
                .is_some_and(|(before, behind)| same(before, behind))
            {
                return Err(Reason::MixedAxes);
            }
        }
        let shrunk = affine.try_map(|numbers| {
            numbers
                .reshape(&numbers.shape()[leading..])
                .ok_or(Reason::UnknownShape)
        })?;
        Ok(Step::pass_on(0, shrunk))
    }
}
