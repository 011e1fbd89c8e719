//! Writes reports of a benchmark in several formats: [`terminal`], [`markdown`], [`html`], and JSON
//! through serde.

mod data;
mod html;
mod lead;
mod markdown;
mod overview;
mod svg;
pub mod table;
mod terminal;
#[cfg(test)]
mod testing;

pub use data::*;
pub use html::html;
pub use markdown::{markdown, overview_markdown};
pub use overview::{overview_heading, overview_lines};
pub use terminal::{terminal, terminal_of};
