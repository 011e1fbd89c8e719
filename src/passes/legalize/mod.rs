//! Legalization: the forms of products with biases and of normalizations that the target engines
//! fuse, and the shapes in `value_info` that they use.

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

/// The name for `--skip` of the forms of products and RMS normalizations.
pub const KIND: &str = "biased";

/// The engines that a result is for.
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
    /// Any engine and any tool: LayerNormalizations, products and attention stay the operators that they are.
    Portable,
    /// onnxruntime on a CPU: as [`Target::Cpu`], without the open shapes of values within.
    Onnxruntime,
    /// tract on a CPU: as [`Target::Cpu`], with layers before windows.
    Tract,
}

impl Target {
    /// Whether residual streams are centred without being asked for.
    pub fn centres(self) -> bool {
        self != Target::Portable
    }

    /// Products as MatMul and Add, the form that all rules know, where another tool or an earlier run wrote a Gemm between
    /// two Reshapes. [`Target::finished`] writes the Gemm again.
    pub(crate) fn canonical(self, analysis: &Analysis) -> Vec<Edit> {
        match self {
            Target::Portable => vec![],
            Target::Cpu | Target::Onnxruntime | Target::Tract => unflatten_rows::edits(analysis),
        }
    }

    /// The edits after everything has folded that other rules may continue from.
    pub fn edits(self, analysis: &Analysis) -> Vec<Edit> {
        match self {
            Target::Portable => vec![],
            Target::Cpu | Target::Onnxruntime => rms_operator::edits(analysis),
            Target::Tract => [windows::edits(analysis), rms_operator::edits(analysis)].concat(),
        }
    }

    /// The edits that come last, since they hide from rules that a product and its bias are a layer.
    pub(crate) fn finished(self, analysis: &Analysis) -> Vec<Edit> {
        match self {
            Target::Portable => vec![],
            Target::Cpu | Target::Onnxruntime | Target::Tract => gemm::edits(analysis),
        }
    }

    /// A graph without the shapes in `value_info` that slow its engine down, and their number;
    /// `None` without such shapes.
    pub fn without_open_shapes(self, graph: &GraphProto) -> Option<(GraphProto, usize)> {
        let mut graph = (self == Target::Onnxruntime).then(|| graph.clone())?;
        let count = strip_value_info::strip_open_shapes(&mut graph);
        (count > 0).then_some((graph, count))
    }
}
