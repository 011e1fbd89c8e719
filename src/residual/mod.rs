//! Changes of the basis of residual streams.
//!
//! All blocks of a network read the residual stream and add to it. If all writers and all readers
//! of the stream absorb a change of its basis, the function of the model stays the same.
//! [`streams`] finds the writers and readers. Each change of basis has a file of its own.

pub(crate) mod centring;
mod codes;
pub(crate) mod constant_norms;
pub(crate) mod exponent_laws;
mod input_mean;
mod layer_norm_to_rms;
pub(crate) mod norm_merging;
mod scaled_operators;
mod selected_weights;
pub(crate) mod skip_norm;
pub(crate) mod stream_scaling;
pub(crate) mod streams;
mod ties;

use crate::affine::materialize::Edit;
use crate::affine::plan::{Centring, Member, StreamPlan};
use crate::affine::recognize::{Site, View, online};
use crate::analysis::Analysis;
use crate::hash::HashSet;
use crate::ir::NodeId;
use crate::refusal::Refusal;
use streams::{AtCodes, ReadBy, Stream, StreamReader, StreamWriter, WrittenBy};

/// The name of [`centring`] for `--skip`.
pub(crate) const CENTRING: &str = "centring";

/// The name of [`stream_scaling`] for `--skip`.
pub(crate) const SCALING: &str = "scaling";

/// The streams that were considered for another basis, and the edits of those that change.
#[derive(Debug, Default)]
pub(crate) struct BasisChange {
    /// The streams, in execution order.
    pub streams: Vec<StreamPlan>,
    /// The edits. Their `sites` are indices of streams.
    pub edits: Vec<Edit>,
}

/// Plans to centre the streams of a model. `refused` returns the reason why a stream or site stays,
/// by its name or kind.
pub(crate) fn centred(
    analysis: &Analysis,
    view: &View,
    sites: &[Site],
    refused: &dyn Fn(&str) -> Option<Refusal>,
) -> BasisChange {
    let cores = online::cores(view, sites);
    let mut change = BasisChange::default();
    let mut touched: HashSet<NodeId> = HashSet::default();
    for stream in streams::streams(analysis, view, sites, AtCodes::Ends) {
        let listed = listed(analysis, sites, &stream);
        let planned = centring::plan((analysis, view), sites, &cores, &stream);
        let planned = planned
            .map(|planned| stays(&listed.name, &stream, sites, refused).map_or(planned, Err));
        let centring = match planned {
            None => None,
            Some(Err(why)) => Some(Centring::Kept { why }),
            Some(Ok(planned)) => {
                let edits = planned.edits.iter();
                let nodes: Vec<NodeId> = edits.flat_map(|edit| edit.change.nodes()).collect();
                // A stream that shares nodes with another changed stream waits for the next
                // repetition.
                let waits = nodes.iter().any(|node| touched.contains(node));
                if !waits {
                    touched.extend(nodes);
                    change.add(planned.edits);
                }
                (!waits).then_some(planned.outcome)
            }
        };
        change.streams.push(StreamPlan { centring, ..listed });
    }
    change
}

impl BasisChange {
    /// Adds the edits of the next stream.
    fn add(&mut self, edits: Vec<Edit>) {
        let stream = self.streams.len();
        self.edits.extend(edits.into_iter().map(|edit| Edit {
            sites: vec![stream],
            ..edit
        }));
    }
}

/// The reason why a stream with this name stays: its own refusal, or that of a normalizer that
/// reads it.
fn stays(
    name: &str,
    stream: &Stream,
    sites: &[Site],
    refused: &dyn Fn(&str) -> Option<Refusal>,
) -> Option<Refusal> {
    refused(name).or_else(|| {
        stream.readers.iter().find_map(|reader| match reader.by {
            ReadBy::Normalizer(site) => {
                refused(&sites[site].name).or_else(|| refused(sites[site].kind.name))
            }
            _ => None,
        })
    })
}

/// The name of a stream: the name of its first value.
fn name(analysis: &Analysis, stream: &Stream) -> String {
    let first = stream
        .values
        .first()
        .map(|first| analysis.graph.value_name(first.value));
    first.unwrap_or_default().to_owned()
}

/// The entry of a stream in the plan, with its writers and readers, before a change of basis is
/// planned.
fn listed(analysis: &Analysis, sites: &[Site], stream: &Stream) -> StreamPlan {
    let writers = stream.writers.iter();
    let readers = stream.readers.iter();
    StreamPlan {
        name: name(analysis, stream),
        channels: stream.channels,
        writers: writers
            .map(|writer| listed_writer(analysis, sites, writer))
            .collect(),
        readers: readers
            .map(|reader| listed_reader(analysis, sites, reader))
            .collect(),
        centring: None,
        scaling: None,
    }
}

fn listed_writer(analysis: &Analysis, sites: &[Site], writer: &StreamWriter) -> Member {
    let graph = &analysis.graph;
    match writer.source {
        WrittenBy::Linear(node) => member("linear", graph.name(node)),
        WrittenBy::Table(node) => member("table", graph.name(node)),
        WrittenBy::Constant(node, _) => member("constant", graph.name(node)),
        WrittenBy::Uniform(node, _) => member("uniform", graph.name(node)),
        WrittenBy::Normalizer(site) => member(sites[site].kind.name, &sites[site].name),
        WrittenBy::Input => member("input", graph.value_name(writer.at.value)),
        WrittenBy::Other(node) => member(graph.domain_op(node).1, graph.name(node)),
    }
}

fn listed_reader(analysis: &Analysis, sites: &[Site], reader: &StreamReader) -> Member {
    let graph = &analysis.graph;
    match reader.by {
        ReadBy::Normalizer(site) => member(sites[site].kind.name, &sites[site].name),
        ReadBy::Linear(node, _) => member("linear", graph.name(node)),
        ReadBy::Output => member("output", graph.value_name(reader.at.value)),
        ReadBy::Body(node) => member("body", graph.name(node)),
        ReadBy::Other(node, _) => member(graph.domain_op(node).1, graph.name(node)),
    }
}

fn member(kind: &str, at: &str) -> Member {
    Member {
        kind: kind.to_owned(),
        at: at.to_owned(),
    }
}
