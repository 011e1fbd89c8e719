//! Materialization: converts a plan to edits, with a formula for every new tensor.
//!
//! For `y = W·x + b`, a fold of `s·x + t` on the operand gives `W' = W·diag(s)` and `b' = b + W·t`.
//! A fold on the result gives `W' = diag(s)·W` and `b' = s·b + t`. This is Algorithm 1 of the UN
//! paper, applied once for each fold of an operator. Materialization writes formulas, and reads no
//! weight.

mod constants;
mod materializer;

use self::materializer::Materializer;
use crate::affine::plan::Plan;
use crate::affine::recognize::Replacement;
use crate::affine::rounding::Rounding;
use crate::analysis::Analysis;
use crate::ir::builder::Maker;
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::tensor::DataType;
use crate::recipe::Recipe;
use crate::refusal::{Reason, Refusal};

/// A tensor that is in the result but not in the model.
#[derive(Debug, Clone)]
pub(crate) struct NewTensor {
    /// The preferred name. If it is taken, the tensor gets another name.
    pub wish: String,
    /// The constant that the tensor replaces, if any. Equal replacements of one constant are stored
    /// once.
    pub replaces: Option<ValueId>,
    /// The element type, if known.
    pub data_type: Option<DataType>,
    /// The formula of the elements.
    pub recipe: Recipe,
    /// The loss that is allowed when the tensor is rounded.
    pub rounding: Rounding,
}

/// One change of the graph.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    /// A node reads a new tensor at an input.
    Input(NodeId, usize, NewTensor),
    /// A node loses an optional input.
    NoInput(NodeId, usize),
    /// An attribute of a node gets another value.
    Float(NodeId, &'static str, f32),
    /// A new Add after a node adds a new tensor to its result.
    AddBehind(NodeId, NewTensor),
    /// A new Mul multiplies a value by a new tensor. Only `readers` read the product.
    Mul {
        /// The value.
        value: ValueId,
        /// The readers of the product, as pairs of node and input.
        readers: Vec<(NodeId, usize)>,
        /// Whether the value is an output of the graph. If so, the product becomes this output.
        is_output: bool,
        /// The factor.
        tensor: NewTensor,
    },
    /// A chain of new nodes, each of which reads one new tensor, replaces nodes. If the chain is
    /// empty, readers of the output read the input instead.
    Chain {
        /// The nodes that are removed.
        nodes: Vec<NodeId>,
        /// The input of the first new node.
        input: ValueId,
        /// The output of the last new node.
        output: ValueId,
        /// The operators of the new nodes and their new tensors.
        made: Vec<(&'static str, NewTensor)>,
    },
    /// New nodes replace other nodes, because the new nodes are fewer or run faster.
    Replace(Replacement),
    /// New nodes compute a value from inputs of the model. Only `readers`, and new nodes of later
    /// changes, read this value.
    FromInput {
        /// The readers of the last new value, as pairs of node and input.
        readers: Vec<(NodeId, usize)>,
        /// The new nodes. They replace no nodes.
        made: Replacement,
    },
}

impl Change {
    /// The new tensors of the change. The tensors of a [`Replacement`] are missing: they are
    /// computed when the replacement is written.
    pub(crate) fn tensors(&self) -> Vec<&NewTensor> {
        match self {
            Change::Input(_, _, tensor)
            | Change::AddBehind(_, tensor)
            | Change::Mul { tensor, .. } => {
                vec![tensor]
            }
            Change::Chain { made, .. } => made.iter().map(|(_, tensor)| tensor).collect(),
            Change::NoInput(..)
            | Change::Float(..)
            | Change::Replace(_)
            | Change::FromInput { .. } => vec![],
        }
    }

    /// The nodes of the graph that the change modifies or removes.
    pub(crate) fn nodes(&self) -> Vec<NodeId> {
        match self {
            Change::Input(node, ..) | Change::NoInput(node, _) => vec![*node],
            Change::Float(node, ..) | Change::AddBehind(node, _) => vec![*node],
            Change::Chain { nodes, .. } => nodes.clone(),
            Change::Replace(replacement) => replacement.nodes.clone(),
            Change::Mul { readers, .. } | Change::FromInput { readers, .. } => {
                readers.iter().map(|&(node, _)| node).collect()
            }
        }
    }
}

/// A change, and the sites that need it.
#[derive(Debug, Clone)]
pub(crate) struct Edit {
    /// The sites whose affines the change folds.
    pub sites: Vec<usize>,
    /// The name of the node or value that changes.
    pub at: String,
    /// The change.
    pub change: Change,
}

impl Edit {
    /// Builds an edit that replaces nodes and belongs to no site. It is named after `first`, the
    /// first of the replaced nodes.
    pub(crate) fn replacing(graph: &Graph, first: NodeId, replacement: Replacement) -> Self {
        Edit {
            sites: vec![],
            at: graph.name(first).to_owned(),
            change: Change::Replace(replacement),
        }
    }
}

/// Builds the edits that replace each node for which `form` returns new nodes. Nodes with several
/// outputs or a constant output stay unchanged.
pub(crate) fn written_anew<'m>(
    analysis: &'m Analysis,
    form: impl Fn(NodeId, ValueId) -> Option<Maker<'m>>,
) -> Vec<Edit> {
    let graph = &analysis.graph;
    let mut edits = vec![];
    for &node in graph.order() {
        let Some(output) = graph.only_output(node) else {
            continue;
        };
        if analysis.constants.is_constant(output) {
            continue;
        }
        if let Some(form) = form(node, output) {
            let (made, constants) = form.finish(graph.value_name(output));
            let replacement = Replacement {
                nodes: vec![node],
                made,
                constants,
            };
            edits.push(Edit::replacing(graph, node, replacement));
        }
    }
    edits
}

/// An edit that cannot be written as planned.
#[derive(Debug, Clone)]
pub(crate) struct Failed {
    /// The sites that need the edit.
    pub sites: Vec<usize>,
    /// The reason why the edit cannot be written.
    pub refusal: Refusal,
}

/// Builds the edits of a plan, in order. The removals of the plan are applied after them.
///
/// # Errors
/// [`Failed`] for each change that has no formula.
pub(crate) fn draw(plan: &Plan, analysis: &Analysis) -> Result<Vec<Edit>, Vec<Failed>> {
    let graph = &*analysis.graph;
    let materializer = Materializer::new(plan, analysis);
    // Most folds change a weight and a bias, so this reserves two edits for each.
    let changed =
        plan.folds.len() + plan.resets.len() + plan.replacements.len() + plan.rewrites.len();
    let mut edits = EditList::with_capacity(2 * changed);
    for (node, folds) in materializer.folds_by_operator() {
        let changes = materializer.operator(node, &folds);
        edits.add(materializer.sites(&folds), graph.name(node), changes);
    }
    for ((node, slot), folds) in materializer.folds_by_constant() {
        let changes = materializer.constant(node, slot, &folds);
        edits.add(materializer.sites(&folds), graph.name(node), changes);
    }
    for (reset, site) in &plan.resets {
        let changes = materializer.reset(reset).map(Vec::from_iter);
        edits.add(vec![*site], graph.name(reset.node), changes);
    }
    for (replacement, site) in &plan.replacements {
        let first = replacement.nodes.first();
        let at = first.map_or("", |&node| graph.name(node));
        let changes = Ok(vec![Change::Replace(replacement.clone())]);
        edits.add(vec![*site], at, changes);
    }
    for rewrite in &plan.rewrites {
        let at = graph.value_name(rewrite.part.output);
        edits.add(vec![rewrite.site], at, materializer.rewrite(rewrite));
    }
    edits.finish()
}

/// The edits so far, and the changes that failed because a new tensor has no formula.
struct EditList {
    edits: Vec<Edit>,
    failed: Vec<Failed>,
}

impl EditList {
    fn with_capacity(capacity: usize) -> Self {
        EditList {
            edits: Vec::with_capacity(capacity),
            failed: vec![],
        }
    }

    fn add(&mut self, sites: Vec<usize>, at: &str, changes: Result<Vec<Change>, Reason>) {
        match changes {
            Ok(changes) => self.edits.extend(changes.into_iter().map(|change| Edit {
                sites: sites.clone(),
                at: at.to_owned(),
                change,
            })),
            Err(reason) => self.failed.push(Failed {
                sites,
                refusal: Refusal::new(reason, at),
            }),
        }
    }

    fn finish(self) -> Result<Vec<Edit>, Vec<Failed>> {
        if self.failed.is_empty() {
            Ok(self.edits)
        } else {
            Err(self.failed)
        }
    }
}
