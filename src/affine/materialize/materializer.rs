//! Builds the changes of one plan, with the formulas of their tensors.

use std::collections::BTreeMap;

use crate::affine::Affine;
use crate::affine::item::is_of_batch_norm;
use crate::affine::linear::{Linear, linear};
use crate::affine::materialize::constants::{Changing, FoldedConstants};
use crate::affine::materialize::{Change, NewTensor};
use crate::affine::plan::{Plan, Rewrite};
use crate::affine::recognize::Reset;
use crate::affine::rounding::Rounding;
use crate::affine::rule::{At, Side};
use crate::analysis::Analysis;
use crate::hash::HashMap;
use crate::ir::{Graph, NodeId};
use crate::onnx::operator::Category;
use crate::recipe::{Numbers, Recipe};
use crate::refusal::Reason;
use crate::shape::facts::Facts;

/// The largest number of operators that are followed from a folded constant to a product, in order
/// to find whether the constant is a factor of the product.
const MOVES: usize = 16;

pub(super) struct Materializer<'d> {
    plan: &'d Plan,
    analysis: &'d Analysis<'d>,
    graph: &'d Graph<'d>,
    facts: &'d Facts,
}

impl<'d> Materializer<'d> {
    pub(super) fn new(plan: &'d Plan, analysis: &'d Analysis<'d>) -> Self {
        Materializer {
            plan,
            analysis,
            graph: &analysis.graph,
            facts: &analysis.facts,
        }
    }

    fn at(&self, node: NodeId) -> At<'d> {
        self.analysis.at(node)
    }

    fn rules(&self, node: NodeId) -> Result<&'static dyn Linear, Reason> {
        linear(self.graph.domain_op(node)).ok_or_else(|| self.at(node).not_linear())
    }

    /// The indices of the folds of each operator, in order. Folds on an Add that holds the bias of
    /// an operator count as folds of that operator.
    pub(super) fn folds_by_operator(&self) -> BTreeMap<NodeId, Vec<usize>> {
        let holds: HashMap<NodeId, NodeId> = self
            .plan
            .bias_adds
            .iter()
            .map(|(&linear, &(add, _))| (add, linear))
            .collect();
        let mut units: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        for (index, fold) in self.plan.folds.iter().enumerate() {
            if !matches!(fold.side, Side::Constant(_)) {
                let node = holds.get(&fold.node).copied().unwrap_or(fold.node);
                units.entry(node).or_default().push(index);
            }
        }
        units
    }

    /// The indices of the folds of each constant operand that is itself scaled and shifted.
    pub(super) fn folds_by_constant(&self) -> BTreeMap<(NodeId, usize), Vec<usize>> {
        let mut operands: BTreeMap<(NodeId, usize), Vec<usize>> = BTreeMap::new();
        for (index, fold) in self.plan.folds.iter().enumerate() {
            if let Side::Constant(slot) = fold.side {
                operands.entry((fold.node, slot)).or_default().push(index);
            }
        }
        operands
    }

    pub(super) fn sites(&self, folds: &[usize]) -> Vec<usize> {
        let mut sites: Vec<usize> = folds
            .iter()
            .map(|&fold| self.plan.folds[fold].site)
            .collect();
        sites.sort_unstable();
        sites.dedup();
        sites
    }

    pub(super) fn operator(&self, node: NodeId, folds: &[usize]) -> Result<Vec<Change>, Reason> {
        let (at, rules) = (self.at(node), self.rules(node)?);
        let mut folded = self.unchanged(node)?;
        for &index in folds {
            let fold = &self.plan.folds[index];
            let beside = match fold.side {
                Side::Rows { of, .. } if of != node => Some(self.unchanged(of)?),
                _ => None,
            };
            folded.take(&at, rules, fold, beside.as_ref())?;
        }
        self.changes(&at, rules, &folded)
    }

    /// The constants of an operator before any fold.
    fn unchanged(&self, node: NodeId) -> Result<FoldedConstants, Reason> {
        let at = self.at(node);
        let slots = self.rules(node)?.slots(&at)?;
        let weight = slots.weight.map(|slot| at.constant(slot));
        let own = slots
            .bias
            .filter(|&slot| self.graph.input(node, slot).is_some());
        let bias = own.map(|slot| self.read_bias(node, slot));
        let behind = self.plan.bias_adds.get(&node);
        let added = behind.map(|&(add, slot)| self.read_bias(add, slot));
        Ok(FoldedConstants {
            weight: Changing::new(weight.transpose()?),
            bias: Changing::new(bias.transpose()?),
            added: Changing::new(added.transpose()?),
        })
    }

    /// Reads the constant in the bias slot of a node, in a shape that broadcasts over the result.
    fn read_bias(&self, node: NodeId, slot: usize) -> Result<Recipe, Reason> {
        let at = self.at(node);
        self.rules(node)?.read_bias(&at, at.constant(slot)?)
    }

    /// Builds the changes that write the folded constants of an operator.
    fn changes(
        &self,
        at: &At,
        rules: &dyn Linear,
        folded: &FoldedConstants,
    ) -> Result<Vec<Change>, Reason> {
        let (node, slots, mut changes) = (at.node, rules.slots(at)?, vec![]);
        if let Some((slot, weight)) = slots.weight.zip(folded.weight.changed()) {
            let rounding = Rounding::Weight(at.constant(slot)?, rules.contracted(at)?);
            changes.push(self.input(node, slot, weight, rounding)?);
        }
        let Some(bias) = folded.bias.changed() else {
            changes.extend(self.changed_summand(node, folded)?);
            return Ok(changes);
        };
        if let Some(slot) = slots.bias
            && let Some(written) = rules.write_bias(at, bias)
        {
            changes.extend(self.own_bias(at, slot, written)?);
            changes.extend(self.changed_summand(node, folded)?);
            return Ok(changes);
        }
        // The bias input cannot hold the bias, so it is cleared, and the Add after the node holds
        // the whole bias.
        changes.extend(slots.bias.map(|slot| Change::NoInput(node, slot)));
        changes.extend(self.bias_behind(at, bias, folded.added.now.as_ref())?);
        Ok(changes)
    }

    /// Builds the change of the Add after an operator, if its constant changed.
    fn changed_summand(
        &self,
        node: NodeId,
        folded: &FoldedConstants,
    ) -> Result<Option<Change>, Reason> {
        let added = folded.added.changed();
        added.map(|added| self.added(node, added)).transpose()
    }

    /// Builds the changes that write a bias into its slot.
    fn own_bias(&self, at: &At, slot: usize, bias: Recipe) -> Result<Vec<Change>, Reason> {
        let node = at.node;
        let mut changes = vec![match self.graph.input(node, slot) {
            Some(_) => self.input(node, slot, &bias, Rounding::Sum)?,
            None => Change::Input(node, slot, self.bias(at, bias)),
        }];
        let is_gemm = matches!(
            at.graph.domain_op(node),
            ("", "Gemm") | ("com.microsoft", "FusedGemm")
        );
        if is_gemm && at.attr_float("beta", 1.0)? != 1.0 {
            changes.push(Change::Float(node, "beta", 1.0));
        }
        Ok(changes)
    }

    /// Builds the changes that write a bias into the Add after an operator, or into a new Add.
    fn bias_behind(
        &self,
        at: &At,
        bias: &Recipe,
        added: Option<&Recipe>,
    ) -> Result<Vec<Change>, Reason> {
        let mut changes = vec![];
        if let Some(added) = added {
            let whole = added.add(bias).ok_or(Reason::UnknownShape)?;
            if let Ok(change) = self.added(at.node, &whole) {
                return Ok(vec![change]);
            }
            // The Add is part of an activation such as BiasGelu, whose bias must be equal at every
            // place. This bias differs from place to place, so it needs an Add of its own.
            changes.push(self.added(at.node, added)?);
        }
        let tensor = self.bias(at, plain(bias, 1)?);
        changes.push(Change::AddBehind(at.node, tensor));
        Ok(changes)
    }

    /// Builds the change of a constant input. The new constant has the rank of the old one or, for
    /// an element-wise operator, the rank that runs fastest ([`plain`]).
    fn input(
        &self,
        node: NodeId,
        slot: usize,
        recipe: &Recipe,
        rounding: Rounding,
    ) -> Result<Change, Reason> {
        let value = self.at(node).input(slot)?;
        let rank = self.facts.rank(value).unwrap_or(recipe.rank());
        let by_element = self.graph.category(node) == Some(Category::Arithmetic);
        let tensor = NewTensor {
            wish: format!("{}_folded", self.graph.value_name(value)),
            replaces: Some(value),
            data_type: self.facts.data_type(value),
            recipe: if by_element && rank > 1 {
                plain(recipe, rank)?
            } else {
                trimmed(recipe, rank)?
            },
            rounding,
        };
        Ok(Change::Input(node, slot, tensor))
    }

    /// Builds the change of the constant of the Add after a node.
    fn added(&self, node: NodeId, added: &Recipe) -> Result<Change, Reason> {
        let &(add, slot) = self.plan.bias_adds.get(&node).ok_or(Reason::NotConstant)?;
        let written = self
            .rules(add)?
            .write_bias(&self.at(add), added)
            .ok_or(Reason::UnknownShape)?;
        self.input(add, slot, &written, Rounding::Sum)
    }

    /// Builds the bias of a node that has none. Its element type is that of the node's result or,
    /// if that type is unknown, of an input of the node.
    fn bias(&self, at: &At, bias: Recipe) -> NewTensor {
        let mut values = at
            .graph
            .outputs(at.node)
            .iter()
            .chain(at.graph.inputs(at.node))
            .flatten();
        NewTensor {
            wish: format!("{}_bias", at.graph.name(at.node)),
            replaces: None,
            data_type: values.find_map(|&value| self.facts.data_type(value)),
            recipe: bias,
            rounding: Rounding::Sum,
        }
    }

    /// Builds the changes of a constant operand that is itself scaled and shifted.
    pub(super) fn constant(
        &self,
        node: NodeId,
        slot: usize,
        folds: &[usize],
    ) -> Result<Vec<Change>, Reason> {
        let before = self.at(node).constant(slot)?;
        let (mut recipe, mut contracted) = (before.clone(), (0..before.rank()).collect::<Vec<_>>());
        for &index in folds {
            let Affine { scale, shift } = &self.plan.folds[index].affine;
            let carried = recipe
                .mul(scale.recipe())
                .and_then(|scaled| scaled.add(shift.recipe()));
            recipe = carried.ok_or(Reason::WrongAxis)?;
            contracted.retain(|&axis| scale.shape()[axis] != 1 && shift.are_all(0.0));
        }
        let rounding = match contracted.is_empty() {
            _ if self.graph.is(node, "Einsum") => Rounding::Factor,
            false if self.is_factor(node) => Rounding::Weight(before, contracted),
            // Other operators return the constant as a value that is not a weight.
            _ => Rounding::Sum,
        };
        Ok(vec![self.input(node, slot, &recipe, rounding)?])
    }

    /// Whether the result of a node is an operand of a product, possibly after movements and
    /// selections. An example is weights that are picked from a table.
    fn is_factor(&self, node: NodeId) -> bool {
        let mut value = self.graph.only_output(node);
        for _ in 0..MOVES {
            let Some((node, _)) = value.and_then(|value| self.graph.only_reader(value)) else {
                return false;
            };
            match self.graph.category(node) {
                Some(category) if category.is_product() => return true,
                Some(Category::Movement | Category::Selection) => {
                    value = self.graph.only_output(node)
                }
                _ => return false,
            }
        }
        false
    }

    /// Builds the change that sets a parameter to its neutral value, or removes the input. `None`
    /// if the node has no such input.
    pub(super) fn reset(&self, reset: &Reset) -> Result<Option<Change>, Reason> {
        let Reset {
            node,
            slot,
            neutral,
            optional,
            ..
        } = *reset;
        if self.graph.input(node, slot).is_none() {
            return Ok(None);
        }
        // Only the last input is removed, because some runtimes cannot read an empty name before
        // another input.
        let is_last = self.graph.inputs(node).iter().rposition(Option::is_some) == Some(slot);
        if optional && is_last && neutral == 0.0 {
            return Ok(Some(Change::NoInput(node, slot)));
        }
        let there = self.at(node).constant(slot)?;
        self.parameter(reset, &Recipe::filled(neutral, there.shape()))
            .map(Some)
    }

    /// Builds the change of a parameter of a node.
    fn parameter(&self, reset: &Reset, recipe: &Recipe) -> Result<Change, Reason> {
        let Reset {
            node,
            slot,
            neutral,
            ..
        } = *reset;
        if self.graph.input(node, slot).is_none() {
            return Ok(Change::Input(
                node,
                slot,
                self.bias(&self.at(node), recipe.clone()),
            ));
        }
        let rounding = if neutral == 1.0 {
            Rounding::Factor
        } else {
            Rounding::Sum
        };
        self.input(node, slot, recipe, rounding)
    }

    /// Builds the changes that write a part again with its new affine. A part without nodes gets
    /// new parameters. Any other part becomes the fewest operators: the BatchNormalization that it
    /// was, a Mul, an Add, or a Mul and an Add.
    pub(super) fn rewrite(&self, rewrite: &Rewrite) -> Result<Vec<Change>, Reason> {
        let part = &rewrite.part;
        if part.nodes.is_empty() {
            let changes = part
                .resets
                .iter()
                .map(|reset| self.rewritten_parameter(reset, &part.affine).transpose());
            return changes.flatten().collect();
        }
        if is_of_batch_norm(&part.affine)
            && let Some(node) = part.batch_norm(self.graph, self.facts)
        {
            return self.batch_norm(node, &part.affine);
        }
        let Affine { scale, shift } = &part.affine;
        let mut made = vec![];
        if !part.affine.has_no_scale() {
            let tensor = self.operand(rewrite, "mul", scale.recipe(), Rounding::Factor)?;
            made.push(("Mul", tensor));
        }
        if !part.affine.has_no_shift() {
            let tensor = self.operand(rewrite, "add", shift.recipe(), Rounding::Sum)?;
            made.push(("Add", tensor));
        }
        Ok(vec![Change::Chain {
            nodes: part.nodes.clone(),
            input: part.input,
            output: part.output,
            made,
        }])
    }

    /// Builds the constant operand of a new Mul or Add.
    fn operand(
        &self,
        rewrite: &Rewrite,
        op: &str,
        recipe: &Recipe,
        rounding: Rounding,
    ) -> Result<NewTensor, Reason> {
        Ok(NewTensor {
            wish: format!("{}_{op}", self.graph.value_name(rewrite.part.output)),
            replaces: None,
            data_type: rewrite.data_type,
            recipe: plain(recipe, 1)?,
            rounding,
        })
    }

    /// Writes the affine `s·x + t` into a BatchNormalization, and keeps its mean `μ` and variance
    /// `σ²`: `γ = s·√(σ²+ε)` and `β = t + s·μ`.
    ///
    /// If a new `γ` is more than twice the old one, the input has become smaller, and subtracting a
    /// mean that is large compared with the input would lose digits. Then the mean is replaced by
    /// `μ = 0`, and `β = t`.
    fn batch_norm(&self, node: NodeId, affine: &Affine) -> Result<Vec<Change>, Reason> {
        let at = self.at(node);
        let (before, mean, var) = (at.numbers(1)?, at.numbers(3)?, at.numbers(4)?);
        let deviation = (&var + &Numbers::number(at.attr_float("epsilon", 1e-5)?, 1)).sqrt();
        let (scale, shift) = (flat(&affine.scale)?, flat(&affine.shift)?);
        let gamma = &scale * &deviation;
        let mut factors = gamma.iter().zip(before.iter());
        let grows = factors.any(|(now, then)| now.abs() > 2.0 * then.abs());
        let beta = if grows {
            shift
        } else {
            &shift + &(&scale * &mean)
        };
        let mut changes = vec![
            self.input(node, 1, gamma.recipe(), Rounding::Factor)?,
            self.input(node, 2, beta.recipe(), Rounding::Sum)?,
        ];
        if grows {
            let zeros = Recipe::filled(0.0, mean.shape());
            changes.push(self.input(node, 3, &zeros, Rounding::Sum)?);
        }
        Ok(changes)
    }

    fn rewritten_parameter(
        &self,
        reset: &Reset,
        affine: &Affine,
    ) -> Result<Option<Change>, Reason> {
        let numbers = if reset.neutral == 1.0 {
            &affine.scale
        } else {
            &affine.shift
        };
        if numbers.iter().all(|&v| v == reset.neutral) {
            return self.reset(reset);
        }
        let there = self.at(reset.node).extents(reset.like)?;
        let flat = numbers
            .recipe()
            .reshape(&[numbers.len()])
            .ok_or(Reason::UnknownShape)?;
        let flat = flat
            .expand(&[there.iter().product()])
            .ok_or(Reason::WrongAxis)?;
        self.parameter(reset, &flat.reshape(&there).ok_or(Reason::UnknownShape)?)
            .map(Some)
    }
}

/// Reshapes numbers to a vector.
fn flat(numbers: &Numbers) -> Result<Numbers, Reason> {
    numbers.reshape(&[numbers.len()]).ok_or(Reason::WrongAxis)
}

/// Gives the operand of a Mul or an Add the shape that engines run fastest. An operand that varies
/// only along the last axis gets as few axes as possible, but at least `rank`. Any other operand
/// keeps all axes of the value, because tract takes ten times as long to multiply an image by `[C,
/// 1, 1]` as by `[1, C, 1, 1]`.
fn plain(recipe: &Recipe, rank: usize) -> Result<Recipe, Reason> {
    let is_along_the_last = recipe
        .shape()
        .iter()
        .rev()
        .skip(1)
        .all(|&extent| extent == 1);
    if is_along_the_last {
        trimmed(recipe, rank)
    } else {
        Ok(recipe.clone())
    }
}

/// Removes leading axes of extent 1 until `rank` axes are left. Broadcasting adds these axes again,
/// and engines recognize a bias by its single axis.
fn trimmed(recipe: &Recipe, rank: usize) -> Result<Recipe, Reason> {
    let leading = recipe
        .shape()
        .iter()
        .take_while(|&&extent| extent == 1)
        .count();
    let leading = leading.min(recipe.rank().saturating_sub(rank));
    recipe
        .reshape(&recipe.shape()[leading..])
        .ok_or(Reason::UnknownShape)
}
