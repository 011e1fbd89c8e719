//! Mistakes on the command line that show themselves only once a command has begun.

use unfold::error::Error;

/// The exit code of all mistakes on the command line, whoever finds them.
pub const CODE: u8 = 2;

/// The misunderstood word, and the alternatives.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Misused(pub String);

/// Whether an error is such a mistake: also one that only the library finds, as it knows the names of a model.
pub fn is_misuse(error: &anyhow::Error) -> bool {
    error.is::<Misused>()
        || matches!(
            error.downcast_ref(),
            Some(Error::Skip { .. } | Error::StopAfter { .. } | Error::Fix { .. })
        )
}

/// Such a mistake as the error of a command.
pub fn misused(line: impl Into<String>) -> anyhow::Error {
    Misused(line.into()).into()
}
