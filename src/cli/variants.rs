//! What `unfold bench` measures of one model.

use std::collections::BTreeSet;

use anyhow::Result;
use unfold::bench::Variant;
use unfold::graph::Graph;
use unfold::onnx::Model;
use unfold::report;

use super::sites;

/// The model as it is and after folding, and its sites.
pub fn of(model: &Model) -> Result<(Vec<Variant>, Vec<report::Site>)> {
    let fused = unfold::fuse(model, &Default::default())?;
    let nodes = |site: &unfold::SitePlan| site.nodes.clone();
    let normalizers: BTreeSet<String> = fused.plan.sites.iter().flat_map(nodes).collect();
    let variant = |name: &str, model: &Model| Variant {
        name: name.to_owned(),
        model: model.clone(),
        normalizers: normalizers.clone(),
    };
    let variants = vec![variant("as exported", model), variant("fused", &fused.model)];
    let rows = sites::rows(&Graph::new(model)?, &fused.plan);
    let sites = rows.into_iter().map(|row| report::Site {
        name: row.site.name.clone(),
        kind: row.site.kind.name.to_owned(),
        channels: row.site.channels,
        outcome: row.outcomes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
    });
    Ok((variants, sites.collect()))
}
