//! Builds nodes in the form that the operator set of the model requires.

use std::collections::HashSet;
use std::ops::Range;

use crate::ir::{Graph, NodeId, node_name};
use crate::onnx::operator::input_at;
use crate::onnx::proto::{AttributeProto, AttributeType, NodeProto};
use crate::onnx::tensor::DataType;
use crate::recipe::Recipe;

/// An integer attribute.
pub(crate) fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto {
        i: Some(i),
        ..attribute(name, AttributeType::Int)
    }
}

/// An attribute that is a list of integers.
pub(crate) fn ints(name: &str, ints: &[i64]) -> AttributeProto {
    AttributeProto {
        ints: ints.to_vec(),
        ..attribute(name, AttributeType::Ints)
    }
}

/// An attribute that is a list of strings.
pub(crate) fn strings(name: &str, strings: &[String]) -> AttributeProto {
    let strings = strings
        .iter()
        .map(|string| string.clone().into_bytes().into())
        .collect();
    AttributeProto {
        strings,
        ..attribute(name, AttributeType::Strings)
    }
}

/// A float attribute.
pub(crate) fn float(name: &str, f: f32) -> AttributeProto {
    AttributeProto {
        f: Some(f),
        ..attribute(name, AttributeType::Float)
    }
}

/// A node with one output, and with the metadata of the node `like`.
pub(crate) fn node(
    like: &NodeProto,
    op: &str,
    name: &str,
    inputs: &[&str],
    output: &str,
) -> NodeProto {
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
pub(crate) enum NewConstant {
    /// A list of integers, for shapes and axes.
    Integers {
        /// The name of the constant.
        name: String,
        /// The integers.
        values: Vec<i64>,
    },
    /// A computed floating-point constant.
    Floats {
        /// The name of the constant.
        name: String,
        /// The element type of the constant.
        data_type: DataType,
        /// The recipe that computes the constant.
        recipe: Recipe,
    },
    /// A weight that replaces another constant.
    Weight {
        /// The name of the constant.
        name: String,
        /// The element type of the constant.
        data_type: DataType,
        /// The recipe that computes the constant.
        recipe: Recipe,
        /// The name of the replaced constant.
        replaces: String,
        /// The axes of the new weight over which its reader sums.
        contracted: Vec<usize>,
    },
}

impl NewConstant {
    /// The name of the constant.
    pub(crate) fn name(&self) -> &str {
        match self {
            NewConstant::Integers { name, .. }
            | NewConstant::Floats { name, .. }
            | NewConstant::Weight { name, .. } => name,
        }
    }
}

/// Builds nodes that replace other nodes, and the constants that they read.
///
/// The new nodes get the metadata of the node `like`, and their names begin with its name.
pub(crate) struct Maker<'m> {
    graph: &'m Graph<'m>,
    like: &'m NodeProto,
    names: HashSet<String>,
    nodes: Vec<NodeProto>,
    constants: Vec<NewConstant>,
}

impl<'m> Maker<'m> {
    /// Starts without nodes. New nodes get their metadata and the beginning of their names from
    /// `like`.
    pub(crate) fn new(graph: &'m Graph<'m>, like: NodeId) -> Self {
        Maker {
            graph,
            like: graph.node(like),
            names: HashSet::new(),
            nodes: vec![],
            constants: vec![],
        }
    }

    /// The version of ONNX's operator set that the model imports.
    pub(crate) fn opset(&self) -> i64 {
        self.graph.model().own_opset()
    }

    /// Lets the last node compute `output`, and returns the nodes and their constants.
    pub(crate) fn finish(mut self, output: &str) -> (Vec<NodeProto>, Vec<NewConstant>) {
        self.makes(output);
        self.done()
    }

    /// Returns the nodes and their constants. All outputs that the graph reads must have been named
    /// by [`Maker::makes`].
    pub(crate) fn done(self) -> (Vec<NodeProto>, Vec<NewConstant>) {
        (self.nodes, self.constants)
    }

    /// Renames the output of the last node to `output`, the name that the readers in the graph use.
    pub(crate) fn makes(&mut self, output: &str) {
        if let Some(last) = self.nodes.last_mut() {
            last.output = vec![output.to_owned()];
        }
    }

    /// Sets the domain of the last node's operator.
    pub(crate) fn in_domain(&mut self, domain: &str) {
        if let Some(last) = self.nodes.last_mut() {
            last.domain = Some(domain.to_owned());
        }
    }

    /// Returns a name that exists neither in the graph nor among the new nodes.
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

    /// Adds a node with one output, and returns the name of the output.
    pub(crate) fn op(
        &mut self,
        op: &str,
        inputs: &[&str],
        attribute: Vec<AttributeProto>,
    ) -> String {
        let output = self.name(&op.to_lowercase());
        self.nodes.push(NodeProto {
            attribute,
            ..node(self.like, op, &output, inputs, &output)
        });
        output
    }

    /// Like [`Maker::op`], but gives the new node the name of the node `like`, which it replaces.
    pub(crate) fn op_in_place(
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

    /// Adds a copy of the node `like` with a new name for its output in `slot`, and returns this
    /// name.
    pub(crate) fn repeat_like(&mut self, slot: usize) -> String {
        let name = self.name("whole");
        let mut node = self.like.clone();
        if let Some(output) = node.output.get_mut(slot) {
            output.clone_from(&name);
        }
        self.nodes.push(node);
        name
    }

    /// Adds a copy of a node of the graph with other inputs, and returns the names of its outputs.
    /// The names of absent outputs stay empty.
    pub(crate) fn repeat(&mut self, node: NodeId, inputs: &[String]) -> Vec<String> {
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

    /// Adds a floating-point constant, and returns its name.
    pub(crate) fn floats(&mut self, data_type: DataType, recipe: &Recipe) -> String {
        let (name, recipe) = (self.name("constant"), recipe.clone());
        self.constants.push(NewConstant::Floats {
            name: name.clone(),
            data_type,
            recipe,
        });
        name
    }

    /// Adds a weight that replaces the constant `replaces`, and returns the name of the weight. The
    /// operator that reads the weight sums over its axes `contracted`.
    pub(crate) fn weight(
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

    /// Adds a constant of integers, for shapes and axes, and returns its name.
    pub(crate) fn ints(&mut self, values: &[i64]) -> String {
        let name = self.name("constant");
        self.constants.push(NewConstant::Integers {
            name: name.clone(),
            values: values.to_vec(),
        });
        name
    }

    /// Adds a node that computes the mean over axes.
    pub(crate) fn mean(&mut self, value: &str, axes: &[i64], keep: bool) -> String {
        self.reduce("ReduceMean", value, axes, keep)
    }

    /// Adds a node with the Reduce operator `op` over axes.
    pub(crate) fn reduce(&mut self, op: &str, value: &str, axes: &[i64], keep: bool) -> String {
        self.listed(
            op,
            value,
            vec![int("keepdims", i64::from(keep))],
            ("axes", axes),
        )
    }

    /// Adds a node that reads one value and a list of integers. The list is an input or an
    /// attribute, depending on the operator set.
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

    /// Adds a Cast of the value.
    pub(crate) fn cast(&mut self, value: &str, to: DataType) -> String {
        self.op("Cast", &[value], vec![int("to", to as i64)])
    }

    /// Adds a Reshape of the value.
    pub(crate) fn reshape(&mut self, value: &str, shape: &[i64]) -> String {
        let shape = self.ints(shape);
        self.op("Reshape", &[value, &shape], vec![])
    }

    /// Adds a Transpose of the value.
    pub(crate) fn transpose(&mut self, value: &str, perm: &[i64]) -> String {
        self.op("Transpose", &[value], vec![ints("perm", perm)])
    }

    /// Adds an Expand of the value.
    pub(crate) fn expand(&mut self, value: &str, shape: &[i64]) -> String {
        let shape = self.ints(shape);
        self.op("Expand", &[value, &shape], vec![])
    }

    /// Adds a Slice of a range of places along an axis.
    pub(crate) fn slice(&mut self, value: &str, run: &Range<usize>, axis: i64) -> String {
        self.slice_between(value, [run.start as i64, run.end as i64], axis)
    }

    /// Adds a Slice from a start to an end along an axis. Negative bounds count from the end of the
    /// axis.
    pub(crate) fn slice_between(&mut self, value: &str, bounds: [i64; 2], axis: i64) -> String {
        let [start, end] = bounds;
        if input_at("Slice", "starts", self.opset()).is_none() {
            let lists = [("starts", start), ("ends", end), ("axes", axis)];
            let attributes = lists.map(|(name, number)| ints(name, &[number])).to_vec();
            return self.op("Slice", &[value], attributes);
        }
        let [start, end, axis] = [start, end, axis].map(|number| self.ints(&[number]));
        self.op("Slice", &[value, &start, &end, &axis], vec![])
    }

    /// Adds a Split of the value into parts of these extents along an axis, and returns the names
    /// of the parts.
    pub(crate) fn split(&mut self, value: &str, axis: i64, extents: &[i64]) -> Vec<String> {
        let mut parts =
            vec![self.listed("Split", value, vec![int("axis", axis)], ("split", extents))];
        parts.extend((1..extents.len()).map(|_| self.name("split")));
        if let Some(node) = self.nodes.last_mut() {
            node.output.clone_from(&parts);
        }
        parts
    }

    /// Adds a Squeeze of one axis.
    pub(crate) fn squeeze(&mut self, value: &str, axis: i64) -> String {
        self.listed("Squeeze", value, vec![], ("axes", &[axis]))
    }
    /// Adds an Unsqueeze. `axes` are the indices of the new axes in the result.
    pub(crate) fn unsqueeze(&mut self, value: &str, axes: &[i64]) -> String {
        self.listed("Unsqueeze", value, vec![], ("axes", axes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::Model;

    #[test]
    fn a_maker_names_its_nodes_after_the_one_that_they_are_like() {
        let model = Model::open("models/digits/un-dynamo.onnx").unwrap();
        let graph = Graph::new(&model).unwrap();
        let mut maker = Maker::new(&graph, 0);
        let mean = maker.mean("x", &[-1], true);
        maker.op("Sub", &["x", &mean], vec![]);
        let (nodes, constants) = maker.finish("y");
        assert!(
            nodes[0].name().starts_with(graph.name(0))
                && graph.value(&nodes[0].output[0]).is_none()
        );
        assert_eq!(nodes[1].output, ["y"]);
        assert_eq!(nodes[0].input, ["x", constants[0].name()]);
    }
}
