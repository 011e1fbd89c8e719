//! Transposes and reshapes that undo each other, or are one, once nothing is between them.

use std::collections::{HashMap, HashSet};

use crate::graph::facts::extent;
use crate::graph::movement::Trace;
use crate::onnx::node::canonical_domain;
use crate::onnx::proto::{GraphProto, NodeProto};

use super::Known;

const MOVEMENT: &[&str] = &["Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"];

/// How far movements around a seed are followed, and how many of them.
const REACH: usize = 16;
const BUDGET: usize = 64;

/// Shortens the chains of movements that lead through a seed.
///
/// Where a chain as a whole moves nothing, what read its end reads its start. Where it ends in a
/// Reshape and keeps the order of the elements, or ends in a Transpose and is a permutation of axes,
/// its last node does all of it. The nodes in between are left to whoever else reads them.
pub fn shorten(graph: &mut GraphProto, seeds: &[String], known: &Known) {
    let links = Links::new(graph);
    let mut edits = Edits::default();
    let mut seen = HashSet::new();
    for seed in seeds.iter().filter(|seed| seen.insert((*seed).clone())) {
        // The farthest start first: it takes out the most.
        for start in links.above(graph, seed).iter().rev() {
            let trace = (known.shape)(start).as_ref().and_then(Trace::new);
            if let Some(trace) = trace {
                follow(graph, &links, known, seed, start, trace, &mut edits);
            }
        }
    }
    edits.carry_out(graph);
}

/// Who makes and who reads each value.
struct Links {
    makers: HashMap<String, usize>,
    readers: HashMap<String, Vec<usize>>,
    outputs: HashSet<String>,
}

impl Links {
    fn new(graph: &GraphProto) -> Self {
        let (mut makers, mut readers) = (HashMap::new(), HashMap::<String, Vec<usize>>::new());
        for (place, node) in graph.node.iter().enumerate() {
            makers.extend(node.output.iter().map(|output| (output.clone(), place)));
            for input in &node.input {
                readers.entry(input.clone()).or_default().push(place);
            }
        }
        let outputs = graph.output.iter().map(|output| output.name().to_owned()).collect();
        Links { makers, readers, outputs }
    }

    /// The value and those before it in a chain of movements, nearest first.
    fn above(&self, graph: &GraphProto, value: &str) -> Vec<String> {
        let mut above = vec![value.to_owned()];
        while let Some(&maker) = above.last().and_then(|value| self.makers.get(value))
            && is_movement(&graph.node[maker])
            && above.len() < REACH
        {
            above.push(graph.node[maker].input[0].clone());
        }
        above
    }
}

/// What a node reads from now on, and with which permutation; and values that are others from now on.
#[derive(Default)]
struct Edits {
    rewired: HashMap<usize, (String, Option<Vec<usize>>)>,
    instead: HashMap<String, String>,
}

impl Edits {
    fn carry_out(self, graph: &mut GraphProto) {
        for (place, (start, perm)) in self.rewired {
            let node = &mut graph.node[place];
            node.input[0] = start;
            if let Some(perm) = perm {
                for attribute in node.attribute.iter_mut().filter(|attribute| attribute.name() == "perm") {
                    attribute.ints = perm.iter().map(|&axis| axis as i64).collect();
                }
            }
        }
        for input in graph.node.iter_mut().flat_map(|node| &mut node.input) {
            for _ in 0..REACH {
                let Some(source) = self.instead.get(input.as_str()) else { break };
                source.clone_into(input);
            }
        }
    }
}

/// Follows the movements from a start, and notes what those behind the seed come to.
fn follow(
    graph: &GraphProto,
    links: &Links,
    known: &Known,
    seed: &str,
    start: &str,
    trace: Trace,
    edits: &mut Edits,
) {
    let mut open = vec![(start.to_owned(), trace, start == seed, 0)];
    for _ in 0..BUDGET {
        let Some((value, trace, through, length)) = open.pop() else { return };
        for &place in links.readers.get(&value).into_iter().flatten() {
            let node = &graph.node[place];
            let Some(output) = node.output.first().filter(|_| is_movement(node) && node.input[0] == value) else {
                continue;
            };
            let mut moved = trace.clone();
            if step(&mut moved, node, output, known).is_none() {
                continue;
            }
            if through && !edits.instead.contains_key(output) && !edits.rewired.contains_key(&place) {
                if moved.is_identity() && !links.outputs.contains(output) {
                    edits.instead.insert(output.clone(), start.to_owned());
                } else if length > 0 {
                    match node.op_type() {
                        "Reshape" if moved.keeps_order() && !copies_extents(node, known) => {
                            edits.rewired.insert(place, (start.to_owned(), None));
                        }
                        "Transpose" if node.attr_ints("perm").is_ok_and(|perm| perm.is_some()) => {
                            if let Some(perm) = moved.as_transpose() {
                                edits.rewired.insert(place, (start.to_owned(), Some(perm)));
                            }
                        }
                        _ => {}
                    }
                }
            }
            open.push((output.clone(), moved, through || output == seed, length + 1));
        }
    }
}

fn is_movement(node: &NodeProto) -> bool {
    canonical_domain(node.domain()).is_empty() && MOVEMENT.contains(&node.op_type()) && !node.input.is_empty()
}

/// Whether a Reshape takes an extent from its input (a 0 in its shape), or may.
fn copies_extents(node: &NodeProto, known: &Known) -> bool {
    let Some(extents) = node.input.get(1).and_then(|shape| (known.extents)(shape)) else { return true };
    extents.iter().any(|dim| dim.is_none() || extent(dim) == Some(0))
}

fn step(trace: &mut Trace, node: &NodeProto, output: &str, known: &Known) -> Option<()> {
    let shape = (known.shape)(output)?;
    match node.op_type() {
        "Identity" => Some(()),
        "Transpose" => {
            let perm: Vec<usize> = match node.attr_ints("perm").ok()? {
                Some(perm) => perm.iter().map(|&axis| usize::try_from(axis).ok()).collect::<Option<_>>()?,
                None => (0..shape.len()).rev().collect(),
            };
            trace.transpose(&perm)
        }
        _ => trace.reshape(&shape),
    }
}
