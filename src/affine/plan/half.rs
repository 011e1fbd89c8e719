//! The part of a plan that describes a conversion to half precision.

use serde::Serialize;

/// The number of operators and constants in half, and the operators that stay in float32.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HalfPlan {
    /// The type, `float16` or `bfloat16`.
    pub to: String,
    /// The number of operators that compute in half.
    pub operators: usize,
    /// The number of weights and constants that are stored in half.
    pub constants: usize,
    /// The number of Casts that were added.
    pub casts: usize,
    /// The operators that stay in float32, each with its reason.
    pub wide: Vec<WideOperator>,
    /// The constants of masks that were clamped to the range of half.
    pub masks: Vec<ClampedMask>,
}

/// An operator that stays in float32.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WideOperator {
    /// The name of the node.
    pub name: String,
    /// The name of the operator.
    pub operator: String,
    /// The reason why the operator stays in float32.
    pub why: WideReason,
}

/// The reason why an operator stays in float32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, strum::Display)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum WideReason {
    /// The operator computes the statistics of a normalizer, and half cannot represent their squares and ε.
    Statistics,
    /// The operator computes with integers, such as positions, which half does not represent exactly.
    Integers,
    /// The operator set does not define the operator for half.
    Operator,
    /// The operator has a body or is unknown, or the type of an input or output is unknown.
    Unknown,
    /// A constant of the operator is beyond the range of half, or a constant that half rounds to 0
    /// keeps the operator away from 0.
    Range,
}

impl WideReason {
    /// The reason in words.
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

/// A constant of a mask that was clamped to the range of half.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ClampedMask {
    /// The name of the constant.
    pub name: String,
    /// The finite element of largest magnitude before the conversion.
    pub from: f64,
    /// The number that replaces this element.
    pub to: f64,
}
