//! Bounds for symbolic arithmetic, and the budget of bytes for evaluated values of one graph.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use tract_onnx::prelude::{DatumType, InferenceFact, TVec, Tensor};
use tract_onnx::tract_hir::infer::{Factoid, ShapeFactoid};
use tract_onnx::tract_hir::internal::{DimFact, TDim};

use crate::shape::encode::rank;
use crate::shape::guard::RANK;

/// The maximum number of elements of a value. The extents of larger values count as unknown.
const LARGEST_VALUE: u64 = 1 << 40;

/// The maximum cost of the arithmetic on one extent, and on all extents of a graph together. The
/// cost of an extent is the number of nodes of its expression, times the number of equivalent
/// expressions that tract tries or the number of terms after expansion, whichever is larger.
const DIM_COST: u64 = 1 << 12;
const DIMS_COST: u64 = 1 << 20;

/// The maximum number of bytes of a small value.
const SMALL: u64 = 1 << 16;

/// The part of a budget that is reserved for small values is the budget divided by this number.
const RESERVED_FRACTION: u64 = 8;

/// Measures the work of tract when it simplifies a symbolic expression.
#[derive(Clone, Copy)]
struct SymbolSize {
    nodes: u64,
    /// The number of equivalent expressions that tract tries, since it distributes quotients over
    /// sums.
    forms: u64,
    /// The number of terms after all products of sums are expanded.
    products: u64,
}

impl SymbolSize {
    const EMPTY: Self = Self {
        nodes: 0,
        forms: 1,
        products: 1,
    };
    const ATOM: Self = Self {
        nodes: 1,
        forms: 1,
        products: 1,
    };
    const UNBOUNDED: Self = Self {
        nodes: u64::MAX,
        forms: u64::MAX,
        products: u64::MAX,
    };

    fn measure(dim: &TDim) -> Self {
        let parts = match dim {
            // Larger numbers could overflow in sums and products.
            TDim::Val(n) | TDim::MulInt(n, _) if n.unsigned_abs() > LARGEST_VALUE => {
                return Self::UNBOUNDED;
            }
            // Such a large divisor was negative before tract converted it to an unsigned number.
            // The rules of tract would not terminate on this quotient.
            TDim::Div(_, divisor) if *divisor > LARGEST_VALUE => return Self::UNBOUNDED,
            TDim::Val(_) | TDim::Sym(_) => return Self::ATOM,
            TDim::Add(terms) => Self::measure_all(terms, Self::in_sum),
            TDim::MulInt(_, inner) => Self::measure(inner),
            TDim::Div(inner, _) => Self::measure(inner).in_quotient(),
            TDim::Mul(terms) | TDim::Broadcast(terms) | TDim::Min(terms) | TDim::Max(terms) => {
                Self::measure_all(terms, Self::in_product)
            }
            TDim::Ge(a, b) | TDim::Eq(a, b) => Self::measure(a).in_product(Self::measure(b)),
        };
        Self {
            nodes: parts.nodes.saturating_add(1),
            ..parts
        }
    }

    fn measure_all(terms: &[TDim], join: fn(Self, Self) -> Self) -> Self {
        terms
            .iter()
            .map(Self::measure)
            .reduce(join)
            .unwrap_or(Self::EMPTY)
    }

    fn in_sum(self, other: Self) -> Self {
        Self {
            nodes: self.nodes.saturating_add(other.nodes),
            forms: self.forms.saturating_mul(other.forms),
            products: self.products.saturating_add(other.products),
        }
    }

    fn in_product(self, other: Self) -> Self {
        Self {
            nodes: self.nodes.saturating_add(other.nodes),
            forms: self.forms.saturating_add(other.forms),
            products: self.products.saturating_mul(other.products),
        }
    }

    fn in_quotient(self) -> Self {
        Self {
            forms: self.forms.saturating_mul(2),
            ..self
        }
    }

    fn cost(self) -> u64 {
        self.nodes.saturating_mul(self.forms.max(self.products))
    }
}

/// The cost of computing with the symbolic extents and elements of a fact. Known numbers cost
/// nothing.
pub(super) fn fact_cost(fact: &InferenceFact) -> u64 {
    let dims = fact.shape.dims().filter_map(|dim| dim.concretize());
    let shape = dims.map(|dim| dim_cost(&dim)).fold(0, u64::saturating_add);
    let Some(value) = fact.value.concretize() else {
        return shape;
    };
    symbolic_elements(&value)
        .map(dim_cost)
        .fold(shape, u64::saturating_add)
}

fn dim_cost(dim: &TDim) -> u64 {
    match dim {
        TDim::Val(_) => 0,
        _ => SymbolSize::measure(dim).cost(),
    }
}

/// The elements of a symbolic tensor. Other tensors have none.
pub(crate) fn symbolic_elements(tensor: &Tensor) -> impl Iterator<Item = &TDim> {
    let is_symbolic = tensor.datum_type() == DatumType::TDim;
    let plain = is_symbolic
        .then(|| tensor.try_as_plain_ram().ok())
        .flatten();
    plain
        .and_then(|plain| plain.as_slice::<TDim>().ok())
        .unwrap_or_default()
        .iter()
}

/// The remaining budget of one graph.
pub(crate) struct Budget {
    bytes: Cell<u64>,
    reserved: u64,
    dims: Cell<u64>,
    is_dim_admitted: RefCell<HashMap<TDim, bool>>,
    /// Whether something was refused because the remaining budget was too small.
    is_exhausted: Cell<bool>,
}

impl Budget {
    /// A budget of `bytes` for evaluated constants, with fixed bounds for symbolic arithmetic.
    pub(crate) fn new(bytes: u64) -> Self {
        Self {
            bytes: Cell::new(bytes),
            reserved: bytes / RESERVED_FRACTION,
            dims: Cell::new(DIMS_COST),
            is_dim_admitted: RefCell::default(),
            is_exhausted: Cell::new(false),
        }
    }

    /// Subtracts the bytes of a value from the budget. Returns `false` if the remaining budget is
    /// too small.
    ///
    /// Large values may not use the reserved part of the budget, because shapes consist of small
    /// values.
    pub(crate) fn spend(&self, bytes: u64) -> bool {
        let is_left = bytes <= SMALL || bytes.saturating_add(self.reserved) <= self.bytes.get();
        let is_spent = is_left && spend(&self.bytes, bytes);
        self.note(is_spent);
        is_spent
    }

    /// Whether something was refused because the remaining budget was too small.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.is_exhausted.get()
    }

    fn note(&self, is_spent: bool) {
        if !is_spent {
            self.is_exhausted.set(true);
        }
    }

    /// Subtracts the bytes of a fact's value from the budget, or drops the value if the remaining
    /// budget is too small.
    pub(crate) fn charge(&self, fact: InferenceFact) -> InferenceFact {
        let value = fact.value.concretize();
        let bytes = value.map_or(0, |tensor| {
            (tensor.volume() * tensor.datum_type().size_of()) as u64
        });
        if self.spend(bytes) {
            fact
        } else {
            fact.without_value()
        }
    }

    /// Drops the shape, the extents or the value of a fact if they exceed the bounds.
    pub(crate) fn admit(&self, fact: InferenceFact) -> InferenceFact {
        let fact = match &fact.value.concretize() {
            Some(tensor) if !symbolic_elements(tensor).all(|dim| self.admits(dim)) => {
                fact.without_value()
            }
            _ => fact,
        };
        let Some(rank) = rank(&fact) else { return fact };
        if rank > RANK || !is_count_within_bounds(&fact) {
            return fact.without_value().with_shape(ShapeFactoid::default());
        }
        let dims: TVec<DimFact> = fact.shape.dims().map(|dim| self.admit_dim(dim)).collect();
        fact.with_shape(ShapeFactoid::closed(dims))
    }

    fn admit_dim(&self, dim: &DimFact) -> DimFact {
        match dim.concretize() {
            Some(dim) if self.admits(&dim) => DimFact::from(dim),
            _ => DimFact::default(),
        }
    }

    fn admits(&self, dim: &TDim) -> bool {
        match dim {
            TDim::Val(n) => return n.unsigned_abs() <= LARGEST_VALUE,
            TDim::Sym(_) => return true,
            _ => {}
        }
        if let Some(&is_admitted) = self.is_dim_admitted.borrow().get(dim) {
            return is_admitted;
        }
        let cost = SymbolSize::measure(dim).cost();
        // An expression without a symbol that is not a plain number has overflowed, so it is
        // refused.
        let is_small = dim.find_scope().is_some() && cost <= DIM_COST;
        let is_admitted = is_small && spend(&self.dims, cost);
        self.note(is_admitted || !is_small);
        self.is_dim_admitted
            .borrow_mut()
            .insert(dim.clone(), is_admitted);
        is_admitted
    }
}

/// Whether the product of the known extents is within bounds. Extents of 0 are ignored, and a
/// negative extent is out of bounds.
fn is_count_within_bounds(fact: &InferenceFact) -> bool {
    let numbers = fact
        .shape
        .dims()
        .filter_map(|dim| dim.concretize()?.as_i64());
    let mut count = 1_u64;
    for extent in numbers.filter(|&extent| extent != 0) {
        let Ok(extent) = u64::try_from(extent) else {
            return false;
        };
        count = count.saturating_mul(extent);
        if count > LARGEST_VALUE {
            return false;
        }
    }
    true
}

fn spend(left: &Cell<u64>, amount: u64) -> bool {
    let rest = left.get().checked_sub(amount);
    left.set(rest.unwrap_or(left.get()));
    rest.is_some()
}

#[cfg(test)]
mod tests {
    use tract_onnx::tract_hir::internal::SymbolScope;

    use super::*;

    fn fact(dims: Vec<TDim>) -> InferenceFact {
        let dims = dims.into_iter().map(DimFact::from).collect();
        InferenceFact::default().with_shape(ShapeFactoid::closed(dims))
    }

    #[test]
    fn symbolic_extents_are_admitted_up_to_a_size() {
        let scope = SymbolScope::default();
        let [a, b, next] = ["a", "b", "a+1"].map(|text| scope.parse_tdim(text).unwrap());
        let size = SymbolSize::measure(&a);
        assert_eq!([size.nodes, size.forms, size.products], [1, 1, 1]);
        let quotients = TDim::Add(vec![TDim::Div(Box::new(a.clone()), 7); 20]);
        let product = TDim::Mul(vec![TDim::Add(vec![a, b]); 20]);
        assert_eq!(SymbolSize::measure(&quotients).forms, 1 << 20);
        assert_eq!(SymbolSize::measure(&product).products, 1 << 20);

        let budget = Budget::new(0);
        let admitted = budget.admit(fact(vec![next, quotients, product]));
        let admitted: Vec<bool> = admitted
            .shape
            .dims()
            .map(|dim| dim.concretize().is_some())
            .collect();
        assert_eq!(admitted, [true, false, false]);
        let huge = vec![TDim::from(1 << 30), TDim::from(1 << 30)];
        assert!(budget.admit(fact(huge)).shape.is_open());
    }

    #[test]
    fn budget_is_spent_once() {
        let budget = Budget::new(10);
        assert_eq!(
            [6, 6, 4, 1].map(|bytes| budget.spend(bytes)),
            [true, false, true, false]
        );
        let budget = Budget::new(4 * SMALL);
        let large = 2 * SMALL;
        assert_eq!(
            [large, large, SMALL, SMALL, 1].map(|bytes| budget.spend(bytes)),
            [true, false, true, true, false]
        );
    }
}
