//! One of the two graphs of an outline.

use std::collections::BTreeMap;

use crate::error::Result;
use crate::ir::regions::{BEGIN, END, NUMBER, REGION_PATHS, region_path};
use crate::ir::scope::scope;
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::Model;
use crate::onnx::operator::Category;
use crate::onnx::proto::{AttributeProto, AttributeType};
use crate::onnx::tensor::{DataType, data_type, read_f64};
use crate::report::{Class, Distribution, OutlineNode, OutlineValue};
use crate::shape::facts::Facts;

/// The maximum number of elements of a list, or characters of a string, that are shown of an
/// attribute.
const LONGEST: usize = 16;

/// The maximum number of elements of a tensor whose distribution is computed.
const MOST_ELEMENTS: i64 = 1 << 20;

/// A graph with facts about its values.
pub(super) struct GraphSide<'m> {
    pub graph: Graph<'m>,
    facts: Facts,
    /// The operators in the order of execution, without Constants.
    pub nodes: Vec<NodeId>,
}

impl<'m> GraphSide<'m> {
    /// The graph of a model.
    ///
    /// # Errors
    /// If the graph is invalid.
    pub(super) fn new(model: &'m Model) -> Result<Self> {
        let graph = Graph::new(model)?;
        let facts = Facts::infer(&graph);
        let nodes = graph
            .order()
            .iter()
            .copied()
            .filter(|&node| !graph.is(node, "Constant"))
            .collect();
        Ok(GraphSide {
            graph,
            facts,
            nodes,
        })
    }

    /// Whether a value is a constant of the model.
    pub(super) fn is_stored(&self, value: ValueId) -> bool {
        let producer = self.graph.producer(value);
        self.graph.initializer(value).is_some()
            || producer.is_some_and(|(node, _)| self.graph.is(node, "Constant"))
    }

    /// The steps of the module path of a node, the outermost module first. If the module path is
    /// unknown, the steps of the region path of the node's body. Empty if the node is also in no
    /// body.
    pub(super) fn path(&self, node: NodeId) -> Vec<String> {
        let path = scope(&self.graph, node).path;
        super::blocks::steps(if path.is_empty() {
            region_path(self.graph.node(node))
        } else {
            &path
        })
    }

    /// Whether a node adds two values that are not constants, as at the end of a residual branch.
    pub(super) fn is_sum(&self, node: NodeId) -> bool {
        let mut inputs = self.graph.inputs(node).iter();
        self.graph.is(node, "Add")
            && inputs.all(|input| input.is_some_and(|value| !self.is_stored(value)))
    }

    pub(super) fn class(&self, node: NodeId) -> Class {
        match self.graph.category(node) {
            Some(Category::MatrixProduct | Category::Layer) => Class::Product,
            Some(Category::Normalizer) => Class::Normalizer,
            Some(Category::Movement | Category::Shape | Category::Like) => Class::Movement,
            _ => Class::Other,
        }
    }

    /// Describes a node for the outline.
    pub(super) fn outlined(&self, node: NodeId) -> OutlineNode {
        let proto = self.graph.node(node);
        let operator = match proto.domain() {
            BEGIN => format!("{} begins", proto.op_type()),
            END => proto.op_type().to_owned(),
            _ => proto.operator(),
        };
        let own = proto
            .attribute
            .iter()
            .filter(|own| ![NUMBER, REGION_PATHS].contains(&own.name()));
        OutlineNode {
            name: self.graph.name(node).to_owned(),
            operator,
            inputs: proto.input.clone(),
            outputs: proto.output.clone(),
            attributes: own.map(attribute).collect(),
        }
    }

    /// The facts about all inputs and outputs of the operators.
    pub(super) fn values(&self) -> BTreeMap<String, OutlineValue> {
        let mut values = BTreeMap::new();
        for &node in &self.nodes {
            let (inputs, outputs) = (self.graph.inputs(node), self.graph.outputs(node));
            for &value in inputs.iter().chain(outputs).flatten() {
                let facts = OutlineValue {
                    of: self.type_and_shape(value),
                    stored: self.is_stored(value),
                    elements: self.distribution(value),
                };
                values.insert(self.graph.value_name(value).to_owned(), facts);
            }
        }
        values
    }

    /// The distribution of the elements of an initializer. `None` if it has no elements or too
    /// many, or if they are not finite floats.
    fn distribution(&self, value: ValueId) -> Option<Distribution> {
        let tensor = self.graph.initializer(value)?;
        let count: i64 = tensor.dims.iter().product();
        let is_float = data_type(tensor).is_ok_and(DataType::is_float);
        (is_float && count <= MOST_ELEMENTS).then_some(())?;
        let elements = read_f64(tensor, self.graph.model().externals()).ok()?;
        Distribution::new(elements.as_slice()?)
    }

    /// The type and the extents of a value, such as `float[batch, 65, 40]`.
    fn type_and_shape(&self, value: ValueId) -> String {
        let data_type = self
            .facts
            .data_type(value)
            .map_or_else(|| "?".to_owned(), |data_type| data_type.name());
        let extents = self.facts.shape(value).map_or_else(
            || "?".to_owned(),
            |shape| {
                let extents = shape
                    .iter()
                    .map(|extent| extent.as_ref().map_or("?".into(), ToString::to_string));
                extents.collect::<Vec<_>>().join(", ")
            },
        );
        format!("{data_type}[{extents}]")
    }
}

/// Formats a list, cut after `LONGEST` elements.
fn list<T: ToString>(all: &[T]) -> String {
    let more = if all.len() > LONGEST { ", …" } else { "" };
    let first: Vec<String> = all.iter().take(LONGEST).map(T::to_string).collect();
    format!("[{}{more}]", first.join(", "))
}

/// Formats an attribute as `name=value`.
fn attribute(attribute: &AttributeProto) -> String {
    let value = match attribute.r#type() {
        AttributeType::Int => attribute.i().to_string(),
        AttributeType::Float => attribute.f().to_string(),
        AttributeType::Ints => list(&attribute.ints),
        AttributeType::Floats => list(&attribute.floats),
        AttributeType::String => String::from_utf8_lossy(attribute.s())
            .chars()
            .take(LONGEST)
            .collect(),
        _ => "…".to_owned(),
    };
    format!("{}={value}", attribute.name())
}
