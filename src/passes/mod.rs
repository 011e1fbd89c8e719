//! Passes. Each takes the analysis of a graph and returns edits, or an edited graph.
//!
//! | folder | what it does |
//! |---|---|
//! | [`inline`] | writes opaque normalizers, function calls and sequences out |
//! | [`upgrade_opset`] | upgrades a model that writes out an operator of a newer operator set |
//! | [`canonicalize`] | writes operators in one form before affines are planned |
//! | [`simplify`] | identity elimination, CSE, DCE, constant and branch folding |
//! | [`movement`] | merges and cancels Transposes, Reshapes, Slices and Concats |
//! | [`demand`] | moves selections of places up, before the work whose results they leave out |
//! | `packed_products` | finds and divides one product of queries, keys and values |
//! | [`placement`] | moves linear work to where values have the fewest places |
//! | [`mod@slice`] | splits independent regions into parts, to bound the memory of activations |
//! | [`legalize`] | writes the forms that engines fuse |

pub(crate) mod canonicalize;
pub(crate) mod demand;
pub(crate) mod half;
pub(crate) mod inline;
pub(crate) mod legalize;
pub(crate) mod movement;
mod packed_products;
pub(crate) mod placement;
pub(crate) mod simplify;
pub(crate) mod slice;
pub(crate) mod upgrade_opset;
