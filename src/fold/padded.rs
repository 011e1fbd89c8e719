//! A Pad with zeros before a convolution, as the padding that the convolution has itself.
//!
//! PyTorch's ports of TensorFlow pad by more at one end than at the other, and have an operator for it. What is behind it meets
//! a convolution like others, and engines read the image once.

use super::travel::pad::Padding;
use crate::graph::NodeId;
use crate::graph::analysis::Analysis;
use crate::graph::make::{Maker, ints};

/// The attributes of a convolution, the rest of which stay as they are.
const ATTRIBUTES: [&str; 6] = ["auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"];

/// A convolution that pads as what it reads does; `None` where nothing else pads.
pub fn by_itself<'m>(known: &'m Analysis, conv: NodeId) -> Option<Maker<'m>> {
    let graph = &known.graph;
    let at = known.at(conv);
    let told = graph.is(conv, "Conv") && at.only_attributes(&ATTRIBUTES).is_ok();
    let is_told = told && at.attr_text("auto_pad", "NOTSET").is_ok_and(|kind| kind == "NOTSET");
    let padded = at.input(0).ok().filter(|_| is_told)?;
    let (pad, _) = graph.producer(padded).filter(|&(node, _)| graph.is(node, "Pad"))?;
    (graph.only_reader(padded) == Some((conv, 0))).then_some(())?;
    let pad_at = known.at(pad);
    // What computes how much is stored first, and counts as that.
    let computed = pad_at.input_for("pads").and_then(|slot| graph.producer(graph.input(pad, slot)?));
    computed.is_none_or(|(node, _)| graph.is(node, "Constant")).then_some(())?;
    pad_at.only_attributes(&["mode", "pads", "value"]).ok()?;
    let more = Padding::of(&pad_at, at.rank(0).ok()?).ok()?.of_image()?;
    let own = at.attr_ints("pads").ok()?.unwrap_or_else(|| vec![0; more.len()]);
    (own.len() == more.len()).then_some(())?;
    let pads: Vec<i64> =
        own.iter().zip(&more).map(|(own, more)| own.checked_add(*more)).collect::<Option<_>>()?;
    let mut attributes = graph.node(conv).attribute.clone();
    attributes.retain(|attribute| attribute.name() != "pads");
    attributes.push(ints("pads", &pads));
    let mut inputs: Vec<&str> =
        graph.inputs(conv).iter().map(|input| input.map_or("", |value| graph.value_name(value))).collect();
    inputs[0] = graph.value_name(graph.input(pad, 0)?);
    let mut maker = Maker::new(graph, conv);
    maker.op("Conv", &inputs, attributes);
    Some(maker)
}
