//! Simplification after folds: dead code and movements around folded sites; and at the end
//! ([`tidy()`]) constant folding and CSE.
//!
//! Values that no node read in the original model stay.

mod branch_folding;
mod cleanup;
mod constant_folding;
mod cse;
mod cse_layouts;
mod dce;
mod identity_elimination;
mod movements;
mod neutral_constants;
mod reserved_names;
mod reshape_extents;
mod topological_order;
mod zero_sign;
mod zero_states;

use std::collections::HashMap;

use crate::analysis::Analysis;
use crate::ir::ValueId;
use crate::ir::editor::{Edited, Editor};
use crate::onnx::Model;
use crate::onnx::proto::GraphProto;
use crate::shape::facts::Shape;

pub use crate::passes::simplify::cleanup::{Limits, Tidied, read_directly, shared, tidy};
pub use crate::passes::simplify::constant_folding::NamedFloats;
pub use crate::passes::simplify::movements::is_movement;

/// The names of the parts of [`tidy()`] for `--skip`.
pub const KINDS: [&str; 2] = [
    crate::passes::simplify::constant_folding::KIND,
    crate::passes::simplify::cse::KIND,
];

/// The name of CSE and identity elimination.
pub const DUPLICATE: &str = crate::passes::simplify::cse::KIND;

/// The shapes of values of the original graph, by name.
pub struct KnownShapes<'k> {
    /// The extents of a value.
    pub shape: &'k dyn Fn(&str) -> Option<Shape>,
    /// The elements of a value that is a shape itself.
    pub extents: &'k dyn Fn(&str) -> Option<Shape>,
}

/// A model with its nodes in topological order, captures of bodies included.
pub fn sorted(mut model: Model) -> Model {
    crate::passes::simplify::topological_order::sort(model.graph_mut());
    model
}

/// Finishes an edited graph: cancels and merges movements around the seeds, and removes nodes and
/// constants that only removed nodes read, and notes about removed values.
///
/// `seeds` are the values at which something was taken out.
pub fn simplify(editor: Editor, seeds: &[String], analysis: &KnownShapes) -> GraphProto {
    let Edited {
        mut graph,
        before,
        pinned,
    } = editor.edited();
    // A new value without readers served a node that was removed as well.
    let was_read = |name: &str| before.reads(name) || before.value(name).is_none();
    let mut seeds = seeds.to_vec();
    seeds.extend(crate::passes::simplify::movements::cancel(
        &mut graph, &seeds, analysis,
    ));
    // The remaining readers in between are known only now.
    crate::passes::simplify::dce::remove(&mut graph, &was_read, &pinned);
    let is_joined = crate::passes::simplify::movements::join(&mut graph, &seeds, analysis);
    crate::passes::simplify::topological_order::sort(&mut graph);
    let is_merged = crate::passes::simplify::cse_layouts::merge(&mut graph, &seeds, analysis);
    if is_joined || is_merged {
        crate::passes::simplify::dce::remove(&mut graph, &was_read, &pinned);
    }
    crate::passes::simplify::reserved_names::give_way(&mut graph);
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
    simplify(
        editor,
        &seeds,
        &KnownShapes {
            shape: &shape,
            extents: &extents,
        },
    )
}
