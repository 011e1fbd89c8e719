//! Suggests commands and options after `fuse`.

use unfold::refusal::Reason;
use unfold::{Outcome, Plan, SitePlan};

/// A line for each option that lets more sites fold, and the command that measures the result.
pub fn told(plan: &Plan) -> String {
    let mut lines = String::new();
    let shared = sites_beyond_growth(plan);
    if shared > 0 {
        lines += &format!("{shared} more sites fold with a larger --max-growth PERCENT\n");
    }
    lines + "next: `unfold tune MODEL -o OUT` finds the options that are fastest here\n"
}

/// The number of sites that stay because copies of shared weights would exceed the limit.
fn sites_beyond_growth(plan: &Plan) -> usize {
    plan.sites
        .iter()
        .filter(|site| is_beyond_growth(site))
        .count()
}

fn is_beyond_growth(site: &SitePlan) -> bool {
    let mut refusals = site.outcomes().flat_map(Outcome::refusals);
    refusals.any(|(_, refusal)| matches!(refusal.reason, Reason::Growth(_)))
}
