//! Writes the verdict of a command as a JUnit report, which test servers show.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

/// The verdict on one pair of models.
pub(super) struct JunitCase<'c> {
    /// The path of the first model.
    pub class: String,
    /// The path of the second model.
    pub name: String,
    /// The time that the verdict took.
    pub time: Duration,
    /// The name of the verdict and its message, if the verdict counts as a failure.
    pub failure: Option<(&'c str, &'c str)>,
}

/// Writes a report with one case.
///
/// # Errors
/// If the file cannot be written.
pub(super) fn write(file: &Path, case: &JunitCase) -> Result<()> {
    fs::write(file, report(case)).with_context(|| file.display().to_string())
}

fn report(case: &JunitCase) -> String {
    let failures = usize::from(case.failure.is_some());
    let seconds = case.time.as_secs_f64();
    let [class, name] = [&case.class, &case.name].map(|text| escaped(text));
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <testsuites>\n  \
         <testsuite name=\"unfold prove\" tests=\"1\" failures=\"{failures}\" time=\"{seconds:.3}\">\n    \
         <testcase classname=\"{class}\" name=\"{name}\" time=\"{seconds:.3}\""
    );
    match case.failure {
        None => text += "/>\n",
        Some((verdict, message)) => {
            let (verdict, message) = (escaped(verdict), escaped(message));
            // Writing to a string does not fail.
            let _ = write!(
                text,
                ">\n      <failure type=\"{verdict}\" message=\"{message}\"/>\n    </testcase>\n"
            );
        }
    }
    text + "  </testsuite>\n</testsuites>\n"
}

/// Escapes text for an attribute in XML. Characters that XML does not permit are replaced.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\n' | '\t' => escaped.push(' '),
            _ if letter.is_control() => escaped.push('\u{fffd}'),
            _ => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped() {
        let case = JunitCase {
            class: "a<b>.onnx".to_owned(),
            name: "\"c\" & d\u{1b}.onnx".to_owned(),
            time: Duration::from_millis(1500),
            failure: Some(("different", "differs in `y`")),
        };
        let text = report(&case);
        let line = "<testcase classname=\"a&lt;b&gt;.onnx\" name=\"&quot;c&quot; &amp; d\u{fffd}.onnx\" time=\"1.500\">";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("<failure type=\"different\" message=\"differs in `y`\"/>"));
        assert!(text.contains("failures=\"1\""));
    }
}
