//! Gives the symbolic dimensions of a model the sizes for which the memory of activations is
//! planned.

use std::collections::BTreeMap;

use crate::analysis::Analysis;
use crate::analysis::memory_plan::MemoryPlan;
use crate::ir::ValueId;
use crate::onnx::Model;
use crate::onnx::proto::{Dim, Dimension, ValueInfoProto};
use crate::shape::facts::Facts;

/// The extents and bytes of all values at the expected sizes.
pub(super) struct ExpectedSizes<'e> {
    facts: &'e Facts,
    /// The memory plan without cuts.
    pub plan: MemoryPlan,
}

impl<'e> ExpectedSizes<'e> {
    /// The sizes of a graph whose symbolic dimensions have the expected sizes.
    pub(super) fn new(at_sizes: &'e Analysis) -> Self {
        ExpectedSizes {
            facts: &at_sizes.facts,
            plan: MemoryPlan::new(at_sizes),
        }
    }

    /// The extent of an axis at the expected sizes. `None` if it is unknown.
    pub(super) fn extent(&self, value: ValueId, axis: usize) -> Option<usize> {
        self.facts.extent(value, axis)
    }

    /// The bytes of a value. They are 0 for a constant, or if the size is unknown.
    pub(super) fn bytes(&self, value: ValueId) -> u64 {
        self.plan.buffers[value.index()].bytes
    }
}

/// The model with the sizes in `expect` in place of symbolic dimensions. If the first dimension of
/// an input is symbolic and not in `expect`, its size is 1.
pub(super) fn sized(model: &Model, expect: &BTreeMap<String, usize>) -> Model {
    let mut graph = model.graph().clone();
    let mut sizes = expect.clone();
    for input in &mut graph.input {
        let name = input.name().to_owned();
        for (place, dim) in dims(input).iter_mut().enumerate() {
            let symbol = symbol(dim).unwrap_or_else(|| format!("{name}:{place}"));
            if place == 0 && is_open(dim) {
                sizes.entry(symbol.clone()).or_insert(1);
            }
            if let Some(&size) = sizes.get(&symbol).filter(|_| is_open(dim)) {
                dim.value = Some(Dim::DimValue(size as i64));
            }
        }
    }
    for value in graph
        .output
        .iter_mut()
        .chain(&mut graph.value_info)
        .chain(&mut graph.input)
    {
        for dim in dims(value) {
            if let Some(&size) = symbol(dim).and_then(|symbol| sizes.get(&symbol)) {
                dim.value = Some(Dim::DimValue(size as i64));
            }
        }
    }
    model.with_graph(graph)
}

fn dims(value: &mut ValueInfoProto) -> &mut [Dimension] {
    let tensor = value
        .r#type
        .as_mut()
        .and_then(|kind| kind.tensor_type.as_mut());
    tensor
        .and_then(|tensor| tensor.shape.as_mut())
        .map_or(&mut [], |shape| &mut shape.dim)
}

fn is_open(dim: &Dimension) -> bool {
    !matches!(dim.value, Some(Dim::DimValue(size)) if size >= 0)
}

/// The symbol of an unknown dimension. `None` if it has none: exporters write `?` for a dimension
/// without a symbol.
fn symbol(dim: &Dimension) -> Option<String> {
    match &dim.value {
        Some(Dim::DimParam(symbol)) if !symbol.is_empty() && symbol != "?" => Some(symbol.clone()),
        _ => None,
    }
}
