//! Computes how an array that broadcasts over a value changes when the value is reshaped. Extents
//! may be symbolic.

use tract_onnx::tract_hir::internal::TDim;

use crate::recipe::Numbers;
use crate::refusal::Reason;
use crate::shape::facts::{Shape, extent, same};

/// The maximum number of elements of a constant that is built only to move a shift through a
/// movement.
pub(crate) const LARGEST: usize = 1 << 24;

/// Moves an array that broadcasts over a value of shape `from` through a reshape to shape `to`.
///
/// The two shapes are cut where the products of their extents agree. Between two cuts there are
/// three cases:
/// - The array does not vary. It does not vary after the reshape either.
/// - Every extent is known. The array is expanded and reshaped like the value.
/// - The array varies only along the last axes, whose extents are known. It is repeated.
///
/// # Errors
/// [`Reason::MixedAxes`] if the array varies within a cut of symbolic extents.
pub(crate) fn reshape(array: &Numbers, from: &Shape, to: &Shape) -> Result<Numbers, Reason> {
    if array.ndim() != from.len() {
        // The ranks differ only in a model that contradicts itself.
        return Err(Reason::UnknownShape);
    }
    // In the usual case, the array varies only along the last axes, and the reshape keeps these
    // axes: channels are kept, and tokens are merged.
    let first = array
        .shape()
        .iter()
        .position(|&extent| extent != 1)
        .unwrap_or(from.len());
    let kept = from.len() - first;
    if let Some(before) = to.len().checked_sub(kept)
        && from[first..]
            .iter()
            .zip(&to[before..])
            .all(|(one, other)| same(one, other))
    {
        let shape = [&vec![1; before][..], &array.shape()[first..]].concat();
        return array.reshape(&shape).ok_or(Reason::UnknownShape);
    }
    let (mut expanded, mut result) = (vec![], vec![]);
    let mut start = (0, 0);
    for end in cuts(from, to) {
        let array = &array.shape()[start.0..end.0];
        let (own, new) = reshape_group(array, &from[start.0..end.0], &to[start.1..end.1])?;
        expanded.extend(own);
        result.extend(new);
        start = end;
    }
    let size = expanded
        .iter()
        .try_fold(1, |size: usize, &extent| size.checked_mul(extent));
    let size = size.unwrap_or(usize::MAX);
    if size > LARGEST {
        return Err(Reason::TooLarge(size));
    }
    let written_out = array
        .expand(&expanded)
        .and_then(|array| array.reshape(&result));
    written_out.ok_or(Reason::UnknownShape)
}

/// Returns the shape to which the array is expanded along the axes between two cuts, and its shape
/// after the reshape.
fn reshape_group(
    array: &[usize],
    from: &[Option<TDim>],
    to: &[Option<TDim>],
) -> Result<(Vec<usize>, Vec<usize>), Reason> {
    if array.iter().all(|&extent| extent == 1) {
        return Ok((vec![1; from.len()], vec![1; to.len()]));
    }
    if let ([_], [axis]) = (&wide_axes(from)[..], &wide_axes(to)[..]) {
        // A single axis moves among axes of extent 1, so its extent need not be known.
        let mut result = vec![1; to.len()];
        result[*axis] = array.iter().copied().max().unwrap_or(1);
        return Ok((array.to_vec(), result));
    }
    match (numbers(from), numbers(to)) {
        (Some(from), Some(to)) => Ok((from, to)),
        _ => repeated(array, from, to).ok_or(Reason::MixedAxes),
    }
}

/// The axes whose extent may differ from 1.
fn wide_axes(dims: &[Option<TDim>]) -> Vec<usize> {
    (0..dims.len())
        .filter(|&axis| extent(&dims[axis]) != Some(1))
        .collect()
}

fn numbers(dims: &[Option<TDim>]) -> Option<Vec<usize>> {
    dims.iter().map(extent).collect()
}

/// Returns the shape to which an array along the last axes is expanded, and its shape after the
/// reshape. If an axis of unknown extent is merged with axes of known extent, such as four tokens,
/// the array repeats along the known ones. `None` if the array does not lie along the last axes, or
/// if an extent of these is unknown.
fn repeated(
    array: &[usize],
    from: &[Option<TDim>],
    to: &[Option<TDim>],
) -> Option<(Vec<usize>, Vec<usize>)> {
    let first = array
        .iter()
        .position(|&extent| extent != 1)
        .filter(|&first| first > 0)?;
    let own: Vec<usize> = from[first..].iter().map(extent).collect::<Option<_>>()?;
    let period = own
        .iter()
        .try_fold(1_usize, |count, &extent| count.checked_mul(extent))
        .filter(|&n| n > 0)?;
    let extents = to.iter().rev().map_while(extent);
    let mut counts = extents.scan(1_usize, |count, extent| {
        *count = count.checked_mul(extent)?;
        Some(*count)
    });
    let (last, count) = counts
        .by_ref()
        .enumerate()
        .find(|&(_, count)| count > 0 && count % period == 0)?;
    let behind = to.len() - 1 - last;
    let mut expanded = vec![1; first - 1];
    expanded.push(count / period);
    expanded.extend(own);
    let mut result = vec![1; behind];
    result.extend(to[behind..].iter().filter_map(extent));
    Some((expanded, result))
}

/// The pairs `(i, j)` for which `from[..i]` and `to[..j]` hold equally many elements, in ascending
/// order. The last pair is `(from.len(), to.len())`.
fn cuts(from: &Shape, to: &Shape) -> Vec<(usize, usize)> {
    let heads = (products_before(from), products_before(to));
    let tails = (products_behind(from), products_behind(to));
    let mut cuts = vec![];
    let (mut i, mut j) = (0, 0);
    while (i, j) != (from.len(), to.len()) {
        let next = (1..=from.len() - i + to.len() - j).find_map(|step| {
            (0..=step)
                .map(|di| (i + di, j + step - di))
                .filter(|&(i, j)| i <= from.len() && j <= to.len())
                .find(|&(i, j)| same(&heads.0[i], &heads.1[j]) || same(&tails.0[i], &tails.1[j]))
        });
        (i, j) = next.unwrap_or((from.len(), to.len()));
        cuts.push((i, j));
    }
    cuts
}

/// For each position in a shape, including its end, the product of the extents before it. `None` if
/// one of them is unknown.
fn products_before(shape: &[Option<TDim>]) -> Vec<Option<TDim>> {
    running_products(shape.iter())
}

/// For each position in a shape, including its end, the product of the extents after it. `None` if
/// one of them is unknown.
fn products_behind(shape: &[Option<TDim>]) -> Vec<Option<TDim>> {
    let mut products = running_products(shape.iter().rev());
    products.reverse();
    products
}

fn running_products<'d>(dims: impl Iterator<Item = &'d Option<TDim>>) -> Vec<Option<TDim>> {
    let mut products = vec![Some(TDim::from(1))];
    let mut product = Some(TDim::from(1));
    for dim in dims {
        product = product
            .zip(dim.clone())
            .map(|(product, dim)| (product * dim).simplify());
        products.push(product.clone());
    }
    products
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::{Array1, array};
    use tract_onnx::tract_hir::internal::SymbolScope;

    fn shape(scope: &SymbolScope, dims: &str) -> Shape {
        dims.split(',')
            .map(|dim| scope.parse_tdim(dim).ok())
            .collect()
    }

    #[test]
    fn reshape_keeps_channels_when_symbolic_tokens_are_flattened() {
        let scope = SymbolScope::default();
        let (from, to) = (shape(&scope, "b,197,4"), shape(&scope, "b*197,4"));
        let channels = Numbers::literal(array![[[1.0, 2.0, 3.0, 4.0]]].into_dyn());
        let flat = reshape(&channels, &from, &to).unwrap();
        assert_eq!(*flat, array![[1.0, 2.0, 3.0, 4.0]].into_dyn());
        assert_eq!(reshape(&flat, &to, &from).unwrap(), channels);
    }

    #[test]
    fn reshape_keeps_outer_axes_around_unknown_extents() {
        let scope = SymbolScope::default();
        // `?` is an unknown extent, without even a symbol.
        let (from, to) = (shape(&scope, "3,?,?,2"), shape(&scope, "3,?,2"));
        let channels = Numbers::literal(array![[[[5.0, 7.0]]]].into_dyn());
        assert_eq!(
            *reshape(&channels, &from, &to).unwrap(),
            array![[[5.0, 7.0]]].into_dyn()
        );
        let items = Numbers::literal(array![[[[5.0]]], [[[6.0]]], [[[7.0]]]].into_dyn());
        assert_eq!(
            *reshape(&items, &from, &to).unwrap(),
            array![[[5.0]], [[6.0]], [[7.0]]].into_dyn()
        );
        let between = Numbers::literal(array![[[[5.0], [7.0]]]].into_dyn());
        assert_eq!(reshape(&between, &from, &to), Err(Reason::MixedAxes));
    }

    #[test]
    fn reshape_splits_channels_into_heads() {
        let scope = SymbolScope::default();
        let (from, to) = (shape(&scope, "b,n,6"), shape(&scope, "b,n,2,3"));
        let channels = Numbers::literal(Array1::range(0.0, 6.0, 1.0).into_dyn()).align(3);
        let heads = reshape(&channels.unwrap(), &from, &to).unwrap();
        assert_eq!(
            *heads,
            array![[[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]]].into_dyn()
        );
    }

    #[test]
    fn reshape_that_mixes_channels_with_the_batch_is_refused() {
        let scope = SymbolScope::default();
        let (from, to) = (shape(&scope, "b,3"), shape(&scope, "b*3"));
        let channels = Numbers::literal(array![[1.0, 2.0, 3.0]].into_dyn());
        assert_eq!(reshape(&channels, &from, &to), Err(Reason::MixedAxes));
    }

    #[test]
    fn reshape_repeats_channels_when_tokens_are_merged_into_them() {
        let scope = SymbolScope::default();
        let channels = Numbers::literal(array![[1.0, 2.0, 3.0]].into_dyn());
        let (from, to) = (shape(&scope, "n,3"), shape(&scope, "?,6"));
        let pairs = reshape(&channels, &from, &to).unwrap();
        assert_eq!(*pairs, array![[1.0, 2.0, 3.0, 1.0, 2.0, 3.0]].into_dyn());
        let by_two = reshape(&channels, &from, &shape(&scope, "?,s,2,2,3")).unwrap();
        assert_eq!(*by_two, array![[[[[1.0, 2.0, 3.0]]]]].into_dyn());
        let heads = reshape(&channels, &from, &shape(&scope, "b,?,2,6")).unwrap();
        assert_eq!(
            *heads,
            array![[[[1.0, 2.0, 3.0, 1.0, 2.0, 3.0]]]].into_dyn()
        );
        // Three of the six channels become one token, and three another one.
        assert_eq!(reshape(&pairs, &to, &from), Err(Reason::MixedAxes));
        for other in ["?,4", "?,0", "6,?", "?,2"] {
            assert_eq!(
                reshape(&channels, &from, &shape(&scope, other)),
                Err(Reason::MixedAxes),
                "{other}"
            );
        }
        let by_place = Numbers::literal(array![[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]].into_dyn());
        let wide = reshape(&by_place, &shape(&scope, "n,2,3"), &shape(&scope, "?,4,3")).unwrap();
        let twice = [
            [1.0, 2.0, 3.0],
            [4.0, 5.0, 6.0],
            [1.0, 2.0, 3.0],
            [4.0, 5.0, 6.0],
        ];
        assert_eq!(*wide, ndarray::arr3(&[twice]).into_dyn());
    }

    #[test]
    fn reshape_distinguishes_axes_of_equal_extent() {
        let scope = SymbolScope::default();
        // 4 tokens of 4 channels: the affine varies along the last axis only.
        let (from, to) = (shape(&scope, "4,4"), shape(&scope, "16"));
        let channels = Numbers::literal(array![[1.0, 2.0, 3.0, 4.0]].into_dyn());
        let flat = reshape(&channels, &from, &to).unwrap();
        assert_eq!(
            flat.iter().take(5).copied().collect::<Vec<_>>(),
            [1.0, 2.0, 3.0, 4.0, 1.0]
        );
    }
}
