//! Checks that the old or the new model is complete after a signal ends a save at a random moment,
//! and after several saves at once.
#![cfg(unix)]

mod common;

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::Builder;
use ndarray::ArrayD;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tempfile::TempDir;
use unfold::onnx::{Model, tensor};

/// A scale before some products. Their weights are all different, and are in another file of 4 MB.
fn model(folder: &Path, scale: f64) -> PathBuf {
    const WIDTH: usize = 512;
    let mut builder = Builder::new(17);
    let mut x = builder.input("x", &["n", "512"]);
    let factor = builder.constant(&ArrayD::from_elem(vec![WIDTH], scale));
    x = builder.op("Mul", &[&x, &factor], vec![]);
    for layer in 0..4 {
        let weight = ArrayD::from_elem(vec![WIDTH, WIDTH], 10.0 * scale + f64::from(layer));
        let weight = builder.constant(&weight);
        x = builder.op("MatMul", &[&x, &weight], vec![]);
        x = builder.op("Tanh", &[&x], vec![]);
    }
    let mut model = builder.model(&[&x]);
    model.external = true;
    let path = folder.join(format!("{scale}.onnx"));
    model.save(&path).unwrap();
    path
}

/// The contents of a model: its operators, and the elements of its initializers.
fn whole(path: &Path) -> (Vec<String>, Vec<Bytes>) {
    let model = Model::open(path).unwrap();
    let operators = common::operators(&model)
        .into_iter()
        .map(str::to_owned)
        .collect();
    let initializers = model.graph().initializer.iter();
    (
        operators,
        initializers
            .map(|weight| tensor::raw(weight, model.externals()).unwrap())
            .collect(),
    )
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// The name of the data file that a model refers to.
fn data_of(path: &Path) -> String {
    let model = Model::open(path).unwrap();
    let weight = model
        .graph()
        .initializer
        .iter()
        .find(|weight| weight.is_external())
        .unwrap();
    weight.external_data[0].value().to_owned()
}

fn fuse(input: &Path, output: &Path) -> Child {
    command(input, output)
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn command(input: &Path, output: &Path) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("unfold"));
    command
        .args([
            OsStr::new("fuse"),
            input.as_os_str(),
            OsStr::new("-o"),
            output.as_os_str(),
        ])
        .args(["--quiet", "--no-verify"])
        .stdout(Stdio::null());
    command
}

/// Two models, the result of folding each of them, and the duration of folding.
struct Bench {
    folder: TempDir,
    inputs: [PathBuf; 2],
    results: [(Vec<String>, Vec<Bytes>); 2],
    time: Duration,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let inputs = [2.0, 3.0].map(|scale| model(folder.path(), scale));
        let start = Instant::now();
        let results = inputs.each_ref().map(|input| {
            let output = input.with_extension("fused.onnx");
            assert!(fuse(input, &output).wait().unwrap().success());
            whole(&output)
        });
        let time = start.elapsed() / 2;
        assert_ne!(results[0], results[1]);
        assert!(!results[0].0.contains(&"Mul".to_owned()));
        Self {
            folder,
            inputs,
            results,
            time,
        }
    }

    /// Saves the models in turn under one name, and sends a signal to each save: at a random time,
    /// or shortly after a write. `check` must hold afterwards.
    fn interrupt(&self, signal: &str, check: impl Fn(&Path)) {
        let count = env::var("UNFOLD_KILLS").map_or(40, |count| count.parse().unwrap());
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let folder = self.folder.path().join(signal);
        fs::create_dir(&folder).unwrap();
        let output = folder.join("out.onnx");
        assert!(fuse(&self.inputs[0], &output).wait().unwrap().success());
        for round in 0..count {
            let mut child = fuse(&self.inputs[(round + 1) % 2], &output);
            if round % 4 > 0 {
                let before = names_in(&folder).len();
                while names_in(&folder).len() <= before && child.try_wait().unwrap().is_none() {}
                sleep(self.time.mul_f64(random.random_range(0.0..0.4)));
            } else {
                sleep(self.time.mul_f64(random.random_range(0.0..1.2)));
            }
            if child.try_wait().unwrap().is_none() {
                Command::new("kill")
                    .args(["-s", signal, &child.id().to_string()])
                    .output()
                    .unwrap();
            }
            child.wait().unwrap();
            assert!(
                self.results.contains(&whole(&output)),
                "{round}: neither the old nor the new model"
            );
            check(&output);
        }
        assert!(fuse(&self.inputs[1], &output).wait().unwrap().success());
        assert_eq!(whole(&output), self.results[1]);
        assert_eq!(names_in(&folder), ["out.onnx".to_owned(), data_of(&output)]);
    }
}

#[test]
fn killed_save_leaves_the_old_or_the_new_model() {
    Bench::new().interrupt("KILL", |_| {});
}

#[test]
fn interrupted_save_leaves_no_temporary_files() {
    let bench = Bench::new();
    for signal in ["INT", "TERM"] {
        bench.interrupt(signal, |output| {
            assert_eq!(
                names_in(output.parent().unwrap()),
                ["out.onnx".to_owned(), data_of(output)]
            );
        });
    }
}

/// Each process reserves a name for its data file before it writes, and then removes the data file
/// of the model that it replaces.
#[test]
fn four_concurrent_saves_of_one_model_succeed() {
    let bench = Bench::new();
    let folder = bench.folder.path().join("at-once");
    fs::create_dir(&folder).unwrap();
    let output = folder.join("out.onnx");
    for round in 0..12 {
        let inputs = bench.inputs.iter().cycle().take(4);
        let begun: Vec<Child> = inputs
            .map(|input| {
                command(input, &output)
                    .stderr(Stdio::piped())
                    .spawn()
                    .unwrap()
            })
            .collect();
        for child in begun {
            let ended = child.wait_with_output().unwrap();
            assert!(
                ended.status.success(),
                "{round}: {}",
                String::from_utf8_lossy(&ended.stderr)
            );
        }
        assert!(
            bench.results.contains(&whole(&output)),
            "{round}: no model of those that were written"
        );
        assert_eq!(names_in(&folder), ["out.onnx".to_owned(), data_of(&output)]);
    }
}
