//! Computes operators in float64, directly by the words of the specification.
//!
//! Results of folding are judged by this code. It therefore shares no code with folding.

mod layers;
mod places;
mod runtime;

use std::collections::HashMap;

use anyhow::{Context, Result, bail, ensure};
use ndarray::{ArrayD, Axis, Dimension, IxDyn, Slice, indices};
use unfold::onnx::proto::{GraphProto, NodeProto, TensorProto};
use unfold::onnx::{DataType, Externals, Model, tensor};

/// A tensor. All floats are stored as float64, and all integers and booleans as int64.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Floats(ArrayD<f64>),
    Ints(ArrayD<i64>),
}

/// Values by name.
pub type Env = HashMap<String, Value>;

impl Value {
    /// The extents.
    pub fn shape(&self) -> &[usize] {
        match self {
            Value::Floats(array) => array.shape(),
            Value::Ints(array) => array.shape(),
        }
    }

    /// The floats.
    pub fn floats(&self) -> Result<&ArrayD<f64>> {
        match self {
            Value::Floats(array) => Ok(array),
            Value::Ints(_) => bail!("integers where floats are wanted"),
        }
    }

    /// The integers, in order.
    pub fn ints(&self) -> Result<Vec<i64>> {
        match self {
            Value::Ints(array) => Ok(array.iter().copied().collect()),
            Value::Floats(_) => bail!("floats where integers are wanted"),
        }
    }
}

/// Applies the same expression to floats or to integers.
macro_rules! either {
    ($value:expr, $array:ident => $result:expr) => {
        match $value {
            Value::Floats($array) => Value::Floats($result),
            Value::Ints($array) => Value::Ints($result),
        }
    };
}

/// The outputs of a model, in order.
pub fn run(model: &Model, inputs: &Env) -> Result<Vec<Value>> {
    let env = values(model, inputs)?;
    let outputs = model.graph().output.iter();
    outputs
        .map(|output| {
            env.get(output.name())
                .cloned()
                .context("an output is missing")
        })
        .collect()
}

/// Every value of the main graph.
pub fn values(model: &Model, inputs: &Env) -> Result<Env> {
    let opset = model.opset("").context("no operator set")?;
    let mut env = HashMap::new();
    initializers(model.graph(), model.externals(), &mut env)?;
    env.extend(
        inputs
            .iter()
            .map(|(name, value)| (name.clone(), value.clone())),
    );
    nodes(model.graph(), &mut env, opset)?;
    Ok(env)
}

fn initializers(graph: &GraphProto, externals: &Externals, env: &mut Env) -> Result<()> {
    for tensor in &graph.initializer {
        env.insert(tensor.name().to_owned(), value(tensor, externals)?);
    }
    Ok(())
}

fn nodes(graph: &GraphProto, env: &mut Env, opset: i64) -> Result<()> {
    for proto in &graph.node {
        let outputs = node(proto, env, opset).with_context(|| proto.label())?;
        env.extend(proto.output.iter().cloned().zip(outputs));
    }
    Ok(())
}

/// The value of a tensor message.
pub fn constant(tensor: &TensorProto) -> Result<Value> {
    value(tensor, &Externals::none())
}

/// The value of a tensor message. Its elements may be in external data.
fn value(tensor: &TensorProto, externals: &Externals) -> Result<Value> {
    Ok(if tensor::data_type(tensor)?.is_float() {
        Value::Floats(tensor::read_f64(tensor, externals)?)
    } else {
        Value::Ints(tensor::read_i64(tensor, externals)?)
    })
}

/// A node with the values of its operands.
struct Call<'a> {
    proto: &'a NodeProto,
    env: &'a Env,
    opset: i64,
}

impl<'a> Call<'a> {
    fn optional(&self, slot: usize) -> Result<Option<&'a Value>> {
        match self.proto.input.get(slot).map(String::as_str) {
            None | Some("") => Ok(None),
            Some(name) => Ok(Some(
                self.env
                    .get(name)
                    .with_context(|| format!("{name} is not there"))?,
            )),
        }
    }

    fn value(&self, slot: usize) -> Result<&'a Value> {
        self.optional(slot)?.context("an input is missing")
    }

    fn floats(&self, slot: usize) -> Result<&'a ArrayD<f64>> {
        self.value(slot)?.floats()
    }

    fn int(&self, name: &str, absent: i64) -> Result<i64> {
        Ok(self.proto.attr_i(name)?.unwrap_or(absent))
    }

    fn float(&self, name: &str, absent: f32) -> Result<f64> {
        Ok(f64::from(self.proto.attr_f(name)?.unwrap_or(absent)))
    }

    fn text(&self, name: &str, absent: &'a str) -> Result<&'a str> {
        Ok(self.proto.attr_s(name)?.unwrap_or(absent))
    }

    /// Reads a list that is an attribute in some versions of an operator and an input in others.
    fn list(&self, name: &str, slot: usize) -> Result<Option<Vec<i64>>> {
        match (self.proto.attr_ints(name)?, self.optional(slot)?) {
            (Some(list), _) => Ok(Some(list.to_vec())),
            (None, Some(value)) => Ok(Some(value.ints()?)),
            (None, None) => Ok(None),
        }
    }

    fn ints_or(&self, name: &str, absent: Vec<i64>) -> Result<Vec<i64>> {
        Ok(self.proto.attr_ints(name)?.map_or(absent, <[i64]>::to_vec))
    }

    fn axis(&self, absent: i64, rank: usize) -> Result<usize> {
        counted(self.int("axis", absent)?, rank)
    }
}

/// Converts an index in `-length..length` to one that counts from the front.
fn counted(index: i64, length: usize) -> Result<usize> {
    let from_front = if index < 0 {
        index + length as i64
    } else {
        index
    };
    let place = usize::try_from(from_front)
        .ok()
        .filter(|&place| place < length);
    place.with_context(|| format!("{index} is out of {length}"))
}

fn all_counted(list: &[i64], length: usize) -> Result<Vec<usize>> {
    list.iter().map(|&index| counted(index, length)).collect()
}

/// The outputs of one node.
pub fn node(proto: &NodeProto, env: &Env, opset: i64) -> Result<Vec<Value>> {
    let call = Call { proto, env, opset };
    let map = |f: fn(f64) -> f64| Ok::<_, anyhow::Error>(Value::Floats(call.floats(0)?.mapv(f)));
    let two = |f: fn(f64, f64) -> f64| zip(call.floats(0)?, call.floats(1)?, f).map(Value::Floats);
    let one = match proto.op_type() {
        "Identity" | "Dropout" => call.value(0)?.clone(),
        "Cast" | "CastLike" => cast(&call)?,
        "DequantizeLinear" => {
            ensure!(call.value(1)?.shape().is_empty(), "per axis");
            let is_zero = |zero: &Value| {
                zero.ints()
                    .is_ok_and(|zero| zero.iter().all(|&zero| zero == 0))
            };
            ensure!(call.optional(2)?.is_none_or(is_zero), "a zero point");
            let Value::Ints(x) = call.value(0)? else {
                bail!("floats")
            };
            Value::Floats(x.mapv(|v| v as f64) * call.floats(1)?)
        }
        "Constant" => constant(proto.attr_t("value")?.context("no value")?)?,
        "Shape" => shape(&call)?,
        "Size" => Value::Ints(
            ndarray::arr0(call.value(0)?.shape().iter().product::<usize>() as i64).into_dyn(),
        ),
        "EyeLike" => {
            ensure!(call.int("k", 0)? == 0, "another diagonal");
            let mut y = ArrayD::zeros(call.floats(0)?.shape());
            y.diag_mut().fill(1.0);
            Value::Floats(y)
        }
        "Relu" => map(|v| v.max(0.0))?,
        "Tanh" => map(f64::tanh)?,
        "Sigmoid" => map(|v| 1.0 / (1.0 + (-v).exp()))?,
        "Floor" => map(f64::floor)?,
        "Ceil" => map(f64::ceil)?,
        "Round" => map(f64::round_ties_even)?,
        "Erf" => map(erf)?,
        "Atan" => map(f64::atan)?,
        "Sin" => map(f64::sin)?,
        "Exp" => map(f64::exp)?,
        "Log" => map(f64::ln)?,
        "Sign" => map(|v| if v == 0.0 { 0.0 } else { v.signum() })?,
        "Clip" => {
            let bound = |slot: usize, name: &str| match call.opset < 11 {
                true => call.float(name, f32::NAN),
                false => call
                    .floats(slot)?
                    .first()
                    .copied()
                    .context("an empty bound"),
            };
            let (low, high) = (bound(1, "min")?, bound(2, "max")?);
            Value::Floats(call.floats(0)?.mapv(|v| v.max(low).min(high)))
        }
        "HardSigmoid" => {
            let (alpha, beta) = (call.float("alpha", 0.2)?, call.float("beta", 0.5)?);
            Value::Floats(call.floats(0)?.mapv(|v| (alpha * v + beta).clamp(0.0, 1.0)))
        }
        "HardSwish" => map(|v| v * (v / 6.0 + 0.5).clamp(0.0, 1.0))?,
        "Abs" => map(f64::abs)?,
        "LeakyRelu" => {
            let slope = call.float("alpha", 0.01)?;
            Value::Floats(
                call.floats(0)?
                    .mapv(|v| if v < 0.0 { slope * v } else { v }),
            )
        }
        "PRelu" => two(|v, slope| if v < 0.0 { slope * v } else { v })?,
        "Greater" => Value::Ints(
            zip(call.floats(0)?, call.floats(1)?, |a, b| f64::from(a > b))?.mapv(|v| v as i64),
        ),
        "Sqrt" => map(f64::sqrt)?,
        "Neg" => map(|v| -v)?,
        "Softsign" => map(|v| v / (1.0 + v.abs()))?,
        "Reciprocal" => map(|v| 1.0 / v)?,
        "Pow" => two(|v, power| if power == 2.0 { v * v } else { v.powf(power) })?,
        "Add" | "Sub" | "Mul" | "Div" | "Max" | "Min" if call.floats(0).is_err() => {
            places::of_integers(&call)?
        }
        "Max" => two(f64::max)?,
        "Min" => two(f64::min)?,
        "GroupNormalization" | "GroupNorm" => group_norm(&call)?,
        "LayerNormalization" => layer_norm(&call)?,
        "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization" => return skip_norm(&call),
        "RMSNormalization" | "SimplifiedLayerNormalization" => {
            let x = call.floats(0)?;
            let axis = call.axis(-1, x.ndim())?;
            let axes: Vec<usize> = (axis..x.ndim()).collect();
            Value::Floats(rooted(x, &axes, epsilon(&call)?) * call.floats(1)?)
        }
        "Gelu" => {
            ensure!(
                call.text("approximate", "none")? == "none",
                "an approximation"
            );
            map(gelu)?
        }
        "BiasGelu" => {
            let sum = zip(call.floats(0)?, call.floats(1)?, |a, b| a + b)?;
            Value::Floats(sum.mapv(gelu))
        }
        "FastGelu" => {
            let sum = match call.optional(1)? {
                Some(bias) => zip(call.floats(0)?, bias.floats()?, |a, b| a + b)?,
                None => call.floats(0)?.clone(),
            };
            let slope = (2.0 / std::f64::consts::PI).sqrt();
            Value::Floats(
                sum.mapv(|v| 0.5 * v * (1.0 + (slope * (v + 0.044715 * v.powi(3))).tanh())),
            )
        }
        "InstanceNormalization" => instance_norm(&call)?,
        "Add" => two(|a, b| a + b)?,
        "Sum" => {
            let first = call.floats(0)?.clone();
            let sum = |sum: ArrayD<f64>, slot| zip(&sum, call.floats(slot)?, |a, b| a + b);
            Value::Floats((1..proto.input.len()).try_fold(first, sum)?)
        }
        "Sub" => two(|a, b| a - b)?,
        "Mul" => two(|a, b| a * b)?,
        "Div" => two(|a, b| a / b)?,
        "Softmax" => Value::Floats(softmax(&call)?),
        "LogSoftmax" => Value::Floats(softmax(&call)?.mapv(f64::ln)),
        "BatchNormalization" => batch_norm(&call)?,
        "MatMul" => Value::Floats(matmul(call.floats(0)?, call.floats(1)?)?),
        "Gemm" => gemm(&call)?,
        "Conv" => conv(&call)?,
        "ConvTranspose" => conv_transpose(&call)?,
        "AveragePool" | "MaxPool" => pool(&call)?,
        "GlobalAveragePool" => {
            let x = call.floats(0)?;
            let spatial: Vec<usize> = (2..x.ndim()).collect();
            Value::Floats(reduce(x, &spatial, true, true))
        }
        "ReduceMean" | "ReduceSum" | "ReduceSumSquare" | "ReduceL2" => reduction(&call)?,
        "ReduceProd" => {
            Value::Ints(ndarray::arr0(call.value(0)?.ints()?.iter().product()).into_dyn())
        }
        "Transpose" => transpose(&call)?,
        "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" => reshape(&call)?,
        "Slice" => slice(&call)?,
        "Split" => return split(&call),
        "Gather" => gather(&call)?,
        "GatherND" => gather_nd(&call)?,
        "Concat" => concat(&call)?,
        "Expand" => expand(&call)?,
        "ConstantOfShape" => constant_of_shape(&call)?,
        "Tile" => tile(&call)?,
        "Pad" => pad(&call)?,
        "If" => {
            let branch = if call.value(0)?.ints()?[0] != 0 {
                "then_branch"
            } else {
                "else_branch"
            };
            return body(&call, branch, vec![]);
        }
        "Loop" => return looped(&call),
        "Scan" => return scanned(&call),
        op => {
            let made =
                places::make(&call)?.map_or_else(|| layers::make(&call), |made| Ok(Some(made)))?;
            let made = made.map_or_else(|| runtime::make(&call), |made| Ok(Some(made)))?;
            made.with_context(|| format!("no reference for {op}"))?
        }
    };
    Ok(vec![one])
}

/// The results of a body for these inputs.
fn body(call: &Call, name: &str, given: Vec<Value>) -> Result<Vec<Value>> {
    let body = call.proto.attr_g(name)?.context("no body")?;
    let mut inner = call.env.clone();
    initializers(body, &Externals::none(), &mut inner)?;
    ensure!(
        body.input.len() == given.len(),
        "a body is given something else"
    );
    inner.extend(
        body.input
            .iter()
            .map(|info| info.name().to_owned())
            .zip(given),
    );
    nodes(body, &mut inner, call.opset)?;
    let output = |name: &str| {
        inner
            .get(name)
            .cloned()
            .context("a body has no such output")
    };
    body.output.iter().map(|info| output(info.name())).collect()
}

fn looped(call: &Call) -> Result<Vec<Value>> {
    let number = |slot| {
        call.optional(slot)?
            .map(|value| Ok::<_, anyhow::Error>(value.ints()?[0]))
            .transpose()
    };
    let (rounds, mut goes_on) = (number(0)?.unwrap_or(i64::MAX), number(1)?.unwrap_or(1) != 0);
    let scalar = |number: i64| Value::Ints(ndarray::arr0(number).into_dyn());
    let mut states: Vec<Value> = (2..call.proto.input.len())
        .map(|slot| call.value(slot).cloned())
        .collect::<Result<_>>()?;
    let mut made = vec![];
    for round in 0..rounds {
        if !goes_on {
            break;
        }
        let given = [scalar(round), scalar(1)]
            .into_iter()
            .chain(states.clone())
            .collect();
        let mut results = body(call, "body", given)?.into_iter();
        goes_on = results.next().context("no condition")?.ints()?[0] != 0;
        states = results.by_ref().take(states.len()).collect();
        made.push(results.collect());
    }
    states.extend(stacked(&made)?);
    Ok(states)
}

/// A Scan along the first axes.
fn scanned(call: &Call) -> Result<Vec<Value>> {
    let count = call.int("num_scan_inputs", 0)? as usize;
    ensure!(call.list("scan_input_axes", 99)?.is_none(), "another axis");
    let values: Vec<Value> = (0..call.proto.input.len())
        .map(|slot| call.value(slot).cloned())
        .collect::<Result<_>>()?;
    let (states, rows) = values.split_at(values.len() - count);
    let (mut states, mut made) = (states.to_vec(), vec![]);
    for round in 0..rows[0].shape()[0] {
        let row =
            |value: &Value| either!(value, array => array.index_axis(Axis(0), round).to_owned());
        let mut results = body(
            call,
            "body",
            states.iter().cloned().chain(rows.iter().map(row)).collect(),
        )?
        .into_iter();
        states = results.by_ref().take(states.len()).collect();
        made.push(results.collect());
    }
    states.extend(stacked(&made)?);
    Ok(states)
}

/// The results of all iterations of a loop, stacked.
fn stacked(rounds: &[Vec<Value>]) -> Result<Vec<Value>> {
    let count = rounds.first().context("there was no round")?.len();
    let stack = |slot: usize| {
        let parts: Vec<_> = rounds
            .iter()
            .map(|round| round[slot].floats())
            .collect::<Result<_>>()?;
        let views: Vec<_> = parts.iter().map(|part| part.view()).collect();
        Ok(Value::Floats(ndarray::stack(Axis(0), &views)?))
    };
    (0..count).map(stack).collect()
}

fn cast(call: &Call) -> Result<Value> {
    let to_floats = match call.optional(1)? {
        Some(like) => like.floats().is_ok(),
        None => DataType::from_code(call.int("to", 0)? as i32)
            .context("unknown type")?
            .is_float(),
    };
    Ok(match call.value(0)? {
        Value::Floats(x) if to_floats => Value::Floats(x.clone()),
        Value::Floats(x) => Value::Ints(x.mapv(|v| v as i64)),
        Value::Ints(x) if to_floats => Value::Floats(x.mapv(|v| v as f64)),
        Value::Ints(x) => Value::Ints(x.clone()),
    })
}

fn shape(call: &Call) -> Result<Value> {
    let shape = call.value(0)?.shape();
    let bound = |name, absent: usize| -> Result<usize> {
        let bound = call.int(name, absent as i64)?;
        let counted = if bound < 0 {
            bound + shape.len() as i64
        } else {
            bound
        };
        Ok(counted.clamp(0, shape.len() as i64) as usize)
    };
    let (start, end) = (bound("start", 0)?, bound("end", shape.len())?);
    let extents: Vec<i64> = shape[start..end.max(start)]
        .iter()
        .map(|&n| n as i64)
        .collect();
    Ok(Value::Ints(ndarray::arr1(&extents).into_dyn()))
}

/// The shape to which all of these broadcast.
fn common(shapes: &[&[usize]]) -> Result<Vec<usize>> {
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let mut wide = vec![1; rank];
    for shape in shapes {
        for (axis, &n) in shape.iter().enumerate() {
            let here = &mut wide[axis + rank - shape.len()];
            ensure!(
                *here == n || *here == 1 || n == 1,
                "{shapes:?} do not broadcast"
            );
            if n != 1 {
                *here = n;
            }
        }
    }
    Ok(wide)
}

fn widened<T: Clone>(array: &ArrayD<T>, shape: &[usize]) -> Result<ArrayD<T>> {
    let wide = array
        .broadcast(IxDyn(shape))
        .with_context(|| format!("{:?} to {shape:?}", array.shape()))?;
    Ok(wide.to_owned())
}

fn zip(a: &ArrayD<f64>, b: &ArrayD<f64>, f: impl Fn(f64, f64) -> f64) -> Result<ArrayD<f64>> {
    let shape = common(&[a.shape(), b.shape()])?;
    let (mut a, b) = (widened(a, &shape)?, widened(b, &shape)?);
    a.zip_mut_with(&b, |a, &b| *a = f(*a, b));
    Ok(a)
}

/// Divides the exponentials of each lane by their sum. Before operator set 13, the axes from `axis`
/// to the last one form one lane.
fn softmax(call: &Call) -> Result<ArrayD<f64>> {
    let x = call.floats(0)?;
    let (absent, last) = if call.opset < 13 {
        (1, x.ndim())
    } else {
        (-1, 0)
    };
    let axis = call.axis(absent, x.ndim())?;
    let lane: usize = x.shape()[axis..last.max(axis + 1)].iter().product();
    let before: usize = x.shape()[..axis].iter().product();
    let lanes = x.to_shape((before, lane, x.len() / (before * lane).max(1)))?;
    let largest = lanes
        .fold_axis(Axis(1), f64::NEG_INFINITY, |a, &b| a.max(b))
        .insert_axis(Axis(1));
    let raised = (&lanes - &largest).mapv(f64::exp);
    let sum = raised.sum_axis(Axis(1)).insert_axis(Axis(1));
    Ok((raised / sum).into_shape_with_order(x.raw_dim())?)
}

fn batch_norm(call: &Call) -> Result<Value> {
    ensure!(call.int("training_mode", 0)? == 0, "in training mode");
    let x = call.floats(0)?;
    let epsilon = call.float("epsilon", 1e-5)?;
    let fits = |slot| Ok::<_, anyhow::Error>(call.floats(slot)?.shape() == [x.shape()[1]]);
    ensure!(
        x.ndim() > 1 && fits(1)? && fits(2)? && fits(3)? && fits(4)?,
        "{:?}",
        x.shape()
    );
    let mut y = x.clone();
    for (channel, mut lane) in y.axis_iter_mut(Axis(1)).enumerate() {
        let [gamma, beta, mean, var] =
            [1, 2, 3, 4].map(|slot| call.floats(slot).map(|p| p[[channel]]));
        let (gamma, beta, mean, sigma) = (gamma?, beta?, mean?, (var? + epsilon).sqrt());
        lane.mapv_inplace(|v| (v - mean) / sigma * gamma + beta);
    }
    Ok(Value::Floats(y))
}

fn matmul(a: &ArrayD<f64>, b: &ArrayD<f64>) -> Result<ArrayD<f64>> {
    ensure!(a.ndim() > 0 && b.ndim() > 0, "scalars");
    let left = if a.ndim() == 1 {
        a.clone().insert_axis(Axis(0))
    } else {
        a.clone()
    };
    let right = if b.ndim() == 1 {
        b.clone().insert_axis(Axis(1))
    } else {
        b.clone()
    };
    let (p, q) = (left.ndim() - 2, right.ndim() - 2);
    let (rows, inner, columns) = (left.shape()[p], left.shape()[p + 1], right.shape()[q + 1]);
    ensure!(
        right.shape()[q] == inner,
        "{:?} times {:?}",
        a.shape(),
        b.shape()
    );
    let batch = common(&[&left.shape()[..p], &right.shape()[..q]])?;
    let left = widened(&left, &[&batch[..], &[rows, inner]].concat())?;
    let right = widened(&right, &[&batch[..], &[inner, columns]].concat())?;
    let mut y = ArrayD::zeros([&batch[..], &[rows, columns]].concat());
    for index in indices(IxDyn(&batch)) {
        for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)))
        {
            let at = |i, j| [index.slice(), &[i, j][..]].concat();
            let products = (0..inner).map(|k| left[&at(row, k)[..]] * right[&at(k, column)[..]]);
            y[&at(row, column)[..]] = products.sum();
        }
    }
    if b.ndim() == 1 {
        y = y.index_axis_move(Axis(batch.len() + 1), 0);
    }
    if a.ndim() == 1 {
        y = y.index_axis_move(Axis(batch.len()), 0);
    }
    Ok(y)
}

fn gemm(call: &Call) -> Result<Value> {
    let matrix = |slot: usize, transposed: &str| -> Result<ArrayD<f64>> {
        let array = call.floats(slot)?;
        ensure!(array.ndim() == 2, "no matrix");
        let turned = call.int(transposed, 0)? != 0;
        Ok(if turned {
            array.t().to_owned()
        } else {
            array.clone()
        })
    };
    let product = matmul(&matrix(0, "transA")?, &matrix(1, "transB")?)?;
    let product = product * call.float("alpha", 1.0)?;
    Ok(Value::Floats(match call.optional(2)? {
        None => product,
        Some(c) => {
            let c = c.floats()? * call.float("beta", 1.0)?;
            ensure!(
                common(&[c.shape(), product.shape()])? == product.shape(),
                "C is too large"
            );
            zip(&product, &c, |a, b| a + b)?
        }
    }))
}

/// The places of a kernel on its input.
struct Window {
    kernel: Vec<usize>,
    strides: Vec<i64>,
    dilations: Vec<i64>,
    before: Vec<i64>,
    output: Vec<usize>,
}

impl Window {
    fn of(call: &Call, kernel: &[usize], input: &[usize]) -> Result<Window> {
        let n = kernel.len();
        ensure!(
            input.len() == n,
            "{n} axes of the kernel, {} of the input",
            input.len()
        );
        let up = call.int("ceil_mode", 0)? == 1;
        ensure!(
            !up || call.int("count_include_pad", 0)? == 0,
            "what counts behind the border"
        );
        let strides = call.ints_or("strides", vec![1; n])?;
        let dilations = call.ints_or("dilations", vec![1; n])?;
        let pads = call.ints_or("pads", vec![0; 2 * n])?;
        let (mut before, mut output) = (vec![], vec![]);
        for axis in 0..n {
            let (size, stride) = (input[axis] as i64, strides[axis]);
            let reach = (kernel[axis] as i64 - 1) * dilations[axis] + 1;
            let (first, last) = match call.text("auto_pad", "NOTSET")? {
                "NOTSET" => (pads[axis], pads[axis + n]),
                "VALID" => (0, 0),
                same => {
                    let places = (size + stride - 1) / stride;
                    let total = ((places - 1) * stride + reach - size).max(0);
                    let small = total / 2;
                    if same == "SAME_UPPER" {
                        (small, total - small)
                    } else {
                        (total - small, small)
                    }
                }
            };
            let room = size + first + last - reach;
            ensure!(room >= 0, "the kernel is larger than its input");
            before.push(first);
            let more =
                i64::from(up && room % stride > 0 && (room / stride + 1) * stride < size + first);
            output.push((room / stride + 1 + more) as usize);
        }
        Ok(Window {
            kernel: kernel.to_vec(),
            strides,
            dilations,
            before,
            output,
        })
    }

    /// The input place under a tap; `None` in the border.
    fn place(&self, output: &[usize], tap: &[usize], input: &[usize]) -> Option<Vec<usize>> {
        let along = |axis: usize| {
            let place = output[axis] as i64 * self.strides[axis]
                + tap[axis] as i64 * self.dilations[axis]
                - self.before[axis];
            usize::try_from(place)
                .ok()
                .filter(|&place| place < input[axis])
        };
        (0..input.len()).map(along).collect()
    }
}

fn conv(call: &Call) -> Result<Value> {
    let (x, w) = (call.floats(0)?, call.floats(1)?);
    let group = call.int("group", 1)? as usize;
    let (outputs, inner) = (w.shape()[0], w.shape()[1]);
    ensure!(
        x.shape()[1] == inner * group && outputs % group == 0,
        "{:?} on {:?}",
        w.shape(),
        x.shape()
    );
    let window = Window::of(call, &w.shape()[2..], &x.shape()[2..])?;
    let shape = [&[x.shape()[0], outputs][..], &window.output].concat();
    let mut y = ArrayD::zeros(IxDyn(&shape));
    for index in indices(IxDyn(&shape)) {
        let (sample, channel, place) = (index[0], index[1], &index.slice()[2..]);
        let first = channel / (outputs / group) * inner;
        let mut sum = match call.optional(2)? {
            Some(bias) => bias.floats()?[[channel]],
            None => 0.0,
        };
        for tap in indices(IxDyn(&window.kernel)) {
            let Some(source) = window.place(place, tap.slice(), &x.shape()[2..]) else {
                continue;
            };
            for c in 0..inner {
                let weight = w[&[&[channel, c][..], tap.slice()].concat()[..]];
                sum += weight * x[&[&[sample, first + c][..], &source].concat()[..]];
            }
        }
        y[index] = sum;
    }
    Ok(Value::Floats(y))
}

fn conv_transpose(call: &Call) -> Result<Value> {
    let (x, w) = (call.floats(0)?, call.floats(1)?);
    ensure!(
        call.text("auto_pad", "NOTSET")? == "NOTSET"
            && call.proto.attr_ints("output_shape")?.is_none()
    );
    let group = call.int("group", 1)? as usize;
    let (inputs, outer) = (w.shape()[0], w.shape()[1]);
    ensure!(
        x.shape()[1] == inputs && inputs % group == 0,
        "{:?} on {:?}",
        w.shape(),
        x.shape()
    );
    let n = w.ndim() - 2;
    let strides = call.ints_or("strides", vec![1; n])?;
    let dilations = call.ints_or("dilations", vec![1; n])?;
    let pads = call.ints_or("pads", vec![0; 2 * n])?;
    let extra = call.ints_or("output_padding", vec![0; n])?;
    let mut shape = vec![x.shape()[0], outer * group];
    for axis in 0..n {
        let reach = (w.shape()[axis + 2] as i64 - 1) * dilations[axis] + 1;
        let size = strides[axis] * (x.shape()[axis + 2] as i64 - 1) + extra[axis] + reach;
        shape.push(usize::try_from(size - pads[axis] - pads[axis + n])?);
    }
    let mut y = ArrayD::zeros(IxDyn(&shape));
    if let Some(bias) = call.optional(2)? {
        for (channel, mut lane) in y.axis_iter_mut(Axis(1)).enumerate() {
            lane.fill(bias.floats()?[[channel]]);
        }
    }
    for source in indices(x.raw_dim()) {
        let channel = source[1];
        let first = channel / (inputs / group) * outer;
        for tap in indices(IxDyn(&w.shape()[2..])) {
            let place = |axis: usize| {
                let at =
                    source[axis + 2] as i64 * strides[axis] + tap[axis] as i64 * dilations[axis];
                usize::try_from(at - pads[axis])
                    .ok()
                    .filter(|&at| at < shape[axis + 2])
            };
            let Some(place) = (0..n).map(place).collect::<Option<Vec<_>>>() else {
                continue;
            };
            for c in 0..outer {
                let weight = w[&[&[channel, c][..], tap.slice()].concat()[..]];
                y[&[&[source[0], first + c][..], &place].concat()[..]] += weight * x[&source];
            }
        }
    }
    Ok(Value::Floats(y))
}

fn pool(call: &Call) -> Result<Value> {
    let x = call.floats(0)?;
    let kernel: Vec<usize> = call
        .ints_or("kernel_shape", vec![])?
        .iter()
        .map(|&k| k as usize)
        .collect();
    let window = Window::of(call, &kernel, &x.shape()[2..])?;
    let is_mean = call.proto.op_type() == "AveragePool";
    let counts_border = call.int("count_include_pad", 0)? != 0;
    let shape = [&x.shape()[..2], &window.output].concat();
    let mut y = ArrayD::zeros(IxDyn(&shape));
    for index in indices(IxDyn(&shape)) {
        let under = |tap: IxDyn| window.place(&index.slice()[2..], tap.slice(), &x.shape()[2..]);
        let places = indices(IxDyn(&kernel)).into_iter().filter_map(under);
        let met: Vec<f64> = places
            .map(|place| x[&[&index.slice()[..2], &place].concat()[..]])
            .collect();
        ensure!(!met.is_empty(), "a window that meets only the border");
        y[index] = if is_mean {
            let count = if counts_border {
                kernel.iter().product()
            } else {
                met.len()
            };
            met.iter().sum::<f64>() / count as f64
        } else {
            met.into_iter().fold(f64::NEG_INFINITY, f64::max)
        };
    }
    Ok(Value::Floats(y))
}

/// `(x − mean)/√(variance + ε)` over these axes.
fn standardized(x: &ArrayD<f64>, axes: &[usize], epsilon: f64) -> ArrayD<f64> {
    let centred = x - &reduce(x, axes, true, true);
    let variance = reduce(&centred.mapv(|v| v * v), axes, true, true);
    centred / variance.mapv(|v| (v + epsilon).sqrt())
}

fn epsilon(call: &Call) -> Result<f64> {
    Ok(f64::from(call.proto.attr_f("epsilon")?.unwrap_or(1e-5)))
}

fn layer_norm(call: &Call) -> Result<Value> {
    let x = call.floats(0)?;
    let first = counted(call.int("axis", -1)?, x.ndim())?;
    let axes: Vec<usize> = (first..x.ndim()).collect();
    let scaled = standardized(x, &axes, epsilon(call)?) * call.floats(1)?;
    let has_bias = call.proto.input.get(2).is_some_and(|name| !name.is_empty());
    Ok(Value::Floats(if has_bias {
        scaled + call.floats(2)?
    } else {
        scaled
    }))
}

fn instance_norm(call: &Call) -> Result<Value> {
    let x = call.floats(0)?;
    let axes: Vec<usize> = (2..x.ndim()).collect();
    let mut shape = vec![1; x.ndim()];
    shape[1] = x.shape()[1];
    let of_channel = |slot: usize| -> Result<ArrayD<f64>> {
        Ok(call
            .floats(slot)?
            .clone()
            .into_shape_with_order(shape.clone())?)
    };
    Ok(Value::Floats(
        standardized(x, &axes, epsilon(call)?) * of_channel(1)? + of_channel(2)?,
    ))
}

/// GELU, with the error function as a series.
fn gelu(v: f64) -> f64 {
    0.5 * v * (1.0 + erf(v / 2f64.sqrt()))
}

fn erf(x: f64) -> f64 {
    if x.abs() > 5.0 {
        return x.signum();
    }
    // All terms have the same sign, so that nothing cancels.
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= 2.0 * x * x / f64::from(2 * n + 1);
        sum += term;
    }
    sum * (-x * x).exp() * 2.0 / std::f64::consts::PI.sqrt()
}

/// `x/√(mean(x²) + ε)`.
fn rooted(x: &ArrayD<f64>, axes: &[usize], epsilon: f64) -> ArrayD<f64> {
    let moment = reduce(&x.mapv(|v| v * v), axes, true, true);
    x / moment.mapv(|v| (v + epsilon).sqrt())
}

/// LN or RMSNorm of a sum, as in onnxruntime's ContribOperators.md. The sum is the last output.
fn skip_norm(call: &Call) -> Result<Vec<Value>> {
    let simplified = call.proto.op_type() == "SkipSimplifiedLayerNormalization";
    let mut sum = zip(call.floats(0)?, call.floats(1)?, |a, b| a + b)?;
    if let Some(bias) = call.optional(if simplified { 3 } else { 4 })? {
        sum = zip(&sum, bias.floats()?, |a, b| a + b)?;
    }
    let last = [sum.ndim() - 1];
    let epsilon = f64::from(call.proto.attr_f("epsilon")?.unwrap_or(1e-12));
    let normed = match simplified {
        true => rooted(&sum, &last, epsilon),
        false => standardized(&sum, &last, epsilon),
    };
    let mut scaled = normed * call.floats(2)?;
    if let (false, Some(beta)) = (simplified, call.optional(3)?) {
        scaled += beta.floats()?;
    }
    let nothing = Value::Floats(ArrayD::zeros(IxDyn(&[0])));
    Ok(vec![
        Value::Floats(scaled),
        nothing.clone(),
        nothing,
        Value::Floats(sum),
    ])
}

/// γ and β have one element for each channel since operator set 21, and for each group before. In
/// onnxruntime's own operator, they have one for each channel, and the channels may be last:
/// ContribOperators.md.
fn group_norm(call: &Call) -> Result<Value> {
    let own = call.proto.op_type() == "GroupNorm";
    let last = own && call.int("channels_last", 1)? != 0;
    ensure!(
        !own || call.int("activation", 0)? == 0,
        "with an activation"
    );
    let mut x = call.floats(0)?.clone();
    if last {
        let rank = x.ndim();
        let order: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
        x = x.permuted_axes(order);
    }
    let (items, channels) = (x.shape()[0], x.shape()[1]);
    let groups = usize::try_from(call.int(if own { "groups" } else { "num_groups" }, 0)?)?;
    ensure!(
        groups > 0 && channels % groups == 0,
        "{groups} groups of {channels} channels"
    );
    let apart = x.as_standard_layout().into_owned();
    let apart = apart.into_shape_with_order(IxDyn(&[items, groups, x.len() / (items * groups)]))?;
    let mut y = standardized(&apart, &[2], epsilon(call)?).into_shape_with_order(x.raw_dim())?;
    let (gamma, beta) = (call.floats(1)?, call.floats(2)?);
    let count = if !own && call.opset < 21 {
        groups
    } else {
        channels
    };
    ensure!(
        gamma.shape() == [count] && beta.shape() == [count],
        "{:?}",
        gamma.shape()
    );
    for (channel, mut lane) in y.axis_iter_mut(Axis(1)).enumerate() {
        let place = [channel * count / channels];
        lane.mapv_inplace(|v| gamma[place] * v + beta[place]);
    }
    if last {
        let rank = y.ndim();
        let order: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).collect();
        y = y.permuted_axes(order);
    }
    Ok(Value::Floats(y))
}

fn reduction(call: &Call) -> Result<Value> {
    let x = call.floats(0)?;
    let axes = match call.list("axes", 1)?.filter(|list| !list.is_empty()) {
        Some(list) => all_counted(&list, x.ndim())?,
        None if call.int("noop_with_empty_axes", 0)? != 0 => vec![],
        None => (0..x.ndim()).collect(),
    };
    let keep = call.int("keepdims", 1)? != 0;
    Ok(Value::Floats(match call.proto.op_type() {
        "ReduceL2" => reduce(&x.mapv(|v| v * v), &axes, keep, false).mapv(f64::sqrt),
        "ReduceSumSquare" => reduce(&x.mapv(|v| v * v), &axes, keep, false),
        op => reduce(x, &axes, keep, op == "ReduceMean"),
    }))
}

fn reduce(x: &ArrayD<f64>, axes: &[usize], keep: bool, mean: bool) -> ArrayD<f64> {
    let mut axes = axes.to_vec();
    axes.sort_unstable();
    let count: usize = axes.iter().map(|&axis| x.shape()[axis]).product();
    let mut y = x.clone();
    for &axis in axes.iter().rev() {
        y = y.sum_axis(Axis(axis));
        if keep {
            y = y.insert_axis(Axis(axis));
        }
    }
    if mean { y / count as f64 } else { y }
}

fn transpose(call: &Call) -> Result<Value> {
    let value = call.value(0)?;
    let rank = value.shape().len();
    let perm = call.ints_or("perm", (0..rank as i64).rev().collect())?;
    let perm = all_counted(&perm, rank)?;
    Ok(either!(value, x => x.clone().permuted_axes(perm).as_standard_layout().into_owned()))
}

fn reshape(call: &Call) -> Result<Value> {
    let value = call.value(0)?;
    let from = value.shape();
    let to: Vec<usize> = match call.proto.op_type() {
        "Flatten" => {
            let axis = call.int("axis", 1)?;
            let axis = if axis < 0 {
                axis + from.len() as i64
            } else {
                axis
            } as usize;
            vec![from[..axis].iter().product(), from[axis..].iter().product()]
        }
        "Squeeze" => {
            let axes = match call.list("axes", 1)? {
                Some(list) => all_counted(&list, from.len())?,
                None => (0..from.len()).filter(|&axis| from[axis] == 1).collect(),
            };
            ensure!(
                axes.iter().all(|&axis| from[axis] == 1),
                "{from:?} is not 1 along {axes:?}"
            );
            (0..from.len())
                .filter(|axis| !axes.contains(axis))
                .map(|axis| from[axis])
                .collect()
        }
        "Unsqueeze" => {
            let list = call.list("axes", 1)?.context("no axes")?;
            let rank = from.len() + list.len();
            let axes = all_counted(&list, rank)?;
            let mut rest = from.iter();
            let extent = |axis| {
                if axes.contains(&axis) {
                    Some(1)
                } else {
                    rest.next().copied()
                }
            };
            (0..rank)
                .map(extent)
                .collect::<Option<_>>()
                .context("an axis twice")?
        }
        _ => {
            let wanted = call.value(1)?.ints()?;
            let copies = call.int("allowzero", 0)? == 0;
            let mut to = vec![];
            for (axis, &n) in wanted.iter().enumerate() {
                to.push(match n {
                    -1 => 1,
                    0 if copies => *from.get(axis).context("nothing to copy")?,
                    n => usize::try_from(n)?,
                });
            }
            if let Some(free) = wanted.iter().position(|&n| n == -1) {
                let (have, rest) = (from.iter().product::<usize>(), to.iter().product::<usize>());
                ensure!(rest != 0 && have % rest == 0, "{from:?} to {wanted:?}");
                to[free] = have / rest;
            }
            to
        }
    };
    ensure!(
        from.iter().product::<usize>() == to.iter().product::<usize>(),
        "{from:?} to {to:?}"
    );
    Ok(either!(value, x => x.as_standard_layout().into_owned().into_shape_with_order(to)?))
}

fn slice(call: &Call) -> Result<Value> {
    let value = call.value(0)?;
    let rank = value.shape().len();
    let starts = call.list("starts", 1)?.context("no starts")?;
    let ends = call.list("ends", 2)?.context("no ends")?;
    let axes = call
        .list("axes", 3)?
        .unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = match call.optional(4)? {
        Some(steps) => steps.ints()?,
        None => vec![1; starts.len()],
    };
    let mut sliced = value.clone();
    for (i, axis) in all_counted(&axes, rank)?.into_iter().enumerate() {
        let (length, step) = (value.shape()[axis] as i64, steps[i]);
        let (low, high) = if step > 0 {
            (0, length)
        } else {
            (-1, length - 1)
        };
        let bound = |at: i64| {
            (if at < 0 {
                at.saturating_add(length)
            } else {
                at
            })
            .clamp(low, high)
        };
        let (mut place, end) = (bound(starts[i]), bound(ends[i]));
        let mut taken = vec![];
        while if step > 0 { place < end } else { place > end } {
            taken.push(place as usize);
            place += step;
        }
        sliced = either!(sliced, x => x.select(Axis(axis), &taken));
    }
    Ok(sliced)
}

fn split(call: &Call) -> Result<Vec<Value>> {
    let value = call.value(0)?;
    let axis = call.axis(0, value.shape().len())?;
    let (whole, parts) = (value.shape()[axis], call.proto.output.len());
    let lengths = match call.list("split", 1)? {
        Some(lengths) => lengths.iter().map(|&n| n as usize).collect(),
        None => {
            let wide = whole.div_ceil(parts);
            (0..parts)
                .map(|part| wide.min(whole - (part * wide).min(whole)))
                .collect::<Vec<_>>()
        }
    };
    ensure!(
        lengths.len() == parts && lengths.iter().sum::<usize>() == whole,
        "{lengths:?} of {whole}"
    );
    let mut start = 0;
    let part = |length: usize| {
        let range = Slice::from(start..start + length);
        start += length;
        either!(value, x => x.slice_axis(Axis(axis), range).to_owned())
    };
    Ok(lengths.into_iter().map(part).collect())
}

fn gather(call: &Call) -> Result<Value> {
    let value = call.value(0)?;
    let axis = call.axis(0, value.shape().len())?;
    let places = call.value(1)?;
    let taken = all_counted(&places.ints()?, value.shape()[axis])?;
    let mut shape = value.shape().to_vec();
    shape.splice(axis..=axis, places.shape().iter().copied());
    Ok(either!(value, x => {
        x.select(Axis(axis), &taken).as_standard_layout().into_owned().into_shape_with_order(shape)?
    }))
}

fn gather_nd(call: &Call) -> Result<Value> {
    let (value, places) = (call.value(0)?, call.value(1)?);
    let (shape, batch) = (value.shape(), usize::try_from(call.int("batch_dims", 0)?)?);
    let (&length, picked) = places.shape().split_last().context("no indices")?;
    ensure!(
        batch <= picked.len() && picked.starts_with(&shape[..batch]),
        "{shape:?} in {picked:?}"
    );
    ensure!(
        length > 0 && batch + length <= shape.len(),
        "{length} places in {shape:?}"
    );
    let indexed = &shape[batch..batch + length];
    let mut taken: Vec<Vec<usize>> = vec![];
    for (tuple, item) in places.ints()?.chunks(length).zip(indices(IxDyn(picked))) {
        let places = tuple
            .iter()
            .zip(indexed)
            .map(|(&index, &n)| counted(index, n));
        taken.push(
            [
                item.slice()[..batch].to_vec(),
                places.collect::<Result<_>>()?,
            ]
            .concat(),
        );
    }
    let to = [picked, &shape[batch + length..]].concat();
    Ok(either!(value, x => {
        let part = |place: &Vec<usize>| {
            place.iter().fold(x.view(), |part, &index| part.index_axis_move(Axis(0), index))
        };
        let elements = taken.iter().flat_map(|place| part(place).iter().copied().collect::<Vec<_>>());
        ArrayD::from_shape_vec(to, elements.collect())?
    }))
}

fn concat(call: &Call) -> Result<Value> {
    let axis = call.axis(0, call.value(0)?.shape().len())?;
    let parts = (0..call.proto.input.len())
        .map(|slot| call.value(slot))
        .collect::<Result<Vec<_>>>()?;
    if let Value::Ints(_) = parts[0] {
        let arrays = parts
            .iter()
            .map(|part| match part {
                Value::Ints(array) => Ok(array.view()),
                Value::Floats(_) => bail!("floats beside integers"),
            })
            .collect::<Result<Vec<_>>>()?;
        return Ok(Value::Ints(ndarray::concatenate(Axis(axis), &arrays)?));
    }
    let views = parts
        .iter()
        .map(|part| Ok(part.floats()?.view()))
        .collect::<Result<Vec<_>>>()?;
    Ok(Value::Floats(ndarray::concatenate(Axis(axis), &views)?))
}

fn expand(call: &Call) -> Result<Value> {
    let value = call.value(0)?;
    let wanted: Vec<usize> = call.value(1)?.ints()?.iter().map(|&n| n as usize).collect();
    let shape = common(&[value.shape(), &wanted])?;
    Ok(either!(value, x => widened(x, &shape)?))
}

fn constant_of_shape(call: &Call) -> Result<Value> {
    let shape: Vec<usize> = call.value(0)?.ints()?.iter().map(|&n| n as usize).collect();
    let filler = match call.proto.attr_t("value")? {
        Some(filler) => tensor::read_f64(filler, &Externals::none())?
            .iter()
            .copied()
            .next()
            .context("no value")?,
        None => 0.0,
    };
    Ok(Value::Floats(ArrayD::from_elem(shape, filler)))
}

fn tile(call: &Call) -> Result<Value> {
    let repeats = call.value(1)?.ints()?;
    let mut tiled = call.value(0)?.clone();
    for (axis, &times) in repeats.iter().enumerate() {
        let length = tiled.shape()[axis];
        let taken: Vec<usize> = (0..length * times as usize)
            .map(|place| place % length)
            .collect();
        tiled = either!(tiled, x => x.select(Axis(axis), &taken));
    }
    Ok(tiled)
}

fn pad(call: &Call) -> Result<Value> {
    let x = call.floats(0)?;
    let pads = call.list("pads", 1)?.context("no pads")?;
    let fill = match call.optional(2)? {
        Some(value) => value.floats()?.iter().copied().next().context("no value")?,
        None => call.float("value", 0.0)?,
    };
    let axes = match call.optional(3)? {
        Some(axes) => all_counted(&axes.ints()?, x.ndim())?,
        None => (0..x.ndim()).collect(),
    };
    let mode = call.text("mode", "constant")?;
    let mut padded = x.clone();
    for (i, &axis) in axes.iter().enumerate() {
        let (before, after) = (pads[i], pads[i + axes.len()]);
        let length = padded.shape()[axis] as i64;
        ensure!(mode == "constant" || length > 0, "nothing to repeat");
        let mut shape = padded.shape().to_vec();
        shape[axis] = usize::try_from(length + before + after)?;
        let mut wide = ArrayD::from_elem(IxDyn(&shape), fill);
        for (to, mut lane) in wide.axis_iter_mut(Axis(axis)).enumerate() {
            let place = to as i64 - before;
            let from = match mode {
                "constant" if (0..length).contains(&place) => place,
                "constant" => continue,
                "edge" => place.clamp(0, length - 1),
                "wrap" => place.rem_euclid(length),
                "reflect" => {
                    ensure!(
                        before < length && after < length,
                        "a reflection longer than the value"
                    );
                    let place = place.abs();
                    if place < length {
                        place
                    } else {
                        2 * (length - 1) - place
                    }
                }
                mode => bail!("mode {mode}"),
            };
            lane.assign(&padded.index_axis(Axis(axis), from as usize));
        }
        padded = wide;
    }
    Ok(Value::Floats(padded))
}
