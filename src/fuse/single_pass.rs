//! Runs the pipeline with all of its passes, or with a single one.

use crate::error::{Error, Result};
use crate::fuse::pipeline::PIPELINE;
use crate::fuse::stage::PipelineStage;
use crate::fuse::{FuseOptions, Fused, fuse_with};
use crate::onnx::Model;

/// The pipeline: all passes by default, or a single one.
///
/// ```
/// use unfold::onnx::Model;
/// use unfold::{FuseOptions, Pipeline};
///
/// let model = Model::from_text(
///     r#"<ir_version: 8, opset_import: ["" : 17]>
///     chain (float[2] x) => (float[2] y) {
///         a = Identity(x)
///         b = Relu(a)
///         c = Relu(a)
///         y = Add(b, c)
///     }"#,
/// )?;
/// let operators = |pass: &str| -> unfold::error::Result<Vec<String>> {
///     let fused = Pipeline::only(pass)?.run(&model, &FuseOptions::default())?;
///     let nodes = fused.model.graph().node.iter();
///     Ok(nodes.map(|node| node.op_type().to_owned()).collect())
/// };
/// assert_eq!(operators("identity-elimination")?, ["Relu", "Relu", "Add"]);
/// assert_eq!(operators("fold-affines")?, ["Identity", "Relu", "Relu", "Add"]);
/// assert!(Pipeline::only("no-pass").is_err());
/// # Ok::<(), unfold::error::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Pipeline {
    only: Option<&'static str>,
}

impl Pipeline {
    /// Selects a single pass. The pass runs in each stage that contains it, as often as the stage
    /// repeats it. Passes that are required for a valid result run too.
    ///
    /// # Errors
    /// [`Error::NoPass`] if no pass of [`Pipeline::stages`] has this name.
    pub fn only(pass: &str) -> Result<Self> {
        let mut passes = PIPELINE.iter().flat_map(PipelineStage::passes);
        let found = passes.find(|candidate| candidate.name() == pass);
        let found = found.ok_or_else(|| Error::NoPass {
            pass: pass.to_owned(),
        })?;
        Ok(Pipeline {
            only: Some(found.name()),
        })
    }

    /// Runs the selected pass, or by default all passes, on a model.
    ///
    /// # Errors
    /// The errors of [`plan`](crate::plan()).
    pub fn run(&self, model: &Model, options: &FuseOptions) -> Result<Fused> {
        let mut fused = fuse_with(model, options, self.only)?;
        fused.model.settle()?;
        Ok(fused)
    }
}
