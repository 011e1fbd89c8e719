//! Kinds of sites, and their families.

use serde::Serialize;

/// The family of a kind: the formula that the sites of the kind compute at inference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// The statistics are fixed after training. At inference the site is `s·x + t`.
    Offline,
    /// There are no statistics, but a bounded function between two affines.
    Pointwise,
    /// The statistics are computed from the input.
    Online,
    /// Not a normalizer, but a constant scale or a constant shift.
    Scale,
    /// Operators that are linear in one value, parallel or in a row.
    Linear,
}

impl Family {
    /// The formula of a site of this family at inference.
    pub(crate) fn form(self) -> &'static str {
        match self {
            Family::Offline | Family::Scale => "s·x + t",
            Family::Pointwise => "γ·f(αx + s) + β",
            Family::Online => "γ·normalized(x) + β",
            Family::Linear => "L₁(x) + L₂(x), L₂(L₁(x))",
        }
    }
}

/// The kind of a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Kind {
    /// The short name that papers use.
    pub name: &'static str,
    /// The family of the kind.
    pub family: Family,
    /// Whether the last affine of a site is applied to values of magnitude about 1, the results of
    /// a normalization by statistics or of a bounded function.
    #[serde(skip)]
    pub is_bounded: bool,
    /// Whether a site has this kind because of the operators that compute its constants. If only
    /// the results of these operators were stored, the site would be of another kind. For example,
    /// a BN would be any per-channel affine.
    #[serde(skip)]
    pub is_told_by_constants: bool,
}

impl Kind {
    /// A kind with the usual properties of its family.
    pub const fn new(name: &'static str, family: Family) -> Self {
        let is_bounded = matches!(family, Family::Online | Family::Pointwise);
        Self {
            name,
            family,
            is_bounded,
            is_told_by_constants: matches!(family, Family::Offline),
        }
    }
}
