//! Placeholders in a message for elements that are stored elsewhere.

use bytes::Bytes;
use memmap2::MmapMut;

use crate::onnx::data::Data;
use crate::onnx::proto::TensorProto;

/// The elements that are stored elsewhere, and zeros that replace them in a message.
///
/// The zeros of gap `n` begin at byte `n` of a mapping of zeros that is never read. The address of
/// the bytes identifies the gap, and the message has its true length. Untouched pages of zeros take
/// no memory.
pub(crate) struct Gaps {
    zeros: Bytes,
    data: Vec<Data>,
}

impl Gaps {
    pub(super) fn new(longest: usize, count: usize) -> Self {
        let room = longest + count;
        // Mapped, since an allocator may write the zeros into memory that it recycles.
        let zeros =
            MmapMut::map_anon(room).map_or_else(|_| vec![0; room].into(), Bytes::from_owner);
        Self {
            zeros,
            data: Vec::new(),
        }
    }

    #[cfg(test)]
    pub(super) fn none() -> Self {
        Self::new(0, 0)
    }

    pub(super) fn fill(&mut self, tensor: &mut TensorProto, data: Data) {
        let number = self.data.len();
        tensor.raw_data = Some(self.zeros.slice(number..number + data.len()));
        self.data.push(data);
    }

    /// The data of the gap whose zeros these bytes of a message are; `None` if they are other
    /// bytes.
    pub(super) fn behind(&self, bytes: &[u8]) -> Option<&Data> {
        let number = (bytes.as_ptr() as usize).checked_sub(self.zeros.as_ptr() as usize)?;
        self.data
            .get(number)
            .filter(|data| data.len() == bytes.len())
    }
}
