//! Normalizers that are one operator, with their scale and bias among its inputs.

use crate::affine::Affine;
use crate::affine::recognize::{Family, Kind, Part, Reset, Site, View};
use crate::analysis::node_view::At;
use crate::ir::NodeId;
use crate::recipe::Numbers;
use crate::refusal::{Reason, Refusal};

/// The axes of the value along which the parameters lie.
#[derive(Clone, Copy)]
pub(super) enum Along {
    /// The last axes, as broadcasting aligns them. Operators with their parameters along the last
    /// axes may lack a bias.
    Trailing,
    /// One axis, with one parameter for each place.
    Axis(usize),
    /// One axis, and the number of groups into which its places are divided, with one parameter for
    /// each group.
    Groups(usize, usize),
}

/// An operator that normalizes and then scales and shifts.
pub(super) struct Operator {
    /// The name of the kind.
    pub kind: &'static str,
    /// The index of the input that is the scale.
    pub scale: usize,
    /// The index of the input that is the bias, if the operator can have one.
    pub bias: Option<usize>,
    /// The axes of the parameters.
    pub along: Along,
}

/// Builds the site of `node`, which computes `operator`. The parameters of the node are the affine
/// after the core.
pub(super) fn site(view: &View, node: NodeId, operator: &Operator) -> Option<Site> {
    let output = view.graph.output(node, 0)?;
    let axis = match operator.along {
        Along::Axis(axis) | Along::Groups(axis, _) => axis,
        Along::Trailing => view.facts.rank(output).unwrap_or(1) - 1,
    };
    let (post, reason) = match affine(view, node, operator) {
        Ok(affine) => {
            // Neutral parameters do not fold, but they can absorb an affine after the node, so the
            // part is kept.
            let reason = affine.is_identity().then_some(Reason::Identity);
            let part = Part {
                resets: operator.resets(view, node, affine.rank()),
                affine,
                input: output,
                output,
                nodes: vec![],
            };
            (Some(part), reason)
        }
        Err(reason) => (None, Some(reason)),
    };
    // If the extent of the value is unknown, it follows from the parameters.
    let channels = view.facts.extent(output, axis);
    let channels = channels.or_else(|| view.constants.len(view.graph.input(node, operator.scale)?));
    Some(Site {
        channels: channels.unwrap_or(0),
        axis,
        post,
        refusal: reason.map(|reason| Refusal::new(reason, view.graph.name(node))),
        ..Site::new(
            Kind::new(operator.kind, Family::Online),
            view.site_name(node),
            vec![node],
        )
    })
}

impl Operator {
    /// The resets of the parameters of a node whose affine has this rank.
    fn resets(&self, view: &View, node: NodeId, rank: usize) -> Vec<Reset> {
        let axes = match self.along {
            Along::Axis(axis) | Along::Groups(axis, _) => [axis, axis + 1],
            Along::Trailing => {
                let own = view.at(node).shape(self.scale);
                let own = own.map_or(0, |shape| shape.len());
                [rank.saturating_sub(own), rank]
            }
        };
        let scale = Reset {
            node,
            slot: self.scale,
            neutral: 1.0,
            optional: false,
            like: self.scale,
            axes,
        };
        let optional = matches!(self.along, Along::Trailing);
        let bias = self
            .bias
            .filter(|&slot| optional || view.graph.input(node, slot).is_some());
        let bias = bias.map(|slot| Reset {
            slot,
            neutral: 0.0,
            optional,
            ..scale
        });
        [scale].into_iter().chain(bias).collect()
    }
}

/// Reads the parameters of a node as an affine of its result.
fn affine(view: &View, node: NodeId, operator: &Operator) -> Result<Affine, Reason> {
    let at = view.at(node);
    let rank = at.output_rank(0)?;
    let scale = parameter(view, node, Some(operator.scale), operator.along)?;
    let scale = scale.unwrap_or_else(|| Numbers::number(1.0, rank));
    let shift = parameter(view, node, operator.bias, operator.along)?;
    let shift = shift.unwrap_or_else(|| Numbers::number(0.0, rank));
    let affine = Affine::new(scale, shift);
    if affine.is_finite() {
        Ok(affine)
    } else {
        Err(Reason::NotFinite)
    }
}

/// Reads a parameter and expands it to the axes of the result. `None` if the node does not have it.
fn parameter(
    view: &View,
    node: NodeId,
    slot: Option<usize>,
    along: Along,
) -> Result<Option<Numbers>, Reason> {
    let at = view.at(node);
    let Some(slot) = slot.filter(|&slot| at.graph.input(node, slot).is_some()) else {
        return Ok(None);
    };
    at.weight(slot)?;
    spread(&at, &at.numbers(slot)?, along).map(Some)
}

/// Expands the numbers of a parameter to the axes of the result.
fn spread(at: &At, numbers: &Numbers, along: Along) -> Result<Numbers, Reason> {
    let rank = at.output_rank(0)?;
    let (axis, groups) = match along {
        Along::Trailing => return numbers.align(rank).ok_or(Reason::UnknownShape),
        Along::Axis(axis) => (axis, None),
        Along::Groups(axis, groups) => (axis, Some(groups)),
    };
    let channels = at
        .facts
        .extent(at.output(0)?, axis)
        .ok_or(Reason::UnknownShape)?;
    let count = groups.unwrap_or(channels);
    if numbers.shape() != [count] || count == 0 || channels % count != 0 || axis >= rank {
        return Err(Reason::UnknownShape);
    }
    let repeat = channels / count;
    let mut shape = vec![1; rank];
    shape[axis] = channels;
    let each = numbers.pick(0, (0..channels).map(|channel| Some(channel / repeat)));
    each.and_then(|each| each.reshape(&shape))
        .ok_or(Reason::UnknownShape)
}
