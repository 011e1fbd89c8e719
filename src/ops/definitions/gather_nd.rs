//! Replaces the indices of a GatherND by nonnegative ones, if they are constant and some are
//! negative.
//!
//! tract treats a negative index as a large positive one.

use super::Definition;
use super::writer::Writer;

pub(super) const DEFINITION: Definition = Definition {
    operator: ("", "GatherND"),
    attributes: &["batch_dims"],
    inputs: 2,
    write,
};

fn write(writer: &mut Writer) -> Option<()> {
    let (extents, shape) = (writer.extents(0)?, writer.extents(1)?);
    let mut indices = writer.integers(1)?;
    let batch = usize::try_from(writer.int("batch_dims", 0)?).ok()?;
    let width = usize::try_from(*shape.last()?)
        .ok()
        .filter(|&width| width > 0)?;
    if indices.iter().all(|&index| index >= 0) {
        return None;
    }
    for (place, index) in indices.iter_mut().enumerate() {
        let extent = *extents.get(batch + place % width)?;
        *index += if *index < 0 { extent } else { 0 };
        if !(0..extent).contains(index) {
            return None;
        }
    }
    let value = writer.input(0)?;
    let list = writer.maker.ints(&indices);
    let counted = writer.maker.reshape(&list, &shape);
    let attributes = writer.attributes_but(&[]);
    let picked = writer.maker.op("GatherND", &[&value, &counted], attributes);
    writer.result(0, &picked)
}

#[cfg(test)]
mod tests {
    use tract_onnx::prelude::tensor2;

    use crate::ops::definitions::tests::{assert_close, listed, run};
    use crate::ops::definitions::{FAILING, written_out};

    #[test]
    fn gather_nd_with_negative_indices_uses_positive_ones() {
        let [first, outside, last] = [1, -4, -1].map(|index| {
            let indices: &[i64] = &[index, 0];
            listed(
                "GatherND x, i -> y",
                &["3", "2"],
                &[("i", &[2, 1], indices)],
            )
        });
        assert!(written_out(&first, FAILING).is_none());
        assert!(written_out(&outside, FAILING).is_none());
        let x = tensor2(&[[1_f32, 2.0], [3.0, 4.0], [5.0, 6.0]]);
        let y = run(&written_out(&last, FAILING).unwrap(), &[x]);
        assert_close(&y[0], &tensor2(&[[5_f32, 6.0], [1.0, 2.0]]));
    }
}
