//! Regions along one independent axis. A region has nodes, each with an axis of its outputs. Along
//! these axes, the values between the nodes have the same places.
//!
//! A region grows from one large value along one of its axes. A node that reads or outputs a value
//! with more bytes than a limit belongs to the region, if all nodes around this value can run part
//! by part. Other values are on the border: they are cut before the first part, or joined after the
//! last part. A node on a path that leaves the region and enters it again belongs to the region
//! too.

use std::collections::{BTreeMap, HashSet};

use tract_onnx::tract_hir::internal::TDim;

use super::axes::{PartRead, carried, reads, takes_no_places};
use super::key_axis::KeyAxis;
use super::part_shape::part_shape;
use super::sizes::ExpectedSizes;
use crate::analysis::Analysis;
use crate::analysis::memory_plan::is_read_by_nodes_alone;
use crate::ir::{NodeId, Reader, ValueId};
use crate::onnx::operator::input_at;
use crate::shape::facts::{extent, same};

/// The largest number of nodes of a region.
const MOST: usize = 256;

/// A node of a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RegionNode {
    /// The node.
    pub node: NodeId,
    /// The axis of the node's outputs along which it runs part by part.
    pub axis: usize,
    /// The part of each operand that is read to compute one place along the axis.
    pub reads: Vec<PartRead>,
    /// The shape that the node reads for a part, if it is a Reshape or an Expand.
    pub shape: Option<Vec<i64>>,
}

/// Nodes that can run part by part along an axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SliceRegion {
    /// The nodes, in execution order.
    pub members: Vec<RegionNode>,
    /// The number of places along the axis, at the expected sizes if it is open.
    pub extent: usize,
    /// Whether the number of places is known only at run time.
    pub is_open: bool,
    /// The values that are cut, with their axes.
    pub cut: Vec<(ValueId, usize)>,
    /// The values that are joined, with their axes.
    pub joined: Vec<(ValueId, usize)>,
    /// The axis of keys, if a mask hides some of them.
    pub keys: Option<KeyAxis>,
    /// The reason why hidden keys are computed.
    pub key_reason: Option<String>,
}

impl SliceRegion {
    /// The nodes, in execution order.
    pub(super) fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.members.iter().map(|member| member.node)
    }
}

/// The largest number of nodes that are added before a region, one by one, in search of a border
/// with fewer bytes.
const UPSTREAM: usize = 24;

/// The state of a region while nodes are added to it.
#[derive(Clone)]
struct Growing<'g> {
    analysis: &'g Analysis<'g>,
    sizes: &'g ExpectedSizes<'g>,
    /// The number of places along the axis at the expected sizes.
    places: usize,
    /// The extent of the axis.
    dim: Option<TDim>,
    /// Values with more bytes are inside of the region.
    limit: u64,
    /// The nodes, each with the axis of its outputs.
    nodes: BTreeMap<NodeId, usize>,
    /// The values inside.
    within: HashSet<ValueId>,
    /// Values that must be inside, but whose nodes are not yet added, each with its axis.
    ahead: Vec<(ValueId, usize)>,
}

/// The regions around a value along one of its axes. The first region has all nodes around values
/// with more bytes than a limit. Each region has more nodes at its beginning, and fewer bytes on
/// its border, than the previous region.
pub(super) fn grow(
    analysis: &Analysis,
    (value, axis): (ValueId, usize),
    limit: u64,
    sizes: &ExpectedSizes,
) -> Vec<SliceRegion> {
    let Some(mut growing) = begun(analysis, (value, axis), limit, sizes) else {
        return vec![];
    };
    let mut regions: Vec<SliceRegion> = vec![];
    let mut least = u64::MAX;
    for _ in 0..UPSTREAM {
        let Some(region) = growing.clone().finish() else {
            break;
        };
        let (cut, border) = (growing.cut_last(&region), growing.border(&region));
        if border < least {
            least = border;
            regions.push(region);
        }
        let Some((value, axis)) = cut else { break };
        if growing.add_producer(value, axis).is_none() {
            break;
        }
    }
    regions
}

/// A region with all nodes around large values. `None` if some of these nodes cannot run part by
/// part, or if the axis is open and the operator set has no Split that reads its sizes.
fn begun<'g>(
    analysis: &'g Analysis<'g>,
    (value, axis): (ValueId, usize),
    limit: u64,
    sizes: &'g ExpectedSizes<'g>,
) -> Option<Growing<'g>> {
    let places = sizes.extent(value, axis).filter(|&places| places > 1)?;
    let dim = analysis.facts.shape(value)?.get(axis)?.clone();
    let can_be_open = input_at("Split", "split", analysis.graph.model().own_opset()).is_some();
    (extent(&dim).is_some() || can_be_open).then_some(())?;
    let mut growing = Growing {
        analysis,
        sizes,
        places,
        dim,
        limit,
        nodes: BTreeMap::new(),
        within: HashSet::new(),
        ahead: vec![(value, axis)],
    };
    growing.can_be_within(value, axis).then_some(())?;
    growing.spread()?;
    growing.close()?;
    growing.add_biases()?;
    Some(growing)
}

impl Growing<'_> {
    /// Adds the nodes around all values in `ahead`. `None` if one of them cannot be added.
    fn spread(&mut self) -> Option<()> {
        while let Some((value, axis)) = self.ahead.pop() {
            if !self.within.insert(value) {
                continue;
            }
            for (node, axis) in self.around(value, axis)? {
                self.add(node, axis)?;
            }
        }
        Some(())
    }

    /// Adds all nodes on a path that leaves the region and enters it again. `None` if one of them
    /// cannot be added.
    fn close(&mut self) -> Option<()> {
        while let Some((node, axis)) = self.between()? {
            self.add(node, axis)?;
            self.spread()?;
        }
        Some(())
    }

    /// Adds each node that adds a bias to a product of the region, because engines fuse a bias with
    /// its product. `None` if one of them cannot be added.
    fn add_biases(&mut self) -> Option<()> {
        for (node, axis) in self.biases() {
            self.add(node, axis)?;
        }
        self.spread()?;
        self.close()
    }

    /// The nodes that add a bias to a product of the region, each with the axis of its outputs.
    fn biases(&self) -> Vec<(NodeId, usize)> {
        let Analysis {
            graph, constants, ..
        } = self.analysis;
        let products = self
            .nodes
            .iter()
            .filter(|&(&node, _)| graph.is(node, "MatMul"));
        let sums = products.filter_map(|(&product, &axis)| {
            let (sum, slot) = graph.only_reader(graph.only_output(product)?)?;
            let other = graph.input(sum, 1_usize.checked_sub(slot)?)?;
            let is_bias = graph.is(sum, "Add") && constants.is_constant(other);
            let along = carried(self.analysis, sum, slot, axis)?;
            let can_run = self.reads(sum, along).is_some() && !self.nodes.contains_key(&sum);
            (is_bias && can_run).then_some((sum, along))
        });
        sums.collect()
    }

    /// The cut value whose producer runs last, and its axis. `None` if no cut value of known size
    /// has a producer.
    fn cut_last(&self, region: &SliceRegion) -> Option<(ValueId, usize)> {
        let graph = &self.analysis.graph;
        let made = region
            .cut
            .iter()
            .filter(|(value, _)| self.sizes.bytes(*value) > 0);
        let placed = made.filter_map(|&(value, axis)| {
            Some((graph.place(graph.producer(value)?.0), value, axis))
        });
        placed.max().map(|(_, value, axis)| (value, axis))
    }

    /// The number of bytes of the values that are cut and joined.
    fn border(&self, region: &SliceRegion) -> u64 {
        region
            .cut
            .iter()
            .chain(&region.joined)
            .map(|&(value, _)| self.sizes.bytes(value))
            .sum()
    }

    /// Adds the node that outputs a value. `None` if it cannot be added.
    fn add_producer(&mut self, value: ValueId, axis: usize) -> Option<()> {
        let (node, _) = self.analysis.graph.producer(value)?;
        self.add(node, axis)?;
        self.spread()?;
        self.close()
    }

    /// The producer and the readers of a value, each with the axis of its outputs. `None` if one of
    /// them has no such axis.
    fn around(&self, value: ValueId, axis: usize) -> Option<Vec<(NodeId, usize)>> {
        let graph = &self.analysis.graph;
        let mut around = vec![(graph.producer(value)?.0, axis)];
        for reader in graph.readers(value) {
            let Reader::Node { node, input } = *reader else {
                return None;
            };
            around.push((node, carried(self.analysis, node, input, axis)?));
        }
        Some(around)
    }

    /// Whether the nodes around a value can run part by part.
    fn can_be_within(&self, value: ValueId, axis: usize) -> bool {
        if !is_read_by_nodes_alone(self.analysis, value) {
            return false;
        }
        let Some(around) = self.around(value, axis) else {
            return false;
        };
        around.into_iter().all(|(node, axis)| {
            let is_free = self.nodes.get(&node).is_none_or(|&other| other == axis);
            is_free && self.reads(node, axis).is_some()
        })
    }

    /// The part of each operand that a node reads, if the node can run part by part. Parts of an
    /// open axis may have no places, which the node must allow.
    fn reads(&self, node: NodeId, axis: usize) -> Option<Vec<PartRead>> {
        let can_run = !self.is_open() || takes_no_places(self.analysis, node);
        can_run.then(|| reads(self.analysis, node, axis))?
    }

    fn is_open(&self) -> bool {
        extent(&self.dim).is_none()
    }

    /// Adds a node, and records the large values around it. `None` if the node is in the region
    /// along another axis, if it cannot run part by part, or if the region has too many nodes.
    fn add(&mut self, node: NodeId, axis: usize) -> Option<()> {
        match self.nodes.insert(node, axis) {
            Some(other) if other != axis => return None,
            Some(_) => return Some(()),
            None if self.nodes.len() > MOST => return None,
            None => {}
        }
        let reads = self.reads(node, axis)?;
        let graph = &self.analysis.graph;
        let inputs = graph
            .inputs(node)
            .iter()
            .zip(&reads)
            .filter_map(|(input, read)| match read {
                PartRead::Same(along) => Some(((*input)?, *along)),
                PartRead::Whole => None,
            });
        let outputs = graph
            .outputs(node)
            .iter()
            .flatten()
            .map(|&output| (output, axis));
        for (value, axis) in inputs.chain(outputs).collect::<Vec<_>>() {
            let is_large = self.sizes.bytes(value) > self.limit && !self.within.contains(&value);
            if is_large && self.can_be_within(value, axis) {
                self.ahead.push((value, axis));
            }
        }
        Some(())
    }

    /// A node on a path that leaves the region and enters it again, with the axis of its outputs.
    /// The inner `None` means that there is no such node, the outer `None` that the node has no
    /// such axis.
    #[allow(clippy::option_option)]
    fn between(&self) -> Option<Option<(NodeId, usize)>> {
        let graph = &self.analysis.graph;
        let places = self.nodes.keys().map(|&node| graph.place(node));
        let (Some(first), Some(last)) = (places.clone().min(), places.max()) else {
            return Some(None);
        };
        let window = &graph.order()[first..=last];
        let (behind, before) = (self.nodes_behind(window), self.nodes_before(window));
        // The first of these nodes reads the region itself.
        let Some(&node) = window.iter().find(|node| {
            !self.nodes.contains_key(node) && behind.contains(node) && before.contains(node)
        }) else {
            return Some(None);
        };
        let mut inputs = graph.inputs(node).iter().enumerate();
        let axis = inputs.find_map(|(slot, input)| {
            let maker = graph.producer((*input)?)?.0;
            carried(self.analysis, node, slot, *self.nodes.get(&maker)?)
        })?;
        Some(Some((node, axis)))
    }

    /// The nodes of a window that read the region, directly or indirectly.
    fn nodes_behind(&self, window: &[NodeId]) -> HashSet<NodeId> {
        let mut behind: HashSet<NodeId> = HashSet::new();
        for &node in window {
            if self
                .makers(node)
                .any(|maker| self.nodes.contains_key(&maker) || behind.contains(&maker))
            {
                behind.insert(node);
            }
        }
        behind
    }

    /// The nodes that the region reads, directly or through nodes of a window.
    fn nodes_before(&self, window: &[NodeId]) -> HashSet<NodeId> {
        let mut before: HashSet<NodeId> = HashSet::new();
        for &node in window.iter().rev() {
            if self.nodes.contains_key(&node) || before.contains(&node) {
                before.extend(self.makers(node));
            }
        }
        before
    }

    /// The producers of the values that a node and its bodies read.
    fn makers(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        let graph = &self.analysis.graph;
        let read = graph
            .inputs(node)
            .iter()
            .flatten()
            .chain(graph.captures(node));
        read.filter_map(|&value| Some(graph.producer(value)?.0))
    }

    /// Returns the region. `None` if its nodes do not agree on the axes and their extent, or if it
    /// has no outputs.
    fn finish(self) -> Option<SliceRegion> {
        let graph = &self.analysis.graph;
        let mut nodes: Vec<(NodeId, usize)> = self
            .nodes
            .iter()
            .map(|(&node, &axis)| (node, axis))
            .collect();
        nodes.sort_by_key(|&(node, _)| graph.place(node));
        let (mut members, mut cut, mut joined) = (vec![], vec![], vec![]);
        for (node, axis) in nodes {
            let reads = self.reads(node, axis)?;
            for (input, read) in graph.inputs(node).iter().zip(&reads) {
                let Some(input) = *input else { continue };
                let made = graph
                    .producer(input)
                    .and_then(|(maker, _)| self.nodes.get(&maker));
                match (made, *read) {
                    (Some(made), PartRead::Same(along)) if *made == along => {}
                    (Some(_), _) => return None,
                    (None, PartRead::Same(along)) if !cut.contains(&(input, along)) => {
                        cut.push((input, along))
                    }
                    (None, _) => {}
                }
            }
            for &output in graph.outputs(node).iter().flatten() {
                if !graph
                    .readers(output)
                    .iter()
                    .all(|reader| self.is_within(reader))
                {
                    joined.push((output, axis));
                }
                self.has_extent(output, axis).then_some(())?;
            }
            members.push(RegionNode {
                node,
                axis,
                shape: part_shape(&self.analysis.at(node), axis, &reads)?,
                reads,
            });
        }
        let can_cut_all = cut
            .iter()
            .all(|&(value, axis)| self.has_extent(value, axis));
        let has_extent = !self.is_open() || !cut.is_empty();
        (!joined.is_empty() && can_cut_all && has_extent).then_some(SliceRegion {
            members,
            extent: self.places,
            is_open: self.is_open(),
            cut,
            joined,
            keys: None,
            key_reason: None,
        })
    }

    fn is_within(&self, reader: &Reader) -> bool {
        matches!(reader, Reader::Node { node, .. } if self.nodes.contains_key(node))
    }

    /// Whether an axis has as many places as the axis of the region.
    fn has_extent(&self, value: ValueId, axis: usize) -> bool {
        let shape = self.analysis.facts.shape(value);
        shape.is_some_and(|shape| shape.get(axis).is_some_and(|dim| same(dim, &self.dim)))
    }
}
