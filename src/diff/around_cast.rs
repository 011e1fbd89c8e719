//! The parts of two models around a cast that only one of them has.
//!
//! Such models have no first difference, because the proof takes a cast for the identity.

use std::collections::HashSet;

use super::behind::DifferingModels;
use super::part::reads;
use super::reduce::{DifferingParts, given};
use crate::ir::ValueId;
use crate::judge::{Judgement, NarrowingCast, judge};

impl DifferingModels<'_, '_> {
    /// The parts around the first cast that only one model has and that the parts show: from the
    /// operand of the cast to the first value behind it that the other model has, too.
    pub(super) fn parts_around_a_cast(&self, casts: &[NarrowingCast]) -> Option<DifferingParts> {
        casts.iter().find_map(|cast| {
            let (pair, begins) = self.ends_of_cast(cast)?;
            let parts = self.cut(pair, &begins)?;
            let [first, second] = &parts.models;
            let dims = &self.options.dims;
            let inputs = given(first, self.values_of(&parts.inputs, None, dims), dims)?;
            let judgement = judge(first, second, self.options);
            let has_casts = matches!(judgement, Judgement::Casts { .. });
            has_casts.then(|| parts.judged(judgement, inputs))
        })
    }

    /// The values that the parts around a cast compute, and the values at which the parts begin.
    fn ends_of_cast(&self, cast: &NarrowingCast) -> Option<([ValueId; 2], [Vec<ValueId>; 2])> {
        let own = usize::from(!cast.is_of_first);
        let end = self.end_of_cast(own, &cast.name)?;
        let shared = self.everywhere(own, end)?;
        let mut pair = shared;
        pair[own] = end;
        let begins = self.begins(own, end);
        // The other model may have nothing between the beginning and the end.
        let mut begin = begins.iter();
        let other = match begin.any(|&begin| self.everywhere(own, begin) == Some(shared)) {
            true => vec![pair[1 - own]],
            false => self.begins(1 - own, pair[1 - own]),
        };
        Some(match own {
            0 => (pair, [begins, other]),
            _ => (pair, [other, begins]),
        })
    }

    /// The first value that depends on the result `name` of a cast and that the other model has,
    /// too.
    fn end_of_cast(&self, side: usize, name: &str) -> Option<ValueId> {
        let graph = &self.alignment.sides[side].graph;
        let mut behind = HashSet::from([graph.value(name)?]);
        for &node in graph.order() {
            if !reads(graph, node).any(|value| behind.contains(&value)) {
                continue;
            }
            for &value in graph.outputs(node).iter().flatten() {
                if self.everywhere(side, value).is_some() {
                    return Some(value);
                }
                behind.insert(value);
            }
        }
        None
    }
}
