//! Which axes of a value hold which axes of the value that is normalized.
//!
//! An axis is a list of atoms, row-major: a transpose permutes the lists, a reshape groups the atoms
//! anew and splits one where it must. An axis along which the value does not vary has none.

use std::collections::{HashSet, VecDeque};

use tract_onnx::tract_hir::internal::TDim;

use crate::graph::at::At;
use crate::graph::facts::Shape;

/// Operators that only move elements.
pub const MOVE: &[&str] = &["Identity", "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze"];

/// A part of an axis of that value.
pub type Atom = usize;

/// The atoms of each axis of a value.
pub type Axes = Vec<Vec<Atom>>;

/// All atoms of a site. One that was split is its parts from then on, in every value.
#[derive(Default)]
pub struct Atoms {
    extents: Vec<TDim>,
    parts: Vec<Option<[Atom; 2]>>,
}

impl Atoms {
    /// The axes of a value of this shape, each an atom of its own.
    pub fn of(&mut self, shape: &Shape) -> Option<Axes> {
        let dims: Vec<TDim> = shape.iter().cloned().collect::<Option<_>>()?;
        Some(dims.into_iter().map(|dim| if dim.is_one() { vec![] } else { vec![self.make(dim)] }).collect())
    }

    /// A new atom.
    pub fn make(&mut self, extent: TDim) -> Atom {
        self.extents.push(extent);
        self.parts.push(None);
        self.extents.len() - 1
    }

    /// The extent of an atom where it is a number.
    pub fn extent(&self, atom: Atom) -> Option<usize> {
        usize::try_from(self.extents[atom].to_i64().ok()?).ok()
    }

    /// The atoms that are not split any further.
    pub fn leaves(&self, list: &[Atom]) -> Vec<Atom> {
        let leaves = |&atom: &Atom| match self.parts[atom] {
            Some(parts) => self.leaves(&parts),
            None => vec![atom],
        };
        list.iter().flat_map(leaves).collect()
    }

    /// Splits an atom into one that counts blocks and one of `inner` places in a block.
    pub fn split(&mut self, atom: Atom, inner: usize) -> Option<[Atom; 2]> {
        let whole = self.extent(atom).filter(|whole| inner > 0 && whole % inner == 0)?;
        let parts = [self.make(TDim::from(whole / inner)), self.make(TDim::from(inner))];
        self.parts[atom] = Some(parts);
        Some(parts)
    }

    /// The axes after a reshape.
    pub fn reshape(&mut self, axes: &Axes, shape: &Shape) -> Option<Axes> {
        let dims: Vec<TDim> = shape.iter().cloned().collect::<Option<_>>()?;
        let mut queue: VecDeque<Atom> = self.leaves(&axes.concat()).into();
        let mut reshaped = vec![];
        for dim in dims {
            let mut axis = vec![];
            let mut product = TDim::from(1);
            while product != dim {
                let atom = queue.pop_front()?;
                let longer = (product.clone() * &self.extents[atom]).simplify();
                let numbers = (product.to_i64(), dim.to_i64(), self.extents[atom].to_i64());
                let (Ok(before), Ok(wanted), Ok(extent)) = numbers else {
                    product = longer;
                    axis.push(atom);
                    continue;
                };
                if before * extent > wanted {
                    if wanted % before != 0 || extent % (wanted / before) != 0 {
                        return None;
                    }
                    let [outer, inner] =
                        self.split(atom, usize::try_from(extent / (wanted / before)).ok()?)?;
                    queue.push_front(inner);
                    axis.push(outer);
                    product = dim.clone();
                } else {
                    product = longer;
                    axis.push(atom);
                }
            }
            reshaped.push(axis);
        }
        queue.is_empty().then_some(reshaped)
    }

    /// The axes behind a node that only moves elements.
    pub fn moved(&mut self, at: &At, axes: &Axes) -> Option<Axes> {
        match at.graph.op(at.node) {
            "Identity" => Some(axes.clone()),
            "Transpose" => {
                let perm = at.permutation(axes.len()).ok()?;
                Some(perm.into_iter().map(|axis| axes[axis].clone()).collect())
            }
            op if MOVE.contains(&op) => self.reshape(axes, &at.output_shape(0).ok()?),
            _ => None,
        }
    }

    /// The atoms over which a Reduce operator goes, in ascending order, and the axes behind it.
    pub fn reduced(&self, at: &At, axes: &Axes) -> Option<(Vec<Atom>, Axes)> {
        let (reduced, keep) = at.reduction(axes.len()).ok()?;
        let mut leaves: Vec<Atom> = reduced.iter().flat_map(|&axis| self.leaves(&axes[axis])).collect();
        leaves.sort_unstable();
        let mut rest = vec![];
        for (i, axis) in axes.iter().enumerate() {
            match (reduced.contains(&i), keep) {
                (false, _) => rest.push(axis.clone()),
                (true, true) => rest.push(vec![]),
                (true, false) => {}
            }
        }
        Some((leaves, rest))
    }

    /// Whether two lists of axes hold the same, place by place.
    pub fn same(&self, left: &Axes, right: &Axes) -> bool {
        let alike = |(one, other): (&Vec<Atom>, &Vec<Atom>)| self.leaves(one) == self.leaves(other);
        left.len() == right.len() && left.iter().zip(right).all(alike)
    }

    /// The axes of what an element-wise operator makes of two values; `None` where they do not hold
    /// the same place by place.
    pub fn broadcast(&self, left: &Axes, right: &Axes) -> Option<Axes> {
        let rank = left.len().max(right.len());
        let axis = |axes: &Axes, i: usize| {
            (i + axes.len()).checked_sub(rank).map(|i| self.leaves(&axes[i])).unwrap_or_default()
        };
        let mut seen = HashSet::new();
        (0..rank)
            .map(|i| match (axis(left, i), axis(right, i)) {
                (one, none) | (none, one) if none.is_empty() => Some(one),
                (one, other) => (one == other).then_some(one),
            })
            .map(|axis| axis.filter(|axis| axis.iter().all(|&atom| seen.insert(atom))))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dims: &[usize]) -> Shape {
        dims.iter().map(|&dim| Some(TDim::from(dim))).collect()
    }

    #[test]
    fn heads_are_split_and_put_together_again() {
        let mut atoms = Atoms::default();
        let [t, c] = [6, 8].map(|extent| atoms.make(TDim::from(extent)));
        let heads = atoms.reshape(&vec![vec![t], vec![c]], &shape(&[6, 2, 4])).unwrap();
        assert_eq!(atoms.leaves(&[c]), [heads[1][0], heads[2][0]]);
        let back = atoms.reshape(&heads, &shape(&[6, 8])).unwrap();
        assert_eq!(back[1], atoms.leaves(&[c]));
    }

    #[test]
    fn only_what_lies_at_the_same_place_is_combined() {
        let mut atoms = Atoms::default();
        let [t, c] = [8, 8].map(|extent| atoms.make(TDim::from(extent)));
        let value: Axes = vec![vec![t], vec![c]];
        assert_eq!(atoms.broadcast(&value, &vec![vec![t], vec![]]), Some(value.clone()));
        assert_eq!(atoms.broadcast(&value, &vec![vec![c]]), Some(value.clone()));
        assert_eq!(atoms.broadcast(&value, &vec![vec![c], vec![t]]), None);
        assert_eq!(atoms.broadcast(&value, &vec![vec![t]]), None);
    }

    #[test]
    fn what_a_reshape_mixes_is_not_followed() {
        let mut atoms = Atoms::default();
        let [t, c] = [6, 8].map(|extent| atoms.make(TDim::from(extent)));
        assert_eq!(atoms.reshape(&vec![vec![t], vec![c]], &shape(&[9, 5])), None);
        assert_eq!(atoms.reshape(&vec![vec![t], vec![c]], &shape(&[4, 12])), None);
    }
}
