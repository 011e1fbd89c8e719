//! Runs each command of the documentation in a shell, in a folder with small models under the names
//! in the documentation.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::{TempDir, tempdir};

use super::{pages, read};

/// Commands that are not run, with the reasons. The unit tests of the command line parse them too.
const NOT_RUN: [(&str, &str); 2] = [
    (
        "unfold bench --markdown --all --batch 1,8 --time 8",
        "measures all networks of the zoo, for hours",
    ),
    (
        "target/fresh/bin/unfold prove models/digits/un-dynamo.onnx target/fused.onnx",
        "`.ci/python` runs the transcript of this page",
    ),
];

/// A command in a sentence runs only if it has one of these words.
const OPERANDS: [&str; 6] = [
    "MODEL",
    "ORIGINAL",
    "SHELL",
    "[COMMAND]",
    "model.onnx",
    "models/digits/",
];

#[cfg(unix)]
#[test]
fn each_command_of_the_documents_runs() {
    let folder = folder();
    let mut commands: Vec<String> = pages().iter().flat_map(|page| commands(page)).collect();
    commands.sort();
    commands.dedup();
    assert!(commands.len() > 10, "{commands:#?}");
    let left_out = |command: &String| NOT_RUN.iter().any(|(other, _)| command == other);
    for command in commands.into_iter().filter(|command| !left_out(command)) {
        run(folder.path(), &command);
    }
}

/// Collects the complete commands of a page.
fn commands(page: &str) -> Vec<String> {
    let text = read(page);
    let blocks = text.split("```").skip(1).step_by(2);
    let lines = blocks.flat_map(str::lines);
    let lines = lines.map(|line| line.trim_start_matches("$ ").to_owned());
    let sentences: String = text.split("```").step_by(2).collect();
    let codes = sentences.split('`').skip(1).step_by(2);
    let codes = codes.map(|code| code.split_whitespace().collect::<Vec<_>>().join(" "));
    let is_complete = |code: &String| OPERANDS.iter().any(|operand| code.contains(operand));
    let mut commands: Vec<String> = lines.chain(codes.filter(is_complete)).collect();
    commands.retain(|command| command.split(' ').next().is_some_and(is_unfold));
    commands
}

fn is_unfold(program: &str) -> bool {
    program == "unfold" || program.ends_with("/unfold")
}

/// Creates a folder with the models that the documentation names.
fn folder() -> TempDir {
    let folder = tempdir().unwrap();
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/digits");
    let own = folder.path().join("models/digits");
    fs::create_dir_all(&own).unwrap();
    for name in ["un-dynamo.onnx", "un-legacy.onnx"] {
        fs::copy(digits.join(name), own.join(name)).unwrap();
    }
    for name in ["model.onnx", "vit-s.onnx"] {
        fs::copy(digits.join("un-dynamo.onnx"), folder.path().join(name)).unwrap();
    }
    run(folder.path(), "unfold fuse model.onnx -o fused.onnx");
    folder
}

/// Runs a command after its placeholders were replaced by names. Measurements are short.
fn run(folder: &Path, command: &str) {
    let mut line = command.replace("-o OUT", "-o out.onnx");
    for (placeholder, name) in [
        ("MODEL", "model.onnx"),
        ("ORIGINAL", "model.onnx"),
        ("OUT", "fused.onnx"),
        ("FUSED", "fused.onnx"),
        ("SHELL", "bash"),
        ("[COMMAND]", "fuse"),
    ] {
        line = line.replace(placeholder, name);
    }
    if line.starts_with("unfold bench") || line.starts_with("unfold tune") {
        line += " --rounds 2";
    }
    let binary = assert_cmd::cargo::cargo_bin!("unfold");
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", binary.parent().unwrap().display());
    let ran = Command::new("sh")
        .args(["-c", &line])
        .current_dir(folder)
        .env("PATH", path)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{command}: {error}");
}
