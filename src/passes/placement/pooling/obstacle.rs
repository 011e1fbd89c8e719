//! The reason why a mean of places stays after a linear operator, though it reads less work.
//!
//! A mean after an activation gets no reason, because no algebra moves it. A reason is given in
//! three cases: a normalization is between the linear operator and the mean; the weights of the
//! mean do not add up to 1 at all places, so that a bias cannot stay a bias; or several nodes read
//! the result, and each reads few places.

use super::{DEPTH, Mean, PassedNode, RULE};
use crate::affine::plan::Placed;
use crate::affine::recognize::View;
use crate::affine::recognize::decomposed_norm::core;
use crate::ir::{NodeId, Reader, ValueId};
use crate::onnx::operator::Category;
use crate::passes::placement::formula;
use crate::passes::placement::layer::ChannelOperator;
use crate::refusal::{Reason, Refusal};
use crate::shape::facts::Shape;

/// The node that stops a mean.
struct Obstacle {
    node: NodeId,
    why: Reason,
    /// The term that the mean would become if it passed the node.
    term: PassedNode,
}

/// The line in the plan for a mean that stays after a linear operator. `None` for another node, and
/// for a mean that moves or that no move would make cheaper.
pub(in crate::passes::placement) fn refused(view: &View, node: NodeId) -> Option<Placed> {
    let analysis = view.analysis;
    let mean = Mean::read(analysis, node)?;
    let shape = analysis.facts.shape(mean.value)?;
    let obstacle = mean.obstacle(view, mean.value, &shape, DEPTH)?;
    let first = obstacle.term.layers().first()?.node;
    if !mean.saves_enough(&obstacle.term, &shape) {
        return None;
    }
    let graph = &analysis.graph;
    let [before, after] = mean.work(analysis, &obstacle.term, graph.only_output(node)?)?;
    Some(Placed {
        rule: RULE,
        at: graph.name(first).to_owned(),
        before: formula(&before),
        after: formula(&after),
        why: Some(Refusal::new(obstacle.why, graph.name(obstacle.node))),
    })
}

impl Mean {
    /// The first obstacle between the mean of a value and a linear operator. `None` without an
    /// obstacle, or without a linear operator behind the obstacle.
    fn obstacle(
        &self,
        view: &View,
        value: ValueId,
        shape: &Shape,
        depth: usize,
    ) -> Option<Obstacle> {
        let analysis = view.analysis;
        let graph = &analysis.graph;
        let left = depth.checked_sub(1)?;
        let (node, _) = graph.producer(value)?;
        if graph.only_reader(value).is_none() {
            return self.shared(view, value, shape, left);
        }
        if self.is_of_places(analysis, node) {
            let whole = graph.input(node, 0)?;
            let mut mean = self.clone();
            mean.slices.push(node);
            let found = mean.obstacle(view, whole, &analysis.facts.shape(whole)?, left)?;
            let term = PassedNode::Slice(node, Box::new(found.term));
            return Some(Obstacle { term, ..found });
        }
        if let Some(found) = self
            .normalizer(view, node, shape.len(), left)
            .or_else(|| self.shift(view, node, shape, left))
        {
            return Some(found);
        }
        let operands = self.operands(analysis, node, shape.len())?;
        operands.into_iter().find_map(|(operand, is_same)| {
            let own = analysis.facts.shape(operand).filter(|_| !is_same)?;
            let has_rank = own.len() == shape.len();
            has_rank.then(|| self.obstacle(view, operand, &own, left))?
        })
    }

    /// The obstacle if a node normalizes by statistics of its input, which has the given rank, and
    /// nothing else reads this input.
    fn normalizer(&self, view: &View, node: NodeId, rank: usize, depth: usize) -> Option<Obstacle> {
        let graph = view.graph;
        let (op, input, nodes) = match graph.category(node)? {
            Category::Normalizer if graph.is(node, "BatchNormalization") => return None,
            Category::Normalizer => (graph.op(node)?, graph.input(node, 0)?, vec![node]),
            _ => {
                let core = core(view, node)?;
                let op = match core.centred {
                    true => "LayerNormalization",
                    false => "RMSNormalization",
                };
                (op, core.input, core.nodes)
            }
        };
        let shape = view
            .facts
            .shape(input)
            .filter(|shape| shape.len() == rank)?;
        let is_alone = view.is_read_by_no_other(input, &nodes);
        let term = self.through(view.analysis, input, &shape, depth);
        Some(Obstacle {
            node,
            why: Reason::NotLinear(op.to_owned()),
            term: term.filter(|_| is_alone)?,
        })
    }

    /// The obstacle if a node adds a bias that would not stay a bias, because the weights of the
    /// mean do not have one known sum.
    fn shift(&self, view: &View, node: NodeId, shape: &Shape, depth: usize) -> Option<Obstacle> {
        let analysis = view.analysis;
        if self.sum_of_weights.is_some() {
            return None;
        }
        let mut mean = self.clone();
        mean.sum_of_weights = Some(1);
        let is_biased = ChannelOperator::read(analysis, node).is_some_and(|layer| layer.has_bias)
            || self.operands(analysis, node, shape.len()).is_none()
                && matches!(analysis.graph.op(node), Some("Add" | "Sub"));
        let value = analysis.graph.only_output(node).filter(|_| is_biased)?;
        let why = match self.fewer {
            Some(_) => Reason::Padding,
            None => Reason::UnknownShape,
        };
        Some(Obstacle {
            node,
            why,
            term: mean.through(analysis, value, shape, depth)?,
        })
    }

    /// The obstacle if several nodes read a value, and each of them reads few places.
    fn shared(&self, view: &View, value: ValueId, shape: &Shape, depth: usize) -> Option<Obstacle> {
        let graph = view.graph;
        let are_few = graph.readers(value).iter().all(|reader| match *reader {
            Reader::Node { node, input: 0 } => self.reads_few(view, node),
            _ => false,
        });
        let (node, _) = graph.producer(value).filter(|_| are_few)?;
        Some(Obstacle {
            node,
            why: Reason::OtherReader,
            term: self.through(view.analysis, value, shape, depth)?,
        })
    }

    /// Whether a node is a mean of all places, or takes one place, or is a Slice of places that only
    /// such a node reads.
    fn reads_few(&self, view: &View, node: NodeId) -> bool {
        let (graph, at) = (view.graph, view.at(node));
        let is_mean = Mean::read(view.analysis, node).is_some_and(|mean| mean.axes == self.axes);
        let takes_one = graph.is(node, "Gather")
            && at
                .attr("axis", 0)
                .is_ok_and(|axis| self.axes.contains(&(axis as usize)))
            && at.rank(1) == Ok(0);
        let is_slice = self.is_of_places(view.analysis, node);
        let sliced = graph.only_output(node).filter(|_| is_slice);
        let reader = sliced.and_then(|value| graph.only_reader(value));
        is_mean || takes_one || reader.is_some_and(|(reader, _)| self.reads_few(view, reader))
    }
}
