//! Finds the value at which two graphs begin to differ, and the site that is to blame.

use std::collections::{HashMap, HashSet, VecDeque};

use super::random::Digest;
use crate::affine::plan::Stored;
use crate::ir::{Graph, NodeId, Reader, ValueId};

/// The maximum number of nodes that are visited to find a node that reads a new tensor.
const SURROUNDINGS: usize = 1 << 12;

/// Finds the earliest value that differs from the original and after which all values up to the
/// output differ too.
///
/// The search starts at the output. It goes back through values that the original lacks or computes
/// differently, to the earliest nodes whose inputs all equal the original's. If possible, it skips
/// a value whose difference does not last, because a later value that depends on this value agrees
/// with the original again. For example, a residual stream that a fold scaled differs correctly,
/// and the results of its readers agree again.
pub(super) fn first(
    graph: &Graph,
    digests: &[Option<Digest>],
    original: &HashMap<String, Digest>,
    output: ValueId,
) -> ValueId {
    let values = Compared {
        graph,
        digests,
        original,
    };
    let mut parted = HashSet::from([output]);
    let (mut open, mut begins) = (vec![output], vec![]);
    while let Some(value) = open.pop() {
        let Some((node, _)) = graph.producer(value) else {
            continue;
        };
        let reads = graph
            .inputs(node)
            .iter()
            .flatten()
            .chain(graph.captures(node))
            .copied();
        let other: Vec<ValueId> = reads
            .filter(|&read| graph.producer(read).is_some() && !values.agree(read))
            .collect();
        if other.is_empty() {
            begins.push(value);
        }
        open.extend(other.into_iter().filter(|&read| parted.insert(read)));
    }
    // Visits values in reverse order, because the decision about a value needs the decisions about
    // later values.
    let mut last_first: Vec<ValueId> = parted.into_iter().collect();
    last_first.sort_by_key(|&value| std::cmp::Reverse(place(graph, value)));
    let mut meets = HashSet::new();
    for value in last_first {
        if readers(graph, value).any(|node| values.meet_behind(node, &meets)) {
            meets.insert(value);
        }
    }
    begins.sort_by_key(|&value| place(graph, value));
    begins
        .iter()
        .find(|value| !meets.contains(value))
        .or(begins.first())
        .copied()
        .unwrap_or(output)
}

/// The position of a value's producer in the order of execution. `None` if no node produces the
/// value.
fn place(graph: &Graph, value: ValueId) -> Option<usize> {
    graph.producer(value).map(|(node, _)| graph.place(node))
}

/// The digests of the values of a graph, and of the original's values by name.
struct Compared<'c> {
    graph: &'c Graph<'c>,
    digests: &'c [Option<Digest>],
    original: &'c HashMap<String, Digest>,
}

impl Compared<'_> {
    /// Whether a value equals the original's value with the same name. False if there is no such
    /// value.
    fn agree(&self, value: ValueId) -> bool {
        let original = self.original.get(self.graph.value_name(value));
        original.is_some() && original.copied() == self.digests[value.0 as usize]
    }

    /// Whether a node computes a value that agrees with the original, or a value in `meets`, on
    /// which an agreeing value depends. False for a Shape or a Size, whose result agrees even if
    /// the elements of the input differ.
    fn meet_behind(&self, node: NodeId, meets: &HashSet<ValueId>) -> bool {
        if SHAPES.contains(&self.graph.node(node).op_type()) {
            return false;
        }
        let mut made = self.graph.outputs(node).iter().flatten();
        made.any(|made| self.agree(*made) || meets.contains(made))
    }
}

/// Operators whose results do not depend on the elements of their inputs.
const SHAPES: [&str; 2] = ["Shape", "Size"];

/// The nodes that read or capture a value.
fn readers(graph: &Graph, value: ValueId) -> impl Iterator<Item = NodeId> {
    graph
        .readers(value)
        .iter()
        .filter_map(|reader| match reader {
            Reader::Node { node, .. } | Reader::Capture { node } => Some(*node),
            Reader::Output => None,
        })
}

/// Searches the output and the values on which it depends for a value whose name satisfies
/// `is_such`. `None` if there is no such value.
pub(super) fn behind(
    graph: &Graph,
    output: ValueId,
    is_such: &dyn Fn(&str) -> bool,
) -> Option<ValueId> {
    let (mut seen, mut open) = (HashSet::from([output]), vec![output]);
    while let Some(value) = open.pop() {
        if is_such(graph.value_name(value)) {
            return Some(value);
        }
        let Some((node, _)) = graph.producer(value) else {
            continue;
        };
        let reads = graph
            .inputs(node)
            .iter()
            .flatten()
            .chain(graph.captures(node))
            .copied();
        open.extend(reads.filter(|&read| seen.insert(read)));
    }
    None
}

/// The site of the new tensor that is nearest to the producer of a value. `None` if there is no
/// such tensor near it.
pub(super) fn site(graph: &Graph, value: ValueId, tensors: &[Stored]) -> Option<usize> {
    around(graph, graph.producer(value)?.0, tensors)
}

/// The site of the new tensor that is nearest to a node. `None` if none of the nearest
/// `SURROUNDINGS` nodes reads a new tensor.
pub(super) fn around(graph: &Graph, first: NodeId, tensors: &[Stored]) -> Option<usize> {
    let sites: HashMap<&str, usize> = tensors
        .iter()
        .filter_map(|tensor| Some((tensor.name.as_str(), *tensor.sites.first()?)))
        .collect();
    let mut seen: HashSet<NodeId> = HashSet::from([first]);
    let mut open = VecDeque::from([first]);
    for _ in 0..SURROUNDINGS {
        let node = open.pop_front()?;
        let own = graph.inputs(node).iter().flatten();
        let inputs: Vec<ValueId> = own.chain(graph.captures(node)).copied().collect();
        let site = inputs
            .iter()
            .find_map(|&read| sites.get(graph.value_name(read)).copied());
        if site.is_some() {
            return site;
        }
        // Visits the other readers of the node's inputs first, then the readers of its results, and
        // then the producers of its inputs.
        let beside = inputs.iter().flat_map(|&value| readers(graph, value));
        let behind = graph
            .outputs(node)
            .iter()
            .flatten()
            .flat_map(|&value| readers(graph, value));
        let before = inputs
            .iter()
            .filter_map(|&read| graph.producer(read).map(|(node, _)| node));
        for next in beside.chain(behind).chain(before) {
            if seen.insert(next) {
                open.push_back(next);
            }
        }
    }
    None
}
