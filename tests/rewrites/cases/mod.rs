//! Graphs of public bug reports, of other exporters, and of defects found by random tests.

pub mod other_exporters;
pub mod public_bugs;
pub mod regressions;
