//! The view of one node for rules and recognizers, with the facts about its values.

use crate::analysis::broadcast::LARGEST;
use crate::analysis::constants::Constants;
use crate::ir::axes::{axes, axis, permutation};
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::operator::{input_at, softmax_axis};
use crate::onnx::proto::NodeProto;
use crate::onnx::tensor::DataType;
use crate::recipe::{Numbers, Recipe};
use crate::refusal::Reason;
use crate::shape::facts::{Facts, Shape, extent};

/// A node as a rule sees it. Nothing can be changed through it.
#[derive(Clone, Copy)]
pub struct At<'a> {
    /// The graph.
    pub graph: &'a Graph<'a>,
    /// Shapes and small values.
    pub facts: &'a Facts,
    /// The constants.
    pub constants: &'a Constants<'a>,
    /// The node.
    pub node: NodeId,
}

impl At<'_> {
    /// The node's message.
    pub fn proto(&self) -> &NodeProto {
        self.graph.node(self.node)
    }

    /// The operator set version of the model.
    pub fn opset(&self) -> i64 {
        self.graph.model().own_opset()
    }

    /// One input.
    ///
    /// # Errors
    /// [`Reason::NotConstant`] where the node has none there.
    pub fn input(&self, slot: usize) -> Result<ValueId, Reason> {
        self.graph.input(self.node, slot).ok_or(Reason::NotConstant)
    }

    /// One output.
    ///
    /// # Errors
    /// [`Reason::UnknownShape`] where the node has none there.
    pub fn output(&self, slot: usize) -> Result<ValueId, Reason> {
        self.graph
            .output(self.node, slot)
            .ok_or(Reason::UnknownShape)
    }

    /// How many inputs the node lists.
    pub fn arity(&self) -> usize {
        self.graph.inputs(self.node).len()
    }

    /// Whether an input is there and is a constant.
    pub fn is_constant(&self, slot: usize) -> bool {
        self.graph
            .input(self.node, slot)
            .is_some_and(|value| self.constants.is_constant(value))
    }

    /// Whether an input is a constant, or one that is expanded, as tokens of a class are to the batch.
    pub fn is_expanded(&self, slot: usize) -> bool {
        let maker = self
            .input(slot)
            .ok()
            .and_then(|value| self.graph.producer(value));
        let expanded = maker.filter(|&(node, _)| self.graph.is(node, "Expand"));
        let source = expanded.and_then(|(node, _)| self.graph.input(node, 0));
        self.is_constant(slot) || source.is_some_and(|value| self.constants.is_constant(value))
    }

    /// Which of two operands is a constant; the second where both are, as weights and biases stand there.
    pub fn constant_operand(&self) -> Option<usize> {
        [1, 0].into_iter().find(|&slot| self.is_constant(slot))
    }

    /// Whether an input is a constant of one element.
    pub fn is_scalar(&self, slot: usize) -> bool {
        self.input(slot)
            .is_ok_and(|value| self.constants.is_scalar(value))
    }

    /// An input that must be a constant whose numbers can be changed.
    ///
    /// # Errors
    /// [`Reason::NotConstant`], or [`Reason::Quantized`].
    pub fn weight(&self, slot: usize) -> Result<ValueId, Reason> {
        let value = self.input(slot)?;
        if !self.constants.is_constant(value) {
            return Err(Reason::NotConstant);
        }
        if self.constants.is_quantized(value) {
            return Err(Reason::Quantized);
        }
        Ok(value)
    }

    /// A constant input of floats, and its numbers.
    ///
    /// # Errors
    /// Where there is no such input, and as [`Constants::numbers`].
    pub fn numbers(&self, slot: usize) -> Result<Numbers, Reason> {
        self.constants
            .numbers(self.input(slot)?)
            .map_err(|refusal| refusal.reason)
    }

    /// A constant input, whose numbers are not read.
    ///
    /// # Errors
    /// As [`At::weight`], and as [`At::extents`].
    pub fn constant(&self, slot: usize) -> Result<Recipe, Reason> {
        let value = self.weight(slot)?;
        Ok(Recipe::constant(
            self.graph.value_name(value),
            &self.extents(slot)?,
        ))
    }

    /// The elements of a constant integer input, if the input is present.
    ///
    /// # Errors
    /// Where the input is no constant, or its integers are not known.
    pub fn ints(&self, slot: usize) -> Result<Option<Vec<i64>>, Reason> {
        match self.graph.input(self.node, slot) {
            None => Ok(None),
            Some(value) if self.constants.is_constant(value) => {
                let ints = self.constants.ints(value);
                ints.map(Some)
                    .ok_or(Reason::Constant("its integers are not known".into()))
            }
            Some(_) => Err(Reason::NotConstant),
        }
    }

    /// Extents of an input.
    ///
    /// # Errors
    /// Where there is no such input, or its shape is not known.
    pub fn shape(&self, slot: usize) -> Result<Shape, Reason> {
        self.facts
            .shape(self.input(slot)?)
            .ok_or(Reason::UnknownShape)
    }

    /// Extents of an output.
    ///
    /// # Errors
    /// Where there is no such output, or its shape is not known.
    pub fn output_shape(&self, slot: usize) -> Result<Shape, Reason> {
        self.facts
            .shape(self.output(slot)?)
            .ok_or(Reason::UnknownShape)
    }

    /// Extents of an input as numbers.
    ///
    /// # Errors
    /// As [`At::shape`], and where one of them is no number.
    pub fn extents(&self, slot: usize) -> Result<Vec<usize>, Reason> {
        self.shape(slot)?
            .iter()
            .map(extent)
            .collect::<Option<_>>()
            .ok_or(Reason::UnknownShape)
    }

    /// The extent of an axis of an input, as a number. In a contradictory model the rank may differ
    /// from the expected one.
    ///
    /// # Errors
    /// As [`At::shape`], and where it is no number, or there is no such axis.
    pub fn extent(&self, slot: usize, axis: usize) -> Result<usize, Reason> {
        self.shape(slot)?
            .get(axis)
            .and_then(extent)
            .ok_or(Reason::UnknownShape)
    }

    /// Extent of an axis of an output as a number.
    ///
    /// # Errors
    /// As [`At::output_shape`], and where it is no number, or there is no such axis.
    pub fn output_extent(&self, slot: usize, axis: usize) -> Result<usize, Reason> {
        self.output_shape(slot)?
            .get(axis)
            .and_then(extent)
            .ok_or(Reason::UnknownShape)
    }

    /// Extent of an axis of an input, where its places can be listed.
    ///
    /// # Errors
    /// As [`At::extent`], and [`Reason::TooLarge`] where there are too many.
    pub fn places(&self, slot: usize, axis: usize) -> Result<usize, Reason> {
        match self.extent(slot, axis)? {
            count if count > LARGEST => Err(Reason::TooLarge(count)),
            count => Ok(count),
        }
    }

    /// Number of axes of an input.
    ///
    /// # Errors
    /// Where there is no such input, or its rank is not known.
    pub fn rank(&self, slot: usize) -> Result<usize, Reason> {
        self.facts
            .rank(self.input(slot)?)
            .ok_or(Reason::UnknownShape)
    }

    /// Number of axes of an output.
    ///
    /// # Errors
    /// Where there is no such output, or its rank is not known.
    pub fn output_rank(&self, slot: usize) -> Result<usize, Reason> {
        self.facts
            .rank(self.output(slot)?)
            .ok_or(Reason::UnknownShape)
    }

    /// An integer attribute, or what its absence means.
    ///
    /// # Errors
    /// [`Reason::Attribute`] where it is no integer.
    pub fn attr(&self, name: &str, absent: i64) -> Result<i64, Reason> {
        let read = self.proto().attr_i(name);
        read.map(|value| value.unwrap_or(absent))
            .map_err(|_| Reason::Attribute(name.into()))
    }

    /// A boolean integer attribute. Engines disagree about numbers other than 0 and 1.
    ///
    /// # Errors
    /// [`Reason::Attribute`] where it is neither 0 nor 1.
    pub fn flag(&self, name: &str, absent: bool) -> Result<bool, Reason> {
        match self.attr(name, absent.into())? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Reason::Attribute(name.into())),
        }
    }

    /// A float attribute, or what its absence means.
    ///
    /// # Errors
    /// [`Reason::Attribute`] where it is no float, or not finite.
    pub fn attr_float(&self, name: &str, absent: f32) -> Result<f64, Reason> {
        let read = self.proto().attr_f(name).ok();
        let value = read.filter(|value| value.is_none_or(f32::is_finite));
        value
            .map(|value| value.unwrap_or(absent).into())
            .ok_or_else(|| Reason::Attribute(name.into()))
    }

    /// A list attribute.
    ///
    /// # Errors
    /// [`Reason::Attribute`] where it is no list of integers.
    pub fn attr_ints(&self, name: &str) -> Result<Option<Vec<i64>>, Reason> {
        let read = self
            .proto()
            .attr_ints(name)
            .map_err(|_| Reason::Attribute(name.into()))?;
        Ok(read.map(<[i64]>::to_vec))
    }

    /// A string attribute, or what its absence means.
    ///
    /// # Errors
    /// [`Reason::Attribute`] where it is no string.
    pub fn attr_text<'s>(&'s self, name: &str, absent: &'s str) -> Result<&'s str, Reason> {
        let read = self
            .proto()
            .attr_s(name)
            .map_err(|_| Reason::Attribute(name.into()))?;
        Ok(read.unwrap_or(absent))
    }

    /// The input that holds what earlier operator sets have as an attribute; `None` where it is one.
    pub fn input_for(&self, attribute: &str) -> Option<usize> {
        input_at(self.proto().op_type(), attribute, self.opset())
    }

    /// Integers that are an attribute or a constant input, as the operator set has them.
    ///
    /// # Errors
    /// As [`At::attr_ints`] of an attribute, and as [`At::ints`] of an input.
    pub fn list(&self, name: &str) -> Result<Option<Vec<i64>>, Reason> {
        self.input_for(name)
            .map_or_else(|| self.attr_ints(name), |slot| self.ints(slot))
    }

    /// The axes that a Reduce operator reduces, ascending, and whether they stay with extent 1.
    ///
    /// # Errors
    /// If the axes cannot be read, or one is out of range.
    pub fn reduction(&self, rank: usize) -> Result<(Vec<usize>, bool), Reason> {
        let mut reduced = match self.list("axes")?.filter(|list| !list.is_empty()) {
            Some(list) => axes(&list, rank)?,
            None if self.flag("noop_with_empty_axes", false)? => vec![],
            None => (0..rank).collect(),
        };
        reduced.sort_unstable();
        reduced.dedup();
        Ok((reduced, self.flag("keepdims", true)?))
    }

    /// The axis along which alone a Softmax normalizes.
    ///
    /// # Errors
    /// [`Reason::Attribute`] where there is no such axis, or it is not the only one.
    pub fn softmax_axis(&self, rank: usize) -> Result<usize, Reason> {
        let (absent, alone) = softmax_axis(self.opset());
        let along = axis(self.attr("axis", absent)?, rank)?;
        (alone || along + 1 == rank)
            .then_some(along)
            .ok_or(Reason::Attribute("axis".into()))
    }

    /// Refuses an operator that usually hands its input on, and does more here: a Cast to integers, a Dropout in training.
    ///
    /// # Errors
    /// The transfer of its elements.
    pub fn check_handing_on(&self) -> Result<(), Reason> {
        match self.proto().op_type() {
            op @ ("Cast" | "CastLike") => {
                let to = match op {
                    "Cast" => self.proto().cast_to(),
                    _ => self.facts.data_type(self.input(1)?),
                };
                if !to.is_some_and(DataType::is_float) {
                    return Err(Reason::NotLinear(format!(
                        "{op} to a type that is no float"
                    )));
                }
            }
            "Dropout" => {
                // Opset 12 made training a run-time input.
                let training = self.graph.input(self.node, 2).is_some();
                let is_off = training
                    && self
                        .ints(2)?
                        .is_some_and(|values| values.iter().all(|&v| v == 0));
                if training && !is_off {
                    return Err(Reason::TrainingMode);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The permutation of a Transpose.
    ///
    /// # Errors
    /// [`Reason::Attribute`] where it is none of so many axes.
    pub fn permutation(&self, rank: usize) -> Result<Vec<usize>, Reason> {
        permutation(self.attr_ints("perm")?.as_deref(), rank)
    }

    /// Refuses every attribute that the caller does not list.
    ///
    /// # Errors
    /// [`Reason::Attribute`] of the first one.
    pub fn only_attributes(&self, known: &[&str]) -> Result<(), Reason> {
        let unknown = self
            .proto()
            .attribute
            .iter()
            .find(|attribute| !known.contains(&attribute.name()));
        unknown.map_or(Ok(()), |attribute| {
            Err(Reason::Attribute(attribute.name().into()))
        })
    }

    /// The only input that carries an affine, which must be this one.
    ///
    /// # Errors
    /// [`Reason::NotLinear`] where it carries none, or another one does.
    pub fn only<'i, T>(&self, inputs: &'i [Option<T>], slot: usize) -> Result<&'i T, Reason> {
        if inputs
            .iter()
            .enumerate()
            .any(|(i, input)| i != slot && input.is_some())
        {
            return Err(self.not_linear());
        }
        inputs
            .get(slot)
            .and_then(Option::as_ref)
            .ok_or_else(|| self.not_linear())
    }

    /// The reason where the operator does not let an affine pass.
    pub fn not_linear(&self) -> Reason {
        Reason::NotLinear(self.proto().op_type().into())
    }
}
