//! Chains of element-wise operators that together compute one affine of channels.
//!
//! Each chain computes `s·x + t`. Examples are `x / √(σ²+ε) · γ + β` with operators and operands in
//! any order, BatchNormalization with fixed statistics, and sums of such branches over one value,
//! such as `BN(x) + α·x`.

mod name_words;
mod search;
mod step;

use crate::affine::Affine;
use crate::affine::recognize::{Family, KINDS, Kind, NORM, Part, Site, View};
use crate::ir::{Graph, NodeId, ValueId};
use crate::recipe::Numbers;
use crate::refusal::{Reason, Refusal};

pub(crate) use search::find;
pub(crate) use step::batch_norm;
#[cfg(all(feature = "prove", feature = "tract"))]
pub(crate) use step::step;

/// An affine of one value, with the nodes that compute it.
#[derive(Debug, Clone)]
pub(crate) struct Chain {
    /// The value to which the affine is applied.
    pub input: ValueId,
    /// The result.
    pub output: ValueId,
    /// The nodes, in execution order.
    pub nodes: Vec<NodeId>,
    /// The affine of the nodes.
    pub affine: Affine,
    /// Whether the affine is a sum of several branches over `input`.
    pub has_branches: bool,
    /// The axis along which the constant factor of a Mul or Div lies. It is known even if all
    /// elements of the factor are equal, as before training. `None` if all factors are scalars.
    pub factor_axis: Option<usize>,
    /// Words for the origin of the chain: the classes and module paths of its nodes, and the names
    /// of its parameters.
    pub words: Vec<String>,
    /// The module path of the first node that has one.
    pub path: String,
}

impl Chain {
    /// Whether a word of the chain begins with one of `starts`.
    pub(crate) fn mentions(&self, starts: &[&str]) -> bool {
        self.words
            .iter()
            .any(|word| starts.iter().any(|start| word.starts_with(start)))
    }

    /// Whether the chain has one scale for each channel. A scalar scale also counts if the chain
    /// has several nodes and its words name a normalizer. A chain without a scale is a bias and
    /// does not count.
    pub(crate) fn is_per_channel(&self) -> bool {
        self.affine.scale.len() > 1
            || (self.nodes.len() > 1 && !self.affine.has_no_scale() && self.is_named())
    }

    /// Whether the words of the chain name a normalizer.
    fn is_named(&self) -> bool {
        self.mentions(&[NORM, "running_"]) || KINDS.iter().any(|kind| self.mentions(kind.names()))
    }

    /// Whether the chain contains a BatchNormalization.
    pub(crate) fn has_batch_norm(&self, graph: &Graph) -> bool {
        self.nodes
            .iter()
            .any(|&node| graph.is(node, "BatchNormalization"))
    }

    /// The only axis along which the affine varies. `None` if it varies along no axis or several.
    pub(crate) fn axis(&self) -> Option<usize> {
        match self.affine.axes()[..] {
            [axis] => Some(axis),
            _ => None,
        }
    }

    /// The extent of the scale or of the shift along `axis`, whichever is larger.
    fn extent_of_parameters(&self, axis: usize) -> usize {
        let extent = |numbers: &Numbers| numbers.shape().get(axis).copied().unwrap_or(1);
        extent(&self.affine.scale).max(extent(&self.affine.shift))
    }

    /// Builds the part of a site that has the affine of the chain.
    pub(crate) fn part(&self) -> Part {
        Part {
            affine: self.affine.clone(),
            input: self.input,
            output: self.output,
            nodes: self.nodes.clone(),
            resets: vec![],
        }
    }

    /// Builds the site of the chain. `kind` is a kind with fixed statistics.
    pub(crate) fn site(&self, view: &View, kind: Kind) -> Site {
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

/// The kind `name` of a normalizer with fixed statistics.
pub(crate) const fn offline(name: &'static str) -> Kind {
    Kind::new(name, Family::Offline)
}
