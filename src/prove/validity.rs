//! Checks that the nodes of a graph are operators as ONNX defines them, because no engine accepts
//! an invalid graph.
//!
//! For every node in ONNX's own domain, checks that its operator set has the operator, with the
//! attributes of the node and their types. The numbers of inputs and outputs and their element
//! types must be allowed, axes must be in range, and attributes must not contradict each other.
//! Unknown types and extents are accepted.

use std::collections::{HashMap, HashSet};

use crate::analysis::Analysis;
use crate::ir::NodeId;
use crate::ir::axes::{axes, permutation};
use crate::ir::regions::region_path;
use crate::onnx::Model;
use crate::onnx::node::bodies;
use crate::onnx::operator::input_at;
use crate::onnx::proto::{AttributeProto, NodeProto};
use crate::onnx::schema::{Arity, Formal, OperatorDefinition, OperatorSchema, Sort, definition};
use crate::onnx::tensor::DataType;

/// A node that is invalid in ONNX.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    /// The label of the node.
    pub at: String,
    /// The reason.
    pub reason: String,
}

/// The operator and the first output of each node of a model, including nodes of bodies.
///
/// Only these nodes are checked. Nodes that replace an opaque operator are not among them, since
/// they may belong to a later operator set.
pub(super) fn own_nodes(model: &Model) -> HashSet<(String, String)> {
    let (mut own, mut open) = (HashSet::new(), vec![model.graph()]);
    while let Some(graph) = open.pop() {
        for node in &graph.node {
            own.insert((node.op_type().to_owned(), first_output(node).to_owned()));
            open.extend(bodies(node));
        }
    }
    own
}

fn first_output(node: &NodeProto) -> &str {
    node.output
        .iter()
        .find(|name| !name.is_empty())
        .map_or("", String::as_str)
}

/// The invalid nodes of a graph among `own`.
pub(super) fn faults(analysis: &Analysis, own: &HashSet<(String, String)>) -> Vec<Fault> {
    let graph = &analysis.graph;
    let functions = &graph.model().proto.functions;
    let mut faults = vec![];
    for &id in graph.order() {
        let node = graph.node(id);
        let inside = first_output(node)
            .strip_prefix(region_path(node))
            .unwrap_or_default();
        let is_own = own.contains(&(node.op_type().to_owned(), inside.to_owned()));
        let is_function = functions
            .iter()
            .any(|function| function.name() == node.op_type());
        if node.op().0.is_empty() && is_own && !is_function {
            let found = fault(id, node, analysis);
            faults.extend(found.map(|reason| Fault {
                at: node.label(),
                reason,
            }));
        }
    }
    faults
}

/// Checks the folded model's nodes against the specification.
pub(super) struct Valid<'v> {
    /// The reasons for which nodes of the original are invalid. Nodes of the folded model may be
    /// invalid for the same reasons.
    pub faults: HashSet<String>,
    /// The folded model's own nodes.
    pub own: &'v HashSet<(String, String)>,
}

impl Valid<'_> {
    /// The first invalid node of the folded model whose reason does not apply to the original.
    pub(super) fn new_fault(&self, fused: &Analysis) -> Option<Fault> {
        let faults = faults(fused, self.own);
        faults
            .into_iter()
            .find(|fault| !self.faults.contains(&fault.reason))
    }
}

/// The reason for which a node is invalid. `None` if it is valid, or if its operator is unknown.
fn fault(id: NodeId, node: &NodeProto, analysis: &Analysis) -> Option<String> {
    let (op, opset) = (node.op_type(), analysis.graph.model().own_opset());
    let schema = match definition(op, opset) {
        OperatorDefinition::Is(schema) if !schema.is_deprecated => schema,
        OperatorDefinition::Is(_) | OperatorDefinition::Later => {
            return Some(format!("the operator set has no {op}"));
        }
        OperatorDefinition::Unknown => return None,
    };
    wrong_attribute(node, schema)
        .or_else(|| wrong_count(node, schema))
        .or_else(|| wrong_type(id, node, schema, analysis))
        .or_else(|| wrong_axis(id, node, analysis))
        .or_else(|| said_twice(node))
}

fn wrong_attribute(node: &NodeProto, schema: &OperatorSchema) -> Option<String> {
    for attribute in &node.attribute {
        let name = attribute.name();
        let Some(declared) = schema
            .attributes
            .iter()
            .find(|declared| declared.name == name)
        else {
            return Some(format!(
                "{} has no attribute `{name}` in this operator set",
                node.op_type()
            ));
        };
        // Old files omit the type.
        let given = attribute.r#type.filter(|&given| given != 0);
        if let (Some(declared), Some(given)) = (declared.type_code, given)
            && declared != given
        {
            return Some(format!("the attribute `{name}` is of another type"));
        }
    }
    let missing = schema
        .attributes
        .iter()
        .find(|declared| declared.is_required && named(node, declared.name).is_none())?;
    Some(format!(
        "{} needs the attribute `{}`",
        node.op_type(),
        missing.name
    ))
}

fn named<'n>(node: &'n NodeProto, name: &str) -> Option<&'n AttributeProto> {
    node.attribute
        .iter()
        .find(|attribute| attribute.name() == name)
}

/// Whether the number of these inputs or outputs, and which of them are left out, fit the
/// operator's definition.
fn fits(formals: &[Formal], names: &[String]) -> bool {
    let is_many = formals
        .last()
        .is_some_and(|formal| matches!(formal.count, Arity::Many | Arity::ManyOfAnyType));
    let has_all = formals.iter().enumerate().all(|(slot, formal)| {
        formal.count != Arity::Once || names.get(slot).is_some_and(|name| !name.is_empty())
    });
    has_all && (is_many || names.len() <= formals.len())
}

fn wrong_count(node: &NodeProto, schema: &OperatorSchema) -> Option<String> {
    if !fits(&schema.inputs, &node.input) {
        return Some(format!(
            "{} does not take {} inputs",
            node.op_type(),
            node.input.len()
        ));
    }
    // Too few outputs are valid, because an output may be left out.
    let is_many = schema
        .outputs
        .last()
        .is_some_and(|formal| formal.count != Arity::Once);
    let too_many = node.output.len() > schema.outputs.len() && !is_many;
    too_many.then(|| {
        format!(
            "{} does not make {} outputs",
            node.op_type(),
            node.output.len()
        )
    })
}

/// Finds an input whose element type is not allowed, or differs from that of another input with the
/// same type variable.
fn wrong_type(
    id: NodeId,
    node: &NodeProto,
    schema: &OperatorSchema,
    analysis: &Analysis,
) -> Option<String> {
    let (graph, facts) = (&analysis.graph, &analysis.facts);
    let mut bound: HashMap<usize, DataType> = HashMap::new();
    for (slot, value) in graph.inputs(id).iter().enumerate() {
        let Some(data_type) = value.and_then(|value| facts.data_type(value)) else {
            continue;
        };
        let Some(formal) = schema.inputs.get(slot).or(schema.inputs.last()) else {
            continue;
        };
        let allowed = match formal.sort {
            Sort::Any => continue,
            Sort::OneOf(types) => Some(types),
            Sort::Variable(variable) => schema.variables[variable],
        };
        // If the input may be a sequence, its type is not checked, because nothing is known about
        // its elements.
        let Some(allowed) = allowed else { continue };
        if !allowed.contains(data_type) {
            return Some(format!(
                "{} does not take {data_type} as input {slot}",
                node.op_type()
            ));
        }
        if let (Sort::Variable(variable), true) =
            (formal.sort, formal.count != Arity::ManyOfAnyType)
            && *bound.entry(variable).or_insert(data_type) != data_type
        {
            return Some(format!(
                "the inputs of {} are of different types",
                node.op_type()
            ));
        }
    }
    None
}

/// Operators whose attribute `axis` names an axis of the first input.
const ALONG: &[&str] = &[
    "ArgMax",
    "ArgMin",
    "Compress",
    "Concat",
    "Gather",
    "GatherElements",
    "Hardmax",
    "LayerNormalization",
    "LogSoftmax",
    "LpNormalization",
    "RMSNormalization",
    "ScatterElements",
    "Softmax",
    "Split",
    "TopK",
    "Unique",
];

/// Operators whose attribute or input `axes` names axes of the first input.
const ALONG_SEVERAL: &[&str] = &[
    "MeanVarianceNormalization",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
    "Slice",
    "Squeeze",
    "Unsqueeze",
];

/// Finds an axis that the first input does not have.
fn wrong_axis(id: NodeId, node: &NodeProto, analysis: &Analysis) -> Option<String> {
    let (op, rank) = (node.op_type(), rank(id, 0, analysis)?);
    if op == "Transpose" {
        let perm = node.attr_ints("perm").ok()??;
        return permutation(Some(perm), rank)
            .err()
            .map(|_| format!("`perm` orders no {rank} axes"));
    }
    // The axis of a Flatten may equal the rank, and so may the axis of a Softmax before operator
    // set 13.
    let ends_behind =
        op == "Flatten" || analysis.graph.model().own_opset() < 13 && op.contains("Softmax");
    if ALONG.contains(&op) || ["Flatten", "OneHot"].contains(&op) {
        let axis = node.attr_i("axis").ok()??;
        let all = rank;
        let rank = (rank + usize::from(op == "OneHot")) as i64;
        let is_inside = (-rank..rank).contains(&axis) || ends_behind && axis == rank;
        return (!is_inside).then(|| out_of_range(op, axis, all));
    }
    if !ALONG_SEVERAL.contains(&op) {
        return None;
    }
    let named = named_axes(id, node, analysis)?;
    let all = rank;
    let rank = rank + if op == "Unsqueeze" { named.len() } else { 0 };
    match axes(&named, rank) {
        Err(_) => {
            let mut named = named.iter();
            let wrong = named.find(|&&axis| axes(&[axis], rank).is_err())?;
            Some(out_of_range(op, *wrong, all))
        }
        Ok(mut found) => {
            found.sort_unstable();
            found.dedup();
            (found.len() < named.len()).then(|| format!("{op} names an axis twice"))
        }
    }
}

fn out_of_range(op: &str, axis: i64, rank: usize) -> String {
    format!("axis {axis} of {op} is out of range of {rank} axes")
}

/// The rank of an input. `None` if it is unknown.
fn rank(id: NodeId, slot: usize, analysis: &Analysis) -> Option<usize> {
    analysis.facts.rank(analysis.graph.input(id, slot)?)
}

fn named_axes(id: NodeId, node: &NodeProto, analysis: &Analysis) -> Option<Vec<i64>> {
    let opset = analysis.graph.model().own_opset();
    match input_at(node.op_type(), "axes", opset) {
        Some(slot) => {
            let value = analysis.graph.input(id, slot)?;
            analysis
                .constants
                .ints(value)
                .filter(|_| analysis.constants.is_constant(value))
        }
        None => node.attr_ints("axes").ok()?.map(<[i64]>::to_vec),
    }
}

/// Finds a contradiction between two attributes: explicit padding and `auto_pad`, or `num_outputs`
/// and the lengths of a Split's parts.
fn said_twice(node: &NodeProto) -> Option<String> {
    let rule = named(node, "auto_pad").filter(|rule| rule.s() != b"NOTSET");
    let has_lengths = node.input.get(1).is_some_and(|name| !name.is_empty());
    if node.op_type() == "Split" && has_lengths && named(node, "num_outputs").is_some() {
        return Some("Split has `num_outputs` beside the lengths of its parts".to_owned());
    }
    let is_twice = rule.is_some() && named(node, "pads").is_some();
    is_twice.then(|| format!("{} has `auto_pad` beside `pads`", node.op_type()))
}
