//! Reading a region as formulas: what each of its values is, place by place, of its input.
//!
//! Nothing is matched by its place in a pattern or by a name; an operator that is not understood ends
//! the attempt.

use std::collections::HashMap;

use ndarray::Array1;
use tract_onnx::tract_hir::internal::TDim;

use crate::affine::recognize::View;
use crate::affine::recognize::batch_invariant::Alike;
use crate::affine::recognize::formula::{Coefficient, Factor, Formula, LARGEST};
use crate::affine::recognize::region::Region;
use crate::analysis::layout::{Axes, AxisFactor, AxisFactors};
use crate::analysis::node_view::At;
use crate::ir::axes::axis;
use crate::ir::equation::{Equation, is_once};
use crate::ir::{NodeId, ValueId};
use crate::onnx::operator::AVERAGE_POOL;
use crate::recipe::Numbers;
use crate::refusal::{Reason, Refusal};
use crate::shape::facts::same;
use crate::shape::facts::{Shape, extent};

/// `numerator / √square`: what the last value of a region is.
pub struct Quotient {
    /// The numerator.
    pub numerator: Formula,
    /// The radicand.
    pub square: Formula,
    /// The value that is divided.
    pub divided: ValueId,
    /// The axes of the region's input, each an atom of its own at first.
    pub input: Axes,
    /// The axes of the quotient.
    pub axes: Axes,
    /// The atoms of the axes.
    pub atoms: AxisFactors,
    /// `P`, if a matrix is part of it.
    pub mixing: Option<Mixing>,
    /// Why the formulas are those of neighbours only.
    pub refusal: Option<Refusal>,
}

/// `P`: a matrix for some places of the input, and which of them is for which.
#[derive(Clone, PartialEq)]
pub struct Mixing {
    /// The matrices: one for each place of the first axis.
    pub matrices: Numbers,
    /// The number of the matrix that is for a place.
    pub which: Coefficient,
    /// The atoms over which it sums, and whose places it makes.
    pub along: Vec<AxisFactor>,
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Power {
    One,
    Root,
    InverseRoot,
}

impl Value {
    fn new(formula: Formula, axes: Axes) -> Self {
        Value {
            formula,
            power: Power::One,
            axes,
            beside: None,
        }
    }

    fn inverse(self) -> Option<Self> {
        (self.power == Power::Root).then_some(Value {
            power: Power::InverseRoot,
            ..self
        })
    }

    fn is_plain(&self) -> bool {
        self.power == Power::One && self.beside.is_none()
    }
}

/// A Resize, which has to be the same wherever there is one.
#[derive(Clone)]
struct Widening {
    settings: (String, String, String, i64),
    /// The refusal where it does more than repeat: then only a neighbour's formula was read.
    refusal: Option<Refusal>,
}

impl Widening {
    /// `times` is how many times longer each axis becomes.
    fn from_node(at: &At, times: &[usize]) -> Option<Widening> {
        let text =
            |name: &str, absent: &'static str| at.attr_text(name, absent).ok().map(str::to_owned);
        let mode = text("mode", "nearest")?;
        let place = text("coordinate_transformation_mode", "half_pixel")?;
        let rounding = match mode.as_str() {
            "nearest" => text("nearest_mode", "round_prefer_floor")?,
            _ => String::new(),
        };
        let antialias = at.attr("antialias", 0).ok()?;
        at.attr_ints("axes").ok()?.is_none().then_some(())?;
        let scales: Vec<f64> = match at.graph.input(at.node, 2) {
            Some(_) => at.numbers(2).ok()?.iter().copied().collect(),
            None => vec![],
        };
        let times = times.iter().map(|&times| times as f64);
        let repeats =
            (mode == "nearest" && place == "asymmetric" && rounding == "floor" && antialias == 0)
                && at.attr_text("keep_aspect_ratio_policy", "stretch").ok()? == "stretch"
                && (scales.is_empty() || times.eq(scales));
        let refusal = || Refusal::new(Reason::Attribute("mode".into()), at.graph.name(at.node));
        // Cropping puts other numbers outside of the image.
        (place != "tf_crop_and_resize").then(|| Widening {
            refusal: (!repeats).then(refusal),
            settings: (mode, place, rounding, antialias),
        })
    }
}

/// The operators that can be read, besides movements: those of [`Reading::node`], and Split.
const UNDERSTOOD: &[&str] = &[
    "Add",
    "AveragePool",
    "Cast",
    "Concat",
    "Div",
    "Einsum",
    "Expand",
    "MatMul",
    "Mul",
    "Neg",
    "Pow",
    "Reciprocal",
    "ReduceMean",
    "ReduceSum",
    "Resize",
    "Split",
    "Sqrt",
    "Sub",
];

/// Whether a node may be one of a region that can be read: where it is not, there is no need to try.
pub fn is_understood(view: &View, node: NodeId) -> bool {
    view.graph.is_movement(node)
        || view
            .graph
            .op(node)
            .is_some_and(|op| UNDERSTOOD.contains(&op))
}

/// Reads a region that ends in a quotient; `None` where it is not understood as one.
pub fn read(view: &View, alike: &Alike, region: &Region) -> Option<Quotient> {
    let mut atoms = AxisFactors::default();
    let input = atoms.axes(&view.facts.shape(region.input)?)?;
    let values = HashMap::new();
    let mut reading = Reading {
        view,
        alike,
        atoms,
        values,
        widening: None,
        mixing: None,
    };
    let x = Formula::term(&[Factor::Input], Coefficient::number(1.0));
    reading
        .values
        .insert(region.input, Value::new(x, input.clone()));
    let (&last, before) = region.nodes.split_last()?;
    for &node in before {
        if view.graph.is(node, "Split") {
            reading.split(node)?;
        } else {
            let value = reading.node(node)?;
            reading.values.insert(view.graph.only_output(node)?, value);
        }
    }
    let (left, right) = (reading.operand(last, 0)?, reading.operand(last, 1)?);
    (left.beside.is_none() && right.beside.is_none()).then_some(())?;
    let (above, root, slot) = match (view.graph.op(last)?, left.power, right.power) {
        ("Div", Power::One, Power::Root) | ("Mul", Power::One, Power::InverseRoot) => {
            (left, right, 0)
        }
        ("Mul", Power::InverseRoot, Power::One) => (right, left, 1),
        _ => return None,
    };
    let axes = reading.atoms.broadcast(&above.axes, &root.axes)?;
    let Reading {
        atoms,
        mixing,
        widening,
        ..
    } = reading;
    Some(Quotient {
        numerator: above.formula.settled(&atoms)?,
        square: root.formula.settled(&atoms)?,
        divided: view.graph.input(last, slot)?,
        input: atoms.settled(&input)?,
        axes,
        mixing: match mixing {
            Some(mixing) => Some(mixing.settled(&atoms)?),
            None => None,
        },
        refusal: widening.and_then(|widening| widening.refusal),
        atoms,
    })
}

impl Mixing {
    fn settled(&self, atoms: &AxisFactors) -> Option<Mixing> {
        let (which, along) = (self.which.settled(atoms)?, atoms.leaves(&self.along));
        Some(Mixing {
            which,
            along,
            ..self.clone()
        })
    }
}

struct Reading<'r> {
    view: &'r View<'r>,
    alike: &'r Alike<'r>,
    atoms: AxisFactors,
    values: HashMap<ValueId, Value>,
    /// How statistics of blocks become those of tokens.
    widening: Option<Widening>,
    /// `P`.
    mixing: Option<Mixing>,
}

impl<'r> Reading<'r> {
    fn at(&self, node: NodeId) -> At<'r> {
        self.view.at(node)
    }

    fn shape(&self, node: NodeId) -> Option<Shape> {
        self.view.facts.shape(self.view.graph.only_output(node)?)
    }

    /// A varying input of a node, in current atoms.
    fn varying(&self, node: NodeId, slot: usize) -> Option<Value> {
        let Value {
            formula,
            power,
            axes,
            beside,
        } = self.values.get(&self.view.graph.input(node, slot)?)?;
        let beside = match beside {
            Some((other, along)) => Some((other.settled(&self.atoms)?, *along)),
            None => None,
        };
        let (formula, axes) = (formula.settled(&self.atoms)?, self.atoms.settled(axes)?);
        Some(Value {
            formula,
            power: *power,
            axes,
            beside,
        })
    }

    /// An input of a node, possibly a constant, whose axes follow from the other operand.
    fn operand(&mut self, node: NodeId, slot: usize) -> Option<Value> {
        let value = self.view.graph.input(node, slot)?;
        if self.values.contains_key(&value) {
            return self.varying(node, slot);
        }
        let array = self
            .alike
            .read(value)
            .filter(|array| (1..=LARGEST).contains(&array.len()))?;
        let axes: Axes = array
            .shape()
            .iter()
            .map(|&extent| self.atoms.free(TDim::from(extent)))
            .collect();
        let coefficient = Coefficient::new(&axes.concat(), &array, &self.atoms)?;
        Some(Value::new(Formula::term(&[], coefficient), axes))
    }

    /// An operand that is no root, and one formula.
    fn plain(&mut self, node: NodeId, slot: usize) -> Option<Value> {
        self.operand(node, slot).filter(Value::is_plain)
    }

    /// A constant input that has two axes as long as one of a value; weights that have not are not
    /// read.
    fn matrix(&self, node: NodeId, slot: usize, value: &Value) -> Option<Numbers> {
        let matrix = self.view.graph.input(node, slot)?;
        let shape = self.view.facts.shape(matrix)?;
        let mut counts = value.axes.iter().filter_map(|axis| self.atoms.count(axis));
        let square = |count| {
            shape
                .iter()
                .filter(|dim| extent(dim) == Some(count))
                .count()
                > 1
        };
        counts.any(square).then(|| self.alike.read(matrix))?
    }

    fn node(&mut self, node: NodeId) -> Option<Value> {
        match self.view.graph.op(node)? {
            "Cast" => self
                .at(node)
                .proto()
                .cast_to()?
                .is_float()
                .then(|| self.operand(node, 0))?,
            _ if self.view.graph.is_movement(node) => self.moved(node),
            "Add" => self.sum(node, false),
            "Sub" => self.sum(node, true),
            "Mul" => self.product(node),
            "Div" => self.division(node),
            "Neg" => {
                let value = self.plain(node, 0)?;
                Some(Value {
                    formula: value.formula.negated(),
                    ..value
                })
            }
            "Pow" => {
                let value = self.plain(node, 0)?;
                match self.view.scalar(self.view.graph.input(node, 1)?)? {
                    2.0 => Some(Value {
                        formula: value.formula.times(&value.formula)?,
                        ..value
                    }),
                    0.5 => Some(Value {
                        power: Power::Root,
                        ..value
                    }),
                    -0.5 => Some(Value {
                        power: Power::InverseRoot,
                        ..value
                    }),
                    _ => None,
                }
            }
            "Sqrt" => Some(Value {
                power: Power::Root,
                ..self.plain(node, 0)?
            }),
            "Reciprocal" => self.operand(node, 0)?.inverse(),
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

    fn moved(&mut self, node: NodeId) -> Option<Value> {
        let (at, value) = (self.at(node), self.operand(node, 0)?);
        let beside = match (value.beside, self.view.graph.op(node)?) {
            (Some((other, along)), "Transpose") => {
                let perm = at.permutation(value.axes.len()).ok()?;
                Some((other, perm.iter().position(|&axis| axis == along)?))
            }
            (Some(_), op) if op != "Identity" => return None,
            (beside, _) => beside,
        };
        let axes = self
            .atoms
            .moved(at.proto(), &value.axes, &at.output_shape(0).ok()?)?;
        Some(Value {
            axes,
            beside,
            ..value
        })
    }

    fn sum(&mut self, node: NodeId, less: bool) -> Option<Value> {
        let (left, right) = (self.plain(node, 0)?, self.plain(node, 1)?);
        let axes = self.atoms.broadcast(&left.axes, &right.axes)?;
        let [left, right] = [left, right].map(|value| value.formula.settled(&self.atoms));
        let right = if less { right?.negated() } else { right? };
        Some(Value::new(left?.plus(&right)?, axes))
    }

    fn product(&mut self, node: NodeId) -> Option<Value> {
        let (left, right) = (self.plain(node, 0)?, self.plain(node, 1)?);
        let axes = self.atoms.broadcast(&left.axes, &right.axes)?;
        let [left, right] = [left, right].map(|value| value.formula.settled(&self.atoms));
        Some(Value::new(left?.times(&right?)?, axes))
    }

    /// By a constant, or 1 by a root.
    fn division(&mut self, node: NodeId) -> Option<Value> {
        let (above, below) = (self.plain(node, 0)?, self.operand(node, 1)?);
        let axes = self.atoms.broadcast(&above.axes, &below.axes)?;
        let above = above.formula.settled(&self.atoms)?;
        if below.power != Power::One {
            let one = above.constant()?.numbers().all(|number| number == 1.0);
            return one.then_some(Value { axes, ..below })?.inverse();
        }
        let by = below
            .formula
            .settled(&self.atoms)
            .filter(|_| below.beside.is_none())?
            .constant()?;
        let by = by.map(|by| &Numbers::number(1.0, 0) / by);
        by.numbers().all(f64::is_finite).then_some(())?;
        Some(Value::new(above.scaled(&by)?, axes))
    }

    /// A mean or a sum over axes.
    fn mean(&mut self, node: NodeId) -> Option<Value> {
        let (at, value) = (self.at(node), self.plain(node, 0)?);
        let (reduced, keep) = at.reduction(value.axes.len()).ok()?;
        let (over, axes) = self.atoms.reduced(&value.axes, &reduced, keep);
        let mut formula = self.averaged(&value.formula, &over)?;
        if self.view.graph.is(node, "ReduceSum") {
            let shape = at.shape(0).ok()?;
            let count = reduced
                .iter()
                .map(|&axis| extent(&shape[axis]))
                .product::<Option<usize>>()?;
            formula = formula.scaled(&Coefficient::number(count as f64))?;
        }
        Some(Value::new(formula, axes))
    }

    /// The mean over atoms. `x` does not vary along those that are free.
    fn averaged(&self, formula: &Formula, over: &[AxisFactor]) -> Option<Formula> {
        let (free, own): (Vec<AxisFactor>, Vec<AxisFactor>) =
            over.iter().partition(|&&atom| self.atoms.is_free(atom));
        formula.constant_along(&free)?.mean(&own)
    }

    /// Averages of blocks of an image, without padding.
    fn pool(&mut self, node: NodeId) -> Option<Value> {
        let (at, value) = (self.at(node), self.plain(node, 0)?);
        at.only_attributes(AVERAGE_POOL).ok()?;
        let kernel = at.attr_ints("kernel_shape").ok()??;
        let all = |name: &str, neutral: i64| {
            let list = at.attr_ints(name).ok().flatten();
            list.is_none_or(|list| list.iter().all(|&i| i == neutral))
        };
        let plain = at.attr_text("auto_pad", "NOTSET").ok()? == "NOTSET"
            && !at.flag("ceil_mode", false).ok()?
            && at.attr_ints("strides").ok()?.as_ref() == Some(&kernel)
            && all("pads", 0)
            && all("dilations", 1);
        (plain && value.axes.len() == kernel.len() + 2).then_some(())?;
        let (mut axes, mut inner) = (value.axes[..2].to_vec(), vec![]);
        for (axis, &size) in value.axes[2..].iter().zip(&kernel) {
            let whole = self.atoms.count(axis)?;
            let size = usize::try_from(size)
                .ok()
                .filter(|&size| size > 0 && whole.is_multiple_of(size))?;
            let cut = vec![Some(TDim::from(whole / size)), Some(TDim::from(size))];
            let [blocks, places] =
                <[_; 2]>::try_from(self.atoms.reshape(&vec![axis.clone()], &cut)?).ok()?;
            axes.push(blocks);
            inner.extend(places);
        }
        let formula = value.formula.settled(&self.atoms)?;
        Some(Value::new(self.averaged(&formula, &inner)?, axes))
    }

    /// Every place of an image several times, beside itself.
    fn widen(&mut self, node: NodeId) -> Option<Value> {
        let (at, value) = (self.at(node), self.plain(node, 0)?);
        let (from, to) = (at.shape(0).ok()?, self.shape(node)?);
        (from.len() == to.len() && from.len() == value.axes.len()).then_some(())?;
        let (mut axes, mut times) = (value.axes.clone(), vec![]);
        for (axis, (from, to)) in axes.iter_mut().zip(from.iter().zip(&to)) {
            if same(from, to) {
                times.push(1);
                continue;
            }
            let (from, to) = (extent(from)?, extent(to)?);
            (from > 0 && to.is_multiple_of(from)).then_some(())?;
            times.push(to / from);
            axis.extend(self.atoms.free(TDim::from(to / from)));
        }
        let mut widening = Widening::from_node(&at, &times)?;
        let first = self.widening.get_or_insert_with(|| widening.clone());
        (first.settings == widening.settings).then_some(())?;
        first.refusal = first.refusal.take().or(widening.refusal.take());
        Some(Value { axes, ..value })
    }

    /// Every place along some axes several times.
    fn expand(&mut self, node: NodeId) -> Option<Value> {
        let value = self.operand(node, 0)?;
        let shape = self.shape(node)?;
        let missing = shape.len().checked_sub(value.axes.len())?;
        let mut axes = [vec![vec![]; missing], value.axes.clone()].concat();
        for (axis, dim) in axes
            .iter_mut()
            .zip(shape)
            .filter(|(axis, _)| axis.is_empty())
        {
            *axis = dim.map_or(vec![], |dim| self.atoms.free(dim));
        }
        let beside = value.beside.map(|(other, along)| (other, along + missing));
        Some(Value {
            axes,
            beside,
            ..value
        })
    }

    /// Two values side by side, such as `x` and `x ⊙ x`.
    fn concat(&mut self, node: NodeId) -> Option<Value> {
        let (left, right) = (self.plain(node, 0)?, self.plain(node, 1)?);
        let along = axis(self.at(node).attr("axis", 0).ok()?, left.axes.len()).ok()?;
        let alike = self.view.graph.inputs(node).len() == 2
            && self.atoms.same(&left.axes, &right.axes)
            && !left.axes[along].is_empty();
        alike.then_some(Value {
            beside: Some((right.formula, along)),
            ..left
        })
    }

    /// Takes them apart again.
    fn split(&mut self, node: NodeId) -> Option<()> {
        let value = self.varying(node, 0)?;
        let (other, along) = value.beside.clone()?;
        let &[Some(first), Some(second)] = self.view.graph.outputs(node) else {
            return None;
        };
        let axis = axis(self.at(node).attr("axis", 0).ok()?, value.axes.len()).ok()?;
        let extents = [first, second].map(|half| self.view.facts.extent(half, axis));
        (axis == along && extents[0].is_some() && extents[0] == extents[1]).then_some(())?;
        self.values.insert(
            first,
            Value {
                beside: None,
                ..value.clone()
            },
        );
        self.values.insert(
            second,
            Value {
                beside: None,
                formula: other,
                ..value
            },
        );
        Some(())
    }

    fn matmul(&mut self, node: NodeId) -> Option<Value> {
        let left = self.varying(node, 0);
        let slot = usize::from(left.is_none());
        let value = left.or_else(|| self.varying(node, 1))?;
        let mut matrix = self.matrix(node, 1 - slot, &value)?;
        let (rank, own) = (value.axes.len(), matrix.ndim());
        if rank < 2 || own < 2 || own > rank {
            return None;
        }
        // Axes of the matrix beside those of the value: stacks, then the new places and the old ones.
        let stack: Vec<usize> = (rank - own..rank - 2).collect();
        if slot == 0 {
            matrix = matrix.turned()?;
        }
        let axes = value.axes.clone();
        self.mixed(
            &value,
            matrix,
            &stack,
            if slot == 0 { rank - 1 } else { rank - 2 },
            axes,
        )
    }

    fn einsum(&mut self, node: NodeId) -> Option<Value> {
        let at = self.at(node);
        let left = self.varying(node, 0);
        let slot = usize::from(left.is_none());
        let value = left
            .or_else(|| self.varying(node, 1))
            .filter(|value| value.beside.is_none())?;
        let matrix = self.matrix(node, 1 - slot, &value)?;
        let mut ranks = [value.axes.len(), matrix.ndim()];
        ranks.rotate_left(slot);
        let Equation {
            operands,
            result: output,
        } = Equation::read(at.attr_text("equation", "").ok()?, &ranks.map(Some))?;
        let [mut of_value, mut of_matrix] = <[_; 2]>::try_from(operands).ok()?;
        if slot == 1 {
            std::mem::swap(&mut of_value, &mut of_matrix);
        }
        if ![&of_value, &of_matrix, &output]
            .into_iter()
            .all(|labels| is_once(labels))
        {
            return None;
        }
        let place = |labels: &[char], label: char| labels.iter().position(|&other| other == label);
        // One label is summed over, one is new, all others stay.
        let old: Vec<char> = of_matrix
            .iter()
            .copied()
            .filter(|label| !output.contains(label))
            .collect();
        let new: Vec<char> = of_matrix
            .iter()
            .copied()
            .filter(|label| !of_value.contains(label))
            .collect();
        let (&[old], &[new]) = (&old[..], &new[..]) else {
            return None;
        };
        let along = place(&of_value, old)?;
        let stays = |&label: &char| label == old || output.contains(&label);
        if !of_value.iter().all(stays) || !output.contains(&new) || output.len() != of_value.len() {
            return None;
        }
        let stacked: Vec<char> = of_matrix
            .iter()
            .copied()
            .filter(|&label| label != old && label != new)
            .collect();
        let order: Vec<usize> = stacked
            .iter()
            .chain(&[new, old])
            .map(|&label| place(&of_matrix, label))
            .collect::<Option<_>>()?;
        let stack: Vec<usize> = stacked
            .iter()
            .map(|&label| place(&of_value, label))
            .collect::<Option<_>>()?;
        let axes = output
            .iter()
            .map(|&label| {
                Some(
                    value.axes[if label == new {
                        along
                    } else {
                        place(&of_value, label)?
                    }]
                    .clone(),
                )
            })
            .collect::<Option<_>>()?;
        self.mixed(&value, matrix.transpose(&order)?, &stack, along, axes)
    }

    /// `P` applied along one axis of a value. `stack` names the axes of the value beside which the
    /// matrix has its own; its last two are the new places and the old ones.
    fn mixed(
        &mut self,
        value: &Value,
        matrix: Numbers,
        stack: &[usize],
        along: usize,
        axes: Axes,
    ) -> Option<Value> {
        let apart = |&(_, halves): &(Formula, usize)| halves != along && !stack.contains(&halves);
        (value.power == Power::One && value.beside.as_ref().is_none_or(apart)).then_some(())?;
        let (stacked, last) = matrix.shape().split_at(matrix.ndim() - 2);
        let (count, along) = (last[1], value.axes[along].clone());
        (last[0] == count && self.atoms.count(&along) == Some(count)).then_some(())?;
        // Matrices that are alike for all items are known for one: beside items and heads in one axis
        // they are those of the heads.
        let mut beside: Vec<AxisFactor> = vec![];
        for (&extent, &axis) in stacked.iter().zip(stack) {
            let one_item = value.axes[axis]
                .iter()
                .filter(|&&atom| self.atoms.extent(atom).is_some());
            beside.extend(one_item.filter(|_| extent > 1));
        }
        let matrices = stacked.iter().product::<usize>();
        let numbers =
            Numbers::literal(Array1::from_iter((0..matrices).map(|i| i as f64)).into_dyn());
        let mixing = Mixing {
            matrices: matrix.reshape(&[matrices, count, count])?,
            which: Coefficient::new(&beside, &numbers, &self.atoms)?,
            along,
        };
        let first = self.mixing.get_or_insert_with(|| mixing.clone());
        *first = first.settled(&self.atoms)?;
        (*first == mixing).then_some(())?;
        let beside = match &value.beside {
            Some((other, axis)) => Some((other.mixed(&mixing.along)?, *axis)),
            None => None,
        };
        Some(Value {
            beside,
            ..Value::new(value.formula.mixed(&mixing.along)?, axes)
        })
    }
}
