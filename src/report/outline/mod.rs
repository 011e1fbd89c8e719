//! A model before and after, as data and as one page to look at it.

use std::collections::BTreeMap;

use serde::Serialize;

use super::data::Class;
use super::document::{document, escape};

const STYLE: &str = include_str!("page.css");
const BODY: &str = include_str!("page.html");
// One function, so that its names are no names of the page.
const SCRIPT: &str = concat!(
    "(() => {\n",
    include_str!("index.js"),
    include_str!("tree.js"),
    include_str!("panel.js"),
    include_str!("actions.js"),
    "})();\n",
);

/// A model before and after: its operators side by side, by the blocks that they are in, and what became of the sites.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outline {
    /// The name of the model, such as its file.
    pub model: String,
    /// The version of unfold.
    pub version: String,
    /// Bytes of the file before and after.
    pub file_bytes: [u64; 2],
    /// The sites, as the plan has them.
    pub sites: Vec<OutlineSite>,
    /// The tensors that the result has and the model has not.
    pub tensors: Vec<ReportedTensor>,
    /// The explanation of each reason that a site has, in Markdown, by its name.
    pub reasons: BTreeMap<&'static str, &'static str>,
    /// The operators of both graphs in the order in which they run.
    pub rows: Vec<OutlineRow>,
    /// The blocks; the first one is the whole.
    pub blocks: Vec<OutlineBlock>,
    /// The inputs and outputs of the operators before, and the new or changed ones after.
    pub values: [BTreeMap<String, OutlineValue>; 2],
}

/// A new tensor, and how it is computed from those of the model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReportedTensor {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub data_type: String,
    /// Its extents.
    pub shape: Vec<usize>,
    /// The formula.
    pub formula: String,
    /// The constants of the model in the formula.
    pub inputs: Vec<String>,
    /// The names of the sites that it is for.
    pub sites: Vec<String>,
}

/// A site, and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OutlineSite {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// The formula at inference.
    pub form: String,
    /// How many channels it has.
    pub channels: usize,
    /// Their axis.
    pub axis: usize,
    /// The state of the whole site.
    pub state: SiteState,
    /// The names of its operators.
    pub nodes: Vec<String>,
    /// The state of each part, in order of execution.
    pub parts: Vec<OutlinePart>,
}

/// The state of a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SiteState {
    /// All that can be folded of it is.
    Folded,
    /// Something of it went, and something stayed.
    Partly,
    /// The site stays, with a refusal.
    Refused,
    /// It stays, since nothing of it is to be folded.
    Left,
}

/// The state of a part of a site.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OutlinePart {
    /// Which part it is.
    pub part: &'static str,
    /// Where it goes, if it does: `forward`, or `shift` where only that goes.
    pub goes: Option<&'static str>,
    /// The operators that take it in.
    pub into: Vec<String>,
    /// Why it stays, or what of it stays.
    pub refusals: Vec<ReportedRefusal>,
}

/// A reason for which something stays.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReportedRefusal {
    /// The refused direction or part: `forward` and `backward`, or `scale`, or `shift`.
    pub what: &'static str,
    /// The name of the reason.
    pub reason: &'static str,
    /// The reason in words.
    pub words: String,
    /// The operator, or the value, where it stopped.
    pub at: String,
}

/// An operator before and after.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OutlineRow {
    /// How the two differ.
    pub change: RowChange,
    /// The class of the operator.
    pub class: Class,
    /// The sites that it belongs to, by their places.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sites: Vec<usize>,
    /// The operator before; `None` for a new one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<OutlineNode>,
    /// The operator after; `None` if it is removed or unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<OutlineNode>,
}

/// The change of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RowChange {
    /// Not at all.
    Same,
    /// An input or output has another name, since a neighbour was removed.
    Rewired,
    /// It has other constants or attributes, or is another operator.
    Changed,
    /// The operator was removed.
    Gone,
    /// It was not there.
    New,
}

/// An operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OutlineNode {
    /// Its name.
    pub name: String,
    /// The operator.
    pub operator: String,
    /// The names of the values that it reads; empty where it reads none in a place.
    pub inputs: Vec<String>,
    /// The names of the values that it makes.
    pub outputs: Vec<String>,
    /// Its attributes, each as `name=value`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<String>,
}

/// A value that an operator reads or makes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OutlineValue {
    /// The type and the extents, such as `float[batch, 65, 40]`, with `?` for unknown ones.
    pub of: String,
    /// Whether it is stored in the model.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stored: bool,
}

/// Operators that belong together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct OutlineBlock {
    /// The name inside of the enclosing block.
    pub name: String,
    /// The contents, in order.
    pub items: Vec<OutlineItem>,
}

/// A part of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OutlineItem {
    /// A row, by its place.
    Row(usize),
    /// A block, by its place.
    Block(usize),
}

/// A page to look at a model: the graph before and after, by its blocks, and all that is known of its sites.
///
/// The page is self-contained and loads nothing. Its address holds the selection, such as
/// `#site=3`.
///
/// # Errors
/// If the outline has no form in JSON.
pub fn outline_html(outline: &Outline) -> serde_json::Result<String> {
    // In a string of JSON it is the same; in a page it would begin a tag, which may be the end of the script.
    let data = serde_json::to_string(outline)?.replace('<', "\\u003c");
    let model = escape(&outline.model);
    let body = format!(
        "<h1>{model}</h1>\n{BODY}<script type=\"application/json\" id=\"data\">{data}</script>\n\
         <script>\n{SCRIPT}</script>\n"
    );
    Ok(document(
        &format!("{} - unfold inspect", outline.model),
        STYLE,
        &body,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that would end everything that a name can be in.
    const HOSTILE: &str =
        "</script><!--<script>alert(1)</script>\"'&<img src=x onerror=alert(1)>\u{2028}\\";

    #[test]
    fn hostile_names_stay_inside_the_json() {
        let value = OutlineValue {
            of: HOSTILE.into(),
            stored: true,
        };
        let outline = Outline {
            model: HOSTILE.into(),
            version: "0".into(),
            file_bytes: [1, 1],
            sites: vec![],
            tensors: vec![],
            reasons: BTreeMap::new(),
            rows: vec![],
            blocks: vec![OutlineBlock::default()],
            values: [BTreeMap::from([(HOSTILE.into(), value)]), BTreeMap::new()],
        };
        let page = outline_html(&outline).unwrap();
        assert_eq!(page.matches("</script").count(), 2);
        assert_eq!(
            (
                page.matches("<script").count(),
                page.matches("<!--").count()
            ),
            (2, 0)
        );
        assert!(!page.contains("<img"));
        let data = page
            .split("id=\"data\">")
            .nth(1)
            .unwrap()
            .split("</script>")
            .next()
            .unwrap();
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["model"], HOSTILE);
        assert_eq!(data["values"][0][HOSTILE]["of"], HOSTILE);
    }

    #[test]
    fn outline_page_loads_no_external_resource() {
        for part in [STYLE, BODY, SCRIPT] {
            for word in [
                "http",
                "//www",
                "<link",
                "@import",
                "url(",
                "src=",
                "fetch(",
                "innerHTML",
                "eval(",
            ] {
                assert!(!part.contains(word), "{word}");
            }
        }
    }
}
