//! PN and PN*: `γx/√(φ+ε) + β` with a quadratic mean φ from training.
//!
//! PN first divides groups of channels by their root mean square. This division stays, with as few
//! operators as possible. PN* is PN without the division, and only its name distinguishes it from
//! UN.

use crate::affine::recognize::affine_chain::offline;
use crate::affine::recognize::decomposed_norm::{Core, REACH, core, is_in_place, widening};
use crate::affine::recognize::opaque::{BETA, Expansion, GAMMA, Opaque, VARIANCE, Written, fixed};
use crate::affine::recognize::{Family, Kind, Normalizer, Replacement, Site, View, width};
use crate::ir::builder::Maker;
use crate::ir::{NodeId, ValueId, builder};
use crate::onnx::operator::input_at;
use crate::recipe::Numbers;

/// PowerNorm, with or without group scaling.
pub(super) struct PowerNorm;

impl Normalizer for PowerNorm {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let chain = view.chain(node)?;
        if !chain.is_per_channel() {
            return None;
        }
        let is_named = chain.mentions(self.names()) || chain.mentions(&["running_phi"]);
        // If the parameters have the width of one group, the site normalizes each head and is not a
        // PN.
        let width = width(&chain.affine);
        if let Some(scaling) = group_scaling(view, chain.input)
            && view.facts.extent(scaling.squared, scaling.rank - 1) != Some(width)
        {
            let site = chain.site(view, Kind::new("PN", Family::Online));
            let nodes = [&scaling.nodes[..], &site.nodes].concat();
            return Some(Site {
                nodes,
                replacement: without_expand(view, &scaling),
                ..site
            });
        }
        is_named.then(|| chain.site(view, offline("PN*")))
    }

    fn names(&self) -> &'static [&'static str] {
        &["powernorm", "maskpowernorm"]
    }

    fn short_names(&self) -> &'static [&'static str] {
        &["pn"]
    }

    fn opaque(&self) -> &'static [Opaque] {
        &[
            Opaque {
                names: &["pnstar", "powernormstar"],
                word: "powernorm",
                parameters: &[GAMMA, BETA, VARIANCE],
                formula: |node| fixed(node, node.x()),
            },
            Opaque {
                names: &["pn", "powernorm", "maskpowernorm"],
                word: "powernorm",
                parameters: &[GAMMA, BETA, VARIANCE],
                formula: grouped,
            },
        ]
    }
}

/// Writes PN* after `x / √(mean over a group of channels of x² + ε)`, with the channels on the last
/// axis. `None` if the groups do not divide the channels, or before operator set 13.
fn grouped(node: &mut Expansion) -> Option<Written> {
    let pn_star = fixed(node, node.x())?;
    let (channels, rank) = node.last_axis()?;
    let groups = node.int("groups")?.unwrap_or(1);
    let divides =
        usize::try_from(groups).is_ok_and(|groups| groups > 0 && channels.is_multiple_of(groups));
    let opset = node.opset();
    if !divides || opset < 13 {
        return None;
    }
    let mut apart = vec![0; rank - 1];
    let together = [&apart[..], &[-1]].concat();
    apart.extend([groups, -1]);
    let [apart, together] =
        [("apart", apart), ("together", together)].map(|(what, to)| node.integers(what, &to));
    let grouped = node.op("Reshape", &[&node.x(), &apart], vec![]);
    let square = node.op("Mul", &[&grouped, &grouped], vec![]);
    let keep = builder::int("keepdims", 1);
    let mean = if input_at("ReduceMean", "axes", opset).is_none() {
        node.op(
            "ReduceMean",
            &[&square],
            vec![keep, builder::ints("axes", &[-1])],
        )
    } else {
        let axes = node.integers("axes", &[-1]);
        node.op("ReduceMean", &[&square, &axes], vec![keep])
    };
    let epsilon = Numbers::number(node.epsilon()?, 1);
    let shifted = node.with("Add", &mean, &epsilon)?;
    let root = node.op("Sqrt", &[&shifted], vec![]);
    let scaled = node.op("Div", &[&grouped, &root], vec![]);
    let value = node.op("Reshape", &[&scaled, &together], vec![]);
    Some(Written { value, ..pn_star })
}

/// The group scaling before a value, possibly with movements in between. `None` if no group scaling
/// is before it.
fn group_scaling(view: &View, mut value: ValueId) -> Option<Core> {
    for _ in 0..REACH {
        let Some(node) = view
            .maker(value)
            .filter(|&node| view.graph.is_movement(node))
        else {
            break;
        };
        value = view.graph.input(node, 0)?;
    }
    let core = core(view, view.maker(value)?)?;
    // The squared value has its channels in groups, and so one axis more.
    let regroup = view
        .maker(core.squared)
        .filter(|&node| view.graph.is(node, "Reshape"))?;
    let groups = view.facts.rank(view.graph.input(regroup, 0)?)? + 1 == core.rank;
    let plain = !core.centred && !core.norm && core.axes == [core.rank - 1];
    (groups && plain).then_some(core)
}

/// Writes the group scaling without expanding the statistics, because they broadcast over the
/// grouped tensor. `None` if the graph does not repeat the statistics for each channel of a group
/// by an Expand.
///
/// The operators are Reshape, Mul, ReduceMean, Add, Sqrt, Div, Reshape.
fn without_expand(view: &View, core: &Core) -> Option<Replacement> {
    let graph = view.graph;
    let last = *core.nodes.last()?;
    find(view, core, "ReduceMean")?;
    let epsilon_add = find(view, core, "Add")?;
    // Only the plain form is rewritten: the input is regrouped along its last axis and divided by a
    // square root.
    let regroup = view.made_by(core.squared, &["Reshape"])?;
    let is_plain = graph.input(regroup, 0) == Some(core.input)
        && graph.is(last, "Div")
        && find(view, core, "Sqrt").is_some();
    let rank = core.rank;
    let input = view.facts.shape(core.input)?;
    let grouped = view.facts.shape(core.squared)?;
    if !is_plain
        || !are_repeated(view, core, last)?
        || core.epsilon.is_none()
        || input[..rank - 2] != grouped[..rank - 2]
    {
        return None;
    }
    let nodes = core.nodes.iter().copied().filter(|&node| node != regroup);
    let nodes: Vec<NodeId> = nodes.collect();
    if !nodes
        .iter()
        .all(|&node| node == last || is_own(view, core, node))
    {
        return None;
    }
    let mut summands = graph.inputs(epsilon_add).iter().flatten().copied();
    let epsilon = summands.find(|&summand| view.constants.is_constant(summand))?;
    let (grouped, epsilon) = (graph.value_name(core.squared), graph.value_name(epsilon));
    let mut back = vec![0; rank - 1];
    back[rank - 2] = -1;
    let mut maker = Maker::new(graph, last);
    let square = maker.op("Mul", &[grouped, grouped], vec![]);
    let moment = maker.mean(&square, &[rank as i64 - 1], true);
    let shifted = maker.op("Add", &[&moment, epsilon], vec![]);
    let root = maker.op("Sqrt", &[&shifted], vec![]);
    let scaled = maker.op("Div", &[grouped, &root], vec![]);
    maker.reshape(&scaled, &back);
    let (made, constants) = maker.finish(graph.value_name(core.output));
    Some(Replacement {
        nodes,
        made,
        constants,
    })
}

/// The first node of a core with this operator.
fn find(view: &View, core: &Core, op: &str) -> Option<NodeId> {
    let mut nodes = core.nodes.iter().copied();
    nodes.find(|&node| view.graph.is(node, op))
}

/// Whether the statistics are one scalar for each group, repeated for each channel of the group, in
/// the order of the channels.
fn are_repeated(view: &View, core: &Core, last: NodeId) -> Option<bool> {
    let graph = view.graph;
    let path = widening(view, &core.nodes);
    let expand = path.iter().rposition(|&node| graph.is(node, "Expand"))?;
    let (expanded, behind) = (graph.only_output(path[expand])?, &path[expand + 1..]);
    let divisor = graph.input(last, 1)?;
    Some(
        is_in_place(view, expanded, &path, core.squared, &core.axes)
            && view.have_same_shape(expanded, core.squared)
            && behind.iter().all(|&node| graph.is(node, "Reshape"))
            && view.have_same_shape(divisor, core.input),
    )
}

/// Whether the outputs of a node have no reader outside of a core.
fn is_own(view: &View, core: &Core, node: NodeId) -> bool {
    let mut made = view.graph.outputs(node).iter().flatten();
    made.all(|&value| view.is_read_by_no_other(value, &core.nodes))
}
