//! Operators that tract lacks, reads otherwise, or does not always prepare, written out in operators that it has.
//!
//! A file has one operator: what it computes, and the operators in its place. The engine alone runs the result; the model that
//! is written keeps its operators. Each definition reads every attribute and input of its node, or leaves the node as it is.
//!
//! Before: `y = com.microsoft.FusedMatMul(a, b) transB=1 alpha=0.5`; after: `t = Transpose(b)`, `p = MatMul(a, t)`,
//! `y = Mul(p, 0.5)`.

mod activation;
mod attention;
mod causal_convolution;
mod fused_convolution;
mod fused_gemm;
mod fused_matmul;
mod gather_nd;
mod linear_attention;
mod strided_slice;
mod swiglu;
mod writer;

use writer::Writer;

use crate::analysis::Analysis;
use crate::hash::HashSet;
use crate::ir::builder::NewConstant;
use crate::onnx::Model;
use crate::onnx::proto::{NodeProto, TensorProto};
use crate::onnx::tensor;

/// Definitions of several operators.
pub(crate) type Definitions = &'static [Definition];

/// How an operator is written in others.
pub(crate) struct Definition {
    /// The domain and the name.
    operator: (&'static str, &'static str),
    /// The attributes that the definition reads.
    attributes: &'static [&'static str],
    /// How many inputs it reads at most.
    inputs: usize,
    /// Writes a node out; `None` where the definition does not know all that it needs.
    write: fn(&mut Writer) -> Option<()>,
}

/// Operators that tract lacks, or reads as others of their name.
pub(crate) const LACKING: Definitions = &[
    attention::DEFINITION,
    causal_convolution::DEFINITION,
    fused_convolution::DEFINITION,
    fused_gemm::DEFINITION,
    fused_matmul::DEFINITION,
    linear_attention::DEFINITION,
    swiglu::DEFINITION,
];

/// Operators that tract has, for models that it cannot prepare with them.
pub(crate) const FAILING: Definitions = &[gather_nd::DEFINITION, strided_slice::DEFINITION];

/// How often the graph is looked at: an operator behind another one may need its extents.
const ROUNDS: usize = 8;

/// The model with every operator that has one of these definitions written out; `None` where it has none. Extents of inputs are
/// numbers.
pub(crate) fn written_out(model: &Model, definitions: Definitions) -> Option<Model> {
    let mut result: Option<Model> = None;
    for _ in 0..ROUNDS {
        let Some(next) = written_once(result.as_ref().unwrap_or(model), definitions) else {
            break;
        };
        result = Some(next);
    }
    result
}

/// Whether a model has an operator that has one of these definitions.
pub(crate) fn has_some(model: &Model, definitions: Definitions) -> bool {
    let has_definition = |node: &NodeProto| definition(node, definitions).is_some();
    model.proto.functions.is_empty() && model.graph().node.iter().any(has_definition)
}

fn written_once(model: &Model, definitions: Definitions) -> Option<Model> {
    if !has_some(model, definitions) {
        return None;
    }
    let analysis = Analysis::new(model).ok()?;
    let graph = &analysis.graph;
    let (mut nodes, mut constants): (Vec<NodeProto>, Vec<TensorProto>) = (vec![], vec![]);
    let mut names: HashSet<String> = HashSet::default();
    let mut is_changed = false;
    for &id in graph.order() {
        let defined = definition(graph.node(id), definitions);
        let written =
            defined.and_then(|definition| written(definition, Writer::new(analysis.at(id), graph)));
        // Of two nodes of one name the second is written in the next round.
        match written
            .filter(|(made, _)| made.iter().all(|node| names.insert(node.name().to_owned())))
        {
            Some((made, new)) => {
                is_changed = true;
                nodes.extend(made);
                constants.extend(new.iter().filter_map(stored));
            }
            None => nodes.push(graph.node(id).clone()),
        }
    }
    is_changed.then(|| model.with_nodes(nodes, constants))
}

/// The nodes in the place of one, and the constants that they read.
fn written(
    definition: &Definition,
    mut writer: Writer,
) -> Option<(Vec<NodeProto>, Vec<NewConstant>)> {
    (definition.write)(&mut writer)?;
    Some(writer.maker.done())
}

/// The definition of an operator, if it has one and the node has nothing that it does not read.
fn definition(node: &NodeProto, definitions: Definitions) -> Option<&'static Definition> {
    let definition = definitions
        .iter()
        .find(|definition| definition.operator == node.op())?;
    let is_read = |name: &str| definition.attributes.contains(&name);
    let is_known = node
        .attribute
        .iter()
        .all(|attribute| is_read(attribute.name()));
    (is_known && node.input.len() <= definition.inputs).then_some(definition)
}

/// A list of integers as a stored tensor. Definitions make floats as Constant nodes.
fn stored(constant: &NewConstant) -> Option<TensorProto> {
    match constant {
        NewConstant::Integers { name, values } => Some(tensor::make_i64(name, values)),
        NewConstant::Floats { .. } | NewConstant::Weight { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::builder::{float, int, strings};
    use crate::onnx::proto::AttributeProto;
    use crate::onnx::tensor::DataType;
    use crate::run::testing::{model, node, value};
    use crate::run::{Dims, Engine, Tensor};
    use tract_onnx::prelude::{tensor1, tensor2, tensor3};

    fn text(name: &str, text: &str) -> AttributeProto {
        let list = strings(name, &[text.to_owned()]);
        AttributeProto {
            s: list.strings.into_iter().next(),
            r#type: Some(crate::onnx::proto::AttributeType::String.into()),
            name: list.name,
            ..AttributeProto::default()
        }
    }

    /// A model of one operator of a domain, for inputs of these shapes, and its outputs.
    fn one(
        domain: &str,
        line: &str,
        attribute: Vec<AttributeProto>,
        shapes: &[(&str, &[&str])],
    ) -> Model {
        let mut operator = NodeProto {
            attribute,
            ..node(line)
        };
        operator.domain = Some(domain.into());
        let inputs = shapes
            .iter()
            .map(|(name, shape)| value(name, DataType::Float, shape))
            .collect();
        let outputs = operator.output.clone();
        let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
        model(inputs, vec![], vec![operator], &outputs)
    }

    fn run(model: &Model, inputs: &[Tensor]) -> Vec<Tensor> {
        Engine::load(model, &Dims::default())
            .unwrap()
            .run(inputs)
            .unwrap()
    }

    fn assert_close(actual: &Tensor, expected: &Tensor) {
        actual.close_enough(expected, true).unwrap();
    }

    #[test]
    fn a_fused_product_is_transposed_and_scaled() {
        let shapes = [("a", &["2", "2"][..]), ("b", &["2", "2"])];
        let inputs = [
            tensor2(&[[1_f32, 2.0], [3.0, 4.0]]),
            tensor2(&[[5_f32, 6.0], [7.0, 8.0]]),
        ];
        let product = |attributes| {
            one(
                "com.microsoft",
                "FusedMatMul a, b -> y",
                attributes,
                &shapes,
            )
        };
        let y = run(
            &product(vec![int("transB", 1), float("alpha", 0.5)]),
            &inputs,
        );
        assert_close(&y[0], &tensor2(&[[8.5_f32, 11.5], [19.5, 26.5]]));
        let y = run(&product(vec![int("transA", 1)]), &inputs);
        assert_close(&y[0], &tensor2(&[[26_f32, 30.0], [38.0, 44.0]]));
        assert!(written_out(&product(vec![int("transBatchA", 1)]), LACKING).is_none());
        assert!(written_out(&product(vec![int("unknown", 1)]), LACKING).is_none());
    }

    #[test]
    fn a_fused_gemm_ends_in_its_activation() {
        let shapes = [("a", &["1", "2"][..]), ("b", &["2", "2"])];
        let inputs = [
            tensor2(&[[1_f32, -1.0]]),
            tensor2(&[[1_f32, 5.0], [3.0, 2.0]]),
        ];
        let gemm = |name: &str, slope| {
            let attributes = vec![
                text("activation", name),
                float("activation_alpha", slope),
                float("alpha", 2.0),
            ];
            one("com.microsoft", "FusedGemm a, b -> y", attributes, &shapes)
        };
        assert_close(
            &run(&gemm("LeakyRelu", 0.25), &inputs)[0],
            &tensor2(&[[-1_f32, 6.0]]),
        );
        assert_close(
            &run(&gemm("Relu", 0.25), &inputs)[0],
            &tensor2(&[[0_f32, 6.0]]),
        );
        assert!(written_out(&gemm("Softplus", 0.25), LACKING).is_none());
    }

    #[test]
    fn a_fused_convolution_adds_before_its_activation() {
        let shapes = [
            ("x", &["1", "1", "3"][..]),
            ("w", &["1", "1", "2"]),
            ("b", &["1"]),
            ("z", &["1", "1", "2"]),
        ];
        let attributes = vec![text("activation", "Relu")];
        let model = one(
            "com.microsoft",
            "FusedConv x, w, b, z -> y",
            attributes,
            &shapes,
        );
        let inputs = [
            tensor3(&[[[1_f32, 2.0, 4.0]]]),
            tensor3(&[[[1_f32, -1.0]]]),
            tensor1(&[0.5_f32]),
            tensor3(&[[[3_f32, 1.0]]]),
        ];
        assert_close(&run(&model, &inputs)[0], &tensor3(&[[[2.5_f32, 0.0]]]));
    }

    #[test]
    fn a_gated_unit_is_a_product_with_a_swish() {
        let shapes = [("a", &["2"][..]), ("b", &["2"])];
        let model = one("", "SwiGLU a, b -> y", vec![float("alpha", 2.0)], &shapes);
        let y = run(&model, &[tensor1(&[1_f32, -0.5]), tensor1(&[3_f32, 4.0])]);
        let swish = |a: f32| a / (1.0 + (-2.0 * a).exp());
        assert_close(&y[0], &tensor1(&[3.0 * swish(1.0), 4.0 * swish(-0.5)]));
    }

    #[test]
    fn a_causal_convolution_reads_what_came_before() {
        let shapes = [
            ("x", &["1", "2", "3"][..]),
            ("w", &["2", "1", "2"]),
            ("past", &["1", "2", "1"]),
        ];
        let mut model = one(
            "",
            "CausalConvWithState x, w, , past -> y, present",
            vec![],
            &shapes,
        );
        let inputs = [
            tensor3(&[[[1_f32, 2.0, 3.0], [4.0, 5.0, 6.0]]]),
            tensor3(&[[[1_f32, 10.0]], [[2.0, 1.0]]]),
            tensor3(&[[[7_f32], [8.0]]]),
        ];
        let outputs = run(&model, &inputs);
        assert_close(
            &outputs[0],
            &tensor3(&[[[17_f32, 21.0, 32.0], [20.0, 13.0, 16.0]]]),
        );
        assert_close(&outputs[1], &tensor3(&[[[3_f32], [6.0]]]));
        model.graph_mut().input.truncate(2);
        model.graph_mut().node[0].input.truncate(2);
        let outputs = run(&model, &inputs[..2]);
        assert_close(
            &outputs[0],
            &tensor3(&[[[10_f32, 21.0, 32.0], [4.0, 13.0, 16.0]]]),
        );
    }

    /// Two tokens, one head of keys for two of queries, by the recurrence of the operator in plain numbers.
    fn attended(rule: &str, past: Option<[[f32; 2]; 2]>, tokens: [[f32; 9]; 2]) -> Vec<f32> {
        let mut state = past.unwrap_or_default();
        let mut outputs = vec![];
        for [q0, q1, q2, q3, k0, k1, v0, v1, gate] in tokens {
            let (keys, mut values) = ([k0, k1], [v0, v1]);
            if rule.starts_with("gated") {
                state
                    .iter_mut()
                    .flatten()
                    .for_each(|number| *number *= gate.exp());
            }
            if rule.ends_with("delta") {
                for (column, value) in values.iter_mut().enumerate() {
                    *value -= keys[0] * state[0][column] + keys[1] * state[1][column];
                    *value *= 0.5;
                }
            }
            for (row, key) in keys.into_iter().enumerate() {
                state[row][0] += key * values[0];
                state[row][1] += key * values[1];
            }
            for query in [[q0, q1], [q2, q3]] {
                let read = |column: usize| {
                    (query[0] * state[0][column] + query[1] * state[1][column]) * 0.25
                };
                outputs.extend([read(0), read(1)]);
            }
        }
        outputs
    }

    #[test]
    fn linear_attention_is_its_recurrence() {
        let tokens = [
            [1.0, 2.0, -1.0, 0.5, 0.6, 0.8, 3.0, -2.0, -0.1],
            [0.5, -1.0, 2.0, 1.0, -0.8, 0.6, 1.0, 4.0, -0.7],
        ];
        let part = |columns: std::ops::Range<usize>| {
            let rows: Vec<f32> = tokens
                .iter()
                .flat_map(|token| token[columns.clone()].to_vec())
                .collect();
            Tensor::from_shape(&[1, 2, columns.len()], &rows).unwrap()
        };
        let past = [[0.5, -0.5], [1.0, 2.0]];
        let state = Tensor::from_shape(&[1, 1, 2, 2], past.as_flattened()).unwrap();
        let rate = Tensor::from_shape(&[1, 2, 1], &[0.5_f32, 0.5]).unwrap();
        for (rule, line) in [
            ("linear", "LinearAttention q, k, v, past -> y, present"),
            ("gated", "LinearAttention q, k, v, past, g -> y, present"),
            ("delta", "LinearAttention q, k, v, past, , b -> y, present"),
            (
                "gated_delta",
                "LinearAttention q, k, v, past, g, b -> y, present",
            ),
        ] {
            for given in [Some(past), None] {
                let attributes = vec![
                    int("q_num_heads", 2),
                    int("kv_num_heads", 1),
                    float("scale", 0.25),
                    text("update_rule", rule),
                ];
                let mut shapes = vec![
                    ("q", &["1", "2", "4"][..]),
                    ("k", &["1", "2", "2"]),
                    ("v", &["1", "2", "2"]),
                ];
                let mut inputs = vec![part(0..4), part(4..6), part(6..8)];
                let line = if given.is_none() {
                    line.replace("past", "")
                } else {
                    line.to_owned()
                };
                if given.is_some() {
                    shapes.push(("past", &["1", "1", "2", "2"]));
                    inputs.push(state.clone());
                }
                if rule.starts_with("gated") {
                    shapes.push(("g", &["1", "2", "1"]));
                    inputs.push(part(8..9));
                }
                if rule.ends_with("delta") {
                    shapes.push(("b", &["1", "2", "1"]));
                    inputs.push(rate.clone());
                }
                let outputs = run(&one("", &line, attributes, &shapes), &inputs);
                let expected = attended(rule, given, tokens);
                assert_close(
                    &outputs[0],
                    &Tensor::from_shape(&[1, 2, 4], &expected).unwrap(),
                );
                assert_eq!(outputs[1].shape(), [1, 1, 2, 2]);
            }
        }
    }

    #[test]
    fn attention_of_onnxruntime_hides_what_its_mask_hides() {
        let shapes = [("x", &["1", "2", "2"][..]), ("w", &["2", "6"])];
        let attributes = vec![int("num_heads", 1)];
        let mut model = one(
            "com.microsoft",
            "Attention x, w, , mask -> y",
            attributes,
            &shapes,
        );
        model
            .graph_mut()
            .input
            .push(value("mask", DataType::Int32, &["1", "2"]));
        let weights = [
            [1_f32, 0.0, 1.0, 0.0, 2.0, 0.0],
            [0.0, 1.0, 0.0, 1.0, 0.0, 3.0],
        ];
        let inputs = |mask: [i32; 2]| {
            [
                tensor3(&[[[1_f32, 0.0], [0.0, 2.0]]]),
                tensor2(&weights),
                tensor2(&[mask]),
            ]
        };
        // Behind the mask, each token reads the first value alone.
        assert_close(
            &run(&model, &inputs([1, 0]))[0],
            &tensor3(&[[[2_f32, 0.0], [2.0, 0.0]]]),
        );
        let share = |one: f32, other: f32| {
            let (one, other) = ((one / 2_f32.sqrt()).exp(), (other / 2_f32.sqrt()).exp());
            (one / (one + other), other / (one + other))
        };
        let ((a, b), (c, d)) = (share(1.0, 0.0), share(0.0, 4.0));
        let expected = tensor3(&[[[2.0 * a, 6.0 * b], [2.0 * c, 6.0 * d]]]);
        assert_close(&run(&model, &inputs([1, 1]))[0], &expected);
        model.graph_mut().node[0]
            .attribute
            .push(int("unidirectional", 1));
        assert!(written_out(&model, LACKING).is_none());
    }

    /// `y` of `x`, by one operator that reads lists of integers.
    fn listed(line: &str, shape: &[&str], lists: &[(&str, &[i64], &[i64])]) -> Model {
        let constants = lists.iter().map(|(name, dims, list)| TensorProto {
            dims: dims.to_vec(),
            ..tensor::make_i64(name, list)
        });
        model(
            vec![value("x", DataType::Float, shape)],
            constants.collect(),
            vec![node(line)],
            &["y"],
        )
    }

    #[test]
    fn an_index_that_counts_from_the_end_counts_from_0() {
        let picked = |index: i64| {
            listed(
                "GatherND x, i -> y",
                &["3", "2"],
                &[("i", &[2, 1], &[index, 0])],
            )
        };
        assert!(written_out(&picked(1), FAILING).is_none());
        assert!(written_out(&picked(-4), FAILING).is_none());
        let x = tensor2(&[[1_f32, 2.0], [3.0, 4.0], [5.0, 6.0]]);
        let y = run(&written_out(&picked(-1), FAILING).unwrap(), &[x]);
        assert_close(&y[0], &tensor2(&[[5_f32, 6.0], [1.0, 2.0]]));
    }

    #[test]
    fn a_slice_with_steps_is_a_gather() {
        let sliced = |step: i64| {
            let lists: [(&str, &[i64], &[i64]); 4] = [
                ("s", &[2], &[0, 1]),
                ("e", &[2], &[9, 9]),
                ("a", &[2], &[0, -1]),
                ("t", &[2], &[step, 1]),
            ];
            listed("Slice x, s, e, a, t -> y", &["3", "2"], &lists)
        };
        assert!(written_out(&sliced(1), FAILING).is_none());
        let written = written_out(&sliced(2), FAILING).unwrap();
        assert!(
            written
                .graph()
                .node
                .iter()
                .all(|node| node.op_type() != "Slice")
        );
        let y = run(
            &written,
            &[tensor2(&[[1_f32, 2.0], [3.0, 4.0], [5.0, 6.0]])],
        );
        assert_close(&y[0], &tensor2(&[[2_f32], [6.0]]));
    }
}
