//! The numbers of operators and the sizes of files and weights, before and after folding.

use serde::Serialize;
use unfold::onnx::Model;
use unfold::report::bytes;

use super::operators::Operators;

/// The growth of the weights by copies of shared weights.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Growth {
    pub bytes: u64,
    /// The growth in percent of all weights.
    pub percent: f64,
}

impl Growth {
    /// The growth in words.
    pub(super) fn line(self) -> String {
        let Self {
            bytes: added,
            percent,
        } = self;
        format!(
            "copies of shared weights and biases for each place add {} ({percent:.1} % of the weights)\n",
            bytes(added)
        )
    }
}

/// The sizes of the model before and after folding.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Sizes {
    pub operators: BeforeAfter<Operators>,
    pub file_bytes: BeforeAfter<u64>,
    pub weight_bytes: BeforeAfter<u64>,
}

impl Sizes {
    /// Measures two models. `written` is the number of bytes in the files of the second model, if
    /// it was written.
    pub(crate) fn new(before: &Model, after: &Model, written: Option<u64>) -> Self {
        let file_bytes = BeforeAfter {
            before: before.read_bytes(),
            after: written.unwrap_or_else(|| after.file_bytes()),
        };
        Self {
            operators: BeforeAfter {
                before: Operators::from_model(before),
                after: Operators::from_model(after),
            },
            file_bytes,
            weight_bytes: BeforeAfter {
                before: before.weight_bytes(),
                after: after.weight_bytes(),
            },
        }
    }
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct BeforeAfter<T> {
    pub before: T,
    pub after: T,
}

impl BeforeAfter<u64> {
    /// For example `88.6 MB to 88.2 MB (-352.3 kB)`. A `+` is possible, because copies of shared
    /// weights add bytes.
    pub(crate) fn in_words(&self) -> String {
        let Self { before, after } = *self;
        let sign = if after < before { '-' } else { '+' };
        format!(
            "{} to {} ({sign}{})",
            bytes(before),
            bytes(after),
            bytes(after.abs_diff(before))
        )
    }
}
