//! Linear operators move to where values have the fewest positions, with twins in which they stay.

use unfold::Target;
use unfold::onnx::Model;
use unfold::plan::Placed;
use unfold::prove::{Proof, prove};
use unfold::refusal::Reason;
use unfold::{FuseOptions, Fused};

use crate::common::operators;
use crate::common::text::{model, print};
use crate::same;

/// Fuses a model without a limit on the growth of weights.
pub fn fused(model: &Model) -> Fused {
    unfold::fuse(
        model,
        &FuseOptions {
            max_growth: 200.0,
            ..FuseOptions::default()
        },
    )
    .unwrap()
}

/// Asserts that an operator moves by the rule `rule`, that the result has the operators `expected`,
/// is equal and is proved, and that a second run moves nothing. Returns the plan's entry for the
/// first move.
pub fn assert_moves(text: &str, rule: &str, expected: &[&str]) -> Placed {
    let before = model(text);
    let Fused {
        model: after, plan, ..
    } = fused(&before);
    assert_eq!(operators(&after), expected, "{}", print(&after));
    let first = plan
        .placed
        .iter()
        .find(|placed| placed.rule == rule && placed.is_moved());
    let first = first.unwrap_or_else(|| panic!("{:?}", plan.placed)).clone();
    same(&before, &after, 1e-6);
    let proof = prove(&before, &after, &plan.tensors, &Default::default());
    assert!(
        matches!(proof, Proof::Proved { .. }),
        "{proof:?}\n{}",
        print(&after)
    );
    assert!(
        !unfold::fuse(
            &after,
            &FuseOptions {
                max_growth: 200.0,
                ..FuseOptions::default()
            }
        )
        .unwrap()
        .changed()
    );
    first
}

/// Asserts that nothing moves and that the results are equal.
pub fn assert_stays(text: &str) {
    let before = model(text);
    let Fused {
        model: after, plan, ..
    } = fused(&before);
    let moved: Vec<&Placed> = plan
        .placed
        .iter()
        .filter(|placed| placed.is_moved())
        .collect();
    assert!(moved.is_empty(), "{moved:?}\n{}", print(&after));
    same(&before, &after, 1e-6);
}

/// A pointwise convolution before a mean.
fn pooled(bias: &str, mean: &str) -> String {
    format!(
        "input x batch 6 4 4
         weight w 5 6 1 1
         shift b 5
         r = Relu(x)
         c = Conv(r, w{bias})
         {mean}
         output y"
    )
}

const POOLED: &[&str] = &["Relu", "AveragePool", "Conv"];

#[test]
fn pointwise_conv_moves_after_average_pool() {
    let mean = "y = AveragePool(c) kernel_shape=[2,2] strides=[2,2]";
    let placed = assert_moves(&pooled(", b", mean), "pooling", POOLED);
    let products = |places: usize| format!("{}·batch", 6 * 5 * places);
    assert_eq!([placed.before, placed.after], [products(16), products(4)]);
    assert_moves(&pooled("", mean), "pooling", POOLED);
    let wide = "y = AveragePool(c) kernel_shape=[3,3] strides=[2,2] pads=[1,1,1,1]";
    assert_moves(&pooled(", b", wide), "pooling", POOLED);
    // Without a bias, the convolution maps the padded zeros to zeros, so they may count in the
    // mean.
    assert_moves(
        &pooled("", &format!("{wide} count_include_pad=1")),
        "pooling",
        POOLED,
    );
}

#[test]
fn conv_with_bias_stays_before_average_pool_that_counts_padding() {
    assert_stays(&pooled(
        ", b",
        "y = AveragePool(c) kernel_shape=[3,3] strides=[2,2] pads=[1,1,1,1] count_include_pad=1",
    ));
}

#[test]
fn conv_stays_before_pooling_that_saves_nothing() {
    assert_stays(&pooled(
        ", b",
        "y = AveragePool(c) kernel_shape=[3,3] pads=[1,1,1,1]",
    ));
    assert_stays(&pooled(
        "",
        "y = AveragePool(c) kernel_shape=[1,1] strides=[1,1]",
    ));
    // The mean includes the channels.
    assert_stays(&pooled("", "y = ReduceMean(c) axes=[1,2]"));
    // A sum adds the bias once for each place.
    assert_stays(&pooled(", b", "y = ReduceSum(c)"));
}

#[test]
fn conv_with_another_reader_stays_before_average_pool() {
    let also = "y = AveragePool(c) kernel_shape=[2,2] strides=[2,2]\n z = Relu(c)";
    assert_stays(&pooled(", b", also).replace("output y", "output y z"));
}

#[test]
fn conv_moves_after_global_average_pool_and_reduce_mean() {
    assert_moves(
        &pooled(", b", "y = GlobalAveragePool(c)"),
        "pooling",
        &["Relu", "GlobalAveragePool", "Conv"],
    );
    assert_moves(
        &pooled(", b", "y = ReduceMean(c) axes=[2,3]"),
        "pooling",
        &["Relu", "ReduceMean", "Conv"],
    );
    // The two Squeezes that would be needed cost more time than the move saves.
    assert_stays(&pooled(", b", "y = ReduceMean(c) axes=[-1,2] keepdims=0"));
    let squeezed = ["Relu", "ReduceMean", "Conv", "Squeeze", "Squeeze"];
    let large =
        pooled("", "y = ReduceMean(c) axes=[-1,2] keepdims=0").replace("5 6 1 1", "80 64 1 1");
    assert_moves(&large.replace("batch 6", "batch 64"), "pooling", &squeezed);
}

#[test]
fn conv_moves_after_reduce_sum_of_known_extents() {
    let sum = "ints all 2 = 2 3\n y = ReduceSum(c, all)";
    let moved = ["Relu", "ReduceSum", "Conv"];
    assert_moves(&pooled("", sum), "pooling", &moved);
    assert_moves(
        &pooled("", sum).replace("6 4 4", "6 h 4"),
        "pooling",
        &moved,
    );
    // The bias of the Conv would have to be multiplied by the number of places.
    assert_stays(&pooled(", b", sum));
}

#[test]
fn reduce_sum_multiplies_a_bias_by_the_number_of_tokens() {
    let sum = |tokens: &str| {
        format!(
            "input x batch {tokens} 128
             weight w 128 256
             shift b 256
             ints second 1 = 1
             s = Sigmoid(x)
             h = MatMul(s, w)
             a = Add(h, b)
             y = ReduceSum(a, second)
             output y"
        )
    };
    let before = model(&sum("5"));
    let after = fused(&before);
    let moved = after.plan.placed.iter().any(Placed::is_moved);
    assert!(moved, "{}", print(&after.model));
    same(&before, &after.model, 1e-6);
    let proof = prove(
        &before,
        &after.model,
        &after.plan.tensors,
        &Default::default(),
    );
    assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
    // With an open number of tokens, the factor of the bias is unknown.
    assert_stays(&sum("tokens"));
}

/// The last layer of a network on tokens, and a mean of all tokens.
fn tokens(layer: &str, mean: &str) -> String {
    format!(
        "input x batch tokens 128
         weight w 128 256
         weight v 256 128
         shift b 128
         scale g 128
         s = Sigmoid(x)
         h = MatMul(s, w)
         r = Relu(h)
         {layer}
         y = {mean}
         output y"
    )
}

const LAYER: &str = "p = MatMul(r, v)\n a = Add(p, b)\n z = Add(s, a)";

#[test]
fn reduce_mean_of_tokens_moves_before_residual_add_and_matmul() {
    // The target is portable, because for the CPU the product and its bias become a Gemm.
    let before = model(&tokens(LAYER, "ReduceMean(z) axes=[1]"));
    let options = FuseOptions {
        target: Target::Portable,
        ..FuseOptions::default()
    };
    let Fused {
        model: after, plan, ..
    } = unfold::fuse(&before, &options).unwrap();
    let mut found = operators(&after);
    found.sort_unstable();
    assert_eq!(
        found,
        [
            "Add",
            "Add",
            "MatMul",
            "MatMul",
            "ReduceMean",
            "ReduceMean",
            "Relu",
            "Sigmoid"
        ]
    );
    let [placed] = &plan.placed[..] else {
        panic!("{:?}", plan.placed)
    };
    assert_eq!(
        [&*placed.before, &*placed.after],
        ["32768·batch·tokens", "32768·batch"]
    );
    same(&before, &after, 1e-6);
    let proof = prove(&before, &after, &plan.tensors, &Default::default());
    assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
}

#[test]
fn reduce_mean_of_tokens_stops_at_nonlinear_operators() {
    let relu = "p = MatMul(r, v)\n a = Add(p, b)\n z = Relu(a)";
    assert_stays(&tokens(relu, "ReduceMean(z) axes=[1]"));
    assert_stays(&tokens(LAYER, "ReduceMax(z) axes=[1]"));
    assert_stays(&tokens(LAYER, "ReduceSum(z) keepdims=0"));
    // The mean is over channels instead of tokens.
    assert_stays(&tokens(LAYER, "ReduceMean(z) axes=[2]"));
}

#[test]
fn skip_keeps_pooling_in_place() {
    let before = model(&pooled(", b", "y = GlobalAveragePool(c)"));
    for skip in ["placement", "pooling", "Conv_c"] {
        let skip = vec![skip.to_owned()];
        let after = unfold::fuse(
            &before,
            &FuseOptions {
                skip,
                ..FuseOptions::default()
            },
        )
        .unwrap();
        assert!(after.plan.placed.is_empty());
        assert_eq!(
            operators(&after.model),
            ["Relu", "Conv", "GlobalAveragePool"]
        );
    }
}

/// A nearest Resize by a factor, and a convolution to five channels with enough input channels for
/// a gain.
fn upsampled(times: usize, how: &str, conv: &str, between: &str) -> String {
    format!(
        "input x batch 64 3 4
         const f 4 = 1 1 {times} {times}
         weight w 2 64 3 3
         shift b 2
         a = Resize(x, , f) mode=nearest {how}
         {between}
         y = Conv(u, w, b) {conv}
         output y"
    )
}

const FLOOR: &str = "coordinate_transformation_mode=asymmetric nearest_mode=floor";
const SAME: &str = "pads=[1,1,1,1]";
const IS: &str = "u = Identity(a)";

/// The operators of a result with one convolution for each phase.
fn phases(times: usize) -> Vec<&'static str> {
    [vec!["Conv"; times * times], vec!["Concat", "DepthToSpace"]].concat()
}

#[test]
fn conv_after_nearest_resize_becomes_one_conv_per_phase() {
    let placed = assert_moves(&upsampled(2, FLOOR, SAME, IS), "phases", &phases(2));
    assert_eq!(placed.before, format!("{}·batch", 2 * 64 * 9 * 48));
    assert_eq!(placed.after, format!("{}·batch", 2 * 64 * 16 * 12));
    assert_moves(&upsampled(3, FLOOR, SAME, IS), "phases", &phases(3));
    assert_moves(
        &upsampled(2, FLOOR, "auto_pad=SAME_UPPER", IS),
        "phases",
        &phases(2),
    );
    assert_moves(
        &upsampled(2, FLOOR, "pads=[2,0,0,2]", IS),
        "phases",
        &phases(2),
    );
    // The defaults are half_pixel and round_prefer_floor, which choose the place ⌊i/s⌋ for every
    // factor s.
    assert_moves(&upsampled(3, "", SAME, IS), "phases", &phases(3));
    let halved = "coordinate_transformation_mode=asymmetric nearest_mode=round_prefer_floor";
    assert_moves(&upsampled(2, halved, SAME, IS), "phases", &phases(2));
}

#[test]
fn phases_keep_groups_and_unknown_extents() {
    let groups = "input x batch 128 h w
         const f 4 = 1 1 2 2
         weight v 4 64 3 3
         u = Resize(x, , f) mode=nearest coordinate_transformation_mode=asymmetric nearest_mode=floor
         y = Conv(u, v) pads=[1,1,1,1] group=2
         output y";
    assert_moves(groups, "phases", &phases(2));
}

#[test]
fn phases_of_few_channels_would_cost_more_than_they_save() {
    let of_32_channels = upsampled(2, FLOOR, SAME, IS)
        .replace("batch 64 3 4", "batch 32 3 4")
        .replace("w 2 64 3 3", "w 2 32 3 3");
    assert_stays(&of_32_channels);
}

#[test]
fn resize_with_other_rounding_modes_or_sizes_has_no_phases() {
    for how in [
        "coordinate_transformation_mode=asymmetric nearest_mode=round_prefer_floor",
        "coordinate_transformation_mode=asymmetric nearest_mode=round_prefer_ceil",
        "coordinate_transformation_mode=asymmetric nearest_mode=ceil",
        "coordinate_transformation_mode=half_pixel nearest_mode=floor",
        "coordinate_transformation_mode=align_corners nearest_mode=floor",
    ] {
        assert_stays(&upsampled(3, how, SAME, IS));
    }
    assert_stays(&upsampled(
        2,
        "coordinate_transformation_mode=asymmetric nearest_mode=round_prefer_ceil",
        SAME,
        IS,
    ));
    assert_stays(&upsampled(2, FLOOR, SAME, IS).replace("mode=nearest", "mode=linear"));
    let odd = "input x batch 64 3 4
         ints s 4 = 1 64 7 9
         weight w 2 64 3 3
         u = Resize(x, , , s) mode=nearest coordinate_transformation_mode=asymmetric nearest_mode=floor
         y = Conv(u, w) pads=[1,1,1,1]
         output y";
    assert_stays(&odd.replace("x batch", "x 1"));
}

#[test]
fn conv_with_other_padding_strides_or_dilations_has_no_phases() {
    for conv in [
        "",
        "pads=[1,1,1,1] strides=[2,2]",
        "pads=[2,2,2,2] dilations=[2,2]",
        "pads=[2,2,1,1]",
    ] {
        assert_stays(&upsampled(2, FLOOR, conv, IS));
    }
    // The Pad reflects the image instead of adding zeros.
    let reflected = "ints p 8 = 0 0 1 1 0 0 1 1\n u = Pad(a, p) mode=reflect";
    assert_stays(&upsampled(2, FLOOR, "", reflected));
}

#[test]
fn elementwise_operators_move_before_nearest_resize() {
    let relu = upsampled(2, FLOOR, SAME, "u = Relu(a)");
    assert_moves(&relu, "nearest", &[vec!["Relu"], phases(2)].concat());
    let scaled = "scale g 64 1 1\n t = Tanh(a)\n u = Mul(t, g)";
    assert_moves(
        &upsampled(2, FLOOR, SAME, scaled),
        "nearest",
        &[vec!["Tanh"], phases(2)].concat(),
    );
    // In mode linear, a place of the result depends on several places.
    assert_stays(&upsampled(2, FLOOR, SAME, "u = Relu(a)").replace("mode=nearest", "mode=linear"));
    // A different number is added at each place of the larger image.
    assert_stays(
        &upsampled(2, FLOOR, SAME, "shift t 1 1 6 8\n u = Add(a, t)\n").replace("x batch", "x 1"),
    );
}

#[test]
fn phases_beyond_the_growth_limit_are_refused_with_their_gain() {
    let before = model(&upsampled(2, FLOOR, SAME, IS));
    let after = unfold::fuse(&before, &FuseOptions::default()).unwrap();
    let [placed] = &after.plan.placed[..] else {
        panic!("{:?}", after.plan.placed)
    };
    assert!(
        matches!(&placed.why.as_ref().unwrap().reason, Reason::Growth(_)),
        "{placed:?}"
    );
    assert_eq!(placed.before, format!("{}·batch", 2 * 64 * 9 * 48));
    assert_eq!(operators(&after.model), ["Resize", "Conv"]);
}

/// A pointwise convolution behind a Resize.
fn resized(bias: &str, resize: &str) -> String {
    format!(
        "input x batch 16 3 4
         const f 4 = 1 1 2 2
         const odd 4 = 1 1 2 1.5
         weight w 8 16 1 1
         shift b 8
         r = Relu(x)
         u = Resize(r, , {resize}
         y = Conv(u, w{bias})
         output y"
    )
}

const RESIZED: &[&str] = &["Relu", "Conv", "Resize"];

#[test]
fn pointwise_conv_moves_before_resize() {
    assert_moves(&resized(", b", "f) mode=linear"), "resize", RESIZED);
    assert_moves(&resized(", b", "f) mode=nearest"), "resize", RESIZED);
    assert_moves(
        &resized(
            ", b",
            "f) mode=linear coordinate_transformation_mode=align_corners",
        ),
        "resize",
        RESIZED,
    );
    let sizes = resized(", b", ", s) mode=linear")
        .replace("const odd 4 = 1 1 2 1.5", "ints s 4 = 2 16 6 9");
    assert_moves(&sizes.replace("x batch", "x 2"), "resize", RESIZED);
}

#[test]
fn pointwise_conv_stays_after_resize_that_shifts_channels() {
    // The definition adds half a place also along axes with factor 1, and then rounds.
    let shifted =
        "f) mode=nearest coordinate_transformation_mode=tf_half_pixel_for_nn nearest_mode=";
    assert_moves(&resized("", &format!("{shifted}floor")), "resize", RESIZED);
    assert_stays(&resized("", &format!("{shifted}ceil")));
    let between = "f) mode=linear coordinate_transformation_mode=tf_half_pixel_for_nn";
    assert_stays(&resized("", between));
}

#[test]
fn pointwise_conv_moves_before_resize_with_computed_sizes() {
    let text = "input x batch 16 3 4
         ints first 2 = 0 1
         ints last 2 = 6 8
         weight w 8 16 1 1
         r = Relu(x)
         all = Shape(x)
         kept = Gather(all, first)
         s = Concat(kept, last) axis=0
         u = Resize(r, , , s) mode=linear
         y = Conv(u, w)
         output y";
    let before = model(text);
    let Fused {
        model: after, plan, ..
    } = fused(&before);
    assert!(
        plan.placed
            .iter()
            .any(|placed| placed.rule == "resize" && placed.is_moved())
    );
    same(&before, &after, 1e-6);
    let proof = prove(&before, &after, &plan.tensors, &Default::default());
    assert!(
        matches!(proof, Proof::Proved { .. }),
        "{proof:?}\n{}",
        print(&after)
    );
}

#[test]
fn conv_stays_after_resize_that_shrinks_or_extrapolates() {
    // The second factor would make one place of one.
    assert_stays(&resized(", b", "odd) mode=linear"));
    assert_stays(&resized(", b", "f) mode=linear").replace("1 1 2 2", "1 1 0.5 2"));
    let crop = "roi, f) mode=linear coordinate_transformation_mode=tf_crop_and_resize extrapolation_value=1.0";
    let text = resized(", b", "f) mode=linear").replace(", , f) mode=linear", &format!(", {crop}"));
    let before = model(&text.replace("const odd 4 = 1 1 2 1.5", "const roi 8 = 0 0 -1 -1 1 1 2 2"));
    assert!(fused(&before).plan.placed.is_empty());
    // At the border, `exclude_outside` rescales the remaining weights.
    let cubic = model(&resized(", b", "f) mode=cubic exclude_outside=1"));
    assert!(fused(&cubic).plan.placed.is_empty());
    // The Resize changes the number of channels.
    assert_stays(
        &resized(", b", "f) mode=linear")
            .replace("1 1 2 2", "1 2 2 2")
            .replace("x batch 16", "x batch 8"),
    );
}

/// A convolution on the joined maps of two sizes.
fn maps(conv: &str, last: &str) -> String {
    format!(
        "input x batch 16 2 2
         input z batch 12 4 4
         const f 4 = 1 1 2 2
         weight w 8 28 {conv}
         shift b 8
         r = Relu(x)
         s = Relu(z)
         u = Resize(r, , f) mode=linear
         c = Concat(u, s) axis=1
         y = Conv(c, w, b) {last}
         output y"
    )
}

#[test]
fn conv_of_concat_with_a_resized_part_is_split() {
    let placed = assert_moves(
        &maps("1 1", ""),
        "concat",
        &["Relu", "Relu", "Conv", "Conv", "Resize", "Add"],
    );
    assert_eq!(placed.before, format!("{}·batch", 28 * 8 * 16));
    assert_eq!(placed.after, format!("{}·batch", 12 * 8 * 16 + 16 * 8 * 4));
}

#[test]
fn conv_of_concat_without_a_smaller_part_stays() {
    assert_stays(&maps("3 3", "pads=[1,1,1,1]"));
    // Another operator reads the enlarged map.
    assert_stays(&maps("1 1", "\n q = Tanh(u)").replace("output y", "output y q"));
}

#[test]
fn portable_target_moves_pooling_only() {
    let target = Target::Portable;
    let portable = |text: &str| {
        unfold::fuse(
            &model(text),
            &FuseOptions {
                target,
                ..FuseOptions::default()
            },
        )
        .unwrap()
    };
    assert!(portable(&maps("1 1", "")).plan.placed.is_empty());
    assert!(
        portable(&resized(", b", "f) mode=linear"))
            .plan
            .placed
            .is_empty()
    );
    assert_eq!(
        portable(&pooled(", b", "y = GlobalAveragePool(c)"))
            .plan
            .placed
            .len(),
        1
    );
}

/// A token that `copy` repeats, and the lines of a product.
fn copied(copy: &str, layer: &str) -> String {
    format!(
        "input x batch 1 8
         ints n 3 = 1 5 1
         weight w 8 6
         shift t 5 1
         r = Relu(x)
         c = {copy}
         {layer}
         output y"
    )
}

#[test]
fn matmul_moves_before_tile_and_expand() {
    let layer = "y = MatMul(c, w)";
    for copy in ["Expand(r, n)", "Tile(r, n)"] {
        let op = copy.split('(').next().unwrap();
        let placed = assert_moves(&copied(copy, layer), "resize", &["Relu", "MatMul", op]);
        let products = |places: usize| format!("{}·batch", 8 * 6 * places);
        assert_eq!([placed.before, placed.after], [products(5), products(1)]);
        // A different number is added to each copy, so the Add stays behind.
        let own = "m = MatMul(c, w)\n y = Add(m, t)";
        assert_moves(&copied(copy, own), "resize", &["Relu", "MatMul", op, "Add"]);
    }
    // The channels are repeated.
    let channels = copied("Tile(r, n)", "y = MatMul(c, w)").replace("1 5 1", "1 1 2");
    assert_stays(&channels.replace("w 8 6", "w 16 6"));
    // Another operator reads the copies.
    let also = copied("Tile(r, n)", "y = MatMul(c, w)\n z = Relu(c)");
    assert_stays(&also.replace("output y", "output y z"));
}

/// A product on the windows of a padded image.
fn windows(pad: &str, layer: &str) -> String {
    format!(
        "input x batch 5 5 32
         ints p 8 = 0 0 0 0 0 1 1 0
         const one = 1
         ints parts 6 = -1 3 2 3 2 32
         ints rows 3 = -1 4 32
         weight w 32 32
         shift b 32
         r = Relu(x)
         q = Pad(r, p{pad}
         a = Reshape(q, parts)
         t = Transpose(a) perm=[0,1,3,2,4,5]
         u = Reshape(t, rows)
         {layer}
         output y"
    )
}

#[test]
fn matmul_moves_before_pad_of_windows() {
    let layer = "m = MatMul(u, w)\n y = Add(m, b)";
    let expected = [
        "Relu",
        "MatMul",
        "Pad",
        "Reshape",
        "Transpose",
        "Reshape",
        "Add",
    ];
    for pad in [")", ") mode=reflect", ") mode=edge"] {
        let placed = assert_moves(&windows(pad, layer), "padding", &expected);
        assert_eq!(placed.after, format!("{}·batch", 32 * 32 * 25), "{pad}");
    }
}

#[test]
fn matmul_stays_after_pad_of_other_numbers_or_of_channels() {
    assert_stays(&windows(", one)", "y = MatMul(u, w)"));
    let channels = "input x batch 5 31\n ints p 6 = 0 0 0 0 0 1\n weight w 32 32
         r = Relu(x)\n q = Pad(r, p)\n y = MatMul(q, w)\n output y";
    assert_stays(channels);
    // A Gemm would turn the padded zeros into its bias.
    let biased = "input x 5 32\n ints p 4 = 0 0 1 0\n weight w 32 32\n shift b 32
         r = Relu(x)\n q = Pad(r, p)\n y = Gemm(q, w, b)\n output y";
    assert_stays(biased);
}

#[test]
fn mean_stays_after_a_sum_that_raises_the_rank() {
    assert_stays(
        "input x 2 3 4\n const c 3 1 = 0 1 2\n const z 1 1 1 1 = 1
         a = Sigmoid(x)\n b = Add(a, c)\n d = Add(b, z)
         y = ReduceMean(d) axes=[-1] keepdims=0\n output y",
    );
}
