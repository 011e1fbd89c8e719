//! Finds activations that are written as several operators, and that engines recognize by their
//! constants.
//!
//! Such an activation has the form `x·f(x)`, where f computes each element from one element of x.
//! Examples are GELU by erf or by tanh, QuickGELU, Mish, HardSwish. An engine recognizes it by the
//! constants inside, and runs it as one operator. If one of these constants is folded away, the
//! activation becomes slower.

use crate::analysis::constants::Constants;
use crate::ir::node_set::NodeSet;
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::operator::Category;

/// The maximum number of operators between `x` and the product.
const LARGEST: usize = 16;

/// The maximum number of operands of each operator between `x` and the product.
const MOST: usize = 3;

/// The nodes of all activations of a graph.
pub(crate) fn activations(graph: &Graph, constants: &Constants) -> NodeSet {
    let search = Gates { graph, constants };
    let mut found = NodeSet::none_of(graph.order().len());
    for &node in graph.order() {
        found.extend(search.gated(node).into_iter().flatten());
    }
    found
}

struct Gates<'s> {
    graph: &'s Graph<'s>,
    constants: &'s Constants<'s>,
}

impl Gates<'_> {
    /// The nodes of the activation that ends with the product `node`. `None` if no activation ends
    /// there.
    fn gated(&self, node: NodeId) -> Option<Vec<NodeId>> {
        let &[Some(left), Some(right)] = self.graph.inputs(node) else {
            return None;
        };
        if !self.graph.is(node, "Mul") {
            return None;
        }
        let mut nodes = self
            .gate_and_half(left, right)
            .or_else(|| self.gate_and_half(right, left))?;
        nodes.push(node);
        if nodes.iter().any(|&node| self.is_of_gelu(node)) {
            nodes.extend(self.half_behind(node));
        }
        Some(nodes)
    }

    fn is_of_gelu(&self, node: NodeId) -> bool {
        self.graph.is(node, "Erf") || self.graph.is(node, "Tanh")
    }

    /// Returns the nodes that compute `gate` from `plain`, or from a value of which `plain` is a
    /// scalar multiple. In the second case, the node that multiplies by the scalar is included.
    /// `None` if `gate` is not computed in either way.
    fn gate_and_half(&self, plain: ValueId, gate: ValueId) -> Option<Vec<NodeId>> {
        if let Some(nodes) = self.gate(gate, plain) {
            return Some(nodes);
        }
        let (half, _) = self.graph.producer(plain)?;
        let mut nodes = self.gate(gate, self.scaled(half)?)?;
        nodes.push(half);
        Some(nodes)
    }

    /// The nodes that compute `value` from `from` element by element. `None` unless at least one of
    /// them is more than arithmetic.
    fn gate(&self, value: ValueId, from: ValueId) -> Option<Vec<NodeId>> {
        let (mut open, mut nodes) = (vec![value], vec![]);
        while let Some(value) = open.pop() {
            if value == from {
                continue;
            }
            if self.constants.is_constant(value) {
                self.constants.is_scalar(value).then_some(())?;
                continue;
            }
            let (node, _) = self.graph.producer(value)?;
            if nodes.contains(&node) {
                continue;
            }
            self.graph
                .category(node)
                .filter(|category| category.is_elementwise())?;
            if nodes.len() == LARGEST || self.graph.inputs(node).len() > MOST {
                return None;
            }
            nodes.push(node);
            open.extend(self.graph.inputs(node).iter().flatten());
        }
        let is_nonlinear = nodes
            .iter()
            .any(|&node| self.graph.category(node) == Some(Category::Elementwise));
        is_nonlinear.then_some(nodes)
    }

    /// The operand that a node multiplies or divides by a scalar; `None` for other nodes.
    fn scaled(&self, node: NodeId) -> Option<ValueId> {
        let &[Some(left), Some(right)] = self.graph.inputs(node) else {
            return None;
        };
        match self.graph.op(node)? {
            "Mul" if self.constants.is_scalar(left) => Some(right),
            "Mul" | "Div" if self.constants.is_scalar(right) => Some(left),
            _ => None,
        }
    }

    /// The only reader of a node's output, if it multiplies by ½.
    fn half_behind(&self, node: NodeId) -> Option<NodeId> {
        let (next, _) = self.graph.only_reader(self.graph.only_output(node)?)?;
        self.scaled(next)?;
        let number = self
            .graph
            .inputs(next)
            .iter()
            .flatten()
            .find(|value| self.constants.is_constant(**value))?;
        let number = self.constants.scalar(*number)?;
        let factor = if self.graph.is(next, "Div") {
            1.0 / number
        } else {
            number
        };
        (factor == 0.5).then_some(next)
    }
}
