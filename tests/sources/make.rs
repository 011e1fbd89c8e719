//! Random graphs with one source each, and patterns that resemble one.

use ndarray::{ArrayD, IxDyn};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use unfold::onnx::Model;
use unfold::onnx::proto::{FunctionProto, OperatorSetIdProto};

use crate::common::{Attrs, Builder, node};
pub struct Case {
    pub builder: Builder,
    pub rng: ChaCha8Rng,
    /// True if written-out sources have neither γ nor β.
    pub bare: bool,
}

impl Case {
    pub fn new(seed: u64) -> Self {
        let mut builder = Builder::new(18);
        builder.input("x", &["batch", "4", "4"]);
        Case {
            builder,
            rng: ChaCha8Rng::seed_from_u64(seed),
            bare: false,
        }
    }

    pub fn array(&mut self, shape: &[usize], low: f64, high: f64) -> ArrayD<f64> {
        ArrayD::from_shape_simple_fn(IxDyn(shape), || {
            f64::from(self.rng.random_range(low..high) as f32)
        })
    }

    pub fn constant(&mut self, shape: &[usize], low: f64, high: f64) -> String {
        let values = self.array(shape, low, high);
        self.builder.constant(&values)
    }

    /// A constant of one element.
    pub fn number(&mut self, value: f64) -> String {
        self.builder.constant(&ArrayD::from_elem(IxDyn(&[]), value))
    }

    pub fn op(&mut self, op: &str, inputs: &[&str]) -> String {
        self.builder.op(op, inputs, vec![])
    }

    /// A commutative operator with its operands in a random order.
    pub fn either(&mut self, op: &str, left: &str, right: &str) -> String {
        if self.rng.random() {
            self.op(op, &[left, right])
        } else {
            self.op(op, &[right, left])
        }
    }

    /// The value with tokens and channels transposed.
    pub fn turned(&mut self, value: &str) -> String {
        self.builder
            .op("Transpose", &[value], vec![("perm", vec![0, 2, 1].into())])
    }

    /// IN or GN as an operator. Before version 21, GN has one γ for each group.
    pub fn image_norm(&mut self, value: &str, kind: &str) -> String {
        let (op, attrs, version) = match (kind, self.rng.random()) {
            ("GN", false) => ("GroupNormalization", vec![("num_groups", 2.into())], 18),
            ("GN", true) => ("GroupNormalization", vec![("num_groups", 2.into())], 21),
            _ => ("InstanceNormalization", vec![], 18),
        };
        self.builder.proto.opset_import[0].version = Some(version);
        let count = if kind == "GN" && version < 21 { 2 } else { 4 };
        let (gamma, beta) = (
            self.constant(&[count], -2.0, 2.0),
            self.constant(&[count], -1.0, 1.0),
        );
        self.builder.op(op, &[value, &gamma, &beta], attrs)
    }

    pub fn mean(&mut self, value: &str, axes: &[i64]) -> String {
        let axes = self.builder.ints(axes);
        self.op("ReduceMean", &[value, &axes])
    }

    /// `γ·v + β` with γ of both signs, with or without β.
    pub fn affine(&mut self, value: &str, shape: &[usize]) -> String {
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

    /// A linear layer that reads a value, with or without a bias.
    pub fn reader(&mut self, value: &str) -> String {
        let weight = self.constant(&[4, 3], -1.0, 1.0);
        let product = self.op("MatMul", &[value, &weight]);
        if self.rng.random() {
            return product;
        }
        let bias = self.constant(&[3], -1.0, 1.0);
        self.either("Add", &product, &bias)
    }

    pub fn softsign(&mut self, value: &str) -> String {
        if self.rng.random() {
            return self.op("Softsign", &[value]);
        }
        let (size, one) = (self.op("Abs", &[value]), self.number(1.0));
        let below = self.either("Add", &size, &one);
        self.op("Div", &[value, &below])
    }

    /// DyT, DyS or DySS, with α of the shape `[1]` or `[]`.
    pub fn pointwise(&mut self, x: &str, kind: &str, shape: &[usize]) -> String {
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

    /// Derf, with or without its shift `s`.
    pub fn derf(&mut self, x: &str) -> String {
        let alpha = self.constant(&[1], 0.3, 1.5);
        let mut scaled = self.either("Mul", x, &alpha);
        if self.rng.random() {
            let shift = self.constant(&[1], -1.0, 1.0);
            scaled = self.either("Add", &scaled, &shift);
        }
        let bounded = self.op("Erf", &[&scaled]);
        self.affine(&bounded, &[4])
    }

    /// One of the other bounded functions in the paper of Derf.
    pub fn function(&mut self, z: &str) -> String {
        let one = self.number(1.0);
        let magnitude = |case: &mut Case| case.op("Abs", &[z]);
        match self.rng.random_range(0..6) {
            0 => {
                let square = self.op("Mul", &[z, z]);
                let below = self.either("Add", &square, &one);
                let root = self.op("Sqrt", &[&below]);
                self.op("Div", &[z, &root])
            }
            1 => {
                let (arc, factor) = (
                    self.op("Atan", &[z]),
                    self.number(std::f64::consts::FRAC_2_PI),
                );
                self.either("Mul", &arc, &factor)
            }
            2 => {
                let (sign, size) = (self.op("Sign", &[z]), magnitude(self));
                let (turned, falls) = (self.op("Neg", &[&sign]), self.op("Neg", &[&size]));
                let power = self.op("Exp", &[&falls]);
                let rest = self.op("Sub", &[&power, &one]);
                self.either("Mul", &turned, &rest)
            }
            3 => self.clip(z, 1.0),
            4 => {
                let clipped = self.clip(z, std::f64::consts::FRAC_PI_2);
                self.op("Sin", &[&clipped])
            }
            _ => {
                let (sign, size) = (self.op("Sign", &[z]), magnitude(self));
                let more = self.either("Add", &size, &one);
                let log = self.op("Log", &[&more]);
                let signed = self.either("Mul", &sign, &log);
                self.clip(&signed, 1.0)
            }
        }
    }

    fn clip(&mut self, value: &str, bound: f64) -> String {
        let (low, high) = (self.number(-bound), self.number(bound));
        self.op("Clip", &[value, &low, &high])
    }

    /// `g·x/√(mean((x − b)²))`, where g multiplies the reciprocal.
    pub fn bias_norm(&mut self, x: &str) -> String {
        let bias = self.constant(&[4], -1.0, 1.0);
        let (less, two, inverse) = (
            self.op("Sub", &[x, &bias]),
            self.number(2.0),
            self.number(-0.5),
        );
        let square = self.op("Pow", &[&less, &two]);
        let mean = self.mean(&square, &[-1]);
        let mut factor = self.op("Pow", &[&mean, &inverse]);
        if !self.bare {
            let g = self.constant(&[], 0.5, 2.0);
            factor = self.either("Mul", &factor, &g);
        }
        self.either("Mul", x, &factor)
    }

    /// `x/√(mean(v²) + ε)`, in the forms that exporters write.
    pub fn rms(&mut self, x: &str, value: &str, axes: &[i64]) -> String {
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

    /// A written-out Group Normalization with two groups of the channels on axis 1.
    pub fn grouped(&mut self, x: &str, twin: Groups) -> String {
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
            let one = self
                .builder
                .constant(&ArrayD::from_elem(IxDyn(&[2]), scaled));
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
    pub fn scale_norm(&mut self, x: &str) -> String {
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
        if self.rng.random() {
            // The form of the paper: x·(g/‖x‖).
            let g = self.constant(&[1], -2.0, 2.0);
            let factor = self.op("Div", &[&g, &norm]);
            return self.either("Mul", x, &factor);
        }
        let normed = self.op("Div", &[x, &norm]);
        let shape: &[usize] = if self.rng.random() { &[1] } else { &[4] };
        let g = self.constant(shape, -2.0, 2.0);
        self.either("Mul", &normed, &g)
    }

    /// `w·v` for a number `w`.
    pub fn weighted(&mut self, value: &str, weight: f64) -> String {
        let weight = self.number(weight);
        self.either("Mul", value, &weight)
    }

    /// Switchable Normalization with channels on the last axis, by equation (3) of its paper. The
    /// statistics are those of `of`.
    pub fn switchable(&mut self, x: &str, of: &str, twin: Twin) -> String {
        let (places, channels): (&[i64], &[i64]) = (&[1], &[2]);
        let square = |case: &mut Case, value: &str| {
            let two = case.number(2.0);
            if case.rng.random() {
                case.op("Pow", &[value, &two])
            } else {
                case.op("Mul", &[value, value])
            }
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
        let layer_mean = if self.rng.random() {
            self.mean(&mean, channels)
        } else {
            self.mean(of, &[1, 2])
        };
        let layer_moment = self.mean(&moment, channels);
        let layer_square = square(self, &layer_mean);
        let less = if twin == Twin::SumOfSquares {
            "Add"
        } else {
            "Sub"
        };
        let layer_variance = self.op(less, &[&layer_moment, &layer_square]);
        let mut mixed = vec![];
        for (own, layer, low) in [
            (&mean, &layer_mean, -1.0),
            (&variance, &layer_variance, 0.5),
        ] {
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

    /// A node in the domain of onnxruntime.
    pub fn of_a_runtime(
        &mut self,
        op: &str,
        inputs: &[&str],
        attrs: Attrs,
        outputs: usize,
    ) -> Vec<String> {
        let made = self.builder.op_many(op, inputs, attrs, outputs);
        let set = OperatorSetIdProto {
            domain: Some("com.microsoft".into()),
            version: Some(1),
        };
        if let Some(node) = self.builder.graph().node.last_mut() {
            node.domain = set.domain.clone();
        }
        if !self.builder.proto.opset_import.contains(&set) {
            self.builder.proto.opset_import.push(set);
        }
        made
    }

    /// The GroupNorm of onnxruntime on an image, with channels last or on the second axis.
    pub fn runtime_group_norm(&mut self, x: &str) -> String {
        let last = self.rng.random();
        let (image, whole) = (if last { [0, 2, 2, 4] } else { [0, 4, 2, 2] }, [0, 4, 4]);
        let (image, whole) = (self.builder.ints(&image), self.builder.ints(&whole));
        let turned = if last { x.to_owned() } else { self.turned(x) };
        let image = self.op("Reshape", &[&turned, &image]);
        let (gamma, beta) = (
            self.constant(&[4], -2.0, 2.0),
            self.constant(&[4], -1.0, 1.0),
        );
        let attrs: Attrs = vec![
            ("groups", 2.into()),
            ("activation", 0.into()),
            ("channels_last", i64::from(last).into()),
        ];
        let normed = self
            .of_a_runtime("GroupNorm", &[&image, &gamma, &beta], attrs, 1)
            .remove(0);
        let tokens = self.op("Reshape", &[&normed, &whole]);
        if last { tokens } else { self.turned(&tokens) }
    }

    /// A normalizer of onnxruntime. Those that begin with `Skip` first add a second operand and may
    /// add a bias.
    pub fn runtime_norm(&mut self, x: &str, op: &str) -> String {
        let skips = op.starts_with("Skip");
        let simplified = op.contains("Simplified");
        let mut inputs = vec![x.to_owned()];
        if skips {
            inputs.push(self.op("Tanh", &[x]));
        }
        inputs.push(self.constant(&[4], -2.0, 2.0));
        if !simplified {
            let some = self.rng.random();
            inputs.push(if some {
                self.constant(&[4], -1.0, 1.0)
            } else {
                String::new()
            });
        }
        if skips && self.rng.random() {
            inputs.push(self.constant(&[4], -1.0, 1.0));
        }
        let attrs: Attrs = vec![("epsilon", 1e-3f32.into())];
        let outputs = if skips && self.rng.random() { 4 } else { 1 };
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let made = self.of_a_runtime(op, &inputs, attrs, outputs);
        if let [normed, _, _, sum] = &made[..] {
            // The sum of the operands continues the residual stream.
            self.builder.output(sum);
            return normed.clone();
        }
        made[0].clone()
    }

    /// Algorithm 1 of the DTN paper with two heads.
    pub fn dynamic_token(&mut self, x: &str) -> String {
        let logits = self.array(&[2, 4, 4], -2.0, 2.0);
        let uniform = self.rng.random_range(0..4) == 0;
        let logits = self
            .builder
            .constant(&if uniform { logits * 0.0 } else { logits });
        let mixing = self
            .builder
            .op("Softmax", &[&logits], vec![("axis", (-1i64).into())]);
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
            case.builder.op(
                "Transpose",
                &[&apart],
                vec![("perm", vec![0, 2, 1, 3].into())],
            )
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
            let (intra, inter) = (
                self.either("Mul", &ratio, &intra),
                self.either("Mul", &rest, &inter),
            );
            let both = self.either("Add", &intra, &inter);
            let turned = self.builder.op(
                "Transpose",
                &[&both],
                vec![("perm", vec![0, 2, 1, 3].into())],
            );
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

    /// Applies one of [`SOURCES`] to a value.
    pub fn source(&mut self, kind: &str, x: &str) -> String {
        match kind {
            "DyT" | "DyS" | "DySS" => self.pointwise(x, kind, &[4]),
            "Derf" => self.derf(x),
            "pointwise" => {
                let alpha = self.constant(&[1], 0.3, 1.5);
                let scaled = self.either("Mul", x, &alpha);
                let bounded = self.function(&scaled);
                self.affine(&bounded, &[4])
            }
            "BiasNorm" => self.bias_norm(x),
            "DyT first" => {
                // The channels are on the second axis, as in an image.
                let turned = self.turned(x);
                let normed = self.pointwise(&turned, "DyT", &[4, 1]);
                self.turned(&normed)
            }
            "LN" => {
                let (gamma, beta) = (
                    self.constant(&[4], -2.0, 2.0),
                    self.constant(&[4], -1.0, 1.0),
                );
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
                let (mean, std) = (
                    self.constant(&[1, 1, 4], -1.0, 1.0),
                    self.constant(&[1, 1, 4], 0.5, 2.0),
                );
                let centred = self.op("Sub", &[x, &mean]);
                self.op("Div", &[&centred, &std])
            }
            source => panic!("no source is called {source}"),
        }
    }

    pub fn finish(self, output: &str) -> Model {
        self.builder.model(&[output])
    }
}

/// Patterns that resemble Switchable Normalization.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Twin {
    /// Nothing: it is one.
    None,
    /// The statistics of one set of axes only, which is Instance Normalization.
    OneOfEach,
    /// E[x²] + E[x]², which is no variance.
    SumOfSquares,
    /// The weight of the means is a statistic of the input.
    OwnWeight,
}

/// Patterns that resemble Group Normalization.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Groups {
    /// Nothing: it is one.
    None,
    /// The Reshape back gives channels other than the normalized ones.
    OtherChannels,
    /// A group consists of every second channel.
    Interleaved,
    /// The statistics are of the whole batch.
    Batch,
    /// Before γ, each group is scaled by its own number.
    Scaled,
}

/// A case and the kind of source that it must be listed as.
pub struct Wanted {
    pub kind: &'static str,
    pub original: Model,
    /// The model with an opaque node, which the original writes out.
    pub opaque: Option<Model>,
}

/// The sources that normalize one value.
pub const SOURCES: [&str; 23] = [
    "Derf",
    "pointwise",
    "BiasNorm",
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

/// All other sources.
pub const OTHERS: [&str; 6] = [
    "attention scale",
    "LayerScale",
    "residual scale",
    "opaque DyT",
    "opaque UN",
    "function DyT",
];

/// The kind that the plan lists a source as.
pub fn listed(source: &'static str) -> &'static str {
    match source {
        "DyT first" | "opaque DyT" | "function DyT" => "DyT",
        "LN written out" | "SkipLayerNormalization" => "LN",
        "Gemma" | "SimplifiedLayerNormalization" | "SkipSimplifiedLayerNormalization" => "RMSNorm",
        "GroupNorm" | "GN written out" => "GN",
        "opaque UN" => "UN",
        source => source,
    }
}

/// A random graph with one source, which the seed chooses.
pub fn make(seed: u64) -> Wanted {
    let mut case = Case::new(seed);
    let all = [&SOURCES[..], &OTHERS].concat();
    let kind = all[(seed % all.len() as u64) as usize];
    // In front is a linear layer that nothing else reads, except for standardisation.
    let front = case.constant(&[4, 4], -1.0, 1.0);
    let x = if kind == "standardisation" {
        "x".to_owned()
    } else {
        case.op("MatMul", &["x", &front])
    };
    let name = listed(kind);
    let normed = match kind {
        "attention scale" => return attention(case, &x),
        "LayerScale" | "residual scale" => {
            let weight = case.constant(&[4, 4], -1.0, 1.0);
            let count = if kind == "LayerScale" { 4 } else { 1 };
            let (linear, gamma) = (
                case.op("MatMul", &[&x, &weight]),
                case.constant(&[count], -1.0, 1.0),
            );
            let scaled = case.either("Mul", &linear, &gamma);
            let sum = case.either("Add", &scaled, "x");
            return Wanted {
                kind: name,
                original: case.finish(&sum),
                opaque: None,
            };
        }
        source if SOURCES.contains(&source) => case.source(source, &x),
        opaque => return opaque_case(case, &x, opaque, name),
    };
    let output = case.reader(&normed);
    Wanted {
        kind: name,
        original: case.finish(&output),
        opaque: None,
    }
}

pub fn group_scaled(case: &mut Case, x: &str) -> String {
    let apart = case.builder.ints(&[0, 0, 2, -1]);
    let grouped = case.op("Reshape", &[x, &apart]);
    let square = case.op("Mul", &[&grouped, &grouped]);
    let axes = case.builder.ints(&[-1]);
    let moment = case.builder.op(
        "ReduceMean",
        &[&square, &axes],
        vec![("keepdims", 0.into())],
    );
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

/// Attention with one head, with the scale on the queries, on both operands, or on the scores.
pub fn attention(mut case: Case, x: &str) -> Wanted {
    let where_to = case.rng.random_range(0..3);
    let scale = case.constant(&[], 0.2, 0.8);
    let mut operands = vec![];
    for _ in 0..3 {
        let weight = case.constant(&[4, 4], -1.0, 1.0);
        operands.push(case.op("MatMul", &[x, &weight]));
    }
    let (mut q, mut k, v) = (
        operands[0].clone(),
        operands[1].clone(),
        operands[2].clone(),
    );
    if where_to < 2 {
        q = case.either("Mul", &q, &scale);
    }
    if where_to == 1 {
        k = case.either("Mul", &k, &scale);
    }
    let k = case
        .builder
        .op("Transpose", &[&k], vec![("perm", vec![0, 2, 1].into())]);
    let mut scores = case.op("MatMul", &[&q, &k]);
    if where_to == 2 {
        scores = case.op("Div", &[&scores, &scale]);
    }
    let weights = case
        .builder
        .op("Softmax", &[&scores], vec![("axis", (-1i64).into())]);
    let output = case.op("MatMul", &[&weights, &v]);
    Wanted {
        kind: "attention scale",
        original: case.finish(&output),
        opaque: None,
    }
}

/// A model with an opaque node, and the same model with its definition.
pub fn opaque_case(mut case: Case, x: &str, how: &str, kind: &'static str) -> Wanted {
    let (alpha, gamma) = (case.array(&[1], 0.3, 1.5), case.array(&[4], -2.0, 2.0));
    let (beta, variance) = (case.array(&[4], -1.0, 1.0), case.array(&[4], 0.5, 2.0));
    let names = [&alpha, &gamma, &beta, &variance].map(|array| case.builder.constant(array));
    let [alpha, gamma, beta, variance] = &names;
    let mut twin = Case {
        builder: case.builder.clone(),
        rng: case.rng.clone(),
        bare: false,
    };
    let written = if kind == "DyT" {
        let scaled = twin.op("Mul", &[x, alpha]);
        let bounded = twin.op("Tanh", &[&scaled]);
        let scaled = twin.op("Mul", &[&bounded, gamma]);
        twin.op("Add", &[&scaled, beta])
    } else {
        let epsilon = twin
            .builder
            .constant(&ArrayD::from_elem(IxDyn(&[]), f64::from(1e-3f32)));
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
    let mut call = node(
        if kind == "DyT" { "DyT" } else { "UN1d" },
        &inputs,
        &["normed"],
        attrs,
    );
    call.domain = Some("some.norms".into());
    let sets = |version| {
        vec![OperatorSetIdProto {
            domain: None,
            version: Some(version),
        }]
    };
    if how == "function DyT" {
        let names = |list: &[&str]| {
            list.iter()
                .map(|name| (*name).to_owned())
                .collect::<Vec<_>>()
        };
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
    let domain = OperatorSetIdProto {
        domain: Some("some.norms".into()),
        version: Some(1),
    };
    case.builder.proto.opset_import.push(domain);
    // Both models get the same reader.
    twin.rng = case.rng.clone();
    let (output, opaque_output) = (twin.reader(&written), case.reader("normed"));
    Wanted {
        kind,
        original: twin.finish(&output),
        opaque: Some(case.finish(&opaque_output)),
    }
}
