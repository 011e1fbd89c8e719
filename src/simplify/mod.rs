//! Taking out what existed only for a folded site.
//!
//! Nothing else is touched: what nobody read in the original model stays, and so do reshapes that
//! have nothing to do with a site.

mod dead;
mod movement;

use crate::graph::editor::Editor;
use crate::graph::facts::Shape;
use crate::onnx::proto::GraphProto;

/// What is known of the values of the original graph, by name.
pub struct Known<'k> {
    /// The extents of a value.
    pub shape: &'k dyn Fn(&str) -> Option<Shape>,
    /// The elements of a value that is a shape itself.
    pub extents: &'k dyn Fn(&str) -> Option<Shape>,
}

/// Finishes an edited graph: movements around the seeds that undo each other or are one, nodes and constants
/// that only removed nodes read, and what was noted about values that are no more.
///
/// `seeds` are the values at which something was taken out.
pub fn simplify(editor: Editor, seeds: &[String], known: &Known) -> GraphProto {
    let (was_read, pinned) = (editor.was_read(), editor.pinned());
    let mut graph = editor.finish();
    movement::shorten(&mut graph, seeds, known);
    dead::remove(&mut graph, &was_read, &pinned);
    graph
}
