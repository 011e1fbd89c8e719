//! The pipeline: the passes in their order.
//!
//! A stage runs its passes once, or begins again with its first pass after each change, until no
//! pass finds anything to do.

use crate::fuse::pass::Pass;
use crate::fuse::passes::constant_norms::ConstantNorms;
use crate::fuse::passes::finish::{KeepInput, RestoreRegions, StripShapes};
use crate::fuse::passes::fold_affines::{FoldAffines, ReconsiderGrowth};
use crate::fuse::passes::legalize_attention::LegalizeAttention;
use crate::fuse::passes::merge_norms::MergeNorms;
use crate::fuse::passes::placement::{DemandPass, PlacementPass};
use crate::fuse::passes::prepare::{FlattenRegions, Inline};
use crate::fuse::passes::rewrite_passes::{
    ARITHMETIC_BEFORE_CONCAT, CANCEL_INVERSE, CANONICALIZE, GATHER_ND_TO_RESHAPE, LEGALIZE_ENGINE,
    LEGALIZE_GELU, LEGALIZE_LAYER_NORM, LEGALIZE_RMS_NORM, LegalizeProducts, MERGE_CONCATS,
    MERGE_RESHAPES, MERGE_SLICES, REDUCE_BEFORE_MOVEMENT, SPLIT_BEFORE_TRANSPOSE, UNFLATTEN_ROWS,
};
use crate::fuse::passes::simplify::{
    BRANCH_FOLDING, CONSTANT_FOLDING, CSE, CSE_AGAIN, DEDUPLICATE_INITIALIZERS,
    IDENTITY_ELIMINATION, IDENTITY_ELIMINATION_AGAIN, NEUTRAL_OPERATORS,
};
use crate::fuse::passes::slice::SlicePass;
use crate::fuse::passes::streams::{CentreStreams, ScaleStreams};
use crate::fuse::passes::to_half::ToHalf;
use crate::fuse::passes::upgrade_opset::{UPGRADE_FOR_HARD_SWISH, UPGRADE_FOR_LAYER_NORM};
use crate::fuse::stage::PipelineStage;

/// The largest number of times that the stage `fold` begins again.
const MAX_FOLD_REPETITIONS: usize = 16;

/// The largest number of times that a stage that only rewrites forms begins again.
const MAX_FORM_REPETITIONS: usize = 64;

/// The stages, in order.
pub(crate) static PIPELINE: &[PipelineStage] = &[
    PipelineStage::once("inline", &[&[&Inline]]),
    PipelineStage::once(
        "prepare",
        &[&[
            &FlattenRegions,
            &DEDUPLICATE_INITIALIZERS,
            &IDENTITY_ELIMINATION,
        ]],
    ),
    // `ConstantNorms` has its own stage, so that the pipeline can stop after it. A proof compares
    // the folded result with the model at this point.
    PipelineStage::once("constant", &[&[&ConstantNorms]]),
    PipelineStage::fixpoint(
        "fold",
        MAX_FOLD_REPETITIONS,
        &[
            FOLDING,
            SIMPLIFYING,
            PLACING,
            FORMS,
            ENGINE_FORMS,
            &[&IDENTITY_ELIMINATION_AGAIN, &ReconsiderGrowth, &SlicePass],
        ],
    ),
    PipelineStage::fixpoint("forms", MAX_FORM_REPETITIONS, &[FORMS, ENGINE_FORMS]),
    // This stage comes after `fold`, which would fold the power of two away.
    PipelineStage::once("streams", &[&[&ScaleStreams]]),
    // Other passes do not recognize the result of `LegalizeProducts` as a layer.
    PipelineStage::once("legalize", &[&[&LegalizeProducts]]),
    PipelineStage::fixpoint("layout", MAX_FORM_REPETITIONS, &[FORMS, SIMPLIFYING])
        .after("legalize-products"),
    PipelineStage::once("finish", &[&[&KeepInput, &RestoreRegions, &StripShapes]]),
    // This stage is the last one, so that no other pass sees both float types, and each weight is
    // rounded only once.
    PipelineStage::once("half", &[&[&ToHalf]]),
];

/// Folds affines, after equivalent operators are written in one form.
const FOLDING: &[&dyn Pass] = &[
    &UPGRADE_FOR_HARD_SWISH,
    &UNFLATTEN_ROWS,
    &CANONICALIZE,
    &ARITHMETIC_BEFORE_CONCAT,
    &FoldAffines,
    &CentreStreams,
    &MergeNorms,
];

/// Simplifies the graph after folds.
const SIMPLIFYING: &[&dyn Pass] = &[
    &BRANCH_FOLDING,
    &NEUTRAL_OPERATORS,
    // `CSE` runs before constants are computed, because rounding may make different computed
    // constants equal.
    &CSE,
    &CONSTANT_FOLDING,
    &CSE_AGAIN,
];

/// Moves operators to the point where values have fewer places.
const PLACING: &[&dyn Pass] = &[&DemandPass, &PlacementPass];

/// Writes operators in forms that engines fuse or run faster.
const FORMS: &[&dyn Pass] = &[
    &SPLIT_BEFORE_TRANSPOSE,
    &LEGALIZE_GELU,
    &GATHER_ND_TO_RESHAPE,
    &REDUCE_BEFORE_MOVEMENT,
    &MERGE_RESHAPES,
    &MERGE_SLICES,
    &MERGE_CONCATS,
    &CANCEL_INVERSE,
    &LEGALIZE_RMS_NORM,
];

/// Writes operators in the forms of the target.
const ENGINE_FORMS: &[&dyn Pass] = &[
    &UPGRADE_FOR_LAYER_NORM,
    &LEGALIZE_LAYER_NORM,
    &LEGALIZE_ENGINE,
    &LegalizeAttention,
];
