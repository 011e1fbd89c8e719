//! Follows the layout of a value through a chain of movements.

use crate::analysis::axis_factors::factors::{Axes, AxisFactor, AxisFactors};
use crate::onnx::proto::NodeProto;
use crate::shape::facts::Shape;

/// The place of each element of a value after a chain of movements.
#[derive(Debug, Clone)]
pub(crate) struct LayoutMap {
    factors: AxisFactors,
    start: Axes,
    now: Axes,
    /// The factors of the axes along which [`LayoutMap::pick`] took one place.
    picked: Vec<AxisFactor>,
}

impl LayoutMap {
    /// Begins a chain of movements at a value of this shape. The chain may move axes of unknown
    /// extent, but not merge them with other axes.
    pub(crate) fn new(shape: &Shape) -> Self {
        let mut factors = AxisFactors::default();
        let start: Axes = shape.iter().map(|dim| factors.own(dim)).collect();
        LayoutMap {
            now: start.clone(),
            start,
            factors,
            picked: vec![],
        }
    }

    /// Follows a node whose result has this shape; `None` if its movement cannot be expressed in
    /// factors.
    pub(crate) fn follow(&mut self, node: &NodeProto, shape: &Shape) -> Option<()> {
        self.now = self.factors.moved(node, &self.now, shape)?;
        Some(())
    }

    /// Follows a node that takes one place along an axis, which then has extent 1 or is removed.
    /// `None` if the axis does not exist.
    pub(crate) fn pick(&mut self, axis: usize, keeps_axis: bool) -> Option<()> {
        let taken = self.now.get_mut(axis)?;
        self.picked.append(taken);
        if !keeps_axis {
            self.now.remove(axis);
        }
        Some(())
    }

    /// The factors of the present axes, listed in the given order of axes.
    fn read_in(&self, order: &[usize]) -> Vec<AxisFactor> {
        let axes = order.iter().filter_map(|&axis| self.now.get(axis));
        axes.flat_map(|axis| self.factors.leaves(axis)).collect()
    }

    /// Whether the present axes, read in `order`, list the elements in the order of the original
    /// value. If an axis was picked, its factors are read after the first `outer` axes.
    pub(crate) fn has_order(&self, order: &[usize], outer: usize) -> bool {
        let (outer, inner) = order.split_at(outer);
        let picked = self.factors.leaves(&self.picked);
        let read = [self.read_in(outer), picked, self.read_in(inner)].concat();
        order.len() == self.now.len() && self.factors.leaves(&self.start.concat()) == read
    }

    /// Whether the original axes, read in `order`, list the elements in the order of the present
    /// value.
    pub(crate) fn turns_into(&self, order: &[usize]) -> bool {
        let axes = order.iter().filter_map(|&axis| self.start.get(axis));
        let read: Vec<AxisFactor> = axes.flat_map(|axis| self.factors.leaves(axis)).collect();
        order.len() == self.start.len() && self.factors.leaves(&self.now.concat()) == read
    }

    /// Whether every element is at its original place, in a value of the original shape.
    pub(crate) fn is_identity(&self) -> bool {
        self.factors.same(&self.start, &self.now)
    }

    /// Whether the elements are still in their original order, though the shape may differ. If so,
    /// one reshape replaces the chain.
    pub(crate) fn keeps_order(&self) -> bool {
        self.factors.leaves(&self.start.concat()) == self.factors.leaves(&self.now.concat())
    }

    /// The index, in the last value of the chain, of each of these axes of the first value. `None`
    /// if an axis was split, or merged with another axis.
    pub(crate) fn places(&self, axes: &[usize]) -> Option<Vec<usize>> {
        let now: Vec<Vec<AxisFactor>> = self
            .now
            .iter()
            .map(|axis| self.factors.leaves(axis))
            .collect();
        axes.iter()
            .map(|&axis| {
                let held = self.factors.leaves(&self.start[axis]);
                now.iter()
                    .position(|axis| *axis == held && !held.is_empty())
            })
            .collect()
    }

    /// If the present axis `place` holds consecutive factors of one original axis, returns that
    /// original axis, and the products of its factors before and after them. `None` if a product is
    /// unknown, or if the present axis holds other factors.
    pub(crate) fn run(&self, place: usize) -> Option<(usize, [usize; 2])> {
        let held = self.factors.leaves(self.now.get(place)?);
        let first = held.first()?;
        let (axis, leaves, from) = self.start.iter().enumerate().find_map(|(axis, start)| {
            let leaves = self.factors.leaves(start);
            let from = leaves.iter().position(|factor| factor == first)?;
            Some((axis, leaves, from))
        })?;
        let (before, behind) = (
            &leaves[..from],
            leaves.get(from..)?.strip_prefix(&held[..])?,
        );
        Some((
            axis,
            [self.factors.count(before)?, self.factors.count(behind)?],
        ))
    }

    /// The permutation of axes that replaces the chain, if there is one.
    pub(crate) fn as_transpose(&self) -> Option<Vec<usize>> {
        let mut free: Vec<Option<Vec<AxisFactor>>> = self
            .start
            .iter()
            .map(|axis| Some(self.factors.leaves(axis)))
            .collect();
        let mut perm = vec![];
        for axis in &self.now {
            let axis = Some(self.factors.leaves(axis));
            let place = free.iter().position(|start| *start == axis)?;
            free[place] = None;
            perm.push(place);
        }
        (perm.len() == self.start.len()).then_some(perm)
    }
}

#[cfg(test)]
mod tests {
    use tract_onnx::tract_hir::internal::SymbolScope;

    use super::*;

    fn shape(scope: &SymbolScope, dims: &str) -> Shape {
        dims.split(',')
            .map(|dim| scope.parse_tdim(dim).ok())
            .collect()
    }

    /// Follows a chain of transposes, such as `0 2 1`, and of reshapes, such as `b,n`.
    fn trace(start: &str, steps: &[&str]) -> LayoutMap {
        let scope = SymbolScope::default();
        let mut trace = LayoutMap::new(&shape(&scope, start));
        for step in steps {
            let LayoutMap { factors, now, .. } = &mut trace;
            *now = match step.contains(' ') {
                true => step
                    .split(' ')
                    .map(|axis| now[axis.parse::<usize>().unwrap()].clone())
                    .collect(),
                false => factors.reshape(now, &shape(&scope, step)).unwrap(),
            };
        }
        trace
    }

    #[test]
    fn inverse_reshapes_and_transposes_are_the_identity() {
        let there = ["0 2 1", "b,384,196,1"];
        assert!(!trace("b,196,384", &there).is_identity());
        assert!(trace("b,196,384", &[&there[..], &["b,384,196", "0 2 1"]].concat()).is_identity());
    }

    #[test]
    fn flatten_and_unflatten_of_the_batch_is_the_identity() {
        assert!(trace("b,196,384", &["b*196,384", "b,196,384"]).is_identity());
        assert!(trace("b*196,384", &["b,196,384", "b*196,384"]).is_identity());
    }

    #[test]
    fn two_transposes_compose_to_one() {
        let trace = trace("b,24,96", &["0 2 1", "2 0 1"]);
        assert_eq!(trace.as_transpose(), Some(vec![1, 0, 2]));
        assert!(!trace.keeps_order());
    }

    #[test]
    fn reshape_keeps_order_and_is_no_transpose() {
        let trace = trace("b,4,4,192", &["b,16,192"]);
        assert!(trace.keeps_order());
        assert_eq!(trace.as_transpose(), None);
    }

    #[test]
    fn unknown_extents_are_permuted_but_not_regrouped() {
        assert!(trace("b,?,?", &["0 2 1", "0 2 1"]).is_identity());
        assert!(!trace("b,?,?", &["0 2 1"]).is_identity());
        assert_eq!(
            trace("?,4,?", &["1 2 0", "0 2 1"]).as_transpose(),
            Some(vec![1, 0, 2])
        );
        let LayoutMap {
            mut factors, now, ..
        } = trace("?,4,6", &[]);
        assert_eq!(
            factors.reshape(&now, &shape(&SymbolScope::default(), "?,24")),
            None
        );
        assert_eq!(
            factors.reshape(&now, &shape(&SymbolScope::default(), "6,4")),
            None
        );
    }

    #[test]
    fn rows_of_heads_are_in_the_order_of_the_projection() {
        let heads = ["b,7,2,4", "0 2 1 3"];
        let by_head = trace("b,7,8", &heads);
        assert!(by_head.has_order(&[0, 2, 1, 3], 2));
        assert!(!by_head.has_order(&[0, 1, 2, 3], 2));
        assert!(!by_head.has_order(&[0, 2, 1], 2));
        assert!(trace("b,2,7,4", &["0 2 1 3", "b,7,8"]).turns_into(&[0, 2, 1, 3]));
        assert!(!trace("b,2,7,4", &["0 2 1 3", "b,7,8"]).turns_into(&[0, 1, 2, 3]));
    }

    #[test]
    fn picked_axis_lies_between_tokens_and_heads() {
        let packed = ["b,7,3,2,4", "2 0 3 1 4"];
        for keeps_axis in [false, true] {
            let mut map = trace("b,7,24", &packed);
            assert_eq!(map.pick(5, keeps_axis), None);
            map.pick(0, keeps_axis).unwrap();
            let order: &[usize] = match keeps_axis {
                false => &[0, 2, 1, 3],
                true => &[0, 1, 3, 2, 4],
            };
            assert!(map.has_order(order, order.len() - 2));
            assert!(!map.has_order(order, order.len() - 1));
        }
        // In this layout, the three parts of each head lie next to each other, so a picked part
        // does not precede the heads.
        let mut inside = trace("b,7,24", &["b,7,2,3,4", "3 0 2 1 4"]);
        inside.pick(0, false).unwrap();
        assert!(!inside.has_order(&[0, 2, 1, 3], 2));
    }

    #[test]
    fn channels_merged_with_a_symbolic_batch_are_found_again() {
        let image = ["0 3 2 1", "b*6,3,2,2", "0 2 1 3"];
        let apart = trace("b,4,6,3", &image);
        assert_eq!(apart.places(&[3]), None);
        let whole = trace("b,4,6,3", &[&image[..], &["b,3,4,6"]].concat());
        assert_eq!(whole.places(&[3]), Some(vec![1]));
        assert_eq!(whole.places(&[1]), None);
        assert_eq!(
            trace("b,4,6,3", &["2 0 3 1"]).places(&[3, 1]),
            Some(vec![2, 3])
        );
    }

    #[test]
    fn transpose_of_equal_extents_is_no_identity() {
        assert!(!trace("b,8,8", &["0 2 1"]).is_identity());
        assert!(!trace("2,8", &["8,2"]).is_identity());
    }
}
