//! GatherND by constant indices of which some count from the end, as one by indices from 0 on.
//!
//! tract takes such an index for a large number.

use super::Definition;
use super::writer::Writer;

pub const DEFINITION: Definition = Definition {
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
