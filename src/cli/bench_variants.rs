//! The variants that `unfold bench` measures.

use std::collections::BTreeSet;

use anyhow::Result;
use unfold::Target;
use unfold::baselines::{self, Baselines};
use unfold::bench::Variant;
use unfold::onnx::Model;
use unfold::report::ReportedSite;
use unfold::{FuseOptions, Fused, MemoryGoal, Slicing};

use super::sites::{self, AffineOutcome, Row};

const LN_TWIN: &str = "LN twin";
const AS_EXPORTED: &str = "as exported";
const FUSED: &str = "fused";
const PORTABLE: &str = "portable";
const FLOOR: &str = "floor";
const SLICED: &str = "sliced";

/// The names of the variants that `unfold bench` measures of each network of the zoo.
pub(crate) const NAMES: [&str; 5] = [LN_TWIN, AS_EXPORTED, FUSED, PORTABLE, FLOOR];

/// The definitions of the variants, for the help text.
pub(crate) const DEFINITIONS: &str = "\
Baselines of a model:
  LN twin      with a LayerNorm in place of every other normalizer
  as exported  the file
  fused        the result of `unfold fuse`, by default with `--target cpu`
  portable     the result with `--target portable`, where that is another model
  floor        the file without its normalizers, to show their cost
  sliced       the result with `--memory min`, if that cuts anything; only for a single model";

/// A sentence of the report that defines the variants. `None` if several models are compared,
/// because the definitions do not apply to them.
pub(crate) fn defined(variants: &[Variant]) -> Option<String> {
    let has = |name: &str| variants.iter().any(|variant| variant.name == name);
    if !has(LN_TWIN) || !has(FLOOR) {
        return None;
    }
    let portable = if has(PORTABLE) {
        "; portable is that with --target portable"
    } else {
        ""
    };
    let sliced = if has(SLICED) {
        "; sliced is that with --memory min"
    } else {
        ""
    };
    let target = Target::default();
    Some(format!(
        "{LN_TWIN} has a LayerNorm in place of every other normalizer; {FUSED} is the result of `unfold \
         fuse`, --target {target}{portable}{sliced}; {FLOOR} is the file without its normalizers."
    ))
}

/// The variants of a model, and its sites. The variants are the model with LayerNorm in place of
/// its normalizers, the model as exported, folded for the default target, folded with `--target
/// portable` if that gives another model, and without normalizers.
pub(crate) fn variants(model: &Model) -> Result<(Vec<Variant>, Vec<ReportedSite>)> {
    let fused = unfold::fuse(model, &FuseOptions::default())?;
    let portable = unfold::fuse(
        model,
        &FuseOptions {
            target: Target::Portable,
            ..FuseOptions::default()
        },
    )?;
    let lowered = fused.lowered.as_ref().unwrap_or(model);
    let sites = reported_sites(lowered, &fused)?;
    let Baselines {
        ln_twin,
        floor,
        mut normalizers,
    } = Baselines::new(lowered)?;
    // The normalizers of a partly folded site may not be recognized in the original, so the
    // normalizers that are recognized in the results are added.
    normalizers.extend(baselines::normalizers(&fused.model)?);
    normalizers.extend(baselines::normalizers(&portable.model)?);
    let mut all = vec![
        variant(LN_TWIN, ln_twin, &normalizers),
        variant(AS_EXPORTED, model.clone(), &normalizers),
    ];
    let is_another = fused.model.graph().node != portable.model.graph().node;
    all.push(variant(FUSED, fused.model, &normalizers));
    if is_another {
        all.push(variant(PORTABLE, portable.model, &normalizers));
    }
    all.push(variant(FLOOR, floor, &normalizers));
    Ok((all, sites))
}

/// The folded model, sliced to the lowest peak of memory that slicing reaches. `None` if nothing is
/// cut.
pub(crate) fn sliced(model: &Model) -> Result<Option<Variant>> {
    let options = FuseOptions {
        slicing: Slicing {
            memory: Some(MemoryGoal::Min),
            ..Slicing::default()
        },
        ..FuseOptions::default()
    };
    let fused = unfold::fuse(model, &options)?;
    let memory = fused.plan.memory.as_ref();
    if memory.is_none_or(|memory| memory.cuts.is_empty()) {
        return Ok(None);
    }
    named(SLICED, fused.model).map(Some)
}

/// The sites of a model with their outcomes.
fn reported_sites(lowered: &Model, fused: &Fused) -> Result<Vec<ReportedSite>> {
    let rows = sites::rows(lowered, fused.plan.sites.iter())?;
    Ok(rows.iter().map(reported).collect())
}

fn reported(row: &Row) -> ReportedSite {
    let outcomes: Vec<String> = row.outcomes.iter().map(AffineOutcome::to_string).collect();
    ReportedSite {
        name: row.site.name.clone(),
        kind: row.site.kind.name.to_owned(),
        channels: row.site.channels,
        outcome: outcomes.join("; "),
    }
}

fn variant(name: &str, model: Model, normalizers: &BTreeSet<String>) -> Variant {
    Variant {
        name: name.to_owned(),
        model,
        normalizers: normalizers.clone(),
    }
}

/// Makes the given model a variant with this name.
pub(crate) fn named(name: &str, model: Model) -> Result<Variant> {
    let normalizers = baselines::normalizers(&model)?;
    Ok(variant(name, model, &normalizers))
}
