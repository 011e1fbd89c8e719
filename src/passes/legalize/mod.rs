//! Legalization: writes products with biases and normalizations in the forms that the target
//! engines fuse, and keeps the shapes in `value_info` that they use.

mod dense_layer;
pub mod gelu;
mod gemm;
pub mod rms_norm;
mod rms_operator;
mod strip_value_info;
mod unflatten_rows;
mod windows;

use serde::{Deserialize, Serialize};

use crate::affine::materialize::Edit;
use crate::analysis::Analysis;
use crate::onnx::proto::GraphProto;

/// The name that skips the forms of products and RMS normalizations with `--skip`.
pub const KIND: &str = "biased";

/// The engines that run the result.
///
/// ```
/// use unfold::passes::legalize::Target;
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
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Target {
    /// tract, onnxruntime and OpenVINO on a CPU: each form that none of the three runs slower.
    #[default]
    Cpu,
    /// Any engine and any tool. LayerNormalizations, products and attention keep their operators.
    Portable,
    /// onnxruntime on a CPU: like [`Target::Cpu`], but without the unknown shapes of inner values.
    Onnxruntime,
    /// tract on a CPU: like [`Target::Cpu`], but with layers before windows.
    Tract,
}

impl Target {
    /// Whether residual streams are centred by default.
    pub fn centres(self) -> bool {
        self != Target::Portable
    }

    /// Writes a Gemm between two Reshapes, which another tool or an earlier run wrote, as MatMul
    /// and Add, the form that all rules know. [`Target::finished`] writes the Gemm again.
    pub(crate) fn canonical(self, analysis: &Analysis) -> Vec<Edit> {
        match self {
            Target::Portable => vec![],
            Target::Cpu | Target::Onnxruntime | Target::Tract => unflatten_rows::edits(analysis),
        }
    }

    /// The edits after all folds from which other rules may continue.
    pub fn edits(self, analysis: &Analysis) -> Vec<Edit> {
        match self {
            Target::Portable => vec![],
            Target::Cpu | Target::Onnxruntime => rms_operator::edits(analysis),
            Target::Tract => [windows::edits(analysis), rms_operator::edits(analysis)].concat(),
        }
    }

    /// The edits that come last, because other rules do not recognize the layers afterwards.
    pub(crate) fn finished(self, analysis: &Analysis) -> Vec<Edit> {
        match self {
            Target::Portable => vec![],
            Target::Cpu | Target::Onnxruntime | Target::Tract => gemm::edits(analysis),
        }
    }

    /// Removes the shapes in `value_info` that make the engine slower. Returns the graph and the
    /// number of shapes. `None` if there are no such shapes.
    pub fn without_open_shapes(self, graph: &GraphProto) -> Option<(GraphProto, usize)> {
        let mut graph = (self == Target::Onnxruntime).then(|| graph.clone())?;
        let count = strip_value_info::strip_open_shapes(&mut graph);
        (count > 0).then_some((graph, count))
    }
}
