//! Command lines that reports print for a shell.

use std::ffi::OsString;

/// A command line as a shell reads it.
pub(super) fn command(words: &[OsString]) -> String {
    let mut command = "unfold".to_owned();
    for word in words {
        command.push(' ');
        command += &quoted(&word.to_string_lossy());
    }
    command
}

/// A word as a shell reads it: in quotes if it has a letter that means something to a shell.
pub(super) fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "-_./=:,%+@".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_survives_a_shell() {
        let words = ["fuse", "my model.onnx", "--skip", "*", "it's"].map(OsString::from);
        assert_eq!(
            command(&words),
            r"unfold fuse 'my model.onnx' --skip '*' 'it'\''s'"
        );
    }
}
