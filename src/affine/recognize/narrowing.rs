//! Factors that widen statistics: `(x − μ)·(rstd·γ)`, where `rstd` is one scalar for all channels.
//!
//! Without `γ`, the product has the extents of `rstd`. Later results are unchanged if arithmetic
//! combines the product only with values of the full width.

use crate::analysis::Analysis;
use crate::hash::HashSet;
use crate::ir::{NodeId, Reader, ValueId};
use crate::onnx::operator::Category;
use crate::shape::facts::{Shape, extent, same_shape};

/// The largest number of operators between the product and a value of the full width.
const DEPTH: usize = 4;

/// The values that become narrower once the examined factors fold, and the values that must stay
/// wide for that.
#[derive(Default)]
pub(super) struct Narrowing {
    narrowed: HashSet<ValueId>,
    /// The values that need their full width, because a narrowed value is combined with them.
    wide: HashSet<ValueId>,
}

impl Narrowing {
    /// Whether no reader would notice if a value, the product of `from` and a constant, had the
    /// extents of `from`.
    pub(super) fn is_needless(
        &mut self,
        analysis: &Analysis,
        from: ValueId,
        value: ValueId,
    ) -> bool {
        let Some(shape) = analysis.facts.shape(from) else {
            return false;
        };
        let mut found = Narrowing::default();
        let meets = found.meets(analysis, value, &shape, DEPTH);
        let fits = meets
            && found.narrowed.is_disjoint(&found.wide)
            && found.narrowed.is_disjoint(&self.wide)
            && self.narrowed.is_disjoint(&found.wide);
        if fits {
            self.narrowed.extend(found.narrowed);
            self.wide.extend(found.wide);
        }
        fits
    }

    /// Whether every path from a value combines it with a value of the full width within `depth`
    /// operators, if the value itself only has the shape `shape`.
    fn meets(&mut self, analysis: &Analysis, value: ValueId, shape: &Shape, depth: usize) -> bool {
        let readers = analysis.graph.readers(value);
        self.narrowed.insert(value);
        depth > 0
            && !readers.is_empty()
            && readers.iter().all(|reader| match *reader {
                Reader::Node { node, .. } => self
                    .passes(analysis, node, value, shape, depth)
                    .unwrap_or(false),
                _ => false,
            })
    }

    fn passes(
        &mut self,
        analysis: &Analysis,
        node: NodeId,
        value: ValueId,
        shape: &Shape,
        depth: usize,
    ) -> Option<bool> {
        let (graph, facts) = (&analysis.graph, &analysis.facts);
        let output = graph
            .only_output(node)
            .filter(|_| graph.category(node) == Some(Category::Arithmetic))?;
        let whole = facts.shape(output)?;
        let others = graph
            .inputs(node)
            .iter()
            .flatten()
            .filter(|&&input| input != value);
        let mut narrow = vec![Some(1.into()); whole.len().checked_sub(shape.len())?];
        narrow.extend(shape.iter().cloned());
        for &other in others {
            // A constant may fold too, so its width does not count.
            if analysis.constants.is_constant(other) {
                continue;
            }
            let shape_of_other = facts.shape(other)?;
            if same_shape(&shape_of_other, &whole) {
                self.wide.insert(other);
                return Some(true);
            }
            let missing = whole.len().checked_sub(shape_of_other.len())?;
            for (axis, dim) in shape_of_other
                .iter()
                .enumerate()
                .filter(|(_, dim)| extent(dim) != Some(1))
            {
                narrow[missing + axis] = dim.clone();
            }
        }
        Some(self.meets(analysis, output, &narrow.into_iter().collect(), depth - 1))
    }
}
