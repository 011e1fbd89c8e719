//! The affines of sites during planning, each with its decision.

use crate::affine::Affine;
use crate::affine::recognize::Part;
use crate::hash::HashMap;
use crate::ir::ValueId;
use crate::refusal::Refusal;

use crate::affine::plan::{Basis, Direction, Outcome};

/// One affine of a site.
#[derive(Debug, Clone)]
pub struct Item {
    /// The part of the site, with its current affine.
    pub part: Part,
    /// The site.
    pub site: usize,
    /// Its place in the site.
    pub role: Role,
    /// Whether it acts on a value that a normalization bounds.
    pub is_bounded: bool,
    /// Whether it is one BatchNormalization, which stays one operator whatever it absorbs.
    pub is_batch_norm: bool,
    /// The decision.
    pub state: State,
    /// Whether it is written anew: it absorbed another affine, or a part of it folded alone.
    pub is_rewritten: bool,
    /// The refusals of the last attempt, which failed in both directions.
    pub tried: Option<Tried>,
    /// The basis in which its fold left a residual stream.
    pub basis: Option<Basis>,
}

/// The place of an affine in its site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Before the core.
    Before,
    /// Behind the core, or all there is.
    Behind,
}

/// The decision about an affine.
#[derive(Debug, Clone)]
pub enum State {
    /// No decision yet.
    Open,
    /// It must not change.
    Refused(Refusal),
    /// Its shift folded, and its scale may still fold.
    Partly {
        /// The nodes that absorbed the shift.
        into: Vec<String>,
        /// Why the scale could not fold with it.
        scale: Refusal,
    },
    /// Its scale folded, and its shift may still fold.
    Scaled {
        /// The nodes that absorbed the scale.
        into: Vec<String>,
        /// Why the shift could not fold with it.
        shift: Refusal,
    },
    /// It folded.
    Folded {
        /// The direction of its fold.
        direction: Direction,
        /// The nodes that absorbed it.
        into: Vec<String>,
    },
}

/// The refusals of an affine in both directions.
#[derive(Debug, Clone)]
pub struct Tried {
    /// Forward.
    pub forward: Refusal,
    /// Backward.
    pub backward: Refusal,
}

impl Item {
    /// Whether a part of it may still fold.
    pub fn is_open(&self) -> bool {
        matches!(
            self.state,
            State::Open | State::Partly { .. } | State::Scaled { .. }
        )
    }

    /// The number of nodes that compute it after the folds so far.
    pub fn size(&self) -> usize {
        if self.is_rewritten {
            self.size_with(&self.part.affine)
        } else {
            self.part.nodes.len()
        }
    }

    /// The number of nodes that compute it when it is written anew with an affine.
    pub fn size_with(&self, affine: &Affine) -> usize {
        match self.part.nodes.is_empty() {
            true => 0,
            false if self.is_batch_norm && is_of_batch_norm(affine) => 1,
            false => !affine.has_no_scale() as usize + !affine.has_no_shift() as usize,
        }
    }

    /// The outcome; `None` before any attempt.
    pub fn outcome(self) -> Option<Outcome> {
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

/// Whether a BatchNormalization computes an affine with the fewest operators.
pub fn is_of_batch_norm(affine: &Affine) -> bool {
    !affine.has_no_scale() && !affine.has_no_shift() && affine.axes() == [1]
}

/// One affine that another affine absorbs.
#[derive(Debug, Clone)]
pub struct Merge {
    /// The item that absorbs it.
    pub into: usize,
    /// The affine that it absorbs.
    pub affine: Affine,
    /// Whether the absorbed affine comes before the item's own.
    pub before: bool,
}

impl Merge {
    /// An affine after it has absorbed this one.
    pub fn with(&self, own: &Affine) -> Affine {
        match self.before {
            true => self.affine.then(own),
            false => own.then(&self.affine),
        }
    }
}

/// The affines of all sites, and whether one may absorb another.
pub struct Items<'p> {
    /// All of them.
    pub all: &'p [Item],
    /// The remaining items, by their output.
    pub by_output: &'p HashMap<ValueId, usize>,
    /// Whether an affine that stays may absorb another one.
    pub merge: bool,
}
