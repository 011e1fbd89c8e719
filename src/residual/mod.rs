//! Other bases of residual streams.
//!
//! A residual stream is what all blocks of a network read and add to. It means nothing by itself: a change of basis
//! that all its writers and all its readers take in leaves the model the same function. The [finder](streams) says who
//! they are; each change is a file of its own.

pub mod centring;
pub mod exponents;
pub mod norm_merging;
mod rms_norm;
mod scaled_operators;
pub mod skip_norm;
pub mod stream_scaling;
pub mod streams;
mod ties;

use crate::affine::materialize::Edit;
use crate::affine::plan::{Centring, Member, StreamPlan};
use crate::affine::recognize::statistics::Core;
use crate::affine::recognize::{Site, View, online};
use crate::analysis::Analysis;
use crate::hash::HashSet;
use crate::ir::NodeId;
use crate::refusal::Refusal;
use streams::{ReadBy, Stream, StreamReader, StreamWriter, WrittenBy};

/// The names of changes of basis for `--skip`.
pub const KINDS: [&str; 3] = [CENTRING, SCALING, crate::residual::norm_merging::MERGING];

/// The name of [`centring`].
pub const CENTRING: &str = "centring";

/// The name of [`stream_scaling`].
pub const SCALING: &str = "scaling";

/// The streams considered for another basis, and the edits of those that change.
#[derive(Debug, Default)]
pub struct BasisChange {
    /// The streams, in execution order.
    pub streams: Vec<StreamPlan>,
    /// The edits; the sites of an edit are indices of streams.
    pub edits: Vec<Edit>,
}

/// Plans to centre the streams of a model. `refused` gives the reason, by name or kind, why a
/// stream or site stays.
pub fn centred(
    analysis: &Analysis,
    view: &View,
    sites: &[Site],
    refused: &dyn Fn(&str) -> Option<Refusal>,
) -> BasisChange {
    let cores: Vec<Option<Core>> = sites.iter().map(|site| online::core(view, site)).collect();
    let mut change = BasisChange::default();
    let mut touched: HashSet<NodeId> = HashSet::default();
    for stream in streams::streams(analysis, view, sites) {
        let name = name(analysis, &stream);
        let planned = centring::plan((analysis, view), sites, &cores, &stream);
        let planned =
            planned.map(|planned| stays(&name, &stream, sites, refused).map_or(planned, Err));
        let centring = match planned {
            None => None,
            Some(Err(why)) => Some(Centring::Kept { why }),
            Some(Ok(planned)) => {
                let nodes: Vec<NodeId> = planned
                    .edits
                    .iter()
                    .flat_map(|edit| edit.change.nodes())
                    .collect();
                // Its turn comes when the streams beside it are as they will be.
                let waits = nodes.iter().any(|node| touched.contains(node));
                if !waits {
                    touched.extend(nodes);
                    let sites = vec![change.streams.len()];
                    let edit = |edit| Edit {
                        sites: sites.clone(),
                        ..edit
                    };
                    change.edits.extend(planned.edits.into_iter().map(edit));
                }
                (!waits).then_some(planned.outcome)
            }
        };
        let (writers, readers) = members(analysis, sites, &stream);
        let (channels, scaling) = (stream.channels, None);
        change.streams.push(StreamPlan {
            name,
            channels,
            writers,
            readers,
            centring,
            scaling,
        });
    }
    change
}

/// Why a stream of this name stays: its own refusal, or that of a normalizer on it.
fn stays(
    name: &str,
    stream: &Stream,
    sites: &[Site],
    refused: &dyn Fn(&str) -> Option<Refusal>,
) -> Option<Refusal> {
    let of_reader = |reader: &StreamReader| match reader.by {
        ReadBy::Normalizer(site) => {
            refused(&sites[site].name).or_else(|| refused(sites[site].kind.name))
        }
        _ => None,
    };
    refused(name).or_else(|| stream.readers.iter().find_map(of_reader))
}

/// The name of a stream: that of its first value.
fn name(analysis: &Analysis, stream: &Stream) -> String {
    let first = stream
        .values
        .first()
        .map(|first| analysis.graph.value_name(first.value));
    first.unwrap_or_default().to_owned()
}

/// The writers and readers of a stream, by kind and name.
fn members(analysis: &Analysis, sites: &[Site], stream: &Stream) -> (Vec<Member>, Vec<Member>) {
    let graph = &analysis.graph;
    let member = |kind: &str, at: &str| Member {
        kind: kind.to_owned(),
        at: at.to_owned(),
    };
    let writer = |writer: &StreamWriter| match writer.source {
        WrittenBy::Linear(node) => member("linear", graph.name(node)),
        WrittenBy::Table(node) => member("table", graph.name(node)),
        WrittenBy::Constant(node, _) => member("constant", graph.name(node)),
        WrittenBy::Uniform(node, _) => member("uniform", graph.name(node)),
        WrittenBy::Normalizer(site) => member(sites[site].kind.name, &sites[site].name),
        WrittenBy::Input => member("input", graph.value_name(writer.at.value)),
        WrittenBy::Other(node) => member(graph.domain_op(node).1, graph.name(node)),
    };
    let reader = |reader: &StreamReader| match reader.by {
        ReadBy::Normalizer(site) => member(sites[site].kind.name, &sites[site].name),
        ReadBy::Linear(node, _) => member("linear", graph.name(node)),
        ReadBy::Output => member("output", graph.value_name(reader.at.value)),
        ReadBy::Body(node) => member("body", graph.name(node)),
        ReadBy::Other(node, _) => member(graph.domain_op(node).1, graph.name(node)),
    };
    (
        stream.writers.iter().map(writer).collect(),
        stream.readers.iter().map(reader).collect(),
    )
}
