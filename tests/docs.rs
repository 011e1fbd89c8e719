//! The documents say what is the case.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use unfold::normalizer::KINDS;
use unfold::refusal::Reason;

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

#[test]
fn each_reason_has_a_section() {
    let reasons: BTreeSet<&str> = Reason::all().map(|reason| reason.name()).collect();
    let page = read("docs/refusals.md");
    let titles = page.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`'));
    assert_eq!(titles.collect::<BTreeSet<_>>(), reasons);
    for section in page.split("\n### ").skip(1) {
        assert!(section.contains("*What you can do:*"), "{section}");
    }
}

#[test]
fn links_lead_somewhere() {
    for page in [
        "README.md",
        "docs/algebra.md",
        "docs/dtn.md",
        "docs/refusals.md",
        "docs/extending.md",
        "docs/accuracy.md",
    ] {
        let text = read(page);
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
        for link in text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            let there = link.starts_with("http") || folder.with_file_name(link).exists();
            assert!(there, "{page} links to {link}");
        }
    }
}

#[test]
fn ci_runs_the_test_command_of_the_readme() {
    assert!(read("README.md").contains("\ncargo test --release\n"));
    assert!(read(".ci/run").contains("\nrun cargo test --release\n"));
}

#[test]
fn the_readme_has_the_exit_codes_of_the_help() {
    let code = read("src/cli/end.rs");
    let codes = code.split("Exit codes:\n").nth(1).unwrap().split("\";").next().unwrap();
    let readme = read("README.md");
    for line in codes.lines() {
        let (code, meaning) = line.trim().split_once("  ").unwrap();
        let row = format!("| {code} | {meaning} |").replace("--verify require", "`--verify require`");
        assert!(readme.contains(&row), "{row}");
    }
}

#[test]
fn each_operator_of_a_custom_domain_is_listed_once() {
    let page = read("docs/opaque.md");
    let rows = page.split("| operator |").nth(1).unwrap().split("\n\n").next().unwrap().lines();
    let listed = rows.filter_map(|row| row.strip_prefix("| `")?.split(" |").next());
    let mut listed: Vec<String> = listed.flat_map(|cell| cell.split("`, `")).map(str::to_lowercase).collect();
    listed.iter_mut().for_each(|name| name.retain(|c| c.is_alphanumeric()));
    let declared = KINDS.iter().flat_map(|kind| kind.opaque()).flat_map(|opaque| opaque.names);
    let mut declared: Vec<String> = declared.map(|&name| name.to_owned()).collect();
    listed.sort();
    declared.sort();
    assert_eq!(listed, declared);
}

/// The examples of how to extend unfold name tables that are there.
#[test]
fn the_tables_to_extend_are_there() {
    for (table, file) in [
        ("pub const KINDS: &[&dyn Normalizer]", "src/normalizer/mod.rs"),
        ("pub const RULES: &[&dyn Rule]", "src/fold/travel/mod.rs"),
        ("pub const LINEAR: &[&dyn Linear]", "src/fold/absorb/mod.rs"),
    ] {
        assert!(read(file).contains(table), "{file}");
    }
}
