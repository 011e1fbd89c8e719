//! Measures the error of a model in half precision, compared with the model in float32.
//!
//! Engines compute many half-precision operators in float32, which hides overflows. Here every
//! operator computes in float32, and each result that is half in the model is rounded immediately.

use serde::Serialize;
use tract_onnx::prelude::{Tensor, TractResult};

use crate::analysis::Analysis;
use crate::error::Result;
use crate::hash::{HashMap, HashSet};
use crate::ir::builder::{self, int};
use crate::ir::names::Names;
use crate::measurements::stream_magnitude::{magnitudes, widened};
use crate::onnx::Model;
use crate::onnx::proto::NodeProto;
use crate::onnx::tensor::{self, DataType, rounded};
use crate::passes::half::HalfType;
use crate::run::{Dims, Engine, Failure, Stage};

/// The error of a model in half precision, and the error of a naive conversion, which rounds every
/// float32 value of the model.
///
/// An error is the largest difference between an output and the same output in float32, relative to
/// the largest magnitude of the float32 output. It is `None` if an element of an output is finite
/// only in float32. The overflow is the first value in execution order whose elements are all
/// finite in float32, but not in half.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HalfError {
    /// The error of the model in half precision.
    pub error: Option<f64>,
    /// The name of the value that overflows in half, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overflow: Option<String>,
    /// The error of the naive conversion.
    pub naive_error: Option<f64>,
    /// The name of the value that overflows in the naive conversion, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub naive_overflow: Option<String>,
}

impl HalfError {
    /// Runs the original model, the folded model in float32 (`wide`), and the converted model
    /// (`half`). Outputs are compared with those of the original model, and overflows are found by
    /// comparison with `wide`.
    ///
    /// # Errors
    /// If tract cannot run one of the models.
    pub fn measure(
        [model, wide, half]: [&Model; 3],
        to: HalfType,
        (inputs, dims): (&[Tensor], &Dims),
    ) -> std::result::Result<Self, Failure> {
        let exact = Engine::load(model, dims)?.run(inputs)?;
        let strict = RoundedModel::half(half, to).map_err(failed)?;
        let naive = RoundedModel::all(model, to).map_err(failed)?;
        let samples = (inputs, dims);
        let (error, overflow) = strict.run(&exact, &Finite::of(wide, samples)?, samples)?;
        let (naive_error, naive_overflow) =
            naive.run(&exact, &Finite::of(model, samples)?, samples)?;
        Ok(Self {
            error,
            overflow,
            naive_error,
            naive_overflow,
        })
    }
}

fn failed(error: crate::error::Error) -> Failure {
    Failure::new(Stage::Load, error.to_string())
}

/// The error of a model, and the name of the value that overflows first.
type ErrorAndOverflow = (Option<f64>, Option<String>);

/// Maps the name of each float32 value of a model to whether all elements of the value are finite.
struct Finite(HashMap<String, bool>);

impl Finite {
    fn of(model: &Model, run: (&[Tensor], &Dims)) -> std::result::Result<Self, Failure> {
        let names = float_values(model, DataType::Float).map_err(failed)?;
        let largest = magnitudes(model, &names, run)?;
        let are_finite = largest.into_iter().map(f64::is_finite);
        Ok(Self(names.into_iter().zip(are_finite).collect()))
    }
}

/// A model in float32 that rounds values to half precision.
struct RoundedModel {
    model: Model,
    /// The values that the model rounds, in execution order.
    values: Vec<String>,
    /// The input of each Cast, by the name of its output.
    cast: HashMap<String, String>,
}

impl RoundedModel {
    /// Prepares a model in half precision. Its half-precision values are rounded.
    fn half(model: &Model, to: HalfType) -> Result<Self> {
        let values = float_values(model, to.data_type())?;
        Ok(Self::new(widened(model)?, values, to))
    }

    /// Prepares a model in float32. All of its float32 values and constants are rounded.
    fn all(model: &Model, to: HalfType) -> Result<Self> {
        let values = float_values(model, DataType::Float)?;
        let mut all = model.clone();
        for constant in &mut all.graph_mut().initializer {
            if tensor::data_type(constant).is_ok_and(|own| own == DataType::Float) {
                let numbers = tensor::read_f64(constant, model.externals())?;
                let numbers = numbers.mapv(|number| rounded(to.data_type(), number));
                *constant = tensor::make(constant.name(), DataType::Float, &numbers.view())?;
            }
        }
        Ok(Self::new(all, values, to))
    }

    /// Rounds each of `values` by two Casts after the node that computes the value: one to half,
    /// and one back.
    fn new(mut model: Model, values: Vec<String>, to: HalfType) -> Self {
        let cast = casts(&model);
        let rounded: HashSet<&str> = values.iter().map(String::as_str).collect();
        let mut names = Vec::new();
        {
            let mut fresh = Names::new(&model);
            for name in &values {
                let parts = ["exact", "rounded", "widened"]
                    .map(|what| fresh.fresh(&format!("{name}_{what}")));
                names.push((name.clone(), parts));
            }
        }
        let names: HashMap<String, [String; 3]> = names.into_iter().collect();
        let graph = model.graph_mut();
        graph.value_info.clear();
        let mut nodes = vec![];
        for mut node in std::mem::take(&mut graph.node) {
            let mut behind = vec![];
            for output in node
                .output
                .iter_mut()
                .filter(|name| rounded.contains(name.as_str()))
            {
                let Some([exact, half, wide]) = names.get(output.as_str()) else {
                    continue;
                };
                behind.push(cast_node(half, exact, half, to.data_type()));
                behind.push(cast_node(wide, half, output, DataType::Float));
                exact.clone_into(output);
            }
            nodes.push(node);
            nodes.append(&mut behind);
        }
        graph.node = nodes;
        Self {
            model,
            values,
            cast,
        }
    }

    /// Runs the model, and compares its outputs with the `exact` ones in float32.
    fn run(
        &self,
        exact: &[Tensor],
        finite: &Finite,
        (inputs, dims): (&[Tensor], &Dims),
    ) -> std::result::Result<ErrorAndOverflow, Failure> {
        let outputs = Engine::load(&self.model, dims)?.run(inputs)?;
        let mut error = Some(0.0);
        for (exact, output) in exact.iter().zip(&outputs) {
            let part = difference(exact, output)
                .map_err(|error| Failure::new(Stage::Run, error.to_string()))?;
            error = error
                .zip(part)
                .map(|(error, part): (f64, f64)| error.max(part));
        }
        let largest = magnitudes(&self.model, &self.values, (inputs, dims))?;
        let mut beyond = self.values.iter().zip(largest).filter(|(name, largest)| {
            let is_finite = finite.0.get(self.origin(name));
            !largest.is_finite() && is_finite.copied().unwrap_or(true)
        });
        Ok((error, beyond.next().map(|(name, _)| name.clone())))
    }

    /// The name of the value from which Casts compute the value `name`. It is `name` itself if no
    /// Cast computes this value.
    fn origin<'a>(&'a self, mut name: &'a str) -> &'a str {
        while let Some(before) = self.cast.get(name) {
            name = before;
        }
        name
    }
}

/// The input of each Cast of a model, by the name of its output.
fn casts(model: &Model) -> HashMap<String, String> {
    let nodes = model
        .graph()
        .node
        .iter()
        .filter(|node| node.op_type() == "Cast");
    nodes
        .filter_map(|node| Some((node.output.first()?.clone(), node.input.first()?.clone())))
        .collect()
}

/// The names of the values of type `data_type` that nodes of the main graph output, in execution
/// order. Outputs of Constants are left out.
fn float_values(model: &Model, data_type: DataType) -> Result<Vec<String>> {
    let analysis = Analysis::new(model)?;
    let graph = &analysis.graph;
    let nodes = graph
        .order()
        .iter()
        .filter(|&&node| !graph.is(node, "Constant"));
    let outputs = nodes.flat_map(|&node| graph.outputs(node).iter().flatten());
    let typed = outputs.filter(|&&value| analysis.facts.data_type(value) == Some(data_type));
    Ok(typed
        .map(|&value| graph.value_name(value).to_owned())
        .collect())
}

/// The largest difference between two outputs, relative to the largest magnitude of `exact`. `None`
/// if an element is finite only in `exact`. For types other than floats, 0 if the outputs are
/// equal, and 1 otherwise.
fn difference(exact: &Tensor, other: &Tensor) -> TractResult<Option<f64>> {
    if !exact.datum_type().is_float() {
        return Ok(Some(if exact == other { 0.0 } else { 1.0 }));
    }
    let [exact, other] = [exact.cast_to::<f64>()?, other.cast_to::<f64>()?];
    let exact = exact.try_as_plain_ram()?.as_slice::<f64>()?;
    let other = other.try_as_plain_ram()?.as_slice::<f64>()?;
    let (mut apart, mut largest) = (0.0_f64, 0.0_f64);
    for (exact, other) in exact.iter().zip(other) {
        if !exact.is_finite() {
            continue;
        }
        if !other.is_finite() {
            return Ok(None);
        }
        apart = apart.max((exact - other).abs());
        largest = largest.max(exact.abs());
    }
    Ok(Some(if apart == 0.0 { 0.0 } else { apart / largest }))
}

fn cast_node(name: &str, value: &str, output: &str, to: DataType) -> NodeProto {
    NodeProto {
        attribute: vec![int("to", to.code().into())],
        ..builder::node(&NodeProto::default(), "Cast", name, &[value], output)
    }
}
