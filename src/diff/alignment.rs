//! Finds the nodes of two models that compute the same values.

use std::collections::{HashMap, HashSet};

use super::side::ComparedModel;
use super::{NodeCounts, NodePair};
use crate::ir::{NodeId, ValueId};
use crate::judge::counterparts;
use crate::prove::Digest;

/// Two models whose values are compared.
pub(super) struct Alignment<'a, 'm> {
    pub sides: &'a [ComparedModel<'m>; 2],
    /// The pairs of outputs whose values differ.
    pub parted: Vec<[ValueId; 2]>,
    /// The pairs of values at which the models begin to differ, and which are assumed to be equal.
    pub assumed: Vec<[ValueId; 2]>,
    /// The digests of the values that each model computes, stores or has as an input.
    values: [HashSet<Digest>; 2],
    /// The digests of the values that each model stores.
    stored: [HashSet<Digest>; 2],
    /// The functions of the nodes of each model.
    functions: [HashSet<NodeFunction<'a>>; 2],
}

/// The operator of a node, the digests of its operands except stored tensors, and the digests of
/// its results. A node with an equal function in the other model is its counterpart.
#[derive(PartialEq, Eq, Hash)]
struct NodeFunction<'n> {
    operator: (&'n str, &'n str),
    /// The digests of the operands, sorted, because equal nodes may have their operands in a
    /// different order.
    reads: Vec<Option<Digest>>,
    results: Vec<Option<Digest>>,
}

impl<'a, 'm> Alignment<'a, 'm> {
    pub(super) fn new(sides: &'a [ComparedModel<'m>; 2]) -> Self {
        let mut alignment = Self {
            sides,
            parted: parted_outputs(sides),
            assumed: vec![],
            values: [0, 1].map(|side| sides[side].values()),
            stored: [0, 1].map(|side| sides[side].stored()),
            functions: Default::default(),
        };
        alignment.functions = [0, 1].map(|side| {
            let nodes = sides[side].nodes.iter();
            nodes.map(|&node| alignment.function(side, node)).collect()
        });
        alignment
    }

    /// Assumes that the value `name` of the first model equals the value `other` of the second one.
    /// Has no effect if a model lacks its value.
    pub(super) fn assume(&mut self, name: &str, other: &str) {
        let values = [(0, name), (1, other)];
        let values = values.map(|(side, name)| self.sides[side].graph.value(name));
        if let [Some(value), Some(other)] = values {
            self.assumed.push([value, other]);
        }
    }

    fn function(&self, side: usize, node: NodeId) -> NodeFunction<'a> {
        let own = &self.sides[side];
        let is_tensor = |digest: &Digest| self.stored.iter().any(|all| all.contains(digest));
        let reads = own.reads(node).map(|value| own.digest(value));
        let mut reads: Vec<_> = reads
            .filter(|digest| !digest.as_ref().is_some_and(is_tensor))
            .collect();
        reads.sort_unstable();
        NodeFunction {
            operator: own.graph.domain_op(node),
            reads,
            results: own.results(node).map(|value| own.digest(value)).collect(),
        }
    }

    /// Whether the other model has a value with the same digest.
    pub(super) fn is_shared(&self, side: usize, value: ValueId) -> bool {
        let digest = self.sides[side].digest(value);
        digest.is_some_and(|digest| self.values[1 - side].contains(&digest))
    }

    /// Whether the other model stores a value with the same digest as an initializer or a Constant.
    pub(super) fn is_stored_by_other(&self, side: usize, value: ValueId) -> bool {
        let digest = self.sides[side].digest(value);
        digest.is_some_and(|digest| self.stored[1 - side].contains(&digest))
    }

    /// Whether a result of a node is only assumed to equal a value of the other model.
    fn is_assumed(&self, side: usize, node: NodeId) -> bool {
        let mut assumed = self.assumed.iter().map(|values| values[side]);
        let results: Vec<ValueId> = self.sides[side].results(node).collect();
        assumed.any(|value| results.contains(&value))
    }

    /// Whether each result of a node that has readers equals a value of the other model. False if
    /// no result has readers, or if the equality is only assumed.
    fn is_aligned(&self, side: usize, node: NodeId) -> bool {
        if self.is_assumed(side, node) {
            return false;
        }
        let mut results = self.sides[side].results(node).peekable();
        results.peek().is_some() && results.all(|value| self.is_shared(side, value))
    }

    /// Whether the other model has a node with the same operator, the same results and the same
    /// operands, apart from stored tensors. False if a digest is unknown, or if a result is only
    /// assumed to equal a value of the other model.
    pub(super) fn is_kept(&self, side: usize, node: NodeId) -> bool {
        if self.is_assumed(side, node) {
            return false;
        }
        let function = self.function(side, node);
        let values = function.reads.iter().chain(&function.results);
        values.clone().all(Option::is_some) && self.functions[1 - side].contains(&function)
    }

    /// Counts the nodes of one model: all nodes, those whose results the other model has or lacks,
    /// and those on which no output depends.
    pub(super) fn counts(&self, side: usize) -> NodeCounts {
        let own = &self.sides[side];
        let nodes = own.nodes.iter().copied();
        let (read, unread): (Vec<_>, Vec<_>) = nodes.partition(|&node| own.is_needed(node));
        let same = read.iter().filter(|&&node| self.is_aligned(side, node));
        let same = same.count();
        NodeCounts {
            all: own.nodes.len(),
            same,
            only: read.len() - same,
            unread: unread.len(),
        }
    }

    /// Pairs each node of the first model with a node of the second one that computes the same
    /// value, preferably with a node of the same operator that is in no other pair.
    pub(super) fn pairs(&self) -> Vec<NodePair> {
        let [first, second] = self.sides;
        let mut made: HashMap<Digest, Vec<NodeId>> = HashMap::new();
        for &node in &second.nodes {
            if let Some(digest) = main_result(second, node) {
                made.entry(digest).or_default().push(node);
            }
        }
        let mut taken = HashSet::new();
        let mut pairs = vec![];
        for &node in &first.nodes {
            let digest = main_result(first, node);
            let Some(others) = digest.and_then(|digest| made.get(&digest)) else {
                continue;
            };
            let operator = first.graph.domain_op(node);
            let best = others.iter().copied().min_by_key(|other| {
                let is_other = second.graph.domain_op(*other) != operator;
                (is_other, taken.contains(other))
            });
            if let Some(other) = best {
                taken.insert(other);
                pairs.push(NodePair {
                    first: first.graph.name(node).to_owned(),
                    second: second.graph.name(other).to_owned(),
                    kept: self.is_kept(0, node),
                });
            }
        }
        pairs
    }
}

/// The digest of the first result of a node that is read. `None` if no result is read, or if the
/// digest is unknown.
fn main_result(side: &ComparedModel, node: NodeId) -> Option<Digest> {
    side.digest(side.results(node).next()?)
}

/// The pairs of outputs whose values differ.
fn parted_outputs(sides: &[ComparedModel; 2]) -> Vec<[ValueId; 2]> {
    let [mine, its] = sides.each_ref().map(|side| &side.graph.proto().output);
    let Ok(others) = counterparts(mine, its, "outputs") else {
        return vec![];
    };
    let mut parted = vec![];
    for (output, other) in mine.iter().zip(others) {
        let values = [(&sides[0], output), (&sides[1], other)];
        let values = values.map(|(side, output)| side.graph.value(output.name()));
        if let [Some(value), Some(other)] = values
            && sides[0].digest(value) != sides[1].digest(other)
        {
            parted.push([value, other]);
        }
    }
    parted
}
