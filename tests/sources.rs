//! Every source of an affine that is no offline normalizer: the Dynamic Tanh family, the online
//! normalizers, opaque nodes, and the scales around attention, on random small graphs.
//!
//! The original (an opaque node written out by its definition) and the fused model are computed by
//! the reference, in float64.

mod common;

use common::numbers::Kind;
use common::reference::{self, Env, Value};
use common::{Attrs, Builder, floats, judge, node, text};
use ndarray::{ArrayD, IxDyn};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use unfold::onnx::Model;
use unfold::onnx::proto::{FunctionProto, OperatorSetIdProto};
use unfold::{Outcome, SitePlan};

/// Batch, tokens and channels; two of them alike, so that axes are not told by their extent.
const SHAPE: [usize; 3] = [2, 4, 4];

/// Folded weights are rounded once to single precision.
const TOLERANCE: f64 = 2e-6;

struct Case {
    builder: Builder,
    rng: ChaCha8Rng,
    /// Whether what is written out has no γ and no β.
    bare: bool,
}

impl Case {
    fn new(seed: u64) -> Self {
        let mut builder = Builder::new(18);
        builder.input("x", &["batch", "4", "4"]);
        Case { builder, rng: ChaCha8Rng::seed_from_u64(seed), bare: false }
    }

    fn array(&mut self, shape: &[usize], low: f64, high: f64) -> ArrayD<f64> {
        ArrayD::from_shape_simple_fn(IxDyn(shape), || f64::from(self.rng.random_range(low..high) as f32))
    }

    fn constant(&mut self, shape: &[usize], low: f64, high: f64) -> String {
        let values = self.array(shape, low, high);
        self.builder.constant(&values)
    }

    /// A constant of one element.
    fn number(&mut self, value: f64) -> String {
        self.builder.constant(&ArrayD::from_elem(IxDyn(&[]), value))
    }

    fn op(&mut self, op: &str, inputs: &[&str]) -> String {
        self.builder.op(op, inputs, vec![])
    }

    /// A commutative operator, its operands in either order.
    fn either(&mut self, op: &str, left: &str, right: &str) -> String {
        if self.rng.random() { self.op(op, &[left, right]) } else { self.op(op, &[right, left]) }
    }

    /// With tokens and channels exchanged.
    fn turned(&mut self, value: &str) -> String {
        self.builder.op("Transpose", &[value], vec![("perm", vec![0, 2, 1].into())])
    }

    /// IN or GN as an operator. Before version 21, GN has one γ for a group.
    fn image_norm(&mut self, value: &str, kind: &str) -> String {
        let (op, attrs, version) = match (kind, self.rng.random()) {
            ("GN", false) => ("GroupNormalization", vec![("num_groups", 2.into())], 18),
            ("GN", true) => ("GroupNormalization", vec![("num_groups", 2.into())], 21),
            _ => ("InstanceNormalization", vec![], 18),
        };
        self.builder.proto.opset_import[0].version = Some(version);
        let count = if kind == "GN" && version < 21 { 2 } else { 4 };
        let (gamma, beta) = (self.constant(&[count], -2.0, 2.0), self.constant(&[count], -1.0, 1.0));
        self.builder.op(op, &[value, &gamma, &beta], attrs)
    }

    fn mean(&mut self, value: &str, axes: &[i64]) -> String {
        let axes = self.builder.ints(axes);
        self.op("ReduceMean", &[value, &axes])
    }

    /// `γ·v + β`, with or without β, γ of both signs.
    fn affine(&mut self, value: &str, shape: &[usize]) -> String {
        if self.bare {
            return value.to_owned();
        }
        let gamma = self.constant(shape, -2.0, 2.0);
        let scaled = self.either("Mul", value, &gamma);
        if self.rng.random_range(0..4) == 0 {
            return scaled;
        }
        let beta = self.constant(shape, -1.0, 1.0);
        self.either("Add", &scaled, &beta)
    }

    /// A linear reader, and whether its bias is there already.
    fn reader(&mut self, value: &str) -> String {
        let weight = self.constant(&[4, 5], -1.0, 1.0);
        let product = self.op("MatMul", &[value, &weight]);
        if self.rng.random() {
            return product;
        }
        let bias = self.constant(&[5], -1.0, 1.0);
        self.either("Add", &product, &bias)
    }

    fn softsign(&mut self, value: &str) -> String {
        if self.rng.random() {
            return self.op("Softsign", &[value]);
        }
        let (size, one) = (self.op("Abs", &[value]), self.number(1.0));
        let below = self.either("Add", &size, &one);
        self.op("Div", &[value, &below])
    }

    /// One of DyT, DyS, DySS, α of shape `[1]` or `[]`.
    fn pointwise(&mut self, x: &str, kind: &str, shape: &[usize]) -> String {
        let shape_of_alpha: &[usize] = if self.rng.random() { &[1] } else { &[] };
        let alpha = self.constant(shape_of_alpha, 0.3, 1.5);
        let scaled = self.either("Mul", x, &alpha);
        let bounded = match kind {
            "DyT" => self.op("Tanh", &[&scaled]),
            "DyS" => self.op("Sigmoid", &[&scaled]),
            _ => self.softsign(&scaled),
        };
        self.affine(&bounded, shape)
    }

    /// `x/√(mean(v²) + ε)`, in the forms that exporters write.
    fn rms(&mut self, x: &str, value: &str, axes: &[i64]) -> String {
        let square = if self.rng.random() {
            self.op("Mul", &[value, value])
        } else {
            let two = self.number(2.0);
            self.op("Pow", &[value, &two])
        };
        let epsilon = self.number(1e-5);
        let moment = self.mean(&square, axes);
        let shifted = self.either("Add", &moment, &epsilon);
        let root = self.op("Sqrt", &[&shifted]);
        match self.rng.random_range(0..3) {
            0 => self.op("Div", &[x, &root]),
            1 => {
                let inverse = self.op("Reciprocal", &[&root]);
                self.either("Mul", x, &inverse)
            }
            _ => {
                let one = self.number(1.0);
                let inverse = self.op("Div", &[&one, &root]);
                self.either("Mul", x, &inverse)
            }
        }
    }

    /// Group Normalization of two groups of the channels on axis 1, written out.
    fn grouped(&mut self, x: &str, twin: Groups) -> String {
        let (shape, axes): (&[i64], &[i64]) = match twin {
            Groups::Interleaved => (&[0, 2, 2, 4], &[1, 3]),
            Groups::Batch => (&[0, 2, 2, 4], &[0, 2, 3]),
            _ if self.rng.random() => (&[0, 2, 2, 4], &[2, 3]),
            _ => (&[0, 2, -1], &[2]),
        };
        let shape = self.builder.ints(shape);
        let apart = self.op("Reshape", &[x, &shape]);
        let by_operator = twin == Groups::Scaled || self.rng.random();
        let normed = if by_operator && !matches!(twin, Groups::Interleaved | Groups::Batch) {
            let scaled = if twin == Groups::Scaled { 2.0 } else { 1.0 };
            let one = self.builder.constant(&ArrayD::from_elem(IxDyn(&[2]), scaled));
            let zero = self.builder.constant(&ArrayD::zeros(IxDyn(&[2])));
            self.op("InstanceNormalization", &[&apart, &one, &zero])
        } else {
            let mean = self.mean(&apart, axes);
            let centred = self.op("Sub", &[&apart, &mean]);
            self.rms(&centred, &centred, axes)
        };
        let back = match twin {
            Groups::OtherChannels => self.builder.ints(&[0, 8, 2]),
            _ if self.rng.random() => self.op("Shape", &[x]),
            _ => self.builder.ints(&[0, 4, 4]),
        };
        let together = self.op("Reshape", &[&normed, &back]);
        if twin != Groups::OtherChannels {
            return self.affine(&together, &[4, 1]);
        }
        let normed = self.affine(&together, &[8, 1]);
        let whole = self.builder.ints(&[0, 4, 4]);
        self.op("Reshape", &[&normed, &whole])
    }

    /// `g·x/‖x‖`.
    fn scale_norm(&mut self, x: &str) -> String {
        let epsilon = self.number(1e-5);
        let norm = if self.rng.random() {
            let axes = self.builder.ints(&[-1]);
            self.op("ReduceL2", &[x, &axes])
        } else {
            let (square, axes) = (self.op("Mul", &[x, x]), self.builder.ints(&[-1]));
            let sum = self.op("ReduceSum", &[&square, &axes]);
            self.op("Sqrt", &[&sum])
        };
        let positive = if self.rng.random() { "Max" } else { "Add" };
        let norm = self.either(positive, &norm, &epsilon);
        let normed = self.op("Div", &[x, &norm]);
        let shape: &[usize] = if self.rng.random() { &[1] } else { &[4] };
        let g = self.constant(shape, -2.0, 2.0);
        self.either("Mul", &normed, &g)
    }

    /// `w·v` for a number.
    fn weighted(&mut self, value: &str, weight: f64) -> String {
        let weight = self.number(weight);
        self.either("Mul", value, &weight)
    }

    /// Switchable Normalization with channels on the last axis, equation (3) of its paper; the
    /// statistics are those of `of`.
    fn switchable(&mut self, x: &str, of: &str, twin: Twin) -> String {
        let (places, channels): (&[i64], &[i64]) = (&[1], &[2]);
        let square = |case: &mut Case, value: &str| {
            let two = case.number(2.0);
            if case.rng.random() { case.op("Pow", &[value, &two]) } else { case.op("Mul", &[value, value]) }
        };
        let mean = self.mean(of, places);
        let (variance, moment) = if self.rng.random() {
            let centred = self.op("Sub", &[of, &mean]);
            let squares = square(self, &centred);
            let variance = self.mean(&squares, places);
            let mean_square = square(self, &mean);
            let moment = self.either("Add", &variance, &mean_square);
            (variance, moment)
        } else {
            let squares = square(self, of);
            let moment = self.mean(&squares, places);
            let mean_square = square(self, &mean);
            (self.op("Sub", &[&moment, &mean_square]), moment)
        };
        let layer_mean = if self.rng.random() { self.mean(&mean, channels) } else { self.mean(of, &[1, 2]) };
        let layer_moment = self.mean(&moment, channels);
        let layer_square = square(self, &layer_mean);
        let less = if twin == Twin::SumOfSquares { "Add" } else { "Sub" };
        let layer_variance = self.op(less, &[&layer_moment, &layer_square]);
        let mut mixed = vec![];
        for (own, layer, low) in [(&mean, &layer_mean, -1.0), (&variance, &layer_variance, 0.5)] {
            let own = self.weighted(own, 0.5);
            if twin == Twin::OneOfEach {
                mixed.push(own);
                continue;
            }
            let layer = self.weighted(layer, 0.25);
            let sum = self.either("Add", &own, &layer);
            let batch = self.constant(&[4], low, 2.0);
            mixed.push(self.either("Add", &sum, &batch));
        }
        if twin == Twin::OwnWeight {
            let weight = self.mean(of, &[0, 1, 2]);
            mixed[0] = self.op("Mul", &[&mixed[0], &weight]);
        }
        let centred = self.op("Sub", &[x, &mixed[0]]);
        let epsilon = self.number(1e-5);
        let shifted = self.either("Add", &mixed[1], &epsilon);
        let root = self.op("Sqrt", &[&shifted]);
        if self.rng.random() {
            let normed = self.op("Div", &[&centred, &root]);
            return self.affine(&normed, &[4]);
        }
        let gamma = self.constant(&[4], -2.0, 2.0);
        let scaled = self.either("Mul", &centred, &gamma);
        let normed = self.op("Div", &[&scaled, &root]);
        let beta = self.constant(&[4], -1.0, 1.0);
        self.either("Add", &normed, &beta)
    }

    /// A node of onnxruntime's domain.
    fn of_a_runtime(&mut self, op: &str, inputs: &[&str], attrs: Attrs, outputs: usize) -> Vec<String> {
        let made = self.builder.op_many(op, inputs, attrs, outputs);
        let set = OperatorSetIdProto { domain: Some("com.microsoft".into()), version: Some(1) };
        if let Some(node) = self.builder.graph().node.last_mut() {
            node.domain = set.domain.clone();
        }
        if !self.builder.proto.opset_import.contains(&set) {
            self.builder.proto.opset_import.push(set);
        }
        made
    }

    /// onnxruntime's GroupNorm of an image, with its channels last or second.
    fn runtime_group_norm(&mut self, x: &str) -> String {
        let last = self.rng.random();
        let (image, whole) = (if last { [0, 2, 2, 4] } else { [0, 4, 2, 2] }, [0, 4, 4]);
        let (image, whole) = (self.builder.ints(&image), self.builder.ints(&whole));
        let turned = if last { x.to_owned() } else { self.turned(x) };
        let image = self.op("Reshape", &[&turned, &image]);
        let (gamma, beta) = (self.constant(&[4], -2.0, 2.0), self.constant(&[4], -1.0, 1.0));
        let attrs: Attrs =
            vec![("groups", 2.into()), ("activation", 0.into()), ("channels_last", i64::from(last).into())];
        let normed = self.of_a_runtime("GroupNorm", &[&image, &gamma, &beta], attrs, 1).remove(0);
        let tokens = self.op("Reshape", &[&normed, &whole]);
        if last { tokens } else { self.turned(&tokens) }
    }

    /// A normalizer of a runtime's own. Some have a second operand, which is added before, as is a bias.
    fn runtime_norm(&mut self, x: &str, op: &str) -> String {
        let skips = op.starts_with("Skip");
        let simplified = op.contains("Simplified");
        let mut inputs = vec![x.to_owned()];
        if skips {
            inputs.push(self.op("Tanh", &[x]));
        }
        inputs.push(self.constant(&[4], -2.0, 2.0));
        if !simplified {
            let some = self.rng.random();
            inputs.push(if some { self.constant(&[4], -1.0, 1.0) } else { String::new() });
        }
        if skips && self.rng.random() {
            inputs.push(self.constant(&[4], -1.0, 1.0));
        }
        let attrs: Attrs = vec![("epsilon", 1e-3f32.into())];
        let outputs = if skips && self.rng.random() { 4 } else { 1 };
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let made = self.of_a_runtime(op, &inputs, attrs, outputs);
        if let [normed, _, _, sum] = &made[..] {
            // The sum of the operands goes on as the residual stream.
            self.builder.output(sum);
            return normed.clone();
        }
        made[0].clone()
    }

    /// Algorithm 1 of the DTN paper for two heads.
    fn dynamic_token(&mut self, x: &str) -> String {
        let logits = self.array(&[2, 4, 4], -2.0, 2.0);
        let uniform = self.rng.random_range(0..4) == 0;
        let logits = self.builder.constant(&if uniform { logits * 0.0 } else { logits });
        let mixing = self.builder.op("Softmax", &[&logits], vec![("axis", (-1i64).into())]);
        let omega: Vec<f64> = (0..2)
            .map(|_| match self.rng.random_range(0..4) {
                0 => 200.0,
                1 => -200.0,
                _ => f64::from(self.rng.random_range(-2.0..2.0f32)),
            })
            .collect();
        let omega = ArrayD::from_shape_vec(IxDyn(&[2, 1, 1]), omega).unwrap();
        let omega = self.builder.constant(&omega);
        let (ratio, one) = (self.op("Sigmoid", &[&omega]), self.number(1.0));
        let rest = self.op("Sub", &[&one, &ratio]);
        let mean = self.mean(x, &[-1]);
        let centred = self.op("Sub", &[x, &mean]);
        let squares = self.op("Mul", &[&centred, &centred]);
        let variance = self.mean(&squares, &[-1]);
        let by_head = |case: &mut Case, value: &str| {
            let heads = case.builder.ints(&[0, 4, 2, 2]);
            let apart = case.op("Reshape", &[value, &heads]);
            case.builder.op("Transpose", &[&apart], vec![("perm", vec![0, 2, 1, 3].into())])
        };
        let square = self.op("Mul", &[x, x]);
        let [q, r] = [x, &square].map(|value| {
            let heads = by_head(self, value);
            self.op("MatMul", &[&mixing, &heads])
        });
        let q_square = self.op("Mul", &[&q, &q]);
        let spread = self.op("Sub", &[&r, &q_square]);
        let [mean, variance] = [(mean, q), (variance, spread)].map(|(intra, inter)| {
            let axis = self.builder.ints(&[1]);
            let intra = self.op("Unsqueeze", &[&intra, &axis]);
            let (intra, inter) = (self.either("Mul", &ratio, &intra), self.either("Mul", &rest, &inter));
            let both = self.either("Add", &intra, &inter);
            let turned = self.builder.op("Transpose", &[&both], vec![("perm", vec![0, 2, 1, 3].into())]);
            let whole = self.builder.ints(&[0, 4, 4]);
            self.op("Reshape", &[&turned, &whole])
        });
        let less = self.op("Sub", &[x, &mean]);
        let epsilon = self.number(1e-5);
        let shifted = self.either("Add", &variance, &epsilon);
        let root = self.op("Sqrt", &[&shifted]);
        let normed = self.op("Div", &[&less, &root]);
        self.affine(&normed, &[4])
    }

    /// One of [`SOURCES`] on a value.
    fn source(&mut self, kind: &str, x: &str) -> String {
        match kind {
            "DyT" | "DyS" | "DySS" => self.pointwise(x, kind, &[4]),
            "DyT first" => {
                // Channels on the second axis, as in an image.
                let turned = self.turned(x);
                let normed = self.pointwise(&turned, "DyT", &[4, 1]);
                self.turned(&normed)
            }
            "LN" => {
                let (gamma, beta) = (self.constant(&[4], -2.0, 2.0), self.constant(&[4], -1.0, 1.0));
                self.op("LayerNormalization", &[x, &gamma, &beta])
            }
            "LN written out" => {
                let mean = self.mean(x, &[-1]);
                let centred = self.op("Sub", &[x, &mean]);
                let normed = self.rms(&centred, &centred, &[-1]);
                self.affine(&normed, &[4])
            }
            "RMSNorm" => {
                let normed = self.rms(x, x, &[-1]);
                self.affine(&normed, &[4])
            }
            "Gemma" => {
                let normed = self.rms(x, x, &[-1]);
                let (gamma, one) = (self.constant(&[4], -0.9, 0.9), self.number(1.0));
                let gamma = self.either("Add", &gamma, &one);
                self.either("Mul", &normed, &gamma)
            }
            "IN" | "GN" | "GN written out" => {
                let turned = self.turned(x);
                let normed = match kind {
                    "GN written out" => self.grouped(&turned, Groups::None),
                    _ => self.image_norm(&turned, kind),
                };
                self.turned(&normed)
            }
            "ScaleNorm" => self.scale_norm(x),
            "SkipLayerNormalization"
            | "SimplifiedLayerNormalization"
            | "SkipSimplifiedLayerNormalization" => self.runtime_norm(x, kind),
            "GroupNorm" => self.runtime_group_norm(x),
            "DTN" => self.dynamic_token(x),
            "PN" => group_scaled(self, x),
            "SN" => self.switchable(x, x, Twin::None),
            "standardisation" => {
                let (mean, std) = (self.constant(&[1, 1, 4], -1.0, 1.0), self.constant(&[1, 1, 4], 0.5, 2.0));
                let centred = self.op("Sub", &[x, &mean]);
                self.op("Div", &[&centred, &std])
            }
            source => panic!("no source is called {source}"),
        }
    }

    fn finish(self, output: &str) -> Model {
        self.builder.model(&[output])
    }
}

/// What is not Switchable Normalization, and looks like it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Twin {
    /// Nothing: it is one.
    None,
    /// The statistics of one axis set alone: that is Instance Normalization.
    OneOfEach,
    /// E[x²] + E[x]² is no variance.
    SumOfSquares,
    /// The weight of the means is one of the input's statistics itself.
    OwnWeight,
}

/// What is not Group Normalization, and looks like it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Groups {
    /// Nothing: it is one.
    None,
    /// What is reshaped back has other channels than what was normalized.
    OtherChannels,
    /// A group is every other channel.
    Interleaved,
    /// Statistics of the whole batch.
    Batch,
    /// Each group is scaled by a number of its own before γ.
    Scaled,
}

/// What a case is to show.
struct Wanted {
    kind: &'static str,
    original: Model,
    /// The model with its opaque node, where the original has it written out.
    opaque: Option<Model>,
}

/// The sources that normalize one value.
const SOURCES: [&str; 20] = [
    "DyT",
    "DyS",
    "DySS",
    "DyT first",
    "LN",
    "LN written out",
    "RMSNorm",
    "Gemma",
    "SkipLayerNormalization",
    "SimplifiedLayerNormalization",
    "SkipSimplifiedLayerNormalization",
    "IN",
    "PN",
    "GN",
    "GN written out",
    "GroupNorm",
    "ScaleNorm",
    "SN",
    "DTN",
    "standardisation",
];

/// All others.
const OTHERS: [&str; 5] = ["attention scale", "LayerScale", "opaque DyT", "opaque UN", "function DyT"];

/// The kind that a source is listed as.
fn listed(source: &'static str) -> &'static str {
    match source {
        "DyT first" | "opaque DyT" | "function DyT" => "DyT",
        "LN written out" | "SkipLayerNormalization" => "LN",
        "Gemma" | "SimplifiedLayerNormalization" | "SkipSimplifiedLayerNormalization" => "RMSNorm",
        "GroupNorm" | "GN written out" => "GN",
        "opaque UN" => "UN",
        source => source,
    }
}

/// A graph around one source, which the seed tells.
fn make(seed: u64) -> Wanted {
    let mut case = Case::new(seed);
    let all = [&SOURCES[..], &OTHERS].concat();
    let kind = all[(seed % all.len() as u64) as usize];
    // Something linear in front that nothing else reads, or that a residual stream reads too.
    let front = case.constant(&[4, 4], -1.0, 1.0);
    let x = if kind == "standardisation" { "x".to_owned() } else { case.op("MatMul", &["x", &front]) };
    let name = listed(kind);
    let normed = match kind {
        "attention scale" => return attention(case, &x),
        "LayerScale" => {
            let weight = case.constant(&[4, 4], -1.0, 1.0);
            let (linear, gamma) = (case.op("MatMul", &[&x, &weight]), case.constant(&[4], -1.0, 1.0));
            let scaled = case.either("Mul", &linear, &gamma);
            let sum = case.either("Add", &scaled, "x");
            return Wanted { kind: name, original: case.finish(&sum), opaque: None };
        }
        source if SOURCES.contains(&source) => case.source(source, &x),
        opaque => return opaque_case(case, &x, opaque, name),
    };
    let output = case.reader(&normed);
    Wanted { kind: name, original: case.finish(&output), opaque: None }
}

fn group_scaled(case: &mut Case, x: &str) -> String {
    let apart = case.builder.ints(&[0, 0, 2, -1]);
    let grouped = case.op("Reshape", &[x, &apart]);
    let square = case.op("Mul", &[&grouped, &grouped]);
    let axes = case.builder.ints(&[-1]);
    let moment = case.builder.op("ReduceMean", &[&square, &axes], vec![("keepdims", 0.into())]);
    let (behind, wide) = (case.builder.ints(&[-1]), case.builder.ints(&[1, 1, 1, 2]));
    let moment = case.op("Unsqueeze", &[&moment, &behind]);
    let moment = case.op("Expand", &[&moment, &wide]);
    let together = case.builder.ints(&[0, 0, -1]);
    let moment = case.op("Reshape", &[&moment, &together]);
    let epsilon = case.number(1e-5);
    let shifted = case.either("Add", &moment, &epsilon);
    let root = case.op("Sqrt", &[&shifted]);
    let scaled = case.op("Div", &[x, &root]);
    let sigma = case.constant(&[4], 0.5, 2.0);
    let normed = case.op("Div", &[&scaled, &sigma]);
    case.affine(&normed, &[4])
}

/// Attention of one head, scaled on Q, on both sides, or on the scores.
fn attention(mut case: Case, x: &str) -> Wanted {
    let where_to = case.rng.random_range(0..3);
    let scale = case.constant(&[], 0.2, 0.8);
    let mut operands = vec![];
    for _ in 0..3 {
        let weight = case.constant(&[4, 4], -1.0, 1.0);
        operands.push(case.op("MatMul", &[x, &weight]));
    }
    let (mut q, mut k, v) = (operands[0].clone(), operands[1].clone(), operands[2].clone());
    if where_to < 2 {
        q = case.either("Mul", &q, &scale);
    }
    if where_to == 1 {
        k = case.either("Mul", &k, &scale);
    }
    let k = case.builder.op("Transpose", &[&k], vec![("perm", vec![0, 2, 1].into())]);
    let mut scores = case.op("MatMul", &[&q, &k]);
    if where_to == 2 {
        scores = case.op("Div", &[&scores, &scale]);
    }
    let weights = case.builder.op("Softmax", &[&scores], vec![("axis", (-1i64).into())]);
    let output = case.op("MatMul", &[&weights, &v]);
    Wanted { kind: "attention scale", original: case.finish(&output), opaque: None }
}

/// An opaque node beside its definition.
fn opaque_case(mut case: Case, x: &str, how: &str, kind: &'static str) -> Wanted {
    let (alpha, gamma) = (case.array(&[1], 0.3, 1.5), case.array(&[4], -2.0, 2.0));
    let (beta, variance) = (case.array(&[4], -1.0, 1.0), case.array(&[4], 0.5, 2.0));
    let names = [&alpha, &gamma, &beta, &variance].map(|array| case.builder.constant(array));
    let [alpha, gamma, beta, variance] = &names;
    let mut twin = Case { builder: case.builder.clone(), rng: case.rng.clone(), bare: false };
    let written = if kind == "DyT" {
        let scaled = twin.op("Mul", &[x, alpha]);
        let bounded = twin.op("Tanh", &[&scaled]);
        let scaled = twin.op("Mul", &[&bounded, gamma]);
        twin.op("Add", &[&scaled, beta])
    } else {
        let epsilon = twin.builder.constant(&ArrayD::from_elem(IxDyn(&[]), f64::from(1e-3f32)));
        let shifted = twin.op("Add", &[variance, &epsilon]);
        let root = twin.op("Sqrt", &[&shifted]);
        let normed = twin.op("Div", &[x, &root]);
        let scaled = twin.op("Mul", &[&normed, gamma]);
        twin.op("Add", &[&scaled, beta])
    };
    let mut attrs: Attrs = vec![];
    let inputs: Vec<&str> = if kind == "DyT" {
        vec![x, alpha, gamma, beta]
    } else {
        attrs.push(("epsilon", 1e-3f32.into()));
        vec![x, gamma, beta, variance]
    };
    let mut call = node(if kind == "DyT" { "DyT" } else { "UN1d" }, &inputs, &["normed"], attrs);
    call.domain = Some("some.norms".into());
    let sets = |version| vec![OperatorSetIdProto { domain: None, version: Some(version) }];
    if how == "function DyT" {
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        case.builder.proto.functions.push(FunctionProto {
            name: Some("DyT".into()),
            domain: Some("some.norms".into()),
            input: names(&["v", "a", "g", "b"]),
            output: names(&["y"]),
            node: vec![
                node("Mul", &["v", "a"], &["z"], vec![]),
                node("Tanh", &["z"], &["t"], vec![]),
                node("Mul", &["t", "g"], &["s"], vec![]),
                node("Add", &["s", "b"], &["y"], vec![]),
            ],
            opset_import: sets(18),
            ..Default::default()
        });
    }
    case.builder.graph().node.push(call);
    let domain = OperatorSetIdProto { domain: Some("some.norms".into()), version: Some(1) };
    case.builder.proto.opset_import.push(domain);
    // The same reader behind both.
    twin.rng = case.rng.clone();
    let (output, opaque_output) = (twin.reader(&written), case.reader("normed"));
    Wanted { kind, original: twin.finish(&output), opaque: Some(case.finish(&opaque_output)) }
}

fn compute(model: &Model, x: &ArrayD<f64>) -> ArrayD<f64> {
    let inputs: Env = [("x".to_owned(), Value::Floats(x.clone()))].into();
    reference::run(model, &inputs).unwrap()[0].floats().unwrap().clone()
}

fn is_folded(site: &SitePlan) -> bool {
    matches!(site.post, Some(Outcome::Folded { .. }))
}

#[test]
fn every_source_computes_the_same_after_folding() {
    for seed in 0..3_600 {
        let wanted = make(seed);
        let fused =
            unfold::fuse(wanted.opaque.as_ref().unwrap_or(&wanted.original), &Default::default()).unwrap();
        let site = fused.plan.sites.iter().find(|site| site.kind.name == wanted.kind);
        let found: Vec<_> = fused.plan.sites.iter().map(|site| site.kind.name).collect();
        let site = site.unwrap_or_else(|| panic!("seed {seed}: no {} among {found:?}", wanted.kind));
        assert!(is_folded(site), "seed {seed}: {} stays: {site:?}", wanted.kind);
        let mut rng = ChaCha8Rng::seed_from_u64(seed + 1);
        let x = ArrayD::from_shape_simple_fn(IxDyn(&SHAPE), || rng.random_range(-3.0..3.0));
        let (before, after) = (compute(&wanted.original, &x), compute(&fused.model, &x));
        let largest = before.iter().fold(0.0f64, |largest, v| largest.max(v.abs()));
        let error = (&before - &after).iter().fold(0.0f64, |worst, v| worst.max(v.abs())) / largest;
        assert!(error < TOLERANCE, "seed {seed}: {} is off by {error:e}", wanted.kind);
        nothing_is_left(&fused.model, &format!("seed {seed}: {}", wanted.kind));
    }
}

/// A fused model is fused: once more, and not a byte changes.
fn nothing_is_left(fused: &Model, what: &str) {
    let again = unfold::fuse(fused, &Default::default()).unwrap();
    let show = || text::print(&again.model);
    assert!(!again.changed(), "{what} folds twice: {:#?}\n{}", again.plan.sites, show());
    assert_eq!(again.model.proto, fused.proto, "{what} changes");
}

/// What a source goes into.
#[derive(Debug, Clone, Copy)]
enum End {
    /// A linear layer.
    Linear,
    /// A linear layer behind a layout move.
    Turned,
    /// Two linear layers.
    Twice,
    /// A linear layer, and a reader that takes no affine.
    Beside,
    /// The residual stream.
    Residual,
    /// The caller.
    Output,
}

#[test]
fn fusing_a_fused_model_changes_nothing() {
    let ends = [End::Linear, End::Turned, End::Twice, End::Beside, End::Residual, End::Output];
    for (number, source) in SOURCES.into_iter().enumerate() {
        for end in ends {
            for seed in 0..24 {
                let what = format!("{source} {end:?} {seed}");
                let mut case = Case::new(100 * number as u64 + seed);
                case.bare = seed % 3 == 0;
                let x = if seed % 2 == 0 { case.op("Tanh", &["x"]) } else { "x".to_owned() };
                let normed = case.source(source, &x);
                let outputs = match end {
                    End::Linear => vec![case.reader(&normed)],
                    End::Turned => {
                        let turned = case.turned(&normed);
                        let weight = case.constant(&[5, 4], -1.0, 1.0);
                        vec![case.op("MatMul", &[&weight, &turned])]
                    }
                    End::Twice => vec![case.reader(&normed), case.reader(&normed)],
                    End::Beside => vec![case.reader(&normed), case.op("Tanh", &[&normed])],
                    End::Residual => vec![case.op("Add", &[&x, &normed])],
                    End::Output => vec![normed],
                };
                let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
                let model = case.builder.model(&outputs);
                let fused = fuse(&model);
                let inputs = judge::inputs(&model, 2, true, Kind::Real);
                let ran = judge::agree(&model, &fused.model, &inputs, TOLERANCE);
                assert_eq!(ran, Ok(true), "{what}\n{}", text::print(&fused.model));
                nothing_is_left(&fused.model, &what);
            }
        }
    }
}

/// Operators left in a fused model.
fn count(model: &Model, op: &str) -> usize {
    model.graph().node.iter().filter(|node| node.op_type() == op).count()
}

fn fuse(model: &Model) -> unfold::Fused {
    unfold::fuse(model, &Default::default()).unwrap()
}

/// tf2onnx writes Keras' LayerNormalization with BatchNormalization whose statistics are computed.
#[test]
fn a_layer_norm_in_the_clothes_of_a_batch_norm_is_left_alone() {
    let mut case = Case::new(7);
    let turned = case.builder.op("Transpose", &["x"], vec![("perm", vec![1, 0, 2].into())]);
    let mean = case.builder.ints(&[0, 2]);
    let mean = case.builder.op("ReduceMean", &[&turned, &mean], vec![("keepdims", 0.into())]);
    let (ones, zeros) = (case.constant(&[4], 1.0, 2.0), case.constant(&[4], 0.0, 1.0));
    let normed = case.op("BatchNormalization", &[&turned, &ones, &zeros, &mean, &ones]);
    let output = case.reader(&normed);
    let model = case.finish(&output);
    let fused = fuse(&model);
    assert_eq!(fused.plan.sites[0].kind.name, "BN");
    assert!(matches!(&fused.plan.sites[0].post, Some(Outcome::Kept { forward, .. })
        if forward.reason == unfold::refusal::Reason::NotConstant));
    assert_eq!(count(&fused.model, "BatchNormalization"), 1);
}

/// A γ that broadcasts over the tokens instead of the channels is on another axis, though as long.
#[test]
fn a_scale_of_tokens_is_not_one_of_channels() {
    let mut case = Case::new(8);
    let normed = case.rms("x", "x", &[-1]);
    let gamma = case.constant(&[4, 1], -2.0, 2.0);
    let scaled = case.op("Mul", &[&normed, &gamma]);
    let output = case.reader(&scaled);
    let model = case.finish(&output);
    let fused = fuse(&model);
    let x = Case::new(9).array(&SHAPE, -2.0, 2.0);
    let difference = compute(&model, &x) - compute(&fused.model, &x);
    assert!(difference.iter().all(|v| v.abs() < 1e-6), "{difference}");
    // MatMul contracts the channels: a scale of each token cannot go into its weight.
    assert!(fused.plan.sites.iter().all(|site| !is_folded(site)));
}

/// GELU by its tanh is no Dynamic Tanh, nor is a Tanh whose scale varies at run time.
#[test]
fn a_tanh_alone_is_no_dynamic_tanh() {
    let mut case = Case::new(10);
    let (half, one) = (case.number(0.5), case.number(1.0));
    let (cubic, slope) = (case.number(0.044715), case.number(0.79788));
    let square = case.op("Mul", &["x", "x"]);
    let cube = case.op("Mul", &[&square, "x"]);
    let cube = case.op("Mul", &[&cube, &cubic]);
    let inner = case.op("Add", &["x", &cube]);
    let inner = case.op("Mul", &[&inner, &slope]);
    let tanh = case.op("Tanh", &[&inner]);
    let outer = case.op("Add", &[&tanh, &one]);
    let gelu = case.op("Mul", &["x", &outer]);
    let gelu = case.op("Mul", &[&gelu, &half]);
    let output = case.reader(&gelu);
    let model = case.finish(&output);
    let fused = fuse(&model);
    assert!(fused.plan.sites.iter().all(|site| site.kind.name != "DyT"), "{:?}", fused.plan.sites);
    assert_eq!(fused.model.proto, model.proto);
}

/// Statistics of runs of channels of one item, whose γ and β come when they are in their places.
#[test]
fn what_only_looks_like_group_normalization_is_not_listed_as_it() {
    let twins = [Groups::None, Groups::OtherChannels, Groups::Interleaved, Groups::Batch, Groups::Scaled];
    for seed in 0..24 {
        for twin in twins {
            let mut case = Case::new(seed);
            let normed = case.grouped("x", twin);
            let turned = case.turned(&normed);
            let output = case.reader(&turned);
            let model = case.finish(&output);
            let fused = fuse(&model);
            let listed = fused.plan.sites.iter().find(|site| site.kind.name == "GN");
            assert_eq!(listed.is_some(), twin == Groups::None, "{twin:?}: {:?}", fused.plan.sites);
            assert!(listed.is_none_or(is_folded), "{twin:?}: {:?}", fused.plan.sites);
            let x = Case::new(seed + 1).array(&SHAPE, -2.0, 2.0);
            let difference = compute(&model, &x) - compute(&fused.model, &x);
            assert!(difference.iter().all(|v| v.abs() < 1e-5), "{twin:?} {seed}: {difference}");
        }
    }
}

/// More than one mean and more than one variance, all of the value that is normalized, or no SN.
#[test]
fn what_only_looks_like_switchable_normalization_is_not_listed_as_it() {
    for seed in 0..24 {
        for twin in [Twin::None, Twin::OneOfEach, Twin::SumOfSquares, Twin::OwnWeight] {
            for other in [false, true] {
                let mut case = Case::new(seed);
                let of = if other { case.op("Tanh", &["x"]) } else { "x".to_owned() };
                let normed = case.switchable("x", &of, twin);
                let output = case.reader(&normed);
                let model = case.finish(&output);
                let fused = fuse(&model);
                let listed = fused.plan.sites.iter().any(|site| site.kind.name == "SN");
                assert_eq!(listed, twin == Twin::None && !other, "{twin:?} {other}: {:?}", fused.plan.sites);
                let x = Case::new(seed + 1).array(&SHAPE, -2.0, 2.0);
                let (before, after) = (compute(&model, &x), compute(&fused.model, &x));
                for (before, after) in before.iter().zip(&after).filter(|(before, _)| before.is_finite()) {
                    assert!((before - after).abs() < 1e-5 * before.abs().max(1.0), "{twin:?} {other}");
                }
            }
        }
    }
}

/// An opaque node with an attribute that the convention does not know is not guessed at.
#[test]
fn an_opaque_node_is_understood_whole_or_not_at_all() {
    let mut case = Case::new(11);
    let (alpha, gamma) = (case.constant(&[1], 0.5, 1.0), case.constant(&[4], 0.5, 1.0));
    let attrs: Attrs = vec![("mode", "fancy".into())];
    let mut call = node("DyT", &["x", &alpha, &gamma], &["normed"], attrs);
    call.domain = Some("some.norms".into());
    case.builder.graph().node.push(call);
    let output = case.reader("normed");
    let model = case.finish(&output);
    assert_eq!(fuse(&model).model.proto, model.proto);
}

/// A runtime's normalizer hands on the sum that it normalizes: the residual stream of a pre-norm
/// network, whose shape the next one has.
#[test]
fn a_residual_stream_of_sums_keeps_its_shape() {
    for op in ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"] {
        let mut case = Case::new(13);
        let (mut stream, mut branch) = ("x".to_owned(), case.op("Tanh", &["x"]));
        for _ in 0..3 {
            let gamma = case.constant(&[4], -2.0, 2.0);
            let outputs = case.of_a_runtime(op, &[&stream, &branch, &gamma], vec![], 4);
            let weight = case.constant(&[4, 4], -1.0, 1.0);
            let linear = case.op("MatMul", &[&outputs[0], &weight]);
            (stream, branch) = (outputs[3].clone(), case.op("Tanh", &[&linear]));
        }
        let model = case.finish(&branch);
        let fused = fuse(&model);
        assert_eq!(fused.plan.sites.len(), 3);
        assert!(fused.plan.sites.iter().all(is_folded), "{:?}", fused.plan.sites);
        let x = Case::new(14).array(&SHAPE, -2.0, 2.0);
        let difference = compute(&model, &x) - compute(&fused.model, &x);
        assert!(difference.iter().all(|v| v.abs() < 1e-5), "{difference}");
    }
}

/// The second normalizer of DPN: its scale stays before the residual stream, its shift joins the
/// position embedding.
#[test]
fn the_shift_before_a_residual_stream_joins_the_position_embedding() {
    let mut case = Case::new(12);
    let (gamma, beta) = (case.array(&[4], 0.5, 2.0), case.array(&[4], -1.0, 1.0));
    let position = case.array(&[1, 4, 4], -1.0, 1.0);
    let names = [&gamma, &beta, &position].map(|array| case.builder.constant(array));
    let normed = case.op("LayerNormalization", &["x", &names[0], &names[1]]);
    let embedded = case.op("Add", &[&normed, &names[2]]);
    let inner = case.op("Tanh", &[&embedded]);
    let sum = case.op("Add", &[&embedded, &inner]);
    let fused = fuse(&case.finish(&sum));
    assert!(matches!(fused.plan.sites[0].post, Some(Outcome::Partly { .. })));
    let norm = &fused.model.graph().node[0];
    assert_eq!(norm.input.len(), 2, "β is left out");
    let joined =
        fused.model.graph().initializer.iter().find(|t| t.name() == fused.model.graph().node[1].input[1]);
    let expected = floats(joined.unwrap().name(), &(&position + &beta));
    assert_eq!(joined.unwrap().raw_data, expected.raw_data);
}
