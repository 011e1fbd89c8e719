//! The outline of a model before and after folding, as data and as an HTML page.

use std::collections::BTreeMap;

use serde::Serialize;

use super::class::Class;
use super::document::{document, escape};

const STYLE: &str = include_str!("page.css");
const BODY: &str = include_str!("page.html");
// The scripts are in one function, so that their names are not global on the page.
const SCRIPT: &str = concat!(
    "(() => {\n",
    include_str!("index.js"),
    include_str!("tree.js"),
    include_str!("panel.js"),
    include_str!("layout.js"),
    include_str!("drawing.js"),
    include_str!("actions.js"),
    "})();\n",
);

/// The outline of a model before and after folding: its operators side by side in blocks, and the
/// outcomes of its sites.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Outline {
    /// The command that writes the page: `inspect`, or `diff` for any two models.
    pub command: &'static str,
    /// The name of the model, such as its file.
    pub model: String,
    /// The version of unfold.
    pub version: String,
    /// The number of bytes of the model's file before and after folding.
    pub file_bytes: [u64; 2],
    /// The sites of the plan.
    pub sites: Vec<OutlineSite>,
    /// A sentence about each residual stream from which folding subtracts the mean.
    pub streams: Vec<String>,
    /// The tensors that are in the result but not in the model.
    pub tensors: Vec<ReportedTensor>,
    /// The explanations of all reasons that occur, in Markdown, by the names of the reasons.
    pub reasons: BTreeMap<&'static str, &'static str>,
    /// The operators of both graphs, in the order of execution.
    pub rows: Vec<OutlineRow>,
    /// The blocks; the first one is the whole graph.
    pub blocks: Vec<OutlineBlock>,
    /// The inputs and outputs of the operators before folding, and the new or changed inputs and
    /// outputs after it, by name.
    pub values: [BTreeMap<String, OutlineValue>; 2],
}

/// A new tensor, with the formula that computes it from tensors of the model.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ReportedTensor {
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
    /// The names of the sites for which the tensor was computed.
    pub sites: Vec<String>,
}

/// A site and its outcome.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct OutlineSite {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// The formula that the site computes at inference.
    pub form: String,
    /// The number of channels.
    pub channels: usize,
    /// The axis of the channels.
    pub axis: usize,
    /// The state of the whole site.
    pub state: SiteState,
    /// The names of its operators.
    pub nodes: Vec<String>,
    /// The state of each part (before the core, core, after the core), in order of execution.
    pub parts: Vec<OutlinePart>,
}

/// The state of a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SiteState {
    /// Everything in the site that can fold is folded.
    Folded,
    /// Some parts of the site are folded, and some stay.
    Partly,
    /// The site stays because of a refusal.
    Refused,
    /// The site stays because it has nothing to fold, or because it was skipped.
    Left,
}

/// The state of a part of a site.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct OutlinePart {
    /// The name of the part.
    pub part: &'static str,
    /// The direction in which the part folds, such as `forward`, or `shift` or `scale` if only the
    /// shift or the scale folds; `None` if the part stays.
    pub goes: Option<&'static str>,
    /// The operators that absorb the part.
    pub into: Vec<String>,
    /// The reasons why the part, or some of it, stays.
    pub refusals: Vec<ReportedRefusal>,
}

/// A reason for which a part stays.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ReportedRefusal {
    /// The refused direction or part: `forward` or `backward`, `scale` or `shift`.
    pub what: &'static str,
    /// The name of the reason.
    pub reason: &'static str,
    /// The reason in words.
    pub words: String,
    /// The operator or the value at which the fold stopped.
    pub at: String,
}

/// An operator before and after folding.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct OutlineRow {
    /// The change from the operator before to the operator after.
    pub change: RowChange,
    /// The class of the operator.
    pub class: Class,
    /// The indices of the sites to which it belongs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sites: Vec<usize>,
    /// The operator before; `None` if it is new.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<OutlineNode>,
    /// The operator after; `None` if it is removed or unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<OutlineNode>,
}

/// The change of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RowChange {
    /// No change.
    Same,
    /// An input or output has another name, because a neighbour was removed.
    Rewired,
    /// The node has other constants or attributes, or another operator.
    Changed,
    /// The operator was removed.
    Gone,
    /// The operator is new.
    New,
}

/// An operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct OutlineNode {
    /// Its name.
    pub name: String,
    /// The operator.
    pub operator: String,
    /// The names of the values that it reads; empty for an input that is left out.
    pub inputs: Vec<String>,
    /// The names of the values that it computes.
    pub outputs: Vec<String>,
    /// Its attributes, each as `name=value`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<String>,
}

/// An input or output of an operator.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct OutlineValue {
    /// The type and the extents, such as `float[batch, 65, 40]`; unknown ones are `?`.
    pub of: String,
    /// Whether it is a constant of the model.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stored: bool,
    /// The elements of a constant of floats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub elements: Option<Distribution>,
}

/// The distribution of the elements of a tensor.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Distribution {
    /// The smallest element.
    pub min: f64,
    /// The largest element.
    pub max: f64,
    /// The mean of all elements.
    pub mean: f64,
    /// The number of elements in each of the equal intervals from `min` to `max`.
    pub counts: Vec<usize>,
}

impl Distribution {
    /// The number of intervals.
    const INTERVALS: usize = 24;

    /// Computes the distribution of these elements. `None` without elements, or if an element is
    /// not finite.
    pub(crate) fn new(elements: &[f64]) -> Option<Self> {
        let min = elements.iter().copied().fold(f64::INFINITY, f64::min);
        let max = elements.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = elements.iter().sum();
        if elements.is_empty() || !sum.is_finite() {
            return None;
        }
        let mut counts = vec![0; Self::INTERVALS];
        for element in elements {
            let place = (element - min) / (max - min) * Self::INTERVALS as f64;
            // If all elements are equal, the quotient is NaN, which becomes 0.
            counts[(place as usize).min(Self::INTERVALS - 1)] += 1;
        }
        Some(Self {
            min,
            max,
            mean: sum / elements.len() as f64,
            counts,
        })
    }
}

/// A group of related operators.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct OutlineBlock {
    /// The name within the enclosing block.
    pub name: String,
    /// The contents, in order.
    pub items: Vec<OutlineItem>,
}

/// An entry of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OutlineItem {
    /// The index of a row.
    Row(usize),
    /// The index of a block.
    Block(usize),
}

/// Writes a page to explore a model: the graph before and after in blocks, and all facts about its
/// sites.
///
/// The page is self-contained and loads nothing. Its address contains the selection, such as
/// `#site=3`.
///
/// # Errors
/// If the outline cannot be encoded in JSON.
pub(crate) fn outline_html(outline: &Outline) -> serde_json::Result<String> {
    // In JSON, the escape is equivalent to `<`. In a page, `<` would begin a tag, which might end
    // the script.
    let data = serde_json::to_string(outline)?.replace('<', "\\u003c");
    let model = escape(&outline.model);
    let body = format!(
        "<h1>{model}</h1>\n{BODY}<script type=\"application/json\" id=\"data\">{data}</script>\n\
         <script>\n{SCRIPT}</script>\n"
    );
    Ok(document(
        &format!("{} - unfold {}", outline.model, outline.command),
        STYLE,
        &body,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name with characters that end each HTML, script or string context in which a name is
    /// written.
    const HOSTILE: &str =
        "</script><!--<script>alert(1)</script>\"'&<img src=x onerror=alert(1)>\u{2028}\\";

    #[test]
    fn distribution_counts_elements_in_equal_intervals() {
        let found = Distribution::new(&[-1.0, 0.0, 1.0, 1.0, 5.0]).unwrap();
        assert_eq!((found.min, found.max, found.mean), (-1.0, 5.0, 1.2));
        let counted: Vec<(usize, usize)> = (0..24)
            .map(|place| (place, found.counts[place]))
            .filter(|&(_, count)| count > 0)
            .collect();
        // An interval has the length 6/24.
        assert_eq!(counted, [(0, 1), (4, 1), (8, 2), (23, 1)]);
        let one = Distribution::new(&[2.0, 2.0]).unwrap();
        assert_eq!((one.min, one.max, one.counts[0]), (2.0, 2.0, 2));
        assert_eq!(Distribution::new(&[]), None);
        assert_eq!(Distribution::new(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn hostile_names_stay_inside_the_json() {
        let value = OutlineValue {
            of: HOSTILE.into(),
            stored: true,
            elements: None,
        };
        let outline = Outline {
            command: "inspect",
            model: HOSTILE.into(),
            version: "0".into(),
            file_bytes: [1, 1],
            sites: vec![],
            streams: vec![],
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
