//! Memoized inference: equal operators on equal facts share one answer.

use std::rc::Rc;
use std::sync::Arc;

use prost::Message;
use tract_onnx::prelude::{InferenceFact, Tensor};
use tract_onnx::tract_hir::infer::{Factoid, GenericFactoid, ShapeFactoid, TypeFactoid};
use tract_onnx::tract_hir::internal::Symbol;

use crate::hash::HashMap;
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::operator::Category;

/// How many kinds of nodes are remembered. Networks repeat a few hundred.
const LARGEST: usize = 4096;

/// The answers so far.
#[derive(Default)]
pub(crate) struct Memo {
    known: HashMap<Key, Vec<Rc<InferenceFact>>>,
}

/// All that inference looks at.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    operator: Vec<u8>,
    inputs: Vec<Option<(TypeFactoid, ShapeFactoid, Option<usize>)>>,
    outputs: Vec<bool>,
}

impl Memo {
    /// The facts of a node's outputs: those of a node like it, or else as `infer` has them.
    pub fn get_or(
        &mut self,
        graph: &Graph,
        node: NodeId,
        facts: &[Rc<InferenceFact>],
        infer: impl FnOnce() -> Vec<InferenceFact>,
    ) -> Vec<Rc<InferenceFact>> {
        let infer = || infer().into_iter().map(Rc::new).collect::<Vec<_>>();
        let Some(key) = key(graph, node, facts) else {
            return infer();
        };
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let inferred = infer();
        let inputs = || {
            graph
                .inputs(node)
                .iter()
                .flatten()
                .map(|input| &*facts[input.index()])
        };
        if inferred.iter().all(|fact| brings_nothing(fact, inputs())) {
            if self.known.len() == LARGEST {
                self.known.clear();
            }
            self.known.insert(key, inferred.clone());
        }
        inferred
    }
}

/// Whether the shape of a node's result is that which those of its operands give it, whatever is in them. Where all are
/// known, so is the result.
pub(crate) fn is_told_by_shapes(
    graph: &Graph,
    node: NodeId,
    is_known: impl Fn(ValueId) -> bool,
) -> bool {
    let of_shapes =
        |what: Category| what.is_elementwise() || what.is_product() || what == Category::Normalizer;
    graph.category(node).is_some_and(of_shapes)
        && !graph
            .inputs(node)
            .iter()
            .flatten()
            .all(|&input| is_known(input))
}

/// `None` where more than the node and its inputs matters: bodies read values around them.
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
    let inputs = graph.inputs(node);
    let value = |input: &ValueId| facts[input.index()].value.concretize();
    let by_shape = is_told_by_shapes(graph, node, |input| value(&input).is_some());
    let input = |input: &ValueId| {
        let fact = &facts[input.index()];
        // The facts hold the tensors, so that no two of them are at one place.
        let place = value(input)
            .filter(|_| !by_shape)
            .map(|tensor: Arc<Tensor>| Arc::as_ptr(&tensor) as usize);
        (fact.datum_type, fact.shape.clone(), place)
    };
    Some(Key {
        operator,
        inputs: inputs
            .iter()
            .map(|value| value.as_ref().map(input))
            .collect(),
        outputs: graph.outputs(node).iter().map(Option::is_some).collect(),
    })
}

/// Whether every symbol of a fact is one of the inputs: another node like this one has others.
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
    let symbols = |fact: &InferenceFact| -> Vec<Symbol> {
        let dims = fact.shape.dims().filter_map(|dim| match dim {
            GenericFactoid::Only(dim) => Some(dim.symbols()),
            GenericFactoid::Any => None,
        });
        dims.flatten().collect()
    };
    let made = symbols(fact);
    made.is_empty() || {
        let there: Vec<Symbol> = inputs.flat_map(symbols).collect();
        made.iter().all(|symbol| there.contains(symbol))
    }
}
