//! Identifies the functions of nodes whose operators are not interpreted.

use std::cell::RefCell;
use std::collections::HashMap;

use prost::Message;

use super::inner::Bodies;
use super::{Evaluation, Location};
use crate::onnx::operator::Category;
use crate::onnx::proto::{AttributeProto, FunctionProto, GraphProto, NodeProto, SparseTensorProto};
use crate::onnx::tensor::DataType;
use crate::passes::inline::functions::{callee, key};
use crate::prove::field_value::stored;
use crate::prove::random::{Digest, Hash};

/// The values that the nodes of a body may read, by name.
enum CapturedNames<'n> {
    /// No values: a function captures none.
    Closed,
    /// The values that the bodies of a node may capture. Their digests are stored when first
    /// computed, since a body may read a value many times.
    Around {
        location: &'n Location<'n>,
        digests: RefCell<HashMap<String, Option<Digest>>>,
    },
    /// The values of a body, which are identified by numbers, and the values around the body.
    Body {
        numbers: HashMap<&'n str, u64>,
        depth: u64,
        outer: &'n CapturedNames<'n>,
    },
}

impl<'n> CapturedNames<'n> {
    fn around(location: &'n Location<'n>) -> Self {
        Self::Around {
            location,
            digests: RefCell::default(),
        }
    }

    fn of_body(graph: &'n GraphProto, outer: &'n CapturedNames<'n>) -> Self {
        let inputs = graph.input.iter().map(|input| input.name());
        let stored = graph.initializer.iter().map(|tensor| tensor.name());
        let sparse = graph.sparse_initializer.iter();
        let sparse = sparse.filter_map(|sparse| Some(sparse.values.as_ref()?.name()));
        let made = graph.node.iter().flat_map(|node| &node.output);
        let made = made.map(String::as_str);
        let names = inputs.chain(stored).chain(sparse).chain(made);
        Self::Body {
            numbers: names.zip(0..).collect(),
            depth: outer.depth() + 1,
            outer,
        }
    }

    /// The nesting depth of the body that defines these names. 0 for names outside of bodies.
    fn depth(&self) -> u64 {
        match self {
            Self::Body { depth, .. } => *depth,
            _ => 0,
        }
    }

    /// The digest that identifies the value with this name. `None` if there is no such value.
    fn digest(&self, name: &str, key: u64) -> Option<Digest> {
        match self {
            Self::Closed => None,
            Self::Around { location, digests } => *digests
                .borrow_mut()
                .entry(name.to_owned())
                .or_insert_with(|| Some(location.captured(name)?.0.digest(key))),
            Self::Body {
                numbers,
                depth,
                outer,
            } => {
                let Some(&number) = numbers.get(name) else {
                    return outer.digest(name, key);
                };
                let mut hash = Hash::new(key, "local");
                hash.number(*depth);
                hash.number(number);
                Some(hash.finish())
            }
        }
    }

    /// Adds the digest of the value with this name to a hash, or the name itself if there is no
    /// such value.
    fn add(&self, name: &str, key: u64, hash: &mut Hash) {
        match self.digest(name, key) {
            Some(digest) => hash.digest(digest),
            None => hash.text(name),
        }
    }
}

impl<'w> Evaluation<'w> {
    /// The digest of the function that a node computes: of its operator, of its attributes with the
    /// tensors and bodies in them, and of the types of its integer inputs.
    pub(super) fn function(
        &self,
        node: &NodeProto,
        evaluated: Option<&Bodies>,
        location: &Location,
    ) -> Digest {
        let mut hash = Hash::new(self.point.key, "function");
        let names = CapturedNames::around(location);
        match evaluated {
            Some(bodies) => {
                self.operator(&without_bodies(node), &names, &mut hash);
                hash.digest(bodies.digest);
            }
            None => self.operator(node, &names, &mut hash),
        }
        self.small_integers(node, location, &mut hash);
        if node.category().is_some_and(Category::is_random) || node.op() == ("", "Dropout") {
            occurrence(node, location, &mut hash);
        }
        hash.finish()
    }

    /// Adds the types of integer inputs to a hash. Evaluation does not distinguish equal integers
    /// of different types, but an operator may compute different results from them. int64 is left
    /// out, because it is the usual type of places and extents.
    fn small_integers(&self, node: &NodeProto, location: &Location, hash: &mut Hash) {
        let Some((analysis, id)) = self.analyzed(node, location) else {
            return;
        };
        for (slot, value) in analysis.graph.inputs(id).iter().enumerate() {
            let data_type = value.and_then(|value| analysis.facts.data_type(value));
            if let Some(data_type) = data_type
                && data_type.is_integer()
                && !matches!(data_type, DataType::Int64 | DataType::Bool)
            {
                hash.number(slot as u64);
                hash.number(data_type.code() as u64);
            }
        }
    }

    fn operator(&self, node: &NodeProto, names: &CapturedNames, hash: &mut Hash) {
        let (domain, op) = node.op();
        for text in [domain, op, node.overload()] {
            hash.text(text);
        }
        if let Some(function) = self.functions.get(&callee(node)) {
            hash.digest(self.defined(function));
        }
        let mut attributes: Vec<&AttributeProto> = node.attribute.iter().collect();
        attributes.sort_by_key(|attribute| attribute.name());
        for attribute in attributes {
            self.attribute(attribute, names, hash);
        }
    }

    fn attribute(&self, attribute: &AttributeProto, names: &CapturedNames, hash: &mut Hash) {
        let AttributeProto {
            t,
            tensors,
            g,
            graphs,
            sparse_tensor,
            sparse_tensors,
            ..
        } = attribute;
        let plain = AttributeProto {
            t: None,
            tensors: vec![],
            g: None,
            graphs: vec![],
            sparse_tensor: None,
            sparse_tensors: vec![],
            doc_string: None,
            ..attribute.clone()
        };
        hash.bytes(&plain.encode_to_vec());
        for sparse in sparse_tensor.as_deref().into_iter().chain(sparse_tensors) {
            self.sparse(sparse, hash);
        }
        for tensor in t.as_deref().into_iter().chain(tensors) {
            hash.digest(stored(tensor, self.externals(), self.point.key));
        }
        for graph in g.as_deref().into_iter().chain(graphs) {
            self.body(graph, names, hash);
        }
    }

    /// The digest of a function: its whole definition, and the functions that it calls.
    fn defined(&self, function: &'w FunctionProto) -> Digest {
        let id = key(function);
        if let Some(&digest) = self.defined.borrow().get(&id) {
            return digest;
        }
        let mut hash = Hash::new(self.point.key, "defined");
        let plain = FunctionProto {
            name: function.name.clone(),
            domain: function.domain.clone(),
            overload: function.overload.clone(),
            input: function.input.clone(),
            output: function.output.clone(),
            attribute: function.attribute.clone(),
            opset_import: function.opset_import.clone(),
            ..Default::default()
        };
        hash.bytes(&plain.encode_to_vec());
        // This digest of the declaration is stored before calls are followed. A recursive call gets
        // this digest, so that the recursion ends.
        self.defined.borrow_mut().insert(id, hash.finish());
        let attributes = NodeProto {
            attribute: function.attribute_proto.clone(),
            ..Default::default()
        };
        self.operator(&attributes, &CapturedNames::Closed, &mut hash);
        for node in &function.node {
            self.operator(node, &CapturedNames::Closed, &mut hash);
            hash.bytes(
                &NodeProto {
                    input: node.input.clone(),
                    output: node.output.clone(),
                    ..Default::default()
                }
                .encode_to_vec(),
            );
        }
        let digest = hash.finish();
        self.defined.borrow_mut().insert(id, digest);
        digest
    }

    /// Adds a sparse tensor to a hash.
    pub(super) fn sparse(&self, sparse: &SparseTensorProto, hash: &mut Hash) {
        hash.all(&sparse.dims, i64::to_le_bytes);
        for tensor in sparse.values.iter().chain(&sparse.indices) {
            hash.digest(stored(tensor, self.externals(), self.point.key));
        }
    }

    /// Adds a body to a hash. Names of the body are replaced by numbers, and captured values by
    /// their digests.
    fn body(&self, graph: &GraphProto, outer: &CapturedNames, hash: &mut Hash) {
        let key = self.point.key;
        let names = CapturedNames::of_body(graph, outer);
        hash.number(graph.input.len() as u64);
        for input in &graph.input {
            hash.bytes(&input.r#type.clone().unwrap_or_default().encode_to_vec());
        }
        for tensor in &graph.initializer {
            hash.digest(stored(tensor, self.externals(), key));
        }
        for sparse in &graph.sparse_initializer {
            self.sparse(sparse, hash);
        }
        hash.number(graph.node.len() as u64);
        for node in &graph.node {
            self.operator(node, &names, hash);
            for list in [&node.input, &node.output] {
                hash.number(list.len() as u64);
                list.iter().for_each(|name| names.add(name, key, hash));
            }
        }
        for output in &graph.output {
            names.add(output.name(), key, hash);
        }
    }
}

/// Adds the name of a random operator's node to a hash, because each node draws its own random
/// results. A node without a name is identified by its first output. In a body, the region path
/// precedes the name, as it does in the flattened graph.
fn occurrence(node: &NodeProto, location: &Location, hash: &mut Hash) {
    let region = location.region.unwrap_or_default();
    let mut outputs = node.output.iter().map(String::as_str);
    let first = outputs.find(|name| !name.is_empty()).unwrap_or_default();
    let is_named = !node.name().is_empty();
    hash.text(&[region, if is_named { node.name() } else { first }].concat());
    hash.number(u64::from(is_named));
}

/// A node without its bodies, but with all other attributes.
fn without_bodies(node: &NodeProto) -> NodeProto {
    let mut node = node.clone();
    for attribute in &mut node.attribute {
        (attribute.g, attribute.graphs) = (None, vec![]);
    }
    node
}
