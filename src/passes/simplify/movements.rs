//! Cancels chains of Transposes and Reshapes, or merges them into one node.

use crate::analysis::axis_factors::LayoutMap;
use crate::hash::{HashMap, HashSet};
use crate::ir::builder;
use crate::onnx::operator::Category;
use crate::onnx::proto::{GraphProto, NodeProto};
use crate::shape::facts::extent;

use crate::passes::simplify::KnownShapes;

/// The largest number of movements before a seed that are followed, and the largest number of
/// movements that are visited after it.
const REACH: usize = 16;
const BUDGET: usize = 64;

/// If the movements of a chain through a seed together move nothing, cancels the chain: its readers
/// read the value before it. Returns the values that are read instead.
pub(super) fn cancel(
    graph: &mut GraphProto,
    seeds: &[String],
    shapes: &KnownShapes,
) -> Vec<String> {
    let edits = find(graph, seeds, shapes, Goal::Nothing);
    edits.carry_out(graph);
    edits.instead.into_values().collect()
}

/// Merges chains of movements through a seed into their last node. This node becomes a Reshape if
/// the elements keep their order, or a Transpose if the chain is a permutation of axes. Only
/// movements may read the values in between. Returns whether any chain was merged.
///
/// Exporters transpose keys by a Reshape to three axes, a Transpose of the last two and a Reshape
/// back. Engines fuse a single Transpose into the product after it.
pub(super) fn join(graph: &mut GraphProto, seeds: &[String], shapes: &KnownShapes) -> bool {
    let edits = find(graph, seeds, shapes, Goal::OneNode);
    edits.carry_out(graph);
    !edits.rewired.is_empty()
}

/// The replacement of a chain of movements.
#[derive(Clone, Copy, PartialEq)]
enum Goal {
    Nothing,
    OneNode,
}

fn find(graph: &GraphProto, seeds: &[String], shapes: &KnownShapes, goal: Goal) -> Edits {
    let links = Links::new(graph);
    let mut edits = Edits::default();
    let mut seen = HashSet::default();
    for seed in seeds.iter().filter(|seed| seen.insert(seed.as_str())) {
        let above = links.above(graph, seed);
        // The farthest start is tried first, because it removes the most nodes.
        for length in (0..above.len()).rev() {
            if links
                .makers
                .get(above[length])
                .is_some_and(|&maker| edits.have(graph, maker))
            {
                continue;
            }
            let walk = Walk {
                graph,
                links: &links,
                shapes,
                start: above[length],
                goal,
            };
            walk.follow(&above[..length], &mut edits);
        }
    }
    edits
}

/// Maps the values of a graph to the movements that output or read them.
struct Links<'g> {
    makers: HashMap<&'g str, usize>,
    readers: HashMap<&'g str, Readers>,
    outputs: HashSet<&'g str>,
}

#[derive(Default)]
struct Readers {
    /// The movements that read the value.
    places: Vec<usize>,
    /// Whether a node that is not a movement reads the value. Only set for results of movements.
    others: bool,
}

impl<'g> Links<'g> {
    fn new(graph: &'g GraphProto) -> Self {
        let (mut makers, mut readers) = (HashMap::default(), HashMap::<&str, Readers>::default());
        let is_movement: Vec<bool> = graph.node.iter().map(is_movement).collect();
        let (movements, others): (Vec<usize>, Vec<usize>) =
            (0..graph.node.len()).partition(|&place| is_movement[place]);
        for place in movements {
            let node = &graph.node[place];
            makers.extend(node.output.iter().map(|output| (output.as_str(), place)));
            readers
                .entry(&node.input[0])
                .or_default()
                .places
                .push(place);
        }
        for name in others
            .into_iter()
            .flat_map(|place| &graph.node[place].input)
        {
            if makers.contains_key(name.as_str()) {
                readers.entry(name).or_default().others = true;
            }
        }
        let outputs = graph.output.iter().map(|output| output.name()).collect();
        Links {
            makers,
            readers,
            outputs,
        }
    }

    /// The value and the values before it in a chain of movements, the nearest first, up to
    /// [`REACH`] values.
    fn above<'s>(&self, graph: &'s GraphProto, value: &'s str) -> Vec<&'s str> {
        let mut above = vec![value];
        while let Some(&maker) = above.last().and_then(|value| self.makers.get(value))
            && above.len() < REACH
        {
            above.push(&graph.node[maker].input[0]);
        }
        above
    }

    /// Whether only movements read a value.
    fn is_inside(&self, value: &str) -> bool {
        !self
            .readers
            .get(value)
            .is_some_and(|readers| readers.others)
            && !self.outputs.contains(value)
    }
}

/// The new inputs and permutations of nodes, and the replacements of values.
#[derive(Default)]
struct Edits {
    rewired: HashMap<usize, (String, Option<Vec<usize>>)>,
    instead: HashMap<String, String>,
}

impl Edits {
    /// Whether a node was removed or got another input. If so, the search from the start of the
    /// node's chain already followed all nodes after this node.
    fn have(&self, graph: &GraphProto, place: usize) -> bool {
        let output = graph.node[place].output.first();
        self.rewired.contains_key(&place)
            || output.is_some_and(|output| self.instead.contains_key(output))
    }

    fn carry_out(&self, graph: &mut GraphProto) {
        for (&place, (start, perm)) in &self.rewired {
            let node = &mut graph.node[place];
            // Only the first input changes: a Reshape may also read the moved value as its target
            // shape.
            let moved = std::mem::replace(&mut node.input[0], start.clone());
            node.rename_shards(|name| (name == moved).then_some(start.as_str()));
            if let Some(perm) = perm {
                node.input.truncate(1);
                node.op_type = Some("Transpose".into());
                let perm: Vec<i64> = perm.iter().map(|&axis| axis as i64).collect();
                node.attribute = vec![builder::ints("perm", &perm)];
            }
        }
        if !self.instead.is_empty() {
            graph
                .node
                .iter_mut()
                .for_each(|node| node.read_instead(|input| self.resolve(input)));
        }
    }

    /// The value that is read in place of a value, after all replacements. `None` if the value is
    /// not replaced.
    fn resolve(&self, name: &str) -> Option<&str> {
        std::iter::successors(self.source(name), |name| self.source(name))
            .take(REACH)
            .last()
    }

    fn source(&self, name: &str) -> Option<&str> {
        self.instead.get(name).map(String::as_str)
    }
}

/// A walk along the movements that begin at one value.
struct Walk<'w> {
    graph: &'w GraphProto,
    links: &'w Links<'w>,
    shapes: &'w KnownShapes<'w>,
    start: &'w str,
    goal: Goal,
}

/// The value that a walk has reached.
struct Reached<'w> {
    value: &'w str,
    trace: LayoutMap,
    /// Whether only movements read the values from the start up to this one.
    alone: bool,
    length: usize,
}

impl<'w> Walk<'w> {
    /// Follows the movements from the start to the seed, then all movements after the seed.
    /// `between` has the values between the start and the seed, the nearest to the seed first.
    /// Always returns `None`. The return type is an Option only so that `?` can end the search.
    fn follow(&self, between: &[&'w str], edits: &mut Edits) -> Option<()> {
        let trace = LayoutMap::new(&(self.shapes.shape)(self.start)?);
        let mut here = Reached {
            value: self.start,
            trace,
            alone: true,
            length: 0,
        };
        for &value in between.iter().rev() {
            let place = *self.links.makers.get(value)?;
            let chain = here.length > 0;
            here = self.step(&here, place)?;
            self.note(place, &here.trace, chain && here.alone, edits);
        }
        let mut open = vec![here];
        for _ in 0..BUDGET {
            let here = open.pop()?;
            for &place in self
                .links
                .readers
                .get(here.value)
                .iter()
                .flat_map(|readers| &readers.places)
            {
                if edits.have(self.graph, place) {
                    continue;
                }
                let Some(next) = self.step(&here, place) else {
                    continue;
                };
                self.note(place, &next.trace, here.length > 0 && next.alone, edits);
                open.push(next);
            }
        }
        None
    }

    /// The value after a movement of the value that was reached. `None` if the layout cannot be
    /// followed.
    fn step(&self, here: &Reached, place: usize) -> Option<Reached<'w>> {
        let node = &self.graph.node[place];
        let value = node.output.first()?;
        let mut trace = here.trace.clone();
        trace.follow(node, &(self.shapes.shape)(value)?)?;
        let alone = here.length == 0 || (here.alone && self.links.is_inside(here.value));
        Some(Reached {
            value,
            trace,
            alone,
            length: here.length + 1,
        })
    }

    fn note(&self, place: usize, trace: &LayoutMap, chain: bool, edits: &mut Edits) {
        let node = &self.graph.node[place];
        let output = &node.output[0];
        match (self.goal, node.op_type()) {
            (Goal::Nothing, _)
                if trace.is_identity() && !self.links.outputs.contains(output.as_str()) =>
            {
                edits
                    .instead
                    .entry(output.clone())
                    .or_insert_with(|| self.start.to_owned());
            }
            (Goal::OneNode, "Reshape")
                if chain && trace.keeps_order() && !copies_extents(node, self.shapes) =>
            {
                edits
                    .rewired
                    .entry(place)
                    .or_insert_with(|| (self.start.to_owned(), None));
            }
            (Goal::OneNode, op) if chain && (op == "Transpose" || !trace.keeps_order()) => {
                if let Some(perm) = trace.as_transpose() {
                    edits
                        .rewired
                        .entry(place)
                        .or_insert_with(|| (self.start.to_owned(), Some(perm)));
                }
            }
            _ => {}
        }
    }
}

/// Whether a node only moves or regroups elements.
pub(crate) fn is_movement(node: &NodeProto) -> bool {
    node.category() == Some(Category::Movement) && !node.input.is_empty()
}

/// Whether a Reshape copies, or may copy, an extent from its input (by a 0 in its shape).
fn copies_extents(node: &NodeProto, shapes: &KnownShapes) -> bool {
    let Some(extents) = node.input.get(1).and_then(|shape| (shapes.extents)(shape)) else {
        return true;
    };
    extents
        .iter()
        .any(|dim| dim.is_none() || extent(dim) == Some(0))
}
