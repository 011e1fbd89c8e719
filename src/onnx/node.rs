//! Reading the attributes of a node, each with the type that its operator defines.

use bytes::Bytes;

use super::proto::{AttributeProto, AttributeType, GraphProto, NodeProto, TensorProto};
use crate::error::{Error, Result};

/// The name of an operator set: `ai.onnx` is another name of `""`.
pub fn canonical_domain(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

/// Readers of attributes: `None` where the node lacks the attribute, an error where it has another
/// type.
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
/// assert_eq!(node.op(), ("", "Softmax"));
/// assert_eq!(node.attr_i("axis")?, Some(-1));
/// assert_eq!(node.attr_f("alpha")?.unwrap_or(1.0), 1.0);
/// assert!(node.attr_f("axis").is_err());
/// # Ok::<(), unfold::error::Error>(())
/// ```
impl NodeProto {
    /// The operator set and the operator.
    pub fn op(&self) -> (&str, &str) {
        (canonical_domain(self.domain()), self.op_type())
    }

    /// What to call the node in messages: its name, or its operator and first output where it has
    /// none.
    pub fn label(&self) -> String {
        match (self.name(), self.output.first()) {
            ("", Some(output)) => format!("{} -> {output}", self.op_type()),
            ("", None) => self.op_type().to_owned(),
            (name, _) => name.to_owned(),
        }
    }

    /// An integer.
    pub fn attr_i(&self, name: &str) -> Result<Option<i64>> {
        self.attr(name, AttributeType::Int, |attribute| Some(attribute.i()))
    }

    /// A float.
    pub fn attr_f(&self, name: &str) -> Result<Option<f32>> {
        self.attr(name, AttributeType::Float, |attribute| Some(attribute.f()))
    }

    /// A string.
    pub fn attr_s(&self, name: &str) -> Result<Option<&str>> {
        let bytes = self.attr(name, AttributeType::String, |attribute| Some(attribute.s()))?;
        let text = bytes.map(std::str::from_utf8).transpose();
        text.map_err(|_| self.wrong(name, "it is not UTF-8"))
    }

    /// A tensor.
    pub fn attr_t(&self, name: &str) -> Result<Option<&TensorProto>> {
        self.attr(name, AttributeType::Tensor, |attribute| attribute.t.as_deref())
    }

    /// A graph.
    pub fn attr_g(&self, name: &str) -> Result<Option<&GraphProto>> {
        self.attr(name, AttributeType::Graph, |attribute| attribute.g.as_deref())
    }

    /// Integers.
    pub fn attr_ints(&self, name: &str) -> Result<Option<&[i64]>> {
        self.attr(name, AttributeType::Ints, |attribute| Some(attribute.ints.as_slice()))
    }

    /// Floats.
    pub fn attr_floats(&self, name: &str) -> Result<Option<&[f32]>> {
        self.attr(name, AttributeType::Floats, |attribute| Some(attribute.floats.as_slice()))
    }

    /// Strings.
    pub fn attr_strings(&self, name: &str) -> Result<Option<&[Bytes]>> {
        self.attr(name, AttributeType::Strings, |attribute| Some(attribute.strings.as_slice()))
    }

    /// The value of an attribute of a type. A number or string that is not set is 0 or empty, as
    /// proto3 writers have it.
    fn attr<'a, T>(
        &'a self,
        name: &str,
        kind: AttributeType,
        value: impl FnOnce(&'a AttributeProto) -> Option<T>,
    ) -> Result<Option<T>> {
        let mut found = self.attribute.iter().filter(|attribute| attribute.name() == name);
        let Some(attribute) = found.next() else {
            return Ok(None);
        };
        if found.next().is_some() {
            return Err(self.wrong(name, "the node has it twice"));
        }
        if !attribute.ref_attr_name().is_empty() {
            return Err(self.wrong(name, "its value is an attribute of the function around the node"));
        }
        if attribute.r#type != Some(kind.into()) {
            return Err(self.wrong(name, &format!("it should be {kind:?}, and is {:?}", attribute.r#type())));
        }
        value(attribute).map(Some).ok_or_else(|| self.wrong(name, "it has no value"))
    }

    fn wrong(&self, attribute: &str, reason: &str) -> Error {
        Error::Attribute { node: self.label(), attribute: attribute.to_owned(), reason: reason.to_owned() }
    }
}
