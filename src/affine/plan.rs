//! The plan of folding, as data that can be printed.

use serde::Serialize;

use crate::affine::Affine;
use crate::affine::fold::Fold;
use crate::affine::recognize::{Kind, Part, Replacement, Reset};
use crate::hash::HashMap;
use crate::ir::NodeId;
use crate::ir::builder::NewConstant;
use crate::onnx::tensor::DataType;
use crate::recipe::Recipe;
use crate::refusal::Refusal;

/// Where an affine goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Into the readers of the site: Algorithm 1 of the UN paper.
    Forward,
    /// Into what produces the site's input.
    Backward,
    /// Together with others, into one operator that replaces all of them.
    Merged,
}

impl Direction {
    /// Its name, as JSON has it.
    pub fn name(self) -> &'static str {
        match self {
            Direction::Forward => "forward",
            Direction::Backward => "backward",
            Direction::Merged => "merged",
        }
    }
}

/// The outcome for one affine of a site.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum Outcome {
    /// It goes; its operators disappear.
    Folded {
        /// Where to.
        direction: Direction,
        /// The nodes that take it in.
        into: Vec<String>,
    },
    /// Its shift goes, its scale stays.
    Partly {
        /// The nodes that take the shift in.
        into: Vec<String>,
        /// Why the scale cannot go.
        scale: Refusal,
    },
    /// Its scale goes, its shift stays.
    Scaled {
        /// The nodes that take the scale in.
        into: Vec<String>,
        /// Why the shift cannot go.
        shift: Refusal,
    },
    /// It stays.
    Kept {
        /// Why it cannot go forward; or why not at all.
        forward: Refusal,
        /// Why it cannot go backward, where that was tried.
        backward: Option<Refusal>,
    },
}

impl Outcome {
    /// Whether it goes, all of it or in part.
    pub fn goes(&self) -> bool {
        !matches!(self, Outcome::Kept { .. })
    }

    /// The refusals, each with the refused part, `scale` or `shift`, or direction.
    pub fn refusals(&self) -> impl Iterator<Item = (&'static str, &Refusal)> {
        let [first, second] = match self {
            Outcome::Folded { .. } => [None, None],
            Outcome::Partly { scale, .. } => [Some(("scale", scale)), None],
            Outcome::Scaled { shift, .. } => [Some(("shift", shift)), None],
            Outcome::Kept { forward, backward } => {
                let backward = backward
                    .as_ref()
                    .map(|refusal| (Direction::Backward.name(), refusal));
                [Some((Direction::Forward.name(), forward)), backward]
            }
        };
        first.into_iter().chain(second)
    }
}

/// The divisor of the channels of a residual stream: its least and largest magnitude.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Basis {
    /// The least.
    pub least: f64,
    /// The largest.
    pub most: f64,
}

impl Basis {
    /// The one in which all of several are; `None` of none.
    pub fn around(all: impl IntoIterator<Item = Basis>) -> Option<Self> {
        let both = |a: Basis, b: Basis| Basis {
            least: a.least.min(b.least),
            most: a.most.max(b.most),
        };
        all.into_iter().reduce(both)
    }

    /// The basis of these scales, the factors of the writers of a stream.
    pub fn of<'a>(writers: impl IntoIterator<Item = &'a Affine>) -> Option<Self> {
        let scales = writers.into_iter().flat_map(|affine| affine.scale.iter());
        Basis::around(
            scales
                .map(|scale| 1.0 / scale.abs())
                .map(|d| Basis { least: d, most: d }),
        )
    }
}

/// A site and what happens to it.
#[derive(Debug, Clone, Serialize)]
pub struct SitePlan {
    /// Module path or node name; no two sites share one.
    pub name: String,
    /// The kind.
    pub kind: Kind,
    /// Number of channels.
    pub channels: usize,
    /// The channels' axis in the value that the site's operators see.
    pub axis: usize,
    /// Names of its nodes.
    pub nodes: Vec<String>,
    /// The affine before the core, where there is one.
    pub pre: Option<Outcome>,
    /// The core, where other operators would do with less and cannot take its place.
    pub core: Option<Outcome>,
    /// The affine behind the core, or all of an offline normalizer.
    pub post: Option<Outcome>,
    /// The basis that the residual stream behind it has then, where that is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub basis: Option<Basis>,
}

impl SitePlan {
    /// Whether its affine folds: the one behind the core, or all of an offline normalizer. The
    /// affine before a core may stay, as the α of a Dynamic Tanh on a residual stream does.
    pub fn is_folded(&self) -> bool {
        matches!(self.post, Some(Outcome::Folded { .. })) && self.core.is_none()
    }

    /// The outcomes of its parts, in order of execution.
    ///
    /// ```
    /// let model = unfold::onnx::Model::open("models/digits/dyt-dynamo.onnx")?;
    /// let plan = unfold::plan(&model, &Default::default())?;
    /// let tanh = plan.sites.iter().find(|site| site.kind.name == "DyT").unwrap();
    /// assert_eq!(tanh.outcomes().count(), 2); // α before the tanh, γ and β behind it
    /// # Ok::<(), unfold::error::Error>(())
    /// ```
    pub fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.pre.iter().chain(&self.core).chain(&self.post)
    }
}

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

/// The peak of the memory that activations take, before and after slices.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MemoryChange {
    /// Bytes at the peak before.
    pub before: u64,
    /// Bytes at the peak after.
    pub after: u64,
    /// Bytes that were to be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goal: Option<u64>,
    /// The node that runs at the peak after.
    pub at: String,
    /// The values that are held at the peak after, the largest first.
    pub held: Vec<HeldValue>,
    /// The regions that are cut.
    pub cuts: Vec<CutRegion>,
    /// Why nothing is cut, where that is so for the whole model, or why the peak is only a lower bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl MemoryChange {
    /// Nothing is cut after all, for this reason.
    pub fn undo(&mut self, reason: Option<String>) {
        self.after = self.before;
        self.cuts.clear();
        self.reason = reason;
    }

    /// Whether a goal was set that is not reached.
    pub fn is_missed(&self) -> bool {
        self.goal.is_some_and(|goal| self.after > goal)
    }
}

/// A value that is held at a peak.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeldValue {
    /// Its name.
    pub value: String,
    /// Its bytes.
    pub bytes: u64,
}

/// A region that runs part by part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CutRegion {
    /// Its first node.
    pub first: String,
    /// Its last node.
    pub last: String,
    /// The operators of its nodes, in execution order.
    pub operators: Vec<String>,
    /// Places along the axis that is cut.
    pub extent: usize,
    /// The number of parts.
    pub parts: usize,
}

/// A residual stream, and what happens to its basis.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StreamPlan {
    /// The name of its first value.
    pub name: String,
    /// Number of channels.
    pub channels: usize,
    /// Its writers, after folding.
    pub writers: Vec<Member>,
    /// Its readers, after folding.
    pub readers: Vec<Member>,
    /// The outcome of centring, where normalizers subtract a mean.
    pub centring: Option<Centring>,
    /// The outcome of scaling, where a power of two is requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,
}

/// Something that writes a stream, or reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Member {
    /// The kind of a normalizer, or `linear`, `table`, `constant`, `uniform`, `input`, `output`,
    /// `body`, or else an operator.
    pub kind: String,
    /// The name of the site, the node or the value.
    pub at: String,
}

/// The outcome of centring a stream.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum Centring {
    /// Nothing writes it any more.
    Centred {
        /// The normalizers that need not take it off.
        normalizers: Vec<String>,
        /// The constants that are written without it.
        constants: usize,
        /// The nodes behind which it is taken off.
        subtracted: Vec<String>,
    },
    /// It stays.
    Kept {
        /// The obstacle.
        why: Refusal,
    },
}

/// The outcome of scaling a stream.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum Scaling {
    /// The stream is scaled.
    Scaled {
        /// The k of the `2^-k` that it is.
        power: u32,
        /// The nodes that take a power of two in.
        into: Vec<String>,
        /// The values that a Mul takes one from, or adds one to.
        multiplied: Vec<String>,
    },
    /// It stays.
    Kept {
        /// The obstacle.
        why: Refusal,
    },
}

impl StreamPlan {
    /// Whether the basis changes.
    pub fn is_changed(&self) -> bool {
        self.is_centred() || self.is_scaled()
    }

    /// Whether it is multiplied by a power of two.
    pub fn is_scaled(&self) -> bool {
        matches!(self.scaling, Some(Scaling::Scaled { .. }))
    }

    /// Whether nothing writes the mean of its channels any more.
    pub fn is_centred(&self) -> bool {
        matches!(self.centring, Some(Centring::Centred { .. }))
    }
}

/// A normalizer that was removed, since others follow it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MergedNorm {
    /// Its site.
    pub name: String,
    /// The sites that normalize values made from it.
    pub followers: Vec<Follower>,
}

/// A normalizer behind a removed one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Follower {
    /// Its site.
    pub name: String,
    /// The value that it normalizes.
    pub value: String,
    /// Whether it takes the mean of that off first.
    pub centred: bool,
    /// The summand of its variance, or of its mean square.
    pub epsilon: f64,
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
        let halves = |outcome: &Outcome| match outcome {
            Outcome::Folded { .. } => 2,
            Outcome::Partly { .. } | Outcome::Scaled { .. } => 1,
            Outcome::Kept { .. } => 0,
        };
        let of = |site: &SitePlan| site.nodes.len() * site.outcomes().map(halves).sum::<usize>();
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
        self.sites.iter().map(of).sum::<usize>() + streams + self.merged.len() + placed
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
