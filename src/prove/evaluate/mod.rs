//! Evaluates a graph at one point, value by value in topological order. Each value is dropped after
//! its last reader.

mod constants;
mod degree;
mod function;
mod inner;
mod node;
mod results;
mod unchanged;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};

pub(super) use constants::constant_integers;

use super::operators::integers::wrapped;
use super::operators::{Allowance, Call, NotEvaluated};
use super::random::{Digest, Hash};
use super::roots::{RootContext, RootRule};
use super::scales::Scales;
use crate::affine::recognize::batch_invariant::Alike;
use crate::analysis::Analysis;
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::external_data::Externals;
use crate::onnx::operator::Category;
use crate::onnx::proto::{FunctionProto, NodeProto, TensorProto};
use crate::onnx::tensor::{self, DataType};
use crate::passes::inline::functions::{FunctionId, key};
use crate::prove::field_value::{FieldValue, of_tensor};
use crate::shape::facts::extent;

/// The reason why a graph could not be evaluated.
#[derive(Debug, Clone)]
pub(super) struct Stopped {
    /// The cause.
    pub stop: NotEvaluated,
    /// The name of the value or the node that could not be evaluated.
    pub at: String,
}

impl Stopped {
    fn at(stop: NotEvaluated, name: &str) -> Self {
        let at = name.to_owned();
        Self { stop, at }
    }

    fn at_node(stop: NotEvaluated, node: &NodeProto) -> Self {
        let at = node.label();
        Self { stop, at }
    }
}

/// Returns the value that replaces a stored tensor, given its name. `None` if the tensor keeps its
/// elements.
pub(super) type Instead<'i> = &'i dyn Fn(&str) -> Option<Result<FieldValue, NotEvaluated>>;

/// The parameters of an evaluation.
pub(super) struct Point<'p> {
    /// The graph, in which all extents of inputs are known.
    pub analysis: &'p Analysis<'p>,
    /// The seed from which all random elements of this evaluation are derived.
    pub key: u64,
    /// The definition of the root.
    pub roots: RootRule,
    /// The values of the inputs, and of computed constants that are known.
    pub inputs: &'p HashMap<String, FieldValue>,
    /// The values that replace stored tensors.
    pub instead: Instead<'p>,
    /// The limits of computation.
    pub allowance: &'p Allowance,
    /// The float64 values of constants, as recipes compute them. `None` if no constant is computed
    /// by more than arithmetic.
    pub alike: Option<&'p Alike<'p>>,
    /// The analysis of the graph with flattened bodies, and the float64 values of its constants.
    /// `None` if the graph has no bodies.
    pub laid_out: Option<(&'p Analysis<'p>, Option<&'p Alike<'p>>)>,
    /// The values about which less would be known if the sizes were open.
    pub only_at_sizes: &'p OnlyAtSizes,
    /// Whether any recipe is more than arithmetic.
    pub has_formulas: bool,
    /// The positive factors that pass through operators. `None` in an evaluation that does not use
    /// them.
    pub scales: Option<&'p Scales>,
    /// Whether the digests of stored tensors are recorded, and not only those of inputs and results.
    pub records_tensors: bool,
}

/// The names of values about which less would be known if the extents of the inputs were open.
#[derive(Default)]
pub(super) struct OnlyAtSizes {
    /// The values that are constant only at these extents.
    pub constants: HashSet<String>,
    /// The outputs whose extents are known only at these extents.
    pub outputs: HashSet<String>,
}

/// The results of an evaluation.
#[derive(Default)]
pub(super) struct Findings {
    /// The digests of the values, by the indices of the values. `None` for values that were not
    /// needed.
    pub digests: Vec<Option<Digest>>,
    /// The requested values themselves, if `evaluate` was called with `keep`.
    pub kept: HashMap<ValueId, FieldValue>,
    /// The names of values in which a difference proves nothing: values of unknown extents, and
    /// results of uninterpreted functions that read such values, or whose extents hold only at this
    /// point.
    pub opaque: HashSet<String>,
    /// The names of results of nodes whose bodies were not evaluated, or not completely.
    pub uncertain: HashSet<String>,
    /// The names of requested values that have no elements at this point, although their extents
    /// are not known to be 0.
    pub empty: HashSet<String>,
    /// The element types of requested values by name. Unknown types are missing.
    pub types: HashMap<String, DataType>,
    /// Whether the number of places that a NonZero finds was drawn at random.
    pub draws_counts: bool,
    /// Whether the root of a value is taken that depends on inputs.
    pub takes_roots: bool,
    /// The sum of the degrees of results and of arguments of uninterpreted functions. It bounds the
    /// probability that different results agree at a random point.
    pub degree: f64,
}

/// Evaluates the values `wanted` and all nodes that they depend on. Returns the values themselves
/// only if `keep`.
///
/// # Errors
/// If a divisor is 0, if extents do not fit each other, if an operator cannot be evaluated, or if
/// the computation exceeds the limits.
pub(super) fn evaluate(point: &Point, wanted: &[ValueId], keep: bool) -> Result<Findings, Stopped> {
    let mut evaluation = Evaluation::new(point, wanted);
    let graph = &point.analysis.graph;
    let mut findings = Findings {
        digests: vec![None; graph.value_count()],
        ..Findings::default()
    };
    for &node in graph.order() {
        if evaluation.is_needed[node] {
            evaluation.step(node, &mut findings)?;
        }
    }
    for &value in wanted {
        let made = evaluation.find(value, &mut findings)?;
        if keep {
            findings.kept.insert(value, made);
        }
    }
    for (value, digest) in &evaluation.sources {
        findings.digests[index(*value)].get_or_insert(*digest);
    }
    findings.degree += evaluation.doubt.get();
    findings.draws_counts = evaluation.draws_counts.get();
    findings.takes_roots = evaluation.roots.is_used();
    Ok(findings)
}

fn index(value: ValueId) -> usize {
    value.0 as usize
}

/// The values that a node or its bodies read.
fn reads<'g>(graph: &'g Graph, node: NodeId) -> impl Iterator<Item = ValueId> + use<'g> {
    let inputs = graph.inputs(node).iter().flatten();
    inputs.chain(graph.captures(node)).copied()
}

struct Evaluation<'w> {
    point: &'w Point<'w>,
    functions: HashMap<FunctionId<'w>, &'w FunctionProto>,
    /// The digests of functions, computed on demand.
    defined: RefCell<HashMap<FunctionId<'w>, Digest>>,
    is_needed: Vec<bool>,
    values: Vec<Option<FieldValue>>,
    /// The number of remaining readers of each value.
    readers: Vec<usize>,
    /// The degree of each value as a polynomial in the random elements.
    degrees: Vec<f64>,
    /// The sum of the degrees of the arguments of uninterpreted functions.
    doubt: Cell<f64>,
    roots: RootContext,
    draws_counts: Cell<bool>,
    /// The names of constants with infinite or NaN elements.
    unbounded: RefCell<HashSet<String>>,
    /// The digests of inputs, and of stored tensors if they are recorded.
    sources: Vec<(ValueId, Digest)>,
    /// Whether a body could not be evaluated, or not completely.
    is_uncertain: Cell<bool>,
    /// Whether the extents of the current node's results were inferred from values at this point.
    is_of_point: Cell<bool>,
}

/// A value with its degree.
type Graded = (FieldValue, f64);

/// The graph that contains a node: the main graph, a body or a function.
struct Location<'c> {
    /// The node's id in the main graph. `None` in a body or function.
    node: Option<NodeId>,
    /// The region path of the body that contains the node. `None` in a function.
    region: Option<&'c str>,
    /// The values that the node can capture from the graphs around it.
    scope: Option<&'c CaptureScope<'c>>,
    depth: usize,
    /// The number of enclosing bodies with inputs. A branch of an If does not count, since the
    /// other model may have this branch in place of the If.
    rounds: usize,
}

impl Location<'_> {
    /// The value with this name in the graphs around the node. `None` if there is no such value.
    fn captured(&self, name: &str) -> Option<Graded> {
        self.scope?.get(name)
    }
}

/// The values that a body may capture, by name: the values of the nearest enclosing graph, then
/// those of the graph around it, and so on.
struct CaptureScope<'s> {
    values: &'s HashMap<String, Graded>,
    outer: Option<&'s CaptureScope<'s>>,
}

impl CaptureScope<'_> {
    fn get(&self, name: &str) -> Option<Graded> {
        match self.values.get(name) {
            Some(value) => Some(value.clone()),
            None => self.outer?.get(name),
        }
    }
}

/// How a node was evaluated.
struct EvaluatedNode<'o> {
    node: &'o NodeProto,
    /// The degree of its results.
    degree: f64,
    /// Whether the node was evaluated as an uninterpreted function.
    is_guessed: bool,
    reads_opaque: bool,
}

impl<'w> Evaluation<'w> {
    fn new(point: &'w Point<'w>, wanted: &[ValueId]) -> Self {
        let graph = &point.analysis.graph;
        let count = graph.value_count();
        let functions = &graph.model().proto.functions;
        let (is_needed, readers) = needed(point, wanted);
        Self {
            point,
            functions: functions.iter().map(|f| (key(f), f)).collect(),
            defined: RefCell::default(),
            is_needed,
            values: vec![None; count],
            readers,
            degrees: vec![0.0; count],
            doubt: Cell::new(0.0),
            roots: RootContext::new(point.roots, point.key),
            draws_counts: Cell::new(false),
            unbounded: RefCell::default(),
            sources: vec![],
            is_uncertain: Cell::new(false),
            is_of_point: Cell::new(false),
        }
    }

    fn externals(&self) -> &Externals {
        self.point.analysis.graph.model().externals()
    }

    fn opset(&self) -> i64 {
        self.point.analysis.graph.model().own_opset()
    }

    /// Returns a value: one that is already computed, an input, a stored tensor or a sparse
    /// initializer.
    fn get(&mut self, value: ValueId) -> Result<FieldValue, Stopped> {
        if let Some(made) = &self.values[index(value)] {
            return Ok(made.clone());
        }
        let graph = &self.point.analysis.graph;
        let name = graph.value_name(value);
        let found = match (self.point.inputs.get(name), graph.initializer(value)) {
            (Some(input), _) => {
                let is_computed = graph.producer(value).is_some();
                self.degrees[index(value)] = if is_computed { 0.0 } else { 1.0 };
                input.clone()
            }
            (None, Some(tensor)) => self.tensor(name, tensor)?,
            (None, None) => FieldValue::Opaque(self.sparse_initializer(name)),
        };
        if self.point.records_tensors || self.point.inputs.contains_key(name) {
            self.sources.push((value, found.digest(self.point.key)));
        }
        self.values[index(value)] = Some(found.clone());
        Ok(found)
    }

    /// The digest of the sparse initializer with this name.
    fn sparse_initializer(&self, name: &str) -> Digest {
        let mut hash = Hash::new(self.point.key, "sparse");
        for sparse in &self.point.analysis.graph.proto().sparse_initializer {
            if sparse.values.as_ref().is_some_and(|t| t.name() == name) {
                self.sparse(sparse, &mut hash);
            }
        }
        hash.finish()
    }

    /// The value of a stored tensor, or the value that replaces it.
    fn tensor(&self, name: &str, tensor: &TensorProto) -> Result<FieldValue, Stopped> {
        match (self.point.instead)(name) {
            Some(instead) => instead.map_err(|stop| Stopped::at(stop, name)),
            None => self.held(name, tensor),
        }
    }

    /// The elements of a stored tensor. Recipes do not replace them here.
    fn held(&self, name: &str, tensor: &TensorProto) -> Result<FieldValue, Stopped> {
        let extents = tensor.dims.iter();
        let shape: Vec<usize> = extents.map(|&extent| extent.max(0) as usize).collect();
        let room = self.point.allowance.room(&shape);
        room.map_err(|stop| Stopped::at(stop, name))?;
        match of_tensor(tensor, self.externals(), self.point.key) {
            // Opaque elements are accepted only if they are neither integers nor floats, such as
            // strings. For all other types, opaque means that the elements cannot be read.
            FieldValue::Opaque(_)
                if !tensor::data_type(tensor).is_ok_and(|t| !t.is_integer() && !t.is_float()) =>
            {
                Err(Stopped::at(NotEvaluated::Uncovered, name))
            }
            image => Ok(image),
        }
    }

    /// Evaluates a node, and drops values without remaining readers.
    fn step(&mut self, node: NodeId, findings: &mut Findings) -> Result<(), Stopped> {
        let point = self.point;
        let graph = &point.analysis.graph;
        let proto = graph.node(node);
        let mut inputs = vec![];
        let mut degrees = vec![];
        for value in graph.inputs(node) {
            inputs.push(value.map(|value| self.get(value)).transpose()?);
            degrees.push(value.map_or(0.0, |value| self.degrees[index(value)]));
        }
        let captured = self.captured(node)?;
        let scope = CaptureScope {
            values: &captured,
            outer: None,
        };
        let location = Location {
            node: Some(node),
            region: Some(""),
            scope: Some(&scope),
            depth: 0,
            rounds: 0,
        };
        let mut given = inputs.iter().flatten();
        let reads_opaque = given.any(|input| matches!(input, FieldValue::Opaque(_)));
        let settled: Vec<bool> = degrees.iter().map(|&degree| degree == 0.0).collect();
        self.is_uncertain.set(false);
        self.is_of_point.set(false);
        let call = Call {
            node: proto,
            opset: self.opset(),
            inputs,
            wanted: self.wanted_results(node),
            allowance: point.allowance,
            roots: &self.roots,
            settled: &settled,
        };
        self.roots
            .set_of_constants(settled.iter().all(|&settled| settled));
        let (made, is_guessed) = self.node(call, &location)?;
        let origin = EvaluatedNode {
            node: proto,
            degree: self.degree(proto, &degrees, is_guessed),
            is_guessed,
            reads_opaque,
        };
        for (value, made) in graph.outputs(node).iter().zip(made) {
            if let Some(value) = *value {
                self.keep(value, made, &origin, findings);
            }
        }
        self.release(node);
        Ok(())
    }

    /// The values that the bodies of a node capture, by name.
    fn captured(&mut self, node: NodeId) -> Result<HashMap<String, Graded>, Stopped> {
        let graph = &self.point.analysis.graph;
        let mut captured = HashMap::new();
        for &value in graph.captures(node) {
            let made = self.get(value)?;
            let name = graph.value_name(value).to_owned();
            captured.insert(name, (made, self.degrees[index(value)]));
        }
        Ok(captured)
    }

    /// The number of results of a node to compute: all results up to the last one that has a
    /// reader.
    fn wanted_results(&self, node: NodeId) -> usize {
        let outputs = self.point.analysis.graph.outputs(node);
        let last = outputs
            .iter()
            .rposition(|value| value.is_some_and(|value| self.readers[index(value)] > 0));
        last.map_or(0, |last| last + 1)
    }

    /// Stores a result until its last reader, with its digest and its degree.
    fn keep(
        &mut self,
        value: ValueId,
        made: FieldValue,
        origin: &EvaluatedNode,
        findings: &mut Findings,
    ) {
        let analysis = self.point.analysis;
        let name = analysis.graph.value_name(value);
        let made = match analysis.facts.data_type(value) {
            Some(data_type) => wrapped(made, data_type),
            None => made,
        };
        if self.is_uncertain.get() {
            findings.uncertain.insert(name.to_owned());
        }
        // A difference in an opaque or unsure value proves nothing: elements may be known in only
        // one graph, or extents may hold only at this point.
        let category = origin.node.category();
        let is_of_each = category.is_some_and(Category::is_elementwise);
        let is_float = matches!(made, FieldValue::Field(_) | FieldValue::Masked(_));
        let is_computed = is_of_each && is_float;
        let is_of_point = self.is_of_point.get() && !is_computed;
        let is_unsure = origin.is_guessed && (origin.reads_opaque || is_of_point);
        if matches!(made, FieldValue::Opaque(_)) || is_unsure {
            findings.opaque.insert(name.to_owned());
        }
        let value = index(value);
        findings.digests[value] = Some(made.digest(self.point.key));
        self.degrees[value] = origin.degree;
        self.values[value] = Some(made).filter(|_| self.readers[value] > 0);
    }

    /// Drops the values for which a node is the last reader.
    fn release(&mut self, node: NodeId) {
        for value in reads(&self.point.analysis.graph, node).map(index) {
            self.readers[value] = self.readers[value].saturating_sub(1);
            if self.readers[value] == 0 {
                self.values[value] = None;
            }
        }
    }

    /// Returns a requested value, and adds its digest, degree and type to the findings.
    fn find(&mut self, value: ValueId, findings: &mut Findings) -> Result<FieldValue, Stopped> {
        let analysis = self.point.analysis;
        let name = analysis.graph.value_name(value);
        let made = self.get(value)?;
        findings.digests[index(value)].get_or_insert_with(|| made.digest(self.point.key));
        findings.degree += self.degrees[index(value)];
        if made.shape().is_some() && made.len() == 0 && !self.has_fixed_shape(value) {
            findings.empty.insert(name.to_owned());
        }
        if let Some(data_type) = analysis.facts.data_type(value) {
            findings.types.insert(name.to_owned(), data_type);
        }
        Ok(made)
    }

    /// Whether the extents of a value are known for all sizes of the inputs. An extent that is a
    /// symbol of no input counts as unknown.
    fn has_fixed_shape(&self, value: ValueId) -> bool {
        let analysis = self.point.analysis;
        let shape = analysis.facts.shape(value);
        let is_known = shape.is_some_and(|shape| shape.iter().all(|dim| extent(dim).is_some()));
        let only_at_sizes = &self.point.only_at_sizes.outputs;
        is_known && !only_at_sizes.contains(analysis.graph.value_name(value))
    }

    /// Adds the degree of the arguments of an uninterpreted function to the doubt.
    fn add_doubt(&self, degree: f64) {
        self.doubt.set(self.doubt.get() + degree);
    }
}

/// Whether each node is needed for these values, and the number of readers of each value. A node is
/// not needed for a value that the inputs of the point contain.
fn needed(point: &Point, wanted: &[ValueId]) -> (Vec<bool>, Vec<usize>) {
    let graph = &point.analysis.graph;
    let mut is_needed = vec![false; graph.proto().node.len()];
    let mut readers = vec![0; graph.value_count()];
    let mut open: Vec<ValueId> = wanted.to_vec();
    // Requested values are needed until the end.
    for &value in wanted {
        readers[index(value)] += 1;
    }
    while let Some(value) = open.pop() {
        if point.inputs.contains_key(graph.value_name(value)) {
            continue;
        }
        let producer = graph.producer(value);
        let Some((node, _)) = producer.filter(|&(node, _)| !is_needed[node]) else {
            continue;
        };
        is_needed[node] = true;
        for read in reads(graph, node) {
            readers[index(read)] += 1;
            open.push(read);
        }
    }
    (is_needed, readers)
}
