//! Writes paths in JSON.

use std::path::Path;

use serde::{Serialize, Serializer};

/// A path in JSON. Invalid UTF-8 is replaced as in the text output.
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(transparent))]
pub(super) struct JsonPath<'p>(#[cfg_attr(test, schemars(with = "String"))] pub &'p Path);

impl Serialize for JsonPath<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0.display())
    }
}
