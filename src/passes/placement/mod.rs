//! Placement: moves linear work to where values have the fewest places.
//!
//! A linear operator over channels commutes with a linear map that acts only on places. So it moves
//! after a mean of windows or of all places (`pooling`), and before a Resize or a Concat with
//! resized operands. A rule reads an [`Analysis`] and returns a [`PlacementMove`]. The rule changes
//! nothing itself. A move is made only if it saves work for all possible extents.
//! `docs/placement.md` has the algebra.

mod association;
mod before_resize;
mod concat;
mod copies;
mod factor;
mod grouped_heads;
mod layer;
mod padding;
mod phases;
mod pooling;
mod resize;

use std::collections::BTreeMap;

use tract_onnx::tract_hir::internal::TDim;

use crate::affine::materialize::Edit;
use crate::affine::plan::Placed;
use crate::affine::recognize::{Replacement, View};
use crate::analysis::Analysis;
use crate::hash::HashSet;
use crate::ir::builder::Maker;
use crate::ir::regions::region_path;
use crate::ir::{Graph, NodeId, ValueId};
use crate::passes::legalize::Target;
use crate::refusal::Refusal;
use crate::shape::facts::{Shape, extent};

/// The name of this pass for `--skip`.
pub(crate) const KIND: &str = "placement";

/// The replacement of nodes by nodes that compute with fewer places.
pub(crate) struct PlacementMove {
    /// The line of the plan that describes this move.
    pub placed: Placed,
    /// The nodes that are replaced.
    nodes: Vec<NodeId>,
    /// The edit.
    pub edit: Edit,
}

/// A rule: returns the move that begins at a node. `None` if there is none.
type PlacementRule = fn(&Analysis, NodeId) -> Option<PlacementMove>;

/// All rules for engines on a CPU. For each node, the first move that is not refused is made.
const RULES: &[PlacementRule] = &[
    pooling::find,
    phases::find,
    concat::find,
    grouped_heads::find,
    association::find,
    padding::find,
    before_resize::find,
];

/// The rules for any engine. These rules do not replace a convolution by more operators.
const PORTABLE: &[PlacementRule] = &[pooling::find];

/// The moves of a model that are not refused and do not overlap. The site of each edit is the index
/// of its move in this list.
pub(crate) fn moves(
    analysis: &Analysis,
    target: Target,
    is_refused: &dyn Fn(&Placed) -> bool,
) -> Vec<PlacementMove> {
    let rules = if target == Target::Portable {
        PORTABLE
    } else {
        RULES
    };
    let mut found: Vec<PlacementMove> = vec![];
    let mut taken: HashSet<NodeId> = HashSet::default();
    for &node in analysis.graph.order() {
        let mut moves = rules.iter().filter_map(|rule| rule(analysis, node));
        let Some(mut next) = moves.find(|found| !is_refused(&found.placed)) else {
            continue;
        };
        if next.nodes.iter().any(|node| taken.contains(node)) {
            continue;
        }
        taken.extend(next.nodes.iter().copied());
        next.edit.sites = vec![found.len()];
        found.push(next);
    }
    found
}

/// The lines in the plan for work that could be done with fewer places, but is not. The lines are
/// valid once no move is left.
pub(crate) fn refusals(analysis: &Analysis, target: Target) -> Vec<Placed> {
    let view = View::new(analysis);
    let mut lines: Vec<Placed> = vec![];
    for &node in analysis.graph.order() {
        let heads = match target {
            Target::Portable => None,
            _ => grouped_heads::refused(analysis, node),
        };
        let line = heads.or_else(|| pooling::refused(&view, node));
        if let Some(line) = line
            && !lines.iter().any(|other| other.is_alike(&line))
        {
            lines.push(line);
        }
    }
    lines
}

impl PlacementMove {
    /// The move that replaces nodes, the last of which outputs `output`, by the nodes of a maker.
    fn new(
        analysis: &Analysis,
        (rule, at): (&'static str, NodeId),
        nodes: Vec<NodeId>,
        maker: Maker,
        output: ValueId,
        [before, after]: [&[WorkTerm]; 2],
    ) -> Self {
        let graph = &analysis.graph;
        let (made, constants) = maker.finish(graph.value_name(output));
        let name = graph.name(at).to_owned();
        let [before, after] = [before, after].map(formula);
        let placed = Placed {
            rule,
            at: name,
            before,
            after,
            why: None,
        };
        let replacement = Replacement {
            nodes: nodes.clone(),
            made,
            constants,
        };
        PlacementMove {
            placed,
            nodes,
            edit: Edit::replacing(graph, at, replacement),
        }
    }

    /// The line in the plan for this move if it is refused. `why` is the reason.
    pub(crate) fn refused(self, why: Refusal) -> Placed {
        Placed {
            why: Some(why),
            ..self.placed
        }
    }
}

/// Work of `products` multiplications for each place. `places` has the extents of the axes of
/// places. Work other than products is counted in elements.
struct WorkTerm {
    products: usize,
    places: Shape,
}

impl WorkTerm {
    fn new(products: usize, places: Shape) -> Self {
        WorkTerm { products, places }
    }
}

/// The work of all terms, as a formula of the unknown extents.
fn formula(terms: &[WorkTerm]) -> String {
    let mut sums: BTreeMap<String, u128> = BTreeMap::new();
    for WorkTerm { products, places } in terms {
        let fixed = places
            .iter()
            .filter_map(extent)
            .map(|extent| extent as u128);
        let count = fixed.fold(*products as u128, u128::saturating_mul);
        let open = places.iter().filter(|dim| extent(dim).is_none());
        let names = open.map(|dim| format!("·{}", open_extent(dim)));
        let sum = sums.entry(names.collect()).or_default();
        *sum = sum.saturating_add(count);
    }
    let terms: Vec<String> = sums
        .iter()
        .map(|(names, count)| format!("{count}{names}"))
        .collect();
    terms.join(" + ")
}

/// An unknown extent, with parentheses around a sum.
fn open_extent(dim: &Option<TDim>) -> String {
    match dim {
        None => "?".to_owned(),
        Some(dim @ TDim::Add(_)) => format!("({dim})"),
        Some(dim) => dim.to_string(),
    }
}

/// The extents of a value along all axes except that of the channels. `None` if its shape is
/// unknown.
fn places(analysis: &Analysis, value: ValueId, channels: usize) -> Option<Shape> {
    let mut shape = analysis
        .facts
        .shape(value)
        .filter(|shape| channels < shape.len())?;
    shape.remove(channels);
    Some(shape)
}

/// Whether nodes are in one body. If not, no move is made, because one body may run more often than
/// another, or not at all.
fn are_in_one_body(graph: &Graph, nodes: &[NodeId]) -> bool {
    let mut ways = nodes.iter().map(|&node| region_path(graph.node(node)));
    let first = ways.next();
    ways.all(|way| Some(way) == first)
}
