//! How large a model is.

use prost::Message;

use super::proto::TensorProto;
use super::{Model, tensor};

impl Model {
    /// Bytes of the initializers, in the model's own file or in others.
    pub fn weight_bytes(&self) -> u64 {
        self.initializer_bytes(|_| true)
    }

    /// Bytes of the model's message, and of the initializers that it keeps in other files.
    pub fn file_bytes(&self) -> u64 {
        self.proto.encoded_len() as u64
            + self.initializer_bytes(|tensor| tensor::is_external(tensor) || tensor::is_held(tensor))
    }

    fn initializer_bytes(&self, counts: impl Fn(&TensorProto) -> bool) -> u64 {
        let counted = self.graph().initializer.iter().filter(|tensor| counts(tensor));
        counted.filter_map(|tensor| tensor::byte_size(tensor).ok()).sum::<usize>() as u64
    }
}
