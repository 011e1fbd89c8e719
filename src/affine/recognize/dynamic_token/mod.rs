//! DTN: Dynamic Token Normalization (Shao et al., 2021).
//!
//! `γ(x − μ)/√(σ² + ε) + β`, where each head blends the mean and the variance of a token with those
//! of its neighbours: `μ = λμ^ln + (1−λ)Px`, `σ² = λ(σ²)^ln + (1−λ)(P(x⊙x) − Px⊙Px)`. `P` and λ are
//! constants of a trained model.

mod fewest;
mod interpret;

use std::collections::HashSet;

use crate::affine::Affine;
use crate::affine::recognize::affine_chain::Chain;
use crate::affine::recognize::batch_invariant::Alike;
use crate::affine::recognize::formula::is_understood;
use crate::affine::recognize::region::{ATTEMPTS, Region, divisor, regions};
use crate::affine::recognize::statistics::scaling;
use crate::affine::recognize::{Family, Kind, Normalizer, Part, Replacement, Site, View};
use crate::ir::{Graph, NodeId, Reader, ValueId};
use crate::onnx::proto::NodeProto;
use crate::onnx::tensor::DataType;
use crate::refusal::{Reason, Refusal};
use fewest::{Place, fewest};
use interpret::{Meaning, interpret};

/// Nearly equal token weights become a mean by rounding, which is another normalizer.
const KIND: Kind = Kind {
    is_told_by_constants: true,
    ..Kind::new("DTN", Family::Online)
};

/// Dynamic Token Normalization.
pub struct DynamicToken;

impl Normalizer for DynamicToken {
    fn recognise(&self, view: &View, node: NodeId) -> Option<Site> {
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
    let scales = |chain: &&Chain| !chain.affine.is_identity();
    let chain = view
        .chain_from(output)
        .filter(|_| view.only_reader(output).is_some());
    let mut nodes = [&region.nodes[..], &meaning.moves].concat();
    let behind = chain.filter(scales).map(Chain::part);
    nodes.extend(behind.iter().flat_map(|part| part.nodes.clone()));
    let core = meaning
        .refusal
        .clone()
        .or_else(|| not_in_float(view, node, region));
    let fewer = match core {
        None => replacement(view, node, divisor, region, meaning, behind.as_ref()),
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
            (None, chain.filter(scales).map(Chain::part))
        }
    };
    let nothing = replacement.is_none() && post.is_none() && core.is_none();
    Site {
        kind: KIND,
        name: view.site_name(node),
        channels: meaning.channels,
        axis: 2,
        nodes,
        pre: None,
        post,
        replacement,
        core,
        refusal: nothing.then(|| Refusal::new(Reason::Identity, view.graph.name(node))),
    }
}

/// The site in fewer operators, and the affine that is behind them then: γ may have been before the
/// division, and the operators may leave a factor of their own to it.
fn replacement(
    view: &View,
    node: NodeId,
    divisor: ValueId,
    region: &Region,
    meaning: &Meaning,
    behind: Option<&Part>,
) -> Option<(Replacement, Option<Part>)> {
    let graph = view.graph;
    let output = meaning.output;
    // A value that nothing else reads, to be the one without the factor: that before the affine
    // behind, or else one of those that are not there any more.
    let apart = match behind {
        Some(_) => Some(output).filter(|&value| view.only_reader(value).is_some()),
        None => {
            let own = [&region.nodes[..], &meaning.moves].concat();
            let inner = region
                .nodes
                .iter()
                .rev()
                .filter_map(|&node| graph.only_output(node));
            let free = |&value: &ValueId| {
                value != output
                    && view.facts.shape(value) == view.facts.shape(output)
                    && leads_only_to(graph, value, output, &own)
            };
            [divisor].into_iter().chain(inner).find(free)
        }
    };
    let core = apart.unwrap_or(output);
    // Nodes with other readers would stay beside the new ones.
    let own = [
        &region.nodes[..],
        &meaning.moves,
        behind.map_or(&[], |part| &part.nodes),
    ]
    .concat();
    let mut inner = region
        .nodes
        .iter()
        .filter_map(|&node| graph.only_output(node));
    if inner.any(|value| ![core, output].contains(&value) && !view.is_read_by_no_other(value, &own))
    {
        return None;
    }
    let replaced = view.maker(core)?;
    let target = Place {
        input: graph.value_name(region.input),
        output: graph.value_name(core),
        like: node,
        scaled: apart.is_none(),
    };
    let written = fewest(graph, meaning, &target)?;
    // Where the operators are these already, they have been written by this; of two Reshapes in a row one may be left.
    let mut there: Vec<&str> = region
        .nodes
        .iter()
        .map(|&node| graph.node(node).op_type())
        .collect();
    let mut made: Vec<&str> = written.made.iter().map(NodeProto::op_type).collect();
    let is_less = there.len() <= made.len();
    for operators in [&mut there, &mut made] {
        operators.retain(|&operator| operator != "Reshape");
        operators.sort_unstable();
    }
    if is_less && there == made {
        return None;
    }
    let replacement = Replacement {
        nodes: vec![replaced],
        made: written.made,
        constants: written.constants,
    };
    if apart.is_none() {
        return Some((replacement, behind.cloned()));
    }
    let factor = Affine::scale(written.scale.reshape(&[1, 1, meaning.channels])?);
    let post = match behind {
        Some(part) => Part {
            affine: factor.then(&part.affine),
            ..part.clone()
        },
        None => Part {
            affine: factor,
            input: core,
            output,
            nodes: vec![view.maker(output)?],
            resets: vec![],
        },
    };
    Some((replacement, Some(post)))
}

/// Whether a value leads to nothing but `end`, through these nodes.
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

/// The refusal of a site that does not compute in float32.
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
