//! Decodes a message without unused capacity in its lists. A list that grows while it is decoded
//! doubles its capacity, and a list with a single entry has capacity for four. This unused capacity
//! would be a sixth to two fifths of the memory that folding a large graph takes.

use bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, merge_loop};
use prost::{DecodeError, Message};

use super::proto::{GraphProto, ModelProto, NodeProto};
use super::wire::Counts;

/// The number of the field of a model that holds its graph.
const GRAPH: u32 = 7;

/// The number of the field of a graph that holds a node.
const NODE: u32 = 1;

/// Decodes a model, with capacity for the numbers of nodes, initializers and values in `counts`.
///
/// # Errors
/// If the bytes are not valid protobuf.
pub(super) fn decode(mut buffer: impl Buf, counts: &Counts) -> Result<ModelProto, DecodeError> {
    let mut model = ModelProto::default();
    while buffer.has_remaining() {
        let (field, wire) = decode_key(&mut buffer)?;
        if field == GRAPH && wire == WireType::LengthDelimited {
            let graph = model.graph.get_or_insert_with(|| with_room(counts));
            merge_loop(graph, &mut buffer, DecodeContext::default(), merge_part)?;
        } else {
            model.merge_field(field, wire, &mut buffer, DecodeContext::default())?;
        }
    }
    Ok(model)
}

fn with_room(counts: &Counts) -> GraphProto {
    GraphProto {
        node: Vec::with_capacity(counts.nodes),
        initializer: Vec::with_capacity(counts.initializers),
        value_info: Vec::with_capacity(counts.values),
        ..Default::default()
    }
}

/// Decodes the next field of a graph.
fn merge_part<B: Buf>(
    graph: &mut GraphProto,
    buffer: &mut B,
    context: DecodeContext,
) -> Result<(), DecodeError> {
    let (field, wire) = decode_key(buffer)?;
    graph.merge_field(field, wire, buffer, context)?;
    if let (
        NODE,
        Some(NodeProto {
            input,
            output,
            attribute,
            metadata_props,
            ..
        }),
    ) = (field, graph.node.last_mut())
    {
        fit(input);
        fit(output);
        fit(attribute);
        fit(metadata_props);
    }
    Ok(())
}

/// Removes the unused capacity of a list by copying it. `shrink_to_fit` is not enough, because an
/// allocator may leave the list in place unless half of its capacity is unused.
fn fit<T>(list: &mut Vec<T>) {
    if list.len() < list.capacity() {
        let mut fitting = Vec::with_capacity(list.len());
        fitting.append(list);
        *list = fitting;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::proto::{AttributeProto, TensorProto, ValueInfoProto};
    use crate::onnx::wire;

    fn node(inner: Option<GraphProto>) -> NodeProto {
        NodeProto {
            op_type: Some("If".into()),
            input: vec!["a".into(), "b".into(), "c".into()],
            output: vec!["d".into()],
            attribute: vec![AttributeProto {
                g: inner.map(Box::new),
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    /// A model of `nodes` nodes. Each node has three inputs, an output and an attribute, which is a
    /// graph of `nodes + 1` nodes. The model also has a constant and a declared value for each
    /// node.
    fn model(nodes: usize) -> ModelProto {
        let body = GraphProto {
            node: vec![node(None); nodes + 1],
            ..Default::default()
        };
        let graph = GraphProto {
            node: vec![node(Some(body)); nodes],
            initializer: vec![
                TensorProto {
                    dims: vec![2],
                    ..Default::default()
                };
                nodes
            ],
            value_info: vec![ValueInfoProto::default(); nodes],
            ..Default::default()
        };
        ModelProto {
            ir_version: Some(10),
            graph: Some(graph),
            ..Default::default()
        }
    }

    #[test]
    fn decoded_lists_have_exact_capacity() {
        let bytes = model(5).encode_to_vec();
        let counts = wire::check(&bytes).unwrap();
        assert_eq!(
            counts,
            Counts {
                nodes: 5,
                initializers: 5,
                values: 5
            }
        );
        let decoded = decode(&bytes[..], &counts).unwrap();
        assert!(decoded == model(5));
        let GraphProto {
            node,
            initializer,
            value_info,
            ..
        } = decoded.graph.unwrap();
        assert_eq!(
            [
                node.capacity(),
                initializer.capacity(),
                value_info.capacity()
            ],
            [5; 3]
        );
        for NodeProto {
            input,
            output,
            attribute,
            ..
        } in &node
        {
            assert_eq!(
                [input.capacity(), output.capacity(), attribute.capacity()],
                [3, 1, 1]
            );
        }
    }

    #[test]
    fn graph_in_several_parts_is_merged() {
        let bytes = [model(2).encode_to_vec(), model(3).encode_to_vec()].concat();
        let decoded = decode(&bytes[..], &wire::check(&bytes).unwrap()).unwrap();
        assert!(decoded == ModelProto::decode(&bytes[..]).unwrap());
        assert_eq!(decoded.graph.unwrap().node.len(), 5);
    }
}
