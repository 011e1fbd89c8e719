//! The goal for the memory of activations that slices must reach.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A goal for the peak of activations.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(into = "String", try_from = "String")]
pub enum MemoryGoal {
    /// A number of bytes.
    Bytes(u64),
    /// A percentage of the peak before slicing.
    Percent(f64),
    /// The lowest peak that slices can reach.
    Min,
}

impl MemoryGoal {
    /// The goal in bytes, if the peak before slicing is `before`.
    pub(crate) fn bytes(self, before: u64) -> u64 {
        match self {
            MemoryGoal::Bytes(bytes) => bytes,
            MemoryGoal::Percent(percent) => (before as f64 * percent / 100.0) as u64,
            MemoryGoal::Min => 0,
        }
    }
}

/// Units of bytes, by powers of 1,000 and of 1,024.
const UNITS: &[(&str, u64)] = &[
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("KB", 1_000),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("B", 1),
    ("", 1),
];

impl FromStr for MemoryGoal {
    type Err = String;

    /// Reads `64MB`, `50%` or `min`.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "min" {
            return Ok(MemoryGoal::Min);
        }
        if let Some(percent) = text.strip_suffix('%') {
            let percent = percent.trim().parse::<f64>().ok();
            return percent
                .filter(|percent| (0.0..=100.0).contains(percent))
                .map(MemoryGoal::Percent)
                .ok_or_else(|| misread(text));
        }
        let (digits, unit) = UNITS
            .iter()
            .find_map(|&(name, unit)| Some((text.strip_suffix(name)?, unit)))
            .ok_or_else(|| misread(text))?;
        let number = digits.trim().parse::<f64>().ok();
        let bytes = number
            .filter(|number| *number >= 0.0)
            .map(|number| number * unit as f64);
        bytes
            .filter(|bytes| *bytes < u64::MAX as f64)
            .map(|bytes| MemoryGoal::Bytes(bytes as u64))
            .ok_or_else(|| misread(text))
    }
}

fn misread(text: &str) -> String {
    format!("`{text}` is neither a size such as 64MB, nor a part such as 50%, nor min")
}

impl fmt::Display for MemoryGoal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryGoal::Bytes(bytes) => write!(f, "{bytes}B"),
            MemoryGoal::Percent(percent) => write!(f, "{percent}%"),
            MemoryGoal::Min => write!(f, "min"),
        }
    }
}

impl From<MemoryGoal> for String {
    fn from(goal: MemoryGoal) -> String {
        goal.to_string()
    }
}

impl TryFrom<String> for MemoryGoal {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// The requested slicing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Slicing {
    /// Slices each region around a large value into this many parts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parts: Option<usize>,
    /// Slices regions at the peak into the fewest parts that bring it under this goal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryGoal>,
    /// Sizes of symbolic dimensions for which the peak is computed. If the first dimension of an
    /// input is not named here, its size is 1.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub expect: BTreeMap<String, usize>,
}

impl Slicing {
    /// Whether any slicing is requested.
    pub(crate) fn is_wanted(&self) -> bool {
        self.parts.is_some() || self.memory.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_goals_round_trip_as_text() {
        let cases = [
            ("64MB", MemoryGoal::Bytes(64_000_000)),
            ("1.5GiB", MemoryGoal::Bytes(3 << 29)),
            ("7", MemoryGoal::Bytes(7)),
            ("50%", MemoryGoal::Percent(50.0)),
            ("min", MemoryGoal::Min),
        ];
        for (text, goal) in cases {
            assert_eq!(text.parse(), Ok(goal), "{text}");
            assert_eq!(goal.to_string().parse(), Ok(goal), "{text}");
        }
        for wrong in ["", "MB", "-1MB", "101%", "x%", "NaN", "64 PB", "1e40GB"] {
            assert!(wrong.parse::<MemoryGoal>().is_err(), "{wrong}");
        }
        assert_eq!(MemoryGoal::Percent(50.0).bytes(9), 4);
    }
}
