//! Materialization: the edits of a plan, with every new tensor as a formula.
//!
//! For `y = W·x + b`, a fold of `s·x + t` on the operand makes `W' = W·diag(s)` and `b' = b + W·t`, and one on
//! the result makes `W' = diag(s)·W` and `b' = s·b + t`: Algorithm 1 of the UN paper, once for each fold that
//! an operator takes. No weight is read for that.

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

/// A tensor of the result that the model does not have.
#[derive(Debug, Clone)]
pub struct NewTensor {
    /// The wanted name, which is changed if it is taken.
    pub wish: String,
    /// The constant that it replaces. Equal changes of one constant are stored once.
    pub replaces: Option<ValueId>,
    /// Its element type, if known.
    pub data_type: Option<DataType>,
    /// Its formula.
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
    /// An Add of a new tensor to the result of a node.
    AddBehind(NodeId, NewTensor),
    /// A Mul of a value by a new tensor. Only the named readers read the product.
    Mul {
        /// The value.
        value: ValueId,
        /// The readers of the product, as nodes and inputs.
        readers: Vec<(NodeId, usize)>,
        /// Whether the value is an output of the graph, which becomes the product.
        is_output: bool,
        /// The factor.
        tensor: NewTensor,
    },
    /// A row of nodes replaces others, each with one new tensor. An empty row makes the output another name of the input.
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
    /// Nodes are replaced by fewer nodes, or cheaper ones.
    Replace(Replacement),
}

impl Change {
    /// The new tensors of the change, but for those of replacements.
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

/// A change, and the sites for which it is made.
#[derive(Debug, Clone)]
pub struct Edit {
    /// The sites whose affines meet in it.
    pub sites: Vec<usize>,
    /// The name of the node or value that changes.
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
pub struct Failed {
    /// The sites for which it was planned.
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
    let materializer = Materializer::new(plan, analysis);
    // Most folds change a weight and a bias.
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

/// The edits so far, and the edits that have no formula.
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
