//! The sites of a model, and what becomes of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use comfy_table::{CellAlignment, ColumnConstraint, Width};
use serde::Serialize;
use unfold::affine::plan::{OpsetUpgrade, StopReason, Tidy};
use unfold::affine::recognize::Family;
use unfold::error::Result;
use unfold::ir::regions::Flat;
use unfold::ir::scope::scope;
use unfold::ir::{Graph, NodeId};
use unfold::onnx::Model;
use unfold::refusal::Refusal;
use unfold::{Outcome, Plan, SitePlan};

use super::out::{self, Paint, Tone};

/// How many operators a line names before it only counts them.
const NAMED: usize = 3;

/// How many sites a table lists before it only counts them: more than anybody reads in a terminal.
const LISTED: usize = 200;

/// The longest name of a site that is always on one line.
const LONGEST: usize = 30;

/// How narrow the last column becomes, in however narrow a terminal.
const NARROWEST: u16 = 20;

/// A site in the table.
pub struct Row<'p> {
    /// The site.
    pub site: &'p SitePlan,
    /// The outcomes of its affines, in order of execution.
    pub outcomes: Vec<AffineOutcome>,
}

/// The outcome of one affine, in words.
pub struct AffineOutcome {
    /// Where it is, of several of one site.
    pub place: &'static str,
    /// Whether it goes.
    pub folded: bool,
    /// The direction, or that it stays.
    pub fold: &'static str,
    /// Into what, or why not.
    pub what: String,
}

impl fmt::Display for AffineOutcome {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let link = if self.folded { " into " } else { ": " };
        write!(f, "{}{link}{}", self.fold, self.what)
    }
}

/// Sites of a model in words.
pub fn rows<'p>(model: &Model, sites: impl Iterator<Item = &'p SitePlan>) -> Result<Vec<Row<'p>>> {
    let mut sites = sites.peekable();
    if sites.peek().is_none() {
        return Ok(vec![]);
    }
    // A plan calls the nodes of bodies by the way to them.
    let flat = Flat::new(model);
    let graph = &Graph::new(flat.as_ref().map_or(model, |flat| &flat.model))?;
    let names: HashMap<&str, NodeId> = graph
        .order()
        .iter()
        .map(|&node| (graph.name(node), node))
        .collect();
    let row = |site: &'p SitePlan| {
        let describe = |into: &[String]| describe(graph, &names, &site.name, into);
        let SitePlan {
            pre, core, post, ..
        } = site;
        let is_one = site.outcomes().count() == 1;
        let parts = [("before", pre), ("core", core), ("behind", post)].into_iter();
        let parts = parts.filter_map(|(place, outcome)| Some((place, outcome.as_ref()?)));
        let tell = |(place, outcome)| tell(if is_one { "" } else { place }, outcome, &describe);
        Row {
            site,
            outcomes: parts.map(tell).collect(),
        }
    };
    Ok(sites.map(row).collect())
}

fn tell(
    place: &'static str,
    outcome: &Outcome,
    describe: &dyn Fn(&[String]) -> String,
) -> AffineOutcome {
    let (folded, fold, what) = match outcome {
        Outcome::Folded { direction, into } => (true, direction.name(), describe(into)),
        Outcome::Partly { into, scale } => (
            false,
            "shift only",
            format!("{}; scale: {}", describe(into), in_short(scale)),
        ),
        Outcome::Scaled { into, shift } => (
            false,
            "scale only",
            format!("{}; shift: {}", describe(into), in_short(shift)),
        ),
        Outcome::Kept { .. } => {
            let what: Vec<String> = outcome
                .refusals()
                .map(|(_, refusal)| in_short(refusal))
                .collect();
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

/// The reason's name, which the legend explains, and the node.
pub fn in_short(refusal: &Refusal) -> String {
    let Refusal { reason, at } = refusal;
    match at.rsplit_once('/') {
        _ if at.is_empty() => reason.name().to_owned(),
        Some((_, last)) => format!("{} at …/{last}", reason.name()),
        None => format!("{} at {at}", reason.name()),
    }
}

/// The meaning of the reasons, one line each.
fn legend(rows: &[Row], paint: Paint) -> String {
    let outcomes = rows.iter().flat_map(|row| row.site.outcomes());
    let refusals = outcomes
        .flat_map(Outcome::refusals)
        .map(|(_, refusal)| &refusal.reason);
    let reasons: BTreeSet<[String; 2]> = refusals
        .map(|reason| [reason.name().to_owned(), reason.to_string()])
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

/// Nodes by their operators and modules, which say more than numbered names of exporters:
/// `MatMul …attn.q, …attn.k`, or `MatMul+Add …attn.q` for two of one module. The common prefix of a
/// module and the site is left out.
fn describe(graph: &Graph, names: &HashMap<&str, NodeId>, site: &str, into: &[String]) -> String {
    let mut modules: Vec<(String, String)> = vec![];
    for name in into {
        let (operator, path) = match names.get(name.as_str()) {
            Some(&node) => (graph.node(node).op_type(), scope(graph, node).path),
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
    let more = modules.len().saturating_sub(NAMED);
    modules.truncate(if more > 1 { NAMED } else { modules.len() });
    let mut last = "";
    let mut told: Vec<String> = vec![];
    for (operators, path) in &modules {
        told.push(if operators == last {
            path.clone()
        } else {
            format!("{operators} {path}")
        });
        last = operators;
    }
    if more > 1 {
        told.push(format!("{more} more"));
    }
    told.join(", ")
}

/// A module path without the steps in which it agrees with a site's.
fn beside(path: &str, site: &str) -> String {
    // Several sites of one module are numbered.
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

/// The sites as a table, and the reasons in it in words.
pub fn table(rows: &[Row], paint: Paint) -> String {
    let (rows, more) = rows.split_at(rows.len().min(LISTED));
    let mut table = paint.table(&["site", "kind", "channels", "fold", "into, or why not"]);
    for row in rows {
        let SitePlan {
            name,
            kind,
            channels,
            ..
        } = row.site;
        let channels = channels.to_string();
        let mut first = [name.as_str(), kind.name, &channels];
        for AffineOutcome {
            place,
            folded,
            fold,
            what,
        } in &row.outcomes
        {
            let tone = if *folded { Tone::Good } else { Tone::Bad };
            let [name, kind, channels] = first;
            let mut cells: Vec<_> = [name, format!("{kind} {place}").trim(), channels]
                .map(out::cell)
                .into();
            cells.extend([paint.cell(tone, fold), out::cell(what)]);
            table.add_row(cells);
            first = [""; 3];
        }
    }
    // The last column is the one that wraps, as far as words can be read in it.
    let whole = ColumnConstraint::ContentWidth;
    let longest = rows
        .iter()
        .map(|row| row.site.name.chars().count())
        .max()
        .unwrap_or_default();
    let names = match longest {
        ..=LONGEST => whole,
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
    let more = match more.len() {
        0 => String::new(),
        more => format!("... and {more} more; --json lists all\n"),
    };
    out::lines(&table) + &more + &legend(rows, paint)
}

/// How many sites of a family there are, and how many of them fold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    sites: usize,
    folded: usize,
    /// Sites with an affine that folds and another that stays.
    partly: usize,
}

/// The sites of each family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    offline: Count,
    pointwise: Count,
    online: Count,
    scale: Count,
    linear: Count,
}

impl Summary {
    /// Counts the sites of a plan.
    pub fn from_plan(plan: &Plan) -> Self {
        let mut summary = Self::default();
        for site in &plan.sites {
            let count = match site.kind.family {
                Family::Offline => &mut summary.offline,
                Family::Pointwise => &mut summary.pointwise,
                Family::Online => &mut summary.online,
                Family::Scale => &mut summary.scale,
                Family::Linear => &mut summary.linear,
            };
            count.sites += 1;
            let folds = |outcome: &Outcome| matches!(outcome, Outcome::Folded { .. });
            let some = site.outcomes().any(folds);
            count.folded += usize::from(site.is_folded());
            count.partly += usize::from(some && !site.is_folded());
        }
        summary
    }

    /// How many sites of all families fold, and how many there are.
    pub fn total(&self) -> (usize, usize) {
        let families = [
            self.offline,
            self.pointwise,
            self.online,
            self.scale,
            self.linear,
        ];
        families.iter().fold((0, 0), |(folded, sites), count| {
            (folded + count.folded, sites + count.sites)
        })
    }

    /// One line, such as `25 of 25 offline sites fold`.
    pub fn line(&self, paint: Paint) -> String {
        let families = [
            (self.offline, "offline sites"),
            (self.pointwise, "pointwise sites"),
            (self.online, "online sites"),
            (self.scale, "other scales"),
            (self.linear, "linear merges"),
        ];
        let there = families.into_iter().filter(|(count, _)| count.sites > 0);
        let told: Vec<String> = there
            .map(
                |(
                    Count {
                        sites,
                        folded,
                        partly,
                    },
                    name,
                )| {
                    let tone = if folded == sites {
                        Tone::Good
                    } else {
                        Tone::Bad
                    };
                    let partly = if partly == 0 {
                        String::new()
                    } else {
                        format!(" ({partly} more in part)")
                    };
                    paint.text(tone, &format!("{folded} of {sites} {name}{partly}"))
                },
            )
            .collect();
        match told.as_slice() {
            [] => "no normalizer was found".to_owned(),
            told => format!("{} fold", told.join(", ")),
        }
    }
}

/// The changes beside the sites, a line for each kind; empty without changes.
pub fn tidied(
    Tidy {
        raised,
        constants,
        duplicates,
        biased,
        selected,
        untold,
        kept,
    }: &Tidy,
) -> String {
    let mut lines = String::new();
    if let Some(OpsetUpgrade { from, to }) = raised {
        lines += &format!("operator set {from} is raised to {to}, which has HardSwish\n");
    }
    if *constants > 0 {
        lines += &format!("{constants} operators whose results are known: constant\n");
    }
    if *duplicates > 0 {
        lines += &format!("{duplicates} operators that compute what others do: duplicate\n");
    }
    if *biased > 0 {
        lines += &format!("{biased} products that are one operator with their biases: biased\n");
    }
    if *selected > 0 {
        lines +=
            &format!("{selected} moves of selections before work that they leave out: demand\n");
    }
    if *untold > 0 {
        lines += &format!("{untold} values whose shapes are not declared any more: untold\n");
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    kept.iter()
        .for_each(|refusal| *counts.entry(refusal.reason.name()).or_default() += 1);
    for (reason, count) in counts {
        lines += &format!("{count} constants are computed in each run: {reason}\n");
    }
    lines
}

/// Where the run stopped, if a bound ended it.
pub fn stopped(stopped: StopReason) -> String {
    match stopped {
        StopReason::Fixpoint => String::new(),
        StopReason::Bound { at } => {
            format!("stopped at the bound of {at}: another run of the result may do more\n")
        }
    }
}

/// A site as JSON: what the plan says, and whether all of it folds.
#[derive(Debug, Serialize)]
pub struct JsonSite<'p> {
    #[serde(flatten)]
    site: &'p SitePlan,
    folded: bool,
}

/// The sites as JSON.
pub fn json(plan: &Plan) -> Vec<JsonSite<'_>> {
    plan.sites
        .iter()
        .map(|site| JsonSite {
            site,
            folded: site.is_folded(),
        })
        .collect()
}
