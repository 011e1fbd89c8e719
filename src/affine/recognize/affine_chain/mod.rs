//! Chains of element-wise operators that together are one per-channel affine.
//!
//! `x / √(σ²+ε) · γ + β`, in any order of operators and operands, BatchNormalization with fixed
//! statistics, and sums of such branches over one value (`BN(x) + α·x`), are all `s·x + t`.

mod search;
mod step;
mod words;

use crate::affine::Affine;
use crate::affine::recognize::{Family, KINDS, Kind, NORM, Part, Site, View};
use crate::ir::{Graph, NodeId, ValueId};
use crate::recipe::Numbers;
use crate::refusal::{Reason, Refusal};

pub use search::find;
pub use step::batch_norm;

/// An affine on one value, as the nodes that compute it.
#[derive(Debug, Clone)]
pub struct Chain {
    /// The value it acts on.
    pub input: ValueId,
    /// The value it makes.
    pub output: ValueId,
    /// The nodes, in execution order.
    pub nodes: Vec<NodeId>,
    /// The affine of the nodes.
    pub affine: Affine,
    /// Whether it is a sum of several branches over `input`.
    pub has_branches: bool,
    /// The axis along which its factors lie, even where all of them are equal, as before training.
    pub factor_axis: Option<usize>,
    /// Words that tell where it came from: classes, module path, names of its parameters.
    pub words: Vec<String>,
    /// The module path of its first node.
    pub path: String,
}

impl Chain {
    /// Whether any of its words begins with one of these.
    pub fn mentions(&self, starts: &[&str]) -> bool {
        self.words
            .iter()
            .any(|word| starts.iter().any(|start| word.starts_with(start)))
    }

    /// Whether it scales each channel: a bare shift is a bias, and one number for all channels is a
    /// normalizer only by name.
    pub fn is_per_channel(&self) -> bool {
        self.affine.scale.len() > 1
            || (self.nodes.len() > 1 && !self.affine.has_no_scale() && self.is_named())
    }

    /// Whether its words name a normalizer.
    fn is_named(&self) -> bool {
        self.mentions(&[NORM, "running_"]) || KINDS.iter().any(|kind| self.mentions(kind.names()))
    }

    /// Whether it holds a BatchNormalization.
    pub fn has_batch_norm(&self, graph: &Graph) -> bool {
        self.nodes
            .iter()
            .any(|&node| graph.is(node, "BatchNormalization"))
    }

    /// The only axis along which the affine varies; `None` for zero or several axes.
    pub fn axis(&self) -> Option<usize> {
        match self.affine.axes()[..] {
            [axis] => Some(axis),
            _ => None,
        }
    }

    /// The extent of its parameters along an axis of its value.
    fn extent_of_parameters(&self, axis: usize) -> usize {
        let extent = |numbers: &Numbers| numbers.shape().get(axis).copied().unwrap_or(1);
        extent(&self.affine.scale).max(extent(&self.affine.shift))
    }

    /// The chain as an affine of a site.
    pub fn part(&self) -> Part {
        Part {
            affine: self.affine.clone(),
            input: self.input,
            output: self.output,
            nodes: self.nodes.clone(),
            resets: vec![],
        }
    }

    /// The chain as a site of a kind whose statistics are fixed.
    pub fn site(&self, view: &View, kind: Kind) -> Site {
        let graph = view.graph;
        let axis = self.axis().or(self.factor_axis).unwrap_or(0);
        let extent = view.facts.extent(self.output, axis);
        let is_finite = self.affine.is_finite();
        let name = if self.path.is_empty() {
            graph.name(self.nodes[0]).to_owned()
        } else {
            self.path.clone()
        };
        Site {
            channels: extent.unwrap_or_else(|| self.extent_of_parameters(axis)),
            axis,
            post: Some(self.part()),
            refusal: (!is_finite)
                .then(|| Refusal::new(Reason::NotFinite, graph.name(self.nodes[0]))),
            ..Site::new(kind, name, self.nodes.clone())
        }
    }
}

/// A kind of fixed statistics.
pub const fn offline(name: &'static str) -> Kind {
    Kind::new(name, Family::Offline)
}
