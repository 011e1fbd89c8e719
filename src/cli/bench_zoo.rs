//! `unfold bench` without a model: measures the networks of the papers.

use std::io;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use anyhow::Result;
use unfold::bench::Stop;
use unfold::report::{Report, Setting};
use unfold::zoo::{self, Entry};

use super::bench_variants;
use super::measure::MeasureArgs;

/// One network of each family with the normalizer of its paper, the most instructive network first.
const DEFAULT: [&str; 5] = [
    "vit-s.un",
    "swin-t.un",
    "iwslt14.un",
    "t2t-vit-14.un",
    "dtn-vit-s.dtn",
];
const BATCHES: [usize; 2] = [1, 8];

/// The maximum duration of all measurements without `--all`.
const BUDGET: Duration = Duration::from_secs(270);

/// The duration of a measurement is estimated from the time that it takes besides its rounds
/// (`OVERHEAD`), and from the minimum number of runs of each variant for warm-up, rounds, profile,
/// memory and verification (`RUNS`).
const OVERHEAD: Duration = Duration::from_secs(12);
const RUNS: f64 = 18.0;

/// The networks to measure.
pub(super) fn entries(all: bool) -> Vec<Entry> {
    if all {
        Entry::all().collect()
    } else {
        DEFAULT.into_iter().filter_map(zoo::find).collect()
    }
}

/// Measures all networks with the first batch size, then all with the next one. Passes each report
/// to `tell`. Returns the reports, and the names of the measurements that were skipped to stay
/// within the budget or after an interruption.
pub(super) fn measure(
    entries: &[Entry],
    all: bool,
    args: &MeasureArgs,
    stop: &Stop,
    tell: &dyn Fn(&Report) -> io::Result<()>,
) -> Result<(Vec<Report>, Vec<String>)> {
    let start = Instant::now();
    let rounds = args.rounds.time()?;
    let batches = match args.batch.as_slice() {
        [] => BATCHES.into_iter().filter_map(NonZeroUsize::new).collect(),
        batches => batches.to_vec(),
    };
    let (mut reports, mut left_out) = (vec![], vec![]);
    let mut longest = Duration::ZERO;
    for &batch in &batches {
        for entry in entries {
            let needed = expected(&reports, entry, batch, rounds).max(longest);
            let fits = all || start.elapsed() + needed <= BUDGET;
            if stop.asked() || !fits {
                left_out.push(format!("{} batch={batch}", entry.name()));
                continue;
            }
            let began = start.elapsed();
            let (variants, sites) = bench_variants::variants(&entry.model(0)?)?;
            let report = args.measure(entry.name().to_owned(), &variants, sites, &[batch], stop)?;
            tell(&report)?;
            reports.push(report);
            longest = longest.max(start.elapsed() - began);
        }
    }
    Ok((reports, left_out))
}

/// The expected duration of a measurement. If the network was already measured with another batch,
/// the estimate uses the times of that measurement.
fn expected(reports: &[Report], entry: &Entry, batch: NonZeroUsize, rounds: Duration) -> Duration {
    let known = reports.iter().find(|report| report.model == entry.name());
    let ran = known
        .iter()
        .flat_map(|report| &report.settings)
        .flat_map(Setting::ran);
    let samples: f64 = ran
        .map(|(.., measurement)| 1.0 / measurement.latency.throughput)
        .sum();
    OVERHEAD + rounds.max(Duration::from_secs_f64(samples * batch.get() as f64 * RUNS))
}
