//! Checks the properties of a model and of its result.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use unfold::error::Error;
use unfold::onnx::Model;
use unfold::onnx::proto::{Dim, GraphProto};
use unfold::plan::{Direction, Outcome, Plan};
use unfold::verify::{self, Verdict, VerifyOptions};
use unfold::{FuseOptions, Fused, infer_shapes};

use crate::Counts;
use crate::common::numbers::Kind;
use crate::common::reference::{self, Env, Value};
use crate::common::{
    bodies, check_new_tensors, extent, is_proved_or_listed, judge, keep, options, portable, reads,
    text,
};
use crate::generate::Case;

/// The tolerance for arbitrary numbers, relative to the largest number in the whole computation.
/// Folded constants are rounded once to float32.
const TOLERANCE: f64 = 2e-6;

/// The tolerance if all numbers are small integers, except for means, which float64 rounds.
const OF_MEANS: f64 = 1e-12;

/// Fuses a case. Returns the first error that is found.
pub fn check(case: &Case, kind: Kind, counts: &mut Counts) -> Result<(), String> {
    let found = catch_unwind(AssertUnwindSafe(|| compare(case, kind, counts)));
    found
        .unwrap_or_else(|_| Err("a panic".into()))
        .map_err(|why| format!("{why}\n{}", text::print(&case.model)))
}

/// The maximum time for a graph of a few nodes, in seconds.
const SECONDS: u64 = 5;

/// Runs all steps on an arbitrary file. They must end soon, with a readable model or with an error
/// that is not a defect.
pub fn ends(file: Vec<u8>, counts: &mut Counts) -> Result<(), String> {
    let (begin, computed_before) = (Instant::now(), computed());
    let told = || {
        let model = Model::from_bytes(file.clone());
        model.iter().for_each(keep);
        model.map(|model| text::print(&model)).unwrap_or_default()
    };
    let end = catch_unwind(AssertUnwindSafe(|| end_of(&file)));
    let end = end
        .unwrap_or_else(|_| Err("a panic".into()))
        .map_err(|why| format!("{why}\n{}", told()))?;
    for what in ["file", end] {
        *counts.entry(what.into()).or_default() += 1;
    }
    // On a busy machine, the process may wait for a long time, so the smaller of both times counts.
    let took = computed()
        .zip(computed_before)
        .map(|(now, before)| now - before);
    let took = begin.elapsed().min(took.unwrap_or(Duration::MAX));
    match took.as_secs() < SECONDS {
        true => Ok(()),
        false => Err(format!("it took {took:?}\n{}", told())),
    }
}

/// The CPU time of all threads of this process. `None` if it is unknown.
#[cfg(unix)]
fn computed() -> Option<Duration> {
    nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID
        .now()
        .ok()
        .map(Duration::from)
}

#[cfg(not(unix))]
fn computed() -> Option<Duration> {
    None
}

fn run(model: &Model, fused: &Model) -> Verdict {
    verify::compare(model, fused, &VerifyOptions::default())
}

/// The outcome for a file.
fn end_of(file: &[u8]) -> Result<&'static str, String> {
    let Ok(model) = Model::from_bytes(file.to_vec()) else {
        return Ok("no file");
    };
    let fused = match unfold::fuse(&model, &options()) {
        Ok(fused) => fused,
        Err(error @ Error::Defect { .. }) => return Err(error.to_string()),
        Err(_) => return Ok("no model"),
    };
    if !fused.changed() {
        return Ok("nothing to fold");
    }
    let written = fused.model.to_bytes().map_err(|error| error.to_string())?;
    let again = Model::from_bytes(written).map_err(|error| format!("what was written: {error}"))?;
    infer_shapes(&again).map_err(|error| format!("what was written: {error}"))?;
    check_new_tensors(&model, &fused)?;
    // A model that no engine runs is often invalid. For example, it may multiply floats by
    // integers.
    match is_proved_or_listed(&model, &fused) {
        Err(_) if matches!(run(&model, &fused.model), Verdict::CouldNotVerify { .. }) => {
            Ok("nobody knows")
        }
        proved => proved.map(|()| "folded"),
    }
}

/// Whether a model has numbers that do not result from exact sums and products. For example, a
/// remaining shift is divided by the folded scale.
fn is_rounded(model: &Model) -> bool {
    let grid = f64::from(1 << 12);
    let floats = model
        .graph()
        .initializer
        .iter()
        .filter_map(|tensor| reference::constant(tensor).ok());
    floats
        .filter_map(|value| value.floats().ok().cloned())
        .flatten()
        .any(|v| (v * grid).fract() != 0.0)
}

fn compare(case: &Case, kind: Kind, counts: &mut Counts) -> Result<(), String> {
    let model = &case.model;
    facts_hold(case, kind)?;
    let options = options();
    keep(model);
    let fused = unfold::fuse(model, &options).map_err(|error| error.to_string())?;
    check_new_tensors(model, &fused)?;
    is_proved_or_listed(model, &fused)?;
    let Fused {
        model: fused, plan, ..
    } = fused;
    let told = |why: String| format!("{why}\nfused:\n{}", text::print(&fused));
    let planned = unfold::plan(model, &options).map_err(|error| error.to_string())?;
    let [planned, carried_out] = [&planned, &plan].map(|plan| format!("{:#?}", plan.sites));
    if planned != carried_out {
        return Err(format!(
            "what is planned\n{planned}\nis not what is carried out\n{carried_out}"
        ));
    }
    tally(model, &plan, counts);
    let has_means = model
        .graph()
        .node
        .iter()
        .any(|node| node.op_type() == "ReduceMean");
    let tolerance = match kind {
        Kind::Exact if is_rounded(&fused) => TOLERANCE,
        Kind::Exact if has_means => OF_MEANS,
        Kind::Exact => 0.0,
        Kind::Real => TOLERANCE,
    };
    for batch in [case.batch, 2 * case.batch, 1] {
        for condition in [true, false] {
            let inputs = judge::inputs(model, batch, condition, kind);
            let runs = judge::agree(model, &fused, &inputs, tolerance).map_err(told)?;
            // Another extent may not fit, because the original extent may be a constant of a
            // Reshape.
            if !runs && batch == case.batch {
                return Err("the graph cannot be run".into());
            }
            if runs {
                let values = reference::values(&fused, &inputs)
                    .map_err(|error| told(format!("{error:#}")))?;
                declared_shapes(&fused, &values).map_err(told)?;
            }
        }
    }
    in_order(model, &fused).map_err(told)?;
    // Floats that become equal when they are stored can be merged only in the next run.
    let skip = vec!["duplicate".to_owned()];
    let again = FuseOptions {
        skip,
        max_growth: options.max_growth,
        ..portable()
    };
    let again = unfold::fuse(&fused, &again).map_err(|error| told(error.to_string()))?;
    if !again.plan.is_empty() || again.model.proto != fused.proto {
        return Err(told(format!(
            "fusing again changes it:\n{}",
            text::print(&again.model)
        )));
    }
    Ok(())
}

/// Checks that the shapes and values that are known before a run are those of the run.
fn facts_hold(case: &Case, kind: Kind) -> Result<(), String> {
    let inferred = infer_shapes(&case.model).map_err(|error| error.to_string())?;
    let inputs = judge::inputs(&case.model, case.batch, true, kind);
    let env = reference::values(&case.model, &inputs).map_err(|error| format!("{error:#}"))?;
    for (name, value) in &env {
        let Some(facts) = inferred.get(name) else {
            continue;
        };
        if let Some(shape) = &facts.shape {
            let fits = shape.len() == value.shape().len()
                && shape
                    .iter()
                    .zip(value.shape())
                    .all(|(dim, &n)| extent(dim).is_none_or(|known| known == n));
            if !fits {
                return Err(format!(
                    "{name} is {:?} and thought to be {shape:?}",
                    value.shape()
                ));
            }
        }
        if let (Some(known), Value::Ints(ints)) = (&facts.ints, value)
            && *known != ints.iter().copied().collect::<Vec<_>>()
        {
            return Err(format!("{name} is {ints} and thought to be {known:?}"));
        }
    }
    Ok(())
}

/// Checks the declared shapes of values.
fn declared_shapes(fused: &Model, values: &Env) -> Result<(), String> {
    for info in &fused.graph().value_info {
        let tensor = info.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
        let Some(shape) = tensor.and_then(|tensor| tensor.shape.as_ref()) else {
            continue;
        };
        let Some(value) = values.get(info.name()) else {
            return Err(format!("a note about {}, which is no more", info.name()));
        };
        for (dim, &n) in shape.dim.iter().zip(value.shape()) {
            if let Some(Dim::DimValue(said)) = dim.value
                && said != n as i64
            {
                return Err(format!(
                    "{} is {:?} and said to be {shape:?}",
                    info.name(),
                    value.shape()
                ));
            }
        }
    }
    Ok(())
}

/// The names that a body captures.
fn captures(body: &GraphProto) -> HashSet<&str> {
    let inner = body.node.iter().flat_map(bodies).flat_map(captures);
    let mut read: HashSet<&str> = inner.collect();
    read.extend(
        body.node
            .iter()
            .flat_map(|node| &node.input)
            .map(String::as_str),
    );
    read.extend(body.output.iter().map(|output| output.name()));
    let given = body.input.iter().map(|input| input.name());
    let made = body
        .node
        .iter()
        .flat_map(|node| &node.output)
        .map(String::as_str);
    for own in given
        .chain(made)
        .chain(body.initializer.iter().map(|tensor| tensor.name()))
    {
        read.remove(own);
    }
    read
}

/// Checks that the result is a valid graph with the interface of the original, and without unread
/// values.
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
        for body in bodies(node) {
            captured.extend(captures(body));
        }
        let read = node.input.iter().map(String::as_str).chain(captured);
        if let Some(missing) = read
            .filter(|name| !name.is_empty())
            .find(|name| !there.contains(name))
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
        let nodes = graph
            .node
            .iter()
            .flat_map(|node| node.output.iter().cloned());
        nodes
            .chain(
                graph
                    .initializer
                    .iter()
                    .map(|tensor| tensor.name().to_owned()),
            )
            .collect()
    };
    let old = made(before);
    for name in made(after) {
        let is_part_of_more = after
            .node
            .iter()
            .any(|node| node.output.len() > 1 && node.output.contains(&name));
        if !read_after.contains(name.as_str())
            && (read_before.contains(name.as_str()) || !old.contains(&name))
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
                    if *direction == Direction::Forward {
                        "forward"
                    } else {
                        "backward"
                    }
                ));
                for name in into {
                    let node = graph
                        .node
                        .iter()
                        .find(|node| node.name() == name || node.output.contains(name));
                    count(format!(
                        "folded into {}",
                        node.map_or("?", |node| node.op_type())
                    ));
                }
            }
            Some(Outcome::Kept { forward, backward }) => {
                for (way, refusal) in [("forward", Some(forward)), ("backward", backward.as_ref())]
                {
                    let Some(refusal) = refusal else { continue };
                    let reason = format!("{:?}", refusal.reason);
                    let node = graph.node.iter().find(|node| node.name() == refusal.at);
                    let op = node.map_or("value", |node| node.op_type());
                    count(format!("kept at {op}, {way}: {reason}"));
                }
            }
            Some(Outcome::Partly { .. }) => count("site folded but for its scale".into()),
            Some(Outcome::Scaled { .. }) => count("site folded but for its shift".into()),
            None => count("site without an outcome".into()),
        }
    }
}
