//! Proves that two models compute the same function, without an engine and without a tolerance.
//!
//! `docs/proof.md` defines the proof. Two claims are checked. The first: every new tensor equals
//! its recipe, rounded once (`rounding`). The second: if recipes replace the new tensors, both
//! graphs have equal outputs at a random point of a finite field (`evaluate`). Different
//! polynomials rarely agree at such a point.

mod activations;
mod blame;
mod claims;
mod ended;
mod evaluate;
mod field;
mod field_value;
mod formula;
mod identity;
mod interface;
mod matrices;
mod operators;
mod prepared;
mod random;
mod random_inputs;
mod recorded;
mod roots;
mod rounding;
mod scales;
mod sizes;
mod sources;
mod validity;

use serde::Serialize;

use crate::affine::plan::Stored;
use crate::onnx::Model;
use crate::run::Dims;
#[cfg(feature = "tract")]
pub(crate) use activations::read_past;
use claims::{ClaimCheck, ClaimScope, Established, claims};
use ended::Ended;
use field::P;
#[cfg(feature = "tract")]
pub(crate) use random::{Digest, Hash};
pub(crate) use recorded::RecordedValues;
#[cfg(feature = "tract")]
pub(crate) use recorded::ValueDigests;
#[cfg(feature = "tract")]
pub(crate) use rounding::foreign;
use sizes::{SizeSearch, elements, inputs};
#[cfg(feature = "tract")]
pub(crate) use sources::stored_outside;

/// After a computation exceeds the limits at some sizes, other sizes are tried only if the inputs
/// then have at most `1/FEWER` as many elements in total.
const FEWER: u64 = 4;

/// The options of a proof.
#[derive(Debug, Clone)]
pub struct ProveOptions {
    /// The sizes of symbolic dimensions.
    pub dims: Dims,
    /// The number of points at which both models are evaluated. More points are used if these do
    /// not suffice.
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Proof {
    /// Both compute the same function.
    Proved {
        /// The number of points.
        points: usize,
        /// A bound on the probability that the functions differ nevertheless.
        bound: f64,
        /// The number of new tensors that were computed again from their recipes and are equal bit
        /// for bit.
        tensors: usize,
    },
    /// No engine accepts the folded model, for a reason that does not apply to the original.
    Invalid {
        /// The first invalid node.
        at: String,
        /// The reason.
        reason: String,
    },
    /// The functions differ, or a new tensor differs from its recipe.
    Disproved {
        /// The first value that differs, or the tensor that differs.
        at: String,
        /// The index of the site for which the value or tensor was changed.
        site: Option<usize>,
        /// The difference.
        reason: String,
    },
    /// The proof cannot decide.
    Undecided {
        /// The reason.
        reason: String,
    },
}

/// Proves that `fused` computes the same function as `original`, if `tensors` are its new tensors.
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
    let proving = Proving {
        models: [original, fused],
        tensors,
        scope: ClaimScope::All,
        record: None,
        options,
        sizes: SizeSearch::new(original, fused, &options.dims),
    };
    proving.verdict()
}

/// Proves that `other` computes the same function as `original`, if the recipes in `formulas`
/// replace the tensors of `other` that have the same names.
///
/// All other tensors of `other` keep their elements, even if `original` does not store such a
/// tensor. The bound includes the probability that two different numbers have the same image in the
/// field. Does not check that the replaced tensors equal their rounded recipes.
pub fn same_function(
    original: &Model,
    other: &Model,
    formulas: &[Stored],
    options: &ProveOptions,
) -> Proof {
    same_function_recorded([original, other], formulas, options, None)
}

/// Like [`same_function`], but also records digests of the values of both models at one point.
pub(crate) fn same_function_recorded(
    [original, other]: [&Model; 2],
    formulas: &[Stored],
    options: &ProveOptions,
    record: Option<&RecordedValues>,
) -> Proof {
    let proving = Proving {
        models: [original, other],
        tensors: formulas,
        scope: ClaimScope::Function,
        record,
        options,
        sizes: SizeSearch::new(original, other, &options.dims),
    };
    match proving.verdict() {
        Proof::Proved { points, bound, .. } => Proof::Proved {
            points,
            bound: bound + 1.0 / P as f64,
            tensors: formulas.len(),
        },
        other => other,
    }
}

/// The assignments of sizes at which two models are compared. In the first two assignments, no size
/// equals an extent in a model. Each symbol has different sizes in the first two assignments. In
/// the last assignment, each symbol of a length is 1, so that it broadcasts. Empty if no extent is
/// open.
#[cfg(feature = "tract")]
pub(crate) fn sizes_of_proof([original, other]: [&Model; 2], given: &Dims) -> Vec<Dims> {
    let search = SizeSearch::new(original, other, given);
    let Some(first) = search.first().into_iter().next() else {
        return vec![];
    };
    let second = search.second(&first).into_iter().next();
    let of_one = search.with_lengths_of_one(&first);
    let mut sizes = vec![first];
    sizes.extend(second);
    sizes.push(of_one);
    sizes.dedup();
    sizes.retain(|dims| dims != given);
    sizes
}

/// Two models, and the sizes at which their claims are proved.
struct Proving<'p> {
    /// The original and the folded model.
    models: [&'p Model; 2],
    tensors: &'p [Stored],
    /// The claims that are proved.
    scope: ClaimScope,
    /// The record of the values of both models, if requested.
    record: Option<&'p RecordedValues>,
    options: &'p ProveOptions,
    sizes: SizeSearch<'p>,
}

impl Proving<'_> {
    /// Checks the claims at one assignment of sizes after another, until one gives a verdict.
    /// Undecided if none does.
    fn verdict(&self) -> Proof {
        let mut first = None;
        let mut room = u64::MAX;
        // Sizes that do not fit the original are skipped: a model may work for only one batch size,
        // although it declares a symbol.
        for dims in self.sizes.first() {
            let count = inputs(self.models[0], &dims).map_or(0, |inputs| elements(&inputs));
            if count > room {
                continue;
            }
            match self.claims(&dims, self.scope) {
                Ok(established) => return self.confirmed(&dims, established),
                Err(Ended::With(proof)) => return proof,
                Err(ended @ Ended::Unfit(_)) => return self.unfit(&dims, &ended),
                Err(ended) => {
                    if let Ended::Beyond(_) = ended {
                        room = count / FEWER;
                    }
                    first.get_or_insert_with(|| ended.reason());
                }
            }
        }
        first.map_or_else(|| undecided("there are no sizes to prove it at"), undecided)
    }

    fn claims(&self, dims: &Dims, scope: ClaimScope) -> Result<Established, Ended> {
        let options = ProveOptions {
            dims: dims.clone(),
            ..self.options.clone()
        };
        let check = ClaimCheck {
            scope,
            reads_past: false,
            record: self.record.filter(|_| scope == self.scope),
        };
        let found = claims(self.models, self.tensors, &options, check);
        // First compares with all activations kept: a positive factor between two of them passes
        // both only if neither is removed.
        let differs = matches!(
            found,
            Err(Ended::Unknown(_) | Ended::With(Proof::Disproved { .. }))
        );
        let mut graphs = self.models.iter().map(|model| model.graph());
        if !differs || !graphs.any(activations::has_pairs) {
            return found;
        }
        let again = ClaimCheck {
            reads_past: true,
            ..check
        };
        claims(self.models, self.tensors, &options, again).or(found)
    }

    /// The verdict if the original fits these sizes and the folded model does not. Disproved if
    /// both models fit sizes with lengths of 1, which broadcast, and differ there. Otherwise
    /// undecided.
    fn unfit(&self, dims: &Dims, ended: &Ended) -> Proof {
        let dims = self.sizes.with_lengths_of_one(dims);
        match self.claims(&dims, ClaimScope::Again) {
            Err(Ended::With(proof @ Proof::Disproved { .. })) => proof,
            _ => undecided(ended.reason()),
        }
    }

    /// Checks the identity again after it was found to hold at some sizes: at other sizes, and at
    /// another point if the number of places that a NonZero finds was drawn.
    fn confirmed(&self, dims: &Dims, mut established: Established) -> Proof {
        let is_one_point = established.points == 1;
        let mut again = self.sizes.second(dims);
        if established.draws_counts && is_one_point {
            again.push(dims.clone());
        }
        let mut is_open = established.draws_counts && is_one_point;
        for other in again {
            match self.claims(&other, ClaimScope::Again) {
                Ok(other) => {
                    established.bound = established.bound.max(other.bound);
                    is_open = false;
                    break;
                }
                Err(Ended::With(proof @ (Proof::Disproved { .. } | Proof::Invalid { .. }))) => {
                    return proof;
                }
                Err(ended @ Ended::Unfit(_)) => return self.unfit(dims, &ended),
                // A failure at other sizes decides nothing, because a model may work at only one
                // size.
                Err(_) => {}
            }
        }
        if is_open {
            return undecided("how many places a NonZero finds fits at one point alone");
        }
        for dims in self.sizes.with_all_parts(dims) {
            match self.claims(&dims, ClaimScope::Again) {
                Ok(other) => established.bound = established.bound.max(other.bound),
                Err(Ended::With(proof @ (Proof::Disproved { .. } | Proof::Invalid { .. }))) => {
                    return proof;
                }
                Err(_) => {}
            }
        }
        Proof::Proved {
            points: established.points,
            bound: established.bound,
            tensors: established.tensors,
        }
    }
}

fn undecided(reason: impl Into<String>) -> Proof {
    Proof::Undecided {
        reason: reason.into(),
    }
}
