//! The answers of inference, which several analyses share.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use prost::Message;
use tract_onnx::prelude::{InferenceFact, Tensor};
use tract_onnx::tract_hir::internal::SymbolScope;

use crate::hash::HashMap;
use crate::onnx::proto::{TensorProto, ValueInfoProto};
use crate::onnx::tensor;
use crate::shape::memo::Memo;
use crate::shape::unknown_dims::UnknownDims;

/// Equal constants of at most this number of bytes share a tensor. So nodes that differ only in the
/// names of such constants count as equal.
const SHARED: usize = 64;

/// The answers of inference, together with their symbols and tensors. The analyses of a run share
/// them, because most nodes are equal before and after a pass.
#[derive(Default)]
pub(crate) struct Answers {
    pub(super) symbols: SymbolScope,
    pub(super) unknown_dims: UnknownDims,
    pub(super) memo: RefCell<Memo>,
    constants: RefCell<HashMap<SmallConstant, Arc<Tensor>>>,
    /// The facts about inputs, by their encoded declarations.
    inputs: RefCell<HashMap<Vec<u8>, Rc<InferenceFact>>>,
}

/// The element type, the extents and the elements of a constant.
type SmallConstant = (i32, Vec<i64>, Vec<u8>);

impl Answers {
    /// The fact about an input of the model. The first analysis of a run gets the fact from
    /// `declare`, which may create symbols. Later analyses of the run get the same fact.
    pub(super) fn input(
        &self,
        info: &ValueInfoProto,
        declare: impl FnOnce() -> InferenceFact,
    ) -> Rc<InferenceFact> {
        let mut inputs = self.inputs.borrow_mut();
        let fact = inputs.entry(info.encode_to_vec());
        fact.or_insert_with(|| Rc::new(declare())).clone()
    }

    /// The tensor with the elements `raw`. Equal small constants share a tensor, which the first of
    /// them gets from `load`.
    pub(super) fn constant(
        &self,
        proto: &TensorProto,
        raw: &[u8],
        load: impl FnOnce() -> Option<Tensor>,
    ) -> Option<Arc<Tensor>> {
        // Lists of floats are not shared, because lists of different layers are rarely equal and
        // would fill the cache.
        let is_list_of_floats = tensor::float_type(proto).is_some() && raw.len() > size_of::<f64>();
        if raw.len() > SHARED || is_list_of_floats {
            return load().map(Arc::new);
        }
        let mut constants = self.constants.borrow_mut();
        let key = (proto.data_type(), proto.dims.clone(), raw.to_vec());
        if let Some(tensor) = constants.get(&key) {
            return Some(tensor.clone());
        }
        let tensor = Arc::new(load()?);
        constants.insert(key, tensor.clone());
        Some(tensor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Graph;
    use crate::onnx::Model;
    use crate::shape::facts::Facts;

    /// Infers the elements of `out = Shape(x)` in a version of the operator set, reusing `answers`.
    fn inferred_shape(opset: i64, answers: &Rc<Answers>) -> Arc<Tensor> {
        let text = format!(
            "<ir_version: 8, opset_import: [\"\" : {opset}]>
            shape (float[batch, 4] x) => (int64[2] out) {{ out = Shape(x) }}"
        );
        let model = Model::from_text(&text).unwrap();
        let graph = Graph::new(&model).unwrap();
        let facts = Facts::infer_with(&graph, answers.clone());
        facts.value(graph.value("out").unwrap()).unwrap()
    }

    #[test]
    fn equal_nodes_of_two_graphs_share_one_answer() {
        let answers = Rc::default();
        let first = inferred_shape(17, &answers);
        assert!(Arc::ptr_eq(&first, &inferred_shape(17, &answers)));
    }

    #[test]
    fn answers_for_another_operator_set_are_forgotten() {
        let answers = Rc::default();
        let first = inferred_shape(17, &answers);
        let second = inferred_shape(18, &answers);
        assert!(!Arc::ptr_eq(&first, &second));
        // The second graph has the same symbol for its batch as the first one.
        assert_eq!(first, second);
    }
}
