//! A model's file without the elements of its large tensors: those stay in the file until somebody asks for them.

use std::sync::Arc;

use bytes::{Buf, Bytes};
use prost::{DecodeError, Message};

use super::data::{Data, DataFile};
use super::external::Externals;
use super::proto::{ModelProto, TensorProto};
use super::wire::{self, Encoded, Flaw};
use super::{element, tensor};
use crate::error::Result;

/// From how many bytes on the elements of a tensor stay in the file.
const LARGE: u64 = 4096;

/// How much of the file is read at a time.
const WINDOW: usize = 1 << 14;

/// What was read of a file.
pub(super) struct Skimmed {
    /// All of it but the gaps.
    bytes: Bytes,
    gaps: Vec<Gap>,
    /// One byte for each gap: what stands for its elements in the message is a slice of this, told by where it lies.
    tokens: Bytes,
}

/// Elements that were not read.
struct Gap {
    /// How many of the bytes that were read come before it.
    at: usize,
    offset: u64,
    length: u64,
}

/// Why a file was not read.
pub(super) enum Trouble {
    Flaw(Flaw),
    Unreadable(String),
}

/// Reads a file of so many bytes, and looks for anything in it that decoding it would lose.
pub(super) fn skim(file: &Arc<DataFile>, length: u64) -> std::result::Result<Skimmed, Trouble> {
    let mut skim =
        Skim { file, length, window: Bytes::new(), position: 0, bytes: vec![], gaps: vec![], trouble: None };
    let checked = wire::check_from(&mut skim, length);
    if let Some(trouble) = skim.trouble {
        return Err(Trouble::Unreadable(trouble));
    }
    checked.map_err(Trouble::Flaw)?;
    let tokens = vec![0; skim.gaps.len()].into();
    Ok(Skimmed { bytes: skim.bytes.into(), gaps: skim.gaps, tokens })
}

struct Skim<'f> {
    file: &'f Arc<DataFile>,
    length: u64,
    /// What was read from the position on.
    window: Bytes,
    position: u64,
    bytes: Vec<u8>,
    gaps: Vec<Gap>,
    /// The first failure of the file.
    trouble: Option<String>,
}

impl Skim<'_> {
    /// Whether there is something in the window.
    fn fill(&mut self) -> bool {
        if self.window.is_empty() && self.trouble.is_none() {
            let length = (self.length - self.position).min(WINDOW as u64) as usize;
            match self.file.read(self.position, length) {
                Ok(window) => self.window = window,
                Err(trouble) => self.trouble = Some(trouble),
            }
        }
        !self.window.is_empty()
    }
}

impl Encoded for Skim<'_> {
    fn position(&self) -> u64 {
        self.position
    }

    fn byte(&mut self) -> Option<u8> {
        if !self.fill() {
            return None;
        }
        let byte = self.window.get_u8();
        self.bytes.push(byte);
        self.position += 1;
        Some(byte)
    }

    fn pass(&mut self, mut length: u64) -> bool {
        while length > 0 {
            if !self.fill() {
                return false;
            }
            let taken = self.window.split_to(length.min(self.window.len() as u64) as usize);
            self.bytes.extend_from_slice(&taken);
            self.position += taken.len() as u64;
            length -= taken.len() as u64;
        }
        true
    }

    fn elements(&mut self, length: u64) -> bool {
        if length < LARGE || length > self.length - self.position {
            return self.pass(length);
        }
        self.gaps.push(Gap { at: self.bytes.len(), offset: self.position, length });
        self.position += length;
        let read = self.window.len() as u64;
        self.window.advance(read.min(length) as usize);
        true
    }
}

impl Skimmed {
    /// What the file begins with.
    pub fn head(&self) -> &[u8] {
        &self.bytes
    }

    /// The message, with tokens for the elements that were not read.
    pub fn decode(&self) -> std::result::Result<ModelProto, DecodeError> {
        let gaps = self.gaps.iter().map(|gap| gap.length).sum::<u64>() as usize;
        ModelProto::decode(Unread { skimmed: self, position: 0, gap: 0, remaining: self.bytes.len() + gaps })
    }

    /// Lets a tensor that was decoded refer to its elements in the file, where they were not read.
    pub fn settle(
        &self,
        tensor: &mut TensorProto,
        file: &Arc<DataFile>,
        externals: &Externals,
    ) -> Result<()> {
        let Some(token) = tensor.raw_data.as_ref().map(|raw| raw.as_ptr() as usize) else { return Ok(()) };
        let gap = token.checked_sub(self.tokens.as_ptr() as usize).and_then(|place| self.gaps.get(place));
        let Some(gap) = gap else { return Ok(()) };
        let data = Data::There(file.clone(), gap.offset..gap.offset + gap.length);
        let is_plain = tensor.segment.is_none()
            && tensor.external_data.is_empty()
            && !element::is_external(tensor)
            && !tensor::has_typed_data(tensor)
            && element::byte_size(tensor).is_ok_and(|size| size as u64 == gap.length);
        if is_plain {
            externals.hold(tensor, data);
        } else {
            // Whatever it is, it comes out as it went in.
            tensor.raw_data = Some(data.all().map_err(|reason| externals.error(tensor, reason))?);
        }
        Ok(())
    }
}

/// What of a file the decoder has not taken: it takes each gap at once, and is given a token.
struct Unread<'s> {
    skimmed: &'s Skimmed,
    /// In the bytes that were read.
    position: usize,
    /// The next one.
    gap: usize,
    remaining: usize,
}

impl Unread<'_> {
    /// How many bytes there are before the next gap.
    fn before_gap(&self) -> usize {
        let next = self.skimmed.gaps.get(self.gap).map_or(self.skimmed.bytes.len(), |gap| gap.at);
        next - self.position
    }
}

impl Buf for Unread<'_> {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        &self.skimmed.bytes[self.position..self.position + self.before_gap()]
    }

    fn advance(&mut self, count: usize) {
        assert!(count <= self.before_gap(), "elements are taken at once");
        self.position += count;
        self.remaining -= count;
    }

    fn copy_to_bytes(&mut self, length: usize) -> Bytes {
        match self.skimmed.gaps.get(self.gap) {
            Some(gap) if gap.at == self.position && gap.length == length as u64 => {
                self.gap += 1;
                self.remaining -= length;
                self.skimmed.tokens.slice(self.gap - 1..self.gap)
            }
            _ => {
                let taken = self.skimmed.bytes.slice(self.position..self.position + length);
                self.advance(length);
                taken
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::onnx::proto::{AttributeProto, GraphProto, NodeProto};

    /// A message with tensors of many sizes, as initializers and in an attribute.
    fn message() -> ModelProto {
        let tensor = |length: usize| TensorProto {
            name: Some(format!("t{length}")),
            dims: vec![length as i64],
            data_type: Some(2),
            raw_data: Some((0..length).map(|at| (at * 7 % 251) as u8).collect()),
            ..Default::default()
        };
        let node = NodeProto {
            op_type: Some("Constant".into()),
            attribute: vec![AttributeProto {
                name: Some("value".into()),
                t: Some(Box::new(tensor(WINDOW + 1))),
                ..Default::default()
            }],
            ..Default::default()
        };
        let large = LARGE as usize;
        let sizes = [0, 1, large - 1, large, large + 1, WINDOW - 1, WINDOW, 3 * WINDOW + 5, 9];
        let graph = GraphProto {
            node: vec![node],
            initializer: sizes.map(tensor).to_vec(),
            doc_string: Some("x".repeat(2 * WINDOW)),
            ..Default::default()
        };
        ModelProto { ir_version: Some(10), graph: Some(graph), ..Default::default() }
    }

    #[test]
    fn what_is_not_read_is_in_the_file_at_the_place_that_is_said() {
        let message = message();
        let mut file = tempfile::tempfile().unwrap();
        let bytes = message.encode_to_vec();
        file.write_all(&bytes).unwrap();
        let file = Arc::new(DataFile::open("m.onnx", file).unwrap());
        let skimmed = skim(&file, bytes.len() as u64).ok().unwrap();
        assert!(skimmed.bytes.len() < 60_000 && skimmed.gaps.len() == 6);
        let externals = Externals::none();
        let mut decoded = skimmed.decode().unwrap();
        let mut graph = decoded.graph.take().unwrap();
        let constant = graph.node[0].attribute[0].t.as_mut().unwrap();
        for tensor in graph.initializer.iter_mut().chain([&mut **constant]) {
            skimmed.settle(tensor, &file, &externals).unwrap();
            let expected = (0..tensor.dims[0]).map(|at| (at * 7 % 251) as u8).collect::<Bytes>();
            assert_eq!(element::is_held(tensor), expected.len() as u64 >= LARGE);
            assert_eq!(tensor::raw(tensor, &externals).unwrap(), expected, "{}", tensor.name());
            if element::is_held(tensor) {
                tensor.raw_data = Some(externals.release(tensor).unwrap().all().unwrap());
            }
        }
        decoded.graph = Some(graph);
        assert!(decoded == message);
    }

    #[test]
    fn a_file_that_ends_too_early_is_flawed_wherever_it_ends() {
        let bytes = message().encode_to_vec();
        for length in [1, 100, WINDOW, bytes.len() - 1] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&bytes[..length]).unwrap();
            let file = Arc::new(DataFile::open("m.onnx", file).unwrap());
            let flaw = skim(&file, length as u64).err().map(|trouble| match trouble {
                Trouble::Flaw(flaw) => flaw.kind,
                Trouble::Unreadable(reason) => panic!("{reason}"),
            });
            assert_eq!(flaw, Some(wire::FlawKind::Truncated), "{length}");
        }
        // It was longer when somebody asked.
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let file = Arc::new(DataFile::open("m.onnx", file).unwrap());
        assert!(matches!(skim(&file, bytes.len() as u64 + 1), Err(Trouble::Unreadable(_))));
    }
}
