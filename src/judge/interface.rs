//! Gives the second model the inputs, outputs and open dimensions of the first.

use std::collections::HashSet;

use super::end_types::take_types;
use crate::onnx::Model;
use crate::onnx::proto::{Dim, Dimension, GraphProto, NodeProto, TypeProto, ValueInfoProto};

/// Gives both models the same interface. The inputs and outputs of the second model get the names
/// and the order of the first, and its inputs get the symbols of the first.
///
/// If float inputs or outputs have different types, the second model gets Casts. If the names
/// differ, inputs and outputs are matched by their order. If a name is both an
/// initializer and an input in only one of the models, that model gets a constant instead of an
/// input, and the verdict holds only for the stored value.
///
/// # Errors
/// The first difference that renaming does not remove.
pub(super) fn aligned(first: &Model, second: &Model) -> Result<[Model; 2], String> {
    let [mut first, mut second] = [first, second].map(Model::clone);
    let [mine, its] = [&first, &second].map(|model| constant_inputs(model.graph()));
    let shared: HashSet<&String> = mine.intersection(&its).collect();
    for (model, constants) in [(&mut first, &mine), (&mut second, &its)] {
        let is_left = |name: &str| !constants.contains(name) || shared.contains(&name.to_owned());
        model
            .graph_mut()
            .input
            .retain(|input| is_left(input.name()));
    }
    take_types_of(&first, &mut second)?;
    let graph = second.graph_mut();
    let inputs = named_inputs(graph, &first.graph().input)?;
    if inputs != graph.input {
        graph.value_info.clear();
    }
    graph.input = inputs;
    graph.output = named_outputs(graph, &first.graph().output)?;
    Ok([first, second])
}

/// Gives the float inputs and outputs of the second model the types of the first one.
///
/// # Errors
/// If the number of inputs or outputs differs.
fn take_types_of(first: &Model, second: &mut Model) -> Result<(), String> {
    let [wanted, own] = [first.graph(), second.graph()];
    let inputs = pairs(&wanted.input, &own.input, "inputs")?;
    let outputs = pairs(&wanted.output, &own.output, "outputs")?;
    take_types(second.graph_mut(), &inputs, &outputs);
    Ok(())
}

fn pairs(
    wanted: &[ValueInfoProto],
    own: &[ValueInfoProto],
    kind: &str,
) -> Result<Vec<(ValueInfoProto, ValueInfoProto)>, String> {
    let own = counterparts(wanted, own, kind)?.into_iter().cloned();
    Ok(wanted.iter().cloned().zip(own).collect())
}

/// The names of the inputs that are also initializers.
fn constant_inputs(graph: &GraphProto) -> HashSet<String> {
    let stored: HashSet<&str> = graph
        .initializer
        .iter()
        .map(|tensor| tensor.name())
        .collect();
    let inputs = graph.input.iter().map(|input| input.name());
    inputs
        .filter(|name| stored.contains(name))
        .map(str::to_owned)
        .collect()
}

/// Finds the counterparts of the `wanted` values in `own`: by name, or by order if any name is
/// missing.
///
/// # Errors
/// If the number of values differs.
pub(crate) fn counterparts<'v>(
    wanted: &[ValueInfoProto],
    own: &'v [ValueInfoProto],
    kind: &str,
) -> Result<Vec<&'v ValueInfoProto>, String> {
    if wanted.len() != own.len() {
        let (wanted, own) = (wanted.len(), own.len());
        return Err(format!("the models have {wanted} and {own} {kind}"));
    }
    let by_name: Option<Vec<&ValueInfoProto>> = wanted
        .iter()
        .map(|value| own.iter().find(|other| other.name() == value.name()))
        .collect();
    Ok(by_name.unwrap_or_else(|| own.iter().collect()))
}

/// Renames the inputs to those of the first model. An Identity restores the old name of each
/// renamed input for the nodes that read it.
fn named_inputs(
    graph: &mut GraphProto,
    wanted: &[ValueInfoProto],
) -> Result<Vec<ValueInfoProto>, String> {
    let own = graph.input.clone();
    let (mut inputs, mut passed) = (vec![], vec![]);
    for (value, other) in wanted.iter().zip(counterparts(wanted, &own, "inputs")?) {
        let r#type = common_type(value, other)?;
        if value.name() != other.name() {
            passed.push(identity(graph, value.name(), other.name())?);
        }
        inputs.push(ValueInfoProto {
            name: value.name.clone(),
            r#type,
            ..other.clone()
        });
    }
    graph.node.splice(0..0, passed);
    Ok(inputs)
}

/// Renames the outputs to those of the first model. An Identity computes each renamed output.
fn named_outputs(
    graph: &mut GraphProto,
    wanted: &[ValueInfoProto],
) -> Result<Vec<ValueInfoProto>, String> {
    let own = graph.output.clone();
    let mut outputs = vec![];
    for (value, other) in wanted.iter().zip(counterparts(wanted, &own, "outputs")?) {
        if value.name() != other.name() {
            let passed = identity(graph, other.name(), value.name())?;
            graph.node.push(passed);
        }
        outputs.push(ValueInfoProto {
            name: value.name.clone(),
            ..other.clone()
        });
    }
    Ok(outputs)
}

/// An Identity from the value `from` to the value `to`.
///
/// # Errors
/// If both names exist in the graph.
fn identity(graph: &GraphProto, from: &str, to: &str) -> Result<NodeProto, String> {
    let made = graph.node.iter().flat_map(|node| &node.output);
    let mut names = made
        .map(String::as_str)
        .chain(graph.initializer.iter().map(|tensor| tensor.name()))
        .chain(graph.input.iter().map(|input| input.name()));
    let [mut has_from, mut has_to] = [false; 2];
    for name in &mut names {
        has_from |= name == from;
        has_to |= name == to;
    }
    if has_from && has_to {
        return Err(format!(
            "`{from}` and `{to}` are different values of the second model"
        ));
    }
    Ok(NodeProto {
        op_type: Some("Identity".to_owned()),
        input: vec![from.to_owned()],
        output: vec![to.to_owned()],
        ..NodeProto::default()
    })
}

/// The type of an input of the first model, if its counterpart has the same element type and the
/// same known extents. The symbols of open extents may differ. If one of the two is not declared as
/// a tensor, they are not compared, and the type of the counterpart is returned.
///
/// # Errors
/// If the element types, ranks or known extents differ.
fn common_type(
    value: &ValueInfoProto,
    other: &ValueInfoProto,
) -> Result<Option<TypeProto>, String> {
    let [a, b] = [value, other].map(|value| value.r#type.as_ref());
    let tensors = a
        .and_then(|a| a.tensor_type.as_ref())
        .zip(b.and_then(|b| b.tensor_type.as_ref()));
    let Some((mine, its)) = tensors else {
        return Ok(other.r#type.clone());
    };
    if mine.elem_type != its.elem_type {
        return Err(format!(
            "the input `{}` is of another element type",
            value.name()
        ));
    }
    let shapes = mine.shape.as_ref().zip(its.shape.as_ref());
    let is_equal = shapes.is_none_or(|(mine, its)| {
        let mut pairs = mine.dim.iter().zip(&its.dim);
        mine.dim.len() == its.dim.len() && pairs.all(|(mine, its)| number(mine) == number(its))
    });
    if !is_equal {
        return Err(format!(
            "the input `{}` has another shape, or an open dimension in one model alone",
            value.name()
        ));
    }
    Ok(value.r#type.clone())
}

/// The extent of a dimension, if it is known.
fn number(dimension: &Dimension) -> Option<i64> {
    match dimension.value {
        Some(Dim::DimValue(extent)) => Some(extent),
        _ => None,
    }
}
