//! The options of an interleaved measurement, shared by all commands that measure.

use std::num::NonZeroUsize;
use std::time::Duration;

use anyhow::{Result, anyhow};
use unfold::bench::BenchOptions;
use unfold::run::Dims;

use super::option_values::{from_one, seconds, threads};

/// The rounds, sizes and threads of a measurement.
#[derive(Debug, clap::Args)]
pub(crate) struct RoundArgs {
    /// Size of a symbolic dimension. A dimension without a symbol is named by its input and its
    /// place, such as x:2 (may be repeated)
    #[arg(long = "dim", value_name = "NAME=SIZE")]
    pub dims: Vec<Dims>,

    /// The number of rounds; every variant runs once per round
    #[arg(long, value_name = "N", value_parser = from_one)]
    pub rounds: Option<NonZeroUsize>,

    /// The maximum duration of the rounds of each batch size in seconds, without --rounds
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true, default_value_t = 10.0)]
    pub time: f64,

    /// The number of threads for matrix products
    #[arg(long, value_name = "N", value_parser = threads, default_value_t = NonZeroUsize::MIN)]
    pub threads: NonZeroUsize,

    /// Shows no progress
    #[arg(long, short)]
    pub quiet: bool,
}

impl RoundArgs {
    /// The maximum duration of the rounds.
    pub(crate) fn time(&self) -> Result<Duration> {
        Duration::try_from_secs_f64(self.time)
            .map_err(|_| anyhow!("--time {} is not a duration", self.time))
    }

    /// The options for the library, with random inputs.
    pub(crate) fn options(&self) -> Result<BenchOptions> {
        let mut dims = Dims::default();
        dims.extend(self.dims.iter().cloned());
        Ok(BenchOptions {
            dims,
            threads: self.threads.get(),
            rounds: self.rounds.map(NonZeroUsize::get),
            time: self.time()?,
            ..BenchOptions::default()
        })
    }
}

/// Sets the label of a setting to its sizes, which distinguish it from other settings.
pub(crate) fn labelled(options: BenchOptions) -> BenchOptions {
    let sizes: Vec<String> = options
        .dims
        .iter()
        .map(|(name, size)| format!("{name}={size}"))
        .collect();
    let label = if sizes.is_empty() {
        options.label
    } else {
        sizes.join(", ")
    };
    BenchOptions { label, ..options }
}
