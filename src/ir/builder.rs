//! Making nodes, as the operator set of the model wants them.

use std::collections::HashSet;
use std::ops::Range;

use crate::ir::{Graph, NodeId, node_name};
use crate::onnx::operator::input_at;
use crate::onnx::proto::{AttributeProto, AttributeType, NodeProto};
use crate::onnx::tensor::DataType;
use crate::recipe::Recipe;

/// An integer as an attribute.
pub fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto {
        i: Some(i),
        ..attribute(name, AttributeType::Int)
    }
}

/// Integers as an attribute.
pub fn ints(name: &str, ints: &[i64]) -> AttributeProto {
    AttributeProto {
        ints: ints.to_vec(),
        ..attribute(name, AttributeType::Ints)
    }
}

/// Texts as an attribute.
pub fn strings(name: &str, strings: &[String]) -> AttributeProto {
    let strings = strings
        .iter()
        .map(|string| string.clone().into_bytes().into())
        .collect();
    AttributeProto {
        strings,
        ..attribute(name, AttributeType::Strings)
    }
}

/// A float as an attribute.
pub fn float(name: &str, f: f32) -> AttributeProto {
    AttributeProto {
        f: Some(f),
        ..attribute(name, AttributeType::Float)
    }
}

/// A node of one output that takes over the notes of the one that it is `like`.
pub fn node(like: &NodeProto, op: &str, name: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        op_type: Some(op.into()),
        name: Some(name.into()),
        input: inputs.iter().map(|&input| input.to_owned()).collect(),
        output: vec![output.into()],
        metadata_props: like.metadata_props.clone(),
        ..Default::default()
    }
}

fn attribute(name: &str, kind: AttributeType) -> AttributeProto {
    AttributeProto {
        name: Some(name.into()),
        r#type: Some(kind as i32),
        ..Default::default()
    }
}

/// A constant that new nodes read.
#[derive(Debug, Clone)]
pub enum NewConstant {
    /// A list of integers, as shapes and axes are given to operators.
    Integers {
        /// The name, for the nodes that read it.
        name: String,
        /// The integers.
        values: Vec<i64>,
    },
    /// Floats, which are computed.
    Floats {
        /// The name, for the nodes that read it.
        name: String,
        /// Their element type.
        data_type: DataType,
        /// How they are computed.
        recipe: Recipe,
    },
    /// A weight that replaces another.
    Weight {
        /// The name, for the nodes that read it.
        name: String,
        /// Its element type.
        data_type: DataType,
        /// How it is computed.
        recipe: Recipe,
        /// The constant whose place it takes.
        replaces: String,
        /// The axes along which its products are added up.
        contracted: Vec<usize>,
    },
}

impl NewConstant {
    /// The name for its readers.
    pub fn name(&self) -> &str {
        match self {
            NewConstant::Integers { name, .. }
            | NewConstant::Floats { name, .. }
            | NewConstant::Weight { name, .. } => name,
        }
    }
}

/// Makes nodes in place of others, and the constants that they read.
///
/// The nodes take over the notes of the one that they are `like`, and their names begin with its name.
///
/// ```
/// use unfold::ir::Graph;
/// use unfold::ir::builder::Maker;
/// use unfold::onnx::Model;
/// let model = Model::open("models/digits/un-dynamo.onnx")?;
/// let graph = Graph::new(&model)?;
/// let mut maker = Maker::new(&graph, 0);
/// let mean = maker.mean("x", &[-1], true);
/// maker.op("Sub", &["x", &mean], vec![]);
/// let (nodes, constants) = maker.finish("y");
/// assert!(nodes[0].name().starts_with(graph.name(0)) && graph.value(&nodes[0].output[0]).is_none());
/// assert_eq!(nodes[1].output, ["y"]);
/// assert_eq!(nodes[0].input, ["x", constants[0].name()]);
/// # Ok::<(), unfold::error::Error>(())
/// ```
pub struct Maker<'m> {
    graph: &'m Graph<'m>,
    like: &'m NodeProto,
    names: HashSet<String>,
    nodes: Vec<NodeProto>,
    constants: Vec<NewConstant>,
}

impl<'m> Maker<'m> {
    /// Starts empty. New nodes take the stem of their names, and their metadata, from `like`.
    pub fn new(graph: &'m Graph<'m>, like: NodeId) -> Self {
        Maker {
            graph,
            like: graph.node(like),
            names: HashSet::new(),
            nodes: vec![],
            constants: vec![],
        }
    }

    /// The operator set of ONNX's own operators.
    pub fn opset(&self) -> i64 {
        self.graph.model().own_opset()
    }

    /// The nodes, the last of which makes `output`, and their constants.
    pub fn finish(mut self, output: &str) -> (Vec<NodeProto>, Vec<NewConstant>) {
        self.makes(output);
        self.done()
    }

    /// The nodes and their constants, where it was said which make what the graph still reads.
    pub fn done(self) -> (Vec<NodeProto>, Vec<NewConstant>) {
        (self.nodes, self.constants)
    }

    /// The output of the last node becomes this value of the graph.
    pub fn makes(&mut self, output: &str) {
        if let Some(last) = self.nodes.last_mut() {
            last.output = vec![output.to_owned()];
        }
    }

    /// A name that neither the graph nor this has yet.
    fn name(&mut self, what: &str) -> String {
        self.fresh(node_name(self.like), what)
    }

    fn fresh(&mut self, stem: &str, what: &str) -> String {
        let mut names = (0..).map(|i| format!("{stem}_{what}_{i}"));
        let name = names
            .find(|name| !self.graph.has(name) && !self.names.contains(name))
            .unwrap_or_default();
        self.names.insert(name.clone());
        name
    }

    /// A node of one output. Returns the name of the output.
    pub fn op(&mut self, op: &str, inputs: &[&str], attribute: Vec<AttributeProto>) -> String {
        let output = self.name(&op.to_lowercase());
        self.nodes.push(NodeProto {
            attribute,
            ..node(self.like, op, &output, inputs, &output)
        });
        output
    }

    /// As [`Maker::op`], with the name of the node that the others are modelled on, which this one replaces.
    pub fn op_in_place(
        &mut self,
        op: &str,
        inputs: &[&str],
        attribute: Vec<AttributeProto>,
    ) -> String {
        let output = self.op(op, inputs, attribute);
        if let Some(last) = self.nodes.last_mut()
            && !self.like.name().is_empty()
        {
            last.name.clone_from(&self.like.name);
        }
        output
    }

    /// A copy of the node that the others are modelled on, with another name for its output in this
    /// slot. Returns the name.
    pub fn repeat_like(&mut self, slot: usize) -> String {
        let name = self.name("whole");
        let mut node = self.like.clone();
        if let Some(output) = node.output.get_mut(slot) {
            output.clone_from(&name);
        }
        self.nodes.push(node);
        name
    }

    /// Another node of the graph once more, on other inputs and with its own notes. Returns the names of its outputs; one
    /// that is left out has an empty name.
    pub fn repeat(&mut self, node: NodeId, inputs: &[String]) -> Vec<String> {
        let mut again = self.graph.node(node).clone();
        again.input = inputs.to_vec();
        again.name = Some(self.fresh(self.graph.name(node), "selected"));
        for output in again.output.iter_mut().filter(|output| !output.is_empty()) {
            *output = self.fresh(output, "selected");
        }
        let outputs = again.output.clone();
        self.nodes.push(again);
        outputs
    }

    /// A constant of floats.
    pub fn floats(&mut self, data_type: DataType, recipe: &Recipe) -> String {
        let (name, recipe) = (self.name("constant"), recipe.clone());
        self.constants.push(NewConstant::Floats {
            name: name.clone(),
            data_type,
            recipe,
        });
        name
    }

    /// A weight that replaces another, whose products are added up along some axes.
    pub fn weight(
        &mut self,
        data_type: DataType,
        recipe: &Recipe,
        replaces: &str,
        contracted: Vec<usize>,
    ) -> String {
        let (name, recipe, replaces) = (self.name("weight"), recipe.clone(), replaces.to_owned());
        self.constants.push(NewConstant::Weight {
            name: name.clone(),
            data_type,
            recipe,
            replaces,
            contracted,
        });
        name
    }

    /// A constant of integers, as shapes and axes are given to operators.
    pub fn ints(&mut self, values: &[i64]) -> String {
        let name = self.name("constant");
        self.constants.push(NewConstant::Integers {
            name: name.clone(),
            values: values.to_vec(),
        });
        name
    }

    /// The mean over axes.
    pub fn mean(&mut self, value: &str, axes: &[i64], keep: bool) -> String {
        self.listed(
            "ReduceMean",
            value,
            vec![int("keepdims", i64::from(keep))],
            ("axes", axes),
        )
    }

    /// A node on one value with a list of integers, which is an input or an attribute.
    fn listed(
        &mut self,
        op: &str,
        value: &str,
        mut attributes: Vec<AttributeProto>,
        (name, list): (&str, &[i64]),
    ) -> String {
        if input_at(op, name, self.opset()).is_none() {
            attributes.push(ints(name, list));
            return self.op(op, &[value], attributes);
        }
        let list = self.ints(list);
        self.op(op, &[value, &list], attributes)
    }

    /// The value in another type.
    pub fn cast(&mut self, value: &str, to: DataType) -> String {
        self.op("Cast", &[value], vec![int("to", to as i64)])
    }

    /// The value in another shape.
    pub fn reshape(&mut self, value: &str, shape: &[i64]) -> String {
        let shape = self.ints(shape);
        self.op("Reshape", &[value, &shape], vec![])
    }

    /// The value with its axes in another order.
    pub fn transpose(&mut self, value: &str, perm: &[i64]) -> String {
        self.op("Transpose", &[value], vec![ints("perm", perm)])
    }

    /// The value repeated into a shape.
    pub fn expand(&mut self, value: &str, shape: &[i64]) -> String {
        let shape = self.ints(shape);
        self.op("Expand", &[value, &shape], vec![])
    }

    /// A run of places along an axis.
    pub fn slice(&mut self, value: &str, run: &Range<usize>, axis: i64) -> String {
        self.slice_between(value, [run.start as i64, run.end as i64], axis)
    }

    /// The places from a start to an end along an axis; negative bounds count from the end of the axis.
    pub fn slice_between(&mut self, value: &str, bounds: [i64; 2], axis: i64) -> String {
        let [start, end] = bounds;
        if input_at("Slice", "starts", self.opset()).is_none() {
            let lists = [("starts", start), ("ends", end), ("axes", axis)];
            let attributes = lists.map(|(name, number)| ints(name, &[number])).to_vec();
            return self.op("Slice", &[value], attributes);
        }
        let [start, end, axis] = [start, end, axis].map(|number| self.ints(&[number]));
        self.op("Slice", &[value, &start, &end, &axis], vec![])
    }

    /// The parts of a value along an axis.
    pub fn split(&mut self, value: &str, axis: i64, extents: &[i64]) -> Vec<String> {
        let mut parts =
            vec![self.listed("Split", value, vec![int("axis", axis)], ("split", extents))];
        parts.extend((1..extents.len()).map(|_| self.name("split")));
        if let Some(node) = self.nodes.last_mut() {
            node.output.clone_from(&parts);
        }
        parts
    }

    /// The value without an axis of one place.
    pub fn squeeze(&mut self, value: &str, axis: i64) -> String {
        self.listed("Squeeze", value, vec![], ("axes", &[axis]))
    }
    /// The value with axes of one place, which stand here among its own.
    pub fn unsqueeze(&mut self, value: &str, axes: &[i64]) -> String {
        self.listed("Unsqueeze", value, vec![], ("axes", axes))
    }
}
