//! Reads a model's file lazily: the elements of large tensors stay in the file until they are
//! needed.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::DecodeError;

use crate::error::Result;
use crate::onnx::data::{Data, DataFile};
use crate::onnx::decode::decode;
use crate::onnx::external_data::Externals;
use crate::onnx::proto::{ModelProto, TensorProto};
use crate::onnx::wire::{self, Counts, Encoded, Flaw};
use crate::onnx::{element, tensor};

/// Tensors with at least this many bytes stay in the file.
const LARGE: u64 = 4096;

/// The number of bytes that are read at a time.
const WINDOW: usize = 1 << 14;

/// The parts of a file that were read.
pub(crate) struct Skimmed {
    /// The pieces of the file that were read, in order. Gaps separate them. The elements of small
    /// tensors are slices of the pieces.
    pieces: Vec<Bytes>,
    gaps: Vec<Gap>,
    counts: Counts,
    /// One byte for each gap. In the message, the byte of a gap replaces the elements, and the
    /// address of this byte identifies the gap.
    tokens: Bytes,
}

/// Elements that were not read.
struct Gap {
    /// The number of pieces before the gap.
    at: usize,
    offset: u64,
    length: u64,
}

/// The reason why a file was not read.
pub(crate) enum Trouble {
    Flaw(Flaw),
    Unreadable(String),
}

/// Reads a file of `length` bytes except for the elements of large tensors, and checks that
/// decoding the file would lose nothing.
pub(crate) fn skim(file: &Arc<DataFile>, length: u64) -> std::result::Result<Skimmed, Trouble> {
    let mut skim = Skim {
        file,
        length,
        window: Bytes::new(),
        position: 0,
        pieces: vec![],
        gaps: vec![],
        trouble: None,
    };
    let checked = wire::check_from(&mut skim, length);
    if let Some(trouble) = skim.trouble {
        return Err(Trouble::Unreadable(trouble));
    }
    let counts = checked.map_err(Trouble::Flaw)?;
    let tokens = vec![0; skim.gaps.len()].into();
    Ok(Skimmed {
        pieces: skim.pieces,
        gaps: skim.gaps,
        counts,
        tokens,
    })
}

struct Skim<'f> {
    file: &'f Arc<DataFile>,
    length: u64,
    /// The bytes from `position` on that were read from the file but not decoded yet. The last of
    /// `pieces` ends with these bytes.
    window: Bytes,
    position: u64,
    pieces: Vec<Bytes>,
    gaps: Vec<Gap>,
    /// The first failure of the file.
    trouble: Option<String>,
}

impl Skim<'_> {
    /// Reads the next window if the current one is empty. Returns whether the window has bytes.
    fn fill(&mut self) -> bool {
        if self.window.is_empty() && self.trouble.is_none() {
            let length = (self.length - self.position).min(WINDOW as u64) as usize;
            match self.file.ahead(self.position, length) {
                Ok(window) => self.goes_on(window),
                Err(trouble) => self.trouble = Some(trouble),
            }
        }
        !self.window.is_empty()
    }

    fn goes_on(&mut self, window: Bytes) {
        self.pieces
            .extend((!window.is_empty()).then(|| window.clone()));
        self.window = window;
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
        self.position += 1;
        Some(self.window.get_u8())
    }

    fn pass(&mut self, mut length: u64) -> bool {
        while length > 0 {
            if !self.fill() {
                return false;
            }
            let taken = length.min(self.window.len() as u64);
            self.window.advance(taken as usize);
            self.position += taken;
            length -= taken;
        }
        true
    }

    fn elements(&mut self, length: u64) -> bool {
        if length < LARGE || length > self.length - self.position {
            return self.pass(length);
        }
        let mut window = std::mem::take(&mut self.window);
        if let Some(mut piece) = self.pieces.pop() {
            piece.truncate(piece.len() - window.len());
            self.pieces.extend((!piece.is_empty()).then_some(piece));
        }
        self.gaps.push(Gap {
            at: self.pieces.len(),
            offset: self.position,
            length,
        });
        self.position += length;
        window.advance(length.min(window.len() as u64) as usize);
        self.goes_on(window);
        true
    }
}

impl Skimmed {
    /// The beginning of the file.
    pub(super) fn head(&self) -> &[u8] {
        self.pieces.first().map_or(&[], |piece| piece)
    }

    /// Decodes the message, with tokens in place of elements that were not read.
    ///
    /// # Errors
    /// If the bytes are not valid protobuf.
    pub(super) fn decode(&self) -> std::result::Result<ModelProto, DecodeError> {
        let gaps = self.gaps.iter().map(|gap| gap.length).sum::<u64>() as usize;
        let remaining = self.pieces.iter().map(Bytes::len).sum::<usize>() + gaps;
        decode(
            Unread {
                skimmed: self,
                piece: 0,
                position: 0,
                gap: 0,
                remaining,
            },
            &self.counts,
        )
    }

    /// Lets a decoded tensor refer to its elements in the file if they were not read.
    ///
    /// # Errors
    /// If the elements must be in the message, but cannot be read.
    pub(super) fn settle(
        &self,
        tensor: &mut TensorProto,
        file: &Arc<DataFile>,
        externals: &Externals,
    ) -> Result<()> {
        let Some(token) = tensor.raw_data.as_ref().map(|raw| raw.as_ptr() as usize) else {
            return Ok(());
        };
        let gap = token
            .checked_sub(self.tokens.as_ptr() as usize)
            .and_then(|place| self.gaps.get(place));
        let Some(gap) = gap else { return Ok(()) };
        let data = Data::There(file.clone(), gap.offset..gap.offset + gap.length);
        let is_plain = tensor.segment.is_none()
            && tensor.external_data.is_empty()
            && !tensor.is_external()
            && !tensor::has_typed_data(tensor)
            && element::byte_size(tensor).is_ok_and(|size| size as u64 == gap.length);
        if is_plain {
            externals.hold(tensor, data);
        } else {
            // The tensor is invalid, for example because the length of the data contradicts the
            // type and the shape. Such data is kept in the message, so that it is written
            // unchanged.
            tensor.raw_data = Some(
                data.all()
                    .map_err(|reason| externals.error(tensor, reason))?,
            );
        }
        Ok(())
    }
}

/// The part of a file that the decoder has not read yet. The decoder skips each gap in one step,
/// and receives a token instead of its elements.
struct Unread<'s> {
    skimmed: &'s Skimmed,
    piece: usize,
    /// The position in the piece.
    position: usize,
    /// The index of the next gap.
    gap: usize,
    remaining: usize,
}

impl Unread<'_> {
    /// The next gap, if it begins at the current position.
    fn here(&self) -> Option<&Gap> {
        let next = self.skimmed.gaps.get(self.gap);
        next.filter(|gap| self.position == 0 && gap.at == self.piece)
    }
}

impl Buf for Unread<'_> {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        let piece = self
            .skimmed
            .pieces
            .get(self.piece)
            .filter(|_| self.here().is_none());
        piece.map_or(&[], |piece| &piece[self.position..])
    }

    fn advance(&mut self, mut count: usize) {
        self.remaining -= count;
        while count > 0 {
            let there = self.chunk().len();
            assert!(there > 0, "elements are taken at once");
            let taken = count.min(there);
            (self.piece, self.position) = if taken == there {
                (self.piece + 1, 0)
            } else {
                (self.piece, self.position + taken)
            };
            count -= taken;
        }
    }

    fn copy_to_bytes(&mut self, length: usize) -> Bytes {
        if self.here().is_some_and(|gap| gap.length == length as u64) {
            self.gap += 1;
            self.remaining -= length;
            return self.skimmed.tokens.slice(self.gap - 1..self.gap);
        }
        if (1..=self.chunk().len()).contains(&length) {
            let taken =
                self.skimmed.pieces[self.piece].slice(self.position..self.position + length);
            self.advance(length);
            return taken;
        }
        let mut taken = BytesMut::with_capacity(length);
        while taken.len() < length {
            let part = self.chunk().len().min(length - taken.len());
            taken.put_slice(&self.chunk()[..part]);
            assert!(part > 0, "elements are taken at once");
            self.advance(part);
        }
        taken.freeze()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use prost::Message;

    use super::*;
    use crate::onnx::proto::{AttributeProto, GraphProto, NodeProto};

    fn tensor(length: usize) -> TensorProto {
        TensorProto {
            name: Some(format!("t{length}")),
            dims: vec![length as i64],
            data_type: Some(2),
            raw_data: Some((0..length).map(|at| (at * 7 % 251) as u8).collect()),
            ..Default::default()
        }
    }

    /// A message with tensors of many sizes, as initializers and in an attribute.
    fn message() -> ModelProto {
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
        let sizes = [
            0,
            1,
            large - 1,
            large,
            large + 1,
            WINDOW - 1,
            WINDOW,
            3 * WINDOW + 5,
            9,
        ];
        let graph = GraphProto {
            node: vec![node],
            initializer: sizes.map(tensor).to_vec(),
            doc_string: Some("x".repeat(2 * WINDOW)),
            ..Default::default()
        };
        ModelProto {
            ir_version: Some(10),
            graph: Some(graph),
            ..Default::default()
        }
    }

    #[test]
    fn unread_elements_are_located_in_the_file() {
        let message = message();
        let mut file = tempfile::tempfile().unwrap();
        let bytes = message.encode_to_vec();
        file.write_all(&bytes).unwrap();
        let file = Arc::new(DataFile::open("m.onnx", file).unwrap());
        let skimmed = skim(&file, bytes.len() as u64).ok().unwrap();
        assert!(
            skimmed.pieces.iter().map(Bytes::len).sum::<usize>() < 60_000
                && skimmed.gaps.len() == 6
        );
        let externals = Externals::none();
        let mut decoded = skimmed.decode().unwrap();
        let mut graph = decoded.graph.take().unwrap();
        let constant = graph.node[0].attribute[0].t.as_mut().unwrap();
        for tensor in graph.initializer.iter_mut().chain([&mut **constant]) {
            skimmed.settle(tensor, &file, &externals).unwrap();
            let expected = (0..tensor.dims[0])
                .map(|at| (at * 7 % 251) as u8)
                .collect::<Bytes>();
            assert_eq!(element::is_held(tensor), expected.len() as u64 >= LARGE);
            assert_eq!(
                tensor::raw(tensor, &externals).unwrap(),
                expected,
                "{}",
                tensor.name()
            );
            if element::is_held(tensor) {
                tensor.raw_data = Some(externals.release(tensor).unwrap().all().unwrap());
            }
        }
        decoded.graph = Some(graph);
        assert!(decoded == message);
    }

    #[test]
    fn truncated_file_is_flawed_at_every_length() {
        let bytes = message().encode_to_vec();
        for length in [1, 100, WINDOW, bytes.len() - 1] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&bytes[..length]).unwrap();
            let file = Arc::new(DataFile::open("m.onnx", file).unwrap());
            let flaw = skim(&file, length as u64)
                .err()
                .map(|trouble| match trouble {
                    Trouble::Flaw(flaw) => flaw.kind,
                    Trouble::Unreadable(reason) => panic!("{reason}"),
                });
            assert_eq!(flaw, Some(wire::FlawKind::Truncated), "{length}");
        }
        // The file became shorter after its length was read.
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let file = Arc::new(DataFile::open("m.onnx", file).unwrap());
        assert!(matches!(
            skim(&file, bytes.len() as u64 + 1),
            Err(Trouble::Unreadable(_))
        ));
    }
}
