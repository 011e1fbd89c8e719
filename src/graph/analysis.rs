//! All that is known of a model's graph, found out once.

use std::rc::Rc;

use super::activation::activations;
use super::at::At;
use super::constants::Constants;
use super::facts::Facts;
use super::marks::Marks;
use super::{Graph, NodeId};
use crate::error::Result;
use crate::onnx::Model;

/// A graph, the facts of its values, and its constants.
///
/// ```
/// use unfold::graph::analysis::Analysis;
/// use unfold::onnx::Model;
///
/// let model = Model::open("models/digits/un-dynamo.onnx")?;
/// let known = Analysis::new(&model)?;
/// let logits = known.graph.value("linear_12").unwrap();
/// assert_eq!(known.facts.extent(logits, 1), Some(10));
/// assert!(!known.constants.is_constant(logits));
/// # Ok::<(), unfold::error::Error>(())
/// ```
pub struct Analysis<'m> {
    /// The graph.
    pub graph: Rc<Graph<'m>>,
    /// Shapes, types and small values.
    pub facts: Rc<Facts>,
    /// The constants.
    pub constants: Constants<'m>,
    /// The nodes of activations, whose constants are not to be touched.
    pub activations: Marks,
}

impl<'m> Analysis<'m> {
    /// Indexes a model's graph and infers what there is to know.
    ///
    /// # Errors
    /// Where it is no graph that ONNX allows.
    pub fn new(model: &'m Model) -> Result<Self> {
        let graph = Rc::new(Graph::new(model)?);
        let facts = Rc::new(Facts::infer(&graph));
        let constants = Constants::new(graph.clone(), facts.clone());
        let activations = activations(&graph, &constants);
        Ok(Analysis { graph, facts, constants, activations })
    }

    /// A node as a rule sees it.
    pub fn at(&self, node: NodeId) -> At<'_> {
        At { graph: &self.graph, facts: &self.facts, constants: &self.constants, node }
    }
}
