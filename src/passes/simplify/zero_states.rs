//! Removes initial states of recurrent operators if they are zeros, which is their default. PyTorch
//! writes them, with the arithmetic that computes their shape.

use crate::analysis::Analysis;
use crate::analysis::uniform;
use crate::hash::HashSet;
use crate::ir::NodeId;
use crate::ir::editor::Editor;

/// The slots of the inputs of LSTM, GRU and RNN that are initial states.
const STATES: [usize; 2] = [5, 6];

/// Finds the inputs of recurrent operators that can be left out, each with its node. Nodes of
/// `sites` stay.
pub(super) fn find(analysis: &Analysis, sites: &HashSet<NodeId>) -> Vec<(NodeId, usize)> {
    let graph = &analysis.graph;
    let mut found = vec![];
    for &node in graph.order() {
        let is_recurrent = matches!(graph.domain_op(node), ("", "GRU" | "LSTM" | "RNN"));
        if is_recurrent && !sites.contains(&node) {
            let zeros = STATES
                .into_iter()
                .filter(|&slot| is_zero(analysis, node, slot));
            found.extend(zeros.map(|slot| (node, slot)));
        }
    }
    found
}

fn is_zero(analysis: &Analysis, node: NodeId, slot: usize) -> bool {
    let value = analysis.graph.input(node, slot);
    value.is_some_and(|value| uniform::number(analysis, value) == Some(0.0))
}

/// Removes the inputs from their nodes.
pub(super) fn write(found: Vec<(NodeId, usize)>, editor: &mut Editor) {
    for (node, slot) in found {
        editor.clear_input(node, slot);
    }
}
