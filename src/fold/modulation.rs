//! A shift before a modulation, as of adaptive normalization (DiT's adaLN, FiLM).
//!
//! In `(x + t)·(a + γ) + β`, γ and β are parts of what one layer makes of a condition, `W·c + b`. The shift comes to
//! `β + t·(a + γ)`, which that layer makes as well: to the rows of β, t times those of γ are added,
//!
//! ```text
//! W_β ← W_β + diag(t)·W_γ        b_β ← b_β + t·(a + b_γ)
//! ```
//!
//! and nothing of the shift is left to compute. A scale goes on past a product of two values; where what is behind it takes
//! none, such as an activation, it goes into the other factor: `(s·x)·f = x·(s·f)`.

use super::absorb::elementwise::shrunk;
use super::absorb::linear;
use super::draft::Draft;
use super::item::Items;
use super::wave::{Wave, rule_of, step_forward};
use super::{Fold, Side, Step, backward};
use crate::affine::Affine;
use crate::graph::{NodeId, Reader, ValueId};
use crate::recipe::Numbers;

/// How many operators lie between a layer and what it modulates, at most.
const DEPTH: usize = 16;

/// What only moves the parts that a layer makes.
const MOVES: [&str; 8] =
    ["Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"];

/// What takes in a shift of a value that is modulated and read by nobody else; `None` where it is not.
pub fn shift(draft: &Draft, site: usize, value: ValueId, shift: &Numbers) -> Option<Wave> {
    let (product, slot, Affine { shift, .. }) = moved(draft, value, Affine::shift(shift.clone()))?;
    let (sum, read) = only_reader(draft, draft.graph.only_output(product)?)?;
    let is_sum = draft.graph.domain_op(sum) == ("", "Add") && is_free(draft, sum);
    (is_sum && multiplies(draft, product, slot)? && shift.len() > 1).then_some(())?;
    // So that it is known which rows of the layer each number meets.
    let (count, marks) = (shift.len(), Affine::shift(marks(shift.shape())?));
    let factor = origin(draft, (product, 1 - slot), &marks, false)?;
    let added = origin(draft, (sum, 1 - read), &marks, true)?;
    (factor.layer == added.layer && is_free(draft, added.layer)).then_some(())?;
    let (from, into) = (rows(&factor.affine.shift, count)?, rows(&added.affine.shift, count)?);
    let distance = i64::try_from(*from.first()?).ok()? - i64::try_from(*into.first()?).ok()?;
    let is_apart =
        |(&from, &into): (&usize, &usize)| into.checked_add_signed(distance as isize) == Some(from);
    let are_apart = from.iter().zip(&into).all(is_apart) && !into.iter().any(|row| from.contains(row));
    are_apart.then_some(())?;
    let layer = draft.at(added.layer);
    let linear = linear(draft.graph.domain_op(layer.node))?;
    let slots = linear.slots(&layer).ok()?;
    let is_matrix = layer.rank(slots.weight?).ok()? == 2 && linear.contracted(&layer).ok()?.len() == 1;
    is_matrix.then_some(())?;
    let placed = origin(draft, (sum, 1 - read), &Affine::shift(shift.clone()), true)?.affine.shift;
    let mut constants = vec![0.0; placed.len()];
    into.iter().zip(factor.constants).for_each(|(&row, constant)| constants[row] = constant);
    let constants = ndarray::ArrayD::from_shape_vec(placed.shape(), constants).ok()?;
    let constants = &placed * &Numbers::literal(constants);
    let affine = Affine::new(placed, constants);
    let mut wave = Wave { site, ..Wave::default() };
    wave.take(draft, Fold { node: layer.node, side: Side::Rows(distance), affine, site }).ok()?;
    let has_place = slots.bias.is_some() || draft.bias_add(layer.node).is_some();
    has_place.then_some(wave)
}

/// Lets the other factor take in a scale of a value that is multiplied and read by nobody else; `None` where it cannot.
pub fn scale(
    (draft, items): (&Draft, &Items),
    item: usize,
    wave: &mut Wave,
    value: ValueId,
    scale: &Numbers,
) -> Option<()> {
    let (product, slot, affine) = moved(draft, value, Affine::scale(scale.clone()))?;
    multiplies(draft, product, slot)?.then_some(())?;
    let wanted = shrunk(&draft.at(product), 1 - slot, &affine).ok()?;
    backward::wanted(draft, items, item, wave, (product, 1 - slot, wanted)).ok()
}

/// Whether a node multiplies one of its inputs by another value, and leaves its shape.
fn multiplies(draft: &Draft, product: NodeId, slot: usize) -> Option<bool> {
    let at = draft.at(product);
    let is_product = draft.graph.domain_op(product) == ("", "Mul") && !at.is_constant(1 - slot.min(1));
    let is_other = is_free(draft, product) && !draft.is_of_activation(product);
    Some(is_product && is_other && at.shape(slot).ok()? == at.output_shape(0).ok()?)
}

/// Past the operators that only move a value: the first that does more, which of its inputs is the value, and the affine as
/// it comes to it.
fn moved(draft: &Draft, mut value: ValueId, mut affine: Affine) -> Option<(NodeId, usize, Affine)> {
    for _ in 0..DEPTH {
        let (node, slot) = only_reader(draft, value)?;
        let (domain, op) = draft.graph.domain_op(node);
        if !domain.is_empty() || !MOVES.contains(&op) {
            return Some((node, slot, affine));
        }
        let mut inputs = vec![None; draft.graph.inputs(node).len()];
        inputs[slot] = Some(affine);
        let step = step_forward(draft, node, &inputs).ok().filter(Step::only_goes_on)?;
        let [(output, ref moved)] = step.ways.first()?[..] else { return None };
        (value, affine) = (draft.graph.output(node, output)?, moved.clone());
    }
    None
}

/// Whether a node belongs to no part, and is not going to be another one.
fn is_free(draft: &Draft, node: NodeId) -> bool {
    !draft.owned.contains_key(&node) && !draft.replaced.contains(&node)
}

/// Where a value comes from.
struct Origin {
    /// The layer that makes it, among other things.
    layer: NodeId,
    /// The affine that was wanted on it, on what the layer makes.
    affine: Affine,
    /// What is added to each of its marked places on the way.
    constants: Vec<f64>,
}

/// Goes from an input of a node back to the layer that makes it. An input that is `alone` and all that it comes from are
/// read by nobody else.
fn origin(
    draft: &Draft,
    (mut by, mut slot): (NodeId, usize),
    wanted: &Affine,
    alone: bool,
) -> Option<Origin> {
    let graph = draft.graph;
    let mut affine = shrunk(&draft.at(by), slot, wanted).ok()?;
    let mut constants = vec![0.0; wanted.shift.len()];
    for _ in 0..DEPTH {
        let value = draft.source(graph.input(by, slot)?);
        if alone && !reads_alone(draft, value, (by, slot), &affine) {
            return None;
        }
        let (node, output) = graph.producer(value)?;
        if !is_free(draft, node) {
            return None;
        }
        let at = draft.at(node);
        let (domain, op) = graph.domain_op(node);
        if linear((domain, op)).is_some_and(|linear| linear.is_layer()) {
            return Some(Origin { layer: node, affine, constants });
        }
        if (domain, op) == ("", "Add") {
            let added = [1, 0].into_iter().find(|&slot| at.is_constant(slot))?;
            affine = shrunk(&at, 1 - added, &affine).ok()?;
            let layer = graph.producer(draft.source(at.input(1 - added).ok()?)).map(|(layer, _)| layer);
            match layer.filter(|&layer| draft.bias_add(layer) == Some((node, added))) {
                Some(layer) => return Some(Origin { layer, affine, constants }),
                // What is added to what is added is of no matter.
                None if alone => {}
                None if draft.is_touched(node) => return None,
                None => {
                    let marks = &affine.shift;
                    let numbers = at.numbers(added).ok()?.align(marks.ndim())?.expand(marks.shape())?;
                    for (&mark, number) in marks.iter().zip(numbers.iter()).filter(|(mark, _)| **mark != 0.0)
                    {
                        constants[mark as usize - 1] += number;
                    }
                }
            }
            (by, slot) = (node, 1 - added);
            continue;
        }
        if !domain.is_empty() || !MOVES.contains(&op) || draft.is_touched(node) {
            return None;
        }
        let step = rule_of(draft, node).ok()?.backward(&at, output, &affine).ok()?;
        let ([way], None) = (&step.ways[..], &step.fold) else { return None };
        let [(next, moved)] = &way[..] else { return None };
        (by, slot, affine) = (node, *next, moved.clone());
    }
    None
}

/// Whether nobody but one reader has the places of a value on which something is wanted. Slices share none.
fn reads_alone(draft: &Draft, value: ValueId, own: (NodeId, usize), wanted: &Affine) -> bool {
    let is_slice = |node: NodeId| draft.graph.is(node, "Slice");
    draft.readers(value).all(|(_, reader)| match reader {
        Reader::Node { node, input } if (node, input) == own || !draft.graph.reads_elements(node, input) => {
            true
        }
        Reader::Node { node, input: 0 } if is_slice(node) && is_slice(own.0) => {
            let taken = taken(draft, node).filter(|taken| taken.shape() == wanted.shift.shape());
            let shares =
                |taken: Numbers| taken.iter().zip(wanted.shift.iter()).any(|(&a, &b)| a != 0.0 && b != 0.0);
            taken.is_some_and(|taken| !shares(taken))
        }
        _ => false,
    })
}

/// The places along the last axis that a Slice takes: no zeros.
fn taken(draft: &Draft, slice: NodeId) -> Option<Numbers> {
    let at = draft.at(slice);
    let rank = at.output_rank(0).ok()?;
    let count = at.output_extent(0, rank.checked_sub(1)?).ok()?;
    let mut shape = vec![1; rank];
    shape[rank - 1] = count;
    let affine = Affine::shift(marks(&shape)?);
    let step = rule_of(draft, slice).ok()?.backward(&at, 0, &affine).ok()?;
    let [(0, ref whole)] = step.ways.first()?[..] else { return None };
    Some(whole.shift.clone())
}

/// Each number by its place among others.
fn marks(shape: &[usize]) -> Option<Numbers> {
    let places = (1..=shape.iter().product()).map(|place: usize| place as f64).collect();
    Some(Numbers::literal(ndarray::ArrayD::from_shape_vec(shape, places).ok()?))
}

/// The only reader of the elements of a value.
fn only_reader(draft: &Draft, value: ValueId) -> Option<(NodeId, usize)> {
    let mut only = None;
    for (_, reader) in draft.readers(draft.source(value)) {
        match reader {
            Reader::Node { node, input } if !draft.graph.reads_elements(node, input) => {}
            Reader::Node { node, input } if only.is_none() => only = Some((node, input)),
            _ => return None,
        }
    }
    only
}

/// The row of each number, by its mark: one for each, along the last axis.
fn rows(marks: &Numbers, count: usize) -> Option<Vec<usize>> {
    if marks.shape().iter().rev().skip(1).any(|&extent| extent != 1) {
        return None;
    }
    let mut rows = vec![None; count];
    for (row, &mark) in marks.iter().enumerate().filter(|(_, mark)| **mark != 0.0) {
        let place = rows.get_mut(mark as usize - 1)?;
        if place.replace(row).is_some() {
            return None;
        }
    }
    rows.into_iter().collect()
}
