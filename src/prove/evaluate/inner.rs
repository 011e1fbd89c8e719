//! The inside of a node: the bodies of an If or a loop, and the function that it calls.

use std::collections::{HashMap, HashSet};

use super::{Around, Evaluation, Graded, Stopped};
use crate::ir::axes::axis;
use crate::ir::editor::reads;
use crate::onnx::node::{bodies, canonical_domain, states};
use crate::onnx::proto::{AttributeProto, FunctionProto, NodeProto};
use crate::onnx::tensor::DataType;
use crate::passes::inline::functions::resolve;
use crate::prove::field_value::FieldValue;
use crate::prove::operators::Unmade;
use crate::prove::operators::integers::wrapped;
use crate::prove::random::{Digest, Hash};
use crate::shape::facts::Expected;

/// The limit for nested calls of functions and nested bodies; deeper ones are not evaluated.
const DEEPEST: usize = 32;

/// The results of the bodies of a node, as functions of captures and inputs.
pub(super) struct Bodies {
    /// Their digest.
    pub digest: Digest,
    /// The results of the node, as far as they follow.
    pub results: Vec<Expected>,
    /// Integer results that are equal in both branches of an If, and all results of the branch that
    /// an If is known to take.
    pub known: Vec<Option<FieldValue>>,
}

impl Evaluation<'_> {
    /// The results of the bodies of a node, if they can be evaluated: those of a loop once, on
    /// random elements.
    pub(super) fn bodies(
        &self,
        node: &NodeProto,
        opset: i64,
        inputs: &[Option<FieldValue>],
        place: &Around,
    ) -> Result<Option<Bodies>, Stopped> {
        if bodies(node).next().is_none() {
            return Ok(None);
        }
        let taken = self.taken(node, place);
        let evaluated = match self.formals(node, opset, inputs, place.rounds) {
            Some(formals) if place.depth < DEEPEST => {
                self.evaluated(node, opset, &formals, taken, place)?
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
                self.doubt.set(self.doubt.get() + degree);
                hash.digest(image.digest(self.point.key));
            }
        }
        let slots = 0..node.output.len();
        let results = slots
            .clone()
            .map(|slot| result(node, slot, inputs, &made))
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

    /// The inputs of the bodies of a node; `None` where they are unknown.
    fn formals(
        &self,
        node: &NodeProto,
        opset: i64,
        inputs: &[Option<FieldValue>],
        rounds: usize,
    ) -> Option<Vec<FieldValue>> {
        let drawn = |slot: usize, shape: &[usize], like: Option<&FieldValue>| {
            let mut hash = Hash::new(self.point.key, "formal");
            hash.number(rounds as u64);
            hash.number(slot as u64);
            let seed = hash.finish();
            match like {
                Some(FieldValue::Field(_)) => FieldValue::random(seed, shape, false),
                Some(FieldValue::Opaque(_)) => FieldValue::Opaque(seed),
                // A condition is one of two, whatever else.
                None if slot == 1 => FieldValue::drawn(seed, shape, DataType::Bool),
                _ => FieldValue::drawn(seed, shape, DataType::Int64),
            }
        };
        let like = |(slot, input): (usize, &Option<FieldValue>)| {
            let input = input.as_ref()?;
            Some(drawn(slot, input.shape().unwrap_or_default(), Some(input)))
        };
        match node.op() {
            ("", "If") => Some(vec![]),
            ("", "Loop") => {
                let states = inputs.iter().enumerate().skip(2).map(like);
                [Some(drawn(0, &[], None)), Some(drawn(1, &[], None))]
                    .into_iter()
                    .chain(states)
                    .collect()
            }
            ("", "Scan") if opset >= 9 => {
                let states = states(node, inputs.len())?;
                let taken = |(place, input): (usize, &Option<FieldValue>)| {
                    let input = input.as_ref()?;
                    let mut shape = input.shape()?.to_vec();
                    shape.remove(scanned_axis(node, "scan_input_axes", place, shape.len())?);
                    Some(drawn(states + place, &shape, Some(input)))
                };
                let given = inputs[..states].iter().enumerate().map(like);
                given
                    .chain(inputs[states..].iter().enumerate().map(taken))
                    .collect()
            }
            _ => None,
        }
    }

    /// The results of each body, in the order of their names, or of the taken one; `None` where a
    /// body does not fit its inputs, or reads a missing value.
    fn evaluated(
        &self,
        node: &NodeProto,
        opset: i64,
        formals: &[FieldValue],
        taken: Option<usize>,
        place: &Around,
    ) -> Result<Option<Vec<Vec<Graded>>>, Stopped> {
        let mut attributes: Vec<&AttributeProto> = node.attribute.iter().collect();
        attributes.sort_by_key(|attribute| attribute.name());
        let mut made = vec![];
        let first = node
            .output
            .iter()
            .find(|name| !name.is_empty())
            .map_or("", String::as_str);
        let bodies = attributes
            .into_iter()
            .filter_map(|attribute| Some((attribute, attribute.g.as_deref()?)));
        for (attribute, body) in bodies
            .enumerate()
            .filter(|(at, _)| taken.is_none_or(|taken| taken == *at))
            .map(|(_, body)| body)
        {
            let way = place
                .way
                .map(|way| format!("{way}{first}.{}/", attribute.name()));
            let rounds = place.rounds + usize::from(!formals.is_empty());
            let place = &Around {
                node: None,
                way: way.as_deref(),
                rounds,
                ..*place
            };
            let is_plain = body.sparse_initializer.is_empty() && body.input.len() == formals.len();
            if !is_plain {
                return Ok(None);
            }
            let mut values: HashMap<String, Graded> = HashMap::new();
            let given = body.input.iter().zip(formals);
            values.extend(
                given.map(|(input, formal)| (input.name().to_owned(), (formal.clone(), 1.0))),
            );
            for tensor in &body.initializer {
                values.insert(
                    tensor.name().to_owned(),
                    (self.tensor(tensor.name(), tensor)?, 0.0),
                );
            }
            let nodes = needed(&body.node, body.output.iter().map(|output| output.name()));
            let last = last_reads(&nodes, body.output.iter().map(|output| output.name()));
            for (inner, last) in nodes.into_iter().zip(last) {
                let is_there =
                    |name: &String| values.contains_key(name) || (place.outer)(name).is_some();
                if !inner
                    .input
                    .iter()
                    .filter(|name| !name.is_empty())
                    .all(is_there)
                {
                    return Ok(None);
                }
                match self.inner(inner, opset, &mut values, place) {
                    Err(Stopped {
                        stop: Unmade::Uncovered | Unmade::Misfit,
                        ..
                    }) => return Ok(None),
                    done => done?,
                }
                last.iter().for_each(|&name| drop(values.remove(name)));
            }
            let result = |name: &str| values.get(name).cloned().or_else(|| (place.outer)(name));
            let results = body.output.iter().map(|output| result(output.name()));
            let Some(results) = results.collect::<Option<Vec<_>>>() else {
                return Ok(None);
            };
            made.push(results);
        }
        Ok(Some(made))
    }

    /// Computes a node of a body, or of a function.
    fn inner(
        &self,
        node: &NodeProto,
        opset: i64,
        values: &mut HashMap<String, Graded>,
        place: &Around,
    ) -> Result<(), Stopped> {
        // Even a node that makes nothing takes its time.
        let room = self.point.allowance.room(&[64]);
        room.map_err(|stop| Stopped {
            stop,
            at: node.label(),
        })?;
        let read = |name: &str| values.get(name).cloned().or_else(|| (place.outer)(name));
        let (inputs, degrees): (Vec<_>, Vec<_>) =
            node.input.iter().map(|name| read(name).unzip()).unzip();
        let degrees: Vec<f64> = degrees.into_iter().map(Option::unwrap_or_default).collect();
        let inside = Around {
            node: None,
            outer: &read,
            depth: place.depth + 1,
            ..*place
        };
        let is_opaque = |image: &FieldValue| matches!(image, FieldValue::Opaque(_));
        let reads_opaque = inputs.iter().flatten().any(is_opaque);
        let settled: Vec<bool> = degrees.iter().map(|&degree| degree == 0.0).collect();
        let (made, guessed) =
            self.node(node, node.output.len(), opset, inputs, &settled, &inside)?;
        if reads_opaque || made.iter().any(is_opaque) {
            self.is_uncertain.set(true);
        }
        let degree = self.degree(node, &degrees, guessed);
        let known = self.known_of(node, &inside);
        let data_type = |slot: usize| {
            let (known, id) = known?;
            known.facts.data_type(known.graph.output(id, slot)?)
        };
        let made = made
            .into_iter()
            .enumerate()
            .map(|(slot, made)| match data_type(slot) {
                Some(data_type) => (wrapped(made, data_type), degree),
                None => (made, degree),
            });
        values.extend(
            node.output
                .iter()
                .cloned()
                .zip(made)
                .filter(|(name, _)| !name.is_empty()),
        );
        Ok(())
    }

    /// A call of a function is its body.
    pub(super) fn call(
        &self,
        function: &FunctionProto,
        call: &NodeProto,
        inputs: &[Option<FieldValue>],
        settled: &[bool],
        depth: usize,
    ) -> Result<Vec<FieldValue>, Stopped> {
        let uncovered = || Stopped {
            stop: Unmade::Uncovered,
            at: call.label(),
        };
        if depth >= DEEPEST
            || function
                .node
                .iter()
                .any(|node| bodies(node).next().is_some())
        {
            return Err(uncovered());
        }
        let own = function
            .opset_import
            .iter()
            .find(|set| canonical_domain(set.domain()).is_empty());
        let opset = own.map_or(self.opset(), |set| set.version());
        let mut values: HashMap<String, Graded> = HashMap::new();
        for ((name, value), &is_settled) in function.input.iter().zip(inputs).zip(settled) {
            let degree = if is_settled { 0.0 } else { 1.0 };
            values.extend(value.clone().map(|value| (name.clone(), (value, degree))));
        }
        let place = Around {
            node: None,
            way: None,
            outer: &|_: &str| None,
            depth,
            rounds: 0,
        };
        let nodes = needed(&function.node, function.output.iter().map(String::as_str));
        let last = last_reads(&nodes, function.output.iter().map(String::as_str));
        for (inner, last) in nodes.into_iter().zip(last) {
            let mut node = NodeProto {
                attribute: vec![],
                ..inner.clone()
            };
            for attribute in &inner.attribute {
                node.attribute
                    .extend(resolve(attribute, function, call).ok_or_else(uncovered)?);
            }
            // Random elements are those of this call.
            node.name = Some(format!("{}/{}", call.label(), inner.label()));
            self.inner(&node, opset, &mut values, &place)?;
            last.iter().for_each(|&name| drop(values.remove(name)));
        }
        let made = function
            .output
            .iter()
            .map(|name| values.get(name).map(|(image, _)| image.clone()));
        made.collect::<Option<_>>().ok_or_else(uncovered)
    }
}

/// The integers that an If makes whatever its condition is.
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

/// The nodes of a body or a function that its results need, in their order.
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

/// The values that each of these nodes reads last, or makes for no reader.
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

/// The result of a node, derived from the results of its bodies.
fn result(
    node: &NodeProto,
    slot: usize,
    inputs: &[Option<FieldValue>],
    made: &[Vec<Graded>],
) -> Expected {
    let known = |image: &FieldValue| {
        Some((
            image.shape()?.to_vec(),
            matches!(image, FieldValue::Int(_) | FieldValue::Varying(_)),
        ))
    };
    let of = |body: usize, slot: usize| known(&made.get(body)?.get(slot)?.0);
    let given = |slot: usize| known(inputs.get(slot)?.as_ref()?);
    let result = match node.op_type() {
        "If" => of(0, slot).filter(|one| of(1, slot).as_ref() == Some(one)),
        // An unchanged state keeps its value; the extents of scan outputs depend on the run.
        "Loop" => of(0, slot + 1).filter(|one| given(slot + 2).as_ref() == Some(one)),
        _ => match states(node, inputs.len()).and_then(|states| slot.checked_sub(states)) {
            Some(row) => of(0, slot)
                .and_then(|(step, sort)| Some((gathered(node, row, inputs, step)?, sort))),
            None => of(0, slot).filter(|one| given(slot).as_ref() == Some(one)),
        },
    };
    let (shape, is_integer) = result.unzip();
    Expected { shape, is_integer }
}

/// The axis that a Scan names for one of several values, which are of this rank; the first where it names none.
fn scanned_axis(node: &NodeProto, list: &str, place: usize, rank: usize) -> Option<usize> {
    let named = node
        .attr_ints(list)
        .ok()?
        .map_or(Some(0), |axes| axes.get(place).copied())?;
    axis(named, rank).ok()
}

/// The extents of what a Scan gathers of its steps: those of one, and an axis of as many places as there are steps.
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
