//! Formats numbers, sizes and text for people.

/// Formats a duration in seconds, in a suitable unit.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 0.1 => format!("{:.0} ms", s * 1e3),
        s if s >= 0.01 => format!("{:.1} ms", s * 1e3),
        s if s >= 0.001 => format!("{:.2} ms", s * 1e3),
        s => format!("{:.0} µs", s * 1e6),
    }
}

/// Formats a number of bytes, in a suitable unit.
pub(crate) fn bytes(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        b if b >= 1e9 => format!("{:.2} GB", b / 1e9),
        b if b >= 1e6 => format!("{:.1} MB", b / 1e6),
        b if b >= 1e3 => format!("{:.1} kB", b / 1e3),
        b => format!("{b:.0} B"),
    }
}

/// Formats a count with its noun in the singular or plural.
pub(crate) fn counted(count: usize, word: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {word}{plural}")
}

/// Escapes text for a terminal. All characters that move the cursor, change colours, ring the bell
/// or change the direction of text are written as escapes.
pub(crate) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\u{61c}'
            | '\u{200e}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}' => {
                plain.extend(letter.escape_default());
            }
            _ if letter.is_control() => plain.extend(letter.escape_default()),
            _ => plain.push(letter),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        let hostile = "a\u{1b}[31mb\u{7}c\nd\te\u{202e}f\u{2066}g\u{2069}h\u{9b}i";
        let shown = r"a\u{1b}[31mb\u{7}c\nd\te\u{202e}f\u{2066}g\u{2069}h\u{9b}i";
        assert_eq!(plain(hostile), shown);
        assert_eq!(plain("…attn.q ÷ ε, 层"), "…attn.q ÷ ε, 层");
    }

    #[test]
    fn times_and_bytes_have_fitting_units() {
        assert_eq!(
            [0.0000123, 0.00234, 0.0234, 0.234, 2.34].map(time),
            ["12 µs", "2.34 ms", "23.4 ms", "234 ms", "2.34 s"]
        );
        assert_eq!(
            [12, 1_234, 12_345_678, 1_234_567_890].map(bytes),
            ["12 B", "1.2 kB", "12.3 MB", "1.23 GB"]
        );
    }

    #[test]
    fn escapes_are_written_out() {
        assert_eq!(plain("blocks.0\u{1b}[2J"), "blocks.0\\u{1b}[2J");
    }
}
