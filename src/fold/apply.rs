//! Carrying a plan out. Nothing is decided here: weights are read once, changed in float64, and
//! rounded once.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;
use ndarray::{ArrayD, Zip};

use super::absorb::{Linear, linear};
use super::plan::{Plan, Rewrite};
use super::rounding::{store, store_factor, store_weight};
use super::{At, Fold, Side};
use crate::affine::{Affine, broadcast_together};
use crate::graph::constants::Constants;
use crate::graph::editor::Editor;
use crate::graph::facts::Facts;
use crate::graph::{Graph, NodeId, ValueId};
use crate::normalizer::{Lowering, Reset};
use crate::onnx::proto::{NodeProto, TensorProto};
use crate::onnx::tensor::DataType;
use crate::refusal::{Reason, Refusal};

/// Weights of more elements than this are large: nobody but the operators that read them looks into them.
const LARGE: i64 = 1 << 14;

/// What becomes of large weights once their new numbers are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weights {
    /// The new numbers are written.
    Folded,
    /// The old ones stay: whoever only wants to know what folds has no use for others, and no room.
    AsTheyWere,
}

/// A fold that turned out not to be exact when its weights were read.
#[derive(Debug, Clone)]
pub struct Failed {
    /// The sites whose folds meet in the weight.
    pub sites: Vec<usize>,
    /// What is wrong.
    pub refusal: Refusal,
}

/// Carries out a plan on an editor over the same model.
///
/// # Errors
/// [`Failed`] for each folded number that does not fit its type, and each constant that cannot be computed;
/// the editor is then of no use any more.
pub fn apply(
    plan: &Plan,
    graph: &Graph,
    facts: &Facts,
    constants: &Constants,
    editor: &mut Editor,
    weights: Weights,
    progress: &dyn Fn(usize, usize),
) -> Result<(), Vec<Failed>> {
    let mut job = Job { plan, graph, facts, constants, editor, weights, shared: HashMap::new() };
    let mut failed = vec![];
    let mut check = |outcome: Result<(), Reason>, sites: Vec<usize>, at: &str| {
        failed.extend(outcome.err().map(|reason| Failed { sites, refusal: Refusal::new(reason, at) }));
    };
    let units = job.units();
    let count = units.len();
    for (done, (node, folds)) in units.into_iter().enumerate() {
        progress(done, count);
        let at = At { graph, facts, constants, node };
        let outcome = job.unit(at, &folds).and_then(|unit| job.write(at, unit));
        check(outcome, job.sites(&folds), graph.name(node));
    }
    let mut operands: BTreeMap<(NodeId, usize), Vec<usize>> = BTreeMap::new();
    for (index, fold) in plan.folds.iter().enumerate() {
        if let Side::Constant(slot) = fold.side {
            operands.entry((fold.node, slot)).or_default().push(index);
        }
    }
    for ((node, slot), folds) in operands {
        check(job.constant(node, slot, &folds), job.sites(&folds), graph.name(node));
    }
    for reset in &plan.resets {
        check(job.reset(reset), vec![], graph.name(reset.node));
    }
    for lowering in &plan.lowerings {
        job.lower(lowering);
    }
    for rewrite in &plan.rewrites {
        check(job.rewrite(rewrite), vec![rewrite.site], graph.value_name(rewrite.part.output));
    }
    if !failed.is_empty() {
        return Err(failed);
    }
    for removal in &plan.removals {
        job.editor.remove(&removal.nodes, &removal.output, &removal.source);
    }
    progress(count, count);
    Ok(())
}

struct Job<'j> {
    plan: &'j Plan,
    graph: &'j Graph<'j>,
    facts: &'j Facts,
    constants: &'j Constants<'j, 'j>,
    editor: &'j mut Editor,
    weights: Weights,
    /// Constants that were written already: the same change to the same tensor is written once.
    shared: HashMap<(ValueId, Vec<i64>, Bytes), String>,
}

/// A linear operator's constants while they change.
struct Unit {
    weight: Option<(usize, ArrayD<f64>)>,
    /// What the operator itself adds.
    bias: Option<ArrayD<f64>>,
    /// What the Add behind it adds.
    added: Option<ArrayD<f64>>,
    weight_changed: bool,
    bias_changed: bool,
    added_changed: bool,
}

impl Job<'_> {
    /// The folds of each operator, in order; those of an Add that holds its bias are its own.
    fn units(&self) -> BTreeMap<NodeId, Vec<usize>> {
        let holds: HashMap<NodeId, NodeId> =
            self.plan.bias_adds.iter().map(|(&linear, &(add, _))| (add, linear)).collect();
        let mut units: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        for (index, fold) in self.plan.folds.iter().enumerate() {
            if !matches!(fold.side, Side::Constant(_)) {
                let node = holds.get(&fold.node).copied().unwrap_or(fold.node);
                units.entry(node).or_default().push(index);
            }
        }
        units
    }

    fn sites(&self, folds: &[usize]) -> Vec<usize> {
        let mut sites: Vec<usize> = folds.iter().map(|&fold| self.plan.fold_sites[fold]).collect();
        sites.sort_unstable();
        sites.dedup();
        sites
    }

    fn at(&self, node: NodeId) -> At<'_> {
        At { graph: self.graph, facts: self.facts, constants: self.constants, node }
    }

    fn rules(&self, node: NodeId) -> Result<&'static dyn Linear, Reason> {
        linear(self.graph.op(node)).ok_or_else(|| Reason::NotLinear(self.graph.op(node).into()))
    }

    fn unit(&self, at: At, folds: &[usize]) -> Result<Unit, Reason> {
        let rules = self.rules(at.node)?;
        let slots = rules.slots(&at)?;
        let weight = slots.weight.map(|slot| Ok::<_, Reason>((slot, at.floats(slot)?))).transpose()?;
        let read = |node: NodeId, slot| {
            let at = self.at(node);
            self.rules(node)?.read_bias(&at, at.floats(slot)?)
        };
        let own = slots.bias.filter(|&slot| at.graph.input(at.node, slot).is_some());
        let mut unit = Unit {
            weight,
            bias: own.map(|slot| read(at.node, slot)).transpose()?,
            added: self.plan.bias_adds.get(&at.node).map(|&(add, slot)| read(add, slot)).transpose()?,
            weight_changed: false,
            bias_changed: false,
            added_changed: false,
        };
        for &index in folds {
            unit.take(&at, rules, &self.plan.folds[index])?;
        }
        Ok(unit)
    }

    fn write(&mut self, at: At, unit: Unit) -> Result<(), Reason> {
        let rules = self.rules(at.node)?;
        let slots = rules.slots(&at)?;
        if let Some((slot, weight)) = unit.weight.filter(|_| unit.weight_changed) {
            let value = at.input(slot)?;
            let (data_type, axes) = (self.facts.data_type(value), rules.contracted(&at)?);
            let tensor = store_weight(data_type, &weight, &axes, || at.floats(slot))?;
            let name = self.keep(value, tensor);
            self.editor.set_input(at.node, slot, &name);
        }
        let bias = unit.bias.filter(|_| unit.bias_changed);
        let in_slot =
            slots.bias.zip(bias.as_ref()).and_then(|(slot, b)| Some((slot, rules.write_bias(&at, b)?)));
        if let Some((slot, array)) = &in_slot {
            let name = match at.graph.input(at.node, *slot) {
                Some(value) => self.keep(value, store(self.facts.data_type(value), array)?),
                None => self.make_bias(at, array)?,
            };
            self.editor.set_input(at.node, *slot, &name);
            if at.graph.op(at.node) == "Gemm" && at.attr_float("beta", 1.0)? != 1.0 {
                self.editor.set_float(at.node, "beta", 1.0);
            }
        }
        let Some(bias) = bias.filter(|_| in_slot.is_none()) else {
            return match unit.added.filter(|_| unit.added_changed) {
                Some(added) => self.write_added(at.node, &added),
                None => Ok(()),
            };
        };
        // No place for it in the node: what its own slot held is part of it now.
        if let Some(slot) = slots.bias {
            self.editor.clear_input(at.node, slot);
        }
        if let Some(added) = unit.added {
            let whole = &added + &bias;
            if self.holds_added(at.node, &whole) {
                return self.write_added(at.node, &whole);
            }
            // An activation's own bias is the same at every place, and this one is not.
            self.write_added(at.node, &added)?;
        }
        let constant = self.make_bias(at, &bias)?;
        let (inner, outer) = self.editor.rename_output(at.node, 0);
        let add =
            self.operator("Add", &format!("{}_bias_add", at.graph.name(at.node)), &inner, &constant, &outer);
        self.editor.insert_behind(at.node, add);
        Ok(())
    }

    fn holds_added(&self, node: NodeId, added: &ArrayD<f64>) -> bool {
        let behind = self.plan.bias_adds.get(&node);
        behind.is_some_and(|&(add, _)| {
            self.rules(add).is_ok_and(|rules| rules.write_bias(&self.at(add), added).is_some())
        })
    }

    /// Writes the constant of the Add behind a node.
    fn write_added(&mut self, node: NodeId, added: &ArrayD<f64>) -> Result<(), Reason> {
        let &(add, slot) = self.plan.bias_adds.get(&node).ok_or(Reason::NotConstant)?;
        let value = self.at(add).input(slot)?;
        let array = self.rules(add)?.write_bias(&self.at(add), added).ok_or(Reason::UnknownShape)?;
        let name = self.keep(value, store(self.facts.data_type(value), &array)?);
        self.editor.set_input(add, slot, &name);
        Ok(())
    }

    fn operator(&mut self, op: &str, name: &str, left: &str, right: &str, output: &str) -> NodeProto {
        NodeProto {
            op_type: Some(op.into()),
            name: Some(self.editor.fresh(name)),
            input: vec![left.into(), right.into()],
            output: vec![output.into()],
            ..Default::default()
        }
    }

    /// Keeps a changed constant under a name of its own, once, with the axes that it had.
    fn keep(&mut self, value: ValueId, tensor: TensorProto) -> String {
        let rank = self.facts.rank(value).unwrap_or(tensor.dims.len());
        let mut tensor = trimmed(tensor, rank);
        let mut bytes = tensor.raw_data.clone().unwrap_or_default();
        let count: i64 = tensor.dims.iter().product();
        if self.weights == Weights::AsTheyWere && count > LARGE {
            let mut hasher = DefaultHasher::new();
            bytes.hash(&mut hasher);
            bytes = Bytes::copy_from_slice(&hasher.finish().to_le_bytes());
            tensor = self.constants.stored(value).filter(|old| old.dims == tensor.dims).unwrap_or(tensor);
        }
        let key = (value, tensor.dims.clone(), bytes);
        if let Some(name) = self.shared.get(&key) {
            return name.clone();
        }
        let name = self.editor.add_constant(&format!("{}_folded", self.graph.value_name(value)), tensor);
        self.shared.insert(key, name.clone());
        name
    }

    /// A bias for a node that has none, of the type of what it is added to, which that of the weight is too.
    fn make_bias(&mut self, at: At, bias: &ArrayD<f64>) -> Result<String, Reason> {
        let values = at.graph.outputs(at.node).iter().chain(at.graph.inputs(at.node)).flatten();
        let data_type = values.copied().find_map(|value| self.facts.data_type(value));
        let tensor = trimmed(store(data_type, bias)?, 1);
        Ok(self.editor.add_constant(&format!("{}_bias", at.graph.name(at.node)), tensor))
    }

    /// A constant operand that carries the affines itself.
    fn constant(&mut self, node: NodeId, slot: usize, folds: &[usize]) -> Result<(), Reason> {
        let at = self.at(node);
        let (value, mut array) = (at.input(slot)?, at.floats(slot)?);
        for &index in folds {
            let Affine { scale, shift } = &self.plan.folds[index].affine;
            array = array * scale + shift;
        }
        let name = self.keep(value, store(self.facts.data_type(value), &array)?);
        self.editor.set_input(node, slot, &name);
        Ok(())
    }

    fn reset(&mut self, reset: &Reset) -> Result<(), Reason> {
        let Reset { node, slot, neutral, optional } = *reset;
        // An empty name before another input is more than some runtimes read.
        let is_last = self.graph.inputs(node).iter().rposition(Option::is_some) == Some(slot);
        if optional && is_last && neutral == 0.0 {
            self.editor.clear_input(node, slot);
            return Ok(());
        }
        let there = self.at(node).floats(slot)?;
        self.parameter(reset, &ArrayD::from_elem(there.raw_dim(), neutral))
    }

    /// Writes a parameter of a node anew.
    fn parameter(&mut self, reset: &Reset, array: &ArrayD<f64>) -> Result<(), Reason> {
        let value = self.at(reset.node).input(reset.slot)?;
        let data_type = self.facts.data_type(value);
        let tensor = match reset.neutral {
            1.0 => store_factor(data_type, array)?,
            _ => store(data_type, array)?,
        };
        let name = self.keep(value, tensor);
        self.editor.set_input(reset.node, reset.slot, &name);
        Ok(())
    }

    /// A part that took another in, as the fewest operators: a Mul, an Add, or both.
    fn rewrite(&mut self, rewrite: &Rewrite) -> Result<(), Reason> {
        let Affine { scale, shift } = &rewrite.part.affine;
        if rewrite.part.nodes.is_empty() {
            return self.rewrite_parameters(rewrite);
        }
        let output = self.graph.value_name(rewrite.part.output).to_owned();
        let mut input = self.graph.value_name(rewrite.part.input).to_owned();
        let last = *rewrite.part.nodes.iter().max_by_key(|&&node| self.graph.place(node)).unwrap_or(&0);
        let mut steps = vec![];
        if scale.iter().any(|&s| s != 1.0) {
            steps.push(("Mul", scale));
        }
        if shift.iter().any(|&t| t != 0.0) {
            steps.push(("Add", shift));
        }
        let (count, mut made) = (steps.len(), vec![]);
        for (i, (op, array)) in steps.into_iter().enumerate() {
            let tensor = match op {
                "Mul" => store_factor(rewrite.data_type, array)?,
                _ => store(rewrite.data_type, array)?,
            };
            let tensor = trimmed(tensor, 1);
            let constant = self.editor.add_constant(&format!("{output}_{}", op.to_lowercase()), tensor);
            let result =
                if i + 1 == count { output.clone() } else { self.editor.fresh(&format!("{output}_scaled")) };
            made.push(self.operator(
                op,
                &format!("{output}_{}_node", op.to_lowercase()),
                &input,
                &constant,
                &result,
            ));
            input = result;
        }
        if made.is_empty() {
            let source = input;
            self.editor.remove(&rewrite.part.nodes, &output, &source);
            return Ok(());
        }
        self.editor.drop_nodes(&rewrite.part.nodes);
        for node in made {
            self.editor.insert_behind(last, node);
        }
        Ok(())
    }

    /// Puts the nodes of a lowering behind the last of those that they replace.
    fn lower(&mut self, lowering: &Lowering) {
        let mut names: HashMap<String, String> = HashMap::new();
        for constant in &lowering.constants {
            let name = self.editor.add_constant(constant.name(), constant.clone());
            names.insert(constant.name().to_owned(), name);
        }
        let Some(&last) = lowering.nodes.iter().max_by_key(|&&node| self.graph.place(node)) else { return };
        self.editor.drop_nodes(&lowering.nodes);
        for node in &lowering.made {
            let mut node = node.clone();
            for output in node.output.iter().filter(|output| self.graph.value(output).is_none()) {
                names.insert(output.clone(), self.editor.fresh(output));
            }
            for name in node.input.iter_mut().chain(&mut node.output) {
                if let Some(known) = names.get(name) {
                    known.clone_into(name);
                }
            }
            node.name = Some(self.editor.fresh(node.name()));
            self.editor.insert_behind(last, node);
        }
    }

    /// Parameters inside a node: they are written anew.
    fn rewrite_parameters(&mut self, rewrite: &Rewrite) -> Result<(), Reason> {
        for reset in &rewrite.part.resets {
            let Affine { scale, shift } = &rewrite.part.affine;
            let array = if reset.neutral == 1.0 { scale } else { shift };
            if array.iter().all(|&v| v == reset.neutral) {
                self.reset(reset)?;
                continue;
            }
            let there = self.at(reset.node).floats(reset.slot)?;
            let flat = array.to_shape(array.len()).map_err(|_| Reason::UnknownShape)?;
            let flat = flat.broadcast(there.len()).ok_or(Reason::WrongAxis)?;
            let array = flat.to_shape(there.raw_dim()).map_err(|_| Reason::UnknownShape)?;
            self.parameter(reset, &array.into_owned())?;
        }
        Ok(())
    }
}

impl Unit {
    /// Takes one fold in: the operator as it is by now, with the affine in front of it or behind.
    fn take(&mut self, at: &At, rules: &dyn Linear, fold: &Fold) -> Result<(), Reason> {
        let Affine { scale, shift } = &fold.affine;
        let shifts = !fold.affine.has_no_shift();
        let scales = !fold.affine.has_no_scale();
        // A fold on the Add behind: a scale of its result reaches the operator as a fold of its own.
        if fold.node != at.node {
            let result = matches!(fold.side, Side::Result);
            self.added =
                self.added.take().map(|added| if result { added * scale + shift } else { added + shift });
            self.added_changed = true;
            return Ok(());
        }
        if let Side::Operand(operand) = fold.side {
            if shifts {
                let weight = self.weight.as_ref().map(|(_, weight)| weight);
                let image = rules.image(at, weight, operand, shift)?;
                self.bias = Some(match self.bias.take() {
                    Some(bias) if !broadcast_together(&bias, &image) => return Err(Reason::UnknownShape),
                    Some(bias) => bias + image,
                    None => image,
                });
                self.bias_changed = true;
            }
            if scales {
                let (_, weight) = self.weight.as_mut().ok_or(Reason::NotConstant)?;
                *weight = scaled(at, rules, weight, fold.side, scale)?;
                self.weight_changed = true;
            }
            return Ok(());
        }
        if scales && let Some((_, weight)) = self.weight.as_mut() {
            *weight = scaled(at, rules, weight, fold.side, scale)?;
            self.weight_changed = true;
        }
        if self.bias.is_some() || shifts {
            let bias = self.bias.take().unwrap_or_else(|| ArrayD::zeros(vec![1; shift.ndim()]));
            self.bias = Some(bias * scale + shift);
            self.bias_changed = true;
        }
        Ok(())
    }
}

/// The tensor without its leading axes of extent 1 beyond `rank`. Broadcasting adds them again, and engines know a
/// bias by its one axis.
fn trimmed(mut tensor: TensorProto, rank: usize) -> TensorProto {
    let leading = tensor.dims.iter().take_while(|&&extent| extent == 1).count();
    tensor.dims.drain(..leading.min(tensor.dims.len().saturating_sub(rank)));
    tensor
}

/// The weight after a scale came in, none of whose products is too small for float64 itself.
fn scaled(
    at: &At,
    rules: &dyn Linear,
    weight: &ArrayD<f64>,
    side: Side,
    scale: &ArrayD<f64>,
) -> Result<ArrayD<f64>, Reason> {
    let scaled = rules.scaled(at, weight, side, scale)?;
    // A number that was the same along an axis may differ from place to place now.
    let before = weight.broadcast(scaled.shape()).ok_or(Reason::WrongAxis)?;
    let vanishes = || Zip::from(before).and(&scaled).any(|&before, &after| before != 0.0 && after == 0.0);
    if scale.iter().all(|&s| s != 0.0) && vanishes() {
        return Err(Reason::Underflow(DataType::Double.name()));
    }
    Ok(scaled)
}
