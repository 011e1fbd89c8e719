//! Reports the sites of a model and their outcomes.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use comfy_table::{CellAlignment, ColumnConstraint, Table, Width};
use serde::Serialize;
use unfold::error::Result;
use unfold::ir::regions::Flat;
use unfold::ir::scope::scope;
use unfold::ir::{Graph, NodeId};
use unfold::onnx::Model;
use unfold::plan::{Outcome, Plan, SitePlan};
use unfold::refusal::{Reason, Refusal};

use super::out::{self, Paint, Tone};

/// The maximum number of operators that a line names. Further operators are only counted.
const NAMED: usize = 3;

/// The maximum number of rows of a table of sites. Further sites are only counted.
const LISTED: usize = 200;

/// The width of the column of names above which names are wrapped.
const LONGEST: usize = 30;

/// The minimum width of the last column.
const NARROWEST: u16 = 20;

/// A site in the table.
pub(crate) struct Row<'p> {
    /// The site.
    pub site: &'p SitePlan,
    /// The outcomes of its affines, in order of execution.
    pub outcomes: Vec<AffineOutcome>,
}

/// The outcome of one affine in words.
pub(crate) struct AffineOutcome {
    /// The position of the affine: `before`, `core` or `behind`. Empty if the site has only one
    /// affine.
    pub place: &'static str,
    /// Whether all of the affine folds.
    pub folded: bool,
    /// The direction in which the affine folds, `shift only`, `scale only`, or `stays`.
    pub fold: &'static str,
    /// The operators that absorb the affine, or the reasons why it stays.
    pub what: String,
}

impl fmt::Display for AffineOutcome {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let link = if self.folded { " into " } else { ": " };
        write!(f, "{}{link}{}", self.fold, self.what)
    }
}

/// The rows of sites of a model.
pub(crate) fn rows<'p>(
    model: &Model,
    sites: impl Iterator<Item = &'p SitePlan>,
) -> Result<Vec<Row<'p>>> {
    let mut sites = sites.peekable();
    if sites.peek().is_none() {
        return Ok(vec![]);
    }
    // A plan prefixes the names of nodes in bodies by their region path, so the nodes are looked up
    // in the flattened graph.
    let flat = Flat::new(model);
    let graph = &Graph::new(flat.as_ref().map_or(model, |flat| &flat.model))?;
    let names: HashMap<&str, NodeId> = graph
        .order()
        .iter()
        .map(|&node| (graph.name(node), node))
        .collect();
    let described = Described {
        graph,
        names: &names,
    };
    Ok(sites.map(|site| described.row(site)).collect())
}

/// A graph with its nodes by name.
struct Described<'g> {
    graph: &'g Graph<'g>,
    names: &'g HashMap<&'g str, NodeId>,
}

impl Described<'_> {
    fn row<'p>(&self, site: &'p SitePlan) -> Row<'p> {
        let SitePlan {
            pre, core, post, ..
        } = site;
        let is_one = site.outcomes().count() == 1;
        let mut outcomes = vec![];
        for (place, outcome) in [("before", pre), ("core", core), ("behind", post)] {
            if let Some(outcome) = outcome {
                outcomes.push(self.tell(&site.name, if is_one { "" } else { place }, outcome));
            }
        }
        Row { site, outcomes }
    }

    fn tell(&self, site: &str, place: &'static str, outcome: &Outcome) -> AffineOutcome {
        let (folded, fold, what) = match outcome {
            Outcome::Folded { direction, into } => {
                (true, direction.name(), self.describe(site, into))
            }
            Outcome::Partly { into, scale } => {
                let into = self.describe(site, into);
                (
                    false,
                    "shift only",
                    format!("{into}; scale: {}", in_short(scale)),
                )
            }
            Outcome::Scaled { into, shift } => {
                let into = self.describe(site, into);
                (
                    false,
                    "scale only",
                    format!("{into}; shift: {}", in_short(shift)),
                )
            }
            Outcome::Kept { .. } => {
                let refusals = outcome.refusals();
                let what: Vec<String> = refusals.map(|(_, refusal)| in_short(refusal)).collect();
                (false, "stays", what.join("; "))
            }
        };
        AffineOutcome {
            place,
            folded,
            fold,
            what,
        }
    }

    /// Describes nodes by their operators and modules, which are clearer than numbered names of
    /// exporters: `MatMul …attn.q, …attn.k`, or `MatMul+Add …attn.q` for two nodes of one module.
    /// `…` stands for the first steps of a module path, if the path of the site begins with them
    /// too.
    fn describe(&self, site: &str, into: &[String]) -> String {
        let mut modules: Vec<(String, String)> = vec![];
        for name in into {
            let (operator, path) = match self.names.get(name.as_str()) {
                Some(&node) => {
                    let operator = self.graph.node(node).op_type();
                    (operator, scope(self.graph, node).path)
                }
                None => ("", String::new()),
            };
            let path = if path.is_empty() {
                name.clone()
            } else {
                beside(&path, site)
            };
            match modules.iter_mut().find(|(_, other)| *other == path) {
                Some((operators, _)) => *operators = format!("{operators}+{operator}"),
                None => modules.push((operator.to_owned(), path)),
            }
        }
        listed(modules)
    }
}

/// The first modules with their operators, and the number of the other modules.
fn listed(mut modules: Vec<(String, String)>) -> String {
    let more = modules.len().saturating_sub(NAMED);
    modules.truncate(if more > 1 { NAMED } else { modules.len() });
    let mut last = "";
    let mut words: Vec<String> = vec![];
    for (operators, path) in &modules {
        words.push(if operators == last {
            path.clone()
        } else {
            format!("{operators} {path}")
        });
        last = operators;
    }
    if more > 1 {
        words.push(format!("{more} more"));
    }
    words.join(", ")
}

/// The name of the reason of a refusal, which the legend explains, and the last step of the node's
/// name.
pub(crate) fn in_short(refusal: &Refusal) -> String {
    let Refusal { reason, at } = refusal;
    match at.rsplit_once('/') {
        _ if at.is_empty() => reason.name().to_owned(),
        Some((_, last)) => format!("{} at …/{last}", reason.name()),
        None => format!("{} at {at}", reason.name()),
    }
}

/// The meanings of the reasons, one per line.
fn legend(rows: &[Row], paint: Paint) -> String {
    let outcomes = rows.iter().flat_map(|row| row.site.outcomes());
    let refusals = outcomes
        .flat_map(Outcome::refusals)
        .map(|(_, refusal)| &refusal.reason);
    let reasons: BTreeSet<[String; 2]> = refusals
        .map(|reason| [reason.name().to_owned(), explained(reason)])
        .collect();
    if reasons.is_empty() {
        return String::new();
    }
    let mut table = paint.table(&["why not", ""]);
    table.add_rows(reasons.into_iter().map(|reason| reason.map(out::cell)));
    if let Some(names) = table.column_mut(0) {
        names.set_constraint(ColumnConstraint::ContentWidth);
    }
    format!("\n{}", out::lines(&table))
}

/// A reason in words, and the option that may lift it.
fn explained(reason: &Reason) -> String {
    match reason.option() {
        Some(option) => format!("{reason}; {option}"),
        None => reason.to_string(),
    }
}

/// A module path without the steps that it shares with the path of the site.
fn beside(path: &str, site: &str) -> String {
    // Several sites of one module are numbered after `#`.
    let site = site.split('#').next().unwrap_or(site);
    let shared: usize = path
        .split('.')
        .zip(site.split('.'))
        .take_while(|(a, b)| a == b)
        .map(|(step, _)| step.len() + 1)
        .sum();
    match path.get(shared..) {
        Some(rest) if shared > 0 && !rest.is_empty() => format!("…{rest}"),
        _ => path.to_owned(),
    }
}

/// Several sites that stay for equal reasons, or one site.
struct SiteGroup<'r, 'p> {
    first: &'r Row<'p>,
    sites: usize,
}

impl SiteGroup<'_, '_> {
    /// The name of the only site, or the number of sites.
    fn name(&self) -> String {
        if self.sites == 1 {
            self.first.site.name.clone()
        } else {
            format!("{} sites", self.sites)
        }
    }

    /// Whether a site belongs to the group: it stays, and its kind, its number of channels and its
    /// reasons equal those of the sites of the group.
    fn holds(&self, row: &Row) -> bool {
        let stays = row.outcomes.iter().all(|outcome| outcome.fold == "stays");
        let (own, other) = (self.first.site, row.site);
        stays
            && (own.kind.name, own.channels) == (other.kind.name, other.channels)
            && self.first.reasons() == row.reasons()
    }

    /// The outcome in words. For a group of several sites, the names of nodes are left out.
    fn outcome(&self, outcome: &AffineOutcome) -> String {
        if self.sites == 1 {
            outcome.what.clone()
        } else {
            reasons(&outcome.what)
        }
    }
}

impl Row<'_> {
    /// The place, direction and reasons of each affine, without the names of nodes.
    fn reasons(&self) -> Vec<(&str, &str, String)> {
        self.outcomes
            .iter()
            .map(|outcome| (outcome.place, outcome.fold, reasons(&outcome.what)))
            .collect()
    }
}

/// The names of the reasons in `reason at node; reason at node`.
fn reasons(what: &str) -> String {
    let names: Vec<&str> = what
        .split("; ")
        .map(|refusal| refusal.split_once(" at ").map_or(refusal, |(name, _)| name))
        .collect();
    names.join("; ")
}

/// The groups of sites that stay for equal reasons. If `verbose`, each site is its own group.
fn groups<'r, 'p>(rows: &'r [Row<'p>], verbose: bool) -> Vec<SiteGroup<'r, 'p>> {
    let mut groups: Vec<SiteGroup> = vec![];
    for row in rows {
        match groups.iter_mut().find(|group| !verbose && group.holds(row)) {
            Some(group) => group.sites += 1,
            None => groups.push(SiteGroup {
                first: row,
                sites: 1,
            }),
        }
    }
    groups
}

/// A table of the sites, and the meanings of the reasons. Unless `verbose`, sites that stay for
/// equal reasons share a row.
pub(crate) fn table(rows: &[Row], verbose: bool, paint: Paint) -> String {
    let groups = groups(rows, verbose);
    let (listed, others) = groups.split_at(groups.len().min(LISTED));
    let mut table = paint.table(&["site", "kind", "channels", "fold", "into, or why not"]);
    for group in listed {
        add_rows(&mut table, group, paint);
    }
    // Only the last column wraps, unless it becomes too narrow to read. Long names wrap too.
    let whole = ColumnConstraint::ContentWidth;
    let longest = listed.iter().map(|group| group.name().chars().count());
    let names = match (table.width(), longest.max().unwrap_or_default()) {
        (None, _) | (_, ..=LONGEST) => whole,
        _ => ColumnConstraint::UpperBoundary(Width::Fixed(LONGEST as u16 + 2)),
    };
    let last = ColumnConstraint::LowerBoundary(Width::Fixed(NARROWEST));
    for (column, constraint) in table
        .column_iter_mut()
        .zip([names, whole, whole, whole, last])
    {
        column.set_constraint(constraint);
    }
    if let Some(channels) = table.column_mut(2) {
        channels.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = out::lines(&table);
    if !others.is_empty() {
        text += &format!("... and {} more; --json lists all\n", others.len());
    }
    text + &legend(rows, paint)
}

/// Adds a row for each affine of a group.
fn add_rows(table: &mut Table, group: &SiteGroup, paint: Paint) {
    let SitePlan { kind, channels, .. } = group.first.site;
    let mut first = [group.name(), kind.name.to_owned(), channels.to_string()];
    for outcome in &group.first.outcomes {
        let tone = if outcome.folded {
            Tone::Good
        } else {
            Tone::Bad
        };
        let [name, kind, channels] = first;
        let kind = format!("{kind} {}", outcome.place);
        let mut cells: Vec<_> = [&name, kind.trim(), &channels].map(out::cell).into();
        cells.push(paint.cell(tone, outcome.fold));
        cells.push(out::cell(group.outcome(outcome)));
        table.add_row(cells);
        first = Default::default();
    }
}

/// A site as JSON, with a field that says whether all of it folds.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct JsonSite<'p> {
    #[serde(flatten)]
    site: &'p SitePlan,
    folded: bool,
}

/// The sites as JSON.
pub(crate) fn json(plan: &Plan) -> Vec<JsonSite<'_>> {
    plan.sites
        .iter()
        .map(|site| JsonSite {
            site,
            folded: site.is_folded(),
        })
        .collect()
}
