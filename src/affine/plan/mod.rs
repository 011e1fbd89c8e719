//! The plan of folding, as data that can be printed.

mod half;
mod memory;
mod site;
mod stream;

use std::collections::BTreeMap;

use serde::Serialize;

pub use self::half::{ClampedMask, HalfPlan, WideOperator, WideReason};
pub use self::memory::{CutRegion, HeldValue, MemoryChange};
pub use self::site::{Basis, Direction, Outcome, SitePlan};
pub use self::stream::{
    Centring, Constancy, ConstantNorm, Follower, Member, MergedNorm, Scaling, StreamPlan,
};

use crate::affine::recognize::{Part, Replacement, Reset};
use crate::affine::rule::Fold;
use crate::hash::HashMap;
use crate::ir::NodeId;
use crate::ir::builder::NewConstant;
use crate::onnx::tensor::DataType;
use crate::recipe::Recipe;
use crate::refusal::Refusal;

/// Nodes to remove, and the value that replaces their result.
#[derive(Debug, Clone)]
pub(crate) struct Removal {
    /// The nodes to remove.
    pub nodes: Vec<NodeId>,
    /// The name of the value that they computed.
    pub output: String,
    /// The name of the value that is read instead.
    pub source: String,
}

/// A part that stays in the graph with another affine.
#[derive(Debug, Clone)]
pub(crate) struct Rewrite {
    /// The part, with its new affine.
    pub part: Part,
    /// The site to which the part belongs.
    pub site: usize,
    /// The element type of the value to which the part is applied, or `None` if it is unknown. The
    /// new constants of the part get this type.
    pub data_type: Option<DataType>,
}

/// A new tensor that was stored in the model.
#[derive(Debug, Clone)]
pub struct Stored {
    /// The name of the tensor.
    pub name: String,
    /// The element type.
    pub data_type: DataType,
    /// The formula of the elements.
    pub recipe: Recipe,
    /// The constant that the tensor replaces in an operator. `None` if the tensor replaces no
    /// constant.
    pub replaces: Option<String>,
    /// The sites that need the tensor.
    pub sites: Vec<usize>,
}

impl Stored {
    /// Builds the entry of a new constant that belongs to no site. `None` if the constant holds
    /// integers.
    pub(crate) fn from_constant(constant: &NewConstant) -> Option<Self> {
        let (name, data_type, recipe, replaces) = match constant {
            NewConstant::Integers { .. } => return None,
            NewConstant::Floats {
                name,
                data_type,
                recipe,
            } => (name, data_type, recipe, None),
            NewConstant::Weight {
                name,
                data_type,
                recipe,
                replaces,
                ..
            } => (name, data_type, recipe, Some(replaces.clone())),
        };
        let (name, recipe) = (name.clone(), recipe.clone());
        Some(Stored {
            name,
            data_type: *data_type,
            recipe,
            replaces,
            sites: vec![],
        })
    }
}

/// The reason why a run of the pipeline stops.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", tag = "reason")]
pub enum StopReason {
    /// The passes find nothing more to change. Another run on the result changes nothing.
    #[default]
    Fixpoint,
    /// A stage was repeated as often as its bound allows. The result still equals the model, but
    /// another run may change more.
    Bound {
        /// The stage that reached its bound, such as `fold`.
        at: &'static str,
        /// The last pass that changed the model in this stage.
        pass: &'static str,
    },
    /// The run was requested to stop after this pass.
    StopAfter {
        /// The name of the pass.
        pass: &'static str,
    },
}

/// The statistics of one pass in one run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PassStats {
    /// The name of the pass, or `analysis` for the analyses that all passes share.
    pub name: &'static str,
    /// The number of times that the pass ran.
    pub runs: usize,
    /// The number of times that the pass changed the model.
    pub changes: usize,
    /// The number of operators that the pass removed, minus those that it added.
    pub operators: i64,
    /// The time that the pass took, in seconds.
    pub seconds: f64,
}

/// Everything that folding does to a model, as data.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// The sites, in execution order.
    pub sites: Vec<SitePlan>,
    /// The affines that nodes absorb into their constants, in order of application.
    pub(crate) folds: Vec<Fold>,
    /// For each folded node whose bias is the constant of an Add after it, that Add and the input
    /// at which it reads the constant.
    pub(crate) bias_adds: HashMap<NodeId, (NodeId, usize)>,
    /// The nodes to remove.
    pub(crate) removals: Vec<Removal>,
    /// Parameters of nodes that are reset to their neutral values, each with its site.
    pub(crate) resets: Vec<(Reset, usize)>,
    /// Parts that stay but are written again, with another affine or with fewer nodes.
    pub(crate) rewrites: Vec<Rewrite>,
    /// The tensors that are in the result but not in the model, as formulas over tensors of the
    /// model.
    pub tensors: Vec<Stored>,
    /// Replacements of nodes by new nodes, each with its site.
    pub(crate) replacements: Vec<(Replacement, usize)>,
    /// The bytes that are added by copies of weights with other readers, and by stored constants.
    pub growth: u64,
    /// The residual streams that were considered for another basis.
    pub streams: Vec<StreamPlan>,
    /// Normalizers that were removed because other normalizers follow them. The result is equal
    /// except for the epsilons that the later normalizers add to their variances.
    pub merged: Vec<MergedNorm>,
    /// Normalizers with a large ε. Each becomes an affine with constant statistics, or stays with a
    /// reason.
    pub constant: Vec<ConstantNorm>,
    /// The outcome of the conversion to half precision, with `--to`.
    pub half: Option<HalfPlan>,
    /// Linear operators that move to values with fewer places, and linear operators that could move
    /// but stay.
    pub placed: Vec<Placed>,
    /// The peak memory of activations, and the regions that are sliced, if slicing was requested.
    pub memory: Option<MemoryChange>,
    /// The changes other than folds of sites.
    pub tidy: Tidy,
    /// Whether the changes in `tidy` count as a change of the model. Changes of form count only if
    /// they save operators, or together with other changes.
    pub(crate) is_tidied: bool,
    /// The reason why the run stopped.
    pub stopped: StopReason,
    /// The passes that ran, in the order of the pipeline.
    pub passes: Vec<PassStats>,
}

/// A linear operator that placement moves to a value with fewer places, or that it could move but
/// leaves.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Placed {
    /// The rule, such as `pooling`.
    pub rule: &'static str,
    /// The name of the node that moves or could move.
    pub at: String,
    /// The number of multiply-adds of the node in the model, as a formula of the unknown extents.
    pub before: String,
    /// The number of multiply-adds of the node after the move, as a formula of the unknown extents.
    pub after: String,
    /// The reason why the node is not moved. `None` if it is moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<Refusal>,
}

impl Placed {
    /// Whether `other` describes the same node and rule as this entry.
    pub(crate) fn is_alike(&self, other: &Placed) -> bool {
        self.rule == other.rule && self.at == other.at
    }

    /// Whether the node is moved.
    pub fn is_moved(&self) -> bool {
        self.why.is_none()
    }
}

/// The changes other than folds of sites.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Tidy {
    /// The operator set of the result, if it is newer than that of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raised: Option<OpsetUpgrade>,
    /// The number of operators on constants or known extents whose results are stored instead.
    pub constants: usize,
    /// The number of operators that were removed because other operators compute the same value.
    pub duplicates: usize,
    /// The number of products that were merged with their biases into one operator, because an
    /// engine runs it faster.
    #[serde(skip_serializing_if = "is_zero")]
    pub biased: usize,
    /// The number of selections that were moved before other operators, and of products that were
    /// split to move a selection.
    #[serde(skip_serializing_if = "is_zero")]
    pub selected: usize,
    /// The number of values with unknown extents whose declared shapes were removed for the sake of
    /// an engine.
    #[serde(skip_serializing_if = "is_zero")]
    pub untold: usize,
    /// The number of attentions that became one operator of the engine.
    #[serde(skip_serializing_if = "is_zero")]
    pub attentions: usize,
    /// The number of attentions that the engine has no faster operator for, by reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub attentions_kept: BTreeMap<String, usize>,
    /// The reasons why constants are still computed in each run instead of being stored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<Refusal>,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Plan {
    /// Copies the outcome of scaling each stream from another plan for this model.
    pub(crate) fn streams_scaled_as(&mut self, other: Plan) {
        let mut scaled: std::collections::HashMap<String, Option<Scaling>> = other
            .streams
            .into_iter()
            .map(|stream| (stream.name, stream.scaling))
            .collect();
        for stream in &mut self.streams {
            stream.scaling = scaled.remove(&stream.name).flatten();
        }
    }

    /// Copies from `streams` the outcome of centring each stream, by the name of the stream.
    pub(crate) fn streams_centred_as(&mut self, streams: Vec<StreamPlan>) {
        let mut centred: std::collections::HashMap<String, Option<Centring>> = streams
            .into_iter()
            .map(|stream| (stream.name, stream.centring))
            .collect();
        for stream in &mut self.streams {
            if let Some(centring) = centred.remove(&stream.name) {
                stream.centring = centring;
            }
        }
    }

    /// A measure of how much the plan removes. Each operator of a site counts once for each half
    /// (scale or shift) of an affine that folds. Each stream that changes, each merged or constant
    /// normalizer and each moved operator counts once.
    pub(crate) fn gone(&self) -> usize {
        let streams = self
            .streams
            .iter()
            .filter(|stream| stream.is_changed())
            .count();
        let placed = self
            .placed
            .iter()
            .filter(|placed| placed.is_moved())
            .count();
        let operators: usize = self.sites.iter().map(SitePlan::gone).sum();
        operators + streams + self.merged.len() + self.constants() + placed
    }

    /// Whether the plan changes nothing.
    pub fn is_empty(&self) -> bool {
        self.is_tidied_alone() && !self.is_tidied
    }

    /// Whether the plan changes no site, stream or normalizer, and converts nothing to half
    /// precision. The plan may contain other changes.
    pub(crate) fn is_tidied_alone(&self) -> bool {
        self.removals.is_empty()
            && self.resets.is_empty()
            && self.folds.is_empty()
            && self.rewrites.is_empty()
            && self.replacements.is_empty()
            && !self.streams.iter().any(StreamPlan::is_changed)
            && self.merged.is_empty()
            && self.constants() == 0
            && self.half.is_none()
    }

    /// The number of normalizers that an affine replaces, because their statistics are constant.
    pub fn constants(&self) -> usize {
        self.constant
            .iter()
            .filter(|norm| norm.is_constant())
            .count()
    }
}

/// The version of the operator set before and after an upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OpsetUpgrade {
    /// The version in the input model.
    pub from: i64,
    /// The version in the result.
    pub to: i64,
}
