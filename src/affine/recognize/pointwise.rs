//! The common form of the Dynamic Tanh family: `γ·f(αx + s) + β` with scalars α and s.
//!
//! α and s fold back only into a producer without other readers. γ and β fold forward.

use crate::affine::Affine;
use crate::affine::recognize::affine_chain::Chain;
use crate::affine::recognize::opaque::{ALPHA, BETA, Expansion, GAMMA, Opaque, Written};
use crate::affine::recognize::{Family, Kind, Normalizer, Replacement, Site, View};
use crate::ir::{NodeId, ValueId};
use crate::onnx::tensor::DataType;

/// The bounded function `f`, as the graph computes it.
pub(super) struct Bounded {
    /// The argument of the function.
    pub input: ValueId,
    /// The result of the function.
    pub output: ValueId,
    /// The nodes of the function.
    pub nodes: Vec<NodeId>,
    /// One operator that computes the function, if the graph uses several.
    pub replacement: Option<Replacement>,
}

impl Bounded {
    /// Reads `node` as a function that is the single operator `op`. `None` if it is another
    /// operator.
    pub(super) fn operator(view: &View, node: NodeId, op: &str) -> Option<Bounded> {
        if !view.graph.is(node, op) {
            return None;
        }
        let (input, output) = (view.graph.input(node, 0)?, view.graph.only_output(node)?);
        Some(Bounded {
            input,
            output,
            nodes: vec![node],
            replacement: None,
        })
    }
}

/// `γ·f(αx) + β` as an operator of a custom domain. The first of `names` is also its
/// [`Opaque::word`].
pub(super) const fn opaque(
    names: &'static [&'static str],
    formula: fn(&mut Expansion) -> Option<Written>,
) -> Opaque {
    Opaque {
        names,
        word: names[0],
        parameters: &[ALPHA, GAMMA, BETA],
        formula,
    }
}

/// Writes `f(αx)`, where f is the operator `function`. The last step of the result applies γ and β.
pub(super) fn written(node: &mut Expansion, function: &str) -> Option<Written> {
    let alpha = node.get(ALPHA).filter(|alpha| alpha.len() == 1)?;
    let scaled = node.with("Mul", &node.x(), &alpha)?;
    Some(bounded(node, function, &scaled))
}

/// Writes `f(value)`, where f is the operator `function`. The last step of the result applies γ and
/// β.
pub(super) fn bounded(node: &mut Expansion, function: &str, value: &str) -> Written {
    let value = node.op(function, &[value], vec![]);
    Written {
        value,
        scale: node.get_or(GAMMA, 1.0),
        shift: node.get_or(BETA, 0.0),
    }
}

/// Whether a node only casts floats to another float type. In mixed precision, such casts surround
/// the function, which is computed in float32.
pub(super) fn is_cast(view: &View, node: NodeId) -> bool {
    view.graph.is(node, "Cast")
        && view
            .graph
            .node(node)
            .cast_to()
            .is_some_and(DataType::is_float)
}

/// The value before the casts that lead to `value`, and these casts in execution order.
fn before_casts(view: &View, mut value: ValueId) -> (ValueId, Vec<NodeId>) {
    let mut casts = vec![];
    while let Some(node) = view.maker(value).filter(|&node| is_cast(view, node))
        && let Some(input) = view.graph.input(node, 0)
    {
        casts.insert(0, node);
        value = input;
    }
    (value, casts)
}

/// Follows `value` through casts, each of which is the only reader of its input. Returns the value
/// after the last cast, and the casts.
pub(super) fn behind_casts(view: &View, mut value: ValueId) -> (ValueId, Vec<NodeId>) {
    let mut casts = vec![];
    while let Some(node) = view.only_reader(value).filter(|&node| is_cast(view, node))
        && let Some(output) = view.graph.only_output(node)
    {
        casts.push(node);
        value = output;
    }
    (value, casts)
}

/// The chain after a core whose result is `output`. Casts may lie in between.
pub(super) fn scaling<'v>(view: &'v View, output: ValueId) -> Option<&'v Chain> {
    view.chain_from(behind_casts(view, output).0)
}

/// The chain that computes the input of a core, if its scale and its shift are scalars and a Mul or
/// a Div scales.
pub(super) fn numbers<'v>(view: &'v View, input: ValueId) -> Option<&'v Chain> {
    let chain = view.maker(input).and_then(|node| view.chain(node))?;
    let Affine { scale, shift } = &chain.affine;
    let mut ops = chain.nodes.iter().map(|&node| view.graph.op(node));
    let are_numbers =
        scale.len() == 1 && shift.len() == 1 && ops.any(|op| matches!(op, Some("Mul" | "Div")));
    Some(chain).filter(|chain| chain.output == input && are_numbers)
}

/// The site around a core. `None` if no chain follows the core. The chain must scale channel by
/// channel and a scalar must scale the input of the core, unless the words of the chain name the
/// kind.
pub(super) fn site(
    view: &View,
    kind: &dyn Normalizer,
    name: &'static str,
    core: Bounded,
) -> Option<Site> {
    let (input, before) = before_casts(view, core.input);
    let (output, behind) = behind_casts(view, core.output);
    let chain = view.chain_from(output)?;
    let pre = numbers(view, input);
    // Without a scale before it, the core is an activation that happens to be followed by a chain.
    let is_named = chain.mentions(kind.names());
    if (pre.is_none() || chain.factor_axis.is_none()) && !is_named {
        return None;
    }
    let axis = match chain.axis().or(chain.factor_axis) {
        Some(axis) => axis,
        // If all channels have the same scalar, no axis is known, and the last axis is taken.
        None if chain.affine.axes().is_empty() => view.facts.rank(output)?.checked_sub(1)?,
        None => return None,
    };
    let mut nodes: Vec<NodeId> = pre.iter().flat_map(|chain| chain.nodes.clone()).collect();
    nodes.extend([&before[..], &core.nodes, &behind].concat());
    nodes.extend(&chain.nodes);
    Some(Site {
        channels: view.facts.extent(core.output, axis)?,
        axis,
        pre: pre
            .filter(|before| !before.affine.is_identity())
            .map(Chain::part),
        post: Some(chain.part()),
        replacement: core.replacement,
        ..Site::new(
            Kind::new(name, Family::Pointwise),
            view.site_name(core.nodes[0]),
            nodes,
        )
    })
}
