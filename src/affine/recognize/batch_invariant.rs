//! Values that are equal for every item of a batch, computed in float64.
//!
//! An exporter may expand a constant to the batch (`P` to [B, H, T, T]). The result is not a
//! constant of the graph, because its shape is not known. Its elements are known nevertheless: this
//! module computes them for a batch of one, through operators that treat all items alike.

use std::cell::RefCell;

use tract_onnx::tract_hir::internal::{SymbolValues, TDim};

use crate::affine::recognize::View;
use crate::analysis::node_view::At;
use crate::hash::HashMap;
use crate::ir::axes::axis;
use crate::ir::{NodeId, ValueId};
use crate::onnx::operator::Category;
use crate::onnx::tensor::DataType;
use crate::recipe::{DECIDED, Numbers};
use crate::shape::facts::{Shape, extent};

/// The largest number of operators between a value and its constants.
const DEPTH: usize = 48;

/// A value with more elements is not computed.
const LARGEST: usize = 1 << 24;

/// Operators that treat all items of a batch alike, other than those that expand a value.
const COMPUTE: &[&str] = &[
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Pow",
    "Neg",
    "Exp",
    "Sqrt",
    "Reciprocal",
    "Sigmoid",
    "Softmax",
    "MatMul",
    "Gemm",
    "Gather",
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
];

/// The values that one call of [`Alike::read`] has computed, so that the call computes no value
/// twice.
type Readings = RefCell<HashMap<ValueId, Option<Numbers>>>;

/// Determines which values are equal for every item of a batch.
pub(crate) struct Alike<'v> {
    view: &'v View<'v>,
    found: RefCell<HashMap<ValueId, bool>>,
}

impl<'v> Alike<'v> {
    /// Starts with no value examined.
    pub(crate) fn new(view: &'v View<'v>) -> Self {
        Alike {
            view,
            found: RefCell::default(),
        }
    }

    /// Whether a value is equal for every item of a batch. Results of Shape operators count as
    /// equal.
    pub(crate) fn is(&self, value: ValueId) -> bool {
        self.holds(value, DEPTH)
    }

    fn holds(&self, value: ValueId, depth: usize) -> bool {
        if let Some(&holds) = self.found.borrow().get(&value) {
            return holds;
        }
        let maker = self.view.maker(value);
        let holds = self.view.constants.is_constant(value)
            || self.view.facts.value(value).is_some()
            || maker.is_some_and(|node| self.holds_behind(node, depth));
        self.found.borrow_mut().insert(value, holds);
        holds
    }

    /// Whether the results of a node are equal for every item.
    fn holds_behind(&self, node: NodeId, depth: usize) -> bool {
        let graph = self.view.graph;
        if graph.category(node) == Some(Category::Shape) {
            return true;
        }
        let inputs = graph.inputs(node);
        let treats_items_alike =
            self.view.widens(node) || graph.op(node).is_some_and(|op| COMPUTE.contains(&op));
        let mut varying = inputs.iter().flatten();
        depth > 0
            && treats_items_alike
            && !inputs.is_empty()
            && varying.all(|&input| self.holds(input, depth - 1))
    }

    /// Computes the elements of a value for one item. Axes of the batch have extent 1. `None` if
    /// the items may differ, or if an operator before the value cannot be computed.
    pub(crate) fn read(&self, value: ValueId) -> Option<Numbers> {
        self.read_within(value, DEPTH, &Readings::default())
    }

    fn read_within(&self, value: ValueId, depth: usize, made: &Readings) -> Option<Numbers> {
        if !self.is(value) {
            return None;
        }
        if let Some(numbers) = made.borrow().get(&value) {
            return numbers.clone();
        }
        let constants = self.view.constants;
        let is_constant = constants.is_constant(value);
        let is_stored = is_constant && constants.stored(value).is_some();
        let mut numbers = None;
        if !is_stored {
            numbers = self.compute(value, depth, made);
        }
        // The analysis may have the elements of a constant that cannot be computed here.
        if numbers.is_none() && is_constant {
            numbers = constants.numbers(value).ok();
        }
        made.borrow_mut().insert(value, numbers.clone());
        numbers
    }

    /// Computes a value from constants that are at most `depth` operators before it.
    fn compute(&self, value: ValueId, depth: usize, made: &Readings) -> Option<Numbers> {
        let depth = depth.checked_sub(1)?;
        let node = self.view.maker(value)?;
        (self.view.graph.only_output(node) == Some(value)).then_some(())?;
        let item = BatchItem {
            alike: self,
            at: self.view.at(node),
            depth,
            made,
        };
        item.result(&self.view.facts.shape(value)?)
    }
}

/// The computation of a node for one item of a batch.
struct BatchItem<'i, 'v> {
    alike: &'i Alike<'v>,
    at: At<'v>,
    /// The largest number of operators between the node and its constants.
    depth: usize,
    made: &'i Readings,
}

impl BatchItem<'_, '_> {
    /// Computes the result of the node for one item. `shape` is the shape for a whole batch. `None`
    /// if the operator or its attributes are not supported.
    fn result(&self, shape: &Shape) -> Option<Numbers> {
        let at = &self.at;
        let extents = one_item(shape)?;
        match at.graph.op(at.node)? {
            "Identity" => self.input(0),
            "Cast" => match at.proto().cast_to()? {
                DataType::Float | DataType::Double => self.input(0),
                _ => None,
            },
            "Transpose" => {
                let numbers = self.input(0)?;
                numbers.transpose(&at.permutation(numbers.ndim()).ok()?)
            }
            _ if at.graph.is_movement(at.node) => {
                let from = at.shape(0).ok()?;
                (leads(&from) && leads(shape)).then_some(())?;
                self.input(0)?.reshape(&extents)
            }
            "Expand" => self.input(0)?.align(extents.len())?.expand(&extents),
            "Neg" => Some(-&self.input(0)?),
            "Exp" => Some(self.input(0)?.exp()),
            "Sqrt" => Some(self.input(0)?.sqrt()),
            "Reciprocal" => power(self.input(0)?, -1.0),
            "Sigmoid" => Some(self.input(0)?.sigmoid().flushed(DECIDED)),
            "Softmax" => self.softmax(),
            op @ ("Add" | "Sub" | "Mul" | "Div") => {
                arithmetic(op, &self.input(0)?, &self.input(1)?)
            }
            "Pow" => power(self.input(0)?, self.alike.view.scalar(at.input(1).ok()?)?),
            "MatMul" => self.input(0)?.product(&self.factor()?),
            "Gemm" => self.gemm(),
            "Gather" => self.gather(),
            op @ ("ReduceSum" | "ReduceMean" | "ReduceMax") => self.reduction(op),
            _ => None,
        }
    }

    /// The elements of an input.
    fn input(&self, slot: usize) -> Option<Numbers> {
        let value = self.at.graph.input(self.at.node, slot)?;
        self.alike.read_within(value, self.depth, self.made)
    }

    /// The second factor of a matrix product. `None` if one of its last two extents is unknown: the
    /// product may then sum over all items of a batch, so one item does not determine it.
    fn factor(&self) -> Option<Numbers> {
        let shape = self.at.shape(1).ok()?;
        let mut matrix = shape.iter().rev().take(2);
        matrix.all(|dim| extent(dim).is_some()).then_some(())?;
        self.input(1)
    }

    fn softmax(&self) -> Option<Numbers> {
        let numbers = self.input(0)?;
        let along = self.at.softmax_axis(numbers.ndim()).ok()?;
        self.at.facts.extent(self.at.input(0).ok()?, along)?;
        numbers.softmax(along)
    }

    fn gemm(&self) -> Option<Numbers> {
        let (left, right) = (self.input(0)?, self.factor()?);
        let added = match self.at.graph.input(self.at.node, 2) {
            Some(_) => Some(self.input(2)?),
            None => None,
        };
        gemm(&self.at, left, right, added)
    }

    /// Computes a sum, a mean or a maximum over axes with known extents. `None` if an extent is
    /// unknown, as along the batch.
    fn reduction(&self, op: &str) -> Option<Numbers> {
        let from = self.at.shape(0).ok()?;
        let (axes, keep) = self.at.reduction(from.len()).ok()?;
        let mut extents = axes.iter().map(|&axis| extent(&from[axis]));
        extents.all(|extent| extent.is_some()).then_some(())?;
        reduced(op, self.input(0)?, &axes, keep)
    }

    /// Selects one place along an axis. If the extent is unknown, as along the batch, only place 0
    /// is allowed.
    fn gather(&self) -> Option<Numbers> {
        let at = &self.at;
        let numbers = self.input(0)?;
        let along = axis(at.attr("axis", 0).ok()?, numbers.ndim()).ok()?;
        let (&[place], 0) = (&at.ints(1).ok()??[..], at.rank(1).ok()?) else {
            return None;
        };
        let place = match at.facts.extent(at.input(0).ok()?, along) {
            Some(extent) if place < 0 => usize::try_from(place + extent as i64).ok()?,
            Some(_) => usize::try_from(place).ok()?,
            None => usize::try_from(place).ok().filter(|&place| place == 0)?,
        };
        let mut shape = numbers.shape().to_vec();
        shape.remove(along);
        numbers.pick(along, [Some(place)])?.reshape(&shape)
    }
}

/// The extents of a shape if each symbol in it is 1. `None` if an extent is unknown, or if the
/// shape has more than [`LARGEST`] elements.
fn one_item(shape: &Shape) -> Option<Vec<usize>> {
    let mut extents = vec![];
    for dim in shape.iter() {
        let dim = dim.as_ref()?;
        let mut ones = SymbolValues::default();
        for symbol in dim.symbols() {
            ones = ones.with(&symbol, 1);
        }
        extents.push(usize::try_from(dim.eval(&ones).to_i64().ok()?).ok()?);
    }
    let mut factors = extents.iter();
    let count = factors.try_fold(1usize, |count, &extent| count.checked_mul(extent))?;
    (count <= LARGEST).then_some(extents)
}

/// Computes a sum, a difference, a product or a quotient. `None` if the shapes do not broadcast.
fn arithmetic(op: &str, left: &Numbers, right: &Numbers) -> Option<Numbers> {
    left.broadcasts_with(right).then(|| match op {
        "Add" => left + right,
        "Sub" => left - right,
        "Mul" => left * right,
        _ => left / right,
    })
}

/// Raises numbers to a power. `None` if the exponent is not 2, 1, 0.5, −0.5 or −1.
fn power(numbers: Numbers, exponent: f64) -> Option<Numbers> {
    let one = Numbers::number(1.0, 0);
    match exponent {
        2.0 => Some(&numbers * &numbers),
        1.0 => Some(numbers),
        0.5 => Some(numbers.sqrt()),
        -0.5 => Some(&one / &numbers.sqrt()),
        -1.0 => Some(&one / &numbers),
        _ => None,
    }
}

/// Computes a Gemm of the factors `left` and `right` and the summand `added`. `None` if the shapes
/// do not fit.
fn gemm(at: &At, left: Numbers, right: Numbers, added: Option<Numbers>) -> Option<Numbers> {
    at.only_attributes(&["alpha", "beta", "transA", "transB"])
        .ok()?;
    let product = turned(at, "transA", left)?.product(&turned(at, "transB", right)?)?;
    let product = scaled_by(at, "alpha", &product)?;
    match added {
        Some(added) => arithmetic("Add", &product, &scaled_by(at, "beta", &added)?),
        None => Some(product),
    }
}

/// Transposes a matrix if the attribute `name` is set.
fn turned(at: &At, name: &str, matrix: Numbers) -> Option<Numbers> {
    match at.flag(name, false).ok()? {
        false => Some(matrix),
        true => matrix.turned(),
    }
}

/// Multiplies numbers by the attribute `name`, which is 1 by default.
fn scaled_by(at: &At, name: &str, numbers: &Numbers) -> Option<Numbers> {
    Some(numbers * &Numbers::number(at.attr_float(name, 1.0).ok()?, 0))
}

/// Reduces numbers along axes to their sum, mean or maximum.
fn reduced(op: &str, mut numbers: Numbers, axes: &[usize], keep: bool) -> Option<Numbers> {
    for &axis in axes.iter().rev() {
        let count = *numbers.shape().get(axis)?;
        numbers = match op {
            "ReduceSum" => numbers.sum(axis)?,
            "ReduceMean" => &numbers.sum(axis)? / &Numbers::number(count as f64, 0),
            _ => numbers.largest(axis)?,
        };
        if !keep {
            let mut shape = numbers.shape().to_vec();
            shape.remove(axis);
            numbers = numbers.reshape(&shape)?;
        }
    }
    Some(numbers)
}

/// Whether all extents except the first are known, so that the items lie one after another.
fn leads(shape: &Shape) -> bool {
    shape
        .iter()
        .skip(1)
        .all(|dim| dim.as_ref().is_some_and(|dim: &TDim| dim.to_i64().is_ok()))
}
