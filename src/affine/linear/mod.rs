//! Rules for linear operators, whose constants absorb affines.
//!
//! For `y = L(x) + b`, where `L` has a constant weight `W`, the rules implement Algorithm 1 of the
//! UN paper in its general form. An affine `(s, t)` on the operand gives `W' = W·diag(s)` and `b' =
//! b + L(t)`. An affine on the result gives `W' = diag(s)·W` and `b' = s·b + t`. A new operator
//! needs one file and one line in [`LINEAR`].

mod attention;
pub(crate) mod biased;
pub(crate) mod conv;
mod deform;
mod dequantized;
mod einsum;
pub(crate) mod elementwise;
mod fused;
mod gemm;
pub(crate) mod geometry;
mod granularity;
pub(crate) mod matmul;
mod quantized;
mod recurrent;
#[cfg(all(test, feature = "cli"))]
#[path = "../../../docs/examples/extending/affine/linear/transpose_matmul.rs"]
pub(crate) mod transpose_matmul;

use std::sync::LazyLock;

use crate::affine::Affine;
use crate::affine::rule::{At, Rule, Side, by_operator};
use crate::hash::HashMap;
use crate::recipe::{Numbers, Recipe};
use crate::refusal::Reason;

/// The rules of this folder.
pub(crate) const LINEAR: &[&dyn Linear] = &[
    &matmul::MatMul,
    &gemm::Gemm,
    &conv::Conv,
    &conv::ConvTranspose,
    &deform::DeformConv,
    &elementwise::Elementwise,
    &biased::Biased,
    &einsum::Einsum,
    &recurrent::Recurrent,
    &attention::Attention,
    &fused::FusedConv,
    &fused::FusedGemm,
    &quantized::DequantizeLinear,
    &quantized::MatMulNBits,
    &quantized::GatherBlockQuantized,
];

/// The indices of the inputs that hold the constants of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slots {
    /// The input with the weight, which the operator multiplies by its operand. `None` if the
    /// operator has no weight.
    pub weight: Option<usize>,
    /// The input with the bias. If the node lacks this input, a fold can give it a new constant
    /// there. `None` if the operator has no bias.
    pub bias: Option<usize>,
}

/// A linear operator, described by formulas for its constants.
pub(crate) trait Linear: Rule {
    /// Whether the operator is a layer: its result is linear in its input, and its rule passes an
    /// affine on without reading a constant.
    fn is_layer(&self) -> bool {
        true
    }

    /// The inputs that hold the constants.
    ///
    /// # Errors
    /// The node has no constant that can absorb an affine.
    fn slots(&self, at: &At) -> Result<Slots, Reason>;

    /// The weight after it absorbed a scale at `side`.
    ///
    /// # Errors
    /// The scale does not fit the weight.
    fn scaled(
        &self,
        at: &At,
        weight: &Recipe,
        side: Side,
        scale: &Numbers,
    ) -> Result<Recipe, Reason>;

    /// The axes of the weight over which the operator sums.
    ///
    /// # Errors
    /// The axes are unknown.
    fn contracted(&self, at: &At) -> Result<Vec<usize>, Reason>;

    /// Computes `L(t)`, the summand that a shift on the operand adds to the result or to the bias.
    /// It broadcasts over the shape of the result or of the bias.
    ///
    /// # Errors
    /// The summand cannot be computed.
    fn image(
        &self,
        at: &At,
        weight: Option<&Recipe>,
        operand: usize,
        shift: &Numbers,
    ) -> Result<Recipe, Reason>;

    /// The rank of the tensor that [`Linear::image`] returns.
    ///
    /// # Errors
    /// The rank is not known.
    fn bias_rank(&self, at: &At) -> Result<usize, Reason> {
        at.output_rank(0)
    }

    /// Converts the constant in the bias slot to a shape that broadcasts over the result.
    ///
    /// # Errors
    /// The bias of the node cannot be read.
    fn read_bias(&self, at: &At, bias: Recipe) -> Result<Recipe, Reason>;

    /// Converts a bias to the shape of its slot. `None` if the slot cannot hold the bias, so that
    /// an Add must hold it.
    fn write_bias(&self, at: &At, bias: &Recipe) -> Option<Recipe>;
}

/// Looks a linear operator up by its domain and its name. `None` if the operator is not in
/// [`LINEAR`].
pub(crate) fn linear(operator: (&str, &str)) -> Option<&'static dyn Linear> {
    static BY_OPERATOR: LazyLock<HashMap<(&str, &str), &dyn Linear>> =
        LazyLock::new(|| by_operator(LINEAR.iter().copied()));
    BY_OPERATOR.get(&operator).copied()
}

/// Checks that a node can absorb an affine from a side, as far as this is known without the
/// elements of its constants.
///
/// # Errors
/// The reason why its constants cannot be read, or cannot hold the affine.
pub(crate) fn check(at: &At, side: Side, affine: &Affine) -> Result<(), Reason> {
    if let Side::Constant(slot) = side {
        return check_constant(at, slot, affine);
    }
    let linear = linear(at.graph.domain_op(at.node)).ok_or_else(|| at.not_linear())?;
    let slots = linear.slots(at)?;
    if !affine.has_no_shift() {
        linear.bias_rank(at)?;
    }
    for slot in slots.weight.into_iter().chain(slots.bias) {
        if at.graph.input(at.node, slot).is_some() {
            check_readable(at, slot)?;
        }
    }
    Ok(())
}

/// Checks that an affine can be applied to a constant itself without a change of the constant's
/// shape.
fn check_constant(at: &At, slot: usize, affine: &Affine) -> Result<(), Reason> {
    at.weight(slot)?;
    check_readable(at, slot)?;
    let extents = at.extents(slot)?;
    // A Where broadcasts a scalar constant, which may therefore take the shape of the affine.
    let is_one = at.graph.is(at.node, "Where") && extents.iter().product::<usize>() == 1;
    let fits = broadcasts_to(affine.scale.shape(), &extents)
        && broadcasts_to(affine.shift.shape(), &extents);
    if is_one || fits {
        Ok(())
    } else {
        Err(Reason::WrongAxis)
    }
}

fn check_readable(at: &At, slot: usize) -> Result<(), Reason> {
    let checked = at.constants.check(at.input(slot)?);
    checked.map_err(|refusal| refusal.reason)
}

/// Whether a shape broadcasts to another shape of equal rank.
fn broadcasts_to(shape: &[usize], whole: &[usize]) -> bool {
    let mut pairs = shape.iter().zip(whole);
    shape.len() == whole.len() && pairs.all(|(&extent, &whole)| extent == 1 || extent == whole)
}

/// Refuses an affine that varies along an axis that is not in `axes`.
pub(crate) fn only_along(affine: &Affine, axes: &[usize]) -> Result<(), Reason> {
    match affine.axes().iter().all(|axis| axes.contains(axis)) {
        true => Ok(()),
        false => Err(Reason::WrongAxis),
    }
}

/// Refuses an affine that varies along an axis other than `axis`, or whose extent along `axis` is
/// neither 1 nor `channels`.
fn check_channels(affine: &Affine, axis: usize, channels: usize) -> Result<(), Reason> {
    only_along(affine, &[axis])?;
    let extents = [affine.scale.shape()[axis], affine.shift.shape()[axis]];
    if extents
        .iter()
        .all(|&extent| extent == 1 || extent == channels)
    {
        Ok(())
    } else {
        Err(Reason::WrongAxis)
    }
}

/// The attributes of a fused activation. A fold does not depend on them, because it changes only
/// the weight and the bias before the activation.
const ACTIVATION: &[&str] = &[
    "activation",
    "activation_alpha",
    "activation_beta",
    "activation_gamma",
    "activation_params",
];

/// The attributes that a node may have: `own`, and those of an activation if the operator is of
/// com.microsoft.
fn known_attributes<'n>(at: &At, own: &[&'n str]) -> Vec<&'n str> {
    let is_fused = at.graph.domain_op(at.node).0 == "com.microsoft";
    own.iter()
        .chain(ACTIVATION.iter().filter(|_| is_fused))
        .copied()
        .collect()
}
