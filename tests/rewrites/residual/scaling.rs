//! Residual streams scaled by a power of two: results are equal to the last bit, and float16 stays
//! finite, with twins in which the stream stays.
//! refuse.

use tract_onnx::prelude::Tensor;
use unfold::StreamMagnitude;
use unfold::onnx::{DataType, Model};
use unfold::plan::Scaling;
use unfold::refusal::Reason;
use unfold::run::{Dims, Engine, random};
use unfold::verify::{Verdict, compare};
use unfold::{FuseOptions, Fused};

use crate::common::numbers::Kind;
use crate::common::text::{model, print};
use crate::common::{
    check_new_tensors, is_proved_or_listed, judge, node, operators, options, retype, undeclared,
};

/// The result of scaling the streams of a model. Asserts that it equals the folded model to the
/// last bit, in float64 and in tract.
fn scaled(model: &Model, power: u32) -> Fused {
    let scaled = scale_streams(model, power);
    is_proved_or_listed(model, &scaled)
        .unwrap_or_else(|why| panic!("{why}\n{}", print(&scaled.model)));
    let folded = unfold::fuse(model, &options()).unwrap().model;
    for kind in [Kind::Exact, Kind::Real] {
        for (open, truth) in [(1, true), (3, false)] {
            let inputs = judge::inputs(model, open, truth, kind);
            let agree = judge::agree(&folded, &scaled.model, &inputs, 0.0);
            assert_eq!(agree, Ok(true), "{}", print(&scaled.model));
        }
    }
    match compare(&folded, &scaled.model, &Default::default()) {
        Verdict::Compared(seen) => {
            assert!(
                seen.outputs
                    .iter()
                    .all(|output| output.absolute == 0.0 && output.mismatched == 0),
                "{seen:?}"
            );
        }
        other => panic!("{other:?}\n{}", print(&scaled.model)),
    }
    scaled
}

pub(super) fn scale_streams(model: &Model, power: u32) -> Fused {
    let options = FuseOptions {
        scale_stream: Some(power),
        ..options()
    };
    let scaled = unfold::fuse(model, &options).unwrap();
    check_new_tensors(model, &scaled)
        .unwrap_or_else(|why| panic!("{why}\n{}", print(&scaled.model)));
    scaled
}

/// For each stream, the reason why it stays, or `None` if it is scaled.
pub(super) fn streams(fused: &Fused) -> Vec<Option<Reason>> {
    let reason = |scaling: &Scaling| match scaling {
        Scaling::Kept { why } => Some(why.reason.clone()),
        Scaling::Scaled { .. } => None,
    };
    fused
        .plan
        .streams
        .iter()
        .map(|stream| reason(stream.scaling.as_ref().unwrap()))
        .collect()
}

pub(super) fn muls(fused: &Fused) -> usize {
    operators(&fused.model)
        .iter()
        .filter(|&&op| op == "Mul")
        .count()
}

/// A normalizer of a value with four channels, in every form.
const SPELLINGS: [&str; 6] = [
    "n = LayerNormalization(x, g, t) axis=-1 epsilon=0.001",
    "n = LayerNormalization(x, g) axis=-1",
    "n = SimplifiedLayerNormalization(x, g) axis=-1 epsilon=0.001",
    "p = Pow(x, two)
     m = ReduceMean(p) axes=[-1] keepdims=1
     v = Add(m, eps)
     s = Sqrt(v)
     q = Div(x, s)
     n = Mul(q, g)",
    "p = Mul(x, x)
     m = ReduceMean(p) axes=[-1] keepdims=1
     v = Add(eps, m)
     s = Sqrt(v)
     r = Reciprocal(s)
     q = Mul(x, r)
     n = Mul(g, q)",
    "u = ReduceMean(x) axes=[-1] keepdims=1
     c = Sub(x, u)
     p = Pow(c, two)
     m = ReduceMean(p) axes=[-1] keepdims=1
     v = Add(m, eps)
     s = Sqrt(v)
     q = Div(c, s)
     k = Mul(q, g)
     n = Add(k, t)",
];

/// Blocks that each add a function of the normalized stream to the stream.
fn blocks(stem: &str, normalizer: &str, blocks: usize, end: &str) -> Model {
    let renamed = |text: &str, place: usize| {
        let name = |word: &str| match word.trim_end_matches([',', ')']) {
            "x" => word.replace('x', &format!("x{place}")),
            name @ ("n" | "p" | "m" | "v" | "s" | "q" | "r" | "u" | "c" | "k") => {
                word.replace(name, &format!("{name}{place}"))
            }
            _ => word.to_owned(),
        };
        let line = |line: &str| {
            let (made, call) = line.trim().split_once(" = ").unwrap();
            let (op, rest) = call.split_once('(').unwrap();
            let (inputs, attributes) = rest.split_once(')').unwrap();
            let inputs: Vec<String> = inputs.split(", ").map(name).collect();
            format!("{} = {op}({}){attributes}", name(made), inputs.join(", "))
        };
        text.lines().map(line).collect::<Vec<_>>().join("\n")
    };
    let block = |place: usize| {
        let next = place + 1;
        format!(
            "{}
             weight a{place} 4 6
             shift b{place} 6
             weight o{place} 6 4
             shift d{place} 4
             h{place} = MatMul(n{place}, a{place})
             i{place} = Add(h{place}, b{place})
             f{place} = Relu(i{place})
             w{place} = MatMul(f{place}, o{place})
             y{place} = Add(w{place}, d{place})
             x{next} = Add(x{place}, y{place})",
            renamed(normalizer, place)
        )
    };
    let all: Vec<String> = (0..blocks).map(block).collect();
    model(&format!(
        "{stem}
         const g 4 = 1 0.75 3 -2
         const t 4 = 0.5 1 -1 0.25
         const eps = 0.001
         const two = 2
         {}
         {end}",
        all.join("\n")
    ))
}

const TABLE: &str = "indices i batch 3\n weight table 5 4\n x0 = Gather(table, i)";

/// The last normalizer and a head.
fn head(place: usize) -> String {
    format!(
        "z = LayerNormalization(x{place}, g, t) axis=-1
         weight head 4 3
         o = MatMul(z, head)
         output o"
    )
}

#[test]
fn scaling_a_stream_adds_no_operator_for_any_norm_spelling() {
    for spelling in SPELLINGS {
        let before = blocks(TABLE, spelling, 2, &head(2));
        let folded = unfold::fuse(&before, &options()).unwrap().model;
        for power in [1, 6, 13] {
            let after = scaled(&before, power);
            assert_eq!(streams(&after), [None], "{spelling}");
            assert_eq!(
                operators(&after.model),
                operators(&folded),
                "{}",
                print(&after.model)
            );
        }
    }
}

/// The blocks with biases that overflow float16 in the stream, and with normalizers in float32, as
/// in T5 and Gemma.
fn inflated(normalizer: &str) -> Model {
    let large = "const d{} 4 = 30000 -45000 8000 60000";
    let end = "z = Cast(x4) to=1
         y = LayerNormalization(z, wide) axis=-1
         const wide 4 = 1 1 1 1
         weight head 4 3
         c = Cast(y) to=10
         o = MatMul(c, head)
         output o";
    let mut model = blocks(TABLE, normalizer, 4, end);
    for place in 0..4 {
        let numbers = crate::common::text::model(&large.replace("{}", &place.to_string()));
        let bias = numbers.graph().initializer[0].clone();
        initializer_mut(&mut model, bias.name()).clone_from(&bias);
    }
    model
}

fn initializer_mut<'m>(
    model: &'m mut Model,
    name: &str,
) -> &'m mut unfold::onnx::proto::TensorProto {
    model
        .graph_mut()
        .initializer
        .iter_mut()
        .find(|tensor| tensor.name() == name)
        .unwrap()
}

/// The model with all floats in float16 except those named in `but`.
fn halved(model: &Model, but: &[&str]) -> Model {
    let mut half = model.clone();
    let names: Vec<String> = half
        .graph()
        .initializer
        .iter()
        .map(|tensor| tensor.name().to_owned())
        .collect();
    let names: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| !but.contains(name))
        .collect();
    retype(&mut half, &names, DataType::Float16);
    half
}

/// The first output of a run in tract.
fn run(model: &Model) -> Vec<f32> {
    let engine = Engine::load(model, &Dims::default())
        .unwrap_or_else(|why| panic!("{why}\n{}", print(model)));
    let output = engine
        .run(&random(engine.inputs(), 0))
        .unwrap()
        .remove(0)
        .cast_to::<f32>()
        .unwrap()
        .into_owned();
    output
        .try_as_plain_ram()
        .unwrap()
        .as_slice::<f32>()
        .unwrap()
        .to_vec()
}

const IN_FLOAT32: &str = "p = Cast(x) to=1
     q = Mul(p, p)
     m = ReduceMean(q) axes=[-1] keepdims=1
     v = Add(m, eps)
     s = Sqrt(v)
     r = Div(p, s)
     k = Cast(r) to=10
     n = Mul(k, g)";

#[test]
fn scaling_makes_an_overflowing_float16_stream_finite() {
    let half = halved(&inflated(IN_FLOAT32), &["eps", "two", "wide"]);
    let mut wide = inflated(&IN_FLOAT32.replace("to=10", "to=1"));
    for node in &mut wide.graph_mut().node {
        if node.op_type() == "Cast" {
            node.attribute[0].i = Some(1);
        }
    }
    let exact = run(&wide);
    assert!(exact.iter().all(|number| number.is_finite()));
    assert!(run(&half).iter().any(|number| !number.is_finite()));
    let after = scale_streams(&half, 6);
    assert_eq!(streams(&after), [None]);
    let largest = exact
        .iter()
        .fold(0.0, |most: f32, number| most.max(number.abs()));
    for (near, exact) in run(&after.model).iter().zip(&exact) {
        assert!(
            (near - exact).abs() <= largest * 4.0 / 1024.0,
            "{near} {exact}"
        );
    }
    is_proved_or_listed(&half, &after).unwrap();
}

#[test]
fn scaling_is_refused_where_epsilon_underflows() {
    let half = halved(
        &blocks(
            TABLE,
            SPELLINGS[3],
            2,
            "weight head 4 3\n o = MatMul(x2, head)\n output o",
        ),
        &[],
    );
    // A thousandth times 4^-5 is not 0 in float16, but has fewer digits.
    for power in [5, 12] {
        let [Some(Reason::Underflow(figure))] = &streams(&scale_streams(&half, power))[..] else {
            panic!()
        };
        assert_eq!(*figure, format!("1.0e-3 times 2^-{} in float16", 2 * power));
    }
    assert_eq!(streams(&scale_streams(&half, 2)), [None]);
    // An ε in an attribute is used in float32.
    let native = halved(
        &blocks(
            TABLE,
            SPELLINGS[0],
            2,
            "weight head 4 3\n o = MatMul(x2, head)\n output o",
        ),
        &[],
    );
    assert_eq!(streams(&scale_streams(&native, 12)), [None]);
}

#[test]
fn output_of_a_scaled_stream_gets_one_mul() {
    let before = blocks(TABLE, SPELLINGS[0], 2, &(head(2) + "\n output x2"));
    assert_eq!(muls(&scaled(&before, 6)), 1);
    let between = blocks(
        TABLE,
        SPELLINGS[0],
        2,
        &(head(2) + "\n r = Tanh(x1)\n output x1 r"),
    );
    // The activation and the graph output share one Mul.
    assert_eq!(muls(&scaled(&between, 6)), 1);
}

#[test]
fn tied_embedding_of_a_scaled_stream_is_not_copied() {
    let head = "const one 4 = 1 1 1 1
         z = LayerNormalization(x2, one) axis=-1
         o = Gemm(z, table) transB=1
         output o";
    let before = blocks(&TABLE.replace("batch 3", "batch"), SPELLINGS[0], 2, head);
    let after = scaled(&before, 6);
    assert_eq!((streams(&after), muls(&after)), (vec![None], 1));
    // An encoder and a decoder read one table.
    let twice = "indices j batch 3
         second = Gather(table, j)\n a = LayerNormalization(second, g, t) axis=-1
         h = MatMul(a, a0)
         f = Relu(h)
         w = MatMul(f, o0)
         x = Add(second, w)
         z = LayerNormalization(x, g, t) axis=-1
         y = LayerNormalization(x2, g, t) axis=-1
         o = Add(y, z)
         output o";
    let after = scaled(&blocks(TABLE, SPELLINGS[0], 2, twice), 6);
    assert_eq!((streams(&after), muls(&after)), (vec![None, None], 0));
}

#[test]
fn nonlinear_readers_of_a_scaled_stream_get_a_mul() {
    let readers = |more: &str| blocks(TABLE, SPELLINGS[0], 2, &(head(2) + more));
    for (more, count) in [
        // Two readers of one value share a Mul.
        ("\n r = Tanh(x2)\n s = Sigmoid(x2)\n output r s", 1),
        // A positively homogeneous operator passes the factor on to a weight.
        (
            "\n r = Relu(x2)\n weight q 4 2\n s = MatMul(r, q)\n output s",
            0,
        ),
        ("\n weight q 4 2\n r = MatMul(x2, q)\n output r", 0),
        ("\n r = Mul(x2, x1)\n s = Tanh(r)\n output s", 2),
        ("\n r = Shape(x2)\n output r", 0),
    ] {
        let after = scaled(&readers(more), 5);
        assert_eq!(
            (streams(&after), muls(&after)),
            (vec![None], count),
            "{}",
            print(&after.model)
        );
    }
    // The writer has no constants.
    let stem = "input i batch 3 4\n x0 = Tanh(i)";
    assert_eq!(
        muls(&scaled(&blocks(stem, SPELLINGS[4], 2, &head(2)), 5)) - 4,
        1
    );
    let stem = "input x0 batch 3 4";
    assert_eq!(
        muls(&scaled(&blocks(stem, SPELLINGS[0], 2, &head(2)), 5)),
        1
    );
}

#[test]
fn stream_input_is_scaled_before_a_branch_that_reads_it() {
    let mut before = model("input x batch 4\n condition c");
    let part = |text: &str| model(text).proto.graph.unwrap();
    let branches = vec![
        (
            "then_branch",
            part(
                "p = Mul(x, x)
                 m = ReduceMean(p) axes=[-1] keepdims=1
                 s = Sqrt(m)
                 n = Div(x, s)
                 output n",
            )
            .into(),
        ),
        (
            "else_branch",
            part("const k 4 = 1 -2 0.5 3\n a = Add(x, k)\n output a").into(),
        ),
    ];
    before
        .graph_mut()
        .node
        .push(node("If", &["c"], &["r"], branches));
    before
        .graph_mut()
        .node
        .push(node("Add", &["x", "r"], &["y"], vec![]));
    before.graph_mut().output.push(undeclared("y"));
    let after = scaled(&before, 2);
    assert_eq!(streams(&after), [None]);
    let first = &after.model.graph().node[0];
    assert_eq!((first.op_type(), first.input[0].as_str()), ("Mul", "x"));
}

#[test]
fn bodies_read_the_unscaled_stream_or_refuse_scaling() {
    let around = blocks(TABLE, SPELLINGS[0], 2, &(head(2) + "\n weight back 3 4"));
    let part = |text: &str| model(text).proto.graph.unwrap();
    let mut before = around;
    before
        .graph_mut()
        .input
        .extend(model("condition c").graph().input.clone());
    let branches = vec![
        ("then_branch", part("y = Tanh(x2)\n output y").into()),
        ("else_branch", part("y = MatMul(o, back)\n output y").into()),
    ];
    before
        .graph_mut()
        .node
        .push(node("If", &["c"], &["r"], branches));
    before.graph_mut().output.push(undeclared("r"));
    let after = scaled(&before, 6);
    assert_eq!(streams(&after), [None]);
    // Bodies of operators other than If, Loop and Scan are not analyzed.
    let mut before = blocks(TABLE, SPELLINGS[0], 2, &(head(2) + "\n output y"));
    let mut body = part("input e 1\n inner = Add(e, x2)\n output inner");
    body.input = vec![undeclared("e")];
    before.graph_mut().input.push(undeclared("list"));
    before.graph_mut().node.push(node(
        "SequenceMap",
        &["list"],
        &["y"],
        vec![("body", body.into())],
    ));
    assert_eq!(
        streams(&scale_streams(&before, 6)),
        [Some(Reason::CapturedBySubgraph)]
    );
}

#[test]
fn post_norm_streams_are_scaled_separately() {
    // Each normalizer reads one stream and writes the next.
    let block = |place: usize| {
        let next = place + 1;
        format!(
            "weight a{place} 4 4
             h{place} = MatMul(x{place}, a{place})
             weight o{place} 4 4
             f{place} = Relu(h{place})
             w{place} = MatMul(f{place}, o{place})
             s{place} = Add(x{place}, w{place})
             x{next} = LayerNormalization(s{place}, g, t) axis=-1"
        )
    };
    let before = model(&format!(
        "{TABLE}\n const g 4 = 1 0.75 3 -2\n const t 4 = 0.5 1 -1 0.25\n {}\n {}\n weight head 4 3
         o = MatMul(x2, head)
         output o",
        block(0),
        block(1)
    ));
    let after = scaled(&before, 6);
    assert_eq!(streams(&after), [None, None]);
    assert_eq!(muls(&after), 0, "{}", print(&after.model));
}

#[test]
fn skip_by_name_or_kind_prevents_scaling() {
    let before = blocks(TABLE, SPELLINGS[0], 2, &head(2));
    let folded = unfold::fuse(&before, &options()).unwrap();
    let name = scale_streams(&before, 6).plan.streams[0].name.clone();
    for skip in [name, "scaling".to_owned()] {
        let options = FuseOptions {
            scale_stream: Some(6),
            skip: vec![skip],
            ..options()
        };
        let skipped = unfold::fuse(&before, &options).unwrap();
        assert_eq!(streams(&skipped), [Some(Reason::Skipped)]);
        assert_eq!(skipped.model.proto.graph, folded.model.proto.graph);
        assert!(options.idle_skips(&before, &skipped.plan).is_empty());
    }
    // A stream with a skipped normalizer stays too.
    let normalizer = &folded.plan.sites[0];
    for skip in [normalizer.name.clone(), normalizer.kind.name.to_owned()] {
        let options = FuseOptions {
            scale_stream: Some(6),
            skip: vec![skip],
            ..options()
        };
        assert_eq!(
            streams(&unfold::fuse(&before, &options).unwrap()),
            [Some(Reason::Skipped)]
        );
    }
}

#[test]
fn stream_magnitude_rejects_nan_infinity_and_empty_samples() {
    let model = blocks("input x0 batch 4", SPELLINGS[0], 2, "output x2");
    let run = |values: &[f32]| {
        let samples = Tensor::from_shape(&[values.len() / 4, 4], values).unwrap();
        let mut dims = Dims::default();
        dims.set("batch", values.len() / 4);
        StreamMagnitude::measure(&model, &[samples], &dims)
            .map(|found| found.map(|headroom| headroom.largest))
    };
    let good = [1.0, -2.0, 3.0, 300_000.0];
    assert!(run(&good).unwrap().unwrap() >= 300_000.0);
    for wrong in [f32::NAN, f32::INFINITY] {
        let error = run(&[&good[..], &[1.0, wrong, 2.0, 3.0]].concat())
            .unwrap_err()
            .to_string();
        assert!(error.contains("not finite"), "{error}");
    }
    let error = run(&[]).unwrap_err().to_string();
    assert!(error.contains("there is nothing in a sample"), "{error}");
}

#[test]
fn scaled_skip_layer_norms_list_their_new_tensors() {
    for op in ["SkipSimplifiedLayerNormalization", "SkipLayerNormalization"] {
        let before = model(&format!(
            "input i batch 3 4
             weight w 4 4
             weight p 4 4
             scale g 4
             x0 = MatMul(i, w)
             f0 = MatMul(i, p)
             n1,,,x1 = com.microsoft.{op}(x0, f0, g)
             f1 = MatMul(n1, p)
             n2 = com.microsoft.{op}(f1, x1, g)
             o = MatMul(n2, p)
             output o"
        ));
        let scaled = scale_streams(&before, 3);
        assert_eq!(streams(&scaled), [None]);
        is_proved_or_listed(&before, &scaled)
            .unwrap_or_else(|why| panic!("{why}\n{}", print(&scaled.model)));
    }
}
