//! What `unfold bench` measures of one model.

use anyhow::Result;
use unfold::bench::Variant;
use unfold::graph::Graph;
use unfold::onnx::Model;
use unfold::{report, variants};

use super::sites;

/// The model with LayerNorm, as it is, after folding, and without normalizers; and its sites.
pub fn of(model: &Model) -> Result<(Vec<Variant>, Vec<report::Site>)> {
    let fused = unfold::fuse(model, &Default::default())?;
    let exported = variants::normalizers(model)?;
    let variant = |name: &str, model: &Model| -> Result<Variant> {
        // What is left of a folded site may not be recognised as one any more.
        let normalizers = exported.iter().cloned().chain(variants::normalizers(model)?).collect();
        Ok(Variant { name: name.to_owned(), model: model.clone(), normalizers })
    };
    let all = vec![
        variant("LN twin", &variants::ln_twin(model)?)?,
        variant("as exported", model)?,
        variant("fused", &fused.model)?,
        variant("floor", &variants::floor(model)?)?,
    ];
    let rows = sites::rows(&Graph::new(fused.lowered.as_ref().unwrap_or(model))?, &fused.plan);
    let sites = rows.into_iter().map(|row| report::Site {
        name: row.site.name.clone(),
        kind: row.site.kind.name.to_owned(),
        channels: row.site.channels,
        outcome: row.outcomes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
    });
    Ok((all, sites.collect()))
}
