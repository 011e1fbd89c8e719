//! Maps each element of a value to the element of a source that it copies, through movements and
//! repetitions.
//!
//! A repetition adds factors along which the value does not vary. For example, let `Unsqueeze,
//! Expand, Reshape` repeat each of K heads G times. This gives an axis of extent `K·G` with the
//! factors `[K, G]`, in which place h reads head `h div G`. A Tile gives the factors `[G, K]`, so
//! that place h reads head `h mod K`. Such factors are free in the algebra of
//! [`super::axis_factors`].

use tract_onnx::tract_hir::internal::TDim;

use super::axis_factors::{Axes, AxisFactor, AxisFactors};
use super::node_view::At;
use crate::ir::axes::axis;
use crate::shape::facts::{Shape, extent, same};

/// The maximum number of repetitions of an axis by a Gather or a Concat.
const MOST_TIMES: usize = 1 << 10;

/// The axes of a value, expressed in factors of the axes of a source and in factors along which it
/// repeats.
#[derive(Debug, Clone)]
pub(crate) struct RepeatMap {
    /// The factors of the source and of the value.
    pub factors: AxisFactors,
    source: Axes,
    value: Axes,
}

impl RepeatMap {
    /// Starts with a value of the given shape as its own source. Axes of unknown extent cannot be
    /// merged with others.
    pub(crate) fn new(shape: &Shape) -> Self {
        let mut factors = AxisFactors::default();
        let source: Axes = shape.iter().map(|dim| factors.own(dim)).collect();
        RepeatMap {
            factors,
            value: source.clone(),
            source,
        }
    }

    /// Follows a node that moves or repeats the value; `None` if the result cannot be expressed in
    /// factors.
    pub(crate) fn follow(&mut self, at: &At) -> Option<()> {
        self.value = match at.proto().op_type() {
            "Expand" => self.expanded(at)?,
            "Tile" => self.tiled(at)?,
            "Gather" => self.gathered(at)?,
            "Concat" => self.joined(at)?,
            _ => {
                let shape = at.output_shape(0).ok()?;
                self.factors.moved(at.proto(), &self.value, &shape)?
            }
        };
        Some(())
    }

    /// The factors of the axes of the source.
    pub(crate) fn source(&self) -> Axes {
        self.leaves(&self.source)
    }

    /// The factors of the axes of the value.
    pub(crate) fn value(&self) -> Axes {
        self.leaves(&self.value)
    }

    /// Whether the value repeats along a factor.
    pub(crate) fn is_repeat(&self, factor: AxisFactor) -> bool {
        self.factors.is_free(factor)
    }

    fn leaves(&self, axes: &Axes) -> Axes {
        axes.iter().map(|axis| self.factors.leaves(axis)).collect()
    }

    /// The axes after an Expand, which repeats new axes and axes of extent 1, and keeps the others.
    fn expanded(&mut self, at: &At) -> Option<Axes> {
        at.only_attributes(&[]).ok()?;
        let (before, behind) = (at.shape(0).ok()?, at.output_shape(0).ok()?);
        let new = behind.len().checked_sub(before.len())?;
        let mut axes = vec![];
        for (place, dim) in behind.iter().enumerate() {
            let from = place.checked_sub(new);
            axes.push(match from {
                Some(from) if same(&before[from], dim) => self.value[from].clone(),
                Some(from) if extent(&before[from]) != Some(1) => return None,
                _ => self.factors.free(dim.clone()?),
            });
        }
        Some(axes)
    }

    /// The axes after a Tile, which repeats all places of an axis in order.
    fn tiled(&mut self, at: &At) -> Option<Axes> {
        at.only_attributes(&[]).ok()?;
        let repeats = at.facts.extents(at.input(1).ok()?)?;
        if repeats.len() != self.value.len() {
            return None;
        }
        let mut axes = vec![];
        for (held, times) in self.value.clone().iter().zip(repeats) {
            let times = times.filter(|times| *times != TDim::from(0))?;
            axes.push([self.factors.free(times), held.clone()].concat());
        }
        Some(axes)
    }

    /// The axes after a Gather whose constant indices list all places in order, each equally many
    /// times, in one or several rounds.
    fn gathered(&mut self, at: &At) -> Option<Axes> {
        at.only_attributes(&["axis"]).ok()?;
        let along = axis(at.attr("axis", 0).ok()?, at.rank(0).ok()?).ok()?;
        let is_list = at.rank(1).ok()? == 1;
        let indices = at.ints(1).ok().flatten().filter(|_| is_list)?;
        let [rounds, times] = rounds(&indices, at.extent(0, along).ok()?)?;
        let mut axes = self.value.clone();
        axes[along] = [self.times(rounds)?, axes[along].clone(), self.times(times)?].concat();
        Some(axes)
    }

    /// The axes after a Concat of one value with itself; `None` for other values.
    fn joined(&mut self, at: &At) -> Option<Axes> {
        at.only_attributes(&["axis"]).ok()?;
        let along = axis(at.proto().attr_i("axis").ok()??, at.rank(0).ok()?).ok()?;
        let inputs = at.graph.inputs(at.node);
        let is_one_value = inputs.iter().all(|input| *input == inputs[0]);
        let times = self.times(inputs.len()).filter(|_| is_one_value)?;
        let mut axes = self.value.clone();
        axes[along] = [times, axes[along].clone()].concat();
        Some(axes)
    }

    /// A free factor for `count` repetitions; `None` for more than [`MOST_TIMES`].
    fn times(&mut self, count: usize) -> Option<Vec<AxisFactor>> {
        let count = Some(count).filter(|&count| count <= MOST_TIMES)?;
        Some(self.factors.free(TDim::from(count as i64)))
    }
}

/// The number of rounds that a list of indices makes through all places, and the number of
/// consecutive occurrences of each place in a round. `None` for any other list.
fn rounds(indices: &[i64], places: usize) -> Option<[usize; 2]> {
    let times = indices.iter().take_while(|&&index| index == 0).count();
    let round = times.checked_mul(places).filter(|&round| round > 0)?;
    let is_next = |(place, &index): (usize, &i64)| (place / times % places) as i64 == index;
    let is_whole = indices.len().is_multiple_of(round) && indices.iter().enumerate().all(is_next);
    is_whole.then_some([indices.len() / round, times])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_that_repeat_elements_or_tile_them_are_recognized() {
        assert_eq!(rounds(&[0, 0, 1, 1, 2, 2], 3), Some([1, 2]));
        assert_eq!(rounds(&[0, 1, 2, 0, 1, 2], 3), Some([2, 1]));
        assert_eq!(rounds(&[0, 0, 1, 1, 0, 0, 1, 1], 2), Some([2, 2]));
        assert_eq!(rounds(&[0, 0, 0], 1), Some([1, 3]));
        for indices in [
            &[0, 0, 1][..],
            &[0, 0, 1, 2],
            &[1, 1, 0, 0],
            &[0, 2, 1],
            &[],
        ] {
            assert_eq!(rounds(indices, 3), None, "{indices:?}");
        }
    }
}
