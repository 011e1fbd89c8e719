//! LN and RMSNorm in the form that onnxruntime fuses into one operator: a `Pow` by 2, and a Mul and
//! an Add of vectors after the division.
//!
//! onnxruntime does not fuse the form without the Mul and the Add. So if the constants fold, both
//! nodes stay, with 1 and 0 as new constants.

use crate::affine::recognize::affine_chain::Chain;
use crate::affine::recognize::decomposed_norm::{self, Core};
use crate::affine::recognize::pointwise::behind_casts;
use crate::affine::recognize::{Part, Reset, Site, View};
use crate::ir::{NodeId, ValueId};
use crate::shape::facts::extent;

/// Builds the site of a core over the last axis.
pub(super) fn site(view: &View, kind: &'static str, core: &Core) -> Site {
    let mut site = decomposed_norm::site(view, kind, core);
    // Casts may follow the core, if statistics are computed in float32 and the parameters have
    // another type.
    let (output, casts) = behind_casts(view, core.output);
    let chain = view.chain_from(output);
    if let Some((chain, part)) =
        chain.and_then(|chain| Some((chain, part(view, core, output, chain)?)))
    {
        // The nodes belong to the site even if their constants are 1 and 0 already.
        site.nodes = [&core.nodes[..], &casts, &chain.nodes].concat();
        if !part.affine.is_identity() {
            site.refusal = None;
            site.post = Some(part);
        }
    }
    site
}

/// The affine after a core, starting at `output`. `None` if core and affine do not have the form
/// that onnxruntime fuses.
fn part(view: &View, core: &Core, output: ValueId, chain: &Chain) -> Option<Part> {
    let graph = view.graph;
    let wanted: &[(&str, f64)] = if core.centred {
        &[("Mul", 1.0), ("Add", 0.0)]
    } else {
        &[("Mul", 1.0)]
    };
    let is_written_so = chain.input == output
        && !core.less_mean
        && core.inside.is_none()
        && chain.nodes.len() == wanted.len()
        && view.only_reader(output) == chain.nodes.first().copied()
        && core.nodes.iter().all(|&node| is_fusible(view, core, node))
        && core.nodes.iter().any(|&node| squares(view, core, node));
    if !is_written_so {
        return None;
    }
    let channels = view.facts.extent(core.output, core.rank.checked_sub(1)?)?;
    let mut resets = vec![];
    for (&node, &(op, neutral)) in chain.nodes.iter().zip(wanted) {
        let at = view.at(node);
        let slot = (0..2).find(|&slot| at.is_constant(slot))?;
        let shape = at.shape(slot).ok()?;
        let is_vector = shape.len() == 1 && extent(&shape[0]) == Some(channels);
        (graph.is(node, op) && is_vector).then_some(())?;
        resets.push(Reset {
            node,
            slot,
            neutral,
            optional: false,
            like: slot,
            axes: [core.rank - 1, core.rank],
        });
    }
    Some(Part {
        affine: chain.affine.clone(),
        input: chain.output,
        output: chain.output,
        nodes: vec![],
        resets,
    })
}

/// Whether the core of the form that onnxruntime fuses may contain this node.
fn is_fusible(view: &View, core: &Core, node: NodeId) -> bool {
    match view.graph.domain_op(node) {
        // Both may end in a Mul by the reciprocal.
        ("", "Mul") => core.nodes.last() == Some(&node),
        // For an LN onnxruntime takes the reciprocal only as 1 divided by the root, not as an
        // operator.
        ("", "Reciprocal") => !core.centred,
        ("", op) => matches!(op, "Add" | "Div" | "Pow" | "ReduceMean" | "Sqrt" | "Sub"),
        _ => false,
    }
}

/// Whether a node is the Pow that squares the value whose squares are averaged.
fn squares(view: &View, core: &Core, node: NodeId) -> bool {
    view.graph.is(node, "Pow") && view.graph.input(node, 0) == Some(core.squared)
}
