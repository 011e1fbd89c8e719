//! A set of nodes.

use crate::ir::NodeId;

/// A set of nodes of one graph, as a flag for each node: large graphs query all of theirs again and
/// again. It also serves as a set of values, by their indices.
pub struct NodeSet(Vec<bool>);

impl NodeSet {
    /// No node, out of so many.
    pub fn none_of(count: usize) -> Self {
        NodeSet(vec![false; count])
    }

    /// Whether a node is in it.
    pub fn contains(&self, node: NodeId) -> bool {
        self.0[node]
    }

    /// Puts a node in.
    pub fn insert(&mut self, node: NodeId) {
        self.0[node] = true;
    }
}

impl Extend<NodeId> for NodeSet {
    fn extend<I: IntoIterator<Item = NodeId>>(&mut self, nodes: I) {
        nodes.into_iter().for_each(|node| self.insert(node));
    }
}
