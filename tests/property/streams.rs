//! Random residual streams: writers, readers, and normalizers on them, offline and online.

use ndarray::{ArrayD, IxDyn};

use crate::common::{Attrs, Builder};
use crate::generate::Case;
use crate::tape::Tape;

const CHANNELS: usize = 4;
const TOKENS: usize = 2;

/// Generates the graph that the bytes determine. All of its numbers are exact, also after a change
/// of the basis.
pub fn stream(bytes: &[u8]) -> Case {
    spelled(bytes, false)
}

/// Like [`stream`], with normalizers that compute their statistics from the input.
pub fn normalized(bytes: &[u8]) -> Case {
    spelled(bytes, true)
}

fn spelled(bytes: &[u8], is_online: bool) -> Case {
    let mut maker = Maker {
        tape: Tape::new(bytes),
        builder: Builder::new(17),
        is_online,
    };
    let mut value = maker.stem();
    let mut streams = vec![];
    for _ in 0..1 + maker.tape.below(3) {
        if maker.tape.chance(15) {
            // Another stream, which may read this one.
            streams.push(std::mem::replace(&mut value, maker.stem()));
        }
        value = maker.block(&value, &streams);
        if maker.tape.chance(6) {
            maker.read(&value);
        }
    }
    streams.push(value);
    for stream in streams {
        maker.head(&stream);
    }
    Case {
        model: maker.builder.model(&[]),
        batch: 3,
    }
}

struct Maker<'t> {
    tape: Tape<'t>,
    builder: Builder,
    /// Whether normalizers compute their statistics from the input.
    is_online: bool,
}

impl Maker<'_> {
    fn op(&mut self, op: &str, inputs: &[&str], attrs: Attrs) -> String {
        self.builder.op(op, inputs, attrs)
    }

    fn with(&mut self, op: &str, value: &str, among: &[f64], shape: &[usize]) -> String {
        let mut numbers = self.tape.numbers();
        let draw = || among[(numbers.any() % among.len() as u64) as usize];
        let constant = self
            .builder
            .constant(&ArrayD::from_shape_simple_fn(IxDyn(shape), draw));
        self.op(op, &[value, &constant], vec![])
    }

    fn linear(&mut self, value: &str, outer: usize) -> String {
        let product = self.with("MatMul", value, &[-1.0, 0.0, 1.0, 1.0], &[CHANNELS, outer]);
        match self.tape.chance(60) {
            true => self.with("Add", &product, &[-1.0, 0.0, 1.0, 2.0], &[outer]),
            false => product,
        }
    }

    fn stem(&mut self) -> String {
        let name = self.builder.fresh("x");
        let [tokens, channels] = [TOKENS, CHANNELS].map(|n| n.to_string());
        let input = self.builder.input(&name, &["batch", &tokens, &channels]);
        let written = match self.tape.below(3) {
            0 => self.linear(&input, CHANNELS),
            1 => self.op("Relu", &[&input], vec![]),
            _ => {
                // A separate token before the others.
                let one = self.builder.ints(&[0]);
                let first = self.op("Gather", &[&input, &one], vec![("axis", 1.into())]);
                let (first, all) = (self.linear(&first, CHANNELS), self.linear(&input, CHANNELS));
                let (from, to) = (self.builder.ints(&[1]), self.builder.ints(&[TOKENS as i64]));
                let axis = self.builder.ints(&[1]);
                let rest = self.op("Slice", &[&all, &from, &to, &axis], vec![]);
                self.op("Concat", &[&first, &rest], vec![("axis", 1.into())])
            }
        };
        let written = match self.tape.chance(30) {
            true => self.with("Add", &written, &[-1.0, 0.0, 1.0], &[TOKENS, CHANNELS]),
            false => written,
        };
        if self.tape.chance(40) {
            self.normalizer(&written)
        } else {
            written
        }
    }

    /// A block with post-norm mostly, or with pre-norm, or with both.
    fn block(&mut self, value: &str, others: &[String]) -> String {
        let order = self.tape.below(8);
        let read = if order > 5 {
            self.normalizer(value)
        } else {
            value.to_owned()
        };
        let branch = self.branch(&read, others);
        let sum = match self.tape.below(4) {
            0 | 1 => self.op("Add", &[value, &branch], vec![]),
            2 => self.op("Add", &[&branch, value], vec![]),
            _ => self.op("Sub", &[value, &branch], vec![]),
        };
        if order == 7 {
            sum
        } else {
            self.normalizer(&sum)
        }
    }

    fn branch(&mut self, value: &str, others: &[String]) -> String {
        let turned = || -> Attrs { vec![("perm", vec![0, 2, 1].into())] };
        match self.tape.below(6) {
            0..=2 => {
                let hidden = self.linear(value, CHANNELS);
                let hidden = self.op("Relu", &[&hidden], vec![]);
                self.linear(&hidden, CHANNELS)
            }
            3 => {
                let other = if others.is_empty() {
                    value.to_owned()
                } else {
                    self.tape.pick(others)
                };
                let [query, key, item] =
                    [value, &other, &other].map(|from| self.linear(from, CHANNELS));
                let key = self.op("Transpose", &[&key], turned());
                let scores = self.op("MatMul", &[&query, &key], vec![]);
                let scores = self.op("Sign", &[&scores], vec![]);
                let mixed = self.op("MatMul", &[&scores, &item], vec![]);
                if self.tape.chance(70) {
                    self.linear(&mixed, CHANNELS)
                } else {
                    mixed
                }
            }
            4 => {
                let tokens = self.op("Transpose", &[value], turned());
                let mixed = self.with("MatMul", &tokens, &[-1.0, 0.0, 1.0], &[TOKENS, TOKENS]);
                self.op("Transpose", &[&mixed], turned())
            }
            _ => {
                let first = self.builder.ints(&[0]);
                let token = self.op("Gather", &[value, &first], vec![("axis", 1.into())]);
                let hidden = self.linear(&token, CHANNELS);
                let hidden = self.op("Relu", &[&hidden], vec![]);
                self.linear(&hidden, CHANNELS)
            }
        }
    }

    fn normalizer(&mut self, value: &str) -> String {
        if self.is_online {
            return self.online(value);
        }
        let none = if self.tape.chance(4) { 0.0 } else { 1.0 };
        let scales = [2.0, 0.5, 1.0, -1.0, none];
        let shifts = [-1.0, 0.0, 1.0, 2.0];
        match self.tape.below(4) {
            0 => self.with("Mul", value, &scales, &[CHANNELS]),
            1 => {
                let centred = self.with("Sub", value, &shifts, &[CHANNELS]);
                self.with("Div", &centred, &[2.0, 0.5, -1.0], &[CHANNELS])
            }
            2 => {
                let turned = || -> Attrs { vec![("perm", vec![0, 2, 1].into())] };
                let there = self.op("Transpose", &[value], turned());
                let scaled = self.with("Mul", &there, &scales, &[CHANNELS, 1]);
                let shifted = self.with("Add", &scaled, &shifts, &[CHANNELS, 1]);
                self.op("Transpose", &[&shifted], turned())
            }
            _ => {
                let scaled = self.with("Mul", value, &scales, &[CHANNELS]);
                self.with("Add", &scaled, &shifts, &[CHANNELS])
            }
        }
    }

    /// A normalizer with statistics of its input, as one operator or as several ones.
    fn online(&mut self, value: &str) -> String {
        let scalar = |maker: &mut Self, number: f64| {
            maker.builder.constant(&ndarray::arr0(number).into_dyn())
        };
        let mean = |maker: &mut Self, of: &str| {
            maker.op(
                "ReduceMean",
                &[of],
                vec![("axes", vec![-1].into()), ("keepdims", 1.into())],
            )
        };
        if self.tape.chance(40) {
            let scale = self
                .builder
                .constant(&ArrayD::from_elem(IxDyn(&[CHANNELS]), 3.0));
            return self.op(
                "LayerNormalization",
                &[value, &scale],
                vec![("axis", (-1).into())],
            );
        }
        let centred = match self.tape.chance(50) {
            true => {
                let mean = mean(self, value);
                self.op("Sub", &[value, &mean], vec![])
            }
            false => value.to_owned(),
        };
        let two = scalar(self, 2.0);
        let squares = self.op("Pow", &[&centred, &two], vec![]);
        let variance = mean(self, &squares);
        let epsilon = scalar(self, 0.01);
        let variance = self.op("Add", &[&variance, &epsilon], vec![]);
        let root = self.op("Sqrt", &[&variance], vec![]);
        let normalized = match self.tape.chance(50) {
            true => self.op("Div", &[&centred, &root], vec![]),
            false => {
                let reciprocal = self.op("Reciprocal", &[&root], vec![]);
                self.op("Mul", &[&centred, &reciprocal], vec![])
            }
        };
        self.with("Mul", &normalized, &[2.0, 0.75, -3.0], &[CHANNELS])
    }

    /// A reader whose result depends on the basis.
    fn read(&mut self, value: &str) {
        let seen = match self.tape.below(4) {
            0 | 1 => self.op("Relu", &[value], vec![]),
            2 if self.is_online => self.op("Tanh", &[value], vec![]),
            _ => value.to_owned(),
        };
        self.builder.output(&seen);
    }

    fn head(&mut self, value: &str) {
        let end = if self.tape.chance(75) {
            self.linear(value, 3)
        } else {
            value.to_owned()
        };
        let is_new = self
            .builder
            .graph()
            .output
            .iter()
            .all(|output| output.name() != end);
        if is_new {
            self.builder.output(&end);
        }
    }
}
