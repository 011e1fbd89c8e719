//! The outcomes of the affines of a site.

use serde::Serialize;

use crate::affine::Affine;
use crate::affine::recognize::Kind;
use crate::refusal::Refusal;

/// The direction in which an affine folds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Forward, into the readers of the site: Algorithm 1 of the UN paper.
    Forward,
    /// Backward, into the producer of the site's input.
    Backward,
    /// Together with other affines, into one operator that replaces all of them.
    Merged,
}

impl Direction {
    /// The name in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Direction::Forward => "forward",
            Direction::Backward => "backward",
            Direction::Merged => "merged",
        }
    }
}

/// The outcome for one affine of a site.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum Outcome {
    /// The whole affine folds, and its operators are removed.
    Folded {
        /// The direction in which the affine folds.
        direction: Direction,
        /// The nodes that absorb the affine.
        into: Vec<String>,
    },
    /// The shift folds, and the scale stays.
    Partly {
        /// The nodes that absorb the shift.
        into: Vec<String>,
        /// The reason why the scale stays.
        scale: Refusal,
    },
    /// The scale folds, and the shift stays.
    Scaled {
        /// The nodes that absorb the scale.
        into: Vec<String>,
        /// The reason why the shift stays.
        shift: Refusal,
    },
    /// The affine stays.
    Kept {
        /// The reason why the affine cannot fold forward, or why it cannot fold at all.
        forward: Refusal,
        /// The reason why the affine cannot fold backward, if that was tried.
        backward: Option<Refusal>,
    },
}

impl Outcome {
    /// The number of halves (scale and shift) that fold.
    fn folded_halves(&self) -> usize {
        match self {
            Outcome::Folded { .. } => 2,
            Outcome::Partly { .. } | Outcome::Scaled { .. } => 1,
            Outcome::Kept { .. } => 0,
        }
    }

    /// Whether the affine folds, at least in part.
    pub fn goes(&self) -> bool {
        !matches!(self, Outcome::Kept { .. })
    }

    /// The refusals, each with its label: the refused half (`scale` or `shift`) or the refused
    /// direction.
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

/// The range of the factors that divide the channels of a residual stream.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Basis {
    /// The least magnitude.
    pub least: f64,
    /// The largest magnitude.
    pub most: f64,
}

impl Basis {
    /// The smallest range that contains the ranges of all these bases. `None` if there are no
    /// bases.
    pub(crate) fn around(all: impl IntoIterator<Item = Basis>) -> Option<Self> {
        all.into_iter().reduce(|a, b| Basis {
            least: a.least.min(b.least),
            most: a.most.max(b.most),
        })
    }

    /// The basis that results if the writers of a stream are scaled by these affines. `None` if
    /// there are no affines.
    pub(crate) fn from_writers<'a>(writers: impl IntoIterator<Item = &'a Affine>) -> Option<Self> {
        let scales = writers.into_iter().flat_map(|affine| affine.scale.iter());
        Basis::around(
            scales
                .map(|scale| 1.0 / scale.abs())
                .map(|d| Basis { least: d, most: d }),
        )
    }
}

/// A site and the outcomes of its affines.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SitePlan {
    /// The module path or node name. It is unique among the sites.
    pub name: String,
    /// The kind of the site.
    pub kind: Kind,
    /// The number of channels.
    pub channels: usize,
    /// The axis of the channels in the value that the site's operators read.
    pub axis: usize,
    /// The names of the nodes of the site.
    pub nodes: Vec<String>,
    /// The outcome of the affine before the core, if there is one.
    pub pre: Option<Outcome>,
    /// The outcome of the core. It is set only if fewer operators could compute the core, but a
    /// refusal keeps the operators that it has.
    pub core: Option<Outcome>,
    /// The outcome of the affine after the core, or of the whole affine of an offline normalizer.
    pub post: Option<Outcome>,
    /// The new basis of the residual stream after the site, if the basis changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub basis: Option<Basis>,
}

impl SitePlan {
    /// The number of operators of the site, times the number of halves (scale or shift) of its
    /// affines that fold.
    pub(super) fn gone(&self) -> usize {
        self.nodes.len() * self.outcomes().map(Outcome::folded_halves).sum::<usize>()
    }

    /// Whether the affine after the core, or the whole affine of an offline normalizer, folds
    /// completely, and the core has no outcome of its own. The affine before a core may stay, as
    /// the α of a Dynamic Tanh on a residual stream does.
    pub fn is_folded(&self) -> bool {
        matches!(self.post, Some(Outcome::Folded { .. })) && self.core.is_none()
    }

    /// The outcomes of the parts of the site, in order of execution.
    ///
    /// ```
    /// let model = unfold::onnx::Model::open("models/digits/dyt-dynamo.onnx")?;
    /// let plan = unfold::plan(&model, &Default::default())?;
    /// let tanh = plan.sites.iter().find(|site| site.kind.name == "DyT").unwrap();
    /// assert_eq!(tanh.outcomes().count(), 2); // α before the tanh, γ and β after it
    /// # Ok::<(), unfold::error::Error>(())
    /// ```
    pub fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.pre.iter().chain(&self.core).chain(&self.post)
    }
}
