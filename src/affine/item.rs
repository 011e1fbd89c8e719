//! The affines of sites, while it is decided where they go.

use crate::affine::Affine;
use crate::affine::recognize::Part;
use crate::hash::HashMap;
use crate::ir::ValueId;
use crate::refusal::Refusal;

use crate::affine::plan::{Basis, Direction, Outcome};

/// One affine of a site.
#[derive(Debug, Clone)]
pub struct Item {
    /// The part of the site, with the affine that it is by now.
    pub part: Part,
    /// The site.
    pub site: usize,
    /// Where in the site it is.
    pub role: Role,
    /// Whether its value is one that a core has brought into bounds.
    pub is_bounded: bool,
    /// Whether it is one BatchNormalization, which stays one whatever it takes in.
    pub is_batch_norm: bool,
    /// The decision.
    pub state: State,
    /// Whether it is written anew: it took another in, or its shift went alone.
    pub is_rewritten: bool,
    /// Why it could go neither way when that was last tried.
    pub tried: Option<Tried>,
    /// The basis that it left a residual stream in.
    pub basis: Option<Basis>,
}

/// Where in its site an affine is.
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
    /// Nothing yet.
    Open,
    /// It is not to be touched.
    Refused(Refusal),
    /// Its shift went, and its scale may still go.
    Partly {
        /// The nodes that absorbed the shift.
        into: Vec<String>,
        /// Why the scale could not go with it.
        scale: Refusal,
    },
    /// Its scale went, and its shift may still go.
    Scaled {
        /// The nodes that absorbed the scale.
        into: Vec<String>,
        /// Why the shift could not go with it.
        shift: Refusal,
    },
    /// It went.
    Folded {
        /// Where to.
        direction: Direction,
        /// The nodes that absorbed it.
        into: Vec<String>,
    },
}

/// Why an affine could go neither way.
#[derive(Debug, Clone)]
pub struct Tried {
    /// Forward.
    pub forward: Refusal,
    /// Backward.
    pub backward: Refusal,
}

impl Item {
    /// Whether something of it may still go.
    pub fn is_open(&self) -> bool {
        matches!(
            self.state,
            State::Open | State::Partly { .. } | State::Scaled { .. }
        )
    }

    /// How many nodes it is by now.
    pub fn size(&self) -> usize {
        if self.is_rewritten {
            self.size_with(&self.part.affine)
        } else {
            self.part.nodes.len()
        }
    }

    /// How many nodes it is when it is written anew with an affine.
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

/// Whether a BatchNormalization is what computes an affine with the fewest operators.
pub fn is_of_batch_norm(affine: &Affine) -> bool {
    !affine.has_no_scale() && !affine.has_no_shift() && affine.axes() == [1]
}

/// One affine that goes into another which stays.
#[derive(Debug, Clone)]
pub struct Merge {
    /// The item that takes it in.
    pub into: usize,
    /// The affine that it absorbs.
    pub affine: Affine,
    /// Whether that comes before its own.
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

/// The affines of all sites, and which of them may take another one in.
pub struct Items<'p> {
    /// All of them.
    pub all: &'p [Item],
    /// The remaining items, by their output.
    pub by_output: &'p HashMap<ValueId, usize>,
    /// Whether one that stays may take another in.
    pub merge: bool,
}
