//! Definitions of operators that tract lacks, misreads or cannot always prepare, by operators that
//! it implements.
//!
//! Each file defines one operator: its formula, and the operators that replace it. The result is
//! only run by tract, or compared with another model. The model that unfold writes keeps its
//! operators. A definition either reads every attribute and input of its node, or leaves the node
//! unchanged.
//!
//! Before: `y = com.microsoft.FusedMatMul(a, b) transB=1 alpha=0.5`.
//! After: `t = Transpose(b)`, `p = MatMul(a, t)`, `y = Mul(p, 0.5)`.

mod activation;
mod attention;
mod causal_convolution;
mod cum_sum;
mod fused_convolution;
mod fused_gemm;
mod fused_matmul;
mod gather_nd;
mod gelu;
mod heads;
mod linear_attention;
mod lstm;
mod multi_head_attention;
mod strided_slice;
mod swiglu;
mod writer;

use writer::Writer;

use crate::analysis::Analysis;
use crate::hash::HashSet;
use crate::ir::builder::NewConstant;
use crate::onnx::Model;
use crate::onnx::proto::{NodeProto, TensorProto};
use crate::onnx::tensor;

/// The definitions of several operators.
pub(crate) type Definitions = &'static [Definition];

/// The definition of an operator by other operators.
pub(crate) struct Definition {
    /// The domain and the name of the operator.
    operator: (&'static str, &'static str),
    /// The attributes that the definition reads.
    attributes: &'static [&'static str],
    /// The maximum number of inputs of a node that the definition covers.
    inputs: usize,
    /// Adds the nodes that replace a node; `None` if the definition does not cover the node.
    write: fn(&mut Writer) -> Option<()>,
}

/// Operators that tract lacks, or takes for different operators of the same name.
pub(crate) const LACKING: Definitions = &[
    attention::DEFINITION,
    causal_convolution::DEFINITION,
    cum_sum::DEFINITION,
    fused_convolution::DEFINITION,
    fused_gemm::DEFINITION,
    fused_matmul::DEFINITION,
    gelu::BIASED,
    gelu::EXACT,
    gelu::FAST,
    gelu::QUICK,
    linear_attention::DEFINITION,
    lstm::DEFINITION,
    multi_head_attention::DEFINITION,
    swiglu::DEFINITION,
];

/// Operators that tract implements, but that are replaced in models that tract cannot prepare.
pub(crate) const FAILING: Definitions = &[gather_nd::DEFINITION, strided_slice::DEFINITION];

/// The attention operator that a proof replaces by separate operators.
#[cfg(feature = "prove")]
pub(crate) const ATTENTION: Definitions = &[multi_head_attention::DEFINITION];

/// Fused operators. One of two compared models may have such an operator where the other has
/// separate operators.
#[cfg(feature = "prove")]
pub(crate) const FUSED: Definitions = &[
    fused_convolution::DEFINITION,
    fused_gemm::DEFINITION,
    fused_matmul::DEFINITION,
    gelu::BIASED,
    gelu::EXACT,
    gelu::FAST,
    gelu::GELU,
    gelu::QUICK,
    multi_head_attention::DEFINITION,
];

/// The number of nodes of each defined operator in the graph of a model.
#[cfg(feature = "prove")]
pub(crate) fn counts(model: &Model, definitions: Definitions) -> Vec<usize> {
    let nodes = &model.graph().node;
    let counts = definitions.iter().map(|definition| {
        let same = nodes.iter().filter(|node| node.op() == definition.operator);
        same.count()
    });
    counts.collect()
}

/// The maximum number of passes over the graph. Several passes are needed if an operator needs
/// extents that depend on another replaced operator.
const ROUNDS: usize = 8;

/// Replaces the nodes that one of these definitions covers. A definition covers a node only if the
/// extents that its formula needs are known. `None` if no node is replaced.
pub(crate) fn written_out(model: &Model, definitions: Definitions) -> Option<Model> {
    let mut result = written_once(model, definitions)?;
    for _ in 1..ROUNDS {
        match written_once(&result, definitions) {
            Some(next) => result = next,
            None => break,
        }
    }
    Some(result)
}

/// Whether a model has a node with one of these definitions; `false` for every model with
/// functions.
pub(crate) fn has_some(model: &Model, definitions: Definitions) -> bool {
    let mut nodes = model.graph().node.iter();
    model.proto.functions.is_empty() && nodes.any(|node| definition(node, definitions).is_some())
}

fn written_once(model: &Model, definitions: Definitions) -> Option<Model> {
    if !has_some(model, definitions) {
        return None;
    }
    let analysis = Analysis::new(model).ok()?;
    let graph = &analysis.graph;
    let (mut nodes, mut constants): (Vec<NodeProto>, Vec<TensorProto>) = (vec![], vec![]);
    let mut names: HashSet<String> = HashSet::default();
    let mut is_changed = false;
    for &id in graph.order() {
        let definition = definition(graph.node(id), definitions);
        let written = definition
            .and_then(|definition| written(definition, Writer::new(analysis.at(id), graph)));
        // If a new node would have the name of an earlier new node, the node stays in this round,
        // and the next round replaces it.
        match written.filter(|(made, _)| insert_all(&mut names, made)) {
            Some((made, new)) => {
                is_changed = true;
                nodes.extend(made);
                constants.extend(new.iter().filter_map(stored));
            }
            None => nodes.push(graph.node(id).clone()),
        }
    }
    is_changed.then(|| model.with_nodes(nodes, constants))
}

/// Adds the names of nodes to a set, up to the first name that the set already has. Returns whether
/// all names were new.
fn insert_all(names: &mut HashSet<String>, nodes: &[NodeProto]) -> bool {
    nodes
        .iter()
        .all(|node| names.insert(node.name().to_owned()))
}

/// The nodes that replace a node, and the constants that they read. `None` if the definition does
/// not cover the node.
fn written(
    definition: &Definition,
    mut writer: Writer,
) -> Option<(Vec<NodeProto>, Vec<NewConstant>)> {
    (definition.write)(&mut writer)?;
    Some(writer.maker.done())
}

/// The definition of a node's operator; `None` without a definition that reads all attributes and
/// inputs of the node.
fn definition(node: &NodeProto, definitions: Definitions) -> Option<&'static Definition> {
    let definition = definitions
        .iter()
        .find(|definition| definition.operator == node.op())?;
    let is_read = node
        .attribute
        .iter()
        .all(|attribute| definition.attributes.contains(&attribute.name()));
    (is_read && node.input.len() <= definition.inputs).then_some(definition)
}

/// Converts a new list of integers into a tensor. Definitions do not add floats in this way, but as
/// Constant nodes.
fn stored(constant: &NewConstant) -> Option<TensorProto> {
    match constant {
        NewConstant::Integers { name, values } => Some(tensor::make_i64(name, values)),
        NewConstant::Floats { .. } | NewConstant::Weight { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::builder::strings;
    use crate::onnx::proto::AttributeProto;
    use crate::onnx::tensor::DataType;
    use crate::run::testing::{model, node, value};
    use crate::run::{Dims, Engine, Tensor};

    pub(super) fn text(name: &str, text: &str) -> AttributeProto {
        let list = strings(name, &[text.to_owned()]);
        AttributeProto {
            s: list.strings.into_iter().next(),
            r#type: Some(crate::onnx::proto::AttributeType::String.into()),
            name: list.name,
            ..AttributeProto::default()
        }
    }

    /// A model with one operator of a domain, whose inputs and outputs have these shapes.
    pub(super) fn one(
        domain: &str,
        line: &str,
        attribute: Vec<AttributeProto>,
        shapes: &[(&str, &[&str])],
    ) -> Model {
        let mut operator = NodeProto {
            attribute,
            ..node(line)
        };
        operator.domain = Some(domain.into());
        let inputs = shapes
            .iter()
            .map(|(name, shape)| value(name, DataType::Float, shape))
            .collect();
        let outputs = operator.output.clone();
        let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
        model(inputs, vec![], vec![operator], &outputs)
    }

    pub(super) fn run(model: &Model, inputs: &[Tensor]) -> Vec<Tensor> {
        Engine::load(model, &Dims::default())
            .unwrap()
            .run(inputs)
            .unwrap()
    }

    pub(super) fn assert_close(actual: &Tensor, expected: &Tensor) {
        actual.close_enough(expected, true).unwrap();
    }

    /// A model that computes `y` from `x` by one operator. Its other inputs are lists of integers.
    pub(super) fn listed(line: &str, shape: &[&str], lists: &[(&str, &[i64], &[i64])]) -> Model {
        let constants = lists.iter().map(|(name, dims, list)| TensorProto {
            dims: dims.to_vec(),
            ..tensor::make_i64(name, list)
        });
        model(
            vec![value("x", DataType::Float, shape)],
            constants.collect(),
            vec![node(line)],
            &["y"],
        )
    }
}
