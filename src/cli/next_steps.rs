//! Suggests commands and options after `fuse`.

use std::path::Path;

use unfold::Target;
use unfold::onnx::Model;
use unfold::plan::{Outcome, Plan, SitePlan};
use unfold::refusal::Reason;
use unfold::report::{counted, plain};

use super::command_line::quoted;

/// A result of `fuse`, with its plan and target.
pub(super) struct FusedFile<'f> {
    pub plan: &'f Plan,
    pub target: Target,
    /// The path of the original model.
    pub original: &'f Path,
    pub result: &'f Model,
}

impl FusedFile<'_> {
    /// A line for each option that lets more fold, and the command that measures the result.
    pub(super) fn next_steps(&self) -> String {
        let mut lines = self.option_lines().join("\n");
        if !lines.is_empty() {
            lines.push('\n');
        }
        let model = quoted(&self.original.to_string_lossy());
        let measure = match self.target {
            Target::Onnxruntime => format!(
                "next: in Python, `unfold_onnx.tune({model:?}, OUT, engine=\"onnxruntime\")` \
                 finds the options that are fastest in onnxruntime"
            ),
            _ => format!(
                "next: `unfold tune {model} -o OUT` finds the options that are fastest in tract"
            ),
        };
        lines + &plain(&measure) + "\n"
    }

    /// A line for each option that lets more of this model fold.
    fn option_lines(&self) -> Vec<String> {
        let mut lines = vec![];
        let shared = self.sites_beyond_growth();
        if shared > 0 {
            let sites = counted(shared, "more site");
            lines.push(format!(
                "--max-growth PERCENT: {sites} can fold if new weights and biases add more"
            ));
        }
        let has_norms = self.count("LayerNormalization") > 0;
        if self.target == Target::Portable && self.plan.streams.is_empty() && has_norms {
            lines.push(
                "--centre: LayerNormalizations that alone read a residual stream become RMSNorms"
                    .to_owned(),
            );
        }
        let shapes = self.count("Shape");
        // This option is not suggested for the target onnxruntime: with fixed sizes, onnxruntime
        // infers all shapes, which undoes what this target gains.
        if shapes > 0 && self.target != Target::Onnxruntime {
            let shapes = counted(shapes, "Shape operator");
            lines.push(format!(
                "--fix NAME=SIZE or all: {shapes} and the arithmetic behind become constants"
            ));
        }
        lines
    }

    /// The number of sites that stay because copies of shared weights would exceed the growth
    /// limit.
    fn sites_beyond_growth(&self) -> usize {
        let sites = self.plan.sites.iter();
        sites.filter(|site| is_beyond_growth(site)).count()
    }

    /// The number of nodes of the main graph with this operator.
    fn count(&self, operator: &str) -> usize {
        let nodes = self.result.graph().node.iter();
        nodes.filter(|node| node.op_type() == operator).count()
    }
}

fn is_beyond_growth(site: &SitePlan) -> bool {
    let mut refusals = site.outcomes().flat_map(Outcome::refusals);
    refusals.any(|(_, refusal)| matches!(refusal.reason, Reason::Growth(_)))
}
