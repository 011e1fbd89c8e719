//! The degrees of values as polynomials in the random elements. The degrees bound the probability
//! that a proof is wrong.

use super::Evaluation;
use crate::onnx::operator::Category;
use crate::onnx::proto::NodeProto;
use crate::prove::operators::resize_interpolated;
use crate::prove::operators::uninterpreted::MOST_LANES;

impl Evaluation<'_> {
    /// The degree of a node's result, from the degrees of its inputs. If the node was evaluated as
    /// an uninterpreted function (`guessed`), its result is random and usually of degree 1, and the
    /// degree of its inputs is added to the doubt. An ArgMax has a higher degree, because each
    /// index represents several random elements.
    pub(super) fn degree(&self, node: &NodeProto, inputs: &[f64], guessed: bool) -> f64 {
        if guessed {
            let reads = match node.op_type() {
                "DeformConv" | "GRU" | "LSTM" | "RNN" => inputs.iter().sum::<f64>().max(1.0),
                _ => inputs.iter().copied().fold(1.0, f64::max),
            };
            self.add_doubt(reads);
            return match node.op_type() {
                "ArgMax" | "ArgMin" => MOST_LANES as f64,
                // Here, Add and Mul compute with unknown integers.
                "Add" | "Mul" => inputs.iter().sum::<f64>().max(1.0),
                _ => 1.0,
            };
        }
        interpreted_degree(node, inputs)
    }
}

/// The degree of an interpreted operator's result.
fn interpreted_degree(node: &NodeProto, inputs: &[f64]) -> f64 {
    let (largest, sum) = (
        inputs.iter().copied().fold(0.0, f64::max),
        inputs.iter().sum(),
    );
    let of_random = if largest > 0.0 { 1.0 } else { 0.0 };
    match node.op_type() {
        // Extents do not depend on the random elements.
        "Shape" | "Size" => 0.0,
        "Mul" | "Where" => sum,
        "ReduceSumSquare" => 2.0 * largest,
        "Div" if inputs.get(1) == Some(&0.0) => largest,
        // The result of a root or a quotient counts as a random element, of degree 1.
        "Div" | "Reciprocal" | "Sqrt" | "ReduceL2" => of_random,
        "Pow" => 8.0 * largest,
        "Resize" | "Upsample" => largest + resize_interpolated::AXES as f64,
        _ => match node.category() {
            Some(Category::Normalizer) => of_random,
            Some(category) if category.is_product() => sum,
            _ if node.op_type() == "Einsum" => sum,
            _ => largest,
        },
    }
}
