//! Normalizers as one node of a custom domain, by the convention in `docs/opaque.md`. A kind
//! declares such an operator as an [`Opaque`], with a function that writes its formula.

use std::collections::HashSet;

use ndarray::{ArrayD, IxDyn};

use crate::analysis::Analysis;
use crate::ir::builder::NewConstant;
use crate::ir::names::Names;
use crate::ir::{axes, builder, node_name};
use crate::onnx::Model;
use crate::onnx::proto::{AttributeProto, AttributeType, NodeProto, TensorProto};
use crate::onnx::tensor::{self, DataType};
use crate::recipe::Numbers;

/// The meaning of an opaque operator.
pub(crate) struct Opaque {
    /// The names of the operator, as letters and digits in lower case.
    pub names: &'static [&'static str],
    /// The word that identifies the kind in recognition.
    pub word: &'static str,
    /// The parameters, in the order of the inputs after `x`.
    pub parameters: &'static [Parameter],
    /// Writes the formula as operators. `None` if the parameters or the value do not fit it.
    pub formula: fn(&mut Expansion) -> Option<Written>,
}

impl Opaque {
    /// Whether the operator has a parameter with this name.
    fn has_parameter(&self, name: &str) -> bool {
        self.parameters
            .iter()
            .any(|parameter| parameter.contains(&name))
    }
}

/// The attributes of an opaque operator that are not parameters.
const SETTINGS: &[&str] = &["axis", "epsilon", "eps", "groups"];

/// A parameter, given by the names that its attribute may have.
pub(crate) type Parameter = &'static [&'static str];

/// The factor of the input.
pub(crate) const ALPHA: Parameter = &["alpha"];
/// The scale of the result, 1 by default.
pub(crate) const GAMMA: Parameter = &["gamma", "weight", "scale"];
/// The shift of the result, 0 by default.
pub(crate) const BETA: Parameter = &["beta", "bias"];
/// The mean, which is subtracted first, 0 by default.
pub(crate) const MEAN: Parameter = &["mean", "running_mean"];
/// The variance. The divisor is √(variance + ε).
pub(crate) const VARIANCE: Parameter = &["var", "running_var", "phi", "running_phi"];
/// The offset of a Scaler, which is subtracted first.
pub(crate) const OFFSET: Parameter = &["offset"];
/// The factor of a Scaler.
pub(crate) const FACTOR: Parameter = &["scale"];

/// A formula that is written except for its last step, `scale·value + shift`, channel by channel.
pub(crate) struct Written {
    /// The name of the value to which the last step is applied.
    pub value: String,
    /// The scale of the last step.
    pub scale: Numbers,
    /// The shift of the last step.
    pub shift: Numbers,
}

/// Writes `γ(x − μ)/√(σ²+ε) + β` of a value. `None` if the node lacks the variance σ², or if `σ²+ε`
/// is not positive.
pub(crate) fn fixed(node: &Expansion, value: String) -> Option<Written> {
    let (variance, epsilon) = (node.get(VARIANCE)?, node.epsilon()?);
    if !variance.iter().all(|v| v + epsilon > 0.0) {
        return None;
    }
    let scale = &node.get_or(GAMMA, 1.0) / &(&variance + &Numbers::number(epsilon, 1)).sqrt();
    let beta = node.get_or(BETA, 0.0);
    let shift = match node.get(MEAN) {
        Some(mean) => &beta - &(&scale * &mean),
        None => beta,
    };
    Some(Written {
        value,
        scale,
        shift,
    })
}

/// Writes `(x − offset)·scale` in float32. `None` if engines reject the Scaler: they require equal
/// numbers of offsets and factors, and allow several only for the columns of a matrix.
pub(crate) fn scaled(node: &mut Expansion) -> Option<Written> {
    let (offset, scale) = (node.get(OFFSET)?, node.get(FACTOR)?);
    let is_matrix = node.last_axis().is_some_and(|(_, rank)| rank == 2);
    if offset.len() != scale.len() || (scale.len() != 1 && !is_matrix) {
        return None;
    }
    let value = node.in_single()?;
    let shift = &Numbers::number(0.0, 1) - &(&scale * &offset);
    Some(Written {
        value,
        scale,
        shift,
    })
}

/// A node of a custom domain that is being written out.
pub(crate) struct Expansion<'w, 'm> {
    model: &'w Model,
    node: &'w NodeProto,
    opaque: &'static Opaque,
    names: &'w mut Names<'m>,
    nodes: Vec<NodeProto>,
    constants: Vec<TensorProto>,
    /// The formulas of the float constants.
    formulas: Vec<NewConstant>,
    /// The parameters that the node has, each as [channels] or as a single scalar.
    given: Vec<(Parameter, Numbers)>,
    /// The axis of the channels, and the rank of the value.
    axis: Option<(usize, usize)>,
    /// The number of channels.
    channels: Option<usize>,
    /// The element type of the value, and so of the constants.
    data_type: Option<DataType>,
}

/// The expansion of an opaque node.
pub(crate) struct Expanded {
    /// The nodes.
    pub nodes: Vec<NodeProto>,
    /// The constants that the nodes read.
    pub constants: Vec<TensorProto>,
    /// The formulas of the float constants, over constants of the model.
    pub formulas: Vec<NewConstant>,
}

/// Writes out an opaque node. `None` if an attribute, an input or an output of the node is not
/// understood.
pub(crate) fn write(
    Analysis { graph, facts, .. }: &Analysis,
    node: &NodeProto,
    opaque: &'static Opaque,
    names: &mut Names,
) -> Option<Expanded> {
    let model = graph.model();
    let mut attributes = node.attribute.iter().map(AttributeProto::name);
    let is_understood =
        attributes.all(|name| SETTINGS.contains(&name) || opaque.has_parameter(name));
    let [output] = &node.output[..] else {
        return None;
    };
    let value = graph.value(node.input.first()?)?;
    // Before operator set 7, operators did not broadcast constants by default.
    let broadcasts = model.own_opset() >= 7;
    if !is_understood
        || !broadcasts
        || output.is_empty()
        || node.input.len() > opaque.parameters.len() + 1
    {
        return None;
    }
    let axis = match (node.attr_i("axis").ok()?.unwrap_or(-1), facts.rank(value)) {
        (axis, Some(rank)) => Some((axes::axis(axis, rank).ok()?, rank)),
        (-1, None) => None,
        (_, None) => return None,
    };
    let mut expansion = Expansion {
        model,
        node,
        opaque,
        names,
        nodes: vec![],
        constants: vec![],
        formulas: vec![],
        given: vec![],
        axis,
        channels: axis.and_then(|(axis, _)| facts.extent(value, axis)),
        data_type: facts.data_type(value).or_else(|| only_float_type(model)),
    };
    expansion.read()?;
    let written = (opaque.formula)(&mut expansion)?;
    expansion.finish(written, output)
}

impl Expansion<'_, '_> {
    /// Reads the parameters. `None` if a parameter has neither one element in total nor one element
    /// for each channel.
    fn read(&mut self) -> Option<()> {
        for (slot, &parameter) in self.opaque.parameters.iter().enumerate() {
            if let Some(numbers) = self.parameter(slot + 1, parameter)? {
                self.given
                    .push((parameter, by_channel(&numbers, self.behind())?));
            }
        }
        let lengths = self.given.iter().map(|(_, value)| value.len());
        let lengths: HashSet<usize> = lengths
            .chain(self.channels)
            .filter(|&length| length != 1)
            .collect();
        (lengths.len() <= 1 && (self.channels != Some(1) || lengths.is_empty())).then_some(())
    }

    /// The number of axes after the axis of the channels.
    fn behind(&self) -> usize {
        self.axis.map_or(0, |(axis, rank)| rank - 1 - axis)
    }

    /// The name of the value that the node reads.
    pub(crate) fn x(&self) -> String {
        self.node.input.first().cloned().unwrap_or_default()
    }

    /// Casts the value to float32, which is then the type of the constants, too. `None` if its type
    /// is neither float32 nor float64.
    pub(crate) fn in_single(&mut self) -> Option<String> {
        let x = self.x();
        match self.data_type? {
            DataType::Float => Some(x),
            DataType::Double => {
                self.data_type = Some(DataType::Float);
                Some(self.op(
                    "Cast",
                    &[&x],
                    vec![builder::int("to", DataType::Float.code().into())],
                ))
            }
            _ => None,
        }
    }

    /// A parameter, if it is given.
    pub(crate) fn get(&self, parameter: Parameter) -> Option<Numbers> {
        self.given
            .iter()
            .find(|(given, _)| *given == parameter)
            .map(|(_, value)| value.clone())
    }

    /// A parameter, or `neutral` if it is left out.
    pub(crate) fn get_or(&self, parameter: Parameter, neutral: f64) -> Numbers {
        self.get(parameter)
            .unwrap_or_else(|| Numbers::number(neutral, 1))
    }

    /// The epsilon that is added to a variance, 1e-5 by default. `None` if the node has both
    /// `epsilon` and `eps`.
    pub(crate) fn epsilon(&self) -> Option<f64> {
        match (
            self.node.attr_f("epsilon").ok()?,
            self.node.attr_f("eps").ok()?,
        ) {
            (Some(_), Some(_)) => None,
            (one, other) => Some(f64::from(one.or(other).unwrap_or(1e-5))),
        }
    }

    /// The version of the operator set of ONNX.
    pub(crate) fn opset(&self) -> i64 {
        self.model.own_opset()
    }

    /// An integer attribute of the node. `Some(None)` if it is left out, `None` if it is not an
    /// integer.
    pub(crate) fn int(&self, name: &str) -> Option<Option<i64>> {
        self.node.attr_i(name).ok()
    }

    /// The number of channels and the rank, if the channels are on the last axis.
    pub(crate) fn last_axis(&self) -> Option<(usize, usize)> {
        let (axis, rank) = self.axis?;
        Some((self.channels.filter(|_| axis + 1 == rank)?, rank))
    }

    /// Adds a node. Returns the name of its output.
    pub(crate) fn op(
        &mut self,
        op: &str,
        inputs: &[&str],
        attribute: Vec<AttributeProto>,
    ) -> String {
        let output = self.fresh(&format!("{op}_output"));
        self.push(op, inputs, attribute, &output);
        output
    }

    /// Adds a node on a value and a constant. Returns the name of its output.
    pub(crate) fn with(&mut self, op: &str, value: &str, constant: &Numbers) -> Option<String> {
        let constant = self.constant(op, constant, 0)?;
        Some(self.op(op, &[value, &constant], vec![]))
    }

    /// Adds a constant of integers, such as a shape or axes. Returns its name.
    pub(crate) fn integers(&mut self, what: &str, values: &[i64]) -> String {
        let name = self
            .names
            .fresh(&format!("{}_{what}", node_name(self.node)));
        self.constants.push(tensor::make_i64(&name, values));
        name
    }

    fn fresh(&mut self, what: &str) -> String {
        self.names.fresh(&format!(
            "{}/{}/{what}",
            node_name(self.node),
            self.opaque.word
        ))
    }

    fn push(&mut self, op: &str, inputs: &[&str], attribute: Vec<AttributeProto>, output: &str) {
        let name = self.fresh(op);
        self.nodes.push(NodeProto {
            attribute,
            ..builder::node(self.node, op, &name, inputs, output)
        });
    }

    /// Adds the constant that an operator reads, with `behind` more axes of extent 1 at the end.
    /// Returns its name. `None` if the element type is unknown, or if a factor would lose digits in
    /// that type.
    fn constant(&mut self, op: &str, numbers: &Numbers, behind: usize) -> Option<String> {
        let mut shape = vec![numbers.len()];
        shape.extend(vec![1; if numbers.len() == 1 { 0 } else { behind }]);
        let shaped = numbers.reshape(&shape)?;
        let data_type = self.data_type?;
        // If a factor would be subnormal and lose digits, the node stays opaque.
        if op == "Mul"
            && numbers
                .iter()
                .any(|&number| tensor::underflow(data_type, number) != 0.0)
        {
            return None;
        }
        let name = self
            .names
            .fresh(&format!("{}_{}", node_name(self.node), op.to_lowercase()));
        self.constants
            .push(tensor::make(&name, data_type, &shaped.view()).ok()?);
        let recipe = shaped.recipe().clone();
        self.formulas.push(NewConstant::Floats {
            name: name.clone(),
            data_type,
            recipe,
        });
        Some(name)
    }

    /// Writes the scale and the shift. The last of these nodes computes the output of the opaque
    /// node.
    fn finish(mut self, written: Written, output: &str) -> Option<Expanded> {
        let Written {
            mut value,
            scale,
            shift,
        } = written;
        let shifts = shift.iter().any(|&t| t != 0.0);
        let scales = !shifts || scale.iter().any(|&s| s != 1.0);
        let steps = [
            scales.then_some(("Mul", &scale)),
            shifts.then_some(("Add", &shift)),
        ];
        let steps: Vec<_> = steps.into_iter().flatten().collect();
        for (place, (op, array)) in steps.iter().enumerate() {
            let constant = self.constant(op, array, self.behind())?;
            let inputs = [value.as_str(), &constant];
            if place + 1 == steps.len() {
                self.push(op, &inputs, vec![], output);
            } else {
                value = self.op(op, &inputs, vec![]);
            }
        }
        Some(Expanded {
            nodes: self.nodes,
            constants: self.constants,
            formulas: self.formulas,
        })
    }

    /// Reads a parameter from an input or an attribute. `Some(None)` if it is left out, `None` if
    /// it is not a constant or is given more than once.
    fn parameter(&self, slot: usize, parameter: Parameter) -> Option<Option<Numbers>> {
        let input = self.node.input.get(slot).filter(|name| !name.is_empty());
        let attributes: Vec<&AttributeProto> = self
            .node
            .attribute
            .iter()
            .filter(|a| parameter.contains(&a.name()))
            .collect();
        match (input, &attributes[..]) {
            (Some(name), []) => self.stored(name).map(Some),
            (None, [attribute]) => {
                numbers(attribute, self.model).map(|array| Some(Numbers::literal(array)))
            }
            (None, []) => Some(None),
            _ => None,
        }
    }

    /// The elements of a constant, by its name. `None` if the model does not store them.
    fn stored(&self, name: &str) -> Option<Numbers> {
        let graph = self.model.graph();
        let mut name = name;
        // Exporters store equal parameters once, with an Identity for each of the others.
        for _ in 0..=graph.node.len() {
            let node = graph
                .node
                .iter()
                .find(|node| node.output.iter().any(|output| output == name));
            match node {
                Some(node) if node.op() == ("", "Identity") => name = node.input.first()?,
                Some(node) if node.op() == ("", "Constant") => {
                    let [attribute] = &node.attribute[..] else {
                        return None;
                    };
                    return Some(Numbers::constant(name, numbers(attribute, self.model)?));
                }
                Some(_) => return None,
                None => break,
            }
        }
        let can_vary = graph.input.iter().any(|input| input.name() == name)
            && self.model.proto.ir_version() >= 4;
        let stored = graph
            .initializer
            .iter()
            .find(|tensor| tensor.name() == name)
            .filter(|_| !can_vary)?;
        Some(Numbers::constant(
            name,
            tensor::read_f64(stored, self.model.externals()).ok()?,
        ))
    }
}

/// The element type of all float inputs and weights of a model, if there is only one. After an
/// operator that is not written out yet, nothing else determines the type of a value.
fn only_float_type(model: &Model) -> Option<DataType> {
    let graph = model.graph();
    let inputs = graph
        .input
        .iter()
        .filter_map(|input| input.r#type.as_ref()?.tensor_type.as_ref());
    let stored = graph.initializer.iter().map(|tensor| tensor.data_type());
    let codes = stored.chain(inputs.map(|input| input.elem_type()));
    let mut types = codes
        .filter_map(DataType::from_code)
        .filter(|data_type| data_type.is_float());
    let first = types.next()?;
    types.all(|other| other == first).then_some(first)
}

/// The elements of an attribute that is a float, a list of floats or a tensor. `None` for other
/// types.
fn numbers(attribute: &AttributeProto, model: &Model) -> Option<ArrayD<f64>> {
    match attribute.r#type() {
        AttributeType::Float => vector(vec![f64::from(attribute.f())]),
        AttributeType::Floats => vector(attribute.floats.iter().map(|&v| f64::from(v)).collect()),
        AttributeType::Tensor => tensor::read_f64(attribute.t.as_deref()?, model.externals()).ok(),
        _ => None,
    }
}

/// An array of one axis.
fn vector(values: Vec<f64>) -> Option<ArrayD<f64>> {
    ArrayD::from_shape_vec(IxDyn(&[values.len()]), values).ok()
}

/// Reshapes a parameter to a vector over the channels, which are followed by `behind` axes. `None`
/// unless the parameter is a scalar or a vector, or has extent 1 along all axes other than the
/// channels.
fn by_channel(numbers: &Numbers, behind: usize) -> Option<Numbers> {
    let (length, rank) = (numbers.len(), numbers.ndim());
    let along = numbers.shape().iter().position(|&extent| extent == length);
    let fits = length == 1
        || (rank == 1 && length > 0)
        || along.is_some_and(|along| rank - 1 - along == behind);
    fits.then(|| numbers.reshape(&[length])).flatten()
}
