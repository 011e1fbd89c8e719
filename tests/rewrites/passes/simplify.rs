//! Constant folding, merging of equal values, identity elimination and merging of layout operators.

use crate::common::portable;
use ndarray::{Array2, Axis};
use unfold::onnx::proto::{
    GraphProto, NodeProto, StringStringEntryProto, TrainingInfoProto, ValueInfoProto,
};
use unfold::onnx::tensor::read_f64;
use unfold::onnx::{DataType, Model};
use unfold::refusal::Reason;
use unfold::verify::{VerifyOptions, compare};
use unfold::{FuseOptions, Fused};

use crate::common::text::model;
use crate::common::{
    Attr, attribute, check_new_tensors, declared, fuse, initializer, is_proved_or_listed, node,
    operators,
};
use crate::{proved, same};

fn fuse_checked(model: &Model, options: &FuseOptions) -> Fused {
    let fused = unfold::fuse(model, options).unwrap();
    same(model, &fused.model, 1e-6);
    check_new_tensors(model, &fused).unwrap();
    is_proved_or_listed(model, &fused).unwrap();
    let again = unfold::fuse(&fused.model, options).unwrap();
    assert!(
        !again.changed(),
        "{}",
        crate::common::text::print(&again.model)
    );
    fused
}

fn tidied(model: &Model) -> Model {
    fuse_checked(model, &portable()).model
}

fn read(model: &Model, name: &str) -> Array2<f64> {
    let tensor = initializer(model, name);
    read_f64(tensor, model.externals())
        .unwrap()
        .into_dimensionality()
        .unwrap()
}

/// `(v − mean)/√(variance + ε)` of each row.
fn standardized(v: &Array2<f64>, epsilon: f64) -> Array2<f64> {
    let mean = v.mean_axis(Axis(1)).unwrap().insert_axis(Axis(1));
    let variance = v.var_axis(Axis(1), 0.0).insert_axis(Axis(1));
    (v - &mean) / variance.mapv(|variance| (variance + epsilon).sqrt())
}

#[test]
fn constant_outputs_are_folded_only_through_arithmetic() {
    let model = model(
        "input x batch 4
         const c 4 = 0.3 -0.7 1.9 0.1
         const d 4 = 0.2 0.4 -0.3 0.8
         s = Softmax(c)
         t = Softmax(s)
         a = Add(c, d)
         b = Mul(a, d)
         e = Exp(b)
         f = Exp(e)
         y = Mul(x, e)
         u = Mul(d, d)
         v = Add(u, c)
         output t f v y",
    );
    let tidied = tidied(&model);
    // `u` is computed from constants by arithmetic alone, so its result is stored.
    assert_eq!(
        operators(&tidied),
        [
            "Softmax", "Softmax", "Add", "Mul", "Exp", "Exp", "Mul", "Add"
        ]
    );
    assert_eq!(initializer(&tidied, "u").dims, [4]);
}

#[test]
fn weight_standardization_is_folded_into_the_weight() {
    let model = model(
        "input x batch 4
         weight v 3 4
         const e 1 = 0.001
         m = ReduceMean(v) axes=[1]
         c = Sub(v, m)
         q = Mul(c, c)
         s = ReduceMean(q) axes=[1]
         p = Add(s, e)
         r = Sqrt(p)
         w = Div(c, r)
         t = Transpose(w)
         y = MatMul(x, t)
         output y",
    );
    let after = tidied(&model);
    assert_eq!(operators(&after), ["MatMul"]);
    let expected = standardized(&read(&model, "v"), 0.001);
    let stored = read(&after, "t");
    assert!(
        (&stored.t() - &expected)
            .iter()
            .all(|error| error.abs() < 1e-5),
        "{stored} {expected}"
    );
    assert_eq!(after.graph().initializer.len(), 1);
}

#[test]
fn training_batch_norm_of_a_weight_is_folded() {
    let model = model(
        "input x batch 4
         weight v 1 3 4
         const g 3 = 1 2 -0.5
         const b 3 = 0 1 0.25
         const m 3 = 7 7 7
         ints s 2 = 3 4
         n = BatchNormalization(v, g, b, m, g) training_mode=1 epsilon=0.01
         r = Reshape(n, s)
         w = Transpose(r)
         y = MatMul(x, w)
         output y",
    );
    let after = unfold::fuse(&model, &portable()).unwrap().model;
    assert_eq!(operators(&after), ["MatMul"]);
    let v = read_f64(initializer(&model, "v"), model.externals()).unwrap();
    let mut expected = standardized(
        &v.into_shape_with_order((3, 4)).unwrap(),
        f64::from(0.01_f32),
    );
    for (mut row, (g, b)) in expected
        .outer_iter_mut()
        .zip([(1.0, 0.0), (2.0, 1.0), (-0.5, 0.25)])
    {
        row.mapv_inplace(|x| g * x + b);
    }
    let stored = read(&after, "w");
    assert!(
        (&stored.t() - &expected)
            .iter()
            .all(|error| error.abs() < 1e-6),
        "{stored} {expected}"
    );
    // Before operator set 14, some engines use the given mean and variance in training, so the node
    // is folded only if they equal the computed ones, as in exports of PyTorch.
    let given = |mean: &str| {
        crate::common::text::model(&format!(
            "opset 13
             input x batch 4
             weight v 1 3 4
             const g 3 = 1 2 -0.5
             const b 3 = 0 1 0.25
             const seven 3 = 7 7 7
             ints s 2 = 3 4
             u = ReduceMean(v) axes=[0,2] keepdims=1
             d = Sub(v, u)
             q = Mul(d, d)
             variance = ReduceMean(q) axes=[0,2] keepdims=0
             own = ReduceMean(v) axes=[0,2] keepdims=0
             n, n1, n2, n3, n4 = BatchNormalization(v, g, b, {mean}, variance) epsilon=0.01
             r = Reshape(n, s)
             w = Transpose(r)
             y = MatMul(x, w)
             output y"
        ))
    };
    let after = unfold::fuse(&given("own"), &portable()).unwrap().model;
    assert_eq!(operators(&after), ["MatMul"]);
    let earlier = read(&after, "w");
    assert!(
        (&earlier - &stored).iter().all(|error| error.abs() < 1e-6),
        "{earlier} {stored}"
    );
    let other = unfold::fuse(&given("seven"), &portable()).unwrap().model;
    assert!(operators(&other).contains(&"BatchNormalization"));
}

#[test]
fn known_extents_of_reshape_targets_are_stored() {
    let fixed = |middle: &str| {
        format!(
            "z = Shape(x)
         ints one 1 = 1
         n = Gather(z, one)
         ints rest 1 = -1
         s = Concat(rest, {middle} n) axis=0
         r = Relu(x)
         y = Reshape(r, s)
         output y"
        )
    };
    let known = tidied(&model(&format!("input x batch 6\n{}", fixed("one,"))));
    assert_eq!(operators(&known), ["Relu", "Reshape"]);
    let open = tidied(&model(&format!("input x batch width\n{}", fixed(""))));
    assert_eq!(operators(&open), ["Relu"], "both are there already");
}

#[test]
fn no_op_before_an_output_renames_its_producer() {
    for lines in [
        "y = Identity(r)",
        "y = Cast(r) to=1",
        "y = Reshape(r, same)",
        "y = Split(r) axis=1",
    ] {
        let model = model(&format!(
            "input x batch 6\n ints same 2 = -1 6\n r = Relu(x)\n {lines}\n output y"
        ));
        let after = tidied(&model);
        assert_eq!(operators(&after), ["Relu"], "{lines}");
        assert_eq!(after.graph().node[0].output, ["y"], "{lines}");
    }
    // With two graph outputs, one operator stays for each.
    let two = "input x batch 6\n r = Relu(x)\n y = Cast(r) to=1\n z = Cast(r) to=1\n output y z";
    assert_eq!(operators(&tidied(&model(two))).len(), 2);
}

#[test]
fn split_into_one_part_is_removed() {
    let of = |lines: &str| {
        tidied_operators(&model(&format!(
            "input x batch 6\n ints six 1 = 6\n ints five 1 = 5\n r = Relu(x)\n {lines}\n y = Exp(s)\n output y"
        )))
    };
    assert_eq!(of("s = Split(r, six) axis=-1"), ["Relu", "Exp"]);
    assert_eq!(of("s = Split(r) axis=0"), ["Relu", "Exp"]);
}

#[test]
fn reshape_target_of_copied_extents_becomes_constant() {
    let heads = |rest: &str| {
        model(&format!(
            "input x batch length 8
             z = Shape(x)
             ints zero 1 = 0
             ints one 1 = 1
             b = Gather(z, zero)
             l = Gather(z, one)
             {rest}
             y = Reshape(x, s)
             output y"
        ))
    };
    let shape = |model: &Model| {
        let [reshape] = &model.graph().node[..] else {
            panic!("{:?}", operators(model))
        };
        unfold::onnx::tensor::read_i64(initializer(model, &reshape.input[1]), model.externals())
            .unwrap()
    };
    let split = tidied(&heads("ints h 2 = 2 4\n s = Concat(b, l, h) axis=0"));
    assert_eq!(shape(&split).into_raw_vec_and_offset().0, [0, 0, 2, 4]);
    // With `allowzero=1`, the result is the same, because an extent of 0 is copied from the value.
    let split = heads("ints h 2 = 2 4\n s = Concat(b, l, h) axis=0");
    let mut zero = split.clone();
    zero.graph_mut().node.last_mut().unwrap().attribute =
        vec![attribute("allowzero", Attr::Int(1))];
    assert_eq!(tidied(&zero).proto, tidied(&split).proto);
    // A `-1` for the number of heads is computed from the width.
    let left = tidied(&heads("ints h 2 = -1 4\n s = Concat(b, l, h) axis=0"));
    assert_eq!(shape(&left).into_raw_vec_and_offset().0, [0, 0, 2, 4]);
    let moved = model(
        "input x batch 4 8
         z = Shape(x)
         ints zero 1 = 0
         ints f 1 = 4
         ints h 1 = 8
         b = Gather(z, zero)
         s = Concat(f, b, h) axis=0
         y = Reshape(x, s)
         output y",
    );
    assert_eq!(
        shape(&tidied(&moved)).into_raw_vec_and_offset().0,
        [4, -1, 8]
    );
    // A `-1` stays inferred. For a value without elements it was undefined before too.
    let found = tidied(&heads("ints h 1 = -1\n s = Concat(b, l, h) axis=0"));
    assert_eq!(shape(&found).into_raw_vec_and_offset().0, [0, 0, 8]);
    let found = model(
        "input x batch height width 8
         z = Shape(x)
         ints zero 1 = 0
         ints h 2 = -1 8
         b = Gather(z, zero)
         s = Concat(b, h) axis=0
         y = Reshape(x, s)
         output y",
    );
    assert_eq!(
        shape(&tidied(&found)).into_raw_vec_and_offset().0,
        [0, -1, 8]
    );
    // Paddle writes a 0, which copies the extent of the batch, unless with `allowzero=1`.
    let copied = model(
        "input x batch length 8
         z = Shape(x)
         ints zero 1 = 0
         ints one 1 = 1
         ints h 2 = 2 4
         l = Gather(z, one)
         s = Concat(zero, l, h) axis=0
         y = Reshape(x, s)
         output y",
    );
    assert_eq!(
        shape(&tidied(&copied)).into_raw_vec_and_offset().0,
        [0, 0, 2, 4]
    );
    let mut empty = copied;
    empty.graph_mut().node.last_mut().unwrap().attribute =
        vec![attribute("allowzero", Attr::Int(1))];
    assert_eq!(
        operators(&fuse(&empty).model),
        ["Shape", "Gather", "Concat", "Reshape"]
    );
    let other = tidied(&heads(
        "ints h 1 = 8\n ints m 1 = 2\n ints f 1 = 4\n s = Concat(b, m, f, l) axis=0",
    ));
    assert!(operators(&other).len() > 1, "{:?}", operators(&other));
    // Both open extents change their positions, and a Reshape can infer only one.
    let turned = tidied(&heads("ints h 1 = 8\n s = Concat(l, b, h) axis=0"));
    assert_eq!(
        operators(&turned),
        ["Shape", "Gather", "Gather", "Concat", "Reshape"]
    );
}

/// An LSTM whose initial states `s` the lines `makes` compute from `shape`. The batch is open, and
/// each row has two numbers.
fn lstm_with_states(makes: &str) -> Model {
    model(&format!(
        "input x 4 batch 3
         weight w 1 8 3
         weight r 1 8 2
         weight b 1 16
         const nothing = 0
         const halves = 0.5
         ints one 1 = 1
         ints two 1 = 2
         ints zero 1 = 0
         ints last 1 = 1000
         extents = Shape(x)
         batch = Gather(extents, one) axis=0
         shape = Concat(one, batch, two) axis=0
         {makes}
         y = LSTM(x, w, r, b, , s, s) hidden_size=2
         output y"
    ))
}

#[test]
fn zero_initial_states_of_lstm_are_dropped() {
    for makes in [
        "s = Expand(nothing, shape)",
        "m = Expand(nothing, shape)\n n = Identity(m)\n s = Slice(n, zero, last, one)",
        // tract computes float64 here and runs the operator only on constants.
        "s = ConstantOfShape(shape)",
    ] {
        let before = lstm_with_states(makes);
        let after = fuse(&before);
        is_proved_or_listed(&before, &after).unwrap();
        let verdict = compare(&before, &after.model, &VerifyOptions::default());
        assert!(verdict.passed(), "{makes}: {verdict:?}");
        assert_eq!(operators(&after.model), ["LSTM"], "{makes}");
        assert_eq!(
            after.model.graph().node[0].input,
            ["x", "w", "r", "b"],
            "{makes}"
        );
        let skip = vec!["constant".to_owned()];
        let kept = unfold::fuse(&before, &FuseOptions { skip, ..portable() }).unwrap();
        assert!(operators(&kept.model).len() > 1, "{makes}");
    }
    // Other numbers and functions of zeros stay inputs of the LSTM.
    for makes in [
        "s = Expand(halves, shape)",
        "m = Expand(nothing, shape)\n s = Cos(m)",
    ] {
        let after = fuse(&lstm_with_states(makes)).model;
        assert_eq!(after.graph().node.last().unwrap().input.len(), 7, "{makes}");
    }
}

#[test]
fn expanded_constant_beyond_the_growth_limit_is_not_folded() {
    let model = model(
        "input x 64 128
         weight w 128 128
         weight v 1 128
         ints s 2 = 64 128
         m = MatMul(x, w)
         e = Expand(v, s)
         y = Max(m, e)
         output y",
    );
    let skip = vec![
        "per-channel*".to_owned(),
        "affine".to_owned(),
        "Max*".to_owned(),
    ];
    let options = |max_growth| FuseOptions {
        max_growth,
        skip: skip.clone(),
        ..portable()
    };
    let less = fuse_checked(&model, &options(10.0));
    assert_eq!(operators(&less.model), ["MatMul", "Expand", "Max"]);
    let [refusal] = &less.plan.tidy.kept[..] else {
        panic!("{:?}", less.plan.tidy)
    };
    assert!(matches!(refusal.reason, Reason::Growth(_)), "{refusal}");
    let more = fuse_checked(&model, &options(60.0));
    assert_eq!(operators(&more.model), ["MatMul", "Max"]);
    // The growth is 64 rows less the removed operands: one row and two extents.
    assert_eq!(more.plan.growth, (64 - 1) * 128 * 4 - 2 * 8);
}

/// Two normalizations of one value, as the attention and the MLP of a block read them.
const PARALLEL: &str = "input x batch 6 8
     scale g 8
     shift b 8
     scale h 8
     shift c 8
     weight v 8 4
     weight w 8 4
     n = LayerNormalization(x, g, b) axis=-1
     m = LayerNormalization(x, h, c) axis=-1
     p = MatMul(n, v)
     q = MatMul(m, w)
     o = Relu(q)
     y = Add(p, o)
     output y";

#[test]
fn equal_layer_norms_of_parallel_branches_merge() {
    let model = model(PARALLEL);
    let fused = fuse_checked(&model, &portable());
    let count = |model: &Model| {
        operators(model)
            .iter()
            .filter(|op| **op == "LayerNormalization")
            .count()
    };
    assert_eq!((count(&model), count(&fused.model)), (2, 1));
    assert_eq!(fused.plan.tidy.duplicates, 1);
    let skip = vec!["duplicate".to_owned()];
    assert_eq!(
        count(&fuse_checked(&model, &FuseOptions { skip, ..portable() }).model),
        2
    );
}

/// 1/3 over the reals and the nearest float32 have the same stored bits.
#[test]
fn stored_and_computed_floats_of_equal_bits_do_not_merge() {
    let larger = |second: &str| {
        let model = model(&format!(
            "input x batch 4
             const one 1 = 1
             const three 1 = 3
             const stored 1 = 0.3333333432674408
             third = Div(one, three)
             again = Div(one, three)
             a = Max(x, third)
             b = Max(x, {second})
             c = Tanh(b)
             y = Add(a, c)
             output y"
        ));
        operators(&fuse(&model).model)
            .iter()
            .filter(|op| **op == "Max")
            .count()
    };
    assert_eq!((larger("stored"), larger("again")), (2, 1));
}

/// A folded constant is not merged with another stored constant, in the first run or in a second.
#[test]
fn cast_constant_equal_to_another_constant_is_folded_once() {
    let mut before = model(
        "input x batch 3
         ints i = 1
         const c = 1
         k = Cast(i) to=1
         e = Erf(x)
         f = Add(e, c)
         g = Erf(f)
         y = Sub(k, g)
         output y",
    );
    let graph = before.graph_mut();
    for tensor in std::mem::take(&mut graph.initializer) {
        let name = tensor.name().to_owned();
        let held = vec![("value", Attr::Tensor(Box::new(tensor)))];
        graph
            .node
            .insert(0, node("Constant", &[""; 0], &[name], held));
    }
    let after = tidied(&before);
    assert_eq!(
        operators(&after).iter().filter(|op| **op == "Cast").count(),
        0
    );
}

#[test]
fn random_foreign_and_output_duplicates_do_not_merge() {
    let twice = |op: &str| {
        model(&format!(
            "input x batch 4
             a = {op}
             b = {op}
             c = Relu(a)
             d = Sigmoid(b)
             y = Add(c, d)
             output y"
        ))
    };
    let count =
        |model: &Model, op: &str| operators(model).iter().filter(|name| **name == op).count();
    let fold = |model: &Model| unfold::fuse(model, &portable()).unwrap().model;
    assert_eq!(count(&tidied(&twice("Tanh(x)")), "Tanh"), 1);
    assert_eq!(
        count(&fold(&twice("RandomNormalLike(x)")), "RandomNormalLike"),
        2
    );
    let mut foreign = twice("Exp(x)");
    for node in foreign
        .graph_mut()
        .node
        .iter_mut()
        .filter(|node| node.op_type() == "Exp")
    {
        node.domain = Some("com.example".into());
    }
    assert_eq!(count(&fold(&foreign), "Exp"), 2);
    let named = model("input x batch 4\n a = Tanh(x)\n b = Tanh(x)\n output a\n output b");
    assert_eq!(count(&tidied(&named), "Tanh"), 2);
    let apart = model(
        "input x batch 4\n a = Elu(x) alpha=0.5\n b = Elu(x) alpha=0.25\n y = Add(a, b)\n output y",
    );
    assert_eq!(count(&fold(&apart), "Elu"), 2);
}

/// One of two equal operators computes a graph output, as the first or the second of them
/// (`duplicate-output`).
#[test]
fn equal_operators_of_which_one_computes_an_output_are_one() {
    for lines in ["a = Relu(x)\ny = Relu(x)", "y = Relu(x)\na = Relu(x)"] {
        let before = model(&format!(
            "input x batch 4\nscale k 4\n{lines}\nb = Mul(a, k)\nz = Tanh(b)\noutput y\noutput z"
        ));
        let after = tidied(&before);
        assert_eq!(operators(&after), ["Relu", "Mul", "Tanh"], "{lines}");
        assert_eq!(after.graph().node[1].input[0], "y", "{lines}");
    }
}

#[test]
fn identity_of_a_constant_is_read_through() {
    let text = "input x batch 4
         weight w 4 4
         shift b 4
         c = Identity(b)
         k = MatMul(x, w)
         a = Add(k, b)
         r = Relu(a)
         l = MatMul(r, w)
         y = Add(l, c)
         output y";
    assert_eq!(
        operators(&tidied(&model(text))),
        ["MatMul", "Add", "Relu", "MatMul", "Add"]
    );
    // Before version 4 of the format, new constants are Constant nodes.
    let old = tidied(&model(&format!(
        "ir 3\n{}",
        text.replace("Identity(b)", "Neg(b)")
    )));
    assert_eq!(operators(&old).iter().filter(|op| **op == "Neg").count(), 0);
}

#[test]
fn skip_constant_keeps_constant_computations() {
    let model = model(
        "input x batch 4
         weight v 4 4
         w = Neg(v)
         y = MatMul(x, w)
         output y",
    );
    let skip = vec!["constant".to_owned()];
    let kept = unfold::fuse(&model, &FuseOptions { skip, ..portable() }).unwrap();
    assert!(!kept.changed());
    assert_eq!(operators(&fuse(&model).model), ["MatMul"]);
}

#[test]
fn identities_and_dropout_are_removed_and_affines_behind_fold() {
    let model = model(
        "input x batch 4
         weight w 4 3
         weight v 3 2
         scale s 3
         a = MatMul(x, w)
         b = Identity(a)
         c = Mul(b, s)
         d = Dropout(c)
         e = Relu(d)
         f = Identity(e)
         g = Identity(f)
         y = MatMul(g, v)
         output y",
    );
    assert_eq!(operators(&tidied(&model)), ["MatMul", "Relu", "MatMul"]);
}

#[test]
fn consecutive_scalar_factors_merge() {
    let model = model(
        "input x batch 4
         const a = 2
         const b = -0.25
         const c = 4
         r = Relu(x)
         m = Mul(x, r)
         p = Mul(m, a)
         q = Mul(b, p)
         s = Div(q, c)
         y = Floor(s)
         output y",
    );
    let after = tidied(&model);
    assert_eq!(operators(&after), ["Relu", "Mul", "Mul", "Floor"]);
    let factor = &after.graph().node[2].input[1];
    let factor = read_f64(initializer(&after, factor), after.externals()).unwrap();
    assert_eq!(factor.iter().collect::<Vec<_>>(), [&-0.125]);
}

#[test]
fn identity_from_input_to_output_stays() {
    let model = model(
        "input x batch 4
         a = Relu(x)
         z = Identity(x)
         output a z",
    );
    let fused = unfold::fuse(&model, &portable()).unwrap();
    assert!(!fused.changed());
}

#[test]
fn constant_added_after_conv_becomes_its_bias() {
    let model = model(
        "input x batch 2 h 3
         weight w 4 2 1 1
         weight u 4 1 3 3
         const b 1 4 1 1 = 1 -2 0.5 3
         const c 4 1 1 = 2 1 0 -1
         a = Conv(x, w)
         p = Add(b, a)
         r = Relu(p)
         d = Conv(r, u) pads=[1,1,1,1] group=4
         y = Add(d, c)
         output y",
    );
    let after = tidied(&model);
    assert_eq!(operators(&after), ["Conv", "Relu", "Conv"]);
    let bias = |node: usize| {
        let tensor = initializer(&after, &after.graph().node[node].input[2]);
        read_f64(tensor, after.externals())
            .unwrap()
            .into_iter()
            .collect::<Vec<_>>()
    };
    assert_eq!(
        [bias(0), bias(2)],
        [[1.0, -2.0, 0.5, 3.0], [2.0, 1.0, 0.0, -1.0]]
    );
}

#[test]
fn add_along_another_axis_or_after_a_shared_conv_stays() {
    let elsewhere = "a = Conv(x, w)\n b = Add(a, c)\n d = Floor(a)\n y = Mul(b, d)";
    let across = "a = Conv(x, w)\n y = Add(a, k)";
    for nodes in [elsewhere, across] {
        let text = format!(
            "input x batch 2 4 4\n weight w 4 2 1 1\n const c 4 1 1 = 1 2 3 4\n const k 4 1 = 1 2 3 4\n {nodes}\n output y"
        );
        let fused = unfold::fuse(&model(&text), &portable()).unwrap();
        assert!(!fused.changed() && fused.plan.sites.is_empty(), "{nodes}");
    }
}

/// A written-out normalization in the form that onnxruntime fuses, and a product.
fn written_out(mean: &str, behind: &str) -> Model {
    model(&format!(
        "input x batch 5 4
         const two = 2
         const eps = 0.00001
         scale g 4
         shift b 4
         weight w 4 3
         {mean}
         p = Pow(d, two)
         v = ReduceMean(p) axes=[-1]
         e = Add(v, eps)
         r = Sqrt(e)
         n = Div(d, r)
         {behind}
         shift u 3
         k = MatMul(z, w)
         y = Add(k, u)
         output y"
    ))
}

#[test]
fn written_out_norm_keeps_neutral_gamma_and_beta_for_engines() {
    let centred = "m = ReduceMean(x) axes=[-1]\n d = Sub(x, m)";
    let cases = [
        (
            written_out(centred, "s = Mul(n, g)\n z = Add(b, s)"),
            vec![("s", 1.0), ("z", 0.0)],
        ),
        (
            written_out("d = Floor(x)", "z = Mul(g, n)"),
            vec![("z", 1.0)],
        ),
        (
            written_out("d = Floor(x)", "h = Cast(n) to=1\n z = Mul(g, h)"),
            vec![("z", 1.0)],
        ),
    ];
    for (model, neutral) in cases {
        let after = tidied(&model);
        // A Cast to the same type is eliminated.
        let expected: Vec<&str> = operators(&model)
            .into_iter()
            .filter(|&op| op != "Cast")
            .collect();
        assert_eq!(operators(&after), expected);
        for (output, number) in neutral {
            let node = after
                .graph()
                .node
                .iter()
                .find(|node| node.output[0] == output)
                .unwrap();
            let stored = |name: &&String| {
                after
                    .graph()
                    .initializer
                    .iter()
                    .any(|tensor| tensor.name() == **name)
            };
            let name = node.input.iter().find(stored).unwrap();
            let values = read_f64(initializer(&after, name), after.externals()).unwrap();
            assert_eq!(values, ndarray::ArrayD::from_elem(vec![4], number));
        }
    }
}

#[test]
fn written_out_norm_unknown_to_engines_loses_its_gamma() {
    // Engines do not fuse it without a scale or a shift, or if the scale has another rank.
    for behind in [
        "z = Mul(n, g)",
        "z = Add(n, b)",
        "h = Unsqueeze(g, i)\n s = Mul(n, h)\n z = Add(s, b)",
    ] {
        let mut text = written_out("m = ReduceMean(x) axes=[-1]\n d = Sub(x, m)", behind);
        text.proto
            .graph
            .as_mut()
            .unwrap()
            .initializer
            .push(unfold::onnx::tensor::make_i64("i", &[0]));
        let after = tidied(&text);
        let made = operators(&after);
        assert!(!made.contains(&"Mul"), "{made:?}");
    }
}

#[test]
fn equal_operators_on_equal_weights_merge() {
    let of = |second: &str| {
        model(&format!(
            "input x batch 3
             const g 3 = 2 -1 0.5
             const b 3 = 0.25 0.5 -2
             const k 3 2 = 1 2 3 4 5 6
             const v 3 2 = {second}
             n = LayerNormalization(x, g, b) axis=-1
             p = MatMul(n, k)
             q = MatMul(n, v)
             u = Neg(p)
             y = Exp(u)
             z = Abs(q)
             output y z"
        ))
    };
    let once = tidied(&of("1 2 3 4 5 6"));
    let expected = ["LayerNormalization", "MatMul", "Neg", "Exp", "Abs"];
    assert_eq!(operators(&once), expected);
    let other = tidied(&of("1 2 3 4 5 7"));
    assert_eq!(
        operators(&other)
            .iter()
            .filter(|operator| **operator == "MatMul")
            .count(),
        2
    );
}

#[test]
fn identities_are_removed_before_affines_are_recognized() {
    let text = "input x batch 4
        weight w 4 4
        scale g 4
        shift t 4
        shift b 4
        m = MatMul(x, w)
        i = Identity(m)
        a = Add(i, b)
        c = Cast(a) to=1
        n = Mul(c, g)
        d = Identity(n)
        o = Add(d, t)
        y = Relu(o)
        output y";
    let fused = fuse_checked(&model(text), &portable());
    assert_eq!(operators(&fused.model), ["MatMul", "Add", "Relu"]);
    // The operators are one chain and therefore one site.
    assert_eq!(fused.plan.sites.len(), 1);
    // Identities are also removed if nothing folds.
    let plain = "input x batch 4\n weight w 4 4\n shift b 4\n m = MatMul(x, w)\n i = Identity(m)\n a = Add(i, b)\n y = Relu(a)\n output y";
    assert_eq!(operators(&tidied(&model(plain))), ["MatMul", "Add", "Relu"]);
    let skip = vec!["Mul_n".to_owned()];
    let skipped = fuse_checked(&model(text), &FuseOptions { skip, ..portable() });
    assert!(
        operators(&skipped.model).contains(&"Mul"),
        "{:?}",
        operators(&skipped.model)
    );
}

/// The mask is computed from constants. It is not part of what identifies a normalizer.
#[test]
fn constant_mask_of_a_site_that_stays_is_folded() {
    let before = model(
        "input x 2 8 6
         weight w 6 6
         weight places 1 8 1
         const zero = 0
         g = Greater(places, zero)
         n = Not(g)
         mask = Cast(n) to=1
         h = MatMul(x, w)
         m = Mul(h, mask)
         y = Softmax(m)
         output y",
    );
    let fused = fuse(&before);
    assert!(fused.plan.sites.iter().all(|site| !site.is_folded()));
    assert_eq!(operators(&fused.model), ["MatMul", "Mul", "Softmax"]);
    let numbers = |name: &str| {
        let model = if name == "mask" {
            &fused.model
        } else {
            &before
        };
        read_f64(initializer(model, name), model.externals()).unwrap()
    };
    let (places, mask) = (numbers("places"), numbers("mask"));
    assert!(
        places
            .iter()
            .zip(&mask)
            .all(|(&place, &mask)| mask == f64::from(u8::from(place <= 0.0)))
    );
    assert!(is_proved_or_listed(&before, &fused).is_ok());
}

/// σ is computed from constants. It is not part of what identifies the site.
#[test]
fn constants_of_an_affine_that_stays_are_folded() {
    let before = model(
        "input x 2 3 4
         const variance 3 = 1 4 16
         const eps = 0.0009765625
         const mean 3 1 = 1 2 3
         ints last 1 = 1
         sum = Add(variance, eps)
         root = Sqrt(sum)
         sigma = Unsqueeze(root, last)
         r = Relu(x)
         c = Sub(r, mean)
         n = Div(c, sigma)
         y = Tanh(n)
         output y",
    );
    let fused = fuse(&before);
    assert!(
        fused.plan.sites.iter().all(|site| !site.is_folded()),
        "{:#?}",
        fused.plan.sites
    );
    assert_eq!(operators(&proved(&before)), ["Relu", "Sub", "Div", "Tanh"]);
    same(&before, &fused.model, 1e-6);
}

/// Exporters write layout operators for the general case, which have no effect in these models.
#[test]
fn layout_operators_without_effect_are_removed() {
    let with = |movement: &str| {
        model(&format!(
            "opset 18
             input x batch 4 6
             ints some 1 = 1
             ints all 1 = 4
             ints beyond 1 = 99
             ints none 1 = 0
             ints up 1 = 1
             ints down 1 = -1
             ints before 1 = -5
             ints zeros 6 = 0 0 0 0 0 0
             ints moved 6 = 0 1 0 0 -1 0
             ints there 3 = 0 4 6
             ints as 3 = 1 4 1
             r = Relu(x)
             m = {movement}
             y = Neg(m)
             output y"
        ))
    };
    for nothing in [
        "Transpose(r) perm=[0,1,2]",
        "Concat(r) axis=1",
        "Pad(r, zeros)",
        "Reshape(r, there)",
        "Expand(r, as)",
        "Slice(r, none, beyond, some)",
        "Slice(r, none, all, some, up)",
    ] {
        assert_eq!(
            operators(&tidied(&with(nothing))),
            ["Relu", "Neg"],
            "{nothing}"
        );
    }
    for something in [
        "Transpose(r) perm=[0,2,1]",
        "Pad(r, moved)",
        "Slice(r, down, before, some, down)",
        "Slice(r, some, all, some)",
    ] {
        assert_eq!(operators(&tidied(&with(something))).len(), 3, "{something}");
    }
}

/// A lookup in a padding mask as exported from transformers, which computes it with torch's `vmap`.
fn mask_lookup(from: &str, limit: &str, order: [&str; 2]) -> unfold::onnx::Model {
    let [first, second] = order;
    model(&format!(
        "input x batch places
         indices m batch places
         ints from = {from}
         ints one = 1
         ints a 3 = 1 2 3
         ints k 3 = 0 1 2
         ints last 1 = -1
         sb = Shape(m) start=0 end=1
         sk = Shape(m) start=1 end=2
         nb = Squeeze(sb)
         nk = Squeeze({limit})
         rb = Range(from, nb, one)
         rk = Range(from, nk, one)
         ub = Unsqueeze(rb, a)
         uk = Unsqueeze(rk, k)
         both = Max(ub, uk)
         shape = Shape(both)
         eb = Expand(ub, shape)
         ek = Expand(uk, shape)
         ib = Unsqueeze(eb, last)
         ik = Unsqueeze(ek, last)
         i = Concat({first}, {second}) axis=-1
         g = GatherND(m, i)
         f = Cast(g) to=1
         y = Mul(f, x)
         output y"
    ))
}

#[test]
fn gather_nd_of_all_mask_positions_in_order_is_removed() {
    let after = proved(&mask_lookup("0", "sk", ["ib", "ik"]));
    assert_eq!(operators(&after), ["Unsqueeze", "Cast", "Mul"]);
}

#[test]
fn gather_nd_of_other_mask_positions_stays() {
    for other in [
        mask_lookup("1", "sk", ["ib", "ik"]),
        mask_lookup("0", "sb", ["ib", "ik"]),
        mask_lookup("0", "sk", ["ik", "ib"]),
    ] {
        let fused = fuse(&other);
        assert!(operators(&fused.model).contains(&"GatherND"));
        assert!(is_proved_or_listed(&other, &fused).is_ok());
    }
}

/// Tokens with one head, whose axis is moved before the tokens and back.
fn one_head(heads: &str, flat: &str) -> unfold::onnx::Model {
    model(&format!(
        "input x batch 6 8
         ints split 4 = {heads}
         ints flat 3 = {flat}
         r = Reshape(x, split)
         t = Transpose(r) perm=[0,2,1,3]
         s = Softmax(t) axis=2
         u = Transpose(s) perm=[0,2,1,3]
         y = Reshape(u, flat)
         output y"
    ))
}

#[test]
fn transpose_of_an_axis_of_extent_one_merges_into_reshape() {
    let after = tidied_operators(&one_head("-1 6 1 8", "-1 6 8"));
    assert_eq!(after, ["Reshape", "Softmax", "Reshape"]);
    // Without the Transpose, a `0` would copy the extent of another axis.
    assert_eq!(
        tidied_operators(&one_head("0 0 1 8", "0 6 8")),
        ["Reshape", "Transpose", "Softmax", "Reshape"]
    );
    assert_eq!(
        tidied_operators(&one_head("-1 6 1 8", "0 0 8")),
        ["Reshape", "Softmax", "Transpose", "Reshape"]
    );
    // With two heads, the Transposes move elements.
    assert_eq!(tidied_operators(&one_head("-1 6 2 4", "-1 6 8")).len(), 5);
}

#[test]
fn squeeze_and_unsqueeze_merge_into_reshape() {
    let beside = |lines: &str| {
        tidied_operators(&model(&format!(
            "input x batch 6 8
             ints two 3 = -1 2 8
             ints flat 2 = -1 8
             ints one 1 = 1
             ints ones 3 = -1 1 8
             ints axes 2 = 1 3
             e = Exp(x)
             {lines}
             y = Tanh(z)
             output y"
        )))
    };
    for lines in [
        "r = Reshape(e, two)\n z = Unsqueeze(r, one)",
        "u = Unsqueeze(e, axes)\n z = Reshape(u, two)",
        "r = Reshape(e, ones)\n z = Squeeze(r, one)",
        "r = Reshape(e, two)\n z = Reshape(r, flat)",
        // `allowzero` makes no difference in shapes without a `0`.
        "r = Reshape(e, two) allowzero=1\n z = Reshape(r, flat) allowzero=1",
    ] {
        assert_eq!(beside(lines), ["Exp", "Reshape", "Tanh"], "{lines}");
    }
    // Also behind a Transpose, which then permutes fewer axes.
    let turned =
        beside("u = Unsqueeze(e, axes)\n t = Transpose(u) perm=[0,2,1,4,3]\n z = Reshape(t, flat)");
    assert_eq!(turned, ["Exp", "Reshape", "Tanh"]);
    let turned =
        beside("u = Unsqueeze(e, axes)\n t = Transpose(u) perm=[2,1,0,4,3]\n z = Reshape(t, flat)");
    assert_eq!(turned, ["Exp", "Transpose", "Reshape", "Tanh"]);
    // Two Unsqueezes become one, whether the second counts its axes from the start or from the end.
    for (first, second) in [
        ("one", "one"),
        ("axes", "one"),
        ("one", "ends"),
        ("axes", "ends"),
    ] {
        let lines =
            format!("ints ends 2 = 0 -1\n u = Unsqueeze(e, {first})\n z = Unsqueeze(u, {second})");
        assert_eq!(
            beside(&lines),
            ["Exp", "Unsqueeze", "Tanh"],
            "{first} {second}"
        );
    }
    // A value with other readers is not computed twice.
    let read = beside("r = Reshape(e, two)\n z = Unsqueeze(r, one)\n output r");
    assert_eq!(read, ["Exp", "Reshape", "Unsqueeze", "Tanh"]);
}

/// In the proof, integers and truth values computed from floats are symbols.
#[test]
fn neutral_integer_and_boolean_operators_are_removed_and_proved() {
    for (lines, after) in [
        (
            "a = ArgMax(x) axis=-1 keepdims=0\n b = Add(a, zero)\n y = Gather(table, b)",
            vec!["ArgMax", "Gather"],
        ),
        (
            "c = Cast(x) to=7\n b = Add(zero, c)\n y = Gather(table, b)",
            vec!["Cast", "Gather"],
        ),
        (
            "a = ArgMax(x) axis=-1 keepdims=0\n b = Pad(a, pads)\n y = Gather(table, b)",
            vec!["ArgMax", "Gather"],
        ),
        (
            "g = Greater(x, half)\n t = Equal(zero, zero)\n a = And(g, t)\n y = Where(a, x, half)",
            vec!["Greater", "Where"],
        ),
    ] {
        let model = model(&format!(
            "input x 2 3\n weight table 9 4\n ints zero = 0\n ints pads 2 = 0 0\n const half = 0.5\n {lines}\n output y"
        ));
        assert_eq!(operators(&proved(&model)), after, "{lines}");
    }
    // A zero with more axes adds these axes to the sum.
    let wide =
        "input x 2 3\n weight table 9 4\n ints zero 1 1 1 = 0\n a = ArgMax(x) axis=-1 keepdims=0
                b = Add(a, zero)\n y = Gather(table, b)\n output y";
    assert_eq!(
        operators(&proved(&model(wide))),
        ["ArgMax", "Add", "Gather"]
    );
}

#[test]
fn integer_times_zero_becomes_zero() {
    let model = model(
        "input x batch 4
         indices rate 1
         ints none 1 = 0
         weight w 4 4
         m = MatMul(x, w)
         i = Mul(rate, none)
         f = Cast(i) to=1
         a = Add(m, f)
         y = Tanh(a)
         output y",
    );
    assert_eq!(operators(&proved(&model)), ["MatMul", "Tanh"]);
}

#[test]
fn inverse_squeeze_and_unsqueeze_cancel() {
    let of = |lines: &str| {
        tidied_operators(&model(&format!(
            "input x 1 length 8
             ints front 1 = 0
             ints back 1 = -1
             e = Exp(x)
             {lines}
             y = Tanh(z)
             output y"
        )))
    };
    for lines in [
        "s = Squeeze(e, front)\n z = Unsqueeze(s, front)",
        "s = Unsqueeze(e, back)\n z = Squeeze(s, back)",
    ] {
        assert_eq!(of(lines), ["Exp", "Tanh"], "{lines}");
    }
    // The Unsqueeze inserts the axis at another position.
    assert_eq!(
        of("s = Squeeze(e, front)\n z = Unsqueeze(s, back)").len(),
        4
    );
    // Another node reads the value between them.
    let read = "s = Squeeze(e, front)\n z = Unsqueeze(s, front)\n t = Sin(s)\n output t";
    assert_eq!(of(read), ["Exp", "Squeeze", "Sin", "Tanh"]);
}

#[test]
fn concats_along_one_axis_merge() {
    let of = |first: &str, second: &str| {
        tidied_operators(&model(&format!(
            "input x batch 6 8
             e = Exp(x)
             s = Sin(x)
             {first}
             {second}
             y = Tanh(z)
             output y"
        )))
    };
    let one = ["Exp", "Sin", "Concat", "Tanh"];
    assert_eq!(
        of("a = Concat(e, s) axis=1", "z = Concat(x, a, e) axis=-2"),
        one
    );
    assert_eq!(
        of(
            "a = Concat(e, s) axis=1\n b = Concat(a, x) axis=1",
            "c = Abs(x)\n z = Concat(b, c) axis=1"
        )
        .len(),
        5
    );
    // The second Concat joins along another axis, or the first has another reader.
    assert_eq!(
        of("a = Concat(e, s) axis=1", "z = Concat(a, a) axis=2").len(),
        5
    );
    assert_eq!(
        of(
            "a = Concat(e, s) axis=1",
            "z = Concat(a, x) axis=1\n output a"
        )
        .len(),
        5
    );
}

#[test]
fn inverse_layouts_around_elementwise_operators_cancel() {
    let around = |first: &str, between: &str, last: &str| {
        tidied_operators(&model(&format!(
            "input x batch 6 8
             ints rows 2 = -1 8
             ints sentences 3 = -1 6 8
             ints heads 4 = -1 6 2 4
             ints one 1 = 1
             scale bound 8
             scale places 6 1
             const none = 0
             e = Exp(x)
             a = {first}
             {between}
             z = {last}
             y = Softmax(z) axis=1
             output y"
        )))
    };
    let gate = "s = Sigmoid(a)\n b = Mul(a, s)";
    for (first, last) in [
        ("Reshape(e, rows)", "Reshape(b, sentences)"),
        ("Reshape(e, heads)", "Reshape(b, sentences)"),
        ("Unsqueeze(e, one)", "Squeeze(b, one)"),
        ("Transpose(e) perm=[1,2,0]", "Transpose(b) perm=[2,0,1]"),
    ] {
        assert_eq!(
            around(first, gate, last),
            ["Exp", "Sigmoid", "Mul", "Softmax"],
            "{first}"
        );
    }
    // Remaining nodes keep their names.
    let named = fuse(&model(
        "input x batch 6 8
         ints rows 2 = -1 8
         ints sentences 3 = -1 6 8
         a = Reshape(x, rows)
         b = Tanh(a)
         z = Reshape(b, sentences)
         output z",
    ));
    let [tanh] = &named.model.graph().node[..] else {
        panic!("{:?}", operators(&named.model))
    };
    assert!(tanh.name().starts_with("Tanh_b"), "{}", tanh.name());
    // The bounds may vary along the last axis, which the layout keeps, or be one number.
    let bounded = "s = Max(a, bound, none)\n b = Sin(s)";
    assert_eq!(
        around("Reshape(e, rows)", bounded, "Reshape(b, sentences)"),
        ["Exp", "Max", "Sin", "Softmax"]
    );
    let turned = ("Transpose(e) perm=[0,2,1]", "Transpose(b) perm=[0,2,1]");
    for (first, between, last) in [
        // The second layout operator is not the inverse of the first.
        (
            "Transpose(e) perm=[1,2,0]",
            gate,
            "Transpose(b) perm=[1,2,0]",
        ),
        ("Transpose(e) perm=[0,2,1]", gate, "Reshape(b, sentences)"),
        // The constant varies along an axis that moves.
        (turned.0, "s = Max(a, sixes)\n b = Sin(s)", turned.1),
        (
            "Unsqueeze(e, one)",
            "s = Max(a, places)\n b = Sin(s)",
            "Squeeze(b, one)",
        ),
        // A Softmax combines several elements.
        (turned.0, "b = Softmax(a) axis=1", turned.1),
        // The value between has another reader.
        (turned.0, "b = Sin(a)\n output b", turned.1),
        (
            turned.0,
            "b = Sin(a)\n c = ReduceSum(a) axes=[1]\n output c",
            turned.1,
        ),
    ] {
        let between = between.replace("sixes", "six");
        let lines = format!("scale six 6\n {between}");
        assert!(
            around(first, &lines, last).len() > 4,
            "{first}, {between}, {last}"
        );
    }
}

#[test]
fn slices_of_different_axes_merge() {
    let of = |lines: &str| {
        tidied_operators(&model(&format!(
            "input x batch 6 8
             ints no 1 = 0
             ints one 1 = 1
             ints two 1 = 2
             ints last 1 = -1
             ints three 1 = 3
             ints far 1 = 9223372036854775807
             e = Exp(x)
             {lines}
             output z"
        )))
    };
    // Slices that step forward and backward, and bounds and axes that count from the end.
    let lines = "s = Slice(e, one, far, last, two)
                 z = Slice(s, last, no, one, last)";
    assert_eq!(of(lines), ["Exp", "Slice"]);
    // If two Slices read a value that is itself a Slice, each becomes one Slice of the first value.
    let patches = "a = Slice(e, no, far, one, two)
                   b = Slice(e, one, far, one, two)
                   c = Slice(a, no, far, two, two)
                   d = Slice(a, one, far, two, two)
                   f = Slice(b, no, far, two, two)
                   g = Slice(b, one, far, two, two)
                   z = Concat(c, d, f, g) axis=-1";
    assert_eq!(
        of(patches),
        ["Exp", "Slice", "Slice", "Slice", "Slice", "Concat"]
    );
    // Slices stay if a bound counts from an end that a later Slice would move, or if another
    // operator reads the value between.
    for lines in [
        "s = Slice(e, one, last, two)\n z = Slice(s, one, two, two)",
        "s = Slice(e, one, three, one)\n r = Slice(s, one, two, two)\n t = Tanh(s)\n z = Concat(r, t) axis=2",
    ] {
        assert_eq!(
            of(lines).iter().filter(|op| *op == "Slice").count(),
            2,
            "{lines}"
        );
    }
}

#[test]
fn slices_with_attribute_bounds_merge() {
    let model = model(
        "opset 9
         input x batch 6 8
         e = Exp(x)
         s = Slice(e) axes=[1] starts=[1] ends=[5]
         z = Slice(s) axes=[-1] starts=[-3] ends=[9223372036854775807]
         output z",
    );
    assert_eq!(tidied_operators(&model), ["Exp", "Slice"]);
}

/// The operators of the result. Asserts that the result is equal in a run and proved.
fn tidied_operators(before: &unfold::onnx::Model) -> Vec<String> {
    let after = proved(before);
    same(before, &after, 0.0);
    operators(&after).into_iter().map(str::to_owned).collect()
}

#[test]
fn inverse_transposes_cancel_beside_other_readers() {
    let after = tidied_operators(&model(
        "input x batch 6 8
         weight w 6 4
         e = Exp(x)
         t = Transpose(e) perm=[2,0,1]
         m = MatMul(t, w)
         b = Transpose(t) perm=[1,2,0]
         c = Transpose(t) perm=[2,0,1]
         y = Tanh(b)
         z = Tanh(c)
         output m y z",
    ));
    assert_eq!(after.iter().filter(|op| *op == "Transpose").count(), 2);
}

#[test]
fn integer_add_of_zero_and_boolean_and_with_true_are_removed() {
    let made = |constant: &str, line: &str| {
        let before = model(&format!(
            "indices i batch 3
             {constant}
             {line}
             y = Cast(j) to=1
             output y"
        ));
        operators(&proved(&before))
            .into_iter()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(made("ints c = 0", "j = Add(i, c)"), ["Cast"]);
    assert_eq!(made("ints c 1 = 0", "j = Add(c, i)"), ["Cast"]);
    assert_eq!(made("ints c = 1", "j = Add(i, c)"), ["Add", "Cast"]);
    // The zero adds axes to the result.
    assert_eq!(made("ints c 1 1 1 = 0", "j = Add(i, c)"), ["Add", "Cast"]);
    assert_eq!(
        made(
            "ints c = 1",
            "g = Greater(i, c)\n b = Cast(c) to=9\n j = And(b, g)"
        ),
        ["Greater", "Cast"]
    );
    assert_eq!(
        made(
            "ints c = 0",
            "g = Greater(i, c)\n b = Cast(c) to=9\n j = And(b, g)"
        )
        .len(),
        3
    );
}

#[test]
fn identity_to_an_output_name_is_removed_where_names_allow() {
    let named =
        |lines: &str| tidied_operators(&model(&format!("input x batch 4\n e = Exp(x)\n {lines}")));
    assert_eq!(named("y = Identity(e)\n output y"), ["Exp"]);
    assert_eq!(
        named("t = Tanh(e)\n y = Identity(e)\n output t y"),
        ["Exp", "Tanh"]
    );
    // The producer of the value may be removed too.
    let after = named("t = Cast(e) to=1\n y = Identity(t)\n z = Neg(y)\n output y z");
    assert_eq!(after, ["Exp", "Neg"]);
    let after = named("t = Cast(x) to=1\n y = Identity(t)\n z = Neg(y)\n output e y z");
    assert_eq!(after, ["Exp", "Identity", "Neg"]);
    // A value with two output names, or an input that is an output, needs an Identity.
    assert_eq!(
        named("y = Identity(e)\n z = Identity(e)\n output y z"),
        ["Exp", "Identity"]
    );
    assert_eq!(named("y = Identity(e)\n output e y"), ["Exp", "Identity"]);
    assert_eq!(named("y = Identity(x)\n output e y"), ["Exp", "Identity"]);
}

/// PyTorch exports integer division with this comparison of truth values.
#[test]
fn constant_equal_of_booleans_is_folded() {
    // tract has no Equal for truth values.
    let before = model(
        "input x batch 3
         ints a 3 = -3 0 5
         ints b = 2
         ints zero = 0
         l = Less(a, zero)
         g = Greater(b, zero)
         e = Equal(l, g)
         f = Cast(e) to=1
         m = Add(x, f)
         y = Exp(m)
         output y",
    );
    assert_eq!(operators(&proved(&before)), ["Add", "Exp"]);
}

#[test]
fn constant_float_range_is_folded_where_it_is_exact() {
    let counted = |numbers: &str| {
        let [start, limit, delta] = numbers.split(' ').collect::<Vec<_>>()[..] else {
            panic!()
        };
        // tract has no Range for floats.
        let before = model(&format!(
            "input x batch 1
             const start = {start}
             const limit = {limit}
             const delta = {delta}
             r = Range(start, limit, delta)
             m = Mul(x, r)
             y = Exp(m)
             output y"
        ));
        operators(&proved(&before))
            .into_iter()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(counted("2 7.5 2"), ["Mul", "Exp"]);
    assert_eq!(counted("3 -3 -2"), ["Mul", "Exp"]);
    // The numbers of this Range are rounded.
    assert_eq!(counted("0 1 0.3"), ["Range", "Mul", "Exp"]);
}

/// The dynamo exporter without optimization writes a Constant for each use, with its numbers in an
/// attribute.
#[test]
fn equal_constant_attributes_merge() {
    let before = model(
        "input x batch 6
         s = Shape(x)
         ints zero 1 = 0
         rows = Gather(s, zero)
         c = Constant() value_ints=[2,3]
         d = Constant() value_ints=[2,3]
         e = Constant() value_ints=[3,2]
         c3 = Concat(rows, c) axis=0
         d3 = Concat(rows, d) axis=0
         e3 = Concat(rows, e) axis=0
         u = Reshape(x, c3)
         v = Reshape(x, d3)
         w = Reshape(x, e3)
         y = Exp(u)
         z = Exp(v)
         q = Exp(w)
         k = Add(y, z)
         output k q",
    );
    let left = operators(&proved(&before))
        .iter()
        .filter(|op| **op == "Exp")
        .count();
    assert_eq!(left, 2);
}

/// A rotary embedding that rotates all channels ends with this Concat.
#[test]
fn concat_with_an_empty_slice_is_removed() {
    let text = |from: usize| {
        format!(
            "input x batch 4
             ints from 1 = {from}
             ints far 1 = 9223372036854775807
             ints last 1 = -1
             a = Exp(x)
             t = Slice(x, from, far, last)
             c = Concat(a, t) axis=-1
             y = Neg(c)
             output y"
        )
    };
    assert_eq!(operators(&tidied(&model(&text(4)))), ["Exp", "Neg"]);
    assert_eq!(
        operators(&tidied(&model(&text(3)))),
        ["Exp", "Slice", "Concat", "Neg"]
    );
}

#[test]
fn values_computed_from_trained_tensors_are_not_folded() {
    for v in ["const v 3 = 0.5 2 3", "const v = 2"] {
        let mut model = model(&format!(
            "input x batch 3
             weight w 3 3
             {v}
             const e = 0.5
             a = Add(v, e)
             s = Sqrt(a)
             d = Div(x, s)
             q = Mul(d, a)
             y = MatMul(q, w)
             output y"
        ));
        assert_eq!(operators(&fuse(&model).model), ["MatMul"], "{v}");
        let entry = StringStringEntryProto {
            key: Some("v".into()),
            value: Some("new".into()),
        };
        model.proto.training_info = vec![TrainingInfoProto {
            update_binding: vec![entry],
            ..Default::default()
        }];
        let after = fuse(&model).model;
        assert_eq!(
            operators(&after),
            ["Add", "Sqrt", "Div", "Mul", "MatMul"],
            "{v}"
        );
        assert_eq!(initializer(&after, "w"), initializer(&model, "w"));
    }
}

/// A training algorithm of one node.
fn algorithm(node: NodeProto) -> TrainingInfoProto {
    let output = vec![ValueInfoProto {
        name: node.output.first().cloned(),
        ..Default::default()
    }];
    let graph = GraphProto {
        node: vec![node],
        output,
        ..Default::default()
    };
    TrainingInfoProto {
        algorithm: Some(graph),
        ..Default::default()
    }
}

#[test]
fn values_that_training_reads_are_not_changed() {
    let untrained = model(
        "input x 2 4
         weight w 4 4
         weight v 4 3
         scale g 4
         scale h 4
         l = MatMul(x, w)
         n = Mul(l, g)
         t = Transpose(n) perm=[1,0]
         u = Transpose(t) perm=[1,0]
         m = Mul(u, h)
         r = Relu(m)
         y = MatMul(r, v)
         output y",
    );
    assert_eq!(
        operators(&fuse(&untrained).model),
        ["MatMul", "Relu", "MatMul"]
    );
    let trained: [fn(&str) -> TrainingInfoProto; 3] = [
        |name| algorithm(node("ReduceMean", &[name], &["loss"], vec![])),
        |name| {
            let mut gradient = node(
                "Gradient",
                &["w"],
                &["dw"],
                vec![("y", Attr::Text(name.to_owned()))],
            );
            gradient.domain = Some("ai.onnx.preview.training".to_owned());
            algorithm(gradient)
        },
        |name| {
            let entry = StringStringEntryProto {
                key: Some("state".into()),
                value: Some(name.into()),
            };
            TrainingInfoProto {
                update_binding: vec![entry],
                ..Default::default()
            }
        },
    ];
    for trained in trained {
        for name in ["l", "n", "t", "m"] {
            let mut model = untrained.clone();
            model.proto.training_info = vec![trained(name)];
            let mut after = fuse(&model).model;
            assert_eq!(after.proto.training_info, model.proto.training_info);
            for model in [&mut model, &mut after] {
                model.graph_mut().output[0].name = Some(name.to_owned());
                model.graph_mut().output[0].r#type = None;
            }
            same(&model, &after, 1e-6);
        }
    }
}

#[test]
fn value_info_of_removed_values_is_removed() {
    let mut model = model(
        "input x batch 4
         weight w 4 4
         scale g 4
         n = Mul(x, g)
         y = MatMul(n, w)
         scale h 4
         gone = Mul(y, h)
         left = Relu(y)
         output y",
    );
    let noted = ["n", "gone", "left"].map(|name| declared(name, DataType::Float, &["batch", "4"]));
    model.graph_mut().value_info = noted.to_vec();
    let after = fuse(&model).model;
    let there: Vec<&str> = after
        .graph()
        .node
        .iter()
        .flat_map(|node| &node.output)
        .map(String::as_str)
        .collect();
    let noted: Vec<&str> = after
        .graph()
        .value_info
        .iter()
        .map(|info| info.name())
        .collect();
    assert_eq!(noted, ["left"]);
    assert_eq!(there, ["y", "left"]);
}

#[test]
fn tensors_that_training_updates_are_not_folded() {
    let mut model = model(
        "input x batch 4
         weight w 4 4
         weight v 4 3
         scale g 4
         n = Mul(x, g)
         m = MatMul(n, w)
         r = Relu(m)
         y = MatMul(r, v)
         output y",
    );
    assert_eq!(operators(&fuse(&model).model), ["MatMul", "Relu", "MatMul"]);
    for (state, left) in [("v", 3), ("g", 4), ("w", 4)] {
        let entry = StringStringEntryProto {
            key: Some(state.into()),
            value: Some("new".into()),
        };
        let binding = TrainingInfoProto {
            update_binding: vec![entry],
            ..Default::default()
        };
        model.proto.training_info = vec![binding];
        let after = fuse(&model).model;
        assert_eq!(operators(&after).len(), left, "{state}");
        let kept = initializer(&after, state);
        assert_eq!(kept, initializer(&model, state));
        let reads = |after: &Model| {
            after
                .graph()
                .node
                .iter()
                .any(|node| node.input.contains(&state.to_owned()))
        };
        assert!(reads(&after), "{state}");
    }
}
