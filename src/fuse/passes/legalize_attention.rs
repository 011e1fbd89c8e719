//! The pass that writes attention as one operator of onnxruntime.

use crate::error::Result;
use crate::fuse::edits::Neighbours;
use crate::fuse::pass::{Context, Effect, Pass};
use crate::fuse::plan_log::PlanLog;
use crate::onnx::Model;
use crate::onnx::proto::OperatorSetIdProto;
use crate::passes::legalize::Target;
use crate::passes::legalize::attention::{DOMAIN, edits};

/// The version of the operator set of onnxruntime.
const VERSION: i64 = 1;

/// Writes attention as MultiHeadAttention, with `--target onnxruntime`.
pub(crate) struct LegalizeAttention;

impl Pass for LegalizeAttention {
    fn name(&self) -> &'static str {
        "legalize-attention"
    }

    fn description(&self) -> &'static str {
        "writes attention as MultiHeadAttention, with --target onnxruntime"
    }

    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
        let settings = context.settings;
        // The operator exists only for float32, and only in this version of its operator set.
        let is_wanted = settings.target == Target::Onnxruntime && settings.half.is_none();
        let version = context.model().opset(DOMAIN).unwrap_or(VERSION);
        if !is_wanted || version != VERSION {
            return Ok(Effect::Nothing);
        }
        let (mut edits, kept) = edits(context.analysis()?);
        log.plan.tidy.attentions_kept = kept;
        if !edits.is_empty() {
            let skipped = context.skipped_nodes()?;
            edits.retain(|edit| {
                let nodes = edit.change.nodes();
                !nodes.iter().any(|node| skipped.contains(node))
            });
        }
        let Some(mut made) = context.rewritten(&edits, Neighbours::Simplified, log)? else {
            return Ok(Effect::Nothing);
        };
        log.plan.tidy.attentions += edits.len();
        import(&mut made);
        Ok(Effect::made(made))
    }
}

/// Imports the operator set of onnxruntime, if the model does not.
fn import(model: &mut Model) {
    if model.opset(DOMAIN).is_none() {
        model.proto.opset_import.push(OperatorSetIdProto {
            domain: Some(DOMAIN.to_owned()),
            version: Some(VERSION),
        });
    }
}
