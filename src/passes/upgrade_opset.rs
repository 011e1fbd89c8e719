//! Upgrades the operator set of a model that writes out an operator which only the newer set has.
//!
//! Set 14 has HardSwish, and set 17 has LayerNormalization. Most operators of operator sets 11 to 16 keep their meaning in these sets. An axes attribute
//! becomes an input. If the meaning of an operator of the model changed, the model keeps its
//! operator set.

use std::ops::RangeInclusive;

use crate::affine::plan::OpsetUpgrade;
use crate::affine::recognize::{View, hard_swish, layer_norm};
use crate::analysis::Analysis;
use crate::ir::NodeId;
use crate::ir::names::Names;
use crate::onnx::Model;
use crate::onnx::node::{bodies, canonical_domain};
use crate::onnx::operator::{input_at, input_for};
use crate::onnx::proto::{AttributeProto, NodeProto, TensorProto};
use crate::onnx::tensor::make_i64;
use crate::passes::legalize::norm_operators;

/// The oldest operator set that this pass upgrades.
const OLDEST: i64 = 11;

/// The operator sets that [`means_the_same`] knows.
pub(crate) const KNOWN: RangeInclusive<i64> = 11..=23;

/// The first IR version in which a caller may replace an initializer that is an input.
const REPLACEABLE: i64 = 4;

/// Whether a node has one meaning in two operator sets of [`KNOWN`] and in all sets between them,
/// once its attributes are written in the newer form.
///
/// Most changes add element types, or an attribute whose default is the former meaning.
pub(crate) fn means_the_same(node: &NodeProto, from: i64, to: i64) -> bool {
    let ("", op) = node.op() else {
        return true;
    };
    let changed_in = |set: i64| from < set && set <= to;
    match op {
        // Since set 12, training mode is an input.
        "Dropout" => !changed_in(12),
        // Before set 13, Hardmax flattened all axes from the given axis to the last.
        "Hardmax" => !changed_in(13),
        // Set 13 removed one way to compute coordinates.
        "Resize" => {
            let mode = node.attr_s("coordinate_transformation_mode");
            !changed_in(13) || mode.unwrap_or_default() != Some("tf_half_pixel_for_nn")
        }
        // Before set 14, several outputs meant training mode.
        "BatchNormalization" => !changed_in(14) || node.output.len() == 1,
        // Set 16 changed the default mode of coordinates.
        "RoiAlign" => !changed_in(16),
        // Sets 18, 19 and 22 changed which elements count in windows that reach beyond the end.
        "AveragePool" | "LpPool" | "MaxPool" => {
            let ceil_mode = node.attr_i("ceil_mode").unwrap_or(Some(1));
            let is_changed = changed_in(18) || changed_in(19) || changed_in(22);
            matches!(ceil_mode, None | Some(0)) || !is_changed
        }
        // Set 20 changed the names of the modes.
        "GridSample" => !changed_in(20),
        // Since set 20, the axis is an input.
        "DFT" => !changed_in(20),
        // Since set 21, there is one scale for each channel rather than for each group.
        "GroupNormalization" => !changed_in(21),
        // Later sets do not have these operators.
        "Scatter" | "Upsample" => false,
        _ => true,
    }
}

/// Whether `--skip` names a site or its kind.
type IsSkipped<'s> = &'s dyn Fn(&str) -> bool;

/// A newer operator set with an operator that a model may write out.
pub(crate) struct NewerSet {
    /// The first operator set with the operator.
    since: i64,
    /// Whether a model writes out the operator, where the names may be changed.
    writes_out: fn(&Analysis, IsSkipped<'_>) -> bool,
}

/// The operator set with HardSwish.
pub(crate) static WITH_HARD_SWISH: NewerSet = NewerSet {
    since: hard_swish::SINCE,
    writes_out: writes_out_hard_swish,
};

/// The operator set with LayerNormalization.
pub(crate) static WITH_LAYER_NORM: NewerSet = NewerSet {
    since: norm_operators::LAYER_NORM,
    writes_out: writes_out_layer_norm,
};

impl NewerSet {
    /// The model in this operator set. `None` if it does not write out the operator, or if the
    /// meaning of an operator would change.
    pub(crate) fn upgraded(
        &self,
        analysis: &Analysis,
        is_skipped: IsSkipped<'_>,
    ) -> Option<(Model, OpsetUpgrade)> {
        let model = analysis.graph.model();
        let is_whole = model.proto.functions.is_empty() && model.proto.training_info.is_empty();
        let from = model.own_opset();
        let is_older = (OLDEST..self.since).contains(&from);
        if !is_whole || model.proto.ir_version() < REPLACEABLE || !is_older {
            return None;
        }
        let to = self.since;
        (self.writes_out)(analysis, is_skipped)
            .then(|| in_newer_set(analysis, OpsetUpgrade { from, to }))
            .flatten()
    }
}

/// Whether a model writes out a HardSwish that may be changed.
fn writes_out_hard_swish(analysis: &Analysis, is_skipped: IsSkipped<'_>) -> bool {
    let graph = &analysis.graph;
    let mut nodes = graph.order().iter();
    if is_skipped(hard_swish::KIND) || !nodes.any(|&node| graph.is(node, "Clip")) {
        return false;
    }
    let view = View::new(analysis);
    graph.order().iter().any(|&node| {
        let first = hard_swish::written_out(&view, node);
        first.is_some_and(|first| !is_skipped(&view.site_name(first)))
    })
}

/// Whether a model writes out a LayerNormalization that may be changed.
fn writes_out_layer_norm(analysis: &Analysis, is_skipped: IsSkipped<'_>) -> bool {
    let view = View::new(analysis);
    let mut nodes = analysis.graph.order().iter();
    !is_skipped(layer_norm::NAME)
        && nodes.any(|&node| {
            norm_operators::layer_norm(&view, node).is_some() && !is_skipped(&view.site_name(node))
        })
}

/// The model in the operator set of an upgrade. `None` if the meaning of an operator would change.
fn in_newer_set(analysis: &Analysis, change: OpsetUpgrade) -> Option<(Model, OpsetUpgrade)> {
    let graph = &analysis.graph;
    let model = graph.model();
    let mut proto = graph.proto().clone();
    let mut names = Names::beside(graph);
    for (node, written) in proto.node.iter_mut().enumerate() {
        proto
            .initializer
            .extend(write(analysis, node, written, change, &mut names)?);
    }
    let mut raised = model.with_graph(proto);
    let sets = raised.proto.opset_import.iter_mut();
    sets.filter(|set| canonical_domain(set.domain()).is_empty())
        .for_each(|set| set.version = Some(change.to));
    let format = model.proto.ir_version();
    raised.proto.ir_version = Some(format.max(ir_version(change.to)));
    Some((raised, change))
}

/// The first IR version that allows an operator set of an upgrade.
fn ir_version(opset: i64) -> i64 {
    if opset < 15 { 7 } else { 8 }
}

/// Rewrites a node for the newer operator set. Returns the constants that replace its attributes.
/// `None` if its meaning changed.
fn write(
    analysis: &Analysis,
    node: NodeId,
    written: &mut NodeProto,
    OpsetUpgrade { from, to }: OpsetUpgrade,
    names: &mut Names,
) -> Option<Vec<TensorProto>> {
    if bodies(written).next().is_some() || !means_the_same(written, from, to) {
        return None;
    }
    let ("", op) = written.op() else {
        return Some(vec![]);
    };
    let op = op.to_owned();
    // Before operator set 13, all axes from the given axis to the last were flattened, and the
    // default axis was 1. So only the last axis has one meaning in both sets.
    if from < 13
        && matches!(op.as_str(), "LogSoftmax" | "Softmax")
        && written.attr_i("axis").ok()? != Some(-1)
    {
        let rank = analysis.facts.rank(analysis.graph.input(node, 0)?)?;
        analysis.at(node).softmax_axis(rank).ok()?;
    }
    let (moved, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut written.attribute)
        .into_iter()
        .partition(|attribute| {
            let [before, after] = [from, to].map(|set| input_at(&op, attribute.name(), set));
            before.is_none() && after.is_some()
        });
    written.attribute = kept;
    let mut tensors = vec![];
    for AttributeProto { ints, name, .. } in &moved {
        let name = name.as_deref()?;
        let (slot, _) = input_for(&op, name).filter(|_| !ints.is_empty())?;
        let input = names.fresh(&format!("{}_{name}", analysis.graph.name(node)));
        if written.input.len() <= slot {
            written.input.resize(slot + 1, String::new());
        }
        tensors.push(make_i64(&input, ints));
        written.input[slot] = input;
    }
    Some(tensors)
}
