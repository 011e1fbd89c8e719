//! The words that describe the origin of nodes: classes, module paths, names of parameters.

use crate::analysis::constants::Constants;
use crate::hash::HashSet;
use crate::ir::scope::scope;
use crate::ir::{Graph, NodeId, ValueId};

/// The largest number of values that are searched for the initializers from which one constant is
/// computed.
const ORIGINS: usize = 64;

/// The origin of nodes, in words.
pub(super) struct Words {
    /// The words, in lower case and sorted, each once.
    pub words: Vec<String>,
    /// The module path of the first node that has one.
    pub path: String,
}

impl Words {
    /// Collects the words of some nodes.
    pub(super) fn from_nodes(graph: &Graph, constants: &Constants, nodes: &[NodeId]) -> Self {
        let mut words = vec![];
        let mut path = String::new();
        for &node in nodes {
            let scope = scope(graph, node);
            words.extend(split(&scope.path));
            words.extend(scope.classes.iter().flat_map(|class| split(class)));
            for &input in graph.inputs(node).iter().flatten() {
                let origins = origins(graph, constants, input);
                words.extend(origins.into_iter().flat_map(split));
            }
            if path.is_empty() {
                path = scope.path;
            }
        }
        words.sort_unstable();
        words.dedup();
        Words { words, path }
    }
}

/// Splits a qualified name into its parts, in lower case.
fn split(name: &str) -> impl Iterator<Item = String> {
    name.split(['.', '/', ':']).map(str::to_lowercase)
}

/// The names of the initializers from which a constant is computed. Empty if `value` varies.
fn origins<'g>(graph: &'g Graph, constants: &Constants, value: ValueId) -> Vec<&'g str> {
    let mut names = vec![];
    let mut open = vec![value];
    let mut seen = HashSet::default();
    while let Some(value) = open.pop() {
        if !constants.is_constant(value) || !seen.insert(value) || seen.len() > ORIGINS {
            continue;
        }
        match graph.producer(value) {
            Some((node, _)) => open.extend(graph.inputs(node).iter().flatten()),
            None => names.push(graph.value_name(value)),
        }
    }
    names
}
