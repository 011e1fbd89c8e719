//! Creates names that do not exist in a model yet.

use crate::hash::{HashMap, HashSet, set_of};
use crate::ir::Graph;
use crate::onnx::Model;
use crate::onnx::node::bodies;
use crate::onnx::proto::GraphProto;

/// Creates names for additions to the main graph.
///
/// A new name differs from every name in the model, also from unused ones. Otherwise a body could
/// read the new value by accident, or a leftover declaration or annotation could apply to the new
/// value.
pub(crate) struct Names<'m> {
    /// The graph with the taken names of values.
    beside: Option<&'m Graph<'m>>,
    /// The other names of the model, which are taken too.
    taken: HashSet<&'m str>,
    /// The names created so far.
    given: HashSet<String>,
    /// The last number appended to each requested name, so that repeated requests need no search.
    counts: HashMap<String, usize>,
}

impl<'m> Names<'m> {
    /// Collects all names of a model as taken: those of its main graph, of its bodies, and of its
    /// training information.
    pub(crate) fn new(model: &'m Model) -> Self {
        let graph = model.graph();
        let mut taken = set_of(2 * graph.node.len() + graph.initializer.len());
        collect(graph, &mut taken);
        Names::with(None, taken, model)
    }

    /// Like [`Names::new`] for the model of `graph`, but looks up the names of values in `graph`
    /// instead of collecting them.
    pub(crate) fn beside(graph: &'m Graph<'m>) -> Self {
        let mut taken = set_of(graph.proto().node.len());
        collect_others(graph.proto(), &mut taken);
        Names::with(Some(graph), taken, graph.model())
    }

    fn with(beside: Option<&'m Graph<'m>>, mut taken: HashSet<&'m str>, model: &'m Model) -> Self {
        collect_training(model, &mut taken, collect);
        Names {
            beside,
            taken,
            given: HashSet::default(),
            counts: HashMap::default(),
        }
    }

    /// Returns a name that does not exist yet, and marks it as taken. The name is `wish`, or `wish`
    /// with a number.
    pub(crate) fn fresh(&mut self, wish: &str) -> String {
        let mut name = wish.to_owned();
        if self.is_taken(wish) {
            let mut count = self.counts.get(wish).copied().unwrap_or(0);
            while self.is_taken(&name) {
                count += 1;
                name = format!("{wish}_{count}");
            }
            self.counts.insert(wish.to_owned(), count);
        }
        self.given.insert(name.clone());
        name
    }

    fn is_taken(&self, name: &str) -> bool {
        self.beside.is_some_and(|graph| graph.value(name).is_some())
            || self.taken.contains(name)
            || self.given.contains(name)
    }
}

/// The names in the bodies and in the training information of a model. In a flattened graph,
/// declarations without a type list the names that its bodies had. These names are included.
pub(crate) fn inner(model: &Model) -> HashSet<&str> {
    let (graph, mut names) = (model.graph(), HashSet::default());
    graph
        .node
        .iter()
        .flat_map(bodies)
        .for_each(|body| collect(body, &mut names));
    names.extend(
        graph
            .value_info
            .iter()
            .filter(|info| info.r#type.is_none())
            .map(|info| info.name()),
    );
    collect_training(model, &mut names, collect);
    names
}

/// Collects the names to which a model's training information refers, and the names in its graphs.
pub(crate) fn collect_training<'m>(
    model: &'m Model,
    names: &mut HashSet<&'m str>,
    collect: impl Fn(&'m GraphProto, &mut HashSet<&'m str>),
) {
    for training in &model.proto.training_info {
        let bindings = training
            .initialization_binding
            .iter()
            .chain(&training.update_binding);
        names.extend(bindings.flat_map(|binding| [binding.key(), binding.value()]));
        let graphs = training.initialization.iter().chain(&training.algorithm);
        for graph in graphs {
            collect(graph, names);
            names.extend(of_gradients(graph));
        }
    }
}

/// The names of the values in the Gradient nodes of a graph.
pub(crate) fn of_gradients(graph: &GraphProto) -> impl Iterator<Item = &str> {
    let gradients = graph
        .node
        .iter()
        .filter(|node| node.op() == ("ai.onnx.preview.training", "Gradient"));
    let names = gradients
        .flat_map(|node| &node.attribute)
        .flat_map(|attribute| attribute.strings.iter().chain(&attribute.s));
    names.filter_map(|name| std::str::from_utf8(name).ok())
}

/// Collects the names of nodes and values that a graph and the bodies inside it define, read,
/// declare or annotate.
fn collect<'m>(graph: &'m GraphProto, names: &mut HashSet<&'m str>) {
    for node in &graph.node {
        names.extend(node.input.iter().chain(&node.output).map(String::as_str));
    }
    let sparse = graph
        .sparse_initializer
        .iter()
        .flat_map(|sparse| &sparse.values);
    names.extend(
        graph
            .initializer
            .iter()
            .chain(sparse)
            .map(|tensor| tensor.name()),
    );
    names.extend(
        graph
            .input
            .iter()
            .chain(&graph.output)
            .map(|info| info.name()),
    );
    collect_others(graph, names);
}

/// Collects the names in a graph and its bodies that need not be names of values of the graph
/// itself.
fn collect_others<'m>(graph: &'m GraphProto, names: &mut HashSet<&'m str>) {
    for node in &graph.node {
        names.insert(node.name());
        bodies(node).for_each(|body| collect(body, names));
    }
    let indices = graph
        .sparse_initializer
        .iter()
        .flat_map(|sparse| &sparse.indices);
    names.extend(indices.map(|tensor| tensor.name()));
    names.extend(graph.value_info.iter().map(|info| info.name()));
    for annotation in &graph.quantization_annotation {
        names.insert(annotation.tensor_name());
        names.extend(
            annotation
                .quant_parameter_tensor_names
                .iter()
                .map(|entry| entry.value()),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_names_are_numbered() {
        let model = Model::open("models/digits/un-dynamo.onnx").unwrap();
        let mut names = Names::new(&model);
        assert_eq!(names.fresh("x"), "x_1"); // the input of the model is x
        assert_eq!(names.fresh("x"), "x_2");
    }
}
