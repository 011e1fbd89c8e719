//! Decides which affine folds, and in which direction. The model is not changed.

mod cost;
mod partial;
mod result;

use std::cell::Cell;
use std::collections::HashMap as Map;

use crate::affine::item::{Item, Items, Role, State, Tried};
use crate::affine::plan::{Basis, Direction, Plan, Removal};
use crate::affine::planner::cost::ADD_BY_PLACE;
use crate::affine::propagate::overlay::GraphOverlay;
use crate::affine::propagate::propagation::Propagation;
use crate::affine::propagate::{backward, stream_basis};
use crate::affine::recognize::{Part, Replacement, Reset, Site};
use crate::analysis::Analysis;
use crate::analysis::zero_sign::ZeroSigns;
use crate::hash::HashMap;
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::tensor::DataType;
use crate::refusal::{Reason, Refusal};

/// The bound on the sweeps over the open items. Another sweep runs only if the last one folded an
/// item, so the bound is rarely reached.
const SWEEPS: usize = 64;

/// The bound on failed attempts to fold a scale backward along a residual stream. Each attempt
/// searches far.
const RETURNS: usize = 64;

/// The bound on attempts to fold a shift backward along a stream. Each attempt searches all readers
/// of the stream.
const SHIFTS: usize = 64;

/// Plans the folds of a model's sites.
///
/// Sites in `refused` do not change. Sites in `uncopied` fold only if no weight is copied, and no
/// bias for each place is added. Both maps hold the reason for each site. With `is_centring`, the
/// shift of a LayerNormalization may fold even if that costs an Add: a LayerNormalization without a
/// shift need not subtract the mean once its stream is centred.
pub(crate) fn plan<'a>(
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

/// Refuses a site that only adds zeros if an operator after the site observes the sign of a zero.
fn observed_zero(graph: &Graph, signs: &ZeroSigns, site: &Site) -> Option<Refusal> {
    let mut parts = site.pre.iter().chain(&site.post);
    let part = parts.find(|part| {
        let is_product = |&node: &NodeId| matches!(graph.op(node), Some("Mul" | "Div"));
        let adds = !part.nodes.iter().all(is_product);
        adds && part.affine.is_identity() && signs.are_observed(part.output)
    })?;
    let name = graph.value_name(part.output);
    Some(Refusal::new(Reason::ZeroSign, name))
}

struct Planner<'a> {
    overlay: GraphOverlay<'a>,
    items: Vec<Item>,
    /// The index of each item that has not folded completely, by the value that the item outputs.
    by_output: HashMap<ValueId, usize>,
    removals: Vec<Removal>,
    resets: Vec<(Reset, usize)>,
    replacements: Vec<(Replacement, usize)>,
    /// The sites for which no weight may be copied, each with the reason.
    uncopied: &'a Map<usize, Refusal>,
    /// How many more attempts to fold a scale backward along a stream may fail.
    returns: Cell<usize>,
    /// How many more attempts to fold a shift backward along a stream are allowed.
    shifts: usize,
    /// Whether streams will be centred after folding.
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
        let signs = ZeroSigns::new(analysis);
        for (index, site) in sites.iter().enumerate() {
            let refusal = site.refusal.clone();
            let refusal = refusal
                .or_else(|| refused.get(&index).cloned())
                .or_else(|| observed_zero(&analysis.graph, &signs, site));
            planner.add_site(index, site, refusal);
        }
        planner
    }

    /// Adds an item for each part of a site. Unless the site is refused, also adds its replacement.
    fn add_site(&mut self, index: usize, site: &Site, refusal: Option<Refusal>) {
        let (graph, facts) = (self.overlay.graph, self.overlay.facts);
        let replacement = site.replacement.as_ref().filter(|_| refusal.is_none());
        if let Some(replacement) = replacement {
            self.overlay.replaced.extend(&replacement.nodes);
            self.replacements.push((replacement.clone(), index));
        }
        let before = site.pre.iter().map(|part| (part, Role::Before));
        let behind = site.post.iter().map(|part| (part, Role::Behind));
        for (part, role) in before.chain(behind) {
            // If the replacement of the site computes the input of the part, the part's affine may
            // differ from the affine that its nodes compute. So new nodes must replace these nodes.
            let input = graph.value_name(part.input);
            let is_rewritten = replacement.is_some_and(|replacement| replacement.makes(input));
            self.add(Item {
                part: part.clone(),
                site: index,
                role,
                is_batch_norm: part.batch_norm(graph, facts).is_some(),
                is_bounded: role == Role::Behind && site.kind.is_bounded,
                state: refusal.clone().map_or(State::Open, State::Refused),
                is_rewritten,
                tried: None,
                basis: None,
            });
        }
    }

    fn add(&mut self, item: Item) {
        let place = self.items.len();
        self.overlay
            .owned
            .extend(item.part.nodes.iter().map(|&node| (node, place)));
        self.by_output.insert(item.part.output, place);
        self.items.push(item);
    }

    /// Folds items until no further item folds. One fold may remove the obstacle of another item.
    ///
    /// If possible, an affine folds into linear operators. Otherwise it may merge into another
    /// affine that stays, since two affines in a row are one. Affines with operators of their own
    /// merge before affines that are the γ and β of a normalizer, because folding γ and β saves no
    /// operator. If neither is possible, only the shift or only the scale may fold, or the affine
    /// may fold into another factor of a product.
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
                && !(self.sweep_partly(Self::fold_shift) | self.sweep_scales())
                && !self.sweep_partly(Self::fold_factor)
            {
                return;
            }
        }
    }

    /// Whether an affine has operators of its own, rather than parameters of an operator that
    /// stays.
    fn has_operators(&self, item: usize) -> bool {
        !self.items[item].part.nodes.is_empty()
    }

    /// Calls `fold` for each open item. Returns whether any item folded.
    fn sweep(&mut self, fold: fn(&mut Self, usize) -> bool) -> bool {
        self.sweep_those(fold, |_, _| true)
    }

    /// Like [`Planner::sweep`], but skips an item whose new tensors were too large, since such an
    /// item folds whole or not at all.
    fn sweep_partly(&mut self, fold: fn(&mut Self, usize) -> bool) -> bool {
        self.sweep_those(fold, |planner, item| {
            !planner.uncopied.contains_key(&planner.items[item].site)
        })
    }

    /// Folds only the scales of items. Unlike [`Planner::sweep_partly`], also folds the scale of an
    /// item whose whole affine copies no weight, but adds a bias for each place that is too large.
    fn sweep_scales(&mut self) -> bool {
        self.sweep_those(Self::fold_scale, |planner, item| {
            let is_uncopied = planner.uncopied.contains_key(&planner.items[item].site);
            !is_uncopied || planner.copies_no_weight(item)
        })
    }

    /// Whether the whole affine of an item propagates forward without copies of weights.
    fn copies_no_weight(&self, item: usize) -> bool {
        let affine = &self.items[item].part.affine;
        let forward = stream_basis::forward(&self.overlay, &self.items(false), item, affine);
        forward.is_ok_and(|propagation| self.cost(&propagation).2 == 0)
    }

    /// Like [`Planner::sweep`], but only for open items for which `may_fold` is true.
    fn sweep_those(
        &mut self,
        fold: fn(&mut Self, usize) -> bool,
        may_fold: fn(&Self, usize) -> bool,
    ) -> bool {
        let mut open: Vec<usize> = (0..self.items.len()).collect();
        open.retain(|&item| self.items[item].is_open() && may_fold(self, item));
        let mut any = false;
        for item in open {
            any |= fold(self, item);
        }
        any
    }

    fn fold_apart(&mut self, item: usize) -> bool {
        self.fold(item, false)
    }

    fn fold_together(&mut self, item: usize) -> bool {
        self.fold(item, true)
    }

    fn items(&self, merge: bool) -> Items<'_> {
        Items {
            all: &self.items,
            by_output: &self.by_output,
            merge,
        }
    }

    /// Folds the affine of an item in the cheaper direction. With `merge`, other affines that stay
    /// may absorb the affine. Returns whether the affine folded.
    fn fold(&mut self, item: usize, merge: bool) -> bool {
        let items = self.items(merge);
        let affine = &self.items[item].part.affine;
        let forward = stream_basis::forward(&self.overlay, &items, item, affine)
            .and_then(|propagation| self.worthwhile(item, propagation));
        let backward = backward::backward(&self.overlay, &items, item, affine)
            .and_then(|propagation| self.worthwhile(item, propagation));
        match (forward, backward) {
            (Ok(forward), Ok(backward))
                if self.total_cost(&backward) < self.total_cost(&forward) =>
            {
                self.commit(item, Direction::Backward, backward);
            }
            (Ok(forward), _) => {
                // Forward, the shift may differ from place to place, as at the edges of a
                // convolution that pads with zeros. Then the shift folds backward if possible.
                let by_place = self.adds_by_place(&forward);
                let dear = by_place
                    .first()
                    .map(|fold| self.no_gain(fold, ADD_BY_PLACE));
                if dear.is_some() && self.fold_shift_back(item, dear.as_ref()) {
                    return true;
                }
                self.commit(item, Direction::Forward, forward);
            }
            (_, Ok(backward)) => self.commit(item, Direction::Backward, backward),
            (Err(forward), Err(backward)) => match self.last_resort(item, merge) {
                Some((direction, propagation)) => self.commit(item, direction, propagation),
                None => {
                    if !merge {
                        self.items[item].tried = Some(Tried { forward, backward });
                    }
                    return false;
                }
            },
        }
        true
    }

    /// Finds a propagation of an affine that neither direction accepts by default. Tries to
    /// propagate it backward past values whose readers all need it, backward along a residual
    /// stream, and forward into the layer of a modulation.
    fn last_resort(&self, item: usize, merge: bool) -> Option<(Direction, Propagation)> {
        let affine = &self.items[item].part.affine;
        if let Some(by_all) = self.back_by_all(item, merge) {
            return Some((Direction::Backward, by_all));
        }
        if let Some(returning) = self.returning(item, affine, merge) {
            return Some((Direction::Backward, returning));
        }
        if affine.has_no_scale() {
            return Some((Direction::Forward, self.modulation(item)?));
        }
        None
    }

    fn back_by_all(&self, item: usize, merge: bool) -> Option<Propagation> {
        let affine = &self.items[item].part.affine;
        let found = backward::by_all(&self.overlay, &self.items(merge), item, affine)?;
        let found = self.worthwhile(item, found).ok()?;
        self.is_free(&found).then_some(found)
    }

    fn commit(&mut self, item: usize, direction: Direction, propagation: Propagation) {
        let basis = Basis::from_writers(propagation.wants.iter().map(|(_, _, affine)| affine));
        let mut into = self.carry(propagation);
        let there = &mut self.items[item];
        there.basis = basis;
        let (gone, site) = (there.part.clone(), there.site);
        there.is_rewritten = false;
        // The other half of the affine may have folded before.
        if let State::Partly { into: before, .. } | State::Scaled { into: before, .. } =
            &mut there.state
        {
            into.append(before);
            into.sort();
            into.dedup();
        }
        there.state = State::Folded { direction, into };
        self.remove(&gone.nodes, gone.output, gone.input);
        // The parameters γ and β of these operators become exactly 1 and 0, but rules still read
        // the old parameters. So no later affine may pass or change these operators.
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

    /// Adds the changes of a propagation to the plan. Returns the names of the nodes and values
    /// that absorb the affine.
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
            let graph = self.overlay.graph;
            self.removals.push(Removal {
                nodes: nodes.to_vec(),
                output: graph.value_name(output).to_owned(),
                source: graph.value_name(source).to_owned(),
            });
        }
    }

    /// The element type of the value to which a part applies its affine. The constants of the part
    /// may have another type.
    fn data_type(&self, part: &Part) -> Option<DataType> {
        let facts = self.overlay.facts;
        facts
            .data_type(part.input)
            .or_else(|| facts.data_type(part.output))
    }
}
