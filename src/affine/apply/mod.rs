//! Applies edits to the model. No decision is made here. Each new tensor is computed in float64 and
//! rounded once. A large tensor is only checked to fit its type here, and is computed again when it
//! is written.

mod compute;

use std::sync::Arc;

use bytes::Bytes;
use ndarray::ArrayD;

pub(crate) use self::compute::RangeCheck;
use self::compute::{AllComputed, Computed, LARGE, alone, compute};
use crate::affine::materialize::{Change, Edit, Failed, NewTensor};
use crate::affine::plan::{Removal, Stored};
use crate::affine::recognize::Replacement;
use crate::affine::rounding::{Rounding, float};
use crate::analysis::Analysis;
use crate::hash::{HashMap, HashSet};
use crate::ir::builder::NewConstant;
use crate::ir::editor::Editor;
use crate::ir::regions::move_to;
use crate::ir::{Graph, NodeId, Reader, ValueId, builder};
use crate::onnx::proto::NodeProto;
use crate::onnx::tensor;
use crate::recipe::{Promise, Recipe, evaluate};
use crate::refusal::{Reason, Refusal};

/// Applies the edits, then the removals, to an editor of the model. Returns the new tensors that
/// were stored.
///
/// # Errors
/// [`Failed`] for each tensor that cannot be computed or does not fit its type. The editor must not
/// be used after an error.
pub(crate) fn apply(
    (edits, removals): (&[Edit], &[Removal]),
    analysis: &Analysis,
    editor: &mut Editor,
    check: RangeCheck,
    progress: &dyn Fn(usize, usize),
) -> Result<Vec<Stored>, Vec<Failed>> {
    let computed = compute(edits, analysis, check, progress);
    editor.reserve(computed.len());
    let stored = Vec::with_capacity(computed.len());
    let mut work = Work {
        analysis,
        graph: &analysis.graph,
        editor,
        sites: &[],
        check,
        computed,
        taken: HashMap::default(),
        from_inputs: HashMap::default(),
        stored,
    };
    let mut failed = vec![];
    for edit in edits {
        work.sites = &edit.sites;
        if let Err(reason) = work.make(&edit.change) {
            failed.push(Failed {
                sites: edit.sites.clone(),
                refusal: Refusal::new(reason, &edit.at),
            });
        }
    }
    if !failed.is_empty() {
        return Err(failed);
    }
    for removal in removals {
        work.editor
            .remove(&removal.nodes, &removal.output, &removal.source);
    }
    Ok(work.stored)
}

/// Removes the sharding specs of a node for values that the node neither reads nor writes. A copied
/// node still has specs for the values of the original node, which may have other axes.
fn drop_shards_of_others(node: &mut NodeProto) {
    let NodeProto {
        input,
        output,
        device_configurations,
        ..
    } = node;
    for configuration in device_configurations {
        configuration.sharding_spec.retain(|spec| {
            input
                .iter()
                .chain(output.iter())
                .any(|value| value == spec.tensor_name())
        });
    }
}

struct Work<'w, 'm> {
    analysis: &'w Analysis<'w>,
    graph: &'w Graph<'w>,
    editor: &'w mut Editor<'m>,
    /// The sites that need the current edit.
    sites: &'w [usize],
    stored: Vec<Stored>,
    check: RangeCheck,
    computed: AllComputed,
    /// For each constant, the tensors that replace it, each with its index in `stored`.
    taken: HashMap<ValueId, Vec<(Imprint, usize)>>,
    /// Maps the proposed name of each new value that is computed from inputs of the model to its
    /// final name.
    from_inputs: HashMap<String, String>,
}

/// The elements of a stored tensor, to find equal tensors.
enum Imprint {
    Now(Vec<i64>, Option<Bytes>),
    Later(Arc<Promise>),
}

impl Imprint {
    fn of_computed(computed: &Computed) -> Self {
        match computed {
            Computed::Now(tensor) => Imprint::Now(tensor.dims.clone(), tensor.raw_data.clone()),
            Computed::Later(promise) => Imprint::Later(promise.clone()),
        }
    }

    /// Whether this tensor has the elements of `computed`.
    fn is(&self, computed: &Computed) -> bool {
        match (self, computed) {
            (Imprint::Now(dims, elements), Computed::Now(tensor)) => {
                *dims == tensor.dims && *elements == tensor.raw_data
            }
            (Imprint::Later(one), Computed::Later(other)) => one.is(other),
            _ => false,
        }
    }
}

/// Whether two recipes give equal numbers before rounding.
fn are_equal(one: &Recipe, other: &Recipe, analysis: &Analysis) -> bool {
    if one.is_alike(other, &|one, other| {
        are_equal_constants(one, other, analysis)
    }) {
        return true;
    }
    // A large tensor is not computed just for this comparison.
    if one.len() > LARGE {
        return false;
    }
    let read = |name: &str| read(name, analysis);
    match (evaluate(one, &read), evaluate(other, &read)) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

fn are_equal_constants(one: &str, other: &str, analysis: &Analysis) -> bool {
    if one == other {
        return true;
    }
    match (read(one, analysis), read(other, analysis)) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

/// Reads a constant by its name.
fn read(name: &str, analysis: &Analysis) -> Result<ArrayD<f64>, Refusal> {
    match analysis.graph.value(name) {
        Some(value) => analysis.constants.read(value),
        None => Err(Refusal::new(Reason::NotConstant, name)),
    }
}

impl Work<'_, '_> {
    fn make(&mut self, change: &Change) -> Result<(), Reason> {
        match change {
            Change::Input(node, slot, tensor) => {
                let name = self.store(tensor)?;
                self.editor.set_input(*node, *slot, &name);
            }
            Change::NoInput(node, slot) => self.editor.clear_input(*node, *slot),
            Change::Float(node, name, value) => self.editor.set_float(*node, name, *value),
            Change::AddBehind(node, tensor) => {
                let constant = self.store(tensor)?;
                let (inner, outer) = self.editor.rename_output(*node, 0, "unbiased");
                let name = format!("{}_bias_add", self.graph.name(*node));
                self.insert("Add", &name, *node, [&inner, &constant], &outer);
            }
            Change::Mul {
                value,
                readers,
                is_output,
                tensor,
            } => {
                self.multiply(*value, readers, *is_output, tensor)?;
            }
            Change::Chain {
                nodes,
                input,
                output,
                made,
            } => self.chain(nodes, *input, *output, made)?,
            Change::Replace(replacement) => self.replace(replacement)?,
            Change::FromInput { readers, made } => self.at_inputs(readers, made)?,
        }
        Ok(())
    }

    /// Stores a tensor, or finds an equal one that is already stored. Returns its name in the
    /// model.
    fn store(&mut self, new: &NewTensor) -> Result<String, Reason> {
        let computed = self.computed.remove(&std::ptr::from_ref(new));
        let computed = computed.unwrap_or_else(|| alone(new, self.analysis, self.check))?;
        let before = new
            .replaces
            .map(|value| self.taken.entry(value).or_default());
        let mut same = before
            .iter()
            .flat_map(|before| before.iter())
            .filter(|(taken, _)| taken.is(&computed));
        // Because a stored tensor has only one recipe, tensors whose recipes differ are stored
        // separately, even if rounding makes their elements equal.
        let found = same
            .find(|(_, place)| are_equal(&self.stored[*place].recipe, &new.recipe, self.analysis));
        if let Some(&(_, place)) = found {
            let stored = &mut self.stored[place];
            stored.sites.extend(self.sites);
            stored.sites.sort_unstable();
            stored.sites.dedup();
            return Ok(stored.name.clone());
        }
        let data_type = float(new.data_type)?;
        if let Some(before) = before {
            before.push((Imprint::of_computed(&computed), self.stored.len()));
        }
        let name = self
            .editor
            .add_constant(&new.wish, computed.tensor(&self.analysis.graph));
        let (recipe, sites) = (new.recipe.clone(), self.sites.to_vec());
        let replaces = new
            .replaces
            .map(|value| self.graph.value_name(value).to_owned());
        self.stored.push(Stored {
            name: name.clone(),
            data_type,
            recipe,
            replaces,
            sites,
        });
        Ok(name)
    }

    /// Inserts a Mul after the producer of a value. `readers` then read the product. If
    /// `is_output`, the product takes the name of the value, so that the caller of the model reads
    /// it too.
    fn multiply(
        &mut self,
        value: ValueId,
        readers: &[(NodeId, usize)],
        is_output: bool,
        tensor: &NewTensor,
    ) -> Result<(), Reason> {
        let constant = self.store(tensor)?;
        let (graph, name) = (self.graph, self.graph.value_name(value));
        let maker = graph.producer(value);
        let (input, output) = match maker {
            Some((node, slot)) if is_output => {
                let (inner, outer) = self.editor.rename_output(node, slot, "scaled");
                for reader in graph.readers(value) {
                    if let Reader::Node { node, input } = *reader
                        && !readers.contains(&(node, input))
                    {
                        self.editor.set_input(node, input, &inner);
                    }
                }
                (inner, outer)
            }
            _ => {
                let input = maker
                    .map_or(name, |(node, slot)| self.editor.output(node, slot))
                    .to_owned();
                let output = self.editor.fresh(&format!("{name}_multiplied"));
                readers
                    .iter()
                    .for_each(|&(node, slot)| self.editor.set_input(node, slot, &output));
                (input, output)
            }
        };
        let like = maker
            .map(|(node, _)| node)
            .or_else(|| Some(readers.first()?.0));
        let like = graph.node(like.ok_or(Reason::GraphInput)?);
        let wish = self.editor.fresh(&format!("{name}_mul"));
        let mut made = builder::node(like, "Mul", &wish, &[&input, &constant], &output);
        match maker {
            Some((node, _)) => self.editor.insert_behind(node, made),
            None => {
                // The first reader may be in a body while other readers are outside of it, so the
                // Mul is placed in the main graph.
                move_to(&mut made, "");
                self.editor.insert_first(made);
            }
        }
        Ok(())
    }

    /// Inserts a new node with the operator `op` after the node `behind`.
    fn insert(&mut self, op: &str, name: &str, behind: NodeId, inputs: [&str; 2], output: &str) {
        let name = self.editor.fresh(name);
        let node = builder::node(self.graph.node(behind), op, &name, &inputs, output);
        self.editor.insert_behind(behind, node);
    }

    fn last(&self, nodes: &[NodeId]) -> Result<NodeId, Reason> {
        let last = nodes
            .iter()
            .copied()
            .max_by_key(|&node| self.graph.place(node));
        last.ok_or(Reason::NotLinear("nothing".into()))
    }

    fn chain(
        &mut self,
        nodes: &[NodeId],
        input: ValueId,
        output: ValueId,
        made: &[(&'static str, NewTensor)],
    ) -> Result<(), Reason> {
        let (mut input, output) = (
            self.graph.value_name(input).to_owned(),
            self.graph.value_name(output),
        );
        let last = self.last(nodes)?;
        if made.is_empty() {
            self.editor.remove(nodes, output, &input);
            return Ok(());
        }
        self.editor.drop_nodes(nodes);
        for (place, (op, tensor)) in made.iter().enumerate() {
            let constant = self.store(tensor)?;
            let result = match place + 1 == made.len() {
                true => output.to_owned(),
                false => self.editor.fresh(&format!("{output}_scaled")),
            };
            let name = format!("{output}_{}_node", op.to_lowercase());
            self.insert(op, &name, last, [&input, &constant], &result);
            input = result;
        }
        Ok(())
    }

    /// Stores a constant of a replacement. Returns its name in the model.
    fn add_constant(&mut self, constant: &NewConstant) -> Result<String, Reason> {
        match constant {
            NewConstant::Integers { name, values } => {
                let tensor = tensor::make_i64(name, values);
                Ok(self.editor.add_constant(name, tensor))
            }
            NewConstant::Floats {
                name,
                data_type,
                recipe,
            } => self.store(&NewTensor {
                wish: name.clone(),
                replaces: None,
                data_type: Some(*data_type),
                recipe: recipe.clone(),
                rounding: Rounding::Sum,
            }),
            NewConstant::Weight {
                name,
                data_type,
                recipe,
                replaces,
                contracted,
            } => self.store(&NewTensor {
                wish: name.clone(),
                replaces: self.graph.value(replaces),
                data_type: Some(*data_type),
                recipe: recipe.clone(),
                rounding: Rounding::Weight(recipe.clone(), contracted.clone()),
            }),
        }
    }

    /// Inserts the nodes of a replacement after the last node that they replace.
    fn replace(&mut self, replacement: &Replacement) -> Result<(), Reason> {
        let mut names = self.store_constants(&replacement.constants)?;
        let last = self.last(&replacement.nodes)?;
        self.editor.drop_nodes(&replacement.nodes);
        let replaced = replacement.nodes.iter();
        let mut free: HashSet<&str> = replaced.map(|&node| self.graph.name(node)).collect();
        for node in &replacement.made {
            let mut node = self.named(node, &mut names);
            // A new node keeps its name if a replaced node has this name and no earlier new node
            // took it.
            if !free.remove(node.name()) {
                node.name = Some(self.editor.fresh(node.name()));
            }
            drop_shards_of_others(&mut node);
            self.editor.insert_behind(last, node);
        }
        Ok(())
    }

    /// Inserts, before all other nodes, nodes that read inputs of the model. `readers` then read
    /// the result of the last new node.
    fn at_inputs(&mut self, readers: &[(NodeId, usize)], made: &Replacement) -> Result<(), Reason> {
        let mut names = self.store_constants(&made.constants)?;
        for node in &made.made {
            let mut node = self.named(node, &mut names);
            node.name = Some(self.editor.fresh(node.name()));
            // A reader may be in a body, but the main graph has the inputs.
            move_to(&mut node, "");
            self.editor.insert_first(node);
        }
        let last = made.made.last().and_then(|node| node.output.first());
        let result = last.and_then(|last| names.get(last));
        let result = result.cloned().ok_or(Reason::GraphInput)?;
        for &(node, slot) in readers {
            self.editor.set_input(node, slot, &result);
        }
        self.from_inputs.extend(names);
        Ok(())
    }

    /// Copies a new node, and gives its values the names that they have in the model. `names` maps
    /// each name in the replacement to the name in the model.
    fn named(&mut self, node: &NodeProto, names: &mut HashMap<String, String>) -> NodeProto {
        let mut node = node.clone();
        for output in node.output.iter().filter(|output| !output.is_empty()) {
            if self.graph.value(output).is_none() {
                names.insert(output.clone(), self.editor.fresh(output));
            }
        }
        for name in node.input.iter_mut().chain(&mut node.output) {
            if let Some(new_name) = names.get(name).or_else(|| self.from_inputs.get(name)) {
                new_name.clone_into(name);
            }
        }
        node
    }

    /// Stores the constants of a replacement. Returns a map from their names in the replacement to
    /// their names in the model.
    fn store_constants(
        &mut self,
        constants: &[NewConstant],
    ) -> Result<HashMap<String, String>, Reason> {
        let mut names: HashMap<String, String> = HashMap::default();
        for constant in constants {
            let name = self.add_constant(constant)?;
            names.insert(constant.name().to_owned(), name);
        }
        Ok(names)
    }
}
