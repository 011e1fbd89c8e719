//! `unfold bench` without a model: the networks of the papers.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use anyhow::Result;
use unfold::bench::Stop;
use unfold::report::{Measurement, Report, overview_heading, overview_lines, overview_markdown};
use unfold::zoo::{Entry, entries, find};

use super::bench::{BenchArgs, MakeVariants, measure, options};
use super::out;

/// One network of each family, with the normalizer of its paper, the most telling first.
const DEFAULT: [&str; 5] = ["vit-s.un", "swin-t.un", "iwslt14.un", "t2t-vit-14.un", "dtn-vit-s.dtn"];
const BATCHES: [usize; 2] = [1, 8];

/// How long all may take, where not all was asked for.
const BUDGET: Duration = Duration::from_secs(270);

/// What a measurement takes beside its rounds, and how many runs it makes at least, of each variant:
/// warming up, rounds, profile, memory, verification.
const OVERHEAD: Duration = Duration::from_secs(12);
const RUNS: f64 = 18.0;

/// Measures the networks, the small batch of each before the large one of any.
pub fn run(args: &BenchArgs, make: MakeVariants<'_>, stop: &Stop) -> Result<Vec<Report>> {
    let start = Instant::now();
    let entries: Vec<Entry> =
        if args.all { entries().collect() } else { DEFAULT.iter().filter_map(|name| find(name)).collect() };
    let batches = match args.batch.as_slice() {
        [] => BATCHES.into_iter().filter_map(NonZeroUsize::new).collect(),
        batches => batches.to_vec(),
    };
    let tells = !args.json && !args.markdown;
    if tells {
        let names: Vec<&str> = entries.iter().map(Entry::name).collect();
        out::print(&format!("{}\n\n{}", names.join(", "), overview_heading()))?;
    }
    let (mut reports, mut left_out) = (Vec::<Report>::new(), vec![]);
    let mut longest = Duration::ZERO;
    for &batch in &batches {
        for entry in &entries {
            let needed = expected(&reports, entry, batch, args).max(longest);
            let fits = args.all || start.elapsed() + needed <= BUDGET;
            if stop.asked() || !fits {
                left_out.push(format!("{} batch={batch}", entry.name()));
                continue;
            }
            let began = start.elapsed();
            let (variants, sites) = make(&entry.model(0)?)?;
            let options = options(args, &variants, &[batch])?;
            let report = measure(entry.name().to_owned(), &variants, sites, &options, args, stop);
            if tells {
                let wrong = if report.differs { report.notes.join("\n") + "\n" } else { String::new() };
                out::print(&(overview_lines(&report) + &wrong))?;
            }
            reports.push(report);
            longest = longest.max(start.elapsed() - began);
        }
    }
    if args.json {
        out::print(&(serde_json::to_string_pretty(&reports)? + "\n"))?;
    } else if args.markdown {
        out::print(&overview_markdown(&reports))?;
    }
    if !left_out.is_empty() {
        let why = if stop.asked() { "interrupted" } else { "--all measures all, however long it takes" };
        out::complain("not measured", &format!("{}; {why}", left_out.join(", ")));
    }
    Ok(reports)
}

/// How long a measurement will take, by what the network took with another batch.
fn expected(reports: &[Report], entry: &Entry, batch: NonZeroUsize, args: &BenchArgs) -> Duration {
    let known = reports.iter().find(|report| report.model == entry.name());
    let variants = known.iter().flat_map(|report| &report.settings).flat_map(|setting| &setting.variants);
    let a_sample = |measurement: &Measurement| 1.0 / measurement.latency.throughput;
    let samples: f64 = variants.filter_map(|variant| variant.measurement()).map(a_sample).sum();
    let runs = samples * batch.get() as f64 * RUNS;
    OVERHEAD + Duration::from_secs_f64(runs.max(args.time))
}
