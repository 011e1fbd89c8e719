//! DTN: Dynamic Token Normalization (Shao et al., 2021).
//!
//! `γ(x − μ)/√(σ² + ε) + β`. Each head blends the mean and the variance of a token with those of
//! its neighbours: `μ = λμ^ln + (1−λ)Px`, `σ² = λ(σ²)^ln + (1−λ)(P(x⊙x) − Px⊙Px)`. Here `μ^ln` and
//! `(σ²)^ln` are statistics over the channels, and `P` is a matrix that mixes the tokens. `P` and λ
//! are constants of a trained model.

mod interpret;
mod rewrite;

use std::collections::HashSet;

use crate::affine::Affine;
use crate::affine::recognize::affine_chain::Chain;
use crate::affine::recognize::batch_invariant::Alike;
use crate::affine::recognize::decomposed_norm::scaling;
use crate::affine::recognize::formula::is_understood;
use crate::affine::recognize::region::{ATTEMPTS, Region, divisor, regions};
use crate::affine::recognize::{Family, Kind, Normalizer, Part, Replacement, Site, View};
use crate::ir::{Graph, NodeId, Reader, ValueId};
use crate::onnx::proto::NodeProto;
use crate::onnx::tensor::DataType;
use crate::recipe::Numbers;
use crate::refusal::{Reason, Refusal};
use interpret::{Meaning, interpret};
use rewrite::{Place, rewrite};

/// The elements of constants decide whether a site has this kind. If rounding makes nearly equal
/// token weights equal, they compute a mean, and the site is of another kind.
const KIND: Kind = Kind {
    is_told_by_constants: true,
    ..Kind::new("DTN", Family::Online)
};

/// Dynamic Token Normalization.
pub(super) struct DynamicToken;

impl Normalizer for DynamicToken {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let divisor = divisor(view, node)?;
        let alike = Alike::new(view);
        let found = regions(view, &alike, node, |node| is_understood(view, node))
            .into_iter()
            .filter(|region| region.nodes.len() > 1)
            .take(ATTEMPTS)
            .filter(|region| !region.blends_nothing(view))
            .find_map(|region| Some((interpret(view, &alike, &region)?, region)));
        let (meaning, region) = found?;
        Some(site(view, node, divisor, &region, &meaning))
    }

    fn short_names(&self) -> &'static [&'static str] {
        &["dtn"]
    }
}

fn site(view: &View, node: NodeId, divisor: ValueId, region: &Region, meaning: &Meaning) -> Site {
    let output = meaning.output;
    let chain = view
        .chain_from(output)
        .filter(|_| view.only_reader(output).is_some());
    let mut nodes = [&region.nodes[..], &meaning.moves].concat();
    let behind = chain.filter(|chain| !chain.affine.is_identity());
    let behind = behind.map(Chain::part);
    nodes.extend(behind.iter().flat_map(|part| part.nodes.clone()));
    let core = meaning
        .refusal
        .clone()
        .or_else(|| not_in_float(view, node, region));
    let fewer = match core {
        None => {
            let rewrite = SiteRewrite {
                view,
                node,
                divisor,
                region,
                meaning,
                behind: behind.as_ref(),
            };
            rewrite.replacement()
        }
        Some(_) => None,
    };
    let (replacement, post) = match (fewer, &core) {
        (Some((replacement, post)), _) => (Some(replacement), post),
        (None, None) => (None, behind),
        (None, Some(_)) => {
            let numerator = view
                .graph
                .inputs(node)
                .iter()
                .flatten()
                .find(|&&input| input != divisor);
            let chain = numerator.and_then(|&numerator| scaling(view, numerator, output));
            let chain = chain.filter(|chain| !chain.affine.is_identity());
            (None, chain.map(Chain::part))
        }
    };
    let is_bare = replacement.is_none() && post.is_none() && core.is_none();
    Site {
        channels: meaning.channels,
        axis: 2,
        post,
        replacement,
        core,
        refusal: is_bare.then(|| Refusal::new(Reason::Identity, view.graph.name(node))),
        ..Site::new(KIND, view.site_name(node), nodes)
    }
}

/// A site that may be written with fewer operators.
struct SiteRewrite<'r> {
    view: &'r View<'r>,
    node: NodeId,
    divisor: ValueId,
    region: &'r Region,
    meaning: &'r Meaning,
    /// The affine after the site.
    behind: Option<&'r Part>,
}

impl SiteRewrite<'_> {
    /// Rewrites the site with fewer operators. Returns them and the affine after them. `None` if
    /// the site has few operators already, or if nodes outside of it read its inner values. The
    /// affine may include γ from before the division, and a factor that the new operators leave
    /// out.
    fn replacement(&self) -> Option<(Replacement, Option<Part>)> {
        let graph = self.view.graph;
        let unscaled = self.unscaled();
        let core = unscaled.unwrap_or(self.meaning.output);
        // If a node outside of the site read an inner value, the nodes that compute it would stay
        // in addition to the new nodes.
        if self.is_read_elsewhere(core) {
            return None;
        }
        let replaced = self.view.maker(core)?;
        let target = Place {
            input: graph.value_name(self.region.input),
            output: graph.value_name(core),
            like: self.node,
            scaled: unscaled.is_none(),
        };
        let written = rewrite(graph, self.meaning, &target)?;
        if self.is_written_as(&written.made) {
            return None;
        }
        let post = match unscaled {
            Some(core) => Some(self.with_factor(core, &written.scale)?),
            None => self.behind.cloned(),
        };
        let replacement = Replacement {
            nodes: vec![replaced],
            made: written.made,
            constants: written.constants,
        };
        Some((replacement, post))
    }

    /// The nodes of the site without the affine after it.
    fn own_nodes(&self) -> Vec<NodeId> {
        [&self.region.nodes[..], &self.meaning.moves].concat()
    }

    /// The values that the nodes of the region output.
    fn inner(&self) -> impl DoubleEndedIterator<Item = ValueId> {
        let nodes = self.region.nodes.iter();
        nodes.filter_map(|&node| self.view.graph.only_output(node))
    }

    /// The value that the new operators may output without their factor. If an affine follows the
    /// site, it is the input of that affine. Otherwise it is a value inside of the site whose
    /// readers lead only to the output.
    fn unscaled(&self) -> Option<ValueId> {
        let output = self.meaning.output;
        if self.behind.is_some() {
            return self.view.only_reader(output).map(|_| output);
        }
        let own = self.own_nodes();
        let mut candidates = [self.divisor].into_iter().chain(self.inner().rev());
        candidates.find(|&value| {
            value != output
                && self.view.facts.shape(value) == self.view.facts.shape(output)
                && leads_only_to(self.view.graph, value, output, &own)
        })
    }

    /// Whether a node outside of the site reads an inner value other than `core`.
    fn is_read_elsewhere(&self, core: ValueId) -> bool {
        let mut own = self.own_nodes();
        own.extend(self.behind.iter().flat_map(|part| &part.nodes));
        self.inner().any(|value| {
            ![core, self.meaning.output].contains(&value)
                && !self.view.is_read_by_no_other(value, &own)
        })
    }

    /// Whether the region already consists of no more than the operators `made`, because an earlier
    /// pass wrote it. Reshapes do not count, since one of two in a row may have been removed.
    fn is_written_as(&self, made: &[NodeProto]) -> bool {
        let nodes = self.region.nodes.iter();
        let present = nodes.map(|&node| self.view.graph.node(node).op_type());
        let present: Vec<&str> = present.collect();
        let made: Vec<&str> = made.iter().map(NodeProto::op_type).collect();
        present.len() <= made.len() && without_reshapes(present) == without_reshapes(made)
    }

    /// The affine after the new operators. It includes `factor`, which the new operators leave out.
    fn with_factor(&self, core: ValueId, factor: &Numbers) -> Option<Part> {
        let factor = Affine::scale(factor.reshape(&[1, 1, self.meaning.channels])?);
        let output = self.meaning.output;
        Some(match self.behind {
            Some(part) => Part {
                affine: factor.then(&part.affine),
                ..part.clone()
            },
            None => Part {
                affine: factor,
                input: core,
                output,
                nodes: vec![self.view.maker(output)?],
                resets: vec![],
            },
        })
    }
}

/// The operators in alphabetical order, without Reshapes.
fn without_reshapes(mut operators: Vec<&str>) -> Vec<&str> {
    operators.retain(|&operator| operator != "Reshape");
    operators.sort_unstable();
    operators
}

/// Whether every path from a value leads to `end` through nodes of `through`.
fn leads_only_to(graph: &Graph, value: ValueId, end: ValueId, through: &[NodeId]) -> bool {
    let (mut open, mut seen) = (vec![value], HashSet::from([end]));
    while let Some(value) = open.pop() {
        if !seen.insert(value) {
            continue;
        }
        for reader in graph.readers(value) {
            match reader {
                Reader::Node { node, .. } if through.contains(node) => {
                    open.extend(graph.outputs(*node).iter().flatten());
                }
                _ => return false,
            }
        }
    }
    true
}

/// The refusal of a site with a floating-point constant of a type other than float32. `None` if it
/// has no such constant.
fn not_in_float(view: &View, node: NodeId, region: &Region) -> Option<Refusal> {
    let inputs = region
        .nodes
        .iter()
        .flat_map(|&node| view.graph.inputs(node).iter().flatten());
    let mut types = inputs
        .filter(|&&input| view.constants.is_constant(input))
        .filter_map(|&input| view.facts.data_type(input))
        .filter(|data_type| data_type.is_float());
    let other = types.find(|&data_type| data_type != DataType::Float)?;
    Some(Refusal::new(
        Reason::ElementType(other.name()),
        view.graph.name(node),
    ))
}
