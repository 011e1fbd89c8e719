//! The outcome of a conversion to half precision.

use serde::Serialize;

/// The operators and constants in half, and those that stay in float32.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct HalfPlan {
    /// The type, `float16` or `bfloat16`.
    pub to: String,
    /// The number of operators that compute in half.
    pub operators: usize,
    /// The number of weights and constants that are stored in half.
    pub constants: usize,
    /// The number of Casts that were added.
    pub casts: usize,
    /// The operators that stay in float32, by reason.
    pub wide: Vec<WideOperator>,
    /// The constants of masks that were brought into range.
    pub masks: Vec<ClampedMask>,
}

/// An operator that stays in float32.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WideOperator {
    /// Its name.
    pub name: String,
    /// Its operator.
    pub operator: String,
    /// Why it stays.
    pub why: WideReason,
}

/// Why an operator stays in float32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, strum::Display)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum WideReason {
    /// It computes the statistics of a normalizer, whose squares and ε half does not hold.
    Statistics,
    /// It computes with integers, such as positions, which half does not hold exactly.
    Integers,
    /// The operator set has no such operator on half.
    Operator,
    /// It has a body, or belongs to a domain whose operators are unknown, or the type of a result is unknown.
    Unknown,
    /// One of its constants is beyond the range of half.
    Range,
}

impl WideReason {
    /// In words.
    pub(crate) fn text(self) -> &'static str {
        match self {
            WideReason::Statistics => "statistics of normalizers",
            WideReason::Integers => "arithmetic on positions and other integers",
            WideReason::Operator => "no such operator on half",
            WideReason::Unknown => "a body, or an unknown operator or type",
            WideReason::Range => "a constant beyond the range of half",
        }
    }
}

/// A constant of a mask, and its numbers in half.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClampedMask {
    /// The constant.
    pub name: String,
    /// The number of largest magnitude that is not infinite.
    pub from: f64,
    /// The number that stands for it.
    pub to: f64,
}
