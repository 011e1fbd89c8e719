//! Removes activations that have no effect because of another activation, over the reals.
//!
//! Evaluation treats an activation as an almost unknown function. So two laws are applied to the
//! graph before evaluation:
//!
//! - A clamp maps each number to the nearest number of an interval: Clip between its bounds, Relu
//!   from 0. Two successive clamps are one clamp to the intersection of their intervals, if it is
//!   not empty.
//! - Floor, Ceil and Round return integers and keep integers, so the second of two has no effect.

use std::collections::{HashMap, HashSet};

use crate::ir::builder::float;
use crate::onnx::external_data::Externals;
use crate::onnx::node::{bodies, bodies_mut, constant_tensor};
use crate::onnx::proto::{GraphProto, NodeProto, TensorProto};
use crate::onnx::tensor::{self, DataType};

/// An activation for which a law is known.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Activation {
    /// Maps a number to the nearest number between two bounds, of which the lower one comes first.
    Clamp(f64, f64),
    /// Rounds a number to an integer: Ceil, Floor or Round.
    Whole,
}

/// The activation that can replace two successive activations.
#[derive(Debug, Clone, Copy, PartialEq)]
enum MergedActivations {
    First,
    Second,
    /// A clamp between the larger lower bound and the smaller upper bound of the two clamps.
    Clamp(f64, f64),
}

impl Activation {
    /// The activation that has the effect of this activation followed by `behind`. `None` if no
    /// single activation has this effect.
    fn merged(self, behind: Self) -> Option<MergedActivations> {
        match (self, behind) {
            (Self::Whole, Self::Whole) => Some(MergedActivations::First),
            (Self::Clamp(low, high), Self::Clamp(from, to)) if from <= low && high <= to => {
                Some(MergedActivations::First)
            }
            (Self::Clamp(low, high), Self::Clamp(from, to)) if low <= from && to <= high => {
                Some(MergedActivations::Second)
            }
            (Self::Clamp(low, high), Self::Clamp(from, to)) => {
                let (low, high) = (low.max(from), high.min(to));
                (low <= high).then_some(MergedActivations::Clamp(low, high))
            }
            _ => None,
        }
    }
}

/// The operator set and the constants by which the activations of one graph are recognized.
struct Activations<'a> {
    opset: i64,
    externals: &'a Externals,
    /// The constants of the graph by name, except those that a recipe computes or that a caller may
    /// replace.
    constants: HashMap<String, TensorProto>,
}

/// Whether an activation of the graph, or of a body, directly follows another activation. Then one
/// activation may replace the two.
pub(super) fn has_pairs(graph: &GraphProto) -> bool {
    let activations = graph.node.iter().filter(|node| is_activation(node));
    let made: HashSet<&str> = activations
        .clone()
        .filter_map(|node| node.output.first().map(String::as_str))
        .collect();
    let mut read = activations.filter_map(|node| node.input.first());
    let mut inner = graph.node.iter().flat_map(bodies);
    read.any(|name| made.contains(name.as_str())) || inner.any(has_pairs)
}

fn is_activation(node: &NodeProto) -> bool {
    matches!(
        node.op(),
        ("", "Ceil" | "Clip" | "Floor" | "Relu" | "Round")
    )
}

/// Removes, from a graph and its bodies, activations that have no effect.
///
/// `unknown` are the names of tensors that recipes compute. Their stored elements must not be used
/// here, because the recipes replace them.
pub(crate) fn read_past(
    graph: &mut GraphProto,
    opset: i64,
    externals: &Externals,
    unknown: &HashSet<&str>,
) {
    let context = Activations {
        opset,
        externals,
        constants: constants(graph, unknown),
    };
    let mut before: HashMap<String, (Activation, String)> = HashMap::new();
    for node in &mut graph.node {
        for body in bodies_mut(node) {
            read_past(body, opset, externals, unknown);
        }
        let Some(mut behind) = context.activation(node) else {
            continue;
        };
        // The number of steps is limited, because an invalid graph may have a cycle.
        for _ in 0..before.len() {
            let Some((first, input)) = before.get(&node.input[0]).cloned() else {
                break;
            };
            match first.merged(behind) {
                Some(MergedActivations::First) => {
                    pass_through(node);
                    before.insert(node.output[0].clone(), (first, input));
                    break;
                }
                Some(MergedActivations::Second) => node.input[0] = input,
                Some(MergedActivations::Clamp(low, high)) => {
                    let bounds = context.clamp(node, [low, high]);
                    graph.initializer.extend(bounds);
                    behind = Activation::Clamp(low, high);
                    node.input[0] = input;
                }
                None => break,
            }
        }
        if behind == Activation::Clamp(0.0, f64::INFINITY) && node.op() == ("", "Clip") {
            node.op_type = Some("Relu".to_owned());
            node.input.truncate(1);
            node.attribute.clear();
        }
        let made = (behind, node.input[0].clone());
        before.entry(node.output[0].clone()).or_insert(made);
    }
}

/// Turns a node into an Identity of its first input.
fn pass_through(node: &mut NodeProto) {
    node.op_type = Some("Identity".to_owned());
    node.input.truncate(1);
    node.attribute.clear();
}

/// The scalar constants of a graph that are neither inputs nor `unknown`.
fn constants(graph: &GraphProto, unknown: &HashSet<&str>) -> HashMap<String, TensorProto> {
    let stored = graph.initializer.iter();
    let stored = stored.filter(|tensor| tensor.dims.iter().product::<i64>() == 1);
    let stored = stored.map(|tensor| (tensor.name().to_owned(), tensor.clone()));
    let made = graph.node.iter().filter_map(|node| {
        let is_constant = node.op() == ("", "Constant");
        let tensor = is_constant.then(|| constant_tensor(node)).flatten()?;
        Some((node.output.first()?.clone(), tensor))
    });
    let mut constants: HashMap<String, TensorProto> = stored.chain(made).collect();
    constants.retain(|name, _| !unknown.contains(name.as_str()));
    for input in &graph.input {
        constants.remove(input.name());
    }
    constants
}

impl Activations<'_> {
    fn activation(&self, node: &NodeProto) -> Option<Activation> {
        if node.input.is_empty() || node.output.len() != 1 {
            return None;
        }
        match node.op() {
            ("", "Relu") => Some(Activation::Clamp(0.0, f64::INFINITY)),
            ("", "Clip") => {
                let low = self.bound(node, 1, "min", f64::NEG_INFINITY)?;
                let high = self.bound(node, 2, "max", f64::INFINITY)?;
                (low <= high).then_some(Activation::Clamp(low, high))
            }
            ("", "Ceil" | "Floor" | "Round") => Some(Activation::Whole),
            _ => None,
        }
    }

    /// Turns a node into a Clip between two bounds. Returns the tensors of the bounds, or no
    /// tensors before operator set 11, where bounds are attributes. The bounds are stored in
    /// float64 whatever the type of the input, because the image of a number in the field does not
    /// depend on its type.
    fn clamp(&self, node: &mut NodeProto, bounds: [f64; 2]) -> Vec<TensorProto> {
        node.op_type = Some("Clip".to_owned());
        node.input.truncate(1);
        node.attribute.clear();
        let named = ["min", "max"].into_iter().zip(bounds);
        let mut tensors = vec![];
        for (name, bound) in named {
            if self.opset < 11 {
                let attribute = float(name, bound as f32);
                node.attribute
                    .extend(bound.is_finite().then_some(attribute));
                continue;
            }
            let of_node = format!("{}/{name}", node.output[0]);
            let number = ndarray::arr0(bound).into_dyn();
            let tensor = tensor::make(&of_node, DataType::Double, &number.view());
            let tensor = tensor.ok().filter(|_| bound.is_finite());
            node.input
                .push(tensor.as_ref().map_or_else(String::new, |_| of_node));
            tensors.extend(tensor);
        }
        tensors
    }

    /// A bound of a Clip, which was an attribute before operator set 11. `None` if it is unknown.
    fn bound(&self, node: &NodeProto, slot: usize, name: &str, absent: f64) -> Option<f64> {
        if self.opset < 11 {
            let bound = node.attr_f(name).ok()?;
            return Some(bound.map_or(absent, f64::from));
        }
        let Some(name) = node.input.get(slot).filter(|name| !name.is_empty()) else {
            return Some(absent);
        };
        let numbers = tensor::read_f64(self.constants.get(name)?, self.externals).ok()?;
        match *numbers.as_slice()? {
            [bound] => Some(bound),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Activation::{Clamp, Whole};
    use super::*;

    /// The result of an activation, by its definition.
    fn applied(activation: Activation, number: f64) -> f64 {
        match activation {
            Clamp(low, high) => number.max(low).min(high),
            Whole => number.round_ties_even(),
        }
    }

    #[test]
    fn merged_activation_equals_the_pair_on_sample_values() {
        let bounds = [f64::NEG_INFINITY, -1.0, 0.0, 0.5, 2.0, f64::INFINITY];
        let mut all = vec![Whole];
        for low in bounds {
            let above = bounds.into_iter().filter(|&high| low <= high);
            all.extend(above.map(|high| Clamp(low, high)));
        }
        let numbers = [-3.0, -1.0, -0.75, 0.0, 0.25, 0.5, 1.5, 2.0, 5.0];
        let mut merged = 0;
        for (first, behind) in all.iter().flat_map(|&a| all.iter().map(move |&b| (a, b))) {
            let Some(both) = first.merged(behind) else {
                continue;
            };
            merged += 1;
            let one = match both {
                MergedActivations::First => first,
                MergedActivations::Second => behind,
                MergedActivations::Clamp(low, high) => Clamp(low, high),
            };
            for number in numbers {
                let both = applied(behind, applied(first, number));
                assert_eq!(applied(one, number), both, "{first:?} {behind:?} {number}");
            }
        }
        assert!(merged > 100, "{merged}");
        let relu = Clamp(0.0, f64::INFINITY);
        assert_eq!(
            Clamp(-1.0, 6.0).merged(relu),
            Some(MergedActivations::Clamp(0.0, 6.0))
        );
        assert_eq!(Clamp(-2.0, -1.0).merged(relu), None);
        assert_eq!(Whole.merged(Clamp(0.0, 1.0)), None);
    }
}
