//! Element types and names of new tensors.

use crate::common::portable;
use std::collections::HashSet;

use ndarray::ArrayD;
use unfold::onnx::proto::{
    GraphProto, NodeDeviceConfigurationProto, ShardingSpecProto, SparseTensorProto,
    StringStringEntryProto, TensorAnnotation, TensorProto,
};
use unfold::onnx::{DataType, Externals, Model, tensor};
use unfold::plan::Family;
use unfold::verify::compare;
use unfold::{FuseOptions, Target};

use crate::common::judge;
use crate::common::numbers::Kind;
use crate::common::text::model;
use crate::common::{declared, floats, initializer, node, retype, undeclared};
use crate::{folded, fused, operators, same};

/// The model after its only input and these constants are converted to another type.
fn of_type(text: &str, shape: &[&str], constants: &[&str], data_type: DataType) -> Model {
    let mut model = model(text);
    model.graph_mut().input = vec![declared("x", data_type, shape)];
    retype(&mut model, constants, data_type);
    model
}

/// The types of the constants that a fold adds.
fn new_types(before: &Model, after: &Model) -> HashSet<DataType> {
    let old: HashSet<&str> = before
        .graph()
        .initializer
        .iter()
        .map(|tensor| tensor.name())
        .collect();
    let new = after
        .graph()
        .initializer
        .iter()
        .filter(|tensor| !old.contains(tensor.name()));
    new.map(|tensor| tensor::data_type(tensor).unwrap())
        .collect()
}

const TYPES: [DataType; 4] = [
    DataType::Float16,
    DataType::BFloat16,
    DataType::Float,
    DataType::Double,
];

#[test]
fn folded_constants_have_the_type_of_the_value() {
    for data_type in TYPES {
        let text = "input x 4 4
                    const c 4 1 = 2 3 4 5
                    const d 4 1 = 1 -1 2 -2
                    a = Mul(x, c)
                    b = Add(a, d)
                    t = Transpose(b) perm=[1,0]
                    y = Neg(t)
                    output y";
        let model = of_type(text, &["4", "4"], &["c", "d"], data_type);
        let after = fused(&model).model;
        assert!(operators(&after).len() < operators(&model).len());
        assert_eq!(new_types(&model, &after), HashSet::from([data_type]));
    }
}

#[test]
fn gemm_gets_a_bias_only_in_float32() {
    for (behind, output) in [("", "y"), ("z = Add(y, e)", "z")] {
        for data_type in TYPES {
            let text = format!(
                "input x 4 4
                 const c 4 = 2 3 4 5
                 const d 4 = 1 -1 2 -2
                 const w 4 4 = 1 0 2 0 0 1 0 2 1 1 0 0 0 0 1 1
                 const e 4 = 1 2 3 4
                 a = Mul(x, c)
                 b = Add(a, d)
                 y = Gemm(b, w)
                 {behind}
                 output {output}"
            );
            let model = of_type(&text, &["4", "4"], &["c", "d", "w", "e"], data_type);
            let after = fused(&model).model;
            let expected = if data_type == DataType::Float {
                &["Gemm"][..]
            } else {
                &["Gemm", "Add"]
            };
            assert_eq!(operators(&after), expected, "{data_type:?}");
            assert_eq!(new_types(&model, &after), HashSet::from([data_type]));
            // tract has no bfloat16.
            if data_type != DataType::BFloat16 {
                assert!(
                    compare(&model, &after, &Default::default()).passed(),
                    "{data_type:?}"
                );
            }
        }
    }
}

#[test]
fn bfloat16_and_float32_are_distinguished_behind_casts() {
    let text = "input x 4 4
                const c 4 1 = 2 4 8 0.5
                const h 4 = 2 -1 1 2
                z = Relu(x)
                a = Mul(z, c)
                t = Transpose(a) perm=[1,0]
                n = Mul(t, h)
                k = Cast(n) to=TO
                y = Relu(k)
                output y";
    let behind = "k = Cast(t) to=TO\n n = Mul(k, h)\n y = Relu(n)\n output y";
    for (data_type, other) in [
        (DataType::BFloat16, DataType::Float),
        (DataType::Float, DataType::BFloat16),
    ] {
        let text = text.replace("TO", &other.code().to_string());
        let model = of_type(&text, &["4", "4"], &["c", "h"], data_type);
        assert_eq!(
            new_types(&model, &fused(&model).model),
            HashSet::from([data_type])
        );
        let (before, _) = text.split_once("n = Mul").unwrap();
        let text = format!(
            "{before}{}",
            behind.replace("TO", &other.code().to_string())
        );
        let mut model = of_type(&text, &["4", "4"], &["c"], data_type);
        retype(&mut model, &["h"], other);
        assert_eq!(
            new_types(&model, &fused(&model).model),
            HashSet::from([other])
        );
    }
}

#[test]
fn batch_norm_of_mixed_types_folds_to_the_type_of_its_value() {
    let text = "opset 15
                input x 4 4
                const c 4 1 = 2 3 4 0.5
                const d 4 1 = 2 3 4 0.5
                scale g 4
                shift b 4
                shift m 4
                const v 4 = 4 1 16 0.25
                a = Mul(x, c)
                e = Add(a, d)
                t = Transpose(e) perm=[1,0]
                n = BatchNormalization(t, g, b, m, v) epsilon=0.0
                y = Relu(n)
                output y";
    for data_type in TYPES {
        let model = of_type(text, &["4", "4"], &["c", "d"], data_type);
        let after = fused(&model).model;
        // A BatchNormalization with one type absorbs the affine.
        assert_eq!(
            operators(&after).contains(&"BatchNormalization"),
            data_type == DataType::Float
        );
        assert_eq!(new_types(&model, &after), HashSet::from([data_type]));
    }
}

#[test]
fn new_bias_has_the_type_of_the_result() {
    for data_type in TYPES {
        let text = "input x 2 4
                    shift t 4
                    weight w 4 3
                    shift g 4
                    n = Add(x, t)
                    m = Mul(n, g)
                    y = MatMul(m, w)
                    output y";
        let model = of_type(text, &["2", "4"], &["t", "w", "g"], data_type);
        assert_eq!(
            new_types(&model, &folded(&model)),
            HashSet::from([data_type])
        );
    }
}

#[test]
fn inlined_opaque_normalizer_has_the_type_of_its_value() {
    let mut model = of_type(
        "input x 2 4
         scale g 4
         const v 4 = 4 1 16 0.25
         n = UN(x, g, , v)
         weight w 4 3
         y = MatMul(n, w)
         output y",
        &["2", "4"],
        &["w"],
        DataType::Float16,
    );
    model.graph_mut().node[0].domain = Some("com.example".into());
    let fused = unfold::fuse(&model, &portable()).unwrap();
    let lowered = fused.lowered.as_ref().unwrap();
    assert_eq!(
        new_types(&model, lowered),
        HashSet::from([DataType::Float16])
    );
    assert_eq!(
        new_types(&model, &fused.model),
        HashSet::from([DataType::Float16])
    );
}

#[test]
fn new_names_avoid_every_name_in_the_model() {
    let mut model = model(
        "input x 2 4
         condition cond
         scale s 4
         shift t 4
         weight w 4 3
         n = Mul(x, s)
         m = Add(n, t)
         y = MatMul(m, w)
         output y",
    );
    let body = |op: &str| {
        let mut body = GraphProto {
            name: Some("body".into()),
            ..Default::default()
        };
        body.node.push(node(op, &["x"], &["y_unbiased_1"], vec![]));
        body.value_info
            .push(declared("y_unbiased_2", DataType::Float, &["2", "4"]));
        body.initializer
            .push(floats("w_folded", &ArrayD::zeros(vec![1])));
        body.output.push(undeclared("y_unbiased_1"));
        body
    };
    let branches = vec![
        ("then_branch", body("Neg").into()),
        ("else_branch", body("Relu").into()),
    ];
    let branching = node("If", &["cond"], &["z"], branches);
    let graph = model.graph_mut();
    graph.node.push(branching);
    graph.output.push(undeclared("z"));
    graph
        .value_info
        .push(declared("y_unbiased", DataType::Int64, &["7"]));
    graph.quantization_annotation.push(TensorAnnotation {
        tensor_name: Some("w_folded_1".into()),
        ..Default::default()
    });
    let sparse = |name: &str| TensorProto {
        name: Some(name.into()),
        dims: vec![0],
        data_type: Some(DataType::Float.code()),
        ..Default::default()
    };
    graph.sparse_initializer.push(SparseTensorProto {
        values: Some(sparse("MatMul_y_bias")),
        dims: vec![1],
        ..Default::default()
    });
    let after = unfold::fuse(&model, &portable()).unwrap().model;
    assert_eq!(operators(&after), ["MatMul", "Add", "If"]);
    assert_eq!(after.graph().node[0].output, ["y_unbiased_3"]);
    initializer(&after, "w_folded_2");
    initializer(&after, "MatMul_y_bias_1");
    same(&model, &after, 0.0);
}

/// The network after all its floats are converted to another type.
fn retyped(model: &Model, data_type: DataType) -> Model {
    let mut model = model.clone().into_memory().unwrap();
    let graph = model.graph_mut();
    let float = DataType::Float.code();
    for value in graph
        .input
        .iter_mut()
        .chain(&mut graph.output)
        .chain(&mut graph.value_info)
    {
        let tensor = value.r#type.as_mut().and_then(|t| t.tensor_type.as_mut());
        if let Some(tensor) = tensor.filter(|tensor| tensor.elem_type() == float) {
            tensor.elem_type = Some(data_type.code());
        }
    }
    let attributes = graph.node.iter_mut().flat_map(|node| &mut node.attribute);
    let mut stored: Vec<&mut TensorProto> = graph.initializer.iter_mut().collect();
    for attribute in attributes {
        match attribute.name() {
            "to" if attribute.i == Some(float.into()) => {
                attribute.i = Some(data_type.code().into())
            }
            _ => stored.extend(attribute.t.as_deref_mut()),
        }
    }
    for stored in stored
        .into_iter()
        .filter(|tensor| tensor.data_type == Some(float))
    {
        let values = tensor::read_f64(stored, &Externals::none()).unwrap();
        *stored = tensor::make(stored.name(), data_type, &values.view()).unwrap();
    }
    model
}

#[test]
fn digits_models_fold_in_every_float_type_within_rounding() {
    for (kind, exporter) in [
        ("un", "dynamo"),
        ("un", "legacy"),
        ("bn", "dynamo"),
        ("bn", "legacy"),
    ] {
        let path = format!(
            "{}/models/digits/{kind}-{exporter}.onnx",
            env!("CARGO_MANIFEST_DIR")
        );
        let network = Model::open(path).unwrap();
        for data_type in TYPES {
            let model = retyped(&network, data_type);
            let after = unfold::fuse(&model, &portable()).unwrap();
            let offline = after
                .plan
                .sites
                .iter()
                .filter(|site| site.kind.family == Family::Offline);
            assert_eq!(
                offline.filter(|site| site.is_folded()).count(),
                7,
                "{kind}-{exporter} {data_type}"
            );
            let floats = new_types(&model, &after.model)
                .into_iter()
                .filter(|made| made.is_float());
            assert_eq!(floats.collect::<HashSet<_>>(), HashSet::from([data_type]));
            let inputs = judge::inputs(&model, 1, true, Kind::Real);
            let agree = judge::agree(&model, &after.model, &inputs, 4.0 * data_type.rounding());
            assert_eq!(agree, Ok(true), "{kind}-{exporter} {data_type}");
        }
    }
}

#[test]
fn type_of_a_value_is_inferred_from_a_constant_beside_it() {
    // tract infers no type for this Slice, which has the rank of its operand.
    let model = model(
        "input x batch 3 2 3
         ints zero 1 = 0
         ints all 1 = -1
         ints from 2 = 1 -11
         ints to 2 = 9223372036854775807 -19
         ints axes 2 = 0 1
         ints steps 2 = 2 -2
         scale s 1 4
         shift t 4
         weight w 4 3
         weight v 3 2
         divisor d 4
         extents = Shape(x)
         first = Gather(extents, zero) axis=0
         flat = Concat(first, all) axis=0
         m = Reshape(x, flat)
         k = Slice(m, from, to, axes, steps)
         a = Mul(k, s)
         b = Add(a, t)
         c = Div(b, d)
         z = MatMul(c, w)
         y = MatMul(z, v)
         output y",
    );
    assert_eq!(
        operators(&fused(&model).model).last_chunk(),
        Some(&["Reshape", "Slice", "MatMul", "Add"])
    );
}

#[test]
fn annotations_name_existing_tensors_after_a_fold() {
    let mut before = model(
        "input x batch 4
         scale g 4
         weight w 4 3
         n = Mul(x, g)
         y = MatMul(n, w)
         output y",
    );
    let parameter = StringStringEntryProto {
        key: Some("SCALE_TENSOR".into()),
        value: Some("g".into()),
    };
    before
        .graph_mut()
        .quantization_annotation
        .push(TensorAnnotation {
            tensor_name: Some("y".into()),
            quant_parameter_tensor_names: vec![parameter],
        });
    let spec = |name: &str| ShardingSpecProto {
        tensor_name: Some(name.into()),
        ..Default::default()
    };
    before.graph_mut().node[1]
        .device_configurations
        .push(NodeDeviceConfigurationProto {
            sharding_spec: ["n", "w", "y", "elsewhere"].map(spec).into(),
            ..Default::default()
        });
    let after = unfold::fuse(&before, &portable()).unwrap().model;
    assert_eq!(operators(&after), ["MatMul"]);
    // The scale is folded, but the annotation still names it, so it stays in the model.
    assert_eq!(initializer(&after, "g"), initializer(&before, "g"));
    assert_eq!(
        after.graph().quantization_annotation,
        before.graph().quantization_annotation
    );
    let product = &after.graph().node[0];
    let specs = &product.device_configurations[0].sharding_spec;
    let names: Vec<&str> = specs.iter().map(|spec| spec.tensor_name()).collect();
    assert_eq!(names, ["x", &product.input[1], "y", "elsewhere"]);
    assert_ne!(product.input[1], "w");
    // One value gets another name, and another one is no longer read.
    let mut before = model(
        "opset 18
         input x batch 4
         ints one 1 = 0
         ints other 1 = 0
         scale g 4
         shift t 4
         weight w 4 3
         r = ReduceMax(x, one)
         q = ReduceMin(x, other)
         shift u 3
         n = LayerNormalization(x, g, t) axis=-1
         k = MatMul(n, w)
         y = Add(k, u)
         output y r q",
    );
    for (place, names) in [(1, ["x", "other"]), (2, ["g", "t"])] {
        before.graph_mut().node[place]
            .device_configurations
            .push(NodeDeviceConfigurationProto {
                sharding_spec: names.map(spec).into(),
                ..Default::default()
            });
    }
    let after = unfold::fuse(&before, &portable()).unwrap().model;
    let named = |op: &str| {
        let node = after
            .graph()
            .node
            .iter()
            .find(|node| node.op_type() == op)
            .unwrap();
        let specs = node.device_configurations[0].sharding_spec.iter();
        (
            node.input.clone(),
            specs
                .map(|spec| spec.tensor_name().to_owned())
                .collect::<Vec<_>>(),
        )
    };
    let (read, names) = named("ReduceMin");
    assert_eq!(
        (names, read),
        (
            vec!["x".into(), "one".into()],
            vec!["x".into(), "one".into()]
        )
    );
    let (read, names) = named("LayerNormalization");
    assert_eq!((names, read.len()), (vec![read[1].clone()], 2));
}

#[test]
fn sharding_of_a_reshaped_value_is_dropped() {
    let mut before = model(
        "input x batch 3 4
         weight w 4 5
         shift b 5
         weight v 5 2
         shift d 2
         m = MatMul(x, w)
         h = Add(m, b)
         r = Relu(h)
         p = MatMul(r, v)
         y = Add(p, d)
         output y",
    );
    before.graph_mut().node[2]
        .device_configurations
        .push(NodeDeviceConfigurationProto {
            sharding_spec: ["h", "r"]
                .map(|name| ShardingSpecProto {
                    tensor_name: Some(name.into()),
                    ..Default::default()
                })
                .into(),
            ..Default::default()
        });
    let options = FuseOptions {
        target: Target::Onnxruntime,
        ..portable()
    };
    let after = unfold::fuse(&before, &options).unwrap().model;
    let relu = after
        .graph()
        .node
        .iter()
        .find(|node| node.op_type() == "Relu")
        .unwrap();
    assert_ne!(relu.input, ["h"]);
    let specs = relu
        .device_configurations
        .iter()
        .flat_map(|configuration| &configuration.sharding_spec);
    assert_eq!(specs.count(), 0);
}
