//! Traces failures in tract back to operators of the model.

use std::any::Any;
use std::cell::Cell;
use std::collections::HashMap;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use tract_onnx::prelude::{TractError, TractResult};

use super::failure::{Failure, Stage};

impl Failure {
    /// The failure of a run that was cancelled before it began.
    pub(crate) fn interrupted() -> Self {
        Self::new(Stage::Run, "it was stopped before it had run")
    }

    pub(super) fn at(mut self, operator: impl Into<String>, node: impl Into<String>) -> Self {
        self.operator = Some(operator.into());
        self.node = Some(node.into());
        self
    }
}

/// The operator of each ONNX node, by the name that tract gives the node.
#[derive(Debug, Clone, Default)]
pub(super) struct Origins(HashMap<String, String>);

impl Origins {
    pub(super) fn insert(&mut self, node: String, operator: String) {
        self.0.insert(node, operator);
    }

    /// The ONNX operator and node of a node in tract. tract may have appended suffixes to the name,
    /// each after a dot. `None` if no prefix of the name is the name of an ONNX node.
    pub(super) fn origin<'a>(&self, mut name: &'a str) -> Option<(&str, &'a str)> {
        loop {
            if let Some(operator) = self.0.get(name) {
                return Some((operator, name));
            }
            name = &name[..name.rfind('.')?];
        }
    }

    /// Runs `work` in tract, and converts its error or panic to a failure.
    pub(super) fn attempt<T>(
        &self,
        stage: Stage,
        work: impl FnOnce() -> TractResult<T>,
    ) -> Result<T, Failure> {
        quietly(work)
            .and_then(|result| result.map_err(Caught::Error))
            .map_err(|caught| match caught {
                Caught::Error(error) => self.explain(stage, &error),
                Caught::Panic(reason) => Failure::new(stage, reason),
            })
    }

    /// Converts an error to a failure. The reason is the root cause, and the node is the innermost
    /// ONNX node that the chain of contexts names.
    fn explain(&self, stage: Stage, error: &TractError) -> Failure {
        let reason = error.root_cause().to_string();
        let failure = Failure::new(stage, one_line(&reason));
        let messages: Vec<String> = error.chain().map(ToString::to_string).collect();
        let place = messages.iter().rev().find_map(|message| {
            // tract prints a node as `#12 "name" Op`, or as `node name (Op)` if it cannot build it.
            let quoted = message.split('"').skip(1).step_by(2);
            let plain = message
                .split("node ")
                .skip(1)
                .filter_map(|rest| rest.split(" (").next());
            quoted.chain(plain).find_map(|name| self.origin(name))
        });
        match place {
            Some((operator, node)) => failure.at(operator, node),
            None => failure,
        }
    }
}

/// The first line that is not empty, shortened because messages of tract may contain dumps of
/// tensors.
fn one_line(text: &str) -> String {
    const LONGEST: usize = 200;
    let line = text
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .unwrap_or("no reason given");
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}

enum Caught {
    Error(TractError),
    Panic(String),
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, and catches a panic without printing it.
fn quietly<T>(work: impl FnOnce() -> T) -> Result<T, Caught> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                previous(info);
            }
        }));
    });
    let before = QUIET.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    QUIET.set(before);
    result
        .map_err(|payload| Caught::Panic(one_line(&format!("it panicked: {}", message(&*payload)))))
}

fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tract_core::internal::{TractErrorContext, bail};

    fn operators() -> Origins {
        let mut operators = Origins::default();
        operators.insert("/blocks.0/slice".into(), "Slice".into());
        operators
    }

    #[test]
    fn failure_names_the_operator_and_the_root_cause() {
        let failure = operators()
            .attempt(Stage::Optimize, || -> TractResult<()> {
                (|| bail!("Invalid axis\nbacktrace"))()
                    .context("Declutter #12 \"/blocks.0/slice.axis-1\" StridedSlice")
                    .context("pass")
            })
            .unwrap_err();
        assert_eq!(
            failure.to_string(),
            "tract cannot prepare Slice `/blocks.0/slice`: Invalid axis"
        );
    }

    #[test]
    fn panic_of_tract_is_a_failure() {
        let failure = operators().attempt(Stage::Run, || -> TractResult<()> {
            panic!("index out of range")
        });
        assert_eq!(
            failure.unwrap_err().to_string(),
            "tract cannot run the model: it panicked: index out of range"
        );
    }
}
