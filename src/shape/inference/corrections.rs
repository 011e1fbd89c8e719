//! Corrects answers of tract that differ from ONNX.

use std::mem::take;
use std::ops::Range;

use tract_onnx::prelude::{DatumType, InferenceFact, Tensor};
use tract_onnx::tract_hir::infer::Factoid;

use crate::onnx::proto::NodeProto;
use crate::shape::encode::{KnownFacts, datum_type, is_concrete, type_alone};
use crate::shape::extents::extent;
use crate::shape::inference::Inference;
use crate::shape::rules::{shape, takes_all_of_one};
use crate::shape::slices;
use crate::shape::symbolic_division;
use crate::shape::windows;

impl Inference {
    /// Corrects the answer of tract about a node, if its operator is known to be inferred
    /// incorrectly.
    pub(super) fn correct(
        &self,
        node: &NodeProto,
        known: KnownFacts,
        inputs: &[Option<InferenceFact>],
        outputs: &mut [InferenceFact],
    ) {
        let first = inputs.first().and_then(Option::as_ref);
        match (node.op(), outputs) {
            (("", "Slice"), [taken, ..]) => {
                let from = node.input.first().and_then(|from| known(from));
                let from = from.unwrap_or_default();
                let cuts = slices::cuts(node, &from, known);
                *taken = slices::within_reach(take(taken), &from, &cuts);
            }
            // The fourth output is the sum before normalization, which is the residual stream. Its
            // shape is that of the first output.
            (
                ("com.microsoft", "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization"),
                [normed, _, _, sum],
            ) => *sum = normed.clone(),
            (("", "Cast" | "CastLike"), [made]) => {
                if let Some(from) = first {
                    *made = self.narrowed(take(made), from, cast_type(node, inputs));
                }
            }
            // tract keeps an axis of unknown extent, although a Squeeze without axes may remove it.
            (("", "Squeeze"), [made])
                if takes_all_of_one(node, self.opset) && !has_all_extents(made) =>
            {
                *made = type_alone(made);
            }
            (("", "AveragePool" | "LpPool" | "MaxPool"), made) => {
                let Some(from) = first else { return };
                for made in made {
                    *made = windows::pooled(node, from, take(made));
                }
            }
            (("", "Resize" | "Upsample"), [made]) => {
                if let Some(from) = first {
                    *made = windows::resized(node, from, take(made));
                }
            }
            (("", "Div" | "Mod"), [made]) => {
                *made = symbolic_division::settled(node, inputs, take(made));
            }
            _ => {}
        }
    }

    /// The fact about the result of a Cast. tract keeps symbolic extents in one type, whatever the
    /// target type of the Cast. So the value is dropped if the target type cannot hold all
    /// elements.
    fn narrowed(
        &self,
        fact: InferenceFact,
        from: &InferenceFact,
        to: Option<DatumType>,
    ) -> InferenceFact {
        let value = from.value.concretize();
        let Some(value) = value.filter(|value| value.datum_type() == DatumType::TDim) else {
            return fact;
        };
        // An extent fits into 32 bits. An unknown element may exceed 32 bits, so it gets a new
        // symbol.
        if to == Some(DatumType::I32) && !is_concrete(&value) {
            let elements = self.answers.unknown_dims.elements(from);
            return self.answers.unknown_dims.named(
                &self.answers.symbols,
                elements,
                fact.without_value(),
            );
        }
        match to.and_then(range_of_type) {
            Some(range) if !all_are_within(&value, &range) => fact.without_value(),
            _ => fact,
        }
    }
}

/// The type to which a Cast or a CastLike converts.
fn cast_type(node: &NodeProto, inputs: &[Option<InferenceFact>]) -> Option<DatumType> {
    if node.op_type() == "Cast" {
        return datum_type(node.attr_i("to").ok()??.try_into().ok()?);
    }
    inputs.get(1)?.as_ref()?.datum_type.concretize()
}

/// The range of an integer type; `None` for integer types that can hold all extents, and for all
/// other types.
fn range_of_type(to: DatumType) -> Option<Range<i64>> {
    match to {
        DatumType::I32 => Some(i64::from(i32::MIN)..i64::from(i32::MAX)),
        DatumType::Bool => Some(0..2),
        DatumType::I8 => Some(-128..128),
        DatumType::U8 => Some(0..256),
        DatumType::I16 => Some(-32768..32768),
        DatumType::U16 => Some(0..65536),
        DatumType::U32 | DatumType::U64 => Some(0..i64::from(i32::MAX)),
        // tract's type of extents may stand for any integer type. Every integer type holds at least
        // these numbers.
        DatumType::TDim => Some(0..128),
        _ => None,
    }
}

fn all_are_within(value: &Tensor, range: &Range<i64>) -> bool {
    value.cast_to::<i64>().is_ok_and(|numbers| {
        let numbers = numbers.to_plain_array_view::<i64>();
        numbers.is_ok_and(|numbers| numbers.iter().all(|number| range.contains(number)))
    })
}

fn has_all_extents(fact: &InferenceFact) -> bool {
    shape(fact).is_some_and(|shape| shape.iter().all(|dim| extent(dim).is_some()))
}
