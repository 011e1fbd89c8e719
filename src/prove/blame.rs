//! Where two graphs part, and which site is to blame.

use std::collections::{HashMap, HashSet, VecDeque};

use super::random::Digest;
use crate::fold::plan::Stored;
use crate::graph::{Graph, NodeId, Reader, ValueId};

/// How many nodes are looked at for one that reads a new tensor.
const SURROUNDINGS: usize = 1 << 12;

/// The first value from which on an output never meets that of the original again.
///
/// From the output back through values that the original does not have, or has with other elements: the earliest node
/// all of whose inputs it has as they are.
pub fn first(
    graph: &Graph,
    digests: &[Option<Digest>],
    original: &HashMap<String, Digest>,
    output: ValueId,
) -> ValueId {
    let agrees = |value: ValueId| {
        let there = original.get(graph.value_name(value));
        there.is_some() && there.copied() == digests[value.0 as usize]
    };
    let mut seen = HashSet::from([output]);
    let (mut open, mut first) = (vec![output], output);
    while let Some(value) = open.pop() {
        let Some((node, _)) = graph.producer(value) else { continue };
        let reads = graph.inputs(node).iter().flatten().chain(graph.captures(node)).copied();
        let parted: Vec<ValueId> =
            reads.filter(|&read| graph.producer(read).is_some() && !agrees(read)).collect();
        let place = |value: ValueId| graph.producer(value).map(|(node, _)| graph.place(node));
        if parted.is_empty() && (first == output || place(value) < place(first)) {
            first = value;
        }
        open.extend(parted.into_iter().filter(|&read| seen.insert(read)));
    }
    first
}

/// A value of this kind that an output is made of, or the output itself.
pub fn behind(graph: &Graph, output: ValueId, is_such: &dyn Fn(&str) -> bool) -> Option<ValueId> {
    let (mut seen, mut open) = (HashSet::from([output]), vec![output]);
    while let Some(value) = open.pop() {
        if is_such(graph.value_name(value)) {
            return Some(value);
        }
        let Some((node, _)) = graph.producer(value) else { continue };
        let reads = graph.inputs(node).iter().flatten().chain(graph.captures(node)).copied();
        open.extend(reads.filter(|&read| seen.insert(read)));
    }
    None
}

/// The site of the new tensor nearest to what makes a value.
pub fn site(graph: &Graph, value: ValueId, tensors: &[Stored]) -> Option<usize> {
    around(graph, graph.producer(value)?.0, tensors)
}

/// The site of the new tensor nearest to a node.
pub fn around(graph: &Graph, first: NodeId, tensors: &[Stored]) -> Option<usize> {
    let sites: HashMap<&str, usize> =
        tensors.iter().filter_map(|tensor| Some((tensor.name.as_str(), *tensor.sites.first()?))).collect();
    let mut seen: HashSet<NodeId> = HashSet::from([first]);
    let mut open = VecDeque::from([first]);
    for _ in 0..SURROUNDINGS {
        let node = open.pop_front()?;
        let inputs = || graph.inputs(node).iter().flatten().chain(graph.captures(node)).copied();
        if let Some(site) = inputs().find_map(|read| sites.get(graph.value_name(read)).copied()) {
            return Some(site);
        }
        // Who reads the same comes first, then who reads what it makes, then who made what it reads.
        let readers = |value: ValueId| {
            graph.readers(value).iter().filter_map(|reader| match reader {
                Reader::Node { node, .. } | Reader::Capture { node } => Some(*node),
                Reader::Output => None,
            })
        };
        let beside = inputs().flat_map(readers);
        let behind = graph.outputs(node).iter().flatten().copied().flat_map(readers);
        let before = inputs().filter_map(|read| graph.producer(read).map(|(node, _)| node));
        for next in beside.chain(behind).chain(before) {
            if seen.insert(next) {
                open.push_back(next);
            }
        }
    }
    None
}
