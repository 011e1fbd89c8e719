//! Formulas for weights and biases into which neighbouring element-wise constants are folded, and
//! for element-wise constants that are merged.
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
use crate::recipe::Recipe;

/// The maximum number of element-wise operators that are folded into a layer from each side.
const STEPS: usize = 4;

/// The weights and biases that layers would have if neighbouring operators were folded into them, and
/// the constants of consecutive element-wise operators that are merged into one. Keeps only those
/// with a type and size in `keys`.
pub(super) fn of_neighbours(
    analysis: &Analysis,
    keys: &[CandidateKey],
    constants: &ComputedConstants,
) -> FormulaCandidates {
    let mut recipes = vec![];
    for &node in analysis.graph.order() {
        let at = analysis.at(node);
        let output = at.graph.only_output(node);
        let Some(data_type) = output.and_then(|output| at.facts.data_type(output)) else {
            continue;
        };
        let rules = linear(at.graph.domain_op(node)).filter(|rules| rules.is_layer());
        let folded = match rules {
            Some(rules) => FoldingLayer { at, rules }.folded(),
            None => merged_constants(&at),
        };
        let folded = folded.into_iter();
        let wanted = folded.filter(|recipe| keys.contains(&(data_type, recipe.len())));
        recipes.extend(wanted.map(|recipe| (recipe, data_type)));
    }
    by_key(recipes, constants)
}

/// The constants of an element-wise operator and of up to [`STEPS`] operators after it, merged into
/// one scale and one shift. Empty if no element-wise operator follows.
fn merged_constants(at: &At) -> Vec<Recipe> {
    let mut merged = vec![];
    let Some((_, mut affine)) = varying_step(at) else {
        return merged;
    };
    let mut value = at.graph.only_output(at.node);
    for _ in 0..STEPS {
        let Some((next, step)) = value.and_then(|value| step_behind(at, value)) else {
            break;
        };
        (affine, value) = (affine.then(&step), Some(next));
        merged.push(affine.scale.recipe().clone());
        merged.push(affine.shift.recipe().clone());
    }
    merged
}

/// The only varying operand of a node, and the node as an affine of it. `None` if the node is no
/// affine.
fn varying_step(at: &At) -> Option<(ValueId, Affine)> {
    let mut inputs = at.graph.inputs(at.node).iter().flatten();
    let varying = inputs.find(|&&input| !at.constants.is_constant(input));
    let output = at.graph.only_output(at.node)?;
    Some((*varying?, step(at, *varying?, output)?))
}

/// The only reader of a value as an affine, and the result of that reader. `None` if there are
/// several readers, or if the reader is not an affine.
fn step_behind(at: &At, value: ValueId) -> Option<(ValueId, Affine)> {
    let (reader, _) = at.graph.only_reader(value)?;
    let output = at.graph.only_output(reader)?;
    let at = At {
        node: reader,
        ..*at
    };
    Some((output, step(&at, value, output)?))
}

/// A linear operator with a constant weight, into which neighbouring operators may be folded.
struct FoldingLayer<'l> {
    at: At<'l>,
    rules: &'static dyn Linear,
}

impl FoldingLayer<'_> {
    /// The weights and biases that the layer would have if up to [`STEPS`] operators before it and
    /// up to [`STEPS`] operators after it were folded into it.
    fn folded(&self) -> Vec<Recipe> {
        let (behind, addend) = self.affines_behind();
        let mut folded = vec![];
        for before in &self.affines_before() {
            for behind in &behind {
                let sides = FoldedSides { before, behind };
                folded.extend(self.constants_with(&sides));
            }
            if let (Some(addend), Some(behind)) = (&addend, behind.last()) {
                let sides = FoldedSides { before, behind };
                folded.extend(self.bias(&sides).and_then(|bias| bias.add(addend)));
            }
        }
        folded
    }

    /// The affine of the operators after the layer, of none to [`STEPS`] of them, and the constant of
    /// an Add after all of them. This constant may differ from place to place.
    fn affines_behind(&self) -> (Vec<Option<Affine>>, Option<Recipe>) {
        let mut affines = vec![None];
        let output = self.at.graph.only_output(self.at.node);
        let Some((mut value, rank)) =
            output.and_then(|value| Some((value, self.at.facts.rank(value)?)))
        else {
            return (affines, None);
        };
        let mut affine = Affine::identity(rank);
        for _ in 0..STEPS {
            let Some((next, step)) = step_behind(&self.at, value) else {
                return (affines, self.addend(value));
            };
            (affine, value) = (affine.then(&step), next);
            affines.push(Some(affine.clone()));
        }
        (affines, None)
    }

    /// The constant of the Add that reads a value. It may differ from place to place. `None` if the
    /// only reader is no Add of a constant.
    fn addend(&self, value: ValueId) -> Option<Recipe> {
        let (reader, slot) = self.at.graph.only_reader(value)?;
        if !self.at.graph.is(reader, "Add") {
            return None;
        }
        let at = At {
            node: reader,
            ..self.at
        };
        let rank = self.at.facts.rank(value)?;
        at.constant(1 - slot).ok()?.align(rank)
    }

    /// The affine of the operators before the layer, of none to [`STEPS`] of them.
    fn affines_before(&self) -> Vec<Option<Affine>> {
        let mut affines = vec![None];
        let operand = self.at.graph.input(self.at.node, 0);
        let Some((mut value, rank)) =
            operand.and_then(|value| Some((value, self.at.facts.rank(value)?)))
        else {
            return affines;
        };
        let mut affine = Affine::identity(rank);
        for _ in 0..STEPS {
            let Some((before, step)) = self.step_before(value) else {
                break;
            };
            (affine, value) = (step.then(&affine), before);
            affines.push(Some(affine.clone()));
        }
        affines
    }

    /// The producer of a value as an affine, and the varying operand of that producer. `None` if
    /// the producer is not an affine.
    fn step_before(&self, value: ValueId) -> Option<(ValueId, Affine)> {
        let (producer, _) = self.at.graph.producer(value)?;
        let at = At {
            node: producer,
            ..self.at
        };
        varying_step(&at)
    }

    /// The weight and the bias after the affines are folded into them, and the constant of an Add in
    /// place of the bias. A parameter that the affines do not change is left out.
    fn constants_with(&self, sides: &FoldedSides) -> Vec<Recipe> {
        if sides.before.is_none() && sides.behind.is_none() {
            return vec![];
        }
        let sum = self.bias(sides);
        let written = sum.as_ref();
        let bias = written.and_then(|bias| self.rules.write_bias(&self.at, bias));
        let parameters = [self.weight(sides), bias, sum];
        parameters.into_iter().flatten().collect()
    }

    /// The weight with the scales. `None` without scales.
    fn weight(&self, sides: &FoldedSides) -> Option<Recipe> {
        let slot = self.rules.slots(&self.at).ok()?.weight?;
        let mut weight = self.at.constant(slot).ok()?;
        let scales = sides.scales();
        for (side, affine) in &scales {
            let scaled = self.rules.scaled(&self.at, &weight, *side, &affine.scale);
            weight = scaled.ok()?;
        }
        (!scales.is_empty()).then_some(weight)
    }

    /// The bias in a shape that broadcasts over the result.
    fn bias(&self, sides: &FoldedSides) -> Option<Recipe> {
        let slots = self.rules.slots(&self.at).ok()?;
        let stored = slots.bias.and_then(|slot| self.at.constant(slot).ok());
        let stored = stored.and_then(|bias| self.rules.read_bias(&self.at, bias).ok());
        let before = sides.before.as_ref();
        let bias = added(stored, before.and_then(|affine| self.image(affine)));
        let Some(behind) = sides.behind else {
            return bias;
        };
        let shift = (!behind.has_no_shift()).then(|| behind.shift.recipe().clone());
        match bias {
            Some(bias) => added(Some(bias.mul(behind.scale.recipe())?), shift),
            None => shift,
        }
    }

    /// The vector that folding the shift of an affine before the layer adds to the bias. `None` if
    /// the affine has no shift, or if the image of the shift under the operator is unknown.
    fn image(&self, affine: &Affine) -> Option<Recipe> {
        if affine.has_no_shift() {
            return None;
        }
        let slot = self.rules.slots(&self.at).ok()?.weight;
        let weight = slot.and_then(|slot| self.at.constant(slot).ok());
        self.rules
            .image(&self.at, weight.as_ref(), 0, &affine.shift)
            .ok()
    }
}

/// The affines that are folded into a layer from both sides.
struct FoldedSides<'a> {
    before: &'a Option<Affine>,
    behind: &'a Option<Affine>,
}

impl<'a> FoldedSides<'a> {
    /// The affines with a scale, with their sides.
    fn scales(&self) -> Vec<(Side, &'a Affine)> {
        let sides = [
            (Side::Operand(0), self.before.as_ref()),
            (Side::Result, self.behind.as_ref()),
        ];
        let affines = sides.into_iter();
        let affines = affines.filter_map(|(side, affine)| Some((side, affine?)));
        affines
            .filter(|(_, affine)| !affine.has_no_scale())
            .collect()
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
