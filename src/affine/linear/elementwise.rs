//! Add, Sub, Mul, Div and Neg, with a constant or between two values.
//!
//! A constant summand absorbs a shift; a constant factor absorbs a scale; the other part of the
//! affine propagates. `(s·x + t) + c` makes the node redundant: `c` joins the shift.

use crate::affine::Affine;
use crate::affine::fold::{At, Rule, Side, Step};
use crate::affine::linear::{Linear, Slots};
use crate::recipe::{Numbers, Recipe};
use crate::refusal::Reason;
use crate::shape::facts::{Shape, extent};

/// Element-wise arithmetic.
pub struct Elementwise;

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

/// An alternative backward: affines on inputs.
type Alternative = Vec<(usize, Affine)>;

/// The affines of both operands; `None` where one of them does not fit.
fn on_both(at: &At, left: &Affine, right: &Affine) -> Option<Alternative> {
    let left = shrunk(at, 0, left).ok()?;
    let right = shrunk(at, 1, right).ok()?;
    Some(vec![(0, left), (1, right)])
}

/// The affine of one operand; `None` where it does not fit.
fn on_one(at: &At, slot: usize, affine: &Affine) -> Option<Alternative> {
    Some(vec![(slot, shrunk(at, slot, affine).ok()?)])
}

/// The step with all alternatives that fit.
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

/// The step forward of an Add or a Sub with a constant.
fn past_summand(at: &At, affine: &Affine, slot: usize) -> Result<Step, Reason> {
    let Affine { scale, shift } = affine;
    let is_taken_from_constant = at.graph.is(at.node, "Sub") && slot == 0;
    // A bare shift ends at the first constant that is added anyway.
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

/// (s·x + t)·w = x·(s·w) + t·w
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

/// The numbers of a constant operand, with as many axes as an affine that broadcasts with them.
fn aligned_constant(at: &At, affine: &Affine, slot: usize) -> Result<Numbers, Reason> {
    let constant = at.numbers(slot)?.align(affine.rank());
    constant
        .filter(|constant| {
            constant.broadcasts_with(&affine.scale) && constant.broadcasts_with(&affine.shift)
        })
        .ok_or(Reason::UnknownShape)
}

/// Whether a constant factor widens a value, as a tokenizer of numbers makes channels of each
/// number, and can absorb the whole scale: operators behind it contract the new axis, and could
/// not.
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

/// `(s·x + t) + c = s·(x + c/s) + t`: positions stay a summand of the stream. `None` for other
/// operators, and where the constant is equal for all positions.
pub fn beside_positions(at: &At, inputs: &[Option<Affine>]) -> Option<Step> {
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

/// `(s·x + t) + y = s·(x + y/s) + t`: the affine that the other operand needs, so that the sum is
/// in the basis of the operand with the affine.
fn stream(at: &At, other: usize, carried: &Affine) -> Result<Affine, Reason> {
    let (scale, shift) = (carried.scale.shape(), carried.shift.shape());
    // Behind a constant for each position, every bias on the path would become one.
    let has_positions = (0..carried.rank()).any(|axis| shift[axis] != 1 && scale[axis] == 1);
    let inverse = Affine::scale(&Numbers::number(1.0, carried.rank()) / &carried.scale);
    if has_positions || !inverse.is_finite() {
        return Err(Reason::ResidualStream);
    }
    shrunk(at, other, &inverse).map_err(|_| Reason::ResidualStream)
}

/// An affine on an operand, as one on a result of more axes.
///
/// # Errors
/// [`Reason::UnknownShape`] where the result has fewer axes than it.
pub fn aligned(affine: &Affine, rank: usize) -> Result<Affine, Reason> {
    affine.try_map(|numbers| numbers.align(rank).ok_or(Reason::UnknownShape))
}

/// An affine on the result, as the same on an operand that may be broadcast.
///
/// # Errors
/// Where the shape of the operand is not known, or the affine varies along axes that it is broadcast along.
pub fn shrunk(at: &At, slot: usize, affine: &Affine) -> Result<Affine, Reason> {
    let shape = at.shape(slot)?;
    if affine.rank() < shape.len() {
        return Err(Reason::UnknownShape);
    }
    shrunk_to(affine, &shape).ok_or(Reason::MixedAxes)
}

/// An affine without its leading axes, on a value of this shape; `None` where the affine varies along a leading axis, or does
/// not have the extents of the value.
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
        // In `c − (x + t)` it is taken away.
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

/// Whether the constant is what `Sub` takes away.
fn subtracts(at: &At) -> bool {
    at.proto().op_type() == "Sub" && at.is_constant(1)
}
