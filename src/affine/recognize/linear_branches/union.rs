//! One operator for several terms of a sum.

use crate::affine::recognize::linear_branches::operator::operator;
use crate::affine::recognize::linear_branches::read::{self, Branch, Windowed};
use crate::affine::recognize::linear_branches::sum::Sum;
use crate::affine::recognize::linear_branches::summand::Summand;
use crate::affine::recognize::linear_branches::window::Window;
use crate::affine::recognize::{Replacement, View};
use crate::analysis::broadcast::LARGEST;
use crate::hash::HashSet;
use crate::ir::builder::Maker;
use crate::ir::{NodeId, ValueId};
use crate::recipe::Recipe;
use crate::refusal::{Reason, Refusal};

/// An operator that computes the sum of several operators.
pub(super) struct Union<'m> {
    /// The operator that the merged operator replaces and whose name it keeps.
    like: &'m Windowed,
    /// The indices of the terms that the merged operator computes.
    parts: HashSet<usize>,
    pub branch: Branch,
}

impl<'m> Union<'m> {
    /// Merges a group of terms on one value into the first operator of the group that can absorb
    /// other terms.
    ///
    /// # Errors
    /// The first refusal, if no operator can absorb other terms.
    pub(super) fn new(
        view: &View,
        parts: &'m [Summand],
        base: ValueId,
        group: &[usize],
    ) -> Result<Self, Refusal> {
        let mut refused = None;
        for (place, &first) in group[..group.len() - 1].iter().enumerate() {
            let Some(like) = parts[first].operator(view, base) else {
                break;
            };
            match Self::around(view, parts, like, &group[place..]) {
                Ok(merged) => return Ok(merged),
                Err(refusal) => refused = refused.or(Some(refusal)),
            }
        }
        Err(refused
            .unwrap_or_else(|| Refusal::new(Reason::UnknownShape, view.graph.value_name(base))))
    }

    /// Adds to the first term of a group all other terms that fit. Refused if there are other terms
    /// and none fits.
    fn around(
        view: &View,
        parts: &[Summand],
        like: &'m Windowed,
        group: &[usize],
    ) -> Result<Self, Refusal> {
        let beside = &like.branch.as_ref().map_err(Refusal::clone)?.window;
        let first = parts[group[0]].branch(view, like.base, beside)?;
        let (mut window, mut work) = (beside.clone(), first.work);
        let mut branches = vec![(group[0], first)];
        let mut refused = None;
        for &part in &group[1..] {
            let branch = match parts[part].branch(view, like.base, beside) {
                Ok(branch) => branch,
                Err(refusal) => {
                    refused = refused.or(Some(refusal));
                    continue;
                }
            };
            match joined((&window, work), (&branch.window, branch.work)) {
                Ok(joined) => {
                    (work, window) = (joined.work(), joined);
                    branches.push((part, branch));
                }
                Err(reason) => {
                    let value = view.graph.value_name(parts[part].term.value);
                    refused = refused.or_else(|| Some(Refusal::new(reason, value)));
                }
            }
        }
        if let Some(refusal) = refused.filter(|_| branches.len() == 1) {
            return Err(refusal);
        }
        let union = Self::sum(like, branches, window)
            .ok_or_else(|| Refusal::new(Reason::UnknownShape, view.graph.name(like.node)))?;
        Ok(union.with_constants(view, parts))
    }

    /// Adds up the weights and biases of `branches`, extended to the window `window`. `None` if a
    /// shape does not fit.
    fn sum(like: &'m Windowed, branches: Vec<(usize, Branch)>, window: Window) -> Option<Self> {
        let (mut weight, mut bias) = (None::<Recipe>, None::<Recipe>);
        let mut parts = HashSet::default();
        for (part, branch) in branches {
            let wide = branch.window.widened(&branch.weight, &window)?;
            weight = Some(plus(weight.as_ref(), &wide)?);
            if let Some(own) = branch.bias {
                bias = Some(plus(bias.as_ref(), &own)?);
            }
            parts.insert(part);
        }
        let weight = weight.filter(|weight| weight.shape() == window.shape())?;
        let work = window.work();
        Some(Self {
            like,
            parts,
            branch: Branch {
                window,
                weight,
                bias,
                work,
            },
        })
    }

    /// Adds to the bias the constants of the sum that have one scalar for each channel.
    fn with_constants(mut self, view: &View, parts: &[Summand]) -> Self {
        for (place, part) in parts
            .iter()
            .enumerate()
            .filter(|(_, part)| part.is_constant())
        {
            let Some(shift) = read::shift(view, part.term.value, self.like) else {
                continue;
            };
            let shift = if part.term.negative {
                shift.neg()
            } else {
                shift
            };
            let Some(bias) = plus(self.branch.bias.as_ref(), &shift) else {
                continue;
            };
            self.branch.bias = Some(bias);
            self.parts.insert(place);
        }
        self
    }

    /// The nodes that are no longer needed, in execution order.
    pub(super) fn nodes(&self, view: &View, sum: &Sum, parts: &[Summand]) -> Vec<NodeId> {
        let own = self
            .parts
            .iter()
            .flat_map(|&part| parts[part].nodes(self.like.base));
        let mut nodes: Vec<NodeId> = own.chain(&sum.nodes).copied().collect();
        nodes.sort_by_key(|&node| view.graph.place(node));
        nodes.dedup();
        nodes
    }

    /// Writes the merged operator, and the additions of all other terms to its result.
    ///
    /// # Errors
    /// The element type of the weight is unknown.
    pub(super) fn replacement(
        &self,
        view: &View,
        sum: &Sum,
        parts: &[Summand],
    ) -> Result<Replacement, Refusal> {
        let (graph, node) = (view.graph, self.like.node);
        let base = graph.value_name(self.like.base);
        let mut maker = Maker::new(graph, node);
        let mut value = operator(view, self.like, base, &self.branch, &mut maker)
            .map_err(|reason| Refusal::new(reason, graph.name(node)))?;
        for (_, Summand { term, .. }) in parts
            .iter()
            .enumerate()
            .filter(|(place, _)| !self.parts.contains(place))
        {
            let op = if term.negative { "Sub" } else { "Add" };
            value = maker.op(op, &[&value, graph.value_name(term.value)], vec![]);
        }
        let (mut made, constants) = maker.finish(graph.value_name(sum.output));
        // The merged operator keeps the name of the operator that it replaces.
        made[0].name = Some(graph.name(node).to_owned());
        Ok(Replacement {
            nodes: self.nodes(view, sum, parts),
            made,
            constants,
        })
    }
}

/// The union of two windows, if the merged operator takes no more work than both operators
/// together.
fn joined(
    (one, work): (&Window, usize),
    (other, more): (&Window, usize),
) -> Result<Window, Reason> {
    let joined = one.joined(other).ok_or(Reason::Unaligned)?;
    let apart = work.saturating_add(more).saturating_add(joined.channels[1]);
    match joined.work() {
        work if work > apart => Err(Reason::MoreWork(format!(
            "{work} products at each place, not {apart}"
        ))),
        work if work > one.work().max(LARGEST) => Err(Reason::TooLarge(work)),
        _ => Ok(joined),
    }
}

fn plus(sum: Option<&Recipe>, next: &Recipe) -> Option<Recipe> {
    sum.map_or_else(|| Some(next.clone()), |sum| sum.add(next))
}
