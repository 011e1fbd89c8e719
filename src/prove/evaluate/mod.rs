//! A graph at one point: every value in its order, none longer than until its last reader.

mod function;
mod inner;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::iter::once;
use std::mem::take;
use std::ops::Range;

use inner::Bodies;
use ndarray::ArrayD;

use super::field;
use super::operators::integers::wrapped;
use super::operators::interpolated::{self, interpolated};
use super::operators::recurrent::{of_projection, of_sums};
use super::operators::unknown::{activated, biased, element_wise, ramp, softmax, softsign};
use super::operators::windows::without_border;
use super::operators::{Allowance, Call, Made, Unmade, interpret};
use super::random::{Digest, Hash};
use super::roots::{RootContext, RootOfMinusOne};
use super::scales::{Scales, times};
use crate::affine::recognize::batch_invariant::Alike;
use crate::analysis::Analysis;
use crate::ir::axes::axis;
use crate::ir::regions::way;
use crate::ir::{NodeId, ValueId};
use crate::onnx::external::Externals;
use crate::onnx::node::{bodies, constant_tensor};
use crate::onnx::operator::{Category, softmax_axis};
use crate::onnx::proto::{FunctionProto, NodeProto, TensorProto};
use crate::onnx::tensor::{self, DataType};
use crate::passes::inline::functions::{FunctionId, callee, key};
use crate::prove::field_value::{FieldValue, lowest, of_floats, of_numbers, of_shares, of_tensor};
use crate::prove::operators::lane_functions::{deformed, of_lanes};
use crate::shape::facts::{Expected, Operand, extent};

/// Operators whose results are truth values, whatever they read.
const TRUTHS: &[&str] = &[
    "And",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "IsInf",
    "IsNaN",
    "Less",
    "LessOrEqual",
    "Not",
    "Or",
    "Xor",
];

/// How many places hold no 0, at least, and how many such numbers there are: two values seldom have the same.
const FEWEST: usize = 2;
const NUMBERS: usize = 61;

/// Why a graph could not be evaluated.
#[derive(Debug, Clone)]
pub struct Stopped {
    /// The cause.
    pub stop: Unmade,
    /// Where.
    pub at: String,
}

/// The value of a stored tensor, by its name; `None` for its stored elements.
pub type Instead<'i> = &'i dyn Fn(&str) -> Option<Result<FieldValue, Unmade>>;

/// The parameters of an evaluation.
pub struct Point<'p> {
    /// The graph, in which every extent of an input is a number.
    pub analysis: &'p Analysis<'p>,
    /// The key of all random numbers.
    pub key: u64,
    /// How roots are taken.
    pub convention: RootOfMinusOne,
    /// The values of the inputs.
    pub inputs: &'p HashMap<String, FieldValue>,
    /// The values that replace stored tensors.
    pub instead: Instead<'p>,
    /// The limits of computation.
    pub allowance: &'p Allowance,
    /// The numbers of constants as recipes have them, where a recipe has more than arithmetic.
    pub alike: Option<&'p Alike<'p>>,
    /// The analysis of the graph with flattened bodies, if it has any.
    pub laid_out: Option<(&'p Analysis<'p>, Option<&'p Alike<'p>>)>,
    /// Facts that hold only since every extent is a number.
    pub only_at_sizes: &'p OnlyAtSizes,
    /// Whether recipes have more than arithmetic.
    pub has_formulas: bool,
    /// The positive factors that operators pass, where those are used.
    pub scales: Option<&'p Scales>,
}

/// Values of a graph of which more is known since the extents of its inputs are numbers, by name.
#[derive(Default)]
pub struct OnlyAtSizes {
    /// Values that are constant then.
    pub constants: HashSet<String>,
    /// The outputs that have known extents then.
    pub outputs: HashSet<String>,
}

/// The findings about the values of a graph, by index.
pub struct Findings {
    /// Their digests; `None` of those that were not needed.
    pub digests: Vec<Option<Digest>>,
    /// The values that were asked for.
    pub kept: HashMap<ValueId, FieldValue>,
    /// Values of unknown extents, and functions of such values, by name.
    pub opaque: HashSet<String>,
    /// Results of bodies that were not, or not wholly, evaluated, by name.
    pub uncertain: HashSet<String>,
    /// Requested values without elements, though their extents do not show it, by name.
    pub empty: HashSet<String>,
    /// The element types of requested values, as far as they are known, by name.
    pub types: HashMap<String, DataType>,
    /// Whether a number of places was drawn.
    pub draws_counts: bool,
    /// Digests of the values that roots are taken of, but for constants.
    pub radicands: HashSet<Digest>,
    /// How many different points the results would have to be compared at to leave no doubt, as a part of the field.
    pub degree: f64,
}

/// Evaluates everything that these values need, and keeps them on request.
///
/// # Errors
/// Where a divisor is 0, or more would have to be computed than is allowed.
pub fn evaluate(point: &Point, wanted: &[ValueId], keep: bool) -> Result<Findings, Stopped> {
    let mut walk = Evaluation::new(point, wanted);
    let graph = &point.analysis.graph;
    let digests = vec![None; graph.value_count()];
    let (opaque, uncertain, empty) = (HashSet::new(), HashSet::new(), HashSet::new());
    let (kept, types) = (HashMap::new(), HashMap::new());
    let radicands = HashSet::new();
    let mut seen = Findings {
        digests,
        kept,
        opaque,
        uncertain,
        empty,
        types,
        draws_counts: false,
        radicands,
        degree: 0.0,
    };
    for &node in point.analysis.graph.order() {
        if walk.is_needed[node] {
            walk.step(node, &mut seen)?;
        }
    }
    for &value in wanted {
        let made = walk.get(value)?;
        seen.digests[index(value)].get_or_insert_with(|| made.digest(point.key));
        seen.degree += walk.degrees[index(value)];
        // A symbol that no input has says nothing.
        let is_told = || {
            let shape = point.analysis.facts.shape(value);
            let is_known = shape.is_some_and(|shape| shape.iter().all(|dim| extent(dim).is_some()));
            is_known
                && !point
                    .only_at_sizes
                    .outputs
                    .contains(graph.value_name(value))
        };
        if made.shape().is_some() && made.len() == 0 && !is_told() {
            seen.empty.insert(graph.value_name(value).to_owned());
        }
        let data_type = point.analysis.facts.data_type(value);
        seen.types
            .extend(data_type.map(|data_type| (graph.value_name(value).to_owned(), data_type)));
        if keep {
            seen.kept.insert(value, made);
        }
    }
    seen.degree += walk.doubt.get();
    seen.draws_counts = walk.draws_counts.get();
    seen.radicands = walk.roots.radicands();
    Ok(seen)
}

fn index(value: ValueId) -> usize {
    value.0 as usize
}

struct Evaluation<'w> {
    point: &'w Point<'w>,
    functions: HashMap<FunctionId<'w>, &'w FunctionProto>,
    /// The digests of functions, computed on demand.
    defined: RefCell<HashMap<FunctionId<'w>, Digest>>,
    is_needed: Vec<bool>,
    values: Vec<Option<FieldValue>>,
    /// How often each value is still read.
    readers: Vec<usize>,
    /// The degree of each value as a polynomial in the random elements.
    degrees: Vec<f64>,
    /// The degrees of the arguments of uninterpreted functions.
    doubt: Cell<f64>,
    roots: RootContext,
    draws_counts: Cell<bool>,
    /// Values that are constants in which some element is not finite, by name.
    unbounded: RefCell<HashSet<String>>,
    /// Whether a body could not be evaluated, or not whole.
    is_uncertain: Cell<bool>,
    /// Whether the extents of what the node makes are those of this point alone.
    is_of_point: Cell<bool>,
}

/// A value with its degree.
type Graded = (FieldValue, f64);

/// Where a node stands: its place in the main graph, the way to the body that it is in, and the values around it.
struct Around<'c> {
    node: Option<NodeId>,
    way: Option<&'c str>,
    outer: &'c dyn Fn(&str) -> Option<Graded>,
    depth: usize,
    /// How many of the bodies around it are given values: a branch of an If may stand in its place.
    rounds: usize,
}

impl<'w> Evaluation<'w> {
    fn new(point: &'w Point<'w>, wanted: &[ValueId]) -> Self {
        let graph = &point.analysis.graph;
        let count = graph.value_count();
        let mut is_needed = vec![false; graph.proto().node.len()];
        let mut readers = vec![0; count];
        let mut open: Vec<ValueId> = wanted.to_vec();
        // Requested values are needed to the end.
        wanted.iter().for_each(|&value| readers[index(value)] += 1);
        while let Some(value) = open.pop() {
            let Some((node, _)) = graph.producer(value).filter(|&(node, _)| !is_needed[node])
            else {
                continue;
            };
            is_needed[node] = true;
            for &read in graph
                .inputs(node)
                .iter()
                .flatten()
                .chain(graph.captures(node))
            {
                readers[index(read)] += 1;
                open.push(read);
            }
        }
        let functions = graph
            .model()
            .proto
            .functions
            .iter()
            .map(|function| (key(function), function));
        let (values, degrees) = (vec![None; count], vec![0.0; count]);
        let (doubt, is_uncertain, is_of_point) =
            (Cell::new(0.0), Cell::new(false), Cell::new(false));
        Self {
            point,
            functions: functions.collect(),
            defined: RefCell::default(),
            is_needed,
            values,
            readers,
            degrees,
            doubt,
            roots: RootContext::new(point.convention),
            draws_counts: Cell::new(false),
            unbounded: RefCell::default(),
            is_uncertain,
            is_of_point,
        }
    }

    fn externals(&self) -> &Externals {
        self.point.analysis.graph.model().externals()
    }

    fn opset(&self) -> i64 {
        self.point.analysis.graph.model().own_opset()
    }

    /// A value that is known: made, stored or given.
    fn get(&mut self, value: ValueId) -> Result<FieldValue, Stopped> {
        if let Some(analysis) = &self.values[index(value)] {
            return Ok(analysis.clone());
        }
        let graph = &self.point.analysis.graph;
        let name = graph.value_name(value);
        let analysis = match (self.point.inputs.get(name), graph.initializer(value)) {
            (Some(input), _) => {
                self.degrees[index(value)] = 1.0;
                input.clone()
            }
            (None, Some(tensor)) => self.tensor(name, tensor)?,
            (None, None) => {
                let mut hash = Hash::new(self.point.key, "sparse");
                let of_name = graph.proto().sparse_initializer.iter();
                let found = of_name.filter(|s| {
                    s.values
                        .as_ref()
                        .is_some_and(|values| values.name() == name)
                });
                found.for_each(|sparse| self.sparse(sparse, &mut hash));
                FieldValue::Opaque(hash.finish())
            }
        };
        self.values[index(value)] = Some(analysis.clone());
        Ok(analysis)
    }

    /// The value of a tensor that the model stores, by its name.
    fn tensor(&self, name: &str, tensor: &TensorProto) -> Result<FieldValue, Stopped> {
        match (self.point.instead)(name) {
            Some(instead) => instead.map_err(|stop| Stopped {
                stop,
                at: name.to_owned(),
            }),
            None => self.held(name, tensor),
        }
    }

    /// The elements of a tensor.
    fn held(&self, name: &str, tensor: &TensorProto) -> Result<FieldValue, Stopped> {
        let halt = |stop| Stopped {
            stop,
            at: name.to_owned(),
        };
        let shape: Vec<usize> = tensor
            .dims
            .iter()
            .map(|&extent| extent.max(0) as usize)
            .collect();
        self.point.allowance.room(&shape).map_err(halt)?;
        match of_tensor(tensor, self.externals(), self.point.key) {
            // An unknown type, or unreadable numbers.
            FieldValue::Opaque(_)
                if !tensor::data_type(tensor).is_ok_and(|t| !t.is_integer() && !t.is_float()) =>
            {
                Err(halt(Unmade::Uncovered))
            }
            image => Ok(image),
        }
    }

    /// Computes a node, and drops values without remaining readers.
    fn step(&mut self, node: NodeId, seen: &mut Findings) -> Result<(), Stopped> {
        let graph = self.point.analysis.graph.clone();
        let proto = graph.node(node);
        let mut inputs = vec![];
        for value in graph.inputs(node) {
            inputs.push(value.map(|value| self.get(value)).transpose()?);
        }
        let mut captured: HashMap<&str, Graded> = HashMap::new();
        for &value in graph.captures(node) {
            let image = self.get(value)?;
            captured.insert(graph.value_name(value), (image, self.degrees[index(value)]));
        }
        let outer = |name: &str| captured.get(name).cloned();
        self.is_uncertain.set(false);
        self.is_of_point.set(false);
        let place = Around {
            node: Some(node),
            way: Some(""),
            outer: &outer,
            depth: 0,
            rounds: 0,
        };
        let degrees: Vec<f64> = graph
            .inputs(node)
            .iter()
            .map(|value| value.map_or(0.0, |value| self.degrees[index(value)]))
            .collect();
        let is_read =
            |value: &Option<ValueId>| value.is_some_and(|value| self.readers[index(value)] > 0);
        let wanted = graph
            .outputs(node)
            .iter()
            .rposition(is_read)
            .map_or(0, |last| last + 1);
        let reads_opaque = inputs
            .iter()
            .flatten()
            .any(|input| matches!(input, FieldValue::Opaque(_)));
        let is_settled = |&degree: &f64| degree == 0.0;
        let settled: Vec<bool> = degrees.iter().map(is_settled).collect();
        let (are_all_settled, roots) = (settled.iter().all(|&settled| settled), self.roots.len());
        let (made, guessed) = self.node(proto, wanted, self.opset(), inputs, &settled, &place)?;
        if are_all_settled {
            self.roots.truncate(roots);
        }
        let degree = self.degree(proto, &degrees, guessed);
        for (value, made) in graph.outputs(node).iter().zip(made) {
            let Some(value) = *value else { continue };
            let data_type = self.point.analysis.facts.data_type(value);
            let made = if let Some(data_type) = data_type {
                wrapped(made, data_type)
            } else {
                made
            };
            if self.is_uncertain.get() {
                seen.uncertain.insert(graph.value_name(value).to_owned());
            }
            // Numbers that are known in the other graph alone, and extents that only this point has, say nothing against it.
            let is_of_each = proto.category().is_some_and(Category::is_elementwise);
            let is_computed = is_of_each && matches!(made, FieldValue::Field(_));
            let is_of_point = self.is_of_point.get() && !is_computed;
            if matches!(made, FieldValue::Opaque(_)) || guessed && (reads_opaque || is_of_point) {
                seen.opaque.insert(graph.value_name(value).to_owned());
            }
            let value = index(value);
            seen.digests[value] = Some(made.digest(self.point.key));
            self.degrees[value] = degree;
            self.values[value] = Some(made).filter(|_| self.readers[value] > 0);
        }
        for value in graph
            .inputs(node)
            .iter()
            .flatten()
            .chain(graph.captures(node))
            .copied()
            .map(index)
        {
            self.readers[value] = self.readers[value].saturating_sub(1);
            if self.readers[value] == 0 {
                self.values[value] = None;
            }
        }
        Ok(())
    }

    /// The degree of a node's result. An uninterpreted function adds to the doubt, and its result
    /// has degree 1.
    fn degree(&self, node: &NodeProto, inputs: &[f64], guessed: bool) -> f64 {
        if guessed {
            let reads = match node.op_type() {
                "DeformConv" | "GRU" | "LSTM" | "RNN" => inputs.iter().sum::<f64>().max(1.0),
                _ => inputs.iter().copied().fold(1.0, f64::max),
            };
            self.doubt.set(self.doubt.get() + reads);
            return 1.0;
        }
        degree(node, inputs)
    }

    /// The results of a node, and whether it is an uninterpreted function.
    fn node(
        &self,
        node: &NodeProto,
        wanted: usize,
        opset: i64,
        inputs: Vec<Option<FieldValue>>,
        settled: &[bool],
        place: &Around,
    ) -> Result<(Vec<FieldValue>, bool), Stopped> {
        let halt = |stop| Stopped {
            stop,
            at: node.label(),
        };
        if let Some(image) = self.literal(node, place) {
            return Ok((vec![image?], false));
        }
        let function = if self.functions.is_empty() {
            None
        } else {
            self.functions.get(&callee(node)).copied()
        };
        if let Some(function) = function {
            match self.call(function, node, &inputs, settled, place.depth) {
                Err(Stopped {
                    stop: Unmade::Uncovered,
                    ..
                }) => {}
                made => return Ok((made?, true)),
            }
        }
        let (allowance, roots) = (self.point.allowance, &self.roots);
        let call = Call {
            node,
            opset,
            inputs,
            wanted,
            allowance,
            roots,
            settled,
        };
        if let Some(value) = self.handed_on(&call, place) {
            return Ok((vec![value], false));
        }
        if let Some(constants) = self.unbounded(node, place) {
            return Ok((constants, false));
        }
        if function.is_none() {
            match interpret(&call) {
                Err(Unmade::Uncovered) => {}
                // A constant that is divided by 0 is infinite, or no number.
                Err(Unmade::Zero) if let Some(constants) = self.divided_by_zero(node, place) => {
                    return Ok((constants, false));
                }
                made => return Ok((made.map_err(halt)?, false)),
            }
        }
        if let Some(constants) = self.constants(node, place) {
            return Ok((constants, false));
        }
        if let Some((node, inside)) = without_border(&call, lowest(self.point.key)) {
            let inputs = once(Some(inside))
                .chain(call.inputs.into_iter().skip(1))
                .collect();
            return self.node(&node, wanted, opset, inputs, call.settled, place);
        }
        let mut bodies = self.bodies(node, opset, &call.inputs, place)?;
        let inside = bodies
            .as_mut()
            .map(|bodies| take(&mut bodies.known))
            .unwrap_or_default();
        if !inside.is_empty() && inside.iter().all(Option::is_some) {
            return Ok((inside.into_iter().flatten().collect(), false));
        }
        let digest = self.function(node, bodies.as_ref(), place);
        let scales = self.point.scales.filter(|_| function.is_none());
        if let Some(factor) =
            scales.and_then(|scales| scales.factor(node.op(), digest, &call.inputs))
        {
            return self.rescaled(&call, factor, place);
        }
        let analysis = self.results(&call, bodies, place);
        if function.is_none() && matches!(node.op(), ("", "Resize" | "Upsample")) {
            match interpolated(
                &call,
                digest,
                analysis
                    .first()
                    .and_then(|analysis| analysis.shape.as_deref()),
            ) {
                Err(Unmade::Uncovered) => {}
                made => return Ok((made.map_err(halt)?, false)),
            }
        }
        let mut made = match self.unknown(&call, digest, function, &analysis, place) {
            Err(Unmade::Uncovered) => self.whole(&call, digest, &analysis).map_err(halt)?,
            made => made.map_err(halt)?,
        };
        if let Some(FieldValue::Field(elements)) = made.first_mut()
            && scales.is_some()
            && Scales::is_nothing(node.op(), &call.inputs)
        {
            *elements = times(elements, 0);
        }
        for (made, inside) in made.iter_mut().zip(inside) {
            if let Some(inside) = inside {
                *made = inside;
            }
        }
        Ok((made, true))
    }

    /// The value of a Constant.
    fn literal(&self, node: &NodeProto, place: &Around) -> Option<Result<FieldValue, Stopped>> {
        let tensor = (node.op() == ("", "Constant")).then(|| constant_tensor(node))??;
        let name = node.output.first()?;
        // In a function names are its own.
        Some(if place.way.is_some() {
            self.tensor(name, &tensor)
        } else {
            self.held(name, &tensor)
        })
    }

    /// The original's result for a node, divided by the original's factor.
    fn rescaled(
        &self,
        call: &Call,
        factor: u32,
        place: &Around,
    ) -> Result<(Vec<FieldValue>, bool), Stopped> {
        let factors = self.point.scales.map_or(0, Scales::len);
        self.doubt.set(self.doubt.get() + factors as f64);
        let inputs = Scales::scaled(call.node.op(), &call.inputs, factor);
        let (mut made, guessed) = self.node(
            call.node,
            call.wanted,
            call.opset,
            inputs,
            call.settled,
            place,
        )?;
        if let (Some(FieldValue::Field(elements)), Some(part)) =
            (made.first_mut(), field::inverse(factor))
        {
            *elements = times(elements, part);
        }
        Ok((made, guessed))
    }

    /// The result of an uninterpreted function whose elements depend on known elements of its
    /// inputs.
    fn unknown(
        &self,
        call: &Call,
        digest: Digest,
        function: Option<&FunctionProto>,
        analysis: &[Expected],
        place: &Around,
    ) -> Made {
        let is_integer = analysis.first().and_then(|analysis| analysis.is_integer) == Some(true);
        let with = |inputs| self.whole(&Call { inputs, ..*call }, digest, analysis);
        let of = |op: &str| {
            let node = NodeProto {
                op_type: Some(op.into()),
                ..Default::default()
            };
            self.function(&node, None, place)
        };
        match (
            call.node.op(),
            call.node.category().is_some_and(Category::is_elementwise),
        ) {
            _ if function.is_some() => Err(Unmade::Uncovered),
            (("", "Softmax" | "LogSoftmax"), _) => softmax(call, digest),
            (("com.microsoft", "BiasGelu" | "FastGelu"), _) => biased(call, digest),
            (("com.microsoft", "FusedConv" | "FusedGemm"), _) => activated(
                call,
                self.function(&only_activation(call.node), None, place),
            ),
            (("com.microsoft", "Attention"), _) => of_projection(call).and_then(with),
            (("", "Softsign"), _) => softsign(call, of("Abs")),
            (("", "Clip" | "HardSigmoid" | "HardSwish"), _) => {
                match ramp(call, of("HardSigmoid")) {
                    Err(Unmade::Uncovered) => element_wise(call, digest, is_integer),
                    made => made,
                }
            }
            (("", "GlobalMaxPool" | "GridSample" | "MaxPool" | "ReduceMax" | "ReduceMin"), _)
            | (("" | "com.microsoft", "RotaryEmbedding"), _) => {
                let shape = analysis
                    .first()
                    .and_then(|analysis| analysis.shape.as_deref());
                let scales = self.point.scales;
                let first =
                    |divided, first| scales.map_or(first, |scales| scales.first(divided, first));
                let (made, taken) =
                    of_lanes(call, digest, shape, scales.is_some().then_some(&first))?;
                let factors = scales.map_or(0, Scales::len);
                self.doubt
                    .set(self.doubt.get() + taken as f64 * factors as f64);
                Ok(made)
            }
            (("", "DeformConv"), _) => deformed(call, digest),
            (("", "NonZero"), _) => self.places(call, digest),
            (_, true) => element_wise(call, digest, is_integer),
            (("", "GRU" | "LSTM" | "RNN"), _) => of_sums(call).and_then(with),
            _ => Err(Unmade::Uncovered),
        }
    }

    /// How many places hold no 0 is a size like those of symbols, and each value has one of its own.
    fn places(&self, call: &Call, function: Digest) -> Made {
        let shape = call
            .inputs
            .first()
            .and_then(|value| value.as_ref()?.shape())
            .ok_or(Unmade::Uncovered)?;
        let expected = |count: usize| Expected {
            shape: Some(vec![shape.len(), count]),
            is_integer: Some(true),
        };
        let drawn = self.whole(call, function, &[expected(1)])?;
        let Some(FieldValue::Varying(drawn)) = drawn.first() else {
            return Err(Unmade::Uncovered);
        };
        let count = drawn
            .first()
            .map_or(0, |&number| FEWEST + number as usize % NUMBERS);
        self.is_of_point.set(true);
        self.draws_counts.set(true);
        self.whole(call, function, &[expected(count)])
    }

    /// The input of a node that passes it unchanged although its elements are uninterpreted: a Cast
    /// to the same type, a sum with 0, a product with 1, padding by nothing, a Split into one part,
    /// a Slice of everything.
    fn handed_on(&self, call: &Call, place: &Around) -> Option<FieldValue> {
        let (graph, facts) = (&self.point.analysis.graph, &self.point.analysis.facts);
        let input = |slot: usize| call.inputs.get(slot)?.as_ref();
        let are_all = |image: &FieldValue, number: i64| matches!(image, FieldValue::Int(integers) if integers.iter().all(|&integer| integer == number));
        let rank = |slot: usize| {
            let told = || facts.rank(graph.input(place.node?, slot)?);
            input(slot)?.shape().map(<[usize]>::len).or_else(told)
        };
        // A constant of more axes would give them to the result.
        let beside = |number: i64| {
            let is_neutral = |slot: usize| {
                let other = input(slot)?;
                let is_one = other.shape().is_some() && other.len() == 1 && are_all(other, number);
                Some(is_one && rank(slot)? <= rank(1 - slot)?)
            };
            (0..2)
                .find(|&slot| is_neutral(slot) == Some(true))
                .and_then(|slot| input(1 - slot))
        };
        let handed = match call.node.op() {
            ("", "Cast") => {
                let node = place.node?;
                let types = (
                    graph.node(node).cast_to()?,
                    facts.data_type(graph.input(node, 0)?)?,
                );
                input(0).filter(|_| types.0 == types.1)
            }
            ("", "CastLike") => {
                let types = [0, 1].map(|slot| facts.data_type(graph.input(place.node?, slot)?));
                input(0).filter(|_| types[0].is_some() && types[0] == types[1])
            }
            ("", "Add") if call.node.attribute.is_empty() => beside(0),
            ("", "And" | "Mul") if call.node.attribute.is_empty() => beside(1),
            ("", "Split") if call.node.output.len() == 1 => input(0),
            ("", "Pad") => {
                let told = call.node.attr_ints("pads").ok()?;
                let is_none = told.is_some_and(|pads| pads.iter().all(|&pad| pad == 0));
                input(0).filter(|_| is_none || input(1).is_some_and(|pads| are_all(pads, 0)))
            }
            _ => None,
        };
        handed.cloned()
    }

    /// The facts about the results of a node.
    fn results(&self, call: &Call, bodies: Option<Bodies>, place: &Around) -> Vec<Expected> {
        let (graph, facts) = (&self.point.analysis.graph, &self.point.analysis.facts);
        let of = |slot: usize| -> Option<Expected> {
            let value = graph.output(place.node?, slot)?;
            let shape = facts
                .shape(value)
                .and_then(|shape| shape.iter().map(extent).collect());
            Some(Expected {
                shape,
                is_integer: facts.data_type(value).map(DataType::is_integer),
            })
        };
        let read = |name: &str| {
            let slot = call.node.input.iter().position(|input| input == name);
            let image = match slot {
                Some(slot) => call.inputs.get(slot)?.clone()?,
                None => (place.outer)(name)?.0,
            };
            let ints = if let FieldValue::Int(ints) = &image {
                Some(ints.iter().copied().collect())
            } else {
                None
            };
            let is_integer = !matches!(image, FieldValue::Field(_));
            Some(Operand {
                shape: image.shape()?.to_vec(),
                is_integer,
                ints,
            })
        };
        let mut analysis: Vec<Expected> = (0..call.node.output.len())
            .map(|slot| of(slot).unwrap_or_default())
            .collect();
        if analysis
            .iter()
            .take(call.wanted)
            .any(|analysis| analysis.shape.is_none())
        {
            // The extents of the operands are known here, some of them only through integers of the
            // evaluation.
            for (analysis, here) in analysis
                .iter_mut()
                .zip(facts.of_inner(graph, call.node, &read))
            {
                if analysis.shape.is_none() && here.shape.is_some() && place.node.is_some() {
                    self.is_of_point.set(true);
                }
                analysis.shape = analysis.shape.take().or(here.shape);
                analysis.is_integer = analysis.is_integer.or(here.is_integer);
            }
        }
        let is_truth = call.node.op().0.is_empty() && TRUTHS.contains(&call.node.op_type());
        // Results computed from integers are integers: they may be indices.
        let of_integers = place.node.is_none()
            && call.node.category().is_some_and(Category::is_elementwise)
            && call
                .inputs
                .iter()
                .flatten()
                .all(|input| matches!(input, FieldValue::Int(_) | FieldValue::Varying(_)));
        for (slot, analysis) in analysis.iter_mut().enumerate() {
            let told = bodies
                .as_ref()
                .and_then(|bodies| bodies.results.get(slot).cloned())
                .unwrap_or_default();
            analysis.shape = analysis.shape.take().or(told.shape);
            analysis.is_integer = analysis.is_integer.or(told.is_integer);
            analysis.is_integer.get_or_insert(is_truth || of_integers);
        }
        analysis
    }

    /// The node in whose place one stands in the graph with its bodies laid out.
    fn laid_out(&self, node: &NodeProto, place: &Around) -> Option<NodeId> {
        let ((analysis, _), inside) = (self.point.laid_out?, place.way?);
        let first = node.output.iter().find(|name| !name.is_empty())?;
        let value = analysis.graph.value(&[inside, first.as_str()].concat())?;
        let (id, _) = analysis.graph.producer(value)?;
        Some(id).filter(|&id| way(analysis.graph.node(id)) == inside)
    }

    /// The graph that has a node, with its bodies laid out where it is in one, and which node that is; `None` in functions.
    fn known_of(&self, node: &NodeProto, place: &Around) -> Option<(&Analysis<'w>, NodeId)> {
        match place.node {
            Some(id) => Some((self.point.analysis, id)),
            None => Some((self.point.laid_out?.0, self.laid_out(node, place)?)),
        }
    }

    /// Which body of an If it takes, in the order of their names, where no input and no size reaches the condition.
    fn taken(&self, node: &NodeProto, place: &Around) -> Option<usize> {
        let (analysis, _) = self.point.laid_out.filter(|_| node.op() == ("", "If"))?;
        let condition = analysis.graph.input(self.laid_out(node, place)?, 0)?;
        let is_of_size = self
            .point
            .only_at_sizes
            .constants
            .contains(analysis.graph.value_name(condition));
        let is_known = analysis.constants.is_constant(condition) && !is_of_size;
        let [holds] = analysis.constants.ints(condition).filter(|_| is_known)?[..] else {
            return None;
        };
        Some(usize::from(holds != 0))
    }

    /// A value that no input reaches is computed in numbers.
    fn constants(&self, node: &NodeProto, place: &Around) -> Option<Vec<FieldValue>> {
        let (analysis, alike, made_by) = match place.node {
            Some(id) if bodies(node).next().is_none() => {
                (self.point.analysis, self.point.alike, id)
            }
            // Laid out, an If whose condition is known is the branch that it takes.
            _ => (
                self.point.laid_out?.0,
                self.point.laid_out?.1,
                self.laid_out(node, place)?,
            ),
        };
        let outputs = analysis.graph.outputs(made_by);
        let value = |value: &Option<ValueId>| {
            let value = value.filter(|&value| analysis.constants.is_constant(value))?;
            let data_type = analysis.facts.data_type(value)?;
            if data_type.is_float() {
                // Formulas with more than arithmetic may have their numbers, which are the same for each of a batch.
                let is_of_size = self
                    .point
                    .only_at_sizes
                    .constants
                    .contains(analysis.graph.value_name(value));
                if is_of_size && !self.point.has_formulas {
                    return None;
                }
                let wide = alike
                    .and_then(|alike| alike.read(value))
                    .map(|wide| (*wide).clone());
                let is_wide = wide.is_some();
                let numbers = wide.or_else(|| analysis.constants.read(value).ok())?;
                return Some(match self.shares(node, numbers.ndim()) {
                    Some(along) => of_shares(&numbers, along, self.point.key),
                    None if is_wide => of_numbers(&numbers, self.point.key),
                    None => of_floats(numbers, self.point.key),
                });
            }
            let shape: Vec<usize> = analysis
                .facts
                .shape(value)?
                .iter()
                .map(extent)
                .collect::<Option<_>>()?;
            let integers = ArrayD::from_shape_vec(shape, analysis.constants.ints(value)?);
            integers.ok().map(FieldValue::int)
        };
        outputs
            .iter()
            .map(value)
            .collect::<Option<Vec<_>>>()
            .filter(|made| !made.is_empty())
    }

    /// The numbers of a constant that is divided by 0. Constants computed from it are read as numbers too.
    fn divided_by_zero(&self, node: &NodeProto, place: &Around) -> Option<Vec<FieldValue>> {
        let constants = self.constants(node, place)?;
        self.unbounded
            .borrow_mut()
            .extend(node.output.iter().cloned());
        Some(constants)
    }

    /// The numbers of a constant that is computed of one which is divided by 0.
    fn unbounded(&self, node: &NodeProto, place: &Around) -> Option<Vec<FieldValue>> {
        let is_of_unbounded = node
            .input
            .iter()
            .any(|name| self.unbounded.borrow().contains(name));
        if is_of_unbounded {
            self.divided_by_zero(node, place)
        } else {
            None
        }
    }

    /// The axes of a lane of a Softmax.
    fn shares(&self, node: &NodeProto, rank: usize) -> Option<Range<usize>> {
        let (absent, alone) = softmax_axis(self.opset());
        let named = node.attr_i("axis").ok()?.unwrap_or(absent);
        let first = axis(named, rank)
            .ok()
            .filter(|_| node.op() == ("", "Softmax"))?;
        Some(first..if alone { first + 1 } else { rank })
    }

    /// A function of all that it reads.
    fn whole(&self, call: &Call, function: Digest, analysis: &[Expected]) -> Made {
        let mut hash = Hash::new(self.point.key, "application");
        hash.digest(function);
        for input in &call.inputs {
            hash.number(input.is_some().into());
            input
                .iter()
                .for_each(|input| hash.digest(input.digest(self.point.key)));
        }
        let application = hash.finish();
        let result = |(slot, analysis): (usize, &Expected)| {
            let mut hash = Hash::new(self.point.key, "result");
            hash.digest(application);
            hash.number(slot as u64);
            Ok(match &analysis.shape {
                Some(shape) => {
                    self.point.allowance.room(shape)?;
                    FieldValue::random(hash.finish(), shape, analysis.is_integer == Some(true))
                }
                None => FieldValue::Opaque(hash.finish()),
            })
        };
        analysis.iter().enumerate().map(result).collect()
    }
}

/// A node without what its sum has in it already.
fn only_activation(node: &NodeProto) -> NodeProto {
    let mut node = node.clone();
    node.attribute
        .retain(|attribute| attribute.name().starts_with("activation"));
    node
}

/// The degree of what an interpreted operator makes.
fn degree(node: &NodeProto, inputs: &[f64]) -> f64 {
    let (largest, sum) = (
        inputs.iter().copied().fold(0.0, f64::max),
        inputs.iter().sum(),
    );
    let anew = |reads: f64| if reads > 0.0 { 1.0 } else { 0.0 };
    match node.op_type() {
        // Extents are the same whatever is drawn.
        "Shape" | "Size" => 0.0,
        "Mul" | "Where" => sum,
        "ReduceSumSquare" => 2.0 * largest,
        "Div" if inputs.get(1) == Some(&0.0) => largest,
        // RootContext and quotients are as good as random.
        "Div" | "Reciprocal" | "Sqrt" | "ReduceL2" => anew(largest),
        "Pow" => 8.0 * largest,
        "Resize" | "Upsample" => largest + interpolated::AXES as f64,
        _ => match node.category() {
            Some(Category::Normalizer) => anew(largest),
            Some(category) if category.is_product() => sum,
            _ if node.op_type() == "Einsum" => sum,
            _ => largest,
        },
    }
}
