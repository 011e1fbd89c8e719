//! Rewrites both models in one notation, so that different spellings of an operator compare as
//! equal.

use std::collections::{HashMap, HashSet};
use std::f64::consts::{FRAC_1_SQRT_2, SQRT_2};

use ndarray::arr0;

use crate::analysis::Analysis;
use crate::ir::builder::int;
use crate::onnx::Model;
use crate::onnx::node::bodies_mut;
use crate::onnx::proto::{AttributeProto, GraphProto, NodeProto, TensorProto};
use crate::onnx::schema::{OperatorDefinition, definition};
use crate::onnx::tensor::{self, DataType, rounded};
use crate::ops::definitions::{FUSED, counts, written_out};
use crate::prove::{read_past, stored_outside};

/// Rewrites both models in the notation of this module. If the models have different numbers of any
/// fused operator, expands the fused operators of both.
pub(super) fn normalised(models: [Model; 2]) -> [Model; 2] {
    let [a, b] = [&models[0], &models[1]].map(|model| counts(model, FUSED));
    let are_fused_alike = a == b;
    models.map(|mut model| {
        let opset = model.own_opset();
        cast_like_as_cast(&mut model);
        without_defaults(model.graph_mut(), opset);
        if !are_fused_alike && let Some(written) = written_out(&model, FUSED) {
            model = written;
        }
        multiply_before_erf(&mut model);
        let externals = model.externals().clone();
        read_past(model.graph_mut(), opset, &externals, &HashSet::new());
        model
    })
}

/// Writes each CastLike whose second input has a known type as a Cast. Its result then does not
/// depend on that input, and may be constant.
fn cast_like_as_cast(model: &mut Model) {
    let types = like_types(model);
    for node in &mut model.graph_mut().node {
        let Some(&data_type) = node.output.first().and_then(|name| types.get(name)) else {
            continue;
        };
        node.op_type = Some("Cast".to_owned());
        node.input.truncate(1);
        node.attribute.push(int("to", data_type.code().into()));
    }
}

/// The types of the results of CastLikes, by name, if they are known.
fn like_types(model: &Model) -> HashMap<String, DataType> {
    let mut nodes = model.graph().node.iter();
    if !nodes.any(|node| node.op() == ("", "CastLike")) {
        return HashMap::new();
    }
    let Ok(analysis) = Analysis::new(model) else {
        return HashMap::new();
    };
    let graph = &analysis.graph;
    let nodes = graph
        .order()
        .iter()
        .filter(|&&node| graph.is(node, "CastLike"));
    let types = nodes.filter_map(|&node| {
        let value = graph.output(node, 0)?;
        let name = graph.value_name(value).to_owned();
        Some((name, analysis.facts.data_type(value)?))
    });
    types.collect()
}

/// Removes attributes that have their default value, attributes that the operator does not read,
/// and omitted inputs at the end of a node's inputs, in a graph and its bodies. Flags of Gemm become
/// 0 or 1.
fn without_defaults(graph: &mut GraphProto, opset: i64) {
    for node in &mut graph.node {
        for body in bodies_mut(node) {
            without_defaults(body, opset);
        }
        while node.input.last().is_some_and(String::is_empty) {
            node.input.pop();
        }
        if node.op() == ("", "Gemm") {
            normalise_flags(node);
        }
        let ("", op) = node.op() else {
            continue;
        };
        let OperatorDefinition::Is(schema) = definition(op, opset) else {
            continue;
        };
        let is_pool = op == "MaxPool";
        let unread = unread_attributes(node);
        node.attribute.retain(|attribute| {
            let mut known = schema.attributes.iter();
            let known = known.find(|known| known.name == attribute.name());
            let is_default = known.is_some_and(|known| known.is_default(attribute));
            let is_unread = known.is_some() && unread.contains(&attribute.name());
            !(is_default || is_unread || is_pool && is_neutral(attribute))
        });
    }
}

/// Writes each flag of a Gemm that is not 0 as 1. tract takes only 1 for a transposed operand.
fn normalise_flags(gemm: &mut NodeProto) {
    for attribute in &mut gemm.attribute {
        let is_flag = ["transA", "transB"].contains(&attribute.name());
        if is_flag && attribute.i.is_some_and(|flag| flag != 0) {
            attribute.i = Some(1);
        }
    }
}

/// The names of the attributes that a Resize does not read in the mode of this node.
fn unread_attributes(node: &NodeProto) -> Vec<&'static str> {
    if node.op_type() != "Resize" {
        return vec![];
    }
    let coordinates = node.attr_s("coordinate_transformation_mode").ok().flatten();
    let has_sizes = node.input.get(3).is_some_and(|name| !name.is_empty());
    let mode = node.attr_s("mode").ok().flatten().unwrap_or("nearest");
    let unread = [
        ("nearest_mode", mode != "nearest"),
        ("cubic_coeff_a", mode != "cubic"),
        (
            "extrapolation_value",
            coordinates != Some("tf_crop_and_resize"),
        ),
        ("keep_aspect_ratio_policy", !has_sizes),
    ];
    let unread = unread.into_iter().filter(|(_, is_unread)| *is_unread);
    unread.map(|(name, _)| name).collect()
}

/// Whether an attribute gives dilations, strides or pads their default. These defaults are checked
/// here, because only the text of the specification gives them, and the operator schemas do not.
fn is_neutral(attribute: &AttributeProto) -> bool {
    match attribute.name() {
        "dilations" | "strides" => attribute.ints.iter().all(|&step| step == 1),
        "pads" => attribute.ints.iter().all(|&pad| pad == 0),
        _ => false,
    }
}

/// Replaces a division by √2 before an Erf by a multiplication by 1/√2, because GELU is written in
/// both ways. The division is replaced only if its constant is the number of its type that is
/// nearest to √2.
fn multiply_before_erf(model: &mut Model) {
    let stored: HashMap<&str, TensorProto> = stored_outside(model).into_iter().collect();
    let nodes = model.graph().node.iter();
    let erfs = nodes.filter(|node| node.op() == ("", "Erf"));
    let read: HashSet<&String> = erfs.filter_map(|node| node.input.first()).collect();
    let mut added = vec![];
    for (place, node) in model.graph().node.iter().enumerate() {
        let [_, divisor] = &node.input[..] else {
            continue;
        };
        let is_quotient = node.op() == ("", "Div") && read.contains(&node.output[0]);
        let divisor = stored.get(divisor.as_str()).filter(|_| is_quotient);
        let Some(data_type) = divisor.and_then(|divisor| root_of_two(divisor, model)) else {
            continue;
        };
        let name = format!("{}/reciprocal root of 2", node.output[0]);
        let number = arr0(FRAC_1_SQRT_2).into_dyn();
        let factor = tensor::make(&name, data_type, &number.view());
        added.extend(factor.ok().map(|factor| (place, factor)));
    }
    let graph = model.graph_mut();
    for (place, factor) in added {
        let node = &mut graph.node[place];
        node.op_type = Some("Mul".to_owned());
        node.input[1] = factor.name().to_owned();
        graph.initializer.push(factor);
    }
}

/// The type of a scalar whose value is the number of this type that is nearest to √2. `None` for
/// all other tensors.
fn root_of_two(divisor: &TensorProto, model: &Model) -> Option<DataType> {
    let data_type = tensor::float_type(divisor)?;
    let numbers = tensor::read_f64(divisor, model.externals()).ok()?;
    let is_root = numbers.ndim() == 0 && numbers.first() == Some(&rounded(data_type, SQRT_2));
    is_root.then_some(data_type)
}
