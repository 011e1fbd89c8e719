//! Finds pairs of values at which two models begin to differ.

use std::collections::{HashMap, HashSet};

use super::alignment::Alignment;
use super::part::reads;
use super::side::ComparedModel;
use crate::analysis::Analysis;
use crate::ir::{Reader, ValueId};
use crate::prove::{Digest, Hash};

/// The depths at which readers are compared. At depth 1, only the operators of the readers are
/// compared, and at larger depths also those of the readers of their results. The strictest
/// comparison comes first.
const DEPTHS: [usize; 2] = [3, 1];

/// The number of nodes at which [`region`] stops counting.
const LARGE: usize = 64;

/// A value of each model. The two values differ, but are read by nodes with the same operators.
#[derive(PartialEq, Eq)]
struct PartedPair {
    values: [ValueId; 2],
    /// The number of nodes that compute the two values from values that both models have, in both
    /// models together.
    nodes: usize,
}

/// The candidates for the first difference, sorted by the number of nodes that compute the two
/// values from values that both models have.
///
/// Two values are a candidate if they have the same type and extents, and if both are read by the
/// same operators. At depth 2, the results of these operators must also be read by the same
/// operators, and so on for larger depths.
pub(super) fn candidates(alignment: &Alignment, analyses: [&Analysis; 2]) -> Vec<[ValueId; 2]> {
    let mut found: Vec<PartedPair> = vec![];
    for depth in DEPTHS {
        let [firsts, seconds] = [0, 1].map(|side| nearest(alignment, analyses[side], side, depth));
        for (use_, (value, nodes)) in &firsts {
            if let Some((other, others)) = seconds.get(use_) {
                found.push(PartedPair {
                    values: [*value, *other],
                    nodes: nodes + others,
                });
            }
        }
    }
    found.sort_by_key(|pair| (pair.nodes, pair.values));
    found.dedup();
    found.into_iter().map(|pair| pair.values).collect()
}

/// The type, the extents and the readers of a value.
#[derive(PartialEq, Eq, Hash)]
struct ValueUse {
    data_type: Option<i32>,
    extents: Vec<usize>,
    readers: Digest,
}

/// For each use, a value of one model, and the number of nodes that compute it from values that
/// both models have. If the model has several values with this use that the other model lacks, the
/// value with the fewest such nodes is chosen.
fn nearest(
    alignment: &Alignment,
    analysis: &Analysis,
    side: usize,
    depth: usize,
) -> HashMap<ValueUse, (ValueId, usize)> {
    let own = &alignment.sides[side];
    let readers = reader_digests(own, depth);
    let mut nearest: HashMap<ValueUse, (ValueId, usize)> = HashMap::new();
    for &node in own.nodes.iter().filter(|&&node| own.is_needed(node)) {
        for value in own.results(node) {
            if alignment.is_shared(side, value) {
                continue;
            }
            let Some(shape) = analysis.facts.shape(value) else {
                continue;
            };
            let extents: Option<Vec<usize>> =
                shape.iter().map(crate::shape::facts::extent).collect();
            let Some(extents) = extents else {
                continue;
            };
            let value_use = ValueUse {
                data_type: analysis.facts.data_type(value).map(|t| t.code()),
                extents,
                readers: readers[value.index()],
            };
            let nodes = region(alignment, side, value);
            let best = nearest.entry(value_use).or_insert((value, nodes));
            if nodes < best.1 {
                *best = (value, nodes);
            }
        }
    }
    nearest
}

/// The number of nodes that compute a value from values that both models have, at most [`LARGE`].
fn region(alignment: &Alignment, side: usize, value: ValueId) -> usize {
    let graph = &alignment.sides[side].graph;
    let (mut seen, mut open) = (HashSet::new(), vec![value]);
    while let Some(value) = open.pop() {
        if let Some((node, _)) = graph.producer(value)
            && seen.len() < LARGE
            && seen.insert(node)
        {
            open.extend(reads(graph, node).filter(|&read| !alignment.is_shared(side, read)));
        }
    }
    seen.len()
}

/// For each value, a digest of the operators that read it, of the readers of their results, and so
/// on up to a depth.
fn reader_digests(side: &ComparedModel, depth: usize) -> Vec<Digest> {
    let graph = &side.graph;
    let mut digests: Vec<Digest> = vec![0; graph.value_count()];
    for _ in 0..depth {
        let values = (0..graph.value_count()).map(|index| ValueId(index as u32));
        digests = values
            .map(|value| reader_digest(side, value, &digests))
            .collect();
    }
    digests
}

fn reader_digest(side: &ComparedModel, value: ValueId, behind: &[Digest]) -> Digest {
    let graph = &side.graph;
    let mut readers: Vec<Digest> = vec![];
    for reader in graph.readers(value) {
        let mut hash = Hash::new(0, "reader");
        match *reader {
            Reader::Output => hash.text("output"),
            Reader::Node { node, .. } | Reader::Capture { node } => {
                if !side.is_needed(node) {
                    continue;
                }
                let (domain, operator) = graph.domain_op(node);
                hash.text(domain);
                hash.text(operator);
                let result = graph.output(node, 0);
                hash.digest(result.map_or(0, |result| behind[result.index()]));
            }
        }
        readers.push(hash.finish());
    }
    readers.sort_unstable();
    let mut hash = Hash::new(0, "readers");
    readers.into_iter().for_each(|reader| hash.digest(reader));
    hash.finish()
}
