//! `--slice` and `--memory`: the options of slicing, and its report.

use std::fmt::Write;

use anyhow::{Result, bail};
use unfold::onnx::Model;
use unfold::plan::{CutRegion, HeldValue, MemoryChange};
use unfold::report::{bytes, plain};
use unfold::run::Dims;
use unfold::{MemoryGoal, Slicing};

use super::inputs::sizes;

/// The maximum number of values that are named of those live at the peak.
const NAMED: usize = 3;
/// The largest number of operators of a region for which all operators are listed.
const LISTED: usize = 16;

/// The options of slicing.
#[derive(Debug, clap::Args)]
pub(super) struct SlicingArgs {
    /// Cuts each region around a large value into N parts that run one after another, so that
    /// activations take less memory: attention by its queries, heads or samples, and an MLP by its
    /// tokens. The result is the same function. `--skip slicing` leaves all regions unchanged
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..))]
    slice: Option<u64>,

    /// Goal for the peak of activations, such as 64MB, 50% or min. The region at the peak is cut
    /// into as few parts as necessary, followed by the region at the next peak
    #[arg(long, value_name = "GOAL")]
    memory: Option<MemoryGoal>,

    /// Size of a symbolic dimension for computing the peak (may be repeated). Default: 1 for a
    /// batch. The result is correct for every size
    #[arg(long = "expect", value_name = "NAME=SIZE")]
    expect: Vec<Dims>,

    /// Fails without writing anything if the goal of --memory is missed
    #[arg(long, requires = "memory")]
    require: bool,
}

impl SlicingArgs {
    /// The requested slicing.
    pub(super) fn of(&self, model: &Model) -> Result<Slicing> {
        let expect = sizes("--expect", &self.expect, model)?
            .iter()
            .map(|(name, size)| (name.to_owned(), size))
            .collect();
        let parts = self.slice.and_then(|parts| usize::try_from(parts).ok());
        Ok(Slicing {
            parts,
            memory: self.memory,
            expect,
        })
    }

    /// Returns an error if the goal is missed and `--require` was given.
    pub(super) fn check(&self, change: Option<&MemoryChange>) -> Result<()> {
        match (change, self.memory) {
            // The goal `min` sets no limit, so a peak cannot miss it.
            (Some(change), Some(goal))
                if self.require && goal != MemoryGoal::Min && change.is_missed() =>
            {
                match &change.reason {
                    Some(reason) => bail!("--memory {goal}: {}", plain(reason)),
                    None => bail!(
                        "--memory {goal}: activations take {} at their peak; {}",
                        bytes(change.after),
                        left(change)
                    ),
                }
            }
            _ => Ok(()),
        }
    }
}

/// Reports the peak before and after, the cut regions, and the obstacle if the goal is missed.
pub(super) fn text(change: Option<&MemoryChange>) -> String {
    let Some(change) = change else {
        return String::new();
    };
    let MemoryChange {
        before,
        after,
        cuts,
        reason,
        ..
    } = change;
    let mut text = String::new();
    for (operators, regions, cut) in alike(cuts) {
        let CutRegion {
            extent,
            parts,
            first,
            ..
        } = cut;
        let by = format!("{parts} parts of {extent} places");
        let of = if regions == 1 {
            format!("{operators} from {first}")
        } else {
            format!("{regions} of {operators}")
        };
        text += &(plain(&format!("cut into {by}: {of}{}", hidden(cut))) + "\n");
    }
    if let Some(reason) = reason {
        text += &(plain(&format!("not cut: {reason}")) + "\n");
    }
    if *before == 0 {
        return text;
    }
    let part = *after as f64 / *before as f64;
    let _ = writeln!(
        text,
        "peak of activations {} to {} ({part:.2})",
        bytes(*before),
        bytes(*after)
    );
    if change.is_missed() || change.goal.is_none() {
        text += &(left(change) + "\n");
    }
    text
}

/// Reports the percentage of attention scores that the parts skip because a mask hides them, or the
/// reason why they compute all scores.
fn hidden(cut: &CutRegion) -> String {
    match &cut.mask {
        Some(reason) => format!(", all keys: {reason}"),
        None if cut.left_out == 0 => String::new(),
        None => {
            let percent = 100.0 * cut.left_out as f64 / cut.scores as f64;
            format!(", without {percent:.0} % of the scores, which its mask hides")
        }
    }
}

/// Reports the node at the remaining peak, and the largest values that are live there, each with
/// the reason why it is not cut further.
fn left(change: &MemoryChange) -> String {
    let named = change.held.iter().take(NAMED).map(|held| {
        let HeldValue {
            value,
            bytes: size,
            reason,
        } = held;
        match change.reason {
            Some(_) => format!("{value} {}", bytes(*size)),
            None => format!("{value} {} ({reason})", bytes(*size)),
        }
    });
    let named: Vec<String> = named.collect();
    plain(&format!("left at {}: {}", change.at, named.join(", ")))
}

/// Groups the cuts of regions with the same operators into the same number of parts, and counts
/// each group.
fn alike(cuts: &[CutRegion]) -> Vec<(String, usize, &CutRegion)> {
    let mut groups: Vec<(String, usize, &CutRegion)> = vec![];
    for cut in cuts {
        match groups.iter_mut().find(|(.., other)| is_alike(other, cut)) {
            Some((_, count, _)) => *count += 1,
            None => groups.push((listed(&cut.operators), 1, cut)),
        }
    }
    groups
}

/// The operators of a region. For a large region, only the first operators, and the number of the
/// others.
fn listed(operators: &[String]) -> String {
    if operators.len() <= LISTED {
        return operators.join(", ");
    }
    let (first, others) = operators.split_at(LISTED / 2);
    format!("{} and {} more operators", first.join(", "), others.len())
}

fn is_alike(one: &CutRegion, other: &CutRegion) -> bool {
    let [one, other] = [one, other].map(|cut| CutRegion {
        first: String::new(),
        last: String::new(),
        ..cut.clone()
    });
    one == other
}
