//! Encodes a message into a writer, a buffer or a file, without a copy of the whole message in
//! memory.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::mem::MaybeUninit;

use bytes::buf::UninitSlice;
use bytes::{Buf, BufMut};
use prost::Message;
use rayon::prelude::*;

use super::data::{Data, reserve};
use super::transfer::Transfer;
use crate::onnx::placeholders::Gaps;

/// The number of bytes that are collected before they are written.
const CHUNK: usize = 1 << 16;

/// Encodes a message into a writer, with the data of its gaps.
pub(super) fn write_message(
    message: &impl Message,
    gaps: &Gaps,
    out: &mut impl Write,
) -> io::Result<()> {
    encode(message, gaps, &mut Filled(out))
}

/// Writes data in parts.
pub(super) fn write_data(data: &Data, out: &mut impl Write) -> io::Result<()> {
    data.hand_on(|bytes| out.write_all(bytes))
}

/// Encodes a message into a buffer of its exact length. The data of its gaps is copied on all
/// cores.
pub(super) fn fill(
    message: &impl Message,
    gaps: &Gaps,
    room: &mut [MaybeUninit<u8>],
) -> io::Result<()> {
    let mut roomy = Roomy {
        left: room,
        gaps: vec![],
    };
    encode(message, gaps, &mut roomy)?;
    if !roomy.left.is_empty() {
        return Err(io::Error::other(
            "there is more room than the message takes",
        ));
    }
    let parts = roomy.gaps.into_iter().flat_map(|(mut room, data)| {
        let parts = data.parts().into_iter().filter_map(|part| {
            let room = room.split_off_mut(..part.len())?;
            Some((room, data, part.start))
        });
        parts.collect::<Vec<_>>()
    });
    let parts: Vec<_> = parts.collect();
    parts
        .into_par_iter()
        .with_max_len(1)
        .try_for_each(|(room, data, at)| data.read_into(at, zeroed(room)).map_err(io::Error::other))
}

/// Fills a buffer with zeros, and returns it as initialized memory.
fn zeroed(room: &mut [MaybeUninit<u8>]) -> &mut [u8] {
    room.fill(MaybeUninit::new(0));
    // SAFETY: every element has just been initialized.
    unsafe { &mut *(room as *mut [MaybeUninit<u8>] as *mut [u8]) }
}

/// Encodes a message into a file, and returns the transfers that fill its gaps.
pub(super) fn write_file<'f>(
    message: &impl Message,
    gaps: &Gaps,
    file: &'f File,
) -> io::Result<Vec<Transfer<'f>>> {
    reserve(file, message.encoded_len() as u64)?;
    let mut gapped = Gapped {
        file,
        position: 0,
        transfers: vec![],
    };
    encode(message, gaps, &mut gapped)?;
    Ok(gapped.transfers)
}

fn encode<'g>(message: &impl Message, gaps: &'g Gaps, out: &mut impl Out<'g>) -> io::Result<()> {
    let mut sink = Sink {
        out,
        gaps,
        chunk: Vec::with_capacity(CHUNK),
        result: Ok(()),
    };
    message.encode(&mut sink).map_err(io::Error::other)?;
    sink.flush();
    sink.result
}

/// Receives the bytes of an encoded message and the data of its gaps.
trait Out<'g> {
    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()>;
    fn gap(&mut self, data: &'g Data) -> io::Result<()>;
}

/// A writer that receives the data of gaps like other bytes.
struct Filled<'w, W>(&'w mut W);

impl<'g, W: Write> Out<'g> for Filled<'_, W> {
    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    fn gap(&mut self, data: &'g Data) -> io::Result<()> {
        write_data(data, self.0)
    }
}

/// The part of a buffer that is not written yet, and the gaps in the written part.
struct Roomy<'r, 'g> {
    left: &'r mut [MaybeUninit<u8>],
    gaps: Vec<(&'r mut [MaybeUninit<u8>], &'g Data)>,
}

impl<'r> Roomy<'r, '_> {
    fn next(&mut self, length: usize) -> io::Result<&'r mut [MaybeUninit<u8>]> {
        let next = self.left.split_off_mut(..length);
        next.ok_or_else(|| io::Error::from(io::ErrorKind::WriteZero))
    }
}

impl<'g> Out<'g> for Roomy<'_, 'g> {
    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        zeroed(self.next(bytes.len())?).copy_from_slice(bytes);
        Ok(())
    }

    fn gap(&mut self, data: &'g Data) -> io::Result<()> {
        let room = self.next(data.len())?;
        self.gaps.push((room, data));
        Ok(())
    }
}

/// A file whose gaps are filled later.
struct Gapped<'f> {
    file: &'f File,
    position: u64,
    transfers: Vec<Transfer<'f>>,
}

impl<'g> Out<'g> for Gapped<'_> {
    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut file = self.file;
        file.write_all(bytes)?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    fn gap(&mut self, data: &'g Data) -> io::Result<()> {
        self.transfers.push(Transfer {
            file: self.file,
            offset: self.position,
            data: data.clone(),
        });
        self.position += data.len() as u64;
        let mut file = self.file;
        file.seek(SeekFrom::Start(self.position)).map(|_| ())
    }
}

/// A buffer that writes its contents to an [`Out`] when it is full.
struct Sink<'a, 'g, O> {
    out: &'a mut O,
    gaps: &'g Gaps,
    chunk: Vec<u8>,
    /// The first failure. After a failure, nothing more is written.
    result: io::Result<()>,
}

impl<'g, O: Out<'g>> Sink<'_, 'g, O> {
    fn flush(&mut self) {
        if self.result.is_ok() {
            self.result = self.out.bytes(&self.chunk);
        }
        self.chunk.clear();
    }
}

// SAFETY: `chunk_mut` returns the spare capacity of a vector, which is never empty, and
// `advance_mut` counts only bytes that its caller has filled.
unsafe impl<'g, O: Out<'g>> BufMut for Sink<'_, 'g, O> {
    fn remaining_mut(&self) -> usize {
        isize::MAX as usize
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        if self.chunk.len() == self.chunk.capacity() {
            self.flush();
        }
        UninitSlice::uninit(self.chunk.spare_capacity_mut())
    }

    unsafe fn advance_mut(&mut self, count: usize) {
        // SAFETY: the caller filled `count` bytes of the slice that `chunk_mut` returned.
        unsafe { self.chunk.set_len(self.chunk.len() + count) };
    }

    fn put<B: Buf>(&mut self, mut source: B) {
        if let Some(data) = self.gaps.behind(source.chunk()) {
            self.flush();
            if self.result.is_ok() {
                self.result = self.out.gap(data);
            }
            return source.advance(source.remaining());
        }
        while source.has_remaining() {
            let chunk = source.chunk();
            self.put_slice(chunk);
            let taken = chunk.len();
            source.advance(taken);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::proto::TensorProto;

    fn tensor(length: usize) -> TensorProto {
        let bytes: Vec<u8> = (0..length).map(|index| (index % 251) as u8).collect();
        TensorProto {
            name: Some("w".into()),
            dims: vec![3, 5],
            raw_data: Some(bytes.into()),
            ..Default::default()
        }
    }

    #[test]
    fn message_of_any_size_is_written_completely() {
        for length in [
            0,
            1,
            CHUNK - 9,
            CHUNK - 8,
            CHUNK - 1,
            CHUNK,
            CHUNK + 1,
            5 * CHUNK + 7,
        ] {
            let mut written = Vec::new();
            write_message(&tensor(length), &Gaps::none(), &mut written).unwrap();
            let expected = tensor(length).encode_to_vec();
            assert!(written == expected, "{length} bytes");
            for (room, fits) in [(0, true), (-1, false), (1, false)] {
                let mut room = vec![MaybeUninit::new(7); expected.len().strict_add_signed(room)];
                assert_eq!(
                    fill(&tensor(length), &Gaps::none(), &mut room).is_ok(),
                    fits,
                    "{length} bytes"
                );
                // SAFETY: all bytes were initialized before `fill` was called.
                let filled: Vec<u8> = room
                    .iter()
                    .map(|byte| unsafe { byte.assume_init() })
                    .collect();
                assert!(!fits || filled == expected, "{length} bytes");
            }
        }
    }

    #[test]
    fn failing_writer_is_reported() {
        let mut small = [0; 100];
        let error = write_message(&tensor(CHUNK), &Gaps::none(), &mut &mut small[..]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WriteZero);
    }
}
