//! A shift before a modulation, as of adaptive normalization (DiT's adaLN, FiLM).
//!
//! In `(x + t)·(a + γ) + β`, γ and β are parts of what one layer makes of a condition, `W·c + b`, or two layers make of the
//! same. The shift comes to `β + t·(a + γ)`, which the layer of β makes as well: to its rows, t times those of γ are added,
//!
//! ```text
//! W_β ← W_β + diag(t)·W_γ        b_β ← b_β + t·(a + b_γ)
//! ```
//!
//! and nothing of the shift is left to compute. A scale propagates past a product of two values;
//! where no operator behind absorbs it, as before an activation, it moves into the other factor:
//! `(s·x)·f = x·(s·f)`; and a scalar past a matrix product, `(s·Q)·Kᵀ = Q·(s·K)ᵀ`.

use crate::affine::Affine;
use crate::affine::fold::{At, Fold, Side, Step};
use crate::affine::item::Items;
use crate::affine::linear::elementwise::shrunk;
use crate::affine::linear::linear;
use crate::affine::propagate::backward;
use crate::affine::propagate::node_step::{rule_of, step_forward};
use crate::affine::propagate::overlay::GraphOverlay;
use crate::affine::propagate::propagation::Propagation;
use crate::ir::axes::axis;
use crate::ir::{NodeId, Reader, ValueId};
use crate::onnx::operator::Category;
use crate::recipe::Numbers;
use crate::shape::facts::Shape;

/// The largest number of operators between a layer and the value that it modulates.
const DEPTH: usize = 16;

/// Operators that only move the parts of a layer's result.
const MOVES: [&str; 8] = [
    "Flatten",
    "Identity",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
];

/// The fold of a shift of a modulated value with one reader; `None` where the value is not
/// modulated.
pub fn shift(
    overlay: &GraphOverlay,
    site: usize,
    value: ValueId,
    shift: &Numbers,
) -> Option<Propagation> {
    let (product, slot, Affine { shift, .. }) =
        moved(overlay, value, Affine::shift(shift.clone()))?;
    let (sum, read) = overlay.only_reader(overlay.graph.only_output(product)?)?;
    let is_sum = overlay.graph.domain_op(sum) == ("", "Add") && overlay.is_free(sum);
    (is_sum && multiplies(overlay, product, slot)? && shift.len() > 1).then_some(())?;
    // So that it is known which rows of the layer each number meets.
    let (count, marks) = (shift.len(), Affine::shift(marks(shift.shape())?));
    // The summand lies along the same axes as the factor.
    let known =
        |node: NodeId, slot: usize| Some(overlay.at(node).shape(slot).ok()?).filter(is_known);
    let alike = known(product, 1 - slot)? == known(sum, 1 - read)?
        && overlay.at(product).output_shape(0).ok()? == overlay.at(sum).output_shape(0).ok()?;
    let factor = origin(overlay, (product, 1 - slot), &marks, false).filter(|_| alike)?;
    let added = origin(overlay, (sum, 1 - read), &marks, true)?;
    let is_one = factor.layer == added.layer;
    let is_there = is_one || are_beside(overlay, factor.layer, added.layer)?;
    (is_there && factor.moves == added.moves && overlay.is_free(added.layer)).then_some(())?;
    let (from, into) = (
        rows(&factor.affine.shift, count)?,
        rows(&added.affine.shift, count)?,
    );
    let distance = i64::try_from(*from.first()?).ok()? - i64::try_from(*into.first()?).ok()?;
    let is_apart =
        |(&from, &into): (&usize, &usize)| into.checked_add_signed(distance as isize) == Some(from);
    let shares = is_one && into.iter().any(|row| from.contains(row));
    (from.iter().zip(&into).all(is_apart) && !shares).then_some(())?;
    let layer = overlay.at(added.layer);
    is_own_matrix(overlay, &layer)?.then_some(())?;
    let placed = origin(
        overlay,
        (sum, 1 - read),
        &Affine::shift(shift.clone()),
        true,
    )?
    .affine
    .shift;
    let constants = match factor.constants {
        Some(constants) => {
            let mut places = vec![None; placed.len()];
            into.iter()
                .enumerate()
                .for_each(|(place, &row)| places[row] = Some(place));
            &placed * &constants.pick(0, places)?.reshape(placed.shape())?
        }
        None => Numbers::number(0.0, placed.ndim()),
    };
    let affine = Affine::new(placed, constants);
    let mut propagation = Propagation {
        site,
        ..Propagation::default()
    };
    let side = Side::Rows {
        of: factor.layer,
        distance,
    };
    propagation
        .take(
            overlay,
            Fold {
                node: layer.node,
                side,
                affine,
                site,
            },
        )
        .ok()?;
    Some(propagation)
}

/// Whether two layers do the same with one value, by weights as large, and nothing is decided of either yet.
fn are_beside(overlay: &GraphOverlay, one: NodeId, other: NodeId) -> Option<bool> {
    let graph = overlay.graph;
    let read = |node: NodeId| Some(overlay.source(graph.input(node, 0)?));
    let weight = |node: NodeId| overlay.at(node).extents(1).ok();
    // The multiplier of the bias is part of the bias.
    let attributes = |node: NodeId| {
        let mut attributes = graph.node(node).attribute.clone();
        attributes.retain(|attribute| attribute.name() != "beta");
        attributes.sort_by(|one, other| one.name().cmp(other.name()));
        attributes
    };
    let is_open = |node: NodeId| {
        let add = overlay.bias_add(node);
        overlay.is_free(node)
            && !overlay.is_touched(node)
            && !add.is_some_and(|(add, _)| overlay.is_touched(add))
    };
    Some(
        graph.domain_op(one) == graph.domain_op(other)
            && read(one)? == read(other)?
            && weight(one)? == weight(other)?
            && attributes(one) == attributes(other)
            && is_open(one)
            && is_open(other),
    )
}

/// Whether a layer has a matrix on the right without other readers, and a bias without other
/// readers, or room for one.
fn is_own_matrix(overlay: &GraphOverlay, layer: &At) -> Option<bool> {
    let graph = overlay.graph;
    let slots = linear(graph.domain_op(layer.node))?.slots(layer).ok()?;
    let is_product = match graph.domain_op(layer.node) {
        // Its third operand may be a computed value.
        ("", "Gemm") => slots.bias.is_some(),
        operator => operator == ("", "MatMul"),
    };
    let own = |slot: usize| graph.input(layer.node, slot);
    let behind = overlay
        .bias_add(layer.node)
        .and_then(|(add, slot)| graph.input(add, slot));
    // Where others have the weight too, there would have to be a second one.
    let constants = [Some(1), slots.bias]
        .into_iter()
        .flatten()
        .filter_map(own)
        .chain(behind);
    let are_own = constants
        .into_iter()
        .all(|value| graph.readers(value).len() == 1);
    Some(is_product && are_own && slots.weight == Some(1) && layer.rank(1).ok()? == 2)
}

fn is_known(shape: &Shape) -> bool {
    shape.iter().all(Option::is_some)
}

/// Folds the scale of a multiplied value with one reader into the other factor; `None` where that
/// is impossible.
pub fn scale(
    (overlay, items): (&GraphOverlay, &Items),
    item: usize,
    propagation: &mut Propagation,
    value: ValueId,
    scale: &Numbers,
) -> Option<()> {
    let (product, slot, affine) = moved(overlay, value, Affine::scale(scale.clone()))?;
    let at = overlay.at(product);
    let wanted = match overlay.graph.category(product) {
        // Queries that others read as well, or that come from outside, leave their scale to the keys.
        Some(Category::MatrixProduct)
            if slot < 2 && affine.is_number() && overlay.is_free(product) =>
        {
            Affine::scale(affine.scale.reshape(&vec![1; at.rank(1 - slot).ok()?])?)
        }
        _ => {
            multiplies(overlay, product, slot)?.then_some(())?;
            shrunk(&at, 1 - slot, &affine).ok()?
        }
    };
    backward::wanted_by_all(
        overlay,
        items,
        item,
        propagation,
        (product, 1 - slot, wanted),
    )
    .ok()
}

/// Whether a node multiplies one of its inputs by another value, and leaves its shape.
fn multiplies(overlay: &GraphOverlay, product: NodeId, slot: usize) -> Option<bool> {
    let at = overlay.at(product);
    let is_product =
        overlay.graph.domain_op(product) == ("", "Mul") && !at.is_constant(1 - slot.min(1));
    let is_other = overlay.is_free(product) && !overlay.is_of_activation(product);
    Some(is_product && is_other && at.shape(slot).ok()? == at.output_shape(0).ok()?)
}

/// Past the operators that only move a value: the first that does more, which of its inputs is the value, and the affine as
/// it comes to it.
fn moved(
    overlay: &GraphOverlay,
    mut value: ValueId,
    mut affine: Affine,
) -> Option<(NodeId, usize, Affine)> {
    for _ in 0..DEPTH {
        let (node, slot) = overlay.only_reader(value)?;
        let (domain, op) = overlay.graph.domain_op(node);
        if !domain.is_empty() || !MOVES.contains(&op) {
            return Some((node, slot, affine));
        }
        let mut inputs = vec![None; overlay.graph.inputs(node).len()];
        inputs[slot] = Some(affine);
        let step = step_forward(overlay, node, &inputs)
            .ok()
            .filter(Step::only_passes_on)?;
        let [(output, ref moved)] = step.ways.first()?[..] else {
            return None;
        };
        (value, affine) = (overlay.graph.output(node, output)?, moved.clone());
    }
    None
}

/// Where a value comes from.
struct LayerPart {
    /// The layer that makes it, among other things.
    layer: NodeId,
    /// The affine that was wanted on it, on what the layer makes.
    affine: Affine,
    /// The constant added at each of its marked places on the path.
    constants: Option<Numbers>,
    /// How it is moved on the way, but for which channels it is.
    moves: Vec<String>,
}

/// Goes from an input of a node back to the layer that makes it. An input that is `alone` and all that it comes from are
/// read by nobody else.
fn origin(
    overlay: &GraphOverlay,
    (mut by, mut slot): (NodeId, usize),
    wanted: &Affine,
    alone: bool,
) -> Option<LayerPart> {
    let graph = overlay.graph;
    let mut affine = shrunk(&overlay.at(by), slot, wanted).ok()?;
    let (mut constants, mut moves) = (None, vec![]);
    for _ in 0..DEPTH {
        let value = overlay.source(graph.input(by, slot)?);
        if alone && !reads_alone(overlay, value, (by, slot), &affine) {
            return None;
        }
        let (node, output) = graph.producer(value)?;
        if !overlay.is_free(node) {
            return None;
        }
        let at = overlay.at(node);
        let (domain, op) = graph.domain_op(node);
        if linear((domain, op)).is_some_and(|linear| linear.is_layer()) {
            return Some(LayerPart {
                layer: node,
                affine,
                constants,
                moves,
            });
        }
        if (domain, op) == ("", "Add") {
            let added = at.constant_operand()?;
            if at.shape(1 - added).ok()? != at.output_shape(0).ok()? {
                return None;
            }
            affine = shrunk(&at, 1 - added, &affine).ok()?;
            let layer = graph
                .producer(overlay.source(at.input(1 - added).ok()?))
                .map(|(layer, _)| layer);
            match layer.filter(|&layer| overlay.bias_add(layer) == Some((node, added))) {
                Some(layer) => {
                    return Some(LayerPart {
                        layer,
                        affine,
                        constants,
                        moves,
                    });
                }
                // A summand of the summand does not matter.
                None if alone => {}
                None if overlay.is_touched(node) => return None,
                None => {
                    let there = marked(&affine.shift, wanted.shift.len())?;
                    let numbers = at
                        .numbers(added)
                        .ok()?
                        .align(affine.rank())?
                        .expand(affine.shift.shape())?;
                    let numbers = numbers
                        .reshape(&[numbers.len()])?
                        .pick(0, there.into_iter().map(Some))?;
                    constants = Some(
                        constants.map_or(numbers.clone(), |others: Numbers| &others + &numbers),
                    );
                }
            }
            (by, slot) = (node, 1 - added);
            continue;
        }
        if !domain.is_empty() || !MOVES.contains(&op) || overlay.is_touched(node) {
            return None;
        }
        let step = rule_of(overlay, node)
            .ok()?
            .backward(&at, output, &affine)
            .ok()?;
        let ([way], []) = (&step.ways[..], &step.folds[..]) else {
            return None;
        };
        let [(next, moved)] = &way[..] else {
            return None;
        };
        moves.push(movement(&at, output, moved)?);
        (by, slot, affine) = (node, *next, moved.clone());
    }
    None
}

/// Whether nobody but one reader has the places of a value on which something is wanted. Slices share none.
fn reads_alone(
    overlay: &GraphOverlay,
    value: ValueId,
    own: (NodeId, usize),
    wanted: &Affine,
) -> bool {
    let is_slice = |node: NodeId| overlay.graph.is(node, "Slice");
    overlay.readers(value).all(|(_, reader)| match reader {
        Reader::Node { node, input }
            if (node, input) == own || !overlay.graph.reads_elements(node, input) =>
        {
            true
        }
        Reader::Node { node, input: 0 } if is_slice(node) && is_slice(own.0) => {
            let taken = taken(overlay, node).filter(|taken| taken.shape() == wanted.shift.shape());
            let shares = |taken: Numbers| {
                taken
                    .iter()
                    .zip(wanted.shift.iter())
                    .any(|(&a, &b)| a != 0.0 && b != 0.0)
            };
            taken.is_some_and(|taken| !shares(taken))
        }
        _ => false,
    })
}

/// The places along the last axis that a Slice takes: no zeros.
fn taken(overlay: &GraphOverlay, slice: NodeId) -> Option<Numbers> {
    let at = overlay.at(slice);
    let rank = at.output_rank(0).ok()?;
    let count = at.output_extent(0, rank.checked_sub(1)?).ok()?;
    let mut shape = vec![1; rank];
    shape[rank - 1] = count;
    let affine = Affine::shift(marks(&shape)?);
    let step = rule_of(overlay, slice)
        .ok()?
        .backward(&at, 0, &affine)
        .ok()?;
    let [(0, ref whole)] = step.ways.first()?[..] else {
        return None;
    };
    Some(whole.shift.clone())
}

/// Each number by its place among others.
fn marks(shape: &[usize]) -> Option<Numbers> {
    let places = (1..=shape.iter().product())
        .map(|place: usize| place as f64)
        .collect();
    Some(Numbers::literal(
        ndarray::ArrayD::from_shape_vec(shape, places).ok()?,
    ))
}

/// The effect of a movement apart from its choice of channels: two movements with equal effect
/// treat all other axes alike. `None` where that is unknown.
fn movement(at: &At, output: usize, before: &Affine) -> Option<String> {
    let (op, from, to) = (
        at.proto().op_type(),
        at.shape(0).ok()?,
        at.output_shape(output).ok()?,
    );
    let cut = match op {
        "Split" => vec![at.attr("axis", 0).ok()?],
        "Slice" => at.list("axes").ok()??,
        _ => {
            let how = match op {
                "Transpose" => format!("{:?}", at.permutation(from.len()).ok()?),
                "Unsqueeze" | "Squeeze" => format!("{:?}", at.list("axes").ok()??),
                "Flatten" => at.attr("axis", 1).ok()?.to_string(),
                "Reshape" if is_known(&from) && is_known(&to) => String::new(),
                "Identity" => return Some(String::new()),
                _ => return None,
            };
            return Some(format!("{op} {how} {from:?} {to:?}"));
        }
    };
    // Along these axes every place has its mark.
    let cut: Vec<usize> = cut
        .into_iter()
        .map(|one| axis(one, from.len()).ok())
        .collect::<Option<_>>()?;
    let is_marked = cut.iter().all(|&axis| before.shift.shape()[axis] > 1);
    is_marked.then(|| format!("cut {cut:?} {:?}", from.len()))
}

/// The place of each number, by its mark: one for each.
fn marked(marks: &Numbers, count: usize) -> Option<Vec<usize>> {
    let mut places = vec![None; count];
    for (place, &mark) in marks.iter().enumerate().filter(|(_, mark)| **mark != 0.0) {
        if places.get_mut(mark as usize - 1)?.replace(place).is_some() {
            return None;
        }
    }
    places.into_iter().collect()
}

/// The row of each number, by its mark, along the last axis.
fn rows(marks: &Numbers, count: usize) -> Option<Vec<usize>> {
    let is_row = marks
        .shape()
        .iter()
        .rev()
        .skip(1)
        .all(|&extent| extent == 1);
    marked(marks, count).filter(|_| is_row)
}
