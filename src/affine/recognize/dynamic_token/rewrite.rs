//! Writes the operators that compute a site with the least work. The functions that write constants
//! return `None` if an element is not finite in float32.
//!
//! Channels whose heads blend their statistics in the same way are computed together. If a head
//! blends both statistics, the quotient is scaled so that the statistics of a token have weight 1.
//! Let `μ` and `v` be the mean and the variance of the token, `q = Px`, `r = P(x ⊙ x)`, and `a` to
//! `e` the weights of `Normalized`:
//!
//! ```text
//! (x − a·μ − b·q) / √(c·v + d·(r − q²) + e)
//!     = a/√c · (x/a − b/a·q − μ) / √(d/c·(r − q²) + e/c + v)
//! ```
//!
//! All other weights on the right are constants along the channels, and the factor in front joins
//! γ. The rewritten form has no more subtractions than the definition.

use std::ops::Range;

use ndarray::Axis;

use crate::affine::recognize::dynamic_token::interpret::{Meaning, Normalized, Pooling};
use crate::ir::builder::{Maker, NewConstant, float, int};
use crate::ir::{Graph, NodeId};
use crate::onnx::operator::LAYER_NORMALIZATION;
use crate::onnx::proto::NodeProto;
use crate::onnx::tensor::DataType;
use crate::recipe::{Numbers, Op, Recipe};

/// The permutation from [batch, tokens, heads, channels] to [batch, heads, tokens, channels], and
/// back.
const BY_HEAD: &[i64] = &[0, 2, 1, 3];

/// Entries of `P` below this limit count as 0. Weights of distant tokens and partial sums can be
/// subnormal in float32, and processors compute many times more slowly with subnormal numbers.
const NEGLIGIBLE: f64 = 1.0 / (1u128 << 100) as f64;

/// The way in which a head blends the statistics of a token with those of its neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blend {
    /// λ = 1: only the statistics of the token. This is LN.
    Intra,
    /// λ = 0: only the statistics of the neighbours.
    Inter,
    /// λ = 0, and all tokens have equal weights. This is IN.
    Uniform,
    /// The statistics of the token and of the neighbours.
    Both,
}

/// The new operators of a site.
pub(super) struct Rewritten {
    /// The nodes. The last one computes [`Place::output`].
    pub made: Vec<NodeProto>,
    /// Their constants.
    pub constants: Vec<NewConstant>,
    /// The factor of the result for each channel: [channels].
    pub scale: Numbers,
}

/// The place of the new operators in the graph.
pub(super) struct Place<'t> {
    /// The value that the new operators read.
    pub input: &'t str,
    /// The value that the new operators compute.
    pub output: &'t str,
    /// A node of the site, from which the new operators take their metadata and the beginning of
    /// their names.
    pub like: NodeId,
    /// Whether the new operators multiply by [`Rewritten::scale`] themselves.
    pub scaled: bool,
}

/// Writes the operators of a site. `None` if the channels of one head blend differently, or if a
/// constant is not finite.
pub(super) fn rewrite(graph: &Graph, meaning: &Meaning, place: &Place) -> Option<Rewritten> {
    let maker = Maker::new(graph, place.like);
    let mut job = Job {
        maker,
        meaning,
        input: place.input,
        mean: None,
        variance: None,
    };
    let runs = job.runs()?;
    let (mut parts, mut scales) = (vec![], vec![]);
    for (run, blend) in &runs {
        let (part, scale) = job.run(run.clone(), *blend, runs.len() == 1)?;
        parts.push(part);
        scales.push(scale);
    }
    let scale = Numbers::concat(0, &scales)?;
    let mut result = parts.first()?.clone();
    if parts.len() > 1 {
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        result = job.maker.op("Concat", &parts, vec![int("axis", 2)]);
    }
    if place.scaled {
        times(&mut job.maker, &result, &scale)?;
    }
    let (made, constants) = job.maker.finish(place.output);
    scale.iter().all(|c| c.is_finite()).then_some(Rewritten {
        made,
        constants,
        scale,
    })
}

struct Job<'j> {
    maker: Maker<'j>,
    meaning: &'j Meaning,
    input: &'j str,
    mean: Option<String>,
    variance: Option<String>,
}

impl Job<'_> {
    fn head(&self, channel: usize) -> usize {
        channel * self.meaning.mixing.shape()[0] / self.meaning.channels
    }

    /// Splits the channels into runs of equal [`Blend`]. `None` if a channel has no such blend, or
    /// if a run ends within a head.
    fn runs(&self) -> Option<Vec<(Range<usize>, Blend)>> {
        let mut runs: Vec<(Range<usize>, Blend)> = vec![];
        for channel in 0..self.meaning.channels {
            let blend = self.blend(channel)?;
            match runs.last_mut() {
                Some((run, same)) if *same == blend => run.end = channel + 1,
                Some((run, _)) if self.head(run.end - 1) == self.head(channel) => return None,
                _ => runs.push((channel..channel + 1, blend)),
            }
        }
        Some(runs)
    }

    fn blend(&self, channel: usize) -> Option<Blend> {
        let n = &self.meaning.normalized;
        let intra = (n.intra_mean[[channel]], n.intra_variance[[channel]]);
        let inter = (n.inter_mean[[channel]], n.inter_variance[[channel]]);
        if intra.0 > 0.0 && intra.1 > 0.0 && inter != (0.0, 0.0) {
            return Some(Blend::Both);
        }
        if intra == (0.0, 0.0) && inter.1 > 0.0 {
            let is_plain = inter.0 == 1.0
                && self.meaning.pooling.is_none()
                && self.is_uniform(self.head(channel))?;
            return Some(if is_plain {
                Blend::Uniform
            } else {
                Blend::Inter
            });
        }
        (intra.0 == 1.0 && intra.1 > 0.0 && inter == (0.0, 0.0)).then_some(Blend::Intra)
    }

    /// Whether all tokens have exactly equal weights in a head. If the reciprocal of the number of
    /// tokens is not a float, the weights count as equal only if a Softmax computes them. `None` if
    /// the weights differ but would be equal once they are stored, because a later run of unfold
    /// would read them as a mean.
    fn is_uniform(&self, head: usize) -> Option<bool> {
        let mixing = &self.meaning.mixing;
        let tokens = mixing.shape()[2];
        let share = 1.0 / tokens as f64;
        let weights = mixing.index_axis(Axis(0), head);
        let is_float = tokens.is_power_of_two();
        if weights.iter().all(|&weight| weight == share) {
            return Some(is_float || are_shares(mixing.recipe(), tokens));
        }
        let stored = weights
            .iter()
            .all(|&weight| f64::from(weight as f32) == share);
        (!stored).then_some(false)
    }

    /// Normalizes a run of channels. Returns the result, and the factor [channels of the run] that
    /// remains.
    fn run(
        &mut self,
        run: Range<usize>,
        blend: Blend,
        is_whole: bool,
    ) -> Option<(String, Numbers)> {
        let weights = self.meaning.normalized.picked(&run)?;
        let own = match blend {
            Blend::Intra | Blend::Both => &weights.intra_variance,
            Blend::Inter | Blend::Uniform => &weights.inter_variance,
        };
        let epsilon = &weights.epsilon / own;
        let mean = match blend {
            Blend::Both => weights.intra_mean.clone(),
            _ => Numbers::number(1.0, 1),
        };
        let scale = &weights.scale * &(&mean / &own.sqrt());
        if is_whole && blend == Blend::Intra && self.has_operator_for(&epsilon) {
            return Some((self.layer_normalization(run.len(), &epsilon)?, scale));
        }
        let x = match is_whole {
            true => self.input.to_owned(),
            false => self.maker.slice(self.input, &run, 2),
        };
        let (numerator, variance) = match blend {
            Blend::Intra => {
                let (mean, variance) = self.intra();
                (
                    self.maker.op("Sub", &[&x, &mean], vec![]),
                    plus(&mut self.maker, &variance, &epsilon)?,
                )
            }
            Blend::Uniform => self.uniform(&x, &epsilon)?,
            Blend::Inter => {
                let (mean, variance) = self.inter(&x, &run, &weights.inter_mean, None, &epsilon)?;
                (self.maker.op("Sub", &[&x, &mean], vec![]), variance)
            }
            Blend::Both => self.both(&x, &run, &weights, &epsilon)?,
        };
        let root = self.maker.op("Sqrt", &[&variance], vec![]);
        Some((self.maker.op("Div", &[&numerator, &root], vec![]), scale))
    }

    /// Whether the operator set has a LayerNormalization, and all channels have the same epsilon,
    /// so that this epsilon can be the attribute of the operator.
    fn has_operator_for(&self, epsilon: &Numbers) -> bool {
        let first = epsilon.first();
        let is_one = epsilon.iter().all(|e| Some(e) == first);
        is_one && self.maker.opset() >= LAYER_NORMALIZATION
    }

    /// Writes one LayerNormalization over all channels.
    fn layer_normalization(&mut self, channels: usize, epsilon: &Numbers) -> Option<String> {
        let epsilon = *epsilon.first()? as f32;
        let ones = Numbers::number(1.0, 1).expand(&[channels])?;
        let ones = floats(&mut self.maker, &ones)?;
        let attributes = vec![int("axis", -1), float("epsilon", epsilon)];
        let inputs = [self.input, &ones];
        Some(self.maker.op("LayerNormalization", &inputs, attributes))
    }

    /// Writes numerator and variance with the statistics of all tokens.
    fn uniform(&mut self, x: &str, epsilon: &Numbers) -> Option<(String, String)> {
        let mean = self.maker.mean(x, &[1], true);
        let centred = self.maker.op("Sub", &[x, &mean], vec![]);
        let square = self.maker.op("Mul", &[&centred, &centred], vec![]);
        let variance = self.maker.mean(&square, &[1], true);
        let variance = plus(&mut self.maker, &variance, epsilon)?;
        Some((centred, variance))
    }

    /// Writes numerator and variance with the statistics of the token and of its neighbours, scaled
    /// so that the statistics of the token have weight 1.
    fn both(
        &mut self,
        x: &str,
        run: &Range<usize>,
        weights: &Normalized,
        epsilon: &Numbers,
    ) -> Option<(String, String)> {
        let own_share = &Numbers::number(1.0, 1) / &weights.intra_mean;
        let inter_mean = &weights.inter_mean / &weights.intra_mean;
        let inter_variance = &weights.inter_variance / &weights.intra_variance;
        let (mean, variance) = self.intra();
        let (inter, blended) = self.inter(x, run, &inter_mean, Some(&inter_variance), epsilon)?;
        let scaled = times(&mut self.maker, x, &own_share)?;
        let less = self.maker.op("Sub", &[&scaled, &inter], vec![]);
        let numerator = self.maker.op("Sub", &[&less, &mean], vec![]);
        let variance = self.maker.op("Add", &[&blended, &variance], vec![]);
        Some((numerator, variance))
    }

    /// Writes `μ^ln` and `(σ²)^ln`, equation (4), once for all heads.
    fn intra(&mut self) -> (String, String) {
        let input = self.input.to_owned();
        let maker = &mut self.maker;
        let mean = self
            .mean
            .get_or_insert_with(|| maker.mean(&input, &[2], true))
            .clone();
        let variance = self.variance.get_or_insert_with(|| {
            let centred = maker.op("Sub", &[&input, &mean], vec![]);
            let square = maker.op("Mul", &[&centred, &centred], vec![]);
            maker.mean(&square, &[2], true)
        });
        (mean, variance.clone())
    }

    /// Writes `mean·q` and `variance·(r − q²) + epsilon`, with a weight for each channel. If
    /// `variance` is `None`, the factor of the second term is 1.
    fn inter(
        &mut self,
        x: &str,
        run: &Range<usize>,
        mean: &Numbers,
        variance: Option<&Numbers>,
        epsilon: &Numbers,
    ) -> Option<(String, String)> {
        let (q, r) = self.products(x, run)?;
        let square = self.maker.op("Mul", &[&q, &q], vec![]);
        let mut spread = self.maker.op("Sub", &[&r, &square], vec![]);
        if let Some(weights) = variance {
            spread = times(&mut self.maker, &spread, weights)?;
        }
        let spread = plus(&mut self.maker, &spread, epsilon)?;
        let mean = times(&mut self.maker, &q, mean)?;
        Some((
            self.widened(&mean, run.len()),
            self.widened(&spread, run.len()),
        ))
    }

    /// Writes `Px` and `P(x ⊙ x)` for the heads of a run as one matrix product.
    fn products(&mut self, x: &str, run: &Range<usize>) -> Option<(String, String)> {
        let heads = self.head(run.start)..self.head(run.end - 1) + 1;
        let weights = self
            .meaning
            .mixing
            .pick(0, heads.clone().map(Some))?
            .flushed(NEGLIGIBLE);
        let (heads, tokens, channels) = (heads.len(), weights.shape()[1], run.len());
        let shape: &[usize] = if heads == 1 {
            &[tokens, tokens]
        } else {
            &[heads, tokens, tokens]
        };
        let matrix = floats(&mut self.maker, &weights.reshape(shape)?)?;
        let by_head = extents([0, tokens, heads, channels / heads]);
        let maker = &mut self.maker;
        let (one, two) = match self.meaning.pooling {
            None => {
                let one = split_heads(maker, x, &by_head);
                let two = maker.op("Mul", &[&one, &one], vec![]);
                (one, two)
            }
            Some(pooling) => {
                let square = maker.op("Mul", &[x, x], vec![]);
                let [one, two] = [x, &square].map(|value| pool(maker, value, pooling, channels));
                (
                    split_heads(maker, &one, &by_head),
                    split_heads(maker, &two, &by_head),
                )
            }
        };
        let last = if heads == 1 { 2 } else { 3 };
        let both = maker.op("Concat", &[&one, &two], vec![int("axis", last)]);
        let mut product = maker.op("MatMul", &[&matrix, &both], vec![]);
        if heads > 1 {
            product = maker.transpose(&product, BY_HEAD);
        }
        let half = (channels / heads) as i64;
        let [q, r] = maker.split(&product, last, &[half; 2]).try_into().ok()?;
        if heads == 1 {
            return Some((q, r));
        }
        let whole = extents([0, tokens, channels]);
        Some((maker.reshape(&q, &whole), maker.reshape(&r, &whole)))
    }

    /// Repeats the statistics of each block for every token of the block.
    fn widened(&mut self, value: &str, channels: usize) -> String {
        let Some(Pooling {
            blocks: [y, x],
            size: [dy, dx],
        }) = self.meaning.pooling
        else {
            return value.to_owned();
        };
        let maker = &mut self.maker;
        let apart = maker.reshape(value, &extents([0, y, 1, x, 1, channels]));
        let wide = maker.expand(&apart, &extents([1, y, dy, x, dx, channels]));
        maker.reshape(&wide, &extents([0, self.meaning.tokens, channels]))
    }
}

/// Whether a tensor consists only of results of Softmaxes over axes of extent `count`, which may be
/// moved or repeated.
fn are_shares(recipe: &Recipe, count: usize) -> bool {
    let mut open = vec![recipe];
    while let Some(step) = open.pop() {
        match step.op() {
            Op::Reshape | Op::Transpose(_) | Op::Expand | Op::Concat(_) => {
                open.extend(step.inputs())
            }
            Op::Softmax(axis) if step.shape()[*axis] == count => {}
            _ => return false,
        }
    }
    true
}

/// Reshapes [batch, tokens, channels] to [batch, heads, tokens, channels of a head]. `by_head` is
/// the shape between the two steps, [batch, tokens, heads, channels of a head]. With one head,
/// returns the value without these two steps.
fn split_heads(maker: &mut Maker, value: &str, by_head: &[i64; 4]) -> String {
    if by_head[2] == 1 {
        return value.to_owned();
    }
    let split = maker.reshape(value, by_head);
    maker.transpose(&split, BY_HEAD)
}

fn extents<const RANK: usize>(extents: [usize; RANK]) -> [i64; RANK] {
    extents.map(|extent| extent as i64)
}

/// Adds a float32 constant, because the site computes in float32. `None` if a number is not finite
/// in float32.
fn floats(maker: &mut Maker, numbers: &Numbers) -> Option<String> {
    let fits = numbers
        .iter()
        .all(|&number| number.is_finite() && (number as f32).is_finite());
    fits.then(|| maker.floats(DataType::Float, numbers.recipe()))
}

/// Adds a constant for the channels. If all its numbers are equal, it is one scalar.
fn numbers(maker: &mut Maker, values: &Numbers) -> Option<String> {
    let compact = values.clone().compact();
    let shape: &[usize] = if compact.len() == 1 {
        &[]
    } else {
        compact.shape()
    };
    floats(maker, &compact.reshape(shape)?)
}

fn times(maker: &mut Maker, value: &str, weights: &Numbers) -> Option<String> {
    if weights.iter().all(|&weight| weight == 1.0) {
        return Some(value.to_owned());
    }
    let weights = numbers(maker, weights)?;
    Some(maker.op("Mul", &[value, &weights], vec![]))
}

fn plus(maker: &mut Maker, value: &str, terms: &Numbers) -> Option<String> {
    let terms = numbers(maker, terms)?;
    Some(maker.op("Add", &[value, &terms], vec![]))
}

/// Writes the averages of blocks of tokens.
fn pool(maker: &mut Maker, value: &str, pooling: Pooling, channels: usize) -> String {
    let Pooling {
        blocks: [y, x],
        size: [dy, dx],
    } = pooling;
    let blocks = maker.reshape(value, &extents([0, y, dy, x, dx, channels]));
    let means = maker.mean(&blocks, &[2, 4], false);
    maker.reshape(&means, &extents([0, y * x, channels]))
}
