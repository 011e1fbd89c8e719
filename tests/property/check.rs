//! What has to hold for a model and what unfold makes of it.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ndarray::Zip;
use unfold::fold::plan::{Direction, Outcome, Plan};
use unfold::graph::Graph;
use unfold::graph::editor::reads;
use unfold::graph::facts::{Facts, extent};
use unfold::onnx::Model;
use unfold::onnx::proto::{Dim, GraphProto};
use unfold::{FuseOptions, Fused};

use crate::Counts;
use crate::common::reference::{self, Env, Value};
use crate::generate::Case;
use crate::tape::Kind;

/// How far a result may be off when numbers are as they come: this part of the largest number in
/// the whole computation. Folded constants are rounded once to float32.
const TOLERANCE: f64 = 2e-6;

/// Fuses a case, and finds the first thing that is wrong.
pub fn check(case: &Case, kind: Kind, counts: &mut Counts) -> Result<(), String> {
    let found = catch_unwind(AssertUnwindSafe(|| compare(case, kind, counts)));
    found.unwrap_or_else(|_| Err("a panic".into())).map_err(|why| format!("{why}\n{}", text(&case.model)))
}

fn compare(case: &Case, kind: Kind, counts: &mut Counts) -> Result<(), String> {
    let model = &case.model;
    facts_hold(case)?;
    let options = FuseOptions::default();
    let Fused { model: fused, plan, .. } =
        unfold::fuse(model, &options).map_err(|error| error.to_string())?;
    let told = |why: String| format!("{why}\nfused:\n{}", text(&fused));
    tally(model, &plan, counts);
    for batch in [case.batch, 2 * case.batch, 1] {
        for condition in [true, false] {
            let inputs = case.inputs(batch, condition);
            let before = match reference::values(model, &inputs) {
                Ok(before) => before,
                // The extent may be written into a Reshape.
                Err(_) if batch != case.batch => continue,
                Err(error) => return Err(format!("the graph cannot be run: {error:#}")),
            };
            let after = reference::run(&fused, &inputs).map_err(|error| told(format!("{error:#}")))?;
            agree(model, &before, &after, kind).map_err(told)?;
            let values = reference::values(&fused, &inputs).map_err(|error| told(format!("{error:#}")))?;
            declared_shapes(&fused, &values).map_err(told)?;
        }
    }
    in_order(model, &fused).map_err(told)?;
    let again = unfold::fuse(&fused, &options).map_err(|error| told(error.to_string()))?;
    if again.plan.is_empty() && again.model.proto != fused.proto {
        return Err(told(format!(
            "fusing again does nothing, and changes the model:\n{}",
            text(&again.model)
        )));
    }
    if !again.plan.is_empty() {
        *counts.entry("graph that is not done at once".into()).or_default() += 1;
    }
    Ok(())
}

/// Shapes and values that are known before the run are those of the run.
fn facts_hold(case: &Case) -> Result<(), String> {
    let graph = Graph::new(&case.model).map_err(|error| error.to_string())?;
    let facts = Facts::infer(&graph);
    let inputs = case.inputs(case.batch, true);
    let env = reference::values(&case.model, &inputs).map_err(|error| format!("{error:#}"))?;
    for (name, value) in &env {
        let Some(id) = graph.value(name) else { continue };
        if let Some(shape) = facts.shape(id) {
            let fits = shape.len() == value.shape().len()
                && shape
                    .iter()
                    .zip(value.shape())
                    .all(|(dim, &n)| extent(dim).is_none_or(|known| known == n));
            if !fits {
                return Err(format!("{name} is {:?} and thought to be {shape:?}", value.shape()));
            }
        }
        if let (Some(known), Value::Ints(ints)) = (facts.ints(id), value)
            && known != ints.iter().copied().collect::<Vec<_>>()
        {
            return Err(format!("{name} is {ints} and thought to be {known:?}"));
        }
    }
    Ok(())
}

/// Outputs are equal bit for bit (and zero has no sign), or as near as rounding lets them be.
fn agree(model: &Model, before: &Env, after: &[Value], kind: Kind) -> Result<(), String> {
    let numbers = |value: &Value| value.floats().ok().cloned();
    let largest = before
        .values()
        .filter_map(numbers)
        .flat_map(|array| array.into_iter())
        .fold(1.0, |largest: f64, v| largest.max(v.abs()));
    for (output, after) in model.graph().output.iter().zip(after) {
        let name = output.name();
        let (Value::Floats(before), Value::Floats(after)) = (&before[name], after) else { continue };
        if before.shape() != after.shape() {
            return Err(format!("{name} was {:?} and is {:?}", before.shape(), after.shape()));
        }
        let close = |a: &f64, b: &f64| match kind {
            // The mean of nothing is no number, before as after.
            _ if a.is_nan() => b.is_nan(),
            Kind::Exact => a == b,
            Kind::Real => (a - b).abs() <= TOLERANCE * largest,
        };
        if !Zip::from(before).and(after).all(close) {
            return Err(format!("{name} was\n{before}\nand is\n{after}"));
        }
    }
    Ok(())
}

/// What the file says of the shapes of values is true.
fn declared_shapes(fused: &Model, values: &Env) -> Result<(), String> {
    for info in &fused.graph().value_info {
        let tensor = info.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
        let Some(shape) = tensor.and_then(|tensor| tensor.shape.as_ref()) else { continue };
        let Some(value) = values.get(info.name()) else {
            return Err(format!("a note about {}, which is no more", info.name()));
        };
        for (dim, &n) in shape.dim.iter().zip(value.shape()) {
            if let Some(Dim::DimValue(said)) = dim.value
                && said != n as i64
            {
                return Err(format!("{} is {:?} and said to be {shape:?}", info.name(), value.shape()));
            }
        }
    }
    Ok(())
}

/// The result is a graph that ONNX allows, with the interface of the original and nothing left over.
fn in_order(model: &Model, fused: &Model) -> Result<(), String> {
    let (before, after) = (model.graph(), fused.graph());
    if before.input != after.input || before.output != after.output {
        return Err("inputs or outputs have changed".into());
    }
    let mut there: HashSet<&str> = after.input.iter().map(|input| input.name()).collect();
    for tensor in &after.initializer {
        if !there.insert(tensor.name()) {
            return Err(format!("{} is there twice", tensor.name()));
        }
    }
    let mut names = HashSet::new();
    for node in &after.node {
        if !node.name().is_empty() && !names.insert(node.name()) {
            return Err(format!("two nodes are called {}", node.name()));
        }
        let mut captured = HashSet::new();
        for body in unfold::graph::editor::bodies(node) {
            let made: HashSet<&str> = body.node.iter().flat_map(|n| &n.output).map(String::as_str).collect();
            captured.extend(reads(body).into_iter().filter(|name| !made.contains(name.as_str())));
        }
        let read = node.input.iter().chain(&captured);
        if let Some(missing) =
            read.filter(|name| !name.is_empty()).find(|name| !there.contains(name.as_str()))
        {
            return Err(format!("{} reads {missing} before it is made", node.name()));
        }
        for output in node.output.iter().filter(|output| !output.is_empty()) {
            if !there.insert(output) {
                return Err(format!("{output} is made twice"));
            }
        }
    }
    let (read_before, read_after) = (reads(before), reads(after));
    let made = |graph: &GraphProto| -> HashSet<String> {
        let nodes = graph.node.iter().flat_map(|node| node.output.iter().cloned());
        nodes.chain(graph.initializer.iter().map(|tensor| tensor.name().to_owned())).collect()
    };
    let old = made(before);
    for name in made(after) {
        let is_part_of_more =
            after.node.iter().any(|node| node.output.len() > 1 && node.output.contains(&name));
        if !read_after.contains(&name)
            && (read_before.contains(&name) || !old.contains(&name))
            && !is_part_of_more
        {
            return Err(format!("nobody reads {name} any more"));
        }
    }
    Ok(())
}

fn tally(model: &Model, plan: &Plan, counts: &mut Counts) {
    let mut count = |what: String| *counts.entry(what).or_default() += 1;
    count("graph".into());
    let graph = model.graph();
    for node in &graph.node {
        count(format!("operator {}", node.op_type()));
    }
    for site in &plan.sites {
        count("site".into());
        match &site.post {
            Some(Outcome::Folded { direction, into }) => {
                count("site folded".into());
                count(format!(
                    "site folded {}",
                    if *direction == Direction::Forward { "forward" } else { "backward" }
                ));
                for name in into {
                    let node =
                        graph.node.iter().find(|node| node.name() == name || node.output.contains(name));
                    count(format!("folded into {}", node.map_or("?", |node| node.op_type())));
                }
            }
            Some(Outcome::Kept { forward, backward }) => {
                for (way, refusal) in [("forward", Some(forward)), ("backward", backward.as_ref())] {
                    let Some(refusal) = refusal else { continue };
                    let reason = format!("{:?}", refusal.reason);
                    let node = graph.node.iter().find(|node| node.name() == refusal.at);
                    let op = node.map_or("value", |node| node.op_type());
                    count(format!("kept at {op}, {way}: {reason}"));
                }
            }
            Some(Outcome::Partly { .. }) => count("site folded but for its scale".into()),
            None => count("site without an outcome".into()),
        }
    }
}

/// A model as text, for a case that failed.
pub fn text(model: &Model) -> String {
    let graph = model.graph();
    let mut lines = vec![];
    for input in &graph.input {
        let tensor = input.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
        let dims = tensor.and_then(|tensor| tensor.shape.as_ref()).map(|shape| &shape.dim[..]);
        let dims: Vec<String> =
            dims.unwrap_or_default().iter().map(|dim| format!("{:?}", dim.value)).collect();
        lines.push(format!("input {} [{}]", input.name(), dims.join(", ")));
    }
    let read = reads(graph);
    for tensor in graph.initializer.iter().filter(|tensor| read.contains(tensor.name())) {
        let value = reference::constant(tensor).map(|value| match value {
            Value::Floats(array) => format!("{array}"),
            Value::Ints(array) => format!("{array}"),
        });
        let value = value.unwrap_or_default().replace('\n', "");
        lines.push(format!("{} {:?} = {:.200}", tensor.name(), tensor.dims, value));
    }
    for node in &graph.node {
        let attribute = |a: &unfold::onnx::proto::AttributeProto| {
            let value = match (&a.i, &a.f, &a.s, &a.ints[..]) {
                (Some(i), ..) => i.to_string(),
                (_, Some(f), ..) => f.to_string(),
                (_, _, Some(s), _) => String::from_utf8_lossy(s).into_owned(),
                (_, _, _, ints) => format!("{ints:?}"),
            };
            format!("{}={value}", a.name())
        };
        let attributes: Vec<String> = node.attribute.iter().map(attribute).collect();
        let (inputs, outputs) = (node.input.join(", "), node.output.join(", "));
        lines.push(format!("{outputs} = {}({inputs}) {}", node.op_type(), attributes.join(" ")));
    }
    let outputs: Vec<&str> = graph.output.iter().map(|output| output.name()).collect();
    lines.push(format!("outputs {}", outputs.join(", ")));
    lines.push(format!("opset {:?}", model.opset("")));
    lines.join("\n")
}
