//! The exceptions of the package.

use std::io;

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::cli::causes;
use crate::cli::output_path::NoFolder;
use crate::error::Error;
use crate::report::plain;

create_exception!(
    unfold_onnx,
    UnfoldError,
    PyException,
    "The base class of all errors of unfold."
);
create_exception!(
    unfold_onnx,
    InvalidModelError,
    UnfoldError,
    "The model is not a valid ONNX model."
);
create_exception!(
    unfold_onnx,
    ExternalDataError,
    UnfoldError,
    "The external data of a tensor cannot be read."
);
create_exception!(
    unfold_onnx,
    TooLargeError,
    UnfoldError,
    "The model exceeds 2 GiB, the limit of a protobuf message."
);
create_exception!(
    unfold_onnx,
    CertificateError,
    UnfoldError,
    "A certificate cannot be used."
);
create_exception!(
    unfold_onnx,
    DiffersError,
    UnfoldError,
    "The folded model computes another function, and is not returned."
);
create_exception!(
    unfold_onnx,
    UnverifiedError,
    UnfoldError,
    "Verification was required, but could not decide whether the folded model computes the same function."
);
create_exception!(
    unfold_onnx,
    InternalError,
    UnfoldError,
    "A defect of unfold itself."
);

/// A result that was not returned because it differs, or because no check could decide.
#[derive(Debug, thiserror::Error)]
pub(super) enum Withheld {
    #[error("{0}")]
    Differs(String),
    #[error("{0}")]
    Unverified(String),
}

/// An option with an invalid value.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct BadOption(pub String);

/// The operating system's error number for a missing file. Python selects the exception by this
/// number.
const NOT_FOUND: i32 = 2;

/// The Python exception for an error.
pub(super) fn raised(error: &anyhow::Error) -> PyErr {
    let text = plain(&causes(error));
    match error.downcast_ref::<Withheld>() {
        Some(Withheld::Differs(_)) => return DiffersError::new_err(text),
        Some(Withheld::Unverified(_)) => return UnverifiedError::new_err(text),
        None => {}
    }
    if error.is::<BadOption>() {
        return PyValueError::new_err(with_keywords(&text));
    }
    if let Some(NoFolder { path, folder }) = error.downcast_ref() {
        let said = plain(&format!("there is no folder {}", folder.display()));
        return PyOSError::new_err((NOT_FOUND, said, path.as_os_str().to_owned()));
    }
    match error.downcast_ref::<Error>() {
        Some(Error::Io { path, source }) => of_system(path, source, text),
        Some(
            Error::NotOnnx { .. }
            | Error::Truncated { .. }
            | Error::Decode { .. }
            | Error::UnknownField { .. }
            | Error::Tensor { .. }
            | Error::Attribute { .. }
            | Error::Graph { .. }
            | Error::Cycle { .. }
            | Error::Text { .. },
        ) => InvalidModelError::new_err(text),
        Some(Error::ExternalData { .. }) => ExternalDataError::new_err(text),
        Some(Error::TooLarge { .. }) => TooLargeError::new_err(text),
        Some(Error::Certificate { .. }) => CertificateError::new_err(text),
        Some(
            Error::Skip { .. }
            | Error::StopAfter { .. }
            | Error::NoPass { .. }
            | Error::Power { .. }
            | Error::Fix { .. },
        ) => PyValueError::new_err(with_keywords(&text)),
        Some(Error::Defect { .. }) => InternalError::new_err(text),
        Some(Error::StreamMagnitude { .. }) | None => UnfoldError::new_err(text),
    }
}

/// A message in which the options of the command line have the names of their keyword arguments.
fn with_keywords(text: &str) -> String {
    let words: Vec<String> = text.split(' ').map(with_keyword).collect();
    words.join(" ")
}

/// Replaces an option by its keyword argument, for example `--dim:` by `dims:`.
fn with_keyword(word: &str) -> String {
    let Some(option) = word.strip_prefix("--") else {
        return word.to_owned();
    };
    let end = option.find(|letter: char| !letter.is_alphanumeric() && letter != '-');
    let (name, rest) = option.split_at(end.unwrap_or(option.len()));
    let keyword = match name {
        "dim" => "dims".to_owned(),
        "reference" => "references".to_owned(),
        name => name.replace('-', "_"),
    };
    keyword + rest
}

/// The exception that Python itself would raise, such as `FileNotFoundError`, with the name of the
/// file.
fn of_system(path: &std::path::Path, source: &io::Error, text: String) -> PyErr {
    match source.raw_os_error() {
        Some(number) => {
            let said = source.to_string();
            let said = said
                .split(" (os error")
                .next()
                .unwrap_or_default()
                .to_owned();
            PyOSError::new_err((number, said, path.as_os_str().to_owned()))
        }
        None => PyOSError::new_err(text),
    }
}

#[cfg(test)]
mod tests {
    use super::with_keywords;

    #[test]
    fn options_have_the_names_of_keyword_arguments() {
        for (line, words) in [
            ("--dim: no input has `bach`", "dims: no input has `bach`"),
            (
                "--batch and --dim give the same dimension a size",
                "batch and dims give the same dimension a size",
            ),
            ("--fix `n`: too small", "fix `n`: too small"),
            ("--scale-stream 2^-50", "scale_stream 2^-50"),
            ("2^-1 to 2^-40", "2^-1 to 2^-40"),
        ] {
            assert_eq!(with_keywords(line), words);
        }
    }
}
