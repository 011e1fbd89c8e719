//! Whether two models agree apart from their nodes: inputs, outputs, operator sets.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::random::{Digest, Hash};
use super::{Proof, undecided};
use crate::onnx::Model;
use crate::onnx::node::{bodies, canonical_domain};
use crate::onnx::proto::{OperatorSetIdProto, TypeProto, ValueInfoProto};
use crate::passes::upgrade_opset;
use crate::prove::field_value::stored;

/// Whether both accept the same inputs with the same defaults, and operators have the same meaning.
///
/// # Errors
/// The difference, or the reason why it is undecided.
pub fn same_interface(original: &Model, fused: &Model) -> Result<(), Proof> {
    let (inputs, others) = (&original.graph().input, &fused.graph().input);
    let parted = |at: &ValueInfoProto, reason: &str| Proof::Disproved {
        at: at.name().to_owned(),
        site: None,
        reason: reason.to_owned(),
    };
    let names: HashSet<&str> = inputs.iter().map(|input| input.name()).collect();
    let defaults = [original, fused].map(|model| -> HashMap<&str, Digest> {
        let sparse = model.graph().sparse_initializer.iter().flat_map(|sparse| {
            let name = sparse.values.as_ref().map_or("", |values| values.name());
            sparse
                .values
                .iter()
                .chain(&sparse.indices)
                .map(move |tensor| (name, tensor))
        });
        let tensors = model
            .graph()
            .initializer
            .iter()
            .map(|tensor| (tensor.name(), tensor))
            .chain(sparse);
        let mut defaults: HashMap<&str, Hash> = HashMap::new();
        for (name, tensor) in tensors.filter(|(name, _)| names.contains(name)) {
            let hash = defaults
                .entry(name)
                .or_insert_with(|| Hash::new(0, "default"));
            hash.digest(stored(tensor, model.externals(), 0));
        }
        defaults
            .into_iter()
            .map(|(name, hash)| (name, hash.finish()))
            .collect()
    });
    for (input, other) in inputs.iter().zip(others) {
        if input.r#type != other.r#type && input.name() == other.name() {
            return Err(parted(
                input,
                "the inputs are not of the types of the original's",
            ));
        }
        // Before that version they are the constants that they are.
        let is_default = original.proto.ir_version() >= 4;
        if is_default && defaults[0].get(input.name()) != defaults[1].get(input.name()) {
            return Err(parted(
                input,
                "what it is where nobody gives it is not that of the original",
            ));
        }
    }
    let sets = |model: &Model| -> BTreeMap<String, i64> {
        let set =
            |set: &OperatorSetIdProto| (canonical_domain(set.domain()).to_owned(), set.version());
        model.proto.opset_import.iter().map(set).collect()
    };
    let [before, after] = [original, fused].map(sets);
    let differs = |(domain, version): &(&String, &i64)| {
        let other = after.get(*domain).is_some_and(|other| other != *version);
        other && !(domain.is_empty() && means_the_same(original, fused))
    };
    match before.iter().find(differs) {
        Some((domain, _)) => Err(undecided(format!(
            "the operator set `{domain}` is of another version"
        ))),
        None => Ok(()),
    }
}

/// Whether all operators of the folded model keep their meaning in the older operator set of the
/// original.
fn means_the_same(original: &Model, fused: &Model) -> bool {
    let [from, to] = [original, fused].map(Model::own_opset);
    let mut graphs = vec![fused.graph()];
    let mut is_same = from <= to
        && [from, to]
            .iter()
            .all(|set| upgrade_opset::ALIKE.contains(set))
        && original.proto.functions.is_empty()
        && fused.proto.functions.is_empty();
    while let Some(graph) = graphs.pop() {
        for node in &graph.node {
            is_same &= upgrade_opset::means_the_same(node, from);
            graphs.extend(bodies(node));
        }
    }
    is_same
}

/// Whether the inputs and outputs have the names and the types that they had, but for extents.
///
/// # Errors
/// Which differs.
pub fn same_ends(original: &Model, fused: &Model) -> Result<(), Proof> {
    let ends = |model: &Model| -> [Vec<(String, Option<TypeProto>)>; 2] {
        let told = |value: &ValueInfoProto| {
            (
                value.name().to_owned(),
                value.r#type.as_ref().map(shapeless),
            )
        };
        [&model.graph().input, &model.graph().output].map(|list| list.iter().map(told).collect())
    };
    let (before, after) = (ends(original), ends(fused));
    let differ = before
        .iter()
        .flatten()
        .zip(after.iter().flatten())
        .find(|(one, other)| one != other);
    if before == after {
        return Ok(());
    }
    Err(Proof::Disproved {
        at: differ.map_or(String::new(), |(_, (other, _))| other.clone()),
        site: None,
        reason: "the inputs or outputs are not those of the original".to_owned(),
    })
}

/// A type of any value, without the shapes of its tensors.
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
