//! The effect of operators on powers of two.
//!
//! A value that is multiplied by `2^-e` has the exponent `e`, as a quantity has a unit. A product
//! adds exponents, a root halves them, and only values with one unit can be added. So
//! `x/√(mean x² + ε)` has exponent 0 for any exponent of x, if the exponent of ε is twice that of
//! x. The exponents that a normalizer needs follow from its operators.
//!
//! In binary floats all of this is exact, whatever the order of sums, as long as no number becomes
//! infinite or subnormal.

use std::ops::Range;

use crate::analysis::node_view::At;
use crate::onnx::operator::Category;
use crate::onnx::tensor::DataType;

/// The attribute that is added to a variance.
pub(crate) const EPSILON: &str = "epsilon";

/// The default of epsilon.
pub(crate) const USUAL_EPSILON: f32 = 1e-5;

/// The exponents that a node needs on its inputs, and those of its results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Law {
    /// The exponent that each input must have.
    pub wanted: Vec<i32>,
    /// The exponent that each output has.
    pub made: Vec<i32>,
    /// The float attributes that must be scaled, each with its exponent.
    pub attributes: Vec<Attribute>,
}

/// A float attribute that is added to an input, or compared with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attribute {
    /// Its name.
    pub name: &'static str,
    /// The exponent that the attribute must have.
    pub exponent: i32,
    /// The type in which the operator computes with the attribute. `None` if it is unknown.
    pub data_type: Option<DataType>,
}

impl Law {
    /// The law of any operator: inputs with exponent 0 give results with exponent 0.
    pub(crate) fn plain(at: &At) -> Self {
        let outputs = at.graph.outputs(at.node).len();
        Self {
            wanted: vec![0; at.arity()],
            made: vec![0; outputs],
            attributes: vec![],
        }
    }

    /// The law of a node whose inputs have the exponents `carried`, with `None` for constants and
    /// missing inputs.
    ///
    /// If several laws are possible, returns the law with the exponent `goal` for the result.
    pub(crate) fn from_node(at: &At, carried: &[Option<i32>], goal: Option<i32>) -> Self {
        let plain = Self::plain(at);
        if plain.wanted.is_empty() || plain.made.is_empty() {
            return plain;
        }
        Node { at, carried, goal }.law().unwrap_or(plain)
    }
}

/// A node whose law is searched.
struct Node<'n, 'a> {
    at: &'n At<'a>,
    carried: &'n [Option<i32>],
    goal: Option<i32>,
}

impl Node<'_, '_> {
    /// The law of the node. `None` if only the plain law is known.
    fn law(&self) -> Option<Law> {
        let first = self.first();
        match self.at.graph.domain_op(self.at.node) {
            ("", "Add" | "Concat" | "Max" | "Mean" | "Min" | "Sub" | "Sum") => {
                Some(self.one_unit(0..self.at.arity()))
            }
            ("", "Where") => Some(self.one_unit(1..3)),
            ("", "Clip") => Some(self.limits(&[(1, "min"), (2, "max")])),
            ("", "Pad") => Some(self.limits(&[(2, "value")])),
            ("", "Cast" | "CastLike") => self.is_between_floats().then(|| self.passed(1)),
            ("", "Mul") => Some(self.product_or_quotient(1)),
            ("", "Div") => Some(self.product_or_quotient(-1)),
            ("", "Sqrt") => (first % 2 == 0).then(|| self.makes(first / 2)),
            ("", "Reciprocal") => Some(self.makes(-first)),
            ("", "Pow") => self.power(),
            ("", "ReduceSumSquare") => Some(self.makes(2 * first)),
            ("", "LpNormalization") => Some(self.makes(0)),
            ("", "LayerNormalization" | "RMSNormalization" | "SimplifiedLayerNormalization") => {
                // If the statistics have a type other than float32, the result depends on the scale
                // of the input, so only the plain law holds.
                let is_usual = self.at.attr("stash_type", 1) == Ok(1) && self.is_unread(1);
                let mut law = Some(self.normalizer()).filter(|_| is_usual)?;
                law.attributes
                    .iter_mut()
                    .for_each(|epsilon| epsilon.data_type = Some(DataType::Float));
                Some(law)
            }
            ("", "GroupNormalization" | "InstanceNormalization") => Some(self.normalizer()),
            ("", "BatchNormalization") => self.batch_norm(),
            ("", "Split") => Some(self.passed(usize::MAX)),
            ("", "QuantizeLinear") => self.at.is_constant(1).then(|| self.codes()),
            ("", "DequantizeLinear") => Some(self.dequantized()),
            ("", "DynamicQuantizeLinear") => Some(self.codes_and_scale()),
            ("", op) if is_scale_transparent(op) => Some(self.passed(1)),
            _ => match self.at.graph.category(self.at.node)? {
                Category::Movement | Category::Selection => Some(self.passed(1)),
                category if category.is_product() => self.layer(),
                _ => None,
            },
        }
    }

    /// The exponent of the first input. A constant input takes the exponent `goal`, or 0 if there
    /// is no goal.
    fn first(&self) -> i32 {
        if self.at.is_constant(0) {
            self.goal.unwrap_or_default()
        } else {
            self.on(0)
        }
    }

    /// The exponent of an input, or 0 for a constant or a missing input.
    fn on(&self, slot: usize) -> i32 {
        self.carried
            .get(slot)
            .copied()
            .flatten()
            .unwrap_or_default()
    }

    fn is_between_floats(&self) -> bool {
        let At {
            graph, facts, node, ..
        } = *self.at;
        let ends = [graph.input(node, 0), graph.output(node, 0)];
        ends.into_iter().all(|value| {
            let data_type = value.and_then(|value| facts.data_type(value));
            data_type.is_some_and(DataType::is_float)
        })
    }

    /// Whether the outputs starting at index `from` have no readers.
    fn is_unread(&self, from: usize) -> bool {
        let graph = self.at.graph;
        let mut outputs = graph.outputs(self.at.node).iter().skip(from).flatten();
        outputs.all(|&value| graph.readers(value).is_empty())
    }

    /// Describes an attribute that is combined with a function of the first input, and so has the
    /// type of this input.
    fn attribute(&self, name: &'static str, exponent: i32) -> Attribute {
        let value = self.at.graph.input(self.at.node, 0);
        Attribute {
            name,
            exponent,
            data_type: value.and_then(|value| self.at.facts.data_type(value)),
        }
    }

    /// The law of a node whose first output has the exponent `made`.
    fn makes(&self, made: i32) -> Law {
        let mut law = Law::plain(self.at);
        law.wanted[0] = self.first();
        law.made[0] = made;
        law
    }

    /// The law of a node whose first `outputs` outputs have the exponent of the first input.
    fn passed(&self, outputs: usize) -> Law {
        let mut law = self.makes(self.first());
        law.made
            .iter_mut()
            .take(outputs)
            .for_each(|made| *made = self.first());
        law
    }

    /// The law of a quantization, whose scale has the unit of the value. Codes have no unit.
    fn codes(&self) -> Law {
        let mut law = self.makes(0);
        law.wanted[1] = self.first();
        law
    }

    /// The law of a quantization that computes the scale.
    fn codes_and_scale(&self) -> Law {
        let mut law = self.makes(0);
        let scale = law.made.get_mut(1);
        scale.into_iter().for_each(|scale| *scale = self.first());
        law
    }

    /// The law of codes times a scale. A constant scale gets the exponent `goal`.
    fn dequantized(&self) -> Law {
        let exponent = match self.at.is_constant(1) {
            true => self.goal.unwrap_or_default(),
            false => self.on(1),
        };
        let mut law = Law::plain(self.at);
        law.wanted[1] = exponent;
        law.made[0] = exponent;
        law
    }

    /// The law of a node that adds or compares these inputs. The inputs and the result get one
    /// exponent: the goal, or else the exponent that all varying inputs share, or else 0.
    fn one_unit(&self, slots: Range<usize>) -> Law {
        let mut varying = slots
            .clone()
            .filter_map(|slot| self.carried.get(slot).copied().flatten());
        let first = varying.next().unwrap_or_default();
        let common = if varying.all(|other| other == first) {
            first
        } else {
            0
        };
        let exponent = self.goal.unwrap_or(common);
        let mut law = Law::plain(self.at);
        law.wanted
            .iter_mut()
            .take(slots.end)
            .skip(slots.start)
            .for_each(|wanted| *wanted = exponent);
        law.made[0] = exponent;
        law
    }

    /// The law of a node that replaces elements of the first input by limits. The limits are inputs
    /// or, in earlier operator sets, attributes.
    fn limits(&self, numbers: &[(usize, &'static str)]) -> Law {
        let mut law = self.passed(1);
        for &(slot, name) in numbers {
            let is_attribute = self
                .at
                .proto()
                .attribute
                .iter()
                .any(|attribute| attribute.name() == name);
            match law.wanted.get_mut(slot) {
                Some(wanted) => *wanted = self.first(),
                None if is_attribute => law.attributes.push(self.attribute(name, self.first())),
                None => {}
            }
        }
        law
    }

    /// The law of `a·b` or `a/b`. A constant operand absorbs the difference between the goal and
    /// the exponent of the result.
    fn product_or_quotient(&self, sign: i32) -> Law {
        let mut law = self.makes(self.on(0) + sign * self.on(1));
        law.wanted = vec![self.on(0), self.on(1)];
        let missing = self.goal.map_or(0, |goal| goal - law.made[0]);
        if let Some(slot) = self.at.constant_operand() {
            law.wanted[slot] = if slot == 1 { sign * missing } else { missing };
            law.made[0] += missing;
        }
        law
    }

    /// The law of a product of two values, to which a third may be added. If one factor is a
    /// weight, it usually absorbs the exponent of the other factor. So the law then applies only if
    /// the goal is that exponent.
    fn layer(&self) -> Option<Law> {
        let made = self.on(0) + self.on(1);
        if [0, 1].into_iter().any(|slot| self.at.is_constant(slot)) && self.goal != Some(made) {
            return None;
        }
        let mut law = self.makes(made);
        law.wanted.fill(made);
        law.wanted
            .iter_mut()
            .zip([self.on(0), self.on(1)])
            .for_each(|(wanted, on)| *wanted = on);
        Some(law)
    }

    /// The law of a constant power of the first input. `None` if the power is not a scalar, or if
    /// the exponent of the result would not be a whole number.
    fn power(&self) -> Option<Law> {
        let numbers = self.at.numbers(1).ok()?;
        let made = numbers.iter().next()? * f64::from(self.on(0));
        let is_whole = numbers.len() == 1 && made == made.round() && made.abs() < 1e4;
        is_whole.then(|| self.makes(made as i32))
    }

    /// The law of a normalizer that divides by statistics of its first input. Its ε has twice the
    /// exponent of that input, and its parameters get the exponent `goal`.
    fn normalizer(&self) -> Law {
        let goal = self.goal.unwrap_or_default();
        let mut law = self.makes(goal);
        law.wanted
            .iter_mut()
            .skip(1)
            .for_each(|parameter| *parameter = goal);
        law.attributes.push(self.attribute(EPSILON, 2 * self.on(0)));
        law
    }

    /// The law of a BatchNormalization with fixed statistics. Its mean has the exponent of the
    /// operand, and its variance twice that exponent.
    fn batch_norm(&self) -> Option<Law> {
        let is_usual = self.at.flag("training_mode", false) == Ok(false)
            && self.at.graph.outputs(self.at.node).len() == 1;
        let mut law = Some(self.normalizer()).filter(|law| is_usual && law.wanted.len() == 5)?;
        law.wanted[3] = self.on(0);
        law.wanted[4] = 2 * self.on(0);
        Some(law)
    }
}

/// Whether an operator maps `k·x` to k times its result for `x`, for all k > 0. Movements and
/// selections also do so, but are not in the list.
fn is_scale_transparent(op: &str) -> bool {
    const OPS: &[&str] = &[
        "Abs",
        "AveragePool",
        "CumSum",
        "DepthToSpace",
        "Dropout",
        "GatherElements",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "LeakyRelu",
        "MaxPool",
        "Neg",
        "PRelu",
        "ReduceL1",
        "ReduceL2",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceSum",
        "Relu",
        "SpaceToDepth",
        "Trilu",
    ];
    OPS.contains(&op)
}
