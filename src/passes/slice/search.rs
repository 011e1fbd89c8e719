//! Which regions are cut, and into how many parts.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use super::region::{SliceRegion, grow};
use super::schedule::{PlannedCut, with_cuts};
use crate::analysis::Analysis;
use crate::analysis::memory_plan::{MemoryPlan, Peak};
use crate::ir::{NodeId, ValueId};

/// How many parts a region is cut into at most.
const MOST_PARTS: usize = 64;

/// A cut has to leave less than this part of the bytes that are held at the peak.
const WORTH: f64 = 0.98;

/// By hand a region is cut if that leaves less than this part of the bytes that are held around its value.
const WORTH_BY_HAND: f64 = 0.9;

/// By hand a value is large if it has at least this part of the bytes of the largest one.
const LARGE: u64 = 32;

/// How many of the values that are held at a peak are looked at.
const LOOKED_AT: usize = 4;

/// Values of at most this part of the bytes of the value that a region is grown from are on its border.
const LIMITS: &[f64] = &[0.75, 0.5, 0.24, 0.12, 0.05];

/// The state of a search for cuts.
pub struct CutSearch<'s> {
    analysis: &'s Analysis<'s>,
    plan: &'s MemoryPlan,
    regions: RefCell<HashMap<ValueId, Vec<SliceRegion>>>,
}

/// A candidate cut.
struct CutChoice {
    cuts: Vec<PlannedCut>,
    /// The bytes that are held while the cut runs, in the worst step.
    bytes: u64,
    added: usize,
}

impl<'s> CutSearch<'s> {
    pub fn new(analysis: &'s Analysis<'s>, plan: &'s MemoryPlan) -> Self {
        CutSearch {
            analysis,
            plan,
            regions: RefCell::default(),
        }
    }

    /// Cuts at one peak after the other until all are under the goal, or nothing brings the highest one down.
    pub fn reach(&self, goal: u64, mut cuts: Vec<PlannedCut>) -> Vec<PlannedCut> {
        // Each time one region is cut, or cut into more parts.
        for _ in 0..self.plan.steps.len() {
            let Some(plan) = with_cuts(self.analysis, self.plan, &cuts) else {
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

    /// Cuts each region around a large value into so many parts, or as many as there are places.
    pub fn all(&self, parts: usize) -> Vec<PlannedCut> {
        let mut values: Vec<(u64, ValueId)> = self
            .plan
            .buffers
            .iter()
            .map(|buffer| (buffer.bytes, buffer.value))
            .collect();
        values.sort_by_key(|&(bytes, value)| (std::cmp::Reverse(bytes), value));
        let least = values.first().map_or(0, |(bytes, _)| bytes / LARGE).max(1);
        let mut cuts: Vec<PlannedCut> = vec![];
        for (_, value) in values.into_iter().take_while(|(bytes, _)| *bytes >= least) {
            let taken = taken(&cuts);
            let ways = self
                .regions(value)
                .into_iter()
                .filter(|region| is_free(region, &taken));
            let whole = self.around(value);
            let way = ways.filter_map(|region| {
                self.way(
                    &cuts,
                    PlannedCut {
                        parts: parts.min(region.extent),
                        region,
                    },
                )
            });
            let best = way.min_by_key(|way| (way.bytes, way.added));
            if let Some(way) = best.filter(|way| (way.bytes as f64) < WORTH_BY_HAND * whole as f64)
            {
                cuts = way.cuts;
            }
        }
        cuts
    }

    /// The most bytes that are held while a value is made or read.
    fn around(&self, value: ValueId) -> u64 {
        let live = self.plan.live();
        let steps = self.plan.steps.iter().zip(live);
        let has = |list: &[usize]| list.contains(&value.index());
        steps
            .filter(|(step, _)| has(&step.reads) || has(&step.writes))
            .map(|(_, bytes)| bytes)
            .max()
            .unwrap_or(0)
    }

    /// The cuts with one more, or with more parts of one, that bring the peak down: under the goal by the fewest nodes, or as
    /// far as can be.
    fn improved(
        &self,
        cuts: &[PlannedCut],
        plan: &MemoryPlan,
        peak: &Peak,
        goal: u64,
    ) -> Option<Vec<PlannedCut>> {
        let worth = (peak.bytes as f64 * WORTH) as u64;
        let mut ways = vec![];
        if let Some(cut) = plan.steps.get(peak.step).and_then(|step| step.cut) {
            ways.extend(self.fewest(cuts, cut, cuts[cut].parts + 1, (goal, worth)));
        }
        let taken = taken(cuts);
        let held = peak
            .held
            .iter()
            .filter(|&&buffer| buffer < self.analysis.graph.value_count());
        for &buffer in held.take(LOOKED_AT) {
            for region in self.regions(plan.buffers[buffer].value) {
                if is_free(&region, &taken) {
                    let mut further = cuts.to_vec();
                    further.push(PlannedCut {
                        parts: 2.min(region.extent),
                        region,
                    });
                    ways.extend(self.fewest(&further, cuts.len(), 2, (goal, worth)));
                }
            }
        }
        let rank = |way: &CutChoice| match way.bytes <= goal {
            true => (0, way.added as u64, way.bytes),
            false => (1, way.bytes, way.added as u64),
        };
        ways.into_iter().min_by_key(rank).map(|way| way.cuts)
    }

    /// The fewest parts of one of the cuts, from so many on, that bring it under the goal, or next to as low as any do;
    /// nothing where no number of them is worth it.
    fn fewest(
        &self,
        cuts: &[PlannedCut],
        number: usize,
        from: usize,
        (goal, worth): (u64, u64),
    ) -> Option<CutChoice> {
        let cut = &cuts[number];
        let with = |parts: usize| {
            let mut cuts = cuts.to_vec();
            let last = cuts.remove(number);
            self.way_at(cuts, number, PlannedCut { parts, ..last })
        };
        let numbers: Vec<usize> = parts(cut.region.extent)
            .into_iter()
            .filter(|&parts| parts >= from)
            .collect();
        let most = with(*numbers.last()?)?;
        if most.bytes >= worth {
            return None;
        }
        let enough = goal.max(most.bytes).max(if goal == 0 {
            0
        } else {
            (most.bytes as f64 * 1.02) as u64
        });
        let first =
            numbers.partition_point(|&parts| with(parts).is_none_or(|way| way.bytes > enough));
        with(*numbers.get(first)?)
    }

    fn way(&self, cuts: &[PlannedCut], cut: PlannedCut) -> Option<CutChoice> {
        self.way_at(cuts.to_vec(), cuts.len(), cut)
    }

    fn way_at(
        &self,
        mut cuts: Vec<PlannedCut>,
        number: usize,
        cut: PlannedCut,
    ) -> Option<CutChoice> {
        let added = cut.added();
        cuts.insert(number, cut);
        let bytes = with_cuts(self.analysis, self.plan, &cuts)?.peak_of_cut(number);
        Some(CutChoice { cuts, bytes, added })
    }

    /// The regions around a value, each once.
    fn regions(&self, value: ValueId) -> Vec<SliceRegion> {
        if let Some(analysis) = self.regions.borrow().get(&value) {
            return analysis.clone();
        }
        let bytes = |value: ValueId| self.plan.buffers[value.index()].bytes;
        let mut regions: Vec<SliceRegion> = vec![];
        for axis in 0..self.analysis.facts.rank(value).unwrap_or(0) {
            for limit in LIMITS {
                let limit = (bytes(value) as f64 * limit) as u64;
                for region in grow(self.analysis, (value, axis), limit, &bytes) {
                    if !regions.contains(&region) {
                        regions.push(region);
                    }
                }
            }
        }
        self.regions.borrow_mut().insert(value, regions.clone());
        regions
    }
}

/// Numbers of parts that are tried.
fn parts(extent: usize) -> Vec<usize> {
    let steps = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, MOST_PARTS];
    let mut numbers: Vec<usize> = steps.into_iter().filter(|&parts| parts < extent).collect();
    numbers.extend((extent <= MOST_PARTS).then_some(extent));
    numbers
}

/// The nodes that are in a cut.
fn taken(cuts: &[PlannedCut]) -> HashSet<NodeId> {
    cuts.iter().flat_map(|cut| cut.region.nodes()).collect()
}

/// Whether no node of a region is in a cut.
fn is_free(region: &SliceRegion, taken: &HashSet<NodeId>) -> bool {
    !region.nodes().any(|node| taken.contains(&node))
}
