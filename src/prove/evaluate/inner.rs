//! Evaluates the inside of a node: the bodies of an If or a loop, and the function that it calls.

use std::collections::{HashMap, HashSet};

use super::{CaptureScope, Evaluation, Graded, Location, Stopped};
use crate::ir::axes::axis;
use crate::ir::editor::reads;
use crate::onnx::node::{bodies, canonical_domain, states};
use crate::onnx::proto::{AttributeProto, FunctionProto, GraphProto, NodeProto};
use crate::onnx::tensor::DataType;
use crate::passes::inline::functions::resolve;
use crate::prove::field_value::FieldValue;
use crate::prove::operators::integers::wrapped;
use crate::prove::operators::{Call, NotEvaluated};
use crate::prove::random::{Digest, Hash};
use crate::shape::facts::Expected;

/// The maximum depth of nested calls and bodies. Calls and bodies at a larger depth are not
/// evaluated.
const DEEPEST: usize = 32;

/// The outcome of evaluating the bodies of a node.
pub(super) struct Bodies {
    /// The digest of the results of all bodies.
    pub digest: Digest,
    /// The facts about the results of the node that follow from its bodies.
    pub results: Vec<Expected>,
    /// The known results of the node by index: integers on which both branches of an If agree, or
    /// all results of the branch that an If is known to take.
    pub known: Vec<Option<FieldValue>>,
}

impl Evaluation<'_> {
    /// Evaluates the bodies of a node. The body of a loop is evaluated only once, with random
    /// elements as its inputs. `None` if the node has no bodies, or if they cannot be evaluated.
    pub(super) fn bodies(
        &self,
        call: &Call,
        location: &Location,
    ) -> Result<Option<Bodies>, Stopped> {
        let node = call.node;
        if bodies(node).next().is_none() {
            return Ok(None);
        }
        let taken = self.taken(node, location);
        let evaluated = match self.formals(call, location.rounds) {
            Some(formals) if location.depth < DEEPEST => {
                self.evaluated(call, &formals, taken, location)?
            }
            _ => None,
        };
        let Some(made) = evaluated else {
            self.is_uncertain.set(true);
            return Ok(None);
        };
        let mut hash = Hash::new(self.point.key, "bodies");
        for results in &made {
            hash.number(results.len() as u64);
            for (image, degree) in results {
                self.add_doubt(*degree);
                hash.digest(image.digest(self.point.key));
            }
        }
        let slots = 0..node.output.len();
        let results = slots
            .clone()
            .map(|slot| result(node, slot, &call.inputs, &made))
            .collect();
        let known = match (taken, &made[..]) {
            (Some(_), [made]) => made.iter().map(|(image, _)| Some(image.clone())).collect(),
            _ => slots.map(|slot| agreed(node, slot, &made)).collect(),
        };
        Ok(Some(Bodies {
            digest: hash.finish(),
            results,
            known,
        }))
    }

    /// The values for the inputs of a node's bodies: none for an If, and random values for a Loop
    /// or a Scan. `None` if the initial value of a state or a scanned input is missing, or if the
    /// extents of a scanned input are unknown. Also `None` for all other operators, and for a Scan
    /// before operator set 9.
    fn formals(&self, call: &Call, rounds: usize) -> Option<Vec<FieldValue>> {
        let formals = Formals {
            key: self.point.key,
            rounds,
        };
        match call.node.op() {
            ("", "If") => Some(vec![]),
            ("", "Loop") => formals.of_loop(&call.inputs),
            ("", "Scan") if call.opset >= 9 => formals.of_scan(call.node, &call.inputs),
            _ => None,
        }
    }

    /// The results of each body in the order of the attribute names, or only those of the body with
    /// the index `taken`. `None` if one of these bodies cannot be evaluated.
    fn evaluated(
        &self,
        call: &Call,
        formals: &[FieldValue],
        taken: Option<usize>,
        location: &Location,
    ) -> Result<Option<Vec<Vec<Graded>>>, Stopped> {
        let mut attributes: Vec<&AttributeProto> = call.node.attribute.iter().collect();
        attributes.sort_by_key(|attribute| attribute.name());
        let mut outputs = call.node.output.iter();
        let first = outputs
            .find(|name| !name.is_empty())
            .map_or("", String::as_str);
        let bodies = attributes
            .into_iter()
            .filter_map(|attribute| Some((attribute, attribute.g.as_deref()?)));
        let mut made = vec![];
        for (place, (attribute, body)) in bodies.enumerate() {
            if taken.is_some_and(|taken| taken != place) {
                continue;
            }
            let region = location
                .region
                .map(|region| format!("{region}{first}.{}/", attribute.name()));
            let inside = Location {
                node: None,
                region: region.as_deref(),
                rounds: location.rounds + usize::from(!formals.is_empty()),
                ..*location
            };
            let Some(results) = self.body_results(body, call.opset, formals, &inside)? else {
                return Ok(None);
            };
            made.push(results);
        }
        Ok(Some(made))
    }

    /// The results of one body for these inputs. `None` if the body stores sparse tensors or has
    /// another number of inputs, if a value that it needs is missing, or if one of its nodes cannot
    /// be evaluated or has extents that do not fit each other.
    fn body_results(
        &self,
        body: &GraphProto,
        opset: i64,
        formals: &[FieldValue],
        location: &Location,
    ) -> Result<Option<Vec<Graded>>, Stopped> {
        if !body.sparse_initializer.is_empty() || body.input.len() != formals.len() {
            return Ok(None);
        }
        let mut values: HashMap<String, Graded> = HashMap::new();
        for (input, formal) in body.input.iter().zip(formals) {
            values.insert(input.name().to_owned(), (formal.clone(), 1.0));
        }
        for tensor in &body.initializer {
            let value = self.tensor(tensor.name(), tensor)?;
            values.insert(tensor.name().to_owned(), (value, 0.0));
        }
        let nodes = needed(&body.node, body.output.iter().map(|output| output.name()));
        let last = last_reads(&nodes, body.output.iter().map(|output| output.name()));
        for (inner, last) in nodes.into_iter().zip(last) {
            if !has_inputs(inner, &values, location) {
                return Ok(None);
            }
            match self.inner(inner, opset, &mut values, location) {
                Err(Stopped {
                    stop: NotEvaluated::Uncovered | NotEvaluated::Misfit,
                    ..
                }) => return Ok(None),
                done => done?,
            }
            last.iter().for_each(|&name| drop(values.remove(name)));
        }
        let scope = CaptureScope {
            values: &values,
            outer: location.scope,
        };
        let outputs = body.output.iter();
        Ok(outputs.map(|output| scope.get(output.name())).collect())
    }

    /// Evaluates a node of a body or of a function, and adds its results to `values`.
    fn inner(
        &self,
        node: &NodeProto,
        opset: i64,
        values: &mut HashMap<String, Graded>,
        location: &Location,
    ) -> Result<(), Stopped> {
        // Each node counts against the limits, because even a node without results takes time.
        let room = self.point.allowance.room(&[64]);
        room.map_err(|stop| Stopped::at_node(stop, node))?;
        let scope = CaptureScope {
            values,
            outer: location.scope,
        };
        let inside = Location {
            node: None,
            scope: Some(&scope),
            depth: location.depth + 1,
            ..*location
        };
        let read = node.input.iter().map(|name| scope.get(name).unzip());
        let (inputs, degrees): (Vec<_>, Vec<Option<f64>>) = read.unzip();
        let degrees: Vec<f64> = degrees.into_iter().map(Option::unwrap_or_default).collect();
        let reads_opaque = inputs.iter().flatten().any(is_opaque);
        let settled: Vec<bool> = degrees.iter().map(|&degree| degree == 0.0).collect();
        let call = Call {
            node,
            opset,
            inputs,
            wanted: node.output.len(),
            allowance: self.point.allowance,
            roots: &self.roots,
            settled: &settled,
        };
        let of_constants = settled.iter().all(|&settled| settled);
        let outer = self.roots.set_of_constants(of_constants);
        let made = self.node(call, &inside);
        self.roots.set_of_constants(outer);
        let (made, guessed) = made?;
        if reads_opaque || made.iter().any(is_opaque) {
            self.is_uncertain.set(true);
        }
        let degree = self.degree(node, &degrees, guessed);
        let types = self.result_types(node, &inside);
        for (slot, (name, made)) in node.output.iter().zip(made).enumerate() {
            let made = match types.get(slot).copied().flatten() {
                Some(data_type) => wrapped(made, data_type),
                None => made,
            };
            if !name.is_empty() {
                values.insert(name.clone(), (made, degree));
            }
        }
        Ok(())
    }

    /// The element type of each result of a node in a body. `None` for a result of unknown type.
    /// Empty for a node of a function.
    fn result_types(&self, node: &NodeProto, location: &Location) -> Vec<Option<DataType>> {
        let Some((analysis, id)) = self.analyzed(node, location) else {
            return vec![];
        };
        let outputs = analysis.graph.outputs(id).iter();
        outputs
            .map(|output| analysis.facts.data_type((*output)?))
            .collect()
    }

    /// Evaluates a call of a function through the function's body. Refused if the body contains
    /// control flow, if calls are nested too deeply, or if a result is missing.
    pub(super) fn call(
        &self,
        function: &FunctionProto,
        call: &Call,
        depth: usize,
    ) -> Result<Vec<FieldValue>, Stopped> {
        let mut inner_nodes = function.node.iter();
        let has_bodies = inner_nodes.any(|node| bodies(node).next().is_some());
        if depth >= DEEPEST || has_bodies {
            return Err(uncovered(call));
        }
        let mut sets = function.opset_import.iter();
        let own = sets.find(|set| canonical_domain(set.domain()).is_empty());
        let opset = own.map_or(self.opset(), |set| set.version());
        let mut values: HashMap<String, Graded> = HashMap::new();
        let given = call.inputs.iter().zip(call.settled);
        for (name, (value, &is_settled)) in function.input.iter().zip(given) {
            let degree = if is_settled { 0.0 } else { 1.0 };
            values.extend(value.clone().map(|value| (name.clone(), (value, degree))));
        }
        let location = Location {
            node: None,
            region: None,
            scope: None,
            depth,
            rounds: 0,
        };
        let nodes = needed(&function.node, function.output.iter().map(String::as_str));
        let last = last_reads(&nodes, function.output.iter().map(String::as_str));
        for (inner, last) in nodes.into_iter().zip(last) {
            let node = resolved(inner, function, call).ok_or_else(|| uncovered(call))?;
            self.inner(&node, opset, &mut values, &location)?;
            last.iter().for_each(|&name| drop(values.remove(name)));
        }
        let outputs = function.output.iter();
        let made = outputs.map(|name| values.get(name).map(|(image, _)| image.clone()));
        made.collect::<Option<_>>().ok_or_else(|| uncovered(call))
    }
}

fn is_opaque(value: &FieldValue) -> bool {
    matches!(value, FieldValue::Opaque(_))
}

fn uncovered(call: &Call) -> Stopped {
    Stopped::at_node(NotEvaluated::Uncovered, call.node)
}

/// Whether all inputs of a node have values.
fn has_inputs(node: &NodeProto, values: &HashMap<String, Graded>, location: &Location) -> bool {
    let mut read = node.input.iter().filter(|name| !name.is_empty());
    read.all(|name| values.contains_key(name) || location.captured(name).is_some())
}

/// A copy of a function's node, in which the attributes of a call replace references to the
/// function's attributes. `None` if the call lacks an attribute.
fn resolved(inner: &NodeProto, function: &FunctionProto, call: &Call) -> Option<NodeProto> {
    let mut node = NodeProto {
        attribute: vec![],
        ..inner.clone()
    };
    for attribute in &inner.attribute {
        node.attribute
            .extend(resolve(attribute, function, call.node)?);
    }
    // The new name makes the random elements of this call differ from those of other calls.
    node.name = Some(format!("{}/{}", call.node.label(), inner.label()));
    Some(node)
}

/// Draws random values for the inputs of bodies.
struct Formals {
    key: u64,
    /// The number of enclosing bodies that have inputs.
    rounds: usize,
}

impl Formals {
    /// Random values for the iteration number, the condition and the states of a Loop. `None` if
    /// the initial value of a state is missing.
    fn of_loop(&self, inputs: &[Option<FieldValue>]) -> Option<Vec<FieldValue>> {
        let round = FieldValue::drawn(self.seed(0), &[], DataType::Int64);
        // A Boolean is drawn as 0 or 1.
        let condition = FieldValue::drawn(self.seed(1), &[], DataType::Bool);
        let states = inputs.iter().enumerate().skip(2);
        let states = states.map(|(slot, input)| Some(self.like(slot, input.as_ref()?)));
        [Some(round), Some(condition)]
            .into_iter()
            .chain(states)
            .collect()
    }

    /// Random values for the states of a Scan, and for one step of each scanned input. `None` if an
    /// input is missing, if the extents of a scanned input are unknown, or if an attribute of the
    /// Scan is invalid.
    fn of_scan(&self, node: &NodeProto, inputs: &[Option<FieldValue>]) -> Option<Vec<FieldValue>> {
        let states = states(node, inputs.len())?;
        let mut formals = vec![];
        for (slot, input) in inputs.iter().enumerate() {
            let input = input.as_ref()?;
            let Some(place) = slot.checked_sub(states) else {
                formals.push(self.like(slot, input));
                continue;
            };
            let mut shape = input.shape()?.to_vec();
            shape.remove(scanned_axis(node, "scan_input_axes", place, shape.len())?);
            formals.push(self.of_kind(slot, &shape, input));
        }
        Some(formals)
    }

    /// A random value with the extents and the kind of `value`.
    fn like(&self, slot: usize, value: &FieldValue) -> FieldValue {
        self.of_kind(slot, value.shape().unwrap_or_default(), value)
    }

    /// A random value of this shape. It consists of elements of the field or of integers, or it is
    /// opaque, whichever `like` is.
    fn of_kind(&self, slot: usize, shape: &[usize], like: &FieldValue) -> FieldValue {
        match like {
            FieldValue::Field(_) | FieldValue::Masked(_) => {
                FieldValue::random(self.seed(slot), shape, false)
            }
            FieldValue::Opaque(_) => FieldValue::Opaque(self.seed(slot)),
            _ => FieldValue::drawn(self.seed(slot), shape, DataType::Int64),
        }
    }

    fn seed(&self, slot: usize) -> Digest {
        let mut hash = Hash::new(self.key, "formal");
        hash.number(self.rounds as u64);
        hash.number(slot as u64);
        hash.finish()
    }
}

/// The integers that both branches of an If return as a result. `None` if the branches return
/// different integers or other values, and for other operators.
fn agreed(node: &NodeProto, slot: usize, made: &[Vec<Graded>]) -> Option<FieldValue> {
    let [one, other] = made else { return None };
    match (&one.get(slot)?.0, &other.get(slot)?.0) {
        (FieldValue::Int(these), FieldValue::Int(those))
            if these == those && node.op() == ("", "If") =>
        {
            Some(FieldValue::Int(these.clone()))
        }
        _ => None,
    }
}

/// The nodes of a body or a function on which `results` depend, in their order in the body.
fn needed<'g>(
    nodes: &'g [NodeProto],
    results: impl Iterator<Item = &'g str>,
) -> Vec<&'g NodeProto> {
    let mut read: HashSet<&str> = results.collect();
    let mut needed = vec![];
    for node in nodes.iter().rev() {
        if node.output.iter().any(|name| read.contains(name.as_str())) {
            read.extend(
                node.input
                    .iter()
                    .map(String::as_str)
                    .chain(bodies(node).flat_map(reads)),
            );
            needed.push(node);
        }
    }
    needed.reverse();
    needed
}

/// For each node, the names of values that can be dropped after it, because no later node reads
/// them and they are not among `results`.
fn last_reads<'g>(
    nodes: &[&'g NodeProto],
    results: impl Iterator<Item = &'g str>,
) -> Vec<Vec<&'g str>> {
    let mut last: HashMap<&str, usize> = HashMap::new();
    for (place, node) in nodes.iter().enumerate() {
        let captured = bodies(node).flat_map(reads);
        let own = node.input.iter().chain(&node.output).map(String::as_str);
        last.extend(own.chain(captured).map(|name| (name, place)));
    }
    for name in results {
        last.remove(name);
    }
    let mut ends = vec![vec![]; nodes.len()];
    last.into_iter()
        .for_each(|(name, place)| ends[place].push(name));
    ends
}

/// The facts about a result of a node, derived from the results of its bodies.
fn result(
    node: &NodeProto,
    slot: usize,
    inputs: &[Option<FieldValue>],
    made: &[Vec<Graded>],
) -> Expected {
    let result = match node.op_type() {
        "If" => {
            let other = body_kind(made, 1, slot);
            body_kind(made, 0, slot).filter(|one| other.as_ref() == Some(one))
        }
        // A Loop's scan outputs have no known extents, because the number of steps depends on the
        // run.
        "Loop" => state_kind(made, slot + 1, inputs.get(slot + 2)),
        _ => match states(node, inputs.len()).and_then(|states| slot.checked_sub(states)) {
            Some(row) => body_kind(made, 0, slot).and_then(|(step, is_integer)| {
                Some((gathered(node, row, inputs, step)?, is_integer))
            }),
            None => state_kind(made, slot, inputs.get(slot)),
        },
    };
    let (shape, is_integer) = result.unzip();
    Expected { shape, is_integer }
}

/// The extents of a value, and whether its elements are integers.
type ValueKind = (Vec<usize>, bool);

fn kind(value: &FieldValue) -> Option<ValueKind> {
    let is_integer = matches!(value, FieldValue::Int(_) | FieldValue::Varying(_));
    Some((value.shape()?.to_vec(), is_integer))
}

fn body_kind(made: &[Vec<Graded>], body: usize, slot: usize) -> Option<ValueKind> {
    kind(&made.get(body)?.get(slot)?.0)
}

/// The kind of a state of a loop. `None` if one step changes the kind, or if it is unknown.
fn state_kind(
    made: &[Vec<Graded>],
    slot: usize,
    before: Option<&Option<FieldValue>>,
) -> Option<ValueKind> {
    let before = kind(before?.as_ref()?)?;
    body_kind(made, 0, slot).filter(|after| *after == before)
}

/// The axis that the attribute `list` of a Scan gives for the value at index `place`, which has
/// rank `rank`. The first axis if the attribute is missing. `None` if the attribute has no valid
/// axis for this value.
fn scanned_axis(node: &NodeProto, list: &str, place: usize, rank: usize) -> Option<usize> {
    let named = node
        .attr_ints(list)
        .ok()?
        .map_or(Some(0), |axes| axes.get(place).copied())?;
    axis(named, rank).ok()
}

/// The extents of a scan output: the extents `step` of the value that each step adds, with an
/// additional axis for the steps. The number of steps is an extent of the first scanned input.
/// `None` if it is unknown.
fn gathered(
    node: &NodeProto,
    row: usize,
    inputs: &[Option<FieldValue>],
    mut step: Vec<usize>,
) -> Option<Vec<usize>> {
    let scanned = inputs.get(states(node, inputs.len())?)?.as_ref()?.shape()?;
    let steps = scanned[scanned_axis(node, "scan_input_axes", 0, scanned.len())?];
    step.insert(
        scanned_axis(node, "scan_output_axes", row, step.len() + 1)?,
        steps,
    );
    Some(step)
}
