//! Taking out what existed only for a folded site.
//!
//! Nothing else is touched: what nobody read in the original model stays, and so do reshapes that
//! have nothing to do with a site.

mod dead;
mod movement;

use std::collections::HashSet;

use crate::graph::editor::Editor;
use crate::graph::facts::Shape;
use crate::onnx::proto::GraphProto;

/// Finishes an edited graph: movements around the seeds that undo each other, nodes and constants
/// that only removed nodes read, and what was noted about values that are no more.
///
/// `seeds` are the values at which something was taken out; `shape` knows the extents of values.
pub fn simplify(editor: Editor, seeds: &[String], shape: &dyn Fn(&str) -> Option<Shape>) -> GraphProto {
    let (was_read, pinned) = (editor.was_read(), editor.pinned());
    let inputs: HashSet<String> = pinned;
    let mut graph = editor.finish();
    movement::cancel(&mut graph, seeds, shape);
    dead::remove(&mut graph, &was_read, &inputs);
    graph
}
