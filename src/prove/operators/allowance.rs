//! The limits of what a proof may compute.

use std::cell::Cell;

use super::NotEvaluated;

/// The remaining limits of a computation.
pub(in crate::prove) struct Allowance {
    /// The maximum number of elements of a value.
    largest: u64,
    elements: Cell<u64>,
    products: Cell<u64>,
}

impl Allowance {
    /// The limits for a model with `bytes` bytes of weights and `inputs` elements of inputs. Large
    /// weights are used more often, and values grow on their way from the inputs. Since a small
    /// file may declare inputs of any size, their contribution is bounded.
    pub(in crate::prove) fn new(bytes: u64, inputs: u64) -> Self {
        let elements = grown(inputs, 30, 14, 36).saturating_add(bytes.saturating_mul(1 << 8));
        let products = grown(inputs, 32, 17, 37).saturating_add(bytes.saturating_mul(1 << 11));
        Self {
            largest: bytes.max(grown(inputs, 24, 8, 27)),
            elements: Cell::new(elements),
            products: Cell::new(products),
        }
    }

    /// Reserves room for a value of this shape.
    ///
    /// # Errors
    /// [`NotEvaluated::Beyond`] if it exceeds the limits.
    pub(in crate::prove) fn room(&self, shape: &[usize]) -> Result<(), NotEvaluated> {
        // As in `ndarray`, an extent of 0 does not remove the limit on the others.
        let counted = shape.iter().filter(|&&extent| extent != 0);
        let count = counted.fold(1_u64, |count, &extent| count.saturating_mul(extent as u64));
        let fits = count <= self.largest && shape.len() <= 64;
        if fits && spend(&self.elements, count) {
            Ok(())
        } else {
            Err(NotEvaluated::Beyond)
        }
    }

    /// Reserves as many products as the product of these factors.
    ///
    /// # Errors
    /// [`NotEvaluated::Beyond`] if they exceed the limits.
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

/// A limit that grows with the number of elements of the inputs, between two powers of 2.
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
