//! Kinds of sites, and their families.

use serde::Serialize;

/// When the statistics of a normalizer are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// Fixed after training: at inference it is `s·x + t`.
    Offline,
    /// No statistics at all: a bounded function between two affines.
    Pointwise,
    /// Computed from the input.
    Online,
    /// No normalizer, but a constant scale.
    Scale,
    /// Operators that are linear in one value, beside each other or in a row.
    Linear,
}

impl Family {
    /// The formula of such a site at inference.
    pub fn form(self) -> &'static str {
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
pub struct Kind {
    /// Short name, as papers write it.
    pub name: &'static str,
    /// Its family.
    pub family: Family,
    /// Whether its last affine is on numbers about as large as 1: the results of a normalization by statistics, or of a
    /// bounded function.
    #[serde(skip)]
    pub is_bounded: bool,
    /// Whether computed constants identify the kind, so that storing them would make it another
    /// one: a BN would be any affine.
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
