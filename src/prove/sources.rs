//! The operands of recipes: constants of the original, by name.

use std::collections::HashMap;
use std::sync::Arc;

use ndarray::ArrayD;

use super::operators::NotEvaluated;
use super::roots::RootRule;
use crate::affine::plan::Stored;
use crate::analysis::Analysis;
use crate::onnx::Model;
use crate::onnx::node::{bodies, constant_tensor};
use crate::onnx::proto::{GraphProto, TensorProto};
use crate::onnx::tensor::Floats;
use crate::prove::field_value::{Elements, FieldValue, of_numbers, of_shares, of_tensor};
use crate::recipe::lazy_tensor::unread;
use crate::recipe::{Given, Op, Recipe, evaluate};
use crate::refusal::{Reason, Refusal};

/// The tensors that a model and its bodies store, with the names of their values. Tensors of bodies
/// come first.
pub(super) fn tensors(model: &Model) -> Vec<(&str, TensorProto)> {
    let (mut found, mut open) = (vec![], vec![model.graph()]);
    while let Some(graph) = open.pop() {
        found.extend(tensors_of(graph));
        open.extend(graph.node.iter().flat_map(bodies));
    }
    found.reverse();
    found
}

/// The tensors that a model stores outside of bodies, with the names of their values.
pub(crate) fn stored_outside(model: &Model) -> Vec<(&str, TensorProto)> {
    tensors_of(model.graph())
}

/// The initializers and the Constants of a graph, without those of its bodies.
fn tensors_of(graph: &GraphProto) -> Vec<(&str, TensorProto)> {
    let initializers = graph.initializer.iter();
    let mut found: Vec<(&str, TensorProto)> = initializers
        .map(|tensor| (tensor.name(), tensor.clone()))
        .collect();
    let constants = graph
        .node
        .iter()
        .filter(|node| node.op() == ("", "Constant"));
    found.extend(constants.filter_map(|node| {
        let name = node.output.first()?;
        Some((name.as_str(), constant_tensor(node)?))
    }));
    found
}

/// The stored tensors by name. If a tensor of a body has the name of a tensor outside of bodies,
/// the latter is kept.
pub(super) fn stored(model: &Model) -> HashMap<&str, TensorProto> {
    tensors(model).into_iter().collect()
}

/// The constant of the original with this name.
///
/// Also searches the tensors that the original stores, because inlining may have removed some from
/// the graph.
///
/// # Errors
/// If the original has no constant of this name, or if it cannot be computed.
pub(super) fn given(original: &Model, analysis: &Analysis, name: &str) -> Result<Given, Refusal> {
    if let Some(value) = analysis.graph.value(name) {
        return analysis.constants.given(value);
    }
    let found = stored(original)
        .remove(name)
        .ok_or_else(|| Refusal::new(Reason::NotConstant, name))?;
    let floats = Floats::new(&found, original.externals()).map_err(|error| unread(name, &error))?;
    Ok(Given::Stored(Arc::new(floats)))
}

/// Like [`given`], but converts all elements to float64.
///
/// # Errors
/// The errors of [`given`].
pub(super) fn read(
    original: &Model,
    analysis: &Analysis,
    name: &str,
) -> Result<ArrayD<f64>, Refusal> {
    given(original, analysis, name)?.all(name)
}

/// Whether a step is more than arithmetic. Such a step is computed in float64, and the images of
/// its elements represent it in the field.
pub(super) fn is_number(step: &Recipe) -> bool {
    matches!(
        step.op(),
        Op::Exp | Op::Sigmoid | Op::Softmax(_) | Op::Max(_)
    )
}

/// The images of the constants that recipes read.
pub(super) struct Sources<'s> {
    original: &'s Model,
    stored: HashMap<&'s str, TensorProto>,
    key: u64,
    rule: RootRule,
    /// The values of the constants that the original computes, by name.
    computed: HashMap<String, FieldValue>,
    /// The images of the elements of each step that is more than arithmetic, by the id of the step.
    numbers: HashMap<usize, Elements>,
}

impl<'s> Sources<'s> {
    /// The sources with only the stored constants of the original.
    pub(super) fn new(original: &'s Model, key: u64, rule: RootRule) -> Self {
        let (computed, numbers) = (HashMap::new(), HashMap::new());
        Self {
            original,
            stored: stored(original),
            key,
            rule,
            computed,
            numbers,
        }
    }

    /// The square roots of elements.
    pub(super) fn roots(&self, elements: &Elements) -> Elements {
        self.rule.of_constant(elements)
    }

    /// Sets the values of the constants that the original computes.
    pub(super) fn with(mut self, computed: HashMap<String, FieldValue>) -> Self {
        self.computed = computed;
        self
    }

    /// Adds the images of all steps that are more than arithmetic.
    ///
    /// # Errors
    /// If one of them cannot be computed.
    pub(super) fn numbered(
        mut self,
        tensors: &[Stored],
        analysis: &Analysis,
    ) -> Result<Self, Refusal> {
        for tensor in tensors {
            for step in tensor
                .recipe
                .steps()
                .into_iter()
                .filter(|step| is_number(step))
            {
                let id = step.id() as usize;
                if !self.numbers.contains_key(&id) {
                    let numbers = evaluate(step, &|name| read(self.original, analysis, name))?;
                    let image = match step.op() {
                        Op::Softmax(axis) => of_shares(&numbers, *axis..axis + 1, self.key),
                        _ => of_numbers(&numbers, self.key),
                    };
                    self.numbers
                        .extend(image.images().map(|images| (id, images)));
                }
            }
        }
        Ok(self)
    }

    /// Whether the original stores a tensor of this name.
    pub(super) fn stores(&self, name: &str) -> bool {
        self.stored.contains_key(name)
    }

    /// The value of a constant.
    ///
    /// # Errors
    /// If there is no constant of this name.
    pub(super) fn value(&self, name: &str) -> Result<FieldValue, NotEvaluated> {
        if let Some(computed) = self.computed.get(name) {
            return Ok(computed.clone());
        }
        let tensor = self.stored.get(name).ok_or(NotEvaluated::Uncovered)?;
        Ok(of_tensor(tensor, self.original.externals(), self.key))
    }

    /// The image of a step that is more than arithmetic, which [`Self::numbered`] has added.
    ///
    /// # Errors
    /// If it has not been added.
    pub(super) fn number(&self, step: &Recipe) -> Result<FieldValue, NotEvaluated> {
        self.numbers
            .get(&(step.id() as usize))
            .cloned()
            .map(FieldValue::Field)
            .ok_or(NotEvaluated::Uncovered)
    }
}
