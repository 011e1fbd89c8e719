//! Moves some nodes of a graph into the bodies of an If or a Loop, without changing the function.

use std::collections::{BTreeSet, HashMap};

use unfold::onnx::proto::{GraphProto, NodeProto};
use unfold::onnx::{DataType, tensor};

use crate::common::{declared, node, reads, undeclared};
use crate::tape::Tape;

/// Encloses a run of nodes in a body. A Loop may stack results that are floats.
pub fn enclose(
    graph: &mut GraphProto,
    tape: &mut Tape,
    number: usize,
    is_float: &dyn Fn(&str) -> bool,
) {
    let count = graph.node.len();
    let from = tape.below(count.max(1));
    let to = (from + 1 + tape.below(8)).min(count);
    if from >= to {
        return;
    }
    let inner: Vec<NodeProto> = graph.node.drain(from..to).collect();
    let made: BTreeSet<String> = inner
        .iter()
        .flat_map(|node| node.output.iter().cloned())
        .filter(|name| !name.is_empty())
        .collect();
    let around: BTreeSet<String> = reads(graph).into_iter().map(str::to_owned).collect();
    let results: Vec<&String> = made.iter().filter(|name| around.contains(*name)).collect();
    let mut body = GraphProto {
        name: Some(format!("body{number}")),
        node: inner,
        ..Default::default()
    };
    body.value_info = graph
        .value_info
        .iter()
        .filter(|info| made.contains(info.name()))
        .cloned()
        .collect();
    graph.value_info.retain(|info| !made.contains(info.name()));
    let own: BTreeSet<String> = reads(&body).into_iter().map(str::to_owned).collect();
    let goes = tape.chance(50);
    let inputs: BTreeSet<String> = graph
        .input
        .iter()
        .map(|input| input.name().to_owned())
        .collect();
    let mut stays = vec![];
    for tensor in std::mem::take(&mut graph.initializer) {
        let name = tensor.name();
        let is_own = own.contains(name) && !around.contains(name) && !inputs.contains(name);
        if goes && is_own {
            body.initializer.push(tensor)
        } else {
            stays.push(tensor)
        }
    }
    graph.initializer = stays;
    body.output = results.iter().map(|name| undeclared(name)).collect();
    let outer: HashMap<String, String> = results
        .iter()
        .map(|name| ((*name).clone(), format!("{name}_of{number}")))
        .collect();
    rename(graph, &outer);
    let is_own = |name: &String| {
        made.contains(name) || body.initializer.iter().any(|tensor| tensor.name() == name)
    };
    let states: Vec<&String> = own
        .iter()
        .filter(|name| !is_own(name) && is_float(name))
        .collect();
    let loops = tape.chance(40) && results.iter().all(|name| is_float(name)) && !states.is_empty();
    let names: Vec<String> = results.iter().map(|name| outer[*name].clone()).collect();
    let nodes = match loops {
        true => looped(graph, body, tape, number, &names, states[0]),
        false => vec![branching(graph, body, tape, &names)],
    };
    graph.node.splice(from..from, nodes);
}

fn branching(
    graph: &mut GraphProto,
    body: GraphProto,
    tape: &mut Tape,
    names: &[String],
) -> NodeProto {
    let mut other = body.clone();
    if tape.chance(50) {
        // The branches have values with the same names, but compute different results.
        for (place, output) in other.output.iter_mut().enumerate() {
            let turned = format!("{}_turned", names[place]);
            other
                .node
                .push(node("Identity", &[output.name()], &[&turned], vec![]));
            output.name = Some(turned);
        }
    }
    if !graph.input.iter().any(|input| input.name() == "condition") {
        graph.input.push(declared("condition", DataType::Bool, &[]));
    }
    node(
        "If",
        &["condition"],
        names,
        vec![("then_branch", body.into()), ("else_branch", other.into())],
    )
}

/// Encloses the body in a Loop that forwards one value unchanged. The results of the last iteration
/// are read.
fn looped(
    graph: &mut GraphProto,
    mut body: GraphProto,
    tape: &mut Tape,
    number: usize,
    names: &[String],
    state: &str,
) -> Vec<NodeProto> {
    let own = |what: &str| format!("{what}_of{number}");
    let (given, next) = (
        format!("{state}_given{number}"),
        format!("{state}_next{number}"),
    );
    rename(
        &mut body,
        &HashMap::from([(state.to_owned(), given.clone())]),
    );
    body.input = vec![
        declared(&own("round"), DataType::Int64, &[]),
        declared(&own("on"), DataType::Bool, &[]),
        undeclared(&given),
    ];
    body.node
        .push(node("Identity", &[own("on")], &[own("goes")], vec![]));
    body.node
        .push(node("Identity", &[&given], &[&next], vec![]));
    body.output
        .splice(0..0, [undeclared(&own("goes")), undeclared(&next)]);
    let mut rounds = tensor::make_i64(&own("rounds"), &[1 + tape.below(2) as i64]);
    rounds.dims.clear();
    let mut last = tensor::make_i64(&own("last"), &[-1]);
    last.dims.clear();
    graph.initializer.extend([rounds, last]);
    let stacked: Vec<String> = names.iter().map(|name| format!("{name}_all")).collect();
    let outputs: Vec<&str> = std::iter::once(state)
        .map(|_| "")
        .chain(stacked.iter().map(String::as_str))
        .collect();
    let mut made = node(
        "Loop",
        &[own("rounds"), String::new(), state.to_owned()],
        &outputs,
        vec![("body", body.into())],
    );
    (made.output[0], made.name) = (own("state"), Some(own("loop")));
    let picks = stacked
        .iter()
        .zip(names)
        .map(|(all, name)| node("Gather", &[all, &own("last")], &[name], vec![]));
    std::iter::once(made).chain(picks).collect()
}

/// Renames values in all nodes that read them.
fn rename(graph: &mut GraphProto, names: &HashMap<String, String>) {
    let other = |name: &mut String| {
        if let Some(other) = names.get(name) {
            name.clone_from(other);
        }
    };
    for node in &mut graph.node {
        node.input.iter_mut().for_each(other);
        for attribute in &mut node.attribute {
            attribute.g.iter_mut().for_each(|body| rename(body, names));
        }
    }
    graph
        .output
        .iter_mut()
        .filter_map(|output| output.name.as_mut())
        .for_each(other);
}
