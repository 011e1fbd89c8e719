//! Half precision: a model in float32 as one whose weights and values are float16 or bfloat16.
//!
//! Each float32 value keeps its type or becomes half. [`precision`] decides for each operator, [`masks`] brings the
//! constants of masks into range, [`convert`] writes Casts where types meet.

mod constants;
mod convert;
mod masks;
mod precision;
mod products;

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, VariantNames};

use crate::onnx::tensor::DataType;

pub(crate) use convert::{retyped_ends, to_half};
pub(crate) use products::without_gemm;

/// A type of half the width of float32.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Display, EnumString, VariantNames,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum HalfType {
    /// 11 digits in base 2, up to 65,504.
    Float16,
    /// 8 digits in base 2, up to 3.4e38.
    BFloat16,
}

/// The type of the inputs and outputs of a model that is converted.
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
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum EndType {
    /// They keep their types.
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

    /// The largest number.
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

    /// The number that a mask adds to a score instead of a larger one: the sum of two masks and a score stays finite.
    pub(crate) fn mask(self) -> f64 {
        match self {
            HalfType::Float16 => 14_f64.exp2(),
            HalfType::BFloat16 => 126_f64.exp2(),
        }
    }
}
