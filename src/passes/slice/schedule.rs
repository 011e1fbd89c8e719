//! The memory plan of a graph with some regions cut into parts.

use std::collections::HashMap;
use std::ops::Range;

use super::axes::PartRead;
use super::open_parts::{COMPUTING, open_extents};
use super::region::SliceRegion;
use crate::analysis::Analysis;
use crate::analysis::memory_plan::{Buffer, MemoryPlan, PlanStep};
use crate::ir::{self, NodeId, ValueId};

/// A region, and the number of its parts.
#[derive(Debug, Clone)]
pub(super) struct PlannedCut {
    /// The region.
    pub region: SliceRegion,
    /// The number of parts, at most the number of places along the axis.
    pub parts: usize,
}

impl PlannedCut {
    /// The number of places of each part. If the parts of a known axis differ, the first parts have
    /// one more place. Along an open axis, the last parts have fewer places.
    pub(super) fn extents(&self) -> Vec<usize> {
        let (places, parts) = (self.region.extent, self.parts);
        if self.region.is_open {
            return open_extents(places, parts);
        }
        (0..parts)
            .map(|part| places / parts + usize::from(part < places % parts))
            .collect()
    }

    /// The keys that each part reads. `None` if no key is hidden.
    pub(super) fn keys(&self) -> Option<Vec<Range<usize>>> {
        let axis = self.region.keys.as_ref()?;
        let mut start = 0;
        let mut keys = vec![];
        for extent in self.extents() {
            keys.push(axis.of_part(start..start + extent));
            start += extent;
        }
        Some(keys)
    }

    /// The number of scores for each head, and the number of scores that no part computes. Both
    /// numbers are 0 if no key is hidden.
    pub(super) fn scores(&self) -> (usize, usize) {
        let (Some(keys), Some(axis)) = (self.keys(), &self.region.keys) else {
            return (0, 0);
        };
        let all = self.region.extent * axis.keys;
        let parts = self.extents().into_iter().zip(&keys);
        let computed: usize = parts.map(|(extent, keys)| extent * keys.len()).sum();
        (all, all - computed)
    }

    /// The number of nodes that the cut adds.
    pub(super) fn added(&self) -> usize {
        let SliceRegion {
            members,
            cut,
            joined,
            ..
        } = &self.region;
        let computing = if self.region.is_open { COMPUTING } else { 0 };
        (self.parts - 1) * members.len() + cut.len() + joined.len() + computing
    }
}

/// The memory plan in which `cuts` are made. All parts of a region run at the step at which the
/// last node of the region ran. `None` if two regions would have to wait for each other.
pub(super) fn with_cuts(
    analysis: &Analysis,
    plan: &MemoryPlan,
    cuts: &[PlannedCut],
) -> Option<MemoryPlan> {
    let mut sliced = MemoryPlan {
        steps: Vec::with_capacity(plan.steps.len()),
        ..plan.clone()
    };
    for turn in turns(analysis, cuts)? {
        match turn {
            Scheduled::Node(node) => sliced.steps.push(plan.steps[node].clone()),
            Scheduled::Cut(cut) => push_parts(analysis, plan, (cut, &cuts[cut]), &mut sliced),
        }
    }
    Some(sliced)
}

/// A unit of the order: a node, or all parts of a region.
#[derive(Debug, Clone, Copy)]
enum Scheduled {
    Node(NodeId),
    Cut(usize),
}

/// The order in which nodes and regions run. `None` if two regions would have to wait for each
/// other.
fn turns(analysis: &Analysis, cuts: &[PlannedCut]) -> Option<Vec<Scheduled>> {
    let graph = &analysis.graph;
    let mut turn_of: HashMap<NodeId, usize> = HashMap::new();
    let mut turns = vec![];
    let mut cut_of: HashMap<NodeId, usize> = HashMap::new();
    let mut last: HashMap<usize, NodeId> = HashMap::new();
    for (number, cut) in cuts.iter().enumerate() {
        cut_of.extend(cut.region.nodes().map(|node| (node, number)));
        last.extend(cut.region.nodes().max().map(|node| (number, node)));
    }
    for node in 0..graph.proto().node.len() {
        let turn = match cut_of.get(&node) {
            None => Scheduled::Node(node),
            Some(cut) if last.get(cut) == Some(&node) => Scheduled::Cut(*cut),
            Some(_) => continue,
        };
        let nodes = match turn {
            Scheduled::Node(node) => vec![node],
            Scheduled::Cut(cut) => cuts[cut].region.nodes().collect(),
        };
        turn_of.extend(nodes.into_iter().map(|node| (node, turns.len())));
        turns.push(turn);
    }
    let mut after = vec![];
    for node in 0..graph.proto().node.len() {
        for &value in graph
            .inputs(node)
            .iter()
            .flatten()
            .chain(graph.captures(node))
        {
            let maker = graph.producer(value).map(|(maker, _)| turn_of[&maker]);
            after.extend(
                maker
                    .filter(|&maker| maker != turn_of[&node])
                    .map(|maker| (maker, turn_of[&node])),
            );
        }
    }
    let order = ir::order(turns.len(), &after);
    (order.len() == turns.len()).then(|| order.into_iter().map(|turn| turns[turn]).collect())
}

/// Appends the steps of a region: its inputs are cut, each part runs to its end, and the parts of
/// its outputs are joined.
fn push_parts(
    analysis: &Analysis,
    plan: &MemoryPlan,
    (number, cut): (usize, &PlannedCut),
    sliced: &mut MemoryPlan,
) {
    let region = &cut.region;
    let mut parts = PartBuffers::new(cut);
    for &(value, _) in &region.cut {
        let reads = vec![value.index()];
        let writes = parts.add(value, plan, &mut sliced.buffers);
        sliced.steps.push(movement(number, reads, writes));
    }
    for node in region.nodes() {
        for &value in analysis.graph.outputs(node).iter().flatten() {
            parts.add(value, plan, &mut sliced.buffers);
        }
    }
    for part in 0..cut.parts {
        for member in &region.members {
            let whole = &plan.steps[member.node];
            let mut reads = vec![];
            for (slot, (input, read)) in analysis
                .graph
                .inputs(member.node)
                .iter()
                .zip(&member.reads)
                .enumerate()
            {
                let Some(input) = *input else { continue };
                let own = own(&parts.by_whole[part], input.index(), *read);
                let axis = parts.key_slice(member.node, slot, input);
                reads.push(match axis {
                    Some(axis) => parts.sliced(number, part, (own, axis), sliced),
                    None => own,
                });
            }
            let made = &parts.by_whole[part];
            sliced.steps.push(PlanStep {
                node: Some(member.node),
                reads,
                writes: whole.writes.iter().map(|buffer| made[buffer]).collect(),
                in_place: whole.in_place,
                cut: Some(number),
            });
        }
    }
    for &(value, _) in &region.joined {
        let of_parts = parts.by_whole.iter();
        let reads = of_parts.map(|part| part[&value.index()]).collect();
        let writes = vec![value.index()];
        sliced.steps.push(movement(number, reads, writes));
    }
}

/// The step of a Split or a Concat around the parts of a region.
fn movement(number: usize, reads: Vec<usize>, writes: Vec<usize>) -> PlanStep {
    PlanStep {
        node: None,
        reads,
        writes,
        in_place: false,
        cut: Some(number),
    }
}

/// The buffers of the parts of a region.
struct PartBuffers<'c> {
    cut: &'c PlannedCut,
    /// The number of places of each part.
    extents: Vec<usize>,
    /// The keys of each part, if some are hidden.
    keys: Option<Vec<Range<usize>>>,
    /// For each part, maps the buffer of a whole value to that of the part.
    by_whole: Vec<HashMap<usize, usize>>,
    /// Maps a part, a buffer and its axis of keys to the buffer with the keys of the part.
    by_keys: HashMap<(usize, usize, usize), usize>,
}

impl<'c> PartBuffers<'c> {
    fn new(cut: &'c PlannedCut) -> Self {
        PartBuffers {
            cut,
            extents: cut.extents(),
            keys: cut.keys(),
            by_whole: vec![HashMap::new(); cut.parts],
            by_keys: HashMap::new(),
        }
    }

    /// Adds a buffer for each part of a value. Returns their indices.
    fn add(&mut self, value: ValueId, plan: &MemoryPlan, buffers: &mut Vec<Buffer>) -> Vec<usize> {
        let whole = plan.buffers[value.index()].bytes;
        let has_keys = self
            .cut
            .region
            .keys
            .as_ref()
            .is_some_and(|keys| keys.of_value(value).is_some());
        let mut added = vec![];
        for part in 0..self.extents.len() {
            let bytes = scaled(whole, self.extents[part], self.cut.region.extent);
            let bytes = match has_keys {
                true => self.bytes_of_keys(bytes, part),
                false => bytes,
            };
            self.by_whole[part].insert(value.index(), buffers.len());
            added.push(buffers.len());
            buffers.push(Buffer {
                value,
                bytes,
                is_output: false,
            });
        }
        added
    }

    /// The bytes of the keys that a part reads, from the bytes of all keys.
    fn bytes_of_keys(&self, bytes: u64, part: usize) -> u64 {
        match (&self.keys, &self.cut.region.keys) {
            (Some(keys), Some(axis)) => scaled(bytes, keys[part].len(), axis.keys),
            _ => bytes,
        }
    }

    /// The axis of keys of an operand from outside of the region. `None` for other operands.
    fn key_slice(&self, node: NodeId, slot: usize, value: ValueId) -> Option<usize> {
        let keys = self.cut.region.keys.as_ref()?;
        keys.of_operand(node, slot)
            .filter(|_| keys.of_value(value).is_none())
    }

    /// The buffer with the keys that a part reads from another buffer. Adds the step that slices
    /// the keys, unless an earlier call added it.
    fn sliced(
        &mut self,
        number: usize,
        part: usize,
        (buffer, axis): (usize, usize),
        sliced: &mut MemoryPlan,
    ) -> usize {
        if let Some(&found) = self.by_keys.get(&(part, buffer, axis)) {
            return found;
        }
        let Buffer { value, bytes, .. } = sliced.buffers[buffer];
        let narrow = sliced.buffers.len();
        sliced.buffers.push(Buffer {
            value,
            bytes: self.bytes_of_keys(bytes, part),
            is_output: false,
        });
        let step = movement(number, vec![buffer], vec![narrow]);
        sliced.steps.push(step);
        self.by_keys.insert((part, buffer, axis), narrow);
        narrow
    }
}

/// The bytes of `count` places, if `all` places of equal size have `bytes` bytes together.
fn scaled(bytes: u64, count: usize, all: usize) -> u64 {
    (u128::from(bytes) * count as u128 / all.max(1) as u128) as u64
}

/// The buffer that a part of a region reads in place of a whole buffer.
fn own(part: &HashMap<usize, usize>, whole: usize, read: PartRead) -> usize {
    match read {
        PartRead::Same(_) => part.get(&whole).copied().unwrap_or(whole),
        PartRead::Whole => whole,
    }
}
