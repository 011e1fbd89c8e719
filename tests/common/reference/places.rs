//! Operators that select, rearrange and add elements, place by place.

use anyhow::{Context, Result, ensure};
use ndarray::{ArrayD, Dimension, IxDyn, Zip, indices};

use super::{Call, Value, common, counted, widened};

/// The result of an operator. `None` if another file computes the operator.
pub fn make(call: &Call) -> Result<Option<Value>> {
    Ok(Some(match call.proto.op_type() {
        "Where" => choose(call)?,
        "CumSum" => running(call)?,
        "GatherElements" => taken(call)?,
        "ScatterElements" | "ScatterND" => written(call)?,
        "Trilu" => triangle(call)?,
        "DepthToSpace" | "SpaceToDepth" => blocks(call)?,
        "Einsum" => einsum(call)?,
        "ReduceMax" | "ReduceMin" | "ReduceL1" => reduced(call)?,
        "ArgMax" => largest_place(call)?,
        "Range" => {
            let bound = |slot: usize| Ok::<_, anyhow::Error>(call.value(slot)?.ints()?[0]);
            let (start, end, step) = (bound(0)?, bound(1)?, bound(2)?);
            ensure!(step > 0, "a step backward");
            let numbers: Vec<i64> = (start..end).step_by(step as usize).collect();
            Value::Ints(ndarray::arr1(&numbers).into_dyn())
        }
        "GlobalMaxPool" => {
            let x = call.floats(0)?;
            let axes: Vec<usize> = (2..x.ndim()).collect();
            Value::Floats(folded(x, &axes, true, f64::max))
        }
        _ => return Ok(None),
    }))
}

/// An arithmetic operator on integers. Quotients are rounded towards 0.
pub fn of_integers(call: &Call) -> Result<Value> {
    let (Value::Ints(one), Value::Ints(other)) = (call.value(0)?, call.value(1)?) else {
        anyhow::bail!("integers beside floats")
    };
    let operation: fn(i64, i64) -> i64 = match call.proto.op_type() {
        "Add" => |a, b| a + b,
        "Sub" => |a, b| a - b,
        "Mul" => |a, b| a * b,
        "Div" => |a, b| a / b,
        "Max" => i64::max,
        "Min" => i64::min,
        op => anyhow::bail!("{op} of integers"),
    };
    let shape = common(&[one.shape(), other.shape()])?;
    let (one, other) = (widened(one, &shape)?, widened(other, &shape)?);
    let pairs = Zip::from(&one).and(&other);
    Ok(Value::Ints(pairs.map_collect(|&a, &b| operation(a, b))))
}

/// The index of the largest element of each lane; the first one of several.
fn largest_place(call: &Call) -> Result<Value> {
    let numbers = match call.value(0)? {
        Value::Ints(array) => array.mapv(|v| v as f64),
        Value::Floats(array) => array.clone(),
    };
    ensure!(call.int("select_last_index", 0)? == 0, "the last place");
    let axis = ndarray::Axis(call.axis(0, numbers.ndim())?);
    let mut places = numbers.map_axis(axis, |lane| {
        let mut first = 0;
        for (place, element) in lane.iter().enumerate() {
            if *element > lane[first] {
                first = place;
            }
        }
        first as i64
    });
    if call.int("keepdims", 1)? != 0 {
        places = places.insert_axis(axis);
    }
    Ok(Value::Ints(places))
}

fn choose(call: &Call) -> Result<Value> {
    let (yes, no) = (call.floats(1)?, call.floats(2)?);
    let Value::Ints(which) = call.value(0)? else {
        anyhow::bail!("no truth values")
    };
    let which = which.mapv(|v| v as f64);
    let shape = common(&[which.shape(), yes.shape(), no.shape()])?;
    let (which, yes, no) = (
        widened(&which, &shape)?,
        widened(yes, &shape)?,
        widened(no, &shape)?,
    );
    Ok(Value::Floats(ArrayD::from_shape_fn(IxDyn(&shape), |at| {
        if which[&at] != 0.0 { yes[&at] } else { no[&at] }
    })))
}

fn running(call: &Call) -> Result<Value> {
    ensure!(
        call.int("exclusive", 0)? == 0 && call.int("reverse", 0)? == 0,
        "another direction"
    );
    let mut y = call.floats(0)?.clone();
    let axis = counted(call.value(1)?.ints()?[0], y.ndim())?;
    for mut lane in y.lanes_mut(ndarray::Axis(axis)) {
        let mut sum = 0.0;
        lane.mapv_inplace(|v| {
            sum += v;
            sum
        });
    }
    Ok(Value::Floats(y))
}

fn taken(call: &Call) -> Result<Value> {
    let x = call.floats(0)?;
    let axis = call.axis(0, x.ndim())?;
    let Value::Ints(places) = call.value(1)? else {
        anyhow::bail!("no places")
    };
    let fits = places.ndim() == x.ndim()
        && (0..x.ndim()).all(|other| other == axis || places.shape()[other] <= x.shape()[other]);
    ensure!(fits, "{:?} of {:?}", places.shape(), x.shape());
    let mut y = ArrayD::zeros(places.shape());
    for (at, &place) in places.indexed_iter() {
        let mut from = at.clone();
        from[axis] = counted(place, x.shape()[axis])?;
        y[&at] = x[&from];
    }
    Ok(Value::Floats(y))
}

/// Writes elements, or blocks of elements, into a copy of a value.
fn written(call: &Call) -> Result<Value> {
    let (mut y, new) = (call.floats(0)?.clone(), call.floats(2)?);
    let reduction = call.text("reduction", "none")?;
    ensure!(["none", "add"].contains(&reduction), "another reduction");
    let Value::Ints(places) = call.value(1)? else {
        anyhow::bail!("no places")
    };
    let by_element = call.proto.op_type() == "ScatterElements";
    let outer = places.ndim() - usize::from(!by_element);
    for (at, &element) in new.indexed_iter() {
        let mut to: Vec<usize> = (0..at.ndim()).map(|axis| at[axis]).collect();
        if by_element {
            let axis = call.axis(0, y.ndim())?;
            to[axis] = counted(places[&at], y.shape()[axis])?;
        } else {
            let length = *places.shape().last().context("no places")?;
            let place = |part: usize| places[&[&to[..outer], &[part]].concat()[..]];
            let indexed = (0..length).map(|part| counted(place(part), y.shape()[part]));
            to.splice(..outer, indexed.collect::<Result<Vec<_>>>()?);
        }
        let there = if reduction == "add" { y[&to[..]] } else { 0.0 };
        y[&to[..]] = there + element;
    }
    Ok(Value::Floats(y))
}

fn triangle(call: &Call) -> Result<Value> {
    let (mut y, upper) = (call.floats(0)?.clone(), call.int("upper", 1)? != 0);
    let rank = y.ndim();
    for (at, v) in y.indexed_iter_mut() {
        let (row, column) = (at[rank - 2], at[rank - 1]);
        if if upper { column < row } else { column > row } {
            *v = 0.0;
        }
    }
    Ok(Value::Floats(y))
}

/// Moves blocks of an image into channels (SpaceToDepth), or channels into blocks (DepthToSpace).
/// The elements at one place of all blocks become successive channels.
fn blocks(call: &Call) -> Result<Value> {
    ensure!(call.text("mode", "DCR")? == "DCR", "another order");
    let (x, size) = (call.floats(0)?, call.int("blocksize", 0)? as usize);
    let &[items, channels, height, width] = x.shape() else {
        anyhow::bail!("no image")
    };
    let spreads = call.proto.op_type() == "DepthToSpace";
    let fits = if spreads {
        channels % (size * size) == 0
    } else {
        height % size == 0 && width % size == 0
    };
    ensure!(fits && !x.is_empty(), "{:?} in blocks of {size}", x.shape());
    let shape = match spreads {
        true => [items, channels / (size * size), height * size, width * size],
        false => [items, channels * size * size, height / size, width / size],
    };
    let inner = if spreads { shape[1] } else { channels };
    let mut y = ArrayD::zeros(IxDyn(&shape));
    let image = if spreads {
        shape
    } else {
        [items, channels, height, width]
    };
    for at in indices(image) {
        let (item, channel, row, column) = at;
        let deep = [
            item,
            ((row % size) * size + column % size) * inner + channel,
            row / size,
            column / size,
        ];
        let flat = [item, channel, row, column];
        let (from, to) = if spreads { (deep, flat) } else { (flat, deep) };
        y[IxDyn(&to)] = x[IxDyn(&from)];
    }
    Ok(Value::Floats(y))
}

/// An Einsum with one letter for each axis. All operands must be named.
fn einsum(call: &Call) -> Result<Value> {
    let (terms, result) = call
        .text("equation", "")?
        .split_once("->")
        .context("no result")?;
    let terms: Vec<&str> = terms.split(',').collect();
    let operands = (0..terms.len())
        .map(|slot| call.floats(slot))
        .collect::<Result<Vec<_>>>()?;
    let mut letters: Vec<(char, usize)> = vec![];
    for (term, operand) in terms.iter().zip(&operands) {
        for (letter, &extent) in term.chars().zip(operand.shape()) {
            if !letters.contains(&(letter, extent)) {
                letters.push((letter, extent));
            }
        }
    }
    let extents: Vec<usize> = letters.iter().map(|&(_, extent)| extent).collect();
    let place = |letter| {
        letters
            .iter()
            .position(|&(other, _)| other == letter)
            .expect("a letter of an operand")
    };
    let of = |term: &str, at: &IxDyn| {
        term.chars()
            .map(|letter| at[place(letter)])
            .collect::<Vec<_>>()
    };
    let shape: Vec<usize> = result
        .chars()
        .map(|letter| extents[place(letter)])
        .collect();
    let mut y = ArrayD::zeros(shape);
    for at in indices(extents.clone()) {
        let at: IxDyn = at;
        let product: f64 = terms
            .iter()
            .zip(&operands)
            .map(|(term, x)| x[IxDyn(&of(term, &at))])
            .product();
        y[IxDyn(&of(result, &at))] += product;
    }
    Ok(Value::Floats(y))
}

fn reduced(call: &Call) -> Result<Value> {
    let x = call.floats(0)?;
    let axes = call.list("axes", 1)?.context("all axes")?;
    let axes = axes
        .iter()
        .map(|&axis| counted(axis, x.ndim()))
        .collect::<Result<Vec<_>>>()?;
    let keep = call.int("keepdims", 1)? != 0;
    Ok(Value::Floats(match call.proto.op_type() {
        "ReduceMax" => folded(x, &axes, keep, f64::max),
        "ReduceMin" => folded(x, &axes, keep, f64::min),
        _ => folded(&x.mapv(f64::abs), &axes, keep, |a, b| a + b),
    }))
}

fn folded(x: &ArrayD<f64>, axes: &[usize], keep: bool, two: fn(f64, f64) -> f64) -> ArrayD<f64> {
    let mut axes = axes.to_vec();
    axes.sort_unstable();
    let mut y = x.clone();
    for &axis in axes.iter().rev() {
        let lanes = y.map_axis(ndarray::Axis(axis), |lane| {
            lane.iter().copied().reduce(two).unwrap_or(0.0)
        });
        y = if keep {
            lanes.insert_axis(ndarray::Axis(axis))
        } else {
            lanes
        };
    }
    y
}
