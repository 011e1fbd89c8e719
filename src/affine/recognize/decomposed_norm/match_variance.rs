//! The search backward from the last division of a normalizer, which records the nodes of its core.
//! Its functions return `None` for values that are not computed as they describe.

use crate::affine::recognize::View;
use crate::affine::recognize::decomposed_norm::{REACH, is_in_place};
use crate::ir::{NodeId, ValueId};

/// The exponent of a square root.
const ROOT: f64 = 0.5;

/// A mean of `n` terms may be written as a sum times a rounded factor. This is the largest relative
/// deviation of the factor from `1/n`.
const ROUNDED: f64 = 1e-6;

/// The quotient `numerator / √v`. If `power` is 0.5, `root` is `√v`. If it is −0.5, `root` is
/// `1/√v`.
pub(super) struct Division {
    pub numerator: ValueId,
    pub root: ValueId,
    pub power: f64,
}

/// How squares are reduced to a statistic.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    Sum,
    Mean,
    /// The mean of squares minus the square of the mean.
    Variance,
}

/// A statistic of the squares of a value.
pub(super) struct Squares {
    /// The value that is squared.
    pub base: ValueId,
    pub moment: Moment,
    /// The axes of the statistic.
    pub axes: Vec<usize>,
}

/// The search, and the nodes that it has passed.
pub(super) struct Trail<'t, 'a> {
    view: &'t View<'a>,
    pub nodes: Vec<NodeId>,
    pub factor: Option<NodeId>,
    pub inside: Option<NodeId>,
    pub epsilon: Option<f64>,
    pub epsilon_added: Option<NodeId>,
    pub is_in_place: bool,
}

impl<'t, 'a> Trail<'t, 'a> {
    /// Starts a search at `last`, the division.
    pub(super) fn new(view: &'t View<'a>, last: NodeId) -> Self {
        Trail {
            view,
            nodes: vec![last],
            factor: None,
            inside: None,
            epsilon: Some(0.0),
            epsilon_added: None,
            is_in_place: true,
        }
    }

    /// The producer of a value, if this node only moves, widens or casts statistics.
    fn widening(&self, value: ValueId) -> Option<NodeId> {
        self.view
            .maker(value)
            .filter(|&node| self.view.widens(node))
    }

    /// The row of nodes that leads to a value and only moves or widens it, the last node first.
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

    /// The value before the movements that lead to `value`.
    fn origin(&self, value: ValueId) -> ValueId {
        let first = self.movements(value).pop();
        first
            .and_then(|node| self.view.graph.input(node, 0))
            .unwrap_or(value)
    }

    /// Like [`Trail::origin`], but also records the movements.
    fn widened(&mut self, value: ValueId) -> ValueId {
        self.nodes.extend(self.movements(value));
        self.origin(value)
    }

    /// The value before the Casts that lead to `value`.
    fn plain(&self, mut value: ValueId) -> ValueId {
        for _ in 0..REACH {
            let node = self
                .view
                .made_by(value, &["Cast", "Identity"])
                .filter(|&node| self.view.widens(node));
            let Some(input) = node.and_then(|node| self.view.graph.input(node, 0)) else {
                break;
            };
            value = input;
        }
        value
    }

    /// The division that a node computes, as a Div or as a Mul by a reciprocal. `None` for other
    /// nodes.
    pub(super) fn division(&mut self, node: NodeId) -> Option<Division> {
        let graph = self.view.graph;
        let (left, right) = (graph.input(node, 0)?, graph.input(node, 1)?);
        match graph.op(node)? {
            "Div" => Some(Division {
                numerator: left,
                root: right,
                power: ROOT,
            }),
            "Mul" => match self.reciprocal(right) {
                Some((root, power)) => Some(Division {
                    numerator: left,
                    root,
                    power,
                }),
                None => self.reciprocal(left).map(|(root, power)| Division {
                    numerator: right,
                    root,
                    power,
                }),
            },
            _ => None,
        }
    }

    /// Reads `1/r` or `g/r` with a root `r` and a constant `g`, possibly multiplied by one factor
    /// for each channel. Returns `r` and 0.5. If a Pow by −0.5 computes `1/r`, returns the result
    /// of the Pow and −0.5.
    fn reciprocal(&mut self, value: ValueId) -> Option<(ValueId, f64)> {
        let mut value = self.widened(value);
        let maker = self.view.maker(value);
        let chain = maker.and_then(|node| self.view.chain(node));
        let scaling =
            chain.filter(|chain| chain.affine.has_no_shift() && !chain.affine.has_no_scale());
        self.inside = maker.filter(|_| scaling.is_some());
        if let Some(chain) = scaling {
            value = self.widened(chain.input);
        }
        let graph = self.view.graph;
        let node = self.view.made_by(value, &["Reciprocal", "Div", "Pow"])?;
        let root = match graph.op(node)? {
            "Reciprocal" => graph.input(node, 0)?,
            "Div" => {
                let number = self.view.scalar(graph.input(node, 0)?)?;
                self.factor = (number != 1.0).then_some(node);
                graph.input(node, 1)?
            }
            _ => {
                let is_inverse_root = self.view.scalar(graph.input(node, 1)?) == Some(-ROOT);
                return is_inverse_root.then_some((value, -ROOT));
            }
        };
        self.nodes.push(node);
        Some((root, ROOT))
    }

    /// Reads `√v`, or `v` to the power `power`. Returns `v` and `false`. For a ReduceL2 it returns
    /// the result of the ReduceL2 and `true`.
    pub(super) fn root(&mut self, value: ValueId, power: f64) -> Option<(ValueId, bool)> {
        let value = self.widened(value);
        let bare = self.without_epsilon(value);
        if bare != value {
            self.epsilon = None;
        }
        let value = bare;
        let graph = self.view.graph;
        let node = self.view.made_by(value, &["Sqrt", "Pow", "ReduceL2"])?;
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

    /// Returns the value before an Add, Max or Clip whose other operands are constants, or `value`
    /// if no such node computes it. The summand of an Add is recorded as ε.
    fn without_epsilon(&mut self, value: ValueId) -> ValueId {
        let graph = self.view.graph;
        let Some(node) = self.view.made_by(value, &["Add", "Max", "Clip"]) else {
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
        let mut others = graph.inputs(node).iter().flatten();
        let added = others.find(|&&added| added != inner);
        let added = added.and_then(|&added| self.view.scalar(added));
        let added = added.filter(|_| graph.is(node, "Add"));
        self.epsilon_added = added.map(|_| node);
        self.epsilon = self
            .epsilon
            .zip(added)
            .map(|(epsilon, added)| epsilon + added);
        self.widened(inner)
    }

    /// Reads a mean or a sum of squares, or a variance, to which an ε may be added.
    pub(super) fn mean_square(&mut self, value: ValueId) -> Option<Squares> {
        let value = self.widened(value);
        let value = self.without_epsilon(value);
        let value = self.widened(value);
        self.variance(value).or_else(|| self.squares(value))
    }

    /// Reads a mean or a sum of squares.
    fn squares(&mut self, value: ValueId) -> Option<Squares> {
        let graph = self.view.graph;
        if let Some((nodes, inner, axes)) = self.mean(value) {
            let base = self.square(inner)?;
            self.nodes.extend(nodes);
            return Some(Squares {
                base,
                moment: Moment::Mean,
                axes,
            });
        }
        let node = self
            .view
            .made_by(value, &["ReduceSum", "ReduceSumSquare", "ReduceL2"])?;
        if !self.nodes.contains(&node) {
            self.nodes.push(node);
        }
        let (inner, axes) = self.reduction(node)?;
        let base = if graph.is(node, "ReduceSum") {
            self.square(inner)?
        } else {
            inner
        };
        Some(Squares {
            base,
            moment: Moment::Sum,
            axes,
        })
    }

    /// Reads the variance `mean(x²) − mean(x)²`. A Max with 0 may follow the difference.
    fn variance(&mut self, value: ValueId) -> Option<Squares> {
        let graph = self.view.graph;
        let bounded = self.bounded_by_zero(value);
        let difference = bounded.map_or(value, |(_, inner)| inner);
        let difference = self.view.made_by(difference, &["Sub"])?;
        let [squares, mean] = [0, 1].map(|slot| graph.input(difference, slot));
        let squares = self.widened(squares?);
        let squares = self.squares(squares)?;
        let mean = self.widened(mean?);
        let mean = self.square(mean)?;
        let mean = self.widened(mean);
        let (nodes, averaged, axes) = self.mean(mean)?;
        let fits = squares.moment == Moment::Mean
            && axes == squares.axes
            && self.plain(averaged) == self.plain(squares.base);
        let [one, other] = [0, 1].map(|slot| self.view.facts.shape(graph.input(difference, slot)?));
        self.is_in_place &= one.zip(other).is_some_and(|(one, other)| one == other);
        if let Some((node, _)) = bounded {
            self.nodes.push(node);
            // The Max with 0 changes a difference only if rounding made it negative. No ε has this
            // effect, so none is recorded.
            self.epsilon = None;
        }
        self.nodes.extend(nodes);
        self.nodes.push(difference);
        fits.then_some(Squares {
            moment: Moment::Variance,
            ..squares
        })
    }

    /// Reads `max(0, v)`. Returns the Max and `v`.
    fn bounded_by_zero(&self, value: ValueId) -> Option<(NodeId, ValueId)> {
        let graph = self.view.graph;
        let node = self.view.made_by(value, &["Max"])?;
        let &[Some(first), Some(second)] = graph.inputs(node) else {
            return None;
        };
        let bound_first = [(second, first), (first, second)];
        let (_, inner) = bound_first
            .into_iter()
            .find(|&(bound, _)| self.view.scalar(bound) == Some(0.0))?;
        Some((node, inner))
    }

    /// The value whose square is `value`. `None` if `value` is not a square.
    fn square(&mut self, value: ValueId) -> Option<ValueId> {
        let graph = self.view.graph;
        let square = self.view.made_by(value, &["Mul", "Pow"])?;
        let base = graph.input(square, 0)?;
        let is_square = match graph.op(square)? {
            "Mul" => graph.input(square, 1) == Some(base),
            _ => self.view.scalar(graph.input(square, 1)?) == Some(2.0),
        };
        self.nodes.push(square);
        is_square.then_some(base)
    }

    /// The operand and the axes of a reduction; `None` if its axes are unknown.
    fn reduction(&self, node: NodeId) -> Option<(ValueId, Vec<usize>)> {
        let inner = self.view.graph.input(node, 0)?;
        let rank = self.view.facts.rank(inner)?;
        let (axes, _) = self.view.at(node).reduction(rank).ok()?;
        Some((inner, axes))
    }

    /// The nodes of a mean, its operand, and its axes. The mean is a ReduceMean, or a ReduceSum
    /// divided by the number of terms.
    fn mean(&self, value: ValueId) -> Option<(Vec<NodeId>, ValueId, Vec<usize>)> {
        let graph = self.view.graph;
        if let Some(node) = self.view.made_by(value, &["ReduceMean"]) {
            let (inner, axes) = self.reduction(node)?;
            return Some((vec![node], inner, axes));
        }
        let node = self.view.made_by(value, &["Mul", "Div"])?;
        let is_quotient = graph.is(node, "Div");
        let places = if is_quotient { 0..1 } else { 0..2 };
        let (sum, number) = places.into_iter().find_map(|slot| {
            Some((
                graph.input(node, slot)?,
                self.view.scalar(graph.input(node, 1 - slot)?)?,
            ))
        })?;
        let reduce = self.view.made_by(self.origin(sum), &["ReduceSum"])?;
        let (inner, axes) = self.reduction(reduce)?;
        let extents = axes.iter().map(|&axis| self.view.facts.extent(inner, axis));
        let count = extents.product::<Option<usize>>()? as f64;
        let is_mean = match is_quotient {
            true => number == count,
            false => (number * count - 1.0).abs() < ROUNDED,
        };
        is_mean.then(|| (vec![reduce, node], inner, axes))
    }

    /// Reads the numerator `x` or `x − mean(x)`. Returns `x` and whether the mean is subtracted.
    /// `None` if `squares` are the squares of a value other than the numerator.
    ///
    /// Movements may lie between the squared value and the numerator, so their shapes may differ.
    pub(super) fn dividend(
        &mut self,
        numerator: ValueId,
        squares: &Squares,
    ) -> Option<(ValueId, bool)> {
        let plain = self.plain(numerator);
        let below = self.origin(squares.base);
        let centre = self.centred(plain);
        let is_same = below == plain || self.origin(plain) == below;
        let centred_square = self.centred(below);
        let fits = match (&centre, &centred_square) {
            // The mean that the numerator subtracts must be the mean in the variance.
            (Some((x, along)), _) if squares.moment == Moment::Variance => {
                *along == squares.axes && self.plain(*x) == self.plain(squares.base)
            }
            _ if squares.moment == Moment::Variance => false,
            // The numerator and the squares may subtract the same mean in separate nodes.
            (Some(one), Some(other)) => one == other && one.1 == squares.axes,
            (None, None) => is_same,
            _ => false,
        };
        fits.then_some(match centre {
            Some((x, _)) => (x, true),
            None => (plain, false),
        })
    }

    /// Reads `x − mean(x)`. Returns `x` and the axes of the mean.
    fn centred(&mut self, value: ValueId) -> Option<(ValueId, Vec<usize>)> {
        let graph = self.view.graph;
        let value = self.plain(value);
        let node = self.view.made_by(value, &["Sub"])?;
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
