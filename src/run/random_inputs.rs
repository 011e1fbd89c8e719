//! Draws random inputs for a model.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::StandardNormal;
use tract_onnx::prelude::{DatumType, Tensor, f16};
use tract_onnx::tract_core::ndarray::ArrayD;

use super::input::Input;

impl Input {
    /// Draws values for this input.
    ///
    /// Floats are normally distributed, so half of them are negative. Integers that index a table
    /// of the model are valid indices. All other integers are 0 or 1, as in masks. Half of the
    /// booleans are true.
    fn draw(&self, rng: &mut ChaCha8Rng) -> Tensor {
        let end = self.indices.unwrap_or(2).max(1) as i64;
        match self.element {
            DatumType::F64 => self.fill(|| rng.sample::<f64, _>(StandardNormal)),
            DatumType::F16 => self.fill(|| f16::from_f32(rng.sample(StandardNormal))),
            DatumType::F32 => self.fill(|| rng.sample::<f32, _>(StandardNormal)),
            DatumType::Bool => self.fill(|| rng.random::<bool>()),
            DatumType::I8 => self.fill(|| rng.random_range(0..end.min(128)) as i8),
            DatumType::I16 => self.fill(|| rng.random_range(0..end.min(1 << 15)) as i16),
            DatumType::I32 => self.fill(|| rng.random_range(0..end) as i32),
            DatumType::U8 => self.fill(|| rng.random_range(0..end.min(256)) as u8),
            DatumType::U16 => self.fill(|| rng.random_range(0..end.min(1 << 16)) as u16),
            DatumType::U32 => self.fill(|| rng.random_range(0..end) as u32),
            DatumType::U64 => self.fill(|| rng.random_range(0..end) as u64),
            // Only 64-bit integers are left, because `datum` refuses all types that are not listed
            // here.
            _ => self.fill(|| rng.random_range(0..end)),
        }
    }

    fn fill<T: tract_onnx::prelude::Datum>(&self, mut value: impl FnMut() -> T) -> Tensor {
        ArrayD::from_shape_simple_fn(self.shape.as_slice(), &mut value).into()
    }
}

/// Draws values for all inputs. Equal seeds give equal values on every machine.
pub fn random(inputs: &[Input], seed: u64) -> Vec<Tensor> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    inputs.iter().map(|input| input.draw(&mut rng)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::tensor::DataType;
    use crate::run::Dims;
    use crate::run::testing::{affine, embedding, model, value};

    #[test]
    fn random_indices_fit_their_table_and_masks_are_0_or_1() {
        let inputs = Input::from_model(&embedding(), &"length=100".parse().unwrap()).unwrap();
        assert_eq!(inputs[0].shape, [2, 100]);
        assert_eq!((inputs[0].indices, inputs[1].indices), (Some(50), None));
        let tensors = random(&inputs, 1);
        let [(smallest, largest), mask] = [0, 1].map(|place: usize| {
            let view = tensors[place].try_as_plain_ram().unwrap();
            let values = view.as_slice::<i64>().unwrap();
            (*values.iter().min().unwrap(), *values.iter().max().unwrap())
        });
        assert!(
            smallest >= 0 && largest < 50 && largest > 30,
            "{smallest}..={largest}"
        );
        assert_eq!(mask, (0, 1));
    }

    #[test]
    fn seed_determines_values_and_half_are_negative() {
        let inputs =
            Input::from_model(&affine([1.0; 3], [0.0; 3]), &"n=1000".parse().unwrap()).unwrap();
        let (first, again, other) = (random(&inputs, 7), random(&inputs, 7), random(&inputs, 8));
        assert_eq!(first, again);
        assert_ne!(first, other);
        let view = first[0].try_as_plain_ram().unwrap();
        let negative = view
            .as_slice::<f32>()
            .unwrap()
            .iter()
            .filter(|&&value| value < 0.0)
            .count();
        assert!((1400..1600).contains(&negative), "{negative}");
    }

    #[test]
    fn supported_types_are_drawn() {
        for element in (1..=16).filter_map(DataType::from_code) {
            let inputs = vec![value("x", element, &["2", "5"])];
            let inputs =
                Input::from_model(&model(inputs, vec![], vec![], &["x"]), &Dims::default());
            let is_drawn = inputs.is_ok_and(|inputs| random(&inputs, 0)[0].shape() == [2, 5]);
            use DataType::{BFloat16, Complex64, Complex128, String};
            assert_eq!(
                is_drawn,
                ![BFloat16, Complex64, Complex128, String].contains(&element),
                "{element}"
            );
        }
    }
}
