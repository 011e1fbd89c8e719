//! Reading a region as formulas: what each of its values is, place by place, of its input.
//!
//! Nothing is matched by its place in a pattern or by a name. A region whose last value comes out as
//! a quotient of the right form is Dynamic Token Normalization, in whatever order and layout it is
//! written; an operator that is not understood ends the attempt.

use std::collections::HashMap;

use ndarray::{Array3, ArrayD, IxDyn};

use super::super::View;
use super::super::alike::Alike;
use super::super::layout::{Atom, Atoms, Axes, MOVE};
use super::super::region::Region;

use super::formula::{Coefficient, Factor, Formula, Normalized};

use crate::graph::at::{At, axis};
use crate::graph::facts::{Shape, extent};
use crate::graph::{NodeId, ValueId};
use crate::refusal::{Reason, Refusal};

/// What a region computes.
pub struct Meaning {
    /// The quotient, in the layout of the tokens.
    pub output: ValueId,
    /// The nodes behind the region that bring it into that layout.
    pub moves: Vec<NodeId>,
    /// The quotient.
    pub normalized: Normalized,
    /// `P`, one matrix for each head.
    pub mixing: Array3<f64>,
    /// Side lengths of the image of tokens and of the blocks that are averaged before `P`.
    pub pooling: Option<Pooling>,
    /// Why other operators cannot compute the same.
    pub refusal: Option<Refusal>,
    /// Number of tokens.
    pub tokens: usize,
    /// Number of channels.
    pub channels: usize,
}

/// Averages over blocks of tokens stand for their blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pooling {
    /// Blocks along the height and the width.
    pub blocks: [usize; 2],
    /// Tokens along the height and the width of a block.
    pub size: [usize; 2],
}

/// A value: a formula, or a power of the root of one, and where its elements are.
#[derive(Clone)]
struct Value {
    formula: Formula,
    power: Power,
    axes: Axes,
    /// A second formula, in the other half of one of the axes.
    beside: Option<(Formula, usize)>,
}

impl Value {
    fn new(formula: Formula, axes: Axes) -> Self {
        Value { formula, power: Power::One, axes, beside: None }
    }
}

/// A Resize, which has to be the same for means and for squares.
#[derive(Clone)]
struct Widening {
    settings: (String, String, String, i64),
    /// Where tokens of a block do not have the statistics of the block: only the formula of their
    /// neighbours is then that of the paper.
    refusal: Option<Refusal>,
}

impl Widening {
    fn of(at: &At) -> Option<Widening> {
        let text = |name: &str, absent: &'static str| at.attr_text(name, absent).ok().map(str::to_owned);
        let mode = text("mode", "nearest")?;
        let place = text("coordinate_transformation_mode", "half_pixel")?;
        let rounding = match mode.as_str() {
            "nearest" => text("nearest_mode", "round_prefer_floor")?,
            _ => String::new(),
        };
        let antialias = at.attr("antialias", 0).ok()?;
        at.attr_ints("axes").ok()?.is_none().then_some(())?;
        let repeats = mode == "nearest" && place == "asymmetric" && rounding == "floor" && antialias == 0;
        let refusal = || Refusal::new(Reason::Attribute("mode".into()), at.graph.name(at.node));
        // What crops has numbers of its own beside the image.
        (place != "tf_crop_and_resize").then(|| Widening {
            refusal: (!repeats).then(refusal),
            settings: (mode, place, rounding, antialias),
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Power {
    One,
    Root,
    InverseRoot,
}

/// Reads a region; `None` where it is no Dynamic Token Normalization of [batch, tokens, channels].
pub fn interpret(view: &View, alike: &Alike, region: &Region) -> Option<Meaning> {
    let shape = view.facts.shape(region.input)?;
    let [_, tokens, channels] = &shape[..] else { return None };
    let mut reader = Reader {
        view,
        alike,
        atoms: Atoms::default(),
        values: HashMap::new(),
        batch: None,
        tokens: 0,
        channels: 0,
        count: extent(channels)?,
        blocks: None,
        widening: None,
        mixing: None,
    };
    (extent(tokens)? > 1 && reader.count > 1).then_some(())?;
    let axes = reader.atoms.of(&shape)?;
    (reader.batch, reader.tokens, reader.channels) = (axes[0].first().copied(), axes[1][0], axes[2][0]);
    let whole = axes.clone();
    reader.values.insert(region.input, Value::new(Formula::term(&[Factor::Input], vec![1.0]), axes));
    let (last, before) = region.nodes.split_last()?;
    for &node in before {
        if view.graph.op(node) == "Split" {
            reader.split(node)?;
            continue;
        }
        let value = reader.node(node)?;
        reader.values.insert(view.graph.only_output(node)?, value);
    }
    let (numerator, square, axes) = reader.quotient(*last)?;
    let mut output = view.graph.only_output(*last)?;
    reader.values.insert(output, Value::new(Formula::term(&[], vec![1.0]), axes));
    // Every channel of every token is normalized where it stands, perhaps in another layout.
    let mut moves = vec![];
    while !reader.is_in_place(output, &whole)? {
        let node = view.only_reader(output).filter(|&node| MOVE.contains(&view.graph.op(node)))?;
        let moved = reader.node(node)?;
        output = view.graph.only_output(node)?;
        reader.values.insert(output, moved);
        moves.push(node);
    }
    let (mixing, of_channel) = reader.mixing?;
    let (heads, count) = (mixing.dim().0, reader.count);
    let consecutive = count.is_multiple_of(heads)
        && of_channel.iter().enumerate().all(|(channel, &head)| head == channel / (count / heads));
    let pooling = match reader.blocks {
        None => None,
        Some([[y, dy], [x, dx]]) => {
            let number = |atom: Atom| reader.atoms.extent(atom);
            Some(Pooling { blocks: [number(y)?, number(x)?], size: [number(dy)?, number(dx)?] })
        }
    };
    consecutive.then_some(Meaning {
        output,
        moves,
        normalized: Normalized::of(&numerator, &square, count)?,
        mixing,
        pooling,
        refusal: reader.widening.and_then(|widening| widening.refusal),
        tokens: extent(tokens)?,
        channels: count,
    })
}

struct Reader<'r> {
    view: &'r View<'r>,
    alike: &'r Alike<'r>,
    atoms: Atoms,
    values: HashMap<ValueId, Value>,
    batch: Option<Atom>,
    tokens: Atom,
    channels: Atom,
    /// Number of channels.
    count: usize,
    /// Rows and columns of blocks, and those within a block.
    blocks: Option<[[Atom; 2]; 2]>,
    /// How statistics of blocks become those of tokens.
    widening: Option<Widening>,
    /// `P`, and which of its matrices is for a channel.
    mixing: Option<(Array3<f64>, Vec<usize>)>,
}

impl<'r> Reader<'r> {
    fn at(&self, node: NodeId) -> At<'r> {
        self.view.at(node)
    }

    fn value(&self, node: NodeId, slot: usize) -> Option<&Value> {
        self.values.get(&self.view.graph.input(node, slot)?)
    }

    fn is_in_place(&self, value: ValueId, whole: &Axes) -> Option<bool> {
        Some(self.atoms.same(&self.values.get(&value)?.axes, whole))
    }

    /// A value that is no root, and one formula.
    fn plain(&self, node: NodeId, slot: usize) -> Option<&Value> {
        self.value(node, slot).filter(|value| value.power == Power::One && value.beside.is_none())
    }

    fn constant(&self, node: NodeId, slot: usize) -> Option<ArrayD<f64>> {
        self.alike.read(self.view.graph.input(node, slot)?)
    }

    fn shape(&self, node: NodeId) -> Option<Shape> {
        self.view.facts.shape(self.view.graph.only_output(node)?)
    }

    fn node(&mut self, node: NodeId) -> Option<Value> {
        match self.view.graph.op(node) {
            op if MOVE.contains(&op) => {
                let at = self.at(node);
                let value = self.value(node, 0)?.clone();
                let beside = match (&value.beside, op) {
                    (Some((other, axis)), "Transpose") => {
                        let perm = at.permutation(value.axes.len()).ok()?;
                        Some((other.clone(), perm.iter().position(|p| p == axis)?))
                    }
                    (Some(_), op) if op != "Identity" => return None,
                    (beside, _) => beside.clone(),
                };
                Some(Value { axes: self.atoms.moved(&at, &value.axes)?, beside, ..value })
            }
            "Add" => self.sum(node, 1.0),
            "Sub" => self.sum(node, -1.0),
            "Mul" => self.product(node),
            "Div" => self.division(node),
            "Neg" => {
                let value = self.plain(node, 0)?.clone();
                Some(Value { formula: value.formula.scaled(&vec![-1.0]), ..value })
            }
            "Pow" => {
                let value = self.plain(node, 0)?;
                let power = self.view.scalar(self.view.graph.input(node, 1)?)?;
                match power {
                    2.0 => Some(Value { formula: value.formula.times(&value.formula)?, ..value.clone() }),
                    0.5 => Some(Value { power: Power::Root, ..value.clone() }),
                    -0.5 => Some(Value { power: Power::InverseRoot, ..value.clone() }),
                    _ => None,
                }
            }
            "Sqrt" => Some(Value { power: Power::Root, ..self.plain(node, 0)?.clone() }),
            "Reciprocal" => self.inverse(self.value(node, 0)?),
            "ReduceMean" | "ReduceSum" => self.mean(node),
            "AveragePool" => self.pool(node),
            "Resize" => self.widen(node),
            "Expand" => self.expand(node),
            "Concat" => self.concat(node),
            "MatMul" => self.matmul(node),
            "Einsum" => self.einsum(node),
            _ => None,
        }
    }

    fn inverse(&self, value: &Value) -> Option<Value> {
        (value.power == Power::Root).then(|| Value { power: Power::InverseRoot, ..value.clone() })
    }

    /// The numerator and what is under the root of the last node, and the axes of their quotient.
    fn quotient(&self, last: NodeId) -> Option<(Formula, Formula, Axes)> {
        let (left, right) = (self.value(last, 0)?, self.value(last, 1)?);
        (left.beside.is_none() && right.beside.is_none()).then_some(())?;
        let (numerator, root) = match (self.view.graph.op(last), left.power, right.power) {
            ("Div", Power::One, Power::Root) | ("Mul", Power::One, Power::InverseRoot) => (left, right),
            ("Mul", Power::InverseRoot, Power::One) => (right, left),
            _ => return None,
        };
        let axes = self.atoms.broadcast(&numerator.axes, &root.axes)?;
        Some((numerator.formula.clone(), root.formula.clone(), axes))
    }

    /// The axes of a value beside a constant that may bring an axis of heads, or of channels, which the
    /// value does not have yet: λ beside the mean of a token. Whether it is the right one shows where
    /// the axis meets that of another value.
    fn joined(&mut self, axes: &Axes, constant: &ArrayD<f64>) -> Option<Axes> {
        let rank = axes.len().max(constant.ndim());
        let mut axes = [vec![vec![]; rank - axes.len()], axes.clone()].concat();
        for (axis, &extent) in axes[rank - constant.ndim()..].iter_mut().zip(constant.shape()) {
            if extent == 1 || !axis.is_empty() {
                continue;
            }
            let leaves = self.atoms.leaves(&[self.channels]);
            *axis = if extent == self.count {
                leaves
            } else if leaves.len() == 1 && self.count.is_multiple_of(extent) {
                vec![self.atoms.split(self.channels, self.count / extent)?[0]]
            } else {
                vec![leaves.into_iter().find(|&leaf| self.atoms.extent(leaf) == Some(extent))?]
            };
        }
        Some(axes)
    }

    /// A constant operand beside a value: its number for each channel, if it varies along nothing else.
    fn coefficient(&self, axes: &Axes, constant: &ArrayD<f64>) -> Option<Coefficient> {
        if constant.len() == 1 {
            return Some(constant.iter().copied().collect());
        }
        let order = self.atoms.leaves(&[self.channels]);
        let mut strides = HashMap::new();
        let mut places = self.count;
        for &leaf in &order {
            let extent = self.atoms.extent(leaf)?;
            places /= extent;
            strides.insert(leaf, (places, extent));
        }
        let offset = axes.len().checked_sub(constant.ndim())?;
        let varying: Vec<(usize, Vec<Atom>)> = (0..constant.ndim())
            .filter(|&i| constant.shape()[i] > 1)
            .map(|i| (i, self.atoms.leaves(&axes[offset + i])))
            .collect();
        if varying.iter().any(|(_, leaves)| leaves.is_empty()) {
            return None;
        }
        let mut coefficient = vec![];
        for channel in 0..self.count {
            let mut index = vec![0; constant.ndim()];
            for (i, leaves) in &varying {
                for leaf in leaves {
                    let (places, extent) = *strides.get(leaf)?;
                    index[*i] = index[*i] * extent + channel / places % extent;
                }
            }
            coefficient.push(*constant.get(IxDyn(&index))?);
        }
        Some(coefficient)
    }

    /// A constant operand beside a value, as a formula of its own.
    fn beside(&mut self, node: NodeId, slot: usize, axes: &Axes) -> Option<Value> {
        let constant = self.constant(node, slot)?;
        let axes = self.joined(axes, &constant)?;
        let numbers = self.coefficient(&axes, &constant)?;
        Some(Value::new(Formula::term(&[], numbers), axes))
    }

    /// Two operands, at least one of which varies.
    fn operands(&mut self, node: NodeId) -> Option<(Value, Value)> {
        let [left, right] = [0, 1].map(|slot| self.value(node, slot).cloned());
        let both = match (left, right) {
            (Some(left), Some(right)) => (left, right),
            (Some(left), None) => {
                let right = self.beside(node, 1, &left.axes)?;
                (left, right)
            }
            (None, right) => {
                let right = right?;
                (self.beside(node, 0, &right.axes)?, right)
            }
        };
        let plain = |value: &Value| value.power == Power::One && value.beside.is_none();
        (plain(&both.0) && plain(&both.1)).then_some(both)
    }

    fn sum(&mut self, node: NodeId, sign: f64) -> Option<Value> {
        let (left, right) = self.operands(node)?;
        let axes = self.atoms.broadcast(&left.axes, &right.axes)?;
        Some(Value { formula: left.formula.plus(&right.formula.scaled(&vec![sign])), axes, ..left })
    }

    fn product(&mut self, node: NodeId) -> Option<Value> {
        let (left, right) = self.operands(node)?;
        let axes = self.atoms.broadcast(&left.axes, &right.axes)?;
        Some(Value { formula: left.formula.times(&right.formula)?, axes, ..left })
    }

    /// By a constant, or 1 by a root.
    fn division(&mut self, node: NodeId) -> Option<Value> {
        if let Some(value) = self.plain(node, 0).cloned() {
            let divisor = self.beside(node, 1, &value.axes)?;
            let by = divisor.formula.coefficient(&[]).iter().map(|c| c.recip()).collect();
            return Some(Value { formula: value.formula.scaled(&by), axes: divisor.axes, ..value });
        }
        let one = self.constant(node, 0)?;
        let root = self.value(node, 1)?;
        (one.len() == 1 && one.iter().all(|&one| one == 1.0)).then(|| self.inverse(root)).flatten()
    }

    /// A mean over the channels, or over blocks of tokens.
    fn mean(&mut self, node: NodeId) -> Option<Value> {
        let value = self.plain(node, 0)?.clone();
        let (leaves, axes) = self.atoms.reduced(&self.at(node), &value.axes)?;
        let mut channels = self.atoms.leaves(&[self.channels]);
        channels.sort_unstable();
        let is_mean = self.view.graph.op(node) == "ReduceMean";
        if leaves == channels {
            let count = if is_mean { 1.0 } else { self.count as f64 };
            let formula = value.formula.averaged()?.scaled(&vec![count]);
            return Some(Value::new(formula, axes));
        }
        let [y, dy, x, dx] = self.atoms.leaves(&[self.tokens])[..] else { return None };
        let mut inner = [dy, dx];
        inner.sort_unstable();
        (is_mean && leaves == inner).then_some(())?;
        self.pooled(&value, [[y, dy], [x, dx]], axes)
    }

    fn pooled(&mut self, value: &Value, blocks: [[Atom; 2]; 2], axes: Axes) -> Option<Value> {
        (*self.blocks.get_or_insert(blocks) == blocks).then_some(())?;
        let formula = value.formula.mapped(|factors| match factors {
            [Factor::Input] => Some(vec![Factor::Pooled]),
            [Factor::Input, Factor::Input] => Some(vec![Factor::PooledSquare]),
            _ => None,
        })?;
        Some(Value::new(formula, axes))
    }

    /// Averages of blocks of an image of tokens, without padding.
    fn pool(&mut self, node: NodeId) -> Option<Value> {
        let value = self.plain(node, 0)?.clone();
        let at = self.at(node);
        at.only_attributes(&[
            "auto_pad",
            "ceil_mode",
            "count_include_pad",
            "dilations",
            "kernel_shape",
            "pads",
            "strides",
        ])
        .ok()?;
        let kernel = at.attr_ints("kernel_shape").ok()??;
        let all = |name: &str, neutral: i64| {
            let list = at.attr_ints(name).ok().flatten();
            list.is_none_or(|list| list.iter().all(|&i| i == neutral))
        };
        let plain = at.attr_text("auto_pad", "NOTSET").ok()? == "NOTSET"
            && at.attr("ceil_mode", 0).ok()? == 0
            && at.attr_ints("strides").ok()?.as_ref() == Some(&kernel)
            && all("pads", 0)
            && all("dilations", 1);
        let (&[height, width], true) = (&kernel[..], plain && value.axes.len() == 4) else { return None };
        let image = [value.axes[2].clone(), value.axes[3].clone()];
        let blocks = match self.atoms.leaves(&[self.tokens])[..] {
            // The first pooling cuts the image into blocks, the second finds them.
            [y, x] if image == [vec![y], vec![x]] => [
                self.atoms.split(y, usize::try_from(height).ok()?)?,
                self.atoms.split(x, usize::try_from(width).ok()?)?,
            ],
            [y, dy, x, dx] => [[y, dy], [x, dx]],
            _ => return None,
        };
        let [[y, dy], [x, dx]] = blocks;
        let size = [dy, dx].map(|atom| self.atoms.extent(atom).and_then(|size| i64::try_from(size).ok()));
        let cut = image.map(|axis| self.atoms.leaves(&axis));
        if size != [Some(height), Some(width)] || cut != [vec![y, dy], vec![x, dx]] {
            return None;
        }
        let axes = vec![value.axes[0].clone(), value.axes[1].clone(), vec![y], vec![x]];
        self.pooled(&value, blocks, axes)
    }

    /// Statistics of blocks, once for every token of the block.
    fn widen(&mut self, node: NodeId) -> Option<Value> {
        let value = self.plain(node, 0)?.clone();
        let at = self.at(node);
        let [[y, dy], [x, dx]] = self.blocks?;
        let widening = Widening::of(&at)?;
        (self.widening.get_or_insert_with(|| widening.clone()).settings == widening.settings).then_some(())?;
        let image = value.axes.len() == 4
            && self.atoms.leaves(&value.axes[2]) == [y]
            && self.atoms.leaves(&value.axes[3]) == [x];
        let number = |atom: Atom| self.atoms.extent(atom);
        let (shape, wide) = (self.shape(node)?, [number(y)? * number(dy)?, number(x)? * number(dx)?]);
        let fits = shape.len() == 4 && [extent(&shape[2]), extent(&shape[3])] == wide.map(Some);
        let inter = is_inter(&value.formula);
        (image && fits && inter).then(|| {
            let axes = vec![value.axes[0].clone(), value.axes[1].clone(), vec![y, dy], vec![x, dx]];
            Value { axes, ..value }
        })
    }

    /// The same, where the tokens of a block have axes of their own; or nothing at all.
    fn expand(&self, node: NodeId) -> Option<Value> {
        let value = self.plain(node, 0)?;
        let shape = self.shape(node)?;
        (shape.len() == value.axes.len()).then_some(())?;
        let mut axes = value.axes.clone();
        for i in 0..axes.len() {
            if !axes[i].is_empty() || extent(&shape[i]) == Some(1) {
                continue;
            }
            let outer = self.atoms.leaves(&axes[i.checked_sub(1)?]);
            let inner = self.blocks?.into_iter().find(|&[block, _]| outer == [block])?[1];
            let fits = extent(&shape[i]) == self.atoms.extent(inner) && is_inter(&value.formula);
            axes[i] = fits.then(|| vec![inner])?;
        }
        Some(Value { axes, ..value.clone() })
    }

    /// Two values side by side, such as `x` and `x ⊙ x`.
    fn concat(&self, node: NodeId) -> Option<Value> {
        let (left, right) = (self.plain(node, 0)?, self.plain(node, 1)?);
        let along = axis(self.at(node).attr("axis", 0).ok()?, left.axes.len()).ok()?;
        let leaves = |axes: &Axes| axes.iter().map(|axis| self.atoms.leaves(axis)).collect::<Axes>();
        let same = self.view.graph.inputs(node).len() == 2
            && leaves(&left.axes) == leaves(&right.axes)
            && !left.axes[along].is_empty();
        same.then(|| Value { beside: Some((right.formula.clone(), along)), ..left.clone() })
    }

    /// Takes them apart again.
    fn split(&mut self, node: NodeId) -> Option<()> {
        let value = self.value(node, 0)?.clone();
        let (other, along) = value.beside.clone()?;
        let at = self.at(node);
        let &[Some(first), Some(second)] = self.view.graph.outputs(node) else { return None };
        let axis = axis(at.attr("axis", 0).ok()?, value.axes.len()).ok()?;
        let extents = [first, second].map(|half| self.view.facts.extent(half, axis));
        (axis == along && extents[0].is_some() && extents[0] == extents[1]).then_some(())?;
        self.values.insert(first, Value { beside: None, ..value.clone() });
        self.values.insert(second, Value { beside: None, formula: other, ..value });
        Some(())
    }

    fn matmul(&mut self, node: NodeId) -> Option<Value> {
        let left = self.value(node, 0).is_some();
        let value = self.value(node, if left { 0 } else { 1 })?.clone();
        (value.power == Power::One).then_some(())?;
        let matrix = self.constant(node, if left { 1 } else { 0 })?;
        let (rank, own) = (value.axes.len(), matrix.ndim());
        if rank < 2 || own < 2 || own > rank {
            return None;
        }
        // Axes of the matrix beside those of the value: stacks, then the new tokens and the old ones.
        let stack: Vec<usize> = (rank - own..rank - 2).collect();
        let (matrix, along) = match left {
            true => {
                let mut turned = matrix;
                turned.swap_axes(own - 2, own - 1);
                (turned, rank - 1)
            }
            false => (matrix, rank - 2),
        };
        self.mixed(&value, matrix, &stack, along, value.axes.clone())
    }

    fn einsum(&mut self, node: NodeId) -> Option<Value> {
        let at = self.at(node);
        let equation: String = at.attr_text("equation", "").ok()?.split_whitespace().collect();
        let (inputs, output) = equation.split_once("->")?;
        let labels: Vec<Vec<char>> = inputs.split(',').map(|part| part.chars().collect()).collect();
        let [first, second] = &labels[..] else { return None };
        let slot = usize::from(self.plain(node, 0).is_none());
        let (of_value, of_matrix) = if slot == 0 { (first, second) } else { (second, first) };
        let value = self.plain(node, slot)?.clone();
        let matrix = self.constant(node, 1 - slot)?;
        let output: Vec<char> = output.chars().collect();
        let distinct = |labels: &[char]| {
            labels.iter().all(|label| labels.iter().filter(|other| *other == label).count() == 1)
        };
        let plain = [of_value, of_matrix, &output]
            .iter()
            .all(|labels| distinct(labels) && labels.iter().all(char::is_ascii_alphabetic));
        if !plain || of_value.len() != value.axes.len() || of_matrix.len() != matrix.ndim() {
            return None;
        }
        let place = |labels: &[char], label: char| labels.iter().position(|&other| other == label);
        // One label is summed over, one is new, all others stay.
        let old: Vec<char> = of_matrix.iter().copied().filter(|label| !output.contains(label)).collect();
        let new: Vec<char> = of_matrix.iter().copied().filter(|label| !of_value.contains(label)).collect();
        let (&[old], &[new]) = (&old[..], &new[..]) else { return None };
        let along = place(of_value, old)?;
        let stays = |&label: &char| label == old || output.contains(&label);
        if !of_value.iter().all(stays) || !output.contains(&new) || output.len() != of_value.len() {
            return None;
        }
        let stacked: Vec<char> =
            of_matrix.iter().copied().filter(|&label| label != old && label != new).collect();
        let order: Vec<usize> =
            stacked.iter().chain(&[new, old]).map(|&label| place(of_matrix, label)).collect::<Option<_>>()?;
        let stack: Vec<usize> = stacked.iter().map(|&label| place(of_value, label)).collect::<Option<_>>()?;
        let axes = output
            .iter()
            .map(|&label| {
                Some(value.axes[if label == new { along } else { place(of_value, label)? }].clone())
            })
            .collect::<Option<_>>()?;
        self.mixed(&value, matrix.permuted_axes(order), &stack, along, axes)
    }

    /// `P` applied to the tokens along one axis of a value. `stack` names the axes of the value beside
    /// which the matrix has its own; its last two are the new tokens and the old ones.
    fn mixed(
        &mut self,
        value: &Value,
        matrix: ArrayD<f64>,
        stack: &[usize],
        along: usize,
        axes: Axes,
    ) -> Option<Value> {
        if value.beside.as_ref().is_some_and(|(_, halves)| *halves == along || stack.contains(halves)) {
            return None;
        }
        let tokens = match self.blocks {
            None => self.atoms.leaves(&[self.tokens]),
            Some([[y, _], [x, _]]) => vec![y, x],
        };
        let rank = matrix.ndim();
        let count = matrix.shape()[rank - 1];
        if self.atoms.leaves(&value.axes[along]) != tokens || matrix.shape()[rank - 2] != count {
            return None;
        }
        let stacked = matrix.shape()[..rank - 2].to_vec();
        // Matrices that are alike for all items are known for one: beside items and heads in one axis
        // they are those of the heads.
        let one_item = |axis: &Vec<Atom>| match self.atoms.leaves(axis)[..] {
            [first, ref rest @ ..] if Some(first) == self.batch => rest.to_vec(),
            ref all => all.to_vec(),
        };
        let beside: Axes = stack.iter().map(|&axis| one_item(&value.axes[axis])).collect();
        if stacked.iter().zip(&beside).any(|(&extent, axis)| extent > 1 && axis.is_empty()) {
            return None;
        }
        let matrices = stacked.iter().product::<usize>();
        let numbers =
            ArrayD::from_shape_vec(IxDyn(&stacked), (0..matrices).map(|i| i as f64).collect()).ok()?;
        let of_channel = match &self.coefficient(&beside, &numbers)?[..] {
            [_] => vec![0; self.count],
            each => each.iter().map(|&number| number as usize).collect(),
        };
        let matrix = matrix.as_standard_layout().into_owned();
        let mixing = (matrix.into_shape_with_order((matrices, count, count)).ok()?, of_channel);
        (*self.mixing.get_or_insert_with(|| mixing.clone()) == mixing).then_some(())?;
        let pooled = self.blocks.is_some();
        let image = |factors: &[Factor]| match (factors, pooled) {
            ([Factor::Input], false) | ([Factor::Pooled], true) => Some(vec![Factor::Inter]),
            ([Factor::Input, Factor::Input], false) | ([Factor::PooledSquare], true) => {
                Some(vec![Factor::InterSquare])
            }
            _ => None,
        };
        let beside = match &value.beside {
            Some((other, axis)) => Some((other.mapped(image)?, *axis)),
            None => None,
        };
        Some(Value { beside, ..Value::new(value.formula.mapped(image)?, axes) })
    }
}

/// Whether a formula has nothing but products with `P`, which are alike within a block.
fn is_inter(formula: &Formula) -> bool {
    formula.terms.keys().flatten().all(|factor| matches!(factor, Factor::Inter | Factor::InterSquare))
}
