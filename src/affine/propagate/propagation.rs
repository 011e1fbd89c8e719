//! The result of a propagation: all changes that let its part fold.

use crate::affine::Affine;
use crate::affine::fold::{Fold, Side};
use crate::affine::item::Merge;
use crate::affine::linear::{check, linear};
use crate::affine::propagate::overlay::GraphOverlay;
use crate::affine::propagate::softmax;
use crate::hash::HashSet;
use crate::ir::{NodeId, ValueId};
use crate::refusal::{Reason, Refusal};

/// The result of a propagation: all changes that let its part fold.
#[derive(Debug, Clone, Default)]
pub struct Propagation {
    /// The site that it is for.
    pub site: usize,
    /// The affines that nodes absorb into their constants, in order.
    pub folds: Vec<Fold>,
    /// Redundant nodes, and the input that replaces their result.
    pub bypass: Vec<(NodeId, usize)>,
    /// Other items that take the affine into theirs.
    pub merges: Vec<Merge>,
    /// Nodes behind which an Add is made.
    pub makes: Vec<NodeId>,
    /// Affines still needed on inputs of nodes, from their producers.
    pub wants: Vec<(NodeId, usize, Affine)>,
    /// The scales that factors of products are to absorb.
    pub factors: Vec<(NodeId, usize, Affine)>,
    /// Values on which an affine is needed.
    pub wanted: Vec<ValueId>,
    /// Values that carry an affine, where the propagation needs affines from producers as well.
    pub carried: HashSet<ValueId>,
}

/// A value on which backward propagation needs an affine that its other readers compensate for.
pub struct Compensation {
    pub value: ValueId,
    /// The inputs that need the affine.
    pub wanted: Vec<(NodeId, usize)>,
    /// The affine that all other readers absorb.
    pub inverse: Affine,
}

/// The length of the lists of a propagation before an alternative is tried.
#[derive(Clone, Copy)]
pub struct PropagationMark {
    folds: usize,
    bypass: usize,
    merges: usize,
    makes: usize,
    wanted: usize,
}

impl Propagation {
    /// An empty propagation for a site.
    pub fn for_site(site: usize) -> Self {
        Propagation {
            site,
            ..Propagation::default()
        }
    }

    /// The propagation itself, if no value both carries an affine and needs one: it would have to
    /// be in two bases at once.
    ///
    /// # Errors
    /// A refusal at such a value.
    pub fn in_one_basis(self, overlay: &GraphOverlay) -> Result<Self, Refusal> {
        let mut wanted = self.wanted.iter();
        match wanted.find(|value| self.carried.contains(value)) {
            Some(&value) => {
                let name = overlay.graph.value_name(value);
                Err(Refusal::new(Reason::ResidualStream, name))
            }
            None => Ok(self),
        }
    }

    /// Whether an operator absorbs a shift into its result while the scale propagates: a constant
    /// summand right behind it belongs to its bias, and must not be carried further.
    pub fn shifts(&self, overlay: &GraphOverlay, value: ValueId) -> bool {
        let value = overlay.source(value);
        self.folds.iter().any(|fold| {
            let made = overlay.graph.only_output(fold.node);
            matches!(fold.side, Side::Operand(_))
                && !fold.affine.has_no_shift()
                && made.is_some_and(|made| overlay.source(made) == value)
        })
    }

    /// How much the propagation holds so far.
    pub fn mark(&self) -> PropagationMark {
        PropagationMark {
            folds: self.folds.len(),
            bypass: self.bypass.len(),
            merges: self.merges.len(),
            makes: self.makes.len(),
            wanted: self.wanted.len(),
        }
    }

    /// Forgets everything that was found after the mark.
    pub fn back_to(&mut self, mark: PropagationMark) {
        self.folds.truncate(mark.folds);
        self.bypass.truncate(mark.bypass);
        self.merges.truncate(mark.merges);
        self.makes.truncate(mark.makes);
        self.wanted.truncate(mark.wanted);
    }

    /// Adds an affine that a node absorbs, and an Add behind the node where the shift has no other place.
    ///
    /// # Errors
    /// As [`Propagation::take`], and where the shift would fold into an Add that another fold replaces.
    pub fn note(
        &mut self,
        overlay: &GraphOverlay,
        node: NodeId,
        (side, mut affine): (Side, Affine),
        by_place: bool,
    ) -> Result<(), Refusal> {
        // Where the shift differs for each place, the bias of the node becomes an Add as well.
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

    /// Adds an affine that a node absorbs into its constants.
    ///
    /// # Errors
    /// A refusal at the node, where its constants cannot absorb the affine.
    pub fn take(&mut self, overlay: &GraphOverlay, fold: Fold) -> Result<(), Refusal> {
        check(&overlay.at(fold.node), fold.side, &fold.affine)
            .map_err(|reason| Refusal::new(reason, overlay.graph.name(fold.node)))?;
        self.folds.push(fold);
        Ok(())
    }
}

/// Whether a node is a linear operator with an input for a bias.
pub fn has_bias_slot(overlay: &GraphOverlay, node: NodeId) -> bool {
    let slots = linear(overlay.graph.domain_op(node))
        .and_then(|linear| linear.slots(&overlay.at(node)).ok());
    slots.is_some_and(|slots| slots.bias.is_some())
}
