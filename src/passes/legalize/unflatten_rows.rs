//! Writes layers on rows as layers on all axes, the form that all rules know.
//!
//! Before: a Reshape of `x` to two axes, a Gemm, element-wise operators, and a Reshape back. After:
//! a MatMul and an Add of `x` on the axes that it has, and the element-wise operators. A Reshape
//! stays only if the result has axes other than those of `x`. This is exact, because the rows of a
//! product do not depend on how they are arranged.
//!
//! A region begins at a Reshape to two axes and ends at Reshapes to constant extents. No other node
//! reads a value in between.

use std::collections::{BTreeMap, HashMap};

use crate::affine::materialize::Edit;
use crate::affine::recognize::Replacement;
use crate::analysis::Analysis;
use crate::ir::builder::Maker;
use crate::ir::regions::region_path;
use crate::ir::{NodeId, Reader, ValueId};
use crate::onnx::proto::NodeProto;
use crate::shape::facts::{Shape, extent};

/// The edits that write the regions of the main graph on all axes.
pub(super) fn edits(analysis: &Analysis) -> Vec<Edit> {
    analysis
        .graph
        .order()
        .iter()
        .filter_map(|&entry| RowRegion::at(analysis, entry)?.unflattened())
        .collect()
}

/// The role of a node in a region of rows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RowRole {
    /// Multiplies the rows by a constant matrix, and may add a bias.
    Layer,
    /// Computes element by element.
    Elementwise,
    /// Reshapes the rows to other axes.
    Exit,
}

/// The operators between a Reshape to two axes and the Reshapes back.
struct RowRegion<'a> {
    analysis: &'a Analysis<'a>,
    entry: NodeId,
    /// The value that the Reshape `entry` reads.
    source: ValueId,
    /// The values of two axes, with the number of channels of each.
    rows: HashMap<ValueId, usize>,
    /// The nodes after the Reshape `entry`, in execution order, each with its role.
    nodes: Vec<(NodeId, RowRole)>,
}

impl<'a> RowRegion<'a> {
    /// The region after a Reshape to two axes. `None` if one of its values is read by a node that
    /// has no role in a region, or if it contains no layer.
    fn at(analysis: &'a Analysis, entry: NodeId) -> Option<Self> {
        let Analysis { graph, facts, .. } = analysis;
        if !graph.is(entry, "Reshape") || !region_path(graph.node(entry)).is_empty() {
            return None;
        }
        let (source, value) = (graph.input(entry, 0)?, graph.only_output(entry)?);
        let is_flat = facts.rank(source)? > 2 && facts.rank(value)? == 2;
        let channels = facts
            .extent(value, 1)
            .filter(|&channels| is_flat && channels > 0)?;
        let mut region = RowRegion {
            analysis,
            entry,
            source,
            rows: HashMap::new(),
            nodes: vec![],
        };
        // The open nodes, by their places in the execution order.
        let mut open = BTreeMap::new();
        region.admit(value, channels, &mut open)?;
        while let Some((_, node)) = open.pop_first() {
            let role = region.role(node)?;
            region.nodes.push((node, role));
            if role != RowRole::Exit {
                let value = graph.only_output(node)?;
                let channels = facts.extent(value, 1).filter(|&channels| channels > 0)?;
                region.admit(value, channels, &mut open)?;
            }
        }
        region
            .nodes
            .iter()
            .any(|(_, role)| *role == RowRole::Layer)
            .then_some(region)
    }

    /// Adds a value to the region, and all its readers to the open nodes. `None` if the value is an
    /// output of the graph, or does not have two axes.
    fn admit(
        &mut self,
        value: ValueId,
        channels: usize,
        open: &mut BTreeMap<usize, NodeId>,
    ) -> Option<()> {
        let graph = &self.analysis.graph;
        if graph.is_output(value) || self.analysis.facts.rank(value)? != 2 {
            return None;
        }
        for reader in graph.readers(value) {
            let Reader::Node { node, .. } = *reader else {
                return None;
            };
            open.insert(graph.place(node), node);
        }
        self.rows.insert(value, channels);
        Some(())
    }

    /// The role of a node that reads rows of this region. `None` for a node that has none of these
    /// roles.
    fn role(&self, node: NodeId) -> Option<RowRole> {
        let Analysis {
            graph, constants, ..
        } = self.analysis;
        if !region_path(graph.node(node)).is_empty() {
            return None;
        }
        match graph.op(node) {
            Some("Gemm") => self.is_layer(node).then_some(RowRole::Layer),
            Some("Reshape") => {
                let target = graph.input(node, 1)?;
                // A 0 copies the extent of the axis with the same index. The rewritten Reshape
                // reads a value with other axes.
                let copies_extents = constants.ints(target)?.contains(&0);
                (!copies_extents && !self.rows.contains_key(&target)).then_some(RowRole::Exit)
            }
            _ => {
                let is_elementwise = graph.category(node)?.is_elementwise();
                let mut operands = graph.inputs(node).iter().flatten();
                let fits =
                    operands.all(|value| self.rows.contains_key(value) || self.is_vector(*value));
                (is_elementwise && fits).then_some(RowRole::Elementwise)
            }
        }
    }

    /// Whether a Gemm is `x·W` or `x·W + b` with x of this region.
    fn is_layer(&self, node: NodeId) -> bool {
        let Analysis {
            graph,
            facts,
            constants,
            ..
        } = self.analysis;
        let at = self.analysis.at(node);
        let is_plain = at
            .only_attributes(&["alpha", "beta", "transA", "transB"])
            .is_ok()
            && at.attr_float("alpha", 1.0) == Ok(1.0)
            && at.attr_float("beta", 1.0) == Ok(1.0)
            && at.attr("transA", 0) == Ok(0)
            && at.attr("transB", 0) == Ok(0);
        let (Some(value), Some(weight)) = (graph.input(node, 0), graph.input(node, 1)) else {
            return false;
        };
        let bias = graph.input(node, 2);
        let are_constant = [Some(weight), bias]
            .into_iter()
            .flatten()
            .all(|value| constants.is_constant(value) && !constants.is_quantized(value));
        let fits_columns = bias.is_none_or(|bias| {
            facts.rank(bias) == Some(1) && facts.extent(bias, 0) == facts.extent(weight, 1)
        });
        is_plain && self.rows.contains_key(&value) && are_constant && fits_columns
    }

    /// Whether a value is a constant scalar or vector, which broadcasts along all axes except the
    /// channels.
    fn is_vector(&self, value: ValueId) -> bool {
        let Analysis {
            facts, constants, ..
        } = self.analysis;
        constants.is_constant(value) && facts.rank(value).is_some_and(|rank| rank < 2)
    }

    /// The extents of the axes that all values of the region get before their channels. They are
    /// taken from the source or from a result, whichever has the fewest axes. At most one of the
    /// extents is unknown. `None` if neither the source nor a result has at least two axes before
    /// its channels.
    fn leading(&self) -> Option<Vec<Option<usize>>> {
        let Analysis { graph, facts, .. } = self.analysis;
        let entered = (
            self.source,
            *self.rows.get(&graph.only_output(self.entry)?)?,
        );
        let exits = self.nodes.iter().filter(|(_, role)| *role == RowRole::Exit);
        let left =
            exits.filter_map(|&(node, _)| Some((graph.only_output(node)?, self.rows_read(node)?)));
        let axes = left
            .chain([entered])
            .filter_map(|(value, channels)| before(&facts.shape(value)?, channels));
        axes.min_by_key(Vec::len)
    }

    /// The number of channels of the rows that an exit reads. `None` if it reads another value.
    fn rows_read(&self, exit: NodeId) -> Option<usize> {
        self.rows.get(&self.analysis.graph.input(exit, 0)?).copied()
    }

    /// Whether a value has axes with the extents `leading`, followed by one axis of `channels`
    /// channels.
    fn is_on(&self, value: ValueId, leading: &[Option<usize>], channels: usize) -> bool {
        let shape = self.analysis.facts.shape(value);
        shape.is_some_and(|shape| {
            let expected = leading.iter().copied().chain([Some(channels)]);
            shape.iter().map(extent).eq(expected)
        })
    }

    /// Writes the region with the axes of [`Self::leading`] before the channels of all its values,
    /// in place of one axis of rows. `None` if [`Self::leading`] returns `None`, or if a node
    /// cannot be written.
    fn unflattened(&self) -> Option<Edit> {
        let graph = &self.analysis.graph;
        let leading = self.leading()?;
        let first = graph.only_output(self.entry)?;
        let mut lifting = Lifting {
            region: self,
            maker: Maker::new(graph, self.entry),
            names: HashMap::new(),
        };
        let channels = self.rows[&first];
        let mut source = graph.value_name(self.source).to_owned();
        if !self.is_on(self.source, &leading, channels) {
            let extents = leading
                .iter()
                .map(|extent| extent.map_or(-1, |extent| extent as i64));
            let extents: Vec<i64> = extents.chain([channels as i64]).collect();
            source = lifting.maker.reshape(&source, &extents);
        }
        lifting.names.insert(first, source);
        let results = self.results(&leading);
        let mut likes = vec![];
        for &(node, role) in &self.nodes {
            let count = lifting.write(node, role, &results)?;
            likes.extend(std::iter::repeat_n(node, count));
        }
        let (mut made, constants) = lifting.maker.done();
        let reshaped = made.len() - likes.len();
        for (made, &like) in made[reshaped..].iter_mut().zip(&likes) {
            take_over(made, graph.node(like));
        }
        let nodes = [self.entry]
            .into_iter()
            .chain(self.nodes.iter().map(|(node, _)| *node))
            .collect();
        Some(Edit::replacing(
            graph,
            self.entry,
            Replacement {
                nodes,
                made,
                constants,
            },
        ))
    }

    /// The exits that do nothing once all values have these leading axes. The key of an exit is the
    /// value that it reads.
    fn results(&self, leading: &[Option<usize>]) -> HashMap<ValueId, NodeId> {
        let graph = &self.analysis.graph;
        let exits = self
            .nodes
            .iter()
            .rev()
            .filter(|(_, role)| *role == RowRole::Exit);
        let idle = exits.filter_map(|&(node, _)| {
            let (read, made) = (graph.input(node, 0)?, graph.only_output(node)?);
            self.is_on(made, leading, self.rows_read(node)?)
                .then_some((read, node))
        });
        idle.collect()
    }
}

/// Builds the operators of a region on all axes.
struct Lifting<'r, 'a> {
    region: &'r RowRegion<'a>,
    maker: Maker<'a>,
    /// The names of the values that replace the values of the region, with all axes.
    names: HashMap<ValueId, String>,
}

impl Lifting<'_, '_> {
    /// Writes the replacement of a node. `results` has the exits that do nothing. Returns the
    /// number of nodes that are written. `None` if a node has several outputs.
    fn write(
        &mut self,
        node: NodeId,
        role: RowRole,
        results: &HashMap<ValueId, NodeId>,
    ) -> Option<usize> {
        let graph = &self.region.analysis.graph;
        let read = self.names_read(node);
        let read: Vec<&str> = read.iter().map(String::as_str).collect();
        let output = graph.only_output(node)?;
        let attributes = graph.node(node).attribute.clone();
        let (made, count) = match role {
            RowRole::Layer => {
                let product = self.maker.op("MatMul", &read[..2], vec![]);
                match read.get(2).filter(|bias| !bias.is_empty()) {
                    Some(bias) => (self.maker.op("Add", &[&product, bias], vec![]), 2),
                    None => (product, 1),
                }
            }
            RowRole::Elementwise => (
                self.maker.op(graph.node(node).op_type(), &read, attributes),
                1,
            ),
            RowRole::Exit => {
                let is_idle = results.get(&graph.input(node, 0)?) == Some(&node);
                // If the exit reads the value of the entry itself, the exit stays, because no other
                // node writes the result.
                if is_idle && graph.producer(graph.input(node, 0)?)?.0 != self.region.entry {
                    return Some(0);
                }
                self.maker.op("Reshape", &read, attributes);
                self.maker.makes(graph.value_name(output));
                return Some(1);
            }
        };
        let result = results
            .get(&output)
            .and_then(|&exit| graph.only_output(exit));
        let named = result.map(|result| graph.value_name(result).to_owned());
        if let Some(named) = &named {
            self.maker.makes(named);
        }
        self.names.insert(output, named.unwrap_or(made));
        Some(count)
    }

    /// The names of the values that replace the inputs of a node, in their form with all axes.
    fn names_read(&self, node: NodeId) -> Vec<String> {
        let graph = &self.region.analysis.graph;
        let inputs = graph.inputs(node).iter();
        let names = inputs.map(|input| match input {
            Some(value) => self
                .names
                .get(value)
                .map_or_else(|| graph.value_name(*value), String::as_str),
            None => "",
        });
        names.map(str::to_owned).collect()
    }
}

/// Gives a new node the metadata of the node that it replaces. If both nodes have the same
/// operator, the new node also gets the domain and the name of the old one. The MatMul of a layer
/// gets the metadata and the name of the Gemm.
fn take_over(made: &mut NodeProto, like: &NodeProto) {
    made.metadata_props.clone_from(&like.metadata_props);
    let is_same = made.op_type == like.op_type;
    if is_same {
        made.domain.clone_from(&like.domain);
    }
    if (is_same || made.op_type() == "MatMul") && !like.name().is_empty() {
        made.name.clone_from(&like.name);
    }
}

/// The extents of a shape without the last axes that together have `channels` elements. `None` if
/// fewer than two extents are left, or if one of these is 0 or more than one is unknown.
fn before(shape: &Shape, channels: usize) -> Option<Vec<Option<usize>>> {
    let mut product = 1;
    let start = (0..shape.len())
        .rev()
        .find_map(|axis| match extent(&shape[axis]) {
            Some(extent) => {
                product *= extent;
                (product == channels).then_some(Some(axis))
            }
            None => Some(None),
        })??;
    let leading: Vec<Option<usize>> = shape[..start].iter().map(extent).collect();
    let is_one_open = leading.iter().filter(|extent| extent.is_none()).count() <= 1;
    (leading.len() > 1 && is_one_open && !leading.contains(&Some(0))).then_some(leading)
}
