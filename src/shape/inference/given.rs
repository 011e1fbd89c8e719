//! The facts about values without a producer: constants and declared inputs of the graph.

use std::rc::Rc;
use std::sync::Arc;

use prost::Message;
use tract_onnx::pb;
use tract_onnx::prelude::{InferenceFact, TVec, Tensor};
use tract_onnx::tract_hir::infer::{Factoid, ShapeFactoid};
use tract_onnx::tract_hir::internal::{DimFact, TDim};

use crate::hash::HashMap;
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::proto::{Dim, TensorProto, TensorType, ValueInfoProto};
use crate::onnx::tensor::{self, DataType};
use crate::shape::encode::datum_type;
use crate::shape::inference::{Inference, SMALL, guarded};
use crate::shape::memo::needs_shapes_alone;

/// The maximum length of a symbolic extent. Extents with longer symbols count as unknown.
const LONGEST_SYMBOL: usize = 200;

impl Inference {
    /// The facts about values without a producer. Lists of floats are not read yet, because most
    /// are needed only for their extents. Lists of equal extents share a fact.
    pub(super) fn given(&self, graph: &Graph) -> Vec<Rc<InferenceFact>> {
        let unknown = Rc::new(InferenceFact::default());
        let mut facts = vec![unknown; graph.value_count()];
        let mut lists: HashMap<(i32, &[i64]), Rc<InferenceFact>> = HashMap::default();
        for value in (0..graph.value_count()).map(|index| ValueId(index as u32)) {
            let Some(tensor) = graph.initializer(value) else {
                continue;
            };
            facts[value.index()] = if is_list(tensor) {
                lists
                    .entry((tensor.data_type(), &tensor.dims))
                    .or_insert_with(|| Rc::new(extents_fact(tensor)))
                    .clone()
            } else {
                Rc::new(self.tensor_fact(graph, tensor))
            };
        }
        for &value in &self.trained {
            facts[value.index()] = graph
                .initializer(value)
                .map(extents_fact)
                .map(Rc::new)
                .unwrap_or_default();
        }
        for input in &graph.proto().input {
            if let Some(value) = graph.value(input.name()) {
                let fact = self.answers.input(input, || self.declared_input(input));
                facts[value.index()] = fact;
            }
        }
        facts
    }

    /// Reads those inputs of a node that are lists of floats, if more than their shape is needed.
    pub(super) fn read_lists(&self, graph: &Graph, node: NodeId, facts: &mut [Rc<InferenceFact>]) {
        if needs_shapes_alone(graph, node, |value| {
            let is_read = facts[value.index()].value.concretize().is_some();
            is_read || self.unread_list(graph, value, facts).is_some()
        }) {
            return;
        }
        let inputs = graph.inputs(node).iter().flatten();
        for &value in inputs.chain(graph.captures(node)) {
            if let Some(tensor) = self.unread_list(graph, value, facts) {
                facts[value.index()] = Rc::new(self.tensor_fact(graph, tensor));
            }
        }
    }

    /// The tensor of a value that is a constant list of floats, if the list was not read yet.
    /// `None` for other values.
    fn unread_list<'g>(
        &self,
        graph: &'g Graph,
        value: ValueId,
        facts: &[Rc<InferenceFact>],
    ) -> Option<&'g TensorProto> {
        let tensor = graph.initializer(value).filter(|tensor| is_list(tensor))?;
        let may_change = graph.is_input(value) || self.trained.contains(&value);
        let is_read = facts[value.index()].value.concretize().is_some();
        (!may_change && !is_read).then_some(tensor)
    }

    /// The declared fact of a graph input. A dimension without a name gets a new symbol, so that it
    /// can cancel out in arithmetic.
    fn declared_input(&self, info: &ValueInfoProto) -> InferenceFact {
        let fact = self.declared(info, true);
        if fact.shape.is_open() {
            return fact;
        }
        let dims: TVec<DimFact> = fact
            .shape
            .dims()
            .map(|dim| match dim.concretize() {
                Some(dim) => DimFact::from(dim),
                None => DimFact::from(TDim::from(self.answers.symbols.new_with_prefix("dim"))),
            })
            .collect();
        fact.with_shape(ShapeFactoid::closed(dims))
    }

    /// The fact that a `value_info` declares. With `is_input`, the fact that an input declares.
    pub(super) fn declared(&self, info: &ValueInfoProto, is_input: bool) -> InferenceFact {
        let declared = info.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
        let Some(declared) = declared.and_then(as_read_by_tract) else {
            return InferenceFact::default();
        };
        let fact = guarded(|| {
            tract_onnx::tensor::translate_inference_fact(&self.context(), &declared, is_input)
        });
        match fact {
            Some(fact) => self.admit(fact, || info.name().to_owned()),
            None => InferenceFact::default(),
        }
    }

    pub(super) fn tensor_fact(&self, graph: &Graph, tensor: &TensorProto) -> InferenceFact {
        let Ok(shape) = tensor::shape(tensor) else {
            return InferenceFact::default();
        };
        if shape.iter().product::<usize>() <= SMALL
            && let Some(value) = self.tensor(graph, tensor)
        {
            return InferenceFact::try_from(value).unwrap_or_default();
        }
        extents_fact(tensor)
    }

    /// Converts a tensor of the model to a tensor of tract. bfloat16 becomes float32, because
    /// tract's ONNX front end lacks bfloat16.
    pub(crate) fn tensor(&self, graph: &Graph, proto: &TensorProto) -> Option<Arc<Tensor>> {
        let externals = graph.model().externals();
        if proto.data_type() == DataType::BFloat16.code() {
            let values = tensor::read_f64(proto, externals).ok()?;
            return Some(Arc::new(Tensor::from(values.mapv(|v| v as f32))));
        }
        let raw = tensor::raw(proto, externals).ok()?;
        self.answers
            .constant(proto, &raw, || self.load(proto, &raw))
    }

    /// Loads the elements `raw` into a tensor of tract, with the type and the extents of a tensor
    /// of the model.
    fn load(&self, proto: &TensorProto, raw: &[u8]) -> Option<Tensor> {
        let read = pb::TensorProto {
            dims: proto.dims.clone(),
            data_type: proto.data_type(),
            raw_data: raw.to_vec(),
            ..Default::default()
        };
        tract_onnx::tensor::load_tensor(&*self.onnx.provider, &read, None).ok()
    }
}

/// Whether a tensor is a list of floats, which has an extent larger than 1. Models do not compute
/// shapes from lists of floats.
fn is_list(tensor: &TensorProto) -> bool {
    tensor::float_type(tensor).is_some() && tensor.dims.iter().any(|&extent| extent > 1)
}

/// A fact with only the type and the extents of a tensor.
fn extents_fact(tensor: &TensorProto) -> InferenceFact {
    let Ok(shape) = tensor::shape(tensor) else {
        return InferenceFact::default();
    };
    let dims: TVec<DimFact> = shape
        .iter()
        .map(|&n| DimFact::from(TDim::from(n)))
        .collect();
    let fact = InferenceFact::shape(ShapeFactoid::closed(dims));
    match datum_type(tensor.data_type()) {
        Some(datum_type) => fact.with_datum_type(datum_type),
        None => fact,
    }
}

/// The declared type in tract's messages, with bfloat16 as float32; `None` if a symbol is too long.
fn as_read_by_tract(declared: &TensorType) -> Option<pb::type_proto::Tensor> {
    let dims = declared.shape.iter().flat_map(|shape| &shape.dim);
    let has_long_symbol = dims.into_iter().any(
        |dim| matches!(&dim.value, Some(Dim::DimParam(symbol)) if symbol.len() > LONGEST_SYMBOL),
    );
    if has_long_symbol {
        return None;
    }
    let mut read = pb::type_proto::Tensor::decode(declared.encode_to_vec().as_slice()).ok()?;
    read.elem_type = if declared.elem_type() == DataType::BFloat16.code() {
        DataType::Float.code()
    } else {
        declared.elem_type()
    };
    Some(read)
}
