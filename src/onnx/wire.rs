//! Finds fields that a decoder would drop silently, by comparing the encoded bytes with the table
//! of all fields of all messages.
//!
//! Payloads are skipped and not read, so that checking a large model touches few of its bytes.

use std::collections::HashSet;

use prost::encoding::WireType;

use crate::onnx::message_fields::{
    EVERY_MODEL, GRAPH, MODEL, MOST_MESSAGES, MessageFields, RAW_DATA, TENSOR,
};

/// The maximum depth of nested messages. A body inside another one is three levels deeper, so 60
/// bodies can be nested. The decoder itself needs no limit. This limit exists because functions
/// that walk bodies are recursive, in unfold and in tract, and could overflow the stack of a
/// thread.
const MAX_DEPTH: usize = 200;

/// A flaw of the encoded bytes of a message, and the part that has it.
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
    /// The bytes end too early.
    Truncated,
    /// The bytes are not protobuf.
    Malformed(&'static str),
    /// Messages are nested too deeply.
    TooDeep,
    /// The bytes have a field that the message does not define.
    UnknownField(u32),
}

/// Encoded bytes that are read in order.
pub(super) trait Encoded {
    /// The number of bytes read so far.
    fn position(&self) -> u64;

    /// Reads one byte; `None` at the end.
    fn byte(&mut self) -> Option<u8>;

    /// Skips `length` bytes. Returns whether that many bytes exist.
    fn pass(&mut self, length: u64) -> bool;

    /// Skips `length` bytes, which are elements of a tensor. Returns whether that many bytes exist.
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

/// The numbers of nodes, initializers and declared values in the main graph of a model.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub nodes: usize,
    pub initializers: usize,
    /// Values in `value_info`.
    pub values: usize,
}

/// Checks that decoding an encoded model would lose nothing.
pub(super) fn check(bytes: &[u8]) -> Result<Counts, Flaw> {
    check_from(&mut InMemory { bytes, position: 0 }, bytes.len() as u64)
}

/// Like [`check`], for the first `length` bytes of `encoded`.
pub(super) fn check_from(encoded: &mut impl Encoded, length: u64) -> Result<Counts, Flaw> {
    let mut counts = Counts::default();
    check_message(encoded, length, &MODEL, MAX_DEPTH, &mut counts)?;
    Ok(counts)
}

/// Whether the first `length` bytes have the fields that every model has, and no unknown field. The
/// contents of the fields are not checked.
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
    fields: &'static MessageFields,
    depth: usize,
    of_graph: &mut Counts,
) -> Result<(), Flaw> {
    if depth == 0 {
        return Err(FlawKind::TooDeep.into());
    }
    let mut chosen = None;
    // The number of occurrences of each message-typed field.
    let mut counts = [0_u32; MOST_MESSAGES];
    while encoded.position() < end {
        let field = Field::next(encoded, end)?;
        if fields.one_of.contains(&field.number)
            && *chosen.get_or_insert(field.number) != field.number
        {
            return Err(FlawKind::Malformed("it sets fields that exclude each other").into());
        }
        if fields.scalars.contains(&field.number) {
            pass_scalar(encoded, &field, fields)?;
            continue;
        }
        let Some(place) = fields.place(field.number) else {
            return Err(FlawKind::UnknownField(field.number).into());
        };
        let Some(length) = field.length else {
            return Err(FlawKind::Malformed("a message is encoded as a number").into());
        };
        let (_, name, inner) = fields.messages[place];
        let inner_end = encoded.position() + length;
        check_message(encoded, inner_end, inner, depth - 1, of_graph)
            .map_err(|flaw| flaw.inside(name, counts[place]))?;
        counts[place] += 1;
    }
    // The graph at the depth just below the model is the main graph.
    if std::ptr::eq(fields, &GRAPH) && depth == MAX_DEPTH - 1 {
        *of_graph = Counts {
            nodes: count(&counts, "node[]"),
            initializers: count(&counts, "initializer[]"),
            values: count(&counts, "value_info[]"),
        };
    }
    Ok(())
}

/// Skips the payload of a field whose value is not a message.
fn pass_scalar(
    encoded: &mut impl Encoded,
    field: &Field,
    fields: &'static MessageFields,
) -> Result<(), FlawKind> {
    let Some(length) = field.length else {
        return Ok(());
    };
    let is_elements = field.number == RAW_DATA && std::ptr::eq(fields, &TENSOR);
    let is_there = if is_elements {
        encoded.elements(length)
    } else {
        encoded.pass(length)
    };
    if is_there {
        Ok(())
    } else {
        Err(FlawKind::Truncated)
    }
}

/// The number of messages in the field `name` of a graph.
fn count(counts: &[u32; MOST_MESSAGES], name: &str) -> usize {
    let mut names = GRAPH.messages.iter().map(|(_, name, _)| *name);
    let place = names.position(|other| other == name);
    place.map_or(0, |place| counts[place] as usize)
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
    /// The flaw as part of the enclosing message, whose field `name` holds the flawed message.
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

/// An encoded field. Its payload has already been read, unless it is length-delimited.
struct Field {
    number: u32,
    /// The length of a length-delimited payload; `None` for other payloads.
    length: Option<u64>,
}

impl Field {
    /// Reads the next field of a message that ends at `end`.
    fn next(encoded: &mut impl Encoded, end: u64) -> Result<Self, FlawKind> {
        let key = u32::try_from(varint(encoded, end)?)
            .map_err(|_| FlawKind::Malformed("a field number is too large"))?;
        let number = key >> 3;
        if number == 0 {
            return Err(FlawKind::Malformed("a field has the number 0"));
        }
        let length = match WireType::try_from(u64::from(key & 7)) {
            Ok(WireType::Varint) => varint(encoded, end).map(|_| None)?,
            Ok(WireType::ThirtyTwoBit) => pass_fixed(encoded, end, 4).map(|()| None)?,
            Ok(WireType::SixtyFourBit) => pass_fixed(encoded, end, 8).map(|()| None)?,
            Ok(WireType::LengthDelimited) => {
                let length = varint(encoded, end)?;
                check_length(encoded, end, length)?;
                Some(length)
            }
            Ok(WireType::StartGroup | WireType::EndGroup) => {
                return Err(FlawKind::UnknownField(number));
            }
            Err(_) => return Err(FlawKind::Malformed("a field has an undefined wire type")),
        };
        Ok(Self { number, length })
    }
}

/// Checks that a message that ends at `end` has at least `length` bytes left.
fn check_length(encoded: &impl Encoded, end: u64, length: u64) -> Result<(), FlawKind> {
    if end - encoded.position() < length {
        return Err(FlawKind::Truncated);
    }
    Ok(())
}

/// Skips a payload of fixed length.
fn pass_fixed(encoded: &mut impl Encoded, end: u64, length: u64) -> Result<(), FlawKind> {
    check_length(encoded, end, length)?;
    if encoded.pass(length) {
        Ok(())
    } else {
        Err(FlawKind::Truncated)
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

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::onnx::message_fields::tests::probes;
    use crate::onnx::proto::*;

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
    fn unknown_field_is_located() {
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
    fn group_is_an_unknown_field() {
        let group = [0x0b, 0x0c];
        assert_eq!(check(&group), Err(FlawKind::UnknownField(1).into()));
    }

    #[test]
    fn invalid_protobuf_is_refused() {
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
    fn type_with_two_alternatives_is_refused() {
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
    fn nesting_of_1000_bodies_is_refused() {
        let mut bytes = Vec::new();
        for _ in 0..1000 {
            bytes = enclose(1, &[enclose(5, &[enclose(6, &[bytes])])]);
        }
        let flaw = check(&enclose(7, &[bytes])).unwrap_err();
        assert_eq!(flaw.kind, FlawKind::TooDeep);
    }
}
