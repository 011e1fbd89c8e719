//! Recognizes Dynamic Token Normalization by its formula, whatever the order and layout of its
//! operators.

use std::ops::Range;

use crate::affine::recognize::View;
use crate::affine::recognize::batch_invariant::Alike;
use crate::affine::recognize::formula::{Factor, Formula, Mixing, Quotient, Term, read};
use crate::affine::recognize::region::Region;
use crate::analysis::axis_factors::{AxisFactor, AxisFactors};
use crate::ir::{NodeId, ValueId};
use crate::recipe::Numbers;
use crate::refusal::Refusal;
use crate::shape::facts::extent;

/// A region of nodes, read as a Dynamic Token Normalization.
pub(super) struct Meaning {
    /// The quotient, in the layout of the input.
    pub output: ValueId,
    /// The nodes after the region that restore the layout of the input.
    pub moves: Vec<NodeId>,
    /// The formula of the quotient.
    pub normalized: Normalized,
    /// The weights `P` that mix the tokens, one matrix for each head: [heads, tokens, tokens].
    pub mixing: Numbers,
    /// The blocks of tokens that are averaged before `P`, if there are any.
    pub pooling: Option<Pooling>,
    /// The reason why the region cannot be replaced by other operators.
    pub refusal: Option<Refusal>,
    /// The number of tokens.
    pub tokens: usize,
    /// The number of channels.
    pub channels: usize,
}

/// A pooling of tokens: the average over a block represents all tokens of the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pooling {
    /// The number of blocks along the height and the width.
    pub blocks: [usize; 2],
    /// The number of tokens along the height and the width of a block.
    pub size: [usize; 2],
}

/// Reads a region. `None` if it is not a Dynamic Token Normalization of [batch, tokens, channels].
pub(super) fn interpret(view: &View, alike: &Alike, region: &Region) -> Option<Meaning> {
    let shape = view.facts.shape(region.input)?;
    let [_, tokens, channels] = &shape[..] else {
        return None;
    };
    let (tokens, channels) = (extent(tokens)?, extent(channels)?);
    let has_casts = region.nodes.iter().any(|&node| view.graph.is(node, "Cast"));
    (tokens > 1 && channels > 1 && !has_casts).then_some(())?;
    let mut quotient = read(view, alike, region)?;
    let (output, moves) = in_place(
        view,
        &mut quotient,
        view.graph.only_output(*region.nodes.last()?)?,
    )?;
    let Quotient {
        numerator,
        square,
        input,
        atoms,
        mixing: Some(mixing),
        refusal,
        ..
    } = quotient
    else {
        return None;
    };
    let (of_block, own): (Vec<AxisFactor>, Vec<AxisFactor>) = input[1]
        .iter()
        .partition(|atom| !mixing.along.contains(atom));
    (own == mixing.along).then_some(())?;
    let terms = Terms::new(&input[2], &of_block, &atoms);
    Some(Meaning {
        output,
        moves,
        normalized: Normalized::from_formula(&numerator, &square, &terms)?,
        pooling: pooling(&of_block, &input[1], &atoms)?,
        mixing: by_head(mixing, &input[2], &atoms)?,
        refusal,
        tokens,
        channels,
    })
}

/// Follows the quotient past movements until it has the layout of the input. Returns the value
/// there, and the movements. `None` if no value has this layout.
fn in_place(
    view: &View,
    quotient: &mut Quotient,
    mut output: ValueId,
) -> Option<(ValueId, Vec<NodeId>)> {
    let Quotient {
        atoms, axes, input, ..
    } = quotient;
    let mut moves = vec![];
    while !atoms.same(axes, input) {
        let node = view
            .only_reader(output)
            .filter(|&node| view.graph.is_movement(node))?;
        output = view.graph.only_output(node)?;
        *axes = atoms.moved(view.graph.node(node), axes, &view.facts.shape(output)?)?;
        moves.push(node);
    }
    *input = atoms.settled(input)?;
    Some((output, moves))
}

/// Returns one matrix for each head. `None` unless each matrix applies to an equal number of
/// consecutive channels.
fn by_head(mixing: Mixing, channels: &[AxisFactor], atoms: &AxisFactors) -> Option<Numbers> {
    let which = mixing.which.along(channels, atoms)?;
    let (heads, count) = (mixing.matrices.shape()[0], which.len());
    let mut matrices = which.iter().enumerate();
    let are_consecutive = count.is_multiple_of(heads)
        && matrices.all(|(channel, &which)| which == (channel / (count / heads)) as f64);
    are_consecutive.then_some(mixing.matrices)
}

/// The blocks of rows and columns of tokens that are averaged before `P`. The inner `None` means
/// that there is no average.
fn pooling(
    of_block: &[AxisFactor],
    tokens: &[AxisFactor],
    atoms: &AxisFactors,
) -> Option<Option<Pooling>> {
    if of_block.is_empty() {
        return Some(None);
    }
    // The extents alternate: the number of blocks along the height, the height of a block, then the
    // number along the width, and the width.
    let runs: Vec<&[AxisFactor]> = tokens
        .chunk_by(|a, b| of_block.contains(a) == of_block.contains(b))
        .collect();
    let extents: Vec<usize> = runs
        .iter()
        .map(|run| atoms.count(run))
        .collect::<Option<_>>()?;
    let leads = !of_block.contains(&tokens[0]);
    Some(match extents[..] {
        [y, dy, x, dx] if leads => Some(Pooling {
            blocks: [y, x],
            size: [dy, dx],
        }),
        [y, dy, x] if leads => Some(Pooling {
            blocks: [y, x],
            size: [dy, 1],
        }),
        [y, dy] if leads => Some(Pooling {
            blocks: [y, 1],
            size: [dy, 1],
        }),
        _ => return None,
    })
}

/// The terms of the formula, named as in Algorithm 1 of the DTN paper.
struct Terms<'t> {
    /// `x`.
    input: Term,
    /// `μ^ln`: the mean of `x` over the channels.
    mean: Term,
    /// The mean of `x ⊙ x` over the channels: `(σ²)^ln = mean_square − mean²`, equation (4).
    mean_square: Term,
    /// `P^h x^h`, where `h` is a head.
    inter: Term,
    /// `P^h (x^h ⊙ x^h)`.
    inter_square: Term,
    channels: &'t [AxisFactor],
    atoms: &'t AxisFactors,
}

impl<'t> Terms<'t> {
    /// Builds the terms. `x` is averaged over the tokens of a block before `P` is applied.
    fn new(channels: &'t [AxisFactor], of_block: &[AxisFactor], atoms: &'t AxisFactors) -> Self {
        let (x, square) = ([Factor::Input], [Factor::Input, Factor::Input]);
        Terms {
            input: x.to_vec(),
            mean: mean(channels, &x),
            mean_square: mean(channels, &square),
            inter: vec![Factor::Mixed(mean(of_block, &x))],
            inter_square: vec![Factor::Mixed(mean(of_block, &square))],
            channels,
            atoms,
        }
    }

    /// The coefficient of a term for each channel: [channels]. `None` if it varies along another
    /// axis.
    fn weight(&self, formula: &Formula, term: &[Factor]) -> Option<Numbers> {
        formula.coefficient(term)?.along(self.channels, self.atoms)
    }

    /// The weight of `mean_of_square − square_of_mean` for each channel. `None` if their
    /// coefficients are not opposite.
    fn weight_of_variance(
        &self,
        formula: &Formula,
        square_of_mean: &[Factor],
        mean_of_square: &[Factor],
    ) -> Option<Numbers> {
        let means = self.weight(formula, square_of_mean)?;
        let squares = self.weight(formula, mean_of_square)?;
        let mut pairs = means.iter().zip(squares.iter());
        let are_opposite = pairs.all(|(a, b)| (a + b).abs() <= 1e-12 * b.abs());
        are_opposite.then_some(squares)
    }
}

/// The mean of a product over the axes `over`. Without axes, the product itself.
fn mean(over: &[AxisFactor], product: &[Factor]) -> Term {
    match over {
        [] => product.to_vec(),
        _ => vec![Factor::Mean(
            over.iter().copied().collect(),
            product.to_vec(),
        )],
    }
}

/// Whether a formula has no terms other than `terms`.
fn has_only(formula: &Formula, terms: &[&Term]) -> Option<bool> {
    let formula = formula.spread()?;
    Some(formula.terms.keys().all(|term| terms.contains(&term)))
}

/// `(x − a·μ^ln − b·Px) / √(c·(σ²)^ln + d·(P(x⊙x) − Px⊙Px) + e)`, times `scale`: lines 10 to 13 of
/// Algorithm 1. Each weight is [channels], one scalar for each channel.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Normalized {
    /// The factor of the quotient.
    pub scale: Numbers,
    /// `a`, the weight of the mean over channels.
    pub intra_mean: Numbers,
    /// `b`, the weight of the mean over tokens.
    pub inter_mean: Numbers,
    /// `c`, the weight of the variance over channels.
    pub intra_variance: Numbers,
    /// `d`, the weight of the variance over tokens.
    pub inter_variance: Numbers,
    /// `e`, the epsilon that is added to the variance.
    pub epsilon: Numbers,
}

impl Normalized {
    /// Reads `numerator / √square`. `None` if it is not the formula of [`Normalized`], or if a
    /// weight is not valid.
    fn from_formula(numerator: &Formula, square: &Formula, terms: &Terms) -> Option<Self> {
        let Terms {
            input,
            mean,
            mean_square,
            inter,
            inter_square,
            ..
        } = terms;
        let (mean_twice, inter_twice) = ([&mean[..], mean].concat(), [&inter[..], inter].concat());
        let constant = vec![];
        let in_square = [
            &constant,
            mean_square,
            &mean_twice,
            inter_square,
            &inter_twice,
        ];
        let fits = has_only(numerator, &[input, mean, inter])? && has_only(square, &in_square)?;
        // The scale of the numerator may be 0 for a channel, so the weights are computed without
        // it.
        let inner = numerator.unscaled();
        let own = terms.weight(&inner, input)?;
        let scale = numerator.scale.along(terms.channels, terms.atoms)?;
        let normalized = Normalized {
            scale: &scale * &own,
            intra_mean: &-&terms.weight(&inner, mean)? / &own,
            inter_mean: &-&terms.weight(&inner, inter)? / &own,
            intra_variance: terms.weight_of_variance(square, &mean_twice, mean_square)?,
            inter_variance: terms.weight_of_variance(square, &inter_twice, inter_square)?,
            epsilon: terms.weight(square, &constant)?,
        };
        (fits && normalized.is_valid()).then_some(normalized)
    }

    /// Whether all weights are finite, those of variances are not negative, and epsilon is
    /// positive.
    fn is_valid(&self) -> bool {
        let weights = [&self.scale, &self.intra_mean, &self.inter_mean];
        let variances = [&self.intra_variance, &self.inter_variance];
        let mut weights = weights.iter().flat_map(|numbers| numbers.iter());
        let mut variances = variances.iter().flat_map(|numbers| numbers.iter());
        weights.all(|weight| weight.is_finite())
            && variances.all(|&weight| weight >= 0.0 && weight.is_finite())
            && self.epsilon.iter().all(|&e| e > 0.0 && e.is_finite())
    }

    /// Selects the weights of `channels`.
    pub(super) fn picked(&self, channels: &Range<usize>) -> Option<Self> {
        Some(Normalized {
            scale: self.scale.pick(0, channels.clone().map(Some))?,
            intra_mean: self.intra_mean.pick(0, channels.clone().map(Some))?,
            inter_mean: self.inter_mean.pick(0, channels.clone().map(Some))?,
            intra_variance: self.intra_variance.pick(0, channels.clone().map(Some))?,
            inter_variance: self.inter_variance.pick(0, channels.clone().map(Some))?,
            epsilon: self.epsilon.pick(0, channels.clone().map(Some))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affine::recognize::formula::Coefficient;
    use ndarray::arr1;
    use tract_onnx::tract_hir::internal::TDim;

    #[test]
    fn channel_with_gamma_zero_keeps_its_mean_coefficient() {
        let mut atoms = AxisFactors::default();
        let axes = atoms.axes(&vec![Some(TDim::from(2))]).unwrap();
        let gamma = Coefficient::new(
            &axes[0],
            &Numbers::literal(arr1(&[0.0, 3.0]).into_dyn()),
            &atoms,
        )
        .unwrap();
        let terms = Terms::new(&axes[0], &[], &atoms);
        let input = Formula::term(&terms.input, Coefficient::number(1.0));
        let mean = Formula::term(&terms.mean, Coefficient::number(-0.5));
        let numerator = input.plus(&mean).unwrap().scaled(&gamma).unwrap();
        let square = Formula::term(&[], Coefficient::number(1e-5));
        let normalized = Normalized::from_formula(&numerator, &square, &terms).unwrap();
        assert_eq!(*normalized.scale, arr1(&[0.0, 3.0]).into_dyn());
        assert_eq!(*normalized.intra_mean, arr1(&[0.5, 0.5]).into_dyn());
    }
}
