//! Bias: a constant for each channel. Some exporters add it after an operator, although the
//! operator has an input for it.

use crate::affine::Affine;
use crate::affine::recognize::{Family, Kind, Normalizer, Part, Site, View};
use crate::ir::NodeId;
use crate::onnx::operator::Category;
use crate::onnx::tensor::DataType;
use crate::shape::facts::extent;

/// An Add after a convolution or a Gemm.
pub(super) struct Bias;

/// The axis of the channels in the results of convolutions and Gemms.
const CHANNELS: usize = 1;

impl Normalizer for Bias {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let graph = view.graph;
        let at = view.at(node);
        let slot = (0..2).find(|&slot| at.is_constant(slot))?;
        let (input, output) = (graph.input(node, 1 - slot)?, graph.only_output(node)?);
        let maker = view.maker(input)?;
        let has_place = graph.category(maker) == Some(Category::Layer);
        let parameters_are_constant = (1..3)
            .all(|slot| graph.input(maker, slot).is_none() || view.at(maker).is_constant(slot));
        let is_float = view.facts.data_type(output).is_some_and(DataType::is_float);
        let is_its_own = view.only_reader(input) == Some(node);
        let fits = has_place && parameters_are_constant && is_float && is_its_own;
        if graph.domain_op(node) != ("", "Add") || !fits {
            return None;
        }
        let shape = view.facts.shape(output)?;
        // An Add whose constant adds axes to the input is not a bias.
        if view.facts.rank(input) != Some(shape.len()) {
            return None;
        }
        let given = at.shape(slot).ok()?;
        let missing = shape.len().checked_sub(given.len())?;
        let is_over_channels = given.iter().enumerate().all(|(axis, dim)| {
            extent(dim) == Some(1)
                || missing + axis == CHANNELS && extent(dim) == extent(&shape[CHANNELS])
        });
        if !is_over_channels {
            return None;
        }
        let shift = at.numbers(slot).ok()?.align(shape.len())?;
        let affine = Affine::shift(shift);
        affine.is_finite().then(|| Site {
            channels: view.facts.extent(output, CHANNELS).unwrap_or(1),
            axis: CHANNELS,
            post: Some(Part {
                affine,
                input,
                output,
                nodes: vec![node],
                resets: vec![],
            }),
            ..Site::new(
                Kind::new("bias", Family::Scale),
                view.site_name(node),
                vec![node],
            )
        })
    }
}
