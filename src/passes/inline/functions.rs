//! Replaces calls of local functions by the bodies of the functions: calls of normalizers, or all
//! calls that can be replaced.

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

/// The limits of inlining. Inlining may write `NODES` nodes in total, or `TIMES_THE_NODES` times
/// the nodes of the graph if this is more. In total, the names of the written nodes and of their
/// outputs may have `NAME_BYTES` bytes for each node that may be written. Calls beyond a limit
/// stay.
const NODES: usize = 1 << 15;
const TIMES_THE_NODES: usize = 8;
const NAME_BYTES: usize = 1 << 9;

/// Inlines calls, and the calls inside of the called functions. `None` if no call can be inlined.
///
/// # Errors
/// If a function calls itself, which ONNX does not allow.
pub(crate) fn inline(
    model: &Model,
    lowering: Lowering,
    skip: &dyn Fn(&str, &str) -> bool,
) -> Result<Option<Model>> {
    let mut inliner = Inliner::new(model, lowering, skip)?;
    let nodes = &model.graph().node;
    if !nodes.iter().any(|node| inliner.called(node).is_some()) {
        return Ok(None);
    }
    inliner.reserve(nodes);
    for node in nodes {
        inliner.add(node);
    }
    if !inliner.is_changed {
        return Ok(None);
    }
    let mut result = model.with_nodes(inliner.nodes, vec![]);
    remove_uncalled(&mut result, model);
    Ok(Some(result))
}

/// The nodes of a graph while its calls are inlined.
struct Inliner<'m> {
    /// The functions to inline.
    functions: HashMap<FunctionId<'m>, &'m FunctionProto>,
    /// The number of nodes that replace a call of each function.
    sizes: HashMap<FunctionId<'m>, usize>,
    skip: &'m dyn Fn(&str, &str) -> bool,
    names: Names<'m>,
    nodes: Vec<NodeProto>,
    /// The number of nodes that may still be inlined.
    nodes_left: usize,
    /// The number of bytes that the names of inlined nodes may still have.
    name_bytes_left: usize,
    is_changed: bool,
}

impl<'m> Inliner<'m> {
    fn new(
        model: &'m Model,
        lowering: Lowering,
        skip: &'m dyn Fn(&str, &str) -> bool,
    ) -> Result<Self> {
        let count = model.graph().node.len();
        let nodes_left = NODES.max(count.saturating_mul(TIMES_THE_NODES));
        Ok(Inliner {
            sizes: sizes(model, &|_| 1)?,
            functions: to_inline(model, lowering),
            skip,
            names: Names::new(model),
            nodes: vec![],
            nodes_left,
            name_bytes_left: nodes_left.saturating_mul(NAME_BYTES),
            is_changed: false,
        })
    }

    /// The function to inline that a node calls. `None` if the node calls no such function or is
    /// skipped.
    fn called(&self, node: &NodeProto) -> Option<&'m FunctionProto> {
        let function = self.functions.get(&callee(node)).copied()?;
        (!(self.skip)(label(node), node.op_type())).then_some(function)
    }

    /// The number of nodes that replace a node. `None` unless the node calls a function to inline.
    fn size(&self, node: &NodeProto) -> Option<usize> {
        self.called(node)?;
        self.sizes.get(&callee(node)).copied()
    }

    fn reserve(&mut self, nodes: &[NodeProto]) {
        let sizes = nodes.iter().map(|node| self.size(node).unwrap_or(1));
        let expected = sizes.fold(0, usize::saturating_add);
        self.nodes.reserve(expected.min(self.nodes_left));
    }

    /// Adds a node, or the nodes that replace it if it is a call within the limits.
    fn add(&mut self, node: &NodeProto) {
        let size = self.size(node);
        let Some(left) = size.and_then(|size| self.nodes_left.checked_sub(size)) else {
            self.nodes.push(node.clone());
            return;
        };
        self.nodes_left = left;
        let mut open = vec![(node.clone(), label(node).to_owned())];
        while let Some((node, path)) = open.pop() {
            match self.body(&node, &path) {
                Some(body) => open.extend(body.into_iter().rev()),
                None => self.nodes.push(node),
            }
        }
    }

    /// The body of the function that a node calls, as described at [`body`]. `None` if the node
    /// stays.
    fn body(&mut self, node: &NodeProto, path: &str) -> Option<Vec<(NodeProto, String)>> {
        let function = self.called(node).filter(|_| self.name_bytes_left > 0)?;
        let body = body(function, node, path, &mut self.names)?;
        self.is_changed = true;
        let names = body
            .iter()
            .flat_map(|(node, _)| node.name.iter().chain(&node.output));
        let bytes = names.map(String::len).sum();
        self.name_bytes_left = self.name_bytes_left.saturating_sub(bytes);
        Some(body)
    }
}

/// A function, by domain, name and overload.
pub(crate) type FunctionId<'m> = (&'m str, &'m str, &'m str);

/// The identifier of the function that a node calls if it is a call: its domain, operator and
/// overload.
pub(crate) fn callee(node: &NodeProto) -> FunctionId<'_> {
    (
        canonical_domain(node.domain()),
        node.op_type(),
        node.overload(),
    )
}

/// The name of a function that has the name of a known operator or is in the domain of ONNX, if
/// there is one. Engines differ in whether they run the function or the operator.
pub(crate) fn redefined(model: &Model) -> Option<&str> {
    let mut functions = model.proto.functions.iter();
    let redefined = functions.find(|function| {
        let (domain, name) = (function.domain(), function.name());
        canonical_domain(domain).is_empty() || Category::from_operator(domain, name).is_some()
    });
    redefined.map(FunctionProto::name)
}

/// The number of nodes that replace a call of each function, including the calls in its body.
/// `weigh` counts a node that is not a call.
///
/// # Errors
/// If a function calls itself.
pub(crate) fn sizes<'m>(
    model: &'m Model,
    weigh: &dyn Fn(&NodeProto) -> usize,
) -> Result<HashMap<FunctionId<'m>, usize>> {
    let functions = functions_by_id(model);
    let mut sizes: HashMap<FunctionId, usize> = HashMap::new();
    // The search is depth-first without recursion. A function is open while the functions that it
    // calls are counted.
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
            let mut size = 0_usize;
            for node in &function.node {
                let called = sizes.get(&callee(node)).copied();
                size = size.saturating_add(called.unwrap_or_else(|| weigh(node)));
            }
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

fn functions_by_id(model: &Model) -> HashMap<FunctionId<'_>, &FunctionProto> {
    let functions = model.proto.functions.iter();
    functions
        .map(|function| (key(function), function))
        .collect()
}

/// The functions to inline, including all that call one of them, directly or indirectly. A function
/// that imports other operator sets than the model is not inlined.
fn to_inline(model: &Model, lowering: Lowering) -> HashMap<FunctionId<'_>, &FunctionProto> {
    let functions: Vec<_> = model
        .proto
        .functions
        .iter()
        .filter(|function| has_opsets_of_model(model, function))
        .collect();
    let mut callers: HashMap<FunctionId, Vec<&FunctionProto>> = HashMap::new();
    for function in &functions {
        let calls: HashSet<FunctionId> = function.node.iter().map(callee).collect();
        calls
            .into_iter()
            .for_each(|call| callers.entry(call).or_default().push(function));
    }
    let mut found: HashMap<FunctionId, &FunctionProto> = HashMap::new();
    let mut open: Vec<_> = functions
        .into_iter()
        .filter(|function| {
            is_normalizer(function) || (lowering == Lowering::All && has_operators(function))
        })
        .collect();
    while let Some(function) = open.pop() {
        if found.insert(key(function), function).is_none() {
            open.extend(callers.get(&key(function)).into_iter().flatten());
        }
    }
    found
}

/// The identifier by which calls name a function.
pub(crate) fn key(function: &FunctionProto) -> FunctionId<'_> {
    (
        canonical_domain(function.domain()),
        function.name(),
        function.overload(),
    )
}

/// Whether the function is a normalizer, by its name or by the last part of its domain.
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

/// Whether the function contains an operator of ONNX or onnxruntime.
fn has_operators(function: &FunctionProto) -> bool {
    function
        .node
        .iter()
        .any(|node| matches!(canonical_domain(node.domain()), "" | "com.microsoft"))
}

/// Whether a function imports the same versions of operator sets as the model.
fn has_opsets_of_model(model: &Model, function: &FunctionProto) -> bool {
    function
        .opset_import
        .iter()
        .all(|set| model.opset(set.domain()) == set.version)
}

/// The nodes of a function for one call. Each node comes with a prefix: if the node is itself
/// inlined later, the names of its new values begin with this prefix. `None` if a node of the
/// function has a body, or if its names or attributes cannot be resolved.
fn body(
    function: &FunctionProto,
    call: &NodeProto,
    path: &str,
    taken: &mut Names,
) -> Option<Vec<(NodeProto, String)>> {
    let mut names = bound_names(function, call, taken)?;
    let mut nodes = vec![];
    for inner in &function.node {
        if bodies(inner).next().is_some() {
            return None;
        }
        let mut node = inner.clone();
        node.attribute = resolved_attributes(inner, function, call)?;
        let formals = inner.input.iter().chain(&inner.output);
        let actuals = node.input.iter_mut().chain(&mut node.output);
        for (formal, actual) in formals.zip(actuals) {
            if !formal.is_empty() {
                names
                    .entry(formal)
                    .or_insert_with(|| taken.fresh(&format!("{path}/{formal}")))
                    .clone_into(actual);
            }
        }
        let step = match inner.name() {
            "" => inner.op_type(),
            name => name,
        };
        node.name = Some(taken.fresh(&format!("{}/{}/{step}", label(call), function.name())));
        if node.metadata_props.is_empty() {
            node.metadata_props = call.metadata_props.clone();
        }
        move_to(&mut node, regions::region_path(call));
        let inner_path = match inner.name() {
            "" => first_output(&node).to_owned(),
            name => format!("{path}/{name}"),
        };
        nodes.push((node, inner_path));
    }
    Some(nodes)
}

/// Maps the inputs and outputs of the function to the names of values at the call. `None` if an
/// output of the function is not the result of one of its nodes, because then renaming is not
/// enough.
fn bound_names<'f>(
    function: &'f FunctionProto,
    call: &NodeProto,
    taken: &mut Names,
) -> Option<HashMap<&'f str, String>> {
    let mut names: HashMap<&str, String> = HashMap::new();
    for (place, formal) in function.input.iter().enumerate() {
        let actual = call.input.get(place).cloned().unwrap_or_default();
        names.insert(formal, actual);
    }
    let outputs = function.node.iter().flat_map(|node| &node.output);
    let made: HashSet<&str> = outputs.map(String::as_str).collect();
    for (place, formal) in function.output.iter().enumerate() {
        if !made.contains(formal.as_str()) {
            return None;
        }
        let actual = match call.output.get(place).filter(|name| !name.is_empty()) {
            Some(actual) => actual.clone(),
            None => taken.fresh(formal),
        };
        names.insert(formal, actual);
    }
    Some(names)
}

/// The attributes of a node in a function, for one call. `None` if one of them refers to an
/// attribute that the function does not declare.
fn resolved_attributes(
    node: &NodeProto,
    function: &FunctionProto,
    call: &NodeProto,
) -> Option<Vec<AttributeProto>> {
    let mut attributes = vec![];
    for attribute in &node.attribute {
        attributes.extend(resolve(attribute, function, call)?);
    }
    Some(attributes)
}

fn first_output(node: &NodeProto) -> &str {
    let mut outputs = node.output.iter().map(String::as_str);
    outputs.find(|name| !name.is_empty()).unwrap_or_default()
}

/// Resolves an attribute of a body for one call. `Some(None)` if the call leaves the attribute out.
/// `None` if the function does not declare it.
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
    let is_declared = function.attribute.iter().any(|name| name == wanted);
    match given.or(default) {
        Some(value) => Some(Some(AttributeProto {
            name: attribute.name.clone(),
            ..value.clone()
        })),
        None if is_declared => Some(None),
        None => None,
    }
}

/// Removes functions that are no longer called. Functions that were never called stay.
fn remove_uncalled(result: &mut Model, before: &Model) {
    let (was, is) = (called_functions(before), called_functions(result));
    let functions = result.proto.functions.iter().map(key);
    let kept: Vec<bool> = functions
        .map(|key| is.contains(&key) || !was.contains(&key))
        .collect();
    let mut kept = kept.into_iter();
    result.proto.functions.retain(|_| kept.next() == Some(true));
}

/// The functions that the graph calls, directly or indirectly.
fn called_functions(model: &Model) -> HashSet<FunctionId<'_>> {
    let functions = functions_by_id(model);
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
