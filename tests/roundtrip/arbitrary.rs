//! Random models with arbitrary values in every field.

use std::collections::HashSet;

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message;
use unfold::onnx::Model;
use unfold::onnx::proto::*;

/// Makes choices from random bytes, and from zeros once they are used up.
struct Source<'a> {
    bytes: &'a [u8],
    depth: usize,
}

impl Source<'_> {
    fn byte(&mut self) -> u8 {
        self.bytes.split_off_first().copied().unwrap_or(0)
    }

    fn text(&mut self) -> String {
        (0..self.byte() % 4)
            .map(|_| char::from(self.byte()))
            .collect()
    }

    fn bytes(&mut self) -> Bytes {
        (0..self.byte() % 4).map(|_| self.byte()).collect()
    }

    fn int(&mut self) -> i64 {
        let magnitude = i64::from(self.byte()) << (self.byte() % 56);
        if self.byte().is_multiple_of(2) {
            magnitude
        } else {
            -magnitude
        }
    }

    fn float(&mut self) -> f32 {
        f32::from_bits(self.int() as u32 & 0x7f7f_ffff)
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.byte() % 2 == 1).then(|| make(self))
    }

    fn some<T>(&mut self, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.byte() % 3).map(|_| make(self)).collect()
    }

    /// A message inside another message, or the default message if the nesting limit is reached.
    fn nested<T: Default>(&mut self, make: impl FnOnce(&mut Self) -> T) -> T {
        if self.depth == 0 {
            return T::default();
        }
        self.depth -= 1;
        let made = make(self);
        self.depth += 1;
        made
    }

    fn entry(&mut self) -> StringStringEntryProto {
        StringStringEntryProto {
            key: self.maybe(Self::text),
            value: self.maybe(Self::text),
        }
    }

    fn opset(&mut self) -> OperatorSetIdProto {
        OperatorSetIdProto {
            domain: self.maybe(Self::text),
            version: self.maybe(Self::int),
        }
    }

    /// Operator sets, at most one of each domain.
    fn opsets(&mut self) -> Vec<OperatorSetIdProto> {
        let mut sets = [vec![self.opset()], self.some(Self::opset)].concat();
        let mut seen = HashSet::new();
        sets.retain(|set| seen.insert(set.domain().to_owned()));
        sets
    }

    fn model(&mut self) -> ModelProto {
        ModelProto {
            ir_version: Some(self.int()),
            producer_name: self.maybe(Self::text),
            producer_version: self.maybe(Self::text),
            domain: self.maybe(Self::text),
            model_version: self.maybe(Self::int),
            doc_string: self.maybe(Self::text),
            graph: Some(self.graph()),
            opset_import: self.opsets(),
            metadata_props: self.some(Self::entry),
            training_info: self.some(Self::training),
            functions: self.some(Self::function),
            configuration: self.some(|source| DeviceConfigurationProto {
                name: source.maybe(Self::text),
                num_devices: source.maybe(Self::int).map(|number| number as i32),
                device: source.some(Self::text),
            }),
        }
    }

    fn training(&mut self) -> TrainingInfoProto {
        TrainingInfoProto {
            initialization: self.maybe(Self::graph),
            algorithm: self.maybe(Self::graph),
            initialization_binding: self.some(Self::entry),
            update_binding: self.some(Self::entry),
        }
    }

    fn function(&mut self) -> FunctionProto {
        FunctionProto {
            name: self.maybe(Self::text),
            input: self.some(Self::text),
            output: self.some(Self::text),
            attribute: self.some(Self::text),
            node: self.some(Self::node),
            doc_string: self.maybe(Self::text),
            opset_import: self.some(Self::opset),
            domain: self.maybe(Self::text),
            attribute_proto: self.some(Self::attribute),
            value_info: self.some(Self::value),
            overload: self.maybe(Self::text),
            metadata_props: self.some(Self::entry),
        }
    }

    fn graph(&mut self) -> GraphProto {
        self.nested(|source| GraphProto {
            node: source.some(Self::node),
            name: source.maybe(Self::text),
            initializer: source.distinct(),
            doc_string: source.maybe(Self::text),
            input: source.some(Self::value),
            output: source.some(Self::value),
            value_info: source.some(Self::value),
            quantization_annotation: source.some(|source| TensorAnnotation {
                tensor_name: source.maybe(Self::text),
                quant_parameter_tensor_names: source.some(Self::entry),
            }),
            sparse_initializer: source.maybe(Self::sparse).into_iter().collect(),
            metadata_props: source.some(Self::entry),
        })
    }

    /// Initializers with different names that `text` never returns.
    fn distinct(&mut self) -> Vec<TensorProto> {
        let tensors = self.some(Self::tensor).into_iter().enumerate();
        let rename = |(index, tensor)| TensorProto {
            name: Some(format!("tensor{index}")),
            ..tensor
        };
        tensors.map(rename).collect()
    }

    fn node(&mut self) -> NodeProto {
        NodeProto {
            input: self.some(Self::text),
            output: self.some(Self::text),
            name: self.maybe(Self::text),
            op_type: self.maybe(Self::text),
            attribute: self.some(Self::attribute),
            doc_string: self.maybe(Self::text),
            domain: self.maybe(Self::text),
            overload: self.maybe(Self::text),
            metadata_props: self.some(Self::entry),
            device_configurations: self.some(|source| NodeDeviceConfigurationProto {
                configuration_id: source.maybe(Self::text),
                sharding_spec: source.some(Self::sharding),
                pipeline_stage: source.maybe(Self::int).map(|number| number as i32),
            }),
        }
    }

    fn sharding(&mut self) -> ShardingSpecProto {
        ShardingSpecProto {
            tensor_name: self.maybe(Self::text),
            device: self.some(Self::int),
            index_to_device_group_map: self.some(|source| IntIntListEntryProto {
                key: source.maybe(Self::int),
                value: source.some(Self::int),
            }),
            sharded_dim: self.some(|source| ShardedDimProto {
                axis: source.maybe(Self::int),
                simple_sharding: source.some(|source| SimpleShardedDimProto {
                    dim: source.maybe(Self::dim),
                    num_shards: source.maybe(Self::int),
                }),
            }),
        }
    }

    fn attribute(&mut self) -> AttributeProto {
        AttributeProto {
            name: self.maybe(Self::text),
            f: self.maybe(Self::float),
            i: self.maybe(Self::int),
            s: self.maybe(Self::bytes),
            t: self.maybe(Self::tensor).map(Box::new),
            g: self.maybe(Self::graph).map(Box::new),
            floats: self.some(Self::float),
            ints: self.some(Self::int),
            strings: self.some(Self::bytes),
            tensors: self.some(Self::tensor),
            graphs: self.some(Self::graph),
            doc_string: self.maybe(Self::text),
            tp: self.maybe(Self::kind).map(Box::new),
            type_protos: self.some(Self::kind),
            r#type: self.maybe(Self::int).map(|number| number as i32),
            ref_attr_name: self.maybe(Self::text),
            sparse_tensor: self.maybe(Self::sparse).map(Box::new),
            sparse_tensors: self.some(Self::sparse),
        }
    }

    fn tensor(&mut self) -> TensorProto {
        TensorProto {
            dims: self.some(Self::int),
            data_type: self.maybe(Self::int).map(|number| number as i32),
            segment: self.maybe(|source| Segment {
                begin: source.maybe(Self::int),
                end: source.maybe(Self::int),
            }),
            float_data: self.some(Self::float),
            int32_data: self.some(|source| source.int() as i32),
            string_data: self.some(Self::bytes),
            int64_data: self.some(Self::int),
            name: self.maybe(Self::text),
            raw_data: self.maybe(Self::bytes),
            double_data: self.some(|source| source.float().into()),
            uint64_data: self.some(|source| source.int() as u64),
            doc_string: self.maybe(Self::text),
            external_data: self.some(Self::entry),
            data_location: self.maybe(Self::int).map(|number| number as i32),
            metadata_props: self.some(Self::entry),
        }
    }

    fn sparse(&mut self) -> SparseTensorProto {
        SparseTensorProto {
            values: self.maybe(Self::tensor),
            indices: self.maybe(Self::tensor),
            dims: self.some(Self::int),
        }
    }

    fn value(&mut self) -> ValueInfoProto {
        ValueInfoProto {
            name: self.maybe(Self::text),
            r#type: self.maybe(Self::kind),
            doc_string: self.maybe(Self::text),
            metadata_props: self.some(Self::entry),
        }
    }

    fn kind(&mut self) -> TypeProto {
        self.nested(|source| {
            let mut kind = TypeProto {
                denotation: source.maybe(Self::text),
                ..Default::default()
            };
            let (elem_type, choice) = (
                source.maybe(|source| source.int() as i32),
                source.byte() % 7,
            );
            let shape = source.maybe(|source| TensorShapeProto {
                dim: source.some(|source| Dimension {
                    value: source.maybe(Self::dim),
                    denotation: source.maybe(Self::text),
                }),
            });
            match choice {
                0 => kind.tensor_type = Some(TensorType { elem_type, shape }),
                1 => kind.sparse_tensor_type = Some(SparseTensorType { elem_type, shape }),
                2 => {
                    let elem_type = source.maybe(Self::kind);
                    kind.sequence_type = Some(Box::new(SequenceType { elem_type }));
                }
                3 => {
                    let elem_type = source.maybe(Self::kind);
                    kind.optional_type = Some(Box::new(OptionalType { elem_type }));
                }
                4 => {
                    let value_type = source.maybe(Self::kind);
                    kind.map_type = Some(Box::new(MapType {
                        key_type: elem_type,
                        value_type,
                    }));
                }
                5 => {
                    let (domain, name) = (source.maybe(Self::text), source.maybe(Self::text));
                    kind.opaque_type = Some(OpaqueType { domain, name });
                }
                _ => {}
            }
            kind
        })
    }

    fn dim(&mut self) -> Dim {
        if self.byte().is_multiple_of(2) {
            Dim::DimValue(self.int())
        } else {
            Dim::DimParam(self.text())
        }
    }
}

proptest! {
    #[test]
    fn random_models_are_read_as_written(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let proto = Source { bytes: &bytes, depth: 5 }.model();
        let encoded = proto.encode_to_vec();
        let model = Model::from_bytes(encoded.clone()).unwrap();
        prop_assert_eq!(model.to_bytes().unwrap(), encoded);
        prop_assert_eq!(model.proto, proto);
    }
}
