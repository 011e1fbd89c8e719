//! Bias: a constant for each channel that some exporters add behind an operator which has a place for it.

use crate::affine::Affine;
use crate::affine::recognize::{Family, Kind, Normalizer, Part, Site, View};
use crate::ir::NodeId;
use crate::onnx::operator::Category;
use crate::onnx::tensor::DataType;
use crate::shape::facts::extent;

/// An Add behind a convolution or a Gemm.
pub struct Bias;

/// The axis of the channels in what these operators make.
const CHANNELS: usize = 1;

impl Normalizer for Bias {
    fn recognise(&self, view: &View, node: NodeId) -> Option<Site> {
        let graph = view.graph;
        let slot = (0..2).find(|&slot| is_constant(view, node, slot))?;
        let (input, output) = (graph.input(node, 1 - slot)?, graph.only_output(node)?);
        let maker = view.maker(input)?;
        let has_place = graph.category(maker) == Some(Category::Layer);
        let takes =
            (1..3).all(|slot| graph.input(maker, slot).is_none() || is_constant(view, maker, slot));
        let is_float = view.facts.data_type(output).is_some_and(DataType::is_float);
        let is_its_own = view.only_reader(input) == Some(node);
        if graph.domain_op(node) != ("", "Add") || !has_place || !takes || !is_float || !is_its_own
        {
            return None;
        }
        let shape = view.facts.shape(output)?;
        // A constant with more axes than the result adds axes.
        if view.facts.rank(input) != Some(shape.len()) {
            return None;
        }
        let at = view.at(node);
        let given = at.shape(slot).ok()?;
        // Where the channels are it is known which they are, and anything else is no bias.
        let first = shape.len().checked_sub(given.len())?;
        let is_along = |place: usize| {
            first + place == CHANNELS && extent(&given[place]) == extent(&shape[CHANNELS])
        };
        if !(0..given.len()).all(|place| extent(&given[place]) == Some(1) || is_along(place)) {
            return None;
        }
        let shift = at.numbers(slot).ok()?.align(shape.len())?;
        let affine = Affine::shift(shift);
        affine.is_finite().then(|| Site {
            kind: Kind::new("bias", Family::Scale),
            name: view.site_name(node),
            channels: view.facts.extent(output, CHANNELS).unwrap_or(1),
            axis: CHANNELS,
            nodes: vec![node],
            pre: None,
            post: Some(Part {
                affine,
                input,
                output,
                nodes: vec![node],
                resets: vec![],
            }),
            replacement: None,
            core: None,
            refusal: None,
        })
    }
}

fn is_constant(view: &View, node: NodeId, slot: usize) -> bool {
    view.graph
        .input(node, slot)
        .is_some_and(|value| view.constants.is_constant(value))
}
