//! Finds reasons why running a model in tract cannot verify it.

use std::collections::{HashMap, HashSet};

use tract_onnx::prelude::Tensor;

use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::Model;
use crate::onnx::node::bodies;
use crate::onnx::operator::Category;
use crate::onnx::proto::{Dim, GraphProto, NodeProto};
use crate::onnx::tensor;
use crate::onnx::tract_quirks::misread;
use crate::run::{Dims, Input, fix_shapes};
use crate::shape::facts::{Facts, extent};

/// The maximum number of pairs of operators that read the same value. With more pairs, tract takes
/// more than a few seconds to load the model.
const COMPARISONS: usize = 1 << 15;

/// The number of graph outputs that tract can search in the time that it takes to compare two
/// operators.
const OUTPUTS: usize = 32;

/// How many times faster tract compares two operators if the value that both read is a stored
/// constant.
const CONSTANTS: usize = 64;

/// The reason why tract's results on a model are not trusted. `None` if they are trusted.
pub(super) fn untrusted(graph: &GraphProto, model: &Model) -> Option<String> {
    graph.node.iter().find_map(|node| {
        let own = untrusted_node(node, graph, model)
            .map(|reason| format!("{} `{}`: {reason}", node.op_type(), node.label()));
        own.or_else(|| bodies(node).find_map(|body| untrusted(body, model)))
    })
}

fn untrusted_node(node: &NodeProto, graph: &GraphProto, model: &Model) -> Option<&'static str> {
    match node.op() {
        ("", "BatchNormalization") if has_mixed_types(node, graph) => {
            Some("tract needs its five inputs to be of one type")
        }
        _ if node.category().is_some_and(Category::is_random) => Some("its output is random"),
        ("", "Dropout") if may_drop(node, graph, model) => {
            Some("it may be dropping elements at random")
        }
        _ => misread(node, model.own_opset()),
    }
}

/// The reason why tract must not run a model at these sizes: the run would take too long or need
/// too much memory, or its values would not fit or be wrong. `None` if tract may run it, or if the
/// graph or the sizes are invalid.
pub(super) fn unbounded(model: &Model, dims: &Dims) -> Option<String> {
    let mut concrete = model.clone();
    fix_shapes(concrete.graph_mut(), &Input::from_model(model, dims).ok()?);
    let graph = Graph::new(&concrete).ok()?;
    let facts = Facts::infer(&graph);
    let mut nodes = graph.order().iter();
    if let Some(&node) = nodes.find(|&&node| facts.misfits(&graph, node)) {
        let node = graph.name(node);
        return Some(format!(
            "what `{node}` reads does not fit at these sizes: others may be given by --dim"
        ));
    }
    if let Some(place) = facts.out_of_bounds() {
        return Some(format!(
            "`{place}` has attributes out of bounds, or a value too large to be held"
        ));
    }
    let mut nodes = graph.order().iter();
    if nodes.any(|&node| cuts_all(&graph, &facts, node)) {
        return Some("a Slice leaves nothing of its value, of which tract leaves something".into());
    }
    if facts.can_be_run(&graph) {
        return None;
    }
    Some("a run takes more multiplications than a model of its size is known to take".into())
}

/// Whether a node is a Slice that returns no elements of a value that has some.
fn cuts_all(graph: &Graph, facts: &Facts, node: NodeId) -> bool {
    graph.is(node, "Slice")
        && is_empty(facts, graph.output(node, 0))
        && !is_empty(facts, graph.input(node, 0))
}

fn is_empty(facts: &Facts, value: Option<ValueId>) -> bool {
    let shape = value.and_then(|value| facts.shape(value));
    shape.is_some_and(|shape| shape.iter().any(|dim| extent(dim) == Some(0)))
}

/// The reason why tract would take long to load a model: the model has too many pairs of operators
/// that read the same value. After each change by a pass, tract compares the two operators of each
/// pair, and searches the outputs for both. `None` if the model has few such pairs.
pub(super) fn compares_too_many(model: &Model) -> Option<String> {
    let graph = model.graph();
    let readers = compared_readers(graph);
    let stored: HashSet<&str> = graph
        .initializer
        .iter()
        .map(|tensor| tensor.name())
        .collect();
    let mut all = 0_usize;
    for (name, &count) in &readers {
        let pairs = count.saturating_mul(count) / 2;
        all = all.saturating_add(if stored.contains(name) {
            pairs / CONSTANTS
        } else {
            pairs
        });
    }
    let comparisons = all.saturating_mul(1 + graph.output.len() / OUTPUTS);
    let (name, count) = readers
        .into_iter()
        .max_by_key(|&(name, count)| (count, name))?;
    (comparisons > COMPARISONS).then(|| {
        format!(
            "tract would compare all operators that read a value with each other, and {count} read `{name}`"
        )
    })
}

/// For each value, the number of its readers, which tract compares with each other.
fn compared_readers(graph: &GraphProto) -> HashMap<&str, usize> {
    let mut readers: HashMap<&str, usize> = HashMap::new();
    for name in graph.node.iter().flat_map(|node| &node.input) {
        if !name.is_empty() {
            *readers.entry(name).or_default() += 1;
        }
    }
    // tract replaces a Split by one reader of the whole value for each part, and compares each part
    // of a Concat with the other parts. So the parts of either operator count as readers of its
    // first input.
    for node in &graph.node {
        let parts = match node.op_type() {
            "Concat" => node.input.len(),
            "Split" => node.output.len(),
            _ => continue,
        };
        if let Some(name) = node.input.first() {
            *readers.entry(name).or_default() += parts;
        }
    }
    readers
}

/// Whether the inputs of a node have different known types.
fn has_mixed_types(node: &NodeProto, graph: &GraphProto) -> bool {
    let mut types = node
        .input
        .iter()
        .filter_map(|name| stored_type(graph, name).or_else(|| declared_type(graph, name)));
    types
        .next()
        .is_some_and(|first| types.any(|other| other != first))
}

fn stored_type(graph: &GraphProto, name: &str) -> Option<i32> {
    let mut stored = graph.initializer.iter();
    Some(stored.find(|tensor| tensor.name() == name)?.data_type())
}

fn declared_type(graph: &GraphProto, name: &str) -> Option<i32> {
    let inner = graph.input.iter().chain(&graph.value_info);
    let value = inner
        .chain(&graph.output)
        .find(|value| value.name() == name)?;
    Some(value.r#type.as_ref()?.tensor_type.as_ref()?.elem_type())
}

/// Whether a Dropout may be in training mode. A Dropout whose third input is missing or the
/// constant `false` is in inference mode.
fn may_drop(node: &NodeProto, graph: &GraphProto, model: &Model) -> bool {
    let Some(mode) = node.input.get(2).filter(|mode| !mode.is_empty()) else {
        return false;
    };
    let initializer = graph
        .initializer
        .iter()
        .find(|tensor| tensor.name() == mode);
    let maker = graph
        .node
        .iter()
        .find(|node| node.op() == ("", "Constant") && node.output.first() == Some(mode));
    let constant = initializer.or_else(|| maker?.attr_t("value").ok().flatten());
    let bytes = constant.and_then(|tensor| tensor::raw(tensor, model.externals()).ok());
    bytes.is_none_or(|bytes| bytes.iter().any(|&byte| byte != 0))
}

/// The name of an output that had no elements in any run, although its declaration has no extent of
/// 0. Such an output was not compared.
pub(super) fn unseen<'n>(
    model: &Model,
    names: &'n [String],
    runs: &[Vec<Tensor>],
) -> Option<&'n str> {
    let empty = (0..names.len())
        .filter(|&place| runs.iter().all(|outputs| outputs[place].len() == 0))
        .map(|place| names[place].as_str());
    empty
        .into_iter()
        .find(|name| !is_declared_empty(model.graph(), name))
}

/// Whether the declaration of an output has an extent of 0.
fn is_declared_empty(graph: &GraphProto, name: &str) -> bool {
    let declared = graph.output.iter().find(|output| output.name() == name);
    let shape =
        declared.and_then(|output| output.r#type.as_ref()?.tensor_type.as_ref()?.shape.as_ref());
    let zero = Some(Dim::DimValue(0));
    shape.is_some_and(|shape| shape.dim.iter().any(|dim| dim.value == zero))
}
