//! Writes reports for people: [benchmarks](bench), and the [page of `inspect`](inspect).

mod bench;
mod document;
mod format;
mod inspect;

pub use bench::*;
pub use format::{bytes, counted, plain, time};
pub use inspect::*;
