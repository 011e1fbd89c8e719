//! The page of `unfold diff --html` for any two models.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use unfold::onnx::Model;
use unfold::onnx::proto::{
    Dim, Dimension, GraphProto, NodeProto, TensorShapeProto, TensorType, TypeProto, ValueInfoProto,
};

use crate::outline::{DESK, Page, after, model_of};
use crate::{How, Look};

pub const TRIALS: &[Look] = &[
    (
        "pair_page_aligns_renamed_nodes",
        pair_page_aligns_renamed_nodes,
    ),
    (
        "pair_page_is_navigated_by_keys_from_change_to_change",
        pair_page_is_navigated_by_keys_from_change_to_change,
    ),
    (
        "pair_page_shows_one_model_at_a_time_on_a_phone",
        pair_page_shows_one_model_at_a_time_on_a_phone,
    ),
    (
        "pair_page_of_five_thousand_nodes_opens_as_blocks",
        pair_page_of_five_thousand_nodes_opens_as_blocks,
    ),
    ("pair_page_prints_all_nodes", pair_page_prints_all_nodes),
    (
        "names_of_both_models_are_never_markup",
        names_of_both_models_are_never_markup,
    ),
];

/// Writes the page of two models. Returns it, and the difference that `--json` prints.
fn compared(first: &Model, second: &Model) -> (Page, Value) {
    let folder = tempfile::tempdir().unwrap();
    let [a, b, page] = ["a.onnx", "b.onnx", "page.html"].map(|name| folder.path().join(name));
    first.save(&a).unwrap();
    second.save(&b).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_unfold"))
        .args(["diff", "--quiet", "--json", "--html"])
        .args([&page, &a, &b])
        .output()
        .unwrap();
    let difference = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    (
        Page::from_html(fs::read_to_string(page).unwrap()),
        difference,
    )
}

fn digits(name: &str) -> Model {
    Model::open(format!("models/digits/{name}.onnx")).unwrap()
}

/// A copy of a model in which all nodes and all values except the inputs and outputs have other
/// names.
fn renamed(model: &Model) -> Model {
    let mut model = model.clone();
    let graph = model.graph_mut();
    let ends = graph.input.iter().chain(&graph.output);
    let ends: HashSet<String> = ends.map(|value| value.name().to_owned()).collect();
    graph.value_info.clear();
    for tensor in &mut graph.initializer {
        rename(tensor.name.get_or_insert_default(), &ends);
    }
    for (place, node) in graph.node.iter_mut().enumerate() {
        node.name = Some(format!("node {place}"));
        for name in node.input.iter_mut().chain(&mut node.output) {
            rename(name, &ends);
        }
    }
    model
}

fn rename(name: &mut String, kept: &HashSet<String>) {
    if !name.is_empty() && !kept.contains(name) {
        *name = format!("other {name}");
    }
}

/// The names of the nodes of a model without Constants.
fn names(model: &Model) -> HashSet<String> {
    let nodes = model.graph().node.iter();
    let nodes = nodes.filter(|node| node.op_type() != "Constant");
    nodes.map(|node| node.name().to_owned()).collect()
}

/// The names of the nodes on one side of the rows. A row without changes shows the first model for
/// both.
fn shown(page: &Page, side: &str) -> HashSet<String> {
    let rows = page.list("rows").iter();
    let nodes = rows.filter_map(|row| row[side]["name"].as_str());
    nodes.map(str::to_owned).collect()
}

/// The places at which a run of changed rows begins.
fn change_starts(page: &Page) -> Vec<usize> {
    let rows = page.list("rows").iter();
    let changed: Vec<bool> = rows
        .map(|row| !["same", "rewired"].contains(&row["change"].as_str().unwrap()))
        .collect();
    let places = 0..changed.len();
    places
        .filter(|&place| changed[place] && (place == 0 || !changed[place - 1]))
        .collect()
}

fn pair_page_aligns_renamed_nodes(browser: &Path) {
    let first = digits("ln-legacy");
    let second = renamed(&unfold::fuse(&first, &Default::default()).unwrap().model);
    let (page, difference) = compared(&first, &second);
    assert_eq!(shown(&page, "before"), names(&first));
    assert_eq!(shown(&page, "after"), names(&second));
    let rows = page.list("rows").iter();
    let together: HashMap<&str, &str> = rows
        .filter_map(|row| {
            Some((
                row["before"]["name"].as_str()?,
                row["after"]["name"].as_str()?,
            ))
        })
        .collect();
    let mut taken = HashSet::new();
    for pair in difference["aligned"].as_array().unwrap() {
        let [before, after] = ["first", "second"].map(|side| pair[side].as_str().unwrap());
        if taken.insert(after) {
            assert_eq!(together.get(before), Some(&after));
        }
    }
    let steps = r##"
        one("#unfold").click();
        tell("rows", all("[data-row]").length);
        tell("changed", all("[data-row]:not(.same):not(.rewired)").length);
        tell("heads", all("#heads span").map(head => head.textContent));
        tell("sites", document.body.innerText.includes("site"));
        tell("background", getComputedStyle(document.body).backgroundColor);
    "##;
    let mut backgrounds = vec![];
    for dark in [false, true] {
        let seen = after(browser, &page, How { dark, ..DESK }, steps);
        assert_eq!(seen.count("rows"), page.list("rows").len());
        assert!(seen.count("changed") > 0);
        let [before, after] = [&first, &second].map(|model| names(model).len());
        assert_eq!(
            seen.text("heads"),
            format!("First model: {before} operators,Second model: {after} operators")
        );
        assert_eq!(seen.text("sites"), "false");
        backgrounds.push(seen.text("background").to_owned());
    }
    assert_ne!(backgrounds[0], backgrounds[1]);
}

fn pair_page_is_navigated_by_keys_from_change_to_change(browser: &Path) {
    let first = digits("un-legacy");
    let second = renamed(&unfold::fuse(&first, &Default::default()).unwrap().model);
    let (page, _) = compared(&first, &second);
    let steps = r##"
        one("#fold").click();
        one("[role=row][tabindex='0']").focus();
        tell("focusable", all("[role=row][tabindex='0']").length);
        const rows = all("[role=row]").length;
        while (document.activeElement.dataset.block === undefined) key("ArrowDown");
        key("ArrowRight");
        tell("opened", all("[role=row]").length > rows);
        key("ArrowLeft");
        tell("closed", all("[role=row]").length === rows);
        key("n");
        tell("first", location.hash);
        tell("focused", document.activeElement.dataset.row);
        key("n");
        tell("second", location.hash);
        key("p");
        tell("again", location.hash);
        key("p");
        tell("last", location.hash);
        key("Enter");
        tell("panel", document.activeElement.id);
        key("Escape");
        tell("closes", location.hash === "");
        key("/");
        tell("finds", document.activeElement.id);
        one("#find").value = "SOFTMAX";
        one("#find").dispatchEvent(new Event("input"));
        await wait();
        tell("found", all("[data-row]").every(row => row.textContent.match(/Softmax|MatMul/)) && all("[data-row]").length > 0);
        key("Escape");
        one("#changes").click();
        tell("same", all(".same, .rewired").length);
        tell("changed", all("[data-row]").length);
    "##;
    let seen = after(browser, &page, DESK, steps);
    for fact in ["opened", "closed", "closes", "found"] {
        assert_eq!(seen.text(fact), "true", "{fact}: {}", seen.0);
    }
    let starts = change_starts(&page);
    assert!(starts.len() > 2, "{starts:?}");
    let [begin, next, end] = [starts[0], starts[1], starts[starts.len() - 1]];
    for (key, place) in [
        ("first", begin),
        ("second", next),
        ("again", begin),
        ("last", end),
    ] {
        assert_eq!(seen.text(key), format!("#node={place}"), "{}", seen.0);
    }
    assert_eq!(seen.count("focused"), begin);
    assert_eq!((seen.text("panel"), seen.text("finds")), ("panel", "find"));
    let rows = page.list("rows").iter();
    let changed = rows.filter(|row| row["change"] != "same" && row["change"] != "rewired");
    assert_eq!(
        (seen.count("same"), seen.count("changed")),
        (0, changed.count())
    );
    assert_eq!(seen.count("focusable"), 1);
}

fn pair_page_shows_one_model_at_a_time_on_a_phone(browser: &Path) {
    let first = digits("un-dynamo");
    let second = renamed(&unfold::fuse(&first, &Default::default()).unwrap().model);
    let (page, _) = compared(&first, &second);
    let steps = r##"
        one("#unfold").click();
        const cells = side => seen(`[data-row] .${side}`).length;
        tell("labels", seen("#sides button").map(button => button.textContent));
        tell("before", [cells("before"), cells("after")]);
        one("#sides [data-side=after]").click();
        tell("after", [cells("before"), cells("after")]);
        seen("[data-row]")[3].click();
        tell("sheet", getComputedStyle(one("#panel")).position);
        tell("fits", one("#panel").getBoundingClientRect().right <= innerWidth);
        one("#panel [aria-label=Close]").click();
        tell("closed", getComputedStyle(one("#panel")).position);
    "##;
    let seen = after(browser, &page, How { width: 375, ..DESK }, steps);
    let [before, after] = [&first, &second].map(|model| names(model).len());
    assert_eq!(seen.text("labels"), "First model,Second model");
    assert_eq!(seen.text("before"), format!("{before},0"));
    assert_eq!(seen.text("after"), format!("0,{after}"));
    assert_eq!(
        (seen.text("sheet"), seen.text("fits"), seen.text("closed")),
        ("fixed", "true", "static")
    );
}

/// The operators that [`chain`] uses in turn.
const OPERATORS: [&str; 3] = ["Sin", "Softplus", "Tanh"];

/// A model of blocks of element-wise operators, with names as an exporter gives them. The node at
/// `doubled` is followed by an Identity.
fn chain(blocks: usize, per_block: usize, prefix: &str, doubled: Option<usize>) -> Model {
    let mut graph = GraphProto {
        name: Some("chain".to_owned()),
        input: vec![declared("x")],
        ..Default::default()
    };
    let mut last = "x".to_owned();
    for place in 0..blocks * per_block {
        let operator = OPERATORS[place % OPERATORS.len()];
        let name = format!(
            "/{prefix}blocks.{}/act/{operator}_{place}",
            place / per_block
        );
        last = add_node(&mut graph, operator, name, last);
        if doubled == Some(place) {
            let name = format!("/{prefix}blocks.{}/act/Identity", place / per_block);
            last = add_node(&mut graph, "Identity", name, last);
        }
    }
    graph.output.push(declared(&last));
    model_of(graph)
}

/// Adds a node with one input. Returns the name of its result.
fn add_node(graph: &mut GraphProto, operator: &str, name: String, input: String) -> String {
    let output = format!("{name}_output");
    graph.node.push(NodeProto {
        name: Some(name),
        op_type: Some(operator.to_owned()),
        input: vec![input],
        output: vec![output.clone()],
        ..Default::default()
    });
    output
}

/// A float32 value of the shape [4].
fn declared(name: &str) -> ValueInfoProto {
    let extent = Dimension {
        value: Some(Dim::DimValue(4)),
        ..Default::default()
    };
    let tensor = TensorType {
        elem_type: Some(1),
        shape: Some(TensorShapeProto { dim: vec![extent] }),
    };
    ValueInfoProto {
        name: Some(name.to_owned()),
        r#type: Some(TypeProto {
            tensor_type: Some(tensor),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn pair_page_of_five_thousand_nodes_opens_as_blocks(browser: &Path) {
    let (page, difference) = compared(
        &chain(50, 100, "", None),
        &chain(50, 100, "other.", Some(2500)),
    );
    assert_eq!(difference["aligned"].as_array().unwrap().len(), 5000);
    assert_eq!(page.list("rows").len(), 5001);
    let steps = r##"
        tell("first", all("[role=row]").length);
        tell("elements", document.querySelectorAll("*").length);
        key("n");
        tell("change", document.activeElement.className);
        tell("at", document.activeElement.dataset.row);
        one("#unfold").click();
        tell("all", all("[data-row]").length);
        one("#fold").click();
        one("#find").value = "tanh_4322";
        one("#find").dispatchEvent(new Event("input"));
        await wait();
        tell("found", all("[data-row]").length);
    "##;
    let seen = after(browser, &page, DESK, steps);
    assert_eq!(change_starts(&page), [seen.count("at")]);
    assert!(seen.text("change").contains("new"), "{}", seen.0);
    // The Identity is in its own block, because the names of the second model have another path. A
    // search for the name of a node finds the node and its reader.
    assert_eq!(
        (seen.count("first"), seen.count("all"), seen.count("found")),
        (51, 5001, 2)
    );
    assert!(seen.count("elements") < 1000, "{}", seen.0);
}

fn pair_page_prints_all_nodes(browser: &Path) {
    let (page, _) = compared(&chain(50, 100, "", None), &chain(50, 100, "", Some(1)));
    let steps = r##"
        tell("before", all("[data-row]").length);
        window.dispatchEvent(new Event("beforeprint"));
        tell("printed", all("[data-row]").length);
        window.dispatchEvent(new Event("afterprint"));
        tell("after", all("[data-row]").length);
    "##;
    let seen = after(browser, &page, DESK, steps);
    assert_eq!(seen.count("printed"), 5001);
    assert_eq!(seen.count("before"), seen.count("after"));
}

fn names_of_both_models_are_never_markup(browser: &Path) {
    let markup = "</script><img src=x onerror=alert(1)>&quot;";
    let (page, _) = compared(&chain(1, 3, markup, None), &chain(1, 3, markup, Some(1)));
    let steps = r##"
        one("#unfold").click();
        all("[data-row]")[2].click();
        tell("foreign", all("img, script").length);
        tell("rows", all("[data-row]").length);
    "##;
    let seen = after(browser, &page, DESK, steps);
    // The scripts are the data, the script of the page, and the one that reports.
    assert_eq!((seen.count("foreign"), seen.count("rows")), (3, 4));
}
