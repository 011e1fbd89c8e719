//! Branches that are linear in one value. Merged branches are equal bit for bit. Branches that are
//! not linear, not aligned, or read elsewhere stay.
//! are not linear, not aligned or read elsewhere stay.

use crate::common::portable;
use unfold::onnx::Model;
use unfold::onnx::proto::NodeProto;
use unfold::plan::{Direction, Outcome};
use unfold::refusal::Reason;
use unfold::{FuseOptions, fuse};

use crate::common::numbers::Numbers;
use crate::common::operators;
use crate::common::text::model;
use crate::{becomes, fused, kept, reasons_of, same};

/// The reason why branches stay.
fn refused(text: &str) -> Reason {
    let model = model(text);
    let after = fuse(&model, &portable()).unwrap();
    assert_eq!(after.model.proto, model.proto, "something has changed");
    kept(&model).0
}

fn only_node<'m>(model: &'m Model, op: &str) -> &'m NodeProto {
    let mut found = model
        .graph()
        .node
        .iter()
        .filter(|node| node.op_type() == op);
    let first = found.next().unwrap();
    assert!(found.next().is_none());
    first
}

fn ints<'m>(node: &'m NodeProto, name: &str) -> &'m [i64] {
    node.attr_ints(name).unwrap().unwrap()
}

/// The block of RepVGG: two kernels, an affine of the input, and the input itself.
const BLOCK: &str = "input x batch 4 5 6
    weight v 4 4 3 3
    weight w 4 4 1 1
    shift c 4
    scale g 4 1 1
    shift t 4 1 1
    a = Conv(x, v, c) pads=[1,1,1,1]
    b = Conv(x, w)
    n = Mul(x, g)
    m = Add(n, t)
    s = Add(a, b)
    r = Add(s, m)
    y = Add(r, x)
    output y";

#[test]
fn conv_branches_affine_and_identity_merge_into_one_conv() {
    let after = becomes(&model(BLOCK), &["Conv"]);
    let conv = only_node(&after, "Conv");
    assert_eq!(
        (ints(conv, "kernel_shape"), ints(conv, "pads")),
        (&[3, 3][..], &[1, 1, 1, 1][..])
    );
}

#[test]
fn plan_lists_the_nodes_of_merged_branches() {
    let plan = fused(&model(BLOCK)).plan;
    let [site] = &plan.sites[..] else {
        panic!("{:#?}", plan.sites)
    };
    assert_eq!(
        (site.kind.name, site.channels, site.axis),
        ("branches", 4, 1)
    );
    assert_eq!(
        site.nodes,
        [
            "Conv_a", "Conv_b", "Mul_n", "Add_m", "Add_s", "Add_r", "Add_y"
        ]
    );
    let into = vec!["Conv_a".to_owned()];
    assert_eq!(
        site.post,
        Some(Outcome::Folded {
            direction: Direction::Merged,
            into
        })
    );
    assert_eq!(plan.tensors[0].replaces.as_deref(), Some("v"));
}

#[test]
fn skip_branches_keeps_linear_branches() {
    let model = model(BLOCK);
    let skip = vec!["branches".to_owned()];
    let fused = fuse(&model, &FuseOptions { skip, ..portable() }).unwrap();
    assert_eq!(fused.model.proto, model.proto);
    let [site] = &fused.plan.sites[..] else {
        panic!("{:#?}", fused.plan.sites)
    };
    assert!(
        matches!(&site.post, Some(Outcome::Kept { forward, .. }) if forward.reason == Reason::Skipped)
    );
}

#[test]
fn batch_norms_fold_before_their_branches_merge() {
    let model = model(
        "input x batch 2 5
         weight v 2 2 3
         weight w 2 2 1
         const g 2 = 2 -1
         const b 2 = 1 3
         const m 2 = 0.5 -2
         const one 2 = 1 1
         p = Conv(x, v) pads=[1,1]
         a = BatchNormalization(p, g, b, m, one) epsilon=0.0
         q = Conv(x, w)
         c = BatchNormalization(q, b, g, m, one) epsilon=0.0
         d = BatchNormalization(x, g, m, b, one) epsilon=0.0
         s = Add(a, c)
         r = Add(s, d)
         y = Relu(r)
         output y",
    );
    let fused = fused(&model);
    assert_eq!(operators(&fused.model), ["Conv", "Relu"]);
    let told: Vec<_> = fused
        .plan
        .sites
        .iter()
        .map(|site| (site.kind.name, site.is_folded()))
        .collect();
    assert_eq!(
        told,
        [("BN", true), ("BN", true), ("BN", true), ("branches", true)]
    );
}

/// The RepMixer of FastViT subtracts its own input.
#[test]
fn subtracted_and_scaled_branches_merge_as_in_rep_mixer() {
    let model = model(
        "input x batch 4 5 5
         weight v 4 1 3 3
         weight w 4 1 1 1
         scale g 4 1 1
         shift h 4 1 1
         scale layer 4 1 1
         a = Conv(x, v) group=4 pads=[1,1,1,1]
         b = Conv(x, w) group=4
         s = Add(a, b)
         n = Mul(x, g)
         m = Add(n, h)
         r = Sub(s, m)
         q = Mul(r, layer)
         y = Add(x, q)
         output y",
    );
    let after = becomes(&model, &["Conv"]);
    assert_eq!(only_node(&after, "Conv").attr_i("group").unwrap(), Some(4));
}

#[test]
fn grouped_convs_merge_without_more_products() {
    let after = becomes(
        &model(
            "input x batch 4 5
             weight v 4 1 3
             weight w 4 2 3
             a = Conv(x, v) group=4 pads=[1,1]
             b = Conv(x, w) group=2 pads=[1,1]
             y = Add(a, b)
             output y",
        ),
        &["Conv"],
    );
    assert_eq!(only_node(&after, "Conv").attr_i("group").unwrap(), Some(2));
    // The grouped kernel has two channels in and six out, in blocks of three by two.
    becomes(
        &model(
            "input x batch 4 5
             weight v 6 2 3
             weight w 6 4 3
             a = Conv(x, v) group=2 pads=[1,1]
             b = Conv(x, w) pads=[1,1]
             y = Add(a, b)
             output y",
        ),
        &["Conv"],
    );
}

#[test]
fn dilated_kernels_merge() {
    let after = becomes(
        &model(
            "input x batch 2 9
             weight v 2 2 3
             weight w 2 2 5
             a = Conv(x, v) dilations=[2] pads=[2,2]
             b = Conv(x, w) pads=[2,2]
             y = Add(a, b)
             output y",
        ),
        &["Conv"],
    );
    assert_eq!(ints(only_node(&after, "Conv"), "dilations"), [1]);
    // The merged kernel reads only every second place.
    let after = becomes(
        &model(
            "input x batch 2 9
             weight v 2 2 3
             weight w 2 2 1
             a = Conv(x, v) dilations=[2] pads=[2,2]
             b = Conv(x, w)
             y = Add(b, a)
             output y",
        ),
        &["Conv"],
    );
    assert_eq!(ints(only_node(&after, "Conv"), "dilations"), [2]);
}

#[test]
fn asymmetric_and_auto_padding_merge() {
    let after = becomes(
        &model(
            "input x batch 2 9
             weight v 2 2 3
             weight w 2 2 2
             a = Conv(x, v) strides=[2] pads=[1,0]
             b = Conv(x, w) strides=[2]
             y = Add(a, b)
             output y",
        ),
        &["Conv"],
    );
    assert_eq!(ints(only_node(&after, "Conv"), "pads"), [1, 0]);
    for auto in ["SAME_UPPER", "SAME_LOWER"] {
        becomes(
            &model(&format!(
                "input x batch 2 6
                 weight v 2 2 4
                 weight w 2 2 1
                 a = Conv(x, v) auto_pad={auto}
                 b = Conv(x, w) auto_pad=VALID
                 y = Add(a, b)
                 output y"
            )),
            &["Conv"],
        );
    }
}

#[test]
fn average_pool_that_counts_padding_merges_into_conv() {
    becomes(
        &model(
            "input x batch 2 7
             weight v 2 2 4
             a = Conv(x, v) pads=[2,1]
             b = AveragePool(x) kernel_shape=[4] pads=[2,1] count_include_pad=1
             y = Sub(a, b)
             output y",
        ),
        &["Conv"],
    );
}

/// As in the Diverse Branch Block. A shift after the mean would not affect the border that the mean
/// counts.
#[test]
fn affine_after_average_pool_merges_into_conv() {
    let around = |affine: &str, more: &str| {
        model(&format!(
            "input x batch 2 7
             weight v 2 2 4
             a = Conv(x, v) pads=[2,1]
             b = AveragePool(x) kernel_shape=[4] pads=[2,1] count_include_pad=1
             divisor sigma 2 1
             scale g 2 1
             shift t 2 1
             {affine}
             y = Sub(a, d)
             output y {more}"
        ))
    };
    becomes(&around("d = Mul(b, g)", ""), &["Conv"]);
    becomes(
        &around("e = Div(b, sigma)\n c = Mul(e, g)\n d = Add(c, t)", ""),
        &["Conv"],
    );
    // A result with another reader is still computed.
    let before = around("d = Mul(b, g)", "b");
    let after = crate::fused(&before).model;
    assert!(operators(&after).contains(&"AveragePool"));
}

#[test]
fn matmul_and_gemm_branches_merge_with_their_biases() {
    becomes(
        &model(
            "input x batch 3 4
             weight v 4 4
             weight w 4 4
             shift b 4
             shift c 4
             p = MatMul(x, v)
             q = MatMul(x, w)
             a = Add(p, b)
             d = Add(c, q)
             s = Sub(d, a)
             y = Add(s, x)
             output y",
        ),
        &["MatMul", "Add"],
    );
    becomes(
        &model(
            "input x batch 4
             weight v 4 3
             weight w 3 4
             shift b 3
             shift c 1 3
             p = Gemm(x, v, b) alpha=0.5 beta=2.0
             q = Gemm(x, w) transB=1
             s = Sum(p, q, c)
             output s",
        ),
        &["Gemm"],
    );
}

/// A low-rank correction that was not merged into its weight.
#[test]
fn chain_of_two_linear_operators_merges_as_a_branch() {
    becomes(
        &model(
            "input x batch 3 8
             weight w 8 8
             weight v 8 2
             weight u 2 8
             p = MatMul(x, w)
             q = MatMul(x, v)
             r = MatMul(q, u)
             y = Add(p, r)
             output y",
        ),
        &["MatMul"],
    );
    becomes(
        &model(
            "input x batch 4 6
             weight w 4 4 3
             shift b 4
             weight v 4 4 1
             shift c 4
             weight u 4 4 1
             p = Conv(x, w, b) pads=[1,1]
             q = Conv(p, v, c)
             r = Conv(x, u)
             y = Sub(r, q)
             output y",
        ),
        &["Conv"],
    );
    let reason = refused(
        "input x batch 3 8
         weight v 8 1
         weight u 1 8
         q = MatMul(x, v)
         r = MatMul(q, u)
         y = Add(x, r)
         output y",
    );
    assert_eq!(
        reason,
        Reason::MoreWork("64 products at each place, not 32".into())
    );
}

#[test]
fn terms_of_other_values_stay_in_the_sum() {
    becomes(
        &model(
            "input x batch 4 5
             input z batch 4 5
             weight v 4 4 1
             weight w 4 4 1
             a = Conv(x, v)
             b = Conv(x, w)
             s = Sub(z, a)
             y = Sub(s, b)
             output y",
        ),
        &["Conv", "Add"],
    );
    // Two values, each with its own branches.
    becomes(
        &model(
            "input x batch 4 5
             input z batch 4 5
             weight v 4 4 1
             weight w 4 4 1
             a = Conv(x, v)
             b = Conv(z, w)
             s = Add(x, a)
             r = Sub(z, b)
             y = Sub(s, r)
             output y",
        ),
        &["Conv", "Conv", "Add"],
    );
}

#[test]
fn constant_terms_merge_into_the_bias_or_stay() {
    becomes(
        &model(
            "input x batch 4 5
             const zero = 0
             shift t 1 4 1
             weight v 4 4 1
             weight w 4 4 1
             a = Conv(x, v)
             b = Conv(x, w)
             p = Add(zero, a)
             s = Add(p, b)
             y = Sub(s, t)
             output y",
        ),
        &["Conv"],
    );
    becomes(
        &model(
            "input x batch 4 5
             shift t 4 5
             weight v 4 4 1
             weight w 4 4 1
             a = Conv(x, v)
             b = Conv(x, w)
             p = Add(t, a)
             y = Add(p, b)
             output y",
        ),
        &["Conv", "Add"],
    );
}

/// A constant folded in the same pass has a new name.
#[test]
fn branches_merge_after_an_affine_before_them_folds() {
    becomes(
        &model(
            "input x batch 4 5
             weight u 4 4 1
             scale g 4 1
             shift t 4 1
             weight v 4 4 1
             weight w 4 4 1
             scale h 4 1
             o = Conv(x, u)
             n = Mul(o, g)
             m = Add(n, t)
             a = Conv(m, v)
             b = Conv(m, w)
             s = Add(a, b)
             r = Add(s, m)
             q = Mul(r, h)
             y = Relu(q)
             output y",
        ),
        &["Conv", "Relu"],
    );
}

#[test]
fn large_branch_weights_merge() {
    becomes(
        &model(
            "input x batch 64 3
             weight v 64 64 5
             weight w 64 64 3
             a = Conv(x, v) pads=[2,2]
             b = Conv(x, w) pads=[1,1]
             s = Add(a, b)
             y = Add(s, x)
             output y",
        ),
        &["Conv"],
    );
}

#[test]
fn branches_with_unaligned_windows_stay() {
    let two = |one: &str, other: &str, x: &str| {
        refused(&format!(
            "input x batch {x}
             weight v 2 2 3
             weight w 2 2 1
             a = Conv(x, v) {one}
             b = Conv(x, w) {other}
             y = Add(a, b)
             output y"
        ))
    };
    // Each branch reads one place. It is the same place only for this extent.
    assert_eq!(two("pads=[1,1]", "strides=[2]", "2 1"), Reason::Unaligned);
    assert_eq!(two("pads=[0,2]", "pads=[1,0]", "2 1"), Reason::Unaligned);
    // The border depends on the extent.
    let same = two("auto_pad=SAME_UPPER strides=[2]", "strides=[2]", "2 5");
    assert_eq!(same, Reason::Attribute("auto_pad".into()));
}

#[test]
fn average_pool_that_ignores_padding_stays() {
    let reason = refused(
        "input x batch 2 7
         weight v 2 2 3
         a = Conv(x, v) pads=[1,1]
         b = AveragePool(x) kernel_shape=[3] pads=[1,1]
         y = Sub(a, b)
         output y",
    );
    assert_eq!(reason, Reason::Attribute("count_include_pad".into()));
}

#[test]
fn branch_with_another_reader_stays() {
    let branches = |more: &str| {
        refused(&format!(
            "input x batch 2 5
             weight v 2 2 1
             weight w 2 2 1
             a = Conv(x, v)
             b = Conv(x, w)
             y = Add(a, b)
             {more}"
        ))
    };
    assert_eq!(branches("r = Relu(b)\n output y r"), Reason::OtherReader);
    assert_eq!(branches("output y b"), Reason::GraphOutput);
}

#[test]
fn branch_with_a_computed_weight_stays() {
    let reason = refused(
        "input x batch 2 5
         input v 2 2 1
         weight w 2 2 1
         a = Conv(x, v)
         b = Conv(x, w)
         y = Add(a, b)
         output y",
    );
    assert_eq!(reason, Reason::NotConstant);
}

#[test]
fn broadcast_value_does_not_merge_as_identity() {
    let reason = refused(
        "input x batch 1 5
         weight v 4 1 1
         a = Conv(x, v)
         y = Add(a, x)
         output y",
    );
    assert_eq!(reason, Reason::WrongAxis);
}

#[test]
fn merging_a_shared_weight_counts_as_growth() {
    let model = model(
        "input x batch 8 5
         weight v 8 8 1
         weight w 8 8 1
         a = Conv(x, v)
         b = Conv(x, w)
         s = Add(a, b)
         r = Relu(s)
         c = Conv(r, v)
         d = Relu(c)
         y = Conv(d, w)
         output y",
    );
    let fused = fuse(&model, &portable()).unwrap();
    assert_eq!(fused.model.proto, model.proto);
    let reason = Reason::Growth("256 bytes, 50.0 % of the weights".into());
    assert_eq!(reasons_of(&fused.plan.sites[0]).0, reason);
    let fused = fuse(
        &model,
        &FuseOptions {
            max_growth: 50.0,
            ..portable()
        },
    )
    .unwrap();
    assert_eq!(fused.plan.growth, 256);
    same(&model, &fused.model, 0.0);
}

/// Random windows that may end at the same place, so that some branches merge.
#[test]
fn random_merged_branches_are_exactly_equal() {
    let mut merged = 0;
    for seed in 0..150 {
        let mut numbers = Numbers::new(seed);
        let mut below = |n: u64| numbers.any() % n;
        let (stride, channels, more) = (below(2) + 1, 1 << below(3), below(3) as i64);
        let mut text = format!("input x batch {channels} {}\n", below(3) + 9);
        let mut sum = "x".to_owned();
        if stride > 1 || more > 0 || below(2) == 0 {
            sum = String::new();
        }
        for branch in 0..below(3) + 2 {
            let (kernel, dilation) = (below(4) as i64 + 1, below(2) as i64 + 1);
            let group = (1 << below(3)).min(channels);
            let pads = more + (kernel - 1) * dilation;
            let before = below(pads as u64 + 1) as i64;
            text += &format!(
                "weight w{branch} {channels} {} {kernel}\nshift b{branch} {channels}\n
                 c{branch} = Conv(x, w{branch}, b{branch}) group={group} dilations=[{dilation}] strides=[{stride}] \
                 pads=[{before},{}]\n",
                channels / group,
                pads - before
            );
            if sum.is_empty() {
                sum = format!("c{branch}");
            } else {
                let op = ["Add", "Sub"][below(2) as usize];
                text += &format!("s{branch} = {op}({sum}, c{branch})\n");
                sum = format!("s{branch}");
            }
        }
        let model = model(&format!("{text}output {sum}"));
        let after = fuse(&model, &portable()).unwrap().model;
        same(&model, &after, 0.0);
        let count = |model: &Model| operators(model).iter().filter(|&&op| op == "Conv").count();
        merged += usize::from(count(&after) < count(&model));
    }
    assert!((50..150).contains(&merged), "{merged}");
}

#[test]
fn affine_does_not_use_a_bias_that_merged_branches_read() {
    let text = "input x batch 3 4
         weight w 4 4
         weight v 4 4
         shift b 4
         scale g 4
         shift t 4
         l = MatMul(x, w)
         r = Relu(x)
         m = Mul(r, g)
         n = Add(m, t)
         k = MatMul(n, v)
         o = Add(k, b)
         s = Add(l, o)
         y = Add(s, x)
         output y";
    let before = model(text);
    let after = fuse(&before, &portable()).unwrap().model;
    same(&before, &after, 0.0);
    // The scale folds into the weight. The shift is added after it, separate from the bias that the
    // branches read.
    assert_eq!(
        operators(&after),
        ["Relu", "MatMul", "Add", "MatMul", "Add", "Add"]
    );
    // No unread value is left.
    assert!(after.graph().initializer.iter().all(|tensor| {
        after
            .graph()
            .node
            .iter()
            .any(|node| node.input.iter().any(|input| input == tensor.name()))
    }));
}
