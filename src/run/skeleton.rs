//! Splits a model for tract into its graph without weights, and its weights.
//!
//! tract has its own protobuf types for ONNX, so the model is encoded and then decoded by tract.
//! Only the graph is encoded: each tensor in it becomes a reference to external data, which tract
//! reads through [`WeightStore`]. So weights are copied only once, into the tensors of tract, and
//! weights in other files are read one at a time.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use prost::Message;
use tract_core::internal::TractErrorContext;
use tract_onnx::data_resolver::ModelDataResolver;
use tract_onnx::pb;
use tract_onnx::prelude::TractResult;

use super::failure::{Failure, Stage};
use super::input::{Input, fix_shapes};
use crate::error::Error;
use crate::onnx::Model;
use crate::onnx::external_data::Externals;
use crate::onnx::node::{bodies, constant_tensor};
use crate::onnx::proto::{
    AttributeProto, DataLocation, GraphProto, ModelProto, StringStringEntryProto, TensorProto,
};
use crate::onnx::tensor::{self, DataType};

/// Returns the graph in tract's protobuf types, and the tensors to which it refers.
pub(super) fn skeleton(
    model: &Model,
    inputs: &[Input],
) -> Result<(pb::ModelProto, Arc<WeightStore>), Failure> {
    let mut weights = WeightStore {
        tensors: Vec::new(),
        externals: model.externals().clone(),
    };
    let mut graph = model.graph().clone();
    drop_unread(&mut graph);
    drop_casts_of_indices(&mut graph);
    fix_shapes(&mut graph, inputs);
    weights
        .take_graph(&mut graph)
        .map_err(|error| Failure::new(Stage::Load, error.to_string()))?;
    let light = ModelProto {
        graph: Some(graph),
        training_info: Vec::new(),
        functions: Vec::new(),
        metadata_props: Vec::new(),
        ..model.proto.clone()
    };
    let decoded = pb::ModelProto::decode(light.encode_to_vec().as_slice())
        .map_err(|error| Failure::new(Stage::Load, error.to_string()))?;
    Ok((decoded, Arc::new(weights)))
}

/// Removes initializers without readers, because some passes of tract compare all constants with
/// each other.
fn drop_unread(graph: &mut GraphProto) {
    let mut read: HashSet<String> = graph
        .output
        .iter()
        .map(|output| output.name().to_owned())
        .collect();
    collect_read(graph, &mut read);
    let unread: HashSet<String> = graph
        .initializer
        .iter()
        .map(|tensor| tensor.name().to_owned())
        .filter(|name| !read.contains(name))
        .collect();
    graph
        .initializer
        .retain(|tensor| !unread.contains(tensor.name()));
    graph.input.retain(|input| !unread.contains(input.name()));
}

/// Replaces each Cast of a stored int64 tensor to int64 by an Identity. tract casts by way of a formula over extents, in
/// which the largest integer, as the end of a Slice, becomes −1.
fn drop_casts_of_indices(graph: &mut GraphProto) {
    let int64 = DataType::Int64;
    let initializers = graph.initializer.iter();
    let mut stored: HashSet<String> = initializers
        .filter(|tensor| tensor.data_type() == int64.code())
        .map(|tensor| tensor.name().to_owned())
        .collect();
    for node in &mut graph.node {
        let is_int64 = |tensor: TensorProto| tensor.data_type() == int64.code();
        if node.op() == ("", "Constant") && constant_tensor(node).is_some_and(is_int64) {
            stored.extend(node.output.iter().cloned());
        }
        let reads_stored = node.input.first().is_some_and(|name| stored.contains(name));
        if reads_stored && node.op() == ("", "Cast") && node.cast_to() == Some(int64) {
            node.op_type = Some("Identity".to_owned());
            node.attribute.clear();
        }
    }
}

/// Collects the names that the nodes of a graph and their bodies read.
fn collect_read(graph: &GraphProto, read: &mut HashSet<String>) {
    for node in &graph.node {
        read.extend(node.input.iter().cloned());
        for body in bodies(node) {
            read.extend(body.output.iter().map(|output| output.name().to_owned()));
            collect_read(body, read);
        }
    }
}

/// The tensors of a model. The skeleton refers to each tensor by its index.
#[derive(Debug)]
pub(super) struct WeightStore {
    tensors: Vec<TensorProto>,
    externals: Externals,
}

impl WeightStore {
    /// The folder that is passed to tract as the folder of the model's external data. The folder
    /// must exist, but tract reads nothing from it.
    pub(super) const FOLDER: &'static str = "/";

    fn take_graph(&mut self, graph: &mut GraphProto) -> Result<(), Error> {
        graph.value_info.clear();
        graph
            .initializer
            .iter_mut()
            .try_for_each(|tensor| self.take(tensor))?;
        let attributes = graph.node.iter_mut().flat_map(|node| &mut node.attribute);
        for AttributeProto {
            t,
            tensors,
            g,
            graphs,
            ..
        } in attributes
        {
            t.as_deref_mut()
                .into_iter()
                .chain(tensors)
                .try_for_each(|tensor| self.take(tensor))?;
            g.as_deref_mut()
                .into_iter()
                .chain(graphs)
                .try_for_each(|graph| self.take_graph(graph))?;
        }
        Ok(())
    }

    /// Moves a tensor into the store if its elements can be read, and leaves a reference to it in
    /// the graph. Strings have no raw form, and stay in the graph.
    fn take(&mut self, tensor: &mut TensorProto) -> Result<(), Error> {
        if tensor::data_type(tensor)? == tensor::DataType::String {
            return Ok(());
        }
        tensor::data(tensor, &self.externals)?;
        let number = self.tensors.len().to_string();
        let reference = TensorProto {
            name: tensor.name.clone(),
            dims: tensor.dims.clone(),
            data_type: tensor.data_type,
            data_location: Some(DataLocation::External.into()),
            external_data: vec![
                StringStringEntryProto::new("location", "."),
                StringStringEntryProto::new("offset", &number),
            ],
            ..TensorProto::default()
        };
        self.tensors.push(std::mem::replace(tensor, reference));
        Ok(())
    }
}

impl ModelDataResolver for WeightStore {
    fn read_bytes_from_path(
        &self,
        buffer: &mut Vec<u8>,
        _: &Path,
        number: usize,
        _: Option<usize>,
    ) -> TractResult<()> {
        let tensor = self
            .tensors
            .get(number)
            .context("a tensor that the skeleton does not have")?;
        buffer.extend_from_slice(&tensor::raw(tensor, &self.externals)?);
        Ok(())
    }
}
