//! The values that are needed only at the places of a selection.
//!
//! The demand propagates up from the selected value. If all outputs of a node are needed only at
//! these places, each operand that varies along the axis is also needed only there. A value that
//! another node reads whole is a cut: the selection is written after it.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use super::per_sample::SAMPLES;
use super::places::PlaceSet;
use super::selection::Group;
use crate::analysis::Analysis;
use crate::ir::regions::region_path;
use crate::ir::{NodeId, Reader, ValueId};
use crate::onnx::operator::Category;
use crate::ops::axes::{AxisRead, PlaceAxis, reads};
use crate::shape::facts::same_shape;

/// The largest constant, in elements, from which places are selected even if other nodes read the
/// whole constant.
const SMALL: usize = 1 << 14;

/// Nodes that need to compute only the places of a selection.
pub(super) struct NarrowRegion {
    /// The nodes in topological order.
    pub nodes: Vec<NodeId>,
    /// Inputs of the nodes that are read only at the places, each with the axis of the places.
    pub slots: BTreeMap<(NodeId, usize), PlaceAxis>,
    /// Values that are needed only at the places, each with the axis of the places.
    pub narrow: BTreeMap<ValueId, PlaceAxis>,
    /// Values that stay whole outside of the region. Nodes of the region read only the places of
    /// these values along an axis, so the places are selected from the values.
    pub cuts: BTreeSet<(ValueId, PlaceAxis)>,
    /// In a selection of one place of each sample, the cuts that all samples share. Each comes with
    /// the rank to which it is aligned before its places are taken.
    pub shared: BTreeMap<ValueId, usize>,
    /// Nodes that read only the shape of a value of the region, each with a value of equal shape
    /// that stays whole.
    pub shapes: Vec<(NodeId, ValueId)>,
    /// The number of selected places.
    pub count: usize,
}

/// The region before a group of selections. `None` if it has no cut, or contains no product and no
/// normalization.
pub(super) fn region(analysis: &Analysis, group: &Group) -> Option<NarrowRegion> {
    let mut whole = BTreeSet::new();
    // Each round except the last adds a value that stays whole.
    for _ in 0..=analysis.graph.order().len() {
        let mut search = UpwardSearch {
            analysis,
            group,
            whole: &whole,
            found: empty(group),
            shape_readers: BTreeMap::new(),
        };
        search.run();
        let (mut found, shape_readers) = (search.found, search.shape_readers);
        let unresolved = stand_ins(analysis, &mut found, &shape_readers);
        if unresolved.is_empty() {
            found.nodes.sort_by_key(|&node| analysis.graph.place(node));
            return is_worth(analysis, &found).then_some(found);
        }
        whole.extend(unresolved);
    }
    None
}

fn empty(group: &Group) -> NarrowRegion {
    NarrowRegion {
        nodes: vec![],
        slots: BTreeMap::new(),
        narrow: BTreeMap::from([(group.value, PlaceAxis::Own(group.axis))]),
        cuts: BTreeSet::new(),
        shared: BTreeMap::new(),
        shapes: vec![],
        count: group.count,
    }
}

/// Whether moving the selection up saves work: the region has a cut, and contains a product or a
/// normalization, which computes fewer places.
fn is_worth(analysis: &Analysis, region: &NarrowRegion) -> bool {
    let mut nodes = region.nodes.iter();
    !region.cuts.is_empty() && nodes.any(|&node| is_work(analysis, node))
}

/// Whether a node is a product, a normalization, an attention or a softmax.
fn is_work(analysis: &Analysis, node: NodeId) -> bool {
    let graph = &analysis.graph;
    let category = graph.category(node);
    category.is_some_and(|it| it.is_product() || it == Category::Normalizer)
        || ["Attention", "Einsum", "Softmax"]
            .iter()
            .any(|op| graph.is(node, op))
}

/// For each narrow value whose shape some nodes read, finds a whole value of equal shape that these
/// nodes can read instead. Returns the narrow values that have no such whole value.
fn stand_ins(
    analysis: &Analysis,
    region: &mut NarrowRegion,
    shape_readers: &BTreeMap<ValueId, Vec<NodeId>>,
) -> Vec<ValueId> {
    let mut unresolved = vec![];
    for (&value, readers) in shape_readers {
        if !region.narrow.contains_key(&value) {
            continue;
        }
        match cut_of_shape(analysis, region, value) {
            Some(cut) => region
                .shapes
                .extend(readers.iter().map(|&node| (node, cut))),
            None => unresolved.push(value),
        }
    }
    unresolved
}

/// A cut, which stays whole, with the shape of `value`. `None` if no cut is known to have this
/// shape.
fn cut_of_shape(analysis: &Analysis, region: &NarrowRegion, value: ValueId) -> Option<ValueId> {
    let shape = analysis.facts.shape(value)?;
    let mut cuts = region.cuts.iter().map(|&(cut, _)| cut);
    cuts.find(|&cut| {
        let other = analysis.facts.shape(cut);
        other.is_some_and(|other| same_shape(&shape, &other))
    })
}

struct UpwardSearch<'s> {
    analysis: &'s Analysis<'s>,
    group: &'s Group,
    /// Values that earlier rounds of the search found must stay whole.
    whole: &'s BTreeSet<ValueId>,
    found: NarrowRegion,
    /// Nodes that read only the shape of a value.
    shape_readers: BTreeMap<ValueId, Vec<NodeId>>,
}

impl UpwardSearch<'_> {
    /// Visits nodes from the last one upward, so that all readers of a value are visited before its
    /// producer.
    fn run(&mut self) {
        let graph = &self.analysis.graph;
        let mut open = BinaryHeap::new();
        let mut wanted = BTreeSet::new();
        let axis = PlaceAxis::Own(self.group.axis);
        self.want(self.group.value, axis, &mut open, &mut wanted);
        while let Some((_, node)) = open.pop() {
            let outputs: Vec<ValueId> = graph
                .outputs(node)
                .iter()
                .flatten()
                .copied()
                .filter(|value| !graph.readers(*value).is_empty())
                .collect();
            let passes = self.passed(node, &outputs);
            if passes.is_none() {
                outputs.iter().for_each(|&output| self.stop(output));
            }
            let Some(read) = passes else { continue };
            self.found.nodes.push(node);
            for (slot, axis) in read {
                self.found.slots.insert((node, slot), axis);
                let Some(value) = graph.input(node, slot) else {
                    continue;
                };
                if self.found.shared.contains_key(&value) {
                    self.found.cuts.insert((value, axis));
                } else {
                    self.want(value, axis, &mut open, &mut wanted);
                }
            }
        }
    }

    /// Keeps a value whole: the selection is written after it.
    fn stop(&mut self, value: ValueId) {
        if let Some(axis) = self.found.narrow.remove(&value) {
            self.found.cuts.insert((value, axis));
        }
    }

    /// Records that a value is needed only at the places along an axis, and queues its producer.
    /// The value becomes a cut if it has no producer, must stay whole, or is also needed along
    /// another axis.
    fn want(
        &mut self,
        value: ValueId,
        axis: PlaceAxis,
        open: &mut BinaryHeap<(usize, NodeId)>,
        wanted: &mut BTreeSet<NodeId>,
    ) {
        let graph = &self.analysis.graph;
        let narrow = self.found.narrow.get(&value);
        let is_along_other = narrow.is_some_and(|&other| other != axis);
        match graph.producer(value) {
            Some((node, _)) if !is_along_other && !self.is_cut(value) => {
                self.found.narrow.insert(value, axis);
                if wanted.insert(node) {
                    open.push((graph.place(node), node));
                }
            }
            _ => {
                self.stop(value);
                self.found.cuts.insert((value, axis));
            }
        }
    }

    fn is_cut(&self, value: ValueId) -> bool {
        self.whole.contains(&value)
            || self.analysis.constants.is_constant(value)
            || self.found.cuts.iter().any(|&(cut, _)| cut == value)
    }

    /// The inputs that a node reads at the places, each with its axis. `None` if the selection
    /// cannot pass the node.
    fn passed(&mut self, node: NodeId, outputs: &[ValueId]) -> Option<Vec<(usize, PlaceAxis)>> {
        let graph = &self.analysis.graph;
        let is_here = region_path(graph.node(node)) == region_path(graph.node(self.group.first()));
        let is_plain = graph.captures(node).is_empty()
            && !graph.category(node).is_some_and(Category::is_random);
        if !is_here || !is_plain {
            return None;
        }
        let mut all: Option<Vec<(usize, PlaceAxis)>> = None;
        for &output in outputs {
            let axis = *self.found.narrow.get(&output)?;
            if !can_be_written(self.analysis, node, axis.axis()) || !self.is_only_narrow(output) {
                return None;
            }
            let (_, slot) = graph.producer(output)?;
            let read = self.operands(node, slot, axis)?;
            if all.get_or_insert_with(|| read.clone()) != &read {
                return None;
            }
        }
        let read = all.filter(|read| !read.is_empty())?;
        self.keeps_samples(node, &read)?;
        Some(read)
    }

    /// If the selection takes one place of each sample, checks that a node reads each of these
    /// inputs at the sample of its output. Returns `None` if it does not. An element-wise operator
    /// may also read inputs that all samples share, which are recorded.
    fn keeps_samples(&mut self, node: NodeId, inputs: &[(usize, PlaceAxis)]) -> Option<()> {
        if !matches!(self.group.places, PlaceSet::OfSample(_)) {
            return Some(());
        }
        let (graph, at) = (&self.analysis.graph, self.analysis.at(node));
        let is_elementwise = graph.category(node).is_some_and(Category::is_elementwise);
        let read = reads(&at, 0, SAMPLES);
        let mut shared = vec![];
        for &(slot, axis) in inputs {
            matches!(axis, PlaceAxis::Own(_)).then_some(())?;
            match read.get(slot)? {
                AxisRead::Same(SAMPLES) => {}
                AxisRead::Absent if is_elementwise => shared.push(graph.input(node, slot)?),
                _ => return None,
            }
        }
        let rank = at.output_rank(0).ok()?;
        for value in shared {
            let is_new = !self.found.narrow.contains_key(&value);
            let known = *self.found.shared.entry(value).or_insert(rank);
            (is_new && known == rank).then_some(())?;
        }
        Some(())
    }

    /// The inputs that vary along an axis of an output, each with that axis in the input. `None` if
    /// an output place reads other places of an input than its own.
    fn operands(
        &self,
        node: NodeId,
        slot: usize,
        axis: PlaceAxis,
    ) -> Option<Vec<(usize, PlaceAxis)>> {
        let (graph, at) = (&self.analysis.graph, self.analysis.at(node));
        if let Some(regrouped) = axis.before_reshape(&at) {
            return Some(vec![(0, regrouped)]);
        }
        let mut found = vec![];
        for (input, read) in reads(&at, slot, axis.axis()).into_iter().enumerate() {
            let Some(value) = graph.input(node, input) else {
                continue;
            };
            match read {
                AxisRead::Same(along) if self.can_be_cut(value, axis) => {
                    found.push((input, axis.moved(along)))
                }
                AxisRead::All | AxisRead::Absent => {}
                _ => return None,
            }
        }
        Some(found)
    }

    /// Whether the places along `axis` can be taken from a value. False for a large constant with
    /// other readers, because the constant would be stored twice.
    fn can_be_cut(&self, value: ValueId, axis: PlaceAxis) -> bool {
        let constants = &self.analysis.constants;
        if !constants.is_constant(value) {
            return true;
        }
        if let PlaceAxis::Rows { .. } = axis {
            return false;
        }
        let is_small = constants.len(value).is_some_and(|count| count <= SMALL);
        let is_computed = matches!(
            self.group.places,
            PlaceSet::Computed(_) | PlaceSet::OfSample(_)
        );
        is_small || (!is_computed && self.analysis.graph.only_reader(value).is_some())
    }

    /// Whether each reader of a value reads only the places along this axis, or only the shape. The
    /// value of the group may also be read by the selections of the group.
    fn is_only_narrow(&mut self, value: ValueId) -> bool {
        let graph = &self.analysis.graph;
        let mut shape_readers = vec![];
        for reader in graph.readers(value) {
            let &Reader::Node { node, input } = reader else {
                return false;
            };
            if graph.is(node, "Shape") {
                shape_readers.push(node);
            } else if value != self.group.value
                && self.found.slots.get(&(node, input)) != self.found.narrow.get(&value)
            {
                return false;
            }
        }
        if !shape_readers.is_empty() {
            self.shape_readers.insert(value, shape_readers);
        }
        true
    }
}

/// Whether a node can be written for fewer places of an axis. False for a node with explicit
/// extents or groups of channels, because these would change. A Reshape to a constant shape is
/// allowed.
fn can_be_written(analysis: &Analysis, node: NodeId, axis: usize) -> bool {
    let (graph, at) = (&analysis.graph, analysis.at(node));
    match graph.op(node) {
        Some("Reshape") => at.ints(1).is_ok_and(|list| list.is_some()),
        Some("Resize") => at.input(3).is_err(),
        Some("Conv" | "ConvTranspose") => axis != 1 || at.attr("group", 1) == Ok(1),
        Some("Expand") => false,
        _ => true,
    }
}
