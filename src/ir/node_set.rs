//! A set of nodes.

use crate::ir::NodeId;

/// A set of nodes of one graph, stored as a flag for each node. Passes over large graphs query it
/// many times for all nodes. It also serves as a set of values, by their indices.
pub(crate) struct NodeSet(Vec<bool>);

impl NodeSet {
    /// An empty set over the node indices below `count`.
    pub(crate) fn none_of(count: usize) -> Self {
        NodeSet(vec![false; count])
    }

    /// Whether the set contains a node.
    pub(crate) fn contains(&self, node: NodeId) -> bool {
        self.0[node]
    }

    /// Adds a node.
    pub(crate) fn insert(&mut self, node: NodeId) {
        self.0[node] = true;
    }
}

impl Extend<NodeId> for NodeSet {
    fn extend<I: IntoIterator<Item = NodeId>>(&mut self, nodes: I) {
        nodes.into_iter().for_each(|node| self.insert(node));
    }
}
