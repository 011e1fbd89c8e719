//! The measured candidates, the choice among them, and the report as text.

use anyhow::{Result, anyhow, bail};
use comfy_table::{Cell, CellAlignment, ColumnConstraint};
use serde::Serialize;
use unfold::bench::choice::{self, BestCandidates, TuneGoal};
use unfold::bench::{BenchOptions, Stop, Variant, bench};
use unfold::report::{Attempt, Interval, Measured, bytes, plain, time};

use super::candidates::{Candidate, CandidateOptions};
use super::out::{self, Paint, Tone};

/// The measurements of all candidates, and the chosen one.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Tuned {
    engine: &'static str,
    /// The sizes of the open dimensions.
    sizes: String,
    threads: usize,
    rounds: usize,
    candidates: Vec<MeasuredCandidate>,
    #[serde(serialize_with = "as_name")]
    #[cfg_attr(test, schemars(with = "String"))]
    chosen: CandidateOptions,
    /// The candidate with the lowest median time.
    #[serde(serialize_with = "as_name")]
    #[cfg_attr(test, schemars(with = "String"))]
    fastest: CandidateOptions,
    /// The ratio of the time of the chosen candidate to that of the fastest one.
    over_fastest: Interval,
    #[serde(skip)]
    goal: TuneGoal,
}

/// A candidate and its measurement.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct MeasuredCandidate {
    #[serde(serialize_with = "as_name")]
    #[cfg_attr(test, schemars(with = "String"))]
    name: CandidateOptions,
    /// The options of `fuse`, under their names in Python.
    options: CandidateOptions,
    /// The names of other candidates that produce the same model, apart from its metadata.
    equal: Vec<String>,
    /// The ratio of the candidate's time to that of the first candidate that ran; null if it did
    /// not run.
    ratio: Option<Interval>,
    /// The median time of a run, in seconds.
    seconds: Option<Interval>,
    /// The peak of the heap in a run in bytes, if it was measured.
    peak: Option<u64>,
    /// The size of the file in bytes.
    file_bytes: u64,
    /// The reason why the candidate did not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
}

fn as_name<S: serde::Serializer>(options: &CandidateOptions, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(options)
}

/// The times of a candidate, one for each round, and its peak of memory in bytes if it was
/// measured; or the reason why the candidate did not run.
pub(crate) type Times = Result<(Vec<f64>, Option<u64>), String>;

impl Tuned {
    /// Measures candidates against each other in tract, and chooses the best one.
    ///
    /// # Errors
    /// If no candidate ran.
    pub(crate) fn in_tract(
        candidates: &[Candidate],
        options: &BenchOptions,
        goal: TuneGoal,
        stop: &Stop,
        progress: &dyn Fn(&str, usize, usize),
    ) -> Result<Self> {
        let variants: Vec<Variant> = candidates.iter().map(variant).collect();
        let setting = bench(&variants, options, stop, progress);
        let times = setting.variants.into_iter().map(times).collect();
        Self::new("tract", candidates, times, options, goal)
    }

    /// Chooses the best candidate by times that were measured in `engine`.
    ///
    /// # Errors
    /// If no candidate ran.
    pub(crate) fn new(
        engine: &'static str,
        candidates: &[Candidate],
        times: Vec<Times>,
        options: &BenchOptions,
        goal: TuneGoal,
    ) -> Result<Self> {
        let ran: Vec<usize> = (0..times.len()).filter(|&at| times[at].is_ok()).collect();
        let seconds: Vec<Vec<f64>> = times
            .iter()
            .flatten()
            .map(|(seconds, _)| seconds.clone())
            .collect();
        let ratios = choice::ratios(&seconds);
        let mut choices = vec![];
        for (&place, ratios) in ran.iter().zip(&ratios) {
            let peak = times[place].as_ref().map_or(None, |(_, peak)| *peak);
            choices.push(choice::TimedCandidate {
                ratios: ratios.clone(),
                peak: peak.unwrap_or_default(),
                rank: candidates[place].rank(),
            });
        }
        let Some(BestCandidates { chosen, fastest }) = choice::choose(&choices, goal) else {
            let reason = times.into_iter().find_map(Result::err);
            let reason = reason.ok_or_else(|| anyhow!("no variant to measure"))?;
            bail!("{engine} can run no candidate: {reason}");
        };
        let mut measured = vec![];
        let over_fastest = ratios[chosen][fastest];
        let mut ratios = ratios.iter().map(|ratios| ratios[0]);
        for (candidate, times) in candidates.iter().zip(times) {
            let ratio = times.is_ok().then(|| ratios.next()).flatten();
            measured.push(MeasuredCandidate::new(candidate, times, ratio));
        }
        Ok(Self {
            engine,
            sizes: options.label.clone(),
            threads: options.threads,
            rounds: seconds.first().map_or(0, Vec::len),
            candidates: measured,
            chosen: candidates[ran[chosen]].options,
            fastest: candidates[ran[fastest]].options,
            over_fastest,
            goal,
        })
    }

    /// The options of the chosen candidate.
    pub(crate) fn chosen(&self) -> CandidateOptions {
        self.chosen
    }

    /// A table of the candidates that ran, a line for each candidate that did not run or has equal
    /// candidates, and a line about the choice.
    pub(crate) fn text(&self, paint: Paint) -> String {
        let heads = ["options", "time", "95 % interval", "median", "peak", "file"];
        let mut table = paint.table(&heads);
        for candidate in self.candidates.iter().filter(|it| it.failed.is_none()) {
            table.add_row(candidate.row(candidate.name == self.chosen, paint));
        }
        for (place, column) in table.column_iter_mut().enumerate() {
            column.set_constraint(ColumnConstraint::ContentWidth);
            if place > 0 {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let mut text = out::lines(&table);
        for candidate in &self.candidates {
            text += &candidate.remark();
        }
        text +=
            "\ntime: over that of the first row in the same round; peak: of the heap in a run\n";
        text += &(plain(&self.how()) + "\n");
        text + &self.choice_line() + "\n"
    }

    /// The engine, the sizes, and the number of rounds.
    fn how(&self) -> String {
        let plural = if self.threads == 1 { "" } else { "s" };
        format!(
            "in {} with {}, {} thread{plural}, {} rounds",
            self.engine, self.sizes, self.threads, self.rounds
        )
    }

    /// A line about the chosen candidate, with the reason.
    fn choice_line(&self) -> String {
        let Self {
            chosen, fastest, ..
        } = self;
        let Interval { value, low, high } = self.over_fastest;
        match self.goal {
            TuneGoal::Memory { slowdown } => format!(
                "chosen: {chosen}, the smallest peak within {:.0} % of the fastest, {fastest}",
                100.0 * (slowdown - 1.0)
            ),
            TuneGoal::Latency if chosen == fastest => format!("chosen: {chosen}, the fastest"),
            TuneGoal::Latency => {
                format!(
                    "chosen: {chosen}, as fast as {fastest} ({value:.2}, {low:.2} to {high:.2})"
                )
            }
        }
    }
}

impl MeasuredCandidate {
    fn new(candidate: &Candidate, times: Times, ratio: Option<Interval>) -> Self {
        let (seconds, peak, failed) = match times {
            Ok((seconds, peak)) => (Some(choice::median(&seconds)), peak, None),
            Err(reason) => (None, None, Some(reason)),
        };
        Self {
            name: candidate.options,
            options: candidate.options,
            equal: candidate.equal.iter().map(ToString::to_string).collect(),
            ratio,
            seconds,
            peak,
            file_bytes: candidate.model.file_bytes(),
            failed,
        }
    }

    fn row(&self, is_chosen: bool, paint: Paint) -> Vec<Cell> {
        let numbers = [
            self.ratio
                .map(|ratio| format!("{:.2}", ratio.value))
                .unwrap_or_default(),
            self.ratio
                .filter(|ratio| ratio.low < ratio.high)
                .map(|ratio| format!("{:.2} to {:.2}", ratio.low, ratio.high))
                .unwrap_or_default(),
            self.seconds
                .map(|median| time(median.value))
                .unwrap_or_default(),
            self.peak.map_or_else(|| "-".to_owned(), bytes),
            bytes(self.file_bytes),
        ];
        let name = if is_chosen {
            paint.cell(Tone::Good, self.name)
        } else {
            out::cell(self.name)
        };
        [name].into_iter().chain(numbers.map(out::cell)).collect()
    }

    /// Lines about the reason why the candidate did not run, and about other candidates that
    /// produce the same model; empty if neither applies.
    fn remark(&self) -> String {
        let mut lines = String::new();
        if let Some(reason) = &self.failed {
            lines += &(plain(&format!("not measured: {}: {reason}", self.name)) + "\n");
        }
        if !self.equal.is_empty() {
            lines += &format!("same model as {}: {}\n", self.name, self.equal.join(", "));
        }
        lines
    }
}

fn variant(candidate: &Candidate) -> Variant {
    Variant {
        name: candidate.options.to_string(),
        model: candidate.model.clone(),
        normalizers: Default::default(),
    }
}

/// The times of a variant, and its peak of memory.
fn times(variant: Measured) -> Times {
    match variant.outcome {
        Attempt::Ran(ran) => Ok((ran.seconds, Some(ran.memory.peak()))),
        Attempt::Failed { reason } => Err(reason),
    }
}
