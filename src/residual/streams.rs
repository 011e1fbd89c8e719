//! The residual streams of a model: values that sums and movements connect, with their writers and
//! readers.
//!
//! The search begins at a normalizer. The axis of the normalizer's statistics is the axis of the
//! channels. From there the search goes in both directions, through every node that ties values
//! together (see `ties`).

use crate::affine::recognize::decomposed_norm::Core;
use crate::affine::recognize::{Site, View, online};
use crate::affine::rule::Side;
use crate::analysis::Analysis;
use crate::hash::{HashMap, HashSet};
use crate::ir::{NodeId, Reader, ValueId};
use crate::onnx::operator::Category;

use crate::residual::codes;
use crate::residual::ties::{self, Tie};

/// A value, and the axis of channels in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Channels {
    /// The value.
    pub value: ValueId,
    /// The axis, counted from the front.
    pub axis: usize,
}

/// A residual stream.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    /// The values of the stream, in execution order.
    pub values: Vec<Channels>,
    /// The number of channels.
    pub channels: usize,
    /// The writers of the stream.
    pub writers: Vec<StreamWriter>,
    /// The readers of the stream.
    pub readers: Vec<StreamReader>,
    /// The number of nodes of the stream that add several varying values.
    pub sums: usize,
}

/// A value that enters a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamWriter {
    /// The value that is written. It is a value of the stream, or the constant operand of a sum in
    /// the stream.
    pub at: Channels,
    /// The kind of writer.
    pub source: WrittenBy,
}

/// A writer of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WrittenBy {
    /// A linear operator with constants, whose result has the channels of its weight.
    Linear(NodeId),
    /// Rows of a constant table. The node is the Gather whose first operand is the table.
    Table(NodeId),
    /// A constant operand of a node, given by the node and its input. Examples are a class token,
    /// positions and a bias.
    Constant(NodeId, usize),
    /// An operand that a sum adds and that is constant along the channels.
    Uniform(NodeId, usize),
    /// A normalization by statistics, given by the index of its site.
    Normalizer(usize),
    /// The caller: the value is an input of the model.
    Input,
    /// Any other node.
    Other(NodeId),
}

impl WrittenBy {
    /// The node that writes, if the writer is a node.
    pub(crate) fn node(self) -> Option<NodeId> {
        match self {
            WrittenBy::Linear(node)
            | WrittenBy::Table(node)
            | WrittenBy::Constant(node, _)
            | WrittenBy::Uniform(node, _)
            | WrittenBy::Other(node) => Some(node),
            WrittenBy::Normalizer(_) | WrittenBy::Input => None,
        }
    }
}

/// A read of a value of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamReader {
    /// The value that is read.
    pub at: Channels,
    /// The kind of reader.
    pub by: ReadBy,
}

/// A reader of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadBy {
    /// A normalization by statistics over exactly the channels of the stream, given by the index of
    /// its site.
    Normalizer(usize),
    /// A linear operator with constants, which reads the channels as this operand.
    Linear(NodeId, usize),
    /// The caller: the value is an output of the model.
    Output,
    /// A body of this node.
    Body(NodeId),
    /// Any other node, which reads the value as this operand.
    Other(NodeId, usize),
}

/// Whether a stream continues after a QuantizeLinear and a DequantizeLinear. A power of two passes
/// both, but any other change of basis does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtCodes {
    /// It continues.
    Continues,
    /// It ends.
    Ends,
}

/// The streams that normalizations by statistics read, in execution order.
pub(crate) fn streams(
    analysis: &Analysis,
    view: &View,
    sites: &[Site],
    at_codes: AtCodes,
) -> Vec<Stream> {
    let cores = online::cores(view, sites);
    let site_of = sites_of_nodes(sites, &cores);
    let mut seen: HashSet<ValueId> = HashSet::default();
    let mut found = vec![];
    for from in normalized(view, &cores, at_codes) {
        let channels = analysis
            .facts
            .extent(from.value, from.axis)
            .filter(|&channels| channels > 1);
        let Some(channels) = channels.filter(|_| !seen.contains(&from.value)) else {
            continue;
        };
        let mut walk = Traversal::new(analysis, &cores, &site_of, channels);
        walk.at_codes = at_codes;
        walk.everywhere(from);
        let stream = walk.finish();
        seen.extend(stream.values.iter().map(|channels| channels.value));
        found.push(stream);
    }
    found.sort_by_key(|stream| {
        stream
            .values
            .first()
            .and_then(|first| place(analysis, first.value))
    });
    found
}

/// The values that normalizations read, each with the axis of the statistics. Normalizations in
/// quantized parts are not sites, and count only if streams continue after codes.
fn normalized(view: &View, cores: &[Option<Core>], at_codes: AtCodes) -> Vec<Channels> {
    let mut values: Vec<(ValueId, usize)> = cores
        .iter()
        .flatten()
        .filter_map(|core| match core.axes[..] {
            [axis] => Some((core.input, axis)),
            _ => None,
        })
        .collect();
    if at_codes == AtCodes::Continues {
        values.extend(codes::averaged_squares(view));
    }
    values
        .into_iter()
        .map(|(value, axis)| Channels { value, axis })
        .collect()
}

/// The site of each node that belongs to a normalization by statistics.
fn sites_of_nodes(sites: &[Site], cores: &[Option<Core>]) -> HashMap<NodeId, usize> {
    let mut site_of = HashMap::default();
    for (place, site) in sites.iter().enumerate() {
        if cores[place].is_some() {
            site_of.extend(site.nodes.iter().map(|&node| (node, place)));
        }
    }
    site_of
}

/// The position in the execution order of the node that computes a value. `None` for inputs and
/// constants, which sort first.
fn place(analysis: &Analysis, value: ValueId) -> Option<usize> {
    analysis
        .graph
        .producer(value)
        .map(|(node, _)| analysis.graph.place(node))
}

/// The state of the traversal that finds one stream.
struct Traversal<'w> {
    analysis: &'w Analysis<'w>,
    cores: &'w [Option<Core>],
    /// The site of each node that belongs to a normalization by statistics.
    site_of: &'w HashMap<NodeId, usize>,
    axes: HashMap<ValueId, usize>,
    open: Vec<Channels>,
    linked: HashSet<NodeId>,
    stream: Stream,
    at_codes: AtCodes,
}

/// The largest number of operators in a row before readers that need only extents.
const DEPTH: usize = 8;

/// Whether only the extents of a node's results are read, so that the elements of its first input
/// do not matter.
fn is_for_extents(analysis: &Analysis, node: NodeId, depth: usize) -> bool {
    let graph = &analysis.graph;
    let is_known = matches!(
        graph.category(node),
        Some(
            Category::Movement | Category::Selection | Category::Arithmetic | Category::Elementwise
        )
    );
    let outputs = graph.outputs(node).iter().flatten();
    let mut readers = outputs.flat_map(|&value| graph.readers(value)).peekable();
    is_known
        && depth > 0
        && readers.peek().is_some()
        && readers.all(|reader| match *reader {
            Reader::Node { node, input } => {
                !graph.reads_elements(node, input)
                    || input == 0 && is_for_extents(analysis, node, depth - 1)
            }
            _ => false,
        })
}

impl<'w> Traversal<'w> {
    fn new(
        analysis: &'w Analysis<'w>,
        cores: &'w [Option<Core>],
        site_of: &'w HashMap<NodeId, usize>,
        channels: usize,
    ) -> Self {
        let stream = Stream {
            values: vec![],
            channels,
            writers: vec![],
            readers: vec![],
            sums: 0,
        };
        let (axes, linked) = (HashMap::default(), HashSet::default());
        Self {
            analysis,
            cores,
            site_of,
            axes,
            open: vec![],
            linked,
            stream,
            at_codes: AtCodes::Ends,
        }
    }

    /// Visits values in both directions from a value, as far as nodes tie values together.
    fn everywhere(&mut self, from: Channels) {
        self.reach(from);
        while let Some(at) = self.open.pop() {
            self.back(at);
            for &reader in self.analysis.graph.readers(at.value) {
                self.on(at, reader);
            }
        }
    }

    /// Records a value. Returns `false` if the value is already recorded with another axis of
    /// channels.
    fn reach(&mut self, at: Channels) -> bool {
        let axis = *self.axes.entry(at.value).or_insert_with(|| {
            self.open.push(at);
            at.axis
        });
        axis == at.axis
    }

    /// Visits the producer of a value of the stream. Follows the tie if the producer ties values
    /// together, or else records a writer.
    fn back(&mut self, at: Channels) {
        let (analysis, channels) = (self.analysis, self.stream.channels);
        if self.at_codes == AtCodes::Continues
            && let Some(value) = codes::quantized_from(analysis, at.value)
        {
            self.reach(Channels { value, ..at });
            return;
        }
        let source = match analysis.graph.producer(at.value) {
            None => WrittenBy::Input,
            Some((node, _)) => match self.site_of.get(&node) {
                Some(&site) => WrittenBy::Normalizer(site),
                None if ties::is_taken(analysis, node, Side::Result, at.axis, channels) => {
                    WrittenBy::Linear(node)
                }
                None => match ties::behind(analysis, node, at.axis, channels) {
                    Some(tie) => return self.link(node, &tie),
                    None => WrittenBy::Other(node),
                },
            },
        };
        self.stream.writers.push(StreamWriter { at, source });
    }

    /// Visits a reader of a value of the stream. Follows the tie if the reader ties values
    /// together, or else records the reader.
    fn on(&mut self, at: Channels, reader: Reader) {
        let (analysis, channels) = (self.analysis, self.stream.channels);
        if self.at_codes == AtCodes::Continues
            && let Some(values) = codes::dequantized_by(analysis, reader)
        {
            for value in values {
                self.reach(Channels { value, ..at });
            }
            return;
        }
        let by = match reader {
            Reader::Output => ReadBy::Output,
            Reader::Capture { node } => ReadBy::Body(node),
            Reader::Node { node, input } if !analysis.graph.reads_elements(node, input) => return,
            Reader::Node { node, input: 0 } if is_for_extents(analysis, node, DEPTH) => return,
            Reader::Node { node, input } => match self.site_of.get(&node) {
                Some(&site) if self.is_over(site, node, at.axis) => ReadBy::Normalizer(site),
                Some(_) => ReadBy::Other(node, input),
                None if ties::is_taken(analysis, node, Side::Operand(input), at.axis, channels) => {
                    ReadBy::Linear(node, input)
                }
                None => match ties::ahead(analysis, node, input, at.axis, channels) {
                    Some(tie) => return self.link(node, &tie),
                    None => ReadBy::Other(node, input),
                },
            },
        };
        let reader = StreamReader { at, by };
        // The operators of one normalization may read the value several times, but are one reader.
        if !self.stream.readers.contains(&reader) {
            self.stream.readers.push(reader);
        }
    }

    /// Whether a node belongs to the statistics of a site, and these are computed over this axis.
    fn is_over(&self, site: usize, node: NodeId, axis: usize) -> bool {
        self.cores[site]
            .as_ref()
            .is_some_and(|core| core.nodes.contains(&node) && core.axes == [axis])
    }

    /// Records all values that a node ties together.
    fn link(&mut self, node: NodeId, tie: &Tie) {
        if !self.linked.insert(node) {
            return;
        }
        let graph = &self.analysis.graph;
        let mut varying = 0;
        for &(slot, axis) in &tie.operands {
            let Some(value) = graph.input(node, slot) else {
                continue;
            };
            let at = Channels { value, axis };
            if self.analysis.constants.is_constant(value) {
                let source = match graph.op(node) {
                    Some("Gather") => WrittenBy::Table(node),
                    _ => WrittenBy::Constant(node, slot),
                };
                self.stream.writers.push(StreamWriter { at, source });
            } else {
                varying += 1;
                self.meet(at, ReadBy::Other(node, slot));
            }
        }
        for &slot in &tie.uniform {
            let Some(value) = graph.input(node, slot) else {
                continue;
            };
            let at = Channels {
                value,
                axis: tie.axis,
            };
            self.stream.writers.push(StreamWriter {
                at,
                source: WrittenBy::Uniform(node, slot),
            });
        }
        for value in tie
            .outputs
            .iter()
            .filter_map(|&slot| graph.output(node, slot))
        {
            self.meet(
                Channels {
                    value,
                    axis: tie.axis,
                },
                ReadBy::Other(node, 0),
            );
        }
        let adds = matches!(graph.op(node), Some("Add" | "Sub" | "Sum"));
        self.stream.sums += usize::from(adds && varying > 1);
    }

    /// Records a value of the stream. If the value is already recorded with another axis of
    /// channels, records the reader `by` instead.
    fn meet(&mut self, at: Channels, by: ReadBy) {
        if !self.reach(at) {
            self.stream.readers.push(StreamReader { at, by });
        }
    }

    fn finish(self) -> Stream {
        let (analysis, mut stream) = (self.analysis, self.stream);
        stream.values = self
            .axes
            .into_iter()
            .map(|(value, axis)| Channels { value, axis })
            .collect();
        stream
            .values
            .sort_by_key(|at| (place(analysis, at.value), at.value));
        // A constant has no producer, so it is sorted by the node that reads it.
        stream.writers.sort_by_key(|StreamWriter { at, source }| {
            (
                source.node().map_or(place(analysis, at.value), |node| {
                    Some(analysis.graph.place(node))
                }),
                at.value,
            )
        });
        stream
            .readers
            .sort_by_key(|reader| (place(analysis, reader.at.value), reader.at.value));
        stream
    }
}

#[cfg(all(test, feature = "cli"))]
mod tests;
