//! Which element of a source each element of a value is, behind movements and repetitions.
//!
//! A repetition makes factors of axes along which the value does not vary: behind `Unsqueeze, Expand, Reshape` of heads an
//! axis of `K·G` places holds the factors `[K, G]`, and place h reads head `h div G`; behind a Tile it holds `[G, K]`, and
//! place h reads head `h mod K`. Such factors are free in the algebra of [`super::layout`].

use tract_onnx::tract_hir::internal::TDim;

use super::layout::{Axes, AxisFactor, AxisFactors};
use super::node_view::At;
use crate::ir::axes::axis;
use crate::shape::facts::{Shape, extent, same};

/// How often a Gather or a Concat may repeat an axis.
const MOST_TIMES: usize = 1 << 10;

/// The axes of a value, as factors of the axes of a source and factors along which it repeats.
#[derive(Debug, Clone)]
pub struct RepeatMap {
    /// The factors of the source and of the value.
    pub factors: AxisFactors,
    source: Axes,
    value: Axes,
}

impl RepeatMap {
    /// A value of this shape as its own source. Axes of unknown extent are regrouped with no other.
    pub fn new(shape: &Shape) -> Self {
        let mut factors = AxisFactors::default();
        let source: Axes = shape.iter().map(|dim| factors.own(dim)).collect();
        RepeatMap {
            factors,
            value: source.clone(),
            source,
        }
    }

    /// Moves or repeats the value by a node; `None` where that cannot be followed.
    pub fn follow(&mut self, at: &At) -> Option<()> {
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
    pub fn source(&self) -> Axes {
        self.leaves(&self.source)
    }

    /// The factors of the axes of the value.
    pub fn value(&self) -> Axes {
        self.leaves(&self.value)
    }

    /// Whether the value repeats along a factor.
    pub fn is_repeat(&self, factor: AxisFactor) -> bool {
        self.factors.is_free(factor)
    }

    fn leaves(&self, axes: &Axes) -> Axes {
        axes.iter().map(|axis| self.factors.leaves(axis)).collect()
    }

    /// An axis of one place, or one that is new, is repeated; another one keeps its extent.
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

    /// All places of an axis come again behind the last one.
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

    /// Constant indices that name each place in order, each as often as the others, once or in several rounds.
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

    /// One value several times behind itself.
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

    /// A factor for so many repetitions.
    fn times(&mut self, count: usize) -> Option<Vec<AxisFactor>> {
        let count = Some(count).filter(|&count| count <= MOST_TIMES)?;
        Some(self.factors.free(TDim::from(count as i64)))
    }
}

/// How many rounds through all places a list of indices makes, and how often each place comes in a row.
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
    fn indices_repeat_each_place_or_all_of_them() {
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
