//! The range of the values of a function of one variable `z`.
//!
//! The function is read operator by operator. Each value has an interval, and a growth with `z`. A
//! quotient of two functions that grow alike, such as `z/√(z²+1)`, is bounded although their
//! intervals are not.

use crate::analysis::node_view::At;

/// The growth `factor·|z|^degree`, which bounds the magnitude of a function of `z`.
#[derive(Debug, Clone, Copy)]
struct Pace {
    factor: f64,
    degree: f64,
}

impl Pace {
    fn times(self, other: Pace) -> Pace {
        Pace {
            factor: self.factor * other.factor,
            degree: self.degree + other.degree,
        }
    }

    /// The growth with the higher degree.
    fn faster(self, other: Pace) -> Pace {
        if self.degree >= other.degree {
            self
        } else {
            other
        }
    }

    fn raised(self, exponent: f64) -> Pace {
        Pace {
            factor: self.factor.powf(exponent),
            degree: self.degree * exponent,
        }
    }
}

/// Raises a growth to a power.
fn raised(pace: Option<Pace>, exponent: f64) -> Option<Pace> {
    pace.map(|pace| pace.raised(exponent))
}

/// The growth of a product; `None` if the growth of a factor is unknown.
fn product(one: Option<Pace>, other: Option<Pace>) -> Option<Pace> {
    Some(one?.times(other?))
}

/// The product of two ends of intervals. 0 times an infinite end is 0.
fn product_of_ends(one: f64, other: f64) -> f64 {
    if one == 0.0 || other == 0.0 {
        0.0
    } else {
        one * other
    }
}

/// The range of a function over all values of its variable.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// A lower bound of all values.
    pub low: f64,
    /// An upper bound of all values.
    pub high: f64,
    /// A growth that the magnitude of the function does not exceed for any `z`, if one is known.
    most: Option<Pace>,
    /// A growth that the magnitude of the function reaches or exceeds for each `z`, if one is
    /// known.
    least: Option<Pace>,
}

impl Bounds {
    /// The variable itself.
    pub(super) const VARIABLE: Bounds = {
        let itself = Some(Pace {
            factor: 1.0,
            degree: 1.0,
        });
        Bounds {
            low: f64::NEG_INFINITY,
            high: f64::INFINITY,
            most: itself,
            least: itself,
        }
    };

    /// A constant.
    pub(super) fn number(number: f64) -> Bounds {
        let pace = Some(Pace {
            factor: number.abs(),
            degree: 0.0,
        });
        Bounds {
            low: number,
            high: number,
            most: pace,
            least: pace.filter(|pace| pace.factor > 0.0),
        }
    }

    fn is_number(self) -> bool {
        self.low == self.high
    }

    fn within(low: f64, high: f64) -> Bounds {
        Bounds {
            low,
            high,
            most: None,
            least: None,
        }
    }

    /// The range after the function `grows` is applied, which increases with its argument.
    fn image(self, grows: fn(f64) -> f64) -> Bounds {
        Bounds::within(grows(self.low), grows(self.high))
    }

    fn negated(self) -> Bounds {
        Bounds {
            low: -self.high,
            high: -self.low,
            ..self
        }
    }

    fn magnitude(self) -> Bounds {
        let low = self.low.max(-self.high).max(0.0);
        Bounds {
            low,
            high: self.high.max(-self.low),
            ..self
        }
    }

    fn plus(self, other: Bounds) -> Bounds {
        let have_one_sign = self.low.min(other.low) >= 0.0 || self.high.max(other.high) <= 0.0;
        let least = match (self.least, other.least) {
            (Some(one), Some(other)) => Some(one.faster(other)),
            (one, other) => one.or(other),
        };
        Bounds {
            least: least.filter(|_| have_one_sign),
            ..Bounds::within(self.low + other.low, self.high + other.high)
        }
    }

    fn times(self, other: Bounds) -> Bounds {
        let ends = [
            product_of_ends(self.low, other.low),
            product_of_ends(self.low, other.high),
            product_of_ends(self.high, other.low),
            product_of_ends(self.high, other.high),
        ];
        let bounds = Bounds {
            low: ends.into_iter().fold(f64::INFINITY, f64::min),
            high: ends.into_iter().fold(f64::NEG_INFINITY, f64::max),
            most: product(self.most, other.most),
            least: product(self.least, other.least),
        };
        bounds.settled()
    }

    /// If the upper bound of the function's magnitude is a constant, limits the function's interval
    /// by this bound.
    fn settled(self) -> Bounds {
        match self.most {
            Some(Pace {
                factor,
                degree: 0.0,
            }) => Bounds {
                low: self.low.max(-factor),
                high: self.high.min(factor),
                ..self
            },
            _ => self,
        }
    }

    fn inverse(self) -> Option<Bounds> {
        let has_one_sign = self.low > 0.0 || self.high < 0.0;
        has_one_sign.then(|| Bounds {
            low: 1.0 / self.high,
            high: 1.0 / self.low,
            most: raised(self.least, -1.0),
            least: raised(self.most, -1.0),
        })
    }

    fn square(self) -> Bounds {
        let Bounds { low, high, .. } = self.magnitude();
        Bounds {
            low: low * low,
            high: high * high,
            most: raised(self.most, 2.0),
            least: raised(self.least, 2.0),
        }
    }

    fn root(self) -> Option<Bounds> {
        (self.low >= 0.0).then(|| Bounds {
            most: raised(self.most, 0.5),
            least: raised(self.least, 0.5),
            ..self.image(f64::sqrt)
        })
    }

    fn clipped(self, low: f64, high: f64) -> Option<Bounds> {
        let clipped = Bounds::within(self.low.max(low).min(high), self.high.min(high).max(low));
        (low <= high).then_some(Bounds {
            most: self.most.filter(|_| low <= 0.0 && high >= 0.0),
            ..clipped
        })
    }
}

/// The range of a node's result for inputs in these ranges. `None` for an unknown operator.
pub(super) fn bounds(at: &At, inputs: &[Bounds]) -> Option<Bounds> {
    match (at.proto().op_type(), inputs) {
        ("Identity" | "Cast", &[one]) => Some(one),
        ("Neg", &[one]) => Some(one.negated()),
        ("Abs", &[one]) => Some(one.magnitude()),
        ("Sign" | "Erf" | "Tanh" | "Softsign" | "Sin" | "Cos", &[_]) => {
            Some(Bounds::within(-1.0, 1.0))
        }
        ("Sigmoid", &[_]) => Some(Bounds::within(0.0, 1.0)),
        ("Atan", &[one]) => Some(one.image(f64::atan)),
        ("Exp", &[one]) => Some(one.image(f64::exp)),
        ("Log", &[one]) => (one.low > 0.0).then(|| one.image(f64::ln)),
        ("Sqrt", &[one]) => one.root(),
        ("Reciprocal", &[one]) => one.inverse(),
        ("Pow", &[one, exponent]) if exponent.is_number() => match exponent.low {
            2.0 => Some(one.square()),
            0.5 => one.root(),
            -0.5 => one.root()?.inverse(),
            -1.0 => one.inverse(),
            _ => None,
        },
        ("Add", &[one, other]) => Some(one.plus(other)),
        ("Sub", &[one, other]) => Some(one.plus(other.negated())),
        ("Mul", &[one, _]) if at.input(0).ok() == at.input(1).ok() => Some(one.square()),
        ("Mul", &[one, other]) => Some(one.times(other)),
        ("Div", &[one, other]) => Some(one.times(other.inverse()?)),
        ("Min", &[one, other]) => Some(Bounds::within(
            one.low.min(other.low),
            one.high.min(other.high),
        )),
        ("Max", &[one, other]) => Some(Bounds::within(
            one.low.max(other.low),
            one.high.max(other.high),
        )),
        ("Clip", &[one]) => {
            let low = at.attr_float("min", f32::MIN).ok()?;
            let high = at.attr_float("max", f32::MAX).ok()?;
            one.clipped(low, high)
        }
        // With two inputs, it is unknown whether the second is the lower or the upper bound, so
        // such a Clip has no known range.
        ("Clip", &[one, low, high]) if low.is_number() && high.is_number() => {
            one.clipped(low.low, high.high)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const Z: Bounds = Bounds::VARIABLE;

    fn one() -> Bounds {
        Bounds::number(1.0)
    }

    #[test]
    fn quotient_of_equal_growth_is_bounded() {
        let root = Z.square().plus(one()).root().unwrap();
        let quotient = Z.times(root.inverse().unwrap());
        assert_eq!((quotient.low, quotient.high), (-1.0, 1.0));
        let quotient = Z.times(Z.magnitude().plus(one()).inverse().unwrap());
        assert_eq!((quotient.low, quotient.high), (-1.0, 1.0));
    }

    #[test]
    fn quotient_of_unequal_or_unknown_growth_is_unbounded() {
        let root = Z.magnitude().plus(one()).root().unwrap();
        assert_eq!(Z.times(root.inverse().unwrap()).high, f64::INFINITY);
        // It is unknown whether z² − z grows, and z² has a zero, so neither has an inverse.
        assert!(Z.square().plus(Z.negated()).inverse().is_none());
        assert!(Z.square().inverse().is_none());
    }

    #[test]
    fn products_images_and_clips_of_bounded_values_are_bounded() {
        let falls = Z
            .magnitude()
            .negated()
            .image(f64::exp)
            .plus(Bounds::number(-1.0));
        let product = Bounds::within(-1.0, 1.0).times(falls);
        assert_eq!((product.low, product.high), (-1.0, 1.0));
        let arc = Z.image(f64::atan).times(Bounds::number(2.0));
        assert_eq!(arc.high, std::f64::consts::PI);
        assert_eq!(Z.clipped(-1.0, 0.5).unwrap().square().high, 1.0);
    }
}
