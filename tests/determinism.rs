//! Checks that results and proofs depend only on the model and the options.

use std::fs;
use std::path::Path;

use assert_cmd::cargo::cargo_bin_cmd;
use tempfile::tempdir;
use unfold::onnx::Model;

/// Folds a model in a new process, whose hashes have another seed. Returns all files that it
/// writes, by name.
fn folded(model: &Path, threads: &str) -> Vec<(String, Vec<u8>)> {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    cargo_bin_cmd!("unfold")
        .arg("fuse")
        .arg(model)
        .args(["--verify", "off", "--quiet", "-o"])
        .arg(path("out.onnx"))
        .arg("--certificate")
        .arg(path("certificate.json"))
        .env("RAYON_NUM_THREADS", threads)
        .assert()
        .success();
    let read = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.unwrap().path();
        (
            path.file_name().unwrap().to_str().unwrap().to_owned(),
            fs::read(path).unwrap(),
        )
    };
    let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(read).collect();
    files.sort();
    files
}

#[test]
fn fuse_writes_equal_bytes_in_every_run_and_thread_count() {
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/digits");
    let folder = tempdir().unwrap();
    let apart = folder.path().join("apart.onnx");
    let mut model = Model::open(digits.join("dyt-legacy.onnx")).unwrap();
    model.external = true;
    model.save(&apart).unwrap();
    for model in [
        digits.join("un-legacy.onnx"),
        digits.join("ln-dynamo.onnx"),
        apart,
    ] {
        let first = folded(&model, "1");
        let names: Vec<&str> = first.iter().map(|(name, _)| name.as_str()).collect();
        let expected = ["certificate.json", "out.onnx", "out.onnx.data"];
        assert_eq!(
            names,
            expected[..if model.starts_with(&digits) { 2 } else { 3 }],
            "{}",
            model.display()
        );
        for run in 1..20 {
            let threads = ["1", "2", "8"][run % 3];
            assert!(
                folded(&model, threads) == first,
                "{}, run {run} on {threads}",
                model.display()
            );
        }
    }
}

#[test]
fn proof_is_equal_for_every_thread_count() {
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/digits");
    for kind in ["un-legacy", "ln-dynamo"] {
        let model = digits.join(format!("{kind}.onnx"));
        let folder = tempdir().unwrap();
        let fused = folder.path().join("fused.onnx");
        unfold::fuse(&Model::open(&model).unwrap(), &Default::default())
            .unwrap()
            .model
            .save(&fused)
            .unwrap();
        let proof = |threads: &str| {
            let mut command = cargo_bin_cmd!("unfold");
            let command = command
                .arg("prove")
                .arg(&model)
                .arg(&fused)
                .args(["--json", "--points", "2"]);
            command.env("RAYON_NUM_THREADS", threads).output().unwrap()
        };
        let first = proof("1");
        assert!(
            String::from_utf8_lossy(&first.stdout).contains(r#""verdict": "proved""#),
            "{first:?}"
        );
        for threads in ["2", "8", "1"] {
            assert_eq!(proof(threads), first, "{kind} on {threads}");
        }
    }
}
