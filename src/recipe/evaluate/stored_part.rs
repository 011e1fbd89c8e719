//! A stored constant, or a range of it along an axis, whose elements are read in order.

use super::{Supply, cut_constant};
use crate::onnx::tensor::{Floats, Runs};
use crate::recipe::{Op, Recipe};
use crate::refusal::{Reason, Refusal};

/// A constant or a part of it.
#[derive(Debug)]
pub(in crate::recipe) struct StoredPart {
    pub floats: Floats,
    runs: Runs,
    /// Whether it is the whole constant.
    pub is_whole: bool,
}

impl StoredPart {
    /// The stored constant of a step that is a constant or cuts one. `None` for other steps, and
    /// for a cut of a constant that is computed, because a few elements of it may cost as much as
    /// many.
    pub(in crate::recipe) fn from_step(step: &Recipe, supply: &dyn Supply) -> Option<Self> {
        let (floats, runs, shape) = match step.op() {
            Op::Constant(name) => (supply.floats(name)?, Runs::all(step.len()), step.shape()),
            _ => {
                let (name, axis, range) = cut_constant(step)?;
                let floats = supply.floats(name).filter(|floats| !floats.is_computed())?;
                let shape = step.inputs().first()?.shape();
                (floats, Runs::along(shape, axis, &range), shape)
            }
        };
        (floats.shape() == shape).then(|| Self {
            floats: floats.clone(),
            runs,
            is_whole: floats.shape() == step.shape(),
        })
    }

    /// Reads the bytes of consecutive elements that start at index `at`, as many as `buffer` holds.
    ///
    /// # Errors
    /// The constant cannot be read.
    pub(in crate::recipe) fn read(&self, mut at: usize, buffer: &mut [u8]) -> Result<(), Refusal> {
        let size = self.floats.size();
        let mut rest = buffer;
        while !rest.is_empty() {
            let (begin, count) = self.runs.locate(at);
            let count = count.min(rest.len() / size);
            let (run, others) = rest.split_at_mut(count * size);
            let read = self.floats.read_bytes_into(begin, run);
            read.map_err(|error| Refusal::new(Reason::Constant(error.to_string()), ""))?;
            at += count;
            rest = others;
        }
        Ok(())
    }
}
