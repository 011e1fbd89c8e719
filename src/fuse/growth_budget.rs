//! The limit for growth by copies of weights.

use crate::onnx::Model;
use crate::provenance::Provenance;

/// The limit for growth by copies of weights.
pub(crate) struct GrowthBudget {
    /// The number of bytes that copies may still add.
    pub bytes: f64,
    /// The bytes of all weights, without the growth of earlier runs.
    pub weights: u64,
}

impl GrowthBudget {
    /// The limit for a model whose weights may grow by `percent` percent in all runs together.
    pub(super) fn new(model: &Model, percent: f64) -> Self {
        let there = model.weight_bytes();
        // The growth of earlier runs is read from the metadata, which any program can write. So it
        // is taken to be at most the size of all weights.
        let grown = Provenance::from_model(model)
            .iter()
            .filter_map(|time| time.grown)
            .fold(0, u64::saturating_add);
        let grown = grown.min(there);
        let weights = there - grown;
        Self {
            bytes: percent / 100.0 * weights as f64 - grown as f64,
            weights,
        }
    }
}
