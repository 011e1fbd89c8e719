//! Inverse movements around element-wise operators: without both, those operators work on the value
//! before the first movement.
//!
//! GPT-2 as Hugging Face writes it gives its layers rows, and puts them back into sentences behind each, also before a GELU
//! whose result goes into rows again at once.

use crate::affine::materialize::Edit;
use crate::affine::recognize::Replacement;
use crate::analysis::Analysis;
use crate::analysis::layout::LayoutMap;
use crate::hash::{HashMap, HashSet};
use crate::ir::builder::{Maker, NewConstant};
use crate::ir::regions::way;
use crate::ir::{NodeId, Reader, ValueId};
use crate::onnx::operator::Category;
use crate::onnx::proto::NodeProto;
use crate::shape::facts::{extent, same, same_shape};

/// How many operators may be between the two.
const BUDGET: usize = 24;

/// The edits that remove such movements.
pub fn edits(analysis: &Analysis) -> Vec<Edit> {
    let graph = &analysis.graph;
    let mut taken: HashSet<NodeId> = HashSet::default();
    let edit = |&first: &NodeId| {
        let between = Between::find(analysis, first)?;
        let nodes: Vec<NodeId> = between
            .nodes
            .iter()
            .copied()
            .chain([first, between.last])
            .collect();
        // Of two that meet, the other one is for the next pass.
        if nodes.iter().any(|node| taken.contains(node)) {
            return None;
        }
        taken.extend(&nodes);
        let (made, constants) = between.written(analysis, first)?;
        let replacement = Replacement {
            nodes,
            made,
            constants,
        };
        Some(Edit::replacing(graph, first, replacement))
    };
    graph.order().iter().filter_map(edit).collect()
}

/// The operators between a movement and its inverse.
struct Between {
    /// In execution order.
    nodes: Vec<NodeId>,
    /// The second movement.
    last: NodeId,
}

impl Between {
    /// All readers of a movement's result, if they are element-wise up to one inverse movement.
    fn find(analysis: &Analysis, first: NodeId) -> Option<Self> {
        let Analysis {
            graph,
            facts,
            constants,
            ..
        } = analysis;
        let moves = |node: NodeId| {
            graph.category(node) == Some(Category::Movement) && !graph.is(node, "Identity")
        };
        let moved = graph
            .only_output(first)
            .filter(|&moved| moves(first) && !constants.is_constant(moved))?;
        let source = graph.input(first, 0)?;
        let (before, shape) = (facts.shape(source)?, facts.shape(moved)?);
        let mut trace = LayoutMap::new(&before);
        trace.follow(graph.node(first), &shape)?;
        // Whether channels stay the last axis.
        let last_stays = before
            .len()
            .checked_sub(1)
            .and_then(|last| trace.places(&[last]))
            == Some(vec![shape.len().wrapping_sub(1)]);
        let is_like_all = |value: ValueId| {
            let Some(own) = facts.shape(value).filter(|_| constants.is_constant(value)) else {
                return false;
            };
            let one_place = |axis: usize| extent(&own[axis]) == Some(1);
            let along_last = || {
                last_stays
                    && own
                        .last()
                        .zip(shape.last())
                        .is_some_and(|(one, other)| same(one, other))
            };
            own.len() <= before.len().min(shape.len())
                && (0..own.len())
                    .all(|axis| one_place(axis) || axis + 1 == own.len() && along_last())
        };
        let (mut nodes, mut last, mut values) = (vec![], None, vec![moved]);
        let mut at = 0;
        while let Some(&value) = values.get(at) {
            at += 1;
            if graph.readers(value).is_empty() {
                return None;
            }
            for reader in graph.readers(value) {
                let Reader::Node { node, input } = *reader else {
                    return None;
                };
                if way(graph.node(node)) != way(graph.node(first)) || nodes.len() > BUDGET {
                    return None;
                }
                if moves(node) && input == 0 {
                    // Its operands have no other readers.
                    graph
                        .only_reader(value)
                        .filter(|_| last.is_none() && value != moved)?;
                    let output = graph.only_output(node)?;
                    trace.follow(graph.node(node), &facts.shape(output)?)?;
                    last = trace.is_identity().then_some(node);
                    last?;
                } else if !nodes.contains(&node) {
                    let each = matches!(
                        graph.category(node),
                        Some(Category::Arithmetic | Category::Elementwise)
                    );
                    let made = graph
                        .only_output(node)
                        .filter(|_| each && graph.node(node).domain().is_empty())?;
                    facts.shape(made).filter(|made| same_shape(made, &shape))?;
                    nodes.push(node);
                    values.push(made);
                }
            }
        }
        let is_inside = |value: &ValueId| values.contains(value) || is_like_all(*value);
        let reads_inside = |&node: &NodeId| graph.inputs(node).iter().flatten().all(is_inside);
        nodes.iter().all(reads_inside).then_some(())?;
        nodes.sort_by_key(|&node| graph.place(node));
        Some(Between { nodes, last: last? })
    }

    /// The operators between, applied to the input of the first movement.
    fn written(
        &self,
        analysis: &Analysis,
        first: NodeId,
    ) -> Option<(Vec<NodeProto>, Vec<NewConstant>)> {
        let graph = &analysis.graph;
        let mut maker = Maker::new(graph, first);
        let mut instead: HashMap<&str, String> = HashMap::default();
        instead.insert(
            graph.value_name(graph.only_output(first)?),
            graph.value_name(graph.input(first, 0)?).to_owned(),
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
        // They keep their names and metadata.
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
