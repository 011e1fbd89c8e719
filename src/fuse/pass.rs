//! The trait of passes, and the context in which a pass runs.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use crate::affine::apply::RangeCheck;
use crate::affine::recognize::{self, Site, View};
use crate::analysis::{Analysis, Answers};
use crate::error::{Error, Result};
use crate::fuse::growth_budget::GrowthBudget;
use crate::fuse::plan_log::PlanLog;
use crate::fuse::skip_patterns::SkipSet;
use crate::hash::HashSet;
use crate::ir::NodeId;
use crate::ir::regions::Flat;
use crate::onnx::Model;
use crate::onnx::shadowed_names::hidden;
use crate::passes::half::{EndType, HalfType};
use crate::passes::inline::Lowered;
use crate::passes::inline::functions::redefined;
use crate::passes::legalize::Target;
use crate::passes::slice::Slicing;
use crate::platform::Stopwatch;
use crate::refusal::{Reason, Refusal};

/// The newest version of ONNX's operator set that the rules support.
const NEWEST_OPSET: i64 = 28;

/// The oldest version that the rules support. In older versions, arithmetic does not broadcast by
/// default, but the results of folds need broadcasts.
const OLDEST_OPSET: i64 = 7;

/// A transformation of a model. If [`Pass::is_exact`] holds, the result computes the same function
/// in exact arithmetic.
pub(crate) trait Pass: Sync {
    /// The name for `--skip` and `--stop-after`.
    fn name(&self) -> &'static str;

    /// One line for `unfold passes`.
    fn description(&self) -> &'static str;

    /// Other names for `--skip`, mostly older ones. A pattern of `--skip` may match an alias, but
    /// not the name of the pass.
    fn aliases(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether the pass always runs, even if `--skip` names it, or if `--stop-after` names an
    /// earlier pass. Without such a pass, the result would not be a valid model.
    fn is_required(&self) -> bool {
        false
    }

    /// Whether the pass runs on a model for which [`unknown_operators`] finds that the meaning of
    /// operators is unknown.
    fn reads_unknown_operators(&self) -> bool {
        false
    }

    /// Whether the stage continues with the next pass after this one changed the model, instead of
    /// beginning again.
    fn continues_stage(&self) -> bool {
        false
    }

    /// Whether the result equals the model in exact arithmetic.
    fn is_exact(&self) -> bool {
        true
    }

    /// Transforms the model of a context, and records the change in the log.
    ///
    /// # Errors
    /// If the graph is invalid, or an edit without a site cannot be applied.
    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect>;
}

/// The effect of one run of a pass.
#[derive(Debug)]
pub(crate) enum Effect {
    /// The pass found nothing to do.
    Nothing,
    /// The changed model.
    Model(Box<Model>),
    /// The pass filled a field of [`Bases`]. Later passes read the inlined or flattened input from
    /// it.
    Base,
    /// The result is the input itself, because changes of earlier passes have undone each other.
    Input,
    /// The model is unchanged, but earlier passes of the stage may find more to do in it.
    Again,
    /// The bodies of the flattened model cannot be restored. The run begins again without
    /// flattening.
    Unrestorable,
}

impl Effect {
    /// The effect of a pass that may have changed the model.
    pub(super) fn from_model(made: Option<Model>) -> Self {
        made.map_or(Effect::Nothing, Effect::made)
    }

    /// The effect of a pass that changed the model.
    pub(super) fn made(model: Model) -> Self {
        Effect::Model(Box::new(model))
    }
}

/// The options of a run.
pub(crate) struct Settings<'s> {
    /// The only pass that runs besides the required ones; `None` if all run.
    pub only: Option<&'static str>,
    pub range_check: RangeCheck,
    pub skip: SkipSet,
    pub centre: bool,
    /// Whether the shift of a LayerNormalization folds even at the price of an Add, so that the
    /// LayerNormalization need not subtract the mean.
    pub gives_shifts_away: bool,
    pub merge_norms: bool,
    pub constant_norms: bool,
    pub growth: GrowthBudget,
    pub scale_stream: Option<u32>,
    /// The half-precision type to which the model is converted, and the type of the result's inputs
    /// and outputs.
    pub half: Option<(HalfType, EndType)>,
    pub target: Target,
    pub slicing: &'s Slicing,
    pub tell: &'s dyn Fn(&str, usize, usize),
}

/// The input of a run, and its inlined and flattened versions. Until a pass changes the model,
/// passes read the last version.
pub(crate) struct Bases<'m> {
    pub model: &'m Model,
    /// The model after inlining, if inlining changed it.
    pub inlined: &'m OnceCell<Lowered>,
    /// The inlined model with its bodies flattened into the main graph, if it has bodies.
    pub flat: OnceCell<Flat<'m>>,
    /// Whether the flattened bodies are restored in the result.
    pub is_restored: Cell<bool>,
    /// Whether bodies may be flattened.
    pub may_flatten: bool,
    /// The answers of shape inference, which all analyses of the run share.
    pub answers: Rc<Answers>,
}

impl Settings<'_> {
    /// Whether a LayerNormalization in parts becomes one operator.
    pub(super) fn writes_layer_norms(&self) -> bool {
        self.half.is_some() || self.target != Target::Portable
    }

    /// Whether `--skip` names a pass, or another pass is the only one to run.
    pub(super) fn skips(&self, pass: &dyn Pass) -> bool {
        let is_left_out = self.only.is_some_and(|only| only != pass.name());
        is_left_out || self.skip.skips(pass.name(), pass.aliases())
    }
}

impl<'m> Bases<'m> {
    /// The model after inlining, or the input if inlining changed nothing.
    pub(super) fn inlined(&self) -> &'m Model {
        self.inlined
            .get()
            .map_or(self.model, |inlined| &inlined.model)
    }

    /// The model after inlining and flattening. Formulas of new tensors read its constants.
    pub(super) fn first(&self) -> &Model {
        self.flat
            .get()
            .map_or_else(|| self.inlined(), |flat| &flat.model)
    }
}

/// A model between two passes, with its analysis and sites. The analysis and the sites are computed
/// when a pass first needs them.
pub(crate) struct Context<'c, 'm> {
    pub settings: &'c Settings<'c>,
    pub bases: &'c Bases<'m>,
    /// The result so far. `None` before the first change.
    result: Option<&'c Model>,
    /// The last pass that changed the model.
    made_by: Option<&'static str>,
    analysis: OnceCell<Analysis<'c>>,
    /// The duration of the analysis. `None` if there was no analysis, or if the statistics already
    /// counted it.
    analysis_time: Cell<Option<Duration>>,
    sites: RefCell<Option<Vec<Site>>>,
    unknown: OnceCell<Option<Refusal>>,
}

impl<'c, 'm> Context<'c, 'm> {
    pub(super) fn new(
        settings: &'c Settings<'c>,
        bases: &'c Bases<'m>,
        result: Option<&'c Model>,
        made_by: Option<&'static str>,
    ) -> Self {
        Context {
            settings,
            bases,
            result,
            made_by,
            analysis: OnceCell::new(),
            analysis_time: Cell::new(None),
            sites: RefCell::new(None),
            unknown: OnceCell::new(),
        }
    }

    /// The model to whose constants the formulas of new tensors refer.
    pub(super) fn first(&self) -> &'c Model {
        self.bases.first()
    }

    /// The model that the pass reads. This is the result so far, or the first model if no pass has
    /// changed it yet.
    pub(super) fn model(&self) -> &'c Model {
        self.result.unwrap_or_else(|| self.first())
    }

    /// The result so far. `None` before the first change.
    pub(super) fn result(&self) -> Option<&'c Model> {
        self.result
    }

    /// The result so far, or the inlined model with its bodies if nothing has changed yet.
    pub(super) fn result_or_inlined(&self) -> &'c Model {
        self.result.unwrap_or_else(|| self.bases.inlined())
    }

    /// The analysis of the model.
    ///
    /// # Errors
    /// If the graph is invalid, or its inputs or outputs differ from those of the first model.
    pub(super) fn analysis(&self) -> Result<&Analysis<'c>> {
        if let Some(analysis) = self.analysis.get() {
            return Ok(analysis);
        }
        (self.settings.tell)("shapes", 0, 1);
        let stopwatch = Stopwatch::start();
        let answers = self.bases.answers.clone();
        let analysis = match self.result {
            None => Analysis::with_answers(self.first(), answers)?,
            Some(result) => checked(self.first(), result, self.made_by, answers)?,
        };
        self.analysis_time.set(Some(stopwatch.elapsed()));
        Ok(self.analysis.get_or_init(|| analysis))
    }

    /// Takes the duration of the analysis. `None` if there was no analysis, or if its duration was
    /// already taken.
    pub(super) fn take_analysis_time(&self) -> Option<Duration> {
        self.analysis_time.take()
    }

    /// Whether the bodies of the model are flattened into its main graph.
    pub(super) fn is_flat(&self) -> bool {
        self.bases.flat.get().is_some() && !self.bases.is_restored.get()
    }

    /// Takes the sites that an earlier pass left in the context, or finds the sites if no pass left
    /// any.
    ///
    /// # Errors
    /// The errors of [`Context::analysis`].
    pub(super) fn take_sites(&self) -> Result<Vec<Site>> {
        let kept = self.sites.take();
        kept.map_or_else(|| self.find_sites(), Ok)
    }

    /// Keeps the sites, so that the next pass need not search for them.
    pub(super) fn keep_sites(&self, sites: Vec<Site>) {
        self.sites.replace(Some(sites));
    }

    /// The sites of the model.
    ///
    /// # Errors
    /// The errors of [`Context::analysis`].
    pub(super) fn find_sites(&self) -> Result<Vec<Site>> {
        Ok(recognize::find(&View::new(self.analysis()?)))
    }

    /// The nodes that stay because `--skip` names them, or the name or kind of their site.
    ///
    /// # Errors
    /// The errors of [`Context::analysis`].
    pub(super) fn skipped_nodes(&self) -> Result<HashSet<NodeId>> {
        let skip = &self.settings.skip;
        if skip.is_empty() {
            return Ok(HashSet::default());
        }
        let graph = &self.analysis()?.graph;
        let by_name = graph.order().iter().copied();
        let mut skipped: HashSet<NodeId> = by_name
            .filter(|&node| skip.is_match(graph.name(node)))
            .collect();
        let sites = self.find_sites()?;
        let left = sites.iter().filter(|site| skip.has(&site.name, &site.kind));
        skipped.extend(left.flat_map(|site| &site.nodes));
        Ok(skipped)
    }

    /// The refusal of a model with operators of unknown meaning; `None` for other models.
    pub(super) fn unknown_operators(&self) -> Option<&Refusal> {
        self.unknown
            .get_or_init(|| unknown_operators(self.model()))
            .as_ref()
    }
}

/// Analyses a result, which must be a valid graph with the inputs and outputs of the original.
///
/// # Errors
/// [`Error::Defect`], which names the pass that produced the result.
pub(crate) fn checked<'m>(
    before: &Model,
    after: &'m Model,
    made_by: Option<&'static str>,
    answers: Rc<Answers>,
) -> Result<Analysis<'m>> {
    let ends = |model: &Model| [model.graph().input.clone(), model.graph().output.clone()];
    if ends(before) != ends(after) {
        let reason = "its inputs or outputs are not what they were";
        return Err(invalid(before, made_by, reason.into()));
    }
    let analysis = Analysis::with_answers(after, answers);
    analysis.map_err(|error| invalid(before, made_by, error.to_string()))
}

/// The error of an invalid graph, which names the pass that produced it.
pub(super) fn invalid(model: &Model, made_by: Option<&'static str>, reason: String) -> Error {
    let at = made_by.map_or("the graph".into(), |pass| {
        format!("the graph after the pass `{pass}`")
    });
    Error::Defect {
        file: model.file(),
        at,
        reason,
    }
}

/// The refusal of a model with operators of unknown meaning; `None` for other models. A model that
/// imports no version of ONNX's operator set counts as version 1, so it is refused.
pub(crate) fn unknown_operators(model: &Model) -> Option<Refusal> {
    let reason = match model.own_opset() {
        opset if opset < OLDEST_OPSET => Reason::PastOpset(opset),
        opset if opset > NEWEST_OPSET => Reason::FutureOpset(opset),
        _ => {
            let redefined = redefined(model).map(|name| Reason::Redefined(name.to_owned()));
            redefined.or_else(|| Some(Reason::Hidden(hidden(model.graph())?.to_owned())))?
        }
    };
    Some(Refusal::new(reason, ""))
}
