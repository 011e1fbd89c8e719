//! Checks whether tract can load a model and run it on its inputs.

use std::collections::HashSet;

use tract_core::internal::bail;
use tract_onnx::Onnx;
use tract_onnx::prelude::{TValue, TractResult};

use super::failure::{Failure, Stage};
use super::input::Input;
use super::origins::Origins;
use crate::onnx::Model;
use crate::onnx::node::{bodies, constant_tensor, states};
use crate::onnx::operator::Category;
use crate::onnx::proto::{GraphProto, NodeProto, TensorProto};
use crate::onnx::tract_quirks::{is_read, read_as_one};

/// The maximum number of elements of each input. This many float32 elements take 32 GB.
const MOST: usize = 1 << 33;

/// Refuses an input with more elements than memory can hold.
pub(super) fn check_size(input: &Input) -> Result<(), Failure> {
    let Input { name, shape, .. } = input;
    let elements = shape
        .iter()
        .try_fold(1_usize, |all, &extent| all.checked_mul(extent));
    if elements.is_some_and(|elements| elements <= MOST) || shape.contains(&0) {
        return Ok(());
    }
    let reason =
        format!("the input `{name}` would have more elements than are run with: {shape:?}");
    Err(Failure::new(Stage::Load, reason))
}

/// Finds a Scan whose body has a product. On such a Scan, tract's declutter may not terminate,
/// because it may move operators out of the body and back again without end.
pub(super) fn endless(graph: &GraphProto) -> Option<&NodeProto> {
    graph
        .node
        .iter()
        .find(|node| node.op() == ("", "Scan") && bodies(node).any(has_product))
        .or_else(|| graph.node.iter().flat_map(bodies).find_map(endless))
}

fn has_product(body: &GraphProto) -> bool {
    let mut categories = body.node.iter().filter_map(NodeProto::category);
    categories.any(Category::is_product)
}

pub(super) fn check_inputs(inputs: &[Input], values: &[TValue]) -> TractResult<()> {
    if inputs.len() != values.len() {
        bail!(
            "the model has {} inputs, and {} were given",
            inputs.len(),
            values.len()
        );
    }
    for (input, value) in inputs.iter().zip(values) {
        let Input {
            name,
            element,
            shape,
            ..
        } = input;
        if value.datum_type() != *element || value.shape() != shape {
            let (given, given_shape) = (value.datum_type(), value.shape());
            bail!(
                "the input `{name}` is {element:?} {shape:?}, and {given:?} {given_shape:?} was given"
            );
        }
    }
    Ok(())
}

/// Collects the operators of a model. Fails if tract lacks one of these operators, or would read a
/// scalar from an empty tensor.
pub(super) fn known_operators(onnx: &Onnx, model: &Model) -> Result<Origins, Failure> {
    let mut operators = Origins::default();
    add_operators(onnx, model, model.graph(), &mut operators)?;
    let mut empty = HashSet::new();
    add_empty(model.graph(), &mut empty);
    numbers_are_there(model.graph(), &empty)?;
    Ok(operators)
}

/// Collects the names of stored tensors without elements.
fn add_empty<'g>(graph: &'g GraphProto, empty: &mut HashSet<&'g str>) {
    let stored = graph.initializer.iter();
    empty.extend(
        stored
            .filter(|tensor| is_empty(tensor))
            .map(TensorProto::name),
    );
    for node in &graph.node {
        let constant = constant_tensor(node).filter(|_| node.op() == ("", "Constant"));
        if constant.is_some_and(|tensor| is_empty(&tensor)) {
            empty.extend(node.output.iter().map(String::as_str));
        }
        bodies(node).for_each(|body| add_empty(body, empty));
    }
}

fn is_empty(tensor: &TensorProto) -> bool {
    tensor.dims.contains(&0)
}

/// Fails if tract would read a scalar from a stored tensor without elements.
fn numbers_are_there(graph: &GraphProto, empty: &HashSet<&str>) -> Result<(), Failure> {
    graph.node.iter().try_for_each(|node| {
        let mut read = read_as_one(node.op_type())
            .iter()
            .filter_map(|&slot| node.input.get(slot));
        if let Some(name) = read.find(|name| empty.contains(name.as_str())) {
            let reason = format!("`{name}` has no element, and tract reads one");
            return Err(Failure::new(Stage::Load, reason).at(node.op_type(), node.label()));
        }
        bodies(node).try_for_each(|body| numbers_are_there(body, empty))
    })
}

fn add_operators(
    onnx: &Onnx,
    model: &Model,
    graph: &GraphProto,
    operators: &mut Origins,
) -> Result<(), Failure> {
    for node in &graph.node {
        let (_, operator) = node.op();
        if let Some(reason) = missing(onnx, model, node) {
            return Err(Failure::new(Stage::Load, reason).at(operator, node.label()));
        }
        let name = if node.name().is_empty() {
            node.output.first().map_or("", String::as_str)
        } else {
            node.name()
        };
        operators.insert(name.to_owned(), operator.to_owned());
        bodies(node).try_for_each(|body| add_operators(onnx, model, body, operators))?;
    }
    Ok(())
}

/// The reason why tract cannot run a node because of its operator; `None` if there is no such
/// reason.
fn missing(onnx: &Onnx, model: &Model, node: &NodeProto) -> Option<String> {
    let (domain, operator) = node.op();
    let mut functions = model.proto.functions.iter();
    if functions.any(|function| (function.domain(), function.name()) == (domain, operator)) {
        return Some("it is a function of the model, and tract has no functions".to_owned());
    }
    if !is_read(domain) {
        return Some(format!("tract has no operators of the domain `{domain}`"));
    }
    if !onnx.op_register.0.contains_key(operator) {
        return Some("tract does not have this operator".to_owned());
    }
    if operator == "Scan" && states(node, node.input.len()) == Some(0) {
        let reason = "tract makes steps for ever where no state goes from one to the next";
        return Some(reason.to_owned());
    }
    None
}
