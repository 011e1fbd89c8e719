//! Infers the extents of the letters of an Einsum.

use tract_onnx::prelude::InferenceFact;
use tract_onnx::tract_hir::internal::TDim;

use crate::hash::HashMap;
use crate::ir::equation::Equation;
use crate::onnx::proto::NodeProto;
use crate::shape::extents::{Shape, extent};
use crate::shape::rules::{broadcast_extent, shape};

/// The letters of an Einsum and their extents.
pub(crate) struct Contracted {
    result: Vec<char>,
    /// The extent of each letter. `None` if it is unknown, or if it is 1 in only some operands,
    /// because engines disagree about such a letter.
    extents: HashMap<char, Option<TDim>>,
}

impl Contracted {
    /// The letters of a node with these operands; `None` if its equation cannot be parsed.
    pub(crate) fn from_node(node: &NodeProto, operands: &[Option<InferenceFact>]) -> Option<Self> {
        let shapes: Vec<Option<Shape>> =
            operands.iter().map(|fact| shape(fact.as_ref()?)).collect();
        let ranks: Vec<Option<usize>> = shapes
            .iter()
            .map(|shape| shape.as_ref().map(|shape| shape.len()))
            .collect();
        let Equation { operands, result } = Equation::read(node.attr_s("equation").ok()??, &ranks)?;
        let mut extents: HashMap<char, Option<TDim>> = HashMap::default();
        for (letters, shape) in operands.iter().zip(&shapes) {
            for (axis, letter) in letters.iter().enumerate() {
                let here = shape.as_ref().and_then(|shape| shape[axis].clone());
                let extent = match extents.remove(letter) {
                    Some(there) => agreed_extent(there, here),
                    None => here,
                };
                extents.insert(*letter, extent);
            }
        }
        Some(Self { result, extents })
    }

    /// Whether the extent of each letter is known.
    pub(crate) fn is_told(&self) -> bool {
        self.extents.values().all(Option::is_some)
    }

    /// The extents of the result.
    pub(crate) fn shape(&self) -> Option<Shape> {
        self.result
            .iter()
            .map(|letter| self.extents.get(letter).cloned())
            .collect()
    }
}

/// The extent of a letter that two operands have; `None` if it is unknown, or if engines disagree.
fn agreed_extent(one: Option<TDim>, other: Option<TDim>) -> Option<TDim> {
    if (extent(&one) == Some(1)) != (extent(&other) == Some(1)) {
        return None;
    }
    broadcast_extent(one, other)?
}

#[cfg(test)]
mod tests {
    use tract_onnx::tract_hir::internal::DatumType;

    use super::*;
    use crate::onnx::proto::{AttributeProto, AttributeType};

    /// The extents of the result of an Einsum on operands of these shapes, and whether the Einsum
    /// can be evaluated.
    fn contracted(equation: &str, operands: &[&[usize]]) -> (Option<Vec<Option<usize>>>, bool) {
        let equation = AttributeProto {
            name: Some("equation".into()),
            r#type: Some(AttributeType::String.into()),
            s: Some(equation.as_bytes().to_vec().into()),
            ..AttributeProto::default()
        };
        let node = NodeProto {
            attribute: vec![equation],
            ..NodeProto::default()
        };
        let facts: Vec<_> = operands
            .iter()
            .map(|shape| Some(InferenceFact::dt_shape(DatumType::F32, *shape)))
            .collect();
        let told = Contracted::from_node(&node, &facts).unwrap();
        (
            told.shape().map(|shape| shape.iter().map(extent).collect()),
            told.is_told(),
        )
    }

    /// In onnxruntime such a letter broadcasts, but in tract it has the extent of the first
    /// operand.
    #[test]
    fn letter_of_extent_one_in_one_operand_is_unknown() {
        assert_eq!(
            contracted("ca,cf->acf", &[&[4, 2], &[4, 3]]),
            (Some(vec![Some(2), Some(4), Some(3)]), true)
        );
        assert_eq!(
            contracted("ca,cf->acf", &[&[1, 2], &[1, 3]]),
            (Some(vec![Some(2), Some(1), Some(3)]), true)
        );
        for operands in [[&[1, 2], &[4, 3]], [&[4, 2], &[1, 3]]] {
            let operands = operands.map(|shape: &[usize; 2]| &shape[..]);
            assert_eq!(
                contracted("ca,cf->acf", &operands),
                (Some(vec![Some(2), None, Some(3)]), false)
            );
            assert_eq!(
                contracted("ca,cf->af", &operands),
                (Some(vec![Some(2), Some(3)]), false)
            );
        }
    }
}
