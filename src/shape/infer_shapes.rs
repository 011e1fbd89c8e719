//! Infers the types and shapes of the values of a model, for users of the library.

use std::collections::BTreeMap;

use tract_onnx::tract_hir::internal::TDim;

use crate::error::Result;
use crate::ir::{Graph, ValueId};
use crate::onnx::proto::Dim;
use crate::onnx::{DataType, Model};
use crate::shape::extents::extent;
use crate::shape::facts::Facts;

/// The facts that are known about a value without running the model.
#[derive(Debug, Clone, PartialEq)]
pub struct InferredValue {
    /// The element type.
    pub data_type: Option<DataType>,
    /// The extents; `None` if the rank is unknown. An extent is an integer, a formula over the
    /// symbolic dimensions of the inputs such as `6*batch`, or unknown (`None`).
    pub shape: Option<Vec<Option<Dim>>>,
    /// The elements of a small integer tensor that does not depend on the elements of inputs, such
    /// as the target shape of a Reshape.
    pub ints: Option<Vec<i64>>,
}

/// Infers the types and shapes of the values of the main graph, by the names of the values. Folding
/// uses the same facts.
///
/// A fact that holds only for some inputs is not guessed, but stays unknown.
///
/// ```
/// use unfold::onnx::Model;
/// use unfold::onnx::proto::Dim;
///
/// let model = Model::open("models/digits/un-dynamo.onnx")?;
/// let values = unfold::infer_shapes(&model)?;
/// let logits = values["linear_12"].shape.as_ref().unwrap();
/// assert_eq!(logits[0], Some(Dim::DimParam("batch".into())));
/// assert_eq!(logits[1], Some(Dim::DimValue(10)));
/// # Ok::<(), unfold::error::Error>(())
/// ```
///
/// # Errors
/// If the graph is invalid.
pub fn infer_shapes(model: &Model) -> Result<BTreeMap<String, InferredValue>> {
    let graph = Graph::new(model)?;
    let facts = Facts::infer(&graph);
    let values = (0..graph.value_count() as u32).map(ValueId);
    let inferred = values.map(|value| {
        let name = graph.value_name(value).to_owned();
        (name, inferred(&facts, value))
    });
    Ok(inferred.collect())
}

fn inferred(facts: &Facts, value: ValueId) -> InferredValue {
    let shape = facts.shape(value);
    InferredValue {
        data_type: facts.data_type(value),
        shape: shape.map(|dims| dims.iter().map(dim).collect()),
        ints: facts.ints(value),
    }
}

fn dim(dim: &Option<TDim>) -> Option<Dim> {
    match extent(dim) {
        Some(number) => Some(Dim::DimValue(number as i64)),
        None => Some(Dim::DimParam(dim.as_ref()?.to_string())),
    }
}
