//! Deciding which affine goes where. Nothing is changed.

mod cost;

use std::cell::Cell;
use std::collections::HashMap as Map;

use crate::affine::Affine;
use crate::affine::item::{Item, Items, Role, State, Tried};
use crate::affine::plan::{
    Basis, Direction, Outcome, Plan, Removal, Rewrite, SitePlan, StopReason, Tidy,
};
use crate::affine::planner::cost::{ADD_BY_PLACE, OWN_ADD};
use crate::affine::propagate::overlay::GraphOverlay;
use crate::affine::propagate::propagation::Propagation;
use crate::affine::propagate::{backward, modulation, stream_basis};
use crate::affine::recognize::{Family, Part, Replacement, Reset, Site};
use crate::analysis::Analysis;
use crate::hash::HashMap;
use crate::ir::{NodeId, ValueId};
use crate::onnx::operator::Category;
use crate::onnx::tensor::DataType;
use crate::refusal::{Reason, Refusal};

/// How often all that is left is looked at again. Each time something before it changed, so that the
/// last one hardly ever comes.
const SWEEPS: usize = 64;

/// How often it may be tried for nothing whether a scale goes back along a residual stream, which is far to look.
const RETURNS: usize = 64;

/// The bound for attempts to fold a shift backward along a stream: each looks through all readers
/// behind it.
const SHIFTS: usize = 64;

/// The largest shift that may be added to a residual stream, whose digits it costs.
const LARGEST_SHIFT: f64 = 16.0;

/// Numbers that differ by less of the largest may be the same once they are stored, in half precision.
const TOLD: f64 = 1e-2;

/// Plans the folds of a model's sites. `refused` has those of which nothing is to be touched, and why; `uncopied` those that
/// may go where no weight is copied for them, and why. Where `is_centring`, a LayerNormalization may give its shift away at
/// the price of an Add: without one it takes no mean off once its stream is centred.
pub fn plan<'a>(
    analysis: &'a Analysis<'a>,
    sites: &[Site],
    refused: &Map<usize, Refusal>,
    uncopied: &'a Map<usize, Refusal>,
    is_centring: bool,
) -> Plan {
    let mut planner = Planner {
        is_centring,
        ..Planner::new(analysis, sites, refused, uncopied)
    };
    planner.fold_all();
    planner.join_rows(sites);
    planner.finish(sites, refused)
}

struct Planner<'a> {
    overlay: GraphOverlay<'a>,
    items: Vec<Item>,
    /// The items that are still there, by the value that they make.
    by_output: HashMap<ValueId, usize>,
    removals: Vec<Removal>,
    resets: Vec<(Reset, usize)>,
    replacements: Vec<(Replacement, usize)>,
    /// Sites for which no weight is to be copied, and why.
    uncopied: &'a Map<usize, Refusal>,
    returns: Cell<usize>,
    /// How often a shift may still try to.
    shifts: usize,
    /// Whether streams are centred once nothing folds.
    is_centring: bool,
}

impl<'a> Planner<'a> {
    fn new(
        analysis: &'a Analysis<'a>,
        sites: &[Site],
        refused: &Map<usize, Refusal>,
        uncopied: &'a Map<usize, Refusal>,
    ) -> Self {
        let mut planner = Planner {
            overlay: GraphOverlay::new(analysis),
            items: vec![],
            by_output: HashMap::default(),
            removals: vec![],
            resets: vec![],
            replacements: vec![],
            uncopied,
            returns: Cell::new(RETURNS),
            shifts: SHIFTS,
            is_centring: false,
        };
        for (index, site) in sites.iter().enumerate() {
            let refusal = site
                .refusal
                .clone()
                .or_else(|| refused.get(&index).cloned());
            let replacement = site.replacement.as_ref().filter(|_| refusal.is_none());
            planner.overlay.replaced.extend(
                replacement
                    .iter()
                    .flat_map(|replacement| &replacement.nodes),
            );
            planner
                .replacements
                .extend(replacement.map(|replacement| (replacement.clone(), index)));
            let before = site.pre.iter().map(|part| (part, Role::Before));
            for (part, role) in before.chain(site.post.iter().map(|part| (part, Role::Behind))) {
                // Behind other operators it may be another affine than its nodes compute.
                let input = analysis.graph.value_name(part.input);
                let is_rewritten = replacement.is_some_and(|replacement| replacement.makes(input));
                let state = refusal.clone().map_or(State::Open, State::Refused);
                planner.add(Item {
                    part: part.clone(),
                    site: index,
                    role,
                    is_batch_norm: part.batch_norm(&analysis.graph, &analysis.facts).is_some(),
                    is_bounded: role == Role::Behind && site.kind.is_bounded,
                    state,
                    is_rewritten,
                    tried: None,
                    basis: None,
                });
            }
        }
        planner
    }

    fn add(&mut self, item: Item) {
        let place = self.items.len();
        self.overlay
            .owned
            .extend(item.part.nodes.iter().map(|&node| (node, place)));
        self.by_output.insert(item.part.output, place);
        self.items.push(item);
    }

    /// Folds to a fixpoint: one fold may remove the obstacle of another item.
    ///
    /// An affine goes by itself, into linear operators, where it can; where it cannot, it may join another
    /// that stays, for two affines in a row are one: those that are operators first, for parameters of a normalizer that
    /// go save none. Where neither, its shift or its scale may go alone, or into another factor.
    fn fold_all(&mut self) {
        for _ in 0..SWEEPS {
            let apart_or_together = self.sweep(Self::fold_apart)
                | self.sweep_those(Self::fold_together, |planner, item| {
                    planner.has_operators(item)
                })
                | self.sweep_those(Self::fold_together, |planner, item| {
                    !planner.has_operators(item)
                });
            if !apart_or_together
                && !self.sweep_partly(Self::fold_stream_shift)
                && !(self.sweep_partly(Self::fold_shift) | self.sweep_partly(Self::fold_scale))
                && !self.sweep_partly(Self::fold_factor)
            {
                return;
            }
        }
    }

    /// Whether an affine is operators, and not parameters of one that stays.
    fn has_operators(&self, item: usize) -> bool {
        !self.items[item].part.nodes.is_empty()
    }

    /// Whether anything went that way.
    fn sweep(&mut self, fold: fn(&mut Self, usize) -> bool) -> bool {
        self.sweep_those(fold, |_, _| true)
    }

    /// As [`Planner::sweep`], where a part of an affine goes: of those that must not be copied for all of it goes, or nothing.
    fn sweep_partly(&mut self, fold: fn(&mut Self, usize) -> bool) -> bool {
        self.sweep_those(fold, |planner, item| {
            !planner.uncopied.contains_key(&planner.items[item].site)
        })
    }

    fn sweep_those(
        &mut self,
        fold: fn(&mut Self, usize) -> bool,
        may: fn(&Self, usize) -> bool,
    ) -> bool {
        let mut went = false;
        let is_open = |&item: &usize| self.items[item].is_open() && may(self, item);
        let open: Vec<usize> = (0..self.items.len()).filter(is_open).collect();
        for item in open {
            went |= fold(self, item);
        }
        went
    }

    /// Products by scalars in a row that stay are one, and an affine of channels that stays is a Mul and an Add.
    fn join_rows(&mut self, sites: &[Site]) {
        let graph = self.overlay.graph;
        for item in 0..self.items.len() {
            let Item {
                part,
                site,
                state,
                is_rewritten,
                ..
            } = &self.items[item];
            let is_online = sites[*site].kind.family == Family::Online;
            let is_row = match sites[*site].kind.family {
                // Numbers beside others than products by them belong to forms that engines know.
                Family::Scale if part.affine.scale.len() == 1 && !part.affine.has_no_scale() => {
                    let multiplies =
                        |&node: &NodeId| matches!(graph.op(node), Some("Mul" | "Div" | "Neg"));
                    part.affine.has_no_shift() && part.nodes.iter().all(multiplies)
                }
                // Behind a normalization a Mul and an Add are what engines know, be they of ones and zeros.
                Family::Offline | Family::Online | Family::Scale
                    if part.nodes.len() > 2 || !is_online =>
                {
                    let Affine { scale, shift } = &part.affine;
                    !part.affine.is_identity()
                        && (part.affine.has_no_scale() || is_told(scale))
                        && (part.affine.has_no_shift() || is_told(shift))
                }
                _ => false,
            };
            let is_less = part.nodes.len() > self.items[item].size_with(&part.affine);
            let stays = matches!(state, State::Open) && !is_rewritten && is_less && is_row;
            if stays && self.holds(part, &part.affine) && self.is_writable(part, &part.affine) {
                self.items[item].is_rewritten = true;
            }
        }
    }

    fn fold_apart(&mut self, item: usize) -> bool {
        self.fold(item, false)
    }

    fn fold_together(&mut self, item: usize) -> bool {
        self.fold(item, true)
    }

    /// Where a scale stays, as before a residual stream, its shift may still propagate alone. Or
    /// backward: `s·x + t = s·(x + t/s)`.
    fn fold_shift(&mut self, item: usize) -> bool {
        let there = &self.items[item];
        let Part { affine, resets, .. } = &there.part;
        let holds = self.holds(&there.part, affine);
        if !holds || affine.has_no_shift() || affine.has_no_scale() {
            return false;
        }
        // A BatchNormalization is one operator with its scale alone, too, but where that then goes as well: as before a
        // product over tokens, which takes the shift of a channel in, and hands the scale on.
        let graph = self.overlay.graph;
        let is_normalizer = |&node: &NodeId| graph.category(node) == Some(Category::Normalizer);
        let scale = Affine::scale(affine.scale.clone());
        let drops = there.size() > 1
            || resets.iter().any(|reset| reset.neutral == 0.0)
            || there.part.nodes.iter().all(is_normalizer)
                && (stream_basis::forward(&self.overlay, &self.items(true), item, &scale)
                    .is_ok_and(|propagation| self.worthwhile(item, propagation).is_ok())
                    || self.returning(item, &scale, false).is_some());
        if !drops {
            return false;
        }
        let ahead = || {
            let shift = Affine::shift(affine.shift.clone());
            let propagation =
                stream_basis::beside(&self.overlay, &self.items(false), item, &shift).ok()?;
            // A parameter that goes saves no operator, and engines know a bias of one axis.
            let is_dear = there.part.nodes.is_empty()
                && propagation.folds.iter().any(|fold| self.is_by_place(fold));
            (propagation.makes.is_empty() && !is_dear).then_some(propagation)
        };
        let back = || {
            let before = Affine::shift(&affine.shift / &affine.scale);
            // More is added to more there.
            let has_room =
                self.data_type(&there.part) != Some(DataType::Float16) || !affine.shrinks();
            let propagation = backward::backward(&self.overlay, &self.items(false), item, &before);
            let is_free = |propagation: &Propagation| {
                propagation.makes.is_empty()
                    && !propagation.folds.iter().any(|fold| self.adds(fold))
            };
            propagation
                .ok()
                .filter(|propagation| has_room && is_free(propagation))
        };
        let Some(propagation) = ahead().or_else(back).or_else(|| self.modulation(item)) else {
            return false;
        };
        let Some(Tried { forward: scale, .. }) = there.tried.clone() else {
            return false;
        };
        self.leave_scale(item, propagation, scale)
    }

    /// Where only the shift is refused, it may fold backward along a residual stream, whose other
    /// normalizers absorb it into their own shifts: one shift less each time. Then the scale
    /// propagates.
    fn fold_stream_shift(&mut self, item: usize) -> bool {
        self.fold_shift_back(item, None)
    }

    /// Or where it would be added for each place ahead, and why that is dear.
    fn fold_shift_back(&mut self, item: usize, added: Option<&Refusal>) -> bool {
        let there = &self.items[item];
        let Part { affine, nodes, .. } = &there.part;
        let is_wide = matches!(
            self.data_type(&there.part),
            Some(DataType::Float | DataType::Double)
        );
        let is_whole = matches!(there.state, State::Open) && !nodes.is_empty();
        if !is_whole || !is_wide || affine.has_no_shift() || affine.has_no_scale() {
            return false;
        }
        let before = &affine.shift / &affine.scale;
        // Rounding the stream rounds its summand too.
        let is_small = before.iter().all(|shift| shift.abs() <= LARGEST_SHIFT);
        let Some(left) = self.shifts.checked_sub(1).filter(|_| is_small) else {
            return false;
        };
        // Why it may have to stay is why it did not go with the shift.
        let Some(refusal) = there
            .tried
            .as_ref()
            .map(|tried| tried.forward.clone())
            .or_else(|| added.cloned())
        else {
            return false;
        };
        let (items, scale) = (self.items(true), Affine::scale(affine.scale.clone()));
        let goes_on = stream_basis::forward(&self.overlay, &items, item, &scale)
            .is_ok_and(|propagation| self.worthwhile(item, propagation).is_ok());
        if !goes_on {
            return false;
        }
        let have_one = |propagation: &Propagation| {
            propagation
                .merges
                .iter()
                .all(|merge| !self.items[merge.into].part.affine.has_no_shift())
        };
        let back = || {
            let propagation =
                backward::returning(&self.overlay, &items, item, &Affine::shift(before)).ok()?;
            let propagation = self.saves(item, propagation, false).ok().filter(have_one)?;
            let is_free = matches!(self.cost(&propagation), (0, _, 0))
                && !propagation.folds.iter().any(|fold| self.adds(fold));
            is_free.then_some(propagation)
        };
        let found = back();
        self.shifts = left;
        let Some(propagation) = found else {
            return false;
        };
        self.leave_scale(item, propagation, refusal)
    }

    /// Carries a shift out, and leaves the scale for what may come.
    fn leave_scale(&mut self, item: usize, propagation: Propagation, scale: Refusal) -> bool {
        let into = self.carry(propagation);
        let there = &mut self.items[item];
        there.part.affine = Affine::scale(there.part.affine.scale.clone());
        there.is_rewritten = true;
        there.state = State::Partly { into, scale };
        true
    }

    /// Where a shift stays, as before zero padding of open extents, its scale may still propagate
    /// alone: `s·x + t = s·(x + t/s)`. Or backward: then the shift is unchanged.
    fn fold_scale(&mut self, item: usize) -> bool {
        let there = &self.items[item];
        let (part, affine) = (&there.part, &there.part.affine);
        let Some(Tried { forward, backward }) = there.tried.clone() else {
            return false;
        };
        // Parameters of a normalizer are no operators: of those only the shift may be one elsewhere.
        let is_parameter = part.nodes.is_empty();
        let adds_one = matches!(&forward.reason, Reason::NoGain(why) if why == OWN_ADD);
        let goes_apart = if is_parameter {
            adds_one
        } else {
            there.size() > 1
        };
        if !goes_apart || affine.has_no_shift() || affine.has_no_scale() {
            return false;
        }
        let (items, scale) = (self.items(false), Affine::scale(affine.scale.clone()));
        let is_free = |propagation: &Propagation| {
            propagation.makes.is_empty() && self.copies(item, propagation).is_none()
        };
        let free = |propagation: Result<Propagation, Refusal>| propagation.ok().filter(is_free);
        let ahead = || {
            let left = Affine::shift(&affine.shift / &affine.scale);
            // Less is added to more there.
            let has_room = self.data_type(part) != Some(DataType::Float16) || !affine.shrinks();
            let is_held = !is_parameter || self.holds(part, &left);
            let fits = has_room && is_held && left.is_finite() && self.is_writable(part, &left);
            let propagation =
                free(stream_basis::beside(&self.overlay, &items, item, &scale)).filter(|_| fits)?;
            Some((propagation, left, forward))
        };
        let back = || {
            let propagation = free(backward::backward(&self.overlay, &items, item, &scale))
                .or_else(|| self.returning(item, &scale, false))?;
            Some((propagation, Affine::shift(affine.shift.clone()), backward))
        };
        let found = ahead().or_else(|| if is_parameter { None } else { back() });
        let Some((propagation, left, shift)) = found else {
            return false;
        };
        let into = self.carry(propagation);
        let there = &mut self.items[item];
        there.part.affine = left;
        there.is_rewritten = true;
        there.state = State::Scaled { into, shift };
        true
    }

    /// Where neither propagates, the factor of the value may absorb the scale, and its summand the
    /// shift.
    fn fold_factor(&mut self, item: usize) -> bool {
        let there = &self.items[item];
        let Part { affine, output, .. } = &there.part;
        let shifted = || match affine.has_no_shift() {
            true => Some(Propagation {
                site: there.site,
                ..Propagation::default()
            }),
            false => self.modulation(item),
        };
        let (sides, scale) = ((&self.overlay, &self.items(false)), &affine.scale);
        let Some(mut propagation) = (!affine.has_no_scale()).then(shifted).flatten() else {
            return false;
        };
        if modulation::scale(sides, item, &mut propagation, *output, scale).is_none()
            || !propagation.makes.is_empty()
        {
            return false;
        }
        let Ok(propagation) = self.worthwhile(item, propagation) else {
            return false;
        };
        self.commit(item, Direction::Forward, propagation);
        true
    }

    /// The fold of the shift of a modulated item.
    fn modulation(&self, item: usize) -> Option<Propagation> {
        let there = &self.items[item];
        modulation::shift(
            &self.overlay,
            there.site,
            there.part.output,
            &there.part.affine.shift,
        )
    }

    fn items(&self, merge: bool) -> Items<'_> {
        Items {
            all: &self.items,
            by_output: &self.by_output,
            merge,
        }
    }

    /// A scale on its way back along a residual stream.
    fn returning(&self, item: usize, scale: &Affine, merge: bool) -> Option<Propagation> {
        let left = self
            .returns
            .get()
            .checked_sub(1)
            .filter(|_| scale.has_no_shift())?;
        let propagation = backward::returning(&self.overlay, &self.items(merge), item, scale);
        let propagation = propagation.and_then(|propagation| self.saves(item, propagation, false));
        let propagation = propagation
            .ok()
            .filter(|propagation| matches!(self.cost(propagation), (0, _, 0)));
        self.returns.set(if propagation.is_some() {
            left + 1
        } else {
            left
        });
        propagation
    }

    fn fold(&mut self, item: usize, merge: bool) -> bool {
        let items = self.items(merge);
        let affine = &self.items[item].part.affine;
        let forward = stream_basis::forward(&self.overlay, &items, item, affine)
            .and_then(|propagation| self.worthwhile(item, propagation));
        let backward = backward::backward(&self.overlay, &items, item, affine)
            .and_then(|propagation| self.worthwhile(item, propagation));
        let (direction, propagation) = match (forward, backward) {
            (Ok(forward), Ok(backward))
                if self.total_cost(&backward) < self.total_cost(&forward) =>
            {
                (Direction::Backward, backward)
            }
            (Ok(forward), _) => {
                // Where a convolution reads zeros around, a shift is another one at its edges.
                let dear = self
                    .adds_by_place(&forward)
                    .first()
                    .map(|fold| self.no_gain(fold, ADD_BY_PLACE));
                if dear.is_some() && self.fold_shift_back(item, dear.as_ref()) {
                    return true;
                }
                (Direction::Forward, forward)
            }
            (_, Ok(backward)) => (Direction::Backward, backward),
            (Err(forward), Err(backward)) => {
                let by_all = || {
                    let propagation = backward::by_all(&self.overlay, &items, item, affine)?;
                    let propagation = self.worthwhile(item, propagation).ok()?;
                    matches!(self.cost(&propagation), (0, _, 0))
                        .then_some((Direction::Backward, propagation))
                };
                let returning =
                    || Some((Direction::Backward, self.returning(item, affine, merge)?));
                let modulation = || {
                    let propagation = affine.has_no_scale().then(|| self.modulation(item))?;
                    Some((Direction::Forward, propagation?))
                };
                match by_all().or_else(returning).or_else(modulation) {
                    Some(found) => found,
                    None if merge => return false,
                    None => {
                        self.items[item].tried = Some(Tried { forward, backward });
                        return false;
                    }
                }
            }
        };
        self.commit(item, direction, propagation);
        true
    }

    fn commit(&mut self, item: usize, direction: Direction, propagation: Propagation) {
        let basis = Basis::of(propagation.wants.iter().map(|(_, _, affine)| affine));
        let mut into = self.carry(propagation);
        let there = &mut self.items[item];
        there.basis = basis;
        let (gone, site) = (there.part.clone(), there.site);
        there.is_rewritten = false;
        // The other half may have gone before.
        if let State::Partly { into: before, .. } | State::Scaled { into: before, .. } =
            &mut there.state
        {
            into.append(before);
            into.sort();
            into.dedup();
        }
        there.state = State::Folded { direction, into };
        self.remove(&gone.nodes, gone.output, gone.input);
        // Their operators are to hold 1 and 0, and nothing else.
        self.overlay
            .replaced
            .extend(gone.resets.iter().map(|reset| reset.node));
        self.resets
            .extend(gone.resets.into_iter().map(|reset| (reset, site)));
        self.by_output.remove(&gone.output);
        for node in &gone.nodes {
            self.overlay.owned.remove(node);
        }
    }

    /// Takes in all that a propagation found. Returns the names of what absorbs it.
    fn carry(&mut self, propagation: Propagation) -> Vec<String> {
        let graph = self.overlay.graph;
        let mut into: Vec<String> = propagation
            .folds
            .iter()
            .map(|fold| graph.name(fold.node).to_owned())
            .collect();
        for merge in propagation.merges {
            let there = &mut self.items[merge.into];
            there.part.affine = merge.with(&there.part.affine);
            there.is_rewritten = true;
            into.push(graph.value_name(there.part.output).to_owned());
        }
        into.sort();
        into.dedup();
        self.overlay.fold(propagation.folds);
        self.overlay.makes.extend(propagation.makes);
        for (node, slot) in propagation.bypass {
            if let (Some(output), Some(input)) = (graph.output(node, 0), graph.input(node, slot)) {
                self.remove(&[node], output, input);
            }
        }
        into
    }

    fn remove(&mut self, nodes: &[NodeId], output: ValueId, input: ValueId) {
        let source = self.overlay.source(input);
        self.overlay.remove(nodes, output, source);
        if !nodes.is_empty() {
            let name = |value| self.overlay.graph.value_name(value).to_owned();
            self.removals.push(Removal {
                nodes: nodes.to_vec(),
                output: name(output),
                source: name(source),
            });
        }
    }

    fn finish(mut self, sites: &[Site], refused: &Map<usize, Refusal>) -> Plan {
        let graph = self.overlay.graph;
        let mut plans: Vec<SitePlan> = sites
            .iter()
            .enumerate()
            .map(|(index, site)| SitePlan {
                name: site.name.clone(),
                kind: site.kind,
                channels: site.channels,
                axis: site.axis,
                nodes: site
                    .nodes
                    .iter()
                    .map(|&node| graph.name(node).to_owned())
                    .collect(),
                pre: None,
                core: site.core.clone().map(|forward| Outcome::Kept {
                    forward,
                    backward: None,
                }),
                post: whole(site, refused.get(&index)),
                basis: None,
            })
            .collect();
        let mut rewrites = vec![];
        for item in std::mem::take(&mut self.items) {
            if item.is_rewritten {
                let data_type = self.data_type(&item.part);
                rewrites.push(Rewrite {
                    part: item.part.clone(),
                    site: item.site,
                    data_type,
                });
            }
            let SitePlan {
                pre, post, basis, ..
            } = &mut plans[item.site];
            *basis = Basis::around(basis.take().into_iter().chain(item.basis));
            let (role, too_much) = (item.role, self.uncopied.get(&item.site));
            let outcome = item.outcome().map(|outcome| match too_much {
                // It would go, but for what copies add.
                Some(refusal) if !outcome.goes() => Outcome::Kept {
                    forward: refusal.clone(),
                    backward: None,
                },
                _ => outcome,
            });
            match role {
                Role::Before => *pre = outcome,
                Role::Behind => *post = outcome,
            }
        }
        Plan {
            sites: plans,
            folds: self.overlay.folds,
            bias_adds: self.overlay.bias_adds,
            removals: self.removals,
            resets: self.resets,
            rewrites,
            tensors: vec![],
            streams: vec![],
            merged: vec![],
            placed: vec![],
            replacements: self.replacements,
            growth: 0,
            memory: None,
            tidy: Tidy::default(),
            is_tidied: false,
            stopped: StopReason::default(),
        }
    }

    /// The element type of the value that a part acts on, whatever its constants are.
    fn data_type(&self, part: &Part) -> Option<DataType> {
        let facts = self.overlay.facts;
        facts
            .data_type(part.input)
            .or_else(|| facts.data_type(part.output))
    }
}

/// Whether numbers are still told apart once they are stored: those that only rounding makes the same are not one number.
fn is_told(numbers: &ndarray::ArrayD<f64>) -> bool {
    let largest = numbers
        .iter()
        .fold(0.0_f64, |largest, number| largest.max(number.abs()));
    let (low, high) = numbers.iter().fold(
        (f64::INFINITY, f64::NEG_INFINITY),
        |(low, high), &number| (low.min(number), high.max(number)),
    );
    numbers.len() == 1 || high - low > TOLD * largest || largest == 0.0
}

/// The outcome of a site without an affine of its own; `None` where its parts have outcomes.
fn whole(site: &Site, refused: Option<&Refusal>) -> Option<Outcome> {
    let has_parts = site.pre.is_some() || site.post.is_some();
    let is_merged = !has_parts && matches!(site.kind.family, Family::Linear | Family::Pointwise);
    let merges = site.replacement.as_ref().filter(|_| is_merged);
    let refusal = site
        .refusal
        .as_ref()
        .or(refused.filter(|_| merges.is_some()))
        .cloned();
    let merged = |merged: &Replacement| Outcome::Folded {
        direction: Direction::Merged,
        into: merged
            .made
            .first()
            .iter()
            .map(|node| node.name().to_owned())
            .collect(),
    };
    let kept = refusal.map(|forward| Outcome::Kept {
        forward,
        backward: None,
    });
    kept.or_else(|| merges.map(merged))
}
