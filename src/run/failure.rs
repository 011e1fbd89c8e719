//! Failures of loading and running a model, with the operator at which they occurred.

/// A stage of loading and running a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Reading the graph, its weights and the shapes of its inputs.
    Load,
    /// Inferring types and shapes, and rewriting the graph for speed.
    Optimize,
    /// Computing the outputs.
    Run,
}

/// A failure of tract to run a model. Its message is one line, which names the operator and the
/// node if they are known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[error("tract cannot {}{}: {reason}", self.verb(), self.place())]
pub struct Failure {
    /// The stage at which tract failed.
    pub stage: Stage,
    /// The ONNX operator that failed.
    pub operator: Option<String>,
    /// The name of the node that failed.
    pub node: Option<String>,
    /// The cause, in one line.
    pub reason: String,
}

impl Failure {
    pub(crate) fn new(stage: Stage, reason: impl Into<String>) -> Self {
        Self {
            stage,
            operator: None,
            node: None,
            reason: reason.into(),
        }
    }

    fn verb(&self) -> &'static str {
        match self.stage {
            Stage::Load => "load",
            Stage::Optimize => "prepare",
            Stage::Run => "run",
        }
    }

    fn place(&self) -> String {
        match (&self.operator, &self.node) {
            (Some(operator), Some(node)) => format!(" {operator} `{node}`"),
            (Some(operator), None) => format!(" {operator}"),
            (None, Some(node)) => format!(" `{node}`"),
            (None, None) => " the model".into(),
        }
    }
}
