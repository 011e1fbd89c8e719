//! The growth of a model by copies of shared weights, and by biases that differ from place to place.
//!
//! If a fold changes a weight that has other readers, the model then holds both the old weight and
//! the new one. A new tensor takes the room of the removed tensors that it replaces, and only the
//! excess counts as growth. So the whole new tensor counts if the old weight stays, and nothing
//! counts if the old weight is removed. If two operators need different versions of a removed
//! weight, the second version counts.
//!
//! If a shift folds into a convolution with padding, a new Add after the convolution holds a bias
//! for each place. Such a bias replaces no tensor, so all of it counts.
//!
//! Only arrays with at least two axes longer than 1 count. Vectors, such as biases and scales, are
//! small compared with the matrices of a model, however small the model is.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use crate::affine::materialize::{Change, Edit, Failed};
use crate::affine::plan::{Removal, Stored};
use crate::analysis::Analysis;
use crate::ir::{Graph, NodeId, Reader, ValueId};
use crate::recipe::Recipe;
use crate::refusal::{Reason, Refusal};

/// Computes the growth of the model by each stored tensor, in bytes.
pub(crate) fn growth(
    stored: &[Stored],
    (edits, removals): (&[Edit], &[Removal]),
    analysis: &Analysis,
) -> Vec<u64> {
    let mut left = Left::behind(edits, removals, analysis);
    stored
        .iter()
        .map(|tensor| left.takes(tensor).unwrap_or_default())
        .collect()
}

/// Refuses sites, in order of falling growth, until the sites that are left add at most `allowed`
/// bytes in total. `weights` is the size of all weights in bytes, for the messages.
pub(crate) fn beyond(stored: &[Stored], growth: &[u64], allowed: f64, weights: u64) -> Vec<Failed> {
    let mut total: u64 = growth.iter().sum();
    let mut by_site: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    // For each stored tensor, the number of sites that still need it.
    let mut needed: Vec<usize> = vec![0; stored.len()];
    for (place, tensor) in stored
        .iter()
        .enumerate()
        .filter(|(place, _)| growth[*place] > 0)
    {
        needed[place] = tensor.sites.len();
        for &site in &tensor.sites {
            by_site.entry(site).or_default().push(place);
        }
    }
    let mut sites: Vec<(usize, Vec<usize>)> = by_site.into_iter().collect();
    sites.sort_by_key(|(_, places)| Reverse(bytes_of(places, growth)));
    let mut refused = vec![];
    for (site, places) in sites {
        let is_over = total as f64 > allowed;
        if !is_over {
            break;
        }
        for &place in &places {
            // If no site needs the tensor any more, it is not written.
            needed[place] = needed[place].saturating_sub(1);
            if needed[place] == 0 {
                total -= growth[place];
            }
        }
        let bytes = bytes_of(&places, growth);
        let largest = places
            .iter()
            .copied()
            .max_by_key(|&place| (growth[place], Reverse(place)));
        let largest = largest.map(|place| &stored[place]);
        let at = largest.map(|tensor| tensor.replaces.as_ref().unwrap_or(&tensor.name).clone());
        let percent = 100.0 * bytes as f64 / weights as f64;
        let reason = Reason::Growth(format!("{bytes} bytes, {percent:.1} % of the weights"));
        refused.push(Failed {
            sites: vec![site],
            refusal: Refusal::new(reason, at.unwrap_or_default()),
        });
    }
    refused
}

fn bytes_of(places: &[usize], growth: &[u64]) -> u64 {
    places.iter().map(|&place| growth[place]).sum()
}

/// Whether a tensor has at least two axes longer than 1.
fn is_array(shape: &[usize]) -> bool {
    shape.iter().filter(|&&extent| extent > 1).count() >= 2
}

/// Whether a reader is an Add or a Sub.
fn adds(graph: &Graph, reader: Reader) -> bool {
    match reader {
        Reader::Node { node, .. } => matches!(graph.domain_op(node), ("", "Add" | "Sub")),
        _ => false,
    }
}

/// The state of a model after edits, which decides how many bytes each new tensor adds.
struct Left<'l> {
    analysis: &'l Analysis<'l>,
    gone: HashSet<NodeId>,
    /// Inputs of nodes that the edits replace or clear.
    replaced: HashSet<(NodeId, usize)>,
    /// The constants of the new Adds after operators.
    biases: Vec<&'l Recipe>,
    /// The names of values that new nodes read, or that replace the results of removed nodes.
    read: HashSet<&'l str>,
    /// For each tensor of the model, the bytes that its removal frees and that no new tensor has
    /// taken so far.
    free: HashMap<ValueId, u64>,
}

impl<'l> Left<'l> {
    fn behind(edits: &'l [Edit], removals: &'l [Removal], analysis: &'l Analysis<'l>) -> Self {
        let mut gone: HashSet<NodeId> = removals
            .iter()
            .flat_map(|removal| &removal.nodes)
            .copied()
            .collect();
        let (mut replaced, mut biases) = (HashSet::new(), vec![]);
        // The readers of a removed node's result read the source of the removal instead.
        let mut read: HashSet<&str> = removals
            .iter()
            .map(|removal| removal.source.as_str())
            .collect();
        for edit in edits {
            match &edit.change {
                Change::Input(node, slot, _) | Change::NoInput(node, slot) => {
                    replaced.insert((*node, *slot));
                }
                Change::Chain { nodes, input, .. } => {
                    gone.extend(nodes);
                    read.insert(analysis.graph.value_name(*input));
                }
                Change::Replace(replacement) => {
                    gone.extend(&replacement.nodes);
                    read.extend(
                        replacement
                            .made
                            .iter()
                            .flat_map(|node| &node.input)
                            .map(String::as_str),
                    );
                }
                Change::AddBehind(_, tensor) => biases.push(&tensor.recipe),
                Change::Float(..) | Change::Mul { .. } | Change::FromInput { .. } => {}
            }
        }
        let mut left = Self {
            analysis,
            gone,
            replaced,
            biases,
            read,
            free: HashMap::new(),
        };
        left.drop_unread();
        left
    }

    /// Adds to the removed nodes each node whose results only removed nodes read.
    fn drop_unread(&mut self) {
        let graph = &self.analysis.graph;
        for &node in graph.order().iter().rev() {
            let mut outputs = graph.outputs(node).iter().flatten();
            let is_unread = outputs
                .clone()
                .any(|&value| !graph.readers(value).is_empty())
                && outputs.all(|&value| self.is_unread(value));
            if is_unread {
                self.gone.insert(node);
            }
        }
    }

    /// Whether no node that remains after the edits reads a value.
    fn is_unread(&self, value: ValueId) -> bool {
        let graph = &self.analysis.graph;
        let mut readers = graph.readers(value).iter();
        !self.read.contains(graph.value_name(value)) && readers.all(|reader| self.is_gone(reader))
    }

    /// Whether a reader is removed, or reads another value after the edits.
    fn is_gone(&self, reader: &Reader) -> bool {
        match *reader {
            Reader::Node { node, input } => {
                self.gone.contains(&node) || self.replaced.contains(&(node, input))
            }
            _ => false,
        }
    }

    /// Computes the excess of a new tensor over the removed tensors that it replaces, in bytes, and
    /// marks the bytes of the removed tensors as taken. `None` if the tensor does not count,
    /// because it has fewer than two axes longer than 1, or because it replaces no constant and is
    /// not the constant of a new Add after an operator.
    fn takes(&mut self, tensor: &Stored) -> Option<u64> {
        let shape = tensor.recipe.shape();
        if !is_array(shape) {
            return None;
        }
        let mut bytes = tensor.data_type.byte_size(shape.iter().product())? as u64;
        if self
            .biases
            .iter()
            .any(|bias| bias.id() == tensor.recipe.id())
        {
            return Some(bytes);
        }
        let replaced = self.analysis.graph.value(tensor.replaces.as_deref()?)?;
        let sources = self.sources(replaced);
        let before: u64 = sources
            .iter()
            .map(|&source| self.analysis.constants.stored_bytes(source))
            .sum();
        // The new tensor counts at most with the bytes of the tensors from which the replaced
        // constant was computed. The exception is a stored summand: its replacement counts in full.
        if sources != [replaced] || !self.is_summand(replaced) {
            bytes = bytes.min(before);
        }
        for source in sources {
            if !self.free.contains_key(&source) {
                let goes = !self.is_read(source);
                self.free.insert(
                    source,
                    if goes {
                        self.analysis.constants.stored_bytes(source)
                    } else {
                        0
                    },
                );
            }
            let room = self.free.entry(source).or_default();
            let taken = bytes.min(*room);
            (bytes, *room) = (bytes - taken, *room - taken);
        }
        Some(bytes)
    }

    /// Whether only sums read a constant.
    fn is_summand(&self, constant: ValueId) -> bool {
        let graph = &self.analysis.graph;
        let mut readers = graph.readers(constant).iter();
        readers.all(|&reader| adds(graph, reader))
    }

    /// Finds the tensors of the model from which a constant is computed. If it is not computed,
    /// this is the constant itself.
    fn sources(&self, constant: ValueId) -> Vec<ValueId> {
        let graph = &self.analysis.graph;
        let (mut open, mut seen, mut found) = (vec![constant], HashSet::new(), vec![]);
        while let Some(value) = open.pop().filter(|&value| seen.insert(value)) {
            match graph
                .producer(value)
                .filter(|&(node, _)| !graph.is(node, "Constant"))
            {
                Some((node, _)) => open.extend(graph.inputs(node).iter().flatten()),
                None => found.push(value),
            }
        }
        found
    }

    /// Whether a constant, or another constant that is computed from it, is still read after the
    /// edits.
    fn is_read(&self, constant: ValueId) -> bool {
        let graph = &self.analysis.graph;
        let (mut open, mut seen) = (vec![constant], HashSet::from([constant]));
        while let Some(value) = open.pop() {
            let readers = graph.readers(value);
            if readers.is_empty() || self.read.contains(graph.value_name(value)) {
                return true;
            }
            for reader in readers {
                if self.is_gone(reader) {
                    continue;
                }
                let Reader::Node { node, .. } = *reader else {
                    return true;
                };
                let made = graph.outputs(node).iter().flatten().copied();
                if !made
                    .clone()
                    .all(|value| self.analysis.constants.is_constant(value))
                {
                    return true;
                }
                open.extend(made.filter(|&value| seen.insert(value)));
            }
        }
        false
    }
}
