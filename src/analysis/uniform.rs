//! Finds uniform values, whose elements are all equal. Examples are an empty mask, and token types
//! that the caller leaves out. If the exporter does not know their extents, the model computes
//! their shape at run time, so they are not constants of the graph.

use crate::analysis::Analysis;
use crate::analysis::node_view::At;
use crate::ir::ValueId;
use crate::onnx::external_data::Externals;
use crate::onnx::operator::Category;
use crate::onnx::tensor::{DataType, data_type, read_f64, read_i64, rounded};
use crate::recipe::Recipe;

/// The maximum number of operators that are inspected for one value.
const LOOKED_AT: usize = 32;

/// The maximum number of elements of a constant that is inspected.
const FEW: usize = 1 << 16;

/// The largest step of a Range for which its start counts as a lower bound.
const STEP: f64 = (1_u64 << 20) as f64;

/// The limit below which every integer is exact as `f64`.
const WHOLE: f64 = (1_u64 << 53) as f64;

/// The number that all elements of a value equal, if it is known. The Boolean `true` counts as 1.
/// The result for a value without elements has no meaning.
pub(crate) fn number(analysis: &Analysis, value: ValueId) -> Option<f64> {
    UniformSearch {
        analysis,
        left: LOOKED_AT,
    }
    .number(value)
}

/// A small array that equals a floating-point value when it is broadcast: the number that all
/// elements equal, or the entry of a table that a Gather with equal indices selects. `None` for
/// other values.
pub(crate) fn row(analysis: &Analysis, value: ValueId) -> Option<Recipe> {
    if let Some(number) = number(analysis, value) {
        return Some(Recipe::number(number, 0));
    }
    let (node, _) = analysis.graph.producer(value)?;
    let at = analysis.at(node);
    let is_entry = analysis.graph.is(node, "Gather")
        && at.only_attributes(&["axis"]).is_ok()
        && at.attr("axis", 0).is_ok_and(|axis| axis == 0);
    let table = at.constant(0).ok().filter(|_| is_entry)?;
    let [entries, shape @ ..] = table.shape() else {
        return None;
    };
    let (entries, index) = (
        i64::try_from(*entries).ok()?,
        number(analysis, at.input(1).ok()?)? as i64,
    );
    // Negative indices count from the end.
    let index = if index < 0 { index + entries } else { index };
    let index = usize::try_from(index).ok().filter(|_| index < entries)?;
    table.pick(0, [Some(index)])?.reshape(shape)
}

struct UniformSearch<'k, 'm> {
    analysis: &'k Analysis<'m>,
    left: usize,
}

impl UniformSearch<'_, '_> {
    /// The number that all elements of a value equal.
    fn number(&mut self, value: ValueId) -> Option<f64> {
        let Analysis {
            graph,
            constants,
            facts,
            ..
        } = self.analysis;
        if constants.is_constant(value) {
            return self.constant(value);
        }
        let (node, _) = graph.producer(value)?;
        self.left = self.left.checked_sub(1)?;
        let at = self.analysis.at(node);
        let data_type = facts.data_type(value)?;
        let number = match graph.domain_op(node) {
            ("", "ConstantOfShape") => filler(&at)?,
            ("", "Cast") => cast(self.input_number(&at, 0)?, data_type)?,
            ("", "GatherElements") => self.input_number(&at, 0)?,
            ("", "Not") => truth(self.input_number(&at, 0)? == 0.0),
            ("", "And") => self.input_number(&at, 0)? * self.input_number(&at, 1)?,
            ("", "Or") => self.input_number(&at, 0)?.max(self.input_number(&at, 1)?),
            ("", "Sub") => self.input_number(&at, 0)? - self.input_number(&at, 1)?,
            ("", "Mul") => self.product(at.input(0).ok()?, at.input(1).ok()?, data_type)?,
            ("", "Where") => {
                let holds = self.input_number(&at, 0)? != 0.0;
                self.input_number(&at, if holds { 1 } else { 2 })?
            }
            ("", "GreaterOrEqual")
                if self.least(at.input(0).ok()?)? >= self.input_number(&at, 1)? =>
            {
                1.0
            }
            ("", "Less") if self.least(at.input(0).ok()?)? >= self.input_number(&at, 1)? => 0.0,
            _ if matches!(
                graph.category(node),
                Some(Category::Movement | Category::Selection)
            ) =>
            {
                self.input_number(&at, 0)?
            }
            _ => return None,
        };
        fits(number, data_type).then_some(number)
    }

    /// The number that all elements of an input equal.
    fn input_number(&mut self, at: &At, slot: usize) -> Option<f64> {
        self.number(at.input(slot).ok()?)
    }

    fn product(&mut self, left: ValueId, right: ValueId, data_type: DataType) -> Option<f64> {
        match (self.number(left), self.number(right)) {
            (Some(left), Some(right)) => Some(left * right),
            // The other factor need not be uniform, because any integer times 0 is 0.
            (Some(0.0), _) | (_, Some(0.0)) if data_type.is_integer() => Some(0.0),
            _ => None,
        }
    }

    /// A lower bound of the elements of an integer value, if one is known.
    fn least(&mut self, value: ValueId) -> Option<f64> {
        let Analysis {
            graph,
            constants,
            facts,
            ..
        } = self.analysis;
        let is_whole = facts.data_type(value).is_some_and(DataType::is_integer);
        if constants.is_constant(value) {
            let is_small = constants.len(value).is_some_and(|count| count <= FEW);
            let ints = constants.ints(value).filter(|_| is_whole && is_small)?;
            // Sums of larger integers may overflow.
            let is_held = ints.iter().all(|&int| (int as f64).abs() <= WHOLE);
            return ints
                .into_iter()
                .min()
                .filter(|_| is_held)
                .map(|least| least as f64);
        }
        let (node, _) = graph.producer(value).filter(|_| is_whole)?;
        self.left = self.left.checked_sub(1)?;
        let first = graph.input(node, 0);
        match graph.op(node)? {
            "Shape" | "Size" => Some(0.0),
            "Add" if facts.data_type(value) == Some(DataType::Int64) => {
                Some(self.least(first?)? + self.least(graph.input(node, 1)?)?)
            }
            // A Range with a positive step ascends from its start.
            "Range" => {
                let step = self.least(graph.input(node, 2)?)?;
                self.least(first?).filter(|_| 0.0 < step && step <= STEP)
            }
            _ if matches!(
                graph.category(node),
                Some(Category::Movement | Category::Selection)
            ) =>
            {
                self.least(first?)
            }
            _ => None,
        }
    }

    fn constant(&self, value: ValueId) -> Option<f64> {
        let constants = &self.analysis.constants;
        constants.len(value).filter(|&count| count <= FEW)?;
        if self.analysis.facts.data_type(value)?.is_float() {
            let numbers = constants.numbers(value).ok()?;
            let first = *numbers.iter().next()?;
            return numbers.are_all(first).then_some(first);
        }
        let ints = constants.ints(value)?;
        let first = *ints.first()?;
        let is_held = first.unsigned_abs() < WHOLE as u64;
        (is_held && ints.iter().all(|&int| int == first)).then_some(first as f64)
    }
}

/// Whether all elements of the result of a node are 0, because the node repeats one zero.
pub(crate) fn repeats_zero(at: &At) -> bool {
    match at.graph.domain_op(at.node) {
        // The input is read only if it is a single element, so that large constants are not read
        // here.
        ("", "Expand") => {
            let is_one = at
                .input(0)
                .is_ok_and(|input| at.constants.len(input) == Some(1));
            is_one && at.numbers(0).is_ok_and(|numbers| numbers.are_all(0.0))
        }
        ("", "ConstantOfShape") => filler(at) == Some(0.0),
        _ => false,
    }
}

/// The fill value of a ConstantOfShape.
fn filler(at: &At) -> Option<f64> {
    let Some(filler) = at.proto().attr_t("value").ok()? else {
        return Some(0.0);
    };
    if data_type(filler).ok()?.is_float() {
        return read_f64(filler, &Externals::none()).ok()?.first().copied();
    }
    read_i64(filler, &Externals::none())
        .ok()?
        .first()
        .map(|&int| int as f64)
}

/// The number after a Cast to `to`; `None` if the Cast would round it.
fn cast(number: f64, to: DataType) -> Option<f64> {
    match to {
        DataType::Bool => Some(truth(number != 0.0)),
        _ if to.is_float() || number.fract() == 0.0 => Some(number),
        _ => None,
    }
}

/// A boolean as a number.
fn truth(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

/// Whether a type represents a number exactly; `false` for unknown types.
fn fits(number: f64, data_type: DataType) -> bool {
    let is_whole = number.fract() == 0.0;
    match data_type {
        DataType::Bool => number == 0.0 || number == 1.0,
        DataType::Int32 => {
            is_whole && f64::from(i32::MIN) <= number && number <= f64::from(i32::MAX)
        }
        DataType::Int64 => is_whole && number.abs() <= WHOLE,
        _ => data_type.is_float() && number.is_finite() && rounded(data_type, number) == number,
    }
}
