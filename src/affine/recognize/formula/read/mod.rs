//! Reads each value of a region as a formula of the region's input, place by place.
//!
//! No node is matched by its name or by its position in a pattern. A function that does not
//! understand a node returns `None`, which ends the attempt.

mod blocks;
mod matrices;

use std::collections::HashMap;

use tract_onnx::tract_hir::internal::TDim;

use crate::affine::recognize::View;
use crate::affine::recognize::batch_invariant::Alike;
use crate::affine::recognize::formula::{Coefficient, Factor, Formula, LARGEST};
use crate::affine::recognize::region::Region;
use crate::analysis::axis_factors::{Axes, AxisFactor, AxisFactors};
use crate::analysis::node_view::At;
use crate::ir::axes::axis;
use crate::ir::{NodeId, ValueId};
use crate::recipe::Numbers;
use crate::refusal::Refusal;
use crate::shape::facts::{Shape, extent};

use blocks::Widening;
pub(crate) use matrices::Mixing;

/// `numerator / √square`, the formula of the last value of a region.
pub(crate) struct Quotient {
    /// The numerator.
    pub numerator: Formula,
    /// The radicand.
    pub square: Formula,
    /// The value that is divided.
    pub divided: ValueId,
    /// The axes of the region's input. Until axis factors are split, each axis is one axis factor.
    pub input: Axes,
    /// The axes of the quotient.
    pub axes: Axes,
    /// The axis factors to which `input` and `axes` refer.
    pub atoms: AxisFactors,
    /// `P`, if the formula contains a matrix.
    pub mixing: Option<Mixing>,
    /// The refusal if an operator does more than its formula says, so that the region cannot be
    /// replaced.
    pub refusal: Option<Refusal>,
}

/// A value: a formula, its root or its inverse root, and the axis factors of each axis.
#[derive(Clone)]
struct Value {
    formula: Formula,
    power: Power,
    axes: Axes,
    /// After a Concat of two values, the formula of the second one, and the axis of the Concat.
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

    /// Whether the value is one formula without a root.
    fn is_plain(&self) -> bool {
        self.power == Power::One && self.beside.is_none()
    }

    /// Replaces split axis factors by their parts.
    fn settled(&self, atoms: &AxisFactors) -> Option<Self> {
        let beside = match &self.beside {
            Some((other, along)) => Some((other.settled(atoms)?, *along)),
            None => None,
        };
        Some(Value {
            formula: self.formula.settled(atoms)?,
            power: self.power,
            axes: atoms.settled(&self.axes)?,
            beside,
        })
    }
}

/// The operators that can be read, other than movements: those of [`Reading::node`], and Split.
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

/// Whether a node may be in a region that can be read. Regions with other nodes need not be tried.
pub(crate) fn is_understood(view: &View, node: NodeId) -> bool {
    view.graph.is_movement(node)
        || view
            .graph
            .op(node)
            .is_some_and(|op| UNDERSTOOD.contains(&op))
}

/// Reads a region that ends in a quotient. `None` if it is not understood.
pub(crate) fn read(view: &View, alike: &Alike, region: &Region) -> Option<Quotient> {
    let mut reading = Reading {
        view,
        alike,
        atoms: AxisFactors::default(),
        values: HashMap::new(),
        widening: None,
        mixing: None,
    };
    let input = reading.atoms.axes(&view.facts.shape(region.input)?)?;
    let x = Formula::term(&[Factor::Input], Coefficient::number(1.0));
    let x = Value::new(x, input.clone());
    reading.values.insert(region.input, x);
    let (&last, before) = region.nodes.split_last()?;
    for &node in before {
        reading.step(node)?;
    }
    reading.quotient(last, &input)
}

struct Reading<'r> {
    view: &'r View<'r>,
    alike: &'r Alike<'r>,
    atoms: AxisFactors,
    values: HashMap<ValueId, Value>,
    /// The Resize that expands statistics of blocks to tokens.
    widening: Option<Widening>,
    /// The matrices `P`, if a node read so far applies them.
    mixing: Option<Mixing>,
}

impl<'r> Reading<'r> {
    fn at(&self, node: NodeId) -> At<'r> {
        self.view.at(node)
    }

    fn shape(&self, node: NodeId) -> Option<Shape> {
        self.view.facts.shape(self.view.graph.only_output(node)?)
    }

    /// Reads one node, and records its results.
    fn step(&mut self, node: NodeId) -> Option<()> {
        if self.view.graph.is(node, "Split") {
            return self.split(node);
        }
        let value = self.node(node)?;
        self.values
            .insert(self.view.graph.only_output(node)?, value);
        Some(())
    }

    /// Reads the last node of the region. `input` has the axes of the region's input.
    fn quotient(mut self, last: NodeId, input: &Axes) -> Option<Quotient> {
        let (left, right) = (self.operand(last, 0)?, self.operand(last, 1)?);
        (left.beside.is_none() && right.beside.is_none()).then_some(())?;
        let (above, root, slot) = match (self.view.graph.op(last)?, left.power, right.power) {
            ("Div", Power::One, Power::Root) | ("Mul", Power::One, Power::InverseRoot) => {
                (left, right, 0)
            }
            ("Mul", Power::InverseRoot, Power::One) => (right, left, 1),
            _ => return None,
        };
        let axes = self.atoms.broadcast(&above.axes, &root.axes)?;
        let mixing = match self.mixing {
            Some(mixing) => Some(mixing.settled(&self.atoms)?),
            None => None,
        };
        Some(Quotient {
            numerator: above.formula.settled(&self.atoms)?,
            square: root.formula.settled(&self.atoms)?,
            divided: self.view.graph.input(last, slot)?,
            input: self.atoms.settled(input)?,
            axes,
            mixing,
            refusal: self.widening.and_then(|widening| widening.refusal),
            atoms: self.atoms,
        })
    }

    /// The value of a varying input of a node. In the axes of the value, split axis factors are
    /// replaced by their parts. `None` if the input is a constant.
    fn varying(&self, node: NodeId, slot: usize) -> Option<Value> {
        let input = self.view.graph.input(node, slot)?;
        self.values.get(&input)?.settled(&self.atoms)
    }

    /// An input of a node. If it is a constant, its axes are free axis factors, which a broadcast
    /// matches with those of the other operand.
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

    /// An operand that is one formula without a root.
    fn plain(&mut self, node: NodeId, slot: usize) -> Option<Value> {
        self.operand(node, slot).filter(Value::is_plain)
    }

    /// The formulas of the two operands of an element-wise node, and the axes of its result.
    fn operands(&mut self, node: NodeId) -> Option<(Formula, Formula, Axes)> {
        let (left, right) = (self.plain(node, 0)?, self.plain(node, 1)?);
        let axes = self.atoms.broadcast(&left.axes, &right.axes)?;
        let left = left.formula.settled(&self.atoms)?;
        let right = right.formula.settled(&self.atoms)?;
        Some((left, right, axes))
    }

    fn node(&mut self, node: NodeId) -> Option<Value> {
        match self.view.graph.op(node)? {
            "Cast" => self.cast(node),
            _ if self.view.graph.is_movement(node) => self.moved(node),
            "Add" => {
                let (left, right, axes) = self.operands(node)?;
                Some(Value::new(left.plus(&right)?, axes))
            }
            "Sub" => {
                let (left, right, axes) = self.operands(node)?;
                Some(Value::new(left.plus(&right.negated())?, axes))
            }
            "Mul" => {
                let (left, right, axes) = self.operands(node)?;
                Some(Value::new(left.times(&right)?, axes))
            }
            "Div" => self.division(node),
            "Neg" => {
                let value = self.plain(node, 0)?;
                Some(Value {
                    formula: value.formula.negated(),
                    ..value
                })
            }
            "Pow" => self.power(node),
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

    /// Reads a Cast to a float type.
    fn cast(&mut self, node: NodeId) -> Option<Value> {
        let to = self.at(node).proto().cast_to()?;
        to.is_float().then(|| self.operand(node, 0))?
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

    /// Reads a value divided by a constant, or 1 divided by a root.
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

    /// Reads a square, a root, or the reciprocal of a root.
    fn power(&mut self, node: NodeId) -> Option<Value> {
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

    /// Reads a mean or a sum over axes.
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

    /// The mean of a formula over axis factors. `x` does not vary along free axis factors, so a
    /// mean over them changes nothing. `None` if a coefficient varies along them.
    fn averaged(&self, formula: &Formula, over: &[AxisFactor]) -> Option<Formula> {
        let (free, own): (Vec<AxisFactor>, Vec<AxisFactor>) =
            over.iter().partition(|&&atom| self.atoms.is_free(atom));
        formula.constant_along(&free)?.mean(&own)
    }

    /// Reads an Expand, which repeats every place along some axes.
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

    /// Reads a Concat of two values, such as `x` and `x ⊙ x`.
    fn concat(&mut self, node: NodeId) -> Option<Value> {
        let (left, right) = (self.plain(node, 0)?, self.plain(node, 1)?);
        let along = axis(self.at(node).attr("axis", 0).ok()?, left.axes.len()).ok()?;
        let fits = self.view.graph.inputs(node).len() == 2
            && self.atoms.same(&left.axes, &right.axes)
            && !left.axes[along].is_empty();
        fits.then_some(Value {
            beside: Some((right.formula, along)),
            ..left
        })
    }

    /// Reads a Split of two concatenated values.
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
}
