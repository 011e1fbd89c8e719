//! Branches: operators that are linear in one value and whose results are added.
//!
//! Before: `L₁(x) + L₂(x) + s·x + t + x`, where each `Lᵢ` is a convolution, a mean over windows or
//! a product with a constant matrix. After: one operator. Its weight is the sum of all weights,
//! each extended by zeros to the taps of all of them. Its bias is the sum of all biases.
//!
//! This is exact if all branches have results of equal extents and equal strides, because then the
//! zeros around the input are the same for all. The branches are merged if the one operator
//! computes no more multiplications than all branches together. Each saved addition of an element
//! counts as one multiplication.

mod mean;
mod operator;
mod read;
mod repeated;
mod row;
mod sum;
mod summand;
mod union;
mod window;

use std::cmp::Reverse;

pub(super) use mean::SubtractedMean;
pub(super) use repeated::RepeatedPart;
pub(super) use row::Factors;
use sum::Sum;
use summand::Summand;
use union::Union;

use crate::affine::recognize::{Family, Kind, Normalizer, Site, View};
use crate::hash::HashMap;
use crate::ir::{NodeId, ValueId};

/// Branches of one value.
pub(super) struct Branches;

impl Normalizer for Branches {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let sum = Sum::ending_in(view, node)?;
        let parts: Vec<Summand> = sum
            .terms
            .iter()
            .map(|&term| Summand::new(view, term))
            .collect();
        let mut refused = None;
        for (base, group) in groups(view, &parts) {
            match Union::new(view, &parts, base, &group) {
                Ok(merged) => return Some(merges(view, &sum, &parts, &merged)),
                Err(refusal) => refused = refused.or(Some(refusal)),
            }
        }
        Some(Site {
            refusal: Some(refused?),
            ..site(view, &sum, sum.nodes.clone())
        })
    }
}

/// Groups the summands that are linear in one value, with that value. Only groups of several
/// summands count, and only if one of the summands has a weight. The largest summand of a group is
/// first, because the windows of the others may lie inside its window.
fn groups(view: &View, parts: &[Summand]) -> Vec<(ValueId, Vec<usize>)> {
    let mut by_base: HashMap<ValueId, Vec<usize>> = HashMap::default();
    let mut order = vec![];
    for (place, part) in parts.iter().enumerate() {
        for base in part.bases() {
            let group = by_base.entry(base).or_default();
            if group.is_empty() {
                order.push(base);
            }
            group.push(place);
        }
    }
    let mut groups = vec![];
    for base in order {
        let Some(mut group) = by_base.remove(&base).filter(|group| group.len() > 1) else {
            continue;
        };
        group.sort_by_key(|&part| Reverse(parts[part].rank(view, base)));
        if parts[group[0]].operator(view, base).is_some() {
            groups.push((base, group));
        }
    }
    groups
}

fn site(view: &View, sum: &Sum, nodes: Vec<NodeId>) -> Site {
    Site {
        channels: 0,
        axis: 0,
        ..Site::new(
            Kind::new("branches", Family::Linear),
            view.site_name(sum.nodes[0]),
            nodes,
        )
    }
}

fn merges(view: &View, sum: &Sum, parts: &[Summand], merged: &Union) -> Site {
    let rank = view.facts.rank(sum.output).unwrap_or(0);
    let window = &merged.branch.window;
    let (replacement, refusal) = match merged.replacement(view, sum, parts) {
        Ok(replacement) => (Some(replacement), None),
        Err(refusal) => (None, Some(refusal)),
    };
    Site {
        channels: window.channels[1],
        axis: window.channel_axis(rank).unwrap_or(0),
        replacement,
        refusal,
        ..site(view, sum, merged.nodes(view, sum, parts))
    }
}
