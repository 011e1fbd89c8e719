//! Cancels inverse movements around element-wise operators. Both movements are removed, and the
//! operators work on the value before the first movement.
//!
//! GPT-2 in Hugging Face reshapes the input of each layer to rows, and the result back to
//! sentences. Before a GELU, the Reshape back to sentences is useless, because the result of the
//! GELU is reshaped to rows again.

use crate::affine::materialize::Edit;
use crate::affine::recognize::Replacement;
use crate::analysis::Analysis;
use crate::analysis::axis_factors::LayoutMap;
use crate::hash::{HashMap, HashSet};
use crate::ir::builder::{Maker, NewConstant};
use crate::ir::regions::region_path;
use crate::ir::{Graph, NodeId, Reader, ValueId};
use crate::onnx::operator::Category;
use crate::onnx::proto::NodeProto;
use crate::shape::facts::{Shape, extent, same, same_shape};

/// The largest number of operators between the two movements.
const BUDGET: usize = 24;

/// The edits that cancel pairs of inverse movements.
pub(crate) fn edits(analysis: &Analysis) -> Vec<Edit> {
    let graph = &analysis.graph;
    let mut taken: HashSet<NodeId> = HashSet::default();
    let mut edits = vec![];
    for &first in graph.order() {
        let Some(between) = Between::find(analysis, first) else {
            continue;
        };
        let mut nodes = between.nodes.clone();
        nodes.extend([first, between.last]);
        // If two pairs share a node, only the first is removed now, and the next run of this pass
        // removes the second.
        if nodes.iter().any(|node| taken.contains(node)) {
            continue;
        }
        taken.extend(&nodes);
        if let Some((made, constants)) = between.written(analysis) {
            let replacement = Replacement {
                nodes,
                made,
                constants,
            };
            edits.push(Edit::replacing(graph, first, replacement));
        }
    }
    edits
}

/// The operators between a movement and its inverse.
struct Between {
    first: NodeId,
    /// The operators, in execution order.
    nodes: Vec<NodeId>,
    /// The second movement.
    last: NodeId,
}

impl Between {
    /// Collects the operators between the movement `first` and an inverse movement. `None` unless
    /// all operators that read the result of `first`, directly or indirectly, are element-wise up
    /// to one inverse movement.
    fn find(analysis: &Analysis, first: NodeId) -> Option<Self> {
        let mut search = BetweenSearch::new(analysis, first)?;
        let mut read = 0;
        while let Some(&value) = search.values.get(read) {
            read += 1;
            search.take_readers(value)?;
        }
        search.finish()
    }

    /// Returns the nodes that apply the operators in between to the input of the first movement,
    /// and their constants. `None` if a movement has several outputs.
    fn written(&self, analysis: &Analysis) -> Option<(Vec<NodeProto>, Vec<NewConstant>)> {
        let graph = &analysis.graph;
        let mut maker = Maker::new(graph, self.first);
        let mut instead: HashMap<&str, String> = HashMap::default();
        instead.insert(
            graph.value_name(graph.only_output(self.first)?),
            graph.value_name(graph.input(self.first, 0)?).to_owned(),
        );
        for &node in &self.nodes {
            let node = graph.node(node);
            let inputs: Vec<&str> = node
                .input
                .iter()
                .map(|name| instead.get(name.as_str()).unwrap_or(name).as_str())
                .collect();
            let made = maker.op(node.op_type(), &inputs, node.attribute.clone());
            instead.insert(&node.output[0], made);
        }
        let (mut made, constants) = maker.finish(graph.value_name(graph.only_output(self.last)?));
        // The operators keep their names and metadata.
        for (made, &node) in made.iter_mut().zip(&self.nodes) {
            let (input, output) = (
                std::mem::take(&mut made.input),
                std::mem::take(&mut made.output),
            );
            *made = NodeProto {
                input,
                output,
                name: Some(graph.name(node).to_owned()),
                ..graph.node(node).clone()
            };
        }
        Some((made, constants))
    }
}

/// The search for the operators after a movement.
struct BetweenSearch<'a> {
    analysis: &'a Analysis<'a>,
    first: NodeId,
    /// The shape of the first movement's input.
    before: Shape,
    /// The shape of the first movement's result. All values between the two movements have this
    /// shape.
    shape: Shape,
    /// The layout of the values between the movements, relative to the input of the first movement.
    trace: LayoutMap,
    /// Whether the last axis is still the last one after the first movement.
    keeps_last_axis: bool,
    nodes: Vec<NodeId>,
    /// The results of the first movement and of `nodes`.
    values: Vec<ValueId>,
    /// The inverse movement.
    last: Option<NodeId>,
}

impl<'a> BetweenSearch<'a> {
    fn new(analysis: &'a Analysis<'a>, first: NodeId) -> Option<Self> {
        let Analysis {
            graph,
            facts,
            constants,
            ..
        } = analysis;
        let moved = graph
            .only_output(first)
            .filter(|&moved| moves(graph, first) && !constants.is_constant(moved))?;
        let source = graph.input(first, 0)?;
        let (before, shape) = (facts.shape(source)?, facts.shape(moved)?);
        let mut trace = LayoutMap::new(&before);
        trace.follow(graph.node(first), &shape)?;
        let last_axis = before.len().checked_sub(1);
        let last_places = last_axis.and_then(|last| trace.places(&[last]));
        Some(BetweenSearch {
            analysis,
            first,
            keeps_last_axis: last_places == Some(vec![shape.len().wrapping_sub(1)]),
            before,
            shape,
            trace,
            nodes: vec![],
            values: vec![moved],
            last: None,
        })
    }

    /// Collects all readers of a value. `None` if one of them stops the search.
    fn take_readers(&mut self, value: ValueId) -> Option<()> {
        let graph = &self.analysis.graph;
        if graph.readers(value).is_empty() {
            return None;
        }
        for reader in graph.readers(value) {
            let Reader::Node { node, input } = *reader else {
                return None;
            };
            let is_beside = region_path(graph.node(node)) == region_path(graph.node(self.first));
            if !is_beside || self.nodes.len() > BUDGET {
                return None;
            }
            if moves(graph, node) && input == 0 {
                self.end_at(node, value)?;
            } else if !self.nodes.contains(&node) {
                self.take_elementwise(node)?;
            }
        }
        Some(())
    }

    /// Accepts a movement as the last node, if it is the inverse of the first movement, and the
    /// only reader of a result of `nodes`.
    fn end_at(&mut self, node: NodeId, value: ValueId) -> Option<()> {
        let Analysis { graph, facts, .. } = self.analysis;
        graph.only_reader(value)?;
        if self.last.is_some() || value == self.values[0] {
            return None;
        }
        let output = graph.only_output(node)?;
        self.trace.follow(graph.node(node), &facts.shape(output)?)?;
        self.last = self.trace.is_identity().then_some(node);
        self.last.map(|_| ())
    }

    /// Collects an element-wise operator whose result has the shape of the moved value. `None` for
    /// another operator.
    fn take_elementwise(&mut self, node: NodeId) -> Option<()> {
        let Analysis { graph, facts, .. } = self.analysis;
        let is_elementwise = matches!(
            graph.category(node),
            Some(Category::Arithmetic | Category::Elementwise)
        );
        let made = graph
            .only_output(node)
            .filter(|_| is_elementwise && graph.node(node).domain().is_empty())?;
        facts
            .shape(made)
            .filter(|made| same_shape(made, &self.shape))?;
        self.nodes.push(node);
        self.values.push(made);
        Some(())
    }

    /// Returns the operators, if each of their operands is a value between the movements, or a
    /// constant that broadcasts in the same way without the movements.
    fn finish(mut self) -> Option<Between> {
        let graph = &self.analysis.graph;
        let mut operands = self
            .nodes
            .iter()
            .flat_map(|&node| graph.inputs(node).iter().flatten());
        operands
            .all(|value| self.values.contains(value) || self.broadcasts_alike(*value))
            .then_some(())?;
        self.nodes.sort_by_key(|&node| graph.place(node));
        Some(Between {
            first: self.first,
            nodes: self.nodes,
            last: self.last?,
        })
    }

    /// Whether a value is a constant that broadcasts in the same way before and after the first
    /// movement.
    fn broadcasts_alike(&self, value: ValueId) -> bool {
        let Analysis {
            facts, constants, ..
        } = self.analysis;
        let Some(own) = facts.shape(value).filter(|_| constants.is_constant(value)) else {
            return false;
        };
        let ends = own.last().zip(self.shape.last());
        let is_along_last =
            self.keeps_last_axis && ends.is_some_and(|(one, other)| same(one, other));
        own.len() <= self.before.len().min(self.shape.len())
            && (0..own.len())
                .all(|axis| extent(&own[axis]) == Some(1) || axis + 1 == own.len() && is_along_last)
    }
}

/// Whether a node is a movement other than an Identity.
fn moves(graph: &Graph, node: NodeId) -> bool {
    graph.category(node) == Some(Category::Movement) && !graph.is(node, "Identity")
}
