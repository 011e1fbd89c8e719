//! Sites: the places at which a model normalizes, with all that changes when a site folds.

use crate::affine::Affine;
use crate::affine::recognize::Kind;
use crate::ir::builder::NewConstant;
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::proto::NodeProto;
use crate::refusal::{Reason, Refusal};
use crate::shape::facts::Facts;

/// One place at which the model normalizes.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    /// The kind.
    pub kind: Kind,
    /// The module path, or the name of a node if no path is known.
    pub name: String,
    /// The number of channels.
    pub channels: usize,
    /// The axis of the channels in the value that the site's operators read.
    pub axis: usize,
    /// All nodes of the site.
    pub nodes: Vec<NodeId>,
    /// The affine before the core, if there is a core and the affine is not the identity.
    pub pre: Option<Part>,
    /// The affine after the core, or the whole affine of an offline normalizer.
    pub post: Option<Part>,
    /// Cheaper operators that compute the same result as some nodes of the site.
    pub replacement: Option<Replacement>,
    /// The reason why the core of the site stays unchanged, although fewer operators could compute
    /// it.
    pub core: Option<Refusal>,
    /// The reason why the site cannot fold, if recognition knows it already.
    pub refusal: Option<Refusal>,
}

impl Site {
    /// A site of these nodes, with nothing to fold yet.
    pub(crate) fn new(kind: Kind, name: String, nodes: Vec<NodeId>) -> Self {
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

    /// Whether the site is only a core, without scale and shift.
    pub(crate) fn is_bare(&self) -> bool {
        self.refusal
            .as_ref()
            .is_some_and(|refusal| refusal.reason == Reason::Identity)
    }
}

/// Nodes that replace other nodes, with outputs of equal names and values.
#[derive(Debug, Clone, Default)]
pub(crate) struct Replacement {
    /// The nodes that are removed.
    pub nodes: Vec<NodeId>,
    /// The nodes that are added, in execution order. The added nodes read values of the graph, each
    /// other's outputs and `constants`. Values that the graph still reads keep their names. All
    /// other names may be changed when the nodes are inserted.
    pub made: Vec<NodeProto>,
    /// The constants that the new nodes read.
    pub constants: Vec<NewConstant>,
}

impl Replacement {
    /// Whether one of the new nodes outputs a value with this name.
    pub(crate) fn makes(&self, name: &str) -> bool {
        self.made
            .iter()
            .any(|node| node.output.iter().any(|output| output == name))
    }

    /// The names of the values that the new nodes read but do not output, and of the values that
    /// they output but do not read.
    pub(crate) fn ends(&self) -> impl Iterator<Item = &str> {
        let read = self.made.iter().flat_map(|node| &node.input);
        let first = read.filter(|name| !self.makes(name));
        let made = self.made.iter().flat_map(|node| &node.output);
        let last = made.filter(|name| !self.reads(name));
        first.chain(last).map(String::as_str)
    }

    /// Whether one of the new nodes reads a value with this name.
    fn reads(&self, name: &str) -> bool {
        self.made
            .iter()
            .any(|node| node.input.iter().any(|input| input == name))
    }
}

/// An affine of a site, and the nodes that are removed when it folds.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    /// `output = affine(input)`.
    pub affine: Affine,
    /// The value to which the affine is applied. For parameters of a node, this is the node's own
    /// output.
    pub input: ValueId,
    /// The result of the affine.
    pub output: ValueId,
    /// The nodes that compute only the affine.
    pub nodes: Vec<NodeId>,
    /// Parameters of a node that stays, such as the scale of a LayerNormalization.
    pub resets: Vec<Reset>,
}

impl Part {
    /// The node, if the part is one BatchNormalization all of whose inputs have one element type.
    pub(crate) fn batch_norm(&self, graph: &Graph, facts: &Facts) -> Option<NodeId> {
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

/// The number of elements of the scale or of the shift of an affine, whichever has more.
pub(super) fn width(affine: &Affine) -> usize {
    affine.scale.len().max(affine.shift.len())
}

/// A parameter of a node, which gets its neutral value if the affine that contains it folds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Reset {
    /// The node.
    pub node: NodeId,
    /// The index of the input.
    pub slot: usize,
    /// The neutral value: 1 for a factor, 0 for a summand.
    pub neutral: f64,
    /// Whether the operator works without this input.
    pub optional: bool,
    /// The index of an input of the node that has the shape of this parameter, and is present even
    /// if the parameter is absent.
    pub like: usize,
    /// The axes of the value along which the parameter lies: from the first up to, but not
    /// including, the second.
    pub axes: [usize; 2],
}
