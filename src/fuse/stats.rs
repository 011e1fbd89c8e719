//! Statistics of a run: for each pass, its runs, its changes, the operators that it removed, and
//! its seconds.

use std::time::Duration;

use crate::affine::plan::PassStats;
use crate::fuse::pass::{Context, Effect, Pass};
use crate::fuse::stage::PipelineStage;
use crate::onnx::Model;

/// The name of the row for analyses, which serve several passes.
const ANALYSIS: &str = "analysis";

/// The statistics of a run, with a row for each pass.
pub(super) struct Stats {
    rows: Vec<PassStats>,
}

impl Stats {
    pub(super) fn new(stages: &[PipelineStage]) -> Self {
        let mut rows = vec![row(ANALYSIS)];
        for pass in stages.iter().flat_map(PipelineStage::passes) {
            if rows.iter().all(|row| row.name != pass.name()) {
                rows.push(row(pass.name()));
            }
        }
        Stats { rows }
    }

    /// Records a run of a pass. If the run needed an analysis, the time of this analysis counts for
    /// the row `analysis` instead.
    pub(super) fn ran(&mut self, pass: &dyn Pass, time: Duration, context: &Context) {
        let analysed = context.take_analysis_time();
        if let Some(time) = analysed {
            let row = self.row(ANALYSIS);
            row.runs += 1;
            row.seconds += time.as_secs_f64();
        }
        let own = time.saturating_sub(analysed.unwrap_or_default());
        let row = self.row(pass.name());
        row.runs += 1;
        row.seconds += own.as_secs_f64();
    }

    /// Records that the last run of a pass had an effect, and how many operators it removed.
    pub(super) fn changed(&mut self, pass: &dyn Pass, context: &Context, effect: &Effect) {
        let row = self.row(pass.name());
        row.changes += 1;
        if let Effect::Model(model) = effect {
            row.operators += operators(context.model()) - operators(model);
        }
    }

    /// The rows of the passes that ran.
    pub(super) fn finish(self) -> Vec<PassStats> {
        let ran = self.rows.into_iter().filter(|row| row.runs > 0);
        ran.collect()
    }

    fn row(&mut self, name: &'static str) -> &mut PassStats {
        let place = self.rows.iter().position(|row| row.name == name);
        let place = place.unwrap_or_else(|| {
            self.rows.push(row(name));
            self.rows.len() - 1
        });
        &mut self.rows[place]
    }
}

/// The row of a pass that has not run.
fn row(name: &'static str) -> PassStats {
    PassStats {
        name,
        runs: 0,
        changes: 0,
        operators: 0,
        seconds: 0.0,
    }
}

/// The number of nodes other than Constants.
fn operators(model: &Model) -> i64 {
    let nodes = model.graph().node.iter();
    nodes.filter(|node| node.op_type() != "Constant").count() as i64
}
