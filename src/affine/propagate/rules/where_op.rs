//! Where: the result carries the affine of both branches. A branch of zeros carries every scale.
//! Any other constant branch, such as a mask token, compensates for the affine of the other branch:
//! `where(m, c, s·x + t) = s·where(m, (c − t)/s, x) + t`.

use crate::affine::Affine;
use crate::affine::linear::elementwise::{aligned, shrunk};
use crate::affine::rule::{At, Rule, Step};
use crate::recipe::Numbers;
use crate::refusal::Reason;

/// The largest magnitude of a constant that may be changed. A larger constant masks the value that
/// it replaces, and rounding the constant again could make it differ from place to place.
const HIDES: f64 = 100.0;

/// The largest magnitude of the changed constant. A larger constant would be rounded more coarsely
/// than the values of the other branch.
const LARGEST: f64 = 1000.0;

/// Where.
pub(super) struct Choice;

impl Rule for Choice {
    fn ops(&self) -> &'static [&'static str] {
        &["Where"]
    }

    fn reads_numbers(&self) -> bool {
        true
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let rank = at.output_rank(0)?;
        let sides = [1, 2].map(|slot| {
            let affine = inputs.get(slot)?.as_ref()?;
            Some(aligned(affine, rank))
        });
        match sides {
            [Some(yes), Some(no)] => {
                let (yes, no) = (yes?, no?);
                if yes == no {
                    Ok(Step::pass_on(0, yes))
                } else {
                    Err(Reason::ResidualStream)
                }
            }
            [Some(yes), None] => of_one_side(at, yes?, 2),
            [None, Some(no)] => of_one_side(at, no?, 1),
            [None, None] => Err(at.not_linear()),
        }
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        let wanted = (1..3).filter(|&slot| !affine.has_no_shift() || !is_zero(at, slot));
        let way = wanted
            .map(|slot| Ok((slot, shrunk(at, slot, affine)?)))
            .collect::<Result<_, Reason>>()?;
        Ok(Step {
            ways: vec![way],
            ..Step::default()
        })
    }
}

/// The step if only one branch carries an affine.
fn of_one_side(at: &At, affine: Affine, other: usize) -> Result<Step, Reason> {
    if affine.has_no_shift() && is_zero(at, other) {
        return Ok(Step::pass_on(0, affine));
    }
    beside_constant(at, affine, other).ok_or(Reason::ResidualStream)
}

/// The step if the other branch is a constant that can compensate for the affine. `None` if the
/// branch is not such a constant.
fn beside_constant(at: &At, affine: Affine, other: usize) -> Option<Step> {
    let (inverse, numbers) = (affine.inverse()?, at.numbers(other).ok()?);
    // A single scalar may be expanded to one scalar for each channel.
    let wanted = if numbers.len() == 1 {
        inverse
    } else {
        shrunk(at, other, &inverse).ok()?
    };
    let reach = largest(&numbers) * largest(&wanted.scale) + largest(&wanted.shift);
    let fits = largest(&numbers) <= HIDES && reach <= LARGEST;
    fits.then(|| Step {
        wants: vec![(other, wanted)],
        ..Step::pass_on(0, affine)
    })
}

/// The largest magnitude of these numbers.
fn largest(numbers: &Numbers) -> f64 {
    let magnitudes = numbers.iter().map(|number| number.abs());
    magnitudes.fold(0.0, f64::max)
}

/// Whether a branch is a constant of zeros.
pub(super) fn is_zero(at: &At, slot: usize) -> bool {
    at.is_constant(slot)
        && at
            .numbers(slot)
            .is_ok_and(|numbers| numbers.iter().all(|&number| number == 0.0))
}
