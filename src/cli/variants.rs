//! The variants that `unfold bench` measures.

use anyhow::Result;
use unfold::FuseOptions;
use unfold::affine::plan::StreamPlan;
use unfold::bench::Variant;
use unfold::onnx::Model;
use unfold::passes::legalize::Target;
use unfold::report::ReportedSite;
use unfold::variants::{self, Variants};

use super::sites;

/// Their names.
pub const NAMES: [&str; 5] = ["LN twin", "as exported", "fused", "rewritten", "floor"];

/// The model with LayerNorm, as exported, after folding, with centred residual streams where that
/// changes anything, and without normalizers; and its sites.
pub fn variants(model: &Model) -> Result<(Vec<Variant>, Vec<ReportedSite>)> {
    // Folding alone; the forms of a target are in a row of their own.
    let portable = FuseOptions {
        target: Target::Portable,
        ..FuseOptions::default()
    };
    let fused = unfold::fuse(model, &portable)?;
    let lowered = fused.lowered.as_ref().unwrap_or(model);
    let rows = sites::rows(lowered, fused.plan.sites.iter())?;
    let sites = rows.into_iter().map(|row| ReportedSite {
        name: row.site.name.clone(),
        kind: row.site.kind.name.to_owned(),
        channels: row.site.channels,
        outcome: row
            .outcomes
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("; "),
    });
    let sites = sites.collect();
    let Variants {
        ln_twin,
        floor,
        mut normalizers,
    } = Variants::new(lowered)?;
    // A partly folded site may not be recognised again.
    normalizers.extend(variants::normalizers(&fused.model)?);
    let [twin, exported, folded, centred, bare] = NAMES;
    let mut named = vec![
        (twin, ln_twin),
        (exported, model.clone()),
        (folded, fused.model),
    ];
    // An option that is measured on its own.
    let rewritten = unfold::fuse(
        model,
        &FuseOptions {
            centre: true,
            ..portable
        },
    )?;
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

/// A model beside others, unchanged.
pub fn named(name: &str, model: Model) -> Result<Variant> {
    let normalizers = variants::normalizers(&model)?;
    Ok(Variant {
        name: name.to_owned(),
        model,
        normalizers,
    })
}
