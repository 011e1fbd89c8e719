//! A value of which all places are taken in order, and which is the same again.
//!
//! torch has `as_strided` where a mean over a turned image is to lie in memory as others do, and exports it as a Gather out
//! of all places in a row. Which of them is a sum: `Range(0, n)·k` and constants that count from 0 to k − 1 for each of n
//! items are all places of a value of n items of k places.

use ndarray::{ArrayD, Axis, IxDyn};

use crate::affine::fold::At;
use crate::analysis::Analysis;
use crate::analysis::broadcast::LARGEST;
use crate::ir::axes::axes;
use crate::ir::builder::Maker;
use crate::ir::{NodeId, ValueId};
use crate::onnx::tensor::DataType;
use crate::shape::facts::{extent, same};

/// How many operators in a row indices are followed through.
const DEPTH: usize = 12;

/// A Gather of all places of a value in order, as a Reshape of the value; `None` where it selects
/// others.
pub fn whole<'m>(analysis: &'m Analysis, gather: NodeId) -> Option<Maker<'m>> {
    let Analysis { graph, facts, .. } = analysis;
    let at = analysis.at(gather);
    let is_flat =
        graph.is(gather, "Gather") && at.only_attributes(&["axis"]).is_ok() && at.rank(0) == Ok(1);
    let (flat, indices) = (at.input(0).ok().filter(|_| is_flat)?, at.input(1).ok()?);
    let (row, _) = graph
        .producer(flat)
        .filter(|&(node, _)| graph.is(node, "Reshape"))?;
    let value = graph.input(row, 0)?;
    let shape = facts.shape(value)?;
    let (items, places) = shape.split_first()?;
    let count: usize = places
        .iter()
        .map(extent)
        .collect::<Option<Vec<_>>>()?
        .iter()
        .product();
    let Places {
        fixed,
        range: Some(range),
    } = Places::new(analysis, indices, DEPTH)?
    else {
        return None;
    };
    let counts = (0..).zip(&fixed).all(|(place, &index)| place == index);
    let limit = facts.extents(range.limit)?;
    let is_whole = range.axis == 0 && range.step == count as i64 && fixed.len() == count && counts;
    if !is_whole || limit.len() != 1 || !same(&limit[0], items) {
        return None;
    }
    let made: Vec<i64> = fixed.shape()[1..]
        .iter()
        .map(|&extent| extent as i64)
        .collect();
    let mut maker = Maker::new(graph, gather);
    maker.reshape(graph.value_name(value), &[&[-1], &made[..]].concat());
    Some(maker)
}

/// Indices: constants, to each of which those of a range may be added, times a number.
struct Places {
    /// Has one place along the axis of the range.
    fixed: ArrayD<i64>,
    range: Option<Progression>,
}

/// The numbers `0·step, 1·step, …` up to a limit, along an axis.
struct Progression {
    axis: usize,
    step: i64,
    limit: ValueId,
}

impl Places {
    fn new(analysis: &Analysis, value: ValueId, depth: usize) -> Option<Self> {
        let Analysis { graph, facts, .. } = analysis;
        if let Some(fixed) = constant(analysis, value) {
            return Some(Self { fixed, range: None });
        }
        let (node, _) = graph.producer(value)?;
        let at = analysis.at(node);
        let left = depth.checked_sub(1)?;
        let operand = |slot: usize| Self::new(analysis, at.input(slot).ok()?, left);
        match graph.op(node)? {
            "Range" if at.ints(0) == Ok(Some(vec![0])) && at.ints(2) == Ok(Some(vec![1])) => {
                let range = Progression {
                    axis: 0,
                    step: 1,
                    limit: at.input(1).ok()?,
                };
                Some(Self {
                    fixed: ArrayD::zeros(IxDyn(&[1])),
                    range: Some(range),
                })
            }
            "Cast" if facts.data_type(value) == Some(DataType::Int64) => operand(0),
            "Identity" => operand(0),
            "Unsqueeze" => operand(0)?.widened(&at),
            "Mul" => {
                let (one, other) = (operand(0)?, operand(1)?);
                let (places, factor) = if one.is_number() {
                    (other, one)
                } else {
                    (one, other)
                };
                // A factor of more axes would give the indices more.
                let fits = factor.is_number() && factor.fixed.ndim() <= places.fixed.ndim();
                let factor = factor.fixed.first().copied().filter(|_| fits)?;
                let range = places.range.map(|range| Progression {
                    step: range.step.wrapping_mul(factor),
                    ..range
                });
                Some(Self {
                    fixed: places.fixed.mapv(|place| place.wrapping_mul(factor)),
                    range,
                })
            }
            "Add" => operand(0)?.plus(operand(1)?),
            _ => None,
        }
    }

    fn is_number(&self) -> bool {
        self.fixed.len() == 1 && self.range.is_none()
    }

    /// With axes of one place among its own, as an Unsqueeze puts them.
    fn widened(self, at: &At) -> Option<Self> {
        let Self {
            mut fixed,
            mut range,
        } = self;
        let named = at.list("axes").ok()??;
        let mut new = axes(&named, fixed.ndim() + named.len()).ok()?;
        new.sort_unstable();
        for axis in new {
            fixed = fixed.insert_axis(Axis(axis));
            if let Some(range) = range.as_mut().filter(|range| axis <= range.axis) {
                range.axis += 1;
            }
        }
        Some(Self { fixed, range })
    }

    fn plus(self, other: Self) -> Option<Self> {
        let rank = self.fixed.ndim().max(other.fixed.ndim());
        let aligned = |Self { mut fixed, range }: Self| {
            let missing = rank - fixed.ndim();
            (0..missing).for_each(|_| fixed.insert_axis_inplace(Axis(0)));
            let range = range.map(|range| Progression {
                axis: range.axis + missing,
                ..range
            });
            Self { fixed, range }
        };
        let (one, other) = (aligned(self), aligned(other));
        let longer = |axis| {
            one.fixed
                .len_of(Axis(axis))
                .max(other.fixed.len_of(Axis(axis)))
        };
        let shape: Vec<usize> = (0..rank).map(longer).collect();
        let is_apart = |range: &Progression| shape[range.axis] == 1;
        let size = shape
            .iter()
            .try_fold(1usize, |size, &extent| size.checked_mul(extent));
        size.filter(|&size| size <= LARGEST)?;
        let mut fixed = one.fixed.broadcast(shape.clone())?.to_owned();
        fixed.zip_mut_with(&other.fixed.broadcast(shape.clone())?, |sum, &more| {
            *sum = sum.wrapping_add(more)
        });
        let range = match (one.range, other.range) {
            (Some(_), Some(_)) => return None,
            (range, none) => range.or(none),
        };
        range.as_ref().is_none_or(is_apart).then_some(())?;
        Some(Self { fixed, range })
    }
}

/// The elements of a constant of integers.
pub fn constant(analysis: &Analysis, value: ValueId) -> Option<ArrayD<i64>> {
    let shape: Vec<usize> = analysis
        .facts
        .shape(value)?
        .iter()
        .map(extent)
        .collect::<Option<_>>()?;
    let ints = analysis
        .constants
        .ints(value)
        .or_else(|| analysis.facts.ints(value))?;
    ArrayD::from_shape_vec(shape, ints).ok()
}
