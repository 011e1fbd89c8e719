//! Tests the first commands of a new user: the hint of each, and the tables on a terminal and in a
//! pipe.

use super::*;

fn copied(names: &[(&str, &Path)]) -> TempDir {
    let folder = tempdir().unwrap();
    for (name, model) in names {
        fs::copy(model, folder.path().join(name)).unwrap();
    }
    folder
}

#[test]
fn fuse_without_an_output_names_the_three_ways() {
    let run = unfold([&"fuse", &un()]);
    assert_eq!(run.code, USAGE);
    for option in ["-o OUT", "--in-place", "--dry-run"] {
        assert!(run.error().contains(option), "{}", run.stderr);
    }
}

#[test]
fn a_model_as_the_command_is_answered_with_fuse() {
    let run = unfold([&"model.onnx"]);
    assert_eq!(run.code, USAGE);
    let advice = "note: `unfold fuse model.onnx -o OUT` folds this model\n";
    assert!(run.stderr.ends_with(advice), "{}", run.stderr);
}

#[test]
fn a_folder_stands_for_the_models_in_it() {
    let folder = copied(&[
        ("b.onnx", &un()),
        ("a.onnx", &digits("ln", "legacy")),
        ("notes.txt", &un()),
    ]);
    let out = tempdir().unwrap();
    let results = out.path().join("fused");
    let run = unfold([&"fuse", &folder.path(), &"-o", &results]);
    assert_eq!(run.code, DONE, "{}", run.stderr);
    let rows: Vec<&str> = run.stdout.lines().collect();
    assert!(rows[1].contains("a.onnx") && rows[2].contains("b.onnx"));
    assert_eq!(*rows.last().unwrap(), "2 models");
    let mut names: Vec<_> = fs::read_dir(results).unwrap().collect();
    names.sort_by_key(|name| name.as_ref().unwrap().file_name());
    let names = names.into_iter().map(|name| name.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["a.onnx", "b.onnx"]);
}

#[test]
fn a_folder_without_models_is_an_error() {
    let folder = copied(&[("notes.txt", &un())]);
    let run = unfold([&"fuse", &folder.path(), &"--dry-run"]);
    assert_eq!(run.code, FAILED);
    let reason = "no file in this folder ends with .onnx";
    assert!(run.error().ends_with(reason), "{}", run.stderr);
}

#[test]
fn a_folder_with_one_model_needs_a_folder_for_its_result() {
    let folder = copied(&[("a.onnx", &un())]);
    let file = folder.path().join("b.onnx");
    let run = unfold([&"fuse", &folder.path(), &"-o", &file]);
    assert_eq!((run.code, file.exists()), (USAGE, false), "{}", run.stderr);
}

/// The system does not create folders in `/proc`, even for the root user.
#[cfg(target_os = "linux")]
#[test]
fn an_error_of_writing_has_no_name_of_a_temporary_folder() {
    let run = unfold([&"fuse", &un(), &"-o", &"/proc/out.onnx"]);
    assert_eq!(run.code, FAILED);
    assert!(run.error().contains("/proc/out.onnx"), "{}", run.stderr);
    assert!(!run.error().contains(".unfold-"), "{}", run.stderr);
}

#[test]
fn a_table_in_a_pipe_has_a_line_for_each_row_with_the_whole_name() {
    let name = "a-model-that-has-a-name-of-more-than-a-whole-line-of-the-terminal-which-nobody-would-type.onnx";
    let folder = copied(&[(name, &un()), ("b.onnx", &un())]);
    let run = unfold([&"fuse", &folder.path(), &"--dry-run"]);
    assert!(run.stdout.contains(name), "{}", run.stdout);
    assert_eq!(run.stdout.lines().count(), 5, "{}", run.stdout);
}

#[test]
fn a_table_is_as_wide_as_columns_say() {
    let at_80 = unfold_in_columns(80, [&"fuse", &un(), &"--dry-run"]).stdout;
    let at_300 = unfold_in_columns(300, [&"fuse", &un(), &"--dry-run"]).stdout;
    let piped = unfold([&"fuse", &un(), &"--dry-run"]).stdout;
    assert!(at_80.lines().all(|line| line.chars().count() <= 80));
    assert_eq!(at_300, piped);
}

#[test]
fn a_narrow_terminal_has_a_paragraph_for_each_row() {
    let run = unfold_in_columns(40, [&"inspect", &un()]);
    let first = "blocks.0.norm1.un\n  kind: UN\n  channels: 40\n  fold: forward\n  into, or why not: MatMul …attn.qkv\n";
    assert!(run.stdout.starts_with(first), "{}", run.stdout);
}

#[test]
fn inspect_says_what_centring_makes_of_layer_norms() {
    let run = unfold([&"inspect", &digits("ln", "dynamo")]);
    let line =
        "7 LN become RMSNorm, 15 constants change\n  (engines run the operators of an RMSNorm";
    assert!(run.stdout.contains(line), "{}", run.stdout);
}

#[test]
fn the_options_that_would_do_more_are_named_where_they_apply() {
    let (_folder, path) = out();
    let ln = digits("ln", "legacy");
    let run = unfold([&"fuse", &ln, &"-o", &path, &"--target", &"portable"]);
    assert!(run.stdout.contains("\n--centre: "), "{}", run.stdout);
    let run = unfold([&"fuse", &ln, &"-o", &path]);
    assert!(!run.stdout.contains("\n--centre: "), "{}", run.stdout);
}

#[test]
fn both_spellings_of_centre_are_taken() {
    let ln = digits("ln", "legacy");
    let plan = |option: &str| {
        let run = unfold([
            &"fuse",
            &ln,
            &"--dry-run",
            &"--target",
            &"portable",
            &option,
        ]);
        assert_eq!(run.code, DONE, "{}", run.stderr);
        run.stdout
    };
    assert_eq!(plan("--center"), plan("--centre"));
}

#[test]
fn a_refusal_names_the_option_that_lifts_it() {
    let run = unfold([&"fuse", &un(), &"--dry-run", &"--skip", &"UN"]);
    let line = "skipped on request; without --skip it may fold\n";
    assert!(run.stdout.contains(line), "{}", run.stdout);
}
