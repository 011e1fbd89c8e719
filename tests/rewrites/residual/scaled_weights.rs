//! Residual streams scaled by a power of two in networks whose weights are quantized or selected.

use unfold::Fused;
use unfold::onnx::proto::TensorProto;
use unfold::onnx::tensor::read_f64;
use unfold::onnx::{DataType, Externals, Model};
use unfold::verify::{Verdict, compare};

use super::scaling::{muls, scale_streams, streams};
use crate::common::text::{model, print};
use crate::common::{initializer, is_proved_or_listed, options};

/// The elements of a constant of a result.
fn numbers(fused: &Fused, name: &str) -> Vec<f64> {
    let tensor = initializer(&fused.model, name);
    let numbers = read_f64(tensor, &Externals::none()).unwrap();
    numbers.into_raw_vec_and_offset().0
}

/// Asserts that a result is proved and that its outputs in tract equal those of the folded model to
/// the last bit.
fn assert_equal(before: &Model, after: &Fused) {
    is_proved_or_listed(before, after)
        .unwrap_or_else(|why| panic!("{why}\n{}", print(&after.model)));
    let folded = unfold::fuse(before, &options()).unwrap().model;
    match compare(&folded, &after.model, &Default::default()) {
        Verdict::Compared(seen) => {
            let mut outputs = seen.outputs.iter();
            assert!(outputs.all(|output| output.absolute == 0.0), "{seen:?}");
        }
        other => panic!("{other:?}\n{}", print(&after.model)),
    }
}

/// The parts of an RMS normalization, each quantized, as a quantizer writes them that works
/// operator by operator.
#[test]
fn scales_of_quantized_parts_of_a_normalization_absorb_the_power() {
    let before = model(
        "opset 13
         input i 3 4
         weight w 4 4
         weight p 4 4
         const step = 0.125
         a = MatMul(i, w)
         aq = QuantizeLinear(a, step)
         ad = DequantizeLinear(aq, step)
         b = MatMul(i, p)
         bq = QuantizeLinear(b, step)
         bd = DequantizeLinear(bq, step)
         x = Add(ad, bd)
         const x_step = 0.25
         xq = QuantizeLinear(x, x_step)
         xd = DequantizeLinear(xq, x_step)
         const two = 2
         s = Pow(xd, two)
         m = ReduceMean(s) axes=[-1] keepdims=1
         const m_step = 0.5
         mq = QuantizeLinear(m, m_step)
         md = DequantizeLinear(mq, m_step)
         const eps = 0.25
         v = Add(md, eps)
         r = Sqrt(v)
         k = Reciprocal(r)
         const k_step = 0.03125
         kq = QuantizeLinear(k, k_step)
         kd = DequantizeLinear(kq, k_step)
         n = Mul(xd, kd)
         weight h 4 2
         z = MatMul(n, h)
         output z",
    );
    let after = scale_streams(&before, 3);
    assert_eq!(streams(&after), [None]);
    assert_equal(&before, &after);
    assert_eq!(muls(&after), muls_of(&before));
    // The quantized mean has no factor, so neither does its root, and the reader of the quotient
    // absorbs 2^3.
    assert_eq!(numbers(&after, "x_step_folded"), [0.25 / 8.0]);
    assert_eq!(numbers(&after, "m_step_folded"), [0.5 / 64.0]);
    let head = read_f64(initializer(&before, "h"), &Externals::none()).unwrap();
    let scaled: Vec<f64> = head.iter().map(|number| 8.0 * number).collect();
    assert_eq!(numbers(&after, "h_folded"), scaled);
}

fn muls_of(model: &Model) -> usize {
    let nodes = model.graph().node.iter();
    nodes.filter(|node| node.op_type() == "Mul").count()
}

/// A mixture of experts, in which weights are selected for each token.
#[test]
fn array_of_selected_weights_absorbs_the_power() {
    let text = |reader: &str| {
        format!(
            "opset 17
             input i 3 1 4
             indices e 3
             weight p 4 4
             x = MatMul(i, p)
             weight experts 5 4 4
             selected = Gather(experts, e) axis=0
             f = MatMul(i, selected)
             y = Add(x, f)
             const g 4 = 1 2 3 4
             n = SimplifiedLayerNormalization(y, g) axis=-1 epsilon=0.001
             weight h 4 2
             z = MatMul(n, h)
             output z
             {reader}"
        )
    };
    let before = model(&text(""));
    let after = scale_streams(&before, 3);
    assert_eq!(streams(&after), [None]);
    assert_equal(&before, &after);
    assert_eq!(muls(&after), 0);
    let experts = initializer(&before, "experts");
    let experts = read_f64(experts, before.externals()).unwrap();
    let scaled: Vec<f64> = experts.iter().map(|number| number / 8.0).collect();
    assert_eq!(numbers(&after, "experts_folded"), scaled);

    // Another reader needs the weights without the factor.
    let before = model(&text("output selected"));
    let after = scale_streams(&before, 3);
    assert_eq!(streams(&after), [None]);
    assert_equal(&before, &after);
    assert_eq!(muls(&after), 1);
}

/// A block of a transformer whose weights and table are quantized.
#[test]
fn scales_of_quantized_writers_and_readers_absorb_the_power() {
    let mut before = model(
        "opset 21
         indices i 3
         const table_step 5 = 1 2 3 4 5
         table = DequantizeLinear(table_codes, table_step) axis=0
         x = Gather(table, i)
         const g 4 = 1 2 3 4
         n = SimplifiedLayerNormalization(x, g) axis=-1 epsilon=0.001
         const up_step 6 = 1 2 3 4 5 6
         up = DequantizeLinear(up_codes, up_step) axis=1
         h = MatMul(n, up)
         r = Relu(h)
         const down_step = 0.5
         down = DequantizeLinear(down_codes, down_step)
         w = MatMul(r, down)
         y = Add(x, w)
         const head_step 2 = 1 2
         head = DequantizeLinear(head_codes, head_step) axis=1
         z = MatMul(y, head)
         output z",
    );
    for (name, rows, columns) in [
        ("table", 5, 4),
        ("up", 4, 6),
        ("down", 6, 4),
        ("head", 4, 2),
    ] {
        before.graph_mut().initializer.push(TensorProto {
            name: Some(format!("{name}_codes")),
            dims: vec![rows, columns],
            data_type: Some(DataType::Int8.code()),
            raw_data: Some((0..(rows * columns) as u8).collect()),
            ..Default::default()
        });
    }
    let after = scale_streams(&before, 3);
    is_proved_or_listed(&before, &after).unwrap();
    assert_eq!(streams(&after), [None]);
    assert_eq!(muls(&after), 0);
    let number =
        |name: &str| read_f64(initializer(&after.model, name), &Externals::none()).unwrap();
    assert_eq!(number("table_step_folded")[[1]], 0.25);
    assert_eq!(number("down_step_folded").sum(), 0.0625);
    assert_eq!(number("head_step_folded")[[1]], 16.0);
}
