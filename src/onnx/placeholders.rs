//! Placeholders in a message for elements that are stored elsewhere.

use bytes::Bytes;
use memmap2::MmapMut;

use crate::onnx::data::Data;
use crate::onnx::proto::TensorProto;

/// Gaps in a message: elements that are stored elsewhere, and zeros that replace them in the
/// message.
///
/// The zeros of gap `n` begin at byte `n` of a mapping of zeros that is never read. So the address
/// of the bytes identifies the gap, and the encoded message has its true length. The zeros take no
/// memory, because their pages are never touched.
pub(crate) struct Gaps {
    zeros: Bytes,
    data: Vec<Data>,
}

impl Gaps {
    pub(super) fn new(longest: usize, count: usize) -> Self {
        let room = longest + count;
        // The zeros are mapped, because in reused memory an allocator would have to write them.
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

    /// The data of the gap that these bytes of a message belong to; `None` for other bytes.
    pub(super) fn behind(&self, bytes: &[u8]) -> Option<&Data> {
        let number = (bytes.as_ptr() as usize).checked_sub(self.zeros.as_ptr() as usize)?;
        self.data
            .get(number)
            .filter(|data| data.len() == bytes.len())
    }
}
