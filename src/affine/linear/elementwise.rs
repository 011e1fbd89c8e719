//! Add, Sub, Mul, Div and Neg, of a value and a constant or of two values.
//!
//! A constant summand absorbs a shift, a constant factor absorbs a scale, and the other part of the
//! affine propagates. In `(s·x + t) + c`, the constant `c` is added to the shift, and the node
//! becomes redundant.

use crate::affine::Affine;
use crate::affine::linear::{Linear, Slots};
use crate::affine::rule::{At, Rule, Side, Step};
use crate::recipe::{Numbers, Recipe};
use crate::refusal::Reason;
use crate::shape::facts::{Shape, extent};

/// The rule of element-wise arithmetic.
pub(crate) struct Elementwise;

impl Rule for Elementwise {
    fn ops(&self) -> &'static [&'static str] {
        &["Add", "Sub", "Mul", "Div", "Neg"]
    }

    fn is_scale_transparent(&self) -> bool {
        true
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        at.only_attributes(&[])?;
        let rank = at.output_rank(0)?;
        let inputs: Vec<Option<Affine>> = inputs
            .iter()
            .map(|affine| {
                affine
                    .as_ref()
                    .map(|affine| aligned(affine, rank))
                    .transpose()
            })
            .collect::<Result<_, _>>()?;
        if at.proto().op_type() == "Neg" {
            let affine = at.only(&inputs, 0)?;
            return Ok(Step::pass_on(
                0,
                Affine::new(affine.scale.clone(), -&affine.shift),
            ));
        }
        let constant = at.constant_operand();
        match (constant, &inputs[..]) {
            (Some(slot), _) => forward_constant(at, at.only(&inputs, 1 - slot)?, slot),
            (None, [left, right]) => forward_two(at, left, right),
            (None, _) => Err(Reason::UnknownShape),
        }
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        at.only_attributes(&[])?;
        let constant = at.constant_operand();
        let constant = constant.filter(|&slot| !at.is_dequantized(slot));
        match (at.proto().op_type(), constant) {
            ("Neg", _) => Ok(Step::pass_on(
                0,
                Affine::new(affine.scale.clone(), -&affine.shift),
            )),
            ("Add" | "Sub", Some(slot)) => {
                at.weight(slot)?;
                let scale = shrunk(at, 1 - slot, &Affine::scale(affine.scale.clone()))?;
                let folds = vec![(Side::Result, affine.clone())];
                Ok(Step {
                    folds,
                    ways: vec![vec![(1 - slot, scale)]],
                    ..Step::default()
                })
            }
            ("Mul", Some(slot)) => {
                at.weight(slot)?;
                if !affine.has_no_shift() {
                    return Err(Reason::NotLinear(
                        "a bare Mul, which has no place for a shift,".into(),
                    ));
                }
                Ok(Step::taken(Side::Result, affine.clone()))
            }
            ("Div", Some(1)) if affine.has_no_shift() => {
                Ok(Step::pass_on(0, shrunk(at, 0, affine)?))
            }
            ("Add" | "Sub", None) => {
                let scale = Affine::scale(affine.scale.clone());
                let second = match at.proto().op_type() {
                    "Add" => affine.clone(),
                    _ => Affine::new(affine.scale.clone(), -&affine.shift),
                };
                some_way(vec![
                    on_both(at, affine, &scale),
                    on_both(at, &scale, &second),
                ])
            }
            ("Mul", None) if affine.has_no_shift() => {
                some_way(vec![on_one(at, 0, affine), on_one(at, 1, affine)])
            }
            ("Div", None) if affine.has_no_shift() => Ok(Step::pass_on(0, shrunk(at, 0, affine)?)),
            (op, _) => Err(Reason::NotLinear(op.into())),
        }
    }
}

/// One alternative of a backward step: the indices of the inputs that need an affine, each with its
/// affine.
type Alternative = Vec<(usize, Affine)>;

/// An alternative that puts an affine on both operands. `None` if `left` or `right` does not fit
/// its operand.
fn on_both(at: &At, left: &Affine, right: &Affine) -> Option<Alternative> {
    let left = shrunk(at, 0, left).ok()?;
    let right = shrunk(at, 1, right).ok()?;
    Some(vec![(0, left), (1, right)])
}

/// An alternative that puts an affine on one operand. `None` if the affine does not fit the
/// operand.
fn on_one(at: &At, slot: usize, affine: &Affine) -> Option<Alternative> {
    Some(vec![(slot, shrunk(at, slot, affine).ok()?)])
}

/// Builds the step with all alternatives that fit.
///
/// # Errors
/// No alternative fits.
fn some_way(ways: Vec<Option<Alternative>>) -> Result<Step, Reason> {
    let ways: Vec<Alternative> = ways.into_iter().flatten().collect();
    if ways.is_empty() {
        Err(Reason::MixedAxes)
    } else {
        Ok(Step {
            ways,
            ..Step::default()
        })
    }
}

fn forward_constant(at: &At, affine: &Affine, slot: usize) -> Result<Step, Reason> {
    let Affine { scale, shift } = affine;
    match (at.proto().op_type(), slot) {
        ("Add" | "Sub", _) => past_summand(at, affine, slot),
        ("Mul", _) if widens(at, affine, slot) => into_widening_factor(at, affine, slot),
        ("Mul", _) | ("Div", 1) if affine.has_no_shift() => Ok(Step::pass_on(0, affine.clone())),
        ("Mul", _) => {
            let shift = shift * &aligned_constant(at, affine, slot)?;
            Ok(Step::pass_on(0, Affine::new(scale.clone(), shift)))
        }
        ("Div", 1) => {
            let shift = shift / &aligned_constant(at, affine, slot)?;
            if shift.iter().any(|t| !t.is_finite()) {
                return Err(Reason::NotFinite);
            }
            Ok(Step::pass_on(0, Affine::new(scale.clone(), shift)))
        }
        (op, _) => Err(Reason::NotLinear(format!("{op} by the value"))),
    }
}

/// The forward step of an Add or a Sub with a constant.
fn past_summand(at: &At, affine: &Affine, slot: usize) -> Result<Step, Reason> {
    let Affine { scale, shift } = affine;
    let is_taken_from_constant = at.graph.is(at.node, "Sub") && slot == 0;
    // If the affine has no scale, the constant of this node absorbs the shift, and nothing
    // propagates further.
    if affine.has_no_scale() && at.weight(slot).is_ok() {
        return Ok(Step::taken(Side::Operand(1 - slot), affine.clone()));
    }
    // c − (s·x + t) = s·(c − x) + (c − s·c − t)
    if is_taken_from_constant {
        let constant = aligned_constant(at, affine, slot)?;
        let shift = &(&constant - &(&constant * scale)) - shift;
        return Ok(Step::pass_on(0, Affine::new(scale.clone(), shift)));
    }
    if affine.has_no_scale() {
        return Ok(Step::pass_on(0, affine.clone()));
    }
    // (s·x + t) + c = s·x + (t + c)
    if at.shape(1 - slot)? != at.output_shape(0)? {
        return Err(Reason::MixedAxes);
    }
    let constant = aligned_constant(at, affine, slot)?;
    let shift = match at.proto().op_type() {
        "Add" => shift + &constant,
        _ => shift - &constant,
    };
    Ok(Step {
        bypass: Some(1 - slot),
        ..Step::pass_on(0, Affine::new(scale.clone(), shift))
    })
}

/// The forward step of a Mul by a constant `w` that widens: `(s·x + t)·w = x·(s·w) + t·w`. The
/// constant absorbs `s`, and the shift `t·w` propagates.
fn into_widening_factor(at: &At, affine: &Affine, slot: usize) -> Result<Step, Reason> {
    let step = Step::taken(Side::Operand(1 - slot), Affine::scale(affine.scale.clone()));
    if affine.has_no_shift() {
        return Ok(step);
    }
    let shift = &affine.shift * &aligned_constant(at, affine, slot)?;
    Ok(Step {
        folds: step.folds,
        ..Step::pass_on(0, Affine::shift(shift))
    })
}

/// Reads a constant operand and gives it the rank of the affine. An error if it does not broadcast
/// with the affine.
fn aligned_constant(at: &At, affine: &Affine, slot: usize) -> Result<Numbers, Reason> {
    let constant = at.numbers(slot)?.align(affine.rank());
    constant
        .filter(|constant| {
            constant.broadcasts_with(&affine.scale) && constant.broadcasts_with(&affine.shift)
        })
        .ok_or(Reason::UnknownShape)
}

/// Whether a constant factor widens a value and can absorb the whole scale. An example is a
/// tokenizer of numerical features, which multiplies each feature by one weight for each channel.
/// Operators after this Mul sum over the new axis, so they could not absorb the scale.
fn widens(at: &At, affine: &Affine, slot: usize) -> bool {
    let shapes = at.shape(1 - slot).ok().zip(at.output_shape(0).ok());
    let extents = at.weight(slot).and_then(|_| at.extents(slot)).ok();
    let (Some((value, made)), Some(extents)) = (shapes, extents) else {
        return false;
    };
    let along = extents.iter().rev().copied().chain(std::iter::repeat(1));
    let fits = affine
        .scale
        .shape()
        .iter()
        .rev()
        .zip(along)
        .all(|(&n, extent)| n == 1 || n == extent);
    !affine.has_no_scale() && value != made && fits
}

/// `(s·x + t) + c = s·(x + c/s) + t`: the step that keeps position embeddings `c` as a summand of
/// the stream, divided by `s`. `None` if the node does not add a constant, or adds the same
/// constant at all positions.
pub(crate) fn beside_positions(at: &At, inputs: &[Option<Affine>]) -> Option<Step> {
    let slot = at.constant_operand()?;
    let takes = at.graph.is(at.node, "Add") || (at.graph.is(at.node, "Sub") && slot == 1);
    let affine = aligned(
        inputs.get(1 - slot)?.as_ref().filter(|_| takes)?,
        at.output_rank(0).ok()?,
    )
    .ok()?;
    let extents = at.extents(slot).ok()?;
    let along = affine.scale.shape().iter().rev().zip(extents.iter().rev());
    let is_by_place = !affine.has_no_scale()
        && along
            .into_iter()
            .any(|(&scale, &constant)| constant > scale);
    let is_whole = at.shape(1 - slot).ok()? == at.output_shape(0).ok()? && at.weight(slot).is_ok();
    let inverse = Affine::scale(affine.scale.clone())
        .inverse()
        .filter(|_| is_by_place && is_whole)?;
    Some(Step {
        folds: vec![(Side::Result, inverse)],
        ..Step::pass_on(0, affine)
    })
}

fn forward_two(at: &At, left: &Option<Affine>, right: &Option<Affine>) -> Result<Step, Reason> {
    let op = at.proto().op_type();
    let rank = at.output_rank(0)?;
    let identity = Affine::identity(rank);
    let (a, b) = (
        left.as_ref().unwrap_or(&identity),
        right.as_ref().unwrap_or(&identity),
    );
    if !a.broadcasts_with(b) {
        return Err(Reason::UnknownShape);
    }
    match op {
        "Add" | "Sub" => {
            let wants = match (left, right) {
                _ if a.scale == b.scale => vec![],
                (Some(carried), None) => vec![(1, stream(at, 1, carried)?)],
                (None, Some(carried)) => vec![(0, stream(at, 0, carried)?)],
                _ if !a.has_no_scale() && !b.has_no_scale() => return Err(Reason::DifferentScales),
                _ => return Err(Reason::ResidualStream),
            };
            let scale = if left.is_some() { &a.scale } else { &b.scale };
            let shift = if op == "Add" {
                &a.shift + &b.shift
            } else {
                &a.shift - &b.shift
            };
            Ok(Step {
                wants,
                ..Step::pass_on(0, Affine::new(scale.clone(), shift))
            })
        }
        "Mul" if a.has_no_shift() && b.has_no_shift() => Ok(Step::pass_on(0, a.then(b))),
        "Div" if a.has_no_shift() && right.is_none() => Ok(Step::pass_on(0, a.clone())),
        _ => Err(Reason::NotLinear(op.into())),
    }
}

/// `(s·x + t) + y = s·(x + y/s) + t`: the scale `1/s` that the operand `y` needs, so that the
/// affine of the operand `x` passes the sum.
fn stream(at: &At, other: usize, carried: &Affine) -> Result<Affine, Reason> {
    let (scale, shift) = (carried.scale.shape(), carried.shift.shape());
    // After a shift that varies over positions, every bias on the path would have to vary over
    // positions too, so such a shift is refused.
    let has_positions = (0..carried.rank()).any(|axis| shift[axis] != 1 && scale[axis] == 1);
    let inverse = Affine::scale(&Numbers::number(1.0, carried.rank()) / &carried.scale);
    if has_positions || !inverse.is_finite() {
        return Err(Reason::ResidualStream);
    }
    shrunk(at, other, &inverse).map_err(|_| Reason::ResidualStream)
}

/// Adds axes to the affine of an operand until it has the rank of the result.
///
/// # Errors
/// [`Reason::UnknownShape`] if the result has fewer axes than the affine.
pub(crate) fn aligned(affine: &Affine, rank: usize) -> Result<Affine, Reason> {
    affine.try_map(|numbers| numbers.align(rank).ok_or(Reason::UnknownShape))
}

/// Converts an affine of the result to one of an operand that may be broadcast.
///
/// # Errors
/// The shape of the operand is not known, or the affine varies along axes along which the operand
/// is broadcast.
pub(crate) fn shrunk(at: &At, slot: usize, affine: &Affine) -> Result<Affine, Reason> {
    let shape = at.shape(slot)?;
    if affine.rank() < shape.len() {
        return Err(Reason::UnknownShape);
    }
    shrunk_to(affine, &shape).ok_or(Reason::MixedAxes)
}

/// Drops leading axes of an affine, so that it fits a value of this shape. `None` if the affine
/// varies along a dropped axis, or if its extents differ from those of the value.
pub(super) fn shrunk_to(affine: &Affine, shape: &Shape) -> Option<Affine> {
    let scale = numbers_shrunk_to(&affine.scale, shape)?;
    let shift = numbers_shrunk_to(&affine.shift, shape)?;
    Some(Affine::new(scale, shift))
}

fn numbers_shrunk_to(numbers: &Numbers, shape: &Shape) -> Option<Numbers> {
    let extra = numbers.ndim().checked_sub(shape.len())?;
    let (leading, kept) = numbers.shape().split_at(extra);
    let mut pairs = kept.iter().zip(shape);
    let fits = leading.iter().all(|&count| count == 1)
        && pairs.all(|(&count, dim)| count == 1 || extent(dim) == Some(count));
    if fits { numbers.reshape(kept) } else { None }
}

impl Linear for Elementwise {
    fn is_layer(&self) -> bool {
        false
    }

    fn slots(&self, at: &At) -> Result<Slots, Reason> {
        let slot = at.constant_operand().ok_or(Reason::NotConstant)?;
        match at.proto().op_type() {
            "Add" | "Sub" => Ok(Slots {
                weight: None,
                bias: Some(slot),
            }),
            "Mul" => Ok(Slots {
                weight: Some(slot),
                bias: None,
            }),
            op => Err(Reason::NotLinear(op.into())),
        }
    }

    fn scaled(&self, _: &At, weight: &Recipe, _: Side, scale: &Numbers) -> Result<Recipe, Reason> {
        weight.mul(scale.recipe()).ok_or(Reason::WrongAxis)
    }

    fn contracted(&self, _: &At) -> Result<Vec<usize>, Reason> {
        Ok(vec![])
    }

    fn image(
        &self,
        at: &At,
        _: Option<&Recipe>,
        operand: usize,
        shift: &Numbers,
    ) -> Result<Recipe, Reason> {
        // In `c − (x + t)` the shift is subtracted.
        let taken_away = at.proto().op_type() == "Sub" && operand == 1;
        Ok(if taken_away {
            shift.recipe().neg()
        } else {
            shift.recipe().clone()
        })
    }

    fn read_bias(&self, at: &At, bias: Recipe) -> Result<Recipe, Reason> {
        let bias = bias.align(at.output_rank(0)?).ok_or(Reason::UnknownShape)?;
        Ok(if subtracts(at) { bias.neg() } else { bias })
    }

    fn write_bias(&self, at: &At, bias: &Recipe) -> Option<Recipe> {
        Some(if subtracts(at) {
            bias.neg()
        } else {
            bias.clone()
        })
    }
}

/// Whether the node is a Sub that subtracts the constant.
fn subtracts(at: &At) -> bool {
    at.proto().op_type() == "Sub" && at.is_constant(1)
}
