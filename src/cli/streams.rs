//! The residual streams of a model, and what becomes of them.

use std::collections::BTreeMap;

use comfy_table::{Cell, CellAlignment};
use unfold::Plan;
use unfold::fold::plan::{Centring, Member, Scaling, StreamPlan};

use super::out::{self, Paint, Tone};

/// The streams as a table.
pub fn table(plan: &Plan, paint: Paint) -> String {
    if plan.streams.is_empty() {
        return "no residual stream was found\n".to_owned();
    }
    let mut table = paint.table(&["stream", "channels", "written by", "read by", "centring"]);
    for StreamPlan { name, channels, writers, readers, centring, .. } in &plan.streams {
        let (tone, told) = match centring {
            None => (Tone::Good, "nothing takes a mean off".to_owned()),
            Some(Centring::Centred { .. }) => (Tone::Good, needs(centring)),
            Some(Centring::Kept { why }) => (Tone::Bad, why.to_string()),
        };
        let mut cells: Vec<Cell> = vec![Cell::new(name), Cell::new(channels)];
        cells.extend([writers, readers].map(|members| Cell::new(counted(members))));
        cells.push(paint.cell(tone, told));
        table.add_row(cells);
    }
    if let Some(channels) = table.column_mut(1) {
        channels.set_cell_alignment(CellAlignment::Right);
    }
    out::lines(&table)
}

/// What was done to the streams, a line for each; nothing where nobody asked.
pub fn told(plan: &Plan) -> String {
    let lines = |stream: &StreamPlan| {
        let centring = stream.centring.as_ref().map(|centring| match centring {
            Centring::Centred { .. } => format!("centred: {}", needs(&stream.centring)),
            Centring::Kept { why } => format!("not centred: {why}"),
        });
        let scaling = stream.scaling.as_ref().map(|scaling| match scaling {
            Scaling::Scaled { power, .. } => format!("scaled by 2^-{power}: {}", takes(scaling)),
            Scaling::Kept { why } => format!("not scaled: {why}"),
        });
        let line = |told| format!("stream {} ({} channels) {told}\n", stream.name, stream.channels);
        centring.into_iter().chain(scaling).map(line).collect::<String>()
    };
    plan.streams.iter().map(lines).collect()
}

/// What centring a stream comes to.
fn needs(centring: &Option<Centring>) -> String {
    let Some(Centring::Centred { normalizers, constants, subtracted }) = centring else {
        return String::new();
    };
    let mut told = format!("{} LN become RMSNorm, {constants} constants change", normalizers.len());
    if !subtracted.is_empty() {
        told += &format!(", the mean is taken off behind {}", subtracted.join(", "));
    }
    told
}

/// What scaling a stream comes to.
fn takes(scaling: &Scaling) -> String {
    let Scaling::Scaled { into, multiplied, .. } = scaling else { return String::new() };
    let behind =
        if multiplied.is_empty() { String::new() } else { format!(", a Mul at {}", multiplied.join(", ")) };
    format!("{} operators take a power of two in{behind}", into.len())
}

/// Such as `25 LN, 1 linear`.
fn counted(members: &[Member]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    members.iter().for_each(|member| *counts.entry(&member.kind).or_default() += 1);
    let counts: Vec<String> = counts.into_iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    counts.join(", ")
}
