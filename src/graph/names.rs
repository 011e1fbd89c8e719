//! Names that nothing in a model has yet.

use std::collections::{HashMap, HashSet};

use crate::onnx::Model;
use crate::onnx::node::bodies;
use crate::onnx::proto::GraphProto;

/// The supply of names for what is added to the main graph.
///
/// A new name differs from every name that anything in the model says: a body sees the names around it,
/// and what declares or annotates a value that does not exist would speak of the new one.
///
/// ```
/// use unfold::graph::names::Names;
/// use unfold::onnx::Model;
/// let mut names = Names::of(&Model::open("models/digits/un-dynamo.onnx")?);
/// assert_eq!(names.fresh("x"), "x_1"); // the input of the model is x
/// assert_eq!(names.fresh("x"), "x_2");
/// # Ok::<(), unfold::error::Error>(())
/// ```
pub struct Names {
    taken: HashSet<String>,
    /// How often each wish has been met by another name, so that many equal wishes do not cost a search each.
    counts: HashMap<String, usize>,
}

impl Names {
    /// Every name of a model is taken: those of its main graph, of the bodies in it, and of what trains it.
    pub fn of(model: &Model) -> Self {
        let mut taken = HashSet::new();
        collect(model.graph(), &mut taken);
        for training in &model.proto.training_info {
            let graphs = training.initialization.iter().chain(&training.algorithm);
            graphs.for_each(|graph| collect(graph, &mut taken));
            let bindings = training.initialization_binding.iter().chain(&training.update_binding);
            taken.extend(bindings.flat_map(|binding| [binding.key().to_owned(), binding.value().to_owned()]));
        }
        Names { taken, counts: HashMap::new() }
    }

    /// A name that nothing has yet, and something has from now on: the wish itself, or with a number.
    pub fn fresh(&mut self, wish: &str) -> String {
        if self.taken.insert(wish.to_owned()) {
            return wish.to_owned();
        }
        let count = self.counts.entry(wish.to_owned()).or_default();
        loop {
            *count += 1;
            let name = format!("{wish}_{count}");
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
    }
}

/// The names of nodes and values that a graph and the bodies inside it make, read, declare or annotate.
fn collect(graph: &GraphProto, names: &mut HashSet<String>) {
    for node in &graph.node {
        names.insert(node.name().to_owned());
        names.extend(node.input.iter().chain(&node.output).cloned());
        bodies(node).for_each(|body| collect(body, names));
    }
    let sparse =
        graph.sparse_initializer.iter().flat_map(|sparse| sparse.values.iter().chain(&sparse.indices));
    names.extend(graph.initializer.iter().chain(sparse).map(|tensor| tensor.name().to_owned()));
    let declared = graph.input.iter().chain(&graph.output).chain(&graph.value_info);
    names.extend(declared.map(|info| info.name().to_owned()));
    for annotation in &graph.quantization_annotation {
        names.insert(annotation.tensor_name().to_owned());
        names.extend(annotation.quant_parameter_tensor_names.iter().map(|entry| entry.value().to_owned()));
    }
}
