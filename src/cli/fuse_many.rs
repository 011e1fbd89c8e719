//! `unfold fuse` of several models. Each is folded independently, several are processed at once,
//! and each gets a line of the report.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, ColumnConstraint};
use serde::Serialize;
use serde_json::Value;
use unfold::onnx::destination;
use unfold::report::{bytes, counted, plain};

use super::causes;
use super::fuse::{FuseArgs, Task, fuse, one, warn_of_idle};
use super::fuse_report::{FuseJson, FuseReport};
use super::out::{self, Paint, Tone};
use super::panics::caught;
use super::path::JsonPath;
use super::progress_bar::StepProgress;
use crate::cli::exit_code::End;
use crate::cli::memory_admission::Room;
use crate::cli::temporary_folders::MadeFolders;
use crate::cli::unused_options::Idle;
use crate::cli::usage_errors::misused;

/// The size of a worker's stack, equal to that of the main thread.
const STACK: usize = 8 << 20;

/// The minimum number of characters of a name that are shown, however wide the other columns are.
const SHORTEST: usize = 12;

/// The outcome for one model.
struct Line {
    end: End,
    /// Errors and warnings, each with its kind.
    complaints: Vec<(&'static str, String)>,
    /// The numbers of sites, the numbers of operators, the size of the file, and the outcome in a
    /// word.
    cells: [String; 4],
    json: Value,
    /// Options without effect; `None` for a model that failed.
    idle: Option<Vec<Idle>>,
}

/// Runs the command.
pub(super) fn run(args: &FuseArgs) -> Result<End> {
    let _made = MadeFolders;
    let tasks = args.tasks()?;
    match &tasks[..] {
        // With `--json` and a folder as output, a single model is reported in the format for
        // several models.
        [task] if !args.json || args.folder().is_none() => one(args, task),
        tasks => many(args, tasks),
    }
}

fn many(args: &FuseArgs, tasks: &[Task]) -> Result<End> {
    if !args.dry_run {
        no_collisions(tasks)?;
    }
    let steps = StepProgress::new("fuse", args.quiet);
    let progress = steps.progress();
    let lines = in_parallel(args, tasks, &|name, done| progress(name, done, tasks.len()));
    drop(progress);
    drop(steps);
    for (what, complaint) in lines.iter().flat_map(|line| &line.complaints) {
        out::complain(what, complaint);
    }
    warn_of_idle(&idle_everywhere(&lines));
    if args.json {
        let models: Vec<&Value> = lines.iter().map(|line| &line.json).collect();
        out::print(&out::json(&ManyJson { models })?)?;
    } else if !args.quiet {
        out::print(&table(tasks, &lines, Paint::stdout()))?;
    }
    Ok(End::worst(lines.iter().map(|line| line.end)))
}

/// Refuses to begin if two results have the same path, or if a result would replace a model that is
/// still to be read.
fn no_collisions(tasks: &[Task]) -> Result<()> {
    let mut inputs: HashMap<PathBuf, &Path> = HashMap::new();
    for task in tasks {
        // A missing file is reported when its task runs.
        inputs.extend(
            task.model
                .canonicalize()
                .ok()
                .map(|file| (file, task.model.as_path())),
        );
    }
    let mut outputs: HashMap<PathBuf, &Path> = HashMap::new();
    for Task { model, output } in tasks {
        let file = file(output.as_deref().unwrap_or(model))?;
        let shown = output.as_deref().unwrap_or(model).display();
        if let Some(input) = inputs.get(&file).filter(|_| output.is_some()) {
            let (model, input) = (model.display(), input.display());
            return Err(misused(format!(
                "the result of {model} would replace {input}, which is an input; --in-place overwrites inputs"
            )));
        }
        if let Some(other) = outputs.insert(file, model) {
            let (other, model) = (other.display(), model.display());
            return Err(misused(format!(
                "{other} and {model} would both be written to {shown}"
            )));
        }
    }
    Ok(())
}

/// The canonical path of a file that may not exist yet.
fn file(path: &Path) -> Result<PathBuf> {
    if let Ok(file) = path.canonicalize() {
        return Ok(file);
    }
    let new = destination(path).with_context(|| path.display().to_string())?;
    let folder = new.parent().and_then(|folder| folder.canonicalize().ok());
    Ok(folder
        .and_then(|folder| Some(folder.join(new.file_name()?)))
        .unwrap_or(new))
}

/// Processes the models, several at once: at most as many as requested and as fit into memory.
fn in_parallel(args: &FuseArgs, tasks: &[Task], tell: &(dyn Fn(&str, usize) + Sync)) -> Vec<Line> {
    let cores = thread::available_parallelism().ok();
    let workers = args
        .jobs
        .or(cores)
        .map_or(1, NonZeroUsize::get)
        .min(tasks.len());
    let queue = Queue {
        args,
        tasks,
        tell,
        room: Room::of_this_machine(),
        next: AtomicUsize::new(0),
        done: AtomicUsize::new(0),
        lines: Mutex::new(Vec::with_capacity(tasks.len())),
    };
    thread::scope(|scope| {
        for _ in 1..workers {
            // If no further thread can be started, the existing threads process all models.
            let _ = thread::Builder::new()
                .stack_size(STACK)
                .spawn_scoped(scope, || queue.work());
        }
        queue.work();
    });
    let mut lines = queue
        .lines
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    lines.sort_by_key(|(place, _)| *place);
    lines.into_iter().map(|(_, line)| line).collect()
}

/// The models that are left, and the lines of the finished models.
struct Queue<'q> {
    args: &'q FuseArgs,
    tasks: &'q [Task],
    tell: &'q (dyn Fn(&str, usize) + Sync),
    room: Room,
    next: AtomicUsize,
    done: AtomicUsize,
    /// The lines, each with the index of its model.
    lines: Mutex<Vec<(usize, Line)>>,
}

impl Queue<'_> {
    /// Processes one model after another until none is left.
    fn work(&self) {
        loop {
            let place = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(task) = self.tasks.get(place) else {
                return;
            };
            let line = line(self.args, task, &self.room);
            let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
            (self.tell)(&task.model.display().to_string(), done);
            self.lines
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push((place, line));
        }
    }
}

/// The JSON of several models.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct ManyJson<'j> {
    /// For each model, its report as for a single model, or the reason why it failed.
    #[cfg_attr(test, schemars(with = "Vec<ModelJson>"))]
    models: Vec<&'j Value>,
}

/// The report on one of several models.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
enum ModelJson<'j> {
    Done(Box<FuseJson<'j>>),
    Failed {
        model: JsonPath<'j>,
        /// The causes, in one line.
        error: &'j str,
    },
}

/// Processes one model, and returns its line of the report. The folded model is dropped.
fn line(args: &FuseArgs, task: &Task, room: &Room) -> Line {
    let shown = task.model.display();
    let failure = match caught(|| try_line(args, task, room)) {
        Ok(Ok(line)) => return line,
        Ok(Err(error)) => causes(&error),
        Err(fault) => format!("{shown}: {fault}"),
    };
    Line {
        end: End::Failed,
        json: serde_json::json!(ModelJson::Failed {
            model: JsonPath(&task.model),
            error: &failure,
        }),
        complaints: vec![("error", failure)],
        cells: [
            String::new(),
            String::new(),
            String::new(),
            "failed".to_owned(),
        ],
        idle: None,
    }
}

/// Waits until memory suffices for a model, then folds it.
fn try_line(args: &FuseArgs, task: &Task, room: &Room) -> Result<Line> {
    let own = task.model.metadata().map_or(0, |metadata| metadata.len());
    let mut place = room.take(own);
    let model = args.reach.open(&task.model)?;
    let all = model.read_bytes();
    if all > own {
        // The size of weights in other files is known only now, so the reservation is renewed with
        // it.
        drop(place);
        place = room.take(all);
    }
    let report = fuse(args, task, model, &|_, _, _| {})?;
    let line = report_line(args, task, &report)?;
    drop(place);
    Ok(line)
}

/// The line of one model.
fn report_line(args: &FuseArgs, task: &Task, report: &FuseReport) -> Result<Line> {
    let (folded, sites) = report.summary().total();
    let sizes = report.sizes();
    let operators = sizes.as_ref().map_or_else(String::new, |sizes| {
        let (before, after) = (&sizes.operators.before, &sizes.operators.after);
        format!("{} to {}", before.total(), after.total())
    });
    let file = match (&sizes, &report.written) {
        (Some(sizes), _) => sizes.file_bytes.after,
        (None, Some(saved)) => saved.bytes,
        (None, None) => report.before.read_bytes(),
    };
    let word = match (&sizes, &report.written) {
        (None, _) if args.dry_run => "planned",
        (None, Some(_)) => "copied",
        (None, None) => "unchanged",
        (Some(_), _) => report.judged.word(),
    };
    let shown = task.model.display();
    let complaints = report.complaints(args.when()).into_iter();
    Ok(Line {
        end: report.judged.end(args.when()),
        complaints: complaints
            .map(|(what, line)| (what, format!("{shown}: {line}")))
            .collect(),
        cells: [
            format!("{folded} of {sites}"),
            operators,
            bytes(file),
            word.to_owned(),
        ],
        json: if args.json {
            serde_json::to_value(ModelJson::Done(Box::new(report.json())))?
        } else {
            Value::Null
        },
        idle: Some(report.idle.clone()),
    })
}

/// The options that have no effect on any of the models that did not fail.
fn idle_everywhere(lines: &[Line]) -> Vec<Idle> {
    let mut idle = lines.iter().filter_map(|line| line.idle.as_ref());
    let first = idle.next().cloned().unwrap_or_default();
    let others: Vec<_> = idle.collect();
    first
        .into_iter()
        .filter(|option| others.iter().all(|idle| idle.contains(option)))
        .collect()
}

/// A table with a line for each model and a line of totals.
fn table(tasks: &[Task], lines: &[Line], paint: Paint) -> String {
    let heads = ["model", "sites", "operators", "file", "result"];
    let mut table = paint.table(&heads);
    // The name gets the width that the other columns leave, so that each model stays on one line.
    let others: usize = (0..4)
        .map(|column| widest(lines, column).max(heads[column + 1].len()) + 2)
        .sum();
    let room = table.width().map_or(usize::MAX, |width| {
        usize::from(width).saturating_sub(others).max(SHORTEST)
    });
    for (task, line) in tasks.iter().zip(lines) {
        let [sites, operators, file, word] = &line.cells;
        let tone = if line.end == End::Done {
            Tone::Good
        } else {
            Tone::Bad
        };
        let name = shortened(&plain(&task.model.display().to_string()), room);
        let mut cells: Vec<_> = [&name, sites, operators, file].map(out::cell).into();
        cells.push(paint.cell(tone, word));
        table.add_row(cells);
    }
    for (place, column) in table.column_iter_mut().enumerate() {
        column.set_constraint(ColumnConstraint::ContentWidth);
        if (1..4).contains(&place) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let failed = lines.iter().filter(|line| line.end != End::Done).count();
    let failed = if failed == 0 {
        String::new()
    } else {
        format!(", {failed} of them failed")
    };
    format!(
        "{}\n{}{failed}\n",
        out::lines(&table),
        counted(lines.len(), "model")
    )
}

/// The length of the longest cell of a column.
fn widest(lines: &[Line], column: usize) -> usize {
    let cells = lines.iter().map(|line| line.cells[column].chars().count());
    cells.max().unwrap_or_default()
}

/// Keeps the end of a long name, which is more specific than its beginning.
fn shortened(name: &str, longest: usize) -> String {
    let count = name.chars().count();
    match count <= longest {
        true => name.to_owned(),
        false => format!(
            "…{}",
            name.chars().skip(count + 1 - longest).collect::<String>()
        ),
    }
}
