//! Transposes and reshapes that undo each other once nothing is between them.

use std::collections::{HashMap, HashSet};

use crate::graph::facts::Shape;
use crate::graph::movement::Trace;
use crate::onnx::node::canonical_domain;
use crate::onnx::proto::{GraphProto, NodeProto};

const MOVEMENT: &[&str] = &["Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"];

/// How far movements around a seed are followed.
const REACH: usize = 16;

/// Lets readers of a value read what it was before a chain of movements through a seed, where the
/// chain as a whole moves nothing.
pub fn cancel(graph: &mut GraphProto, seeds: &[String], shape: &dyn Fn(&str) -> Option<Shape>) {
    let mut seen = HashSet::new();
    let makers: HashMap<String, usize> = graph
        .node
        .iter()
        .enumerate()
        .flat_map(|(place, node)| node.output.iter().map(move |output| (output.clone(), place)))
        .collect();
    let mut readers: HashMap<String, Vec<usize>> = HashMap::new();
    for (place, node) in graph.node.iter().enumerate() {
        for input in &node.input {
            readers.entry(input.clone()).or_default().push(place);
        }
    }
    let kept: HashSet<String> = graph.output.iter().map(|output| output.name().to_owned()).collect();
    let mut instead: HashMap<String, String> = HashMap::new();
    for seed in seeds.iter().filter(|seed| seen.insert((*seed).clone())) {
        let mut above = vec![seed.clone()];
        while let Some(&maker) = above.last().and_then(|value| makers.get(value))
            && is_movement(&graph.node[maker])
            && above.len() < REACH
        {
            above.push(graph.node[maker].input[0].clone());
        }
        // The farthest start first: it takes out the most.
        for start in above.iter().rev() {
            let Some(trace) = shape(start).as_ref().and_then(Trace::new) else { continue };
            let mut open = vec![(start.clone(), trace, start == seed)];
            let mut budget = 64;
            while let Some((value, trace, through)) = open.pop() {
                budget -= 1;
                if budget == 0 {
                    break;
                }
                if through && trace.is_identity() && value != *start && !kept.contains(&value) {
                    instead.entry(value.clone()).or_insert_with(|| start.clone());
                }
                for &place in readers.get(&value).into_iter().flatten() {
                    let node = &graph.node[place];
                    if !is_movement(node) || node.input[0] != value {
                        continue;
                    }
                    let mut moved = trace.clone();
                    let Some(output) = node.output.first() else { continue };
                    if follow(&mut moved, node, output, shape).is_some() {
                        open.push((output.clone(), moved, through || output == seed));
                    }
                }
            }
        }
    }
    for input in graph.node.iter_mut().flat_map(|node| &mut node.input) {
        let mut steps = 0;
        while let Some(source) = instead.get(input.as_str())
            && steps < REACH
        {
            source.clone_into(input);
            steps += 1;
        }
    }
}

fn is_movement(node: &NodeProto) -> bool {
    canonical_domain(node.domain()).is_empty() && MOVEMENT.contains(&node.op_type()) && !node.input.is_empty()
}

fn follow(
    trace: &mut Trace,
    node: &NodeProto,
    output: &str,
    shape: &dyn Fn(&str) -> Option<Shape>,
) -> Option<()> {
    match node.op_type() {
        "Identity" => Some(()),
        "Transpose" => {
            let rank = shape(output)?.len();
            let perm: Vec<usize> = match node.attr_ints("perm").ok()? {
                Some(perm) => perm.iter().map(|&axis| usize::try_from(axis).ok()).collect::<Option<_>>()?,
                None => (0..rank).rev().collect(),
            };
            trace.transpose(&perm)
        }
        _ => trace.reshape(&shape(output)?),
    }
}
