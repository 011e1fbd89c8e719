//! Checks that the documentation agrees with the code.

#[cfg(feature = "cli")]
#[path = "docs/commands.rs"]
mod commands;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use unfold::onnx::Model;
use unfold::refusal::Reason;

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

#[test]
fn each_refusal_reason_has_a_section_with_a_remedy() {
    let reasons: BTreeSet<&str> = Reason::all().map(|reason| reason.name()).collect();
    let page = read("docs/refusals.md");
    let titles = page
        .lines()
        .filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`'));
    assert_eq!(titles.collect::<BTreeSet<_>>(), reasons);
    for section in page.split("\n### ").skip(1) {
        assert!(section.contains("*Remedy:*"), "{section}");
    }
}

#[test]
fn each_reason_for_float32_has_a_row() {
    let schema: serde_json::Value = serde_json::from_str(&read("docs/schema/fuse.json")).unwrap();
    let variants = schema["$defs"]["WideReason"]["oneOf"].as_array().unwrap();
    let reasons = variants
        .iter()
        .map(|variant| variant["const"].as_str().unwrap());
    let page = read("docs/half.md");
    let section = page
        .split("\n## Operators that stay in float32\n")
        .nth(1)
        .unwrap();
    let table = section.split("\n## ").next().unwrap();
    let rows = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let rows = rows.map(|(reason, _)| reason);
    assert_eq!(
        rows.collect::<BTreeSet<_>>(),
        reasons.collect::<BTreeSet<_>>()
    );
}

/// README.md and every page of `docs`.
fn pages() -> Vec<String> {
    let docs = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs")).unwrap();
    let names = docs.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let pages = names
        .filter(|name| name.ends_with(".md"))
        .map(|name| format!("docs/{name}"));
    pages.chain(["README.md".to_owned()]).collect()
}

#[test]
fn relative_links_of_the_docs_exist() {
    for page in pages() {
        let text = read(&page);
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(&page);
        for link in text
            .split("](")
            .skip(1)
            .map(|rest| rest.split(')').next().unwrap())
        {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let path = if file.is_empty() {
                folder.clone()
            } else {
                folder.with_file_name(file)
            };
            let there = link.starts_with("http") || path.exists() && has_anchor(&path, anchor);
            assert!(there, "{page} links to {link}");
            // The book contains only the files in its folder.
            let leaves_book = page.starts_with("docs/") && link.starts_with("..");
            assert!(!leaves_book, "{page} links out of the book to {link}");
        }
    }
}

/// Whether a page has a heading with this anchor.
fn has_anchor(page: &Path, anchor: &str) -> bool {
    if anchor.is_empty() {
        return true;
    }
    let text = fs::read_to_string(page).unwrap();
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings.map(slug).any(|slug| slug == anchor)
}

/// The anchor of a heading: in lower case, with `-` for spaces and without punctuation.
fn slug(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = words
        .chars()
        .filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.map(|letter| if letter == ' ' { '-' } else { letter })
        .collect()
}

#[test]
fn book_summary_lists_each_page_once() {
    let summary = read("docs/SUMMARY.md");
    let links = summary.split("](").skip(1);
    let mut listed: Vec<String> = links
        .map(|rest| format!("docs/{}", rest.split(')').next().unwrap()))
        .collect();
    let mut expected: Vec<String> = pages()
        .into_iter()
        .filter(|page| page != "README.md" && page != "docs/SUMMARY.md")
        .collect();
    listed.sort();
    expected.sort();
    assert_eq!(listed, expected);
}

/// All Rust sources below a folder, concatenated.
fn sources(folder: &Path) -> String {
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .filter(|path| path.is_dir() || path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| {
            if path.is_dir() {
                sources(&path)
            } else {
                fs::read_to_string(path).unwrap()
            }
        })
        .collect()
}

/// The files and types that the page on the architecture names must exist.
#[test]
fn architecture_page_names_existing_files_and_types() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let code = sources(&root.join("src"));
    let page = read("docs/architecture.md");
    let words: BTreeSet<&str> = page.split('`').skip(1).step_by(2).collect();
    let is_path = |word: &&str| word.ends_with(".rs") || word.ends_with('/');
    let is_type = |word: &&str| {
        word.starts_with(char::is_uppercase) && word.chars().all(char::is_alphanumeric)
    };
    let (paths, types): (Vec<_>, Vec<_>) = words
        .iter()
        .copied()
        .filter(|word| is_path(word) || is_type(word))
        .partition(is_path);
    assert!(paths.len() > 30 && types.len() > 15, "{paths:?}, {types:?}");
    for path in paths {
        assert!(
            root.join("src").join(path).exists() || root.join(path).exists(),
            "{path}"
        );
    }
    for name in types {
        let declares = |what: &&str| {
            code.match_indices(&format!("{what} {name}"))
                .any(|(at, found)| {
                    !code[at + found.len()..]
                        .starts_with(|next: char| next.is_alphanumeric() || next == '_')
                })
        };
        let is_there = ["struct", "enum", "trait", "type"].iter().any(declares);
        assert!(
            is_there || code.contains(&format!("const {name}:")),
            "{name}"
        );
    }
}

#[test]
fn documented_formulas_equal_those_of_the_plan() {
    let model = Model::open("models/digits/un-dynamo.onnx").unwrap();
    let plan = unfold::plan(&model, &Default::default()).unwrap();
    let (architecture, commands) = (read("docs/architecture.md"), read("docs/commands.md"));
    for name in ["val_122_folded", "blocks.0.mlp.0.bias_folded"] {
        let tensor = plan
            .tensors
            .iter()
            .find(|tensor| tensor.name == name)
            .unwrap();
        let line = format!("{name} = {}\n", tensor.recipe);
        assert!(architecture.contains(&line), "{line}");
    }
    let weight = plan
        .tensors
        .iter()
        .find(|tensor| tensor.name == "val_122_folded")
        .unwrap();
    let entry = format!("\"formula\": \"{}\"", weight.recipe);
    assert!(commands.contains(&entry), "{entry}");
}

#[test]
fn ci_runs_the_test_command_of_the_readme() {
    assert!(read("README.md").contains("\ncargo test --release\n"));
    assert!(read(".ci/run").contains("\nrun cargo test --release\n"));
}

#[test]
fn commands_page_has_the_exit_codes_of_the_help() {
    let code = read("src/cli/exit_code.rs");
    let codes = code
        .split("Exit codes:\n")
        .nth(1)
        .unwrap()
        .split("\";")
        .next()
        .unwrap();
    let commands = read("docs/commands.md");
    for line in codes.lines() {
        let (code, meaning) = line.trim().split_once("  ").unwrap();
        let row =
            format!("| {code} | {meaning} |").replace("--verify require", "`--verify require`");
        assert!(commands.contains(&row), "{row}");
    }
}

/// The tables that the guide to extending unfold names must exist.
#[test]
fn extension_tables_are_where_the_guide_says() {
    for (table, file) in [
        (
            "pub(crate) const KINDS: &[&dyn Normalizer]",
            "src/affine/recognize/mod.rs",
        ),
        (
            "pub(crate) const RULES: &[&dyn Rule]",
            "src/affine/propagate/rules/mod.rs",
        ),
        (
            "pub(crate) const LINEAR: &[&dyn Linear]",
            "src/affine/linear/mod.rs",
        ),
    ] {
        assert!(read(file).contains(table), "{file}");
    }
}

/// The header of the C API must be the one that cbindgen generates from the source.
#[test]
fn c_header_is_what_cbindgen_generates() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("src/capi/cbindgen.toml")).unwrap();
    let source = cbindgen::Builder::new()
        .with_config(config)
        .with_src(root.join("src/capi/mod.rs"));
    let written = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unfold.h");
    source.generate().unwrap().write_to_file(&written);
    let is_current = fs::read_to_string(&written).unwrap() == read("src/capi/unfold.h");
    assert!(is_current, "cp {} src/capi/unfold.h", written.display());
}
