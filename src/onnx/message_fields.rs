//! The table of the fields of every ONNX message.

/// The fields of a message.
pub(super) struct MessageFields {
    /// The numbers of the fields whose values are not messages.
    pub scalars: &'static [u32],
    /// The number, the name and the message type of each field whose value is a message. The name
    /// of a repeated field ends with `[]`.
    pub messages: &'static [(u32, &'static str, &'static MessageFields)],
    /// Fields of which at most one may be set.
    pub one_of: &'static [u32],
}

impl MessageFields {
    /// The index of a field in `messages`.
    pub(super) fn place(&self, number: u32) -> Option<usize> {
        let mut numbers = self.messages.iter().map(|(number, ..)| *number);
        numbers.position(|other| other == number)
    }
}

/// The number of the field in which a tensor has its elements as bytes.
pub(super) const RAW_DATA: u32 = 9;

/// The maximum number of message-typed fields in one message.
pub(super) const MOST_MESSAGES: usize = 8;

/// The fields that every model has: the version of the format, the graph, and the operator sets.
pub(super) const EVERY_MODEL: [u32; 3] = [1, 7, 8];

pub(super) static MODEL: MessageFields = MessageFields {
    scalars: &[1, 2, 3, 4, 5, 6],
    messages: &[
        (7, "graph", &GRAPH),
        (8, "opset_import[]", &OPERATOR_SET_ID),
        (14, "metadata_props[]", &STRING_STRING_ENTRY),
        (20, "training_info[]", &TRAINING_INFO),
        (25, "functions[]", &FUNCTION),
        (26, "configuration[]", &DEVICE_CONFIGURATION),
    ],
    one_of: &[],
};
pub(super) static GRAPH: MessageFields = MessageFields {
    scalars: &[2, 10],
    messages: &[
        (1, "node[]", &NODE),
        (5, "initializer[]", &TENSOR),
        (11, "input[]", &VALUE_INFO),
        (12, "output[]", &VALUE_INFO),
        (13, "value_info[]", &VALUE_INFO),
        (14, "quantization_annotation[]", &TENSOR_ANNOTATION),
        (15, "sparse_initializer[]", &SPARSE_TENSOR),
        (16, "metadata_props[]", &STRING_STRING_ENTRY),
    ],
    one_of: &[],
};
static NODE: MessageFields = MessageFields {
    scalars: &[1, 2, 3, 4, 6, 7, 8],
    messages: &[
        (5, "attribute[]", &ATTRIBUTE),
        (9, "metadata_props[]", &STRING_STRING_ENTRY),
        (10, "device_configurations[]", &NODE_DEVICE_CONFIGURATION),
    ],
    one_of: &[],
};
static ATTRIBUTE: MessageFields = MessageFields {
    scalars: &[1, 2, 3, 4, 7, 8, 9, 13, 20, 21],
    messages: &[
        (5, "t", &TENSOR),
        (6, "g", &GRAPH),
        (10, "tensors[]", &TENSOR),
        (11, "graphs[]", &GRAPH),
        (14, "tp", &TYPE),
        (15, "type_protos[]", &TYPE),
        (22, "sparse_tensor", &SPARSE_TENSOR),
        (23, "sparse_tensors[]", &SPARSE_TENSOR),
    ],
    one_of: &[],
};
pub(super) static TENSOR: MessageFields = MessageFields {
    scalars: &[1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14],
    messages: &[
        (3, "segment", &SEGMENT),
        (13, "external_data[]", &STRING_STRING_ENTRY),
        (16, "metadata_props[]", &STRING_STRING_ENTRY),
    ],
    one_of: &[],
};
static SEGMENT: MessageFields = MessageFields {
    scalars: &[1, 2],
    messages: &[],
    one_of: &[],
};
static SPARSE_TENSOR: MessageFields = MessageFields {
    scalars: &[3],
    messages: &[(1, "values", &TENSOR), (2, "indices", &TENSOR)],
    one_of: &[],
};
static VALUE_INFO: MessageFields = MessageFields {
    scalars: &[1, 3],
    messages: &[
        (2, "type", &TYPE),
        (4, "metadata_props[]", &STRING_STRING_ENTRY),
    ],
    one_of: &[],
};
static TYPE: MessageFields = MessageFields {
    scalars: &[6],
    messages: &[
        (1, "tensor_type", &TENSOR_TYPE),
        (4, "sequence_type", &SEQUENCE_TYPE),
        (5, "map_type", &MAP_TYPE),
        (7, "opaque_type", &OPAQUE_TYPE),
        (8, "sparse_tensor_type", &SPARSE_TENSOR_TYPE),
        (9, "optional_type", &OPTIONAL_TYPE),
    ],
    one_of: &[1, 4, 5, 7, 8, 9],
};
static TENSOR_TYPE: MessageFields = MessageFields {
    scalars: &[1],
    messages: &[(2, "shape", &TENSOR_SHAPE)],
    one_of: &[],
};
static SEQUENCE_TYPE: MessageFields = MessageFields {
    scalars: &[],
    messages: &[(1, "elem_type", &TYPE)],
    one_of: &[],
};
static MAP_TYPE: MessageFields = MessageFields {
    scalars: &[1],
    messages: &[(2, "value_type", &TYPE)],
    one_of: &[],
};
static OPTIONAL_TYPE: MessageFields = MessageFields {
    scalars: &[],
    messages: &[(1, "elem_type", &TYPE)],
    one_of: &[],
};
static SPARSE_TENSOR_TYPE: MessageFields = MessageFields {
    scalars: &[1],
    messages: &[(2, "shape", &TENSOR_SHAPE)],
    one_of: &[],
};
static OPAQUE_TYPE: MessageFields = MessageFields {
    scalars: &[1, 2],
    messages: &[],
    one_of: &[],
};
static TENSOR_SHAPE: MessageFields = MessageFields {
    scalars: &[],
    messages: &[(1, "dim[]", &DIMENSION)],
    one_of: &[],
};
static DIMENSION: MessageFields = MessageFields {
    scalars: &[1, 2, 3],
    messages: &[],
    one_of: &[],
};
static STRING_STRING_ENTRY: MessageFields = MessageFields {
    scalars: &[1, 2],
    messages: &[],
    one_of: &[],
};
static OPERATOR_SET_ID: MessageFields = MessageFields {
    scalars: &[1, 2],
    messages: &[],
    one_of: &[],
};
static FUNCTION: MessageFields = MessageFields {
    scalars: &[1, 4, 5, 6, 8, 10, 13],
    messages: &[
        (7, "node[]", &NODE),
        (9, "opset_import[]", &OPERATOR_SET_ID),
        (11, "attribute_proto[]", &ATTRIBUTE),
        (12, "value_info[]", &VALUE_INFO),
        (14, "metadata_props[]", &STRING_STRING_ENTRY),
    ],
    one_of: &[],
};
static TRAINING_INFO: MessageFields = MessageFields {
    scalars: &[],
    messages: &[
        (1, "initialization", &GRAPH),
        (2, "algorithm", &GRAPH),
        (3, "initialization_binding[]", &STRING_STRING_ENTRY),
        (4, "update_binding[]", &STRING_STRING_ENTRY),
    ],
    one_of: &[],
};
static TENSOR_ANNOTATION: MessageFields = MessageFields {
    scalars: &[1],
    messages: &[(2, "quant_parameter_tensor_names[]", &STRING_STRING_ENTRY)],
    one_of: &[],
};
static DEVICE_CONFIGURATION: MessageFields = MessageFields {
    scalars: &[1, 2, 3],
    messages: &[],
    one_of: &[],
};
static NODE_DEVICE_CONFIGURATION: MessageFields = MessageFields {
    scalars: &[1, 3],
    messages: &[(2, "sharding_spec[]", &SHARDING_SPEC)],
    one_of: &[],
};
static SHARDING_SPEC: MessageFields = MessageFields {
    scalars: &[1, 2],
    messages: &[
        (3, "index_to_device_group_map[]", &INT_INT_LIST_ENTRY),
        (4, "sharded_dim[]", &SHARDED_DIM),
    ],
    one_of: &[],
};
static SHARDED_DIM: MessageFields = MessageFields {
    scalars: &[1],
    messages: &[(2, "simple_sharding[]", &SIMPLE_SHARDED_DIM)],
    one_of: &[],
};
static SIMPLE_SHARDED_DIM: MessageFields = MessageFields {
    scalars: &[1, 2, 3],
    messages: &[],
    one_of: &[],
};
static INT_INT_LIST_ENTRY: MessageFields = MessageFields {
    scalars: &[1, 2],
    messages: &[],
    one_of: &[],
};

#[cfg(test)]
pub(super) mod tests {
    use prost::Message;
    use prost::encoding::{WireType, encode_key, encode_varint};

    use super::*;
    use crate::onnx::proto::*;

    /// The possible outcomes of decoding a field.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Decoding {
        Refused,
        Dropped,
        Kept,
    }

    /// Encodings of one field: one for each wire type with a payload that is not a message, and one
    /// with an empty payload.
    pub(in crate::onnx) fn probes(number: u32) -> [Vec<u8>; 5] {
        let payloads: [(WireType, &[u8]); 5] = [
            (WireType::Varint, &[1]),
            (WireType::ThirtyTwoBit, &[1; 4]),
            (WireType::SixtyFourBit, &[1; 8]),
            (WireType::LengthDelimited, &[8, 1, 1, 1, 1, 1, 1, 1, 1]),
            (WireType::LengthDelimited, &[0]),
        ];
        payloads.map(|(wire_type, payload)| {
            let mut bytes = Vec::new();
            encode_key(number, wire_type, &mut bytes);
            bytes.extend_from_slice(payload);
            bytes
        })
    }

    /// The outcomes of decoding each field number, in the message itself or inside its field
    /// `within`.
    fn fingerprint<M: Message + Default>(within: Option<u32>) -> Vec<[Decoding; 5]> {
        let numbers = 1..=40;
        numbers
            .map(|number| probes(number).map(|payload| outcome::<M>(&payload, within)))
            .collect()
    }

    fn outcome<M: Message + Default>(payload: &[u8], within: Option<u32>) -> Decoding {
        match M::decode(&wrapped(payload, within)[..]) {
            Err(_) => Decoding::Refused,
            Ok(message) if message.encoded_len() > wrapped(&[], within).len() => Decoding::Kept,
            Ok(_) => Decoding::Dropped,
        }
    }

    fn wrapped(payload: &[u8], within: Option<u32>) -> Vec<u8> {
        let Some(number) = within else {
            return payload.to_vec();
        };
        let mut bytes = Vec::new();
        encode_key(number, WireType::LengthDelimited, &mut bytes);
        encode_varint(payload.len() as u64, &mut bytes);
        bytes.extend_from_slice(payload);
        bytes
    }

    struct Tie {
        fields: &'static MessageFields,
        alone: Vec<[Decoding; 5]>,
        within: fn(Option<u32>) -> Vec<[Decoding; 5]>,
    }

    fn tie<M: Message + Default>(fields: &'static MessageFields) -> Tie {
        Tie {
            fields,
            alone: fingerprint::<M>(None),
            within: fingerprint::<M>,
        }
    }

    fn ties() -> Vec<Tie> {
        vec![
            tie::<ModelProto>(&MODEL),
            tie::<GraphProto>(&GRAPH),
            tie::<NodeProto>(&NODE),
            tie::<AttributeProto>(&ATTRIBUTE),
            tie::<TensorProto>(&TENSOR),
            tie::<Segment>(&SEGMENT),
            tie::<SparseTensorProto>(&SPARSE_TENSOR),
            tie::<ValueInfoProto>(&VALUE_INFO),
            tie::<TypeProto>(&TYPE),
            tie::<TensorType>(&TENSOR_TYPE),
            tie::<SequenceType>(&SEQUENCE_TYPE),
            tie::<MapType>(&MAP_TYPE),
            tie::<OptionalType>(&OPTIONAL_TYPE),
            tie::<SparseTensorType>(&SPARSE_TENSOR_TYPE),
            tie::<OpaqueType>(&OPAQUE_TYPE),
            tie::<TensorShapeProto>(&TENSOR_SHAPE),
            tie::<Dimension>(&DIMENSION),
            tie::<StringStringEntryProto>(&STRING_STRING_ENTRY),
            tie::<OperatorSetIdProto>(&OPERATOR_SET_ID),
            tie::<FunctionProto>(&FUNCTION),
            tie::<TrainingInfoProto>(&TRAINING_INFO),
            tie::<TensorAnnotation>(&TENSOR_ANNOTATION),
            tie::<DeviceConfigurationProto>(&DEVICE_CONFIGURATION),
            tie::<NodeDeviceConfigurationProto>(&NODE_DEVICE_CONFIGURATION),
            tie::<ShardingSpecProto>(&SHARDING_SPEC),
            tie::<ShardedDimProto>(&SHARDED_DIM),
            tie::<SimpleShardedDimProto>(&SIMPLE_SHARDED_DIM),
            tie::<IntIntListEntryProto>(&INT_INT_LIST_ENTRY),
        ]
    }

    #[test]
    fn field_tables_match_the_messages() {
        const EMPTY: usize = 4;
        for Tie { fields, alone, .. } in ties() {
            for (outcomes, number) in alone.iter().zip(1..) {
                let message = outcomes[..EMPTY]
                    .iter()
                    .all(|&outcome| outcome == Decoding::Refused)
                    && outcomes[EMPTY] == Decoding::Kept;
                let known = outcomes.iter().any(|&outcome| outcome != Decoding::Dropped);
                let in_messages = fields.messages.iter().any(|(other, ..)| *other == number);
                assert_eq!(
                    in_messages,
                    message,
                    "message field {number} beside {:?}",
                    fields.messages.first().map(|field| field.1)
                );
                assert_eq!(
                    fields.scalars.contains(&number),
                    known && !message,
                    "scalar field {number} of {:?}",
                    fields.scalars
                );
            }
        }
    }

    #[test]
    fn field_tables_match_nested_messages() {
        let ties = ties();
        for outer in &ties {
            for &(number, name, inner) in outer.fields.messages {
                let inner = ties
                    .iter()
                    .find(|tie| std::ptr::eq(tie.fields, inner))
                    .expect(name);
                assert_eq!((outer.within)(Some(number)), inner.alone, "{name}");
            }
        }
    }
}
