//! The exit codes of commands.

/// The meaning of each exit code, for the help text.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  done; also where there was nothing to fold; the models are proved to be the same
  1  a file could not be read, is no valid model, or could not be written
  2  the command line was not understood
  3  the folded model computes something else; nothing was written; prove has an input that shows it
  4  it could not be decided: by prove, or by fuse with --verify require; nothing was written
  5  prove: the models are proved to be the same up to the rounding of stored tensors
  6  prove: the models are proved to be the same but for casts to narrower types
  130  interrupted; what was there is left, or the result is complete";

/// The ways in which a command ends without an error, by exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Done = 0,
    /// Something failed, and the reason was printed.
    Failed = 1,
    Differs = 3,
    Unverified = 4,
    /// Equal up to the rounding of stored tensors.
    Rounded = 5,
    /// Equal except for casts to narrower types.
    Casts = 6,
    /// Ended by Ctrl-C. Shells use the same code.
    Interrupted = 130,
}

impl End {
    /// The exit code for several models: the worst of their outcomes. A wrong result is worse than
    /// a failure, and a failure is worse than an undecided result.
    pub(crate) fn worst(ends: impl IntoIterator<Item = Self>) -> Self {
        ends.into_iter()
            .max_by_key(|end| end.severity())
            .unwrap_or(Self::Done)
    }

    /// The name of the verdict in a JUnit report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Done => "same",
            Self::Failed => "failed",
            Self::Differs => "different",
            Self::Unverified => "undecided",
            Self::Rounded => "rounded",
            Self::Casts => "casts",
            Self::Interrupted => "interrupted",
        }
    }

    fn severity(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Rounded => 1,
            Self::Casts => 2,
            Self::Unverified => 3,
            Self::Failed => 4,
            Self::Differs => 5,
            Self::Interrupted => 6,
        }
    }
}
