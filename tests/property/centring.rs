//! Random residual streams before LayerNormalizations, with random writers and readers.

use ndarray::{ArrayD, IxDyn};
use unfold::FuseOptions;
use unfold::onnx::{DataType, Model};
use unfold::plan::Centring;
use unfold::prove::{Proof, ProveOptions, prove};

use crate::Counts;
use crate::common::numbers::Kind;
use crate::common::{Attrs, Builder, check_new_tensors, declared, judge, options, text};
use crate::tape::Tape;

const CHANNELS: usize = 4;
const TOKENS: usize = 3;

/// New constants are rounded once to float32, and means are subtracted in another order.
const TOLERANCE: f64 = 5e-6;

/// Centres the streams of the graph that the bytes determine. Returns the first error that is
/// found.
pub fn check(bytes: &[u8], counts: &mut Counts) -> Result<(), String> {
    let model = stream(bytes);
    let told = |why: String| format!("{why}\n{}", text::print(&model));
    let options = FuseOptions {
        centre: true,
        ..options()
    };
    let fused = unfold::fuse(&model, &options).map_err(|error| told(error.to_string()))?;
    let told = |why: String| told(format!("{why}\nfused:\n{}", text::print(&fused.model)));
    check_new_tensors(&model, &fused).map_err(told)?;
    let mut count = |what: &str| *counts.entry(what.into()).or_default() += 1;
    for stream in &fused.plan.streams {
        count(match &stream.centring {
            None => "no mean",
            Some(Centring::Kept { why }) => why.reason.name(),
            Some(Centring::Centred { subtracted, .. }) if subtracted.is_empty() => "centred",
            Some(Centring::Centred { .. }) => "subtracted",
        });
    }
    match prove(
        &model,
        &fused.model,
        &fused.plan.tensors,
        &ProveOptions::default(),
    ) {
        Proof::Proved { .. } => count("proved"),
        proof => return Err(told(format!("{proof:?}"))),
    }
    for batch in [2, 1] {
        let inputs = judge::inputs(&model, batch, true, Kind::Real);
        if !judge::agree(&model, &fused.model, &inputs, TOLERANCE).map_err(told)? {
            return Err(told("the graph cannot be run".into()));
        }
    }
    // Floats that become equal when they are stored can be merged only in the next run.
    let again = FuseOptions {
        skip: ["constant", "duplicate"].map(str::to_owned).to_vec(),
        ..options
    };
    let again = unfold::fuse(&fused.model, &again).map_err(|error| told(error.to_string()))?;
    if again.changed() {
        Err(told("it changes again".into()))
    } else {
        Ok(())
    }
}

fn stream(bytes: &[u8]) -> Model {
    let mut maker = Maker {
        tape: Tape::new(bytes),
        builder: Builder::new(17),
    };
    let mut value = maker.stem();
    let mut other = None;
    for _ in 0..1 + maker.tape.below(3) {
        if maker.tape.chance(15) {
            other = Some(std::mem::replace(&mut value, maker.stem()));
        }
        value = maker.block(&value, other.as_deref());
    }
    maker.head(&value);
    if let Some(other) = other {
        maker.head(&other);
    }
    maker.builder.model(&[])
}

struct Maker<'t> {
    tape: Tape<'t>,
    builder: Builder,
}

impl Maker<'_> {
    fn op(&mut self, op: &str, inputs: &[&str], attrs: Attrs) -> String {
        self.builder.op(op, inputs, attrs)
    }

    fn constant(&mut self, shape: &[usize]) -> String {
        let mut numbers = self.tape.numbers();
        let draw = || (numbers.any() % 2001) as f64 / 1000.0 - 1.0;
        self.builder
            .constant(&ArrayD::from_shape_simple_fn(IxDyn(shape), draw))
    }

    fn with(&mut self, op: &str, value: &str, shape: &[usize]) -> String {
        let constant = self.constant(shape);
        let inputs = if self.tape.chance(30) {
            [&*constant, value]
        } else {
            [value, &*constant]
        };
        self.op(op, &inputs, vec![])
    }

    fn linear(&mut self, value: &str, outer: usize) -> String {
        let weight = self.constant(&[CHANNELS, outer]);
        let product = self.op("MatMul", &[value, &weight], vec![]);
        if self.tape.chance(60) {
            self.with("Add", &product, &[outer])
        } else {
            product
        }
    }

    fn turned(&mut self, value: &str) -> String {
        self.op("Transpose", &[value], vec![("perm", vec![0, 2, 1].into())])
    }

    fn stem(&mut self) -> String {
        let name = self.builder.fresh("x");
        let [tokens, channels] = [TOKENS, CHANNELS].map(|n| n.to_string());
        let input = self.builder.input(&name, &["batch", &tokens, &channels]);
        let mut written = match self.tape.below(6) {
            0 => self.linear(&input, CHANNELS),
            1 => {
                let group = if self.tape.chance(20) { 2 } else { 1 };
                let (weight, bias) = (
                    self.constant(&[CHANNELS, CHANNELS / group, 1]),
                    self.constant(&[CHANNELS]),
                );
                let image = self.turned(&input);
                let image = self.op(
                    "Conv",
                    &[&image, &weight, &bias],
                    vec![("group", (group as i64).into())],
                );
                self.turned(&image)
            }
            2 => {
                let (flat, back) = (
                    self.builder.ints(&[-1, CHANNELS as i64]),
                    self.builder.ints(&[-1, TOKENS as i64, CHANNELS as i64]),
                );
                let rows = self.op("Reshape", &[&input, &flat], vec![]);
                let turned = self.tape.chance(50);
                let (weight, bias) = (
                    self.constant(&[CHANNELS, CHANNELS]),
                    self.constant(&[CHANNELS]),
                );
                let attrs: Attrs =
                    vec![("transB", i64::from(turned).into()), ("alpha", 0.5.into())];
                let rows = self.op("Gemm", &[&rows, &weight, &bias], attrs);
                self.op("Reshape", &[&rows, &back], vec![])
            }
            3 => {
                let ids = self.builder.fresh("ids");
                self.builder.graph().input.push(declared(
                    &ids,
                    DataType::Int64,
                    &["batch", &tokens],
                ));
                let table = self.constant(&[CHANNELS, CHANNELS]);
                self.op("Gather", &[&table, &ids], vec![])
            }
            4 => {
                // A separate token before the others.
                let weight = self.constant(&[CHANNELS, CHANNELS]);
                let all = self.op("MatMul", &[&input, &weight], vec![]);
                let [from, to, axis] =
                    [1, TOKENS as i64, 1].map(|place| self.builder.ints(&[place]));
                let rest = self.op("Slice", &[&all, &from, &to, &axis], vec![]);
                let token = self.linear(&input, CHANNELS);
                let token = self.op("ReduceMean", &[&token], vec![("axes", vec![1].into())]);
                self.op("Concat", &[&token, &rest], vec![("axis", 1.into())])
            }
            _ if self.tape.chance(50) => input,
            _ => self.op("Tanh", &[&input], vec![]),
        };
        if self.tape.chance(40) {
            written = self.with("Add", &written, &[TOKENS, CHANNELS]);
        }
        if self.tape.chance(15) {
            written = self.with("Add", &written, &[1]);
        }
        if self.tape.chance(15) {
            written = self.with("Mul", &written, &[TOKENS, 1]);
        }
        if self.tape.chance(10) {
            self.normalized(&written)
        } else {
            written
        }
    }

    fn block(&mut self, value: &str, other: Option<&str>) -> String {
        let read = match other {
            Some(other) if self.tape.chance(30) => other.to_owned(),
            _ => value.to_owned(),
        };
        let read = if self.tape.chance(92) {
            self.normalized(&read)
        } else {
            read
        };
        let hidden = self.linear(&read, CHANNELS);
        let hidden = self.op("Tanh", &[&hidden], vec![]);
        let branch = if self.tape.chance(92) {
            self.linear(&hidden, CHANNELS)
        } else {
            hidden
        };
        match self.tape.below(4) {
            0 | 1 => self.op("Add", &[value, &branch], vec![]),
            2 => self.op("Add", &[&branch, value], vec![]),
            _ => self.op("Sub", &[value, &branch], vec![]),
        }
    }

    /// A normalization, as one operator or as several ones, along the last axis or on transposed
    /// tokens.
    fn normalized(&mut self, value: &str) -> String {
        if self.tape.chance(60) {
            let (scale, shift) = (self.constant(&[CHANNELS]), self.constant(&[CHANNELS]));
            let inputs = if self.tape.chance(20) {
                vec![value, &*scale]
            } else {
                vec![value, &*scale, &*shift]
            };
            return self.op("LayerNormalization", &inputs, vec![("epsilon", 0.1.into())]);
        }
        let turns = self.tape.chance(30);
        let x = if turns {
            self.turned(value)
        } else {
            value.to_owned()
        };
        let axes = || -> Attrs { vec![("axes", vec![if turns { 1 } else { -1 }].into())] };
        let mean = self.op("ReduceMean", &[&x], axes());
        let x = self.op("Sub", &[&x, &mean], vec![]);
        let squares = self.op("Mul", &[&x, &x], vec![]);
        let variance = self.op("ReduceMean", &[&squares], axes());
        let epsilon = self.builder.constant(&ArrayD::from_elem(IxDyn(&[]), 0.1));
        let moment = self.op("Add", &[&variance, &epsilon], vec![]);
        let root = self.op("Sqrt", &[&moment], vec![]);
        let mut made = self.op("Div", &[&x, &root], vec![]);
        let shape: &[usize] = if turns { &[CHANNELS, 1] } else { &[CHANNELS] };
        if self.tape.chance(70) {
            made = self.with("Mul", &made, shape);
            made = self.with("Add", &made, shape);
        }
        if turns { self.turned(&made) } else { made }
    }

    /// Adds an output: mostly a normalizer and a linear operator, of all tokens, of one token, or
    /// of their mean.
    fn head(&mut self, value: &str) {
        let first = self.builder.ints(&[0]);
        let seen = match self.tape.below(3) {
            0 => value.to_owned(),
            1 => self.op("Gather", &[value, &first], vec![("axis", 1.into())]),
            _ => self.op("ReduceMean", &[value], vec![("axes", vec![1].into())]),
        };
        let seen = if self.tape.chance(85) {
            self.normalized(&seen)
        } else {
            seen
        };
        let end = self.linear(&seen, 2);
        self.builder.output(&end);
        if self.tape.chance(6) {
            let end = self.op("Identity", &[value], vec![]);
            self.builder.output(&end);
        }
    }
}
