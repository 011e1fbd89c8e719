//! Memoizes inference: equal operators on equal facts share an answer.

use std::hash::{Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;

use prost::Message;
use tract_onnx::prelude::InferenceFact;
use tract_onnx::tract_hir::infer::{Factoid, GenericFactoid, ShapeFactoid, TypeFactoid};
use tract_onnx::tract_hir::internal::Symbol;

use crate::hash::HashMap;
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::operator::Category;
use crate::shape::guard::symbolic_elements;

/// The maximum number of remembered answers. Nodes with equal keys share an answer, so a network
/// needs only a few hundred.
const LARGEST: usize = 4096;

/// The answers for the nodes that were inferred so far.
#[derive(Default)]
pub(crate) struct Memo {
    answers: HashMap<Key, Answer>,
    /// Answers for an earlier graph that the present graph has not used yet.
    earlier: HashMap<Key, Answer>,
    /// The imported operator sets for which the answers hold, as an encoded message.
    imports: Vec<u8>,
}

/// The facts of the outputs of a node.
type Answer = Vec<Rc<InferenceFact>>;

/// Everything on which the answer for a node depends.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    operator: Vec<u8>,
    inputs: Vec<Option<InputFact>>,
    outputs: Vec<bool>,
}

/// The fact about an input, and whether the answer depends on all of this fact.
struct InputFact {
    fact: Rc<InferenceFact>,
    /// Whether the answer depends only on the type and the shape.
    is_by_shape: bool,
}

impl InputFact {
    /// The type, the shape, and the address of the value if the answer depends on it. The address
    /// is unique, because the fact keeps the value alive.
    fn parts(&self) -> (TypeFactoid, &ShapeFactoid, Option<usize>) {
        let value = self.fact.value.concretize().filter(|_| !self.is_by_shape);
        let address = value.map(|tensor| Arc::as_ptr(&tensor) as usize);
        (self.fact.datum_type, &self.fact.shape, address)
    }
}

impl PartialEq for InputFact {
    fn eq(&self, other: &Self) -> bool {
        let is_same = Rc::ptr_eq(&self.fact, &other.fact) && self.is_by_shape == other.is_by_shape;
        is_same || self.parts() == other.parts()
    }
}

impl Eq for InputFact {}

impl Hash for InputFact {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

impl Memo {
    /// Starts with a new graph. Answers for other operator sets are forgotten.
    pub(crate) fn begin(&mut self, imports: Vec<u8>) {
        if self.imports != imports {
            self.clear();
            self.imports = imports;
        }
        self.earlier = std::mem::take(&mut self.answers);
    }

    /// Forgets the earlier answers that the graph did not use.
    pub(crate) fn end(&mut self) {
        self.earlier = HashMap::default();
    }

    /// Forgets all answers.
    pub(crate) fn clear(&mut self) {
        self.answers = HashMap::default();
        self.earlier = HashMap::default();
    }

    /// The facts about the outputs of a node. If an equal node was inferred before, its facts are
    /// reused, otherwise `infer` is called.
    pub(crate) fn get_or(
        &mut self,
        graph: &Graph,
        node: NodeId,
        facts: &[Rc<InferenceFact>],
        infer: impl FnOnce() -> Vec<InferenceFact>,
    ) -> Answer {
        let Some(key) = key(graph, node, facts) else {
            return shared(infer());
        };
        if let Some(answer) = self.answers.get(&key) {
            return answer.clone();
        }
        if let Some((key, answer)) = self.earlier.remove_entry(&key) {
            self.insert(key, answer.clone());
            return answer;
        }
        let answer = shared(infer());
        let inputs = graph.inputs(node).iter().flatten();
        let inputs = inputs.map(|input| &*facts[input.index()]);
        if answer
            .iter()
            .all(|fact| brings_nothing(fact, inputs.clone()))
        {
            self.insert(key, answer.clone());
        }
        answer
    }

    fn insert(&mut self, key: Key, answer: Answer) {
        if self.answers.len() == LARGEST {
            self.answers.clear();
        }
        self.answers.insert(key, answer);
    }
}

fn shared(facts: Vec<InferenceFact>) -> Answer {
    facts.into_iter().map(Rc::new).collect()
}

/// Whether inference needs only the shapes of a node's operands. The operator must have a rule for
/// shapes. The elements of some operand must be unknown, because otherwise the result is evaluated.
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

/// The key of a node. `None` if the answer may depend on more than the inputs, for example if a
/// body reads enclosing values.
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
    let is_by_shape = needs_shapes_alone(graph, node, |input| {
        facts[input.index()].value.concretize().is_some()
    });
    let inputs = graph.inputs(node).iter().map(|input| {
        let fact = facts[(*input)?.index()].clone();
        Some(InputFact { fact, is_by_shape })
    });
    Some(Key {
        operator,
        inputs: inputs.collect(),
        outputs: graph.outputs(node).iter().map(Option::is_some).collect(),
    })
}

/// Whether every symbol of a fact also occurs in the inputs. If the fact has a new symbol, it
/// cannot be reused, because an equal node must get a different symbol.
fn brings_nothing<'f>(
    fact: &InferenceFact,
    inputs: impl Iterator<Item = &'f InferenceFact>,
) -> bool {
    let made = symbols(fact);
    if made.is_empty() {
        return true;
    }
    let read: Vec<Symbol> = inputs.flat_map(symbols).collect();
    made.iter().all(|symbol| read.contains(symbol))
}

/// The symbols in the extents and in the elements of a fact.
fn symbols(fact: &InferenceFact) -> Vec<Symbol> {
    let dims = fact.shape.dims().filter_map(|dim| match dim {
        GenericFactoid::Only(dim) => Some(dim.symbols()),
        GenericFactoid::Any => None,
    });
    let value = fact.value.concretize();
    let elements = value.iter().flat_map(|tensor| symbolic_elements(tensor));
    let in_elements = elements.flat_map(|dim| dim.symbols());
    dims.flatten().chain(in_elements).collect()
}
