//! Gather: along its axis, the affine is gathered like the value.

use crate::affine::Affine;
use crate::affine::propagate::rules::slice::scatter;
use crate::affine::rule::{At, Rule, Step};
use crate::ir::axes::axis;
use crate::recipe::Numbers;
use crate::refusal::Reason;
use crate::shape::facts::extent;

/// Gather.
pub(super) struct Gather;

impl Rule for Gather {
    fn ops(&self) -> &'static [&'static str] {
        &["Gather"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let affine = at.only(inputs, 0)?;
        let axis = axis(at.attr("axis", 0)?, affine.rank())?;
        let indices = at.shape(1)?;
        let taken = if affine.is_uniform_along(axis) {
            None
        } else {
            Some(places(at, axis)?)
        };
        let gathered = affine.try_map(|numbers| match &taken {
            Some(taken) if numbers.shape()[axis] != 1 => {
                let shape = indices.iter().map(extent).collect::<Option<Vec<_>>>();
                let flat = numbers
                    .pick(axis, taken.iter().copied().map(Some))
                    .ok_or(Reason::UnknownShape)?;
                replace_axis(&flat, axis, &shape.ok_or(Reason::UnknownShape)?)
            }
            _ => replace_axis(numbers, axis, &vec![1; indices.len()]),
        })?;
        Ok(Step::pass_on(0, gathered))
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        let rank = at.rank(0)?;
        let axis = axis(at.attr("axis", 0)?, rank)?;
        let indices = at.rank(1)?;
        let varies = (axis..axis + indices).any(|axis| !affine.is_uniform_along(axis));
        let flat = affine.try_map(|numbers| {
            let mut shape = numbers.shape().to_vec();
            let along = shape.drain(axis..axis + indices).product();
            shape.insert(axis, along);
            numbers.reshape(&shape).ok_or(Reason::UnknownShape)
        });
        match (at.places(0, axis), places(at, axis)) {
            // The indices into the table are known only at run time, so the affine must be the same
            // for every row.
            (_, Err(_)) if !varies && at.is_constant(0) => Ok(Step::pass_on(0, flat?)),
            (_, Err(reason)) => Err(reason),
            (Err(reason), _) => Err(reason),
            (Ok(whole), Ok(taken)) => {
                if indices > 1 && varies {
                    return Err(Reason::MixedAxes);
                }
                Ok(Step::pass_on(0, scatter(&flat?, axis, &taken, whole)?))
            }
        }
    }
}

/// The places that constant indices select, in order.
fn places(at: &At, axis: usize) -> Result<Vec<usize>, Reason> {
    let whole = at.places(0, axis)?;
    let indices = at.ints(1)?.ok_or(Reason::NotConstant)?;
    let mut places = vec![];
    for index in indices {
        let counted = if index < 0 {
            index + whole as i64
        } else {
            index
        };
        match usize::try_from(counted) {
            Ok(place) if place < whole => places.push(place),
            _ => return Err(Reason::Attribute("indices".into())),
        }
    }
    Ok(places)
}

/// Replaces the gathered axis by the axes of the indices.
fn replace_axis(numbers: &Numbers, axis: usize, indices: &[usize]) -> Result<Numbers, Reason> {
    let mut shape = numbers.shape().to_vec();
    shape.splice(axis..=axis, indices.iter().copied());
    numbers.reshape(&shape).ok_or(Reason::UnknownShape)
}
