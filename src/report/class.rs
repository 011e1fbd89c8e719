//! The classes of operators that reports distinguish.

use serde::{Deserialize, Serialize};

/// A class of operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Operators that belong to a normalizer.
    Normalizer,
    /// Matrix products, convolutions, and packing for them.
    Product,
    /// Operators that only move data: transposes, slices, concatenations, casts.
    Movement,
    /// All other operators: activations, softmax, sums.
    Other,
}

impl Class {
    /// All classes, in the order of reports.
    pub const ALL: [Self; 4] = [Self::Normalizer, Self::Product, Self::Movement, Self::Other];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Normalizer => "normalizers",
            Self::Product => "matrix products",
            Self::Movement => "data movement",
            Self::Other => "other",
        }
    }
}
