//! Bounds on the errors of constants that normalizations compute.

use super::constants::ComputedConstants;
use super::rounded::ErrorBound;
use super::standardized::Standardization;
use crate::ir::{NodeId, ValueId};
use crate::onnx::tensor::DataType;
use crate::onnx::tract_quirks::batch_norm_trains;

impl ComputedConstants<'_> {
    /// Evaluates a BatchNormalization in training mode with a constant input. Returns the bound on
    /// the error of the result. `None` outside of training mode, for the other results, or if no
    /// bound is known.
    pub(super) fn standardized(
        &self,
        node: NodeId,
        value: ValueId,
        data_type: DataType,
    ) -> Option<ErrorBound> {
        let graph = &self.analysis.graph;
        let trains = batch_norm_trains(graph.node(node), graph.model().own_opset());
        if !trains.ok()? || graph.output(node, 0) != Some(value) {
            return None;
        }
        let [input, scale, shift] = [0, 1, 2].map(|slot| self.rounded(graph.input(node, slot)?));
        let epsilon = graph.node(node).attr_f("epsilon").ok()?.unwrap_or(1e-5);
        let standardization = Standardization {
            input: input?,
            scale: scale?,
            shift: shift?,
            epsilon: epsilon.into(),
        };
        self.provided(value, &standardization.value(data_type)?, data_type)
    }
}
