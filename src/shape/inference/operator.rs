//! Builds one of tract's operators from a node, infers the facts about its outputs, and evaluates
//! it.

use std::sync::Arc;

use prost::Message;
use tract_onnx::pb;
use tract_onnx::prelude::{DatumType, InferenceFact, TVec, Tensor, TractResult};
use tract_onnx::tract_hir::infer::{Factoid, InferenceOp, ShapeFactoid};
use tract_onnx::tract_hir::internal::{DimFact, IntoArcTensor, TDim};

use crate::onnx::default_types::write_default_type;
use crate::onnx::node::bodies;
use crate::onnx::proto::NodeProto;
use crate::onnx::tensor::DataType;
use crate::onnx::tract_quirks::{is_computed, is_read, misread, misreads_shape};
use crate::shape::batch_statistics;
use crate::shape::encode::{dims_of, is_concrete, only, type_alone};
use crate::shape::evaluate::{Evaluated, counted, evaluated};
use crate::shape::guard::{self, Budget, Cost};
use crate::shape::inference::{Inference, guarded};
use crate::shape::rules::Contracted;
use crate::shape::stand_in::{inputs_of, keeps_attributes, spell_bfloat16_as_float, stand_in};
use crate::shape::symbolic_division;

impl Inference {
    /// Asks tract for the facts about the present outputs of a node.
    pub(super) fn ask(
        &self,
        node: &NodeProto,
        inputs: Vec<Option<InferenceFact>>,
    ) -> Vec<InferenceFact> {
        if has_no_place(node, &inputs) {
            return vec![InferenceFact::dt_shape(DatumType::I64, [0])];
        }
        // tract treats a negative step as a huge positive step. So tract is asked about the Range
        // with all signs changed, which has the same length.
        if let Some(ascending) = ascending(node, &inputs) {
            return without_values(self.ask(node, ascending));
        }
        if self.knows_type_alone(node, &inputs) {
            let first = inputs.iter().flatten().take(1);
            return first.map(type_alone).collect();
        }
        let stand_in = stand_in(node.op());
        let Some(mut op) = self.build(node, stand_in) else {
            return vec![];
        };
        let inputs = operands(node, stand_in, inputs);
        let inputs: Vec<&InferenceFact> = inputs.iter().collect();
        let Some(shapes) = shapes_of_present(node, &mut *op, &inputs) else {
            return vec![];
        };
        if stand_in.is_some() || !is_computed(node, self.opset) {
            // A stand-in or an operator that tract misreads has the right shapes, but not the right
            // values.
            return without_values(shapes);
        }
        let shapes: Vec<_> = shapes
            .into_iter()
            .map(|fact| self.budget.charge(fact))
            .collect();
        self.with_values(node, &*op, &inputs, shapes)
    }

    /// Whether only the type of the result is known, because tract infers a wrong shape, or because
    /// engines disagree on the shape.
    fn knows_type_alone(&self, node: &NodeProto, inputs: &[Option<InferenceFact>]) -> bool {
        has_inner_batch(node)
            || is_ambiguous_einsum(node, inputs)
            || misreads_shape(node, self.opset)
    }

    /// Adds values to the facts about the outputs, if all inputs are known and the budget suffices.
    /// If the evaluation fails, the result is empty, so the outputs stay unknown.
    fn with_values(
        &self,
        node: &NodeProto,
        op: &dyn InferenceOp,
        inputs: &[&InferenceFact],
        shapes: Vec<InferenceFact>,
    ) -> Vec<InferenceFact> {
        let values = inputs.iter().map(|fact| fact.value.concretize());
        let Some(values) = values.collect::<Option<Vec<_>>>() else {
            return shapes;
        };
        if values.is_empty() || node.op() == ("", "Equal") && !is_equality_known(&values) {
            return shapes;
        }
        match guard::evaluation(node, inputs, &shapes) {
            Cost::Unknown => return shapes,
            Cost::TooMuch => {
                self.note_out_of_bounds(|| node.label());
                return shapes;
            }
            Cost::Bytes(bytes) if !self.budget.spend(bytes) => return shapes,
            Cost::Bytes(_) => {}
        }
        match evaluated(node, op, &values) {
            Evaluated::Values(values) => {
                let facts = values.into_iter().map(InferenceFact::try_from);
                facts.map(Result::unwrap_or_default).collect()
            }
            Evaluated::TooEarly => shapes,
            Evaluated::Failed => vec![],
        }
    }

    /// Builds tract's operator for a node, or a stand-in for it. An operator with bodies is not
    /// built, because tract would infer and evaluate the bodies too.
    fn build(
        &self,
        node: &NodeProto,
        stand_in: Option<&'static str>,
    ) -> Option<Box<dyn InferenceOp>> {
        let (domain, op) = node.op();
        if !is_read(domain) || bodies(node).next().is_some() {
            return None;
        }
        let builder = self.onnx.op_register.0.get(stand_in.unwrap_or(op))?;
        let mut lean = node.clone();
        if let Some(stand_in) = stand_in {
            lean.op_type = Some(stand_in.to_owned());
            if !keeps_attributes(stand_in) {
                lean.attribute.clear();
            }
            lean.input.truncate(inputs_of(stand_in));
        }
        lean.metadata_props.clear();
        lean.device_configurations.clear();
        spell_bfloat16_as_float(&mut lean);
        write_default_type(&mut lean);
        let node = pb::NodeProto::decode(lean.encode_to_vec().as_slice()).ok()?;
        guarded(|| builder(&self.context(), &node)).map(|(op, _)| op)
    }

    /// Evaluates one node on constants.
    ///
    /// # Errors
    /// The reason why the node cannot be evaluated.
    pub(crate) fn evaluate(
        &self,
        node: &NodeProto,
        inputs: &[Arc<Tensor>],
        budget: &Budget,
    ) -> Result<Vec<Arc<Tensor>>, String> {
        let name = node.op_type();
        // A Cast from int64 to int64 returns its input. tract would cast the elements to symbolic
        // extents, which cannot hold the largest number, a common end of a Slice.
        if let (("", "Cast"), [same]) = (node.op(), inputs)
            && node.cast_to() == Some(DataType::Int64)
            && same.datum_type() == DatumType::I64
        {
            return Ok(vec![same.clone()]);
        }
        let facts = inputs
            .iter()
            .map(|tensor| InferenceFact::try_from(tensor.clone()))
            .collect::<TractResult<Vec<_>>>()
            .map_err(|_| failure(node))?;
        if !guard::can_be_asked(node, &by_slot(node, &facts)) {
            return Err(format!("{name} has attributes out of bounds"));
        }
        if let Some(counted) = counted(node, inputs) {
            return Ok(vec![counted]);
        }
        if misread(node, self.opset).is_some() {
            let normalized = self.batch_normalized(node, inputs, budget);
            return normalized.ok_or_else(|| failure(node));
        }
        if !is_computed(node, self.opset) {
            return Err(format!("{name} is not known to be computed as it is meant"));
        }
        self.evaluate_in_tract(node, inputs, &facts, budget)
    }

    /// Computes a BatchNormalization with the statistics of its input.
    fn batch_normalized(
        &self,
        node: &NodeProto,
        inputs: &[Arc<Tensor>],
        budget: &Budget,
    ) -> Option<Vec<Arc<Tensor>>> {
        let count = inputs.first().map_or(0, |x| x.len());
        if !budget.spend((count * size_of::<f64>()) as u64) {
            return None;
        }
        let normalized = batch_statistics::normalized(node, self.opset, inputs)?;
        Some(vec![normalized])
    }

    fn evaluate_in_tract(
        &self,
        node: &NodeProto,
        inputs: &[Arc<Tensor>],
        facts: &[InferenceFact],
        budget: &Budget,
    ) -> Result<Vec<Arc<Tensor>>, String> {
        let name = node.op_type();
        let mut op = self.build(node, None).ok_or_else(|| failure(node))?;
        let facts: Vec<&InferenceFact> = facts.iter().collect();
        let count = op.nboutputs().map_err(|_| failure(node))?;
        let shapes = shapes(&mut *op, &facts, count).ok_or_else(|| failure(node))?;
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
            Evaluated::TooEarly | Evaluated::Failed => Err(failure(node)),
        }
    }
}

fn failure(node: &NodeProto) -> String {
    format!("{} failed", node.op_type())
}

/// The fact about the input in each slot of a node; `None` for absent inputs, which tract does not
/// count.
fn by_slot<'f>(node: &NodeProto, present: &'f [InferenceFact]) -> Vec<Option<&'f InferenceFact>> {
    let mut present = present.iter();
    let slots = node.input.iter().map(|name| match name.is_empty() {
        true => None,
        false => present.next(),
    });
    slots.collect()
}

fn without_values(facts: Vec<InferenceFact>) -> Vec<InferenceFact> {
    facts
        .into_iter()
        .map(InferenceFact::without_value)
        .collect()
}

/// Whether a FusedMatMul has the batch axis of an operand between its rows and its columns, so that
/// the shapes are not those of a MatMul.
fn has_inner_batch(node: &NodeProto) -> bool {
    node.op().0 == "com.microsoft"
        && ["transBatchA", "transBatchB"]
            .iter()
            .any(|name| is_set(node, name))
}

/// Whether an Einsum has a letter of unknown extent. tract would use the extent of the letter in
/// any one of the operands.
fn is_ambiguous_einsum(node: &NodeProto, inputs: &[Option<InferenceFact>]) -> bool {
    let is_einsum = node.op() == ("", "Einsum");
    is_einsum && !Contracted::from_node(node, inputs).is_some_and(|letters| letters.is_told())
}

fn is_set(node: &NodeProto, name: &str) -> bool {
    node.attr_i(name).ok().flatten().unwrap_or(0) != 0
}

/// The facts about the inputs in the form in which tract's operator reads them.
fn operands(
    node: &NodeProto,
    stand_in: Option<&'static str>,
    inputs: Vec<Option<InferenceFact>>,
) -> Vec<InferenceFact> {
    let has_negative_divisor = symbolic_division::has_negative_divisor(node, &inputs);
    let read = stand_in.map_or(inputs.len(), inputs_of);
    let mut operands: Vec<InferenceFact> = inputs.into_iter().take(read).flatten().collect();
    if has_negative_divisor {
        operands = without_values(operands);
    }
    if stand_in == Some("MatMul") {
        for (operand, attribute) in operands.iter_mut().zip(["transA", "transB"]) {
            if is_set(node, attribute) {
                *operand = transposed(operand);
            }
        }
    }
    if node.op() == ("", "CastLike")
        && let Some(datum_type) = operands
            .get(1)
            .and_then(|like| like.datum_type.concretize())
        && let Ok(any) = Tensor::zero_scalar_dt(datum_type)
    {
        // Only the type of this input matters, but tract evaluates a node only if the values of all
        // inputs are known.
        operands[1] = InferenceFact::try_from(any.into_arc_tensor()).unwrap_or_default();
    }
    operands
}

/// Infers the facts about the outputs of a node with at least as many outputs as tract's operator.
/// Outputs that tract lacks stay unknown, such as the statistics of training. `None` if the node
/// has fewer outputs, or if tract fails.
fn shapes_of_present(
    node: &NodeProto,
    op: &mut dyn InferenceOp,
    inputs: &[&InferenceFact],
) -> Option<Vec<InferenceFact>> {
    let present = node.output.iter().filter(|name| !name.is_empty()).count();
    let count = op.nboutputs().ok().filter(|&count| count <= present)?;
    shapes(op, inputs, count)
}

/// Lets tract infer facts from shapes and values without evaluating the operator.
fn shapes(
    op: &mut dyn InferenceOp,
    inputs: &[&InferenceFact],
    count: usize,
) -> Option<Vec<InferenceFact>> {
    let unknown = vec![InferenceFact::default(); count];
    let (inputs, outputs) = (inputs.iter().copied().collect(), unknown.iter().collect());
    let (_, outputs, _) = guarded(|| op.infer_facts(inputs, outputs, TVec::new()))?;
    Some(outputs.into_vec())
}

/// A fact with its last two axes swapped.
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

/// The inputs `−start`, `−limit` and `−delta` for a descending Range over extents. The Range of
/// these inputs ascends, and has the same length. `None` for other nodes, and if no input is
/// symbolic.
fn ascending(
    node: &NodeProto,
    inputs: &[Option<InferenceFact>],
) -> Option<Vec<Option<InferenceFact>>> {
    let values = range_values(node, inputs)?;
    let down = only::<i64>(values.get(2)?).filter(|step| step.is_negative())?;
    if down == i64::MIN || values.iter().all(|value| is_concrete(value)) {
        return None;
    }
    values
        .iter()
        .map(|value| negative(value).map(Some))
        .collect()
}

/// The values of the inputs of a Range, if all are known.
fn range_values(node: &NodeProto, inputs: &[Option<InferenceFact>]) -> Option<Vec<Arc<Tensor>>> {
    if node.op() != ("", "Range") {
        return None;
    }
    let values = inputs.iter().map(|fact| fact.as_ref()?.value.concretize());
    values.collect()
}

/// The fact about the negative of an extent; `None` if `value` has several elements.
fn negative(value: &Tensor) -> Option<InferenceFact> {
    let [dim] = &dims_of(value)?[..] else {
        return None;
    };
    InferenceFact::try_from(Tensor::from(-dim.clone()).into_arc_tensor()).ok()
}

/// Whether a Range of known extents is empty. tract would compute a negative length for it.
fn has_no_place(node: &NodeProto, inputs: &[Option<InferenceFact>]) -> bool {
    let Some(values) = range_values(node, inputs) else {
        return false;
    };
    let numbers = values.iter().map(|value| whole_number(value));
    match numbers.collect::<Option<Vec<_>>>().as_deref() {
        Some(&[start, limit, step]) => step > 0 && start >= limit || step < 0 && start <= limit,
        _ => false,
    }
}

/// The value of a scalar of type extent or int64.
fn whole_number(value: &Tensor) -> Option<i64> {
    let is_whole = [DatumType::TDim, DatumType::I64].contains(&value.datum_type());
    only::<i64>(value).filter(|_| is_whole)
}

/// Whether the result of an Equal is known. tract assumes that a symbol differs from every number,
/// but a batch may be 1. A comparison of an extent with −1, which exporters write, is known,
/// because an extent is never negative.
fn is_equality_known(values: &[Arc<Tensor>]) -> bool {
    if values
        .iter()
        .all(|value| value.datum_type() != DatumType::TDim)
    {
        return true;
    }
    let dims = values.iter().map(|value| dims_of(value));
    match dims.collect::<Option<Vec<_>>>().as_deref() {
        Some([one, other]) => differs_if_symbolic(one, other) && differs_if_symbolic(other, one),
        _ => false,
    }
}

/// Whether each element of `one` can be compared with the elements of `other`. This holds for
/// numbers, and for extents if all elements of `other` are negative numbers.
fn differs_if_symbolic(one: &[TDim], other: &[TDim]) -> bool {
    if one.iter().all(|dim| matches!(dim, TDim::Val(_))) {
        return true;
    }
    let are_negative = other
        .iter()
        .all(|dim| matches!(dim, TDim::Val(value) if *value < 0));
    are_negative && one.iter().all(is_number_or_extent)
}

fn is_number_or_extent(dim: &TDim) -> bool {
    matches!(dim, TDim::Val(_)) || is_never_negative(dim)
}

/// Whether an expression is never negative, because it consists of sums and products of extents,
/// such as the sum of old and new tokens of a cache.
fn is_never_negative(dim: &TDim) -> bool {
    match dim {
        TDim::Val(value) => *value >= 0,
        TDim::Sym(_) => true,
        TDim::MulInt(factor, inner) => *factor > 0 && is_never_negative(inner),
        TDim::Add(terms) | TDim::Mul(terms) => terms.iter().all(is_never_negative),
        _ => false,
    }
}
