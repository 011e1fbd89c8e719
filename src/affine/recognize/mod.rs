//! Recognition of normalizers, in the forms of all exporters.
//!
//! A kind is one file with a [`Normalizer`], and one line in [`KINDS`]. The kind matters only for
//! recognition. Afterwards a site is an affine, a core, and another affine.

#[cfg(all(test, feature = "cli"))]
#[path = "../../../docs/examples/extending/affine/recognize/act_norm.rs"]
pub(crate) mod act_norm;
pub(crate) mod affine_chain;
mod attention_scale;
pub(crate) mod batch_invariant;
mod batch_norm;
mod bias;
mod bias_norm;
mod bounded;
mod bounds;
pub(crate) mod decomposed_norm;
mod dynamic_erf;
mod dynamic_sigmoid;
mod dynamic_softsign;
mod dynamic_tanh;
mod dynamic_token;
mod formula;
mod fusible;
mod gated_residual;
mod group_norm;
pub(crate) mod hard_swish;
mod instance_norm;
mod kind;
pub(crate) mod layer_norm;
mod layer_scale;
mod linear_branches;
mod mabn;
mod narrowing;
pub(crate) mod online;
pub(crate) mod opaque;
mod parameters;
mod per_channel;
mod pointwise;
mod power_norm;
mod ramp;
mod region;
mod rep_bn;
mod residual_scale;
mod rms_norm;
mod scalar;
mod scale_norm;
mod shift;
mod site;
mod soft_capping;
mod standardisation;
mod switchable_norm;
mod unified_norm;
mod view;
mod wrapped;

use crate::affine::recognize::affine_chain::Chain;
use crate::hash::HashMap;
use crate::ir::NodeId;
use crate::ir::node_set::NodeSet;
use opaque::Opaque;

pub use kind::{Family, Kind};
use site::width;
pub(crate) use site::{Part, Replacement, Reset, Site};
pub(crate) use view::View;

/// The kinds, the most specific first. The first kind that matches a node wins.
pub(crate) const KINDS: &[&dyn Normalizer] = &[
    &dynamic_token::DynamicToken,
    &switchable_norm::SwitchableNorm,
    &dynamic_tanh::DynamicTanh,
    &dynamic_sigmoid::DynamicSigmoid,
    &dynamic_softsign::DynamicSoftsign,
    &dynamic_erf::DynamicErf,
    &soft_capping::SoftCapping,
    &hard_swish::HardSwish,
    &gated_residual::GatedResidual,
    &ramp::Ramp,
    &power_norm::PowerNorm,
    &group_norm::GroupNorm,
    &layer_norm::LayerNorm,
    &rms_norm::RmsNorm,
    &instance_norm::InstanceNorm,
    &scale_norm::ScaleNorm,
    &linear_branches::Branches,
    &linear_branches::Factors,
    &linear_branches::RepeatedPart,
    &bias_norm::BiasNorm,
    &rep_bn::RepBn,
    &mabn::Mabn,
    &unified_norm::UnifiedNorm,
    &batch_norm::BatchNorm,
    &bounded::AnyBounded,
    &attention_scale::AttentionScale,
    &standardisation::Standardisation,
    &layer_scale::LayerScale,
    &residual_scale::ResidualScale,
    &per_channel::PerChannel,
    &scalar::Scalar,
    &bias::Bias,
    &shift::Shift,
    &linear_branches::SubtractedMean,
];

/// The recognizer of a kind.
pub(crate) trait Normalizer: Sync {
    /// The site that ends in this node. `None` if the node is not of this kind.
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site>;

    /// The names of classes, modules and functions of this kind, in lower case. A chain matches if
    /// one of its words begins with one of these names. A function matches if its name contains one
    /// of them.
    fn names(&self) -> &'static [&'static str] {
        &[]
    }

    /// Names of this kind that are so short that a function must have exactly this name.
    fn short_names(&self) -> &'static [&'static str] {
        &[]
    }

    /// Operators of custom domains that are normalizers of this kind.
    fn opaque(&self) -> &'static [Opaque] {
        &[]
    }
}

/// The word in the names of most normalizers.
const NORM: &str = "norm";

/// Whether a function with this name is a normalizer. The name consists of letters and digits in
/// lower case.
pub(crate) fn is_named(name: &str) -> bool {
    name.contains(NORM) || KINDS.iter().any(|&kind| names_kind(name, kind))
}

/// Whether a function with this name is a normalizer of this kind.
fn names_kind(name: &str, kind: &dyn Normalizer) -> bool {
    kind.short_names().contains(&name) || kind.names().iter().any(|part| name.contains(part))
}

/// Finds every site, in execution order. No node belongs to two sites.
pub(crate) fn find(view: &View) -> Vec<Site> {
    let graph = view.graph;
    // A node whose outputs are all constant is never part of a site.
    let order = graph.order().iter().copied();
    let varying: Vec<NodeId> = order.filter(|&node| varies(view, node)).collect();
    let mut taken = NodeSet::none_of(graph.order().len());
    // The sites are boxed, because a growing list of sites would be moved again and again.
    let mut sites: Vec<Box<Site>> = vec![];
    for kind in KINDS {
        for &node in &varying {
            if taken.contains(node) {
                continue;
            }
            let Some(site) = kind.recognize(view, node) else {
                continue;
            };
            if site.nodes.iter().any(|&node| taken.contains(node)) {
                continue;
            }
            taken.extend(site.nodes.iter().copied());
            sites.push(Box::new(site));
        }
    }
    sites.sort_by_cached_key(|site| site.nodes.iter().map(|&node| graph.place(node)).min());
    let mut sites: Vec<Site> = sites.into_iter().map(|site| *site).collect();
    sites
        .iter_mut()
        .for_each(|site| wrapped::widen(view, site, &mut taken));
    unique_names(&mut sites);
    sites
}

/// Whether an output of a node is not a constant.
fn varies(view: &View, node: NodeId) -> bool {
    let mut outputs = view.graph.outputs(node).iter().flatten();
    outputs.any(|&output| !view.constants.is_constant(output))
}

/// Makes the names of sites unique: appends a number to each repetition of a name.
fn unique_names(sites: &mut [Site]) {
    let mut seen = HashMap::<String, usize>::default();
    for site in sites {
        let count = seen.entry(site.name.clone()).or_default();
        *count += 1;
        if *count > 1 {
            site.name = format!("{}#{count}", site.name);
        }
    }
}

#[cfg(test)]
mod tests;
