//! The factors of the axes of values.

use std::collections::{HashSet, VecDeque};

use tract_onnx::tract_hir::internal::{DimLike, TDim};

use crate::ir::axes::permutation;
use crate::onnx::operator::Category;
use crate::onnx::proto::NodeProto;
use crate::shape::facts::{Shape, same};

/// A factor of an axis, as an index into [`AxisFactors`].
pub(crate) type AxisFactor = usize;

/// The factors of each axis of a value.
pub(crate) type Axes = Vec<Vec<AxisFactor>>;

/// The facts about a factor.
#[derive(Debug, Clone)]
struct AxisFactorFact {
    /// The extent; `None` if it is unknown.
    extent: Option<TDim>,
    /// Whether the factor is not yet unified with a factor of another value.
    is_free: bool,
    /// The factors that replace this factor, because it was split or unified.
    parts: Option<Vec<AxisFactor>>,
}

/// The factors of the axes of several values. If a factor is split, its parts replace it in every
/// value.
#[derive(Debug, Clone, Default)]
pub(crate) struct AxisFactors(Vec<AxisFactorFact>);

impl AxisFactors {
    /// Creates the axes of a value of this shape. Each axis has one new factor, or none if its
    /// extent is 1. `None` if an extent is neither known nor symbolic.
    pub(crate) fn axes(&mut self, shape: &Shape) -> Option<Axes> {
        let dims: Vec<TDim> = shape.iter().cloned().collect::<Option<_>>()?;
        Some(dims.into_iter().map(|dim| self.axis(dim, false)).collect())
    }

    /// Creates an axis whose factor is free.
    pub(crate) fn free(&mut self, extent: TDim) -> Vec<AxisFactor> {
        self.axis(extent, true)
    }

    /// Creates an axis whose factor is not free. Its extent may be unknown.
    pub(crate) fn own(&mut self, extent: &Option<TDim>) -> Vec<AxisFactor> {
        match extent {
            Some(extent) => self.axis(extent.clone(), false),
            None => vec![self.make(None, false)],
        }
    }

    fn axis(&mut self, extent: TDim, is_free: bool) -> Vec<AxisFactor> {
        if extent.is_one() {
            vec![]
        } else {
            vec![self.make(Some(extent), is_free)]
        }
    }

    fn make(&mut self, extent: Option<TDim>, is_free: bool) -> AxisFactor {
        self.0.push(AxisFactorFact {
            extent,
            is_free,
            parts: None,
        });
        self.0.len() - 1
    }

    /// Whether a factor is not yet unified with another one.
    pub(crate) fn is_free(&self, factor: AxisFactor) -> bool {
        self.0[factor].is_free
    }

    /// The extent of a factor, if it is known.
    pub(crate) fn extent(&self, factor: AxisFactor) -> Option<usize> {
        crate::shape::extents::extent(&self.0[factor].extent)
    }

    /// The product of the extents of factors, if each is known or symbolic.
    pub(crate) fn product(&self, factors: &[AxisFactor]) -> Option<TDim> {
        let mut product = TDim::from(1);
        for &factor in factors {
            product = (product * self.0[factor].extent.as_ref()?).simplify();
        }
        Some(product)
    }

    /// The product of the extents of factors, if all are known.
    pub(crate) fn count(&self, factors: &[AxisFactor]) -> Option<usize> {
        factors.iter().try_fold(1usize, |count, &factor| {
            count.checked_mul(self.extent(factor)?)
        })
    }

    /// Replaces split factors by their parts, down to unsplit factors.
    pub(crate) fn leaves(&self, list: &[AxisFactor]) -> Vec<AxisFactor> {
        let mut leaves = vec![];
        self.push_leaves(list, &mut leaves);
        leaves
    }

    fn push_leaves(&self, list: &[AxisFactor], leaves: &mut Vec<AxisFactor>) {
        for &factor in list {
            match &self.0[factor].parts {
                Some(parts) => self.push_leaves(parts, leaves),
                None => leaves.push(factor),
            }
        }
    }

    /// Replaces split factors in axes by their parts; `None` if a factor then occurs twice.
    pub(crate) fn settled(&self, axes: &Axes) -> Option<Axes> {
        let mut seen = HashSet::new();
        let axes: Axes = axes.iter().map(|axis| self.leaves(axis)).collect();
        axes.iter()
            .flatten()
            .all(|&factor| seen.insert(factor))
            .then_some(axes)
    }

    /// The axes after a node that only moves elements, and whose result has the given shape; `None`
    /// for other nodes, or if the axes cannot be expressed in factors.
    pub(crate) fn moved(&mut self, node: &NodeProto, axes: &Axes, shape: &Shape) -> Option<Axes> {
        if node.category() != Some(Category::Movement) {
            return None;
        }
        match node.op_type() {
            "Identity" => Some(axes.clone()),
            "Transpose" => {
                let perm = permutation(node.attr_ints("perm").ok()?, axes.len()).ok()?;
                Some(perm.into_iter().map(|axis| axes[axis].clone()).collect())
            }
            "Squeeze" | "Unsqueeze" => self.kept(axes, shape).or_else(|| self.reshape(axes, shape)),
            _ => self.reshape(axes, shape),
        }
    }

    /// The axes after a Squeeze or an Unsqueeze, which only removes or adds axes of extent 1. The
    /// extents of the other axes may be unknown.
    fn kept(&self, axes: &Axes, shape: &Shape) -> Option<Axes> {
        let mut kept = axes.iter().filter(|axis| !self.leaves(axis).is_empty());
        let made: Axes = shape
            .iter()
            .map(|dim| match dim {
                Some(dim) if dim.is_one() => Some(vec![]),
                _ => kept.next().cloned(),
            })
            .collect::<Option<_>>()?;
        kept.next().is_none().then_some(made)
    }

    /// The axes after a reshape; `None` if it cannot be expressed in factors.
    pub(crate) fn reshape(&mut self, axes: &Axes, shape: &Shape) -> Option<Axes> {
        let dims: Vec<TDim> = shape.iter().cloned().collect::<Option<_>>()?;
        let mut queue: VecDeque<AxisFactor> = self.leaves(&axes.concat()).into();
        let mut reshaped = vec![];
        for (place, dim) in dims.iter().enumerate() {
            let mut axis = vec![];
            let mut product = TDim::from(1);
            while &product != dim {
                let factor = queue.pop_front()?;
                let longer = (product.clone() * self.0[factor].extent.as_ref()?).simplify();
                let parts = if &longer == dim {
                    None
                } else {
                    self.split(factor, &product, &dims[place..])
                };
                match parts {
                    Some(parts) => parts
                        .into_iter()
                        .rev()
                        .for_each(|part| queue.push_front(part)),
                    None => {
                        product = longer;
                        axis.push(factor);
                    }
                }
                if product
                    .to_i64()
                    .is_ok_and(|p| dim.to_i64().is_ok_and(|d| p > d))
                {
                    return None;
                }
            }
            reshaped.push(axis);
        }
        queue.is_empty().then_some(reshaped)
    }

    /// Splits a factor if only a part of it is needed to complete the extent `dims[0]`, of which
    /// `product` is already covered. `None` if no such split exists.
    fn split(
        &mut self,
        factor: AxisFactor,
        product: &TDim,
        dims: &[TDim],
    ) -> Option<Vec<AxisFactor>> {
        let AxisFactorFact {
            extent, is_free, ..
        } = self.0[factor].clone();
        let whole = extent?;
        let extents = match (whole.to_i64(), quotient(&dims[0], product)) {
            (Ok(number), Some(needed)) => split_number(number, needed)?,
            _ if product.is_one() => split_symbol(&whole, dims)?,
            _ => return None,
        };
        if extents.len() < 2 {
            return None;
        }
        let parts: Vec<AxisFactor> = extents
            .into_iter()
            .map(|extent| self.make(Some(extent), is_free))
            .collect();
        self.0[factor].parts = Some(parts.clone());
        Some(parts)
    }

    /// The factors that a Reduce operator removes, in ascending order, and the axes of its result.
    pub(crate) fn reduced(
        &self,
        axes: &Axes,
        over: &[usize],
        keep: bool,
    ) -> (Vec<AxisFactor>, Axes) {
        let mut leaves: Vec<AxisFactor> = over
            .iter()
            .flat_map(|&axis| self.leaves(&axes[axis]))
            .collect();
        leaves.sort_unstable();
        let mut rest = vec![];
        for (i, axis) in axes.iter().enumerate() {
            match (over.contains(&i), keep) {
                (false, _) => rest.push(axis.clone()),
                (true, true) => rest.push(vec![]),
                (true, false) => {}
            }
        }
        (leaves, rest)
    }

    /// Whether two lists of axes have the same factors at each place.
    pub(crate) fn same(&self, left: &Axes, right: &Axes) -> bool {
        left.len() == right.len()
            && left
                .iter()
                .zip(right)
                .all(|(one, other)| self.leaves(one) == self.leaves(other))
    }

    /// The axes of the result of an element-wise operator on two values; `None` if their factors
    /// differ at some place.
    pub(crate) fn broadcast(&mut self, left: &Axes, right: &Axes) -> Option<Axes> {
        let rank = left.len().max(right.len());
        let (left, right) = (widened(left, rank), widened(right, rank));
        let mut axes = vec![];
        for (one, other) in left.iter().zip(&right) {
            axes.push(self.meet(one, other)?);
        }
        self.settled(&axes)
    }

    /// The axis that results if two axes broadcast to each other. `None` if both vary and cannot be
    /// made equal. Free factors are unified with the factors at the same position of the other
    /// axis.
    fn meet(&mut self, one: &[AxisFactor], other: &[AxisFactor]) -> Option<Vec<AxisFactor>> {
        let (one, other) = (self.leaves(one), self.leaves(other));
        if one == other || other.is_empty() {
            return Some(one);
        }
        if one.is_empty() {
            return Some(other);
        }
        let (fine, coarse) = if one.len() >= other.len() {
            (one, other)
        } else {
            (other, one)
        };
        let extents = fine
            .iter()
            .map(|&factor| self.0[factor].extent.clone())
            .collect();
        let groups = self.reshape(&vec![coarse], &extents)?;
        for (&factor, group) in fine.iter().zip(&groups) {
            // Factors that were unified earlier in this axis are no longer free.
            let (factor, group) = (self.leaves(&[factor]), self.leaves(group));
            match (&factor[..], &group[..]) {
                _ if factor == group => {}
                (_, &[single]) if self.0[single].is_free => self.0[single].parts = Some(factor),
                (&[single], _) if self.0[single].is_free => self.0[single].parts = Some(group),
                _ => return None,
            }
        }
        Some(self.leaves(&fine))
    }
}

/// The axes, padded in front with axes of extent 1 up to `rank`.
fn widened(axes: &Axes, rank: usize) -> Axes {
    [vec![vec![]; rank - axes.len()], axes.clone()].concat()
}

/// Splits a known extent into the needed factor and the remaining one. `None` if one of them would
/// be 1, or if the division has a remainder.
fn split_number(number: i64, needed: i64) -> Option<Vec<TDim>> {
    let is_part = needed > 1 && number % needed == 0 && number != needed;
    is_part.then(|| vec![TDim::from(needed), TDim::from(number / needed)])
}

/// Splits a symbolic extent into the first extents of `dims` whose product equals it. `None` if no
/// product of first extents equals it.
fn split_symbol(whole: &TDim, dims: &[TDim]) -> Option<Vec<TDim>> {
    let mut covered = TDim::from(1);
    let last = dims.iter().position(|dim| {
        covered = (covered.clone() * dim).simplify();
        covered == *whole
    })?;
    let parts = dims[..=last].iter().filter(|dim| !dim.is_one());
    Some(parts.cloned().collect())
}

/// The quotient of two extents if it is an integer: 3 for `6·b` and `2·b`.
fn quotient(dim: &TDim, product: &TDim) -> Option<i64> {
    if let (Ok(dim), Ok(product)) = (dim.to_i64(), product.to_i64()) {
        return (product > 0 && dim % product == 0).then(|| dim / product);
    }
    let (quotient, 1) = dim.maybe_div(product).ok()? else {
        return None;
    };
    let number = quotient.to_i64().ok()?;
    (number > 0 && same(&Some(product.clone() * number), &Some(dim.clone()))).then_some(number)
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

    /// The axes of a value of shape `dims`.
    fn value(dims: &str) -> (AxisFactors, Axes) {
        let mut factors = AxisFactors::default();
        let axes = factors.axes(&shape(&SymbolScope::default(), dims)).unwrap();
        (factors, axes)
    }

    #[test]
    fn splitting_and_merging_heads_restores_the_factors() {
        let (mut factors, axes) = value("6,8");
        let scope = SymbolScope::default();
        let heads = factors.reshape(&axes, &shape(&scope, "6,2,4")).unwrap();
        assert_eq!(factors.leaves(&axes[1]), [heads[1][0], heads[2][0]]);
        let back = factors.reshape(&heads, &shape(&scope, "6,8")).unwrap();
        assert!(factors.same(&back, &axes));
    }

    #[test]
    fn broadcast_needs_equal_factors_at_each_axis() {
        let (mut factors, axes) = value("8,8");
        let [t, c] = [axes[0][0], axes[1][0]];
        assert_eq!(
            factors.broadcast(&axes, &vec![vec![t], vec![]]),
            Some(axes.clone())
        );
        assert_eq!(factors.broadcast(&axes, &vec![vec![c]]), Some(axes.clone()));
        assert_eq!(factors.broadcast(&axes, &vec![vec![c], vec![t]]), None);
        assert_eq!(factors.broadcast(&axes, &vec![vec![t]]), None);
    }

    #[test]
    fn reshape_that_mixes_factors_is_unknown() {
        for dims in ["9,5", "4,12", "0"] {
            let (mut factors, axes) = value("6,8");
            assert_eq!(
                factors.reshape(&axes, &shape(&SymbolScope::default(), dims)),
                None
            );
        }
    }

    #[test]
    fn free_axis_unifies_with_the_axis_it_meets() {
        let (mut factors, axes) = value("6,8");
        let [heads, places] = [2, 4].map(|extent| factors.free(TDim::from(extent)));
        let wide = vec![[heads.clone(), places.clone()].concat()];
        assert!(factors.broadcast(&axes, &wide).is_some());
        assert_eq!(factors.leaves(&axes[1]), factors.leaves(&wide[0]));
        // A free axis does not unify with an axis of a different extent. Once it is unified with an
        // axis, it does not unify with a second one.
        let tall = factors.free(TDim::from(8));
        assert_eq!(factors.broadcast(&axes, &vec![tall, vec![]]), None);
        let (mut factors, axes) = value("8,8");
        let free = factors.free(TDim::from(8));
        let square = factors
            .broadcast(&vec![axes[0].clone(), vec![]], &vec![free.clone()])
            .unwrap();
        assert!(factors.broadcast(&axes, &square).is_some());
        assert_eq!(factors.broadcast(&axes, &vec![free, vec![]]), None);
    }

    #[test]
    fn product_with_a_repeated_factor_is_unknown() {
        let (mut factors, axes) = value("8");
        let free = factors.free(TDim::from(8));
        let product = vec![axes[0].clone(), free.clone()];
        assert!(factors.settled(&product).is_some());
        factors.broadcast(&axes, &vec![free]).unwrap();
        assert_eq!(factors.settled(&product), None);
    }

    #[test]
    fn quotient_of_extents_is_an_integer_or_none() {
        let scope = SymbolScope::default();
        let cases = [
            ("6*b", "2*b", Some(3)),
            ("6*b", "b", Some(6)),
            ("6", "2", Some(3)),
            ("6", "4", None),
            ("6*b", "4*b", None),
            ("6*b", "2*c", None),
            ("6*b", "2", None),
            ("b+6", "b", None),
            ("2", "6*b", None),
            ("6", "0", None),
        ];
        for (whole, part, times) in cases {
            let [dim, product] = [whole, part].map(|text| scope.parse_tdim(text).unwrap());
            assert_eq!(quotient(&dim, &product), times, "{whole} {part}");
        }
    }
}
