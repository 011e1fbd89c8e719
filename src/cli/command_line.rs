//! Formats command lines for a shell.

use std::ffi::OsString;

/// Joins words to a command line, each quoted if necessary.
pub(super) fn command(words: &[OsString]) -> String {
    let mut command = "unfold".to_owned();
    for word in words {
        command.push(' ');
        command += &quoted(&word.to_string_lossy());
    }
    command
}

/// Quotes a word if it has a character that is special in a shell.
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
