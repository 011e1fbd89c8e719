//! Folded weights are rounded once. A fold that loses more is refused.

use crate::common::portable;
use ndarray::{ArrayD, Axis, IxDyn};
use unfold::fuse;
use unfold::onnx::{DataType, Externals, Model, tensor};
use unfold::refusal::Reason;

use crate::common::numbers::Numbers;
use crate::common::text::model;
use crate::common::{declared, initializer, retype};
use crate::{in_type, kept};

/// The model after all its floats are converted to another type.
fn of_type(text: &str, data_type: DataType) -> Model {
    let mut model = model(text);
    for input in &mut model.graph_mut().input {
        let shape = input
            .r#type
            .take()
            .and_then(|t| t.tensor_type)
            .and_then(|tensor| tensor.shape);
        *input = declared(input.name(), data_type, &[]);
        if let Some(tensor) = input.r#type.as_mut().and_then(|t| t.tensor_type.as_mut()) {
            tensor.shape = shape;
        }
    }
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
    model
}

/// A scale of four channels, and a linear operator.
fn scaled(scale: &str, weight: &str, reader: &str, data_type: DataType) -> Model {
    of_type(
        &format!(
            "input x 2 4
             const s 4 = {scale}
             const w {weight}
             a = Mul(x, s)
             y = {reader}
             output y"
        ),
        data_type,
    )
}

fn read(model: &Model, name: &str) -> ArrayD<f64> {
    tensor::read_f64(initializer(model, name), &Externals::none()).unwrap()
}

/// Numbers like those of trained weights: most are small, and none is large.
fn trained(shape: &[usize], seed: u64) -> ArrayD<f64> {
    let mut numbers = Numbers::new(seed);
    let mut uniform = || (numbers.any() >> 40) as f64 / (1_u64 << 24) as f64;
    ArrayD::from_shape_simple_fn(shape, || {
        0.02 * (0..12).map(|_| uniform() - 0.5).sum::<f64>()
    })
}

#[test]
fn fold_that_makes_a_weight_subnormal_or_zero_is_refused() {
    let cases = [
        (
            DataType::Float16,
            "1e-4",
            "1e-3 3e-3 2e-4 8e-4 2e-3 1.5e-3 4e-4 1e-3 9e-4 2e-3 5e-4 7e-4",
        ),
        (
            DataType::Float16,
            "4e-4",
            "1e-4 4e-4 3e-5 7e-5 1e-4 1e-4 2e-5 9e-5 6e-5 2e-4 4e-5 5e-5",
        ),
        (
            DataType::Float,
            "1e-25",
            "1e-20 2e-20 3e-21 7e-21 1e-20 1e-20 2e-21 9e-21 6e-21 1e-20 4e-21 5e-21",
        ),
        (
            DataType::BFloat16,
            "1e-25",
            "1e-20 2e-20 3e-21 7e-21 1e-20 1e-20 2e-21 9e-21 6e-21 1e-20 4e-21 5e-21",
        ),
        (
            DataType::Double,
            "1e-30",
            "1e-30 2e-30 3e-31 7e-31 1e-30 1e-30 2e-31 9e-31 6e-31 1e-30 4e-31 5e-31",
        ),
    ];
    for (data_type, scale, weight) in cases {
        let scale = [scale; 4].join(" ");
        for reader in ["MatMul(a, w)", "Gemm(a, w)"] {
            let model = scaled(&scale, &format!("4 3 = {weight}"), reader, data_type);
            match data_type {
                // A float64 represents 1e-60 with all its digits.
                DataType::Double => assert!(fuse(&model, &portable()).unwrap().changed()),
                _ => assert_eq!(in_type(&kept(&model).0), ("underflow", &*data_type.name())),
            }
        }
    }
}

#[test]
fn float64_underflow_is_refused() {
    let mut model = scaled("1 1 1 1", "4 1 = 1 1 1 1", "MatMul(a, w)", DataType::Double);
    for (name, value) in [("s", 1e-160), ("w", 1e-150)] {
        let shape = if name == "s" { vec![4] } else { vec![4, 1] };
        let tensor = model
            .graph_mut()
            .initializer
            .iter_mut()
            .find(|tensor| tensor.name() == name)
            .unwrap();
        *tensor = tensor::make(
            name,
            DataType::Double,
            &ArrayD::from_elem(shape, value).view(),
        )
        .unwrap();
    }
    assert_eq!(
        kept(&model).0,
        Reason::Underflow("1.0e-310 in double".into())
    );
    let tensor = model
        .graph_mut()
        .initializer
        .iter_mut()
        .find(|tensor| tensor.name() == "w")
        .unwrap();
    *tensor = tensor::make(
        "w",
        DataType::Double,
        &ArrayD::from_elem(vec![4, 1], 1e-170).view(),
    )
    .unwrap();
    assert_eq!(kept(&model).0, Reason::Underflow("double".into()));
}

#[test]
fn scale_that_underflows_one_channel_is_refused_and_zero_is_not() {
    let weight = "4 3 = 0.5 0.25 0.125 0.5 0.3 0.2 0.7 0.9 0.8 0.2 0.3 0.4";
    let dying = scaled("1 1e-6 1 1", weight, "MatMul(a, w)", DataType::Float16);
    assert_eq!(in_type(&kept(&dying).0), ("underflow", "float16"));
    let dead = scaled("1 0 1 2", weight, "MatMul(a, w)", DataType::Float16);
    let after = fuse(&dead, &portable()).unwrap().model;
    let expected = &read(&dead, "w") * &read(&dead, "s").insert_axis(Axis(1));
    assert_eq!(read(&after, "w_folded"), expected);
}

#[test]
fn exactly_scaled_subnormal_weight_folds() {
    // Each number is six units in the last place. It is doubled, or left unchanged.
    let weight = "4 1 = 3.5762787e-7 3.5762787e-7 3.5762787e-7 3.5762787e-7";
    let model = scaled("1 2 -1 4", weight, "MatMul(a, w)", DataType::Float16);
    let after = fuse(&model, &portable()).unwrap().model;
    let unit = 1.0 / f64::from(1 << 24);
    let expected = ArrayD::from_shape_vec(
        IxDyn(&[4, 1]),
        [6.0, 12.0, -6.0, 24.0].map(|n| n * unit).into(),
    );
    assert_eq!(read(&after, "w_folded"), expected.unwrap());
    // Half of an odd number of units is not exact.
    let halved = scaled(
        "1 2 0.5 4",
        &weight.replace("3.57", "4.17"),
        "MatMul(a, w)",
        DataType::Float16,
    );
    assert_eq!(in_type(&kept(&halved).0), ("underflow", "float16"));
}

#[test]
fn few_subnormals_among_ordinary_weights_fold() {
    let with = |weight: &ArrayD<f64>, text: &str| {
        let mut model = of_type(text, DataType::Float16);
        model
            .graph_mut()
            .initializer
            .push(tensor::make("w", DataType::Float16, &weight.view()).unwrap());
        let scales = trained(&[64], 1).mapv(|number| 1.25 + 0.75 * (number * 1e3).sin());
        model
            .graph_mut()
            .initializer
            .push(tensor::make("s", DataType::Float16, &scales.view()).unwrap());
        model
    };
    let matrix = "input x 8 64
                  a = Mul(x, s)
                  y = MatMul(a, w)
                  output y";
    let weight = trained(&[64, 200], 2);
    let model = with(&weight, matrix);
    let after = fuse(&model, &portable()).unwrap();
    assert!(
        after.plan.sites.iter().all(|site| site.is_folded()),
        "{:?}",
        after.plan.sites
    );
    let exact = &read(&model, "w") * &read(&model, "s").insert_axis(Axis(1));
    let stored = read(&after.model, "w_folded");
    let largest = exact
        .iter()
        .fold(0.0_f64, |largest, number| largest.max(number.abs()));
    let least = half::f16::MIN_POSITIVE.to_f64();
    assert!(
        exact
            .iter()
            .zip(&stored)
            .any(|(e, s)| e != s && s.abs() < least),
        "none is subnormal"
    );
    assert!(
        exact
            .iter()
            .zip(&stored)
            .all(|(e, s)| (e - s).abs() <= largest / 2048.0)
    );
    // A result is refused if all of its weights are small.
    let mut column = weight.clone();
    column
        .index_axis_mut(Axis(1), 7)
        .mapv_inplace(|number| number / 1e4);
    assert_eq!(
        in_type(&kept(&with(&column, matrix)).0),
        ("underflow", "float16")
    );
    // In a depthwise convolution, each result has the weights of one channel.
    let depthwise = "input x 1 64 8
                     ints shape 2 = 64 1
                     c = Reshape(s, shape)
                     a = Mul(x, c)
                     y = Conv(a, w) group=64
                     output y";
    let mut taps = trained(&[64, 1, 9], 3);
    let mut model = with(&taps, "input x 1 64 12");
    model.graph_mut().node = crate::common::text::model(depthwise).graph().node.clone();
    model.graph_mut().output = crate::common::text::model(depthwise).graph().output.clone();
    model
        .graph_mut()
        .initializer
        .push(tensor::make_i64("shape", &[64, 1]));
    assert!(fuse(&model, &portable()).unwrap().plan.sites[0].is_folded());
    taps.index_axis_mut(Axis(0), 5)
        .mapv_inplace(|number| number / 1e4);
    let tensor = model
        .graph_mut()
        .initializer
        .iter_mut()
        .find(|tensor| tensor.name() == "w")
        .unwrap();
    *tensor = tensor::make("w", DataType::Float16, &taps.view()).unwrap();
    assert_eq!(in_type(&kept(&model).0), ("underflow", "float16"));
}

#[test]
fn batch_norm_folds_before_a_scale_that_would_underflow() {
    let model = of_type(
        "input x 2 4
         const g 4 = 0.01 0.01 0.02 0.01
         const b 4 = 0 0 0 0
         const v 4 = 1 1 1 1
         const w 4 2 = 0.5 0.25 0.125 0.5 0.3 0.2 0.7 0.9
         const c 1 = 0.001
         a = BatchNormalization(x, g, b, b, v) epsilon=0.0
         m = MatMul(a, w)
         y = Mul(m, c)
         output y",
        DataType::Float16,
    );
    let fused = fuse(&model, &portable()).unwrap();
    let folded: Vec<_> = fused
        .plan
        .sites
        .iter()
        .map(|site| (site.kind.name, site.is_folded()))
        .collect();
    assert_eq!(folded, [("BN", true), ("de-normalisation", false)]);
    let expected = &read(&model, "w") * &read(&model, "g").insert_axis(Axis(1));
    let stored = read(&fused.model, "w_folded");
    assert!(
        stored
            .iter()
            .zip(&expected)
            .all(|(s, e)| (s - e).abs() <= e.abs() / 2048.0)
    );
}

#[test]
fn subnormal_bias_folds() {
    // The sum with the product does not have these digits either.
    let model = of_type(
        "input x 2 4
         const w 4 3 = 1 2 3 1 2 3 1 2 3 1 2 3
         const c 3 = 1e-6 2e-6 3e-6
         const s 3 = 0.3 0.7 0.9
         l = MatMul(x, w)
         b = Add(l, c)
         n = Mul(b, s)
         y = Relu(n)
         output y",
        DataType::Float16,
    );
    let after = fuse(&model, &portable()).unwrap();
    assert!(after.plan.sites[0].is_folded());
    let exact = &read(&model, "c") * &read(&model, "s");
    assert_eq!(
        read(&after.model, "c_folded").into_raw_vec_and_offset().0,
        {
            exact
                .mapv(|number| half::f16::from_f64(number).to_f64())
                .into_raw_vec_and_offset()
                .0
        }
    );
}

#[test]
fn merged_scales_are_refused_if_one_element_underflows() {
    // Two successive scales become one, which float16 does not represent.
    let merged = |first: &str| {
        of_type(
            &format!(
                "input x 4 4
                 const s 4 1 = {first}
                 const g 4 = 0.01 0.02 0.03 0.04
                 a = Mul(x, s)
                 t = Transpose(a) perm=[1,0]
                 n = Mul(t, g)
                 y = Relu(n)
                 output y"
            ),
            DataType::Float16,
        )
    };
    assert!(
        fuse(&merged("0.5 0.5 0.5 2"), &portable())
            .unwrap()
            .changed()
    );
    assert!(
        !fuse(&merged("0.5 0.5 1e-4 2"), &portable())
            .unwrap()
            .changed()
    );
}

#[test]
fn bfloat16_constant_arithmetic_rounds_at_each_operator() {
    let model = of_type(
        "input x 2 4
         const v 4 = 0.3 0.7 1.1 2.3
         const w 4 3 = 1 2 3 1.5 2.5 3.5 1.25 2.25 3.25 1.75 2.75 3.75
         s = Sqrt(v)
         a = Mul(x, s)
         y = MatMul(a, w)
         output y",
        DataType::BFloat16,
    );
    let after = fuse(&model, &portable()).unwrap();
    let short = |number: f64| half::bf16::from_f64(number).to_f64();
    let [scale, weight] = [read(&model, "v"), read(&model, "w")];
    let folded = |scale: ArrayD<f64>| {
        let column = scale.into_shape_with_order(IxDyn(&[4, 1])).unwrap();
        (&weight * &column).mapv(short)
    };
    let found = read(&after.model, &after.plan.tensors[0].name);
    assert_eq!(found, folded(scale.mapv(|number| short(number.sqrt()))));
    assert_ne!(found, folded(scale.mapv(f64::sqrt)));
}

/// A normalizer from `x` to `a` with these lines, and a MatMul by a large weight.
fn before_weight(lines: &str, weight: &ArrayD<f64>) -> Model {
    let shape: Vec<String> = weight.shape().iter().map(ToString::to_string).collect();
    let mut model = model(&format!(
        "input x 2 4
         weight w {}
         {lines}
         y = MatMul(a, w)
         output y",
        shape.join(" ")
    ));
    let initializers = &mut model.graph_mut().initializer;
    let tensor = initializers
        .iter_mut()
        .find(|tensor| tensor.name() == "w")
        .unwrap();
    *tensor = tensor::make("w", DataType::Float, &weight.view()).unwrap();
    model
}

/// A scale of four channels, optionally with a shift. With a shift, computing the bias reads the
/// range of the weight.
fn normalizer(op: &str, scales: &str, is_shifted: bool) -> String {
    let shift = if is_shifted {
        "Add(m, s)"
    } else {
        "Identity(m)"
    };
    format!("const s 4 = {scales}\n m = {op}(x, s)\n a = {shift}")
}

#[test]
fn large_weights_are_refused_for_the_same_reasons_as_small_ones() {
    for (columns, is_shifted) in [
        (5, false),
        (5000, false),
        (20_000, false),
        (20_000, true),
        (5, true),
    ] {
        for place in [0, 7, 4 * columns - 1] {
            for (number, expected) in [
                (f64::NAN, Reason::NotFinite),
                (f64::INFINITY, Reason::NotFinite),
                (3e38, Reason::Overflow("6.0e38 in float".into())),
            ] {
                let mut weight = trained(&[4, columns], 1);
                weight.as_slice_mut().unwrap()[place] = number;
                let model = before_weight(&normalizer("Mul", "2 2 2 2", is_shifted), &weight);
                assert_eq!(
                    kept(&model).0,
                    expected,
                    "{columns} columns, {number} at {place} {is_shifted}"
                );
            }
        }
    }
}

#[test]
fn large_weight_is_judged_by_its_products_and_not_by_bounds() {
    let folds = |scales: &str, numbers: [f64; 4]| {
        let weight = ArrayD::from_shape_fn(IxDyn(&[4, 20_000]), |at| numbers[at[0]]);
        let model = before_weight(&normalizer("Mul", scales, false), &weight);
        fuse(&model, &portable()).unwrap().plan.sites[0].is_folded()
    };
    // The largest number is multiplied by the smallest scale.
    assert!(folds("1e-3 3 3 3", [2e38, 1.0, 1.0, 1.0]));
    assert!(!folds("3 3 3 3", [2e38, 1.0, 1.0, 1.0]));
    assert!(folds("1 1e-10 1 1", [1e-30, 1e-20, 1e-20, 1e-30]));
    assert!(!folds("1e-10 1e-10 1e-10 1e-10", [1e-30; 4]));
}

#[test]
fn large_folded_weight_is_rounded_once() {
    let numbers = trained(&[4, 20_000], 1);
    let stored = numbers.mapv(|number| f64::from(number as f32));
    for op in ["Mul", "Div"] {
        for scales in [[3.0, -0.1, 0.0, 1e-3], [8.0, 4.9, 5.0, 5.001]] {
            let said = scales.map(|scale: f64| scale.to_string()).join(" ");
            let model = before_weight(&normalizer(op, &said, false), &numbers);
            if op == "Div" && scales.contains(&0.0) {
                // A quotient by 0 is not finite, whatever the magnitudes are.
                assert_eq!(kept(&model).0, Reason::NotFinite);
                continue;
            }
            let scales = scales.map(|scale| f64::from(scale as f32));
            let expected = |row: usize, number: f64| match op {
                "Mul" => (number * scales[row]) as f32,
                _ => (number * (1.0 / scales[row])) as f32,
            };
            let after = fuse(&model, &portable()).unwrap().model;
            let mut weights = after
                .graph()
                .initializer
                .iter()
                .filter(|tensor| tensor.dims == [4, 20_000]);
            let folded = tensor::read_f64(weights.next().unwrap(), after.externals()).unwrap();
            for (found, (at, &number)) in folded.iter().zip(stored.indexed_iter()) {
                assert_eq!(*found, f64::from(expected(at[0], number)), "{op} {at:?}");
            }
        }
    }
}

/// The products with 300 times the weight may be infinite although their mean is finite.
#[test]
fn scale_above_one_does_not_pass_float16_reduce_mean_backward() {
    let scaled = |number: &str| {
        of_type(
            &format!(
                "input x batch 10 4
                 const w 4 4 = 1 0 0 2 0 1 0 0 0 0 1 0 1 0 0 1
                 const s 4 = {number}
                 p = MatMul(x, w)
                 m = ReduceMean(p) axes=[1] keepdims=0
                 n = Mul(m, s)
                 y = Relu(n)
                 output y"
            ),
            DataType::Float16,
        )
    };
    let stays = unfold::fuse(&scaled("300 1 1 1"), &portable()).unwrap();
    assert_eq!(
        crate::operators(&stays.model),
        ["MatMul", "ReduceMean", "Mul", "Relu"]
    );
    let goes = unfold::fuse(&scaled("0.5 1 0.25 1"), &portable()).unwrap();
    assert_eq!(
        crate::operators(&goes.model),
        ["MatMul", "ReduceMean", "Relu"]
    );
}
