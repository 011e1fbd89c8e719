//! The outcomes of the affines of a site.

use serde::Serialize;

use crate::affine::Affine;
use crate::affine::recognize::Kind;
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
    /// How many of scale and shift fold.
    fn folded_halves(&self) -> usize {
        match self {
            Outcome::Folded { .. } => 2,
            Outcome::Partly { .. } | Outcome::Scaled { .. } => 1,
            Outcome::Kept { .. } => 0,
        }
    }

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
    /// The smallest range that holds several bases; `None` without a basis.
    pub fn around(all: impl IntoIterator<Item = Basis>) -> Option<Self> {
        all.into_iter().reduce(|a, b| Basis {
            least: a.least.min(b.least),
            most: a.most.max(b.most),
        })
    }

    /// The basis of these scales, the factors of the writers of a stream.
    pub fn from_writers<'a>(writers: impl IntoIterator<Item = &'a Affine>) -> Option<Self> {
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
    /// The number of its operators, once for each half of an affine that folds.
    pub(super) fn gone(&self) -> usize {
        self.nodes.len() * self.outcomes().map(Outcome::folded_halves).sum::<usize>()
    }

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
