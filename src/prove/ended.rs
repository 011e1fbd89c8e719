//! The reasons why a comparison at a point ends without agreement.

use super::evaluate::Stopped;
use super::operators::NotEvaluated;
use super::{Proof, undecided};

/// The outcome of a comparison at a point that did not end with agreement.
pub(super) enum Ended {
    /// The extents contradict each other at this value.
    Misfit(String),
    /// A divisor is 0 at this value.
    Zero(String),
    /// This output has no elements at this point. With other random integers it may have some.
    Empty(String),
    /// The bodies of the node that computes this value could not be evaluated, perhaps because of
    /// the extents.
    Unknown(String),
    /// The extents of this value are not known, such as those of a Squeeze without axes. At other
    /// sizes they may be.
    Shapeless(String),
    /// This value needs too much computation, such as attention between all pixels of an image.
    Beyond(String),
    /// A recipe cannot be computed, for this reason, perhaps because of the extents.
    Uncomputed(String),
    /// The extents of the folded model contradict each other at this value, while those of the
    /// original fit.
    Unfit(String),
    With(Proof),
}

impl Ended {
    /// The reason why the proof is undecided.
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Unknown(at) => format!("what the bodies of `{at}` compute is not known"),
            Self::Shapeless(at) => format!("the extents of `{at}` are not known"),
            Self::Beyond(at) => {
                format!("`{at}` takes more than a model of its size is known to take")
            }
            Self::Uncomputed(reason) => reason.clone(),
            Self::Zero(at) => format!("`{at}` divides by 0 at every point"),
            Self::Empty(at) => format!("`{at}` has no element to be compared at any point"),
            Self::Misfit(at) => format!(
                "what `{at}` reads does not fit it, or its extents do not fit each other: other sizes of \
                 symbolic dimensions may"
            ),
            Self::Unfit(at) => {
                format!("what `{at}` reads does not fit it, where the original fits")
            }
            Self::With(Proof::Undecided { reason }) => reason.clone(),
            Self::With(_) => String::new(),
        }
    }
}

impl From<Proof> for Ended {
    fn from(proof: Proof) -> Self {
        Ended::With(proof)
    }
}

impl From<Stopped> for Ended {
    fn from(stopped: Stopped) -> Self {
        let Stopped { stop, at } = stopped;
        Ended::With(match stop {
            NotEvaluated::Zero => return Ended::Zero(at),
            NotEvaluated::Misfit => return Ended::Misfit(at),
            NotEvaluated::Beyond => return Ended::Beyond(at),
            NotEvaluated::Uncovered => undecided(format!(
                "what `{at}` stands for cannot be computed, or read"
            )),
        })
    }
}
