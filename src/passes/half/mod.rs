//! Half precision: converts a model in float32 to one whose weights and values are float16 or
//! bfloat16.
//!
//! Each float32 value keeps its type or becomes half. [`precision`] decides which operators compute
//! in half, [`guards`] finds the operators that a small constant keeps away from 0, [`masks`] recognizes masks, [`constants`] converts constants, and [`convert`] adds the
//! Casts.

mod constants;
mod convert;
mod guards;
mod masks;
mod precision;
mod products;

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, VariantNames};

use crate::onnx::tensor::DataType;

pub(crate) use convert::{retyped_ends, to_half};
pub(crate) use products::product_edits;

/// A float type of 16 bits.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Display, EnumString, VariantNames,
)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum HalfType {
    /// 11 significant bits, up to 65,504.
    Float16,
    /// 8 significant bits, up to 3.4e38.
    BFloat16,
}

/// The type of the float32 inputs and outputs of a model after the conversion.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    Display,
    EnumString,
    VariantNames,
)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum EndType {
    /// Inputs and outputs keep their types.
    #[default]
    Float32,
    /// Inputs and outputs in float32 become half.
    Half,
}

impl HalfType {
    /// The element type.
    pub(crate) fn data_type(self) -> DataType {
        match self {
            HalfType::Float16 => DataType::Float16,
            HalfType::BFloat16 => DataType::BFloat16,
        }
    }

    /// The largest finite number of the type.
    ///
    /// ```
    /// use unfold::HalfType;
    /// assert_eq!(HalfType::Float16.largest(), 65504.0);
    /// ```
    pub fn largest(self) -> f64 {
        match self {
            HalfType::Float16 => half::f16::MAX.to_f64(),
            HalfType::BFloat16 => half::bf16::MAX.to_f64(),
        }
    }

    /// The largest magnitude of a clamped mask. It is so small that the sum of two clamped masks
    /// and a score is finite.
    pub(crate) fn mask_limit(self) -> f64 {
        match self {
            HalfType::Float16 => 14_f64.exp2(),
            HalfType::BFloat16 => 126_f64.exp2(),
        }
    }
}
