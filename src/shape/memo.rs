//! Memoized inference: equal operators on equal facts share one answer.

use std::rc::Rc;
use std::sync::Arc;

use prost::Message;
use tract_onnx::prelude::InferenceFact;
use tract_onnx::tract_hir::infer::{Factoid, GenericFactoid, ShapeFactoid, TypeFactoid};
use tract_onnx::tract_hir::internal::Symbol;

use crate::hash::HashMap;
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::operator::Category;

/// The maximum number of kinds of nodes that are remembered. A network repeats a few hundred kinds.
const LARGEST: usize = 4096;

/// The answers found so far.
#[derive(Default)]
pub(crate) struct Memo {
    answers: HashMap<Key, Vec<Rc<InferenceFact>>>,
}

/// Everything on which the answer depends.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    operator: Vec<u8>,
    inputs: Vec<Option<(TypeFactoid, ShapeFactoid, Option<usize>)>>,
    outputs: Vec<bool>,
}

impl Memo {
    /// The facts of a node's outputs: those of an equal node, or else the result of `infer`.
    pub(crate) fn get_or(
        &mut self,
        graph: &Graph,
        node: NodeId,
        facts: &[Rc<InferenceFact>],
        infer: impl FnOnce() -> Vec<InferenceFact>,
    ) -> Vec<Rc<InferenceFact>> {
        let Some(key) = key(graph, node, facts) else {
            return shared(infer());
        };
        if let Some(answer) = self.answers.get(&key) {
            return answer.clone();
        }
        let answer = shared(infer());
        let inputs = graph.inputs(node).iter().flatten();
        let inputs = inputs.map(|input| &*facts[input.index()]);
        if answer
            .iter()
            .all(|fact| brings_nothing(fact, inputs.clone()))
        {
            if self.answers.len() == LARGEST {
                self.answers.clear();
            }
            self.answers.insert(key, answer.clone());
        }
        answer
    }
}

fn shared(facts: Vec<InferenceFact>) -> Vec<Rc<InferenceFact>> {
    facts.into_iter().map(Rc::new).collect()
}

/// Whether inference needs only the shapes of a node's operands: the operator has a rule for
/// shapes, and some operand is unknown. If all values are known, the result is evaluated.
pub(crate) fn needs_shapes_alone(
    graph: &Graph,
    node: NodeId,
    is_known: impl Fn(ValueId) -> bool,
) -> bool {
    let Some(category) = graph.category(node) else {
        return false;
    };
    let has_rule_of_shapes =
        category.is_elementwise() || category.is_product() || category == Category::Normalizer;
    let mut inputs = graph.inputs(node).iter().flatten();
    has_rule_of_shapes && !inputs.all(|&input| is_known(input))
}

/// The key of a node; `None` if the answer may depend on more than its inputs, as bodies read
/// enclosing values.
fn key(graph: &Graph, node: NodeId, facts: &[Rc<InferenceFact>]) -> Option<Key> {
    let proto = graph.node(node);
    let (domain, op) = graph.domain_op(node);
    let has_body = proto
        .attribute
        .iter()
        .any(|a| a.g.is_some() || !a.graphs.is_empty());
    if has_body || op == "Constant" {
        return None;
    }
    let mut operator = [domain, "\0", op, "\0"].concat().into_bytes();
    for attribute in &proto.attribute {
        attribute.encode_length_delimited(&mut operator).ok()?;
    }
    let by_shape = needs_shapes_alone(graph, node, |input| {
        facts[input.index()].value.concretize().is_some()
    });
    let inputs = graph.inputs(node).iter().map(|input| {
        let fact = &facts[(*input)?.index()];
        // The facts keep the tensors alive, so that addresses are unique.
        let value = fact.value.concretize().filter(|_| !by_shape);
        let place = value.map(|tensor| Arc::as_ptr(&tensor) as usize);
        Some((fact.datum_type, fact.shape.clone(), place))
    });
    Some(Key {
        operator,
        inputs: inputs.collect(),
        outputs: graph.outputs(node).iter().map(Option::is_some).collect(),
    })
}

/// Whether every symbol of a fact occurs in the inputs. Otherwise an equal node would need other
/// symbols.
fn brings_nothing<'f>(
    fact: &InferenceFact,
    inputs: impl Iterator<Item = &'f InferenceFact>,
) -> bool {
    if fact
        .value
        .concretize()
        .is_some_and(|tensor| tensor.datum_type().is_tdim())
    {
        return false;
    }
    let made = symbols(fact);
    if made.is_empty() {
        return true;
    }
    let read: Vec<Symbol> = inputs.flat_map(symbols).collect();
    made.iter().all(|symbol| read.contains(symbol))
}

/// The symbols of the extents of a fact.
fn symbols(fact: &InferenceFact) -> Vec<Symbol> {
    let dims = fact.shape.dims().filter_map(|dim| match dim {
        GenericFactoid::Only(dim) => Some(dim.symbols()),
        GenericFactoid::Any => None,
    });
    dims.flatten().collect()
}
