//! The result of a propagation: all changes that together let the affine of a part fold.

use crate::affine::Affine;
use crate::affine::item::Merge;
use crate::affine::linear::{check, linear};
use crate::affine::propagate::overlay::GraphOverlay;
use crate::affine::propagate::softmax;
use crate::affine::rule::{Fold, Side};
use crate::hash::HashSet;
use crate::ir::{NodeId, ValueId};
use crate::refusal::{Reason, Refusal};

/// All changes that let a part fold.
#[derive(Debug, Clone, Default)]
pub(crate) struct Propagation {
    /// The site whose affine propagates.
    pub site: usize,
    /// The affines that nodes absorb into their constants, in order.
    pub folds: Vec<Fold>,
    /// Redundant nodes, each with the input that replaces its result.
    pub bypass: Vec<(NodeId, usize)>,
    /// Merges of the affine into other items.
    pub merges: Vec<Merge>,
    /// Nodes after which a new Add is inserted.
    pub makes: Vec<NodeId>,
    /// Affines that are still needed from producers, each with the node and the input that need it.
    pub wants: Vec<(NodeId, usize, Affine)>,
    /// Scales that the other factor of a product must absorb, each with the node of the product and
    /// the input of that factor.
    pub factors: Vec<(NodeId, usize, Affine)>,
    /// Values on which an affine is needed.
    pub wanted: Vec<ValueId>,
    /// Values that carry an affine. They are recorded only if the propagation also needs affines
    /// from producers.
    pub carried: HashSet<ValueId>,
}

/// A value on which backward propagation needs an affine, and whose other readers compensate for
/// it.
pub(crate) struct Compensation {
    pub value: ValueId,
    /// The inputs that need the affine.
    pub wanted: Vec<(NodeId, usize)>,
    /// The inverse affine, which all other readers absorb.
    pub inverse: Affine,
}

/// The lengths of the lists of a propagation before an alternative is tried.
#[derive(Clone, Copy)]
pub(crate) struct PropagationMark {
    folds: usize,
    bypass: usize,
    merges: usize,
    makes: usize,
    wanted: usize,
}

impl Propagation {
    /// An empty propagation for a site.
    pub(crate) fn for_site(site: usize) -> Self {
        Propagation {
            site,
            ..Propagation::default()
        }
    }

    /// Returns the propagation if no value both carries an affine and needs one. Such a value would
    /// have to be in two bases at once.
    ///
    /// # Errors
    /// A refusal at such a value.
    pub(crate) fn in_one_basis(self, overlay: &GraphOverlay) -> Result<Self, Refusal> {
        let mut wanted = self.wanted.iter();
        match wanted.find(|value| self.carried.contains(value)) {
            Some(&value) => {
                let name = overlay.graph.value_name(value);
                Err(Refusal::new(Reason::ResidualStream, name))
            }
            None => Ok(self),
        }
    }

    /// Whether the propagation folds a shift into the operator that produces this value, while the
    /// scale propagates. A constant summand right after the operator then belongs to the operator's
    /// bias, and must not join the affine.
    pub(crate) fn shifts(&self, overlay: &GraphOverlay, value: ValueId) -> bool {
        let value = overlay.source(value);
        self.folds.iter().any(|fold| {
            let made = overlay.graph.only_output(fold.node);
            matches!(fold.side, Side::Operand(_))
                && !fold.affine.has_no_shift()
                && made.is_some_and(|made| overlay.source(made) == value)
        })
    }

    /// Returns the current lengths of the lists, which [`Propagation::back_to`] restores.
    pub(crate) fn mark(&self) -> PropagationMark {
        PropagationMark {
            folds: self.folds.len(),
            bypass: self.bypass.len(),
            merges: self.merges.len(),
            makes: self.makes.len(),
            wanted: self.wanted.len(),
        }
    }

    /// Drops everything that was found after the mark.
    pub(crate) fn back_to(&mut self, mark: PropagationMark) {
        self.folds.truncate(mark.folds);
        self.bypass.truncate(mark.bypass);
        self.merges.truncate(mark.merges);
        self.makes.truncate(mark.makes);
        self.wanted.truncate(mark.wanted);
    }

    /// Adds a fold into a node, and an Add after the node if nothing else can hold the shift.
    ///
    /// # Errors
    /// The errors of [`Propagation::take`], or a refusal if the shift would fold into an Add that
    /// is being replaced.
    pub(crate) fn note(
        &mut self,
        overlay: &GraphOverlay,
        node: NodeId,
        (side, mut affine): (Side, Affine),
        by_place: bool,
    ) -> Result<(), Refusal> {
        // If the shift differs from place to place, the bias of the node must move to an Add, too.
        let shifts = by_place || !affine.has_no_shift();
        if shifts && !overlay.makes.contains(&node) && !self.makes.contains(&node) {
            let has_place = !by_place && has_bias_slot(overlay, node);
            if !has_place && overlay.loses_bias(node) {
                return Err(Refusal::new(Reason::Changed, overlay.graph.name(node)));
            }
            if !has_place && overlay.bias_add(node).is_none() {
                if !affine.has_no_shift() && softmax::ignores(overlay, node, side, &affine.shift) {
                    affine = Affine::scale(affine.scale);
                } else {
                    self.makes.push(node);
                }
            }
        }
        let fold = Fold {
            node,
            side,
            affine,
            site: self.site,
        };
        self.take(overlay, fold)
    }

    /// Adds a fold into the constants of a node.
    ///
    /// # Errors
    /// A refusal at the node, if its constants cannot absorb the affine.
    pub(crate) fn take(&mut self, overlay: &GraphOverlay, fold: Fold) -> Result<(), Refusal> {
        check(&overlay.at(fold.node), fold.side, &fold.affine)
            .map_err(|reason| Refusal::new(reason, overlay.graph.name(fold.node)))?;
        self.folds.push(fold);
        Ok(())
    }
}

/// Whether a node is a linear operator that has an input for a bias.
pub(crate) fn has_bias_slot(overlay: &GraphOverlay, node: NodeId) -> bool {
    let slots = linear(overlay.graph.domain_op(node))
        .and_then(|linear| linear.slots(&overlay.at(node)).ok());
    slots.is_some_and(|slots| slots.bias.is_some())
}
