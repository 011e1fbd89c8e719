//! BiasNorm of Zipformer: `g·x/√(mean((x − b)²))`, where `g` is a scalar and `b` has one scalar for
//! each channel.

use crate::affine::recognize::{Family, Kind, Normalizer, Site, View};
use crate::ir::{NodeId, ValueId};
use crate::refusal::{Reason, Refusal};

/// Bias Normalization.
pub(super) struct BiasNorm;

impl Normalizer for BiasNorm {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let graph = view.graph;
        if !graph.is(node, "Mul") {
            return None;
        }
        let (left, right) = (graph.input(node, 0)?, graph.input(node, 1)?);
        let mut orders = [(left, right), (right, left)].into_iter();
        let (x, scales, mut nodes) =
            orders.find_map(|(x, scales)| Some((x, scales, statistics(view, x, scales)?)))?;
        let chain = view.maker(scales).and_then(|maker| view.chain(maker));
        let post = chain.filter(|chain| chain.output == scales && !chain.affine.is_identity());
        nodes.extend(post.iter().flat_map(|chain| &chain.nodes));
        nodes.push(node);
        let axis = view.facts.rank(x)?.checked_sub(1)?;
        Some(Site {
            channels: view.facts.extent(x, axis).unwrap_or(0),
            axis,
            post: post.map(|chain| chain.part()),
            refusal: post
                .is_none()
                .then(|| Refusal::new(Reason::Identity, graph.name(node))),
            ..Site::new(
                Kind::new("BiasNorm", Family::Online),
                view.site_name(node),
                nodes,
            )
        })
    }
}

/// Finds the nodes that compute `1/√(mean((x − b)²))`, the last one first. A multiplication by a
/// scalar may be between these nodes and `scales`. `None` if `scales` is computed otherwise.
fn statistics(view: &View, x: ValueId, scales: ValueId) -> Option<Vec<NodeId>> {
    let graph = view.graph;
    let chain = view
        .maker(scales)
        .and_then(|maker| view.chain(maker))
        .filter(|chain| chain.output == scales);
    if chain.is_some_and(|chain| chain.affine.scale.len() != 1 || !chain.affine.has_no_shift()) {
        return None;
    }
    let value = chain.map_or(scales, |chain| chain.input);
    let mut nodes = vec![];
    // The inverse root may be one power, or the reciprocal of a root.
    let root = view.made_by(value, &["Pow", "Reciprocal", "Div"])?;
    nodes.push(root);
    let mut mean = graph.input(root, usize::from(graph.is(root, "Div")))?;
    let is_one_power = graph.is(root, "Pow");
    let inverts = if is_one_power {
        view.scalar_input(root, 1) == Some(-0.5)
    } else {
        graph.is(root, "Reciprocal") || view.scalar_input(root, 0) == Some(1.0)
    };
    if !is_one_power {
        let sqrt = view.made_by(mean, &["Sqrt"])?;
        nodes.push(sqrt);
        mean = graph.input(sqrt, 0)?;
    }
    let reduce = view.made_by(mean, &["ReduceMean"])?;
    let squares = graph.input(reduce, 0)?;
    let rank = view.facts.rank(squares)?;
    let reduced = view.at(reduce).reduction(rank).ok()?;
    let square = view.made_by(squares, &["Pow", "Mul"])?;
    let shifted = graph.input(square, 0)?;
    let is_square = match graph.op(square)? {
        "Mul" => graph.input(square, 1) == Some(shifted),
        _ => view.scalar_input(square, 1) == Some(2.0),
    };
    let shift = view.made_by(shifted, &["Sub", "Add"])?;
    let (left, right) = (graph.input(shift, 0)?, graph.input(shift, 1)?);
    let takes_off = left == x && view.constants.is_constant(right)
        || graph.is(shift, "Add") && right == x && view.constants.is_constant(left);
    nodes.extend([reduce, square, shift]);
    let is_last = reduced == (vec![rank.checked_sub(1)?], true);
    (inverts && is_square && takes_off && is_last).then_some(nodes)
}
