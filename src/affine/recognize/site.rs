//! Sites: the places at which a model normalizes, and all that changes when one folds.

use crate::affine::Affine;
use crate::affine::recognize::Kind;
use crate::ir::builder::NewConstant;
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::proto::NodeProto;
use crate::refusal::{Reason, Refusal};
use crate::shape::facts::Facts;

/// One place at which the model normalizes.
#[derive(Debug, Clone)]
pub struct Site {
    /// The kind.
    pub kind: Kind,
    /// The module path, or the name of a node where no path is known.
    pub name: String,
    /// Number of channels.
    pub channels: usize,
    /// The axis of the channels, in the value that the site's operators see.
    pub axis: usize,
    /// Every node that belongs to it.
    pub nodes: Vec<NodeId>,
    /// The affine before the core, if there is a core and the affine is not the identity.
    pub pre: Option<Part>,
    /// The affine behind the core, or all of an offline normalizer.
    pub post: Option<Part>,
    /// Other operators for some of its nodes, which compute the same with less.
    pub replacement: Option<Replacement>,
    /// Why its core stays in its written form, though fewer operators would do.
    pub core: Option<Refusal>,
    /// Why it cannot be folded, where recognition knows already.
    pub refusal: Option<Refusal>,
}

impl Site {
    /// A site of these nodes with nothing to fold yet.
    pub fn new(kind: Kind, name: String, nodes: Vec<NodeId>) -> Self {
        Site {
            kind,
            name,
            channels: 1,
            axis: 0,
            nodes,
            pre: None,
            post: None,
            replacement: None,
            core: None,
            refusal: None,
        }
    }

    /// Whether it is a core alone, without scale and shift.
    pub fn is_bare(&self) -> bool {
        self.refusal
            .as_ref()
            .is_some_and(|refusal| refusal.reason == Reason::Identity)
    }
}

/// Nodes that replace others, with outputs of equal names and values.
#[derive(Debug, Clone, Default)]
pub struct Replacement {
    /// The nodes that are removed.
    pub nodes: Vec<NodeId>,
    /// The nodes that are added, in execution order. They read values of the graph, each other's outputs
    /// and `constants`. Values that the graph still reads keep their names; all other names are proposals.
    pub made: Vec<NodeProto>,
    /// Constants that the new nodes read, by name.
    pub constants: Vec<NewConstant>,
}

impl Replacement {
    /// Whether one of the new nodes makes a value of this name.
    pub fn makes(&self, name: &str) -> bool {
        self.made
            .iter()
            .any(|node| node.output.iter().any(|output| output == name))
    }

    /// The names of the values between which the new nodes lie.
    pub fn ends(&self) -> impl Iterator<Item = &str> {
        let read = self.made.iter().flat_map(|node| &node.input);
        let first = read.filter(|name| !self.makes(name));
        let made = self.made.iter().flat_map(|node| &node.output);
        let last = made.filter(|name| !self.reads(name));
        first.chain(last).map(String::as_str)
    }

    /// Whether one of the new nodes reads a value of this name.
    fn reads(&self, name: &str) -> bool {
        self.made
            .iter()
            .any(|node| node.input.iter().any(|input| input == name))
    }
}

/// An affine of a site, and the nodes that are removed when it folds.
#[derive(Debug, Clone)]
pub struct Part {
    /// `output = affine(input)`.
    pub affine: Affine,
    /// The value it acts on; for parameters inside a node, the node's own output.
    pub input: ValueId,
    /// The value it makes.
    pub output: ValueId,
    /// The nodes that compute it and nothing else.
    pub nodes: Vec<NodeId>,
    /// Parameters inside a node that stays, such as the scale of a LayerNormalization.
    pub resets: Vec<Reset>,
}

impl Part {
    /// The BatchNormalization that is all of it, if it is one, and all that it reads is of one type.
    pub fn batch_norm(&self, graph: &Graph, facts: &Facts) -> Option<NodeId> {
        let &[node] = &self.nodes[..] else {
            return None;
        };
        let inputs = graph.inputs(node).iter().flatten();
        let types: Vec<_> = inputs.map(|&input| facts.data_type(input)).collect();
        let is_one_type = types
            .iter()
            .all(|&data_type| data_type.is_some() && data_type == types[0]);
        (graph.is(node, "BatchNormalization") && is_one_type).then_some(node)
    }
}

/// The extent of the parameters of an affine along their axis.
pub fn width(affine: &Affine) -> usize {
    affine.scale.len().max(affine.shift.len())
}

/// An input of a node that gets its neutral value when the affine it holds is folded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reset {
    /// The node.
    pub node: NodeId,
    /// Which of its inputs.
    pub slot: usize,
    /// 1 for a factor, 0 for a summand.
    pub neutral: f64,
    /// Whether the operator does without it.
    pub optional: bool,
    /// The input of the node whose shape it has, also where it is absent itself.
    pub like: usize,
    /// The axes of the value that it lies along: from the first to before the second.
    pub axes: [usize; 2],
}
