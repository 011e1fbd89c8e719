//! Replaces nodes that tract lacks or misreads by similar nodes, for shape inference.

use crate::onnx::operator::TYPES;
use crate::onnx::proto::{AttributeType, NodeProto};
use crate::onnx::tensor::DataType;

/// The operator of tract that infers the shapes for an operator that tract lacks, knows only in
/// some variants, or misreads. `None` for other operators.
pub(crate) fn stand_in(operator: (&str, &str)) -> Option<&'static str> {
    match operator {
        ("", "LpPool") => Some("MaxPool"),
        // An Identity ignores the statistics, which may have a type other than the value, or may be
        // outputs too.
        ("", "BatchNormalization") => Some("Identity"),
        ("com.microsoft", "FusedMatMul" | "TransposeMatMul") => Some("MatMul"),
        ("com.microsoft", "BiasGelu") => Some("Add"),
        ("com.microsoft", "FusedConv") => Some("Conv"),
        ("com.microsoft", "FusedGemm") => Some("Gemm"),
        (
            "com.microsoft",
            "BiasAdd" | "BiasSoftmax" | "FastGelu" | "Gelu" | "GroupNorm" | "MoE",
        ) => Some("Identity"),
        ("com.microsoft", "QMoE" | "QuickGelu" | "RotaryEmbedding") => Some("Identity"),
        ("com.microsoft", "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization") => {
            Some("Identity")
        }
        _ => None,
    }
}

/// Whether a stand-in reads the attributes of the operator for which it stands.
pub(crate) fn keeps_attributes(stand_in: &str) -> bool {
    matches!(stand_in, "Conv" | "Gemm" | "MaxPool")
}

/// The number of inputs that a stand-in reads of the operator for which it stands.
pub(crate) fn inputs_of(stand_in: &str) -> usize {
    match stand_in {
        "Identity" | "MaxPool" => 1,
        "Conv" | "Gemm" => 3,
        _ => 2,
    }
}
pub(crate) fn spell_bfloat16_as_float(node: &mut NodeProto) {
    let (bfloat16, float) = (DataType::BFloat16.code(), DataType::Float.code());
    for attribute in &mut node.attribute {
        let is_type = TYPES.contains(&attribute.name());
        if is_type && attribute.i() == i64::from(bfloat16) {
            attribute.i = Some(i64::from(float));
            attribute.r#type = Some(AttributeType::Int as i32);
        }
    }
}
