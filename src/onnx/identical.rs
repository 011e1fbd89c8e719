//! Compares two models bit by bit.

use super::Model;
use super::proto::TensorProto;
use super::tensor;
use super::walk::{self, Visited};

impl Model {
    /// Whether both models have equal graphs, functions and operator sets, and tensors with equal
    /// bits.
    pub(crate) fn is_identical(&self, other: &Self) -> bool {
        let (own, others) = (&self.proto, &other.proto);
        let has_same_message = own.ir_version == others.ir_version
            && own.opset_import == others.opset_import
            && own.graph == others.graph
            && own.functions == others.functions;
        has_same_message
            && (self.externals().is_clone_of(other.externals()) || self.has_same_data(other))
    }

    /// Whether two equal messages also have equal data outside of the messages.
    fn has_same_data(&self, other: &Self) -> bool {
        let [own, others] = [self, other].map(Model::outside);
        own.len() == others.len()
            && own.iter().zip(&others).all(|(one, another)| {
                let one = tensor::raw(one, self.externals());
                let another = tensor::raw(another, other.externals());
                matches!((one, another), (Ok(one), Ok(another)) if one == another)
            })
    }

    /// The tensors whose elements are not in the message.
    fn outside(&self) -> Vec<TensorProto> {
        let mut found = vec![];
        // The walk needs a mutable message.
        let walked = walk::parts(&mut self.proto.clone(), &mut |part| {
            if let Visited::Initializer(tensor) | Visited::Tensor(tensor) = part
                && !tensor.external_data.is_empty()
            {
                found.push(tensor.clone());
            }
            Ok(())
        });
        walked.expect("no visit fails");
        found
    }
}
