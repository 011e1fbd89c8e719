//! Products of a value with a constant matrix over its places.

use ndarray::Array1;

use crate::affine::recognize::formula::Coefficient;
use crate::affine::recognize::formula::read::{Power, Reading, Value};
use crate::analysis::axis_factors::{Axes, AxisFactor, AxisFactors};
use crate::ir::NodeId;
use crate::ir::equation::{Equation, is_once};
use crate::recipe::Numbers;
use crate::shape::facts::{Shape, extent};

/// `P`: a stack of matrices, and which of them is applied at each place of the input.
#[derive(Clone, PartialEq)]
pub(crate) struct Mixing {
    /// The matrices, along the first axis.
    pub matrices: Numbers,
    /// The index of the matrix for each place.
    pub which: Coefficient,
    /// The axis factors over which the product sums. The result has the same axis factors.
    pub along: Vec<AxisFactor>,
}

impl Mixing {
    /// Replaces split axis factors by their parts.
    pub(crate) fn settled(&self, atoms: &AxisFactors) -> Option<Mixing> {
        let (which, along) = (self.which.settled(atoms)?, atoms.leaves(&self.along));
        Some(Mixing {
            which,
            along,
            ..self.clone()
        })
    }
}

/// The labels of an Einsum that applies a matrix to one axis of a value, and keeps all other axes.
struct Contraction {
    of_value: Vec<char>,
    of_matrix: Vec<char>,
    of_result: Vec<char>,
    /// The label that is summed over.
    summed: char,
    /// The label of the matrix that replaces the summed label in the result.
    new: char,
}

impl Contraction {
    /// Reads an equation. `slot` is the input of the Einsum that holds the value. The other input
    /// holds the matrix. `None` if the equation does more than apply the matrix to one axis.
    fn from_equation(equation: Equation, slot: usize) -> Option<Self> {
        let [mut of_value, mut of_matrix] = <[_; 2]>::try_from(equation.operands).ok()?;
        if slot == 1 {
            std::mem::swap(&mut of_value, &mut of_matrix);
        }
        let of_result = equation.result;
        (is_once(&of_value) && is_once(&of_matrix) && is_once(&of_result)).then_some(())?;
        let summed = only_absent(&of_matrix, &of_result)?;
        let new = only_absent(&of_matrix, &of_value)?;
        let others_stay = of_value
            .iter()
            .all(|&label| label == summed || of_result.contains(&label));
        let fits = others_stay && of_result.contains(&new) && of_result.len() == of_value.len();
        fits.then_some(Self {
            of_value,
            of_matrix,
            of_result,
            summed,
            new,
        })
    }

    /// The labels that both value and matrix have and the result keeps.
    fn stacked(&self) -> Vec<char> {
        let mut stacked = self.of_matrix.clone();
        stacked.retain(|&label| label != self.summed && label != self.new);
        stacked
    }

    /// The axes of the result for a value with the axes `of_value`.
    fn axes(&self, of_value: &Axes) -> Option<Axes> {
        let mut axes = vec![];
        for &label in &self.of_result {
            let label = if label == self.new {
                self.summed
            } else {
                label
            };
            axes.push(of_value[place(&self.of_value, label)?].clone());
        }
        Some(axes)
    }
}

/// The position of a label.
fn place(labels: &[char], label: char) -> Option<usize> {
    labels.iter().position(|&other| other == label)
}

/// The positions in `labels` of the labels `wanted`. `None` if one of them is missing.
fn places(labels: &[char], wanted: &[char]) -> Option<Vec<usize>> {
    wanted.iter().map(|&label| place(labels, label)).collect()
}

/// The only label in `labels` that is not in `others`. `None` unless exactly one label is absent.
fn only_absent(labels: &[char], others: &[char]) -> Option<char> {
    let mut absent = labels.iter().filter(|label| !others.contains(label));
    let first = *absent.next()?;
    absent.next().is_none().then_some(first)
}

/// Whether a shape has this extent more than once.
fn has_twice(shape: &Shape, count: usize) -> bool {
    let equal = shape.iter().filter(|dim| extent(dim) == Some(count));
    equal.count() > 1
}

/// The numbers from 0 up to, but not including, `count`.
fn counted(count: usize) -> Numbers {
    Numbers::literal(Array1::from_iter((0..count).map(|i| i as f64)).into_dyn())
}

impl Reading<'_> {
    /// Reads a constant input if two of its axes are as long as an axis of the value, like those of
    /// `P`.
    fn matrix(&self, node: NodeId, slot: usize, value: &Value) -> Option<Numbers> {
        let matrix = self.view.graph.input(node, slot)?;
        let shape = self.view.facts.shape(matrix)?;
        let mut counts = value.axes.iter().filter_map(|axis| self.atoms.count(axis));
        let is_square = counts.any(|count| has_twice(&shape, count));
        is_square.then(|| self.alike.read(matrix))?
    }

    pub(super) fn matmul(&mut self, node: NodeId) -> Option<Value> {
        let left = self.varying(node, 0);
        let slot = usize::from(left.is_none());
        let value = left.or_else(|| self.varying(node, 1))?;
        let mut matrix = self.matrix(node, 1 - slot, &value)?;
        let (rank, own) = (value.axes.len(), matrix.ndim());
        if rank < 2 || own < 2 || own > rank {
            return None;
        }
        // The axes of the matrix: first stacks, which correspond to axes of the value, then the new
        // and the old places.
        let stack: Vec<usize> = (rank - own..rank - 2).collect();
        let mut along = rank - 2;
        if slot == 0 {
            matrix = matrix.turned()?;
            along = rank - 1;
        }
        self.mixed(&value, matrix, &stack, along, value.axes.clone())
    }

    pub(super) fn einsum(&mut self, node: NodeId) -> Option<Value> {
        let at = self.at(node);
        let left = self.varying(node, 0);
        let slot = usize::from(left.is_none());
        let value = left
            .or_else(|| self.varying(node, 1))
            .filter(|value| value.beside.is_none())?;
        let matrix = self.matrix(node, 1 - slot, &value)?;
        let mut ranks = [value.axes.len(), matrix.ndim()];
        ranks.rotate_left(slot);
        let equation = Equation::read(at.attr_text("equation", "").ok()?, &ranks.map(Some))?;
        let labels = Contraction::from_equation(equation, slot)?;
        let along = place(&labels.of_value, labels.summed)?;
        let stacked = labels.stacked();
        let stack = places(&labels.of_value, &stacked)?;
        let order = [&stacked[..], &[labels.new, labels.summed]].concat();
        let matrix = matrix.transpose(&places(&labels.of_matrix, &order)?)?;
        self.mixed(&value, matrix, &stack, along, labels.axes(&value.axes)?)
    }

    /// Applies `P` along one axis of a value. `stack` has the axes of the value that correspond to
    /// the leading axes of the matrix. The last two axes of the matrix are the new and the old
    /// places. `axes` are the axes of the result. `None` if the region already contains a different
    /// matrix.
    fn mixed(
        &mut self,
        value: &Value,
        matrix: Numbers,
        stack: &[usize],
        along: usize,
        axes: Axes,
    ) -> Option<Value> {
        let is_apart = value
            .beside
            .as_ref()
            .is_none_or(|&(_, halves)| halves != along && !stack.contains(&halves));
        (value.power == Power::One && is_apart).then_some(())?;
        let (stacked, last) = matrix.shape().split_at(matrix.ndim() - 2);
        let (count, along) = (last[1], value.axes[along].clone());
        (last[0] == count && self.atoms.count(&along) == Some(count)).then_some(())?;
        let beside = self.stacked_atoms(value, stacked, stack);
        let matrices = stacked.iter().product::<usize>();
        let mixing = Mixing {
            matrices: matrix.reshape(&[matrices, count, count])?,
            which: Coefficient::new(&beside, &counted(matrices), &self.atoms)?,
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

    /// The axis factors of the value along which the matrices of a stack differ.
    ///
    /// A stack that is equal for all items of a batch holds the matrices of one item only. So if an
    /// axis holds both items and heads, the stack lies along the heads.
    fn stacked_atoms(&self, value: &Value, extents: &[usize], axes: &[usize]) -> Vec<AxisFactor> {
        let stacked = extents.iter().zip(axes).filter(|&(&extent, _)| extent > 1);
        stacked
            .flat_map(|(_, &axis)| &value.axes[axis])
            .copied()
            .filter(|&atom| self.atoms.extent(atom).is_some())
            .collect()
    }
}
