//! `unfold prove`: decides whether a folded model is the same function as its original.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde::Serialize;
use unfold::affine::plan::{ConstantNorm, Stored};
use unfold::certificate::Certificate;
use unfold::ir::Graph;
use unfold::onnx::{Digests, Model};
use unfold::prove::{Proof, ProveOptions, prove};
use unfold::provenance::Provenance;
use unfold::run::Dims;
use unfold::{FuseOptions, Fused};

use super::constant_norms::{self, taken_as_constant};
use super::inputs::sizes;
use super::out::{self, Paint};
use super::path::JsonPath;
use super::steps::Steps;
use super::storage::ReachArgs;
use super::values::file;
use crate::cli::exit_code::{EXIT_CODES, End};
use crate::cli::verification::proved;

const EXAMPLES: &str = "\
Examples:
  unfold prove model.onnx fused.onnx
  unfold prove model.onnx fused.onnx --certificate fused.json
  unfold prove model.onnx fused.onnx --constant-norms
  unfold prove model.onnx fused.onnx --dim batch=1 --points 3 --seed 7
  unfold prove model.onnx fused.onnx --json | jq .proof.verdict";

/// Proves that a folded model is the same function as its original, or that it is not.
///
/// Each new tensor is computed again and compared bit for bit, and every other tensor must equal
/// the original's. Both graphs are evaluated exactly, in a finite field, at random points. No
/// engine runs, and there is no tolerance. Without a certificate, the original is planned again
/// with the options that the folded model names.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub struct ProveArgs {
    /// The original model
    #[arg(value_parser = file())]
    original: PathBuf,

    /// The folded model
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
struct ProveJson<'j> {
    original: JsonPath<'j>,
    fused: JsonPath<'j>,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate: Option<JsonPath<'j>>,
    proof: &'j Proof,
    /// The normalizers that are taken as constant, if any.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    constant: &'j [&'j ConstantNorm],
    /// The name of the site that causes the difference.
    #[serde(skip_serializing_if = "Option::is_none")]
    site: Option<&'j str>,
}

/// Runs the command.
pub fn run(args: &ProveArgs) -> Result<End> {
    let steps = Steps::new("prove", args.quiet);
    steps.begin("load");
    let (original, fused) = (
        args.reach.open(&args.original)?,
        args.reach.open(&args.fused)?,
    );
    let dims = sizes(&args.dims, &original)?;
    // An invalid model is an error, and not another function.
    for model in [&original, &fused] {
        Graph::new(model)?;
    }
    steps.begin("formulas");
    let Claim { tensors, sites } = match &args.certificate {
        Some(file) => Claim::certified(file, &original, &fused)?,
        None => Claim::planned(&original, &fused)?,
    };
    steps.begin("prove");
    let options = ProveOptions {
        dims,
        points: args.points.into(),
        seed: args.seed,
    };
    let assumed = args.assumed(&original, &fused)?;
    let begins = assumed.as_ref().map_or(&original, |assumed| &assumed.model);
    let proof = prove(begins, &fused, &tensors, &options);
    let constant = assumed
        .as_ref()
        .map(|assumed| taken_as_constant(&assumed.plan))
        .unwrap_or_default();
    drop(steps);
    let site = match &proof {
        Proof::Disproved {
            site: Some(site), ..
        } => sites.get(*site).map(String::as_str),
        _ => None,
    };
    if args.json {
        let json = ProveJson {
            original: JsonPath(&args.original),
            fused: JsonPath(&args.fused),
            certificate: args.certificate.as_deref().map(JsonPath),
            proof: &proof,
            constant: &constant,
            site,
        };
        out::print(&out::json(&json)?)?;
    } else if let Some(line) = proved(&proof, Paint::stdout()).filter(|_| !args.quiet) {
        out::print(&(line + "\n" + &constant_norms::assumed(&constant)))?;
    }
    end(&proof, &args.fused, site)
}

impl ProveArgs {
    /// The original with its constant normalizers, where they are to be taken as such.
    fn assumed(&self, original: &Model, fused: &Model) -> Result<Option<Fused>> {
        if !self.constant_norms {
            return Ok(None);
        }
        let last = Provenance::from_model(fused).pop();
        let options = last.map(|time| time.options).unwrap_or_default();
        let assumed = unfold::with_constant_norms(original, &options.into())?;
        Ok(Some(assumed))
    }
}

/// The exit code of a proof. Any other verdict than `proved` is printed as an error.
fn end(proof: &Proof, fused: &Path, site: Option<&str>) -> Result<End> {
    let fused = fused.display();
    let (end, line) = match proof {
        Proof::Proved { .. } => return Ok(End::Done),
        Proof::Invalid { at, reason } => bail!("{fused} is no valid model, at `{at}`: {reason}"),
        Proof::Disproved { at, reason, .. } => {
            let site = site.map_or_else(String::new, |site| format!(" (for the site {site})"));
            let line = format!("{fused} computes something else at `{at}`{site}: {reason}");
            (End::Differs, line)
        }
        Proof::Undecided { reason } => {
            let line = format!("{fused}: it could not be decided: {reason}");
            (End::Unverified, line)
        }
    };
    out::complain("error", &line);
    Ok(end)
}

/// The claim to prove.
pub struct Claim {
    pub tensors: Vec<Stored>,
    /// The names of the sites.
    pub sites: Vec<String>,
}

impl Claim {
    /// The claim of a certificate for these two models.
    pub fn certified(file: &Path, original: &Model, fused: &Model) -> Result<Self> {
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

    /// The claim that results from folding the original again.
    pub fn planned(original: &Model, fused: &Model) -> Result<Self> {
        let history = Provenance::from_model(fused);
        let from = original.sha256()?;
        let own = history
            .iter()
            .rposition(|time| from.is_some() && time.original.as_deref() == from);
        if own.is_some_and(|own| own + 1 < history.len()) {
            bail!(
                "{} was folded again after it was folded from {}: each time has to be proved by itself",
                shown(fused),
                shown(original)
            );
        }
        let options = history
            .into_iter()
            .next_back()
            .map(|time| time.options)
            .unwrap_or_default();
        let plan = unfold::plan(original, &FuseOptions::from(options))?;
        let sites = plan.sites.into_iter().map(|site| site.name).collect();
        Ok(Self {
            tensors: plan.tensors,
            sites,
        })
    }
}

fn shown(model: &Model) -> std::path::Display<'_> {
    model.path().unwrap_or(Path::new("the model")).display()
}

/// The name of the first file whose digest differs.
fn other_file(found: &Digests, expected: &Digests) -> Option<String> {
    if found.sha256 != expected.sha256 {
        return Some("SHA-256".to_owned());
    }
    let mut names = found.data.keys().chain(expected.data.keys());
    names
        .find(|&name| found.data.get(name) != expected.data.get(name))
        .map(|name| format!("the data file `{name}`"))
}
