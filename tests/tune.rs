//! The command `unfold tune`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::cargo::cargo_bin_cmd;
use ndarray::Array4;
use ndarray_npy::write_npy;
use serde_json::Value;
use tempfile::tempdir;
use unfold::onnx::{Model, PrintedElements};

fn digits(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("models/digits/{kind}-dynamo.onnx"))
}

fn unfold(folder: &Path, args: &[&str]) -> Output {
    cargo_bin_cmd!("unfold")
        .current_dir(folder)
        .args(args)
        .output()
        .unwrap()
}

/// Tunes a digits model in a few rounds and returns the report.
fn tuned(folder: &Path, kind: &str, more: &[&str]) -> Value {
    let model = digits(kind);
    let args = ["tune", model.to_str().unwrap(), "-o", "out.onnx", "--json"];
    let output = unfold(folder, &[&args, more].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn candidate<'r>(report: &'r Value, name: &str) -> &'r Value {
    let candidates = report["candidates"].as_array().unwrap();
    candidates.iter().find(|it| it["name"] == name).unwrap()
}

#[test]
fn reported_command_reproduces_the_file() {
    let folder = tempdir().unwrap();
    for goal in ["latency", "memory"] {
        let report = tuned(folder.path(), "ln", &["--rounds", "12", "--for", goal]);
        assert_eq!(report["verified"], true);
        assert_eq!(
            (&report["rounds"], &report["engine"]),
            (&12.into(), &"tract".into())
        );
        assert_command_reproduces(folder.path(), &report);
    }
}

/// Asserts that the command of a report writes the same file as `tune`.
fn assert_command_reproduces(folder: &Path, report: &Value) {
    let out = folder.join("out.onnx");
    let file = fs::read(&out).unwrap();
    let command = report["command"].as_str().unwrap();
    let words: Vec<&str> = command
        .split(' ')
        .map(|word| word.trim_matches('\''))
        .collect();
    assert_eq!(words[0], "unfold");
    fs::remove_file(&out).unwrap();
    assert_eq!(unfold(folder, &words[1..]).status.code(), Some(0));
    assert!(fs::read(&out).unwrap() == file, "{command}");
}

#[test]
fn fixed_dimensions_are_fixed_in_each_candidate() {
    for (fix, batch) in [("batch=3", 3), ("all", 1)] {
        let folder = tempdir().unwrap();
        let report = tuned(folder.path(), "un", &["--rounds", "6", "--fix", fix]);
        let command = report["command"].as_str().unwrap();
        assert!(
            command.contains(&format!("--fix batch={batch}")),
            "{command}"
        );
        let written = Model::open(folder.path().join("out.onnx")).unwrap();
        let text = written.to_text(PrintedElements::All).unwrap();
        assert!(text.contains(&format!("(float[{batch},1,8,8] x)")));
        assert_command_reproduces(folder.path(), &report);
    }
}

#[test]
fn candidates_run_on_given_inputs() {
    let folder = tempdir().unwrap();
    let images = Array4::<f32>::zeros((5, 1, 8, 8));
    let file = folder.path().join("images.npy");
    write_npy(&file, &images).unwrap();
    let input = file.to_str().unwrap();
    let report = tuned(folder.path(), "un", &["--rounds", "6", "--input", input]);
    assert_eq!(report["sizes"], "batch=5");
}

#[test]
fn equal_candidates_are_measured_once() {
    let folder = tempdir().unwrap();
    let report = tuned(folder.path(), "bn", &["--rounds", "12"]);
    let candidates = report["candidates"].as_array().unwrap();
    let mut names: Vec<&str> = vec![];
    for candidate in candidates {
        names.push(candidate["name"].as_str().unwrap());
        names.extend(
            candidate["equal"]
                .as_array()
                .unwrap()
                .iter()
                .map(|it| it.as_str().unwrap()),
        );
        let [low, value, high] =
            ["low", "value", "high"].map(|part| candidate["ratio"][part].as_f64().unwrap());
        assert!(0.0 < low && low <= value && value <= high, "{candidate}");
        assert!(candidate["peak"].as_u64().unwrap() > 0);
    }
    names.sort_unstable();
    let mut expected = [
        "as exported",
        "fuse by default",
        "--target tract",
        "--target onnxruntime",
        "--target portable",
        "--memory 50%",
        "--memory min",
    ];
    expected.sort_unstable();
    assert_eq!(names, expected);
    // The model has no windows, so the target tract gives the same result as the default.
    let default = candidate(&report, "fuse by default");
    assert!(
        default["equal"]
            .as_array()
            .unwrap()
            .contains(&"--target tract".into())
    );
    assert_eq!(candidate(&report, "as exported")["ratio"]["value"], 1.0);
    // Folding saves more than a third of this model's time, and slicing costs time.
    assert_ne!(report["chosen"], "as exported");
    assert!(!report["chosen"].as_str().unwrap().starts_with("--memory"));
}

#[test]
fn memory_goal_writes_the_smallest_peak() {
    let folder = tempdir().unwrap();
    let more = [
        "--rounds",
        "12",
        "--for",
        "memory",
        "--max-slowdown",
        "1000",
    ];
    let report = tuned(
        folder.path(),
        "un",
        &[&more[..], &["--dim", "batch=64"]].concat(),
    );
    assert_eq!(report["sizes"], "batch=64");
    let peaks = report["candidates"].as_array().unwrap();
    let smallest = peaks.iter().map(|it| it["peak"].as_u64().unwrap()).min();
    let name = report["chosen"].as_str().unwrap();
    let chosen = candidate(&report, name)["peak"].as_f64().unwrap();
    assert!(chosen <= 1.01 * smallest.unwrap() as f64, "{report}");
    assert!(name.starts_with("--memory"), "{name}");
    let command = report["command"].as_str().unwrap();
    assert!(command.contains("--expect batch=64"), "{command}");
}

#[test]
fn table_fits_80_columns_and_ends_with_the_command() {
    let folder = tempdir().unwrap();
    let model = digits("un");
    let args = [
        "tune",
        model.to_str().unwrap(),
        "-o",
        "out.onnx",
        "--rounds",
        "6",
    ];
    let output = unfold(folder.path(), &args);
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty());
    let text = String::from_utf8(output.stdout).unwrap();
    let (others, last) = text.trim_end().rsplit_once('\n').unwrap();
    assert!(
        others.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    assert!(last.starts_with("unfold fuse "), "{last}");
    assert!(
        text.contains("in tract with batch=1, 1 thread, 6 rounds"),
        "{text}"
    );
    assert!(text.contains("the outputs agree"), "{text}");
}

#[test]
fn usage_errors_are_found_before_measuring() {
    let folder = tempdir().unwrap();
    let model = digits("un");
    let model = model.to_str().unwrap();
    let cases: [(&[&str], i32, &str); 7] = [
        (&["-o", "no/out.onnx"], 1, "there is no folder no"),
        (&["-o", model], 2, "--in-place"),
        (&["-o", "out.onnx", "--dim", "bach=2"], 2, "`bach`"),
        (&["-o", "out.onnx", "--for", "speed"], 2, "speed"),
        (&["-o", "out.onnx", "--fix", "bach=2"], 2, "--fix"),
        (
            &["-o", "out.onnx", "--fix", "batch=2", "--dim", "batch=3"],
            2,
            "measured with batch=3",
        ),
        (&["-o", "out.onnx", "--input", "no.npy"], 1, "no.npy"),
    ];
    for (more, code, expected) in cases {
        let output = unfold(folder.path(), &[&["tune", model], more].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{more:?}: {errors}");
        assert!(errors.contains(expected), "{more:?}: {errors}");
        assert!(output.stdout.is_empty());
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
