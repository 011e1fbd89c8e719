//! Divides packed products into one product for each part. Engines would copy the parts of one wide
//! product, while separate products are as fast.
//!
//! Before: one product `x·W + b` of queries, keys and values, and a Split. After: three products,
//! each with its columns of W and b. This is exact, because no column of a product depends on
//! another.

use crate::affine::materialize::Edit;
use crate::analysis::Analysis;
use crate::hash::HashSet;
use crate::ir::ValueId;
use crate::passes::packed_products::{PackedProduct, TakenPart, columns_of, divided, parts};
use crate::shape::facts::extent;

/// The fewest columns of a part for which a product is divided. Engines compute narrower products
/// less efficiently.
const LEAST_COLUMNS: usize = 64;

/// The edits that divide products.
pub(super) fn edits(analysis: &Analysis) -> Vec<Edit> {
    let graph = &analysis.graph;
    let mut seen: HashSet<ValueId> = HashSet::default();
    let mut edits = vec![];
    for &node in graph.order() {
        let takes_part = matches!(graph.op(node), Some("Gather" | "Slice" | "Split"));
        let whole = graph.input(node, 0).filter(|_| takes_part);
        if let Some(whole) = whole
            && seen.insert(whole)
        {
            edits.extend(edit(analysis, whole));
        }
    }
    edits
}

/// The edit that divides the product before a value. `None` if the value is not divided into
/// several parts, if a part is too narrow, or if there is only one token.
fn edit(analysis: &Analysis, whole: ValueId) -> Option<Edit> {
    let product = PackedProduct::before(analysis, whole)?;
    let (axis, parts) = parts(analysis, whole)?;
    let columns = columns_of(analysis, &product, axis)?;
    let are_wide = parts
        .iter()
        .all(|part| part.places.len() * columns >= LEAST_COLUMNS);
    let value = analysis.graph.input(product.node, 0)?;
    if parts.len() < 2 || !are_wide || !has_tokens(analysis, value) {
        return None;
    }
    let groups: Vec<Vec<&TakenPart>> = parts.iter().map(|part| vec![part]).collect();
    let replacement = divided(analysis, &product, axis, &groups)?;
    Some(Edit::replacing(&analysis.graph, product.node, replacement))
}

/// Whether a value may have several tokens in each entry of the batch. For one token, reading the
/// weight takes most of the time of a product, so separate products do not pay.
fn has_tokens(analysis: &Analysis, value: ValueId) -> bool {
    let Some(shape) = analysis.facts.shape(value) else {
        return false;
    };
    let tokens = shape.get(1..shape.len().saturating_sub(1));
    tokens.is_some_and(|tokens| tokens.iter().any(|dim| extent(dim) != Some(1)))
}
