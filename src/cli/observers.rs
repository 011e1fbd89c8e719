//! Observers of the passes of `unfold fuse`: they prove the result of each pass, or print the
//! model.

use std::io::{self, Write};

use unfold::onnx::PrintedElements;
use unfold::prove_passes::{PassProof, PassProver};
use unfold::{PassResult, Pipeline};

/// The maximum number of elements of a tensor that is printed.
const PRINTED: usize = 16;

/// Parses the name of a pass.
pub(super) fn pass_name(word: &str) -> Result<String, String> {
    let mut passes = Pipeline::stages()
        .into_iter()
        .flat_map(|stage| stage.passes);
    match passes.any(|pass| pass.name == word) {
        true => Ok(word.to_owned()),
        false => Err("no pass has this name; `unfold passes` lists them".to_owned()),
    }
}

/// The observers that are called after each pass that changes the model.
pub(super) struct Observers {
    /// Proves the result of each pass, with `--verify each`.
    pub prover: Option<PassProver>,
    /// The name of the pass whose result is printed.
    pub printed: Option<String>,
}

impl Observers {
    /// Whether a proof or a printed model was requested.
    pub(super) fn is_wanted(&self) -> bool {
        self.prover.is_some() || self.printed.is_some()
    }

    /// Proves the result of a pass, and prints the model after it, as requested.
    pub(super) fn observe(&self, result: &PassResult) {
        if let Some(prover) = &self.prover {
            prover.observe(result);
        }
        if self.printed.as_deref() == Some(result.pass) {
            print(result);
        }
    }

    /// The proofs of all changes so far.
    pub(super) fn proofs(&self) -> Vec<PassProof> {
        self.prover.iter().flat_map(PassProver::proofs).collect()
    }
}

/// Prints the model after a pass to the standard error stream.
fn print(result: &PassResult) {
    let text = match result.models {
        Some([_, after]) => after
            .to_text(PrintedElements::AtMost(PRINTED))
            .unwrap_or_else(|error| format!("# {error}\n")),
        None => "# the bodies of control flow cannot be restored\n".to_owned(),
    };
    // A closed pipe is not an error.
    let _ = writeln!(io::stderr(), "# after {}\n{text}", result.pass);
}
