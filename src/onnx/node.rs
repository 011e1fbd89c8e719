//! Reads the attributes of a node with the types that its operator defines.

use super::element::{DataType, without_elements};
use super::proto::{
    AttributeProto, AttributeType, GraphProto, NodeProto, StringStringEntryProto, TensorProto,
};
use crate::error::{Error, Result};

/// The canonical name of an operator set: `ai.onnx` is the same as `""`.
pub(crate) fn canonical_domain(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

impl StringStringEntryProto {
    /// An entry of metadata, or of a reference to external data.
    pub(crate) fn new(key: &str, value: &str) -> Self {
        Self {
            key: Some(key.to_owned()),
            value: Some(value.to_owned()),
        }
    }
}

/// Methods that read attributes. Each returns `None` if the node lacks the attribute, and an error
/// if the attribute has another type.
///
/// ```
/// use unfold::onnx::proto::{AttributeProto, AttributeType, NodeProto};
///
/// let axis = AttributeProto {
///     name: Some("axis".into()),
///     r#type: Some(AttributeType::Int.into()),
///     i: Some(-1),
///     ..Default::default()
/// };
/// let node = NodeProto {
///     op_type: Some("Softmax".into()),
///     attribute: vec![axis],
///     ..Default::default()
/// };
/// assert_eq!(node.op_type(), "Softmax");
/// assert_eq!(node.attr_i("axis")?, Some(-1));
/// assert_eq!(node.attr_f("alpha")?.unwrap_or(1.0), 1.0);
/// assert!(node.attr_f("axis").is_err());
/// # Ok::<(), unfold::error::Error>(())
/// ```
impl NodeProto {
    /// The canonical domain and the name of the operator.
    pub(crate) fn op(&self) -> (&str, &str) {
        (canonical_domain(self.domain()), self.op_type())
    }

    /// The name of the operator, prefixed by its domain unless that is ONNX's own.
    pub(crate) fn operator(&self) -> String {
        match self.op() {
            ("", operator) => operator.to_owned(),
            (domain, operator) => format!("{domain}.{operator}"),
        }
    }

    /// The name of the node in messages. Without a name, it is the operator and the first output.
    pub fn label(&self) -> String {
        match (self.name(), self.output.first()) {
            ("", Some(output)) => format!("{} -> {output}", self.op_type()),
            ("", None) => self.op_type().to_owned(),
            (name, _) => name.to_owned(),
        }
    }

    /// Renames the inputs for which `instead` returns a name, also in sharding specifications.
    pub(crate) fn read_instead<'n>(&mut self, instead: impl Fn(&str) -> Option<&'n str>) {
        for input in &mut self.input {
            if let Some(other) = instead(input) {
                other.clone_into(input);
            }
        }
        self.rename_shards(instead);
    }

    /// Renames values in sharding specifications, if `now` returns a name for them.
    pub(crate) fn rename_shards<'n>(&mut self, now: impl Fn(&str) -> Option<&'n str>) {
        let configurations = self.device_configurations.iter_mut();
        for spec in configurations.flat_map(|configuration| &mut configuration.sharding_spec) {
            if let Some(other) = now(spec.tensor_name()) {
                spec.tensor_name = Some(other.to_owned());
            }
        }
    }

    /// The value of an integer attribute.
    ///
    /// # Errors
    /// If the attribute has another type, occurs twice, or refers to an attribute of the enclosing
    /// function.
    pub fn attr_i(&self, name: &str) -> Result<Option<i64>> {
        self.attr(name, AttributeType::Int, |attribute| Some(attribute.i()))
    }

    /// The value of a float attribute.
    ///
    /// # Errors
    /// The errors of [`NodeProto::attr_i`].
    pub fn attr_f(&self, name: &str) -> Result<Option<f32>> {
        self.attr(name, AttributeType::Float, |attribute| Some(attribute.f()))
    }

    /// The value of a string attribute.
    ///
    /// # Errors
    /// The errors of [`NodeProto::attr_i`], or if the string is not UTF-8.
    pub fn attr_s(&self, name: &str) -> Result<Option<&str>> {
        let bytes = self.attr(name, AttributeType::String, |attribute| Some(attribute.s()))?;
        let text = bytes.map(std::str::from_utf8).transpose();
        text.map_err(|_| self.wrong(name, "it is not UTF-8"))
    }

    /// The value of a tensor attribute.
    ///
    /// # Errors
    /// The errors of [`NodeProto::attr_i`], or if the attribute has no value.
    pub fn attr_t(&self, name: &str) -> Result<Option<&TensorProto>> {
        self.attr(name, AttributeType::Tensor, |attribute| {
            attribute.t.as_deref()
        })
    }

    /// The value of a graph attribute.
    ///
    /// # Errors
    /// The errors of [`NodeProto::attr_i`], or if the attribute has no value.
    pub fn attr_g(&self, name: &str) -> Result<Option<&GraphProto>> {
        self.attr(name, AttributeType::Graph, |attribute| {
            attribute.g.as_deref()
        })
    }

    /// The value of an attribute that is a list of integers.
    ///
    /// # Errors
    /// The errors of [`NodeProto::attr_i`].
    pub fn attr_ints(&self, name: &str) -> Result<Option<&[i64]>> {
        self.attr(name, AttributeType::Ints, |attribute| {
            Some(attribute.ints.as_slice())
        })
    }

    /// The value of an attribute that is a list of floats.
    ///
    /// # Errors
    /// The errors of [`NodeProto::attr_i`].
    pub fn attr_floats(&self, name: &str) -> Result<Option<&[f32]>> {
        self.attr(name, AttributeType::Floats, |attribute| {
            Some(attribute.floats.as_slice())
        })
    }

    /// The element type to which a Cast converts, if this version of unfold knows it.
    pub(crate) fn cast_to(&self) -> Option<DataType> {
        DataType::from_code(i32::try_from(self.attr_i("to").ok()??).ok()?)
    }

    /// The value of an attribute, which must have type `kind`. A scalar that is not set is 0, and a
    /// string that is not set is empty, because proto3 writers omit such values.
    fn attr<'a, T>(
        &'a self,
        name: &str,
        kind: AttributeType,
        value: impl FnOnce(&'a AttributeProto) -> Option<T>,
    ) -> Result<Option<T>> {
        let mut found = self
            .attribute
            .iter()
            .filter(|attribute| attribute.name() == name);
        let Some(attribute) = found.next() else {
            return Ok(None);
        };
        if found.next().is_some() {
            return Err(self.wrong(name, "the node has it twice"));
        }
        if !attribute.ref_attr_name().is_empty() {
            return Err(self.wrong(
                name,
                "its value is an attribute of the function around the node",
            ));
        }
        if attribute.r#type != Some(kind.into()) {
            return Err(self.wrong(
                name,
                &format!("it should be {kind:?}, and is {:?}", attribute.r#type()),
            ));
        }
        value(attribute)
            .map(Some)
            .ok_or_else(|| self.wrong(name, "it has no value"))
    }

    fn wrong(&self, attribute: &str, reason: &str) -> Error {
        Error::Attribute {
            node: self.label(),
            attribute: attribute.to_owned(),
            reason: reason.to_owned(),
        }
    }
}

/// The bodies of a node.
pub(crate) fn bodies(node: &NodeProto) -> impl Iterator<Item = &GraphProto> {
    node.attribute
        .iter()
        .flat_map(|attribute| attribute.g.iter().map(|g| &**g).chain(&attribute.graphs))
}

/// The bodies of a node, for changes.
pub(crate) fn bodies_mut(node: &mut NodeProto) -> impl Iterator<Item = &mut GraphProto> {
    let attributes = node.attribute.iter_mut();
    attributes.flat_map(|attribute| {
        attribute
            .g
            .iter_mut()
            .map(|g| &mut **g)
            .chain(&mut attribute.graphs)
    })
}

/// Whether a body of a graph, at any depth, defines a value with this name.
pub(crate) fn is_defined_in_bodies(graph: &GraphProto, name: &str) -> bool {
    let mut bodies = graph.node.iter().flat_map(bodies);
    bodies.any(|body| defines(body, name))
}

/// Whether a body, or a body inside of it, defines a value with this name.
fn defines(body: &GraphProto, name: &str) -> bool {
    let inputs = body.input.iter().map(|input| input.name());
    let stored = body.initializer.iter().map(|tensor| tensor.name());
    let outputs = body.node.iter().flat_map(|node| &node.output);
    let made = outputs.map(String::as_str);
    inputs.chain(stored).chain(made).any(|own| own == name) || is_defined_in_bodies(body, name)
}

/// Renames a value where nodes and their bodies read it.
pub(crate) fn rename_reads(nodes: &mut [NodeProto], from: &str, to: &str) {
    for node in nodes {
        node.read_instead(|input| (input == from).then_some(to));
        for body in bodies_mut(node) {
            body.output
                .iter_mut()
                .filter(|end| end.name() == from)
                .for_each(|end| end.name = Some(to.to_owned()));
            rename_reads(&mut body.node, from, to);
        }
    }
}

/// The number of state variables of a Loop with `reads` inputs, or of a Scan since operator set 9.
pub(crate) fn states(node: &NodeProto, reads: usize) -> Option<usize> {
    match node.op_type() {
        "Loop" => reads.checked_sub(2),
        _ => reads.checked_sub(usize::try_from(node.attr_i("num_scan_inputs").ok()??).ok()?),
    }
}

/// The tensor of a Constant node, from any of the attributes that can hold it; `None` for strings
/// and sparse tensors.
pub(crate) fn constant_tensor(node: &NodeProto) -> Option<TensorProto> {
    let attribute = node.attribute.first()?;
    match attribute.name() {
        "value" => attribute.t.as_deref().cloned(),
        "value_float" => Some(TensorProto {
            float_data: vec![attribute.f()],
            ..without_elements(DataType::Float, &[])
        }),
        "value_floats" => Some(TensorProto {
            float_data: attribute.floats.clone(),
            ..without_elements(DataType::Float, &[attribute.floats.len()])
        }),
        "value_int" => Some(TensorProto {
            int64_data: vec![attribute.i()],
            ..without_elements(DataType::Int64, &[])
        }),
        "value_ints" => Some(TensorProto {
            int64_data: attribute.ints.clone(),
            ..without_elements(DataType::Int64, &[attribute.ints.len()])
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(name: &str, kind: AttributeType) -> AttributeProto {
        AttributeProto {
            name: Some(name.into()),
            r#type: Some(kind.into()),
            ..Default::default()
        }
    }

    fn node(attribute: Vec<AttributeProto>) -> NodeProto {
        NodeProto {
            name: Some("n".into()),
            attribute,
            ..Default::default()
        }
    }

    fn refused<T: std::fmt::Debug>(read: Result<T>, reason: &str) {
        let message = read.unwrap_err().to_string();
        assert!(
            message.starts_with("node `n`, attribute `a`: ") && message.contains(reason),
            "{message}"
        );
    }

    #[test]
    fn attributes_of_each_type_are_read() {
        let node = node(vec![
            AttributeProto {
                i: Some(-3),
                ..attribute("i", AttributeType::Int)
            },
            AttributeProto {
                f: Some(0.5),
                ..attribute("f", AttributeType::Float)
            },
            AttributeProto {
                s: Some("SAME".into()),
                ..attribute("s", AttributeType::String)
            },
            AttributeProto {
                t: Some(Box::default()),
                ..attribute("t", AttributeType::Tensor)
            },
            AttributeProto {
                g: Some(Box::default()),
                ..attribute("g", AttributeType::Graph)
            },
            AttributeProto {
                ints: vec![1, 2],
                ..attribute("ints", AttributeType::Ints)
            },
        ]);
        assert_eq!(node.attr_i("i").unwrap(), Some(-3));
        assert_eq!(node.attr_f("f").unwrap(), Some(0.5));
        assert_eq!(node.attr_s("s").unwrap(), Some("SAME"));
        assert_eq!(node.attr_t("t").unwrap(), Some(&TensorProto::default()));
        assert_eq!(node.attr_g("g").unwrap(), Some(&GraphProto::default()));
        assert_eq!(node.attr_ints("ints").unwrap(), Some(&[1, 2][..]));
        assert_eq!(node.attr_i("missing").unwrap(), None);
    }

    #[test]
    fn unset_attribute_is_zero_or_empty_and_a_message_is_required() {
        assert_eq!(
            node(vec![attribute("a", AttributeType::Int)])
                .attr_i("a")
                .unwrap(),
            Some(0)
        );
        assert_eq!(
            node(vec![attribute("a", AttributeType::Float)])
                .attr_f("a")
                .unwrap(),
            Some(0.0)
        );
        assert_eq!(
            node(vec![attribute("a", AttributeType::String)])
                .attr_s("a")
                .unwrap(),
            Some("")
        );
        assert_eq!(
            node(vec![attribute("a", AttributeType::Ints)])
                .attr_ints("a")
                .unwrap(),
            Some(&[][..])
        );
        refused(
            node(vec![attribute("a", AttributeType::Tensor)]).attr_t("a"),
            "no value",
        );
    }

    #[test]
    fn attribute_of_wrong_type_duplicate_or_reference_is_refused() {
        refused(
            node(vec![attribute("a", AttributeType::Int)]).attr_ints("a"),
            "should be Ints, and is Int",
        );
        let untyped = AttributeProto {
            r#type: None,
            i: Some(1),
            ..attribute("a", AttributeType::Int)
        };
        refused(node(vec![untyped]).attr_i("a"), "is Undefined");
        let int = attribute("a", AttributeType::Int);
        refused(node(vec![int.clone(), int.clone()]).attr_i("a"), "twice");
        let outer = AttributeProto {
            ref_attr_name: Some("b".into()),
            ..int
        };
        refused(node(vec![outer]).attr_i("a"), "function");
        let binary = AttributeProto {
            s: Some(vec![0xff].into()),
            ..attribute("a", AttributeType::String)
        };
        refused(node(vec![binary]).attr_s("a"), "UTF-8");
    }

    #[test]
    fn label_of_an_unnamed_node_is_operator_and_output() {
        let unnamed = NodeProto {
            op_type: Some("Relu".into()),
            output: vec!["y".into()],
            ..node(vec![])
        };
        assert_eq!(
            NodeProto {
                name: None,
                ..unnamed.clone()
            }
            .label(),
            "Relu -> y"
        );
        assert_eq!(
            NodeProto {
                name: Some(String::new()),
                output: vec![],
                ..unnamed.clone()
            }
            .label(),
            "Relu"
        );
        assert_eq!(unnamed.label(), "n");
    }

    #[test]
    fn ai_onnx_domain_equals_the_empty_domain() {
        let domains = [None, Some("ai.onnx"), Some("com.microsoft")].map(|domain: Option<&str>| {
            let node = NodeProto {
                domain: domain.map(Into::into),
                ..node(vec![])
            };
            node.op().0.to_owned()
        });
        assert_eq!(domains, ["", "", "com.microsoft"]);
    }
}
