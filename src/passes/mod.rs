//! Passes: each takes the analysis of a graph and gives edits, or an edited graph.
//!
//! | folder | what it does |
//! |---|---|
//! | [`inline`] | writes opaque normalizers, function calls and sequences out |
//! | [`upgrade_opset`] | moves a model to the operator set that has an operator it writes out |
//! | [`canonicalize`] | brings operators into one form before affines are planned |
//! | [`simplify`] | identity elimination, CSE, DCE, constant and branch folding |
//! | [`layout`] | merges and cancels Transposes, Reshapes, Slices and Concats |
//! | [`demand`] | moves selections of places up, before the work that they leave out |
//! | [`placement`] | does linear work where values have the fewest places |
//! | [`mod@slice`] | cuts independent regions into parts, which bounds the memory of activations |
//! | [`legalize`] | writes the forms that engines fuse |

pub mod canonicalize;
pub mod demand;
pub mod inline;
pub mod layout;
pub mod legalize;
pub mod placement;
pub mod simplify;
pub mod slice;
pub mod upgrade_opset;
