//! The facts about the inputs and results of bodies that are flattened into one graph.
//!
//! A state of a loop has in each round the extents that it began with, if a body that is given such a state makes such
//! a one. That is taken for granted at first, and learned axis by axis where it is not so.

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
use crate::shape::encode::{only, rank};

/// The loops of a flat graph.
pub(crate) struct Rounds {
    /// The nodes at which bodies begin, by their numbers.
    begins: HashMap<i64, NodeId>,
    /// The states that may have other extents in the next round, and along which axes; along all where there is no list.
    changing: HashMap<ValueId, Option<BTreeSet<usize>>>,
}

/// A loop at its end.
struct Ending<'g> {
    graph: &'g Graph<'g>,
    begin: NodeId,
    end: NodeId,
    /// The number of inputs before the first state, and of results before the first.
    first: usize,
    lead: usize,
    /// How many states there are.
    states: usize,
}

impl Ending<'_> {
    /// A state as the body is given it.
    fn given(&self, state: usize) -> Option<ValueId> {
        self.graph.output(self.begin, self.first + state)
    }

    /// The results of the body: its states, and then the scan outputs.
    fn made(&self, slot: usize) -> Option<ValueId> {
        self.graph.input(
            self.end,
            self.graph.inputs(self.begin).len() + self.lead + slot,
        )
    }
}

impl Rounds {
    pub fn new(graph: &Graph) -> Self {
        let begins = graph
            .order()
            .iter()
            .filter(|&&node| graph.node(node).domain() == BEGIN);
        let begins = begins
            .filter_map(|&node| Some((number(graph.node(node))?, node)))
            .collect();
        Rounds {
            begins,
            changing: HashMap::default(),
        }
    }

    /// The facts about the results of such a node; `None` for every other node.
    pub fn infer(
        &self,
        graph: &Graph,
        node: NodeId,
        facts: &[Rc<InferenceFact>],
    ) -> Option<Vec<InferenceFact>> {
        let fact = |value: Option<ValueId>| {
            value.map_or_else(Default::default, |v| {
                InferenceFact::clone(&facts[v.index()])
            })
        };
        let (proto, slots) = (graph.node(node), 0..graph.outputs(node).len());
        match proto.domain() {
            BEGIN => Some(
                slots
                    .map(|slot| self.given(graph, node, slot, &fact))
                    .collect(),
            ),
            END if proto.op_type() == "If" => {
                let condition = fact(graph.input(node, 0)).value.concretize();
                let taken = condition.and_then(|value| only::<bool>(&value));
                let of = |branch: usize, slot: usize| {
                    fact(graph.input(node, 1 + branch * slots.len() + slot))
                };
                let either = |slot| match taken {
                    Some(then) => of(then.into(), slot),
                    None => common(&of(0, slot), &of(1, slot)),
                };
                Some(slots.clone().map(either).collect())
            }
            END => {
                let ending = self.ending(graph, node)?;
                let result = |slot: usize| match ending.given(slot).filter(|_| slot < ending.states)
                {
                    Some(state) => fact(Some(state)),
                    None => of_all_rounds(&fact(ending.made(slot)), proto),
                };
                Some(slots.map(result).collect())
            }
            _ => None,
        }
    }

    /// The inputs of a body in each iteration.
    fn given(
        &self,
        graph: &Graph,
        node: NodeId,
        slot: usize,
        fact: &dyn Fn(Option<ValueId>) -> InferenceFact,
    ) -> InferenceFact {
        let proto = graph.node(node);
        let number = |datum_type| InferenceFact::default().with_datum_type(datum_type);
        match (proto.op_type(), slot) {
            ("Loop", 0) => return number(DatumType::I64),
            ("Loop", 1) => return number(DatumType::Bool),
            _ => {}
        }
        let fact = fact(graph.input(node, slot)).without_value();
        match states(proto, graph.inputs(node).len()) {
            Some(states) if proto.op_type() == "Scan" && slot >= states => {
                of_one_round(&fact, proto, slot - states)
            }
            Some(_) => fact,
            None => of_type(&fact),
        }
    }

    fn ending<'g>(&self, graph: &'g Graph<'g>, end: NodeId) -> Option<Ending<'g>> {
        let proto = graph.node(end);
        let begin = *self.begins.get(&number(proto)?)?;
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

    /// The facts about a value that hold in every iteration.
    pub fn in_every_round(&self, value: ValueId, fact: Rc<InferenceFact>) -> Rc<InferenceFact> {
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
                of_type(&fact).with_shape(ShapeFactoid::closed(dims))
            }
            Some(_) => of_type(&fact),
        };
        Rc::new(changed)
    }

    /// Whether the new facts change the assumptions.
    pub fn learn(&mut self, graph: &Graph, facts: &[Rc<InferenceFact>]) -> bool {
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
                let known = self
                    .changing
                    .entry(given)
                    .or_insert_with(|| Some(BTreeSet::new()));
                match (known.as_mut(), axes) {
                    (Some(known), Some(axes)) => known.extend(axes),
                    _ => *known = None,
                }
            }
        }
        learned
    }
}

fn number(node: &NodeProto) -> Option<i64> {
    node.attr_i(NUMBER).ok().flatten()
}

fn of_type(fact: &InferenceFact) -> InferenceFact {
    InferenceFact {
        datum_type: fact.datum_type,
        ..Default::default()
    }
}

/// One iteration's part of a value that a Scan iterates over.
fn of_one_round(fact: &InferenceFact, node: &NodeProto, place: usize) -> InferenceFact {
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
        None => of_type(fact),
    }
}

/// The scan outputs: the number of iterations is unknown, and so is the meaning of a symbol in
/// each.
fn of_all_rounds(fact: &InferenceFact, node: &NodeProto) -> InferenceFact {
    if fact.shape.is_open()
        || node
            .attribute
            .iter()
            .any(|attribute| attribute.name() == "scan_output_axes")
    {
        return of_type(fact);
    }
    let number = |dim: &DimFact| dim.concretize().is_some_and(|dim| dim.to_i64().is_ok());
    let of_one = fact.shape.dims().map(|dim| {
        if number(dim) {
            dim.clone()
        } else {
            DimFact::default()
        }
    });
    let dims: TVec<DimFact> = std::iter::once(DimFact::default()).chain(of_one).collect();
    of_type(fact).with_shape(ShapeFactoid::closed(dims))
}

/// The axes along which an assumption about a state does not hold in the next iteration; `None`
/// where the rank changes, or is unknown.
fn changing(given: &InferenceFact, made: &InferenceFact) -> Option<Vec<usize>> {
    if given.shape.is_open() {
        return Some(vec![]);
    }
    let same_rank =
        !made.shape.is_open() && given.shape.dims().count() == made.shape.dims().count();
    let differs =
        |(given, made): (&DimFact, &DimFact)| given.concretize().is_some() && given != made;
    let pairs = given.shape.dims().zip(made.shape.dims()).enumerate();
    same_rank.then(|| {
        pairs
            .filter(|(_, pair)| differs(*pair))
            .map(|(axis, _)| axis)
            .collect()
    })
}

/// The facts that hold for both of two values.
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
