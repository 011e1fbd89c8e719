//! Steps at nodes that read a part of a value. The affine that such a node needs covers either only
//! this part or the whole value.

use crate::affine::Affine;
use crate::affine::linear::elementwise::shrunk;
use crate::affine::propagate::backward::readers::is_shared;
use crate::affine::propagate::backward::state::BackwardPropagation;
use crate::affine::propagate::node_step::step_forward;
use crate::affine::rule::{At, Rule, Step};
use crate::ir::NodeId;
use crate::onnx::operator::Category;
use crate::refusal::Reason;

impl BackwardPropagation<'_, '_> {
    /// Finds the step for an affine that is needed on the result of a node. It is the step of the
    /// node's rule, or a step that needs an affine of the whole operand.
    pub(super) fn step(
        &self,
        node: NodeId,
        rule: &dyn Rule,
        slot: usize,
        affine: &Affine,
    ) -> Result<Step, Reason> {
        let step = rule.backward(&self.overlay.at(node), slot, affine);
        if !self.mode.waits_for_readers {
            return self.or_whole(node, affine, step);
        }
        let fits = step.as_ref().is_ok_and(|step| {
            let spares = self.mode.spares_shared_constants
                && !step.folds.is_empty()
                && is_shared(self.overlay, node);
            // All tokens of a stream share one basis, so it cannot change for only a part of them.
            let is_part = self.mode.compensates && needs_more_axes(step, affine);
            !spares && !is_part && self.has_own_inputs(node, step)
        });
        match fits {
            true => step,
            false => self.whole(node, affine).map_or(step, Ok),
        }
    }

    /// Adds an affine of the whole operand as another alternative, if the step of the rule needs an
    /// affine that varies along more axes than `affine`.
    ///
    /// Sometimes no operator absorbs an affine that only a part of its result needs, for example a
    /// part of scores that a relative shift reads. If the other parts have no reader, the affine
    /// may be applied to the whole operand instead.
    fn or_whole(
        &self,
        node: NodeId,
        affine: &Affine,
        step: Result<Step, Reason>,
    ) -> Result<Step, Reason> {
        match step {
            Ok(mut step) if step.folds.is_empty() && needs_more_axes(&step, affine) => {
                if let Some(whole) = self.whole(node, affine) {
                    step.ways.extend(whole.ways);
                }
                Ok(step)
            }
            Ok(step) => Ok(step),
            // The rule refuses if the size of the part is unknown. An affine of the whole operand
            // does not depend on this size.
            Err(reason) => self.whole(node, affine).ok_or(reason),
        }
    }

    /// The step of a node that reads only a part of its operand, if the affine is needed on the
    /// whole operand. The affine is a scalar, or constant along the axes of selection. Other nodes
    /// may read the other parts.
    fn whole(&self, node: NodeId, affine: &Affine) -> Option<Step> {
        let graph = self.overlay.graph;
        let slot = self.varying_slot(node)?;
        let at = self.overlay.at(node);
        let rank = at.rank(slot).ok()?;
        graph.only_output(node)?;
        let candidates = on_operand(affine, rank);
        // Each summand of a product contains every operand exactly once, so a scalar passes however
        // the operands broadcast.
        if affine.is_number() && graph.category(node) == Some(Category::MatrixProduct) {
            let first = candidates.into_iter().next();
            return first.map(|wanted| Step::pass_on(slot, wanted));
        }
        let mut fitting = candidates.into_iter().filter(|wanted| {
            // If the operand broadcasts, one of its elements becomes several elements of the
            // result, all of which must need the same affine.
            shrunk(&at, slot, wanted).is_ok() && self.passes_unchanged(&at, slot, wanted, affine)
        });
        fitting.next().map(|wanted| Step::pass_on(slot, wanted))
    }

    /// The first non-constant input whose elements a node reads.
    fn varying_slot(&self, node: NodeId) -> Option<usize> {
        let graph = self.overlay.graph;
        (0..graph.inputs(node).len()).find(|&slot| {
            let input = graph.input(node, slot);
            graph.reads_elements(node, slot)
                && input.is_some_and(|input| {
                    !self
                        .overlay
                        .constants
                        .is_constant(self.overlay.source(input))
                })
        })
    }

    /// Whether a node passes the affine `operand` of an input as the affine `result`, and otherwise
    /// stays unchanged.
    fn passes_unchanged(&self, at: &At, slot: usize, operand: &Affine, result: &Affine) -> bool {
        let mut inputs = vec![None; at.arity()];
        inputs[slot] = Some(operand.clone());
        step_forward(self.overlay, at.node, &inputs).is_ok_and(|step| {
            let mut made = step.ways.iter().flatten();
            step.only_passes_on() && made.all(|(_, made)| is_equal(made, result))
        })
    }
}

/// Whether a step needs an affine that varies along more axes than the affine on the result.
fn needs_more_axes(step: &Step, affine: &Affine) -> bool {
    let axes = affine.axes().len();
    let mut wanted = step.ways.iter().flatten();
    wanted.any(|(_, wanted)| wanted.axes().len() > axes)
}

/// Whether two affines are equal. If `other` is a scale by one scalar, the zeros of the shift of
/// `one` may have any shape.
fn is_equal(one: &Affine, other: &Affine) -> bool {
    match other.is_number() {
        true => one.has_no_shift() && *one.scale == *other.scale,
        false => one == other,
    }
}

/// Candidates for the affine on an operand of rank `rank` that gives `affine` on the result.
fn on_operand(affine: &Affine, rank: usize) -> Vec<Affine> {
    if affine.is_number() {
        return reshaped(affine, &vec![1; rank]).into_iter().collect();
    }
    match rank.checked_sub(affine.rank()) {
        Some(0) => vec![affine.clone()],
        // The node selects one place along an axis that the result lacks.
        Some(1) => (0..rank)
            .filter_map(|axis| with_axis(affine, axis))
            .collect(),
        _ => vec![],
    }
}

/// Inserts an axis into an affine, along which the affine is constant.
fn with_axis(affine: &Affine, axis: usize) -> Option<Affine> {
    let scale = affine
        .scale
        .reshape(&with_one(affine.scale.shape(), axis))?;
    let shift = affine
        .shift
        .reshape(&with_one(affine.shift.shape(), axis))?;
    Some(Affine::new(scale, shift))
}

/// A shape with an additional axis of extent 1.
fn with_one(shape: &[usize], axis: usize) -> Vec<usize> {
    [&shape[..axis], &[1], &shape[axis..]].concat()
}

fn reshaped(affine: &Affine, shape: &[usize]) -> Option<Affine> {
    let scale = affine.scale.reshape(shape)?;
    let shift = affine.shift.reshape(shape)?;
    Some(Affine::new(scale, shift))
}
