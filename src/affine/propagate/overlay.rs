//! An overlay of the graph: the graph of the model without the nodes that are planned to be
//! removed.
//!
//! The model never changes. If a part folds, its output becomes another name of its input. Readers
//! and producers are looked up by any of these names.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use crate::affine::linear::biased::Biased;
use crate::affine::linear::linear;
use crate::affine::rule::{At, Fold, Rule, Side};
use crate::analysis::Analysis;
use crate::analysis::constants::Constants;
use crate::hash::{HashMap, HashSet};
use crate::ir::node_set::NodeSet;
use crate::ir::{Graph, NodeId, Reader, ValueId};
use crate::refusal::Refusal;
use crate::shape::facts::Facts;

/// The graph after the decisions so far.
pub(crate) struct GraphOverlay<'a> {
    /// The graph, its facts and its constants.
    pub graph: &'a Graph<'a>,
    pub facts: &'a Facts,
    pub constants: &'a Constants<'a>,
    analysis: &'a Analysis<'a>,
    /// The folds, in the order in which they were decided. They are applied in this order.
    pub folds: Vec<Fold>,
    /// The values whose readers or names differ from those in the graph, because the values lost a
    /// reader or have several names. `of` maps each name of such a value to its index here.
    values: Vec<Merged>,
    of: Vec<Option<u32>>,
    /// The values that lost their only reader and are otherwise unchanged. Most of them are
    /// constants.
    unread: NodeSet,
    /// The nodes of parts that have not folded, each with the index of its item. Their constants
    /// must not change.
    pub owned: HashMap<NodeId, usize>,
    dead_ends: RefCell<HashMap<(ValueId, Route), Rc<Refusal>>>,
    touched: NodeSet,
    /// The nodes that will add a summand that they do not add in the model.
    shifted: NodeSet,
    /// The nodes that other nodes replace, or whose parameters become neutral.
    pub replaced: HashSet<NodeId>,
    /// The nodes after which an Add will be inserted.
    pub makes: HashSet<NodeId>,
    /// For each folded node whose bias is in an Add, that Add and the input of its constant.
    pub bias_adds: HashMap<NodeId, (NodeId, usize)>,
}

/// A way in which an affine propagates from a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Route {
    /// Forward, past the parts that it reaches.
    PastParts,
    /// Forward, into the first part that it reaches.
    IntoParts,
    /// Backward to the producers.
    Backward,
}

/// A value with all its names. If a part is removed, its output becomes another name of its input.
struct Merged {
    /// The name that stays.
    source: ValueId,
    names: Vec<ValueId>,
    /// The readers after the planned removals, each with the name that it reads.
    readers: BTreeSet<(ValueId, Reader)>,
}

impl Merged {
    fn size(&self) -> usize {
        self.names.len() + self.readers.len()
    }
}

impl<'a> GraphOverlay<'a> {
    pub(crate) fn new(analysis: &'a Analysis<'a>) -> Self {
        let Analysis {
            graph,
            facts,
            constants,
            ..
        } = analysis;
        GraphOverlay {
            analysis,
            graph,
            facts,
            constants,
            folds: vec![],
            values: vec![],
            of: vec![None; graph.value_count()],
            unread: NodeSet::none_of(graph.value_count()),
            owned: HashMap::default(),
            dead_ends: RefCell::default(),
            touched: NodeSet::none_of(graph.order().len()),
            shifted: NodeSet::none_of(graph.order().len()),
            replaced: HashSet::default(),
            makes: HashSet::default(),
            bias_adds: HashMap::default(),
        }
    }

    /// The view of a node that rules read. The view shows the model without planned changes.
    pub(crate) fn at(&self, node: NodeId) -> At<'a> {
        self.analysis.at(node)
    }

    /// Whether a node belongs to an activation, whose constants must not change.
    pub(crate) fn is_of_activation(&self, node: NodeId) -> bool {
        self.analysis.activations.contains(node)
    }

    /// The value that replaces this value after the planned removals, or the value itself if
    /// nothing replaces it.
    pub(crate) fn source(&self, value: ValueId) -> ValueId {
        self.of[value.index()].map_or(value, |merged| self.values[merged as usize].source)
    }

    /// The readers of a value, under any of its names, after the planned removals. Each reader
    /// comes with the name that it reads.
    pub(crate) fn readers(&self, value: ValueId) -> impl Iterator<Item = (ValueId, Reader)> + '_ {
        let merged = self.of[value.index()].map(|merged| &self.values[merged as usize].readers);
        let own = if merged.is_none() {
            self.own_readers(value)
        } else {
            &[]
        };
        own.iter()
            .map(move |reader| (value, *reader))
            .chain(merged.into_iter().flatten().copied())
    }

    /// The readers of a value after the planned removals, if the value has no other names.
    fn own_readers(&self, value: ValueId) -> &'a [Reader] {
        if self.unread.contains(value.index()) {
            &[]
        } else {
            self.graph.readers(value)
        }
    }

    /// The only node that reads the elements of a value, with the index of the input at which it
    /// does. `None` if the value has no or several such readers, or if a reader is not a node.
    pub(crate) fn only_reader(&self, value: ValueId) -> Option<(NodeId, usize)> {
        let mut only = None;
        for (_, reader) in self.readers(value) {
            match reader {
                Reader::Node { node, input } if !self.graph.reads_elements(node, input) => {}
                Reader::Node { node, input } if only.is_none() => only = Some((node, input)),
                _ => return None,
            }
        }
        only
    }

    /// Whether a node belongs to no part and is not replaced.
    pub(crate) fn is_free(&self, node: NodeId) -> bool {
        !self.owned.contains_key(&node) && !self.replaced.contains(&node)
    }

    /// The refusal that every scale meets on a route from a value, if one is known. The refusal
    /// stays valid, because no later fold makes an operator absorb a scale that it refused before.
    pub(crate) fn dead_end(&self, value: ValueId, route: Route) -> Option<Refusal> {
        self.dead_ends
            .borrow()
            .get(&(value, route))
            .map(|refusal| Refusal::clone(refusal))
    }

    /// Records that every scale meets a refusal on a route from a value. An earlier refusal is
    /// kept.
    pub(crate) fn set_dead_end(&self, value: ValueId, route: Route, why: &Rc<Refusal>) {
        self.dead_ends
            .borrow_mut()
            .entry((value, route))
            .or_insert_with(|| why.clone());
    }

    /// Whether a fold changes a constant of this node.
    pub(crate) fn is_touched(&self, node: NodeId) -> bool {
        self.touched.contains(node)
    }

    /// Whether a fold adds a summand to the result of this node, so that a scale without a shift
    /// cannot pass it.
    pub(crate) fn is_shifted(&self, node: NodeId) -> bool {
        self.shifted.contains(node)
    }

    /// Appends folds to the earlier ones.
    pub(crate) fn fold(&mut self, folds: Vec<Fold>) {
        for fold in &folds {
            self.touched.insert(fold.node);
            let beside = if let Side::Rows { of, .. } = fold.side {
                Some(of)
            } else {
                None
            };
            // Records the bias Add of the layer from which rows are added, too.
            self.bias_adds
                .extend(beside.and_then(|of| Some((of, self.bias_add(of)?))));
            if beside.is_some()
                || !fold.affine.has_no_shift() && !matches!(fold.side, Side::Constant(_))
            {
                self.shifted.insert(fold.node);
            }
            if !matches!(fold.side, Side::Constant(_))
                && let Some(add) = self.bias_add(fold.node)
            {
                self.touched.insert(add.0);
                self.bias_adds.insert(fold.node, add);
            }
        }
        self.folds.extend(folds);
    }

    /// Removes nodes: `output` becomes another name of `source`.
    pub(crate) fn remove(&mut self, nodes: &[NodeId], output: ValueId, source: ValueId) {
        let graph = self.graph;
        for &node in nodes {
            for (input, &value) in graph.inputs(node).iter().enumerate() {
                let Some(value) = value else { continue };
                if self.of[value.index()].is_none() && graph.readers(value).len() == 1 {
                    self.unread.insert(value.index());
                    continue;
                }
                let merged = self.merged(value);
                self.values[merged]
                    .readers
                    .remove(&(value, Reader::Node { node, input }));
            }
        }
        if output == source {
            return;
        }
        let (mut kept, mut other) = (self.merged(source), self.merged(output));
        let source = self.values[kept].source;
        if self.values[kept].size() < self.values[other].size() {
            std::mem::swap(&mut kept, &mut other);
        }
        let (names, readers) = (
            std::mem::take(&mut self.values[other].names),
            std::mem::take(&mut self.values[other].readers),
        );
        names
            .iter()
            .for_each(|name| self.of[name.index()] = Some(kept as u32));
        let kept = &mut self.values[kept];
        kept.source = source;
        kept.names.extend(names);
        kept.readers.extend(readers);
    }

    /// The index of a value in `values`. Adds the value if it is not there yet.
    fn merged(&mut self, value: ValueId) -> usize {
        if let Some(merged) = self.of[value.index()] {
            return merged as usize;
        }
        let readers = self
            .own_readers(value)
            .iter()
            .map(|&reader| (value, reader))
            .collect();
        let merged = self.values.len();
        self.values.push(Merged {
            source: value,
            names: vec![value],
            readers,
        });
        self.of[value.index()] = Some(merged as u32);
        merged
    }

    /// Whether an Add that reads the result of a node is being replaced, so that it cannot hold a
    /// bias of the node.
    pub(crate) fn loses_bias(&self, node: NodeId) -> bool {
        let output = self.graph.only_output(node);
        output
            .into_iter()
            .flat_map(|output| self.readers(output))
            .any(|(_, reader)| match reader {
                Reader::Node { node, .. } => {
                    self.graph.is(node, "Add") && self.replaced.contains(&node)
                }
                _ => false,
            })
    }

    /// The bias Add of an operator with a weight. It is the only reader of the operator's only
    /// output, and either an Add of a constant or an activation with a bias.
    ///
    /// Returns the Add and the input of its constant. `None` if there is no such Add, or if its
    /// constant cannot change.
    pub(crate) fn bias_add(&self, node: NodeId) -> Option<(NodeId, usize)> {
        linear(self.graph.domain_op(node)).filter(|linear| linear.is_layer())?;
        let output = self.graph.only_output(node)?;
        let mut readers = self.readers(output);
        let (Some((_, Reader::Node { node: add, input })), None) = (readers.next(), readers.next())
        else {
            return None;
        };
        let slot = 1 - input.min(1);
        let operator = self.graph.domain_op(add);
        let adds = operator == ("", "Add") || (slot == 1 && Biased.is_for(operator));
        let sum = self.graph.output(add, 0)?;
        let has_same_shape = self.facts.shape(output)? == self.facts.shape(sum)?;
        let fits = adds && !self.owned.contains_key(&add) && has_same_shape;
        (fits && self.is_readable(add, slot)).then_some((add, slot))
    }

    /// Whether an input is a constant whose elements can be read and changed.
    fn is_readable(&self, node: NodeId, slot: usize) -> bool {
        let weight = self.at(node).weight(slot);
        weight.is_ok_and(|value| self.constants.check(value).is_ok())
    }
}
