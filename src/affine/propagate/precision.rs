//! The effect of a moving affine on the precision of the values on its path.
//!
//! Forward it leaves `x` where `s·x + t` was, backward it puts `s·x + t` where `x` was. Within one type that is only
//! another order of roundings, for `x` was rounded to that type already. It is more in three places.
//!
//! - **A Cast to a narrower type** rounds `x` instead of `s·x + t`. That loses nothing where all of
//!   `x` came from such a type, and no more than before without a shift, or where `x` is the result
//!   of a normalization or another bounded function. Otherwise a shift may carry the digits:
//!   `1000.01 − 1000`. And float16 holds no numbers over 65504. Backward past a Cast from such a
//!   type the result is rounded there, which is allowed where the next Cast rounds it anyway.
//! - **Weights of half precision** that absorb an affine are rounded. Where the Cast before or
//!   behind them rounds as before, nothing compensates for that: only powers of two pass, which
//!   round nothing, if the range allows.
//! - **A float16 computed** from others on the path becomes larger, forward by a scale below 1, and
//!   backward by one above: scores of queries that are scaled only behind the product. A mean is no
//!   larger than its operands, but an operand may be larger than the mean.
//!
//! The range of the other types is beyond what networks compute.

use crate::affine::Affine;
use crate::affine::fold::Step;
use crate::affine::item::Item;
use crate::affine::propagate::overlay::GraphOverlay;
use crate::affine::recognize::Part;
use crate::ir::{NodeId, Reader, ValueId};
use crate::onnx::operator::Category;
use crate::onnx::tensor::DataType;
use crate::recipe::Numbers;
use crate::refusal::Reason;

/// The largest number of operators that a search for the origin or the readers of numbers passes.
const LOOKED_AT: usize = 64;

/// How much smaller, or larger, the numbers of a stream may become: float32 holds them all the same, and their squares
/// nearly.
const STREAM: f64 = (1_u64 << 40) as f64;

/// How much smaller they may become in float16. They may not become larger.
const HALF_STREAM: f64 = 16.0;

/// An affine that propagates forward past nodes.
pub struct Crossing<'g> {
    /// The part that is removed; `None` where a rest of it stays.
    pub part: Option<&'g Part>,
    /// Nodes that are removed, and the input that replaces their result.
    pub bypass: &'g [(NodeId, usize)],
    /// Whether the normalized value is bounded.
    pub is_bounded: bool,
}

/// Whether an affine at a node may propagate behind it.
///
/// # Errors
/// [`Reason::Narrow`] where a type may not hold the numbers that come to it then.
pub fn forward(
    overlay: &GraphOverlay,
    crossing: &Crossing,
    node: NodeId,
    inputs: &[Option<Affine>],
    step: &Step,
) -> Result<(), Reason> {
    let (Some(made), Some(Some(affine))) = (
        overlay.graph.output(node, 0),
        inputs.iter().find(|input| input.is_some()),
    ) else {
        return Ok(());
    };
    let to = overlay.facts.data_type(made);
    if !step.wants.is_empty() && !holds_stream(to, &affine.scale) {
        return refused(to);
    }
    let Some(value) = cast(overlay, node) else {
        // A normalizer may divide by its statistics only behind its factors.
        let normalizes =
            crossing.is_bounded && overlay.graph.category(node) == Some(Category::Arithmetic);
        let grows = to == Some(DataType::Float16)
            && computes(overlay, node, step)
            && !normalizes
            && inputs.iter().flatten().any(Affine::shrinks);
        return if grows { refused(to) } else { Ok(()) };
    };
    let is_kept = within(overlay.facts.data_type(value), to)
        || crossing.is_bounded
        || came_out_of(overlay, crossing, value, to);
    let is_kept = is_kept
        || match to {
            Some(DataType::Float16) => false,
            Some(DataType::BFloat16) => affine.is_only_exponents(),
            _ => affine.has_no_shift(),
        };
    if is_kept { Ok(()) } else { refused(to) }
}

/// Whether an affine of an item that is wanted behind a node may go before it.
///
/// # Errors
/// As [`forward`].
pub fn backward(
    overlay: &GraphOverlay,
    item: &Item,
    node: NodeId,
    affine: &Affine,
    step: &Step,
) -> Result<(), Reason> {
    let grows = affine.scale.iter().any(|s| s.abs() > 1.0);
    let made = overlay.graph.output(node, 0);
    let to = made.and_then(|made| overlay.facts.data_type(made));
    let Some(value) = cast(overlay, node) else {
        let makes_numbers = is_mean(overlay, node) || computes(overlay, node, step);
        return if makes_numbers && to == Some(DataType::Float16) && grows {
            refused(to)
        } else {
            Ok(())
        };
    };
    let from = overlay.facts.data_type(value);
    let is_kept = within(to, from)
        || match from {
            Some(DataType::Float16) => affine.is_only_exponents() && !grows,
            Some(DataType::BFloat16) => affine.is_only_exponents(),
            from => from.is_some(),
        };
    if is_kept || is_rounded_anyway(overlay, &item.part, made, from) {
        Ok(())
    } else {
        refused(from)
    }
}

fn is_mean(overlay: &GraphOverlay, node: NodeId) -> bool {
    let means = ["AveragePool", "GlobalAveragePool", "ReduceMean"];
    means.iter().any(|mean| overlay.graph.is(node, mean))
}

/// Whether a part reads the result of a Cast, and its own result is only cast to the type before it.
fn is_rounded_anyway(
    overlay: &GraphOverlay,
    part: &Part,
    made: Option<ValueId>,
    from: Option<DataType>,
) -> bool {
    let (source, mut left) = origin(overlay, part.input, None, LOOKED_AT);
    made.map(|made| overlay.source(made)) == Some(source)
        && only_goes_to(overlay, part.output, from, &mut left)
}

/// Whether a value of a stream may be in another basis, in which it is smaller by the factors of an affine.
///
/// # Errors
/// [`Reason::Narrow`] where its type does not hold them.
pub fn returned(overlay: &GraphOverlay, value: ValueId, inverse: &Affine) -> Result<(), Reason> {
    let data_type = overlay.facts.data_type(value);
    if holds_stream(data_type, &inverse.scale) {
        Ok(())
    } else {
        refused(data_type)
    }
}

/// Whether a type holds all sums of a stream in another basis, in which they are smaller by these factors.
fn holds_stream(data_type: Option<DataType>, scale: &Numbers) -> bool {
    let [least, most] = match data_type {
        Some(DataType::Float16) => [1.0, HALF_STREAM],
        _ => [1.0 / STREAM, STREAM],
    };
    scale.iter().all(|s| (least..=most).contains(&s.abs()))
}

fn refused(data_type: Option<DataType>) -> Result<(), Reason> {
    Err(Reason::Narrow(
        data_type.map_or("an unknown type".to_owned(), DataType::name),
    ))
}

/// The operand of a Cast.
fn cast(overlay: &GraphOverlay, node: NodeId) -> Option<ValueId> {
    let casts = overlay.graph.is(node, "Cast") || overlay.graph.is(node, "CastLike");
    casts.then(|| overlay.graph.input(node, 0))?
}

/// Whether a type holds every number of another.
fn within(inner: Option<DataType>, outer: Option<DataType>) -> bool {
    use DataType::{BFloat16, Double, Float, Float16};
    match (inner, outer) {
        (Some(Float16 | BFloat16), Some(Float))
        | (Some(Float16 | BFloat16 | Float), Some(Double)) => true,
        (inner, outer) => inner.is_some() && inner == outer,
    }
}

/// Whether a node that passes an affine computes new numbers, and does not only move them.
fn computes(overlay: &GraphOverlay, node: NodeId, step: &Step) -> bool {
    let computes = match overlay.graph.category(node) {
        Some(Category::Arithmetic) => !overlay.graph.is(node, "Neg"),
        Some(Category::Reduction) => !overlay.graph.is(node, "ReduceMean"),
        Some(category) => category.is_product(),
        None => overlay.graph.is(node, "CumSum") || overlay.graph.is(node, "Einsum"),
    };
    // A product may absorb the shift, and pass the scale.
    let is_product = overlay
        .graph
        .category(node)
        .is_some_and(Category::is_product);
    let is_scale_transparent = step
        .ways
        .iter()
        .flatten()
        .any(|(_, affine)| !affine.has_no_scale());
    let multiplies = step.folds.is_empty() || is_product && is_scale_transparent;
    computes && multiplies && step.bypass.is_none() && step.factors.is_empty()
}

/// The value whose elements a value has, or what a part makes, and how many operators were not looked at for it.
fn origin(
    overlay: &GraphOverlay,
    value: ValueId,
    part: Option<&Part>,
    budget: usize,
) -> (ValueId, usize) {
    let mut value = overlay.source(value);
    for left in (0..budget).rev() {
        let Some((node, _)) = overlay.graph.producer(value) else {
            return (value, left);
        };
        // Nodes of a part are removed with it.
        let is_of_part = part.is_some_and(|part| part.nodes.contains(&node));
        let input = overlay.graph.input(node, 0);
        let Some(input) = input.filter(|_| !is_of_part && moves(overlay, node)) else {
            return (value, left);
        };
        value = overlay.source(input);
    }
    (value, 0)
}

/// Whether a node passes elements unchanged: some or all of them, or with zeros in some places.
fn moves(overlay: &GraphOverlay, node: NodeId) -> bool {
    matches!(
        overlay.graph.category(node),
        Some(Category::Movement | Category::Selection)
    ) || overlay.graph.is(node, "Relu")
}

/// Whether all elements of a value, without the affine, were numbers of a type before a Cast.
fn came_out_of(
    overlay: &GraphOverlay,
    crossing: &Crossing,
    value: ValueId,
    data_type: Option<DataType>,
) -> bool {
    let (mut value, mut left) = (value, LOOKED_AT);
    while left > 0 {
        (value, left) = origin(overlay, value, crossing.part, left);
        if let Some(part) = crossing.part.filter(|part| part.output == value) {
            value = part.input;
            continue;
        }
        let maker = overlay.graph.producer(value).map(|(node, _)| node);
        let bypassed = crossing
            .bypass
            .iter()
            .find(|(node, _)| Some(*node) == maker);
        if let Some(input) = bypassed.and_then(|&(node, slot)| overlay.graph.input(node, slot)) {
            value = input;
            continue;
        }
        let own = overlay.facts.data_type(value);
        if within(own, data_type) {
            return true;
        }
        let before = maker.and_then(|node| cast(overlay, node));
        // A value that was rounded on the path has other numbers.
        let Some(before) = before.filter(|&before| within(overlay.facts.data_type(before), own))
        else {
            return false;
        };
        value = before;
    }
    false
}

/// Whether all readers of a value, directly or behind movements, cast it to a type no wider than
/// this one.
fn only_goes_to(
    overlay: &GraphOverlay,
    value: ValueId,
    data_type: Option<DataType>,
    budget: &mut usize,
) -> bool {
    let Some(left) = budget.checked_sub(1) else {
        return false;
    };
    *budget = left;
    overlay.readers(value).all(|(_, reader)| {
        let Reader::Node { node, input } = reader else {
            return false;
        };
        let Some(made) = overlay.graph.output(node, 0) else {
            return false;
        };
        if !overlay.graph.reads_elements(node, input) {
            return true;
        }
        match cast(overlay, node) {
            Some(_) => within(overlay.facts.data_type(made), data_type),
            None => {
                input == 0 && moves(overlay, node) && only_goes_to(overlay, made, data_type, budget)
            }
        }
    })
}
