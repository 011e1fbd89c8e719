//! A stage of the pipeline: passes that run once, or until none of them finds anything to do.

use crate::fuse::pass::Pass;

/// A stage: its passes, and how often they run.
pub(crate) struct PipelineStage {
    pub name: &'static str,
    /// The passes, in groups that several stages share.
    groups: &'static [&'static [&'static dyn Pass]],
    pub repeats: Repeats,
    /// The pass that must change the model before the stage runs, if there is one.
    pub after: Option<&'static str>,
}

/// How often a stage runs its passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeats {
    /// Each pass runs once.
    Once,
    /// After each change, the stage begins again with its first pass. The stage ends when no pass
    /// finds anything to do, or when the bound is reached.
    Fixpoint {
        /// The largest number of times that the stage begins again.
        bound: usize,
    },
}

impl PipelineStage {
    /// A stage that runs each pass once.
    pub(super) const fn once(
        name: &'static str,
        groups: &'static [&'static [&'static dyn Pass]],
    ) -> Self {
        PipelineStage {
            name,
            groups,
            repeats: Repeats::Once,
            after: None,
        }
    }

    /// A stage that begins again after each change, at most `bound` times, until no pass finds
    /// anything to do.
    pub(super) const fn fixpoint(
        name: &'static str,
        bound: usize,
        groups: &'static [&'static [&'static dyn Pass]],
    ) -> Self {
        PipelineStage {
            name,
            groups,
            repeats: Repeats::Fixpoint { bound },
            after: None,
        }
    }

    /// Restricts the stage to runs in which this pass has changed the model.
    pub(super) const fn after(self, pass: &'static str) -> Self {
        PipelineStage {
            after: Some(pass),
            ..self
        }
    }

    /// The passes, in order.
    pub(super) fn passes(&self) -> impl Iterator<Item = &'static dyn Pass> {
        self.groups.iter().flat_map(|group| group.iter().copied())
    }
}
