//! Finds the only operator that differs between two parts that are written alike.

use std::collections::{HashMap, HashSet};

use super::behind::DifferingModels;
use super::part::reads;
use crate::ir::{NodeId, ValueId};
use crate::onnx::node::bodies;
use crate::onnx::proto::{AttributeProto, NodeProto};

/// How two nodes of parts that are written alike compare.
#[derive(PartialEq, Eq)]
enum Likeness {
    /// They compute the same function of corresponding values.
    Same,
    /// They differ in attributes or in constants.
    Differs,
    /// They have other operators or read values that do not correspond.
    Unlike,
}

impl DifferingModels<'_, '_> {
    /// The results of the only nodes that differ, if the nodes that compute the two values of `pair`
    /// have the same operators in the same order, and all but one also the same attributes and
    /// constants. The extents of these results may differ.
    pub(super) fn sole_difference(&self, pair: [ValueId; 2]) -> Option<[ValueId; 2]> {
        let [first, second] = [0, 1].map(|side| self.nodes_to(side, pair[side]));
        if first.len() != second.len() {
            return None;
        }
        let graphs = [0, 1].map(|side| &self.alignment.sides[side].graph);
        let mut counterparts = HashMap::new();
        let mut differing = vec![];
        for nodes in first.into_iter().zip(second) {
            let nodes: [NodeId; 2] = nodes.into();
            match self.likeness(nodes, &counterparts) {
                Likeness::Same => {}
                Likeness::Differs => differing.push(nodes),
                Likeness::Unlike => return None,
            }
            let [own, others] = [0, 1].map(|side| graphs[side].outputs(nodes[side]));
            counterparts.extend(own.iter().copied().zip(others.iter().copied()));
        }
        let &[nodes] = differing.as_slice() else {
            return None;
        };
        let [own, others] = [0, 1].map(|side| graphs[side].outputs(nodes[side]));
        let results = own.iter().zip(others);
        let mut results = results.filter_map(|(own, other)| Some([(*own)?, (*other)?]));
        results.find(|&results| !self.are_equal(results))
    }

    /// The nodes of one model that compute a value from values that both models have, in
    /// topological order.
    fn nodes_to(&self, side: usize, value: ValueId) -> Vec<NodeId> {
        let graph = &self.alignment.sides[side].graph;
        let begins: HashSet<ValueId> = self.begins(side, value).into_iter().collect();
        let (mut nodes, mut open) = (HashSet::new(), vec![value]);
        while let Some(at) = open.pop() {
            if let Some((node, _)) = graph.producer(at).filter(|_| !begins.contains(&at))
                && nodes.insert(node)
            {
                open.extend(reads(graph, node));
            }
        }
        let order = graph.order().iter().copied();
        order.filter(|node| nodes.contains(node)).collect()
    }

    /// Compares a node of each model. `counterparts` are the corresponding results of the nodes
    /// before them.
    fn likeness(
        &self,
        nodes: [NodeId; 2],
        counterparts: &HashMap<Option<ValueId>, Option<ValueId>>,
    ) -> Likeness {
        let graphs = [0, 1].map(|side| &self.alignment.sides[side].graph);
        let [own, other] = [0, 1].map(|side| graphs[side].node(nodes[side]));
        let [inputs, others] = [0, 1].map(|side| graphs[side].inputs(nodes[side]));
        let is_written_alike = graphs[0].domain_op(nodes[0]) == graphs[1].domain_op(nodes[1])
            && inputs.len() == others.len()
            && own.output.len() == other.output.len()
            && bodies(own).next().is_none();
        if !is_written_alike {
            return Likeness::Unlike;
        }
        let mut likeness = if attributes(own) == attributes(other) {
            Likeness::Same
        } else {
            Likeness::Differs
        };
        for values in inputs.iter().zip(others) {
            let (Some(own), Some(other)) = values else {
                if values.0 != values.1 {
                    return Likeness::Unlike;
                }
                continue;
            };
            let values = [*own, *other];
            let correspond = counterparts.get(&Some(*own)) == Some(&Some(*other));
            if correspond || self.are_equal(values) {
                continue;
            }
            if !self.are_constant(values) {
                return Likeness::Unlike;
            }
            likeness = Likeness::Differs;
        }
        likeness
    }

    /// Whether a value of each model is known to be equal.
    fn are_equal(&self, values: [ValueId; 2]) -> bool {
        let [own, other] = [0, 1].map(|side| self.alignment.sides[side].digest(values[side]));
        own.is_some() && own == other
    }

    fn are_constant(&self, values: [ValueId; 2]) -> bool {
        let is_constant = |side: usize| {
            let analysis = self.analyses[side];
            analysis.constants.is_constant(values[side])
        };
        is_constant(0) && is_constant(1)
    }
}

/// The attributes of a node, sorted by name.
fn attributes(node: &NodeProto) -> Vec<&AttributeProto> {
    let mut attributes: Vec<&AttributeProto> = node.attribute.iter().collect();
    attributes.sort_by_key(|attribute| attribute.name());
    attributes
}
