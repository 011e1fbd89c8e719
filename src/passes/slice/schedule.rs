//! The memory plan of a graph with some regions cut into parts.

use std::collections::HashMap;

use super::axes::PartRead;
use super::region::{RegionNode, SliceRegion};
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
    /// The number of places of each part. If they differ, the first parts have one place more.
    pub(super) fn extents(&self) -> Vec<usize> {
        let (places, parts) = (self.region.extent, self.parts);
        (0..parts)
            .map(|part| places / parts + usize::from(part < places % parts))
            .collect()
    }

    /// The number of nodes that the cut adds.
    pub(super) fn added(&self) -> usize {
        let SliceRegion {
            members,
            cut,
            joined,
            ..
        } = &self.region;
        (self.parts - 1) * members.len() + cut.len() + joined.len()
    }
}

/// The memory plan with these regions cut. Each region runs part by part where its last node ran.
/// `None` if two regions would have to wait for each other.
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

/// The order in which nodes and regions run.
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
    for part in &parts.by_whole {
        for RegionNode { node, reads, .. } in &region.members {
            let whole = &plan.steps[*node];
            let inputs = analysis.graph.inputs(*node).iter().zip(reads);
            let read = inputs.filter_map(|(input, read)| Some(own(part, (*input)?.index(), *read)));
            sliced.steps.push(PlanStep {
                node: Some(*node),
                reads: read.collect(),
                writes: whole.writes.iter().map(|buffer| part[buffer]).collect(),
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
struct PartBuffers {
    /// The number of places of each part.
    extents: Vec<usize>,
    /// The number of places of all parts.
    whole_extent: usize,
    /// For each part, maps the buffer of a whole value to that of the part.
    by_whole: Vec<HashMap<usize, usize>>,
}

impl PartBuffers {
    fn new(cut: &PlannedCut) -> Self {
        PartBuffers {
            extents: cut.extents(),
            whole_extent: cut.region.extent.max(1),
            by_whole: vec![HashMap::new(); cut.parts],
        }
    }

    /// Adds a buffer for each part of a value. Returns their indices.
    fn add(&mut self, value: ValueId, plan: &MemoryPlan, buffers: &mut Vec<Buffer>) -> Vec<usize> {
        let whole = u128::from(plan.buffers[value.index()].bytes);
        let mut added = vec![];
        for (&extent, by_whole) in self.extents.iter().zip(&mut self.by_whole) {
            by_whole.insert(value.index(), buffers.len());
            added.push(buffers.len());
            buffers.push(Buffer {
                value,
                bytes: (whole * extent as u128 / self.whole_extent as u128) as u64,
                is_output: false,
            });
        }
        added
    }
}

/// The buffer that a part of a region reads in place of a whole buffer.
fn own(part: &HashMap<usize, usize>, whole: usize, read: PartRead) -> usize {
    match read {
        PartRead::Same(_) => part.get(&whole).copied().unwrap_or(whole),
        PartRead::Whole => whole,
    }
}
