//! The direction of imports: who may know whom.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each module of the library with those that it may import, besides itself.
///
/// From values to the whole pass: `affine, error, refusal <- onnx <- graph <- normalizer <- fold <- simplify
/// <- fuse`. What runs models sees only models; reports see only plain data.
const ALLOWED: &[(&str, &[&str])] = &[
    ("affine", &[]),
    ("error", &[]),
    ("refusal", &[]),
    ("progress", &[]),
    ("report", &[]),
    ("onnx", &["error"]),
    ("graph", &["affine", "error", "onnx", "refusal"]),
    ("normalizer", &["affine", "graph", "onnx", "refusal"]),
    ("lower", &["affine", "error", "graph", "normalizer", "onnx", "refusal"]),
    ("fold", &["affine", "graph", "normalizer", "onnx", "refusal"]),
    ("simplify", &["graph", "onnx"]),
    ("history", &["fold", "graph", "normalizer", "refusal"]),
    (
        "fuse",
        &[
            "error",
            "fold",
            "graph",
            "history",
            "lower",
            "normalizer",
            "onnx",
            "progress",
            "refusal",
            "simplify",
        ],
    ),
    ("variants", &["affine", "error", "fold", "graph", "lower", "normalizer", "onnx", "simplify"]),
    ("run", &["error", "onnx"]),
    ("verify", &["error", "graph", "onnx", "run"]),
    ("zoo", &["error", "onnx"]),
    ("bench", &["onnx", "progress", "report", "run"]),
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The files of `src`, each with its module and its code: no comments, no tests.
fn code() -> Vec<(String, PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = vec![];
    sources(&root, &mut files);
    let read = |path: PathBuf| {
        let inside = path.strip_prefix(&root).unwrap().to_owned();
        let module = inside.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs").to_owned();
        let text = fs::read_to_string(path).unwrap();
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap().to_owned();
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        (module, inside, lines.collect::<Vec<_>>().join("\n"))
    };
    files.into_iter().map(read).collect()
}

/// The modules behind `crate::` in a piece of code, those in braces included.
fn imports(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        let name = |text: &str| -> String {
            text.chars().take_while(|&c| c.is_ascii_alphanumeric() || c == '_').collect()
        };
        let Some(group) = rest.strip_prefix('{') else {
            found.insert(name(rest));
            continue;
        };
        let mut depth = 0;
        let mut start = true;
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => start = true,
                c if start && c.is_ascii_alphabetic() => {
                    found.insert(name(&group[at..]));
                    start = false;
                }
                _ => {}
            }
        }
    }
    found
}

#[test]
fn imports_go_one_way() {
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
    for (module, path, code) in code() {
        if ["lib", "main", "cli"].contains(&module.as_str()) {
            continue;
        }
        let known = allowed.get(module.as_str());
        let known = known.unwrap_or_else(|| panic!("{module} has no place among the modules"));
        for import in imports(&code).iter().filter(|import| **import != module) {
            assert!(known.contains(&import.as_str()), "{} imports {import}", path.display());
        }
    }
}

/// A table that let two modules import each other would hold nothing.
#[test]
fn what_is_allowed_has_no_circle() {
    let mut settled: BTreeSet<&str> = BTreeSet::new();
    while settled.len() < ALLOWED.len() {
        let next = ALLOWED
            .iter()
            .find(|(module, below)| !settled.contains(module) && below.iter().all(|b| settled.contains(b)));
        let (module, _) = next.expect("some modules may import each other");
        settled.insert(module);
    }
}

/// Whether code uses a name, or something in it.
fn uses(code: &str, name: &str) -> bool {
    let mut words = code.split(|c: char| !(c.is_alphanumeric() || "_!:".contains(c)));
    words.any(|word| word == name || word.starts_with(&format!("{name}::")))
}

#[test]
fn only_the_command_line_ends_the_process_and_nothing_uses_println() {
    for (module, path, code) in code() {
        assert!(!code.contains("println!"), "{}: closed pipes make println! panic", path.display());
        let ends = uses(&code, "std::process::exit");
        assert!(!ends || module == "cli", "{} ends the process", path.display());
    }
}

/// Without its features the library compiles none of their crates, and so cannot use them.
#[test]
fn the_crates_of_a_feature_are_used_in_its_modules_alone() {
    let manifest = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap();
    let sources = code();
    for (feature, modules) in [("cli", &["cli", "main"][..]), ("zoo", &["zoo"])] {
        let list = manifest.split(&format!("\n{feature} = [")).nth(1).unwrap().split(']').next().unwrap();
        let crates: Vec<String> =
            list.split('"').filter_map(|name| Some(name.strip_prefix("dep:")?.replace('-', "_"))).collect();
        for (module, path, code) in &sources {
            let used = crates.iter().find(|name| uses(code, name));
            let outside = used.filter(|_| !modules.contains(&module.as_str()));
            assert_eq!(outside, None, "{} is not part of the feature {feature}", path.display());
        }
        let used = |name: &String| sources.iter().any(|(_, _, code)| uses(code, name));
        assert!(!crates.is_empty() && crates.iter().all(used), "{feature}: {crates:?}");
    }
}

#[test]
fn imports_are_read_from_groups_and_paths() {
    let code = "use crate::onnx::{Model, proto};\nuse crate::{affine::Affine, graph::{Graph, at::At}, error};\n\
                let x = crate::fold::plan();";
    let expected = ["affine", "error", "fold", "graph", "onnx"];
    assert_eq!(imports(code).iter().map(String::as_str).collect::<Vec<_>>(), expected);
}
