//! The facts that are known about every value before the model runs: shape, element type, and the
//! elements of small constants.
//!
//! Extents and the elements of shape tensors may be symbolic (`TDim`). For example, the symbol of
//! an open batch passes through `Shape`, `Gather` and `Concat` to the `Reshape` whose target they
//! compute.

use std::rc::Rc;
use std::sync::Arc;

use tract_onnx::prelude::{DatumType, InferenceFact, Tensor};
use tract_onnx::tract_hir::infer::{Factoid, ShapeFactoid};
use tract_onnx::tract_hir::internal::{DimFact, IntoArcTensor, TDim};

use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::operator::Category;
use crate::onnx::proto::NodeProto;
use crate::onnx::tensor::DataType;
use crate::recipe::broadcast;
use crate::shape::encode::{datum_type, dims_of, ints_of, rank};
pub(crate) use crate::shape::extents::{Shape, extent, same, same_shape};
use crate::shape::guard;
use crate::shape::inference::{Answers, Inference, SMALL};
use crate::shape::loop_states::LoopStates;

/// The facts about the values of a graph.
pub(crate) struct Facts {
    /// The fact about each value. Equal nodes share the facts about their outputs.
    facts: Vec<Rc<InferenceFact>>,
    types: Vec<Option<DataType>>,
    /// Owns the symbols of the extents.
    engine: Inference,
}

/// A tensor that a node of a body reads.
pub(crate) struct Operand {
    /// The extents.
    pub shape: Vec<usize>,
    /// Whether the elements are integers.
    pub is_integer: bool,
    /// The integers, if they are known.
    pub ints: Option<Vec<i64>>,
}

/// The facts about a tensor that a node of a body computes.
#[derive(Clone, Default)]
pub(crate) struct Expected {
    /// The extents, if they are known.
    pub shape: Option<Vec<usize>>,
    /// Whether the elements are integers, if it is known.
    pub is_integer: Option<bool>,
}

impl Operand {
    fn fact(self) -> Option<InferenceFact> {
        if let Some(ints) = self.ints.filter(|ints| ints.len() <= SMALL) {
            let tensor = ndarray::ArrayD::from_shape_vec(self.shape, ints).ok()?;
            return InferenceFact::try_from(Tensor::from(tensor).into_arc_tensor()).ok();
        }
        let element = if self.is_integer {
            DataType::Int64
        } else {
            DataType::Float
        };
        let dims = self.shape.iter().map(|&n| DimFact::from(TDim::from(n)));
        let fact = InferenceFact::shape(ShapeFactoid::closed(dims.collect()));
        Some(fact.with_datum_type(datum_type(element.code())?))
    }
}

impl Expected {
    fn from_fact(fact: &InferenceFact) -> Self {
        let datum_type = fact.datum_type.concretize();
        let dims = fact.shape.dims();
        Self {
            shape: match fact.shape.is_open() {
                true => None,
                false => dims.map(|dim| extent(&dim.concretize())).collect(),
            },
            is_integer: datum_type.map(|t| t.is_integer() || t == DatumType::Bool),
        }
    }
}

impl Facts {
    /// Infers the facts about every value of the graph. A fact stays unknown if tract cannot infer
    /// it, or if it depends on an unknown fact.
    pub(crate) fn infer(graph: &Graph) -> Facts {
        Facts::infer_with(graph, Rc::default())
    }

    /// Like [`Facts::infer`], but reuses the answers for earlier graphs.
    pub(crate) fn infer_with(graph: &Graph, answers: Rc<Answers>) -> Facts {
        let engine = Inference::new(graph, answers);
        let mut loop_states = LoopStates::new(graph);
        let mut facts = engine.all(graph, &loop_states);
        while loop_states.learn(graph, &facts) {
            facts = engine.all(graph, &loop_states);
        }
        Facts {
            types: super::types::infer(graph, &facts),
            facts,
            engine,
        }
    }

    pub(crate) fn engine(&self) -> &Inference {
        &self.engine
    }

    /// The first node or value that exceeds a limit of inference: the attributes of the node are
    /// invalid, or a value is too large. `None` if all are within the limits.
    pub(crate) fn out_of_bounds(&self) -> Option<String> {
        self.engine.out_of_bounds()
    }

    /// Whether the model may be run: the number of multiplications is plausible for the size of the
    /// weights.
    pub(crate) fn can_be_run(&self, graph: &Graph) -> bool {
        let work = graph.order().iter().map(|&node| {
            let (inputs, outputs) = (graph.inputs(node), graph.outputs(node));
            guard::work(
                graph.node(node),
                &self.present(inputs),
                &self.present(outputs),
            )
        });
        guard::is_worth(work.sum(), graph.weight_bytes())
    }

    /// The facts about the values that are present.
    fn present(&self, values: &[Option<ValueId>]) -> Vec<&InferenceFact> {
        let values = values.iter().flatten();
        values.map(|value| &*self.facts[value.index()]).collect()
    }

    /// Whether the operands of an arithmetic operator have known extents that do not broadcast. An
    /// engine may not notice the misfit if it needs only the extents of the result.
    pub(crate) fn misfits(&self, graph: &Graph, node: NodeId) -> bool {
        if graph.category(node) != Some(Category::Arithmetic) {
            return false;
        }
        let operands = graph.inputs(node).iter().flatten();
        let Some(shapes) = operands
            .map(|&operand| self.known_extents(operand))
            .collect::<Option<Vec<_>>>()
        else {
            return false;
        };
        let broadcast = shapes
            .iter()
            .try_fold(vec![], |all, shape| broadcast(&all, shape));
        broadcast.is_none()
    }

    /// The extents of a value, if all are known.
    fn known_extents(&self, value: ValueId) -> Option<Vec<usize>> {
        self.shape(value)?.iter().map(extent).collect()
    }

    /// Infers the facts about the outputs of a node in a body. `reads` returns the operands by
    /// name, if they are known. Facts that cannot be inferred are `None`.
    pub(crate) fn of_inner(
        &self,
        graph: &Graph,
        node: &NodeProto,
        reads: &dyn Fn(&str) -> Option<Operand>,
    ) -> Vec<Expected> {
        let outputs = self.engine.infer(graph, node, &|name| reads(name)?.fact());
        outputs.iter().map(Expected::from_fact).collect()
    }

    /// The extents of a value; `None` if its rank is unknown.
    pub(crate) fn shape(&self, value: ValueId) -> Option<Shape> {
        let shape = &self.facts[value.index()].shape;
        (!shape.is_open()).then(|| shape.dims().map(|dim| dim.concretize()).collect())
    }

    /// The element type of a value.
    pub(crate) fn data_type(&self, value: ValueId) -> Option<DataType> {
        self.types[value.index()]
    }

    /// The rank of a value.
    pub(crate) fn rank(&self, value: ValueId) -> Option<usize> {
        rank(&self.facts[value.index()])
    }

    /// The extent of an axis, if it is known.
    pub(crate) fn extent(&self, value: ValueId, axis: usize) -> Option<usize> {
        extent(self.shape(value)?.get(axis)?)
    }

    /// The elements of a value, which may be symbolic. `None` if the value was not evaluated, or if
    /// an element is unknown.
    pub(crate) fn value(&self, value: ValueId) -> Option<Arc<Tensor>> {
        self.facts[value.index()]
            .value
            .concretize()
            .filter(|tensor| !self.engine.is_open(tensor))
    }

    /// The elements of a value as extents, which may be symbolic. `None` under the same conditions
    /// as for [`Facts::value`].
    pub(crate) fn extents(&self, value: ValueId) -> Option<Shape> {
        Some(
            dims_of(&*self.value(value)?)?
                .into_iter()
                .map(Some)
                .collect(),
        )
    }

    /// The elements of a small constant of integers, if none of them is symbolic.
    pub(crate) fn ints(&self, value: ValueId) -> Option<Vec<i64>> {
        let tensor = self.value(value)?;
        if tensor.datum_type() == tract_onnx::prelude::DatumType::TDim {
            let view = tensor.to_plain_array_view::<TDim>().ok()?;
            return view.iter().map(|dim| dim.to_i64().ok()).collect();
        }
        if !tensor.datum_type().is_integer() {
            return None;
        }
        ints_of(&tensor)
    }
}
