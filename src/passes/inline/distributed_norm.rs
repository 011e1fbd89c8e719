//! Rewrites `x·s + (β − μ·s)`, the form in which Keras and TensorFlow write a normalization, as `(x
//! − μ)·s + β`.
//!
//! The original graph computes `s = γ/√(σ²+ε)` first, and none of its values is the normalized
//! input. In the rewritten form, γ and β are an affine after the normalized input, and fewer
//! operators run over all of `x`.

use crate::hash::{HashMap, HashSet};
use crate::ir::builder;
use crate::ir::editor::collect_names;
use crate::ir::names::Names;
use crate::onnx::Model;
use crate::onnx::node::bodies;
use crate::onnx::proto::NodeProto;
use crate::passes::inline::label;

/// A normalization in the original form.
struct Distributed<'m> {
    x: &'m str,
    mean: &'m str,
    scale: &'m str,
    shift: Option<&'m str>,
    /// The indices of the nodes that are removed.
    removed: Vec<usize>,
}

impl<'m> Distributed<'m> {
    /// The values that the rewritten form reads.
    fn reads(&self) -> impl Iterator<Item = &'m str> {
        [self.x, self.mean, self.scale]
            .into_iter()
            .chain(self.shift)
    }
}

/// Rewrites normalizations so that the mean is subtracted before scaling. `None` if there are none.
pub(super) fn collect(model: &Model, skip: &dyn Fn(&str, &str) -> bool) -> Option<Model> {
    let nodes = &model.graph().node;
    if !has_scaled_mean(nodes) {
        return None;
    }
    let wiring = Wiring::new(model);
    let mut matches = Matches::default();
    for (last, node) in nodes.iter().enumerate() {
        if skip(label(node), node.op_type()) {
            continue;
        }
        if let Some(distributed) = wiring.found(last) {
            matches.add(&wiring, last, distributed);
        }
    }
    if matches.by_last.is_empty() {
        return None;
    }
    let mut names = Names::new(model);
    let mut rewritten = vec![];
    for (place, node) in nodes.iter().enumerate() {
        match matches.by_last.get(&place) {
            Some(found) => rewritten.extend(written(node, found, &mut names)),
            None if matches.removed.contains(&place) => {}
            None => rewritten.push(node.clone()),
        }
    }
    Some(model.with_nodes(rewritten, vec![]))
}

/// Whether some node multiplies or negates a mean. Every normalization in the form that this module
/// reads has such a node.
fn has_scaled_mean(nodes: &[NodeProto]) -> bool {
    let means: HashSet<&str> = nodes
        .iter()
        .filter(|node| is_mean(node))
        .flat_map(output)
        .collect();
    nodes.iter().any(|node| {
        matches!(node.op(), ("", "Mul" | "Neg"))
            && node.input.iter().any(|name| means.contains(name.as_str()))
    })
}

/// Normalizations that share no node, by the index of the last node of each.
#[derive(Default)]
struct Matches<'m> {
    by_last: HashMap<usize, Distributed<'m>>,
    /// The nodes that are removed.
    removed: HashSet<usize>,
    /// The nodes whose results the rewritten forms read.
    read: HashSet<usize>,
}

impl<'m> Matches<'m> {
    /// Adds a normalization, unless one of its nodes belongs to another normalization.
    fn add(&mut self, wiring: &Wiring<'m>, last: usize, found: Distributed<'m>) {
        let read: Vec<usize> = found
            .reads()
            .filter_map(|name| wiring.makers.get(name))
            .copied()
            .collect();
        if read.iter().any(|node| self.removed.contains(node))
            || found.removed.iter().any(|node| self.has(*node))
        {
            return;
        }
        self.removed.extend(&found.removed);
        self.read.extend(read);
        self.by_last.insert(last, found);
    }

    fn has(&self, node: usize) -> bool {
        self.removed.contains(&node)
            || self.read.contains(&node)
            || self.by_last.contains_key(&node)
    }
}

/// Writes `(x − μ)·s + β`, which replaces the last node of the original form.
fn written(last: &NodeProto, found: &Distributed, names: &mut Names) -> Vec<NodeProto> {
    let result = output(last).unwrap_or_default();
    let [centred, scaled, sub, mul] = ["centred", "scaled", "sub", "mul"]
        .map(|suffix| names.fresh(&format!("{}_{suffix}", label(last))));
    let scaled = if found.shift.is_some() {
        scaled.as_str()
    } else {
        result
    };
    let mut made = vec![
        builder::node(last, "Sub", &sub, &[found.x, found.mean], &centred),
        builder::node(last, "Mul", &mul, &[&centred, found.scale], scaled),
    ];
    if let Some(shift) = found.shift {
        made.push(builder::node(
            last,
            "Add",
            label(last),
            &[scaled, shift],
            result,
        ));
    }
    made
}

fn output(node: &NodeProto) -> Option<&str> {
    node.output
        .first()
        .map(String::as_str)
        .filter(|name| !name.is_empty())
}

/// Whether a node outputs a mean. TensorFlow writes the mean of tokens as a pooling over their
/// channels.
fn is_mean(node: &NodeProto) -> bool {
    matches!(node.op(), ("", "GlobalAveragePool" | "ReduceMean"))
}

/// For each value, the index of its producer and the number of its readers.
struct Wiring<'m> {
    nodes: &'m [NodeProto],
    makers: HashMap<&'m str, usize>,
    readers: HashMap<&'m str, usize>,
}

impl<'m> Wiring<'m> {
    fn new(model: &'m Model) -> Self {
        let graph = model.graph();
        let makers = graph.node.iter().enumerate();
        let makers = makers
            .filter_map(|(place, node)| Some((output(node)?, place)))
            .collect();
        let mut read: Vec<&str> = graph.output.iter().map(|output| output.name()).collect();
        for node in &graph.node {
            read.extend(node.input.iter().map(String::as_str));
            let mut inside = HashSet::default();
            bodies(node).for_each(|body| collect_names(body, &mut inside));
            read.extend(inside);
        }
        let mut readers: HashMap<&str, usize> = HashMap::default();
        for name in read {
            *readers.entry(name).or_default() += 1;
        }
        Wiring {
            nodes: &graph.node,
            makers,
            readers,
        }
    }

    /// The operands and the index of the producer of a value, if the producer is the operator `op`
    /// of ONNX without attributes.
    fn operands(&self, value: &str, op: &str) -> Option<(Vec<&'m str>, usize)> {
        let place = *self.makers.get(value)?;
        let node = &self.nodes[place];
        let count = if op == "Neg" { 1 } else { 2 };
        let is_plain = node.op() == ("", op)
            && node.attribute.is_empty()
            && node.input.len() == count
            && node.input.iter().all(|name| !name.is_empty());
        is_plain.then(|| (node.input.iter().map(String::as_str).collect(), place))
    }

    /// Like [`Self::operands`]. `None` also if the value has several readers.
    fn own(&self, value: &str, op: &str) -> Option<(Vec<&'m str>, usize)> {
        self.operands(value, op)
            .filter(|_| self.readers.get(value) == Some(&1))
    }

    /// Matches a product with `scale` that has one reader. Returns the other factor and the index
    /// of the node. `None` for other values.
    fn times(&self, value: &str, scale: &str) -> Option<(&'m str, usize)> {
        let (operands, place) = self.own(value, "Mul")?;
        match operands[..] {
            [other, by] | [by, other] if by == scale => Some((other, place)),
            _ => None,
        }
    }

    /// Matches `−μ·s`. Returns `μ` and the indices of the nodes. `None` for other values.
    fn negated_mean(&self, value: &str, scale: &str) -> Option<(&'m str, Vec<usize>)> {
        if let Some((operands, negation)) = self.own(value, "Neg") {
            let (mean, product) = self.times(operands[0], scale)?;
            return Some((mean, vec![product, negation]));
        }
        let (negated, product) = self.times(value, scale)?;
        let (operands, negation) = self.own(negated, "Neg")?;
        Some((operands[0], vec![negation, product]))
    }

    /// Matches `β − μ·s`, or `−μ·s` without a β. Returns `μ`, `β` and the indices of the nodes.
    /// `None` for other values.
    fn rest(&self, value: &str, scale: &str) -> Option<(&'m str, Option<&'m str>, Vec<usize>)> {
        if let Some((mean, nodes)) = self.negated_mean(value, scale) {
            return Some((mean, None, nodes));
        }
        if let Some((operands, place)) = self.own(value, "Sub") {
            let (mean, product) = self.times(operands[1], scale)?;
            return Some((mean, Some(operands[0]), vec![product, place]));
        }
        let (operands, place) = self.own(value, "Add")?;
        let either = [(operands[0], operands[1]), (operands[1], operands[0])];
        either.into_iter().find_map(|(product, shift)| {
            let (mean, nodes) = self.negated_mean(product, scale)?;
            Some((mean, Some(shift), [nodes, vec![place]].concat()))
        })
    }

    /// The normalization in the original form whose last node is `last`. `None` if there is none.
    fn found(&self, last: usize) -> Option<Distributed<'m>> {
        let result = output(&self.nodes[last])?;
        let (sums, differences) = (self.operands(result, "Add"), self.operands(result, "Sub"));
        let pairs = match (sums, differences) {
            (Some((sum, _)), _) => vec![(sum[0], sum[1], false), (sum[1], sum[0], false)],
            (_, Some((difference, _))) => vec![(difference[0], difference[1], true)],
            _ => return None,
        };
        pairs
            .into_iter()
            .find_map(|(product, rest, is_difference)| {
                let (factors, place) = self.own(product, "Mul")?;
                let mut found = self
                    .scaled(factors[0], factors[1], rest, is_difference)
                    .or_else(|| self.scaled(factors[1], factors[0], rest, is_difference))?;
                found.removed.push(place);
                Some(found)
            })
    }

    /// The normalization that consists of the product `x·s` and `rest`, which is added or
    /// subtracted. `None` if `rest` has another form, or if its μ is not a mean of `x`.
    fn scaled(
        &self,
        x: &'m str,
        scale: &'m str,
        rest: &str,
        is_difference: bool,
    ) -> Option<Distributed<'m>> {
        let (mean, shift, removed) = if is_difference {
            let (mean, product) = self.times(rest, scale)?;
            (mean, None, vec![product])
        } else {
            self.rest(rest, scale)?
        };
        let maker = &self.nodes[*self.makers.get(mean)?];
        let is_mean_of_x = is_mean(maker) && maker.input.first()? == x;
        is_mean_of_x.then_some(Distributed {
            x,
            mean,
            scale,
            shift,
            removed,
        })
    }
}
