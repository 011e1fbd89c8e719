//! Passes that simplify: identity elimination, constant folding, and elimination of equal
//! operators.

use std::cell::OnceCell;
use std::collections::HashMap;

use crate::affine::recognize::{Family, Site};
use crate::error::Result;
use crate::fuse::pass::{Context, Effect, Pass};
use crate::fuse::plan_log::PlanLog;
use crate::ir::NodeId;
use crate::onnx::Model;
use crate::onnx::proto::{NodeProto, TensorProto};
use crate::passes::simplify::{self, Limits, tidy};

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
        &[simplify::DUPLICATE]
    }

    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
        let skipped = context.skipped_nodes()?;
        let Some(tidied) =
            simplify::read_directly(context.analysis()?, &skipped, self.removes_activations)
        else {
            return Ok(Effect::Nothing);
        };
        log.tidied(&tidied);
        let made = tidied.graph.map(|graph| context.model().with_graph(graph));
        Ok(Effect::from_model(made))
    }
}

/// Folds constants, and computes each value only once.
pub(crate) struct CleanUp;

impl Pass for CleanUp {
    fn name(&self) -> &'static str {
        "clean-up"
    }

    fn description(&self) -> &'static str {
        "constant and branch folding (`constant`), CSE and identities (`duplicate`), dead code"
    }

    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
        let analysis = context.analysis()?;
        // No later pass of this round reads the sites.
        let sites = context.take_sites()?;
        let recipes = log.recipes();
        let stored = StoredTensors::new(context.first());
        let skip = &context.settings.skip;
        let limits = Limits {
            sites: nodes(&sites, |site| site.kind.is_told_by_constants).collect(),
            normalizers: nodes(&sites, |site| site.kind.family == Family::Online).collect(),
            recipe: &|name| recipes.get(name).copied(),
            stored: &|name| stored.get(name),
            is_skipped: &|kind| skip.is_match(kind),
            growth: context.settings.growth.bytes,
        };
        let tidied = tidy(analysis, &limits);
        log.tidied(&tidied);
        let made = tidied.graph.map(|graph| context.model().with_graph(graph));
        Ok(Effect::from_model(made))
    }
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
