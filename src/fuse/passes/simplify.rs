//! Passes that simplify: identity elimination, branch and constant folding, and elimination of equal
//! operators.

use std::cell::OnceCell;
use std::collections::HashMap;

use crate::affine::recognize::{Family, Site};
use crate::error::Result;
use crate::fuse::pass::{Context, Effect, Pass};
use crate::fuse::plan_log::PlanLog;
use crate::hash::HashSet;
use crate::ir::NodeId;
use crate::onnx::Model;
use crate::onnx::proto::{NodeProto, TensorProto};
use crate::passes::simplify::{self, ConstantOrigins, ConstantResults, Simplified};

/// The alias of passes that remove redundant operators.
pub(super) const DUPLICATE: &[&str] = &["duplicate"];

/// Older names of passes that were one pass.
const CONSTANT_OF_CLEAN_UP: &[&str] = &["constant", "clean-up"];
const DUPLICATE_OF_CLEAN_UP: &[&str] = &["duplicate", "clean-up"];

/// Removes Identities, and Casts to the type that a value has already.
pub(crate) struct IdentityElimination {
    /// Whether activations that are redundant next to another activation are removed too.
    pub removes_activations: bool,
}

impl Pass for IdentityElimination {
    fn name(&self) -> &'static str {
        "identity-elimination"
    }

    fn description(&self) -> &'static str {
        "reads through Identity, Dropout, Casts to the own type, and redundant activations"
    }

    fn aliases(&self) -> &'static [&'static str] {
        DUPLICATE
    }

    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
        let skipped = context.skipped_nodes()?;
        let analysis = context.analysis()?;
        let simplified = simplify::remove_identities(analysis, &skipped, self.removes_activations);
        Ok(effect(simplified, context, log))
    }
}

/// Replaces Ifs with a constant condition by a branch.
pub(crate) struct FoldBranches;

impl Pass for FoldBranches {
    fn name(&self) -> &'static str {
        "branch-folding"
    }

    fn description(&self) -> &'static str {
        "replaces an If with a constant condition by the branch that it takes"
    }

    fn aliases(&self) -> &'static [&'static str] {
        CONSTANT_OF_CLEAN_UP
    }

    fn continues_stage(&self) -> bool {
        true
    }

    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
        let simplified = simplify::fold_branches(context.analysis()?);
        Ok(effect(simplified, context, log))
    }
}

/// Removes operators that return their input.
pub(crate) struct NeutralOperators;

impl Pass for NeutralOperators {
    fn name(&self) -> &'static str {
        "neutral-operators"
    }

    fn description(&self) -> &'static str {
        "removes movements that move nothing, and arithmetic with a neutral constant"
    }

    fn aliases(&self) -> &'static [&'static str] {
        DUPLICATE_OF_CLEAN_UP
    }

    fn continues_stage(&self) -> bool {
        true
    }

    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
        let sites = context.take_sites()?;
        let identifying = identifying_nodes(&sites);
        let online = nodes(&sites, |site| site.kind.family == Family::Online);
        let normalizers: HashSet<NodeId> = online.collect();
        context.keep_sites(sites);
        let analysis = context.analysis()?;
        let simplified = simplify::remove_neutral(analysis, &identifying, &normalizers);
        Ok(effect(simplified, context, log))
    }
}

/// Computes each value only once.
pub(crate) struct CommonSubexpressions {
    /// Whether the stage begins again after a change.
    pub is_last: bool,
}

impl Pass for CommonSubexpressions {
    fn name(&self) -> &'static str {
        "cse"
    }

    fn description(&self) -> &'static str {
        "merges equal operators on equal values, and equal small constants"
    }

    fn aliases(&self) -> &'static [&'static str] {
        DUPLICATE_OF_CLEAN_UP
    }

    fn continues_stage(&self) -> bool {
        !self.is_last
    }

    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
        let sites = context.take_sites()?;
        let identifying = identifying_nodes(&sites);
        context.keep_sites(sites);
        let recipes = log.recipes();
        let stored = StoredTensors::new(context.first());
        let origins = ConstantOrigins {
            recipe: &|name| recipes.get(name).copied(),
            stored: &|name| stored.get(name),
        };
        let simplified = simplify::merge_equal(context.analysis()?, &identifying, &origins);
        Ok(effect(simplified, context, log))
    }
}

/// Stores the results of operators on constants.
pub(crate) struct FoldConstants;

impl Pass for FoldConstants {
    fn name(&self) -> &'static str {
        "constant-folding"
    }

    fn description(&self) -> &'static str {
        "stores the results of operators on constants, within the limit for growth"
    }

    fn aliases(&self) -> &'static [&'static str] {
        CONSTANT_OF_CLEAN_UP
    }

    fn continues_stage(&self) -> bool {
        true
    }

    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
        let sites = context.take_sites()?;
        let identifying = identifying_nodes(&sites);
        context.keep_sites(sites);
        let recipes = log.recipes();
        let stored = StoredTensors::new(context.first());
        let origins = ConstantOrigins {
            recipe: &|name| recipes.get(name).copied(),
            stored: &|name| stored.get(name),
        };
        let growth = context.settings.growth.bytes;
        let ConstantResults { simplified, kept } =
            simplify::fold_constants(context.analysis()?, &identifying, &origins, growth);
        log.plan.tidy.kept = kept;
        Ok(effect(simplified, context, log))
    }
}

/// Records a simplified graph.
pub(super) fn effect(
    simplified: Option<Simplified>,
    context: &Context,
    log: &mut PlanLog,
) -> Effect {
    let Some(simplified) = simplified else {
        return Effect::Nothing;
    };
    log.simplified(&simplified);
    Effect::made(context.model().with_graph(simplified.graph))
}

/// The nodes of sites whose kind is identified by constants.
fn identifying_nodes(sites: &[Site]) -> Vec<NodeId> {
    nodes(sites, |site| site.kind.is_told_by_constants).collect()
}

/// The nodes of some sites.
fn nodes(sites: &[Site], is_meant: fn(&Site) -> bool) -> impl Iterator<Item = NodeId> {
    let meant = sites.iter().filter(move |site| is_meant(site));
    meant.flat_map(|site| site.nodes.iter().copied())
}

/// The constants of a model by name, indexed at the first look-up.
struct StoredTensors<'m> {
    model: &'m Model,
    by_name: OnceCell<HashMap<&'m str, &'m TensorProto>>,
}

impl<'m> StoredTensors<'m> {
    fn new(model: &'m Model) -> Self {
        StoredTensors {
            model,
            by_name: OnceCell::new(),
        }
    }

    fn get(&self, name: &str) -> Option<&'m TensorProto> {
        self.by_name.get_or_init(|| self.index()).get(name).copied()
    }

    fn index(&self) -> HashMap<&'m str, &'m TensorProto> {
        let graph = self.model.graph();
        let initializers = graph.initializer.iter();
        let named = initializers.map(|tensor| (tensor.name(), tensor));
        named
            .chain(graph.node.iter().filter_map(value_of_constant))
            .collect()
    }
}

/// The output and the tensor of a Constant.
fn value_of_constant(node: &NodeProto) -> Option<(&str, &TensorProto)> {
    if node.op() != ("", "Constant") {
        return None;
    }
    Some((node.output.first()?.as_str(), node.attr_t("value").ok()??))
}
