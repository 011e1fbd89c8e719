//! Decides which regions are cut, and into how many parts.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use super::hidden_keys::{VisibleByScores, find_hidden_keys};
use super::masks::visible_keys;
use super::region::{SliceRegion, grow};
use super::schedule::{PlannedCut, with_cuts};
use super::sizes::ExpectedSizes;
use crate::analysis::Analysis;
use crate::analysis::memory_plan::{MemoryPlan, Peak};
use crate::ir::{NodeId, ValueId};
use crate::shape::facts::extent;

/// The largest number of parts of a region.
const MOST_PARTS: usize = 64;

/// A cut is kept only if it lowers the peak below this fraction of the old peak.
const WORTH: f64 = 0.98;

/// With `--slice`, a cut is kept only if it lowers the bytes that are held around its value below
/// this fraction of the old bytes.
const WORTH_BY_HAND: f64 = 0.9;

/// With `--slice`, a value is large if it has at least the bytes of the largest value divided by
/// this number.
const LARGE: u64 = 32;

/// The smallest number of parts is preferred that needs at most this many times the bytes that the
/// largest number of parts needs.
const NEAR_LOWEST: f64 = 1.02;

/// The largest number of values around which cuts are tried at one peak. These values are in memory
/// at the peak.
const TRIED: usize = 4;

/// The limits of regions, as fractions of the bytes of the value from which the region grows. A
/// value with fewer bytes than the limit is on the border of the region.
const LIMITS: &[f64] = &[0.75, 0.5, 0.24, 0.12, 0.05];

/// By default, an attention is cut if a mask hides some of its scores, and if it has at least this
/// many bytes of scores. Fewer scores stay in the cache of a core.
const MANY_SCORES: u64 = 4 << 20;

/// The number of parts into which an attention with hidden scores is cut by default. Of a causal
/// attention, 7/16 of the scores are then left out. More parts would leave out only a few more
/// scores, and would have smaller products.
const MASKED_PARTS: usize = 8;

/// The state of a search for cuts.
pub(super) struct CutSearch<'s> {
    /// The graph, with extents that hold for all sizes.
    pub(super) analysis: &'s Analysis<'s>,
    pub(super) sizes: &'s ExpectedSizes<'s>,
    regions: RefCell<HashMap<ValueId, Vec<SliceRegion>>>,
    visible: RefCell<VisibleByScores>,
}

/// A candidate cut.
struct CutChoice {
    cuts: Vec<PlannedCut>,
    /// The bytes that are held while the cut runs, in the worst step.
    bytes: u64,
    /// The number of nodes that the cut adds.
    added: usize,
}

impl CutChoice {
    /// The rank among choices, the best first. Cuts under the goal come first, ordered by the
    /// number of added nodes. Cuts above the goal are ordered by their bytes.
    fn rank(&self, goal: u64) -> (u8, u64, u64) {
        match self.bytes <= goal {
            true => (0, self.added as u64, self.bytes),
            false => (1, self.bytes, self.added as u64),
        }
    }
}

impl<'s> CutSearch<'s> {
    pub(super) fn new(analysis: &'s Analysis<'s>, sizes: &'s ExpectedSizes<'s>) -> Self {
        CutSearch {
            analysis,
            sizes,
            regions: RefCell::default(),
            visible: RefCell::default(),
        }
    }

    /// Cuts at one peak after another, until all peaks are under the goal, or no cut lowers the
    /// highest peak.
    pub(super) fn reach(&self, goal: u64, mut cuts: Vec<PlannedCut>) -> Vec<PlannedCut> {
        // Each round cuts one more region, or cuts a region into more parts.
        for _ in 0..self.sizes.plan.steps.len() {
            let Some(plan) = with_cuts(self.analysis, &self.sizes.plan, &cuts) else {
                break;
            };
            let peak = plan.peak();
            if peak.bytes <= goal {
                break;
            }
            match self.improved(&cuts, &plan, &peak, goal) {
                Some(better) => cuts = better,
                None => break,
            }
        }
        cuts
    }

    /// Cuts each region around a large value into `parts` parts, or into fewer if the region has
    /// fewer places.
    pub(super) fn all(&self, parts: usize) -> Vec<PlannedCut> {
        let mut values: Vec<(u64, ValueId)> = self
            .sizes
            .plan
            .buffers
            .iter()
            .map(|buffer| (buffer.bytes, buffer.value))
            .collect();
        values.sort_by_key(|&(bytes, value)| (std::cmp::Reverse(bytes), value));
        let least = values.first().map_or(0, |(bytes, _)| bytes / LARGE).max(1);
        let mut cuts: Vec<PlannedCut> = vec![];
        for (_, value) in values.into_iter().take_while(|(bytes, _)| *bytes >= least) {
            let most = WORTH_BY_HAND * self.bytes_around(value) as f64;
            let best = self.best_cut_around(&cuts, value, parts);
            if let Some(choice) = best.filter(|choice| (choice.bytes as f64) < most) {
                cuts = choice.cuts;
            }
        }
        cuts
    }

    /// Cuts each attention with many scores, some of which a mask hides.
    pub(super) fn masked(&self) -> Vec<PlannedCut> {
        let mut cuts: Vec<PlannedCut> = vec![];
        for &node in self.analysis.graph.order() {
            let Some(scores) = softmax_input(self.analysis, node) else {
                continue;
            };
            if self.sizes.bytes(scores) >= MANY_SCORES {
                let best = self.best_masked_cut(&cuts, scores);
                cuts = best.map_or(cuts, |choice| choice.cuts);
            }
        }
        cuts
    }

    /// Adds a cut around scores whose mask hides keys. Of the regions around the scores, takes the
    /// one that holds the fewest bytes. `None` if no region can be cut.
    fn best_masked_cut(&self, cuts: &[PlannedCut], scores: ValueId) -> Option<CutChoice> {
        let taken = taken(cuts);
        let regions = self.regions(scores).into_iter();
        let masked = regions.filter(|region| region.keys.is_some() && is_free(region, &taken));
        let choices = masked.filter_map(|region| {
            let parts = MASKED_PARTS.min(region.extent);
            self.choice(cuts.to_vec(), cuts.len(), PlannedCut { parts, region })
        });
        choices.min_by_key(|choice| (choice.bytes, choice.added))
    }

    /// Adds a cut around a value. Of the regions around the value, takes the one that holds the
    /// fewest bytes. `None` if no region can be cut.
    fn best_cut_around(
        &self,
        cuts: &[PlannedCut],
        value: ValueId,
        parts: usize,
    ) -> Option<CutChoice> {
        let taken = taken(cuts);
        self.regions(value)
            .into_iter()
            .filter(|region| is_free(region, &taken))
            .filter_map(|region| {
                let parts = parts.min(region.extent);
                self.choice(cuts.to_vec(), cuts.len(), PlannedCut { parts, region })
            })
            .min_by_key(|choice| (choice.bytes, choice.added))
    }

    /// The reason why a value is whole at a peak.
    pub(super) fn why_whole(&self, value: ValueId) -> &'static str {
        let Analysis { graph, facts, .. } = self.analysis;
        let is_fixed = |dim: &_| extent(dim).is_some();
        if graph.is_input(value) {
            "it is an input"
        } else if graph.is_output(value) {
            "it is an output"
        } else if !self.regions(value).is_empty() {
            "no cut around it lowers the peak"
        } else if !facts
            .shape(value)
            .is_some_and(|shape| shape.iter().all(is_fixed))
        {
            "no region around it can be cut, and an extent is open"
        } else {
            "no region around it can be cut"
        }
    }

    /// The largest number of bytes that are held while a value is written or read.
    fn bytes_around(&self, value: ValueId) -> u64 {
        let live = self.sizes.plan.live();
        let steps = self.sizes.plan.steps.iter().zip(live);
        steps
            .filter(|(step, _)| {
                let mut buffers = step.reads.iter().chain(&step.writes);
                buffers.any(|&buffer| buffer == value.index())
            })
            .map(|(_, bytes)| bytes)
            .max()
            .unwrap_or(0)
    }

    /// Lowers the peak by one more cut, or by more parts of one cut. Of the choices under the goal,
    /// takes the one that adds the fewest nodes. If no choice is under the goal, takes the one with
    /// the fewest bytes. `None` if no choice lowers the peak enough.
    fn improved(
        &self,
        cuts: &[PlannedCut],
        plan: &MemoryPlan,
        peak: &Peak,
        goal: u64,
    ) -> Option<Vec<PlannedCut>> {
        let worth = (peak.bytes as f64 * WORTH) as u64;
        let mut choices = vec![];
        if let Some(cut) = plan.steps.get(peak.step).and_then(|step| step.cut) {
            choices.extend(self.fewest(cuts, cut, cuts[cut].parts + 1, (goal, worth)));
        }
        let taken = taken(cuts);
        let held = peak
            .held
            .iter()
            .filter(|&&buffer| buffer < self.analysis.graph.value_count());
        for &buffer in held.take(TRIED) {
            for region in self.regions(plan.buffers[buffer].value) {
                if is_free(&region, &taken) {
                    let mut further = cuts.to_vec();
                    further.push(PlannedCut {
                        parts: 2.min(region.extent),
                        region,
                    });
                    choices.extend(self.fewest(&further, cuts.len(), 2, (goal, worth)));
                }
            }
        }
        let best = choices.into_iter().min_by_key(|choice| choice.rank(goal));
        best.map(|choice| choice.cuts)
    }

    /// Gives the cut at index `number` the fewest parts that bring it under the goal, or near the
    /// bytes that the most parts need. The number of parts is at least `from`. `None` if no number
    /// of parts lowers the peak enough.
    fn fewest(
        &self,
        cuts: &[PlannedCut],
        number: usize,
        from: usize,
        (goal, worth): (u64, u64),
    ) -> Option<CutChoice> {
        let cut = &cuts[number];
        let numbers: Vec<usize> = parts(cut.region.extent)
            .into_iter()
            .filter(|&parts| parts >= from)
            .collect();
        let most = self.with_parts(cuts, number, *numbers.last()?)?;
        if most.bytes >= worth {
            return None;
        }
        let near_lowest = match goal {
            0 => most.bytes,
            _ => (most.bytes as f64 * NEAR_LOWEST) as u64,
        };
        let enough = goal.max(most.bytes).max(near_lowest);
        let first = numbers.partition_point(|&parts| {
            let choice = self.with_parts(cuts, number, parts);
            choice.is_none_or(|choice| choice.bytes > enough)
        });
        self.with_parts(cuts, number, *numbers.get(first)?)
    }

    /// The cuts with `parts` parts for the cut at index `number`. `None` if regions would have to
    /// wait for each other.
    fn with_parts(&self, cuts: &[PlannedCut], number: usize, parts: usize) -> Option<CutChoice> {
        let mut cuts = cuts.to_vec();
        let cut = cuts.remove(number);
        self.choice(cuts, number, PlannedCut { parts, ..cut })
    }

    /// The cuts with one more cut at index `number`. `None` if regions would have to wait for each
    /// other.
    fn choice(
        &self,
        mut cuts: Vec<PlannedCut>,
        number: usize,
        cut: PlannedCut,
    ) -> Option<CutChoice> {
        let added = cut.added();
        cuts.insert(number, cut);
        let bytes = with_cuts(self.analysis, &self.sizes.plan, &cuts)?.peak_of_cut(number);
        Some(CutChoice { cuts, bytes, added })
    }

    /// The regions around a value, each once.
    fn regions(&self, value: ValueId) -> Vec<SliceRegion> {
        if let Some(regions) = self.regions.borrow().get(&value) {
            return regions.clone();
        }
        let own_bytes = self.sizes.bytes(value) as f64;
        let mut regions: Vec<SliceRegion> = vec![];
        for axis in 0..self.analysis.facts.rank(value).unwrap_or(0) {
            for limit in LIMITS {
                let limit = (own_bytes * limit) as u64;
                for mut region in grow(self.analysis, (value, axis), limit, self.sizes) {
                    self.find_keys(&mut region);
                    if !regions.contains(&region) {
                        regions.push(region);
                    }
                }
            }
        }
        self.regions.borrow_mut().insert(value, regions.clone());
        regions
    }

    /// Finds the axis of keys of a region, if a mask hides some of them.
    fn find_keys(&self, region: &mut SliceRegion) {
        match find_hidden_keys(self.analysis, region, &mut self.visible.borrow_mut()) {
            Ok(keys) => region.keys = keys,
            Err(reason) => region.key_reason = Some(reason),
        }
    }
}

/// Whether a mask hides scores of a softmax that reads at least [`MANY_SCORES`] bytes of scores.
/// Unknown extents count as 1.
pub(super) fn has_masked_scores(analysis: &Analysis) -> bool {
    let mut nodes = analysis.graph.order().iter();
    nodes.any(|&node| hides_scores(analysis, node).is_some())
}

fn hides_scores(analysis: &Analysis, node: NodeId) -> Option<()> {
    let scores = softmax_input(analysis, node)?;
    let shape = analysis.facts.shape(scores)?;
    let extents = shape.iter().map(|dim| extent(dim).unwrap_or(1));
    let bytes = analysis
        .facts
        .data_type(scores)?
        .byte_size(extents.product())?;
    let axes = [shape.len().checked_sub(2)?, shape.len() - 1];
    let is_masked =
        bytes as u64 >= MANY_SCORES && matches!(visible_keys(analysis, scores, axes), Ok(Some(_)));
    is_masked.then_some(())
}

/// The input of a softmax. `None` for another node.
fn softmax_input(analysis: &Analysis, node: NodeId) -> Option<ValueId> {
    let input = analysis.graph.input(node, 0);
    input.filter(|_| analysis.graph.is(node, "Softmax"))
}

/// The numbers of parts that are tried for a region with `extent` places.
fn parts(extent: usize) -> Vec<usize> {
    let steps = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, MOST_PARTS];
    let mut numbers: Vec<usize> = steps.into_iter().filter(|&parts| parts < extent).collect();
    numbers.extend((extent <= MOST_PARTS).then_some(extent));
    numbers
}

/// The nodes of the regions of all cuts.
fn taken(cuts: &[PlannedCut]) -> HashSet<NodeId> {
    cuts.iter().flat_map(|cut| cut.region.nodes()).collect()
}

/// Whether no node of a region is in `taken`.
fn is_free(region: &SliceRegion, taken: &HashSet<NodeId>) -> bool {
    !region.nodes().any(|node| taken.contains(&node))
}
