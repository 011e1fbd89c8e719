//! A scalar scale and shift after a HardSigmoid, as in `1 + g` with a gate g.
//!
//! `s·clip(αx + β, 0, 1) + t` is `clip(sαx + sβ + t, t, s + t)` for `s > 0`. So a HardSigmoid, a
//! Mul and an Add become one Clip, and the layer before it absorbs the slope and the offset like
//! any other affine.

use crate::affine::recognize::{Family, Kind, Normalizer, Replacement, Site, View};
use crate::ir::builder::{self, Maker};
use crate::ir::{NodeId, ValueId};
use crate::onnx::operator::{Category, input_at};
use crate::onnx::tensor::DataType;
use crate::recipe::Recipe;

/// The largest `n` of a slope `1/n`, and the largest height of a ramp.
const WHOLE: u32 = 64;

/// The ramp of a gate, with the affine after it.
pub(super) struct Ramp;

impl Normalizer for Ramp {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let graph = view.graph;
        let chain = view.chain(node)?;
        let gate = view
            .maker(chain.input)
            .filter(|&gate| graph.is(gate, "HardSigmoid"))?;
        let is_alone = view.is_read_by_no_other(chain.input, &chain.nodes[..1]);
        let value = graph.input(gate, 0)?;
        let data_type = view.facts.data_type(value)?;
        let (&height, &low) = (chain.affine.scale.first()?, chain.affine.shift.first()?);
        let are_numbers =
            chain.affine.scale.len() == 1 && chain.affine.shift.len() == 1 && !chain.has_branches;
        // With an integer height, the new function is exactly equal.
        let is_whole = height.fract() == 0.0 && (1.0..=WHOLE.into()).contains(&height);
        let bounds = [low, height + low];
        let are_kept = bounds.iter().all(|&bound| f64::from(bound as f32) == bound);
        let fits = is_alone && are_numbers && is_whole && are_kept && is_layer(view, value);
        if !fits
            || data_type != DataType::Float
            || view.facts.rank(value) != view.facts.rank(chain.output)
        {
            return None;
        }
        let at = view.at(gate);
        let [alpha, beta] = [
            at.attr_float("alpha", 0.2).ok()?,
            at.attr_float("beta", 0.5).ok()?,
        ];
        let slope = inclination(alpha).mul(&Recipe::number(height, 0))?;
        let offset = Recipe::number(beta, 0)
            .mul(&Recipe::number(height, 0))?
            .add(&Recipe::number(low, 0))?;
        let mut maker = Maker::new(graph, node);
        let [slope, offset] = [slope, offset].map(|number| maker.floats(data_type, &number));
        let scaled = maker.op("Mul", &[graph.value_name(value), &slope], vec![]);
        let shifted = maker.op("Add", &[&scaled, &offset], vec![]);
        clip(&mut maker, &shifted, bounds);
        let (made, constants) = maker.finish(graph.value_name(chain.output));
        let nodes: Vec<NodeId> = [gate]
            .into_iter()
            .chain(chain.nodes.iter().copied())
            .collect();
        Some(Site {
            channels: 1,
            axis: view.facts.rank(value)?.max(1) - 1,
            replacement: Some(Replacement {
                nodes: nodes.clone(),
                made,
                constants,
            }),
            ..Site::new(
                Kind::new("ramp", Family::Pointwise),
                view.site_name(gate),
                nodes,
            )
        })
    }
}

/// Whether a linear operator with constant weights outputs a value, and the value and each weight
/// have one reader.
fn is_layer(view: &View, value: ValueId) -> bool {
    let graph = view.graph;
    let Some(layer) = view
        .maker(value)
        .filter(|_| view.only_reader(value).is_some())
    else {
        return false;
    };
    let mut weights = graph.inputs(layer).iter().skip(1).flatten();
    graph.category(layer).is_some_and(Category::is_product)
        && weights
            .all(|&weight| view.constants.is_constant(weight) && graph.readers(weight).len() == 1)
}

/// The slope of a HardSigmoid. If it is `1/n` rounded to float32, the recipe is the exact `1/n`.
fn inclination(alpha: f64) -> Recipe {
    let whole = (1..=WHOLE)
        .map(f64::from)
        .find(|whole| f64::from((1.0 / whole) as f32) == alpha);
    let inverse = whole.and_then(|whole| Recipe::number(1.0, 0).div(&Recipe::number(whole, 0)));
    inverse.unwrap_or_else(|| Recipe::number(alpha, 0))
}

/// Adds a Clip to two bounds, which were attributes before operator set 11.
fn clip(maker: &mut Maker, value: &str, bounds: [f64; 2]) {
    if input_at("Clip", "min", maker.opset()).is_none() {
        let [low, high] = bounds.map(|bound| bound as f32);
        maker.op(
            "Clip",
            &[value],
            vec![builder::float("min", low), builder::float("max", high)],
        );
        return;
    }
    let [low, high] = bounds.map(|bound| maker.floats(DataType::Float, &Recipe::number(bound, 0)));
    maker.op("Clip", &[value, &low, &high], vec![]);
}
