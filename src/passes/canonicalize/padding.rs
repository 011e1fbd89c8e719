//! A Pad before a convolution or a pooling, as the padding that this has itself.
//!
//! PyTorch's ports of TensorFlow networks pad one end more than the other, by a Pad: by zeros
//! before a convolution or a mean that counts its padding, and by −∞ before a maximum. As an
//! attribute of the operator, the padding does not separate it from the normalizer before it, and
//! engines read the image once.

use crate::affine::propagate::rules::pad::Padding;
use crate::analysis::Analysis;
use crate::ir::NodeId;
use crate::ir::builder::{Maker, int, ints};
use crate::onnx::operator::{AVERAGE_POOL, MAX_POOL};

/// The attributes of a convolution; all but the padding are kept.
const CONV: &[&str] = &[
    "auto_pad",
    "dilations",
    "group",
    "kernel_shape",
    "pads",
    "strides",
];

/// The operator with the padding of the Pad that it reads; `None` where another node reads the
/// padded value, or where the result would differ.
pub fn by_itself<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
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
    let flag = |name: &str| at.attr(name, 0).is_ok_and(|flag| flag != 0);
    let automatic = at.attr_text("auto_pad", "NOTSET").ok()?;
    let is_told = matches!(automatic, "NOTSET" | "VALID");
    // The padding decides how far a last window may reach beyond the end.
    let padded = at.input(0).ok().filter(|_| is_told && !flag("ceil_mode"))?;
    let (pad, _) = graph
        .producer(padded)
        .filter(|&(maker, _)| graph.is(maker, "Pad"))?;
    (graph.only_reader(padded) == Some((node, 0))).then_some(())?;
    let pad_at = analysis.at(pad);
    // Computed padding is stored first, and counts as a constant.
    let computed = pad_at
        .input_for("pads")
        .and_then(|slot| graph.producer(graph.input(pad, slot)?));
    computed
        .is_none_or(|(maker, _)| graph.is(maker, "Constant"))
        .then_some(())?;
    pad_at.only_attributes(&["mode", "pads", "value"]).ok()?;
    let more = Padding::from_node(&pad_at, at.rank(0).ok()?)
        .ok()?
        .of_image(border)?;
    let own = at
        .attr_ints("pads")
        .ok()?
        .filter(|_| automatic != "VALID")
        .unwrap_or_else(|| vec![0; more.len()]);
    (own.len() == more.len()).then_some(())?;
    let pads: Vec<i64> = own
        .iter()
        .zip(&more)
        .map(|(own, more)| own.checked_add(*more))
        .collect::<Option<_>>()?;
    // A mean counts its own zeros or does not.
    let counts =
        op != "AveragePool" || flag("count_include_pad") || own.iter().all(|&own| own == 0);
    // onnxruntime pools nothing that is padded by as much as a window takes, and a window with gaps may meet no image.
    let kernel = at.attr_ints("kernel_shape").ok()?.unwrap_or_default();
    let has_gaps = at
        .attr_ints("dilations")
        .ok()?
        .is_some_and(|steps| steps.iter().any(|&step| step != 1));
    let fits = 2 * kernel.len() == pads.len()
        && !(op == "MaxPool" && has_gaps)
        && pads
            .iter()
            .zip(kernel.iter().cycle())
            .all(|(pad, size)| pad < size);
    (counts && (fits || op == "Conv")).then_some(())?;
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
