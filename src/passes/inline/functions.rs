//! Calls of local functions, replaced by the bodies of the functions: of normalizers, or of all that can be.

use std::collections::{HashMap, HashSet};

use crate::affine::recognize;
use crate::error::{Error, Result};
use crate::ir::names::Names;
use crate::ir::regions::{self, move_to};
use crate::onnx::Model;
use crate::onnx::node::bodies;
use crate::onnx::node::canonical_domain;
use crate::onnx::operator::Category;
use crate::onnx::proto::{AttributeProto, FunctionProto, NodeProto};
use crate::passes::inline::{Lowering, label, plain};

/// The limit for inlined nodes of a graph, the limit for each of its nodes, and the limit for the
/// bytes of their names. Calls beyond a limit stay.
const NODES: usize = 1 << 15;
const TIMES_THE_NODES: usize = 8;
const NAME_BYTES: usize = 1 << 9;

/// Inlines calls, and the calls inside of them; `None` if there are none.
///
/// # Errors
/// Where a function calls itself, which ONNX does not allow.
pub fn inline(
    model: &Model,
    lowering: Lowering,
    skip: &dyn Fn(&str, &str) -> bool,
) -> Result<Option<Model>> {
    let sizes = sizes(model, &|_| 1)?;
    let functions = to_inline(model, lowering);
    let called = |node: &NodeProto| {
        let function = functions.get(&callee(node)).copied()?;
        (!skip(label(node), node.op_type())).then_some(function)
    };
    if functions.is_empty() || !model.graph().node.iter().any(|node| called(node).is_some()) {
        return Ok(None);
    }
    let mut taken = Names::new(model);
    let mut left = NODES.max(model.graph().node.len().saturating_mul(TIMES_THE_NODES));
    let size = |node: &NodeProto| {
        called(node)
            .and_then(|_| sizes.get(&callee(node)))
            .map_or(1, |&size| size)
    };
    let expected = model
        .graph()
        .node
        .iter()
        .map(size)
        .fold(0, usize::saturating_add);
    let mut nodes = Vec::with_capacity(expected.min(left));
    let mut names = left.saturating_mul(NAME_BYTES);
    let mut is_changed = false;
    for node in &model.graph().node {
        let fits = sizes
            .get(&callee(node))
            .and_then(|&size| left.checked_sub(size));
        let Some(rest) = fits.filter(|_| called(node).is_some()) else {
            nodes.push(node.clone());
            continue;
        };
        left = rest;
        let mut open = vec![(node.clone(), label(node).to_owned())];
        while let Some((node, way)) = open.pop() {
            let function = called(&node).filter(|_| names > 0);
            match function.and_then(|function| body(function, &node, &way, &mut taken)) {
                Some(body) => {
                    is_changed = true;
                    let made = body
                        .iter()
                        .flat_map(|(node, _)| node.name.iter().chain(&node.output));
                    names = names.saturating_sub(made.map(String::len).sum());
                    open.extend(body.into_iter().rev());
                }
                None => nodes.push(node),
            }
        }
    }
    if !is_changed {
        return Ok(None);
    }
    let mut result = model.with_nodes(nodes, vec![]);
    forget_uncalled(&mut result, model);
    Ok(Some(result))
}

/// A function by domain, name and overload.
pub(crate) type FunctionId<'m> = (&'m str, &'m str, &'m str);

/// The function that a node calls, if it is a call.
pub(crate) fn callee(node: &NodeProto) -> FunctionId<'_> {
    (
        canonical_domain(node.domain()),
        node.op_type(),
        node.overload(),
    )
}

/// A function of a model that has the name of an operator: engines differ in which of the two they run.
pub(crate) fn redefined(model: &Model) -> Option<&str> {
    let mut names = model
        .proto
        .functions
        .iter()
        .map(|function| (function.domain(), function.name()));
    let is_operator = |(domain, name): &(&str, &str)| {
        canonical_domain(domain).is_empty() || Category::from_operator(domain, name).is_some()
    };
    names.find(is_operator).map(|(_, name)| name)
}

/// How many nodes a call of each function becomes, with all that it calls in turn; other nodes count for what `weigh` says.
pub(crate) fn sizes<'m>(
    model: &'m Model,
    weigh: &dyn Fn(&NodeProto) -> usize,
) -> Result<HashMap<FunctionId<'m>, usize>> {
    let functions: HashMap<FunctionId, &FunctionProto> = model
        .proto
        .functions
        .iter()
        .map(|function| (key(function), function))
        .collect();
    let mut sizes: HashMap<FunctionId, usize> = HashMap::new();
    // Depth-first without recursion: a function is open while those that it calls are counted.
    let mut open: HashSet<FunctionId> = HashSet::new();
    let mut stack: Vec<&FunctionProto> = model.proto.functions.iter().collect();
    while let Some(&function) = stack.last() {
        let calls = function
            .node
            .iter()
            .map(callee)
            .filter(|call| functions.contains_key(call));
        let waiting: HashSet<FunctionId> = calls.filter(|call| !sizes.contains_key(call)).collect();
        if waiting.is_empty() {
            let size = |node| {
                sizes
                    .get(&callee(node))
                    .copied()
                    .unwrap_or_else(|| weigh(node))
            };
            let size = function
                .node
                .iter()
                .map(size)
                .fold(0, usize::saturating_add);
            sizes.insert(key(function), size);
            stack.pop();
            continue;
        }
        open.insert(key(function));
        if let Some((_, name, _)) = waiting.iter().find(|call| open.contains(*call)) {
            let reason = "the function calls itself, which ONNX does not allow".to_owned();
            return Err(Error::Graph {
                file: model.file(),
                node: (*name).to_owned(),
                reason,
            });
        }
        stack.extend(waiting.iter().map(|call| functions[call]));
    }
    Ok(sizes)
}

/// The functions to inline, and the functions that call one of them.
fn to_inline(model: &Model, lowering: Lowering) -> HashMap<FunctionId<'_>, &FunctionProto> {
    let functions: Vec<_> = model
        .proto
        .functions
        .iter()
        .filter(|function| speaks_the_same(model, function))
        .collect();
    let mut callers: HashMap<FunctionId, Vec<&FunctionProto>> = HashMap::new();
    for function in &functions {
        let calls: HashSet<FunctionId> = function.node.iter().map(callee).collect();
        calls
            .into_iter()
            .for_each(|call| callers.entry(call).or_default().push(function));
    }
    let mut found: HashMap<FunctionId, &FunctionProto> = HashMap::new();
    let is_meant = |function: &&FunctionProto| {
        is_normalizer(function) || (lowering == Lowering::All && has_operators(function))
    };
    let mut open: Vec<_> = functions.into_iter().filter(is_meant).collect();
    while let Some(function) = open.pop() {
        if found.insert(key(function), function).is_none() {
            open.extend(callers.get(&key(function)).into_iter().flatten());
        }
    }
    found
}

/// The identity by which nodes call the function.
pub(crate) fn key(function: &FunctionProto) -> FunctionId<'_> {
    (
        canonical_domain(function.domain()),
        function.name(),
        function.overload(),
    )
}

/// Whether the function is a normalizer by its name, or by the last part of its domain.
fn is_normalizer(function: &FunctionProto) -> bool {
    let last = function
        .domain()
        .rsplit(['.', ':', '/'])
        .next()
        .unwrap_or_default();
    [function.name(), last]
        .iter()
        .any(|name| recognize::is_named(&plain(name)))
}

/// Whether it has an operator of ONNX or onnxruntime.
fn has_operators(function: &FunctionProto) -> bool {
    function
        .node
        .iter()
        .any(|node| matches!(canonical_domain(node.domain()), "" | "com.microsoft"))
}

/// Whether the body means the same under the operator sets of the model.
fn speaks_the_same(model: &Model, function: &FunctionProto) -> bool {
    function
        .opset_import
        .iter()
        .all(|set| model.opset(set.domain()) == set.version)
}

/// The body of a function for one call, and the way to each node of it: what the names of the values begin with that
/// it makes if it is a call itself.
fn body(
    function: &FunctionProto,
    call: &NodeProto,
    way: &str,
    taken: &mut Names,
) -> Option<Vec<(NodeProto, String)>> {
    let mut names: HashMap<&str, String> = HashMap::new();
    let absent = String::new();
    for (place, formal) in function.input.iter().enumerate() {
        names.insert(formal, call.input.get(place).unwrap_or(&absent).clone());
    }
    let made: HashSet<&str> = function
        .node
        .iter()
        .flat_map(|node| node.output.iter().map(String::as_str))
        .collect();
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
        let formals = inner.input.iter().chain(&inner.output);
        let names_of = node.input.iter_mut().chain(&mut node.output);
        for (formal, name) in formals
            .zip(names_of)
            .filter(|(formal, _)| !formal.is_empty())
        {
            let actual = || taken.fresh(&format!("{way}/{formal}"));
            names.entry(formal).or_insert_with(actual).clone_into(name);
        }
        let step = if inner.name().is_empty() {
            inner.op_type()
        } else {
            inner.name()
        };
        node.name = Some(taken.fresh(&format!("{}/{}/{step}", label(call), function.name())));
        if node.metadata_props.is_empty() {
            node.metadata_props = call.metadata_props.clone();
        }
        move_to(&mut node, regions::way(call));
        let way = match inner.name() {
            "" => node
                .output
                .iter()
                .find(|name| !name.is_empty())
                .cloned()
                .unwrap_or_default(),
            name => format!("{way}/{name}"),
        };
        nodes.push((node, way));
    }
    Some(nodes)
}

/// An attribute of a body with the value that the call gives it; `Some(None)` where it is left out.
pub(crate) fn resolve(
    attribute: &AttributeProto,
    function: &FunctionProto,
    call: &NodeProto,
) -> Option<Option<AttributeProto>> {
    let wanted = attribute.ref_attr_name();
    if wanted.is_empty() {
        return Some(Some(attribute.clone()));
    }
    let given = call.attribute.iter().find(|given| given.name() == wanted);
    let default = function
        .attribute_proto
        .iter()
        .find(|default| default.name() == wanted);
    let known = function.attribute.iter().any(|name| name == wanted);
    match given.or(default) {
        Some(value) => Some(Some(AttributeProto {
            name: attribute.name.clone(),
            ..value.clone()
        })),
        None if known => Some(None),
        None => None,
    }
}

/// Drops functions that were called before and are not any more.
fn forget_uncalled(result: &mut Model, before: &Model) {
    let (was, is) = (called_functions(before), called_functions(result));
    let functions = result.proto.functions.iter().map(key);
    let kept: Vec<bool> = functions
        .map(|key| is.contains(&key) || !was.contains(&key))
        .collect();
    let mut kept = kept.into_iter();
    result.proto.functions.retain(|_| kept.next() == Some(true));
}

/// The functions that the graph calls, directly or not.
fn called_functions(model: &Model) -> HashSet<FunctionId<'_>> {
    let functions: HashMap<FunctionId, &FunctionProto> = model
        .proto
        .functions
        .iter()
        .map(|function| (key(function), function))
        .collect();
    let mut found = HashSet::new();
    let mut open: Vec<&NodeProto> = model.graph().node.iter().collect();
    while let Some(node) = open.pop() {
        open.extend(bodies(node).flat_map(|body| &body.node));
        let call = callee(node);
        if let Some(function) = functions.get(&call)
            && found.insert(call)
        {
            open.extend(&function.node);
        }
    }
    found
}
