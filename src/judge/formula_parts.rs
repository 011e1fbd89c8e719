//! Parts of a formula that are small enough for a near cache.

use std::ops::Range;

use super::rounded::PART;
use crate::recipe::{Recipe, cut, cut_constant};

/// The parts of a formula's value along an axis.
pub(super) struct FormulaParts<'r> {
    recipe: &'r Recipe,
    axis: usize,
    /// The number of places along the axis in each part.
    places: usize,
}

impl<'r> FormulaParts<'r> {
    /// Divides a formula along the first axis on which the parts together take at most twice the
    /// work of the whole. `None` if there is no such axis, or if the whole is small.
    pub(super) fn new(recipe: &'r Recipe) -> Option<Self> {
        if recipe.len() <= PART {
            return None;
        }
        let axes = 0..recipe.rank();
        let mut divided = axes.map(|axis| Self::along(recipe, axis));
        divided.find(Self::are_worthwhile)
    }

    fn along(recipe: &'r Recipe, axis: usize) -> Self {
        let of_place = recipe.len() / recipe.shape()[axis];
        Self {
            recipe,
            axis,
            places: (PART / of_place).max(1),
        }
    }

    fn are_worthwhile(&self) -> bool {
        let ranges = self.ranges();
        let is_divided = ranges.len() > 1;
        is_divided && ranges.len() * work(&self.part(ranges[0].clone())) <= 2 * work(self.recipe)
    }

    /// The axis along which the formula is divided.
    pub(super) fn axis(&self) -> usize {
        self.axis
    }

    /// The places of each part along the axis.
    pub(super) fn ranges(&self) -> Vec<Range<usize>> {
        let extent = self.recipe.shape()[self.axis];
        let starts = (0..extent).step_by(self.places);
        let ranges = starts.map(|start| start..extent.min(start + self.places));
        ranges.collect()
    }

    /// The formula of a part.
    pub(super) fn part(&self, range: Range<usize>) -> Recipe {
        cut(self.recipe, self.axis, range)
    }
}

/// The number of elements that an evaluation writes. It reads only the used range of a constant.
fn work(recipe: &Recipe) -> usize {
    let steps = recipe.steps_to(&|step| cut_constant(step).is_some());
    steps.iter().map(|step| step.len()).sum()
}

#[cfg(test)]
mod tests {
    use ndarray::{ArrayD, Axis, concatenate};

    use super::*;
    use crate::recipe::evaluate;

    const EXTENT: usize = 1024;

    /// A weight without its means along an axis.
    fn centred(axis: usize) -> Recipe {
        let weight = Recipe::constant("W", &[EXTENT, EXTENT]);
        let count = Recipe::number(EXTENT as f64, 0);
        let means = weight.sum(axis).unwrap().div(&count).unwrap();
        weight.sub(&means).unwrap()
    }

    fn computed(recipe: &Recipe) -> ArrayD<f64> {
        let numbers = (0..EXTENT * EXTENT).map(|place| (place * place % 1009) as f64);
        let weight = ArrayD::from_shape_vec(vec![EXTENT, EXTENT], numbers.collect()).unwrap();
        evaluate(recipe, &|_| Ok(weight.clone())).unwrap()
    }

    #[test]
    fn centred_weights_are_divided_along_the_other_axis() {
        for axis in [0, 1] {
            let recipe = centred(axis);
            let parts = FormulaParts::new(&recipe).unwrap();
            assert_eq!(parts.axis(), 1 - axis);
            let ranges = parts.ranges();
            assert_eq!(ranges.len(), EXTENT * EXTENT / PART);
            let cut = ranges.into_iter().map(|range| computed(&parts.part(range)));
            let cut: Vec<ArrayD<f64>> = cut.collect();
            let views: Vec<_> = cut.iter().map(|part| part.view()).collect();
            let whole = concatenate(Axis(1 - axis), &views).unwrap();
            assert_eq!(whole, computed(&recipe));
        }
    }

    #[test]
    fn formulas_whose_parts_need_the_whole_are_not_divided() {
        let both = centred(0).sub(&centred(1)).unwrap();
        assert!(FormulaParts::new(&both).is_none());
        assert!(FormulaParts::new(&Recipe::constant("W", &[16, 16])).is_none());
    }
}
