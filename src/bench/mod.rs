//! Compares variants of a model by measuring them in tract.
//!
//! All variants are loaded and warmed up. Then they run in rounds. In each round every variant is
//! measured once, in random order, so that other load of the machine affects all of them equally. A
//! ratio of two variants divides their times in the same round.

pub(crate) mod choice;
mod machine;
mod memory;
mod profile;
mod resident;
mod statistics;
mod stop;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use tract_onnx::prelude::{TValue, Tensor};

use crate::onnx::Model;
use crate::run::{Dims, Engine, Failure, Session, random};

pub use memory::CountingAllocator;
pub(crate) use memory::heap;
pub use resident::Child;
#[cfg(feature = "cli")]
pub(crate) use resident::measure_here;
pub use stop::Stop;

pub use crate::report::{
    Attempt, Class, Interval, Latency, Machine, Measured, Measurement, Memory, Ratio, Report,
    ReportedSite, Setting, Share, html,
};

/// A model under a name.
#[derive(Debug, Clone)]
pub struct Variant {
    /// The name in reports, such as `as exported`, `fused`, `LN twin`, `floor`.
    pub name: String,
    /// The model.
    pub model: Model,
    /// The names of the nodes that belong to the normalizers of the model.
    pub normalizers: BTreeSet<String>,
}

/// The options of a measurement.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    /// The name of the setting in reports.
    pub label: String,
    /// The sizes of symbolic dimensions.
    pub dims: Dims,
    /// The number of threads for matrix products.
    pub threads: usize,
    /// The number of rounds. If it is missing, new rounds start until `time` has elapsed.
    pub rounds: Option<usize>,
    /// The time after which no more rounds start, if `rounds` is missing. At least
    /// [`BenchOptions::MIN_ROUNDS`] rounds run in any case.
    pub time: Duration,
    /// The names of the variants with which the other variants are compared.
    pub references: Vec<String>,
    /// The inputs. If they are missing, random inputs are used.
    pub inputs: Option<Vec<Tensor>>,
    /// The program that runs one variant to measure its resident set. If it is missing, the
    /// resident set is not measured.
    pub child: Option<Child>,
}

impl BenchOptions {
    /// The minimum number of rounds. With fewer rounds, the interval of a median is meaningless.
    pub const MIN_ROUNDS: usize = 10;
    /// The number of runs of a variant that warm it up and are not measured.
    const WARM_UP: usize = 2;
    /// The minimum duration of a sample. Faster models run several times in a sample, so that it
    /// matters less which data the previous variant left in the caches.
    const SAMPLE: Duration = Duration::from_millis(5);
    /// The number of runs of a variant that are measured operator by operator.
    const PROFILED: usize = 3;
}

impl Default for BenchOptions {
    fn default() -> Self {
        Self {
            label: "default sizes".into(),
            dims: Dims::default(),
            threads: 1,
            rounds: None,
            time: Duration::from_secs(10),
            references: vec!["LN twin".into(), "floor".into()],
            inputs: None,
            child: None,
        }
    }
}

/// Measures all variants.
///
/// If tract cannot run a variant, its entry in the result has the reason, and the others are
/// measured.
///
/// ```no_run
/// use unfold::bench::{BenchOptions, Stop, Variant, bench};
/// use unfold::onnx::Model;
///
/// let variant = |name: &str, path: &str| {
///     Ok::<_, unfold::error::Error>(Variant {
///         name: name.into(),
///         model: Model::open(path)?,
///         normalizers: Default::default(),
///     })
/// };
/// let variants = [variant("as exported", "model.onnx")?, variant("fused", "fused.onnx")?];
/// let options = BenchOptions { references: vec!["as exported".into()], ..BenchOptions::default() };
/// let setting = bench(&variants, &options, &Stop::default(), &|_, _, _| {});
/// for variant in &setting.variants {
///     if let Some(measured) = variant.measurement() {
///         println!("{}: {} s", variant.name, measured.latency.median.value);
///     }
/// }
/// # Ok::<(), unfold::error::Error>(())
/// ```
pub fn bench(
    variants: &[Variant],
    options: &BenchOptions,
    stop: &Stop,
    progress: &dyn Fn(&str, usize, usize),
) -> Setting {
    let mut runners: Vec<Result<Runner, Failure>> = Vec::new();
    for variant in variants {
        progress(&format!("loading {}", variant.name), 0, 1);
        runners.push(match stop.asked() {
            false => Runner::load(variant, options),
            true => Err(Failure::interrupted()),
        });
    }
    let rounds = rounds(&mut runners, options, stop, progress);
    profiles(&mut runners, stop, progress);
    let references = reference_samples(variants, &runners, options);
    let mut measured = Vec::with_capacity(variants.len());
    for (variant, runner) in variants.iter().zip(runners) {
        let outcome = runner.and_then(|runner| {
            progress(&format!("memory of {}", variant.name), 1, 1);
            runner.finish(variant, &references, options, stop)
        });
        measured.push(Measured {
            name: variant.name.clone(),
            outcome: attempt(outcome),
        });
    }
    Setting {
        label: options.label.clone(),
        threads: options.threads,
        rounds,
        interrupted: stop.asked(),
        variants: measured,
    }
}

/// Converts the outcome of a variant for the report.
fn attempt(outcome: Result<Measurement, Failure>) -> Attempt {
    match outcome {
        Ok(measurement) => Attempt::Ran(Box::new(measurement)),
        Err(failure) => Attempt::Failed {
            reason: failure.to_string(),
        },
    }
}

/// A variant that is loaded, and the times of its runs.
struct Runner {
    engine: Engine,
    session: Session,
    inputs: Vec<TValue>,
    classes: Vec<Class>,
    seconds: Vec<f64>,
    /// The times by class of operators, in the fastest of the runs that were measured operator by
    /// operator. The fastest run was disturbed least.
    time: Option<Vec<Share>>,
}

impl Runner {
    fn load(variant: &Variant, options: &BenchOptions) -> Result<Self, Failure> {
        let engine = Engine::load_with(&variant.model, &options.dims, options.threads)?;
        let inputs = options
            .inputs
            .clone()
            .unwrap_or_else(|| random(engine.inputs(), 0));
        let inputs = inputs.into_iter().map(TValue::from).collect();
        let classes = profile::classes(&engine, &variant.normalizers);
        let session = engine.session()?;
        let mut runner = Self {
            session,
            engine,
            inputs,
            classes,
            seconds: Vec::new(),
            time: None,
        };
        for _ in 0..BenchOptions::WARM_UP {
            runner.session.run(&runner.inputs)?;
        }
        Ok(runner)
    }

    /// Measures one sample: the mean time of as many runs as take [`BenchOptions::SAMPLE`] in
    /// total.
    fn round(&mut self) -> Result<(), Failure> {
        let (mut total, mut runs) = (Duration::ZERO, 0);
        while total < BenchOptions::SAMPLE {
            let start = Instant::now();
            let outputs = self.session.run(&self.inputs)?;
            total += start.elapsed();
            runs += 1;
            drop(outputs);
        }
        self.seconds.push(total.as_secs_f64() / f64::from(runs));
        Ok(())
    }

    fn profile(&mut self) -> Result<(), Failure> {
        let time = profile::profile(&mut self.session, &self.inputs, &self.classes)?;
        if self
            .time
            .as_ref()
            .is_none_or(|fastest| profile::total(&time) < profile::total(fastest))
        {
            self.time = Some(time);
        }
        Ok(())
    }

    fn finish(
        mut self,
        variant: &Variant,
        references: &[(String, Vec<f64>)],
        options: &BenchOptions,
        stop: &Stop,
    ) -> Result<Measurement, Failure> {
        if self.seconds.is_empty() {
            return Err(Failure::interrupted());
        }
        let (ran, heap) = heap(|| self.session.run(&self.inputs).map(drop));
        ran?;
        let ratios = references
            .iter()
            .map(|(reference, seconds)| Ratio {
                reference: reference.clone(),
                ratio: choice::ratio(&self.seconds, seconds),
                rounds: self.seconds.len().min(seconds.len()),
            })
            .collect();
        let child = options.child.as_ref().filter(|_| !stop.asked());
        let median = statistics::median(&self.seconds);
        // The number of samples in a run is the first extent of the first input.
        let samples = self
            .engine
            .inputs()
            .first()
            .and_then(|input| input.shape.first())
            .map_or(1, |&size| size.max(1));
        Ok(Measurement {
            latency: Latency {
                median,
                p95: statistics::quantile(&self.seconds, 0.95),
                throughput: samples as f64 / median.value,
            },
            ratios,
            memory: Memory {
                heap_peak: heap.map(|heap| heap.peak),
                allocated: heap.map(|heap| heap.allocated),
                resident_peak: child.and_then(|child| {
                    child.resident_peak(&variant.model, &options.dims, options.threads, stop)
                }),
                ..live_memory(&self.engine, &self.classes)
            },
            file_bytes: variant.model.file_bytes(),
            weight_bytes: variant.model.weight_bytes(),
            time: self.time.unwrap_or_default(),
            seconds: self.seconds,
        })
    }
}

/// Runs the rounds, and returns their number. If a variant fails, its failure replaces its runner.
fn rounds(
    runners: &mut [Result<Runner, Failure>],
    options: &BenchOptions,
    stop: &Stop,
    progress: &dyn Fn(&str, usize, usize),
) -> usize {
    let start = Instant::now();
    // A random order, because the speed of a run depends on the variant that ran before it.
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let mut order: Vec<usize> = (0..runners.len()).collect();
    let mut done = 0;
    loop {
        let elapsed = start.elapsed();
        let (enough, part, whole) = match options.rounds {
            Some(rounds) => (done >= rounds.max(1), done, rounds),
            None => (
                done >= BenchOptions::MIN_ROUNDS && elapsed >= options.time,
                elapsed.min(options.time).as_millis() as usize,
                options.time.as_millis() as usize,
            ),
        };
        if enough || runners.iter().all(Result::is_err) {
            return done;
        }
        progress(
            &format!("{}, round {}", options.label, done + 1),
            part,
            whole,
        );
        order.shuffle(&mut rng);
        for &place in &order {
            if stop.asked() {
                drop_incomplete(runners, done);
                return done;
            }
            let runner = &mut runners[place];
            if let Ok(running) = runner
                && let Err(failure) = running.round()
            {
                *runner = Err(failure);
            }
        }
        done += 1;
    }
}

/// Measures some runs operator by operator. The variants alternate, as in the rounds. After a
/// request to stop, one run of each variant suffices.
fn profiles(
    runners: &mut [Result<Runner, Failure>],
    stop: &Stop,
    progress: &dyn Fn(&str, usize, usize),
) {
    for done in 0..BenchOptions::PROFILED {
        if stop.asked() && done > 0 {
            return;
        }
        progress("operator by operator", done, BenchOptions::PROFILED);
        for runner in runners.iter_mut() {
            if let Ok(running) = runner
                && !running.seconds.is_empty()
                && let Err(failure) = running.profile()
            {
                *runner = Err(failure);
            }
        }
    }
}

/// Drops the times of an unfinished round, since a ratio needs the times of both variants in the
/// same round.
fn drop_incomplete(runners: &mut [Result<Runner, Failure>], rounds: usize) {
    for runner in runners.iter_mut().flatten() {
        runner.seconds.truncate(rounds);
    }
}

/// The names and times of the variants with which the others are compared. If none of the requested
/// references ran, the first variant that ran is the only reference.
fn reference_samples(
    variants: &[Variant],
    runners: &[Result<Runner, Failure>],
    options: &BenchOptions,
) -> Vec<(String, Vec<f64>)> {
    let ran: Vec<(&str, &Runner)> = variants
        .iter()
        .zip(runners)
        .filter_map(|(variant, runner)| Some((variant.name.as_str(), runner.as_ref().ok()?)))
        .collect();
    let asked: Vec<_> = options
        .references
        .iter()
        .filter_map(|reference| ran.iter().find(|(name, _)| name == reference).copied())
        .collect();
    let chosen = if asked.is_empty() {
        ran.into_iter().take(1).collect()
    } else {
        asked
    };
    chosen
        .into_iter()
        .map(|(name, runner)| (name.to_owned(), runner.seconds.clone()))
        .collect()
}

/// The fields of [`Memory`] that can be computed from the graph without running it. The other
/// fields are `None`.
fn live_memory(engine: &Engine, classes: &[Class]) -> Memory {
    let steps = memory::live(engine);
    let peak = steps.iter().max_by_key(|step| step.bytes);
    let is_normalizer = |step: &memory::Live| classes[step.node] == Class::Normalizer;
    Memory {
        live_peak: peak.map_or(0, |step| step.bytes),
        live_peak_at: peak.map_or_else(String::new, |step| operator_at(engine, step)),
        live_at_normalizers: steps
            .iter()
            .filter(|step| is_normalizer(step))
            .map(|step| step.bytes)
            .max(),
        curve: steps.iter().map(|step| step.bytes).collect(),
        normalizer_steps: (0..steps.len())
            .filter(|&at| is_normalizer(&steps[at]))
            .collect(),
        heap_peak: None,
        allocated: None,
        resident_peak: None,
    }
}

/// Names the operator and the node of a step as in the model. If the model does not have the node,
/// the names are those of tract's graph.
fn operator_at(engine: &Engine, step: &memory::Live) -> String {
    let node = engine.graph().node(step.node);
    match engine.origin(&node.name) {
        Some((operator, name)) => format!("{operator} {name}"),
        None => format!("{} {}", node.op().name(), node.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::tensor::DataType;
    use crate::run::testing::{affine, model, node, value};

    fn variant(name: &str, model: Model) -> Variant {
        Variant {
            name: name.into(),
            model,
            normalizers: BTreeSet::new(),
        }
    }

    fn options(rounds: usize) -> BenchOptions {
        BenchOptions {
            rounds: Some(rounds),
            ..BenchOptions::default()
        }
    }

    #[test]
    fn failed_variant_is_named_and_the_others_run() {
        let broken = model(
            vec![value("x", DataType::Float, &["n", "3"])],
            vec![],
            vec![node("Nope x -> y")],
            &["y"],
        );
        let variants = [
            variant("good", affine([1.0; 3], [0.0; 3])),
            variant("bad", broken),
        ];
        let setting = bench(&variants, &options(3), &Stop::default(), &|_, _, _| {});
        assert_eq!((setting.rounds, setting.interrupted), (3, false));
        let good = setting.variants[0].measurement().unwrap();
        assert_eq!(
            good.ratios
                .iter()
                .map(|ratio| ratio.reference.as_str())
                .collect::<Vec<_>>(),
            ["good"]
        );
        assert!(good.ratios[0].ratio.holds(1.0));
        assert_eq!(good.weight_bytes, 2 * 3 * 4);
        assert!(good.file_bytes > good.weight_bytes);
        let Attempt::Failed { reason } = &setting.variants[1].outcome else {
            panic!()
        };
        assert_eq!(
            reason,
            "tract cannot load Nope `the Nope`: tract does not have this operator"
        );
    }

    #[test]
    fn stop_keeps_completed_rounds() {
        let variants = ["a", "b"].map(|name| variant(name, affine([1.0; 3], [0.0; 3])));
        let stop = Stop::default();
        let setting = bench(&variants, &options(1000), &stop, &|line, _, _| {
            if line.ends_with("round 5") {
                stop.ask();
            }
        });
        assert!(setting.interrupted);
        assert_eq!(setting.rounds, 4);
        assert!(
            setting
                .variants
                .iter()
                .all(|variant| variant.measurement().is_some())
        );
    }

    #[test]
    fn normalizer_time_and_memory_are_attributed() {
        // tract would remove factors of 1 and terms of 0.
        let model = affine([2.0; 3], [1.0; 3]);
        let normalizers = BTreeSet::from(["the Mul".into(), "the Add".into()]);
        let with = Variant {
            normalizers,
            ..variant("with", model.clone())
        };
        let setting = bench(
            &[with, variant("without", model)],
            &options(2),
            &Stop::default(),
            &|_, _, _| {},
        );
        let normalizer = |index: usize| {
            let measurement = setting.variants[index].measurement().unwrap();
            (
                measurement.time[0].seconds > 0.0,
                measurement.memory.live_at_normalizers.is_some(),
            )
        };
        assert_eq!(
            (normalizer(0), normalizer(1)),
            ((true, true), (false, false))
        );
    }

    #[test]
    fn ratios_use_the_requested_reference() {
        let variants = ["a", "b"].map(|name| variant(name, affine([1.0; 3], [0.0; 3])));
        let options = BenchOptions {
            references: vec!["b".into()],
            ..options(2)
        };
        let setting = bench(&variants, &options, &Stop::default(), &|_, _, _| {});
        assert_eq!(
            setting.variants[0].measurement().unwrap().ratios[0].reference,
            "b"
        );
    }
}
