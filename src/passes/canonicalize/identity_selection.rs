//! Replaces a Gather that selects all places of a value in order by a Reshape of the value.
//!
//! torch calls `as_strided` to give a mean over a transposed image the memory layout of other
//! means. The call is exported as a Gather from the flattened value, with computed indices. For n
//! items of k places each, the indices are `Range(0, n)·k` plus the constants 0 to k − 1, so they
//! list all places in order.

use ndarray::{ArrayD, Axis, IxDyn};

use crate::analysis::Analysis;
use crate::analysis::broadcast::LARGEST;
use crate::analysis::node_view::At;
use crate::ir::axes::axes;
use crate::ir::builder::Maker;
use crate::ir::{NodeId, ValueId};
use crate::onnx::tensor::DataType;
use crate::shape::facts::{extent, same};

/// The longest chain of operators through which the computation of indices is followed.
const DEPTH: usize = 12;

/// Replaces a Gather that selects all places of a value in order by a Reshape of the value. `None`
/// if it selects other places, or if its indices are not understood.
pub(crate) fn as_reshape<'m>(analysis: &'m Analysis, gather: NodeId) -> Option<Maker<'m>> {
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

/// Indices as a sum of constants and, if `range` is set, an arithmetic progression along one axis.
struct Places {
    /// The constants. They have extent 1 along the axis of the progression.
    fixed: ArrayD<i64>,
    range: Option<Progression>,
}

/// The numbers `0, step, 2·step, …` along an axis. `limit` is the value that holds their count.
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
            "Cast" if facts.data_type(value) == Some(DataType::Int64) => {
                Self::read_by(&at, 0, analysis, left)
            }
            "Identity" => Self::read_by(&at, 0, analysis, left),
            "Unsqueeze" => Self::read_by(&at, 0, analysis, left)?.unsqueezed(&at),
            "Mul" => {
                let one = Self::read_by(&at, 0, analysis, left)?;
                let other = Self::read_by(&at, 1, analysis, left)?;
                if one.is_number() {
                    other.times(one)
                } else {
                    one.times(other)
                }
            }
            "Add" => {
                let one = Self::read_by(&at, 0, analysis, left)?;
                one.plus(Self::read_by(&at, 1, analysis, left)?)
            }
            _ => None,
        }
    }

    /// The indices that a node reads at the input `slot`. `None` if they are not understood.
    fn read_by(at: &At, slot: usize, analysis: &Analysis, depth: usize) -> Option<Self> {
        Self::new(analysis, at.input(slot).ok()?, depth)
    }

    fn is_number(&self) -> bool {
        self.fixed.len() == 1 && self.range.is_none()
    }

    /// Multiplies by a scalar. `None` if `factor` is not a scalar, or has a higher rank than
    /// `self`.
    fn times(self, factor: Self) -> Option<Self> {
        let fits = factor.is_number() && factor.fixed.ndim() <= self.fixed.ndim();
        let factor = factor.fixed.first().copied().filter(|_| fits)?;
        let range = self.range.map(|range| Progression {
            step: range.step.wrapping_mul(factor),
            ..range
        });
        Some(Self {
            fixed: self.fixed.mapv(|place| place.wrapping_mul(factor)),
            range,
        })
    }

    /// The indices after an Unsqueeze. `None` if its axes are not constant.
    fn unsqueezed(self, at: &At) -> Option<Self> {
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

    /// The element-wise sum of two arrays of indices. `None` if both have a progression, or if the
    /// constants vary along the axis of the progression.
    fn plus(self, other: Self) -> Option<Self> {
        let rank = self.fixed.ndim().max(other.fixed.ndim());
        let (one, other) = (self.aligned(rank), other.aligned(rank));
        let extents = one.fixed.shape().iter().zip(other.fixed.shape());
        let shape: Vec<usize> = extents.map(|(one, other)| *one.max(other)).collect();
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
        let is_apart = range.as_ref().is_none_or(|range| shape[range.axis] == 1);
        is_apart.then_some(Self { fixed, range })
    }

    /// Adds leading axes of extent 1, up to `rank` axes.
    fn aligned(self, rank: usize) -> Self {
        let Self { mut fixed, range } = self;
        let missing = rank - fixed.ndim();
        (0..missing).for_each(|_| fixed.insert_axis_inplace(Axis(0)));
        let range = range.map(|range| Progression {
            axis: range.axis + missing,
            ..range
        });
        Self { fixed, range }
    }
}

/// The elements of an integer value, in its shape, if it is a constant or shape inference knows
/// them.
pub(crate) fn constant(analysis: &Analysis, value: ValueId) -> Option<ArrayD<i64>> {
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
