//! Validates the JSON of each command against its schema in `docs/schema`.

use std::ffi::OsStr;

use super::*;

/// The violations of the schema with this name in a value.
fn violations(name: &str, value: &Value) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("docs/schema/{name}.json"));
    let schema: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let errors = validator.iter_errors(value);
    errors
        .map(|error| format!("{error} at {}", error.instance_path()))
        .collect()
}

/// Runs a command, and asserts that its JSON is valid by the schema.
fn assert_valid(name: &str, words: &[&dyn AsRef<OsStr>]) -> Value {
    let mut command = cargo_bin_cmd!("unfold");
    let output = command.args(words.iter().map(|word| word.as_ref()));
    let output = output.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{stderr}"));
    assert_eq!(violations(name, &json), Vec::<String>::new(), "{name}");
    json
}

#[test]
fn json_of_fuse_is_valid_for_each_kind() {
    for kind in ["un", "ln", "dyt", "dtn", "pn", "rmsnorm"] {
        let (_folder, path) = out();
        assert_valid(
            "fuse",
            &[
                &"fuse",
                &digits(kind, "legacy"),
                &"-o",
                &path,
                &"--json",
                &"--stats",
            ],
        );
    }
}

#[test]
fn json_of_fuse_is_valid_with_each_option() {
    let options: [&[&str]; 6] = [
        &["--target", "portable", "--centre"],
        &["--to", "float16"],
        &["--merge-norms"],
        &["--fix", "all", "--memory", "50%"],
        &["--verify", "each"],
        &["--dry-run"],
    ];
    for option in options {
        let (_folder, path) = out();
        let model = digits("ln", "dynamo");
        let mut words: Vec<&dyn AsRef<OsStr>> = vec![&"fuse", &model, &"--json"];
        if option != ["--dry-run"] {
            words.extend([&"-o" as &dyn AsRef<OsStr>, &path]);
        }
        words.extend(option.iter().map(|word| word as &dyn AsRef<OsStr>));
        assert_valid("fuse", &words);
    }
}

#[test]
fn json_of_several_models_is_valid_if_one_fails() {
    let folder = tempdir().unwrap();
    let broken = folder.path().join("broken.onnx");
    fs::write(&broken, "no model").unwrap();
    let to = folder.path().join("to");
    fs::create_dir(&to).unwrap();
    let json = assert_valid(
        "fuse-many",
        &[&"fuse", &un(), &broken, &"-o", &to, &"--json"],
    );
    let models = json["models"].as_array().unwrap();
    assert_eq!(models.len(), 2);
    assert!(models[1]["error"].is_string(), "{json}");
}

#[test]
fn json_of_inspect_prove_diff_passes_bench_and_tune_is_valid() {
    let (_folder, path) = out();
    assert_eq!(unfold([&"fuse", &un(), &"-o", &path]).code, DONE);
    assert_valid("inspect", &[&"inspect", &path, &"--json"]);
    let streams = digits("ln", "dynamo");
    assert_valid(
        "inspect-streams",
        &[&"inspect", &streams, &"--streams", &"--json"],
    );
    assert_valid("prove", &[&"prove", &un(), &path, &"--json"]);
    assert_valid("prove", &[&"prove", &un(), &streams, &"--json"]);
    assert_valid("diff", &[&"diff", &un(), &path, &"--json"]);
    assert_valid("passes", &[&"passes", &"--json"]);
    let rounds: [&dyn AsRef<OsStr>; 3] = [&"--rounds", &"2", &"--json"];
    assert_valid("bench", &[&"bench", &un(), rounds[0], rounds[1], rounds[2]]);
    let tuned = path.with_extension("tuned.onnx");
    assert_valid(
        "tune",
        &[
            &"tune",
            &un(),
            &"-o",
            &tuned,
            rounds[0],
            rounds[1],
            rounds[2],
        ],
    );
}

#[test]
fn schema_rejects_a_site_without_a_name() {
    let mut json = unfold([&"inspect", &un(), &"--json"]).json();
    json["sites"][0].as_object_mut().unwrap().remove("name");
    let found = violations("inspect", &json);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("name"), "{found:?}");
}
