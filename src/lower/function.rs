//! Calls of local functions that are normalizers, replaced by the bodies of the functions.

use std::collections::{HashMap, HashSet};

use super::{label, plain};
use crate::graph::editor::bodies;
use crate::graph::names::Names;
use crate::onnx::Model;
use crate::onnx::node::canonical_domain;
use crate::onnx::proto::{AttributeProto, FunctionProto, GraphProto, NodeProto};

/// What the name of a function, or the last part of its domain, has in it if it is a normalizer.
const WORDS: &[&str] =
    &["norm", "dyt", "dys", "dynamictanh", "dynamicsigmoid", "dynamicsoftsign", "mabn", "un1d", "un2d"];

/// Such names that are too short to be looked for inside others.
const NAMES: &[&str] = &["un", "bn", "pn", "ln", "dtn", "repbn"];

/// Inlines one level of calls; `None` where there are none to inline.
pub fn inline(model: &Model, skip: &dyn Fn(&str, &str) -> bool) -> Option<Model> {
    let functions = with_normalizers(model);
    let called = |node: &NodeProto| {
        let function = functions.get(&callee(node)).copied()?;
        (!skip(label(node), node.op_type())).then_some(function)
    };
    if functions.is_empty() || !model.graph().node.iter().any(|node| called(node).is_some()) {
        return None;
    }
    let mut taken = Names::of(model);
    let mut nodes = vec![];
    let mut inlined = false;
    for node in &model.graph().node {
        match called(node).and_then(|function| body(function, node, &mut taken)) {
            Some(body) => {
                inlined = true;
                nodes.extend(body);
            }
            None => nodes.push(node.clone()),
        }
    }
    if !inlined {
        return None;
    }
    let mut result = model.clone();
    result.graph_mut().node = nodes;
    forget_uncalled(&mut result, model);
    Some(result)
}

/// A function by domain, name and overload.
type Key<'m> = (String, &'m str, &'m str);

/// The function that a node calls, if it is a call.
fn callee(node: &NodeProto) -> Key<'_> {
    (canonical_domain(node.domain()).to_owned(), node.op_type(), node.overload())
}

/// The functions that are normalizers, and those that call one: a block has to be opened for what is in
/// it to be seen.
fn with_normalizers(model: &Model) -> HashMap<Key<'_>, &FunctionProto> {
    let mut found: HashMap<Key, &FunctionProto> = HashMap::new();
    loop {
        let before = found.len();
        for function in model.proto.functions.iter().filter(|function| speaks_the_same(model, function)) {
            if is_normalizer(function) || function.node.iter().any(|node| found.contains_key(&callee(node))) {
                let domain = canonical_domain(function.domain()).to_owned();
                found.insert((domain, function.name(), function.overload()), function);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

fn is_normalizer(function: &FunctionProto) -> bool {
    let last = function.domain().rsplit(['.', ':', '/']).next().unwrap_or_default();
    [plain(function.name()), plain(last)]
        .iter()
        .any(|name| NAMES.contains(&name.as_str()) || WORDS.iter().any(|word| name.contains(word)))
}

/// Whether the body means the same under the operator sets of the model.
fn speaks_the_same(model: &Model, function: &FunctionProto) -> bool {
    function.opset_import.iter().all(|set| model.opset(set.domain()) == set.version)
}

/// The body of a function for one call.
fn body(function: &FunctionProto, call: &NodeProto, taken: &mut Names) -> Option<Vec<NodeProto>> {
    let mut names: HashMap<&str, String> = HashMap::new();
    let absent = String::new();
    for (place, formal) in function.input.iter().enumerate() {
        names.insert(formal, call.input.get(place).unwrap_or(&absent).clone());
    }
    let made: HashSet<&str> =
        function.node.iter().flat_map(|node| node.output.iter().map(String::as_str)).collect();
    for (place, formal) in function.output.iter().enumerate() {
        // An output that is an input, or that the call leaves out, needs more than names.
        if !made.contains(formal.as_str()) {
            return None;
        }
        match call.output.get(place).filter(|name| !name.is_empty()) {
            Some(actual) => names.insert(formal, actual.clone()),
            None => names.insert(formal, taken.fresh(formal)),
        };
    }
    let mut nodes = vec![];
    for inner in &function.node {
        if bodies(inner).next().is_some() {
            return None;
        }
        let mut node = inner.clone();
        let mut attributes = vec![];
        for attribute in &node.attribute {
            match resolve(attribute, function, call) {
                Some(attribute) => attributes.extend(attribute),
                None => return None,
            }
        }
        node.attribute = attributes;
        for name in node.input.iter_mut().chain(&mut node.output).filter(|name| !name.is_empty()) {
            let known = names.get(name.as_str()).cloned();
            let actual = known.unwrap_or_else(|| taken.fresh(&format!("{}/{name}", label(call))));
            let formal =
                function.node.iter().flat_map(|n| n.input.iter().chain(&n.output)).find(|n| *n == name)?;
            names.entry(formal).or_insert_with(|| actual.clone());
            *name = actual;
        }
        let step = if inner.name().is_empty() { inner.op_type() } else { inner.name() };
        node.name = Some(taken.fresh(&format!("{}/{}/{step}", label(call), function.name())));
        if node.metadata_props.is_empty() {
            node.metadata_props = call.metadata_props.clone();
        }
        nodes.push(node);
    }
    Some(nodes)
}

/// An attribute of a body with the value that the call gives it; `Some(None)` where it is left out.
fn resolve(
    attribute: &AttributeProto,
    function: &FunctionProto,
    call: &NodeProto,
) -> Option<Option<AttributeProto>> {
    let wanted = attribute.ref_attr_name();
    if wanted.is_empty() {
        return Some(Some(attribute.clone()));
    }
    let given = call.attribute.iter().find(|given| given.name() == wanted);
    let default = function.attribute_proto.iter().find(|default| default.name() == wanted);
    let known = function.attribute.iter().any(|name| name == wanted);
    match given.or(default) {
        Some(value) => Some(Some(AttributeProto { name: attribute.name.clone(), ..value.clone() })),
        None if known => Some(None),
        None => None,
    }
}

/// Drops functions that were called before and are not any more.
fn forget_uncalled(result: &mut Model, before: &Model) {
    let calls = |model: &Model| {
        let mut names = HashSet::new();
        collect_calls(&model.graph().node, &mut names);
        for function in &model.proto.functions {
            collect_calls(&function.node, &mut names);
        }
        names
    };
    let (was, is) = (calls(before), calls(result));
    let key = |f: &FunctionProto| (canonical_domain(f.domain()).to_owned(), f.name().to_owned());
    result.proto.functions.retain(|function| is.contains(&key(function)) || !was.contains(&key(function)));
}

fn collect_calls(nodes: &[NodeProto], names: &mut HashSet<(String, String)>) {
    for node in nodes {
        names.insert((canonical_domain(node.domain()).to_owned(), node.op_type().to_owned()));
        bodies(node).for_each(|body: &GraphProto| collect_calls(&body.node, names));
    }
}
