//! Computes recipes in the field: the elements that a stored tensor would have without rounding.

use std::collections::HashMap;

use ndarray::{ArrayD, IxDyn};

use super::field::{self, Arithmetic};
use super::operators::convolution::{ConvolutionExtents, convolution};
use super::operators::movement::{concatenated, expanded, pick, reshaped, transposed};
use super::operators::products::product;
use super::operators::{Allowance, NotEvaluated, combine, inverses, masked, sum, zip};
use super::sources::{Sources, is_number};
use crate::prove::field_value::{Elements, FieldValue, row_major, slice};
use crate::recipe::{Op, Recipe, Windows, with_cut_constants};

/// Computes a recipe in the field. The result is a mask if a constant of the recipe is one, and if
/// only movements, additions and multiplications by 1 follow.
///
/// # Errors
/// If the recipe divides by 0, if a constant is missing or does not have the shape that the recipe
/// says, or if the computation exceeds the limits.
pub(super) fn value(
    recipe: &Recipe,
    source: &Sources,
    allowance: &Allowance,
) -> Result<FieldValue, NotEvaluated> {
    // Images of numbers are known by the steps of the recipe itself.
    let has_numbers = recipe.steps().into_iter().any(is_number);
    let cut = (!has_numbers).then(|| with_cut_constants(recipe));
    let recipe = cut.as_ref().unwrap_or(recipe);
    let steps = recipe.steps();
    let mut uses: HashMap<_, usize> = HashMap::new();
    steps
        .iter()
        .flat_map(|step| step.inputs())
        .for_each(|input| *uses.entry(input.id()).or_default() += 1);
    let mut values: HashMap<_, FieldValue> = HashMap::new();
    for step in steps {
        allowance.room(step.shape())?;
        let mut inputs = vec![];
        for input in step.inputs() {
            let left = uses.entry(input.id()).or_default();
            *left = left.saturating_sub(1);
            // The last reader of a value takes it out of the map, so that its memory is freed.
            let value = if *left == 0 {
                values.remove(&input.id())
            } else {
                values.get(&input.id()).cloned()
            };
            inputs.push(value.ok_or(NotEvaluated::Uncovered)?);
        }
        let made = compute(step, inputs, source, allowance)?;
        if made.shape() != Some(step.shape()) {
            return Err(NotEvaluated::Uncovered);
        }
        values.insert(step.id(), made);
    }
    values.remove(&recipe.id()).ok_or(NotEvaluated::Uncovered)
}

/// Counts the elements and the multiplications that a recipe needs against the limits, without
/// computing the recipe.
///
/// # Errors
/// [`NotEvaluated::Beyond`].
pub(super) fn room(recipe: &Recipe, allowance: &Allowance) -> Result<(), NotEvaluated> {
    for step in recipe.steps() {
        allowance.room(step.shape())?;
        let terms: &[usize] = match (step.op(), step.inputs()) {
            (Op::Product, [left, _]) => left.shape().last().map_or(&[], std::slice::from_ref),
            (Op::Conv(_), [weight, _]) => weight.shape().get(2..).unwrap_or_default(),
            _ => continue,
        };
        allowance.products(&[step.shape(), terms].concat())?;
    }
    Ok(())
}

fn compute(
    step: &Recipe,
    inputs: Vec<FieldValue>,
    source: &Sources,
    allowance: &Allowance,
) -> Result<FieldValue, NotEvaluated> {
    if let Op::Constant(name) = step.op() {
        return match source.value(name)? {
            mask @ FieldValue::Masked(_) => Ok(mask),
            value => images(value).map(FieldValue::Field),
        };
    }
    let of_masks = inputs
        .iter()
        .any(|input| matches!(input, FieldValue::Masked(_)));
    if of_masks && carries_masks(step.op()) {
        let inputs: Option<Vec<Elements>> = inputs.into_iter().map(FieldValue::elements).collect();
        let inputs = inputs.ok_or(NotEvaluated::Uncovered)?;
        let made = match (step.op(), &inputs[..]) {
            (Op::Add, [a, b]) => zip(a, b, masked::sum).ok_or(NotEvaluated::Uncovered)?,
            (Op::Mul, [a, b]) => zip(a, b, masked::product).ok_or(NotEvaluated::Uncovered)?,
            _ => of_elements(step, inputs, source, allowance)?.into_owned(),
        };
        return Ok(FieldValue::masked(made));
    }
    let inputs = inputs.into_iter().map(images).collect::<Result<_, _>>()?;
    of_elements(step, inputs, source, allowance).map(FieldValue::Field)
}

/// Whether an operation keeps the hidden places of a mask.
fn carries_masks(op: &Op) -> bool {
    let is_movement = matches!(
        op,
        Op::Reshape | Op::Expand | Op::Transpose(_) | Op::Pick { .. } | Op::Concat(_)
    );
    is_movement || matches!(op, Op::Round(_) | Op::Flush(_) | Op::Add | Op::Mul)
}

/// Computes a step that reads no mask, or that only moves the elements of one.
fn of_elements(
    step: &Recipe,
    mut inputs: Vec<Elements>,
    source: &Sources,
    allowance: &Allowance,
) -> Result<Elements, NotEvaluated> {
    let shape = step.shape();
    if let (Op::Div, [_, b]) = (step.op(), &mut inputs[..]) {
        *b = inverses(b)?;
    }
    let made = match (step.op(), &inputs[..]) {
        _ if is_number(step) => images(source.number(step)?)?,
        (Op::Literal(numbers), _) => {
            let images: Option<Vec<u32>> = numbers
                .iter()
                .map(|&number| field::of_float(number))
                .collect();
            let images = images.ok_or(NotEvaluated::Uncovered)?;
            let array = match images[..] {
                [only] => Ok(ArrayD::from_elem(IxDyn(shape), only)),
                _ => ArrayD::from_shape_vec(IxDyn(shape), images),
            };
            row_major(array.map_err(|_| NotEvaluated::Uncovered)?)
        }
        // Rounding is left out here, because the check of the first claim (`rounding`) covers it.
        (Op::Round(_) | Op::Flush(_), [a]) => a.clone(),
        (Op::Neg, [a]) => a.mapv(field::neg).into_shared(),
        (Op::Sqrt, [a]) => source.roots(a),
        (Op::Reshape, [a]) => images(reshaped(&FieldValue::Field(a.clone()), shape)?)?,
        (Op::Expand, [a]) => images(expanded(&FieldValue::Field(a.clone()), shape)?)?,
        (Op::Transpose(perm), [a]) => row_major(transposed(a, perm)),
        (Op::Pick { axis, places }, [a]) => row_major(pick(a, *axis, places, 0)),
        (Op::Concat(axis), parts) => {
            let parts: Vec<&Elements> = parts.iter().collect();
            row_major(concatenated(&parts, *axis).ok_or(NotEvaluated::Uncovered)?)
        }
        (Op::Add, [a, b]) => combined(Arithmetic::Add, a, b)?,
        (Op::Sub, [a, b]) => combined(Arithmetic::Sub, a, b)?,
        // The second operand of a quotient is already inverted.
        (Op::Mul | Op::Div, [a, b]) => combined(Arithmetic::Mul, a, b)?,
        (Op::Sum(axis), [a]) => row_major(sum(a, &[*axis], true)),
        (Op::Product, [a, b]) => row_major(product(a, b, allowance)?),
        (Op::Conv(windows), [weight, values]) => {
            row_major(convolved(weight, values, windows, allowance)?)
        }
        _ => return Err(NotEvaluated::Uncovered),
    };
    Ok(made)
}

/// Convolves values `[group, inner, input]` with a weight `[group, outer, inner, taps]`.
fn convolved(
    weight: &Elements,
    values: &Elements,
    windows: &Windows,
    allowance: &Allowance,
) -> Result<ArrayD<u32>, NotEvaluated> {
    let (&[group, outer, inner, _], &[_, _, _]) = (weight.shape(), values.shape()) else {
        return Err(NotEvaluated::Uncovered);
    };
    let extents = ConvolutionExtents {
        samples: 1,
        group,
        outer,
        inner,
    };
    let sums = convolution(slice(weight), slice(values), extents, windows, allowance)?;
    let places = windows.output.iter().product();
    ArrayD::from_shape_vec(vec![group, outer, places], sums).map_err(|_| NotEvaluated::Uncovered)
}

fn images(value: FieldValue) -> Result<Elements, NotEvaluated> {
    value.images().ok_or(NotEvaluated::Uncovered)
}

fn combined(operation: Arithmetic, a: &Elements, b: &Elements) -> Result<Elements, NotEvaluated> {
    combine(operation, a, b)
        .map(row_major)
        .ok_or(NotEvaluated::Uncovered)
}
