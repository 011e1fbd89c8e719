//! Reports the residual streams of a model and their changes.

use std::collections::BTreeMap;

use comfy_table::{Cell, CellAlignment};
use unfold::plan::{Basis, Centring, Member, Plan, Scaling, StreamPlan};
use unfold::report::{self, plain};

use super::out::{self, Paint, Tone};
use super::sites;

/// Explains the operators that remain of a LayerNormalization on a centred stream.
const RMS_NORM: &str = "  (engines run the operators of an RMSNorm, Pow to Div, as one)\n";

/// A table of the streams.
pub(super) fn table(plan: &Plan, paint: Paint) -> String {
    if plan.streams.is_empty() {
        return "no residual stream was found\n".to_owned();
    }
    let mut table = paint.table(&[
        "stream",
        "channels",
        "written by",
        "read by",
        "centring",
        "scaling",
    ]);
    for StreamPlan {
        name,
        channels,
        writers,
        readers,
        centring,
        scaling,
    } in &plan.streams
    {
        let centring = match centring {
            None => (Tone::Good, String::new()),
            Some(Centring::Centred { .. }) => (Tone::Good, needs(centring)),
            Some(Centring::Kept { why }) => (Tone::Bad, sites::in_short(why)),
        };
        let scaling = match scaling {
            None => (Tone::Good, String::new()),
            Some(scaling @ Scaling::Scaled { .. }) => (Tone::Good, takes(scaling)),
            Some(Scaling::Kept { why }) => (Tone::Bad, sites::in_short(why)),
        };
        let mut cells: Vec<Cell> = vec![out::cell(name), out::cell(channels)];
        cells.extend([writers, readers].map(|members| out::cell(counted(members))));
        cells.extend([centring, scaling].map(|(tone, text)| paint.cell(tone, text)));
        table.add_row(cells);
    }
    if let Some(channels) = table.column_mut(1) {
        channels.set_cell_alignment(CellAlignment::Right);
    }
    out::lines(&table)
}

/// Reports the changes of streams, with a line for each requested change and a line for changes by
/// folding. Streams that are not centred are listed only if `centre`.
pub(super) fn text(plan: &Plan, centre: bool) -> String {
    let mut lines = String::new();
    let bases: Vec<Basis> = plan.sites.iter().filter_map(|site| site.basis).collect();
    if let Some(Basis { least, most }) = Basis::around(bases.iter().copied()) {
        let sites = report::counted(bases.len(), "site");
        let range = match least == most {
            true => format!("{least:.1e}"),
            false => format!("{least:.1e} to {most:.1e}"),
        };
        lines += &format!("residual streams behind {sites} are rescaled: channels ÷ {range}\n");
    }
    let mut kept: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut is_centred = false;
    for stream in &plan.streams {
        match &stream.centring {
            None => {}
            Some(Centring::Centred { .. }) => {
                is_centred = true;
                let change = format!("centred: {}", needs(&stream.centring));
                lines += &line(stream, &change);
            }
            Some(Centring::Kept { .. }) if !centre => {}
            Some(Centring::Kept { why }) => {
                *kept.entry(("centred", why.reason.name())).or_default() += 1
            }
        }
        match &stream.scaling {
            None => {}
            Some(scaling @ Scaling::Scaled { power, .. }) => {
                let change = format!("scaled by 2^-{power}: {}", takes(scaling));
                lines += &line(stream, &change);
            }
            Some(Scaling::Kept { why }) => {
                *kept.entry(("scaled", why.reason.name())).or_default() += 1
            }
        }
    }
    if is_centred {
        lines += RMS_NORM;
    }
    for ((change, reason), count) in kept {
        let streams = report::counted(count, "stream");
        lines += &format!("{streams} not {change}: {reason}\n");
    }
    lines
}

fn line(stream: &StreamPlan, change: &str) -> String {
    let StreamPlan { name, channels, .. } = stream;
    plain(&format!("stream {name} ({channels} channels) {change}")) + "\n"
}

/// Describes the changes that centring a stream makes; empty if the stream is not centred.
fn needs(centring: &Option<Centring>) -> String {
    let Some(Centring::Centred {
        normalizers,
        constants,
        subtracted,
    }) = centring
    else {
        return String::new();
    };
    let mut text = format!(
        "{} LN become RMSNorm, {} change",
        normalizers.len(),
        report::counted(*constants, "constant")
    );
    if !subtracted.is_empty() {
        text += &format!(", the mean is taken off behind {}", subtracted.join(", "));
    }
    text
}

/// Describes the operators that absorb the scale of a stream; empty if the stream is not scaled.
fn takes(scaling: &Scaling) -> String {
    let Scaling::Scaled {
        into, multiplied, ..
    } = scaling
    else {
        return String::new();
    };
    let behind = if multiplied.is_empty() {
        String::new()
    } else {
        format!(", a Mul at {}", multiplied.join(", "))
    };
    format!(
        "{} absorb a power of two{behind}",
        report::counted(into.len(), "operator")
    )
}

/// For example `25 LN, 1 linear`.
fn counted(members: &[Member]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    members
        .iter()
        .for_each(|member| *counts.entry(&member.kind).or_default() += 1);
    let counts: Vec<String> = counts
        .into_iter()
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    counts.join(", ")
}
