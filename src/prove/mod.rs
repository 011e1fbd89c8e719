//! Whether two models compute the same function, without an engine and without a tolerance.
//!
//! `docs/proof.md` defines it. Two claims are checked: every new tensor is its recipe, rounded once
//! (`rounding`); and with the recipes in place of the new tensors both graphs have equal outputs at
//! a random point of a finite field (`evaluate`), where different polynomials hardly ever agree.

mod blame;
mod evaluate;
mod field;
mod field_value;
mod formula;
mod interface;
mod matrices;
mod operators;
mod random;
mod random_inputs;
mod roots;
mod rounding;
mod scales;
mod sizes;
mod sources;
mod validity;

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use crate::affine::plan::Stored;
use crate::affine::recognize::View;
use crate::affine::recognize::batch_invariant::Alike;
use crate::analysis::Analysis;
use crate::ir::regions::Flat;
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::Model;
use crate::onnx::node::bodies;
use crate::onnx::operator::is_more_than_arithmetic;
use crate::onnx::proto::ValueInfoProto;
use crate::passes::inline::functions::redefined;
use crate::passes::inline::{Lowered, Lowering, opaque, written_out};
use crate::prove::field_value::{Elements, FieldValue};
use crate::prove::random_inputs::{Seed, boolean_inputs, given, truth_cases};
use crate::run::{Dims, Input, fix_shapes};
use crate::shape::facts::extent;
use evaluate::{Findings, Instead, OnlyAtSizes, Point, Stopped, evaluate};
use field::P;
use interface::{same_ends, same_interface};
use operators::{Allowance, Unmade};
use random::{Digest, Hash};
use roots::RootOfMinusOne;
use scales::Scales;
use sizes::{SizeSearch, elements, inputs};
use sources::Sources;
use validity::Fault;

/// How often another point is tried where a divisor is 0, or an output has no element.
const ATTEMPTS: u64 = 8;

/// How many times fewer elements all inputs have where sizes are tried behind those at which something took too much.
const FEWER: u64 = 4;

/// The doubt that is accepted, and the largest number of points to reduce it.
const DOUBT: f64 = 1e-4;
const MOST_POINTS: usize = 8;

/// Bytes of stack for the evaluation of the second graph, as a main thread has them.
const STACK: usize = 8 << 20;

/// How two models are compared.
#[derive(Debug, Clone)]
pub struct ProveOptions {
    /// SizeSearch for symbolic dimensions.
    pub dims: Dims,
    /// At how many points both are evaluated; at more where that leaves a doubt.
    pub points: usize,
    /// The seed of the points.
    pub seed: u64,
}

impl Default for ProveOptions {
    fn default() -> Self {
        Self {
            dims: Dims::default(),
            points: 1,
            seed: 0,
        }
    }
}

/// The verdict of a proof.
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
    /// No engine takes the folded model, for a reason that the original does not have.
    Invalid {
        /// The first node that is wrong.
        at: String,
        /// The reason.
        reason: String,
    },
    /// The functions differ, or a tensor differs from its recipe.
    Disproved {
        /// The first value, or the tensor, that is wrong.
        at: String,
        /// The site for whose sake it was changed.
        site: Option<usize>,
        /// The difference.
        reason: String,
    },
    /// The proof cannot decide.
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
    if original.is_identical(fused) {
        return Proof::Proved {
            points: 0,
            bound: 0.0,
            tensors: 0,
        };
    }
    let sizes = SizeSearch::new(original, fused, &options.dims);
    let mut first = None;
    let mut room = u64::MAX;
    // A model may be written for one batch though it says that any would do.
    for dims in sizes.first() {
        let given = inputs(original, &dims).map_or(0, |inputs| elements(&inputs));
        if given > room {
            continue;
        }
        let options = ProveOptions {
            dims,
            ..options.clone()
        };
        match claims([original, fused], tensors, &options, ClaimScope::All) {
            Ok(found) => return confirmed([original, fused], tensors, &options, &sizes, found),
            Err(Ended::With(proof)) => return proof,
            Err(ended) => {
                if let Ended::Beyond(_) = ended {
                    room = given / FEWER;
                }
                if let Ended::Unfit(_) = ended {
                    return unfit([original, fused], tensors, &options, &sizes, &ended);
                }
                first.get_or_insert_with(|| ended.reason());
            }
        }
    }
    first.map_or_else(|| undecided("there are no sizes to prove it at"), undecided)
}

/// A folded model that does not fit itself where the original does may fit at lengths of 1, which broadcast, and differ.
fn unfit(
    models: [&Model; 2],
    tensors: &[Stored],
    options: &ProveOptions,
    sizes: &SizeSearch,
    ended: &Ended,
) -> Proof {
    let dims = sizes.with_lengths_of_one(&options.dims);
    match claims(
        models,
        tensors,
        &ProveOptions {
            dims,
            ..options.clone()
        },
        ClaimScope::Identity,
    ) {
        Err(Ended::With(proof @ Proof::Disproved { .. })) => proof,
        _ => undecided(ended.reason()),
    }
}

/// Looks at the identity again where it holds at some sizes: at other sizes, and by the other root of −1.
fn confirmed(
    models: [&Model; 2],
    tensors: &[Stored],
    options: &ProveOptions,
    sizes: &SizeSearch,
    mut found: Established,
) -> Proof {
    let mut again = sizes.second(&options.dims);
    if (found.moves_roots || found.draws_counts) && found.points == 1 {
        again.push(options.dims.clone());
    }
    let mut is_open = found.draws_counts && found.points == 1;
    for dims in again {
        match claims(
            models,
            tensors,
            &ProveOptions {
                dims,
                ..options.clone()
            },
            ClaimScope::Identity,
        ) {
            Ok(other) => {
                found.bound = found.bound.max(other.bound);
                is_open = false;
                break;
            }
            Err(Ended::With(proof @ (Proof::Disproved { .. } | Proof::Invalid { .. }))) => {
                return proof;
            }
            Err(ended @ Ended::Unfit(_)) => return unfit(models, tensors, options, sizes, &ended),
            // A model may be written for one size.
            Err(_) => {}
        }
    }
    if is_open {
        return undecided("how many places a NonZero finds fits at one point alone");
    }
    Proof::Proved {
        points: found.points,
        bound: found.bound,
        tensors: found.tensors,
    }
}

fn undecided(reason: impl Into<String>) -> Proof {
    Proof::Undecided {
        reason: reason.into(),
    }
}

/// How much of the claims is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClaimScope {
    /// Rounding and identity.
    All,
    /// The identity at other points than before: the rounding has been checked.
    Identity,
}

/// The claims, proved at one assignment of sizes.
struct Established {
    points: usize,
    bound: f64,
    /// How many tensors were computed again.
    tensors: usize,
    /// Whether the two graphs take roots of different values.
    moves_roots: bool,
    /// Whether a number of places was drawn, which may fit by accident.
    draws_counts: bool,
}

fn claims(
    [original, fused]: [&Model; 2],
    tensors: &[Stored],
    options: &ProveOptions,
    part: ClaimScope,
) -> Result<Established, Ended> {
    same_interface(original, fused)?;
    if let Some(name) = [original, fused].into_iter().find_map(redefined) {
        return Err(undecided(format!(
            "the operator `{name}` is redefined, which engines read otherwise"
        ))
        .into());
    }
    let before = original;
    let own = [original, fused].map(validity::own_nodes);
    let both = |lowering| {
        Ok::<_, Proof>((
            prepared(before, lowering, options)?,
            prepared(fused, lowering, options)?,
        ))
    };
    let (mut original, mut fused) = both(Lowering::Normalizers)?;
    // Formulas name the constants inside calls that only the fused one has written out.
    if opaque(&original.model) != opaque(&fused.model) {
        (original, fused) = both(Lowering::All)?;
    }
    same_ends(&original.model, &fused.model)?;
    let analysis = Analysis::new(&original.model).map_err(|error| undecided(error.to_string()))?;
    // Recipes call the constants of bodies by the way to them.
    let [laid_out, prepared] = [before, &original.model].map(Flat::new);
    let before = laid_out.as_ref().map_or(before, |flat| &flat.model);
    let all = prepared
        .as_ref()
        .map(|flat| Analysis::new(&flat.model))
        .transpose();
    let all = all.map_err(|error| undecided(error.to_string()))?;
    let sources = (before, all.as_ref().unwrap_or(&analysis));
    let recomputed = match part {
        ClaimScope::All => rounding::check(sources, &fused.model, tensors)?,
        ClaimScope::Identity => 0,
    };
    let faults = validity::faults(sources.1, &own[0]);
    let valid = Valid {
        faults: faults.into_iter().map(|fault| fault.reason).collect(),
        own: &own[1],
    };
    let turns = truth_cases(&boolean_inputs(&original));
    let least = options.points.max(turns);
    // A point shows only the branches of its booleans.
    let (mut bounds, mut bound, mut points) = (vec![1.0; turns], 1.0_f64, 0);
    let (mut moves_roots, mut draws_counts) = (false, false);
    let begin = u64::from(part == ClaimScope::Identity);
    while points < least || bound > DOUBT {
        if points >= least.max(MOST_POINTS) {
            return Err(undecided(
                "what is computed has too high a degree for equal numbers to say that it is the same",
            )
            .into());
        }
        let point = points as u64 + begin;
        points += 1;
        let (mut found, mut why) = (None, None);
        for attempt in 0..ATTEMPTS {
            let mut hash = Hash::new(options.seed, "point");
            hash.number(point);
            hash.number(attempt);
            let seed = Seed {
                key: hash.finish() as u64,
                all: options.seed,
                point,
            };
            match identity(
                sources,
                &analysis,
                [&original, &fused],
                tensors,
                &valid,
                seed,
            ) {
                Ok(agreed) => found = Some(agreed),
                Err(ended @ (Ended::Zero(_) | Ended::Empty(_))) => {
                    why = Some(ended);
                    continue;
                }
                Err(ended) => return Err(ended),
            }
            break;
        }
        let agreed = match (found, why) {
            (Some(agreed), _) => agreed,
            (None, Some(ended)) => return Err(ended),
            (None, None) => return Err(undecided("there is no point to prove it at").into()),
        };
        moves_roots |= agreed.moves_roots;
        draws_counts |= agreed.draws_counts;
        bounds[point as usize % turns] *= (agreed.degree / P as f64).min(1.0);
        bound = bounds.iter().copied().fold(0.0, f64::max);
    }
    Ok(Established {
        points,
        bound,
        tensors: recomputed,
        moves_roots,
        draws_counts,
    })
}

/// The check of the nodes of the folded model against the specification.
struct Valid<'v> {
    /// Reasons for which nodes of the original are invalid: the folded model may have those as well.
    faults: HashSet<String>,
    /// The nodes of the folded model itself.
    own: &'v HashSet<(String, String)>,
}

impl Valid<'_> {
    /// The first node of the folded model that is wrong in a way in which none of the original is.
    fn new_fault(&self, fused: &Analysis) -> Option<Fault> {
        let faults = validity::faults(fused, self.own);
        faults
            .into_iter()
            .find(|fault| !self.faults.contains(&fault.reason))
    }
}

/// Outputs of both graphs that agree at a point.
struct Agreed {
    /// The degree that bounds the error.
    degree: f64,
    /// Whether they take roots of different values.
    moves_roots: bool,
    /// Whether a number of places was drawn, which may fit by accident.
    draws_counts: bool,
}

/// A model with its opaque normalizers written out and a number for every extent of its inputs.
struct Prepared {
    model: Model,
    inputs: Vec<Input>,
    /// The recipes of the tensors that inlining added.
    formulas: Vec<Stored>,
    /// The declared inputs, if some of their extents are open.
    open: Option<Vec<ValueInfoProto>>,
}

impl Prepared {
    fn allowance(&self) -> Allowance {
        Allowance::new(self.model.about_bytes(), elements(&self.inputs))
    }

    /// The facts that hold only since every extent is a number.
    fn only_at_sizes(&self, analysis: &Analysis) -> OnlyAtSizes {
        let Some(open) = &self.open else {
            return OnlyAtSizes::default();
        };
        let mut graph = analysis.graph.proto().clone();
        graph.input.clone_from(open);
        let model = self.model.with_graph(graph);
        let Ok(open) = Analysis::new(&model) else {
            return OnlyAtSizes::default();
        };
        let named = |value: ValueId| open.graph.value(analysis.graph.value_name(value));
        let values = analysis
            .graph
            .order()
            .iter()
            .flat_map(|&node| analysis.graph.outputs(node))
            .flatten()
            .copied();
        let constants = values
            .filter(|&value| analysis.constants.is_constant(value))
            .filter(|&value| named(value).is_some_and(|value| !open.constants.is_constant(value)));
        let is_told = |value| {
            let shape = open.facts.shape(value);
            shape.is_some_and(|shape| shape.iter().all(|dim| extent(dim).is_some()))
        };
        let ends = outputs(&analysis.graph);
        let ends = ends
            .into_iter()
            .filter(|&value| named(value).is_some_and(|value| !is_told(value)));
        let name = |value| analysis.graph.value_name(value).to_owned();
        OnlyAtSizes {
            constants: constants.map(name).collect(),
            outputs: ends.map(name).collect(),
        }
    }
}

/// Whether tensors are computed with more than arithmetic.
fn have_formulas(tensors: &[Stored]) -> bool {
    tensors
        .iter()
        .any(|tensor| tensor.recipe.steps().into_iter().any(sources::is_number))
}

fn prepared(model: &Model, lowering: Lowering, options: &ProveOptions) -> Result<Prepared, Proof> {
    let lowered = written_out(model, lowering, &|_, _| false)
        .map_err(|error| undecided(error.to_string()))?;
    let (mut model, formulas) = match lowered {
        Some(Lowered { model, formulas }) => (
            model,
            formulas.iter().filter_map(Stored::from_constant).collect(),
        ),
        None => (model.clone(), vec![]),
    };
    let inputs = inputs(&model, &options.dims)?;
    let declared = model.graph().input.clone();
    fix_shapes(model.graph_mut(), &inputs);
    let open = Some(declared).filter(|declared| *declared != model.graph().input);
    Ok(Prepared {
        model,
        inputs,
        formulas,
        open,
    })
}

/// Why a point decides nothing, or all.
enum Ended {
    /// Extents contradict each other at this value.
    Misfit(String),
    /// Something divides by 0 there.
    Zero(String),
    /// This output has no element there, and other integers may give it some.
    Empty(String),
    /// The bodies behind this value could not be evaluated, perhaps because of the extents.
    Unknown(String),
    /// This value takes too much, as attention between the pixels of an image does.
    Beyond(String),
    /// A recipe cannot be computed, for this reason, perhaps for the extents.
    Uncomputed(String),
    /// Extents contradict each other at this value of the folded model, where those of the original fit.
    Unfit(String),
    With(Proof),
}

impl Ended {
    /// Why it is undecided.
    fn reason(&self) -> String {
        match self {
            Self::Unknown(at) => format!("what the bodies of `{at}` compute is not known"),
            Self::Beyond(at) => {
                format!("`{at}` takes more than a model of its size is known to take")
            }
            Self::Uncomputed(reason) => reason.clone(),
            Self::Zero(at) => format!("`{at}` divides by 0 at every point"),
            Self::Empty(at) => format!("`{at}` has no element to be compared at any point"),
            Self::Misfit(at) => format!(
                "what `{at}` reads does not fit it, or its extents do not fit each other: other sizes of \
                 symbolic dimensions may"
            ),
            Self::Unfit(at) => {
                format!("what `{at}` reads does not fit it, where the original fits")
            }
            Self::With(Proof::Undecided { reason }) => reason.clone(),
            Self::With(_) => String::new(),
        }
    }
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
            Unmade::Uncovered => undecided(format!(
                "what `{at}` stands for cannot be computed, or read"
            )),
        })
    }
}

/// Compares both graphs at one point.
fn identity(
    (before, all): (&Model, &Analysis),
    analysis: &Analysis,
    [original, fused]: [&Prepared; 2],
    tensors: &[Stored],
    valid: &Valid,
    seed: Seed,
) -> Result<Agreed, Ended> {
    let (key, convention) = (seed.key, RootOfMinusOne::at(seed.point));
    let allowance = original.allowance();
    let inputs = given(original, seed, &allowance)?;
    let own = Sources::new(before, key, convention);
    let instead = |name: &str| {
        let stored = original
            .formulas
            .iter()
            .find(|stored| stored.name == name)?;
        Some(formula::value(&stored.recipe, &own, &allowance).map(FieldValue::Field))
    };
    let views = [analysis, all]
        .map(|analysis| has_more_than_arithmetic(analysis).then(|| View::new(analysis)));
    let [alike, all_alike] = views.each_ref().map(|view| view.as_ref().map(Alike::new));
    let alike = alike.as_ref();
    let laid_out = (!std::ptr::eq(all, analysis)).then_some((all, all_alike.as_ref()));
    let (inputs, instead) = (&inputs, &instead as Instead);
    let allowance = &allowance;
    let (only_at_sizes, has_formulas) = (&original.only_at_sizes(all), have_formulas(tensors));
    let point = Point {
        analysis,
        key,
        convention,
        inputs,
        instead,
        allowance,
        alike,
        laid_out,
        only_at_sizes,
        has_formulas,
        scales: None,
    };
    let source = Sources::new(before, key, convention)
        .numbered(tensors, all)
        .map_err(|refusal| {
            Ended::With(undecided(format!(
                "`{}` is a number of no recipe: {}",
                refusal.at, refusal.reason
            )))
        })?;
    let source = source.with(constants(
        &Point {
            analysis: all,
            alike: all_alike.as_ref(),
            laid_out: None,
            ..point
        },
        &own,
        tensors,
    )?);
    let apart = std::thread::scope(|scope| {
        let other = || second(fused, &source, tensors, valid, seed, None);
        let other = std::thread::Builder::new()
            .stack_size(STACK)
            .spawn_scoped(scope, other);
        let other = other.map_err(|error| Ended::With(undecided(error.to_string())));
        let seen = evaluate(&point, &outputs(&analysis.graph), false).map_err(Ended::from);
        let other = other?
            .join()
            .unwrap_or_else(|_| Err(Ended::With(undecided("the evaluation ended early"))));
        compare(analysis, seen?, fits(other)?, fused, tensors)
    });
    // The difference may be a positive factor that has passed an operator.
    let read = |name: &str| sources::read(before, all, name);
    let graph = &analysis.graph;
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
    let point = Point {
        scales: Some(scales),
        allowance: &again,
        ..point
    };
    let seen = evaluate(&point, &outputs(graph), false)?;
    scales.turn();
    compare(
        analysis,
        seen,
        fits(second(fused, &source, tensors, valid, seed, Some(scales)))?,
        fused,
        tensors,
    )
}

/// Where the original fits and the folded model does not, other sizes are not tried: at those both
/// may agree.
fn fits(second: Result<Findings, Ended>) -> Result<Findings, Ended> {
    second.map_err(|ended| match ended {
        Ended::Misfit(at) => Ended::Unfit(at),
        ended @ Ended::Beyond(_) => Ended::With(undecided(ended.reason())),
        ended => ended,
    })
}

/// Whether constants are computed by more than arithmetic: recipes have them in float64, as folding has.
fn has_more_than_arithmetic(analysis: &Analysis) -> bool {
    let Analysis {
        graph, constants, ..
    } = analysis;
    let computes = |&node: &NodeId| graph.op(node).is_some_and(is_more_than_arithmetic);
    let is_constant = |&node: &NodeId| {
        graph
            .output(node, 0)
            .is_some_and(|value| constants.is_constant(value))
    };
    graph
        .order()
        .iter()
        .any(|node| computes(node) && is_constant(node))
}

fn outputs(graph: &Graph) -> Vec<ValueId> {
    graph
        .proto()
        .output
        .iter()
        .filter_map(|output| graph.value(output.name()))
        .collect()
}

/// The values of the original that recipes are made of and that are not stored, but computed.
fn constants(
    point: &Point,
    stored: &Sources,
    tensors: &[Stored],
) -> Result<HashMap<String, Elements>, Ended> {
    let graph = &point.analysis.graph;
    let mut wanted = vec![];
    for name in tensors.iter().flat_map(|tensor| tensor.recipe.constants()) {
        let value = graph
            .value(name)
            .filter(|&value| point.analysis.constants.is_constant(value));
        let Some(value) = value else {
            if stored.stores(name) {
                continue;
            }
            return Err(Ended::With(undecided(format!(
                "the original has no constant `{name}`"
            ))));
        };
        if graph.initializer(value).is_none() {
            wanted.push(value);
        }
    }
    wanted.sort();
    wanted.dedup();
    let seen = evaluate(point, &wanted, true)?;
    let kept = seen.kept.into_iter();
    Ok(kept
        .filter_map(|(value, made)| Some((graph.value_name(value).to_owned(), made.images()?)))
        .collect())
}

fn second(
    fused: &Prepared,
    source: &Sources,
    tensors: &[Stored],
    valid: &Valid,
    seed: Seed,
    scales: Option<&Scales>,
) -> Result<Findings, Ended> {
    let analysis = Analysis::new(&fused.model).map_err(|error| {
        let reason = format!("it is no graph that ONNX allows: {error}");
        Ended::With(Proof::Disproved {
            at: String::new(),
            site: None,
            reason,
        })
    })?;
    let allowance = fused.allowance();
    let recipes: HashMap<&str, &Stored> = fused
        .formulas
        .iter()
        .chain(tensors)
        .map(|tensor| (tensor.name.as_str(), tensor))
        .collect();
    let instead = |name: &str| {
        let stored = recipes.get(name)?;
        Some(formula::value(&stored.recipe, source, &allowance).map(FieldValue::Field))
    };
    let inputs = given(fused, seed, &allowance)?;
    let flat = Flat::new(&fused.model);
    // It is a graph that ONNX allows, or there would be none.
    let all = flat
        .as_ref()
        .and_then(|flat| Analysis::new(&flat.model).ok());
    if let Some(Fault { at, reason }) = valid.new_fault(all.as_ref().unwrap_or(&analysis)) {
        return Err(Ended::With(Proof::Invalid { at, reason }));
    }
    let views = [Some(&analysis), all.as_ref()].map(|analysis| {
        analysis
            .filter(|analysis| has_more_than_arithmetic(analysis))
            .map(View::new)
    });
    let [alike, all_alike] = views.each_ref().map(|view| view.as_ref().map(Alike::new));
    let alike = alike.as_ref();
    let point = Point {
        laid_out: all.as_ref().map(|all| (all, all_alike.as_ref())),
        only_at_sizes: &fused.only_at_sizes(all.as_ref().unwrap_or(&analysis)),
        has_formulas: have_formulas(tensors),
        analysis: &analysis,
        key: seed.key,
        convention: RootOfMinusOne::at(seed.point),
        inputs: &inputs,
        instead: &instead,
        allowance: &allowance,
        alike,
        scales,
    };
    Ok(evaluate(&point, &outputs(&analysis.graph), false)?)
}

/// Compares the outputs, and says where the two part.
fn compare(
    analysis: &Analysis,
    seen: Findings,
    second: Findings,
    fused: &Prepared,
    tensors: &[Stored],
) -> Result<Agreed, Ended> {
    let digests: HashMap<String, Digest> = (0..analysis.graph.value_count())
        .filter_map(|index| {
            let name = analysis.graph.value_name(ValueId(index as u32));
            Some((name.to_owned(), seen.digests[index]?))
        })
        .collect();
    let graph =
        Graph::new(&fused.model).map_err(|error| Ended::With(undecided(error.to_string())))?;
    let digest = |value: ValueId| second.digests[value.0 as usize];
    let mut empty = None;
    for output in outputs(&graph) {
        let name = graph.value_name(output);
        let types = (seen.types.get(name), second.types.get(name));
        if let (Some(before), Some(after)) = types
            && before != after
        {
            let reason = format!("the output is of {after} where it was of {before}");
            return Err(Ended::With(Proof::Disproved {
                at: name.to_owned(),
                site: None,
                reason,
            }));
        }
        if digests.get(name).copied() == digest(output) {
            if seen.empty.contains(name) {
                empty.get_or_insert(name);
            }
            continue;
        }
        // A function of all its inputs, for lack of extents, differs whenever they differ, though a
        // fold may have crossed it.
        let is_opaque = |name: &str| {
            let differs = || digests.get(name).copied() != graph.value(name).and_then(digest);
            (seen.opaque.contains(name) || second.opaque.contains(name)) && differs()
        };
        if let Some(unknown) = blame::behind(&graph, output, &is_opaque) {
            let unknown = graph.value_name(unknown);
            return Err(Ended::With(undecided(format!(
                "the extents of `{unknown}` are not known"
            ))));
        }
        let is_uncertain =
            |name: &str| seen.uncertain.contains(name) || second.uncertain.contains(name);
        if let Some(unknown) = blame::behind(&graph, output, &is_uncertain) {
            return Err(Ended::Unknown(graph.value_name(unknown).to_owned()));
        }
        let first = blame::first(&graph, &second.digests, &digests, output);
        let at = graph.value_name(first);
        return Err(Ended::With(Proof::Disproved {
            at: at.to_owned(),
            site: blame::site(&graph, first, tensors),
            reason: format!(
                "from here on the two never meet again, and the output `{name}` differs"
            ),
        }));
    }
    // Others have been told apart before it.
    match empty {
        Some(name) => Err(Ended::Empty(name.to_owned())),
        None => Ok(Agreed {
            degree: seen.degree.max(second.degree),
            moves_roots: seen.radicands != second.radicands,
            draws_counts: seen.draws_counts,
        }),
    }
}
