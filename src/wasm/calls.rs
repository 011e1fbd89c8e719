//! The calls of the package, over bytes and JSON.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::affine::plan::Plan;
use crate::claim::Claim;
use crate::error::Error;
use crate::fuse::{self, FuseOptions, Fused};
use crate::inspect::{model_page, outlined_sites};
use crate::onnx::Model;
use crate::prove::{self, Proof, ProveOptions, same_function};
use crate::provenance::{FoldOptions, Provenance};
use crate::report::OutlineSite;

/// One line about a failed call.
pub(super) struct CallError(pub String);

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        Self(error.to_string())
    }
}

impl From<serde_json::Error> for CallError {
    fn from(error: serde_json::Error) -> Self {
        Self(format!("options: {error}"))
    }
}

/// The result of a call.
pub(super) struct CallResult {
    /// The report as JSON.
    pub report: String,
    /// The folded model. `None` if nothing folds, or for a proof.
    pub model: Option<Bytes>,
}

/// A request to fold a model.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Request {
    /// The options of the fold.
    options: FoldOptions,
    /// Whether the result is proved to be the same function as the model.
    prove: bool,
    /// The title of the page about the model and its result. `None` if no page is wanted.
    page: Option<String>,
}

/// The report of a fold.
#[derive(Serialize)]
struct FoldReport {
    /// Whether the result differs from the model.
    changed: bool,
    /// The sites and their outcomes.
    sites: Vec<OutlineSite>,
    /// The proof that the result is the same function.
    #[serde(skip_serializing_if = "Option::is_none")]
    proof: Option<Proof>,
    /// The page about the model and its result.
    #[serde(skip_serializing_if = "Option::is_none")]
    page: Option<String>,
}

/// Folds a model.
pub(super) fn fuse(request: &[u8], model: Bytes) -> Result<CallResult, CallError> {
    let request: Request = serde_json::from_slice(request)?;
    let model = Model::from_bytes(model)?;
    let fused = fuse::fuse(&model, &FuseOptions::from(request.options))?;
    let proof = request.prove.then(|| accepted(proof(&model, &fused)));
    let page = request.page.map(|name| model_page(&name, &model, &fused));
    let report = FoldReport {
        changed: fused.changed(),
        sites: outlined_sites(&fused.plan),
        proof: proof.transpose()?,
        page: page.transpose()?,
    };
    let result = fused.changed().then(|| fused.model.to_bytes());
    Ok(CallResult {
        report: serde_json::to_string(&report)?,
        model: result.transpose()?,
    })
}

/// Proves that the result of a fold is the same function as the model.
fn proof(model: &Model, fused: &Fused) -> Proof {
    if let Some(reason) = inexact(&fused.plan) {
        let reason = reason.to_owned();
        return Proof::Undecided { reason };
    }
    // A proof takes inputs of other declared sizes as different inputs. So fixed sizes are fixed in the original too.
    let lowered = fused.lowered.as_ref();
    let fixed = lowered.filter(|lowered| lowered.graph().input != model.graph().input);
    let original = fixed.unwrap_or(model);
    prove::prove(
        original,
        &fused.model,
        &fused.plan.tensors,
        &ProveOptions::default(),
    )
}

/// The reason why the result of a plan is not exactly the same function. `None` if it is.
fn inexact(plan: &Plan) -> Option<&'static str> {
    if plan.half.is_some() {
        return Some("half precision rounds");
    }
    if !plan.merged.is_empty() {
        return Some("a merged normalizer is equal only up to its ε");
    }
    let constant = "a normalizer was taken as constant";
    (plan.constants() > 0).then_some(constant)
}

/// The proof, or a failure if the result of a fold is wrong.
fn accepted(proof: Proof) -> Result<Proof, CallError> {
    let line = match &proof {
        Proof::Proved { .. } | Proof::Undecided { .. } => return Ok(proof),
        Proof::Disproved { at, reason, .. } => {
            format!("the folded model computes something else at `{at}`: {reason}")
        }
        Proof::Invalid { at, reason } => {
            format!("the folded model is invalid at `{at}`: {reason}")
        }
    };
    Err(CallError(line))
}

/// Proves that two models are the same function. If the second one is the result of folding the first one, its new
/// tensors are compared with their formulas.
pub(super) fn prove(original: Bytes, other: Bytes) -> Result<CallResult, CallError> {
    let [original, other] = [Model::from_bytes(original)?, Model::from_bytes(other)?];
    let report = serde_json::to_string(&verdict(&original, &other)?)?;
    Ok(CallResult {
        report,
        model: None,
    })
}

fn verdict(original: &Model, other: &Model) -> Result<Proof, CallError> {
    let options = ProveOptions::default();
    if Provenance::from_model(other).is_empty() {
        return Ok(same_function(original, other, &[], &options));
    }
    match Claim::recorded(original, other)? {
        Some(claim) => Ok(prove::prove(original, other, &claim.tensors, &options)),
        None => Ok(Proof::Undecided {
            reason: "the model was folded again: each time has to be proved by itself".to_owned(),
        }),
    }
}
