//! Writes reports for people: [benchmarks](bench), and the [page of `inspect`](inspect).

pub(crate) mod bench;
mod document;
mod format;
mod inspect;

pub use bench::*;
pub(crate) use format::counted;
#[cfg(feature = "cli")]
pub(crate) use format::{bytes, plain, time};
pub(crate) use inspect::*;
