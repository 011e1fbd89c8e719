//! The magnitude of residual streams, and the power of two that scales them into the range of half
//! precision.

use tract_onnx::prelude::Tensor;

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
use crate::run::{Dims, Engine};

/// The limit for streams in float16: its largest number, 65,504, less four bits for inputs that are
/// larger than the samples.
const ROOM: f64 = (1 << 12) as f64;

/// The magnitude of the residual streams of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StreamMagnitude {
    /// The largest magnitude.
    pub largest: f64,
}

impl StreamMagnitude {
    /// Runs a model in float32, whatever its type, and measures its streams; `None` if it has none.
    ///
    /// # Errors
    /// If tract cannot run it, or if a stream is not finite even in float32.
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
        let mut wide = widened(lowered.as_ref().unwrap_or(model))?;
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
        look_at(wide.graph_mut(), &names);
        let ran = Engine::load(&wide, dims).and_then(|engine| engine.run(inputs));
        let ran = ran.map_err(|failure| fail(failure.to_string()))?;
        let mut largest: f64 = 0.0;
        for (name, seen) in names.iter().zip(ran) {
            let seen = seen
                .cast_to_scalar::<f64>()
                .map_err(|error| fail(error.to_string()))?;
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

/// A node that reduces all axes of a value to a scalar.
fn reduction(op: &str, value: &str, made: &str) -> NodeProto {
    NodeProto {
        attribute: vec![builder::int("keepdims", 0)],
        ..builder::node(&NodeProto::default(), op, made, &[value], made)
    }
}

/// Replaces the outputs of a graph by the largest magnitude of each named value. ReduceMax ignores
/// NaN, so the difference of each value to itself, which is NaN for a NaN, is included.
pub(crate) fn look_at(graph: &mut GraphProto, names: &[String]) {
    graph.output.clear();
    for (place, name) in names.iter().enumerate() {
        let parts = ["magnitudes", "most", "none", "sum", "largest"];
        let [magnitudes, most, none, sum, largest] =
            parts.map(|what| format!("unfold_{what}_{place}"));
        let like = NodeProto::default();
        graph.node.push(builder::node(
            &like,
            "Abs",
            &magnitudes,
            &[name],
            &magnitudes,
        ));
        graph.node.push(reduction("ReduceMax", &magnitudes, &most));
        graph
            .node
            .push(builder::node(&like, "Sub", &none, &[name, name], &none));
        graph.node.push(reduction("ReduceSum", &none, &sum));
        graph.node.push(builder::node(
            &like,
            "Add",
            &largest,
            &[&most, &sum],
            &largest,
        ));
        let tensor = TensorType {
            elem_type: Some(DataType::Float.code()),
            shape: Some(Default::default()),
        };
        let r#type = Some(TypeProto {
            tensor_type: Some(tensor),
            ..Default::default()
        });
        graph.output.push(ValueInfoProto {
            name: Some(largest),
            r#type,
            ..Default::default()
        });
    }
}

/// The model with narrower floating-point types widened to float32.
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
