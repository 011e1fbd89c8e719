//! The commands of `unfold`: output, exit codes, files.

#[path = "cli/action.rs"]
mod action;
mod common;
#[path = "cli/diff.rs"]
mod diff;
#[path = "cli/first_steps.rs"]
mod first_steps;
#[path = "cli/json_schema.rs"]
mod json_schema;
#[path = "cli/reduce.rs"]
mod reduce;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::cargo::cargo_bin_cmd;
use bytes::Bytes;
use common::{beyond_tract, text};
use prost::Message;
use serde_json::Value;
use tempfile::{TempDir, tempdir};
use unfold::onnx::Model;
use unfold::onnx::proto::{
    AttributeProto, Dim, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    TensorProto,
};
use unfold::onnx::{DataType, tensor};

const OFFLINE: [&str; 6] = ["bn", "bnt", "repbn", "un", "mabn", "pnstar"];
const EXPORTERS: [&str; 2] = ["dynamo", "legacy"];

/// The exit codes that `--help` states.
const DONE: i32 = 0;
const FAILED: i32 = 1;
const USAGE: i32 = 2;
const DIFFERS: i32 = 3;
const UNVERIFIED: i32 = 4;
const ROUNDED: i32 = 5;
const CASTS: i32 = 6;

fn digits(kind: &str, exporter: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("models/digits/{kind}-{exporter}.onnx"))
}

fn un() -> PathBuf {
    digits("un", "dynamo")
}

/// The exit code and the output of a run of the program.
struct Run {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Run {
    fn json(&self) -> Value {
        assert_eq!(self.code, DONE, "{}", self.stderr);
        serde_json::from_str(&self.stdout).unwrap()
    }

    /// The only line of an error.
    fn error(&self) -> &str {
        let line = self.stderr.trim_end();
        assert!(
            line.starts_with("error: ") && !line.contains('\n'),
            "{line:?}"
        );
        assert_eq!(self.stdout, "");
        line
    }
}

fn unfold<const N: usize>(args: [&dyn AsRef<std::ffi::OsStr>; N]) -> Run {
    let mut command = cargo_bin_cmd!("unfold");
    command.env_remove("COLUMNS");
    run(&mut command, args)
}

/// Runs the program on a terminal of this width.
fn unfold_in_columns<const N: usize>(
    columns: usize,
    args: [&dyn AsRef<std::ffi::OsStr>; N],
) -> Run {
    let mut command = cargo_bin_cmd!("unfold");
    command.env("COLUMNS", columns.to_string());
    run(&mut command, args)
}

fn run<const N: usize>(
    command: &mut assert_cmd::Command,
    args: [&dyn AsRef<std::ffi::OsStr>; N],
) -> Run {
    let args = args.map(|arg| arg.as_ref().to_owned());
    let output: Output = command.args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Run {
        code: output.status.code().unwrap(),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// A new folder, and the path of a file in it.
fn out() -> (TempDir, PathBuf) {
    let folder = tempdir().unwrap();
    let path = folder.path().join("out.onnx");
    (folder, path)
}

fn names_in(folder: &TempDir) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Saves the UN model in a new folder after a change to its message.
fn changed(change: impl FnOnce(&mut ModelProto)) -> (TempDir, PathBuf) {
    let mut model = Model::open(un()).unwrap();
    change(&mut model.proto);
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    model.save(&path).unwrap();
    (folder, path)
}

fn nodes(proto: &mut ModelProto) -> &mut Vec<NodeProto> {
    &mut proto.graph.as_mut().unwrap().node
}

#[test]
fn fuse_folds_and_verifies_every_offline_kind() {
    for kind in OFFLINE {
        for exporter in EXPORTERS {
            let (folder, path) = out();
            let run = unfold([
                &"fuse",
                &digits(kind, exporter),
                &"-o",
                &path,
                &"--json",
                &"--verify",
                &"require",
            ]);
            let json = run.json();
            assert_eq!(json["summary"]["offline"]["sites"], 7, "{kind}-{exporter}");
            assert_eq!(json["summary"]["offline"]["folded"], 7, "{kind}-{exporter}");
            assert_eq!(json["verified"], true, "{kind}-{exporter}");
            assert_eq!(run.stderr, "", "{kind}-{exporter}");
            assert_eq!(names_in(&folder), ["out.onnx"]);
            assert!(
                Model::open(&path).unwrap().graph().node.len()
                    < json["result"]["operators"]["before"]
                        .as_object()
                        .unwrap()
                        .values()
                        .map(|count| count.as_u64().unwrap() as usize)
                        .sum::<usize>()
            );
        }
    }
}

/// The body of an inlined function is planned, and its operators exist only there.
#[test]
fn plan_names_operators_of_an_inlined_function() {
    let mut model = common::text::model(
        "input x batch 4
         scale g 4
         weight w 4 4
         y = NormLinear(x, g, w)
         output y",
    );
    let names = |list: &str| list.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let step =
        |op: &str, inputs: [&str; 2], output: &str| common::node(op, &inputs, &[output], vec![]);
    let domain = Some("my.modules".to_owned());
    let versions = [(None, 17), (domain.clone(), 1)];
    let versions = versions.map(|(domain, version)| OperatorSetIdProto {
        domain,
        version: Some(version),
    });
    model.graph_mut().node[0].domain = domain.clone();
    model.proto.opset_import = versions.to_vec();
    model.proto.functions = vec![FunctionProto {
        name: Some("NormLinear".into()),
        domain,
        input: names("v gamma weight"),
        output: names("out"),
        node: vec![
            step("Mul", ["v", "gamma"], "scaled"),
            step("MatMul", ["scaled", "weight"], "out"),
        ],
        opset_import: versions.to_vec(),
        ..Default::default()
    }];
    let (_folder, path) = out();
    model.save(&path).unwrap();
    for run in [
        unfold([&"inspect", &path]),
        unfold([&"fuse", &path, &"--dry-run"]),
    ] {
        assert!(run.stdout.contains("forward  MatMul "), "{}", run.stdout);
    }
}

#[test]
fn second_fuse_reports_nothing_to_fold() {
    for exporter in EXPORTERS {
        let (folder, once) = out();
        let twice = folder.path().join("twice.onnx");
        assert_eq!(
            unfold([&"fuse", &digits("un", exporter), &"-o", &once]).code,
            DONE
        );
        let again = unfold([&"fuse", &once, &"-o", &twice]);
        assert_eq!(again.code, DONE, "{}", again.stderr);
        assert!(again.stdout.contains("nothing to fold"), "{}", again.stdout);
        assert_eq!(fs::read(once).unwrap(), fs::read(twice).unwrap());
    }
}

#[test]
fn model_without_folds_is_copied_byte_for_byte() {
    // No writer puts the first field last, as this file does.
    let model = Model::open(digits("none", "dynamo"))
        .unwrap()
        .into_memory()
        .unwrap();
    let mut version_last = ModelProto {
        ir_version: None,
        ..model.proto
    }
    .encode_to_vec();
    version_last.extend([0x08, 0x0a]);
    let (folder, path) = out();
    fs::write(&path, version_last).unwrap();
    let fused = folder.path().join("fused.onnx");
    let run = unfold([&"fuse", &path, &"-o", &fused, &"--json", &"--skip", &"*"]);
    assert_eq!(run.json()["changed"], false);
    assert_eq!(fs::read(path).unwrap(), fs::read(fused).unwrap());
}

#[test]
fn inspect_lists_the_sites() {
    let run = unfold([&"inspect", &un()]);
    assert_eq!((run.code, run.stderr.as_str()), (DONE, ""));
    assert!(
        run.stdout.lines().all(|line| line.chars().count() <= 80),
        "{}",
        run.stdout
    );
    assert!(run.stdout.contains("forward"), "{}", run.stdout);
    assert!(
        run.stdout.contains("7 of 7 offline sites"),
        "{}",
        run.stdout
    );
    assert!(!run.stdout.contains('\x1b'), "{}", run.stdout);
}

#[test]
fn operator_that_stays_before_a_mean_is_reported_with_a_reason() {
    let model = common::text::model(
        "input x batch 6 64
         weight w 64 64
         scale g 64
         shift b 64
         s = Sigmoid(x)
         p = MatMul(s, w)
         n = LayerNormalization(p, g, b)
         y = ReduceMean(n) axes=[1]
         output y",
    );
    let (_folder, path) = out();
    model.save(&path).unwrap();
    for run in [
        unfold([&"inspect", &path]),
        unfold([&"fuse", &path, &"--dry-run"]),
    ] {
        let text = run.stdout.replace('\n', " ");
        let reason = "could move (pooling): 4096·batch multiply-adds instead of 24576·batch";
        assert!(text.contains(reason), "{text}");
        assert!(text.contains("no linear operator"), "{text}");
    }
    let placed = &unfold([&"inspect", &path, &"--json"]).json()["placed"][0];
    assert_eq!(placed["why"]["reason"]["kind"], "not-linear");
}

#[test]
fn site_lists_beyond_200_are_counted() {
    let row: String = (0..203)
        .map(|i| format!("n{i} = Mul(v{i}, g)\n v{} = Relu(n{i})\n", i + 1))
        .collect();
    let model = text::model(&format!(
        "input x 2 4\n scale g 4\n v0 = Relu(x)\n {row} output v203"
    ));
    let (_folder, path) = out();
    model.save(&path).unwrap();
    for run in [
        unfold([&"inspect", &path]),
        unfold([&"fuse", &path, &"--dry-run", &"--verbose"]),
    ] {
        assert_eq!((run.code, run.stderr.as_str()), (DONE, ""));
        let listed: Vec<&str> = run
            .stdout
            .lines()
            .filter_map(|line| line.split(' ').next()?.strip_prefix("Mul_n"))
            .collect();
        assert_eq!(listed, (0..200).map(|i| i.to_string()).collect::<Vec<_>>());
        assert!(
            run.stdout.contains("\n... and 3 more; --json lists all\n"),
            "{}",
            run.stdout
        );
        assert!(
            run.stdout.contains("0 of 203 offline sites fold"),
            "{}",
            run.stdout
        );
    }
    let grouped = unfold([&"fuse", &path, &"--dry-run"]).stdout;
    let rows: Vec<&str> = grouped
        .lines()
        .skip(1)
        .take_while(|line| !line.is_empty())
        .collect();
    assert_eq!(rows.len(), 1, "{grouped}");
    assert!(rows[0].starts_with("203 sites  "), "{grouped}");
    assert_eq!(
        unfold([&"inspect", &path, &"--json"]).json()["sites"]
            .as_array()
            .unwrap()
            .len(),
        203
    );
}

#[test]
fn inspect_reads_every_digits_model_in_80_columns() {
    for entry in fs::read_dir(un().parent().unwrap()).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "onnx")
        {
            let run = unfold_in_columns(80, [&"inspect", &path]);
            assert_eq!(
                (run.code, run.stderr.as_str()),
                (DONE, ""),
                "{}",
                path.display()
            );
            let mut lines = run.stdout.lines();
            // A sentence about a stream contains its full name, so it may be longer.
            assert!(
                lines.all(|line| line.chars().count() <= 80 || line.starts_with("stream ")),
                "{}",
                run.stdout
            );
        }
    }
}

#[test]
fn html_option_writes_a_page_and_overwrites_only_pages() {
    let (folder, model) = out();
    fs::copy(un(), &model).unwrap();
    let page = folder.path().join("page.html");
    for _ in 0..2 {
        let run = unfold([&"inspect", &model, &"--html", &page]);
        assert_eq!((run.code, run.stderr.as_str()), (DONE, ""));
        let told = unfold([&"inspect", &model]).stdout;
        let written = format!("page written to {}\n", page.display());
        assert_eq!(run.stdout, told + &written);
    }
    let text = fs::read_to_string(&page).unwrap();
    assert!(text.starts_with("<!doctype html>") && text.contains("<h1>out.onnx</h1>"));
    let plan = unfold([&"fuse", &model, &"--dry-run", &"--json"]).json();
    for tensor in plan["tensors"].as_array().unwrap() {
        assert!(
            text.contains(&format!("\"formula\":{}", tensor["formula"])),
            "{tensor}"
        );
    }
    let before = fs::read(&model).unwrap();
    for command in ["inspect", "bench"] {
        let run = unfold([&command, &model, &"--html", &model]);
        assert_eq!(run.code, FAILED);
        assert!(
            run.error()
                .ends_with("exists and is no page, and is not overwritten"),
            "{}",
            run.stderr
        );
        assert_eq!(fs::read(&model).unwrap(), before);
    }
}

#[test]
fn html_option_rejects_a_missing_folder_before_work() {
    let folder = tempdir().unwrap();
    let nowhere = folder.path().join("no").join("page.html");
    for command in ["inspect", "bench"] {
        let run = unfold([&command, &un(), &"--html", &nowhere]);
        assert_eq!(run.code, FAILED);
        assert!(run.error().contains("there is no folder"), "{}", run.stderr);
        let run = unfold([&command, &un(), &"--html", &folder.path()]);
        assert!(run.error().ends_with("is a folder"), "{}", run.stderr);
    }
    assert!(names_in(&folder).is_empty());
}

#[test]
fn inspect_lists_the_streams() {
    let path = digits("ln", "dynamo");
    let run = unfold_in_columns(80, [&"inspect", &path, &"--streams"]);
    assert_eq!((run.code, run.stderr.as_str()), (DONE, ""));
    assert!(
        run.stdout.lines().all(|line| line.chars().count() <= 80),
        "{}",
        run.stdout
    );
    let listed = unfold([&"inspect", &path, &"--streams", &"--json"]).json();
    let [stream] = &listed["streams"].as_array().unwrap()[..] else {
        panic!("{listed:#}")
    };
    assert_eq!(
        (&stream["channels"], &stream["centring"]["outcome"]),
        (&40.into(), &"centred".into())
    );
    assert_eq!(stream["scaling"]["outcome"], "scaled");
    assert_eq!(
        stream["scaling"]["multiplied"].as_array().unwrap().len(),
        0,
        "{listed:#}"
    );
    let kinds = |who: &str| -> Vec<String> {
        let members = stream[who].as_array().unwrap().iter();
        members
            .map(|member| member["kind"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(kinds("readers"), ["LN"; 7]);
    assert!(
        kinds("writers")
            .iter()
            .all(|kind| kind == "linear" || kind == "constant"),
        "{listed:#}"
    );
}

#[test]
fn centred_model_is_reported_and_proved() {
    let (_folder, path) = out();
    let run = unfold([
        &"fuse",
        &digits("ln", "legacy"),
        &"-o",
        &path,
        &"--centre",
        &"--verify",
        &"prove",
    ]);
    assert_eq!((run.code, run.stderr.as_str()), (DONE, ""));
    assert!(
        run.stdout
            .contains("(40 channels) centred: 7 LN become RMSNorm"),
        "{}",
        run.stdout
    );
    assert!(provenance(&path).contains(&(
        "unfold.options".into(),
        r#"{"centre":true,"skip":[],"target":"cpu"}"#.into()
    )));
    let again = unfold([&"fuse", &path, &"--dry-run", &"--centre"]);
    assert!(again.stdout.contains("nothing to fold"), "{}", again.stdout);
}

#[test]
fn merge_norms_reports_its_error_and_fails_verify_require() {
    let text = "input x batch 3 4\n weight w 4 6\n const e = 0.000001\n const two = 2
         s = Pow(x, two)\n m = ReduceMean(s) axes=[-1] keepdims=1\n v = Add(m, e)\n r = Sqrt(v)\n n = Div(x, r)
         z = MatMul(n, w)\n scale g 6\n shift t 6\n y = LayerNormalization(z, g, t)\n output y";
    let (folder, path) = out();
    let model = folder.path().join("norms.onnx");
    text::model(text).save(&model).unwrap();
    let run = unfold([&"fuse", &model, &"-o", &path, &"--merge-norms"]);
    assert_eq!(
        (run.code, run.stderr.as_str()),
        (DONE, ""),
        "{}",
        run.stdout
    );
    assert!(
        run.stdout
            .contains(" is gone, before LayerNormalization_y\n"),
        "{}",
        run.stdout
    );
    assert!(
        run.stdout
            .contains("what follows makes the same up to a part of "),
        "{}",
        run.stdout
    );
    let options = (
        "unfold.options".into(),
        r#"{"merge_norms":true,"skip":[],"target":"cpu"}"#.into(),
    );
    assert!(provenance(&path).contains(&options));
    let json = unfold([&"fuse", &model, &"-o", &path, &"--merge-norms", &"--json"]).json();
    assert!(
        (1e-9..1e-3).contains(&json["slack"].as_f64().unwrap()),
        "{}",
        json["slack"]
    );
    assert_eq!(json["merged"][0]["followers"][0]["value"], "z");
    let unverified = unfold([&"fuse", &model, &"--dry-run", &"--merge-norms"]);
    assert!(
        unverified.stdout.contains("up to 5e-6·|1/u - 1/v|"),
        "{}",
        unverified.stdout
    );
    // The result is another function, so a proof finds a difference.
    let proved = unfold([
        &"fuse",
        &model,
        &"-o",
        &path,
        &"--merge-norms",
        &"--verify",
        &"prove",
    ]);
    assert_eq!(proved.code, DIFFERS, "{}{}", proved.stdout, proved.stderr);
    // If the model cannot run, no proof is attempted.
    let made = "input i batch 3 4\n weight k 4 4\n x = com.microsoft.TransposeMatMul(i, k)";
    let fused = text.replace("input x batch 3 4", made);
    text::model(&fused).save(&model).unwrap();
    let unknown = unfold([&"fuse", &model, &"-o", &path, &"--merge-norms"]);
    assert_eq!(unknown.code, DONE, "{}{}", unknown.stdout, unknown.stderr);
    assert!(
        unknown.stderr.contains("the result could not be verified"),
        "{}",
        unknown.stderr
    );
    let required = unfold([
        &"fuse",
        &model,
        &"-o",
        &path,
        &"--merge-norms",
        &"--verify",
        &"require",
    ]);
    assert_eq!(
        required.code, UNVERIFIED,
        "{}{}",
        required.stdout, required.stderr
    );
}

/// Programs rely on these names.
#[test]
fn json_has_the_documented_fields() {
    let keys = |value: &Value| {
        value
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    let inspected = unfold([&"inspect", &un(), &"--json"]).json();
    assert_eq!(
        keys(&inspected),
        ["model", "sites", "stopped", "summary", "tidy"]
    );
    assert_eq!(inspected["stopped"]["reason"], "fixpoint");
    assert_eq!(
        keys(&inspected["tidy"]),
        ["biased", "constants", "duplicates"]
    );
    let tidied = unfold([&"inspect", &digits("un", "legacy"), &"--json"]).json();
    assert_eq!(
        keys(&tidied),
        ["model", "sites", "stopped", "summary", "tidy"]
    );
    assert_eq!(keys(&tidied["tidy"]), ["biased", "constants", "duplicates"]);
    let site = &inspected["sites"][0];
    assert_eq!(
        keys(site),
        [
            "axis", "channels", "core", "folded", "kind", "name", "nodes", "post", "pre"
        ]
    );
    assert_eq!(site["kind"]["name"], "UN");
    assert_eq!(site["kind"]["family"], "offline");
    assert_eq!(site["post"]["outcome"], "folded");
    assert_eq!(site["post"]["direction"], "forward");
    assert_eq!(
        keys(&inspected["summary"]),
        ["linear", "offline", "online", "pointwise", "scale"]
    );
    assert_eq!(
        keys(&inspected["summary"]["offline"]),
        ["folded", "partly", "sites"]
    );

    let (_folder, path) = out();
    let fused = unfold([&"fuse", &un(), &"-o", &path, &"--json"]).json();
    let expected = [
        "changed",
        "model",
        "result",
        "sites",
        "stopped",
        "summary",
        "target",
        "tensors",
        "tidy",
        "verification",
        "verified",
        "written",
    ];
    assert_eq!(keys(&fused), expected);
    assert_eq!(
        keys(&fused["tensors"][0]),
        ["data_type", "formula", "inputs", "name", "shape", "sites"]
    );
    assert_eq!(
        keys(&fused["result"]),
        ["file_bytes", "operators", "weight_bytes"]
    );
    assert_eq!(keys(&fused["result"]["file_bytes"]), ["after", "before"]);
    assert_eq!(fused["written"], path.to_str().unwrap());
    assert_eq!(fused["tensors"][0]["data_type"], "float32");
    assert_eq!(fused["verification"]["verdict"], "compared");
    assert_eq!(fused["verification"]["outputs"][0]["mismatched"], 0);
}

#[test]
fn dry_run_writes_nothing() {
    let (folder, path) = out();
    let run = unfold([&"fuse", &un(), &"-o", &path, &"--dry-run"]);
    assert_eq!(run.code, DONE);
    assert!(
        run.stdout.contains("7 of 7 offline sites"),
        "{}",
        run.stdout
    );
    assert!(run.stdout.contains("nothing was written"), "{}", run.stdout);
    assert_eq!(names_in(&folder), [""; 0]);
    let json = unfold([&"fuse", &un(), &"--dry-run", &"--json"]).json();
    assert_eq!(
        (&json["written"], &json["result"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(json["changed"], true);
    let left = unfold([&"fuse", &un(), &"--dry-run", &"--json", &"--skip", &"*"]).json();
    assert_eq!(left["changed"], false);
}

#[test]
fn dry_run_json_has_the_formula_of_each_new_tensor() {
    let json = unfold([&"fuse", &un(), &"--dry-run", &"--json"]).json();
    let tensors = json["tensors"].as_array().unwrap();
    let mlp = tensors
        .iter()
        .find(|tensor| tensor["sites"] == serde_json::json!(["blocks.0.norm2.un"]))
        .unwrap();
    // W·diag(γ/σ), as in Algorithm 1 of the UN paper.
    assert_eq!(
        mlp["formula"],
        "mul(val_122, reshape(mul(div(1, sqrt_1), view_10), [40, 1]))"
    );
    assert_eq!(
        mlp["inputs"],
        serde_json::json!(["sqrt_1", "val_122", "view_10"])
    );
    assert_eq!(mlp["shape"], serde_json::json!([40, 80]));
    // Each of the seven layers has a new weight and a new bias.
    assert_eq!(tensors.len(), 14);
}

#[test]
fn skip_accepts_names_globs_and_kinds() {
    let folded = |skip: &str| {
        let json = unfold([&"fuse", &un(), &"--dry-run", &"--json", &"--skip", &skip]).json();
        let sites = json["sites"].as_array().unwrap().clone();
        let offline = sites
            .iter()
            .filter(|site| site["kind"]["family"] == "offline");
        let (folded, kept): (Vec<_>, Vec<_>) = offline.partition(|site| site["folded"] == true);
        for site in &kept {
            assert_eq!(site["post"]["forward"]["reason"]["kind"], "skipped");
        }
        (folded.len(), kept.len())
    };
    assert_eq!(folded("UN"), (0, 7));
    assert_eq!(folded("blocks.0.*"), (5, 2));
    assert_eq!(folded("blocks.?.norm1*"), (4, 3));
    let both = unfold([
        &"fuse",
        &un(),
        &"--dry-run",
        &"--json",
        &"--skip",
        &"blocks.0.*",
        &"--skip",
        &"norm*",
    ]);
    assert_eq!(both.json()["summary"]["offline"]["folded"], 4);
}

#[test]
fn skip_matches_the_star_in_a_kind_literally() {
    let run = unfold([
        &"fuse",
        &digits("pnstar", "dynamo"),
        &"--dry-run",
        &"--json",
        &"--skip",
        &"PN*",
    ]);
    assert_eq!(run.json()["summary"]["offline"]["folded"], 0);
}

/// A name matches the site with this name, even if it is also a pattern.
#[test]
fn skip_matches_site_names_with_brackets_literally() {
    for name in ["layers[0].norm", "layers[", "a{b"] {
        let mut model = text::model(
            "input x 2 4\n scale g 4\n weight w 4 4\n y = Mul(x, g)\n z = MatMul(y, w)\n output z",
        );
        model.graph_mut().node[0].name = Some(name.into());
        let (_folder, path) = out();
        model.save(&path).unwrap();
        let folded = |run: Run| {
            assert_eq!(run.stderr, "");
            let json = run.json();
            assert_eq!(json["sites"][0]["name"], name);
            json["sites"][0]["folded"].as_bool().unwrap()
        };
        assert!(folded(unfold([&"fuse", &path, &"--dry-run", &"--json"])));
        assert!(!folded(unfold([
            &"fuse",
            &path,
            &"--dry-run",
            &"--json",
            &"--skip",
            &name
        ])));
    }
}

#[test]
fn constant_norms_prints_the_limit_and_the_largest_variance() {
    let text = "input x batch 3 4\n weight k 4 4\n z = MatMul(x, k)
         const g 4 = 1000000 2000000 500000 3000000\n shift t 4
         n = LayerNormalization(z, g, t) epsilon=1000000000000.0\n weight w 4 5\n y = MatMul(n, w)\n output y";
    let (folder, path) = out();
    let model = folder.path().join("constant.onnx");
    text::model(text).save(&model).unwrap();
    let fuse = |option: &str| unfold([&"fuse", &model, &"-o", &path, &"--constant-norms", &option]);
    let run = fuse("--verbose");
    assert_eq!(
        (run.code, run.stderr.as_str()),
        (DONE, ""),
        "{}",
        run.stdout
    );
    for line in [
        "constant while each variance is below 32768: LayerNormalization_n\n",
        "the largest variance in the run is ",
        " of the limit\n",
    ] {
        assert!(run.stdout.contains(line), "{}", run.stdout);
    }
    let json = fuse("--json").json();
    let norm = &json["constant"][0];
    assert_eq!(
        (&norm["value"], &norm["limit"]),
        (&"z".into(), &32768.0.into())
    );
    assert_eq!(norm["outcome"], "constant");
    let [largest, of_limit] =
        ["largest", "of_limit"].map(|key| json["variance"][key].as_f64().unwrap());
    assert!(largest > 0.1 && of_limit == largest / 32768.0, "{json}");
    let proved = fuse("--verify=prove");
    assert_eq!(proved.code, DONE, "{}{}", proved.stdout, proved.stderr);
    assert!(
        proved.stdout.contains("proved to be the same function"),
        "{}",
        proved.stdout
    );
    let assuming = unfold([&"prove", &model, &path, &"--constant-norms"]);
    assert_eq!(
        assuming.code, DONE,
        "{}{}",
        assuming.stdout, assuming.stderr
    );
    assert!(
        assuming
            .stdout
            .contains("below 32768: LayerNormalization_n"),
        "{}",
        assuming.stdout
    );
    let alone = unfold([&"prove", &model, &path]);
    assert_ne!(alone.code, DONE, "{}{}", alone.stdout, alone.stderr);
}

#[test]
fn to_float16_reports_casts_errors_and_what_stays() {
    let text = "input x 3 4\n weight k 4 4\n const g = 300\n z = MatMul(x, k)\n b = Add(z, g)
         const e = 0.000001\n const two = 2\n s = Pow(b, two)\n m = ReduceMean(s) axes=[-1] keepdims=1
         v = Add(m, e)\n r = Sqrt(v)\n n = Div(b, r)\n weight w 4 5\n y = MatMul(n, w)\n output y";
    let (folder, path) = out();
    let model = folder.path().join("wide.onnx");
    text::model(text).save(&model).unwrap();
    let fuse = |option: &str| unfold([&"fuse", &model, &"-o", &path, &"--to=float16", &option]);
    let run = fuse("--verbose");
    assert_eq!(
        (run.code, run.stderr.as_str()),
        (DONE, ""),
        "{}",
        run.stdout
    );
    for line in [
        "5 operators stay in float32: statistics of normalizers\n",
        "each value rounded to float16: error ",
        "; without what stays in float32: error 1.0e0, not finite at s\n",
    ] {
        assert!(run.stdout.contains(line), "{line}: {}", run.stdout);
    }
    let json = fuse("--json").json();
    assert_eq!(
        (&json["half"]["to"], &json["half"]["casts"]),
        (&"float16".into(), &4.into())
    );
    let stays = json["half"]["wide"].as_array().unwrap();
    assert!(
        stays.iter().all(|operator| operator["why"] == "statistics"),
        "{stays:?}"
    );
    assert_eq!(json["half_error"]["naive_overflow"], "s");
    let error = json["half_error"]["error"].as_f64().unwrap();
    assert!((1e-6..1e-2).contains(&error), "{error}");
    // The proof is about the result in float32.
    let proved = fuse("--verify=prove");
    assert!(
        proved.stdout.contains("proved to be the same function"),
        "{}{}",
        proved.stdout,
        proved.stderr
    );
    let ends = unfold([&"fuse", &model, &"-o", &path, &"--io=half"]);
    assert_eq!(ends.code, 2, "{}", ends.stderr);
    let samples = unfold([&"fuse", &model, &"-o", &path, &"--input", &model]);
    assert!(
        samples
            .stderr
            .contains("--input is for --scale-stream auto, and for --to"),
        "{}",
        samples.stderr
    );
}

#[test]
fn report_says_why_the_error_in_float16_was_not_measured() {
    let text = "input x 3 4 4\n weight k 4 4\n z = MatMul(x, k)\n y = Det(z)\n output y";
    let (folder, path) = out();
    let model = folder.path().join("determinant.onnx");
    text::model(text).save(&model).unwrap();
    let fuse = |option: &str| unfold([&"fuse", &model, &"-o", &path, &"--to=float16", &option]);
    let json = fuse("--json").json();
    assert!(json.get("half_error").is_none(), "{json}");
    let failure = &json["half_failure"];
    assert_eq!(
        (&failure["stage"], &failure["operator"]),
        (&"load".into(), &"Det".into())
    );
    assert_eq!(failure["reason"], "tract does not have this operator");
    let printed = fuse("--verbose").stdout;
    assert!(
        printed.contains("the error in float16 was not measured: tract cannot load Det"),
        "{printed}"
    );
}

#[test]
fn option_without_effect_is_a_warning() {
    let asked = [
        (
            "--constant-norms",
            "constant_norms",
            "no normalizer has an ε that hides its variance",
        ),
        ("--centre", "centre", "no residual stream was centred"),
        (
            "--merge-norms",
            "merge_norms",
            "no normalizer was taken out before others",
        ),
        (
            "--scale-stream=2^-2",
            "scale_stream",
            "no residual stream was scaled",
        ),
    ];
    let model = text::model(
        "input x 2 4\n scale g 4\n weight w 4 4\n y = Mul(x, g)\n z = MatMul(y, w)\n output z",
    );
    let (folder, path) = out();
    model.save(&path).unwrap();
    let results = folder.path().join("results");
    for (option, name, reason) in asked {
        let shown = option.split('=').next().unwrap();
        let warning = format!("warning: {shown}: {reason}\n");
        for run in [
            unfold([&"fuse", &path, &"--dry-run", &option]),
            // The warning is printed once for all models.
            unfold([
                &"fuse",
                &path,
                &path,
                &"--dry-run",
                &"-o",
                &results,
                &option,
            ]),
        ] {
            assert_eq!((run.code, run.stderr), (DONE, warning.clone()));
        }
        let json = unfold([&"fuse", &path, &"--dry-run", &"--json", &option]).json();
        assert_eq!(
            json["idle"],
            serde_json::json!([{ "option": name, "reason": reason }])
        );
    }
    let json = unfold([&"fuse", &path, &"--dry-run", &"--json"]).json();
    assert_eq!(json.get("idle"), None);
    let (_results, fused) = out();
    let run = unfold([&"fuse", &digits("ln", "dynamo"), &"-o", &fused, &"--centre"]);
    assert_eq!((run.code, run.stderr.as_str()), (DONE, ""));
}

#[test]
fn unmatched_skip_is_a_warning_and_an_invalid_glob_an_error() {
    let run = unfold([&"fuse", &un(), &"--dry-run", &"--skip", &"bolcks.0"]);
    assert_eq!(
        (run.code, run.stderr.as_str()),
        (
            DONE,
            "warning: --skip `bolcks.0`: no site has this name or kind\n"
        )
    );
    let run = unfold([&"fuse", &un(), &"--dry-run", &"--skip", &"["]);
    assert_eq!(run.code, USAGE);
    assert!(
        run.error().starts_with("error: --skip `[`: "),
        "{}",
        run.stderr
    );
}

#[test]
fn differing_result_is_not_written() {
    let (folder, path) = out();
    let run = unfold([
        &"fuse",
        &un(),
        &"-o",
        &path,
        &"--tolerance",
        &"0",
        &"--quiet",
        &"--verify",
        &"run",
    ]);
    assert_eq!(run.code, DIFFERS);
    assert!(
        run.error()
            .ends_with("differs from that of the input; nothing was written"),
        "{}",
        run.stderr
    );
    assert_eq!(names_in(&folder), [""; 0]);
    assert_eq!(
        unfold([
            &"fuse",
            &un(),
            &"-o",
            &path,
            &"--tolerance",
            &"0",
            &"--no-verify"
        ])
        .code,
        DONE
    );
    assert_eq!(names_in(&folder), ["out.onnx"]);
}

/// A size at which the model cannot be evaluated.
const BEYOND: &str = "batch=100000000";

#[test]
fn verify_option_sets_what_an_unverified_result_means() {
    let (folder, path) = out();
    let fuse = |how: &str| {
        unfold([
            &"fuse",
            &un(),
            &"-o",
            &path,
            &"--dim",
            &BEYOND,
            &"--verify",
            &how,
            &"-q",
        ])
    };
    let required = fuse("require");
    assert_eq!(required.code, UNVERIFIED);
    assert!(
        required
            .error()
            .contains("could not be verified: `x` has attributes out of bounds")
    );
    assert!(
        required
            .error()
            .contains(", and it could not be proved: `x` takes more than"),
        "{}",
        required.stderr
    );
    assert!(
        required.error().ends_with("; nothing was written"),
        "{}",
        required.stderr
    );
    assert_eq!(names_in(&folder), [""; 0]);
    for (how, warning) in [
        ("auto", "warning: the result could not be verified: "),
        ("run", "warning: the result could not be verified: "),
        ("prove", "warning: the result could not be proved: "),
    ] {
        let tried = fuse(how);
        assert_eq!((tried.code, tried.stdout.as_str()), (DONE, ""), "{how}");
        assert!(tried.stderr.starts_with(warning), "{how}: {}", tried.stderr);
        assert_eq!(tried.stderr.lines().count(), 1, "{how}");
        assert_eq!(names_in(&folder), ["out.onnx"], "{how}");
        fs::remove_file(&path).unwrap();
    }
    let off = unfold([
        &"fuse",
        &un(),
        &"-o",
        &path,
        &"--dim",
        &BEYOND,
        &"--verify",
        &"off",
    ]);
    assert_eq!((off.code, off.stderr.as_str()), (DONE, ""));
    assert!(off.stdout.contains("not verified"), "{}", off.stdout);
}

#[test]
fn model_that_tract_cannot_run_is_proved() {
    let (folder, model) = changed(beyond_tract);
    let path = folder.path().join("out.onnx");
    let run = unfold([&"fuse", &model, &"-o", &path, &"--verify", &"require"]);
    assert_eq!((run.code, run.stderr.as_str()), (DONE, ""));
    let mut lines = run.stdout.lines().rev().skip(2);
    let proved = lines.next().unwrap();
    assert!(
        proved.starts_with("proved to be the same function: 14 new tensors, 1 point, "),
        "{proved}"
    );
    assert!(
        lines
            .next()
            .unwrap()
            .starts_with("not run: tract cannot load Mystery"),
        "{}",
        run.stdout
    );
    let json = unfold([&"fuse", &model, &"-o", &path, &"--json"]).json();
    assert_eq!(json["verification"]["verdict"], "could_not_verify");
    assert_eq!(
        (&json["proof"]["verdict"], &json["proof"]["tensors"]),
        (&"proved".into(), &14.into())
    );
    assert_eq!(
        (&json["verified"], json.get("sensitivity")),
        (&true.into(), None)
    );
    // tract cannot run the model, so nothing is verified without a proof.
    let run = unfold([&"fuse", &model, &"-o", &path, &"--verify", &"run"]);
    assert_eq!(run.code, DONE);
    assert!(
        run.stderr
            .starts_with("warning: the result could not be verified: tract"),
        "{}",
        run.stderr
    );
}

#[test]
fn difference_by_rounding_is_proved_and_its_sensitivity_reported() {
    let (_folder, path) = out();
    let fuse = |how: &str| {
        unfold([
            &"fuse",
            &un(),
            &"-o",
            &path,
            &"--tolerance",
            &"0",
            &"--verify",
            &how,
            &"--json",
        ])
    };
    for how in ["auto", "require"] {
        let json = fuse(how).json();
        let relative = json["verification"]["outputs"][0]["relative"]
            .as_f64()
            .unwrap();
        let sensitivity = json["sensitivity"].as_f64().unwrap();
        assert!(
            relative > 0.0 && relative < 1e-5 && sensitivity > relative / 100.0,
            "{json}"
        );
        assert!(sensitivity < 1e-4, "{json}");
        assert_eq!(
            (&json["verified"], &json["proof"]["verdict"]),
            (&true.into(), &"proved".into())
        );
    }
    let told = unfold([&"fuse", &un(), &"-o", &path, &"--tolerance", &"0"]);
    let mut lines = told.stdout.lines();
    assert!(
        lines.all(|line| line.chars().count() <= 80 || line.starts_with("next: ")),
        "{}",
        told.stdout
    );
    assert!(
        told.stdout.contains("the outputs differ: "),
        "{}",
        told.stdout
    );
    assert!(
        told.stdout
            .contains("\none rounding of each weight of the original moves them by ")
    );
    let proved = fuse("prove").json();
    assert_eq!(
        (&proved["verification"], &proved["proof"]["points"]),
        (&Value::Null, &1.into())
    );
    assert_eq!(fuse("run").code, DIFFERS);
}

/// Folds a model, and writes the result and its certificate to a new folder.
fn certified(model: &Path) -> (TempDir, PathBuf, PathBuf) {
    let (folder, path) = out();
    let file = folder.path().join("certificate.json");
    assert_eq!(
        unfold([
            &"fuse",
            &model,
            &"-o",
            &path,
            &"--certificate",
            &file,
            &"-q"
        ])
        .code,
        DONE
    );
    (folder, path, file)
}

#[test]
fn prove_accepts_a_folded_model_with_and_without_certificate() {
    for kind in ["un", "bnt", "ln", "dyt", "none"] {
        for exporter in EXPORTERS {
            let original = digits(kind, exporter);
            let (_folder, path, file) = certified(&original);
            for run in [
                unfold([&"prove", &original, &path]),
                unfold([
                    &"prove",
                    &original,
                    &path,
                    &"--certificate",
                    &file,
                    &"--points",
                    &"2",
                ]),
            ] {
                assert_eq!(
                    (run.code, run.stderr.as_str()),
                    (DONE, ""),
                    "{kind}-{exporter}"
                );
                assert!(
                    run.stdout.starts_with("proved to be the same function: "),
                    "{}",
                    run.stdout
                );
                assert!(
                    run.stdout.trim_end().chars().count() <= 80,
                    "{}",
                    run.stdout
                );
            }
        }
    }
}

#[test]
fn prove_uses_the_recorded_options_and_rejects_two_folds() {
    let (folder, once) = out();
    assert_eq!(
        unfold([
            &"fuse",
            &un(),
            &"-o",
            &once,
            &"-q",
            &"--skip",
            &"blocks.0.norm1*"
        ])
        .code,
        DONE
    );
    assert_eq!(unfold([&"prove", &un(), &once, &"--quiet"]).code, DONE);
    let twice = folder.path().join("twice.onnx");
    assert_eq!(unfold([&"fuse", &once, &"-o", &twice, &"-q"]).code, DONE);
    assert_eq!(unfold([&"prove", &once, &twice]).code, DONE);
    let far = unfold([&"prove", &un(), &twice]);
    assert_eq!(far.code, FAILED);
    assert!(
        far.error()
            .ends_with("each time has to be proved by itself"),
        "{}",
        far.stderr
    );
}

#[test]
fn prove_reports_an_invalid_graph_as_an_error() {
    let (_folder, path, file) = certified(&un());
    let mut model = Model::open(&path).unwrap().into_memory().unwrap();
    model.graph_mut().node[0].input[0] = "nowhere".into();
    model.save(&path).unwrap();
    for run in [
        unfold([&"prove", &un(), &path]),
        unfold([&"prove", &un(), &path, &"--certificate", &file]),
    ] {
        assert_eq!(run.code, FAILED, "{}", run.stderr);
        assert!(
            run.error()
                .ends_with("reads `nowhere`, which nothing makes"),
            "{}",
            run.stderr
        );
    }
}

/// Replaces one element of a tensor by the next representable number.
fn nudge(path: &Path, tensor: &str) {
    let mut model = Model::open(path).unwrap().into_memory().unwrap();
    let tensor = model
        .graph_mut()
        .initializer
        .iter_mut()
        .find(|other| other.name() == tensor)
        .unwrap();
    let mut bytes = tensor.raw_data.take().unwrap().to_vec();
    bytes[4] ^= 1;
    tensor.raw_data = Some(bytes.into());
    model.save(path).unwrap();
}

#[test]
fn prove_saves_the_witness_of_a_difference_and_accepts_roundings() {
    let folder = tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let texts = [
        ("one.onnx", "const n = 3\n r = Sqrt(n)\n y = Div(x, r)"),
        ("other.onnx", "const r = 1.7320508\n y = Div(x, r)"),
        ("wrong.onnx", "const r = 1.5\n y = Div(x, r)"),
    ];
    for (name, text) in texts {
        let text = format!("input x b 4\n {text}\n output y");
        text::model(&text).save(file(name)).unwrap();
    }
    let [one, other, wrong, witness] =
        ["one.onnx", "other.onnx", "wrong.onnx", "witness.npz"].map(file);
    let rounded = unfold([&"prove", &one, &other]);
    assert_eq!(rounded.code, ROUNDED, "{}", rounded.stderr);
    assert!(
        rounded
            .stdout
            .starts_with("proved to be the same function up to the rounding of 1 stored tensor: "),
        "{}",
        rounded.stdout
    );
    let accepted = unfold([&"prove", &one, &other, &"--accept", &"rounding"]);
    assert_eq!(accepted.code, DONE, "{}", accepted.stderr);
    let report = file("report.xml");
    let junit = unfold([&"prove", &one, &wrong, &"--junit", &report]);
    assert_eq!(junit.code, DIFFERS, "{}", junit.stderr);
    let xml = fs::read_to_string(&report).unwrap();
    let failure =
        "<failure type=\"different\" message=\"computes something else: a run differs by ";
    assert!(
        xml.contains(failure) && xml.contains("failures=\"1\""),
        "{xml}"
    );
    assert_eq!(
        unfold([&"prove", &one, &one, &"--junit", &report]).code,
        DONE
    );
    let xml = fs::read_to_string(&report).unwrap();
    assert!(
        xml.contains("tests=\"1\" failures=\"0\"") && !xml.contains("<failure"),
        "{xml}"
    );
    let different = unfold([&"prove", &one, &wrong, &"--witness", &witness]);
    assert_eq!(different.code, DIFFERS, "{}", different.stderr);
    // The file holds the inputs of both models.
    let run = unfold([&"bench", &one, &"--rounds", &"1", &"--input", &witness]);
    assert_eq!(run.code, DONE, "{}", run.stderr);
}

/// A changed element of a folded tensor counts as rounding. A changed element of a stored weight
/// makes the weight different from that of the original.
#[test]
fn prove_finds_one_changed_element() {
    for (tensor, verdict, code) in [
        ("val_122_folded", "rounded", ROUNDED),
        ("patch_embed.proj.weight", "undecided", UNVERIFIED),
    ] {
        let (_folder, path, file) = certified(&un());
        nudge(&path, tensor);
        let output = unfold([&"prove", &un(), &path, &"--json"]);
        let json: Value = serde_json::from_str(&output.stdout).unwrap();
        assert_eq!(
            (output.code, &json["judgement"]["verdict"]),
            (code, &verdict.into())
        );
        let run = unfold([&"prove", &un(), &path, &"--accept", &"rounding,casts"]);
        assert_eq!(run.code == DONE, code == ROUNDED, "{}", run.stderr);
        // The certificate is for another file.
        let run = unfold([&"prove", &un(), &path, &"--certificate", &file]);
        assert_eq!(run.code, FAILED);
        assert!(
            run.error()
                .contains("the certificate is for other files: SHA-256 of "),
            "{}",
            run.stderr
        );
    }
}

#[test]
fn forged_certificate_is_rejected() {
    let (_folder, path, file) = certified(&un());
    let text = fs::read_to_string(&file).unwrap();
    let proved = |text: &str| {
        fs::write(&file, text).unwrap();
        unfold([&"prove", &un(), &path, &"--certificate", &file])
    };
    assert_eq!(proved(&text).code, DONE);
    let swapped = text.replacen(r#""op":"mul""#, r#""op":"div""#, 1);
    assert_ne!(swapped, text);
    let run = proved(&swapped);
    assert_eq!(run.code, DIFFERS);
    assert!(
        run.error().contains("not what its recipe gives"),
        "{}",
        run.stderr
    );
    let run = proved(&text.replacen(r#""inputs":[0"#, r#""inputs":[99"#, 1));
    assert_eq!(run.code, FAILED);
    assert!(
        run.error()
            .contains("certificate.json: the certificate cannot be used: tensor `"),
        "{}",
        run.stderr
    );
    assert!(
        run.error().contains("an input is no step before it"),
        "{}",
        run.stderr
    );
    for text in [
        "",
        "[]",
        "{}",
        &"[".repeat(100_000),
        &text[..text.len() / 2],
    ] {
        assert_eq!(proved(text).code, FAILED);
        assert!(
            proved(text)
                .error()
                .contains("the certificate cannot be used")
        );
    }
}

#[test]
fn certificate_that_needs_too_much_memory_is_unverified() {
    let (_folder, path, file) = certified(&un());
    let (wide, far) = (1_u64 << 39, 1 << 12);
    let sum = serde_json::json!([
        { "op": "literal", "numbers": [1.0], "shape": [wide] },
        { "op": "sum", "inputs": [0], "axis": 0, "shape": [1] },
        { "op": "expand", "inputs": [1], "shape": [80] },
    ]);
    let square = |input: usize| serde_json::json!({ "op": "product", "inputs": [0, input], "shape": [far, far] });
    let mut powers =
        vec![serde_json::json!({ "op": "literal", "numbers": [1.0], "shape": [far, far] })];
    powers.extend((0..200).map(square));
    powers.push(
        serde_json::json!({ "op": "pick", "inputs": [200], "axis": 0, "places": [0], "shape": [1, far] }),
    );
    powers.push(serde_json::json!({ "op": "pick", "inputs": [201], "axis": 1, "places": vec![0; 80], "shape": [1, 80] }));
    powers.push(serde_json::json!({ "op": "reshape", "inputs": [202], "shape": [80] }));
    for steps in [sum, Value::Array(powers)] {
        let mut certificate = json(&file);
        let tensors = certificate["tensors"].as_array_mut().unwrap();
        let bias = tensors
            .iter_mut()
            .find(|tensor| tensor["shape"] == serde_json::json!([80]))
            .unwrap();
        bias["steps"] = steps;
        let lie = file.with_file_name("lie.json");
        fs::write(&lie, certificate.to_string()).unwrap();
        let run = unfold([&"prove", &un(), &path, &"--certificate", &lie]);
        assert_eq!(run.code, UNVERIFIED, "{}", run.stderr);
        assert!(
            run.error()
                .contains("takes more than a model of its size is known to take"),
            "{}",
            run.stderr
        );
    }
}

#[test]
fn undecided_proof_has_its_own_exit_code() {
    let (_folder, path, _) = certified(&un());
    let run = unfold([&"prove", &un(), &path, &"--dim", &BEYOND]);
    assert_eq!(run.code, UNVERIFIED);
    assert!(
        run.error()
            .contains("it could not be decided: `x` takes more than"),
        "{}",
        run.stderr
    );
    assert_eq!(
        unfold([&"prove", &un(), &path, &"--points", &"0"]).code,
        USAGE
    );
    assert!(
        unfold([&"prove", &un(), &path, &"--dim", &"bacth=3"])
            .error()
            .contains("`bacth`")
    );
}

#[test]
fn dim_option_sets_sizes_and_rejects_unknown_names() {
    let (_folder, path) = out();
    assert_eq!(
        unfold([&"fuse", &un(), &"-o", &path, &"--dim", &"batch=3"]).code,
        DONE
    );
    let expected = unfold([&"fuse", &un(), &"-o", &path, &"--expect", &"bacth=3"]);
    assert!(
        expected.error().contains("--expect: no input has"),
        "{}",
        expected.stderr
    );
    let misspelled = unfold([&"fuse", &un(), &"-o", &path, &"--dim", &"bacth=3"]);
    assert_eq!(misspelled.code, USAGE);
    assert!(
        misspelled.error().contains("`bacth`"),
        "{}",
        misspelled.stderr
    );
    assert_eq!(
        unfold([&"fuse", &un(), &"-o", &path, &"--dim", &"batch=0"]).code,
        USAGE
    );
}

#[test]
fn only_in_place_overwrites_the_input() {
    let folder = tempdir().unwrap();
    let model = folder.path().join("model.onnx");
    fs::copy(un(), &model).unwrap();
    let before = fs::read(&model).unwrap();
    let other_spelling = folder.path().join(".").join("model.onnx");
    let run = unfold([&"fuse", &model, &"-o", &other_spelling]);
    assert_eq!(run.code, USAGE);
    assert!(
        run.error()
            .ends_with("is the input; --in-place overwrites it"),
        "{}",
        run.stderr
    );
    assert_eq!(fs::read(&model).unwrap(), before);
    assert_eq!(
        unfold([&"fuse", &model, &"-o", &model, &"--in-place"]).code,
        USAGE
    );
    assert_eq!(unfold([&"fuse", &model]).code, USAGE);

    assert_eq!(unfold([&"fuse", &model, &"--in-place"]).code, DONE);
    let after = fs::read(&model).unwrap();
    assert_ne!(after, before);
    let again = unfold([&"fuse", &model, &"--in-place"]);
    assert!(
        again.stdout.contains("nothing was written"),
        "{}",
        again.stdout
    );
    assert_eq!(fs::read(&model).unwrap(), after);
    assert_eq!(names_in(&folder), ["model.onnx"]);
}

#[cfg(unix)]
#[test]
fn symlink_to_the_input_counts_as_the_input() {
    let folder = tempdir().unwrap();
    let (model, link) = (
        folder.path().join("model.onnx"),
        folder.path().join("link.onnx"),
    );
    fs::copy(un(), &model).unwrap();
    std::os::unix::fs::symlink(&model, &link).unwrap();
    assert_eq!(unfold([&"fuse", &model, &"-o", &link]).code, USAGE);
    assert_eq!(unfold([&"fuse", &link, &"--in-place"]).code, DONE);
    assert!(link.symlink_metadata().unwrap().is_symlink());
    assert_ne!(fs::read(&model).unwrap(), fs::read(un()).unwrap());
}

#[test]
fn fuse_overwrites_only_models() {
    let (_folder, path) = out();
    fs::write(&path, "notes").unwrap();
    let run = unfold([&"fuse", &un(), &"-o", &path]);
    assert_eq!(run.code, FAILED);
    assert!(
        run.error()
            .ends_with("exists and is no ONNX model, and is not overwritten"),
        "{}",
        run.stderr
    );
    assert_eq!(fs::read(&path).unwrap(), b"notes");
    fs::write(&path, "").unwrap();
    assert_eq!(unfold([&"fuse", &un(), &"-o", &path]).code, DONE);
    assert_eq!(unfold([&"fuse", &un(), &"-o", &path]).code, DONE);
    let nowhere = path.with_file_name("no").join("out.onnx");
    assert!(
        unfold([&"fuse", &un(), &"-o", &nowhere])
            .error()
            .contains("there is no folder")
    );
}

#[cfg(unix)]
#[test]
fn dangling_symlink_is_followed() {
    use std::os::unix::fs::symlink;
    let (folder, path) = out();
    let link = folder.path().join("link.onnx");
    symlink("out.onnx", &link).unwrap();
    for _ in 0..2 {
        let run = unfold([&"fuse", &un(), &"-o", &link]);
        assert_eq!((run.code, run.stderr.as_str()), (DONE, ""));
        assert!(link.is_symlink() && !path.is_symlink());
        assert!(Model::open(&path).is_ok());
    }
    symlink("no/out.onnx", folder.path().join("far.onnx")).unwrap();
    let far = folder.path().join("far.onnx");
    assert!(
        unfold([&"fuse", &un(), &"-o", &far])
            .error()
            .contains("there is no folder")
    );
    symlink("round.onnx", folder.path().join("round.onnx")).unwrap();
    let round = folder.path().join("round.onnx");
    assert!(
        unfold([&"fuse", &un(), &"-o", &round])
            .error()
            .contains("circle")
    );
}

#[test]
fn data_file_of_the_weights_is_reported() {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut model = Model::open(un()).unwrap();
    model.external = true;
    model.save(path("model.onnx")).unwrap();
    fs::write(path("out.onnx.data"), "somebody's").unwrap();
    let run = unfold([&"fuse", &path("model.onnx"), &"-o", &path("out.onnx")]);
    assert!(
        run.stdout.contains("its weights to") && run.stdout.contains("out.onnx.1.data"),
        "{}",
        run.stdout
    );
    assert_eq!(fs::read(path("out.onnx.data")).unwrap(), b"somebody's");

    fs::copy(path("out.onnx"), path("backup.onnx")).unwrap();
    let run = unfold([
        &"fuse",
        &path("model.onnx"),
        &"-o",
        &path("out.onnx"),
        &"--json",
    ]);
    let data = run.json()["data"].as_str().unwrap().to_owned();
    assert!(data.ends_with("out.onnx.2.data"), "{data}");
    assert!(
        run.stderr.starts_with("warning: ") && run.stderr.contains("out.onnx.1.data"),
        "{}",
        run.stderr
    );
    assert_eq!(run.stderr.trim_end().lines().count(), 1);
}

#[test]
fn reported_sizes_equal_the_file_sizes() {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let size = |file: &Path| fs::metadata(file).unwrap().len();
    let told = |run: Run| {
        let bytes = &run.json()["result"]["file_bytes"];
        ["before", "after"].map(|when| bytes[when].as_u64().unwrap())
    };
    let (inside, beside) = (path("inside.onnx"), path("beside.onnx"));
    let fused = told(unfold([&"fuse", &un(), &"-o", &inside, &"--json"]));
    assert_eq!(fused, [size(&un()), size(&inside)]);
    let fused = told(unfold([
        &"fuse",
        &un(),
        &"-o",
        &beside,
        &"--external-data",
        &"always",
        &"--json",
    ]));
    let files = size(&beside) + size(&path("beside.onnx.data"));
    assert_eq!(fused, [size(&un()), files]);
    // The weights of this model are in a data file, and those of its result are in the model.
    let split = path("split.onnx");
    let run = unfold([
        &"fuse",
        &un(),
        &"-o",
        &split,
        &"--external-data",
        &"always",
        &"--skip",
        &"*",
        &"--no-verify",
    ]);
    assert_eq!(run.code, DONE, "{}", run.stderr);
    let files = size(&split) + size(&path("split.onnx.data"));
    let fused = told(unfold([
        &"fuse",
        &split,
        &"-o",
        &inside,
        &"--external-data",
        &"never",
        &"--json",
    ]));
    assert_eq!(fused, [files, size(&inside)]);
    let fused = told(unfold([&"fuse", &split, &"--in-place", &"--json"]));
    assert_eq!(
        fused,
        [files, size(&split) + size(&path("split.onnx.1.data"))]
    );
}

#[test]
fn file_that_is_no_model_is_a_one_line_error() {
    let whole = fs::read(un()).unwrap();
    let cases: [(&[u8], &str); 5] = [
        (b"", "is not an ONNX model: it is empty"),
        (b"Dear reader,\nthis is a letter.\n", "model.onnx"),
        (
            b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08",
            "is not an ONNX model: it looks like",
        ),
        (&whole[..whole.len() / 2], "is truncated"),
        (&whole[..whole.len() - 1], "is truncated"),
    ];
    for (bytes, expected) in cases {
        let folder = tempdir().unwrap();
        let model = folder.path().join("model.onnx");
        fs::write(&model, bytes).unwrap();
        let path = folder.path().join("out.onnx");
        for run in [
            unfold([&"fuse", &model, &"-o", &path]),
            unfold([&"inspect", &model]),
        ] {
            assert_eq!(run.code, FAILED);
            assert!(run.error().contains(expected), "{}", run.stderr);
            assert!(run.error().contains("model.onnx"), "{}", run.stderr);
        }
        assert_eq!(names_in(&folder), ["model.onnx"]);
    }
}

/// Node names are untrusted. A printed name must not change the colour, position or direction of
/// the text.
#[test]
fn control_characters_in_names_are_escaped() {
    let (_folder, path) = changed(|proto| {
        let names = [
            "\u{1b}]0;mine\u{7}",
            "two\nlines",
            "a\ttab",
            "\u{202e}turned",
        ];
        let kept = nodes(proto)
            .iter_mut()
            .filter(|node| ["MatMul", "Gemm", "Add"].contains(&node.op_type()));
        for (number, node) in kept.enumerate() {
            node.name = Some(format!("{}{number}", names[number % names.len()]));
            node.metadata_props.clear();
        }
        let end = proto.graph.as_mut().unwrap().node.last_mut().unwrap();
        end.op_type = Some("Sof\u{1b}[31mtmax".into());
    });
    let (_results, out) = out();
    let shown = [
        unfold([&"inspect", &path]),
        unfold([&"fuse", &path, &"--dry-run"]),
        unfold([&"fuse", &path, &"-o", &out]),
        unfold([&"inspect", &path, &"--streams"]),
    ];
    let mut told = String::new();
    for run in shown {
        for text in [run.stdout, run.stderr] {
            let acts =
                |c: char| c != '\n' && (c.is_control() || ('\u{202a}'..='\u{2069}').contains(&c));
            assert!(!text.contains(acts), "{text:?}");
            told += &text;
        }
    }
    assert!(told.contains("\\u{1b}]0;mine\\u{7}"), "{told}");
    assert!(told.contains("two\\nlines"), "{told}");
    // The names in an error are escaped too.
    let (_folder, path) = changed(|proto| {
        let [first, second, ..] = &mut nodes(proto)[..] else {
            panic!("too few")
        };
        second.output.clone_from(&first.output);
        for node in [first, second] {
            node.name = Some("\u{1b}[2Jgone".into());
        }
    });
    let run = unfold([&"inspect", &path]);
    assert_eq!(
        (run.code, run.stderr.contains('\u{1b}')),
        (FAILED, false),
        "{}",
        run.stderr
    );
}

/// A file name that is not UTF-8 is printed with replacement characters.
#[cfg(unix)]
#[test]
fn json_shows_file_names_that_are_not_utf8() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let folder = tempdir().unwrap();
    let named = |name: &[u8]| folder.path().join(OsStr::from_bytes(name));
    let shown = |name: &str| folder.path().join(name).display().to_string();
    let (model, fused, certificate) = (
        named(b"a\xff.onnx"),
        named(b"b\xfe.onnx"),
        named(b"c\xff.json"),
    );
    fs::copy(un(), &model).unwrap();
    let json = unfold([
        &"fuse",
        &model,
        &"-o",
        &fused,
        &"--certificate",
        &certificate,
        &"--json",
        &"--no-verify",
    ])
    .json();
    assert_eq!(json["model"], shown("a\u{fffd}.onnx"));
    assert_eq!(json["written"], shown("b\u{fffd}.onnx"));
    assert_eq!(json["certificate"], shown("c\u{fffd}.json"));
    assert_eq!(
        unfold([&"inspect", &model, &"--json"]).json()["model"],
        shown("a\u{fffd}.onnx")
    );
    assert_eq!(
        unfold([&"inspect", &model, &"--streams", &"--json"]).json()["model"],
        shown("a\u{fffd}.onnx")
    );
    let json = unfold([
        &"prove",
        &model,
        &fused,
        &"--certificate",
        &certificate,
        &"--json",
    ])
    .json();
    assert_eq!(json["fused"], shown("b\u{fffd}.onnx"));
    assert_eq!(json["certificate"], shown("c\u{fffd}.json"));
    let missing = named(b"no\xff.onnx");
    let run = unfold([
        &"fuse",
        &missing,
        &model,
        &"-o",
        &folder.path().join("all"),
        &"--json",
    ]);
    let models: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(
        (run.code, &models["models"][0]["model"]),
        (FAILED, &shown("no\u{fffd}.onnx").into())
    );
}

#[test]
fn missing_file_is_a_one_line_error() {
    let (folder, path) = out();
    let run = unfold([&"fuse", &folder.path().join("none.onnx"), &"-o", &path]);
    assert_eq!(run.code, FAILED);
    let cause = "No such file or directory";
    assert_eq!(run.error().matches(cause).count(), 1, "{}", run.stderr);
    assert!(run.error().contains("none.onnx"), "{}", run.stderr);
    assert!(
        unfold([&"inspect", &folder.path()])
            .error()
            .contains("it is a folder")
    );
}

#[test]
fn missing_data_file_is_a_one_line_error() {
    let folder = tempdir().unwrap();
    let mut model = Model::open(un()).unwrap();
    model.external = true;
    let path = folder.path().join("model.onnx");
    model.save(&path).unwrap();
    let fused = folder.path().join("fused.onnx");
    let run = unfold([&"fuse", &path, &"-o", &fused, &"--json"]);
    assert_eq!(run.json()["summary"]["offline"]["folded"], 7);
    assert_eq!(
        names_in(&folder),
        [
            "fused.onnx",
            "fused.onnx.data",
            "model.onnx",
            "model.onnx.data"
        ]
    );

    fs::remove_file(folder.path().join("model.onnx.data")).unwrap();
    let other = folder.path().join("other.onnx");
    let run = unfold([&"fuse", &path, &"-o", &other]);
    assert_eq!(run.code, FAILED);
    assert!(run.error().contains("model.onnx.data"), "{}", run.stderr);
    assert_eq!(
        names_in(&folder),
        ["fused.onnx", "fused.onnx.data", "model.onnx"]
    );
    for run in [
        unfold([&"inspect", &path]),
        unfold([&"inspect", &path, &"--streams"]),
        unfold([&"fuse", &path, &"--dry-run"]),
        unfold([&"bench", &path, &"--rounds", &"1"]),
        unfold([&"prove", &path, &fused]),
        unfold([&"prove", &fused, &path]),
    ] {
        let begin = format!("error: {}: the external data of tensor `", path.display());
        assert_eq!(run.code, FAILED);
        assert!(run.error().starts_with(&begin), "{}", run.stderr);
        assert!(
            run.error()
                .contains("`model.onnx.data` cannot be read: No such file"),
            "{}",
            run.stderr
        );
    }
}

#[test]
fn truncated_data_file_is_an_error_of_prove() {
    let folder = tempdir().unwrap();
    let [model, fused] = ["model.onnx", "fused.onnx"].map(|name| folder.path().join(name));
    let mut original = Model::open(un()).unwrap();
    original.external = true;
    original.save(&model).unwrap();
    assert_eq!(unfold([&"fuse", &model, &"-o", &fused, &"-q"]).code, DONE);
    assert_eq!(unfold([&"prove", &model, &fused, &"-q"]).code, DONE);
    for file in [&model, &fused] {
        let data = file.with_extension("onnx.data");
        let whole = fs::read(&data).unwrap();
        fs::write(&data, &whole[..whole.len() / 2]).unwrap();
        let run = unfold([&"prove", &model, &fused]);
        let begin = format!("error: {}: the external data of tensor `", file.display());
        assert_eq!(run.code, FAILED);
        assert!(run.error().starts_with(&begin), "{}", run.stderr);
        assert!(run.error().contains("onnx.data` holds "), "{}", run.stderr);
        fs::write(&data, whole).unwrap();
    }
}

#[test]
fn dash_as_a_file_is_a_usage_error() {
    let reason = "standard streams are neither read nor written; name a file";
    let folder = tempdir().unwrap();
    for args in [
        vec!["fuse", "model.onnx", "-o", "-"],
        vec!["fuse", "-", "-o", "out.onnx"],
        vec!["fuse", "model.onnx", "-o", "out.onnx", "--certificate", "-"],
        vec!["inspect", "-"],
        vec!["inspect", "model.onnx", "--html", "-"],
        vec!["prove", "model.onnx", "-"],
        vec!["bench", "-"],
        vec!["zoo", "vit-s.un", "-o", "-"],
    ] {
        let output = cargo_bin_cmd!("unfold")
            .current_dir(&folder)
            .args(&args)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(USAGE), "{args:?}");
        let line = said.lines().next().unwrap();
        assert!(
            line.starts_with("error: ") && line.ends_with(reason),
            "{args:?}: {said}"
        );
    }
    assert_eq!(names_in(&folder), [""; 0]);
}

#[test]
fn too_small_numbers_are_usage_errors_with_the_minimum() {
    for (args, reason) in [
        (
            ["fuse", "--jobs", "0"],
            "'0' for '--jobs <N>': 0 is too few: at least 1",
        ),
        (
            ["bench", "--batch", "0"],
            "'0' for '--batch <N,N,...>': 0 is too few: at least 1",
        ),
        (
            ["bench", "--rounds", "0"],
            "'0' for '--rounds <N>': 0 is too few: at least 1",
        ),
        (
            ["bench", "--threads", "0"],
            "'0' for '--threads <N>': 0 is too few: at least 1",
        ),
        (
            ["bench", "--time", "0"],
            "'0' for '--time <SECONDS>': not a number of seconds above 0",
        ),
        (
            ["bench", "--time", "-1"],
            "'-1' for '--time <SECONDS>': not a number of seconds above 0",
        ),
        (
            ["fuse", "--tolerance", "-1"],
            "'-1' for '--tolerance <ERROR>': not a number from 0 on",
        ),
    ] {
        let [command, option, value] = args;
        let run = unfold([&command, &un(), &option, &value]);
        assert_eq!(run.code, USAGE, "{args:?}");
        let line = format!("error: invalid value {reason}");
        assert_eq!(run.stderr.lines().next(), Some(line.as_str()), "{args:?}");
    }
}

#[test]
fn unknown_dimension_is_a_usage_error() {
    let run = unfold([&"bench", &un(), &"--dim", &"nobody=3"]);
    assert_eq!(run.code, USAGE);
    assert!(
        run.error()
            .contains("no input has a symbolic dimension `nobody`; those there are: "),
        "{}",
        run.stderr
    );
}

#[test]
fn more_than_1024_threads_is_a_usage_error() {
    let run = unfold([&"bench", &un(), &"--threads", &"1025"]);
    assert_eq!(run.code, USAGE);
    assert!(
        run.stderr.contains("1025 are too many: at most 1024"),
        "{}",
        run.stderr
    );
}

#[test]
fn zoo_overwrites_only_models() {
    let (folder, path) = out();
    fs::write(&path, "notes").unwrap();
    let run = unfold([&"zoo", &"iwslt14.un", &"-o", &path]);
    assert_eq!(run.code, FAILED);
    assert!(
        run.error()
            .ends_with("exists and is no ONNX model, and is not overwritten"),
        "{}",
        run.stderr
    );
    assert_eq!(fs::read(&path).unwrap(), b"notes");
    let nowhere = folder.path().join("no").join("x.onnx");
    let run = unfold([&"zoo", &"iwslt14.un", &"-o", &nowhere]);
    let there = folder.path().join("no");
    let line = format!(
        "error: {}: there is no folder {}",
        nowhere.display(),
        there.display()
    );
    assert_eq!((run.code, run.error()), (FAILED, line.as_str()));
    let run = unfold([&"zoo", &"iwslt14.un", &"-o", &folder.path()]);
    assert!(run.error().ends_with(" is a folder"), "{}", run.stderr);
    fs::copy(un(), &path).unwrap();
    assert_eq!(unfold([&"zoo", &"iwslt14.un", &"-o", &path]).code, DONE);
    assert!(Model::open(&path).unwrap().weight_bytes() > 1 << 20);
}

#[test]
fn unknown_zoo_network_is_a_usage_error() {
    for (args, begin) in [
        (
            vec!["zoo", "bogus"],
            "error: the zoo has no network `bogus`; it has dtn-vit-s, ",
        ),
        (
            vec!["zoo", "vit-s", "--norm", "bogus"],
            "error: the zoo has no normalizer `bogus` for vit-s; it has bn, ",
        ),
        (
            vec!["zoo", "vit-s.bogus"],
            "error: the zoo has no normalizer `bogus` for vit-s; it has bn, ",
        ),
        (
            vec!["zoo", "vit-s"],
            "error: --norm NORM names the normalizer of vit-s: bn, ",
        ),
        (
            vec!["zoo", "vit-s", "--norm", "un"],
            "error: -o FILE says where to write the model",
        ),
    ] {
        let output = cargo_bin_cmd!("unfold").args(&args).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), said.lines().count()),
            (Some(USAGE), 1),
            "{args:?}"
        );
        assert!(said.starts_with(begin), "{said}");
    }
}

#[test]
fn new_output_folder_is_removed_after_a_failure() {
    let folder = tempdir().unwrap();
    let there = folder.path().join("there");
    fs::create_dir(&there).unwrap();
    let broken = folder.path().join("broken.onnx");
    fs::write(&broken, "no model").unwrap();
    for out in [
        folder.path().join("new/"),
        folder.path().join("deep/new/"),
        there.join("new/"),
        there,
    ] {
        assert_eq!(unfold([&"fuse", &broken, &"-o", &out]).code, FAILED);
        assert_eq!(unfold([&"fuse", &broken, &broken, &"-o", &out]).code, USAGE);
        assert_eq!(names_in(&folder), ["broken.onnx", "there"]);
    }
    assert_eq!(
        fs::read_dir(folder.path().join("there")).unwrap().count(),
        0
    );
}

#[cfg(unix)]
#[test]
fn interrupt_removes_the_new_output_folder() {
    use std::process::{Command, Stdio};
    let (folder, path) = out();
    assert_eq!(unfold([&"zoo", &"vit-s.un", &"-o", &path]).code, DONE);
    let new = folder.path().join("new");
    let mut child = Command::new(assert_cmd::cargo::cargo_bin!("unfold"))
        .args([&"fuse".into(), &path, &"-o".into(), &new.join("")])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // Verifying takes seconds.
    while !new.exists() && child.try_wait().unwrap().is_none() {}
    Command::new("kill")
        .args(["-s", "INT", &child.id().to_string()])
        .output()
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(names_in(&folder), ["out.onnx"]);
}

#[cfg(unix)]
#[test]
fn interrupted_prove_exits_with_130() {
    use std::process::{Command, Stdio};
    let (_folder, path) = out();
    assert_eq!(unfold([&"zoo", &"vit-s.un", &"-o", &path]).code, DONE);
    let (_other_folder, other) = out();
    assert_eq!(
        unfold([&"fuse", &path, &"-o", &other, &"--no-verify"]).code,
        DONE
    );
    let mut child = Command::new(assert_cmd::cargo::cargo_bin!("unfold"))
        .args([&"prove".into(), &path, &other])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // A proof of this size takes several seconds.
    std::thread::sleep(std::time::Duration::from_secs(1));
    Command::new("kill")
        .args(["-s", "INT", &child.id().to_string()])
        .output()
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn written_paths_are_reported_as_given() {
    let folder = tempdir().unwrap();
    for _ in 0..2 {
        let mut command = cargo_bin_cmd!("unfold");
        let args = [
            "-o",
            "./out.onnx",
            "--external-data",
            "always",
            "--certificate",
            "c.json",
        ];
        let output = command
            .current_dir(&folder)
            .arg("fuse")
            .arg(un())
            .args(args)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let data = if said.contains("out.onnx.1.data") {
            "./out.onnx.1.data"
        } else {
            "./out.onnx.data"
        };
        let lines =
            format!("written to ./out.onnx, its weights to {data}\nits certificate is c.json\n");
        assert!(said.contains(&lines), "{said}");
        let mut command = cargo_bin_cmd!("unfold");
        let args = ["-o", "./plain.onnx", "--json"];
        let output = command
            .current_dir(&folder)
            .arg("fuse")
            .arg(un())
            .args(args)
            .output()
            .unwrap();
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["written"], "./plain.onnx");
    }
}

#[test]
fn json_of_one_model_into_a_folder_is_a_list() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("out/");
    let run = unfold([&"fuse", &un(), &"-o", &out, &"--json"]);
    let json = run.json();
    let [model] = &json["models"].as_array().unwrap()[..] else {
        panic!("{}", run.stdout)
    };
    assert_eq!(
        model["written"],
        out.join("un-dynamo.onnx").to_str().unwrap()
    );
    let missing = unfold([
        &"fuse",
        &folder.path().join("none.onnx"),
        &"-o",
        &out,
        &"--json",
    ]);
    let json: Value = serde_json::from_str(&missing.stdout).unwrap();
    assert_eq!(
        (missing.code, json["models"].as_array().unwrap().len()),
        (FAILED, 1)
    );
    let alone = unfold([
        &"fuse",
        &folder.path().join("none.onnx"),
        &"-o",
        &out.join("x.onnx"),
        &"--json",
    ]);
    assert_eq!(alone.code, FAILED);
    assert!(alone.error().contains("none.onnx"), "{}", alone.stderr);
}

/// The last column of the table would not fit next to the others in a terminal of 60 columns.
#[cfg(target_os = "linux")]
#[test]
fn inspect_fits_a_terminal_of_60_columns() {
    let program = assert_cmd::cargo::cargo_bin!("unfold")
        .display()
        .to_string();
    let command = format!(
        "stty cols 60; NO_COLOR=1 {program} inspect {}",
        digits("dyt", "dynamo").display()
    );
    let typed = std::process::Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .output();
    let Ok(output) = typed else {
        return eprintln!("skipped: there is no `script`, and so no terminal");
    };
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(
        shown
            .lines()
            .next()
            .unwrap()
            .trim_end()
            .ends_with("into, or why not"),
        "{shown}"
    );
    assert!(
        shown
            .lines()
            .any(|line| line.trim_end().ends_with("MatMul+Add …qkv")),
        "{shown}"
    );
}

/// The rows say which affine is before the core, and which is after it.
#[test]
fn inspect_labels_the_parts_of_a_site() {
    let run = unfold([&"inspect", &digits("dyt", "dynamo")]);
    let mut rows = run
        .stdout
        .lines()
        .skip_while(|line| !line.starts_with("blocks.0.norm2"));
    let first: Vec<&str> = rows.next().unwrap().split_whitespace().take(5).collect();
    assert_eq!(first, ["blocks.0.norm2", "DyT", "before", "40", "stays"]);
    let second: Vec<&str> = rows
        .find(|line| line.contains("behind"))
        .unwrap()
        .split_whitespace()
        .collect();
    assert_eq!(second, ["behind", "forward", "MatMul", "…mlp.0"]);
    assert!(
        unfold([&"inspect", &un()])
            .stdout
            .lines()
            .all(|line| !line.contains("behind"))
    );
}

#[test]
fn invalid_graph_is_a_one_line_error() {
    type Change = fn(&mut ModelProto);
    let circle: Change = |proto| {
        let nodes = nodes(proto);
        let last = nodes.last().unwrap().output[0].clone();
        nodes[0].input[0] = last;
    };
    let unmade: Change = |proto| nodes(proto)[3].input[0] = "nobody".into();
    let twice: Change = |proto| {
        let nodes = nodes(proto);
        nodes[1].output[0] = nodes[0].output[0].clone();
    };
    let inside: Change = |proto| {
        let reads = NodeProto {
            input: vec!["no one".into()],
            output: vec!["o".into()],
            ..Default::default()
        };
        let branch = AttributeProto {
            name: Some("then_branch".into()),
            g: Some(Box::new(GraphProto {
                node: vec![reads],
                ..Default::default()
            })),
            ..Default::default()
        };
        nodes(proto)[3].attribute.push(branch);
    };
    for (change, expected) in [
        (circle, "depends on its own output"),
        (unmade, "`nobody`, which nothing makes"),
        (twice, "made twice"),
        (
            inside,
            "has a body that reads `no one`, which nothing makes",
        ),
    ] {
        let (folder, model) = changed(change);
        let path = folder.path().join("out.onnx");
        let run = unfold([&"fuse", &model, &"-o", &path]);
        assert_eq!(run.code, FAILED);
        assert!(run.error().contains(expected), "{}", run.stderr);
        assert_eq!(names_in(&folder), ["model.onnx"]);
    }
}

#[test]
fn unknown_domains_and_opsets_are_copied() {
    type Change = fn(&mut ModelProto);
    let unknown: Change = |proto| {
        nodes(proto)
            .iter_mut()
            .for_each(|node| node.domain = Some("com.example".into()))
    };
    let future: Change = |proto| {
        proto
            .opset_import
            .iter_mut()
            .for_each(|set| set.version = Some(999))
    };
    for change in [unknown, future] {
        let (folder, model) = changed(change);
        let path = folder.path().join("out.onnx");
        let run = unfold([&"fuse", &model, &"-o", &path]);
        assert_eq!((run.code, run.stderr.as_str()), (DONE, ""));
        assert!(run.stdout.contains("nothing to fold"), "{}", run.stdout);
        assert_eq!(fs::read(model).unwrap(), fs::read(path).unwrap());
    }
}

#[test]
fn quiet_prints_nothing() {
    let (_folder, path) = out();
    let run = unfold([&"fuse", &un(), &"-o", &path, &"--quiet"]);
    assert_eq!(
        (run.code, run.stdout.as_str(), run.stderr.as_str()),
        (DONE, "", "")
    );
}

#[cfg(unix)]
#[test]
fn closed_pipe_does_not_panic() {
    use std::process::{Command, Stdio};
    let (_folder, path) = out();
    for args in [vec!["inspect"], vec!["fuse", "-o", path.to_str().unwrap()]] {
        let mut child = Command::new(assert_cmd::cargo::cargo_bin!("unfold"))
            .args(args)
            .arg(un())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        assert_eq!(output.status.code(), Some(DONE));
    }
}

#[test]
fn help_has_examples_and_exit_codes() {
    for command in ["inspect", "fuse", "prove", "bench", "zoo"] {
        let help = unfold([&command, &"--help"]).stdout;
        assert!(
            help.contains(&format!("Examples:\n  unfold {command} ")),
            "{help}"
        );
        // Lines to copy and exit codes may be longer.
        let text = help.split("\nExamples:").next().unwrap();
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
    }
    assert!(!unfold([&"--help"]).stdout.contains("resident"));
    for help in [&["--help"][..], &["fuse", "--help"], &["prove", "--help"]] {
        let help = cargo_bin_cmd!("unfold").args(help).output().unwrap().stdout;
        let help = String::from_utf8(help).unwrap();
        assert!(help.contains("Exit codes:\n  0  "), "{help}");
    }
}

#[test]
fn completions_name_the_command_for_each_shell() {
    for (shell, line) in [
        (
            "bash",
            "complete -F _unfold -o nosort -o bashdefault -o default unfold",
        ),
        ("zsh", "#compdef unfold"),
        (
            "fish",
            "complete -c unfold -n \"__fish_unfold_using_subcommand fuse\"",
        ),
    ] {
        let run = unfold([&"completions", &shell]);
        assert_eq!((run.code, run.stderr.as_str()), (DONE, ""), "{shell}");
        assert!(run.stdout.contains(line), "{shell}: {}", run.stdout);
        for word in ["inspect", "fuse", "max-growth", "certificate"] {
            assert!(run.stdout.contains(word), "{shell}: {word}");
        }
    }
    assert_eq!(unfold([&"completions", &"cmd"]).code, USAGE);
}

/// Checks the completions that bash offers.
#[test]
fn bash_completion_offers_commands_options_and_values() {
    let script = unfold([&"completions", &"bash"]).stdout;
    let offered = |words: &str| {
        let typed = format!("COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))");
        let asked = "_unfold unfold \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD-1]}\"";
        let code = format!("{script}\n{typed}\n{asked}\necho \"${{COMPREPLY[*]}}\"");
        let output = std::process::Command::new("bash")
            .args(["--norc", "-c", &code])
            .output()
            .ok()?;
        Some(String::from_utf8(output.stdout).unwrap().trim().to_owned())
    };
    let Some(commands) = offered("unfold fu") else {
        return eprintln!("skipped: there is no bash");
    };
    assert_eq!(commands, "fuse");
    assert_eq!(offered("unfold fuse --max").unwrap(), "--max-growth");
    assert_eq!(offered("unfold fuse --verify pro").unwrap(), "prove");
}

#[test]
fn each_command_has_a_manual_page() {
    let whole = unfold([&"man"]).stdout;
    let version = format!("\"unfold {}\"", env!("CARGO_PKG_VERSION"));
    let is_title = |line: &str, name: &str| {
        line.starts_with(&format!(".TH {name} 1 ")) && line.contains(&version)
    };
    assert!(
        whole.lines().any(|line| is_title(line, "unfold")),
        "{whole}"
    );
    for command in [
        "inspect",
        "fuse",
        "prove",
        "bench",
        "zoo",
        "completions",
        "man",
    ] {
        assert!(
            whole.contains(&format!("unfold\\-{command}(1)")),
            "{command}: {whole}"
        );
        let page = unfold([&"man", &command]).stdout;
        assert!(
            page.lines()
                .any(|line| is_title(line, &format!("unfold-{command}"))),
            "{page}"
        );
        assert!(
            page.contains(&format!("\\fBunfold {command}\\fR")),
            "{page}"
        );
    }
    let page = unfold([&"man", &"fuse"]).stdout;
    assert!(
        page.contains("\\-\\-max\\-growth") && page.contains("Exit codes:"),
        "{page}"
    );
    assert!(!whole.contains("resident"));
    let unknown = unfold([&"man", &"nothing"]);
    assert_eq!(
        (unknown.code, unknown.error()),
        (USAGE, "error: there is no command nothing")
    );
    // `man` refills all lines except those between these two requests.
    let (_, extra) = page
        .split_once(".SH EXTRA\n.nf\nExamples:\n  unfold fuse model.onnx ")
        .unwrap();
    let (lines, _) = extra.split_once("\n.fi\n").unwrap();
    assert!(
        lines.contains("\nExit codes:\n  0  done;") && !lines.contains(".SH"),
        "{lines}"
    );
}

#[test]
fn version_prints_name_and_version() {
    assert_eq!(
        unfold([&"--version"]).stdout,
        format!("unfold {}\n", env!("CARGO_PKG_VERSION"))
    );
}

/// SHA-256 of a file, as another program computes it.
fn sha256(path: &Path) -> String {
    let output = std::process::Command::new("sha256sum")
        .arg(path)
        .output()
        .unwrap();
    String::from_utf8(output.stdout)
        .unwrap()
        .split(' ')
        .next()
        .unwrap()
        .to_owned()
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[cfg(unix)]
#[test]
fn certificate_has_digests_and_formulas() {
    let (folder, path) = out();
    let file = folder.path().join("certificate.json");
    let run = unfold([
        &"fuse",
        &un(),
        &"-o",
        &path,
        &"--certificate",
        &file,
        &"--skip",
        &"blocks.1.*",
    ]);
    assert_eq!((run.code, run.stderr.as_str()), (DONE, ""));
    assert!(run.stdout.contains("its certificate is "), "{}", run.stdout);
    let certificate = json(&file);
    assert_eq!(
        (&certificate["certificate"], &certificate["unfold"]),
        (&1.into(), &"0.1.0".into())
    );
    assert_eq!(
        certificate["options"],
        serde_json::json!({ "skip": ["blocks.1.*"], "target": "cpu" })
    );
    let digests = |path: &Path| serde_json::json!({ "sha256": sha256(path), "data": {} });
    assert_eq!(certificate["original"], digests(&un()));
    assert_eq!(certificate["fused"], digests(&path));
    let site = |index: usize| certificate["sites"][index].clone();
    assert_eq!(
        site(0),
        serde_json::json!({ "name": "blocks.0.norm1.un", "kind": "UN", "outcome": "folded" })
    );
    let tensors = certificate["tensors"].as_array().unwrap();
    let tensor = tensors
        .iter()
        .find(|tensor| tensor["name"] == "val_122_folded")
        .unwrap();
    assert_eq!(tensor["data_type"], "float32");
    assert_eq!(tensor["shape"], serde_json::json!([40, 80]));
    let steps = tensor["steps"].as_array().unwrap();
    assert_eq!(
        steps[0],
        serde_json::json!({ "op": "constant", "name": "val_122", "shape": [40, 80] })
    );
    assert_eq!(steps.last().unwrap()["op"], "mul");
    // An existing certificate is replaced, but no other file.
    let again = unfold([&"fuse", &un(), &"-o", &path, &"--certificate", &file]);
    assert_eq!(
        (again.code, &json(&file)["options"]["skip"]),
        (DONE, &serde_json::json!([]))
    );
}

#[cfg(unix)]
#[test]
fn certificate_has_digests_of_data_files() {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut model = Model::open(un()).unwrap();
    model.external = true;
    model.save(path("model.onnx")).unwrap();
    let before = (
        sha256(&path("model.onnx")),
        sha256(&path("model.onnx.data")),
    );
    let run = unfold([
        &"fuse",
        &path("model.onnx"),
        &"--in-place",
        &"--certificate",
        &path("c.json"),
    ]);
    assert_eq!((run.code, run.stderr.as_str()), (DONE, ""));
    let certificate = json(&path("c.json"));
    let expected = |(model, data): (String, String), name: &str| serde_json::json!({ "sha256": model, "data": { name: data } });
    assert_eq!(certificate["original"], expected(before, "model.onnx.data"));
    let after = (
        sha256(&path("model.onnx")),
        sha256(&path("model.onnx.1.data")),
    );
    assert_eq!(certificate["fused"], expected(after, "model.onnx.1.data"));
    assert_eq!(
        names_in(&folder),
        ["c.json", "model.onnx", "model.onnx.1.data"]
    );
}

#[test]
fn certificate_overwrites_only_certificates_and_needs_its_model() {
    let (folder, path) = out();
    let model = folder.path().join("model.onnx");
    fs::copy(un(), &model).unwrap();
    let notes = folder.path().join("notes.json");
    fs::write(&notes, "{}").unwrap();
    for file in [&model, &notes] {
        let run = unfold([&"fuse", &model, &"-o", &path, &"--certificate", file]);
        assert_eq!(run.code, FAILED);
        assert!(
            run.error()
                .ends_with("exists and is no certificate, and is not overwritten"),
            "{}",
            run.stderr
        );
    }
    for name in ["out.onnx", "out.onnx.data", "./out.onnx.1.data"] {
        let run = unfold([
            &"fuse",
            &model,
            &"-o",
            &path,
            &"--certificate",
            &folder.path().join(name),
        ]);
        assert_eq!(run.code, FAILED);
        assert!(
            run.error()
                .ends_with("is the name of the result or of its weights"),
            "{}",
            run.stderr
        );
    }
    let nowhere = folder.path().join("no").join("c.json");
    let run = unfold([&"fuse", &model, &"-o", &path, &"--certificate", &nowhere]);
    assert!(run.error().contains("there is no folder"), "{}", run.stderr);
    let file = folder.path().join("c.json");
    let run = unfold([
        &"fuse",
        &model,
        &"-o",
        &path,
        &"--certificate",
        &file,
        &"--tolerance",
        &"0",
        &"--verify",
        &"run",
    ]);
    assert_eq!(run.code, DIFFERS);
    assert_eq!(names_in(&folder), ["model.onnx", "notes.json"]);
}

/// The entries of a model's metadata that unfold wrote.
fn provenance(path: &Path) -> Vec<(String, String)> {
    let entries = Model::open(path).unwrap().proto.metadata_props;
    let entries = entries
        .into_iter()
        .map(|entry| (entry.key().to_owned(), entry.value().to_owned()));
    entries
        .filter(|(key, _)| key.starts_with("unfold."))
        .collect()
}

#[cfg(unix)]
#[test]
fn provenance_lists_the_folded_kinds() {
    let (_folder, path) = out();
    assert_eq!(unfold([&"fuse", &un(), &"-o", &path, &"-q"]).code, DONE);
    let entry = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let digest = sha256(&un());
    let expected = [
        entry("unfold.version", env!("CARGO_PKG_VERSION")),
        entry("unfold.original", &digest),
        entry("unfold.folded", "UN 7, attention scale 6, biased 12"),
        entry("unfold.options", r#"{"skip":[],"target":"cpu"}"#),
    ];
    assert_eq!(provenance(&path), expected);
    let told = unfold([&"inspect", &path]).stdout;
    let line = format!(
        "folded by unfold 0.1.0 from {}…: UN 7, attention scale 6, biased 12; for cpu\n",
        &digest[..12]
    );
    assert!(told.ends_with(&line), "{told}");
    let json = unfold([&"inspect", &path, &"--json"]).json();
    assert_eq!(json["provenance"][0]["original"], digest);
    assert_eq!(
        json["provenance"][0]["folded"],
        "UN 7, attention scale 6, biased 12"
    );
    assert!(provenance(&un()).is_empty());
}

#[cfg(unix)]
#[test]
fn provenance_lists_a_second_fold() {
    let (folder, once) = out();
    let twice = folder.path().join("twice.onnx");
    let skip = "blocks.0.norm1*";
    let first = unfold([
        &"fuse",
        &un(),
        &"-o",
        &once,
        &"-q",
        &"--target",
        &"portable",
        &"--skip",
        &skip,
    ]);
    let second = unfold([
        &"fuse",
        &once,
        &"-o",
        &twice,
        &"-q",
        &"--target",
        &"portable",
    ]);
    assert_eq!((first.code, second.code), (DONE, DONE));
    let (first, both) = (provenance(&once), provenance(&twice));
    assert_eq!(
        first[2..],
        [
            (
                "unfold.folded".to_owned(),
                "attention scale 6, UN 6, duplicate 1".to_owned()
            ),
            (
                "unfold.options".to_owned(),
                r#"{"skip":["blocks.0.norm1*"],"target":"portable"}"#.to_owned()
            ),
        ]
    );
    assert_eq!(both[..4], first);
    let keys: Vec<&str> = both[4..].iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(
        keys,
        [
            "unfold.2.version",
            "unfold.2.original",
            "unfold.2.folded",
            "unfold.2.options"
        ]
    );
    assert_eq!(
        (both[5].1.as_str(), both[6].1.as_str()),
        (sha256(&once).as_str(), "UN 1")
    );
    let told = unfold([&"inspect", &twice]).stdout;
    let lines: Vec<&str> = told.lines().rev().take(2).collect();
    assert!(
        lines[1].ends_with("UN 6, duplicate 1; skipped blocks.0.norm1*; for portable"),
        "{told}"
    );
    assert!(lines[0].ends_with(": UN 1; for portable"), "{told}");
    let ln = digits("ln", "dynamo");
    assert_eq!(
        unfold([
            &"fuse",
            &ln,
            &"-o",
            &twice,
            &"--centre",
            &"--target",
            &"onnxruntime",
            &"-q"
        ])
        .code,
        DONE
    );
    let told = unfold([&"inspect", &twice]).stdout;
    assert!(
        told.trim_end()
            .ends_with("; streams centred; for onnxruntime"),
        "{told}"
    );
}

#[test]
fn model_without_folds_passes_verify_require() {
    let (_folder, path) = out();
    let run = unfold([
        &"fuse",
        &digits("none", "dynamo"),
        &"-o",
        &path,
        &"--skip",
        &"*",
        &"--verify",
        &"require",
    ]);
    assert_eq!((run.code, run.stderr.as_str()), (DONE, ""));
    assert!(!run.stdout.contains("verified"), "{}", run.stdout);
}

/// Runs `unfold fuse` on models that are given as paths.
fn fuse_all(models: &[PathBuf], rest: &[&str]) -> Run {
    let output = cargo_bin_cmd!("unfold")
        .env("COLUMNS", "80")
        .arg("fuse")
        .args(models)
        .args(rest)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Run {
        code: output.status.code().unwrap(),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

#[test]
fn several_models_go_into_a_folder_despite_a_broken_one() {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let broken = path("broken.onnx");
    fs::write(&broken, &fs::read(un()).unwrap()[..5000]).unwrap();
    let ln = digits("ln", "legacy");
    fs::create_dir(path("plain")).unwrap();
    let plain = path("plain/a-model-that-has-a-rather-long-name-and-nothing-to-fold.onnx");
    assert_eq!(unfold([&"fuse", &un(), &"-o", &plain]).code, DONE);
    let models = [
        un(),
        broken.clone(),
        ln.clone(),
        path("none.onnx"),
        plain.clone(),
    ];
    let file = path("fused.onnx");
    let run = fuse_all(&models, &["-o", file.to_str().unwrap()]);
    assert!(
        run.code == USAGE && run.error().contains("ends with a slash") && !file.exists(),
        "{}",
        run.stderr
    );
    let out = path("deep/out");
    let rest = ["-o", out.to_str().unwrap(), "--jobs", "3"];
    let run = fuse_all(&models, &rest);
    assert_eq!(run.code, FAILED);
    let errors: Vec<&str> = run.stderr.lines().collect();
    assert_eq!(errors.len(), 2, "{}", run.stderr);
    assert!(
        errors[0].starts_with("error: ") && errors[0].contains("broken.onnx"),
        "{}",
        errors[0]
    );
    assert!(errors[1].contains("none.onnx"), "{}", errors[1]);

    let lines: Vec<&str> = run.stdout.lines().collect();
    assert_eq!(lines.len(), 1 + models.len() + 2, "{}", run.stdout);
    assert!(
        lines.iter().all(|line| line.chars().count() <= 80),
        "{}",
        run.stdout
    );
    let ends = ["agrees", "failed", "agrees", "failed", "copied"];
    for (line, end) in lines[1..].iter().zip(ends) {
        assert!(line.ends_with(end), "{line}");
    }
    assert!(
        lines[1].contains("un-dynamo.onnx") && lines[1].contains("13 of 13"),
        "{}",
        lines[1]
    );
    assert!(lines[1].contains("167 to 81"), "{}", lines[1]);
    assert_eq!(lines[7], "5 models, 2 of them failed");

    // Each result equals the one that a run on only this model gives.
    for model in [&un(), &ln, &plain] {
        let alone = path("alone.onnx");
        assert_eq!(unfold([&"fuse", model, &"-o", &alone]).code, DONE);
        assert_eq!(
            fs::read(out.join(model.file_name().unwrap())).unwrap(),
            fs::read(alone).unwrap()
        );
    }
    assert_eq!(fs::read_dir(&out).unwrap().count(), 3);
    // In a second run, the results are replaced.
    assert_eq!(fuse_all(&models, &rest).code, FAILED);
    assert_eq!(fs::read_dir(&out).unwrap().count(), 3);
}

#[test]
fn json_of_several_models_equals_their_single_reports() {
    let folder = tempdir().unwrap();
    let broken = folder.path().join("broken.onnx");
    fs::write(&broken, "no model").unwrap();
    let run = fuse_all(
        &[un(), broken.clone(), digits("bn", "dynamo")],
        &["--dry-run", "--json"],
    );
    assert_eq!(run.code, FAILED);
    let json: Value = serde_json::from_str(&run.stdout).unwrap();
    let models = json["models"].as_array().unwrap();
    assert_eq!(models.len(), 3);
    let alone = unfold([&"fuse", &un(), &"--dry-run", &"--json"]).json();
    assert_eq!(models[0], alone);
    assert_eq!(models[1]["model"], broken.to_str().unwrap());
    assert!(
        models[1]["error"].as_str().unwrap().contains("broken.onnx"),
        "{}",
        models[1]
    );
    assert_eq!(models[2]["summary"]["offline"]["folded"], 7);
}

#[test]
fn exit_code_of_several_models_is_the_worst() {
    let (_unknown_folder, unknown) = changed(beyond_tract);
    let broken = unknown.with_file_name("broken.onnx");
    fs::write(&broken, "no model").unwrap();
    let out = unknown.with_file_name("out");
    let rest = [
        "-o",
        out.to_str().unwrap(),
        "--verify",
        "require",
        "--tolerance",
        "0",
    ];
    let ends = |models: &[PathBuf]| fuse_all(models, &rest).code;
    let differs = [
        "-o",
        out.to_str().unwrap(),
        "--verify",
        "run",
        "--tolerance",
        "0",
    ];
    assert_eq!(ends(&[un(), digits("bn", "dynamo")]), DONE);
    assert_eq!(ends(&[un(), broken.clone()]), FAILED);
    assert_eq!(
        fuse_all(&[un(), digits("bn", "dynamo")], &differs).code,
        DIFFERS
    );
    let all = fuse_all(&[un(), broken, digits("bn", "dynamo")], &differs);
    assert_eq!(all.code, DIFFERS);
    assert_eq!(
        all.stderr
            .lines()
            .filter(|line| line.starts_with("error: "))
            .count(),
        3,
        "{}",
        all.stderr
    );
}

#[test]
fn colliding_results_are_rejected_before_work() {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["a", "b", "out"] {
        fs::create_dir(path(name)).unwrap();
    }
    for name in ["a/m.onnx", "b/m.onnx", "b/n.onnx", "out/n.onnx"] {
        fs::copy(un(), path(name)).unwrap();
    }
    let out = path("out").display().to_string();
    let twice = fuse_all(&[path("a/m.onnx"), path("b/m.onnx")], &["-o", &out]);
    assert_eq!(twice.code, USAGE);
    assert!(
        twice.error().contains("would both be written to"),
        "{}",
        twice.stderr
    );
    let own = fuse_all(&[path("a/m.onnx"), path("out/n.onnx")], &["-o", &out]);
    let line = format!(
        "error: the result of {0} would replace {0}, which is an input; --in-place overwrites inputs",
        path("out/n.onnx").display()
    );
    assert_eq!((own.code, own.error()), (USAGE, line.as_str()));
    let same = fuse_all(&[path("a/m.onnx"), path("b/../a/m.onnx")], &["--in-place"]);
    assert!(
        same.error().contains("would both be written to"),
        "{}",
        same.stderr
    );
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(path("b/m.onnx"), path("out/n2.onnx")).unwrap();
        fs::copy(un(), path("a/n2.onnx")).unwrap();
        let linked = fuse_all(&[path("a/n2.onnx"), path("b/m.onnx")], &["-o", &out]);
        assert!(linked.error().contains("is an input"), "{}", linked.stderr);
        fs::remove_file(path("out/n2.onnx")).unwrap();
    }
    let file = path("a/m.onnx").display().to_string();
    let no_folder = fuse_all(&[path("b/m.onnx"), path("b/n.onnx")], &["-o", &file]);
    assert!(
        no_folder
            .error()
            .contains("is a file, and several models go into a folder"),
        "{}",
        no_folder.stderr
    );
    let certified = fuse_all(
        &[path("a/m.onnx"), path("b/n.onnx")],
        &["-o", &out, "--certificate", "c.json"],
    );
    assert_eq!(certified.code, USAGE);
    assert!(
        certified.error().contains("a certificate is for one model"),
        "{}",
        certified.stderr
    );
    for name in ["a/m.onnx", "b/m.onnx", "b/n.onnx", "out/n.onnx"] {
        assert_eq!(fs::read(path(name)).unwrap(), fs::read(un()).unwrap());
    }
    assert_eq!(fs::read_dir(path("out")).unwrap().count(), 1);
    // The result replaces another model of that name.
    assert_eq!(
        fuse_all(
            &[path("a/m.onnx"), path("b/n.onnx")],
            &["-o", &out, "--quiet"]
        )
        .code,
        DONE
    );
    assert_eq!(
        fs::read(path("out/n.onnx")).unwrap(),
        fs::read(path("out/m.onnx")).unwrap()
    );
    assert_eq!(
        fuse_all(&[path("a/m.onnx"), path("b/n.onnx")], &["--in-place", "-q"]).code,
        DONE
    );
    assert_eq!(
        fs::read(path("a/m.onnx")).unwrap(),
        fs::read(path("out/m.onnx")).unwrap()
    );
}

#[test]
fn one_model_into_a_folder_keeps_its_name() {
    let folder = tempdir().unwrap();
    for out in [folder.path().to_owned(), folder.path().join("new/")] {
        let run = unfold([&"fuse", &un(), &"-o", &out]);
        assert_eq!(run.code, DONE, "{}", run.stderr);
        assert!(run.stdout.contains("the outputs agree"), "{}", run.stdout);
        assert!(Model::open(out.join("un-dynamo.onnx")).is_ok());
    }
}

#[test]
fn skip_unmatched_in_all_models_is_warned_of_once() {
    let models = [un(), digits("ln", "dynamo")];
    let run = fuse_all(&models, &["--dry-run", "--skip", "LN", "--skip", "nothing"]);
    assert_eq!(
        run.stderr,
        "warning: --skip `nothing`: no site has this name or kind\n"
    );
}

#[test]
fn growth_by_shared_weights_is_reported() {
    let folder = tempdir().unwrap();
    let (tied, out) = (
        folder.path().join("tied.onnx"),
        folder.path().join("out.onnx"),
    );
    // The table is larger than the results that are always stored.
    let text = "indices ids batch 3
                weight table 1200 4
                scale g 4
                e = Gather(table, ids)
                r = Relu(e)
                n = Mul(r, g)
                head = Transpose(table)
                y = MatMul(n, head)
                output y";
    text::model(text).save(&tied).unwrap();
    let usual = unfold([&"fuse", &tied, &"-o", &out, &"--json"]).json();
    let kept = &usual["sites"][0]["post"]["forward"];
    assert_eq!(kept["reason"]["kind"], "growth");
    assert_eq!(
        kept["reason"]["detail"],
        "19200 bytes, 99.9 % of the weights"
    );
    assert_eq!(
        (kept["at"].as_str(), usual.get("growth")),
        (Some("head"), None)
    );

    let more = unfold([&"fuse", &tied, &"-o", &out, &"--max-growth", &"100"]);
    let line =
        "copies of shared weights and biases for each place add 19.2 kB (99.9 % of the weights)";
    assert!(more.stdout.contains(line), "{}", more.stdout);
    let planned = unfold([&"fuse", &tied, &"--dry-run", &"--max-growth", &"100"]);
    assert!(planned.stdout.contains(line), "{}", planned.stdout);
    let told = unfold([
        &"fuse",
        &tied,
        &"--dry-run",
        &"--max-growth",
        &"100",
        &"--json",
    ])
    .json();
    assert_eq!(told["growth"]["bytes"], 19200);
    // The proof uses the option with which the model was folded.
    assert!(provenance(&out).contains(&(
        "unfold.options".into(),
        r#"{"max_growth":100.0,"skip":[],"target":"cpu"}"#.into()
    )));
    assert_eq!(unfold([&"prove", &tied, &out]).code, DONE);
    let file = folder.path().join("c.json");
    let certified = unfold([
        &"fuse",
        &tied,
        &"-o",
        &out,
        &"--max-growth",
        &"100",
        &"--certificate",
        &file,
        &"-q",
    ]);
    assert_eq!(
        (
            certified.code,
            json(&file)["options"]["max_growth"].as_f64()
        ),
        (DONE, Some(100.0))
    );
    assert_eq!(
        unfold([&"prove", &tied, &out, &"--certificate", &file]).code,
        DONE
    );
    let inspected = unfold([&"inspect", &out]).stdout;
    assert!(
        inspected
            .trim_end()
            .ends_with("; copies up to 100 %; for cpu"),
        "{inspected}"
    );
    let negative = unfold([&"fuse", &tied, &"-o", &out, &"--max-growth", &"-1"]);
    assert_eq!(negative.code, USAGE);
    assert!(
        negative
            .stderr
            .contains("'--max-growth <PERCENT>': not a number from 0 on"),
        "{}",
        negative.stderr
    );
}

/// A stream that is written by a bias.
fn stream(bias: &str) -> Model {
    text::model(&format!(
        "indices i batch 3
         weight table 8 4
         const one 4 = 1 1 1 1
         weight w 4 4
         const b 4 = {bias}
         weight head 4 2
         x = Gather(table, i)
         n = LayerNormalization(x, one) axis=-1
         h = MatMul(n, w)
         f = Add(h, b)
         y = Add(x, f)
         m = LayerNormalization(y, one) axis=-1
         o = MatMul(m, head)
         output o"
    ))
}

#[test]
fn scale_stream_takes_a_power_or_measures_samples() {
    let folder = tempdir().unwrap();
    let [model, small, out, samples] =
        ["m.onnx", "s.onnx", "o.onnx", "i.npy"].map(|name| folder.path().join(name));
    stream("100000 -300000 0 0").save(&model).unwrap();
    stream("1 2 3 4").save(&small).unwrap();
    let indices = ndarray::array![[0_i64, 1, 2], [7, 3, 0]];
    ndarray_npy::write_npy(&samples, &indices).unwrap();

    let run = unfold([
        &"fuse",
        &model,
        &"-o",
        &out,
        &"--scale-stream",
        &"2^-6",
        &"--verify",
        &"require",
    ]);
    assert_eq!(run.code, DONE, "{}", run.stderr);
    let told = "stream x (4 channels) scaled by 2^-6: 5 operators absorb a power of two\n";
    assert!(run.stdout.contains(told), "{}", run.stdout);
    assert!(provenance(&out).contains(&(
        "unfold.options".into(),
        r#"{"scale_stream":6,"skip":[],"target":"cpu"}"#.into()
    )));
    assert!(provenance(&out).contains(&("unfold.folded".into(), "scaling 1, biased 1".into())));
    assert_eq!(unfold([&"prove", &model, &out]).code, DONE);
    let inspected = unfold([&"inspect", &out]).stdout;
    assert!(
        inspected
            .trim_end()
            .ends_with("; streams scaled by 2^-6; for cpu"),
        "{inspected}"
    );

    let planned = |model| -> [&dyn AsRef<std::ffi::OsStr>; 7] {
        [
            &"fuse",
            model,
            &"--dry-run",
            &"--scale-stream",
            &"auto",
            &"--input",
            &samples,
        ]
    };
    let [fuse, file, dry, option, auto, input, at] = planned(&model);
    let found = unfold([fuse, file, dry, option, auto, input, at, &"--json"]).json();
    // The largest value is 300,000 plus small other terms. It must become at most 4,096.
    assert!(
        (found["largest_on_stream"].as_f64().unwrap() - 300_000.0).abs() < 100.0,
        "{found}"
    );
    assert_eq!(found["scale_stream"], 7);
    assert_eq!(found["streams"][0]["scaling"]["outcome"], "scaled");
    let enough = unfold(planned(&small));
    assert!(
        enough.stdout.contains("not scaled: float16 holds them"),
        "{}",
        enough.stdout
    );

    for wrong in ["2^6", "2^-0", "2^-41", "0.5", ""] {
        assert_eq!(
            unfold([&"fuse", &model, &"--dry-run", &"--scale-stream", &wrong]).code,
            USAGE,
            "{wrong}"
        );
    }
    assert_eq!(
        unfold([&"fuse", &model, &"--dry-run", &"--scale-stream", &"auto"]).code,
        USAGE
    );
    assert_eq!(
        unfold([&"fuse", &model, &"--dry-run", &"--input", &samples]).code,
        USAGE
    );
    // With a given exponent, the samples would have no effect.
    let by = unfold([
        &"fuse",
        &model,
        &"--dry-run",
        &"--scale-stream",
        &"2^-3",
        &"--input",
        &samples,
    ]);
    assert!(
        by.code == 2 && by.stderr.contains("--input is for --scale-stream auto"),
        "{}",
        by.stderr
    );
    ndarray_npy::write_npy(&samples, &indices.mapv(|index| index as f32)).unwrap();
    let run = unfold(planned(&model));
    assert!(run.error().contains("i.npy"), "{}", run.error());
}

/// A scale before a product. The model also counts the places up to each token, which follow from
/// the shape of the input.
fn counted() -> Model {
    text::model(
        "input x batch tokens 4\n scale g 4\n weight w 4 4\n ints one 1 = 1\n ints zero = 0\n ints step = 1
         s = Shape(x) start=0 end=2\n t = Shape(x) start=1 end=2\n l = Squeeze(t)\n r = Range(zero, l, step)
         e = Expand(r, s)\n b = Equal(e, step)\n i = Cast(b) to=7\n c = CumSum(i, step)\n f = Cast(c) to=1
         two = Unsqueeze(f, axes)\n ints axes 1 = 2
         y = Mul(x, g)\n p = MatMul(y, w)\n z = Add(p, two)\n output z",
    )
}

#[test]
fn fix_option_writes_a_model_of_fixed_sizes() {
    let folder = tempdir().unwrap();
    let [model, out] = ["m.onnx", "o.onnx"].map(|name| folder.path().join(name));
    let mut open = counted();
    open.graph_mut().output = vec![common::declared(
        "z",
        DataType::Float,
        &["batch", "tokens", "4"],
    )];
    open.save(&model).unwrap();
    let fuse = |one: &str, other: &str| {
        unfold([
            &"fuse",
            &model,
            &"-o",
            &out,
            &"--verify",
            &"require",
            &one,
            &other,
        ])
    };
    let run = fuse("--fix=batch=3", "--fix=tokens=5");
    assert_eq!(run.code, DONE, "{}", run.stderr);
    let fixed = Model::open(&out).unwrap();
    assert_eq!(
        fixed
            .graph()
            .node
            .iter()
            .map(NodeProto::op_type)
            .collect::<Vec<_>>(),
        ["MatMul", "Add"]
    );
    assert_eq!(declared_extents(&fixed), [3, 5, 4, 3, 5, 4].map(Some));
    let noted = r#"{"fix":{"batch":3,"tokens":5},"skip":[],"target":"cpu"}"#;
    assert!(provenance(&out).contains(&("unfold.options".into(), noted.into())));

    assert_eq!(fuse("--fix=all", "--dim=tokens=6").code, DONE);
    assert_eq!(
        declared_extents(&Model::open(&out).unwrap()),
        [2, 6, 4, 2, 6, 4].map(Some)
    );
    let run = fuse("--fix=batch=3", "--dim=tokens=6");
    assert_eq!(run.code, DONE, "{}", run.stderr);
    let open = Model::open(&out).unwrap();
    assert!(
        open.graph()
            .node
            .iter()
            .any(|node| node.op_type() == "CumSum")
    );
    assert_eq!(declared_extents(&open)[..3], [Some(3), None, Some(4)]);

    for (one, other) in [
        ("--fix=rows=3", "-q"),
        ("--fix=batch=0", "-q"),
        ("--fix=batch=3", "--dim=batch=2"),
    ] {
        assert_eq!(fuse(one, other).code, USAGE, "{one} {other}");
    }
}

/// The declared extents of the inputs and outputs. `None` for a symbol.
fn declared_extents(model: &Model) -> Vec<Option<i64>> {
    let mut extents = vec![];
    for value in model.graph().input.iter().chain(&model.graph().output) {
        let tensor = value
            .r#type
            .as_ref()
            .and_then(|declared| declared.tensor_type.as_ref());
        for dim in tensor
            .and_then(|tensor| tensor.shape.as_ref())
            .iter()
            .flat_map(|shape| &shape.dim)
        {
            extents.push(if let Some(Dim::DimValue(extent)) = dim.value {
                Some(extent)
            } else {
                None
            });
        }
    }
    extents
}

/// The names of the tensors in a data file, and the elements of all initializers.
fn stored(path: &Path) -> (Vec<String>, Vec<Bytes>) {
    let model = Model::open(path).unwrap();
    let initializers = &model.graph().initializer;
    let outside = initializers.iter().filter(|tensor| tensor.is_external());
    let bytes = initializers
        .iter()
        .map(|tensor| tensor::raw(tensor, model.externals()).unwrap());
    (
        outside.map(|tensor| tensor.name().to_owned()).collect(),
        bytes.collect(),
    )
}

#[test]
fn external_data_option_places_the_weights() {
    let (folder, path) = out();
    assert_eq!(unfold([&"fuse", &un(), &"-o", &path, &"-q"]).code, DONE);
    let (outside, expected) = stored(&path);
    assert!(outside.is_empty());
    let beside = folder.path().join("beside.onnx");
    let run = unfold([
        &"fuse",
        &un(),
        &"-o",
        &beside,
        &"--external-data",
        &"always",
        &"--json",
    ]);
    let data = folder.path().join("beside.onnx.data");
    assert_eq!(run.json()["data"], data.to_str().unwrap());
    let (outside, bytes) = stored(&beside);
    assert!(bytes == expected && outside.len() > 5);
    let from = |least: &str| {
        let file = folder.path().join(format!("{least}.onnx"));
        let (always, threshold) = (
            &"--external-data=always",
            format!("--external-threshold={least}"),
        );
        assert_eq!(
            unfold([&"fuse", &un(), &"-o", &file, always, &threshold, &"-q"]).code,
            DONE
        );
        file
    };
    let (larger, bytes) = stored(&from("12000"));
    assert!(bytes == expected && !larger.is_empty() && larger.len() < outside.len());
    // All tensors are in the data file, except for shapes and possible scales of a Resize, which
    // engines read while they load the model.
    let all = from("1");
    let (smaller, bytes) = stored(&all);
    let initializers = &Model::open(&all).unwrap().graph().initializer.clone();
    let is_large = |tensor: &&TensorProto| {
        tensor.data_type() == DataType::Float.code() && tensor.dims.iter().product::<i64>() >= 16
    };
    let floats = initializers.iter().filter(is_large);
    assert!(
        bytes == expected && smaller.len() > outside.len() && smaller.len() < initializers.len()
    );
    assert!(floats.map(|tensor| tensor.name()).eq(smaller));
    // The weights of a model without foldable sites are written to a data file too.
    let inside = folder.path().join("inside.onnx");
    unfold([
        &"fuse",
        &beside,
        &"-o",
        &inside,
        &"--external-data",
        &"never",
        &"-q",
    ]);
    assert_eq!(stored(&inside), (vec![], expected));
}

#[test]
fn allow_external_reads_weights_of_other_folders() {
    let (folder, path) = out();
    let (near, far) = (folder.path().join("near"), folder.path().join("far"));
    fs::create_dir(&near).unwrap();
    fs::create_dir(&far).unwrap();
    let model = far.join("model.onnx");
    unfold([
        &"fuse",
        &un(),
        &"-o",
        &model,
        &"--external-data",
        &"always",
        &"--skip",
        &"*",
        &"-q",
    ]);
    let mut proto = Model::open(&model).unwrap().into_memory().unwrap().proto;
    for tensor in &mut proto.graph.as_mut().unwrap().initializer {
        for entry in tensor
            .external_data
            .iter_mut()
            .filter(|entry| entry.key() == "location")
        {
            entry.value = Some("../far/model.onnx.data".into());
        }
    }
    let moved = near.join("model.onnx");
    fs::write(&moved, proto.encode_to_vec()).unwrap();
    let refused = unfold([&"fuse", &moved, &"-o", &path]);
    assert_eq!(refused.code, FAILED);
    assert!(
        refused
            .stderr
            .contains("is no path inside the model's folder"),
        "{}",
        refused.stderr
    );
    let elsewhere = unfold([&"fuse", &moved, &"-o", &path, &"--allow-external", &near]);
    assert!(
        elsewhere
            .stderr
            .contains("outside of the folders that are allowed"),
        "{}",
        elsewhere.stderr
    );
    assert!(!path.exists());
    let run = unfold([
        &"fuse",
        &moved,
        &"-o",
        &path,
        &"--allow-external",
        &far,
        &"--json",
    ]);
    assert_eq!(
        run.json()["data"],
        folder.path().join("out.onnx.data").to_str().unwrap()
    );
    assert_eq!(
        unfold([&"prove", &moved, &path, &"--allow-external", &far, &"-q"]).code,
        DONE
    );
    let nowhere = folder.path().join("nowhere");
    let run = unfold([
        &"fuse",
        &un(),
        &un(),
        &"-o",
        &folder.path(),
        &"--allow-external",
        &nowhere,
    ]);
    assert!(
        run.code == USAGE && run.stderr.contains("there is no such folder"),
        "{}",
        run.stderr
    );
}

#[test]
fn next_command_is_suggested() {
    let (_folder, path) = out();
    let run = unfold([&"fuse", &un(), &"-o", &path]);
    assert_eq!(
        run.stdout.lines().last(),
        Some(&*format!(
            "next: `unfold tune {} -o OUT` finds the options that are fastest in tract",
            un().display()
        ))
    );
    // A copy is not faster than the model, so nothing is suggested.
    let run = unfold([&"fuse", &path, &"-o", &path.with_extension("2.onnx")]);
    assert!(!run.stdout.contains("next:"), "{}", run.stdout);

    let run = unfold([&"fuse", &un()]);
    assert_eq!(run.code, USAGE);
    for option in ["-o OUT", "--in-place", "--dry-run"] {
        assert!(run.error().contains(option), "{}", run.stderr);
    }
    let run = unfold([&"model.onnx"]);
    assert_eq!(run.code, USAGE);
    assert!(
        run.stderr.contains("`unfold fuse model.onnx -o OUT`"),
        "{}",
        run.stderr
    );
}

#[test]
fn gemm_keeps_the_name_of_its_matmul() {
    let (_folder, path) = out();
    assert_eq!(
        unfold([&"fuse", &un(), &"-o", &path, &"--quiet"]).code,
        DONE
    );
    let [before, after] = [&un(), &path].map(|path| Model::open(path).unwrap());
    let products = names_of(&before, "MatMul");
    let gemms = names_of(&after, "Gemm");
    let kept = gemms.iter().filter(|name| products.contains(*name)).count();
    assert_eq!((gemms.len(), kept), (13, 12));
}

fn names_of(model: &Model, operator: &str) -> Vec<String> {
    let nodes = model.graph().node.iter();
    nodes
        .filter(|node| node.op_type() == operator)
        .map(|node| node.name().to_owned())
        .collect()
}
