//! What tract makes of models: nothing that it fuses is lost where `fuse` has been.

use std::collections::BTreeMap;
use std::path::PathBuf;

use unfold::onnx::Model;
use unfold::run::{Dims, Engine, Failure};

/// The operators of the graph that tract runs, and how often each is there.
fn operators(model: &Model) -> Result<BTreeMap<String, usize>, Failure> {
    let engine = Engine::load(model, &Dims::default())?;
    let mut counts = BTreeMap::new();
    for node in engine.graph().nodes() {
        *counts.entry(node.op().name().into_owned()).or_default() += 1;
    }
    for plumbing in ["Source", "Const"] {
        counts.remove(plumbing);
    }
    Ok(counts)
}

fn models(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "onnx")).collect();
    found.sort();
    found
}

/// One operator in the place of several, or one that takes others in.
fn is_fused(operator: &str) -> bool {
    ["OptMatMul", "RmsNorm", "Softmax", "Gelu", "Silu", "LayerNorm"]
        .iter()
        .any(|form| operator.contains(form))
}

#[test]
fn no_form_that_tract_fuses_is_lost_by_folding() {
    let mut forms = 0;
    for path in models("models/digits") {
        let model = Model::open(&path).unwrap();
        let fused = unfold::fuse(&model, &Default::default()).unwrap();
        let [before, after] =
            [fused.lowered.as_ref().unwrap_or(&model), &fused.model].map(|model| operators(model).unwrap());
        let total = |counts: &BTreeMap<String, usize>| counts.values().sum::<usize>();
        assert!(total(&after) <= total(&before), "{}: {before:?} {after:?}", path.display());
        for (form, count) in before.iter().filter(|(name, _)| is_fused(name)) {
            let left = after.get(form).copied().unwrap_or_default();
            assert!(left >= *count, "{}: {form} {count} {left}", path.display());
            forms += left;
        }
    }
    assert!(forms > 0);
}

/// What `benches/fusions/forms.py` asks for, of the folder in `UNFOLD_FORMS`.
#[test]
fn forms_in_a_folder_are_told_if_there_is_one() {
    let Ok(folder) = std::env::var("UNFOLD_FORMS") else { return };
    for path in models(&folder) {
        let told = match operators(&Model::open(&path).unwrap()) {
            Ok(counts) => {
                let named = |(name, count)| if count > 1 { format!("{count} {name}") } else { name };
                counts.into_iter().map(named).collect::<Vec<String>>().join(", ")
            }
            Err(_) => "cannot run it".to_owned(),
        };
        println!("form {}: {told}", path.file_stem().unwrap().to_string_lossy());
    }
}
