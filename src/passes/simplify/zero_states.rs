//! Zeros that a recurrent operator is given to begin with, though it begins with zeros where it is given nothing. PyTorch
//! writes them with the arithmetic that finds how many there are.

use crate::analysis::Analysis;
use crate::analysis::uniform;
use crate::hash::HashSet;
use crate::ir::NodeId;
use crate::ir::editor::Editor;

/// The inputs of LSTM, GRU and RNN with initial states.
const STATES: [usize; 2] = [5, 6];

/// Recurrent operators, and their inputs that can be left out. Nodes of `sites` stay.
pub fn find(analysis: &Analysis, sites: &HashSet<NodeId>) -> Vec<(NodeId, usize)> {
    let graph = &analysis.graph;
    let is_recurrent = |node: NodeId| matches!(graph.domain_op(node), ("", "GRU" | "LSTM" | "RNN"));
    let nodes = graph
        .order()
        .iter()
        .copied()
        .filter(|&node| is_recurrent(node) && !sites.contains(&node));
    let begins = |node: NodeId| STATES.map(|slot| (node, slot));
    let is_needless = |&(node, slot): &(NodeId, usize)| {
        graph
            .input(node, slot)
            .is_some_and(|value| uniform::number(analysis, value) == Some(0.0))
    };
    nodes.flat_map(begins).filter(is_needless).collect()
}

/// Leaves them out.
pub fn write(found: Vec<(NodeId, usize)>, editor: &mut Editor) {
    for (node, slot) in found {
        editor.clear_input(node, slot);
    }
}
