//! The whole pass over a model: lower, recognise, plan, apply, simplify.

use std::collections::HashMap;

use globset::{Glob, GlobSet, GlobSetBuilder};

use crate::error::{Error, Result};
use crate::fold::apply::apply;
use crate::fold::plan::Plan;
use crate::graph::Graph;
use crate::graph::constants::Constants;
use crate::graph::editor::Editor;
use crate::graph::facts::Facts;
use crate::lower::lower;
use crate::normalizer::{self, Kind, Site, View};
use crate::onnx::Model;
use crate::refusal::{Reason, Refusal};
use crate::simplify::simplify_known;

/// The newest version of ONNX's operator set whose operators the rules are written for.
const NEWEST_OPSET: i64 = 28;

/// The oldest: before it arithmetic did not broadcast by itself, as what a fold makes has to.
const OLDEST_OPSET: i64 = 7;

/// Is told the stage, and how much of it is done out of how much.
pub type OnProgress<'o> = &'o dyn Fn(&str, usize, usize);

/// What to fold, and what to tell on the way.
#[derive(Default)]
pub struct FuseOptions<'o> {
    /// Sites that are left as they are: names or kinds, with `*` and `?`.
    pub skip: Vec<String>,
    /// Is told the stage, and how much of it is done out of how much.
    pub progress: Option<OnProgress<'o>>,
}

impl FuseOptions<'_> {
    /// The patterns to skip that are neither name nor kind of any site of a plan: misspelled, perhaps.
    pub fn idle_skips(&self, plan: &Plan) -> Vec<&str> {
        let is_idle = |pattern: &&String| {
            let meant = |set: GlobSet| plan.sites.iter().any(|site| is_skipped(&set, &site.name, &site.kind));
            !globs(std::slice::from_ref(pattern)).is_ok_and(meant)
        };
        self.skip.iter().filter(is_idle).map(String::as_str).collect()
    }
}

/// A model after the pass, and what was done to it.
pub struct Fused {
    /// The result; equal to the input where the plan is empty.
    pub model: Model,
    /// What was done, and what was not and why.
    pub plan: Plan,
    /// The input with its opaque normalizers written out, where it has any: what engines that do not
    /// know them can be compared on.
    pub lowered: Option<Model>,
}

impl Fused {
    /// Whether the result differs from the input.
    pub fn changed(&self) -> bool {
        self.lowered.is_some() || !self.plan.is_empty()
    }
}

/// Plans without changing anything.
///
/// # Errors
/// Where the model's graph is none that ONNX allows, or a `skip` is no valid glob.
pub fn plan(model: &Model, options: &FuseOptions) -> Result<Plan> {
    Ok(pass(model, options, false)?.plan)
}

/// Folds everything that is exact to fold.
///
/// # Errors
/// As [`plan`]. What cannot be folded is no error: the plan says why it stays.
///
/// ```
/// use unfold::onnx::Model;
/// let model = Model::open("models/digits/un-dynamo.onnx")?;
/// let fused = unfold::fuse(&model, &Default::default())?;
/// assert!(fused.plan.sites.iter().all(|site| site.is_folded()));
/// assert!(fused.model.graph().node.len() < model.graph().node.len());
/// # Ok::<(), unfold::error::Error>(())
/// ```
pub fn fuse(model: &Model, options: &FuseOptions) -> Result<Fused> {
    pass(model, options, true)
}

fn pass(model: &Model, options: &FuseOptions, carry_out: bool) -> Result<Fused> {
    let tell = |stage: &str, done, of| {
        if let Some(progress) = options.progress {
            progress(stage, done, of);
        }
    };
    let skip = globs(&options.skip)?;
    // Checked before anything is made of it, so that errors speak of the model as it is.
    Graph::new(model)?;
    let lowered = lower(model, &|name, op| skip.is_match(name) || skip.is_match(op))?;
    let (model, plan) = fold(lowered.as_ref().unwrap_or(model), &skip, carry_out, &tell)?;
    Ok(Fused { model, plan, lowered })
}

fn fold(
    model: &Model,
    skip: &GlobSet,
    carry_out: bool,
    tell: &dyn Fn(&str, usize, usize),
) -> Result<(Model, Plan)> {
    let graph = Graph::new(model)?;
    tell("shapes", 0, 1);
    let facts = Facts::infer(&graph);
    let constants = Constants::new(&graph, &facts);
    tell("sites", 0, 1);
    let view = View::new(&graph, &facts, &constants);
    let sites = normalizer::find(&view);
    // Sites whose folded numbers did not fit their types: only known once they are computed.
    let mut failed: HashMap<usize, Refusal> = HashMap::new();
    for _ in 0..=sites.len() {
        tell("plan", 0, 1);
        let index: HashMap<&str, usize> =
            sites.iter().enumerate().map(|(i, s)| (s.name.as_str(), i)).collect();
        let refused = |site: &Site| {
            let skipped = is_skipped(skip, &site.name, &site.kind);
            let known = index.get(site.name.as_str()).and_then(|i| failed.get(i)).cloned();
            let skipped = skipped.then(|| Refusal::new(Reason::Skipped, ""));
            known.or(skipped).or_else(|| not_known(model))
        };
        let plan = crate::fold::plan::plan(&view, &sites, &refused);
        if !carry_out || plan.is_empty() {
            return Ok((model.clone(), plan));
        }
        let mut editor = Editor::new(model);
        let outcome =
            apply(&plan, &graph, &facts, &constants, &mut editor, &|done, of| tell("fold", done, of));
        if let Err(why) = outcome {
            let before = failed.len();
            for site in why.sites {
                failed.entry(site).or_insert_with(|| why.refusal.clone());
            }
            if failed.len() == before {
                // Nothing to blame it on: then nothing is folded.
                failed.extend((0..sites.len()).map(|site| (site, why.refusal.clone())));
            }
            continue;
        }
        tell("simplify", 0, 1);
        let removed = plan.removals.iter().map(|removal| removal.source.as_str());
        let lowered = plan.lowerings.iter().flat_map(|lowering| lowering.ends());
        let seeds = removed.chain(lowered).map(str::to_owned).collect();
        let mut result = model.clone();
        *result.graph_mut() = simplify_known(editor, seeds, &graph, &facts, &HashMap::new());
        return Ok((result, plan));
    }
    Ok((model.clone(), Plan::default()))
}

/// Why nothing is known of what the operators of a model mean. One that imports no version means the first.
fn not_known(model: &Model) -> Option<Refusal> {
    let reason = match model.opset("").unwrap_or(1) {
        opset if opset < OLDEST_OPSET => Reason::PastOpset(opset),
        opset if opset > NEWEST_OPSET => Reason::FutureOpset(opset),
        _ => return None,
    };
    Some(Refusal::new(reason, ""))
}

fn is_skipped(skip: &GlobSet, name: &str, kind: &Kind) -> bool {
    skip.is_match(name) || skip.is_match(kind.name)
}

fn globs(patterns: &[String]) -> Result<GlobSet> {
    let mut set = GlobSetBuilder::new();
    let wrong = |pattern: &str, error: globset::Error| Error::Skip {
        pattern: pattern.to_owned(),
        reason: error.kind().to_string(),
    };
    for pattern in patterns {
        // The star of PN* is part of a name.
        let literal = pattern.replace('*', "[*]");
        set.add(Glob::new(pattern).map_err(|error| wrong(pattern, error))?);
        set.add(Glob::new(&literal).map_err(|error| wrong(pattern, error))?);
    }
    set.build().map_err(|error| wrong("", error))
}
