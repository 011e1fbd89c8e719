//! How large a model is.

use prost::Message;

use super::node::bodies;
use super::proto::TensorProto;
use super::{Model, tensor};

impl Model {
    /// Bytes of the initializers and of what Constant nodes hold, those of bodies too, in the model's own file or in
    /// others.
    pub fn weight_bytes(&self) -> u64 {
        self.tensor_bytes(|_| true)
    }

    /// Bytes of the model's message, and of the tensors that it keeps in other files.
    pub fn file_bytes(&self) -> u64 {
        self.proto.encoded_len() as u64
            + self.tensor_bytes(|tensor| tensor::is_external(tensor) || tensor::is_held(tensor))
    }

    fn tensor_bytes(&self, counts: impl Fn(&TensorProto) -> bool) -> u64 {
        let (mut bytes, mut open) = (0, vec![self.graph()]);
        while let Some(graph) = open.pop() {
            let attributes = graph.node.iter().flat_map(|node| &node.attribute);
            let constants = attributes.filter_map(|attribute| attribute.t.as_deref());
            let counted = graph.initializer.iter().chain(constants).filter(|tensor| counts(tensor));
            bytes += counted.filter_map(|tensor| tensor::byte_size(tensor).ok()).sum::<usize>() as u64;
            open.extend(graph.node.iter().flat_map(bodies));
        }
        bytes
    }
}
