//! The limits of what a proof may compute.

use std::cell::Cell;

use super::NotEvaluated;

/// The numbers of elements and of multiplications that a computation may still use.
pub(in crate::prove) struct Allowance {
    /// The maximum number of elements of each value.
    largest: u64,
    elements: Cell<u64>,
    products: Cell<u64>,
}

impl Allowance {
    /// The limits for a model with `bytes` bytes of weights and `inputs` elements of inputs. The
    /// limits grow with `bytes` and with `inputs`, because values may have more elements than the
    /// inputs. Since a small file may declare inputs of any size, the contribution of the inputs is
    /// bounded.
    pub(in crate::prove) fn new(bytes: u64, inputs: u64) -> Self {
        let elements = grown(inputs, 30, 14, 36).saturating_add(bytes.saturating_mul(1 << 8));
        let products = grown(inputs, 32, 17, 37).saturating_add(bytes.saturating_mul(1 << 11));
        Self {
            largest: bytes.max(grown(inputs, 24, 8, 27)),
            elements: Cell::new(elements),
            products: Cell::new(products),
        }
    }

    /// Counts the elements of a value of this shape against the limits.
    ///
    /// # Errors
    /// [`NotEvaluated::Beyond`] if the elements exceed the limits.
    pub(in crate::prove) fn room(&self, shape: &[usize]) -> Result<(), NotEvaluated> {
        // An extent of 0 is left out of the count, because `ndarray` also limits the product of the
        // other extents.
        let counted = shape.iter().filter(|&&extent| extent != 0);
        let count = counted.fold(1_u64, |count, &extent| count.saturating_mul(extent as u64));
        let fits = count <= self.largest && shape.len() <= 64;
        if fits && spend(&self.elements, count) {
            Ok(())
        } else {
            Err(NotEvaluated::Beyond)
        }
    }

    /// Counts `factors[0] · factors[1] · …` multiplications against the limits.
    ///
    /// # Errors
    /// [`NotEvaluated::Beyond`] if the multiplications exceed the limits.
    pub(in crate::prove) fn products(&self, factors: &[usize]) -> Result<(), NotEvaluated> {
        let count = factors
            .iter()
            .fold(1_u64, |count, &factor| count.saturating_mul(factor as u64));
        if spend(&self.products, count) {
            Ok(())
        } else {
            Err(NotEvaluated::Beyond)
        }
    }
}

/// The limit `min(2^least + inputs·2^times, 2^most)`.
fn grown(inputs: u64, least: u32, times: u32, most: u32) -> u64 {
    (1_u64 << least)
        .saturating_add(inputs.saturating_mul(1 << times))
        .min(1 << most)
}

fn spend(left: &Cell<u64>, amount: u64) -> bool {
    let rest = left.get().checked_sub(amount);
    left.set(rest.unwrap_or(0));
    rest.is_some()
}
