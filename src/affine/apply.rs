//! Carrying changes out. Nothing is decided here: each new tensor is computed in float64 and rounded once. Of a large
//! one it is only seen that it fits its type; it is computed again while it is written.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use bytes::Bytes;
use rayon::prelude::*;

use crate::affine::materialize::{Change, Edit, Failed, NewTensor};
use crate::affine::plan::{Removal, Stored};
use crate::affine::recognize::Replacement;
use crate::affine::rounding::{Extremes, Rounding, extremes, float, foreseen};
use crate::analysis::Analysis;
use crate::hash::{HashMap, HashSet, map_of};
use crate::ir::builder::NewConstant;
use crate::ir::editor::Editor;
use crate::ir::regions::move_to;
use crate::ir::{Graph, NodeId, Reader, ValueId, builder};
use crate::onnx::external::Data;
use crate::onnx::proto::{NodeProto, TensorProto};
use crate::onnx::tensor;
use crate::recipe::{Given, Promise, Recipe, evaluate};
use crate::refusal::{Reason, Refusal};

/// Weights of more elements than this are computed when they are written: nobody but the operators that read them looks
/// into them.
const LARGE: usize = 1 << 14;

/// The number of new tensors after which their inputs are dropped from memory.
const BATCH: usize = 1 << 14;

/// How often progress is polled: one report for each piece would wake the thread that draws it too often.
const GLANCE: Duration = Duration::from_millis(20);

/// Makes the changes in an editor of the model, and then the removals.
///
/// # Errors
/// [`Failed`] for each tensor that does not fit its type, and each that cannot be computed; the editor is then
/// of no use any more.
pub fn apply(
    (edits, removals): (&[Edit], &[Removal]),
    analysis: &Analysis,
    editor: &mut Editor,
    progress: &dyn Fn(usize, usize),
) -> Result<Vec<Stored>, Vec<Failed>> {
    let computed = compute(edits, analysis, progress);
    editor.reserve(computed.len());
    let stored = Vec::with_capacity(computed.len());
    let mut work = Work {
        analysis,
        graph: &analysis.graph,
        editor,
        sites: &[],
        computed,
        taken: HashMap::default(),
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

/// Removes notes about sharding that a copied node has for values of the original: its own may have
/// other axes.
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

/// The elements of a new tensor.
enum Computed {
    /// They are few, or are needed at once.
    Now(Box<TensorProto>),
    /// They are computed when they are written; they fit.
    Later(Arc<Promise>),
}

/// The result for each new tensor, by its address among the edits.
type AllComputed = HashMap<*const NewTensor, Result<Computed, Reason>>;

/// Computes the new tensors of all edits, by all cores.
fn compute(edits: &[Edit], analysis: &Analysis, progress: &dyn Fn(usize, usize)) -> AllComputed {
    let tensors: Vec<&NewTensor> = edits
        .iter()
        .flat_map(|edit| edit.change.tensors())
        .collect();
    let mut computed: AllComputed = map_of(tensors.len());
    for batch in tensors.chunks(BATCH) {
        let before = computed.len();
        let progress = |done, all| progress(before + batch.len() * done / all, tensors.len());
        computed.extend(compute_batch(batch, analysis, &progress));
    }
    computed
}

/// Computes some of them.
fn compute_batch(
    batch: &[&NewTensor],
    analysis: &Analysis,
    progress: &dyn Fn(usize, usize),
) -> AllComputed {
    let mut failed = AllComputed::default();
    let (mut large, mut small, mut shared) = (vec![], vec![], HashMap::default());
    for &new in batch {
        match promise(new, analysis, &mut shared) {
            Ok(promise) if is_large(new) => large.push((new, promise)),
            Ok(promise) => small.push((new, promise)),
            Err(reason) => drop(failed.insert(std::ptr::from_ref(new), Err(reason))),
        }
    }
    // Biases first: they read the weights, whose ranges are known afterwards.
    let now = by_all_cores(&small, &|(new, promise)| at_once(new, promise), &|done| {
        progress(done, batch.len())
    });
    let foreseen: Vec<_> = large.iter().map(|(_, promise)| foreseen(promise)).collect();
    let unseen = |tensor: usize| {
        if foreseen[tensor].is_some() {
            0
        } else {
            large[tensor].1.parts()
        }
    };
    let parts: Vec<(usize, usize)> = (0..large.len())
        .flat_map(|tensor| (0..unseen(tensor)).map(move |part| (tensor, part)))
        .collect();
    let looked = by_all_cores(
        &parts,
        &|&(tensor, part)| look(&large[tensor].1, part),
        &|done| {
            progress(
                small.len() + large.len() * done / parts.len().max(1),
                batch.len(),
            );
        },
    );
    let mut looked = looked.into_iter();
    let large = large
        .into_iter()
        .zip(foreseen)
        .map(|((new, promise), foreseen)| {
            let found = match foreseen {
                Some(found) => vec![Ok((found, vec![]))],
                None => looked.by_ref().take(promise.parts()).collect(),
            };
            (std::ptr::from_ref(new), looked_through(new, promise, found))
        });
    let large: Vec<_> = large.collect();
    let small = small
        .iter()
        .zip(now)
        .map(|((new, _), tensor)| (std::ptr::from_ref(*new), tensor));
    failed.into_iter().chain(large).chain(small).collect()
}

/// The results of pieces of work on all cores; reports progress.
fn by_all_cores<W: Sync, R: Send>(
    work: &[W],
    piece: &(dyn Fn(&W) -> R + Sync),
    progress: &dyn Fn(usize),
) -> Vec<R> {
    let (done, (end, ended)) = (AtomicUsize::new(0), mpsc::channel::<()>());
    std::thread::scope(|scope| {
        let pieces = scope.spawn(|| {
            // Dropped at the end, however the work ends.
            let _end = end;
            let pieces = work.par_iter().map(|work| {
                let result = piece(work);
                done.fetch_add(1, Ordering::Relaxed);
                result
            });
            pieces.collect()
        });
        while ended.recv_timeout(GLANCE) == Err(RecvTimeoutError::Timeout) {
            progress(done.load(Ordering::Relaxed));
        }
        progress(work.len());
        pieces
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Whether the elements of a new tensor are computed when they are written.
fn is_large(new: &NewTensor) -> bool {
    new.replaces.is_some() && new.recipe.len() > LARGE
}

/// A new tensor, and where its constants are, which all share that read them.
fn promise(
    new: &NewTensor,
    analysis: &Analysis,
    shared: &mut HashMap<ValueId, Given>,
) -> Result<Promise, Reason> {
    let data_type = float(new.data_type)?;
    let mut given = vec![];
    let mut recipes = vec![&new.recipe];
    if let Rounding::Weight(before, _) = &new.rounding {
        recipes.push(before);
    }
    for name in recipes.into_iter().flat_map(Recipe::constants) {
        let value = analysis.graph.value(name).ok_or(Reason::NotConstant)?;
        let constant = match shared.entry(value) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(place) => place.insert(
                analysis
                    .constants
                    .given(value)
                    .map_err(|refusal| refusal.reason)?,
            ),
        };
        given.push((name.clone(), constant.clone()));
    }
    Ok(Promise::new(new.recipe.clone(), data_type, given))
}

/// Computes one new tensor, by all cores if it is large.
fn alone(new: &NewTensor, analysis: &Analysis) -> Result<Computed, Reason> {
    let promise = promise(new, analysis, &mut HashMap::default())?;
    if !is_large(new) {
        return at_once(new, &promise);
    }
    let parts = (0..promise.parts())
        .into_par_iter()
        .map(|part| look(&promise, part))
        .collect();
    looked_through(new, promise, parts)
}

/// The extremes of a part of a large tensor, and its elements, if they take long to compute.
type Looked = Result<(Extremes, Vec<u8>), Reason>;

fn look(promise: &Promise, part: usize) -> Looked {
    let mut bytes = vec![];
    let found = extremes(promise, part, promise.is_costly().then_some(&mut bytes))?;
    Ok((found, bytes))
}

/// A large tensor all of whose parts were looked at.
fn looked_through(
    new: &NewTensor,
    promise: Promise,
    parts: Vec<Looked>,
) -> Result<Computed, Reason> {
    let (found, elements): (Vec<_>, Vec<_>) = parts
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?
        .into_iter()
        .unzip();
    new.rounding.check(&promise, found)?;
    if !promise.is_costly() {
        return Ok(Computed::Later(Arc::new(promise)));
    }
    let mut tensor = tensor::without_elements(promise.data_type(), promise.shape());
    tensor.raw_data = Some(elements.concat().into());
    Ok(Computed::Now(Box::new(tensor)))
}

fn at_once(new: &NewTensor, promise: &Promise) -> Result<Computed, Reason> {
    let numbers = promise.numbers().map_err(|refusal| refusal.reason)?;
    let tensor = new.rounding.store(promise.data_type(), &numbers, &|name| {
        promise.constant(name)
    })?;
    Ok(Computed::Now(Box::new(tensor)))
}

struct Work<'w, 'm> {
    analysis: &'w Analysis<'w>,
    graph: &'w Graph<'w>,
    editor: &'w mut Editor<'m>,
    /// The sites on whose behalf something is made.
    sites: &'w [usize],
    stored: Vec<Stored>,
    computed: AllComputed,
    /// The tensors stored in place of a constant, with their indices.
    taken: HashMap<ValueId, Vec<(Imprint, usize)>>,
}

/// The identity of a new tensor, to find equal ones.
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

    /// Whether the elements are the same.
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

/// Whether two recipes give the same numbers before these are rounded.
fn are_equal(one: &Recipe, other: &Recipe, analysis: &Analysis) -> bool {
    let read = |name: &str| {
        let value = analysis
            .graph
            .value(name)
            .ok_or_else(|| Refusal::new(Reason::NotConstant, name))?;
        analysis.constants.read(value)
    };
    let is_same_constant = |one: &str, other: &str| {
        one == other || matches!((read(one), read(other)), (Ok(one), Ok(other)) if one == other)
    };
    if one.is_alike(other, &is_same_constant) {
        return true;
    }
    // A large tensor is not computed for this.
    one.len() <= LARGE
        && matches!((evaluate(one, &read), evaluate(other, &read)), (Ok(one), Ok(other)) if one == other)
}

impl Computed {
    fn tensor(self, graph: &Graph) -> TensorProto {
        match self {
            Computed::Now(tensor) => *tensor,
            Computed::Later(promise) => {
                let mut tensor = tensor::without_elements(promise.data_type(), promise.shape());
                graph
                    .model()
                    .externals()
                    .hold(&mut tensor, Data::Made(promise));
                tensor
            }
        }
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
        }
        Ok(())
    }

    /// Stores a tensor under a name of its own, and gives the name.
    fn store(&mut self, new: &NewTensor) -> Result<String, Reason> {
        let computed = self.computed.remove(&std::ptr::from_ref(new));
        let computed = computed.unwrap_or_else(|| alone(new, self.analysis))?;
        let before = new
            .replaces
            .map(|value| self.taken.entry(value).or_default());
        let mut same = before
            .iter()
            .flat_map(|before| before.iter())
            .filter(|(taken, _)| taken.is(&computed));
        // A tensor has one recipe: numbers that only rounding makes equal are stored apart.
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

    /// Puts a Mul behind the producer of a value, for these readers, and under the name of the
    /// value for the caller.
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
                // The first reader may be in a body, and the others outside of it.
                move_to(&mut made, "");
                self.editor.insert_first(made);
            }
        }
        Ok(())
    }

    /// Puts a new node behind one of the graph.
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

    /// Puts the nodes of a replacement behind the last of those that they replace.
    fn replace(&mut self, replacement: &Replacement) -> Result<(), Reason> {
        let mut names = self.store_constants(&replacement.constants)?;
        let last = self.last(&replacement.nodes)?;
        self.editor.drop_nodes(&replacement.nodes);
        let replaced = replacement.nodes.iter();
        let mut free: HashSet<&str> = replaced.map(|&node| self.graph.name(node)).collect();
        for node in &replacement.made {
            let mut node = node.clone();
            for output in node
                .output
                .iter()
                .filter(|output| self.graph.value(output).is_none())
            {
                names.insert(output.clone(), self.editor.fresh(output));
            }
            for name in node.input.iter_mut().chain(&mut node.output) {
                if let Some(analysis) = names.get(name) {
                    analysis.clone_into(name);
                }
            }
            // One new node may have the name of one that it replaces.
            if !free.remove(node.name()) {
                node.name = Some(self.editor.fresh(node.name()));
            }
            drop_shards_of_others(&mut node);
            self.editor.insert_behind(last, node);
        }
        Ok(())
    }

    /// Adds the constants of a replacement, and returns their names in the graph by those in the replacement.
    fn store_constants(
        &mut self,
        constants: &[NewConstant],
    ) -> Result<HashMap<String, String>, Reason> {
        let mut names: HashMap<String, String> = HashMap::default();
        for constant in constants {
            let name = match constant {
                NewConstant::Integers { name, values } => self
                    .editor
                    .add_constant(name, tensor::make_i64(name, values)),
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
                })?,
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
                })?,
            };
            names.insert(constant.name().to_owned(), name);
        }
        Ok(names)
    }
}
