//! Usage errors that are found only after a command has begun.

use unfold::error::Error;

/// The exit code of all usage errors.
pub(crate) const CODE: u8 = 2;

/// A usage error. The message names the invalid word and the alternatives.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Misused(pub String);

/// Whether an error is a usage error. The library finds some of these errors, because it knows the
/// names in a model.
pub(crate) fn is_misuse(error: &anyhow::Error) -> bool {
    error.is::<Misused>()
        || matches!(
            error.downcast_ref(),
            Some(Error::Skip { .. } | Error::StopAfter { .. } | Error::Fix { .. })
        )
}

/// Creates a usage error as the error of a command.
pub(crate) fn misused(line: impl Into<String>) -> anyhow::Error {
    Misused(line.into()).into()
}
