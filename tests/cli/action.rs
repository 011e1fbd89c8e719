//! Runs the scripts of the GitHub action in `docs/examples/action.yml`, as a runner executes them.

use std::env::{join_paths, split_paths, var_os};
use std::process::Command;

use super::diff::{CHAIN, saved};
use super::*;

const ACTION: &str = include_str!("../../docs/examples/action.yml");

/// A step that runs a script.
struct Step {
    /// The condition of the step; empty if it runs unless a step failed.
    condition: String,
    script: String,
}

/// The steps with a script, except the installation.
fn steps() -> Vec<Step> {
    let mut steps = vec![];
    for item in ACTION.split("\n    - ").skip(1) {
        let script = match field(item, "run") {
            "|" => block(item),
            line => line.to_owned(),
        };
        if !script.is_empty() && !script.contains("pip install") {
            steps.push(Step {
                condition: field(item, "if").to_owned(),
                script,
            });
        }
    }
    steps
}

/// The text after the name of a field in a step. Empty if the step lacks the field.
fn field<'i>(item: &'i str, name: &str) -> &'i str {
    let mut lines = item.lines().map(str::trim);
    let field = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    field.unwrap_or_default()
}

/// The lines of the script of a step.
fn block(item: &str) -> String {
    let lines = item.lines().skip_while(|line| !line.ends_with("run: |"));
    let script = lines
        .skip(1)
        .map_while(|line| line.strip_prefix("        "));
    script.collect::<Vec<_>>().join("\n")
}

/// Runs the steps for two models in a folder. Returns the exit code of each step that ran.
fn run_steps(folder: &Path, original: &Path, other: &Path) -> Vec<i32> {
    let program = Path::new(env!("CARGO_BIN_EXE_unfold")).parent().unwrap();
    let folders = split_paths(&var_os("PATH").unwrap()).collect::<Vec<_>>();
    let path = join_paths([program.to_owned()].into_iter().chain(folders)).unwrap();
    let mut codes: Vec<i32> = vec![];
    for Step { condition, script } in steps() {
        let has_failed = codes.iter().any(|&code| code != 0);
        let runs = match condition.as_str() {
            "" => !has_failed,
            "failure()" => has_failed,
            other => panic!("{other}"),
        };
        if runs {
            let output = Command::new("bash")
                .args(["-eo", "pipefail", "-c", &script])
                .current_dir(folder)
                .env("PATH", &path)
                .env("ORIGINAL", original)
                .env("OTHER", other)
                .env("ACCEPT", "rounding")
                .output()
                .unwrap();
            codes.push(output.status.code().unwrap());
        }
    }
    codes
}

#[test]
#[cfg(unix)]
fn action_passes_equal_models_and_keeps_a_report() {
    let other = CHAIN.replace("Add(m, c)", "Add(c, m)");
    let (folder, [one, two]) = saved([CHAIN, &other]);
    assert_eq!(run_steps(folder.path(), &one, &two), [DONE]);
    let report = fs::read_to_string(folder.path().join("unfold.xml")).unwrap();
    assert!(report.contains("tests=\"1\" failures=\"0\""), "{report}");
    assert!(!folder.path().join("unfold.html").exists());
}

#[test]
#[cfg(unix)]
fn action_fails_for_different_models_and_keeps_all_files() {
    let wrong = CHAIN.replace("1 2 3 4\n", "1 2 3 9\n");
    let (folder, [one, two]) = saved([CHAIN, &wrong]);
    assert_eq!(run_steps(folder.path(), &one, &two), [DIFFERS, DONE]);
    let report = fs::read_to_string(folder.path().join("unfold.xml")).unwrap();
    assert!(report.contains("<failure type=\"different\""), "{report}");
    let (_, kept) = ACTION.split_once("path: |\n").unwrap();
    let kept: Vec<&str> = kept.lines().map(str::trim).collect();
    assert_eq!(kept.len(), 4, "{kept:?}");
    for file in kept {
        assert!(folder.path().join(file).exists(), "{file}");
    }
    for part in ["a.onnx", "b.onnx"] {
        Model::open(folder.path().join("unfold-parts").join(part)).unwrap();
    }
}
