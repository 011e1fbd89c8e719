//! Infers the element type of every value, and distinguishes bfloat16 from float32.
//!
//! tract reads bfloat16 as float32. If tract infers float32, the operator of the node determines
//! which of the two types it is. Most operators keep the type of their input.

use std::rc::Rc;

use tract_onnx::prelude::{DatumType, InferenceFact};
use tract_onnx::tract_hir::infer::Factoid;

use crate::hash::HashMap;
use crate::ir::regions::{BEGIN, END};
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::node::{bodies, constant_tensor};
use crate::onnx::operator::{Category, TYPES};
use crate::onnx::proto::{NodeProto, ValueInfoProto};
use crate::onnx::schema::{Formal, OperatorDefinition, Sort, definition};
use crate::onnx::tensor::DataType;

/// The element type of each value, by the index of the value; `None` if the type is unknown.
pub(crate) fn infer(graph: &Graph, facts: &[Rc<InferenceFact>]) -> Vec<Option<DataType>> {
    let proto = graph.proto();
    let mut types = vec![None; graph.value_count()];
    for input in &proto.input {
        if let Some(value) = graph.value(input.name()) {
            types[value.index()] = declared(input);
        }
    }
    for value in (0..graph.value_count()).map(|index| ValueId(index as u32)) {
        if let Some(tensor) = graph.initializer(value) {
            types[value.index()] = DataType::from_code(tensor.data_type());
        }
    }
    let declared_types: HashMap<&str, DataType> = proto
        .value_info
        .iter()
        .chain(&proto.output)
        .filter_map(|info| Some((info.name(), declared(info)?)))
        .collect();
    for &node in graph.order() {
        for (slot, value) in graph.outputs(node).iter().enumerate() {
            let Some(value) = value else { continue };
            let output = OutputType {
                graph,
                node,
                slot,
                types: &types,
                declared: declared_types.get(graph.value_name(*value)).copied(),
            };
            let inferred = output.infer(facts[value.index()].datum_type.concretize());
            types[value.index()] = inferred;
        }
    }
    types
}

fn declared(info: &ValueInfoProto) -> Option<DataType> {
    DataType::from_code(info.r#type.as_ref()?.tensor_type.as_ref()?.elem_type())
}

/// The ONNX type for a type of tract; `None` if ONNX has no such type.
fn from_tract(datum_type: DatumType) -> Option<DataType> {
    Some(match datum_type {
        DatumType::F16 => DataType::Float16,
        DatumType::F32 => DataType::Float,
        DatumType::F64 => DataType::Double,
        DatumType::Bool => DataType::Bool,
        DatumType::I8 => DataType::Int8,
        DatumType::I16 => DataType::Int16,
        DatumType::I32 => DataType::Int32,
        DatumType::I64 => DataType::Int64,
        DatumType::U8 => DataType::Uint8,
        DatumType::U16 => DataType::Uint16,
        DatumType::U32 => DataType::Uint32,
        DatumType::U64 => DataType::Uint64,
        _ => return None,
    })
}

/// The type that an attribute of a node names, or the type of the tensor in an attribute.
fn named_type(node: &NodeProto) -> Option<i32> {
    let named = TYPES
        .into_iter()
        .find_map(|name| type_code(node, name))
        .filter(|&code| code != 0);
    named.or_else(|| match node.op() {
        ("", "Constant") => constant_tensor(node)?.data_type,
        ("", "ConstantOfShape") => match node.attr_t("value").ok()? {
            Some(value) => value.data_type,
            None => Some(DataType::Float.code()),
        },
        _ => None,
    })
}

/// The code of an element type in an attribute.
fn type_code(node: &NodeProto, name: &str) -> Option<i32> {
    node.attr_i(name).ok().flatten()?.try_into().ok()
}

/// An output whose element type is inferred.
struct OutputType<'o> {
    graph: &'o Graph<'o>,
    node: NodeId,
    slot: usize,
    /// The types of the values that were inferred so far.
    types: &'o [Option<DataType>],
    /// The type that the model declares for the output.
    declared: Option<DataType>,
}

impl OutputType<'_> {
    /// The element type of the output, given the type that tract infers.
    fn infer(&self, datum_type: Option<DatumType>) -> Option<DataType> {
        match datum_type.and_then(from_tract) {
            Some(DataType::Float) => self.float_or_bfloat16(),
            Some(inferred) if inferred != DataType::Bool && inferred.is_integer() => {
                self.integer().or(self.declared).or(Some(inferred))
            }
            None if datum_type == Some(DatumType::TDim) => self.integer().or(self.declared),
            inferred => inferred
                .or(self.declared)
                .or_else(|| self.defined())
                .or_else(|| self.shared()),
        }
    }

    /// The type of an input.
    fn input(&self, slot: usize) -> Option<DataType> {
        self.types[self.graph.input(self.node, slot)?.index()]
    }

    /// The known types of the inputs.
    fn inputs(&self) -> impl Iterator<Item = DataType> {
        let inputs = self.graph.inputs(self.node).iter().flatten();
        inputs.filter_map(|input| self.types[input.index()])
    }

    /// The type that the definition of the operator gives the output: that of an input with the same type variable, or the
    /// only type that the output may have.
    fn defined(&self) -> Option<DataType> {
        let op = self.graph.op(self.node)?;
        let OperatorDefinition::Is(schema) = definition(op, self.graph.model().own_opset()) else {
            return None;
        };
        let values = self.graph.inputs(self.node).iter();
        let types: Vec<_> = values
            .map(|value| value.map(|value| self.types[value.index()]))
            .collect();
        let output = schema.output(self.slot).filter(|_| schema.takes(&types))?;
        if let Sort::OneOf(types) = output.sort {
            return types.only();
        }
        let variable = output.variable()?;
        let inputs = 0..self.graph.inputs(self.node).len();
        let mut bound = inputs.filter(|&slot| {
            let formal = schema.input(slot);
            formal.and_then(Formal::variable) == Some(variable)
        });
        let of_input = bound.find_map(|slot| self.input(slot));
        of_input.or_else(|| schema.variables[variable]?.only())
    }

    /// The floating-point type that all operands and the result share. So the type of one operand,
    /// such as a constant, determines the type of the result.
    fn shared(&self) -> Option<DataType> {
        use Category::{Arithmetic, Layer, MatrixProduct, Movement};
        let proto = self.graph.node(self.node);
        // The result is float32 for any type of input.
        if let ("ai.onnx.ml", "Normalizer" | "Scaler") = proto.op() {
            return Some(DataType::Float);
        }
        match proto.category()? {
            Arithmetic | Layer | MatrixProduct | Movement => {
                self.inputs().find(|data_type| data_type.is_float())
            }
            _ => None,
        }
    }

    /// The ONNX type of an integer output. The type must be inferred, because tract has one type
    /// for all integers that may be extents.
    fn integer(&self) -> Option<DataType> {
        use Category::{
            Arithmetic, Elementwise, Layer, MatrixProduct, Movement, Reduction, Selection,
        };
        let proto = self.graph.node(self.node);
        if let Some(code) = named_type(proto) {
            return DataType::from_code(code);
        }
        let found = match proto.domain() {
            "" => self.defined(),
            BEGIN => self.input(self.slot),
            END if proto.op_type() == "If" => self.input(1 + self.slot),
            END => None,
            _ => match proto.category()? {
                Movement | Selection | Reduction => self.input(0),
                Arithmetic | Elementwise | Layer | MatrixProduct => self.inputs().next(),
                _ => None,
            },
        };
        found.filter(|&found| found != DataType::Bool && found.is_integer())
    }

    /// The type of an output that tract infers as float32.
    fn float_or_bfloat16(&self) -> Option<DataType> {
        let proto = self.graph.node(self.node);
        if let Some(code) = named_type(proto) {
            return DataType::from_code(code);
        }
        match self.graph.op(self.node) {
            _ if proto.domain() == BEGIN => self.input(self.slot),
            _ if proto.domain() == END && proto.op_type() == "If" => self.input(1 + self.slot),
            _ if proto.domain() == END => self.declared,
            // The other outputs are statistics, whose type is `stash_type`.
            Some("LayerNormalization") if self.slot > 0 => {
                type_code(proto, "stash_type").map_or(Some(DataType::Float), DataType::from_code)
            }
            // The type depends on the body, so only the declared type is used.
            _ if bodies(proto).next().is_some() => self.declared,
            _ => {
                let defined = self.defined().filter(|defined| defined.is_float());
                let first = || self.inputs().find(|data_type| data_type.is_float());
                defined
                    .or_else(first)
                    .or(self.declared)
                    .or(Some(DataType::Float))
            }
        }
    }
}
