//! Specializes a model to the sizes of one run, by folding its shape arithmetic.
//!
//! Exporters compute positions and masks from the extents of the inputs with Shape, Range, CumSum
//! and GatherND. tract represents extents as symbolic formulas, and refuses such operators because
//! they need numbers. If all extents of the inputs are known, positions and masks are constants,
//! which constant folding computes and stores.
//!
//! Only values that do not depend on elements of the inputs are folded. All other operators stay.

use super::input::{Input, fix_shapes};
use crate::analysis::Analysis;
use crate::ir::regions::Flat;
use crate::onnx::Model;
use crate::onnx::proto::GraphProto;
use crate::onnx::shadowed_names::hidden;
use crate::ops::definitions::{FAILING, LACKING, has_some, written_out};
use crate::passes::simplify::{self, ConstantOrigins, fold_constants};

/// The maximum number of folding passes. Several passes are needed if an extent that one pass
/// computes determines the shape of a later value.
const ROUNDS: usize = 8;

/// The operator sets that constant folding supports.
const OPSETS: std::ops::RangeInclusive<i64> = 7..=28;

/// Replaces operators that tract lacks by their definitions, given the extents of `inputs`; `None`
/// if the model has no such operators.
pub(super) fn with_definitions(model: &Model, inputs: &[Input]) -> Option<Model> {
    if !has_some(model, LACKING) {
        return None;
    }
    let mut fixed = model.clone();
    fix_shapes(fixed.graph_mut(), inputs);
    written_out(&fixed, LACKING)
}

/// Fixes the extents of `inputs`, folds the shape arithmetic, and replaces operators that tract
/// cannot always prepare; `None` if nothing changes, if the operator set is not in [`OPSETS`], or
/// if a constant of a body has the name of a value outside of it.
pub(super) fn specialized(model: &Model, inputs: &[Input]) -> Option<Model> {
    if !OPSETS.contains(&model.own_opset()) || hidden(model.graph()).is_some() {
        return None;
    }
    let mut fixed = model.clone();
    fix_shapes(fixed.graph_mut(), inputs);
    let folded = in_bodies_too(&fixed).or_else(|| folded(&fixed));
    let written = written_out(folded.as_ref().unwrap_or(&fixed), FAILING);
    written.or(folded)
}

/// Folds the main graph together with the bodies of If, Loop and Scan; `None` if the model has no
/// bodies, if nothing folds, or if the bodies cannot be restored.
fn in_bodies_too(model: &Model) -> Option<Model> {
    let flat = Flat::new(model)?;
    let folded = folded(&flat.model)?;
    flat.restore(&folded).map(simplify::sorted)
}

/// Folds the constants of a model; `None` if nothing folds.
fn folded(model: &Model) -> Option<Model> {
    let mut result: Option<Model> = None;
    for _ in 0..ROUNDS {
        let before = result.as_ref().unwrap_or(model);
        let Some(graph) = folded_graph(before) else {
            break;
        };
        result = Some(before.with_graph(graph));
    }
    result
}

/// Replaces each If with a constant condition by its branch, or folds constants if there is no such
/// If. Returns the graph; `None` if nothing folds.
fn folded_graph(model: &Model) -> Option<GraphProto> {
    let analysis = Analysis::new(model).ok()?;
    let simplified = simplify::fold_branches(&analysis).or_else(|| {
        fold_constants(&analysis, &[], &ConstantOrigins::default(), f64::INFINITY).simplified
    });
    Some(simplified?.graph)
}

#[cfg(all(test, feature = "tract"))]
mod tests {
    use super::*;
    use crate::onnx::proto::TensorProto;
    use crate::onnx::tensor::{DataType, make_i64};
    use crate::run::testing::{model, node, value, with_int};
    use crate::run::{Dims, Engine};
    use tract_onnx::prelude::tensor2;

    /// A model that adds a CumSum to `x`. The CumSum counts how many elements of `counted`, which
    /// is `places` or `values`, are 1 up to each place.
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
        // The Cast stays: it has no reader in the original, so folding did not make it unused.
        assert_eq!(
            operators(&specialized(&model, &inputs).unwrap()),
            ["Cast", "Add"]
        );
    }

    #[test]
    fn counts_of_input_values_stay() {
        let model = counts("values");
        let inputs = Input::from_model(&model, &Dims::default()).unwrap();
        let specialized = specialized(&model, &inputs);
        assert!(specialized.is_none_or(|model| operators(&model).contains(&"CumSum")));
    }

    #[test]
    fn engine_runs_cum_sum_over_a_computed_length() {
        let engine = Engine::load(&counts("places"), &"batch=2,tokens=4".parse().unwrap()).unwrap();
        let x = tensor2(&[[0_f32, 0.0, 0.0, 0.0], [10.0, 20.0, 30.0, 40.0]]);
        let y = tensor2(&[[0_f32, 1.0, 1.0, 1.0], [10.0, 21.0, 31.0, 41.0]]);
        assert_eq!(engine.run(&[x]).unwrap(), [y]);
    }
}
