//! The exit codes of commands.

/// The meaning of each exit code, for the help text.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  done; also where there was nothing to fold; the models are proved to be the same
  1  a file could not be read, is no valid model, or could not be written
  2  the command line was not understood
  3  the folded model computes something else; nothing was written
  4  it could not be decided: by prove, or by fuse with --verify require; nothing was written
  130  interrupted; what was there is left, or the result is complete";

/// The ways in which a command ends without an error, by exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Done = 0,
    /// Something failed, and the reason was printed.
    Failed = 1,
    Differs = 3,
    Unverified = 4,
    /// Ended by Ctrl-C; the code follows the convention of shells.
    Interrupted = 130,
}

impl End {
    /// The exit code of several models. A wrong result is worse than a failure, and a failure is
    /// worse than an undecided result.
    pub fn worst(ends: impl IntoIterator<Item = Self>) -> Self {
        ends.into_iter()
            .max_by_key(|end| end.severity())
            .unwrap_or(Self::Done)
    }

    fn severity(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Unverified => 1,
            Self::Failed => 2,
            Self::Differs => 3,
            Self::Interrupted => 4,
        }
    }
}
