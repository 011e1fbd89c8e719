//! The outcomes of residual streams: their bases and their normalizers.

use serde::Serialize;

use crate::refusal::Refusal;

/// A residual stream, and the changes of its basis.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StreamPlan {
    /// The name of the first value of the stream.
    pub name: String,
    /// The number of channels.
    pub channels: usize,
    /// The writers of the stream after folding.
    pub writers: Vec<Member>,
    /// The readers of the stream after folding.
    pub readers: Vec<Member>,
    /// The outcome of centring. `None` if no normalizer subtracts a mean.
    pub centring: Option<Centring>,
    /// The outcome of scaling, if a power of two is requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,
}

/// A writer or a reader of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Member {
    /// The kind of a normalizer, or `linear`, `table`, `constant`, `uniform`, `input`, `output`,
    /// `body`, or else the name of an operator.
    pub kind: String,
    /// The name of the site, the node or the value.
    pub at: String,
}

/// The outcome of centring a stream.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum Centring {
    /// The stream is centred: no writer adds a mean over the channels any more.
    Centred {
        /// The normalizers that no longer need to subtract the mean.
        normalizers: Vec<String>,
        /// The number of constants that are written without their mean.
        constants: usize,
        /// The inputs of the model from which the mean is subtracted, and the nodes after which it
        /// is subtracted.
        subtracted: Vec<String>,
    },
    /// The mean stays.
    Kept {
        /// The reason why the mean stays.
        why: Refusal,
    },
}

/// The outcome of scaling a stream.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum Scaling {
    /// The stream is scaled.
    Scaled {
        /// The exponent `k` of the factor `2^-k`.
        power: u32,
        /// The nodes that absorb a power of two.
        into: Vec<String>,
        /// The values that a new Mul multiplies by a power of two.
        multiplied: Vec<String>,
    },
    /// The stream is not scaled.
    Kept {
        /// The reason why the stream is not scaled.
        why: Refusal,
    },
}

impl StreamPlan {
    /// Whether the basis of the stream changes.
    pub fn is_changed(&self) -> bool {
        self.is_centred() || self.is_scaled()
    }

    /// Whether the stream is multiplied by a power of two.
    pub fn is_scaled(&self) -> bool {
        matches!(self.scaling, Some(Scaling::Scaled { .. }))
    }

    /// Whether the stream is centred: no writer adds a mean over the channels any more.
    pub fn is_centred(&self) -> bool {
        matches!(self.centring, Some(Centring::Centred { .. }))
    }
}

/// A normalizer that was removed because other normalizers follow it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MergedNorm {
    /// The name of the site of the normalizer.
    pub name: String,
    /// The sites that normalize values computed from the result of the removed normalizer.
    pub followers: Vec<Follower>,
}

/// A normalizer that follows a removed normalizer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Follower {
    /// The name of the site of the normalizer.
    pub name: String,
    /// The name of the value that the normalizer reads.
    pub value: String,
    /// Whether the normalizer first subtracts the mean of the value.
    pub centred: bool,
    /// The epsilon that the normalizer adds to the variance, or to the mean square.
    pub epsilon: f64,
}

/// A normalizer whose ε is far larger than usual. It is listed only if the run may replace constant
/// normalizers.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ConstantNorm {
    /// The name of the site of the normalizer.
    pub name: String,
    /// The name of the value that the normalizer reads.
    pub value: String,
    /// The axes of its statistics, counted from the front. With `groups`, they are axes of the shape `[N, groups, -1]`.
    pub axes: Vec<usize>,
    /// The number of groups of channels. `None` if the normalizer has no groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<usize>,
    /// Whether the normalizer subtracts the mean first.
    pub centred: bool,
    /// Whether the sum of squares is used instead of their mean.
    pub sum: bool,
    /// The number ε that is added to the variance or to the mean square.
    pub epsilon: f64,
    /// The variance below which `variance + ε` rounds to ε in the element type of the sum.
    pub limit: f64,
    /// Whether the normalizer is taken as constant.
    #[serde(flatten)]
    pub outcome: Constancy,
}

/// Whether a normalizer is taken as constant, so that an affine replaces it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum Constancy {
    /// The normalizer becomes an affine of its centred input.
    Constant,
    /// The normalizer stays.
    Kept {
        /// The reason why the normalizer stays.
        why: Refusal,
    },
}

impl ConstantNorm {
    /// Whether the normalizer is taken as constant.
    pub fn is_constant(&self) -> bool {
        self.outcome == Constancy::Constant
    }
}
