//! Reshapes and transposes as maps between axes, with symbolic extents.

use ndarray::{ArrayD, IxDyn};
use tract_onnx::tract_hir::internal::TDim;

use super::facts::{Shape, extent};
use crate::refusal::Reason;

/// Constants of more elements than this are not made only so that a shift can follow a movement.
pub const LARGEST: usize = 1 << 24;

/// Carries an array that broadcasts over a value of shape `from` through a reshape to shape `to`.
///
/// The two shapes are cut where the products of their extents agree. Between two cuts the array
/// either does not vary, and then it does not afterwards, or every extent is a number, and then it
/// is written out and reshaped like the value.
///
/// # Errors
/// [`Reason::MixedAxes`] where the array varies within a cut of symbolic extents.
pub fn reshape(array: &ArrayD<f64>, from: &Shape, to: &Shape) -> Result<ArrayD<f64>, Reason> {
    if array.ndim() != from.len() {
        // Of a model whose ranks contradict each other.
        return Err(Reason::UnknownShape);
    }
    let (mut expanded, mut result) = (vec![], vec![]);
    let mut start = (0, 0);
    for end in cuts(from, to) {
        let (before, after) = (start.0..end.0, start.1..end.1);
        start = end;
        if array.shape()[before.clone()].iter().all(|&n| n == 1) {
            expanded.extend(before.map(|_| 1));
            result.extend(after.map(|_| 1));
            continue;
        }
        let wide = |dims: &[Option<TDim>]| {
            dims.iter().enumerate().filter(|(_, dim)| extent(dim) != Some(1)).map(|(i, _)| i).next_back()
        };
        let count = |dims: &[Option<TDim>]| dims.iter().filter(|d| extent(d) != Some(1)).count();
        if count(&from[before.clone()]) == 1 && count(&to[after.clone()]) == 1 {
            // One axis, moved among axes of extent 1: its extent need not be known.
            expanded.extend_from_slice(&array.shape()[before.clone()]);
            let place = wide(&to[after.clone()]);
            let varies = array.shape()[before].iter().copied().max().unwrap_or(1);
            result.extend(after.enumerate().map(|(i, _)| if Some(i) == place { varies } else { 1 }));
            continue;
        }
        let numbers = |dims: &[Option<TDim>]| dims.iter().map(extent).collect::<Option<Vec<_>>>();
        let (Some(before), Some(after)) = (numbers(&from[before]), numbers(&to[after])) else {
            return Err(Reason::MixedAxes);
        };
        expanded.extend(before);
        result.extend(after);
    }
    let size = expanded.iter().try_fold(1, |size: usize, &extent| size.checked_mul(extent));
    let size = size.unwrap_or(usize::MAX);
    if size > LARGEST {
        return Err(Reason::TooLarge(size));
    }
    let written_out = array.broadcast(IxDyn(&expanded)).ok_or(Reason::UnknownShape)?;
    let reshaped = written_out.to_shape(IxDyn(&result)).map_err(|_| Reason::UnknownShape)?;
    Ok(reshaped.into_owned())
}

/// The places `(i, j)` at which `from[..i]` and `to[..j]` hold equally many elements, the end last.
fn cuts(from: &Shape, to: &Shape) -> Vec<(usize, usize)> {
    let (heads, tails) =
        ((products(from, false), products(to, false)), (products(from, true), products(to, true)));
    let agree = |i: usize, j: usize| {
        let same = |a: &Option<TDim>, b: &Option<TDim>| a.is_some() && a == b;
        same(&heads.0[i], &heads.1[j]) || same(&tails.0[i], &tails.1[j])
    };
    let mut cuts = vec![];
    let (mut i, mut j) = (0, 0);
    while (i, j) != (from.len(), to.len()) {
        let next = (1..=from.len() - i + to.len() - j).find_map(|step| {
            (0..=step)
                .map(|di| (i + di, j + step - di))
                .find(|&(i, j)| i <= from.len() && j <= to.len() && agree(i, j))
        });
        (i, j) = next.unwrap_or((from.len(), to.len()));
        cuts.push((i, j));
    }
    cuts
}

/// Products of the extents before (or, from the end, behind) each place, while all are known.
fn products(shape: &Shape, from_the_end: bool) -> Vec<Option<TDim>> {
    let one = Some(TDim::from(1));
    let step = |product: &mut Option<TDim>, dim: &Option<TDim>| {
        *product = product.take().zip(dim.clone()).map(|(p, d)| (p * d).simplify());
        Some(product.clone())
    };
    if from_the_end {
        let mut products: Vec<_> =
            std::iter::once(one.clone()).chain(shape.iter().rev().scan(one, step)).collect();
        products.reverse();
        products
    } else {
        std::iter::once(one.clone()).chain(shape.iter().scan(one, step)).collect()
    }
}

/// Where the elements of a value are after a chain of transposes and reshapes.
///
/// Axes are lists of atoms, row-major: a transpose permutes the lists, a reshape groups the atoms
/// anew and splits one where it must.
#[derive(Debug, Clone)]
pub struct Trace {
    extents: Vec<TDim>,
    start: Vec<Vec<usize>>,
    now: Vec<Vec<usize>>,
}

impl Trace {
    /// The start of a chain, at a value of this shape.
    pub fn new(shape: &Shape) -> Option<Self> {
        let mut trace = Trace { extents: vec![], start: vec![], now: vec![] };
        for dim in shape {
            let dim = dim.clone()?;
            let axis = if dim.is_one() { vec![] } else { vec![trace.atom(dim)] };
            trace.start.push(axis);
        }
        trace.now = trace.start.clone();
        Some(trace)
    }

    /// Whether every element is where it was, in a value of the same shape.
    pub fn is_identity(&self) -> bool {
        self.start == self.now
    }

    /// Whether the elements are in the order in which they were, whatever the shape: one reshape
    /// can do it.
    pub fn keeps_order(&self) -> bool {
        self.start.concat() == self.now.concat()
    }

    /// The permutation of axes that does it all, if one does.
    pub fn as_transpose(&self) -> Option<Vec<usize>> {
        let mut free: Vec<Option<&Vec<usize>>> = self.start.iter().map(Some).collect();
        let mut take = |axis: &Vec<usize>| {
            let place = free.iter().position(|start| *start == Some(axis))?;
            free[place] = None;
            Some(place)
        };
        let perm = self.now.iter().map(&mut take).collect::<Option<Vec<_>>>()?;
        (perm.len() == self.start.len()).then_some(perm)
    }

    /// Permutes the axes; `perm[i]` is the old place of the new axis `i`.
    pub fn transpose(&mut self, perm: &[usize]) -> Option<()> {
        self.now = perm.iter().map(|&axis| self.now.get(axis).cloned()).collect::<Option<_>>()?;
        Some(())
    }

    /// Regroups the elements into `shape`; `None` where that cannot be followed.
    pub fn reshape(&mut self, shape: &Shape) -> Option<()> {
        let dims: Vec<TDim> = shape.iter().cloned().collect::<Option<_>>()?;
        let mut atoms: std::collections::VecDeque<usize> = self.now.concat().into();
        let mut axes = vec![];
        for (place, dim) in dims.iter().enumerate() {
            let mut axis = vec![];
            let mut product = TDim::from(1);
            while &product != dim {
                let atom = atoms.pop_front()?;
                let longer = (product.clone() * &self.extents[atom]).simplify();
                if &longer == dim || !self.split(atom, &product, &dims[place..], &mut atoms) {
                    product = longer;
                    axis.push(atom);
                }
                if product.to_i64().is_ok_and(|p| dim.to_i64().is_ok_and(|d| p > d)) {
                    return None;
                }
            }
            axes.push(axis);
        }
        atoms.is_empty().then(|| self.now = axes)
    }

    fn atom(&mut self, extent: TDim) -> usize {
        self.extents.push(extent);
        self.extents.len() - 1
    }

    /// Splits an atom where the wanted extents need only a part of it, and queues its parts.
    fn split(
        &mut self,
        atom: usize,
        product: &TDim,
        dims: &[TDim],
        queue: &mut std::collections::VecDeque<usize>,
    ) -> bool {
        let whole = self.extents[atom].clone();
        let parts = if let (Ok(whole), Ok(product), Ok(dim)) =
            (whole.to_i64(), product.to_i64(), dims[0].to_i64())
        {
            let needed = dim / product.max(1);
            if needed <= 1 || dim % product.max(1) != 0 || whole % needed != 0 || whole == needed {
                return false;
            }
            vec![TDim::from(needed), TDim::from(whole / needed)]
        } else {
            if !product.is_one() {
                return false;
            }
            let mut covered = TDim::from(1);
            let count = dims.iter().position(|dim| {
                covered = (covered.clone() * dim).simplify();
                covered == whole
            });
            match count {
                Some(last) if last > 0 => dims[..=last].iter().filter(|dim| !dim.is_one()).cloned().collect(),
                _ => return false,
            }
        };
        if parts.len() < 2 {
            return false;
        }
        let parts: Vec<usize> = parts.into_iter().map(|extent| self.atom(extent)).collect();
        for axis in self.start.iter_mut().chain(&mut self.now) {
            if let Some(at) = axis.iter().position(|&a| a == atom) {
                axis.splice(at..=at, parts.iter().copied());
            }
        }
        for &part in parts.iter().rev() {
            queue.push_front(part);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::{Array1, array};
    use tract_onnx::tract_hir::internal::SymbolScope;

    fn shape(scope: &SymbolScope, dims: &str) -> Shape {
        dims.split(',').map(|dim| scope.parse_tdim(dim).ok()).collect()
    }

    #[test]
    fn channels_survive_flattening_of_symbolic_tokens() {
        let scope = SymbolScope::default();
        let (from, to) = (shape(&scope, "b,197,4"), shape(&scope, "b*197,4"));
        let channels = array![[[1.0, 2.0, 3.0, 4.0]]].into_dyn();
        let flat = reshape(&channels, &from, &to).unwrap();
        assert_eq!(flat, array![[1.0, 2.0, 3.0, 4.0]].into_dyn());
        assert_eq!(reshape(&flat, &to, &from).unwrap(), channels);
    }

    #[test]
    fn an_axis_at_either_end_is_kept_whatever_is_between() {
        let scope = SymbolScope::default();
        // `?` is no extent: not even symbolically is it known.
        let (from, to) = (shape(&scope, "3,?,?,2"), shape(&scope, "3,?,2"));
        let channels = array![[[[5.0, 7.0]]]].into_dyn();
        assert_eq!(reshape(&channels, &from, &to).unwrap(), array![[[5.0, 7.0]]].into_dyn());
        let items = array![[[[5.0]]], [[[6.0]]], [[[7.0]]]].into_dyn();
        assert_eq!(reshape(&items, &from, &to).unwrap(), array![[[5.0]], [[6.0]], [[7.0]]].into_dyn());
        let between = array![[[[5.0], [7.0]]]].into_dyn();
        assert_eq!(reshape(&between, &from, &to), Err(Reason::MixedAxes));
    }

    #[test]
    fn channels_split_into_heads() {
        let scope = SymbolScope::default();
        let (from, to) = (shape(&scope, "b,n,6"), shape(&scope, "b,n,2,3"));
        let channels = Array1::range(0.0, 6.0, 1.0).into_dyn().into_shape_with_order(vec![1, 1, 6]);
        let heads = reshape(&channels.unwrap(), &from, &to).unwrap();
        assert_eq!(heads, array![[[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]]].into_dyn());
    }

    #[test]
    fn refuses_to_mix_channels_with_the_batch() {
        let scope = SymbolScope::default();
        let (from, to) = (shape(&scope, "b,3"), shape(&scope, "b*3"));
        let channels = array![[1.0, 2.0, 3.0]].into_dyn();
        assert_eq!(reshape(&channels, &from, &to), Err(Reason::MixedAxes));
    }

    #[test]
    fn equal_extents_are_not_confused() {
        let scope = SymbolScope::default();
        // 4 tokens of 4 channels: the affine varies along the last axis only.
        let (from, to) = (shape(&scope, "4,4"), shape(&scope, "16"));
        let channels = array![[1.0, 2.0, 3.0, 4.0]].into_dyn();
        let flat = reshape(&channels, &from, &to).unwrap();
        assert_eq!(flat.iter().take(5).copied().collect::<Vec<_>>(), [1.0, 2.0, 3.0, 4.0, 1.0]);
    }

    #[test]
    fn a_norm_on_transposed_tokens_comes_back() {
        let scope = SymbolScope::default();
        let tokens = shape(&scope, "b,196,384");
        let mut trace = Trace::new(&tokens).unwrap();
        trace.transpose(&[0, 2, 1]).unwrap();
        trace.reshape(&shape(&scope, "b,384,196,1")).unwrap();
        assert!(!trace.is_identity());
        trace.reshape(&shape(&scope, "b,384,196")).unwrap();
        trace.transpose(&[0, 2, 1]).unwrap();
        assert!(trace.is_identity());
    }

    #[test]
    fn flattening_the_batch_comes_back() {
        let scope = SymbolScope::default();
        let tokens = shape(&scope, "b,196,384");
        let mut trace = Trace::new(&tokens).unwrap();
        trace.reshape(&shape(&scope, "b*196,384")).unwrap();
        trace.reshape(&tokens).unwrap();
        assert!(trace.is_identity());
        let mut trace = Trace::new(&shape(&scope, "b*196,384")).unwrap();
        trace.reshape(&tokens).unwrap();
        trace.reshape(&shape(&scope, "b*196,384")).unwrap();
        assert!(trace.is_identity());
    }

    #[test]
    fn two_transposes_are_one() {
        let scope = SymbolScope::default();
        let mut trace = Trace::new(&shape(&scope, "b,24,96")).unwrap();
        trace.transpose(&[0, 2, 1]).unwrap();
        trace.transpose(&[2, 0, 1]).unwrap();
        assert_eq!(trace.as_transpose(), Some(vec![1, 0, 2]));
        assert!(!trace.keeps_order());
    }

    #[test]
    fn two_reshapes_are_one() {
        let scope = SymbolScope::default();
        let mut trace = Trace::new(&shape(&scope, "b,4,4,192")).unwrap();
        trace.reshape(&shape(&scope, "b,16,192")).unwrap();
        assert!(trace.keeps_order());
        assert_eq!(trace.as_transpose(), None);
    }

    #[test]
    fn a_transposed_square_is_no_identity() {
        let scope = SymbolScope::default();
        let mut trace = Trace::new(&shape(&scope, "b,8,8")).unwrap();
        trace.transpose(&[0, 2, 1]).unwrap();
        assert!(!trace.is_identity());
        let mut trace = Trace::new(&shape(&scope, "2,8")).unwrap();
        trace.reshape(&shape(&scope, "8,2")).unwrap();
        assert!(!trace.is_identity());
    }
}
