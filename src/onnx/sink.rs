//! Encoding a message into a writer, without a copy of all of it in memory.

use std::io::{self, Write};

use bytes::BufMut;
use bytes::buf::UninitSlice;
use prost::Message;

/// How much is collected before it is written.
const CHUNK: usize = 1 << 16;

/// Encodes a message into a writer.
pub(super) fn write_message(message: &impl Message, out: &mut impl Write) -> io::Result<()> {
    let mut sink = Sink { out, chunk: Vec::with_capacity(CHUNK), result: Ok(()) };
    message.encode(&mut sink).map_err(io::Error::other)?;
    sink.flush();
    sink.result
}

/// A buffer that empties itself into a writer whenever it is full.
struct Sink<'a, W> {
    out: &'a mut W,
    chunk: Vec<u8>,
    /// The first failure of the writer; nothing is written after it.
    result: io::Result<()>,
}

impl<W: Write> Sink<'_, W> {
    fn flush(&mut self) {
        if self.result.is_ok() {
            self.result = self.out.write_all(&self.chunk);
        }
        self.chunk.clear();
    }
}

// SAFETY: `chunk_mut` gives the spare capacity of a vector, never an empty one, and `advance_mut`
// counts as filled only what its caller filled.
unsafe impl<W: Write> BufMut for Sink<'_, W> {
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
        // SAFETY: the caller filled `count` bytes of what `chunk_mut` gave.
        unsafe { self.chunk.set_len(self.chunk.len() + count) };
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
    fn a_message_of_any_size_is_written_whole() {
        for length in [0, 1, CHUNK - 9, CHUNK - 8, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 7] {
            let mut written = Vec::new();
            write_message(&tensor(length), &mut written).unwrap();
            assert!(written == tensor(length).encode_to_vec(), "{length} bytes");
        }
    }

    #[test]
    fn a_writer_that_fails_is_reported() {
        let mut small = [0; 100];
        let error = write_message(&tensor(CHUNK), &mut &mut small[..]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WriteZero);
    }
}
