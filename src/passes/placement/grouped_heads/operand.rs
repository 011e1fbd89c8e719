//! The second operand of a product, if it repeats places of a smaller value.

use crate::analysis::Analysis;
use crate::analysis::node_view::At;
use crate::analysis::repeats::RepeatMap;
use crate::ir::{Graph, NodeId, Reader, ValueId};
use crate::onnx::operator::Category;
use crate::refusal::Reason;

/// The largest number of nodes around a product that are visited.
const MOST_NODES: usize = 64;

/// The number of axes of a matrix. An operand of at most this rank never adds an axis to a stack of
/// matrices.
const MATRIX: usize = 2;

/// A node that passes elements on. The node moves or repeats elements, or computes each element
/// separately.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link {
    /// The node.
    pub node: NodeId,
    /// The input whose elements the node passes on.
    pub slot: usize,
    /// Whether the node keeps every element at its place.
    pub is_elementwise: bool,
    /// Whether the operator can repeat elements.
    may_repeat: bool,
}

/// An operand that repeats places of a source.
#[derive(Debug, Clone)]
pub(super) struct RepeatedOperand {
    /// The value before the first repetition.
    pub source: ValueId,
    /// The element of the source from which each element of the operand comes.
    pub map: RepeatMap,
    /// The nodes from the source to the operand, in execution order.
    pub links: Vec<Link>,
    /// The number of `links` before the first repetition.
    moved: usize,
}

impl RepeatedOperand {
    /// Reads the nodes that produce an operand. `None` if none of them repeats places in a way that
    /// can be followed.
    pub(super) fn read(analysis: &Analysis, operand: ValueId) -> Option<Self> {
        let links = links(analysis, operand);
        let mut may_repeat = (0..links.len()).filter(|&first| links[first].may_repeat);
        let first = may_repeat.find_map(|first| {
            let found = Self::follow(analysis, &links[first..])?;
            Some((first, found))
        });
        let (first, (source, map)) = first?;
        let ahead = links[..first].iter().rev();
        let moved = ahead
            .take_while(|link| analysis.graph.is(link.node, "Unsqueeze"))
            .count();
        let links = links[first - moved..].to_vec();
        let (source, map) = match moved {
            0 => (source, map),
            _ => Self::follow(analysis, &links)?,
        };
        Some(RepeatedOperand {
            source,
            map,
            links,
            moved,
        })
    }

    /// The source of a chain of nodes, and the map from the source to the result of the chain.
    /// `None` if the chain repeats no places, or if the map cannot follow one of its nodes.
    fn follow(analysis: &Analysis, links: &[Link]) -> Option<(ValueId, RepeatMap)> {
        let first = links.first()?;
        let source = analysis.graph.input(first.node, first.slot)?;
        let mut map = RepeatMap::new(&analysis.facts.shape(source)?);
        for link in links.iter().filter(|link| !link.is_elementwise) {
            map.follow(&analysis.at(link.node))?;
        }
        let value = map.value();
        let repeats = value.iter().flatten().any(|&factor| map.is_repeat(factor));
        repeats.then_some((source, map))
    }

    /// Whether all repetitions have known counts. A repetition for an unknown batch is not a
    /// repetition of heads.
    pub(super) fn repeats_known_times(&self) -> bool {
        let value = self.map.value();
        let mut repeats = value
            .iter()
            .flatten()
            .filter(|&&factor| self.map.is_repeat(factor));
        repeats.all(|&factor| self.map.factors.extent(factor).is_some())
    }

    /// The nodes from the first repetition to the product, without the product, and the nodes that
    /// compute shapes for these nodes from repeated values.
    ///
    /// # Errors
    /// [`Reason::GraphOutput`], or [`Reason::OtherReader`] if another node or the first operand of
    /// the product needs a repeated value.
    pub(super) fn nodes(&self, graph: &Graph, product: NodeId) -> Result<Vec<NodeId>, Reason> {
        let repeating = self.links[self.moved..].iter().map(|link| link.node);
        let repeating: Vec<NodeId> = repeating.collect();
        let mut nodes = [&repeating[..], &[product]].concat();
        for node in repeating {
            let made = graph.only_output(node).ok_or(Reason::OtherReader)?;
            if graph.is_output(made) {
                return Err(Reason::GraphOutput);
            }
            for &reader in graph.readers(made) {
                collect_shape_readers(graph, reader, &mut nodes)?;
            }
        }
        nodes.retain(|&node| node != product);
        let rows = graph.input(product, 0);
        let made_by = rows.and_then(|rows| graph.producer(rows));
        if made_by.is_some_and(|(node, _)| nodes.contains(&node)) {
            return Err(Reason::OtherReader);
        }
        Ok(nodes)
    }
}

/// Adds `reader`, which may read only the shape of its input, and all nodes that depend on the
/// result of `reader`. Nodes that are already in the list are not followed.
///
/// # Errors
/// [`Reason::OtherReader`] if `reader` reads elements, if one of the results is an output or is
/// read in a body, or if there are more than [`MOST_NODES`] nodes.
fn collect_shape_readers(
    graph: &Graph,
    reader: Reader,
    nodes: &mut Vec<NodeId>,
) -> Result<(), Reason> {
    let mut open = vec![reader];
    let mut is_first = true;
    while let Some(reader) = open.pop() {
        let Reader::Node { node, .. } = reader else {
            return Err(Reason::OtherReader);
        };
        if !nodes.contains(&node) {
            let reads_shape = !is_first || graph.category(node) == Some(Category::Shape);
            if !reads_shape || nodes.len() >= MOST_NODES {
                return Err(Reason::OtherReader);
            }
            nodes.push(node);
            let made = graph.outputs(node).iter().flatten();
            open.extend(made.flat_map(|&value| graph.readers(value)).copied());
        }
        is_first = false;
    }
    Ok(())
}

/// The nodes before an operand that pass its elements on, in execution order.
fn links(analysis: &Analysis, operand: ValueId) -> Vec<Link> {
    let graph = &analysis.graph;
    let mut links = vec![];
    let mut value = operand;
    while let Some((node, 0)) = graph.producer(value).filter(|_| links.len() < MOST_NODES) {
        let Some(link) = Link::read(&analysis.at(node)) else {
            break;
        };
        let Some(before) = graph.input(node, link.slot) else {
            break;
        };
        links.push(link);
        value = before;
    }
    links.reverse();
    links
}

impl Link {
    /// Reads a node. `None` if it does not pass elements on, or is not known to.
    pub(super) fn read(at: &At) -> Option<Self> {
        let category = at.graph.category(at.node);
        let is_cast = at.graph.domain_op(at.node) == ("", "Cast");
        let is_elementwise = is_cast || category.is_some_and(Category::is_elementwise);
        let slot = if is_elementwise {
            single_operand(at)?
        } else {
            0
        };
        let may_repeat = matches!(
            at.graph.domain_op(at.node),
            ("", "Expand" | "Tile" | "Gather" | "Concat")
        );
        let is_link = is_elementwise || may_repeat || at.graph.is_movement(at.node);
        is_link.then_some(Link {
            node: at.node,
            slot,
            is_elementwise,
            may_repeat,
        })
    }
}

/// The input that an element-wise operator reads. `None` if another input is not a constant of one
/// element, or if the result has more axes.
fn single_operand(at: &At) -> Option<usize> {
    let mut varying =
        (0..at.arity()).filter(|&slot| at.input(slot).is_ok() && !is_number(at, slot));
    let slot = varying.next().filter(|_| varying.next().is_none())?;
    let keeps_axes = at.graph.only_output(at.node).is_some() && at.output_rank(0) == at.rank(slot);
    keeps_axes.then_some(slot)
}

fn is_number(at: &At, slot: usize) -> bool {
    at.is_scalar(slot) && at.rank(slot).is_ok_and(|rank| rank <= MATRIX)
}
