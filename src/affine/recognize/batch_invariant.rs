//! Values that are the same for every item of a batch, computed in float64.
//!
//! A constant that an exporter widens to the batch (`P` expanded to [B, H, T, T]) is no constant of
//! the graph, because its shape is not known. Its numbers are: they are computed for a batch of one,
//! through operators that treat all items alike.

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

/// How far from the value its constants may lie.
const DEPTH: usize = 48;

/// Values of more elements than this are not computed.
const LARGEST: usize = 1 << 24;

/// Operators besides those that widen, which treat all items of a batch alike.
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

/// The constants read so far for one value, so that shared ones are computed once.
type Readings = RefCell<HashMap<ValueId, Option<Numbers>>>;

/// The values that are equal for every item of a batch.
pub struct Alike<'v> {
    view: &'v View<'v>,
    known: RefCell<HashMap<ValueId, bool>>,
}

impl<'v> Alike<'v> {
    /// Nothing is computed yet.
    pub fn new(view: &'v View<'v>) -> Self {
        Alike {
            view,
            known: RefCell::default(),
        }
    }

    /// Whether the value is the same for every item of a batch, or only a shape.
    pub fn is(&self, value: ValueId) -> bool {
        self.holds(value, DEPTH)
    }

    fn holds(&self, value: ValueId, depth: usize) -> bool {
        if let Some(&known) = self.known.borrow().get(&value) {
            return known;
        }
        let holds = self.view.constants.is_constant(value)
            || self.view.facts.value(value).is_some()
            || self.view.maker(value).is_some_and(|node| {
                let graph = self.view.graph;
                let inputs = graph.inputs(node);
                let computes = || graph.op(node).is_some_and(|op| COMPUTE.contains(&op));
                graph.category(node) == Some(Category::Shape)
                    || depth > 0
                        && (self.view.widens(node) || computes())
                        && !inputs.is_empty()
                        && inputs
                            .iter()
                            .flatten()
                            .all(|&input| self.holds(input, depth - 1))
            });
        self.known.borrow_mut().insert(value, holds);
        holds
    }

    /// The elements for one item: axes of the batch have extent 1.
    pub fn read(&self, value: ValueId) -> Option<Numbers> {
        self.read_within(value, DEPTH, &Readings::default())
    }

    fn read_within(&self, value: ValueId, depth: usize, made: &Readings) -> Option<Numbers> {
        if !self.is(value) {
            return None;
        }
        if let Some(known) = made.borrow().get(&value) {
            return known.clone();
        }
        let own = || self.view.constants.numbers(value).ok();
        let constant = self.view.constants.is_constant(value);
        let is_stored = constant && self.view.constants.stored(value).is_some();
        let computed = || self.compute(value, depth.checked_sub(1)?, made);
        // The graph's own constants may know a value that this analysis does not.
        let read = if is_stored {
            own()
        } else {
            computed().or_else(|| constant.then(own).flatten())
        };
        made.borrow_mut().insert(value, read.clone());
        read
    }

    /// The result of a node whose constants are at most `depth` steps away.
    fn compute(&self, value: ValueId, depth: usize, made: &Readings) -> Option<Numbers> {
        let view = self.view;
        let node = view
            .maker(value)
            .filter(|&node| view.graph.only_output(node) == Some(value))?;
        let at = view.at(node);
        let input = |slot: usize| self.read_within(view.graph.input(node, slot)?, depth, made);
        let shape = view.facts.shape(value)?;
        let extents = self.one_item(&shape)?;
        // A sum over the items does not follow from one item.
        let factor = || {
            let shape = at.shape(1).ok()?;
            shape
                .iter()
                .rev()
                .take(2)
                .all(|dim| extent(dim).is_some())
                .then(|| input(1))?
        };
        match view.graph.op(node)? {
            "Identity" => input(0),
            "Cast" => match at.proto().cast_to()? {
                DataType::Float | DataType::Double => input(0),
                _ => None,
            },
            "Transpose" => {
                let numbers = input(0)?;
                numbers.transpose(&at.permutation(numbers.ndim()).ok()?)
            }
            _ if view.graph.is_movement(node) => {
                let from = view.facts.shape(view.graph.input(node, 0)?)?;
                (leads(&from) && leads(&shape)).then_some(())?;
                input(0)?.reshape(&extents)
            }
            "Expand" => input(0)?.align(extents.len())?.expand(&extents),
            "Neg" => Some(-&input(0)?),
            "Exp" => Some(input(0)?.exp()),
            "Sqrt" => Some(input(0)?.sqrt()),
            "Reciprocal" => power(input(0)?, -1.0),
            "Sigmoid" => Some(input(0)?.sigmoid().flushed(DECIDED)),
            "Softmax" => {
                let numbers = input(0)?;
                let along = at.softmax_axis(numbers.ndim()).ok()?;
                view.facts.extent(at.input(0).ok()?, along)?;
                numbers.softmax(along)
            }
            op @ ("Add" | "Sub" | "Mul" | "Div") => arithmetic(op, &input(0)?, &input(1)?),
            "Pow" => power(input(0)?, view.scalar(view.graph.input(node, 1)?)?),
            "MatMul" => input(0)?.product(&factor()?),
            "Gemm" => {
                let (left, right) = (input(0)?, factor()?);
                let added = if view.graph.input(node, 2).is_some() {
                    Some(input(2)?)
                } else {
                    None
                };
                gemm(&at, left, right, added)
            }
            "Gather" => self.gather(node, input(0)?),
            op @ ("ReduceSum" | "ReduceMean" | "ReduceMax") => {
                let from = view.facts.shape(view.graph.input(node, 0)?)?;
                let (axes, keep) = at.reduction(from.len()).ok()?;
                let known = axes.iter().all(|&axis| extent(&from[axis]).is_some());
                reduced(op, known.then(|| input(0)).flatten()?, &axes, keep)
            }
            _ => None,
        }
    }

    /// One place along an axis; along the batch, any place is the first.
    fn gather(&self, node: NodeId, numbers: Numbers) -> Option<Numbers> {
        let at = self.view.at(node);
        let along = axis(at.attr("axis", 0).ok()?, numbers.ndim()).ok()?;
        let (&[place], 0) = (&at.ints(1).ok()??[..], at.rank(1).ok()?) else {
            return None;
        };
        let known = self.view.facts.extent(at.input(0).ok()?, along);
        let place = match known {
            Some(extent) => usize::try_from(if place < 0 {
                place + extent as i64
            } else {
                place
            })
            .ok()?,
            None => usize::try_from(place).ok().filter(|&place| place == 0)?,
        };
        let mut shape = numbers.shape().to_vec();
        shape.remove(along);
        numbers.pick(along, [Some(place)])?.reshape(&shape)
    }

    /// A shape for a batch of one.
    fn one_item(&self, shape: &Shape) -> Option<Vec<usize>> {
        let extents: Vec<usize> = shape
            .iter()
            .map(|dim| {
                let dim = dim.as_ref()?;
                let ones = dim
                    .symbols()
                    .iter()
                    .fold(SymbolValues::default(), |ones, s| ones.with(s, 1));
                usize::try_from(dim.eval(&ones).to_i64().ok()?).ok()
            })
            .collect::<Option<_>>()?;
        let count = extents
            .iter()
            .try_fold(1usize, |count, &extent| count.checked_mul(extent))?;
        (count <= LARGEST).then_some(extents)
    }
}

/// A sum, a difference, a product or a quotient.
fn arithmetic(op: &str, left: &Numbers, right: &Numbers) -> Option<Numbers> {
    left.broadcasts_with(right).then(|| match op {
        "Add" => left + right,
        "Sub" => left - right,
        "Mul" => left * right,
        _ => left / right,
    })
}

/// One of the powers that normalizers are written with.
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

/// The result of a Gemm for these factors and this summand.
fn gemm(at: &At, left: Numbers, right: Numbers, added: Option<Numbers>) -> Option<Numbers> {
    at.only_attributes(&["alpha", "beta", "transA", "transB"])
        .ok()?;
    let turn = |numbers: Numbers, name: &str| match at.flag(name, false).ok()? {
        false => Some(numbers),
        true => numbers.turned(),
    };
    let by = |name: &str| Some(Numbers::number(at.attr_float(name, 1.0).ok()?, 0));
    let product = &turn(left, "transA")?.product(&turn(right, "transB")?)? * &by("alpha")?;
    match added {
        Some(added) => arithmetic("Add", &product, &(&added * &by("beta")?)),
        None => Some(product),
    }
}

/// Sums, means or maxima along axes.
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

/// Whether no axis but the first has an extent that is no number: then the items lie one after another.
fn leads(shape: &Shape) -> bool {
    shape
        .iter()
        .skip(1)
        .all(|dim| dim.as_ref().is_some_and(|dim: &TDim| dim.to_i64().is_ok()))
}
