//! Online normalizers that are written out: `(x − mean) / √(mean of squares + ε)`, where the squares may be those of `x`,
//! less the square of their mean, as Flax has the variance.
//!
//! Read backwards from the last division, through whatever moves or widens the statistics.

use crate::affine::recognize::affine_chain::Chain;
use crate::affine::recognize::{Family, Kind, Site, View};
use crate::ir::{NodeId, ValueId};
use crate::refusal::{Reason, Refusal};
use crate::shape::facts::{extent, same_shape};

/// A normalization by statistics of the input, without what scales its result.
#[derive(Debug, Clone)]
pub struct Core {
    /// The value whose statistics are taken.
    pub input: ValueId,
    /// The normalized value.
    pub output: ValueId,
    /// Whether the mean is taken off.
    pub centred: bool,
    /// Whether the sum of squares is not divided by their number.
    pub norm: bool,
    /// The value that is squared and reduced, and the axes over which it is.
    pub squared: ValueId,
    /// Whether it is squared with its mean, whose square is taken off behind.
    pub less_mean: bool,
    /// The axes, counted from the front, and the rank they count in.
    pub axes: Vec<usize>,
    /// The rank of the squared value.
    pub rank: usize,
    /// The nodes, last one last.
    pub nodes: Vec<NodeId>,
    /// The Div `g/‖x‖` whose `g`, a constant of one element, scales the result.
    pub factor: Option<NodeId>,
    /// The last node of a chain that scales the reciprocal, before the normalized value is multiplied by it.
    pub inside: Option<NodeId>,
    /// The summand of the mean square below the root; `None` where it is unknown, or where the
    /// divisor is kept from 0 by other means.
    pub epsilon: Option<f64>,
    /// Whether each place is divided by its own statistics, see [`is_in_place`].
    pub is_in_place: bool,
}

impl Core {
    /// Whether the squares are of the value that is divided, in its own shape.
    pub fn input_is_squared(&self, view: &View) -> bool {
        view.facts
            .shape(self.squared)
            .is_some_and(|shape| Some(shape) == view.facts.shape(self.output))
    }
}

/// The core that ends in a node: a Div, or a Mul by a reciprocal.
pub fn core(view: &View, node: NodeId) -> Option<Core> {
    scaled_core(view, node).filter(|core| core.factor.is_none())
}

/// The core, where the numerator of the reciprocal may differ from 1.
pub fn scaled_core(view: &View, node: NodeId) -> Option<Core> {
    let graph = view.graph;
    let output = graph.only_output(node)?;
    let mut trail = Trail {
        view,
        nodes: vec![node],
        factor: None,
        inside: None,
        epsilon: Some(0.0),
        is_in_place: true,
    };
    let (numerator, (root, power)) = match graph.op(node)? {
        "Div" => (graph.input(node, 0)?, (graph.input(node, 1)?, ROOT)),
        "Mul" => {
            let (left, right) = (graph.input(node, 0)?, graph.input(node, 1)?);
            trail
                .reciprocal(right)
                .map(|root| (left, root))
                .or_else(|| trail.reciprocal(left).map(|root| (right, root)))?
        }
        _ => return None,
    };
    if view.constants.is_constant(root) || view.constants.is_constant(numerator) {
        return None;
    }
    let (mean, norm) = trail.root(root, power)?;
    let (squared, taken, axes) = trail.mean_square(mean)?;
    // The dividend: the value, or the value less its mean; the squares may be of a reshaped one.
    let plain = trail.plain(numerator);
    let below = trail.origin(squared);
    let centre = trail.centred(plain);
    let input = centre.as_ref().map_or(plain, |(x, _)| *x);
    let same = below == plain || trail.origin(plain) == below;
    let centred_square = trail.centred(below);
    let fits = match (&centre, &centred_square) {
        // The mean that is taken off is that below the root.
        (Some((x, along)), _) if taken == Squares::LessMean => {
            *along == axes && trail.plain(*x) == trail.plain(squared)
        }
        _ if taken == Squares::LessMean => false,
        // Two subtractions of the same mean are one.
        (Some(one), Some(other)) => one == other && one.1 == axes,
        (None, None) => same,
        _ => false,
    };
    if !fits {
        return None;
    }
    let own = |factor: NodeId| view.only_reader(graph.only_output(factor)?);
    if trail.factor.is_some_and(|factor| own(factor) != Some(node)) {
        return None;
    }
    let rank = view.facts.rank(squared)?;
    let divisor = graph
        .inputs(node)
        .iter()
        .flatten()
        .copied()
        .find(|&divisor| divisor != numerator)?;
    let way: Vec<NodeId> = trail
        .nodes
        .iter()
        .copied()
        .filter(|&node| view.widens(node))
        .collect();
    let is_in_place = trail.is_in_place && is_in_place(view, divisor, &way, squared, &axes);
    trail.nodes.sort_by_key(|&node| graph.place(node));
    trail.nodes.dedup();
    Some(Core {
        input,
        output,
        centred: centre.is_some(),
        norm: norm || taken == Squares::Sum,
        squared,
        less_mean: taken == Squares::LessMean,
        axes,
        rank,
        nodes: trail.nodes,
        factor: trail.factor,
        inside: trail.inside,
        epsilon: trail.epsilon,
        is_in_place,
    })
}

/// Whether statistics of a value along some axes meet the places that they belong to, where they
/// are `met`: movements on the path kept the order of the numbers, and broadcasts widened them
/// along these axes alone.
pub fn is_in_place(
    view: &View,
    met: ValueId,
    way: &[NodeId],
    value: ValueId,
    axes: &[usize],
) -> bool {
    let Some(whole) = view.facts.shape(value) else {
        return false;
    };
    let is_moved = way
        .iter()
        .any(|&node| view.graph.is_movement(node) || view.graph.is(node, "Expand"));
    let fits = |met: ValueId| {
        view.facts.shape(met).is_some_and(|shape| {
            let fits = |axis: usize| match axes.contains(&axis) && extent(&shape[axis]) == Some(1) {
                true => true,
                // Without a movement an unknown extent is unchanged.
                false => shape[axis] == whole[axis] && (shape[axis].is_some() || !is_moved),
            };
            shape.len() == whole.len() && (0..whole.len()).all(fits)
        })
    };
    let is_kept = |&node: &NodeId| match view.graph.op(node) {
        Some("Cast" | "Flatten" | "Identity" | "Reshape" | "Squeeze" | "Unsqueeze") => true,
        Some("Expand") => [view.graph.input(node, 0), view.graph.only_output(node)]
            .into_iter()
            .all(|value| value.is_some_and(fits)),
        _ => false,
    };
    fits(met) && way.iter().all(is_kept)
}

/// A site around a core: the chain behind it, if there is one, is its affine.
pub fn site(view: &View, kind: &'static str, core: &Core) -> Site {
    let inside = core.inside.and_then(|node| view.chain(node));
    let chain = inside.or_else(|| view.chain_from(core.output));
    let axis = chain
        .and_then(|chain| chain.axis())
        .unwrap_or_else(|| core.rank.max(1) - 1);
    around(view, kind, &core.nodes, core.output, axis, chain)
}

/// A site around the nodes that make a normalized value, the last one of them last, with the chain
/// that is its affine.
pub fn around(
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
    // Where nothing else is known of a value, its parameters say how wide it is.
    let given = || {
        post.as_ref()
            .map(|part| part.affine.scale.len().max(part.affine.shift.len()))
    };
    Site {
        kind: Kind::new(kind, Family::Online),
        name: view.site_name(last),
        channels: view.facts.extent(output, axis).or_else(given).unwrap_or(0),
        axis,
        nodes,
        pre: None,
        post,
        replacement: None,
        core: None,
        refusal,
    }
}

/// A normalization of a reshaped value whose result is reshaped back.
pub struct Reshaped {
    /// The value before.
    pub input: ValueId,
    /// The result, in the shape of `input`.
    pub output: ValueId,
    /// The two Reshapes.
    pub nodes: [NodeId; 2],
}

/// The two Reshapes around a normalization from `input` to `output` that undo each other. Nothing
/// between them may move elements.
pub fn reshaped(view: &View, input: ValueId, output: ValueId) -> Option<Reshaped> {
    let reshape = |&node: &NodeId| view.graph.is(node, "Reshape");
    let apart = view.maker(input).filter(reshape)?;
    let together = view.only_reader(output).filter(reshape)?;
    let (before, after) = (
        view.graph.input(apart, 0)?,
        view.graph.only_output(together)?,
    );
    let alike = |one: ValueId, other: ValueId| {
        Some(same_shape(
            &view.facts.shape(one)?,
            &view.facts.shape(other)?,
        ))
    };
    let undone = view.graph.input(together, 0) == Some(output)
        && alike(before, after)?
        && alike(input, output)?;
    undone.then_some(Reshaped {
        input: before,
        output: after,
        nodes: [apart, together],
    })
}

/// The chain that scales a quotient: behind its result, or else its numerator, for a scale passes the
/// division; or a chain that only shifts the result.
pub fn scaling<'v>(view: &'v View, numerator: ValueId, result: ValueId) -> Option<&'v Chain> {
    let behind = view.chain_from(result);
    let before = view.maker(numerator).and_then(|node| view.chain(node));
    let before = before.filter(|chain| chain.output == numerator && chain.affine.has_no_shift());
    behind
        .filter(|chain| !chain.affine.has_no_scale())
        .or(before)
        .or(behind)
}

/// How many movements and casts may lie in a row between the operators of a normalizer: many that end in one long row
/// of them are not to walk all of it each.
pub(crate) const REACH: usize = 64;

/// The statistic of the squares.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Squares {
    Sum,
    Mean,
    /// The variance: the mean of squares less the square of the mean.
    LessMean,
}

/// The power that a root is.
const ROOT: f64 = 0.5;

/// How far the number that a sum is multiplied by may be from one over how many there are, which is rounded.
const ROUNDED: f64 = 1e-6;

/// Walks backwards and notes the nodes that belong to the core.
struct Trail<'t, 'a> {
    view: &'t View<'a>,
    nodes: Vec<NodeId>,
    factor: Option<NodeId>,
    inside: Option<NodeId>,
    epsilon: Option<f64>,
    is_in_place: bool,
}

impl Trail<'_, '_> {
    fn made_by(&self, value: ValueId, ops: &[&str]) -> Option<NodeId> {
        let made_by = |&node: &NodeId| ops.iter().any(|op| self.view.graph.is(node, op));
        self.view.maker(value).filter(made_by)
    }

    /// The node that only moves or widens statistics, or changes their type, into a value.
    fn widening(&self, value: ValueId) -> Option<NodeId> {
        self.view
            .maker(value)
            .filter(|&node| self.view.widens(node))
    }

    /// The nodes that only move or widen a value, the last one first.
    fn movements(&self, mut value: ValueId) -> Vec<NodeId> {
        let mut nodes = vec![];
        while let Some(node) = self.widening(value).filter(|_| nodes.len() < REACH) {
            let Some(input) = self.view.graph.input(node, 0) else {
                break;
            };
            nodes.push(node);
            value = input;
        }
        nodes
    }

    /// The value before them.
    fn origin(&self, value: ValueId) -> ValueId {
        let first = self.movements(value).pop();
        first
            .and_then(|node| self.view.graph.input(node, 0))
            .unwrap_or(value)
    }

    /// The statistics before such nodes, which are recorded.
    fn widened(&mut self, value: ValueId) -> ValueId {
        self.nodes.extend(self.movements(value));
        self.origin(value)
    }

    /// The value before casts.
    fn plain(&self, mut value: ValueId) -> ValueId {
        for _ in 0..REACH {
            let node = self
                .made_by(value, &["Cast", "Identity"])
                .filter(|&node| self.view.widens(node));
            let Some(input) = node.and_then(|node| self.view.graph.input(node, 0)) else {
                break;
            };
            value = input;
        }
        value
    }

    /// `r` of `1/r`, or of `g/r`, and the power that it is; the factors of channels may be beside it.
    fn reciprocal(&mut self, value: ValueId) -> Option<(ValueId, f64)> {
        let mut value = self.widened(value);
        self.inside = self.view.maker(value).filter(|&node| {
            self.view
                .chain(node)
                .is_some_and(|chain| chain.affine.has_no_shift() && !chain.affine.has_no_scale())
        });
        if let Some(chain) = self.inside.and_then(|node| self.view.chain(node)) {
            value = self.widened(chain.input);
        }
        let graph = self.view.graph;
        let node = self.made_by(value, &["Reciprocal", "Div", "Pow"])?;
        let root = match graph.op(node)? {
            "Reciprocal" => graph.input(node, 0)?,
            "Div" => {
                let number = self.view.scalar(graph.input(node, 0)?)?;
                self.factor = (number != 1.0).then_some(node);
                graph.input(node, 1)?
            }
            _ => {
                let half = self.view.scalar(graph.input(node, 1)?) == Some(-ROOT);
                return half.then_some((value, -ROOT));
            }
        };
        self.nodes.push(node);
        Some((root, ROOT))
    }

    /// `v` of `√v`, or of `v` to this power; or the sum of squares itself behind a ReduceL2.
    fn root(&mut self, value: ValueId, power: f64) -> Option<(ValueId, bool)> {
        let value = self.widened(value);
        let bare = self.without_epsilon(value);
        if bare != value {
            self.epsilon = None;
        }
        let value = bare;
        let graph = self.view.graph;
        let node = self.made_by(value, &["Sqrt", "Pow", "ReduceL2"])?;
        self.nodes.push(node);
        match graph.op(node)? {
            "ReduceL2" => Some((value, true)),
            "Sqrt" => Some((graph.input(node, 0)?, false)),
            _ => {
                let is_root = self.view.scalar(graph.input(node, 1)?) == Some(power);
                is_root.then_some((graph.input(node, 0)?, false))
            }
        }
    }

    fn without_epsilon(&mut self, value: ValueId) -> ValueId {
        let graph = self.view.graph;
        let Some(node) = self.made_by(value, &["Add", "Max", "Clip"]) else {
            return value;
        };
        let rest: Vec<ValueId> = graph
            .inputs(node)
            .iter()
            .flatten()
            .copied()
            .filter(|&v| !self.view.constants.is_constant(v))
            .collect();
        let [inner] = rest[..] else { return value };
        self.nodes.push(node);
        let added = graph
            .inputs(node)
            .iter()
            .flatten()
            .find(|&&added| added != inner);
        let added = added
            .and_then(|&added| self.view.scalar(added))
            .filter(|_| graph.is(node, "Add"));
        self.epsilon = self
            .epsilon
            .zip(added)
            .map(|(epsilon, added)| epsilon + added);
        self.widened(inner)
    }

    /// The value whose squares are averaged or summed, and over which axes.
    fn mean_square(&mut self, value: ValueId) -> Option<(ValueId, Squares, Vec<usize>)> {
        let value = self.widened(value);
        let value = self.without_epsilon(value);
        let value = self.widened(value);
        self.less_mean(value)
            .map(|(of, axes)| (of, Squares::LessMean, axes))
            .or_else(|| self.of_squares(value))
    }

    /// The squares of a mean or sum.
    fn of_squares(&mut self, value: ValueId) -> Option<(ValueId, Squares, Vec<usize>)> {
        let graph = self.view.graph;
        if let Some((nodes, inner, axes)) = self.mean(value) {
            let base = self.square(inner)?;
            self.nodes.extend(nodes);
            return Some((base, Squares::Mean, axes));
        }
        let node = self.made_by(value, &["ReduceSum", "ReduceSumSquare", "ReduceL2"])?;
        if !self.nodes.contains(&node) {
            self.nodes.push(node);
        }
        let inner = graph.input(node, 0)?;
        let (axes, _) = self
            .view
            .at(node)
            .reduction(self.view.facts.rank(inner)?)
            .ok()?;
        let base = if graph.is(node, "ReduceSum") {
            self.square(inner)?
        } else {
            inner
        };
        Some((base, Squares::Sum, axes))
    }

    /// `x`, and the axes, of `mean(x²) − mean(x)²`, of which rounding may leave less than 0.
    fn less_mean(&mut self, value: ValueId) -> Option<(ValueId, Vec<usize>)> {
        let graph = self.view.graph;
        let bounded = self
            .made_by(value, &["Max"])
            .filter(|&node| graph.inputs(node).len() == 2);
        let bounded = bounded.and_then(|node| {
            let slot = (0..2).find(|&slot| {
                graph
                    .input(node, 1 - slot)
                    .is_some_and(|bound| self.view.scalar(bound) == Some(0.0))
            })?;
            Some((node, graph.input(node, slot)?))
        });
        let difference = self.made_by(bounded.map_or(value, |(_, inner)| inner), &["Sub"])?;
        let [squares, mean] = [0, 1].map(|slot| graph.input(difference, slot));
        let squares = self.widened(squares?);
        let (of, taken, axes) = self.of_squares(squares)?;
        let mean = self.widened(mean?);
        let mean = self.square(mean)?;
        let mean = self.widened(mean);
        let (nodes, averaged, same) = self.mean(mean)?;
        let fits = taken == Squares::Mean && same == axes && self.plain(averaged) == self.plain(of);
        let [one, other] = [0, 1].map(|slot| self.view.facts.shape(graph.input(difference, slot)?));
        self.is_in_place &= one.zip(other).is_some_and(|(one, other)| one == other);
        if let Some((node, _)) = bounded {
            self.nodes.push(node);
            // Only rounding meets the bound, which nobody can prove.
            self.epsilon = None;
        }
        self.nodes.extend(nodes);
        self.nodes.push(difference);
        fits.then_some((of, axes))
    }

    /// The base of a square.
    fn square(&mut self, value: ValueId) -> Option<ValueId> {
        let graph = self.view.graph;
        let square = self.made_by(value, &["Mul", "Pow"])?;
        let base = graph.input(square, 0)?;
        let squares = match graph.op(square)? {
            "Mul" => graph.input(square, 1) == Some(base),
            _ => self.view.scalar(graph.input(square, 1)?) == Some(2.0),
        };
        self.nodes.push(square);
        squares.then_some(base)
    }

    /// The nodes of a mean, its operand, and its axes: a ReduceMean, or a ReduceSum divided by the
    /// number of places.
    fn mean(&self, value: ValueId) -> Option<(Vec<NodeId>, ValueId, Vec<usize>)> {
        let graph = self.view.graph;
        let reduction = |node: NodeId| {
            let inner = graph.input(node, 0)?;
            let (axes, _) = self
                .view
                .at(node)
                .reduction(self.view.facts.rank(inner)?)
                .ok()?;
            Some((inner, axes))
        };
        if let Some(node) = self.made_by(value, &["ReduceMean"]) {
            let (inner, axes) = reduction(node)?;
            return Some((vec![node], inner, axes));
        }
        let node = self.made_by(value, &["Mul", "Div"])?;
        let is_quotient = graph.is(node, "Div");
        let places = if is_quotient { 0..1 } else { 0..2 };
        let (sum, number) = places.into_iter().find_map(|slot| {
            Some((
                graph.input(node, slot)?,
                self.view.scalar(graph.input(node, 1 - slot)?)?,
            ))
        })?;
        let reduce = self.made_by(self.origin(sum), &["ReduceSum"])?;
        let (inner, axes) = reduction(reduce)?;
        let extent = |&axis: &usize| self.view.facts.extent(inner, axis);
        let count = axes.iter().map(extent).product::<Option<usize>>()? as f64;
        let is_mean = match is_quotient {
            true => number == count,
            false => (number * count - 1.0).abs() < ROUNDED,
        };
        is_mean.then(|| (vec![reduce, node], inner, axes))
    }

    /// `x` of `x − mean(x)`, and the axes of the mean.
    fn centred(&mut self, value: ValueId) -> Option<(ValueId, Vec<usize>)> {
        let graph = self.view.graph;
        let value = self.plain(value);
        let node = self.made_by(value, &["Sub"])?;
        let (x, mean) = (graph.input(node, 0)?, graph.input(node, 1)?);
        let (nodes, of, axes) = self.mean(self.origin(mean))?;
        if of != x && self.plain(of) != self.plain(x) {
            return None;
        }
        self.is_in_place &= is_in_place(self.view, mean, &self.movements(mean), x, &axes);
        self.nodes.extend(nodes);
        self.nodes.push(node);
        Some((x, axes))
    }
}
