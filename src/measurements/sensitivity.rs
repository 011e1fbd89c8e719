//! Measures how much the outputs of a model change when each weight changes by one unit in the last
//! place. Smaller differences between models cannot be judged in floating point.

use std::collections::HashSet;

use bytes::Bytes;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::onnx::Model;
use crate::onnx::proto::TensorProto;
use crate::onnx::tensor::{self, DataType};
use crate::verify::{Verdict, VerifyOptions, compare};

/// The largest relative change of an output if every float weight changes by one unit in the last
/// place, up or down at random; `None` if it cannot be measured.
pub(crate) fn sensitivity(model: &Model, options: &VerifyOptions, seed: u64) -> Option<f64> {
    match compare(model, &shaken(model, seed)?, options) {
        Verdict::Compared(comparison) => comparison.worst().map(|worst| worst.relative),
        Verdict::Broken { .. } | Verdict::CouldNotVerify { .. } => None,
    }
}

/// A copy of the model in which each element of each float weight is moved by one unit in the last
/// place. Zeros, scalars that are whole numbers, and the scales of Resizes stay. `None` if a weight cannot be read.
pub(crate) fn shaken(model: &Model, seed: u64) -> Option<Model> {
    let mut numbers = ChaCha8Rng::seed_from_u64(seed);
    let scales = scales(model);
    let mut moved = model.clone();
    let graph = moved.graph_mut();
    let constants = graph.node.iter_mut().filter(|node| {
        let name = node.output.first();
        node.op_type() == "Constant" && name.is_none_or(|name| !scales.contains(name.as_str()))
    });
    let values = constants
        .flat_map(|node| &mut node.attribute)
        .filter_map(|value| value.t.as_deref_mut());
    let initializers = graph.initializer.iter_mut();
    let weights = initializers.filter(|weight| !scales.contains(weight.name()));
    for weight in weights.chain(values) {
        shake(weight, model, &mut numbers)?;
    }
    Some(moved)
}

/// The names of the values that give the extents of the results of Resizes and Upsamples. Moved by a
/// rounding, they may give other extents.
fn scales(model: &Model) -> HashSet<&str> {
    let nodes = model.graph().node.iter();
    let resizes = nodes.filter(|node| matches!(node.op_type(), "Resize" | "Upsample"));
    let operands = resizes.flat_map(|node| node.input.iter().skip(1));
    operands.map(String::as_str).collect()
}

fn shake(weight: &mut TensorProto, model: &Model, numbers: &mut ChaCha8Rng) -> Option<()> {
    // The width of an element in bytes, and the mask of its exponent bits, which are all set in
    // infinities and NaN.
    let (width, exponent) = match tensor::data_type(weight).ok()? {
        DataType::Float16 => (2, 0x7c00),
        DataType::BFloat16 => (2, 0x7f80),
        DataType::Float => (4, 0x7f80_0000),
        DataType::Double => (8, 0x7ff0_0000_0000_0000),
        _ => return Some(()),
    };
    if is_whole_scalar(weight, model) {
        return Some(());
    }
    let mut bytes = tensor::raw(weight, model.externals()).ok()?.to_vec();
    for element in bytes.chunks_exact_mut(width) {
        let mut word = [0; 8];
        word[..width].copy_from_slice(element);
        let bits = u64::from_le_bytes(word);
        let next = if numbers.random() {
            bits.wrapping_add(1)
        } else {
            bits.wrapping_sub(1)
        };
        // A zero stays. An element that would become infinite stays too.
        let is_zero = bits << (64 - 8 * width) << 1 == 0;
        if !is_zero && bits & exponent != exponent && next & exponent != exponent {
            element.copy_from_slice(&next.to_le_bytes()[..width]);
        }
    }
    tensor::replace(weight, Bytes::from(bytes)).ok()
}

/// Whether a tensor is a single whole number. Such a number is not moved: it has no rounding error,
/// and it may be the exponent of a Pow, which is undefined for negative numbers if its exponent is
/// not whole.
fn is_whole_scalar(weight: &TensorProto, model: &Model) -> bool {
    let is_single = tensor::byte_size(weight).is_ok_and(|size| size <= size_of::<f64>());
    let numbers = is_single.then(|| tensor::read_f64(weight, model.externals()));
    let Some(Ok(numbers)) = numbers else {
        return false;
    };
    numbers.len() == 1 && numbers.iter().all(|number| number.fract() == 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::testing::affine;

    #[test]
    fn each_finite_nonzero_float_moves_to_a_neighbour() {
        for (data_type, bits, rest) in [
            (
                DataType::Float,
                [0x3f80_0000_u64, 0xc120_0000, 0x0000_0001],
                [0, 0x8000_0000, 0x7f80_0000],
            ),
            (
                DataType::Float16,
                [0x3c00, 0xc900, 0x0001],
                [0, 0x8000, 0x7c00],
            ),
            (
                DataType::BFloat16,
                [0x3f80, 0xc120, 0x0001],
                [0, 0x8000, 0x7f80],
            ),
            (
                DataType::Double,
                [1 << 62, 1 << 63 | 1 << 62, 1],
                [0, 1 << 63, 0x7ff << 52],
            ),
        ] {
            let width = data_type.bits().unwrap() / 8;
            let bytes: Vec<u8> = bits
                .iter()
                .chain(&rest)
                .flat_map(|bits| bits.to_le_bytes()[..width].to_vec())
                .collect();
            let mut weight = TensorProto {
                dims: vec![6],
                data_type: Some(data_type.code()),
                raw_data: Some(bytes.clone().into()),
                ..Default::default()
            };
            let mut numbers = ChaCha8Rng::seed_from_u64(1);
            shake(&mut weight, &affine([1.0; 3], [0.0; 3]), &mut numbers).unwrap();
            let read = |at: usize, bytes: &[u8]| {
                let mut word = [0; 8];
                word[..width].copy_from_slice(&bytes[at * width..][..width]);
                u64::from_le_bytes(word)
            };
            let moved = weight.raw_data.unwrap();
            for (at, bits) in bits.into_iter().enumerate() {
                assert_eq!(read(at, &moved).abs_diff(bits), 1, "{data_type} {at}");
            }
            assert_eq!(moved[3 * width..], bytes[3 * width..], "{data_type}");
        }
    }

    #[test]
    fn sensitivity_matches_the_rounding_of_the_shift() {
        // y = 1·x + 1e6 changes by one or two units in the last place of 1e6, each of which is 6e-8
        // of 1e6.
        let calm = sensitivity(&affine([1.0; 3], [1e6; 3]), &VerifyOptions::default(), 0).unwrap();
        assert!(calm > 1e-9 && calm < 2e-7, "{calm}");
        // y = 0·x + 0 cannot change.
        assert_eq!(
            sensitivity(&affine([0.0; 3], [0.0; 3]), &VerifyOptions::default(), 0),
            None
        );
    }

    #[test]
    fn a_small_model_moves_a_little() {
        // The model `dtn-legacy` squares negative numbers by a Pow.
        for name in ["un-dynamo", "dtn-legacy"] {
            let model = Model::open(format!("models/digits/{name}.onnx")).unwrap();
            let moved = sensitivity(&model, &Default::default(), 0).unwrap();
            assert!(moved > 1e-9 && moved < 1e-5, "{name}: {moved}");
        }
    }

    #[test]
    fn scales_of_a_resize_stay() {
        let text = r#"<ir_version: 8, opset_import: ["" : 17]>
            upsampled (float[1, 1, 2, 3] x) => (float[1, 1, 4, 6] y)
            <float[1, 1, 1, 1] w = {0.3}, float[4] scales = {1, 1, 2, 2}> {
                a = Conv(x, w)
                y = Resize<mode = "nearest">(a, "", scales)
            }"#;
        let model = Model::from_text(text).unwrap();
        let moved = sensitivity(&model, &VerifyOptions::default(), 1).unwrap();
        // 0.3 and a neighbour differ by 1e-7 of themselves.
        assert!((5e-8..2e-7).contains(&moved), "{moved}");
    }
}
