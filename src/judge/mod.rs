//! Decides whether two models compute the same function, no matter which tools wrote them.
//!
//! `docs/judge.md` defines the verdicts. The first model may lack a tensor that the second one stores. Such a tensor
//! counts as its elements, or as a formula over the tensors of the first model that gives these elements up to
//! rounding. The proof decides the identity. Only a run on an input shows a difference.

mod canonical_form;
mod casts;
mod constants;
mod elements;
mod formulas;
mod interface;
mod match_tensors;
mod rounded;
mod witness;

use serde::Serialize;

use self::match_tensors::Matched;
use crate::affine::plan::Stored;
use crate::ir::Graph;
use crate::onnx::Model;
use crate::prove::{
    Proof, ProveOptions, RecordedValues, ValueDigests, foreign, same_function_recorded,
};

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
    /// Both models compute the same function if formulas replace some tensors. These tensors hold the values of their
    /// formulas up to rounding.
    Rounded {
        /// The number of points at which both models were evaluated.
        points: usize,
        /// A bound on the probability that the verdict is wrong.
        bound: f64,
        /// The tensors of the second model that formulas replace.
        tensors: Vec<RoundedTensor>,
    },
    /// Both models compute the same function if some casts to narrower types do not round.
    Casts {
        /// The number of points at which both models were evaluated.
        points: usize,
        /// A bound on the probability that the verdict is wrong.
        bound: f64,
        /// The casts that only one of the models has.
        casts: Vec<NarrowingCast>,
        /// The tensors of the second model that formulas replace.
        tensors: Vec<RoundedTensor>,
    },
    /// The outputs differ on an input, by far more than rounding.
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
    judge_recorded(first, second, options, None)
}

/// Judges two models. Also returns the values of both at one point; none if they could not be compared.
pub(crate) fn judge_with_values(
    first: &Model,
    second: &Model,
    options: &ProveOptions,
) -> (Judgement, ValueDigests) {
    let record = RecordedValues::default();
    let judgement = judge_recorded(first, second, options, Some(&record));
    (judgement, record.take())
}

/// The values of two models at one point, without a verdict. None if they could not be compared.
pub(crate) fn compared_values(
    first: &Model,
    second: &Model,
    options: &ProveOptions,
) -> ValueDigests {
    let record = RecordedValues::default();
    if let Ok(models) = interface::aligned(first, second) {
        let [first, second] = canonical_form::normalised(models);
        let judge = Judge {
            first,
            second,
            options,
            record: Some(&record),
        };
        judge.proof();
    }
    record.take()
}

fn judge_recorded(
    first: &Model,
    second: &Model,
    options: &ProveOptions,
    record: Option<&RecordedValues>,
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
    record: Option<&'j RecordedValues>,
}

impl Judge<'_> {
    fn verdict(&self) -> Judgement {
        let (proof, matched) = self.proof();
        let formulas: Vec<Stored> = matched.iter().map(|found| found.stored.clone()).collect();
        match proof {
            Proof::Proved { points, bound, .. } => self.proved(points, bound, matched),
            Proof::Invalid { at, reason } => Judgement::Invalid { at, reason },
            Proof::Disproved { at, reason, .. } => self.as_held(&formulas, unmatched(&at, &reason)),
            Proof::Undecided { reason } => self.as_held(&formulas, reason),
        }
    }

    /// The proof with formulas for the tensors that match them, and these tensors.
    fn proof(&self) -> (Proof, Vec<Matched>) {
        let [first, second] = [&self.first, &self.second];
        let matched = match foreign(first, second) {
            Ok(foreign) => match_tensors::matched(first, second, &read(second, foreign)),
            Err(_) => vec![],
        };
        let formulas: Vec<Stored> = matched.iter().map(|found| found.stored.clone()).collect();
        let proof = same_function_recorded([first, second], &formulas, self.options, self.record);
        (proof, matched)
    }

    /// The verdict after the proof with these formulas failed for this reason. Tries a proof without formulas first,
    /// because a tensor may match a formula by chance.
    fn as_held(&self, formulas: &[Stored], reason: String) -> Judgement {
        if formulas.is_empty() {
            return self.unproved(reason);
        }
        let again = RecordedValues::default();
        let models = [&self.first, &self.second];
        let record = self.record.map(|_| &again);
        match same_function_recorded(models, &[], self.options, record) {
            Proof::Proved { points, bound, .. } => {
                if let Some(record) = self.record {
                    record.keep(again.take());
                }
                self.proved(points, bound, vec![])
            }
            _ => self.unproved(reason),
        }
    }

    /// The verdict after a proof with these formulas succeeded.
    fn proved(&self, points: usize, bound: f64, matched: Vec<Matched>) -> Judgement {
        let tensors: Vec<RoundedTensor> = matched.iter().filter_map(Matched::rounded).collect();
        let casts = casts::unpaired(&self.first, &self.second);
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

    /// The verdict without a proof: a difference that a run shows, or the missing step of the proof.
    fn unproved(&self, reason: String) -> Judgement {
        match witness::search(&self.first, &self.second, &self.options.dims) {
            Some(witness) => Judgement::Different(witness),
            None => Judgement::Undecided { reason },
        }
    }
}

/// Keeps the names of tensors that a node or an output of the model reads.
fn read(model: &Model, mut names: Vec<String>) -> Vec<String> {
    if let Ok(graph) = Graph::new(model) {
        names.retain(|name| graph.reads(name));
    }
    names
}

/// A sentence that names the first value without a counterpart.
fn unmatched(at: &str, reason: &str) -> String {
    if at.is_empty() {
        reason.to_owned()
    } else {
        format!(
            "`{at}` is the first value without a known counterpart in the first model: {reason}"
        )
    }
}
