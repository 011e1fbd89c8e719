//! The plan of folding, as data that can be printed.

mod memory;
mod site;
mod stream;

use serde::Serialize;

pub use self::memory::{CutRegion, HeldValue, MemoryChange};
pub use self::site::{Basis, Direction, Outcome, SitePlan};
pub use self::stream::{Centring, Follower, Member, MergedNorm, Scaling, StreamPlan};

use crate::affine::fold::Fold;
use crate::affine::recognize::{Part, Replacement, Reset};
use crate::hash::HashMap;
use crate::ir::NodeId;
use crate::ir::builder::NewConstant;
use crate::onnx::tensor::DataType;
use crate::recipe::Recipe;
use crate::refusal::Refusal;

/// Nodes to remove, and the value that replaces their result.
#[derive(Debug, Clone)]
pub struct Removal {
    /// The nodes.
    pub nodes: Vec<NodeId>,
    /// Name of the value that they made.
    pub output: String,
    /// Name of the value that is read instead.
    pub source: String,
}

/// A part that stays with another affine than it had.
#[derive(Debug, Clone)]
pub struct Rewrite {
    /// The part, with its new affine.
    pub part: Part,
    /// The site that it belongs to.
    pub site: usize,
    /// Element type of its value, which its constants have; `None` where nothing tells.
    pub data_type: Option<DataType>,
}

/// A tensor that was stored.
#[derive(Debug, Clone)]
pub struct Stored {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub data_type: DataType,
    /// How it was computed.
    pub recipe: Recipe,
    /// The constant whose place it takes in an operator; `None` where that had none.
    pub replaces: Option<String>,
    /// The sites that it is for.
    pub sites: Vec<usize>,
}

impl Stored {
    /// One that is computed before there are sites; `None` where it holds no floats.
    pub fn from_constant(constant: &NewConstant) -> Option<Self> {
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

/// Why a run of the pipeline stops.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "reason")]
pub enum StopReason {
    /// The last pass finds nothing to do: another run of the result changes nothing.
    #[default]
    Fixpoint,
    /// A bound is reached. The result is equal to the model all the same; another run of it may do more.
    Bound {
        /// The stage that the bound is for, such as `fold`.
        at: &'static str,
        /// The last pass that changed the model in this stage.
        pass: &'static str,
    },
    /// The run was to stop after this pass.
    StopAfter {
        /// The name of the pass.
        pass: &'static str,
    },
}

/// The statistics of one pass in a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PassStats {
    /// The name of the pass, or `analysis` for the analyses that all passes share.
    pub name: &'static str,
    /// How often it ran.
    pub runs: usize,
    /// How often it changed the model.
    pub changes: usize,
    /// How many operators it removed, less those that it added.
    pub operators: i64,
    /// The time that it took, in seconds.
    pub seconds: f64,
}

/// Everything that folding will do to a model, as data.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// The sites, in execution order.
    pub sites: Vec<SitePlan>,
    /// The affines that nodes absorb into their constants, in order of application.
    pub folds: Vec<Fold>,
    /// The Adds that hold the biases of nodes that have no place for one.
    pub bias_adds: HashMap<NodeId, (NodeId, usize)>,
    /// The removals.
    pub removals: Vec<Removal>,
    /// Inputs of nodes that get their neutral values, and the site of each.
    pub resets: Vec<(Reset, usize)>,
    /// Parts that took in another.
    pub rewrites: Vec<Rewrite>,
    /// The tensors that the result has and the model has not, as formulas over those of the model.
    pub tensors: Vec<Stored>,
    /// Nodes that others take the place of, and the site of each.
    pub replacements: Vec<(Replacement, usize)>,
    /// Bytes added by copies of weights with other readers, and by stored constants.
    pub growth: u64,
    /// The residual streams considered for another basis.
    pub streams: Vec<StreamPlan>,
    /// Normalizers that are gone as others follow them, which is equal up to what those add to their variances.
    pub merged: Vec<MergedNorm>,
    /// Linear work that is done where values have fewer places, and work that could be.
    pub placed: Vec<Placed>,
    /// The peak of activations and the cuts, where slicing was requested.
    pub memory: Option<MemoryChange>,
    /// The changes beside the sites.
    pub tidy: Tidy,
    /// Whether that changed the model.
    pub is_tidied: bool,
    /// Why the run stops.
    pub stopped: StopReason,
    /// The passes that ran, in the order of the pipeline.
    pub passes: Vec<PassStats>,
}

/// Linear work that is done where values have fewer places, or stays where it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Placed {
    /// The rule, such as `pooling`.
    pub rule: &'static str,
    /// The name of the node that moves.
    pub at: String,
    /// Its multiply-adds in the model, as a formula of the extents that are open.
    pub before: String,
    /// Its multiply-adds where it is moved to.
    pub after: String,
    /// Why it stays, where it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<Refusal>,
}

impl Placed {
    /// Whether another one is the work of this node by this rule.
    pub fn is_alike(&self, other: &Placed) -> bool {
        self.rule == other.rule && self.at == other.at
    }

    /// Whether it is moved.
    pub fn is_moved(&self) -> bool {
        self.why.is_none()
    }
}

/// The changes beside the sites.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Tidy {
    /// The operator set that the result has, where it is a newer one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raised: Option<OpsetUpgrade>,
    /// Operators on constants, or on extents that are known, whose results are stored.
    pub constants: usize,
    /// Operators that computed what others compute.
    pub duplicates: usize,
    /// Products that are one operator with their biases, for the sake of an engine.
    #[serde(skip_serializing_if = "is_zero")]
    pub biased: usize,
    /// Selections that were moved up, and products that were taken apart for them.
    #[serde(skip_serializing_if = "is_zero")]
    pub selected: usize,
    /// Values of open extents whose shapes are not declared any more, for the sake of an engine.
    #[serde(skip_serializing_if = "is_zero")]
    pub untold: usize,
    /// Why constants are computed in each run, where they are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<Refusal>,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Plan {
    /// Takes over from a plan for the same model what scaling its streams would come to.
    pub fn streams_scaled_as(&mut self, other: Plan) {
        let mut scaled: std::collections::HashMap<String, Option<Scaling>> = other
            .streams
            .into_iter()
            .map(|stream| (stream.name, stream.scaling))
            .collect();
        for stream in &mut self.streams {
            stream.scaling = scaled.remove(&stream.name).flatten();
        }
    }

    /// Takes over what becomes of the mean of each stream, by name.
    pub fn streams_centred_as(&mut self, streams: Vec<StreamPlan>) {
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

    /// How much goes: the operators of each site, twice where an affine of it goes whole and once where only its scale
    /// does, or its shift; and each stream that changes, each normalizer that is merged, and each operator that moves.
    pub fn gone(&self) -> usize {
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
        operators + streams + self.merged.len() + placed
    }

    /// Whether the plan is empty.
    pub fn is_empty(&self) -> bool {
        self.is_tidied_alone() && !self.is_tidied
    }

    /// Whether no site, stream or normalizer changes, whatever is done beside them.
    pub(crate) fn is_tidied_alone(&self) -> bool {
        self.removals.is_empty()
            && self.resets.is_empty()
            && self.folds.is_empty()
            && self.rewrites.is_empty()
            && self.replacements.is_empty()
            && !self.streams.iter().any(StreamPlan::is_changed)
            && self.merged.is_empty()
    }
}

/// The operator set that a model had, and the one that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct OpsetUpgrade {
    /// The version of the input.
    pub from: i64,
    /// The version of the result.
    pub to: i64,
}
