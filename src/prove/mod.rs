//! Whether two models compute the same function, without an engine and without a tolerance.
//!
//! `docs/proof.md` defines it. Two claims are checked: every new tensor is its recipe, rounded once (`rounding`);
//! and with the recipes in the place of the new tensors both graphs have equal outputs at a random point of a finite
//! field (`evaluate`), where polynomials that differ hardly ever meet.

mod blame;
mod evaluate;
mod field;
mod formula;
mod image;
mod matrices;
mod operators;
mod random;
mod rounding;
mod scales;
mod sources;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;
use tract_onnx::prelude::DatumType;

use crate::fold::plan::Stored;
use crate::fold::raised;
use crate::graph::analysis::Analysis;
use crate::graph::facts::extent;
use crate::graph::flat::Flat;
use crate::graph::{Graph, NodeId, ValueId};
use crate::lower::function::redefined;
use crate::lower::{Lowered, Lowering, opaque, written_out};
use crate::normalizer::View;
use crate::normalizer::alike::Alike;
use crate::onnx::Model;
use crate::onnx::node::{bodies, canonical_domain};
use crate::onnx::operator::is_more_than_arithmetic;
use crate::onnx::proto::{
    GraphProto, ModelProto, OperatorSetIdProto, TensorProto, TypeProto, ValueInfoProto,
};
use crate::onnx::tensor::{self, DataType};
use crate::run::{Dims, Input, fix_shapes, free, is_formula};
use evaluate::{Findings, Instead, OnlyAtSizes, Point, Stopped, evaluate};
use field::P;
use image::{Elements, Image, stored};
use ndarray::ArrayD;
use operators::{Allowance, Unmade};
use random::{Digest, Hash, Unknown};
use scales::Scales;
use sources::Sources;

/// How often another point is tried where a divisor is 0, or an output has no element.
const ATTEMPTS: u64 = 8;

/// Batches that are tried, the first of which is what a batch is where nobody says more.
const BATCHES: [usize; 6] = [2, 3, 1, 4, 8, 16];

/// Sizes of other symbols that are tried behind those: strides of several layers want a multiple of theirs, and the layers
/// before an encoder of speech some hundred samples.
const OTHERS: [usize; 5] = [16, 64, 512, 2048, 8192];

/// How many of the extents that constants have are tried behind those.
const ASKED: usize = 4;

/// How many times fewer elements all inputs have where sizes are tried behind those at which something took too much.
const FEWER: u64 = 4;

/// How many elements all inputs may have at a larger size than the first: each size that is tried takes as long as a proof.
const LARGER: u64 = 1 << 20;

/// Integers that are given are below this, and every other one below that: masks, lengths and types of tokens are small.
const INTEGERS: u64 = 100;
const SMALL: u64 = 4;

/// Among many, as tokens are, one of so many is another: what is no token, or the last of a long row.
const OUTLYING: u64 = 8;
const OUTLIERS: [i64; 6] = [-100, -2, -1, 511, 32_767, 1 << 20];

/// What may be left of the doubt whether two functions are the same, and at how many points there may be less of it.
const DOUBT: f64 = 1e-4;
const MOST_POINTS: usize = 8;

/// Of so many truth values among the inputs, all that they may be are tried.
const FEW_TRUTHS: usize = 3;

/// Bytes of stack for the evaluation of the second graph, as a main thread has them.
const STACK: usize = 8 << 20;

/// How two models are compared.
#[derive(Debug, Clone)]
pub struct ProveOptions {
    /// Sizes for symbolic dimensions.
    pub dims: Dims,
    /// At how many points both are evaluated; at more where that leaves a doubt.
    pub points: usize,
    /// What the points are drawn from.
    pub seed: u64,
}

impl Default for ProveOptions {
    fn default() -> Self {
        Self { dims: Dims::default(), points: 1, seed: 0 }
    }
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Proof {
    /// Both compute the same function.
    Proved {
        /// At so many points.
        points: usize,
        /// A bound on the probability that they do not, and nobody saw it.
        bound: f64,
        /// How many tensors were computed again, bit for bit.
        tensors: usize,
    },
    /// They do not, or a tensor is not what it should be.
    Disproved {
        /// The first value, or the tensor, that is wrong.
        at: String,
        /// The site for whose sake it was changed.
        site: Option<usize>,
        /// What is wrong.
        reason: String,
    },
    /// Nobody knows.
    Undecided {
        /// Why.
        reason: String,
    },
}

/// Whether `fused` computes what `original` does, if `tensors` are its new tensors.
///
/// ```
/// use unfold::onnx::Model;
/// use unfold::prove::{Proof, prove};
///
/// let model = Model::open("models/digits/un-dynamo.onnx")?;
/// let fused = unfold::fuse(&model, &Default::default())?;
/// let proof = prove(&model, &fused.model, &fused.plan.tensors, &Default::default());
/// assert!(matches!(proof, Proof::Proved { bound, .. } if bound < 1e-4));
/// # Ok::<(), unfold::error::Error>(())
/// ```
pub fn prove(original: &Model, fused: &Model, tensors: &[Stored], options: &ProveOptions) -> Proof {
    let mut first = None;
    let mut room = u64::MAX;
    // A model may be written for one batch though it says that any would do.
    for dims in sizes(original, &options.dims) {
        let given = inputs(original, &dims).map_or(0, |inputs| elements(&inputs));
        if given > room {
            continue;
        }
        match claims(original, fused, tensors, &ProveOptions { dims, ..options.clone() }) {
            Ok(proof) | Err(Ended::With(proof)) => return proof,
            Err(Ended::Unknown(at)) => {
                first.get_or_insert_with(|| {
                    undecided(format!("what the bodies of `{at}` compute is not known"))
                });
            }
            Err(Ended::Beyond(at)) => {
                room = given / FEWER;
                first.get_or_insert_with(|| too_much(&at));
            }
            Err(Ended::Uncomputed(reason)) => {
                first.get_or_insert_with(|| undecided(reason));
            }
            Err(Ended::Zero(at)) => {
                first.get_or_insert_with(|| undecided(format!("`{at}` divides by 0 at every point")));
            }
            Err(Ended::Empty(at)) => {
                let why = || undecided(format!("`{at}` has no element to be compared at any point"));
                first.get_or_insert_with(why);
            }
            Err(Ended::Misfit(at)) => {
                first.get_or_insert_with(|| {
                    undecided(format!(
                        "what `{at}` reads does not fit it, or its extents do not fit each other: other sizes of \
                         symbolic dimensions may"
                    ))
                });
            }
        }
    }
    first.unwrap_or_else(|| undecided("there are no sizes to prove it at"))
}

/// The sizes that are given, and others for the batch, or for what else is open, where the first ones contradict each other.
fn sizes(model: &Model, given: &Dims) -> Vec<Dims> {
    let (mut batch, mut others): (Vec<Cow<str>>, Vec<Cow<str>>) = (vec![], vec![]);
    let light = interface(model.graph());
    for symbols in free(&light).map(Input::symbols) {
        let rank = symbols.len();
        for (axis, name) in symbols.into_iter().enumerate() {
            // What is a formula of others follows from those.
            let Some(name) = name.filter(|name| given.get(name).is_none() && !is_formula(name)) else {
                continue;
            };
            let is_batch = Dims::default_for(Some(&name), axis, rank) == BATCHES[0];
            if is_batch { &mut batch } else { &mut others }.push(name);
        }
    }
    let with = |names: &[Cow<str>], size: usize| {
        let mut dims = given.clone();
        names.iter().for_each(|name| dims.set(name.clone(), size));
        dims
    };
    let is_small = |dims: &Dims| inputs(model, dims).is_ok_and(|inputs| elements(&inputs) <= LARGER);
    let tried = if batch.is_empty() { &BATCHES[..1] } else { &BATCHES[..] };
    let batches = tried.iter().map(|&size| (size, with(&batch, size)));
    let batches = batches.filter(|(size, dims)| *size <= BATCHES[0] || is_small(dims)).map(|(_, dims)| dims);
    let tried = if others.is_empty() { vec![] } else { [&OTHERS[..], &asked_for(model)].concat() };
    let mut sizes: Vec<Dims> =
        batches.chain(tried.into_iter().map(|size| with(&others, size)).filter(is_small)).collect();
    // One symbol may be what constants fit, and another anything.
    if others.len() > 1 {
        let alone = asked_for(model).into_iter().flat_map(|size| others.iter().map(move |name| (name, size)));
        sizes.extend(alone.map(|(name, size)| with(std::slice::from_ref(name), size)).filter(is_small));
    }
    sizes
}

/// The extents that most constants have, which an open one may have to be.
fn asked_for(model: &Model) -> Vec<usize> {
    let mut times: BTreeMap<usize, usize> = BTreeMap::new();
    let extents = model.graph().initializer.iter().flat_map(|tensor| &tensor.dims);
    for extent in extents.filter_map(|&extent| usize::try_from(extent).ok()) {
        *times.entry(extent).or_default() += 1;
    }
    let mut extents: Vec<(usize, usize)> = times.into_iter().filter(|&(extent, _)| extent > 1).collect();
    extents.sort_by_key(|&(extent, times)| (std::cmp::Reverse(times), extent));
    extents.into_iter().take(ASKED).map(|(extent, _)| extent).collect()
}

fn too_much(at: &str) -> Proof {
    undecided(format!("`{at}` takes more than a model of its size is known to take"))
}

fn undecided(reason: impl Into<String>) -> Proof {
    Proof::Undecided { reason: reason.into() }
}

fn claims(
    original: &Model,
    fused: &Model,
    tensors: &[Stored],
    options: &ProveOptions,
) -> Result<Proof, Ended> {
    same_interface(original, fused)?;
    if let Some(name) = [original, fused].into_iter().find_map(redefined) {
        return Err(
            undecided(format!("the operator `{name}` is redefined, which engines read otherwise")).into()
        );
    }
    let before = original;
    let both = |lowering| {
        Ok::<_, Proof>((prepared(before, lowering, options)?, prepared(fused, lowering, options)?))
    };
    let (mut original, mut fused) = both(Lowering::Normalizers)?;
    // Formulas name the constants inside calls that only the fused one has written out.
    if opaque(&original.model) != opaque(&fused.model) {
        (original, fused) = both(Lowering::All)?;
    }
    same_ends(&original.model, &fused.model)?;
    let known = Analysis::new(&original.model).map_err(|error| undecided(error.to_string()))?;
    // Recipes call the constants of bodies by the way to them.
    let [laid_out, prepared] = [before, &original.model].map(Flat::new);
    let before = laid_out.as_ref().map_or(before, |flat| &flat.model);
    let all = prepared.as_ref().map(|flat| Analysis::new(&flat.model)).transpose();
    let all = all.map_err(|error| undecided(error.to_string()))?;
    let sources = (before, all.as_ref().unwrap_or(&known));
    let recomputed = rounding::check(sources, &fused.model, tensors)?;
    let turns = turns(&truths(&original));
    let least = options.points.max(turns);
    // What truth values decide is seen where they are so.
    let (mut bounds, mut bound, mut points) = (vec![1.0; turns], 1.0_f64, 0);
    while points < least || bound > DOUBT {
        if points >= least.max(MOST_POINTS) {
            return Err(undecided(
                "what is computed has too high a degree for equal numbers to say that it is the same",
            )
            .into());
        }
        let point = points as u64;
        points += 1;
        let (mut found, mut why) = (None, None);
        for attempt in 0..ATTEMPTS {
            let mut hash = Hash::new(options.seed, "point");
            hash.number(point);
            hash.number(attempt);
            let seed = Seed { key: hash.finish() as u64, all: options.seed, point };
            match identity(sources, &known, &original, &fused, tensors, seed) {
                Ok(degree) => found = Some(degree),
                Err(ended @ (Ended::Zero(_) | Ended::Empty(_))) => {
                    why = Some(ended);
                    continue;
                }
                Err(ended) => return Err(ended),
            }
            break;
        }
        let degree = match (found, why) {
            (Some(degree), _) => degree,
            (None, Some(ended)) => return Err(ended),
            (None, None) => return Err(undecided("there is no point to prove it at").into()),
        };
        bounds[point as usize % turns] *= (degree / P as f64).min(1.0);
        bound = bounds.iter().copied().fold(0.0, f64::max);
    }
    Ok(Proof::Proved { points, bound, tensors: recomputed })
}

/// A model with its opaque normalizers written out and a number for every extent of its inputs.
struct Prepared {
    model: Model,
    inputs: Vec<Input>,
    /// How the tensors are computed that came with what was written out.
    formulas: Vec<Stored>,
    /// The inputs as they are declared, where some of their extents are open.
    open: Option<Vec<ValueInfoProto>>,
}

/// How many elements inputs have.
fn elements(inputs: &[Input]) -> u64 {
    let count = |input: &Input| input.shape.iter().fold(1_u64, |n, &extent| n.saturating_mul(extent as u64));
    inputs.iter().map(count).fold(0, u64::saturating_add)
}

impl Prepared {
    fn allowance(&self) -> Allowance {
        Allowance::new(self.model.about_bytes(), elements(&self.inputs))
    }

    /// What is known since every extent has a number.
    fn only_at_sizes(&self, known: &Analysis) -> OnlyAtSizes {
        let Some(open) = &self.open else { return OnlyAtSizes::default() };
        let mut graph = known.graph.proto().clone();
        graph.input.clone_from(open);
        let model = self.model.with_graph(graph);
        let Ok(open) = Analysis::new(&model) else { return OnlyAtSizes::default() };
        let named = |value: ValueId| open.graph.value(known.graph.value_name(value));
        let values =
            known.graph.order().iter().flat_map(|&node| known.graph.outputs(node)).flatten().copied();
        let constants = values
            .filter(|&value| known.constants.is_constant(value))
            .filter(|&value| named(value).is_some_and(|value| !open.constants.is_constant(value)));
        let is_told = |value| {
            let shape = open.facts.shape(value);
            shape.is_some_and(|shape| shape.iter().all(|dim| extent(dim).is_some()))
        };
        let ends = outputs(&known.graph);
        let ends = ends.into_iter().filter(|&value| named(value).is_some_and(|value| !is_told(value)));
        let name = |value| known.graph.value_name(value).to_owned();
        OnlyAtSizes { constants: constants.map(name).collect(), outputs: ends.map(name).collect() }
    }
}

/// Whether tensors are computed with more than arithmetic.
fn have_formulas(tensors: &[Stored]) -> bool {
    tensors.iter().any(|tensor| tensor.recipe.steps().into_iter().any(sources::is_number))
}

fn prepared(model: &Model, lowering: Lowering, options: &ProveOptions) -> Result<Prepared, Proof> {
    let lowered =
        written_out(model, lowering, &|_, _| false).map_err(|error| undecided(error.to_string()))?;
    let (mut model, formulas) = match lowered {
        Some(Lowered { model, formulas }) => (model, formulas.iter().filter_map(Stored::of).collect()),
        None => (model.clone(), vec![]),
    };
    let inputs = inputs(&model, &options.dims)?;
    let declared = model.graph().input.clone();
    fix_shapes(model.graph_mut(), &inputs);
    let open = Some(declared).filter(|declared| *declared != model.graph().input);
    Ok(Prepared { model, inputs, formulas, open })
}

/// The inputs whose sizes count, at these.
fn inputs(model: &Model, dims: &Dims) -> Result<Vec<Input>, Proof> {
    let light = Model::from_proto(ModelProto { graph: Some(interface(model.graph())), ..Default::default() });
    Input::of(&light, dims).map_err(|failure| undecided(failure.to_string()))
}

/// A graph of the inputs that are tensors of numbers, and of what those are where nobody gives them.
fn interface(graph: &GraphProto) -> GraphProto {
    let number = |input: &ValueInfoProto| -> Option<ValueInfoProto> {
        let mut input = input.clone();
        let tensor = input.r#type.as_mut()?.tensor_type.as_mut()?;
        tensor.shape.as_ref()?;
        let element = DataType::from_code(tensor.elem_type())?;
        // Engines that have no bfloat16 have no say in this.
        let element = if element.is_float() { DataType::Float } else { element };
        tensor.elem_type = Some(element.code());
        (element.is_float() || (element.is_integer() && element.bits() >= Some(8))).then_some(input)
    };
    let name = |tensor: &TensorProto| TensorProto { name: tensor.name.clone(), ..Default::default() };
    GraphProto {
        input: graph.input.iter().filter_map(number).collect(),
        initializer: graph.initializer.iter().map(name).collect(),
        ..Default::default()
    }
}

/// Whether what is given may be the same, has the same defaults, and operators mean the same.
fn same_interface(original: &Model, fused: &Model) -> Result<(), Proof> {
    let (inputs, others) = (&original.graph().input, &fused.graph().input);
    let parted = |at: &ValueInfoProto, reason: &str| Proof::Disproved {
        at: at.name().to_owned(),
        site: None,
        reason: reason.to_owned(),
    };
    let names: HashSet<&str> = inputs.iter().map(|input| input.name()).collect();
    let defaults = [original, fused].map(|model| -> HashMap<&str, Digest> {
        let sparse = model.graph().sparse_initializer.iter().flat_map(|sparse| {
            let name = sparse.values.as_ref().map_or("", |values| values.name());
            sparse.values.iter().chain(&sparse.indices).map(move |tensor| (name, tensor))
        });
        let tensors = model.graph().initializer.iter().map(|tensor| (tensor.name(), tensor)).chain(sparse);
        let mut defaults: HashMap<&str, Hash> = HashMap::new();
        for (name, tensor) in tensors.filter(|(name, _)| names.contains(name)) {
            let hash = defaults.entry(name).or_insert_with(|| Hash::new(0, "default"));
            hash.digest(stored(tensor, model.externals(), 0));
        }
        defaults.into_iter().map(|(name, hash)| (name, hash.finish())).collect()
    });
    for (input, other) in inputs.iter().zip(others) {
        if input.r#type != other.r#type && input.name() == other.name() {
            return Err(parted(input, "the inputs are not of the types of the original's"));
        }
        // Before that version they are the constants that they are.
        let is_default = original.proto.ir_version() >= 4;
        if is_default && defaults[0].get(input.name()) != defaults[1].get(input.name()) {
            return Err(parted(input, "what it is where nobody gives it is not that of the original"));
        }
    }
    let sets = |model: &Model| -> BTreeMap<String, i64> {
        let set = |set: &OperatorSetIdProto| (canonical_domain(set.domain()).to_owned(), set.version());
        model.proto.opset_import.iter().map(set).collect()
    };
    let [before, after] = [original, fused].map(sets);
    let differs = |(domain, version): &(&String, &i64)| {
        let other = after.get(*domain).is_some_and(|other| other != *version);
        other && !(domain.is_empty() && means_the_same(original, fused))
    };
    match before.iter().find(differs) {
        Some((domain, _)) => Err(undecided(format!("the operator set `{domain}` is of another version"))),
        None => Ok(()),
    }
}

/// Whether all operators of a model mean what they would in the older operator set of the one that it was made of.
fn means_the_same(original: &Model, fused: &Model) -> bool {
    let [from, to] = [original, fused].map(Model::own_opset);
    let mut graphs = vec![fused.graph()];
    let mut is_same = from <= to
        && [from, to].iter().all(|set| raised::ALIKE.contains(set))
        && original.proto.functions.is_empty()
        && fused.proto.functions.is_empty();
    while let Some(graph) = graphs.pop() {
        for node in &graph.node {
            is_same &= raised::means_the_same(node, from);
            graphs.extend(bodies(node));
        }
    }
    is_same
}

fn same_ends(original: &Model, fused: &Model) -> Result<(), Proof> {
    let ends = |model: &Model| -> [Vec<(String, Option<TypeProto>)>; 2] {
        let told = |value: &ValueInfoProto| (value.name().to_owned(), value.r#type.as_ref().map(shapeless));
        [&model.graph().input, &model.graph().output].map(|list| list.iter().map(told).collect())
    };
    let (before, after) = (ends(original), ends(fused));
    let differ = before.iter().flatten().zip(after.iter().flatten()).find(|(one, other)| one != other);
    if before == after {
        return Ok(());
    }
    Err(Proof::Disproved {
        at: differ.map_or(String::new(), |(_, (other, _))| other.clone()),
        site: None,
        reason: "the inputs or outputs are not those of the original".to_owned(),
    })
}

/// A type of any value, without the shapes of its tensors.
fn shapeless(of: &TypeProto) -> TypeProto {
    let mut of = of.clone();
    of.denotation = None;
    if let Some(tensor) = &mut of.tensor_type {
        tensor.shape = None;
    }
    if let Some(elements) = of.sequence_type.as_mut().and_then(|sequence| sequence.elem_type.as_mut()) {
        *elements = shapeless(elements);
    }
    if let Some(elements) = of.optional_type.as_mut().and_then(|optional| optional.elem_type.as_mut()) {
        *elements = shapeless(elements);
    }
    of
}

/// Why a point decides nothing, or all.
enum Ended {
    /// Extents contradict each other at this value.
    Misfit(String),
    /// Something divides by 0 there.
    Zero(String),
    /// This output has no element there, and other integers may give it some.
    Empty(String),
    /// The bodies of what makes this value could not be evaluated, perhaps for the extents.
    Unknown(String),
    /// This value takes too much, as attention between the pixels of an image does.
    Beyond(String),
    /// A recipe cannot be computed, for this reason, perhaps for the extents.
    Uncomputed(String),
    With(Proof),
}

impl From<Proof> for Ended {
    fn from(proof: Proof) -> Self {
        Ended::With(proof)
    }
}

impl From<Stopped> for Ended {
    fn from(halt: Stopped) -> Self {
        let Stopped { stop, at } = halt;
        Ended::With(match stop {
            Unmade::Zero => return Ended::Zero(at),
            Unmade::Misfit => return Ended::Misfit(at),
            Unmade::Beyond => return Ended::Beyond(at),
            Unmade::Uncovered => undecided(format!("what `{at}` stands for cannot be computed, or read")),
        })
    }
}

/// Both graphs at one point: the degree that bounds the error, where their outputs agree.
fn identity(
    (before, all): (&Model, &Analysis),
    known: &Analysis,
    original: &Prepared,
    fused: &Prepared,
    tensors: &[Stored],
    seed: Seed,
) -> Result<f64, Ended> {
    let key = seed.key;
    let allowance = original.allowance();
    let inputs = given(original, seed, &allowance)?;
    let own = Sources::new(before, key);
    let instead = |name: &str| {
        let stored = original.formulas.iter().find(|stored| stored.name == name)?;
        Some(formula::value(&stored.recipe, &own, &allowance).map(Image::Field))
    };
    let views = [known, all].map(|known| has_more_than_arithmetic(known).then(|| View::new(known)));
    let [alike, all_alike] = views.each_ref().map(|view| view.as_ref().map(Alike::new));
    let alike = alike.as_ref();
    let laid_out = (!std::ptr::eq(all, known)).then_some((all, all_alike.as_ref()));
    let (inputs, instead) = (&inputs, &instead as Instead);
    let allowance = &allowance;
    let (only_at_sizes, has_formulas) = (&original.only_at_sizes(all), have_formulas(tensors));
    let point = Point {
        known,
        key,
        inputs,
        instead,
        allowance,
        alike,
        laid_out,
        only_at_sizes,
        has_formulas,
        scales: None,
    };
    let source = Sources::new(before, key).numbered(tensors, all).map_err(|refusal| {
        Ended::With(undecided(format!("`{}` is a number of no recipe: {}", refusal.at, refusal.reason)))
    })?;
    let source = source.with(constants(
        &Point { known: all, alike: all_alike.as_ref(), laid_out: None, ..point },
        &own,
        tensors,
    )?);
    let apart = std::thread::scope(|scope| {
        let other = || second(fused, &source, tensors, seed, None);
        let other = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, other);
        let other = other.map_err(|error| Ended::With(undecided(error.to_string())));
        let seen = evaluate(&point, &outputs(&known.graph), false).map_err(Ended::from);
        let other =
            other?.join().unwrap_or_else(|_| Err(Ended::With(undecided("the evaluation ended early"))));
        compare(known, seen?, fits(other)?, fused, tensors)
    });
    // What is between the two may have moved through an operator that hands positive factors on.
    let read = |name: &str| sources::read(before, all, name);
    let graph = &known.graph;
    let has_body = |&node: &NodeId| bodies(graph.node(node)).next().is_some();
    let is_there = |node: &NodeId| scales::passes(graph.domain_op(*node)) || has_body(node);
    let scales = match &apart {
        Err(Ended::Unknown(_) | Ended::With(Proof::Disproved { .. }))
            if graph.order().iter().any(is_there) =>
        {
            Scales::new(tensors, &source, &read, allowance)
        }
        _ => None,
    };
    let Some(scales) = &scales else { return apart };
    let again = original.allowance();
    let point = Point { scales: Some(scales), allowance: &again, ..point };
    let seen = evaluate(&point, &outputs(graph), false)?;
    scales.turn();
    compare(known, seen, fits(second(fused, &source, tensors, seed, Some(scales)))?, fused, tensors)
}

/// What does not fit itself where the original does is not to be tried at other sizes: at those it may be the same.
fn fits(second: Result<Findings, Ended>) -> Result<Findings, Ended> {
    second.map_err(|ended| match ended {
        Ended::Misfit(at) => {
            Ended::With(undecided(format!("what `{at}` reads does not fit it, where the original fits")))
        }
        Ended::Beyond(at) => Ended::With(too_much(&at)),
        ended => ended,
    })
}

/// Whether constants are computed by more than arithmetic: recipes have them in float64, as folding has.
fn has_more_than_arithmetic(known: &Analysis) -> bool {
    let Analysis { graph, constants, .. } = known;
    let computes = |&node: &NodeId| graph.op(node).is_some_and(is_more_than_arithmetic);
    let is_constant =
        |&node: &NodeId| graph.output(node, 0).is_some_and(|value| constants.is_constant(value));
    graph.order().iter().any(|node| computes(node) && is_constant(node))
}

fn outputs(graph: &Graph) -> Vec<ValueId> {
    graph.proto().output.iter().filter_map(|output| graph.value(output.name())).collect()
}

/// What the random numbers of a point come from.
#[derive(Clone, Copy)]
struct Seed {
    /// Those of this point, or of another attempt at it.
    key: u64,
    /// Those of all points.
    all: u64,
    /// Which point it is.
    point: u64,
}

/// The inputs of truth values, also those that need not be given, and how many each has.
fn truths(prepared: &Prepared) -> Vec<(&str, usize)> {
    let is_truth = |input: &&Input| input.element == DatumType::Bool;
    let inputs = prepared.inputs.iter().filter(is_truth);
    let graph = prepared.model.graph();
    let names: HashSet<&str> = graph.input.iter().map(|input| input.name()).collect();
    let is_default =
        |tensor: &&TensorProto| tensor.data_type() == DataType::Bool.code() && names.contains(tensor.name());
    // Before that version they are the constants that they are.
    let is_given = prepared.model.proto.ir_version() >= 4;
    let defaults = graph.initializer.iter().filter(is_default).filter(|_| is_given);
    let count = |tensor: &TensorProto| tensor::shape(tensor).map_or(0, |shape| shape.iter().product());
    inputs
        .map(|input| (input.name.as_str(), input.shape.iter().product()))
        .chain(defaults.map(|tensor| (tensor.name(), count(tensor))))
        .collect()
}

/// How many points see all that a few truth values may be; of more, each is seen both ways.
fn turns(truths: &[(&str, usize)]) -> usize {
    match truths.iter().map(|(_, count)| count).sum() {
        count @ 0..=FEW_TRUTHS => 1 << count,
        _ => 2,
    }
}

/// The truth values of an input at a point.
fn truth(truths: &[(&str, usize)], name: &str, shape: &[usize], Seed { all, point, .. }: Seed) -> Image {
    let before: usize = truths.iter().take_while(|(other, _)| *other != name).map(|(_, count)| count).sum();
    let is_few = truths.iter().map(|(_, count)| count).sum::<usize>() <= FEW_TRUTHS;
    let mut hash = Hash::new(all, "truth");
    hash.text(name);
    let unknown = Unknown::new(hash.finish());
    let one = |place: usize| match is_few {
        true => point >> (before + place) & 1,
        false => (u64::from(unknown.of(place as u64)) ^ point) & 1,
    };
    let places = (0..shape.iter().product()).map(|place| one(place) as i64).collect();
    ArrayD::from_shape_vec(shape, places).map_or(Image::Opaque(hash.finish()), Image::int)
}

/// The values of the inputs: random ones, the same for each name.
fn given(prepared: &Prepared, seed: Seed, allowance: &Allowance) -> Result<HashMap<String, Image>, Stopped> {
    let (key, truths) = (seed.key, truths(prepared));
    let graph = prepared.model.graph();
    let sized: HashMap<&str, &Input> =
        prepared.inputs.iter().map(|input| (input.name.as_str(), input)).collect();
    let stored: HashMap<&str, &TensorProto> =
        graph.initializer.iter().map(|tensor| (tensor.name(), tensor)).collect();
    let listed_is_constant = prepared.model.proto.ir_version() < 4;
    let mut values = HashMap::new();
    for input in &graph.input {
        let name = input.name();
        let mut hash = Hash::new(key, "input");
        hash.text(name);
        let own = hash.finish();
        let drawn = |shape: &[usize], data_type| {
            allowance.room(shape).map_err(|stop| Stopped { stop, at: name.to_owned() })?;
            Ok(match truths.iter().any(|(truth, _)| *truth == name) {
                true => truth(&truths, name, shape, seed),
                false => drawn(own, shape, data_type),
            })
        };
        let declared = || DataType::from_code(input.r#type.as_ref()?.tensor_type.as_ref()?.elem_type());
        let value = match (sized.get(name), stored.get(name)) {
            // A default, which the caller may replace.
            (_, Some(tensor)) if !listed_is_constant => {
                match (tensor::data_type(tensor), tensor::shape(tensor)) {
                    (Ok(data_type), Ok(shape)) => drawn(&shape, data_type)?,
                    _ => Image::Opaque(own),
                }
            }
            (_, Some(_)) => continue,
            (Some(sized), None) => match declared() {
                Some(data_type) => drawn(&sized.shape, data_type)?,
                None => Image::Opaque(own),
            },
            (None, None) => Image::Opaque(own),
        };
        values.insert(name.to_owned(), value);
    }
    Ok(values)
}

/// Random elements, or random integers.
fn drawn(seed: Digest, shape: &[usize], data_type: DataType) -> Image {
    if !data_type.is_integer() {
        return Image::random(seed, shape, false);
    }
    let unknown = Unknown::new(seed);
    let below = |place: u64, end: u64| (u64::from(unknown.of(place)) * end / P) as i64;
    let integer = |place: u64| match data_type {
        DataType::Bool => below(place, 2),
        DataType::Int32 | DataType::Int64 if place % OUTLYING == OUTLYING - 1 => {
            OUTLIERS[below(place, OUTLIERS.len() as u64) as usize]
        }
        // One place for the size, and one for the number.
        _ if below(2 * place, 2) == 0 => below(2 * place + 1, SMALL),
        _ => below(2 * place + 1, INTEGERS),
    };
    let integers = (0..shape.iter().product::<usize>() as u64).map(integer);
    ArrayD::from_shape_vec(shape, integers.collect()).map_or(Image::Opaque(seed), Image::int)
}

/// The values of the original that recipes are made of and that are not stored, but computed.
fn constants(
    point: &Point,
    stored: &Sources,
    tensors: &[Stored],
) -> Result<HashMap<String, Elements>, Ended> {
    let graph = &point.known.graph;
    let mut wanted = vec![];
    for name in tensors.iter().flat_map(|tensor| tensor.recipe.constants()) {
        let value = graph.value(name).filter(|&value| point.known.constants.is_constant(value));
        let Some(value) = value else {
            if stored.stores(name) {
                continue;
            }
            return Err(Ended::With(undecided(format!("the original has no constant `{name}`"))));
        };
        if graph.initializer(value).is_none() {
            wanted.push(value);
        }
    }
    wanted.sort();
    wanted.dedup();
    let seen = evaluate(point, &wanted, true)?;
    let kept = seen.kept.into_iter();
    Ok(kept.filter_map(|(value, made)| Some((graph.value_name(value).to_owned(), made.images()?))).collect())
}

fn second(
    fused: &Prepared,
    source: &Sources,
    tensors: &[Stored],
    seed: Seed,
    scales: Option<&Scales>,
) -> Result<Findings, Ended> {
    let known = Analysis::new(&fused.model).map_err(|error| {
        let reason = format!("it is no graph that ONNX allows: {error}");
        Ended::With(Proof::Disproved { at: String::new(), site: None, reason })
    })?;
    let allowance = fused.allowance();
    let recipes: HashMap<&str, &Stored> =
        fused.formulas.iter().chain(tensors).map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let instead = |name: &str| {
        let stored = recipes.get(name)?;
        Some(formula::value(&stored.recipe, source, &allowance).map(Image::Field))
    };
    let inputs = given(fused, seed, &allowance)?;
    let flat = Flat::new(&fused.model);
    // It is a graph that ONNX allows, or there would be none.
    let all = flat.as_ref().and_then(|flat| Analysis::new(&flat.model).ok());
    let views = [Some(&known), all.as_ref()]
        .map(|known| known.filter(|known| has_more_than_arithmetic(known)).map(View::new));
    let [alike, all_alike] = views.each_ref().map(|view| view.as_ref().map(Alike::new));
    let alike = alike.as_ref();
    let point = Point {
        laid_out: all.as_ref().map(|all| (all, all_alike.as_ref())),
        only_at_sizes: &fused.only_at_sizes(all.as_ref().unwrap_or(&known)),
        has_formulas: have_formulas(tensors),
        known: &known,
        key: seed.key,
        inputs: &inputs,
        instead: &instead,
        allowance: &allowance,
        alike,
        scales,
    };
    Ok(evaluate(&point, &outputs(&known.graph), false)?)
}

/// Compares the outputs, and says where the two part.
fn compare(
    known: &Analysis,
    seen: Findings,
    second: Findings,
    fused: &Prepared,
    tensors: &[Stored],
) -> Result<f64, Ended> {
    let digests: HashMap<String, Digest> = (0..known.graph.value_count())
        .filter_map(|index| {
            let name = known.graph.value_name(ValueId(index as u32));
            Some((name.to_owned(), seen.digests[index]?))
        })
        .collect();
    let graph = Graph::new(&fused.model).map_err(|error| Ended::With(undecided(error.to_string())))?;
    let digest = |value: ValueId| second.digests[value.0 as usize];
    let mut empty = None;
    for output in outputs(&graph) {
        let name = graph.value_name(output);
        let types = (seen.types.get(name), second.types.get(name));
        if let (Some(before), Some(after)) = types
            && before != after
        {
            let reason = format!("the output is of {after} where it was of {before}");
            return Err(Ended::With(Proof::Disproved { at: name.to_owned(), site: None, reason }));
        }
        if digests.get(name).copied() == digest(output) {
            if seen.empty.contains(name) {
                empty.get_or_insert(name);
            }
            continue;
        }
        // What is a function of all that it reads, since nobody knows its extents, differs when that does, though a
        // fold may have gone through it.
        let is_opaque = |name: &str| {
            let differs = || digests.get(name).copied() != graph.value(name).and_then(digest);
            (seen.opaque.contains(name) || second.opaque.contains(name)) && differs()
        };
        if let Some(unknown) = blame::behind(&graph, output, &is_opaque) {
            let unknown = graph.value_name(unknown);
            return Err(Ended::With(undecided(format!("the extents of `{unknown}` are not known"))));
        }
        let is_uncertain = |name: &str| seen.uncertain.contains(name) || second.uncertain.contains(name);
        if let Some(unknown) = blame::behind(&graph, output, &is_uncertain) {
            return Err(Ended::Unknown(graph.value_name(unknown).to_owned()));
        }
        let first = blame::first(&graph, &second.digests, &digests, output);
        let at = graph.value_name(first);
        return Err(Ended::With(Proof::Disproved {
            at: at.to_owned(),
            site: blame::site(&graph, first, tensors),
            reason: format!("from here on the two never meet again, and the output `{name}` differs"),
        }));
    }
    // Others have been told apart before it.
    match empty {
        Some(name) => Err(Ended::Empty(name.to_owned())),
        None => Ok(seen.degree.max(second.degree)),
    }
}
