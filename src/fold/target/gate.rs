//! The gate of a HardSwish as one operator, for onnxruntime, which does not find it where it is written out.
//!
//! Before: `x·clip(x + 3, 0, 6)/6`, of an operator set that has no HardSwish. After: a HardSigmoid and a Mul. It is done before
//! anything folds, for a sixth that has gone into what follows is not there any more.

use crate::fold::patch::{Change, Edit};
use crate::graph::NodeId;
use crate::normalizer::{View, hard_swish};

/// The operators that end at a node as a HardSigmoid and a Mul.
pub fn edit(view: &View, node: NodeId, is_skipped: &dyn Fn(&str) -> bool) -> Option<Edit> {
    let replacement = hard_swish::as_hard_sigmoid(view, node)?;
    let name = view.site_name(replacement.nodes[0]);
    let change = Change::Replace(replacement);
    let stays = is_skipped(&name) || is_skipped(hard_swish::KIND);
    (!stays).then_some(Edit { sites: vec![], at: name, change })
}
