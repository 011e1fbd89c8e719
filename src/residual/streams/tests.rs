//! The residual streams of a model: their values, writers and readers.

use super::{ReadBy, Stream, WrittenBy, streams};
use crate::affine::recognize::{View, find};
use crate::analysis::Analysis;
use crate::common::blocks::VIT;
use crate::common::text::model;
use crate::onnx::Model;

/// The streams of a model, with the names of values and nodes. A site has the name of its first
/// node.
fn listed(model: &Model) -> Vec<(Stream, Vec<String>, Vec<String>)> {
    let known = Analysis::new(model).unwrap();
    let view = View::new(&known);
    let sites = find(&view);
    let graph = &known.graph;
    let site = |place: usize| graph.name(sites[place].nodes[0]);
    let writer = |source| match source {
        WrittenBy::Linear(node) => format!("linear {}", graph.name(node)),
        WrittenBy::Table(node) => format!("table {}", graph.name(node)),
        WrittenBy::Constant(node, slot) => format!("constant {} {slot}", graph.name(node)),
        WrittenBy::Uniform(node, slot) => format!("uniform {} {slot}", graph.name(node)),
        WrittenBy::Normalizer(place) => format!("normalizer {}", site(place)),
        WrittenBy::Input => "input".into(),
        WrittenBy::Other(node) => format!("other {}", graph.name(node)),
    };
    let reader = |by| match by {
        ReadBy::Normalizer(place) => format!("normalizer {}", site(place)),
        ReadBy::Linear(node, slot) => format!("linear {} {slot}", graph.name(node)),
        ReadBy::Output => "output".into(),
        ReadBy::Body(node) => format!("body {}", graph.name(node)),
        ReadBy::Other(node, slot) => format!("other {} {slot}", graph.name(node)),
    };
    let listed = |stream: Stream| {
        let writers = stream.writers.iter().map(|it| writer(it.source)).collect();
        let readers = stream.readers.iter().map(|it| reader(it.by)).collect();
        (stream, writers, readers)
    };
    streams(&known, &view, &sites, super::AtCodes::Ends)
        .into_iter()
        .map(listed)
        .collect()
}

/// The only stream of a model.
fn only(text: &str) -> (Stream, Vec<String>, Vec<String>) {
    let mut found = listed(&model(text));
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}

/// A head without a normalizer.
const HEAD: &str = "o = MatMul(token, head)
     output o";

#[test]
fn vit_stream_lists_its_writers_and_readers() {
    let (stream, writers, readers) = only(&format!("{VIT}\n{HEAD}"));
    assert_eq!((stream.channels, stream.sums), (4, 2));
    assert!(stream.values.iter().all(|at| at.axis == 2));
    let expected = [
        "linear MatMul_x0",
        "constant Add_x1 1",
        "constant Expand_c 0",
        "constant Add_x3 1",
        "linear MatMul_f0",
        "linear MatMul_f1",
        "constant Add_k1 1",
    ];
    assert_eq!(writers, expected);
    let expected = [
        "normalizer LayerNormalization_n0",
        "normalizer ReduceMean_m1",
        "linear MatMul_o 0",
    ];
    assert_eq!(readers, expected);
}

#[test]
fn channel_axis_is_followed_through_images_and_windows() {
    let (stream, writers, readers) = only(
        "input i 1 3 8 8
         weight w 4 3 2 2
         shift b 4
         ints tokens 3 = 1 4 16
         ints windows 5 = 1 2 8 1 4
         weight g 4
         weight p 4 4
         image = Conv(i, w, b) strides=[2,2]
         flat = Reshape(image, tokens)
         x = Transpose(flat) perm=[0,2,1]
         n = RMSNormalization(x, g)
         f = MatMul(n, p)
         y = Add(x, f)
         z = Reshape(y, windows)
         o = Transpose(z) perm=[0,1,3,2,4]
         output o",
    );
    let axes = stream.values.iter().map(|at| at.axis).collect::<Vec<_>>();
    // Axis 1 of the image and its rows, axis 2 of the tokens, axis 4 of the windows.
    assert_eq!(axes, [1, 1, 2, 2, 2, 4, 4]);
    assert_eq!(writers, ["linear Conv_image", "linear MatMul_f"]);
    assert_eq!(readers, ["normalizer RMSNormalization_n", "output"]);
}

#[test]
fn scalars_and_masks_multiply_or_join_a_stream() {
    let (stream, writers, readers) = only(
        "opset 23
         input mask batch 6 1
         indices ids batch 6
         weight table 9 4
         const root 1 = 2
         shift one 1
         weight g 4
         e = Gather(table, ids) axis=0
         x = Mul(e, root)
         k = Mul(x, mask)
         j = Add(k, one)
         n = RMSNormalization(j, g)
         u = Softmax(j) axis=-1
         output n u",
    );
    assert_eq!((stream.channels, stream.values.len()), (4, 4));
    assert_eq!(writers, ["table Gather_e", "uniform Add_j 1"]);
    assert_eq!(
        readers,
        ["normalizer RMSNormalization_n", "other Softmax_u 0"]
    );
}

#[test]
fn concat_of_channels_begins_another_stream() {
    let found = listed(&model(
        "input i 1 8 4
         weight w 4 4
         weight g 4
         weight t 4
         weight g2 8
         shift t2 8
         weight v 8 4
         ints even 1 = 0
         ints odd 1 = 1
         ints end 1 = 8
         ints along 1 = 1
         ints step 1 = 2
         x = MatMul(i, w)
         n = LayerNormalization(x, g, t)
         f = MatMul(n, w)
         y = Add(x, f)
         a = Slice(y, even, end, along, step)
         b = Slice(y, odd, end, along, step)
         c = Concat(a, b) axis=2
         m = LayerNormalization(c, g2, t2)
         o = MatMul(m, v)
         output o",
    ));
    let [(small, _, readers), (wide, writers, _)] = &found[..] else {
        panic!("{found:#?}")
    };
    assert_eq!(
        (small.channels, small.sums, wide.channels, wide.sums),
        (4, 1, 8, 0)
    );
    assert_eq!(readers[1..], ["other Concat_c 0", "other Concat_c 1"]);
    assert_eq!(writers, &["other Concat_c"]);
}

#[test]
fn transpose_of_a_square_stream_is_another_axis() {
    let (_, writers, readers) = only(
        "input i 4 4 4
         weight w 4 4
         weight g 4
         weight t 4
         x = MatMul(i, w)
         y = Transpose(x) perm=[0,2,1]
         z = Add(x, y)
         n = LayerNormalization(z, g, t)
         o = MatMul(n, w)
         output o",
    );
    assert_eq!(writers, ["linear MatMul_x"]);
    assert!(
        readers.iter().any(|reader| reader.starts_with("other")),
        "{readers:#?}"
    );
}

#[test]
fn a_small_transformer_has_one_stream() {
    let found = listed(&Model::open("models/digits/ln-dynamo.onnx").unwrap());
    let [(stream, ..)] = &found[..] else {
        panic!("{found:#?}")
    };
    assert_eq!(stream.channels, 40);
}
