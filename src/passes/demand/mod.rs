//! Moves selections of places up, before the work whose results they leave out.
//!
//! Before: a block of a transformer for all tokens, and a Gather of the class token. After: the
//! class token of the residual stream is gathered. The block computes queries, projection and MLP
//! only for this token, and keys and values for all tokens.
//!
//! A selection commutes with an operator whose output at place `i` reads place `i` of each operand
//! that varies along the axis. [`crate::ops::axes`] lists these operators. The selection moves to
//! each operand that varies along the axis. An operand that is broadcast or read whole stays
//! unchanged. The selection stops at an operator that mixes places of the axis, and at a value that
//! another node reads whole.
//!
//! A selection moves only if it takes at most half of the places of an axis of known extent, or one
//! place of an axis of unknown extent. The move must also make a product or a normalization
//! smaller. If one product computes queries, keys and values, and only the queries are needed at
//! fewer places, this product is first divided into several products.

mod divide_packed_product;
mod per_sample;
mod places;
mod region;
mod selection;
mod write;

use crate::affine::materialize::Edit;
use crate::analysis::Analysis;

/// The name of this pass for `--skip`. The name `placement` also skips this pass.
pub(crate) const KIND: &str = "demand";

/// Finds edits that each move the selections of one value up, or divide a packed product for them.
/// No two of these edits share a node.
pub(crate) fn edits(analysis: &Analysis) -> Vec<Edit> {
    let mut taken = vec![false; analysis.graph.order().len()];
    let mut edits = vec![];
    for group in selection::groups(analysis) {
        let Some(region) = region::region(analysis, &group) else {
            continue;
        };
        let split = divide_packed_product::split_product(analysis, &region);
        let Some(replacement) = split.or_else(|| write::moved(analysis, &group, &region)) else {
            continue;
        };
        if replacement.nodes.iter().any(|&node| taken[node]) {
            continue;
        }
        replacement
            .nodes
            .iter()
            .for_each(|&node| taken[node] = true);
        edits.push(Edit::replacing(&analysis.graph, group.first(), replacement));
    }
    edits
}
