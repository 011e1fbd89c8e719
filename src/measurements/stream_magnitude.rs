//! The magnitude of residual streams, and the power of two that scales them into the range of half
//! precision.

use tract_onnx::prelude::{Tensor, TractResult};

use crate::affine::recognize::{View, find};
use crate::analysis::Analysis;
use crate::error::{Error, Result};
use crate::ir::builder;
use crate::onnx::Model;
use crate::onnx::node::bodies_mut;
use crate::onnx::operator::TYPES;
use crate::onnx::proto::{
    AttributeProto, GraphProto, NodeProto, TensorProto, TensorType, TypeProto, ValueInfoProto,
};
use crate::onnx::tensor::{self, DataType};
use crate::passes::inline::{Lowering, written_out};
use crate::residual::stream_scaling::residual;
use crate::run::{Dims, Engine, Failure, Stage};

/// The limit for streams in float16: about a sixteenth of 65,504, the largest number of float16.
/// This leaves four bits for inputs that cause larger values than the samples.
const ROOM: f64 = (1 << 12) as f64;

/// The magnitude of the residual streams of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StreamMagnitude {
    /// The largest magnitude.
    pub largest: f64,
}

impl StreamMagnitude {
    /// Runs a model, converted to float32, and measures its residual streams. `None` if it has no
    /// residual streams.
    ///
    /// # Errors
    /// If a sample has no elements, if tract cannot run the model, or if a stream is not finite
    /// even in float32.
    pub fn measure(model: &Model, inputs: &[Tensor], dims: &Dims) -> Result<Option<Self>> {
        let fail = |reason: String| Error::StreamMagnitude {
            file: model.file(),
            reason,
        };
        if inputs.iter().any(|input| input.len() == 0) {
            return Err(fail("there is nothing in a sample".to_owned()));
        }
        let lowered =
            written_out(model, Lowering::All, &|_, _| false)?.map(|lowered| lowered.model);
        let wide = widened(lowered.as_ref().unwrap_or(model))?;
        let analysis = Analysis::new(&wide)?;
        let view = View::new(&analysis);
        let values = residual(&analysis, &view, &find(&view))
            .into_iter()
            .flat_map(|stream| stream.values);
        let names: Vec<String> = values
            .map(|at| analysis.graph.value_name(at.value).to_owned())
            .collect();
        drop(view);
        drop(analysis);
        if names.is_empty() {
            return Ok(None);
        }
        let seen = magnitudes(&wide, &names, (inputs, dims))
            .map_err(|failure| fail(failure.to_string()))?;
        let mut largest: f64 = 0.0;
        for (name, seen) in names.iter().zip(seen) {
            if !seen.is_finite() {
                return Err(fail(format!("`{name}` is not finite in float32")));
            }
            largest = largest.max(seen);
        }
        Ok(Some(Self { largest }))
    }

    /// The smallest k for which streams that are scaled by `2^-k` stay below the limit for float16.
    ///
    /// ```
    /// use unfold::StreamMagnitude;
    ///
    /// assert_eq!(StreamMagnitude { largest: 300_000.0 }.power(), 7);
    /// assert_eq!(StreamMagnitude { largest: 12.0 }.power(), 0);
    /// ```
    pub fn power(&self) -> u32 {
        let steps = (self.largest / ROOM).log2().ceil();
        if steps > 0.0 { steps as u32 } else { 0 }
    }
}

/// A node `op` that reduces all axes of `value` to the scalar `made`.
fn reduction(op: &str, value: &str, made: &str) -> NodeProto {
    NodeProto {
        attribute: vec![builder::int("keepdims", 0)],
        ..builder::node(&NodeProto::default(), op, made, &[value], made)
    }
}

/// The name of the constant `[1]`, the shape of a vector with one element.
const ONE: &str = "unfold_one";

/// Replaces the outputs of a graph by one vector with the largest magnitude of each named value.
/// ReduceMax ignores NaN, so the sum of `x − x` over all elements is added, which is NaN if an
/// element is NaN.
///
/// All values share one output: with an output for each value, shape arithmetic would not fold,
/// because the operator of a constant output is kept.
fn look_at(graph: &mut GraphProto, names: &[String]) {
    let like = NodeProto::default();
    graph.initializer.push(tensor::make_i64(ONE, &[1]));
    let mut elements = vec![];
    for (place, name) in names.iter().enumerate() {
        let parts = ["magnitudes", "most", "none", "sum", "largest", "element"];
        let [magnitudes, most, none, sum, largest, element] =
            parts.map(|what| format!("unfold_{what}_{place}"));
        graph.node.extend([
            builder::node(&like, "Abs", &magnitudes, &[name], &magnitudes),
            reduction("ReduceMax", &magnitudes, &most),
            builder::node(&like, "Sub", &none, &[name, name], &none),
            reduction("ReduceSum", &none, &sum),
            builder::node(&like, "Add", &largest, &[&most, &sum], &largest),
            builder::node(&like, "Reshape", &element, &[&largest, ONE], &element),
        ]);
        elements.push(element);
    }
    let elements: Vec<&str> = elements.iter().map(String::as_str).collect();
    graph.node.push(NodeProto {
        attribute: vec![builder::int("axis", 0)],
        ..builder::node(&like, "Concat", LARGEST, &elements, LARGEST)
    });
    let tensor = TensorType {
        elem_type: Some(DataType::Float.code()),
        shape: None,
    };
    let r#type = Some(TypeProto {
        tensor_type: Some(tensor),
        ..Default::default()
    });
    graph.output = vec![ValueInfoProto {
        name: Some(LARGEST.to_owned()),
        r#type,
        ..Default::default()
    }];
}

/// The name of the output of [`look_at`].
const LARGEST: &str = "unfold_largest";

/// Runs a model in tract, and returns the largest magnitude of each named value. The magnitude of a
/// value with an element that is not finite is not finite either.
///
/// # Errors
/// If tract cannot run the model.
pub(crate) fn magnitudes(
    model: &Model,
    names: &[String],
    (inputs, dims): (&[Tensor], &Dims),
) -> std::result::Result<Vec<f64>, Failure> {
    if names.is_empty() {
        return Ok(vec![]);
    }
    let mut watched = model.clone();
    look_at(watched.graph_mut(), names);
    let seen = Engine::load(&watched, dims)?.run(inputs)?;
    let numbers = seen.iter().map(|vector| {
        let vector = vector.cast_to::<f64>()?;
        Ok(vector.try_as_plain_ram()?.as_slice::<f64>()?.to_vec())
    });
    let numbers: TractResult<Vec<Vec<f64>>> = numbers.collect();
    numbers
        .map(|numbers| numbers.concat())
        .map_err(|error| Failure::new(Stage::Run, error.to_string()))
}

/// Converts all narrower floating-point types of a model to float32.
///
/// # Errors
/// If a tensor cannot be read.
pub(crate) fn widened(model: &Model) -> Result<Model> {
    let mut wide = model.clone();
    widen(wide.graph_mut(), model)?;
    Ok(wide)
}

fn widen(graph: &mut GraphProto, model: &Model) -> Result<()> {
    graph.value_info.clear();
    for value in graph.input.iter_mut().chain(&mut graph.output) {
        let tensor = value
            .r#type
            .as_mut()
            .and_then(|declared| declared.tensor_type.as_mut());
        tensor
            .into_iter()
            .for_each(|tensor| tensor.elem_type = tensor.elem_type.map(wide_code));
    }
    for tensor in &mut graph.initializer {
        widen_tensor(tensor, model)?;
    }
    for node in &mut graph.node {
        for attribute in &mut node.attribute {
            if TYPES.contains(&attribute.name()) {
                let wide =
                    |code: i64| i32::try_from(code).map_or(code, |code| wide_code(code).into());
                attribute.i = attribute.i.map(wide);
            }
            let AttributeProto { t, tensors, .. } = attribute;
            t.iter_mut()
                .map(|tensor| &mut **tensor)
                .chain(tensors)
                .try_for_each(|tensor| widen_tensor(tensor, model))?;
        }
        bodies_mut(node).try_for_each(|body| widen(body, model))?;
    }
    Ok(())
}

fn is_narrow(data_type: DataType) -> bool {
    matches!(data_type, DataType::Float16 | DataType::BFloat16)
}

fn wide_code(code: i32) -> i32 {
    if DataType::from_code(code).is_some_and(is_narrow) {
        DataType::Float.code()
    } else {
        code
    }
}

fn widen_tensor(tensor: &mut TensorProto, model: &Model) -> Result<()> {
    if tensor::data_type(tensor).is_ok_and(is_narrow) {
        let numbers = tensor::read_f64(tensor, model.externals())?;
        *tensor = tensor::make(tensor.name(), DataType::Float, &numbers.view())?;
    }
    Ok(())
}
