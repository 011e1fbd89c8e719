//! Writes the facts of a measurement as sentences and cells, for each format of the report.

use super::data::{Attempt, Machine, Memory, Ratio, Report, Setting};
use crate::report::format::bytes;

/// Formats a number of bytes, or a dash if it was not measured.
pub(super) fn maybe_bytes(value: Option<u64>) -> String {
    value.map_or_else(|| "-".into(), bytes)
}

/// Formats a ratio with its interval, as in `0.96 [0.94, 0.98]`.
pub(super) fn ratio(ratio: &Ratio) -> String {
    let interval = ratio.ratio;
    format!(
        "{:.2} [{:.2}, {:.2}]",
        interval.value, interval.low, interval.high
    )
}

/// The names of the references, in the order of the report.
pub(super) fn references(setting: &Setting) -> Vec<&str> {
    let first = setting.ran().next();
    first
        .into_iter()
        .flat_map(|(.., ran)| &ran.ratios)
        .map(|ratio| ratio.reference.as_str())
        .collect()
}

/// One line for each variant and each reference. If both variants of a pair are references, only
/// the later one is compared with the earlier one.
pub(super) fn verdicts(setting: &Setting) -> Vec<String> {
    let references = references(setting);
    let mut verdicts = vec![];
    for (_, name, measurement) in setting.ran() {
        for compared in &measurement.ratios {
            let other = compared.reference.as_str();
            let is_before = place(setting, other) < place(setting, name);
            if other != name && (is_before || !references.contains(&name)) {
                verdicts.push(format!("{name} against {other}: {}", compared.verdict()));
            }
        }
    }
    verdicts
}

/// The index of a variant. `None` if there is no variant with this name.
fn place(setting: &Setting, name: &str) -> Option<usize> {
    let mut variants = setting.variants.iter();
    variants.position(|variant| variant.name == name)
}

/// One line for each variant that could not run.
pub(super) fn failures(setting: &Setting) -> impl Iterator<Item = String> {
    setting
        .variants
        .iter()
        .filter_map(|variant| match &variant.outcome {
            Attempt::Failed { reason } => Some(format!("{}: {reason}", variant.name)),
            Attempt::Ran(_) => None,
        })
}

/// The memory peaks in one or two sentences. `None` if no variant ran.
pub(super) fn memory_sentence(setting: &Setting) -> Option<String> {
    let ran: Vec<_> = setting
        .ran()
        .map(|(_, name, measurement)| (name, &measurement.memory))
        .collect();
    let live = live_sentence(&ran)?;
    Some(match heap_sentence(&ran) {
        Some(heap) => format!("{live} {heap}"),
        None => live,
    })
}

fn live_sentence(ran: &[Named]) -> Option<String> {
    let (lowest, highest) = extremes(ran, |memory| Some(memory.live_peak))?;
    let held = format!("{} holds it", highest.1.live_peak_at);
    let (low, high) = (lowest.1.live_peak, highest.1.live_peak);
    Some(match ran.len() > 1 {
        true if is_same_size(low, high) => {
            let most = ran
                .iter()
                .filter_map(|(_, memory)| memory.live_at_normalizers)
                .max();
            format!(
                "The peak of live memory is the same in every variant, {}: {held}{}.",
                bytes(high),
                at_normalizers(most)
            )
        }
        true => format!(
            "The peak of live memory is lowest in {} ({}) and highest in {} ({}; {held}).",
            lowest.0,
            bytes(low),
            highest.0,
            bytes(high)
        ),
        false => format!(
            "The peak of live memory is {}: {held}{}.",
            bytes(high),
            at_normalizers(highest.1.live_at_normalizers)
        ),
    })
}

fn at_normalizers(live: Option<u64>) -> String {
    match live {
        Some(live) => format!(", and at the normalizers at most {}", bytes(live)),
        None => String::new(),
    }
}

/// A sentence about the heap peaks. `None` if they are equal, or if they were not measured.
fn heap_sentence(ran: &[Named]) -> Option<String> {
    let (lowest, highest) = extremes(ran, |memory| memory.heap_peak)?;
    let (low, high) = (lowest.1.heap_peak?, highest.1.heap_peak?);
    (!is_same_size(low, high)).then(|| {
        let (low, high) = (bytes(low), bytes(high));
        format!(
            "In the order in which tract runs them, the heap held least in {} ({low}) and most in {} ({high}).",
            lowest.0, highest.0
        )
    })
}

/// The name and the memory of a variant.
type Named<'a> = (&'a str, &'a Memory);

/// The variants for which `of` is smallest and largest. Variants for which `of` is `None` are left
/// out. The result is `None` if no variant is left.
fn extremes<'a>(
    ran: &[Named<'a>],
    of: impl Fn(&Memory) -> Option<u64>,
) -> Option<(Named<'a>, Named<'a>)> {
    let measured = ran
        .iter()
        .filter_map(|&variant| Some((of(variant.1)?, variant)));
    let (_, lowest) = measured.clone().min_by_key(|(bytes, _)| *bytes)?;
    let (_, highest) = measured.max_by_key(|(bytes, _)| *bytes)?;
    Some((lowest, highest))
}

/// Whether two sizes differ by too little to call one larger.
pub(super) fn is_same_size(low: u64, high: u64) -> bool {
    high as f64 / (low as f64).max(1.0) < 1.005
}

/// The machine and the versions of a report in one line.
pub(super) fn machine(report: &Report) -> String {
    let Machine {
        processor,
        cores,
        system,
    } = &report.machine;
    format!(
        "unfold {}, tract, {processor}, {cores} cores, {system}",
        report.version
    )
}

/// The method of a measurement in one line.
pub(super) fn how(setting: &Setting) -> String {
    let Setting {
        label,
        threads,
        rounds,
        interrupted,
        ..
    } = setting;
    let threads = if *threads == 1 {
        "one thread".into()
    } else {
        format!("{threads} threads")
    };
    let interrupted = if *interrupted { ", interrupted" } else { "" };
    let rounds = if *rounds == 1 {
        "one round".into()
    } else {
        format!("{rounds} interleaved rounds")
    };
    format!("{label}, {threads}, {rounds}{interrupted}")
}
