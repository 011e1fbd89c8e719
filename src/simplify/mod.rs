//! Simplification after folds: dead code and movements around folded sites; and at the end
//! ([`tidy()`]) constant folding and CSE.
//!
//! Values that no node read in the original model stay.

mod constants;
mod dead;
mod equal;
mod extents;
mod movement;
mod names;
mod neutral;
mod order;
mod passed;
mod states;
mod taken;
mod tidy;
mod twins;
mod zero_sign;

use std::collections::HashMap;

use crate::graph::ValueId;
use crate::graph::analysis::Analysis;
use crate::graph::editor::{Edited, Editor};
use crate::graph::facts::Shape;
use crate::onnx::Model;
use crate::onnx::proto::GraphProto;

pub use constants::NamedFloats;
pub use movement::is_movement;
pub use tidy::{Limits, Tidied, read_directly, shared, tidy};

/// The names of the parts of [`tidy()`] for `--skip`.
pub const KINDS: [&str; 2] = [constants::KIND, equal::KIND];

/// The name of CSE and identity elimination.
pub const DUPLICATE: &str = equal::KIND;

/// The shapes of values of the original graph, by name.
pub struct KnownShapes<'k> {
    /// The extents of a value.
    pub shape: &'k dyn Fn(&str) -> Option<Shape>,
    /// The elements of a value that is a shape itself.
    pub extents: &'k dyn Fn(&str) -> Option<Shape>,
}

/// A model with its nodes in topological order, captures of bodies included.
pub fn sorted(mut model: Model) -> Model {
    order::sort(model.graph_mut());
    model
}

/// Finishes an edited graph: cancels and merges movements around the seeds, and removes nodes and
/// constants that only removed nodes read, and notes about removed values.
///
/// `seeds` are the values at which something was taken out.
pub fn simplify(editor: Editor, seeds: &[String], known: &KnownShapes) -> GraphProto {
    let Edited { mut graph, before, pinned } = editor.edited();
    // A new value without readers served a node that was removed as well.
    let was_read = |name: &str| before.reads(name) || before.value(name).is_none();
    let mut seeds = seeds.to_vec();
    seeds.extend(movement::cancel(&mut graph, &seeds, known));
    // The remaining readers in between are known only now.
    dead::remove(&mut graph, &was_read, &pinned);
    let is_joined = movement::join(&mut graph, &seeds, known);
    order::sort(&mut graph);
    let is_merged = twins::merge(&mut graph, &seeds, known);
    if is_joined || is_merged {
        dead::remove(&mut graph, &was_read, &pinned);
    }
    names::give_way(&mut graph);
    graph
}

/// [`simplify`], with what is known of the graph that the editor began with.
///
/// `seeds` are values of that graph, and `made` has the values that came: each has the shape of one that
/// was there.
pub fn simplify_known(
    mut editor: Editor,
    mut seeds: Vec<String>,
    Analysis { graph, facts, .. }: &Analysis,
    made: &HashMap<String, ValueId>,
) -> GraphProto {
    for seed in &mut seeds {
        *seed = editor.current(seed);
    }
    let origins = editor.origins();
    let value = |name: &str| made.get(name).copied().or_else(|| graph.value(name));
    let shape = |name: &str| facts.shape(value(name).or_else(|| value(origins.get(name)?))?);
    let extents = |name: &str| facts.extents(graph.value(name)?);
    simplify(editor, &seeds, &KnownShapes { shape: &shape, extents: &extents })
}
