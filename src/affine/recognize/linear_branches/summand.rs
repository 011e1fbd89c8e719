//! The terms of a sum, each with the value in which it is linear.

use crate::affine::recognize::linear_branches::read::{Branch, Windowed};
use crate::affine::recognize::linear_branches::sum::Addend;
use crate::affine::recognize::linear_branches::window::Window;
use crate::affine::recognize::{Chain, View};
use crate::ir::{NodeId, Reader, ValueId};
use crate::refusal::{Reason, Refusal};

/// A term of a sum, with the operators that compute it.
pub(super) struct Summand<'v> {
    pub term: Addend,
    form: SummandForm<'v>,
}

enum SummandForm<'v> {
    Operator(Windowed),
    /// An affine. An affine. It does not show which axis has the channels. So it merges only if
    /// another summand is an operator, which shows this axis.
    Chain(&'v Chain),
    Constant,
    /// Any other value.
    Value,
}

impl<'v> SummandForm<'v> {
    /// The affine that outputs a value, merged with the mean over windows before it if there is
    /// one.
    fn from_chain(view: &'v View, value: ValueId) -> Option<Self> {
        let chain = view
            .chain(view.maker(value)?)
            .filter(|chain| chain.output == value)?;
        Some(match Windowed::before_affine(view, chain) {
            Some(operator) => SummandForm::Operator(operator),
            None => SummandForm::Chain(chain),
        })
    }
}

impl<'v> Summand<'v> {
    pub(super) fn new(view: &'v View, term: Addend) -> Self {
        let form = match Windowed::making(view, term.value) {
            _ if view.constants.is_constant(term.value) => SummandForm::Constant,
            Some(operator) => SummandForm::Operator(operator),
            None => SummandForm::from_chain(view, term.value).unwrap_or(SummandForm::Value),
        };
        Summand { term, form }
    }

    /// The values in which the term may be linear: the input of its operators, and the term itself.
    pub(super) fn bases(&self) -> impl Iterator<Item = ValueId> {
        let read = match &self.form {
            SummandForm::Operator(operator) => Some(operator.base),
            SummandForm::Chain(chain) => Some(chain.input),
            SummandForm::Constant | SummandForm::Value => None,
        };
        read.into_iter().chain([self.term.value])
    }

    pub(super) fn is_constant(&self) -> bool {
        matches!(self.form, SummandForm::Constant)
    }

    /// The operator on `base` that computes the term, if it has a weight to which other weights can
    /// be added.
    pub(super) fn operator(&self, view: &View, base: ValueId) -> Option<&Windowed> {
        match &self.form {
            SummandForm::Operator(operator) => {
                Some(operator).filter(|operator| operator.base == base && operator.has_weight(view))
            }
            _ => None,
        }
    }

    /// A sort key. The other terms are added to the term with the largest key, which is a single
    /// operator with a large weight if there is one.
    pub(super) fn rank(&self, view: &View, base: ValueId) -> (bool, bool, usize) {
        let Some(operator) = self.operator(view, base) else {
            return (false, false, 0);
        };
        let work = operator
            .branch
            .as_ref()
            .map_or(0, |branch| branch.window.work());
        (true, operator.nodes.len() == 1, work)
    }

    /// The nodes that compute the term from `base`.
    pub(super) fn nodes(&self, base: ValueId) -> &[NodeId] {
        match &self.form {
            _ if self.term.value == base => &[],
            SummandForm::Operator(operator) => &operator.nodes,
            SummandForm::Chain(chain) => &chain.nodes,
            SummandForm::Constant | SummandForm::Value => &[],
        }
    }

    /// The term as a branch on a value, next to an operator with this window.
    ///
    /// # Errors
    /// The reason why the term is not linear, or why its nodes have to stay.
    pub(super) fn branch(
        &self,
        view: &View,
        base: ValueId,
        beside: &Window,
    ) -> Result<Branch, Refusal> {
        let name = view.graph.value_name(self.term.value);
        let branch = match &self.form {
            _ if self.term.value == base => Branch::identity(beside),
            SummandForm::Operator(operator) => Some(operator.branch.clone()?),
            SummandForm::Chain(chain) => Branch::affine(chain, beside),
            SummandForm::Constant | SummandForm::Value => None,
        };
        let branch = branch.ok_or_else(|| Refusal::new(Reason::WrongAxis, name))?;
        if self.term.value != base {
            self.check_read_once(view)
                .map_err(|reason| Refusal::new(reason, name))?;
        }
        Ok(if self.term.negative {
            branch.negated()
        } else {
            branch
        })
    }

    fn check_read_once(&self, view: &View) -> Result<(), Reason> {
        let readers = view.graph.readers(self.term.value);
        match readers {
            [Reader::Node { .. }] => Ok(()),
            _ if readers.contains(&Reader::Output) => Err(Reason::GraphOutput),
            _ if readers
                .iter()
                .any(|reader| matches!(reader, Reader::Capture { .. })) =>
            {
                Err(Reason::CapturedBySubgraph)
            }
            _ => Err(Reason::OtherReader),
        }
    }
}
