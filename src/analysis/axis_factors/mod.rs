//! An algebra of axes, which describes the place of each element of a value.
//!
//! An axis is a list of factors, in row-major order. A transpose permutes the lists. A reshape
//! regroups the factors, and splits one if necessary. An axis along which a value does not vary may
//! have no factors.
//!
//! Some factors are free: those of a constant, and those of the axes that an Expand adds. Free
//! factors are unified with the factors at the same place in other values.

mod factors;
mod map;

pub(crate) use factors::{Axes, AxisFactor, AxisFactors};
pub(crate) use map::LayoutMap;
