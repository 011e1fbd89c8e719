//! Recomputes the new tensors of a result from their formulas.

use ndarray::ArrayD;

use crate::affine::plan::Stored;
use crate::analysis::Analysis;
use crate::error::{Error, Result};
use crate::fuse::Fused;
use crate::ir::regions::Flat;
use crate::onnx::Model;
use crate::onnx::proto::TensorProto;
use crate::onnx::tensor::make;
use crate::recipe::evaluate;
use crate::refusal::{Reason, Refusal};

impl Fused {
    /// Recomputes the tensors of [`Plan::tensors`](crate::plan::Plan::tensors), in their order.
    /// Each formula is evaluated in float64 over the constants of the original model, and rounded
    /// once.
    ///
    /// The elements equal those of the folded model, although the folded model is not read.
    ///
    /// ```
    /// use unfold::onnx::{Model, tensor};
    ///
    /// let model = Model::open("models/digits/un-dynamo.onnx")?;
    /// let fused = unfold::fuse(&model, &Default::default())?;
    /// let again = fused.recompute(&model)?.remove(0);
    /// let mut stored = fused.model.graph().initializer.iter();
    /// let stored = stored.find(|tensor| tensor.name == again.name).unwrap();
    /// assert_eq!(Some(tensor::raw(stored, fused.model.externals())?), again.raw_data);
    /// # Ok::<(), unfold::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the graph of the model is invalid, or lacks a constant of a formula because it is a
    /// different model.
    pub fn recompute(&self, original: &Model) -> Result<Vec<TensorProto>> {
        // Both models are needed: inlining adds constants, and removes constants that only inlined
        // nodes read.
        let models = [original, self.lowered.as_ref().unwrap_or(original)];
        // A formula names constants of bodies by the path to the body.
        let flat = models.map(Flat::new);
        let [original, lowered] =
            [0, 1].map(|at| flat[at].as_ref().map_or(models[at], |flat| &flat.model));
        let analyses = [Analysis::new(original)?, Analysis::new(lowered)?];
        let tensors = self.plan.tensors.iter();
        tensors.map(|stored| computed(stored, &analyses)).collect()
    }
}

/// Computes a stored tensor from its formula.
fn computed(stored: &Stored, analyses: &[Analysis; 2]) -> Result<TensorProto> {
    let read = |name: &str| constant(name, analyses);
    let numbers = evaluate(&stored.recipe, &read).map_err(|refusal| Error::Tensor {
        tensor: stored.name.clone(),
        reason: refusal.to_string(),
    })?;
    make(&stored.name, stored.data_type, &numbers.view())
}

/// Reads the elements of a constant from the first of the two models that has a value of this name.
fn constant(name: &str, analyses: &[Analysis; 2]) -> std::result::Result<ArrayD<f64>, Refusal> {
    for analysis in analyses {
        if let Some(value) = analysis.graph.value(name) {
            return analysis.constants.read(value);
        }
    }
    Err(Refusal::new(Reason::NotConstant, name))
}
