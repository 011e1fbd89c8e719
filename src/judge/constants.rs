//! The values that a graph computes only from its stored tensors, with bounds on their rounding
//! errors.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use ndarray::ArrayD;

use super::binary_errors::{Binary, of_binary, of_rounding};
use super::resized;
use super::rounded::{ErrorBound, FloatRounding, Rounded, Unary, of_products, of_unary};
use crate::analysis::Analysis;
use crate::ir::{NodeId, ValueId};
use crate::onnx::operator::Category;
use crate::onnx::tensor::{self, DataType};
use crate::recipe::{Given, Recipe};
use crate::shape::facts::extent;

/// Operators that only move elements, although their category is not movement.
const MOVEMENTS: [&str; 7] = [
    "Concat",
    "Constant",
    "ConstantOfShape",
    "GatherElements",
    "Pad",
    "Trilu",
    "Where",
];

/// Operators each element of whose result is an element of an input. An error of an input moves the
/// result at most as far.
const SELECTIONS_BY_SIZE: [&str; 6] = ["Clip", "Max", "MaxPool", "Min", "ReduceMax", "ReduceMin"];

/// Constants by name.
pub(super) type GivenConstants = HashMap<Arc<str>, RoundedConstant>;

/// A constant with a bound on the errors of its elements, which are read later.
pub(super) struct RoundedConstant {
    pub given: Given,
    pub error: ErrorBound,
}

impl RoundedConstant {
    /// All elements. `None` if they cannot be read.
    pub(super) fn whole(&self, name: &str) -> Option<Rounded> {
        self.rounded(self.given.all(name).ok()?)
    }

    /// The elements in a range along an axis. `None` if they cannot be read.
    pub(super) fn places(&self, name: &str, axis: usize, range: Range<usize>) -> Option<Rounded> {
        self.rounded(self.given.places(name, axis, range).ok()?)
    }

    fn rounded(&self, values: ArrayD<f64>) -> Option<Rounded> {
        let error = self.error;
        Some(Rounded { values, error })
    }
}

/// The float constants that a graph stores or computes, with bounds on their errors.
pub(super) struct ComputedConstants<'c> {
    pub(super) analysis: &'c Analysis<'c>,
    errors: HashMap<ValueId, ErrorBound>,
}

impl<'c> ComputedConstants<'c> {
    /// Bounds the errors of all float constants whose operators have a bound here.
    pub(super) fn new(analysis: &'c Analysis<'c>) -> Self {
        let mut constants = Self {
            analysis,
            errors: HashMap::new(),
        };
        for &node in analysis.graph.order() {
            for &value in analysis.graph.outputs(node).iter().flatten() {
                if let Some(error) = constants.result_error(node, value) {
                    constants.errors.insert(value, error);
                }
            }
        }
        constants
    }

    /// For each computed constant, a recipe that only reads it, and its type. Constants that only
    /// rearrange stored elements are left out.
    pub(super) fn computed(&self) -> Vec<(Recipe, DataType)> {
        let (graph, facts) = (&self.analysis.graph, &self.analysis.facts);
        let mut values: Vec<ValueId> = self.errors.keys().copied().collect();
        values.sort_unstable();
        values.retain(|&value| !self.is_moved(value));
        let formulas = values.into_iter().filter_map(|value| {
            let shape: Option<Vec<usize>> = facts.shape(value)?.iter().map(extent).collect();
            let recipe = Recipe::constant(graph.value_name(value), &shape?);
            Some((recipe, facts.data_type(value)?))
        });
        formulas.collect()
    }

    /// For each stored or computed constant with one element, a recipe that only reads it, and its
    /// type. Of several equal constants, only the first is kept.
    pub(super) fn scalars(&self) -> Vec<(Recipe, DataType)> {
        let graph = &self.analysis.graph;
        let mut numbers = HashSet::new();
        let mut scalars = vec![];
        for value in (0..graph.value_count()).map(|index| ValueId(index as u32)) {
            let Some(data_type) = self.float_type(value) else {
                continue;
            };
            let number = self.analysis.constants.scalar(value);
            let number = number.filter(|_| self.error(value).is_some());
            if let Some(number) = number
                && numbers.insert((data_type, number.to_bits()))
            {
                let rank = self.analysis.facts.rank(value).unwrap_or(0);
                let recipe = Recipe::constant(graph.value_name(value), &vec![1; rank]);
                scalars.extend(recipe.reshape(&[]).map(|scalar| (scalar, data_type)));
            }
        }
        scalars
    }

    /// Whether a constant only rearranges elements of stored tensors.
    fn is_moved(&self, value: ValueId) -> bool {
        let graph = &self.analysis.graph;
        let Some((node, _)) = graph.producer(value) else {
            return true;
        };
        let is_movement = graph.op(node).is_some_and(|op| MOVEMENTS.contains(&op))
            || matches!(
                graph.category(node),
                Some(Category::Movement | Category::Selection)
            );
        let mut inputs = graph.inputs(node).iter().flatten();
        is_movement && inputs.all(|&input| self.float_type(input).is_none() || self.is_moved(input))
    }

    /// Reads the constant with this name, with the bound on its error. `None` if there is no such
    /// constant, or if no bound is known.
    pub(super) fn read(&self, name: &str) -> Option<Rounded> {
        self.rounded(self.analysis.graph.value(name)?)
    }

    /// The constants that recipes read, without those that have no bound. Stored elements are not
    /// read yet.
    pub(super) fn given<'r>(
        &self,
        recipes: impl IntoIterator<Item = &'r Recipe>,
    ) -> GivenConstants {
        let recipes = recipes.into_iter();
        let names: HashSet<&Arc<str>> = recipes.flat_map(Recipe::constants).collect();
        let given = names.into_iter();
        let given = given.filter_map(|name| Some((name.clone(), self.constant(name)?)));
        given.collect()
    }

    fn constant(&self, name: &str) -> Option<RoundedConstant> {
        let value = self.analysis.graph.value(name)?;
        let error = self.error(value)?;
        let given = self.analysis.constants.given(value).ok()?;
        Some(RoundedConstant { given, error })
    }

    /// Reads a constant, with the bound on its error. `None` if no bound is known.
    pub(super) fn rounded(&self, value: ValueId) -> Option<Rounded> {
        let error = self.error(value)?;
        let values = self.analysis.constants.read(value).ok()?;
        Some(Rounded { values, error })
    }

    /// Reads an input of a node, with the bound on its error. `None` if the input is left out, or if
    /// no bound is known.
    pub(super) fn operand(&self, node: NodeId, slot: usize) -> Option<Rounded> {
        self.rounded(self.analysis.graph.input(node, slot)?)
    }

    pub(super) fn error(&self, value: ValueId) -> Option<ErrorBound> {
        let is_stored = self.analysis.constants.stored(value).is_some();
        match is_stored {
            true => Some(ErrorBound::EXACT),
            false => self.errors.get(&value).copied(),
        }
    }

    /// The type of a float constant. `None` for all other values.
    fn float_type(&self, value: ValueId) -> Option<DataType> {
        let data_type = self.analysis.facts.data_type(value)?;
        (data_type.is_float() && self.analysis.constants.is_constant(value)).then_some(data_type)
    }

    /// The bound on the error of a constant that a node computes. `None` if the value is not a
    /// float constant, or if no bound is known for the operator.
    fn result_error(&self, node: NodeId, value: ValueId) -> Option<ErrorBound> {
        let data_type = self.float_type(value)?;
        let graph = &self.analysis.graph;
        if graph.is(node, "Constant") || !graph.captures(node).is_empty() {
            return None;
        }
        match (graph.op(node)?, graph.category(node)) {
            (op, _) if MOVEMENTS.contains(&op) || SELECTIONS_BY_SIZE.contains(&op) => {
                self.moved(node)
            }
            (_, Some(Category::Movement | Category::Selection)) => self.moved(node),
            ("Resize", _) => self.resized(node, value, data_type),
            ("BatchNormalization", _) => self.batch_normalized(node, value, data_type),
            ("InstanceNormalization", _) => self.instance_normalized(node, value, data_type),
            ("LayerNormalization", _) => self.layer_normalized(node, value, data_type),
            ("Softmax", _) => self.softmax(node, value, data_type),
            ("Cast", _) => self.cast(node, value, data_type),
            ("Range" | "CumSum", _) => self.sums_of_whole_numbers(node, value, data_type),
            ("Floor" | "Ceil", _) => self.rounded_to_whole_numbers(node, value),
            ("ReduceSum" | "ReduceMean", _) => self.sum(node, value, data_type),
            ("ReduceL2", _) => self.euclidean_norm(node, value, data_type),
            ("MatMul", _) => self.product(node, value, data_type),
            ("Gemm", _) => self.gemm(node, value, data_type),
            ("Einsum", _) => self.einsum(node, value, data_type),
            ("Conv", _) => self.pointwise_convolution(node, value, data_type),
            (op, _) => self.element_wise(op, node, value, data_type),
        }
    }

    /// The bound on the error of a result whose elements are elements of the inputs. `None` if the
    /// error of an input is unknown.
    fn moved(&self, node: NodeId) -> Option<ErrorBound> {
        let mut error = ErrorBound::EXACT;
        for &input in self.analysis.graph.inputs(node).iter().flatten() {
            if self.float_type(input).is_some() {
                error = error.or(self.error(input)?);
            }
        }
        Some(error)
    }

    /// Exact, if a node adds only whole numbers that are exact, and the type represents all whole
    /// numbers up to the largest sum. `None` otherwise.
    fn sums_of_whole_numbers(
        &self,
        node: NodeId,
        value: ValueId,
        data_type: DataType,
    ) -> Option<ErrorBound> {
        // A float type represents all whole numbers up to this one.
        let largest = FloatRounding::new(data_type)?.unit.recip();
        let result = self.analysis.constants.read(value).ok()?;
        let error = self.moved(node)?;
        let mut inputs = self.analysis.graph.inputs(node).iter().flatten();
        let are_whole = inputs.all(|&input| {
            let input = self.analysis.constants.read(input);
            input.is_ok_and(|numbers| numbers.iter().all(|number| number.fract() == 0.0))
        });
        let are_small = result.iter().all(|number| number.abs() <= largest);
        (error.is_exact() && are_whole && are_small).then_some(ErrorBound::EXACT)
    }

    /// Exact, if the errors of the operand move no element past a whole number. `None` otherwise.
    fn rounded_to_whole_numbers(&self, node: NodeId, value: ValueId) -> Option<ErrorBound> {
        let graph = &self.analysis.graph;
        let operand = self.operand(node, 0)?;
        let result = self.analysis.constants.read(value).ok()?;
        let is_floor = graph.is(node, "Floor");
        let mut pairs = operand.values.iter().zip(&result);
        let are_fixed = pairs.all(|(&number, &whole)| {
            let error = operand.error.at(number);
            [number - error, number + error].iter().all(|end| {
                let moved = if is_floor { end.floor() } else { end.ceil() };
                moved == whole
            })
        });
        are_fixed.then_some(ErrorBound::EXACT)
    }

    fn cast(&self, node: NodeId, value: ValueId, to: DataType) -> Option<ErrorBound> {
        let input = self.analysis.graph.input(node, 0)?;
        let values = self.analysis.constants.read(value).ok()?;
        let Some(from) = self.float_type(input) else {
            // Every float type represents the integers up to 2⁸ exactly.
            let is_small = values.iter().all(|number| number.abs() <= 256.0);
            return match is_small {
                true => Some(ErrorBound::EXACT),
                false => of_rounding(ErrorBound::EXACT, &values, to),
            };
        };
        let error = self.error(input)?;
        let is_equal = self.analysis.constants.read(input).ok()? == values;
        if is_equal && error.is_exact() || from == to {
            return Some(error);
        }
        of_rounding(error, &values, to)
    }

    /// The bound on the error of a resized constant. The elements are computed here too, because no
    /// engine supports all modes of Resize. `None` if no bound is known.
    fn resized(&self, node: NodeId, value: ValueId, data_type: DataType) -> Option<ErrorBound> {
        let graph = &self.analysis.graph;
        if matches!(graph.node(node).attr_s("mode"), Ok(None | Some("nearest"))) {
            return self.moved(node);
        }
        let input = self.operand(node, 0)?;
        let made = resized::value(self.analysis, node, &input, data_type)?;
        self.provided(value, &made, data_type)
    }

    /// Stores the elements `made` as those of the constant `value`. Returns the bound on their
    /// error. `None` if the elements cannot be stored.
    pub(super) fn provided(
        &self,
        value: ValueId,
        made: &Rounded,
        data_type: DataType,
    ) -> Option<ErrorBound> {
        let name = self.analysis.graph.value_name(value);
        let tensor = tensor::make(name, data_type, &made.values.view());
        let is_provided = self.analysis.constants.provide(value, &tensor.ok()?);
        is_provided.then_some(made.error)
    }

    fn sum(&self, node: NodeId, value: ValueId, data_type: DataType) -> Option<ErrorBound> {
        let operand = self.operand(node, 0)?;
        let result = self.analysis.constants.read(value).ok()?;
        let terms = operand.values.len() / result.len().max(1);
        let magnitudes = operand.values.iter().map(|number| number.abs());
        let largest = magnitudes.fold(0.0, f64::max);
        // A mean divides the sum, and so the magnitudes of the terms, by the number of terms. So
        // the number of terms cancels, and the size is 1.
        let is_mean = self.analysis.graph.is(node, "ReduceMean");
        let size = if is_mean { 1.0 } else { terms as f64 };
        let magnitudes = ArrayD::from_elem(result.raw_dim(), largest * size);
        of_products(
            [operand.error, ErrorBound::EXACT],
            terms + 1,
            &result,
            &magnitudes,
            data_type,
        )
    }

    /// The bound on the error of the root of a sum of squares. `None` if the bound on the error of
    /// the operand is unknown.
    fn euclidean_norm(
        &self,
        node: NodeId,
        value: ValueId,
        data_type: DataType,
    ) -> Option<ErrorBound> {
        let operand = self.operand(node, 0)?;
        let result = self.analysis.constants.read(value).ok()?;
        let terms = operand.values.len() / result.len().max(1);
        let squares = result.mapv(|norm| norm * norm);
        let errors = [operand.error; 2];
        let error = of_products(errors, terms + 1, &squares, &squares, data_type)?;
        let squares = Rounded {
            values: squares,
            error,
        };
        of_unary(Unary::Sqrt, &squares, &result, data_type)
    }

    fn element_wise(
        &self,
        op: &str,
        node: NodeId,
        value: ValueId,
        data_type: DataType,
    ) -> Option<ErrorBound> {
        let result = self.analysis.constants.read(value).ok()?;
        let a = self.operand(node, 0)?;
        if let Some(function) = unary(op) {
            return of_unary(function, &a, &result, data_type);
        }
        let b = self.operand(node, 1)?;
        of_binary(binary(op)?, &a, &b, &result, data_type)
    }
}

fn unary(op: &str) -> Option<Unary> {
    Some(match op {
        "Neg" => Unary::Neg,
        "Abs" => Unary::Abs,
        "Relu" => Unary::Relu,
        "Sqrt" => Unary::Sqrt,
        "Reciprocal" => Unary::Reciprocal,
        "Exp" => Unary::Exp,
        "Log" => Unary::Log,
        "Atan" | "Cos" | "Erf" | "Sigmoid" | "Sin" | "Softplus" | "Tanh" => Unary::Gentle,
        _ => return None,
    })
}

fn binary(op: &str) -> Option<Binary> {
    Some(match op {
        "Add" => Binary::Add,
        "Sub" => Binary::Sub,
        "Mul" => Binary::Mul,
        "Div" => Binary::Div,
        "Pow" => Binary::Pow,
        _ => return None,
    })
}
