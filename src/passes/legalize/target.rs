//! The target of a run: the engines that run the result, and the forms that each of them runs best.

use serde::{Deserialize, Serialize};

use super::{
    layer_before_windows, matmul_add_to_gemm, merge_convolutions, norm_operators, strip_value_info,
    unflatten_rows, unpack_products,
};
use crate::affine::materialize::Edit;
use crate::analysis::Analysis;
use crate::onnx::proto::GraphProto;

/// The engines that run the result.
///
/// ```
/// use unfold::Target;
/// assert_eq!("onnxruntime".parse(), Ok(Target::Onnxruntime));
/// assert_eq!(Target::default(), Target::Cpu);
/// assert!("another".parse::<Target>().is_err());
/// ```
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    strum::Display,
    strum::EnumString,
    strum::VariantNames,
)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Target {
    /// tract, onnxruntime and OpenVINO on a CPU. No form of the result is slower in any of them.
    #[default]
    Cpu,
    /// Any engine and any tool. LayerNormalizations, products and attention keep their operators.
    Portable,
    /// onnxruntime on a CPU: like [`Target::Cpu`], but without the unknown shapes of inner values,
    /// and with attention as one operator of onnxruntime.
    Onnxruntime,
    /// tract on a CPU: like [`Target::Cpu`], but with layers before windows.
    Tract,
}

impl Target {
    /// Whether residual streams are centred by default.
    pub(crate) fn centres(self) -> bool {
        self != Target::Portable
    }

    /// Writes a Gemm between two Reshapes as MatMul and Add, the form that all rules know. Another
    /// tool or an earlier run may have written the Gemm. At the end, [`Target::final_edits`] writes
    /// it again.
    pub(crate) fn canonicalizing_edits(self, analysis: &Analysis) -> Vec<Edit> {
        match self {
            Target::Portable => vec![],
            Target::Cpu | Target::Onnxruntime | Target::Tract => unflatten_rows::edits(analysis),
        }
    }

    /// The edits that write the forms of the engines after all folds. Other passes still recognize
    /// the results, and may change them.
    pub(crate) fn engine_form_edits(self, analysis: &Analysis) -> Vec<Edit> {
        match self {
            Target::Portable => vec![],
            Target::Cpu | Target::Onnxruntime => [
                unpack_products::edits(analysis),
                norm_operators::rms_norms(analysis),
                merge_convolutions::edits(analysis, self == Target::Onnxruntime),
            ]
            .concat(),
            Target::Tract => {
                // A layer moves before windows only if no other layer reads them. Dividing a
                // product makes several layers, so products are divided only when no layer moves
                // any more.
                let mut products = layer_before_windows::edits(analysis);
                if products.is_empty() {
                    products = unpack_products::edits(analysis);
                }
                [
                    products,
                    norm_operators::rms_norms(analysis),
                    merge_convolutions::edits(analysis, false),
                ]
                .concat()
            }
        }
    }

    /// The edits that come last, because other passes do not recognize the layers that these edits
    /// write.
    pub(crate) fn final_edits(self, analysis: &Analysis) -> Vec<Edit> {
        match self {
            Target::Portable => vec![],
            Target::Cpu | Target::Onnxruntime | Target::Tract => {
                matmul_add_to_gemm::edits(analysis)
            }
        }
    }

    /// Removes the shapes in `value_info` that make the engine slower. Returns the new graph and
    /// the number of removed shapes. `None` if there are no such shapes.
    pub(crate) fn without_open_shapes(self, graph: &GraphProto) -> Option<(GraphProto, usize)> {
        let mut graph = (self == Target::Onnxruntime).then(|| graph.clone())?;
        let count = strip_value_info::strip_open_shapes(&mut graph);
        (count > 0).then_some((graph, count))
    }
}
