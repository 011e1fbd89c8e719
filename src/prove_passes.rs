//! Proves the result of each pass, in order to find passes with wrong rewrites.

use std::cell::RefCell;

use serde::Serialize;

use crate::fuse::PassResult;
use crate::prove::{Proof, ProveOptions, prove};

/// The proof of one change of the model.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PassProof {
    /// The name of the pass that made the change.
    pub pass: &'static str,
    /// Whether the models before and after the pass are the same function.
    #[serde(flatten)]
    pub proof: Proof,
}

impl PassProof {
    /// Whether the pass changed the function, or produced an invalid model.
    pub(crate) fn is_wrong(&self) -> bool {
        matches!(self.proof, Proof::Disproved { .. } | Proof::Invalid { .. })
    }

    /// The reason why the change is not proved, in one line. `None` if it is proved.
    pub(crate) fn failure(&self) -> Option<String> {
        let pass = self.pass;
        match &self.proof {
            Proof::Proved { .. } => None,
            Proof::Disproved { at, reason, .. } => Some(format!(
                "the pass `{pass}` makes another function at `{at}`: {reason}"
            )),
            Proof::Invalid { at, reason } => Some(format!(
                "the pass `{pass}` makes an invalid model at `{at}`: {reason}"
            )),
            Proof::Undecided { reason } => {
                Some(format!("the pass `{pass}` is not proved: {reason}"))
            }
        }
    }

    /// Whether both models are proved to be the same function.
    pub(crate) fn is_proved(&self) -> bool {
        matches!(self.proof, Proof::Proved { .. })
    }
}

/// An observer of passes that proves each result equal to the input of the pass.
#[derive(Debug, Default)]
pub(crate) struct PassProver {
    options: ProveOptions,
    proofs: RefCell<Vec<PassProof>>,
}

impl PassProver {
    /// A prover with these options that has no proofs yet.
    pub(crate) fn new(options: ProveOptions) -> Self {
        PassProver {
            options,
            proofs: RefCell::default(),
        }
    }

    /// Proves the result of a pass.
    pub(crate) fn observe(&self, result: &PassResult) {
        let proof = PassProof {
            pass: result.pass,
            proof: self.proof(result),
        };
        self.proofs.borrow_mut().push(proof);
    }

    fn proof(&self, result: &PassResult) -> Proof {
        let Some([before, after]) = result.models else {
            return undecided("the bodies of control flow cannot be restored between passes");
        };
        if !result.is_exact {
            return undecided(
                "the pass keeps the function only up to the ε of normalizers, or rounds",
            );
        }
        prove(before, after, result.tensors, &self.options)
    }

    /// The proofs so far, in the order of the passes.
    pub(crate) fn proofs(&self) -> Vec<PassProof> {
        self.proofs.borrow().clone()
    }
}

fn undecided(reason: &str) -> Proof {
    Proof::Undecided {
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::Model;

    #[test]
    fn each_pass_of_a_small_model_is_proved() {
        let model = Model::open("models/digits/un-dynamo.onnx").unwrap();
        let prover = PassProver::new(Default::default());
        let observer = |result: &crate::PassResult| prover.observe(result);
        let options = crate::FuseOptions {
            observer: Some(&observer),
            ..Default::default()
        };
        crate::fuse(&model, &options).unwrap();
        let proofs = prover.proofs();
        assert!(proofs.iter().any(|proof| proof.pass == "fold-affines"));
        assert!(proofs.iter().all(PassProof::is_proved));
    }
}
