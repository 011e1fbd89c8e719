//! Finds the places of scores that a softmax counts as −∞ for every input, because a mask hides
//! them.
//!
//! A softmax gives a score of −∞ the weight 0, and no other weight depends on this score. So a
//! product that computes only places of −∞ need not run. A mask is added to the scores, or selects
//! between them and −∞. The mask may be stored, or computed from extents and stored numbers.
//!
//! The lowest finite number of a type counts as −∞ if, for every input, the mask adds 0 to another
//! place of its row. Then the exponential of the difference is 0. Other large negative numbers do
//! not count, because scores may be as large.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use crate::analysis::Analysis;
use crate::analysis::broadcast::LARGEST;
use crate::analysis::node_view::At;
use crate::ir::{NodeId, ValueId};
use crate::onnx::operator::Category;
use crate::onnx::tensor::DataType;
use crate::ops::axes::{self, AxisRead};
use crate::shape::facts::extent;

/// The largest number of nodes between the scores and the product that computes them.
const MOST_NODES: usize = 32;

/// Flag: the element is −∞, or small enough to count as −∞.
const HIDDEN: u8 = 1;
/// Flag: for every input, the element is finite and above the lowest number.
const FINITE: u8 = 2;
/// Flag: the mask adds 0 to the score.
const ZERO: u8 = 4;

/// Operators that move or copy the elements of their first operand without changing their values.
const MOVEMENTS: &[&str] = &[
    "Cast",
    "Dropout",
    "Expand",
    "Flatten",
    "Identity",
    "Reshape",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
];

/// For each query, the smallest range of keys that contains every key that is not hidden. `None` if
/// no key is hidden, or if an extent is unknown or too large.
///
/// # Errors
/// The reason why places that seem hidden must be computed.
pub(crate) fn visible_keys(
    analysis: &Analysis,
    scores: ValueId,
    [queries, keys]: [usize; 2],
) -> Result<Option<Vec<Range<usize>>>, String> {
    let facts = &analysis.facts;
    let extents = [queries, keys].map(|axis| facts.extent(scores, axis));
    let [Some(rows), Some(columns)] = extents else {
        return Ok(None);
    };
    if rows.saturating_mul(columns) > LARGEST {
        return Ok(None);
    }
    let search = MaskSearch {
        analysis,
        has_lowest: Cell::new(false),
        unknown: RefCell::new(None),
    };
    let grid = search.grid(scores, [Some(queries), Some(keys)], 0);
    if !grid.places.iter().any(|place| place & HIDDEN != 0) {
        return Ok(None);
    }
    let kept = match search.has_lowest.get() {
        true => FINITE | ZERO,
        false => FINITE,
    };
    let mut visible = Vec::with_capacity(rows);
    for row in 0..rows {
        let places = (0..columns).map(|column| grid.at(row, column));
        if !places.clone().any(|place| place & kept == kept) {
            return Err(search.refusal(row));
        }
        let is_visible = |place: u8| place & HIDDEN == 0;
        let first = places.clone().position(is_visible).unwrap_or(0);
        let last = places.rev().position(is_visible).unwrap_or(0);
        visible.push(first..columns - last);
    }
    let hides = visible.iter().any(|keys| keys.len() < columns);
    Ok(hides.then_some(visible))
}

/// The flags of the places along two axes of a value. They hold for all places along the other
/// axes.
struct Grid {
    /// The extents of the two axes. An extent is 1 if the value does not vary along the axis.
    extents: [usize; 2],
    /// The flags of the places, in row-major order.
    places: Vec<u8>,
}

impl Grid {
    /// A grid with the same flags at all places.
    fn constant(flags: u8) -> Self {
        Grid {
            extents: [1, 1],
            places: vec![flags],
        }
    }

    /// The flags of a place. An axis of extent 1 is broadcast.
    fn at(&self, row: usize, column: usize) -> u8 {
        let [rows, columns] = self.extents;
        let row = if rows == 1 { 0 } else { row };
        let column = if columns == 1 { 0 } else { column };
        self.places[row * columns + column]
    }

    /// Combines the flags of several grids place by place.
    fn combined<const N: usize>(grids: [&Grid; N], combine: fn([u8; N]) -> u8) -> Grid {
        let extent = |axis: usize| grids.iter().map(|grid| grid.extents[axis]).max();
        let [rows, columns] = [0, 1].map(|axis| extent(axis).unwrap_or(1));
        let mut places = Vec::with_capacity(rows * columns);
        for row in 0..rows {
            for column in 0..columns {
                places.push(combine(grids.map(|grid| grid.at(row, column))));
            }
        }
        Grid {
            extents: [rows, columns],
            places,
        }
    }
}

/// The axes of queries and of keys in a value. `None` for an axis along which the value does not
/// vary.
type MaskAxes = [Option<usize>; 2];

struct MaskSearch<'s> {
    analysis: &'s Analysis<'s>,
    /// Whether a place holds the lowest finite number of its type.
    has_lowest: Cell<bool>,
    /// A value that may be −∞ for some inputs.
    unknown: RefCell<Option<ValueId>>,
}

impl MaskSearch<'_> {
    /// The flags of a value. If nothing is known about the value, no flag is set, and the value is
    /// recorded in `unknown`.
    fn grid(&self, value: ValueId, axes: MaskAxes, depth: usize) -> Grid {
        if self.analysis.constants.is_constant(value) {
            return self
                .constant(value, axes)
                .unwrap_or_else(|| self.unknown(value));
        }
        let found = self.masked(value, axes, depth);
        found.unwrap_or_else(|| match self.is_score(value, depth) {
            true => Grid::constant(FINITE | ZERO),
            false => self.unknown(value),
        })
    }

    fn unknown(&self, value: ValueId) -> Grid {
        self.unknown.borrow_mut().get_or_insert(value);
        Grid::constant(0)
    }

    /// The flags of a value that a node computes from masks. `None` for other values.
    fn masked(&self, value: ValueId, axes: MaskAxes, depth: usize) -> Option<Grid> {
        let (node, _) = self.analysis.graph.producer(value)?;
        let at = self.analysis.at(node);
        let op = self
            .analysis
            .graph
            .op(node)
            .filter(|_| depth < MOST_NODES)?;
        match op {
            "Add" => {
                let [one, other] = [0, 1].map(|slot| self.operand(&at, slot, axes, depth));
                Some(Grid::combined([&one?, &other?], |[one, other]| {
                    one & other & (FINITE | ZERO) | (one | other) & HIDDEN
                }))
            }
            "Where" => {
                let condition = self.condition(&at, axes)?;
                let [one, other] = [1, 2].map(|slot| self.operand(&at, slot, axes, depth));
                Some(Grid::combined([&condition, &one?, &other?], selected))
            }
            op if MOVEMENTS.contains(&op) => self.operand(&at, 0, axes, depth),
            _ => None,
        }
    }

    /// The flags of an operand, along the axes that correspond to `axes` of the node's output.
    /// `None` if these axes are unknown.
    fn operand(&self, at: &At, slot: usize, axes: MaskAxes, depth: usize) -> Option<Grid> {
        let axes = operand_axes(at, slot, axes)?;
        Some(self.grid(at.input(slot).ok()?, axes, depth + 1))
    }

    /// The flags of a float constant. `None` if it cannot be read.
    fn constant(&self, value: ValueId, axes: MaskAxes) -> Option<Grid> {
        let lowest = self
            .analysis
            .facts
            .data_type(value)
            .and_then(DataType::lowest)?;
        let shape = self.shape(value)?;
        let numbers = self.analysis.constants.read(value).ok()?;
        let flags = numbers.iter().map(|&number| match number {
            f64::NEG_INFINITY => HIDDEN,
            0.0 => FINITE | ZERO,
            _ if number == lowest => {
                self.has_lowest.set(true);
                HIDDEN
            }
            _ if number.is_finite() => FINITE,
            _ => 0,
        });
        Some(reduced(&shape, axes, flags))
    }

    /// For each place, whether the condition of a Where holds or fails at all places along the
    /// other axes. A place has no flag if the condition holds there only for some of the other
    /// places, or if the condition is not constant.
    fn condition(&self, at: &At, axes: MaskAxes) -> Option<Grid> {
        let value = at.input(0).ok()?;
        if !self.analysis.constants.is_constant(value) {
            self.unknown(value);
            return Some(Grid::constant(0));
        }
        let axes = operand_axes(at, 0, axes)?;
        let shape = self.shape(value)?;
        let truths = self.analysis.constants.ints(value)?;
        let flags = truths
            .iter()
            .map(|&truth| if truth != 0 { HOLDS } else { FAILS });
        Some(reduced(&shape, axes, flags))
    }

    /// The extents of a value. `None` if it is large, or if an extent is unknown.
    fn shape(&self, value: ValueId) -> Option<Vec<usize>> {
        let shape = self.analysis.facts.shape(value)?;
        let extents: Vec<usize> = shape.iter().map(extent).collect::<Option<_>>()?;
        let mut counted = extents.iter();
        let count = counted.try_fold(1_usize, |all, &extent| all.checked_mul(extent))?;
        (count <= LARGEST).then_some(extents)
    }

    /// Whether a value is computed by a matrix product, and afterwards only scaled, moved, or added
    /// to finite constants. Such a value is finite if the inputs are finite.
    fn is_score(&self, value: ValueId, depth: usize) -> bool {
        let graph = &self.analysis.graph;
        let Some((node, _)) = graph.producer(value).filter(|_| depth < MOST_NODES) else {
            return false;
        };
        match graph.category(node) {
            Some(Category::MatrixProduct | Category::Layer) => true,
            Some(Category::Arithmetic) => {
                let mut operands = graph.inputs(node).iter().flatten();
                operands.all(|&operand| self.is_tame(operand, depth + 1))
            }
            Some(Category::Movement | Category::Selection) => self.is_first_score(node, depth),
            _ => {
                matches!(graph.op(node), Some("Cast" | "Dropout" | "Einsum" | "Tanh"))
                    && self.is_first_score(node, depth)
            }
        }
    }

    fn is_first_score(&self, node: NodeId, depth: usize) -> bool {
        let first = self.analysis.graph.input(node, 0);
        first.is_some_and(|first| self.is_tame(first, depth + 1))
    }

    /// Whether a value is a score, or a constant of finite numbers above the lowest number.
    fn is_tame(&self, value: ValueId, depth: usize) -> bool {
        if !self.analysis.constants.is_constant(value) {
            return self.is_score(value, depth);
        }
        let flags = self.constant(value, [None, None]);
        flags.is_some_and(|flags| flags.places == [FINITE] || flags.places == [FINITE | ZERO])
    }

    /// The reason why a row is not known to have a visible key.
    fn refusal(&self, row: usize) -> String {
        match *self.unknown.borrow() {
            Some(value) => format!(
                "its mask depends on `{}`, which may hide all keys of a query",
                self.analysis.graph.value_name(value)
            ),
            None => format!("its mask leaves query {row} no key"),
        }
    }
}

/// A condition holds at a place.
const HOLDS: u8 = 1;
/// A condition fails at a place.
const FAILS: u8 = 2;

/// The flags of a selection. If the condition is unknown, the result has the flags that both
/// operands have.
fn selected([condition, one, other]: [u8; 3]) -> u8 {
    match condition {
        HOLDS => one,
        FAILS => other,
        _ => one & other,
    }
}

/// The axes of an operand that correspond to axes of a node's output. `None` if they are unknown.
fn operand_axes(at: &At, slot: usize, axes: MaskAxes) -> Option<MaskAxes> {
    let mut own = [None, None];
    for (own, axis) in own.iter_mut().zip(axes) {
        let Some(axis) = axis else { continue };
        *own = match axes::reads(at, 0, axis).get(slot)? {
            AxisRead::Same(axis) => Some(*axis),
            AxisRead::Absent => None,
            _ => return None,
        };
    }
    Some(own)
}

/// The flags that all elements at a place have in common, from the flags of all elements in
/// row-major order.
fn reduced(shape: &[usize], axes: MaskAxes, flags: impl Iterator<Item = u8>) -> Grid {
    let extents = axes.map(|axis| axis.map_or(1, |axis| shape[axis]));
    let strides = axes.map(|axis| axis.map_or(1, |axis| shape[axis + 1..].iter().product()));
    let mut places = vec![u8::MAX; extents[0] * extents[1]];
    for (index, flags) in flags.enumerate() {
        let [row, column] = [0, 1].map(|axis: usize| index / strides[axis] % extents[axis]);
        places[row * extents[1] + column] &= flags;
    }
    Grid { extents, places }
}
