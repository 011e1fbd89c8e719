//! Evaluates names of symbolic dimensions that are formulas over other names. Exporters write such
//! names, for example `past_sequence_length + sequence_length` for the total length of a cache and
//! new tokens, or `2*s` and `((4*s86)//s10)`.
//!
//! The text comes from a file and may be anything. If tract read it as a symbolic formula, it could
//! cause a division by 0 or an endless expansion of products. Here the sizes of all symbols are
//! known, so plain integer arithmetic suffices.

use std::borrow::Cow;
use std::collections::HashMap;

/// The maximum length of a formula, in bytes.
const LONGEST: usize = 200;

/// Evaluates a formula with the sizes of other names. `None` if the name is not a formula, if a
/// name in it has no size, or if the value is not positive.
pub(super) fn size(name: &str, sizes: &HashMap<Cow<str>, usize>) -> Option<usize> {
    let size = Calculation {
        rest: text(name)?,
        known: &|symbol| i64::try_from(*sizes.get(symbol)?).ok(),
    }
    .whole()?;
    usize::try_from(size).ok().filter(|&size| size > 0)
}

/// Whether a name parses as a formula. The sizes of its symbols do not matter.
#[cfg(any(test, feature = "prove"))]
pub(crate) fn is_formula(name: &str) -> bool {
    text(name).is_some_and(|rest| {
        Calculation {
            rest,
            known: &|_| Some(1),
        }
        .whole()
        .is_some()
    })
}

/// Returns the name if it may be a formula: it contains an arithmetic operator, and is at most
/// [`LONGEST`] bytes long.
fn text(name: &str) -> Option<&str> {
    Some(name).filter(|name| name.len() <= LONGEST && name.contains(['+', '-', '*', '/']))
}

struct Calculation<'f> {
    rest: &'f str,
    known: &'f dyn Fn(&str) -> Option<i64>,
}

impl Calculation<'_> {
    fn whole(&mut self) -> Option<i64> {
        let sum = self.sum()?;
        self.rest.is_empty().then_some(sum)
    }

    fn sum(&mut self) -> Option<i64> {
        let mut sum = self.product()?;
        loop {
            sum = if self.takes("+") {
                sum.checked_add(self.product()?)?
            } else if self.takes("-") {
                sum.checked_sub(self.product()?)?
            } else {
                return Some(sum);
            };
        }
    }

    fn product(&mut self) -> Option<i64> {
        let mut product = self.factor()?;
        loop {
            if self.takes("*") {
                product = product.checked_mul(self.factor()?)?;
            } else if self.takes("//") || self.takes("/") {
                // `/` and `//` are both integer division.
                let divisor = self.factor().filter(|&divisor| divisor > 0)?;
                product = product.div_euclid(divisor);
            } else {
                return Some(product);
            }
        }
    }

    fn factor(&mut self) -> Option<i64> {
        if self.takes("(") {
            let sum = self.sum()?;
            return self.takes(")").then_some(sum);
        }
        self.rest = self.rest.trim_start();
        let end = self
            .rest
            .find(|c: char| !(c.is_alphanumeric() || "_.".contains(c)))
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        if word.is_empty() {
            return None;
        }
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            word.parse().ok()
        } else {
            (self.known)(word)
        }
    }

    /// Skips `sign` if the remaining text starts with it. Returns whether it skipped `sign`.
    fn takes(&mut self, sign: &str) -> bool {
        let rest = self.rest.trim_start().strip_prefix(sign);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimension_formulas_are_evaluated() {
        let sizes = HashMap::from([
            ("past_length".into(), 5),
            ("s".into(), 3),
            ("batch/head".into(), 8),
        ]);
        let cases = [
            ("s + past_length", 8),
            ("2*s - 1", 5),
            ("3*s/2", 4),
            ("((4*s)//past_length)", 2),
            ("2 * (s+1)", 8),
            // Products bind more strongly than sums, and both are left-associative.
            ("s*past_length/3", 5),
            ("1+2*s", 7),
            ("9-s-1", 5),
        ];
        for (name, expected) in cases {
            assert_eq!(size(name, &sizes), Some(expected), "{name}");
        }
    }

    #[test]
    fn invalid_dimension_formulas_have_no_size() {
        let sizes = HashMap::from([("s".into(), 3)]);
        let names = [
            "s",
            "s + t",
            "batch/head",
            "3*s - 9",
            "s/0",
            "s//0",
            "s +",
            "(s+1",
            "s 1",
            "+",
            "1e9*s",
        ];
        assert_eq!(names.map(|name| size(name, &sizes)), [None; 11]);
        let huge = vec!["9999999999"; 15].join("*");
        assert_eq!(size(&huge, &sizes), None);
        assert_eq!(size(&"(".repeat(10_000), &sizes), None);
        assert_eq!(
            ["a + b", "s/3", "N", "1*"].map(is_formula),
            [true, true, false, false]
        );
    }
}
