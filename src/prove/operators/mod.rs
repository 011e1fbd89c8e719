//! The interpretation of operators on field elements and on integers.
//!
//! One table lists the interpreted operators with their attributes. All other operators are
//! uninterpreted functions (`uninterpreted.rs`).

mod allowance;
mod arithmetic;
mod broadcast;
pub(super) mod convolution;
mod einsum;
mod gathers;
pub(super) mod integers;
pub(super) mod lane_functions;
pub(super) mod masked;
pub(super) mod mixed_axes;
pub(super) mod movement;
mod normalizers;
mod padded;
pub(super) mod products;
pub(super) mod quantized;
pub(super) mod recurrent;
mod reductions;
pub(super) mod resize_interpolated;
mod resize_nearest;
mod scattered;
pub(super) mod uninterpreted;
mod where_op;
pub(super) mod windows;

use std::collections::HashMap;
use std::sync::LazyLock;

pub(super) use allowance::Allowance;
pub(super) use arithmetic::inverses;
pub(super) use broadcast::{combine, zip};
pub(super) use reductions::sum;

use super::field;
use super::roots::RootContext;
use crate::ir::axes;
use crate::onnx::operator::{AVERAGE_POOL, CONV, RESIZE, input_at};
use crate::onnx::proto::NodeProto;
use crate::prove::field_value::{Elements, FieldValue, Integers, slice};

/// The reasons why an operator has no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NotEvaluated {
    /// The operator is not interpreted, or not with these attributes and inputs.
    Uncovered,
    /// The operator divides by 0 at this point.
    Zero,
    /// The extents of the inputs contradict each other or the operator.
    Misfit,
    /// The operator would compute more elements or multiplications than a model of this size is
    /// known to need.
    Beyond,
}

/// The results of an operator. Results at the end may be missing.
pub(super) type OpResult = Result<Vec<FieldValue>, NotEvaluated>;

/// A node and its inputs.
pub(super) struct Call<'c> {
    /// The node.
    pub node: &'c NodeProto,
    /// The version of ONNX's operator set.
    pub opset: i64,
    /// The inputs. `None` for an input that is left out.
    pub inputs: Vec<Option<FieldValue>>,
    /// The number of results that are needed: up to the last one with a reader.
    pub wanted: usize,
    /// The limits of computation.
    pub allowance: &'c Allowance,
    /// The roots of this evaluation.
    pub roots: &'c RootContext,
    /// For each input, whether its elements depend on neither an input of the model nor a random
    /// element.
    pub settled: &'c [bool],
}

impl Call<'_> {
    fn op(&self) -> &str {
        self.node.op_type()
    }

    fn optional(&self, slot: usize) -> Option<&FieldValue> {
        self.inputs.get(slot)?.as_ref()
    }

    fn value(&self, slot: usize) -> Result<&FieldValue, NotEvaluated> {
        self.optional(slot).ok_or(NotEvaluated::Uncovered)
    }

    fn shape(&self, slot: usize) -> Result<&[usize], NotEvaluated> {
        self.value(slot)?.shape().ok_or(NotEvaluated::Uncovered)
    }

    fn field(&self, slot: usize) -> Result<&Elements, NotEvaluated> {
        match self.value(slot)? {
            FieldValue::Field(elements) => Ok(elements),
            _ => Err(NotEvaluated::Uncovered),
        }
    }

    fn optional_field(&self, slot: usize) -> Result<Option<&Elements>, NotEvaluated> {
        self.optional(slot).map(|_| self.field(slot)).transpose()
    }

    fn integers(&self, slot: usize) -> Result<&Integers, NotEvaluated> {
        match self.value(slot)? {
            FieldValue::Int(integers) => Ok(integers),
            _ => Err(NotEvaluated::Uncovered),
        }
    }

    /// The integers of an input. An unknown integer is represented by its element of the field.
    fn indices(&self, slot: usize) -> Result<Integers, NotEvaluated> {
        match self.value(slot)? {
            FieldValue::Int(integers) => Ok(integers.clone()),
            FieldValue::Varying(elements) => Ok(elements.mapv(i64::from).into_shared()),
            FieldValue::Field(_) | FieldValue::Masked(_) => Err(NotEvaluated::Misfit),
            FieldValue::Opaque(_) => Err(NotEvaluated::Uncovered),
        }
    }

    /// Whether the elements of an input depend only on stored tensors and extents.
    fn is_settled(&self, slot: usize) -> bool {
        self.settled.get(slot) == Some(&true)
    }

    /// The known integers of an input of extents, axes or places. Floats are refused.
    fn ints(&self, slot: usize) -> Result<Option<Vec<i64>>, NotEvaluated> {
        match self.optional(slot) {
            Some(FieldValue::Field(_) | FieldValue::Masked(_)) => Err(NotEvaluated::Misfit),
            given => given
                .map(|_| Ok(slice(self.integers(slot)?).to_vec()))
                .transpose(),
        }
    }

    fn attr(&self, name: &str, absent: i64) -> Result<i64, NotEvaluated> {
        self.node
            .attr_i(name)
            .map(|value| value.unwrap_or(absent))
            .map_err(|_| NotEvaluated::Uncovered)
    }

    /// An attribute that is a nonnegative integer.
    fn count(&self, name: &str, absent: usize) -> Result<usize, NotEvaluated> {
        usize::try_from(self.attr(name, absent as i64)?).map_err(|_| NotEvaluated::Uncovered)
    }

    fn flag(&self, name: &str, absent: bool) -> Result<bool, NotEvaluated> {
        match self.attr(name, absent.into())? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(NotEvaluated::Uncovered),
        }
    }

    /// The image of a float attribute.
    fn float(&self, name: &str, absent: f32) -> Result<u32, NotEvaluated> {
        let value = self
            .node
            .attr_f(name)
            .map_err(|_| NotEvaluated::Uncovered)?
            .unwrap_or(absent);
        field::of_float(value.into()).ok_or(NotEvaluated::Uncovered)
    }

    fn text(&self, name: &str, absent: &'static str) -> Result<&str, NotEvaluated> {
        self.node
            .attr_s(name)
            .map(|value| value.unwrap_or(absent))
            .map_err(|_| NotEvaluated::Uncovered)
    }

    fn attr_ints(&self, name: &str) -> Result<Option<Vec<i64>>, NotEvaluated> {
        self.node
            .attr_ints(name)
            .map(|list| list.map(<[i64]>::to_vec))
            .map_err(|_| NotEvaluated::Uncovered)
    }

    /// A list of integers that is an attribute or an input, depending on the operator set. `None`
    /// if it is left out.
    fn list(&self, name: &str) -> Result<Option<Vec<i64>>, NotEvaluated> {
        input_at(self.op(), name, self.opset)
            .map_or_else(|| self.attr_ints(name), |slot| self.ints(slot))
    }

    /// The axes that a Reduce operator reduces, in ascending order.
    fn reduced(&self, rank: usize) -> Result<Vec<usize>, NotEvaluated> {
        let mut reduced = match self.list("axes")?.filter(|list| !list.is_empty()) {
            Some(list) => axes(&list, rank)?,
            None if self.flag("noop_with_empty_axes", false)? => vec![],
            None => (0..rank).collect(),
        };
        reduced.sort_unstable();
        reduced.dedup();
        Ok(reduced)
    }

    fn axis(&self, absent: i64, rank: usize) -> Result<usize, NotEvaluated> {
        axis(self.attr("axis", absent)?, rank)
    }
}

fn axis(named: i64, rank: usize) -> Result<usize, NotEvaluated> {
    axes::axis(named, rank).map_err(|_| NotEvaluated::Uncovered)
}

fn axes(named: &[i64], rank: usize) -> Result<Vec<usize>, NotEvaluated> {
    axes::axes(named, rank).map_err(|_| NotEvaluated::Uncovered)
}

/// The interpretation of an operator.
type Interpreter = fn(&Call) -> OpResult;

/// The operators, with the attributes that their interpreters support.
const TABLE: &[(&str, &[&str], &[&str], Interpreter)] = &[
    ("", &["Add"], &[], arithmetic::add),
    ("", &["Sub"], &[], arithmetic::sub),
    ("", &["Mul"], &[], arithmetic::mul),
    ("", &["Div"], &[], arithmetic::div),
    ("", &["Neg"], &[], arithmetic::neg),
    ("", &["Sum", "Mean"], &[], arithmetic::several),
    ("", &["Reciprocal"], &[], arithmetic::reciprocal),
    ("", &["Sqrt"], &[], arithmetic::sqrt),
    ("", &["Pow"], &[], arithmetic::pow),
    (
        "",
        &["Cast", "CastLike"],
        &["to", "saturate", "round_mode"],
        integers::cast,
    ),
    (
        "",
        &["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"],
        &[],
        integers::compare,
    ),
    ("", &["And", "Or", "Xor"], &[], integers::compare),
    ("", &["Not", "Abs", "Sign"], &[], integers::one),
    ("", &["Mod"], &["fmod"], integers::modulo),
    ("", &["Min", "Max"], &[], integers::extreme),
    ("", &["Clip"], &[], integers::clip),
    ("", &["Shape"], &["start", "end"], integers::shape),
    ("", &["Size"], &[], integers::size),
    ("", &["Range"], &[], integers::range),
    ("", &["NonZero"], &[], integers::non_zero),
    ("", &["OneHot"], &["axis"], integers::one_hot),
    (
        "",
        &["Identity", "OptionalGetElement"],
        &[],
        movement::identity,
    ),
    ("", &["Optional"], &["type"], movement::identity),
    (
        "",
        &["Dropout"],
        &["ratio", "seed", "is_test"],
        movement::dropout,
    ),
    ("", &["Reshape"], &["allowzero"], movement::reshape),
    ("", &["Flatten"], &["axis"], movement::flatten),
    ("", &["Squeeze", "Unsqueeze"], &["axes"], movement::squeeze),
    ("", &["Transpose"], &["perm"], movement::transpose),
    (
        "",
        &["Slice"],
        &["starts", "ends", "axes"],
        movement::slice_of,
    ),
    (
        "",
        &["Split"],
        &["axis", "split", "num_outputs"],
        movement::split,
    ),
    ("", &["Concat"], &["axis"], movement::concat),
    ("", &["Gather"], &["axis"], gathers::gather),
    ("", &["GatherND"], &["batch_dims"], gathers::gather_nd),
    ("", &["GatherElements"], &["axis"], gathers::gather_elements),
    ("", &["ScatterND"], &["reduction"], scattered::nd),
    (
        "",
        &["ScatterElements"],
        &["axis", "reduction"],
        scattered::elements,
    ),
    ("", &["Expand"], &[], movement::expand),
    ("", &["Tile"], &[], movement::tile),
    ("", &["Resize", "Upsample"], RESIZE, resize_nearest::resize),
    ("", &["Pad"], &["mode", "pads", "value"], padded::pad),
    (
        "",
        &["DepthToSpace", "SpaceToDepth"],
        &["blocksize", "mode"],
        movement::depth,
    ),
    ("", &["Where"], &[], where_op::choose),
    (
        "",
        &["ConstantOfShape"],
        &["value"],
        movement::constant_of_shape,
    ),
    ("", &["Trilu"], &["upper"], where_op::triangle),
    (
        "",
        &["CumSum"],
        &["exclusive", "reverse"],
        reductions::running,
    ),
    ("", &["MatMul"], &[], products::matmul),
    (
        "com.microsoft",
        &["FusedMatMul"],
        products::FUSED,
        products::fused,
    ),
    (
        "",
        &["Gemm"],
        &["alpha", "beta", "transA", "transB"],
        products::gemm,
    ),
    (
        "",
        &["DequantizeLinear"],
        quantized::DEQUANTIZE,
        quantized::dequantize,
    ),
    (
        "com.microsoft",
        &["MatMulNBits"],
        quantized::N_BITS,
        quantized::product,
    ),
    (
        "com.microsoft",
        &["GatherBlockQuantized"],
        quantized::GATHER,
        quantized::gather,
    ),
    ("", &["Einsum"], &["equation"], einsum::einsum),
    ("", &["Conv"], CONV, windows::conv),
    (
        "",
        &["ConvTranspose"],
        windows::CONV_TRANSPOSE,
        windows::conv_transpose,
    ),
    ("", &["AveragePool"], AVERAGE_POOL, windows::average),
    ("", &["GlobalAveragePool"], &[], reductions::global),
    (
        "",
        REDUCTIONS,
        &["axes", "keepdims", "noop_with_empty_axes"],
        reductions::reduce,
    ),
    (
        "",
        &["BatchNormalization"],
        &["epsilon", "momentum", "training_mode", "spatial"],
        normalizers::batch,
    ),
    (
        "",
        &["InstanceNormalization"],
        &["epsilon"],
        normalizers::instance,
    ),
    (
        "",
        &["GroupNormalization"],
        &["epsilon", "num_groups", "stash_type"],
        normalizers::group,
    ),
    (
        "",
        &["LayerNormalization"],
        normalizers::ATTRIBUTES,
        normalizers::layer,
    ),
    (
        "com.microsoft",
        &["LayerNormalization"],
        normalizers::ATTRIBUTES,
        normalizers::layer,
    ),
    (
        "com.microsoft",
        &["GroupNorm"],
        normalizers::OF_RUNTIME,
        normalizers::of_runtime,
    ),
    (
        "",
        &["RMSNormalization", "SimplifiedLayerNormalization"],
        normalizers::ATTRIBUTES,
        normalizers::rms,
    ),
    (
        "com.microsoft",
        &["SimplifiedLayerNormalization"],
        normalizers::ATTRIBUTES,
        normalizers::rms,
    ),
    (
        "com.microsoft",
        &["SkipLayerNormalization"],
        &["epsilon"],
        normalizers::skip,
    ),
    (
        "com.microsoft",
        &["SkipSimplifiedLayerNormalization"],
        &["epsilon"],
        normalizers::skip,
    ),
];

const REDUCTIONS: &[&str] = &["ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL2"];

/// The results of an interpreted operator.
///
/// # Errors
/// [`NotEvaluated::Uncovered`] if the table does not cover the node, and the errors of the function
/// in the table.
pub(super) fn interpret(call: &Call) -> OpResult {
    type Interpreters =
        HashMap<(&'static str, &'static str), (&'static [&'static str], Interpreter)>;
    static INTERPRETERS: LazyLock<Interpreters> = LazyLock::new(|| {
        let entries = TABLE
            .iter()
            .flat_map(|&(domain, ops, attributes, interpreter)| {
                ops.iter()
                    .map(move |&op| ((domain, op), (attributes, interpreter)))
            });
        entries.collect()
    });
    let (attributes, interpreter) = INTERPRETERS
        .get(&call.node.op())
        .ok_or(NotEvaluated::Uncovered)?;
    let covers = call
        .node
        .attribute
        .iter()
        .all(|attribute| attributes.contains(&attribute.name()));
    let made = if covers {
        interpreter(call)?
    } else {
        return Err(NotEvaluated::Uncovered);
    };
    // Some interpreters do not compute all results of their operator. A node of which a missing
    // result is needed is not covered.
    if made.len() < call.wanted {
        Err(NotEvaluated::Uncovered)
    } else {
        Ok(made)
    }
}
