//! Both claims at one assignment of sizes: rounding, and identity at as many points as leave no doubt.

use super::ended::Ended;
use super::field::P;
use super::identity::{Agreed, FoldedSide, GraphPair};
use super::interface::{same_ends, same_interface};
use super::prepared::Prepared;
use super::random::Hash;
use super::random_inputs::{Seed, boolean_inputs, truth_cases};
use super::validity::{self, Fault, Valid};
use super::{Proof, ProveOptions, rounding, undecided};
use crate::affine::plan::Stored;
use crate::analysis::Analysis;
use crate::ir::regions::Flat;
use crate::onnx::Model;
use crate::passes::inline::functions::redefined;
use crate::passes::inline::{Lowering, opaque};

/// How often another point is tried where a divisor is 0, or an output has no element.
const ATTEMPTS: u64 = 8;

/// The doubt that is accepted, and the largest number of points to reduce it.
const DOUBT: f64 = 1e-4;
const MOST_POINTS: usize = 8;

/// How much of the claims is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClaimScope {
    /// Rounding and identity.
    All,
    /// The identity at other points than before: the rounding has been checked.
    Identity,
}

/// The claims, proved at one assignment of sizes.
pub(super) struct Established {
    pub points: usize,
    /// A bound on the probability that they do not hold.
    pub bound: f64,
    /// How many tensors were computed again.
    pub tensors: usize,
    /// Whether the two graphs take roots of different values.
    pub moves_roots: bool,
    /// Whether a number of places was drawn, which may fit by accident.
    pub draws_counts: bool,
}

/// Checks the claims about two models at the sizes of `options`. With `reads_past`, nodes read past
/// activations that make no difference.
pub(super) fn claims(
    [original, fused]: [&Model; 2],
    tensors: &[Stored],
    options: &ProveOptions,
    scope: ClaimScope,
    reads_past: bool,
) -> Result<Established, Ended> {
    same_interface(original, fused)?;
    no_redefined_operators([original, fused])?;
    let own = [original, fused].map(validity::own_nodes);
    let stored = original;
    let (mut original, fused) = prepared_pair(original, fused, options)?;
    same_ends(&original.model, &fused.model)?;
    if reads_past {
        original.read_past_activations(&[]);
    }
    let analysis = Analysis::new(&original.model).map_err(|error| undecided(error.to_string()))?;
    // Recipes call the constants of bodies by the way to them.
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
        ClaimScope::Identity => 0,
    };
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
        },
    };
    let cases = truth_cases(&boolean_inputs(&original));
    let established = at_points(&pair, options, scope, cases)?;
    Ok(Established {
        tensors: recomputed,
        ..established
    })
}

/// Refuses models with functions in the place of operators.
fn no_redefined_operators(models: [&Model; 2]) -> Result<(), Ended> {
    let Some(name) = models.into_iter().find_map(redefined) else {
        return Ok(());
    };
    let reason = format!("the operator `{name}` is redefined, which engines read otherwise");
    Err(undecided(reason).into())
}

/// Both models, written out as far as it takes for formulas to name their constants.
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
    // Formulas name the constants inside calls that only the fused one has written out.
    let before = Prepared::new(original, Lowering::All, options)?;
    let after = Prepared::new(fused, Lowering::All, options)?;
    Ok((before, after))
}

/// Lets nodes of the folded model read past activations that make no difference. The model is checked
/// before: the check of the evaluated graph does not see these activations.
fn read_past_activations(
    mut fused: Prepared,
    tensors: &[Stored],
    valid: &Valid,
) -> Result<Prepared, Ended> {
    let flat = Flat::new(&fused.model);
    let whole = flat.as_ref().map_or(&fused.model, |flat| &flat.model);
    // Evaluation says why it is no graph.
    let fault = Analysis::new(whole)
        .ok()
        .and_then(|analysis| valid.new_fault(&analysis));
    if let Some(Fault { at, reason }) = fault {
        return Err(Ended::With(Proof::Invalid { at, reason }));
    }
    fused.read_past_activations(tensors);
    Ok(fused)
}

/// The identity at as many points as leave no doubt, each case of the truth values by itself.
fn at_points(
    pair: &GraphPair,
    options: &ProveOptions,
    scope: ClaimScope,
    cases: usize,
) -> Result<Established, Ended> {
    let least = options.points.max(cases);
    let begin = u64::from(scope == ClaimScope::Identity);
    // A point shows only the branches of its booleans.
    let mut bounds = vec![1.0; cases];
    let mut established = Established {
        points: 0,
        bound: 1.0,
        tensors: 0,
        moves_roots: false,
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
        let agreed = at_point(pair, options.seed, point)?;
        established.points += 1;
        established.moves_roots |= agreed.moves_roots;
        established.draws_counts |= agreed.draws_counts;
        bounds[point as usize % cases] *= (agreed.degree / P as f64).min(1.0);
        established.bound = bounds.iter().copied().fold(0.0, f64::max);
    }
    Ok(established)
}

/// The identity at a point: at the first of some draws that divides nothing by 0, and leaves no output empty.
fn at_point(pair: &GraphPair, all: u64, point: u64) -> Result<Agreed, Ended> {
    let mut last = Ended::With(undecided("there is no point to prove it at"));
    for attempt in 0..ATTEMPTS {
        let mut hash = Hash::new(all, "point");
        hash.number(point);
        hash.number(attempt);
        let key = hash.finish() as u64;
        match pair.at(Seed { key, all, point }) {
            Err(ended @ (Ended::Zero(_) | Ended::Empty(_))) => last = ended,
            decided => return decided,
        }
    }
    Err(last)
}
