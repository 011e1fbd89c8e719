//! Finds the smallest parts of two models that still differ.

use std::collections::{HashMap, HashSet};

use tract_onnx::prelude::Tensor;

use super::alignment::Alignment;
use super::behind::{DifferingModels, sized};
use super::part::{PartEnds, declaration, part, reads};
use super::side::ComparedModel;
use crate::analysis::Analysis;
use crate::error::Result;
use crate::ir::ValueId;
use crate::judge::{Judgement, Witness, judge, judge_with_values, witness_on};
use crate::onnx::Model;
use crate::onnx::proto::{NodeProto, TensorProto, ValueInfoProto};
use crate::prove::ProveOptions;
use crate::run::{Dims, Engine, Input, random};

/// The smallest differing parts of two models.
pub(crate) struct Reduction {
    /// The verdict on both models.
    pub judgement: Judgement,
    /// The parts. `None` if both models are proved to be the same without casts, or if they cannot
    /// be compared.
    pub parts: Option<DifferingParts>,
}

/// A part of each model. Both have the same inputs and one output.
pub(crate) struct DifferingParts {
    /// The parts of the first and the second model.
    pub models: [Model; 2],
    /// The name, in each model, of the value that its part computes.
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
    let differing = DifferingModels {
        alignment: &alignment,
        analyses: analyses.each_ref(),
        values: &values,
        options,
    };
    let parts = match &judgement {
        _ if of_first.is_empty() => None,
        Judgement::Different(witness) => differing.parts_that_differ(Some(witness)),
        Judgement::Undecided { .. } => differing.parts_that_differ(None),
        Judgement::Casts { casts, .. } => differing.parts_around_a_cast(casts),
        Judgement::Same { .. } | Judgement::Rounded { .. } | Judgement::Invalid { .. } => None,
    };
    Ok(Reduction { judgement, parts })
}

/// Whether the models differ, or the judgement is undecided.
pub(super) fn is_open(judgement: &Judgement) -> bool {
    matches!(
        judgement,
        Judgement::Different(_) | Judgement::Undecided { .. }
    )
}

impl DifferingModels<'_, '_> {
    /// The parts that compute the first values that differ. `None` if the outputs agree.
    fn parts_that_differ(&self, witness: Option<&Witness>) -> Option<DifferingParts> {
        let outputs = self.alignment.parted.first()?;
        let found = self.first_difference();
        let pair = found.map_or(*outputs, |found| found.pair);
        // Values of other extents cannot be assumed to be equal, so no difference ends at them.
        let pair = self.sole_difference(pair).unwrap_or(pair);
        let begins = [0, 1].map(|side| self.begins(side, pair[side]));
        let parts = self.cut(pair, &begins)?;
        let dims = witness.map_or(&self.options.dims, |witness| &witness.dims);
        let values = self.values_of(&parts.inputs, witness, dims);
        let [first, second] = &parts.models;
        let shown = values
            .clone()
            .and_then(|values| witness_on(first, second, values, dims));
        let judgement = match shown {
            Some(witness) => Judgement::Different(witness),
            None => judge(first, second, self.options),
        };
        let inputs = match &judgement {
            Judgement::Different(witness) => witness.inputs.clone(),
            _ => given(first, values, dims)?,
        };
        Some(parts.judged(judgement, inputs))
    }

    /// Cuts out of each model the part that computes its value of `pair` from the values `begins`.
    /// `None` if an input of one part has no equal value in the other model, or if the type or an
    /// extent of an input or an output is unknown.
    pub(super) fn cut(&self, pair: [ValueId; 2], begins: &[Vec<ValueId>; 2]) -> Option<CutParts> {
        let inputs = self.shared_inputs(begins)?;
        let output = &self.output_name(pair, &inputs);
        let models = [0, 1].map(|side| {
            let mut ends = self.ends(side, &begins[side], &inputs)?;
            let declared = declaration(self.analyses[side], pair[side], output)?;
            ends.outputs = vec![declared];
            let copied = match begins[side].contains(&pair[side]) {
                true => ends.names.get(&pair[side]).cloned(),
                false => {
                    ends.names.insert(pair[side], output.clone());
                    ends.ends = vec![pair[side]];
                    None
                }
            };
            let mut part = part(&self.alignment.sides[side].graph, ends);
            if let Some(input) = copied {
                part.graph_mut().node.push(NodeProto {
                    op_type: Some("Identity".to_owned()),
                    input: vec![input],
                    output: vec![output.clone()],
                    ..NodeProto::default()
                });
            }
            part.into_memory().ok()
        });
        let [first, second] = models;
        let graphs = [0, 1].map(|side| &self.alignment.sides[side].graph);
        Some(CutParts {
            models: [first?, second?],
            values: [0, 1].map(|side| graphs[side].value_name(pair[side]).to_owned()),
            inputs,
        })
    }

    /// A name for the output of both parts that none of their inputs has.
    fn output_name(&self, pair: [ValueId; 2], inputs: &[SharedInput]) -> String {
        let graphs = [0, 1].map(|side| &self.alignment.sides[side].graph);
        let taken: HashSet<&str> = inputs
            .iter()
            .map(|input| graphs[0].value_name(input.values[0]))
            .collect();
        let names = [0, 1].map(|side| graphs[side].value_name(pair[side]));
        let free = names.into_iter().find(|name| !taken.contains(name));
        free.map_or_else(|| format!("{}/end", names[0]), str::to_owned)
    }

    /// The values at which the part that computes `value` begins: inputs, computed constants, and
    /// values that both models have.
    pub(super) fn begins(&self, side: usize, value: ValueId) -> Vec<ValueId> {
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

    /// The inputs of both parts: all varying values at which at least one of the parts begins.
    /// `None` if one of these values is in only one model.
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

    /// For each model, its first varying value that equals `value`. `None` if one of the models has
    /// no such value.
    pub(super) fn everywhere(&self, side: usize, value: ValueId) -> Option<[ValueId; 2]> {
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

    /// Describes where the part of one model begins: its inputs, and the tensors that replace
    /// computed constants. `None` if the type or an extent of an input is unknown, or if a constant
    /// cannot be computed.
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

    /// Computes the inputs of both parts by running the first model at these sizes. `None` if tract
    /// cannot run it, or if the type or an extent of an input is unknown.
    pub(super) fn values_of(
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
pub(super) struct SharedInput {
    /// The first value of each model that equals the shared value.
    values: [ValueId; 2],
    /// The values at which each part begins and that equal the shared value.
    members: [Vec<ValueId>; 2],
}

/// The parts that were cut out of both models.
pub(super) struct CutParts {
    pub models: [Model; 2],
    /// The name, in each model, of the value that its part computes.
    values: [String; 2],
    pub inputs: Vec<SharedInput>,
}

impl CutParts {
    /// The parts with their verdict, and with their inputs by name.
    pub(super) fn judged(
        self,
        judgement: Judgement,
        inputs: Vec<(String, Tensor)>,
    ) -> DifferingParts {
        DifferingParts {
            models: self.models,
            values: self.values,
            judgement,
            inputs,
        }
    }
}

/// The values by the names of the model's inputs, or random inputs if there are no values. `None`
/// if the model's inputs cannot be drawn.
pub(super) fn given(
    model: &Model,
    values: Option<Vec<Tensor>>,
    dims: &Dims,
) -> Option<Vec<(String, Tensor)>> {
    let values = match values {
        Some(values) => values,
        None => random(&Input::from_model(model, dims).ok()?, 0),
    };
    let names = model.graph().input.iter();
    let names = names.map(|input| input.name().to_owned());
    Some(names.zip(values).collect())
}
