//! The graph as it will be: the model's own, less what is planned to go.
//!
//! Nothing of the model is changed. A part that is folded away makes its output another name of its
//! input; readers and producers are looked up through such names.

use std::collections::{HashMap, HashSet};

use super::absorb::biased::Biased;
use super::{At, Fold, Rule, Side};
use crate::graph::constants::Constants;
use crate::graph::facts::Facts;
use crate::graph::{Graph, NodeId, Reader, ValueId};

/// What is decided so far.
#[derive(Clone)]
pub struct Draft<'a> {
    /// The graph, its facts and its constants.
    pub graph: &'a Graph<'a>,
    pub facts: &'a Facts,
    pub constants: &'a Constants<'a, 'a>,
    /// Folds in the order in which they were decided, which is the order in which they apply.
    pub folds: Vec<Fold>,
    /// Nodes that will not be there.
    pub gone: HashSet<NodeId>,
    /// What a value is another name of.
    pub alias: HashMap<ValueId, ValueId>,
    names: HashMap<ValueId, Vec<ValueId>>,
    /// Nodes that belong to a part which is (still) there: their constants are not to be touched.
    pub owned: HashMap<NodeId, usize>,
    touched: HashSet<NodeId>,
    /// Nodes that will add something which they do not add in the model.
    shifted: HashSet<NodeId>,
    /// The Adds that hold the biases of folded nodes: node and slot.
    pub bias_adds: HashMap<NodeId, (NodeId, usize)>,
}

impl<'a> Draft<'a> {
    pub fn new(graph: &'a Graph<'a>, facts: &'a Facts, constants: &'a Constants<'a, 'a>) -> Self {
        Draft {
            graph,
            facts,
            constants,
            folds: vec![],
            gone: HashSet::new(),
            alias: HashMap::new(),
            names: HashMap::new(),
            owned: HashMap::new(),
            touched: HashSet::new(),
            shifted: HashSet::new(),
            bias_adds: HashMap::new(),
        }
    }

    /// The node as a rule sees it.
    pub fn at(&self, node: NodeId) -> At<'a> {
        At { graph: self.graph, facts: self.facts, constants: self.constants, node }
    }

    /// The value that this one will be another name of, or itself.
    pub fn source(&self, mut value: ValueId) -> ValueId {
        while let Some(&source) = self.alias.get(&value) {
            value = source;
        }
        value
    }

    /// Who will read a value, under all its names.
    pub fn readers(&self, value: ValueId) -> Vec<(ValueId, Reader)> {
        let mut found = vec![];
        let mut names = vec![value];
        while let Some(name) = names.pop() {
            let stays = |reader: &Reader| match reader {
                Reader::Node { node, .. } | Reader::Capture { node } => !self.gone.contains(node),
                Reader::Output => true,
            };
            found.extend(self.graph.readers(name).iter().filter(|r| stays(r)).map(|r| (name, *r)));
            names.extend(self.names.get(&name).into_iter().flatten());
        }
        found
    }

    /// Whether a fold changes a constant of this node.
    pub fn is_touched(&self, node: NodeId) -> bool {
        self.touched.contains(&node)
    }

    /// Whether a fold adds something to what this node makes, so that a bare scale cannot pass it.
    pub fn is_shifted(&self, node: NodeId) -> bool {
        self.shifted.contains(&node)
    }

    /// Takes folds in, behind those decided before.
    pub fn fold(&mut self, folds: Vec<Fold>) {
        for fold in &folds {
            self.touched.insert(fold.node);
            if !fold.affine.has_no_shift() && !matches!(fold.side, Side::Constant(_)) {
                self.shifted.insert(fold.node);
            }
            if let Some(add) = self.bias_add(fold.node) {
                self.touched.insert(add.0);
                self.bias_adds.insert(fold.node, add);
            }
        }
        self.folds.extend(folds);
    }

    /// The value will be another name of `source`, and `nodes` will be gone.
    pub fn remove(&mut self, nodes: &[NodeId], output: ValueId, source: ValueId) {
        self.gone.extend(nodes);
        if output != source {
            self.alias.insert(output, source);
            self.names.entry(source).or_default().push(output);
        }
    }

    /// What is behind a node, adds a constant to its only output and is its only reader: an Add, or an
    /// activation with a bias.
    ///
    /// Returns the node and the slot of its constant.
    pub fn bias_add(&self, node: NodeId) -> Option<(NodeId, usize)> {
        let output = self.graph.only_output(node)?;
        let [(_, Reader::Node { node: add, input })] = self.readers(output)[..] else { return None };
        let slot = 1 - input.min(1);
        let op = self.graph.op(add);
        let adds =
            (op == "Add" || (slot == 1 && Biased.ops().contains(&op))) && !self.owned.contains_key(&add);
        let same_shape = self.facts.shape(output)? == self.facts.shape(self.graph.output(add, 0)?)?;
        let fits = adds && same_shape && self.at(add).weight(slot).is_ok();
        fits.then_some((add, slot))
    }
}
