//! Writes reports of a benchmark in several formats: [`terminal`], [`markdown()`], [`html()`], and
//! JSON through serde.

mod data;
mod html;
mod lead;
mod markdown;
mod overview;
mod sentences;
mod svg;
pub(crate) mod table;
#[cfg(all(test, feature = "cli"))]
#[path = "../../../docs/examples/extending/report/bench/tabs.rs"]
pub(crate) mod tabs;
mod terminal;
#[cfg(test)]
pub(crate) mod testing;

pub use data::*;
pub use html::html;
#[cfg(feature = "cli")]
pub(crate) use markdown::{markdown, overview_markdown};
#[cfg(feature = "cli")]
pub(crate) use overview::{overview_heading, overview_lines};
#[cfg(feature = "cli")]
pub(crate) use terminal::terminal_of;
