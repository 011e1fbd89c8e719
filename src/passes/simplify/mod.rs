//! Simplification: removes dead code, and movements around folded sites. These passes also fold
//! constants and branches, and eliminate common subexpressions.
//!
//! Values that no node read in the original model stay.

mod branch_folding;
mod constant_folding;
mod constant_origins;
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
mod whole_model;
mod zero_states;

use std::collections::HashMap;

use crate::analysis::Analysis;
use crate::hash;
use crate::ir::ValueId;
use crate::ir::editor::{Edited, Editor};
use crate::onnx::Model;
use crate::onnx::proto::GraphProto;
use crate::shape::facts::Shape;

pub(crate) use constant_folding::NamedFloats;
pub(crate) use constant_origins::ConstantOrigins;
pub(crate) use movements::is_movement;
pub(crate) use whole_model::{
    ConstantResults, Simplified, fold_branches, fold_constants, merge_equal, remove_identities,
    remove_neutral, share_weights, without_dead_code,
};

/// The shapes of values of the original graph, by name.
pub(crate) struct KnownShapes<'k> {
    /// The extents of a value.
    pub shape: &'k dyn Fn(&str) -> Option<Shape>,
    /// The elements of a value that is a shape itself.
    pub extents: &'k dyn Fn(&str) -> Option<Shape>,
}

/// The model with its nodes in topological order. A value that a body captures counts as an input
/// of the node with the body.
pub(crate) fn sorted(mut model: Model) -> Model {
    topological_order::sort(model.graph_mut());
    model
}

/// Finishes an edited graph. First cancels and merges movements around the seeds. Then removes
/// nodes and constants that only removed nodes read, and metadata of removed values.
///
/// `seeds` are the values at which nodes were removed.
pub(crate) fn simplify(editor: Editor, seeds: &[String], shapes: &KnownShapes) -> GraphProto {
    let Edited {
        mut graph,
        before,
        pinned,
    } = editor.edited();
    // A new value counts as read before the edits: it was added for a reader. If it has no readers
    // now, that reader was removed.
    let was_read = |name: &str| before.reads(name) || before.value(name).is_none();
    let mut seeds = seeds.to_vec();
    seeds.extend(movements::cancel(&mut graph, &seeds, shapes));
    // Dead code is removed first, because movements are merged only if no other node reads the
    // values between them.
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

/// Calls [`simplify`] with the shapes of the graph from which the editor began.
///
/// `seeds` are values of the original graph. `made` maps each new value to a value of the original
/// graph with the same shape.
pub(crate) fn simplify_known(
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

/// Maps the values of an edited graph to values of the original graph with the same shapes.
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
