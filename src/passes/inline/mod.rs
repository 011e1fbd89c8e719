//! Writes opaque normalizers out in operators of ONNX before sites are recognized.
//!
//! A normalizer may be exported as one node: as a node of a custom domain, by the convention in
//! `docs/opaque.md`, or as a call of a local function. The node or call is replaced by the
//! operators that define it. A node with an unknown attribute stays. A normalization that is scaled
//! before its mean is subtracted is rewritten. A sequence that is read only in parts becomes a
//! Split. On request, all other functions and the Scaler of `ai.onnx.ml` are inlined too. If no
//! more folds then, the caller discards the result.

mod custom_domains;
mod distributed_norm;
pub(crate) mod functions;
mod sequences;

use std::collections::{HashMap, HashSet};

use crate::error::Result;
use crate::ir::builder::NewConstant;
use crate::ir::editor::reads;
use crate::ir::regions::Flat;
use crate::onnx::Model;
use crate::onnx::node::bodies;
use crate::onnx::proto::NodeProto;
use crate::passes::inline::functions::{FunctionId, callee, key};

/// The largest number of repetitions of the rewrites.
const ROUNDS: usize = 8;

/// A model with its opaque normalizers written out.
pub(crate) struct Lowered {
    /// The model.
    pub model: Model,
    /// The formulas of the new float constants, over constants of the original model.
    pub formulas: Vec<NewConstant>,
}

/// Replaces the opaque normalizers of a model by their operators. `None` if the model has none.
///
/// `skip` gets the name of a node and the name of its operator. If `skip` returns true, the node
/// stays.
///
/// # Errors
/// If a function of the model calls itself.
pub(crate) fn lower(model: &Model, skip: &dyn Fn(&str, &str) -> bool) -> Result<Option<Lowered>> {
    written_out(model, Lowering::Normalizers, skip)
}

/// The nodes and calls that are inlined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lowering {
    /// Normalizers that are recognized by name, functions that call one, and sequences that become
    /// a Split.
    Normalizers,
    /// In addition, Scalers and all functions that contain an operator of ONNX or onnxruntime,
    /// directly or through a call.
    All,
}

/// A rewrite that adds no float constants. `None` if it finds nothing to rewrite.
type InlineRewrite = fn(&Model, &dyn Fn(&str, &str) -> bool) -> Option<Model>;

/// Like [`lower`], with a choice of which calls are inlined. Bodies are included if they can be
/// flattened and restored.
///
/// # Errors
/// The error of [`lower`].
pub(crate) fn written_out(
    model: &Model,
    lowering: Lowering,
    skip: &dyn Fn(&str, &str) -> bool,
) -> Result<Option<Lowered>> {
    let Some(flat) = Flat::new(model) else {
        return written_out_flat(model, lowering, skip);
    };
    let Some(lowered) = written_out_flat(&flat.model, lowering, skip)? else {
        return Ok(None);
    };
    match flat.restore(&lowered.model) {
        Some(model) => Ok(Some(Lowered { model, ..lowered })),
        None => written_out_flat(model, lowering, skip),
    }
}

/// Like [`written_out`], but bodies are not flattened, so only nodes of the main graph are written
/// out.
fn written_out_flat(
    model: &Model,
    lowering: Lowering,
    skip: &dyn Fn(&str, &str) -> bool,
) -> Result<Option<Lowered>> {
    let mut lowered = written_out_once(model, lowering, skip)?;
    // The types and axes of values after an expanded node are known only after its expansion, so
    // the rewrites are repeated.
    for _ in 1..ROUNDS {
        let Some(Lowered { model, formulas }) = &mut lowered else {
            break;
        };
        let Some(next) = written_out_once(model, lowering, skip)? else {
            break;
        };
        *model = next.model;
        formulas.extend(next.formulas);
    }
    if let Some(lowered) = &mut lowered {
        remove_unread(&mut lowered.model, model);
    }
    Ok(lowered)
}

fn written_out_once(
    model: &Model,
    lowering: Lowering,
    skip: &dyn Fn(&str, &str) -> bool,
) -> Result<Option<Lowered>> {
    let inlined = functions::inline(model, lowering, skip)?;
    let expanded = custom_domains::expand(inlined.as_ref().unwrap_or(model), lowering, skip);
    let inlined = inlined.map(|model| Lowered {
        model,
        formulas: vec![],
    });
    let mut lowered = expanded.or(inlined);
    for rewrite in [
        sequences::collect as InlineRewrite,
        distributed_norm::collect,
    ] {
        let before = lowered.as_ref().map_or(model, |lowered| &lowered.model);
        if let Some(model) = rewrite(before, skip) {
            let formulas = lowered.map_or(vec![], |lowered| lowered.formulas);
            lowered = Some(Lowered { model, formulas });
        }
    }
    Ok(lowered)
}

/// The operators that [`Lowering::All`] inlines, with their counts: calls of functions, Scalers,
/// and producers of sequences.
pub(crate) fn opaque(model: &Model) -> HashMap<FunctionId<'_>, usize> {
    let functions: HashSet<FunctionId> = model.proto.functions.iter().map(key).collect();
    let mut counts = HashMap::new();
    let mut open: Vec<&NodeProto> = model.graph().node.iter().collect();
    while let Some(node) = open.pop() {
        open.extend(bodies(node).flat_map(|body| &body.node));
        let operator = callee(node);
        if functions.contains(&operator)
            || custom_domains::is_scaler(node)
            || sequences::is_split(node)
        {
            *counts.entry(operator).or_default() += 1;
        }
    }
    counts
}

/// The number of operators of a model after all functions are inlined. A Constant does not count.
pub(crate) fn operators(model: &Model) -> Result<usize> {
    let sizes = functions::sizes(model, &operators_of_node)?;
    let mut open: Vec<&NodeProto> = model.graph().node.iter().collect();
    let mut count = 0_usize;
    while let Some(node) = open.pop() {
        open.extend(bodies(node).flat_map(|body| &body.node));
        let size = sizes.get(&callee(node)).copied();
        count = count.saturating_add(size.unwrap_or_else(|| operators_of_node(node)));
    }
    Ok(count)
}

fn operators_of_node(node: &NodeProto) -> usize {
    usize::from(node.op() != ("", "Constant"))
}

/// Removes initializers that only inlined nodes read, unless they are also inputs of the model.
fn remove_unread(result: &mut Model, before: &Model) {
    let (was_read, is_read) = (reads(before.graph()), reads(result.graph()));
    let inputs: HashSet<&str> = before
        .graph()
        .input
        .iter()
        .map(|input| input.name())
        .collect();
    let kept: Vec<bool> = result
        .graph()
        .initializer
        .iter()
        .map(|tensor| tensor.name())
        .map(|name| is_read.contains(name) || !was_read.contains(name) || inputs.contains(name))
        .collect();
    let mut kept = kept.into_iter();
    result
        .graph_mut()
        .initializer
        .retain(|_| kept.next() == Some(true));
}

/// The letters and digits of a name, in lower case.
fn plain(name: &str) -> String {
    name.chars()
        .filter(char::is_ascii_alphanumeric)
        .collect::<String>()
        .to_ascii_lowercase()
}

/// The name of a node, or the name of its first output if the node has none.
fn label(node: &NodeProto) -> &str {
    crate::ir::node_name(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_without_functions_stays() {
        let model = Model::open("models/digits/un-dynamo.onnx").unwrap();
        assert!(lower(&model, &|_, _| false).unwrap().is_none());
    }
}
