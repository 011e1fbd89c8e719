//! Rules for the sources: allowed imports between modules, and one name for each type.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each module of the library with the modules that it may import.
///
/// From the base to the whole pipeline: `error, refusal, hash <- onnx <- recipe <- ir <- shape <-
/// analysis <- affine <- residual, passes <- fuse`. `run` uses only models, and `report` only plain
/// data.
const ALLOWED: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("hash", &[]),
    ("platform", &[]),
    ("refusal", &[]),
    ("report", &[]),
    ("onnx", &["error", "platform"]),
    ("recipe", &["hash", "onnx", "refusal"]),
    ("zoo", &["error", "onnx"]),
    ("ir", &["error", "hash", "onnx", "recipe", "refusal"]),
    ("shape", &["error", "hash", "ir", "onnx", "recipe"]),
    (
        "analysis",
        &["error", "hash", "ir", "onnx", "recipe", "refusal", "shape"],
    ),
    (
        "affine",
        &[
            "analysis", "hash", "ir", "onnx", "platform", "recipe", "refusal", "shape",
        ],
    ),
    (
        "ops",
        &["analysis", "hash", "ir", "onnx", "refusal", "shape"],
    ),
    (
        "passes",
        &[
            "affine", "analysis", "error", "hash", "ir", "onnx", "ops", "recipe", "refusal",
            "shape",
        ],
    ),
    (
        "residual",
        &[
            "affine", "analysis", "error", "hash", "ir", "onnx", "recipe", "refusal",
        ],
    ),
    (
        "run",
        &["analysis", "error", "ir", "onnx", "ops", "passes", "shape"],
    ),
    (
        "baselines",
        &[
            "affine", "analysis", "error", "ir", "onnx", "passes", "recipe",
        ],
    ),
    ("bench", &["onnx", "report", "run"]),
    (
        "prove",
        &[
            "affine", "analysis", "error", "hash", "ir", "onnx", "ops", "passes", "platform",
            "recipe", "refusal", "run", "shape",
        ],
    ),
    (
        "claim",
        &["affine", "error", "fuse", "hash", "onnx", "provenance"],
    ),
    ("prove_passes", &["fuse", "prove"]),
    (
        "judge",
        &[
            "affine",
            "analysis",
            "hash",
            "ir",
            "onnx",
            "ops",
            "prove",
            "recipe",
            "measurements",
            "run",
            "shape",
            "verify",
        ],
    ),
    (
        "diff",
        &[
            "analysis", "error", "ir", "judge", "onnx", "prove", "run", "shape",
        ],
    ),
    ("provenance", &["affine", "onnx", "passes", "run"]),
    ("verify", &["ir", "onnx", "run", "shape"]),
    (
        "certificate",
        &["affine", "error", "onnx", "provenance", "recipe"],
    ),
    (
        "fuse",
        &[
            "affine",
            "analysis",
            "error",
            "hash",
            "ir",
            "onnx",
            "passes",
            "platform",
            "provenance",
            "recipe",
            "refusal",
            "residual",
            "run",
        ],
    ),
    (
        "measurements",
        &[
            "affine", "analysis", "error", "hash", "ir", "onnx", "passes", "residual", "run",
            "verify",
        ],
    ),
    ("capi", &["error", "fuse", "onnx", "provenance"]),
    (
        "wasm",
        &[
            "affine",
            "claim",
            "error",
            "fuse",
            "inspect",
            "onnx",
            "prove",
            "provenance",
            "report",
        ],
    ),
    (
        "inspect",
        &[
            "affine",
            "certificate",
            "error",
            "fuse",
            "ir",
            "onnx",
            "recipe",
            "refusal",
            "report",
            "shape",
        ],
    ),
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !is_test(&path) {
            found.push(path);
        }
    }
}

/// True if a file in `src` is compiled only for tests.
fn is_test(file: &Path) -> bool {
    ["tests.rs", "extending.rs", "planted_faults.rs"]
        .iter()
        .any(|name| file.ends_with(name))
}

/// The files of `src` except tests, each with its module and its text.
fn texts() -> Vec<(String, PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = vec![];
    sources(&root, &mut files);
    let read = |path: PathBuf| {
        let inside = path.strip_prefix(&root).unwrap().to_owned();
        let module = inside
            .iter()
            .next()
            .unwrap()
            .to_str()
            .unwrap()
            .trim_end_matches(".rs")
            .to_owned();
        let text = fs::read_to_string(path).unwrap();
        (
            module,
            inside,
            text.split("#[cfg(test)]\nmod tests {")
                .next()
                .unwrap()
                .to_owned(),
        )
    };
    files.into_iter().map(read).collect()
}

/// The files without comments.
fn code() -> Vec<(String, PathBuf, String)> {
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let only_code = |text: String| text.lines().filter(is_code).collect::<Vec<_>>().join("\n");
    texts()
        .into_iter()
        .map(|(module, file, text)| (module, file, only_code(text)))
        .collect()
}

/// A file or folder in `src`, as the names on the path to it. `lib.rs`, `main.rs` and each `mod.rs`
/// stand for their folder.
type Place = Vec<String>;

fn place(file: &Path) -> Place {
    let steps = file.with_extension("");
    let steps = steps.iter().map(|step| step.to_str().unwrap().to_owned());
    steps
        .filter(|step| !["mod", "lib", "main"].contains(&step.as_str()))
        .collect()
}

/// The paths that a `use` tree stands for: one, or those of a group in braces.
fn branches(tree: &str) -> Vec<String> {
    let end = tree
        .find(|c: char| !(c.is_alphanumeric() || "_:".contains(c)))
        .unwrap_or(tree.len());
    let (trunk, rest) = tree.split_at(end);
    let Some(group) = rest.strip_prefix('{').filter(|_| trunk.ends_with("::")) else {
        return vec![trunk.to_owned()];
    };
    let (mut depth, mut start, mut found) = (0, 0, vec![]);
    for (at, c) in group.char_indices() {
        if depth == 0 && (c == ',' || c == '}') {
            found.extend(
                branches(group[start..at].trim())
                    .iter()
                    .map(|branch| format!("{trunk}{branch}")),
            );
            start = at + 1;
        }
        match c {
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            '{' => depth += 1,
            _ => {}
        }
    }
    found
}

/// The innermost known places that the code of a file imports from.
fn imports(from: &Place, code: &str, places: &BTreeSet<Place>) -> BTreeSet<Place> {
    let is_name = |c: char| c.is_alphanumeric() || "_:".contains(c);
    let mut found = BTreeSet::new();
    for (at, word) in ["crate::", "super::", "self::"]
        .iter()
        .flat_map(|word| code.match_indices(word))
    {
        if code[..at].ends_with(is_name) {
            continue;
        }
        for path in branches(&code[at..]) {
            let mut steps = path.split("::").peekable();
            let mut to = if word == "crate::" {
                vec![]
            } else {
                from.clone()
            };
            while let Some(step) = steps.next_if(|step| ["crate", "super", "self"].contains(step)) {
                if step == "super" {
                    to.pop();
                }
            }
            for step in steps {
                to.push(step.to_owned());
                if !places.contains(&to) {
                    to.pop();
                    break;
                }
            }
            found.insert(to);
        }
    }
    found
}

/// The imports of each file of `src`.
fn imported() -> Vec<(Place, BTreeSet<Place>)> {
    let files = code();
    let places: BTreeSet<Place> = files.iter().map(|(_, file, _)| place(file)).collect();
    let read = |(_, file, code): (String, PathBuf, String)| {
        let from = place(&file);
        let imports = imports(&from, &code, &places);
        (from, imports)
    };
    files.into_iter().map(read).collect()
}

#[test]
fn modules_import_exactly_the_allowed_modules() {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (from, places) in imported() {
        let Some(module) = from
            .first()
            .filter(|module| !["cli", "python"].contains(&module.as_str()))
        else {
            continue;
        };
        let others = places
            .into_iter()
            .filter_map(|place| place.into_iter().next());
        let others = others.filter(|other| other != module).collect::<Vec<_>>();
        found.entry(module.clone()).or_default().extend(others);
    }
    let allowed = ALLOWED.iter().map(|(module, below)| {
        (
            (*module).to_owned(),
            below
                .iter()
                .map(|&name| name.to_owned())
                .collect::<BTreeSet<_>>(),
        )
    });
    assert_eq!(found, allowed.collect());
}

/// For each entry of a folder, the entries that it imports from.
type Below = BTreeMap<String, BTreeSet<String>>;

/// All entries that an entry imports from, directly or indirectly. It contains the entry itself
/// only if there is a cycle.
fn reached<'b>(below: &'b Below, from: &'b String) -> BTreeSet<&'b String> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(next) = open.pop() {
        open.extend(
            below
                .get(next)
                .into_iter()
                .flatten()
                .filter(|other| seen.insert(*other)),
        );
    }
    seen
}

/// The entries of every folder can be ordered so that each imports only from those before it.
/// `mod.rs` belongs to the folder, and all entries may use it.
#[test]
fn imports_between_files_have_no_cycles() {
    let mut folders: BTreeMap<Place, Below> = BTreeMap::new();
    for (from, places) in imported() {
        for to in places {
            let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            if let (Some(one), Some(other)) = (from.get(shared), to.get(shared)) {
                let folder = folders.entry(from[..shared].to_vec()).or_default();
                folder.entry(one.clone()).or_default().insert(other.clone());
            }
        }
    }
    let mut tied = vec![];
    for (folder, below) in &folders {
        let circle = |name: &String| -> Vec<String> {
            let back = reached(below, name)
                .into_iter()
                .filter(|other| reached(below, other).contains(name));
            back.map(|other| {
                [&folder[..], std::slice::from_ref(other)]
                    .concat()
                    .join("/")
            })
            .collect()
        };
        tied.extend(below.keys().map(circle).filter(|circle| !circle.is_empty()));
    }
    tied.sort();
    tied.dedup();
    assert!(tied.is_empty(), "{tied:?}");
}

#[test]
fn import_parser_reads_groups_and_paths() {
    let places = [
        "affine",
        "affine/rule",
        "analysis",
        "cli",
        "error",
        "ir",
        "ir/names",
        "ir/axes",
        "onnx",
    ];
    let places: BTreeSet<Place> = places
        .iter()
        .map(|place| place.split('/').map(str::to_owned).collect())
        .collect();
    let code = "use crate::onnx::{Model, proto};\nuse crate::{affine::Affine, ir::{Graph, names::Names}, error};\n\
                use super::names::{self, Names};\nuse not_super::cli;\nlet x = crate::affine::rule::plan(super::super::error::E);";
    let from = ["ir", "axes"].map(str::to_owned).to_vec();
    let found = imports(&from, code, &places);
    let expected = ["affine", "affine/rule", "error", "ir", "ir/names", "onnx"];
    assert_eq!(
        found
            .iter()
            .map(|place| place.join("/"))
            .collect::<Vec<_>>(),
        expected
    );
}

#[test]
fn type_names_are_unique() {
    let mut found: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for (_, file, code) in code() {
        for line in code.lines() {
            let mut words = line.split(|c: char| !(c.is_alphanumeric() || "_()".contains(c)));
            let first = words.find(|word| !word.starts_with("pub"));
            if first
                .is_some_and(|word| ["struct", "enum", "trait", "type", "union"].contains(&word))
            {
                // The fields of a tuple struct directly follow its name.
                let name = words.next().unwrap().split('(').next().unwrap();
                found.entry(name.to_owned()).or_default().push(file.clone());
            }
        }
    }
    assert!(
        found.contains_key("Graph")
            && found.contains_key("NodeId")
            && found.contains_key("Normalizer")
    );
    found.retain(|_, files| files.len() > 1);
    assert!(found.is_empty(), "{found:#?}");
}

/// The return type of a function, given the code that starts with its name.
fn returned(code: &str) -> &str {
    let (mut depth, mut arrow) = (0, None);
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '-' if depth == 0 && code[at..].starts_with("->") => arrow = Some(at),
            '{' | ';' if depth == 0 => return arrow.map_or("", |arrow| &code[arrow..at]),
            _ => {}
        }
    }
    ""
}

/// The names of the public functions in a text that return a `Result`, and for each whether its
/// documentation has a section on errors.
fn fallible(text: &str) -> Vec<(&str, bool)> {
    let mut found = vec![];
    for (at, _) in text.match_indices("pub fn ") {
        let code = &text[at + "pub fn ".len()..];
        if returned(code).contains("Result<") {
            let above = text[..at]
                .trim_end_matches(' ')
                .lines()
                .rev()
                .map(str::trim_start);
            let mut above =
                above.take_while(|line| line.starts_with("///") || line.starts_with("#["));
            let name = code
                .split(|c: char| !(c.is_alphanumeric() || c == '_'))
                .next()
                .unwrap();
            found.push((name, above.any(|line| line == "/// # Errors")));
        }
    }
    found
}

/// The modules `cli` and `python` are excluded, because their users read other documentation.
#[test]
fn fallible_public_functions_have_an_errors_section() {
    let mut silent = vec![];
    for (_, file, text) in texts()
        .iter()
        .filter(|(module, _, _)| !["cli", "python"].contains(&module.as_str()))
    {
        let lacking = fallible(text).into_iter().filter(|(_, told)| !told);
        silent.extend(lacking.map(|(name, _)| format!("{}: {name}", file.display())));
    }
    assert!(
        silent.is_empty(),
        "their documentation has no `# Errors`: {silent:#?}"
    );
}

#[test]
fn fallible_functions_are_found_by_return_type() {
    let text = "/// # Errors\n/// As [`a`].\n#[inline]\npub fn told<T>(of: [u8; 2]) -> Result<T>;\n/// It may.\npub fn \
                silent(\n    of: impl Fn(&str) -> u8,\n) -> Option<Result<(), Reason>> {\n\n/// # Errors\n\n\
                pub fn apart() -> io::Result<()> {\npub fn sure(of: impl Fn() -> Result<u8>) {\npub fn one() -> u8 {";
    assert_eq!(
        fallible(text),
        [("told", true), ("silent", false), ("apart", false)]
    );
}

/// True if code uses a name or an item in it.
fn uses(code: &str, name: &str) -> bool {
    let mut words = code.split(|c: char| !(c.is_alphanumeric() || "_!:".contains(c)));
    words.any(|word| word == name || word.starts_with(&format!("{name}::")))
}

#[test]
fn only_cli_exits_and_nothing_uses_println() {
    for (module, path, code) in code() {
        assert!(
            !code.contains("println!"),
            "{}: closed pipes make println! panic",
            path.display()
        );
        let ends = uses(&code, "std::process::exit");
        assert!(
            !ends || module == "cli",
            "{} ends the process",
            path.display()
        );
    }
}

/// The modules that are compiled with each feature.
const FEATURES: &[(&str, &[&str])] = &[
    ("cli", &["cli", "main", "python"]),
    (
        "tract",
        &["bench", "measurements", "run", "baselines", "verify"],
    ),
    ("prove", &["prove"]),
    ("zoo", &["zoo"]),
    ("python", &["python"]),
];

/// Without a feature, the library does not compile the feature's crates, so code outside its
/// modules cannot use them.
#[test]
fn optional_crates_are_used_only_in_their_modules() {
    let manifest =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap();
    let sources = code();
    let mut allowed: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (feature, modules) in FEATURES {
        let list = manifest
            .split(&format!("\n{feature} = ["))
            .nth(1)
            .unwrap()
            .split(']')
            .next()
            .unwrap();
        for name in list.split('"').filter_map(|name| name.strip_prefix("dep:")) {
            allowed
                .entry(name.replace('-', "_"))
                .or_default()
                .extend(*modules);
        }
    }
    assert!(
        allowed.contains_key("clap") && allowed.contains_key("tract_linalg"),
        "{allowed:?}"
    );
    for (name, modules) in allowed {
        let used = || sources.iter().filter(|(_, _, code)| uses(code, &name));
        let outside = used().find(|(module, _, _)| !modules.contains(&module.as_str()));
        assert_eq!(
            outside.map(|(_, path, _)| path),
            None,
            "uses {name}, which is part of a feature"
        );
        assert!(used().next().is_some(), "nothing uses {name}");
    }
}
