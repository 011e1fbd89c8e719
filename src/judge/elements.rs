//! Finds elements of given tensors that occur in no tensor of a model.

use ndarray::ArrayD;

use crate::hash::HashSet;
use crate::onnx::Model;
use crate::onnx::tensor;
use crate::prove::stored_outside;

/// The number of elements of each tensor that are looked up. If the model stores all of these
/// elements, it most likely stores the other elements of the tensor too.
const LOOKED_UP: usize = 1 << 12;

/// The number of bits of a filter for each element, and its maximum number of bits in total.
const BITS_EACH: usize = 64;
const BITS: usize = 1 << 27;

/// The magnitudes of sampled elements that no tensor of a model has.
pub(super) struct MissingElements(HashSet<u64>);

impl MissingElements {
    /// Looks up a sample of the wanted elements in all float tensors outside of bodies. The
    /// elements 0 and 1 count as stored. Stops reading tensors once all elements are found.
    pub(super) fn new(model: &Model, wanted: impl Iterator<Item = ArrayD<f64>>) -> Self {
        let mut missing = HashSet::default();
        for numbers in wanted {
            missing.extend(sample(&numbers).map(magnitude));
        }
        for number in [0.0, 1.0] {
            missing.remove(&magnitude(number));
        }
        let filter = Filter::new(&missing);
        for (_, tensor) in stored_outside(model) {
            if missing.is_empty() {
                break;
            }
            let is_float = tensor::float_type(&tensor).is_some();
            let numbers = is_float.then(|| tensor::read_f64(&tensor, model.externals()));
            let Some(Ok(numbers)) = numbers else {
                continue;
            };
            for number in numbers.iter().map(|&number| magnitude(number)) {
                if filter.may_have(number) {
                    missing.remove(&number);
                }
            }
        }
        Self(missing)
    }

    /// Whether the model stores all sampled elements, up to their signs, of a tensor that was among
    /// the wanted ones.
    pub(super) fn has_none_of(&self, numbers: &ArrayD<f64>) -> bool {
        let mut looked_up = sample(numbers).map(magnitude);
        !looked_up.any(|number| self.0.contains(&number))
    }
}

/// The elements that are looked up. The distance between them is odd, because elements at an even
/// distance could all belong to one channel.
fn sample(numbers: &ArrayD<f64>) -> impl Iterator<Item = f64> {
    let distance = numbers.len().div_ceil(LOOKED_UP) | 1;
    numbers.iter().step_by(distance).copied()
}

/// The magnitude of a number, as bits.
fn magnitude(number: f64) -> u64 {
    number.abs().to_bits()
}

/// A Bloom filter with one hash function, small enough for a cache.
struct Filter {
    words: Vec<u64>,
    /// The number of low bits that are dropped from a hash. Its remaining high bits are the index
    /// of a bit in the filter.
    shift: u32,
}

impl Filter {
    fn new(numbers: &HashSet<u64>) -> Self {
        let bits = (numbers.len() * BITS_EACH)
            .next_power_of_two()
            .clamp(64, BITS);
        let mut filter = Self {
            words: vec![0; bits / 64],
            shift: 64 - bits.ilog2(),
        };
        for &number in numbers {
            let (word, bit) = filter.place(number);
            filter.words[word] |= bit;
        }
        filter
    }

    /// Whether the set may contain a number. May be true for a number that was not added.
    fn may_have(&self, number: u64) -> bool {
        let (word, bit) = self.place(number);
        self.words[word] & bit != 0
    }

    /// The index of the word and the bit mask of a number.
    fn place(&self, number: u64) -> (usize, u64) {
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift;
        (mixed as usize / 64, 1 << (mixed % 64))
    }
}

#[cfg(test)]
mod tests {
    use ndarray::Array1;

    use super::*;
    use crate::run::testing::affine;

    fn row(numbers: &[f64]) -> ArrayD<f64> {
        Array1::from(numbers.to_vec()).into_dyn()
    }

    #[test]
    fn only_numbers_that_the_model_stores_are_found() {
        let model = affine([0.5, -3.0, 7.0], [0.25; 3]);
        let [moved, other] = [row(&[-7.0, 0.5, 0.25, 0.0, 1.0]), row(&[0.5, 6.0])];
        let missing = MissingElements::new(&model, [moved.clone(), other.clone()].into_iter());
        assert!(missing.has_none_of(&moved));
        assert!(!missing.has_none_of(&other));
    }

    #[test]
    fn long_rows_are_looked_up_in_parts() {
        let numbers: Vec<f64> = (0..3 * LOOKED_UP).map(|at| at as f64).collect();
        let looked_up: Vec<f64> = sample(&row(&numbers)).collect();
        assert_eq!(looked_up.len(), LOOKED_UP);
        assert_eq!(looked_up[..3], [0.0, 3.0, 6.0]);
    }
}
