//! Finds constants that the second model computes, but that the first one stores.

use std::collections::HashSet;
use std::sync::Arc;

use super::candidates::{CandidateKey, of_stored};
use super::constants::ComputedConstants;
use super::match_tensors::{Foreign, Matched, take_matched};
use crate::analysis::Analysis;
use crate::onnx::Model;
use crate::onnx::tensor;
use crate::recipe::{Given, Op};

/// A copy of the second model that stores some of its computed constants.
pub(super) struct StoredTwins {
    /// The second model. Each matched constant is an initializer.
    pub model: Model,
    /// The matched constants, each with the tensor of the first model that equals it up to
    /// rounding.
    pub matched: Vec<Matched>,
}

/// Replaces each constant that the second model computes by an initializer, if a tensor of the
/// first model equals it up to rounding. `None` if there is no such constant, or if one cannot be
/// stored.
pub(super) fn stored(first: &Model, second: &Model) -> Option<StoredTwins> {
    let [of_first, of_second] = [Analysis::new(first).ok()?, Analysis::new(second).ok()?];
    let [of_first, of_second] = [&of_first, &of_second].map(ComputedConstants::new);
    let computed = rounded_constants(second, &of_second);
    let keys: Vec<CandidateKey> = computed.iter().map(Foreign::key).collect();
    let candidates = of_stored(first, &keys, &of_first);
    let matched = take_matched(&mut computed.clone(), &candidates, &of_first);
    if matched.is_empty() {
        return None;
    }
    let names: HashSet<&String> = matched.iter().map(|found| &found.stored.name).collect();
    let constants = computed.iter();
    let constants = constants.filter(|constant| names.contains(&constant.name));
    let model = with_stored(second, constants)?;
    Some(StoredTwins { model, matched })
}

/// The computed constants with a rounding error, except those whose node has other results.
fn rounded_constants(model: &Model, constants: &ComputedConstants) -> Vec<Foreign> {
    let nodes = model.graph().node.iter();
    let only: HashSet<&str> = nodes
        .filter_map(|node| match &node.output[..] {
            [output] => Some(output.as_str()),
            _ => None,
        })
        .collect();
    let computed = constants.computed().into_iter();
    let rounded = computed.filter_map(|(recipe, data_type)| {
        let Op::Constant(name) = recipe.op() else {
            return None;
        };
        let made = constants.read(name)?;
        if made.error.is_exact() || !only.contains(&**name) {
            return None;
        }
        let elements = Given::Computed(Arc::new(made.values));
        Foreign::new(name, data_type, elements, made.error)
    });
    rounded.collect()
}

/// Replaces the nodes that compute these constants by initializers. `None` if a tensor cannot be
/// stored.
fn with_stored<'c>(model: &Model, constants: impl Iterator<Item = &'c Foreign>) -> Option<Model> {
    let mut model = model.clone();
    let graph = model.graph_mut();
    let mut names = HashSet::new();
    for constant in constants {
        let tensor = tensor::make(
            &constant.name,
            constant.data_type,
            &constant.values()?.view(),
        );
        graph.initializer.push(tensor.ok()?);
        names.insert(&constant.name);
    }
    graph
        .node
        .retain(|node| !node.output.iter().any(|output| names.contains(output)));
    Some(model)
}
