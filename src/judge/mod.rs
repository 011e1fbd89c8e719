//! Whether any two models compute the same function, whoever made them.
//!
//! `docs/judge.md` defines the verdicts. A tensor of the second model that the first lacks counts as the numbers that it
//! holds, or as a formula over the tensors of the first model where those numbers are the formula's, up to its own
//! rounding. The proof decides the identity; only a run on an input shows a difference.

mod candidates;
mod casts;
mod constants;
mod elements;
mod formulas;
mod interface;
mod normal;
mod rounded;
mod witness;

use serde::Serialize;

use self::candidates::Matched;
use crate::affine::plan::Stored;
use crate::ir::Graph;
use crate::onnx::Model;
use crate::prove::{Proof, ProveOptions, foreign, same_function};

pub use candidates::RoundedTensor;
pub use casts::NarrowingCast;
pub use witness::Witness;

/// The verdict on two models.
#[derive(Debug, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Judgement {
    /// Both compute the same function.
    Same {
        /// At so many points.
        points: usize,
        /// A bound on the probability that they do not.
        bound: f64,
    },
    /// Both compute the same function, with formulas in the place of these tensors, which hold the numbers of the
    /// formulas up to the rounding of their operations.
    Rounded {
        /// At so many points.
        points: usize,
        /// A bound on the probability that they do not.
        bound: f64,
        /// The tensors of the second model that stand for formulas.
        tensors: Vec<RoundedTensor>,
    },
    /// Both compute the same function where casts to narrower types do not round.
    Casts {
        /// At so many points.
        points: usize,
        /// A bound on the probability that they do not.
        bound: f64,
        /// The casts that one of the models has and the other lacks.
        casts: Vec<NarrowingCast>,
        /// The tensors of the second model that stand for formulas.
        tensors: Vec<RoundedTensor>,
    },
    /// The outputs differ on an input, by far more than rounding.
    Different(Witness),
    /// An operator of the second model is invalid.
    Invalid {
        /// The first node that is wrong.
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
    match interface::aligned(first, second) {
        Ok(models) => {
            let [first, second] = normal::normalised(models);
            Judge {
                first,
                second,
                options,
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
}

impl Judge<'_> {
    fn verdict(&self) -> Judgement {
        let [first, second] = [&self.first, &self.second];
        let matched = match foreign(first, second) {
            Ok(foreign) => candidates::matched(first, second, &read(second, foreign)),
            Err(_) => vec![],
        };
        let formulas: Vec<Stored> = matched.iter().map(|found| found.stored.clone()).collect();
        let proof = same_function(first, second, &formulas, self.options);
        match proof {
            Proof::Proved { points, bound, .. } => self.proved(points, bound, matched),
            Proof::Invalid { at, reason } => Judgement::Invalid { at, reason },
            Proof::Disproved { at, reason, .. } => self.as_held(&formulas, unmatched(&at, &reason)),
            Proof::Undecided { reason } => self.as_held(&formulas, reason),
        }
    }

    /// The verdict where the proof fails for this reason with these formulas: the numbers of a
    /// formula may be another one's, or the tensors' own.
    fn as_held(&self, formulas: &[Stored], reason: String) -> Judgement {
        if !formulas.is_empty()
            && let Proof::Proved { points, bound, .. } =
                same_function(&self.first, &self.second, &[], self.options)
        {
            return self.proved(points, bound, vec![]);
        }
        self.unproved(reason)
    }

    /// The verdict of a proof with these formulas.
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

    /// A difference that a run shows, or the missing step of the proof.
    fn unproved(&self, reason: String) -> Judgement {
        match witness::search(&self.first, &self.second, &self.options.dims) {
            Some(witness) => Judgement::Different(witness),
            None => Judgement::Undecided { reason },
        }
    }
}

/// The tensors of these names that a node or an output of the model reads.
fn read(model: &Model, mut names: Vec<String>) -> Vec<String> {
    if let Ok(graph) = Graph::new(model) {
        names.retain(|name| graph.reads(name));
    }
    names
}

/// The sentence about the first value without a counterpart.
fn unmatched(at: &str, reason: &str) -> String {
    if at.is_empty() {
        reason.to_owned()
    } else {
        format!(
            "`{at}` is the first value without a known counterpart in the first model: {reason}"
        )
    }
}
