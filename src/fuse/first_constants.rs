//! Reads the constants of the first model, which is the model after inlining and flattening. The
//! formulas of new tensors refer to these constants.

use std::cell::OnceCell;

use ndarray::ArrayD;

use crate::analysis::Analysis;
use crate::onnx::Model;
use crate::refusal::{Reason, Refusal};

/// The constants of the first model. The model is analysed when a constant is first read.
pub(super) struct FirstConstants<'m> {
    model: &'m Model,
    analysis: OnceCell<Option<Analysis<'m>>>,
}

impl<'m> FirstConstants<'m> {
    pub(super) fn new(model: &'m Model) -> Self {
        FirstConstants {
            model,
            analysis: OnceCell::new(),
        }
    }

    /// Reads the elements of a constant as float64.
    ///
    /// # Errors
    /// If the model has no constant with this name, or its elements cannot be read.
    pub(super) fn read(&self, name: &str) -> Result<ArrayD<f64>, Refusal> {
        let unknown = || Refusal::new(Reason::NotConstant, name);
        let analysis = self.analysis.get_or_init(|| Analysis::new(self.model).ok());
        let analysis = analysis.as_ref().ok_or_else(unknown)?;
        let value = analysis.graph.value(name).ok_or_else(unknown)?;
        analysis.constants.read(value)
    }
}
