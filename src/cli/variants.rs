//! What `unfold bench` measures of models.

use anyhow::Result;
use unfold::FuseOptions;
use unfold::bench::Variant;
use unfold::fold::plan::StreamPlan;
use unfold::fold::target::Target;
use unfold::onnx::Model;
use unfold::report::ReportedSite;
use unfold::variants::{self, Variants};

use super::sites;

/// What they are called.
pub const NAMES: [&str; 5] = ["LN twin", "as exported", "fused", "rewritten", "floor"];

/// The model with LayerNorm, as it is, after folding, with centred residual streams where that changes anything, and
/// without normalizers; and its sites.
pub fn of(model: &Model) -> Result<(Vec<Variant>, Vec<ReportedSite>)> {
    // Folding alone; the forms of a target are in a row of their own.
    let portable = FuseOptions { target: Target::Portable, ..FuseOptions::default() };
    let fused = unfold::fuse(model, &portable)?;
    let lowered = fused.lowered.as_ref().unwrap_or(model);
    let rows = sites::rows(lowered, fused.plan.sites.iter())?;
    let sites = rows.into_iter().map(|row| ReportedSite {
        name: row.site.name.clone(),
        kind: row.site.kind.name.to_owned(),
        channels: row.site.channels,
        outcome: row.outcomes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
    });
    let sites = sites.collect();
    let Variants { ln_twin, floor, mut normalizers } = Variants::of(lowered)?;
    // What is left of a folded site may not be recognised as one any more.
    normalizers.extend(variants::normalizers(&fused.model)?);
    let [twin, exported, folded, centred, bare] = NAMES;
    let mut named = vec![(twin, ln_twin), (exported, model.clone()), (folded, fused.model)];
    // What is done where it is asked for alone.
    let rewritten = unfold::fuse(model, &FuseOptions { centre: true, ..portable })?;
    if rewritten.plan.streams.iter().any(StreamPlan::is_changed) {
        normalizers.extend(variants::normalizers(&rewritten.model)?);
        named.push((centred, rewritten.model));
    }
    named.push((bare, floor));
    let variant = |(name, model): (&str, Model)| Variant {
        name: name.to_owned(),
        model,
        normalizers: normalizers.clone(),
    };
    Ok((named.into_iter().map(variant).collect(), sites))
}

/// A model as it is, beside others.
pub fn named(name: &str, model: Model) -> Result<Variant> {
    let normalizers = variants::normalizers(&model)?;
    Ok(Variant { name: name.to_owned(), model, normalizers })
}
