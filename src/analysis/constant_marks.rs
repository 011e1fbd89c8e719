//! Marks the values of a graph that are constant, and the constants that are quantized.

use crate::ir::regions::branch;
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::operator::{Category, dequantizes};
use crate::shape::encode::is_concrete;
use crate::shape::facts::Facts;

/// The marks of the values visited so far, in the order of the nodes.
pub(crate) struct Marks<'m> {
    graph: &'m Graph<'m>,
    facts: &'m Facts,
    constant: Vec<bool>,
    quantized: Vec<bool>,
}

impl<'m> Marks<'m> {
    /// Returns two flags for each value: whether it is constant, and whether it is a quantized
    /// constant, by its annotation or because a DequantizeLinear computes it.
    pub(super) fn find(graph: &'m Graph<'m>, facts: &'m Facts) -> (Vec<bool>, Vec<bool>) {
        let mut marks = Marks {
            graph,
            facts,
            constant: stored_constants(graph),
            quantized: vec![false; graph.value_count()],
        };
        for annotation in &graph.proto().quantization_annotation {
            if let Some(value) = graph.value(annotation.tensor_name()) {
                marks.quantized[value.index()] = true;
            }
        }
        for &node in graph.order() {
            marks.mark_outputs(node);
        }
        (marks.constant, marks.quantized)
    }

    fn mark_outputs(&mut self, node: NodeId) {
        let is_computed = self.is_computed_from_constants(node);
        let reads_quantized = self.reads_quantized(node);
        let taken = self.possible_branches(node);
        for (slot, value) in self.graph.outputs(node).iter().enumerate() {
            let Some(value) = *value else { continue };
            let is_constant =
                is_computed || self.is_from_branch(taken, slot) || self.is_known(value);
            self.constant[value.index()] = is_constant;
            self.quantized[value.index()] |= is_constant && reads_quantized;
        }
    }

    fn is_constant(&self, value: ValueId) -> bool {
        self.constant[value.index()]
    }

    /// Whether shape inference knows all elements of a value, such as the result of a Shape with
    /// static extents.
    fn is_known(&self, value: ValueId) -> bool {
        let value = self.facts.value(value);
        value.is_some_and(|tensor| is_concrete(&tensor))
    }

    /// Whether a node computes its results from constants, with equal results in every run.
    fn is_computed_from_constants(&self, node: NodeId) -> bool {
        let (domain, op) = self.graph.domain_op(node);
        let inputs = self.graph.inputs(node);
        let category = self.graph.category(node);
        // The third input of a Dropout may switch the node to training mode, in which its results
        // are random.
        let may_train = op == "Dropout" && self.graph.input(node, 2).is_some();
        matches!(domain, "" | "com.microsoft")
            && (op == "Constant" || !inputs.is_empty())
            && !category.is_some_and(Category::is_random)
            && !may_train
            && self.graph.captures(node).is_empty()
            && inputs
                .iter()
                .flatten()
                .all(|&value| self.is_constant(value))
    }

    fn reads_quantized(&self, node: NodeId) -> bool {
        let mut inputs = self.graph.inputs(node).iter().flatten();
        dequantizes(self.graph.domain_op(node)) || inputs.any(|value| self.quantized[value.index()])
    }

    /// The results of the two branches of an If with a constant condition. If shape inference knows
    /// the condition, both lists are the results of the branch that runs. `None` for other nodes.
    fn possible_branches(&self, node: NodeId) -> Option<[&'m [Option<ValueId>]; 2]> {
        let condition = self.graph.input(node, 0)?;
        if !self.is_constant(condition) {
            return None;
        }
        let sides = match self.facts.ints(condition).as_deref() {
            Some(&[holds]) => [holds != 0; 2],
            _ => [false, true],
        };
        Some([
            branch(self.graph, node, sides[0])?,
            branch(self.graph, node, sides[1])?,
        ])
    }

    fn is_from_branch(&self, branches: Option<[&'m [Option<ValueId>]; 2]>, slot: usize) -> bool {
        branches.is_some_and(|branches| {
            branches
                .iter()
                .all(|results| results[slot].is_some_and(|value| self.is_constant(value)))
        })
    }
}

/// Whether each value is an initializer that neither a caller nor training can replace.
fn stored_constants(graph: &Graph) -> Vec<bool> {
    // Before IR version 4, every initializer is also listed as an input and is nevertheless a
    // constant. Since version 4, an initializer that is listed as an input is a default that the
    // caller may replace.
    let listed_is_constant = graph.model().proto.ir_version() < 4;
    let values = (0..graph.value_count()).map(|index| ValueId(index as u32));
    let mut constant: Vec<bool> = values
        .map(|value| {
            let may_be_replaced = graph.is_input(value) && !listed_is_constant;
            graph.initializer(value).is_some() && !may_be_replaced
        })
        .collect();
    for value in graph.trained() {
        constant[value.index()] = false;
    }
    constant
}
