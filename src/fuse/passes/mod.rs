//! The passes of the pipeline. Each pass runs a transformation of [`crate::passes`],
//! [`crate::affine`] or [`crate::residual`], and records the change in the log.

pub(super) mod constant_norms;
pub(super) mod finish;
pub(super) mod fold_affines;
pub(super) mod legalize_attention;
pub(super) mod merge_norms;
pub(super) mod placement;
pub(super) mod prepare;
pub(super) mod rewrite_passes;
pub(super) mod simplify;
pub(super) mod slice;
pub(super) mod streams;
pub(super) mod to_half;
pub(super) mod upgrade_opset;
