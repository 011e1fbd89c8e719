//! Builds the nodes that replace a node according to a definition.

use ndarray::arr0;

use crate::analysis::node_view::At;
use crate::ir::Graph;
use crate::ir::builder::{Maker, int};
use crate::onnx::proto::{AttributeProto, AttributeType};
use crate::onnx::tensor::{self, DataType};
use crate::shape::facts::extent;

/// Builds the nodes that replace the node `at`.
pub(super) struct Writer<'a> {
    at: At<'a>,
    pub maker: Maker<'a>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(at: At<'a>, graph: &'a Graph<'a>) -> Self {
        Self {
            at,
            maker: Maker::new(graph, at.node),
        }
    }

    /// The version of ONNX's operator set that the model imports.
    pub(super) fn opset(&self) -> i64 {
        self.at.opset()
    }

    /// The name of an input; `None` if the node lacks it.
    pub(super) fn input(&self, slot: usize) -> Option<String> {
        self.at
            .proto()
            .input
            .get(slot)
            .filter(|name| !name.is_empty())
            .cloned()
    }

    /// The extents of an input, if all are known.
    pub(super) fn extents(&self, slot: usize) -> Option<Vec<i64>> {
        let shape = self
            .at
            .facts
            .shape(self.at.graph.input(self.at.node, slot)?)?;
        shape
            .iter()
            .map(|dim| i64::try_from(extent(dim)?).ok())
            .collect()
    }

    /// The extent of the last axis of an input, if it is known.
    pub(super) fn width(&self, slot: usize) -> Option<i64> {
        let value = self.at.graph.input(self.at.node, slot)?;
        let shape = self.at.facts.shape(value)?;
        i64::try_from(extent(shape.last()?)?).ok()
    }

    /// The rank of an input.
    pub(super) fn rank(&self, slot: usize) -> Option<usize> {
        self.at.facts.rank(self.at.graph.input(self.at.node, slot)?)
    }

    /// The element type of an input.
    pub(super) fn data_type(&self, slot: usize) -> Option<DataType> {
        self.at
            .facts
            .data_type(self.at.graph.input(self.at.node, slot)?)
    }

    /// The truth values that are cast to an input.
    pub(super) fn cast_truths(&self, slot: usize) -> Option<String> {
        let graph = self.at.graph;
        let (cast, _) = graph.producer(graph.input(self.at.node, slot)?)?;
        let truths = graph.input(cast, 0).filter(|_| graph.is(cast, "Cast"))?;
        let data_type = self.at.facts.data_type(truths)?;
        (data_type == DataType::Bool).then(|| graph.value_name(truths).to_owned())
    }

    /// Whether the node has an output in this slot.
    pub(super) fn has_output(&self, slot: usize) -> bool {
        self.at.graph.output(self.at.node, slot).is_some()
    }

    /// The elements of an input; `None` unless it is a constant of integers.
    pub(super) fn integers(&self, slot: usize) -> Option<Vec<i64>> {
        self.at.facts.ints(self.at.graph.input(self.at.node, slot)?)
    }

    /// An integer attribute, or its default; `None` if it has another type.
    pub(super) fn int(&self, name: &str, absent: i64) -> Option<i64> {
        Some(self.at.proto().attr_i(name).ok()?.unwrap_or(absent))
    }

    /// A float attribute, or its default; `None` if it has another type.
    pub(super) fn float(&self, name: &str, absent: f32) -> Option<f32> {
        Some(self.at.proto().attr_f(name).ok()?.unwrap_or(absent))
    }

    /// A string attribute, or its default; `None` if it has another type.
    pub(super) fn text(&self, name: &str, absent: &str) -> Option<String> {
        Some(
            self.at
                .proto()
                .attr_s(name)
                .ok()?
                .unwrap_or(absent)
                .to_owned(),
        )
    }

    /// An attribute that is a list of integers, or an empty list if the node lacks it.
    pub(super) fn ints(&self, name: &str) -> Option<Vec<i64>> {
        Some(
            self.at
                .proto()
                .attr_ints(name)
                .ok()?
                .unwrap_or_default()
                .to_vec(),
        )
    }

    /// An attribute that is a list of floats, or an empty list if the node lacks it.
    pub(super) fn floats(&self, name: &str) -> Option<Vec<f32>> {
        let attribute = self
            .at
            .proto()
            .attribute
            .iter()
            .find(|attribute| attribute.name() == name);
        match attribute {
            None => Some(vec![]),
            Some(attribute) => {
                (attribute.r#type() == AttributeType::Floats).then(|| attribute.floats.clone())
            }
        }
    }

    /// An attribute that is a list of strings, or an empty list if the node lacks it.
    pub(super) fn texts(&self, name: &str) -> Option<Vec<String>> {
        let mut attributes = self.at.proto().attribute.iter();
        let Some(attribute) = attributes.find(|attribute| attribute.name() == name) else {
            return Some(vec![]);
        };
        let texts = attribute.strings.iter();
        let texts = texts.map(|text| String::from_utf8(text.to_vec()).ok());
        texts
            .collect::<Option<_>>()
            .filter(|_| attribute.r#type() == AttributeType::Strings)
    }

    /// The attributes of the node, except those with these names.
    pub(super) fn attributes_but(&self, names: &[&str]) -> Vec<AttributeProto> {
        let attributes = self.at.proto().attribute.iter();
        attributes
            .filter(|attribute| !names.contains(&attribute.name()))
            .cloned()
            .collect()
    }

    /// Adds a scalar constant whose type is that of the first input.
    pub(super) fn number(&mut self, number: f64) -> Option<String> {
        let value = tensor::make("", self.data_type(0)?, &arr0(number).into_dyn().view()).ok()?;
        let attribute = AttributeProto {
            name: Some("value".into()),
            r#type: Some(AttributeType::Tensor.into()),
            t: Some(Box::new(value)),
            ..AttributeProto::default()
        };
        Some(self.maker.op("Constant", &[], vec![attribute]))
    }

    /// Adds a node with two inputs.
    pub(super) fn pair(&mut self, op: &str, one: &str, other: &str) -> String {
        self.maker.op(op, &[one, other], vec![])
    }

    /// Adds a Transpose that swaps the last two axes.
    pub(super) fn swapped(&mut self, value: &str, rank: usize) -> Option<String> {
        let mut order: Vec<i64> = (0..i64::try_from(rank).ok()?).collect();
        let first = rank.checked_sub(2)?;
        order.swap(first, first + 1);
        Some(self.maker.transpose(value, &order))
    }

    /// Adds the product of a value and its sigmoid.
    pub(super) fn silu(&mut self, value: &str) -> String {
        let gate = self.maker.op("Sigmoid", &[value], vec![]);
        self.pair("Mul", value, &gate)
    }

    /// Adds a Concat of values along an axis.
    pub(super) fn concat(&mut self, values: &[&str], axis: i64) -> String {
        self.maker.op("Concat", values, vec![int("axis", axis)])
    }

    /// Adds an Identity that gives a value the name of an output of the replaced node. `None` if
    /// the node lacks this output.
    pub(super) fn result(&mut self, slot: usize, value: &str) -> Option<()> {
        let output = self
            .at
            .proto()
            .output
            .get(slot)
            .filter(|name| !name.is_empty())
            .cloned()?;
        self.maker.op("Identity", &[value], vec![]);
        self.maker.makes(&output);
        Some(())
    }
}
