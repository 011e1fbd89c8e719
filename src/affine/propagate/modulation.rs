//! Folds a shift before a modulation, as in adaptive normalization (adaLN of DiT, FiLM).
//!
//! In `(x + t)·(a + γ) + β`, γ and β are rows of the result of one layer `W·c + b`, which reads a
//! condition `c`, or of two layers that read the same condition. The shift adds `t·(a + γ)` to β.
//! The layer of β can compute this sum, if t times the rows of γ are added to the rows of β:
//!
//! ```text
//! W_β ← W_β + diag(t)·W_γ        b_β ← b_β + t·(a + b_γ)
//! ```
//!
//! Then the shift needs no operator. A scale propagates past a product of two values. If no
//! operator after the product absorbs it, as before an activation, it moves into the other factor:
//! `(s·x)·f = x·(s·f)`. A scalar moves past a matrix product in the same way: `(s·Q)·Kᵀ =
//! Q·(s·K)ᵀ`.

use crate::affine::Affine;
use crate::affine::item::Items;
use crate::affine::linear::elementwise::shrunk;
use crate::affine::linear::linear;
use crate::affine::propagate::backward;
use crate::affine::propagate::layer_origin::{DEPTH, MOVES, is_known, marks, origin, rows};
use crate::affine::propagate::node_step::step_forward;
use crate::affine::propagate::overlay::GraphOverlay;
use crate::affine::propagate::propagation::Propagation;
use crate::affine::rule::{At, Fold, Side, Step};
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::operator::Category;
use crate::onnx::proto::AttributeProto;
use crate::recipe::Numbers;

/// Folds the shift of a modulated value, which must have one reader, into the layer of the summand.
/// `None` if that is impossible.
pub(crate) fn shift(
    overlay: &GraphOverlay,
    site: usize,
    value: ValueId,
    shift: &Numbers,
) -> Option<Propagation> {
    let modulation = Modulation::find(overlay, value, shift)?;
    let rows = modulation.rows()?;
    let fold = Fold {
        node: rows.layer,
        side: Side::Rows {
            of: rows.source,
            distance: rows.distance,
        },
        affine: modulation.fold_of_rows(&rows)?,
        site,
    };
    let mut propagation = Propagation::for_site(site);
    propagation.take(overlay, fold).ok()?;
    Some(propagation)
}

/// The modulation `x·f + b` of a value: a product with a factor, then a sum with a summand.
struct Modulation<'m, 'a> {
    overlay: &'m GraphOverlay<'a>,
    /// The shift of the value where it enters the product.
    shift: Numbers,
    /// The node of the product, and the input that is the factor.
    factor: (NodeId, usize),
    /// The node of the sum, and the input that is the summand.
    summand: (NodeId, usize),
}

/// The rows of the layers that compute the factor and the summand of a modulation.
struct ModulationRows {
    /// The layer that computes the summand.
    layer: NodeId,
    /// The layer that computes the factor.
    source: NodeId,
    /// The distance from a row of the summand to the corresponding row of the factor.
    distance: i64,
    /// For each element of the shift, the row of `layer` that computes the summand.
    into: Vec<usize>,
    /// The constants that are added to the factor, one for each element of the shift.
    constants: Option<Numbers>,
}

impl<'m, 'a> Modulation<'m, 'a> {
    /// Finds the modulation of a value with one reader. `None` if the value is not modulated, or if
    /// its shift is one scalar.
    fn find(overlay: &'m GraphOverlay<'a>, value: ValueId, shift: &Numbers) -> Option<Self> {
        let (product, slot, Affine { shift, .. }) =
            moved(overlay, value, Affine::shift(shift.clone()))?;
        let (sum, read) = overlay.only_reader(overlay.graph.only_output(product)?)?;
        let is_sum = overlay.graph.domain_op(sum) == ("", "Add") && overlay.is_free(sum);
        if !is_sum || !multiplies(overlay, product, slot)? || shift.len() <= 1 {
            return None;
        }
        let modulation = Modulation {
            overlay,
            shift,
            factor: (product, 1 - slot),
            summand: (sum, 1 - read),
        };
        modulation.is_aligned()?.then_some(modulation)
    }

    /// Whether the factor and the summand have equal, known shapes, and the sum has the shape of
    /// the product.
    fn is_aligned(&self) -> Option<bool> {
        let (product, sum) = (
            self.overlay.at(self.factor.0),
            self.overlay.at(self.summand.0),
        );
        let factor = product.shape(self.factor.1).ok()?;
        let summand = sum.shape(self.summand.1).ok()?;
        let is_known = is_known(&factor) && is_known(&summand);
        Some(
            is_known
                && factor == summand
                && product.output_shape(0).ok()? == sum.output_shape(0).ok()?,
        )
    }

    /// Finds the rows of the layers that compute factor and summand. `None` if there are no such
    /// layers, or if the distances between corresponding rows differ.
    fn rows(&self) -> Option<ModulationRows> {
        let overlay = self.overlay;
        // Each element of the shift gets a mark, so that the search shows from which row of the
        // layer the element comes.
        let count = self.shift.len();
        let marks = Affine::shift(marks(self.shift.shape())?);
        let factor = origin(overlay, self.factor, &marks, false)?;
        let added = origin(overlay, self.summand, &marks, true)?;
        let is_one = factor.layer == added.layer;
        let is_there = is_one || are_beside(overlay, factor.layer, added.layer)?;
        if !is_there || factor.moves != added.moves || !overlay.is_free(added.layer) {
            return None;
        }
        if !is_own_matrix(overlay, &overlay.at(added.layer))? {
            return None;
        }
        let from = rows(&factor.affine.shift, count)?;
        let into = rows(&added.affine.shift, count)?;
        let distance = common_distance(&from, &into)?;
        let overlap = is_one && into.iter().any(|row| from.contains(row));
        (!overlap).then_some(ModulationRows {
            layer: added.layer,
            source: factor.layer,
            distance,
            into,
            constants: factor.constants,
        })
    }

    /// The affine that the layer of the summand absorbs. Its scale holds, for each row of the
    /// summand, the element of the modulated shift that multiplies the row of the factor. Its shift
    /// is the product of the modulated shift and the constants that are added to the factor.
    fn fold_of_rows(&self, rows: &ModulationRows) -> Option<Affine> {
        let shift = Affine::shift(self.shift.clone());
        let factors = origin(self.overlay, self.summand, &shift, true)?
            .affine
            .shift;
        let added = match &rows.constants {
            Some(constants) => {
                let mut places = vec![None; factors.len()];
                for (place, &row) in rows.into.iter().enumerate() {
                    places[row] = Some(place);
                }
                let by_row = constants.pick(0, places)?.reshape(factors.shape())?;
                &factors * &by_row
            }
            None => Numbers::number(0.0, factors.ndim()),
        };
        Some(Affine::new(factors, added))
    }
}

/// The distance from each row of `into` to the corresponding row of `from`. `None` if the distances
/// differ.
fn common_distance(from: &[usize], into: &[usize]) -> Option<i64> {
    let distance = i64::try_from(*from.first()?).ok()? - i64::try_from(*into.first()?).ok()?;
    let mut pairs = from.iter().zip(into);
    let is_common =
        pairs.all(|(&from, &into)| into.checked_add_signed(distance as isize) == Some(from));
    is_common.then_some(distance)
}

/// Whether two layers are equal operators on one value, with weights of equal shape, and no fold
/// has changed them yet.
fn are_beside(overlay: &GraphOverlay, one: NodeId, other: NodeId) -> Option<bool> {
    let graph = overlay.graph;
    let weights = [one, other].map(|node| overlay.at(node).extents(1).ok());
    let [Some(first), Some(second)] = weights else {
        return None;
    };
    Some(
        graph.domain_op(one) == graph.domain_op(other)
            && overlay.source(graph.input(one, 0)?) == overlay.source(graph.input(other, 0)?)
            && first == second
            && attributes_of_product(graph, one) == attributes_of_product(graph, other)
            && is_unchanged(overlay, one)
            && is_unchanged(overlay, other),
    )
}

/// The attributes of a layer, except `beta` of a Gemm, which counts as part of the bias.
fn attributes_of_product(graph: &Graph, node: NodeId) -> Vec<AttributeProto> {
    let mut attributes = graph.node(node).attribute.clone();
    attributes.retain(|attribute| attribute.name() != "beta");
    attributes.sort_by(|one, other| one.name().cmp(other.name()));
    attributes
}

/// Whether a layer belongs to no part and is not replaced, and no fold changes the layer or its
/// bias Add.
fn is_unchanged(overlay: &GraphOverlay, node: NodeId) -> bool {
    let add = overlay.bias_add(node);
    overlay.is_free(node)
        && !overlay.is_touched(node)
        && !add.is_some_and(|(add, _)| overlay.is_touched(add))
}

/// Whether a layer multiplies its input by a matrix on the right. The matrix and the bias must have
/// no other readers. The layer may have no bias, but a computed value must not be its bias.
fn is_own_matrix(overlay: &GraphOverlay, layer: &At) -> Option<bool> {
    let graph = overlay.graph;
    let slots = linear(graph.domain_op(layer.node))?.slots(layer).ok()?;
    let is_product = match graph.domain_op(layer.node) {
        // The third operand of a Gemm may be a computed value.
        ("", "Gemm") => slots.bias.is_some(),
        operator => operator == ("", "MatMul"),
    };
    let own = [Some(1), slots.bias].into_iter().flatten();
    let behind = overlay
        .bias_add(layer.node)
        .and_then(|(add, slot)| graph.input(add, slot));
    let mut constants = own
        .filter_map(|slot| graph.input(layer.node, slot))
        .chain(behind);
    // A weight with other readers would have to be copied.
    let are_own = constants.all(|value| graph.readers(value).len() == 1);
    Some(is_product && are_own && slots.weight == Some(1) && layer.rank(1).ok()? == 2)
}

/// Folds the scale of a value into the other factor of the product that reads the value. `None` if
/// the value has another reader, if its reader is not a product, or if nothing absorbs the scale of
/// the factor.
pub(crate) fn scale(
    (overlay, items): (&GraphOverlay, &Items),
    item: usize,
    propagation: &mut Propagation,
    value: ValueId,
    scale: &Numbers,
) -> Option<()> {
    let (product, slot, affine) = moved(overlay, value, Affine::scale(scale.clone()))?;
    let at = overlay.at(product);
    let wanted = match overlay.graph.category(product) {
        // A scalar scale can move from one operand of a product to the other, for example from
        // queries to keys.
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

/// Whether a node multiplies the input at `slot` by another computed value, and keeps the shape of
/// that input.
fn multiplies(overlay: &GraphOverlay, product: NodeId, slot: usize) -> Option<bool> {
    let at = overlay.at(product);
    let is_product =
        overlay.graph.domain_op(product) == ("", "Mul") && !at.is_constant(1 - slot.min(1));
    let is_other = overlay.is_free(product) && !overlay.is_of_activation(product);
    Some(is_product && is_other && at.shape(slot).ok()? == at.output_shape(0).ok()?)
}

/// Follows a value and its affine past operators that only move elements. Returns the first other
/// operator, the input at which it reads the value, and the affine there. `None` if a value on the
/// path has several readers, or if a movement refuses the affine.
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
