//! Inference by tract's operators, one node at a time in topological order, over a skeleton without
//! large weights. Answers that differ from ONNX are corrected.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

use prost::Message;
use tract_onnx::Onnx;
use tract_onnx::model::ParsingContext;
use tract_onnx::pb;
use tract_onnx::prelude::{DatumType, InferenceFact, TVec, Tensor, TractResult};
use tract_onnx::tract_hir::infer::{Factoid, InferenceOp, ShapeFactoid};
use tract_onnx::tract_hir::internal::{DimFact, IntoArcTensor, TDim};

use crate::hash::{HashMap, HashSet};
use crate::ir::regions::way;
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::node::{bodies, constant_tensor};
use crate::onnx::proto::{Dim, GraphProto, NodeProto, TensorProto, ValueInfoProto};
use crate::onnx::tensor::{self, DataType};
use crate::onnx::tract_quirks::{is_computed, is_read, misread, misreads_shape};
use crate::shape::batch_statistics;
use crate::shape::encode::{datum_type, dims_of, is_concrete, only};
use crate::shape::evaluate::{Evaluated, counted, evaluated};
use crate::shape::extents::extent;
use crate::shape::guard::{self, Budget, Cost};
use crate::shape::loop_states::{Rounds, common};
use crate::shape::memo::{Memo, is_told_by_shapes};
use crate::shape::rules::{
    Contracted, NodeQuery, complete as told, read_by_shape, shape, takes_all_of_one,
};
use crate::shape::sequences;
use crate::shape::slices;
use crate::shape::stand_in::{
    inputs_of, keeps_attributes, spell_bfloat16_as_float, spell_zero_as_float, stand_in,
};
use crate::shape::symbolic_division;
use crate::shape::unknown_dims::Open;
use crate::shape::windows;

/// Constants up to this many elements are evaluated while shapes are inferred. Shape values and the
/// parameters of normalizers are far below it, weights above.
pub const SMALL: usize = 1 << 14;

/// Constants up to this many bytes are one tensor where they are alike, so that nodes which read them are.
const SHARED: usize = 64;

/// Bytes of constants that are evaluated while shapes are inferred; those behind are left to whoever
/// asks for them.
const EVALUATED: u64 = 1 << 27;

/// The length of a symbolic extent beyond which it counts as unknown.
const LONGEST_SYMBOL: usize = 200;
/// Whether a tensor is a list of floats, and no number that shapes may be computed of.
fn is_list(tensor: &TensorProto) -> bool {
    tensor::float_type(tensor).is_some() && tensor.dims.iter().any(|&extent| extent > 1)
}

/// The type and the extents of a tensor.
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

/// `fact`, with unknown parts taken from `declared`.
fn complete(fact: InferenceFact, declared: InferenceFact) -> InferenceFact {
    let unified = fact.clone().unify(&declared);
    unified
        .map(|unified| unified.without_value())
        .unwrap_or(fact)
}

/// tract's operators, used one at a time.
pub struct Inference {
    onnx: Onnx,
    /// The imports of the model, without its graph: what operators look at while they are built.
    model: pb::ModelProto,
    /// The version of ONNX's own operator set.
    opset: i64,
    template: tract_onnx::prelude::InferenceModel,
    budget: Budget,
    weights: u64,
    open: Open,
    shared: RefCell<HashMap<SmallConstant, Arc<Tensor>>>,
    out_of_bounds: RefCell<Option<String>>,
    /// Initializers that training writes, of which only the extents are known.
    trained: HashSet<ValueId>,
}

/// Element type, extents and elements of a constant.
type SmallConstant = (i32, Vec<i64>, Vec<u8>);

/// The facts about values around a node, by name.
pub type Known<'k> = &'k dyn Fn(&str) -> Option<InferenceFact>;

impl Inference {
    pub fn new(graph: &Graph) -> Self {
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
            template: Default::default(),
            budget: Budget::new(EVALUATED),
            weights: graph.weight_bytes(),
            open: Open::default(),
            shared: RefCell::default(),
            out_of_bounds: RefCell::default(),
            trained: graph.trained().collect(),
        }
    }

    /// The first node with attributes that its operator does not have, or value that is too large to
    /// be made.
    pub fn out_of_bounds(&self) -> Option<String> {
        self.out_of_bounds.borrow().clone()
    }

    /// Whether some element of a value is an unknown number.
    pub fn is_open(&self, tensor: &Tensor) -> bool {
        self.open.is_in(tensor)
    }

    /// The facts about values without a producer. Lists of floats are not read yet: most are needed
    /// for their extents alone, and lists of equal extents share a fact.
    fn given(&self, graph: &Graph) -> Vec<Rc<InferenceFact>> {
        let unknown = Rc::new(InferenceFact::default());
        let mut facts = vec![unknown; graph.value_count()];
        let mut lists: HashMap<(i32, &[i64]), Rc<InferenceFact>> = HashMap::default();
        for value in (0..graph.value_count()).map(|index| ValueId(index as u32)) {
            if let Some(tensor) = graph.initializer(value) {
                facts[value.index()] = if is_list(tensor) {
                    let unread = || Rc::new(extents_fact(tensor));
                    lists
                        .entry((tensor.data_type(), &tensor.dims))
                        .or_insert_with(unread)
                        .clone()
                } else {
                    Rc::new(self.tensor_fact(graph, tensor))
                };
            }
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
                facts[value.index()] = Rc::new(self.declared(input, true));
            }
        }
        facts
    }

    /// The facts of all values, node by node.
    pub fn all(&self, graph: &Graph, rounds: &Rounds) -> Vec<Rc<InferenceFact>> {
        let mut facts = self.given(graph);
        let declared: HashMap<&str, &ValueInfoProto> = graph
            .proto()
            .value_info
            .iter()
            .map(|info| (info.name(), info))
            .collect();
        let mut memo = Memo::default();
        for &node in graph.order() {
            self.read_lists(graph, node, &mut facts);
            let known = |name: &str| Some(InferenceFact::clone(&facts[graph.value(name)?.index()]));
            let infer = || self.infer(graph, graph.node(node), &known);
            let told = rounds
                .infer(graph, node, &facts)
                .or_else(|| sequences::infer(graph, node, &facts));
            let inferred = match told {
                Some(known) => known.into_iter().map(Rc::new).collect(),
                None => memo.get_or(graph, node, &facts, infer),
            };
            for (slot, value) in graph.outputs(node).iter().enumerate() {
                let Some(value) = value else { continue };
                let mut fact = inferred.get(slot).cloned().unwrap_or_default();
                if !declared.is_empty()
                    && (fact.shape.concretize().is_none() || fact.datum_type.concretize().is_none())
                    && let Some(info) = declared.get(graph.value_name(*value))
                {
                    fact = Rc::new(complete(
                        InferenceFact::clone(&fact),
                        self.declared(info, false),
                    ));
                }
                if graph.is(node, "NonZero") && way(graph.node(node)).is_empty() {
                    fact = Rc::new(
                        self.counted_once(InferenceFact::clone(&fact), graph.value_name(*value)),
                    );
                }
                facts[value.index()] = rounds.in_every_round(*value, fact);
            }
        }
        facts
    }

    /// Reads the lists of floats among a node's inputs, where more than their shape is needed.
    fn read_lists(&self, graph: &Graph, node: NodeId, facts: &mut [Rc<InferenceFact>]) {
        let unread = |facts: &[Rc<InferenceFact>], value: ValueId| {
            let tensor = graph.initializer(value).filter(|tensor| is_list(tensor))?;
            let may_change = graph.is_input(value) || self.trained.contains(&value);
            (!may_change && facts[value.index()].value.concretize().is_none()).then_some(tensor)
        };
        let is_known = |value: ValueId| {
            facts[value.index()].value.concretize().is_some() || unread(facts, value).is_some()
        };
        if is_told_by_shapes(graph, node, is_known) {
            return;
        }
        for &value in graph
            .inputs(node)
            .iter()
            .flatten()
            .chain(graph.captures(node))
        {
            if let Some(tensor) = unread(facts, value) {
                facts[value.index()] = Rc::new(self.tensor_fact(graph, tensor));
            }
        }
    }

    /// The result of a NonZero of the main graph, with a symbol for the number of places: it is
    /// unknown before a run, but is one number wherever the places are read. A body makes another
    /// result in each iteration.
    fn counted_once(&self, fact: InferenceFact, name: &str) -> InferenceFact {
        let dims: TVec<DimFact> = fact.shape.dims().cloned().collect();
        let [axes, DimFact::Any] = &dims[..] else {
            return fact;
        };
        let count = self
            .template
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
            template: self.template.clone(),
        }
    }

    /// The declaration of a value_info, input or output. A dim without a name gets a symbol of its
    /// own where the value is a graph input, so that arithmetic on it can cancel.
    fn declared(&self, info: &ValueInfoProto, fresh: bool) -> InferenceFact {
        let tensor = info.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
        let Some(tensor) = tensor else {
            return InferenceFact::default();
        };
        let mut elem_type = tensor.elem_type();
        if elem_type == DataType::BFloat16.code() {
            elem_type = DataType::Float.code();
        }
        let dims = tensor.shape.iter().flat_map(|shape| &shape.dim);
        let written = dims.filter_map(|dim| match &dim.value {
            Some(Dim::DimParam(symbol)) => Some(symbol.len()),
            _ => None,
        });
        if written
            .max()
            .is_some_and(|longest| longest > LONGEST_SYMBOL)
        {
            return InferenceFact::default();
        }
        let bytes = tensor.encode_to_vec();
        let Ok(mut declared) = pb::type_proto::Tensor::decode(bytes.as_slice()) else {
            return InferenceFact::default();
        };
        declared.elem_type = elem_type;
        let translate =
            || tract_onnx::tensor::translate_inference_fact(&self.context(), &declared, fresh);
        let Some(fact) = guarded(translate) else {
            return InferenceFact::default();
        };
        let fact = self.admit(fact, || info.name().to_owned());
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

    /// A tensor of the model as tract's; bfloat16, which tract's ONNX front end lacks, as float.
    pub fn tensor(&self, graph: &Graph, proto: &TensorProto) -> Option<Arc<Tensor>> {
        let externals = graph.model().externals();
        if proto.data_type() == DataType::BFloat16.code() {
            let values = tensor::read_f64(proto, externals).ok()?;
            return Some(Arc::new(Tensor::from(values.mapv(|v| v as f32))));
        }
        let raw = tensor::raw(proto, externals).ok()?;
        // Lists of floats are seldom alike, and there are as many of them as there are layers.
        let is_list_of_floats = tensor::float_type(proto).is_some() && raw.len() > size_of::<f64>();
        let may_be_alike = raw.len() <= SHARED && !is_list_of_floats;
        let key = may_be_alike.then(|| (proto.data_type(), proto.dims.clone(), raw.to_vec()));
        if let Some(tensor) = key
            .as_ref()
            .and_then(|key| self.shared.borrow().get(key).cloned())
        {
            return Some(tensor);
        }
        let (dims, data_type) = (proto.dims.clone(), proto.data_type());
        let read = pb::TensorProto {
            dims,
            data_type,
            raw_data: raw.into(),
            ..Default::default()
        };
        let provider = &*self.onnx.provider;
        let tensor = tract_onnx::tensor::load_tensor(provider, &read, None)
            .ok()
            .map(Arc::new)?;
        self.shared
            .borrow_mut()
            .extend(key.map(|key| (key, tensor.clone())));
        Some(tensor)
    }

    /// Builds tract's operator for a node, or the one that stands in for it. One with bodies is not
    /// built: tract would infer and evaluate them on its own.
    fn build(
        &self,
        node: &NodeProto,
        stand_in: Option<&'static str>,
    ) -> Option<Box<dyn InferenceOp>> {
        let (domain, op) = node.op();
        if !is_read(domain) || bodies(node).next().is_some() {
            return None;
        }
        let mut lean = node.clone();
        let op = match stand_in {
            Some(stand_in) => {
                lean.op_type = Some(stand_in.to_owned());
                if !keeps_attributes(stand_in) {
                    lean.attribute.clear();
                }
                lean.input.truncate(inputs_of(stand_in));
                stand_in
            }
            None => op,
        };
        let builder = self.onnx.op_register.0.get(op)?;
        lean.metadata_props.clear();
        lean.device_configurations.clear();
        spell_bfloat16_as_float(&mut lean);
        spell_zero_as_float(&mut lean);
        let node = pb::NodeProto::decode(lean.encode_to_vec().as_slice()).ok()?;
        guarded(|| builder(&self.context(), &node)).map(|(op, _)| op)
    }

    /// The facts of the outputs of a node, in the places of the outputs.
    pub fn infer(&self, graph: &Graph, node: &NodeProto, known: Known) -> Vec<InferenceFact> {
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
            // Such as the logarithm of 0: the result of a cast is unknown, but its extents are
            // known.
            value.value = Default::default();
        }
        let slots: Vec<_> = inputs.iter().map(Option::as_ref).collect();
        if !guard::can_be_asked(node, &slots) {
            self.note(|| node.label());
            return vec![];
        }
        let inferred = self.ask(node, self.open.hidden(node, &inputs)).into_iter();
        let mut inferred = inferred.map(|fact| self.admit(fact, || node.label()));
        // tract counts only the outputs that are there.
        let outputs = node.output.iter();
        let mut outputs: Vec<InferenceFact> = outputs
            .map(|name| {
                if name.is_empty() {
                    None
                } else {
                    inferred.next()
                }
                .unwrap_or_default()
            })
            .collect();
        self.correct(node, known, &inputs, &mut outputs);
        let elements = |fact: &InferenceFact| self.open.elements(fact);
        let stored = |slot: usize| {
            let tensor = graph.initializer(graph.value(node.input.get(slot)?)?)?;
            DataType::from_code(tensor.data_type())
        };
        let asked = NodeQuery {
            node,
            opset: self.opset,
            inputs: &inputs,
            stored: &stored,
            elements: &elements,
        };
        let outputs = outputs.into_iter().enumerate();
        let symbols = &self.template.symbols;
        let complete = |(slot, fact)| {
            let fact = self
                .budget
                .admit(told(&asked, slot, self.open.without(fact)));
            self.open.named(symbols, read_by_shape(&asked), fact)
        };
        outputs.map(complete).collect()
    }

    /// Corrects tract's answer for some operators.
    fn correct(
        &self,
        node: &NodeProto,
        known: Known,
        inputs: &[Option<InferenceFact>],
        outputs: &mut [InferenceFact],
    ) {
        match (node.op(), outputs) {
            (("", "Slice"), [taken, ..]) => {
                let from = node
                    .input
                    .first()
                    .and_then(|from| known(from))
                    .unwrap_or_default();
                *taken = slices::within_reach(
                    std::mem::take(taken),
                    &from,
                    &slices::cuts(node, &from, known),
                );
            }
            // The sum that they normalize, which continues the residual stream.
            (
                ("com.microsoft", "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization"),
                [normed, _, _, sum],
            ) => *sum = normed.clone(),
            (("", op @ ("Cast" | "CastLike")), [made]) => {
                let like = || inputs.get(1)?.as_ref()?.datum_type.concretize();
                let named = || datum_type(node.attr_i("to").ok()??.try_into().ok()?);
                let to = if op == "Cast" { named() } else { like() };
                if let Some(Some(from)) = inputs.first() {
                    *made = self.narrowed(std::mem::take(made), from, to);
                }
            }
            // tract takes no axis of an open extent for one of one place.
            (("", "Squeeze"), [made]) if takes_all_of_one(node, self.opset) => {
                let is_whole =
                    shape(made).is_some_and(|shape| shape.iter().all(|dim| extent(dim).is_some()));
                if !is_whole {
                    *made = InferenceFact {
                        datum_type: made.datum_type,
                        ..Default::default()
                    };
                }
            }
            (("", "AveragePool" | "LpPool" | "MaxPool"), made) => {
                if let Some(Some(from)) = inputs.first() {
                    made.iter_mut()
                        .for_each(|made| *made = windows::pooled(node, from, std::mem::take(made)));
                }
            }
            (("", "Resize" | "Upsample"), [made]) => {
                if let Some(Some(from)) = inputs.first() {
                    *made = windows::resized(node, from, std::mem::take(made));
                }
            }
            (("", "Div" | "Mod"), [made]) => {
                *made = symbolic_division::settled(node, inputs, std::mem::take(made))
            }
            _ => {}
        }
    }

    /// The result of a Cast to a type. tract has one type for extents: a cast to another type keeps
    /// them where that holds them.
    fn narrowed(
        &self,
        fact: InferenceFact,
        from: &InferenceFact,
        to: Option<DatumType>,
    ) -> InferenceFact {
        let is_extents = |value: &Arc<Tensor>| value.datum_type() == DatumType::TDim;
        let Some(value) = from.value.concretize().filter(is_extents) else {
            return fact;
        };
        let held = match to {
            Some(DatumType::I64) => return fact,
            // Extents fit; an open number may not, and gets another symbol.
            Some(DatumType::I32) if !is_concrete(&value) => {
                return self.open.named(
                    &self.template.symbols,
                    self.open.elements(from),
                    fact.without_value(),
                );
            }
            Some(DatumType::I32) => i64::from(i32::MIN)..i64::from(i32::MAX),
            Some(DatumType::Bool) => 0..2,
            Some(DatumType::I8) => -128..128,
            Some(DatumType::U8) => 0..256,
            Some(DatumType::I16) => -32768..32768,
            Some(DatumType::U16) => 0..65536,
            Some(DatumType::U32 | DatumType::U64) => 0..i64::from(i32::MAX),
            // The width of a type of extents is unknown, but it holds small numbers.
            Some(DatumType::TDim) => 0..128,
            _ => return fact,
        };
        let fits = value.cast_to::<i64>().is_ok_and(|numbers| {
            let numbers = numbers.to_plain_array_view::<i64>();
            numbers.is_ok_and(|numbers| numbers.iter().all(|number| held.contains(number)))
        });
        if fits { fact } else { fact.without_value() }
    }

    /// tract's answer for the outputs that are present.
    fn ask(&self, node: &NodeProto, inputs: Vec<Option<InferenceFact>>) -> Vec<InferenceFact> {
        if has_no_place(node, &inputs) {
            return vec![InferenceFact::dt_shape(DatumType::I64, [0])];
        }
        // tract takes a step down for a huge one up.
        if let Some(up) = ascending(node, &inputs) {
            return self
                .ask(node, up)
                .into_iter()
                .map(InferenceFact::without_value)
                .collect();
        }
        let inputs = if symbolic_division::is_by_less_than_nothing(node, &inputs) {
            inputs
                .into_iter()
                .map(|input| Some(input?.without_value()))
                .collect()
        } else {
            inputs
        };
        // A batch axis before the contracted one changes the shape.
        let is_set = |name: &&str| node.attr_i(name).ok().flatten().unwrap_or(0) != 0;
        let is_stacked =
            node.op().0 == "com.microsoft" && ["transBatchA", "transBatchB"].iter().any(is_set);
        // tract takes the extent of any operand that has the letter.
        let are_told =
            || Contracted::from_node(node, &inputs).is_some_and(|letters| letters.is_told());
        let is_unsure = node.op() == ("", "Einsum") && !are_told();
        if is_stacked || is_unsure || misreads_shape(node, self.opset) {
            let type_alone = |fact: InferenceFact| InferenceFact {
                datum_type: fact.datum_type,
                ..Default::default()
            };
            return inputs
                .into_iter()
                .flatten()
                .take(1)
                .map(type_alone)
                .collect();
        }
        let stand_in = stand_in(node.op());
        let Some(mut op) = self.build(node, stand_in) else {
            return vec![];
        };
        let read = stand_in.map_or(inputs.len(), inputs_of);
        let mut inputs: Vec<InferenceFact> = inputs.into_iter().take(read).flatten().collect();
        if stand_in == Some("MatMul") {
            for (slot, attribute) in ["transA", "transB"].into_iter().enumerate() {
                if node.attr_i(attribute).ok().flatten().unwrap_or(0) != 0 && slot < inputs.len() {
                    inputs[slot] = transposed(&inputs[slot]);
                }
            }
        }
        if node.op() == ("", "CastLike")
            && let Some(datum_type) = inputs.get(1).and_then(|like| like.datum_type.concretize())
            && let Ok(any) = Tensor::zero_scalar_dt(datum_type)
        {
            // tract evaluates nodes whose inputs are all known, and of this input only the type
            // matters.
            inputs[1] = InferenceFact::try_from(any.into_arc_tensor()).unwrap_or_default();
        }
        let inputs: TVec<&InferenceFact> = inputs.iter().collect();
        let made = node.output.iter().filter(|name| !name.is_empty()).count();
        // Outputs that tract does not have, such as the statistics of training, stay unknown.
        let Some(count) = op.nboutputs().ok().filter(|&count| count <= made) else {
            return vec![];
        };
        let Some(shapes) = shapes(&mut *op, &inputs, count) else {
            return vec![];
        };
        if stand_in.is_some() || !is_computed(node, self.opset) {
            // A stand-in, or a misread operator, gives the shapes, not the values.
            return shapes
                .into_iter()
                .map(|fact| fact.without_value())
                .collect();
        }
        let shapes: Vec<_> = shapes
            .into_iter()
            .map(|fact| self.budget.charge(fact))
            .collect();
        let values = inputs.iter().map(|fact| fact.value.concretize());
        let Some(values) = values
            .collect::<Option<Vec<_>>>()
            .filter(|values| !values.is_empty())
        else {
            return shapes;
        };
        if node.op() == ("", "Equal") && !are_told_apart(&values) {
            return shapes;
        }
        match guard::evaluation(node, &inputs, &shapes) {
            Cost::Unknown => {}
            Cost::TooMuch => self.note(|| node.label()),
            Cost::Bytes(bytes) if !self.budget.spend(bytes) => {}
            Cost::Bytes(_) => match evaluated(node, &*op, &values) {
                Evaluated::Values(values) => {
                    let facts = values.into_iter().map(InferenceFact::try_from);
                    return facts.map(Result::unwrap_or_default).collect();
                }
                Evaluated::TooEarly => {}
                Evaluated::Failed => return vec![],
            },
        }
        shapes
    }

    /// The facts of an If: of the branch that is taken, or what both have in common.
    fn branches(&self, graph: &Graph, node: &NodeProto, known: Known) -> Vec<InferenceFact> {
        let facts = |branch: &str| {
            let body = node.attr_g(branch).ok().flatten();
            body.map_or(vec![], |body| self.body(graph, body, known))
        };
        let condition = node.input.first().and_then(|name| known(name));
        let condition = condition.and_then(|fact| fact.value.concretize());
        match condition.and_then(|value| only::<bool>(&value)) {
            Some(true) => facts("then_branch"),
            Some(false) => facts("else_branch"),
            None => {
                let both = facts("then_branch").into_iter().zip(facts("else_branch"));
                both.map(|(one, other)| common(&one, &other)).collect()
            }
        }
    }

    /// The facts of the outputs of a body, which sees the values around it.
    fn body(&self, graph: &Graph, body: &GraphProto, around: Known) -> Vec<InferenceFact> {
        let constants = body.initializer.iter();
        let mut facts: HashMap<&str, InferenceFact> = constants
            .map(|tensor| (tensor.name(), self.tensor_fact(graph, tensor)))
            .collect();
        for node in &body.node {
            let known = |name: &str| facts.get(name).cloned().or_else(|| around(name));
            let mut inferred = self.infer(graph, node, &known).into_iter();
            for name in &node.output {
                facts.insert(name, inferred.next().unwrap_or_default());
            }
        }
        let fact = |name: &str| {
            facts
                .get(name)
                .cloned()
                .or_else(|| around(name))
                .unwrap_or_default()
        };
        body.output
            .iter()
            .map(|output| fact(output.name()))
            .collect()
    }

    fn misreads(&self, node: &NodeProto) -> bool {
        misread(node, self.opset).is_some()
    }

    /// Evaluates one node on constants.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn evaluate(
        &self,
        node: &NodeProto,
        inputs: &[Arc<Tensor>],
        budget: &Budget,
    ) -> Result<Vec<Arc<Tensor>>, String> {
        let name = node.op_type();
        let failed = || format!("{name} failed");
        // tract makes extents of them, for which the largest number that there is, the end of a Slice, is too large.
        if let (("", "Cast"), [same]) = (node.op(), inputs)
            && node.cast_to() == Some(DataType::Int64)
            && same.datum_type() == DatumType::I64
        {
            return Ok(vec![same.clone()]);
        }
        let facts = inputs
            .iter()
            .map(|tensor| InferenceFact::try_from(tensor.clone()));
        let facts: Vec<InferenceFact> = facts.collect::<TractResult<_>>().map_err(|_| failed())?;
        let mut present = facts.iter();
        let slots: Vec<_> = node
            .input
            .iter()
            .map(|name| {
                if name.is_empty() {
                    None
                } else {
                    present.next()
                }
            })
            .collect();
        if !guard::can_be_asked(node, &slots) {
            return Err(format!("{name} has attributes out of bounds"));
        }
        if let Some(counted) = counted(node, inputs) {
            return Ok(vec![counted]);
        }
        if self.misreads(node) {
            let bytes = inputs
                .first()
                .map_or(0, |x| (x.len() * size_of::<f64>()) as u64);
            let normalized = || batch_statistics::normalized(node, self.opset, inputs);
            return match budget.spend(bytes).then(normalized).flatten() {
                Some(normalized) => Ok(vec![normalized]),
                None => Err(failed()),
            };
        }
        if !is_computed(node, self.opset) {
            return Err(format!("{name} is not known to be computed as it is meant"));
        }
        let mut op = self.build(node, None).ok_or_else(failed)?;
        let facts: TVec<&InferenceFact> = facts.iter().collect();
        let count = op.nboutputs().map_err(|_| failed())?;
        let shapes = shapes(&mut *op, &facts, count).ok_or_else(failed)?;
        let bytes = match guard::evaluation(node, &facts, &shapes) {
            Cost::Bytes(bytes) => bytes,
            Cost::TooMuch => return Err(format!("what {name} makes, or its work, is too large")),
            Cost::Unknown => return Err(format!("what {name} costs is not known")),
        };
        if !budget.spend(bytes) {
            return Err("the constants of the model are too large to be evaluated".to_owned());
        }
        match evaluated(node, &*op, inputs) {
            Evaluated::Values(values) => Ok(values),
            Evaluated::TooEarly | Evaluated::Failed => Err(failed()),
        }
    }

    /// The part of a fact within bounds.
    fn admit(&self, fact: InferenceFact, name: impl FnOnce() -> String) -> InferenceFact {
        if !guard::fits(&fact, self.weights) {
            self.note(name);
        }
        self.budget.admit(fact)
    }

    fn note(&self, name: impl FnOnce() -> String) {
        self.out_of_bounds.borrow_mut().get_or_insert_with(name);
    }
}

/// The inputs of an ascending Range of the same length as a descending one over extents: `−start`,
/// `−limit` and `−delta`.
fn ascending(
    node: &NodeProto,
    inputs: &[Option<InferenceFact>],
) -> Option<Vec<Option<InferenceFact>>> {
    let known = |fact: &Option<InferenceFact>| fact.as_ref()?.value.concretize();
    let values = inputs
        .iter()
        .map(known)
        .collect::<Option<Vec<_>>>()
        .filter(|_| node.op() == ("", "Range"))?;
    let down = only::<i64>(values.get(2)?).filter(|step| step.is_negative())?;
    if down == i64::MIN || values.iter().all(|value| is_concrete(value)) {
        return None;
    }
    let negative = |value: &Arc<Tensor>| {
        let [dim] = &dims_of(value)?[..] else {
            return None;
        };
        InferenceFact::try_from(Tensor::from(-dim.clone()).into_arc_tensor()).ok()
    };
    values
        .iter()
        .map(|value| negative(value).map(Some))
        .collect()
}

/// Whether a Range of extents that are known begins at its end or beyond, where tract counts less than no places.
fn has_no_place(node: &NodeProto, inputs: &[Option<InferenceFact>]) -> bool {
    let known = |fact: &Option<InferenceFact>| {
        let value = fact.as_ref()?.value.concretize()?;
        only::<i64>(&value).filter(|_| {
            value.datum_type() == DatumType::TDim || value.datum_type() == DatumType::I64
        })
    };
    let values = inputs
        .iter()
        .map(known)
        .collect::<Option<Vec<_>>>()
        .filter(|_| node.op() == ("", "Range"));
    values.is_some_and(|values| match values[..] {
        [start, limit, step] => step > 0 && start >= limit || step < 0 && start <= limit,
        _ => false,
    })
}

/// tract's inference from shapes and values, without evaluation.
fn shapes(
    op: &mut dyn InferenceOp,
    inputs: &[&InferenceFact],
    count: usize,
) -> Option<TVec<InferenceFact>> {
    let unknown = vec![InferenceFact::default(); count];
    let (inputs, outputs) = (inputs.iter().copied().collect(), unknown.iter().collect());
    guarded(|| op.infer_facts(inputs, outputs, TVec::new())).map(|(_, outputs, _)| outputs)
}

/// Whether it is known of the elements of two tensors which are equal. tract takes a symbol for no number, though a batch
/// may well be 1; no extent is negative, which is what exporters ask for.
fn are_told_apart(values: &[Arc<Tensor>]) -> bool {
    let is_extent = |dim: &TDim| match dim {
        TDim::Val(_) | TDim::Sym(_) => true,
        TDim::MulInt(factor, of) => *factor > 0 && matches!(**of, TDim::Sym(_)),
        _ => false,
    };
    let has_symbols = |dims: &[TDim]| dims.iter().any(|dim| !matches!(dim, TDim::Val(_)));
    let is_apart = |one: &[TDim], other: &[TDim]| {
        !has_symbols(one)
            || one.iter().all(is_extent)
                && other
                    .iter()
                    .all(|dim| matches!(dim, TDim::Val(value) if *value < 0))
    };
    if values
        .iter()
        .all(|value| value.datum_type() != DatumType::TDim)
    {
        return true;
    }
    match values
        .iter()
        .map(|value| dims_of(value))
        .collect::<Option<Vec<_>>>()
        .as_deref()
    {
        Some([one, other]) => is_apart(one, other) && is_apart(other, one),
        _ => false,
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
    fact.clone()
        .with_shape(ShapeFactoid::closed(dims))
        .without_value()
}

/// tract's answer, or none: its operators panic on some unexpected inputs.
fn guarded<T>(f: impl FnOnce() -> TractResult<T>) -> Option<T> {
    catch_unwind(AssertUnwindSafe(f)).ok()?.ok()
}
