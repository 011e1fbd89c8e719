//! The table of operators: their categories, and the changes between operator sets.
//!
//! This table holds only facts that several rules share. Each rule lists its own operators.

use super::node::canonical_domain;
use super::proto::NodeProto;

/// How an operator treats the elements of its inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Category {
    /// Returns each element once, possibly at a different place or in a different shape.
    Movement,
    /// Selects or repeats elements unchanged.
    Selection,
    /// Adds, subtracts, multiplies, divides or negates elements at the same place.
    Arithmetic,
    /// Computes another function of elements at the same place.
    Elementwise,
    /// Multiplies two stacks of matrices.
    MatrixProduct,
    /// Multiplies by a weight and adds a bias.
    Layer,
    /// Combines all elements along some axes into one.
    Reduction,
    /// Subtracts a mean, or divides by a standard deviation.
    Normalizer,
    /// Reads only the shape of its input, and returns the extents or their product.
    Shape,
    /// Reads only the shape of its input, and returns a value of that shape.
    Like,
    /// Returns different elements in each run.
    Random,
    /// Returns random elements in the shape of its input.
    RandomLike,
}

impl Category {
    /// The category of an operator; `None` if the table does not list it.
    pub(crate) fn from_operator(domain: &str, op: &str) -> Option<Category> {
        match canonical_domain(domain) {
            "" => own(op),
            "com.microsoft" => of_runtime(op),
            _ => None,
        }
    }

    /// Whether the result differs between runs.
    pub(crate) fn is_random(self) -> bool {
        matches!(self, Category::Random | Category::RandomLike)
    }

    /// Whether the operator reads only the shape and the type of its input.
    pub(crate) fn reads_only_shape(self) -> bool {
        matches!(
            self,
            Category::Shape | Category::Like | Category::RandomLike
        )
    }

    /// Whether each element of the result depends only on the elements of the operands at the same
    /// place.
    pub(crate) fn is_elementwise(self) -> bool {
        matches!(self, Category::Arithmetic | Category::Elementwise)
    }

    /// Whether the operator adds up products of its inputs.
    pub(crate) fn is_product(self) -> bool {
        matches!(self, Category::MatrixProduct | Category::Layer)
    }
}

impl NodeProto {
    /// The category of the node's operator; `None` if the operator or one of the node's attributes
    /// is unknown.
    pub(crate) fn category(&self) -> Option<Category> {
        let known =
            attributes(self.op_type()).filter(|_| canonical_domain(self.domain()).is_empty());
        let category = Category::from_operator(self.domain(), self.op_type())?;
        let has_known_attributes = known.is_none_or(|known| {
            let mut attributes = self.attribute.iter();
            attributes.all(|attribute| known.contains(&attribute.name()))
        });
        has_known_attributes.then_some(category)
    }
}

/// The category of an operator of ONNX's own domain, or of an operator that runtimes register in
/// that domain.
fn own(op: &str) -> Option<Category> {
    Some(match op {
        "Flatten" | "Identity" | "Reshape" | "Squeeze" | "Transpose" | "Unsqueeze" => {
            Category::Movement
        }
        "Expand" | "Gather" | "GatherND" | "Slice" | "Split" | "Tile" => Category::Selection,
        "Add" | "Div" | "Mul" | "Neg" | "Sub" => Category::Arithmetic,
        "Abs" | "Acos" | "Acosh" | "And" | "Asin" | "Asinh" | "Atan" | "Atanh" | "BitShift"
        | "BitwiseAnd" | "BitwiseNot" | "BitwiseOr" | "BitwiseXor" | "Ceil" | "Celu" | "Clip"
        | "Cos" | "Cosh" | "Elu" | "Equal" | "Erf" | "Exp" | "Floor" | "Gelu" | "Greater"
        | "GreaterOrEqual" | "HardSigmoid" | "HardSwish" | "IsInf" | "IsNaN" | "LeakyRelu"
        | "Less" | "LessOrEqual" | "Log" | "Max" | "Mean" | "Min" | "Mish" | "Mod" | "Not"
        | "Or" | "PRelu" | "Pow" | "Reciprocal" | "Relu" | "Round" | "Selu" | "Shrink"
        | "Sigmoid" | "Sign" | "Sin" | "Sinh" | "Softplus" | "Softsign" | "Sqrt" | "Sum"
        | "Swish" | "Tan" | "Tanh" | "ThresholdedRelu" | "Where" | "Xor" => Category::Elementwise,
        "MatMul" => Category::MatrixProduct,
        "Conv" | "ConvTranspose" | "Gemm" => Category::Layer,
        "ReduceL1" | "ReduceL2" | "ReduceLogSum" | "ReduceLogSumExp" | "ReduceMax"
        | "ReduceMean" | "ReduceMin" | "ReduceProd" | "ReduceSum" | "ReduceSumSquare" => {
            Category::Reduction
        }
        "BatchNormalization"
        | "GroupNormalization"
        | "InstanceNormalization"
        | "LayerNormalization"
        | "LpNormalization"
        | "MeanVarianceNormalization"
        | "RMSNormalization"
        | "SimplifiedLayerNormalization" => Category::Normalizer,
        "Shape" | "Size" => Category::Shape,
        "EyeLike" => Category::Like,
        "Bernoulli" | "Multinomial" | "RandomNormal" | "RandomUniform" => Category::Random,
        "RandomNormalLike" | "RandomUniformLike" => Category::RandomLike,
        _ => return None,
    })
}

/// The category of an operator of `com.microsoft`. No operator of ONNX has one of these names.
fn of_runtime(op: &str) -> Option<Category> {
    Some(match op {
        "BiasGelu" | "FastGelu" => Category::Elementwise,
        "FusedMatMul" => Category::MatrixProduct,
        "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization" => Category::Normalizer,
        _ => return None,
    })
}

/// Whether an operator of ONNX computes constants by more than arithmetic. Such an operator may
/// amplify the rounding errors of its inputs.
pub(crate) fn is_more_than_arithmetic(op: &str) -> bool {
    matches!(op, "Exp" | "ReduceMax" | "Sigmoid" | "Softmax")
}

/// Whether an operator reads quantized elements, quantizes, or dequantizes.
pub(crate) fn is_quantized(domain: &str, op: &str) -> bool {
    match canonical_domain(domain) {
        "" => matches!(
            op,
            "ConvInteger"
                | "DequantizeLinear"
                | "DynamicQuantizeLinear"
                | "MatMulInteger"
                | "QLinearConv"
                | "QLinearMatMul"
                | "QuantizeLinear"
        ),
        "com.microsoft" => {
            let words = ["Quantize", "Integer", "NBits", "Bnb4", "FpQ4"];
            let letters: Vec<char> = op.chars().take(2).collect();
            // Operators such as QGemm, QLinearAdd, QAttention and QMoE.
            words.iter().any(|word| op.contains(word)) || matches!(letters[..], ['Q', 'A'..='Z'])
        }
        _ => false,
    }
}

/// Whether an operator computes floats from stored codes and scales.
pub(crate) fn dequantizes(operator: (&str, &str)) -> bool {
    matches!(
        operator,
        ("" | "com.microsoft", "DequantizeLinear") | ("com.microsoft", "GatherBlockQuantized")
    )
}

/// The names of all attributes that an operator has in some operator set since 7; `None` if the
/// operator is not listed.
pub(crate) fn attributes(op: &str) -> Option<&'static [&'static str]> {
    Some(match op {
        "Abs" | "Add" | "And" | "Expand" | "GlobalMaxPool" | "Identity" | "OptionalGetElement"
        | "PRelu" | "Relu" | "Tile" | "Where" => &[],
        "Cast" => &["round_mode", "saturate", "to"],
        "CastLike" => &["round_mode", "saturate"],
        "Concat" | "Flatten" | "Gather" | "GatherElements" => &["axis"],
        "CumSum" => &["exclusive", "reverse"],
        "DepthToSpace" => &["blocksize", "mode"],
        "Dropout" => &["ratio", "seed"],
        "Einsum" => &["equation"],
        "GatherND" => &["batch_dims"],
        "LeakyRelu" => &["alpha"],
        "MaxPool" => MAX_POOL,
        "Pad" => &["mode", "pads", "value"],
        "Reshape" => &["allowzero"],
        "Resize" => RESIZE,
        "ScatterElements" => &["axis", "reduction"],
        "ScatterND" => &["reduction"],
        "Slice" => &["axes", "ends", "starts"],
        "SpaceToDepth" => &["blocksize"],
        "Split" => &["axis", "num_outputs", "split"],
        "Squeeze" | "Unsqueeze" => &["axes"],
        "Transpose" => &["perm"],
        "Trilu" => &["upper"],
        "Upsample" => &["mode", "scales"],
        _ if own(op) == Some(Category::Reduction) => &["axes", "keepdims", "noop_with_empty_axes"],
        _ => return None,
    })
}

/// The attributes of Conv.
pub(crate) const CONV: &[&str] = &[
    "auto_pad",
    "dilations",
    "group",
    "kernel_shape",
    "pads",
    "strides",
];

/// The attributes of AveragePool.
pub(crate) const AVERAGE_POOL: &[&str] = &[
    "auto_pad",
    "ceil_mode",
    "count_include_pad",
    "dilations",
    "kernel_shape",
    "pads",
    "strides",
];

/// The attributes of MaxPool.
pub(crate) const MAX_POOL: &[&str] = &[
    "auto_pad",
    "ceil_mode",
    "dilations",
    "kernel_shape",
    "pads",
    "storage_order",
    "strides",
];

/// The attributes of Resize.
pub(crate) const RESIZE: &[&str] = &[
    "antialias",
    "axes",
    "coordinate_transformation_mode",
    "cubic_coeff_a",
    "exclude_outside",
    "extrapolation_value",
    "keep_aspect_ratio_policy",
    "mode",
    "nearest_mode",
];

/// The attributes whose value is an element type.
pub(crate) const TYPES: [&str; 4] = ["to", "dtype", "output_datatype", "output_dtype"];

/// The operator set that introduced LayerNormalization.
pub(crate) const LAYER_NORMALIZATION: i64 = 17;

/// The operator set in which Shape became able to return only some of the extents.
pub(crate) const SHAPE_OF_AXES: i64 = 15;

/// The operator set in which Resize got an input for sizes. Since this set, the input after the
/// region of interest holds the factors of Resize.
pub(crate) const RESIZE_TO_SIZES: i64 = 11;

/// The slot of the input that holds the factors of a Resize or an Upsample.
pub(crate) fn factors_at(op: &str, opset: i64) -> usize {
    if op == "Resize" && opset >= RESIZE_TO_SIZES {
        2
    } else {
        1
    }
}

/// The default axis of a Softmax, and whether it normalizes along this axis only. Before operator
/// set 13, it normalizes over this axis and all later axes together.
pub(crate) fn softmax_axis(opset: i64) -> (i64, bool) {
    if opset >= 13 { (-1, true) } else { (1, false) }
}

/// The slot of the input that replaced an attribute, and the operator set that introduced this
/// input. `None` if no input replaced the attribute.
pub(crate) fn input_for(op: &str, attribute: &str) -> Option<(usize, i64)> {
    Some(match (op, attribute) {
        ("ReduceSum" | "Squeeze" | "Unsqueeze", "axes") | ("Split", "split") => (1, 13),
        (_, "axes") if own(op) == Some(Category::Reduction) => (1, 18),
        ("Slice", "starts") => (1, 10),
        ("Slice", "ends") => (2, 10),
        ("Slice", "axes") => (3, 10),
        ("Slice", "steps") => (4, 10),
        ("Pad", "pads") => (1, 11),
        ("Pad", "value") => (2, 11),
        ("Pad", "axes") => (3, 18),
        ("Clip", "min") => (1, 11),
        ("Clip", "max") => (2, 11),
        ("CumSum", "axis") => (1, 11),
        ("DFT", "axis") => (2, 20),
        _ => return None,
    })
}

/// The slot of the input that replaces an attribute in a model of this operator set; `None` if it
/// still is an attribute.
pub(crate) fn input_at(op: &str, attribute: &str, opset: i64) -> Option<usize> {
    input_for(op, attribute)
        .filter(|&(_, since)| opset >= since)
        .map(|(slot, _)| slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn category_depends_on_the_domain() {
        assert_eq!(
            Category::from_operator("", "Add"),
            Some(Category::Arithmetic)
        );
        assert_eq!(Category::from_operator("com.microsoft", "Add"), None);
        assert_eq!(Category::from_operator("", "FusedMatMul"), None);
        assert_eq!(Category::from_operator("ai.onnx.ml", "Normalizer"), None);
    }

    #[test]
    fn axes_become_inputs_at_the_opset_of_each_operator() {
        assert_eq!(
            [12, 13].map(|opset| input_at("ReduceSum", "axes", opset)),
            [None, Some(1)]
        );
        assert_eq!(
            [17, 18].map(|opset| input_at("ReduceMean", "axes", opset)),
            [None, Some(1)]
        );
        assert_eq!(
            [9, 10].map(|opset| input_at("Slice", "axes", opset)),
            [None, Some(3)]
        );
        assert_eq!(input_at("ReduceMean", "keepdims", 21), None);
    }

    #[test]
    fn a_category_belongs_to_the_domain() {
        assert_eq!(
            Category::from_operator("ai.onnx", "Flatten"),
            Some(Category::Movement)
        );
        assert_eq!(
            Category::from_operator("com.microsoft", "FusedMatMul"),
            Some(Category::MatrixProduct)
        );
        assert_eq!(Category::from_operator("com.example", "Flatten"), None);
    }
}
