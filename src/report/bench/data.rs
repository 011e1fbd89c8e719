//! The results of a benchmark as plain data, from which all reports are written.

use serde::{Deserialize, Serialize};

use crate::report::class::Class;

/// A benchmark of the variants of one model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Report {
    /// The measured model, such as a file name.
    pub model: String,
    /// The version of unfold.
    pub version: String,
    /// The machine of the measurement.
    pub machine: Machine,
    /// One entry for each size of the inputs.
    pub settings: Vec<Setting>,
    /// The normalizers of the model, with their outcomes.
    pub sites: Vec<ReportedSite>,
    /// Notes for the reader, one sentence each.
    pub notes: Vec<String>,
    /// Whether the fused model was found to compute a function other than that of the exported
    /// model.
    #[serde(default)]
    pub differs: bool,
}

/// The kind of machine on which a benchmark ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Machine {
    /// The name of the processor, as the processor reports it.
    pub processor: String,
    /// The number of hardware threads.
    pub cores: usize,
    /// The operating system and the architecture.
    pub system: String,
}

/// The variants with inputs of one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Setting {
    /// The name of the setting, such as `batch=8`.
    pub label: String,
    /// The number of threads for matrix products.
    pub threads: usize,
    /// The number of measured rounds; every variant runs once per round.
    pub rounds: usize,
    /// Whether the measurement was stopped early.
    pub interrupted: bool,
    /// The variants, in the order in which they were given.
    pub variants: Vec<Measured>,
}

impl Setting {
    /// The variants that ran: index, name, and measurement.
    pub fn ran(&self) -> impl Iterator<Item = (usize, &str, &Measurement)> {
        let variants = self.variants.iter().enumerate();
        variants.filter_map(|(place, variant)| {
            Some((place, variant.name.as_str(), variant.measurement()?))
        })
    }
}

/// One variant of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Measured {
    /// Its name, such as `fused`.
    pub name: String,
    /// The outcome.
    pub outcome: Attempt,
}

/// The outcome for one variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Attempt {
    /// It ran.
    Ran(Box<Measurement>),
    /// It could not be run.
    Failed {
        /// The reason in one line, with the operator.
        reason: String,
    },
}

impl Measured {
    /// The measurement, if the variant ran.
    pub fn measurement(&self) -> Option<&Measurement> {
        match &self.outcome {
            Attempt::Ran(measurement) => Some(measurement),
            Attempt::Failed { .. } => None,
        }
    }
}

/// The measurement of one variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Measurement {
    /// The duration of a run.
    pub latency: Latency,
    /// The ratios to each reference.
    pub ratios: Vec<Ratio>,
    /// The memory of a run.
    pub memory: Memory,
    /// The number of bytes of the model as a file.
    pub file_bytes: u64,
    /// The number of bytes of its weights.
    pub weight_bytes: u64,
    /// The time in each class of operators.
    pub time: Vec<Share>,
    /// The time of each round in seconds. JSON has only the statistics.
    #[serde(skip)]
    pub seconds: Vec<f64>,
}

/// The duration of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Latency {
    /// The median in seconds, with its interval.
    pub median: Interval,
    /// The 95th percentile in seconds.
    pub p95: f64,
    /// Samples per second, at the median.
    pub throughput: f64,
}

/// An estimate, and the interval that holds the true value with a probability of 95 %.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Interval {
    /// The estimate.
    pub value: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Interval {
    /// Whether a value is in the interval.
    pub fn holds(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }
}

/// The ratio of the latencies of two variants in the same round: the median over the rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Ratio {
    /// The name of the other variant.
    pub reference: String,
    /// The ratio; below 1 if the variant is faster than the reference.
    pub ratio: Interval,
    /// The number of rounds.
    pub rounds: usize,
}

impl Ratio {
    /// The minimum number of rounds at which the interval from the smallest to the largest ratio
    /// contains the true median with a probability of at least 95 %.
    const FEWEST: usize = 6;

    /// Whether the variants differ measurably; `None` if there are too few rounds.
    pub fn is_different(&self) -> Option<bool> {
        (self.rounds >= Self::FEWEST).then(|| !self.ratio.holds(1.0))
    }

    /// The ratio in words.
    pub fn verdict(&self) -> String {
        let Interval { value, .. } = self.ratio;
        match self.is_different() {
            None => "too few rounds to tell".into(),
            Some(false) => "no measurable difference".into(),
            Some(true) if value < 1.0 => format!("{:.1} % faster", 100.0 * (1.0 - value)),
            Some(true) => format!("{:.1} % slower", 100.0 * (value - 1.0)),
        }
    }
}

/// The memory of a run in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Memory {
    /// The peak of the live bytes, if the operators run in the order of the graph.
    pub live_peak: u64,
    /// The operator at the peak.
    pub live_peak_at: String,
    /// The peak of the live bytes while operators of normalizers run; `None` if there are none.
    pub live_at_normalizers: Option<u64>,
    /// The live bytes at each operator, in the order of the graph.
    pub curve: Vec<u64>,
    /// The indices in `curve` of the operators that belong to normalizers.
    pub normalizer_steps: Vec<usize>,
    /// The peak of the heap during a run; `None` if it was not measured, as for the next two
    /// fields.
    pub heap_peak: Option<u64>,
    /// The total size of all blocks that a run requests.
    pub allocated: Option<u64>,
    /// The peak of the resident set of a process that only runs this variant, including weights.
    pub resident_peak: Option<u64>,
}

impl Memory {
    /// The peak of the heap during a run, or that of the live values if the heap was not measured.
    pub fn peak(&self) -> u64 {
        self.heap_peak.unwrap_or(self.live_peak)
    }
}

/// The time of a class of operators in a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Share {
    /// The class.
    pub class: Class,
    /// The time of the class in seconds, measured operator by operator.
    pub seconds: f64,
}

/// A normalizer of the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReportedSite {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// The number of channels.
    pub channels: usize,
    /// The result of folding the site.
    pub outcome: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(low: f64, value: f64, high: f64, rounds: usize) -> String {
        Ratio {
            reference: "LN twin".into(),
            ratio: Interval { value, low, high },
            rounds,
        }
        .verdict()
    }

    #[test]
    fn verdict_claims_only_measured_differences() {
        assert_eq!(verdict(0.99, 0.9951, 1.0, 20), "no measurable difference");
        assert_eq!(verdict(0.97, 0.98, 0.99, 20), "2.0 % faster");
        assert_eq!(verdict(1.2, 1.3, 1.4, 20), "30.0 % slower");
        assert_eq!(verdict(1.3, 1.3, 1.3, 1), "too few rounds to tell");
    }

    #[test]
    fn report_survives_json() {
        let report = crate::report::bench::testing::report();
        let mut again: Report =
            serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        // Numbers survive except for their last digit; all other fields are equal.
        for (setting, original) in again.settings.iter_mut().zip(&report.settings) {
            for (variant, original) in setting.variants.iter_mut().zip(&original.variants) {
                let [read, written] = [&*variant, original]
                    .map(|measured| Some(measured.measurement()?.latency.median.high));
                assert!(
                    read.zip(written)
                        .is_none_or(|(read, written)| (read - written).abs() < 1e-15)
                );
                if let (Attempt::Ran(read), Attempt::Ran(written)) =
                    (&mut variant.outcome, &original.outcome)
                {
                    read.latency = written.latency.clone();
                    read.ratios = written.ratios.clone();
                    read.time = written.time.clone();
                    read.seconds = written.seconds.clone();
                }
            }
        }
        assert!(again == report);
    }
}
