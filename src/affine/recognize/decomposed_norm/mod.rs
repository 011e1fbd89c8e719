//! Online normalizers that are written out: `(x − mean) / √(mean of squares + ε)`. The variance may
//! also be `mean(x²) − mean(x)²`, as Flax computes it.
//!
//! The search starts at the last division and follows its operands backward, through all nodes that
//! move or widen the statistics.

mod match_variance;

use crate::affine::recognize::affine_chain::Chain;
use crate::affine::recognize::{Family, Kind, Site, View, width};
use crate::ir::{NodeId, ValueId};
use crate::refusal::{Reason, Refusal};
use crate::shape::facts::{Shape, extent};

use match_variance::{Division, Moment, Trail};

/// A normalization by statistics of the input, without the affine after it.
#[derive(Debug, Clone)]
pub(crate) struct Core {
    /// The value that is normalized.
    pub input: ValueId,
    /// The normalized value.
    pub output: ValueId,
    /// Whether the mean is subtracted.
    pub centred: bool,
    /// Whether the squares are summed rather than averaged.
    pub norm: bool,
    /// The value that is squared and reduced.
    pub squared: ValueId,
    /// Whether the variance is computed as `mean(x²) − mean(x)²`.
    pub less_mean: bool,
    /// The axes of the statistics, counted from the front.
    pub axes: Vec<usize>,
    /// The rank of the squared value.
    pub rank: usize,
    /// The nodes, in execution order.
    pub nodes: Vec<NodeId>,
    /// The Div `g/r` of a constant scalar `g` by the root `r`. `None` without such a Div, or if `g`
    /// is 1.
    pub factor: Option<NodeId>,
    /// The last node of a chain that scales the reciprocal of the root before the numerator is
    /// multiplied by it.
    pub inside: Option<NodeId>,
    /// The epsilon that is added to the mean square below the root. `None` if it is unknown, or if
    /// another operator keeps the divisor away from 0.
    pub epsilon: Option<f64>,
    /// The node that adds ε below the root, if there is one.
    pub epsilon_added: Option<NodeId>,
    /// Whether each place is divided by its own statistics, see [`is_in_place`].
    pub is_in_place: bool,
}

impl Core {
    /// Whether the squared value has the shape of the normalized value.
    pub(crate) fn input_is_squared(&self, view: &View) -> bool {
        view.facts
            .shape(self.squared)
            .is_some_and(|shape| Some(shape) == view.facts.shape(self.output))
    }
}

/// Finds the core that ends in a node, which is a Div or a Mul by a reciprocal. `None` if no core
/// ends there.
pub(crate) fn core(view: &View, node: NodeId) -> Option<Core> {
    scaled_core(view, node).filter(|core| core.factor.is_none())
}

/// Like [`core()`], but the numerator of the reciprocal may differ from 1.
pub(crate) fn scaled_core(view: &View, node: NodeId) -> Option<Core> {
    let graph = view.graph;
    let output = graph.only_output(node)?;
    let mut trail = Trail::new(view, node);
    let Division {
        numerator,
        root,
        power,
    } = trail.division(node)?;
    if view.constants.is_constant(root) || view.constants.is_constant(numerator) {
        return None;
    }
    let (mean, is_norm) = trail.root(root, power)?;
    let squares = trail.mean_square(mean)?;
    let (input, centred) = trail.dividend(numerator, &squares)?;
    if let Some(factor) = trail.factor
        && view.only_reader(graph.only_output(factor)?) != Some(node)
    {
        return None;
    }
    let rank = view.facts.rank(squares.base)?;
    let mut inputs = graph.inputs(node).iter().flatten().copied();
    let divisor = inputs.find(|&divisor| divisor != numerator)?;
    let is_in_place = trail.is_in_place
        && is_in_place(
            view,
            divisor,
            &widening(view, &trail.nodes),
            squares.base,
            &squares.axes,
        );
    trail.nodes.sort_by_key(|&node| graph.place(node));
    trail.nodes.dedup();
    Some(Core {
        input,
        output,
        centred,
        norm: is_norm || squares.moment == Moment::Sum,
        squared: squares.base,
        less_mean: squares.moment == Moment::Variance,
        axes: squares.axes,
        rank,
        nodes: trail.nodes,
        factor: trail.factor,
        inside: trail.inside,
        epsilon: trail.epsilon,
        epsilon_added: trail.epsilon_added,
        is_in_place,
    })
}

/// The nodes among `nodes` that only move or widen statistics, or change their type.
pub(crate) fn widening(view: &View, nodes: &[NodeId]) -> Vec<NodeId> {
    let widening = nodes.iter().copied().filter(|&node| view.widens(node));
    widening.collect()
}

/// Whether each place of `value` is combined with its own statistics, which reduce `axes`. `met`
/// holds the statistics in the shape in which the combining operator reads them, and `path` has the
/// nodes that bring them to this shape. Movements on `path` must keep the order of the elements,
/// and broadcasts must widen only along `axes`.
pub(crate) fn is_in_place(
    view: &View,
    met: ValueId,
    path: &[NodeId],
    value: ValueId,
    axes: &[usize],
) -> bool {
    let Some(whole) = view.facts.shape(value) else {
        return false;
    };
    let is_moved = path
        .iter()
        .any(|&node| view.graph.is_movement(node) || view.graph.is(node, "Expand"));
    let places = NormalizedPlaces {
        view,
        whole,
        axes,
        is_moved,
    };
    places.fit(met) && path.iter().all(|&node| places.are_kept_by(node))
}

/// The places of a value, and the axes of its statistics.
struct NormalizedPlaces<'p> {
    view: &'p View<'p>,
    whole: Shape,
    axes: &'p [usize],
    /// Whether a movement or an Expand is on the path of the statistics.
    is_moved: bool,
}

impl NormalizedPlaces<'_> {
    /// Whether statistics have, along each axis, the extent of the value, or 1 if they reduce that
    /// axis.
    fn fit(&self, statistics: ValueId) -> bool {
        self.view.facts.shape(statistics).is_some_and(|shape| {
            shape.len() == self.whole.len()
                && (0..shape.len()).all(|axis| self.fit_along(axis, &shape))
        })
    }

    fn fit_along(&self, axis: usize, shape: &Shape) -> bool {
        if self.axes.contains(&axis) && extent(&shape[axis]) == Some(1) {
            return true;
        }
        // An unknown extent is only equal in both shapes if no movement or Expand is on the path.
        shape[axis] == self.whole[axis] && (shape[axis].is_some() || !self.is_moved)
    }

    /// Whether a node on the path of the statistics keeps the order of their elements.
    fn are_kept_by(&self, node: NodeId) -> bool {
        let graph = self.view.graph;
        match graph.op(node) {
            Some("Cast" | "Flatten" | "Identity" | "Reshape" | "Squeeze" | "Unsqueeze") => true,
            Some("Expand") => [graph.input(node, 0), graph.only_output(node)]
                .into_iter()
                .all(|value| value.is_some_and(|value| self.fit(value))),
            _ => false,
        }
    }
}

/// Builds the site of a core. A chain inside or after the core is the affine of the site.
pub(crate) fn site(view: &View, kind: &'static str, core: &Core) -> Site {
    let inside = core.inside.and_then(|node| view.chain(node));
    let chain = inside.or_else(|| view.chain_from(core.output));
    let axis = chain
        .and_then(|chain| chain.axis())
        .unwrap_or_else(|| core.rank.max(1) - 1);
    around(view, kind, &core.nodes, core.output, axis, chain)
}

/// Builds the site of the nodes that compute a normalized value, in execution order. `chain` is the
/// affine of the site.
pub(crate) fn around(
    view: &View,
    kind: &'static str,
    nodes: &[NodeId],
    output: ValueId,
    axis: usize,
    chain: Option<&Chain>,
) -> Site {
    let last = nodes[nodes.len() - 1];
    let post = chain
        .filter(|chain| !chain.affine.is_identity())
        .map(Chain::part);
    let mut nodes = nodes.to_vec();
    nodes.extend(post.iter().flat_map(|part| &part.nodes));
    let refusal = post
        .is_none()
        .then(|| Refusal::new(Reason::Identity, view.graph.name(last)));
    // If the number of channels of the value is unknown, it is read from the parameters.
    let channels = view.facts.extent(output, axis);
    let channels = channels.or_else(|| post.as_ref().map(|part| width(&part.affine)));
    Site {
        channels: channels.unwrap_or(0),
        axis,
        post,
        refusal,
        ..Site::new(Kind::new(kind, Family::Online), view.site_name(last), nodes)
    }
}

/// A normalization of a reshaped value whose result is reshaped back.
pub(crate) struct Reshaped {
    /// The value before the first Reshape.
    pub input: ValueId,
    /// The result, in the shape of `input`.
    pub output: ValueId,
    /// The two Reshapes.
    pub nodes: [NodeId; 2],
}

/// Finds the two Reshapes around a normalization from `input` to `output`, which undo each other.
/// The caller ensures that no node in between moves elements.
pub(crate) fn reshaped(view: &View, input: ValueId, output: ValueId) -> Option<Reshaped> {
    let graph = view.graph;
    let apart = view.maker(input)?;
    let together = view.only_reader(output)?;
    let (before, after) = (graph.input(apart, 0)?, graph.only_output(together)?);
    let is_undone = graph.is(apart, "Reshape")
        && graph.is(together, "Reshape")
        && graph.input(together, 0) == Some(output)
        && view.have_same_shape(before, after)
        && view.have_same_shape(input, output);
    is_undone.then_some(Reshaped {
        input: before,
        output: after,
        nodes: [apart, together],
    })
}

/// Finds the chain that scales a quotient: the chain after the quotient, or else the chain that
/// computes its numerator, since a scale passes a division. If neither chain has a scale, returns a
/// chain that only shifts the quotient.
pub(crate) fn scaling<'v>(
    view: &'v View,
    numerator: ValueId,
    result: ValueId,
) -> Option<&'v Chain> {
    let behind = view.chain_from(result);
    let before = view.maker(numerator).and_then(|node| view.chain(node));
    let before = before.filter(|chain| chain.output == numerator && chain.affine.has_no_shift());
    behind
        .filter(|chain| !chain.affine.has_no_scale())
        .or(before)
        .or(behind)
}

/// The largest number of movements and casts in a row between the operators of a normalizer. This
/// limits the work if many normalizers end in one long row of movements.
pub(crate) const REACH: usize = 64;
