//! Compares the interfaces of two models: inputs, outputs and operator sets.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::random::{Digest, Hash};
use super::{Proof, undecided};
use crate::onnx::Model;
use crate::onnx::node::{bodies, canonical_domain};
use crate::onnx::proto::{TensorProto, TypeProto};
use crate::passes::upgrade_opset;
use crate::prove::field_value::stored;

/// Checks that both models accept the same inputs with equal defaults, and that operators have the
/// same meaning.
///
/// # Errors
/// The difference, or the reason why the proof is undecided.
pub(super) fn same_interface(original: &Model, fused: &Model) -> Result<(), Proof> {
    let (inputs, others) = (&original.graph().input, &fused.graph().input);
    let names: HashSet<&str> = inputs.iter().map(|input| input.name()).collect();
    let [before, after] = [original, fused].map(|model| defaults(model, &names));
    // Before IR version 4, an initializer that is also an input is a constant, not a default, and
    // is not compared here.
    let is_default = original.proto.ir_version() >= 4;
    for (input, other) in inputs.iter().zip(others) {
        if input.r#type != other.r#type && input.name() == other.name() {
            let reason = "the inputs are not of the types of the original's";
            return Err(differs(input.name(), reason));
        }
        if is_default && before.get(input.name()) != after.get(input.name()) {
            let reason = "what it is where nobody gives it is not that of the original";
            return Err(differs(input.name(), reason));
        }
    }
    let [before, after] = [original, fused].map(operator_sets);
    for (domain, version) in &before {
        let is_other = after.get(domain).is_some_and(|other| other != version);
        if is_other && !(domain.is_empty() && means_the_same(original, fused)) {
            return Err(undecided(format!(
                "the operator set `{domain}` is of another version"
            )));
        }
    }
    Ok(())
}

fn differs(at: &str, reason: &str) -> Proof {
    Proof::Disproved {
        at: at.to_owned(),
        site: None,
        reason: reason.to_owned(),
    }
}

/// The digests of the initializers with these names.
fn defaults<'m>(model: &'m Model, names: &HashSet<&str>) -> HashMap<&'m str, Digest> {
    let graph = model.graph();
    let dense = graph.initializer.iter();
    let mut tensors: Vec<(&str, &TensorProto)> =
        dense.map(|tensor| (tensor.name(), tensor)).collect();
    for sparse in &graph.sparse_initializer {
        let name = sparse.values.as_ref().map_or("", |values| values.name());
        let parts = sparse.values.iter().chain(&sparse.indices);
        tensors.extend(parts.map(|tensor| (name, tensor)));
    }
    let mut defaults: HashMap<&str, Hash> = HashMap::new();
    for (name, tensor) in tensors {
        if names.contains(name) {
            let hash = defaults
                .entry(name)
                .or_insert_with(|| Hash::new(0, "default"));
            hash.digest(stored(tensor, model.externals(), 0));
        }
    }
    let defaults = defaults.into_iter();
    defaults.map(|(name, hash)| (name, hash.finish())).collect()
}

/// The versions of the operator sets that a model imports, by domain.
fn operator_sets(model: &Model) -> BTreeMap<String, i64> {
    let sets = model.proto.opset_import.iter();
    sets.map(|set| (canonical_domain(set.domain()).to_owned(), set.version()))
        .collect()
}

/// Whether all operators of the folded model have the same meaning in both operator sets. False if
/// a model has functions, or if an operator set is unknown. Operators that only the original has
/// are not checked, because the proof treats operators as equal only if they occur in both models.
fn means_the_same(original: &Model, fused: &Model) -> bool {
    let sets = [original, fused].map(Model::own_opset);
    let from = sets.into_iter().fold(i64::MAX, i64::min);
    let to = sets.into_iter().fold(i64::MIN, i64::max);
    let mut graphs = vec![fused.graph()];
    let mut is_same = sets.iter().all(|set| upgrade_opset::KNOWN.contains(set))
        && original.proto.functions.is_empty()
        && fused.proto.functions.is_empty();
    while let Some(graph) = graphs.pop() {
        for node in &graph.node {
            is_same &= upgrade_opset::means_the_same(node, from, to);
            graphs.extend(bodies(node));
        }
    }
    is_same
}

/// Checks that the inputs and outputs have the same names and types, except for extents.
///
/// # Errors
/// The first difference.
pub(super) fn same_ends(original: &Model, fused: &Model) -> Result<(), Proof> {
    let [before, after] = [original, fused].map(ends);
    if before == after {
        return Ok(());
    }
    let mut pairs = before.iter().flatten().zip(after.iter().flatten());
    let first = pairs.find(|(one, other)| one != other);
    let at = first.map_or("", |(_, (name, _))| name);
    let reason = "the inputs or outputs are not those of the original";
    Err(differs(at, reason))
}

/// The names and types of the inputs and of the outputs.
fn ends(model: &Model) -> [Vec<(String, Option<TypeProto>)>; 2] {
    [&model.graph().input, &model.graph().output].map(|list| {
        list.iter()
            .map(|value| {
                (
                    value.name().to_owned(),
                    value.r#type.as_ref().map(shapeless),
                )
            })
            .collect()
    })
}

/// A type without the shapes of its tensors.
fn shapeless(of: &TypeProto) -> TypeProto {
    let mut of = of.clone();
    of.denotation = None;
    if let Some(tensor) = &mut of.tensor_type {
        tensor.shape = None;
    }
    if let Some(elements) = of
        .sequence_type
        .as_mut()
        .and_then(|sequence| sequence.elem_type.as_mut())
    {
        *elements = shapeless(elements);
    }
    if let Some(elements) = of
        .optional_type
        .as_mut()
        .and_then(|optional| optional.elem_type.as_mut())
    {
        *elements = shapeless(elements);
    }
    of
}
