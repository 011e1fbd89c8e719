//! How the places along an axis of an output read the places of each input.
//!
//! A pass asks for a node, an output and an axis, and gets an [`AxisRead`] for each input. It holds for all extents and for
//! all other axes: where place `i` of a Softmax over channels reads place `i` of the tokens, a selection of tokens may be
//! taken before it or behind it. Attributes, ranks and extents that the answer depends on are all read; where one of them is
//! not known, or nothing is known of the operator, each input is [`AxisRead::Unknown`].
//!
//! Inputs that hold shapes, axes, or repeats parametrize the operator: they are [`AxisRead::All`]. A pass that changes an
//! extent writes those of Reshape, Expand, Resize and Split anew.

mod elementwise;
mod layers;
mod movement;
mod normalizers;
mod products;

use crate::analysis::node_view::At;
use crate::refusal::Reason;
use crate::shape::facts::{extent, same};

/// How place `i` along an axis of an output reads an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AxisRead {
    /// Place `i` along this axis of the input, which has the extent of the output's axis.
    Same(usize),
    /// Every place of the input, or elements that lie along no axis which corresponds to that of the output.
    All,
    /// The operand is broadcast: it lacks the axis, or its extent there is provably 1. An input that is left out is too.
    Absent,
    /// Place `start + i · step` along this axis of the input, both not negative.
    Strided {
        /// The axis of the input.
        axis: usize,
        /// The place that place 0 reads.
        start: usize,
        /// The distance between places, at least 1.
        step: usize,
    },
    /// A place along this axis of the input that the indices at another input name.
    Picked {
        /// The axis of the input.
        axis: usize,
        /// The input that holds the indices.
        indices: usize,
    },
    /// Not known.
    Unknown,
}

/// How an axis of an output of a node reads each of its inputs, in their order.
///
/// ```
/// use unfold::analysis::Analysis;
/// use unfold::onnx::Model;
/// use unfold::ops::axes::{AxisRead, reads};
///
/// let model = Model::open("models/digits/un-dynamo.onnx")?;
/// let analysis = Analysis::new(&model)?;
/// let product = analysis.graph.order().iter().find(|&&node| analysis.graph.is(node, "MatMul"));
/// let at = analysis.at(*product.unwrap());
/// // The tokens of a product are those of its first operand; it reads the weight whole.
/// assert_eq!(reads(&at, 0, 1), [AxisRead::Same(1), AxisRead::All]);
/// assert_eq!(reads(&at, 0, 2), [AxisRead::All, AxisRead::Same(1)]);
/// # Ok::<(), unfold::error::Error>(())
/// ```
pub fn reads(at: &At, output: usize, axis: usize) -> Vec<AxisRead> {
    known_reads(at, output, axis).unwrap_or_else(|| vec![AxisRead::Unknown; at.arity()])
}

/// The reads of an axis that exists, one for each input.
fn known_reads(at: &At, output: usize, axis: usize) -> Option<Vec<AxisRead>> {
    if axis >= at.output_rank(output).ok()? {
        return None;
    }
    let reads = read(at, output, axis).ok()?;
    (reads.len() == at.arity()).then_some(reads)
}

/// The answer of the family of the operator.
fn read(at: &At, output: usize, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    let (domain, op) = at.graph.domain_op(at.node);
    if !matches!(domain, "" | "ai.onnx" | "com.microsoft") {
        return Err(at.not_linear());
    }
    let is_own = domain != "com.microsoft";
    if output > 0 {
        return match op {
            "Split" if is_own => movement::split(at, output, axis),
            "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization"
                if !is_own && output == 3 =>
            {
                normalizers::skip_sum(at, axis)
            }
            _ => Err(at.not_linear()),
        };
    }
    let family = elementwise::read(at, (is_own, op), axis)
        .or_else(|| products::read(at, (is_own, op), axis))
        .or_else(|| normalizers::read(at, (is_own, op), axis));
    let found = match family {
        None if is_own => movement::read(at, op, axis).or_else(|| layers::read(at, op, axis)),
        family => family,
    };
    found.unwrap_or_else(|| Err(at.not_linear()))
}

/// How an axis reads operands that broadcast, where this axis of each stands at its place; `None` is one that lacks it.
///
/// An operand whose extent may be 1 or that of the others reads neither: which one shows when the model runs.
fn broadcast(at: &At, places: &[Option<usize>]) -> Result<Vec<AxisRead>, Reason> {
    let mut varying = vec![];
    for (slot, place) in places.iter().enumerate() {
        if let &Some(axis) = place {
            let dim = at
                .shape(slot)?
                .get(axis)
                .cloned()
                .ok_or(Reason::UnknownShape)?;
            if extent(&dim) != Some(1) {
                varying.push((slot, axis, dim));
            }
        }
    }
    if !varying.windows(2).all(|pair| same(&pair[0].2, &pair[1].2)) {
        return Err(Reason::UnknownShape);
    }
    let mut reads = vec![AxisRead::Absent; at.arity()];
    for (slot, axis, _) in varying {
        reads[slot] = AxisRead::Same(axis);
    }
    Ok(reads)
}

/// Where an axis of a result of this rank is in an operand of `own` axes, which is aligned at the last one.
fn aligned(axis: usize, rank: usize, own: usize) -> Option<usize> {
    (axis + own).checked_sub(rank)
}

/// Where an axis of a result of this rank is in each operand that broadcasts; in none of the inputs `left_out`.
fn aligned_places(
    at: &At,
    axis: usize,
    rank: usize,
    left_out: &[usize],
) -> Result<Vec<Option<usize>>, Reason> {
    let mut places = vec![None; at.arity()];
    for (slot, place) in places.iter_mut().enumerate() {
        if at.input(slot).is_ok() && !left_out.contains(&slot) {
            *place = aligned(axis, rank, at.rank(slot)?);
        }
    }
    Ok(places)
}

/// One read for the first input, another one for all others.
fn first(at: &At, read: AxisRead, others: AxisRead) -> Vec<AxisRead> {
    let mut reads = vec![others; at.arity()];
    if let Some(first) = reads.first_mut() {
        *first = read;
    }
    reads
}

/// The axis of the result is this one of the first input; the others parametrize the operator.
fn kept(at: &At, axis: usize) -> Vec<AxisRead> {
    first(at, AxisRead::Same(axis), AxisRead::All)
}
