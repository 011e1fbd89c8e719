//! DequantizeLinear, and MatMulNBits and GatherBlockQuantized of com.microsoft: codes with scales.
//!
//! The result `(code − zero)·scale` is linear in the scales, so they absorb a factor, and no code
//! changes. The factor may differ only between elements that have different scales.

use crate::affine::Affine;
use crate::affine::linear::granularity::{WHOLE, by_group};
use crate::affine::linear::{Linear, Slots, only_along};
use crate::affine::rule::{At, Rule, Side, Step};
use crate::ir::axes::axis;
use crate::recipe::{Numbers, Recipe};
use crate::refusal::Reason;

/// DequantizeLinear: one scale for all elements, for each place along an axis, or for each block
/// along an axis.
pub(super) struct DequantizeLinear;

/// MatMulNBits: the matrix product with a quantized weight `[N, K]`, with one scale for each block
/// along K.
pub(super) struct MatMulNBits;

/// GatherBlockQuantized: rows of a quantized table, with one scale for each block along an axis.
pub(super) struct GatherBlockQuantized;

/// An operator without a bias, which returns codes times scales.
trait ScaledCodes: Rule {
    /// The index of the input that holds the scales.
    const SCALES: usize;

    /// Multiplies the scales by factors of the result.
    ///
    /// # Errors
    /// The factors differ between elements that share a scale.
    fn multiply(&self, at: &At, scales: &Recipe, factors: &Numbers) -> Result<Recipe, Reason>;
}

impl<T: ScaledCodes> Linear for T {
    fn slots(&self, at: &At) -> Result<Slots, Reason> {
        scales_in(at, T::SCALES, None)
    }

    fn scaled(
        &self,
        at: &At,
        scales: &Recipe,
        _: Side,
        factors: &Numbers,
    ) -> Result<Recipe, Reason> {
        self.multiply(at, scales, factors)
    }

    fn contracted(&self, _: &At) -> Result<Vec<usize>, Reason> {
        Ok(vec![])
    }

    fn image(&self, _: &At, _: Option<&Recipe>, _: usize, _: &Numbers) -> Result<Recipe, Reason> {
        Err(Reason::Quantized)
    }

    fn read_bias(&self, _: &At, _: Recipe) -> Result<Recipe, Reason> {
        Err(Reason::Quantized)
    }

    fn write_bias(&self, _: &At, _: &Recipe) -> Option<Recipe> {
        None
    }
}

impl Rule for DequantizeLinear {
    fn ops(&self) -> &'static [&'static str] {
        &["DequantizeLinear", "com.microsoft.DequantizeLinear"]
    }

    fn forward(&self, _: &At, _: &[Option<Affine>]) -> Result<Step, Reason> {
        Err(Reason::Quantized)
    }

    /// If the codes are computed, only powers of two fold: any other factor rounds the scales, so a
    /// QuantizeLinear after the node could compute another code. If the codes are constant, any
    /// factor folds, because the elements of a quantized weight are rounded anyway.
    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        let is_exact = at.is_constant(0) || affine.is_only_exponents();
        if !affine.has_no_shift() || !is_exact {
            return Err(Reason::Quantized);
        }
        by_group(&affine.scale, &self.groups(at)?)?;
        Ok(Step::taken(Side::Result, affine.clone()))
    }
}

impl DequantizeLinear {
    /// The number of consecutive elements that share a scale, along each axis.
    fn groups(&self, at: &At) -> Result<Vec<usize>, Reason> {
        at.only_attributes(&["axis", "block_size", "output_dtype"])?;
        let (rank, scales) = (at.output_rank(0)?, at.extents(1)?);
        if scales.iter().product::<usize>() == 1 {
            return Ok(vec![WHOLE; rank]);
        }
        let along = axis(at.attr("axis", 1)?, rank)?;
        let block = match at.attr("block_size", 0)? {
            0 => None,
            size => Some(usize::try_from(size).map_err(|_| attribute("block_size"))?),
        };
        let expected = if block.is_some() { rank } else { 1 };
        if scales.len() != expected {
            return Err(Reason::UnknownShape);
        }
        let mut groups = vec![if block.is_some() { 1 } else { WHOLE }; rank];
        groups[along] = block.unwrap_or(1);
        Ok(groups)
    }
}

impl ScaledCodes for DequantizeLinear {
    const SCALES: usize = 1;

    fn multiply(&self, at: &At, scales: &Recipe, factors: &Numbers) -> Result<Recipe, Reason> {
        let factors = by_group(factors, &self.groups(at)?)?;
        let shape = match scales.rank() {
            0 | 1 => vec![factors.len(); scales.rank()],
            _ => factors
                .align(scales.rank())
                .ok_or(Reason::UnknownShape)?
                .shape()
                .to_vec(),
        };
        multiplied(scales, &factors, &shape)
    }
}

/// The inputs of MatMulNBits that hold the bias and, for each place along K, the index of its
/// block.
const BIAS: usize = 5;
const BLOCK_OF_PLACE: usize = 4;

impl Rule for MatMulNBits {
    fn ops(&self) -> &'static [&'static str] {
        &["com.microsoft.MatMulNBits"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let affine = at.only(inputs, 0)?;
        let layout = WeightBlocks::of(at)?;
        layout.factors_of_operand(at, &affine.scale)?;
        if affine.has_no_shift() {
            Ok(Step::taken(Side::Operand(0), affine.clone()))
        } else {
            Err(Reason::Quantized)
        }
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        WeightBlocks::of(at)?;
        only_along(affine, &[affine.rank().saturating_sub(1)])?;
        if at.graph.input(at.node, BIAS).is_some() {
            at.weight(BIAS)?;
        }
        Ok(Step::taken(Side::Result, affine.clone()))
    }
}

/// The extents of the weight of a MatMulNBits.
struct WeightBlocks {
    /// The number of channels of the result.
    outputs: usize,
    /// The number of blocks along K of each channel.
    blocks: usize,
    /// The number of places along K in a block.
    size: usize,
}

impl WeightBlocks {
    fn of(at: &At) -> Result<Self, Reason> {
        at.only_attributes(&["K", "N", "accuracy_level", "bits", "block_size"])?;
        let [outputs, inputs, size] = [
            positive(at, "N")?,
            positive(at, "K")?,
            positive(at, "block_size")?,
        ];
        let blocks = inputs.div_ceil(size);
        let scales: usize = at.extents(2)?.iter().product();
        if Some(scales) != outputs.checked_mul(blocks) {
            return Err(Reason::UnknownShape);
        }
        Ok(WeightBlocks {
            outputs,
            blocks,
            size,
        })
    }

    /// Returns the factor of each block along K. An error if a scale of the operand differs within
    /// a block.
    fn factors_of_operand(&self, at: &At, scale: &Numbers) -> Result<Numbers, Reason> {
        let last = scale.ndim().checked_sub(1).ok_or(Reason::WrongAxis)?;
        only_along(&Affine::scale(scale.clone()), &[last])?;
        let is_permuted = at.graph.input(at.node, BLOCK_OF_PLACE).is_some();
        if is_permuted && scale.len() > 1 {
            return Err(Reason::Granularity);
        }
        let mut groups = vec![1; scale.ndim()];
        groups[last] = self.size;
        by_group(scale, &groups)
    }
}

impl Linear for MatMulNBits {
    fn slots(&self, at: &At) -> Result<Slots, Reason> {
        let bias = at.graph.input(at.node, BIAS).map(|_| BIAS);
        scales_in(at, 2, bias)
    }

    fn scaled(
        &self,
        at: &At,
        scales: &Recipe,
        side: Side,
        factors: &Numbers,
    ) -> Result<Recipe, Reason> {
        let layout = WeightBlocks::of(at)?;
        let matrix = scales
            .reshape(&[layout.outputs, layout.blocks])
            .ok_or(Reason::UnknownShape)?;
        let scaled = match side {
            Side::Operand(_) => {
                let factors = layout.factors_of_operand(at, factors)?;
                multiplied(&matrix, &factors, &[1, factors.len()])
            }
            _ => multiplied(&matrix, factors, &[factors.len(), 1]),
        };
        scaled?.reshape(scales.shape()).ok_or(Reason::UnknownShape)
    }

    fn contracted(&self, _: &At) -> Result<Vec<usize>, Reason> {
        Ok(vec![])
    }

    fn image(&self, _: &At, _: Option<&Recipe>, _: usize, _: &Numbers) -> Result<Recipe, Reason> {
        Err(Reason::Quantized)
    }

    fn read_bias(&self, at: &At, bias: Recipe) -> Result<Recipe, Reason> {
        bias.align(at.output_rank(0)?).ok_or(Reason::UnknownShape)
    }

    /// Converts a bias to shape `[N]`. `None` if it varies along an axis other than the last.
    fn write_bias(&self, at: &At, bias: &Recipe) -> Option<Recipe> {
        let outputs = WeightBlocks::of(at).ok()?.outputs;
        let last = bias.shape().last().copied()?;
        (last == bias.len()).then(|| bias.reshape(&[last])?.expand(&[outputs]))?
    }
}

impl Rule for GatherBlockQuantized {
    fn ops(&self) -> &'static [&'static str] {
        &["com.microsoft.GatherBlockQuantized"]
    }

    fn forward(&self, _: &At, _: &[Option<Affine>]) -> Result<Step, Reason> {
        Err(Reason::Quantized)
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        if !affine.has_no_shift() {
            return Err(Reason::Quantized);
        }
        self.factors(at, &affine.scale)?;
        Ok(Step::taken(Side::Result, affine.clone()))
    }
}

impl GatherBlockQuantized {
    /// Converts factors of a result to factors of the scales. An error if the factors differ
    /// between the gathered rows, or within a block.
    fn factors(&self, at: &At, scale: &Numbers) -> Result<Numbers, Reason> {
        at.only_attributes(&["bits", "block_size", "gather_axis", "quantize_axis"])?;
        let (rank, indices) = (at.rank(0)?, at.rank(1)?);
        let gathered = axis(at.attr("gather_axis", 0)?, rank)?;
        let quantized = axis(at.attr("quantize_axis", 1)?, rank)?;
        let block = usize::try_from(at.attr("block_size", 128)?);
        let block = block.ok().filter(|&block| block > 0);
        let block = block.ok_or_else(|| attribute("block_size"))?;
        if scale.ndim() + 1 != rank + indices || at.extents(2)?.len() != rank {
            return Err(Reason::UnknownShape);
        }
        let behind = gathered + indices;
        if scale.shape()[gathered..behind]
            .iter()
            .any(|&extent| extent != 1)
        {
            return Err(Reason::WrongAxis);
        }
        let shape = [&scale.shape()[..gathered], &[1], &scale.shape()[behind..]].concat();
        let mut groups = vec![1; rank];
        groups[quantized] = block;
        by_group(&scale.reshape(&shape).ok_or(Reason::UnknownShape)?, &groups)
    }
}

impl ScaledCodes for GatherBlockQuantized {
    const SCALES: usize = 2;

    fn multiply(&self, at: &At, scales: &Recipe, factors: &Numbers) -> Result<Recipe, Reason> {
        let factors = self.factors(at, factors)?;
        multiplied(scales, &factors, factors.shape())
    }
}

/// The slots of an operator with scales as the weight. An error if the scales are not constant.
fn scales_in(at: &At, scales: usize, bias: Option<usize>) -> Result<Slots, Reason> {
    at.weight(scales)?;
    Ok(Slots {
        weight: Some(scales),
        bias,
    })
}

/// Multiplies scales by factors, which are reshaped to `shape` and broadcast over the scales.
fn multiplied(scales: &Recipe, factors: &Numbers, shape: &[usize]) -> Result<Recipe, Reason> {
    let factors = factors.recipe().reshape(shape);
    let scaled = factors.and_then(|factors| scales.mul(&factors));
    scaled
        .filter(|scaled| scaled.shape() == scales.shape())
        .ok_or(Reason::WrongAxis)
}

/// An integer attribute that must be positive.
fn positive(at: &At, name: &str) -> Result<usize, Reason> {
    let value = usize::try_from(at.attr(name, 0)?);
    value
        .ok()
        .filter(|&value| value > 0)
        .ok_or_else(|| attribute(name))
}

fn attribute(name: &str) -> Reason {
    Reason::Attribute(name.into())
}
