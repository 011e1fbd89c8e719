//! Renames values if onnxruntime's own passes would give their names to new values.
//!
//! A file that onnxruntime wrote contains names that its passes give. onnxruntime refuses to load
//! the file if its pass then finds another match, such as a product with a bias: "Attempt to
//! replace the existing tensor".

use crate::hash::HashSet;
use crate::ir::editor::collect_names;
use crate::onnx::node::{is_defined_in_bodies, rename_reads};
use crate::onnx::proto::GraphProto;

/// The names that onnxruntime's MatMulAddFusion adds.
const GIVEN: [&str; 2] = ["gemm_input_shape", "gemm_output_shape"];

/// The suffix that onnxruntime appends if a name is taken. A number follows it.
const AGAIN: &str = "_token_";

/// Renames stored tensors whose name is one of [`GIVEN`], or one of these names with the suffix.
pub(super) fn rename_all(graph: &mut GraphProto) {
    let stored = graph
        .initializer
        .iter()
        .filter_map(|tensor| Some((tensor.name().to_owned(), base(tensor.name())?)));
    for (given, base) in stored.collect::<Vec<_>>() {
        if is_end(graph, &given) || is_defined_in_bodies(graph, &given) {
            continue;
        }
        let Some(name) = free_name(graph, base) else {
            continue;
        };
        let tensors = graph
            .initializer
            .iter_mut()
            .filter(|tensor| tensor.name() == given);
        tensors.for_each(|tensor| tensor.name = Some(name.clone()));
        graph.value_info.retain(|value| value.name() != given);
        rename_reads(&mut graph.node, &given, &name);
    }
}

/// A name that begins with `base` and is not yet used in the graph.
fn free_name(graph: &GraphProto, base: &str) -> Option<String> {
    let mut names = HashSet::default();
    collect_names(graph, &mut names);
    (0..)
        .map(|number| format!("{base}_{number}"))
        .find(|name| !names.contains(name.as_str()))
}

/// The name in [`GIVEN`] from which onnxruntime derived `name`. `None` if there is no such name.
fn base(name: &str) -> Option<&'static str> {
    GIVEN.into_iter().find(|given| {
        let rest = name.strip_prefix(given);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(AGAIN))
    })
}

/// Whether an input or an output of the model has this name.
fn is_end(graph: &GraphProto, name: &str) -> bool {
    let mut ends = graph.input.iter().chain(&graph.output);
    ends.any(|end| end.name() == name)
}
