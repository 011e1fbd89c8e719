//! The set of skipped names: exact names and patterns.

use std::collections::HashSet;

use globset::{Glob, GlobSet, GlobSetBuilder};

use crate::affine::recognize::Kind;
use crate::error::{Error, Result};

/// The error of an invalid pattern.
pub(super) fn no_pattern(pattern: &str, error: &globset::Error) -> Error {
    Error::Skip {
        pattern: pattern.to_owned(),
        reason: error.kind().to_string(),
    }
}

/// The set of skipped names.
#[derive(Clone)]
pub(super) struct SkipSet {
    exact: HashSet<String>,
    patterns: GlobSet,
}

impl SkipSet {
    /// Builds the set. An invalid pattern is not an error here, because it may be a name.
    /// [`FuseOptions`](super::FuseOptions) checks it later.
    ///
    /// # Errors
    /// If there are too many patterns for one automaton.
    pub(super) fn new(skip: &[String]) -> Result<Self> {
        let mut set = GlobSetBuilder::new();
        for pattern in skip.iter().filter_map(|pattern| Glob::new(pattern).ok()) {
            set.add(pattern);
        }
        let patterns = set.build().map_err(|error| no_pattern("", &error))?;
        Ok(Self {
            exact: skip.iter().cloned().collect(),
            patterns,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.exact.is_empty()
    }

    /// Whether a name is skipped. Exact names are tested first, because a name may contain
    /// characters of patterns, such as `PN*` and `layers[0]`.
    pub(super) fn is_match(&self, name: &str) -> bool {
        self.exact.contains(name) || self.patterns.is_match(name)
    }

    /// Whether a pass is skipped by its name or by an alias. A pattern may match an alias, but not
    /// the name.
    pub(super) fn skips(&self, name: &str, aliases: &[&str]) -> bool {
        self.exact.contains(name) || aliases.iter().any(|alias| self.is_match(alias))
    }

    pub(super) fn has(&self, name: &str, kind: &Kind) -> bool {
        self.is_match(name) || self.is_match(kind.name)
    }
}
