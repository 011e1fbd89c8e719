//! The analysis of a model's graph: its index, the facts about its values, and its constants.

pub(crate) mod activation;
pub(crate) mod axis_factors;
pub(crate) mod broadcast;
mod constant_marks;
pub(crate) mod constants;
pub(crate) mod memory_plan;
pub(crate) mod node_view;
pub(crate) mod repeats;
pub(crate) mod resize;
pub(crate) mod uniform;
pub(crate) mod zero_sign;

use std::rc::Rc;

use crate::analysis::activation::activations;
use crate::analysis::constants::Constants;
use crate::analysis::node_view::At;
use crate::error::Result;
use crate::ir::node_set::NodeSet;
use crate::ir::{Graph, NodeId};
use crate::onnx::Model;
use crate::shape::facts::Facts;
pub(crate) use crate::shape::inference::Answers;

/// A graph, the facts of its values, and its constants.
pub(crate) struct Analysis<'m> {
    /// The graph.
    pub graph: Rc<Graph<'m>>,
    /// Shapes, types and small values.
    pub facts: Rc<Facts>,
    /// The constants.
    pub constants: Constants<'m>,
    /// The nodes of activations, whose constants must not change.
    pub activations: NodeSet,
}

impl<'m> Analysis<'m> {
    /// Indexes the graph of a model, and infers the facts about its values.
    ///
    /// # Errors
    /// If the graph is invalid in ONNX.
    pub(crate) fn new(model: &'m Model) -> Result<Self> {
        Analysis::with_answers(model, Rc::default())
    }

    /// Like [`Analysis::new`], but reuses the answers of shape inference for earlier models of the
    /// same run.
    ///
    /// # Errors
    /// The errors of [`Analysis::new`].
    pub(crate) fn with_answers(model: &'m Model, answers: Rc<Answers>) -> Result<Self> {
        let graph = Rc::new(Graph::new(model)?);
        let facts = Rc::new(Facts::infer_with(&graph, answers));
        let constants = Constants::new(graph.clone(), facts.clone());
        let activations = activations(&graph, &constants);
        Ok(Analysis {
            graph,
            facts,
            constants,
            activations,
        })
    }

    /// The view of a node for rules.
    pub(crate) fn at(&self, node: NodeId) -> At<'_> {
        At {
            graph: &self.graph,
            facts: &self.facts,
            constants: &self.constants,
            node,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_analysis_has_shapes_and_constants() {
        let model = Model::open("models/digits/un-dynamo.onnx").unwrap();
        let analysis = Analysis::new(&model).unwrap();
        let logits = analysis.graph.value("linear_12").unwrap();
        assert_eq!(analysis.facts.extent(logits, 1), Some(10));
        assert!(!analysis.constants.is_constant(logits));
    }
}
