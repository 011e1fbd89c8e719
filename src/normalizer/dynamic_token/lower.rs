//! The operators that compute a site with the least work.
//!
//! Channels whose heads blend their statistics in the same way are computed together. Where a head
//! blends both, the quotient is scaled so that the statistics of a token enter with weight 1:
//!
//! ```text
//! (x − a·μ − b·q) / √(c·v + d·(r − q²) + e)
//!     = a/√c · (x/a − b/a·q − μ) / √(d/c·(r − q²) + e/c + v)
//! ```
//!
//! for `q = Px` and `r = P(x ⊙ x)`: all other weights are constants along the channels, and the factor
//! in front joins γ. No difference is taken that the definition does not take.

use std::ops::Range;

use ndarray::{ArrayD, IxDyn, s};

use super::interpret::{Meaning, Pooling};
use crate::graph::Graph;
use crate::onnx::proto::{AttributeProto, AttributeType, NodeProto, TensorProto};
use crate::onnx::tensor::{self, DataType};

/// What is smaller in `P` counts as 0. Far tokens have weights, and partial sums, below the normal
/// numbers of float32, with which processors compute many times more slowly.
const NEGLIGIBLE: f64 = 1.0 / (1u128 << 100) as f64;

/// Weights of statistics below this count as 0: beside ε they change nothing that float32 could tell.
const VANISHING: f64 = 1.0 / (1u128 << 64) as f64;

/// How far the weights of a mean over all tokens may be from equal: float32's rounding.
const EQUAL: f64 = 1.0 / (1 << 22) as f64;

/// How a head blends the statistics of tokens with those of their neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blend {
    /// λ = 1: those of the token alone. LN.
    Intra,
    /// λ = 0: those of the neighbours alone.
    Inter,
    /// λ = 0, and all tokens count as neighbours. IN.
    Uniform,
    /// Both.
    Both,
}

/// New operators for a site.
pub struct Lowered {
    /// The nodes; the last one makes the value that was asked for.
    pub made: Vec<NodeProto>,
    /// Their constants.
    pub constants: Vec<TensorProto>,
    /// What the result has to be multiplied by, channel by channel.
    pub scale: Vec<f64>,
}

/// Where new operators go.
pub struct Target<'t> {
    /// The value that they start from.
    pub input: &'t str,
    /// The value that they make.
    pub output: &'t str,
    /// A node of the site, whose name and notes they take over.
    pub like: &'t NodeProto,
    /// Whether they multiply by the scale themselves.
    pub scaled: bool,
}

/// Writes a site anew.
pub fn lower(graph: &Graph, meaning: &Meaning, target: &Target) -> Option<Lowered> {
    let opset = graph.model().opset("")?;
    let writer = Writer { graph, like: target.like, opset, made: vec![], constants: vec![] };
    let mut job = Job { writer, meaning, input: target.input, mean: None, variance: None };
    let mut scale = meaning.normalized.scale.clone();
    let runs = job.runs()?;
    let mut parts = vec![];
    for (run, blend) in &runs {
        parts.push(job.run(run.clone(), *blend, runs.len() == 1, &mut scale)?);
    }
    let mut result = parts.first()?.clone();
    if parts.len() > 1 {
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        result = job.writer.op("Concat", &parts, &[("axis", 2)]);
    }
    if target.scaled {
        job.writer.times(&result, &scale)?;
    }
    let Writer { mut made, constants, .. } = job.writer;
    made.last_mut()?.output = vec![target.output.to_owned()];
    scale.iter().all(|c| c.is_finite()).then_some(Lowered { made, constants, scale })
}

struct Job<'j> {
    writer: Writer<'j>,
    meaning: &'j Meaning,
    input: &'j str,
    mean: Option<String>,
    variance: Option<String>,
}

impl Job<'_> {
    fn head(&self, channel: usize) -> usize {
        channel * self.meaning.mixing.dim().0 / self.meaning.channels
    }

    /// Runs of channels that blend alike; they end where heads end.
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
        let weight = |weights: &[f64]| Some(weights[channel]).filter(|w| w.abs() >= VANISHING).unwrap_or(0.0);
        let intra = (weight(&n.intra_mean), weight(&n.intra_variance));
        let inter = (weight(&n.inter_mean), weight(&n.inter_variance));
        if intra.0 > 0.0 && intra.1 > 0.0 && inter != (0.0, 0.0) {
            return Some(Blend::Both);
        }
        if intra == (0.0, 0.0) && inter.1 > 0.0 {
            let weights = self.meaning.mixing.slice(s![self.head(channel), .., ..]);
            let all = weights.len() as f64 / weights.nrows() as f64;
            let uniform = weights.iter().all(|weight| (weight * all - 1.0).abs() < EQUAL);
            let plain = uniform && inter.0 == 1.0 && self.meaning.pooling.is_none();
            return Some(if plain { Blend::Uniform } else { Blend::Inter });
        }
        (intra.0 == 1.0 && intra.1 > 0.0 && inter == (0.0, 0.0)).then_some(Blend::Intra)
    }

    /// Normalizes some of the channels.
    fn run(&mut self, run: Range<usize>, blend: Blend, whole: bool, scale: &mut [f64]) -> Option<String> {
        let n = &self.meaning.normalized;
        let own = match blend {
            Blend::Intra | Blend::Both => &n.intra_variance,
            Blend::Inter | Blend::Uniform => &n.inter_variance,
        };
        let per_variance = |values: &[f64]| -> Vec<f64> { run.clone().map(|c| values[c] / own[c]).collect() };
        let epsilon = per_variance(&n.epsilon);
        for c in run.clone() {
            let mean = if blend == Blend::Both { n.intra_mean[c] } else { 1.0 };
            scale[c] *= mean / own[c].sqrt();
        }
        let same = epsilon.iter().all(|&e| e == epsilon[0]);
        if whole && blend == Blend::Intra && same && self.writer.opset >= 17 {
            let ones = self.writer.floats(&[run.len()], &vec![1.0; run.len()])?;
            return Some(self.writer.layer_norm(self.input, &ones, epsilon[0]));
        }
        let x = match whole {
            true => self.input.to_owned(),
            false => self.writer.slice(self.input, &run),
        };
        let (numerator, variance) = match blend {
            Blend::Intra => {
                let (mean, variance) = self.intra();
                (self.writer.op("Sub", &[&x, &mean], &[]), self.writer.plus(&variance, &epsilon)?)
            }
            Blend::Uniform => {
                let mean = self.writer.mean(&x, &[1], true);
                let centred = self.writer.op("Sub", &[&x, &mean], &[]);
                let square = self.writer.op("Mul", &[&centred, &centred], &[]);
                let variance = self.writer.mean(&square, &[1], true);
                (centred, self.writer.plus(&variance, &epsilon)?)
            }
            Blend::Inter => {
                let weights: Vec<f64> = n.inter_mean[run.clone()].to_vec();
                let (mean, variance) = self.inter(&x, &run, &weights, None, &epsilon)?;
                (self.writer.op("Sub", &[&x, &mean], &[]), variance)
            }
            Blend::Both => {
                let share = |values: &[f64]| -> Vec<f64> {
                    run.clone().map(|c| values[c] / n.intra_mean[c]).collect()
                };
                let (ones, inter_mean) = (share(&vec![1.0; n.scale.len()]), share(&n.inter_mean));
                let (mean, variance) = self.intra();
                let inter_variance = per_variance(&n.inter_variance);
                let (inter, blended) = self.inter(&x, &run, &inter_mean, Some(&inter_variance), &epsilon)?;
                let scaled = self.writer.times(&x, &ones)?;
                let less = self.writer.op("Sub", &[&scaled, &inter], &[]);
                let numerator = self.writer.op("Sub", &[&less, &mean], &[]);
                (numerator, self.writer.op("Add", &[&blended, &variance], &[]))
            }
        };
        let root = self.writer.op("Sqrt", &[&variance], &[]);
        Some(self.writer.op("Div", &[&numerator, &root], &[]))
    }

    /// `μ^ln` and `(σ²)^ln`, equation (4): once for all heads.
    fn intra(&mut self) -> (String, String) {
        let input = self.input.to_owned();
        let writer = &mut self.writer;
        let mean = self.mean.get_or_insert_with(|| writer.mean(&input, &[2], true)).clone();
        let variance = self.variance.get_or_insert_with(|| {
            let centred = writer.op("Sub", &[&input, &mean], &[]);
            let square = writer.op("Mul", &[&centred, &centred], &[]);
            writer.mean(&square, &[2], true)
        });
        (mean, variance.clone())
    }

    /// `b·q` and `d·(r − q²) + e` for weights `b`, `d` and `e` of the channels.
    fn inter(
        &mut self,
        x: &str,
        run: &Range<usize>,
        mean: &[f64],
        variance: Option<&[f64]>,
        epsilon: &[f64],
    ) -> Option<(String, String)> {
        let (q, r) = self.products(x, run)?;
        let square = self.writer.op("Mul", &[&q, &q], &[]);
        let mut spread = self.writer.op("Sub", &[&r, &square], &[]);
        if let Some(weights) = variance {
            spread = self.writer.times(&spread, weights)?;
        }
        let spread = self.writer.plus(&spread, epsilon)?;
        let mean = self.writer.times(&q, mean)?;
        Some((self.widened(&mean, run.len()), self.widened(&spread, run.len())))
    }

    /// `Px` and `P(x ⊙ x)` for the heads of a run, in one product.
    fn products(&mut self, x: &str, run: &Range<usize>) -> Option<(String, String)> {
        let heads = self.head(run.start)..self.head(run.end - 1) + 1;
        let weights = self.meaning.mixing.slice(s![heads.clone(), .., ..]);
        let weights = weights.mapv(|weight| if weight.abs() < NEGLIGIBLE { 0.0 } else { weight });
        let (heads, tokens, channels) = (heads.len(), weights.dim().1, run.len());
        let shape: &[usize] = if heads == 1 { &[tokens, tokens] } else { &[heads, tokens, tokens] };
        let matrix = self.writer.floats(shape, weights.as_slice()?)?;
        let by_head = [0, tokens, heads, channels / heads];
        let writer = &mut self.writer;
        let split = |writer: &mut Writer, value: &str| match heads {
            1 => value.to_owned(),
            _ => {
                let split = writer.reshape(value, &by_head);
                writer.transpose(&split)
            }
        };
        let (one, two) = match self.meaning.pooling {
            None => {
                let one = split(writer, x);
                let two = writer.op("Mul", &[&one, &one], &[]);
                (one, two)
            }
            Some(pooling) => {
                let square = writer.op("Mul", &[x, x], &[]);
                let [one, two] = [x, &square].map(|value| writer.pool(value, pooling, channels));
                (split(writer, &one), split(writer, &two))
            }
        };
        let last = if heads == 1 { 2 } else { 3 };
        let both = writer.op("Concat", &[&one, &two], &[("axis", last)]);
        let mut product = writer.op("MatMul", &[&matrix, &both], &[]);
        if heads > 1 {
            product = writer.transpose(&product);
        }
        let [q, r] = writer.halves(&product, last, channels / heads);
        if heads == 1 {
            return Some((q, r));
        }
        let whole = [0, tokens, channels];
        Some((writer.reshape(&q, &whole), writer.reshape(&r, &whole)))
    }

    /// Statistics of blocks, once for every token of the block.
    fn widened(&mut self, value: &str, channels: usize) -> String {
        let Some(Pooling { blocks: [y, x], size: [dy, dx] }) = self.meaning.pooling else {
            return value.to_owned();
        };
        let writer = &mut self.writer;
        let apart = writer.reshape(value, &[0, y, 1, x, 1, channels]);
        let shape = writer.ints(&[1, y, dy, x, dx, channels].map(|n| n as i64));
        let wide = writer.op("Expand", &[&apart, &shape], &[]);
        writer.reshape(&wide, &[0, self.meaning.tokens, channels])
    }
}

/// Makes nodes and their constants.
struct Writer<'w> {
    graph: &'w Graph<'w>,
    like: &'w NodeProto,
    opset: i64,
    made: Vec<NodeProto>,
    constants: Vec<TensorProto>,
}

impl Writer<'_> {
    /// A name that neither the graph nor this has yet.
    fn name(&self, what: &str) -> String {
        let stem = crate::graph::node_name(self.like);
        let taken = |name: &String| {
            self.graph.value(name).is_some()
                || self.constants.iter().any(|tensor| tensor.name() == name)
                || self.made.iter().any(|node| node.output.contains(name))
        };
        let mut names = (0..).map(|i| format!("{stem}_{what}_{i}")).skip_while(taken);
        names.next().unwrap_or_default()
    }

    /// A node of one output, with integer attributes. Returns the name of the output.
    fn op(&mut self, op: &str, inputs: &[&str], attributes: &[(&str, i64)]) -> String {
        let output = self.name(&op.to_lowercase());
        let attribute = |&(name, i): &(&str, i64)| AttributeProto {
            name: Some(name.into()),
            r#type: Some(AttributeType::Int as i32),
            i: Some(i),
            ..Default::default()
        };
        self.made.push(NodeProto {
            op_type: Some(op.into()),
            name: Some(output.clone()),
            input: inputs.iter().map(|&input| input.to_owned()).collect(),
            output: vec![output.clone()],
            attribute: attributes.iter().map(attribute).collect(),
            metadata_props: self.like.metadata_props.clone(),
            ..Default::default()
        });
        output
    }

    fn attribute(&mut self, attribute: AttributeProto) {
        if let Some(node) = self.made.last_mut() {
            node.attribute.push(attribute);
        }
    }

    fn list(&mut self, name: &str, ints: Vec<i64>) {
        let r#type = Some(AttributeType::Ints as i32);
        self.attribute(AttributeProto { name: Some(name.into()), r#type, ints, ..Default::default() });
    }

    /// A constant; `None` where a number does not fit float32.
    fn floats(&mut self, shape: &[usize], values: &[f64]) -> Option<String> {
        let name = self.name("constant");
        let array = ArrayD::from_shape_vec(IxDyn(shape), values.to_vec()).ok()?;
        let fits = values.iter().all(|value| value.is_finite());
        let tensor = tensor::make(&name, DataType::Float, &array.view()).ok().filter(|_| fits)?;
        self.constants.push(tensor);
        Some(name)
    }

    fn ints(&mut self, values: &[i64]) -> String {
        let name = self.name("constant");
        self.constants.push(tensor::make_i64(&name, values));
        name
    }

    /// Numbers of the channels: one number where they are all the same.
    fn numbers(&mut self, values: &[f64]) -> Option<String> {
        match values.iter().all(|value| value == &values[0]) {
            true => self.floats(&[], &values[..1]),
            false => self.floats(&[values.len()], values),
        }
    }

    fn times(&mut self, value: &str, weights: &[f64]) -> Option<String> {
        if weights.iter().all(|&weight| weight == 1.0) {
            return Some(value.to_owned());
        }
        let weights = self.numbers(weights)?;
        Some(self.op("Mul", &[value, &weights], &[]))
    }

    fn plus(&mut self, value: &str, terms: &[f64]) -> Option<String> {
        let terms = self.numbers(terms)?;
        Some(self.op("Add", &[value, &terms], &[]))
    }

    fn mean(&mut self, value: &str, axes: &[i64], keep: bool) -> String {
        let attributes = [("keepdims", i64::from(keep))];
        if self.opset >= 18 {
            let axes = self.ints(axes);
            return self.op("ReduceMean", &[value, &axes], &attributes);
        }
        let mean = self.op("ReduceMean", &[value], &attributes);
        self.list("axes", axes.to_vec());
        mean
    }

    fn reshape(&mut self, value: &str, shape: &[usize]) -> String {
        let shape: Vec<i64> = shape.iter().map(|&extent| extent as i64).collect();
        let shape = self.ints(&shape);
        self.op("Reshape", &[value, &shape], &[])
    }

    /// [batch, tokens, heads, channels] and [batch, heads, tokens, channels] into each other.
    fn transpose(&mut self, value: &str) -> String {
        let turned = self.op("Transpose", &[value], &[]);
        self.list("perm", vec![0, 2, 1, 3]);
        turned
    }

    /// Averages of blocks of tokens.
    fn pool(&mut self, value: &str, pooling: Pooling, channels: usize) -> String {
        let Pooling { blocks: [y, x], size: [dy, dx] } = pooling;
        let blocks = self.reshape(value, &[0, y, dy, x, dx, channels]);
        let means = self.mean(&blocks, &[2, 4], false);
        self.reshape(&means, &[0, y * x, channels])
    }

    /// The two halves of a value along an axis.
    fn halves(&mut self, value: &str, axis: i64, half: usize) -> [String; 2] {
        let sizes = vec![half as i64; 2];
        let first = if self.opset >= 13 {
            let sizes = self.ints(&sizes);
            self.op("Split", &[value, &sizes], &[("axis", axis)])
        } else {
            let first = self.op("Split", &[value], &[("axis", axis)]);
            self.list("split", sizes);
            first
        };
        let second = self.name("split");
        if let Some(node) = self.made.last_mut() {
            node.output.push(second.clone());
        }
        [first, second]
    }

    fn slice(&mut self, value: &str, run: &Range<usize>) -> String {
        let [start, end, axis] = [run.start as i64, run.end as i64, 2].map(|number| self.ints(&[number]));
        self.op("Slice", &[value, &start, &end, &axis], &[])
    }

    fn layer_norm(&mut self, value: &str, scale: &str, epsilon: f64) -> String {
        let output = self.op("LayerNormalization", &[value, scale], &[("axis", -1)]);
        self.attribute(AttributeProto {
            name: Some("epsilon".into()),
            r#type: Some(AttributeType::Float as i32),
            f: Some(epsilon as f32),
            ..Default::default()
        });
        output
    }
}
