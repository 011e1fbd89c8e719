//! What is known of every value before the model runs: shape, element type, small constant values.
//!
//! tract's operators infer it, one node at a time in topological order, over a skeleton that holds
//! no large weight. Extents and the values of shape tensors are symbolic (`TDim`), so that a batch
//! that the exporter left open is carried through `Shape`, `Gather` and `Concat` and comes out at
//! the `Reshape` it was computed for.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use prost::Message;
use tract_onnx::Onnx;
use tract_onnx::model::ParsingContext;
use tract_onnx::pb;
use tract_onnx::prelude::{InferenceFact, TVec, Tensor, TractResult};
use tract_onnx::tract_hir::infer::{Factoid, InferenceOp, ShapeFactoid};
use tract_onnx::tract_hir::internal::{DimFact, IntoArcTensor, IntoTValue, TDim};

use super::{Graph, NodeId, ValueId};
use crate::onnx::misread::misread;
use crate::onnx::proto::{AttributeType, NodeProto, TensorProto, ValueInfoProto};
use crate::onnx::tensor::{self, DataType};

/// Extents of a value; `None` is an extent that is unknown even symbolically.
pub type Shape = Vec<Option<TDim>>;

/// Constants up to this many elements are evaluated while shapes are inferred. Shape values and the
/// parameters of normalizers are far below it, weights above.
const SMALL: usize = 1 << 14;

/// Shapes, and the values of small constants.
pub struct Facts {
    facts: Vec<InferenceFact>,
    types: Vec<Option<DataType>>,
    /// Owns the symbols of the extents, which are mere names once it is gone.
    engine: Engine,
}

impl Facts {
    /// Infers the facts of every value of the graph. What tract does not know stays unknown, and
    /// nothing behind it is guessed.
    pub fn infer(graph: &Graph) -> Facts {
        let engine = Engine::new(graph);
        let mut facts = vec![InferenceFact::default(); graph.value_count()];
        for value in (0..graph.value_count()).map(|index| ValueId(index as u32)) {
            if let Some(tensor) = graph.initializer(value) {
                facts[value.index()] = engine.tensor_fact(graph, tensor);
            }
        }
        for input in &graph.proto().input {
            if let Some(value) = graph.value(input.name()) {
                facts[value.index()] = engine.declared(input, true);
            }
        }
        let declared: HashMap<&str, &ValueInfoProto> =
            graph.proto().value_info.iter().map(|info| (info.name(), info)).collect();
        for &node in graph.order() {
            let inferred = engine.infer(graph, node, &facts);
            for (slot, value) in graph.outputs(node).iter().enumerate() {
                let Some(value) = value else { continue };
                let mut fact = inferred.get(slot).cloned().unwrap_or_default();
                if let ("Slice", Some(from)) = (graph.op(node), graph.input(node, 0)) {
                    fact = within_reach(fact, &facts[from.index()]);
                }
                if fact.shape.concretize().is_none()
                    && let Some(info) = declared.get(graph.value_name(*value))
                {
                    fact = complete(fact, engine.declared(info, false));
                }
                facts[value.index()] = fact;
            }
        }
        Facts { types: super::types::infer(graph, &facts), facts, engine }
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The extents of a value, or `None` where not even the rank is known.
    pub fn shape(&self, value: ValueId) -> Option<Shape> {
        let shape = &self.facts[value.index()].shape;
        (!shape.is_open()).then(|| shape.dims().map(|dim| dim.concretize()).collect())
    }

    /// The element type of a value.
    pub fn data_type(&self, value: ValueId) -> Option<DataType> {
        self.types[value.index()]
    }

    /// How many axes a value has.
    pub fn rank(&self, value: ValueId) -> Option<usize> {
        let shape = &self.facts[value.index()].shape;
        (!shape.is_open()).then(|| shape.dims().count())
    }

    /// The extent of one axis where it is a plain number.
    pub fn extent(&self, value: ValueId, axis: usize) -> Option<usize> {
        extent(self.shape(value)?.get(axis)?)
    }

    /// The value itself where it was small enough to be evaluated; its elements may be symbolic.
    pub fn value(&self, value: ValueId) -> Option<Arc<Tensor>> {
        self.facts[value.index()].value.concretize()
    }

    /// The elements of a value that is a shape itself, symbolic or not.
    pub fn extents(&self, value: ValueId) -> Option<Shape> {
        let tensor = self.value(value)?;
        let dims = tensor.cast_to::<TDim>().ok()?;
        Some(dims.to_plain_array_view::<TDim>().ok()?.iter().cloned().map(Some).collect())
    }

    /// The elements of a small integer constant, if none of them is symbolic.
    pub fn ints(&self, value: ValueId) -> Option<Vec<i64>> {
        let tensor = self.value(value)?;
        if tensor.datum_type() == tract_onnx::prelude::DatumType::TDim {
            let view = tensor.to_plain_array_view::<TDim>().ok()?;
            return view.iter().map(|dim| dim.to_i64().ok()).collect();
        }
        if !tensor.datum_type().is_integer() {
            return None;
        }
        let cast = tensor.cast_to::<i64>().ok()?;
        Some(cast.to_plain_array_view::<i64>().ok()?.iter().copied().collect())
    }
}

/// An extent as a plain number.
pub fn extent(dim: &Option<TDim>) -> Option<usize> {
    usize::try_from(dim.as_ref()?.to_i64().ok()?).ok()
}

/// What a slice of `from` is known to be. One that reaches past the end of its value is shorter
/// than its bounds say, and of an open extent nobody knows the end; that it holds something at all
/// is taken for granted.
fn within_reach(fact: InferenceFact, from: &InferenceFact) -> InferenceFact {
    if fact.shape.is_open() || from.shape.is_open() {
        return fact;
    }
    let number = |dim: &DimFact| dim.concretize().and_then(|dim| dim.to_i64().ok());
    let dims: TVec<DimFact> = from
        .shape
        .dims()
        .zip(fact.shape.dims())
        .map(|(whole, taken)| match (number(whole), number(taken)) {
            (None, Some(2..)) => DimFact::default(),
            _ => taken.clone(),
        })
        .collect();
    fact.with_shape(ShapeFactoid::closed(dims))
}

/// `fact`, with what it leaves open taken from `declared`.
fn complete(fact: InferenceFact, declared: InferenceFact) -> InferenceFact {
    let unified = fact.clone().unify(&declared);
    unified.map(|unified| unified.without_value()).unwrap_or(fact)
}

/// tract's operators, used one at a time.
pub(super) struct Engine {
    onnx: Onnx,
    /// The imports of the model, without its graph: what operators look at while they are built.
    model: pb::ModelProto,
    template: tract_onnx::prelude::InferenceModel,
}

impl Engine {
    pub(super) fn new(graph: &Graph) -> Self {
        let model = graph.model();
        let opset_import = model
            .proto
            .opset_import
            .iter()
            .map(|set| pb::OperatorSetIdProto { domain: set.domain().to_owned(), version: set.version() })
            .collect();
        let ir_version = model.proto.ir_version();
        Engine {
            onnx: tract_onnx::onnx(),
            model: pb::ModelProto { opset_import, ir_version, ..Default::default() },
            template: Default::default(),
        }
    }

    /// The version of ONNX's own operator set.
    fn opset(&self) -> i64 {
        let mut sets = self.model.opset_import.iter();
        let own = sets.find(|set| crate::onnx::node::canonical_domain(&set.domain).is_empty());
        own.map_or(0, |set| set.version)
    }

    fn context(&self) -> ParsingContext<'_> {
        ParsingContext {
            onnx_operator_set_version: self.opset(),
            framework: &self.onnx,
            model: &self.model,
            parent_graphs: vec![],
            model_dir: None,
            template: self.template.clone(),
        }
    }

    /// What a value_info, input or output declares. A dim without a name gets a symbol of its own
    /// where the value is a graph input, so that arithmetic on it can cancel.
    fn declared(&self, info: &ValueInfoProto, fresh: bool) -> InferenceFact {
        let tensor = info.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
        let Some(tensor) = tensor else { return InferenceFact::default() };
        let mut elem_type = tensor.elem_type();
        if elem_type == DataType::BFloat16.code() {
            elem_type = DataType::Float.code();
        }
        let bytes = tensor.encode_to_vec();
        let Ok(mut declared) = pb::type_proto::Tensor::decode(bytes.as_slice()) else {
            return InferenceFact::default();
        };
        declared.elem_type = elem_type;
        let translated = tract_onnx::tensor::translate_inference_fact(&self.context(), &declared, fresh);
        let Ok(fact) = translated else { return InferenceFact::default() };
        if !fresh || fact.shape.is_open() {
            return fact;
        }
        let dims: TVec<DimFact> = fact
            .shape
            .dims()
            .map(|dim| match dim.concretize() {
                Some(dim) => DimFact::from(dim),
                None => DimFact::from(TDim::from(self.template.symbols.new_with_prefix("dim"))),
            })
            .collect();
        fact.with_shape(ShapeFactoid::closed(dims))
    }

    fn tensor_fact(&self, graph: &Graph, tensor: &TensorProto) -> InferenceFact {
        let Ok(shape) = tensor::shape(tensor) else { return InferenceFact::default() };
        if shape.iter().product::<usize>() <= SMALL
            && let Some(value) = self.tensor(graph, tensor)
        {
            return InferenceFact::try_from(value).unwrap_or_default();
        }
        let dims: TVec<DimFact> = shape.iter().map(|&n| DimFact::from(TDim::from(n))).collect();
        let fact = InferenceFact::shape(ShapeFactoid::closed(dims));
        match datum_type(tensor.data_type()) {
            Some(datum_type) => fact.with_datum_type(datum_type),
            None => fact,
        }
    }

    /// A tensor of the model as tract's; bfloat16, which tract's ONNX front end lacks, as float.
    pub(super) fn tensor(&self, graph: &Graph, proto: &TensorProto) -> Option<Arc<Tensor>> {
        let externals = graph.model().externals();
        if proto.data_type() == DataType::BFloat16.code() {
            let values = tensor::read_f64(proto, externals).ok()?;
            return Some(Arc::new(Tensor::from(values.mapv(|v| v as f32))));
        }
        let resolved = TensorProto {
            dims: proto.dims.clone(),
            data_type: proto.data_type,
            raw_data: Some(tensor::raw(proto, externals).ok()?),
            ..Default::default()
        };
        let decoded = pb::TensorProto::decode(resolved.encode_to_vec().as_slice()).ok()?;
        let provider = &*self.onnx.provider;
        tract_onnx::tensor::load_tensor(provider, &decoded, None).ok().map(Arc::new)
    }

    /// Builds tract's operator for a node, or the one that stands in for it, and lists the values
    /// that its bodies close over.
    fn build(
        &self,
        graph: &Graph,
        node: NodeId,
        stand_in: Option<&'static str>,
    ) -> Option<(Box<dyn InferenceOp>, Vec<String>)> {
        let (domain, op) = graph.domain_op(node);
        if !matches!(domain, "" | "com.microsoft" | "ai.onnx.ml") {
            return None;
        }
        let mut lean = graph.node(node).clone();
        let op = match stand_in {
            Some(stand_in) => {
                lean.op_type = Some(stand_in.to_owned());
                lean.attribute.clear();
                lean.input.truncate(if stand_in == "Identity" { 1 } else { 2 });
                stand_in
            }
            None => op,
        };
        let builder = self.onnx.op_register.0.get(op)?;
        lean.metadata_props.clear();
        lean.device_configurations.clear();
        spell_bfloat16_as_float(&mut lean);
        let node = pb::NodeProto::decode(lean.encode_to_vec().as_slice()).ok()?;
        guarded(|| builder(&self.context(), &node))
    }

    fn infer(&self, graph: &Graph, node: NodeId, facts: &[InferenceFact]) -> Vec<InferenceFact> {
        if graph.op(node) == "Constant" {
            return match super::constants::attribute_tensor(graph.node(node)) {
                Some(tensor) => vec![self.tensor_fact(graph, &tensor)],
                None => vec![],
            };
        }
        let stand_in = stand_in(graph.domain_op(node));
        let Some((mut op, closures)) = self.build(graph, node, stand_in) else { return vec![] };
        let closed = closures.iter().filter_map(|name| graph.value(name));
        let mut inputs: TVec<InferenceFact> = graph
            .inputs(node)
            .iter()
            .flatten()
            .copied()
            .chain(closed)
            .map(|value| facts[value.index()].clone())
            .collect();
        match stand_in {
            Some("MatMul") => {
                for (slot, attribute) in ["transA", "transB"].into_iter().enumerate() {
                    if graph.node(node).attr_i(attribute).ok().flatten().unwrap_or(0) != 0 {
                        inputs[slot] = transposed(&inputs[slot]);
                    }
                }
            }
            Some("Identity") => inputs.truncate(1),
            _ => {}
        }
        let inputs: TVec<&InferenceFact> = inputs.iter().collect();
        let made = graph.outputs(node).iter().flatten().count();
        // Outputs that tract does not have, such as the statistics of training, stay unknown.
        let Some(count) = op.nboutputs().ok().filter(|&count| count <= made) else { return vec![] };
        let unknown = vec![InferenceFact::default(); count];
        let outputs: TVec<&InferenceFact> = unknown.iter().collect();
        let Some((_, inferred, _)) = guarded(|| op.infer(inputs, outputs, TVec::new())) else {
            return vec![];
        };
        // tract counts only the outputs that are there. What stands in, or is misread, has the shapes, not
        // the values.
        let is_valued = stand_in.is_none() && !self.misreads(graph, node);
        let valued = |fact: InferenceFact| if is_valued { fact } else { fact.without_value() };
        let mut inferred = inferred.into_iter().map(valued);
        let slots = graph.outputs(node).iter();
        let mut outputs: Vec<InferenceFact> =
            slots.map(|slot| slot.and_then(|_| inferred.next()).unwrap_or_default()).collect();
        // The sum that they normalize, which goes on as the residual stream.
        if let ("SkipLayerNormalization" | "SkipSimplifiedLayerNormalization", [normed, _, _, sum]) =
            (graph.domain_op(node).1, &mut outputs[..])
        {
            *sum = normed.clone();
        }
        outputs
    }

    fn misreads(&self, graph: &Graph, node: NodeId) -> bool {
        misread(graph.node(node), self.opset()).is_some()
    }

    /// Evaluates one node on constants.
    pub(super) fn evaluate(
        &self,
        graph: &Graph,
        node: NodeId,
        inputs: &[Arc<Tensor>],
    ) -> Option<Vec<Arc<Tensor>>> {
        if self.misreads(graph, node) {
            return None;
        }
        let (op, closures) = self.build(graph, node, None)?;
        if !closures.is_empty() {
            return None;
        }
        let inputs: TVec<_> = inputs.iter().map(|tensor| tensor.clone().into_tvalue()).collect();
        let outputs = guarded(|| op.eval_out_of_plan(inputs))??;
        Some(outputs.into_iter().map(|value| value.into_arc_tensor()).collect())
    }
}

/// An operator of the same shapes, for those of runtimes that tract does not know, and for those of
/// which it knows only some forms.
fn stand_in(operator: (&str, &str)) -> Option<&'static str> {
    match operator {
        // With statistics of another type than the value, or among its outputs.
        ("", "BatchNormalization") => Some("Identity"),
        ("com.microsoft", "FusedMatMul" | "TransposeMatMul") => Some("MatMul"),
        ("com.microsoft", "BiasGelu") => Some("Add"),
        ("com.microsoft", "FastGelu" | "QuickGelu" | "BiasSoftmax") => Some("Identity"),
        ("com.microsoft", "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization" | "GroupNorm") => {
            Some("Identity")
        }
        _ => None,
    }
}

/// The fact with its last two axes swapped.
fn transposed(fact: &InferenceFact) -> InferenceFact {
    let mut dims: TVec<DimFact> = fact.shape.dims().cloned().collect();
    let rank = dims.len();
    if fact.shape.is_open() || rank < 2 {
        return InferenceFact::default();
    }
    dims.swap(rank - 1, rank - 2);
    fact.clone().with_shape(ShapeFactoid::closed(dims)).without_value()
}

/// What tract answers, or nothing: its operators panic on some input that they do not expect.
fn guarded<T>(f: impl FnOnce() -> TractResult<T>) -> Option<T> {
    catch_unwind(AssertUnwindSafe(f)).ok()?.ok()
}

fn spell_bfloat16_as_float(node: &mut NodeProto) {
    let (bfloat16, float) = (DataType::BFloat16.code(), DataType::Float.code());
    for attribute in &mut node.attribute {
        let is_type = matches!(attribute.name(), "to" | "dtype" | "output_dtype");
        if is_type && attribute.i() == i64::from(bfloat16) {
            attribute.i = Some(i64::from(float));
            attribute.r#type = Some(AttributeType::Int as i32);
        }
    }
}

fn datum_type(code: i32) -> Option<tract_onnx::prelude::DatumType> {
    let code = if code == DataType::BFloat16.code() { DataType::Float.code() } else { code };
    pb::tensor_proto::DataType::try_from(code).ok()?.try_into().ok()
}
