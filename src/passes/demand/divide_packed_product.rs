//! Divides a packed product if some of its parts are needed at fewer places than others.
//!
//! Before: one product of queries, keys and values. After: one product for the parts that are
//! needed only at the places of a selection, and one product for all other parts.

use super::region::NarrowRegion;
use crate::affine::recognize::Replacement;
use crate::analysis::Analysis;
use crate::ir::ValueId;
use crate::passes::packed_products::{PackedProduct, TakenPart, divided, parts};

/// Divides a packed product whose result is a cut of the region, or is divided by a Split into
/// values that are cuts. `None` if no cut comes from a packed product, or if all or none of the
/// product's parts are needed at fewer places.
pub(super) fn split_product(analysis: &Analysis, region: &NarrowRegion) -> Option<Replacement> {
    region.cuts.iter().find_map(|&(value, along)| {
        let whole = split_value(analysis, value).unwrap_or(value);
        let product = PackedProduct::before(analysis, whole)?;
        let (axis, parts) = parts(analysis, whole)?;
        let (narrow, others): (Vec<&TakenPart>, Vec<&TakenPart>) =
            parts.iter().partition(|part| is_narrow(region, part));
        let is_divided = !narrow.is_empty() && !others.is_empty();
        let moves = is_divided && product.passes(analysis, along);
        moves
            .then(|| divided(analysis, &product, axis, &[narrow, others]))
            .flatten()
    })
}

/// Whether a part is needed only at the places of the region.
fn is_narrow(region: &NarrowRegion, part: &TakenPart) -> bool {
    let is_cut = region.cuts.iter().any(|(cut, _)| *cut == part.taken);
    is_cut || region.nodes.contains(&part.node) || region.narrow.contains_key(&part.taken)
}

/// The input of the Split that outputs a value. `None` if the value has another producer.
fn split_value(analysis: &Analysis, value: ValueId) -> Option<ValueId> {
    let (node, _) = analysis.graph.producer(value)?;
    analysis
        .graph
        .is(node, "Split")
        .then(|| analysis.graph.input(node, 0))
        .flatten()
}
