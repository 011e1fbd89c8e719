//! Reports options without effect.

use serde::Serialize;
use unfold::FuseOptions;
use unfold::onnx::Model;
use unfold::plan::Plan;

/// An option without effect on a model, which may be misspelled or meant for other models.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Idle {
    /// The name of the option in Python.
    option: &'static str,
    /// The value without effect, if the option has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    reason: &'static str,
}

impl Idle {
    /// Finds the options that had no effect on a plan.
    pub(crate) fn all(options: &FuseOptions, model: &Model, plan: &Plan) -> Vec<Self> {
        let skips = options
            .idle_skips(model, plan)
            .into_iter()
            .map(|pattern| Self {
                option: "skip",
                value: Some(pattern.to_owned()),
                reason: "no site has this name or kind",
            });
        let others = options.idle_changes(plan).into_iter().map(|option| Self {
            option,
            value: None,
            reason: match option {
                "centre" => "no residual stream was centred",
                "scale_stream" => "no residual stream was scaled",
                "to" => "no operator computes in float32",
                "constant_norms" => "no normalizer has an ε that hides its variance",
                "slice" => "nothing was cut",
                _ => "no normalizer was taken out before others",
            },
        });
        skips.chain(others).collect()
    }

    /// A line about the option for users of the command.
    pub(crate) fn on_command_line(&self) -> String {
        let value = self
            .value
            .as_ref()
            .map_or_else(String::new, |value| format!(" `{value}`"));
        format!(
            "--{}{value}: {}",
            self.option.replace('_', "-"),
            self.reason
        )
    }

    /// A line about the option for callers from Python.
    #[cfg(feature = "python")]
    pub(crate) fn in_python(&self) -> String {
        let value = self
            .value
            .as_ref()
            .map_or_else(String::new, |value| format!(" {value:?}"));
        format!("{}{value}: {}", self.option, self.reason)
    }
}
