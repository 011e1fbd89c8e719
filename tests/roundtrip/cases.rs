//! One model for each feature of the specification.

use unfold::onnx::DataType;
use unfold::onnx::proto::*;

use crate::{entry, external, model, opset, raw, with_initializers};

/// The models, each with the name of its feature.
pub fn all() -> Vec<(String, ModelProto)> {
    let mut cases: Vec<(String, ModelProto)> = Vec::new();
    let mut case = |name: &str, model| cases.push((name.to_owned(), model));
    parts_of_models(&mut case);
    attributes(&mut case);
    types(&mut case);
    tensors(&mut case);
    cases
}

type Case<'a> = &'a mut dyn FnMut(&str, ModelProto);

fn graph() -> GraphProto {
    GraphProto {
        name: Some("g".into()),
        node: vec![node("Relu")],
        ..Default::default()
    }
}

fn node(op_type: &str) -> NodeProto {
    NodeProto {
        op_type: Some(op_type.into()),
        input: vec!["x".into()],
        output: vec!["y".into()],
        ..Default::default()
    }
}

fn value(name: &str, r#type: TypeProto) -> ValueInfoProto {
    ValueInfoProto {
        name: Some(name.into()),
        r#type: Some(r#type),
        ..Default::default()
    }
}

fn tensor_type(dims: &[Dimension]) -> TypeProto {
    let shape = TensorShapeProto { dim: dims.to_vec() };
    let tensor_type = TensorType {
        elem_type: Some(1),
        shape: Some(shape),
    };
    TypeProto {
        tensor_type: Some(tensor_type),
        ..Default::default()
    }
}

fn dim(value: Option<Dim>, denotation: Option<&str>) -> Dimension {
    Dimension {
        value,
        denotation: denotation.map(Into::into),
    }
}

fn sparse(name: &str) -> SparseTensorProto {
    SparseTensorProto {
        values: Some(raw(name, DataType::Float, &[1], &[0, 0, 128, 63])),
        indices: Some(raw("", DataType::Int64, &[1], &[2, 0, 0, 0, 0, 0, 0, 0])),
        dims: vec![5],
    }
}

fn parts_of_models(case: Case<'_>) {
    case("a graph without anything", model(GraphProto::default()));
    case("a node", model(graph()));
    let described = ModelProto {
        producer_name: Some("pytorch".into()),
        producer_version: Some("2".into()),
        domain: Some("org.example".into()),
        model_version: Some(3),
        doc_string: Some("line\nline".into()),
        metadata_props: vec![entry("k", "v"), entry("k", "again"), entry("", "")],
        ..model(graph())
    };
    case("a described model", described);
    let defaults = ModelProto {
        ir_version: Some(0),
        producer_name: Some(String::new()),
        model_version: Some(0),
        opset_import: vec![OperatorSetIdProto::default(), opset("", 0)],
        metadata_props: vec![StringStringEntryProto::default()],
        ..model(GraphProto {
            name: Some(String::new()),
            ..Default::default()
        })
    };
    case("defaults that are written", defaults);
    let negative = ModelProto {
        model_version: Some(i64::MIN),
        ..model(graph())
    };
    case(
        "negative numbers",
        ModelProto {
            ir_version: Some(-1),
            ..negative
        },
    );
    let domains = ["", "ai.onnx", "ai.onnx.ml", "com.microsoft", "pkg.torch"];
    let opset_import = domains.map(|domain| opset(domain, 1)).to_vec();
    case(
        "several operator sets",
        ModelProto {
            opset_import,
            ..model(graph())
        },
    );

    let function = FunctionProto {
        name: Some("Gelu".into()),
        domain: Some("local".into()),
        overload: Some("f16".into()),
        input: vec!["x".into()],
        output: vec!["y".into()],
        attribute: vec!["alpha".into()],
        attribute_proto: vec![attribute("beta", |a| a.f = Some(0.0), AttributeType::Float)],
        node: vec![NodeProto {
            attribute: vec![AttributeProto {
                ref_attr_name: Some("alpha".into()),
                ..attribute("a", |_| (), AttributeType::Float)
            }],
            ..node("Elu")
        }],
        doc_string: Some("doc".into()),
        opset_import: vec![opset("", 18)],
        value_info: vec![value("y", tensor_type(&[]))],
        metadata_props: vec![entry("k", "v")],
    };
    let caller = NodeProto {
        domain: Some("local".into()),
        overload: Some("f16".into()),
        ..node("Gelu")
    };
    let calling = model(GraphProto {
        node: vec![caller],
        ..Default::default()
    });
    case(
        "a function",
        ModelProto {
            functions: vec![function.clone()],
            ..calling.clone()
        },
    );
    let plain = FunctionProto {
        overload: None,
        attribute_proto: vec![],
        ..function.clone()
    };
    case(
        "functions with overloads",
        ModelProto {
            functions: vec![function, plain],
            ..calling
        },
    );

    let training = TrainingInfoProto {
        initialization: Some(graph()),
        algorithm: Some(GraphProto {
            initializer: vec![scalar()],
            ..graph()
        }),
        initialization_binding: vec![entry("w", "w0")],
        update_binding: vec![entry("w", "w1")],
    };
    let training_info = vec![training, TrainingInfoProto::default()];
    case(
        "training",
        ModelProto {
            training_info,
            ..model(graph())
        },
    );

    let sharding = ShardingSpecProto {
        tensor_name: Some("x".into()),
        device: vec![0, 1, -1],
        index_to_device_group_map: vec![
            IntIntListEntryProto {
                key: Some(-1),
                value: vec![2, 3],
            },
            IntIntListEntryProto::default(),
        ],
        sharded_dim: vec![ShardedDimProto {
            axis: Some(-1),
            simple_sharding: vec![
                SimpleShardedDimProto {
                    dim: Some(Dim::DimValue(8)),
                    num_shards: Some(2),
                },
                SimpleShardedDimProto {
                    dim: Some(Dim::DimParam("N".into())),
                    num_shards: None,
                },
                SimpleShardedDimProto::default(),
            ],
        }],
    };
    let placed = NodeProto {
        device_configurations: vec![NodeDeviceConfigurationProto {
            configuration_id: Some("gpus".into()),
            sharding_spec: vec![sharding],
            pipeline_stage: Some(-1),
        }],
        ..node("Relu")
    };
    let configuration = vec![DeviceConfigurationProto {
        name: Some("gpus".into()),
        num_devices: Some(2),
        device: vec!["a".into(), "b".into()],
    }];
    let placed = model(GraphProto {
        node: vec![placed],
        ..Default::default()
    });
    case(
        "devices",
        ModelProto {
            configuration,
            ..placed
        },
    );

    let annotation = TensorAnnotation {
        tensor_name: Some("x".into()),
        quant_parameter_tensor_names: vec![
            entry("SCALE_TENSOR", "s"),
            entry("ZERO_POINT_TENSOR", "z"),
        ],
    };
    let quantization_annotation = vec![annotation, TensorAnnotation::default()];
    case(
        "quantization",
        model(GraphProto {
            quantization_annotation,
            ..graph()
        }),
    );
    let annotated = GraphProto {
        doc_string: Some("doc".into()),
        metadata_props: vec![entry("graph", "v")],
        node: vec![NodeProto {
            name: Some("n".into()),
            doc_string: Some("doc".into()),
            metadata_props: vec![entry("pkg.torch.onnx.class_hierarchy", "['a.B', 'c.D']")],
            ..node("Relu")
        }],
        initializer: vec![TensorProto {
            doc_string: Some("doc".into()),
            metadata_props: vec![entry("tensor", "v")],
            ..scalar()
        }],
        value_info: vec![ValueInfoProto {
            doc_string: Some("doc".into()),
            metadata_props: vec![entry("value", "v")],
            ..value("y", tensor_type(&[]))
        }],
        ..Default::default()
    };
    case("metadata everywhere", model(annotated));

    let outer = |op_type: &str, bodies: &[&str]| {
        let body = |name: &&str| {
            let inner = GraphProto {
                initializer: vec![scalar()],
                ..graph()
            };
            let inner = attribute(
                "then_branch",
                |a| a.g = Some(Box::new(inner)),
                AttributeType::Graph,
            );
            let graph = GraphProto {
                node: vec![NodeProto {
                    attribute: vec![inner],
                    ..node("If")
                }],
                initializer: vec![scalar()],
                ..Default::default()
            };
            attribute(name, |a| a.g = Some(Box::new(graph)), AttributeType::Graph)
        };
        let attribute = bodies.iter().map(body).collect();
        model(GraphProto {
            node: vec![NodeProto {
                attribute,
                ..node(op_type)
            }],
            ..graph()
        })
    };
    case(
        "the bodies of If",
        outer("If", &["then_branch", "else_branch"]),
    );
    case("the body of Loop", outer("Loop", &["body"]));
    case("the body of Scan", outer("Scan", &["body"]));

    let optional = NodeProto {
        input: vec!["x".into(), String::new(), String::new(), "min".into()],
        output: vec![String::new(), "y".into()],
        ..node("Clip")
    };
    case(
        "inputs left out",
        model(GraphProto {
            node: vec![optional],
            ..Default::default()
        }),
    );
    case(
        "a node without anything",
        model(GraphProto {
            node: vec![NodeProto::default()],
            ..graph()
        }),
    );
    let names = GraphProto {
        name: Some("名前 🦀 \u{0}\u{7f}".into()),
        ..graph()
    };
    case("names in any script", model(names));
    let many = (0..300).map(|index| NodeProto {
        name: Some(format!("n{index}")),
        ..node("Add")
    });
    case(
        "many nodes",
        model(GraphProto {
            node: many.collect(),
            ..Default::default()
        }),
    );
    let sparse_initializer = vec![sparse("s"), sparse("t")];
    case(
        "sparse initializers",
        model(GraphProto {
            sparse_initializer,
            ..graph()
        }),
    );
    let external = with_initializers(vec![
        external(
            "a",
            &[2],
            &[("location", "w.bin"), ("offset", "4096"), ("length", "8")],
        ),
        external(
            "b",
            &[2],
            &[
                ("location", "w.bin"),
                ("checksum", "00ff"),
                ("unheard_of", ""),
            ],
        ),
    ]);
    case("external tensors", external);
    let mut nested = graph();
    for _ in 0..20 {
        let body = Box::new(nested);
        let body = attribute("body", |a| a.g = Some(body), AttributeType::Graph);
        nested = GraphProto {
            node: vec![NodeProto {
                attribute: vec![body],
                ..node("Loop")
            }],
            ..Default::default()
        };
    }
    case("bodies in bodies", model(nested));
}

fn attribute(
    name: &str,
    set: impl FnOnce(&mut AttributeProto),
    kind: AttributeType,
) -> AttributeProto {
    let mut attribute = AttributeProto {
        name: Some(name.into()),
        r#type: Some(kind.into()),
        ..Default::default()
    };
    set(&mut attribute);
    attribute
}

fn attributes(case: Case<'_>) {
    use AttributeType::*;
    let mut one = |name: &str, set: fn(&mut AttributeProto), kind| {
        let node = NodeProto {
            attribute: vec![attribute("a", set, kind)],
            ..node("Op")
        };
        let model = model(GraphProto {
            node: vec![node],
            ..Default::default()
        });
        case(&format!("attribute: {name}"), model);
    };
    one("float", |a| a.f = Some(f32::MIN_POSITIVE), Float);
    one("float 0", |a| a.f = Some(0.0), Float);
    one("float -0", |a| a.f = Some(-0.0), Float);
    one("infinity", |a| a.f = Some(f32::INFINITY), Float);
    one("int 0", |a| a.i = Some(0), Int);
    one("least int", |a| a.i = Some(i64::MIN), Int);
    one("empty string", |a| a.s = Some("".into()), String);
    one(
        "string that is no text",
        |a| a.s = Some(vec![0xff, 0xfe, 0].into()),
        String,
    );
    one("tensor", |a| a.t = Some(Box::new(scalar())), Tensor);
    one("empty tensor", |a| a.t = Some(Box::default()), Tensor);
    one("graph", |a| a.g = Some(Box::new(graph())), Graph);
    one("floats", |a| a.floats = vec![1.0, -0.0, f32::MAX], Floats);
    one("no floats", |_| (), Floats);
    one("ints", |a| a.ints = vec![0, -1, i64::MAX], Ints);
    one(
        "strings",
        |a| a.strings = vec!["".into(), "b".into()],
        Strings,
    );
    one("tensors", |a| a.tensors = vec![scalar(), scalar()], Tensors);
    one(
        "graphs",
        |a| a.graphs = vec![graph(), GraphProto::default()],
        Graphs,
    );
    one(
        "type",
        |a| a.tp = Some(Box::new(tensor_type(&[]))),
        TypeProto,
    );
    one(
        "types",
        |a| a.type_protos = vec![tensor_type(&[]), Default::default()],
        TypeProtos,
    );
    one(
        "sparse tensor",
        |a| a.sparse_tensor = Some(Box::new(sparse("s"))),
        SparseTensor,
    );
    one(
        "sparse tensors",
        |a| a.sparse_tensors = vec![sparse("s")],
        SparseTensors,
    );
    one(
        "documented",
        |a| a.doc_string = Some("doc".into()),
        Undefined,
    );
    one("of a later version", |a| a.r#type = Some(99), Undefined);
    one(
        "without a type",
        |a| {
            *a = AttributeProto {
                i: Some(1),
                ..Default::default()
            }
        },
        Int,
    );
}

fn types(case: Case<'_>) {
    let mut one = |name: &str, r#type: TypeProto| {
        let graph = GraphProto {
            input: vec![value("x", r#type.clone())],
            output: vec![value("y", r#type)],
            value_info: vec![ValueInfoProto::default()],
            ..graph()
        };
        case(&format!("type: {name}"), model(graph));
    };
    let tensor = || tensor_type(&[dim(Some(Dim::DimValue(1)), None)]);
    one("none", TypeProto::default());
    one("tensor", tensor());
    one("scalar", tensor_type(&[]));
    let unranked = TensorType {
        elem_type: Some(1),
        shape: None,
    };
    one(
        "tensor of unknown rank",
        TypeProto {
            tensor_type: Some(unranked),
            ..Default::default()
        },
    );
    let dims = [
        dim(None, None),
        dim(Some(Dim::DimValue(0)), None),
        dim(Some(Dim::DimValue(-1)), None),
        dim(Some(Dim::DimParam("batch".into())), Some("DATA_BATCH")),
        dim(Some(Dim::DimParam(String::new())), None),
        dim(None, Some("DATA_CHANNEL")),
    ];
    one("dimensions", tensor_type(&dims));
    one(
        "denoted",
        TypeProto {
            denotation: Some("IMAGE".into()),
            ..tensor()
        },
    );
    let sequence = SequenceType {
        elem_type: Some(tensor()),
    };
    let sequence = TypeProto {
        sequence_type: Some(Box::new(sequence)),
        ..Default::default()
    };
    one("sequence", sequence.clone());
    let map = MapType {
        key_type: Some(8),
        value_type: Some(sequence.clone()),
    };
    one(
        "map",
        TypeProto {
            map_type: Some(Box::new(map)),
            ..Default::default()
        },
    );
    let optional = OptionalType {
        elem_type: Some(sequence),
    };
    let denotation = Some("d".into());
    let optional_type = Some(Box::new(optional));
    one(
        "optional",
        TypeProto {
            optional_type,
            denotation,
            ..Default::default()
        },
    );
    let sparse = SparseTensorType {
        elem_type: Some(1),
        shape: Some(TensorShapeProto::default()),
    };
    one(
        "sparse",
        TypeProto {
            sparse_tensor_type: Some(sparse),
            ..Default::default()
        },
    );
    let opaque = OpaqueType {
        domain: Some("d".into()),
        name: Some("n".into()),
    };
    one(
        "opaque",
        TypeProto {
            opaque_type: Some(opaque),
            ..Default::default()
        },
    );
}

fn scalar() -> TensorProto {
    raw("scalar", DataType::Float, &[], &[0, 0, 128, 63])
}

fn tensors(case: Case<'_>) {
    for data_type in (1..).map_while(DataType::from_code) {
        let bytes = vec![0x5a; data_type.byte_size(5).unwrap_or(0)];
        let tensor = raw("w", data_type, &[5], &bytes);
        case(
            &format!("{data_type} as bytes"),
            with_initializers(vec![tensor]),
        );
    }
    let mut one = |name: &str, tensor: TensorProto| {
        let tensor = TensorProto {
            name: Some("w".into()),
            ..tensor
        };
        case(&format!("tensor: {name}"), with_initializers(vec![tensor]));
    };
    let typed = |data_type: DataType, dim| TensorProto {
        data_type: Some(data_type.code()),
        dims: vec![dim],
        ..Default::default()
    };
    let float_data = vec![0.0, -0.0, f32::INFINITY, f32::MIN_POSITIVE];
    one(
        "floats",
        TensorProto {
            float_data: float_data.clone(),
            ..typed(DataType::Float, 4)
        },
    );
    one(
        "complex",
        TensorProto {
            float_data,
            ..typed(DataType::Complex64, 2)
        },
    );
    let double_data = vec![0.5, f64::MAX];
    one(
        "doubles",
        TensorProto {
            double_data,
            ..typed(DataType::Double, 2)
        },
    );
    let int32_data = vec![0, -1, i32::MAX, i32::MIN];
    one(
        "int32",
        TensorProto {
            int32_data,
            ..typed(DataType::Int32, 4)
        },
    );
    let int32_data = vec![0x3c00, 0xfc00];
    one(
        "halves",
        TensorProto {
            int32_data,
            ..typed(DataType::Float16, 2)
        },
    );
    let int64_data = vec![0, -1, i64::MAX];
    one(
        "int64",
        TensorProto {
            int64_data,
            ..typed(DataType::Int64, 3)
        },
    );
    let uint64_data = vec![0, u64::MAX];
    one(
        "uint64",
        TensorProto {
            uint64_data,
            ..typed(DataType::Uint64, 2)
        },
    );
    let string_data = vec!["".into(), "é".into(), vec![0xff].into()];
    one(
        "strings",
        TensorProto {
            string_data,
            ..typed(DataType::String, 3)
        },
    );
    one(
        "no elements",
        TensorProto {
            dims: vec![0, 3],
            ..typed(DataType::Float, 0)
        },
    );
    let empty = Some("".into());
    one(
        "no bytes",
        TensorProto {
            raw_data: empty,
            ..typed(DataType::Float, 0)
        },
    );
    one("a negative shape", typed(DataType::Float, -1));
    one(
        "a type of a later version",
        TensorProto {
            data_type: Some(99),
            ..scalar()
        },
    );
    let segment = Some(Segment {
        begin: Some(0),
        end: None,
    });
    one(
        "a segment",
        TensorProto {
            segment,
            ..scalar()
        },
    );
    one(
        "a location that is the default",
        TensorProto {
            data_location: Some(0),
            ..scalar()
        },
    );
}

/// Models written by the protobuf library of Python, in hexadecimal.
pub fn written_elsewhere() -> [(&'static str, &'static str); 4] {
    [
        (
            "types and denotations",
            "\
             080e3a585a100a0178120b3201644a060a040a0208015a0a12083201653a030a016f5a0e120c32016642\
             0712050a0312014e5a2812262a210807121d221b0a190a1712150a031a01430a0e08ffffffffffffffff\
             ff011a014232016742040a00101a\
             ",
        ),
        (
            "a node with everything",
            "\
             080e3a87020a84020a000a01781201791a016e22024f702a190a04696e7473400140ffffffffffffffff\
             ff0140ac02a001072a150a06666c6f6174733d0000803f3d00000080a001062a0b0a016918006a017aa0\
             01022a0a0a01732202ff00a001032a110a07737472696e67734a004a0162a001082a0a0a0172a00101aa\
             0101712a120a02747072040a0208017a03320174a0010d2a1b0a027370a0010bb2010c0a021001120210\
             0718021803ba010218043203646f633a0b636f6d2e6578616d706c6542016f4a050a016b1200523c0a01\
             63122c0a0178100010ffffffffffffffffff011a0f08ffffffffffffffffff0110001001220908011205\
             12014e180218ffffffffffffffffff0142040a00101a\
             ",
        ),
        (
            "tensors of every type",
            "\
             080e3ade032a0a080108001001420274312a0a080108001002420274322a0a080108001003420274332a\
             0a080108001004420274342a0a080108001005420274352a0a080108001006420274362a0a0801080010\
             07420274372a0a080108001008420274382a0a080108001009420274392a0b08010800100a4203743130\
             2a0b08010800100b42037431312a0b08010800100c42037431322a0b08010800100d42037431332a0b08\
             010800100e42037431342a0b08010800100f42037431352a0b08010800101042037431362a0b08010800\
             101142037431372a0b08010800101242037431382a0b08010800101342037431392a0b08010800101442\
             037432302a0b08010800101542037432312a0b08010800101642037432322a0b08010800101742037432\
             332a0b08010800101842037432342a0b08010800101942037432352a0b08010800101a42037432362a0b\
             08010800101b42037432372a0b08010800101c42037432382a1e080210011a040800100222080000803f\
             00000040420574797065646201642a592a0bffffffffffffffffff010532016132003a10ffffffffffff\
             ffffff0180808080802042036933324a01015208000000000000e03f5a0affffffffffffffffff016a0d\
             0a086c6f636174696f6e12016670008201030a016d42040a00101a\
             ",
        ),
        (
            "a model with everything",
            "\
             080e1201701a0176220164280032003a341201675202676462031a016f6a030a017672160a017712110a\
             0c5343414c455f54454e534f521201737a0218058201040a02676b42040a00101a72030a016ba201140a\
             0312016912031201611a0312017622030a016bca01410a01462201612a01623205616c7068613a062204\
             52656c75420266644a021001520266645a0e0a0462657461150000803fa0010162030a01766a016f7203\
             0a016bd2010b0a016310021a01611a0162\
             ",
        ),
    ]
}
