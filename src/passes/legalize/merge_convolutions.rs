//! Merges convolutions of the parts of a value into one grouped convolution.
//!
//! Before: a Split of channels, a Conv of each part, and a Concat of the results. After: one Conv
//! with all weights, and with the groups of all convolutions. This is exact, because an output
//! channel reads only the input channels of its group.
//!
//! The merge saves copies, and engines run one convolution more efficiently than several small
//! ones. There are exceptions, with figures in `docs/engines.md`: tract runs kernels of one place
//! as a product only without groups, and OpenVINO runs wide convolutions slower in groups.

use crate::affine::materialize::Edit;
use crate::affine::recognize::Replacement;
use crate::analysis::Analysis;
use crate::ir::axes::axis;
use crate::ir::builder::{Maker, int};
use crate::ir::regions::region_path;
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::operator::CONV;
use crate::onnx::proto::AttributeProto;
use crate::onnx::tensor::DataType;
use crate::recipe::Recipe;

/// The largest number of input channels that each output channel may read, if convolutions are
/// merged for all engines.
const MOST_CHANNELS: usize = 128;

/// The edits that merge convolutions. With `takes_all`, they include merges that not all engines
/// run faster.
pub(super) fn edits(analysis: &Analysis, takes_all: bool) -> Vec<Edit> {
    let concats = analysis.graph.order().iter();
    concats
        .filter_map(|&concat| SplitConvolutions::before(analysis, concat))
        .filter(|found| takes_all || found.suits_all_engines())
        .filter_map(|found| found.edit())
        .collect()
}

/// Convolutions of all parts of a Split, whose results are joined in order.
struct SplitConvolutions<'a> {
    analysis: &'a Analysis<'a>,
    split: NodeId,
    convolutions: Vec<NodeId>,
    concat: NodeId,
    data_type: DataType,
    /// The weights, of equal shapes.
    weights: Vec<Recipe>,
    /// The biases. Empty if the convolutions have none.
    biases: Vec<Recipe>,
}

impl<'a> SplitConvolutions<'a> {
    /// The convolutions before a Concat. `None` unless they are alike, and are the only readers of
    /// all parts of one Split, in order.
    fn before(analysis: &'a Analysis, concat: NodeId) -> Option<Self> {
        let graph = &analysis.graph;
        let operands = graph.inputs(concat).iter();
        let convolutions: Vec<NodeId> = operands
            .map(|&value| own_convolution(graph, value?))
            .collect::<Option<_>>()?;
        let &first = convolutions.first().filter(|_| convolutions.len() > 1)?;
        let (split, _) = graph.producer(graph.input(first, 0)?)?;
        let data_type = analysis.facts.data_type(graph.input(first, 1)?)?;
        let found = SplitConvolutions {
            analysis,
            split,
            data_type,
            weights: constants(analysis, &convolutions, 1)?,
            biases: biases(analysis, &convolutions)?,
            convolutions,
            concat,
        };
        let are_joined = found.works_on_channels(split, "Split", &["axis", "num_outputs", "split"])
            && found.works_on_channels(concat, "Concat", &["axis"])
            && found.reads_all_parts();
        (are_joined && found.are_alike() && found.are_in_one_body()).then_some(found)
    }

    /// Whether a node has this operator, and works along the axis of channels.
    fn works_on_channels(&self, node: NodeId, operator: &str, known: &[&str]) -> bool {
        let at = self.analysis.at(node);
        let is_known = self.analysis.graph.is(node, operator) && at.only_attributes(known).is_ok();
        let along = at.attr("axis", 0).ok().filter(|_| is_known);
        along.and_then(|along| axis(along, self.weights[0].rank()).ok()) == Some(1)
    }

    /// Whether each part of the Split is read only by the convolution with the same index.
    fn reads_all_parts(&self) -> bool {
        let graph = &self.analysis.graph;
        let parts = graph.outputs(self.split).iter().copied();
        let read = self.convolutions.iter().map(|&node| graph.input(node, 0));
        parts.clone().eq(read)
            && parts
                .flatten()
                .all(|part| graph.only_reader(part).is_some())
    }

    /// Whether all convolutions have the attributes, the element type and the weight shape of the
    /// first convolution.
    fn are_alike(&self) -> bool {
        let graph = &self.analysis.graph;
        let first = sorted_attributes(graph, self.convolutions[0]);
        let knows_all = self
            .convolutions
            .iter()
            .all(|&node| self.analysis.at(node).only_attributes(CONV).is_ok());
        let mut types = self.convolutions.iter().map(|&node| graph.input(node, 1));
        knows_all
            && self
                .convolutions
                .iter()
                .all(|&node| sorted_attributes(graph, node) == first)
            && self
                .weights
                .iter()
                .all(|weight| weight.shape() == self.weights[0].shape())
            && types.all(|weight| {
                weight.and_then(|weight| self.analysis.facts.data_type(weight))
                    == Some(self.data_type)
            })
    }

    fn are_in_one_body(&self) -> bool {
        let graph = &self.analysis.graph;
        let body = region_path(graph.node(self.concat));
        let mut nodes = self.nodes().into_iter();
        nodes.all(|node| region_path(graph.node(node)) == body)
    }

    /// Whether no engine runs the grouped convolution slower: the kernel has several places, and
    /// each output channel reads few input channels.
    fn suits_all_engines(&self) -> bool {
        let kernel = &self.weights[0].shape()[2..];
        self.weights[0].shape()[1] <= MOST_CHANNELS && kernel.iter().any(|&extent| extent > 1)
    }

    fn nodes(&self) -> Vec<NodeId> {
        let mut nodes = self.convolutions.clone();
        nodes.extend([self.split, self.concat]);
        nodes
    }

    /// The edit that replaces the convolutions, the Split and the Concat by one grouped
    /// convolution. `None` if the weights or biases cannot be concatenated.
    fn edit(&self) -> Option<Edit> {
        let graph = &self.analysis.graph;
        let first = self.convolutions[0];
        let group = self.analysis.at(first).attr("group", 1).ok()?;
        let groups = group.checked_mul(self.convolutions.len() as i64)?;
        let mut attributes = sorted_attributes(graph, first);
        attributes.retain(|attribute| attribute.name() != "group");
        attributes.push(int("group", groups));
        let weight = Recipe::concat(0, &self.weights)?;
        let mut maker = Maker::new(graph, first);
        let replaced = graph.value_name(graph.input(first, 1)?);
        let contracted = (1..weight.rank()).collect();
        let value = graph.value_name(graph.input(self.split, 0)?).to_owned();
        let mut inputs = vec![
            value,
            maker.weight(self.data_type, &weight, replaced, contracted),
        ];
        if !self.biases.is_empty() {
            let bias = Recipe::concat(0, &self.biases)?;
            inputs.push(maker.floats(self.data_type, &bias));
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        maker.op("Conv", &inputs, attributes);
        let output = graph.only_output(self.concat)?;
        let (made, constants) = maker.finish(graph.value_name(output));
        let replacement = Replacement {
            nodes: self.nodes(),
            made,
            constants,
        };
        Some(Edit::replacing(graph, first, replacement))
    }
}

/// The Conv that produces a value. `None` if the value has several readers, or another producer.
fn own_convolution(graph: &Graph, value: ValueId) -> Option<NodeId> {
    let (node, _) = graph.producer(value)?;
    let is_own = graph.is(node, "Conv") && graph.only_reader(value).is_some();
    is_own.then_some(node)
}

/// The constants that these nodes read at one input. `None` if one of the inputs varies.
fn constants(analysis: &Analysis, nodes: &[NodeId], slot: usize) -> Option<Vec<Recipe>> {
    nodes
        .iter()
        .map(|&node| analysis.at(node).constant(slot).ok())
        .collect()
}

/// The biases of all convolutions. Empty if no convolution has a bias. `None` if only some
/// convolutions have a bias, or if a bias varies.
fn biases(analysis: &Analysis, convolutions: &[NodeId]) -> Option<Vec<Recipe>> {
    let mut read = convolutions
        .iter()
        .map(|&node| analysis.graph.input(node, 2));
    if read.all(|bias| bias.is_none()) {
        return Some(vec![]);
    }
    constants(analysis, convolutions, 2)
}

/// The attributes of a node, sorted by name.
fn sorted_attributes(graph: &Graph, node: NodeId) -> Vec<AttributeProto> {
    let mut attributes = graph.node(node).attribute.clone();
    attributes.sort_by(|one, other| one.name().cmp(other.name()));
    attributes
}
