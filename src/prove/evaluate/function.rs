//! The identity of a node's function, without its interpretation.

use std::cell::RefCell;
use std::collections::HashMap;

use prost::Message;

use super::inner::Bodies;
use super::{Around, Evaluation};
use crate::onnx::operator::Category;
use crate::onnx::proto::{AttributeProto, FunctionProto, GraphProto, NodeProto, SparseTensorProto};
use crate::onnx::tensor::DataType;
use crate::passes::inline::functions::{callee, key};
use crate::prove::field_value::stored;
use crate::prove::random::{Digest, Hash};

impl<'w> Evaluation<'w> {
    /// Which function a node is: its operator, and its attributes with all that is in them.
    pub(super) fn function(
        &self,
        node: &NodeProto,
        evaluated: Option<&Bodies>,
        place: &Around,
    ) -> Digest {
        let mut hash = Hash::new(self.point.key, "function");
        // A body may read the same many times.
        let known: RefCell<HashMap<String, Option<Digest>>> = RefCell::default();
        let outer = |name: &str| {
            let digest = || Some((place.outer)(name)?.0.digest(self.point.key));
            *known
                .borrow_mut()
                .entry(name.to_owned())
                .or_insert_with(digest)
        };
        match evaluated {
            Some(bodies) => {
                self.operator(&without_bodies(node), &outer, 0, &mut hash);
                hash.digest(bodies.digest);
            }
            None => self.operator(node, &outer, 0, &mut hash),
        }
        // Integers are equal in every type, but results computed from them are not. Places and
        // extents have type int64.
        if let Some((known, id)) = self.known_of(node, place) {
            for (slot, value) in known.graph.inputs(id).iter().enumerate() {
                let data_type = value.and_then(|value| known.facts.data_type(value));
                let is_small = |of: &DataType| {
                    of.is_integer() && !matches!(of, DataType::Int64 | DataType::Bool)
                };
                if let Some(of) = data_type.filter(is_small) {
                    hash.number(slot as u64);
                    hash.number(of.code() as u64);
                }
            }
        }
        // A random operator has results of its own at each occurrence. In a body its name is the
        // region path, also after flattening.
        if node.category().is_some_and(Category::is_random) || node.op() == ("", "Dropout") {
            let way = place.way.unwrap_or_default();
            let first = node
                .output
                .iter()
                .find(|name| !name.is_empty())
                .map_or("", String::as_str);
            let is_named = !node.name().is_empty();
            hash.text(&[way, if is_named { node.name() } else { first }].concat());
            hash.number(u64::from(is_named));
        }
        hash.finish()
    }

    fn operator(
        &self,
        node: &NodeProto,
        outer: &dyn Fn(&str) -> Option<Digest>,
        depth: u64,
        hash: &mut Hash,
    ) {
        let (domain, op) = node.op();
        [domain, op, node.overload()]
            .iter()
            .for_each(|text| hash.text(text));
        if let Some(function) = self.functions.get(&callee(node)) {
            hash.digest(self.defined(function));
        }
        let mut attributes: Vec<&AttributeProto> = node.attribute.iter().collect();
        attributes.sort_by_key(|attribute| attribute.name());
        for attribute in attributes {
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
                self.body(graph, outer, depth + 1, hash);
            }
        }
    }

    /// The digest of a function: its whole definition, and the functions that it calls.
    fn defined(&self, function: &'w FunctionProto) -> Digest {
        let id = key(function);
        if let Some(&known) = self.defined.borrow().get(&id) {
            return known;
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
        // A recursive call is identified by name.
        self.defined.borrow_mut().insert(id, hash.finish());
        let attributes = NodeProto {
            attribute: function.attribute_proto.clone(),
            ..Default::default()
        };
        self.operator(&attributes, &|_| None, 0, &mut hash);
        for node in &function.node {
            self.operator(node, &|_| None, 0, &mut hash);
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

    /// The digest of a sparse tensor.
    pub(super) fn sparse(&self, sparse: &SparseTensorProto, hash: &mut Hash) {
        hash.all(&sparse.dims, i64::to_le_bytes);
        for tensor in sparse.values.iter().chain(&sparse.indices) {
            hash.digest(stored(tensor, self.externals(), self.point.key));
        }
    }

    /// A body: names inside are numbered, and captured values are identified by their digests.
    fn body(
        &self,
        graph: &GraphProto,
        outer: &dyn Fn(&str) -> Option<Digest>,
        depth: u64,
        hash: &mut Hash,
    ) {
        let made = graph
            .node
            .iter()
            .flat_map(|node| node.output.iter().map(String::as_str));
        let sparse = graph
            .sparse_initializer
            .iter()
            .filter_map(|sparse| Some(sparse.values.as_ref()?.name()));
        let names = graph.input.iter().map(|input| input.name());
        let names = names
            .chain(graph.initializer.iter().map(|tensor| tensor.name()))
            .chain(sparse)
            .chain(made);
        let numbers: HashMap<&str, u64> = names
            .enumerate()
            .map(|(number, name)| (name, number as u64))
            .collect();
        let inside = |name: &str| {
            let local = numbers.get(name).map(|&number| {
                let mut hash = Hash::new(self.point.key, "local");
                hash.number(depth);
                hash.number(number);
                hash.finish()
            });
            local.or_else(|| outer(name))
        };
        let reads = |name: &str, hash: &mut Hash| match inside(name) {
            Some(digest) => hash.digest(digest),
            None => hash.text(name),
        };
        hash.number(graph.input.len() as u64);
        graph.input.iter().for_each(|input| {
            hash.bytes(&input.r#type.clone().unwrap_or_default().encode_to_vec())
        });
        graph
            .initializer
            .iter()
            .for_each(|tensor| hash.digest(stored(tensor, self.externals(), self.point.key)));
        graph
            .sparse_initializer
            .iter()
            .for_each(|sparse| self.sparse(sparse, hash));
        hash.number(graph.node.len() as u64);
        for node in &graph.node {
            self.operator(node, &inside, depth, hash);
            hash.number(node.input.len() as u64);
            node.input.iter().for_each(|name| reads(name, hash));
            hash.number(node.output.len() as u64);
            node.output.iter().for_each(|name| reads(name, hash));
        }
        graph
            .output
            .iter()
            .for_each(|output| reads(output.name(), hash));
    }
}

/// A node without its bodies, but with all its attributes.
fn without_bodies(node: &NodeProto) -> NodeProto {
    let mut node = node.clone();
    for attribute in &mut node.attribute {
        (attribute.g, attribute.graphs) = (None, vec![]);
    }
    node
}
