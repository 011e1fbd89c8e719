//! Decides which operators compute in half, and which stay in float32.

use crate::affine::plan::WideReason;
use crate::affine::recognize::{self, View, online};
use crate::analysis::Analysis;
use crate::hash::HashSet;
use crate::ir::{NodeId, ValueId};
use crate::onnx::node::bodies;
use crate::onnx::schema::{Formal, OperatorDefinition, OperatorSchema, Sort, definition};
use crate::onnx::tensor::{DataType, is_container, read_f64, rounded};
use crate::passes::half::guards::guarded;
use crate::passes::half::masks::is_mask;
use crate::passes::half::products::reads_moved_batch;

/// Operators without a known definition whose float inputs and outputs all have one type. They are
/// operators of `com.microsoft`, and operators that onnxruntime adds to the domain of ONNX.
const UNIFORM: &[&str] = &[
    "BiasGelu",
    "FastGelu",
    "FusedMatMul",
    "Gelu",
    "GroupQueryAttention",
    "LayerNormalization",
    "MultiHeadAttention",
    "QuickGelu",
    "RotaryEmbedding",
    "SimplifiedLayerNormalization",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
];

/// Operators that stay in float32: scales of codes, the bits of numbers, which half has not, and operators whose functions
/// onnxruntime cannot run in half.
const WIDE: &[&str] = &[
    "AffineGrid",
    "BitCast",
    "DequantizeLinear",
    "MeanVarianceNormalization",
    "QuantizeLinear",
];

/// Operators whose result is a sequence or an optional.
const CONTAINERS: &[&str] = &[
    "Optional",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SequenceMap",
    "SplitToSequence",
];

/// The largest constant in arithmetic on integers, in elements. A larger constant is taken for a
/// weight.
const SMALL: usize = 4096;

/// The types of the float32 inputs and outputs of a node after the conversion.
#[derive(Debug, Clone)]
pub(crate) struct NodeTypes {
    /// The type in which each input is read. `None` if the input is not float32, or if the node is
    /// a Cast.
    pub(crate) inputs: Vec<Option<DataType>>,
    /// The type in which each output is written. `None` if the output is not float32.
    pub(crate) outputs: Vec<Option<DataType>>,
    /// Whether the node is a ConstantOfShape whose result is a mask.
    pub(crate) is_mask: bool,
}

/// The precision of each node.
pub(crate) struct Precisions<'p> {
    analysis: &'p Analysis<'p>,
    to: DataType,
    /// The reason why each node stays in float32. `None` for nodes in half, and for nodes without a
    /// float32 value.
    wide: Vec<Option<WideReason>>,
}

impl<'p> Precisions<'p> {
    /// Decides the precision of each node of a model. `refused` holds the nodes whose constants
    /// cannot be stored in half.
    pub(crate) fn decide(analysis: &'p Analysis, to: DataType, refused: &HashSet<NodeId>) -> Self {
        let graph = &analysis.graph;
        let mut precisions = Precisions {
            analysis,
            to,
            wide: vec![None; graph.proto().node.len()],
        };
        let statistics = statistics(analysis);
        let guarded = guarded(analysis, to);
        let uncast = nodes_of_uncast_containers(analysis);
        for &node in graph.order() {
            precisions.wide[node] = if !precisions.has_floats(node) {
                None
            } else if let Some(reason) = precisions.unsupported(node) {
                Some(reason)
            } else if uncast.contains(&node) {
                Some(WideReason::Unknown)
            } else if statistics.contains(&node) {
                Some(WideReason::Statistics)
            } else if refused.contains(&node)
                || guarded.contains(&node)
                || precisions.is_beyond(node)
            {
                Some(WideReason::Range)
            } else if precisions.is_from_integers(node) {
                Some(WideReason::Integers)
            } else {
                None
            };
        }
        precisions.narrow_casts();
        precisions
    }

    /// The reason why a node stays in float32. `None` if it does not.
    pub(crate) fn wide(&self, node: NodeId) -> Option<WideReason> {
        self.wide[node]
    }

    /// The type of a value before the conversion. `None` if it is unknown.
    fn data_type(&self, value: ValueId) -> Option<DataType> {
        self.analysis.facts.data_type(value)
    }

    /// Whether a value is float32 before the conversion.
    pub(crate) fn is_float(&self, value: ValueId) -> bool {
        self.data_type(value) == Some(DataType::Float)
    }

    /// Whether a node reads or writes float32, or has a body.
    pub(crate) fn has_floats(&self, node: NodeId) -> bool {
        let graph = &self.analysis.graph;
        let mut values = graph
            .inputs(node)
            .iter()
            .chain(graph.outputs(node))
            .flatten();
        values.any(|&value| self.is_float(value)) || bodies(graph.node(node)).next().is_some()
    }

    /// The types of a node's inputs and outputs after the conversion.
    pub(crate) fn types(&self, node: NodeId) -> NodeTypes {
        let graph = &self.analysis.graph;
        // A Constant keeps its type. A reader in half reads a stored constant in half instead.
        let is_wide = self.wide[node].is_some() || graph.is(node, "Constant");
        let schema = schema(self.analysis, node);
        let inputs = graph.inputs(node).iter().enumerate();
        let inputs = inputs.map(|(slot, &value)| {
            let formal = schema.and_then(|it| it.input(slot));
            // A Cast reads any type, so its input keeps the type that it has.
            let read = value.filter(|_| !graph.is(node, "Cast"));
            self.type_at(read, is_wide || !allows(schema, formal, self.to))
        });
        let outputs = graph.outputs(node).iter().enumerate();
        let outputs = outputs.map(|(slot, &value)| {
            let formal = schema.and_then(|it| it.output(slot));
            self.type_at(value, is_wide || !allows(schema, formal, self.to))
        });
        NodeTypes {
            inputs: inputs.collect(),
            outputs: outputs.collect(),
            is_mask: graph.only_output(node).is_some_and(|output| {
                graph.is(node, "ConstantOfShape") && is_mask(self.analysis, output)
            }),
        }
    }

    /// The type of a float32 value at an input or output: float32 if `is_wide`, else half. `None`
    /// for other values.
    fn type_at(&self, value: Option<ValueId>, is_wide: bool) -> Option<DataType> {
        let own = if is_wide { DataType::Float } else { self.to };
        value.filter(|&value| self.is_float(value)).map(|_| own)
    }

    /// The reason why a node cannot compute in half. `None` if it can.
    fn unsupported(&self, node: NodeId) -> Option<WideReason> {
        let graph = &self.analysis.graph;
        let (domain, op) = graph.domain_op(node);
        let values = graph.inputs(node).iter().chain(graph.outputs(node));
        let mut values = values.flatten();
        let is_typed = values.all(|&value| self.data_type(value).is_some());
        if bodies(graph.node(node)).next().is_some() || !is_typed {
            return Some(WideReason::Unknown);
        }
        let is_uniform = matches!(domain, "" | "com.microsoft") && UNIFORM.contains(&op);
        let Some(schema) = schema(self.analysis, node) else {
            return (!is_uniform).then_some(WideReason::Unknown);
        };
        let mut inputs = graph.inputs(node).iter().enumerate();
        let is_excluded = inputs.any(|(slot, &value)| {
            let formal = schema.input(slot);
            let is_variable = formal.is_some_and(|it| matches!(it.sort, Sort::Variable(_)));
            let is_float = value.is_some_and(|value| self.is_float(value));
            is_float && is_variable && !allows(Some(schema), formal, self.to)
        });
        let is_excluded = is_excluded
            || WIDE.contains(&op)
            || self.combines_scattered(node)
            || self.to == DataType::Float16 && reads_moved_batch(self.analysis, node);
        is_excluded.then_some(WideReason::Operator)
    }

    /// Whether a node adds its updates to the elements of a value, or combines them in another way.
    /// onnxruntime does not compute this in half.
    fn combines_scattered(&self, node: NodeId) -> bool {
        let graph = &self.analysis.graph;
        let is_scatter = ["ScatterElements", "ScatterND"]
            .iter()
            .any(|op| graph.is(node, op));
        let reduction = graph.node(node).attr_s("reduction").ok().flatten();
        is_scatter && reduction.is_some_and(|reduction| reduction != "none")
    }

    /// Whether a node is a ConstantOfShape whose number is beyond the range of half, and whose
    /// result is not a mask.
    fn is_beyond(&self, node: NodeId) -> bool {
        let graph = &self.analysis.graph;
        let number = graph.node(node).attr_t("value").ok().flatten();
        let Some(number) = number.filter(|_| graph.is(node, "ConstantOfShape")) else {
            return false;
        };
        let numbers = read_f64(number, graph.model().externals());
        let rounded = |number: f64| rounded(self.to, number).is_finite() || !number.is_finite();
        let fits = numbers.is_ok_and(|numbers| numbers.iter().all(|&number| rounded(number)));
        !fits
            && graph
                .only_output(node)
                .is_none_or(|output| !is_mask(self.analysis, output))
    }

    /// Whether a node is a Cast from integers, or reads floats that are computed from Casts of
    /// integers, and no other floats except small constants.
    fn is_from_integers(&self, node: NodeId) -> bool {
        let graph = &self.analysis.graph;
        let inputs: Vec<ValueId> = graph.inputs(node).iter().flatten().copied().collect();
        if graph.is(node, "Cast") {
            let from = inputs.first().and_then(|&input| self.data_type(input));
            return from.is_some_and(|from| from.is_integer() && from != DataType::Bool);
        }
        let floats: Vec<ValueId> = inputs
            .into_iter()
            .filter(|&input| self.is_float(input))
            .collect();
        let are_known = floats
            .iter()
            .all(|&value| self.is_integral(value) || self.is_small(value));
        are_known && floats.iter().any(|&value| self.is_integral(value))
    }

    /// Whether a value is computed from integers in float32.
    fn is_integral(&self, value: ValueId) -> bool {
        let producer = self.analysis.graph.producer(value);
        producer.is_some_and(|(node, _)| self.wide[node] == Some(WideReason::Integers))
    }

    fn is_small(&self, value: ValueId) -> bool {
        let constants = &self.analysis.constants;
        constants.is_constant(value) && constants.len(value).is_some_and(|len| len <= SMALL)
    }

    /// Lets a Cast of integers produce half if all of its readers read half. Each element is still
    /// rounded only once.
    fn narrow_casts(&mut self) {
        let graph = &self.analysis.graph;
        for &node in graph.order() {
            let is_cast = graph.is(node, "Cast") && self.wide[node] == Some(WideReason::Integers);
            if !is_cast {
                continue;
            }
            let Some(output) = graph.only_output(node) else {
                continue;
            };
            let mut readers = graph.readers(output).iter();
            let is_read_in_half = readers.all(|reader| match *reader {
                crate::ir::Reader::Node { node, input } => {
                    self.types(node).inputs[input] == Some(self.to)
                }
                _ => false,
            });
            if is_read_in_half {
                self.wide[node] = None;
            }
        }
    }
}

/// The nodes that compute the statistics of normalizers, except normalizers that are a single
/// operator.
fn statistics(analysis: &Analysis) -> HashSet<NodeId> {
    let view = View::new(analysis);
    let sites = recognize::find(&view);
    let cores = online::cores(&view, &sites).into_iter().flatten();
    let in_parts = cores.filter(|core| core.nodes.len() > 1);
    in_parts.flat_map(|core| core.nodes).collect()
}

/// The nodes that read or write sequences or optionals, if one of these is an input or output of the model. No operator
/// casts it to the type of the model.
fn nodes_of_uncast_containers(analysis: &Analysis) -> HashSet<NodeId> {
    let graph = &analysis.graph;
    let proto = graph.proto();
    let ends: Vec<ValueId> = proto
        .input
        .iter()
        .chain(&proto.output)
        .filter(|end| is_container(end))
        .filter_map(|end| graph.value(end.name()))
        .collect();
    if ends.is_empty() {
        return HashSet::default();
    }
    let mut containers: HashSet<ValueId> = ends.into_iter().collect();
    for &node in graph.order() {
        let mut inputs = graph.inputs(node).iter().flatten();
        let copies = graph.is(node, "Identity") && inputs.any(|input| containers.contains(input));
        if copies || CONTAINERS.iter().any(|op| graph.is(node, op)) {
            containers.extend(graph.outputs(node).iter().flatten());
        }
    }
    let nodes = graph.order().iter().copied();
    let touches = |&node: &NodeId| {
        let values = graph.inputs(node).iter().chain(graph.outputs(node));
        values.flatten().any(|value| containers.contains(value))
    };
    nodes.filter(touches).collect()
}

/// The definition of a node's operator. `None` if the operator set of ONNX does not have the
/// operator.
fn schema(analysis: &Analysis, node: NodeId) -> Option<&'static OperatorSchema> {
    let (domain, op) = analysis.graph.domain_op(node);
    if !domain.is_empty() {
        return None;
    }
    match definition(op, analysis.at(node).opset()) {
        OperatorDefinition::Is(schema) => Some(schema),
        OperatorDefinition::Later | OperatorDefinition::Unknown => None,
    }
}

/// Whether an operator allows a type at an input or output. An operator without a definition allows
/// every type.
fn allows(schema: Option<&OperatorSchema>, formal: Option<Formal>, data_type: DataType) -> bool {
    let (Some(schema), Some(formal)) = (schema, formal) else {
        return schema.is_none();
    };
    schema.allows(formal, data_type)
}
