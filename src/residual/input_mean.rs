//! Subtracts the mean of an input of the model, for a stream that begins with it.
//!
//! Before: sums and normalizers of the stream read `x`. After: they read `x − mean(x)`, which one
//! ReduceMean and one Sub compute. All other readers of `x` still read it with its mean.

use crate::affine::materialize::{Change, Edit};
use crate::affine::recognize::{Replacement, Site};
use crate::ir::builder::Maker;
use crate::ir::{Graph, NodeId, Reader};

use crate::residual::streams::{Channels, ReadBy, Stream};

/// The edit that subtracts the mean of an input along its channels. `None` if no node reads the
/// input.
pub(super) fn subtracted(
    graph: &Graph,
    sites: &[Site],
    stream: &Stream,
    at: Channels,
) -> Option<Edit> {
    let readers = graph.readers(at.value).iter();
    let nodes = readers.filter_map(|reader| match *reader {
        Reader::Node { node, input } => Some((node, input)),
        _ => None,
    });
    let (first, _) = nodes.clone().next()?;
    let input = graph.value_name(at.value);
    let mut maker = Maker::new(graph, first);
    let mean = maker.mean(input, &[at.axis as i64], true);
    maker.op("Sub", &[input, &mean], vec![]);
    let (made, constants) = maker.finish(&without_mean(graph, at));
    let made = Replacement {
        nodes: vec![],
        made,
        constants,
    };
    let mut readers = vec![];
    for (node, slot) in nodes {
        if !is_reader(sites, stream, at, (node, slot)) && writes(graph, stream, node) {
            readers.push((node, slot));
        }
    }
    Some(Edit {
        sites: vec![],
        at: input.to_owned(),
        change: Change::FromInput { readers, made },
    })
}

/// Lets the new nodes of a normalizer read the input without its mean.
pub(super) fn read_without(graph: &Graph, at: Channels, replacement: &mut Replacement) {
    let (input, without) = (graph.value_name(at.value), without_mean(graph, at));
    let inputs = replacement.made.iter_mut().flat_map(|node| &mut node.input);
    for name in inputs.filter(|name| *name == input) {
        without.clone_into(name);
    }
}

/// The proposed name of an input without its mean. The graph has no value with this name.
fn without_mean(graph: &Graph, at: Channels) -> String {
    let mut name = format!("{}_without_mean", graph.value_name(at.value));
    while graph.has(&name) {
        name.push('_');
    }
    name
}

/// Whether a node reads the input at this slot as a reader of the stream, or as a part of a
/// normalizer. These nodes still read the input with its mean, because a reader of the stream may
/// depend on the mean, and the result of a normalizer does not.
fn is_reader(sites: &[Site], stream: &Stream, at: Channels, (node, slot): (NodeId, usize)) -> bool {
    let mut readers = stream.readers.iter().filter(|reader| reader.at == at);
    readers.any(|reader| match reader.by {
        ReadBy::Normalizer(site) => sites[site].nodes.contains(&node),
        ReadBy::Linear(reader, read) | ReadBy::Other(reader, read) => {
            (reader, read) == (node, slot)
        }
        ReadBy::Output | ReadBy::Body(_) => false,
    })
}

/// Whether an output of a node is a value of the stream.
fn writes(graph: &Graph, stream: &Stream, node: NodeId) -> bool {
    let mut outputs = graph.outputs(node).iter().flatten();
    outputs.any(|&output| stream.values.iter().any(|at| at.value == output))
}
