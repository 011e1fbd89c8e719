//! Writes reports of a benchmark in several formats: [`terminal`], [`markdown`], [`html`], and JSON
//! through serde. Also writes the page of a model's [`Outline`].

mod data;
mod document;
mod format;
mod html;
mod markdown;
mod outline;
mod overview;
mod svg;
pub mod table;
mod terminal;
#[cfg(test)]
mod testing;

pub use data::*;
pub use format::{bytes, plain, time};
pub use html::html;
pub use markdown::{markdown, overview_markdown};
pub use outline::*;
pub use overview::{overview_heading, overview_lines};
pub use terminal::terminal;
