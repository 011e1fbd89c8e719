//! Converts the constants of a model to half precision.

use crate::affine::materialize::{Change, Edit, NewTensor};
use crate::affine::plan::ClampedMask;
use crate::affine::rounding::Rounding;
use crate::analysis::Analysis;
use crate::hash::HashMap;
use crate::ir::ValueId;
use crate::onnx::tensor::DataType;
use crate::passes::half::HalfType;
use crate::passes::half::masks::{clamp_mask, is_mask};
use crate::passes::half::precision::Precisions;
use crate::recipe::Recipe;

/// The constants that change: constants that become half, and masks that are clamped to the range
/// of half.
pub(crate) struct HalfConstants {
    /// The edits. The site of each edit is the node that reads the constant.
    pub(crate) edits: Vec<Edit>,
    /// The masks that are clamped.
    pub(crate) masks: Vec<ClampedMask>,
}

impl HalfConstants {
    /// Finds the constants of a model that change.
    pub(crate) fn find(analysis: &Analysis, precisions: &Precisions, to: HalfType) -> Self {
        let graph = &analysis.graph;
        let mut found = HalfConstants {
            edits: vec![],
            masks: vec![],
        };
        let mut clamped: HashMap<ValueId, Option<Recipe>> = HashMap::default();
        for &node in graph.order() {
            if graph.is(node, "Constant") || !precisions.has_floats(node) {
                continue;
            }
            let types = precisions.types(node);
            for (slot, &value) in graph.inputs(node).iter().enumerate() {
                let (Some(value), Some(data_type)) = (value, types.inputs[slot]) else {
                    continue;
                };
                if !is_stored(analysis, value) {
                    continue;
                }
                let in_range = clamped.entry(value).or_insert_with(|| {
                    let (recipe, mask) = in_range(analysis, value, to)?;
                    found.masks.push(mask);
                    Some(recipe)
                });
                let recipe = match in_range {
                    Some(recipe) => recipe.clone(),
                    None if data_type == DataType::Float => continue,
                    None => match shape(analysis, value) {
                        Some(shape) => Recipe::constant(graph.value_name(value), &shape),
                        None => continue,
                    },
                };
                let suffix = if data_type == DataType::Float {
                    "in_range"
                } else {
                    "half"
                };
                let tensor = NewTensor {
                    wish: format!("{}_{suffix}", graph.value_name(value)),
                    replaces: Some(value),
                    data_type: Some(data_type),
                    recipe,
                    rounding: Rounding::Sum,
                };
                found.edits.push(Edit {
                    sites: vec![node],
                    at: graph.name(node).to_owned(),
                    change: Change::Input(node, slot, tensor),
                });
            }
        }
        found
    }
}

/// Whether a value is stored: an initializer, or the result of a Constant.
fn is_stored(analysis: &Analysis, value: ValueId) -> bool {
    let graph = &analysis.graph;
    let producer = graph.producer(value);
    analysis.constants.is_constant(value)
        && producer.is_none_or(|(node, _)| graph.is(node, "Constant"))
}

/// The extents of a stored constant. `None` if one of them is unknown.
fn shape(analysis: &Analysis, value: ValueId) -> Option<Vec<usize>> {
    let rank = analysis.facts.rank(value)?;
    (0..rank)
        .map(|axis| analysis.facts.extent(value, axis))
        .collect()
}

/// Clamps a mask to the range of half. `None` if the value is not a mask, or is already in range.
fn in_range(analysis: &Analysis, value: ValueId, to: HalfType) -> Option<(Recipe, ClampedMask)> {
    if !is_mask(analysis, value) {
        return None;
    }
    let numbers = analysis.constants.read(value).ok()?;
    let largest = numbers.iter().copied().filter(|number| number.is_finite());
    let from = largest.reduce(|one, other| if one.abs() >= other.abs() { one } else { other })?;
    let limit = clamp_mask(from, to);
    if limit == from {
        return None;
    }
    let clamped: Vec<f64> = numbers
        .iter()
        .map(|&number| clamp_mask(number, to))
        .collect();
    let recipe = Recipe::literal(&clamped, numbers.shape())?;
    let mask = ClampedMask {
        name: analysis.graph.value_name(value).to_owned(),
        from,
        to: limit,
    };
    Some((recipe, mask))
}
