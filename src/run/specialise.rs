//! A model at the sizes of one run, without its shape arithmetic.
//!
//! Exporters compute positions and masks from the extents of the inputs: Shape, Range, CumSum,
//! GatherND. tract computes extents as symbolic formulas, and refuses operators that need them as
//! numbers. With numbers for all extents of the inputs the results are constants, which constant
//! folding stores.
//!
//! Only what no element of an input reaches is folded: the operators that remain are those of the model.

use super::input::{Input, fix_shapes};
use crate::analysis::Analysis;
use crate::ir::regions::Flat;
use crate::onnx::Model;
use crate::onnx::shadowed_names::hidden;
use crate::ops::definitions::{FAILING, LACKING, has_some, written_out};
use crate::passes::simplify::{self, DUPLICATE, Limits, tidy};

/// How often the graph is folded: a stored extent may tell the shape of a value behind it.
const ROUNDS: usize = 4;

/// The operator sets whose operators constant folding knows.
const OPSETS: std::ops::RangeInclusive<i64> = 7..=28;

/// The model with operators that tract lacks written out, by the extents of `inputs`; `None` if it has none.
pub(super) fn with_definitions(model: &Model, inputs: &[Input]) -> Option<Model> {
    if !has_some(model, LACKING) {
        return None;
    }
    let mut fixed = model.clone();
    fix_shapes(fixed.graph_mut(), inputs);
    written_out(&fixed, LACKING)
}

/// The model with the extents of `inputs` and their shape arithmetic folded, and without operators
/// that tract does not always prepare; `None` if nothing changes.
pub(super) fn specialised(model: &Model, inputs: &[Input]) -> Option<Model> {
    if !OPSETS.contains(&model.own_opset()) || hidden(model.graph()).is_some() {
        return None;
    }
    let mut fixed = model.clone();
    fix_shapes(fixed.graph_mut(), inputs);
    let folded = in_bodies_too(&fixed).or_else(|| folded(&fixed));
    let written = written_out(folded.as_ref().unwrap_or(&fixed), FAILING);
    written.or(folded)
}

/// Folds the main graph together with the bodies of If, Loop and Scan; `None` if they cannot be put back.
fn in_bodies_too(model: &Model) -> Option<Model> {
    let flat = Flat::new(model)?;
    let folded = folded(&flat.model)?;
    flat.restore(&folded).map(simplify::sorted)
}

/// The model after constant folding; `None` if it has nothing to fold.
fn folded(model: &Model) -> Option<Model> {
    let mut result: Option<Model> = None;
    for _ in 0..ROUNDS {
        let before = result.as_ref().unwrap_or(model);
        let analysis = Analysis::new(before).ok()?;
        let limits = Limits {
            sites: vec![],
            normalizers: Default::default(),
            recipe: &|_| None,
            stored: &|_| None,
            is_skipped: &|kind| kind == DUPLICATE,
            growth: f64::INFINITY,
        };
        let Some(graph) = tidy(&analysis, &limits).graph else {
            break;
        };
        result = Some(before.with_graph(graph));
    }
    result
}

#[cfg(all(test, feature = "tract"))]
mod tests {
    use super::*;
    use crate::onnx::proto::TensorProto;
    use crate::onnx::tensor::{DataType, make_i64};
    use crate::run::testing::{model, node, value, with_int};
    use crate::run::{Dims, Engine};
    use tract_onnx::prelude::tensor2;

    /// Adds to each element of `x` how many elements up to it are `counted` as 1: their places, or their values.
    fn counts(counted: &str) -> Model {
        let nodes = vec![
            node("Shape x -> extents"),
            node("Gather extents, second -> tokens"),
            node("Range zero, tokens, one -> range"),
            node("Expand range, extents -> places"),
            with_int(
                node("Cast x -> values"),
                "to",
                DataType::Int64.code().into(),
            ),
            node(&format!("Equal {counted}, one -> is_one")),
            with_int(
                node("Cast is_one -> ones"),
                "to",
                DataType::Int64.code().into(),
            ),
            node("CumSum ones, one -> sums"),
            with_int(
                node("Cast sums -> summed"),
                "to",
                DataType::Float.code().into(),
            ),
            node("Add summed, x -> y"),
        ];
        let constants =
            [("second", 1), ("zero", 0), ("one", 1)].map(|(name, number)| TensorProto {
                dims: vec![],
                ..make_i64(name, &[number])
            });
        model(
            vec![value("x", DataType::Float, &["batch", "tokens"])],
            constants.to_vec(),
            nodes,
            &["y"],
        )
    }

    fn operators(model: &Model) -> Vec<&str> {
        model
            .graph()
            .node
            .iter()
            .map(|node| node.op_type())
            .collect()
    }

    #[test]
    fn position_counts_become_a_constant() {
        let model = counts("places");
        let inputs = Input::from_model(&model, &Dims::default()).unwrap();
        // Nothing has read the Cast before.
        assert_eq!(
            operators(&specialised(&model, &inputs).unwrap()),
            ["Cast", "Add"]
        );
    }

    #[test]
    fn counts_of_input_values_stay() {
        let model = counts("values");
        let inputs = Input::from_model(&model, &Dims::default()).unwrap();
        let specialised = specialised(&model, &inputs);
        assert!(specialised.is_none_or(|model| operators(&model).contains(&"CumSum")));
    }

    #[test]
    fn engine_runs_cum_sum_over_a_computed_length() {
        let engine = Engine::load(&counts("places"), &"batch=2,tokens=4".parse().unwrap()).unwrap();
        let x = tensor2(&[[0_f32, 0.0, 0.0, 0.0], [10.0, 20.0, 30.0, 40.0]]);
        let y = tensor2(&[[0_f32, 1.0, 1.0, 1.0], [10.0, 21.0, 31.0, 41.0]]);
        assert_eq!(engine.run(&[x]).unwrap(), [y]);
    }
}
