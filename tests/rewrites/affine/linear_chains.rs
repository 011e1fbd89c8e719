//! Successive linear operators. A merged pair is equal bit for bit. A pair that costs more as one
//! operator, or has a border in between, stays.
//! one, or has a border in between, stays.

use unfold::onnx::Model;
use unfold::plan::{Direction, Outcome};
use unfold::refusal::Reason;

use crate::becomes;
use crate::common::operators;
use crate::common::text::model;
use crate::{folded, fused, kept, untidied};

/// Two operators on the input. The second one computes `y`.
fn chain(input: &str, lines: &str) -> Model {
    model(&format!("input x {input}\n{lines}\noutput y"))
}

fn stays(model: &Model) {
    let fused = untidied(model, &crate::options());
    assert_eq!(fused.model.proto, model.proto, "something has changed");
    assert!(fused.plan.sites.is_empty(), "{:#?}", fused.plan.sites);
}

#[test]
fn two_matmuls_or_gemms_with_biases_merge() {
    let plain = "weight a 6 4\nweight b 4 3\nh = MatMul(x, a)\ny = MatMul(h, b)";
    becomes(&chain("batch 5 6", plain), &["MatMul"]);
    let biased = "weight a 4 4\nshift s 4\nweight b 4 4\nshift t 4\n
         p = MatMul(x, a)\nq = Add(s, p)\nr = MatMul(q, b)\ny = Sub(r, t)";
    becomes(&chain("batch 5 4", biased), &["MatMul", "Add"]);
    let layers = "weight a 4 6\nshift s 6\nweight b 3 6\nshift t 3\n
         h = Gemm(x, a, s) alpha=2.0 beta=3.0\ny = Gemm(h, b, t) transB=1 alpha=0.5";
    becomes(&chain("batch 4", layers), &["Gemm"]);
}

#[test]
fn chain_of_300_matmuls_merges_into_one() {
    let products: String = (0..300)
        .map(|i| format!("v{} = MatMul(v{i}, w)\n", i + 1))
        .collect();
    let lines = format!("const w 2 2 = 0 1 -1 0\nv0 = Identity(x)\n{products}y = Relu(v300)");
    becomes(&chain("batch 2", &lines), &["MatMul", "Relu"]);
}

#[test]
fn pointwise_conv_merges_with_a_conv_before_or_after_it() {
    let ahead = "weight a 8 4 1 1\nweight b 4 8 3 2\nshift t 4
         h = Conv(x, a)\ny = Conv(h, b, t) pads=[1,0,1,1] strides=[2,1] dilations=[1,2]";
    becomes(&chain("batch 4 6 6", ahead), &["Conv"]);
    let inside = "weight a 8 4 1 1\nshift s 8\nweight b 4 8 3 3\nh = Conv(x, a, s)\ny = Conv(h, b)";
    becomes(&chain("batch 4 6 6", inside), &["Conv"]);
    let strided = "weight a 8 4 1\nweight b 4 8 3\nh = Conv(x, a) strides=[2]\ny = Conv(h, b) pads=[1,2] strides=[2]";
    for extent in [5, 6, 7, 8] {
        becomes(&chain(&format!("batch 4 {extent}"), strided), &["Conv"]);
    }
    let behind = "weight a 8 4 3 3\nshift s 8\nweight b 4 8 1 1\nshift t 4
         h = Conv(x, a, s) pads=[1,1,1,1] strides=[2,2]\ny = Conv(h, b, t) strides=[2,1]";
    becomes(&chain("batch 4 6 6", behind), &["Conv"]);
}

#[test]
fn separable_convs_merge_where_one_kernel_is_cheaper() {
    let lines = "weight a 9 2 3 1\nweight b 2 9 1 3\nh = Conv(x, a) pads=[1,0,1,0]\ny = Conv(h, b) pads=[0,1,0,1]";
    becomes(&chain("batch 2 5 5", lines), &["Conv"]);
}

#[test]
fn grouped_convs_with_equal_groups_merge() {
    let lines = "weight a 8 2 1 1\nshift s 8\nweight b 4 4 3 3\nh = Conv(x, a, s) group=2\ny = Conv(h, b) group=2";
    becomes(&chain("batch 4 5 5", lines), &["Conv"]);
}

#[test]
fn chain_stays_where_one_operator_costs_more() {
    // A product of low rank, a depthwise and a pointwise Conv, and two kernels along one axis.
    stays(&chain(
        "batch 8",
        "weight a 8 2\nweight b 2 8\nh = MatMul(x, a)\ny = MatMul(h, b)",
    ));
    let apart = "weight a 4 1 3\nweight b 4 4 1\nh = Conv(x, a) group=4\ny = Conv(h, b)";
    stays(&chain("batch 4 5", apart));
    stays(&chain(
        "batch 4 7",
        "weight a 4 4 3\nweight b 4 4 3\nh = Conv(x, a)\ny = Conv(h, b)",
    ));
}

#[test]
fn chain_with_another_reader_in_between_stays() {
    let two = "weight a 4 4\nweight b 4 4\nh = MatMul(x, a)\nz = MatMul(h, b)";
    stays(&chain(
        "batch 4",
        &format!("{two}\nr = Relu(h)\ny = Mul(z, r)"),
    ));
    stays(&chain("batch 4", &format!("{two}\ny = Relu(z)\noutput h")));
}

#[test]
fn chain_with_a_bias_before_padding_stays() {
    let lines = "weight a 8 4 1 1\nshift s 8\nweight b 4 8 3 3\nh = Conv(x, a, s)\ny = Conv(h, b) pads=[1,1,1,1]";
    assert_eq!(kept(&chain("batch 4 5 5", lines)).0, Reason::Padding);
}

#[test]
fn plan_lists_merged_factors_and_skip_factors_keeps_them() {
    let model = chain(
        "batch 6",
        "weight a 6 4\nweight b 4 3\nh = MatMul(x, a)\ny = MatMul(h, b)",
    );
    let fused = fused(&model);
    let [site] = &fused.plan.sites[..] else {
        panic!("{:#?}", fused.plan.sites)
    };
    assert_eq!(
        (site.kind.name, site.channels, site.axis),
        ("factors", 3, 1)
    );
    assert_eq!(site.nodes, ["MatMul_h", "MatMul_y"]);
    let into = vec!["MatMul_y".to_owned()];
    assert_eq!(
        site.post,
        Some(Outcome::Folded {
            direction: Direction::Merged,
            into
        })
    );
    assert_eq!(operators(&fused.model), ["MatMul"]);
    let options = unfold::FuseOptions {
        skip: vec!["factors".into()],
        ..crate::options()
    };
    assert_eq!(
        unfold::fuse(&model, &options).unwrap().model.proto,
        model.proto
    );
}

#[test]
fn merging_a_shared_weight_respects_the_growth_limit() {
    let model = chain(
        "batch 4",
        "weight a 4 4\nweight b 4 4\nh = MatMul(x, a)\nz = MatMul(h, b)\nr = Relu(x)\np = MatMul(r, a)\nq = Relu(p)
         s = MatMul(q, b)\ny = Add(z, s)",
    );
    let refused = unfold::fuse(
        &model,
        &unfold::FuseOptions {
            max_growth: 0.0,
            ..crate::options()
        },
    )
    .unwrap();
    let [site] = &refused.plan.sites[..] else {
        panic!("{:#?}", refused.plan.sites)
    };
    assert_eq!(crate::reasons_of(site).0.name(), "growth");
    becomes(
        &model,
        &["MatMul", "Relu", "MatMul", "Relu", "MatMul", "Add"],
    );
}

/// The scale of attention after a rotary embedding of all tokens except the first (DINOv3). Queries
/// and keys share its tables. The tables stay unscaled, because the first token is scaled
/// separately.
#[test]
fn attention_scale_passes_rotary_embedding_of_all_but_one_token() {
    let part = |name: &str| {
        format!(
            "first{name} = Slice({name}, zero, one, one)
             rest{name} = Slice({name}, one, end, one)
             low{name}, high{name} = Split(rest{name}) axis=2 num_outputs=2
             turned{name} = Neg(high{name})
             half{name} = Concat(turned{name}, low{name}) axis=2
             a{name} = Mul(rest{name}, cos)
             b{name} = Mul(half{name}, sin)
             c{name} = Add(a{name}, b{name})
             d{name} = Concat(first{name}, c{name}) axis=1"
        )
    };
    let text = format!(
        "opset 18
         input x batch 5 6
         weight w 6 8
         shift o 8
         weight cos 4 4
         weight sin 4 4
         ints zero 1 = 0
         ints one 1 = 1
         ints end 1 = 5
         const s = 0.5
         p = MatMul(x, w)
         e = Add(p, o)
         q, k = Split(e) axis=2 num_outputs=2
         {}
         {}
         mq = Mul(dq, s)
         t = Transpose(dk) perm=[0,2,1]
         mk = Mul(t, s)
         z = MatMul(mq, mk)
         y = Softmax(z) axis=-1
         output y",
        part("q"),
        part("k"),
    );
    let after = folded(&model(&text));
    assert_eq!(
        operators(&after).iter().filter(|&&op| op == "Mul").count(),
        4
    );
    // If the queries have another reader without the scale, it folds into the keys.
    let read = text.replace("output y", "u = Relu(lowq)\n output y u");
    assert_eq!(
        operators(&fused(&model(&read)).model)
            .iter()
            .filter(|&&op| op == "Mul")
            .count(),
        4
    );
    // If both have such readers, one scale joins the other.
    let read = text.replace("output y", "u = Relu(lowq)\n v = Relu(lowk)\n output y u v");
    assert_eq!(
        operators(&fused(&model(&read)).model)
            .iter()
            .filter(|&&op| op == "Mul")
            .count(),
        5
    );
}
