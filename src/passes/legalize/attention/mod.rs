//! Writes attention as MultiHeadAttention of `com.microsoft`, for onnxruntime.
//!
//! Before: `softmax(s·Q·Kᵀ)·V` per head, with the movements that separate the heads and join them
//! again. After: one operator on rows `[batch, token, head·channel]`. If nothing is added to the
//! scores, the kernel of the operator computes them block by block and never stores all of them.
//!
//! [`core`] finds the products and the Softmax. [`operand_rows`] follows the movements around the
//! products. That search compares the factors of axes, so that all movements with the same effect
//! are recognized alike.

mod core;
mod operand_rows;
mod refusal;
mod write;

use std::collections::BTreeMap;

use crate::affine::materialize::Edit;
use crate::analysis::Analysis;
use crate::ir::NodeId;
use core::AttentionCore;
use refusal::AttentionRefusal;
use write::fused;

/// The domain of the operator.
pub(crate) const DOMAIN: &str = "com.microsoft";

/// The edits that write attentions as one operator each, and the number of attentions that stay, by
/// reason.
pub(crate) fn edits(analysis: &Analysis) -> (Vec<Edit>, BTreeMap<String, usize>) {
    let mut edits = vec![];
    let mut kept: BTreeMap<String, usize> = BTreeMap::new();
    for &node in analysis.graph.order() {
        match edit(analysis, node) {
            Ok(edit) => edits.push(edit),
            Err(AttentionRefusal::NoAttention) => {}
            Err(reason) => *kept.entry(reason.to_string()).or_default() += 1,
        }
    }
    (edits, kept)
}

/// The edit that writes the attention with this Softmax as one operator, or the reason why the
/// attention stays.
fn edit(analysis: &Analysis, softmax: NodeId) -> Result<Edit, AttentionRefusal> {
    let core = AttentionCore::find(analysis, softmax)?;
    let replacement = fused(analysis, &core)?;
    Ok(Edit::replacing(&analysis.graph, softmax, replacement))
}
