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

/// A read-only view of a node for rules.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
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
    /// The protobuf message of the node.
    pub(crate) fn proto(&self) -> &NodeProto {
        self.graph.node(self.node)
    }

    /// The version of ONNX's operator set that the model imports.
    pub(crate) fn opset(&self) -> i64 {
        self.graph.model().own_opset()
    }

    /// The input in a slot.
    ///
    /// # Errors
    /// [`Reason::NotConstant`] if the node lacks the input.
    pub(crate) fn input(&self, slot: usize) -> Result<ValueId, Reason> {
        self.graph.input(self.node, slot).ok_or(Reason::NotConstant)
    }

    /// The output in a slot.
    ///
    /// # Errors
    /// [`Reason::UnknownShape`] if the node lacks the output.
    pub(crate) fn output(&self, slot: usize) -> Result<ValueId, Reason> {
        self.graph
            .output(self.node, slot)
            .ok_or(Reason::UnknownShape)
    }

    /// The number of inputs that the node lists.
    pub(crate) fn arity(&self) -> usize {
        self.graph.inputs(self.node).len()
    }

    /// Whether the node has an input in this slot that is a constant.
    pub(crate) fn is_constant(&self, slot: usize) -> bool {
        self.graph
            .input(self.node, slot)
            .is_some_and(|value| self.constants.is_constant(value))
    }

    /// Whether an input is a constant, or a constant that an Expand repeats, as a class token is
    /// expanded to the batch.
    pub(crate) fn is_expanded(&self, slot: usize) -> bool {
        let maker = self
            .input(slot)
            .ok()
            .and_then(|value| self.graph.producer(value));
        let expanded = maker.filter(|&(node, _)| self.graph.is(node, "Expand"));
        let source = expanded.and_then(|(node, _)| self.graph.input(node, 0));
        self.is_constant(slot) || source.is_some_and(|value| self.constants.is_constant(value))
    }

    /// The slot, 0 or 1, of the operand that is a constant. If both operands are constants, this is
    /// slot 1, which usually holds the weight or bias. `None` if neither is a constant.
    pub(crate) fn constant_operand(&self) -> Option<usize> {
        [1, 0].into_iter().find(|&slot| self.is_constant(slot))
    }

    /// Whether an input is a constant with one element.
    pub(crate) fn is_scalar(&self, slot: usize) -> bool {
        self.input(slot)
            .is_ok_and(|value| self.constants.is_scalar(value))
    }

    /// An input that must be a constant whose elements may be changed.
    ///
    /// # Errors
    /// [`Reason::NotConstant`] or [`Reason::Quantized`].
    pub(crate) fn weight(&self, slot: usize) -> Result<ValueId, Reason> {
        let value = self.input(slot)?;
        if !self.constants.is_constant(value) {
            return Err(Reason::NotConstant);
        }
        if self.constants.is_quantized(value) {
            return Err(Reason::Quantized);
        }
        Ok(value)
    }

    /// Whether the node has an input in this slot that is a constant computed from quantized
    /// elements.
    pub(crate) fn is_dequantized(&self, slot: usize) -> bool {
        self.graph
            .input(self.node, slot)
            .is_some_and(|value| self.constants.is_dequantized(value))
    }

    /// The elements of an input, which must be a floating-point constant.
    ///
    /// # Errors
    /// If the node lacks the input, and the errors of [`Constants::numbers`].
    pub(crate) fn numbers(&self, slot: usize) -> Result<Numbers, Reason> {
        self.constants
            .numbers(self.input(slot)?)
            .map_err(|refusal| refusal.reason)
    }

    /// A constant input, whose elements are not read.
    ///
    /// # Errors
    /// The errors of [`At::weight`] and of [`At::extents`].
    pub(crate) fn constant(&self, slot: usize) -> Result<Recipe, Reason> {
        let value = self.weight(slot)?;
        Ok(Recipe::constant(
            self.graph.value_name(value),
            &self.extents(slot)?,
        ))
    }

    /// The elements of an input, which must be a constant of integers; `None` if the node lacks the
    /// input.
    ///
    /// # Errors
    /// If the input is not a constant, or its integers are unknown.
    pub(crate) fn ints(&self, slot: usize) -> Result<Option<Vec<i64>>, Reason> {
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

    /// The shape of an input.
    ///
    /// # Errors
    /// If the node lacks the input, or its shape is unknown.
    pub(crate) fn shape(&self, slot: usize) -> Result<Shape, Reason> {
        self.facts
            .shape(self.input(slot)?)
            .ok_or(Reason::UnknownShape)
    }

    /// The shape of an output.
    ///
    /// # Errors
    /// If the node lacks the output, or its shape is unknown.
    pub(crate) fn output_shape(&self, slot: usize) -> Result<Shape, Reason> {
        self.facts
            .shape(self.output(slot)?)
            .ok_or(Reason::UnknownShape)
    }

    /// The extents of an input, which must be known.
    ///
    /// # Errors
    /// The errors of [`At::shape`], or if an extent is unknown.
    pub(crate) fn extents(&self, slot: usize) -> Result<Vec<usize>, Reason> {
        self.shape(slot)?
            .iter()
            .map(extent)
            .collect::<Option<_>>()
            .ok_or(Reason::UnknownShape)
    }

    /// The extent of an axis of an input, which must be known. In a model that contradicts itself,
    /// the axis may not exist.
    ///
    /// # Errors
    /// The errors of [`At::shape`], or if the extent is unknown, or if the axis does not exist.
    pub(crate) fn extent(&self, slot: usize, axis: usize) -> Result<usize, Reason> {
        self.shape(slot)?
            .get(axis)
            .and_then(extent)
            .ok_or(Reason::UnknownShape)
    }

    /// The extent of an axis of an output, which must be known.
    ///
    /// # Errors
    /// The errors of [`At::output_shape`], or if the extent is unknown, or if the axis does not
    /// exist.
    pub(crate) fn output_extent(&self, slot: usize, axis: usize) -> Result<usize, Reason> {
        self.output_shape(slot)?
            .get(axis)
            .and_then(extent)
            .ok_or(Reason::UnknownShape)
    }

    /// The extent of an axis of an input, if it is small enough for a list of all places.
    ///
    /// # Errors
    /// The errors of [`At::extent`], and [`Reason::TooLarge`] if there are too many places.
    pub(crate) fn places(&self, slot: usize, axis: usize) -> Result<usize, Reason> {
        match self.extent(slot, axis)? {
            count if count > LARGEST => Err(Reason::TooLarge(count)),
            count => Ok(count),
        }
    }

    /// The rank of an input.
    ///
    /// # Errors
    /// If the node lacks the input, or its rank is unknown.
    pub(crate) fn rank(&self, slot: usize) -> Result<usize, Reason> {
        self.facts
            .rank(self.input(slot)?)
            .ok_or(Reason::UnknownShape)
    }

    /// The rank of an output.
    ///
    /// # Errors
    /// If the node lacks the output, or its rank is unknown.
    pub(crate) fn output_rank(&self, slot: usize) -> Result<usize, Reason> {
        self.facts
            .rank(self.output(slot)?)
            .ok_or(Reason::UnknownShape)
    }

    /// An integer attribute, or `absent` if the node lacks it.
    ///
    /// # Errors
    /// [`Reason::Attribute`] if it is not an integer.
    pub(crate) fn attr(&self, name: &str, absent: i64) -> Result<i64, Reason> {
        let read = self.proto().attr_i(name);
        read.map(|value| value.unwrap_or(absent))
            .map_err(|_| Reason::Attribute(name.into()))
    }

    /// An integer attribute that is a flag, or `absent` if the node lacks it. Integers other than 0
    /// and 1 are refused, because engines disagree about them.
    ///
    /// # Errors
    /// [`Reason::Attribute`] if it is neither 0 nor 1.
    pub(crate) fn flag(&self, name: &str, absent: bool) -> Result<bool, Reason> {
        match self.attr(name, absent.into())? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Reason::Attribute(name.into())),
        }
    }

    /// A float attribute, or `absent` if the node lacks it.
    ///
    /// # Errors
    /// [`Reason::Attribute`] if it is not a float, or not finite.
    pub(crate) fn attr_float(&self, name: &str, absent: f32) -> Result<f64, Reason> {
        let read = self.proto().attr_f(name).ok();
        let value = read.filter(|value| value.is_none_or(f32::is_finite));
        value
            .map(|value| value.unwrap_or(absent).into())
            .ok_or_else(|| Reason::Attribute(name.into()))
    }

    /// An attribute that is a list of integers; `None` if the node lacks it.
    ///
    /// # Errors
    /// [`Reason::Attribute`] if it is not a list of integers.
    pub(crate) fn attr_ints(&self, name: &str) -> Result<Option<Vec<i64>>, Reason> {
        let read = self
            .proto()
            .attr_ints(name)
            .map_err(|_| Reason::Attribute(name.into()))?;
        Ok(read.map(<[i64]>::to_vec))
    }

    /// A string attribute, or `absent` if the node lacks it.
    ///
    /// # Errors
    /// [`Reason::Attribute`] if it is not a string.
    pub(crate) fn attr_text<'s>(&'s self, name: &str, absent: &'s str) -> Result<&'s str, Reason> {
        let read = self
            .proto()
            .attr_s(name)
            .map_err(|_| Reason::Attribute(name.into()))?;
        Ok(read.unwrap_or(absent))
    }

    /// The slot of the input that replaces an attribute of earlier operator sets; `None` if it
    /// still is an attribute in this operator set.
    pub(crate) fn input_for(&self, attribute: &str) -> Option<usize> {
        input_at(self.proto().op_type(), attribute, self.opset())
    }

    /// A list of integers that is an attribute or a constant input, depending on the version of the
    /// operator set; `None` if the node lacks it.
    ///
    /// # Errors
    /// The errors of [`At::attr_ints`] for an attribute, and of [`At::ints`] for an input.
    pub(crate) fn list(&self, name: &str) -> Result<Option<Vec<i64>>, Reason> {
        self.input_for(name)
            .map_or_else(|| self.attr_ints(name), |slot| self.ints(slot))
    }

    /// The axes that a Reduce operator reduces, in ascending order, and whether the result keeps
    /// them with extent 1.
    ///
    /// # Errors
    /// If the axes are unknown, or if one is out of range.
    pub(crate) fn reduction(&self, rank: usize) -> Result<(Vec<usize>, bool), Reason> {
        let mut reduced = match self.list("axes")?.filter(|list| !list.is_empty()) {
            Some(list) => axes(&list, rank)?,
            None if self.flag("noop_with_empty_axes", false)? => vec![],
            None => (0..rank).collect(),
        };
        reduced.sort_unstable();
        reduced.dedup();
        Ok((reduced, self.flag("keepdims", true)?))
    }

    /// The axis along which a Softmax normalizes.
    ///
    /// # Errors
    /// [`Reason::Attribute`] if the axis does not exist, or if the Softmax normalizes along several
    /// axes.
    pub(crate) fn softmax_axis(&self, rank: usize) -> Result<usize, Reason> {
        let (absent, alone) = softmax_axis(self.opset());
        let along = axis(self.attr("axis", absent)?, rank)?;
        (alone || along + 1 == rank)
            .then_some(along)
            .ok_or(Reason::Attribute("axis".into()))
    }

    /// Refuses a Cast to integers and a Dropout in training mode, which are not the identity.
    ///
    /// # Errors
    /// [`Reason::NotLinear`] or [`Reason::TrainingMode`].
    pub(crate) fn check_handing_on(&self) -> Result<(), Reason> {
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
                // Since operator set 12, training mode is an input.
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
    /// [`Reason::Attribute`] if it is not a permutation of `rank` axes.
    pub(crate) fn permutation(&self, rank: usize) -> Result<Vec<usize>, Reason> {
        permutation(self.attr_ints("perm")?.as_deref(), rank)
    }

    /// Refuses attributes that the caller does not list.
    ///
    /// # Errors
    /// [`Reason::Attribute`] with the first attribute that is not in `known`.
    pub(crate) fn only_attributes(&self, known: &[&str]) -> Result<(), Reason> {
        let unknown = self
            .proto()
            .attribute
            .iter()
            .find(|attribute| !known.contains(&attribute.name()));
        unknown.map_or(Ok(()), |attribute| {
            Err(Reason::Attribute(attribute.name().into()))
        })
    }

    /// The affine of the input in `slot`, which must be the only input that carries one.
    ///
    /// # Errors
    /// [`Reason::NotLinear`] if the input carries none, or if another input does.
    pub(crate) fn only<'i, T>(
        &self,
        inputs: &'i [Option<T>],
        slot: usize,
    ) -> Result<&'i T, Reason> {
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

    /// The refusal of an operator through which an affine cannot pass.
    pub(crate) fn not_linear(&self) -> Reason {
        Reason::NotLinear(self.proto().op_type().into())
    }
}
