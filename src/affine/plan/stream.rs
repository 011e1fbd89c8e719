//! The outcomes of residual streams: their bases, and their normalizers.

use serde::Serialize;

use crate::refusal::Refusal;

/// A residual stream, and what happens to its basis.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StreamPlan {
    /// The name of its first value.
    pub name: String,
    /// Number of channels.
    pub channels: usize,
    /// Its writers, after folding.
    pub writers: Vec<Member>,
    /// Its readers, after folding.
    pub readers: Vec<Member>,
    /// The outcome of centring, where normalizers subtract a mean.
    pub centring: Option<Centring>,
    /// The outcome of scaling, where a power of two is requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,
}

/// Something that writes a stream, or reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Member {
    /// The kind of a normalizer, or `linear`, `table`, `constant`, `uniform`, `input`, `output`,
    /// `body`, or else an operator.
    pub kind: String,
    /// The name of the site, the node or the value.
    pub at: String,
}

/// The outcome of centring a stream.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum Centring {
    /// Nothing writes it any more.
    Centred {
        /// The normalizers that need not take it off.
        normalizers: Vec<String>,
        /// The constants that are written without it.
        constants: usize,
        /// The nodes behind which it is taken off.
        subtracted: Vec<String>,
    },
    /// It stays.
    Kept {
        /// The obstacle.
        why: Refusal,
    },
}

/// The outcome of scaling a stream.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum Scaling {
    /// The stream is scaled.
    Scaled {
        /// The k of the `2^-k` that it is.
        power: u32,
        /// The nodes that take a power of two in.
        into: Vec<String>,
        /// The values that a Mul takes one from, or adds one to.
        multiplied: Vec<String>,
    },
    /// It stays.
    Kept {
        /// The obstacle.
        why: Refusal,
    },
}

impl StreamPlan {
    /// Whether the basis changes.
    pub fn is_changed(&self) -> bool {
        self.is_centred() || self.is_scaled()
    }

    /// Whether it is multiplied by a power of two.
    pub fn is_scaled(&self) -> bool {
        matches!(self.scaling, Some(Scaling::Scaled { .. }))
    }

    /// Whether nothing writes the mean of its channels any more.
    pub fn is_centred(&self) -> bool {
        matches!(self.centring, Some(Centring::Centred { .. }))
    }
}

/// A normalizer that was removed, since others follow it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MergedNorm {
    /// Its site.
    pub name: String,
    /// The sites that normalize values made from it.
    pub followers: Vec<Follower>,
}

/// A normalizer behind a removed one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Follower {
    /// Its site.
    pub name: String,
    /// The value that it normalizes.
    pub value: String,
    /// Whether it takes the mean of that off first.
    pub centred: bool,
    /// The summand of its variance, or of its mean square.
    pub epsilon: f64,
}
