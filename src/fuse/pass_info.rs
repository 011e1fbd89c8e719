//! The pipeline as data for `unfold passes`.

use serde::Serialize;

use crate::fuse::pass::Pass;
use crate::fuse::pipeline::PIPELINE;
use crate::fuse::single_pass::Pipeline;
use crate::fuse::stage::{PipelineStage, Repeats};

/// A stage of the pipeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StageInfo {
    /// The name.
    pub stage: &'static str,
    /// The largest number of times that the stage begins again after a change. `None` for a stage
    /// whose passes run once.
    pub bound: Option<usize>,
    /// The pass that must change the model before the stage runs, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<&'static str>,
    /// The passes, in order.
    pub passes: Vec<PassInfo>,
}

/// A pass of the pipeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PassInfo {
    /// The name, for `skip` and `stop_after`.
    pub name: &'static str,
    /// The transformation, in one line.
    pub description: &'static str,
    /// Other names for `skip`, mostly older ones.
    pub aliases: &'static [&'static str],
    /// Whether the pass runs even if it is skipped, or if the run stops before it.
    pub required: bool,
}

impl Pipeline {
    /// The stages of the pipeline with their passes, in order.
    ///
    /// ```
    /// let stages = unfold::Pipeline::stages();
    /// let fold = stages.iter().find(|stage| stage.stage == "fold").unwrap();
    /// assert!(fold.passes.iter().any(|pass| pass.name == "fold-affines"));
    /// assert_eq!(fold.bound, Some(16));
    /// ```
    pub fn stages() -> Vec<StageInfo> {
        PIPELINE.iter().map(stage_info).collect()
    }
}

fn stage_info(stage: &PipelineStage) -> StageInfo {
    StageInfo {
        stage: stage.name,
        bound: match stage.repeats {
            Repeats::Once => None,
            Repeats::Fixpoint { bound } => Some(bound),
        },
        after: stage.after,
        passes: stage.passes().map(pass_info).collect(),
    }
}

fn pass_info(pass: &'static dyn Pass) -> PassInfo {
    PassInfo {
        name: pass.name(),
        description: pass.description(),
        aliases: pass.aliases(),
        required: pass.is_required(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pass_names_are_lower_case_and_unique() {
        let mut described = std::collections::BTreeMap::new();
        for pass in Pipeline::stages()
            .into_iter()
            .flat_map(|stage| stage.passes)
        {
            let is_word = |letter: char| letter.is_ascii_lowercase() || letter == '-';
            assert!(pass.name.chars().all(is_word), "{}", pass.name);
            assert!(pass.description.len() <= 90, "{}", pass.description);
            let before = described.insert(pass.name, pass.description);
            assert!(before.is_none_or(|before| before == pass.description));
        }
    }
}
