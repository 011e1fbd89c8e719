//! The page of a model's outline.

use std::path::Path;

use serde_json::Value;
use unfold::onnx::Model;
use unfold::onnx::proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto};
use unfold::{FuseOptions, fuse, model_page};

use crate::{How, Look, SiteRecord, look, write};

pub const TRIALS: &[Look] = &[
    (
        "page_lists_every_site_and_row",
        page_lists_every_site_and_row,
    ),
    (
        "link_to_a_site_shows_its_formulas",
        link_to_a_site_shows_its_formulas,
    ),
    (
        "click_shows_a_formula_and_escape_returns",
        click_shows_a_formula_and_escape_returns,
    ),
    (
        "site_that_stays_shows_its_refusals",
        site_that_stays_shows_its_refusals,
    ),
    (
        "graph_is_navigated_by_keys_and_searched",
        graph_is_navigated_by_keys_and_searched,
    ),
    (
        "phone_width_shows_one_graph_at_a_time",
        phone_width_shows_one_graph_at_a_time,
    ),
    (
        "print_opens_all_blocks_and_closes_them_again",
        print_opens_all_blocks_and_closes_them_again,
    ),
    (
        "centred_streams_are_explained",
        centred_streams_are_explained,
    ),
    (
        "five_thousand_operators_open_as_blocks",
        five_thousand_operators_open_as_blocks,
    ),
    (
        "drawing_has_a_box_for_each_operator",
        drawing_has_a_box_for_each_operator,
    ),
    (
        "drawing_of_a_large_block_has_a_box_for_each_inner_block",
        drawing_of_a_large_block_has_a_box_for_each_inner_block,
    ),
    ("names_are_never_markup", names_are_never_markup),
];

pub(super) const DESK: How = How {
    width: 1200,
    dark: false,
    address: "",
};

/// The page of a model, and the data in it.
pub(super) struct Page {
    pub html: String,
    pub data: Value,
}

impl Page {
    fn new(name: &str, model: &Model, skip: &[&str]) -> Self {
        let options = FuseOptions {
            skip: skip.iter().map(|&pattern| pattern.to_owned()).collect(),
            ..Default::default()
        };
        Self::from_html(model_page(name, model, &fuse(model, &options).unwrap()).unwrap())
    }

    pub(super) fn from_html(html: String) -> Self {
        let data = html.split("id=\"data\">").nth(1).unwrap();
        let data = data.split("</script>").next().unwrap();
        let data = serde_json::from_str(data).unwrap();
        Page { html, data }
    }

    /// A list of the data, such as that of the sites.
    pub(super) fn list(&self, key: &str) -> &Vec<Value> {
        self.data[key].as_array().unwrap()
    }
}

fn digits(name: &str, skip: &[&str]) -> Page {
    let model = Model::open(format!("models/digits/{name}.onnx")).unwrap();
    Page::new(name, &model, skip)
}

/// Runs steps in a page, and returns its report. The steps may call `one(selector)`,
/// `all(selector)`, `key(name)` and `tell(name, value)`.
pub(super) fn after(browser: &Path, page: &Page, how: How, steps: &str) -> SiteRecord {
    let probe = format!(
        r#"<script>
addEventListener("load", async () => {{
  const told = {{}};
  const one = selector => document.querySelector(selector), all = selector => [...document.querySelectorAll(selector)];
  const seen = selector => all(selector).filter(element => element.offsetParent !== null);
  const tell = (name, value) => {{ told[name] = String(value).replaceAll("[", "(").replaceAll("]", ")"); }};
  const wait = () => new Promise(done => setTimeout(done, 300));
  const key = name => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {{ key: name, bubbles: true, cancelable: true }}));
  {steps}
  tell("overflow", document.documentElement.scrollWidth - innerWidth);
  tell("requests", performance.getEntriesByType("resource").length);
  tell("unnamed", all("button, input, [role=treegrid], section").filter(element =>
    !(element.textContent.trim() || element.getAttribute("aria-label"))).length);
  parent.postMessage(told, "*");
}});
</script>"#
    );
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &page.html, &probe);
    let seen = look(browser, folder.path(), how);
    assert_eq!(
        ["overflow", "requests", "unnamed"].map(|key| seen.count(key)),
        [0; 3],
        "{}",
        seen.0
    );
    seen
}

fn page_lists_every_site_and_row(browser: &Path) {
    let page = digits("ln-dynamo", &["blocks.0.norm1", "blocks.1.attn"]);
    let steps = r##"
        for (const state of ["folded", "partly", "refused", "left"]) tell(state, one(`#states [data-state=${state}]`).dataset.count);
        tell("sites", all("#sites li").length);
        one("#unfold").click();
        tell("rows", all("[data-row]").length);
        tell("gone", all(".gone").length);
        tell("background", getComputedStyle(document.body).backgroundColor);
    "##;
    let mut backgrounds = vec![];
    for dark in [false, true] {
        let seen = after(browser, &page, How { dark, ..DESK }, steps);
        let count = |state: &str| {
            let sites = page.list("sites").iter();
            sites.filter(|site| site["state"] == state).count()
        };
        for state in ["folded", "partly", "refused", "left"] {
            assert_eq!(seen.count(state), count(state), "{state}");
        }
        assert!(
            seen.count("left") == 2 && seen.count("folded") > 5,
            "{}",
            seen.0
        );
        assert_eq!(seen.count("sites"), page.list("sites").len());
        assert_eq!(seen.count("rows"), page.list("rows").len());
        assert!(seen.count("gone") > 0);
        backgrounds.push(seen.text("background").to_owned());
    }
    assert_ne!(backgrounds[0], backgrounds[1]);
}

/// The formula of the first new weight of a site, as the page shows it.
fn formula(page: &Page, site: &str) -> String {
    let mut tensors = page.list("tensors").iter();
    let tensor = tensors.find(|tensor| tensor["sites"].as_array().unwrap().contains(&site.into()));
    let formula = tensor.unwrap()["formula"].as_str().unwrap();
    formula
        .replace('[', "(")
        .replace(']', ")")
        .replace("; ", ";")
}

fn link_to_a_site_shows_its_formulas(browser: &Path) {
    let page = digits("un-dynamo", &[]);
    let steps = r##"
        tell("title", one("#panel h2").textContent);
        tell("formula", one("#panel .formula").textContent.replaceAll("; ", ";"));
        tell("own", all(".own").map(row => row.querySelector(".op").textContent));
    "##;
    let seen = after(
        browser,
        &page,
        How {
            address: "#site=3",
            ..DESK
        },
        steps,
    );
    assert_eq!(seen.text("title"), "blocks.0.norm2.un");
    assert_eq!(seen.text("formula"), formula(&page, "blocks.0.norm2.un"));
    assert_eq!(seen.text("own"), "Div,Mul,Add");
    // An unknown address selects nothing.
    for address in ["#site=99", "#site=-1", "#site=x", "#node=1e9", "#nothing"] {
        let seen = after(
            browser,
            &page,
            How { address, ..DESK },
            r##"tell("title", one("#panel h2").textContent);"##,
        );
        assert_eq!(seen.text("title"), "13 sites");
    }
}

fn click_shows_a_formula_and_escape_returns(browser: &Path) {
    let page = digits("un-dynamo", &[]);
    let steps = r##"
        one(".chip[data-site='3']").click();
        tell("address", location.hash);
        tell("formula", one("#panel .formula").textContent.replaceAll("; ", ";"));
        one("#unfold").click();
        all(".changed.c-product")[0].click();
        tell("weight", one("#panel .tensor strong").textContent);
        tell("node", location.hash.split("=")[0]);
        key("Escape");
        tell("back", one("#panel h2").textContent + location.hash);
    "##;
    let seen = after(browser, &page, DESK, steps);
    assert_eq!(
        (seen.text("address"), seen.text("node")),
        ("#site=3", "#node")
    );
    assert_eq!(seen.text("formula"), formula(&page, "blocks.0.norm2.un"));
    assert!(seen.text("weight").ends_with("_folded"), "{}", seen.0);
    assert_eq!(seen.text("back"), "13 sites");
}

fn site_that_stays_shows_its_refusals(browser: &Path) {
    let page = digits("dyt-dynamo", &[]);
    let steps = r##"
        tell("state", one("#panel .state").textContent);
        tell("refusals", all("#panel .refusal").map(refusal => refusal.firstChild.textContent));
        tell("help", one("#panel details[open]").textContent);
    "##;
    let address = format!(
        "#site={}",
        page.list("sites")
            .iter()
            .position(|site| site["name"] == "blocks.0.norm2")
            .unwrap()
    );
    let seen = after(
        browser,
        &page,
        How {
            address: &address,
            ..DESK
        },
        steps,
    );
    assert!(seen.text("state").contains("folded"), "{}", seen.0);
    assert!(
        seen.text("refusals")
            .contains("Tanh is no linear operator, at node_tanh_1"),
        "{}",
        seen.0
    );
    assert!(seen.text("help").contains("Remedy:"), "{}", seen.0);
}

fn graph_is_navigated_by_keys_and_searched(browser: &Path) {
    let page = digits("un-legacy", &[]);
    let steps = r##"
        one("#fold").click();
        const where = () => document.activeElement.dataset;
        one("[role=row][tabindex='0']").focus();
        const focusable = all("[role=row][tabindex='0']").length;
        tell("focusable", focusable);
        while (where().block === undefined) key("ArrowDown");
        const block = where().block, rows = all("[role=row]").length;
        key("ArrowRight");
        tell("opened", all("[role=row]").length > rows);
        key("ArrowRight");
        tell("level", document.activeElement.ariaLevel);
        key("ArrowLeft");
        tell("back", where().block === block);
        key("ArrowLeft");
        tell("closed", all("[role=row]").length === rows);
        key("End");
        tell("end", document.activeElement === all("[role=row]").at(-1));
        key("n");
        tell("site", location.hash);
        key("n");
        tell("next", location.hash);
        key("p");
        tell("previous", location.hash);
        key("/");
        tell("finds", document.activeElement.id);
        one("#find").value = "SOFTMAX";
        one("#find").dispatchEvent(new Event("input"));
        await wait();
        tell("found", all("[data-row]").map(row => row.querySelector(".op").textContent));
        key("Escape");
        one("#changes").click();
        tell("changes", all(".same, .rewired").length);
        tell("changed", all("[data-row]").length);
    "##;
    let seen = after(browser, &page, DESK, steps);
    for fact in ["opened", "back", "closed", "end"] {
        assert_eq!(seen.text(fact), "true", "{fact}: {}", seen.0);
    }
    assert_eq!((seen.count("focusable"), seen.count("level")), (1, 2));
    assert_eq!(
        ["site", "next", "previous"].map(|key| seen.text(key)),
        ["#site=0", "#site=1", "#site=0"]
    );
    // Readers of a Softmax are found as well.
    assert_eq!(
        (seen.text("finds"), seen.text("found")),
        ("find", "Softmax,MatMul,Softmax,MatMul,Softmax,MatMul")
    );
    assert_eq!(seen.count("changes"), 0);
    assert!(seen.count("changed") > 10, "{}", seen.0);
}

fn phone_width_shows_one_graph_at_a_time(browser: &Path) {
    let page = digits("un-dynamo", &[]);
    let steps = r##"
        one("#unfold").click();
        const rows = () => seen("[data-row]").length, cells = side => seen(`[data-row] .${side}`).length;
        tell("before", [rows(), cells("before"), cells("after")]);
        one("#sides [data-side=after]").click();
        tell("after", [rows(), cells("before"), cells("after")]);
        one("#sides [data-side=before]").click();
        one(".chip[data-site='3']").click();
        tell("sheet", getComputedStyle(one("#panel")).position);
        tell("fits", one("#panel").getBoundingClientRect().right <= innerWidth);
        one("#panel [aria-label=Close]").click();
        tell("closed", getComputedStyle(one("#panel")).position);
    "##;
    let seen = after(browser, &page, How { width: 375, ..DESK }, steps);
    let rows = page.list("rows").iter();
    let before = rows.clone().filter(|row| !row["before"].is_null()).count();
    let gone = rows.filter(|row| row["change"] == "gone").count();
    let after = page.list("rows").len() - gone;
    assert_eq!(seen.text("before"), format!("{before},{before},0"));
    assert_eq!(seen.text("after"), format!("{after},0,{after}"));
    assert_eq!(
        (seen.text("sheet"), seen.text("fits"), seen.text("closed")),
        ("fixed", "true", "static")
    );
}

/// A model of blocks with one normalizer each, with names as an exporter gives them.
fn made(blocks: usize, per_block: usize, prefix: &str) -> Model {
    let text = |text: &str| Some(text.to_owned());
    let mut graph = GraphProto {
        name: text("g"),
        ..Default::default()
    };
    let mut last = "x".to_owned();
    for at in 0..blocks * per_block {
        let output = format!("{prefix}v{at}");
        let block = at / per_block;
        graph.node.push(NodeProto {
            name: Some(format!(
                "/{prefix}blocks/{prefix}blocks.{block}/mlp/Relu_{at}"
            )),
            op_type: text("Relu"),
            input: vec![last],
            output: vec![output.clone()],
            ..Default::default()
        });
        last = output;
    }
    let value = |name: &str| ValueInfoProto {
        name: text(name),
        ..Default::default()
    };
    graph.input.push(value("x"));
    graph.output.push(value(&last));
    model_of(graph)
}

/// A model of operator set 17 with this graph.
pub fn model_of(graph: GraphProto) -> Model {
    let opset = OperatorSetIdProto {
        version: Some(17),
        ..Default::default()
    };
    Model::from_proto(ModelProto {
        ir_version: Some(8),
        graph: Some(graph),
        opset_import: vec![opset],
        ..Default::default()
    })
}

fn print_opens_all_blocks_and_closes_them_again(browser: &Path) {
    let model = made(50, 100, "");
    let page = Page::new("made", &model, &[]);
    let steps = r##"
        tell("before", all("[data-row]").length);
        window.dispatchEvent(new Event("beforeprint"));
        tell("printed", all("[data-row]").length);
        window.dispatchEvent(new Event("afterprint"));
        tell("after", all("[data-row]").length);
    "##;
    let seen = after(browser, &page, DESK, steps);
    assert_eq!(seen.count("printed"), 5000);
    assert_eq!(seen.count("before"), seen.count("after"));
    assert!(seen.count("before") < 5000, "{}", seen.0);
}

fn centred_streams_are_explained(browser: &Path) {
    let page = digits("ln-dynamo", &[]);
    let steps = r##"tell("stream", one("#about + p").textContent);"##;
    let seen = after(browser, &page, DESK, steps);
    let sentence =
        "7 LayerNorms on the stream conv2d: written as RMSNorm, since the stream has no mean";
    assert!(seen.text("stream").starts_with(sentence), "{}", seen.0);
}

/// The rows of a block with those of its inner blocks.
fn rows_within(page: &Page, block: usize) -> Vec<&Value> {
    let items = page.list("blocks")[block]["items"].as_array().unwrap();
    let rows = items.iter().flat_map(|item| match item["block"].as_u64() {
        Some(inner) => rows_within(page, inner as usize),
        None => vec![&page.list("rows")[item["row"].as_u64().unwrap() as usize]],
    });
    rows.collect()
}

/// Writes the steps that draw the block with the title `name`.
fn draws(name: &str) -> String {
    format!(
        r##"
        one("#unfold").click();
        const head = all("[data-block]").find(head => head.querySelector(".title").textContent === "{name}");
        head.click();
        head.focus();
        key("d");
        const boxes = side => [...all("#sheets svg")[side].querySelectorAll(".box")];
        const centre = box => {{
          const {{ e, f }} = box.transform.baseVal[0].matrix;
          return [e, f];
        }};
    "##
    )
}

fn drawing_has_a_box_for_each_operator(browser: &Path) {
    let page = digits("un-dynamo", &[]);
    let steps = draws("blocks.0")
        + r##"
        tell("title", one("#drawn").textContent);
        tell("inputs", [0, 1].map(side => boxes(side).filter(box => box.matches(".input")).map(box => box.textContent)));
        tell("boxes", [0, 1].map(side => boxes(side).filter(box => !box.matches(".input")).length));
        tell("gone", boxes(0).filter(box => box.matches(".gone")).length);
        tell("overlaps", [0, 1].flatMap(side => boxes(side).map(centre).flatMap(([x, y], at, all) =>
          all.slice(at + 1).filter(other => Math.abs(other[0] - x) < 149 && Math.abs(other[1] - y) < 37))).length);
        const heights = operator => boxes(1).filter(box => box.querySelector("text").textContent === operator)
          .map(box => centre(box)[1]);
        tell("down", Math.max(...heights("Slice")) < Math.min(...heights("Softmax"))
          && Math.max(...heights("Softmax")) < Math.min(...heights("Gelu")));
        const width = () => all("#sheets svg")[0].viewBox.baseVal.width, left = () => all("#sheets svg")[0].viewBox.baseVal.x;
        const [wide, from] = [width(), left()];
        key("+");
        tell("zoom", (wide / width()).toFixed(2));
        key("0");
        key("ArrowRight");
        tell("pans", left() > from);
        boxes(1).find(box => box.querySelector("text").textContent === "Gelu").focus();
        key("Enter");
        tell("open", one("#drawing").open);
        tell("chosen", one("#panel dl dd").textContent);
    "##;
    for width in [1200, 375] {
        let seen = after(browser, &page, How { width, ..DESK }, &steps);
        let blocks = page.list("blocks").iter();
        let block = blocks.clone().position(|block| block["name"] == "blocks.0");
        let rows = rows_within(&page, block.unwrap());
        let before = rows.iter().filter(|row| !row["before"].is_null()).count();
        let gone = rows.iter().filter(|row| row["change"] == "gone").count();
        assert_eq!(seen.text("title"), "blocks.0");
        assert_eq!(seen.text("inputs"), "addaddbatch×16×40,addaddbatch×16×40");
        assert_eq!(
            seen.text("boxes"),
            format!("{before},{}", rows.len() - gone)
        );
        assert_eq!((seen.count("gone"), seen.count("overlaps")), (gone, 0));
        assert_eq!((seen.text("down"), seen.text("zoom")), ("true", "1.25"));
        assert_eq!((seen.text("pans"), seen.text("open")), ("true", "false"));
        assert_eq!(seen.text("chosen"), "Gelu");
    }
}

fn drawing_of_a_large_block_has_a_box_for_each_inner_block(browser: &Path) {
    let page = Page::new("made", &made(50, 100, ""), &[]);
    let inner = draws("blocks.7.mlp")
        + r##"tell("boxes", boxes(0).length); tell("layers", new Set(boxes(0).map(box => centre(box)[1])).size);"##;
    let seen = after(browser, &page, DESK, &inner);
    // Each operator is in its own layer, below the input.
    assert_eq!((seen.count("boxes"), seen.count("layers")), (101, 101));
    let outer = r##"
        one("#draw").click();
        one("#outer").click();
        tell("inner", [...all("#sheets svg")[0].querySelectorAll(".inner")].length);
        tell("message", one("#too-many").textContent === "" && one("#outer").hidden);
    "##;
    let seen = after(browser, &page, DESK, outer);
    assert_eq!((seen.count("inner"), seen.text("message")), (50, "true"));
    let flat = Page::new("flat", &made(1, 8000, ""), &[]);
    let seen = after(
        browser,
        &flat,
        DESK,
        r##"one("#draw").click(); tell("message", one("#too-many").textContent);"##,
    );
    assert!(
        seen.text("message").starts_with("167 parts are too many"),
        "{}",
        seen.0
    );
}

fn five_thousand_operators_open_as_blocks(browser: &Path) {
    let model = made(50, 100, "");
    let page = Page::new("made", &model, &[]);
    let steps = r##"
        tell("first", all("[role=row]").length);
        tell("elements", document.querySelectorAll("*").length);
        one("[data-block]").click();
        tell("opened", all("[role=row]").length);
        one("#unfold").click();
        tell("all", all("[data-row]").length);
        one("#fold").click();
        one("#find").value = "relu_4321";
        one("#find").dispatchEvent(new Event("input"));
        await wait();
        tell("found", all("[data-row]").length);
    "##;
    let seen = after(browser, &page, DESK, steps);
    assert_eq!(page.list("rows").len(), 5000);
    assert_eq!(
        (seen.count("first"), seen.count("all"), seen.count("found")),
        (50, 5000, 1)
    );
    assert!(seen.count("elements") < 1000, "{}", seen.0);
    assert!(seen.count("opened") > 50, "{}", seen.0);
}

fn names_are_never_markup(browser: &Path) {
    let model = made(2, 3, "</script><img src=x onerror=alert(1)>&quot;");
    let page = Page::new("</title><b>made</b>", &model, &[]);
    let steps = r##"
        one("#unfold").click();
        all("[data-row]")[4].click();
        tell("title", document.title);
        tell("foreign", all("img, body b:not(#states b), script").length);
        tell("rows", all("[data-row]").length);
        tell("node", one("#panel h2").textContent.startsWith("/<" + "/script><img src=x onerror=alert(1)>&quot;blocks/"));
    "##;
    let seen = after(browser, &page, DESK, steps);
    // The scripts are the data, the script of the page, and the one that reports.
    assert_eq!((seen.count("foreign"), seen.count("rows")), (3, 6));
    assert_eq!(seen.text("node"), "true");
}
