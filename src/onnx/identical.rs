//! Whether two models are one and the same.

use super::Model;
use super::proto::TensorProto;
use super::tensor;
use super::walk::{self, Visited};

impl Model {
    /// Whether another model has the same graph, functions and operator sets, and tensors of the same bits.
    pub fn is_identical(&self, other: &Self) -> bool {
        let (own, others) = (&self.proto, &other.proto);
        let has_same_message = own.ir_version == others.ir_version
            && own.opset_import == others.opset_import
            && own.graph == others.graph
            && own.functions == others.functions;
        has_same_message
            && (self.externals().is_clone_of(other.externals()) || self.has_same_data(other))
    }

    /// Whether the data outside of two equal messages is equal.
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
        // The walk takes a mutable message.
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
