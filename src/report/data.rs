//! The results of a benchmark: plain data, the source of every report.

use serde::{Deserialize, Serialize};

/// A benchmark of the variants of one model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The measured model, such as a file name.
    pub model: String,
    /// The version of unfold.
    pub version: String,
    /// The machine of the measurement.
    pub machine: Machine,
    /// One entry for each size of the inputs.
    pub settings: Vec<Setting>,
    /// The normalizers of the model, and what became of them.
    pub sites: Vec<ReportedSite>,
    /// Notes for the reader, one sentence each.
    pub notes: Vec<String>,
    /// Whether the fused model was found to compute something else than the exported one.
    #[serde(default)]
    pub differs: bool,
}

/// The class of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor, as it calls itself.
    pub processor: String,
    /// How many threads it runs at once.
    pub cores: usize,
    /// The operating system and the architecture.
    pub system: String,
}

/// The variants with inputs of one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// The name of the setting, such as `batch=8`.
    pub label: String,
    /// How many threads compute matrix products.
    pub threads: usize,
    /// How many rounds were measured; every variant runs once in a round.
    pub rounds: usize,
    /// Whether it was stopped before it was done.
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
pub struct Measured {
    /// Its name, such as `fused`.
    pub name: String,
    /// The outcome.
    pub outcome: Attempt,
}

/// The outcome for one variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attempt {
    /// It ran.
    Ran(Box<Measurement>),
    /// It could not be run.
    Failed {
        /// Why, in one line, with the operator.
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
pub struct Measurement {
    /// How long a run takes.
    pub latency: Latency,
    /// How it compares with each reference.
    pub ratios: Vec<Ratio>,
    /// How much memory a run takes.
    pub memory: Memory,
    /// Bytes of the model as a file.
    pub file_bytes: u64,
    /// Bytes of its weights.
    pub weight_bytes: u64,
    /// The time in each class of operators.
    pub time: Vec<Share>,
    /// The time of each round, in seconds; JSON has only what follows from it.
    #[serde(skip)]
    pub seconds: Vec<f64>,
}

/// How long a run takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The median, in seconds, with its interval.
    pub median: Interval,
    /// The time that 95 % of the runs do not exceed, in seconds.
    pub p95: f64,
    /// Samples in a second, at the median.
    pub throughput: f64,
}

/// An estimate, and the interval that holds the true value with a probability of 95 %.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The estimate.
    pub value: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Interval {
    /// Whether a value lies in the interval.
    pub fn holds(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }
}

/// The latency of a variant divided by that of another one in the same round: the median over the rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The name of the other variant.
    pub reference: String,
    /// The ratio; below 1 is faster than the reference.
    pub ratio: Interval,
    /// How many rounds it was taken from.
    pub rounds: usize,
}

impl Ratio {
    /// With fewer rounds no interval between two of them holds the median with a probability of 95 %.
    const FEWEST: usize = 6;

    /// The meaning of the ratio, in words.
    pub fn verdict(&self) -> String {
        let Interval { value, .. } = self.ratio;
        match () {
            () if self.rounds < Self::FEWEST => "too few rounds to tell".into(),
            () if self.ratio.holds(1.0) => "no measurable difference".into(),
            () if value < 1.0 => format!("{:.1} % faster", 100.0 * (1.0 - value)),
            () => format!("{:.1} % slower", 100.0 * (value - 1.0)),
        }
    }
}

/// How much memory a run takes, in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// The most bytes of values that are live at one time, by the order of the graph.
    pub live_peak: u64,
    /// The operator that holds the peak.
    pub live_peak_at: String,
    /// The most live bytes while an operator of a normalizer runs; `None` without normalizers.
    pub live_at_normalizers: Option<u64>,
    /// Live bytes at each step.
    pub curve: Vec<u64>,
    /// The steps at which an operator of a normalizer runs.
    pub normalizer_steps: Vec<usize>,
    /// The peak of the heap during a run; `None` if it was not measured, as the next two.
    pub heap_peak: Option<u64>,
    /// The sum of all blocks that a run asks for.
    pub allocated: Option<u64>,
    /// The peak of the resident set of a process that only runs this variant, weights included.
    pub resident_peak: Option<u64>,
}

impl Memory {
    /// The peak of the heap during a run, or that of live values where the heap was not measured.
    pub fn peak(&self) -> u64 {
        self.heap_peak.unwrap_or(self.live_peak)
    }
}

/// A class of operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Operators that a normalizer was made into.
    Normalizer,
    /// Matrix products, convolutions, and the packing for them.
    Product,
    /// Operators that only move data: transposes, slices, concatenations, casts.
    Movement,
    /// Everything else: activations, softmax, sums.
    Other,
}

impl Class {
    /// All classes, in the order of reports.
    pub const ALL: [Self; 4] = [Self::Normalizer, Self::Product, Self::Movement, Self::Other];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Normalizer => "normalizers",
            Self::Product => "matrix products",
            Self::Movement => "data movement",
            Self::Other => "other",
        }
    }
}

/// The time that a class of operators takes in a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// The class.
    pub class: Class,
    /// Its time, in seconds, by the operator profile.
    pub seconds: f64,
}

/// A normalizer of the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedSite {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// How many channels it has.
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
        let report = crate::report::testing::report();
        let mut again: Report =
            serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        // Numbers survive to the last digit but one; all other fields are equal.
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
