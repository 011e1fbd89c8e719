//! `x·s + (β − μ·s)`, as Keras and TensorFlow write a normalization, as `(x − μ)·s + β`.
//!
//! With `s = γ/√(σ²+ε)` computed first, nothing in such a graph is the normalized value. Wiring so it is one,
//! and γ and β are an affine behind it, on fewer operators over all of `x`.

use crate::hash::{HashMap, HashSet};
use crate::ir::builder;
use crate::ir::editor::collect_names;
use crate::ir::names::Names;
use crate::onnx::Model;
use crate::onnx::node::bodies;
use crate::onnx::proto::NodeProto;
use crate::passes::inline::label;

/// A normalization that is written so.
struct Distributed<'m> {
    x: &'m str,
    mean: &'m str,
    scale: &'m str,
    shift: Option<&'m str>,
    /// The nodes that go, by their places.
    gone: Vec<usize>,
}

impl<'m> Distributed<'m> {
    /// The values that the rewritten form reads.
    fn reads(&self) -> impl Iterator<Item = &'m str> {
        [self.x, self.mean, self.scale]
            .into_iter()
            .chain(self.shift)
    }
}

/// Rewrites normalizations so that the mean is subtracted before scaling; `None` if there are none.
pub fn collect(model: &Model, skip: &dyn Fn(&str, &str) -> bool) -> Option<Model> {
    let nodes = &model.graph().node;
    let means: HashSet<&str> = nodes
        .iter()
        .filter(|node| is_mean(node))
        .flat_map(output)
        .collect();
    let scales_mean = |node: &NodeProto| {
        matches!(node.op(), ("", "Mul" | "Neg"))
            && node.input.iter().any(|name| means.contains(name.as_str()))
    };
    if !nodes.iter().any(scales_mean) {
        return None;
    }
    let wiring = Wiring::new(model);
    let is_kept = |node: &NodeProto| skip(label(node), node.op_type());
    let mut found: HashMap<usize, Distributed> = HashMap::default();
    let mut gone: HashSet<usize> = HashSet::default();
    let mut read: HashSet<usize> = HashSet::default();
    for last in (0..nodes.len()).filter(|&last| !is_kept(&nodes[last])) {
        let Some(distributed) = wiring.found(last) else {
            continue;
        };
        let reads: Vec<usize> = distributed
            .reads()
            .filter_map(|name| wiring.makers.get(name))
            .copied()
            .collect();
        // Nodes of one match are not free for another one.
        let is_free = |node: &usize| {
            !gone.contains(node) && !read.contains(node) && !found.contains_key(node)
        };
        if reads.iter().all(|node| !gone.contains(node)) && distributed.gone.iter().all(is_free) {
            gone.extend(&distributed.gone);
            read.extend(reads);
            found.insert(last, distributed);
        }
    }
    if found.is_empty() {
        return None;
    }
    let mut names = Names::new(model);
    let mut left = vec![];
    for (place, node) in nodes.iter().enumerate() {
        match found.get(&place) {
            Some(found) => left.extend(written(node, found, &mut names)),
            None if gone.contains(&place) => {}
            None => left.push(node.clone()),
        }
    }
    Some(model.with_nodes(left, vec![]))
}

/// `(x − μ)·s + β`, which replaces the last node.
fn written(last: &NodeProto, found: &Distributed, names: &mut Names) -> Vec<NodeProto> {
    let result = output(last).unwrap_or_default();
    let mut fresh = |what: &str| names.fresh(&format!("{}_{what}", label(last)));
    let (centred, scaled) = (fresh("centred"), fresh("scaled"));
    let scaled = if found.shift.is_some() {
        scaled.as_str()
    } else {
        result
    };
    let mut made = vec![
        builder::node(last, "Sub", &fresh("sub"), &[found.x, found.mean], &centred),
        builder::node(last, "Mul", &fresh("mul"), &[&centred, found.scale], scaled),
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

/// Whether a node makes a mean; of tokens, TensorFlow's is a pooling over their channels.
fn is_mean(node: &NodeProto) -> bool {
    matches!(node.op(), ("", "GlobalAveragePool" | "ReduceMean"))
}

/// Producers and numbers of readers.
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
        let mut readers: HashMap<&str, usize> = HashMap::default();
        let mut read = |name| *readers.entry(name).or_default() += 1;
        graph.output.iter().for_each(|output| read(output.name()));
        for node in &graph.node {
            node.input.iter().for_each(|name| read(name.as_str()));
            let mut inside = HashSet::default();
            bodies(node).for_each(|body| collect_names(body, &mut inside));
            inside.into_iter().for_each(&mut read);
        }
        Wiring {
            nodes: &graph.node,
            makers,
            readers,
        }
    }

    /// The operands of an operator of ONNX without attributes, and its place.
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

    /// As [`Self::operands`], for a value with one reader.
    fn own(&self, value: &str, op: &str) -> Option<(Vec<&'m str>, usize)> {
        self.operands(value, op)
            .filter(|_| self.readers.get(value) == Some(&1))
    }

    /// The other factor of a product with `scale`.
    fn times(&self, value: &str, scale: &str) -> Option<(&'m str, usize)> {
        let (operands, place) = self.own(value, "Mul")?;
        match operands[..] {
            [other, by] | [by, other] if by == scale => Some((other, place)),
            _ => None,
        }
    }

    /// `μ` of `−μ·s`, and the nodes.
    fn taken_off(&self, value: &str, scale: &str) -> Option<(&'m str, Vec<usize>)> {
        if let Some((operands, negation)) = self.own(value, "Neg") {
            let (mean, product) = self.times(operands[0], scale)?;
            return Some((mean, vec![product, negation]));
        }
        let (negated, product) = self.times(value, scale)?;
        let (operands, negation) = self.own(negated, "Neg")?;
        Some((operands[0], vec![negation, product]))
    }

    /// `μ` and `β` of `β − μ·s`, and the nodes.
    fn rest(&self, value: &str, scale: &str) -> Option<(&'m str, Option<&'m str>, Vec<usize>)> {
        if let Some((mean, nodes)) = self.taken_off(value, scale) {
            return Some((mean, None, nodes));
        }
        if let Some((operands, place)) = self.own(value, "Sub") {
            let (mean, product) = self.times(operands[1], scale)?;
            return Some((mean, Some(operands[0]), vec![product, place]));
        }
        let (operands, place) = self.own(value, "Add")?;
        let either = [(operands[0], operands[1]), (operands[1], operands[0])];
        either.into_iter().find_map(|(product, shift)| {
            let (mean, nodes) = self.taken_off(product, scale)?;
            Some((mean, Some(shift), [nodes, vec![place]].concat()))
        })
    }

    /// The normalization that ends in a node.
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
                let factors = [(factors[0], factors[1]), (factors[1], factors[0])];
                factors.into_iter().find_map(|(x, scale)| {
                    let (mean, shift, nodes) = match is_difference {
                        true => self
                            .times(rest, scale)
                            .map(|(mean, product)| (mean, None, vec![product]))?,
                        false => self.rest(rest, scale)?,
                    };
                    let maker = &self.nodes[*self.makers.get(mean)?];
                    let is_of_it = is_mean(maker) && maker.input.first()? == x;
                    let gone = [nodes, vec![place]].concat();
                    is_of_it.then_some(Distributed {
                        x,
                        mean,
                        scale,
                        shift,
                        gone,
                    })
                })
            })
    }
}
