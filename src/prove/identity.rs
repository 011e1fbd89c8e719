//! Checks the second claim at one point: if recipes replace the new tensors, both graphs have equal
//! outputs.

use std::cell::Cell;
use std::collections::HashMap;

use super::ended::Ended;
use super::evaluate::{Findings, Instead, Point, constant_integers, evaluate};
use super::field_value::FieldValue;
use super::operators::{Allowance, NotEvaluated};
use super::prepared::{Prepared, outputs};
use super::random::Digest;
use super::random_inputs::{Seed, given};
use super::recorded::{RecordedValues, ValueDigests};
use super::scales::{self, Scales};
use super::sources::{self, Sources};
use super::validity::{Fault, Valid};
use super::{Proof, blame, formula, undecided};
use crate::affine::plan::Stored;
use crate::affine::recognize::View;
use crate::affine::recognize::batch_invariant::Alike;
use crate::analysis::Analysis;
use crate::ir::regions::Flat;
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::Model;
use crate::onnx::node::bodies;
use crate::onnx::operator::is_more_than_arithmetic;
use crate::platform::HAS_THREADS;
use crate::recipe::Op;

/// The size of the stack in bytes for the evaluation of the second graph, equal to that of a main
/// thread.
const STACK: usize = 8 << 20;

/// The result of a point at which the outputs of both graphs agree.
pub(super) struct Agreed {
    /// The degree of the compared polynomials, which bounds the probability of error.
    pub degree: f64,
    /// Whether the number of places that a NonZero finds was drawn at random. The extents of other
    /// values may fit this number by accident.
    pub draws_counts: bool,
}

/// Two graphs to compare.
pub(super) struct GraphPair<'i> {
    /// The original before its preparation, with flattened bodies.
    pub stored: &'i Model,
    /// The analysis of the prepared original, which is evaluated.
    pub analysis: &'i Analysis<'i>,
    /// The analysis of the prepared original with flattened bodies.
    pub flat: &'i Analysis<'i>,
    pub original: &'i Prepared,
    pub folded: FoldedSide<'i>,
    /// The record of the values of both models, if requested.
    pub record: Option<&'i RecordedValues>,
    /// Whether one of the compared graphs takes the root of a value that depends on inputs.
    pub takes_roots: Cell<bool>,
}

/// The folded model, which another thread evaluates.
#[derive(Clone, Copy)]
pub(super) struct FoldedSide<'i> {
    pub prepared: &'i Prepared,
    /// The new tensors.
    pub tensors: &'i [Stored],
    pub valid: &'i Valid<'i>,
    /// Whether the digests of the folded model's stored tensors are recorded.
    pub records_tensors: bool,
}

impl FoldedSide<'_> {
    /// Evaluates the folded model.
    fn findings(
        &self,
        source: &Sources,
        seed: Seed,
        scales: Option<&Scales>,
    ) -> Result<Findings, Ended> {
        let fused = self.prepared;
        let analysis = Analysis::new(&fused.model).map_err(|error| {
            let reason = format!("the graph is invalid: {error}");
            Ended::With(Proof::Disproved {
                at: String::new(),
                site: None,
                reason,
            })
        })?;
        let allowance = fused.allowance();
        let inputs = given(fused, seed, &allowance)?;
        let flat = Flat::new(&fused.model);
        // This cannot fail, because the graph was already found valid.
        let flat = flat
            .as_ref()
            .and_then(|flat| Analysis::new(&flat.model).ok());
        let whole = flat.as_ref().unwrap_or(&analysis);
        if let Some(Fault { at, reason }) = self.valid.new_fault(whole) {
            return Err(Ended::With(Proof::Invalid { at, reason }));
        }
        let numbers = WideConstants::new([Some(&analysis), flat.as_ref()]);
        let [alike, flat_alike] = numbers.alike();
        // The recipe of a new tensor takes precedence over that of a tensor that inlining added.
        let recipes = [&fused.formulas[..], self.tensors];
        let recipes: HashMap<&str, &Stored> = recipes
            .into_iter()
            .flatten()
            .map(|tensor| (tensor.name.as_str(), tensor))
            .collect();
        let instead = |name: &str| instead(recipes.get(name).copied(), name, source, &allowance);
        let point = Point {
            laid_out: flat.as_ref().map(|flat| (flat, flat_alike.as_ref())),
            only_at_sizes: &fused.only_at_sizes(whole),
            has_formulas: have_formulas(self.tensors),
            analysis: &analysis,
            key: seed.key,
            roots: seed.roots,
            inputs: &inputs,
            instead: &instead,
            allowance: &allowance,
            alike: alike.as_ref(),
            scales,
            records_tensors: self.records_tensors,
        };
        Ok(evaluate(&point, &outputs(&analysis.graph), false)?)
    }
}

impl GraphPair<'_> {
    /// Compares both graphs at one point.
    ///
    /// # Errors
    /// The reason why the graphs do not agree at this point, or why this point decides nothing.
    pub(super) fn at(&self, seed: Seed) -> Result<Agreed, Ended> {
        let (key, roots) = (seed.key, seed.roots);
        let allowance = self.original.allowance();
        let inputs = given(self.original, seed, &allowance)?;
        let own = Sources::new(self.stored, key, roots);
        let instead = |name: &str| instead(&self.original.formulas, name, &own, &allowance);
        let numbers = WideConstants::new([Some(self.analysis), Some(self.flat)]);
        let [alike, flat_alike] = numbers.alike();
        let has_bodies = !std::ptr::eq(self.flat, self.analysis);
        let point = Point {
            analysis: self.analysis,
            key,
            roots,
            inputs: &inputs,
            instead: &instead as Instead,
            allowance: &allowance,
            alike: alike.as_ref(),
            laid_out: has_bodies.then_some((self.flat, flat_alike.as_ref())),
            only_at_sizes: &self.original.only_at_sizes(self.flat),
            has_formulas: have_formulas(self.folded.tensors),
            scales: None,
            records_tensors: self.folded.records_tensors,
        };
        let flat = Point {
            analysis: self.flat,
            alike: flat_alike.as_ref(),
            laid_out: None,
            ..point
        };
        let source = self.source(&flat, &own, seed)?;
        let agreed = self.compared(&point, &source, seed);
        // If the graphs differ, compares them again up to positive factors, which folding may have
        // moved through operators.
        let Some(scales) = self.scales(&agreed, &source, &allowance) else {
            return agreed;
        };
        let again = self.original.allowance();
        let point = Point {
            scales: Some(&scales),
            allowance: &again,
            ..point
        };
        let findings = evaluate(&point, &outputs(&self.analysis.graph), false)?;
        scales.turn();
        let others = fits(self.folded.findings(&source, seed, Some(&scales)))?;
        self.compare(findings, others)
    }

    /// Collects the values of the constants in recipes.
    fn source(&self, flat: &Point, own: &Sources, seed: Seed) -> Result<Sources<'_>, Ended> {
        let source = Sources::new(self.stored, seed.key, seed.roots)
            .numbered(self.folded.tensors, self.flat)
            .map_err(|refusal| {
                Ended::With(undecided(format!(
                    "`{}` is a number of no recipe: {}",
                    refusal.at, refusal.reason
                )))
            })?;
        Ok(source.with(constants(flat, own, self.folded.tensors)?))
    }

    /// Evaluates both graphs, at the same time if there are threads, and compares their outputs.
    fn compared(&self, point: &Point, source: &Sources, seed: Seed) -> Result<Agreed, Ended> {
        if HAS_THREADS {
            return self.compared_in_threads(point, source, seed);
        }
        let findings = evaluate(point, &outputs(&self.analysis.graph), false)?;
        let others = self.folded.findings(source, seed, None);
        self.compare(findings, fits(others)?)
    }

    /// Evaluates both graphs at the same time, in two threads, and compares their outputs.
    fn compared_in_threads(
        &self,
        point: &Point,
        source: &Sources,
        seed: Seed,
    ) -> Result<Agreed, Ended> {
        let folded = self.folded;
        std::thread::scope(|scope| {
            let other = std::thread::Builder::new()
                .stack_size(STACK)
                .spawn_scoped(scope, move || folded.findings(source, seed, None));
            let other = other.map_err(|error| Ended::With(undecided(error.to_string())));
            let wanted = outputs(&self.analysis.graph);
            let findings = evaluate(point, &wanted, false).map_err(Ended::from);
            let others = other?
                .join()
                .unwrap_or_else(|_| Err(Ended::With(undecided("the evaluation ended early"))));
            self.compare(findings?, fits(others)?)
        })
    }

    /// The positive factors that may explain why the graphs do not agree. `None` if the graphs
    /// agree, if the point decides nothing, if no operator lets a factor pass, or if no recipe has
    /// a factor.
    fn scales(
        &self,
        agreed: &Result<Agreed, Ended>,
        source: &Sources,
        allowance: &Allowance,
    ) -> Option<Scales> {
        let (Err(Ended::Unknown(_)) | Err(Ended::With(Proof::Disproved { .. }))) = agreed else {
            return None;
        };
        let graph = &self.analysis.graph;
        if !graph.order().iter().any(|&node| may_be_scaled(graph, node)) {
            return None;
        }
        let read = |name: &str| sources::read(self.stored, self.flat, name);
        Scales::new(self.folded.tensors, source, &read, allowance)
    }

    /// Compares the outputs, and reports the first difference.
    fn compare(&self, original: Findings, fused: Findings) -> Result<Agreed, Ended> {
        let graph = Graph::new(&self.folded.prepared.model)
            .map_err(|error| Ended::With(undecided(error.to_string())))?;
        self.takes_roots
            .set(original.takes_roots || fused.takes_roots);
        let digests = named_digests(&self.analysis.graph, &original);
        if let Some(record) = self.record {
            record.keep(ValueDigests([
                digests.clone(),
                named_digests(&graph, &fused),
            ]));
        }
        let sides = Sides {
            digests,
            graph: &graph,
            original,
            fused,
        };
        let mut empty = None;
        for output in outputs(&graph) {
            let name = graph.value_name(output);
            sides.same_type(name)?;
            if !sides.agree(output) {
                return Err(sides.parted(output, self.folded.tensors));
            }
            if sides.original.empty.contains(name) {
                empty.get_or_insert(name);
            }
        }
        // No output differs, so an empty output can be reported now.
        if let Some(name) = empty {
            return Err(Ended::Empty(name.to_owned()));
        }
        let Sides {
            original, fused, ..
        } = &sides;
        Ok(Agreed {
            degree: original.degree.max(fused.degree),
            draws_counts: original.draws_counts,
        })
    }
}

/// The results of the evaluations of both graphs.
struct Sides<'s> {
    /// The digests of the original's values by name.
    digests: HashMap<String, Digest>,
    /// The graph of the folded model.
    graph: &'s Graph<'s>,
    original: Findings,
    fused: Findings,
}

impl Sides<'_> {
    fn same_type(&self, output: &str) -> Result<(), Ended> {
        let types = [&self.original, &self.fused].map(|findings| findings.types.get(output));
        let [Some(before), Some(after)] = types else {
            return Ok(());
        };
        if before == after {
            return Ok(());
        }
        let reason = format!("the output is of {after} where it was of {before}");
        Err(Ended::With(Proof::Disproved {
            at: output.to_owned(),
            site: None,
            reason,
        }))
    }

    /// Whether a value of the folded model equals the original's value with the same name.
    fn agree(&self, value: ValueId) -> bool {
        let digest = self.digests.get(self.graph.value_name(value));
        digest.copied() == self.fused.digests[value.0 as usize]
    }

    /// The reason why an output differs.
    fn parted(&self, output: ValueId, tensors: &[Stored]) -> Ended {
        // An opaque value counts as different whenever some input of its node differs, even if the
        // fold is correct. So the proof is undecided.
        if let Some(opaque) = blame::behind(self.graph, output, &|name| self.is_opaque(name)) {
            return Ended::Shapeless(self.graph.value_name(opaque).to_owned());
        }
        let uncertain = blame::behind(self.graph, output, &|name| self.is_uncertain(name));
        if let Some(uncertain) = uncertain {
            return Ended::Unknown(self.graph.value_name(uncertain).to_owned());
        }
        let first = blame::first(self.graph, &self.fused.digests, &self.digests, output);
        let name = self.graph.value_name(output);
        Ended::With(Proof::Disproved {
            at: self.graph.value_name(first).to_owned(),
            site: blame::site(self.graph, first, tensors),
            reason: format!(
                "from here on the two never meet again, and the output `{name}` differs"
            ),
        })
    }

    /// Whether a value has unknown extents in either graph, and differs.
    fn is_opaque(&self, name: &str) -> bool {
        let is_opaque = self.original.opaque.contains(name) || self.fused.opaque.contains(name);
        if !is_opaque {
            return false;
        }
        let value = self.graph.value(name);
        let digest = value.and_then(|value| self.fused.digests[value.0 as usize]);
        self.digests.get(name).copied() != digest
    }

    fn is_uncertain(&self, name: &str) -> bool {
        self.original.uncertain.contains(name) || self.fused.uncertain.contains(name)
    }
}

fn named_digests(graph: &Graph, findings: &Findings) -> HashMap<String, Digest> {
    (0..graph.value_count())
        .filter_map(|index| {
            let name = graph.value_name(ValueId(index as u32));
            Some((name.to_owned(), findings.digests[index]?))
        })
        .collect()
}

/// The float64 constants of a graph and of the graph with flattened bodies. `None` for a graph that
/// computes no constant by more than arithmetic.
struct WideConstants<'n>([Option<View<'n>>; 2]);

impl<'n> WideConstants<'n> {
    fn new(analyses: [Option<&'n Analysis<'n>>; 2]) -> Self {
        Self(analyses.map(|analysis| {
            analysis
                .filter(|analysis| has_more_than_arithmetic(analysis))
                .map(View::new)
        }))
    }

    fn alike(&self) -> [Option<Alike<'_>>; 2] {
        self.0.each_ref().map(|view| view.as_ref().map(Alike::new))
    }
}

/// The value that replaces the tensor `name`: the result of the first recipe for this tensor.
/// `None` if no recipe is for this tensor.
fn instead<'r>(
    recipes: impl IntoIterator<Item = &'r Stored>,
    name: &str,
    source: &Sources,
    allowance: &Allowance,
) -> Option<Result<FieldValue, NotEvaluated>> {
    let stored = recipes.into_iter().find(|stored| stored.name == name)?;
    Some(match stored.recipe.op() {
        // A recipe that only copies a constant keeps the hidden elements of the constant.
        Op::Constant(name) => formula::room(&stored.recipe, allowance)
            .and_then(|()| source.value(name))
            .and_then(|value| match value.shape() == Some(stored.recipe.shape()) {
                true => Ok(value),
                false => Err(NotEvaluated::Uncovered),
            }),
        _ => formula::value(&stored.recipe, source, allowance),
    })
}

/// Whether the recipe of any tensor is more than arithmetic.
fn have_formulas(tensors: &[Stored]) -> bool {
    let mut steps = tensors.iter().flat_map(|tensor| tensor.recipe.steps());
    steps.any(sources::is_number)
}

/// Whether a positive factor may pass a node, or a node in its bodies.
fn may_be_scaled(graph: &Graph, node: NodeId) -> bool {
    scales::passes(graph.domain_op(node)) || bodies(graph.node(node)).next().is_some()
}

/// If the original fits these sizes and the folded model does not, turns the misfit into a final
/// outcome. Otherwise other sizes would be tried, at which both models may agree.
fn fits(others: Result<Findings, Ended>) -> Result<Findings, Ended> {
    others.map_err(|ended| match ended {
        Ended::Misfit(at) => Ended::Unfit(at),
        ended @ Ended::Beyond(_) => Ended::With(undecided(ended.reason())),
        ended => ended,
    })
}

/// Whether any constant is computed by more than arithmetic. Recipes compute such constants in
/// float64, as folding does.
fn has_more_than_arithmetic(analysis: &Analysis) -> bool {
    let mut nodes = analysis.graph.order().iter();
    nodes.any(|&node| is_constant_function(analysis, node))
}

/// Whether a node computes a constant by more than arithmetic.
fn is_constant_function(analysis: &Analysis, node: NodeId) -> bool {
    let Analysis {
        graph, constants, ..
    } = analysis;
    let result = graph.output(node, 0);
    graph.op(node).is_some_and(is_more_than_arithmetic)
        && result.is_some_and(|value| constants.is_constant(value))
}

/// The values of the constants in recipes that the original does not store, but computes.
fn constants(
    point: &Point,
    stored: &Sources,
    tensors: &[Stored],
) -> Result<HashMap<String, FieldValue>, Ended> {
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
    if wanted.is_empty() {
        return Ok(HashMap::new());
    }
    wanted.sort();
    wanted.dedup();
    let inputs = with_extents(point);
    let point = Point {
        inputs: &inputs,
        ..*point
    };
    let findings = evaluate(&point, &wanted, true)?;
    let kept = findings.kept.into_iter();
    Ok(kept
        .filter(|(_, made)| made.shape().is_some())
        .map(|(value, made)| (graph.value_name(value).to_owned(), made))
        .collect())
}

/// The inputs of a point, and the results of Shape and Size that are constant. A constant that is
/// computed from an extent then needs no elements of the tensor with this extent.
fn with_extents(point: &Point) -> HashMap<String, FieldValue> {
    let analysis = point.analysis;
    let graph = &analysis.graph;
    let mut inputs = point.inputs.clone();
    for &node in graph.order() {
        if graph.is(node, "Shape") || graph.is(node, "Size") {
            let result = graph.output(node, 0);
            let extents = result.and_then(|value| constant_integers(analysis, value));
            let name = result.map(|value| graph.value_name(value).to_owned());
            inputs.extend(name.zip(extents));
        }
    }
    inputs
}
