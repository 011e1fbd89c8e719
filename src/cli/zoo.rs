//! `unfold zoo`: writes the networks of the papers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use unfold::report::{bytes, plain};
use unfold::zoo::{Entry, find};

use super::option_values::file;
use super::out;
use super::output_path::model_target;
use crate::cli::exit_code::End;
use crate::cli::usage_errors::misused;

const EXAMPLES: &str = "\
Examples:
  unfold zoo list
  unfold zoo swin-t --norm un -o swin-t.onnx
  unfold zoo vit-s.bn --seed 7 -o vit-s.onnx";

/// Writes a network of the papers at its published size, with random weights.
///
/// The topologies were written by PyTorch's exporter. `unfold bench` without a model measures them.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ZooArgs {
    /// The network; `list` shows all networks
    #[arg(value_name = "NETWORK")]
    network: String,

    /// The normalizer
    #[arg(long, value_name = "NORM")]
    norm: Option<String>,

    /// The seed of the random weights
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// The file of the model; an existing ONNX model is replaced
    #[arg(long, short, value_name = "FILE", value_parser = file())]
    output: Option<PathBuf>,
}

/// Runs the command.
pub(super) fn run(args: &ZooArgs) -> Result<End> {
    if args.network == "list" {
        out::print(&list())?;
        return Ok(End::Done);
    }
    let entry = entry(&args.network, args.norm.as_deref())?;
    let Some(output) = &args.output else {
        return Err(misused("-o FILE says where to write the model"));
    };
    let target = model_target(output)?;
    let model = entry.model(args.seed)?;
    model.save(target)?;
    let size = bytes(output.metadata()?.len());
    out::print(&(plain(&format!("{}: {}, {size}", output.display(), entry.name())) + "\n"))?;
    Ok(End::Done)
}

/// The entry of a network with a normalizer. `network` may name both, as in `swin-t.un`.
fn entry(network: &str, norm: Option<&str>) -> Result<Entry> {
    let name = norm.map_or_else(|| network.to_owned(), |norm| format!("{network}.{norm}"));
    find(&name).ok_or_else(|| unknown(&name))
}

/// The error for a name that is not in the zoo. It says whether the network or the normalizer is
/// unknown.
fn unknown(name: &str) -> anyhow::Error {
    let norms = norms();
    let (network, norm) = match name.rsplit_once('.') {
        Some((network, norm)) => (network, Some(norm)),
        None => (name, None),
    };
    let Some(has) = norms.get(network) else {
        let networks: Vec<&str> = norms.into_keys().collect();
        return misused(format!(
            "the zoo has no network `{network}`; it has {}",
            networks.join(", ")
        ));
    };
    let has = has.join(", ");
    misused(match norm {
        Some(norm) => format!("the zoo has no normalizer `{norm}` for {network}; it has {has}"),
        None => format!("--norm NORM names the normalizer of {network}: {has}"),
    })
}

/// The normalizers of each network.
fn norms() -> BTreeMap<&'static str, Vec<&'static str>> {
    let mut norms = BTreeMap::<_, Vec<_>>::new();
    Entry::all().for_each(|entry| norms.entry(entry.network()).or_default().push(entry.norm()));
    norms
}

fn list() -> String {
    norms()
        .into_iter()
        .map(|(network, norms)| format!("{network:<14}{}\n", norms.join(", ")))
        .collect()
}
