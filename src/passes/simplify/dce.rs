//! Dead code elimination: nodes, constants and notes without readers.

use crate::hash::{HashMap, HashSet, map_of, set_of};
use crate::ir::editor::reads;
use crate::onnx::node::bodies;
use crate::onnx::proto::GraphProto;

/// Removes values that had a reader (`was_read`) and have none now. `pinned` values stay.
pub fn remove(graph: &mut GraphProto, was_read: &dyn Fn(&str) -> bool, pinned: &HashSet<&str>) {
    let Dead { nodes, values } = Dead::find(graph, was_read, pinned);
    let mut nodes = nodes.into_iter();
    graph.node.retain(|_| nodes.next() != Some(true));
    let kept = |name: &str| pinned.contains(name) || !values.contains(name);
    graph.initializer.retain(|tensor| kept(tensor.name()));
    graph.sparse_initializer.retain(|sparse| {
        sparse
            .values
            .as_ref()
            .is_none_or(|values| kept(values.name()))
    });
    forget(graph);
}

/// The dead values.
struct Dead {
    /// Which nodes, by place.
    nodes: Vec<bool>,
    /// The initializers.
    values: HashSet<String>,
}

/// The producer of a value, and its number of readers: nodes, and callers of the model.
#[derive(Default)]
struct Use {
    maker: Option<u32>,
    readers: u32,
}

impl Dead {
    fn find(graph: &GraphProto, was_read: &dyn Fn(&str) -> bool, pinned: &HashSet<&str>) -> Self {
        let mut known: HashMap<&str, Use> = map_of(graph.node.len() + graph.initializer.len());
        let captured: HashMap<usize, HashSet<&str>> = graph
            .node
            .iter()
            .enumerate()
            .map(|(place, node)| (place, bodies(node).flat_map(reads).collect::<HashSet<_>>()))
            .filter(|(_, names)| !names.is_empty())
            .collect();
        let read_by = |place: usize| {
            let captured = captured.get(&place).into_iter().flatten().copied();
            graph.node[place]
                .input
                .iter()
                .map(String::as_str)
                .chain(captured)
        };
        for (place, node) in graph.node.iter().enumerate() {
            node.output
                .iter()
                .for_each(|name| known.entry(name).or_default().maker = Some(place as u32));
            read_by(place).for_each(|name| known.entry(name).or_default().readers += 1);
        }
        graph
            .output
            .iter()
            .for_each(|output| known.entry(output.name()).or_default().readers += 1);
        let noted = graph
            .quantization_annotation
            .iter()
            .flat_map(|note| &note.quant_parameter_tensor_names);
        noted.for_each(|entry| known.entry(entry.value()).or_default().readers += 1);
        for name in pinned {
            if let Some(value) = known.get_mut(name) {
                value.readers += 1;
            }
        }
        let is_unread = |name: &str, known: &HashMap<&str, Use>| {
            known.get(name).is_none_or(|value| value.readers == 0)
        };
        let is_dead = |place: usize, known: &HashMap<&str, Use>| {
            let mut made = graph.node[place]
                .output
                .iter()
                .filter(|name| !name.is_empty());
            made.clone().all(|name| is_unread(name, known)) && made.any(|name| was_read(name))
        };
        let mut nodes = vec![false; graph.node.len()];
        let unread = known
            .values()
            .filter(|value| value.readers == 0)
            .filter_map(|value| value.maker);
        let mut open: Vec<usize> = unread
            .map(|maker| maker as usize)
            .filter(|&place| is_dead(place, &known))
            .collect();
        while let Some(place) = open.pop() {
            if std::mem::replace(&mut nodes[place], true) {
                continue;
            }
            for name in read_by(place) {
                let Some(value) = known.get_mut(name) else {
                    continue;
                };
                value.readers -= 1;
                if let Some(maker) = value.maker.map(|maker| maker as usize)
                    && !nodes[maker]
                    && is_dead(maker, &known)
                {
                    open.push(maker);
                }
            }
        }
        let tensors = graph.initializer.iter().map(|tensor| tensor.name());
        let sparse = graph
            .sparse_initializer
            .iter()
            .filter_map(|s| Some(s.values.as_ref()?.name()));
        let unread = tensors
            .chain(sparse)
            .filter(|name| is_unread(name, &known) && was_read(name));
        Dead {
            nodes,
            values: unread.map(str::to_owned).collect(),
        }
    }
}

/// Drops notes about removed values.
fn forget(graph: &mut GraphProto) {
    if graph.value_info.is_empty() && graph.quantization_annotation.is_empty() {
        return;
    }
    let mut there = set_of(graph.node.len() + graph.initializer.len());
    there.extend(
        graph
            .node
            .iter()
            .flat_map(|node| &node.output)
            .map(String::as_str),
    );
    there.extend(graph.initializer.iter().map(|tensor| tensor.name()));
    there.extend(
        graph
            .sparse_initializer
            .iter()
            .filter_map(|s| Some(s.values.as_ref()?.name())),
    );
    there.extend(graph.input.iter().map(|input| input.name()));
    let stale = |name: &str| !there.contains(name);
    // A note without a type only reserves a name.
    graph
        .value_info
        .retain(|info| info.r#type.is_none() || !stale(info.name()));
    graph
        .quantization_annotation
        .retain(|annotation| !stale(annotation.tensor_name()));
}
