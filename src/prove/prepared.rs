//! Prepares models for evaluation: inlines normalizers, and fixes all extents.

use std::collections::HashSet;

use super::activations;
use super::evaluate::OnlyAtSizes;
use super::operators::Allowance;
use super::sizes::{elements, inputs};
use super::{Proof, ProveOptions, undecided};
use crate::affine::plan::Stored;
use crate::analysis::Analysis;
use crate::ir::{Graph, ValueId};
use crate::onnx::Model;
use crate::onnx::proto::ValueInfoProto;
use crate::ops::definitions::{self, ATTENTION};
use crate::passes::inline::{Lowered, Lowering, written_out};
use crate::run::{Input, fix_shapes};
use crate::shape::facts::extent;

/// A model with inlined opaque normalizers and known extents of all inputs.
pub(super) struct Prepared {
    pub model: Model,
    pub inputs: Vec<Input>,
    /// The recipes of the tensors that inlining added.
    pub formulas: Vec<Stored>,
    /// The inputs as the model declares them. `None` if all their extents are known.
    open: Option<Vec<ValueInfoProto>>,
}

impl Prepared {
    /// Prepares a model for the sizes of `options`.
    ///
    /// # Errors
    /// If the model cannot be inlined, or if its inputs are impossible at these sizes.
    pub(super) fn new(
        model: &Model,
        lowering: Lowering,
        options: &ProveOptions,
    ) -> Result<Self, Proof> {
        let lowered = written_out(model, lowering, &|_, _| false)
            .map_err(|error| undecided(error.to_string()))?;
        let (mut model, formulas) = match lowered {
            Some(Lowered { model, formulas }) => (
                model,
                formulas.iter().filter_map(Stored::from_constant).collect(),
            ),
            None => (model.clone(), vec![]),
        };
        let inputs = inputs(&model, &options.dims)?;
        let declared = model.graph().input.clone();
        fix_shapes(model.graph_mut(), &inputs);
        let open = Some(declared).filter(|declared| *declared != model.graph().input);
        Ok(Self {
            model,
            inputs,
            formulas,
            open,
        })
    }

    /// Replaces onnxruntime's attention operators by the operators that define them.
    pub(super) fn write_attention_out(&mut self) {
        if let Some(written) = definitions::written_out(&self.model, ATTENTION) {
            self.model = written;
        }
    }

    /// Removes activations that have no effect. `tensors` are the new tensors.
    pub(super) fn read_past_activations(&mut self, tensors: &[Stored]) {
        let recipes = tensors.iter().chain(&self.formulas);
        let unknown: HashSet<&str> = recipes.map(|tensor| tensor.name.as_str()).collect();
        let opset = self.model.own_opset();
        let externals = self.model.externals().clone();
        activations::read_past(self.model.graph_mut(), opset, &externals, &unknown);
    }

    /// The limits of computation for this model.
    pub(super) fn allowance(&self) -> Allowance {
        Allowance::new(self.model.about_bytes(), elements(&self.inputs))
    }

    /// The values about which less would be known if the extents of the inputs were open.
    pub(super) fn only_at_sizes(&self, analysis: &Analysis) -> OnlyAtSizes {
        let Some(open) = &self.open else {
            return OnlyAtSizes::default();
        };
        let mut graph = analysis.graph.proto().clone();
        graph.input.clone_from(open);
        let model = self.model.with_graph(graph);
        let Ok(open) = Analysis::new(&model) else {
            return OnlyAtSizes::default();
        };
        let made = analysis.graph.order().iter();
        let made = made
            .flat_map(|&node| analysis.graph.outputs(node))
            .flatten();
        let constants = made.filter(|&&value| is_constant_only_at_sizes(value, analysis, &open));
        let ends = outputs(&analysis.graph).into_iter();
        let ends = ends.filter(|&value| is_shaped_only_at_sizes(value, analysis, &open));
        OnlyAtSizes {
            constants: constants.map(|&value| name(analysis, value)).collect(),
            outputs: ends.map(|value| name(analysis, value)).collect(),
        }
    }
}

fn name(analysis: &Analysis, value: ValueId) -> String {
    analysis.graph.value_name(value).to_owned()
}

/// Whether a value is constant, but not constant while the extents of the inputs are open.
fn is_constant_only_at_sizes(value: ValueId, analysis: &Analysis, open: &Analysis) -> bool {
    let Some(same) = open.graph.value(analysis.graph.value_name(value)) else {
        return false;
    };
    analysis.constants.is_constant(value) && !open.constants.is_constant(same)
}

/// Whether any extent of a value is unknown while the extents of the inputs are open.
fn is_shaped_only_at_sizes(value: ValueId, analysis: &Analysis, open: &Analysis) -> bool {
    let Some(same) = open.graph.value(analysis.graph.value_name(value)) else {
        return false;
    };
    let shape = open.facts.shape(same);
    !shape.is_some_and(|shape| shape.iter().all(|dim| extent(dim).is_some()))
}

/// The outputs that exist as values of the graph.
pub(super) fn outputs(graph: &Graph) -> Vec<ValueId> {
    graph
        .proto()
        .output
        .iter()
        .filter_map(|output| graph.value(output.name()))
        .collect()
}
