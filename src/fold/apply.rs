//! Carrying changes out. Nothing is decided here: each new tensor is computed in float64 and rounded once.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;

use super::patch::{Change, Edit, Failed, NewTensor};
use super::plan::{Removal, Stored};
use super::rounding::{Rounding, float};
use crate::graph::analysis::Analysis;
use crate::graph::constants::Constants;
use crate::graph::editor::Editor;
use crate::graph::make::NewConstant;
use crate::graph::{Graph, NodeId, ValueId, make};
use crate::normalizer::Replacement;
use crate::onnx::proto::TensorProto;
use crate::onnx::tensor::{self, DataType};
use crate::recipe::evaluate;
use crate::refusal::{Reason, Refusal};

/// Weights of more elements than this are large: nobody but the operators that read them looks into them.
const LARGE: usize = 1 << 14;

/// What becomes of large weights once their new numbers are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weights {
    /// The new numbers are written.
    Folded,
    /// The old ones stay: whoever only wants to know what folds has no use for others, and no room.
    AsTheyWere,
}

/// Makes changes on an editor over the same model, and then removes what goes.
///
/// # Errors
/// [`Failed`] for each tensor that does not fit its type, and each that cannot be computed; the editor is then
/// of no use any more.
pub fn apply(
    (edits, removals): (&[Edit], &[Removal]),
    known: &Analysis,
    editor: &mut Editor,
    weights: Weights,
    progress: &dyn Fn(usize, usize),
) -> Result<Vec<Stored>, Vec<Failed>> {
    let mut work = Work {
        graph: &known.graph,
        constants: &known.constants,
        editor,
        weights,
        sites: &[],
        known: HashMap::new(),
        stored: vec![],
    };
    let mut failed = vec![];
    for (done, edit) in edits.iter().enumerate() {
        progress(done, edits.len());
        work.sites = &edit.sites;
        if let Err(reason) = work.make(&edit.change) {
            failed.push(Failed { sites: edit.sites.clone(), refusal: Refusal::new(reason, &edit.at) });
        }
    }
    if !failed.is_empty() {
        return Err(failed);
    }
    for removal in removals {
        work.editor.remove(&removal.nodes, &removal.output, &removal.source);
    }
    progress(edits.len(), edits.len());
    Ok(work.stored)
}

struct Work<'w, 'm> {
    graph: &'w Graph<'w>,
    constants: &'w Constants<'w>,
    editor: &'w mut Editor<'m>,
    weights: Weights,
    /// The sites on whose behalf something is made.
    sites: &'w [usize],
    stored: Vec<Stored>,
    /// The places of what was stored, by the constant whose place it took, its extents and its bytes.
    known: HashMap<(ValueId, Vec<i64>, Bytes), usize>,
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
                let (inner, outer) = self.editor.rename_output(*node, 0);
                let name = format!("{}_bias_add", self.graph.name(*node));
                self.insert("Add", &name, *node, [&inner, &constant], &outer);
            }
            Change::Chain { nodes, input, output, made } => self.chain(nodes, *input, *output, made)?,
            Change::Replace(replacement) => self.replace(replacement)?,
        }
        Ok(())
    }

    /// Stores a tensor under a name of its own, and gives the name.
    fn store(&mut self, new: &NewTensor) -> Result<String, Reason> {
        let read = |name: &str| {
            let value = self.graph.value(name).ok_or_else(|| Refusal::new(Reason::NotConstant, name))?;
            self.constants.read(value)
        };
        let numbers = evaluate(&new.recipe, &read).map_err(|refusal| refusal.reason)?;
        let data_type = float(new.data_type)?;
        let mut tensor = new.rounding.store(data_type, &numbers, &read)?;
        let Some(value) = new.replaces else { return Ok(self.add(new, data_type, tensor)) };
        let mut bytes = tensor.raw_data.clone().unwrap_or_default();
        if self.weights == Weights::AsTheyWere && numbers.len() > LARGE {
            let mut hasher = DefaultHasher::new();
            bytes.hash(&mut hasher);
            bytes = Bytes::copy_from_slice(&hasher.finish().to_le_bytes());
            tensor = self.constants.stored(value).filter(|old| old.dims == tensor.dims).unwrap_or(tensor);
        }
        let key = (value, tensor.dims.clone(), bytes);
        if let Some(&place) = self.known.get(&key) {
            let stored = &mut self.stored[place];
            stored.sites.extend(self.sites);
            stored.sites.sort_unstable();
            stored.sites.dedup();
            return Ok(stored.name.clone());
        }
        self.known.insert(key, self.stored.len());
        Ok(self.add(new, data_type, tensor))
    }

    fn add(&mut self, new: &NewTensor, data_type: DataType, tensor: TensorProto) -> String {
        let name = self.editor.add_constant(&new.wish, tensor);
        let (recipe, sites) = (new.recipe.clone(), self.sites.to_vec());
        self.stored.push(Stored { name: name.clone(), data_type, recipe, sites });
        name
    }

    /// Puts a new node behind one of the graph.
    fn insert(&mut self, op: &str, name: &str, behind: NodeId, inputs: [&str; 2], output: &str) {
        let name = self.editor.fresh(name);
        let node = make::node(self.graph.node(behind), op, &name, &inputs, output);
        self.editor.insert_behind(behind, node);
    }

    fn last(&self, nodes: &[NodeId]) -> Result<NodeId, Reason> {
        let last = nodes.iter().copied().max_by_key(|&node| self.graph.place(node));
        last.ok_or(Reason::NotLinear("nothing".into()))
    }

    fn chain(
        &mut self,
        nodes: &[NodeId],
        input: ValueId,
        output: ValueId,
        made: &[(&'static str, NewTensor)],
    ) -> Result<(), Reason> {
        let (mut input, output) = (self.graph.value_name(input).to_owned(), self.graph.value_name(output));
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

    /// Puts the nodes of a replacement behind the last of those that they replace.
    fn replace(&mut self, replacement: &Replacement) -> Result<(), Reason> {
        let mut names: HashMap<String, String> = HashMap::new();
        for constant in &replacement.constants {
            let name = match constant {
                NewConstant::Integers { name, values } => {
                    self.editor.add_constant(name, tensor::make_i64(name, values))
                }
                NewConstant::Floats { name, data_type, recipe } => self.store(&NewTensor {
                    wish: name.clone(),
                    replaces: None,
                    data_type: Some(*data_type),
                    recipe: recipe.clone(),
                    rounding: Rounding::Sum,
                })?,
            };
            names.insert(constant.name().to_owned(), name);
        }
        let last = self.last(&replacement.nodes)?;
        self.editor.drop_nodes(&replacement.nodes);
        for node in &replacement.made {
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
        Ok(())
    }
}
