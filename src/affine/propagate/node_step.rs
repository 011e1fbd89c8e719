//! The step of an affine at one node of the overlay: the rule of the operator, limited by what is planned for the node so far.

use crate::affine::Affine;
use crate::affine::fold::{Rule, Step};
use crate::affine::linear::linear;
use crate::affine::propagate::overlay::GraphOverlay;
use crate::affine::propagate::rule_table;
use crate::ir::{NodeId, ValueId};
use crate::recipe::Numbers;
use crate::refusal::{Reason, Refusal};
use crate::shape::facts::{Shape, extent};

/// The rule for a node.
///
/// # Errors
/// The reason why there is no rule.
pub fn rule_of(overlay: &GraphOverlay, node: NodeId) -> Result<&'static dyn Rule, Reason> {
    if overlay.replaced.contains(&node) {
        // Its replacement may let the affine pass in the next repetition.
        return Err(Reason::Changed);
    }
    let rule = rule_table::rule_of(&overlay.at(node))?;
    // A constant of zeros passes every scale; after a fold it may have other numbers.
    if rule.reads_numbers() && overlay.is_touched(node) {
        Err(Reason::Changed)
    } else {
        Ok(rule)
    }
}

/// The rule through which an affine may propagate.
///
/// # Errors
/// The reason why there is no rule, or why it does not hold any more.
pub fn passable(overlay: &GraphOverlay, node: NodeId) -> Result<&'static dyn Rule, Reason> {
    let linear = linear(overlay.graph.domain_op(node));
    if overlay.is_touched(node) && linear.is_some_and(|linear| !linear.is_layer()) {
        // Its constant is no longer the one that a rule would read.
        return Err(Reason::Changed);
    }
    rule_of(overlay, node)
}

/// The step of a node for the affines of its inputs.
///
/// # Errors
/// A refusal at the node, where the affines can neither pass nor be absorbed.
pub fn step_forward(
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

/// A rule sees the node as the model has it. The overlay may have added a summand to the node, which
/// stops an affine that only passes; and an activation keeps its constants.
///
/// # Errors
/// A refusal at the node, where its new summand or activation stops the affine.
pub fn passes(overlay: &GraphOverlay, node: NodeId, step: Step) -> Result<Step, Refusal> {
    let changes = !step.folds.is_empty() || step.bypass.is_some();
    let reason = match changes {
        false if overlay.is_shifted(node) => Reason::Changed,
        true if overlay.is_of_activation(node) => Reason::Activation,
        _ => return Ok(step),
    };
    Err(Refusal::new(reason, overlay.graph.name(node)))
}

/// Whether a value is known to have other extents than an affine of it. Models that contradict
/// themselves are read too, and rules rely on fitting extents.
pub fn contradicts(affine: &Affine, shape: Result<Shape, Reason>) -> bool {
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

/// The input with which a scale-transparent node shares every scale, forward and backward, unless
/// the node refuses the scale or absorbs it: its only input that is not constant.
pub fn transparent_input(overlay: &GraphOverlay, node: NodeId) -> Option<ValueId> {
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

/// Whether a node only puts values side by side, so that a scale of one of them is one of all.
pub fn concatenates(overlay: &GraphOverlay, node: NodeId) -> bool {
    overlay.graph.is(node, "Concat")
}
