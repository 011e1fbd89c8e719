//! Normalizers that are one operator, with their scale and bias among its inputs.

use crate::affine::Affine;
use crate::affine::recognize::{Family, Kind, Part, Reset, Site, View};
use crate::ir::NodeId;
use crate::recipe::Numbers;
use crate::refusal::{Reason, Refusal};

/// Along which axes of the value the parameters lie.
#[derive(Clone, Copy)]
pub enum Along {
    /// The last ones, as broadcasting aligns them; operators that have it so do without a bias.
    Trailing,
    /// One axis, the parameters counting its places.
    Axis(usize),
    /// One axis, the parameters counting that many groups of its places.
    Groups(usize, usize),
}

/// An operator that normalizes and then scales and shifts.
pub struct Operator {
    /// Name of the kind.
    pub kind: &'static str,
    /// The input that scales.
    pub scale: usize,
    /// The input that shifts, where the operator has one.
    pub bias: Option<usize>,
    /// Where they lie.
    pub along: Along,
}

/// The site of such an operator: its parameters are the affine behind it.
pub fn site(view: &View, node: NodeId, operator: &Operator) -> Option<Site> {
    let output = view.graph.output(node, 0)?;
    let rank = view.facts.rank(output);
    let axis = match (operator.along, rank) {
        (Along::Axis(axis) | Along::Groups(axis, _), _) => axis,
        (Along::Trailing, rank) => rank.unwrap_or(1) - 1,
    };
    let (post, refusal) = match affine(view, node, operator) {
        // An identity leaves room for the affine behind it.
        Ok(affine) => {
            let axes = match operator.along {
                Along::Axis(axis) | Along::Groups(axis, _) => [axis, axis + 1],
                Along::Trailing => {
                    let given = view
                        .at(node)
                        .shape(operator.scale)
                        .map_or(0, |shape| shape.len());
                    [affine.rank().saturating_sub(given), affine.rank()]
                }
            };
            let reset = |slot, neutral, optional| Reset {
                node,
                slot,
                neutral,
                optional,
                like: operator.scale,
                axes,
            };
            let optional = matches!(operator.along, Along::Trailing);
            let bias = operator
                .bias
                .filter(|&slot| optional || view.graph.input(node, slot).is_some());
            let shift = bias.map(|slot| reset(slot, 0.0, optional));
            let resets = [reset(operator.scale, 1.0, false)]
                .into_iter()
                .chain(shift)
                .collect();
            let refusal = affine.is_identity().then_some(Reason::Identity);
            (
                Some(Part {
                    affine,
                    input: output,
                    output,
                    nodes: vec![],
                    resets,
                }),
                refusal,
            )
        }
        Err(reason) => (None, Some(reason)),
    };
    // Where nothing else is known of a value, its parameters say how wide it is.
    let given = || view.constants.len(view.graph.input(node, operator.scale)?);
    Some(Site {
        kind: Kind::new(operator.kind, Family::Online),
        name: view.site_name(node),
        channels: view.facts.extent(output, axis).or_else(given).unwrap_or(0),
        axis,
        nodes: vec![node],
        pre: None,
        post,
        replacement: None,
        core: None,
        refusal: refusal.map(|reason| Refusal::new(reason, view.graph.name(node))),
    })
}

fn affine(view: &View, node: NodeId, operator: &Operator) -> Result<Affine, Reason> {
    let at = view.at(node);
    let rank = at.output_rank(0)?;
    let read = |slot: usize, neutral: f64| -> Result<Numbers, Reason> {
        if at.graph.input(node, slot).is_none() {
            return Ok(Numbers::number(neutral, rank));
        }
        at.weight(slot)?;
        spread(view, node, &at.numbers(slot)?, operator.along, rank)
    };
    let scale = read(operator.scale, 1.0)?;
    let shift = operator
        .bias
        .map_or_else(|| Ok(Numbers::number(0.0, rank)), |slot| read(slot, 0.0))?;
    let affine = Affine::new(scale, shift);
    if affine.is_finite() {
        Ok(affine)
    } else {
        Err(Reason::NotFinite)
    }
}

fn spread(
    view: &View,
    node: NodeId,
    numbers: &Numbers,
    along: Along,
    rank: usize,
) -> Result<Numbers, Reason> {
    let (axis, groups) = match along {
        Along::Trailing => return numbers.align(rank).ok_or(Reason::UnknownShape),
        Along::Axis(axis) => (axis, None),
        Along::Groups(axis, groups) => (axis, Some(groups)),
    };
    let output = view.at(node).output(0)?;
    let channels = view
        .facts
        .extent(output, axis)
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
