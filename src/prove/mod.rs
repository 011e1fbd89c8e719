//! Whether two models compute the same function, without an engine and without a tolerance.
//!
//! `docs/proof.md` defines it. Two claims are checked: every new tensor is its recipe, rounded once (`rounding`);
//! and with the recipes in the place of the new tensors both graphs have equal outputs at a random point of a finite
//! field (`evaluate`), where polynomials that differ hardly ever meet.

mod blame;
mod evaluate;
mod field;
mod formula;
mod given;
mod image;
mod interface;
mod matrices;
mod operators;
mod random;
mod rounding;
mod scales;
mod sizes;
mod sources;

use std::collections::HashMap;

use serde::Serialize;

use crate::fold::plan::Stored;
use crate::graph::analysis::Analysis;
use crate::graph::facts::extent;
use crate::graph::flat::Flat;
use crate::graph::{Graph, NodeId, ValueId};
use crate::lower::function::redefined;
use crate::lower::{Lowered, Lowering, opaque, written_out};
use crate::normalizer::View;
use crate::normalizer::alike::Alike;
use crate::onnx::Model;
use crate::onnx::node::bodies;
use crate::onnx::operator::is_more_than_arithmetic;
use crate::onnx::proto::ValueInfoProto;
use crate::run::{Dims, Input, fix_shapes};
use evaluate::{Findings, Instead, OnlyAtSizes, Point, Stopped, evaluate};
use field::P;
use given::{Seed, given, truths, turns};
use image::{Elements, Image};
use interface::{same_ends, same_interface};
use operators::{Allowance, Unmade};
use random::{Digest, Hash};
use scales::Scales;
use sizes::{elements, inputs, sizes};
use sources::Sources;

/// How often another point is tried where a divisor is 0, or an output has no element.
const ATTEMPTS: u64 = 8;

/// How many times fewer elements all inputs have where sizes are tried behind those at which something took too much.
const FEWER: u64 = 4;

/// What may be left of the doubt whether two functions are the same, and at how many points there may be less of it.
const DOUBT: f64 = 1e-4;
const MOST_POINTS: usize = 8;

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
