//! The command `unfold bench`.

mod common;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use assert_cmd::cargo::cargo_bin_cmd;
use common::beyond_tract;
use ndarray::{Array1, Array4};
use ndarray_npy::NpzWriter;
use serde_json::Value;
use tempfile::{TempDir, tempdir};
use unfold::onnx::Model;

const VARIANTS: [&str; 6] = [
    "LN twin",
    "as exported",
    "fused",
    "portable",
    "floor",
    "sliced",
];

fn digits(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("models/digits/{kind}-dynamo.onnx"))
}

/// The output of the program, and its exit code.
fn bench(args: &[&str]) -> (i32, String) {
    let output = cargo_bin_cmd!("unfold")
        .env("COLUMNS", "80")
        .arg("bench")
        .args(args)
        .arg("--quiet")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stdout).unwrap(),
    )
}

fn report(args: &[&str]) -> Value {
    let (code, text) = bench(&[args, &["--json"]].concat());
    assert_eq!(code, 0, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// The variants that ran in the only setting of a report: names and measurements.
fn ran(report: &Value) -> Vec<(&str, &Value)> {
    assert_eq!(report["settings"].as_array().unwrap().len(), 1);
    let variants = report["settings"][0]["variants"].as_array().unwrap();
    variants
        .iter()
        .filter_map(|v| Some((v["name"].as_str()?, v["outcome"].get("ran")?)))
        .collect()
}

/// A digits model that tract cannot run.
fn beyond() -> (TempDir, PathBuf) {
    let mut model = Model::open(digits("un")).unwrap();
    beyond_tract(&mut model.proto);
    let folder = tempdir().unwrap();
    let path = folder.path().join("beyond.onnx");
    model.save(&path).unwrap();
    (folder, path)
}

#[test]
fn report_has_four_variants_and_folding_adds_no_memory() {
    for kind in ["un", "bn", "mabn", "pnstar", "dyt", "ln", "dtn"] {
        let report = report(&[
            digits(kind).to_str().unwrap(),
            "--rounds",
            "10",
            "--batch",
            "8",
        ]);
        let ran = ran(&report);
        // For a target of any engine, a product and its bias are two operators.
        let names: Vec<&str> = ran.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, VARIANTS, "{kind}");
        assert_eq!(report["settings"][0]["rounds"], 10);
        for (name, measured) in &ran {
            let median = &measured["latency"]["median"];
            let [low, value, high] =
                ["low", "value", "high"].map(|what| median[what].as_f64().unwrap());
            assert!(
                0.0 < low && low <= value && value <= high,
                "{kind} {name}: {median}"
            );
            let ratios = measured["ratios"].as_array().unwrap();
            assert!(
                ratios.iter().all(|ratio| ratio["rounds"] == 10),
                "{kind} {name}"
            );
            let throughput = measured["latency"]["throughput"].as_f64().unwrap();
            assert!(
                (throughput * value - 8.0).abs() < 1e-6,
                "{kind} {name}: 8 samples in each run"
            );
        }
        let bytes = |variant: usize, what: &str| ran[variant].1["memory"][what].as_u64().unwrap();
        assert!(bytes(2, "live_peak") <= bytes(1, "live_peak"), "{kind}");
        assert!(bytes(2, "allocated") <= bytes(1, "allocated"), "{kind}");
        let defined = report["notes"][0].as_str().unwrap();
        assert!(
            defined.contains("fused is the result of `unfold fuse`, --target cpu"),
            "{defined}"
        );
        let said = report["notes"][1].as_str().unwrap();
        assert!(
            said.starts_with("With batch=8, fused and as exported agree: "),
            "{kind}: {said}"
        );
        assert_eq!(report["differs"], false);
    }
}

/// Results that do not depend on the machine are equal in every run.
#[test]
fn memory_figures_are_equal_in_two_runs() {
    let run = || report(&[digits("un").to_str().unwrap(), "--rounds", "10"]);
    let (first, second) = (run(), run());
    for ((name, one), (_, other)) in ran(&first).iter().zip(ran(&second)) {
        for what in [
            "live_peak",
            "live_peak_at",
            "curve",
            "allocated",
            "heap_peak",
        ] {
            assert_eq!(one["memory"][what], other["memory"][what], "{name} {what}");
        }
        assert_eq!(one["file_bytes"], other["file_bytes"], "{name}");
    }
    assert_eq!(first["sites"], second["sites"]);
}

#[test]
fn variant_that_tract_cannot_load_is_named_and_the_rest_run() {
    let (_folder, beyond) = beyond();
    let beyond = format!("beyond={}", beyond.display());
    let (code, text) = bench(&[&beyond, digits("un").to_str().unwrap(), "--rounds", "3"]);
    assert_eq!(code, 0, "{text}");
    let reason = "beyond: tract cannot load Mystery `last`: tract has no operators of the domain `com.example`";
    assert!(text.lines().any(|line| line == reason), "{text}");
    assert!(
        text.lines().any(|line| line.starts_with("un-dynamo ")),
        "{text}"
    );

    let (code, text) = bench(&[&beyond, "--rounds", "3"]);
    assert_eq!(code, 1, "{text}");
}

/// The line of an error, and its exit code.
fn error(args: &[&str]) -> (i32, String) {
    let output = cargo_bin_cmd!("unfold")
        .arg("bench")
        .args(args)
        .arg("--quiet")
        .output()
        .unwrap();
    assert_eq!(output.stdout, b"");
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(line.lines().count(), 1, "{line}");
    (output.status.code().unwrap(), line)
}

#[test]
fn unknown_network_or_variant_is_a_one_line_error() {
    let (code, line) = error(&["nosuchnet"]);
    assert_eq!(
        (
            code,
            line.starts_with("error: nosuchnet is neither a file nor a network")
        ),
        (1, true),
        "{line}"
    );
    let un = digits("un");
    let (code, line) = error(&[
        un.to_str().unwrap(),
        "--reference",
        "fused",
        "--reference",
        "nosuch",
    ]);
    let there = "there are LN twin, as exported, fused, portable, floor, sliced\n";
    assert_eq!(
        (code, line),
        (
            2,
            format!("error: --reference: there is no variant `nosuch`; {there}")
        )
    );
    let (code, line) = error(&["--reference", "nosuch"]);
    assert_eq!(
        (
            code,
            line.contains("there is no variant `nosuch`; there are LN twin, ")
        ),
        (2, true),
        "{line}"
    );
}

#[test]
fn contradicting_arguments_are_usage_errors() {
    let un = digits("un");
    let un = un.to_str().unwrap();
    let refused = |args: &[&str], reason: &str| {
        let (code, line) = error(args);
        assert_eq!((code, line), (2, format!("error: {reason}\n")));
    };
    refused(
        &[un, un],
        "two variants are called `un-dynamo`; NAME=FILE gives them names",
    );
    refused(
        &[un, "--batch", "2", "--dim", "batch=3"],
        "--batch and --dim give the same dimension a size",
    );
}

#[test]
fn one_round_is_reported_in_the_singular() {
    let (code, text) = bench(&[
        digits("un").to_str().unwrap(),
        "--rounds",
        "1",
        "--reference",
        "fused",
    ]);
    assert_eq!(code, 0, "{text}");
    assert!(
        text.lines()
            .any(|line| line == "batch=1, one thread, one round"),
        "{text}"
    );
}

#[test]
fn report_lines_fit_80_columns() {
    let (code, text) = bench(&[digits("un").to_str().unwrap(), "--rounds", "3"]);
    assert_eq!(code, 0, "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    let line = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
    // Each variant has a row in the tables of latency, memory and time, and a bar.
    assert!(VARIANTS.iter().all(|name| line(name) >= 4), "{text}");
}

/// If a dimension has no size, it gets the size in the array.
#[test]
fn input_option_reads_npy_and_npz() {
    let folder = tempdir().unwrap();
    let model = digits("un");
    let model = model.to_str().unwrap();
    let name = Model::open(model).unwrap().graph().input[0]
        .name()
        .to_owned();
    let values = Array4::<f32>::ones((5, 1, 8, 8));
    let (one, all) = (folder.path().join("x.npy"), folder.path().join("all.npz"));
    ndarray_npy::write_npy(&one, &values).unwrap();
    let mut archive = NpzWriter::new(File::create(&all).unwrap());
    archive.add_array(name, &values).unwrap();
    archive.finish().unwrap();
    for file in [&one, &all] {
        let report = report(&[model, "--rounds", "3", "--input", file.to_str().unwrap()]);
        assert_eq!(report["settings"][0]["label"], "batch=5");
        let latency = &ran(&report)[0].1["latency"];
        let samples =
            latency["throughput"].as_f64().unwrap() * latency["median"]["value"].as_f64().unwrap();
        assert!((samples - 5.0).abs() < 1e-6, "{samples}");
    }
}

#[test]
fn unfitting_input_file_is_a_one_line_error() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("x.npy");
    let model = digits("un");
    let error = |file: &Path| {
        let args = [
            "bench",
            model.to_str().unwrap(),
            "--quiet",
            "--input",
            file.to_str().unwrap(),
        ];
        let output = cargo_bin_cmd!("unfold").args(args).output().unwrap();
        assert_eq!(
            (output.status.code(), output.stdout.as_slice()),
            (Some(1), &[][..])
        );
        let line = String::from_utf8(output.stderr).unwrap();
        assert!(
            line.starts_with(&format!("error: {}: ", file.display())) && line.lines().count() == 1,
            "{line}"
        );
        line
    };
    ndarray_npy::write_npy(&file, &Array4::<f64>::zeros((5, 1, 8, 8))).unwrap();
    assert!(error(&file).contains("the input `"));
    ndarray_npy::write_npy(&file, &Array1::<f32>::zeros(3)).unwrap();
    assert!(error(&file).contains("4 dimensions, and 1 were given"));
    let text = folder.path().join("x.txt");
    fs::write(&text, "").unwrap();
    assert!(error(&text).contains("it is neither .npy nor .npz"));
}

#[test]
fn html_page_lists_every_variant_and_site() {
    let folder = tempdir().unwrap();
    let page = folder.path().join("page.html");
    let report = report(&[
        digits("un").to_str().unwrap(),
        "--rounds",
        "3",
        "--html",
        page.to_str().unwrap(),
    ]);
    let page = fs::read_to_string(page).unwrap();
    for name in VARIANTS.into_iter().chain(
        report["sites"]
            .as_array()
            .unwrap()
            .iter()
            .map(|site| site["name"].as_str().unwrap()),
    ) {
        assert!(page.contains(name), "{name}");
    }
}

/// An interrupted measurement prints its results so far.
#[cfg(unix)]
#[test]
fn interrupt_prints_the_rounds_so_far() {
    use std::process::{Command, Stdio};
    use std::thread::sleep;
    use std::time::Duration;

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    let child = Command::new(assert_cmd::cargo::cargo_bin!("unfold"))
        .args(["bench", "--json", "--rounds", "1000000000"])
        .arg(digits("un"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // A round takes milliseconds.
    sleep(Duration::from_secs(5));
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["settings"][0]["interrupted"], true);
    assert!(report["settings"][0]["rounds"].as_u64().unwrap() > 0);
    assert_eq!(ran(&report).len(), VARIANTS.len());
}
