//! Finds redundant activations: one of two successive activations may change nothing.
//!
//! A clamp maps each number to the nearest number of an interval: Clip between its bounds, Relu
//! from 0 upward. Of two clamps, the one whose interval contains the other interval is redundant. A
//! rounding is redundant after another rounding.
//!
//! Pairs are searched before anything folds. The prover knows pairs of the original model by laws
//! of its own, but it does not know a pair that results only when the affine in between folds. A
//! clamp may turn `−0` into `0`, so it stays if an operator after it [observes the sign](ZeroSigns)
//! of a zero.

use crate::analysis::Analysis;
use crate::analysis::zero_sign::ZeroSigns;
use crate::ir::regions::region_path;
use crate::ir::{NodeId, Reader, ValueId};

/// The first operator set in which the bounds of Clip are inputs rather than attributes.
const BOUNDS_ARE_INPUTS: i64 = 11;

/// An activation that changes nothing if it is applied to its own result.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Idempotent {
    Clamp(ClampBounds),
    /// Ceil, Floor or Round.
    Rounding,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct ClampBounds {
    low: f64,
    high: f64,
}

impl ClampBounds {
    fn contains(self, other: Self) -> bool {
        self.low <= other.low && other.high <= self.high
    }
}

impl Idempotent {
    /// Whether this activation leaves each result of `first` unchanged.
    fn is_redundant_behind(self, first: Self) -> bool {
        match (self, first) {
            (Self::Rounding, Self::Rounding) => true,
            (Self::Clamp(own), Self::Clamp(other)) => own.contains(other),
            _ => false,
        }
    }

    /// Whether `next` has the same results without this activation before it. Of two equal
    /// activations, the first stays.
    fn is_redundant_before(self, next: Self) -> bool {
        match (self, next) {
            (Self::Clamp(own), Self::Clamp(other)) => own.contains(other) && own != other,
            _ => false,
        }
    }
}

/// Finds redundant activations in one graph.
pub(super) struct IdempotentPairs<'a> {
    pub analysis: &'a Analysis<'a>,
    pub signs: &'a ZeroSigns<'a>,
}

impl IdempotentPairs<'_> {
    /// The operand of a redundant activation, which its readers can read instead. `None` if the
    /// node is not redundant.
    pub(super) fn operand(&self, node: NodeId) -> Option<ValueId> {
        let graph = &self.analysis.graph;
        let own = self.activation(node)?;
        let output = graph.only_output(node)?;
        let is_redundant =
            self.is_redundant_behind(own, node) || self.is_redundant_before(own, node);
        let is_free = is_redundant && !self.signs.are_observed(output);
        graph.input(node, 0).filter(|_| is_free)
    }

    /// Whether a node changes nothing because its input is the result of another activation.
    fn is_redundant_behind(&self, own: Idempotent, node: NodeId) -> bool {
        let graph = &self.analysis.graph;
        let producer = graph
            .input(node, 0)
            .and_then(|input| graph.producer(input))
            .filter(|&(first, _)| self.is_in_one_body(first, node));
        producer
            .and_then(|(first, _)| self.activation(first))
            .is_some_and(|first| own.is_redundant_behind(first))
    }

    /// Whether a node can be removed because each reader of its result is an activation that has
    /// the same result without it. False if nothing reads the result.
    fn is_redundant_before(&self, own: Idempotent, node: NodeId) -> bool {
        let graph = &self.analysis.graph;
        let readers = graph
            .only_output(node)
            .map_or(&[][..], |output| graph.readers(output));
        !readers.is_empty()
            && readers.iter().all(|reader| match *reader {
                Reader::Node {
                    node: next,
                    input: 0,
                } => {
                    self.is_in_one_body(node, next)
                        && self
                            .activation(next)
                            .is_some_and(|next| own.is_redundant_before(next))
                }
                _ => false,
            })
    }

    fn is_in_one_body(&self, first: NodeId, next: NodeId) -> bool {
        let graph = &self.analysis.graph;
        region_path(graph.node(first)) == region_path(graph.node(next))
    }

    fn activation(&self, node: NodeId) -> Option<Idempotent> {
        let graph = &self.analysis.graph;
        let activation = match graph.op(node)? {
            "Ceil" | "Floor" | "Round" => Idempotent::Rounding,
            "Clip" => return self.clip(node),
            "Relu" => Idempotent::Clamp(ClampBounds {
                low: 0.0,
                high: f64::INFINITY,
            }),
            _ => return None,
        };
        let is_plain = self.analysis.at(node).only_attributes(&[]).is_ok();
        is_plain.then_some(activation)
    }

    /// Reads a Clip whose bounds are constants. `None` if a bound varies, or if the lower bound
    /// exceeds the upper one.
    fn clip(&self, node: NodeId) -> Option<Idempotent> {
        let at = self.analysis.at(node);
        let (low, high) = if at.opset() < BOUNDS_ARE_INPUTS {
            at.only_attributes(&["max", "min"]).ok()?;
            let [low, high] = ["min", "max"].map(|name| at.proto().attr_f(name).ok());
            // The default bounds are the limits of float32.
            let (low, high) = (low?.unwrap_or(f32::MIN), high?.unwrap_or(f32::MAX));
            (f64::from(low), f64::from(high))
        } else {
            at.only_attributes(&[]).ok()?;
            let low = self.bound(node, 1, f64::NEG_INFINITY)?;
            (low, self.bound(node, 2, f64::INFINITY)?)
        };
        (low <= high).then_some(Idempotent::Clamp(ClampBounds { low, high }))
    }

    /// The bound at an input, or `absent` if there is none. `None` if the bound is not a stored
    /// constant of the body in which the node is.
    fn bound(&self, node: NodeId, slot: usize, absent: f64) -> Option<f64> {
        let Analysis {
            graph, constants, ..
        } = self.analysis;
        let Some(bound) = graph.input(node, slot) else {
            return Some(absent);
        };
        let own_way = region_path(graph.node(node));
        let is_there = match graph.producer(bound) {
            Some((maker, _)) => region_path(graph.node(maker)) == own_way,
            None => own_way.is_empty(),
        };
        let is_stored = constants.stored(bound).is_some();
        (is_there && is_stored)
            .then(|| constants.scalar(bound))
            .flatten()
    }
}
