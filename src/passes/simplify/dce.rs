//! Dead code elimination: removes nodes, constants and metadata without readers.

use crate::hash::{HashMap, HashSet, map_of, set_of};
use crate::ir::editor::reads;
use crate::onnx::node::bodies;
use crate::onnx::proto::{GraphProto, NodeProto, SparseTensorProto};

/// Removes values that had a reader (`was_read`) and have none now. `pinned` values stay.
pub(super) fn remove(
    graph: &mut GraphProto,
    was_read: &dyn Fn(&str) -> bool,
    pinned: &HashSet<&str>,
) {
    let mut uses = Uses::new(graph, was_read, pinned);
    let mut nodes = uses.take_dead_nodes().into_iter();
    let tensors = uses.dead_tensors(pinned);
    graph.node.retain(|_| nodes.next() != Some(true));
    graph
        .initializer
        .retain(|tensor| !tensors.contains(tensor.name()));
    graph
        .sparse_initializer
        .retain(|sparse| sparse_name(sparse).is_none_or(|name| !tensors.contains(name)));
    remove_stale_notes(graph);
}

/// The producer of a value, and the number of readers of the value. An output of the model counts
/// as read.
#[derive(Default)]
struct Use {
    maker: Option<u32>,
    readers: u32,
}

/// The uses of all values of a graph.
struct Uses<'g> {
    graph: &'g GraphProto,
    was_read: &'g dyn Fn(&str) -> bool,
    /// The names that the bodies of a node read, by the index of the node.
    captured: HashMap<usize, HashSet<&'g str>>,
    by_name: HashMap<&'g str, Use>,
}

impl<'g> Uses<'g> {
    fn new(
        graph: &'g GraphProto,
        was_read: &'g dyn Fn(&str) -> bool,
        pinned: &HashSet<&str>,
    ) -> Self {
        let captured = captured(graph);
        let mut by_name: HashMap<&str, Use> = map_of(graph.node.len() + graph.initializer.len());
        for (place, node) in graph.node.iter().enumerate() {
            for name in &node.output {
                by_name.entry(name).or_default().maker = Some(place as u32);
            }
            for name in names_read(node, captured.get(&place)) {
                by_name.entry(name).or_default().readers += 1;
            }
        }
        let outputs = graph.output.iter().map(|output| output.name());
        let notes = graph.quantization_annotation.iter();
        let noted = notes.flat_map(|note| &note.quant_parameter_tensor_names);
        for name in outputs.chain(noted.map(|entry| entry.value())) {
            by_name.entry(name).or_default().readers += 1;
        }
        for name in pinned {
            if let Some(value) = by_name.get_mut(*name) {
                value.readers += 1;
            }
        }
        Uses {
            graph,
            was_read,
            captured,
            by_name,
        }
    }

    /// Returns for each node whether it is dead. Dead nodes no longer count as readers.
    fn take_dead_nodes(&mut self) -> Vec<bool> {
        let mut dead = vec![false; self.graph.node.len()];
        let mut open: Vec<usize> = self
            .by_name
            .values()
            .filter(|value| value.readers == 0)
            .filter_map(|value| value.maker)
            .map(|maker| maker as usize)
            .filter(|&place| self.is_dead(place))
            .collect();
        while let Some(place) = open.pop() {
            if std::mem::replace(&mut dead[place], true) {
                continue;
            }
            for name in names_read(&self.graph.node[place], self.captured.get(&place)) {
                let Some(value) = self.by_name.get_mut(name) else {
                    continue;
                };
                value.readers -= 1;
                if let Some(maker) = value.maker.map(|maker| maker as usize)
                    && !dead[maker]
                    && self.is_dead(maker)
                {
                    open.push(maker);
                }
            }
        }
        dead
    }

    /// The initializers that had a reader, and have none now.
    fn dead_tensors(&self, pinned: &HashSet<&str>) -> HashSet<String> {
        let dense = self.graph.initializer.iter().map(|tensor| tensor.name());
        let sparse = self.graph.sparse_initializer.iter();
        dense
            .chain(sparse.filter_map(sparse_name))
            .filter(|name| self.is_unread(name) && (self.was_read)(name))
            .filter(|name| !pinned.contains(name))
            .map(str::to_owned)
            .collect()
    }

    /// Whether a result of a node had a reader, and no result has a reader now.
    fn is_dead(&self, place: usize) -> bool {
        let outputs = &self.graph.node[place].output;
        let mut made = outputs.iter().filter(|name| !name.is_empty());
        made.clone().all(|name| self.is_unread(name)) && made.any(|name| (self.was_read)(name))
    }

    fn is_unread(&self, name: &str) -> bool {
        self.by_name
            .get(name)
            .is_none_or(|value| value.readers == 0)
    }
}

/// The names that bodies read, by the indices of their nodes.
fn captured(graph: &GraphProto) -> HashMap<usize, HashSet<&str>> {
    graph
        .node
        .iter()
        .enumerate()
        .map(|(place, node)| (place, bodies(node).flat_map(reads).collect::<HashSet<_>>()))
        .filter(|(_, names)| !names.is_empty())
        .collect()
}

/// The names that a node and its bodies read.
fn names_read<'g>(
    node: &'g NodeProto,
    captured: Option<&HashSet<&'g str>>,
) -> impl Iterator<Item = &'g str> {
    let captured = captured.into_iter().flatten().copied();
    node.input.iter().map(String::as_str).chain(captured)
}

fn sparse_name(sparse: &SparseTensorProto) -> Option<&str> {
    Some(sparse.values.as_ref()?.name())
}

/// Removes shapes and annotations of removed values.
fn remove_stale_notes(graph: &mut GraphProto) {
    if graph.value_info.is_empty() && graph.quantization_annotation.is_empty() {
        return;
    }
    let mut names: HashSet<&str> = set_of(graph.node.len() + graph.initializer.len());
    let made = graph.node.iter().flat_map(|node| &node.output);
    names.extend(made.map(String::as_str));
    names.extend(graph.initializer.iter().map(|tensor| tensor.name()));
    names.extend(graph.sparse_initializer.iter().filter_map(sparse_name));
    names.extend(graph.input.iter().map(|input| input.name()));
    // An entry without a type is kept, because it reserves a name.
    graph
        .value_info
        .retain(|info| info.r#type.is_none() || names.contains(info.name()));
    graph
        .quantization_annotation
        .retain(|annotation| names.contains(annotation.tensor_name()));
}
