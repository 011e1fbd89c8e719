//! Constants: which values are constant, and their elements.
//!
//! A value is constant when nothing that varies at run time reaches it, whatever operators lie
//! between: an initializer that no caller can replace, a Constant node, and everything computed
//! from such values alone or from shapes that are numbers.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use ndarray::ArrayD;
use tract_onnx::prelude::{DatumType, Tensor};

use crate::hash::{HashMap, HashSet};
use crate::ir::regions::branch;
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::node::constant_tensor;
use crate::onnx::operator::Category;
use crate::onnx::proto::TensorProto;
use crate::onnx::tensor::{self, DataType, Floats};
use crate::recipe::{Given, Numbers};
use crate::refusal::{Reason, Refusal};
use crate::shape::encode::{datum_type, encoded, ints_of, is_concrete};
use crate::shape::facts::Facts;
use crate::shape::guard::Budget;

/// Bytes that the evaluation of constants may make, whatever the weights are; and how many times the
/// weights besides.
const EVALUATED: u64 = 1 << 27;
const TIMES_THE_WEIGHTS: u64 = 16;

/// Bytes up to which a constant that is computed may be stored, where the model itself stores fewer.
const COMPUTED: usize = 1 << 18;

/// How many nodes are looked at to tell where the numbers of a constant come from.
const LOOKED_AT: usize = 64;

/// The constants of a graph.
pub struct Constants<'m> {
    graph: Rc<Graph<'m>>,
    facts: Rc<Facts>,
    constant: Vec<bool>,
    quantized: Vec<bool>,
    /// Whether there is a value of that type.
    has_bfloat16: bool,
    evaluated: RefCell<HashMap<ValueId, Arc<Tensor>>>,
    budget: Budget,
    /// Bytes that the model stores.
    stored: usize,
}

impl<'m> Constants<'m> {
    /// Finds the constants. Nothing is evaluated yet.
    pub(crate) fn new(graph: Rc<Graph<'m>>, facts: Rc<Facts>) -> Self {
        let mut constant = vec![false; graph.value_count()];
        let mut quantized = vec![false; graph.value_count()];
        // Before IR version 4 every initializer is listed as an input too, and is a constant all
        // the same; from 4 on a listed one is a default that the caller may replace.
        let listed_is_constant = graph.model().proto.ir_version() < 4;
        for (index, constant) in constant.iter_mut().enumerate() {
            let value = ValueId(index as u32);
            *constant = graph.initializer(value).is_some()
                && (listed_is_constant || !graph.is_input(value));
        }
        // Values that training writes are variable.
        graph
            .trained()
            .for_each(|value| constant[value.index()] = false);
        for annotation in &graph.proto().quantization_annotation {
            if let Some(value) = graph.value(annotation.tensor_name()) {
                quantized[value.index()] = true;
            }
        }
        for &node in graph.order() {
            let (domain, op) = graph.domain_op(node);
            let known = matches!(domain, "" | "com.microsoft");
            let inputs = graph.inputs(node);
            let from_constants = known
                && (op == "Constant" || !inputs.is_empty())
                && !graph.category(node).is_some_and(Category::is_random)
                // It may be told to be in training.
                && !(op == "Dropout" && graph.input(node, 2).is_some())
                && graph.captures(node).is_empty()
                && inputs.iter().flatten().all(|value| constant[value.index()]);
            // An If is the branch that it takes; which one that is, the condition may have to be computed for.
            let condition = graph
                .input(node, 0)
                .filter(|condition| constant[condition.index()]);
            let holds = condition.and_then(|condition| facts.ints(condition));
            let sides = match holds.as_deref() {
                Some(&[holds]) => [holds != 0; 2],
                _ => [false, true],
            };
            let sides = sides.map(|holds| condition.and_then(|_| branch(&graph, node, holds)));
            let from_quantized = op == "DequantizeLinear"
                || inputs
                    .iter()
                    .flatten()
                    .any(|value| quantized[value.index()]);
            for (slot, value) in graph.outputs(node).iter().enumerate() {
                let Some(value) = value else { continue };
                let by_shape = || {
                    facts
                        .value(*value)
                        .is_some_and(|tensor| is_concrete(&tensor))
                };
                let of = |side: &Option<&[Option<ValueId>]>| side.and_then(|results| results[slot]);
                let from_branch = sides
                    .iter()
                    .all(|side| of(side).is_some_and(|of| constant[of.index()]));
                constant[value.index()] = from_constants || from_branch || by_shape();
                quantized[value.index()] |= constant[value.index()] && from_quantized;
            }
        }
        let stored = graph.weight_bytes();
        let budget =
            Budget::new(EVALUATED.saturating_add(stored.saturating_mul(TIMES_THE_WEIGHTS)));
        let stored = usize::try_from(stored).unwrap_or(usize::MAX);
        let is_bfloat16 =
            |index| facts.data_type(ValueId(index as u32)) == Some(DataType::BFloat16);
        let has_bfloat16 = (0..graph.value_count()).any(is_bfloat16);
        Constants {
            graph,
            facts,
            constant,
            quantized,
            has_bfloat16,
            evaluated: RefCell::default(),
            budget,
            stored,
        }
    }

    /// Whether nothing that varies at run time reaches the value.
    pub fn is_constant(&self, value: ValueId) -> bool {
        self.constant[value.index()]
    }

    /// Whether the value is a constant that comes out of a DequantizeLinear, or is annotated as quantized.
    pub fn is_quantized(&self, value: ValueId) -> bool {
        self.quantized[value.index()]
    }

    /// The tensor itself where the value is an initializer or a Constant node, not yet computed on.
    pub fn stored(&self, value: ValueId) -> Option<TensorProto> {
        if !self.is_constant(value) {
            return None;
        }
        match (self.graph.initializer(value), self.graph.producer(value)) {
            (Some(tensor), _) => Some(tensor.clone()),
            (None, Some((node, _))) if self.graph.is(node, "Constant") => {
                constant_tensor(self.graph.node(node))
            }
            _ => None,
        }
    }

    /// How many bytes the elements take of a constant that is stored; 0 of another.
    pub fn stored_bytes(&self, value: ValueId) -> u64 {
        let stored = self
            .stored(value)
            .and_then(|tensor| tensor::byte_size(&tensor).ok());
        stored.unwrap_or_default() as u64
    }

    /// Whether a value is a constant of one element.
    pub fn is_scalar(&self, value: ValueId) -> bool {
        self.is_constant(value) && self.len(value) == Some(1)
    }

    /// The element of such a constant, if it is a float.
    pub fn scalar(&self, value: ValueId) -> Option<f64> {
        let is_scalar = self.is_scalar(value);
        is_scalar
            .then(|| self.read(value).ok()?.first().copied())
            .flatten()
    }

    /// The elements of a constant of floats, and how they come to be.
    ///
    /// # Errors
    /// As [`Constants::read`].
    pub fn numbers(&self, value: ValueId) -> Result<Numbers, Refusal> {
        let numbers = Numbers::constant(self.graph.value_name(value), self.read(value)?);
        Ok(if self.is_blurred(value) {
            numbers.blurred()
        } else {
            numbers
        })
    }

    /// The elements of a constant of floats.
    ///
    /// # Errors
    /// A refusal at the node that cannot be evaluated, or whose type holds no real numbers.
    pub fn read(&self, value: ValueId) -> Result<ArrayD<f64>, Refusal> {
        let refuse = |error: &dyn std::fmt::Display| self.refuse(value, &error.to_string());
        match self.held(value)? {
            Held::Stored(floats) => floats.all().map_err(|error| refuse(&error)),
            Held::Computed(tensor) => {
                let cast = tensor.cast_to::<f64>().map_err(|error| refuse(&error))?;
                let view = cast.to_plain_array_view::<f64>();
                view.map(|view| view.to_owned())
                    .map_err(|error| refuse(&error))
            }
        }
    }

    /// Whether a constant that nodes compute may have the same number at several places for want of bits alone: the
    /// engine has no more than its type holds, so that `1 + 1e-10` is `1 + 2e-10`.
    pub fn is_blurred(&self, value: ValueId) -> bool {
        let (mut open, mut seen) = (vec![value], HashSet::default());
        while let Some(value) = open.pop() {
            let Some((node, _)) = self
                .graph
                .producer(value)
                .filter(|(node, _)| seen.insert(*node))
            else {
                continue;
            };
            // A long computation is not worth inspecting.
            if seen.len() > LOOKED_AT {
                return true;
            }
            let is_scale_transparent = matches!(
                self.graph.category(node),
                Some(Category::Movement | Category::Selection | Category::Shape | Category::Like)
            );
            // Where numbers are moved to, and how many they become, is no question of their bits.
            let is_place = |value: ValueId| {
                self.facts
                    .data_type(value)
                    .is_some_and(DataType::is_integer)
            };
            for &input in self
                .graph
                .inputs(node)
                .iter()
                .flatten()
                .filter(|&&value| !(is_scale_transparent && is_place(value)))
            {
                if !is_scale_transparent && !self.is_uniform(input) {
                    return true;
                }
                open.push(input);
            }
        }
        false
    }

    /// Whether a constant has no two floats that differ.
    fn is_uniform(&self, value: ValueId) -> bool {
        let Ok(numbers) = self.read(value) else {
            return true;
        };
        let first = numbers.first().copied().map(f64::to_bits);
        numbers.iter().all(|number| Some(number.to_bits()) == first)
    }

    /// As [`Constants::read`], for callers that read the elements later, or in parts.
    ///
    /// # Errors
    /// As [`Constants::read`]; reads no stored elements.
    pub fn given(&self, value: ValueId) -> Result<Given, Refusal> {
        match self.held(value)? {
            Held::Stored(floats) => Ok(Given::Stored(Arc::new(floats))),
            Held::Computed(_) => self
                .read(value)
                .map(|numbers| Given::Computed(Arc::new(numbers))),
        }
    }

    /// Whether [`Constants::read`] gives the elements, and others may be stored in their place:
    /// elements that the model computes from little data may be many. Reads no stored elements.
    ///
    /// # Errors
    /// As [`Constants::read`], and [`Reason::TooLarge`].
    pub fn check(&self, value: ValueId) -> Result<(), Refusal> {
        match self.held(value)? {
            Held::Computed(tensor)
                if tensor.len() * size_of::<f32>() > self.stored.max(COMPUTED) =>
            {
                Err(Refusal::new(
                    Reason::TooLarge(tensor.len()),
                    self.graph.value_name(value),
                ))
            }
            _ => Ok(()),
        }
    }

    fn refuse(&self, value: ValueId, why: &str) -> Refusal {
        Refusal::new(
            Reason::Constant(why.to_owned()),
            self.graph.value_name(value),
        )
    }

    /// A constant of floats, where it is.
    fn held(&self, value: ValueId) -> Result<Held, Refusal> {
        if !self.is_constant(value) {
            return Err(Refusal::new(
                Reason::NotConstant,
                self.graph.value_name(value),
            ));
        }
        if let Some(stored) = self.stored(value) {
            let floats = Floats::new(&stored, self.graph.model().externals());
            return floats
                .map(Held::Stored)
                .map_err(|error| self.refuse(value, &error.to_string()));
        }
        let tensor = self.evaluate(value)?;
        match tensor.datum_type().is_float() {
            true => Ok(Held::Computed(tensor)),
            false => Err(self.refuse(value, "its elements are no floats")),
        }
    }

    /// The elements of a constant of integers or bool.
    pub fn ints(&self, value: ValueId) -> Option<Vec<i64>> {
        if let Some(ints) = self.facts.ints(value) {
            return Some(ints);
        }
        let tensor = self.evaluate(value).ok()?;
        let is_whole = tensor.datum_type().is_integer() || tensor.datum_type() == DatumType::Bool;
        is_whole.then(|| ints_of(&tensor)).flatten()
    }

    /// A constant that nodes compute, as a tensor of the type that it has.
    ///
    /// # Errors
    /// A refusal at the node that cannot be evaluated, or where it holds what no tensor of a model should.
    pub fn tensor(&self, value: ValueId) -> Result<TensorProto, Refusal> {
        let tensor = self.evaluate(value)?;
        let encoded = self
            .facts
            .data_type(value)
            .and_then(|data_type| encoded(&tensor, data_type));
        let is_number = |tensor: &Tensor| {
            !tensor.datum_type().is_float()
                || tensor.cast_to::<f64>().is_ok_and(|floats| {
                    floats
                        .to_plain_array_view::<f64>()
                        .is_ok_and(|floats| !floats.iter().any(|x| x.is_nan()))
                })
        };
        match encoded {
            Some(_) if !is_number(&tensor) => Err(Refusal::new(
                Reason::NotFinite,
                self.graph.value_name(value),
            )),
            Some(encoded) => Ok(encoded),
            None => Err(self.refuse(value, "its element type is not known")),
        }
    }

    /// How many elements a constant has, where its shape is known.
    pub fn len(&self, value: ValueId) -> Option<usize> {
        let shape = self.facts.shape(value)?;
        shape.iter().try_fold(1usize, |n, dim| {
            n.checked_mul(crate::shape::facts::extent(dim)?)
        })
    }

    fn evaluate(&self, value: ValueId) -> Result<Arc<Tensor>, Refusal> {
        let refuse = |at: &str, why: &str| Refusal::new(Reason::Constant(why.to_owned()), at);
        // Depth-first without recursion: a chain of constants may be long.
        let mut stack = vec![value];
        while let Some(&top) = stack.last() {
            if self.evaluated.borrow().contains_key(&top) {
                stack.pop();
                continue;
            }
            let name = self.graph.value_name(top);
            if !self.is_constant(top) {
                return Err(Refusal::new(Reason::NotConstant, name));
            }
            if let Some(tensor) = self.leaf(top) {
                self.evaluated.borrow_mut().insert(top, tensor);
                continue;
            }
            let (node, slot) = self
                .graph
                .producer(top)
                .ok_or_else(|| refuse(name, "cannot be read"))?;
            if let Some(source) = self.taken(node, slot) {
                let made = self.evaluated.borrow().get(&source).cloned();
                match made {
                    Some(made) => drop(self.evaluated.borrow_mut().insert(top, made)),
                    None => stack.push(source),
                }
                continue;
            }
            let inputs: Vec<ValueId> = self.graph.inputs(node).iter().flatten().copied().collect();
            let known = self.evaluated.borrow();
            let missing: Vec<_> = inputs
                .iter()
                .filter(|input| !known.contains_key(input))
                .copied()
                .collect();
            drop(known);
            if !missing.is_empty() {
                stack.extend(missing);
                continue;
            }
            let result = self.compute(node, slot, &inputs);
            // tract makes extents where it casts to integers.
            let mut tensor = self.typed(
                top,
                result.map_err(|why| refuse(self.graph.name(node), &why))?,
            );
            if self.is_bfloat16(top) {
                let short =
                    |floats: &f32| tensor::rounded(DataType::BFloat16, f64::from(*floats)) as f32;
                let view = tensor
                    .to_plain_array_view::<f32>()
                    .map(|floats| floats.map(short));
                tensor = Arc::new(Tensor::from(
                    view.map_err(|error| refuse(name, &error.to_string()))?,
                ));
            }
            self.evaluated.borrow_mut().insert(top, tensor);
        }
        Ok(self.evaluated.borrow()[&value].clone())
    }

    /// The value of the taken branch that replaces a result of an If.
    fn taken(&self, end: NodeId, slot: usize) -> Option<ValueId> {
        branch(&self.graph, end, true)?;
        let [holds] = self.ints(self.graph.input(end, 0)?)?[..] else {
            return None;
        };
        branch(&self.graph, end, holds != 0)?[slot]
    }

    /// Whether each operator rounds to fewer bits than the engine has.
    fn is_bfloat16(&self, value: ValueId) -> bool {
        self.facts.data_type(value) == Some(DataType::BFloat16)
    }

    /// A constant that needs no computing: known already, or stored in the model.
    fn leaf(&self, value: ValueId) -> Option<Arc<Tensor>> {
        // The engine computes bfloat16 in float, and rounds nothing on the way.
        let is_exact = |tensor: &Tensor| !self.has_bfloat16 || !tensor.datum_type().is_float();
        let of_engine = || {
            self.facts
                .value(value)
                .filter(|tensor| is_concrete(tensor) && is_exact(tensor))
        };
        if let Some(tensor) = of_engine() {
            return Some(self.typed(value, tensor));
        }
        self.facts
            .engine()
            .tensor(&self.graph, &self.stored(value)?)
    }

    /// A tensor of extents in the type that ONNX says it has, where that is known.
    fn typed(&self, value: ValueId, tensor: Arc<Tensor>) -> Arc<Tensor> {
        let of_integers = self
            .facts
            .data_type(value)
            .and_then(|found| datum_type(found.code()));
        match of_integers.filter(|_| tensor.datum_type() == DatumType::TDim) {
            Some(datum_type) => {
                // In two steps: tract takes no extent for a number of few bits.
                let cast = tensor
                    .cast_to::<i64>()
                    .and_then(|cast| Ok(cast.cast_to_dt(datum_type)?.into_owned()));
                cast.map_or(tensor, Arc::new)
            }
            None => tensor,
        }
    }

    fn compute(
        &self,
        node: NodeId,
        slot: usize,
        inputs: &[ValueId],
    ) -> Result<Arc<Tensor>, String> {
        let known = self.evaluated.borrow();
        let inputs: Vec<_> = inputs.iter().map(|input| known[input].clone()).collect();
        drop(known);
        let outputs = self
            .facts
            .engine()
            .evaluate(self.graph.node(node), &inputs, &self.budget)?;
        let present = self.graph.outputs(node)[..slot].iter().flatten().count();
        outputs
            .get(present)
            .cloned()
            .ok_or_else(|| "tract does not have this output".to_owned())
    }
}

/// The elements of a constant: as the model has them, or computed.
enum Held {
    Stored(Floats),
    Computed(Arc<Tensor>),
}
