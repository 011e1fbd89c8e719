//! The plans of all repetitions of the pipeline, merged into one.
//!
//! A site that stays is found again in the next repetition by the values that its nodes output.

use crate::affine::plan::{
    Outcome, PassStats, Placed, Plan, SitePlan, StopReason, Stored, StreamPlan, Tidy,
};
use crate::affine::recognize::{Family, Site};
use crate::hash::{HashMap, HashSet};
use crate::ir::builder::NewConstant;
use crate::ir::{Graph, ValueId};
use crate::onnx::Model;
use crate::onnx::node::constant_tensor;
use crate::onnx::tensor::{DataType, data_type};
use crate::passes::simplify::{NamedFloats, Simplified};
use crate::recipe::{Read, Recipe, evaluate};
use crate::refusal::{Reason, Refusal};

/// Numbers that differ by at most this much are equal up to rounding.
const EXACT: f64 = 1e-12;

/// The plans of all runs of passes so far, merged into one.
#[derive(Default)]
pub(crate) struct PlanLog {
    /// The plan of the first run of `fold-affines`. Later runs update the outcomes of its sites,
    /// and may add sites.
    pub plan: Plan,
    /// For each name of a site in the plan, the last number that was appended to it.
    names: HashMap<String, usize>,
    tensors: Vec<Stored>,
    /// The tensors of the current pass, as formulas over the model before the pass. They are
    /// collected only for an observer.
    latest: Option<Vec<Stored>>,
    passes: usize,
    /// Maps each value that a site outputs to the index of the site. The value has the name under
    /// which the next pass finds it.
    makers: HashMap<String, usize>,
    refused: HashMap<usize, Refusal>,
    /// Whether a pass simplified the model, and so may have computed constants, since refusals for
    /// growth were last reconsidered.
    has_other_weights: bool,
    /// Whether `unflatten-rows` rewrote layers on flattened rows as layers on all axes. A later
    /// pass may undo this.
    pub is_lifted: bool,
    /// The moves of linear operators that the last search for a placement refused.
    pub unplaced: Vec<Placed>,
    /// Whether a rewrite of operators into another form reduced their number.
    has_fewer: bool,
}

/// A site that a pass found.
pub(crate) struct SiteRecord {
    /// The index of the site in the merged plan, unless it is new.
    known: Option<usize>,
    /// The indices of other known sites that this site absorbed: this site outputs their values.
    takes: Vec<usize>,
    /// The names of the values that the site outputs.
    values: Vec<String>,
}

impl SiteRecord {
    /// Records a value that the site will output.
    pub(crate) fn makes(&mut self, value: &str) {
        self.values.push(value.to_owned());
    }
}

impl PlanLog {
    /// Starts collecting the tensors of the next pass for [`PlanLog::latest`].
    pub(crate) fn begin_pass(&mut self) {
        self.latest = Some(vec![]);
    }

    /// The tensors of the last pass, as formulas over the model before the pass. Empty if tensors
    /// are not collected.
    pub(crate) fn latest(&self) -> &[Stored] {
        self.latest.as_deref().unwrap_or_default()
    }

    /// Adds the constants that inlining computed, with their formulas over constants of the input.
    pub(crate) fn begin(&mut self, formulas: &[NewConstant]) {
        let stored: Vec<Stored> = formulas.iter().filter_map(Stored::from_constant).collect();
        if let Some(latest) = &mut self.latest {
            latest.extend(stored.iter().cloned());
        }
        self.tensors.extend(stored);
    }

    /// Looks up each site among the sites of earlier repetitions.
    pub(crate) fn recognize(&self, graph: &Graph, sites: &[Site]) -> Vec<SiteRecord> {
        let sites = sites.iter();
        sites.map(|site| self.record(graph, site)).collect()
    }

    /// The record of a site. The site is known if a site of an earlier repetition output its
    /// values.
    fn record(&self, graph: &Graph, site: &Site) -> SiteRecord {
        let nodes = site.nodes.iter();
        let values = nodes.flat_map(|&node| graph.outputs(node).iter().flatten());
        let values: Vec<String> = values
            .map(|&value| graph.value_name(value).to_owned())
            .collect();
        let makers = values.iter().filter_map(|value| self.makers.get(value));
        let mut takes: Vec<usize> = makers.copied().collect();
        let first = takes.iter().position(|&place| self.may_be(site, place));
        SiteRecord {
            known: first.map(|first| takes.remove(first)),
            takes,
            values,
        }
    }

    /// Whether `site` may be the site at index `place` of the plan. A site of merged branches
    /// absorbs other sites, so it only matches a known site of the same kind.
    fn may_be(&self, site: &Site, place: usize) -> bool {
        site.kind.family != Family::Linear || self.plan.sites[place].kind == site.kind
    }

    /// The refusal of a site by an earlier repetition. `None` if the site is new, or was not
    /// refused.
    pub(crate) fn refusal(&self, seen: &SiteRecord) -> Option<Refusal> {
        self.refused.get(&seen.known?).cloned()
    }

    /// The refusal of a site whose constants are 1 and 0 only because they were rounded when they
    /// were stored. By their formulas, the constants are only close to 1 and 0. `None` for other
    /// sites.
    pub(crate) fn rounded(&self, graph: &Graph, site: &Site, read: Read) -> Option<Refusal> {
        let parts = [&site.pre, &site.post]
            .into_iter()
            .flatten()
            .filter(|part| part.affine.is_identity());
        // If several nodes compute the identity, their single constants may differ from 1 and 0, so
        // only identities of one node are checked here.
        let nodes = parts
            .filter(|part| part.nodes.len() == 1)
            .flat_map(|part| &part.nodes);
        let inputs = nodes.flat_map(|&node| graph.inputs(node)).flatten();
        let mut names = inputs.map(|&value| graph.value_name(value));
        let near = names.find(|name| self.only_comes_near(name, read) == Some(true));
        near.or_else(|| unsure(graph, site))
            .map(|near| Refusal::new(Reason::Rounded, near))
    }

    /// Whether the elements of a tensor that a pass stored are integers only because they were
    /// rounded. `None` if no pass stored the tensor, or if its formula cannot be evaluated.
    fn only_comes_near(&self, name: &str, read: Read) -> Option<bool> {
        let tensor = self.tensors.iter().find(|tensor| tensor.name == name)?;
        let Stored {
            recipe, data_type, ..
        } = tensor;
        // Recipes are computed in float64, so it cannot be detected whether a float64 tensor was
        // rounded. If the formula of such a tensor reads several constants, the tensor counts as
        // rounded.
        let is_as_wide = *data_type == DataType::Double && recipe.constants().len() > 1;
        let numbers = evaluate(recipe, read).ok()?;
        let mut distances = numbers.iter().map(|number| (number - number.round()).abs());
        Some(is_as_wide || distances.any(|distance| distance > EXACT))
    }

    /// Records the plan of a pass: the outcomes of its sites, its refusals and its new tensors.
    /// `now` returns the name of a value after the pass.
    pub(crate) fn note(
        &mut self,
        mut plan: Plan,
        seen: Vec<SiteRecord>,
        refused: std::collections::HashMap<usize, Refusal>,
        stored: Vec<Stored>,
        now: &mut dyn FnMut(&str) -> String,
    ) {
        let gone: HashSet<String> = plan
            .removals
            .iter()
            .map(|removal| removal.output.clone())
            .collect();
        let sites = std::mem::take(&mut plan.sites);
        self.add_plan(plan);
        let unseen = std::mem::take(&mut self.makers);
        // There may be hundreds of thousands of sites, so the first repetition reserves space for
        // all of them.
        self.plan
            .sites
            .reserve(if self.passes == 0 { sites.len() } else { 0 });
        let mut places = HashMap::default();
        for (
            index,
            (
                site,
                SiteRecord {
                    known,
                    takes,
                    values,
                },
            ),
        ) in sites.into_iter().zip(seen).enumerate()
        {
            if site.kind.family == Family::Linear {
                takes.iter().for_each(|&taken| {
                    goes_on(&mut self.plan.sites[taken].post, site.post.clone())
                });
            }
            let Some(place) = self.place(site, known) else {
                continue;
            };
            places.insert(index, place);
            self.refused
                .extend(refused.get(&index).map(|refusal| (place, refusal.clone())));
            let stays = values.iter().filter(|value| !gone.contains(*value));
            self.makers.extend(stays.map(|value| (now(value), place)));
        }
        self.remember(unseen, &gone, now);
        self.passes += 1;
        self.keep(stored, &places);
    }

    /// Remembers the values of sites that did not fold and that this pass did not recognize. A
    /// later pass may find them again.
    fn remember(
        &mut self,
        unseen: HashMap<String, usize>,
        gone: &HashSet<String>,
        now: &mut dyn FnMut(&str) -> String,
    ) {
        for (value, place) in unseen {
            if !gone.contains(&value) && !self.plan.sites[place].is_folded() {
                self.makers.entry(now(&value)).or_insert(place);
            }
        }
    }

    /// Takes over the plan of the first repetition. Of later plans, only adds the growth.
    fn add_plan(&mut self, plan: Plan) {
        match self.passes {
            0 => {
                let Plan {
                    tidy,
                    growth,
                    constant,
                    ..
                } = std::mem::replace(&mut self.plan, plan);
                self.plan.constant = constant;
                // Rewrites of forms count as a change only together with other changes, or if they
                // remove operators.
                self.plan.is_tidied |= tidy.constants + tidy.duplicates > 0 || self.has_fewer;
                self.plan.growth += growth;
                self.plan.tidy = tidy;
            }
            _ => self.plan.growth += plan.growth,
        }
    }

    /// Records streams with a new basis, their new tensors, and the streams that stay.
    pub(crate) fn rebased(&mut self, streams: Vec<StreamPlan>, stored: Vec<Stored>) {
        let is_first = self.plan.streams.is_empty();
        for stream in streams {
            // A changed stream is found again in the next repetition, possibly under another name.
            // So after the first repetition, a stream with a new name is added only if it is
            // changed.
            match self
                .plan
                .streams
                .iter_mut()
                .find(|there| there.name == stream.name)
            {
                Some(there) if there.is_centred() => there.scaling = stream.scaling,
                Some(there) => {
                    let centring = there.centring.take();
                    *there = stream;
                    there.centring = there.centring.take().or(centring);
                }
                None if is_first || stream.is_changed() => self.plan.streams.push(stream),
                None => {}
            }
        }
        self.keep(stored, &HashMap::default());
    }

    /// Records a simplification: the number of removed operators, the growth and the computed
    /// tensors.
    pub(crate) fn simplified(&mut self, simplified: &Simplified) {
        self.plan.tidy.constants += simplified.constants;
        self.plan.tidy.duplicates += simplified.duplicates;
        self.plan.is_tidied = true;
        self.plan.growth += simplified.growth;
        self.has_other_weights = true;
        let stored = simplified.computed.iter().map(computed_constant).collect();
        self.keep(stored, &HashMap::default());
    }

    /// If a pass simplified the model since the last call, drops the refusals for growth, because a
    /// part of a shared weight may have become a separate weight. Returns whether refusals were
    /// dropped.
    pub(crate) fn reconsider(&mut self) -> bool {
        let before = self.refused.len();
        if std::mem::take(&mut self.has_other_weights) {
            self.refused
                .retain(|_, refusal| !matches!(refusal.reason, Reason::Growth(_)));
        }
        self.refused.len() < before
    }

    /// Records rewrites of operators into other forms: their new tensors, their growth, and whether
    /// the number of operators has become smaller.
    pub(crate) fn rewritten(&mut self, stored: Vec<Stored>, grown: u64, has_fewer: bool) {
        self.plan.is_tidied = true;
        self.has_fewer |= has_fewer;
        self.plan.growth += grown;
        self.keep(stored, &HashMap::default());
    }

    /// Whether the changes so far may have undone each other. True if `unflatten-rows` rewrote
    /// layers, and no site or stream has changed.
    pub(crate) fn may_be_unchanged(&self) -> bool {
        self.is_lifted && self.plan.is_tidied_alone()
    }

    /// Records that the result is the input itself.
    pub(crate) fn is_unchanged(&mut self) {
        self.plan.is_tidied = false;
        self.plan.growth = 0;
        self.plan.tidy = Tidy::default();
    }

    /// The recipes of stored tensors, over constants of the first model.
    pub(crate) fn recipes(&self) -> HashMap<&str, &Recipe> {
        self.tensors
            .iter()
            .map(|tensor| (tensor.name.as_str(), &tensor.recipe))
            .collect()
    }

    /// Adds the tensors that a pass stored, after substituting earlier tensors in their formulas.
    /// The formulas then read only constants of the first model.
    fn keep(&mut self, stored: Vec<Stored>, places: &HashMap<usize, usize>) {
        if let Some(latest) = &mut self.latest {
            let own = Earlier::new(latest);
            let of_pass: Vec<Stored> = stored.iter().map(|tensor| own.resolve(tensor)).collect();
            replace(latest, of_pass);
        }
        let earlier = Earlier::new(&self.tensors);
        let resolved: Vec<Stored> = stored
            .iter()
            .map(|tensor| Stored {
                sites: earlier.sites(tensor, places),
                ..earlier.resolve(tensor)
            })
            .collect();
        replace(&mut self.tensors, resolved);
    }

    /// Drops the tensors that are not in the result.
    pub(crate) fn keep_tensors_of(&mut self, result: &Model) {
        let graph = result.graph();
        let nodes = graph.node.iter();
        let constants = nodes.filter(|node| node.op_type() == "Constant");
        let made = constants.flat_map(|node| &node.output).map(String::as_str);
        let stored = graph.initializer.iter().map(|tensor| tensor.name());
        let there: HashSet<&str> = stored.chain(made).collect();
        self.tensors
            .retain(|tensor| there.contains(tensor.name.as_str()));
    }

    /// Completes the plan with the reason why the run stopped, and with the statistics of each
    /// pass.
    pub(crate) fn finish(mut self, stopped: StopReason, passes: Vec<PassStats>) -> Plan {
        self.plan.placed.append(&mut self.unplaced);
        Plan {
            tensors: self.tensors,
            stopped,
            passes,
            ..self.plan
        }
    }

    /// Returns `name`, or if a site has this name, `name` with the next free number.
    fn name_of(&mut self, name: String) -> String {
        let Some(mut count) = self.names.get(&name).copied() else {
            return name;
        };
        let mut free = name.clone();
        while self.names.contains_key(&free) {
            count += 1;
            free = format!("{name}#{count}");
        }
        self.names.insert(name, count);
        free
    }

    /// Updates a known site, or appends a new one. Returns its index. After the first repetition, a
    /// new site is appended only if it folds.
    fn place(&mut self, mut site: SitePlan, known: Option<usize>) -> Option<usize> {
        if let Some(place) = known {
            let before = &mut self.plan.sites[place];
            goes_on(&mut before.pre, site.pre);
            goes_on(&mut before.post, site.post);
            return Some(place);
        }
        if self.passes > 0 && !site.outcomes().any(Outcome::goes) {
            return None;
        }
        if self.passes > 0 {
            site.name = self.name_of(site.name);
        }
        self.names.entry(site.name.clone()).or_insert(1);
        self.plan.sites.push(site);
        Some(self.plan.sites.len() - 1)
    }
}

/// The entry of a constant that was computed and stored. Its formula reads the value that the
/// constant replaces.
fn computed_constant(computed: &NamedFloats) -> Stored {
    Stored {
        name: computed.name.clone(),
        data_type: computed.data_type,
        recipe: Recipe::constant(&computed.value, &computed.shape),
        replaces: None,
        sites: vec![],
    }
}

/// Tensors that were stored earlier, by name.
struct Earlier<'t>(HashMap<&'t str, &'t Stored>);

impl<'t> Earlier<'t> {
    fn new(tensors: &'t [Stored]) -> Self {
        Earlier(
            tensors
                .iter()
                .map(|tensor| (tensor.name.as_str(), tensor))
                .collect(),
        )
    }

    /// Returns the tensor with the formulas of earlier tensors in place of their names.
    fn resolve(&self, tensor: &Stored) -> Stored {
        Stored {
            recipe: tensor.recipe.substituted(&|name| self.rounded(name)),
            ..tensor.clone()
        }
    }

    /// The formula of the earlier tensor with this name, rounded to its type. `None` if there is no
    /// such tensor.
    fn rounded(&self, name: &str) -> Option<Recipe> {
        let tensor = self.0.get(name)?;
        Some(tensor.recipe.rounded(tensor.data_type))
    }

    /// The indices in the merged plan of the sites of a tensor, and of the sites of the earlier
    /// tensors that its formula reads. `places` has the index in the merged plan for each site of
    /// the current pass.
    fn sites(&self, tensor: &Stored, places: &HashMap<usize, usize>) -> Vec<usize> {
        let constants = tensor.recipe.constants().into_iter();
        let read = constants.filter_map(|name| self.0.get(&**name));
        let mut sites: Vec<usize> = read.flat_map(|tensor| &tensor.sites).copied().collect();
        sites.extend(tensor.sites.iter().filter_map(|site| places.get(site)));
        sites.sort_unstable();
        sites.dedup();
        sites
    }
}

/// Adds tensors. A tensor replaces an earlier tensor with the same name.
fn replace(tensors: &mut Vec<Stored>, stored: Vec<Stored>) {
    let names: HashSet<&str> = stored.iter().map(|tensor| tensor.name.as_str()).collect();
    tensors.retain(|tensor| !names.contains(tensor.name.as_str()));
    tensors.extend(stored);
}

/// Updates the outcome of an affine after a later repetition. A later fold is added, unless the
/// affine was already folded completely. A later refusal replaces an earlier one in two cases: if
/// the earlier reason is that another fold changes the operator already, or if the later reason is
/// that the affine is neutral only because of rounding.
fn goes_on(before: &mut Option<Outcome>, mut now: Option<Outcome>) {
    if let (Some(Outcome::Kept { forward, backward }), Some(Outcome::Kept { .. })) =
        (&*before, &now)
    {
        let was_changed = |refusal: &Refusal| refusal.reason == Reason::Changed;
        // The new outcome also replaces the old one if the affine is neutral only because of
        // rounding.
        let is_rounded = matches!(&now, Some(Outcome::Kept { forward, .. }) if forward.reason == Reason::Rounded);
        if is_rounded || was_changed(forward) || backward.as_ref().is_some_and(was_changed) {
            *before = now;
        }
        return;
    }
    let (
        Some(
            Outcome::Folded { into, .. }
            | Outcome::Partly { into, .. }
            | Outcome::Scaled { into, .. },
        ),
        false,
    ) = (&mut now, matches!(before, Some(Outcome::Folded { .. })))
    else {
        return;
    };
    if let Some(Outcome::Partly { into: earlier, .. } | Outcome::Scaled { into: earlier, .. }) =
        before
    {
        into.append(earlier);
        into.sort();
        into.dedup();
    }
    *before = now;
}

/// Finds a float64 constant among several nodes that compute the identity together. The product of
/// their scales is 1, or the sum of their shifts 0, only within the precision of float64, so the
/// nodes may not compute the identity exactly. `None` if there is no such constant.
fn unsure<'g>(graph: &Graph<'g>, site: &Site) -> Option<&'g str> {
    let parts = [&site.pre, &site.post]
        .into_iter()
        .flatten()
        .filter(|part| part.affine.is_identity());
    let several = parts.filter(|part| part.nodes.len() > 1);
    let read = several
        .flat_map(|part| &part.nodes)
        .flat_map(|&node| graph.inputs(node))
        .flatten();
    read.copied()
        .find(|&value| stored_type(graph, value) == Some(DataType::Double))
        .map(|value| graph.value_name(value))
}

/// The element type of a stored constant. `None` for other values.
fn stored_type(graph: &Graph, value: ValueId) -> Option<DataType> {
    if let Some(tensor) = graph.initializer(value) {
        return data_type(tensor).ok();
    }
    let (maker, _) = graph.producer(value)?;
    let tensor = constant_tensor(graph.node(maker))?;
    data_type(&tensor).ok()
}
