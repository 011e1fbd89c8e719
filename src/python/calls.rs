//! The functions that the Python package calls.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::Result;
use clap::ValueEnum;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::Serialize;
use serde_json::json;

use super::errors::{BadOption, InternalError, Withheld, raised};
use super::memory::{Kept, give_back_freed};
use super::source::ModelSource;
use crate::bench::Stop;
use crate::claim::Claim;
use crate::cli::bench_variants;
use crate::cli::exit_code::End;
use crate::cli::fuse_report::FuseReport;
use crate::cli::inputs::sizes;
use crate::cli::inspect::with_page;
use crate::cli::measure::MeasureArgs;
use crate::cli::out::Paint;
use crate::cli::output_path::{page_target, target};
use crate::cli::panics::caught;
use crate::cli::rounds::RoundArgs;
use crate::cli::storage::{External, StorageArgs};
use crate::cli::unused_options::Idle;
use crate::cli::verdicts;
use crate::cli::verification::When;
use crate::error::Error;
use crate::judge::Judgement;
use crate::onnx::{MessagePart, Model};
use crate::passes::slice::Slicing;
use crate::prove::{Proof, ProveOptions};
use crate::provenance::{FoldOptions, Provenance};
use crate::python::gil_worker::{attend, check_process};
use crate::python::python_callbacks;
use crate::report::{html, markdown, plain, terminal_of};
use crate::run::Dims;
use crate::verify::{VerifyOptions, compare};
use crate::{FuseOptions, Planned};

/// The width of a report as text, in characters.
const REPORT_WIDTH: usize = 80;

/// The minimum size in bytes of a model that counts as large. After a large model is folded, freed
/// memory is returned to the operating system.
const LARGE: u64 = 1 << 24;

/// A folded model that has not been written yet.
///
/// It holds no analyses, to save memory: Python may hold three copies of the model at this point.
#[pyclass(frozen, module = "unfold_onnx._native")]
pub(crate) struct Folded {
    /// The result, or the input if nothing changed.
    model: Model,
    /// The path of the input, if it is a file.
    input: PathBuf,
    /// The report, as JSON and as text.
    texts: (String, String),
    /// Whether anything was folded.
    #[pyo3(get)]
    changed: bool,
    /// The warnings about the run.
    #[pyo3(get)]
    warnings: Vec<String>,
}

impl Folded {
    fn new(report: FuseReport, warnings: Vec<String>) -> PyResult<Self> {
        let texts = (text_of(&report.json())?, report.done(Paint::none()));
        let FuseReport { before, after, .. } = report;
        let input = before.path().unwrap_or(Path::new("")).to_owned();
        Ok(Self {
            input,
            texts,
            changed: after.is_some(),
            model: after.unwrap_or(before),
            warnings,
        })
    }
}

#[pymethods]
impl Folded {
    /// The report as JSON and as text.
    fn texts(&self) -> (&str, &str) {
        (&self.texts.0, &self.texts.1)
    }

    /// The result as bytes, which are written directly into a Python object.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        check_process()?;
        let model = &self.model;
        let size = py
            .detach(|| model.message_bytes())
            .map_err(|error| raised(&error.into()))?;
        written(py, size, |room| model.fill(room))
    }

    /// The result as protobuf messages of about `room` bytes each, which the caller merges.
    fn parts(&self, py: Python<'_>, room: usize) -> PyResult<Parts> {
        check_process()?;
        let model = &self.model;
        let parts = py
            .detach(|| model.to_parts(room))
            .map_err(|error| raised(&error.into()))?;
        Ok(Parts {
            left: Mutex::new(Box::new(parts)),
            kept: Mutex::new(Kept::now()),
        })
    }

    /// Writes the result to `path`, or over the input without a path. Returns the paths of the
    /// model and of its external data, and their total number of bytes.
    fn save(
        &self,
        py: Python<'_>,
        path: Option<PathBuf>,
        external_data: String,
        external_threshold: usize,
    ) -> PyResult<(PathBuf, Option<PathBuf>, u64)> {
        let (model, input, changed) = (self.model.clone(), self.input.clone(), self.changed);
        attend(py, None, move |attended| {
            let external_data = External::from_str(&external_data, false).map_err(BadOption)?;
            let options = StorageArgs {
                external_data,
                external_threshold,
            }
            .options();
            let path = target(&input, path.as_deref())?;
            attended.pass_on();
            let saved = match changed {
                true => model.save_as(path, &options)?,
                false => model.copy_as(path, &options)?,
            };
            Ok((saved.path, saved.data, saved.bytes))
        })
    }
}

/// An iterator over the remaining parts of a model that is returned in parts.
#[pyclass(frozen, module = "unfold_onnx._native")]
pub(crate) struct Parts {
    left: Mutex<Box<dyn Iterator<Item = MessagePart> + Send>>,
    kept: Mutex<Kept>,
}

#[pymethods]
impl Parts {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let Some(part) = self
            .left
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .next()
        else {
            return Ok(None);
        };
        // Python built objects from the earlier parts and freed the parts, so memory can be
        // returned.
        self.kept
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .give_back();
        written(py, part.message_bytes(), |room| {
            part.fill(room).map_err(|source| Error::Io {
                path: "<memory>".into(),
                source,
            })
        })
        .map(Some)
    }
}

/// Returns a Python `bytes` object, which `fill` writes in place.
fn written<'py>(
    py: Python<'py>,
    size: usize,
    fill: impl FnOnce(&mut [MaybeUninit<u8>]) -> crate::error::Result<()> + Send,
) -> PyResult<Bound<'py, PyBytes>> {
    // `PyBytes::new_with` is not used, because it first writes zeros on one core.
    //
    // SAFETY: the call returns a new object of this type, or NULL with an error set.
    let bytes = unsafe {
        let object = ffi::PyBytes_FromStringAndSize(ptr::null(), size as ffi::Py_ssize_t);
        Bound::from_owned_ptr_or_err(py, object)?.cast_into_unchecked::<PyBytes>()
    };
    // SAFETY: the object has `size` bytes, and no other code refers to it yet.
    let room = unsafe {
        let start = ffi::PyBytes_AsString(bytes.as_ptr()).cast::<MaybeUninit<u8>>();
        std::slice::from_raw_parts_mut(start, size)
    };
    let filled = thread::scope(|scope| {
        let (end, ends) = channel();
        scope.spawn(move || python_callbacks::ended(caught(|| fill(room)), &end));
        python_callbacks::until_ended(py, ends, || Ok(()))
    })?;
    match filled.unwrap_or_else(|| Err("its thread is gone".to_owned())) {
        Ok(filled) => filled
            .map(|()| bytes)
            .map_err(|error| raised(&error.into())),
        Err(fault) => Err(InternalError::new_err(fault)),
    }
}

fn text_of(json: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(json).map_err(|error| InternalError::new_err(error.to_string()))
}

/// The sizes of dimensions by their names.
pub(super) type SizesByName = BTreeMap<String, NonZeroUsize>;

/// Converts sizes of dimensions. Each name must be a dimension of an input of the model.
fn dims(given: &SizesByName, model: &Model) -> Result<Dims> {
    sizes("--dim", &[sizes_of(given)], model).map_err(|error| BadOption(error.to_string()).into())
}

/// Converts sizes of dimensions to [`Dims`].
pub(super) fn sizes_of(given: &SizesByName) -> Dims {
    let mut dims = Dims::default();
    given
        .iter()
        .for_each(|(name, size)| dims.set(name, size.get()));
    dims
}

fn bad_option(line: String) -> PyErr {
    raised(&BadOption(line).into())
}

/// The options that change the result.
#[pyclass(frozen, module = "unfold_onnx._native")]
pub(crate) struct Chosen(FoldOptions);

#[pymethods]
impl Chosen {
    #[new]
    #[allow(clippy::too_many_arguments)]
    fn new(
        skip: Vec<String>,
        max_growth: f64,
        centre: bool,
        merge_norms: bool,
        constant_norms: bool,
        scale_stream: Option<u32>,
        to: Option<&str>,
        io: &str,
        target: &str,
        fix: SizesByName,
        slice: Option<usize>,
        memory: Option<&str>,
        expect: BTreeMap<String, usize>,
    ) -> PyResult<Self> {
        let memory = memory
            .map(str::parse)
            .transpose()
            .map_err(|reason: String| bad_option(format!("memory: {reason}")))?;
        let slicing = Slicing {
            parts: slice,
            memory,
            expect,
        };
        let target = target
            .parse()
            .map_err(|_| bad_option(format!("target: `{target}`")))?;
        let to = to.map(str::parse).transpose();
        let to = to.map_err(|_| bad_option("to: neither float16 nor bfloat16".to_owned()))?;
        let io = io.parse().map_err(|_| bad_option(format!("io: `{io}`")))?;
        let fix = sizes_of(&fix);
        Ok(Self(FoldOptions {
            skip,
            max_growth,
            centre,
            merge_norms,
            constant_norms,
            scale_stream,
            to,
            io,
            target,
            fix,
            slicing,
            stop_after: None,
        }))
    }
}

/// Folds a model, and verifies the result.
#[pyfunction]
pub(super) fn fuse(
    py: Python<'_>,
    source: &ModelSource,
    chosen: &Chosen,
    verify: String,
    dim: SizesByName,
    tolerance: Option<f64>,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Folded> {
    let (read, chosen, large) = (source.reader(), chosen.0.clone(), source.bytes() >= LARGE);
    let ended = attend(py, progress, move |attended| {
        let mut kept = Kept::now();
        let tell = |stage: &str, done, of| attended.tell(stage, done, of);
        let when =
            When::from_str(&verify, false).map_err(|_| BadOption(format!("verify: `{verify}`")))?;
        tell("load", 0, 1);
        let model = read()?;
        let dims = dims(&dim, &model)?;
        let options = FuseOptions {
            progress: Some(&tell),
            ..chosen.into()
        };
        let fused = crate::fuse_ahead(&model, &options)?;
        let idle = Idle::all(&options, &model, &fused.plan);
        let report = FuseReport::from_fused(model, fused, idle).chosen_by(&options);
        let mut report = report.assuming(options.chosen())?;
        let mut dims = dims;
        dims.remove_all(&options.fix);
        let options = VerifyOptions {
            dims,
            tolerance,
            ..VerifyOptions::default()
        };
        report.judge(when, &options, |step| tell(step, 0, 1));
        let mut warnings: Vec<String> = report.idle.iter().map(Idle::in_python).collect();
        match (report.judged.end(when), report.judged.complaint(when)) {
            (End::Differs, Some((_, line))) => return Err(Withheld::Differs(line).into()),
            (End::Unverified, Some((_, line))) => return Err(Withheld::Unverified(line).into()),
            (_, complaint) => warnings.extend(complaint.map(|(_, line)| line)),
        }
        let warnings = warnings.iter().map(|line| plain(line)).collect();
        let folded = Folded::new(report, warnings)?;
        if large {
            // Returns freed memory to the operating system before Python copies the result.
            give_back_freed();
            kept.give_back();
        }
        Ok(folded)
    });
    source.settled(py, ended)
}

/// The plan, as JSON and as text, and the provenance of the model, as JSON.
type PlanAsText = (String, String, String);

fn plan_as_text(model: Model, planned: Planned, options: &FuseOptions) -> Result<PlanAsText> {
    let provenance = serde_json::to_string(&Provenance::from_model(&model))?;
    let report = FuseReport::dry(model, planned, vec![]).chosen_by(options);
    Ok((
        serde_json::to_string(&report.json())?,
        report.done(Paint::none()),
        provenance,
    ))
}

/// Plans the folding of a model.
#[pyfunction]
pub(super) fn plan(
    py: Python<'_>,
    source: &ModelSource,
    chosen: &Chosen,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<PlanAsText> {
    let (read, chosen) = (source.reader(), chosen.0.clone());
    let ended = attend(py, progress, move |attended| {
        let tell = |stage: &str, done, of| attended.tell(stage, done, of);
        tell("load", 0, 1);
        let model = read()?;
        let options = FuseOptions {
            progress: Some(&tell),
            ..chosen.into()
        };
        let planned = crate::dry_run(&model, &options)?;
        plan_as_text(model, planned, &options)
    });
    source.settled(py, ended)
}

/// Plans the folding of a model. With `html`, also writes a page about the model to this path, with
/// `name` as its title.
#[pyfunction]
pub(super) fn inspect(
    py: Python<'_>,
    source: &ModelSource,
    name: PathBuf,
    html: Option<PathBuf>,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<PlanAsText> {
    let read = source.reader();
    let ended = attend(py, progress, move |attended| {
        let tell = |stage: &str, done, of| attended.tell(stage, done, of);
        html.as_deref().map_or(Ok(()), page_target)?;
        tell("load", 0, 1);
        let model = read()?;
        let options = FuseOptions {
            progress: Some(&tell),
            ..FuseOptions::default()
        };
        let planned = match &html {
            Some(page) => with_page(&name, &model, &options, page)?,
            None => crate::dry_run(&model, &options)?,
        };
        plan_as_text(model, planned, &options)
    });
    source.settled(py, ended)
}

/// Runs both models, and returns the differences of their outputs as JSON.
#[pyfunction]
pub(super) fn verify(
    py: Python<'_>,
    original: &ModelSource,
    fused: &ModelSource,
    dim: SizesByName,
    tolerance: Option<f64>,
    seeds: Vec<u64>,
) -> PyResult<(bool, String)> {
    let [read_original, read_fused] = [original.reader(), fused.reader()];
    let ended = attend(py, None, move |_| {
        let (original, fused) = (read_original()?, read_fused()?);
        let options = VerifyOptions {
            dims: dims(&dim, &original)?,
            tolerance,
            seeds,
        };
        let verdict = compare(&original, &fused, &options);
        Ok((verdict.passed(), serde_json::to_string(&verdict)?))
    });
    fused.settled(py, original.settled(py, ended))
}

/// Proves that both models are the same function. Returns the verdict as JSON.
#[pyfunction]
pub(super) fn prove(
    py: Python<'_>,
    original: &ModelSource,
    fused: &ModelSource,
    certificate: Option<PathBuf>,
    dim: SizesByName,
    points: usize,
    seed: u64,
) -> PyResult<String> {
    let [read_original, read_fused] = [original.reader(), fused.reader()];
    let ended = attend(py, None, move |attended| {
        let (original, fused) = (read_original()?, read_fused()?);
        let dims = dims(&dim, &original)?;
        let Claim { tensors, sites } = match certificate {
            Some(file) => Claim::certified(&file, &original, &fused)?,
            None => Claim::planned(&original, &fused)?,
        };
        attended.pass_on();
        let proof = crate::prove::prove(
            &original,
            &fused,
            &tensors,
            &ProveOptions { dims, points, seed },
        );
        let mut json = serde_json::to_value(&proof)?;
        if let Proof::Disproved {
            site: Some(site), ..
        } = &proof
        {
            json["site"] = json!(sites.get(*site));
        }
        Ok(json.to_string())
    });
    fused.settled(py, original.settled(py, ended))
}

/// Judges two models of any tools. Returns the verdict as JSON and as text. If a run shows a
/// difference, saves the inputs of this run to the file `witness`.
#[pyfunction]
pub(super) fn judge(
    py: Python<'_>,
    first: &ModelSource,
    second: &ModelSource,
    dim: SizesByName,
    points: usize,
    seed: u64,
    witness: Option<PathBuf>,
) -> PyResult<[String; 2]> {
    let [read_first, read_second] = [first.reader(), second.reader()];
    let ended = attend(py, None, move |attended| {
        let (first, second) = (read_first()?, read_second()?);
        let dims = dims(&dim, &first)?;
        attended.pass_on();
        let options = ProveOptions { dims, points, seed };
        let judgement = crate::judge::judge(&first, &second, &options);
        if let (Judgement::Different(found), Some(file)) = (&judgement, witness) {
            verdicts::save(found, &file)?;
        }
        let proved = verdicts::success(&judgement, Paint::none());
        let text = proved.unwrap_or_else(|| verdicts::failure(&judgement));
        Ok([serde_json::to_string(&judgement)?, text])
    });
    second.settled(py, first.settled(py, ended))
}

/// Measures variants of one model, or measures several models. Returns the report as JSON, text,
/// Markdown and HTML.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub(super) fn bench(
    py: Python<'_>,
    models: Vec<(String, PyRef<'_, ModelSource>)>,
    batch: Vec<NonZeroUsize>,
    dim: SizesByName,
    rounds: Option<NonZeroUsize>,
    time: f64,
    threads: NonZeroUsize,
    references: Vec<String>,
) -> PyResult<[String; 4]> {
    let measure = MeasureArgs {
        batch,
        rounds: RoundArgs {
            dims: vec![sizes_of(&dim)],
            rounds,
            time,
            threads,
            quiet: true,
        },
        input: None,
        references,
    };
    let models: Vec<_> = models
        .into_iter()
        .map(|(name, source)| (name, source.reader()))
        .collect();
    attend(py, None, move |attended| {
        let stop = Stop::default();
        let mut names = vec![];
        let mut opened = vec![];
        for (name, read) in models {
            names.push(name);
            opened.push(read()?);
            attended.pass_on();
        }
        let (variants, sites) = match &opened[..] {
            [model] => bench_variants::variants(model)?,
            models => {
                let named = names.iter().zip(models);
                let variants =
                    named.map(|(name, model)| bench_variants::named(name, model.clone()));
                (variants.collect::<Result<_>>()?, vec![])
            }
        };
        let known = measure.refer_to(variants.iter().map(|variant| variant.name.as_str()));
        known
            .and_then(|()| measure.size_what_is_there(&variants))
            .map_err(|error| BadOption(error.to_string()))?;
        let report = measure.measure(names.join(", "), &variants, sites, &measure.batch, &stop)?;
        let page = html(std::slice::from_ref(&report));
        Ok([
            serde_json::to_string(&report)?,
            terminal_of(&report, REPORT_WIDTH),
            markdown(&report),
            page,
        ])
    })
}
