//! The step of an affine at one node of the overlay. It follows from the rule of the operator and
//! from the changes of the node that are planned so far.

use crate::affine::Affine;
use crate::affine::linear::linear;
use crate::affine::propagate::overlay::GraphOverlay;
use crate::affine::propagate::rule_table;
use crate::affine::rule::{Rule, Step};
use crate::ir::{NodeId, ValueId};
use crate::recipe::Numbers;
use crate::refusal::{Reason, Refusal};
use crate::shape::facts::{Shape, extent};

/// Returns the rule for a node, unless planned changes of the node make the rule invalid.
///
/// # Errors
/// The reason why there is no rule, or [`Reason::Changed`] if the rule is invalid.
pub(crate) fn rule_of(overlay: &GraphOverlay, node: NodeId) -> Result<&'static dyn Rule, Reason> {
    if overlay.replaced.contains(&node) {
        // The affine is refused for now. In a later run of the pass, it may cross the nodes that
        // replace this node.
        return Err(Reason::Changed);
    }
    let rule = rule_table::rule_of(&overlay.at(node))?;
    // The rule may rely on a constant of zeros, which passes every scale. A fold may have changed
    // the elements of this constant.
    if rule.reads_numbers() && overlay.is_touched(node) {
        Err(Reason::Changed)
    } else {
        Ok(rule)
    }
}

/// Returns the rule that lets an affine propagate forward past a node.
///
/// # Errors
/// The reason why there is no rule, or why it is no longer valid.
pub(crate) fn passable(overlay: &GraphOverlay, node: NodeId) -> Result<&'static dyn Rule, Reason> {
    let linear = linear(overlay.graph.domain_op(node));
    if overlay.is_touched(node) && linear.is_some_and(|linear| !linear.is_layer()) {
        // A fold changed the constant, so the rule would read outdated elements.
        return Err(Reason::Changed);
    }
    rule_of(overlay, node)
}

/// Finds the step of a node whose inputs carry the affines `inputs`, with `None` for an input
/// without an affine.
///
/// # Errors
/// A refusal at the node, if it can neither pass nor absorb the affines.
pub(crate) fn step_forward(
    overlay: &GraphOverlay,
    node: NodeId,
    inputs: &[Option<Affine>],
) -> Result<Step, Refusal> {
    let step = step_of_rule(overlay, node, inputs)
        .map_err(|reason| Refusal::new(reason, overlay.graph.name(node)))?;
    passes(overlay, node, step)
}

fn step_of_rule(
    overlay: &GraphOverlay,
    node: NodeId,
    inputs: &[Option<Affine>],
) -> Result<Step, Reason> {
    let at = overlay.at(node);
    for (slot, affine) in inputs.iter().enumerate() {
        if affine
            .as_ref()
            .is_some_and(|affine| contradicts(affine, at.shape(slot)))
        {
            return Err(Reason::UnknownShape);
        }
    }
    passable(overlay, node)?.forward(&at, inputs)
}

/// Checks a step against the planned changes of the node. The rule sees the node in the model. But
/// a planned fold may add a summand to the node's result, and then a step that changes nothing in
/// the node is refused. The constants of an activation must not change.
///
/// # Errors
/// A refusal at the node, if its new summand or its activation stops the affine.
pub(crate) fn passes(overlay: &GraphOverlay, node: NodeId, step: Step) -> Result<Step, Refusal> {
    let changes = !step.folds.is_empty() || step.bypass.is_some();
    let reason = match changes {
        false if overlay.is_shifted(node) => Reason::Changed,
        true if overlay.is_of_activation(node) => Reason::Activation,
        _ => return Ok(step),
    };
    Err(Refusal::new(reason, overlay.graph.name(node)))
}

/// Whether an affine does not broadcast to the known extents of the value to which it is applied.
/// This happens in models with contradictory shapes. The callers then refuse the affine, because
/// rules do not check the extents.
pub(crate) fn contradicts(affine: &Affine, shape: Result<Shape, Reason>) -> bool {
    shape.is_ok_and(|shape| {
        !has_extents(&affine.scale, &shape) || !has_extents(&affine.shift, &shape)
    })
}

/// Whether an array broadcasts to a shape, as far as the extents of the shape are known.
fn has_extents(numbers: &Numbers, shape: &Shape) -> bool {
    let mut extents = numbers.shape().iter().zip(shape);
    numbers.ndim() == shape.len()
        && extents
            .all(|(&count, dim)| count == 1 || extent(dim).is_none_or(|extent| extent == count))
}

/// The only non-constant input of a scale-transparent node. `None` for any other node, or if
/// several inputs are not constant. Unless the node refuses or absorbs a scale, its result and this
/// input have equal scales, forward and backward.
pub(crate) fn transparent_input(overlay: &GraphOverlay, node: NodeId) -> Option<ValueId> {
    let graph = overlay.graph;
    let read = (0..graph.inputs(node).len()).filter(|&slot| graph.reads_elements(node, slot));
    let inputs = read
        .filter_map(|slot| graph.input(node, slot))
        .map(|input| overlay.source(input));
    let mut varying = inputs.filter(|&input| !overlay.constants.is_constant(input));
    let (only, other) = (varying.next()?, varying.next());
    let is_transparent =
        rule_table::rule(graph.domain_op(node)).is_some_and(|rule| rule.is_scale_transparent());
    (is_transparent && other.is_none()).then_some(only)
}

/// Whether a node only concatenates values, so that one of its inputs can carry a scale only if all
/// of them do.
pub(crate) fn concatenates(overlay: &GraphOverlay, node: NodeId) -> bool {
    overlay.graph.is(node, "Concat")
}
