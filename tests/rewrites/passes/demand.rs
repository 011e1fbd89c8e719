//! Selections of rows move before the work on them. Results are equal, proved, and have smaller
//! extents. Similar models stay.

use unfold::onnx::Model;
use unfold::prove::{Proof, prove};
use unfold::{FuseOptions, Fused};

use crate::common::text::{model, print};
use crate::common::{extents as extents_of, operators, options};
use crate::{fuse, same};

/// Folds a model. Asserts that the result computes the same, and that a second run changes nothing.
fn fuse_stable(before: &Model) -> Fused {
    let fused = fuse(before);
    same(before, &fused.model, 1e-6);
    let again = unfold::fuse(&fused.model, &options()).unwrap();
    assert!(!again.changed(), "{}", print(&fused.model));
    fused
}

/// The number of selections that move.
fn moved_selections(before: &Model) -> usize {
    fuse_stable(before).plan.tidy.selected
}

/// The extents along an axis of the results of all operators with this name. 0 for an open extent.
fn extents(model: &Model, op: &str, axis: usize) -> Vec<usize> {
    let nodes = model
        .graph()
        .node
        .iter()
        .filter(|node| node.op_type() == op);
    let shapes = nodes.map(|node| extents_of(model, &node.output[0]).unwrap());
    shapes
        .map(|shape| shape[axis].unwrap_or_default())
        .collect()
}

/// Tokens, lines that compute `y` from `x`, and a selection `s` of `y`.
fn selected(declared: &str, lines: &str, selection: &str) -> Model {
    model(&format!("{declared}\n{lines}\ns = {selection}\noutput s"))
}

const WEIGHT: &str = "weight w 4 6\nints first = 0";

#[test]
fn gather_of_few_rows_moves_before_matmul() {
    let rows = |selection: &str| {
        selected(
            &format!(
                "input x batch 5 4\n{WEIGHT}\nints many 3 = 0 2 4\nints two 2 = 3 1\nints far = 7\nints end = -1"
            ),
            "y = MatMul(x, w)",
            selection,
        )
    };
    for (selection, count) in [
        ("Gather(y, first) axis=1", 1),
        ("Gather(y, end) axis=1", 1),
        ("Gather(y, two) axis=1", 2),
    ] {
        let fused = fuse_stable(&rows(selection));
        assert_eq!(fused.plan.tidy.selected, 1, "{selection}");
        assert_eq!(extents(&fused.model, "MatMul", 1), [count], "{selection}");
    }
    // More than half of the rows are selected.
    assert_eq!(moved_selections(&rows("Gather(y, many) axis=1")), 0);
    // An index out of range fails when the model runs, as before.
    let far = rows("Gather(y, far) axis=1");
    assert_eq!(
        unfold::fuse(&far, &options()).unwrap().plan.tidy.selected,
        0
    );
}

#[test]
fn only_one_row_of_an_unknown_extent_moves_before_matmul() {
    let open = |selection: &str| {
        let constants = "ints zero 1 = 0\nints one 1 = 1\nints two 1 = 2\nints last 1 = -1\nints end 1 = 9223372036854775807";
        selected(
            &format!("input x batch tokens 4\n{WEIGHT}\n{constants}"),
            "y = MatMul(x, w)",
            selection,
        )
    };
    for selection in [
        "Gather(y, first) axis=1",
        "Slice(y, zero, one, one)",
        "Slice(y, last, end, one)",
    ] {
        let before = open(selection);
        assert_eq!(moved_selections(&before), 1, "{selection}");
    }
    for selection in ["Slice(y, zero, two, one)", "Slice(y, one, end, one)"] {
        assert_eq!(
            unfold::fuse(&open(selection), &options())
                .unwrap()
                .plan
                .tidy
                .selected,
            0,
            "{selection}"
        );
    }
}

#[test]
fn selection_does_not_pass_operators_that_mix_its_axis() {
    let through = |line: &str| {
        selected(
            &format!("input x batch 5 6\n{WEIGHT}\nints second = 1\nweight v 6 6"),
            &format!("h = MatMul(x, v)\ny = {line}"),
            "Gather(y, first) axis=1",
        )
    };
    for line in ["Softmax(h) axis=2", "Relu(h)", "ReduceMean(h) axes=[2]"] {
        let fused = fuse_stable(&through(line));
        assert_eq!(
            (fused.plan.tidy.selected, extents(&fused.model, "MatMul", 1)),
            (1, vec![1]),
            "{line}"
        );
    }
    for line in [
        "Softmax(h) axis=1",
        "Transpose(h) perm=[0,2,1]",
        "CumSum(h, second)",
    ] {
        let before = through(line);
        let fused = unfold::fuse(&before, &options()).unwrap();
        let rows = extents(&fused.model, "MatMul", 1);
        assert!(rows == [5] || line.starts_with("Trans"), "{line} {rows:?}");
        if line.starts_with("Softmax") {
            same(&before, &fused.model, 1e-6);
        }
    }
}

#[test]
fn selection_of_channels_does_not_pass_a_normalization_over_them() {
    for line in [
        "LayerNormalization(h, g)",
        "LayerNormalization(h, k) axis=1",
        "SimplifiedLayerNormalization(h, g) epsilon=0.5",
        "com.microsoft.SkipLayerNormalization(h, x, g)",
        "com.microsoft.SkipSimplifiedLayerNormalization(h, x, g)",
    ] {
        let before = selected(
            "input x batch 5 6\nweight w 6 6\nscale g 6\nscale k 5 6\nints first = 0",
            &format!("h = MatMul(x, w)\ny = {line}"),
            "Gather(y, first) axis=2",
        );
        let fused = fuse(&before);
        assert_eq!(fused.plan.tidy.selected, 0, "{line}");
        same(&before, &fused.model, 1e-6);
    }
}

/// The first output of the normalization is not read, and others have no name.
#[test]
fn selection_passes_a_skip_normalization_of_which_only_the_sum_is_read() {
    let before = selected(
        "input x batch 5 6\nweight w 6 6\nscale g 6\nints first 1 = 0",
        "h = MatMul(x, w)\nn,,,y = com.microsoft.SkipLayerNormalization(h, x, g)",
        "Gather(y, first) axis=1",
    );
    let fused = fuse_stable(&before);
    assert_eq!(fused.plan.tidy.selected, 1);
    assert_eq!(extents(&fused.model, "MatMul", 1), [1]);
}

#[test]
fn broadcast_operand_is_not_selected_from() {
    let added = |operand: &str| {
        selected(
            &format!("input x batch 5 4\n{operand}\n{WEIGHT}"),
            "h = MatMul(x, w)\ny = Add(h, z)",
            "Gather(y, first) axis=1",
        )
    };
    for operand in [
        "input z batch 1 6",
        "input z batch 5 6",
        "input z 6",
        "weight z 1 5 6",
    ] {
        let fused = fuse_stable(&added(operand));
        assert_eq!(extents(&fused.model, "MatMul", 1), [1], "{operand}");
    }
    // Only a run shows whether an open extent is 1.
    let open = added("input z batch other 6");
    let fused = unfold::fuse(&open, &options()).unwrap();
    assert_eq!(extents(&fused.model, "MatMul", 1), [5]);
}

#[test]
fn value_with_another_reader_is_computed_whole() {
    let text = |output: &str| {
        format!(
            "input x batch 5 4\n{WEIGHT}\ny = MatMul(x, w)\nr = Relu(y)\ns = Gather(r, first) axis=1\noutput s{output}"
        )
    };
    assert_eq!(moved_selections(&model(&text(""))), 1);
    assert_eq!(moved_selections(&model(&text("\noutput y"))), 0);
    // In a product of a value with itself, one operand is read completely, and the other one only
    // at the selected places.
    let square = "input x batch 4 4\nweight w 4 4\nints first = 0\nh = MatMul(x, w)\ny = MatMul(h, h)\ns = Gather(y, first) axis=1\noutput s";
    let fused = fuse_stable(&model(square));
    assert_eq!(extents(&fused.model, "MatMul", 1), [4, 1]);
}

#[test]
fn selections_of_several_readers_share_one_gather() {
    let text = format!(
        "input x batch 5 4\n{WEIGHT}\nints second = 1\nweight v 6 3\nh = MatMul(x, w)\ny = Relu(h)
         a = Gather(y, first) axis=1\nb = Gather(y, second) axis=1\np = MatMul(a, v)\nq = MatMul(b, v)\noutput p\noutput q"
    );
    let fused = fuse_stable(&model(&text));
    assert_eq!(fused.plan.tidy.selected, 1);
    assert!(extents(&fused.model, "MatMul", 1).contains(&2));
}

#[test]
fn selection_by_a_computed_index_moves_up() {
    let text = |index: &str, selection: &str| {
        format!(
            "input x batch 5 4\n{index}\n{WEIGHT}\nh = MatMul(x, w)\ny = Relu(h)\ns = {selection}\noutput s"
        )
    };
    let fused = fuse_stable(&model(&text("indices i", "Gather(y, i) axis=1")));
    assert_eq!(extents(&fused.model, "MatMul", 1), [1]);
    // There are as many indices as samples.
    let many = model(&text("indices i batch", "Gather(y, i) axis=1"));
    assert_eq!(
        unfold::fuse(&many, &options()).unwrap().plan.tidy.selected,
        0
    );
}

/// The attention of queries `q`, keys `k` and values `v`. In `h`, the axis of heads is after that
/// of tokens.
const ATTENTION: &str = "k2 = Transpose(k) perm=[0,1,3,2]
    l = MatMul(q, k2)
    p = Softmax(l) axis=-1
    u = MatMul(p, v)
    h = Transpose(u) perm=[0,2,1,3]";

/// One block of attention over five tokens. The head reads only the first token.
fn block(parts: &str) -> Model {
    model(&format!(
        "input x batch 5 8
         scale g 8
         shift c 8
         weight w 8 24
         shift b 24
         weight o 8 8
         ints apart 5 = 0 5 3 2 4
         ints heads 3 = 0 5 8
         ints zero = 0
         ints one = 1
         ints two = 2
         ints s0 1 = 0
         ints s1 1 = 1
         ints s2 1 = 2
         ints s3 1 = 3
         ints sizes 3 = 1 1 1
         n = LayerNormalization(x, g, c)
         m = MatMul(n, w)
         a = Add(m, b)
         r = Reshape(a, apart)
         t = Transpose(r) perm=[2,0,3,1,4]
         {parts}
         {ATTENTION}
         j = Reshape(h, heads)
         f = MatMul(j, o)
         y = Add(x, f)
         s = Gather(y, zero) axis=1
         output s"
    ))
}

#[test]
fn class_token_needs_one_query_and_all_keys_and_values() {
    let gathers = "q = Gather(t, zero)\nk = Gather(t, one)\nv = Gather(t, two)";
    let splits = "q5, k5, v5 = Split(t, sizes) axis=0\nq = Squeeze(q5, s0)\nk = Squeeze(k5, s0)\nv = Squeeze(v5, s0)";
    let slices = "q5 = Slice(t, s0, s1, s0)\nk5 = Slice(t, s1, s2, s0)\nv5 = Slice(t, s2, s3, s0)\nq = Squeeze(q5, s0)\nk = Squeeze(k5, s0)\nv = Squeeze(v5, s0)";
    for parts in [gathers, splits, slices] {
        let before = block(parts);
        let fused = fuse_stable(&before);
        assert_eq!(
            fused.plan.tidy.selected,
            2,
            "{parts}\n{}",
            print(&fused.model)
        );
        // The product for keys and values has all tokens. The product for queries and the
        // projection have one token.
        let graph = fused.model.graph();
        let is_weight = |name: &str| graph.initializer.iter().any(|tensor| tensor.name() == name);
        let products = graph.node.iter().filter(|node| node.op_type() == "MatMul");
        let layers = products.filter(|node| is_weight(&node.input[1]));
        let shapes = layers.map(|node| extents_of(&fused.model, &node.output[0]).unwrap());
        let mut layers: Vec<_> = shapes
            .map(|shape| (shape[1].unwrap(), shape[2].unwrap()))
            .collect();
        layers.sort_unstable();
        assert_eq!(layers, [(1, 8), (1, 8), (5, 16)], "{parts}");
        let proof = prove(
            &before,
            &fused.model,
            &fused.plan.tensors,
            &Default::default(),
        );
        assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
    }
}

/// Before operator set 10, the bounds of a Slice are attributes.
#[test]
fn slices_of_keys_and_values_use_attributes_before_opset_10() {
    let text = print(&block(
        "q = Gather(t, zero)\nk = Gather(t, one)\nv = Gather(t, two)",
    ));
    let text = text.replace("opset 17", "opset 9");
    let before = model(&text.replace("LayerNormalization(x, g, c)", "Tanh(x)"));
    let fused = fuse_stable(&before);
    assert_eq!(fused.plan.tidy.selected, 2, "{}", print(&fused.model));
    let nodes = fused.model.graph().node.iter();
    let slices: Vec<usize> = nodes
        .filter(|node| node.op_type() == "Slice")
        .map(|node| node.input.len())
        .collect();
    assert_eq!(slices, [1, 1, 1, 1]);
}

#[test]
fn channel_selection_does_not_pass_a_grouped_conv() {
    let channel = |weight: &str, group: usize| {
        selected(
            &format!("input x batch 2 3 3\nweight w {weight}\nints first = 0"),
            &format!("y = Conv(x, w) group={group}"),
            "Gather(y, first) axis=1",
        )
    };
    assert_eq!(moved_selections(&channel("2 1 1 1", 2)), 0);
    assert_eq!(moved_selections(&channel("4 2 1 1", 1)), 1);
}

#[test]
fn skip_placement_keeps_selections_in_place() {
    let before = selected(
        &format!("input x batch 5 4\n{WEIGHT}"),
        "y = MatMul(x, w)",
        "Gather(y, first) axis=1",
    );
    let skip = FuseOptions {
        skip: vec!["placement".into()],
        ..options()
    };
    let fused = unfold::fuse(&before, &skip).unwrap();
    assert_eq!(fused.plan.tidy.selected, 0);
    assert_eq!(operators(&fused.model), ["MatMul", "Gather"]);
}

/// Tokens after a product. One token of each sample is read, at an index that `lines` compute.
fn of_sample(lines: &str, selection: &str) -> Model {
    let declared = format!(
        "input x batch 5 4\nindices ids batch 5\n{WEIGHT}\nints one = 1\nints last 1 = 1\nints five 1 = 5
         counts = Shape(x)\ncount = Gather(counts, first)\nsamples = Range(first, count, one)
         index = ArgMax(ids) axis=1 keepdims=0"
    );
    selected(&declared, lines, selection)
}

/// Concatenates the numbers of samples with the indices.
const COLUMNS: &str = "left = Unsqueeze(samples, last)\nright = Unsqueeze(index, last)
    pairs = Concat(left, right) axis=1";
/// Computes the index of a row among the rows of all samples.
const ROWS: &str = "begin = Mul(samples, five)\nrows = Add(index, begin)\nflat = Reshape(y, shape)
    ints shape 2 = -1 6";

#[test]
fn one_place_of_each_sample_moves_before_matmul() {
    let by_columns = of_sample(
        &format!("y = MatMul(x, w)\n{COLUMNS}"),
        "GatherND(y, pairs)",
    );
    let by_rows = of_sample(&format!("y = MatMul(x, w)\n{ROWS}"), "Gather(flat, rows)");
    for before in [by_columns, by_rows] {
        let fused = fuse_stable(&before);
        assert_eq!(extents(&fused.model, "MatMul", 1), [1]);
        let proof = prove(
            &before,
            &fused.model,
            &fused.plan.tensors,
            &Default::default(),
        );
        assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
    }
}

#[test]
fn operand_that_samples_share_is_selected_for_each_sample() {
    for operand in [
        "weight z 5 6",
        "weight z 1 5 6",
        "input z 5 6",
        "input z batch 5 6",
    ] {
        let lines = format!("{operand}\nh = MatMul(x, w)\ny = Add(h, z)\n{COLUMNS}");
        let fused = fuse_stable(&of_sample(&lines, "GatherND(y, pairs)"));
        assert_eq!(extents(&fused.model, "MatMul", 1), [1], "{operand}");
    }
    // Only a run shows whether the operand has one sample for all samples, or one for each.
    let lines = format!("input z other 5 6\nh = MatMul(x, w)\ny = Add(h, z)\n{COLUMNS}");
    let fused = unfold::fuse(&of_sample(&lines, "GatherND(y, pairs)"), &options()).unwrap();
    assert_eq!(extents(&fused.model, "MatMul", 1), [5]);
}

#[test]
fn rows_and_columns_that_select_another_sample_stay() {
    let by_columns = format!("y = MatMul(x, w)\n{COLUMNS}");
    let by_rows = format!("y = MatMul(x, w)\n{ROWS}");
    let twins = [
        // An index that may be out of range, and would then select a row of the next sample.
        (
            by_rows.replace("Add(index,", "Add(given,"),
            "Gather(flat, rows)",
        ),
        (
            by_rows.replace("Mul(samples, five)", "Mul(samples, last)"),
            "Gather(flat, rows)",
        ),
        (
            by_rows.replace("Mul(samples", "Mul(given"),
            "Gather(flat, rows)",
        ),
        // Samples in a computed order, and columns in the other order.
        (
            by_columns.replace("Unsqueeze(samples", "Unsqueeze(given"),
            "GatherND(y, pairs)",
        ),
        (
            by_columns.replace("Concat(left, right)", "Concat(right, left)"),
            "GatherND(y, pairs)",
        ),
    ];
    for (lines, selection) in twins {
        let lines = format!("indices given batch\n{lines}");
        let fused = unfold::fuse(&of_sample(&lines, selection), &options()).unwrap();
        assert_eq!(extents(&fused.model, "MatMul", 1), [5], "{lines}");
    }
}

/// Tokens as rows of one matrix. `x` has this shape and becomes rows, `lines` compute `m` from the
/// rows `r`, and `y` is `m` with the shape `apart`. The head reads the place 0 of `y` along axis 1.
fn of_rows(shape: &str, rows: &str, lines: &str, apart: &str) -> Model {
    selected(
        &format!(
            "input x {shape}\n{WEIGHT}\nweight v 6 6\nscale g 6\nshift c 6\nints rows 2 = {rows}\nints apart 3 = {apart}"
        ),
        &format!("r = Reshape(x, rows)\n{lines}\ny = Reshape(m, apart)"),
        "Gather(y, first) axis=1",
    )
}

#[test]
fn place_of_each_run_of_rows_moves_before_matmul() {
    let block =
        "a = MatMul(r, w)\nn = LayerNormalization(a, g, c)\nb = MatMul(n, v)\nm = Add(a, b)";
    let cases = [
        ("batch 5 4", "-1 4", "-1 5 6"),
        ("2 5 4", "10 4", "2 5 6"),
        ("2 5 4", "-1 4", "2 -1 6"),
        // Each run has half a sample.
        ("batch 6 4", "-1 4", "-1 3 6"),
    ];
    for (shape, rows, apart) in cases {
        let fused = fuse_stable(&of_rows(shape, rows, block, apart));
        assert_eq!(fused.plan.tidy.selected, 1, "{shape}");
        // The first place of each sample, as rows.
        let rows = if shape == "2 5 4" { 2 } else { 0 };
        assert_eq!(extents(&fused.model, "MatMul", 0), [rows; 2], "{shape}");
    }
}

#[test]
fn value_of_rows_with_another_reader_is_cut_into_runs() {
    let before = model(
        "input x batch 5 4
         weight w 4 6
         weight v 6 6
         ints rows 2 = -1 4
         ints apart 3 = -1 5 6
         ints first = 0
         r = Reshape(x, rows)
         a = MatMul(r, w)
         k = ReduceMax(a) axes=[0] keepdims=0
         m = MatMul(a, v)
         y = Reshape(m, apart)
         s = Gather(y, first) axis=1
         output s
         output k",
    );
    let fused = fuse_stable(&before);
    assert_eq!(fused.plan.tidy.selected, 1, "{}", print(&fused.model));
}

#[test]
fn rows_stay_if_runs_of_them_are_no_samples() {
    // In the rows, the places vary slower than the batch, so that the rows of a sample are apart.
    let inner = of_rows("5 batch 4", "-1 4", "m = MatMul(r, w)", "5 -1 6");
    // A Softmax mixes the rows.
    let mixed = of_rows(
        "batch 5 4",
        "-1 4",
        "h = MatMul(r, w)\nm = Softmax(h) axis=0",
        "-1 5 6",
    );
    for before in [inner, mixed] {
        let fused = unfold::fuse(&before, &options()).unwrap();
        same(&before, &fused.model, 1e-6);
        assert_eq!(fused.plan.tidy.selected, 0, "{}", print(&before));
    }
    let stored = model(
        "input x 2 5 4
         weight w 4 6
         weight table 10 6
         ints rows 2 = -1 4
         ints apart 3 = 2 5 6
         ints first = 0
         r = Reshape(x, rows)
         h = MatMul(r, w)
         m = Add(h, table)
         y = Reshape(m, apart)
         s = Gather(y, first) axis=1
         output s",
    );
    assert_eq!(moved_selections(&stored), 0);
}

/// Attention over five tokens in which all layers read rows, and the head reads the first token of
/// each sample. `product` computes `a` from `n` with a weight `w` of the shape `weight`.
fn block_of_rows(weight: &str, product: &str) -> Model {
    model(&format!(
        "input x batch 5 8
         scale g 8
         shift c 8
         weight w {weight}
         shift b 24
         weight o 8 8
         ints rows 2 = -1 8
         ints apart 5 = -1 5 3 2 4
         ints tokens 3 = -1 5 8
         ints zero = 0
         ints one = 1
         ints two = 2
         r = Reshape(x, rows)
         n = LayerNormalization(r, g, c)
         {product}
         a5 = Reshape(a, apart)
         t = Transpose(a5) perm=[2,0,3,1,4]
         q = Gather(t, zero)
         k = Gather(t, one)
         v = Gather(t, two)
         {ATTENTION}
         j = Reshape(h, rows)
         f = MatMul(j, o)
         y = Add(r, f)
         z = Reshape(y, tokens)
         s = Gather(z, zero) axis=1
         output s"
    ))
}

#[test]
fn class_token_of_rows_needs_one_query_and_all_keys_and_values() {
    for (weight, product) in [
        ("8 24", "m = MatMul(n, w)\na = Add(m, b)"),
        ("8 24", "a = Gemm(n, w, b)"),
        ("24 8", "a = Gemm(n, w, b) transB=1"),
    ] {
        let fused = fuse_stable(&block_of_rows(weight, product));
        assert_eq!(fused.plan.tidy.selected, 2, "{product}");
        // One product computes the queries of one token, and another the keys and values of all
        // tokens.
        let stored = &fused.model.graph().initializer;
        let columns = stored
            .iter()
            .filter(|it| it.dims.len() == 2)
            .map(|it| it.dims[1]);
        let mut columns: Vec<i64> = columns.collect();
        columns.sort_unstable();
        assert_eq!(columns, [8, 8, 16], "{product}");
    }
    // A Gemm with an `alpha` other than 1 is not split.
    let text = print(&block_of_rows("8 24", "a = Gemm(n, w, b) alpha=0.5"));
    let text = text.replace("LayerNormalization(r, g, c)", "Tanh(r)");
    let fused = fuse_stable(&model(&text));
    assert_eq!(fused.plan.tidy.selected, 1, "{}", print(&fused.model));
}

/// The reference moves every coordinate by half a place, also along the axis of samples.
#[test]
fn sample_does_not_pass_a_resize_that_shifts_samples() {
    let resized = |nearest: &str| {
        selected(
            "input x 3 2 4 4\nweight w 2 2 1 1\nconst f 4 = 1 1 2 2\nints first = 0",
            &format!(
                "c = Conv(x, w)\ny = Resize(c, , f) coordinate_transformation_mode=tf_half_pixel_for_nn nearest_mode={nearest}"
            ),
            "Gather(y, first) axis=0",
        )
    };
    assert_eq!(moved_selections(&resized("floor")), 1);
    let shifted = resized("round_prefer_ceil");
    let fused = unfold::fuse(&shifted, &options()).unwrap();
    same(&shifted, &fused.model, 1e-6);
    assert_eq!(fused.plan.tidy.selected, 0);
}
