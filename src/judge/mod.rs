//! Decides whether two models compute the same function, no matter which tools wrote them.
//!
//! `docs/judge.md` defines the verdicts. The first model may lack a tensor that the second one
//! stores. The proof then uses the elements of this tensor, or replaces the tensor by a formula
//! over the tensors of the first model whose result equals these elements up to rounding. Only a
//! proof shows that two models are equal, and only a run on an input shows that they differ.

mod binary_errors;
mod candidates;
mod canonical_form;
mod casts;
mod compared_runs;
mod computed_twins;
mod constants;
mod deviation;
mod direction;
mod elements;
mod end_types;
mod formula_parts;
mod formulas;
mod hidden_fold;
mod hidden_rows;
mod interface;
mod match_tensors;
mod mixed_rows;
mod neighbour_folds;
mod normalizations;
mod products;
mod resized;
mod rounded;
mod standardized;
mod stored_indices;
mod witness;

use std::collections::HashSet;

use serde::Serialize;

use self::direction::{ComparisonDirection, EstablishedFormulas};
use self::match_tensors::Matched;
use crate::onnx::Model;
use crate::prove::{Proof, ProveOptions, RecordedValues, ValueDigests};

pub use casts::NarrowingCast;
pub(crate) use interface::counterparts;
pub use match_tensors::RoundedTensor;
pub use witness::Witness;
pub(crate) use witness::witness_on;

/// The verdict on two models.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Judgement {
    /// Both models compute the same function.
    Same {
        /// The number of points at which both models were evaluated.
        points: usize,
        /// A bound on the probability that the verdict is wrong.
        bound: f64,
    },
    /// Both models compute the same function if formulas replace some tensors. These tensors hold
    /// the values of their formulas up to rounding.
    Rounded {
        /// The number of points at which both models were evaluated.
        points: usize,
        /// A bound on the probability that the verdict is wrong.
        bound: f64,
        /// The tensors that formulas over the other model replace.
        tensors: Vec<RoundedTensor>,
    },
    /// Both models compute the same function if some casts to narrower types do not round.
    Casts {
        /// The number of points at which both models were evaluated.
        points: usize,
        /// A bound on the probability that the verdict is wrong.
        bound: f64,
        /// The narrowing casts that only one of the models has.
        casts: Vec<NarrowingCast>,
        /// The tensors that formulas over the other model replace.
        tensors: Vec<RoundedTensor>,
    },
    /// The outputs differ on an input, by more than rounding.
    Different(Witness),
    /// An operator of the second model is invalid.
    Invalid {
        /// The first invalid node.
        at: String,
        /// The reason.
        reason: String,
    },
    /// Neither a proof nor a witness was found.
    Undecided {
        /// The missing step of the proof.
        reason: String,
    },
}

/// Judges two models.
///
/// ```
/// use unfold::judge::{Judgement, judge};
/// use unfold::onnx::Model;
///
/// let model = Model::open("models/digits/un-dynamo.onnx")?;
/// let mut other = model.clone();
/// other.graph_mut().doc_string = Some("another file".to_owned());
/// assert!(matches!(judge(&model, &other, &Default::default()), Judgement::Same { .. }));
/// # Ok::<(), unfold::error::Error>(())
/// ```
pub fn judge(first: &Model, second: &Model, options: &ProveOptions) -> Judgement {
    let record = RecordedValues::default();
    judge_recorded(first, second, options, &record)
}

/// Judges two models. Also returns the digests of the values of both models at one point, or no
/// digests if the models could not be compared.
pub(crate) fn judge_with_values(
    first: &Model,
    second: &Model,
    options: &ProveOptions,
) -> (Judgement, ValueDigests) {
    let record = RecordedValues::with_tensors();
    let judgement = judge_recorded(first, second, options, &record);
    (judgement, record.take())
}

/// The digests of the values of two models at one point, without a verdict. Empty if the models
/// could not be compared.
pub(crate) fn compared_values(
    first: &Model,
    second: &Model,
    options: &ProveOptions,
) -> ValueDigests {
    let record = RecordedValues::with_tensors();
    if let Ok(models) = interface::aligned(first, second) {
        let [first, second] = canonical_form::normalised(models);
        let judge = Judge {
            first,
            second,
            options,
            record: &record,
        };
        judge.direction(false).record_values();
    }
    record.take()
}

fn judge_recorded(
    first: &Model,
    second: &Model,
    options: &ProveOptions,
    record: &RecordedValues,
) -> Judgement {
    match interface::aligned(first, second) {
        Ok(models) => {
            let [first, second] = canonical_form::normalised(models);
            Judge {
                first,
                second,
                options,
                record,
            }
            .verdict()
        }
        Err(reason) => Judgement::Undecided { reason },
    }
}

/// Two models with the same interface.
struct Judge<'j> {
    first: Model,
    second: Model,
    options: &'j ProveOptions,
    /// The record of the values of both models.
    record: &'j RecordedValues,
}

impl Judge<'_> {
    /// Tries to prove that the models are the same function, first with formulas over the first
    /// model for tensors of the second one, and then the other way round. Otherwise, searches for a
    /// witness.
    fn verdict(&self) -> Judgement {
        let failed = match self.direction(false).proved() {
            Ok(established) => return self.proved(established, false),
            Err(Proof::Invalid { at, reason }) => return Judgement::Invalid { at, reason },
            Err(failed) => failed,
        };
        match self.direction(true).proved_by_formulas() {
            Some(established) => self.proved(established, true),
            None => self.unproved(failed),
        }
    }

    /// A comparison in which formulas read the first model and replace tensors of the second one,
    /// or the other way round if `is_exchanged`.
    fn direction(&self, is_exchanged: bool) -> ComparisonDirection<'_> {
        let [base, other] = if is_exchanged {
            [&self.second, &self.first]
        } else {
            [&self.first, &self.second]
        };
        ComparisonDirection {
            base,
            other,
            is_exchanged,
            options: self.options,
            record: self.record,
        }
    }

    /// The verdict after a proof succeeded. The established formulas replace tensors of the first
    /// model if `is_of_first`, and otherwise tensors of the second one.
    fn proved(&self, established: EstablishedFormulas, is_of_first: bool) -> Judgement {
        let EstablishedFormulas {
            points,
            bound,
            matched,
        } = established;
        let [first, second] = [&self.first, &self.second];
        if let Some(witness) = hidden_rows::difference(first, second, &self.options.dims) {
            return Judgement::Different(witness);
        }
        let rounded = matched.iter();
        let rounded = rounded.filter_map(|matched| matched.rounded(is_of_first));
        let tensors: Vec<RoundedTensor> = rounded.collect();
        let named: HashSet<&str> = matched.iter().flat_map(Matched::names).collect();
        let casts = self
            .record
            .read(|values| casts::unpaired([&self.first, &self.second], values, &named));
        match (casts.is_empty(), tensors.is_empty()) {
            (true, true) => Judgement::Same { points, bound },
            (true, false) => Judgement::Rounded {
                points,
                bound,
                tensors,
            },
            (false, _) => Judgement::Casts {
                points,
                bound,
                casts,
                tensors,
            },
        }
    }

    /// The verdict if no proof succeeded: a difference that a run shows, or otherwise the missing
    /// step of the proof.
    fn unproved(&self, failed: Proof) -> Judgement {
        match witness::search(&self.first, &self.second, &self.options.dims) {
            Ok(witness) => Judgement::Different(Witness {
                first_value: first_value(failed),
                ..witness
            }),
            Err(none) => Judgement::Undecided {
                reason: format!("{}; {none}", missing(failed)),
            },
        }
    }
}

/// The first value without a known counterpart, if a proof failed because values differ.
fn first_value(failed: Proof) -> Option<String> {
    match failed {
        Proof::Disproved { at, .. } if !at.is_empty() => Some(at),
        _ => None,
    }
}

/// The missing step of a proof that failed. If values differ, the text names the first value
/// without a counterpart.
fn missing(failed: Proof) -> String {
    match failed {
        Proof::Disproved { at, reason, .. } if !at.is_empty() => format!(
            "`{at}` is the first value without a known counterpart in the first model: {reason}"
        ),
        Proof::Disproved { reason, .. }
        | Proof::Undecided { reason }
        | Proof::Invalid { reason, .. } => reason,
        Proof::Proved { .. } => String::new(),
    }
}
