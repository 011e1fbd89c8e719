//! What the Dynamic Tanh family has in common: `γ·f(αx) + β`, with α a number.
//!
//! α folds back only into a producer that nothing else reads; γ and β fold forward.

use super::{Family, Kind, Lowering, Part, Site, View};
use crate::graph::{NodeId, ValueId};

/// The bounded function in the middle, as the graph writes it.
pub struct Core {
    /// What the function is applied to.
    pub input: ValueId,
    /// What it makes.
    pub output: ValueId,
    /// Its nodes.
    pub nodes: Vec<NodeId>,
    /// One operator for all of them, where the graph has several.
    pub lowering: Option<Lowering>,
}

impl Core {
    /// A single operator.
    pub fn operator(view: &View, node: NodeId, op: &str) -> Option<Core> {
        if view.graph.op(node) != op {
            return None;
        }
        let (input, output) = (view.graph.input(node, 0)?, view.graph.only_output(node)?);
        Some(Core { input, output, nodes: vec![node], lowering: None })
    }
}

/// The site around a core, if it is one: behind it a chain that scales channel by channel, before it
/// a scale by one number.
pub fn site(view: &View, name: &'static str, core: Core) -> Option<Site> {
    let chain = view.chain_from(core.output)?;
    let axis = chain.axis().filter(|_| chain.affine.scale.len() > 1)?;
    let pre = view.maker(core.input).and_then(|node| view.chain(node)).filter(|before| {
        before.output == core.input && before.affine.scale.len() == 1 && before.affine.has_no_shift()
    });
    // Without a scale in front it is an activation that happens to be followed by one.
    let named = chain.mentions(&["dynamictanh", "dyt", "dynamicsigmoid", "dys", "dynamicsoftsign", "dyss"]);
    if pre.is_none() && !named {
        return None;
    }
    let mut nodes: Vec<NodeId> = pre.iter().flat_map(|chain| chain.nodes.clone()).collect();
    nodes.extend(&core.nodes);
    nodes.extend(&chain.nodes);
    let part = |chain: &super::Chain| Part {
        affine: chain.affine.clone(),
        input: chain.input,
        output: chain.output,
        nodes: chain.nodes.clone(),
        resets: vec![],
    };
    Some(Site {
        kind: Kind { name, family: Family::Pointwise },
        name: view.site_name(core.nodes[0]),
        channels: view.facts.extent(core.output, axis)?,
        axis,
        nodes,
        pre: pre.filter(|before| !before.affine.is_identity()).map(part),
        post: Some(part(chain)),
        lowering: core.lowering,
        refusal: None,
    })
}
