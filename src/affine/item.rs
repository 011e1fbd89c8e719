//! The affines of sites during planning, each with the decision about it.

use crate::affine::Affine;
use crate::affine::recognize::Part;
use crate::hash::HashMap;
use crate::ir::ValueId;
use crate::refusal::Refusal;

use crate::affine::plan::{Basis, Direction, Outcome};

/// One affine of a site.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    /// The part of the site, with its affine after the folds and merges so far.
    pub part: Part,
    /// The index of the site.
    pub site: usize,
    /// Whether the affine comes before or after the core of its site.
    pub role: Role,
    /// Whether the affine is applied to a value whose magnitude a normalization bounds.
    pub is_bounded: bool,
    /// Whether the nodes of the part are one BatchNormalization. It absorbs a scale and a shift for
    /// each channel without another operator.
    pub is_batch_norm: bool,
    /// The decision so far.
    pub state: State,
    /// Whether new nodes must replace the nodes of the part, for example because the part absorbed
    /// another affine, or because only its scale or only its shift folded.
    pub is_rewritten: bool,
    /// The refusals of the last attempt to fold the affine without a merge, if it failed in both
    /// directions.
    pub tried: Option<Tried>,
    /// The new basis of the residual stream into which this item folded, if any.
    pub basis: Option<Basis>,
}

/// The position of an affine relative to the core of its site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Before the core.
    Before,
    /// After the core, or the only affine of the site.
    Behind,
}

/// The decision about an affine.
#[derive(Debug, Clone)]
pub(crate) enum State {
    /// There is no decision yet.
    Open,
    /// The affine must not change, for this reason.
    Refused(Refusal),
    /// The shift folded, and the scale may still fold.
    Partly {
        /// The nodes that absorbed the shift.
        into: Vec<String>,
        /// The reason why the scale could not fold with the shift.
        scale: Refusal,
    },
    /// The scale folded, and the shift may still fold.
    Scaled {
        /// The nodes that absorbed the scale.
        into: Vec<String>,
        /// The reason why the shift could not fold with the scale.
        shift: Refusal,
    },
    /// The whole affine folded.
    Folded {
        /// The direction in which the affine folded.
        direction: Direction,
        /// The nodes that absorbed the affine.
        into: Vec<String>,
    },
}

/// The refusals of an affine, one for each direction.
#[derive(Debug, Clone)]
pub(crate) struct Tried {
    /// The refusal forward.
    pub forward: Refusal,
    /// The refusal backward.
    pub backward: Refusal,
}

impl Item {
    /// Whether the item, or the scale or shift that is left of it, may still fold.
    pub(crate) fn is_open(&self) -> bool {
        matches!(
            self.state,
            State::Open | State::Partly { .. } | State::Scaled { .. }
        )
    }

    /// The number of nodes that compute the affine after the folds so far.
    pub(crate) fn size(&self) -> usize {
        if self.is_rewritten {
            self.size_with(&self.part.affine)
        } else {
            self.part.nodes.len()
        }
    }

    /// The number of nodes that compute the item if it is written again with `affine`. It is 0 if
    /// the item is parameters of a node.
    pub(crate) fn size_with(&self, affine: &Affine) -> usize {
        match self.part.nodes.is_empty() {
            true => 0,
            false if self.is_batch_norm && is_of_batch_norm(affine) => 1,
            false => !affine.has_no_scale() as usize + !affine.has_no_shift() as usize,
        }
    }

    /// The outcome of the item. `None` if the item is open and was not yet refused in both
    /// directions.
    pub(crate) fn outcome(self) -> Option<Outcome> {
        Some(match self.state {
            State::Refused(forward) => Outcome::Kept {
                forward,
                backward: None,
            },
            State::Partly { into, scale } => Outcome::Partly { into, scale },
            State::Scaled { into, shift } => Outcome::Scaled { into, shift },
            State::Folded { direction, into } => Outcome::Folded { direction, into },
            State::Open => {
                let Tried { forward, backward } = self.tried?;
                Outcome::Kept {
                    forward,
                    backward: Some(backward),
                }
            }
        })
    }
}

/// Whether a BatchNormalization is the shortest way to compute an affine, because the affine has
/// both a scale and a shift, and varies exactly along axis 1.
pub(crate) fn is_of_batch_norm(affine: &Affine) -> bool {
    !affine.has_no_scale() && !affine.has_no_shift() && affine.axes() == [1]
}

/// An affine that another item absorbs.
#[derive(Debug, Clone)]
pub(crate) struct Merge {
    /// The item that absorbs the affine.
    pub into: usize,
    /// The absorbed affine.
    pub affine: Affine,
    /// Whether the absorbed affine is applied before the affine of the item that absorbs it.
    pub before: bool,
}

impl Merge {
    /// The affine of the absorbing item after the merge, if `own` is its affine before the merge.
    pub(crate) fn with(&self, own: &Affine) -> Affine {
        match self.before {
            true => self.affine.then(own),
            false => own.then(&self.affine),
        }
    }
}

/// The affines of all sites, and whether one of them may absorb another.
pub(crate) struct Items<'p> {
    /// All items.
    pub all: &'p [Item],
    /// The index of each item that has not folded completely, by the value that the item outputs.
    pub by_output: &'p HashMap<ValueId, usize>,
    /// Whether an affine that stays may absorb another affine.
    pub merge: bool,
}
