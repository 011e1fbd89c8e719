//! Reports the numbers of sites and of folded sites, and the changes outside of sites.

use std::collections::BTreeMap;

use serde::Serialize;
use unfold::plan::{Family, OpsetUpgrade, Outcome, Plan, StopReason, Tidy};
use unfold::report::counted;

use super::out::{Paint, Tone};

/// The number of sites of one family, and how many of them fold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Count {
    sites: usize,
    folded: usize,
    /// The number of sites that fold only partly.
    partly: usize,
}

impl Count {
    /// For example `25 of 25 offline sites`.
    fn line(self, name: &str, paint: Paint) -> String {
        let Self {
            sites,
            folded,
            partly,
        } = self;
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
        let sites = counted(sites, name);
        paint.text(tone, &format!("{folded} of {sites}{partly}"))
    }
}

/// The counts of each family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Summary {
    offline: Count,
    pointwise: Count,
    online: Count,
    scale: Count,
    linear: Count,
}

impl Summary {
    /// Counts the sites of a plan.
    pub(crate) fn from_plan(plan: &Plan) -> Self {
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
            let some = site
                .outcomes()
                .any(|outcome| matches!(outcome, Outcome::Folded { .. }));
            count.folded += usize::from(site.is_folded());
            count.partly += usize::from(some && !site.is_folded());
        }
        summary
    }

    /// The total numbers of folded sites and of sites.
    pub(crate) fn total(&self) -> (usize, usize) {
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

    /// The summary in one line, such as `25 of 25 offline sites fold`.
    pub(crate) fn line(&self, paint: Paint) -> String {
        let families = [
            (self.offline, "offline site"),
            (self.pointwise, "pointwise site"),
            (self.online, "online site"),
            (self.scale, "other scale"),
            (self.linear, "linear merge"),
        ];
        let listed: Vec<String> = families
            .into_iter()
            .filter(|(count, _)| count.sites > 0)
            .map(|(count, name)| count.line(name, paint))
            .collect();
        match listed.as_slice() {
            [] => "no normalizer was found".to_owned(),
            listed => format!("{} fold", listed.join(", ")),
        }
    }
}

/// The changes outside of sites, with a line for each kind; empty without changes.
pub(super) fn tidied(tidy: &Tidy) -> String {
    let mut lines = String::new();
    if let Some(OpsetUpgrade { from, to }) = tidy.raised {
        let operator = if to < 17 {
            "HardSwish"
        } else {
            "LayerNormalization"
        };
        lines += &format!("operator set {from} raised to {to}, which has {operator}\n");
    }
    for (count, thing, change, pass) in changes(tidy) {
        if count > 0 {
            lines += &format!("{} {change} (--skip {pass})\n", counted(count, thing));
        }
    }
    for (reason, &count) in &tidy.attentions_kept {
        lines += &format!("{} as it was: {reason}\n", counted(count, "attention"));
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    tidy.kept
        .iter()
        .for_each(|refusal| *counts.entry(refusal.reason.name()).or_default() += 1);
    for (reason, count) in counts {
        let constants = counted(count, "constant");
        lines += &format!("{constants} computed in each run: {reason}\n");
    }
    lines
}

/// The changes by kind: the number, the name of the changed things, the change in words, and the
/// name for `--skip`.
fn changes(tidy: &Tidy) -> [(usize, &'static str, &'static str, &'static str); 6] {
    [
        (
            tidy.constants,
            "operator",
            "with a constant result stored as constants",
            "constant",
        ),
        (
            tidy.duplicates,
            "duplicate operator",
            "removed",
            "duplicate",
        ),
        (
            tidy.biased,
            "operator",
            "in the form of the target, such as Gemm",
            "biased",
        ),
        (
            tidy.selected,
            "selection",
            "moved forward, so that less is computed",
            "demand",
        ),
        (
            tidy.untold,
            "value",
            "inside the model whose open shape is no longer declared",
            "untold",
        ),
        (
            tidy.attentions,
            "attention",
            "as MultiHeadAttention of onnxruntime",
            "legalize-attention",
        ),
    ]
}

/// A line about the limit that stopped the run; empty if the run ended because nothing changed any
/// more.
pub(super) fn stopped(stopped: StopReason) -> String {
    match stopped {
        StopReason::Fixpoint => String::new(),
        StopReason::Bound { at, pass } => {
            format!(
                "stopped at the bound of {at}, after {pass}: another run of the result may do more\n"
            )
        }
        StopReason::StopAfter { pass } => format!("stopped after {pass}, as asked\n"),
    }
}
