//! Visits every graph and every tensor of a model, at any depth.

use super::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto,
};
use crate::error::Result;

/// A part of a model that a walk visits.
pub(super) enum Visited<'a> {
    /// A graph: the main graph, a training graph, or a body of control flow. It is visited before
    /// its contents.
    Graph(&'a GraphProto),
    /// A dense initializer of a graph.
    Initializer(&'a mut TensorProto),
    /// Any other tensor: in an attribute, or inside a sparse tensor.
    Tensor(&'a mut TensorProto),
}

type Visit<'v> = &'v mut dyn FnMut(Visited<'_>) -> Result<()>;

/// Visits every graph and every tensor, in the order of the message, until a visit fails.
pub(super) fn parts(model: &mut ModelProto, visit: Visit<'_>) -> Result<()> {
    if let Some(main) = &mut model.graph {
        graph(main, visit)?;
    }
    for training in &mut model.training_info {
        for part in [&mut training.initialization, &mut training.algorithm]
            .into_iter()
            .flatten()
        {
            graph(part, visit)?;
        }
    }
    for function in &mut model.functions {
        attributes(&mut function.attribute_proto, visit)?;
        nodes(&mut function.node, visit)?;
    }
    Ok(())
}

fn graph(graph: &mut GraphProto, visit: Visit<'_>) -> Result<()> {
    visit(Visited::Graph(graph))?;
    graph
        .initializer
        .iter_mut()
        .try_for_each(|tensor| visit(Visited::Initializer(tensor)))?;
    graph
        .sparse_initializer
        .iter_mut()
        .try_for_each(|tensor| sparse(tensor, visit))?;
    nodes(&mut graph.node, visit)
}

fn nodes(nodes: &mut [NodeProto], visit: Visit<'_>) -> Result<()> {
    nodes
        .iter_mut()
        .try_for_each(|node| attributes(&mut node.attribute, visit))
}

fn attributes(attributes: &mut [AttributeProto], visit: Visit<'_>) -> Result<()> {
    for attribute in attributes {
        let AttributeProto {
            t,
            tensors,
            g,
            graphs,
            sparse_tensor,
            sparse_tensors,
            ..
        } = attribute;
        for tensor in t.as_deref_mut().into_iter().chain(tensors) {
            visit(Visited::Tensor(tensor))?;
        }
        for tensor in sparse_tensor
            .as_deref_mut()
            .into_iter()
            .chain(sparse_tensors)
        {
            sparse(tensor, visit)?;
        }
        for body in g.as_deref_mut().into_iter().chain(graphs) {
            graph(body, visit)?;
        }
    }
    Ok(())
}

fn sparse(tensor: &mut SparseTensorProto, visit: Visit<'_>) -> Result<()> {
    let parts = [&mut tensor.values, &mut tensor.indices];
    parts
        .into_iter()
        .flatten()
        .try_for_each(|tensor| visit(Visited::Tensor(tensor)))
}
