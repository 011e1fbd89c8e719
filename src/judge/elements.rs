//! The set of the floats that a model stores.

use ndarray::ArrayD;

use crate::onnx::Model;
use crate::onnx::tensor;
use crate::prove::stored_outside;

/// The number of bits of the set.
const BITS: usize = 1 << 27;

/// A set of numbers that may seem to have a number that was not added, because numbers share bits. If it does, a search
/// for a formula may be left out, and the proof may fail.
pub(super) struct ElementSet(Vec<u64>);

impl ElementSet {
    /// Collects the elements of all float tensors outside of bodies, and 0 and 1.
    pub(super) fn new(model: &Model) -> Self {
        let mut set = Self(vec![0; BITS / 64]);
        for (_, tensor) in stored_outside(model) {
            let numbers =
                tensor::float_type(&tensor).map(|_| tensor::read_f64(&tensor, model.externals()));
            if let Some(Ok(numbers)) = numbers {
                numbers.iter().for_each(|&number| set.add(number));
            }
        }
        [0.0, 1.0].into_iter().for_each(|number| set.add(number));
        set
    }

    fn add(&mut self, number: f64) {
        let (word, bit) = place(number);
        self.0[word] |= bit;
    }

    /// Whether the set has every element of an array.
    pub(super) fn has_all(&self, numbers: &ArrayD<f64>) -> bool {
        numbers.iter().all(|&number| {
            let (word, bit) = place(number);
            self.0[word] & bit != 0
        })
    }
}

/// The index of the word and the bit mask of a number. The sign is ignored.
fn place(number: f64) -> (usize, u64) {
    let mixed = number.abs().to_bits().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 37;
    (mixed as usize / 64, 1 << (mixed % 64))
}
