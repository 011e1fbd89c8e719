//! Writes a SplitToSequence and SequenceAts at constant positions as a Split. torch's exporter
//! writes a chunk, split or unbind as a sequence, unless it optimizes that operator.

use crate::analysis::Analysis;
use crate::hash::HashMap;
use crate::ir::names::Names;
use crate::ir::regions::region_path;
use crate::ir::{NodeId, Reader, builder};
use crate::onnx::Model;
use crate::onnx::operator::input_at;
use crate::onnx::proto::{NodeProto, TensorProto};
use crate::onnx::tensor;
use crate::passes::inline::label;
use crate::shape::sequences::SequenceParts;

/// The largest number of parts of all sequences together is `PARTS`, or `TIMES_THE_NODES` for each
/// node of the graph if this is more. Without a limit, a model of a few bytes could ask for very
/// many parts.
const PARTS: usize = 1 << 15;
const TIMES_THE_NODES: usize = 8;

/// A sequence that only SequenceAts read.
struct Sequence {
    parts: SequenceParts,
    /// The SequenceAts, each with the index of the part that it takes.
    taken: Vec<(NodeId, usize)>,
}

/// Replaces each sequence that only SequenceAts read. `None` if only other nodes read sequences, or
/// if the sequences together have too many parts.
pub(super) fn collect(model: &Model, skip: &dyn Fn(&str, &str) -> bool) -> Option<Model> {
    if !model.graph().node.iter().any(is_split) {
        return None;
    }
    let analysis = Analysis::new(model).ok()?;
    let nodes = &model.graph().node;
    let mut found: Vec<(NodeId, Sequence)> = vec![];
    for (node, proto) in nodes.iter().enumerate() {
        if is_split(proto) && !skip(label(proto), proto.op_type()) {
            found.extend(Sequence::find(&analysis, node).map(|sequence| (node, sequence)));
        }
    }
    let parts: usize = found
        .iter()
        .map(|(_, sequence)| sequence.parts.extents.len())
        .sum();
    if found.is_empty() || parts > PARTS.max(nodes.len().saturating_mul(TIMES_THE_NODES)) {
        return None;
    }
    let mut writing = Writing {
        opset: model.own_opset(),
        names: Names::new(model),
        constants: vec![],
    };
    let mut written: HashMap<NodeId, Vec<NodeProto>> = HashMap::default();
    for (node, sequence) in &found {
        writing.split(nodes, *node, sequence, &mut written);
    }
    let left = nodes.iter().enumerate();
    let left =
        left.flat_map(|(node, proto)| written.remove(&node).unwrap_or_else(|| vec![proto.clone()]));
    Some(model.with_nodes(left.collect(), writing.constants))
}

/// Whether a node splits a value into a sequence.
pub(super) fn is_split(node: &NodeProto) -> bool {
    node.op() == ("", "SplitToSequence")
}

impl Sequence {
    /// The sequence that a node outputs, if each reader is a SequenceAt and takes an existing part.
    fn find(analysis: &Analysis, node: NodeId) -> Option<Self> {
        let Analysis { graph, facts, .. } = analysis;
        let parts = SequenceParts::find(
            graph,
            node,
            |value| facts.shape(value),
            |value| Some((facts.ints(value)?, facts.rank(value)?)),
        )?;
        let taken: Vec<_> = graph
            .readers(graph.only_output(node)?)
            .iter()
            .map(|reader| taken_part(analysis, &parts, reader))
            .collect::<Option<_>>()?;
        (!taken.is_empty()).then_some(Sequence { parts, taken })
    }
}

/// The SequenceAt that reads a sequence, and the index of the part that it takes. `None` for
/// another reader, or if the sequence has no part with this index.
fn taken_part(
    Analysis { graph, facts, .. }: &Analysis,
    parts: &SequenceParts,
    reader: &Reader,
) -> Option<(NodeId, usize)> {
    let &Reader::Node { node, input: 0 } = reader else {
        return None;
    };
    let is_plain = graph.is(node, "SequenceAt") && graph.node(node).attribute.is_empty();
    let position = facts.ints(graph.input(node, 1).filter(|_| is_plain)?)?;
    graph.only_output(node)?;
    Some((node, parts.taken(*position.first()?)?))
}

struct Writing<'m> {
    opset: i64,
    names: Names<'m>,
    constants: Vec<TensorProto>,
}

impl Writing<'_> {
    /// Rewrites a sequence as a Split, and its readers as operators on the parts.
    fn split(
        &mut self,
        nodes: &[NodeProto],
        node: NodeId,
        Sequence { parts, taken }: &Sequence,
        written: &mut HashMap<NodeId, Vec<NodeProto>>,
    ) {
        let like = &nodes[node];
        let mut outputs: Vec<String> = (0..parts.extents.len())
            .map(|part| self.names.fresh(&format!("{}_{part}", label(like))))
            .collect();
        let mut is_named = vec![false; outputs.len()];
        let axes = if parts.keeps_axis {
            vec![]
        } else {
            vec![parts.axis as i64]
        };
        for &(reader, part) in taken {
            let result = &nodes[reader].output[0];
            let left = if !parts.keeps_axis {
                Some(self.listed(
                    &nodes[reader],
                    ("Squeeze", "axes"),
                    &outputs[part],
                    &axes,
                    result,
                ))
            } else if is_named[part] || region_path(&nodes[reader]) != region_path(like) {
                Some(builder::node(
                    &nodes[reader],
                    "Identity",
                    label(&nodes[reader]),
                    &[&outputs[part]],
                    result,
                ))
            } else {
                outputs[part].clone_from(result);
                is_named[part] = true;
                None
            };
            written.insert(reader, left.into_iter().collect());
        }
        let extents: Vec<i64> = parts.extents.iter().map(|&extent| extent as i64).collect();
        let mut split = self.listed(like, ("Split", "split"), &like.input[0], &extents, "");
        split
            .attribute
            .push(builder::int("axis", parts.axis as i64));
        split.output = outputs;
        written.insert(node, vec![split]);
    }

    /// Builds a node of the operator `op`, with the name of `like`. The list of integers is an
    /// input or an attribute, depending on the operator set.
    fn listed(
        &mut self,
        like: &NodeProto,
        (op, name): (&str, &str),
        value: &str,
        list: &[i64],
        output: &str,
    ) -> NodeProto {
        let mut made = builder::node(like, op, label(like), &[value], output);
        if input_at(op, name, self.opset).is_some() {
            let constant = self.names.fresh(&format!("{}_{name}", label(like)));
            self.constants.push(tensor::make_i64(&constant, list));
            made.input.push(constant);
        } else {
            made.attribute.push(builder::ints(name, list));
        }
        made
    }
}
