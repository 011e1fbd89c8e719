//! The view of a graph for recognition, with the queries that several kinds share.

use crate::affine::recognize::affine_chain::{self, Chain};
use crate::analysis::Analysis;
use crate::analysis::constants::Constants;
use crate::analysis::node_view::At;
use crate::ir::regions::region_path;
use crate::ir::scope::scope;
use crate::ir::{Graph, NodeId, Reader, ValueId};
use crate::onnx::tensor::DataType;
use crate::shape::facts::{Facts, same_shape};

/// The view of a graph for recognition.
pub(crate) struct View<'a> {
    /// The graph.
    pub graph: &'a Graph<'a>,
    /// Shapes and small values.
    pub facts: &'a Facts,
    /// The constants.
    pub constants: &'a Constants<'a>,
    /// The analysis of the model.
    pub analysis: &'a Analysis<'a>,
    chains: Vec<Chain>,
    /// The index of the chain that ends in each node.
    ending: Vec<Option<u32>>,
    /// The index of the first chain that begins at each value.
    beginning: Vec<Option<u32>>,
}

impl<'a> View<'a> {
    /// Prepares a graph for recognition.
    pub(crate) fn new(analysis: &'a Analysis<'a>) -> Self {
        let chains = affine_chain::find(analysis);
        let Analysis {
            graph,
            facts,
            constants,
            ..
        } = analysis;
        let mut ending = vec![None; graph.order().len()];
        let mut beginning = vec![None; graph.value_count()];
        for (place, chain) in (0..).zip(&chains) {
            if let Some(&last) = chain.nodes.last() {
                ending[last] = Some(place);
            }
            beginning[chain.input.index()].get_or_insert(place);
        }
        View {
            graph,
            facts,
            constants,
            analysis,
            chains,
            ending,
            beginning,
        }
    }

    /// The node together with the analysis, as rules take them.
    pub(crate) fn at(&self, node: NodeId) -> At<'a> {
        self.analysis.at(node)
    }

    /// The first affine chain that begins at a value. `None` if no chain begins there.
    pub(crate) fn chain_from(&self, value: ValueId) -> Option<&Chain> {
        Some(&self.chains[self.beginning[value.index()]? as usize])
    }

    /// The name of a site: the module path of one of its nodes, or the node's name.
    pub(crate) fn site_name(&self, node: NodeId) -> String {
        let path = scope(self.graph, node).path;
        if path.is_empty() {
            self.graph.name(node).to_owned()
        } else {
            path
        }
    }

    /// The only reader of a value, if it is a node.
    pub(crate) fn only_reader(&self, value: ValueId) -> Option<NodeId> {
        Some(self.graph.only_reader(value)?.0)
    }

    /// Whether nothing reads the elements of a value, except for `nodes`.
    pub(crate) fn is_read_by_no_other(&self, value: ValueId, nodes: &[NodeId]) -> bool {
        self.graph
            .readers(value)
            .iter()
            .all(|reader| match *reader {
                Reader::Node { node, input } => {
                    nodes.contains(&node) || !self.graph.reads_elements(node, input)
                }
                _ => false,
            })
    }

    /// Whether two values have equal, known shapes.
    pub(crate) fn have_same_shape(&self, one: ValueId, other: ValueId) -> bool {
        let shapes = self.facts.shape(one).zip(self.facts.shape(other));
        shapes.is_some_and(|(one, other)| same_shape(&one, &other))
    }

    /// Whether a node only moves elements, repeats them, or changes their float type.
    pub(crate) fn widens(&self, node: NodeId) -> bool {
        match self.graph.op(node) {
            // A Cast between float types only rounds.
            Some("Cast") => {
                self.may_be_float(self.graph.input(node, 0))
                    && self.may_be_float(self.graph.only_output(node))
            }
            op => op == Some("Expand") || self.graph.is_movement(node),
        }
    }

    /// Whether the element type of a value is a float or unknown.
    fn may_be_float(&self, value: Option<ValueId>) -> bool {
        value
            .and_then(|value| self.facts.data_type(value))
            .is_none_or(DataType::is_float)
    }

    /// Whether two nodes are in one body. Nodes of different bodies may run a different number of
    /// times.
    pub(crate) fn are_in_one_body(&self, one: NodeId, other: NodeId) -> bool {
        region_path(self.graph.node(one)) == region_path(self.graph.node(other))
    }

    /// The node that outputs a value. `None` for an input or a stored constant of the graph.
    pub(crate) fn maker(&self, value: ValueId) -> Option<NodeId> {
        Some(self.graph.producer(value)?.0)
    }

    /// Whether the first two inputs of a node vary.
    pub(crate) fn both_vary(&self, node: NodeId) -> bool {
        [0, 1].iter().all(|&slot| {
            let input = self.graph.input(node, slot);
            input.is_some_and(|input| !self.constants.is_constant(input))
        })
    }

    /// The node that outputs a value, if it has one of these operators of ONNX.
    pub(crate) fn made_by(&self, value: ValueId, ops: &[&str]) -> Option<NodeId> {
        let node = self.maker(value)?;
        ops.iter().any(|op| self.graph.is(node, op)).then_some(node)
    }

    /// The scalar at an input of a node, if the input is a constant of one element.
    pub(crate) fn scalar_input(&self, node: NodeId, slot: usize) -> Option<f64> {
        self.scalar(self.graph.input(node, slot)?)
    }

    /// The scalar in a constant of one element; `None` for other values.
    pub(crate) fn scalar(&self, value: ValueId) -> Option<f64> {
        self.constants.scalar(value)
    }

    /// The affine chain that ends in a node. `None` if no chain ends there.
    pub(crate) fn chain(&self, node: NodeId) -> Option<&Chain> {
        Some(&self.chains[self.ending[node]? as usize])
    }
}
