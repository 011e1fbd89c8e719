//! Values that are the same for every item of a batch, computed in float64.
//!
//! A constant that an exporter widens to the batch (`P` expanded to [B, H, T, T]) is no constant of
//! the graph, because its shape is not known. Its numbers are: they are computed for a batch of one,
//! through operators that treat all items alike.

use std::cell::RefCell;
use std::collections::HashMap;

use ndarray::{ArrayD, Axis, IxDyn};
use tract_onnx::tract_hir::internal::{SymbolValues, TDim};

use super::View;
use crate::graph::axes::axis;
use crate::graph::facts::{Shape, extent};
use crate::graph::{NodeId, ValueId};
use crate::onnx::operator::Category;
use crate::onnx::tensor::DataType;

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

/// What is known of the values that are alike for every item.
pub struct Alike<'v> {
    view: &'v View<'v>,
    known: RefCell<HashMap<ValueId, bool>>,
}

impl<'v> Alike<'v> {
    /// Nothing is computed yet.
    pub fn new(view: &'v View<'v>) -> Self {
        Alike { view, known: RefCell::default() }
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
                        && inputs.iter().flatten().all(|&input| self.holds(input, depth - 1))
            });
        self.known.borrow_mut().insert(value, holds);
        holds
    }

    /// The elements for one item: axes of the batch have extent 1.
    pub fn read(&self, value: ValueId) -> Option<ArrayD<f64>> {
        if !self.is(value) {
            return None;
        }
        let constant = self.view.constants.is_constant(value);
        if constant && self.view.constants.stored(value).is_some() {
            return self.view.constants.read(value).ok();
        }
        let computed = self.compute(value);
        // What this does not know, the graph's own constants may.
        computed.or_else(|| constant.then(|| self.view.constants.read(value).ok()).flatten())
    }

    fn compute(&self, value: ValueId) -> Option<ArrayD<f64>> {
        let view = self.view;
        let node = view.maker(value).filter(|&node| view.graph.only_output(node) == Some(value))?;
        let at = view.at(node);
        let input = |slot: usize| self.read(view.graph.input(node, slot)?);
        let shape = view.facts.shape(value)?;
        let extents = self.one_item(&shape)?;
        let unary = |f: fn(f64) -> f64| Some(input(0)?.mapv(f));
        // What is summed over the items is not known from one.
        let factor = || {
            let shape = at.shape(1).ok()?;
            shape.iter().rev().take(2).all(|dim| extent(dim).is_some()).then(|| input(1))?
        };
        match view.graph.op(node)? {
            "Identity" => input(0),
            "Cast" => {
                let to = DataType::from_code(i32::try_from(at.attr("to", 0).ok()?).ok()?)?;
                matches!(to, DataType::Float | DataType::Double).then(|| input(0)).flatten()
            }
            "Transpose" => {
                let array = input(0)?;
                let perm = at.permutation(array.ndim()).ok()?;
                Some(array.permuted_axes(perm).as_standard_layout().into_owned())
            }
            _ if view.graph.is_movement(node) => {
                let from = view.facts.shape(view.graph.input(node, 0)?)?;
                (leads(&from) && leads(&shape)).then_some(())?;
                input(0)?.into_shape_with_order(IxDyn(&extents)).ok()
            }
            "Expand" => Some(input(0)?.broadcast(IxDyn(&extents))?.to_owned()),
            "Neg" => unary(|x| -x),
            "Exp" => unary(f64::exp),
            "Sqrt" => unary(f64::sqrt),
            "Reciprocal" => unary(f64::recip),
            "Sigmoid" => unary(|x| 1.0 / (1.0 + (-x).exp())),
            "Softmax" => self.softmax(node, input(0)?),
            "Add" => Some(input(0)? + input(1)?),
            "Sub" => Some(input(0)? - input(1)?),
            "Mul" => Some(input(0)? * input(1)?),
            "Div" => Some(input(0)? / input(1)?),
            "Pow" => {
                let power = view.scalar(view.graph.input(node, 1)?)?;
                Some(input(0)?.mapv(|x| x.powf(power)))
            }
            "MatMul" => matmul(&input(0)?, &factor()?),
            "Gemm" => {
                at.only_attributes(&["alpha", "beta", "transA", "transB"]).ok()?;
                let turn = |array: ArrayD<f64>, name: &str| {
                    let turned = at.attr(name, 0).ok()? != 0;
                    Some(if turned { array.reversed_axes() } else { array })
                };
                let product = matmul(&turn(input(0)?, "transA")?, &turn(factor()?, "transB")?)?;
                let product = product * at.attr_float("alpha", 1.0).ok()?;
                match view.graph.input(node, 2) {
                    Some(_) => Some(product + input(2)? * at.attr_float("beta", 1.0).ok()?),
                    None => Some(product),
                }
            }
            "Gather" => self.gather(node, input(0)?),
            "ReduceSum" | "ReduceMean" | "ReduceMax" => {
                let from = view.facts.shape(view.graph.input(node, 0)?)?;
                let (axes, keep) = at.reduction(from.len()).ok()?;
                let numbers = axes.iter().all(|&axis| extent(&from[axis]).is_some());
                let mut array = numbers.then(|| input(0)).flatten()?;
                for &axis in axes.iter().rev() {
                    let reduced = match view.graph.op(node)? {
                        "ReduceSum" => array.sum_axis(Axis(axis)),
                        "ReduceMean" => array.mean_axis(Axis(axis))?,
                        _ => {
                            array.map_axis(Axis(axis), |lane| lane.fold(f64::NEG_INFINITY, |a, &b| a.max(b)))
                        }
                    };
                    array = if keep { reduced.insert_axis(Axis(axis)) } else { reduced };
                }
                Some(array)
            }
            _ => None,
        }
    }

    /// One place along an axis; along the batch, any place is the first.
    fn gather(&self, node: NodeId, array: ArrayD<f64>) -> Option<ArrayD<f64>> {
        let at = self.view.at(node);
        let along = axis(at.attr("axis", 0).ok()?, array.ndim()).ok()?;
        let (&[place], 0) = (&at.ints(1).ok()??[..], at.rank(1).ok()?) else { return None };
        let known = self.view.facts.extent(at.input(0).ok()?, along);
        let place = match known {
            Some(extent) => usize::try_from(if place < 0 { place + extent as i64 } else { place }).ok()?,
            None => usize::try_from(place).ok().filter(|&place| place == 0)?,
        };
        (place < array.shape()[along]).then(|| array.index_axis_move(Axis(along), place))
    }

    fn softmax(&self, node: NodeId, mut array: ArrayD<f64>) -> Option<ArrayD<f64>> {
        let at = self.view.at(node);
        let along = at.softmax_axis(array.ndim()).ok()?;
        self.view.facts.extent(at.input(0).ok()?, along)?;
        for mut lane in array.lanes_mut(Axis(along)) {
            let largest = lane.fold(f64::NEG_INFINITY, |a, &b| a.max(b));
            lane.mapv_inplace(|x| (x - largest).exp());
            let sum = lane.sum();
            lane.mapv_inplace(|x| x / sum);
        }
        Some(array)
    }

    /// A shape for a batch of one.
    fn one_item(&self, shape: &Shape) -> Option<Vec<usize>> {
        let extents: Vec<usize> = shape
            .iter()
            .map(|dim| {
                let dim = dim.as_ref()?;
                let ones = dim.symbols().iter().fold(SymbolValues::default(), |ones, s| ones.with(s, 1));
                usize::try_from(dim.eval(&ones).to_i64().ok()?).ok()
            })
            .collect::<Option<_>>()?;
        let count = extents.iter().try_fold(1usize, |count, &extent| count.checked_mul(extent))?;
        (count <= LARGEST).then_some(extents)
    }
}

/// Whether no axis but the first has an extent that is no number: then the items lie one after another.
fn leads(shape: &Shape) -> bool {
    shape.iter().skip(1).all(|dim| dim.as_ref().is_some_and(|dim: &TDim| dim.to_i64().is_ok()))
}

/// A product of stacks of matrices, as MatMul broadcasts them.
fn matmul(left: &ArrayD<f64>, right: &ArrayD<f64>) -> Option<ArrayD<f64>> {
    let (l, r) = (left.ndim(), right.ndim());
    if l < 2 || r < 2 {
        return None;
    }
    let (m, k, n) = (left.shape()[l - 2], left.shape()[l - 1], right.shape()[r - 1]);
    if right.shape()[r - 2] != k {
        return None;
    }
    if r == 2 {
        let count = left.len() / k.max(1);
        let rows = left.as_standard_layout().into_owned().into_shape_with_order((count, k)).ok()?;
        let right = right.view().into_dimensionality::<ndarray::Ix2>().ok()?;
        let mut shape = left.shape().to_vec();
        shape[l - 1] = n;
        return rows.dot(&right).into_shape_with_order(IxDyn(&shape)).ok();
    }
    let rank = l.max(r);
    let widen = |array: &ArrayD<f64>| {
        let shape = [&vec![1; rank - array.ndim()][..], array.shape()].concat();
        array.as_standard_layout().into_owned().into_shape_with_order(IxDyn(&shape)).ok()
    };
    let (left, right) = (widen(left)?, widen(right)?);
    let mut stack = vec![];
    for (&a, &b) in left.shape()[..rank - 2].iter().zip(right.shape()) {
        stack.push(if a == 1 { b } else { a });
        (a == b || a == 1 || b == 1).then_some(())?;
    }
    let shape = [&stack[..], &[m, n]].concat();
    let left = left.broadcast(IxDyn(&[&stack[..], &[m, k]].concat()))?.to_owned();
    let right = right.broadcast(IxDyn(&[&stack[..], &[k, n]].concat()))?.to_owned();
    let count = stack.iter().product::<usize>();
    let left = left.into_shape_with_order((count, m, k)).ok()?;
    let right = right.into_shape_with_order((count, k, n)).ok()?;
    let mut result = ndarray::Array3::zeros((count, m, n));
    for ((a, b), mut c) in left.outer_iter().zip(right.outer_iter()).zip(result.outer_iter_mut()) {
        c.assign(&a.dot(&b));
    }
    result.into_shape_with_order(IxDyn(&shape)).ok()
}
