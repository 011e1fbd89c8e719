//! Finds the layer that computes a value, and for each element of the value the row of the layer
//! that computes it.

use crate::affine::Affine;
use crate::affine::linear::elementwise::shrunk;
use crate::affine::linear::linear;
use crate::affine::propagate::node_step::rule_of;
use crate::affine::propagate::overlay::GraphOverlay;
use crate::affine::rule::At;
use crate::ir::axes::axis;
use crate::ir::{NodeId, Reader, ValueId};
use crate::recipe::Numbers;
use crate::shape::facts::Shape;

/// The largest number of operators between a layer and the value that it modulates.
pub(super) const DEPTH: usize = 16;

/// Operators that only move parts of a layer's result.
pub(super) const MOVES: [&str; 8] = [
    "Flatten",
    "Identity",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
];

/// The layer that computes a value, and the path from the layer to the value.
pub(super) struct LayerPart {
    /// The layer that computes the value, possibly together with other values.
    pub(super) layer: NodeId,
    /// The needed affine, converted to an affine of the layer's result.
    pub(super) affine: Affine,
    /// For each element of the needed shift, the sum of the constants that are added to this
    /// element on the path.
    pub(super) constants: Option<Numbers>,
    /// Descriptions of the movements on the path, from [`movement`].
    pub(super) moves: Vec<String>,
}

/// Follows an input of a node, on which the affine `wanted` is needed, back to the layer that
/// computes it. With `alone`, the values on the path must have no other reader. `None` if the
/// search ends without a layer.
pub(super) fn origin(
    overlay: &GraphOverlay,
    (node, slot): (NodeId, usize),
    wanted: &Affine,
    alone: bool,
) -> Option<LayerPart> {
    let mut trail = OriginSearch {
        overlay,
        alone,
        count: wanted.shift.len(),
        input: (node, slot),
        affine: shrunk(&overlay.at(node), slot, wanted).ok()?,
        constants: None,
        moves: vec![],
    };
    for _ in 0..DEPTH {
        if let Some(layer) = trail.step()? {
            return Some(LayerPart {
                layer,
                affine: trail.affine,
                constants: trail.constants,
                moves: trail.moves,
            });
        }
    }
    None
}

/// A search from an input of a node back to the layer that computes it.
struct OriginSearch<'s, 'a> {
    overlay: &'s GraphOverlay<'a>,
    /// Whether the values on the path must have no other reader.
    alone: bool,
    /// The number of elements of the needed shift.
    count: usize,
    /// The node and the index of its input that the search has reached.
    input: (NodeId, usize),
    /// The affine that is needed on that input.
    affine: Affine,
    constants: Option<Numbers>,
    moves: Vec<String>,
}

impl OriginSearch<'_, '_> {
    /// Passes one node. Returns the layer if the node is a layer or the Add of a layer's bias, and
    /// `Some(None)` if the search continues. `None` if the search ends without a layer.
    fn step(&mut self) -> Option<Option<NodeId>> {
        let (overlay, graph) = (self.overlay, self.overlay.graph);
        let value = overlay.source(graph.input(self.input.0, self.input.1)?);
        if self.alone && !reads_alone(overlay, value, self.input, &self.affine) {
            return None;
        }
        let (node, output) = graph.producer(value)?;
        if !overlay.is_free(node) {
            return None;
        }
        let (domain, op) = graph.domain_op(node);
        if linear((domain, op)).is_some_and(|linear| linear.is_layer()) {
            return Some(Some(node));
        }
        if (domain, op) == ("", "Add") {
            return self.past_sum(node);
        }
        if !domain.is_empty() || !MOVES.contains(&op) || overlay.is_touched(node) {
            return None;
        }
        self.past_movement(node, output)?;
        Some(None)
    }

    /// Passes an Add of a constant, with the results of [`OriginSearch::step`]. If the constant is
    /// the bias of the layer before the Add, returns this layer.
    fn past_sum(&mut self, node: NodeId) -> Option<Option<NodeId>> {
        let (overlay, graph, at) = (self.overlay, self.overlay.graph, self.overlay.at(node));
        let added = at.constant_operand()?;
        if at.shape(1 - added).ok()? != at.output_shape(0).ok()? {
            return None;
        }
        self.affine = shrunk(&at, 1 - added, &self.affine).ok()?;
        let before = graph.producer(overlay.source(at.input(1 - added).ok()?));
        if let Some((layer, _)) = before
            && overlay.bias_add(layer) == Some((node, added))
        {
            return Some(Some(layer));
        }
        // With `alone`, the search starts at a summand of a modulation. A constant that is added to
        // this summand does not change the fold, so it is not recorded.
        if !self.alone {
            if overlay.is_touched(node) {
                return None;
            }
            self.add_constants(&at, added)?;
        }
        self.input = (node, 1 - added);
        Some(None)
    }

    /// Adds the elements of a constant to `constants`, in the order of the [`marks`] that the
    /// affine has at the same indices.
    fn add_constants(&mut self, at: &At, slot: usize) -> Option<()> {
        let places = marked(&self.affine.shift, self.count)?;
        let numbers = at
            .numbers(slot)
            .ok()?
            .align(self.affine.rank())?
            .expand(self.affine.shift.shape())?;
        let numbers = numbers
            .reshape(&[numbers.len()])?
            .pick(0, places.into_iter().map(Some))?;
        self.constants = Some(match &self.constants {
            Some(others) => others + &numbers,
            None => numbers,
        });
        Some(())
    }

    fn past_movement(&mut self, node: NodeId, output: usize) -> Option<()> {
        let at = self.overlay.at(node);
        let rule = rule_of(self.overlay, node).ok()?;
        let step = rule.backward(&at, output, &self.affine).ok()?;
        let ([way], []) = (&step.ways[..], &step.folds[..]) else {
            return None;
        };
        let [(next, moved)] = &way[..] else {
            return None;
        };
        self.moves.push(movement(&at, output, moved)?);
        self.input = (node, *next);
        self.affine = moved.clone();
        Some(())
    }
}

/// Whether no input other than `own` reads places of a value that the affine `wanted` changes. If
/// `own` is the input of a Slice, other Slices may read the unchanged places.
fn reads_alone(
    overlay: &GraphOverlay,
    value: ValueId,
    own: (NodeId, usize),
    wanted: &Affine,
) -> bool {
    let graph = overlay.graph;
    overlay.readers(value).all(|(_, reader)| {
        let Reader::Node { node, input } = reader else {
            return false;
        };
        let are_slices = input == 0 && graph.is(node, "Slice") && graph.is(own.0, "Slice");
        (node, input) == own
            || !graph.reads_elements(node, input)
            || are_slices && takes_other_places(overlay, node, &wanted.shift)
    })
}

/// Whether a Slice takes only places at which `numbers` are 0.
fn takes_other_places(overlay: &GraphOverlay, slice: NodeId, numbers: &Numbers) -> bool {
    taken(overlay, slice).is_some_and(|taken| {
        let mut pairs = taken.iter().zip(numbers.iter());
        taken.shape() == numbers.shape() && pairs.all(|(&a, &b)| a == 0.0 || b == 0.0)
    })
}

/// An array that is 0 along the last axis of a Slice's input, except at the places that the Slice
/// takes. There it has the marks 1, 2, 3, ….
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

/// An array of this shape with the elements 1, 2, 3, …, in row-major order.
pub(super) fn marks(shape: &[usize]) -> Option<Numbers> {
    let places = (1..=shape.iter().product())
        .map(|place: usize| place as f64)
        .collect();
    Some(Numbers::literal(
        ndarray::ArrayD::from_shape_vec(shape, places).ok()?,
    ))
}

/// Describes a movement, except for the choice of channels by a Split or a Slice. Two movements
/// with equal descriptions treat all other axes alike. `None` if the description would be
/// incomplete.
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
    // If the marks vary along the cut axes, they already show which places are taken, so the
    // description leaves out the cut.
    let cut: Vec<usize> = cut
        .into_iter()
        .map(|one| axis(one, from.len()).ok())
        .collect::<Option<_>>()?;
    let is_marked = cut.iter().all(|&axis| before.shift.shape()[axis] > 1);
    is_marked.then(|| format!("cut {cut:?} {:?}", from.len()))
}

/// For each mark from 1 to `count`, the index of the element with this mark. `None` if a mark
/// occurs twice or is missing.
fn marked(marks: &Numbers, count: usize) -> Option<Vec<usize>> {
    let mut places = vec![None; count];
    for (place, &mark) in marks.iter().enumerate().filter(|(_, mark)| **mark != 0.0) {
        if places.get_mut(mark as usize - 1)?.replace(place).is_some() {
            return None;
        }
    }
    places.into_iter().collect()
}

/// For each mark from 1 to `count`, its index along the last axis. `None` if the array varies along
/// another axis, or if a mark occurs twice or is missing.
pub(super) fn rows(marks: &Numbers, count: usize) -> Option<Vec<usize>> {
    let is_row = marks
        .shape()
        .iter()
        .rev()
        .skip(1)
        .all(|&extent| extent == 1);
    marked(marks, count).filter(|_| is_row)
}

/// Whether all extents are known.
pub(super) fn is_known(shape: &Shape) -> bool {
    shape.iter().all(Option::is_some)
}
