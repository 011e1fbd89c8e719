//! Passes. Each takes the analysis of a graph and returns edits, or an edited graph.
//!
//! | folder | what it does |
//! |---|---|
//! | [`inline`] | writes opaque normalizers, function calls and sequences out |
//! | [`upgrade_opset`] | upgrades a model to the operator set of an operator that it writes out |
//! | [`canonicalize`] | writes operators in one form before affines are planned |
//! | [`simplify`] | identity elimination, CSE, DCE, constant and branch folding |
//! | [`layout`] | merges and cancels Transposes, Reshapes, Slices and Concats |
//! | [`demand`] | moves selections of places up, before the work that they leave out |
//! | [`placement`] | moves linear work to where values have the fewest places |
//! | [`mod@slice`] | splits independent regions into parts, which bounds the memory of activations |
//! | [`legalize`] | writes the forms that engines fuse |

pub mod canonicalize;
pub mod demand;
pub mod inline;
pub mod legalize;
pub mod movement;
pub mod placement;
pub mod simplify;
pub mod slice;
pub mod upgrade_opset;
