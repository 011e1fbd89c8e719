//! Passes whose edits belong to no site: they rewrite operators into other forms in the whole
//! model.

use crate::affine::materialize::Edit;
use crate::analysis::Analysis;
use crate::error::Result;
use crate::fuse::edits::Neighbours;
use crate::fuse::pass::{Context, Effect, Pass, Settings};
use crate::fuse::passes::simplify::DUPLICATE;
use crate::fuse::plan_log::PlanLog;
use crate::onnx::Model;
use crate::passes::canonicalize;
use crate::passes::half::product_edits;
use crate::passes::legalize::{self, Target, gelu, norm_operators, rms_reciprocal_to_div};
use crate::passes::movement::{
    arithmetic_before_concat, cancel_inverse, gather_nd_to_reshape, merge_concats, merge_reshapes,
    merge_slices, reduce_before_movement, split_before_transpose,
};

/// The alias of passes that change the form of products and RMS normalizations.
const BIASED: &[&str] = &[legalize::KIND];

/// A pass that applies the edits that one function finds.
pub(crate) struct RewritePass {
    pub name: &'static str,
    pub description: &'static str,
    pub aliases: &'static [&'static str],
    /// Finds the edits. No two of them share a node.
    pub find: fn(&Analysis, Target) -> Vec<Edit>,
    /// Whether edits of nodes that `--skip` names are dropped.
    pub leaves_skipped_nodes: bool,
    /// Whether the pass runs at all with these options.
    pub is_wanted: fn(&Settings<'_>) -> bool,
    /// Whether movements next to replaced nodes are simplified with them.
    pub neighbours: Neighbours,
    /// Records the number of edits in the plan.
    pub note: fn(&mut PlanLog, usize),
}

impl RewritePass {
    /// A pass that also simplifies the movements next to replaced nodes.
    pub(crate) const fn new(
        name: &'static str,
        description: &'static str,
        find: fn(&Analysis, Target) -> Vec<Edit>,
    ) -> Self {
        RewritePass {
            name,
            description,
            aliases: &[],
            find,
            leaves_skipped_nodes: false,
            is_wanted: |_| true,
            neighbours: Neighbours::Simplified,
            note: |_, _| {},
        }
    }
}

impl Pass for RewritePass {
    fn name(&self) -> &'static str {
        self.name
    }

    fn description(&self) -> &'static str {
        self.description
    }

    fn aliases(&self) -> &'static [&'static str] {
        self.aliases
    }

    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
        if !(self.is_wanted)(context.settings) {
            return Ok(Effect::Nothing);
        }
        let mut edits = (self.find)(context.analysis()?, context.settings.target);
        if self.leaves_skipped_nodes && !edits.is_empty() {
            let skipped = context.skipped_nodes()?;
            edits.retain(|edit| {
                !edit
                    .change
                    .nodes()
                    .iter()
                    .any(|node| skipped.contains(node))
            });
        }
        let made = context.rewritten(&edits, self.neighbours, log)?;
        if made.is_some() {
            (self.note)(log, edits.len());
        }
        Ok(Effect::from_model(made))
    }
}

/// Writes a Gemm between two Reshapes as MatMul and Add.
pub(crate) static UNFLATTEN_ROWS: RewritePass = RewritePass {
    aliases: BIASED,
    neighbours: Neighbours::Stay,
    note: |log, _| log.is_lifted = true,
    ..RewritePass::new(
        "unflatten-rows",
        "writes a Gemm between two Reshapes as MatMul and Add, which all passes know",
        |analysis, target| target.canonicalizing_edits(analysis),
    )
};

/// Writes equivalent operators in one form.
pub(crate) static CANONICALIZE: RewritePass = RewritePass {
    neighbours: Neighbours::Stay,
    ..RewritePass::new(
        "canonicalize",
        "drops broadcasts and selections that change nothing; one form for equal operators",
        |analysis, _| canonicalize::edits(analysis),
    )
};

/// Replaces equal arithmetic on each part of a Concat by arithmetic after the Concat, which runs
/// once.
pub(crate) static ARITHMETIC_BEFORE_CONCAT: RewritePass = RewritePass {
    leaves_skipped_nodes: true,
    neighbours: Neighbours::Stay,
    ..RewritePass::new(
        "arithmetic-before-concat",
        "does equal arithmetic on the parts of a wide Concat once, behind it",
        |analysis, _| arithmetic_before_concat::edits(analysis),
    )
};

/// Moves a Split before the Transpose whose result it splits.
pub(crate) static SPLIT_BEFORE_TRANSPOSE: RewritePass = RewritePass::new(
    "split-before-transpose",
    "splits queries, keys and values before they are transposed",
    |analysis, _| split_before_transpose::edits(analysis),
);

/// Writes GELUs in the form that engines fuse.
pub(crate) static LEGALIZE_GELU: RewritePass = RewritePass::new(
    "legalize-gelu",
    "writes a GELU in the form that engines fuse",
    |analysis, _| gelu::edits(analysis),
);

/// Replaces a GatherND by the value that it reads, if it reads all places in order.
pub(crate) static GATHER_ND_TO_RESHAPE: RewritePass = RewritePass {
    aliases: DUPLICATE,
    ..RewritePass::new(
        "gather-nd-to-reshape",
        "reads a value itself instead of a GatherND of all its places in order",
        |analysis, _| gather_nd_to_reshape::edits(analysis),
    )
};

/// Reduces a value before a movement that only rearranges the reduced places.
pub(crate) static REDUCE_BEFORE_MOVEMENT: RewritePass = RewritePass {
    aliases: DUPLICATE,
    ..RewritePass::new(
        "reduce-before-movement",
        "reduces a value before a movement of the reduced places",
        |analysis, _| reduce_before_movement::edits(analysis),
    )
};

/// Merges Reshapes that follow one another into one.
pub(crate) static MERGE_RESHAPES: RewritePass = RewritePass {
    aliases: DUPLICATE,
    ..RewritePass::new(
        "merge-reshapes",
        "merges Reshapes in a row",
        |analysis, _| merge_reshapes::edits(analysis),
    )
};

/// Merges Slices that follow one another into one.
pub(crate) static MERGE_SLICES: RewritePass = RewritePass {
    aliases: DUPLICATE,
    ..RewritePass::new("merge-slices", "merges Slices in a row", |analysis, _| {
        merge_slices::edits(analysis)
    })
};

/// Merges a Concat into the Concat that reads its result.
pub(crate) static MERGE_CONCATS: RewritePass = RewritePass {
    aliases: DUPLICATE,
    ..RewritePass::new(
        "merge-concats",
        "merges a Concat into the one that reads it",
        |analysis, _| merge_concats::edits(analysis),
    )
};

/// Cancels inverse movements.
pub(crate) static CANCEL_INVERSE: RewritePass = RewritePass {
    aliases: DUPLICATE,
    ..RewritePass::new(
        "cancel-inverse",
        "cancels inverse movements around element-wise operators",
        |analysis, _| cancel_inverse::edits(analysis),
    )
};

/// Writes RMS normalizations in the form that engines fuse.
pub(crate) static LEGALIZE_RMS_NORM: RewritePass = RewritePass {
    leaves_skipped_nodes: true,
    ..RewritePass::new(
        "legalize-rms-norm",
        "writes an RMS normalization in the form that engines fuse",
        |analysis, _| rms_reciprocal_to_div::edits(analysis),
    )
};

/// Writes operators in the forms that the target engine runs best.
pub(crate) static LEGALIZE_ENGINE: RewritePass = RewritePass {
    aliases: BIASED,
    note: |log, count| log.plan.tidy.biased += count,
    ..RewritePass::new(
        "legalize-engine",
        "writes RMSNorms, packed products, layers before windows, split convolutions for the target",
        |analysis, target| target.engine_form_edits(analysis),
    )
};

/// Writes LayerNormalizations in parts as one operator. Engines do not recognize every arrangement
/// of the parts. In half precision the operator computes its statistics in float32, so they need no
/// Casts.
pub(crate) static LEGALIZE_LAYER_NORM: RewritePass = RewritePass {
    aliases: BIASED,
    note: |log, count| log.plan.tidy.biased += count,
    leaves_skipped_nodes: true,
    is_wanted: |settings| settings.writes_layer_norms(),
    neighbours: Neighbours::Stay,
    ..RewritePass::new(
        "legalize-layer-norm",
        "writes a LayerNormalization in parts as one operator",
        |analysis, _| norm_operators::layer_norms(analysis),
    )
};

/// Writes products with biases in the form of the target. This pass runs after the stages that
/// fold, because the passes of those stages do not recognize the products that this pass writes.
pub(crate) struct LegalizeProducts;

impl Pass for LegalizeProducts {
    fn name(&self) -> &'static str {
        "legalize-products"
    }

    fn description(&self) -> &'static str {
        "writes a product of one open extent and its bias as one Gemm between two Reshapes"
    }

    fn aliases(&self) -> &'static [&'static str] {
        BIASED
    }

    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
        let target = context.settings.target;
        if context.settings.half.is_some() {
            let edits = product_edits(context.analysis()?);
            let made = context.rewritten(&edits, Neighbours::Stay, log)?;
            return Ok(Effect::from_model(made));
        }
        if target == Target::Portable || !has_products(context.model()) && !log.is_lifted {
            return Ok(Effect::Nothing);
        }
        let edits = target.final_edits(context.analysis()?);
        let made = context.rewritten(&edits, Neighbours::Simplified, log)?;
        if made.is_some() {
            log.plan.tidy.biased += edits.len();
        }
        Ok(Effect::from_model(made))
    }
}

/// Whether a model has a MatMul.
fn has_products(model: &Model) -> bool {
    let mut nodes = model.graph().node.iter();
    nodes.any(|node| node.op_type() == "MatMul")
}
