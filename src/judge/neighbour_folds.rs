//! Formulas for weights and biases into which neighbouring element-wise constants are folded.
//!
//! Other tools fold each Mul, Add or BatchNormalization into the adjacent layer. unfold may fold
//! the same operator into another layer, or fold more operators into the same layer, so the folds
//! of such tools are computed here.

use super::candidates::{CandidateKey, FormulaCandidates, by_key};
use super::constants::ComputedConstants;
use crate::affine::Affine;
use crate::affine::linear::{Linear, linear};
use crate::affine::recognize::affine_chain::step;
use crate::affine::rule::{At, Side};
use crate::analysis::Analysis;
use crate::ir::ValueId;
use crate::onnx::tensor::DataType;
use crate::recipe::Recipe;

/// The maximum number of element-wise operators that are folded into a layer from one side.
const STEPS: usize = 4;

/// The weights and biases that layers would have if neighbouring operators were folded into them.
/// Keeps only the weights and biases with a type and size in `keys`.
pub(super) fn of_neighbours(
    analysis: &Analysis,
    keys: &[CandidateKey],
    constants: &ComputedConstants,
) -> FormulaCandidates {
    let mut recipes = vec![];
    for &node in analysis.graph.order() {
        let at = analysis.at(node);
        let Some(rules) = linear(at.graph.domain_op(node)).filter(|rules| rules.is_layer()) else {
            continue;
        };
        let layer = FoldingLayer { at, rules };
        for recipe in layer
            .folded_behind()
            .into_iter()
            .chain(layer.folded_before())
        {
            let Some(data_type) = layer.data_type() else {
                continue;
            };
            if keys.contains(&(data_type, recipe.len())) {
                recipes.push((recipe, data_type));
            }
        }
    }
    by_key(recipes, constants)
}

/// A linear operator with a constant weight, into which neighbouring operators may be folded.
struct FoldingLayer<'l> {
    at: At<'l>,
    rules: &'static dyn Linear,
}

impl FoldingLayer<'_> {
    fn data_type(&self) -> Option<DataType> {
        self.at
            .facts
            .data_type(self.at.graph.only_output(self.at.node)?)
    }

    /// The weights and biases that the layer would have if the next operator after it were folded
    /// into it, or the next two, and so on up to [`STEPS`].
    fn folded_behind(&self) -> Vec<Recipe> {
        let mut folded = vec![];
        let Some(output) = self.at.graph.only_output(self.at.node) else {
            return folded;
        };
        let Some(rank) = self.at.facts.rank(output) else {
            return folded;
        };
        let (mut affine, mut value) = (Affine::identity(rank), output);
        for _ in 0..STEPS {
            let Some((next, step)) = self.step_behind(value) else {
                folded.extend(self.bias_in_addend(value, &affine));
                break;
            };
            (affine, value) = (affine.then(&step), next);
            folded.extend(self.constants_after(Side::Result, &affine));
        }
        folded
    }

    /// The only reader of a value as an affine, and the result of that reader. `None` if there are
    /// several readers, or if the reader is not an affine.
    fn step_behind(&self, value: ValueId) -> Option<(ValueId, Affine)> {
        let (reader, _) = self.at.graph.only_reader(value)?;
        let output = self.at.graph.only_output(reader)?;
        let at = At {
            node: reader,
            ..self.at
        };
        Some((output, step(&at, value, output)?))
    }

    /// The constant of the Add that reads a value, after the bias of the layer is folded into it.
    /// The constant may differ from place to place. `affine` is the affine between the layer and
    /// the value. `None` if there is no bias, or if the only reader is no Add of a constant.
    fn bias_in_addend(&self, value: ValueId, affine: &Affine) -> Option<Recipe> {
        let (reader, slot) = self.at.graph.only_reader(value)?;
        if !self.at.graph.is(reader, "Add") {
            return None;
        }
        let at = At {
            node: reader,
            ..self.at
        };
        let rank = self.at.facts.rank(value)?;
        let addend = at.constant(1 - slot).ok()?.align(rank)?;
        self.bias(Side::Result, affine)?.add(&addend)
    }

    /// The weights and biases that the layer would have if the operator before it were folded into
    /// it, or the two operators before it, and so on up to [`STEPS`].
    fn folded_before(&self) -> Vec<Recipe> {
        let mut folded = vec![];
        let operand = self.at.graph.input(self.at.node, 0);
        let Some((mut value, rank)) =
            operand.and_then(|value| Some((value, self.at.facts.rank(value)?)))
        else {
            return folded;
        };
        let mut affine = Affine::identity(rank);
        for _ in 0..STEPS {
            let Some((before, step)) = self.step_before(value) else {
                break;
            };
            (affine, value) = (step.then(&affine), before);
            folded.extend(self.constants_after(Side::Operand(0), &affine));
        }
        folded
    }

    /// The producer of a value as an affine, and the varying operand of that producer. `None` if
    /// the producer is not an affine.
    fn step_before(&self, value: ValueId) -> Option<(ValueId, Affine)> {
        let (producer, _) = self.at.graph.producer(value)?;
        let mut inputs = self.at.graph.inputs(producer).iter().flatten();
        let varying = inputs.find(|&&input| !self.at.constants.is_constant(input));
        let at = At {
            node: producer,
            ..self.at
        };
        Some((*varying?, step(&at, *varying?, value)?))
    }

    /// The weight and the bias after an affine is folded into them, and the constant of an Add in
    /// place of the bias. A parameter that the affine does not change is left out.
    fn constants_after(&self, side: Side, affine: &Affine) -> Vec<Recipe> {
        let sum = self.bias(side, affine);
        let written = sum.as_ref();
        let bias = written.and_then(|bias| self.rules.write_bias(&self.at, bias));
        let parameters = [self.weight(side, affine), bias, sum];
        parameters.into_iter().flatten().collect()
    }

    fn weight(&self, side: Side, affine: &Affine) -> Option<Recipe> {
        let slot = self.rules.slots(&self.at).ok()?.weight?;
        let weight = self.at.constant(slot).ok()?;
        let scaled = self
            .rules
            .scaled(&self.at, &weight, side, &affine.scale)
            .ok()?;
        (!affine.has_no_scale()).then_some(scaled)
    }

    /// The bias in a shape that broadcasts over the result.
    fn bias(&self, side: Side, affine: &Affine) -> Option<Recipe> {
        let slots = self.rules.slots(&self.at).ok()?;
        let stored = slots.bias.and_then(|slot| self.at.constant(slot).ok());
        let bias = stored.and_then(|bias| self.rules.read_bias(&self.at, bias).ok());
        let shift = self.shift(side, affine);
        match (side, bias) {
            (Side::Result, Some(bias)) => added(Some(bias.mul(affine.scale.recipe())?), shift),
            (_, bias) => added(bias, shift),
        }
    }

    /// The vector that folding the shift of an affine adds to the bias. `None` if the affine has no
    /// shift, or if the image of the shift under the operator is unknown.
    fn shift(&self, side: Side, affine: &Affine) -> Option<Recipe> {
        if affine.has_no_shift() {
            return None;
        }
        if side == Side::Result {
            return Some(affine.shift.recipe().clone());
        }
        let slot = self.rules.slots(&self.at).ok()?.weight;
        let weight = slot.and_then(|slot| self.at.constant(slot).ok());
        self.rules
            .image(&self.at, weight.as_ref(), 0, &affine.shift)
            .ok()
    }
}

/// The sum of a bias and a shift, or the bias or the shift if only one of them exists. `None` if
/// neither exists, or if their shapes differ.
fn added(bias: Option<Recipe>, shift: Option<Recipe>) -> Option<Recipe> {
    match (bias, shift) {
        (Some(bias), Some(shift)) => bias.add(&shift),
        (bias, shift) => bias.or(shift),
    }
}
