//! Compares the values after a difference of two models. For this, the values at which the models
//! begin to differ are assumed to be equal.

use std::collections::{HashMap, HashSet};

use super::alignment::Alignment;
use super::part::{PartEnds, declaration, part};
use super::parted::candidates;
use super::side::ComparedModel;
use crate::analysis::Analysis;
use crate::error::Result;
use crate::ir::ValueId;
use crate::judge::{compared_values, counterparts};
use crate::onnx::Model;
use crate::onnx::proto::ValueInfoProto;
use crate::prove::{Hash, ProveOptions, ValueDigests};
use crate::run::{Dims, Input, fix_shapes};

/// The maximum number of candidates for the first difference that are examined.
const EXAMINED: usize = 5;

/// The maximum number of candidates for each later difference that are examined.
const EXAMINED_BEHIND: usize = 2;

/// The maximum number of differences that are searched for.
const DIFFERENCES: usize = 8;

/// The prefix of the names of inputs that replace values that are assumed to be equal.
const ASSUMED: &str = "unfold/assumed";

/// The values of two models under the assumption that the values at which they begin to differ are
/// equal.
pub(super) struct BehindDifferences {
    /// The names of each pair of values that are assumed to be equal.
    pub assumed: Vec<[String; 2]>,
    /// The values of both models under this assumption.
    pub values: ValueDigests,
}

/// Assumes that the values at which the models begin to differ are equal, and compares the values
/// after them, at the sizes of `options`. Repeats this as long as the number of nodes without a
/// counterpart decreases.
///
/// # Errors
/// If one of the graphs is invalid.
pub(super) fn behind_differences(
    first: &Model,
    second: &Model,
    options: &ProveOptions,
) -> Result<BehindDifferences> {
    let models = sized(first, second, &options.dims);
    let [first, second] = &models;
    let mut search = DifferenceSearch {
        models: [first, second],
        analyses: [Analysis::new(first)?, Analysis::new(second)?],
        options,
        assumed: vec![],
        left: usize::MAX,
        values: compared_values(first, second, options),
    };
    while search.assumed.len() < DIFFERENCES && search.step()? {}
    let graphs = search.analyses.each_ref().map(|analysis| &analysis.graph);
    let assumed = search.assumed.iter();
    let names = assumed.map(|values| [0, 1].map(|side| graphs[side].value_name(values[side])));
    Ok(BehindDifferences {
        assumed: names.map(|names| names.map(str::to_owned)).collect(),
        values: search.values,
    })
}

/// Searches for the differences of two models one after another.
struct DifferenceSearch<'d> {
    models: [&'d Model; 2],
    analyses: [Analysis<'d>; 2],
    options: &'d ProveOptions,
    /// The pairs of values that are assumed to be equal.
    assumed: Vec<[ValueId; 2]>,
    /// The number of nodes without a counterpart under this assumption.
    left: usize,
    /// The values of both models under this assumption.
    values: ValueDigests,
}

impl DifferenceSearch<'_> {
    /// Searches for the next difference, and assumes that its two values are equal if fewer nodes
    /// then lack a counterpart. Returns false if there is no such difference.
    fn step(&mut self) -> Result<bool> {
        let [of_first, of_second] = &self.values.0;
        if of_first.is_empty() {
            return Ok(false);
        }
        let sides = [
            ComparedModel::new(self.models[0], of_first)?,
            ComparedModel::new(self.models[1], of_second)?,
        ];
        let mut alignment = Alignment::new(&sides);
        alignment.assumed = self.assumed.clone();
        let differing = DifferingModels {
            alignment: &alignment,
            analyses: self.analyses.each_ref(),
            values: &self.values,
            options: self.options,
        };
        let found = differing.first_difference();
        let Some(found) = found.filter(|found| found.left < self.left) else {
            return Ok(false);
        };
        self.assumed.push(found.pair);
        self.left = found.left;
        self.values = found.values;
        Ok(true)
    }
}

/// Fixes the extents of the inputs of both models. The second model gets the extents of the first.
/// A model whose inputs cannot have these sizes keeps its extents.
pub(super) fn sized(first: &Model, second: &Model, dims: &Dims) -> [Model; 2] {
    let mut models = [first.clone(), second.clone()];
    let Ok(inputs) = Input::from_model(first, dims) else {
        return models;
    };
    fix_shapes(models[0].graph_mut(), &inputs);
    let own = &second.graph().input;
    let Ok(others) = counterparts(&first.graph().input, own, "inputs") else {
        return models;
    };
    let mut same = Dims::default();
    for (input, other) in first.graph().input.iter().zip(others) {
        let sized = inputs.iter().find(|sized| sized.name == input.name());
        let shape = sized.map_or(&[][..], |sized| &sized.shape);
        for (symbol, &size) in Input::symbols(other).into_iter().zip(shape) {
            if let Some(symbol) = symbol {
                same.set(symbol, size);
            }
        }
    }
    if let Ok(inputs) = Input::from_model(second, &same) {
        fix_shapes(models[1].graph_mut(), &inputs);
    }
    models
}

/// Two models that differ, with the alignment of their values.
pub(super) struct DifferingModels<'r, 'm> {
    pub alignment: &'r Alignment<'r, 'm>,
    pub analyses: [&'r Analysis<'r>; 2],
    /// The values of both models.
    pub values: &'r ValueDigests,
    pub options: &'r ProveOptions,
}

/// A pair of values that differ, although all values on which they depend are equal.
pub(super) struct FirstDifference {
    pub pair: [ValueId; 2],
    /// The number of nodes without a counterpart if these values are assumed to be equal.
    left: usize,
    /// Whether the outputs agree under this assumption.
    do_outputs_agree: bool,
    /// The values of both models under this assumption.
    values: ValueDigests,
}

impl DifferingModels<'_, '_> {
    /// The pair of values that explains most of the difference: if these values are assumed to be
    /// equal, the fewest nodes lack a counterpart. `None` if the outputs agree, or if the models
    /// cannot be compared under any of these assumptions.
    pub(super) fn first_difference(&self) -> Option<FirstDifference> {
        if self.alignment.parted.is_empty() {
            return None;
        }
        let examined = match self.alignment.assumed[..] {
            [] => EXAMINED,
            _ => EXAMINED_BEHIND,
        };
        let mut best: Option<FirstDifference> = None;
        let candidates = candidates(self.alignment, self.analyses);
        for pair in candidates.into_iter().take(examined) {
            let Some(found) = self.if_equal(pair) else {
                continue;
            };
            // Candidates with fewer nodes between them and equal values come first. So if the
            // outputs agree now, no later candidate can be the first difference.
            let is_last = found.do_outputs_agree;
            if best.as_ref().is_none_or(|best| found.left < best.left) {
                best = Some(found);
            }
            if is_last {
                break;
            }
        }
        best
    }

    /// Compares both models under the additional assumption that the values of `pair` are equal.
    /// `None` if the models cannot be compared under this assumption.
    fn if_equal(&self, pair: [ValueId; 2]) -> Option<FirstDifference> {
        let mut assumed = self.alignment.assumed.clone();
        assumed.push(pair);
        let [first, second] = [0, 1].map(|side| self.assuming(side, &assumed));
        let (first, second) = (first?, second?);
        let mut behind = ValueDigests::default();
        if !first.graph().output.is_empty() {
            behind = compared_values(&first, &second, self.options);
            behind.0[0].get(&assumed_name(assumed.len() - 1))?;
        }
        let values = self.values_behind(&assumed, behind);
        let [of_first, of_second] = &values.0;
        let [first, second] = self
            .alignment
            .sides
            .each_ref()
            .map(|side| side.graph.model());
        let sides = [
            ComparedModel::new(first, of_first).ok()?,
            ComparedModel::new(second, of_second).ok()?,
        ];
        let mut alignment = Alignment::new(&sides);
        alignment.assumed = assumed;
        let do_outputs_agree = alignment.parted.is_empty();
        let left = [0, 1].map(|side| alignment.counts(side).only);
        Some(FirstDifference {
            pair,
            left: left.iter().sum(),
            do_outputs_agree,
            values,
        })
    }

    /// The digests of all values. The digests in `behind` replace those of values that differ. Both
    /// values of the last pair in `assumed`, which is the new pair, get the same digest.
    fn values_behind(&self, assumed: &[[ValueId; 2]], behind: ValueDigests) -> ValueDigests {
        let mut values = ValueDigests(self.values.0.each_ref().map(HashMap::clone));
        let place = assumed.len() - 1;
        let name = assumed_name(place);
        let digest = behind.0[0].get(&name).copied();
        let digest = digest.unwrap_or_else(|| Hash::new(0, &name).finish());
        for ((side, own), behind) in self.alignment.sides.iter().enumerate().zip(behind.0) {
            for (name, digest) in behind {
                let value = own.graph.value(&name);
                if value.is_some_and(|value| !self.alignment.is_shared(side, value)) {
                    values.0[side].insert(name, digest);
                }
            }
            let name = own.graph.value_name(assumed[place][side]);
            values.0[side].insert(name.to_owned(), digest);
        }
        values
    }

    /// A copy of one model in which a new input replaces each value of this model in `assumed`.
    /// `None` if the type or an extent of a replaced value is unknown.
    fn assuming(&self, side: usize, assumed: &[[ValueId; 2]]) -> Option<Model> {
        let graph = &self.alignment.sides[side].graph;
        let mut ends = PartEnds {
            inputs: graph.proto().input.clone(),
            outputs: self.outputs(side, assumed),
            ..PartEnds::default()
        };
        for (place, values) in assumed.iter().enumerate() {
            let name = assumed_name(place);
            let declared = declaration(self.analyses[0], values[0], &name)?;
            ends.inputs.push(declared);
            ends.begins.insert(values[side]);
            ends.names.insert(values[side], name);
        }
        let outputs = ends.outputs.iter();
        ends.ends = outputs
            .filter_map(|output| graph.value(output.name()))
            .collect();
        Some(part(graph, ends))
    }

    /// The outputs of one model, in the order of the first model's outputs. Leaves out outputs
    /// whose values are in `assumed`.
    fn outputs(&self, side: usize, assumed: &[[ValueId; 2]]) -> Vec<ValueInfoProto> {
        let graphs = [0, 1].map(|side| &self.alignment.sides[side].graph);
        let [mine, its] = graphs.map(|graph| &graph.proto().output);
        let Ok(others) = counterparts(mine, its, "outputs") else {
            return vec![];
        };
        let known: [HashSet<ValueId>; 2] =
            [0, 1].map(|side| assumed.iter().map(|values| values[side]).collect());
        let mut outputs = vec![];
        for (output, other) in mine.iter().zip(others) {
            let both = [output, other];
            let mut values = (0..2).zip(&known).map(|(side, known)| {
                let value = graphs[side].value(both[side].name());
                value.is_some_and(|value| known.contains(&value))
            });
            if !values.any(|is_assumed| is_assumed) {
                outputs.push(both[side].clone());
            }
        }
        outputs
    }
}

/// The name of the input that replaces the values of the pair at index `place`.
fn assumed_name(place: usize) -> String {
    format!("{ASSUMED}/{place}")
}
