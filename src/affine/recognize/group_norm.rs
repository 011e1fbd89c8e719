//! GN: statistics over the places of groups of channels, as one operator or written out.
//!
//! Exporters reshape `[N, C, ...]` to `[N, G, -1]`, normalize the groups without an affine, by
//! InstanceNormalization or by means, and reshape the result back. Then γ and β of the channels
//! follow.

use crate::affine::recognize::decomposed_norm::{around, core, reshaped};
use crate::affine::recognize::parameters::{Along, Operator, site};
use crate::affine::recognize::{Normalizer, Site, View};
use crate::analysis::axis_factors::AxisFactors;
use crate::ir::{NodeId, ValueId};

/// Group Normalization.
pub(super) struct GroupNorm;

impl Normalizer for GroupNorm {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let along = match view.graph.domain_op(node) {
            ("", "GroupNormalization") => {
                let at = view.at(node);
                let groups = usize::try_from(at.attr("num_groups", 0).ok()?).ok()?;
                // Before operator set 21, each group has its own parameters, and since then each
                // channel.
                if at.opset() < 21 {
                    Along::Groups(1, groups)
                } else {
                    Along::Axis(1)
                }
            }
            ("com.microsoft", "GroupNorm") => {
                let at = view.at(node);
                // If the operator contains an activation, its affine is not its last step and
                // cannot be split off.
                if at.attr("activation", 0).ok()? != 0 {
                    return None;
                }
                let last = view
                    .facts
                    .rank(view.graph.output(node, 0)?)?
                    .checked_sub(1)?;
                Along::Axis(if at.flag("channels_last", true).ok()? {
                    last
                } else {
                    1
                })
            }
            _ => return written_out(view, node),
        };
        site(
            view,
            node,
            &Operator {
                kind: "GN",
                scale: 1,
                bias: Some(2),
                along,
            },
        )
    }
}

fn written_out(view: &View, node: NodeId) -> Option<Site> {
    let groups = Groups::by_operator(view, node).or_else(|| Groups::by_means(view, node))?;
    let reshapes = reshaped(view, groups.input, groups.output)?;
    let channels = groups.channels(view, reshapes.input)?;
    let chain = view.chain_from(reshapes.output);
    let chain = chain.filter(|chain| chain.axis().is_none_or(|axis| axis == channels));
    let nodes = [&groups.nodes[..], &reshapes.nodes].concat();
    Some(around(view, "GN", &nodes, reshapes.output, channels, chain))
}

/// A normalization of groups, each by its mean and variance over `axes`.
struct Groups {
    input: ValueId,
    output: ValueId,
    axes: Vec<usize>,
    nodes: Vec<NodeId>,
}

impl Groups {
    fn by_operator(view: &View, node: NodeId) -> Option<Groups> {
        if !view.graph.is(node, "InstanceNormalization") {
            return None;
        }
        let at = view.at(node);
        let axes = (2..at.rank(0).ok()?).collect();
        let (scale, shift) = (at.numbers(1).ok()?, at.numbers(2).ok()?);
        let is_bare = scale.iter().all(|&s| s == 1.0) && shift.iter().all(|&t| t == 0.0);
        is_bare.then_some(Groups {
            input: at.input(0).ok()?,
            output: view.graph.only_output(node)?,
            axes,
            nodes: vec![node],
        })
    }

    fn by_means(view: &View, node: NodeId) -> Option<Groups> {
        let core = core(view, node)?;
        let fits = core.centred && !core.norm && core.input_is_squared(view);
        let (input, output) = (core.input, core.output);
        fits.then_some(Groups {
            input,
            output,
            axes: core.axes,
            nodes: core.nodes,
        })
    }

    /// The axis of the channels in `whole`, the value before it is reshaped. `None` unless each
    /// item has its own statistics for each run of channels, over these channels and all places.
    fn channels(&self, view: &View, whole: ValueId) -> Option<usize> {
        let mut atoms = AxisFactors::default();
        let before = atoms.axes(&view.facts.shape(whole)?)?;
        let apart = atoms.reshape(&before, &view.facts.shape(self.input)?)?;
        let reduced: Vec<_> = self
            .axes
            .iter()
            .filter_map(|&axis| apart.get(axis))
            .flat_map(|axis| atoms.leaves(axis))
            .collect();
        let (items, rest) = before.split_first()?;
        if atoms
            .leaves(items)
            .iter()
            .any(|atom| reduced.contains(atom))
        {
            return None;
        }
        let mut cut = None;
        for (axis, atom) in rest.iter().enumerate() {
            let leaves = atoms.leaves(atom);
            let kept = leaves
                .iter()
                .take_while(|atom| !reduced.contains(atom))
                .count();
            if !leaves[kept..].iter().all(|atom| reduced.contains(atom)) {
                return None;
            }
            // If each place of a whole axis has its own statistics, the normalizer is IN, or LN of
            // flattened tokens.
            if kept > 0 && (kept == leaves.len() || cut.replace(axis + 1).is_some()) {
                return None;
            }
        }
        // With a single group of all channels, no axis is cut, and the channels are on axis 1,
        // where exporters put them.
        Some(cut.unwrap_or(1))
    }
}
