//! Lists the operators that tract implements differently from ONNX's definition. tract is the
//! engine with which unfold computes.
//!
//! If tract misreads a node, unfold treats the results of the node as unknown, and does not verify
//! the model by running it. Constants are folded only by operators whose results in tract were
//! compared with those of onnxruntime.

use crate::error::Result;
use crate::onnx::operator::{Category, input_at};
use crate::onnx::proto::NodeProto;
use crate::onnx::tensor::DataType;

/// Whether tract implements operators of a domain. tract ignores the domain, so it would mistake an
/// operator of another domain for one of its own.
pub(crate) fn is_read(domain: &str) -> bool {
    ["", "ai.onnx.ml", "com.microsoft"].contains(&domain)
}

/// The slots of the inputs that tract reads as scalars without checking that they have one element.
pub(crate) fn read_as_one(op: &str) -> &'static [usize] {
    match op {
        "If" => &[0],
        "OneHot" => &[1],
        "DFT" => &[1, 2],
        _ => &[],
    }
}

/// Describes how tract misreads a node in this version of ONNX's operator set; `None` if no
/// deviation is known.
pub(crate) fn misread(node: &NodeProto, opset: i64) -> Option<&'static str> {
    let ("", op) = node.op() else { return None };
    match op {
        "BatchNormalization" if batch_norm_trains(node, opset).unwrap_or(true) => Some(
            "tract takes its running statistics, where in training mode those of the batch are meant",
        ),
        "Dropout" if opset < 7 && node.attr_i("is_test").ok().flatten().unwrap_or(0) == 0 => {
            Some("it drops elements at random, and tract none")
        }
        op if opset < 7 && (op == "PRelu" || names_axis_of_second(node)) => {
            Some("tract broadcasts from the last axis, as operator set 7 does")
        }
        "Pad"
            if opset >= 11 && text(node, "mode", "constant") != "constant" && is_given(node, 2) =>
        {
            Some("tract pads with the constant that only the mode `constant` takes")
        }
        "LayerNormalization" if !has_float_statistics(node) => {
            Some("tract scales and shifts in the type of the statistics too")
        }
        "Einsum" if !is_plain_einsum(text(node, "equation", "")) => Some(
            "tract takes an ellipsis for one axis, one number for an axis, and a letter twice for any places",
        ),
        "DFT" => misread_fourier_transform(node, opset),
        "GlobalLpPool" => Some("tract takes another mean"),
        "SpaceToDepth" if has(node, "mode") => {
            Some("tract puts the places of a block before the channels, whatever its mode")
        }
        "Celu" | "Swish" if has(node, "alpha") => Some("tract takes its alpha for 1"),
        "Resize" => misread_resize(node),
        "AveragePool" | "LpPool" | "MaxPool" => misread_pool(node),
        "ConvTranspose" => misread_transposed_convolution(node),
        _ => None,
    }
}

fn misread_fourier_transform(node: &NodeProto, opset: i64) -> Option<&'static str> {
    if is_given(node, 1) {
        return Some("tract transforms all of an axis, whatever length is given");
    }
    let slot = input_at("DFT", "axis", opset)?;
    let reason = "tract transforms another axis where none is given";
    (!is_given(node, slot)).then_some(reason)
}

fn misread_resize(node: &NodeProto) -> Option<&'static str> {
    let places = text(node, "coordinate_transformation_mode", "");
    match (places, text(node, "mode", "")) {
        ("tf_crop_and_resize" | "half_pixel_symmetric", _) | ("pytorch_half_pixel", "cubic") => {
            Some("tract places the elements otherwise")
        }
        _ => None,
    }
}

fn misread_pool(node: &NodeProto) -> Option<&'static str> {
    let auto_pad = text(node, "auto_pad", "NOTSET");
    let rounds_down = node
        .attr_i("ceil_mode")
        .is_ok_and(|mode| mode.unwrap_or(0) == 0);
    // The specification rounds down in this case, but all implementations round up.
    if auto_pad == "VALID" && !rounds_down {
        return Some("engines do not agree on ceil_mode where auto_pad is VALID");
    }
    if has(node, "dilations") && pads_alike(auto_pad) {
        return Some("engines do not agree on auto_pad where there are dilations");
    }
    None
}

fn misread_transposed_convolution(node: &NodeProto) -> Option<&'static str> {
    if pads_alike(text(node, "auto_pad", "NOTSET")) && has(node, "output_padding") {
        return Some("engines do not agree on output_padding where there is auto_pad");
    }
    let reason = "tract pads at other ends for its output_shape";
    has(node, "output_shape").then_some(reason)
}

fn has(node: &NodeProto, name: &str) -> bool {
    node.attribute
        .iter()
        .any(|attribute| attribute.name() == name)
}

/// The value of a string attribute, or its default. Empty if the attribute is not a string.
fn text<'n>(node: &'n NodeProto, name: &str, default: &'n str) -> &'n str {
    node.attr_s(name).map_or("", |text| text.unwrap_or(default))
}

fn is_given(node: &NodeProto, slot: usize) -> bool {
    node.input.get(slot).is_some_and(|name| !name.is_empty())
}

/// Whether the operator is element-wise and its attribute `axis` aligns the second operand.
fn names_axis_of_second(node: &NodeProto) -> bool {
    node.category().is_some_and(Category::is_elementwise) && has(node, "axis")
}

fn has_float_statistics(node: &NodeProto) -> bool {
    let float = i64::from(DataType::Float.code());
    node.attr_i("stash_type")
        .is_ok_and(|code| code.is_none_or(|code| code == float))
}

/// Whether tract infers a wrong shape for a node, and not only wrong elements.
pub(crate) fn misreads_shape(node: &NodeProto, opset: i64) -> bool {
    match node.op() {
        ("", "Einsum" | "AveragePool" | "MaxPool" | "LpPool") => misread(node, opset).is_some(),
        ("", "ConvTranspose") => {
            node.attr_ints("output_padding")
                .is_ok_and(|list| list.is_some())
                && misread(node, opset).is_some()
        }
        // tract always transforms the second axis.
        ("", "DFT") => true,
        // tract treats elements smaller than a byte as bytes that hold two elements each.
        ("com.microsoft", "GatherBlockQuantized") => true,
        // tract assumes that values have the width of the queries, and that a cache grows.
        ("com.microsoft", "GroupQueryAttention" | "MultiHeadAttention") => true,
        _ => false,
    }
}

/// Whether the output extent depends only on the input extent and the strides. This holds for
/// SAME_UPPER and SAME_LOWER.
fn pads_alike(auto_pad: &str) -> bool {
    !matches!(auto_pad, "NOTSET" | "VALID")
}

/// Whether the equation has an explicit nonempty result, has no ellipsis, and repeats no letter
/// within a term.
fn is_plain_einsum(equation: &str) -> bool {
    let (terms, result) = equation.rsplit_once("->").unwrap_or((equation, "-"));
    let mut terms = terms.split(',');
    !equation.contains('.') && !result.trim().is_empty() && terms.all(has_each_letter_once)
}

fn has_each_letter_once(term: &str) -> bool {
    let mut letters = term.chars().filter(|letter| letter.is_alphabetic());
    letters.all(|letter| term.matches(letter).count() == 1)
}

/// Operators without a category that tract evaluates on constants with the same results as
/// onnxruntime.
const COMPUTED: &[&str] = &[
    "ArgMax",
    "ArgMin",
    "AveragePool",
    "Cast",
    "CastLike",
    "Compress",
    "Concat",
    "Constant",
    "ConstantOfShape",
    "CumSum",
    "DepthToSpace",
    "DequantizeLinear",
    "Einsum",
    "GatherElements",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "MaxPool",
    "NonZero",
    "OneHot",
    "Pad",
    "QuantizeLinear",
    "Range",
    "ScatterElements",
    "ScatterND",
    "Softmax",
    "SpaceToDepth",
    "TopK",
    "Trilu",
];

/// Whether tract evaluates a node on constants as ONNX defines it.
///
/// A ReduceLogSumExp is not evaluated, because tract returns infinity for some large inputs with a
/// finite result.
pub(crate) fn is_computed(node: &NodeProto, opset: i64) -> bool {
    let (domain, op) = node.op();
    let is_known = match op {
        // tract does not implement a BitShift by the bit width or by more.
        "BitShift" | "ReduceLogSumExp" => false,
        // If the extent times the factor is not an integer, onnxruntime aligns corners by this
        // fractional extent, and tract by the rounded extent.
        "Resize" => {
            let by_factors = node.input.get(2).is_some_and(|value| !value.is_empty());
            let aligns = node
                .attr_s("coordinate_transformation_mode")
                .is_ok_and(|mode| mode == Some("align_corners"));
            opset > 10 && !(by_factors && aligns)
        }
        _ => {
            node.category()
                .is_some_and(|category| !category.is_random())
                || COMPUTED.contains(&op)
        }
    };
    is_known && (domain.is_empty() || domain == "com.microsoft") && misread(node, opset).is_none()
}

/// Whether a BatchNormalization is in training mode: it uses the statistics of its input.
///
/// In operator sets since 14, `training_mode` decides, and in those before 7, `is_test`. In
/// between, a node is in training mode if it lists outputs after the first, even if they have no
/// readers.
///
/// # Errors
/// If the attribute is not an integer.
pub(crate) fn batch_norm_trains(node: &NodeProto, opset: i64) -> Result<bool> {
    Ok(match opset {
        14.. => node.attr_i("training_mode")?.unwrap_or(0) != 0,
        7..=13 => node.output.len() > 1,
        _ => node.attr_i("is_test")?.unwrap_or(0) == 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::proto::{AttributeProto, AttributeType};

    fn attribute(name: &str, value: &str) -> AttributeProto {
        let number = value.parse::<i64>().ok();
        let kind = match number {
            Some(_) => AttributeType::Int,
            None => AttributeType::String,
        };
        AttributeProto {
            name: Some(name.into()),
            i: number,
            s: number.is_none().then(|| value.to_owned().into()),
            r#type: Some(kind.into()),
            ..Default::default()
        }
    }

    /// A node `op(inputs) -> outputs` with attributes that are integers, lists of integers, or
    /// text.
    fn node(op: &str, inputs: &[&str], outputs: usize, attributes: &[(&str, &str)]) -> NodeProto {
        NodeProto {
            op_type: Some(op.into()),
            input: inputs.iter().map(|&input| input.to_owned()).collect(),
            output: (0..outputs).map(|output| format!("y{output}")).collect(),
            attribute: attributes
                .iter()
                .map(|(name, value)| attribute(name, value))
                .collect(),
            ..Default::default()
        }
    }

    /// Asserts that nodes are misread in some operator sets, and not in others.
    fn check(cases: &[(NodeProto, &[i64], &[i64])]) {
        for (node, wrong, right) in cases {
            for opset in *wrong {
                assert!(misread(node, *opset).is_some(), "{node:?} under {opset}");
            }
            for opset in *right {
                assert_eq!(misread(node, *opset), None, "{node:?} under {opset}");
            }
            let foreign = NodeProto {
                domain: Some("com.example".into()),
                ..node.clone()
            };
            assert_eq!(misread(&foreign, wrong.first().copied().unwrap_or(7)), None);
        }
    }

    #[test]
    fn misread_training_and_padding_depend_on_the_opset() {
        let x = &["x"][..];
        check(&[
            (
                node("BatchNormalization", x, 1, &[]),
                &[1, 6],
                &[7, 9, 13, 14, 15],
            ),
            (
                node("BatchNormalization", x, 1, &[("is_test", "1")]),
                &[],
                &[1, 6],
            ),
            (
                node("BatchNormalization", x, 5, &[]),
                &[7, 9, 13],
                &[14, 15],
            ),
            (
                node("BatchNormalization", x, 3, &[("training_mode", "1")]),
                &[14, 15],
                &[],
            ),
            (
                node("BatchNormalization", x, 1, &[("training_mode", "mode")]),
                &[14, 15],
                &[],
            ),
            (node("Dropout", x, 1, &[]), &[1, 6], &[7, 10, 12, 13]),
            (
                node("Mul", x, 1, &[("broadcast", "1"), ("axis", "1")]),
                &[1, 6],
                &[],
            ),
            (node("Mul", x, 1, &[("broadcast", "1")]), &[], &[1, 6]),
            (node("PRelu", x, 1, &[]), &[1, 6], &[7, 9, 16]),
            (
                node("Pad", &["x", "p", "c"], 1, &[("mode", "reflect")]),
                &[11, 13, 18, 21],
                &[2, 10],
            ),
            (
                node("Pad", &["x", "p", "", "a"], 1, &[("mode", "reflect")]),
                &[],
                &[18, 21],
            ),
            (
                node("Pad", &["x", "p", "c"], 1, &[]),
                &[],
                &[11, 13, 18, 21],
            ),
        ]);
    }

    #[test]
    fn misread_windows_are_listed() {
        let x = &["x"][..];
        check(&[
            (
                node("ConvTranspose", x, 1, &[("output_shape", "9")]),
                &[1, 11, 22],
                &[],
            ),
            (
                node(
                    "MaxPool",
                    x,
                    1,
                    &[("auto_pad", "SAME_UPPER"), ("dilations", "2")],
                ),
                &[10, 12, 22],
                &[],
            ),
            (
                node(
                    "AveragePool",
                    x,
                    1,
                    &[("auto_pad", "VALID"), ("dilations", "2")],
                ),
                &[],
                &[19, 22],
            ),
            (
                node("AveragePool", x, 1, &[("auto_pad", "SAME_LOWER")]),
                &[],
                &[7, 10, 19],
            ),
        ]);
    }

    #[test]
    fn misread_equations_and_attributes_are_listed() {
        let x = &["x"][..];
        check(&[
            (
                node("LayerNormalization", &["x", "g"], 1, &[("stash_type", "4")]),
                &[17, 22],
                &[],
            ),
            (
                node("LayerNormalization", &["x", "g"], 1, &[("stash_type", "1")]),
                &[],
                &[17, 22],
            ),
            (
                node("Einsum", x, 1, &[("equation", "...i,ij->...j")]),
                &[12],
                &[],
            ),
            (node("Einsum", x, 1, &[("equation", "ij->")]), &[12], &[]),
            (node("Einsum", x, 1, &[("equation", "ii->i")]), &[12], &[]),
            (node("Einsum", x, 1, &[("equation", "ij,jk")]), &[], &[12]),
            (node("Celu", x, 1, &[("alpha", "2")]), &[12], &[]),
            (node("Celu", x, 1, &[]), &[], &[12]),
            (node("GlobalLpPool", x, 1, &[]), &[2, 22], &[]),
            (
                node(
                    "Resize",
                    x,
                    1,
                    &[("coordinate_transformation_mode", "tf_crop_and_resize")],
                ),
                &[11, 19],
                &[],
            ),
            (node("Resize", x, 1, &[("mode", "cubic")]), &[], &[11, 19]),
        ]);
    }
}
