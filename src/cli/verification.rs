//! Verifies a result before it is written, by running it and by proof.

use clap::ValueEnum;
use unfold::measurements::sensitivity;
use unfold::onnx::Model;
use unfold::plan::Stored;
use unfold::prove::{Proof, ProveOptions, prove};
use unfold::prove_passes::PassProof;
use unfold::report::plain;
use unfold::verify::{Comparison, Verdict, VerifyOptions, compare};

use crate::cli::exit_code::End;
use crate::cli::out::{Paint, Tone};

/// The method of verification of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// Runs both models. If tract cannot run one of them, or if they differ, proves that they are
    /// equal. If neither is possible, there is a warning, and the result is written
    Auto,
    /// Runs both models, without a proof; if tract cannot run them, there is a warning
    Run,
    /// Proves that they are equal, without running them; if the proof is undecided, there is a
    /// warning
    Prove,
    /// Proves the result of each pass against its input, followed by prove; names the pass that
    /// changes the function
    Each,
    /// Like auto, but nothing is written if neither is possible
    Require,
    /// Does not verify
    Off,
}

/// The outcome of verification.
#[derive(Debug, Default)]
pub(crate) struct Judged {
    /// The outcome of running both models, if it was tried.
    pub run: Option<Verdict>,
    /// The outcome of the proof, if it was tried.
    pub proof: Option<Proof>,
    /// The proofs of all passes, if requested.
    pub passes: Vec<PassProof>,
    /// The relative change of the original's outputs if its weights change by one rounding. `None`
    /// unless the outputs differ although the models are proved to be equal.
    pub sensitivity: Option<f64>,
}

impl Judged {
    /// Runs the models and proves them equal, as requested. `runs` is the original after inlining,
    /// which engines can run, and `original` is the model for the proof.
    pub(crate) fn new(
        when: When,
        [original, runs]: [&Model; 2],
        fused: &Model,
        tensors: &[Stored],
        options: &VerifyOptions,
        begin: &impl Fn(&str),
    ) -> Self {
        let mut judged = Self::default();
        if matches!(when, When::Auto | When::Run | When::Require) {
            begin("verify");
            judged.run = Some(compare(runs, fused, options));
        }
        let is_open = match &judged.run {
            Some(Verdict::Compared(comparison)) => !comparison.agrees(),
            // A proof decides, because tract may be wrong instead of the model.
            Some(Verdict::Broken { .. } | Verdict::CouldNotVerify { .. }) | None => true,
        };
        if is_open && matches!(when, When::Auto | When::Prove | When::Each | When::Require) {
            begin("prove");
            let options = ProveOptions {
                dims: options.dims.clone(),
                ..ProveOptions::default()
            };
            judged.proof = Some(prove(original, fused, tensors, &options));
        }
        if judged.is_proved()
            && judged
                .run
                .as_ref()
                .is_some_and(|run| matches!(run, Verdict::Compared(_)))
        {
            begin("sensitivity");
            judged.sensitivity = sensitivity(runs, options, 0);
        }
        judged
    }

    fn is_proved(&self) -> bool {
        matches!(self.proof, Some(Proof::Proved { .. }))
    }

    /// The first pass that changes the function. `None` if no pass is known to change it.
    fn wrong_pass(&self) -> Option<&PassProof> {
        self.passes.iter().find(|proof| proof.is_wrong())
    }

    /// Whether running the models or proving the whole result was tried. Proofs of single passes do
    /// not count.
    pub(crate) fn was_tried(&self) -> bool {
        self.run.is_some() || self.proof.is_some()
    }

    /// Whether the result is known to compute the same function as the original.
    pub(crate) fn is_verified(&self) -> bool {
        let has_passed = self.run.as_ref().is_some_and(Verdict::passed);
        self.wrong_pass().is_none() && (self.is_proved() || has_passed)
    }

    /// The exit code.
    pub(crate) fn end(&self, when: When) -> End {
        match (&self.run, &self.proof) {
            _ if self.wrong_pass().is_some() => End::Differs,
            _ if self.is_verified() || !self.was_tried() => End::Done,
            (Some(Verdict::Compared(_) | Verdict::Broken { .. }), _)
            | (_, Some(Proof::Disproved { .. } | Proof::Invalid { .. })) => End::Differs,
            _ if when == When::Require => End::Unverified,
            _ => End::Done,
        }
    }

    /// The outcome in one word.
    pub(crate) fn word(&self) -> &'static str {
        match (&self.run, &self.proof) {
            _ if self.wrong_pass().is_some() => "differs",
            _ if self.is_proved() => "proved",
            (Some(Verdict::Compared(comparison)), _) if comparison.agrees() => "agrees",
            (Some(Verdict::Compared(_) | Verdict::Broken { .. }), _)
            | (_, Some(Proof::Disproved { .. } | Proof::Invalid { .. })) => "differs",
            _ => "not verified",
        }
    }

    /// The outcome as text, without errors, which are printed to the standard error stream.
    pub(crate) fn text(&self, paint: Paint) -> String {
        let mut text = String::new();
        if let Some(Verdict::Compared(comparison)) = &self.run {
            text += &(compared(comparison, paint) + "\n");
        }
        match self.run.as_ref().filter(|_| self.is_proved()) {
            Some(Verdict::CouldNotVerify { reason }) => {
                text += &format!("not run: {}\n", plain(reason))
            }
            Some(Verdict::Broken { reason }) => {
                text += &format!("not run, unlike the original: {}\n", plain(reason))
            }
            _ => {}
        }
        if let Some(proved) = self.proof.as_ref().and_then(|proof| proved(proof, paint)) {
            text += &(proved + "\n");
        }
        if let Some(Verdict::Compared(_)) = self.run.as_ref().filter(|_| self.is_proved()) {
            text += &match self.sensitivity {
                Some(moved) => {
                    format!(
                        "one rounding of each weight of the original moves them by {moved:.1e}\n"
                    )
                }
                None => "how far one rounding of each weight moves them could not be measured\n"
                    .to_owned(),
            };
        }
        text
    }

    /// The warning or error, with its kind. `None` after a run without warnings and errors.
    pub(crate) fn complaint(&self, when: When) -> Option<(&'static str, String)> {
        let end = self.end(when);
        let fate = if end == End::Done {
            ""
        } else {
            "; nothing was written"
        };
        let undecided = match &self.proof {
            Some(Proof::Undecided { reason }) => format!(", and it could not be proved: {reason}"),
            _ => String::new(),
        };
        let wrong_pass = self.wrong_pass().and_then(PassProof::failure);
        let line = match (&self.run, &self.proof) {
            _ if wrong_pass.is_some() => wrong_pass.unwrap_or_default(),
            _ if self.is_verified() => return None,
            (_, Some(Proof::Disproved { at, reason, .. })) => {
                format!("the folded model computes something else at `{at}`: {reason}")
            }
            (_, Some(Proof::Invalid { at, reason })) => {
                format!("the folded model is invalid at `{at}`: {reason}")
            }
            (Some(Verdict::Compared(comparison)), _) => {
                let worst = comparison.worst().map_or("", |worst| &worst.name);
                format!("the output `{worst}` differs from that of the input{undecided}")
            }
            (Some(Verdict::Broken { reason }), _) => {
                format!("the folded model is broken: {reason}")
            }
            (Some(Verdict::CouldNotVerify { reason }), _) => {
                format!("the result could not be verified: {reason}{undecided}")
            }
            (None, Some(Proof::Undecided { reason })) => {
                format!("the result could not be proved: {reason}")
            }
            (None, _) => return None,
        };
        Some((
            if end == End::Done { "warning" } else { "error" },
            line + fate,
        ))
    }
}

/// The differences of the outputs in one line.
fn compared(comparison: &Comparison, paint: Paint) -> String {
    let verdict = match comparison.agrees() {
        true => paint.text(Tone::Good, "the outputs agree"),
        false => paint.text(Tone::Bad, "the outputs differ"),
    };
    let (relative, absolute, mismatched) = comparison.worst().map_or((0.0, 0.0, 0), |worst| {
        (worst.relative, worst.absolute, worst.mismatched)
    });
    if mismatched > 0 {
        let elements = if mismatched == 1 {
            "element"
        } else {
            "elements"
        };
        return format!(
            "{verdict}: {mismatched} {elements} in being NaN, infinite, or another integer"
        );
    }
    let tolerance = comparison.tolerance;
    format!(
        "{verdict}: relative error {relative:.1e} (tolerance {tolerance:.0e}), absolute {absolute:.1e}"
    )
}

/// The proof as text, if it succeeded.
pub(crate) fn proved(proof: &Proof, paint: Paint) -> Option<String> {
    let Proof::Proved {
        points,
        bound,
        tensors,
    } = proof
    else {
        return None;
    };
    let proved = paint.text(Tone::Good, "proved to be the same function");
    let [points, tensors] = [(points, "point"), (tensors, "new tensor")]
        .map(|(&count, what)| format!("{count} {what}{}", if count == 1 { "" } else { "s" }));
    // If no random point was needed, the proof has no probability of error.
    let doubt = if *bound > 0.0 {
        format!(", wrong with p < {bound:.0e}")
    } else {
        String::new()
    };
    Some(format!("{proved}: {tensors}, {points}{doubt}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::OutputError;

    #[test]
    fn proof_line_omits_a_zero_error_bound() {
        let told = |bound| {
            proved(
                &Proof::Proved {
                    points: 1,
                    bound,
                    tensors: 2,
                },
                Paint::none(),
            )
            .unwrap()
        };
        assert_eq!(
            told(3e-9),
            "proved to be the same function: 2 new tensors, 1 point, wrong with p < 3e-9"
        );
        assert_eq!(
            told(0.0),
            "proved to be the same function: 2 new tensors, 1 point"
        );
    }

    #[test]
    fn mismatched_elements_are_reported_apart_from_the_error() {
        let told = |mismatched, relative| {
            let output = OutputError {
                name: "y".into(),
                absolute: 0.0,
                relative,
                mismatched,
            };
            compared(
                &Comparison {
                    tolerance: 1e-4,
                    outputs: vec![output],
                },
                Paint::none(),
            )
        };
        assert_eq!(
            told(0, 0.5),
            "the outputs differ: relative error 5.0e-1 (tolerance 1e-4), absolute 0.0e0"
        );
        assert_eq!(
            told(1, 0.0),
            "the outputs differ: 1 element in being NaN, infinite, or another integer"
        );
        let many = "the outputs differ: 12 elements in being NaN, infinite, or another integer";
        assert_eq!(told(12, 0.0), many);
    }
}
