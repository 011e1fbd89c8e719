//! Finds the constant values of a graph, and reads or computes their elements.
//!
//! A value is constant if it does not depend on anything that varies at run time. Constants are
//! initializers that no caller can replace, results of Constant nodes, and values that are computed
//! only from constants or static shapes.

use std::cell::RefCell;
use std::fmt::Display;
use std::rc::Rc;
use std::sync::Arc;

use ndarray::ArrayD;
use tract_onnx::prelude::{DatumType, Tensor, TractResult};

use crate::analysis::constant_marks::Marks;
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

/// The evaluation of constants may produce at most `EVALUATED` bytes, plus `TIMES_THE_WEIGHTS`
/// times the bytes of the weights.
const EVALUATED: u64 = 1 << 27;
const TIMES_THE_WEIGHTS: u64 = 16;

/// The largest computed constant that is always stored, in bytes. A larger one is stored only if
/// the weights of the model have at least as many bytes.
const COMPUTED: usize = 1 << 18;

/// The maximum number of nodes that are inspected to find how the elements of a constant are
/// computed.
const LOOKED_AT: usize = 64;

/// The constants of a graph.
pub(crate) struct Constants<'m> {
    graph: Rc<Graph<'m>>,
    facts: Rc<Facts>,
    constant: Vec<bool>,
    quantized: Vec<bool>,
    /// Whether any value is bfloat16.
    has_bfloat16: bool,
    evaluated: RefCell<HashMap<ValueId, Arc<Tensor>>>,
    budget: Budget,
    /// The number of bytes of the weights of the model.
    stored: usize,
}

impl<'m> Constants<'m> {
    /// Finds the constants. Nothing is evaluated yet.
    pub(crate) fn new(graph: Rc<Graph<'m>>, facts: Rc<Facts>) -> Self {
        let stored = graph.weight_bytes();
        let bytes = EVALUATED.saturating_add(stored.saturating_mul(TIMES_THE_WEIGHTS));
        let (constant, quantized) = Marks::find(&graph, &facts);
        let mut values = (0..graph.value_count()).map(|index| ValueId(index as u32));
        let has_bfloat16 = values.any(|value| facts.data_type(value) == Some(DataType::BFloat16));
        Constants {
            graph,
            facts,
            constant,
            quantized,
            has_bfloat16,
            evaluated: RefCell::default(),
            budget: Budget::new(bytes),
            stored: usize::try_from(stored).unwrap_or(usize::MAX),
        }
    }

    /// Whether the value does not depend on anything that varies at run time.
    pub(crate) fn is_constant(&self, value: ValueId) -> bool {
        self.constant[value.index()]
    }

    /// Whether the value is a constant that a DequantizeLinear computes, or that is annotated as
    /// quantized.
    pub(crate) fn is_quantized(&self, value: ValueId) -> bool {
        self.quantized[value.index()]
    }

    /// Whether the value is a constant that is computed from quantized elements, so that the scales
    /// of a DequantizeLinear can absorb a factor.
    pub(crate) fn is_dequantized(&self, value: ValueId) -> bool {
        self.is_quantized(value) && self.graph.producer(value).is_some()
    }

    /// The tensor of an initializer or of a Constant node; `None` for other values.
    pub(crate) fn stored(&self, value: ValueId) -> Option<TensorProto> {
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

    /// The number of bytes of a stored constant's elements; 0 for other values.
    pub(crate) fn stored_bytes(&self, value: ValueId) -> u64 {
        let stored = self
            .stored(value)
            .and_then(|tensor| tensor::byte_size(&tensor).ok());
        stored.unwrap_or_default() as u64
    }

    /// Whether a value is a constant of one element.
    pub(crate) fn is_scalar(&self, value: ValueId) -> bool {
        self.is_constant(value) && self.len(value) == Some(1)
    }

    /// The element of a scalar constant, if it is a float.
    pub(crate) fn scalar(&self, value: ValueId) -> Option<f64> {
        if !self.is_scalar(value) {
            return None;
        }
        self.read(value).ok()?.first().copied()
    }

    /// The elements of a floating-point constant, with its name as their recipe. The elements are
    /// marked as blurred if [`Constants::is_blurred`] returns true.
    ///
    /// # Errors
    /// The errors of [`Constants::read`].
    pub(crate) fn numbers(&self, value: ValueId) -> Result<Numbers, Refusal> {
        let numbers = Numbers::constant(self.graph.value_name(value), self.read(value)?);
        Ok(if self.is_blurred(value) {
            numbers.blurred()
        } else {
            numbers
        })
    }

    /// The elements of a floating-point constant.
    ///
    /// # Errors
    /// A refusal at the node that cannot be evaluated, or whose result does not consist of real
    /// numbers.
    pub(crate) fn read(&self, value: ValueId) -> Result<ArrayD<f64>, Refusal> {
        match self.held(value)? {
            Held::Stored(floats) => floats.all().map_err(|error| self.refuse(value, &error)),
            Held::Computed(tensor) => floats(&tensor).map_err(|error| self.refuse(value, &error)),
        }
    }

    /// Whether a computed constant may have equal elements only because of limited precision. In
    /// float32, for example, `1 + 1e-10` equals `1 + 2e-10`.
    pub(crate) fn is_blurred(&self, value: ValueId) -> bool {
        let (mut open, mut seen) = (vec![value], HashSet::default());
        while let Some(value) = open.pop() {
            let Some((node, _)) = self
                .graph
                .producer(value)
                .filter(|(node, _)| seen.insert(*node))
            else {
                continue;
            };
            // A long computation is not inspected further, and counts as blurred.
            if seen.len() > LOOKED_AT {
                return true;
            }
            let only_moves = matches!(
                self.graph.category(node),
                Some(Category::Movement | Category::Selection | Category::Shape | Category::Like)
            );
            for &input in self.graph.inputs(node).iter().flatten() {
                // Indices and shapes do not depend on the precision.
                if only_moves && self.is_integer(input) {
                    continue;
                }
                if !only_moves && !self.is_uniform(input) {
                    return true;
                }
                open.push(input);
            }
        }
        false
    }

    fn is_integer(&self, value: ValueId) -> bool {
        let data_type = self.facts.data_type(value);
        data_type.is_some_and(DataType::is_integer)
    }

    /// Whether all elements of a floating-point constant are equal. True if the elements cannot be
    /// read.
    fn is_uniform(&self, value: ValueId) -> bool {
        let Ok(numbers) = self.read(value) else {
            return true;
        };
        let first = numbers.first().copied().map(f64::to_bits);
        numbers.iter().all(|number| Some(number.to_bits()) == first)
    }

    /// Whether a value is a constant of floats with an element that is not finite, or that is the
    /// lowest number of its type, as in a mask.
    pub(crate) fn has_hidden(&self, value: ValueId) -> bool {
        let data_type = self
            .facts
            .data_type(value)
            .filter(|_| self.is_constant(value));
        let Some(lowest) = data_type.and_then(DataType::lowest) else {
            return false;
        };
        let numbers = self.read(value);
        numbers.is_ok_and(|numbers| {
            let mut numbers = numbers.iter();
            numbers.any(|number| !number.is_finite() || *number == lowest)
        })
    }

    /// Like [`Constants::read`], but the caller may read the elements later, or in parts.
    ///
    /// # Errors
    /// The errors of [`Constants::read`], except those of reading stored elements.
    pub(crate) fn given(&self, value: ValueId) -> Result<Given, Refusal> {
        match self.held(value)? {
            Held::Stored(floats) => Ok(Given::Stored(Arc::new(floats))),
            Held::Computed(_) => self
                .read(value)
                .map(|numbers| Given::Computed(Arc::new(numbers))),
        }
    }

    /// Checks, without reading stored elements, that [`Constants::read`] can return the elements,
    /// and that a model may store them. A computed constant may be too large, because a model can
    /// compute many elements from little data.
    ///
    /// # Errors
    /// The errors of [`Constants::read`], and [`Reason::TooLarge`].
    pub(crate) fn check(&self, value: ValueId) -> Result<(), Refusal> {
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

    fn refuse(&self, value: ValueId, why: &dyn Display) -> Refusal {
        Refusal::new(
            Reason::Constant(why.to_string()),
            self.graph.value_name(value),
        )
    }

    /// A floating-point constant, stored or computed.
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
                .map_err(|error| self.refuse(value, &error));
        }
        let tensor = self.evaluate(value)?;
        match tensor.datum_type().is_float() {
            true => Ok(Held::Computed(tensor)),
            false => Err(self.refuse(value, &"its elements are not floats")),
        }
    }

    /// The elements of a constant of integers or bool; `None` for other values.
    pub(crate) fn ints(&self, value: ValueId) -> Option<Vec<i64>> {
        if let Some(ints) = self.facts.ints(value) {
            return Some(ints);
        }
        let tensor = self.evaluate(value).ok()?;
        let is_whole = tensor.datum_type().is_integer() || tensor.datum_type() == DatumType::Bool;
        is_whole.then(|| ints_of(&tensor)).flatten()
    }

    /// Records a tensor as the value of a constant that was evaluated elsewhere. Returns whether
    /// the type of the tensor is supported.
    pub(crate) fn provide(&self, value: ValueId, tensor: &TensorProto) -> bool {
        let tensor = self.facts.engine().tensor(&self.graph, tensor);
        if let Some(tensor) = &tensor {
            self.evaluated.borrow_mut().insert(value, tensor.clone());
        }
        tensor.is_some()
    }

    /// A computed constant as a tensor of its declared type.
    ///
    /// # Errors
    /// A refusal at the node that cannot be evaluated, or if the result has a NaN or an unknown
    /// element type.
    pub(crate) fn tensor(&self, value: ValueId) -> Result<TensorProto, Refusal> {
        let tensor = self.evaluate(value)?;
        let encoded = self
            .facts
            .data_type(value)
            .and_then(|data_type| encoded(&tensor, data_type));
        match encoded {
            Some(_) if has_nan(&tensor) => Err(Refusal::new(
                Reason::NotFinite,
                self.graph.value_name(value),
            )),
            Some(encoded) => Ok(encoded),
            None => Err(self.refuse(value, &"its element type is not known")),
        }
    }

    /// The number of elements of a constant, if its shape is known.
    pub(crate) fn len(&self, value: ValueId) -> Option<usize> {
        let shape = self.facts.shape(value)?;
        shape.iter().try_fold(1usize, |n, dim| {
            n.checked_mul(crate::shape::facts::extent(dim)?)
        })
    }

    fn evaluate(&self, value: ValueId) -> Result<Arc<Tensor>, Refusal> {
        // Depth-first without recursion, since a chain of constants may be long.
        let mut stack = vec![value];
        while let Some(&top) = stack.last() {
            if self.evaluated.borrow().contains_key(&top) {
                stack.pop();
                continue;
            }
            let unknown = self.evaluate_from_known(top)?;
            stack.extend(unknown);
        }
        Ok(self.evaluated.borrow()[&value].clone())
    }

    /// Evaluates a constant, provided that its inputs are evaluated already, and returns an empty
    /// list. Otherwise evaluates nothing, and returns the inputs that must be evaluated first.
    fn evaluate_from_known(&self, value: ValueId) -> Result<Vec<ValueId>, Refusal> {
        let name = self.graph.value_name(value);
        if !self.is_constant(value) {
            return Err(Refusal::new(Reason::NotConstant, name));
        }
        if let Some(tensor) = self.leaf(value) {
            self.evaluated.borrow_mut().insert(value, tensor);
            return Ok(vec![]);
        }
        let Some((node, slot)) = self.graph.producer(value) else {
            return Err(self.refuse(value, &"cannot be read"));
        };
        if let Some(source) = self.taken(node, slot) {
            let Some(tensor) = self.evaluated.borrow().get(&source).cloned() else {
                return Ok(vec![source]);
            };
            self.evaluated.borrow_mut().insert(value, tensor);
            return Ok(vec![]);
        }
        let inputs: Vec<ValueId> = self.graph.inputs(node).iter().flatten().copied().collect();
        let unknown: Vec<ValueId> = inputs
            .iter()
            .filter(|input| !self.evaluated.borrow().contains_key(input))
            .copied()
            .collect();
        if !unknown.is_empty() {
            return Ok(unknown);
        }
        let result = self
            .compute(node, slot, &inputs)
            .map_err(|why| Refusal::new(Reason::Constant(why), self.graph.name(node)))?;
        // tract may compute symbolic extents where ONNX computes integers, so the result is cast to
        // the type of the value.
        let mut tensor = self.typed(value, result);
        if self.is_bfloat16(value) {
            tensor = rounded_to_bfloat16(&tensor).map_err(|error| self.refuse(value, &error))?;
        }
        self.evaluated.borrow_mut().insert(value, tensor);
        Ok(vec![])
    }

    /// The value that an If returns as its output `slot`, from the branch that runs. `None` if the
    /// node is not an If, or if its condition is not known.
    fn taken(&self, end: NodeId, slot: usize) -> Option<ValueId> {
        branch(&self.graph, end, true)?;
        let [holds] = self.ints(self.graph.input(end, 0)?)?[..] else {
            return None;
        };
        branch(&self.graph, end, holds != 0)?[slot]
    }

    fn is_bfloat16(&self, value: ValueId) -> bool {
        self.facts.data_type(value) == Some(DataType::BFloat16)
    }

    /// The tensor of a constant whose elements the facts or the model have. `None` if it must be
    /// computed.
    fn leaf(&self, value: ValueId) -> Option<Arc<Tensor>> {
        if let Some(tensor) = self.facts.value(value) {
            // tract computes bfloat16 operators in float32 and does not round their results, so
            // floats from the facts are not exact in a model with bfloat16.
            let is_exact = !self.has_bfloat16 || !tensor.datum_type().is_float();
            if is_exact && is_concrete(&tensor) {
                return Some(self.typed(value, tensor));
            }
        }
        self.facts
            .engine()
            .tensor(&self.graph, &self.stored(value)?)
    }

    /// Casts a tensor of symbolic extents to its ONNX type, if that is known.
    fn typed(&self, value: ValueId, tensor: Arc<Tensor>) -> Arc<Tensor> {
        if tensor.datum_type() != DatumType::TDim {
            return tensor;
        }
        let data_type = self.facts.data_type(value);
        let Some(datum_type) = data_type.and_then(|found| datum_type(found.code())) else {
            return tensor;
        };
        // Cast in two steps, since tract cannot cast an extent to a short integer type.
        let cast = tensor
            .cast_to::<i64>()
            .and_then(|cast| Ok(cast.cast_to_dt(datum_type)?.into_owned()));
        cast.map_or(tensor, Arc::new)
    }

    fn compute(
        &self,
        node: NodeId,
        slot: usize,
        inputs: &[ValueId],
    ) -> Result<Arc<Tensor>, String> {
        let evaluated = self.evaluated.borrow();
        let inputs: Vec<_> = inputs
            .iter()
            .map(|input| evaluated[input].clone())
            .collect();
        drop(evaluated);
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

/// The elements of a constant: stored in the model, or computed.
enum Held {
    Stored(Floats),
    Computed(Arc<Tensor>),
}

fn floats(tensor: &Tensor) -> TractResult<ArrayD<f64>> {
    let floats = tensor.cast_to::<f64>()?;
    Ok(floats.to_plain_array_view::<f64>()?.to_owned())
}

/// Whether a tensor has a NaN, or floats that cannot be read.
fn has_nan(tensor: &Tensor) -> bool {
    tensor.datum_type().is_float()
        && floats(tensor).map_or(true, |floats| floats.iter().any(|number| number.is_nan()))
}

/// Rounds floats to bfloat16, because tract computes bfloat16 operators in float32.
fn rounded_to_bfloat16(tensor: &Tensor) -> TractResult<Arc<Tensor>> {
    let floats = tensor.to_plain_array_view::<f32>()?;
    let rounded = floats.map(|&float| tensor::rounded(DataType::BFloat16, f64::from(float)) as f32);
    Ok(Arc::new(Tensor::from(rounded)))
}
