//! The field of integers modulo a prime, in which a proof computes.

use std::sync::LazyLock;

use multiversion::multiversion;
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
#[inline(always)]
pub(super) fn add(a: u32, b: u32) -> u32 {
    let sum = a + b;
    if u64::from(sum) >= P {
        sum - P as u32
    } else {
        sum
    }
}

/// `−a`
#[inline(always)]
pub(super) fn neg(a: u32) -> u32 {
    if a == 0 { 0 } else { P as u32 - a }
}

/// `a − b`
#[inline(always)]
pub(super) fn sub(a: u32, b: u32) -> u32 {
    add(a, neg(b))
}

/// `a · b`
pub(super) fn mul(a: u32, b: u32) -> u32 {
    reduce(u64::from(a) * u64::from(b))
}

/// Element-wise arithmetic on slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arithmetic {
    /// `a + b`
    Add,
    /// `a − b`
    Sub,
    /// `a · b`
    Mul,
}

impl Arithmetic {
    /// Computes `into.len()` results. An operand with one element is that element for all results.
    pub(super) fn compute(self, a: &[u32], b: &[u32], into: &mut [u32]) {
        arithmetic(self, a, b, into);
    }
}

#[multiversion(targets = "simd")]
fn arithmetic(operation: Arithmetic, a: &[u32], b: &[u32], into: &mut [u32]) {
    match operation {
        Arithmetic::Add => combine_each(a, b, into, add),
        Arithmetic::Sub => combine_each(a, b, into, sub),
        Arithmetic::Mul => combine_each(a, b, into, folded_product),
    }
}

#[inline(always)]
fn combine_each(a: &[u32], b: &[u32], into: &mut [u32], f: impl Fn(u32, u32) -> u32) {
    match (a, b) {
        (&[a], _) if b.len() != 1 => into.iter_mut().zip(b).for_each(|(to, &b)| *to = f(a, b)),
        (_, &[b]) => into.iter_mut().zip(a).for_each(|(to, &a)| *to = f(a, b)),
        _ => {
            let pairs = a.iter().zip(b);
            into.iter_mut()
                .zip(pairs)
                .for_each(|(to, (&a, &b))| *to = f(a, b));
        }
    }
}

/// `a · b`, without a division, so that a loop of products can be vectorized.
#[inline(always)]
fn folded_product(a: u32, b: u32) -> u32 {
    let product = u64::from(a) * u64::from(b);
    subtracted(folded(folded(folded(product)))) as u32
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
        // Inverts only the product of all elements. Then, from the last element to the first, this
        // inverse times the product of the elements before is the inverse of the element.
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

/// The number of exponents that a float64 may have.
const EXPONENTS: usize = 1 << 11;

/// The images of the powers of 2, by the exponent bits of a float64 whose last digit they are.
static POWERS: LazyLock<[u32; EXPONENTS]> = LazyLock::new(|| {
    let mut power = pow((P as u32).div_ceil(2), LOWEST.unsigned_abs().into());
    std::array::from_fn(|bits| {
        // Subnormal numbers and the smallest normal numbers have the same last digit.
        if bits > 1 {
            power = add(power, power);
        }
        power
    })
});

/// The image of a float, which is an integer times a power of 2. `None` if it is not finite.
pub(super) fn of_float(number: f64) -> Option<u32> {
    number.is_finite().then(|| of_finite(number, &POWERS))
}

/// Writes the images of finite floats.
pub(super) fn of_floats(numbers: &[f64], into: &mut [u32]) {
    of_each(numbers, &POWERS, into);
}

#[multiversion(targets = "simd")]
fn of_each(numbers: &[f64], powers: &[u32; EXPONENTS], into: &mut [u32]) {
    for (image, &number) in into.iter_mut().zip(numbers) {
        *image = of_finite(number, powers);
    }
}

#[inline(always)]
fn of_finite(number: f64, powers: &[u32; EXPONENTS]) -> u32 {
    let (bits, fraction) = (number.to_bits(), (1 << 52) - 1);
    let exponent = (bits >> 52) as usize % EXPONENTS;
    let hidden_digit = if exponent == 0 { 0 } else { fraction + 1 };
    // Two folds leave fewer than 32 bits of the 53 digits.
    let digits = folded(folded(bits & fraction | hidden_digit));
    let product = digits * u64::from(powers[exponent]);
    let size = subtracted(folded(folded(folded(product))));
    let is_negative = bits >> 63 == 1 && size > 0;
    let image = if is_negative { P - size } else { size };
    image as u32
}

/// 2³¹ in the field.
const FOLD: u64 = (1 << 31) - P;

/// A smaller number with the same image: the digits above 2³¹ times the image of 2³¹.
#[inline(always)]
fn folded(number: u64) -> u64 {
    (number >> 31) * FOLD + (number & ((1 << 31) - 1))
}

/// The image of a number below twice the prime.
#[inline(always)]
fn subtracted(number: u64) -> u64 {
    if number >= P { number - P } else { number }
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
    fn arithmetic_on_slices_equals_that_on_elements() {
        let largest = P as u32 - 1;
        let elements = [0, 1, 2, largest, largest - 1, 1 << 30, 819_129, 123_456_789];
        for (operation, scalar) in [
            (Arithmetic::Add, add as fn(u32, u32) -> u32),
            (Arithmetic::Sub, sub),
            (Arithmetic::Mul, mul),
        ] {
            for &number in &elements {
                let mut made = [[0; 8]; 3];
                operation.compute(&[number], &elements, &mut made[0]);
                operation.compute(&elements, &[number], &mut made[1]);
                operation.compute(&elements, &[number; 8], &mut made[2]);
                assert_eq!(made[0], elements.map(|other| scalar(number, other)));
                assert_eq!(made[1], elements.map(|other| scalar(other, number)));
                assert_eq!(made[2], made[1]);
            }
        }
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
    fn images_of_many_floats_match_their_definition() {
        let digits = (0..5_000_u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut numbers: Vec<f64> = digits.map(f64::from_bits).collect();
        numbers.extend([
            0.0,
            -0.0,
            5e-324,
            -5e-324,
            f64::MIN_POSITIVE,
            f64::MAX,
            f64::MIN,
        ]);
        numbers.extend([P as f64, -(P as f64), (P - 1) as f64, 2.0 * P as f64]);
        numbers.retain(|number| number.is_finite());
        let mut images = vec![0; numbers.len()];
        of_floats(&numbers, &mut images);
        for (&number, &image) in numbers.iter().zip(&images) {
            // The digits of the number as an integer, and the power of 2 that scales it.
            let bits = number.to_bits();
            let exponent = (bits >> 52 & 0x7ff) as i64;
            let digits = bits & ((1 << 52) - 1) | u64::from(exponent > 0) << 52;
            let power = exponent.max(1) - 1075;
            let two = if power < 0 { inverse(2).unwrap() } else { 2 };
            let size = mul(reduce(digits), pow(two, power.unsigned_abs()));
            let wanted = if number < 0.0 { neg(size) } else { size };
            assert_eq!(image, wanted, "{number}");
            assert_eq!(of_float(number), Some(wanted));
        }
        assert_eq!(of_float(P as f64), Some(0));
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
