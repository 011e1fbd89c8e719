//! The point at which a run stops before the end of the pipeline.

use std::num::NonZeroUsize;
use std::str::FromStr;

use crate::fuse::pipeline::PIPELINE;
use crate::fuse::stage::PipelineStage;

/// The change or pass after which only required passes run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopAfter {
    /// After this number of changes of the model.
    Changes(usize),
    /// After the first run of this pass.
    Pass(&'static str),
}

impl FromStr for StopAfter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(changes) = text.parse::<NonZeroUsize>() {
            return Ok(StopAfter::Changes(changes.get()));
        }
        let mut passes = PIPELINE.iter().flat_map(PipelineStage::passes);
        let found = passes.find(|pass| pass.name() == text);
        found
            .map(|pass| StopAfter::Pass(pass.name()))
            .ok_or_else(|| "no pass has this name; `unfold passes` lists them".to_owned())
    }
}
