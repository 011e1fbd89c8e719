//! The terms of a sum, as far as each is linear in something.

use crate::affine::recognize::linear_branches::read::{Branch, Windowed};
use crate::affine::recognize::linear_branches::sum::Addend;
use crate::affine::recognize::linear_branches::window::Window;
use crate::affine::recognize::{Chain, View};
use crate::ir::{NodeId, Reader, ValueId};
use crate::refusal::{Reason, Refusal};

/// A term of a sum, with its producer.
pub struct Summand<'v> {
    pub term: Addend,
    what: What<'v>,
}

enum What<'v> {
    Operator(Windowed),
    /// An affine. It becomes an operator only beside others, whose axes determine its channels.
    Chain(&'v Chain),
    Constant,
    /// Any other value.
    Value,
}

impl<'v> Summand<'v> {
    pub fn new(view: &'v View, term: Addend) -> Self {
        let chain = || {
            view.chain(view.maker(term.value)?)
                .filter(|chain| chain.output == term.value)
        };
        let what = match Windowed::making(view, term.value) {
            _ if view.constants.is_constant(term.value) => What::Constant,
            Some(operator) => What::Operator(operator),
            None => match chain() {
                Some(chain) => {
                    Windowed::before_affine(view, chain).map_or(What::Chain(chain), What::Operator)
                }
                None => What::Value,
            },
        };
        Summand { term, what }
    }

    /// The values in which it may be linear: what its operators read, and itself.
    pub fn bases(&self) -> impl Iterator<Item = ValueId> {
        let read = match &self.what {
            What::Operator(operator) => Some(operator.base),
            What::Chain(chain) => Some(chain.input),
            What::Constant | What::Value => None,
        };
        read.into_iter().chain([self.term.value])
    }

    pub fn is_constant(&self) -> bool {
        matches!(self.what, What::Constant)
    }

    /// The operator on this value that makes it, if it has a weight to which others can be added.
    pub fn operator(&self, view: &View, base: ValueId) -> Option<&Windowed> {
        match &self.what {
            What::Operator(operator) => {
                Some(operator).filter(|operator| operator.base == base && operator.has_weight(view))
            }
            _ => None,
        }
    }

    /// How much it has to offer for others to be added to: the most is one operator with a large weight.
    pub fn rank(&self, view: &View, base: ValueId) -> (bool, bool, usize) {
        let Some(operator) = self.operator(view, base) else {
            return (false, false, 0);
        };
        let work = operator
            .branch
            .as_ref()
            .map_or(0, |branch| branch.window.work());
        (true, operator.nodes.len() == 1, work)
    }

    /// The nodes that are there for this part alone.
    pub fn nodes(&self, base: ValueId) -> &[NodeId] {
        match &self.what {
            _ if self.term.value == base => &[],
            What::Operator(operator) => &operator.nodes,
            What::Chain(chain) => &chain.nodes,
            What::Constant | What::Value => &[],
        }
    }

    /// The part as a branch on a value, beside an operator of this window.
    ///
    /// # Errors
    /// Why the term is not linear, or has to stay.
    pub fn branch(&self, view: &View, base: ValueId, beside: &Window) -> Result<Branch, Refusal> {
        let refuse = |reason| Refusal::new(reason, view.graph.value_name(self.term.value));
        let branch = match &self.what {
            _ if self.term.value == base => Branch::identity(beside),
            What::Operator(operator) => Some(operator.branch.clone()?),
            What::Chain(chain) => Branch::affine(chain, beside),
            What::Constant | What::Value => None,
        };
        let branch = branch.ok_or_else(|| refuse(Reason::WrongAxis))?;
        if self.term.value != base {
            self.read_once(view).map_err(refuse)?;
        }
        Ok(if self.term.negative {
            branch.negated()
        } else {
            branch
        })
    }

    fn read_once(&self, view: &View) -> Result<(), Reason> {
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
