//! Where the elements of a value are: the one algebra of axes.
//!
//! An axis is a list of atoms, row-major: a transpose permutes the lists, a reshape groups the atoms
//! anew and splits one where it must. An axis along which a value does not vary may have none.
//!
//! Some atoms are free: the axes of a constant, or those that an Expand makes. They are determined
//! where they meet others.

use std::collections::{HashSet, VecDeque};

use tract_onnx::tract_hir::internal::{DimLike, TDim};

use crate::ir::axes::permutation;
use crate::onnx::operator::Category;
use crate::onnx::proto::NodeProto;
use crate::shape::facts::{Shape, same};

/// A part of an axis.
pub type AxisFactor = usize;

/// The atoms of each axis of a value.
pub type Axes = Vec<Vec<AxisFactor>>;

/// The facts about an atom.
#[derive(Debug, Clone)]
struct AxisFactorFact {
    /// `None` where nothing is known of it.
    extent: Option<TDim>,
    free: bool,
    /// The atoms that it was split into, or unified with.
    parts: Option<Vec<AxisFactor>>,
}

/// All atoms of some values. One that was split is its parts from then on, in every value.
#[derive(Debug, Clone, Default)]
pub struct AxisFactors(Vec<AxisFactorFact>);

impl AxisFactors {
    /// The axes of a value of this shape, each an atom of its own.
    pub fn axes(&mut self, shape: &Shape) -> Option<Axes> {
        let dims: Vec<TDim> = shape.iter().cloned().collect::<Option<_>>()?;
        Some(dims.into_iter().map(|dim| self.axis(dim, false)).collect())
    }

    /// An axis that is free.
    pub fn free(&mut self, extent: TDim) -> Vec<AxisFactor> {
        self.axis(extent, true)
    }

    fn axis(&mut self, extent: TDim, free: bool) -> Vec<AxisFactor> {
        if extent.is_one() {
            vec![]
        } else {
            vec![self.make(Some(extent), free)]
        }
    }

    fn make(&mut self, extent: Option<TDim>, free: bool) -> AxisFactor {
        self.0.push(AxisFactorFact {
            extent,
            free,
            parts: None,
        });
        self.0.len() - 1
    }

    /// Whether an atom has met nothing yet.
    pub fn is_free(&self, atom: AxisFactor) -> bool {
        self.0[atom].free
    }

    /// The extent of an atom where it is a number.
    pub fn extent(&self, atom: AxisFactor) -> Option<usize> {
        crate::shape::extents::extent(&self.0[atom].extent)
    }

    /// The product of the extents of atoms, where all of them are numbers.
    pub fn count(&self, atoms: &[AxisFactor]) -> Option<usize> {
        atoms
            .iter()
            .try_fold(1usize, |count, &atom| count.checked_mul(self.extent(atom)?))
    }

    /// The atoms that are not split any further.
    pub fn leaves(&self, list: &[AxisFactor]) -> Vec<AxisFactor> {
        let leaves = |&atom: &AxisFactor| match &self.0[atom].parts {
            Some(parts) => self.leaves(parts),
            None => vec![atom],
        };
        list.iter().flat_map(leaves).collect()
    }

    /// The axes in unsplit atoms; `None` if one occurs twice.
    pub fn settled(&self, axes: &Axes) -> Option<Axes> {
        let mut seen = HashSet::new();
        let axes: Axes = axes.iter().map(|axis| self.leaves(axis)).collect();
        axes.iter()
            .flatten()
            .all(|&atom| seen.insert(atom))
            .then_some(axes)
    }

    /// The axes behind a node that only moves elements, into this shape.
    pub fn moved(&mut self, node: &NodeProto, axes: &Axes, shape: &Shape) -> Option<Axes> {
        if node.category() != Some(Category::Movement) {
            return None;
        }
        match node.op_type() {
            "Identity" => Some(axes.clone()),
            "Transpose" => {
                let perm = permutation(node.attr_ints("perm").ok()?, axes.len()).ok()?;
                Some(perm.into_iter().map(|axis| axes[axis].clone()).collect())
            }
            "Squeeze" | "Unsqueeze" => self.kept(axes, shape).or_else(|| self.reshape(axes, shape)),
            _ => self.reshape(axes, shape),
        }
    }

    /// The axes where others of extent 1 come among them, or go: their own extents need not be known.
    fn kept(&self, axes: &Axes, shape: &Shape) -> Option<Axes> {
        let mut kept = axes.iter().filter(|axis| !self.leaves(axis).is_empty());
        let is_one = |dim: &Option<TDim>| dim.as_ref().is_some_and(TDim::is_one);
        let made: Axes = shape
            .iter()
            .map(|dim| {
                if is_one(dim) {
                    Some(vec![])
                } else {
                    kept.next().cloned()
                }
            })
            .collect::<Option<_>>()?;
        kept.next().is_none().then_some(made)
    }

    /// The axes after a reshape; `None` where it cannot be followed.
    pub fn reshape(&mut self, axes: &Axes, shape: &Shape) -> Option<Axes> {
        let dims: Vec<TDim> = shape.iter().cloned().collect::<Option<_>>()?;
        let mut queue: VecDeque<AxisFactor> = self.leaves(&axes.concat()).into();
        let mut reshaped = vec![];
        for (place, dim) in dims.iter().enumerate() {
            let mut axis = vec![];
            let mut product = TDim::from(1);
            while &product != dim {
                let atom = queue.pop_front()?;
                let longer = (product.clone() * self.0[atom].extent.as_ref()?).simplify();
                let parts = if &longer == dim {
                    None
                } else {
                    self.split(atom, &product, &dims[place..])
                };
                match parts {
                    Some(parts) => parts
                        .into_iter()
                        .rev()
                        .for_each(|part| queue.push_front(part)),
                    None => {
                        product = longer;
                        axis.push(atom);
                    }
                }
                if product
                    .to_i64()
                    .is_ok_and(|p| dim.to_i64().is_ok_and(|d| p > d))
                {
                    return None;
                }
            }
            reshaped.push(axis);
        }
        queue.is_empty().then_some(reshaped)
    }

    /// Splits an atom where the wanted extents, of which there is `product` already, need only a part
    /// of it.
    fn split(
        &mut self,
        atom: AxisFactor,
        product: &TDim,
        dims: &[TDim],
    ) -> Option<Vec<AxisFactor>> {
        let AxisFactorFact { extent, free, .. } = self.0[atom].clone();
        let whole = extent?;
        let extents =
            if let (Ok(number), Some(needed)) = (whole.to_i64(), quotient(&dims[0], product)) {
                let fits = needed > 1 && number % needed == 0 && number != needed;
                fits.then(|| vec![TDim::from(needed), TDim::from(number / needed)])?
            } else {
                product.is_one().then_some(())?;
                let mut covered = TDim::from(1);
                let last = dims.iter().position(|dim| {
                    covered = (covered.clone() * dim).simplify();
                    covered == whole
                })?;
                dims[..=last]
                    .iter()
                    .filter(|dim| !dim.is_one())
                    .cloned()
                    .collect()
            };
        (extents.len() > 1).then_some(())?;
        let parts: Vec<AxisFactor> = extents
            .into_iter()
            .map(|extent| self.make(Some(extent), free))
            .collect();
        self.0[atom].parts = Some(parts.clone());
        Some(parts)
    }

    /// The atoms over which axes go that a Reduce operator names, in ascending order, and the axes
    /// behind it.
    pub fn reduced(&self, axes: &Axes, over: &[usize], keep: bool) -> (Vec<AxisFactor>, Axes) {
        let mut leaves: Vec<AxisFactor> = over
            .iter()
            .flat_map(|&axis| self.leaves(&axes[axis]))
            .collect();
        leaves.sort_unstable();
        let mut rest = vec![];
        for (i, axis) in axes.iter().enumerate() {
            match (over.contains(&i), keep) {
                (false, _) => rest.push(axis.clone()),
                (true, true) => rest.push(vec![]),
                (true, false) => {}
            }
        }
        (leaves, rest)
    }

    /// Whether two lists of axes hold the same, place by place.
    pub fn same(&self, left: &Axes, right: &Axes) -> bool {
        let alike = |(one, other): (&Vec<AxisFactor>, &Vec<AxisFactor>)| {
            self.leaves(one) == self.leaves(other)
        };
        left.len() == right.len() && left.iter().zip(right).all(alike)
    }

    /// The axes of what an element-wise operator makes of two values; `None` where they do not hold
    /// the same place by place.
    pub fn broadcast(&mut self, left: &Axes, right: &Axes) -> Option<Axes> {
        let rank = left.len().max(right.len());
        let widened = |axes: &Axes| [vec![vec![]; rank - axes.len()], axes.clone()].concat();
        let mut axes = vec![];
        for (one, other) in widened(left).iter().zip(&widened(right)) {
            axes.push(self.meet(one, other)?);
        }
        self.settled(&axes)
    }

    /// The union of two axes at one place: they are equal, or one varies where the other does not.
    /// Free atoms are unified with the atoms that they meet.
    fn meet(&mut self, one: &[AxisFactor], other: &[AxisFactor]) -> Option<Vec<AxisFactor>> {
        let (one, other) = (self.leaves(one), self.leaves(other));
        if one == other || other.is_empty() {
            return Some(one);
        }
        if one.is_empty() {
            return Some(other);
        }
        let (fine, coarse) = if one.len() >= other.len() {
            (one, other)
        } else {
            (other, one)
        };
        let extents = fine
            .iter()
            .map(|&atom| self.0[atom].extent.clone())
            .collect();
        let groups = self.reshape(&vec![coarse], &extents)?;
        for (&atom, group) in fine.iter().zip(&groups) {
            // Factors that met earlier in this axis are no longer free.
            let (atom, group) = (self.leaves(&[atom]), self.leaves(group));
            match (&atom[..], &group[..]) {
                _ if atom == group => {}
                (_, &[single]) if self.0[single].free => self.0[single].parts = Some(atom),
                (&[single], _) if self.0[single].free => self.0[single].parts = Some(group),
                _ => return None,
            }
        }
        Some(self.leaves(&fine))
    }
}

/// How often one extent is another, where that is a number: of `6·b` and `2·b` it is 3.
fn quotient(dim: &TDim, product: &TDim) -> Option<i64> {
    if let (Ok(dim), Ok(product)) = (dim.to_i64(), product.to_i64()) {
        return (product > 0 && dim % product == 0).then(|| dim / product);
    }
    let (quotient, 1) = dim.maybe_div(product).ok()? else {
        return None;
    };
    let number = quotient.to_i64().ok()?;
    (number > 0 && same(&Some(product.clone() * number), &Some(dim.clone()))).then_some(number)
}

/// Where the elements of a value are after a chain of movements.
#[derive(Debug, Clone)]
pub struct LayoutMap {
    atoms: AxisFactors,
    start: Axes,
    now: Axes,
}

impl LayoutMap {
    /// The start of a chain, at a value of this shape. Unknown axes move too, and are regrouped
    /// with no other axis.
    pub fn new(shape: &Shape) -> Self {
        let mut atoms = AxisFactors::default();
        let axis = |dim: &Option<TDim>| match dim {
            Some(dim) => atoms.axis(dim.clone(), false),
            None => vec![atoms.make(None, false)],
        };
        let start: Axes = shape.iter().map(axis).collect();
        LayoutMap {
            now: start.clone(),
            start,
            atoms,
        }
    }

    /// Goes through a node into a value of this shape; `None` where that cannot be followed.
    pub fn follow(&mut self, node: &NodeProto, shape: &Shape) -> Option<()> {
        self.now = self.atoms.moved(node, &self.now, shape)?;
        Some(())
    }

    /// Whether every element is where it was, in a value of the same shape.
    pub fn is_identity(&self) -> bool {
        self.atoms.same(&self.start, &self.now)
    }

    /// Whether the elements are in the order in which they were, whatever the shape: one reshape
    /// can do it.
    pub fn keeps_order(&self) -> bool {
        self.atoms.leaves(&self.start.concat()) == self.atoms.leaves(&self.now.concat())
    }

    /// The axes that now hold what these held, each alone; `None` where one of them is spread, or beside another.
    pub fn places(&self, axes: &[usize]) -> Option<Vec<usize>> {
        let now: Vec<Vec<AxisFactor>> = self
            .now
            .iter()
            .map(|axis| self.atoms.leaves(axis))
            .collect();
        let place = |&axis: &usize| {
            let held = self.atoms.leaves(&self.start[axis]);
            now.iter()
                .position(|axis| *axis == held && !held.is_empty())
        };
        axes.iter().map(place).collect()
    }

    /// The axis of the start of which this one holds a run of atoms now, and how many runs there are before it and elements
    /// in each behind it; `None` where those are no numbers, or it holds atoms of several.
    pub fn run(&self, place: usize) -> Option<(usize, [usize; 2])> {
        let held = self.atoms.leaves(self.now.get(place)?);
        let first = held.first()?;
        let find = |axis: &Vec<AxisFactor>| {
            self.atoms
                .leaves(axis)
                .iter()
                .position(|atom| atom == first)
        };
        let axis = self.start.iter().position(|axis| find(axis).is_some())?;
        let leaves = self.atoms.leaves(&self.start[axis]);
        let from = leaves.iter().position(|atom| atom == first)?;
        let (before, behind) = (
            &leaves[..from],
            leaves.get(from..)?.strip_prefix(&held[..])?,
        );
        Some((axis, [self.atoms.count(before)?, self.atoms.count(behind)?]))
    }

    /// The permutation of axes that does it all, if one does.
    pub fn as_transpose(&self) -> Option<Vec<usize>> {
        let mut free: Vec<Option<Vec<AxisFactor>>> = self
            .start
            .iter()
            .map(|axis| Some(self.atoms.leaves(axis)))
            .collect();
        let mut take = |axis: &Vec<AxisFactor>| {
            let axis = Some(self.atoms.leaves(axis));
            let place = free.iter().position(|start| *start == axis)?;
            free[place] = None;
            Some(place)
        };
        let perm = self.now.iter().map(&mut take).collect::<Option<Vec<_>>>()?;
        (perm.len() == self.start.len()).then_some(perm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tract_onnx::tract_hir::internal::SymbolScope;

    fn shape(scope: &SymbolScope, dims: &str) -> Shape {
        dims.split(',')
            .map(|dim| scope.parse_tdim(dim).ok())
            .collect()
    }

    /// A value of this shape.
    fn value(dims: &str) -> (AxisFactors, Axes) {
        let mut atoms = AxisFactors::default();
        let axes = atoms.axes(&shape(&SymbolScope::default(), dims)).unwrap();
        (atoms, axes)
    }

    /// A chain of transposes, such as `0 2 1`, and of reshapes, such as `b,n`.
    fn trace(start: &str, steps: &[&str]) -> LayoutMap {
        let scope = SymbolScope::default();
        let mut trace = LayoutMap::new(&shape(&scope, start));
        for step in steps {
            let LayoutMap { atoms, now, .. } = &mut trace;
            *now = match step.contains(' ') {
                true => step
                    .split(' ')
                    .map(|axis| now[axis.parse::<usize>().unwrap()].clone())
                    .collect(),
                false => atoms.reshape(now, &shape(&scope, step)).unwrap(),
            };
        }
        trace
    }

    #[test]
    fn heads_are_split_and_put_together_again() {
        let (mut atoms, axes) = value("6,8");
        let scope = SymbolScope::default();
        let heads = atoms.reshape(&axes, &shape(&scope, "6,2,4")).unwrap();
        assert_eq!(atoms.leaves(&axes[1]), [heads[1][0], heads[2][0]]);
        let back = atoms.reshape(&heads, &shape(&scope, "6,8")).unwrap();
        assert!(atoms.same(&back, &axes));
    }

    #[test]
    fn only_what_lies_at_the_same_place_is_combined() {
        let (mut atoms, axes) = value("8,8");
        let [t, c] = [axes[0][0], axes[1][0]];
        assert_eq!(
            atoms.broadcast(&axes, &vec![vec![t], vec![]]),
            Some(axes.clone())
        );
        assert_eq!(atoms.broadcast(&axes, &vec![vec![c]]), Some(axes.clone()));
        assert_eq!(atoms.broadcast(&axes, &vec![vec![c], vec![t]]), None);
        assert_eq!(atoms.broadcast(&axes, &vec![vec![t]]), None);
    }

    #[test]
    fn what_a_reshape_mixes_is_not_followed() {
        for dims in ["9,5", "4,12", "0"] {
            let (mut atoms, axes) = value("6,8");
            assert_eq!(
                atoms.reshape(&axes, &shape(&SymbolScope::default(), dims)),
                None
            );
        }
    }

    #[test]
    fn a_free_axis_is_the_one_that_it_meets() {
        let (mut atoms, axes) = value("6,8");
        let number = |atoms: &mut AxisFactors, extent: i64| atoms.free(TDim::from(extent));
        let (heads, places) = (number(&mut atoms, 2), number(&mut atoms, 4));
        let wide = vec![[heads.clone(), places.clone()].concat()];
        assert!(atoms.broadcast(&axes, &wide).is_some());
        assert_eq!(atoms.leaves(&axes[1]), atoms.leaves(&wide[0]));
        // It is no other axis from then on, nor one of another extent.
        let tall = number(&mut atoms, 8);
        assert_eq!(atoms.broadcast(&axes, &vec![tall, vec![]]), None);
        let (mut atoms, axes) = value("8,8");
        let free = number(&mut atoms, 8);
        let square = atoms
            .broadcast(&vec![axes[0].clone(), vec![]], &vec![free.clone()])
            .unwrap();
        assert!(atoms.broadcast(&axes, &square).is_some());
        assert_eq!(atoms.broadcast(&axes, &vec![free, vec![]]), None);
    }

    #[test]
    fn an_axis_is_not_there_twice() {
        let (mut atoms, axes) = value("8");
        let free = atoms.free(TDim::from(8));
        let product = vec![axes[0].clone(), free.clone()];
        assert!(atoms.settled(&product).is_some());
        atoms.broadcast(&axes, &vec![free]).unwrap();
        assert_eq!(atoms.settled(&product), None);
    }

    #[test]
    fn a_norm_on_transposed_tokens_comes_back() {
        let there = ["0 2 1", "b,384,196,1"];
        assert!(!trace("b,196,384", &there).is_identity());
        assert!(trace("b,196,384", &[&there[..], &["b,384,196", "0 2 1"]].concat()).is_identity());
    }

    #[test]
    fn flattening_the_batch_comes_back() {
        assert!(trace("b,196,384", &["b*196,384", "b,196,384"]).is_identity());
        assert!(trace("b*196,384", &["b,196,384", "b*196,384"]).is_identity());
    }

    #[test]
    fn two_transposes_are_one() {
        let trace = trace("b,24,96", &["0 2 1", "2 0 1"]);
        assert_eq!(trace.as_transpose(), Some(vec![1, 0, 2]));
        assert!(!trace.keeps_order());
    }

    #[test]
    fn two_reshapes_are_one() {
        let trace = trace("b,4,4,192", &["b,16,192"]);
        assert!(trace.keeps_order());
        assert_eq!(trace.as_transpose(), None);
    }

    #[test]
    fn an_extent_that_nobody_knows_is_permuted_and_not_regrouped() {
        assert!(trace("b,?,?", &["0 2 1", "0 2 1"]).is_identity());
        assert!(!trace("b,?,?", &["0 2 1"]).is_identity());
        assert_eq!(
            trace("?,4,?", &["1 2 0", "0 2 1"]).as_transpose(),
            Some(vec![1, 0, 2])
        );
        let LayoutMap { mut atoms, now, .. } = trace("?,4,6", &[]);
        assert_eq!(
            atoms.reshape(&now, &shape(&SymbolScope::default(), "?,24")),
            None
        );
        assert_eq!(
            atoms.reshape(&now, &shape(&SymbolScope::default(), "6,4")),
            None
        );
    }

    #[test]
    fn channels_beside_an_open_batch_are_found_again() {
        let image = ["0 3 2 1", "b*6,3,2,2", "0 2 1 3"];
        let apart = trace("b,4,6,3", &image);
        assert_eq!(apart.places(&[3]), None);
        let whole = trace("b,4,6,3", &[&image[..], &["b,3,4,6"]].concat());
        assert_eq!(whole.places(&[3]), Some(vec![1]));
        assert_eq!(whole.places(&[1]), None);
        assert_eq!(
            trace("b,4,6,3", &["2 0 3 1"]).places(&[3, 1]),
            Some(vec![2, 3])
        );
    }

    #[test]
    fn a_quotient_is_a_number_or_none() {
        let scope = SymbolScope::default();
        let dim = |text: &str| scope.parse_tdim(text).unwrap();
        for (whole, part, times) in [
            ("6*b", "2*b", Some(3)),
            ("6*b", "b", Some(6)),
            ("6", "2", Some(3)),
            ("6", "4", None),
            ("6*b", "4*b", None),
        ] {
            assert_eq!(quotient(&dim(whole), &dim(part)), times, "{whole} {part}");
        }
        for (whole, part) in [
            ("6*b", "2*c"),
            ("6*b", "2"),
            ("b+6", "b"),
            ("2", "6*b"),
            ("6", "0"),
        ] {
            assert_eq!(quotient(&dim(whole), &dim(part)), None, "{whole} {part}");
        }
    }

    #[test]
    fn a_transposed_square_is_no_identity() {
        assert!(!trace("b,8,8", &["0 2 1"]).is_identity());
        assert!(!trace("2,8", &["8,2"]).is_identity());
    }
}
