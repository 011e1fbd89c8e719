//! Tests the list of passes, the reason why a run stops, the statistics, and `--skip`.

use std::path::Path;

use assert_cmd::cargo::cargo_bin_cmd;
use serde_json::Value;
use unfold::Target;
use unfold::onnx::Model;
use unfold::{FuseOptions, Fused, Pipeline, StageInfo};

/// Runs the command. Returns the exit code, the standard output and the standard error stream.
fn unfold(args: &[&str]) -> (i32, String, String) {
    let output = cargo_bin_cmd!("unfold").args(args).output().unwrap();
    let [out, errors] = [output.stdout, output.stderr].map(String::from_utf8);
    (output.status.code().unwrap(), out.unwrap(), errors.unwrap())
}

/// The JSON of a dry run on a small transformer with UN.
fn dry_run(args: &[&str]) -> Value {
    let dry = [
        "fuse",
        "models/digits/un-dynamo.onnx",
        "--dry-run",
        "--json",
    ];
    let (code, out, errors) = unfold(&[&dry, args].concat());
    assert_eq!((code, errors.as_str()), (0, ""));
    serde_json::from_str(&out).unwrap()
}

/// A chain with two Identities before a scale that folds into a product.
fn chain() -> Model {
    Model::from_text(
        r#"<ir_version: 8, opset_import: ["" : 17]>
        chain (float[2, 4] x) => (float[2, 4] y)
        <float[4] g = {1, 2, 3, 4}, float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7}>
        {
            r = Relu(x)
            a = Identity(r)
            s = Sigmoid(a)
            b = Identity(s)
            t = Tanh(b)
            [scale] u = Mul(t, g)
            y = MatMul(u, w)
        }"#,
    )
    .unwrap()
}

/// Folds for any engine, without the skipped passes and sites.
fn fuse(model: &Model, skip: &[&str]) -> Fused {
    let options = FuseOptions {
        skip: skip.iter().map(|&word| word.to_owned()).collect(),
        max_growth: f64::INFINITY,
        target: Target::Portable,
        ..FuseOptions::default()
    };
    unfold::fuse(model, &options).unwrap()
}

fn operators(model: &Model) -> Vec<&str> {
    let nodes = model.graph().node.iter();
    nodes.map(|node| node.op_type()).collect()
}

#[test]
fn passes_command_lists_the_pipeline() {
    let (code, out, errors) = unfold(&["passes", "--json"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    let listed: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(listed["stages"], serde_json::json!(Pipeline::stages()));
    let (_, table, _) = unfold(&["passes"]);
    let mut rest = table.as_str();
    for pass in Pipeline::stages().iter().flat_map(|stage| &stage.passes) {
        let found = rest.find(pass.name);
        let at = found.unwrap_or_else(|| panic!("{} is missing in {rest}", pass.name));
        rest = &rest[at..];
    }
}

/// The row of a stage in `docs/architecture.md`.
fn documented(stage: &StageInfo) -> String {
    let mut words = vec![format!("`{}`", stage.stage)];
    words.extend(stage.after.map(|pass| format!("only after `{pass}`")));
    if let Some(bound) = stage.bound {
        words.push("to a fixpoint".into());
        words.push(format!("at most {bound} times"));
    }
    let names = stage.passes.iter().map(|pass| format!("`{}`", pass.name));
    let names: Vec<String> = names.collect();
    format!("| {} | {} |\n", words.join(", "), names.join(", "))
}

#[test]
fn architecture_page_lists_the_pipeline() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/architecture.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rows: String = Pipeline::stages().iter().map(documented).collect();
    assert!(page.contains(&rows), "docs/architecture.md lacks\n{rows}");
}

#[test]
fn stop_after_ends_the_run_after_a_pass() {
    let stopped = dry_run(&["--stop-after", "canonicalize", "--stats"]);
    let reason = serde_json::json!({ "reason": "stop-after", "pass": "canonicalize" });
    assert_eq!(stopped["stopped"], reason);
    assert_eq!(stopped["summary"]["offline"]["folded"], 0);
    let names = |json: &Value| -> Vec<String> {
        let rows = json["stats"].as_array().unwrap().iter();
        rows.map(|row| row["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert!(!names(&stopped).contains(&"fold-affines".to_owned()));
    let folded = dry_run(&["--stop-after", "fold-affines", "--stats"]);
    assert_eq!(folded["summary"]["offline"]["folded"], 7);
    assert!(!names(&folded).contains(&"clean-up".to_owned()));
    let all = dry_run(&["--stats"]);
    assert_eq!(all["stopped"], serde_json::json!({ "reason": "fixpoint" }));
    assert_eq!(dry_run(&[]).get("stats"), None);
    let wrong = unfold(&["fuse", "m.onnx", "--dry-run", "--print-after", "fold"]);
    assert_eq!(wrong.0, 2);
    let model = "models/digits/un-dynamo.onnx";
    let (code, _, errors) = unfold(&["fuse", model, "--dry-run", "--stop-after", "fold"]);
    let line = "error: --stop-after `fold`: no pass has this name; `unfold passes` lists them\n";
    assert_eq!((code, errors.as_str()), (2, line));
}

#[test]
fn statistics_count_runs_changes_and_operators() {
    let model = chain();
    let plan = fuse(&model, &[]).plan;
    let row = |name: &str| {
        let row = plan.passes.iter().find(|row| row.name == name).unwrap();
        (row.runs, row.changes, row.operators)
    };
    // One change removes both Identities, and another one folds the scale.
    assert_eq!(row("identity-elimination"), (2, 1, 2));
    assert_eq!(row("fold-affines"), (2, 1, 1));
    let all: i64 = plan.passes.iter().map(|row| row.operators).sum();
    let after = fuse(&model, &[]).model;
    assert_eq!(
        all,
        model.graph().node.len() as i64 - after.graph().node.len() as i64
    );
    assert!(plan.passes.iter().all(|row| row.seconds >= 0.0));
}

#[test]
fn skipping_a_kind_keeps_other_passes() {
    let model = chain();
    let all = ["Relu", "Sigmoid", "Tanh", "MatMul"];
    assert_eq!(operators(&fuse(&model, &[]).model), all);
    // No site has this kind.
    assert_eq!(operators(&fuse(&model, &["LN"]).model), all);
    let names = |pass: &str| {
        let fused = fuse(&model, &[pass]);
        let rows = fused.plan.passes.into_iter();
        rows.map(|row| row.name).collect::<Vec<_>>()
    };
    assert!(names("LN").contains(&"identity-elimination"));
    assert!(!names("identity-elimination").contains(&"identity-elimination"));
    assert!(!names("duplicate").contains(&"identity-elimination"));
}

#[test]
fn skipped_pass_does_not_run() {
    let model = chain();
    let skipped = fuse(&model, &["fold-affines"]);
    let folded = ["Relu", "Sigmoid", "Tanh", "Mul", "MatMul"];
    assert_eq!(operators(&skipped.model), folded);
    assert!(
        skipped
            .plan
            .passes
            .iter()
            .all(|row| row.name != "fold-affines")
    );
    let (code, _, errors) = unfold(&[
        "fuse",
        "models/digits/un-dynamo.onnx",
        "--dry-run",
        "--skip",
        "canonicalize",
        "--skip",
        "restore-regions",
    ]);
    // The pass that restores bodies cannot be skipped.
    let line = "warning: --skip `restore-regions`: no site has this name or kind\n";
    assert_eq!((code, errors.as_str()), (0, line));
}

#[test]
fn verify_each_proves_every_pass() {
    let folder = tempfile::tempdir().unwrap();
    let result = folder.path().join("out.onnx");
    let result = result.to_str().unwrap();
    let model = "models/digits/ln-dynamo.onnx";
    let (code, out, errors) = unfold(&["fuse", model, "-o", result, "--verify", "each", "--json"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    let json: Value = serde_json::from_str(&out).unwrap();
    let proofs = json["passes"].as_array().unwrap();
    let passes: Vec<&str> = proofs
        .iter()
        .map(|proof| proof["pass"].as_str().unwrap())
        .collect();
    assert!(passes.contains(&"fold-affines") && passes.contains(&"centre-streams"));
    assert!(proofs.iter().all(|proof| proof["verdict"] == "proved"));
    assert_eq!(json["proof"]["verdict"], "proved");
}
