//! Parses values of options: numbers with a minimum, and paths of files and folders.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PathBufValueParser, TypedValueParser};

/// Parses a nonnegative number.
pub(super) fn from_zero(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("not a number from 0 on".to_owned()),
    }
}

/// Parses a positive count.
pub(super) fn from_one(text: &str) -> Result<NonZeroUsize, String> {
    let count: usize = text
        .parse()
        .map_err(|_| "not a whole number from 1 on".to_owned())?;
    NonZeroUsize::new(count).ok_or_else(|| "0 is too few: at least 1".to_owned())
}

/// The maximum number of threads. More threads would not be faster on any machine.
const THREADS: usize = 1024;

/// Parses a number of threads.
pub(super) fn threads(text: &str) -> Result<NonZeroUsize, String> {
    match from_one(text)? {
        count if count.get() > THREADS => Err(format!("{count} are too many: at most {THREADS}")),
        count => Ok(count),
    }
}

/// Parses a positive duration in seconds.
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    let given = text.parse().ok().filter(|&seconds| seconds > 0.0);
    let possible = given.filter(|&seconds| Duration::try_from_secs_f64(seconds).is_ok());
    possible.ok_or_else(|| "not a number of seconds above 0".to_owned())
}

/// Refuses `-` as the name of a file.
pub(super) fn named(text: &str) -> Result<String, String> {
    match text {
        "-" => Err("standard streams are neither read nor written; name a file".to_owned()),
        name => Ok(name.to_owned()),
    }
}

/// A parser for the name of a file.
pub(super) fn file() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path.to_str().map(named) {
        Some(Err(reason)) => Err(reason),
        _ => Ok(path),
    })
}

/// A parser for an existing folder.
pub(super) fn folder() -> impl TypedValueParser<Value = PathBuf> {
    file().try_map(|path| {
        if path.is_dir() {
            Ok(path)
        } else {
            Err("there is no such folder")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_values_are_range_checked() {
        assert_eq!((from_zero("0"), from_zero("2.5")), (Ok(0.0), Ok(2.5)));
        assert!(
            ["-1", "nan", "inf", "x"]
                .into_iter()
                .all(|text| from_zero(text).is_err())
        );
        assert_eq!(from_one("3").map(NonZeroUsize::get), Ok(3));
        assert_eq!(from_one("0"), Err("0 is too few: at least 1".to_owned()));
        assert!(
            ["-1", "1.5", ""]
                .into_iter()
                .all(|text| from_one(text).is_err())
        );
        assert_eq!(threads("1024").map(NonZeroUsize::get), Ok(1024));
        assert_eq!(
            threads("1025"),
            Err("1025 are too many: at most 1024".to_owned())
        );
        assert_eq!(seconds("0.5"), Ok(0.5));
        assert!(
            ["0", "-1", "nan", "1e30", "x"]
                .into_iter()
                .all(|text| seconds(text).is_err())
        );
    }
}
