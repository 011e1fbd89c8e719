//! Rules for linear operators, whose constants absorb affines.
//!
//! For `y = L(x) + b` with a constant weight `W` behind `L`, Algorithm 1 of the UN paper in general
//! form: an affine `(s, t)` on the operand gives `W' = W·diag(s)`, `b' = b + L(t)`, and one on the
//! result gives `W' = diag(s)·W`, `b' = s·b + t`. A new operator is one file, and one line in
//! [`LINEAR`].

mod attention;
pub mod biased;
pub mod conv;
mod deform;
mod einsum;
pub(crate) mod elementwise;
mod fused;
mod gemm;
pub(crate) mod geometry;
pub(crate) mod matmul;
mod recurrent;

use std::sync::LazyLock;

use crate::affine::Affine;
use crate::affine::fold::{At, Rule, Side, by_operator};
use crate::hash::HashMap;
use crate::recipe::{Numbers, Recipe};
use crate::refusal::Reason;

/// The operators of this folder.
pub const LINEAR: &[&dyn Linear] = &[
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
];

/// The inputs that hold the constants of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    /// The input that multiplies, if there is one.
    pub weight: Option<usize>,
    /// The input that is added. It may be absent; then a constant can be added there.
    pub bias: Option<usize>,
}

/// A linear operator as formulas for its constants.
pub trait Linear: Rule {
    /// Whether its result is linear in its input, and no rule reads its constant while an affine
    /// passes.
    fn is_layer(&self) -> bool {
        true
    }

    /// The slots of the constants.
    ///
    /// # Errors
    /// Where the node has no constant that can absorb an affine.
    fn slots(&self, at: &At) -> Result<Slots, Reason>;

    /// The weight after an affine's scale came in at `side`.
    ///
    /// # Errors
    /// Where the scale does not fit the weight.
    fn scaled(
        &self,
        at: &At,
        weight: &Recipe,
        side: Side,
        scale: &Numbers,
    ) -> Result<Recipe, Reason>;

    /// The axes of the weight that the product contracts.
    ///
    /// # Errors
    /// Where they are unknown.
    fn contracted(&self, at: &At) -> Result<Vec<usize>, Reason>;

    /// `L(t)`: the summand of the result, broadcast over its shape, that a shift on the operand makes; or the summand of the biases.
    ///
    /// # Errors
    /// Where it cannot be computed.
    fn image(
        &self,
        at: &At,
        weight: Option<&Recipe>,
        operand: usize,
        shift: &Numbers,
    ) -> Result<Recipe, Reason>;

    /// The rank of [`Linear::image`].
    ///
    /// # Errors
    /// Where it is not known.
    fn bias_rank(&self, at: &At) -> Result<usize, Reason> {
        at.output_rank(0)
    }

    /// The constant in the bias slot, in a shape that broadcasts over the result.
    ///
    /// # Errors
    /// Where the node does not allow its bias to be read.
    fn read_bias(&self, at: &At, bias: Recipe) -> Result<Recipe, Reason>;

    /// A bias in the shape of its slot; `None` where the slot cannot hold it, so that an Add must.
    fn write_bias(&self, at: &At, bias: &Recipe) -> Option<Recipe>;
}

/// The rule of a linear operator, by its domain and its name.
pub fn linear(operator: (&str, &str)) -> Option<&'static dyn Linear> {
    static BY_OPERATOR: LazyLock<HashMap<(&str, &str), &dyn Linear>> =
        LazyLock::new(|| by_operator(LINEAR.iter().copied()));
    BY_OPERATOR.get(&operator).copied()
}

/// Checks that a node can absorb an affine from a side, as far as that is known without the numbers.
///
/// # Errors
/// The reason for which its constants cannot hold the affine, or cannot be read.
pub fn check(at: &At, side: Side, affine: &Affine) -> Result<(), Reason> {
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

/// Whether a constant itself can absorb an affine.
fn check_constant(at: &At, slot: usize, affine: &Affine) -> Result<(), Reason> {
    at.weight(slot)?;
    check_readable(at, slot)?;
    let extents = at.extents(slot)?;
    // Where broadcasts its scalars anyway.
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

/// Whether a shape broadcasts to another one of equal rank.
fn broadcasts_to(shape: &[usize], whole: &[usize]) -> bool {
    let mut pairs = shape.iter().zip(whole);
    shape.len() == whole.len() && pairs.all(|(&extent, &whole)| extent == 1 || extent == whole)
}

/// Refuses an affine that varies along an axis besides those listed.
pub(crate) fn only_along(affine: &Affine, axes: &[usize]) -> Result<(), Reason> {
    match affine.axes().iter().all(|axis| axes.contains(axis)) {
        true => Ok(()),
        false => Err(Reason::WrongAxis),
    }
}

/// Refuses an affine that varies along an axis besides the channels, or does not have as many channels.
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

/// Attributes about the activation of fused operators, which do not concern the input.
const ACTIVATION: &[&str] = &[
    "activation",
    "activation_alpha",
    "activation_beta",
    "activation_gamma",
    "activation_params",
];

/// The attributes that an operator may have, fused or not.
fn known_attributes<'n>(at: &At, own: &[&'n str]) -> Vec<&'n str> {
    let is_fused = at.graph.domain_op(at.node).0 == "com.microsoft";
    own.iter()
        .chain(ACTIVATION.iter().filter(|_| is_fused))
        .copied()
        .collect()
}
