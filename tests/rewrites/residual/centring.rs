//! Centring of residual streams: LayerNormalizations become RMS normalizations, with twins in which
//! the mean stays.

use crate::common::portable;
use unfold::onnx::{DataType, Model, tensor};
use unfold::plan::{Centring, StreamPlan};
use unfold::prove::{Proof, prove};
use unfold::refusal::Reason;
use unfold::{FuseOptions, Fused};

use crate::common::blocks::VIT;
use crate::common::text::model;
use crate::common::{declared, fuse, is_proved_or_listed, operators, options, retype};
use crate::same;

fn centre(model: &Model) -> Fused {
    unfold::fuse(
        model,
        &FuseOptions {
            centre: true,
            ..options()
        },
    )
    .unwrap()
}

/// Centres with the default limit on growth, which allows almost no copies.
fn centre_without_copies(model: &Model) -> Fused {
    unfold::fuse(
        model,
        &FuseOptions {
            centre: true,
            ..portable()
        },
    )
    .unwrap()
}

/// The outcome for the centred stream or, if there is none, for the first stream with an outcome.
fn centring(fused: &Fused) -> Centring {
    let found: Vec<&Centring> = fused
        .plan
        .streams
        .iter()
        .filter_map(|stream| stream.centring.as_ref())
        .collect();
    let centred = found
        .iter()
        .find(|centring| matches!(centring, Centring::Centred { .. }));
    Centring::clone(centred.or(found.first()).expect("a stream"))
}

/// Asserts that a model is centred exactly and that this is proved. Returns the numbers of changed
/// normalizers and constants, and the values behind which the mean is subtracted.
fn is_centred(text: &str) -> (usize, usize, Vec<String>) {
    computes_the_same(text, centre)
}

fn computes_the_same(text: &str, centre: fn(&Model) -> Fused) -> (usize, usize, Vec<String>) {
    let before = model(text);
    let fused = centre(&before);
    let Centring::Centred {
        normalizers,
        constants,
        subtracted,
    } = centring(&fused)
    else {
        panic!("{:#?}", fused.plan.streams)
    };
    same(&before, &fused.model, 2e-6);
    let proof = prove(
        &before,
        &fused.model,
        &fused.plan.tensors,
        &Default::default(),
    );
    assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
    let again = centre(&fused.model);
    assert!(
        !again.changed(),
        "it changes again: {:#?}",
        again.plan.streams
    );
    (normalizers.len(), constants, subtracted)
}

/// Asserts that a stream keeps its mean, and returns the reason.
fn keeps_mean(text: &str) -> Reason {
    let before = model(text);
    let fused = centre(&before);
    let Centring::Kept { why } = centring(&fused) else {
        panic!("{:#?}", fused.plan.streams)
    };
    let plain = unfold::fuse(&before, &options()).unwrap();
    assert_eq!(
        fused.model.proto.graph, plain.model.proto.graph,
        "something has changed"
    );
    why.reason
}

fn vit(end: &str) -> String {
    format!("{VIT}\n{end}")
}

const HEAD: &str = "n2 = LayerNormalization(token, g, t)
     o = MatMul(n2, head)
     output o";

#[test]
fn vit_is_centred_without_operators_for_the_mean() {
    assert_eq!(is_centred(&vit(HEAD)), (3, 7, vec![]));
    let fused = centre(&model(&vit(HEAD)));
    let count = |op: &str| {
        operators(&fused.model)
            .iter()
            .filter(|other| **other == op)
            .count()
    };
    // Each of the three normalizers has one mean, of squares. For two of them the runtime adds the
    // ones.
    assert_eq!(
        (
            count("LayerNormalization"),
            count("ReduceMean"),
            count("Sub"),
            count("Mul")
        ),
        (0, 3, 0, 3)
    );
    // Without the pass that selects the class token, the positions are centred as a whole.
    let skip = vec!["placement".to_owned()];
    let whole = FuseOptions {
        centre: true,
        skip,
        ..options()
    };
    let fused = unfold::fuse(&model(&vit(HEAD)), &whole).unwrap();
    let pos = crate::initializer(&fused.model, "pos_centred");
    let numbers = tensor::read_f64(pos, fused.model.externals()).unwrap();
    assert!(
        numbers.rows().into_iter().all(|row| row.sum().abs() < 1e-6),
        "{numbers}"
    );
}

#[test]
fn readers_that_see_the_mean_prevent_centring() {
    let by = |who: &str| Reason::SeesMean(who.into());
    assert_eq!(
        keeps_mean(&vit("o = MatMul(token, head)\n output o")),
        by("MatMul")
    );
    assert_eq!(
        keeps_mean(&vit(&format!("{HEAD} x5"))),
        by("an output of the model")
    );
    assert_eq!(
        keeps_mean(&vit(&format!("{HEAD} h\n h = RMSNormalization(x5, g)"))),
        by("RMSNorm")
    );
    assert_eq!(
        keeps_mean(&vit(&format!("{HEAD} h\n h = ReduceMax(x4)"))),
        by("ReduceMax")
    );
}

#[test]
fn shape_reader_does_not_prevent_centring() {
    let picked = "first_of = Gather(x4, first) axis=1\n extents = Shape(first_of)\n output extents";
    assert_eq!(
        is_centred(&vit(&format!("{picked}\n{HEAD}"))),
        (3, 7, vec![])
    );
    let also = picked.replace(
        "output extents",
        "seen = ReduceMax(first_of)\n output extents seen",
    );
    assert_eq!(
        keeps_mean(&vit(&format!("{also}\n{HEAD}"))),
        Reason::SeesMean("ReduceMax".into())
    );
}

#[test]
fn gather_with_an_unknown_attribute_prevents_centring() {
    let picked = |attribute: &str| {
        let step = format!("picked = Gather(token, first) axis=1 {attribute}");
        vit(&format!("{step}\n{}", HEAD.replace("(token,", "(picked,")))
    };
    assert_eq!(is_centred(&picked("")), (3, 7, vec![]));
    assert_eq!(
        keeps_mean(&picked("fancy=1")),
        Reason::SeesMean("Gather".into())
    );
}

#[test]
fn patch_embedding_conv_is_centred() {
    let found = is_centred(
        "input i 2 3 8 8
         weight w 4 3 2 2
         shift b 4
         ints tokens 3 = 2 4 16
         weight p 4 4
         scale g 4
         shift t 4
         image = Conv(i, w, b) strides=[2,2]
         flat = Reshape(image, tokens)
         x = Transpose(flat) perm=[0,2,1]
         n = LayerNormalization(x, g, t)
         f = MatMul(n, p)
         y = Add(x, f)
         m = LayerNormalization(y, g, t)
         o = MatMul(m, p)
         output o",
    );
    // The bias of the second MatMul is the shift of the normalizer before it.
    assert_eq!(found, (2, 4, vec![]));
}

/// The model with all floats in another type.
fn of_type(data_type: DataType, text: &str) -> Model {
    let mut model = model(text);
    let names: Vec<String> = model
        .graph()
        .initializer
        .iter()
        .map(|tensor| tensor.name().to_owned())
        .collect();
    retype(
        &mut model,
        &names.iter().map(String::as_str).collect::<Vec<_>>(),
        data_type,
    );
    model.graph_mut().input[0] = declared("i", data_type, &["batch", "3", "4"]);
    model
}

#[test]
fn bfloat16_streams_are_centred_and_float16_refused() {
    let text = blocks(
        "input i batch 3 4\n weight w 4 4\n x0 = MatMul(i, w)",
        "o = MatMul(n8, p)",
    );
    let before = of_type(DataType::BFloat16, &text);
    let fused = centre(&before);
    let Centring::Centred {
        normalizers,
        constants,
        subtracted,
    } = centring(&fused)
    else {
        panic!("{:#?}", fused.plan.streams)
    };
    assert_eq!((normalizers.len(), constants, subtracted), (9, 17, vec![]));
    let proof = prove(
        &before,
        &fused.model,
        &fused.plan.tensors,
        &Default::default(),
    );
    assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
    // The operator computes squares in float32, and so do the operators that replace it.
    let casts = operators(&fused.model)
        .iter()
        .filter(|op| **op == "Cast")
        .count();
    assert_eq!(casts, 18);
    same(&before, &fused.model, 0.02);
    // A centred value may be twice as large, which may overflow float16.
    let Centring::Kept { why } = centring(&centre(&of_type(DataType::Float16, &text))) else {
        panic!()
    };
    assert_eq!(why.reason, Reason::ElementType("float16".into()));
}

#[test]
fn layer_norm_reading_two_casts_of_a_stream_is_centred_once() {
    let text = "input i batch 3 4
         weight w 4 4
         weight p 4 4
         const two = 2
         const eps = 0.0009765625
         x = MatMul(i, w)
         a = Cast(x) to=1
         b = Cast(x) to=1
         m = ReduceMean(a) axes=[-1]
         c = Sub(b, m)
         s = Pow(c, two)
         v = ReduceMean(s) axes=[-1]
         e = Add(v, eps)
         r = Sqrt(e)
         d = Div(c, r)
         n = Cast(d) to=16
         o = MatMul(n, p)
         output o";
    let mut before = model(text);
    retype(&mut before, &["w", "p"], DataType::BFloat16);
    before.graph_mut().input[0] = declared("i", DataType::BFloat16, &["batch", "3", "4"]);
    let fused = centre(&before);
    let Centring::Centred { normalizers, .. } = centring(&fused) else {
        panic!("{:#?}", fused.plan.streams)
    };
    assert_eq!(normalizers.len(), 1);
    assert!(
        !operators(&fused.model).contains(&"Sub"),
        "{:?}",
        operators(&fused.model)
    );
    let proof = prove(
        &before,
        &fused.model,
        &fused.plan.tensors,
        &Default::default(),
    );
    assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
    same(&before, &fused.model, 0.02);
}

#[test]
fn skip_layer_norm_streams_are_centred() {
    // A block and the start of the next, as onnxruntime writes them.
    let text = |bias: &str| {
        format!(
            "input i batch 3 4
             weight w 4 4
             weight p 4 4
             scale g 4
             const none 4 = 0 0 0 0
             shift b 4
             x0 = MatMul(i, w)
             n0 = LayerNormalization(x0, g, none)
             f0 = MatMul(n0, p)
             n1,,,x1 = com.microsoft.SkipLayerNormalization(x0, f0, g, none, {bias})
             f1 = MatMul(n1, p)
             n2 = com.microsoft.SkipLayerNormalization(f1, x1, g, none)
             o = MatMul(n2, p)
             output o"
        )
    };
    assert_eq!(is_centred(&text("b")), (3, 4, vec![]));
    assert_eq!(is_centred(&text("")), (3, 3, vec![]));
    // onnxruntime supports the operator in all operator sets and writes it into older models.
    let mut proto = model(&text("b")).proto;
    let own = proto
        .opset_import
        .iter_mut()
        .find(|import| import.domain().is_empty())
        .unwrap();
    own.version = Some(14);
    let fused = centre(&Model::from_proto(proto)).model;
    assert!(
        !operators(&fused)
            .iter()
            .any(|op| op.ends_with("LayerNormalization")),
        "{:?}",
        operators(&fused)
    );
    // If the mean is read, the normalizer stays.
    let read = text("b")
        .replace("n1,,,x1", "n1,m1,,x1")
        .replace("output o", "output o m1");
    assert!(matches!(keeps_mean(&read), Reason::SeesMean(_)));
}

#[test]
fn grouped_conv_writer_is_not_centred() {
    let text = |group: &str, rows: &str| {
        format!(
            "input i 2 4 8
             weight w 4 {rows} 1
             weight p 4 4
             scale g 4
             shift t 4
             image = Conv(i, w) group={group}
             x = Transpose(image) perm=[0,2,1]
             n = LayerNormalization(x, g, t)
             o = MatMul(n, p)
             output o"
        )
    };
    assert_eq!(is_centred(&text("1", "4")), (1, 1, vec![]));
    assert!(matches!(keeps_mean(&text("2", "2")), Reason::NoGain(_)));
}

/// Eight blocks behind an embedding.
fn blocks(stem: &str, head: &str) -> String {
    let block = |place: usize| {
        let next = place + 1;
        format!(
            "n{place} = LayerNormalization(x{place}, g, t)
             f{place} = MatMul(n{place}, p)
             x{next} = Add(f{place}, x{place})"
        )
    };
    let blocks: Vec<String> = (0..8).map(block).collect();
    format!(
        "weight p 4 4
         scale g 4
         shift t 4
         {stem}
         {}
         n8 = LayerNormalization(x8, g, t)
         {head}
         output o",
        blocks.join("\n")
    )
}

#[test]
fn layer_norm_writer_gets_its_mean_subtracted() {
    let stem = "input i batch 3 4
         weight w 4 4
         e = MatMul(i, w)
         x0 = LayerNormalization(e, g, t)";
    let found = is_centred(&blocks(stem, "o = MatMul(n8, p)"));
    // Both streams are centred. The stream before the first normalizer has one writer and one
    // reader.
    assert_eq!(found.2, ["LayerNormalization_x0"]);
}

/// A normalizer over the tokens leaves a mean over the channels.
#[test]
fn normalizer_over_another_axis_does_not_centre_a_stream() {
    let before = model(
        "input x batch 5 4
         const e = 0.5
         const g 4 = 2 1 0.5 1
         m = ReduceMean(x) axes=[1]
         c = Sub(x, m)
         s = Mul(c, c)
         v = ReduceMean(s) axes=[1]
         a = Add(v, e)
         q = Sqrt(a)
         h = Div(c, q)
         o = LayerNormalization(h, g)
         output o",
    );
    let fused = centre(&before);
    assert!(operators(&fused.model).contains(&"LayerNormalization"));
    same(&before, &fused.model, 1e-6);
}

#[test]
fn tied_embedding_gets_its_mean_subtracted_after_the_gather() {
    let stem = "indices ids batch 3
         weight table 5000 4
         x0 = Gather(table, ids) axis=0";
    let head = "u = Transpose(table) perm=[1,0]
         o = MatMul(n8, u)";
    let found = computes_the_same(&blocks(stem, head), centre_without_copies);
    // The last normalizer keeps its affine, because the head reads the table.
    assert_eq!(found, (8, 16, vec!["Gather_x0".to_owned()]));
}

#[test]
fn scalar_added_to_a_stream_is_centred_away() {
    let stem = "input i batch 3 4
         weight w 4 4
         const c 1 = 2.5
         e = MatMul(i, w)
         x0 = Add(e, c)";
    let found = is_centred(&blocks(stem, "o = MatMul(n8, p)"));
    assert_eq!(found, (9, 18, vec![]));
}

#[test]
fn stream_that_is_an_input_is_centred_once_at_the_input() {
    let text = blocks("input x0 batch 3 4", "o = MatMul(n8, p)");
    assert_eq!(is_centred(&text), (9, 16, vec!["x0".to_owned()]));
    let fused = centre(&model(&text));
    let operators = operators(&fused.model);
    assert_eq!(operators[..2], ["ReduceMean", "Sub"]);
    let subtractions = operators.iter().filter(|op| **op == "Sub");
    assert_eq!(subtractions.count(), 1);
}

#[test]
fn other_readers_of_an_input_read_it_with_its_mean() {
    let text = blocks(
        "input x0 batch 3 4
         weight x0_without_mean 4 4
         output q",
        "c = MatMul(x0, x0_without_mean)
         d = Tanh(x0)
         e = Add(c, d)
         q = Softmax(e) axis=-1
         o = MatMul(n8, p)",
    );
    assert_eq!(is_centred(&text), (9, 16, vec!["x0".to_owned()]));
}

#[test]
fn embeddings_as_inputs_with_positions_are_centred_at_the_input() {
    let stem = "input embeddings batch 3 4
         weight positions 3 4
         x0 = Add(embeddings, positions)";
    let found = is_centred(&blocks(stem, "o = MatMul(n8, p)"));
    assert_eq!(found, (9, 17, vec!["embeddings".to_owned()]));
}

#[test]
fn three_normalizers_do_not_pay_for_a_mean_at_the_input() {
    let text = "input x0 batch 3 4
         weight p 4 4
         scale g 4
         shift t 4
         n0 = LayerNormalization(x0, g, t)
         f0 = MatMul(n0, p)
         x1 = Add(f0, x0)
         n1 = LayerNormalization(x1, g, t)
         f1 = MatMul(n1, p)
         x2 = Add(f1, x1)
         n2 = LayerNormalization(x2, g, t)
         o = MatMul(n2, p)
         output o";
    let reason = "the mean would be taken off at 1 places, for 3 normalizers";
    assert_eq!(keeps_mean(text), Reason::NoGain(reason.to_owned()));
}

#[test]
fn skip_by_name_or_kind_prevents_centring() {
    let before = model(&vit(HEAD));
    for skip in ["centring", "x0", "LN"] {
        let options = FuseOptions {
            centre: true,
            skip: vec![skip.into()],
            ..options()
        };
        let fused = unfold::fuse(&before, &options).unwrap();
        let Centring::Kept { why } = centring(&fused) else {
            panic!("{:#?}", fused.plan.streams)
        };
        assert_eq!(why.reason, Reason::Skipped);
        assert_eq!(options.idle_skips(&before, &fused.plan), Vec::<&str>::new());
    }
}

/// For engines, a written-out LayerNormalization keeps neutral parameters. An RMS normalization
/// does not need them: one Mul is enough.
#[test]
fn centring_a_written_out_norm_drops_its_neutral_beta() {
    let text = "opset 14
         input z 2 4
         weight w0 4 6
         scale g 6
         shift t 6
         weight w 6 3
         shift b 3
         const two = 2
         const eps = 0.0009765625
         x = MatMul(z, w0)
         m = ReduceMean(x) axes=[-1]
         c = Sub(x, m)
         s = Pow(c, two)
         v = ReduceMean(s) axes=[-1]
         e = Add(v, eps)
         r = Sqrt(e)
         d = Div(c, r)
         n = Mul(d, g)
         a = Add(n, t)
         p = MatMul(a, w)
         y = Add(p, b)
         output y";
    assert_eq!(is_centred(text), (1, 1, vec![]));
    let fused = centre(&model(text));
    let left = [
        "MatMul",
        "Pow",
        "ReduceMean",
        "Add",
        "Sqrt",
        "Div",
        "Mul",
        "MatMul",
        "Add",
    ];
    assert_eq!(operators(&fused.model), left);
}

/// A LayerNormalization as Flax computes it: the variance is the mean of squares less the squared
/// mean, each mean is a sum times `count`, the statistics are reshaped to columns, and γ multiplies
/// the reciprocal.
fn flax(count: &str, variance: &str) -> String {
    format!(
        "opset 15
         input z batch 4
         weight w0 4 8
         scale g 8
         shift t 8
         weight w 8 3
         ints axis 1 = 1
         const zero = 0
         const count = {count}
         const eps = 0.0009765625
         ints column 2 = 0 1
         x = MatMul(z, w0)
         s = ReduceSum(x, axis) keepdims=0
         m = Mul(s, count)
         squares = Mul(x, x)
         q = ReduceSum(squares, axis) keepdims=0
         a = Mul(q, count)
         n = Mul(m, m)
         {variance}
         r = Reshape(v, column)
         e = Add(r, eps)
         root = Sqrt(e)
         f = Reciprocal(root)
         h = Mul(f, g)
         l = Reshape(m, column)
         c = Sub(x, l)
         k = Mul(c, h)
         y = Add(k, t)
         p = MatMul(y, w)
         output p"
    )
}

#[test]
fn flax_variance_is_recognized_and_near_patterns_are_not() {
    let kinds = |text: &str| -> Vec<&str> {
        fuse(&model(text))
            .plan
            .sites
            .iter()
            .map(|site| site.kind.name)
            .collect()
    };
    for variance in ["d = Sub(a, n)\n v = Max(zero, d)", "v = Sub(a, n)"] {
        let text = flax("0.125", variance);
        assert!(kinds(&text).contains(&"LN"), "{:?}", kinds(&text));
        let fused = fuse(&model(&text));
        assert!(
            fused
                .plan
                .sites
                .iter()
                .any(|site| site.kind.name == "LN" && site.is_folded())
        );
        let left = operators(&fused.model);
        assert_eq!(
            (left.iter().filter(|op| **op == "Mul").count(), left.last()),
            (5, Some(&"Add"))
        );
    }
    // The mean is removed if it has no other reader, unless the variance is bounded below, because
    // the bound cannot be proved to have no effect.
    assert_eq!(is_centred(&flax("0.125", "v = Sub(a, n)")), (1, 1, vec![]));
    let why = keeps_mean(&flax("0.125", "d = Sub(a, n)\n v = Max(zero, d)"));
    assert!(matches!(why, Reason::NoGain(_)), "{why:?}");
    // Another number than the count, swapped operands, the square of another value, and another
    // bound.
    for text in [
        flax("0.25", "v = Sub(a, n)"),
        flax("0.125", "v = Sub(n, a)"),
        flax("0.125", "u = Mul(a, a)\n v = Sub(a, u)"),
        flax("0.125", "d = Sub(a, n)\n v = Max(eps, d)"),
    ] {
        let kinds = kinds(&text);
        assert!(
            !kinds.contains(&"LN") && !kinds.contains(&"RMSNorm"),
            "{kinds:?}"
        );
    }
}

/// These patterns resemble a LayerNormalization but are none.
#[test]
fn near_layer_norm_patterns_are_not_centred() {
    let with = |normalized: &str| {
        model(&format!(
            "opset 17
             input x 4 4 6
             weight v 6 4
             weight w 4 5
             const e = 0.1
             const half = 0.5
             const minus = -0.5
             h = MatMul(x, v)
             {normalized}
             y = MatMul(z, w)
             output y"
        ))
    };
    let mean = "m = ReduceMean(h) axes=[-1] keepdims=1\n d = Sub(h, m)\n q = Mul(d, d)\n";
    let variance = "v2 = ReduceMean(q) axes=[-1] keepdims=1\n a = Add(v2, e)\n";
    let own = with(&format!("{mean}{variance} s = Sqrt(a)\n z = Div(d, s)"));
    let fused = centre(&own);
    assert!(matches!(centring(&fused), Centring::Centred { .. }));
    same(&own, &fused.model, 1e-5);
    let others = [
        // The mean is over tokens, and the variance over channels.
        format!(
            "{} {variance} s = Sqrt(a)\n z = Div(d, s)",
            mean.replace("[-1]", "[1]")
        ),
        // The value is multiplied by the root, in two ways.
        format!("{mean}{variance} s = Pow(a, minus)\n z = Div(d, s)"),
        format!("{mean}{variance} s = Pow(a, minus)\n r = Reciprocal(s)\n z = Mul(d, r)"),
        // The statistics of one token are applied to another.
        format!(
            "{mean}{} s = Sqrt(a)\n z = Div(d, s)",
            variance.replace("keepdims=1", "keepdims=0")
        ),
        format!("{mean}{variance} s = Sqrt(a)\n k = Transpose(s) perm=[1,0,2]\n z = Div(d, k)"),
        // The mean is rounded to an integer.
        format!(
            "m1 = ReduceMean(h) axes=[-1] keepdims=1\n m2 = Cast(m1) to=6\n m = Cast(m2) to=1\n d = Sub(h, m)\n q = Mul(d, d)\n {variance} s = Sqrt(a)\n z = Div(d, s)"
        ),
    ];
    for normalized in others {
        let before = with(&normalized);
        let fused = centre(&before);
        let is_centred =
            |stream: &StreamPlan| matches!(stream.centring, Some(Centring::Centred { .. }));
        assert!(!fused.plan.streams.iter().any(is_centred), "{normalized}");
        is_proved_or_listed(&before, &fused).unwrap();
    }
    // A root that is written as a power is recognized.
    for root in [
        "s = Pow(a, half)\n z = Div(d, s)",
        "s = Pow(a, minus)\n z = Mul(d, s)",
    ] {
        let before = with(&format!("{mean}{variance}{root}"));
        assert!(
            matches!(centring(&centre(&before)), Centring::Centred { .. }),
            "{root}"
        );
    }
}
