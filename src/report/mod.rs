//! Writes reports for people: [benchmarks](bench), and the [page of `inspect`](inspect).

#[cfg(feature = "tract")]
pub(crate) mod bench;
mod class;
mod document;
mod format;
mod inspect;

#[cfg(feature = "tract")]
pub use bench::*;
pub use class::Class;
pub(crate) use format::counted;
#[cfg(any(feature = "cli", feature = "wasm"))]
pub(crate) use format::plain;
#[cfg(feature = "cli")]
pub(crate) use format::{bytes, time};
pub(crate) use inspect::*;
