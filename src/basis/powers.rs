//! Powers of two: residual streams that are `2^-k` of what they were, for types that do not hold what they are.
//!
//! What writes a stream is multiplied by `2^-k`, what is added to a variance of it by `4^-k`, and what reads it otherwise
//! takes `2^k` in: in its weight, or by a Mul in front. In float32 every bit of every output stays the same, as long as
//! no number is subnormal. In float16 the stream stays below what the type holds.

use std::collections::HashMap as Map;

use super::scaling::{Scaled, scale};
use super::streams::{Stream, streams};
use crate::fold::apply::apply;
use crate::fold::growth::{beyond, growth};
use crate::fold::patch::Failed;
use crate::fold::plan::{Direction, Outcome, SitePlan, Stored};
use crate::graph::analysis::Analysis;
use crate::graph::editor::Editor;
use crate::normalizer::{Family, Kind, View, find};
use crate::onnx::proto::GraphProto;
use crate::refusal::{Reason, Refusal};
use crate::simplify::simplify_known;

/// The largest power that is of any use: beyond it float32 has no room for squares of what is there.
pub const LARGEST: u32 = 40;

/// What a stream is among the sites of a model.
pub const KIND: Kind = Kind { name: "stream", family: Family::Stream };

/// What came of scaling the streams of a model.
#[derive(Default)]
pub struct Rescaled {
    /// The graph; `None` where no stream is scaled.
    pub graph: Option<GraphProto>,
    /// The streams, and what became of each.
    pub sites: Vec<SitePlan>,
    /// The tensors that came.
    pub stored: Vec<Stored>,
    /// Bytes that copies of weights add.
    pub growth: u64,
}

/// The residual streams of a model: those to which something is added.
pub fn residual(known: &Analysis) -> Vec<(String, Stream)> {
    let view = View::new(known);
    let found = streams(known, &view, &find(&view));
    let name = |stream: &Stream| {
        let makers = stream.values.iter().filter_map(|at| known.graph.producer(at.value));
        makers
            .map(|(node, _)| node)
            .find(|&node| known.graph.is(node, "Add"))
            .map(|node| view.site_name(node))
    };
    let named = |stream: Stream| Some((name(&stream)?, stream));
    found.into_iter().filter(|stream| stream.sums > 0).filter_map(named).collect()
}

/// Scales the residual streams of a model by `2^-power`, but for those that are skipped by name. Copies of weights may
/// add `allowed` bytes.
pub fn rescale(known: &Analysis, power: u32, skip: &dyn Fn(&str) -> bool, allowed: f64) -> Rescaled {
    let model = known.graph.model();
    let found = residual(known);
    let skipped = |(place, (name, _)): (usize, &(String, Stream))| {
        skip(name).then(|| (place, Refusal::new(Reason::Skipped, "")))
    };
    let mut refused: Map<usize, Refusal> = found.iter().enumerate().filter_map(skipped).collect();
    // Once at most for each stream that cannot be scaled after all.
    while refused.len() < found.len() {
        let places = (0..found.len()).filter(|place| !refused.contains_key(place));
        let left: Vec<(usize, &Stream)> = places.map(|place| (place, &found[place].1)).collect();
        let mut editor = Editor::new(model);
        let outcome = scale(known, &left, power).and_then(|Scaled { edits, into }| {
            let changes = (edits.as_slice(), &[][..]);
            let stored = apply(changes, known, &mut editor, &|_, _| {})?;
            let grown = growth(&stored, changes, known);
            let beyond = beyond(&stored, &grown, allowed, model.weight_bytes());
            if beyond.is_empty() { Ok((stored, grown.iter().sum(), into)) } else { Err(beyond) }
        });
        match outcome {
            Ok((stored, growth, into)) => {
                let graph = simplify_known(editor, vec![], &known.graph, &known.facts, &Map::new());
                let sites =
                    sites(known, &found, &refused, &|place| into.get(&place).cloned().unwrap_or_default());
                return Rescaled { graph: Some(graph), sites, stored, growth };
            }
            Err(failed) => {
                let each = |Failed { sites, refusal }: Failed| {
                    sites.into_iter().map(move |site| (site, refusal.clone())).collect::<Vec<_>>()
                };
                refused.extend(failed.into_iter().flat_map(each));
            }
        }
    }
    Rescaled { sites: sites(known, &found, &refused, &|_| vec![]), ..Rescaled::default() }
}

fn sites(
    known: &Analysis,
    found: &[(String, Stream)],
    refused: &Map<usize, Refusal>,
    into: &dyn Fn(usize) -> Vec<String>,
) -> Vec<SitePlan> {
    let site = |(place, (name, stream)): (usize, &(String, Stream))| {
        let sums = stream.values.iter().filter_map(|at| known.graph.producer(at.value));
        let sums = sums.map(|(node, _)| node).filter(|&node| known.graph.is(node, "Add"));
        let outcome = match refused.get(&place) {
            Some(forward) => Outcome::Kept { forward: forward.clone(), backward: None },
            None => Outcome::Folded { direction: Direction::Stream, into: into(place) },
        };
        SitePlan {
            name: name.clone(),
            kind: KIND,
            channels: stream.channels,
            axis: stream.values.first().map_or(0, |at| at.axis),
            nodes: sums.map(|node| known.graph.name(node).to_owned()).collect(),
            pre: None,
            core: None,
            post: Some(outcome),
        }
    };
    found.iter().enumerate().map(site).collect()
}
