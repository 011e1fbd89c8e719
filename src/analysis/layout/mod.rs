//! Where the elements of a value are: the one algebra of axes.
//!
//! An axis is a list of factors, row-major: a transpose permutes the lists, a reshape groups the factors
//! anew and splits one where it must. An axis along which a value does not vary may have none.
//!
//! Some factors are free: the axes of a constant, or those that an Expand makes. They are determined
//! where they meet others.

mod factors;
mod map;

pub use factors::{Axes, AxisFactor, AxisFactors};
pub use map::LayoutMap;
