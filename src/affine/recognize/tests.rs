//! Tests that the kinds agree with `docs/opaque.md`, and that names of normalizers are recognized.

use super::{KINDS, is_named};

#[test]
fn opaque_page_lists_each_custom_operator_once() {
    let page = include_str!("../../../docs/opaque.md");
    let rows = page
        .split("| operator |")
        .nth(1)
        .unwrap()
        .split("\n\n")
        .next()
        .unwrap()
        .lines();
    let listed = rows.filter_map(|row| row.strip_prefix("| `")?.split(" |").next());
    let mut listed: Vec<String> = listed
        .flat_map(|cell| cell.split("`, `"))
        .map(str::to_lowercase)
        .collect();
    listed
        .iter_mut()
        .for_each(|name| name.retain(|c| c.is_alphanumeric()));
    let declared = KINDS
        .iter()
        .flat_map(|kind| kind.opaque())
        .flat_map(|opaque| opaque.names);
    let mut declared: Vec<String> = declared.map(|&name| name.to_owned()).collect();
    listed.sort();
    declared.sort();
    assert_eq!(listed, declared);
}

#[test]
fn names_of_normalizers_are_known() {
    assert!(is_named("layernorm") && is_named("myun1d") && is_named("un"));
    assert!(!is_named("run") && !is_named("linear"));
}
