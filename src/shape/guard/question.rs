//! Decides whether tract may infer a node. Its attributes and inputs must be within bounds.

use tract_onnx::prelude::{DatumType, InferenceFact};
use tract_onnx::tract_hir::infer::Factoid;

use crate::ir::axes::axis;
use crate::onnx::node::bodies;
use crate::onnx::operator::input_for;
use crate::onnx::proto::{AttributeProto, AttributeType, NodeProto};
use crate::onnx::tensor::DataType;
use crate::onnx::tract_quirks::read_as_one;
use crate::shape::encode::{number, rank};
use crate::shape::guard::budget::fact_cost;
use crate::shape::guard::{RANK, element_count, ints};

/// The largest size, step or count in an attribute, and the largest number that tract casts to a
/// symbolic value.
const LARGEST_INT: u64 = i32::MAX as u64;

/// The maximum number of elements of an EyeLike that tract may infer. tract evaluates it during
/// inference.
const LARGEST_EYE: u64 = 1 << 20;

/// The maximum cost of the symbolic arithmetic of one node.
const NODE_COST: u64 = 1 << 14;

/// The largest numbers of int64 and int32. Exporters write one of these numbers as the end of a
/// Slice that includes the last place.
const OPEN_ENDS: [i64; 2] = [i64::MAX, i32::MAX as i64];

/// Attributes whose values are axes of the first input.
const AXES: &[&str] = &["axis", "axes", "batch_dims"];

/// Operators that use the elements of some inputs as extents, with the slot of the first such
/// input.
const EXTENTS: &[(&str, usize)] = &[
    ("ConstantOfShape", 0),
    ("Expand", 1),
    ("OneHot", 1),
    ("Pad", 1),
    ("Range", 0),
    ("Reshape", 1),
    ("Resize", 1),
    ("Split", 1),
    ("Tile", 1),
    ("TopK", 1),
];

/// The minimum ranks of the first inputs of operators that count axes from the end, or that work on
/// all axes.
const LEAST_RANK: &[(&str, &[usize])] = &[
    ("ArrayFeatureExtractor", &[1]),
    ("BatchNormalization", &[2]),
    ("DFT", &[2]),
    ("GatherND", &[1, 1]),
    ("GridSample", &[3]),
    ("Hardmax", &[1]),
    ("LayerNormalization", &[1]),
    ("LogSoftmax", &[1]),
    ("LpNormalization", &[1]),
    ("MatMulInteger", &[1, 1]),
    ("MatMulNBits", &[1]),
    // Engines and numpy disagree whether a scalar has one axis or none for this operator.
    ("NonZero", &[1]),
    ("RMSNormalization", &[1]),
    ("STFT", &[1]),
    ("ScatterND", &[1, 1]),
    ("SimplifiedLayerNormalization", &[1]),
    ("SkipLayerNormalization", &[1]),
    ("SkipSimplifiedLayerNormalization", &[1]),
    ("Softmax", &[1]),
    ("TopK", &[1]),
];

/// Whether tract may infer the facts about the outputs of a node, because the attributes and inputs
/// of the node are within bounds.
pub(crate) fn can_be_asked(node: &NodeProto, inputs: &[Option<&InferenceFact>]) -> bool {
    let question = Question { node, inputs };
    !question.allocates_while_built()
        && !question.exceeds_symbols()
        && !question.has_wrong_split()
        && !question.lists_too_many_axes()
        && !question.steps_back_out_of_range()
        && !question.lacks_a_number()
        && !question.lacks_first_input()
        && question.has_least_ranks()
        && question.has_axes_in_range()
        && question.has_attributes_in_range()
        && question.symbolic_cost() <= NODE_COST
}

/// Whether an input that tract reads as symbolic values has a number beyond 32 bits. tract would
/// convert it incorrectly, because it casts symbolic values to 32 bits.
pub(crate) fn beyond_symbols(node: &NodeProto, inputs: &[Option<&InferenceFact>]) -> bool {
    Question { node, inputs }.exceeds_symbols()
}

/// A node whose outputs tract would infer, and the facts about its inputs; `None` for an absent
/// input.
struct Question<'q> {
    node: &'q NodeProto,
    inputs: &'q [Option<&'q InferenceFact>],
}

impl<'q> Question<'q> {
    fn input(&self, slot: usize) -> Option<&'q InferenceFact> {
        self.inputs.get(slot).copied().flatten()
    }

    fn present_inputs(&self) -> impl Iterator<Item = &'q InferenceFact> {
        self.inputs.iter().copied().flatten()
    }

    fn rank(&self, slot: usize) -> Option<usize> {
        rank(self.input(slot)?)
    }

    fn ints(&self, slot: usize) -> Option<Vec<i64>> {
        ints(self.input(slot)?)
    }

    /// The first slot whose elements the operator uses as extents; `None` if it uses none.
    fn first_extents(&self) -> Option<usize> {
        let (_, first) = EXTENTS.iter().find(|(op, _)| *op == self.node.op_type())?;
        Some(*first)
    }

    /// Whether tract would allocate a tensor that may be too large while it builds the operator.
    /// The size of the tensor comes from the inputs.
    fn allocates_while_built(&self) -> bool {
        match self.node.op_type() {
            // This operator of an early version of ONNX is always refused.
            "ConstantLike" => true,
            "EyeLike" => self
                .present_inputs()
                .any(|fact| element_count(fact).is_none_or(|count| count > LARGEST_EYE)),
            _ => false,
        }
    }

    /// Whether a list of extents or paddings is longer than any valid list, which has at most two
    /// elements for each of `RANK` axes.
    fn lists_too_many_axes(&self) -> bool {
        let Some(first) = self
            .first_extents()
            .filter(|_| self.node.op_type() != "Split")
        else {
            return false;
        };
        let mut lists = self.inputs.iter().skip(first).copied().flatten();
        lists.any(|list| element_count(list).is_some_and(|count| count > 2 * RANK as u64))
    }

    /// Whether an input that tract reads as symbolic values has a number beyond 32 bits. tract
    /// would convert it incorrectly, because it casts symbolic values to 32 bits.
    fn exceeds_symbols(&self) -> bool {
        let Some(first) = self.first_symbolic() else {
            return false;
        };
        let slots = self.inputs.iter().enumerate().skip(first);
        slots
            .filter(|&(slot, _)| !self.is_pad_value(slot))
            .filter_map(|(_, fact)| *fact)
            .any(exceeds_32_bits)
    }

    /// The first slot whose elements tract casts to symbols.
    fn first_symbolic(&self) -> Option<usize> {
        match self.node.op_type() {
            // An end at the largest number is not cast, and stands for the end of the axis.
            "Slice" => None,
            "Cast" if self.node.cast_to() == Some(DataType::Int64) => Some(0),
            _ if self.present_inputs().any(is_symbolic) => Some(0),
            _ => self.first_extents(),
        }
    }

    /// Whether an input is the fill value of a Pad. It is not checked for 32 bits, because before a
    /// MaxPool it is often the lowest float.
    fn is_pad_value(&self, slot: usize) -> bool {
        self.node.op_type() == "Pad" && slot == 2
    }

    /// Whether a length in a Split is negative, or the lengths do not add up to the extent of the
    /// axis. Unknown lengths and extents are accepted.
    fn has_wrong_split(&self) -> bool {
        self.node.op_type() == "Split" && self.is_split_wrong() == Some(true)
    }

    fn is_split_wrong(&self) -> Option<bool> {
        let by_attribute = self.node.attr_ints("split").ok().flatten();
        let parts = match by_attribute {
            Some(parts) => parts.to_vec(),
            None => self.ints(1)?,
        };
        let value = self.input(0)?;
        let along = self.node.attr_i("axis").ok().flatten().unwrap_or(0);
        let along = axis(along, rank(value)?).ok()?;
        let whole = value.shape.dim(along)?.concretize()?.as_i64();
        let sum = parts
            .iter()
            .try_fold(0_i64, |sum, &part| sum.checked_add(part));
        Some(parts.iter().any(|&part| part < 0) || whole.is_some_and(|whole| sum != Some(whole)))
    }

    /// Whether tract would read a scalar from an empty input.
    fn lacks_a_number(&self) -> bool {
        read_as_one(self.node.op_type())
            .iter()
            .filter_map(|&slot| self.input(slot)?.value.concretize())
            .any(|value| value.len() == 0)
    }

    /// Whether the first input of a node without bodies is absent. tract counts only present
    /// inputs, so it would mistake the second input for the first one.
    fn lacks_first_input(&self) -> bool {
        let is_left_out = self.node.input.first().is_some_and(String::is_empty);
        is_left_out && bodies(self.node).next().is_none()
    }

    /// Whether a Slice with a negative step has bounds on which implementations disagree. If it
    /// starts before the first place, the specification clamps the start, but the reference
    /// implementation selects nothing. If it ends at the largest number, the specification selects
    /// nothing, but onnxruntime selects everything.
    fn steps_back_out_of_range(&self) -> bool {
        self.node.op_type() == "Slice" && self.is_slice_out_of_range() == Some(true)
    }

    fn is_slice_out_of_range(&self) -> Option<bool> {
        let value = self.input(0)?;
        let starts = self.ints(1)?;
        let ends = self.ints(2).unwrap_or_default();
        let steps = self.ints(4)?;
        let axes = self
            .ints(3)
            .unwrap_or_else(|| (0..starts.len() as i64).collect());
        rank(value)?;

        let mut bounds = ends.iter().zip(&steps);
        let mut cuts = axes.iter().zip(&starts).zip(&steps);
        let ends_too_far = bounds.any(|(end, &step)| step < 0 && OPEN_ENDS.contains(end));
        let begins_too_early = cuts.any(|((&along, &start), &step)| {
            step < 0 && extent_along(value, along).is_some_and(|extent| start < -extent)
        });
        Some(ends_too_far || begins_too_early)
    }

    /// Whether the first inputs have the ranks that the operator requires. Unknown ranks are
    /// accepted.
    fn has_least_ranks(&self) -> bool {
        let Some((_, least)) = LEAST_RANK.iter().find(|(op, _)| *op == self.node.op_type()) else {
            return true;
        };
        let mut least = least.iter().enumerate();
        least.all(|(slot, &least)| self.rank(slot).is_none_or(|rank| rank >= least))
    }

    /// If an input of the node lists axes, whether these axes exist in the value whose axes are
    /// meant. Unknown axes are accepted.
    fn has_axes_in_range(&self) -> bool {
        let op = self.node.op_type();
        let as_input = AXES.iter().find_map(|attribute| input_for(op, attribute));
        let axes = as_input.and_then(|(slot, _)| self.ints(slot));
        axes.is_none_or(|axes| self.are_axes(&axes))
    }

    /// Whether the axes in attributes exist in the value to which they refer, and all other numbers
    /// are within bounds.
    fn has_attributes_in_range(&self) -> bool {
        let mut attributes = self.node.attribute.iter();
        attributes.all(|attribute| match numbers(attribute) {
            Some(numbers) => self.is_in_range(attribute.name(), &numbers),
            None => true,
        })
    }

    fn is_in_range(&self, attribute: &str, numbers: &[i64]) -> bool {
        match attribute {
            name if AXES.contains(&name) => self.are_axes(numbers),
            "perm" => {
                let is_whole = self.rank(0).is_none_or(|rank| rank == numbers.len());
                is_whole && is_permutation(numbers)
            }
            // No check is needed, because the operator clamps these bounds to the extent.
            "start" | "end" | "starts" | "ends" => true,
            _ => numbers
                .iter()
                .all(|number| number.unsigned_abs() <= LARGEST_INT),
        }
    }

    /// Whether numbers are axes of the value to which the operator refers. Negative axes count from
    /// the end.
    fn are_axes(&self, axes: &[i64]) -> bool {
        let rank = self.rank_of_value();
        let count = axes.len() as i64;
        let (first, last) = match self.node.op_type() {
            "Flatten" => (-rank, rank),
            "OneHot" => (-rank - 1, rank),
            "Unsqueeze" => (-rank - count, rank + count - 1),
            // If there is a single scale, the axis is ignored and may have any value.
            "QuantizeLinear" | "DequantizeLinear" => (-(RANK as i64), RANK as i64),
            _ => (-rank, rank - 1),
        };
        axes.len() <= RANK && axes.iter().all(|axis| (first..=last).contains(axis))
    }

    /// The rank of the value whose axes the operator refers to. If the rank is unknown, the maximum
    /// rank.
    fn rank_of_value(&self) -> i64 {
        // The scale and the zero point of the result precede the concatenated inputs.
        let slot = match self.node.op_type() {
            "QLinearConcat" => 2,
            _ => 0,
        };
        // If the rank of this input is unknown, the operator may derive it from another input, so
        // the lowest known rank is used.
        let rank = self
            .rank(slot)
            .or_else(|| self.present_inputs().filter_map(rank).min());
        rank.unwrap_or(RANK) as i64
    }

    /// The cost of computing with the symbols of all inputs.
    fn symbolic_cost(&self) -> u64 {
        self.present_inputs()
            .map(fact_cost)
            .fold(0, u64::saturating_add)
    }
}

/// The integers of an attribute; `None` if it has another type.
fn numbers(attribute: &AttributeProto) -> Option<Vec<i64>> {
    match attribute.r#type() {
        AttributeType::Int => Some(vec![attribute.i()]),
        AttributeType::Ints => Some(attribute.ints.clone()),
        // In old files, attributes have no types, so the field that is set decides.
        AttributeType::Undefined => {
            let one = attribute.i.into_iter();
            Some(one.chain(attribute.ints.iter().copied()).collect())
        }
        _ => None,
    }
}

fn is_symbolic(fact: &InferenceFact) -> bool {
    fact.datum_type.concretize() == Some(DatumType::TDim)
}

/// Whether a value that is not symbolic has an element beyond 32 bits.
fn exceeds_32_bits(fact: &InferenceFact) -> bool {
    let value = fact.value.concretize().filter(|_| !is_symbolic(fact));
    let Some(Ok(numbers)) = value.as_ref().map(|value| value.cast_to::<f64>()) else {
        return false;
    };
    let limit = LARGEST_INT as f64;
    numbers
        .to_plain_array_view::<f64>()
        .is_ok_and(|numbers| numbers.iter().any(|number| number.abs() > limit))
}

/// The extent of an axis, if it is known.
fn extent_along(value: &InferenceFact, along: i64) -> Option<i64> {
    let along = axis(along, rank(value)?).ok()?;
    number(&value.shape.dim(along)?)
}

fn is_permutation(axes: &[i64]) -> bool {
    let mut sorted = axes.to_vec();
    sorted.sort_unstable();
    axes.len() <= RANK
        && sorted
            .iter()
            .enumerate()
            .all(|(place, &axis)| axis == place as i64)
}

#[cfg(test)]
mod tests {
    use tract_onnx::prelude::{tensor0, tensor1};

    use super::*;
    use crate::shape::guard::testing::{node, shaped};

    fn is_asked(op: &str, inputs: &[&InferenceFact]) -> bool {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        can_be_asked(&node(op, &[]), &inputs)
    }

    fn is_asked_with(op: &str, attribute: (&str, &[i64])) -> bool {
        can_be_asked(&node(op, &[attribute]), &[Some(&shaped(&[2, 4]))])
    }

    #[test]
    fn axes_outside_the_rank_are_not_asked() {
        let ranges = [
            ("LayerNormalization", -2, 1),
            ("OneHot", -3, 2),
            ("Unsqueeze", -3, 2),
            ("Flatten", -2, 2),
        ];
        for (op, first, last) in ranges {
            let within: Vec<i64> = (-9..9)
                .filter(|&axis| is_asked_with(op, ("axes", &[axis])))
                .collect();
            assert_eq!(within, (first..=last).collect::<Vec<_>>(), "{op}");
        }
        let axes = InferenceFact::from(tensor1(&[5_i64]));
        assert!(!is_asked("ReduceSum", &[&shaped(&[2, 4]), &axes]));
    }

    #[test]
    fn overlong_axis_lists_are_not_asked() {
        let value = InferenceFact::default();
        for op in ["Tile", "Reshape", "Expand", "Pad"] {
            assert!(is_asked(op, &[&value, &shaped(&[8])]), "{op}");
            assert!(!is_asked(op, &[&value, &shaped(&[1 << 31])]), "{op}");
        }
        assert!(is_asked("Split", &[&value, &shaped(&[1000])]));
    }

    #[test]
    fn invalid_permutations_are_not_asked() {
        assert!(is_asked_with("Transpose", ("perm", &[1, 0])));
        for perm in [&[0, 0][..], &[0, 2], &[-1, 0], &[0], &[0, 1, 2]] {
            assert!(!is_asked_with("Transpose", ("perm", perm)), "{perm:?}");
        }
    }

    #[test]
    fn extents_that_tract_would_truncate_are_not_asked() {
        let cases = [
            ("Expand", 1 << 30, true),
            ("Expand", 1 << 31, false),
            ("Tile", (1 << 32) + 1, false),
            ("Slice", i64::MAX, true),
            ("Add", 1 << 40, true),
        ];
        for (op, extent, expected) in cases {
            let extents = InferenceFact::from(tensor1(&[4, extent]));
            let inputs = [&shaped(&[1, 1]), &extents];
            assert_eq!(is_asked(op, &inputs), expected, "{op} with {extent}");
        }
        for (pad, fill, expected) in [(1, f32::NEG_INFINITY, true), (1 << 31, 0.0, false)] {
            let pads = InferenceFact::from(tensor1(&[0, 0, 0, pad]));
            let fill = InferenceFact::from(tensor0(fill));
            let inputs = [&shaped(&[1, 1]), &pads, &fill];
            assert_eq!(is_asked("Pad", &inputs), expected, "{pad}");
        }
    }

    #[test]
    fn backward_slice_before_the_start_is_not_asked() {
        for (start, step, expected) in [(-2, -1, true), (-3, 1, true), (-3, -1, false)] {
            let bounds = [start, -9, 1, step].map(|bound| InferenceFact::from(tensor1(&[bound])));
            let [starts, ends, axes, steps] = &bounds;
            let inputs = [&shaped(&[6, 2]), starts, ends, axes, steps];
            assert_eq!(is_asked("Slice", &inputs), expected, "{start} by {step}");
        }
    }

    #[test]
    fn split_lengths_must_sum_to_the_extent() {
        let cases = [
            ([1, 2, 3], true),
            ([1, 2, 4], false),
            ([1, -2, 7], false),
            ([1, 1, 1 << 24], false),
        ];
        for (parts, expected) in cases {
            let lengths = InferenceFact::from(tensor1(&parts));
            let inputs = [&shaped(&[6, 2]), &lengths];
            assert_eq!(is_asked("Split", &inputs), expected, "{parts:?}");
        }
    }
}
