//! Subtracted mean: `x − mean(x)`, which is linear in `x`. A LayerNorm becomes a subtracted mean
//! and an affine if its σ becomes a constant.
//!
//! Before: `L(x − mean(x))` or `L(x) − mean(L(x))`, where the mean is over the channels, and L is a
//! convolution or a product with a constant matrix. After: L, from whose weight the mean of the
//! weight over these channels is subtracted. In the second case, the bias changes in the same way.
//! This is exact even if L pads, because the mean of zeros is 0.

use crate::affine::recognize::linear_branches::operator::operator;
use crate::affine::recognize::linear_branches::read::{Branch, Windowed};
use crate::affine::recognize::{Family, Kind, Normalizer, Replacement, Site, View};
use crate::ir::builder::Maker;
use crate::ir::{NodeId, Reader, ValueId};
use crate::recipe::Recipe;
use crate::refusal::{Reason, Refusal};

/// A subtracted mean of the channels.
pub(crate) struct SubtractedMean;

impl Normalizer for SubtractedMean {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let difference = Difference::ending_in(view, node)?;
        let merged = difference
            .ahead(view)
            .or_else(|refusal| difference.behind(view).ok_or(refusal));
        if merged.is_err() && !difference.is_before_linear(view) {
            return None;
        }
        let (replacement, refusal) = match merged {
            Ok(replacement) => (Some(replacement), None),
            Err(refusal) => (None, Some(refusal)),
        };
        let nodes = replacement
            .as_ref()
            .map_or(difference.nodes.to_vec(), |merged| merged.nodes.clone());
        Some(Site {
            channels: view
                .facts
                .extent(difference.input, difference.axis)
                .unwrap_or(0),
            axis: difference.axis,
            replacement,
            refusal,
            ..Site::new(
                Kind::new("subtracted mean", Family::Linear),
                view.site_name(node),
                nodes,
            )
        })
    }
}

/// A value minus its mean over one axis.
struct Difference {
    input: ValueId,
    output: ValueId,
    axis: usize,
    rank: usize,
    /// The node that computes the mean, and the node that subtracts it.
    nodes: [NodeId; 2],
}

impl Difference {
    fn ending_in(view: &View, node: NodeId) -> Option<Self> {
        let graph = view.graph;
        if graph.op(node) != Some("Sub") {
            return None;
        }
        let (input, mean) = (graph.input(node, 0)?, graph.input(node, 1)?);
        let maker = view
            .maker(mean)
            .filter(|&maker| graph.op(maker) == Some("ReduceMean"))?;
        let rank = view.facts.rank(input)?;
        let (axes, keeps) = view.at(maker).reduction(rank).ok()?;
        let is_its_own =
            graph.input(maker, 0) == Some(input) && view.only_reader(mean) == Some(node);
        let is_beside = view.are_in_one_body(maker, node);
        let &[axis] = &axes[..] else { return None };
        let output = graph
            .only_output(node)
            .filter(|_| is_its_own && is_beside && keeps)?;
        Some(Self {
            input,
            output,
            axis,
            rank,
            nodes: [maker, node],
        })
    }

    /// Whether an affine or a linear operator reads the difference. Other differences are not
    /// listed as sites.
    fn is_before_linear(&self, view: &View) -> bool {
        view.chain_from(self.output).is_some()
            || view
                .graph
                .readers(self.output)
                .iter()
                .any(|reader| match *reader {
                    Reader::Node { node, .. } => reads(view, node, self.output).is_some(),
                    _ => false,
                })
    }

    /// Whether the mean is over all channels of `branch`, the operator before or after the mean.
    fn is_over(&self, branch: &Branch) -> bool {
        branch.window.channel_axis(self.rank) == Some(self.axis) && branch.window.group == 1
    }

    /// Merges the mean into all operators that read the difference. The refusal names a reader into
    /// which the mean cannot merge.
    fn ahead(&self, view: &View) -> Result<Replacement, Refusal> {
        let graph = view.graph;
        let mut merged = vec![];
        for reader in graph.readers(self.output) {
            let node = match *reader {
                Reader::Node { node, .. } => node,
                Reader::Output => {
                    return Err(Refusal::new(
                        Reason::GraphOutput,
                        graph.value_name(self.output),
                    ));
                }
                Reader::Capture { node } => {
                    return Err(Refusal::new(Reason::CapturedBySubgraph, graph.name(node)));
                }
            };
            merged.push(self.without_mean(view, node)?);
        }
        let mut nodes = self.nodes.to_vec();
        nodes.extend(merged.iter().map(|(operator, _)| operator.node));
        self.replacement(view, nodes, &merged)
    }

    /// Reads a linear operator on the difference. Returns the operator on `input` that computes the
    /// same, with the mean merged into its weight.
    fn without_mean(&self, view: &View, node: NodeId) -> Result<(Windowed, Branch), Refusal> {
        let graph = view.graph;
        let operator = reads(view, node, self.output).filter(|operator| operator.has_weight(view));
        let operator = operator.ok_or_else(|| {
            let (domain, op) = graph.domain_op(node);
            let reason = match graph.op(node) {
                Some(op) => Reason::NotLinear(op.into()),
                None => Reason::UnknownOperator(format!("{domain}.{op}")),
            };
            Refusal::new(reason, graph.name(node))
        })?;
        let branch = operator.branch.clone()?;
        if !self.is_over(&branch) || !view.are_in_one_body(node, self.nodes[1]) {
            return Err(Refusal::new(Reason::WrongAxis, graph.name(node)));
        }
        let weight = without_mean(&branch.weight, 1)
            .ok_or_else(|| Refusal::new(Reason::UnknownShape, graph.name(node)))?;
        let base = self.input;
        Ok((Windowed { base, ..operator }, Branch { weight, ..branch }))
    }

    /// Merges the mean into the linear operator that computes `input`. `None` if no such operator
    /// does, or if other nodes read `input`.
    fn behind(&self, view: &View) -> Option<Replacement> {
        let operator = Windowed::with_bias(view, self.input)?;
        let branch = operator.branch.clone().ok()?;
        let is_own =
            view.graph.readers(self.input).iter().all(
                |reader| matches!(reader, Reader::Node { node, .. } if self.nodes.contains(node)),
            );
        let is_beside = operator
            .nodes
            .iter()
            .all(|&node| view.are_in_one_body(node, self.nodes[1]));
        if !is_own || !is_beside || !operator.has_weight(view) || !self.is_over(&branch) {
            return None;
        }
        let bias = match &branch.bias {
            Some(bias) => Some(without_mean(bias, 0)?),
            None => None,
        };
        let weight = without_mean(&branch.weight, 0)?;
        let branch = Branch {
            weight,
            bias,
            ..branch
        };
        let nodes = operator.nodes.iter().chain(&self.nodes).copied().collect();
        self.replacement(view, nodes, &[(operator, branch)]).ok()
    }

    /// Replaces `nodes` by the operators `merged`. At most one of them may need an Add for its
    /// bias.
    fn replacement(
        &self,
        view: &View,
        mut nodes: Vec<NodeId>,
        merged: &[(Windowed, Branch)],
    ) -> Result<Replacement, Refusal> {
        let graph = view.graph;
        let mut maker = Maker::new(graph, self.nodes[1]);
        let mut results = vec![];
        for (like, branch) in merged {
            let made = operator(view, like, graph.value_name(like.base), branch, &mut maker)
                .map_err(|reason| Refusal::new(reason, graph.name(like.node)))?;
            let ends_here = like.base != self.input;
            let output = if ends_here {
                Some(self.output)
            } else {
                graph.only_output(like.node)
            };
            let output =
                output.ok_or_else(|| Refusal::new(Reason::UnknownShape, graph.name(like.node)))?;
            results.push((made, graph.value_name(output), graph.node(like.node)));
        }
        let (mut made, constants) =
            maker.finish(results.last().map_or("", |(_, output, _)| output));
        for (value, output, like) in &results {
            for node in made
                .iter_mut()
                .filter(|node| node.output[0] == *value || node.output[0] == *output)
            {
                node.output[0] = (*output).to_owned();
                node.metadata_props = like.metadata_props.clone();
                node.name = like.name.clone();
            }
        }
        nodes.sort_by_key(|&node| graph.place(node));
        Ok(Replacement {
            nodes,
            made,
            constants,
        })
    }
}

/// Reads `node` as a linear operator on `value`. `None` if it is not linear in that value.
fn reads(view: &View, node: NodeId, value: ValueId) -> Option<Windowed> {
    Windowed::alone(view, view.graph.only_output(node)?).filter(|operator| operator.base == value)
}

/// Subtracts from numbers their mean along an axis.
fn without_mean(numbers: &Recipe, axis: usize) -> Option<Recipe> {
    let count = Recipe::number(*numbers.shape().get(axis)? as f64, numbers.rank());
    numbers.sub(&numbers.sum(axis)?.div(&count)?)
}
