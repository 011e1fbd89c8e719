//! Infers the facts about the inputs and results of bodies in a flattened graph.
//!
//! The extents of a loop's state are constant if one iteration of the body keeps them. The
//! inference first assumes this for all axes, and then drops the assumption for each axis for which
//! it does not hold.

use std::collections::BTreeSet;
use std::rc::Rc;

use tract_onnx::prelude::{DatumType, InferenceFact, TVec};
use tract_onnx::tract_hir::infer::{Factoid, ShapeFactoid};
use tract_onnx::tract_hir::internal::DimFact;

use crate::hash::HashMap;
use crate::ir::axes::axis;
use crate::ir::regions::{BEGIN, END, NUMBER};
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::node::states;
use crate::onnx::proto::NodeProto;
use crate::shape::encode::{number, only, rank, type_alone};

/// The assumptions about the loops of a flattened graph.
pub(crate) struct LoopStates {
    /// The nodes at which bodies begin, by the numbers of the bodies.
    begins: HashMap<i64, NodeId>,
    /// The states whose extents may change between iterations, with the axes along which they
    /// change; `None` for all axes.
    changing: HashMap<ValueId, Option<BTreeSet<usize>>>,
}

/// The nodes at which the body of a loop begins and ends.
struct Ending<'g> {
    graph: &'g Graph<'g>,
    begin: NodeId,
    end: NodeId,
    /// The number of inputs of the body before the first state.
    first: usize,
    /// The number of results of the body before the first state.
    lead: usize,
    /// The number of states.
    states: usize,
}

impl Ending<'_> {
    /// The value of a state as an input of the body.
    fn given(&self, state: usize) -> Option<ValueId> {
        self.graph.output(self.begin, self.first + state)
    }

    /// The value that the body computes for a state or a scan output. `slot` counts the states
    /// first, and then the scan outputs.
    fn made(&self, slot: usize) -> Option<ValueId> {
        self.graph.input(
            self.end,
            self.graph.inputs(self.begin).len() + self.lead + slot,
        )
    }

    /// The fact about a result of the loop. For a state, it is the fact about the state as an input
    /// of the body, because this fact holds in every iteration.
    fn result(&self, slot: usize, facts: &[Rc<InferenceFact>]) -> InferenceFact {
        match self.given(slot).filter(|_| slot < self.states) {
            Some(state) => fact(facts, Some(state)),
            None => {
                let made = fact(facts, self.made(slot));
                of_all_iterations(&made, self.graph.node(self.end))
            }
        }
    }
}

impl LoopStates {
    pub(crate) fn new(graph: &Graph) -> Self {
        let begins = graph
            .order()
            .iter()
            .filter(|&&node| graph.node(node).domain() == BEGIN);
        let begins = begins
            .filter_map(|&node| Some((region_number(graph.node(node))?, node)))
            .collect();
        LoopStates {
            begins,
            changing: HashMap::default(),
        }
    }

    /// The facts about the outputs of a node at which a region begins or ends; `None` for other
    /// nodes.
    pub(crate) fn infer(
        &self,
        graph: &Graph,
        node: NodeId,
        facts: &[Rc<InferenceFact>],
    ) -> Option<Vec<InferenceFact>> {
        let proto = graph.node(node);
        let slots = 0..graph.outputs(node).len();
        match proto.domain() {
            BEGIN => Some(
                slots
                    .map(|slot| body_input(graph, node, slot, facts))
                    .collect(),
            ),
            END if proto.op_type() == "If" => Some(branch_results(graph, node, facts)),
            END => {
                let ending = self.ending(graph, node)?;
                Some(slots.map(|slot| ending.result(slot, facts)).collect())
            }
            _ => None,
        }
    }

    fn ending<'g>(&self, graph: &'g Graph<'g>, end: NodeId) -> Option<Ending<'g>> {
        let proto = graph.node(end);
        let begin = *self.begins.get(&region_number(proto)?)?;
        let (first, lead) = if proto.op_type() == "Loop" {
            (2, 1)
        } else {
            (0, 0)
        };
        let states = states(proto, graph.inputs(begin).len())?;
        Some(Ending {
            graph,
            begin,
            end,
            first,
            lead,
            states,
        })
    }

    /// Drops the extents of a value that may change between iterations from the fact about the
    /// value.
    pub(crate) fn in_every_iteration(
        &self,
        value: ValueId,
        fact: Rc<InferenceFact>,
    ) -> Rc<InferenceFact> {
        let changed = match self.changing.get(&value) {
            None => return fact,
            Some(Some(axes)) if !fact.shape.is_open() => {
                let dims = fact.shape.dims().enumerate();
                let dims = dims.map(|(axis, dim)| {
                    if axes.contains(&axis) {
                        DimFact::default()
                    } else {
                        dim.clone()
                    }
                });
                let dims: TVec<DimFact> = dims.collect();
                type_alone(&fact).with_shape(ShapeFactoid::closed(dims))
            }
            Some(_) => type_alone(&fact),
        };
        Rc::new(changed)
    }

    /// Drops the assumptions that the inferred facts contradict. Returns whether one was dropped.
    pub(crate) fn learn(&mut self, graph: &Graph, facts: &[Rc<InferenceFact>]) -> bool {
        let mut learned = false;
        for &node in graph.order() {
            let proto = graph.node(node);
            if proto.domain() != END || proto.op_type() == "If" {
                continue;
            }
            let Some(ending) = self.ending(graph, node) else {
                continue;
            };
            for state in 0..ending.states {
                let (Some(given), Some(made)) = (ending.given(state), ending.made(state)) else {
                    continue;
                };
                let axes = changing(&facts[given.index()], &facts[made.index()]);
                if axes.as_ref().is_some_and(Vec::is_empty) {
                    continue;
                }
                learned = true;
                let changing = self
                    .changing
                    .entry(given)
                    .or_insert_with(|| Some(BTreeSet::new()));
                match (changing.as_mut(), axes) {
                    (Some(changing), Some(axes)) => changing.extend(axes),
                    _ => *changing = None,
                }
            }
        }
        learned
    }
}

fn region_number(node: &NodeProto) -> Option<i64> {
    node.attr_i(NUMBER).ok().flatten()
}

/// The fact about a value. If the value is absent, an unknown fact.
fn fact(facts: &[Rc<InferenceFact>], value: Option<ValueId>) -> InferenceFact {
    match value {
        Some(value) => InferenceFact::clone(&facts[value.index()]),
        None => InferenceFact::default(),
    }
}

/// The fact about an input of a body that holds in each iteration.
fn body_input(
    graph: &Graph,
    node: NodeId,
    slot: usize,
    facts: &[Rc<InferenceFact>],
) -> InferenceFact {
    let proto = graph.node(node);
    match (proto.op_type(), slot) {
        ("Loop", 0) => return InferenceFact::default().with_datum_type(DatumType::I64),
        ("Loop", 1) => return InferenceFact::default().with_datum_type(DatumType::Bool),
        _ => {}
    }
    let fact = fact(facts, graph.input(node, slot)).without_value();
    match states(proto, graph.inputs(node).len()) {
        Some(states) if proto.op_type() == "Scan" && slot >= states => {
            of_one_iteration(&fact, proto, slot - states)
        }
        Some(_) => fact,
        None => type_alone(&fact),
    }
}

/// The facts about the results of an If. If the branch that runs is known, they are those of this
/// branch. Otherwise they are the facts that hold for both branches.
fn branch_results(graph: &Graph, end: NodeId, facts: &[Rc<InferenceFact>]) -> Vec<InferenceFact> {
    let count = graph.outputs(end).len();
    let condition = fact(facts, graph.input(end, 0)).value.concretize();
    let taken = condition.and_then(|value| only::<bool>(&value));
    let results = (0..count).map(|slot| {
        let when_false = graph.input(end, 1 + slot);
        let when_true = graph.input(end, 1 + count + slot);
        match taken {
            Some(false) => fact(facts, when_false),
            Some(true) => fact(facts, when_true),
            None => common(&fact(facts, when_false), &fact(facts, when_true)),
        }
    });
    results.collect()
}

/// The fact about the part of a Scan's input that one iteration reads.
fn of_one_iteration(fact: &InferenceFact, node: &NodeProto, place: usize) -> InferenceFact {
    let mut dims: TVec<DimFact> = fact.shape.dims().cloned().collect();
    let along = match node.attr_ints("scan_input_axes") {
        Ok(Some(axes)) => axes.get(place).copied(),
        Ok(None) => Some(0),
        Err(_) => None,
    };
    match along
        .and_then(|along| axis(along, dims.len()).ok())
        .filter(|_| !fact.shape.is_open())
    {
        Some(along) => {
            dims.remove(along);
            fact.clone().with_shape(ShapeFactoid::closed(dims))
        }
        None => type_alone(fact),
    }
}

/// The fact about a scan output. The number of iterations is unknown. Symbolic extents are dropped,
/// because a symbol may stand for a different extent in each iteration.
fn of_all_iterations(fact: &InferenceFact, node: &NodeProto) -> InferenceFact {
    if fact.shape.is_open()
        || node
            .attribute
            .iter()
            .any(|attribute| attribute.name() == "scan_output_axes")
    {
        return type_alone(fact);
    }
    // A new axis for the iterations precedes the axes of the part of one iteration.
    let mut dims: TVec<DimFact> = TVec::new();
    dims.push(DimFact::default());
    dims.extend(fact.shape.dims().map(|dim| match number(dim) {
        Some(_) => dim.clone(),
        None => DimFact::default(),
    }));
    type_alone(fact).with_shape(ShapeFactoid::closed(dims))
}

/// The axes along which the extent of a state before an iteration, `given`, may differ from that
/// after the iteration, `made`. `None` if the rank of `made` is unknown or differs from that of
/// `given`. If the rank of `given` is unknown, there is no axis.
fn changing(given: &InferenceFact, made: &InferenceFact) -> Option<Vec<usize>> {
    if given.shape.is_open() {
        return Some(vec![]);
    }
    if made.shape.is_open() || given.shape.dims().count() != made.shape.dims().count() {
        return None;
    }
    let pairs = given.shape.dims().zip(made.shape.dims()).enumerate();
    let changing = pairs.filter(|(_, (given, made))| given.concretize().is_some() && given != made);
    Some(changing.map(|(axis, _)| axis).collect())
}

/// The type and the extents that two facts have in common.
pub(crate) fn common(one: &InferenceFact, other: &InferenceFact) -> InferenceFact {
    let mut fact = InferenceFact::default();
    if one.datum_type == other.datum_type {
        fact.datum_type = one.datum_type;
    }
    if rank(one).is_some() && rank(one) == rank(other) {
        let dims = one.shape.dims().zip(other.shape.dims());
        let dims = dims.map(|(one, other)| {
            if one == other {
                one.clone()
            } else {
                DimFact::default()
            }
        });
        fact.shape = ShapeFactoid::closed(dims.collect());
    }
    fact
}
