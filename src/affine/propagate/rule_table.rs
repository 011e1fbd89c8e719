//! The rule for each operator, from the tables of [`rules`](crate::affine::propagate::rules) and
//! [`linear`](crate::affine::linear).

use std::sync::LazyLock;

use crate::affine::Affine;
use crate::affine::linear::LINEAR;
use crate::affine::propagate::rules::RULES;
use crate::affine::rule::{At, Rule, Side, Step, by_operator};
use crate::hash::HashMap;
use crate::ir::regions::{BEGIN, END};
use crate::onnx::operator::{attributes, is_quantized};
use crate::refusal::Reason;

/// The rule for a node, if ONNX defines all its attributes.
///
/// # Errors
/// [`Reason::Attribute`] for an attribute that ONNX does not define, or the reason why there is no
/// rule.
pub(crate) fn rule_of(at: &At) -> Result<&'static dyn Rule, Reason> {
    let operator @ (domain, op) = at.graph.domain_op(at.node);
    if let Some(known) = attributes(op).filter(|_| domain.is_empty()) {
        at.only_attributes(known)?;
    }
    rule(operator).ok_or_else(|| match at.graph.op(at.node) {
        _ if is_quantized(domain, op) => Reason::Quantized,
        _ if [BEGIN, END].contains(&domain) => Reason::NotLinear(op.into()),
        Some(op) => Reason::NotLinear(op.into()),
        None => Reason::UnknownOperator(format!("{domain}.{op}")),
    })
}

/// Finds the rule for a domain and an operator name. `None` if there is no rule.
pub(crate) fn rule(operator: (&str, &str)) -> Option<&'static dyn Rule> {
    static BY_OPERATOR: LazyLock<HashMap<(&str, &str), &dyn Rule>> = LazyLock::new(|| {
        let absorbing = LINEAR.iter().map(|&linear| linear as &dyn Rule);
        by_operator(RULES.iter().copied().chain(absorbing))
    });
    BY_OPERATOR.get(&operator).copied()
}

/// Whether the constants of a layer absorb a whole affine from a side.
///
/// The rule of the layer decides, since it knows the summand after the product. A scale on the
/// result of `x·W + c`, for example, reaches `c` only if `c` is a constant.
pub(crate) fn takes_all(at: &At, side: Side, affine: &Affine) -> bool {
    let Ok(rule) = rule_of(at) else { return false };
    let step = match side {
        Side::Operand(slot) => {
            let mut inputs = vec![None; at.arity()];
            let Some(input) = inputs.get_mut(slot) else {
                return false;
            };
            *input = Some(affine.clone());
            rule.forward(at, &inputs)
        }
        Side::Result => rule.backward(at, 0, affine),
        Side::Constant(_) | Side::Rows { .. } => return false,
    };
    let Ok(Step { folds, ways, .. }) = step else {
        return false;
    };
    matches!(&folds[..], [(taken, _)] if *taken == side) && ways.iter().all(Vec::is_empty)
}
