//! Nodes of custom domains that are normalizers by name, by the convention in `docs/opaque.md`.

use std::collections::HashSet;

use ndarray::{ArrayD, IxDyn};

use super::{label, plain};
use crate::graph::Graph;
use crate::graph::facts::Facts;
use crate::graph::names::Names;
use crate::onnx::Model;
use crate::onnx::node::canonical_domain;
use crate::onnx::proto::{AttributeProto, AttributeType, NodeProto, TensorProto};
use crate::onnx::tensor::{self, DataType};

/// What one operator stands for.
struct Opaque {
    /// Names, as letters and digits in lower case.
    names: &'static [&'static str],
    /// The word that recognition knows the kind by.
    word: &'static str,
    form: OpaqueForm,
    /// The parameters, in the order of the inputs behind `x`.
    parameters: &'static [Parameter],
}

#[derive(Clone, Copy, PartialEq)]
enum OpaqueForm {
    /// `γ·f(αx) + β` with this operator as `f`.
    Bounded(&'static str),
    /// `γ(x − μ)/√(σ²+ε) + β`.
    Fixed,
    /// The same behind the group scaling of PowerNorm.
    Grouped,
}

#[derive(Clone, Copy, PartialEq)]
enum Parameter {
    Alpha,
    Gamma,
    Beta,
    Mean,
    Variance,
}

impl Parameter {
    /// The names that its attribute may have.
    fn names(self) -> &'static [&'static str] {
        match self {
            Parameter::Alpha => &["alpha"],
            Parameter::Gamma => &["gamma", "weight", "scale"],
            Parameter::Beta => &["beta", "bias"],
            Parameter::Mean => &["mean", "running_mean"],
            Parameter::Variance => &["var", "running_var", "phi", "running_phi"],
        }
    }
}

use Parameter::{Alpha, Beta, Gamma, Mean, Variance};

const BOUNDED: &[Parameter] = &[Alpha, Gamma, Beta];
const QUADRATIC: &[Parameter] = &[Gamma, Beta, Variance];

const OPAQUE: &[Opaque] = &[
    Opaque {
        names: &["dyt", "dynamictanh"],
        word: "dyt",
        form: OpaqueForm::Bounded("Tanh"),
        parameters: BOUNDED,
    },
    Opaque {
        names: &["dys", "dynamicsigmoid"],
        word: "dys",
        form: OpaqueForm::Bounded("Sigmoid"),
        parameters: BOUNDED,
    },
    Opaque {
        names: &["dyss", "dynamicsoftsign"],
        word: "dyss",
        form: OpaqueForm::Bounded("Softsign"),
        parameters: BOUNDED,
    },
    Opaque {
        names: &["bn", "batchnorm", "batchnorm1d", "batchnorm2d", "batchnormalization"],
        word: "batchnorm",
        form: OpaqueForm::Fixed,
        parameters: &[Gamma, Beta, Mean, Variance],
    },
    Opaque {
        names: &["un", "un1d", "un2d", "unifiednorm", "unifiednormalization"],
        word: "un",
        form: OpaqueForm::Fixed,
        parameters: QUADRATIC,
    },
    Opaque {
        names: &["mabn", "mabn1d", "mabn2d"],
        word: "mabn",
        form: OpaqueForm::Fixed,
        parameters: QUADRATIC,
    },
    Opaque {
        names: &["pnstar", "powernormstar"],
        word: "powernorm",
        form: OpaqueForm::Fixed,
        parameters: QUADRATIC,
    },
    Opaque {
        names: &["pn", "powernorm", "maskpowernorm"],
        word: "powernorm",
        form: OpaqueForm::Grouped,
        parameters: QUADRATIC,
    },
];

/// Domains whose operators mean what their own specification says.
const FOREIGN: &[&str] = &["", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training", "com.microsoft"];

/// Writes such nodes out; `None` where there are none that are understood.
pub fn expand(model: &Model, skip: &dyn Fn(&str, &str) -> bool) -> Option<Model> {
    let candidates: Vec<usize> = (0..model.graph().node.len())
        .filter(|&place| {
            let node = &model.graph().node[place];
            opaque(model, node).is_some() && !skip(label(node), node.op_type())
        })
        .collect();
    if candidates.is_empty() {
        return None;
    }
    let graph = Graph::new(model).ok()?;
    let facts = Facts::infer(&graph);
    let mut names = Names::of(model);
    let mut result = model.clone();
    let (mut nodes, mut constants) = (vec![], vec![]);
    for (place, node) in model.graph().node.iter().enumerate() {
        let written = candidates.contains(&place).then(|| {
            let value = graph.value(node.input.first()?)?;
            let channels = |axis: usize| facts.extent(value, axis);
            let data_type = facts.data_type(value).or_else(|| only_float_type(model));
            let rank = facts.rank(value);
            let constants = vec![];
            Expansion { model, node, names: &mut names, constants, rank, data_type }.write(&channels)
        });
        match written.flatten() {
            Some((made, with)) => {
                nodes.extend(made);
                constants.extend(with);
            }
            None => nodes.push(node.clone()),
        }
    }
    if constants.is_empty() && nodes.len() == model.graph().node.len() {
        return None;
    }
    result.graph_mut().node = nodes;
    result.graph_mut().initializer.extend(constants);
    Some(result)
}

/// The type of all floats that a model is given, if they have one: behind an operator that is not known yet it
/// is what tells the type of a value.
fn only_float_type(model: &Model) -> Option<DataType> {
    let graph = model.graph();
    let inputs = graph.input.iter().filter_map(|input| input.r#type.as_ref()?.tensor_type.as_ref());
    let stored = graph.initializer.iter().map(|tensor| tensor.data_type());
    let codes = stored.chain(inputs.map(|input| input.elem_type()));
    let mut types = codes.filter_map(DataType::from_code).filter(|data_type| data_type.is_float());
    let first = types.next()?;
    types.all(|other| other == first).then_some(first)
}

fn opaque(model: &Model, node: &NodeProto) -> Option<&'static Opaque> {
    let domain = canonical_domain(node.domain());
    let local =
        model.proto.functions.iter().any(|f| f.domain() == node.domain() && f.name() == node.op_type());
    if FOREIGN.contains(&domain) || local {
        return None;
    }
    let name = plain(node.op_type());
    OPAQUE.iter().find(|opaque| opaque.names.contains(&name.as_str()))
}

/// The numbers of an attribute.
fn numbers(attribute: &AttributeProto, model: &Model) -> Option<ArrayD<f64>> {
    let vector = |values: Vec<f64>| ArrayD::from_shape_vec(IxDyn(&[values.len()]), values).ok();
    match attribute.r#type() {
        AttributeType::Float => vector(vec![f64::from(attribute.f())]),
        AttributeType::Floats => vector(attribute.floats.iter().map(|&v| f64::from(v)).collect()),
        AttributeType::Tensor => tensor::read_f64(attribute.t.as_deref()?, model.externals()).ok(),
        _ => None,
    }
}

/// A parameter as a vector over the channels, which have `behind` axes behind them: it is one, or
/// broadcasts along them alone.
fn by_channel(array: ArrayD<f64>, behind: usize) -> Option<ArrayD<f64>> {
    let (length, rank) = (array.len(), array.ndim());
    let along = array.shape().iter().position(|&extent| extent == length);
    let fits =
        length == 1 || (rank == 1 && length > 0) || along.is_some_and(|along| rank - 1 - along == behind);
    fits.then(|| array.into_shape_with_order(IxDyn(&[length])).ok()).flatten()
}

struct Expansion<'w> {
    model: &'w Model,
    node: &'w NodeProto,
    names: &'w mut Names,
    constants: Vec<TensorProto>,
    rank: Option<usize>,
    /// The element type of the value, which the constants have.
    data_type: Option<DataType>,
}

impl Expansion<'_> {
    fn write(
        mut self,
        channels: &dyn Fn(usize) -> Option<usize>,
    ) -> Option<(Vec<NodeProto>, Vec<TensorProto>)> {
        let opaque = opaque(self.model, self.node)?;
        let known = ["axis", "epsilon", "eps", "groups"];
        let named = |name: &str| opaque.parameters.iter().any(|parameter| parameter.names().contains(&name));
        let understood = self.node.attribute.iter().all(|a| known.contains(&a.name()) || named(a.name()));
        let [output] = &self.node.output[..] else { return None };
        let x = self.node.input.first().filter(|x| !x.is_empty())?.clone();
        // Before operator set 7 constants did not broadcast by themselves.
        let broadcasts = self.model.opset("").is_some_and(|opset| opset >= 7);
        if !understood
            || !broadcasts
            || output.is_empty()
            || self.node.input.len() > opaque.parameters.len() + 1
        {
            return None;
        }
        let place = match (self.node.attr_i("axis").ok()?.unwrap_or(-1), self.rank) {
            (axis, Some(rank)) => Some(crate::graph::axes::axis(axis, rank).ok()?),
            (-1, None) => None,
            (_, None) => return None,
        };
        let behind = place.zip(self.rank).map_or(0, |(place, rank)| rank - 1 - place);
        let count = place.and_then(channels);
        let mut values = vec![];
        for (slot, &parameter) in opaque.parameters.iter().enumerate() {
            let value = match self.parameter(slot + 1, parameter)? {
                Some(array) => Some(by_channel(array, behind)?),
                None => None,
            };
            values.push((parameter, value));
        }
        let get = |wanted: Parameter| {
            values.iter().find(|(parameter, _)| *parameter == wanted).and_then(|(_, value)| value.clone())
        };
        let one_or = |value: Option<ArrayD<f64>>, neutral: f64| {
            value.unwrap_or_else(|| ArrayD::from_elem(IxDyn(&[1]), neutral))
        };
        let (gamma, beta) = (one_or(get(Gamma), 1.0), one_or(get(Beta), 0.0));
        let lengths = values.iter().filter_map(|(_, value)| Some(value.as_ref()?.len()));
        let lengths: HashSet<usize> = lengths.chain(count).filter(|&length| length != 1).collect();
        if lengths.len() > 1 || (count == Some(1) && !lengths.is_empty()) {
            return None;
        }
        let mut nodes = vec![];
        let (value, scale, shift) = match opaque.form {
            OpaqueForm::Bounded(function) => {
                let alpha = get(Alpha).filter(|alpha| alpha.len() == 1)?;
                let scaled = self.step(&mut nodes, opaque, "Mul", &x, Some((&alpha, 0)), None)?;
                let bounded = self.step(&mut nodes, opaque, function, &scaled, None, None)?;
                (bounded, gamma, beta)
            }
            OpaqueForm::Fixed | OpaqueForm::Grouped => {
                let epsilon = self.epsilon()?;
                let variance = get(Variance)?;
                if !variance.iter().all(|v| v + epsilon > 0.0) {
                    return None;
                }
                let value = if opaque.form == OpaqueForm::Grouped {
                    self.group_scaling(&mut nodes, opaque, &x, epsilon, count.filter(|_| behind == 0)?)?
                } else {
                    x
                };
                let scale = &gamma / &variance.mapv(|v| (v + epsilon).sqrt());
                let shift = match get(Mean) {
                    Some(mean) => &beta - &(&scale * &mean),
                    None => beta,
                };
                (value, scale, shift)
            }
        };
        let shifts = shift.iter().any(|&t| t != 0.0);
        let scales = !shifts || scale.iter().any(|&s| s != 1.0);
        let last = (!shifts).then_some(output.as_str());
        let scaled = match scales {
            true => self.step(&mut nodes, opaque, "Mul", &value, Some((&scale, behind)), last)?,
            false => value,
        };
        if shifts {
            self.step(&mut nodes, opaque, "Add", &scaled, Some((&shift, behind)), Some(output))?;
        }
        Some((nodes, self.constants))
    }

    fn epsilon(&self) -> Option<f64> {
        match (self.node.attr_f("epsilon").ok()?, self.node.attr_f("eps").ok()?) {
            (Some(_), Some(_)) => None,
            (one, other) => Some(f64::from(one.or(other).unwrap_or(1e-5))),
        }
    }

    /// A parameter: an input or an attribute; `Some(None)` where it is left out, `None` where it is no
    /// constant, or is said more than once.
    fn parameter(&self, slot: usize, parameter: Parameter) -> Option<Option<ArrayD<f64>>> {
        let input = self.node.input.get(slot).filter(|name| !name.is_empty());
        let attributes: Vec<&AttributeProto> =
            self.node.attribute.iter().filter(|a| parameter.names().contains(&a.name())).collect();
        match (input, &attributes[..]) {
            (Some(name), []) => self.constant(name).map(Some),
            (None, [attribute]) => numbers(attribute, self.model).map(Some),
            (None, []) => Some(None),
            _ => None,
        }
    }

    /// The numbers of a constant by name.
    fn constant(&self, name: &str) -> Option<ArrayD<f64>> {
        let graph = self.model.graph();
        let mut name = name;
        // Exporters write parameters that are equal as one, and the others as its copies.
        for _ in 0..=graph.node.len() {
            let node = graph.node.iter().find(|node| node.output.iter().any(|output| output == name));
            match node {
                Some(node) if node.op() == ("", "Identity") => name = node.input.first()?,
                Some(node) if node.op() == ("", "Constant") => {
                    let [attribute] = &node.attribute[..] else { return None };
                    return numbers(attribute, self.model);
                }
                Some(_) => return None,
                None => break,
            }
        }
        let can_vary =
            graph.input.iter().any(|input| input.name() == name) && self.model.proto.ir_version() >= 4;
        let stored = graph.initializer.iter().find(|tensor| tensor.name() == name).filter(|_| !can_vary)?;
        tensor::read_f64(stored, self.model.externals()).ok()
    }

    /// `x / √(mean over a group of channels of x² + ε)`, the channels on the last axis.
    fn group_scaling(
        &mut self,
        nodes: &mut Vec<NodeProto>,
        opaque: &Opaque,
        x: &str,
        epsilon: f64,
        channels: usize,
    ) -> Option<String> {
        let rank = self.rank?;
        let groups = self.node.attr_i("groups").ok()?.unwrap_or(1);
        let divides =
            usize::try_from(groups).is_ok_and(|groups| groups > 0 && channels.is_multiple_of(groups));
        if !divides || self.model.opset("")? < 13 {
            return None;
        }
        let mut apart = vec![0; rank - 1];
        let mut together = apart.clone();
        apart.extend([groups, -1]);
        together.push(-1);
        let apart = self.integers("apart", &apart);
        let together = self.integers("together", &together);
        let grouped = self.node_of(nodes, opaque, "Reshape", &[x, &apart], None, vec![]);
        let square = self.node_of(nodes, opaque, "Mul", &[&grouped, &grouped], None, vec![]);
        let int = |name: &str, i: Option<i64>, ints: Vec<i64>| AttributeProto {
            name: Some(name.into()),
            r#type: Some(if i.is_some() { AttributeType::Int } else { AttributeType::Ints } as i32),
            i,
            ints,
            ..Default::default()
        };
        let mean = if self.model.opset("")? >= 18 {
            let axes = self.integers("axes", &[-1]);
            self.node_of(
                nodes,
                opaque,
                "ReduceMean",
                &[&square, &axes],
                None,
                vec![int("keepdims", Some(1), vec![])],
            )
        } else {
            let attributes = vec![int("keepdims", Some(1), vec![]), int("axes", None, vec![-1])];
            self.node_of(nodes, opaque, "ReduceMean", &[&square], None, attributes)
        };
        let epsilon = ArrayD::from_elem(IxDyn(&[1]), epsilon);
        let shifted = self.step(nodes, opaque, "Add", &mean, Some((&epsilon, 0)), None)?;
        let root = self.step(nodes, opaque, "Sqrt", &shifted, None, None)?;
        let scaled = self.node_of(nodes, opaque, "Div", &[&grouped, &root], None, vec![]);
        Some(self.node_of(nodes, opaque, "Reshape", &[&scaled, &together], None, vec![]))
    }

    /// A node on one value, and a constant with `behind` axes of extent 1 behind its own.
    fn step(
        &mut self,
        nodes: &mut Vec<NodeProto>,
        opaque: &Opaque,
        op: &str,
        value: &str,
        constant: Option<(&ArrayD<f64>, usize)>,
        output: Option<&str>,
    ) -> Option<String> {
        let mut inputs = vec![value.to_owned()];
        if let Some((array, behind)) = constant {
            let mut shape = vec![array.len()];
            shape.extend(vec![1; if array.len() == 1 { 0 } else { behind }]);
            let shaped = array.to_shape(shape).ok()?;
            let data_type = self.data_type?;
            // A factor has its digits, or the node stays as it is.
            if op == "Mul" && array.iter().any(|&number| tensor::underflow(data_type, number) != 0.0) {
                return None;
            }
            let name = self.names.fresh(&format!("{}_{}", label(self.node), op.to_lowercase()));
            self.constants.push(tensor::make(&name, data_type, &shaped.into_dyn().view()).ok()?);
            inputs.push(name);
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        Some(self.node_of(nodes, opaque, op, &inputs, output, vec![]))
    }

    fn node_of(
        &mut self,
        nodes: &mut Vec<NodeProto>,
        opaque: &Opaque,
        op: &str,
        inputs: &[&str],
        output: Option<&str>,
        attribute: Vec<AttributeProto>,
    ) -> String {
        let path = format!("{}/{}", label(self.node), opaque.word);
        let output = output.map_or_else(|| self.names.fresh(&format!("{path}/{op}_output")), str::to_owned);
        nodes.push(NodeProto {
            op_type: Some(op.into()),
            name: Some(self.names.fresh(&format!("{path}/{op}"))),
            input: inputs.iter().map(|&input| input.to_owned()).collect(),
            output: vec![output.clone()],
            attribute,
            metadata_props: self.node.metadata_props.clone(),
            ..Default::default()
        });
        output
    }

    fn integers(&mut self, what: &str, values: &[i64]) -> String {
        let name = self.names.fresh(&format!("{}_{what}", label(self.node)));
        self.constants.push(tensor::make_i64(&name, values));
        name
    }
}
