//! Finds the smallest parts of two models that still differ.

use std::collections::{HashMap, HashSet};

use tract_onnx::prelude::Tensor;

use super::alignment::Alignment;
use super::part::{PartEnds, declaration, part, reads};
use super::parted::{PartedPair, candidates};
use super::side::ComparedModel;
use crate::analysis::Analysis;
use crate::error::Result;
use crate::ir::ValueId;
use crate::judge::{
    Judgement, Witness, compared_values, counterparts, judge, judge_with_values, witness_on,
};
use crate::onnx::Model;
use crate::onnx::proto::{TensorProto, ValueInfoProto};
use crate::prove::{ProveOptions, ValueDigests};
use crate::run::{Dims, Engine, Input, fix_shapes, random};

/// The maximum number of candidates for the first difference whose effect on the outputs is examined.
const EXAMINED: usize = 5;

/// The name of the input that replaces two values that are assumed to be equal.
const ASSUMED: &str = "unfold/assumed";

/// The smallest parts of two models that differ.
pub(crate) struct Reduction {
    /// The verdict on both models.
    pub judgement: Judgement,
    /// The parts. `None` if both models are proved to be the same, or cannot be compared.
    pub parts: Option<DifferingParts>,
}

/// A part of each model. Both have the same inputs and one output.
pub(crate) struct DifferingParts {
    /// The parts of the first and the second model.
    pub models: [Model; 2],
    /// The names of the values that the parts compute, in the files of the models.
    pub values: [String; 2],
    /// The verdict on both parts.
    pub judgement: Judgement,
    /// The inputs of both parts by name.
    pub inputs: Vec<(String, Tensor)>,
}

/// Reduces two models to the smallest parts that still differ, at the sizes of `options`.
///
/// # Errors
/// If one of the graphs is invalid.
pub(crate) fn reduce(first: &Model, second: &Model, options: &ProveOptions) -> Result<Reduction> {
    let models = sized(first, second, &options.dims);
    let [first, second] = &models;
    let (judgement, values) = judge_with_values(first, second, options);
    let [of_first, of_second] = &values.0;
    let sides = [
        ComparedModel::new(first, of_first)?,
        ComparedModel::new(second, of_second)?,
    ];
    let analyses = [Analysis::new(first)?, Analysis::new(second)?];
    let alignment = Alignment::new(&sides);
    let mut parts = None;
    if is_open(&judgement) && !alignment.parted.is_empty() && !of_first.is_empty() {
        let reducer = Reducer {
            alignment: &alignment,
            analyses: [&analyses[0], &analyses[1]],
            options,
        };
        let witness = match &judgement {
            Judgement::Different(witness) => Some(witness),
            _ => None,
        };
        let (pair, _) = reducer.first_difference();
        parts = reducer.parts(&pair, witness);
    }
    Ok(Reduction { judgement, parts })
}

/// Whether there is no proof that both models are the same.
pub(super) fn is_open(judgement: &Judgement) -> bool {
    matches!(
        judgement,
        Judgement::Different(_) | Judgement::Undecided { .. }
    )
}

/// The values behind the first difference of two models.
pub(super) struct BehindDifference {
    /// The names of the values that differ first.
    pub names: [String; 2],
    /// The values of both models if these two are equal.
    pub values: ValueDigests,
}

/// Assumes that the values that differ first are equal, and compares the values behind them, at the sizes of `options`.
/// `None` if no such pair of values is found.
///
/// # Errors
/// If one of the graphs is invalid.
pub(super) fn behind_difference(
    first: &Model,
    second: &Model,
    options: &ProveOptions,
) -> Result<Option<BehindDifference>> {
    let models = sized(first, second, &options.dims);
    let [first, second] = &models;
    let mut values = compared_values(first, second, options);
    let [of_first, of_second] = &values.0;
    let sides = [
        ComparedModel::new(first, of_first)?,
        ComparedModel::new(second, of_second)?,
    ];
    let analyses = [Analysis::new(first)?, Analysis::new(second)?];
    let alignment = Alignment::new(&sides);
    if alignment.parted.is_empty() || of_first.is_empty() {
        return Ok(None);
    }
    let reducer = Reducer {
        alignment: &alignment,
        analyses: [&analyses[0], &analyses[1]],
        options,
    };
    let (pair, behind) = reducer.first_difference();
    let Some(mut behind) = behind else {
        return Ok(None);
    };
    let names = [0, 1].map(|side| {
        let graph = &sides[side].graph;
        graph.value_name(pair.values[side]).to_owned()
    });
    for (side, own) in sides.iter().enumerate() {
        if let Some(assumed) = behind.0[side].remove(ASSUMED) {
            values.0[side].insert(names[side].clone(), assumed);
        }
        for (name, digest) in behind.0[side].drain() {
            let value = own.graph.value(&name);
            if value.is_some_and(|value| !alignment.is_shared(side, value)) {
                values.0[side].insert(name, digest);
            }
        }
    }
    Ok(Some(BehindDifference { names, values }))
}

/// Both models with the extents of their inputs fixed. The second model has the sizes of the first.
fn sized(first: &Model, second: &Model, dims: &Dims) -> [Model; 2] {
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
struct Reducer<'r, 'm> {
    alignment: &'r Alignment<'r, 'm>,
    analyses: [&'r Analysis<'r>; 2],
    options: &'r ProveOptions,
}

impl Reducer<'_, '_> {
    /// The pair of values that explains most of the difference: if they are assumed to be equal, the fewest other values
    /// differ. Also returns the values behind it, if there are any.
    fn first_difference(&self) -> (PartedPair, Option<ValueDigests>) {
        let mut best: Option<(usize, PartedPair, ValueDigests)> = None;
        let candidates = candidates(self.alignment, self.analyses);
        for pair in candidates.into_iter().take(EXAMINED) {
            let Some((left, values)) = self.left_if_equal(&pair) else {
                continue;
            };
            if best.as_ref().is_none_or(|(fewest, ..)| left < *fewest) {
                best = Some((left, pair, values));
            }
            if left == 0 {
                break;
            }
        }
        let outputs = PartedPair {
            values: self.alignment.parted[0],
            nodes: 0,
        };
        match best {
            Some((_, pair, values)) => (pair, Some(values)),
            None => (outputs, None),
        }
    }

    /// The number of nodes without a counterpart if these two values are assumed to be equal, 0 if the outputs agree then,
    /// and all values.
    fn left_if_equal(&self, pair: &PartedPair) -> Option<(usize, ValueDigests)> {
        let [first, second] = [0, 1].map(|side| self.assuming(side, pair));
        let (first, second) = (first?, second?);
        if first.graph().output.is_empty() {
            return Some((0, ValueDigests::default()));
        }
        let values = compared_values(&first, &second, self.options);
        let [of_first, of_second] = &values.0;
        let sides = [
            ComparedModel::new(&first, of_first).ok()?,
            ComparedModel::new(&second, of_second).ok()?,
        ];
        let alignment = Alignment::new(&sides);
        if of_first.is_empty() || alignment.parted.is_empty() {
            let is_compared = of_first.contains_key(ASSUMED);
            return is_compared.then_some((0, values));
        }
        let left = [0, 1].map(|side| alignment.counts(side).only);
        let left = left.iter().sum();
        Some((left, values))
    }

    /// A copy of one model that reads an input instead of its value of this pair.
    fn assuming(&self, side: usize, pair: &PartedPair) -> Option<Model> {
        let graph = &self.alignment.sides[side].graph;
        let value = pair.values[side];
        let declared = declaration(self.analyses[0], pair.values[0], ASSUMED)?;
        let mut inputs = graph.proto().input.clone();
        inputs.push(declared);
        let outputs = self.outputs(side, pair);
        let ends = outputs
            .iter()
            .filter_map(|output| graph.value(output.name()))
            .collect();
        let ends = PartEnds {
            names: HashMap::from([(value, ASSUMED.to_owned())]),
            begins: HashSet::from([value]),
            inputs,
            ends,
            outputs,
            constants: vec![],
        };
        Some(part(graph, ends))
    }

    /// The outputs of one model that are no values of this pair, in the order of the first model.
    fn outputs(&self, side: usize, pair: &PartedPair) -> Vec<ValueInfoProto> {
        let graphs = [0, 1].map(|side| &self.alignment.sides[side].graph);
        let [mine, its] = graphs.map(|graph| &graph.proto().output);
        let Ok(others) = counterparts(mine, its, "outputs") else {
            return vec![];
        };
        let mut outputs = vec![];
        for (output, other) in mine.iter().zip(others) {
            let both = [output, other];
            let values = [0, 1].map(|side| graphs[side].value(both[side].name()));
            if values[0] != Some(pair.values[0]) && values[1] != Some(pair.values[1]) {
                outputs.push(both[side].clone());
            }
        }
        outputs
    }

    /// The parts between the values that both models have and this pair.
    fn parts(&self, pair: &PartedPair, witness: Option<&Witness>) -> Option<DifferingParts> {
        let begins = [0, 1].map(|side| self.begins(side, pair.values[side]));
        let inputs = self.shared_inputs(&begins)?;
        let graph = &self.alignment.sides[0].graph;
        let output = graph.value_name(pair.values[0]);
        let models = [0, 1].map(|side| {
            let mut ends = self.ends(side, &begins[side], &inputs)?;
            ends.names.insert(pair.values[side], output.to_owned());
            ends.ends = vec![pair.values[side]];
            let declared = declaration(self.analyses[side], pair.values[side], output)?;
            ends.outputs = vec![declared];
            let part = part(&self.alignment.sides[side].graph, ends);
            part.into_memory().ok()
        });
        let [first, second] = models;
        let (first, second) = (first?, second?);
        let dims = witness.map_or(&self.options.dims, |witness| &witness.dims);
        let values = self.values_of(&inputs, witness, dims);
        let shown = values
            .clone()
            .and_then(|values| witness_on(&first, &second, values, dims));
        let judgement = match shown {
            Some(witness) => Judgement::Different(witness),
            None => judge(&first, &second, self.options),
        };
        let tensors = match (&judgement, values) {
            (Judgement::Different(witness), _) => witness.inputs.clone(),
            (_, Some(values)) => named(&first, values),
            (_, None) => {
                let inputs = Input::from_model(&first, dims).ok()?;
                named(&first, random(&inputs, 0))
            }
        };
        Some(DifferingParts {
            models: [first, second],
            values: [0, 1].map(|side| {
                let graph = &self.alignment.sides[side].graph;
                graph.value_name(pair.values[side]).to_owned()
            }),
            judgement,
            inputs: tensors,
        })
    }

    /// The values at which the part before a value begins: inputs, constants and values that both models have.
    fn begins(&self, side: usize, value: ValueId) -> Vec<ValueId> {
        let own = &self.alignment.sides[side];
        let (mut begins, mut seen, mut open) = (vec![], HashSet::new(), vec![value]);
        while let Some(at) = open.pop() {
            if !seen.insert(at) || own.graph.initializer(at).is_some() {
                continue;
            }
            let is_constant = self.analyses[side].constants.is_constant(at);
            let is_end = at != value && (is_constant || self.everywhere(side, at).is_some());
            match own.graph.producer(at) {
                Some((node, _)) if !is_end => open.extend(reads(&own.graph, node)),
                _ => begins.push(at),
            }
        }
        begins.sort_unstable();
        begins
    }

    /// The inputs of both parts: the values that vary and at which one of the parts begins.
    fn shared_inputs(&self, begins: &[Vec<ValueId>; 2]) -> Option<Vec<SharedInput>> {
        let mut inputs: Vec<SharedInput> = vec![];
        for (side, begins) in begins.iter().enumerate() {
            for &value in begins {
                if self.analyses[side].constants.is_constant(value) {
                    continue;
                }
                let values = self.everywhere(side, value)?;
                let known = inputs.iter_mut().find(|input| input.values[0] == values[0]);
                match known {
                    Some(input) => input.members[side].push(value),
                    None => {
                        let mut members = [vec![], vec![]];
                        members[side].push(value);
                        inputs.push(SharedInput { values, members });
                    }
                }
            }
        }
        Some(inputs)
    }

    /// The first values of both models that equal a value of one of them, and vary.
    fn everywhere(&self, side: usize, value: ValueId) -> Option<[ValueId; 2]> {
        let digest = self.alignment.sides[side].digest(value)?;
        let data_type = self.analyses[side].facts.data_type(value);
        let found = [0, 1].map(|side| {
            let Analysis {
                facts, constants, ..
            } = self.analyses[side];
            let own = &self.alignment.sides[side];
            let mut values = (0..own.graph.value_count()).map(|index| ValueId(index as u32));
            values.find(|&other| {
                own.digest(other) == Some(digest)
                    && facts.data_type(other) == data_type
                    && !constants.is_constant(other)
            })
        });
        let [Some(first), Some(second)] = found else {
            return None;
        };
        Some([first, second])
    }

    /// The beginnings of one part.
    fn ends(&self, side: usize, begins: &[ValueId], inputs: &[SharedInput]) -> Option<PartEnds> {
        let mut ends = PartEnds {
            begins: begins.iter().copied().collect(),
            ..PartEnds::default()
        };
        let first = &self.alignment.sides[0].graph;
        for input in inputs {
            let name = first.value_name(input.values[0]);
            let declared = declaration(self.analyses[0], input.values[0], name)?;
            ends.inputs.push(declared);
            for &member in &input.members[side] {
                ends.names.insert(member, name.to_owned());
            }
        }
        let analysis = self.analyses[side];
        for &value in begins {
            if analysis.constants.is_constant(value) {
                let stored = analysis.constants.stored(value);
                let tensor = stored.or_else(|| analysis.constants.tensor(value).ok())?;
                ends.constants.push(TensorProto {
                    name: Some(analysis.graph.value_name(value).to_owned()),
                    ..tensor
                });
            }
        }
        Some(ends)
    }

    /// The values of the inputs of both parts, which the first model computes at these sizes. `None` if tract cannot run
    /// it.
    fn values_of(
        &self,
        inputs: &[SharedInput],
        witness: Option<&Witness>,
        dims: &Dims,
    ) -> Option<Vec<Tensor>> {
        let graph = &self.alignment.sides[0].graph;
        let computed: Vec<ValueId> = inputs
            .iter()
            .map(|input| input.values[0])
            .filter(|&value| graph.producer(value).is_some())
            .collect();
        let outputs: Option<Vec<ValueInfoProto>> = computed
            .iter()
            .map(|&value| declaration(self.analyses[0], value, graph.value_name(value)))
            .collect();
        let before = part(
            graph,
            PartEnds {
                inputs: graph.proto().input.clone(),
                ends: computed.clone(),
                outputs: outputs?,
                ..PartEnds::default()
            },
        );
        let given = match witness {
            Some(witness) => witness.inputs.clone(),
            None => {
                let free = Input::from_model(graph.model(), dims).ok()?;
                let names = free.iter().map(|input| input.name.clone());
                names.zip(random(&free, 0)).collect()
            }
        };
        let made = if computed.is_empty() {
            vec![]
        } else {
            let engine = Engine::load(&before, dims).ok()?;
            let tensors = given.iter().map(|(_, tensor)| tensor.clone());
            engine.run(&tensors.collect::<Vec<_>>()).ok()?
        };
        let mut values: HashMap<&str, Tensor> = HashMap::new();
        values.extend(
            given
                .iter()
                .map(|(name, tensor)| (name.as_str(), tensor.clone())),
        );
        let names = computed.iter().map(|&value| graph.value_name(value));
        values.extend(names.zip(made));
        let names = inputs.iter().map(|input| graph.value_name(input.values[0]));
        names.map(|name| values.get(name).cloned()).collect()
    }
}

/// A value that both models have and that becomes an input of both parts.
struct SharedInput {
    /// The first value of each model that is equal to it.
    values: [ValueId; 2],
    /// The values at which each part begins and that are equal to it.
    members: [Vec<ValueId>; 2],
}

/// The inputs of a model by name.
fn named(model: &Model, tensors: Vec<Tensor>) -> Vec<(String, Tensor)> {
    let names = model.graph().input.iter();
    let names = names.map(|input| input.name().to_owned());
    names.zip(tensors).collect()
}
