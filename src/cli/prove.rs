//! `unfold prove`: decides whether two models are the same function.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail};
use serde::Serialize;
use unfold::Fused;
use unfold::certificate::Certificate;
use unfold::claim::Claim;
use unfold::ir::Graph;
use unfold::judge::{Judgement, judge};
use unfold::onnx::{Digests, Model};
use unfold::plan::ConstantNorm;
use unfold::prove::{Proof, ProveOptions, prove};
use unfold::provenance::Provenance;
use unfold::run::Dims;

use super::constant_norms::{self, taken_as_constant};
use super::inputs::sizes;
use super::junit::{self, JunitCase};
use super::option_values::file;
use super::out::{self, Paint};
use super::path::JsonPath;
use super::progress_bar::StepProgress;
use super::storage::ReachArgs;
use super::verdicts::{self, Accepted, JudgedModel};
use crate::cli::exit_code::{EXIT_CODES, End};
use crate::cli::verification::proved;

const EXAMPLES: &str = "\
Examples:
  unfold prove model.onnx fused.onnx
  unfold prove model.onnx fused.onnx --certificate fused.json
  unfold prove model.onnx fused.onnx --constant-norms
  unfold prove model.onnx fused.onnx --dim batch=1 --points 3 --seed 7
  unfold prove model.onnx simplified.onnx --accept rounding --witness input.npz
  unfold prove model.onnx simplified.onnx --junit report.xml
  unfold prove model.onnx fused.onnx --json | jq .proof.verdict";

/// Proves that two models are the same function, or shows an input on which they differ.
///
/// Both graphs are evaluated exactly, in a finite field, at random points: no engine runs, and there is no tolerance. A
/// tensor that the second model alone has counts as the numbers that it holds, or as a formula over the first model's
/// tensors that gives these numbers up to its own rounding. A model that unfold folded from the first one is planned
/// again, with the options that it names, and each new tensor is compared bit for bit, as it is with a certificate.
/// Where there is no proof, both models run on random inputs.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(crate) struct ProveArgs {
    /// The first model
    #[arg(value_parser = file())]
    original: PathBuf,

    /// The other model, such as what the first one was folded or simplified to
    #[arg(value_parser = file())]
    fused: PathBuf,

    /// The file from `unfold fuse --certificate`; it must belong to both models
    #[arg(long, value_name = "FILE", value_parser = file())]
    certificate: Option<PathBuf>,

    /// Size of a symbolic dimension. A dimension without a symbol is named by its input and its
    /// place, such as x:2 (may be repeated)
    #[arg(long = "dim", value_name = "NAME=SIZE")]
    dims: Vec<Dims>,

    /// The number of random points. More points are used if doubt is left. Each point makes it less
    /// likely that different models are taken for equal
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..))]
    points: u16,

    /// The seed of the random points
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Proves it for normalizers taken as constant, as `unfold fuse --constant-norms` takes them, and names these
    #[arg(long)]
    constant_norms: bool,

    /// Verdicts that end with 0, as a proof does: rounding (else 5), casts (else 6)
    #[arg(long, value_name = "VERDICT", value_delimiter = ',')]
    accept: Vec<Accepted>,

    /// Where the models differ: saves the inputs that show it, as a .npz file
    #[arg(long, value_name = "FILE")]
    witness: Option<PathBuf>,

    /// Writes the verdict as a JUnit report, which test servers show
    #[arg(long, value_name = "FILE", value_parser = file())]
    junit: Option<PathBuf>,

    #[command(flatten)]
    reach: ReachArgs,

    /// Prints JSON
    #[arg(long)]
    json: bool,

    /// Prints only errors
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct ProveJson<'j> {
    original: JsonPath<'j>,
    fused: JsonPath<'j>,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate: Option<JsonPath<'j>>,
    /// The proof that the second model is the result of folding the first one, if this proof
    /// decides the verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    proof: Option<&'j Proof>,
    /// The normalizers that are taken as constant.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    constant: &'j [&'j ConstantNorm],
    /// The name of the site that causes the difference.
    #[serde(skip_serializing_if = "Option::is_none")]
    site: Option<&'j str>,
    /// The verdict on both models, if `proof` is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    judgement: Option<&'j Judgement>,
}

/// Runs the command.
pub(crate) fn run(args: &ProveArgs) -> Result<End> {
    let begin = Instant::now();
    let steps = StepProgress::new("prove", args.quiet);
    steps.begin("load");
    let (original, fused) = (
        args.reach.open(&args.original)?,
        args.reach.open(&args.fused)?,
    );
    let options = ProveOptions {
        dims: sizes("--dim", &args.dims, &original)?,
        points: args.points.into(),
        seed: args.seed,
    };
    // An invalid model is reported as an error, not as a different function.
    for model in [&original, &fused] {
        Graph::new(model)?;
    }
    steps.begin("formulas");
    let claim = args.claim(&original, &fused)?;
    steps.begin("prove");
    let assumed = args.assumed(&original, &fused)?;
    let begins = assumed.as_ref().map_or(&original, |assumed| &assumed.model);
    let proof = claim
        .as_ref()
        .map(|claim| prove(begins, &fused, &claim.tensors, &options));
    // With a certificate, only its claim is checked.
    let is_decided = args.certificate.is_some() || matches!(proof, Some(Proof::Proved { .. }));
    let outcome = match proof.filter(|_| is_decided) {
        Some(proof) => {
            ProveOutcome::Claim(proof, claim.map(|claim| claim.sites).unwrap_or_default())
        }
        None => ProveOutcome::Judged(judge(begins, &fused, &options)),
    };
    let constant = assumed
        .as_ref()
        .map(|assumed| taken_as_constant(&assumed.plan))
        .unwrap_or_default();
    drop(steps);
    if args.json {
        out::print(&out::json(&outcome.json(args, &constant))?)?;
    } else if let Some(line) = outcome.success().filter(|_| !args.quiet) {
        out::print(&(line + "\n" + &constant_norms::assumed(&constant)))?;
    }
    let end = outcome.end(args)?;
    if let Some(file) = &args.junit {
        let message = outcome.message();
        let case = JunitCase {
            class: args.original.display().to_string(),
            name: args.fused.display().to_string(),
            time: begin.elapsed(),
            failure: (end != End::Done).then_some((end.name(), &message)),
        };
        junit::write(file, &case)?;
    }
    Ok(end)
}

impl ProveArgs {
    /// The original, with its constant normalizers replaced by constants. `None` without
    /// `--constant-norms`.
    fn assumed(&self, original: &Model, fused: &Model) -> Result<Option<Fused>> {
        if !self.constant_norms {
            return Ok(None);
        }
        let last = Provenance::from_model(fused).pop();
        let options = last.map(|time| time.options).unwrap_or_default();
        let assumed = unfold::with_constant_norms(original, &options.into())?;
        Ok(Some(assumed))
    }

    /// The second model, with the options for the verdict on it.
    fn judged(&self) -> JudgedModel<'_> {
        JudgedModel {
            path: &self.fused,
            accept: &self.accept,
            witness: self.witness.as_deref(),
            advice: "--witness FILE.npz saves the inputs that show it",
        }
    }

    /// The claim of the certificate, if there is one. Otherwise the claim that the second model is
    /// the result of folding the original, if it records a run of unfold or is a copy of the
    /// original. `None` for other models.
    fn claim(&self, original: &Model, fused: &Model) -> Result<Option<Claim>> {
        match &self.certificate {
            Some(file) => Claim::certified(file, original, fused).map(Some),
            None if original.is_identical(fused) => Ok(Some(Claim::default())),
            None if Provenance::from_model(fused).is_empty() => Ok(None),
            None => Claim::planned(original, fused).map(Some),
        }
    }
}

/// The result of the command.
enum ProveOutcome {
    /// The proof of a claim, and the names of the claim's sites.
    Claim(Proof, Vec<String>),
    Judged(Judgement),
}

impl ProveOutcome {
    fn json<'j>(&'j self, args: &'j ProveArgs, constant: &'j [&'j ConstantNorm]) -> ProveJson<'j> {
        let (proof, judgement) = match self {
            Self::Claim(proof, _) => (Some(proof), None),
            Self::Judged(judgement) => (None, Some(judgement)),
        };
        ProveJson {
            original: JsonPath(&args.original),
            fused: JsonPath(&args.fused),
            certificate: args.certificate.as_deref().map(JsonPath),
            proof,
            constant,
            site: self.site(),
            judgement,
        }
    }

    /// The name of the site because of which a claim is disproved. `None` if the claim is not
    /// disproved, or if the site is unknown.
    fn site(&self) -> Option<&str> {
        match self {
            Self::Claim(Proof::Disproved { site, .. }, sites) => {
                sites.get((*site)?).map(String::as_str)
            }
            _ => None,
        }
    }

    /// The line to print about a successful proof. `None` if there is no proof.
    fn success(&self) -> Option<String> {
        match self {
            Self::Claim(proof, _) => proved(proof, Paint::stdout()),
            Self::Judged(judgement) => verdicts::success(judgement, Paint::stdout()),
        }
    }

    /// The verdict in a sentence about the second model.
    fn message(&self) -> String {
        if let Some(line) = self.success() {
            return line;
        }
        match self {
            Self::Judged(judgement) => verdicts::failure(judgement),
            Self::Claim(Proof::Disproved { at, reason, .. }, _) => {
                let site = self.site().map(|site| format!(" (for the site {site})"));
                let site = site.unwrap_or_default();
                format!("computes something else at `{at}`{site}: {reason}")
            }
            Self::Claim(Proof::Undecided { reason }, _) => {
                format!("it could not be decided: {reason}")
            }
            Self::Claim(_, _) => String::new(),
        }
    }

    /// The exit code. Prints an error if the models differ or the verdict is undecided.
    fn end(&self, args: &ProveArgs) -> Result<End> {
        let fused = args.fused.display();
        let (end, line) = match self {
            Self::Judged(judgement) => return verdicts::end(judgement, &args.judged()),
            Self::Claim(Proof::Proved { .. }, _) => return Ok(End::Done),
            Self::Claim(Proof::Invalid { at, reason }, _) => {
                bail!("{fused} is no valid model, at `{at}`: {reason}")
            }
            Self::Claim(Proof::Disproved { .. }, _) => {
                (End::Differs, format!("{fused} {}", self.message()))
            }
            Self::Claim(Proof::Undecided { .. }, _) => {
                (End::Unverified, format!("{fused}: {}", self.message()))
            }
        };
        out::complain("error", &line);
        Ok(end)
    }
}

impl Claim {
    /// The claim of a certificate for these two models.
    pub(crate) fn certified(file: &Path, original: &Model, fused: &Model) -> Result<Self> {
        let certificate = Certificate::open(file)?;
        for (model, digests) in [
            (original, &certificate.original),
            (fused, &certificate.fused),
        ] {
            if let Some(other) = other_file(&model.digests()?, digests) {
                bail!(
                    "{}: the certificate is for other files: {other} of {} differs",
                    file.display(),
                    shown(model)
                );
            }
        }
        let sites = certificate
            .sites
            .into_iter()
            .map(|site| site.name)
            .collect();
        Ok(Self {
            tensors: certificate.tensors,
            sites,
        })
    }

    /// The claim with the tensors that folding the original again, with the recorded options, would
    /// compute.
    pub(crate) fn planned(original: &Model, fused: &Model) -> Result<Self> {
        let Some(claim) = Claim::recorded(original, fused)? else {
            bail!(
                "{} was folded again after it was folded from {}: each time has to be proved by itself",
                shown(fused),
                shown(original)
            );
        };
        Ok(claim)
    }
}

fn shown(model: &Model) -> std::path::Display<'_> {
    model.path().unwrap_or(Path::new("the model")).display()
}

/// The name of the first external data file whose digest differs, or `SHA-256` if the digest of the
/// model itself differs. `None` if no digest differs.
fn other_file(found: &Digests, expected: &Digests) -> Option<String> {
    if found.sha256 != expected.sha256 {
        return Some("SHA-256".to_owned());
    }
    let mut names = found.data.keys().chain(expected.data.keys());
    names
        .find(|&name| found.data.get(name) != expected.data.get(name))
        .map(|name| format!("the data file `{name}`"))
}
