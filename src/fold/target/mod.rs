//! The engine that a result is for, where one wants another form than all others: of a product and its bias, so that it
//! runs the two as one operator, or of what is told of values within.

mod gemm;
mod layer;
mod shapes;
mod windows;

use serde::{Deserialize, Serialize};

use super::patch::Edit;
use crate::graph::analysis::Analysis;
use crate::onnx::proto::GraphProto;

/// Which engine a result is for.
///
/// ```
/// use unfold::fold::target::Target;
/// assert_eq!("onnxruntime".parse(), Ok(Target::Onnxruntime));
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
    /// Any: forms that none of them runs slower.
    #[default]
    Portable,
    /// onnxruntime on a CPU.
    Onnxruntime,
    /// tract on a CPU.
    Tract,
}

impl Target {
    /// Whether it is what is chosen where nothing is said.
    pub(crate) fn is_portable(&self) -> bool {
        *self == Target::Portable
    }

    /// What is written in another form for its sake when everything has folded.
    pub fn edits(self, known: &Analysis) -> Vec<Edit> {
        let form = match self {
            Target::Portable => return vec![],
            Target::Onnxruntime => gemm::edit,
            Target::Tract => windows::edit,
        };
        known.graph.order().iter().filter_map(|&node| form(known, node)).collect()
    }

    /// A graph without what it should not be told of values within, and of how many; `None` where it may be told all.
    pub fn untold(self, graph: &GraphProto) -> Option<(GraphProto, usize)> {
        let mut graph = (self == Target::Onnxruntime).then(|| graph.clone())?;
        let count = shapes::untell(&mut graph);
        (count > 0).then_some((graph, count))
    }
}
