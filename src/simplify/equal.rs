//! Equal things once: operators that compute the same of the same values, or of small constants that hold the same; and
//! small constants of integers.

use prost::Message;

use crate::graph::editor::captured;
use crate::graph::flat::{END, sees, way};
use crate::hash::{HashMap, HashSet};
use crate::onnx::Model;
use crate::onnx::node::bodies;
use crate::onnx::operator::{Category, is_quantized};
use crate::onnx::proto::{AttributeProto, GraphProto, NodeProto, TensorProto};
use crate::onnx::tensor::{self, DataType};

/// What `--skip` calls them.
pub const KIND: &str = "duplicate";

/// Bytes up to which constants are compared. Larger ones are weights, which are not read for it.
const SMALL: usize = 1 << 16;

/// What makes a value, so that two which are equal make the same.
#[derive(PartialEq, Eq, Hash)]
enum Computation<'g> {
    /// Element type, extents and elements.
    Constant(i32, &'g [i64], Vec<u8>),
    /// Domain, operator, overload, attributes by name, and what is read and made.
    Node([&'g str; 3], Vec<Vec<u8>>, Vec<&'g str>, Vec<bool>),
}

/// Values, and the way to the body that they are in.
struct There<'g> {
    way: &'g str,
    names: Vec<&'g str>,
}

/// Those that were made first, in each body that does not see others.
type Firsts<'g> = HashMap<Computation<'g>, Vec<There<'g>>>;

/// Whether two constants of the same elements stand for the same numbers: what was rounded when it was stored is the
/// image of others, too.
pub type Same<'s> = &'s dyn Fn(&str, &str) -> bool;

/// The values that others take the place of, in a graph whose nodes are in order: those that were made first. Outputs of
/// the model and of bodies, and what bodies read have names that stay, and so have `pinned` tensors.
pub fn find(
    graph: &GraphProto,
    model: &Model,
    pinned: &HashSet<&str>,
    same: Same,
) -> HashMap<String, String> {
    let mut fixed: HashSet<&str> = captured(graph);
    fixed.extend(graph.output.iter().map(|output| output.name()));
    fixed.extend(graph.quantization_annotation.iter().map(|annotation| annotation.tensor_name()));
    fixed.extend(pinned);
    let ends = graph.node.iter().filter(|node| node.domain() == END);
    fixed.extend(ends.flat_map(|node| &node.input).map(String::as_str));
    let mut equals = Equals { firsts: Firsts::default(), instead: HashMap::default(), fixed: &fixed };
    let ways: HashSet<&str> = graph.node.iter().map(way).collect();
    let tensors = graph.initializer.iter().map(|tensor| (way_to(tensor.name(), &ways), tensor));
    // Bodies see those of the main graph, whichever came first.
    let (main, inner): (Vec<_>, Vec<_>) = tensors.partition(|(way, _)| way.is_empty());
    for (way, tensor) in main.into_iter().chain(inner).filter(|(_, tensor)| !pinned.contains(tensor.name())) {
        if let Some(made) = constant(tensor, &tensor.dims, model) {
            equals.add(made, There { way, names: vec![tensor.name()] }, same);
        }
    }
    for node in graph.node.iter().filter(|node| is_pure(node)) {
        let there = There { way: way(node), names: node.output.iter().map(String::as_str).collect() };
        match node.op_type() {
            "Constant" => {
                if let Some(made) = held(node).and_then(|tensor| constant(tensor, &tensor.dims, model)) {
                    equals.add(made, there, same);
                }
            }
            _ => equals.add(operation(node, &equals.instead), there, &|_, _| true),
        }
    }
    let mut instead = equals.instead;
    let read: HashSet<&str> = graph.node.iter().flat_map(|node| &node.input).map(String::as_str).collect();
    // Floats go with the operators that read them: whether two are one is not to be asked again of what was made.
    let floats: HashSet<&str> =
        graph.initializer.iter().filter(|tensor| is_float(tensor)).map(|tensor| tensor.name()).collect();
    instead.retain(|twin, _| read.contains(twin) && !floats.contains(twin));
    instead.into_iter().map(|(twin, first)| (twin.to_owned(), first.to_owned())).collect()
}

/// Lets the readers of values read others.
pub fn merge_into(graph: &mut GraphProto, instead: &HashMap<String, String>) {
    for input in graph.node.iter_mut().flat_map(|node| &mut node.input) {
        if let Some(first) = instead.get(input) {
            first.clone_into(input);
        }
    }
}

/// What was found so far.
struct Equals<'g, 'f> {
    firsts: Firsts<'g>,
    /// Whose readers read which other value.
    instead: HashMap<&'g str, &'g str>,
    fixed: &'f HashSet<&'f str>,
}

impl<'g> Equals<'g, '_> {
    /// Notes who is first, or that the values of the first are read.
    fn add(&mut self, made: Computation<'g>, there: There<'g>, same: Same) {
        let firsts = self.firsts.entry(made).or_default();
        let is_first = |first: &&There| sees(there.way, first.way) && same(first.names[0], there.names[0]);
        match firsts.iter().find(is_first) {
            Some(first) if !there.names.iter().any(|name| self.fixed.contains(name)) => {
                let pairs = there.names.into_iter().zip(first.names.iter().copied());
                self.instead.extend(pairs.filter(|(name, _)| !name.is_empty()));
            }
            Some(_) => {}
            None => firsts.push(there),
        }
    }
}

/// The way to the body that a constant is in, by its name.
fn way_to<'n>(name: &'n str, ways: &HashSet<&str>) -> &'n str {
    let mut beginnings = name.rmatch_indices('/').map(|(end, _)| &name[..=end]);
    beginnings.find(|way| ways.contains(way)).unwrap_or_default()
}

fn is_float(tensor: &TensorProto) -> bool {
    DataType::from_code(tensor.data_type()).is_some_and(DataType::is_float)
}

/// The tensor of a Constant node, where it is one.
fn held(node: &NodeProto) -> Option<&TensorProto> {
    match &node.attribute[..] {
        [attribute] if attribute.name() == "value" => attribute.t.as_deref(),
        _ => None,
    }
}

fn constant<'g>(tensor: &TensorProto, dims: &'g [i64], model: &Model) -> Option<Computation<'g>> {
    let data = tensor::data(tensor, model.externals()).ok().filter(|data| data.len() <= SMALL)?;
    Some(Computation::Constant(tensor.data_type(), dims, data.all().ok()?.to_vec()))
}

fn operation<'g>(node: &'g NodeProto, instead: &HashMap<&'g str, &'g str>) -> Computation<'g> {
    let said =
        |attribute: &AttributeProto| AttributeProto { doc_string: None, ..attribute.clone() }.encode_to_vec();
    let mut attributes: Vec<Vec<u8>> = node.attribute.iter().map(said).collect();
    attributes.sort_unstable();
    let now = |name: &'g String| instead.get(name.as_str()).copied().unwrap_or(name);
    let (domain, op) = node.op();
    let named = [domain, op, node.overload()];
    Computation::Node(named, attributes, node.input.iter().map(now).collect(), made(node))
}

fn made(node: &NodeProto) -> Vec<bool> {
    node.output.iter().map(|name| !name.is_empty()).collect()
}

/// Whether a node makes the same of the same in every run. An operator of another domain may be anything, and pairs of
/// operators around quantized weights are for engines to find.
fn is_pure(node: &NodeProto) -> bool {
    let (domain, op) = node.op();
    let is_known = domain.is_empty() || node.category().is_some();
    let may_drop = op == "Dropout" && node.output.len() + node.input.len() > 2;
    is_known
        && !may_drop
        && !is_quantized(domain, op)
        && !node.category().is_some_and(Category::is_random)
        && bodies(node).next().is_none()
}
