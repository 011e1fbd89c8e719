//! Finds elements of given tensors that occur in no tensor of a model.

use rayon::prelude::*;

use super::candidates::CandidateKey;
use super::rounded::PART;
use crate::hash::{HashMap, HashSet};
use crate::onnx::Model;
use crate::onnx::tensor::{Floats, float_type};
use crate::prove::stored_outside;

/// The number of elements of each tensor that are looked up. If the model stores all of these
/// elements, it most likely stores the other elements of the tensor too.
const LOOKED_UP: usize = 1 << 12;

/// The number of bits of a filter for each element, and its maximum number of bits in total.
const BITS_EACH: usize = 16;
const BITS: usize = 1 << 27;

/// The magnitudes of sampled elements that no tensor of a model has.
pub(super) struct MissingElements(HashSet<u64>);

impl MissingElements {
    /// Looks up wanted elements in all float tensors outside of bodies. The elements 0 and 1 count
    /// as stored. Stops reading tensors once all elements are found.
    pub(super) fn new<'w>(model: &Model, wanted: impl Iterator<Item = &'w f64>) -> Self {
        let mut missing: HashSet<u64> = wanted.map(|&number| magnitude(number)).collect();
        for number in [0.0, 1.0] {
            missing.remove(&magnitude(number));
        }
        let filter = Filter::new(&missing);
        for (_, tensor) in stored_outside(model) {
            if missing.is_empty() {
                break;
            }
            if let Ok(floats) = Floats::new(&tensor, model.externals()) {
                for number in filter.found_in(&floats) {
                    missing.remove(&number);
                }
            }
        }
        Self(missing)
    }

    /// Whether the model stores all elements of a sample, up to their signs. All of them were
    /// wanted.
    pub(super) fn has_none_of(&self, sample: &[f64]) -> bool {
        let mut looked_up = sample.iter().map(|&number| magnitude(number));
        !looked_up.any(|number| self.0.contains(&number))
    }
}

/// The elements of a model's short tensors, by type and size. All elements of a short tensor are
/// looked up.
pub(super) struct ShortTensors(HashMap<CandidateKey, Vec<Vec<f64>>>);

impl ShortTensors {
    /// Reads the tensors outside of bodies that have a type and size of `keys`.
    pub(super) fn new(model: &Model, keys: &HashSet<CandidateKey>) -> Self {
        let mut tensors: HashMap<CandidateKey, Vec<Vec<f64>>> = HashMap::default();
        for (_, tensor) in stored_outside(model) {
            let Ok(floats) = Floats::new(&tensor, model.externals()) else {
                continue;
            };
            let count = floats.shape().iter().product();
            let key = float_type(&tensor).map(|data_type| (data_type, count));
            let Some(key) = key.filter(|key| count <= LOOKED_UP && keys.contains(key)) else {
                continue;
            };
            let mut numbers = vec![0.0; count];
            if floats.read(0, &mut vec![], &mut numbers).is_ok() {
                tensors.entry(key).or_default().push(numbers);
            }
        }
        Self(tensors)
    }

    /// Whether most elements of a tensor, but not all, equal those of one of these tensors at the
    /// same places. The model then stores the other elements only by chance.
    pub(super) fn has_most_of(&self, key: CandidateKey, numbers: &[f64]) -> bool {
        let tensors = self.0.get(&key).into_iter().flatten();
        let mut equal = tensors.map(|tensor| {
            let pairs = tensor.iter().zip(numbers);
            pairs.filter(|(one, other)| one == other).count()
        });
        equal.any(|equal| equal < numbers.len() && 2 * equal >= numbers.len())
    }
}

/// The elements of a tensor that are looked up. The distance between them is odd, because elements
/// at an even distance could all belong to one channel.
pub(super) fn sample(numbers: &[f64]) -> Vec<f64> {
    let distance = numbers.len().div_ceil(LOOKED_UP) | 1;
    numbers.iter().step_by(distance).copied().collect()
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

    /// The magnitudes of elements of a tensor that the set may contain. None if the elements cannot
    /// be read. All cores share the work.
    fn found_in(&self, floats: &Floats) -> Vec<u64> {
        let count: usize = floats.shape().iter().product();
        let parts = (0..count.div_ceil(PART)).into_par_iter();
        let found = parts.flat_map_iter(|part| {
            let mut numbers = vec![0.0; PART.min(count - part * PART)];
            if floats.read(part * PART, &mut vec![], &mut numbers).is_err() {
                numbers.clear();
            }
            let numbers = numbers.into_iter().map(magnitude);
            numbers.filter(|&number| self.may_have(number))
        });
        found.collect()
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
    use super::*;
    use crate::onnx::tensor::DataType;
    use crate::run::testing::affine;

    #[test]
    fn only_numbers_that_the_model_stores_are_found() {
        let model = affine([0.5, -3.0, 7.0], [0.25; 3]);
        let [moved, other] = [&[-7.0, 0.5, 0.25, 0.0, 1.0][..], &[0.5, 6.0]];
        let missing = MissingElements::new(&model, moved.iter().chain(other));
        assert!(missing.has_none_of(moved));
        assert!(!missing.has_none_of(other));
    }

    #[test]
    fn tensors_that_differ_in_few_elements_are_found() {
        let model = affine([0.5, -3.0, 7.0], [0.25; 3]);
        let key = (DataType::Float, 3);
        let tensors = ShortTensors::new(&model, &[key].into_iter().collect());
        assert!(tensors.has_most_of(key, &[0.5, -3.0, 7.5]));
        assert!(tensors.has_most_of(key, &[0.25, 7.0, 0.25]));
        assert!(!tensors.has_most_of(key, &[0.5, -3.0, 7.0]));
        assert!(!tensors.has_most_of(key, &[7.0, 0.5, -3.0]));
        assert!(!tensors.has_most_of((DataType::Double, 3), &[0.5, -3.0, 7.5]));
    }

    #[test]
    fn long_rows_are_looked_up_in_parts() {
        let numbers: Vec<f64> = (0..3 * LOOKED_UP).map(|at| at as f64).collect();
        let looked_up = sample(&numbers);
        assert_eq!(looked_up.len(), LOOKED_UP);
        assert_eq!(looked_up[..3], [0.0, 3.0, 6.0]);
    }
}
