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
mod idempotent_pairs;
mod identity_elimination;
mod movements;
mod neutral_constants;
mod reserved_names;
mod reshape_extents;
mod topological_order;
mod zero_states;

use std::collections::HashMap;

use crate::analysis::Analysis;
use crate::hash;
use crate::ir::ValueId;
use crate::ir::editor::{Edited, Editor};
use crate::onnx::Model;
use crate::onnx::proto::GraphProto;
use crate::shape::facts::Shape;

pub use cleanup::{Limits, Tidied, read_directly, shared, tidy};
pub use constant_folding::NamedFloats;
pub use movements::is_movement;

/// The names of the parts of [`tidy()`] for `--skip`.
pub const KINDS: [&str; 2] = [constant_folding::KIND, cse::KIND];

/// The name of CSE and identity elimination.
pub const DUPLICATE: &str = cse::KIND;

/// The shapes of values of the original graph, by name.
pub struct KnownShapes<'k> {
    /// The extents of a value.
    pub shape: &'k dyn Fn(&str) -> Option<Shape>,
    /// The elements of a value that is a shape itself.
    pub extents: &'k dyn Fn(&str) -> Option<Shape>,
}

/// A model with its nodes in topological order, captures of bodies included.
pub fn sorted(mut model: Model) -> Model {
    topological_order::sort(model.graph_mut());
    model
}

/// Finishes an edited graph: cancels and merges movements around the seeds, and removes nodes and
/// constants that only removed nodes read, and notes about removed values.
///
/// `seeds` are the values at which nodes were removed.
pub fn simplify(editor: Editor, seeds: &[String], shapes: &KnownShapes) -> GraphProto {
    let Edited {
        mut graph,
        before,
        pinned,
    } = editor.edited();
    // A new value without readers served a node that was removed as well.
    let was_read = |name: &str| before.reads(name) || before.value(name).is_none();
    let mut seeds = seeds.to_vec();
    seeds.extend(movements::cancel(&mut graph, &seeds, shapes));
    // Movements join only where no other reader is left between them.
    dce::remove(&mut graph, &was_read, &pinned);
    let is_joined = movements::join(&mut graph, &seeds, shapes);
    topological_order::sort(&mut graph);
    let is_merged = cse_layouts::merge(&mut graph, &seeds, shapes);
    if is_joined || is_merged {
        dce::remove(&mut graph, &was_read, &pinned);
    }
    reserved_names::rename_all(&mut graph);
    graph
}

/// [`simplify`] with the shapes of the graph that the editor began with.
///
/// `seeds` are values of that graph, and `made` has the new values, each with one of that graph that has its shape.
pub fn simplify_known(
    mut editor: Editor,
    mut seeds: Vec<String>,
    analysis: &Analysis,
    made: &HashMap<String, ValueId>,
) -> GraphProto {
    for seed in &mut seeds {
        *seed = editor.current(seed);
    }
    let origins = ShapeOrigins {
        analysis,
        made,
        renamed: editor.origins(),
    };
    let shapes = KnownShapes {
        shape: &|name| origins.shape(name),
        extents: &|name| analysis.facts.extents(analysis.graph.value(name)?),
    };
    simplify(editor, &seeds, &shapes)
}

/// The values of the original graph that tell the shapes of those of an edited one.
struct ShapeOrigins<'a> {
    analysis: &'a Analysis<'a>,
    made: &'a HashMap<String, ValueId>,
    renamed: hash::HashMap<String, String>,
}

impl ShapeOrigins<'_> {
    fn shape(&self, name: &str) -> Option<Shape> {
        let value = self
            .value(name)
            .or_else(|| self.value(self.renamed.get(name)?))?;
        self.analysis.facts.shape(value)
    }

    fn value(&self, name: &str) -> Option<ValueId> {
        let made = self.made.get(name).copied();
        made.or_else(|| self.analysis.graph.value(name))
    }
}
