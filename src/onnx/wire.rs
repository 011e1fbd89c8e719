//! Fields that a decoder would drop silently: a walk over the encoded bytes that knows every field
//! of every message.
//!
//! Payloads are skipped, not read, so that the walk over a large model touches little of it.

use std::collections::HashSet;

use prost::encoding::WireType;

/// How deep messages may be nested: a body inside a body is three deeper, so that there may be 60 of them. The decoder
/// has no limit of its own, and all that goes through the bodies of a model is recursive, in tract too: the stack of
/// any thread must hold it.
const MAX_DEPTH: usize = 200;

/// A flaw of the encoded bytes of a message, and the part that it is in.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Flaw {
    /// The path from the outermost message to the part, such as `graph.node[3]`; empty for the
    /// message itself.
    pub path: String,
    /// The kind of flaw.
    pub kind: FlawKind,
}

/// The kinds of flaws of the encoded bytes of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FlawKind {
    /// They end too early.
    Truncated,
    /// They are no protobuf.
    Malformed(&'static str),
    /// Messages in messages in messages.
    TooDeep,
    /// They hold a field that the message does not have.
    UnknownField(u32),
}

/// The fields of a message.
pub(super) struct Schema {
    /// The numbers of the fields that hold no message.
    scalars: &'static [u32],
    /// The number, the name, and the message of the others; the name of a repeated one ends with
    /// `[]`.
    messages: &'static [(u32, &'static str, &'static Schema)],
    /// Fields of which at most one may be there.
    one_of: &'static [u32],
}

/// Encoded bytes, which are taken one after the other.
pub(super) trait Encoded {
    /// How many were taken.
    fn position(&self) -> u64;

    /// Takes one byte; `None` at the end.
    fn byte(&mut self) -> Option<u8>;

    /// Takes so many; says whether they are there.
    fn pass(&mut self, length: u64) -> bool;

    /// Takes so many that are elements of a tensor; says whether they are there.
    fn elements(&mut self, length: u64) -> bool {
        self.pass(length)
    }
}

/// Bytes in memory.
struct InMemory<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl Encoded for InMemory<'_> {
    fn position(&self) -> u64 {
        self.position as u64
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = self.bytes.get(self.position).copied();
        self.position += usize::from(byte.is_some());
        byte
    }

    fn pass(&mut self, length: u64) -> bool {
        let end = usize::try_from(length)
            .ok()
            .and_then(|length| self.position.checked_add(length));
        let end = end.filter(|&end| end <= self.bytes.len());
        self.position = end.unwrap_or(self.position);
        end.is_some()
    }
}

/// How much there is in the graph of a model.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub nodes: usize,
    pub initializers: usize,
    /// Values whose types are declared, but for inputs and outputs.
    pub values: usize,
}

/// Looks for anything in an encoded model that decoding it would lose.
pub(super) fn check(bytes: &[u8]) -> Result<Counts, Flaw> {
    check_from(&mut InMemory { bytes, position: 0 }, bytes.len() as u64)
}

/// As [`check`], of so many bytes.
pub(super) fn check_from(encoded: &mut impl Encoded, length: u64) -> Result<Counts, Flaw> {
    let mut counts = Counts::default();
    check_message(encoded, length, &MODEL, MAX_DEPTH, &mut counts)?;
    Ok(counts)
}

/// Whether the first `length` bytes have the fields that every model has, and no field that no
/// model has. The contents of the fields are skipped.
pub(super) fn is_model(encoded: &mut impl Encoded, length: u64) -> bool {
    let mut there = HashSet::new();
    while encoded.position() < length {
        let Ok(Field { number, length }) = Field::next(encoded, length) else {
            return false;
        };
        let is_message = MODEL
            .messages
            .iter()
            .any(|(of_message, ..)| *of_message == number);
        let is_known = is_message && length.is_some() || MODEL.scalars.contains(&number);
        if !is_known || length.is_some_and(|length| !encoded.pass(length)) {
            return false;
        }
        there.insert(number);
    }
    EVERY_MODEL.iter().all(|part| there.contains(part))
}

fn check_message(
    encoded: &mut impl Encoded,
    end: u64,
    schema: &'static Schema,
    depth: usize,
    of_graph: &mut Counts,
) -> Result<(), Flaw> {
    if depth == 0 {
        return Err(FlawKind::TooDeep.into());
    }
    let mut chosen = None;
    // How many there were of each field that holds a message.
    let mut counts = [0_u32; MOST_MESSAGES];
    while encoded.position() < end {
        let field = Field::next(encoded, end)?;
        if schema.one_of.contains(&field.number)
            && *chosen.get_or_insert(field.number) != field.number
        {
            return Err(FlawKind::Malformed("it sets fields that exclude each other").into());
        }
        if schema.scalars.contains(&field.number) {
            let is_there = match field.length {
                Some(length) if field.number == RAW_DATA && std::ptr::eq(schema, &TENSOR) => {
                    encoded.elements(length)
                }
                Some(length) => encoded.pass(length),
                None => true,
            };
            if !is_there {
                return Err(FlawKind::Truncated.into());
            }
            continue;
        }
        let of_number = |(number, ..): &(u32, _, _)| *number == field.number;
        let Some(place) = schema.messages.iter().position(of_number) else {
            return Err(FlawKind::UnknownField(field.number).into());
        };
        let Some(length) = field.length else {
            return Err(FlawKind::Malformed("a message is encoded as a number").into());
        };
        let (_, name, inner) = schema.messages[place];
        let inside = encoded.position() + length;
        check_message(encoded, inside, inner, depth - 1, of_graph)
            .map_err(|flaw| flaw.inside(name, counts[place]))?;
        counts[place] += 1;
    }
    // The graph of the model is directly inside of it.
    if std::ptr::eq(schema, &GRAPH) && depth == MAX_DEPTH - 1 {
        let count = |field: &str| {
            let of_name = |(_, name, _): &(u32, &str, _)| *name == field;
            schema
                .messages
                .iter()
                .position(of_name)
                .map_or(0, |place| counts[place] as usize)
        };
        let (nodes, initializers, values) = (
            count("node[]"),
            count("initializer[]"),
            count("value_info[]"),
        );
        *of_graph = Counts {
            nodes,
            initializers,
            values,
        };
    }
    Ok(())
}

impl From<FlawKind> for Flaw {
    fn from(kind: FlawKind) -> Self {
        Self {
            path: String::new(),
            kind,
        }
    }
}

impl Flaw {
    /// The flaw, seen from the message whose field `name` holds the flawed message.
    fn inside(self, name: &str, index: u32) -> Self {
        let mut path = match name.strip_suffix("[]") {
            Some(name) => format!("{name}[{index}]"),
            None => name.to_owned(),
        };
        if !self.path.is_empty() {
            path.push('.');
            path.push_str(&self.path);
        }
        Self { path, ..self }
    }
}

/// One encoded field, up to its payload if it is of any length.
struct Field {
    number: u32,
    /// How long the payload of a length-delimited field is; that of others has been taken.
    length: Option<u64>,
}

impl Field {
    /// Takes the next field of a message that ends somewhere, and is not over.
    fn next(encoded: &mut impl Encoded, end: u64) -> Result<Self, FlawKind> {
        let key = u32::try_from(varint(encoded, end)?)
            .map_err(|_| FlawKind::Malformed("a field number is too large"))?;
        let number = key >> 3;
        if number == 0 {
            return Err(FlawKind::Malformed("a field has the number 0"));
        }
        let fits = |encoded: &dyn Encoded, length: u64| match end - encoded.position() >= length {
            true => Ok(length),
            false => Err(FlawKind::Truncated),
        };
        let fixed = |encoded: &mut dyn Encoded, length| match encoded.pass(fits(encoded, length)?) {
            true => Ok(None),
            false => Err(FlawKind::Truncated),
        };
        let length = match WireType::try_from(u64::from(key & 7)) {
            Ok(WireType::Varint) => varint(encoded, end).map(|_| None)?,
            Ok(WireType::ThirtyTwoBit) => fixed(encoded, 4)?,
            Ok(WireType::SixtyFourBit) => fixed(encoded, 8)?,
            Ok(WireType::LengthDelimited) => {
                let length = varint(encoded, end)?;
                Some(fits(encoded, length)?)
            }
            Ok(WireType::StartGroup | WireType::EndGroup) => {
                return Err(FlawKind::UnknownField(number));
            }
            Err(_) => return Err(FlawKind::Malformed("a field has an undefined wire type")),
        };
        Ok(Self { number, length })
    }
}

fn varint(encoded: &mut impl Encoded, end: u64) -> Result<u64, FlawKind> {
    let mut value = 0;
    for position in 0..10 {
        let next = if encoded.position() < end {
            encoded.byte()
        } else {
            None
        };
        let byte = next.ok_or(FlawKind::Truncated)?;
        value |= u64::from(byte & 0x7f) << (7 * position);
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(FlawKind::Malformed("a number takes more than ten bytes"))
}

/// The field of a tensor that has its elements as bytes.
const RAW_DATA: u32 = 9;

/// How many fields that hold messages any message has at most.
const MOST_MESSAGES: usize = 8;

/// The fields of every model: the version of the format, the graph, the operator sets.
const EVERY_MODEL: [u32; 3] = [1, 7, 8];

static MODEL: Schema = Schema {
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
static GRAPH: Schema = Schema {
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
static NODE: Schema = Schema {
    scalars: &[1, 2, 3, 4, 6, 7, 8],
    messages: &[
        (5, "attribute[]", &ATTRIBUTE),
        (9, "metadata_props[]", &STRING_STRING_ENTRY),
        (10, "device_configurations[]", &NODE_DEVICE_CONFIGURATION),
    ],
    one_of: &[],
};
static ATTRIBUTE: Schema = Schema {
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
static TENSOR: Schema = Schema {
    scalars: &[1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14],
    messages: &[
        (3, "segment", &SEGMENT),
        (13, "external_data[]", &STRING_STRING_ENTRY),
        (16, "metadata_props[]", &STRING_STRING_ENTRY),
    ],
    one_of: &[],
};
static SEGMENT: Schema = Schema {
    scalars: &[1, 2],
    messages: &[],
    one_of: &[],
};
static SPARSE_TENSOR: Schema = Schema {
    scalars: &[3],
    messages: &[(1, "values", &TENSOR), (2, "indices", &TENSOR)],
    one_of: &[],
};
static VALUE_INFO: Schema = Schema {
    scalars: &[1, 3],
    messages: &[
        (2, "type", &TYPE),
        (4, "metadata_props[]", &STRING_STRING_ENTRY),
    ],
    one_of: &[],
};
static TYPE: Schema = Schema {
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
static TENSOR_TYPE: Schema = Schema {
    scalars: &[1],
    messages: &[(2, "shape", &TENSOR_SHAPE)],
    one_of: &[],
};
static SEQUENCE_TYPE: Schema = Schema {
    scalars: &[],
    messages: &[(1, "elem_type", &TYPE)],
    one_of: &[],
};
static MAP_TYPE: Schema = Schema {
    scalars: &[1],
    messages: &[(2, "value_type", &TYPE)],
    one_of: &[],
};
static OPTIONAL_TYPE: Schema = Schema {
    scalars: &[],
    messages: &[(1, "elem_type", &TYPE)],
    one_of: &[],
};
static SPARSE_TENSOR_TYPE: Schema = Schema {
    scalars: &[1],
    messages: &[(2, "shape", &TENSOR_SHAPE)],
    one_of: &[],
};
static OPAQUE_TYPE: Schema = Schema {
    scalars: &[1, 2],
    messages: &[],
    one_of: &[],
};
static TENSOR_SHAPE: Schema = Schema {
    scalars: &[],
    messages: &[(1, "dim[]", &DIMENSION)],
    one_of: &[],
};
static DIMENSION: Schema = Schema {
    scalars: &[1, 2, 3],
    messages: &[],
    one_of: &[],
};
static STRING_STRING_ENTRY: Schema = Schema {
    scalars: &[1, 2],
    messages: &[],
    one_of: &[],
};
static OPERATOR_SET_ID: Schema = Schema {
    scalars: &[1, 2],
    messages: &[],
    one_of: &[],
};
static FUNCTION: Schema = Schema {
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
static TRAINING_INFO: Schema = Schema {
    scalars: &[],
    messages: &[
        (1, "initialization", &GRAPH),
        (2, "algorithm", &GRAPH),
        (3, "initialization_binding[]", &STRING_STRING_ENTRY),
        (4, "update_binding[]", &STRING_STRING_ENTRY),
    ],
    one_of: &[],
};
static TENSOR_ANNOTATION: Schema = Schema {
    scalars: &[1],
    messages: &[(2, "quant_parameter_tensor_names[]", &STRING_STRING_ENTRY)],
    one_of: &[],
};
static DEVICE_CONFIGURATION: Schema = Schema {
    scalars: &[1, 2, 3],
    messages: &[],
    one_of: &[],
};
static NODE_DEVICE_CONFIGURATION: Schema = Schema {
    scalars: &[1, 3],
    messages: &[(2, "sharding_spec[]", &SHARDING_SPEC)],
    one_of: &[],
};
static SHARDING_SPEC: Schema = Schema {
    scalars: &[1, 2],
    messages: &[
        (3, "index_to_device_group_map[]", &INT_INT_LIST_ENTRY),
        (4, "sharded_dim[]", &SHARDED_DIM),
    ],
    one_of: &[],
};
static SHARDED_DIM: Schema = Schema {
    scalars: &[1],
    messages: &[(2, "simple_sharding[]", &SIMPLE_SHARDED_DIM)],
    one_of: &[],
};
static SIMPLE_SHARDED_DIM: Schema = Schema {
    scalars: &[1, 2, 3],
    messages: &[],
    one_of: &[],
};
static INT_INT_LIST_ENTRY: Schema = Schema {
    scalars: &[1, 2],
    messages: &[],
    one_of: &[],
};

#[cfg(test)]
mod tests {
    use prost::Message;
    use prost::encoding::{encode_key, encode_varint};

    use super::*;
    use crate::onnx::proto::*;

    /// The possible outcomes of decoding a field.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Decoding {
        Refused,
        Dropped,
        Kept,
    }

    /// Encodings of one field: each wire type, a payload that is no message, and an empty one.
    fn probes(number: u32) -> [Vec<u8>; 5] {
        let field = |wire_type, payload: &[u8]| {
            let mut bytes = Vec::new();
            encode_key(number, wire_type, &mut bytes);
            bytes.extend_from_slice(payload);
            bytes
        };
        [
            field(WireType::Varint, &[1]),
            field(WireType::ThirtyTwoBit, &[1; 4]),
            field(WireType::SixtyFourBit, &[1; 8]),
            field(WireType::LengthDelimited, &[8, 1, 1, 1, 1, 1, 1, 1, 1]),
            field(WireType::LengthDelimited, &[0]),
        ]
    }

    /// The outcomes for any field that a message may be given, by itself or inside field `within`.
    fn fingerprint<M: Message + Default>(within: Option<u32>) -> Vec<[Decoding; 5]> {
        let wrap = |payload: &[u8]| {
            let Some(number) = within else {
                return payload.to_vec();
            };
            let mut bytes = Vec::new();
            encode_key(number, WireType::LengthDelimited, &mut bytes);
            encode_varint(payload.len() as u64, &mut bytes);
            bytes.extend_from_slice(payload);
            bytes
        };
        let outcome = |payload: Vec<u8>| match M::decode(&wrap(&payload)[..]) {
            Err(_) => Decoding::Refused,
            Ok(message) if message.encoded_len() > wrap(&[]).len() => Decoding::Kept,
            Ok(_) => Decoding::Dropped,
        };
        (1..=40).map(|number| probes(number).map(outcome)).collect()
    }

    struct Tie {
        schema: &'static Schema,
        alone: Vec<[Decoding; 5]>,
        within: fn(Option<u32>) -> Vec<[Decoding; 5]>,
    }

    fn tie<M: Message + Default>(schema: &'static Schema) -> Tie {
        Tie {
            schema,
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
    fn the_tables_know_the_fields_that_the_messages_have() {
        const EMPTY: usize = 4;
        for Tie { schema, alone, .. } in ties() {
            for (outcomes, number) in alone.iter().zip(1..) {
                let message = outcomes[..EMPTY]
                    .iter()
                    .all(|&outcome| outcome == Decoding::Refused)
                    && outcomes[EMPTY] == Decoding::Kept;
                let known = outcomes.iter().any(|&outcome| outcome != Decoding::Dropped);
                let in_messages = schema.messages.iter().any(|(other, ..)| *other == number);
                assert_eq!(
                    in_messages,
                    message,
                    "message field {number} beside {:?}",
                    schema.messages.first().map(|field| field.1)
                );
                assert_eq!(
                    schema.scalars.contains(&number),
                    known && !message,
                    "scalar field {number} of {:?}",
                    schema.scalars
                );
            }
        }
    }

    #[test]
    fn the_tables_know_the_messages_inside_messages() {
        let ties = ties();
        for outer in &ties {
            for &(number, name, inner) in outer.schema.messages {
                let inner = ties
                    .iter()
                    .find(|tie| std::ptr::eq(tie.schema, inner))
                    .expect(name);
                assert_eq!((outer.within)(Some(number)), inner.alone, "{name}");
            }
        }
    }

    fn with_unknown(message: impl Message) -> Vec<u8> {
        let mut bytes = message.encode_to_vec();
        bytes.extend(probes(39).concat());
        bytes
    }

    fn enclose(number: u32, payloads: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for payload in payloads {
            prost::encoding::bytes::encode(number, payload, &mut bytes);
        }
        bytes
    }

    #[test]
    fn an_unknown_field_is_found_and_located() {
        let tensor = with_unknown(TensorProto {
            dims: vec![1, 2],
            ..Default::default()
        });
        let attribute = enclose(5, &[tensor]);
        let node = enclose(5, &[vec![], vec![], attribute]);
        let graph = enclose(1, &[vec![], node]);
        let model = enclose(7, &[graph]);
        let expected = Flaw {
            path: "graph.node[1].attribute[2].t".into(),
            kind: FlawKind::UnknownField(39),
        };
        assert_eq!(check(&model), Err(expected));
        let expected = Flaw {
            path: String::new(),
            kind: FlawKind::UnknownField(39),
        };
        assert_eq!(check(&with_unknown(ModelProto::default())), Err(expected));
    }

    #[test]
    fn a_group_is_an_unknown_field() {
        let group = [0x0b, 0x0c];
        assert_eq!(check(&group), Err(FlawKind::UnknownField(1).into()));
    }

    #[test]
    fn what_is_no_protobuf_is_refused() {
        for (bytes, reason) in [
            (&[0x00, 0x00][..], "a field has the number 0"),
            (&[0x0e], "a field has an undefined wire type"),
            (
                &[
                    0x08, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0,
                ],
                "a number takes more than ten bytes",
            ),
            (
                &[0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
                "a field number is too large",
            ),
            (&[0x38, 0x01], "a message is encoded as a number"),
        ] {
            assert_eq!(
                check(bytes),
                Err(FlawKind::Malformed(reason).into()),
                "{bytes:?}"
            );
        }
    }

    #[test]
    fn a_type_that_is_two_types_is_refused() {
        let both = enclose(
            2,
            &[[enclose(1, &[vec![]]), enclose(4, &[vec![]])].concat()],
        );
        let flaw = check(&enclose(7, &[enclose(11, &[both])])).unwrap_err();
        assert_eq!(flaw.path, "graph.input[0].type");
        let again = enclose(
            2,
            &[[enclose(1, &[vec![]]), enclose(1, &[vec![]])].concat()],
        );
        assert_eq!(
            check(&enclose(7, &[enclose(11, &[again])])),
            Ok(Counts::default())
        );
    }

    #[test]
    fn nesting_without_end_is_refused() {
        let mut bytes = Vec::new();
        for _ in 0..1000 {
            bytes = enclose(1, &[enclose(5, &[enclose(6, &[bytes])])]);
        }
        let flaw = check(&enclose(7, &[bytes])).unwrap_err();
        assert_eq!(flaw.kind, FlawKind::TooDeep);
    }
}
