//! Facts about every value before the model runs: shape, element type, small constant values.
//!
//! Extents and the values of shape tensors are symbolic (`TDim`), so that a batch that the exporter left open is carried
//! through `Shape`, `Gather` and `Concat` and comes out at the `Reshape` it was computed for.

use std::rc::Rc;
use std::sync::Arc;

use tract_onnx::prelude::{DatumType, InferenceFact, TVec, Tensor};
use tract_onnx::tract_hir::infer::{Factoid, ShapeFactoid};
use tract_onnx::tract_hir::internal::{DimFact, IntoArcTensor, TDim};

use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::operator::Category;
use crate::onnx::proto::NodeProto;
use crate::onnx::tensor::DataType;
use crate::recipe::broadcast;
use crate::shape::encode::{datum_type, dims_of, ints_of, rank};
pub use crate::shape::extents::{Shape, extent, same, same_shape};
use crate::shape::guard;
use crate::shape::inference::{Inference, SMALL};
use crate::shape::loop_states::Rounds;

/// Shapes, and the values of small constants.
pub struct Facts {
    /// Equal nodes share their facts.
    facts: Vec<Rc<InferenceFact>>,
    types: Vec<Option<DataType>>,
    /// Owns the symbols of the extents, which would be mere names without it.
    engine: Inference,
}

/// A tensor that a node of a body reads.
pub struct Operand {
    /// Its extents.
    pub shape: Vec<usize>,
    /// Whether it holds integers.
    pub is_integer: bool,
    /// The integers, where they are known.
    pub ints: Option<Vec<i64>>,
}

/// The facts about a tensor that a node of a body makes.
#[derive(Clone, Default)]
pub struct Expected {
    /// Its extents.
    pub shape: Option<Vec<usize>>,
    /// Whether it holds integers.
    pub is_integer: Option<bool>,
}

impl Facts {
    /// Infers the facts of every value of the graph. A fact that tract does not know stays unknown,
    /// and no fact behind it is guessed.
    pub fn infer(graph: &Graph) -> Facts {
        let engine = Inference::new(graph);
        let mut rounds = Rounds::new(graph);
        let facts = loop {
            let facts = engine.all(graph, &rounds);
            if !rounds.learn(graph, &facts) {
                break facts;
            }
        };
        Facts {
            types: super::types::infer(graph, &facts),
            facts,
            engine,
        }
    }

    pub(crate) fn engine(&self) -> &Inference {
        &self.engine
    }

    /// The first node with attributes that its operator does not have, or value that is too large to
    /// be made.
    pub fn out_of_bounds(&self) -> Option<String> {
        self.engine.out_of_bounds()
    }

    /// Whether a run of the graph takes no more multiplications than its weights make likely.
    pub fn can_be_run(&self, graph: &Graph) -> bool {
        let known = |values: &[Option<ValueId>]| -> Vec<&InferenceFact> {
            values
                .iter()
                .flatten()
                .map(|value| &*self.facts[value.index()])
                .collect()
        };
        let work = |&node: &NodeId| {
            guard::work(
                graph.node(node),
                &known(graph.inputs(node)),
                &known(graph.outputs(node)),
            )
        };
        guard::is_worth(graph.order().iter().map(work).sum(), graph.weight_bytes())
    }

    /// Whether the operands of a sum or a product have extents that do not broadcast: an engine may
    /// not check that when only the extents of the result are needed.
    pub fn misfits(&self, graph: &Graph, node: NodeId) -> bool {
        let extents = |value: &ValueId| {
            self.shape(*value)?
                .iter()
                .map(extent)
                .collect::<Option<Vec<usize>>>()
        };
        let reads: Option<Vec<_>> = graph.inputs(node).iter().flatten().map(extents).collect();
        let reads = reads.filter(|_| graph.category(node) == Some(Category::Arithmetic));
        reads.is_some_and(|reads| {
            reads
                .iter()
                .try_fold(vec![], |all, shape| broadcast(&all, shape))
                .is_none()
        })
    }

    /// The extents of what a node of a body makes, and whether they are of integers, where that is known.
    pub fn of_inner(
        &self,
        graph: &Graph,
        node: &NodeProto,
        reads: &dyn Fn(&str) -> Option<Operand>,
    ) -> Vec<Expected> {
        let known = |name: &str| {
            let Operand {
                shape,
                is_integer,
                ints,
            } = reads(name)?;
            if let Some(ints) = ints.filter(|ints| ints.len() <= SMALL) {
                let tensor = ndarray::ArrayD::from_shape_vec(shape, ints).ok()?;
                return InferenceFact::try_from(Tensor::from(tensor).into_arc_tensor()).ok();
            }
            let element = if is_integer {
                DataType::Int64
            } else {
                DataType::Float
            };
            let dims: TVec<DimFact> = shape
                .iter()
                .map(|&n| DimFact::from(TDim::from(n)))
                .collect();
            let fact = InferenceFact::shape(ShapeFactoid::closed(dims));
            Some(fact.with_datum_type(datum_type(element.code())?))
        };
        let made = |fact: InferenceFact| {
            let shape = (!fact.shape.is_open())
                .then(|| fact.shape.dims().map(|dim| extent(&dim.concretize())));
            let is_integer = fact
                .datum_type
                .concretize()
                .map(|t| t.is_integer() || t == DatumType::Bool);
            Expected {
                shape: shape.and_then(Iterator::collect),
                is_integer,
            }
        };
        self.engine
            .infer(graph, node, &known)
            .into_iter()
            .map(made)
            .collect()
    }

    /// The extents of a value, or `None` where not even the rank is known.
    pub fn shape(&self, value: ValueId) -> Option<Shape> {
        let shape = &self.facts[value.index()].shape;
        (!shape.is_open()).then(|| shape.dims().map(|dim| dim.concretize()).collect())
    }

    /// The element type of a value.
    pub fn data_type(&self, value: ValueId) -> Option<DataType> {
        self.types[value.index()]
    }

    /// How many axes a value has.
    pub fn rank(&self, value: ValueId) -> Option<usize> {
        rank(&self.facts[value.index()])
    }

    /// The extent of one axis where it is a plain number.
    pub fn extent(&self, value: ValueId, axis: usize) -> Option<usize> {
        extent(self.shape(value)?.get(axis)?)
    }

    /// The value itself where it was small enough to be evaluated; its elements may be symbolic.
    pub fn value(&self, value: ValueId) -> Option<Arc<Tensor>> {
        self.facts[value.index()]
            .value
            .concretize()
            .filter(|tensor| !self.engine.is_open(tensor))
    }

    /// The elements of a value that is a shape itself, symbolic or not.
    pub fn extents(&self, value: ValueId) -> Option<Shape> {
        Some(
            dims_of(&*self.value(value)?)?
                .into_iter()
                .map(Some)
                .collect(),
        )
    }

    /// The elements of a small integer constant, if none of them is symbolic.
    pub fn ints(&self, value: ValueId) -> Option<Vec<i64>> {
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
