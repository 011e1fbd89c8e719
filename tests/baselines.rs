//! Tests the variants with LayerNorm in place of each normalizer, and without normalizers.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::Builder;
use ndarray::{Array3, ArrayD, ArrayView1, Axis, array};
use unfold::Baselines;
use unfold::onnx::Model;
use unfold::onnx::proto::{
    Dim, Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto,
    TensorShapeProto, TensorType, TypeProto, ValueInfoProto,
};
use unfold::onnx::{DataType, tensor};
use unfold::run::{Dims, Engine, Tensor, random};

const KINDS: [&str; 13] = [
    "un", "bn", "bnt", "mabn", "pnstar", "repbn", "pn", "dyt", "dys", "dyss", "ln", "rmsnorm",
    "dtn",
];
const EXPORTERS: [&str; 2] = ["dynamo", "legacy"];

fn digits(kind: &str, exporter: &str) -> Model {
    Model::open(format!("models/digits/{kind}-{exporter}.onnx")).unwrap()
}

fn operators(model: &Model) -> BTreeMap<&str, usize> {
    let mut count = BTreeMap::new();
    for node in &model.graph().node {
        *count.entry(node.op_type()).or_default() += 1;
    }
    count
}

fn runs(model: &Model) {
    let engine = Engine::load(model, &Dims::default()).unwrap();
    let outputs = engine.run(&random(engine.inputs(), 0)).unwrap();
    let output = outputs[0].to_plain_array_view::<f32>().unwrap();
    assert!(output.iter().all(|value| value.is_finite()));
}

/// The names of the nodes that form the normalizers of a model.
fn normalizers(model: &Model) -> BTreeSet<String> {
    Baselines::new(model).unwrap().normalizers
}

#[test]
fn floor_has_the_operators_of_an_export_without_norms() {
    for exporter in EXPORTERS {
        let none = digits("none", exporter);
        for kind in KINDS {
            let floor = Baselines::new(&digits(kind, exporter)).unwrap().floor;
            assert_eq!(operators(&floor), operators(&none), "{kind}-{exporter}");
            assert!(normalizers(&floor).is_empty(), "{kind}-{exporter}");
            runs(&floor);
        }
    }
}

#[test]
fn ln_twin_has_the_operators_of_a_layer_norm_export() {
    for exporter in EXPORTERS {
        let norms = digits("ln", exporter);
        for kind in KINDS {
            let variants = Baselines::new(&digits(kind, exporter)).unwrap();
            let (twin, found) = (&variants.ln_twin, normalizers(&variants.ln_twin));
            assert_eq!(operators(twin), operators(&norms), "{kind}-{exporter}");
            assert_eq!(found.len(), 7, "{kind}-{exporter}");
            assert!(found.is_subset(&variants.normalizers), "{kind}-{exporter}");
            runs(twin);
        }
    }
}

/// γ(x − mean)/√(variance + ε) + β.
fn layer_norm(x: ArrayView1<f32>, gamma: &[f32], beta: &[f32]) -> Vec<f32> {
    let mean = x.sum() / x.len() as f32;
    let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / x.len() as f32;
    let root = (variance + 1e-5).sqrt();
    x.iter()
        .zip(gamma)
        .zip(beta)
        .map(|((v, gamma), beta)| gamma * (v - mean) / root + beta)
        .collect()
}

/// `y = BatchNormalization(x)` of `[n, 3, 4]`.
fn batch_norm(opset: i64) -> Model {
    let dim = |value| Dimension {
        value: Some(value),
        denotation: None,
    };
    let shape = vec![
        dim(Dim::DimParam("n".into())),
        dim(Dim::DimValue(3)),
        dim(Dim::DimValue(4)),
    ];
    let value = |name: &str| ValueInfoProto {
        name: Some(name.into()),
        r#type: Some(TypeProto {
            tensor_type: Some(TensorType {
                elem_type: Some(DataType::Float.code()),
                shape: Some(TensorShapeProto { dim: shape.clone() }),
            }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let parameters = [
        ("gamma", [1.5, -2.0, 0.5]),
        ("beta", [0.25, 0.0, -1.0]),
        ("mean", [3.0, 4.0, 5.0]),
        ("var", [2.0, 0.1, 9.0]),
    ];
    let initializer = parameters.map(|(name, values)| {
        tensor::make(
            name,
            DataType::Float,
            &ndarray::arr1(&values).into_dyn().view(),
        )
        .unwrap()
    });
    let inputs = ["x"].into_iter().chain(parameters.map(|(name, _)| name));
    Model::from_proto(ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto {
            domain: None,
            version: Some(opset),
        }],
        graph: Some(GraphProto {
            node: vec![NodeProto {
                op_type: Some("BatchNormalization".into()),
                name: Some("norm".into()),
                input: inputs.map(str::to_owned).collect(),
                output: vec!["y".into()],
                ..Default::default()
            }],
            initializer: initializer.into(),
            input: vec![value("x")],
            output: vec![value("y")],
            ..Default::default()
        }),
        ..Default::default()
    })
}

#[test]
fn ln_twin_matches_layer_norm_over_channels() {
    let x: Array3<f32> = array![
        [
            [1.0, 2.0, 3.0, 4.0],
            [0.0, -1.0, 5.0, 2.0],
            [9.0, 0.5, -3.0, 1.0]
        ],
        [
            [-1.0, 7.0, 0.1, 2.0],
            [3.0, 3.0, 4.0, -2.0],
            [1.0, 1.0, 2.0, 6.0]
        ],
    ];
    // LayerNormalization is an operator since operator set 17.
    for opset in [13, 17] {
        let Baselines {
            ln_twin: twin,
            normalizers: known,
            ..
        } = Baselines::new(&batch_norm(opset)).unwrap();
        let found = normalizers(&twin);
        assert!(
            !found.is_empty() && found.is_subset(&known),
            "{found:?} {known:?}"
        );
        let engine = Engine::load(&twin, &"n=2".parse().unwrap()).unwrap();
        let outputs = engine.run(&[Tensor::from(x.clone())]).unwrap();
        let y = outputs[0].to_plain_array_view::<f32>().unwrap();
        assert_eq!(y.shape(), x.shape());
        for (x, y) in x.lanes(Axis(1)).into_iter().zip(y.lanes(Axis(1))) {
            for (expected, y) in layer_norm(x, &[1.5, -2.0, 0.5], &[0.25, 0.0, -1.0])
                .iter()
                .zip(y)
            {
                assert!(
                    (expected - y).abs() < 1e-4,
                    "{expected} {y}, operator set {opset}"
                );
            }
        }
        assert_eq!(twin.graph().output[0].name(), "y");
        assert_eq!(
            operators(&twin).contains_key("LayerNormalization"),
            opset >= 17
        );
    }
}

#[test]
fn floor_of_a_lone_norm_is_an_identity() {
    let floor = Baselines::new(&batch_norm(17)).unwrap().floor;
    assert_eq!(operators(&floor), BTreeMap::from([("Identity", 1)]));
    runs(&floor);
}

/// A normalizer that is one node of a custom domain, between two products.
fn opaque() -> Model {
    let mut builder = Builder::new(17);
    let x = builder.input("x", &["5", "4"]);
    let weight = builder.constant(&ArrayD::from_elem(vec![4, 4], 0.5));
    let row = |first: f64| ArrayD::from_shape_fn(vec![4], |at| first + at[0] as f64);
    let parameters = [1.5, -0.25, 2.0].map(|first| builder.constant(&row(first)));
    let first = builder.op("MatMul", &[&x, &weight], vec![]);
    let [gamma, beta, var] = &parameters;
    let norm = builder.op("UN", &[&first, gamma, beta, var], vec![]);
    builder.graph().node[1].domain = Some("com.example".into());
    let second = builder.op("MatMul", &[&norm, &weight], vec![]);
    let domain = OperatorSetIdProto {
        domain: Some("com.example".into()),
        version: Some(1),
    };
    builder.proto.opset_import.push(domain);
    builder.model(&[&second])
}

/// tract cannot run the model itself, but it can run the reference of the comparison.
#[test]
fn opaque_normalizers_have_variants() {
    let model = opaque();
    assert!(Engine::load(&model, &Dims::default()).is_err());
    let Baselines {
        ln_twin: twin,
        floor,
        ..
    } = Baselines::new(&model).unwrap();
    assert_eq!(operators(&floor), BTreeMap::from([("MatMul", 2)]));
    assert_eq!(
        operators(&twin),
        BTreeMap::from([("LayerNormalization", 1), ("MatMul", 2)])
    );
    runs(&floor);
    runs(&twin);
}

/// The metadata of a node, which name the module that it was exported from.
fn notes(node: &NodeProto) -> Vec<(&str, &str)> {
    node.metadata_props
        .iter()
        .map(|entry| (entry.key(), entry.value()))
        .collect()
}

#[test]
fn new_nodes_keep_the_metadata_of_replaced_ones() {
    for kind in KINDS {
        let model = digits(kind, "dynamo");
        assert!(
            model
                .graph()
                .node
                .iter()
                .all(|node| !notes(node).is_empty())
        );
        let said: BTreeSet<_> = model.graph().node.iter().map(notes).collect();
        let Baselines { ln_twin, floor, .. } = Baselines::new(&model).unwrap();
        let fused = unfold::fuse(&model, &Default::default()).unwrap().model;
        for made in [&ln_twin, &floor, &fused] {
            let silent = made
                .graph()
                .node
                .iter()
                .find(|node| !said.contains(&notes(node)));
            assert_eq!(silent.map(|node| node.name()), None, "{kind}");
        }
    }
}

#[test]
fn identity_keeps_the_metadata_of_its_norm() {
    let mut model = common::text::model(
        "input x b 4 6
         scale g 6
         y = LayerNormalization(x, g)
         output y",
    );
    let note = StringStringEntryProto {
        key: Some("class".into()),
        value: Some("norms.LayerNorm".into()),
    };
    model.graph_mut().node[0].metadata_props.push(note);
    let floor = Baselines::new(&model).unwrap().floor;
    let [identity] = &floor.graph().node[..] else {
        panic!("{:?}", operators(&floor))
    };
    assert_eq!(
        (identity.op_type(), notes(identity)),
        ("Identity", vec![("class", "norms.LayerNorm")])
    );
}
