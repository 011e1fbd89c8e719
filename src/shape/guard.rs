//! Guards before questions to tract.
//!
//! Its operators trust the model: they loop up to the value of an attribute, allocate by shapes,
//! and expand sums of symbols in all their forms. A panic can be caught; an endless loop and an
//! abort for lack of memory cannot. So the limits are checked here, before an operator is asked.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use tract_onnx::prelude::{DatumType, InferenceFact, TVec, Tensor};
use tract_onnx::tract_hir::infer::{Factoid, ShapeFactoid};
use tract_onnx::tract_hir::internal::{DimFact, TDim};

use crate::ir::axes::axis;
use crate::onnx::node::bodies;
use crate::onnx::operator::input_for;
use crate::onnx::proto::{AttributeType, NodeProto};
use crate::onnx::tensor::DataType;
use crate::onnx::tract_quirks::read_as_one;
use crate::shape::encode::{ints_of, only, rank};

/// As many axes as arrays have in numpy.
const RANK: usize = 64;

/// Sizes, steps and counts among the attributes are no larger than this.
const LARGEST_INT: u64 = i32::MAX as u64;

/// A value of more elements than this fits nowhere, and its extents are taken for unknown.
const LARGEST_VALUE: u64 = 1 << 40;

/// Nor is a model run on values of more elements than this, or than it has bytes of weights.
const LARGEST_RUN: u64 = 1 << 28;

/// Results of up to this many bytes are made whatever their inputs are; larger ones are at most so many
/// times as large as their inputs.
const LARGEST_RESULT: u64 = 1 << 26;
const TIMES_THE_INPUTS: u64 = 8;

/// The largest EyeLike that tract is asked about, since inference evaluates it.
const LARGEST_EYE: u64 = 1 << 20;

/// How many multiplications the evaluation of one node may take.
const WORK: f64 = (1_u64 << 31) as f64;

/// How many one run of a model may take whatever its weights are, and how many for each byte of them: a
/// weight of a convolution meets every pixel of an image.
const RUN: f64 = (1_u64 << 32) as f64;
const TIMES_EACH_BYTE: f64 = (1_u64 << 16) as f64;

/// How much the arithmetic on one extent may cost, in nodes of its expression times forms of it, and
/// how much all of them together.
const DIM_COST: u64 = 1 << 12;
const DIMS_COST: u64 = 1 << 20;

/// A value of up to so many bytes is small.
const SMALL: u64 = 1 << 16;

/// The fraction of a budget reserved for small values.
const KEPT: u64 = 8;

/// How much symbolic arithmetic may go into one node.
const NODE_COST: u64 = 1 << 14;

/// Attributes that name axes of the first input.
const AXES: &[&str] = &["axis", "axes", "batch_dims"];

/// Operators that make extents of the numbers in their inputs, from one of them on.
const EXTENTS: &[(&str, usize)] = &[
    ("ConstantOfShape", 0),
    ("Expand", 1),
    ("OneHot", 1),
    ("Pad", 1),
    ("Range", 0),
    ("Reshape", 1),
    ("Resize", 1),
    ("Split", 1),
    ("Tile", 1),
    ("TopK", 1),
];

/// Operators that count back from the last axis of each of their first inputs, or along all of them, so that there has to be
/// one.
const LEAST_RANK: &[(&str, &[usize])] = &[
    ("ArrayFeatureExtractor", &[1]),
    ("BatchNormalization", &[2]),
    ("DFT", &[2]),
    ("GatherND", &[1, 1]),
    ("GridSample", &[3]),
    ("Hardmax", &[1]),
    ("LayerNormalization", &[1]),
    ("LogSoftmax", &[1]),
    ("LpNormalization", &[1]),
    ("MatMulInteger", &[1, 1]),
    ("MatMulNBits", &[1]),
    // Whether a number alone has one axis or none, engines and numpy do not agree on.
    ("NonZero", &[1]),
    ("RMSNormalization", &[1]),
    ("STFT", &[1]),
    ("ScatterND", &[1, 1]),
    ("SimplifiedLayerNormalization", &[1]),
    ("SkipLayerNormalization", &[1]),
    ("SkipSimplifiedLayerNormalization", &[1]),
    ("Softmax", &[1]),
    ("TopK", &[1]),
];

/// Operators that tract must not evaluate: their cost does not follow from the shapes of their
/// inputs and outputs.
const UNEVALUATED: &[&str] = &[
    "Attention",
    "BlackmanWindow",
    "DFT",
    "GRU",
    "GatherBlockQuantized",
    "GroupQueryAttention",
    "HammingWindow",
    "HannWindow",
    "LSTM",
    "MatMulNBits",
    "MelWeightMatrix",
    "MultiHeadAttention",
    "NonMaxSuppression",
    "RNN",
    "STFT",
];

/// Whether tract's operator can be asked for the facts of a node.
pub fn can_be_asked(node: &NodeProto, inputs: &[Option<&InferenceFact>]) -> bool {
    let op = node.op_type();
    if op == "ConstantLike" {
        // An experiment of long ago, which allocates while it is built.
        return false;
    }
    if op == "EyeLike"
        && !inputs
            .iter()
            .flatten()
            .all(|fact| count(fact).is_some_and(|count| count <= LARGEST_EYE))
    {
        return false;
    }
    if beyond_symbols(node, inputs) || splits_in_excess(node, inputs) || too_many_axes(node, inputs)
    {
        return false;
    }
    if begins_nowhere(node, inputs) || lacks_a_number(node, inputs) {
        return false;
    }
    // tract counts only the inputs that are there, and would take the second for the first.
    if node.input.first().is_some_and(String::is_empty) && bodies(node).next().is_none() {
        return false;
    }
    let rank_of = |slot: usize| inputs.get(slot).copied().flatten().and_then(rank);
    let least = LEAST_RANK
        .iter()
        .find(|(name, _)| *name == op)
        .map_or(&[][..], |(_, ranks)| ranks);
    if least
        .iter()
        .enumerate()
        .any(|(slot, &least)| rank_of(slot).is_some_and(|rank| rank < least))
    {
        return false;
    }
    // Where the first rank is unknown, an operator may find it among the others.
    let others = || inputs.iter().flatten().filter_map(|fact| rank(fact)).min();
    // A scale and a zero point precede the inputs to concatenate.
    let whole = if op == "QLinearConcat" { 2 } else { 0 };
    let first = rank_of(whole).or_else(others).unwrap_or(RANK) as i64;
    let named = |axes: &[i64]| {
        let (below, above) = match op {
            "Flatten" => (-first, first),
            "OneHot" => (-first - 1, first),
            "Unsqueeze" => (-first - axes.len() as i64, first + axes.len() as i64 - 1),
            // Without meaning where there is one scale for all.
            "QuantizeLinear" | "DequantizeLinear" => (-(RANK as i64), RANK as i64),
            _ => (-first, first - 1),
        };
        axes.len() <= RANK && axes.iter().all(|axis| (below..=above).contains(axis))
    };
    let as_input = AXES.iter().find_map(|attribute| input_for(op, attribute));
    let given = as_input.and_then(|(slot, _)| ints(inputs.get(slot).copied().flatten()?));
    given.is_none_or(|axes| named(&axes))
        && node.attribute.iter().all(|attribute| {
            let numbers = match attribute.r#type() {
                AttributeType::Int => vec![attribute.i()],
                AttributeType::Ints => attribute.ints.clone(),
                // Before ONNX had types of attributes, the filled field decided.
                AttributeType::Undefined => attribute
                    .i
                    .into_iter()
                    .chain(attribute.ints.clone())
                    .collect(),
                _ => return true,
            };
            match attribute.name() {
                name if AXES.contains(&name) => named(&numbers),
                "perm" => {
                    is_permutation(&numbers) && rank_of(0).is_none_or(|rank| rank == numbers.len())
                }
                // Bounds, which the operator clamps to the extent.
                "start" | "end" | "starts" | "ends" => true,
                _ => numbers
                    .iter()
                    .all(|number| number.unsigned_abs() <= LARGEST_INT),
            }
        })
        && inputs
            .iter()
            .flatten()
            .map(|fact| fact_cost(fact))
            .fold(0, u64::saturating_add)
            <= NODE_COST
}

/// Whether a list says more of a value's axes, two numbers for each at most, than a value has.
fn too_many_axes(node: &NodeProto, inputs: &[Option<&InferenceFact>]) -> bool {
    let lists = EXTENTS
        .iter()
        .find(|(op, _)| *op == node.op_type() && *op != "Split");
    let Some(&(_, first)) = lists else {
        return false;
    };
    let long = |fact: &InferenceFact| count(fact).is_some_and(|count| count > 2 * RANK as u64);
    inputs.iter().skip(first).flatten().any(|fact| long(fact))
}

/// Whether tract would make symbols of numbers that do not fit: it takes them through 32 bits.
pub fn beyond_symbols(node: &NodeProto, inputs: &[Option<&InferenceFact>]) -> bool {
    let op = node.op_type();
    let is_symbolic = |fact: &InferenceFact| {
        fact.datum_type
            .concretize()
            .is_some_and(|element| element == DatumType::TDim)
    };
    let first = match op {
        // Of which whoever asks for all of an axis writes the largest number that there is.
        "Slice" => return false,
        "Cast" if node.cast_to() == Some(DataType::Int64) => 0,
        _ if inputs.iter().flatten().any(|fact| is_symbolic(fact)) => 0,
        _ => match EXTENTS.iter().find(|(name, _)| *name == op) {
            Some(&(_, first)) => first,
            None => return false,
        },
    };
    let large = |fact: &InferenceFact| {
        let value = fact.value.concretize().filter(|_| !is_symbolic(fact))?;
        let numbers = value.cast_to::<f64>().ok()?;
        let limit = LARGEST_INT as f64;
        Some(
            numbers
                .to_plain_array_view::<f64>()
                .ok()?
                .iter()
                .any(|number| number.abs() > limit),
        )
    };
    // Such as the lowest number that there is, before a maximum.
    let is_filling = |slot: usize| op == "Pad" && slot == 2;
    let counts = |&(slot, _): &(usize, _)| slot >= first && !is_filling(slot);
    let mut counted = inputs.iter().enumerate().filter(counts);
    counted.any(|(_, fact)| fact.and_then(large) == Some(true))
}

/// Whether the parts of a Split are not what there is to split.
fn splits_in_excess(node: &NodeProto, inputs: &[Option<&InferenceFact>]) -> bool {
    let excess = || {
        let by_attribute = node.attr_ints("split").ok().flatten().map(<[i64]>::to_vec);
        let parts = by_attribute.or_else(|| ints(inputs.get(1).copied().flatten()?))?;
        let value = inputs.first().copied().flatten()?;
        let along = axis(
            node.attr_i("axis").ok().flatten().unwrap_or(0),
            rank(value)?,
        )
        .ok()?;
        let whole = value.shape.dim(along)?.concretize()?.as_i64();
        let sum = parts
            .iter()
            .try_fold(0_i64, |sum, &part| sum.checked_add(part));
        Some(parts.iter().any(|&part| part < 0) || whole.is_some_and(|whole| sum != Some(whole)))
    };
    node.op_type() == "Split" && excess() == Some(true)
}

/// Whether nothing is where tract reads a number.
fn lacks_a_number(node: &NodeProto, inputs: &[Option<&InferenceFact>]) -> bool {
    let is_empty = |fact: &InferenceFact| {
        fact.value
            .concretize()
            .is_some_and(|tensor| tensor.len() == 0)
    };
    read_as_one(node.op_type())
        .iter()
        .any(|&slot| inputs.get(slot).copied().flatten().is_some_and(is_empty))
}

/// Whether a Slice goes backward from before the first place: the specification takes that place, and its reference none. Or
/// it goes back to the largest number that there is, behind which the specification finds nothing, and onnxruntime all.
fn begins_nowhere(node: &NodeProto, inputs: &[Option<&InferenceFact>]) -> bool {
    let list = |slot: usize| ints(inputs.get(slot).copied().flatten()?);
    let found = || {
        let (value, starts, ends, steps) = (
            inputs.first().copied().flatten()?,
            list(1)?,
            list(2).unwrap_or_default(),
            list(4)?,
        );
        let axes = list(3).unwrap_or_else(|| (0..starts.len() as i64).collect());
        let rank = rank(value)?;
        let whole = |along: i64| {
            value
                .shape
                .dim(axis(along, rank).ok()?)?
                .concretize()?
                .to_i64()
                .ok()
        };
        let mut cuts = axes.into_iter().zip(starts).zip(steps);
        let is_before = |((along, start), step): ((i64, i64), i64)| {
            step < 0 && whole(along).is_some_and(|whole| start < -whole)
        };
        let is_far =
            |(end, step): (&i64, &i64)| *step < 0 && [i64::MAX, i32::MAX.into()].contains(end);
        Some(ends.iter().zip(&list(4)?).any(is_far) || cuts.any(is_before))
    };
    node.op_type() == "Slice" && found() == Some(true)
}

/// Whether a value can be held in memory, as far as its shape is known, by who can hold the weights.
pub fn fits(fact: &InferenceFact, weights: u64) -> bool {
    let known = fact
        .shape
        .dims()
        .filter_map(|dim| dim.concretize()?.as_i64());
    let mut known = known
        .map(|extent| u64::try_from(extent).ok())
        .filter(|&extent| extent != Some(0));
    let count = known.try_fold(1_u64, |count, extent| count.checked_mul(extent?));
    count.is_some_and(|count| count <= LARGEST_RUN.max(weights))
}

/// The cost of evaluating a node.
pub enum Cost {
    /// The bytes of its results; reading its inputs costs an eighth of making them.
    Bytes(u64),
    /// More memory or time than anything is worth.
    TooMuch,
    /// Unknown.
    Unknown,
}

/// The cost of an evaluation, from the shapes and values of the inputs and the facts of the
/// outputs.
pub fn evaluation(node: &NodeProto, inputs: &[&InferenceFact], outputs: &[InferenceFact]) -> Cost {
    if has_negative_pads(node, inputs) {
        return Cost::TooMuch;
    }
    cost(node, inputs, outputs).unwrap_or(Cost::Unknown)
}

fn cost(node: &NodeProto, inputs: &[&InferenceFact], outputs: &[InferenceFact]) -> Option<Cost> {
    let (op, domain) = (node.op_type(), node.domain());
    if UNEVALUATED.contains(&op) || domain == "ai.onnx.ml" {
        return None;
    }
    let counts: Vec<u64> = inputs
        .iter()
        .map(|fact| count(fact))
        .collect::<Option<_>>()?;
    let read = counts.iter().sum::<u64>();
    let bytes = |count: u64, fact: &InferenceFact| {
        count.saturating_mul(
            fact.datum_type
                .concretize()
                .unwrap_or(DatumType::I64)
                .size_of() as u64,
        )
    };
    let made = |output: &InferenceFact| match op {
        // The number of results depends on the elements, and is at most the number of elements
        // read.
        "NonZero" | "Compress" => Some(read.saturating_mul(rank(inputs[0])?.max(1) as u64)),
        "Range" => range(inputs),
        _ => count(output),
    };
    let made: Vec<u64> = outputs.iter().map(made).collect::<Option<_>>()?;
    let largest = made.iter().copied().max().unwrap_or(0);
    let work = multiplications(node, inputs, &counts, largest)?;
    let read: u64 = inputs
        .iter()
        .zip(&counts)
        .map(|(fact, &count)| bytes(count, fact))
        .sum();
    let made = outputs
        .iter()
        .zip(&made)
        .map(|(fact, &count)| bytes(count, fact))
        .fold(0, u64::saturating_add);
    // It lists the neighbours of each element, with their weights.
    let made = if op == "Resize" {
        made.saturating_mul(16)
    } else {
        made
    };
    let fits = work <= WORK && made <= read.saturating_mul(TIMES_THE_INPUTS).max(LARGEST_RESULT);
    Some(if fits {
        Cost::Bytes(read / 8 + made)
    } else {
        Cost::TooMuch
    })
}

/// The multiplications, or comparable operations, for the larger of its results.
fn multiplications(
    node: &NodeProto,
    inputs: &[&InferenceFact],
    counts: &[u64],
    largest: u64,
) -> Option<f64> {
    let [first, second] = [0, 1].map(|slot| counts.get(slot).copied().unwrap_or(1) as f64);
    let op = node.op_type();
    Some(match op {
        "MatMul" | "Gemm" | "MatMulInteger" | "QLinearMatMul" | "FusedMatMul" => {
            (first * second * largest as f64).sqrt()
        }
        "Einsum" => counts.iter().map(|&count| count as f64).product(),
        "Conv" | "ConvInteger" | "QLinearConv" | "ConvTranspose" => {
            let weight = if op == "QLinearConv" { 3 } else { 1 };
            let rows = extents(inputs.get(weight)?)?
                .first()
                .copied()
                .unwrap_or(1)
                .max(1);
            counts[weight] as f64 / rows as f64 * first.max(largest as f64)
        }
        _ => largest as f64 * window(node),
    })
}

/// The work of a node in a run, in multiplications; 0 where its shapes are unknown.
pub fn work(node: &NodeProto, inputs: &[&InferenceFact], outputs: &[&InferenceFact]) -> f64 {
    let counts = |facts: &[&InferenceFact]| {
        facts
            .iter()
            .map(|fact| count(fact))
            .collect::<Option<Vec<u64>>>()
    };
    let known = || {
        let largest = counts(outputs)?.into_iter().max()?;
        multiplications(node, inputs, &counts(inputs)?, largest)
    };
    known().unwrap_or(0.0)
}

/// Whether a model is run that takes so many multiplications, by who can hold the weights.
pub fn is_worth(work: f64, weights: u64) -> bool {
    work <= RUN.max(weights as f64 * TIMES_EACH_BYTE)
}

/// How many elements the window of a pooling operator covers.
fn window(node: &NodeProto) -> f64 {
    let kernel = node
        .attr_ints("kernel_shape")
        .ok()
        .flatten()
        .unwrap_or_default();
    let size = node.attr_i("size").ok().flatten().unwrap_or(1);
    kernel
        .iter()
        .chain([&size])
        .map(|&extent| extent.unsigned_abs() as f64)
        .product()
}

/// Whether a Pad is to take away, which tract takes for a huge number to add.
fn has_negative_pads(node: &NodeProto, inputs: &[&InferenceFact]) -> bool {
    let by_input = || inputs.get(1).and_then(|fact| ints(fact));
    let pads = node.attr_ints("pads").ok().flatten().map(<[i64]>::to_vec);
    node.op_type() == "Pad"
        && pads
            .or_else(by_input)
            .is_none_or(|pads| pads.iter().any(|&pad| pad < 0))
}

/// How many elements a Range makes.
fn range(inputs: &[&InferenceFact]) -> Option<u64> {
    let number = |slot: usize| {
        let tensor = inputs.get(slot)?.value.concretize()?;
        only::<f64>(&tensor)
    };
    let length = ((number(1)? - number(0)?) / number(2)?).ceil();
    (length.is_finite()).then_some(length.max(0.0) as u64)
}

fn is_permutation(axes: &[i64]) -> bool {
    let mut sorted = axes.to_vec();
    sorted.sort_unstable();
    axes.len() <= RANK
        && sorted
            .iter()
            .enumerate()
            .all(|(place, &axis)| axis == place as i64)
}

fn extents(fact: &InferenceFact) -> Option<Vec<u64>> {
    let number = |dim: &DimFact| u64::try_from(dim.concretize()?.as_i64()?).ok();
    (!fact.shape.is_open()).then(|| fact.shape.dims().map(number).collect())?
}

/// The number of elements of a value, at least 1 along every axis: an empty value may take time
/// too.
fn count(fact: &InferenceFact) -> Option<u64> {
    extents(fact)?
        .into_iter()
        .map(|extent| extent.max(1))
        .try_fold(1, u64::checked_mul)
}

/// The elements of a known value of integers.
fn ints(fact: &InferenceFact) -> Option<Vec<i64>> {
    ints_of(&*fact.value.concretize()?)
}

/// The work of tract while it simplifies an expression: nodes, forms of sums with quotients, and
/// products after expansion.
fn measure(dim: &TDim) -> [u64; 3] {
    let all = |terms: &[TDim], join: fn([u64; 3], [u64; 3]) -> [u64; 3]| {
        terms.iter().map(measure).reduce(join).unwrap_or([0, 1, 1])
    };
    let [nodes, forms, products] = match dim {
        // Sums and products of larger numbers might not fit.
        TDim::Val(n) | TDim::MulInt(n, _) if n.unsigned_abs() > LARGEST_VALUE => {
            return [u64::MAX; 3];
        }
        TDim::Val(_) | TDim::Sym(_) => return [1, 1, 1],
        TDim::Add(terms) => all(terms, |a, b| {
            [
                a[0].saturating_add(b[0]),
                a[1].saturating_mul(b[1]),
                a[2].saturating_add(b[2]),
            ]
        }),
        TDim::MulInt(_, inner) => measure(inner),
        // A negative divisor that was taken for an extent: tract's rules for it have no end.
        TDim::Div(_, divisor) if *divisor > LARGEST_VALUE => return [u64::MAX; 3],
        TDim::Div(inner, _) => {
            let [nodes, forms, products] = measure(inner);
            [nodes, forms.saturating_mul(2), products]
        }
        TDim::Mul(terms) | TDim::Broadcast(terms) | TDim::Min(terms) | TDim::Max(terms) => {
            all(terms, |a, b| {
                [
                    a[0].saturating_add(b[0]),
                    a[1].saturating_add(b[1]),
                    a[2].saturating_mul(b[2]),
                ]
            })
        }
        TDim::Ge(a, b) | TDim::Eq(a, b) => {
            let (a, b) = (measure(a), measure(b));
            [
                a[0].saturating_add(b[0]),
                a[1].saturating_add(b[1]),
                a[2].saturating_mul(b[2]),
            ]
        }
    };
    [nodes.saturating_add(1), forms, products]
}

fn dim_cost(dim: &TDim) -> u64 {
    let [nodes, forms, products] = measure(dim);
    nodes.saturating_mul(forms.max(products))
}

/// The cost of computing with the symbols of a fact; numbers cost nothing.
fn fact_cost(fact: &InferenceFact) -> u64 {
    let symbolic = |dim: &TDim| {
        if matches!(dim, TDim::Val(_)) {
            0
        } else {
            dim_cost(dim)
        }
    };
    let shape = fact
        .shape
        .dims()
        .filter_map(|dim| dim.concretize())
        .map(|dim| symbolic(&dim));
    let value = fact.value.concretize();
    let elements = value.as_deref().map_or(0, |tensor| {
        symbols(tensor).map(symbolic).fold(0, u64::saturating_add)
    });
    shape.fold(elements, u64::saturating_add)
}

/// The elements of a tensor of symbols; none of any other.
fn symbols(tensor: &Tensor) -> impl Iterator<Item = &TDim> {
    let is_symbolic = tensor.datum_type() == DatumType::TDim;
    let plain = is_symbolic
        .then(|| tensor.try_as_plain_ram().ok())
        .flatten();
    plain
        .and_then(|plain| plain.as_slice::<TDim>().ok())
        .unwrap_or_default()
        .iter()
}

/// The budget of one graph.
pub struct Budget {
    bytes: Cell<u64>,
    kept: u64,
    dims: Cell<u64>,
    known: RefCell<HashMap<TDim, bool>>,
}

impl Budget {
    /// So many bytes of evaluated constants, and symbols within bounds.
    pub fn new(bytes: u64) -> Self {
        Self {
            bytes: Cell::new(bytes),
            kept: bytes / KEPT,
            dims: Cell::new(DIMS_COST),
            known: RefCell::default(),
        }
    }

    /// Takes the bytes of a value from the budget; `false` where it is not enough.
    ///
    /// Large values leave a part of the budget to small ones: shapes consist of small values, also
    /// behind zeros that an exporter writes as large as a batch of attention.
    pub fn spend(&self, bytes: u64) -> bool {
        let is_left = bytes <= SMALL || bytes.saturating_add(self.kept) <= self.bytes.get();
        is_left && spend(&self.bytes, bytes)
    }

    /// Takes the bytes of a value from the budget; drops the value where it is not enough.
    pub fn charge(&self, fact: InferenceFact) -> InferenceFact {
        let value = fact.value.concretize();
        let bytes = value.map_or(0, |tensor| {
            (tensor.volume() * tensor.datum_type().size_of()) as u64
        });
        if self.spend(bytes) {
            fact
        } else {
            fact.without_value()
        }
    }

    /// The part of a fact within bounds, with the other parts unknown.
    pub fn admit(&self, fact: InferenceFact) -> InferenceFact {
        let fact = match &fact.value.concretize() {
            Some(tensor) if !symbols(tensor).all(|dim| self.admits(dim)) => fact.without_value(),
            _ => fact,
        };
        let Some(rank) = rank(&fact) else { return fact };
        let numbers = fact
            .shape
            .dims()
            .filter_map(|dim| dim.concretize()?.as_i64());
        let count = numbers
            .filter(|&n| n != 0)
            .try_fold(1_u64, |count, extent| {
                count
                    .checked_mul(u64::try_from(extent).ok()?)
                    .filter(|&count| count <= LARGEST_VALUE)
            });
        if rank > RANK || count.is_none() {
            return fact.without_value().with_shape(ShapeFactoid::default());
        }
        if fact
            .shape
            .dims()
            .all(|dim| dim.concretize().is_none_or(|dim| self.admits(&dim)))
        {
            return fact;
        }
        let known = |dim: &DimFact| match dim.concretize() {
            Some(dim) if self.admits(&dim) => DimFact::from(dim),
            _ => DimFact::default(),
        };
        let dims: TVec<DimFact> = fact.shape.dims().map(known).collect();
        fact.with_shape(ShapeFactoid::closed(dims))
    }

    fn admits(&self, dim: &TDim) -> bool {
        match dim {
            TDim::Val(n) => return n.unsigned_abs() <= LARGEST_VALUE,
            TDim::Sym(_) => return true,
            _ => {}
        }
        if let Some(&admitted) = self.known.borrow().get(dim) {
            return admitted;
        }
        let cost = dim_cost(dim);
        // A dimension without a symbol that is no number has overflowed.
        let admitted = dim.find_scope().is_some() && cost <= DIM_COST && spend(&self.dims, cost);
        self.known.borrow_mut().insert(dim.clone(), admitted);
        admitted
    }
}

fn spend(left: &Cell<u64>, amount: u64) -> bool {
    let rest = left.get().checked_sub(amount);
    left.set(rest.unwrap_or(left.get()));
    rest.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::proto::AttributeProto;
    use tract_onnx::prelude::{tensor0, tensor1, tensor2};
    use tract_onnx::tract_hir::internal::SymbolScope;

    fn node(op: &str, attributes: &[(&str, &[i64])]) -> NodeProto {
        let attribute = |&(name, ints): &(&str, &[i64])| AttributeProto {
            name: Some(name.into()),
            ints: ints.to_vec(),
            r#type: Some(AttributeType::Ints.into()),
            ..Default::default()
        };
        NodeProto {
            op_type: Some(op.into()),
            attribute: attributes.iter().map(attribute).collect(),
            ..Default::default()
        }
    }

    fn shaped(dims: &[i64]) -> InferenceFact {
        let dims = dims.iter().map(|&dim| DimFact::from(TDim::from(dim)));
        InferenceFact::dt(DatumType::F32).with_shape(ShapeFactoid::closed(dims.collect()))
    }

    #[test]
    fn axes_lie_within_the_rank() {
        let matrix = shaped(&[2, 4]);
        let asked =
            |op: &str, axis: i64| can_be_asked(&node(op, &[("axes", &[axis])]), &[Some(&matrix)]);
        let ranges = [
            ("LayerNormalization", -2, 1),
            ("OneHot", -3, 2),
            ("Unsqueeze", -3, 2),
            ("Flatten", -2, 2),
        ];
        for (op, first, last) in ranges {
            let within: Vec<i64> = (-9..9).filter(|&axis| asked(op, axis)).collect();
            assert_eq!(within, (first..=last).collect::<Vec<_>>(), "{op}");
        }
        let given = InferenceFact::from(tensor1(&[5_i64]));
        assert!(!can_be_asked(
            &node("ReduceSum", &[]),
            &[Some(&matrix), Some(&given)]
        ));
    }

    #[test]
    fn lists_of_axes_are_no_longer_than_values_have_axes() {
        let value = InferenceFact::default();
        let asked = |op: &str, long: i64| {
            can_be_asked(&node(op, &[]), &[Some(&value), Some(&shaped(&[long]))])
        };
        for op in ["Tile", "Reshape", "Expand", "Pad"] {
            assert!(asked(op, 8) && !asked(op, 1 << 31), "{op}");
        }
        assert!(asked("Split", 1000));
    }

    #[test]
    fn a_permutation_has_every_axis_once() {
        let asked = |perm: &[i64]| {
            can_be_asked(
                &node("Transpose", &[("perm", perm)]),
                &[Some(&shaped(&[2, 4]))],
            )
        };
        assert!(asked(&[1, 0]));
        assert!(
            [&[0, 0][..], &[0, 2], &[-1, 0], &[0], &[0, 1, 2]]
                .iter()
                .all(|perm| !asked(perm))
        );
    }

    #[test]
    fn numbers_that_tract_would_cut_are_not_given_to_it() {
        let value = shaped(&[1, 1]);
        let asked = |op: &str, extent: i64| {
            let extents = InferenceFact::from(tensor1(&[4, extent]));
            can_be_asked(&node(op, &[]), &[Some(&value), Some(&extents)])
        };
        assert!(
            asked("Expand", 1 << 30) && !asked("Expand", 1 << 31) && !asked("Tile", (1 << 32) + 1)
        );
        assert!(asked("Slice", i64::MAX) && asked("Add", 1 << 40));

        let padded = |pad: i64, filling: f32| {
            let pads = InferenceFact::from(tensor1(&[0, 0, 0, pad]));
            let filling = InferenceFact::from(tensor0(filling));
            can_be_asked(
                &node("Pad", &[]),
                &[Some(&value), Some(&pads), Some(&filling)],
            )
        };
        assert!(padded(1, f32::NEG_INFINITY) && !padded(1 << 31, 0.0));
    }

    #[test]
    fn the_cost_of_an_evaluation_is_known_before() {
        let is_within =
            |op: &str, inputs: &[&InferenceFact], output: InferenceFact| match evaluation(
                &node(op, &[]),
                inputs,
                &[output],
            ) {
                Cost::Bytes(bytes) => Some(bytes),
                Cost::TooMuch | Cost::Unknown => None,
            };
        let (small, large) = (shaped(&[16, 16]), shaped(&[1 << 13, 1 << 13]));
        assert_eq!(
            is_within("Relu", &[&small], small.clone()),
            Some(16 * 16 * 4 * 9 / 8)
        );
        assert_eq!(is_within("Expand", &[&small], large.clone()), None);
        assert_eq!(
            is_within("Transpose", &[&large], large.clone()),
            Some((9 << 28) / 8)
        );
        assert_eq!(is_within("MatMul", &[&large, &large], large.clone()), None);
        assert_eq!(is_within("LSTM", &[&small], small.clone()), None);
        let down = [1 << 34, 0, -1].map(|number: i64| InferenceFact::from(tensor0(number)));
        assert_eq!(is_within("Range", &down.each_ref(), shaped(&[1])), None);
        let pads = InferenceFact::from(tensor1(&[0_i64, 0, 0, -1]));
        assert_eq!(
            is_within(
                "Pad",
                &[&InferenceFact::from(tensor2(&[[1_f32, 2.0]])), &pads],
                shaped(&[1, 1])
            ),
            None
        );
    }

    #[test]
    fn a_slice_backward_begins_somewhere() {
        let asked = |start: i64, step: i64| {
            let given = [start, -9, 1, step].map(|number| InferenceFact::from(tensor1(&[number])));
            let value = shaped(&[6, 2]);
            let inputs: Vec<_> = [&value].into_iter().chain(&given).map(Some).collect();
            can_be_asked(&node("Slice", &[]), &inputs)
        };
        assert!(asked(-2, -1) && asked(-3, 1) && !asked(-3, -1));
    }

    #[test]
    fn the_parts_of_a_split_are_the_whole() {
        let asked = |parts: [i64; 3]| {
            let parts = InferenceFact::from(tensor1(&parts));
            can_be_asked(&node("Split", &[]), &[Some(&shaped(&[6, 2])), Some(&parts)])
        };
        assert!(
            asked([1, 2, 3]) && !asked([1, 2, 4]) && !asked([1, -2, 7]) && !asked([1, 1, 1 << 24])
        );
    }

    #[test]
    fn symbols_are_admitted_while_they_are_short() {
        let scope = SymbolScope::default();
        let dim = |text: &str| scope.parse_tdim(text).unwrap();
        assert_eq!(measure(&dim("a")), [1, 1, 1]);
        let quotients = TDim::Add((0..20).map(|_| TDim::Div(Box::new(dim("a")), 7)).collect());
        let product = TDim::Mul(
            (0..20)
                .map(|_| TDim::Add(vec![dim("a"), dim("b")]))
                .collect(),
        );
        assert_eq!(measure(&quotients)[1], 1 << 20);
        assert_eq!(measure(&product)[2], 1 << 20);

        let budget = Budget::new(0);
        let shape = |dims: Vec<TDim>| {
            let dims = dims.into_iter().map(DimFact::from).collect();
            InferenceFact::default().with_shape(ShapeFactoid::closed(dims))
        };
        let known = budget.admit(shape(vec![dim("a+1"), quotients, product]));
        let known: Vec<bool> = known
            .shape
            .dims()
            .map(|dim| dim.concretize().is_some())
            .collect();
        assert_eq!(known, [true, false, false]);
        let huge = vec![TDim::from(1 << 30), TDim::from(1 << 30)];
        assert!(budget.admit(shape(huge)).shape.is_open());
    }

    #[test]
    fn a_budget_is_spent_once() {
        let budget = Budget::new(10);
        assert_eq!(
            [6, 6, 4, 1].map(|bytes| budget.spend(bytes)),
            [true, false, true, false]
        );
        let budget = Budget::new(4 * SMALL);
        let large = 2 * SMALL;
        assert_eq!(
            [large, large, SMALL, SMALL, 1].map(|bytes| budget.spend(bytes)),
            [true, false, true, true, false]
        );
    }
}
