//! Passes that simplify: identity elimination, branch and constant folding, and elimination of
//! equal operators.

use crate::affine::recognize::{Family, Site};
use crate::error::Result;
use crate::fuse::pass::{Context, Effect, Pass};
use crate::fuse::plan_log::PlanLog;
use crate::hash::HashSet;
use crate::ir::NodeId;
use crate::passes::simplify::{self, ConstantOrigins, ConstantResults, Simplified};

/// The alias of passes that remove redundant operators.
pub(super) const DUPLICATE: &[&str] = &["duplicate"];

/// Aliases of the passes into which an older pass, `clean-up`, was split.
const CONSTANT_OF_CLEAN_UP: &[&str] = &["constant", "clean-up"];
const DUPLICATE_OF_CLEAN_UP: &[&str] = &["duplicate", "clean-up"];

/// A pass that simplifies the model by one function.
pub(crate) struct SimplifyPass {
    name: &'static str,
    description: &'static str,
    aliases: &'static [&'static str],
    continues_stage: bool,
    /// Simplifies the graph. `None` if it finds nothing to simplify.
    simplify: fn(&Context, &mut PlanLog) -> Result<Option<Simplified>>,
}

impl Pass for SimplifyPass {
    fn name(&self) -> &'static str {
        self.name
    }

    fn description(&self) -> &'static str {
        self.description
    }

    fn aliases(&self) -> &'static [&'static str] {
        self.aliases
    }

    fn continues_stage(&self) -> bool {
        self.continues_stage
    }

    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
        let Some(simplified) = (self.simplify)(context, log)? else {
            return Ok(Effect::Nothing);
        };
        log.simplified(&simplified);
        Ok(Effect::made(context.model().with_graph(simplified.graph)))
    }
}

/// Merges equal weights.
pub(crate) static DEDUPLICATE_INITIALIZERS: SimplifyPass = SimplifyPass {
    name: "deduplicate-initializers",
    description: "lets all nodes that read one weight read it under one name",
    aliases: DUPLICATE,
    continues_stage: false,
    simplify: |context, _| simplify::share_weights(context.model()),
};

/// Removes Identities, Casts of a value to its own type, and redundant activations.
pub(crate) static IDENTITY_ELIMINATION: SimplifyPass = identity_elimination(|context, _| {
    let skipped = context.skipped_nodes()?;
    Ok(simplify::remove_identities(
        context.analysis()?,
        &skipped,
        true,
    ))
});

/// Like [`IDENTITY_ELIMINATION`], but activations stay.
pub(crate) static IDENTITY_ELIMINATION_AGAIN: SimplifyPass = identity_elimination(|context, _| {
    let skipped = context.skipped_nodes()?;
    Ok(simplify::remove_identities(
        context.analysis()?,
        &skipped,
        false,
    ))
});

const fn identity_elimination(
    simplify: fn(&Context, &mut PlanLog) -> Result<Option<Simplified>>,
) -> SimplifyPass {
    SimplifyPass {
        name: "identity-elimination",
        description: "reads through Identity, Dropout, Casts that return their input, and redundant activations",
        aliases: DUPLICATE,
        continues_stage: false,
        simplify,
    }
}

/// Replaces an If with a constant condition by the branch that it takes.
pub(crate) static BRANCH_FOLDING: SimplifyPass = SimplifyPass {
    name: "branch-folding",
    description: "replaces an If with a constant condition by the branch that it takes",
    aliases: CONSTANT_OF_CLEAN_UP,
    continues_stage: true,
    simplify: |context, _| Ok(simplify::fold_branches(context.analysis()?)),
};

/// Removes operators whose result equals their input.
pub(crate) static NEUTRAL_OPERATORS: SimplifyPass = SimplifyPass {
    name: "neutral-operators",
    description: "removes movements that move nothing, and arithmetic with a neutral constant",
    aliases: DUPLICATE_OF_CLEAN_UP,
    continues_stage: true,
    simplify: |context, _| without_neutral(context),
};

/// Merges equal operators on equal values, so that each value is computed once.
pub(crate) static CSE: SimplifyPass = cse(true);

/// Like [`CSE`], but runs after the other passes that simplify. After a change by this pass, the
/// stage begins again.
pub(crate) static CSE_AGAIN: SimplifyPass = cse(false);

const fn cse(continues_stage: bool) -> SimplifyPass {
    SimplifyPass {
        name: "cse",
        description: "merges equal operators on equal values, and equal small constants",
        aliases: DUPLICATE_OF_CLEAN_UP,
        continues_stage,
        simplify: |context, log| merged(context, log),
    }
}

/// Stores the results of operators on constants.
pub(crate) static CONSTANT_FOLDING: SimplifyPass = SimplifyPass {
    name: "constant-folding",
    description: "stores the results of operators on constants, within the limit for growth",
    aliases: CONSTANT_OF_CLEAN_UP,
    continues_stage: true,
    simplify: with_constants,
};

/// Removes operators whose result equals their input.
fn without_neutral(context: &Context) -> Result<Option<Simplified>> {
    let sites = context.take_sites()?;
    let identifying = identifying_nodes(&sites);
    let online = nodes(&sites, |site| site.kind.family == Family::Online);
    let normalizers: HashSet<NodeId> = online.collect();
    context.keep_sites(sites);
    let analysis = context.analysis()?;
    Ok(simplify::remove_neutral(
        analysis,
        &identifying,
        &normalizers,
    ))
}

/// Merges equal operators on equal values.
fn merged(context: &Context, log: &PlanLog) -> Result<Option<Simplified>> {
    let identifying = kept_identifying_nodes(context)?;
    let origins = ConstantOrigins::new(log.recipes(), context.first());
    let analysis = context.analysis()?;
    Ok(simplify::merge_equal(analysis, &identifying, &origins))
}

/// Stores the results of operators on constants.
fn with_constants(context: &Context, log: &mut PlanLog) -> Result<Option<Simplified>> {
    let identifying = kept_identifying_nodes(context)?;
    let origins = ConstantOrigins::new(log.recipes(), context.first());
    let growth = context.settings.growth.bytes;
    let ConstantResults { simplified, kept } =
        simplify::fold_constants(context.analysis()?, &identifying, &origins, growth);
    log.plan.tidy.kept = kept;
    Ok(simplified)
}

/// The nodes of the sites whose kind is recognized only as long as their constants are computed by
/// nodes. The context keeps the sites for the next pass.
fn kept_identifying_nodes(context: &Context) -> Result<Vec<NodeId>> {
    let sites = context.take_sites()?;
    let identifying = identifying_nodes(&sites);
    context.keep_sites(sites);
    Ok(identifying)
}

/// The nodes of the sites whose kind is recognized only as long as their constants are computed by
/// nodes.
fn identifying_nodes(sites: &[Site]) -> Vec<NodeId> {
    nodes(sites, |site| site.kind.is_told_by_constants).collect()
}

/// The nodes of the sites that `is_meant` selects.
fn nodes(sites: &[Site], is_meant: fn(&Site) -> bool) -> impl Iterator<Item = NodeId> {
    let meant = sites.iter().filter(move |site| is_meant(site));
    meant.flat_map(|site| site.nodes.iter().copied())
}
