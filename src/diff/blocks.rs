//! Groups the nodes that two models do not share into blocks. A block lies between values that both
//! models have.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::alignment::Alignment;
use super::{BlockVerdict, DiffBlock, DiffNode};
use crate::ir::{NodeId, ValueId};
use crate::judge::Judgement;
use crate::prove::Digest;

/// A node, and the index of its model: 0 for the first, 1 for the second.
type SidedNode = (usize, NodeId);

/// Groups the changed nodes into blocks, in the order of execution of the first model.
pub(super) fn blocks(alignment: &Alignment, judgement: &Judgement) -> Vec<DiffBlock> {
    let conditions = Conditions::new(judgement);
    let mut blocks: Vec<(usize, DiffBlock)> = vec![];
    for nodes in groups(alignment) {
        let places = nodes.iter().map(|&(side, node)| {
            let place = alignment.sides[side].graph.place(node);
            if side == 0 { place } else { usize::MAX }
        });
        let place = places.min().unwrap_or_default();
        blocks.push((place, block(alignment, &nodes, &conditions)));
    }
    blocks.sort_by_key(|(place, _)| *place);
    blocks.into_iter().map(|(_, block)| block).collect()
}

/// The sets of changed nodes that form a block, each in the order of execution.
///
/// A node is changed if the other model has no node with the same operator, operands and results. A
/// set also contains, for each of its nodes, the changed nodes that compute the same result, and
/// the producers of those inputs of the node that the other model lacks. The producers of two
/// corresponding outputs that differ, or of two values that are assumed to be equal, are in the
/// same set too.
fn groups(alignment: &Alignment) -> Vec<Vec<SidedNode>> {
    let mut changed: Vec<SidedNode> = vec![];
    for (side, own) in alignment.sides.iter().enumerate() {
        let nodes = own.nodes.iter().copied();
        let nodes = nodes.filter(|&node| own.is_needed(node) && !alignment.is_kept(side, node));
        changed.extend(nodes.map(|node| (side, node)));
    }
    let mut sets = DisjointSets::new(&changed);
    let mut makers: HashMap<Digest, SidedNode> = HashMap::new();
    for &(side, node) in &changed {
        let own = &alignment.sides[side];
        for value in own.reads(node) {
            if let Some((producer, _)) = own.graph.producer(value)
                && !alignment.is_shared(side, value)
            {
                sets.join((side, node), (side, producer));
            }
        }
        for digest in own.results(node).filter_map(|value| own.digest(value)) {
            let maker = *makers.entry(digest).or_insert((side, node));
            sets.join((side, node), maker);
        }
    }
    for outputs in alignment.parted.iter().chain(&alignment.assumed) {
        if let [Some(first), Some(second)] = producers(alignment, outputs) {
            sets.join(first, second);
        }
    }
    sets.into_sets(&changed)
}

/// The producers of two values, one in each model.
fn producers(alignment: &Alignment, values: &[ValueId; 2]) -> [Option<SidedNode>; 2] {
    [0, 1].map(|side| {
        let producer = alignment.sides[side].graph.producer(values[side]);
        producer.map(|(node, _)| (side, node))
    })
}

fn block(alignment: &Alignment, nodes: &[SidedNode], conditions: &Conditions) -> DiffBlock {
    let mut block = DiffBlock {
        verdict: conditions.verdict(alignment, nodes),
        first: vec![],
        second: vec![],
        stored: 0,
    };
    for &(side, node) in nodes {
        let own = &alignment.sides[side];
        let described = DiffNode {
            name: own.graph.name(node).to_owned(),
            operator: own.graph.node(node).operator(),
        };
        let list = if side == 0 {
            &mut block.first
        } else {
            &mut block.second
        };
        list.push(described);
        let results = own.results(node);
        block.stored += results
            .filter(|&value| alignment.is_stored_by_other(side, value))
            .count();
    }
    block
}

/// The verdict on blocks whose outputs differ, and the names of the values that make the verdict on
/// a block conditional.
struct Conditions<'j> {
    /// The verdict on a block that computes outputs that differ.
    of_parted: BlockVerdict,
    /// The tensors that formulas replace because they are rounded.
    rounded: HashSet<&'j str>,
    /// The results of casts that only one model has.
    casts: HashSet<&'j str>,
}

impl<'j> Conditions<'j> {
    fn new(judgement: &'j Judgement) -> Self {
        let (mut rounded, mut casts) = (HashSet::new(), HashSet::new());
        if let Judgement::Rounded { tensors, .. } | Judgement::Casts { tensors, .. } = judgement {
            rounded.extend(tensors.iter().map(|tensor| tensor.name.as_str()));
        }
        if let Judgement::Casts { casts: all, .. } = judgement {
            casts.extend(all.iter().map(|cast| cast.name.as_str()));
        }
        let of_parted = match judgement {
            Judgement::Different(_) => BlockVerdict::Different,
            _ => BlockVerdict::Undecided,
        };
        Self {
            of_parted,
            rounded,
            casts,
        }
    }

    fn verdict(&self, alignment: &Alignment, nodes: &[SidedNode]) -> BlockVerdict {
        let mut is_parted = false;
        let mut verdict = BlockVerdict::Same;
        for &(side, node) in nodes {
            let own = &alignment.sides[side];
            let graph = &own.graph;
            let parted = alignment.parted.iter().chain(&alignment.assumed);
            let mut parted = parted.map(|outputs| outputs[side]);
            is_parted |= parted.any(|output| graph.producer(output).is_some_and(|p| p.0 == node));
            let mut results = own.results(node).map(|value| graph.value_name(value));
            let mut reads = own.reads(node).map(|value| graph.value_name(value));
            if results.any(|name| self.casts.contains(name)) {
                verdict = BlockVerdict::Casts;
            } else if side == 1
                && verdict == BlockVerdict::Same
                && reads.any(|name| self.rounded.contains(name))
            {
                verdict = BlockVerdict::Rounded;
            }
        }
        if is_parted { self.of_parted } else { verdict }
    }
}

/// Disjoint sets of nodes (union-find).
struct DisjointSets {
    /// For each node, the next node on the path to the representative of its set. The
    /// representative refers to itself.
    next: HashMap<SidedNode, SidedNode>,
}

impl DisjointSets {
    fn new(nodes: &[SidedNode]) -> Self {
        Self {
            next: nodes.iter().map(|&node| (node, node)).collect(),
        }
    }

    /// The representative of the set of a node. `None` if the node is in no set.
    fn find(&mut self, node: SidedNode) -> Option<SidedNode> {
        let mut at = node;
        loop {
            let next = *self.next.get(&at)?;
            if next == at {
                return Some(at);
            }
            // Shortens the path for later searches: the node now refers to the node after the next
            // one.
            let behind = *self.next.get(&next)?;
            self.next.insert(at, behind);
            at = behind;
        }
    }

    /// Joins the sets of two nodes, if both are in a set.
    fn join(&mut self, a: SidedNode, b: SidedNode) {
        if let (Some(a), Some(b)) = (self.find(a), self.find(b)) {
            self.next.insert(a, b);
        }
    }

    /// The sets, each in the order of `nodes`.
    fn into_sets(mut self, nodes: &[SidedNode]) -> Vec<Vec<SidedNode>> {
        let mut sets: BTreeMap<SidedNode, Vec<SidedNode>> = BTreeMap::new();
        for &node in nodes {
            if let Some(representative) = self.find(node) {
                sets.entry(representative).or_default().push(node);
            }
        }
        sets.into_values().collect()
    }
}
