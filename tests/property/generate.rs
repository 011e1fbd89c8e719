//! Generates random graphs around normalizers.
//!
//! Each node is computed as soon as it is added. The extents of all inputs are therefore known,
//! each graph is valid, and no number grows too large.
//! graph contradicts itself or has numbers that grow too large.

mod numbers;

use std::collections::{HashMap, HashSet};

use ndarray::{ArrayD, arr0, arr1};
use unfold::onnx::proto::{GraphProto, NodeProto};
use unfold::onnx::{DataType, Model};

use crate::common::judge;
use crate::common::numbers::{Kind, Role};
use crate::common::reference::{self, Env, Value};
use crate::common::{Attr, Attrs, Builder, declared, floats, node, undeclared};
use crate::tape::Tape;

/// A model that can be run.
pub struct Case {
    pub model: Model,
    /// The extent of the batch for which the graph was made.
    pub batch: usize,
}

/// The name of the input that decides between two bodies.
const CONDITION: &str = "condition";

/// The name of the input that says which rows of tables are taken.
const PLACES: &str = "places";

impl Case {
    /// Generates the graph that the bytes determine.
    pub fn new(bytes: &[u8], kind: Kind) -> Case {
        Maker::new(Tape::new(bytes), kind).make()
    }
}

struct Maker<'t> {
    tape: Tape<'t>,
    kind: Kind,
    opset: i64,
    builder: Builder,
    env: Env,
    /// The values that new nodes may read.
    pool: Vec<String>,
    read: HashSet<String>,
    outputs: Vec<String>,
    constants: HashMap<(Role, Vec<usize>), Vec<String>>,
    /// The module that nodes are named after.
    module: Option<String>,
    batch: usize,
    is_symbolic: bool,
}

/// The maximum number of elements of a value, and the largest number.
const LARGEST: usize = 2048;
const HIGHEST: f64 = 16384.0;
/// Every exact number is a multiple of this.
const FINEST: f64 = 1.0 / 1024.0;

impl<'t> Maker<'t> {
    fn new(mut tape: Tape<'t>, kind: Kind) -> Self {
        let opset = tape.pick(&[17, 13, 18, 21, 11]);
        let batch = tape.pick(&[2, 3, 4]);
        Maker {
            tape,
            kind,
            opset,
            builder: Builder::new(opset),
            env: Env::new(),
            pool: vec![],
            read: HashSet::new(),
            outputs: vec![],
            constants: HashMap::new(),
            module: None,
            batch,
            is_symbolic: false,
        }
    }

    fn make(mut self) -> Case {
        self.inputs();
        let mut value = self.pool[0].clone();
        if self.tape.chance(15) {
            value = self.embedding().unwrap_or(value);
        }
        for _ in 0..self.tape.below(3) {
            value = self.producer(&value).unwrap_or(value);
        }
        for round in 0..1 + self.tape.below(3) {
            if round > 0 {
                value = self.tape.pick(&self.pool);
            }
            self.round(value.clone());
        }
        self.finish()
    }

    /// Adds a normalizer, operators after it, and readers.
    fn round(&mut self, value: String) {
        self.module = self
            .tape
            .chance(25)
            .then(|| self.builder.fresh("block/norm"));
        let normalized = self.normalizer(&value);
        self.module = None;
        let Some(normalized) = normalized else { return };
        let first = self.pool.len();
        self.keep(&normalized);
        for _ in 0..self.tape.below(5) {
            let from = self.recent(first);
            if let Some(next) = self.travel(&from) {
                self.keep(&next);
            }
        }
        // Most sites have only readers that can absorb them. All other sites must stay, or fold
        // backward.
        let among = if self.tape.chance(30) { 10 } else { 2 };
        for _ in 0..1 + self.tape.below(4) {
            let from = self.recent(first);
            let next = match self.tape.below(among) {
                0 | 1 => self.linear(&from),
                2 | 3 => self.combine(&from),
                4 | 5 => self.nonlinear(&from),
                6 => self.capture(&from),
                7 => self.branches(&from),
                _ => self.normalizer(&from),
            };
            if let Some(next) = next {
                self.keep(&next);
            }
        }
    }

    fn producer(&mut self, value: &str) -> Option<String> {
        let made = match self.tape.below(5) {
            0 => self.travel(value)?,
            1 => self.combine(value)?,
            2 => self.branches(value)?,
            _ => self.linear(value)?,
        };
        self.keep(&made);
        Some(made)
    }

    /// The last value, or another one that is not older than `first`.
    fn recent(&mut self, first: usize) -> String {
        match self.tape.chance(30) {
            true => self.tape.pick(&self.pool[first..]),
            false => self.pool[self.pool.len() - 1].clone(),
        }
    }

    fn keep(&mut self, value: &str) {
        self.pool.push(value.to_owned());
        if self.tape.chance(2) {
            self.outputs.push(value.to_owned());
        }
    }

    fn inputs(&mut self) {
        let rank = self.tape.pick(&[3, 2, 4, 4, 5]);
        self.is_symbolic = self.tape.chance(50);
        let mut dims = vec![self.batch; rank];
        if !self.tape.chance(20) {
            let choices: &[usize] = if rank > 3 {
                &[4, 2, 3, 1]
            } else {
                &[4, 6, 8, 3, 2, 1]
            };
            dims[1..]
                .iter_mut()
                .for_each(|dim| *dim = self.tape.pick(choices));
        }
        let mut spelled: Vec<String> = dims.iter().map(usize::to_string).collect();
        if self.is_symbolic {
            spelled[0] = "batch".into();
        }
        let spelled: Vec<&str> = spelled.iter().map(String::as_str).collect();
        let count = self.tape.pick(&[1, 2]);
        for name in ["x", "y"].into_iter().take(count) {
            self.pool.push(self.builder.input(name, &spelled));
        }
        self.env = judge::inputs(
            &Model::from_proto(self.builder.proto.clone()),
            self.batch,
            true,
            self.kind,
        );
    }

    /// Rows of one or more tables, which an input selects. The rows of several tables are added.
    fn embedding(&mut self) -> Option<String> {
        let mut shape = self.shape(&self.pool[0]);
        let channels = shape.pop()?;
        let mut dims: Vec<String> = shape.iter().map(usize::to_string).collect();
        if self.is_symbolic {
            dims[0] = "batch".into();
        }
        let dims: Vec<&str> = dims.iter().map(String::as_str).collect();
        self.builder
            .graph()
            .input
            .push(declared(PLACES, DataType::Int64, &dims));
        let model = Model::from_proto(self.builder.proto.clone());
        self.env
            .extend(judge::inputs(&model, self.batch, true, self.kind));
        let mut sum: Option<String> = None;
        for _ in 0..1 + self.tape.below(3) {
            let rows = self.tape.pick(&[2, 3]);
            let table = self.constant(Role::Weight, &[rows, channels]);
            let picked = self.emit("Gather", &[&table, PLACES], vec![("axis", 0.into())])?;
            sum = match sum {
                Some(sum) => Some(self.either_order("Add", &sum, &picked)?),
                None => Some(picked),
            };
        }
        if self.tape.chance(30) {
            sum = Some(self.constant_on_the_way(&sum?)?);
        }
        sum.inspect(|sum| self.keep(sum))
    }

    fn shape(&self, value: &str) -> Vec<usize> {
        self.env[value].shape().to_vec()
    }

    fn fits(&self, value: &Value) -> bool {
        let Value::Floats(array) = value else {
            return true;
        };
        let fits = |&v: &f64| match self.kind {
            Kind::Exact => v.abs() <= HIGHEST && (v / FINEST).fract() == 0.0,
            Kind::Real => v.abs() <= HIGHEST,
        };
        !array.is_empty() && array.len() <= LARGEST && array.iter().all(fits)
    }

    /// Adds a node. `None` if it cannot be computed, or if its numbers are too large.
    fn emit_many(
        &mut self,
        op: &str,
        inputs: &[&str],
        attrs: Attrs,
        outputs: usize,
    ) -> Option<Vec<String>> {
        let names: Vec<String> = (0..outputs).map(|_| self.builder.fresh("v")).collect();
        let outputs: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut made = node(op, inputs, &outputs, attrs);
        if let Some(module) = &self.module {
            made.name = Some(format!("/{module}/{op}_{}", names[0]));
        }
        let values = self.compute(&made)?;
        self.env.extend(names.iter().cloned().zip(values));
        self.read
            .extend(inputs.iter().map(|name| (*name).to_owned()));
        self.builder.graph().node.push(made);
        Some(names)
    }

    fn compute(&self, made: &NodeProto) -> Option<Vec<Value>> {
        let values = reference::node(made, &self.env, self.opset).ok()?;
        values
            .iter()
            .all(|value| self.fits(value))
            .then_some(values)
    }

    fn emit(&mut self, op: &str, inputs: &[&str], attrs: Attrs) -> Option<String> {
        let made = self.emit_many(op, inputs, attrs, 1)?.remove(0);
        if self.tape.chance(1) {
            // A value inside a pattern also becomes an output.
            self.keep(&made);
        }
        Some(made)
    }

    /// A constant: a new or an existing one, stored or computed.
    fn constant(&mut self, role: Role, shape: &[usize]) -> String {
        let key = (role, shape.to_vec());
        if let Some(there) = self.constants.get(&key)
            && self.tape.chance(20)
        {
            return self.tape.pick(&there.clone());
        }
        let name = self.new_constant(role, shape);
        self.constants.entry(key).or_default().push(name.clone());
        name
    }

    fn new_constant(&mut self, role: Role, shape: &[usize]) -> String {
        let form = if self.tape.chance(15) {
            1 + self.tape.below(4)
        } else {
            0
        };
        let store = |maker: &mut Self, shape: &[usize]| {
            let array = maker.tape.numbers().array(shape, role, maker.kind);
            let name = maker.builder.constant(&array);
            maker.env.insert(name.clone(), Value::Floats(array));
            name
        };
        let made = match form {
            1 => {
                let stored = store(self, shape);
                self.emit_many("Identity", &[&stored], vec![], 1)
            }
            2 => {
                let turned: Vec<usize> = shape.iter().rev().copied().collect();
                let stored = store(self, &turned);
                self.emit_many("Transpose", &[&stored], vec![], 1)
            }
            3 => {
                let stored = store(self, &[shape.iter().product()]);
                let target: Vec<i64> = shape.iter().map(|&n| n as i64).collect();
                let target = self.ints(&target);
                self.emit_many("Reshape", &[&stored, &target], vec![], 1)
            }
            4 => {
                let array = self.tape.numbers().array(shape, role, self.kind);
                let name = self.builder.fresh("k");
                let value = vec![("value", Attr::Tensor(Box::new(floats("", &array))))];
                let made = node("Constant", &[""; 0], &[&name], value);
                self.builder.graph().node.push(made);
                self.env.insert(name.clone(), Value::Floats(array));
                Some(vec![name])
            }
            _ => None,
        };
        made.map_or_else(|| store(self, shape), |mut names| names.remove(0))
    }

    fn scalar(&mut self, number: f64) -> String {
        let array = arr0(number).into_dyn();
        let name = self.builder.constant(&array);
        self.env.insert(name.clone(), Value::Floats(array));
        name
    }

    fn ints(&mut self, list: &[i64]) -> String {
        let name = self.builder.ints(list);
        self.env
            .insert(name.clone(), Value::Ints(arr1(list).into_dyn()));
        name
    }

    fn axis(&mut self, axis: usize, rank: usize) -> i64 {
        if self.tape.chance(40) {
            axis as i64 - rank as i64
        } else {
            axis as i64
        }
    }

    /// Adds a list, such as axes, as an input, or as an attribute before operator set `since`.
    fn list(
        &mut self,
        inputs: &mut Vec<String>,
        attrs: &mut Attrs,
        name: &'static str,
        list: Vec<i64>,
        since: i64,
    ) {
        if self.opset >= since {
            inputs.push(self.ints(&list));
        } else {
            attrs.push((name, list.into()));
        }
    }

    fn emit_listed(
        &mut self,
        op: &str,
        value: &str,
        name: &'static str,
        list: Vec<i64>,
        since: i64,
        mut attrs: Attrs,
    ) -> Option<String> {
        let mut inputs = vec![value.to_owned()];
        self.list(&mut inputs, &mut attrs, name, list, since);
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        self.emit(op, &inputs, attrs)
    }

    // ---- normalizers ----

    fn normalizer(&mut self, value: &str) -> Option<String> {
        let rank = self.shape(value).len();
        match self.tape.below(8) {
            0 if rank >= 2 => self.batch_norm(value),
            1 if rank >= 3 => self.flattened(value),
            2 if rank >= 3 => self.transposed(value),
            3 if rank >= 2 => self.rep_bn(value),
            4 if rank == 3 => self.unified(value),
            5 => self.number(value),
            _ => self.written_out(value),
        }
    }

    fn batch_norm(&mut self, value: &str) -> Option<String> {
        let channels = self.shape(value)[1];
        let epsilon = self.tape.pick(&[0.0, 1.0 / 1024.0]);
        let [gamma, beta, mean] =
            [Role::Scale, Role::Shift, Role::Shift].map(|role| self.constant(role, &[channels]));
        let mut numbers = self.tape.numbers();
        let mut variance = || numbers.number(Role::Divisor, self.kind).powi(2) - f64::from(epsilon);
        let variance =
            ArrayD::from_shape_simple_fn(vec![channels], || f64::from(variance() as f32));
        let name = self.builder.constant(&variance);
        self.env.insert(name.clone(), Value::Floats(variance));
        self.emit(
            "BatchNormalization",
            &[value, &gamma, &beta, &mean, &name],
            vec![("epsilon", epsilon.into())],
        )
    }

    /// Flattens `[B, N, C]` to rows of channels, and restores the shape afterwards.
    fn flattened(&mut self, value: &str) -> Option<String> {
        let shape = self.shape(value);
        let channels = shape[shape.len() - 1];
        let rows = self.ints(&[-1, channels as i64]);
        let flat = self.emit("Reshape", &[value, &rows], vec![])?;
        let normalized = self.batch_norm(&flat)?;
        let back = self.target(&shape, &shape);
        self.emit("Reshape", &[&normalized, &back], vec![])
    }

    fn transposed(&mut self, value: &str) -> Option<String> {
        let rank = self.shape(value).len();
        let mut there: Vec<i64> = (0..rank as i64).collect();
        there.swap(1, rank - 1);
        let turned = self.emit("Transpose", &[value], vec![("perm", there.clone().into())])?;
        let normalized = self.batch_norm(&turned)?;
        self.emit("Transpose", &[&normalized], vec![("perm", there.into())])
    }

    fn rep_bn(&mut self, value: &str) -> Option<String> {
        let normalized = self.batch_norm(value)?;
        let beside = match self.tape.below(3) {
            0 => value.to_owned(),
            1 => {
                let alpha = self.constant(Role::Scale, &[1]);
                self.emit("Mul", &[value, &alpha], vec![])?
            }
            _ => self.written_out_on(value, 1)?,
        };
        let op = self.tape.pick(&["Add", "Sub"]);
        self.either_order(op, &normalized, &beside)
    }

    /// A UN1d of `[B, N, C]`, as exporters write it.
    fn unified(&mut self, value: &str) -> Option<String> {
        let shape = self.shape(value);
        let turned = self.emit("Transpose", &[value], vec![("perm", vec![0, 2, 1].into())])?;
        let (from, to) = (
            [shape[0], shape[2], shape[1]],
            [shape[0], shape[2], shape[1], 1],
        );
        let target = self.target(&from, &to);
        let image = self.emit("Reshape", &[&turned, &target], vec![])?;
        let normalized = self.written_out_on(&image, 1)?;
        let target = self.target(&to, &from);
        let turned = self.emit("Reshape", &[&normalized, &target], vec![])?;
        self.emit(
            "Transpose",
            &[&turned],
            vec![("perm", vec![0, 2, 1].into())],
        )
    }

    fn written_out(&mut self, value: &str) -> Option<String> {
        let shape = self.shape(value);
        let wide: Vec<usize> = (0..shape.len()).filter(|&axis| shape[axis] > 1).collect();
        let axis = if wide.is_empty() {
            0
        } else {
            self.tape.pick(&wide)
        };
        if shape.is_empty() {
            return None;
        }
        self.written_out_on(value, axis)
    }

    /// A chain of element-wise operators with one constant each, along one axis.
    fn written_out_on(&mut self, value: &str, axis: usize) -> Option<String> {
        let mut value = value.to_owned();
        for step in 0..1 + self.tape.below(4) {
            let op = if step == 0 {
                self.tape.pick(&["Mul", "Div"])
            } else {
                self.tape.pick(&["Add", "Mul", "Sub", "Div"])
            };
            value = self.arithmetic(op, &value, axis)?;
        }
        Some(value)
    }

    /// One element-wise operator with a constant that varies along at most one axis.
    fn arithmetic(&mut self, op: &str, value: &str, axis: usize) -> Option<String> {
        let shape = self.shape(value);
        let behind = shape.len() - axis - 1;
        let mut along = vec![
            1;
            if self.tape.chance(30) {
                shape.len()
            } else {
                behind + 1
            }
        ];
        let place = along.len() - 1 - behind;
        along[place] = if self.tape.chance(10) { 1 } else { shape[axis] };
        if self.tape.chance(5) {
            along = vec![];
        }
        let role = match op {
            "Mul" => Role::Scale,
            "Div" => Role::Divisor,
            _ => Role::Shift,
        };
        let constant = self.constant(role, &along);
        if op == "Div" {
            return self.emit("Div", &[value, &constant], vec![]);
        }
        self.either_order(op, value, &constant)
    }

    fn either_order(&mut self, op: &str, left: &str, right: &str) -> Option<String> {
        let turned = self.tape.chance(40);
        self.emit(
            op,
            &if turned { [right, left] } else { [left, right] },
            vec![],
        )
    }

    // ---- what an affine travels through ----

    fn travel(&mut self, value: &str) -> Option<String> {
        match self.tape.below(20) {
            0 | 1 => self.transpose(value),
            2 => self.reshape(value),
            3 => self.rearranged(value),
            4 => self.squeeze_or_not(value),
            5 => self.flatten(value),
            6 => self.slice(value),
            7 => self.split(value),
            8 if self.tape.chance(40) => self.gather_nd(value),
            8 => self.gather(value),
            9 | 10 => self.concat(value),
            11 => self.expand(value),
            12 => self.tile(value),
            13 => self.pass(value),
            14 => self.pad(value),
            15 => self.reduce(value),
            16 => self.average_pool(value),
            17 => self.by_computed_shape(value),
            18 => self.emit("Neg", &[value], vec![]),
            _ => self.constant_on_the_way(value),
        }
    }

    fn transpose(&mut self, value: &str) -> Option<String> {
        let rank = self.shape(value).len();
        if self.tape.chance(15) {
            return self.emit("Transpose", &[value], vec![]);
        }
        let mut left: Vec<i64> = (0..rank as i64).collect();
        let perm: Vec<i64> = (0..rank)
            .map(|_| left.remove(left.len() - 1 - self.tape.below(left.len())))
            .collect();
        self.emit("Transpose", &[value], vec![("perm", perm.into())])
    }

    /// The target of a Reshape. At most one extent is −1, and some extents are copied.
    fn target(&mut self, from: &[usize], to: &[usize]) -> String {
        let mut list: Vec<i64> = to.iter().map(|&n| n as i64).collect();
        let open = match self.tape.below(4) {
            3 => None,
            2 if !to.is_empty() => Some(self.tape.below(to.len())),
            _ => (!to.is_empty()).then_some(0),
        };
        for axis in 0..to.len() {
            if Some(axis) == open {
                list[axis] = -1;
            } else if from.get(axis) == Some(&to[axis]) && self.tape.chance(30) {
                list[axis] = 0;
            }
        }
        self.ints(&list)
    }

    fn reshape(&mut self, value: &str) -> Option<String> {
        let from = self.shape(value);
        let mut to = from.clone();
        for _ in 0..1 + self.tape.below(2) {
            let axis = self.tape.below(to.len().max(1));
            match self.tape.below(4) {
                0 if axis + 1 < to.len() => {
                    let next = to.remove(axis + 1);
                    to[axis] *= next;
                }
                1 => to.insert(axis.min(to.len()), 1),
                _ if axis < to.len() && to.len() < 6 => {
                    let divisors: Vec<usize> = (2..=to[axis])
                        .filter(|n| to[axis].is_multiple_of(*n))
                        .collect();
                    if divisors.is_empty() {
                        continue;
                    }
                    let first = self.tape.pick(&divisors);
                    to[axis] /= first;
                    to.insert(axis, first);
                }
                _ => {}
            }
        }
        let target = self.target(&from, &to);
        self.emit("Reshape", &[value, &target], vec![])
    }

    fn squeeze_or_not(&mut self, value: &str) -> Option<String> {
        let shape = self.shape(value);
        let ones: Vec<usize> = (0..shape.len()).filter(|&axis| shape[axis] == 1).collect();
        if !ones.is_empty() && self.tape.chance(60) {
            // Without axes, an open extent of 1 would change the rank.
            if !self.is_symbolic && self.tape.chance(20) {
                return self.emit("Squeeze", &[value], vec![]);
            }
            let axis = self.tape.pick(&ones);
            let axis = self.axis(axis, shape.len());
            return self.emit_listed("Squeeze", value, "axes", vec![axis], 13, vec![]);
        }
        let axis = self.tape.below(shape.len() + 1);
        let axis = self.axis(axis, shape.len() + 1);
        self.emit_listed("Unsqueeze", value, "axes", vec![axis], 13, vec![])
    }

    fn flatten(&mut self, value: &str) -> Option<String> {
        let axis = self.tape.below(self.shape(value).len() + 1) as i64;
        self.emit("Flatten", &[value], vec![("axis", axis.into())])
    }

    fn slice(&mut self, value: &str) -> Option<String> {
        let shape = self.shape(value);
        if shape.is_empty() {
            return None;
        }
        let (mut starts, mut ends, mut axes, mut steps) = (vec![], vec![], vec![], vec![]);
        for _ in 0..1 + self.tape.below(2) {
            let axis = shape.len() - 1 - self.tape.below(shape.len());
            let length = shape[axis] as i64;
            if axes
                .iter()
                .any(|&a: &i64| a.rem_euclid(shape.len() as i64) == axis as i64)
            {
                continue;
            }
            let step = self.tape.pick(&[1, 2, -1, -2]);
            let mut bounds = [self.tape.below(length as usize) as i64, length];
            if step < 0 {
                bounds = [
                    length - 1 - bounds[0],
                    self.tape.pick(&[i64::MIN, -length - 1, i64::MIN + 1]),
                ];
            } else if self.tape.chance(30) {
                bounds[1] = i64::MAX;
            } else if self.tape.chance(30) {
                bounds = [0, length - bounds[0]];
            }
            if bounds[0] < length && self.tape.chance(30) {
                bounds[0] -= length;
            }
            starts.push(bounds[0]);
            ends.push(bounds[1]);
            axes.push(self.axis(axis, shape.len()));
            steps.push(step);
        }
        let with_steps = steps.iter().any(|&step| step != 1) || self.tape.chance(50);
        let lists = [starts, ends, axes, steps].map(|list| self.ints(&list));
        let mut inputs = vec![value];
        inputs.extend(
            lists
                .iter()
                .take(3 + with_steps as usize)
                .map(String::as_str),
        );
        self.emit("Slice", &inputs, vec![])
    }

    fn split(&mut self, value: &str) -> Option<String> {
        let shape = self.shape(value);
        let axes: Vec<usize> = (0..shape.len())
            .rev()
            .filter(|&axis| shape[axis] > 1)
            .collect();
        if axes.is_empty() {
            return None;
        }
        let axis = self.tape.pick(&axes);
        let parts = self.tape.pick(&[2, 3]).min(shape[axis]);
        let mut attrs: Attrs = vec![("axis", self.axis(axis, shape.len()).into())];
        let mut inputs = vec![value.to_owned()];
        let even = shape[axis].is_multiple_of(parts);
        if even && self.tape.chance(60) {
            if self.opset >= 18 {
                attrs.push(("num_outputs", (parts as i64).into()));
            }
        } else {
            let mut lengths = vec![1; parts];
            lengths[self.tape.below(parts)] += (shape[axis] - parts) as i64;
            self.list(&mut inputs, &mut attrs, "split", lengths, 13);
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let made = self.emit_many("Split", &inputs, attrs, parts)?;
        made[1..].iter().for_each(|part| self.keep(part));
        Some(made[0].clone())
    }

    fn gather(&mut self, value: &str) -> Option<String> {
        let shape = self.shape(value);
        if shape.is_empty() {
            return None;
        }
        let axis = shape.len() - 1 - self.tape.below(shape.len());
        let dims: Vec<usize> =
            self.tape
                .pick(&[vec![2], vec![], vec![1], vec![2, 2], vec![3], vec![1, 2]]);
        let length = shape[axis] as i64;
        let indices = ArrayD::from_shape_simple_fn(dims, || {
            let place = self.tape.below(length as usize) as i64;
            if self.tape.chance(20) {
                place - length
            } else {
                place
            }
        });
        let name = self.indices(indices)?;
        let axis = self.axis(axis, shape.len());
        self.emit("Gather", &[value, &name], vec![("axis", axis.into())])
    }

    fn indices(&mut self, indices: ArrayD<i64>) -> Option<String> {
        let name = self.ints(&indices.iter().copied().collect::<Vec<_>>());
        let tensor = self.builder.graph().initializer.last_mut()?;
        tensor.dims = indices.shape().iter().map(|&n| n as i64).collect();
        self.env.insert(name.clone(), Value::Ints(indices));
        Some(name)
    }

    fn gather_nd(&mut self, value: &str) -> Option<String> {
        let shape = self.shape(value);
        if shape.is_empty() {
            return None;
        }
        let batch = if self.opset < 12 {
            0
        } else {
            self.tape.below(shape.len().min(3))
        };
        let indexed = &shape[batch..batch + 1 + self.tape.below((shape.len() - batch).min(2))];
        let picks = self.tape.pick(&[vec![], vec![2], vec![1], vec![2, 2]]);
        let dims = [&shape[..batch], &picks, &[indexed.len()]].concat();
        let mut place = 0;
        let indices = ArrayD::from_shape_simple_fn(dims, || {
            let length = indexed[place % indexed.len()];
            place += 1;
            let index = self.tape.below(length) as i64;
            if self.tape.chance(20) {
                index - length as i64
            } else {
                index
            }
        });
        let name = self.indices(indices)?;
        let attrs = if batch == 0 {
            vec![]
        } else {
            vec![("batch_dims", (batch as i64).into())]
        };
        self.emit("GatherND", &[value, &name], attrs)
    }

    fn concat(&mut self, value: &str) -> Option<String> {
        let shape = self.shape(value);
        if shape.is_empty() {
            return None;
        }
        let axis = shape.len() - 1 - self.tape.below(shape.len());
        let other = match self.tape.below(4) {
            0 => value.to_owned(),
            1 => {
                let mut beside = shape.clone();
                beside[axis] = self.tape.pick(&[1, 2]);
                self.constant(Role::Shift, &beside)
            }
            _ => {
                let fits = |other: &[usize]| {
                    other.len() == shape.len()
                        && (0..shape.len()).all(|a| a == axis || other[a] == shape[a])
                };
                self.partner(value, fits)?
            }
        };
        let axis = self.axis(axis, shape.len());
        let mut inputs = if self.tape.chance(40) {
            vec![&*other, value]
        } else {
            vec![value, &*other]
        };
        if self.tape.chance(20) {
            inputs.push(value);
        }
        self.emit("Concat", &inputs, vec![("axis", axis.into())])
    }

    /// Another value of the pool, of a shape that fits.
    fn partner(&mut self, value: &str, fits: impl Fn(&[usize]) -> bool) -> Option<String> {
        let all = self
            .pool
            .iter()
            .rev()
            .filter(|other| *other != value && fits(self.env[*other].shape()));
        let all: Vec<String> = all.cloned().collect();
        if all.is_empty() {
            None
        } else {
            Some(self.tape.pick(&all))
        }
    }

    fn expand(&mut self, value: &str) -> Option<String> {
        let shape = self.shape(value);
        let wider = |n: &usize| {
            if *n == 1 {
                self.tape.pick(&[1, 2, 3])
            } else {
                self.tape.pick(&[*n, 1])
            }
        };
        let mut target: Vec<i64> = shape.iter().map(wider).map(|n| n as i64).collect();
        if self.tape.chance(40) {
            target.insert(0, 2);
        }
        let target = self.ints(&target);
        self.emit("Expand", &[value, &target], vec![])
    }

    fn tile(&mut self, value: &str) -> Option<String> {
        let repeats: Vec<i64> = self
            .shape(value)
            .iter()
            .map(|_| self.tape.pick(&[1, 1, 2]))
            .collect();
        let repeats = self.ints(&repeats);
        self.emit("Tile", &[value, &repeats], vec![])
    }

    fn pass(&mut self, value: &str) -> Option<String> {
        let (float, double) = (DataType::Float as i64, DataType::Double as i64);
        match self.tape.below(if self.opset < 15 { 4 } else { 6 }) {
            0 => self.emit("Identity", &[value], vec![]),
            1 => self.emit("Dropout", &[value], vec![]),
            2 => self.emit("Cast", &[value], vec![("to", float.into())]),
            4 => self.emit("CastLike", &[value, value], vec![]),
            5 => {
                // This node reads only the type of the value.
                let number = self.scalar(2.0);
                let typed = self.emit("CastLike", &[&number, value], vec![])?;
                self.keep(&typed);
                self.emit("CastLike", &[value, &typed], vec![])
            }
            _ => {
                let wide = self.emit_many("Cast", &[value], vec![("to", double.into())], 1)?;
                self.emit("Cast", &[&wide[0]], vec![("to", float.into())])
            }
        }
    }

    fn pad(&mut self, value: &str) -> Option<String> {
        let rank = Some(self.shape(value).len()).filter(|&rank| rank > 0)?;
        let mut pads = vec![0; 2 * rank];
        for _ in 0..self.tape.below(3) {
            let place = 2 * rank - 1 - self.tape.below(2 * rank);
            pads[place] = self.tape.pick(&[1, 2, 1, -1]);
        }
        let mode = self.tape.pick(&["constant", "constant", "reflect", "edge"]);
        let pads = self.ints(&pads);
        let mut inputs = vec![value.to_owned(), pads];
        if mode == "constant" && self.tape.chance(40) {
            let number = self.tape.numbers().number(Role::Shift, self.kind);
            inputs.push(self.scalar(number));
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        self.emit("Pad", &inputs, vec![("mode", mode.into())])
    }

    fn reduce(&mut self, value: &str) -> Option<String> {
        let shape = self.shape(value);
        let op = self.tape.pick(&["ReduceMean", "ReduceSum"]);
        let exact = |n: usize| op == "ReduceSum" || self.kind == Kind::Real || n.is_power_of_two();
        let fits: Vec<usize> = (0..shape.len())
            .filter(|&axis| exact(shape[axis]))
            .collect();
        if fits.is_empty() {
            return None;
        }
        let mut axes: Vec<i64> = vec![];
        for _ in 0..1 + self.tape.below(2) {
            let axis = self.tape.pick(&fits) as i64;
            if !axes.contains(&axis) {
                axes.push(axis);
            }
        }
        if self.tape.chance(30) {
            axes.iter_mut().for_each(|axis| *axis -= shape.len() as i64);
        }
        let keep = i64::from(self.tape.chance(50));
        let since = if op == "ReduceSum" { 13 } else { 18 };
        self.emit_listed(
            op,
            value,
            "axes",
            axes,
            since,
            vec![("keepdims", keep.into())],
        )
    }

    fn average_pool(&mut self, value: &str) -> Option<String> {
        let shape = self.shape(value);
        if !(3..=5).contains(&shape.len()) {
            return None;
        }
        if self.tape.chance(30) {
            return self.emit("GlobalAveragePool", &[value], vec![]);
        }
        let attrs = self.window(&shape, true)?;
        let border = i64::from(self.tape.chance(40));
        self.emit(
            "AveragePool",
            &[value],
            [attrs, vec![("count_include_pad", border.into())]].concat(),
        )
    }

    /// Attributes of a kernel over the spatial axes of a pool.
    fn window(&mut self, shape: &[usize], mean: bool) -> Option<Attrs> {
        let sizes: &[i64] = if mean && self.kind == Kind::Exact {
            &[2, 1]
        } else {
            &[2, 3, 1]
        };
        let spatial = shape.len().checked_sub(2)?;
        let list = |maker: &mut Self, among: &[i64], n| {
            (0..n).map(|_| maker.tape.pick(among)).collect::<Vec<i64>>()
        };
        let mut attrs: Attrs = vec![("kernel_shape", list(self, sizes, spatial).into())];
        attrs.push(("strides", list(self, &[1, 2], spatial).into()));
        match self.tape.below(5) {
            3 => attrs.push(("pads", list(self, &[0, 1], 2 * spatial).into())),
            4 => attrs.push((
                "auto_pad",
                self.tape
                    .pick(&["VALID", "SAME_UPPER", "SAME_LOWER"])
                    .into(),
            )),
            _ => {}
        }
        Some(attrs)
    }

    /// A Reshape whose target is computed from the shape of the value, as torch's legacy exporter
    /// writes it.
    fn by_computed_shape(&mut self, value: &str) -> Option<String> {
        let shape = self.shape(value);
        if shape.len() < 2 {
            return None;
        }
        let extents = self.emit_many("Shape", &[value], vec![], 1)?.remove(0);
        let zero = self.ints(&[0]);
        let first = self
            .emit_many("Gather", &[&extents, &zero], vec![("axis", 0.into())], 1)?
            .remove(0);
        let (merged, rest) = (shape[1..].iter().product::<usize>(), self.ints(&[-1]));
        let target = self
            .emit_many("Concat", &[&first, &rest], vec![("axis", 0.into())], 1)?
            .remove(0);
        debug_assert!(merged > 0);
        let flat = self.emit("Reshape", &[value, &target], vec![])?;
        match self.tape.chance(60) {
            true => self.emit("Reshape", &[&flat, &extents], vec![]),
            false => Some(flat),
        }
    }

    fn constant_on_the_way(&mut self, value: &str) -> Option<String> {
        let shape = self.shape(value);
        let op = self.tape.pick(&["Add", "Mul", "Sub", "Div"]);
        if shape.is_empty() || self.tape.chance(50) {
            let axis = self.tape.below(shape.len().max(1));
            return if shape.is_empty() {
                None
            } else {
                self.arithmetic(op, value, axis)
            };
        }
        let mut along: Vec<usize> = shape
            .iter()
            .map(|&n| if self.tape.chance(40) { n } else { 1 })
            .collect();
        if self.tape.chance(10) {
            along.insert(0, self.tape.pick(&[1, 2]));
        }
        let role = if op == "Mul" {
            Role::Scale
        } else {
            Role::Shift
        };
        let constant = self.constant(role, &along);
        self.either_order(if op == "Div" { "Add" } else { op }, value, &constant)
    }

    // ---- readers ----

    fn linear(&mut self, value: &str) -> Option<String> {
        let rank = self.shape(value).len();
        let made = match (self.tape.below(8), rank) {
            (0 | 1, _) => self.gemm(value),
            (2 | 3, 3..=5) => self.conv(value),
            (4, 3..=5) => self.conv_transpose(value),
            (5, 2..) => self.matmul_left(value),
            (_, 1..) => self.matmul_right(value),
            _ => None,
        }?;
        if self.tape.chance(30) {
            return self.bias(&made).or(Some(made));
        }
        Some(made)
    }

    /// The sum of the results of several operators on one value, where their shapes agree.
    fn branches(&mut self, value: &str) -> Option<String> {
        let mut sum = self.branch(value)?;
        for _ in 0..1 + self.tape.below(3) {
            let next = self
                .branch(value)
                .filter(|next| self.shape(next) == self.shape(&sum));
            if let Some(next) = next {
                let op = self.tape.pick(&["Add", "Add", "Sub"]);
                sum = self.either_order(op, &sum, &next)?;
            }
        }
        Some(sum)
    }

    fn branch(&mut self, value: &str) -> Option<String> {
        match self.tape.below(6) {
            0 => Some(value.to_owned()),
            1 if self.shape(value).len() >= 2 => self.batch_norm(value),
            2 => self.average_pool(value),
            _ => self.linear(value),
        }
    }

    fn bias(&mut self, value: &str) -> Option<String> {
        let shape = self.shape(value);
        let mut along = vec![1; shape.len()];
        match self.tape.below(4) {
            0 => along = shape.last().map_or(vec![], |&n| vec![n]),
            1 => along = shape.clone(),
            2 if shape.len() > 1 => along[1] = shape[1],
            _ => along = vec![],
        }
        let constant = self.constant(Role::Shift, &along);
        let op = self.tape.pick(&["Add", "Add", "Sub"]);
        self.either_order(op, value, &constant)
    }

    fn matmul_right(&mut self, value: &str) -> Option<String> {
        let shape = self.shape(value);
        let inner = *shape.last()?;
        let columns = self.tape.pick(&[3, 2, 1, inner]);
        let weight = match self.tape.below(8) {
            0 => vec![inner],
            1 | 2 if shape.len() > 2 => {
                let mut weight: Vec<usize> = shape[..shape.len() - 2]
                    .iter()
                    .map(|&n| self.tape.pick(&[n, 1]))
                    .collect();
                if self.tape.chance(30) {
                    weight.insert(0, 2);
                }
                [weight, vec![inner, columns]].concat()
            }
            _ => vec![inner, columns],
        };
        let weight = self.constant(Role::Weight, &weight);
        self.emit("MatMul", &[value, &weight], vec![])
    }

    fn matmul_left(&mut self, value: &str) -> Option<String> {
        let shape = self.shape(value);
        let inner = shape[shape.len() - 2];
        let rows = self.tape.pick(&[3, 2, 1, inner]);
        let weight = match self.tape.below(8) {
            0 => vec![inner],
            1 | 2 if shape.len() > 2 => [&shape[..shape.len() - 2], &[rows, inner]].concat(),
            _ => vec![rows, inner],
        };
        let weight = self.constant(Role::Weight, &weight);
        self.emit("MatMul", &[&weight, value], vec![])
    }

    fn gemm(&mut self, value: &str) -> Option<String> {
        let mut value = value.to_owned();
        if self.shape(&value).len() != 2 {
            value = self.flatten(&value)?;
        }
        let shape = self.shape(&value);
        let (own, other) = (
            i64::from(self.tape.chance(40)),
            i64::from(self.tape.chance(40)),
        );
        let is_left = !self.tape.chance(30);
        // The axis of the value that is contracted, and the one that stays.
        let contracted = usize::from(is_left == (own == 0));
        let (inner, kept, wide) = (
            shape[contracted],
            shape[1 - contracted],
            self.tape.pick(&[3, 2, 1]),
        );
        let in_order = is_left == (other == 0);
        let weight = self.constant(
            Role::Weight,
            &if in_order {
                [inner, wide]
            } else {
                [wide, inner]
            },
        );
        let (rows, columns) = if is_left { (kept, wide) } else { (wide, kept) };
        let mut inputs = if is_left {
            vec![value, weight]
        } else {
            vec![weight, value]
        };
        let forms = [
            vec![],
            vec![1],
            vec![columns],
            vec![1, columns],
            vec![rows, 1],
            vec![rows, columns],
        ];
        match self.tape.below(10) {
            0..3 => {}
            3 => {
                let fits = |shape: &[usize]| shape == [rows, columns] || shape == [columns];
                inputs.extend(self.partner("", fits));
            }
            form => {
                let c = self.constant(Role::Shift, &forms[form - 4]);
                inputs.push(c);
            }
        }
        let (trans_own, trans_other) = if is_left {
            ("transA", "transB")
        } else {
            ("transB", "transA")
        };
        let mut attrs: Attrs = vec![(trans_own, own.into()), (trans_other, other.into())];
        if self.tape.chance(40) {
            attrs.push(("alpha", self.tape.pick(&[2.0, 0.5, -1.0]).into()));
        }
        if self.tape.chance(40) {
            attrs.push(("beta", self.tape.pick(&[2.0, 0.5, -1.0, 0.0]).into()));
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        self.emit("Gemm", &inputs, attrs)
    }

    /// Attributes and extents of a convolution's kernel.
    fn kernel(&mut self, shape: &[usize], transposed: bool) -> (Attrs, Vec<usize>) {
        let spatial = shape.len() - 2;
        let mut attrs: Attrs = vec![];
        let mut pads = vec![0; 2 * spatial];
        match self.tape.below(5) {
            3 => pads
                .iter_mut()
                .for_each(|pad| *pad = self.tape.pick(&[0, 1])),
            4 if !transposed => attrs.push((
                "auto_pad",
                self.tape
                    .pick(&["VALID", "SAME_UPPER", "SAME_LOWER"])
                    .into(),
            )),
            _ => {}
        }
        let sizes = |maker: &mut Self, axis: usize| {
            let room = shape[axis + 2] + (pads[axis] + pads[axis + spatial]) as usize;
            maker
                .tape
                .pick(&[1, 2, 3])
                .min(if transposed { 3 } else { room })
        };
        let kernel: Vec<usize> = (0..spatial).map(|axis| sizes(self, axis)).collect();
        if pads.iter().any(|&pad| pad != 0) {
            attrs.push(("pads", pads.into()));
        }
        if self.tape.chance(40) {
            let strides: Vec<i64> = (0..spatial).map(|_| self.tape.pick(&[2, 1])).collect();
            if transposed && self.tape.chance(40) {
                attrs.push((
                    "output_padding",
                    strides
                        .iter()
                        .map(|stride| stride - 1)
                        .collect::<Vec<_>>()
                        .into(),
                ));
            }
            attrs.push(("strides", strides.into()));
        }
        if self.tape.chance(20) {
            attrs.push(("dilations", vec![2; spatial].into()));
        }
        if self.tape.chance(50) {
            attrs.push((
                "kernel_shape",
                kernel.iter().map(|&n| n as i64).collect::<Vec<_>>().into(),
            ));
        }
        (attrs, kernel)
    }

    fn conv(&mut self, value: &str) -> Option<String> {
        let shape = self.shape(value);
        let (mut attrs, kernel) = self.kernel(&shape, false);
        let channels = shape[1];
        let groups: Vec<usize> = (1..=channels)
            .filter(|group| channels.is_multiple_of(*group))
            .collect();
        let group = self.tape.pick(&groups);
        let outputs = group * self.tape.pick(&[1, 2]);
        self.finish_conv(
            "Conv",
            value,
            [vec![outputs, channels / group], kernel].concat(),
            outputs,
            group,
            &mut attrs,
        )
    }

    fn conv_transpose(&mut self, value: &str) -> Option<String> {
        let shape = self.shape(value);
        let (mut attrs, kernel) = self.kernel(&shape, true);
        let channels = shape[1];
        let groups: Vec<usize> = (1..=channels)
            .filter(|group| channels.is_multiple_of(*group))
            .collect();
        let group = self.tape.pick(&groups);
        let outer = self.tape.pick(&[1, 2]);
        self.finish_conv(
            "ConvTranspose",
            value,
            [vec![channels, outer], kernel].concat(),
            outer * group,
            group,
            &mut attrs,
        )
    }

    fn finish_conv(
        &mut self,
        op: &str,
        value: &str,
        weight: Vec<usize>,
        outputs: usize,
        group: usize,
        attrs: &mut Attrs,
    ) -> Option<String> {
        let weight = self.constant(Role::Weight, &weight);
        let mut inputs = vec![value.to_owned(), weight];
        if self.tape.chance(50) {
            inputs.push(self.constant(Role::Shift, &[outputs]));
        }
        if group > 1 {
            attrs.push(("group", (group as i64).into()));
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        self.emit(op, &inputs, std::mem::take(attrs))
    }

    fn nonlinear(&mut self, value: &str) -> Option<String> {
        let shape = self.shape(value);
        // Results must be dyadic, so that the graph stays exact.
        let choices: &[&str] = if self.kind == Kind::Exact {
            &["Relu", "Abs", "MaxPool", "Mul"]
        } else {
            &["Relu", "Tanh", "Sigmoid", "MaxPool", "Softmax"]
        };
        match self.tape.pick(choices) {
            "MaxPool" if (3..=5).contains(&shape.len()) => {
                let attrs = self.window(&shape, false)?;
                self.emit("MaxPool", &[value], attrs)
            }
            "MaxPool" => self.emit("Relu", &[value], vec![]),
            "Mul" => self.emit("Mul", &[value, value], vec![]),
            "Softmax" if self.opset < 13 => None,
            op => self.emit(op, &[value], vec![]),
        }
    }

    /// Combines two varying values.
    fn combine(&mut self, value: &str) -> Option<String> {
        let shape = self.shape(value);
        match self.tape.below(5) {
            4 if shape.len() >= 2 => {
                let inner = shape[shape.len() - 1];
                let fits = |other: &[usize]| {
                    other.len() == shape.len()
                        && other[..other.len() - 2] == shape[..shape.len() - 2]
                        && other[other.len() - 2] == inner
                };
                let other = self.partner("", fits)?;
                self.emit("MatMul", &[value, &other], vec![])
            }
            op => {
                let fits = |other: &[usize]| {
                    other == shape
                        || (other.len() == shape.len()
                            && other.iter().zip(&shape).all(|(&a, &b)| a == b || a == 1))
                };
                let other = self.partner(value, fits)?;
                self.either_order(["Add", "Mul", "Sub", "Add"][op % 4], value, &other)
            }
        }
    }

    /// A body of an If that captures the value.
    fn capture(&mut self, value: &str) -> Option<String> {
        if !self.env.contains_key(CONDITION) {
            self.builder
                .graph()
                .input
                .push(declared(CONDITION, DataType::Bool, &[]));
            self.env
                .insert(CONDITION.into(), Value::Ints(arr0(1).into_dyn()));
        }
        let mut body = |op: &str| {
            let output = self.builder.fresh("b");
            GraphProto {
                name: Some(output.clone()),
                node: vec![node(op, &[value], &[&output], vec![])],
                output: vec![undeclared(&output)],
                ..Default::default()
            }
        };
        let (yes, no) = (body("Identity"), body("Neg"));
        self.read.insert(value.to_owned());
        self.emit(
            "If",
            &[CONDITION],
            vec![("then_branch", yes.into()), ("else_branch", no.into())],
        )
    }

    // ---- the end ----

    fn finish(mut self) -> Case {
        let made: Vec<String> = self
            .builder
            .graph()
            .node
            .iter()
            .flat_map(|node| node.output.clone())
            .collect();
        for value in made {
            let is_float = self.env[&value].floats().is_ok();
            if !is_float || self.read.contains(&value) || self.outputs.contains(&value) {
                continue;
            }
            let value = if self.tape.chance(85) {
                self.linear(&value).unwrap_or(value)
            } else {
                value
            };
            self.outputs.push(value);
        }
        self.outputs.sort();
        self.outputs.dedup();
        if !self.is_symbolic && self.tape.chance(30) {
            for value in &self.pool {
                let spelled: Vec<String> = self.env[value]
                    .shape()
                    .iter()
                    .map(usize::to_string)
                    .collect();
                let spelled: Vec<&str> = spelled.iter().map(String::as_str).collect();
                let info = declared(value, DataType::Float, &spelled);
                let graph = self.builder.proto.graph.get_or_insert_default();
                if !graph.input.iter().any(|input| input.name() == value) {
                    graph.value_info.push(info);
                }
            }
        }
        let outputs: Vec<&str> = self.outputs.iter().map(String::as_str).collect();
        Case {
            model: self.builder.model(&outputs),
            batch: self.batch,
        }
    }
}
