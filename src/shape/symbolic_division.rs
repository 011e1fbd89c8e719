//! Quotients and remainders of shapes: below 0 tract's are not those of ONNX.
//!
//! tract computes shapes as formulas of extents, and there `(−10) mod 4` is −2, where ONNX gives a
//! remainder the sign of the divisor; it splits quotients as if they were rounded down, where ONNX
//! rounds towards 0. From 0 on both agree, and a number just below 0 becomes 0 by division. Padding
//! to whole windows is `(−h) mod w`.

use tract_onnx::prelude::{InferenceFact, Tensor};
use tract_onnx::tract_hir::infer::Factoid;
use tract_onnx::tract_hir::internal::{IntoArcTensor, TDim};

use crate::onnx::proto::NodeProto;

/// The facts about a Div or a Mod with these inputs and this result: its elements only where they
/// agree with ONNX.
pub fn settled(
    node: &NodeProto,
    inputs: &[Option<InferenceFact>],
    result: InferenceFact,
) -> InferenceFact {
    let remainder = match node.op() {
        ("", "Div") => None,
        ("", "Mod") => Some(node.attr_i("fmod").ok().flatten().unwrap_or(0) == 0),
        _ => return result,
    };
    let is_shape = |value: &Tensor| value.datum_type().is_tdim();
    if !result
        .value
        .concretize()
        .is_some_and(|value| is_shape(&value))
    {
        return result;
    }
    let [Some(a), Some(b)] = inputs else {
        return result.without_value();
    };
    let (Some(a), Some(b)) = (elements(a), elements(b)) else {
        return result.without_value();
    };
    if a.iter().all(is_natural) && b.iter().all(|divisor| matches!(divisor, TDim::Val(1..))) {
        return result;
    }
    let number = |dim: &TDim| dim.to_i64().ok();
    let both = |a: &TDim, b: &TDim| {
        if let (None, Some(rest)) = (remainder, without(a, b)) {
            return Some(rest);
        }
        if let (None, TDim::Val(divisor @ 1..), None) = (remainder, b, number(a)) {
            return towards_zero(a, divisor.unsigned_abs());
        }
        let (a, b) = (number(a)?, number(b)?);
        let rest = a.checked_rem(b)?;
        let made = match remainder {
            None => a.checked_div(b)?,
            Some(true) if rest != 0 && (rest < 0) != (b < 0) => rest + b,
            Some(_) => rest,
        };
        Some(TDim::from(made))
    };
    computed(&a, &b, both).unwrap_or_else(|| result.without_value())
}

/// Whether extents are divided by less than nothing, which tract takes for more than there is.
pub fn is_by_less_than_nothing(node: &NodeProto, inputs: &[Option<InferenceFact>]) -> bool {
    let [Some(a), Some(b)] = inputs else {
        return false;
    };
    let divides = matches!(node.op(), ("", "Div" | "Mod"));
    let Some((a, b)) = elements(a).zip(elements(b)).filter(|_| divides) else {
        return false;
    };
    let is_open = a.iter().chain(&b).any(|dim| dim.to_i64().is_err());
    is_open && b.iter().any(|divisor| matches!(divisor, TDim::Val(..0)))
}

type Formulas = ndarray::ArrayD<TDim>;

fn elements(fact: &InferenceFact) -> Option<Formulas> {
    let value = fact.value.concretize()?;
    let dims = value.cast_to::<TDim>().ok()?;
    Some(dims.to_plain_array_view::<TDim>().ok()?.to_owned())
}

/// The quotient of a number that may be so little below 0 that nothing is left of it towards 0.
fn towards_zero(number: &TDim, divisor: u64) -> Option<TDim> {
    let is_near = least(number)? > -i64::try_from(divisor).ok()?;
    is_near.then(|| TDim::Max(vec![TDim::from(0), number.clone() / divisor]).simplify())
}

/// A product of extents without one of its factors, such as `b·n` without `n`: if that factor is 0,
/// the division is undefined anyway.
fn without(product: &TDim, factor: &TDim) -> Option<TDim> {
    if matches!(factor, TDim::Val(_)) {
        return None;
    }
    if product == factor {
        return Some(TDim::from(1));
    }
    match product {
        TDim::MulInt(times, inner) => Some(without(inner, factor)? * *times),
        TDim::Mul(factors) => {
            let place = factors.iter().position(|one| one == factor)?;
            let rest = factors
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != place);
            Some(rest.fold(TDim::from(1), |rest, (_, one)| rest * one))
        }
        _ => None,
    }
}

/// The result for two tensors of numbers.
fn computed(
    a: &Formulas,
    b: &Formulas,
    both: impl Fn(&TDim, &TDim) -> Option<TDim>,
) -> Option<InferenceFact> {
    let shape = crate::recipe::broadcast(a.shape(), b.shape())?;
    let (a, b) = (a.broadcast(shape.clone())?, b.broadcast(shape.clone())?);
    let numbers = a.iter().zip(b.iter()).map(|(a, b)| both(a, b));
    let numbers = Formulas::from_shape_vec(shape, numbers.collect::<Option<Vec<_>>>()?).ok()?;
    InferenceFact::try_from(Tensor::from(numbers).into_arc_tensor()).ok()
}

/// Whether a number computed from extents is known to be non-negative.
fn is_natural(dim: &TDim) -> bool {
    least(dim).is_some_and(|least| least >= 0)
}

/// A lower bound of a number computed from extents.
fn least(dim: &TDim) -> Option<i64> {
    match dim {
        TDim::Val(value) => Some(*value),
        // No extent is negative.
        TDim::Sym(_) => Some(0),
        TDim::MulInt(factor, of) if *factor >= 0 => least(of)?.checked_mul(*factor),
        TDim::Mul(factors) if factors.iter().all(is_natural) => Some(0),
        TDim::Div(of, _) if is_natural(of) => Some(0),
        TDim::Max(of) => of.iter().filter_map(least).max(),
        TDim::Min(of) => of.iter().map(least).min().flatten(),
        TDim::Add(terms) => least_of_sum(terms),
        _ => None,
    }
}

/// As [`least`]. The remainder of `n` after its whole `q`s, `n − q(n/q)`, is at least 0 and below
/// `q`.
fn least_of_sum(terms: &[TDim]) -> Option<i64> {
    let mut terms: Vec<&TDim> = terms.iter().collect();
    let mut sum = 0_i64;
    while let Some((place, of, q, sign)) =
        terms
            .iter()
            .enumerate()
            .find_map(|(place, term)| match term {
                TDim::MulInt(factor, inner) => match &**inner {
                    TDim::Div(of, q) if is_natural(of) && factor.unsigned_abs() == *q => {
                        Some((place, (**of).clone(), *q, -factor.signum()))
                    }
                    _ => None,
                },
                _ => None,
            })
    {
        // A sum in a sum is no term of its own.
        let parts = if let TDim::Add(parts) = of {
            parts
        } else {
            vec![of]
        };
        terms.remove(place);
        for part in parts {
            let whole = if sign > 0 { part } else { part * -1 };
            terms.remove(terms.iter().position(|term| **term == whole)?);
        }
        sum = sum.checked_sub(if sign > 0 {
            0
        } else {
            i64::try_from(q).ok()? - 1
        })?;
    }
    terms
        .into_iter()
        .try_fold(sum, |sum, term| sum.checked_add(least(term)?))
}

#[cfg(test)]
mod tests {
    use tract_onnx::tract_hir::internal::SymbolScope;

    use super::*;

    #[test]
    fn a_product_without_a_factor_is_the_rest() {
        let scope = SymbolScope::default();
        let (b, n) = (TDim::from(scope.sym("b")), TDim::from(scope.sym("n")));
        let product = b.clone() * &n;
        assert_eq!(without(&product, &n), Some(b.clone()));
        assert_eq!(without(&(product.clone() * 3), &b), Some(n.clone() * 3));
        assert_eq!(without(&n, &n), Some(TDim::from(1)));
        assert_eq!(without(&(product.clone() + 1), &n), None);
        assert_eq!(without(&b, &n), None);
        assert_eq!(without(&(n.clone() * 4), &TDim::from(2)), None);
    }

    #[test]
    fn quotients_are_rounded_towards_zero() {
        use tract_onnx::tract_hir::internal::SymbolValues;

        let scope = SymbolScope::default();
        let symbol = scope.sym("t");
        let t = TDim::from(symbol.clone());
        assert!(towards_zero(&(t.clone() - 2), 2).is_none());
        for (less, divisor) in [(1, 2), (1, 7), (3, 4)] {
            let quotient = towards_zero(&(t.clone() - less), divisor).unwrap();
            for size in 0..25 {
                let made = quotient.eval_to_i64(&SymbolValues::default().with(&symbol, size));
                assert_eq!(
                    made.unwrap(),
                    (size - less) / divisor as i64,
                    "({size} - {less}) / {divisor}"
                );
            }
        }
    }

    #[test]
    fn what_is_left_of_an_extent_has_bounds() {
        let scope = SymbolScope::default();
        let h = TDim::from(scope.sym("h"));
        let w = TDim::from(scope.sym("w"));
        let natural = [
            h.clone(),
            (h.clone() + 6) / 7,
            h.clone() * 3 + w.clone() * &h,
            h.clone() % 7,
            TDim::from(7) - h.clone() % 7,
            (h.clone() + 3) % 7 + w.clone() / 2,
        ];
        for dim in natural {
            assert!(is_natural(&dim), "{dim}");
        }
        for dim in [
            -h.clone(),
            h.clone() - 1,
            TDim::from(5) - h.clone() % 7,
            h.clone() - &w,
            -(h / 7),
        ] {
            assert!(!is_natural(&dim), "{dim}");
        }
    }
}
