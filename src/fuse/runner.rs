//! Runs a pipeline on a model. Each pass gets the model after the last change.

use std::cell::{Cell, OnceCell};
use std::collections::HashSet;
use std::rc::Rc;

use crate::affine::plan::{Plan, StopReason};
use crate::error::Result;
use crate::fuse::observe::{PassResult, observe};
use crate::fuse::pass::{Bases, Context, Effect, Pass, Settings, checked, invalid};
use crate::fuse::plan_log::PlanLog;
use crate::fuse::stage::{PipelineStage, Repeats};
use crate::fuse::stats::Stats;
use crate::fuse::stop_after::StopAfter;
use crate::onnx::Model;
use crate::passes::inline::Lowered;
use crate::platform::Stopwatch;

/// A pipeline, and the options with which it runs.
pub(crate) struct PipelineRun<'r> {
    pub stages: &'r [PipelineStage],
    pub settings: Settings<'r>,
    pub stop_after: Option<StopAfter>,
    pub observer: Option<&'r dyn Fn(&PassResult)>,
}

impl PipelineRun<'_> {
    /// Runs the pipeline. Returns the plan, and the result if anything besides inlining changed the
    /// model. The first pass fills `inlined`, unless it is already filled.
    ///
    /// # Errors
    /// If the graph is invalid, or a pass has a defect.
    pub(super) fn run(
        &self,
        model: &Model,
        inlined: &OnceCell<Lowered>,
    ) -> Result<(Option<Model>, Plan)> {
        for may_flatten in [true, false] {
            let bases = Bases {
                model,
                inlined,
                flat: OnceCell::new(),
                is_restored: Cell::new(false),
                may_flatten,
                answers: Rc::default(),
            };
            if let Some(done) = self.attempt(&bases)? {
                return Ok(done);
            }
        }
        let reason = "bodies that are not flattened cannot be restored";
        Err(invalid(model, None, reason.into()))
    }

    /// Like [`PipelineRun::run`]. `None` if flattened bodies cannot be restored.
    fn attempt(&self, bases: &Bases) -> Result<Option<(Option<Model>, Plan)>> {
        let mut progress = Progress::new(self);
        let mut result: Option<Model> = None;
        loop {
            let context =
                Context::new(&self.settings, bases, result.as_ref(), progress.last_change);
            let Some((pass, effect)) = progress.next_effect(&context)? else {
                break;
            };
            if let Some(observer) = self.observer {
                let tensors = progress.log.latest();
                observe(observer, pass, &context, &effect, tensors);
            }
            drop(context);
            match effect {
                Effect::Model(made) => {
                    // Tensors that were removed are dropped now, because a later pass may give
                    // their names to other constants.
                    if !bases.is_restored.get() {
                        progress.log.keep_tensors_of(&made);
                    }
                    result = Some(*made);
                }
                Effect::Input => result = None,
                Effect::Unrestorable => return Ok(None),
                Effect::Nothing | Effect::Base | Effect::Again => {}
            }
        }
        if let Some(result) = result.as_ref().filter(|_| CHECKS_RESULTS) {
            checked(bases.inlined(), result, progress.last_change, Rc::default())?;
        }
        let passes = progress.stats.finish();
        Ok(Some((
            result,
            progress.log.finish(progress.stopped, passes),
        )))
    }
}

/// Whether a result is checked even if no pass analyses it.
const CHECKS_RESULTS: bool = cfg!(any(test, debug_assertions));

/// The progress of a run.
struct Progress<'p> {
    pipeline: &'p PipelineRun<'p>,
    /// The index of the stage, and the index of the next pass in it.
    place: (usize, usize),
    /// The number of times that the stage has begun again.
    repetitions: usize,
    /// Whether a pass had an effect since the stage last began.
    has_changed: bool,
    /// The number of changes of the model.
    changes: usize,
    /// The passes that changed the model.
    changed_by: HashSet<&'static str>,
    last_change: Option<&'static str>,
    /// The passes that found nothing to do since the last change.
    idle: HashSet<&'static str>,
    /// Whether only required passes still run.
    is_ending: bool,
    stopped: StopReason,
    stats: Stats,
    log: PlanLog,
}

impl<'p> Progress<'p> {
    fn new(pipeline: &'p PipelineRun<'p>) -> Self {
        Progress {
            pipeline,
            place: (0, 0),
            repetitions: 0,
            has_changed: false,
            changes: 0,
            changed_by: HashSet::new(),
            last_change: None,
            idle: HashSet::new(),
            is_ending: false,
            stopped: StopReason::Fixpoint,
            stats: Stats::new(pipeline.stages),
            log: PlanLog::default(),
        }
    }

    /// Runs passes until one has an effect. `None` at the end of the pipeline.
    fn next_effect(&mut self, context: &Context) -> Result<Option<(&'static dyn Pass, Effect)>> {
        while let Some(stage) = self.pipeline.stages.get(self.place.0) {
            let Some(pass) = self.next_pass(stage) else {
                self.begin_stage(self.place.0 + 1);
                continue;
            };
            if !self.may_run(pass, context) {
                self.begin_again(stage, pass);
                continue;
            }
            let effect = self.run(pass, context)?;
            if let Effect::Nothing = effect {
                self.idle.insert(pass.name());
                self.begin_again(stage, pass);
                self.stop_if_asked(pass);
                continue;
            }
            self.note_change(pass, context, &effect);
            self.begin_again(stage, pass);
            self.stop_if_asked(pass);
            return Ok(Some((pass, effect)));
        }
        Ok(None)
    }

    /// The next pass of a stage. `None` after its last pass, or if the stage does not run.
    fn next_pass(&mut self, stage: &PipelineStage) -> Option<&'static dyn Pass> {
        if stage
            .after
            .is_some_and(|pass| !self.changed_by.contains(pass))
        {
            return None;
        }
        let pass = stage.passes().nth(self.place.1);
        self.place.1 += 1;
        pass
    }

    fn begin_stage(&mut self, stage: usize) {
        self.place = (stage, 0);
        self.repetitions = 0;
        self.has_changed = false;
    }

    fn may_run(&self, pass: &'static dyn Pass, context: &Context) -> bool {
        if pass.is_required() {
            return true;
        }
        !self.is_ending
            && !self.idle.contains(pass.name())
            && !self.pipeline.settings.skips(pass)
            && (pass.reads_unknown_operators() || context.unknown_operators().is_none())
    }

    fn run(&mut self, pass: &'static dyn Pass, context: &Context) -> Result<Effect> {
        if self.pipeline.observer.is_some() {
            self.log.begin_pass();
        }
        let stopwatch = Stopwatch::start();
        let effect = pass.run(context, &mut self.log)?;
        self.stats.ran(pass, stopwatch.elapsed(), context);
        Ok(effect)
    }

    /// Records the effect of a pass that changed the model.
    fn note_change(&mut self, pass: &'static dyn Pass, context: &Context, effect: &Effect) {
        self.idle.clear();
        self.has_changed = true;
        self.stats.changed(pass, context, effect);
        if let Effect::Model(_) | Effect::Input = effect {
            self.changes += 1;
            self.changed_by.insert(pass.name());
            self.last_change = Some(pass.name());
        }
    }

    /// Begins a repeated stage again after a change, unless `pass` lets the next pass run first.
    fn begin_again(&mut self, stage: &PipelineStage, pass: &'static dyn Pass) {
        let Repeats::Fixpoint { bound } = stage.repeats else {
            return;
        };
        if !self.has_changed || pass.continues_stage() {
            return;
        }
        self.has_changed = false;
        self.place.1 = 0;
        self.repetitions += 1;
        if self.repetitions == bound {
            self.stopped = StopReason::Bound {
                at: stage.name,
                pass: pass.name(),
            };
            self.begin_stage(self.place.0 + 1);
        }
    }

    /// Lets only required passes run from now on, if the run should stop after `pass`.
    fn stop_if_asked(&mut self, pass: &'static dyn Pass) {
        let is_last = match self.pipeline.stop_after {
            Some(StopAfter::Pass(name)) => pass.name() == name,
            Some(StopAfter::Changes(changes)) => self.changes >= changes,
            None => false,
        };
        if is_last && !self.is_ending {
            self.is_ending = true;
            self.stopped = StopReason::StopAfter { pass: pass.name() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affine::materialize::{Edit, written_anew};
    use crate::analysis::Analysis;
    use crate::fuse::FuseOptions;
    use crate::fuse::passes::rewrite_passes::RewritePass;
    use crate::ir::builder::Maker;
    use crate::ir::{Graph, NodeId};
    use crate::passes::legalize::Target;

    /// `out = x + y`.
    fn sum() -> Model {
        let text = "<ir_version: 8, opset_import: [\"\" : 17]>
            sum (float[2] x, float[2] y) => (float[2] out) { out = Add(x, y) }";
        Model::from_text(text).unwrap()
    }

    /// Replaces an operator by the operator `operator` with swapped operands.
    fn swapped<'m>(graph: &'m Graph, node: NodeId, operator: &str) -> Option<Maker<'m>> {
        let [left, right] = [graph.input(node, 0)?, graph.input(node, 1)?];
        let mut maker = Maker::new(graph, node);
        let operands = [graph.value_name(right), graph.value_name(left)];
        maker.op(operator, &operands, vec![]);
        Some(maker)
    }

    /// Rewrites `a + b` as `b + a`. The next run swaps the operands back.
    fn swaps(analysis: &Analysis, _: Target) -> Vec<Edit> {
        written_anew(analysis, |node, _| swapped(&analysis.graph, node, "Add"))
    }

    /// Rewrites `a + b` as `b - a`, which is a different function.
    #[cfg(feature = "prove")]
    fn subtracts(analysis: &Analysis, _: Target) -> Vec<Edit> {
        written_anew(analysis, |node, _| swapped(&analysis.graph, node, "Sub"))
    }

    /// Returns no edits.
    fn nothing(_: &Analysis, _: Target) -> Vec<Edit> {
        vec![]
    }

    static SWAP: RewritePass = RewritePass::new("swap", "swaps the operands of an Add", swaps);
    #[cfg(feature = "prove")]
    static FAULT: RewritePass = RewritePass::new("fault", "makes an Add a Sub", subtracts);
    static REST: RewritePass = RewritePass::new("rest", "finds nothing", nothing);

    /// Like `swap`, but the stage continues with the next pass before it begins again.
    struct SwapAndContinue;

    impl Pass for SwapAndContinue {
        fn name(&self) -> &'static str {
            "swap-and-continue"
        }

        fn description(&self) -> &'static str {
            SWAP.description
        }

        fn continues_stage(&self) -> bool {
            true
        }

        fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
            SWAP.run(context, log)
        }
    }

    static CONTINUING: &[PipelineStage] = &[PipelineStage::fixpoint(
        "forms",
        5,
        &[&[&SwapAndContinue, &REST, &SWAP]],
    )];
    static ALTERNATING: &[PipelineStage] =
        &[PipelineStage::fixpoint("forms", 5, &[&[&REST, &SWAP]])];
    static RESTING: &[PipelineStage] = &[
        PipelineStage::fixpoint("first", 5, &[&[&REST]]),
        PipelineStage::fixpoint("second", 5, &[&[&REST]]),
        PipelineStage::once("third", &[&[&SWAP]]).after("rest"),
    ];
    static ONCE: &[PipelineStage] = &[
        PipelineStage::once("first", &[&[&SWAP, &REST, &SWAP]]),
        PipelineStage::once("second", &[&[&SWAP]]).after("swap"),
    ];

    #[cfg(feature = "prove")]
    static FAULTY: &[PipelineStage] = &[PipelineStage::once("first", &[&[&SWAP, &REST, &FAULT]])];

    /// Runs stages on the model of [`sum`], up to `stop_after`.
    fn run(stages: &[PipelineStage], stop_after: Option<StopAfter>) -> (Option<Model>, Plan) {
        let (model, options) = (sum(), FuseOptions::default());
        let mut pipeline = options.pipeline(&model, &|_, _, _| {}).unwrap();
        pipeline.stages = stages;
        pipeline.stop_after = stop_after;
        pipeline.run(&model, &OnceCell::new()).unwrap()
    }

    /// The name, runs and changes of each pass.
    fn counts(plan: &Plan) -> Vec<(&str, usize, usize)> {
        let rows = plan.passes.iter();
        rows.map(|row| (row.name, row.runs, row.changes)).collect()
    }

    #[test]
    fn alternating_passes_stop_at_the_bound_of_their_stage() {
        let (result, plan) = run(ALTERNATING, None);
        let (at, pass) = ("forms", "swap");
        assert_eq!(plan.stopped, StopReason::Bound { at, pass });
        assert_eq!(
            counts(&plan),
            [("analysis", 5, 0), ("rest", 5, 0), ("swap", 5, 5)]
        );
        // An odd number of swaps leaves the operands swapped.
        assert_eq!(result.unwrap().graph().node[0].input, ["y", "x"]);
    }

    #[test]
    fn stage_begins_again_behind_the_pass_after_a_continuing_pass() {
        let (_, plan) = run(CONTINUING, None);
        let (at, pass) = ("forms", "rest");
        assert_eq!(plan.stopped, StopReason::Bound { at, pass });
        assert_eq!(
            counts(&plan),
            [
                ("analysis", 6, 0),
                ("swap-and-continue", 5, 5),
                ("rest", 5, 0)
            ]
        );
    }

    #[test]
    fn run_without_changes_stops_at_the_fixpoint() {
        let (result, plan) = run(RESTING, None);
        assert!(result.is_none());
        assert_eq!(plan.stopped, StopReason::Fixpoint);
        // The second stage does not repeat the pass, and the third one does not run, because the
        // pass that it follows changed nothing.
        assert_eq!(counts(&plan), [("analysis", 1, 0), ("rest", 1, 0)]);
    }

    #[test]
    fn stage_without_fixpoint_runs_each_pass_once() {
        let (result, plan) = run(ONCE, None);
        assert_eq!(plan.stopped, StopReason::Fixpoint);
        assert_eq!(
            counts(&plan),
            [("analysis", 3, 0), ("swap", 3, 3), ("rest", 1, 0)]
        );
        assert_eq!(result.unwrap().graph().node[0].input, ["y", "x"]);
    }

    #[test]
    fn run_stops_after_a_pass_or_a_number_of_changes() {
        let stopped = |pass| StopReason::StopAfter { pass };
        let (result, plan) = run(ALTERNATING, Some(StopAfter::Pass("rest")));
        assert!(result.is_none());
        assert_eq!(plan.stopped, stopped("rest"));
        let (result, plan) = run(ALTERNATING, Some(StopAfter::Pass("swap")));
        assert_eq!(result.unwrap().graph().node[0].input, ["y", "x"]);
        assert_eq!(plan.stopped, stopped("swap"));
        let (result, plan) = run(ALTERNATING, Some(StopAfter::Changes(2)));
        assert_eq!(result.unwrap().graph().node[0].input, ["x", "y"]);
        assert_eq!(plan.stopped, stopped("swap"));
    }

    #[cfg(feature = "prove")]
    #[test]
    fn pass_prover_blames_the_faulty_pass() {
        let (model, options) = (sum(), FuseOptions::default());
        let prover = crate::prove_passes::PassProver::default();
        let observer = |result: &crate::fuse::PassResult| prover.observe(result);
        let mut pipeline = options.pipeline(&model, &|_, _, _| {}).unwrap();
        pipeline.stages = FAULTY;
        pipeline.observer = Some(&observer);
        pipeline.run(&model, &OnceCell::new()).unwrap();
        let proofs = prover.proofs();
        let verdicts: Vec<_> = proofs
            .iter()
            .map(|proof| (proof.pass, proof.is_proved(), proof.is_wrong()))
            .collect();
        assert_eq!(verdicts, [("swap", true, false), ("fault", false, true)]);
    }
}
