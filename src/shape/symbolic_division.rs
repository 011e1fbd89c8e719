//! Corrects quotients and remainders of shapes, for which tract and ONNX differ if numbers are
//! negative.
//!
//! tract computes shapes as formulas over extents. In tract `(−10) mod 4` is −2, while in ONNX a
//! remainder has the sign of the divisor. tract transforms quotients as if they were rounded down,
//! while ONNX rounds towards 0. tract and ONNX agree on nonnegative numbers, and on the quotients
//! of numbers just below 0, which are 0. Remainders of negative numbers occur in practice: the
//! padding up to whole windows is `(−h) mod w`.

use tract_onnx::prelude::{InferenceFact, Tensor};
use tract_onnx::tract_hir::infer::Factoid;
use tract_onnx::tract_hir::internal::{IntoArcTensor, TDim};

use crate::onnx::proto::NodeProto;

/// Corrects the fact about the result of a Div or a Mod. The corrected fact has elements only if
/// they agree with ONNX.
pub(crate) fn settled(
    node: &NodeProto,
    inputs: &[Option<InferenceFact>],
    result: InferenceFact,
) -> InferenceFact {
    let Some(division) = IntegerDivision::from_node(node) else {
        return result;
    };
    let value = result.value.concretize();
    if !value.is_some_and(|value| value.datum_type().is_tdim()) {
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
    division
        .compute(&a, &b)
        .unwrap_or_else(|| result.without_value())
}

/// A division of integers in ONNX.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IntegerDivision {
    /// The quotient, rounded towards 0.
    Quotient,
    /// The remainder with the sign of the divisor.
    FlooredRemainder,
    /// The remainder with the sign of the dividend.
    TruncatedRemainder,
}

impl IntegerDivision {
    fn from_node(node: &NodeProto) -> Option<Self> {
        match node.op() {
            ("", "Div") => Some(Self::Quotient),
            ("", "Mod") if node.attr_i("fmod").ok().flatten().unwrap_or(0) == 0 => {
                Some(Self::FlooredRemainder)
            }
            ("", "Mod") => Some(Self::TruncatedRemainder),
            _ => None,
        }
    }

    /// The quotients or remainders of two tensors.
    fn compute(self, a: &Formulas, b: &Formulas) -> Option<InferenceFact> {
        let shape = crate::recipe::broadcast(a.shape(), b.shape())?;
        let (a, b) = (a.broadcast(shape.clone())?, b.broadcast(shape.clone())?);
        let results = a.iter().zip(b.iter()).map(|(a, b)| self.apply(a, b));
        let results = results.collect::<Option<Vec<_>>>()?;
        let results = Formulas::from_shape_vec(shape, results).ok()?;
        InferenceFact::try_from(Tensor::from(results).into_arc_tensor()).ok()
    }

    fn apply(self, a: &TDim, b: &TDim) -> Option<TDim> {
        if self == Self::Quotient {
            if let Some(rest) = without(a, b) {
                return Some(rest);
            }
            if let (TDim::Val(divisor @ 1..), true) = (b, a.to_i64().is_err()) {
                return towards_zero(a, divisor.unsigned_abs());
            }
        }
        let (a, b) = (a.to_i64().ok()?, b.to_i64().ok()?);
        let rest = a.checked_rem(b)?;
        let result = match self {
            Self::Quotient => a.checked_div(b)?,
            Self::FlooredRemainder if rest != 0 && (rest < 0) != (b < 0) => rest + b,
            Self::FlooredRemainder | Self::TruncatedRemainder => rest,
        };
        Some(TDim::from(result))
    }
}

/// Whether symbolic extents are divided by a negative number. tract would treat it as a huge
/// positive one.
pub(crate) fn has_negative_divisor(node: &NodeProto, inputs: &[Option<InferenceFact>]) -> bool {
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

/// The quotient of a number by `divisor`, rounded towards 0. `None` unless the number is known to
/// be larger than `-divisor`. Negative numbers above `-divisor` give 0.
fn towards_zero(number: &TDim, divisor: u64) -> Option<TDim> {
    let is_near = least(number)? > -i64::try_from(divisor).ok()?;
    is_near.then(|| TDim::Max(vec![TDim::from(0), number.clone() / divisor]).simplify())
}

/// A product of extents without one of its factors, such as `b·n` without `n`. The factor may be
/// assumed not to be 0, because otherwise the division is undefined. `None` if `factor` is a
/// number, or not a factor of the product.
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

/// Whether a number that is computed from extents is known to be 0 or larger.
fn is_natural(dim: &TDim) -> bool {
    least(dim).is_some_and(|least| least >= 0)
}

/// A lower bound of a number that is computed from extents.
fn least(dim: &TDim) -> Option<i64> {
    match dim {
        TDim::Val(value) => Some(*value),
        // An extent is never negative.
        TDim::Sym(_) => Some(0),
        TDim::MulInt(factor, inner) if *factor >= 0 => least(inner)?.checked_mul(*factor),
        TDim::Mul(factors) if factors.iter().all(is_natural) => Some(0),
        TDim::Div(inner, _) if is_natural(inner) => Some(0),
        TDim::Max(terms) => terms.iter().filter_map(least).max(),
        TDim::Min(terms) => terms.iter().map(least).min().flatten(),
        TDim::Add(terms) => least_of_sum(terms),
        _ => None,
    }
}

/// A term `±q(n/q)` of a sum, where `n/q` is an integer quotient.
struct WholeQuotient {
    place: usize,
    dividend: TDim,
    divisor: u64,
    is_subtracted: bool,
}

impl WholeQuotient {
    fn from_term(place: usize, term: &TDim) -> Option<Self> {
        let TDim::MulInt(factor, inner) = term else {
            return None;
        };
        let TDim::Div(dividend, divisor) = &**inner else {
            return None;
        };
        let is_whole = is_natural(dividend) && factor.unsigned_abs() == *divisor;
        is_whole.then(|| Self {
            place,
            dividend: (**dividend).clone(),
            divisor: *divisor,
            is_subtracted: *factor < 0,
        })
    }
}

/// Like [`least`], for a sum. A remainder `n − q(n/q)` in the sum is at least 0 and at most `q −
/// 1`.
fn least_of_sum(terms: &[TDim]) -> Option<i64> {
    let mut terms: Vec<&TDim> = terms.iter().collect();
    let mut sum = 0_i64;
    while let Some(quotient) = terms
        .iter()
        .enumerate()
        .find_map(|(place, term)| WholeQuotient::from_term(place, term))
    {
        // If the dividend is a sum, its parts are separate terms of the outer sum.
        let parts = match quotient.dividend {
            TDim::Add(parts) => parts,
            dividend => vec![dividend],
        };
        terms.remove(quotient.place);
        for part in parts {
            let part = if quotient.is_subtracted {
                part
            } else {
                part * -1
            };
            terms.remove(terms.iter().position(|term| **term == part)?);
        }
        if !quotient.is_subtracted {
            sum = sum.checked_sub(i64::try_from(quotient.divisor).ok()? - 1)?;
        }
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
    fn factor_is_divided_out_of_a_product() {
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
    fn nonnegative_extent_formulas_are_recognized() {
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
