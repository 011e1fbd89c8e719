//! Other bases of residual streams.
//!
//! A residual stream is what all blocks of a network read and add to. It means nothing by itself: a change of basis
//! that all its writers and all its readers take in leaves the model the same function. The [finder](streams) says who
//! they are; each change is a file of its own.

pub mod exponents;
pub mod powers;
mod scaling;
pub mod streams;
mod ties;
