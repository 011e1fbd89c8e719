//! Materialization: the edits of a plan, with every new tensor as a formula.
//!
//! For `y = W·x + b`, a fold of `s·x + t` on the operand makes `W' = W·diag(s)` and `b' = b + W·t`, and one on
//! the result makes `W' = diag(s)·W` and `b' = s·b + t`: Algorithm 1 of the UN paper, once for each fold that
//! an operator takes. No weight is read for that.

use std::collections::BTreeMap;

use crate::affine::Affine;
use crate::affine::fold::{At, Fold, Side};
use crate::affine::item::is_of_batch_norm;
use crate::affine::linear::{Linear, linear};
use crate::affine::plan::{Plan, Rewrite};
use crate::affine::recognize::{Replacement, Reset};
use crate::affine::rounding::Rounding;
use crate::analysis::Analysis;
use crate::hash::HashMap;
use crate::ir::builder::Maker;
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::operator::Category;
use crate::onnx::tensor::DataType;
use crate::recipe::{Numbers, Recipe};
use crate::refusal::{Reason, Refusal};
use crate::shape::facts::Facts;

/// The largest number of movements between a table and the Mul of a selected row.
const MOVES: usize = 16;

/// A tensor that the result has and the model has not.
#[derive(Debug, Clone)]
pub struct NewTensor {
    /// Its name, if nothing else has it.
    pub wish: String,
    /// The constant that it replaces. Equal changes of one constant are stored once.
    pub replaces: Option<ValueId>,
    /// Its element type; `None` where nothing tells.
    pub data_type: Option<DataType>,
    /// How it is computed.
    pub recipe: Recipe,
    /// The loss allowed when it is stored.
    pub rounding: Rounding,
}

/// One change of the graph.
#[derive(Debug, Clone)]
pub enum Change {
    /// A node reads a new tensor.
    Input(NodeId, usize, NewTensor),
    /// An optional input is left out.
    NoInput(NodeId, usize),
    /// An attribute gets another value.
    Float(NodeId, &'static str, f32),
    /// An Add behind a node, of a new tensor to all that the node makes.
    AddBehind(NodeId, NewTensor),
    /// A Mul of a value by a new tensor. Only the named readers read the product.
    Mul {
        /// The value.
        value: ValueId,
        /// The readers of the product, as nodes and inputs.
        readers: Vec<(NodeId, usize)>,
        /// Whether the caller has the product under the name of the value.
        is_output: bool,
        /// The factor.
        tensor: NewTensor,
    },
    /// Nodes become others, each with one new tensor, from one value to another; none where that is nothing to do.
    Chain {
        /// The nodes that go.
        nodes: Vec<NodeId>,
        /// The input of the first new node.
        input: ValueId,
        /// The output of the last new node.
        output: ValueId,
        /// Their operators.
        made: Vec<(&'static str, NewTensor)>,
    },
    /// Nodes become others that compute the same with less.
    Replace(Replacement),
}

impl Change {
    /// The tensors that take the place of others, or stand behind them.
    pub fn tensors(&self) -> Vec<&NewTensor> {
        match self {
            Change::Input(_, _, tensor)
            | Change::AddBehind(_, tensor)
            | Change::Mul { tensor, .. } => {
                vec![tensor]
            }
            Change::Chain { made, .. } => made.iter().map(|(_, tensor)| tensor).collect(),
            Change::NoInput(..) | Change::Float(..) | Change::Replace(_) => vec![],
        }
    }

    /// The nodes that change, or go.
    pub fn nodes(&self) -> Vec<NodeId> {
        match self {
            Change::Input(node, ..) | Change::NoInput(node, _) => vec![*node],
            Change::Float(node, ..) | Change::AddBehind(node, _) => vec![*node],
            Change::Chain { nodes, .. } => nodes.clone(),
            Change::Replace(replacement) => replacement.nodes.clone(),
            Change::Mul { readers, .. } => readers.iter().map(|&(node, _)| node).collect(),
        }
    }
}

/// A change, and on whose behalf it is made.
#[derive(Debug, Clone)]
pub struct Edit {
    /// The sites whose affines meet in it.
    pub sites: Vec<usize>,
    /// The name of the node or value that it is about.
    pub at: String,
    /// The change.
    pub change: Change,
}

impl Edit {
    /// An edit without a site: nodes that replace others, of which this is the first.
    pub fn replacing(graph: &Graph, first: NodeId, replacement: Replacement) -> Self {
        Edit {
            sites: vec![],
            at: graph.name(first).to_owned(),
            change: Change::Replace(replacement),
        }
    }
}

/// Writes each node in another form, if there is one for it and for the only value that it makes, which is no constant.
pub fn written_anew<'m>(
    analysis: &'m Analysis,
    form: impl Fn(NodeId, ValueId) -> Option<Maker<'m>>,
) -> Vec<Edit> {
    let graph = &analysis.graph;
    let edit = |&node: &NodeId| {
        let output = graph
            .only_output(node)
            .filter(|&output| !analysis.constants.is_constant(output))?;
        let (made, constants) = form(node, output)?.finish(graph.value_name(output));
        Some(Edit::replacing(
            graph,
            node,
            Replacement {
                nodes: vec![node],
                made,
                constants,
            },
        ))
    };
    graph.order().iter().filter_map(edit).collect()
}

/// An edit that cannot be written as planned.
#[derive(Debug, Clone)]
pub struct Failed {
    /// The sites on whose behalf it was to be done.
    pub sites: Vec<usize>,
    /// The refusal.
    pub refusal: Refusal,
}

/// The edits of a plan in order; its removals follow.
///
/// # Errors
/// [`Failed`] for each change that has no formula.
pub fn draw(plan: &Plan, analysis: &Analysis) -> Result<Vec<Edit>, Vec<Failed>> {
    let graph = &*analysis.graph;
    let drawing = Materializer {
        plan,
        analysis,
        graph,
        facts: &analysis.facts,
    };
    // A weight and a bias for most; what does not come takes no memory.
    let at_most =
        plan.folds.len() + plan.resets.len() + plan.replacements.len() + plan.rewrites.len();
    let (mut edits, mut failed) = (Vec::with_capacity(2 * at_most), vec![]);
    let mut add = |sites: Vec<usize>, at: &str, changes: Result<Vec<Change>, Reason>| match changes
    {
        Ok(changes) => {
            let edit = |change| Edit {
                sites: sites.clone(),
                at: at.to_owned(),
                change,
            };
            edits.extend(changes.into_iter().map(edit));
        }
        Err(reason) => failed.push(Failed {
            sites,
            refusal: Refusal::new(reason, at),
        }),
    };
    for (node, folds) in drawing.units() {
        add(
            drawing.sites(&folds),
            graph.name(node),
            drawing.unit(node, &folds),
        );
    }
    for ((node, slot), folds) in drawing.operands() {
        add(
            drawing.sites(&folds),
            graph.name(node),
            drawing.constant(node, slot, &folds),
        );
    }
    for (reset, site) in &plan.resets {
        add(
            vec![*site],
            graph.name(reset.node),
            drawing.reset(reset).map(Vec::from_iter),
        );
    }
    for (replacement, site) in &plan.replacements {
        let at = replacement
            .nodes
            .first()
            .map_or("", |&node| graph.name(node));
        add(
            vec![*site],
            at,
            Ok(vec![Change::Replace(replacement.clone())]),
        );
    }
    for rewrite in &plan.rewrites {
        add(
            vec![rewrite.site],
            graph.value_name(rewrite.part.output),
            drawing.rewrite(rewrite),
        );
    }
    if failed.is_empty() {
        Ok(edits)
    } else {
        Err(failed)
    }
}

struct Materializer<'d> {
    plan: &'d Plan,
    analysis: &'d Analysis<'d>,
    graph: &'d Graph<'d>,
    facts: &'d Facts,
}

/// A constant of an operator while folds change it.
#[derive(Default)]
struct Changing {
    now: Option<Recipe>,
    changed: bool,
}

impl Changing {
    fn new(recipe: Option<Recipe>) -> Self {
        Changing {
            now: recipe,
            changed: false,
        }
    }

    fn set(&mut self, recipe: Option<Recipe>) -> Result<(), Reason> {
        self.now = Some(recipe.ok_or(Reason::WrongAxis)?);
        self.changed = true;
        Ok(())
    }

    fn changed(&self) -> Option<&Recipe> {
        self.now.as_ref().filter(|_| self.changed)
    }
}

/// A linear operator's constants while they change.
struct FoldedConstants {
    weight: Changing,
    /// The operator's own summand.
    bias: Changing,
    /// The summand of the Add behind it.
    added: Changing,
}

impl<'d> Materializer<'d> {
    fn at(&self, node: NodeId) -> At<'d> {
        self.analysis.at(node)
    }

    fn rules(&self, node: NodeId) -> Result<&'static dyn Linear, Reason> {
        linear(self.graph.domain_op(node)).ok_or_else(|| self.at(node).not_linear())
    }

    /// The folds of each operator, in order; those of an Add that holds its bias are its own.
    fn units(&self) -> BTreeMap<NodeId, Vec<usize>> {
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

    /// The folds of each constant that carries affines itself.
    fn operands(&self) -> BTreeMap<(NodeId, usize), Vec<usize>> {
        let mut operands: BTreeMap<(NodeId, usize), Vec<usize>> = BTreeMap::new();
        for (index, fold) in self.plan.folds.iter().enumerate() {
            if let Side::Constant(slot) = fold.side {
                operands.entry((fold.node, slot)).or_default().push(index);
            }
        }
        operands
    }

    fn sites(&self, folds: &[usize]) -> Vec<usize> {
        let mut sites: Vec<usize> = folds
            .iter()
            .map(|&fold| self.plan.folds[fold].site)
            .collect();
        sites.sort_unstable();
        sites.dedup();
        sites
    }

    fn unit(&self, node: NodeId, folds: &[usize]) -> Result<Vec<Change>, Reason> {
        let (at, rules) = (self.at(node), self.rules(node)?);
        let mut unit = self.unchanged(node)?;
        for &index in folds {
            let fold = &self.plan.folds[index];
            let beside = match fold.side {
                Side::Rows { of, .. } if of != node => Some(self.unchanged(of)?),
                _ => None,
            };
            unit.take(&at, rules, fold, beside.as_ref())?;
        }
        self.changes(&at, rules, &unit)
    }

    /// The unchanged constants of an operator.
    fn unchanged(&self, node: NodeId) -> Result<FoldedConstants, Reason> {
        let (at, rules) = (self.at(node), self.rules(node)?);
        let slots = rules.slots(&at)?;
        let read = |node: NodeId, slot| {
            let at = self.at(node);
            self.rules(node)?.read_bias(&at, at.constant(slot)?)
        };
        let own = slots
            .bias
            .filter(|&slot| self.graph.input(node, slot).is_some());
        Ok(FoldedConstants {
            weight: Changing::new(slots.weight.map(|slot| at.constant(slot)).transpose()?),
            bias: Changing::new(own.map(|slot| read(node, slot)).transpose()?),
            added: Changing::new(
                self.plan
                    .bias_adds
                    .get(&node)
                    .map(|&(add, slot)| read(add, slot))
                    .transpose()?,
            ),
        })
    }

    /// Where the new constants of an operator go.
    fn changes(
        &self,
        at: &At,
        rules: &dyn Linear,
        unit: &FoldedConstants,
    ) -> Result<Vec<Change>, Reason> {
        let (node, slots, mut changes) = (at.node, rules.slots(at)?, vec![]);
        if let Some((slot, weight)) = slots.weight.zip(unit.weight.changed()) {
            let rounding = Rounding::Weight(at.constant(slot)?, rules.contracted(at)?);
            changes.push(self.input(node, slot, weight, rounding)?);
        }
        let Some(bias) = unit.bias.changed() else {
            changes.extend(
                unit.added
                    .changed()
                    .map(|added| self.added(node, added))
                    .transpose()?,
            );
            return Ok(changes);
        };
        if let Some((slot, written)) = slots
            .bias
            .and_then(|slot| Some((slot, rules.write_bias(at, bias)?)))
        {
            changes.push(match self.graph.input(node, slot) {
                Some(_) => self.input(node, slot, &written, Rounding::Sum)?,
                None => Change::Input(node, slot, self.bias(at, written)),
            });
            let is_gemm = matches!(
                at.graph.domain_op(node),
                ("", "Gemm") | ("com.microsoft", "FusedGemm")
            );
            if is_gemm && at.attr_float("beta", 1.0)? != 1.0 {
                changes.push(Change::Float(node, "beta", 1.0));
            }
            changes.extend(
                unit.added
                    .changed()
                    .map(|added| self.added(node, added))
                    .transpose()?,
            );
            return Ok(changes);
        }
        // No place for it in the node: what its own slot held is part of it now.
        changes.extend(slots.bias.map(|slot| Change::NoInput(node, slot)));
        if let Some(added) = &unit.added.now {
            let whole = added.add(bias).ok_or(Reason::UnknownShape)?;
            if let Ok(change) = self.added(node, &whole) {
                changes.push(change);
                return Ok(changes);
            }
            // An activation's own bias is the same at every place, and this one is not.
            changes.push(self.added(node, added)?);
        }
        changes.push(Change::AddBehind(node, self.bias(at, plain(bias, 1)?)));
        Ok(changes)
    }

    /// Another number for an input of a node, with the axes that it had, or those that an operator by element wants.
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

    /// The constant of the Add behind a node.
    fn added(&self, node: NodeId, added: &Recipe) -> Result<Change, Reason> {
        let &(add, slot) = self.plan.bias_adds.get(&node).ok_or(Reason::NotConstant)?;
        let written = self
            .rules(add)?
            .write_bias(&self.at(add), added)
            .ok_or(Reason::UnknownShape)?;
        self.input(add, slot, &written, Rounding::Sum)
    }

    /// A bias for a node that has none. Its element type is that of the node's result, or else of its inputs.
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

    /// A constant operand that carries the affines itself.
    fn constant(&self, node: NodeId, slot: usize, folds: &[usize]) -> Result<Vec<Change>, Reason> {
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
            // Other operators pass their input on.
            _ => Rounding::Sum,
        };
        Ok(vec![self.input(node, slot, &recipe, rounding)?])
    }

    /// Whether what a node makes is an operand of a product, as the weights are that are picked from a table.
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

    /// A parameter that is neutral from now on; `None` where it is not there.
    fn reset(&self, reset: &Reset) -> Result<Option<Change>, Reason> {
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
        // An empty name before another input is more than some runtimes read.
        let is_last = self.graph.inputs(node).iter().rposition(Option::is_some) == Some(slot);
        if optional && is_last && neutral == 0.0 {
            return Ok(Some(Change::NoInput(node, slot)));
        }
        let there = self.at(node).constant(slot)?;
        self.parameter(reset, &Recipe::filled(neutral, there.shape()))
            .map(Some)
    }

    /// A parameter inside a node, written anew.
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

    /// A part that took another in, as the fewest operators: a BatchNormalization that was there, a Mul, an Add, or both.
    fn rewrite(&self, rewrite: &Rewrite) -> Result<Vec<Change>, Reason> {
        let part = &rewrite.part;
        if part.nodes.is_empty() {
            let changes = part
                .resets
                .iter()
                .map(|reset| self.rewritten_parameter(reset, &part.affine).transpose());
            return changes.flatten().collect();
        }
        if let Some(node) = part
            .batch_norm(self.graph, self.facts)
            .filter(|_| is_of_batch_norm(&part.affine))
        {
            return self.batch_norm(node, &part.affine);
        }
        let output = self.graph.value_name(part.output);
        let tensor = |op: &str, recipe: &Recipe, rounding| {
            Ok(NewTensor {
                wish: format!("{output}_{op}"),
                replaces: None,
                data_type: rewrite.data_type,
                recipe: plain(recipe, 1)?,
                rounding,
            })
        };
        let Affine { scale, shift } = &part.affine;
        let mut made = vec![];
        if !part.affine.has_no_scale() {
            made.push(("Mul", tensor("mul", scale.recipe(), Rounding::Factor)?));
        }
        if !part.affine.has_no_shift() {
            made.push(("Add", tensor("add", shift.recipe(), Rounding::Sum)?));
        }
        Ok(vec![Change::Chain {
            nodes: part.nodes.clone(),
            input: part.input,
            output: part.output,
            made,
        }])
    }

    /// A BatchNormalization with the statistics that it has, as another affine: `γ = s·√(σ²+ε)`, `β = t + s·μ`. One that
    /// multiplies by far more than before reads less, beside which its mean would cost digits: there `β = t` and `μ = 0`.
    fn batch_norm(
        &self,
        node: NodeId,
        Affine { scale, shift }: &Affine,
    ) -> Result<Vec<Change>, Reason> {
        let at = self.at(node);
        let (before, mean, var) = (at.numbers(1)?, at.numbers(3)?, at.numbers(4)?);
        let deviation = (&var + &Numbers::number(at.attr_float("epsilon", 1e-5)?, 1)).sqrt();
        let along = |numbers: &Numbers| numbers.reshape(&[numbers.len()]).ok_or(Reason::WrongAxis);
        let (scale, shift) = (along(scale)?, along(shift)?);
        let gamma = &scale * &deviation;
        let grows = |(now, then): (&f64, &f64)| now.abs() > 2.0 * then.abs();
        let (beta, none) = match gamma.iter().zip(before.iter()).any(grows) {
            true => (shift, Some(Recipe::filled(0.0, mean.shape()))),
            false => (&shift + &(&scale * &mean), None),
        };
        let mut changes = vec![
            self.input(node, 1, gamma.recipe(), Rounding::Factor)?,
            self.input(node, 2, beta.recipe(), Rounding::Sum)?,
        ];
        changes.extend(
            none.map(|none| self.input(node, 3, &none, Rounding::Sum))
                .transpose()?,
        );
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

impl FoldedConstants {
    /// Adds one fold: the operator with its earlier folds, and the affine before or behind it. A
    /// fold of rows takes the rows of the layer `beside`, or else of the operator itself.
    fn take(
        &mut self,
        at: &At,
        rules: &dyn Linear,
        fold: &Fold,
        beside: Option<&FoldedConstants>,
    ) -> Result<(), Reason> {
        let Affine { scale, shift } = &fold.affine;
        let shifts = !fold.affine.has_no_shift();
        let scales = !fold.affine.has_no_scale();
        if let Side::Rows { distance, .. } = fold.side {
            return self.take_rows(&rules.contracted(at)?, distance, &fold.affine, beside);
        }
        let is_result = matches!(fold.side, Side::Result);
        // A fold on the Add behind: a scale of its result reaches the operator as a fold of its own.
        if fold.node != at.node {
            let added = self.added.now.clone().ok_or(Reason::NotConstant)?;
            let scaled = if is_result {
                added.mul(scale.recipe())
            } else {
                Some(added)
            };
            return self
                .added
                .set(scaled.and_then(|scaled| scaled.add(shift.recipe())));
        }
        if let Side::Operand(operand) = fold.side
            && shifts
        {
            let image = rules.image(at, self.weight.now.as_ref(), operand, shift)?;
            let bias = self.bias.now.as_ref();
            self.bias
                .set(bias.map_or(Some(image.clone()), |bias| bias.add(&image)))?;
        }
        if scales && (self.weight.now.is_some() || !is_result) {
            let weight = self.weight.now.as_ref().ok_or(Reason::NotConstant)?;
            let scaled = rules.scaled(at, weight, fold.side, scale)?;
            if scaled.id() != weight.id() {
                self.weight.set(Some(scaled))?;
            }
        }
        if is_result && (self.bias.now.is_some() || shifts) {
            let bias = self
                .bias
                .now
                .clone()
                .unwrap_or_else(|| Recipe::number(0.0, shift.ndim()));
            let scaled = bias.mul(scale.recipe());
            self.bias
                .set(scaled.and_then(|scaled| scaled.add(shift.recipe())))?;
        }
        Ok(())
    }

    /// Adds rows of the operator, or of one beside it, to others, times a number for each: see [`crate::affine::propagate::modulation`].
    fn take_rows(
        &mut self,
        contracted: &[usize],
        distance: i64,
        Affine { scale, shift }: &Affine,
        beside: Option<&FoldedConstants>,
    ) -> Result<(), Reason> {
        let count = scale.len();
        let factor = scale.recipe().reshape(&[count]).ok_or(Reason::WrongAxis)?;
        let further = |row: usize| {
            let row = i64::try_from(row).ok()?.checked_add(distance)?;
            usize::try_from(row).ok().filter(|&row| row < count)
        };
        // A recipe with a number for each row along an axis.
        let moved = |recipe: &Recipe, axis: usize| {
            let mut shape = vec![1; recipe.rank()];
            shape[axis] = count;
            recipe
                .pick(axis, (0..count).map(further))?
                .mul(&factor.reshape(&shape)?)
        };
        let along_the_last = |recipe: &Recipe| {
            let mut shape = recipe.shape().to_vec();
            *shape.last_mut()? = count;
            recipe.expand(&shape)
        };
        let weight = self.weight.now.as_ref().ok_or(Reason::NotConstant)?;
        let axis = (0..weight.rank())
            .find(|axis| !contracted.contains(axis))
            .ok_or(Reason::WrongAxis)?;
        let from = beside
            .and_then(|beside| beside.weight.now.as_ref())
            .unwrap_or(weight);
        let whole = weight.shape()[axis] == count && from.shape() == weight.shape();
        let weight = whole.then(|| weight.add(&moved(from, axis)?)).flatten();
        self.weight.set(weight)?;
        let mut shifts = vec![];
        match beside {
            Some(beside) => {
                for bias in [&beside.bias.now, &beside.added.now].into_iter().flatten() {
                    let moved = along_the_last(bias).and_then(|bias| moved(&bias, bias.rank() - 1));
                    shifts.push(moved.ok_or(Reason::WrongAxis)?);
                }
            }
            None => {
                for bias in [&mut self.bias, &mut self.added] {
                    let Some(now) = &bias.now else { continue };
                    let mixed =
                        along_the_last(now).and_then(|now| now.add(&moved(&now, now.rank() - 1)?));
                    bias.set(mixed)?;
                }
            }
        }
        if !shift.are_all(0.0) {
            shifts.push(shift.recipe().clone());
        }
        for shift in shifts {
            let bias = if self.added.now.is_some() {
                &mut self.added
            } else {
                &mut self.bias
            };
            let now = bias
                .now
                .clone()
                .unwrap_or_else(|| Recipe::number(0.0, shift.rank()));
            bias.set(now.add(&shift))?;
        }
        Ok(())
    }
}

/// The array of a Mul or an Add in the shape that engines run fastest: along the last axis with
/// that axis alone, or as few as possible, and else with all axes of the value. tract takes ten
/// times as long to multiply an image by `[C, 1, 1]` as by `[1, C, 1, 1]`.
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

/// Without the leading axes of extent 1 beyond `rank`. Broadcasting adds them again, and engines know a bias by
/// its one axis.
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
