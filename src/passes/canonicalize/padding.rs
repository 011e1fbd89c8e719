//! Writes a Pad before a convolution or a pooling as the `pads` attribute of that operator.
//!
//! PyTorch ports of TensorFlow networks use a Pad to pad one end of an axis more than its other
//! end. Zeros can become the padding of a convolution, and of an AveragePool that counts its
//! padding. −∞ can become the padding of a MaxPool. As an attribute, the padding does not separate
//! the operator from the normalizer before it, and engines read the image once.

use crate::affine::propagate::rules::pad::Padding;
use crate::analysis::Analysis;
use crate::analysis::node_view::At;
use crate::ir::NodeId;
use crate::ir::builder::{Maker, int, ints};
use crate::onnx::operator::{AVERAGE_POOL, CONV, MAX_POOL};

/// Adds the padding of a Pad to the operator that reads the padded value. `None` if another node
/// reads this value too, or if the result would differ.
pub(crate) fn as_attribute<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
    let graph = &analysis.graph;
    let at = analysis.at(node);
    let op = graph.op(node).filter(|_| graph.outputs(node).len() == 1)?;
    let (attributes, border) = match graph.domain_op(node) {
        ("", "Conv") => (CONV, 0.0),
        ("", "AveragePool") => (AVERAGE_POOL, 0.0),
        ("", "MaxPool") => (MAX_POOL, f64::NEG_INFINITY),
        _ => return None,
    };
    at.only_attributes(attributes).ok()?;
    let automatic = at.attr_text("auto_pad", "NOTSET").ok()?;
    // Automatic padding depends on the extents of the input. With `ceil_mode`, the padding decides
    // how far the last window may reach beyond the end. If the Pad became an attribute, the
    // automatic padding and the last window would change. So such an operator stays.
    if !matches!(automatic, "NOTSET" | "VALID") || is_set(&at, "ceil_mode") {
        return None;
    }
    let pad = fixed_pad(analysis, node)?;
    let more = Padding::from_node(&analysis.at(pad), at.rank(0).ok()?)
        .ok()?
        .of_image(border)?;
    let own = at
        .attr_ints("pads")
        .ok()?
        .filter(|_| automatic != "VALID")
        .unwrap_or_else(|| vec![0; more.len()]);
    let pads = sum(&own, &more)?;
    // The new AveragePool counts all padding, so the old one must have counted its own padding, if
    // it had any.
    let counts_all =
        op != "AveragePool" || is_set(&at, "count_include_pad") || own.iter().all(|&own| own == 0);
    let has_image = has_image_in_windows(&at, op, &pads)?;
    (counts_all && (has_image || op == "Conv")).then_some(())?;
    let mut attributes = graph.node(node).attribute.clone();
    attributes
        .retain(|attribute| !["auto_pad", "count_include_pad", "pads"].contains(&attribute.name()));
    attributes.push(ints("pads", &pads));
    attributes.extend((op == "AveragePool").then(|| int("count_include_pad", 1)));
    let mut inputs: Vec<&str> = graph
        .inputs(node)
        .iter()
        .map(|input| input.map_or("", |value| graph.value_name(value)))
        .collect();
    inputs[0] = graph.value_name(graph.input(pad, 0)?);
    let mut maker = Maker::new(graph, node);
    maker.op(op, &inputs, attributes);
    Some(maker)
}

fn is_set(at: &At, flag: &str) -> bool {
    at.attr(flag, 0).is_ok_and(|flag| flag != 0)
}

/// The Pad that produces the first input of a node, if this node is the only reader of the Pad.
/// `None` if other nodes compute the number of padded places. If they compute it from constants,
/// constant folding stores the result, and a later repetition of the pipeline finds the Pad here.
fn fixed_pad(analysis: &Analysis, node: NodeId) -> Option<NodeId> {
    let graph = &analysis.graph;
    let padded = analysis.at(node).input(0).ok()?;
    let (pad, _) = graph
        .producer(padded)
        .filter(|&(maker, _)| graph.is(maker, "Pad"))?;
    (graph.only_reader(padded) == Some((node, 0))).then_some(())?;
    let at = analysis.at(pad);
    let slot = at.input_for("pads");
    let producer = slot.and_then(|slot| graph.producer(graph.input(pad, slot)?));
    let is_fixed = producer.is_none_or(|(maker, _)| graph.is(maker, "Constant"));
    at.only_attributes(&["mode", "pads", "value"]).ok()?;
    is_fixed.then_some(pad)
}

fn sum(own: &[i64], more: &[i64]) -> Option<Vec<i64>> {
    (own.len() == more.len()).then_some(())?;
    own.iter()
        .zip(more)
        .map(|(own, more)| own.checked_add(*more))
        .collect()
}

/// Whether each window of a pooling is sure to contain a place of the image. The padding must be
/// smaller than the window, as onnxruntime requires. A MaxPool must not be dilated, because a
/// dilated window may contain only padding. `None` if the attributes cannot be read.
fn has_image_in_windows(at: &At, op: &str, pads: &[i64]) -> Option<bool> {
    let kernel = at.attr_ints("kernel_shape").ok()?.unwrap_or_default();
    let dilations = at.attr_ints("dilations").ok()?.unwrap_or_default();
    let has_gaps = dilations.iter().any(|&step| step != 1);
    let mut axes = pads.iter().zip(kernel.iter().cycle());
    Some(
        2 * kernel.len() == pads.len()
            && !(op == "MaxPool" && has_gaps)
            && axes.all(|(pad, size)| pad < size),
    )
}
