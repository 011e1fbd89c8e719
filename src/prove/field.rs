//! The field of integers modulo a prime, in which a proof computes.

use std::sync::LazyLock;

use rayon::prelude::*;

/// The prime. It is 3 modulo 4, as [`root`] requires. All numbers up to 46 are squares, so that the
/// root of the square of a number with only such factors is that number. `(P − 1)/2` is a prime
/// too, so that no two powers of 2 in the range of floats are equal. `docs/proof.md` explains it.
pub(super) const P: u64 = (1 << 31) - 819_129;

/// The number of elements whose inverses are computed together.
const TOGETHER: usize = 1 << 12;

/// The element for a number.
pub(super) fn reduce(number: u64) -> u32 {
    (number % P) as u32
}

/// `a + b`
pub(super) fn add(a: u32, b: u32) -> u32 {
    let sum = a + b;
    if u64::from(sum) >= P {
        sum - P as u32
    } else {
        sum
    }
}

/// `−a`
pub(super) fn neg(a: u32) -> u32 {
    if a == 0 { 0 } else { P as u32 - a }
}

/// `a − b`
pub(super) fn sub(a: u32, b: u32) -> u32 {
    add(a, neg(b))
}

/// `a · b`
pub(super) fn mul(a: u32, b: u32) -> u32 {
    reduce(u64::from(a) * u64::from(b))
}

/// `a` to the power of `exponent`
pub(super) fn pow(a: u32, mut exponent: u64) -> u32 {
    let (mut square, mut power) = (a, 1);
    while exponent > 0 {
        if exponent & 1 == 1 {
            power = mul(power, square);
        }
        square = mul(square, square);
        exponent >>= 1;
    }
    power
}

/// `1/a`. `None` for 0.
pub(super) fn inverse(a: u32) -> Option<u32> {
    (a != 0).then(|| pow(a, P - 2))
}

/// `√a` or `√(−a)`, of which exactly one exists for a ≠ 0. The root of a product is the product of
/// the roots.
pub(super) fn root(a: u32) -> u32 {
    pow(a, P.div_ceil(4))
}

/// `√a` or `−√(−a)`: like [`root`], except that the root of −1 is −1.
pub(super) fn odd_root(a: u32) -> u32 {
    pow(a, (3 * P - 1) / 4)
}

/// Inverts all elements. `None` if one is 0.
pub(super) fn invert(elements: &mut [u32]) -> Option<()> {
    elements.par_chunks_mut(TOGETHER).try_for_each(|part| {
        // Computes one inverse of the product of all elements, and splits it from the last element
        // to the first.
        let before: Vec<u32> = part
            .iter()
            .scan(1, |product, &element| {
                Some(std::mem::replace(product, mul(*product, element)))
            })
            .collect();
        let last = part.last().zip(before.last());
        let mut rest = last.map_or(Some(1), |(&last, &before)| inverse(mul(last, before)))?;
        for (element, before) in part.iter_mut().zip(before).rev() {
            let own = mul(rest, before);
            rest = mul(rest, *element);
            *element = own;
        }
        Some(())
    })
}

/// The image of an integer.
pub(super) fn of_int(number: i64) -> u32 {
    number.rem_euclid(P as i64) as u32
}

/// The exponent of the smallest power of 2 that a float64 may have as a factor.
const LOWEST: i32 = -1074;

/// The image of a float, which is an integer times a power of 2. `None` if it is not finite.
pub(super) fn of_float(number: f64) -> Option<u32> {
    static POWERS: LazyLock<Vec<u32>> = LazyLock::new(|| {
        let first = pow((P as u32).div_ceil(2), LOWEST.unsigned_abs().into());
        std::iter::successors(Some(first), |&power| Some(add(power, power)))
            .take(2048)
            .collect()
    });
    if !number.is_finite() {
        return None;
    }
    let (bits, fraction) = (number.to_bits(), (1 << 52) - 1);
    let (exponent, digits) = ((bits >> 52 & 0x7ff) as usize, bits & fraction);
    let digits = if exponent == 0 {
        digits
    } else {
        digits | (fraction + 1)
    };
    let size = mul(reduce(digits), POWERS[exponent.saturating_sub(1)]);
    Some(if number < 0.0 { neg(size) } else { size })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_prime(number: u64) -> bool {
        number > 1
            && (2..)
                .take_while(|d| d * d <= number)
                .all(|d| !number.is_multiple_of(d))
    }

    #[test]
    fn prime_separates_powers_of_two_and_has_square_roots() {
        assert!(is_prime(P) && is_prime((P - 1) / 2) && P % 4 == 3);
        for number in 1..=46 {
            assert_eq!(root(mul(number, number)), number);
            assert_eq!(
                root(of_float(f64::from(number * number) / 1024.0).unwrap()),
                of_float(f64::from(number) / 32.0).unwrap()
            );
        }
        let mut powers: Vec<_> = (LOWEST..1024)
            .map(|e| of_float(f64::from(e).exp2()).unwrap())
            .collect();
        powers.sort_unstable();
        powers.dedup();
        assert_eq!(powers.len(), 2098);
    }

    #[test]
    fn field_images_preserve_sums_and_products() {
        let numbers = [
            0.0,
            1.0,
            -1.0,
            0.1,
            -1.75,
            3.5e-20,
            1.0 / 3.0,
            123456.789,
            -65504.0,
            2f64.powi(40),
        ];
        let image = |number: f64| of_float(number).unwrap();
        for (a, b) in numbers.iter().flat_map(|&a| numbers.map(|b| (a, b))) {
            let (a, b) = (f64::from(a as f32), f64::from(b as f32));
            assert_eq!(image(a * b), mul(image(a), image(b)), "{a} · {b}");
            let (a, b) = ((a * 1024.0).round(), (b * 1024.0).round());
            assert_eq!(image(a + b), add(image(a), image(b)), "{a} + {b}");
            assert_eq!(image(a - b), sub(image(a), image(b)), "{a} − {b}");
        }
        assert_eq!(image(-3.0), of_int(-3));
        assert_eq!(image(5e-324), inverse(pow(2, 1074)).unwrap());
        assert_eq!([f64::NAN, f64::INFINITY].map(of_float), [None, None]);
    }

    #[test]
    fn inverses_and_roots_undo_products_and_squares() {
        let mut elements: Vec<u32> = (1..10_000).map(|i| mul(i, 214_013)).collect();
        let before = elements.clone();
        invert(&mut elements).unwrap();
        assert!(before.iter().zip(&elements).all(|(&a, &b)| mul(a, b) == 1));
        assert_eq!(invert(&mut [3, 0, 5]), None);
        for (&a, &b) in before.iter().zip(&elements).take(200) {
            let square = mul(root(a), root(a));
            assert!(square == a || square == neg(a));
            assert_eq!(root(mul(a, b)), mul(root(a), root(b)));
            assert_eq!(inverse(root(a)), Some(root(b)));
        }
    }
}
