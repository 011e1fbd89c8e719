//! Checks both claims of a proof at one assignment of sizes: the rounding of new tensors, and the
//! identity of the outputs at enough points.

use std::cell::Cell;

use super::ended::Ended;
use super::field::P;
use super::identity::{Agreed, FoldedSide, GraphPair};
use super::interface::{same_ends, same_interface};
use super::prepared::Prepared;
use super::random::Hash;
use super::random_inputs::{Seed, boolean_inputs, truth_cases};
use super::recorded::RecordedValues;
use super::roots::RootRule;
use super::validity::{self, Fault, Valid};
use super::{Proof, ProveOptions, rounding, undecided};
use crate::affine::plan::Stored;
use crate::analysis::Analysis;
use crate::ir::regions::Flat;
use crate::onnx::Model;
use crate::passes::inline::functions::redefined;
use crate::passes::inline::{Lowering, opaque};

/// The maximum number of attempts to compare the models at a point. If a divisor is 0 or an output
/// is empty, the next attempt draws other inputs.
const ATTEMPTS: u64 = 8;

/// The accepted probability of error, and the maximum number of points that are tried to reach it.
const DOUBT: f64 = 1e-4;
const MOST_POINTS: usize = 8;

/// The number of points in each case of the Boolean inputs if the root is multiplicative. At each
/// point, `√(x²)` is x or −x, so that wrong signs agree at all points with a probability of `2⁻¹⁶`.
const ROOT_POINTS: usize = 16;

/// The claims to check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClaimScope {
    /// The rounding of new tensors, and the identity of the outputs.
    All,
    /// Only the identity. The elements of tensors with recipes are not checked.
    Function,
    /// Only the identity, at points other than those of the first check.
    Again,
}

/// The options for comparing two models at one assignment of sizes.
#[derive(Clone, Copy)]
pub(super) struct ClaimCheck<'c> {
    /// The claims to check.
    pub scope: ClaimScope,
    /// Whether activations that have no effect are removed.
    pub reads_past: bool,
    /// Where the digests of the values of both models are recorded, if requested.
    pub record: Option<&'c RecordedValues>,
}

/// The result of a proof at one assignment of sizes.
pub(super) struct Established {
    pub points: usize,
    /// A bound on the probability that the claims are wrong.
    pub bound: f64,
    /// The number of tensors of the folded model that were recomputed from their recipes.
    pub tensors: usize,
    /// Whether the number of places that a NonZero finds was drawn at random. The extents of other
    /// values may fit this number by accident.
    pub draws_counts: bool,
}

/// Checks the claims about two models at the sizes of `options`.
pub(super) fn claims(
    [original, fused]: [&Model; 2],
    tensors: &[Stored],
    options: &ProveOptions,
    check: ClaimCheck,
) -> Result<Established, Ended> {
    let ClaimCheck {
        scope,
        reads_past,
        record,
    } = check;
    let own = [original, fused].map(validity::own_nodes);
    let stored = original;
    let (original, mut fused) = comparable_pair(original, fused, options, reads_past)?;
    let analysis = Analysis::new(&original.model).map_err(|error| undecided(error.to_string()))?;
    // Flattens bodies, because recipes refer to a constant of a body by its name with the region
    // path before it.
    let [stored_flat, flat] = [stored, &original.model].map(Flat::new);
    let stored = stored_flat.as_ref().map_or(stored, |flat| &flat.model);
    let flat = flat
        .as_ref()
        .map(|flat| Analysis::new(&flat.model))
        .transpose();
    let flat = flat.map_err(|error| undecided(error.to_string()))?;
    let flat = flat.as_ref().unwrap_or(&analysis);
    let recomputed = match scope {
        ClaimScope::All => rounding::check((stored, flat), &fused.model, tensors)?,
        ClaimScope::Function | ClaimScope::Again => 0,
    };
    // Attention is written out after the check of tensors, because the constants in its definition
    // are not tensors of the folded model.
    fused.write_attention_out();
    let faults = validity::faults(flat, &own[0]);
    let valid = Valid {
        faults: faults.into_iter().map(|fault| fault.reason).collect(),
        own: &own[1],
    };
    let fused = if reads_past {
        read_past_activations(fused, tensors, &valid)?
    } else {
        fused
    };
    let pair = GraphPair {
        stored,
        analysis: &analysis,
        flat,
        original: &original,
        folded: FoldedSide {
            prepared: &fused,
            tensors,
            valid: &valid,
            records_tensors: record.is_some_and(|record| record.has_tensors),
        },
        record,
        takes_roots: Cell::new(false),
    };
    let cases = truth_cases(&boolean_inputs(&original));
    let established = established(&pair, options, scope, cases)?;
    Ok(Established {
        tensors: recomputed,
        ..established
    })
}

/// Prepares both models, and checks that their inputs and outputs have the same names and types.
fn comparable_pair(
    original: &Model,
    fused: &Model,
    options: &ProveOptions,
    reads_past: bool,
) -> Result<(Prepared, Prepared), Ended> {
    same_interface(original, fused)?;
    no_redefined_operators([original, fused])?;
    let (mut original, fused) = prepared_pair(original, fused, options)?;
    same_ends(&original.model, &fused.model)?;
    original.write_attention_out();
    if reads_past {
        original.read_past_activations(&[]);
    }
    Ok((original, fused))
}

/// Refuses models that define a function with the name of an operator.
fn no_redefined_operators(models: [&Model; 2]) -> Result<(), Ended> {
    let Some(name) = models.into_iter().find_map(redefined) else {
        return Ok(());
    };
    let reason = format!("the operator `{name}` is redefined, which engines read otherwise");
    Err(undecided(reason).into())
}

/// Prepares both models. Inlines all calls if the folded model has inlined any, because its recipes
/// then refer to constants of the calls.
fn prepared_pair(
    original: &Model,
    fused: &Model,
    options: &ProveOptions,
) -> Result<(Prepared, Prepared), Ended> {
    let before = Prepared::new(original, Lowering::Normalizers, options)?;
    let after = Prepared::new(fused, Lowering::Normalizers, options)?;
    if opaque(&before.model) == opaque(&after.model) {
        return Ok((before, after));
    }
    let before = Prepared::new(original, Lowering::All, options)?;
    let after = Prepared::new(fused, Lowering::All, options)?;
    Ok((before, after))
}

/// Removes activations that have no effect from the folded model. Checks the model for invalid
/// nodes first, because a later check does not see these activations.
fn read_past_activations(
    mut fused: Prepared,
    tensors: &[Stored],
    valid: &Valid,
) -> Result<Prepared, Ended> {
    let flat = Flat::new(&fused.model);
    let whole = flat.as_ref().map_or(&fused.model, |flat| &flat.model);
    // An invalid graph is not reported here, but by the evaluation.
    let fault = Analysis::new(whole)
        .ok()
        .and_then(|analysis| valid.new_fault(&analysis));
    if let Some(Fault { at, reason }) = fault {
        return Err(Ended::With(Proof::Invalid { at, reason }));
    }
    fused.read_past_activations(tensors);
    Ok(fused)
}

/// Checks the identity with an unknown function as the root. If the graphs differ and take roots,
/// checks it again with a multiplicative root, because a fold may have moved a scale through a root.
fn established(
    pair: &GraphPair,
    options: &ProveOptions,
    scope: ClaimScope,
    cases: usize,
) -> Result<Established, Ended> {
    let unknown = at_points(pair, options, scope, (cases, false));
    match unknown {
        Err(
            Ended::Shapeless(_)
            | Ended::Unknown(_)
            | Ended::With(Proof::Disproved { .. } | Proof::Undecided { .. }),
        ) if pair.takes_roots.get() => at_points(pair, options, scope, (cases, true)),
        decided => decided,
    }
}

/// Checks the identity at as many points as the accepted probability of error requires, in each
/// case of the Boolean inputs. At each point, a multiplicative root may have the wrong sign.
fn at_points(
    pair: &GraphPair,
    options: &ProveOptions,
    scope: ClaimScope,
    (cases, is_multiplicative): (usize, bool),
) -> Result<Established, Ended> {
    let of_roots = if is_multiplicative { ROOT_POINTS } else { 1 };
    let least = options.points.max(cases * of_roots);
    let begin = u64::from(scope == ClaimScope::Again);
    // A point tests only the branches that its booleans select, so each case has a separate bound.
    let mut bounds = vec![1.0; cases];
    let mut established = Established {
        points: 0,
        bound: 1.0,
        tensors: 0,
        draws_counts: false,
    };
    while established.points < least || established.bound > DOUBT {
        if established.points >= least.max(MOST_POINTS) {
            return Err(undecided(
                "what is computed has too high a degree for equal numbers to say that it is the same",
            )
            .into());
        }
        let point = established.points as u64 + begin;
        let roots = match is_multiplicative {
            true => RootRule::multiplicative(point / cases as u64),
            false => RootRule::Unknown,
        };
        let agreed = at_point(pair, options.seed, point, roots)?;
        established.points += 1;
        established.draws_counts |= agreed.draws_counts;
        let wrong_sign = if is_multiplicative { 0.5 } else { 0.0 };
        bounds[point as usize % cases] *= (agreed.degree / P as f64).max(wrong_sign).min(1.0);
        established.bound = bounds.iter().copied().fold(0.0, f64::max);
    }
    Ok(established)
}

/// Checks the identity at a point. Draws new inputs if a divisor is 0 or an output is empty.
fn at_point(pair: &GraphPair, all: u64, point: u64, roots: RootRule) -> Result<Agreed, Ended> {
    let mut last = Ended::With(undecided("there is no point to prove it at"));
    for attempt in 0..ATTEMPTS {
        let mut hash = Hash::new(all, "point");
        hash.number(point);
        hash.number(attempt);
        let key = hash.finish() as u64;
        let seed = Seed {
            key,
            all,
            point,
            roots,
        };
        match pair.at(seed) {
            Err(ended @ (Ended::Zero(_) | Ended::Empty(_))) => last = ended,
            decided => return decided,
        }
    }
    Err(last)
}
