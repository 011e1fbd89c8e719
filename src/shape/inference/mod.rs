//! Infers facts with tract's operators, one node at a time in topological order, without reading
//! large weights. Answers that differ from ONNX are corrected.

mod answers;
mod corrections;
mod given;
mod operator;
mod split_parts;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use prost::Message;
use tract_onnx::Onnx;
use tract_onnx::model::ParsingContext;
use tract_onnx::pb;
use tract_onnx::prelude::{InferenceFact, InferenceModel, TVec, Tensor, TractResult};
use tract_onnx::tract_hir::infer::{Factoid, ShapeFactoid};
use tract_onnx::tract_hir::internal::{DimFact, TDim};

use crate::hash::{HashMap, HashSet};
use crate::ir::regions::region_path;
use crate::ir::{Graph, ValueId};
use crate::onnx::node::constant_tensor;
use crate::onnx::proto::{GraphProto, NodeProto, ValueInfoProto};
use crate::onnx::tensor::DataType;
use crate::shape::encode::{KnownFacts, only};
use crate::shape::guard::{self, Budget};
pub(crate) use crate::shape::inference::answers::Answers;
use crate::shape::loop_states::{LoopStates, common};
use crate::shape::rules::{self, NodeQuery, read_by_shape};
use crate::shape::sequences;

/// The size of the largest constant that is evaluated while shapes are inferred, in elements.
/// Shapes and the parameters of normalizers are far smaller, and weights are larger.
pub(crate) const SMALL: usize = 1 << 14;

/// The budget in bytes for constants that are evaluated while shapes are inferred. When this budget
/// is exhausted, only the shapes of further constants are inferred, and not their elements.
const EVALUATED: u64 = 1 << 27;

/// Infers facts with tract's operators, one node at a time.
pub(crate) struct Inference {
    onnx: Onnx,
    /// The model without its graph. Operators of tract read the imports of the model while they are
    /// built.
    model: pb::ModelProto,
    /// The version of ONNX's own operator set.
    opset: i64,
    budget: Budget,
    weights: u64,
    answers: Rc<Answers>,
    out_of_bounds: RefCell<Option<String>>,
    /// Initializers that training changes. Only their extents are known.
    trained: HashSet<ValueId>,
}

impl Inference {
    pub(crate) fn new(graph: &Graph, answers: Rc<Answers>) -> Self {
        let model = graph.model();
        let opset_import = model
            .proto
            .opset_import
            .iter()
            .map(|set| pb::OperatorSetIdProto {
                domain: set.domain().to_owned(),
                version: set.version(),
            })
            .collect();
        let ir_version = model.proto.ir_version();
        Inference {
            onnx: tract_onnx::onnx(),
            model: pb::ModelProto {
                opset_import,
                ir_version,
                ..Default::default()
            },
            opset: model.own_opset(),
            budget: Budget::new(EVALUATED),
            weights: graph.weight_bytes(),
            answers,
            out_of_bounds: RefCell::default(),
            trained: graph.trained().collect(),
        }
    }

    /// The first node or value that exceeds a limit of inference: the attributes of the node are
    /// invalid, or a value is too large. `None` if all are within the limits.
    pub(crate) fn out_of_bounds(&self) -> Option<String> {
        self.out_of_bounds.borrow().clone()
    }

    /// Whether a value has an unknown element.
    pub(crate) fn is_open(&self, tensor: &Tensor) -> bool {
        self.answers.unknown_dims.is_in(tensor)
    }

    /// Infers the facts about all values, node by node.
    pub(crate) fn all(&self, graph: &Graph, loop_states: &LoopStates) -> Vec<Rc<InferenceFact>> {
        let mut facts = self.given(graph);
        let infos = graph.proto().value_info.iter();
        let declared: HashMap<&str, &ValueInfoProto> =
            infos.map(|info| (info.name(), info)).collect();
        let mut memo = self.answers.memo.borrow_mut();
        memo.begin(self.model.encode_to_vec());
        for &node in graph.order() {
            self.read_lists(graph, node, &mut facts);
            let by_structure = loop_states
                .infer(graph, node, &facts)
                .or_else(|| sequences::infer(graph, node, &facts));
            let inferred = match by_structure {
                Some(inferred) => inferred.into_iter().map(Rc::new).collect(),
                None => memo.get_or(graph, node, &facts, || {
                    self.infer(graph, graph.node(node), &|name| {
                        Some(InferenceFact::clone(&facts[graph.value(name)?.index()]))
                    })
                }),
            };
            let is_counted_once =
                graph.is(node, "NonZero") && region_path(graph.node(node)).is_empty();
            for (slot, value) in graph.outputs(node).iter().enumerate() {
                let Some(value) = *value else { continue };
                let mut fact = inferred.get(slot).cloned().unwrap_or_default();
                if !declared.is_empty()
                    && is_incomplete(&fact)
                    && let Some(info) = declared.get(graph.value_name(value))
                {
                    let declared = self.declared(info, false);
                    fact = Rc::new(completed(InferenceFact::clone(&fact), &declared));
                }
                if is_counted_once {
                    let name = graph.value_name(value);
                    fact = Rc::new(self.counted_once(InferenceFact::clone(&fact), name));
                }
                if graph.is(node, "Split")
                    && let Some(whole) = graph.input(node, 0)
                {
                    let part = InferenceFact::clone(&fact);
                    let whole = &facts[whole.index()];
                    fact = Rc::new(self.part_of_split(graph.node(node), slot, whole, part));
                }
                facts[value.index()] = loop_states.in_every_iteration(value, fact);
            }
        }
        memo.end();
        if self.budget.is_exhausted() {
            // Because the budget of this graph is exhausted, answers may lack values. Such answers
            // must not be reused for other graphs.
            memo.clear();
        }
        facts
    }

    /// Gives the result of a NonZero a symbol for its number of places. This number is unknown
    /// before a run, but equal for all readers of the result. In a body it may differ between
    /// iterations, so only nodes of the main graph get the symbol.
    fn counted_once(&self, fact: InferenceFact, name: &str) -> InferenceFact {
        let dims: TVec<DimFact> = fact.shape.dims().cloned().collect();
        let [axes, DimFact::Any] = &dims[..] else {
            return fact;
        };
        let count = self
            .answers
            .symbols
            .new_with_prefix(&format!("count of {name}"));
        let dims = [axes.clone(), DimFact::from(TDim::from(count))];
        fact.with_shape(ShapeFactoid::closed(dims.into_iter().collect()))
    }

    fn context(&self) -> ParsingContext<'_> {
        ParsingContext {
            onnx_operator_set_version: self.opset,
            framework: &self.onnx,
            model: &self.model,
            parent_graphs: vec![],
            model_dir: None,
            template: InferenceModel {
                symbols: self.answers.symbols.clone(),
                ..Default::default()
            },
        }
    }

    /// Infers the facts about the outputs of a node, one fact for each output.
    pub(crate) fn infer(
        &self,
        graph: &Graph,
        node: &NodeProto,
        known: KnownFacts,
    ) -> Vec<InferenceFact> {
        match node.op() {
            ("", "Constant") => {
                let tensor = constant_tensor(node);
                return tensor
                    .iter()
                    .map(|tensor| self.tensor_fact(graph, tensor))
                    .collect();
            }
            ("", "If") => return self.branches(graph, node, known),
            _ => {}
        }
        let mut inputs: Vec<Option<InferenceFact>> = node
            .input
            .iter()
            .map(|name| (!name.is_empty()).then(|| known(name).unwrap_or_default()))
            .collect();
        if let (("", "Cast"), [Some(value)]) = (node.op(), &mut inputs[..])
            && guard::beyond_symbols(node, &[Some(value)])
        {
            // The result of the cast is unknown, but its extents are known. An example is a cast of
            // the logarithm of 0.
            value.value = Default::default();
        }
        self.drop_computed_lengths(node, &mut inputs);
        let slots: Vec<_> = inputs.iter().map(Option::as_ref).collect();
        if !guard::can_be_asked(node, &slots) {
            self.note_out_of_bounds(|| node.label());
            return vec![];
        }
        let read = self.answers.unknown_dims.without_unread(node, &inputs);
        let answer = self.ask(node, read);
        let mut outputs = self.by_output(node, answer);
        self.correct(node, known, &inputs, &mut outputs);
        self.complete(graph, node, &inputs, outputs)
    }

    /// Assigns the answers of tract to the outputs of a node. tract has answers only for the
    /// outputs that are present.
    fn by_output(&self, node: &NodeProto, answer: Vec<InferenceFact>) -> Vec<InferenceFact> {
        let mut answer = answer
            .into_iter()
            .map(|fact| self.admit(fact, || node.label()));
        let by_output = node.output.iter().map(|name| match name.is_empty() {
            true => InferenceFact::default(),
            false => answer.next().unwrap_or_default(),
        });
        by_output.collect()
    }

    /// Completes the facts about all outputs by the rules for partly known inputs.
    fn complete(
        &self,
        graph: &Graph,
        node: &NodeProto,
        inputs: &[Option<InferenceFact>],
        outputs: Vec<InferenceFact>,
    ) -> Vec<InferenceFact> {
        let query = NodeQuery {
            node,
            opset: self.opset,
            inputs,
            stored: &|slot| {
                let tensor = graph.initializer(graph.value(node.input.get(slot)?)?)?;
                DataType::from_code(tensor.data_type())
            },
            elements: &|fact| self.answers.unknown_dims.elements(fact),
        };
        let mut completed = Vec::with_capacity(outputs.len());
        for (slot, fact) in outputs.into_iter().enumerate() {
            let fact = rules::complete(&query, slot, self.answers.unknown_dims.without(fact));
            let fact = self.budget.admit(fact);
            let elements = read_by_shape(&query);
            completed.push(
                self.answers
                    .unknown_dims
                    .named(&self.answers.symbols, elements, fact),
            );
        }
        completed
    }

    /// The facts about the outputs of an If. If the branch that runs is known, they are those of
    /// this branch. Otherwise they are the facts that hold for both branches.
    fn branches(&self, graph: &Graph, node: &NodeProto, known: KnownFacts) -> Vec<InferenceFact> {
        let condition = node.input.first().and_then(|name| known(name));
        let condition = condition.and_then(|fact| fact.value.concretize());
        match condition.and_then(|value| only::<bool>(&value)) {
            Some(true) => self.branch(graph, node, "then_branch", known),
            Some(false) => self.branch(graph, node, "else_branch", known),
            None => {
                let taken = self.branch(graph, node, "then_branch", known);
                let other = self.branch(graph, node, "else_branch", known);
                let both = taken.iter().zip(&other);
                both.map(|(one, other)| common(one, other)).collect()
            }
        }
    }

    fn branch(
        &self,
        graph: &Graph,
        node: &NodeProto,
        branch: &str,
        known: KnownFacts,
    ) -> Vec<InferenceFact> {
        match node.attr_g(branch) {
            Ok(Some(body)) => self.body(graph, body, known),
            _ => vec![],
        }
    }

    /// Infers the facts about the outputs of a body, whose nodes may also read values of the
    /// enclosing graphs.
    fn body(&self, graph: &Graph, body: &GraphProto, around: KnownFacts) -> Vec<InferenceFact> {
        let constants = body.initializer.iter();
        let mut facts: HashMap<&str, InferenceFact> = constants
            .map(|tensor| (tensor.name(), self.tensor_fact(graph, tensor)))
            .collect();
        for node in &body.node {
            let inferred = self.infer(graph, node, &|name| {
                facts.get(name).cloned().or_else(|| around(name))
            });
            let mut inferred = inferred.into_iter();
            for name in &node.output {
                facts.insert(name, inferred.next().unwrap_or_default());
            }
        }
        let outputs = body.output.iter().map(|output| {
            let fact = facts.get(output.name()).cloned();
            fact.or_else(|| around(output.name())).unwrap_or_default()
        });
        outputs.collect()
    }

    /// Drops the shape, the extents or the value of a fact if they exceed the bounds. Notes `name`
    /// as out of bounds if the value would not fit into memory.
    fn admit(&self, fact: InferenceFact, name: impl FnOnce() -> String) -> InferenceFact {
        if !guard::fits(&fact, self.weights) {
            self.note_out_of_bounds(name);
        }
        self.budget.admit(fact)
    }

    fn note_out_of_bounds(&self, name: impl FnOnce() -> String) {
        self.out_of_bounds.borrow_mut().get_or_insert_with(name);
    }
}

fn is_incomplete(fact: &InferenceFact) -> bool {
    fact.shape.concretize().is_none() || fact.datum_type.concretize().is_none()
}

/// Completes the unknown parts of `fact` by the declared ones. If the two contradict each other,
/// `fact` is returned unchanged.
fn completed(fact: InferenceFact, declared: &InferenceFact) -> InferenceFact {
    match fact.clone().unify(declared) {
        Ok(unified) => unified.without_value(),
        Err(_) => fact,
    }
}

/// Calls `f`. Returns `None` if it fails or panics, as operators of tract do on some unexpected
/// inputs.
fn guarded<T>(f: impl FnOnce() -> TractResult<T>) -> Option<T> {
    catch_unwind(AssertUnwindSafe(f)).ok()?.ok()
}
