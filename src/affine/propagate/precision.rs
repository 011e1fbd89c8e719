//! The effect of a moving affine on the precision of the values on its path.
//!
//! If an affine moves forward, values that were `s·x + t` become `x`. If it moves backward, values
//! that were `x` become `s·x + t`. Within one element type this only changes the order of
//! roundings, because `x` was rounded to that type already. There are three exceptions:
//!
//! - **A Cast to a narrower type** rounds `x` instead of `s·x + t`. This loses nothing if all of
//!   `x` came from the narrower type. Without a shift, or if `x` is the result of a normalization
//!   or another bounded function, it loses no more than before. In other cases `s·x + t` may keep
//!   digits that the Cast of `x` would lose, as in `1000.01 − 1000`, or `x` may exceed 65504, the
//!   largest number of float16. If the affine moves backward past a Cast from a narrower type, `s·x
//!   + t` is rounded to that type. This is allowed if later Casts round it to that type anyway.
//! - **Weights of half precision** that absorb an affine are rounded. If the Cast next to them
//!   still rounds the value as in the original, the rounding of the weights is an additional loss.
//!   So only powers of two pass: they do not round a weight, as long as the type can hold the
//!   product.
//! - **A float16 value that is computed** on the path may become larger: forward by a scale below
//!   1, backward by a scale above 1. An example is the scores of queries that are scaled only after
//!   the product. Forward propagation past a mean is safe, because a mean is no larger than its
//!   largest operand. Backward, an operand may be larger than the mean.
//!
//! The range of the other types is so large that values on the path may grow.

use crate::affine::Affine;
use crate::affine::item::Item;
use crate::affine::propagate::overlay::GraphOverlay;
use crate::affine::recognize::Part;
use crate::affine::rule::Step;
use crate::ir::{NodeId, Reader, ValueId};
use crate::onnx::operator::Category;
use crate::onnx::tensor::DataType;
use crate::recipe::Numbers;
use crate::refusal::Reason;

/// The largest number of operators that a search for the origin or the readers of elements passes.
const LOOKED_AT: usize = 64;

/// The largest factor between the values of a stream in two bases. float32 still holds such values,
/// and nearly all their squares.
const STREAM: f64 = (1_u64 << 40) as f64;

/// In float16, the values of a stream may become smaller by at most this factor. They may not
/// become larger.
const HALF_STREAM: f64 = 16.0;

/// An affine that propagates forward past nodes.
pub(crate) struct Crossing<'g> {
    /// The part that is removed. `None` if some of it stays.
    pub part: Option<&'g Part>,
    /// Nodes that are removed, each with the input that replaces its result.
    pub bypass: &'g [(NodeId, usize)],
    /// Whether the value to which the affine is applied is bounded by a normalization.
    pub is_bounded: bool,
}

/// Checks that an affine on an input of a node may move past the node.
///
/// # Errors
/// [`Reason::Narrow`] if an element type may not hold the values that result.
pub(crate) fn forward(
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
        // After a bounded core, arithmetic may still belong to the normalizer, because some
        // normalizers divide by their statistics only after they apply their factors. The results
        // of this arithmetic may become larger.
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

/// Checks that an affine on the result of a node may move before the node.
///
/// # Errors
/// The error of [`forward`].
pub(crate) fn backward(
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

/// Whether a part reads the result of a Cast, and all readers of the part's result cast it back to
/// the type before that Cast.
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

/// Checks that a value of a stream may have another basis, in which it is divided by the scale of
/// `inverse`.
///
/// # Errors
/// [`Reason::Narrow`] if its type cannot hold the result.
pub(crate) fn returned(
    overlay: &GraphOverlay,
    value: ValueId,
    inverse: &Affine,
) -> Result<(), Reason> {
    let data_type = overlay.facts.data_type(value);
    if holds_stream(data_type, &inverse.scale) {
        Ok(())
    } else {
        refused(data_type)
    }
}

/// Whether a type holds all values of a stream in another basis, in which they are divided by these
/// factors.
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

/// The operand of a Cast or CastLike. `None` for other nodes.
fn cast(overlay: &GraphOverlay, node: NodeId) -> Option<ValueId> {
    let casts = overlay.graph.is(node, "Cast") || overlay.graph.is(node, "CastLike");
    casts.then(|| overlay.graph.input(node, 0))?
}

/// Whether the type `outer` holds every number of the type `inner`.
fn within(inner: Option<DataType>, outer: Option<DataType>) -> bool {
    use DataType::{BFloat16, Double, Float, Float16};
    match (inner, outer) {
        (Some(Float16 | BFloat16), Some(Float))
        | (Some(Float16 | BFloat16 | Float), Some(Double)) => true,
        (inner, outer) => inner.is_some() && inner == outer,
    }
}

/// Whether a node that passes an affine computes new numbers, rather than only moving elements.
fn computes(overlay: &GraphOverlay, node: NodeId, step: &Step) -> bool {
    let computes = match overlay.graph.category(node) {
        Some(Category::Arithmetic) => !overlay.graph.is(node, "Neg"),
        Some(Category::Reduction) => !overlay.graph.is(node, "ReduceMean"),
        Some(category) => category.is_product(),
        None => overlay.graph.is(node, "CumSum") || overlay.graph.is(node, "Einsum"),
    };
    // A product that absorbs the shift but passes the scale still computes scaled numbers.
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

/// Follows a value back through operators that only pass elements, to the value where its elements
/// were computed. Stops at the nodes of `part`. Also returns the remaining budget.
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
        // The nodes of the part are removed with the part, so the search stops at them.
        let is_of_part = part.is_some_and(|part| part.nodes.contains(&node));
        let input = overlay.graph.input(node, 0);
        let Some(input) = input.filter(|_| !is_of_part && moves(overlay, node)) else {
            return (value, left);
        };
        value = overlay.source(input);
    }
    (value, 0)
}

/// Whether a node passes elements unchanged. It may drop some, or replace some by zeros.
fn moves(overlay: &GraphOverlay, node: NodeId) -> bool {
    matches!(
        overlay.graph.category(node),
        Some(Category::Movement | Category::Selection)
    ) || overlay.graph.is(node, "Relu")
}

/// Whether all elements of a value, once the affine is removed, are numbers of this type that Casts
/// only widened.
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
        // A Cast that rounds would have changed the numbers, so the search passes only Casts that
        // widen.
        let Some(before) = before.filter(|&before| within(overlay.facts.data_type(before), own))
        else {
            return false;
        };
        value = before;
    }
    false
}

/// Whether all readers of a value cast it to a type no wider than this one, directly or after
/// movements.
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
